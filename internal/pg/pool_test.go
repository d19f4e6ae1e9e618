package pg_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// limited opens a database as a login that may have few connections.
func limited(t *testing.T, d *pgtest.DB, connections int) (db *pg.DB, log *pgtest.Log) {
	t.Helper()
	log = &pgtest.Log{}
	db, err := pg.Open(t.Context(), pg.Config{
		URL: d.LoginURL("few", fmt.Sprintf("connection limit %d in role ojs_service", connections)),
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db, log
}

// PostgreSQL refuses the fourth connection of a pool that would like sixteen. Statements of every
// kind wait for the three.
func TestAPoolThatCannotGrowUsesWhatItHas(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, log := limited(t, d, 3)
	ctx := t.Context()
	kinds := []func() error{
		func() error { _, err := db.Pool().Exec(ctx, "select pg_sleep(0.003)"); return err },
		func() error { var n int; return db.Pool().QueryRow(ctx, "select 1 from pg_sleep(0.003)").Scan(&n) },
		func() error {
			rows, err := db.Pool().Query(ctx, "select pg_sleep(0.003)")
			if err != nil {
				return err
			}
			rows.Close()
			return rows.Err()
		},
		func() error {
			batch := &pgx.Batch{}
			batch.Queue("select pg_sleep(0.003)")
			return db.Pool().SendBatch(ctx, batch).Close()
		},
		func() error {
			_, err := db.Shared().Exec(pg.As(ctx, pg.NoTenant, false), "select pg_sleep(0.003)")
			return err
		},
		func() error { var n int; return db.Brief().QueryRow(ctx, "select 1 from pg_sleep(0.003)").Scan(&n) },
	}
	var all sync.WaitGroup
	for n := range 24 {
		all.Go(func() {
			for range 20 {
				if err := kinds[n%len(kinds)](); err != nil {
					t.Errorf("kind %d: %s", n%len(kinds), pgtest.Explain(err))
					return
				}
			}
		})
	}
	all.Wait()
	if n := strings.Count(log.String(), "PostgreSQL refuses further connections"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, log)
	}
	busy := func() int32 {
		var waiting sync.WaitGroup
		for range 16 {
			waiting.Go(func() {
				if _, err := db.Pool().Exec(ctx, "select pg_sleep(0.02)"); err != nil {
					t.Error(err)
				}
			})
		}
		waiting.Wait()
		stat := db.Pool().Stat()
		return stat.AcquiredConns() + stat.IdleConns()
	}
	pgtest.Eventually(t, "the pool has all three", func() bool { return busy() == 3 })
	// The connection of Probe would be the fourth.
	pgtest.Eventually(t, "the probe has an answer", func() bool { return db.Probe(ctx) == nil })

	// A statement whose time is over before a connection is free fails with its own end.
	used := make([]func(), 3)
	for n := range used {
		conn, err := db.Pool().Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		used[n] = conn.Release
	}
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	if _, err := db.Pool().Exec(short, "select 1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a free connection a statement fails with %v", err)
	}
	for _, release := range used {
		release()
	}

	// Once PostgreSQL grants more, the pool grows.
	pgtest.Exec(t, d.Pool, fmt.Sprintf("alter role %s connection limit -1", d.RoleName("few")))
	pgtest.Eventually(t, "the pool grows", func() bool { return busy() > 8 })
}

// Without any connection there is nothing to wait for.
func TestAPoolWithoutConnectionsFailsAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, _ := limited(t, d, 2)
	role := d.RoleName("few")
	pgtest.Exec(t, d.Pool, fmt.Sprintf("alter role %s connection limit 0", role))
	pgtest.Exec(t, d.Pool, "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = $1", role)
	for range 3 {
		began := time.Now()
		_, err := db.Pool().Exec(t.Context(), "select 1")
		var known *pg.Error
		if !errors.As(db.Err(err), &known) || known.Status != 503 || !known.Retryable || time.Since(began) > 10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	}
	if err := db.Probe(t.Context()); err == nil {
		t.Error("the probe finds a database")
	}
	pgtest.Exec(t, d.Pool, fmt.Sprintf("alter role %s connection limit -1", role))
	if _, err := db.Pool().Exec(t.Context(), "select 1"); err != nil {
		t.Error(err)
	}
}

// One SQLSTATE has several causes. Only the size of a payload is the client's fault.
func TestLimitsOfPostgresAreNotTheClients(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Open()
	for name, c := range map[string]struct {
		err    pgconn.PgError
		status int
	}{
		"the queue of notifications": {pgconn.PgError{Code: "54000", File: "async.c", Message: "zu viele Benachrichtigungen"}, 503},
		"the same, raised again":     {pgconn.PgError{Code: "54000", Message: "too many notifications in the NOTIFY queue"}, 503},
		"ids of transactions": {pgconn.PgError{Code: "54000", File: "varsup.c", Message: "database is not accepting commands to avoid " +
			"wraparound data loss in database \"app\""}, 503},
		"ids of multixacts":      {pgconn.PgError{Code: "54000", File: "multixact.c"}, 503},
		"a table's largest size": {pgconn.PgError{Code: "54000", File: "md.c"}, 503},
		"locks": {pgconn.PgError{
			Code: "53200", Message: "out of shared memory", Hint: "You might need to increase max_locks_per_transaction.",
		}, 503},
		"a text in JSON":    {pgconn.PgError{Code: "54000", File: "jsonb.c", Message: "string too long to represent as jsonb string"}, 413},
		"a row of an index": {pgconn.PgError{Code: "54000", File: "nbtutils.c"}, 413},
	} {
		var known *pg.Error
		err := db.Err(&c.err)
		if !errors.As(err, &known) || known.Status != c.status || known.Retryable != (c.status == 503) {
			t.Errorf("%s: %v", name, err)
		}
		if known.Retryable && (known.Code != "backend_unavailable" || pg.ItemFault(&c.err)) {
			t.Errorf("%s: code %s; the fault of one item: %v", name, known.Code, pg.ItemFault(&c.err))
		}
	}
	// PostgreSQL's own message about a size.
	_, err := db.Pool().Exec(t.Context(), "select array_fill(1, array[1000000000])")
	var known *pg.Error
	if !errors.As(db.Err(err), &known) || known.Status != 413 {
		t.Errorf("an array that is too large: %v", db.Err(err))
	}
}

// A database that answers may still refuse all writes.
func TestProbeAsksWhetherTheDatabaseAcceptsWrites(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	probe := func(when string, want error) {
		t.Helper()
		err := db.Probe(t.Context())
		for errors.Is(err, context.DeadlineExceeded) { // on a loaded machine
			err = db.Probe(t.Context())
		}
		if !errors.Is(err, want) {
			t.Errorf("%s the probe says %v, want %v", when, err, want)
		}
	}
	probe("at first", nil)
	alter := "alter database " + d.Name + " "
	pgtest.Exec(t, d.Pool, alter+"set default_transaction_read_only = on")
	// The session of the probe is an older one. The first refused write tells that it is out of date.
	db.Pool().Reset()
	if _, err := db.Pool().Exec(t.Context(), "select ojs.enqueue('a')"); err == nil {
		t.Fatal("the database accepts writes")
	}
	probe("read-only", pg.UnableReadOnly)
	pgtest.Exec(t, d.Pool, "begin; set transaction read write; "+alter+"reset default_transaction_read_only; commit")
	probe("afterwards", nil)

	for state, want := range map[string]error{
		"'53100'": pg.UnableDiskFull, "'54000', message = 'commands are refused to avoid wraparound data loss'": pg.UnableWraparound,
	} {
		other := d.Open()
		if _, err := other.Pool().Exec(t.Context(), "do $$ begin raise exception using errcode = "+state+"; end $$"); err == nil {
			t.Fatal("no error")
		}
		db = other
		probe("after "+state, want)
	}
}
