//go:build unix

package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// ScaleOptions say what Scale measures: the large and the small one of each pair.
type ScaleOptions struct {
	Jobs, FewJobs       int
	Tenants, FewTenants int
	Samples             int // fetches of each kind
	ArgsBytes           int
}

// Jobs that the fetches of one measurement take.
func (o ScaleOptions) taken() int {
	sum := 0
	for _, count := range scaleCounts {
		sum += count
	}
	return (o.Samples + scaleWarm) * sum * 2
}

// Check finds out whether there is enough to fetch.
func (o ScaleOptions) Check() error {
	if o.taken() > o.FewJobs/2 {
		return fmt.Errorf("%d samples take %d jobs, more than half of %d: take fewer samples, or more jobs", o.Samples, o.taken(), o.FewJobs)
	}
	return nil
}

var scaleCounts = []int{1, 10}

// Fetches before the first that counts: the first ones fold what was loaded.
const scaleWarm = 10

// ScalePair is one comparison of two databases on the same server.
type ScalePair struct {
	// P50 by call and count, of the large and of the small one, and their quotient.
	LargeP50ms map[string]float64 `json:"large_p50_ms"`
	SmallP50ms map[string]float64 `json:"small_p50_ms"`
	Ratios     map[string]float64 `json:"ratios"`
	LargeP99ms map[string]float64 `json:"large_p99_ms"`
	SmallP99ms map[string]float64 `json:"small_p99_ms"`
	LargeBytes int64              `json:"large_disk_bytes"`
	SmallBytes int64              `json:"small_disk_bytes"`
}

// worst is the largest of the ratios.
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

// Scale measures whether a fetch takes longer when there is more of something.
func Scale(ctx context.Context, env *Env, opts ScaleOptions) (*ScaleResult, error) {
	large, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	small, err := env.database(ctx, "ojs_bench_small")
	if err != nil {
		return nil, err
	}
	r := &ScaleResult{
		Benchmark: "scale", LargeJobs: opts.Jobs, SmallJobs: opts.FewJobs, ManyTenants: opts.Tenants, FewTenants: opts.FewTenants, Samples: opts.Samples, ArgsBytes: opts.ArgsBytes,
	}
	var loaded int64
	fill := func(d *database, tenants, jobs int) error {
		begun := time.Now()
		l, err := d.loader(ctx, "ojs.job", opts.ArgsBytes)
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
		err = load(ctx, names, counts, func(done int64) { env.progress("loading jobs", done, int64(jobs)) })
		loaded += int64(jobs)
		r.LoadSeconds += time.Since(begun).Seconds()
		return err
	}
	again := func() error {
		if err := large.reset(ctx); err != nil {
			return err
		}
		return small.reset(ctx)
	}

	// Ten million jobs beside ten thousand, of the same few tenants.
	if err := fill(large, opts.FewTenants, opts.Jobs); err != nil {
		return nil, err
	}
	if err := fill(small, opts.FewTenants, opts.FewJobs); err != nil {
		return nil, err
	}
	if r.Jobs, err = compareSizes(ctx, env, "jobs", large, small, opts); err != nil {
		return nil, err
	}
	// A hundred thousand tenants with work beside ten, with as many jobs in sum.
	if err := again(); err != nil {
		return nil, err
	}
	jobs := max(10*opts.Tenants, opts.FewJobs)
	if err := fill(large, opts.Tenants, jobs); err != nil {
		return nil, err
	}
	if err := fill(small, opts.FewTenants, jobs); err != nil {
		return nil, err
	}
	if r.Tenants, err = compareSizes(ctx, env, "tenants", large, small, opts); err != nil {
		return nil, err
	}
	// A hundred thousand tenants that have had work, ten of which have some now, beside those ten alone.
	if err := again(); err != nil {
		return nil, err
	}
	for d, tenants := range map[*database]int{large: opts.Tenants, small: opts.FewTenants} {
		if err := fill(d, tenants, tenants); err != nil {
			return nil, err
		}
		if err := d.drain(ctx, tenants); err != nil {
			return nil, err
		}
		if err := fill(d, opts.FewTenants, opts.FewJobs); err != nil {
			return nil, err
		}
	}
	if r.IdleTenants, err = compareSizes(ctx, env, "idle tenants", large, small, opts); err != nil {
		return nil, err
	}

	r.JobsRatio, r.TenantsRatio, r.IdleTenantsRatio = r.Jobs.worst(), r.Tenants.worst(), r.IdleTenants.worst()
	r.DiskGiB = round(float64(max(r.Jobs.LargeBytes, r.Tenants.LargeBytes))/(1<<30), 2)
	r.LoadJobsPerSec, r.LoadSeconds = round(float64(loaded)/r.LoadSeconds, 0), round(r.LoadSeconds, 1)
	r.Machine, r.Settings, err = env.describe(ctx, large)
	return r, err
}

// drain hands out and completes every job, and configures the tenants they were of.
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

// compareSizes fetches from two databases in turns.
func compareSizes(ctx context.Context, env *Env, what string, large, small *database, opts ScaleOptions) (ScalePair, error) {
	p := ScalePair{
		LargeP50ms: map[string]float64{}, SmallP50ms: map[string]float64{}, Ratios: map[string]float64{}, LargeP99ms: map[string]float64{}, SmallP99ms: map[string]float64{},
	}
	both := []*database{large, small}
	sizes := []*int64{&p.LargeBytes, &p.SmallBytes}
	conns := make([]*pgx.Conn, 2)
	for i, d := range both {
		env.progress("vacuuming", int64(i), 2)
		// As autovacuum will have done; but now, and not in the middle.
		if err := d.exec(ctx, "vacuum analyze"); err != nil {
			return p, fmt.Errorf("vacuum: %w", err)
		}
		if err := d.control.QueryRow(ctx, "select pg_database_size(current_database())").Scan(sizes[i]); err != nil {
			return p, fmt.Errorf("ask for the size of a database: %w", err)
		}
		conn, err := d.connect(ctx)
		if err != nil {
			return p, err
		}
		defer conn.Close(context.Background())
		// The flush of the log takes as long in both, and would hide a difference.
		if _, err := conn.Exec(ctx, "set synchronous_commit = off"); err != nil {
			return p, fmt.Errorf("set up a session: %w", err)
		}
		conns[i] = conn
	}
	calls := map[string]string{"fetch": "ojs.fetch(array[$1], $2, $3)"}
	var combined bool
	if err := conns[0].QueryRow(ctx, "select to_regproc('ojs.fetch_many') is not null").Scan(&combined); err != nil {
		return p, fmt.Errorf("look for ojs.fetch_many: %w", err)
	}
	if combined {
		calls["fetch_many"] = "ojs.fetch_many(array[$1], array[$2::int], array[$3::text], array[0])"
	}
	seen := map[string]*[2]times{}
	for n := range opts.Samples + scaleWarm {
		env.progress("fetching: "+what, int64(n), int64(opts.Samples+scaleWarm))
		for _, call := range slices.Sorted(slices.Values([]string{"fetch", "fetch_many"})) {
			sql, ok := calls[call]
			if !ok {
				continue
			}
			for _, count := range scaleCounts {
				name := call + "_" + strconv.Itoa(count)
				if seen[name] == nil {
					seen[name] = &[2]times{}
				}
				for k := range both {
					i := (k + n) % 2
					begun := time.Now()
					jobs, err := queryJobs(ctx, conns[i], count, nil, "select "+jobList+" from "+sql, queue, count, "bench")
					took := time.Since(begun)
					if err != nil {
						return p, fmt.Errorf("fetch: %w", err)
					}
					if len(jobs) != count {
						return p, fmt.Errorf("fetched %d jobs of %d", len(jobs), count)
					}
					if n >= scaleWarm {
						seen[name][i] = append(seen[name][i], took)
					}
					w := sqlWorker{conn: conns[i]}
					if err := w.ack(ctx, jobs); err != nil {
						return p, fmt.Errorf("acknowledge: %w", err)
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
