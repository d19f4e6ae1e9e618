package dispatch

import (
	"cmp"
	"container/list"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/batch"
	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Options bound what the Dispatcher puts into one statement and how much it has in flight. A zero
// field takes its default.
type Options struct {
	Jobs        int // handed out by one decision; default 1600
	Groups      int // sets of queues decided in one transaction; default 32
	Decisions   int // in flight; default 1: they are serial anyway
	Settlements int // attempts ended by one statement; default 1000
	Enqueues    int // jobs enqueued by one statement; default 500
	Bytes       int // of JSON in one statement, unless a single job has more; default 4 MiB
	Statements  int // of each kind in flight: ACKs, other settlements, enqueues, isolated decisions; default 3
	Isolated    int // statements in flight for jobs whose id the client chose, and as many again where ids are locked; default 4

	// Bounds of what waits for a statement, for each kind of statement. A request beyond them is refused
	// with 503 if items of its tenant wait already.
	WaitingItems int // default 20,000
	WaitingBytes int // default 64 MiB
	GiveBacks    int // jobs to be given back that are remembered, about 150 bytes each; default 50,000

	Query    time.Duration // longest a statement may take; default 15 s
	Spacing  time.Duration // a second statement of a kind starts when the first is in flight for so long; default 10 ms
	Fallback time.Duration // between two polls that no commit calls for; default 20 s
	Recheck  time.Duration // between two looks whether workers are still at their concurrency; default 500 ms
	Linger   time.Duration // for so long the queues of a group stay registered after its last wait; default 2 s
}

func (o Options) withDefaults() Options {
	return Options{
		Jobs: cmp.Or(o.Jobs, 1600), Groups: cmp.Or(o.Groups, 32), Decisions: cmp.Or(o.Decisions, 1),
		Settlements: cmp.Or(o.Settlements, 1000), Enqueues: cmp.Or(o.Enqueues, 500), Bytes: cmp.Or(o.Bytes, 4<<20),
		Statements: cmp.Or(o.Statements, 3), Isolated: cmp.Or(o.Isolated, 4),
		WaitingItems: o.WaitingItems, WaitingBytes: o.WaitingBytes, GiveBacks: cmp.Or(o.GiveBacks, 50_000),
		Query: cmp.Or(o.Query, 15*time.Second), Spacing: cmp.Or(o.Spacing, 10*time.Millisecond),
		Fallback: cmp.Or(o.Fallback, 20*time.Second), Recheck: cmp.Or(o.Recheck, 500*time.Millisecond),
		Linger: cmp.Or(o.Linger, 2*time.Second),
	}
}

// Dispatcher turns concurrent requests into few statements. Requests that arrive while a statement
// is in flight share the next one. Only a FETCH waits for others, for at most a millisecond
// (gather). Its goroutines are: decide, while groups are queued; the runners of its batchers; run of
// giveBacks, while jobs are to be given back; and timers. Run waits for all of them.
type Dispatcher struct {
	db       *pg.DB
	listener *notify.Listener
	log      *slog.Logger
	opts     Options
	began    time.Time
	send     statements
	metrics  *metrics
	failures failures

	// By whether answers are to hold the whole job. A statement for both would read a thousand jobs whole for one answer that holds one.
	settlers map[bool]settler
	enqueues *batch.Batcher[*NewJob, Settled]
	back     *giveBacks
	// For jobs whose id the client chose, in the order of use: a job that meets a lock is tried again
	// through the next one, which sends fewer jobs in a statement.
	isolatedEnqueues []*batch.Batcher[*NewJob, Settled]

	// mu guards everything below but the two atomic fields, and all groups and requests. No statement
	// runs while it is held. Listener.mu and giveBacks.mu may be taken while it is held.
	mu       sync.Mutex
	idle     sync.Cond // a decision has ended
	groups   map[groupKey]*group
	shared   decider   // for requests that SQL certainly accepts
	isolated decider   // for requests that SQL is likely to refuse, each by itself
	slowTold time.Time // when a slow decision was logged last
	arrivals uint64    // requests so far, and isolated groups: numbers for both
	draining bool      // Drain was called: no request waits any more

	quiet         list.List   // of *request whose workers are to get no jobs
	quietTimer    *time.Timer // for requeueQuiet
	requeues      uint64      // how often requeueQuiet has run
	requeuedAt    time.Time   // when requeueQuiet ran last
	stopListening func()      // ends the notifications for quiet workers

	full      list.List     // of *request whose workers are at their concurrency
	fullTimer *time.Timer   // for requeueFull; nil until the first request enters full
	fullAt    time.Time     // when requeueFull ran last
	anyFull   atomic.Bool   // a request may be in full; an ACK takes mu only then
	ended     atomic.Uint64 // calls of Settle that have ended
}

// settler holds the batchers that end attempts: acks for plain ACKs, settles for all other
// outcomes.
type settler struct {
	acks    *batch.Batcher[ack, *sqlcgen.OjsJob] // nil instead of a job: ojs.settle has to say what is wrong
	settles *batch.Batcher[Settlement, Settled]
}

// New makes a Dispatcher, which takes requests at once. Run has to be called: it waits for its end.
// listener may be nil if no request will wait for jobs.
func New(db *pg.DB, listener *notify.Listener, log *slog.Logger, opts Options) *Dispatcher {
	d := &Dispatcher{
		db: db, listener: listener, log: log, opts: opts.withDefaults(), began: time.Now(), groups: map[groupKey]*group{},
		failures: failures{log: log},
	}
	d.idle.L = &d.mu
	d.shared = decider{groups: d.opts.Groups, limit: d.opts.Decisions, company: make(chan struct{}, 1)}
	d.isolated = decider{groups: 1, limit: d.opts.Statements, company: make(chan struct{}, 1)}
	d.metrics = newMetrics()
	d.send = d.metrics.measured(statements{
		fetch: d.fetchMany, ack: d.ackMany, settle: d.settleMany, enqueue: enqueue, release: d.releaseMany,
	})
	d.back = newGiveBacks(d)
	options := batch.Options{
		Items: d.opts.Settlements, Bytes: d.opts.Bytes, Statements: d.opts.Statements, Spacing: d.opts.Spacing, Timeout: d.opts.Query,
		WaitingItems: d.opts.WaitingItems, WaitingBytes: d.opts.WaitingBytes,
	}
	d.settlers = map[bool]settler{}
	options.Statements = max(1, (d.opts.Statements+1)/2) // of each kind: in sum about as many
	for _, whole := range []bool{false, true} {
		d.settlers[whole] = settler{
			acks: batch.New(options, func(ctx context.Context, items []ack) ([]*sqlcgen.OjsJob, error) {
				return d.send.ack(ctx, items, whole)
			}),
			settles: batch.New(options, func(ctx context.Context, items []Settlement) ([]Settled, error) {
				settled, err := d.send.settle(ctx, items, whole)
				d.failures.note(items, settled)
				return settled, err
			}),
		}
	}
	options.Items, options.Statements = d.opts.Enqueues, d.opts.Statements
	d.enqueues = batch.New(options, d.enqueueNow)
	// If a statement meets a locked id, most of its jobs have other ids. They are tried again in smaller
	// statements, at last one by one, through batchers of their own: new jobs do not wait behind them.
	options.Isolated, options.Spacing = true, 0
	for i, items := range [...]int{d.opts.Enqueues, min(d.opts.Enqueues, 20), 1} {
		options.Items, options.Statements = items, d.opts.Isolated
		if i > 0 {
			options.Statements = max(1, d.opts.Isolated/2)
		}
		d.isolatedEnqueues = append(d.isolatedEnqueues, batch.New(options, d.enqueueIsolated))
	}
	if listener != nil {
		// Under the lock, because the timer may call requeueQuiet before quietTimer is assigned.
		d.mu.Lock()
		defer d.mu.Unlock()
		d.quietTimer = time.AfterFunc(d.opts.Fallback, d.requeueQuiet)
		d.stopListening = listener.OnToken(awakeToken, func() { d.quietTimer.Reset(0) })
	}
	return d
}

// Run logs which jobs fail until ctx ends. Then it drains, and returns when no statement is in
// flight, all timers are stopped, and each job to be given back is given back or given up.
func (d *Dispatcher) Run(ctx context.Context) {
	guard.Loop(ctx, d.log, "log of failed attempts", d.failures.run)
	d.Drain()
	for _, s := range d.settlers {
		s.acks.Wait()
		s.settles.Wait()
	}
	d.failures.tell()
	d.enqueues.Wait()
	for _, b := range d.isolatedEnqueues {
		b.Wait()
	}
	d.waitForDecisions()
	d.back.stop() // last: a decision gives back jobs of callers that have left
}

// waitForDecisions returns when no decision is in flight, and stops what could start one.
func (d *Dispatcher) waitForDecisions() {
	if d.listener != nil {
		d.stopListening()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.shared.inFlight+d.isolated.inFlight > 0 {
		d.idle.Wait()
	}
	for _, g := range d.groups {
		g.unsubscribe()
	}
	if d.listener != nil {
		d.quietTimer.Stop()
	}
	if d.fullTimer != nil {
		d.fullTimer.Stop()
	}
}

// Drain answers the requests that wait for jobs with no jobs. From then on a request for which
// there is no job is answered at once. Other calls work as before: requests get jobs that are
// available, and attempts can be ended.
func (d *Dispatcher) Drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = true
	for _, g := range d.groups {
		for e := g.waiting.Front(); e != nil; e = g.waiting.Front() {
			g.answer(e.Value.(*request), nil, nil)
		}
	}
	for _, l := range [...]*list.List{&d.quiet, &d.full} {
		for e := l.Front(); e != nil; e = l.Front() {
			r := e.Value.(*request)
			r.group.answer(r, nil, nil)
		}
	}
}
