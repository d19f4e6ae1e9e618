package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// env is a dispatcher with all that belongs to it. Nothing but a wake makes it poll.
type env struct {
	*Dispatcher
	t    *testing.T
	db   *pgtest.DB
	stop func()
}

func dispatcher(t *testing.T, opts Options) *env {
	t.Helper()
	db := pgtest.New(t)
	door := db.Open()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	listener := pg.NewListener(door, log)
	opts.Fallback = cmp.Or(opts.Fallback, time.Hour)
	b := &env{t: t, db: db, Dispatcher: New(door, listener, log, opts)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	running.Go(func() { b.Run(ctx) })
	b.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(b.stop)
	return b
}

func (b *env) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *env) count(sql string, args ...any) (n int) {
	b.t.Helper()
	if err := b.db.Pool.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// session begins a transaction that goes on until the returned function ends it.
func (b *env) session(sql string, args ...any) (end func(string)) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.db.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(b.t.Context(), "begin"); err != nil {
		b.t.Fatal(err)
	}
	if _, err := conn.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
	return func(how string) {
		b.t.Helper()
		if _, err := conn.Exec(context.Background(), how); err != nil {
			b.t.Error(err)
		}
	}
}

// blocked waits until so many of our sessions wait for a lock.
func (b *env) blocked(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "sessions wait for a lock", func() bool {
		return b.count("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == n
	})
}

// waiting waits until so many requests wait and nothing is left to be told about their queues.
func (b *env) waiting(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "the requests wait", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		total := 0
		for _, g := range b.groups {
			total += g.waiting.Len()
			if g.waiting.Len() > 0 && !g.sub.Notified() {
				return false
			}
		}
		return total == n && b.shared.inFlight+b.isolated.inFlight == 0
	})
}

// idling waits until no statement has been sent for a while.
func (b *env) idling() int64 {
	b.t.Helper()
	for last, since := b.Statements(), time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if now := b.Statements(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > time.Second {
			return last
		}
	}
}

type answer struct {
	jobs []sqlcgen.OjsJob
	err  error
}

// later fetches in the background.
func (b *env) later(ctx context.Context, f Fetch) <-chan answer {
	c := make(chan answer, 1)
	f.Count = max(f.Count, 1)
	go func() {
		jobs, err := b.Fetch(ctx, f)
		c <- answer{jobs, err}
	}()
	return c
}

func (b *env) want(c <-chan answer, n int) []sqlcgen.OjsJob {
	b.t.Helper()
	select {
	case a := <-c:
		if a.err != nil || len(a.jobs) != n {
			b.t.Fatalf("got %d jobs and %v, want %d", len(a.jobs), a.err, n)
		}
		return a.jobs
	case <-time.After(time.Minute):
		b.t.Fatal("no answer within a minute")
		return nil
	}
}

func problem(err error) string {
	var known *pg.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return fmt.Sprint(err)
}

func (b *env) arrived(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "the requests are in line", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		total := 0
		for _, g := range b.groups {
			total += g.incoming.Len()
		}
		return total == n
	})
}
