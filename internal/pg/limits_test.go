package pg_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// silentWay is a way to a PostgreSQL that lets sessions begin and then passes nothing on, for so many sessions; later ones work.
func silentWay(t *testing.T, address string, sessions int64) (through string) {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var left atomic.Int64
	left.Store(sessions)
	to := parsed.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			t.Cleanup(func() { client.Close(); server.Close() })
			go func() {
				_, _ = io.Copy(server, client)
				// PostgreSQL would wait a minute for the rest of a login, and no database is dropped meanwhile.
				server.Close()
			}()
			go passOn(client, server, left.Add(-1) >= 0)
		}
	}()
	parsed.Host = listener.Addr().String()
	query := parsed.Query()
	query.Set("sslmode", "disable")
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

// passOn passes PostgreSQL's messages on, to the end or until the session is ready.
func passOn(client, server net.Conn, untilReady bool) {
	defer func() {
		if !untilReady {
			client.Close()
		}
	}()
	for {
		header := make([]byte, 5)
		if _, err := io.ReadFull(server, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		if _, err := io.ReadFull(server, body); err != nil {
			return
		}
		if _, err := client.Write(append(header, body...)); err != nil {
			return
		}
		if untilReady && header[0] == 'Z' {
			return
		}
	}
}

func TestOpenGivesUpASessionThatHangs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: silentWay(t, d.ServiceURL, 1000)}.Hasty())
	if err == nil {
		db.Close()
		t.Error("no error")
	}
}

func TestCheckSchemaDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	db.Hasty()
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // done already when the test passes
	if _, err := tx.Exec(t.Context(), "lock table ojs.schema_hash"); err != nil {
		t.Fatal(err)
	}
	if err := db.CheckSchema(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The first connection is established, and then nothing answers; the second one works.
func TestTheListenerTriesAgainWhenASessionHangs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: d.ServiceURL, ListenURL: silentWay(t, d.ServiceURL, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	l, _ := listener(t, db, (*pg.Listener).Hasty)
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
	l, _ := listener(t, db, (*pg.Listener).Hasty)
	pgtest.Eventually(t, "the listener is connected", func() bool { return l.Backend() != 0 })
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
	l, _ := listener(t, db)
	heard(t, subscribe(l, "a"))
	if _, err := pg.Status(t.Context(), with(d.URL)); err != nil {
		t.Error(err)
	}
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

// A mistake in a function that the listener calls ends neither what hears of commits nor what registers queues.
func TestAListenerThatPanicsGoesOn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	log := &pgtest.Log{}
	l := pg.NewListener(d.Open(), slog.New(slog.NewTextHandler(log, nil)))
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
