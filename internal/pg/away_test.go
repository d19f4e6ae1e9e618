package pg_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Of two hosts the one is taken that accepts writes, also when that changes; nothing has to be said
// for it.
func TestTwoHosts(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	address, err := url.Parse(d.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := address.User.Password()
	other := pgtest.NewPrivate(t, nil)
	otherAddress, err := url.Parse(other.URL)
	if err != nil {
		t.Fatal(err)
	}
	// The same name and password there, too.
	other.Exec(fmt.Sprintf("create role %s login password '%s'", address.User.Username(), password))
	other.Exec("create database " + d.Name)
	other.Exec("alter database " + d.Name + " set default_transaction_read_only = on")
	address.Host = otherAddress.Host + "," + address.Host
	db, err := pg.Open(t.Context(), pg.Config{URL: address.String()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := migrate.CheckSchema(t.Context(), db.Pool()); err != nil {
		t.Errorf("it is not connected to the one that accepts writes: %v", err)
	}
	other.Stop()
	db.Pool().Reset()
	if err := migrate.CheckSchema(t.Context(), db.Pool()); err != nil {
		t.Errorf("with the first host away: %v", err)
	}

	// The primary becomes read-only under its connections, as one does that is a standby now.
	var pid, again int
	if err := db.Pool().QueryRow(t.Context(),
		"select pg_backend_pid() from (select set_config('default_transaction_read_only', 'on', false)) s").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	var known *pg.Error
	_, err = db.Pool().Exec(t.Context(), "select ojs.enqueue('a')")
	if !errors.As(db.Err(err), &known) || known.SQLState != "25006" || known.Status != 503 || !known.Retryable {
		t.Errorf("an enqueue at a server in recovery became %v", db.Err(err))
	}
	if err := db.Pool().QueryRow(t.Context(), "select pg_backend_pid() from ojs.enqueue('a')").Scan(&again); err != nil || again == pid {
		t.Errorf("the next one goes to session %d, as the one before (%v)", again, err)
	}
}

// A crash ends all sessions at once. No statement is sent over one that has ended: each would fail.
func TestNothingIsSentOverSessionsThatEnded(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	pool := d.Open().Pool()
	for name, ctx := range map[string]context.Context{"plain": t.Context(), "unchecked": pg.Unchecked(t.Context())} {
		var pids []int32
		var used []*pgxpool.Conn
		for range pool.Config().MaxConns {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pids, used = append(pids, int32(conn.Conn().PgConn().PID())), append(used, conn)
		}
		for _, conn := range used {
			conn.Release()
		}
		const end = "select count(*) filter (where pg_terminate_backend(pid, 60000))::int from unnest($1::int[]) pid"
		if ended := pgtest.One[int](t, d.Pool, end, pids); ended != len(pids) {
			t.Fatalf("%d of %d sessions ended", ended, len(pids))
		}
		for i := range pids {
			if _, err := pool.Exec(ctx, "select"); err != nil {
				t.Errorf("%s statement %d: %s", name, i, pgtest.Explain(err))
			}
		}
	}
}

// Whatever Postgres lacks at the moment, a caller may try again.
func TestWhatPostgresLacks(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	for _, state := range []string{
		"53100", "53200", "53300", "53400", "55P03", "57P01", "57P02", "57P03", "57014", "58030", "25006",
		"40001", "40P01", "08006",
	} {
		_, err := d.Service().Exec(t.Context(), "do $$ begin raise sqlstate '"+state+"'; end $$")
		var known *pg.Error
		if !errors.As(db.Err(err), &known) || known.Status != 503 || !known.Retryable || known.Code != "backend_unavailable" {
			t.Errorf("%s became %v", state, db.Err(err))
		}
	}
}
