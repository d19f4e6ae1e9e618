//go:build unix

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// DueOptions say what Promote and Reap measure.
type DueOptions struct {
	Waiting, FewWaiting int // what is not due yet, in the large and in the small database
	Batch               int // due at once, looked at by one tick
	Samples             int // ticks in each database
	Tenants             int
	ArgsBytes           int
	Late                int // Promote: jobs due in the same second
}

// Ticks before the first that counts.
const dueWarm = 5

// DueSide is what a tick costs in one of the two databases, per job that was due.
type DueSide struct {
	P50ms      float64 `json:"p50_ms"` // of the whole tick
	P99ms      float64 `json:"p99_ms"`
	WALBytes   float64 `json:"wal_bytes_per_job"`
	Buffers    float64 `json:"buffers_per_job"`
	BufferRead float64 `json:"buffers_read_per_job"`
	DiskBytes  int64   `json:"disk_bytes"`
}

// DueResult is one run of Promote or Reap.
type DueResult struct {
	Benchmark    string    `json:"benchmark"`
	Waiting      int       `json:"waiting"`
	FewWaiting   int       `json:"few_waiting"`
	Batch        int       `json:"batch"`
	Samples      int       `json:"samples"`
	Tenants      int       `json:"tenants"`
	ArgsBytes    int       `json:"args_bytes"`
	Ratio        float64   `json:"ratio"`
	Interval     Interval  `json:"interval"`
	CPURatio     *float64  `json:"cpu_ratio"`
	WALRatio     float64   `json:"wal_ratio"`
	BuffersRatio float64   `json:"buffers_ratio"`
	LargeP50ms   float64   `json:"large_p50_ms"`
	SmallP50ms   float64   `json:"small_p50_ms"`
	Late         *Lateness `json:"late,omitempty"`
	LateMsMax    float64   `json:"late_ms_max,omitempty"`
	InstantMsMax float64   `json:"instant_late_ms_max,omitempty"`
	DiskGiB      float64   `json:"disk_gib"`
	LoadSeconds  float64   `json:"load_seconds"`
	Large        DueSide   `json:"large"`
	Small        DueSide   `json:"small"`
	Machine      Machine   `json:"machine"`
	Settings     Settings  `json:"settings"`
}

// Lateness is how long after its time a job was there for workers, in the large database, by the clock of the database.
type Lateness struct {
	Jobs         int     `json:"jobs"`
	P50ms        float64 `json:"p50_ms"`
	P99ms        float64 `json:"p99_ms"`
	MaxMs        float64 `json:"max_ms"`
	InstantP50ms float64 `json:"instant_p50_ms"`
	InstantMaxMs float64 `json:"instant_max_ms"`
}

// dueKind is what waits, and becomes due.
type dueKind struct{ state, columns, values, due, timer string }

var (
	scheduledJobs = dueKind{"scheduled", "seq, scheduled_at", "null, %s", "scheduled_at", "due"}
	leasedJobs    = dueKind{
		"active", "attempt, lease, started_at, worker_id, lease_expires_at", "1, gen_random_uuid(), c.now, 'w' || g.i % 16, %s",
		"lease_expires_at", "lease",
	}
)

// rows adds $2 jobs of $4 tenants to the queue $3, the first due $5 from now and each $6 after the one before, with a timer of its own,
// as after single calls. It does what the triggers would do, and is to run without them: they would look at each of ten million jobs,
// and make those available that are due by then.
func (k dueKind) rows() string {
	return `
		with made as (
			insert into ojs.job (state, ` + k.columns + `, tenant_id, type, queue, args)
			select '` + k.state + `', ` + strings.ReplaceAll(k.values, "%s", "c.now + $5::interval + g.i * $6::interval") + `,
				't' || g.i % $4, 'bench.job', $3, ($1::text[])[1 + g.i % cardinality($1)]::json
			from (select clock_timestamp() as now offset 0) c cross join generate_series(0, $2::int - 1) g(i)
			returning tenant_id, id, ` + k.due + ` as due_at
		), noted as (` + noteLoaded(k.state) + `
		)
		insert into ojs.timer (due_at, kind, tenant_ids, ids)
		select m.due_at, '` + k.timer + `', array[m.tenant_id], array[m.id] from made m`
}

// Jobs between two checkpoints while loading, so that the log stays smaller than what it is about.
const checkpointEvery = 2_000_000

// Promote measures whether promoting due jobs takes longer when more are not due yet, and how late they are.
func Promote(ctx context.Context, env *Env, opts DueOptions) (*DueResult, error) {
	return due(ctx, env, "promote", scheduledJobs, opts)
}

func due(ctx context.Context, env *Env, benchmark string, kind dueKind, opts DueOptions) (*DueResult, error) {
	r := &DueResult{
		Benchmark: benchmark, Waiting: opts.Waiting, FewWaiting: opts.FewWaiting, Batch: opts.Batch, Samples: opts.Samples,
		Tenants: opts.Tenants, ArgsBytes: opts.ArgsBytes,
	}
	sides := []*dueSide{{DueSide: &r.Large, waiting: opts.Waiting}, {DueSide: &r.Small, waiting: opts.FewWaiting}}
	defer func() {
		for _, side := range sides {
			side.close()
		}
	}()
	begun := time.Now()
	for i, side := range sides {
		var err error
		if side.d, err = env.database(ctx, []string{"ojs_bench", "ojs_bench_small"}[i]); err != nil {
			return nil, err
		}
		side.kind, side.opts, side.payload = kind, opts, makeArgs(opts.ArgsBytes)
		if err := side.load(ctx); err != nil {
			return nil, err
		}
	}
	r.LoadSeconds = round(time.Since(begun).Seconds(), 1)
	for i, side := range sides {
		env.progress("vacuuming", int64(i), 2)
		if err := side.settle(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.tick(ctx, env, sides); err != nil {
		return nil, err
	}
	if opts.Late > 0 {
		late, err := sides[0].lateness(ctx)
		if err != nil {
			return nil, err
		}
		r.Late, r.LateMsMax, r.InstantMsMax = late, late.MaxMs, late.InstantMaxMs
	}
	var err error
	r.Machine, r.Settings, err = env.describe(ctx, sides[0].d)
	return r, err
}

// tick lets the two databases tick in turns, and compares what that costs.
func (r *DueResult) tick(ctx context.Context, env *Env, sides []*dueSide) error {
	var ratios, cpuRatios []float64
	ticks := r.Samples + dueWarm
	for n := range ticks {
		env.progress("ticking", int64(n), int64(ticks))
		var costs [2]tickCost
		for k := range sides {
			i := (k + n) % 2
			var err error
			if costs[i], err = sides[i].tick(ctx); err != nil {
				return err
			}
		}
		if n < dueWarm {
			continue
		}
		for i := range sides {
			sides[i].costs = append(sides[i].costs, costs[i])
		}
		ratios = append(ratios, costs[0].took.Seconds()/costs[1].took.Seconds())
		if costs[0].cpuKnown && costs[1].cpuKnown {
			cpuRatios = append(cpuRatios, costs[0].cpu.Seconds()/costs[1].cpu.Seconds())
		}
	}
	r.Ratio, r.Interval = round(median(ratios), 3), medianInterval(ratios)
	if len(cpuRatios) > 0 {
		ratio := round(median(cpuRatios), 3)
		r.CPURatio = &ratio
	}
	for _, side := range sides {
		side.sum()
		moved, err := side.d.becameAvailable(ctx)
		if err == nil && moved != ticks*r.Batch {
			err = fmt.Errorf("%d jobs became available, not %d", moved, ticks*r.Batch)
		}
		if err != nil {
			return fmt.Errorf("look at what was measured: %w", err)
		}
	}
	r.WALRatio, r.BuffersRatio = round(r.Large.WALBytes/r.Small.WALBytes, 3), round(r.Large.Buffers/r.Small.Buffers, 3)
	r.LargeP50ms, r.SmallP50ms = r.Large.P50ms, r.Small.P50ms
	r.DiskGiB = round(float64(r.Large.DiskBytes)/(1<<30), 2)
	return nil
}

// dueSide is one of the two databases.
type dueSide struct {
	*DueSide
	opts    DueOptions
	d       *database
	kind    dueKind
	payload []string
	waiting int
	loading *pgx.Conn // without triggers
	conn    *pgx.Conn // ticks, as a server does
	costs   []tickCost
}

type tickCost struct {
	took, cpu          time.Duration
	cpuKnown           bool
	wal, buffers, read float64
}

func (s *dueSide) close() {
	for _, conn := range []*pgx.Conn{s.loading, s.conn} {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}
}

// insert adds jobs, the first of which is due so much later than now.
func (s *dueSide) insert(ctx context.Context, jobs int, later, step time.Duration) error {
	if _, err := s.loading.Exec(ctx, s.kind.rows(), s.payload, jobs, queue, s.opts.Tenants, later, step); err != nil {
		return fmt.Errorf("load jobs: %w", err)
	}
	return nil
}

func (s *dueSide) load(ctx context.Context) (err error) {
	if s.loading, err = connectAs(ctx, s.d.admin, ""); err != nil {
		return err
	}
	if _, err := s.loading.Exec(ctx, "set session_replication_role = replica"); err != nil {
		return fmt.Errorf("load without triggers: %w", err)
	}
	for done := 0; done < s.waiting; {
		s.d.env.progress("loading jobs", int64(done), int64(s.waiting))
		chunk := min(loadChunk, s.waiting-done)
		if err := s.insert(ctx, chunk, 24*time.Hour+time.Duration(done)*time.Millisecond, time.Millisecond); err != nil {
			return err
		}
		if done += chunk; done%checkpointEvery == 0 {
			if err := s.d.exec(ctx, "checkpoint"); err != nil {
				return fmt.Errorf("write what was loaded: %w", err)
			}
		}
	}
	return nil
}

// settle brings everything to rest that follows from loading, and opens the session that is measured.
func (s *dueSide) settle(ctx context.Context) (err error) {
	if err := s.d.exec(ctx, "vacuum analyze"); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	if err := s.d.exec(ctx, "checkpoint"); err != nil {
		return fmt.Errorf("write what was loaded: %w", err)
	}
	if err := s.d.control.QueryRow(ctx, "select pg_database_size(current_database())").Scan(&s.DiskBytes); err != nil {
		return fmt.Errorf("ask for the size of a database: %w", err)
	}
	if s.conn, err = s.d.connect(ctx); err != nil {
		return err
	}
	// The flush of the log takes as long in both, and would hide a difference.
	if _, err := s.conn.Exec(ctx, "set synchronous_commit = off"); err != nil {
		return fmt.Errorf("set up a session: %w", err)
	}
	for more := 1; more > 0; {
		if err := s.conn.QueryRow(ctx, "select promoted + reaped + rolled_up from ojs.tick()").Scan(&more); err != nil {
			return fmt.Errorf("tick: %w", err)
		}
	}
	return nil
}

// tick makes a batch due, and has one tick do it.
func (s *dueSide) tick(ctx context.Context) (cost tickCost, err error) {
	if err := s.insert(ctx, s.opts.Batch, 0, time.Microsecond); err != nil {
		return cost, err
	}
	time.Sleep(time.Duration(s.opts.Batch) * time.Microsecond)
	n, err := s.due(ctx)
	if err == nil && n != s.opts.Batch {
		err = fmt.Errorf("%d jobs are due, not %d", n, s.opts.Batch)
	}
	if err != nil {
		return cost, err
	}
	var raw []byte
	before, _ := s.d.env.session(s.conn.PgConn().PID())
	const explain = "explain (analyze, buffers, wal, timing off, format json) "
	err = s.conn.QueryRow(ctx, explain+"select ojs.tick("+strconv.Itoa(s.opts.Batch)+")").Scan(&raw)
	if err != nil {
		return cost, fmt.Errorf("tick: %w", err)
	}
	after, known := s.d.env.session(s.conn.PgConn().PID())
	var explained []struct {
		Plan struct {
			Hit  float64 `json:"Shared Hit Blocks"`
			Read float64 `json:"Shared Read Blocks"`
			WAL  float64 `json:"WAL Bytes"`
		}
		Ms float64 `json:"Execution Time"`
	}
	if err := json.Unmarshal(raw, &explained); err != nil || len(explained) != 1 {
		return cost, fmt.Errorf("read what a tick cost: %w", err)
	}
	if n, err := s.due(ctx); err != nil || n > 0 {
		return cost, errors.Join(err, fmt.Errorf("a tick left %d of %d jobs that were due", n, s.opts.Batch))
	}
	p := explained[0].Plan
	took := time.Duration(explained[0].Ms * float64(time.Millisecond))
	return tickCost{took: took, cpu: after - before, cpuKnown: known, wal: p.WAL, buffers: p.Hit + p.Read, read: p.Read}, nil
}

// due counts what a tick would look at.
func (s *dueSide) due(ctx context.Context) (n int, err error) {
	err = s.d.control.QueryRow(ctx, "select count(*) from ojs.timer t where t.due_at <= (select clock_timestamp())").Scan(&n)
	if err != nil {
		err = fmt.Errorf("look for timers: %w", err)
	}
	return n, err
}

func (s *dueSide) sum() {
	var took times
	var wal, buffers, read []float64
	for _, c := range s.costs {
		took = append(took, c.took)
		wal, buffers, read = append(wal, c.wal), append(buffers, c.buffers), append(read, c.read)
	}
	jobs := float64(s.opts.Batch)
	s.P50ms, s.P99ms = took.ms(0.5), took.ms(0.99)
	s.WALBytes, s.Buffers, s.BufferRead = round(median(wal)/jobs, 1), round(median(buffers)/jobs, 2), round(median(read)/jobs, 3)
}

// lateness has the clock of a server promote jobs at their time, and watches when they are there.
func (s *dueSide) lateness(ctx context.Context) (*Lateness, error) {
	engine, err := s.d.engine(ctx, 16, nil)
	if err != nil {
		return nil, err
	}
	defer engine.stopQuietly()
	defer engine.clock(ctx)()
	late := &Lateness{Jobs: s.opts.Late}
	// Within the same second, and at the same instant.
	spread, err := s.watch(ctx, queue+"-spread", time.Second/time.Duration(s.opts.Late))
	if err != nil {
		return nil, err
	}
	instant, err := s.watch(ctx, queue+"-instant", 0)
	late.P50ms, late.P99ms, late.MaxMs = spread.ms(0.5), spread.ms(0.99), spread.ms(1)
	late.InstantP50ms, late.InstantMaxMs = instant.ms(0.5), instant.ms(1)
	return late, err
}

// watch schedules jobs in a queue of their own and returns how late each was seen to be available.
func (s *dueSide) watch(ctx context.Context, queue string, step time.Duration) (times, error) {
	var since string
	if err := s.d.control.QueryRow(ctx, "select pg_snapshot_xmin(pg_current_snapshot())::text").Scan(&since); err != nil {
		return nil, fmt.Errorf("read the id of a transaction: %w", err)
	}
	_, err := s.d.control.Exec(ctx, `
		insert into ojs.job (scheduled_at, tenant_id, type, queue, args)
		select c.now + interval '3 seconds' + g.i * $5::interval, 't' || g.i % $4, 'bench.job', $3,
			($1::text[])[1 + g.i % cardinality($1)]::json
		from (select clock_timestamp() as now offset 0) c cross join generate_series(0, $2::int - 1) g(i)`,
		s.payload, s.opts.Late, queue, s.opts.Tenants, step)
	if err != nil {
		return nil, fmt.Errorf("schedule jobs: %w", err)
	}
	// The journal says in few rows what has become visible.
	seen := map[int64]time.Time{}
	for jobs, deadline := 0, time.Now().Add(time.Minute); jobs < s.opts.Late; {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d jobs were promoted within a minute of their time", jobs, s.opts.Late)
		}
		s.d.env.progress("watching the clock", int64(jobs), int64(s.opts.Late))
		jobs = 0
		err := s.d.promoted(ctx, since, queue, func(row int64, n int, at time.Time) {
			jobs += n
			if _, known := seen[row]; !known {
				seen[row] = at
			}
		})
		if err != nil {
			return nil, err
		}
		time.Sleep(2 * time.Millisecond)
	}
	var late times
	err = s.d.promotedDue(ctx, since, queue, func(row int64, due time.Time) { late = append(late, seen[row].Sub(due)) })
	if err == nil && len(late) != s.opts.Late {
		err = fmt.Errorf("%d of %d jobs are found", len(late), s.opts.Late)
	}
	return late, err
}
