// Package dispatch puts requests that come at the same time into one statement, and keeps those who wait for a job until a commit brings
// one. It decides nothing: jobs come from ojs.fetch_many, ojs.ack_many, ojs.settle and ojs.enqueue_rows, and go to internal/http.
package dispatch

import (
	"container/list"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Options bound what the Dispatcher puts into one statement and how much it has under way. A zero
// field takes its default.
type Options struct {
	Jobs        int // handed out by one decision; default 1600
	Groups      int // sets of queues decided in one transaction; default 32
	Decisions   int // decisions under way; default 1: they are serial anyway
	Settlements int // attempts ended by one statement; default 1000
	Enqueues    int // jobs enqueued by one statement; default 500
	Bytes       int // of JSON in one statement, unless a single job has more; default 4 MiB
	Statements  int // of each kind at once: ACKs, what settles otherwise, what enqueues, decisions that are likely to be refused; default 3
	Alone       int // enqueueing jobs whose id the client chose, at once, and as many again where ids are locked; default 4

	Query    time.Duration // longest a statement may take; default 15 s
	Spacing  time.Duration // a statement starts beside one of its kind when that has been under way for so long; default 10 ms
	Fallback time.Duration // between two looks for waiters whom nothing wakes; default 20 s
	Linger   time.Duration // a set of queues stays registered for so long after the last wait; default 2 s

	// Canned, if set, takes the database's place: it makes the jobs that a FETCH gets, whatever is settled is settled, and every job
	// is accepted. It is there to measure what everything else costs.
	Canned func(count int) []sqlcgen.OjsJob
}

func (o Options) withDefaults() Options {
	return Options{
		Jobs: or(o.Jobs, 1600), Groups: or(o.Groups, 32), Decisions: or(o.Decisions, 1), Settlements: or(o.Settlements, 1000),
		Enqueues: or(o.Enqueues, 500), Bytes: or(o.Bytes, 4<<20), Statements: or(o.Statements, 3), Alone: or(o.Alone, 4),
		Query: or(o.Query, 15*time.Second), Spacing: or(o.Spacing, 10*time.Millisecond), Fallback: or(o.Fallback, 20*time.Second), Linger: or(o.Linger, 2*time.Second),
		Canned: o.Canned,
	}
}

func or[T int | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// Dispatcher turns concurrent requests into few statements. Whatever arrives while a statement is under
// way goes into the next one together; nothing waits for company. It decides nothing: who gets
// which job, and what may be acknowledged, is SQL.
type Dispatcher struct {
	db       *pg.DB
	listener *pg.Listener
	log      *slog.Logger
	opts     Options
	began    time.Time

	acks     combiner[ack, *sqlcgen.OjsJob] // nil: it needs a closer look
	settles  combiner[Settlement, Settled]
	enqueues combiner[newJob, Settled]
	alone    []*combiner[newJob, Settled] // jobs whose id the client chose; who meets a lock goes on to the next

	mu       sync.Mutex
	idle     sync.Cond // a decision or a release has ended
	groups   map[groupKey]*group
	plain    slots
	odd      slots
	giving   int
	arrivals uint64
	draining bool

	resting  list.List // of *request of workers that are to get no jobs
	rouser   *time.Timer
	rouses   uint64
	rousedAt time.Time
	deafen   func()

	statements atomic.Int64
}

// New makes a Dispatcher, which works at once; Run is for the end.
func New(db *pg.DB, listener *pg.Listener, log *slog.Logger, opts Options) *Dispatcher {
	d := &Dispatcher{db: db, listener: listener, log: log, opts: opts.withDefaults(), began: time.Now(), groups: map[groupKey]*group{}}
	d.idle.L = &d.mu
	d.plain = slots{groups: d.opts.Groups, most: d.opts.Decisions}
	d.odd = slots{groups: 1, most: d.opts.Statements}
	d.acks = combiner[ack, *sqlcgen.OjsJob]{
		run: d.ackNow, most: d.opts.Settlements, bytes: d.opts.Bytes, flights: d.opts.Statements, spacing: d.opts.Spacing, limit: d.opts.Query,
	}
	d.settles = combiner[Settlement, Settled]{
		run: d.settleNow, most: d.opts.Settlements, bytes: d.opts.Bytes, flights: d.opts.Statements, spacing: d.opts.Spacing, limit: d.opts.Query,
	}
	d.enqueues = combiner[newJob, Settled]{
		run: d.enqueueNow, most: d.opts.Enqueues, bytes: d.opts.Bytes, flights: d.opts.Statements, spacing: d.opts.Spacing, limit: d.opts.Query,
	}
	// Who was in a statement that met a lock may be innocent. Fewer go together then, and at last each by itself; nobody new is behind them.
	for i, most := range [...]int{d.opts.Enqueues, min(d.opts.Enqueues, 20), 1} {
		flights := d.opts.Alone
		if i > 0 {
			flights = max(1, flights/2)
		}
		d.alone = append(d.alone, &combiner[newJob, Settled]{
			run: d.enqueueAlone, most: most, bytes: d.opts.Bytes, flights: flights, limit: d.opts.Query, apart: true,
		})
	}
	if listener != nil {
		// rouse may be called before that is assigned.
		d.mu.Lock()
		defer d.mu.Unlock()
		d.rouser = time.AfterFunc(d.opts.Fallback, d.rouse)
		d.deafen = listener.OnToken(awakeToken, func() { d.rouser.Reset(0) })
	}
	return d
}

// Run returns when ctx has ended and nothing is under way any more.
func (d *Dispatcher) Run(ctx context.Context) {
	<-ctx.Done()
	d.Drain()
	d.acks.wait()
	d.settles.wait()
	d.enqueues.wait()
	for _, c := range d.alone {
		c.wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.plain.taken+d.odd.taken+d.giving > 0 {
		d.idle.Wait()
	}
	for _, g := range d.groups {
		g.forget()
	}
	if d.listener != nil {
		d.deafen()
		d.rouser.Stop()
	}
}

// Drain lets those who wait for a job go without one, at once and from now on. Everything else goes on.
func (d *Dispatcher) Drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = true
	for _, g := range d.groups {
		for e := g.parked.Front(); e != nil; e = g.parked.Front() {
			g.answer(e.Value.(*request), nil, nil)
		}
	}
	for e := d.resting.Front(); e != nil; e = d.resting.Front() {
		r := e.Value.(*request)
		r.group.answer(r, nil, nil)
	}
}

// Statements is how many statements have been sent so far.
func (d *Dispatcher) Statements() int64 { return d.statements.Load() }
