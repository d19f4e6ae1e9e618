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
)

// NeighbourOptions say what Neighbour measures.
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

// Neighbour measures what a tenant of few jobs suffers from one of a million in the same queue.
func Neighbour(ctx context.Context, env *Env, opts NeighbourOptions) (*NeighbourResult, error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	loader, err := d.loader(ctx, "ojs.job", opts.ArgsBytes)
	if err != nil {
		return nil, err
	}
	defer loader.close()
	err = loader.load(ctx, []string{"big"}, []int64{int64(opts.Backlog)}, func(done int64) { env.progress("loading jobs", done, int64(opts.Backlog)) })
	if err != nil {
		return nil, err
	}
	engine, err := d.engine(ctx, max(16, opts.Workers), nil)
	if err != nil {
		return nil, err
	}
	defer engine.stopQuietly()
	defer engine.clock(ctx)()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fail := func(what string, err error) {
		if ctx.Err() == nil {
			cancel(fmt.Errorf("%s: %w", what, err))
		}
	}
	var (
		working, sending sync.WaitGroup
		consumed, added  atomic.Int64
		mu               sync.Mutex
		started          = map[[16]byte]time.Time{}
		over             = make(chan struct{})
		numbers          = map[string]int32{"big": 0, "small": 1}
	)
	defer working.Wait()
	defer cancel(nil)
	begun := time.Now()
	for i := range opts.Workers {
		w := engine.worker([]string{queue, calmQueue}, numbers)
		working.Go(func() {
			// Workers at a stated rate do so much work per fetch that all of them are busy with it.
			busy := time.Duration(0)
			if opts.Consume > 0 {
				busy = time.Duration(float64(opts.Workers*opts.Batch) / opts.Consume * float64(time.Second))
			}
			next := begun.Add(busy * time.Duration(i) / time.Duration(opts.Workers))
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				case <-ctx.Done():
					return
				case <-time.After(time.Until(next)):
				}
				jobs, err := w.fetch(ctx, "w"+strconv.Itoa(i), opts.Batch)
				if err != nil {
					fail("fetch", err)
					return
				}
				at := time.Now()
				for k := range jobs {
					if jobs[k].tenant == 1 {
						mu.Lock()
						started[jobs[k].id] = at
						mu.Unlock()
					}
				}
				if len(jobs) > 0 {
					if err := w.ack(ctx, jobs); err != nil {
						fail("acknowledge", err)
						return
					}
				} else {
					time.Sleep(time.Millisecond)
				}
				consumed.Add(int64(len(jobs)))
				// Who falls behind does not hurry afterwards.
				if next = next.Add(busy); next.Before(at) {
					next = at
				}
			}
		})
	}
	if opts.Flood > 0 {
		way := functionWay[1]
		if way.conn, err = d.connect(ctx); err != nil {
			return nil, err
		}
		args := makeArgs(opts.ArgsBytes)
		working.Go(func() {
			defer way.close()
			const every = 100 * time.Millisecond
			batch := make([]string, max(1, int(opts.Flood*every.Seconds())))
			for k := range batch {
				batch[k] = args[k%len(args)]
			}
			for next := begun; ; next = next.Add(time.Duration(float64(len(batch)) / opts.Flood * float64(time.Second))) {
				select {
				case <-over:
					return
				case <-ctx.Done():
					return
				case <-time.After(time.Until(next)):
				}
				if err := way.enqueue(ctx, "big", batch); err != nil {
					fail("enqueue", err)
					return
				}
				added.Add(int64(len(batch)))
			}
		})
	}
	// The small tenant sends to both queues at the same time, so that both suffer the same machine.
	committed := [2]map[[16]byte]time.Time{{}, {}}
	for arm, name := range []string{queue, calmQueue} {
		conn, err := d.connect(ctx)
		if err != nil {
			return nil, err
		}
		args := makeArgs(opts.ArgsBytes)
		sending.Go(func() {
			defer conn.Close(context.Background())
			for n := range opts.Samples {
				if arm == 0 {
					env.progress("a small tenant beside a large one", int64(n), int64(opts.Samples))
				}
				// So often on average, in no rhythm.
				select {
				case <-time.After(time.Duration((0.5 + rand.Float64()) / opts.Rate * float64(time.Second))):
				case <-ctx.Done():
					return
				}
				at, _, id, err := commitOne(ctx, conn, name, "small", args[n%len(args)])
				if err != nil {
					fail("enqueue", err)
					return
				}
				committed[arm][id] = at
			}
		})
	}
	sending.Wait()
	// The last ones are on their way.
	for range 600 {
		mu.Lock()
		missing := len(committed[0]) + len(committed[1]) - len(started)
		mu.Unlock()
		if missing <= 0 || ctx.Err() != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	seconds := time.Since(begun).Seconds()
	close(over)
	working.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}

	var latencies [2]times
	for arm := range committed {
		for id, at := range committed[arm] {
			begin, ok := started[id]
			if !ok {
				return nil, fmt.Errorf("a job of the small tenant was not started within a minute")
			}
			latencies[arm] = append(latencies[arm], begin.Sub(at))
		}
	}
	r := &NeighbourResult{
		Benchmark: "neighbour", Workers: opts.Workers, Batch: opts.Batch, ArgsBytes: opts.ArgsBytes, Backlog: opts.Backlog,
		FloodPerSecond: opts.Flood, ConsumePerSecond: opts.Consume, RatePerSecond: opts.Rate, Seconds: round(seconds, 1),
		Samples: len(latencies[0]), P50ms: latencies[0].ms(0.5), P99ms: latencies[0].ms(0.99), MaxMs: latencies[0].ms(1),
		ControlSamples: len(latencies[1]), ControlP50ms: latencies[1].ms(0.5), ControlP99ms: latencies[1].ms(0.99), ControlMaxMs: latencies[1].ms(1),
		ConsumedPerSecond: round(float64(consumed.Load())/seconds, 0), AddedPerSecond: round(float64(added.Load())/seconds, 0),
	}
	r.P99Ratio, r.P99DifferenceMs = round(r.P99ms/r.ControlP99ms, 3), round(r.P99ms-r.ControlP99ms, 3)
	err = d.control.QueryRow(ctx, `
		select count(*), coalesce(extract(epoch from clock_timestamp() - min(enqueued_at)), 0)::float8 from ojs.job where state = 'available' and tenant_id = 'big'`).
		Scan(&r.BacklogAtTheEnd, &r.OldestWaitOfTheFlood)
	if err != nil {
		return nil, fmt.Errorf("count what is left: %w", err)
	}
	r.OldestWaitOfTheFlood = round(r.OldestWaitOfTheFlood, 1)
	r.Machine, r.Settings, err = env.describe(ctx, d)
	return r, err
}
