//go:build unix

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// NeighbourOptions holds the parameters of Neighbour.
type NeighbourOptions struct {
	Workers   int
	Batch     int
	ArgsBytes int
	Backlog   int     // jobs that the neighbour holds when it begins
	Flood     float64 // jobs per second that it adds
	Consume   float64 // jobs per second that the workers take; 0: as many as they can
	Rate      float64 // jobs per second of the small tenant
	Samples   int     // of them, in each queue
}

// NeighbourResult is one run of Neighbour.
type NeighbourResult struct {
	Benchmark            string   `json:"benchmark"`
	Workers              int      `json:"workers"`
	Batch                int      `json:"batch"`
	ArgsBytes            int      `json:"args_bytes"`
	Backlog              int      `json:"backlog"`
	FloodPerSecond       float64  `json:"flood_jobs_per_second"`
	ConsumePerSecond     float64  `json:"consume_jobs_per_second"`
	RatePerSecond        float64  `json:"rate_jobs_per_second"`
	Seconds              float64  `json:"seconds"`
	Samples              int      `json:"samples"`
	P50ms                float64  `json:"p50_ms"`
	P99ms                float64  `json:"p99_ms"`
	MaxMs                float64  `json:"max_ms"`
	ControlSamples       int      `json:"control_samples"`
	ControlP50ms         float64  `json:"control_p50_ms"`
	ControlP99ms         float64  `json:"control_p99_ms"`
	ControlMaxMs         float64  `json:"control_max_ms"`
	P99Ratio             float64  `json:"p99_ratio"`
	P99DifferenceMs      float64  `json:"p99_difference_ms"`
	ConsumedPerSecond    float64  `json:"consumed_jobs_per_second"`
	AddedPerSecond       float64  `json:"added_jobs_per_second"`
	BacklogAtTheEnd      int64    `json:"backlog_at_the_end"`
	OldestWaitOfTheFlood float64  `json:"flood_oldest_wait_seconds"`
	Machine              Machine  `json:"machine"`
	Settings             Settings `json:"settings"`
}

const calmQueue = "bench-calm"

// Neighbour measures how long jobs of a small tenant wait while a neighbour has a million jobs in the
// same queue, compared with a queue that only the small tenant uses.
func Neighbour(ctx context.Context, env *Env, opts NeighbourOptions) (*NeighbourResult, error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	if err := d.loadBig(ctx, opts); err != nil {
		return nil, err
	}
	engine, err := d.engine(ctx, max(16, opts.Workers), nil)
	if err != nil {
		return nil, err
	}
	defer engine.stopQuietly()
	defer engine.clock(ctx)()

	n := &neighbours{
		env: env, d: d, opts: opts, over: make(chan struct{}), started: map[[16]byte]time.Time{},
		committed: [2]map[[16]byte]time.Time{{}, {}},
	}
	if err := n.run(ctx, engine); err != nil {
		return nil, err
	}
	return n.result(ctx)
}

// loadBig loads the backlog of the neighbour.
func (d *database) loadBig(ctx context.Context, opts NeighbourOptions) error {
	loader, err := d.loader(ctx, "ojs.job", opts.ArgsBytes)
	if err != nil {
		return err
	}
	defer loader.close()
	jobs := int64(opts.Backlog)
	return loader.load(ctx, []string{"big"}, []int64{jobs}, func(done int64) { d.env.progress("loading jobs", done, jobs) })
}

// neighbours is a run of Neighbour under way.
type neighbours struct {
	env     *Env
	d       *database
	opts    NeighbourOptions
	over    chan struct{} // closed when workers and the flood are to stop
	fail    func(what string, err error)
	begun   time.Time
	seconds float64

	consumed, added atomic.Int64

	mu      sync.Mutex
	started map[[16]byte]time.Time // jobs of the small tenant that a worker has
	// The jobs that the small tenant has committed: in the queue of the neighbour, and in the calm one.
	committed [2]map[[16]byte]time.Time
}

// run lets workers, the flood and the small tenant work until the small tenant has sent its samples and
// workers have got all of them.
func (n *neighbours) run(ctx context.Context, engine *engine) error {
	ctx, cancel := context.WithCancelCause(ctx)
	n.fail = func(what string, err error) {
		if ctx.Err() == nil {
			cancel(fmt.Errorf("%s: %w", what, err))
		}
	}
	var working, sending sync.WaitGroup
	defer sending.Wait()
	defer working.Wait()
	defer cancel(nil)
	n.begun = time.Now()
	numbers := map[string]int32{"big": 0, "small": 1}
	for i := range n.opts.Workers {
		w := engine.worker([]string{queue, calmQueue}, numbers)
		working.Go(func() { n.work(ctx, w, i) })
	}
	if n.opts.Flood > 0 {
		conn, err := n.d.connect(ctx)
		if err != nil {
			return err
		}
		working.Go(func() { n.flood(ctx, conn) })
	}
	// The small tenant sends to both queues at the same time, so that the load of the machine is the same
	// for both.
	for arm, name := range []string{queue, calmQueue} {
		conn, err := n.d.connect(ctx)
		if err != nil {
			return err
		}
		sending.Go(func() { n.send(ctx, conn, arm, name) })
	}
	sending.Wait()
	n.awaitStarts(ctx)
	n.seconds = time.Since(n.begun).Seconds()
	close(n.over)
	working.Wait()
	return context.Cause(ctx)
}

// pauseUntil waits until a time, and returns true. It returns false at once when the run is over.
func (n *neighbours) pauseUntil(ctx context.Context, at time.Time) bool {
	select {
	case <-n.over:
		return false
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(at)):
		return true
	}
}

// work fetches and acknowledges jobs. If a rate is given, it pauses after each fetch for as long as the
// jobs would keep a worker of that rate busy.
func (n *neighbours) work(ctx context.Context, w worker, number int) {
	busy := time.Duration(0)
	if n.opts.Consume > 0 {
		busy = time.Duration(float64(n.opts.Workers*n.opts.Batch) / n.opts.Consume * float64(time.Second))
	}
	name := "w" + strconv.Itoa(number)
	next := n.begun.Add(busy * time.Duration(number) / time.Duration(n.opts.Workers))
	for n.pauseUntil(ctx, next) {
		jobs, err := w.fetch(ctx, name, n.opts.Batch)
		if err != nil {
			n.fail("fetch", err)
			return
		}
		at := time.Now()
		n.note(jobs, at)
		if len(jobs) > 0 {
			if err := w.ack(ctx, jobs); err != nil {
				n.fail("acknowledge", err)
				return
			}
		} else {
			time.Sleep(time.Millisecond)
		}
		n.consumed.Add(int64(len(jobs)))
		// A worker that is late does not catch up.
		if next = next.Add(busy); next.Before(at) {
			next = at
		}
	}
}

// note keeps the times at which jobs of the small tenant were handed out.
func (n *neighbours) note(jobs []job, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range jobs {
		if jobs[i].tenant == 1 {
			n.started[jobs[i].id] = at
		}
	}
}

// flood enqueues jobs of the neighbour at a fixed rate.
func (n *neighbours) flood(ctx context.Context, conn *pgx.Conn) {
	way := functionWay[1]
	way.conn = conn
	defer way.close()
	const every = 100 * time.Millisecond
	args := makeArgs(n.opts.ArgsBytes)
	batch := make([]string, max(1, int(n.opts.Flood*every.Seconds())))
	for k := range batch {
		batch[k] = args[k%len(args)]
	}
	step := time.Duration(float64(len(batch)) / n.opts.Flood * float64(time.Second))
	for next := n.begun; n.pauseUntil(ctx, next); next = next.Add(step) {
		if err := way.enqueue(ctx, "big", batch); err != nil {
			n.fail("enqueue", err)
			return
		}
		n.added.Add(int64(len(batch)))
	}
}

// send enqueues the samples of the small tenant into one queue, at random times, so that they do not
// align with timers of the server.
func (n *neighbours) send(ctx context.Context, conn *pgx.Conn, arm int, queue string) {
	defer conn.Close(context.Background())
	args := makeArgs(n.opts.ArgsBytes)
	for k := range n.opts.Samples {
		if arm == 0 {
			n.env.progress("a small tenant beside a large one", int64(k), int64(n.opts.Samples))
		}
		gap := time.Duration((0.5 + rand.Float64()) / n.opts.Rate * float64(time.Second))
		if !n.pauseUntil(ctx, time.Now().Add(gap)) {
			return
		}
		at, _, id, err := commitOne(ctx, conn, queue, "small", args[k%len(args)])
		if err != nil {
			n.fail("enqueue", err)
			return
		}
		n.committed[arm][id] = at
	}
}

// awaitStarts returns when workers have all jobs of the small tenant, or after a minute.
func (n *neighbours) awaitStarts(ctx context.Context) {
	for range 600 {
		n.mu.Lock()
		missing := len(n.committed[0]) + len(n.committed[1]) - len(n.started)
		n.mu.Unlock()
		if missing <= 0 || !n.pauseUntil(ctx, time.Now().Add(100*time.Millisecond)) {
			return
		}
	}
}

// result computes the figures of the run.
func (n *neighbours) result(ctx context.Context) (*NeighbourResult, error) {
	var latencies [2]times
	for arm := range n.committed {
		for id, at := range n.committed[arm] {
			begin, ok := n.started[id]
			if !ok {
				return nil, fmt.Errorf("a job of the small tenant was not started within a minute")
			}
			latencies[arm] = append(latencies[arm], begin.Sub(at))
		}
	}
	beside, calm := latencies[0], latencies[1]
	r := &NeighbourResult{
		Benchmark: "neighbour", Workers: n.opts.Workers, Batch: n.opts.Batch, ArgsBytes: n.opts.ArgsBytes, Backlog: n.opts.Backlog,
		FloodPerSecond: n.opts.Flood, ConsumePerSecond: n.opts.Consume, RatePerSecond: n.opts.Rate, Seconds: round(n.seconds, 1),
		Samples: len(beside), P50ms: beside.ms(0.5), P99ms: beside.ms(0.99), MaxMs: beside.ms(1),
		ControlSamples: len(calm), ControlP50ms: calm.ms(0.5), ControlP99ms: calm.ms(0.99), ControlMaxMs: calm.ms(1),
		ConsumedPerSecond: round(float64(n.consumed.Load())/n.seconds, 0),
		AddedPerSecond:    round(float64(n.added.Load())/n.seconds, 0),
	}
	r.P99Ratio, r.P99DifferenceMs = round(r.P99ms/r.ControlP99ms, 3), round(r.P99ms-r.ControlP99ms, 3)
	err := n.d.control.QueryRow(ctx, `
		select count(*), coalesce(extract(epoch from clock_timestamp() - min(enqueued_at)), 0)::float8
		from ojs.job where state = 'available' and tenant_id = 'big'`).Scan(&r.BacklogAtTheEnd, &r.OldestWaitOfTheFlood)
	if err != nil {
		return nil, fmt.Errorf("count what is left: %w", err)
	}
	r.OldestWaitOfTheFlood = round(r.OldestWaitOfTheFlood, 1)
	r.Machine, r.Settings, err = n.env.describe(ctx, n.d)
	return r, err
}
