package pg_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A database or a role that is set up for other programs, and a URL that says so, too.
func TestSessionsHaveTheSettingsThatOurSQLReliesOn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for name, value := range map[string]string{
		"default_transaction_isolation": "serializable", "standard_conforming_strings": "off", "client_encoding": "LATIN1",
		"row_security": "off", "timezone": "Asia/Kathmandu", "datestyle": "German", "intervalstyle": "sql_standard",
		"extra_float_digits": "-10", "search_path": "public",
	} {
		pgtest.Exec(t, d.Pool, fmt.Sprintf("alter role %s set %s = '%s'", d.RoleName("service"), name, value))
	}
	address, err := url.Parse(d.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("client_encoding", "LATIN1")
	query.Set("TimeZone", "Asia/Kathmandu")
	query.Set("options", "-cdefault_transaction_isolation=serializable")
	address.RawQuery = query.Encode()
	db, err := pg.Open(t.Context(), pg.Config{URL: address.String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if err := db.CheckSettings(t.Context()); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"transaction_isolation": "read committed", "standard_conforming_strings": "on", "client_encoding": "UTF8", "row_security": "on",
		"timezone": "UTC", "datestyle": "ISO, MDY", "intervalstyle": "postgres", "extra_float_digits": "1", "search_path": "",
	} {
		if got := pgtest.One[string](t, db.Pool(), "select current_setting($1)", name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	pgtest.Exec(t, db.Pool(), `select ojs.enqueue('a', '["日本語 \\"]')`)
	got := pgtest.List[string](t, db.Pool(), "select args::text from ojs.fetch('{default}')")
	if len(got) != 1 || got[0] != `["日本語 \\"]` {
		t.Errorf("a FETCH hands out %q", got)
	}
}

// A server on a loaded machine is not taken for a session that stays in its transaction.
func TestServersDoNotLinger(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	server, err := pg.Open(t.Context(), pg.Config{URL: d.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	for name, want := range map[string]bool{"the server": false, "another program": true} {
		pool := d.Pool
		if !want {
			pool = server.Unwrapped()
		}
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "select pg_sleep(0.03)")
		if got := pgtest.One[bool](t, tx, "select ojs._lingers()"); got != want {
			t.Errorf("a session of %s: it lingers: %v", name, got)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestOtherEncodingsAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		name := d.Name + "_" + strings.ToLower(encoding)
		pgtest.Exec(t, d.Pool, "create database "+name+" template template0 locale 'C' encoding '"+encoding+"'")
		address := strings.Replace(d.URL, "/"+d.Name, "/"+name, 1)
		says := func(err error) bool {
			return errors.Is(err, pg.ErrEncoding) && strings.Contains(err.Error(), encoding) &&
				strings.Contains(err.Error(), "create database NAME encoding 'UTF8' template template0")
		}
		if err := migrate.Run(t.Context(), address, migrate.Up, nil); !says(err) {
			t.Errorf("%s: migrate up says %v", encoding, err)
		}
		db, err := pg.Open(t.Context(), pg.Config{URL: address})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.CheckSettings(t.Context()); !says(err) {
			t.Errorf("%s: a server says %v", encoding, err)
		}
		db.Close()
		pgtest.Exec(t, d.Pool, "drop database "+name+" with (force)")
	}
}

const ignoreAll = "ignore_startup_parameters = search_path,jit,default_transaction_isolation,row_security,intervalstyle," +
	"extra_float_digits,ojs.autocommit"

// A URL that leads to PgBouncer in transaction mode is refused, whether or not PgBouncer takes all
// our settings.
func TestSharedSessionsAreFoundBehindPgBouncer(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	strict, lax := pgtest.Bouncer(t, d.ServiceURL), pgtest.Bouncer(t, d.ServiceURL, ignoreAll)
	for name, address := range map[string]string{
		"with its own settings": strict, "with settings that it ignores": lax,
		"with one session":           pgtest.Bouncer(t, d.ServiceURL, ignoreAll, "default_pool_size = 1"),
		"with sessions in turns":     pgtest.Bouncer(t, d.ServiceURL, ignoreAll, "server_round_robin = 1", "min_pool_size = 4"),
		"with two sessions in turns": pgtest.Bouncer(t, d.ServiceURL, ignoreAll, "server_round_robin = 1", "default_pool_size = 2"),
	} {
		if name == "with two sessions in turns" {
			occupyTwo(t, address)
		}
		for range 3 {
			db, err := pg.Open(t.Context(), pg.Config{URL: address})
			if err == nil {
				db.Close()
			}
			if !errors.Is(err, pg.ErrPooler) || !strings.Contains(err.Error(), "--direct-url") {
				t.Errorf("%s: it opens with %v", name, err)
			}
		}
		if err := migrate.Run(t.Context(), address, migrate.Up, nil); !errors.Is(err, pg.ErrPooler) {
			t.Errorf("%s: migrate up says %v", name, err)
		}
		db, err := pg.Open(t.Context(), pg.Config{URL: strict, ListenURL: address})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.CheckSettings(t.Context()); !errors.Is(err, pg.ErrPooler) || !strings.Contains(err.Error(), "direct URL") {
			t.Errorf("%s, as the direct URL: %v", name, err)
		}
		db.Close()
	}

	for name, address := range map[string]string{
		"PostgreSQL itself":            d.ServiceURL,
		"sessions that are not shared": pgtest.Bouncer(t, d.ServiceURL, ignoreAll, "pool_mode = session"),
	} {
		db, err := pg.Open(t.Context(), pg.Config{URL: address})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := db.CheckSettings(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		db.Close()
	}
}

// occupyTwo makes a pooler open two sessions, which then are free.
func occupyTwo(t *testing.T, address string) {
	t.Helper()
	for range 2 {
		conn, err := pgx.Connect(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		if err := conn.PgConn().Exec(t.Context(), "begin").Close(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.PgConn().Exec(t.Context(), "rollback").Close() }()
	}
}

// Through PgBouncer a server cannot set all that it relies on.
func TestSettingsAreCheckedBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"default_transaction_isolation": "repeatable read", "row_security": "off"} {
		d := pgtest.New(t)
		check := func() error {
			db, err := pg.Open(t.Context(), pg.Config{URL: pgtest.Bouncer(t, d.ServiceURL), ListenURL: d.ServiceURL})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			return db.CheckSettings(t.Context())
		}
		if err := check(); err != nil {
			t.Error(err)
		}
		pgtest.Exec(t, d.Pool, fmt.Sprintf("alter database %s set %s = '%s'", d.Name, name, value))
		err := check()
		if !errors.Is(err, pg.ErrSetting) || !strings.Contains(err.Error(), "alter role "+d.RoleName("service")+" set "+name) {
			t.Errorf("with %s = %s: %v", name, value, err)
		}
	}
}
