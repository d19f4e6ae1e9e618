-- name: JobInfo :one
select * from ojs.job_info(@id::uuid, sqlc.narg('tenant')::text);

-- name: Cancel :one
select * from ojs.cancel(@id::uuid, sqlc.narg('tenant')::text);

-- name: CancelledFrom :one
-- The state in which a job was cancelled, from the journal, newest rows first: the cancellation is among them.
select r.from_state::text as state from ojs.release r
where r.tenant_id = @tenant::text and r.job_id = @id::uuid and r.to_state = 'cancelled' order by r.xid desc, r.seq desc limit 1;

-- name: Activate :one
select * from ojs.activate(@id::uuid, sqlc.narg('tenant')::text);

-- name: JobResults :many
select r.id, r.state, r.result::json as result, r.error::jsonb as error, r.result_stored_at,
    coalesce(r.result_expires_at, 'epoch')::timestamptz as result_expires_at,
    coalesce(r.result_size_bytes, 0)::int as result_size_bytes, r.pruned::boolean as pruned
from ojs.job_results(@ids::uuid[], sqlc.narg('tenant')::text, @max_bytes::bigint) r;

-- name: JobsOver :many
-- Which of the given jobs have ended or do not exist. Tenant '' means any tenant.
select w.id::uuid as id, w.tenant_id::text as tenant_id
from (select unnest(@ids::uuid[]) as id, unnest(@tenants::text[]) as tenant_id) w
where not exists (select from ojs.job j where j.id = w.id and j.finished_at is null and w.tenant_id in ('', j.tenant_id));

-- name: JobsElsewhere :many
-- Which of the given jobs, of a tenant or of any, are in other queues than these.
select j.id::uuid as id
from (select id, tenant_id, queue from ojs.job union all select id, tenant_id, queue from ojs.dead_job) j
where j.id = any (@ids::uuid[]) and (j.tenant_id = sqlc.narg('tenant')::text) is not false and j.queue <> all (@queues::text[]);
