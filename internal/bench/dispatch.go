//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Load holds the parameters that most benchmarks have in common.
type Load struct {
	Workers   int
	Batch     int
	ArgsBytes int
	Slices    int
	Seconds   float64
}

func (l Load) length() time.Duration { return time.Duration(l.Seconds * float64(time.Second)) }

// DispatchOptions holds the parameters of Dispatch.
type DispatchOptions struct {
	Load
	Path       string // combined, sql or http
	Tenants    int
	Zipf       bool
	Partitions int // of ojs.job; 0 or 1: as it is
	Producers  int // that enqueue meanwhile
	Hogs       int // busy processes beside
	Limits     bool
	Baseline   string // Unfair or Fair
}

// Check fails if options do not fit together.
func (o DispatchOptions) Check() error {
	if o.Zipf && o.Producers > 0 {
		return errors.New("--producers does not go with --zipf: where tenants run dry, " +
			"the judge would have to know which jobs a decision saw")
	}
	return nil
}

// DispatchResult is one run of Dispatch.
type DispatchResult struct {
	Benchmark             string   `json:"benchmark"`
	Path                  string   `json:"path"`
	Workers               int      `json:"workers"`
	Batch                 int      `json:"batch"`
	ArgsBytes             int      `json:"args_bytes"`
	Tenants               string   `json:"tenants"`
	Producers             int      `json:"producers"`
	Hogs                  int      `json:"hogs"`
	Limits                bool     `json:"limits"`
	Baseline              string   `json:"baseline_queue"`
	Stock                 bool     `json:"stock"`
	Partitions            int      `json:"partitions"` // that hold jobs, at the end
	Slices                int      `json:"slices"`
	Seconds               float64  `json:"seconds"`
	JobsPerSecond         float64  `json:"jobs_per_second"`
	BaselineJobsPerSecond float64  `json:"baseline_jobs_per_second"`
	Ratio                 float64  `json:"ratio"`
	Interval              Interval `json:"interval"`
	Processors
	Live
	Ceiling
	Fairness
	BaselineFairness
	FetchP50ms             float64   `json:"fetch_p50_ms"`
	FetchP99ms             float64   `json:"fetch_p99_ms"`
	BaselineFetchP50ms     float64   `json:"baseline_fetch_p50_ms"`
	BaselineFetchP99ms     float64   `json:"baseline_fetch_p99_ms"`
	WALBytesPerJob         float64   `json:"wal_bytes_per_job"`
	BaselineWALBytesPerJob float64   `json:"baseline_wal_bytes_per_job"`
	ShortResponses         int64     `json:"short_responses"`
	BaselineShortResponses int64     `json:"baseline_short_responses"`
	SliceRatios            []float64 `json:"slice_ratios"`
	SliceJobsPerSecond     []float64 `json:"slice_jobs_per_second"`
	SliceBaseline          []float64 `json:"slice_baseline_jobs_per_second"`
	Machine                Machine   `json:"machine"`
	Settings               Settings  `json:"settings"`
}

// Live holds the rates at which producers enqueued during the slices: as many jobs as were dispatched,
// if they were fast enough.
type Live struct {
	PerSecond         *float64 `json:"live_jobs_per_second,omitempty"`
	BaselinePerSecond *float64 `json:"baseline_live_jobs_per_second,omitempty"`
}

// BaselineFairness holds how far the fair baseline was from the fluid ideal.
type BaselineFairness struct {
	BaselineShareErrorPP       *float64 `json:"baseline_share_error_pp,omitempty"`
	BaselineShareError1sPP     *float64 `json:"baseline_share_error_1s_pp,omitempty"`
	BaselineMaxLagQuanta       *float64 `json:"baseline_max_lag_quanta,omitempty"`
	BaselineResponseShareError *float64 `json:"baseline_response_share_error,omitempty"`
}

// population holds the tenants of a run, with their weights and their shares of the backlog.
type population struct {
	names   []string
	weights []float64
	shares  []float64 // of the backlog; sum 1
	number  map[string]int32
	text    string
}

// newPopulation returns tenants of equal weight and, with zipf, with backlogs by Zipf's law. Without
// zipf, three tenants get the weights 10, 5 and 1.
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

// configure stores the weights that are not the default.
func (p population) configure(ctx context.Context, d *database) error {
	for i, weight := range p.weights {
		if weight == 1 {
			continue
		}
		if err := d.exec(ctx, "select ojs.configure_tenant($1, $2::float8::numeric)", p.names[i], weight); err != nil {
			return fmt.Errorf("configure a tenant: %w", err)
		}
	}
	return nil
}

// limit gives each tenant a concurrency that it does not reach, and adds half as many tenants that have
// work and are at theirs, so that every decision has to skip them.
func (p population) limit(ctx context.Context, d *database) error {
	const far = 100_000
	for _, name := range p.names {
		if err := d.exec(ctx, "select ojs.limit_concurrency($1, $2)", far, name); err != nil {
			return fmt.Errorf("limit a tenant: %w", err)
		}
	}
	for i := range (len(p.names) + 1) / 2 {
		full := fmt.Sprintf("full%d", i)
		for _, sql := range []string{
			"select ojs.limit_concurrency(1, $1) where $2 <> ''",
			"select count(ojs.enqueue('full', p_tenant => $1, p_queue => $2)) from generate_series(1, 11)",
			"select count(*) from ojs.fetch(array[$2], 1, 'full', 604800000, $1)",
		} {
			if err := d.exec(ctx, sql, full, queue); err != nil {
				return fmt.Errorf("bring a tenant to its limit: %w", err)
			}
		}
	}
	return nil
}

// dispatching is a run of Dispatch under way.
type dispatching struct {
	opts   DispatchOptions
	env    *Env
	d      *database
	people population
	args   []string
	hogs   int // beside the next slice

	ours, base, ceiling *side // the last is nil but for HTTP
	sides               []*side
}

// Dispatch measures how many jobs per second workers take and acknowledge.
func Dispatch(ctx context.Context, env *Env, opts DispatchOptions) (_ *DispatchResult, err error) {
	if err := opts.Check(); err != nil {
		return nil, err
	}
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	r := &dispatching{opts: opts, env: env, d: d, people: newPopulation(opts.Tenants, opts.Zipf), args: makeArgs(opts.ArgsBytes)}
	defer func() {
		for _, s := range r.sides {
			err = errors.Join(err, s.close())
		}
	}()
	if err := r.people.configure(ctx, d); err != nil {
		return nil, err
	}
	if err := d.setBaseline(ctx, opts.Baseline, r.people, opts.Load); err != nil {
		return nil, err
	}
	if opts.Limits {
		if err := r.people.limit(ctx, d); err != nil {
			return nil, err
		}
	}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if opts.Partitions > 1 {
		if err := r.age(ctx); err != nil {
			return nil, err
		}
	}
	// Not before: with producers at work, the old jobs would never be used up.
	if err := r.openProducers(ctx); err != nil {
		return nil, err
	}
	r.hogs = opts.Hogs
	if err := r.warm(ctx); err != nil {
		return nil, err
	}
	for done := 0; done < opts.Slices; {
		counts, err := r.round(ctx, done)
		if err != nil {
			return nil, err
		}
		if counts {
			done++
		}
	}
	env.progress("measuring", int64(opts.Slices), int64(opts.Slices))
	if err := d.compare(ctx, r.ours, r.base); err != nil {
		return nil, err
	}
	return r.result(ctx)
}

// open makes the sides, each with its server, workers and producers.
func (r *dispatching) open(ctx context.Context) (err error) {
	r.ours, r.base = &side{backlog: make([]int64, r.opts.Tenants), order: order}, &side{backlog: make([]int64, 1)}
	if r.opts.Baseline == Fair {
		r.base.backlog, r.base.order = make([]int64, r.opts.Tenants), baselineOrder
	}
	r.sides = []*side{r.ours, r.base}
	if r.ours.server, err = r.server(ctx, 0); err != nil {
		return err
	}
	for s, table := range map[*side]string{r.ours: "ojs.job", r.base: "ojs_bench.job"} {
		if s.loader, err = r.d.loader(ctx, table, r.opts.ArgsBytes); err != nil {
			return err
		}
	}
	if r.opts.Path == "http" {
		r.ceiling = &side{backlog: []int64{math.MaxInt64 / 2}}
		r.sides = append(r.sides, r.ceiling)
		if r.ceiling.server, err = r.server(ctx, r.opts.ArgsBytes); err != nil {
			return err
		}
	}
	for _, s := range r.sides {
		for range r.opts.Workers {
			w, err := r.worker(ctx, s)
			if err != nil {
				return err
			}
			s.workers = append(s.workers, w)
		}
	}
	return nil
}

// livePerCall is the number of jobs that a live producer enqueues at once: so many that a few producers
// keep up with the workers of either side. If one side enqueued fewer jobs for each that it dispatches
// than the other, the costs of a job could not be compared.
const livePerCall = 100

// openProducers makes producers for both sides, each with a connection of its own.
func (r *dispatching) openProducers(ctx context.Context) (err error) {
	for range r.opts.Producers {
		for s, way := range map[*side]sqlProducer{r.ours: functionWay[1], r.base: insertInto("ojs_bench.job", true)} {
			if way.conn, err = r.d.connect(ctx); err != nil {
				return err
			}
			s.producers = append(s.producers, &way)
		}
	}
	return nil
}

// server starts a server: in this process if workers call its dispatcher, else in a child. With --path
// sql only its clock is used.
func (r *dispatching) server(ctx context.Context, canned int) (*server, error) {
	if r.opts.Path == "combined" {
		e, err := r.d.engine(ctx, maxConns(r.opts.Path, r.opts.Workers), nil)
		if err != nil {
			return nil, err
		}
		return &server{engine: e}, nil
	}
	conns := maxConns(r.opts.Path, r.opts.Workers)
	if canned > 0 {
		conns = 4
	}
	return r.d.apart(ctx, serverOptions{MaxConns: conns, Canned: canned, HTTP: r.opts.Path == "http"})
}

// worker returns a worker of a side, which takes jobs by the path of the options.
func (r *dispatching) worker(ctx context.Context, s *side) (worker, error) {
	if s == r.base {
		return r.d.baselineWorker(ctx)
	}
	switch r.opts.Path {
	case "combined":
		return s.server.engine.worker([]string{queue}, r.people.number), nil
	case "sql":
		return r.d.sqlWorker(ctx, r.people.number)
	case "http":
		return &httpWorker{httpClient: newHTTPClient(s.server.address), tenants: r.people.number}, nil
	}
	return nil, fmt.Errorf("there is no path %q", r.opts.Path)
}

// maxConns returns the size of the server's pool: with HTTP the default, else enough for all workers.
func maxConns(path string, workers int) int {
	if path == "http" {
		return 16
	}
	return max(16, workers)
}

// warm loads as many jobs as a guess says, and runs a short slice of each side that does not count. It
// shows how many jobs a slice takes.
func (r *dispatching) warm(ctx context.Context) error {
	guess := 12_000.0
	if r.opts.Batch > 1 {
		guess = 60_000
	}
	length := min(r.opts.length(), time.Second)
	for _, s := range []*side{r.ours, r.base} {
		if err := s.top(ctx, r.env, r.people, guess*length.Seconds(), r.opts.Load); err != nil {
			return err
		}
		s.rate = 0
	}
	if err := r.d.analyzeBaseline(ctx); err != nil {
		return err
	}
	for _, s := range r.sides {
		if _, err := r.slice(ctx, s, length); err != nil {
			return err
		}
	}
	return nil
}

// round runs a slice of each side. It does not count if a backlog ran dry.
func (r *dispatching) round(ctx context.Context, done int) (counts bool, err error) {
	step := func() { r.env.progress("measuring", int64(done), int64(r.opts.Slices)) }
	step()
	for _, s := range []*side{r.ours, r.base} {
		if err := s.top(ctx, r.env, r.people, s.rate*r.opts.Seconds, r.opts.Load); err != nil {
			return false, err
		}
	}
	step()
	// The sides take turns in going first.
	got := map[*side]*spell{}
	for i := range r.sides {
		s := r.sides[(i+done)%len(r.sides)]
		if got[s], err = r.slice(ctx, s, r.opts.length()); err != nil {
			return false, err
		}
	}
	if got[r.ours].dry || got[r.base].dry {
		// The side was faster than ever before, so the slice ended early. More jobs are loaded for the next.
		r.env.log.Debug("the backlog ran dry; the slice is repeated", "ours", got[r.ours].rate(), "baseline", got[r.base].rate())
		return false, nil
	}
	for _, s := range r.sides {
		s.count(got[s])
	}
	return true, nil
}

// result computes the figures of the run from its slices.
func (r *dispatching) result(ctx context.Context) (*DispatchResult, error) {
	ours, base := r.ours, r.base
	result := &DispatchResult{
		Benchmark: "dispatch", Path: r.opts.Path, Workers: r.opts.Workers, Batch: r.opts.Batch, ArgsBytes: r.opts.ArgsBytes,
		Tenants: r.people.text, Producers: r.opts.Producers, Hogs: r.opts.Hogs, Limits: r.opts.Limits,
		Baseline: r.opts.Baseline, Stock: r.env.stock,
		Slices: r.opts.Slices, Seconds: r.opts.Seconds,
		JobsPerSecond: round(median(ours.rates), 0), BaselineJobsPerSecond: round(median(base.rates), 0),
		FetchP50ms: ours.fetches.ms(0.5), FetchP99ms: ours.fetches.ms(0.99),
		BaselineFetchP50ms: base.fetches.ms(0.5), BaselineFetchP99ms: base.fetches.ms(0.99),
		WALBytesPerJob: round(median(ours.walPerJob), 0), BaselineWALBytesPerJob: round(median(base.walPerJob), 0),
		ShortResponses: ours.short, BaselineShortResponses: base.short, Processors: processorsOf(ours.efforts, base.efforts),
	}
	result.SliceRatios, result.Ratio, result.Interval = ratios(ours.rates, base.rates)
	if r.opts.Producers > 0 {
		live, baseLive := round(median(ours.live), 0), round(median(base.live), 0)
		result.Live = Live{&live, &baseLive}
	}
	if r.ceiling != nil {
		result.Ceiling = ceilingOf(ours.rates, r.ceiling.rates)
	}
	for i := range ours.rates {
		result.SliceJobsPerSecond = append(result.SliceJobsPerSecond, round(ours.rates[i], 0))
		result.SliceBaseline = append(result.SliceBaseline, round(base.rates[i], 0))
	}
	var err error
	if result.Fairness, err = judge(r.people.weights, ours.stretches); err != nil {
		return nil, fmt.Errorf("follow the dispatch sequence: %w", err)
	}
	if base.order != "" {
		fair, err := judge(r.people.weights, base.stretches)
		if err != nil {
			return nil, fmt.Errorf("follow the dispatch sequence of the baseline: %w", err)
		}
		result.BaselineFairness = BaselineFairness{&fair.ShareErrorPP, &fair.ShareError1sPP, &fair.MaxLagQuanta, &fair.ResponseShareError}
	}
	if err := r.d.control.QueryRow(ctx, "select count(distinct j.tableoid) from ojs.job j").Scan(&result.Partitions); err != nil {
		return nil, fmt.Errorf("count the partitions: %w", err)
	}
	result.Machine, result.Settings, err = r.env.describe(ctx, r.d)
	return result, err
}

// Ceiling holds the rate that the same server and the same clients reach without a database.
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

// ratios returns the ratios of slices that were measured in the same round, their median, and its
// confidence interval.
func ratios(ours, base []float64) ([]float64, float64, Interval) {
	all := make([]float64, len(ours))
	for i := range ours {
		all[i] = round(ours[i]/base[i], 4)
	}
	return all, round(median(all), 3), medianInterval(all)
}
