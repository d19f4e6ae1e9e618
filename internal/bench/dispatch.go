//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// Load is what most benchmarks have in common.
type Load struct {
	Workers   int
	Batch     int
	ArgsBytes int
	Slices    int
	Seconds   float64
}

func (l Load) length() time.Duration { return time.Duration(l.Seconds * float64(time.Second)) }

// DispatchOptions say what Dispatch measures.
type DispatchOptions struct {
	Load
	Path    string // combined, sql or http
	Client  string // of the latter: usual or lean
	Tenants int
	Zipf    bool
}

// DispatchResult is one run of Dispatch.
type DispatchResult struct {
	Benchmark             string   `json:"benchmark"`
	Path                  string   `json:"path"`
	Client                string   `json:"http_client,omitempty"`
	Workers               int      `json:"workers"`
	Batch                 int      `json:"batch"`
	ArgsBytes             int      `json:"args_bytes"`
	Tenants               string   `json:"tenants"`
	Slices                int      `json:"slices"`
	Seconds               float64  `json:"seconds"`
	JobsPerSecond         float64  `json:"jobs_per_second"`
	BaselineJobsPerSecond float64  `json:"baseline_jobs_per_second"`
	Ratio                 float64  `json:"ratio"`
	Interval              Interval `json:"interval"`
	Ceiling
	Fairness
	FetchP50ms             float64   `json:"fetch_p50_ms"`
	FetchP99ms             float64   `json:"fetch_p99_ms"`
	BaselineFetchP50ms     float64   `json:"baseline_fetch_p50_ms"`
	BaselineFetchP99ms     float64   `json:"baseline_fetch_p99_ms"`
	WALBytesPerJob         float64   `json:"wal_bytes_per_job"`
	BaselineWALBytesPerJob float64   `json:"baseline_wal_bytes_per_job"`
	ShortResponses         int64     `json:"short_responses"`
	SliceRatios            []float64 `json:"slice_ratios"`
	SliceJobsPerSecond     []float64 `json:"slice_jobs_per_second"`
	SliceBaseline          []float64 `json:"slice_baseline_jobs_per_second"`
	Machine                Machine   `json:"machine"`
	Settings               Settings  `json:"settings"`
}

// population is the tenants of a run: their weights, and how much of the backlog is whose.
type population struct {
	names   []string
	weights []float64
	shares  []float64 // of the backlog; sum 1
	number  map[string]int32
	text    string
}

func newPopulation(tenants int, zipf bool) population {
	p := population{number: map[string]int32{}}
	sum := 0.0
	for i := range tenants {
		weight, share := 1.0, 1.0
		switch {
		case zipf:
			share = 1 / float64(i+1)
		case tenants == 3:
			weight = []float64{10, 5, 1}[i]
			share = weight
		}
		name := fmt.Sprintf("t%d", i)
		p.number[name] = int32(i)
		p.names, p.weights, p.shares = append(p.names, name), append(p.weights, weight), append(p.shares, share)
		sum += share
	}
	for i := range p.shares {
		p.shares[i] /= sum
	}
	switch {
	case zipf:
		p.text = fmt.Sprintf("%d of equal weight, backlogs by Zipf's law", tenants)
	case tenants == 3:
		p.text = "3 of weights 10:5:1, backlogs that never run dry"
	default:
		p.text = fmt.Sprintf("%d of equal weight, backlogs that never run dry", tenants)
	}
	return p
}

// configure tells the database the weights that are not the default.
func (p population) configure(ctx context.Context, db *pg.DB) error {
	for i, weight := range p.weights {
		if weight == 1 {
			continue
		}
		if _, err := db.Pool().Exec(ctx, "select ojs.configure_tenant($1, $2::float8::numeric)", p.names[i], weight); err != nil {
			return fmt.Errorf("configure a tenant: %w", err)
		}
	}
	return nil
}

// side is one of the two that take turns.
type side struct {
	workers []worker
	loader  *loader
	backlog []int64 // by tenant; of the baseline only the sum counts
	rate    float64 // jobs/s seen so far, to know how much to load
	before  func() (after func())

	rates, walPerJob []float64
	fetches          times
	short            int64
	stretches        []stretch
}

func (s *side) total() int64 {
	var n int64
	for _, jobs := range s.backlog {
		n += jobs
	}
	return n
}

func (s *side) closeAll() {
	for _, w := range s.workers {
		w.close()
	}
	if s.loader != nil {
		s.loader.close()
	}
}

// Dispatch measures how many jobs per second workers take and acknowledge.
func Dispatch(ctx context.Context, env *Env, opts DispatchOptions) (_ *DispatchResult, err error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	people := newPopulation(opts.Tenants, opts.Zipf)
	engine, err := d.engine(ctx, maxConns(opts.Path, opts.Workers), nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, engine.stop()) }()
	if err := people.configure(ctx, engine.db); err != nil {
		return nil, err
	}

	ours := &side{before: func() func() { return engine.clock(ctx) }, backlog: make([]int64, opts.Tenants)}
	base := &side{before: func() func() { return func() {} }, backlog: make([]int64, 1)}
	sides := []*side{ours, base}
	var ceiling *side
	defer func() {
		for _, s := range sides {
			s.closeAll()
		}
	}()
	if ours.loader, err = d.loader(ctx, "ojs.job", opts.ArgsBytes); err != nil {
		return nil, err
	}
	if base.loader, err = d.loader(ctx, "ojs_bench.job", opts.ArgsBytes); err != nil {
		return nil, err
	}
	if opts.Path == "http" {
		if err := engine.serve(ctx); err != nil {
			return nil, err
		}
		without, err := d.engine(ctx, 4, canned(opts.ArgsBytes))
		if err != nil {
			return nil, err
		}
		defer without.stopQuietly()
		if err := without.serve(ctx); err != nil {
			return nil, err
		}
		ceiling = &side{before: base.before, backlog: []int64{math.MaxInt64 / 2}}
		sides = append(sides, ceiling)
		for range opts.Workers {
			w, err := d.worker(ctx, opts, without, people)
			if err != nil {
				return nil, err
			}
			ceiling.workers = append(ceiling.workers, w)
		}
	}
	for range opts.Workers {
		w, err := d.worker(ctx, opts, engine, people)
		if err != nil {
			return nil, err
		}
		ours.workers = append(ours.workers, w)
		if w, err = d.baselineWorker(ctx); err != nil {
			return nil, err
		}
		base.workers = append(base.workers, w)
	}

	slice := func(s *side, length time.Duration) (*spell, error) {
		from, mark, err := d.wal(ctx)
		if err != nil {
			return nil, err
		}
		after := s.before()
		got, err := drive(ctx, s.workers, opts.Batch, s.total(), length, s == ours)
		after()
		if err != nil {
			return nil, err
		}
		to, _, err := d.wal(ctx)
		if err != nil {
			return nil, err
		}
		got.wal = to - from
		s.rate = max(s.rate, got.rate())
		if s != ours {
			s.backlog[0] -= got.jobs
			return got, nil
		}
		now := &s.stretches[len(s.stretches)-1]
		now.responses = len(got.responses)
		if now.sequence, err = d.sequence(ctx, mark, people.number, got.responses); err != nil {
			return nil, err
		}
		got.responses = nil
		for _, j := range now.sequence {
			s.backlog[j.tenant]--
		}
		return got, nil
	}
	step := func(done int) { env.progress("measuring", int64(done), int64(opts.Slices)) }

	// The first loads are a guess; a short slice that does not count then says how much a slice takes.
	ours.rate, base.rate = 12_000, 12_000
	if opts.Batch > 1 {
		ours.rate, base.rate = 60_000, 60_000
	}
	warm := min(opts.length(), time.Second)
	for _, s := range []*side{ours, base} {
		if err := s.top(ctx, env, people, s.rate*warm.Seconds(), opts.Load); err != nil {
			return nil, err
		}
		s.rate = 0
	}
	if err := d.exec(ctx, "vacuum analyze ojs_bench.job"); err != nil {
		return nil, fmt.Errorf("analyze the baseline: %w", err)
	}
	for _, s := range sides {
		if _, err := slice(s, warm); err != nil {
			return nil, err
		}
	}
	for done := 0; done < opts.Slices; done++ {
		step(done)
		for _, s := range []*side{ours, base} {
			if err := s.top(ctx, env, people, s.rate*opts.Seconds, opts.Load); err != nil {
				return nil, err
			}
		}
		step(done)
		// Who goes first takes turns, too.
		got := map[*side]*spell{}
		for i := range sides {
			s := sides[(i+done)%len(sides)]
			if got[s], err = slice(s, opts.length()); err != nil {
				return nil, err
			}
		}
		if got[ours].dry || got[base].dry {
			// It was faster than ever before, and the slice ended early. The next one is prepared for that.
			env.log.Debug("the backlog ran dry; the slice is repeated", "ours", got[ours].rate(), "baseline", got[base].rate())
			done--
			continue
		}
		for _, s := range sides {
			s.rates = append(s.rates, got[s].rate())
			s.walPerJob = append(s.walPerJob, float64(got[s].wal)/float64(got[s].jobs))
			s.fetches = append(s.fetches, got[s].fetches...)
			s.short += got[s].short
		}
	}
	step(opts.Slices)
	if err := d.compare(ctx, ours, base); err != nil {
		return nil, err
	}

	r := &DispatchResult{
		Benchmark: "dispatch", Path: opts.Path, Workers: opts.Workers, Batch: opts.Batch, ArgsBytes: opts.ArgsBytes, Tenants: people.text, Slices: opts.Slices, Seconds: opts.Seconds,
		JobsPerSecond: round(median(ours.rates), 0), BaselineJobsPerSecond: round(median(base.rates), 0),
		FetchP50ms: ours.fetches.ms(0.5), FetchP99ms: ours.fetches.ms(0.99), BaselineFetchP50ms: base.fetches.ms(0.5), BaselineFetchP99ms: base.fetches.ms(0.99),
		WALBytesPerJob: round(median(ours.walPerJob), 0), BaselineWALBytesPerJob: round(median(base.walPerJob), 0), ShortResponses: ours.short,
	}
	r.SliceRatios, r.Ratio, r.Interval = ratios(ours.rates, base.rates)
	if ceiling != nil {
		r.Client = opts.Client
		r.Ceiling = ceilingOf(ours.rates, ceiling.rates)
	}
	for i := range ours.rates {
		r.SliceJobsPerSecond = append(r.SliceJobsPerSecond, round(ours.rates[i], 0))
		r.SliceBaseline = append(r.SliceBaseline, round(base.rates[i], 0))
	}
	if r.Fairness, err = judge(people.weights, ours.stretches); err != nil {
		return nil, fmt.Errorf("follow the dispatch sequence: %w", err)
	}
	if r.Machine, r.Settings, err = env.describe(ctx, d); err != nil {
		return nil, err
	}
	return r, nil
}

// maxConns is how many connections a server has for its workers: by HTTP as many as by default.
func maxConns(path string, workers int) int {
	if path == "http" {
		return 16
	}
	return max(16, workers)
}

func (d *database) worker(ctx context.Context, opts DispatchOptions, engine *engine, people population) (worker, error) {
	switch opts.Path {
	case "combined":
		return engine.worker([]string{queue}, people.number), nil
	case "sql":
		return d.sqlWorker(ctx, people.number)
	case "http":
		c, err := httpClient(ctx, opts.Client, engine.address)
		if err != nil {
			return nil, err
		}
		return &httpWorker{poster: c, lean: opts.Client == "lean", tenants: people.number}, nil
	}
	return nil, fmt.Errorf("there is no path %q", opts.Path)
}

// Ceiling is what the same server and the same clients reach without a database.
type Ceiling struct {
	JobsPerSecond *float64  `json:"http_ceiling_jobs_per_second,omitempty"`
	Ratio         *float64  `json:"http_ceiling_ratio,omitempty"`
	Interval      *Interval `json:"http_ceiling_interval,omitempty"`
}

func ceilingOf(ours, ceiling []float64) Ceiling {
	_, ratio, interval := ratios(ours, ceiling)
	rate := round(median(ceiling), 0)
	return Ceiling{&rate, &ratio, &interval}
}

// ratios of slices that were measured side by side, their median, and where it lies.
func ratios(ours, base []float64) ([]float64, float64, Interval) {
	all := make([]float64, len(ours))
	for i := range ours {
		all[i] = round(ours[i]/base[i], 4)
	}
	return all, round(median(all), 3), medianInterval(all)
}

// top fills a side's backlog up to half as much again as a slice has taken so far. Of tenants whose backlogs may not run dry, each is filled up to its share; by
// Zipf's law small ones may.
func (s *side) top(ctx context.Context, env *Env, people population, expected float64, load Load) error {
	want := expected*1.5 + float64(4*load.Workers*load.Batch)
	jobs := make([]int64, len(people.names))
	need := int64(want) - s.total()
	var loading int64
	for i, share := range people.shares {
		n := int64(want*share) + 1
		if len(s.backlog) == len(jobs) {
			n += int64(2 * load.Workers * load.Batch)
			if len(people.names) > 10 {
				n = int64(want*share) + 1
			}
			jobs[i] = max(0, n-s.backlog[i])
		} else if need > 0 {
			jobs[i] = int64(float64(need)*share) + 1
		}
		loading += jobs[i]
	}
	if err := s.loader.load(ctx, people.names, jobs, func(done int64) { env.progress("loading jobs", done, loading) }); err != nil {
		return err
	}
	if len(s.backlog) == 1 {
		s.backlog[0] += loading
		return nil
	}
	for i, n := range jobs {
		s.backlog[i] += n
	}
	s.stretches = append(s.stretches, stretch{arrived: jobs})
	return nil
}

// wal is how much log the server has written, in bytes, and a transaction that is later than all before.
func (d *database) wal(ctx context.Context) (bytes int64, mark string, err error) {
	if err := d.control.QueryRow(ctx, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, pg_current_xact_id()::text").Scan(&bytes, &mark); err != nil {
		return 0, "", fmt.Errorf("read the position of the log: %w", err)
	}
	return bytes, mark, nil
}

// compare holds what was counted here against what the database says, so that no figure rests on jobs that were not handed out.
func (d *database) compare(ctx context.Context, ours, base *side) error {
	var available, held, baseAvailable, baseHeld int64
	err := d.control.QueryRow(ctx, `
		select (select count(*) from ojs.job where state = 'available'), (select count(*) from ojs.job where state not in ('available', 'completed')),
			(select count(*) from ojs_bench.job where state = 'available'), (select count(*) from ojs_bench.job where state not in ('available', 'completed'))`).
		Scan(&available, &held, &baseAvailable, &baseHeld)
	if err != nil {
		return fmt.Errorf("count the jobs: %w", err)
	}
	if held != 0 || baseHeld != 0 {
		return fmt.Errorf("%d jobs, and %d of the baseline, were handed out and not acknowledged", held, baseHeld)
	}
	if available != ours.total() || baseAvailable != base.total() {
		return errors.New("the jobs that are left are not those that were not dispatched")
	}
	return nil
}
