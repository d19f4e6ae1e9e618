package pg_test

import (
	"errors"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestOpenGivesUpASessionThatHangs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: pgtest.SilentWay(t, d.ServiceURL, 1000)}.Hasty())
	if err == nil {
		db.Close()
		t.Error("no error")
	}
}

// During a migration a thousand elements of a statement may fail at once.
func TestAThousandErrorsAskOnceWhetherTheSchemaChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Open()
	before := db.Pool().Stat().AcquireCount()
	for range 1000 {
		var known *pg.Error
		if err := db.Err(&pgconn.PgError{Code: "42703"}); !errors.As(err, &known) || known.Status != 500 {
			t.Fatal(err)
		}
	}
	// A slow machine may take more than a second.
	if asked := db.Pool().Stat().AcquireCount() - before; asked > 20 {
		t.Errorf("asked %d times", asked)
	}
}

func TestAnOverloadedBatcherIsAnswered503(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Open()
	var known *pg.Error
	if err := db.Err(pg.ErrOverloaded); !errors.As(err, &known) || known.Status != 503 || !known.Retryable ||
		known.Code != "backend_unavailable" {
		t.Errorf("%+v", known)
	}
}

func TestSettingsOfThePoolInTheURLHold(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	with := func(address string) string {
		parsed, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		query := parsed.Query()
		query.Set("pool_max_conns", "3")
		query.Set("pool_max_conn_lifetime", "90m")
		parsed.RawQuery = query.Encode()
		return parsed.String()
	}
	db, err := pg.Open(t.Context(), pg.Config{URL: with(d.ServiceURL), ListenURL: with(d.ServiceURL), MaxConns: 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if c := db.Pool().Config(); c.MaxConns != 3 || c.MaxConnLifetime.String() != "1h30m0s" || c.MaxConnIdleTime.String() != "10m0s" {
		t.Errorf("%d connections, for %s, idle %s", c.MaxConns, c.MaxConnLifetime, c.MaxConnIdleTime)
	}
	conn, err := pgx.ConnectConfig(t.Context(), db.ListenConfig())
	if err != nil {
		t.Fatal(err)
	}
	pg.HangUp(t.Context(), conn)
	if _, err := migrate.Status(t.Context(), with(d.URL)); err != nil {
		t.Error(err)
	}
}
