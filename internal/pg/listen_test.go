package pg_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

type logWriter struct{ t *testing.T }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
}

// listener runs until the test ends, or until the returned function is called.
func listener(t *testing.T, db *pg.DB, adjust ...func(*pg.Listener)) (*pg.Listener, func()) {
	t.Helper()
	l := pg.NewListener(db, slog.New(slog.NewTextHandler(logWriter{t}, nil)))
	for _, f := range adjust {
		f(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	stop := func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return l, stop
}

// waiter is a subscription whose wakes can be received. Wakes that come before one is received are one.
type waiter struct {
	*pg.Subscription
	c chan struct{}
}

func subscribe(l *pg.Listener, queues ...string) waiter {
	c := make(chan struct{}, 1)
	wake := func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	s, registered := l.Subscribe(queues, wake)
	if registered {
		wake() // a new subscriber looks once
	}
	return waiter{c: c, Subscription: s}
}

// settled subscribes, and returns when nothing but a commit can wake any more.
func settled(t *testing.T, d *pgtest.DB, l *pg.Listener, queues ...string) waiter {
	t.Helper()
	w := subscribe(l, queues...)
	heard(t, w)
	// A notification comes after whatever was going to be told before.
	for range 2 {
		for _, q := range queues {
			pgtest.Exec(t, d.Pool, "select ojs._notify(array[$1])", q)
			receive(t, w)
		}
	}
	// The listener looks again at a new registration, at last after half a second.
	wakes := int64(0)
	pgtest.AtRest(t, "nothing wakes the waiter any more", func() int64 {
		select {
		case <-w.c:
			wakes++
		default:
		}
		return wakes
	})
	return w
}

func heard(t *testing.T, w waiter) {
	t.Helper()
	for !w.Notified() {
		pgtest.Receive(t, "the queues are listened to", w.c)
	}
}

func receive(t *testing.T, w waiter) {
	t.Helper()
	pgtest.Receive(t, "the waiter is woken", w.c)
}

// silent repeats what should not wake the waiter until it does not: the end of another database's transaction may wake it now and then,
// because a snapshot is of the whole server.
func silent(t *testing.T, w waiter, act func()) {
	t.Helper()
	for range 5 {
		select {
		case <-w.c:
		default:
		}
		act()
		select {
		case <-w.c:
		default:
			return
		}
	}
	t.Error("the waiter was woken each time")
}

func TestListenerWakes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open())
	a, ab, c := settled(t, d, l, "a"), settled(t, d, l, "a", "b", "a"), settled(t, d, l, "c")
	defer a.Close()
	defer c.Close()
	receive(t, a) // what was sent to settle the others
	var registered int
	if err := d.Pool.QueryRow(t.Context(),
		"select count(*) from ojs.waiter where queue in ('a', 'b', 'c')").Scan(&registered); err != nil || registered != 3 {
		t.Fatalf("%d queues are registered, want 3 (%v)", registered, err)
	}

	silent(t, c, func() {
		pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')")
		receive(t, a)
		receive(t, ab)
	})

	// Notifications come in the order of commits: when the second is here, the first would be.
	silent(t, a, func() {
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
		pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'elsewhere')")
		pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a', p_scheduled_at => now() + interval '1 day')")
		pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'b')")
		receive(t, ab)
	})

	ab.Close()
	silent(t, ab, func() {
		pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')")
		receive(t, a)
	})
}

func TestListenerReconnects(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open())
	w := settled(t, d, l, "a")
	defer w.Close()
	for range 3 {
		// Nobody knows of the registration any more, either: it may have been another server's memory.
		pgtest.Exec(t, d.Pool, "delete from ojs.waiter")
		pgtest.Exec(t, d.Pool, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query "+
			"= 'listen ojs_wake'")
		receive(t, w) // something may be missed from now on
		heard(t, w)
		pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')")
		receive(t, w)
	}
}

func TestRegistrationsAreKeptAndWithdrawn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, stop := listener(t, d.Open(), (*pg.Listener).Impatient)
	w := subscribe(l, "a")
	heard(t, w)

	pgtest.Exec(t, d.Pool, "update ojs.waiter set expires_at = ojs.now() + interval '1 second'")
	d.Eventually("the registration is renewed",
		"select exists (select from ojs.waiter where queue = 'a' and expires_at > ojs.now() + interval '30 seconds')")

	// A registration that was lost comes back, with another token.
	pgtest.Exec(t, d.Pool, "delete from ojs.waiter")
	d.Eventually("the registration is back", "select exists (select from ojs.waiter where queue = 'a')")
	pgtest.Eventually(t, "a commit wakes the waiter", func() bool {
		// The answer with the token may still be on its way when the row is seen.
		pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')")
		return len(w.c) > 0
	})
	receive(t, w)

	w.Close()
	d.Eventually("the registration is withdrawn", "select not exists (select from ojs.waiter)")
	w = subscribe(l, "a")
	heard(t, w)
	pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')")
	receive(t, w)
	w.Close()

	w = subscribe(l, "a", "b")
	defer w.Close()
	d.Eventually("both are registered", "select count(*) = 2 from ojs.waiter")
	stop()
	d.Eventually("everything is withdrawn at the end", "select not exists (select from ojs.waiter)")
	d.Eventually("nobody listens", "select not exists (select from pg_stat_activity where datname = current_database() and query = "+
		"'listen ojs_wake')")
}

// Many come and go at once while registrations are withdrawn without pause; each one that waits is woken.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open(), (*pg.Listener).Impatient)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				// Whenever the commit is, before the registration, after it or across it, a wake follows.
				w := subscribe(l, "a")
				pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')")
				receive(t, w)
				w.Close()
			}
		})
	}
	all.Wait()
}

// A transaction that had looked for waiters before there was one commits without a word, however late.
func TestCommitThatCrossesTheRegistration(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open())
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // done already when the test passes
	if _, err := tx.Exec(t.Context(), "select ojs.enqueue('x', p_queue => 'a')"); err != nil {
		t.Fatal(err)
	}
	w := settled(t, d, l, "a")
	defer w.Close()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	receive(t, w)
}

// The registration is not to be had; nobody is told that commits are heard of.
func TestWaitingWithoutRegistration(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: d.GroupURL("")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, stop := listener(t, db)
	w := subscribe(l, "a")
	defer w.Close()
	receive(t, w) // the connection listens
	if w.Notified() {
		t.Error("commits are said to be heard of")
	}
	stop()
}
