//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// PinnedOptions holds the parameters of Pinned.
type PinnedOptions struct {
	Load      // Seconds of each of the three runs; Slices does not count
	Producers int
	Tenants   int
	Backlog   int    // jobs that wait at any time, about
	Baseline  string // Unfair or Fair
}

// PinnedRun holds the figures of one of the three runs.
type PinnedRun struct {
	LastOverFirst float64   `json:"last_over_first"`
	JobsPerSecond float64   `json:"jobs_per_second"`
	FirstPart     float64   `json:"first_part_jobs_per_second"`
	LastPart      float64   `json:"last_part_jobs_per_second"`
	Jobs          int64     `json:"jobs"`
	DiskBytes     int64     `json:"disk_bytes"`
	Parts         []float64 `json:"jobs_per_second_by_part"`
}

// PinnedResult is one run of Pinned.
type PinnedResult struct {
	Benchmark             string    `json:"benchmark"`
	Workers               int       `json:"workers"`
	Batch                 int       `json:"batch"`
	Producers             int       `json:"producers"`
	Tenants               int       `json:"tenants"`
	Backlog               int       `json:"backlog"`
	BaselineQueue         string    `json:"baseline_queue"`
	ArgsBytes             int       `json:"args_bytes"`
	Seconds               float64   `json:"seconds"`
	PartSeconds           float64   `json:"part_seconds"`
	LastOverFirst         float64   `json:"last_over_first"`
	Control               float64   `json:"control"`
	BaselineLastOverFirst float64   `json:"baseline_last_over_first"`
	JobsPerSecond         float64   `json:"jobs_per_second"`
	ControlJobsPerSecond  float64   `json:"control_jobs_per_second"`
	BaselineJobsPerSecond float64   `json:"baseline_jobs_per_second"`
	Ours                  PinnedRun `json:"ours"`
	Unpinned              PinnedRun `json:"unpinned"`
	Baseline              PinnedRun `json:"baseline"`
	Machine               Machine   `json:"machine"`
	Settings              Settings  `json:"settings"`
}

// part returns the length of the first and the last part, which are compared: a minute, or a fifth of a
// short run.
func (o PinnedOptions) part() time.Duration { return min(time.Minute, o.length()/5) }

// Pinned measures whether throughput decays while an old transaction keeps every dead row version from being removed.
func Pinned(ctx context.Context, env *Env, opts PinnedOptions) (*PinnedResult, error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	people := newPopulation(opts.Tenants, false)
	if err := d.setBaseline(ctx, opts.Baseline, people, opts.Load); err != nil {
		return nil, err
	}
	r := &PinnedResult{
		Benchmark: "pinned", Workers: opts.Workers, Batch: opts.Batch, Producers: opts.Producers, Tenants: opts.Tenants,
		Backlog: opts.Backlog, BaselineQueue: opts.Baseline, ArgsBytes: opts.ArgsBytes,
		Seconds: opts.Seconds, PartSeconds: round(opts.part().Seconds(), 2),
	}
	for _, run := range []struct {
		step      string
		ours, pin bool
		into      *PinnedRun
	}{
		{"ours, pinned", true, true, &r.Ours},
		{"ours, not pinned", true, false, &r.Unpinned},
		{"the baseline, pinned", false, true, &r.Baseline},
	} {
		if *run.into, err = d.pinned(ctx, opts, people, run.step, run.ours, run.pin); err != nil {
			return nil, err
		}
		if err := d.reset(ctx); err != nil {
			return nil, err
		}
	}
	r.LastOverFirst, r.Control, r.BaselineLastOverFirst = r.Ours.LastOverFirst, r.Unpinned.LastOverFirst, r.Baseline.LastOverFirst
	r.JobsPerSecond, r.ControlJobsPerSecond = r.Ours.JobsPerSecond, r.Unpinned.JobsPerSecond
	r.BaselineJobsPerSecond = r.Baseline.JobsPerSecond
	r.Machine, r.Settings, err = env.describe(ctx, d)
	return r, err
}

// pin opens a transaction that has a snapshot and an id: no row version that dies from now on can be
// vacuumed.
func (d *database) pin(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, d.admin)
	if err != nil {
		return nil, fmt.Errorf("connect to hold a transaction open: %w", err)
	}
	for _, sql := range []string{
		"set idle_in_transaction_session_timeout = 0", "begin isolation level repeatable read",
		"select pg_current_xact_id(), count(*) from ojs.lane",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, errors.Join(fmt.Errorf("hold a transaction open: %w", err), conn.Close(ctx))
		}
	}
	return conn, nil
}

// pinning is one of the three runs under way.
type pinning struct {
	opts    PinnedOptions
	d       *database
	ours    bool
	people  population
	begun   time.Time
	parts   []atomic.Int64
	waiting atomic.Int64
}

// pinned produces and consumes at the same time. Producers pause while enough jobs wait, so that the
// rate is that of the workers, and the backlog neither runs dry nor grows.
func (d *database) pinned(
	ctx context.Context, opts PinnedOptions, people population, step string, ours, pinned bool,
) (run PinnedRun, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &pinning{opts: opts, d: d, ours: ours, people: people}
	p.parts = make([]atomic.Int64, int(opts.length()/opts.part()))
	if err := p.load(ctx); err != nil {
		return run, err
	}
	if pinned {
		conn, err := d.pin(ctx)
		if err != nil {
			return run, err
		}
		defer conn.Close(context.Background())
	}
	workers, stopWorkers, err := p.workers(ctx)
	defer stopWorkers()
	if err != nil {
		return run, err
	}

	// Producers stop with their context. The outcome of an insert that is under way then does not matter.
	producing, stop := context.WithCancel(ctx)
	var running, consuming sync.WaitGroup
	defer running.Wait()
	defer stop()
	p.begun = time.Now()
	for i := range opts.Producers {
		way, err := p.producer(ctx)
		if err != nil {
			return run, err
		}
		running.Go(func() {
			defer way.close()
			if err := p.produce(producing, way, i); err != nil {
				cancel(err)
			}
		})
	}
	for i, w := range workers {
		consuming.Go(func() {
			if err := p.consume(ctx, w, i); err != nil {
				cancel(err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		consuming.Wait()
		close(done)
	}()
	d.watch(step, p.begun, opts.length(), done)
	elapsed := time.Since(p.begun)
	stop()
	running.Wait()
	if context.Cause(ctx) != nil {
		return run, context.Cause(ctx)
	}
	return p.sum(ctx, elapsed)
}

// watch reports progress until done is closed.
func (d *database) watch(step string, begun time.Time, length time.Duration, done <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		d.env.progress(step, time.Since(begun).Milliseconds(), length.Milliseconds())
		select {
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// load fills the backlog.
func (p *pinning) load(ctx context.Context) error {
	table := "ojs_bench.job"
	if p.ours {
		table = "ojs.job"
	}
	loader, err := p.d.loader(ctx, table, p.opts.ArgsBytes)
	if err != nil {
		return err
	}
	defer loader.close()
	jobs := make([]int64, p.opts.Tenants)
	for i, share := range p.people.shares {
		jobs[i] = int64(share*float64(p.opts.Backlog)) + 1
		p.waiting.Add(jobs[i])
	}
	if err := loader.load(ctx, p.people.names, jobs, nil); err != nil || p.ours {
		return err
	}
	return p.d.analyzeBaseline(ctx)
}

// workers returns workers of a server, which runs until stop is called, or of the baseline.
func (p *pinning) workers(ctx context.Context) (workers []worker, stop func(), err error) {
	stop = func() {
		for _, w := range workers {
			w.close()
		}
	}
	if !p.ours {
		for range p.opts.Workers {
			w, err := p.d.baselineWorker(ctx)
			if err != nil {
				return workers, stop, err
			}
			workers = append(workers, w)
		}
		return workers, stop, nil
	}
	engine, err := p.d.engine(ctx, max(16, p.opts.Workers), nil)
	if err != nil {
		return nil, stop, err
	}
	rest := engine.clock(ctx)
	stop = func() {
		rest()
		engine.stopQuietly()
	}
	for range p.opts.Workers {
		workers = append(workers, engine.worker([]string{queue}, nil))
	}
	return workers, stop, p.people.configure(ctx, p.d)
}

// producer returns a producer for ojs-pg or for the baseline, with a connection of its own.
func (p *pinning) producer(ctx context.Context) (producer, error) {
	way := insertInto("ojs_bench.job", true)
	if p.ours {
		way = functionWay[1]
	}
	conn, err := p.d.connect(ctx)
	if err != nil {
		return nil, err
	}
	way.conn = conn
	return &way, nil
}

// produce enqueues until the context ends.
func (p *pinning) produce(ctx context.Context, way producer, n int) error {
	args := makeArgs(p.opts.ArgsBytes)
	batch := make([]string, livePerCall)
	for ; ctx.Err() == nil; n++ {
		if p.waiting.Load() > int64(p.opts.Backlog) {
			time.Sleep(time.Millisecond)
			continue
		}
		for k := range batch {
			batch[k] = args[(n+k)%len(args)]
		}
		if err := way.enqueue(ctx, p.people.next(n), batch); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("enqueue: %w", err)
		}
		p.waiting.Add(livePerCall)
	}
	return nil
}

// consume fetches and acknowledges until the time is over.
func (p *pinning) consume(ctx context.Context, w worker, number int) error {
	end := p.begun.Add(p.opts.length())
	for n := 0; ctx.Err() == nil && time.Now().Before(end); n++ {
		got, err := w.fetch(ctx, "w"+strconv.Itoa(number)+"-"+strconv.Itoa(n), p.opts.Batch)
		if err == nil && len(got) > 0 {
			p.waiting.Add(-int64(len(got)))
			err = w.ack(ctx, got)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("work: %w", err)
		}
		if len(got) == 0 {
			time.Sleep(time.Millisecond)
		}
		if part := int(time.Since(p.begun) / p.opts.part()); part < len(p.parts) {
			p.parts[part].Add(int64(len(got)))
		}
	}
	return nil
}

// sum computes the figures of the run from its parts.
func (p *pinning) sum(ctx context.Context, elapsed time.Duration) (run PinnedRun, err error) {
	part := p.opts.part().Seconds()
	for i := range p.parts {
		n := p.parts[i].Load()
		run.Jobs += n
		run.Parts = append(run.Parts, round(float64(n)/part, 0))
	}
	run.JobsPerSecond = round(float64(run.Jobs)/min(elapsed.Seconds(), float64(len(p.parts))*part), 0)
	run.FirstPart, run.LastPart = run.Parts[1], run.Parts[len(run.Parts)-1]
	run.LastOverFirst = round(run.LastPart/run.FirstPart, 3)
	if err := p.d.control.QueryRow(ctx, "select pg_database_size(current_database())").Scan(&run.DiskBytes); err != nil {
		return run, fmt.Errorf("ask for the size of the database: %w", err)
	}
	return run, nil
}

// next returns the tenant of transaction n. Tenants get transactions by their shares.
func (p population) next(n int) string {
	at := float64(n*7919%1000) / 1000
	for i, share := range p.shares {
		if at -= share; at < 0 {
			return p.names[i]
		}
	}
	return p.names[0]
}
