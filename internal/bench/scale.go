//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/jobrow"
)

// ScaleOptions holds the parameters of Scale: the large and the small value of each pair.
type ScaleOptions struct {
	Jobs, FewJobs       int
	Tenants, FewTenants int
	Samples             int // fetches of each kind
	ArgsBytes           int
}

// taken returns the number of jobs that the fetches of one measurement take.
func (o ScaleOptions) taken() int {
	sum := 0
	for _, count := range scaleCounts {
		sum += count
	}
	return (o.Samples + scaleWarm) * sum * 2
}

// Check fails if the fetches would take more than half of the jobs of the small database: a database
// that is nearly empty in the end is not what the options say.
func (o ScaleOptions) Check() error {
	if o.taken() > o.FewJobs/2 {
		return fmt.Errorf("%d samples take %d jobs, more than half of %d: take fewer samples, or more jobs",
			o.Samples, o.taken(), o.FewJobs)
	}
	return nil
}

var scaleCounts = []int{1, 10}

// scaleWarm is the number of fetches before the first that counts. They take the loaded jobs into the
// state of fairness, which takes longer than a fetch.
const scaleWarm = 10

// ScalePair compares two databases on the same server.
type ScalePair struct {
	// The P50 of fetches by call and count, in the large and in the small database, and their quotient.
	LargeP50ms map[string]float64 `json:"large_p50_ms"`
	SmallP50ms map[string]float64 `json:"small_p50_ms"`
	Ratios     map[string]float64 `json:"ratios"`
	LargeP99ms map[string]float64 `json:"large_p99_ms"`
	SmallP99ms map[string]float64 `json:"small_p99_ms"`
	LargeBytes int64              `json:"large_disk_bytes"`
	SmallBytes int64              `json:"small_disk_bytes"`
}

// worst returns the largest of the ratios.
func (p ScalePair) worst() float64 {
	worst := 0.0
	for _, r := range p.Ratios {
		worst = max(worst, r)
	}
	return worst
}

// ScaleResult is one run of Scale.
type ScaleResult struct {
	Benchmark        string    `json:"benchmark"`
	LargeJobs        int       `json:"large_jobs"`
	SmallJobs        int       `json:"small_jobs"`
	ManyTenants      int       `json:"many_tenants"`
	FewTenants       int       `json:"few_tenants"`
	Samples          int       `json:"samples"`
	ArgsBytes        int       `json:"args_bytes"`
	JobsRatio        float64   `json:"jobs_ratio"`
	TenantsRatio     float64   `json:"tenants_ratio"`
	IdleTenantsRatio float64   `json:"idle_tenants_ratio"`
	DiskGiB          float64   `json:"disk_gib"`
	LoadSeconds      float64   `json:"load_seconds"`
	LoadJobsPerSec   float64   `json:"load_jobs_per_second"`
	Jobs             ScalePair `json:"jobs"`
	Tenants          ScalePair `json:"tenants"`
	IdleTenants      ScalePair `json:"idle_tenants"`
	Machine          Machine   `json:"machine"`
	Settings         Settings  `json:"settings"`
}

// Scale measures whether a fetch takes longer with more jobs, more tenants, or more idle tenants.
func Scale(ctx context.Context, env *Env, opts ScaleOptions) (*ScaleResult, error) {
	s := &scaling{env: env, opts: opts}
	var err error
	if s.large, err = env.database(ctx, "ojs_bench"); err != nil {
		return nil, err
	}
	if s.small, err = env.database(ctx, "ojs_bench_small"); err != nil {
		return nil, err
	}
	r := &ScaleResult{
		Benchmark: "scale", LargeJobs: opts.Jobs, SmallJobs: opts.FewJobs, ManyTenants: opts.Tenants, FewTenants: opts.FewTenants,
		Samples: opts.Samples, ArgsBytes: opts.ArgsBytes,
	}
	for _, step := range []struct {
		what string
		fill func(context.Context) error
		into *ScalePair
	}{
		{"jobs", s.fillJobs, &r.Jobs},
		{"tenants", s.fillTenants, &r.Tenants},
		{"idle tenants", s.fillIdleTenants, &r.IdleTenants},
	} {
		if err := errors.Join(s.large.reset(ctx), s.small.reset(ctx)); err != nil {
			return nil, err
		}
		if err := step.fill(ctx); err != nil {
			return nil, err
		}
		if *step.into, err = s.compare(ctx, step.what); err != nil {
			return nil, err
		}
	}
	r.JobsRatio, r.TenantsRatio, r.IdleTenantsRatio = r.Jobs.worst(), r.Tenants.worst(), r.IdleTenants.worst()
	r.DiskGiB = round(float64(max(r.Jobs.LargeBytes, r.Tenants.LargeBytes))/(1<<30), 2)
	r.LoadJobsPerSec, r.LoadSeconds = round(float64(s.loaded)/s.loading.Seconds(), 0), round(s.loading.Seconds(), 1)
	r.Machine, r.Settings, err = env.describe(ctx, s.large)
	return r, err
}

// scaling is a run of Scale under way.
type scaling struct {
	env          *Env
	opts         ScaleOptions
	large, small *database
	loaded       int64
	loading      time.Duration
}

// fillJobs fills the large database with ten million jobs and the small one with ten thousand, of the
// same few tenants.
func (s *scaling) fillJobs(ctx context.Context) error {
	if err := s.fill(ctx, s.large, s.opts.FewTenants, s.opts.Jobs); err != nil {
		return err
	}
	return s.fill(ctx, s.small, s.opts.FewTenants, s.opts.FewJobs)
}

// fillTenants fills the large database with jobs of a hundred thousand tenants and the small one with
// as many jobs of ten.
func (s *scaling) fillTenants(ctx context.Context) error {
	jobs := max(10*s.opts.Tenants, s.opts.FewJobs)
	if err := s.fill(ctx, s.large, s.opts.Tenants, jobs); err != nil {
		return err
	}
	return s.fill(ctx, s.small, s.opts.FewTenants, jobs)
}

// fillIdleTenants gives both databases ten tenants with work, and the large one a hundred thousand
// tenants in all, the others of which have had work before.
func (s *scaling) fillIdleTenants(ctx context.Context) error {
	for d, tenants := range map[*database]int{s.large: s.opts.Tenants, s.small: s.opts.FewTenants} {
		if err := s.fill(ctx, d, tenants, tenants); err != nil {
			return err
		}
		if err := d.drain(ctx, tenants); err != nil {
			return err
		}
		if err := s.fill(ctx, d, s.opts.FewTenants, s.opts.FewJobs); err != nil {
			return err
		}
	}
	return nil
}

// fill adds jobs, the same number for each tenant.
func (s *scaling) fill(ctx context.Context, d *database, tenants, jobs int) error {
	begun := time.Now()
	l, err := d.loader(ctx, "ojs.job", s.opts.ArgsBytes)
	if err != nil {
		return err
	}
	defer l.close()
	names, counts := make([]string, tenants), make([]int64, tenants)
	for i := range names {
		names[i] = "t" + strconv.Itoa(i)
		counts[i] = int64(jobs*(i+1)/tenants - jobs*i/tenants)
	}
	load := l.loadWhole
	if tenants <= 100 {
		load = l.load
	}
	err = load(ctx, names, counts, func(done int64) { s.env.progress("loading jobs", done, int64(jobs)) })
	s.loaded += int64(jobs)
	s.loading += time.Since(begun)
	return err
}

// drain hands out and completes every job, and configures their tenants.
func (d *database) drain(ctx context.Context, jobs int) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	for done := 0; done < jobs; {
		d.env.progress("emptying backlogs", int64(done), int64(jobs))
		var n int
		err := conn.QueryRow(ctx, `
			select count(a.id) from ojs.fetch(array[$1], 1000) j cross join lateral ojs.ack(j.id, j.lease) a`, queue).Scan(&n)
		if err != nil {
			return fmt.Errorf("empty the backlogs: %w", err)
		}
		if n == 0 {
			return fmt.Errorf("%d of %d jobs were not handed out", jobs-done, jobs)
		}
		done += n
	}
	owner, err := connectAs(ctx, d.admin, "ojs_owner")
	if err != nil {
		return err
	}
	defer owner.Close(context.Background())
	if _, err := owner.Exec(ctx, "insert into ojs.tenant (tenant_id) select 't' || n from generate_series(0, $1 - 1) n", jobs); err != nil {
		return fmt.Errorf("configure tenants: %w", err)
	}
	return nil
}

// compare fetches from the two databases in alternation.
func (s *scaling) compare(ctx context.Context, what string) (ScalePair, error) {
	p := ScalePair{
		LargeP50ms: map[string]float64{}, SmallP50ms: map[string]float64{}, Ratios: map[string]float64{},
		LargeP99ms: map[string]float64{}, SmallP99ms: map[string]float64{},
	}
	var conns [2]*pgx.Conn
	sizes := [2]*int64{&p.LargeBytes, &p.SmallBytes}
	for i, d := range []*database{s.large, s.small} {
		s.env.progress("vacuuming", int64(i), 2)
		conn, err := d.settled(ctx, sizes[i])
		if err != nil {
			return p, err
		}
		defer conn.Close(context.Background())
		conns[i] = conn
	}
	calls, err := fetchCalls(ctx, conns[0])
	if err != nil {
		return p, err
	}
	seen := map[string]*[2]times{}
	for n := range s.opts.Samples + scaleWarm {
		s.env.progress("fetching: "+what, int64(n), int64(s.opts.Samples+scaleWarm))
		for _, call := range slices.Sorted(maps.Keys(calls)) {
			for _, count := range scaleCounts {
				name := call + "_" + strconv.Itoa(count)
				if seen[name] == nil {
					seen[name] = &[2]times{}
				}
				for k := range conns {
					i := (k + n) % 2
					took, err := timeFetch(ctx, conns[i], calls[call], count)
					if err != nil {
						return p, err
					}
					if n >= scaleWarm {
						seen[name][i] = append(seen[name][i], took)
					}
				}
			}
		}
	}
	for name, t := range seen {
		p.LargeP50ms[name], p.SmallP50ms[name] = t[0].ms(0.5), t[1].ms(0.5)
		p.LargeP99ms[name], p.SmallP99ms[name] = t[0].ms(0.99), t[1].ms(0.99)
		p.Ratios[name] = round(p.LargeP50ms[name]/p.SmallP50ms[name], 3)
	}
	return p, nil
}

// settled vacuums the database, so that autovacuum does not do it during the measurement, and sets size
// to its bytes. It returns a session that does not wait for the flush of the log, which takes equally
// long in both databases and would hide a difference.
func (d *database) settled(ctx context.Context, size *int64) (*pgx.Conn, error) {
	if err := d.exec(ctx, "vacuum analyze"); err != nil {
		return nil, fmt.Errorf("vacuum: %w", err)
	}
	if err := d.control.QueryRow(ctx, "select pg_database_size(current_database())").Scan(size); err != nil {
		return nil, fmt.Errorf("ask for the size of a database: %w", err)
	}
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "set synchronous_commit = off"); err != nil {
		return nil, errors.Join(fmt.Errorf("set up a session: %w", err), conn.Close(ctx))
	}
	return conn, nil
}

// fetchCalls returns the statements that fetch, by name. $1 is the queue, $2 the number of jobs, $3 the
// worker.
func fetchCalls(ctx context.Context, conn *pgx.Conn) (map[string]string, error) {
	calls := map[string]string{"fetch": "ojs.fetch(array[$1], $2, $3)"}
	var combined bool
	if err := conn.QueryRow(ctx, "select to_regproc('ojs.fetch_many') is not null").Scan(&combined); err != nil {
		return nil, fmt.Errorf("look for ojs.fetch_many: %w", err)
	}
	if combined {
		calls["fetch_many"] = "ojs.fetch_many(array[$1], array[$2::int], array[$3::text], array[0])"
	}
	return calls, nil
}

// timeFetch fetches jobs and acknowledges them, and returns the time of the fetch. It fails if it gets
// fewer than it asked for.
func timeFetch(ctx context.Context, conn *pgx.Conn, call string, count int) (time.Duration, error) {
	begun := time.Now()
	jobs, err := queryJobs(ctx, conn, count, nil, "select "+jobrow.Columns+" from "+call, queue, count, "bench")
	took := time.Since(begun)
	if err != nil {
		return 0, fmt.Errorf("fetch: %w", err)
	}
	if len(jobs) != count {
		return 0, fmt.Errorf("fetched %d jobs of %d", len(jobs), count)
	}
	w := sqlWorker{conn: conn}
	if err := w.ack(ctx, jobs); err != nil {
		return 0, fmt.Errorf("acknowledge: %w", err)
	}
	return took, nil
}
