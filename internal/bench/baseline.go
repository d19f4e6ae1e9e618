//go:build unix

package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// jobColumns are those of ojs.job, in the order of sqlcgen.OjsJob.
var jobColumns = strings.Fields(`state attempt lease started_at lease_expires_at finished_at retry_at enqueued_at worker_id errors result seq tenant_id id queue type
	priority max_attempts created_at scheduled_at expires_at timeout_ms visibility_timeout_ms tags args meta retry options extra`)

var jobList = strings.Join(jobColumns, ", ")

func scanJob(rows pgx.Rows, j *sqlcgen.OjsJob) error {
	return rows.Scan(&j.State, &j.Attempt, &j.Lease, &j.StartedAt, &j.LeaseExpiresAt, &j.FinishedAt, &j.RetryAt, &j.EnqueuedAt, &j.WorkerID, &j.Errors, &j.Result,
		&j.Seq, &j.TenantID, &j.ID, &j.Queue, &j.Type, &j.Priority, &j.MaxAttempts, &j.CreatedAt, &j.ScheduledAt, &j.ExpiresAt, &j.TimeoutMs,
		&j.VisibilityTimeoutMs, &j.Tags, &j.Args, &j.Meta, &j.Retry, &j.Options, &j.Extra)
}

// baselineSchema is the queue of a competent person who does not ask who is next: one table with the columns of ours, first in first out, an index on what
// waits, and vacuum as eager as on ours. bare is what enqueueing is compared with: the same columns and key, and nothing that fires.
const baselineSchema = `
	create schema ojs_bench;
	comment on schema ojs_bench is '` + mark + `';
	create table ojs_bench.job (like ojs.job including defaults);
	create sequence ojs_bench.job_seq owned by ojs_bench.job.seq;
	alter table ojs_bench.job alter seq set default nextval('ojs_bench.job_seq'), alter id set default gen_random_uuid(),
		alter enqueued_at set default clock_timestamp(), alter created_at set default clock_timestamp(), alter tenant_id drop default,
		add primary key (id);
	alter table ojs_bench.job set (fillfactor = 70, toast_tuple_target = 512, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
	create index job_available_idx on ojs_bench.job (queue, priority desc, seq) where state = 'available';
	create table ojs_bench.bare (like ojs_bench.job including defaults, primary key (id, tenant_id));
	create sequence ojs_bench.bare_seq owned by ojs_bench.bare.seq;
	alter table ojs_bench.bare alter seq set default nextval('ojs_bench.bare_seq');
	grant usage on schema ojs_bench to ojs_service;
	grant select, insert, update on all tables in schema ojs_bench to ojs_service;
	grant usage on all sequences in schema ojs_bench to ojs_service;`

const baselineFetch = `
	update ojs_bench.job
	set state = 'active', attempt = attempt + 1, lease = gen_random_uuid(), started_at = clock_timestamp(), lease_expires_at = clock_timestamp() + interval '30 seconds', worker_id = $3
	where id in (select id from ojs_bench.job where queue = $1 and state = 'available' order by priority desc, seq limit $2 for update skip locked)
	returning `

const baselineAck = `
	update ojs_bench.job set state = 'completed', finished_at = clock_timestamp(), lease = null, lease_expires_at = null
	where id = any ($1::uuid[]) and state = 'active'`

// baselineWorker takes jobs as people do who have never heard of fairness.
type baselineWorker struct{ conn *pgx.Conn }

func (d *database) baselineWorker(ctx context.Context) (worker, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &baselineWorker{conn}, nil
}

func (w *baselineWorker) fetch(ctx context.Context, name string, count int) ([]sqlcgen.OjsJob, error) {
	return queryJobs(ctx, w.conn, count, baselineFetch+jobList, queue, count, name)
}

func (w *baselineWorker) ack(ctx context.Context, jobs []sqlcgen.OjsJob) error {
	ids := make([]string, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].ID
	}
	tag, err := w.conn.Exec(ctx, baselineAck, ids)
	if err == nil && int(tag.RowsAffected()) != len(jobs) {
		err = fmt.Errorf("the baseline acknowledged %d of %d jobs", tag.RowsAffected(), len(jobs))
	}
	return err
}

func (w *baselineWorker) close() { _ = w.conn.Close(context.Background()) }

// queryJobs reads whole jobs, as every worker has to.
func queryJobs(ctx context.Context, conn *pgx.Conn, count int, sql string, args ...any) ([]sqlcgen.OjsJob, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	jobs := make([]sqlcgen.OjsJob, 0, count)
	for rows.Next() {
		jobs = append(jobs, sqlcgen.OjsJob{})
		if err := scanJob(rows, &jobs[len(jobs)-1]); err != nil {
			return nil, err
		}
	}
	return jobs, rows.Err()
}
