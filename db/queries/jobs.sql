-- name: EnqueueMany :many
select * from ojs.enqueue_many(@jobs::json, sqlc.narg('tenant')::text);

-- name: JobInfo :one
select * from ojs.job_info(@id::uuid, sqlc.narg('tenant')::text);

-- name: Cancel :one
select * from ojs.cancel(@id::uuid, sqlc.narg('tenant')::text);

-- name: Activate :one
select * from ojs.activate(@id::uuid, sqlc.narg('tenant')::text);

-- name: EnqueueEach :many
select s.n, coalesce(s.sqlstate, '') as sqlstate, coalesce(s.message, '') as message, s.detail,
    coalesce(s.state, 'available') as state, coalesce(s.attempt, 0) as attempt, s.lease, s.started_at, s.lease_expires_at, s.finished_at, s.retry_at,
    coalesce(s.enqueued_at, 'epoch') as enqueued_at, s.worker_id, s.errors, s.result, s.seq, coalesce(s.tenant_id, '') as tenant_id,
    coalesce(s.id, '00000000-0000-0000-0000-000000000000') as id, coalesce(s.queue, '') as queue, coalesce(s.type, '') as type,
    coalesce(s.priority, 0) as priority, coalesce(s.max_attempts, 0) as max_attempts, coalesce(s.created_at, 'epoch') as created_at,
    s.scheduled_at, s.expires_at, s.timeout_ms, s.visibility_timeout_ms, s.tags, s.args, s.meta, s.retry, s.options, s.extra
from ojs.enqueue_each(@jobs::json) s;
