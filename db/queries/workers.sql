-- name: Fetch :many
select * from ojs.fetch(@queues::text[], @count::int, sqlc.narg('worker_id')::text, sqlc.narg('visibility_timeout_ms')::int, sqlc.narg('tenant')::text);

-- name: FetchMany :many
select * from ojs.fetch_many(@queues::text[], @counts::int[], @worker_ids::text[], @visibility_timeouts_ms::int[], sqlc.narg('tenant')::text);

-- name: Ack :one
select * from ojs.ack(@id::uuid, sqlc.narg('lease')::uuid, sqlc.narg('result')::json, sqlc.narg('worker_id')::text, sqlc.narg('tenant')::text);

-- name: Nack :one
select * from ojs.nack(@id::uuid, @error::jsonb, sqlc.narg('lease')::uuid, sqlc.narg('worker_id')::text, @requeue::boolean, sqlc.narg('tenant')::text);

-- name: Heartbeat :many
select * from ojs.heartbeat(@worker_id::text, @ids::uuid[], sqlc.narg('visibility_timeout_ms')::int, sqlc.narg('tenant')::text);

-- name: Release :one
select * from ojs.release(@id::uuid, @lease::uuid);

-- name: Settle :many
select s.n, coalesce(s.sqlstate, '') as sqlstate, coalesce(s.message, '') as message, s.detail,
    coalesce(s.state, 'available') as state, coalesce(s.attempt, 0) as attempt, s.lease, s.started_at, s.lease_expires_at, s.finished_at, s.retry_at,
    coalesce(s.enqueued_at, 'epoch') as enqueued_at, s.worker_id, s.errors, s.result, s.seq, coalesce(s.tenant_id, '') as tenant_id,
    coalesce(s.id, '00000000-0000-0000-0000-000000000000') as id, coalesce(s.queue, '') as queue, coalesce(s.type, '') as type,
    coalesce(s.priority, 0) as priority, coalesce(s.max_attempts, 0) as max_attempts, coalesce(s.created_at, 'epoch') as created_at,
    s.scheduled_at, s.expires_at, s.timeout_ms, s.visibility_timeout_ms, s.tags, s.args, s.meta, s.retry, s.options, s.extra
from ojs.settle(@settlements::json, @jobs::boolean) s;
