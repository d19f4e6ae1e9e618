package notify_test

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

type logWriter struct{ t *testing.T }

func (w logWriter) Write(line []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(line)))
	return len(line), nil
}

// listener runs until the test ends, or until the returned function is called.
func listener(t *testing.T, db *pg.DB, adjust ...func(*notify.Listener)) (*notify.Listener, func()) {
	t.Helper()
	l := notify.New(db, slog.New(slog.NewTextHandler(logWriter{t}, nil)))
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

// waiter is a subscription whose wakes can be received. Wakes that come before one is received are
// one.
type waiter struct {
	*notify.Subscription
	c chan struct{}
}

func subscribe(l *notify.Listener, queues ...string) waiter {
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
func settled(t *testing.T, d *pgtest.DB, l *notify.Listener, queues ...string) waiter {
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

// silent repeats what should not wake the waiter until it does not: the end of another database's
// transaction may wake it now and then, because a snapshot is of the whole server.
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
		// Nobody knows of the registration any more, either: it may have been another server's
		// memory.
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
	l, stop := listener(t, d.Open(), (*notify.Listener).Impatient)
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

// Many come and go at once while registrations are withdrawn without pause; each one that waits is
// woken.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open(), (*notify.Listener).Impatient)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				// Whenever the commit is, before the registration, after it or across it, a wake
				// follows.
				w := subscribe(l, "a")
				pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')")
				receive(t, w)
				w.Close()
			}
		})
	}
	all.Wait()
}

// A transaction that had looked for waiters before there was one commits without a word, however
// late.
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

// The first connection is established, and then nothing answers; the second one works.
func TestTheListenerTriesAgainWhenASessionHangs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: d.ServiceURL, ListenURL: pgtest.SilentWay(t, d.ServiceURL, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	l, _ := listener(t, db, (*notify.Listener).Hasty)
	w := subscribe(l, "a")
	heard(t, w)
}

// The time to begin to listen does not count while hosts that do not answer are passed over.
func TestTheListenerReachesTheLastHost(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	address, err := url.Parse(d.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	address.Host = silent.Addr().String() + "," + address.Host
	query := address.Query()
	query.Set("connect_timeout", "1") // more than the time to begin to listen
	address.RawQuery = query.Encode()
	db, err := pg.Open(t.Context(), pg.Config{URL: d.ServiceURL, ListenURL: address.String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	l, _ := listener(t, db, (*notify.Listener).Hasty)
	pgtest.Eventually(t, "the listener is connected", func() bool { return l.Backend() != 0 })
}

func TestFunctionsMayShareAToken(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open())
	heard(t, subscribe(l, "a"))
	first, second := make(chan struct{}, 10), make(chan struct{}, 10)
	stop := l.OnToken("both", func() { first <- struct{}{} })
	defer l.OnToken("both", func() { second <- struct{}{} })()
	pgtest.Exec(t, d.Pool, "select pg_notify('ojs_wake', 'both')")
	<-first
	<-second
	stop()
	pgtest.Exec(t, d.Pool, "select pg_notify('ojs_wake', 'both')")
	<-second
	if len(first) > 0 {
		t.Error("called after it was stopped")
	}
}

// While commits notify no server, because the NOTIFY queue is too full, the subscribers are told so: they poll more often.
func TestTheListenerKnowsThatTheQueueIsFull(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	l, _ := listener(t, d.Open(), (*notify.Listener).Impatient)
	w := settled(t, d, l, "a")
	defer w.Close()
	full := func(is string) {
		pgtest.Exec(t, d.Pool, "create or replace function ojs._notify_full() returns boolean language sql as 'select "+is+"'")
	}
	full("true")
	receive(t, w)
	if w.Notified() || l.Notified() {
		t.Error("commits are said to be heard of")
	}
	silent(t, w, func() { pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'a')") })
	full("false")
	receive(t, w)
	heard(t, w)
	if !l.Notified() {
		t.Error("commits are said not to be heard of")
	}
}

// A mistake in a function that the listener calls ends neither what hears of commits nor what
// registers queues.
func TestAListenerThatPanicsGoesOn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	log := &pgtest.Log{}
	l := notify.New(d.Open(), slog.New(slog.NewTextHandler(log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})

	// Registered by maintain, which wakes those who wait.
	woken := make(chan struct{}, 1)
	var once sync.Once
	s, _ := l.Subscribe([]string{"a"}, func() {
		once.Do(func() { panic("a mistake when woken") })
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	w := waiter{s, woken}
	heard(t, w)
	b := subscribe(l, "b")
	heard(t, b)

	// Called by the connection.
	var first sync.Once
	defer l.OnToken("boom", func() { first.Do(func() { panic("a mistake when notified") }) })()
	pgtest.Exec(t, d.Pool, "select pg_notify('ojs_wake', 'boom')")
	receive(t, b) // the connection is lost
	heard(t, b)
	pgtest.Exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'b')")
	receive(t, b)
	for _, text := range []string{"a mistake when woken", "a mistake when notified"} {
		pgtest.Eventually(t, text+" is logged", func() bool { return strings.Contains(log.String(), text) })
	}
}

// value is that of the one series of a collector.
func value(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(c)
	families, err := all.Gather()
	if err != nil || len(families) != 1 || len(families[0].Metric) != 1 {
		t.Fatalf("%v, %v: want one series", families, err)
	}
	return families[0].Metric[0].GetGauge().GetValue()
}

func TestMetricsOfTheListener(t *testing.T) {
	t.Parallel()
	listener := notify.New(pgtest.New(t).Open(), slog.New(slog.DiscardHandler))
	connections := listener.Metrics()[0]
	if n := value(t, connections); n != 0 {
		t.Errorf("%v connections before it runs", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	pgtest.Eventually(t, "it listens", func() bool { return value(t, connections) == 1 })
	stop()
	running.Wait()
	if n := value(t, connections); n != 0 {
		t.Errorf("%v connections after it ran", n)
	}
}
