//go:build unix

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/jobrow"
)

var (
	columnID       = jobrow.Column("id")
	columnLease    = jobrow.Column("lease")
	columnArgs     = jobrow.Column("args")
	columnTenantID = jobrow.Column("tenant_id")
)

// baselineSchema is the queue that a competent developer would write: one table with the columns of
// ojs.job, one index on waiting jobs, which setBaseline makes, and the vacuum settings of ojs.job. The
// table bare is the baseline of enqueues: the same columns and key, and no triggers.
const baselineSchema = `
	create schema ojs_bench;
	comment on schema ojs_bench is '` + mark + `';
	create table ojs_bench.job (like ojs.job including defaults);
	create sequence ojs_bench.job_seq owned by ojs_bench.job.seq;
	alter table ojs_bench.job alter seq set default nextval('ojs_bench.job_seq'), alter id set default gen_random_uuid(),
		alter enqueued_at set default clock_timestamp(), alter created_at set default clock_timestamp(), alter tenant_id drop default,
		add primary key (id);
	alter table ojs_bench.job set (fillfactor = 50, toast_tuple_target = 512,
		autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
	create table ojs_bench.tenant (tenant_id text collate "C" primary key, weight float8 not null);
	create table ojs_bench.bare (like ojs_bench.job including defaults, primary key (id, tenant_id));
	create sequence ojs_bench.bare_seq owned by ojs_bench.bare.seq;
	alter table ojs_bench.bare alter seq set default nextval('ojs_bench.bare_seq');
	grant usage on schema ojs_bench to ojs_service;
	grant select, insert, update on all tables in schema ojs_bench to ojs_service;
	grant usage on all sequences in schema ojs_bench to ojs_service;`

// Unfair and Fair are the names of the baselines that ojs-pg can be compared with.
const (
	Unfair = "unfair"
	Fair   = "fair"
)

// baseline is the fetch of a baseline: an index on waiting jobs, and one update that takes $2 jobs from
// the queue $1 for the worker $3. with and where are what the baselines differ in: the part of the
// statement before the update, and its condition.
type baseline struct{ index, with, where string }

var baselines = map[string]baseline{
	Unfair: {
		index: "queue, priority desc, seq",
		where: `where id in (
			select id from ojs_bench.job where queue = $1 and state = 'available'
			order by priority desc, seq limit $2 for update skip locked)`,
	},
	// The usual fair queue. A loose index scan finds the tenants with work and the oldest jobs of each.
	// Of all these it takes the first by their number among the tenant's jobs over its weight. It
	// remembers nothing from one statement to the next. It looks at SPARE more jobs of each tenant, so
	// that a worker finds jobs that the other workers have not locked.
	Fair: {
		index: "queue, tenant_id, priority desc, seq",
		with: `with recursive working(tenant_id) as (
				(select tenant_id from ojs_bench.job where queue = $1 and state = 'available' order by tenant_id limit 1)
				union all
				select (
					select j.tenant_id from ojs_bench.job j where j.queue = $1 and j.state = 'available' and j.tenant_id > w.tenant_id
					order by j.tenant_id limit 1)
				from working w where w.tenant_id is not null
			), ranked as (
				select j.id, j.seq, row_number() over (partition by w.tenant_id order by j.priority desc, j.seq) / t.weight as rank
				from working w
				join ojs_bench.tenant t on t.tenant_id = w.tenant_id
				cross join lateral (
					select j.id, j.priority, j.seq from ojs_bench.job j
					where j.queue = $1 and j.state = 'available' and j.tenant_id = w.tenant_id
					order by j.priority desc, j.seq limit $2 + SPARE) j
			), picked as materialized (
				select r.id from (select id from ranked order by rank, seq) r
				cross join lateral (
					select j.id from ojs_bench.job j where j.id = r.id and j.state = 'available' for update skip locked) j
				limit $2
			)`,
		where: "from picked p where p.id = j.id",
	},
}

// fetch returns the statement that takes jobs from the baseline.
func (b baseline) fetch() string {
	return b.with + `
		update ojs_bench.job j
		set state = 'active', attempt = attempt + 1, lease = gen_random_uuid(), started_at = clock_timestamp(),
			lease_expires_at = clock_timestamp() + interval '30 seconds', worker_id = $3
		` + b.where + `
		returning j.` + strings.ReplaceAll(jobrow.Columns, ", ", ", j.")
}

// setBaseline chooses the baseline, by its name, and makes its index and the weights of its tenants.
func (d *database) setBaseline(ctx context.Context, name string, people population, load Load) error {
	b, known := baselines[name]
	if !known {
		return fmt.Errorf("there is no baseline %q", name)
	}
	spare := (load.Workers*load.Batch + len(people.names) - 1) / len(people.names)
	b.with = strings.ReplaceAll(b.with, "SPARE", strconv.Itoa(spare))
	d.baseline = b
	if err := d.exec(ctx, "create index job_available_idx on ojs_bench.job ("+b.index+") where state = 'available'"); err != nil {
		return fmt.Errorf("make the index of the baseline: %w", err)
	}
	err := d.exec(ctx, "insert into ojs_bench.tenant select * from unnest($1::text[], $2::float8[])", people.names, people.weights)
	if err != nil {
		return fmt.Errorf("tell the baseline its tenants: %w", err)
	}
	return nil
}

// analyzeBaseline collects statistics, so that the planner knows a backlog that has just been loaded.
func (d *database) analyzeBaseline(ctx context.Context) error {
	if err := d.exec(ctx, "vacuum analyze ojs_bench.job, ojs_bench.tenant"); err != nil {
		return fmt.Errorf("analyze the baseline: %w", err)
	}
	return nil
}

const baselineAck = `
	update ojs_bench.job set state = 'completed', finished_at = clock_timestamp(), lease = null, lease_expires_at = null
	where id = any ($1::uuid[]) and state = 'active'`

// baselineWorker takes jobs from the baseline.
type baselineWorker struct {
	conn     *pgx.Conn
	fetchSQL string
}

// baselineWorker returns a worker of the baseline, with a connection of its own.
func (d *database) baselineWorker(ctx context.Context) (worker, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &baselineWorker{conn, d.baseline.fetch()}, nil
}

func (w *baselineWorker) fetch(ctx context.Context, name string, count int) ([]job, error) {
	return queryJobs(ctx, w.conn, count, nil, w.fetchSQL, queue, count, name)
}

func (w *baselineWorker) ack(ctx context.Context, jobs []job) error {
	ids := make([]pgtype.UUID, len(jobs))
	for i := range jobs {
		ids[i] = pgtype.UUID{Bytes: jobs[i].id, Valid: true}
	}
	tag, err := w.conn.Exec(ctx, baselineAck, ids)
	if err == nil && int(tag.RowsAffected()) != len(jobs) {
		err = fmt.Errorf("the baseline acknowledged %d of %d jobs", tag.RowsAffected(), len(jobs))
	}
	return err
}

func (w *baselineWorker) close() { _ = w.conn.Close(context.Background()) }

// queryJobs receives whole jobs and reads the fields that a worker needs (arguments, id, lease), and
// the tenant for the judgement of fairness. The cost of reading belongs to the client, so it is kept
// low, in the same way for the baseline and for ojs-pg.
func queryJobs(ctx context.Context, conn *pgx.Conn, count int, tenants map[string]int32, sql string, args ...any) ([]job, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	jobs := make([]job, 0, count)
	for rows.Next() {
		raw := rows.RawValues()
		if len(raw[columnID]) != 16 || len(raw[columnLease]) != 16 {
			return nil, errors.New("the job is not in the form that a client asks for")
		}
		j := job{id: [16]byte(raw[columnID]), lease: [16]byte(raw[columnLease]), args: bytes.Clone(raw[columnArgs])}
		if tenants != nil {
			j.tenant = tenants[string(raw[columnTenantID])]
		}
		jobs = append(jobs, j)
	}
	return jobs, rows.Err()
}
