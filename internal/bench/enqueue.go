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

// EnqueueOptions say what Enqueue measures.
type EnqueueOptions struct {
	Load
	Producers int
	Tenants   int
	Path      string // sql or http
	Client    string // of the latter: usual or lean
}

// EnqueueResult is one run of Enqueue.
type EnqueueResult struct {
	Benchmark             string   `json:"benchmark"`
	Path                  string   `json:"path"`
	Client                string   `json:"http_client,omitempty"`
	Producers             int      `json:"producers"`
	Batch                 int      `json:"batch"`
	ArgsBytes             int      `json:"args_bytes"`
	Tenants               int      `json:"tenants"`
	Slices                int      `json:"slices"`
	Seconds               float64  `json:"seconds"`
	JobsPerSecond         float64  `json:"jobs_per_second"`
	InsertJobsPerSecond   *float64 `json:"insert_jobs_per_second,omitempty"`
	JSONJobsPerSecond     *float64 `json:"json_jobs_per_second,omitempty"`
	BaselineJobsPerSecond float64  `json:"baseline_jobs_per_second"`
	Ratio                 float64  `json:"ratio"`
	Interval              Interval `json:"interval"`

	InsertRatio    *float64  `json:"insert_ratio,omitempty"`
	InsertInterval *Interval `json:"insert_interval,omitempty"`

	JSONRatio    *float64  `json:"json_ratio,omitempty"`
	JSONInterval *Interval `json:"json_interval,omitempty"`

	Ceiling

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

// The ways to enqueue, for one job and for several. All return the ids, and all run as the role of a server.
var (
	functionWay = [2]sqlProducer{
		{sql: "select (ojs.enqueue('bench.job', $3::json, $2, p_tenant => $1)).id", call: callOne},
		{sql: "select id from ojs.enqueue_bulk('bench.job', $3::json[], $2, p_tenant => $1) id", call: callMany},
	}
	jsonWay = [2]sqlProducer{{}, {sql: "select id from ojs.enqueue_many($2::json, $1)", call: callJSON}}
	viewWay = [2]sqlProducer{insertInto("ojs.jobs", false), insertInto("ojs.jobs", true)}
	bareWay = [2]sqlProducer{insertInto("ojs_bench.bare", false), insertInto("ojs_bench.bare", true)}
)

func insertInto(table string, many bool) sqlProducer {
	if many {
		return sqlProducer{sql: "insert into " + table + " (tenant_id, type, queue, args) select $1, 'bench.job', $2, a::json from unnest($3::text[]) a returning id", call: callMany}
	}
	return sqlProducer{sql: "insert into " + table + " (tenant_id, type, queue, args) values ($1, 'bench.job', $2, $3::json) returning id", call: callOne}
}

// httpProducer posts jobs to a server.
type httpProducer struct {
	poster
	body []byte
}

func (p *httpProducer) enqueue(_ context.Context, tenant string, args []string) error {
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
		b = append(append(append(b, `{"type":"bench.job","meta":{"tenant_id":"`...), tenant...), `"},"options":{"queue":"`+queue+`"},"args":`...)
		b = append(append(b, a...), '}')
	}
	if len(args) > 1 {
		b = append(b, `]}`...)
	}
	p.body = b
	_, err := p.post(path, b)
	return err
}

// way is one of those that take turns.
type way struct {
	producers []producer

	rates, walPerJob []float64
	calls            times
}

func (w *way) closeAll() {
	for _, p := range w.producers {
		p.close()
	}
}

// Enqueue measures how many jobs per second producers commit.
func Enqueue(ctx context.Context, env *Env, opts EnqueueOptions) (_ *EnqueueResult, err error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	server, err := d.engine(ctx, 16, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()

	form := 0
	if opts.Batch > 1 {
		form = 1
	}
	ways := map[string]*way{"bare": {}}
	sql := func(name string, what [2]sqlProducer) error {
		w := &way{}
		ways[name] = w
		for range opts.Producers {
			conn, err := d.connect(ctx)
			if err != nil {
				return err
			}
			p := what[form]
			p.conn = conn
			w.producers = append(w.producers, &p)
		}
		return nil
	}
	defer func() {
		for _, w := range ways {
			w.closeAll()
		}
	}()
	order := []string{"ours", "insert", "bare"}
	if opts.Path == "http" {
		order = []string{"ours", "ceiling", "bare"}
		without, err := d.engine(ctx, 4, canned(opts.ArgsBytes))
		if err != nil {
			return nil, err
		}
		defer without.stopQuietly()
		for name, e := range map[string]*engine{"ours": server, "ceiling": without} {
			if err := e.serve(ctx); err != nil {
				return nil, err
			}
			w := &way{}
			ways[name] = w
			for range opts.Producers {
				c, err := httpClient(ctx, opts.Client, e.address)
				if err != nil {
					return nil, err
				}
				w.producers = append(w.producers, &httpProducer{poster: c})
			}
		}
	} else {
		if err := sql("ours", functionWay); err != nil {
			return nil, err
		}
		if err := sql("insert", viewWay); err != nil {
			return nil, err
		}
		if opts.Batch > 1 {
			order = append(order, "json")
			if err := sql("json", jsonWay); err != nil {
				return nil, err
			}
		}
	}
	if err := sql("bare", bareWay); err != nil {
		return nil, err
	}

	tenants := make([]string, opts.Tenants)
	for i := range tenants {
		tenants[i] = "t" + strconv.Itoa(i)
	}
	args := makeArgs(opts.ArgsBytes)
	sinceReset := int64(0)
	slice := func(w *way, length time.Duration, counts bool) error {
		if w != ways["bare"] && w != ways["ceiling"] {
			defer server.clock(ctx)()
		}
		from, _, err := d.wal(ctx)
		if err != nil {
			return err
		}
		jobs, elapsed, calls, err := produce(ctx, w.producers, tenants, args, opts.Batch, length)
		if err != nil {
			return err
		}
		to, _, err := d.wal(ctx)
		if err != nil {
			return err
		}
		sinceReset += jobs
		if counts {
			w.rates = append(w.rates, float64(jobs)/elapsed.Seconds())
			w.walPerJob = append(w.walPerJob, float64(to-from)/float64(jobs))
			w.calls = append(w.calls, calls...)
		}
		return nil
	}
	for _, name := range order {
		if err := slice(ways[name], min(opts.length(), time.Second), false); err != nil {
			return nil, err
		}
	}
	for done := range opts.Slices {
		env.progress("measuring", int64(done), int64(opts.Slices))
		if sinceReset > 2_000_000 {
			// Tables of a size that nobody looks at do not make the figures better, only the disk fuller.
			if err := d.reset(ctx); err != nil {
				return nil, err
			}
			sinceReset = 0
		}
		// Who goes first takes turns.
		for i := range order {
			if err := slice(ways[order[(i+done)%len(order)]], opts.length(), true); err != nil {
				return nil, err
			}
		}
	}

	ours, bare := ways["ours"], ways["bare"]
	r := &EnqueueResult{
		Benchmark: "enqueue", Path: opts.Path, Producers: opts.Producers, Batch: opts.Batch, ArgsBytes: opts.ArgsBytes, Tenants: opts.Tenants, Slices: opts.Slices, Seconds: opts.Seconds,
		JobsPerSecond: round(median(ours.rates), 0), BaselineJobsPerSecond: round(median(bare.rates), 0),
		P50ms: ours.calls.ms(0.5), P99ms: ours.calls.ms(0.99),
		WALBytesPerJob: round(median(ours.walPerJob), 0), BaselineWALBytesPerJob: round(median(bare.walPerJob), 0),
	}
	r.SliceRatios, r.Ratio, r.Interval = ratios(ours.rates, bare.rates)
	beside := func(w *way) ([]float64, *float64, *Interval, *float64) {
		if w == nil {
			return nil, nil, nil, nil
		}
		all, ratio, interval := ratios(w.rates, bare.rates)
		rate := round(median(w.rates), 0)
		return all, &ratio, &interval, &rate
	}
	r.SliceInsertRatios, r.InsertRatio, r.InsertInterval, r.InsertJobsPerSecond = beside(ways["insert"])
	r.SliceJSONRatios, r.JSONRatio, r.JSONInterval, r.JSONJobsPerSecond = beside(ways["json"])
	if c := ways["ceiling"]; c != nil {
		r.Client = opts.Client
		r.Ceiling = ceilingOf(ours.rates, c.rates)
	}
	r.Machine, r.Settings, err = env.describe(ctx, d)
	return r, err
}

// produce lets producers enqueue until the time is over.
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
