//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// WakeupOptions holds the parameters of Wakeup.
type WakeupOptions struct {
	Samples     int
	Workers     int     // that wait while nothing happens
	IdleSeconds float64 // for how long they are watched
	ArgsBytes   int
}

// WakeupResult is one run of Wakeup.
type WakeupResult struct {
	Benchmark            string   `json:"benchmark"`
	Samples              int      `json:"samples"`
	P50ms                float64  `json:"p50_ms"`
	P90ms                float64  `json:"p90_ms"`
	P99ms                float64  `json:"p99_ms"`
	MaxMs                float64  `json:"max_ms"`
	CommitP50ms          float64  `json:"commit_p50_ms"`
	CommitP99ms          float64  `json:"commit_p99_ms"`
	IdleWorkers          int      `json:"idle_workers"`
	IdleSeconds          float64  `json:"idle_seconds"`
	IdleQueriesPerSecond float64  `json:"idle_queries_per_second"`
	IdleCPUPercent       *float64 `json:"idle_cpu_percent"`
	Machine              Machine  `json:"machine"`
	Settings             Settings `json:"settings"`
}

const longWait = 60 * time.Second

// Wakeup measures the time from a commit until a worker that waits has the job, and the cost of
// waiting.
func Wakeup(ctx context.Context, env *Env, opts WakeupOptions) (_ *WakeupResult, err error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	r := &WakeupResult{Benchmark: "wakeup", IdleWorkers: opts.Workers, IdleSeconds: opts.IdleSeconds}
	// Each measurement has a server of its own. A session reports its transactions late, with the next one;
	// those of the first measurement would count in the second.
	for _, measure := range []func(context.Context, *engine, WakeupOptions, *WakeupResult) error{d.wake, d.idle} {
		if err := d.withServer(ctx, func(server *engine) error { return measure(ctx, server, opts, r) }); err != nil {
			return nil, err
		}
	}
	r.Machine, r.Settings, err = env.describe(ctx, d)
	return r, err
}

// withServer calls do with a server that answers HTTP and ticks, and stops it afterwards.
func (d *database) withServer(ctx context.Context, do func(*engine) error) (err error) {
	server, err := d.engine(ctx, 16, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	if err := server.serve(ctx, false); err != nil {
		return err
	}
	defer server.clock(ctx)()
	return do(server)
}

// wake lets one worker wait, commits one job, and takes the time until the worker has it. It repeats
// that for each sample.
func (d *database) wake(ctx context.Context, server *engine, opts WakeupOptions, r *WakeupResult) error {
	producer, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer producer.Close(context.Background())
	w := &httpWorker{httpClient: newHTTPClient(server.address), wait: longWait}
	defer w.close()
	args := makeArgs(opts.ArgsBytes)

	type arrival struct {
		jobs []job
		at   time.Time
		err  error
	}
	arrived := make(chan arrival)
	var latencies, commits times
	for n := range opts.Samples {
		d.env.progress("waking workers", int64(n), int64(opts.Samples))
		go func() {
			jobs, err := w.fetch(ctx, "w", 1)
			arrived <- arrival{jobs, time.Now(), err}
		}()
		// A random pause: the request arrives meanwhile, and samples do not align with timers of the server.
		select {
		case <-time.After(4*time.Millisecond + rand.N(20*time.Millisecond)):
		case got := <-arrived:
			return fmt.Errorf("a worker got %d jobs before there was one: %w", len(got.jobs), got.err)
		}
		begun, done, _, err := commitOne(ctx, producer, queue, "t0", args[n%len(args)])
		if err != nil {
			got := <-arrived
			return errors.Join(err, got.err)
		}
		got := <-arrived
		if got.err != nil {
			return got.err
		}
		if len(got.jobs) != 1 {
			return fmt.Errorf("a waiting worker got %d jobs, and one was committed", len(got.jobs))
		}
		latencies, commits = append(latencies, got.at.Sub(begun)), append(commits, done.Sub(begun))
		if err := w.ack(ctx, got.jobs); err != nil {
			return err
		}
	}
	r.Samples = len(latencies)
	r.P50ms, r.P90ms, r.P99ms, r.MaxMs = latencies.ms(0.5), latencies.ms(0.9), latencies.ms(0.99), latencies.ms(1)
	r.CommitP50ms, r.CommitP99ms = commits.ms(0.5), commits.ms(0.99)
	return nil
}

// commitOne enqueues a job, and returns the times at which COMMIT was sent and answered.
func commitOne(ctx context.Context, conn *pgx.Conn, queue, tenant, args string) (begun, done time.Time, id [16]byte, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return begun, done, id, fmt.Errorf("begin: %w", err)
	}
	const enqueue = "select id from ojs.enqueue('bench.job', $1, $2, p_tenant => $3)"
	if err := tx.QueryRow(ctx, enqueue, args, queue, tenant).Scan(&id); err != nil {
		return begun, done, id, fmt.Errorf("enqueue: %w", err)
	}
	begun = time.Now()
	if err := tx.Commit(ctx); err != nil {
		return begun, done, id, fmt.Errorf("commit: %w", err)
	}
	return begun, time.Now(), id, nil
}

const (
	// PostgreSQL shows the transactions of a session that has ended after at most so long.
	statisticsDelay   = 2 * time.Second
	leaseDelay        = 35 * time.Second
	registrationDelay = 5 * time.Second
)

// idling is a measurement of idle under way.
type idling struct {
	d        *database
	server   *engine
	onlooker *pgx.Conn  // in another database, so that looking is not counted, if there is one
	failed   chan error // of the workers that wait
}

// idle lets workers wait without jobs and measures what that costs. No request begins or ends meanwhile.
func (d *database) idle(ctx context.Context, server *engine, opts WakeupOptions, r *WakeupResult) error {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	window := time.Duration(opts.IdleSeconds * float64(time.Second))
	i := &idling{d: d, server: server, onlooker: d.control, failed: make(chan error, opts.Workers)}
	if address, err := withDatabase(d.admin, "postgres"); err == nil {
		if conn, err := pgx.Connect(ctx, address); err == nil {
			defer conn.Close(context.Background())
			i.onlooker = conn
		}
	}
	if err := i.quiet(ctx); err != nil {
		return err
	}
	// Until the clock has looked at the leases of the jobs before; leases last 30 seconds.
	if err := i.pause(ctx, "settling", min(leaseDelay, 2*window)); err != nil {
		return err
	}
	for range opts.Workers {
		waiting.Go(func() { i.wait(ctx) })
	}
	// Until the polls that follow the registration of the first request are over.
	if err := i.pause(ctx, "settling", min(registrationDelay, window)); err != nil {
		return err
	}
	return i.watch(ctx, window, r)
}

// quiet switches autovacuum off on a PostgreSQL that was started here: its transactions would count as
// those of waiting.
func (i *idling) quiet(ctx context.Context) error {
	if i.d.env.own == nil {
		return nil
	}
	for _, quiet := range []string{"alter system set autovacuum = off", "select pg_reload_conf()"} {
		if _, err := i.d.control.Exec(ctx, quiet); err != nil {
			return fmt.Errorf("%s: %w", quiet, err)
		}
	}
	return nil
}

// wait runs a worker that never gets a job.
func (i *idling) wait(ctx context.Context) {
	w := &httpWorker{httpClient: newHTTPClient(i.server.address), wait: longWait}
	defer w.close()
	for ctx.Err() == nil {
		if jobs, err := w.fetch(ctx, "w", 1); ctx.Err() == nil && (err != nil || len(jobs) > 0) {
			i.failed <- fmt.Errorf("a worker that waited for nothing got %d jobs: %w", len(jobs), err)
			return
		}
	}
}

// pause waits for a time. It ends early with an error if a worker fails.
func (i *idling) pause(ctx context.Context, step string, length time.Duration) error {
	end := time.Now().Add(length)
	for left := length; left > 0; left = time.Until(end) {
		i.d.env.progress(step, (length - left).Milliseconds(), length.Milliseconds())
		select {
		case <-time.After(min(left, time.Second)):
		case err := <-i.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// count returns the number of transactions up to now. It ends the server's sessions first, because a
// session reports its transactions late, but at its end at the latest.
func (i *idling) count(ctx context.Context) (int64, error) {
	i.server.db.Pool().Reset()
	if err := i.pause(ctx, "settling", statisticsDelay); err != nil {
		return 0, err
	}
	return i.d.transactions(ctx, i.onlooker)
}

// watch counts the transactions and the processor time of a window in which no job comes.
func (i *idling) watch(ctx context.Context, window time.Duration, r *WakeupResult) error {
	before, err := i.count(ctx)
	if err != nil {
		return err
	}
	cpu, known := i.d.env.cpu()
	begun := time.Now()
	if err := i.pause(ctx, "waiting", window); err != nil {
		return err
	}
	elapsed := time.Since(begun).Seconds()
	cpuAfter, _ := i.d.env.cpu()
	after, err := i.count(ctx)
	if err != nil {
		return err
	}
	counted := time.Since(begun).Seconds()
	if i.onlooker == i.d.control {
		after--
	}
	r.IdleQueriesPerSecond = round(float64(after-before)/counted, 3)
	if known {
		percent := round((cpuAfter-cpu).Seconds()/elapsed*100, 2)
		r.IdleCPUPercent = &percent
	}
	return nil
}

// transactions returns the number of transactions of all sessions in the database.
func (d *database) transactions(ctx context.Context, conn *pgx.Conn) (int64, error) {
	var n int64
	err := conn.QueryRow(ctx, "select xact_commit + xact_rollback from pg_stat_database where datname = $1",
		d.control.Config().Database).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("read the statistics of the database: %w", err)
	}
	return n, nil
}
