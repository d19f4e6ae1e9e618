//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// MixedOptions holds the parameters of Mixed. Percentages are of jobs or of attempts.
type MixedOptions struct {
	Load      // Seconds of the whole; Slices does not count
	Producers int
	Tenants   int
	Open      int     // jobs that have not ended at any time, about
	Fail      float64 // attempts that fail, %
	Ahead     float64 // jobs scheduled up to ten seconds ahead, %
	Cancel    float64 // jobs cancelled after they were enqueued, %
	Lost      float64 // attempts whose worker is never heard of again, %
	Retention float64 // seconds that finished jobs stay
}

// MixedMinute holds the figures of one minute, or of a fifth of a short run (MixedOptions.part).
type MixedMinute struct {
	JobsPerSecond float64 `json:"completed_jobs_per_second"`
	// CPUms is the processor time of this process and PostgreSQL for each completed job. It grows with the
	// work, and hardly with other load of the machine. Null if it is not known.
	CPUms        *float64 `json:"cpu_ms_per_completed_job"`
	Enqueued     int64    `json:"enqueued"`
	Completed    int64    `json:"completed"`
	Failed       int64    `json:"failed_attempts"`
	Lost         int64    `json:"lost_attempts"`
	Cancelled    int64    `json:"cancelled"`
	Discarded    int64    `json:"discarded"`
	Refused      int64    `json:"refused_acknowledgements"` // cancelled meanwhile, or the lease had ended
	RetainedJobs float64  `json:"retained_jobs"`
	OpenJobs     float64  `json:"open_jobs"`
	Bytes        float64  `json:"bytes"`
	BytesPerJob  float64  `json:"bytes_per_retained_job"`
	// BytesByTable holds the sizes at the end of the minute: tables with indexes and wide values, all
	// partitions of jobs together.
	BytesByTable map[string]int64 `json:"bytes_by_table"`
}

// MixedResult is one run of Mixed.
type MixedResult struct {
	Benchmark        string        `json:"benchmark"`
	Workers          int           `json:"workers"`
	Batch            int           `json:"batch"`
	Producers        int           `json:"producers"`
	Tenants          int           `json:"tenants"`
	Open             int           `json:"open"`
	ArgsBytes        int           `json:"args_bytes"`
	Seconds          float64       `json:"seconds"`
	PartSeconds      float64       `json:"part_seconds"`
	FailPercent      float64       `json:"fail_percent"`
	AheadPercent     float64       `json:"ahead_percent"`
	CancelPercent    float64       `json:"cancel_percent"`
	LostPercent      float64       `json:"lost_percent"`
	RetentionSeconds float64       `json:"retention_seconds"`
	ThroughputRatio  float64       `json:"throughput_ratio"`
	SizeRatio        float64       `json:"size_ratio"`
	CPURatio         *float64      `json:"cpu_ratio"`
	JobsPerSecond    float64       `json:"jobs_per_second"`
	BytesPerJob      float64       `json:"bytes_per_retained_job"`
	Minutes          []MixedMinute `json:"minutes"`
	Machine          Machine       `json:"machine"`
	Settings         Settings      `json:"settings"`
}

// part returns the length of the parts that are compared: a minute, or a fifth of a short run.
func (o MixedOptions) part() time.Duration { return min(time.Minute, o.length()/5) }

const (
	mixedLease  = 5 * time.Second  // after which the job of a lost worker comes back
	mixedAhead  = 10 * time.Second // how far ahead jobs are scheduled at most
	mixedPerTxn = 100              // jobs that a producer enqueues at once
)

// mixedPart counts what happens in one part.
type mixedPart struct {
	enqueued, completed, failed, lost, cancelled, discarded, refused atomic.Int64

	// Only the goroutine that calls look writes these.
	retained, open, bytes []float64
	byTable               map[string]int64
	cpu                   time.Duration // computed since the beginning, at the end of the part
	cpuKnown              bool
}

// mix is a run of Mixed under way.
type mix struct {
	opts   MixedOptions
	people population
	begun  time.Time
	parts  []*mixedPart
	spare  mixedPart    // counts what happens after the last part
	open   atomic.Int64 // jobs that have not ended
	cpu    time.Duration
}

// part returns the part that counts what happens now.
func (m *mix) part() *mixedPart {
	if at := int(time.Since(m.begun) / m.opts.part()); at < len(m.parts) {
		return m.parts[at]
	}
	return &m.spare
}

// Mixed measures whether throughput decays or the database grows while jobs are enqueued, scheduled,
// completed, failed, cancelled and lost.
func Mixed(ctx context.Context, env *Env, opts MixedOptions) (*MixedResult, error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	r := &MixedResult{
		Benchmark: "mixed", Workers: opts.Workers, Batch: opts.Batch, Producers: opts.Producers, Tenants: opts.Tenants, Open: opts.Open,
		ArgsBytes: opts.ArgsBytes, Seconds: opts.Seconds, PartSeconds: round(opts.part().Seconds(), 2),
		FailPercent: opts.Fail, AheadPercent: opts.Ahead, CancelPercent: opts.Cancel, LostPercent: opts.Lost,
		RetentionSeconds: opts.Retention,
	}
	const retain = "select ojs.configure(p_retention => make_interval(secs => $1), p_journal_retention => '1 minute')"
	if err := d.exec(ctx, retain, opts.Retention); err != nil {
		return nil, fmt.Errorf("configure the retention: %w", err)
	}
	// The partition for future jobs is cut while there are no jobs, as in a database that has been in use
	// for a while.
	for more := true; more; {
		if err := d.control.QueryRow(ctx, "select (u).task is not null from ojs.upkeep() u").Scan(&more); err != nil {
			return nil, fmt.Errorf("prepare partitions: %w", err)
		}
	}
	m := &mix{opts: opts, people: newPopulation(opts.Tenants, false)}
	for range int(opts.length() / opts.part()) {
		m.parts = append(m.parts, &mixedPart{})
	}
	if err := m.run(ctx, d); err != nil {
		return nil, err
	}

	cpu := m.cpu
	for _, p := range m.parts {
		n := MixedMinute{
			JobsPerSecond: round(float64(p.completed.Load())/opts.part().Seconds(), 0),
			Enqueued:      p.enqueued.Load(), Completed: p.completed.Load(), Failed: p.failed.Load(), Lost: p.lost.Load(),
			Cancelled: p.cancelled.Load(), Discarded: p.discarded.Load(), Refused: p.refused.Load(),
			RetainedJobs: round(mean(p.retained), 0), OpenJobs: round(mean(p.open), 0),
			Bytes: round(mean(p.bytes), 0), BytesByTable: p.byTable,
		}
		n.BytesPerJob = round(n.Bytes/n.RetainedJobs, 1)
		if p.cpuKnown {
			perJob := round((p.cpu-cpu).Seconds()*1000/float64(p.completed.Load()), 3)
			n.CPUms, cpu = &perJob, p.cpu
		}
		r.JobsPerSecond += n.JobsPerSecond / float64(len(m.parts))
		r.Minutes = append(r.Minutes, n)
	}
	second, third, last := r.Minutes[1], r.Minutes[2], r.Minutes[len(r.Minutes)-1]
	r.JobsPerSecond, r.BytesPerJob = round(r.JobsPerSecond, 0), last.BytesPerJob
	r.ThroughputRatio = round(last.JobsPerSecond/second.JobsPerSecond, 3)
	r.SizeRatio = round(last.BytesPerJob/third.BytesPerJob, 3)
	if second.CPUms != nil && last.CPUms != nil {
		ratio := round(*last.CPUms / *second.CPUms, 3)
		r.CPURatio = &ratio
	}
	r.Machine, r.Settings, err = env.describe(ctx, d)
	return r, err
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// run lets producers and workers work until the time is over, and measures the database meanwhile.
func (m *mix) run(ctx context.Context, d *database) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	engine, err := d.engine(ctx, max(16, m.opts.Workers), nil)
	if err != nil {
		return err
	}
	defer engine.stopQuietly()
	defer engine.clock(ctx)()
	defer engine.upkeep(ctx)()
	if err := m.people.configure(ctx, d); err != nil {
		return err
	}
	var working sync.WaitGroup
	defer working.Wait()
	fail := func(what string, err error) {
		if ctx.Err() == nil {
			cancel(fmt.Errorf("%s: %w", what, err))
		}
	}
	m.begun = time.Now()
	m.cpu, _ = d.env.cpu()
	over, stop := context.WithDeadline(ctx, m.begun.Add(m.opts.length()))
	defer stop()
	for i := range m.opts.Producers {
		conn, err := d.connect(ctx)
		if err != nil {
			stop()
			return err
		}
		working.Go(func() {
			defer conn.Close(context.Background())
			if err := m.produce(over, conn, i); err != nil && over.Err() == nil {
				fail("enqueue", err)
			}
		})
	}
	for i := range m.opts.Workers {
		working.Go(func() {
			for n := 0; over.Err() == nil; n++ {
				if err := m.work(over, engine.dispatch, "w"+strconv.Itoa(i)+"-"+strconv.Itoa(n)); err != nil && over.Err() == nil {
					fail("work", err)
				}
			}
		})
	}
	every := max(m.opts.part()/6, 50*time.Millisecond)
	for next := m.begun.Add(every); ; next = next.Add(every) {
		d.env.progress("a mixed load", time.Since(m.begun).Milliseconds(), m.opts.length().Milliseconds())
		select {
		case <-over.Done():
			return context.Cause(ctx)
		case <-time.After(time.Until(next)):
		}
		// The last measurement of a part is taken at its end and belongs to it.
		if err := m.look(ctx, d, m.parts[min(int((next.Sub(m.begun)-1)/m.opts.part()), len(m.parts)-1)]); err != nil {
			return err
		}
	}
}

// produce enqueues jobs, and pauses while enough jobs are open, so that the rate is that of the workers,
// the clock and the upkeep.
func (m *mix) produce(ctx context.Context, conn *pgx.Conn, n int) error {
	random := rand.New(rand.NewPCG(uint64(n), 1))
	payload := makeArgs(m.opts.ArgsBytes)
	var unwanted []string
	for ; ; n++ {
		for m.open.Load() > int64(m.opts.Open) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Millisecond):
			}
		}
		tenant := m.people.next(n)
		var now, later []string
		for k := range mixedPerTxn {
			if args := payload[(n+k)%len(payload)]; random.Float64()*100 < m.opts.Ahead {
				later = append(later, args)
			} else {
				now = append(now, args)
			}
		}
		var both pgx.Batch
		var ids []string
		collect := func(rows pgx.Rows) error {
			some, err := pgx.CollectRows(rows, pgx.RowTo[string])
			ids = append(ids, some...)
			return err
		}
		if len(now) > 0 {
			both.Queue(`
				select id::text from ojs.enqueue_bulk('bench.job', $3::json[], $2, p_tenant => $1) id`, tenant, queue, now).Query(collect)
		}
		if len(later) > 0 {
			both.Queue(`insert into ojs.jobs (tenant_id, type, queue, args, scheduled_at)
				select $1, 'bench.job', $2, a::json, clock_timestamp() + random() * $4::interval from unnest($3::text[]) a
				returning id::text`, tenant, queue, later, mixedAhead).Query(collect)
		}
		if err := conn.SendBatch(ctx, &both).Close(); err != nil {
			return err
		}
		m.part().enqueued.Add(int64(len(ids)))
		m.open.Add(int64(len(ids)))
		// Jobs of the transaction before: some are scheduled, most wait, some run or have ended.
		if err := m.cancel(ctx, conn, unwanted); err != nil {
			return err
		}
		unwanted = unwanted[:0]
		for _, id := range ids {
			if random.Float64()*100 < m.opts.Cancel {
				unwanted = append(unwanted, id)
			}
		}
	}
}

// cancel cancels jobs, and counts those that it cancelled.
func (m *mix) cancel(ctx context.Context, conn *pgx.Conn, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	tag, err := conn.Exec(ctx, "select c.id from unnest($1::uuid[]) u(id) cross join lateral ojs.cancel(u.id) c", ids)
	if len(ids) > 1 && isConflict(err) {
		for i := range ids {
			if err := m.cancel(ctx, conn, ids[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil && !isConflict(err) {
		return fmt.Errorf("cancel: %w", err)
	}
	m.part().cancelled.Add(tag.RowsAffected())
	m.open.Add(-tag.RowsAffected())
	return nil
}

// isConflict reports whether an acknowledgement was refused because the job has ended, or is held under
// another lease.
func isConflict(err error) bool {
	var known *pg.Error
	var failure *pgconn.PgError
	return errors.As(err, &known) && known.SQLState == "OJ409" || errors.As(err, &failure) && failure.Code == "OJ409"
}

// work fetches jobs once and ends their attempts, but for those whose worker is to be lost.
func (m *mix) work(ctx context.Context, d *dispatch.Dispatcher, name string) error {
	got, err := d.Fetch(ctx, dispatch.Fetch{
		Queues: []string{queue}, Count: m.opts.Batch, WorkerID: name,
		VisibilityTimeoutMs: int(mixedLease.Milliseconds()), Wait: time.Second,
	})
	if err != nil {
		return err
	}
	part := m.part()
	end := make([]dispatch.Settlement, 0, len(got))
	for i := range got {
		s := dispatch.Settlement{ID: got[i].ID, Lease: got[i].Lease}
		switch fate := rand.Float64() * 100; {
		case fate < m.opts.Lost:
			part.lost.Add(1)
			continue
		case fate < m.opts.Lost+m.opts.Fail:
			s.Error = []byte(`{"code": "bench_failure", "message": "as some attempts do"}`)
		}
		end = append(end, s)
	}
	for i, done := range d.Settle(ctx, end, false) {
		switch {
		case isConflict(done.Err):
			part.refused.Add(1)
			continue
		case done.Err != nil:
			return done.Err
		case done.Job.State == "completed":
			part.completed.Add(1)
			m.open.Add(-1)
		case done.Job.State == "discarded":
			part.discarded.Add(1)
			m.open.Add(-1)
		}
		if end[i].Error != nil {
			part.failed.Add(1)
		}
	}
	return nil
}

// look measures the database, and corrects the number of open jobs: a job also ends when it runs out of
// attempts because its workers are lost, which no worker counts.
func (m *mix) look(ctx context.Context, d *database, part *mixedPart) error {
	believed := m.open.Load()
	var retained, open, bytes int64
	byTable := map[string]int64{}
	err := d.control.QueryRow(ctx, `
		select count(*), count(*) filter (where j.state not in ('completed', 'cancelled', 'discarded')),
			pg_database_size(current_database())
		from ojs.job j`).Scan(&retained, &open, &bytes)
	if err == nil {
		err = d.control.QueryRow(ctx, `
			select json_object_agg(t.name, t.bytes) from (
				select case when c.relname like 'job\_%' then 'job' else c.relname end as name,
					sum(pg_total_relation_size(c.oid))::bigint as bytes
				from pg_class c where c.relnamespace = 'ojs'::regnamespace and c.relkind = 'r'
				group by 1 having sum(pg_total_relation_size(c.oid)) > 1048576
			) t`).Scan(&byTable)
	}
	if err != nil {
		return fmt.Errorf("look at the size of the database: %w", err)
	}
	m.open.Add(open - believed)
	part.cpu, part.cpuKnown = d.env.cpu()
	part.retained, part.open = append(part.retained, float64(retained)), append(part.open, float64(open))
	part.bytes, part.byTable = append(part.bytes, float64(bytes)), byTable
	return nil
}
