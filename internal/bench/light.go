//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

// LightOptions holds the parameters of Light.
type LightOptions struct {
	Rate      float64 // jobs per second
	Workers   int     // that wait
	Seconds   float64
	ArgsBytes int
}

// LightResult is one run of Light.
type LightResult struct {
	Benchmark      string   `json:"benchmark"`
	RatePerSecond  float64  `json:"rate_jobs_per_second"`
	Workers        int      `json:"workers"`
	Seconds        float64  `json:"seconds"`
	ArgsBytes      int      `json:"args_bytes"`
	Jobs           int      `json:"jobs"`
	CPU            *CPU     `json:"cpu_us_per_job"`
	P50ms          float64  `json:"p50_ms"`
	P90ms          float64  `json:"p90_ms"`
	P99ms          float64  `json:"p99_ms"`
	MaxMs          float64  `json:"max_ms"`
	WALBytesPerJob float64  `json:"wal_bytes_per_job"`
	Machine        Machine  `json:"machine"`
	Settings       Settings `json:"settings"`
}

// Light measures the cost of a job, and the time until it reaches a worker, while workers wait most of
// the time: a job then shares no statement, no commit and no tick with other jobs.
func Light(ctx context.Context, env *Env, opts LightOptions) (_ *LightResult, err error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	server, err := d.apart(ctx, serverOptions{MaxConns: maxConns("http", opts.Workers), HTTP: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	if _, err := server.clock(ctx); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel(nil)
	l := &light{opts: opts, d: d, begun: time.Now(), started: make(chan time.Duration), args: makeArgs(opts.ArgsBytes)}
	l.producer = &httpProducer{httpClient: newHTTPClient(server.address)}
	defer l.producer.close()
	for i := range opts.Workers {
		working.Go(func() {
			if err := l.work(ctx, server.address, "w"+strconv.Itoa(i)); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}

	jobs := max(1, int(opts.Rate*opts.Seconds))
	if _, err := l.run(ctx, (jobs+9)/10); err != nil {
		return nil, err
	}
	from, _, err := d.wal(ctx)
	if err != nil {
		return nil, err
	}
	before := env.effort(server)
	latencies, err := l.run(ctx, jobs)
	if err != nil {
		return nil, err
	}
	cost := env.effort(server).since(before, int64(jobs))
	to, _, err := d.wal(ctx)
	if err != nil {
		return nil, err
	}
	r := &LightResult{
		Benchmark: "light", RatePerSecond: opts.Rate, Workers: opts.Workers, Seconds: opts.Seconds, ArgsBytes: opts.ArgsBytes, Jobs: jobs,
		CPU: cpuOf([]effort{cost}), WALBytesPerJob: round(float64(to-from)/float64(jobs), 0),
		P50ms: latencies.ms(0.5), P90ms: latencies.ms(0.9), P99ms: latencies.ms(0.99), MaxMs: latencies.ms(1),
	}
	r.Machine, r.Settings, err = env.describe(ctx, d)
	return r, err
}

// light is a run of Light under way.
type light struct {
	opts     LightOptions
	d        *database
	producer *httpProducer
	args     []string
	begun    time.Time
	started  chan time.Duration // how long each job was on its way to a worker
}

// work fetches jobs one at a time, waits for them, and acknowledges them. The first of the args of a
// job is the time at which it was sent.
func (l *light) work(ctx context.Context, address, name string) error {
	w := &httpWorker{httpClient: newHTTPClient(address), wait: longWait}
	defer w.close()
	for {
		jobs, err := w.fetch(ctx, name, 1)
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		if len(jobs) == 0 {
			continue
		}
		now := time.Since(l.begun)
		sent, err := strconv.ParseInt(string(jobs[0].args), 10, 64)
		if err != nil {
			return fmt.Errorf("a job that nobody sent: %w", err)
		}
		if err := w.ack(ctx, jobs); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
		select {
		case l.started <- now - time.Duration(sent):
		case <-ctx.Done():
			return nil
		}
	}
}

// run sends jobs one by one, and returns when workers have acknowledged all of them.
func (l *light) run(ctx context.Context, jobs int) (all times, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var arriving sync.WaitGroup
	arriving.Go(func() {
		for len(all) < jobs {
			select {
			case took := <-l.started:
				all = append(all, took)
			case <-ctx.Done():
				return
			}
		}
	})
	if err := l.send(ctx, jobs); err != nil {
		cancel(err)
	}
	late := time.AfterFunc(time.Minute, func() { cancel(errors.New("a job did not reach a worker within a minute")) })
	defer late.Stop()
	arriving.Wait()
	return all, context.Cause(ctx)
}

// send enqueues jobs at random times, so that they do not align with timers of the server.
func (l *light) send(ctx context.Context, jobs int) error {
	for n, next := 0, time.Now(); n < jobs; n++ {
		l.d.env.progress("jobs now and then", int64(n), int64(jobs))
		next = next.Add(time.Duration((0.5 + rand.Float64()) / l.opts.Rate * float64(time.Second)))
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		args := "[" + strconv.FormatInt(int64(time.Since(l.begun)), 10) + "," + l.args[n%len(l.args)][1:]
		if err := l.producer.enqueue(ctx, "t0", []string{args}); err != nil {
			return fmt.Errorf("enqueue: %w", err)
		}
	}
	return nil
}
