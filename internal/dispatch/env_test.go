package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// env is a Dispatcher with a database and a listener of its own. It polls only when a commit wakes it:
// the fallback is an hour.
type env struct {
	*Dispatcher
	t     *testing.T
	db    *pgtest.DB
	stop  func()
	sent  atomic.Int64  // statements so far
	hold  atomic.Bool   // decisions wait for step
	steps chan struct{} // of decisions that are held
}

// dispatcher starts a Dispatcher on a database of its own. The end of the test stops it.
func dispatcher(t *testing.T, opts Options) *env {
	t.Helper()
	db := pgtest.New(t)
	door := db.Open()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	listener := notify.New(door, log)
	opts.Fallback, opts.Query = cmp.Or(opts.Fallback, time.Hour), cmp.Or(opts.Query, time.Hour) // however slow the machine is
	b := &env{t: t, db: db, Dispatcher: New(door, listener, log, opts), steps: make(chan struct{})}
	b.countStatements()
	b.holdDecisions()
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

// countStatements counts each statement just before it is sent.
func (b *env) countStatements() {
	s := b.send
	b.send = statements{
		fetch: func(ctx context.Context, parts []*part) error {
			b.sent.Add(int64(len(parts)))
			return s.fetch(ctx, parts)
		},
		ack: func(ctx context.Context, items []ack, whole bool) ([]*sqlcgen.OjsJob, error) {
			b.sent.Add(1)
			return s.ack(ctx, items, whole)
		},
		settle: func(ctx context.Context, items []Settlement, whole bool) ([]Settled, error) {
			b.sent.Add(1)
			return s.settle(ctx, items, whole)
		},
		enqueue: func(ctx context.Context, db sqlcgen.DBTX, items []*NewJob, tenant *string, each bool, made madeJob) error {
			b.sent.Add(1)
			return s.enqueue(ctx, db, items, tenant, each, made)
		},
		release: func(ctx context.Context, ids, leases []string) ([]string, error) {
			b.sent.Add(1)
			return s.release(ctx, ids, leases)
		},
	}
}

// Statements returns how many statements have been sent so far.
func (b *env) Statements() int64 { return b.sent.Load() }

// holdDecisions makes each decision wait for two calls of step while hold is set: after the first one the
// database has decided, after the second one the jobs are handed out. A lock in the database would not
// do: after a second, SQL decides without waiting for it.
func (b *env) holdDecisions() {
	fetch := b.send.fetch
	b.send.fetch = func(ctx context.Context, parts []*part) error {
		err := fetch(ctx, parts)
		if b.hold.Load() {
			for range 2 {
				select {
				case b.steps <- struct{}{}:
				case <-b.t.Context().Done():
				}
			}
		}
		return err
	}
}

// step lets a decision that is held go on. what says what has happened then.
func (b *env) step(what string) {
	b.t.Helper()
	pgtest.Receive(b.t, what, b.steps)
}

// decides calls act, which has to cause a decision, and returns when the database has decided. The jobs
// are handed out when goOn is called. Requests that come meanwhile share the next decision.
func (b *env) decides(act func()) (goOn func()) {
	b.t.Helper()
	b.hold.Store(true)
	act()
	b.step("a decision is taken")
	b.hold.Store(false)
	return func() {
		b.t.Helper()
		b.step("it is handed out")
	}
}

// deciding makes a FETCH in the background, and returns when the database has decided it.
func (b *env) deciding(ctx context.Context, f Fetch) (answers <-chan answer, goOn func()) {
	b.t.Helper()
	goOn = b.decides(func() { answers = b.later(ctx, f) })
	return answers, goOn
}

func (b *env) exec(sql string, args ...any) {
	b.t.Helper()
	pgtest.Exec(b.t, b.db.Pool, sql, args...)
}

func (b *env) count(sql string, args ...any) int {
	b.t.Helper()
	return pgtest.One[int](b.t, b.db.Pool, sql, args...)
}

// session begins a transaction with a statement. The returned function ends it with another one, such as
// commit.
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

// waiting returns when n requests wait, commits notify the server for their queues, and no decision is
// under way.
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

// idling returns when no statement has been sent for a second and no decision is under way. It returns the
// number of statements so far.
func (b *env) idling() int64 {
	b.t.Helper()
	busy := int64(0)
	pgtest.AtRest(b.t, "no statement is sent any more", func() int64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.shared.inFlight+b.isolated.inFlight > 0 {
			busy++
		}
		return b.Statements() + busy
	})
	return b.Statements()
}

type answer struct {
	jobs []sqlcgen.OjsJob
	err  error
}

// later makes a FETCH in the background, and sends its answer to the channel.
func (b *env) later(ctx context.Context, f Fetch) <-chan answer {
	c := make(chan answer, 1)
	f.Count = max(f.Count, 1)
	go func() {
		jobs, err := b.Fetch(ctx, f)
		c <- answer{jobs, err}
	}()
	return c
}

// want receives an answer, which must have n jobs, and returns these.
func (b *env) want(c <-chan answer, n int) []sqlcgen.OjsJob {
	b.t.Helper()
	a := pgtest.Receive(b.t, "an answer", c)
	if a.err != nil || len(a.jobs) != n {
		b.t.Fatalf("got %d jobs and %v, want %d", len(a.jobs), a.err, n)
	}
	return a.jobs
}

// problem returns the code of an error, or its text if it has none.
func problem(err error) string {
	var known *pg.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return fmt.Sprint(err)
}

// arrived returns when n requests are new, so that no decision has taken them yet.
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
