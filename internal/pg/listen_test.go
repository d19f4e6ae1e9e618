package pg_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

type logWriter struct{ t *testing.T }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
}

// listener runs until the test ends, or until the returned function is called.
func listener(t *testing.T, db *pg.DB, adjust func(*pg.Listener)) (*pg.Listener, func()) {
	t.Helper()
	l := pg.NewListener(db, slog.New(slog.NewTextHandler(logWriter{t}, nil)))
	adjust(l)
	// Somebody who waits before anybody listens is woken when listening begins.
	first := l.Wait(t.Context(), []string{"listening"})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	stop := func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	receive(t, first)
	first.Close()
	return l, stop
}

func receive(t *testing.T, w *pg.Wait) {
	t.Helper()
	select {
	case <-w.C:
	case <-time.After(time.Minute):
		t.Fatal("nothing woke the waiter")
	}
}

func silent(t *testing.T, w *pg.Wait) {
	t.Helper()
	select {
	case <-w.C:
		t.Error("the waiter was woken")
	default:
	}
}

func exec(t *testing.T, d *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// until asks again and again, because it watches another process.
func until(t *testing.T, d *pgtest.DB, what, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		var holds bool
		if err := d.Pool.QueryRow(ctx, sql, args...).Scan(&holds); err != nil {
			t.Fatalf("waiting until %s: %v", what, err)
		}
		if holds {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestListenerWakes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open(), (*pg.Listener).WithoutRechecks)
	a, ab, c := l.Wait(t.Context(), []string{"a"}), l.Wait(t.Context(), []string{"a", "b", "a"}), l.Wait(t.Context(), []string{"c"})
	defer a.Close()
	defer ab.Close()
	defer c.Close()
	var registered int
	if err := d.Pool.QueryRow(t.Context(), "select count(*) from ojs.waiter where queue in ('a', 'b', 'c')").Scan(&registered); err != nil || registered != 3 {
		t.Fatalf("%d queues are registered, want 3 (%v)", registered, err)
	}

	exec(t, d, "select ojs.enqueue('x', p_queue => 'a')")
	receive(t, a)
	receive(t, ab)
	silent(t, c)

	// Notifications come in the order of commits: when the second is here, the first would be.
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select ojs.enqueue('x', p_queue => 'a')"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, d, "select ojs.enqueue('x', p_queue => 'elsewhere')")
	exec(t, d, "select ojs.enqueue('x', p_queue => 'a', p_scheduled_at => now() + interval '1 day')")
	exec(t, d, "select ojs.enqueue('x', p_queue => 'b')")
	receive(t, ab)
	silent(t, a)

	// Nobody reads meanwhile: ten wakes become one, and the listener is not held up.
	for range 10 {
		exec(t, d, "select ojs.enqueue('x', p_queue => 'a')")
	}
	exec(t, d, "select ojs.enqueue('x', p_queue => 'c')")
	receive(t, c)
	receive(t, a)
	silent(t, a)

	ab.Close()
	exec(t, d, "select ojs.enqueue('x', p_queue => 'a')")
	receive(t, a)
}

func TestListenerReconnects(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open(), (*pg.Listener).WithoutRechecks)
	w := l.Wait(t.Context(), []string{"a"})
	defer w.Close()
	for range 3 {
		exec(t, d, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query = 'listen ojs_wake'")
		receive(t, w) // something may have been missed
		exec(t, d, "select ojs.enqueue('x', p_queue => 'a')")
		receive(t, w)
	}
}

func TestRegistrationsAreKeptAndWithdrawn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, stop := listener(t, d.Open(), (*pg.Listener).Impatient)
	w := l.Wait(t.Context(), []string{"a"})

	exec(t, d, "update ojs.waiter set expires_at = ojs.now() + interval '1 second'")
	until(t, d, "the registration is renewed", "select exists (select from ojs.waiter where queue = 'a' and expires_at > ojs.now() + interval '30 seconds')")

	// A registration that was lost comes back, with another token.
	exec(t, d, "delete from ojs.waiter")
	until(t, d, "the registration is back", "select exists (select from ojs.waiter where queue = 'a')")
	for {
		// The answer with the token may still be on its way when the row is seen.
		exec(t, d, "select ojs.enqueue('x', p_queue => 'a')")
		select {
		case <-w.C:
		case <-time.After(100 * time.Millisecond):
			continue
		}
		break
	}

	w.Close()
	until(t, d, "the registration is withdrawn", "select not exists (select from ojs.waiter)")
	w = l.Wait(t.Context(), []string{"a"})
	exec(t, d, "select ojs.enqueue('x', p_queue => 'a')")
	receive(t, w)
	w.Close()

	w = l.Wait(t.Context(), []string{"a", "b"})
	defer w.Close()
	stop()
	until(t, d, "everything is withdrawn at the end", "select not exists (select from ojs.waiter)")
	until(t, d, "nobody listens", "select not exists (select from pg_stat_activity where datname = current_database() and query = 'listen ojs_wake')")
}

// Many come and go at once while registrations are withdrawn without pause; whoever waits is woken.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open(), (*pg.Listener).Impatient)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				w := l.Wait(t.Context(), []string{"a"})
				// After Wait has returned, no commit may go unheard.
				exec(t, d, "select ojs.enqueue('x', p_queue => 'a')")
				receive(t, w)
				w.Close()
			}
		})
	}
	all.Wait()
}

// Without rights, a waiter still looks by itself.
func TestWaitingWithoutRegistration(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: d.GroupURL("")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l := pg.NewListener(db, slog.New(slog.NewTextHandler(logWriter{t}, nil)))
	l.Fallback = 20 * time.Millisecond
	w := l.Wait(t.Context(), []string{"a"})
	defer w.Close()
	for range 5 {
		receive(t, w)
	}
}

func TestWaitEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l := pg.NewListener(d.Open(), slog.New(slog.DiscardHandler))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	l.Wait(gone, []string{"a", "b"}).Close()
}
