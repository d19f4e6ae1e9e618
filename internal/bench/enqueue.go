//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// EnqueueOptions holds the parameters of Enqueue.
type EnqueueOptions struct {
	Load
	Producers int
	Tenants   int
	Path      string // sql or http
	Keys      bool   // with Path http: also measures a server that asks for API keys
	Limits    bool   // compares tenants with limits to the same without, instead of the baseline
	Hogs      int    // busy processes that run meanwhile
}

// EnqueueResult is one run of Enqueue.
type EnqueueResult struct {
	Benchmark             string   `json:"benchmark"`
	Path                  string   `json:"path"`
	Producers             int      `json:"producers"`
	Batch                 int      `json:"batch"`
	ArgsBytes             int      `json:"args_bytes"`
	Tenants               int      `json:"tenants"`
	Limits                bool     `json:"limits"`
	Hogs                  int      `json:"hogs"`
	Stock                 bool     `json:"stock"`
	Slices                int      `json:"slices"`
	Seconds               float64  `json:"seconds"`
	JobsPerSecond         float64  `json:"jobs_per_second"`
	InsertJobsPerSecond   *float64 `json:"insert_jobs_per_second,omitempty"`
	JSONJobsPerSecond     *float64 `json:"json_jobs_per_second,omitempty"`
	BaselineJobsPerSecond float64  `json:"baseline_jobs_per_second"`
	Ratio                 float64  `json:"ratio"`
	Interval              Interval `json:"interval"`
	Processors

	InsertRatio    *float64  `json:"insert_ratio,omitempty"`
	InsertInterval *Interval `json:"insert_interval,omitempty"`
	InsertCPURatio *float64  `json:"insert_cpu_ratio,omitempty"`

	JSONRatio    *float64  `json:"json_ratio,omitempty"`
	JSONInterval *Interval `json:"json_interval,omitempty"`
	JSONCPURatio *float64  `json:"json_cpu_ratio,omitempty"`

	Ceiling
	Authentication

	P50ms                  float64   `json:"enqueue_p50_ms"`
	P99ms                  float64   `json:"enqueue_p99_ms"`
	WALBytesPerJob         float64   `json:"wal_bytes_per_job"`
	BaselineWALBytesPerJob float64   `json:"baseline_wal_bytes_per_job"`
	SliceRatios            []float64 `json:"slice_ratios"`
	SliceInsertRatios      []float64 `json:"slice_insert_ratios,omitempty"`
	SliceJSONRatios        []float64 `json:"slice_json_ratios,omitempty"`
	Machine                Machine   `json:"machine"`
	Settings               Settings  `json:"settings"`
}

// producer enqueues jobs of one tenant. Each call is one transaction.
type producer interface {
	enqueue(ctx context.Context, tenant string, args []string) error
	close()
}

// sqlProducer runs one statement per call.
type sqlProducer struct {
	conn *pgx.Conn
	sql  string
	call func(p *sqlProducer, tenant string, args []string) []any
	buf  []byte
}

func (p *sqlProducer) enqueue(ctx context.Context, tenant string, args []string) error {
	rows, err := p.conn.Query(ctx, p.sql, p.call(p, tenant, args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		n++
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if n != len(args) {
		return fmt.Errorf("enqueued %d of %d jobs", n, len(args))
	}
	return nil
}

func (p *sqlProducer) close() { _ = p.conn.Close(context.Background()) }

// callOne returns the parameters of a statement for one job, callMany those for several.
func callOne(_ *sqlProducer, tenant string, args []string) []any {
	return []any{tenant, queue, args[0]}
}

func callMany(_ *sqlProducer, tenant string, args []string) []any { return []any{tenant, queue, args} }

// callJSON writes the array of objects that ojs.enqueue_many takes.
func callJSON(p *sqlProducer, tenant string, args []string) []any {
	p.buf = append(p.buf[:0], '[')
	for i, a := range args {
		if i > 0 {
			p.buf = append(p.buf, ',')
		}
		p.buf = append(append(append(p.buf, `{"type":"bench.job","queue":"`+queue+`","args":`...), a...), '}')
	}
	p.buf = append(p.buf, ']')
	return []any{tenant, p.buf}
}

// The statements of producers, for one job and for several. All return the ids, and all run as the
// role of a server.
var (
	functionWay = [2]sqlProducer{
		{sql: "select (ojs.enqueue('bench.job', $3, $2, p_tenant => $1)).id", call: callOne},
		{sql: "select id from ojs.enqueue_bulk('bench.job', $3::json[], $2, p_tenant => $1) id", call: callMany},
	}
	jsonWay = [2]sqlProducer{{}, {sql: "select id from ojs.enqueue_many($2::json, $1)", call: callJSON}}
	viewWay = [2]sqlProducer{insertInto("ojs.jobs", false), insertInto("ojs.jobs", true)}
	bareWay = [2]sqlProducer{insertInto("ojs_bench.bare", false), insertInto("ojs_bench.bare", true)}
)

// insertInto returns a producer that inserts into a table, one row or many in a statement.
func insertInto(table string, many bool) sqlProducer {
	into := "insert into " + table + " (tenant_id, type, queue, args) "
	if many {
		return sqlProducer{call: callMany, sql: into + "select $1, 'bench.job', $2, a::json from unnest($3::text[]) a returning id"}
	}
	return sqlProducer{call: callOne, sql: into + "values ($1, 'bench.job', $2, $3::json) returning id"}
}

// httpProducer posts jobs to a server.
type httpProducer struct {
	*httpClient
	keys map[string]string // by tenant; nil: none are sent
	body []byte
}

func (p *httpProducer) enqueue(ctx context.Context, tenant string, args []string) error {
	b := p.body[:0]
	path := "/ojs/v1/jobs"
	if len(args) > 1 {
		path = "/ojs/v1/jobs/batch"
		b = append(b, `{"jobs":[`...)
	}
	for i, a := range args {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, `{"type":"bench.job","meta":{"tenant_id":"`...), tenant...)
		b = append(b, `"},"options":{"queue":"`+queue+`"},"args":`...)
		b = append(append(b, a...), '}')
	}
	if len(args) > 1 {
		b = append(b, `]}`...)
	}
	p.body, p.key = b, p.keys[tenant]
	_, err := p.post(ctx, path, b)
	return err
}

// way is one method of enqueueing that is measured, with its producers. The ways take turns.
type way struct {
	name      string
	server    *server // nil if it needs none
	clock     bool    // the clock of the server runs meanwhile
	limits    string  // limits that tenants get before it runs; empty: not changed
	producers []producer

	rates, walPerJob []float64
	efforts          []effort
	calls            times
}

// enqueuing is a run of Enqueue under way.
type enqueuing struct {
	opts    EnqueueOptions
	env     *Env
	d       *database
	tenants []string
	keys    map[string]string // of the tenants
	args    []string
	servers []*server
	ways    []*way // the first is ours, the last the baseline

	sinceReset int64
}

// Enqueue measures how many jobs per second producers commit.
func Enqueue(ctx context.Context, env *Env, opts EnqueueOptions) (_ *EnqueueResult, err error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	r := &enqueuing{opts: opts, env: env, d: d, keys: map[string]string{}, args: makeArgs(opts.ArgsBytes)}
	for i := range opts.Tenants {
		r.tenants = append(r.tenants, "t"+strconv.Itoa(i))
	}
	defer func() { err = errors.Join(err, r.close()) }()
	switch {
	case opts.Limits:
		err = r.openLimits(ctx)
	case opts.Path == "http":
		err = r.openHTTP(ctx)
	default:
		err = r.openSQL(ctx)
	}
	if err == nil && !opts.Limits {
		err = r.addSQL(ctx, "bare", nil, bareWay)
	}
	if err != nil {
		return nil, err
	}
	for _, w := range r.ways {
		if err := r.slice(ctx, w, min(opts.length(), time.Second), false); err != nil {
			return nil, err
		}
	}
	for done := range opts.Slices {
		env.progress("measuring", int64(done), int64(opts.Slices))
		if r.sinceReset > 2_000_000 {
			// Larger tables would not change the figures, and would only fill the disk.
			if err := d.reset(ctx); err != nil {
				return nil, err
			}
			if opts.Keys {
				if err := r.giveKeys(ctx); err != nil {
					return nil, err
				}
			}
			r.sinceReset = 0
		}
		// The ways take turns in going first.
		for i := range r.ways {
			if err := r.slice(ctx, r.ways[(i+done)%len(r.ways)], opts.length(), true); err != nil {
				return nil, err
			}
		}
	}
	return r.result(ctx)
}

func (r *enqueuing) close() error {
	for _, w := range r.ways {
		for _, p := range w.producers {
			p.close()
		}
	}
	var errs []error
	for _, s := range r.servers {
		errs = append(errs, s.stop())
	}
	return errors.Join(errs...)
}

// serve starts a server in a child.
func (r *enqueuing) serve(ctx context.Context, opts serverOptions) (*server, error) {
	s, err := r.d.apart(ctx, opts)
	if err != nil {
		return nil, err
	}
	r.servers = append(r.servers, s)
	return s, nil
}

// openSQL makes the ways of producers that speak SQL. Of the server only the clock is used.
func (r *enqueuing) openSQL(ctx context.Context) error {
	server, err := r.serve(ctx, serverOptions{MaxConns: 16})
	if err != nil {
		return err
	}
	if err := r.addSQL(ctx, "ours", server, functionWay); err != nil {
		return err
	}
	if err := r.addSQL(ctx, "insert", server, viewWay); err != nil {
		return err
	}
	if r.opts.Batch == 1 {
		return nil
	}
	return r.addSQL(ctx, "json", server, jsonWay)
}

// openHTTP makes the way over HTTP, and the same way without a database.
func (r *enqueuing) openHTTP(ctx context.Context) error {
	type serving struct {
		name  string
		opts  serverOptions
		clock bool
	}
	ways := []serving{
		{"ours", serverOptions{MaxConns: 16, HTTP: true}, true},
		{"ceiling", serverOptions{MaxConns: 4, HTTP: true, Canned: r.opts.ArgsBytes}, false},
	}
	if r.opts.Keys {
		ways = append(ways, serving{"keys", serverOptions{MaxConns: 16, HTTP: true, Keys: true}, true})
		if err := r.giveKeys(ctx); err != nil {
			return err
		}
	}
	for _, w := range ways {
		server, err := r.serve(ctx, w.opts)
		if err != nil {
			return err
		}
		var keys map[string]string
		if w.opts.Keys {
			keys = r.keys
		}
		r.addHTTP(w.name, server, w.clock, keys)
	}
	return nil
}

// addHTTP adds a way over HTTP. keys are the API keys of the tenants, or nil.
func (r *enqueuing) addHTTP(name string, server *server, clock bool, keys map[string]string) {
	w := &way{name: name, server: server, clock: clock}
	r.ways = append(r.ways, w)
	for range r.opts.Producers {
		w.producers = append(w.producers, &httpProducer{httpClient: newHTTPClient(server.address), keys: keys})
	}
}

// Limits that no tenant reaches.
const (
	wideLimits = `{"max_queue_depth": 1000000000, "max_enqueue_rate": {"limit": 1000000000, "period": "PT1S"}}`
	noLimits   = `{"max_queue_depth": null, "max_enqueue_rate": null}`
)

// openLimits makes the same way twice: with limits of the tenants and, as the baseline, without any.
func (r *enqueuing) openLimits(ctx context.Context) error {
	server, err := r.serve(ctx, serverOptions{MaxConns: 16, HTTP: r.opts.Path == "http"})
	if err != nil {
		return err
	}
	for _, name := range []string{"ours", "unlimited"} {
		if r.opts.Path == "http" {
			r.addHTTP(name, server, true, nil)
		} else if err := r.addSQL(ctx, name, server, functionWay); err != nil {
			return err
		}
	}
	r.ways[0].limits, r.ways[1].limits = wideLimits, noLimits
	return nil
}

// addSQL adds a way in SQL. what holds a producer of single jobs and one of several.
func (r *enqueuing) addSQL(ctx context.Context, name string, server *server, what [2]sqlProducer) error {
	w := &way{name: name, server: server, clock: server != nil}
	r.ways = append(r.ways, w)
	for range r.opts.Producers {
		conn, err := r.d.connect(ctx)
		if err != nil {
			return err
		}
		p := what[min(r.opts.Batch-1, 1)]
		p.conn = conn
		w.producers = append(w.producers, &p)
	}
	return nil
}

// slice lets the producers of a way enqueue for a time. counts says that its figures are kept.
func (r *enqueuing) slice(ctx context.Context, w *way, length time.Duration, counts bool) error {
	stopHogs, err := r.env.hogs(ctx, r.opts.Hogs)
	if err != nil {
		return err
	}
	defer stopHogs()
	rest := func() error { return nil }
	if w.clock {
		if rest, err = w.server.clock(ctx); err != nil {
			return err
		}
	}
	if w.limits != "" {
		const set = "select ojs.configure_limits(t, $2::text::jsonb) from unnest($1::text[]) t"
		if err := r.d.exec(ctx, set, r.tenants, w.limits); err != nil {
			return err
		}
	}
	from, _, err := r.d.wal(ctx)
	if err != nil {
		return err
	}
	before := r.env.effort(w.server)
	jobs, elapsed, calls, err := produce(ctx, w.producers, r.tenants, r.args, r.opts.Batch, length)
	cost := r.env.effort(w.server).since(before, jobs)
	if err := errors.Join(err, rest()); err != nil {
		return err
	}
	to, _, err := r.d.wal(ctx)
	if err != nil {
		return err
	}
	r.sinceReset += jobs
	if counts {
		w.rates = append(w.rates, float64(jobs)/elapsed.Seconds())
		w.walPerJob = append(w.walPerJob, float64(to-from)/float64(jobs))
		w.efforts = append(w.efforts, cost)
		w.calls = append(w.calls, calls...)
	}
	return nil
}

// result computes the figures of the run from its slices.
func (r *enqueuing) result(ctx context.Context) (*EnqueueResult, error) {
	opts, ours, bare := r.opts, r.ways[0], r.ways[len(r.ways)-1]
	result := &EnqueueResult{
		Benchmark: "enqueue", Path: opts.Path, Producers: opts.Producers, Batch: opts.Batch, ArgsBytes: opts.ArgsBytes,
		Tenants: opts.Tenants, Limits: opts.Limits, Hogs: opts.Hogs, Stock: r.env.stock, Slices: opts.Slices, Seconds: opts.Seconds,
		JobsPerSecond: round(median(ours.rates), 0), BaselineJobsPerSecond: round(median(bare.rates), 0),
		P50ms: ours.calls.ms(0.5), P99ms: ours.calls.ms(0.99),
		WALBytesPerJob: round(median(ours.walPerJob), 0), BaselineWALBytesPerJob: round(median(bare.walPerJob), 0),
		Processors: processorsOf(ours.efforts, bare.efforts),
	}
	result.SliceRatios, result.Ratio, result.Interval = ratios(ours.rates, bare.rates)
	for _, w := range r.ways[1 : len(r.ways)-1] {
		all, ratio, interval := ratios(w.rates, bare.rates)
		rate, cpu := round(median(w.rates), 0), processorsOf(w.efforts, bare.efforts).CPURatio
		switch w.name {
		case "insert":
			result.SliceInsertRatios, result.InsertRatio, result.InsertInterval = all, &ratio, &interval
			result.InsertJobsPerSecond, result.InsertCPURatio = &rate, cpu
		case "json":
			result.SliceJSONRatios, result.JSONRatio, result.JSONInterval = all, &ratio, &interval
			result.JSONJobsPerSecond, result.JSONCPURatio = &rate, cpu
		case "ceiling":
			result.Ceiling = ceilingOf(ours.rates, w.rates)
		case "keys":
			result.Authentication = authenticationOf(w, ours)
		}
	}
	var err error
	result.Machine, result.Settings, err = r.env.describe(ctx, r.d)
	return result, err
}

// produce lets producers enqueue until the time is over, and returns what they have done.
func produce(
	ctx context.Context, producers []producer, tenants, args []string, batch int, length time.Duration,
) (jobs int64, elapsed time.Duration, calls times, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	var mu sync.Mutex
	begun := time.Now()
	end := begun.Add(length)
	for i, p := range producers {
		running.Go(func() {
			var own times
			batched := make([]string, batch)
			for n := i; ctx.Err() == nil; n++ {
				before := time.Now()
				if before.After(end) {
					break
				}
				for k := range batched {
					batched[k] = args[(n+k)%len(args)]
				}
				if err := p.enqueue(ctx, tenants[n%len(tenants)], batched); err != nil {
					cancel(fmt.Errorf("enqueue: %w", err))
					return
				}
				own = append(own, time.Since(before))
			}
			mu.Lock()
			defer mu.Unlock()
			jobs += int64(len(own) * batch)
			calls = append(calls, own...)
		})
	}
	running.Wait()
	elapsed = time.Since(begun)
	if err := context.Cause(ctx); err != nil {
		return 0, 0, nil, err
	}
	return jobs, elapsed, calls, nil
}
