-- name: QueueStats :many
select queue, paused, tenants, available, active, scheduled, pending, retryable, completed, cancelled, discarded, failed, total_jobs,
    coalesce(extract(epoch from oldest_wait), 0)::float8 as oldest_wait_seconds
from ojs.queue_stats
where queue = coalesce(sqlc.narg('queue')::text, queue)
order by queue;

-- name: ShardStats :many
select s.queue, q.paused, s.available, s.active, s.scheduled, s.pending, s.retryable, s.completed, s.cancelled, s.discarded, s.failed, s.total_jobs,
    coalesce(extract(epoch from s.oldest_wait), 0)::float8 as oldest_wait_seconds
from ojs.shard_stats s left join ojs.queue q on q.queue = s.queue
where s.tenant_id = @tenant::text and s.queue = coalesce(sqlc.narg('queue')::text, s.queue)
order by s.queue;

-- name: PauseQueue :one
select * from ojs.pause_queue(@queue::text);

-- name: ResumeQueue :one
select * from ojs.resume_queue(@queue::text);

-- name: Dispatch :one
select * from ojs.dispatch;

-- name: HoldDispatch :one
select * from ojs.hold_dispatch();

-- name: ResumeDispatch :one
select * from ojs.resume_dispatch();

-- name: ConfiguredQueue :many
select * from ojs.queue where queue = @queue::text;

-- name: ConfigureQueue :one
select * from ojs.configure_queue(@queue::text, @config::jsonb);

-- name: DeleteQueue :exec
select ojs.delete_queue(@queue::text, @strategy::text);

-- name: TenantStats :many
select s.tenant_id, t.priority_boost, t.created_at, s.weight::numeric as weight, s.backlog as available, s.active, s.scheduled, s.pending, s.retryable,
    s.completed, s.cancelled, s.discarded, s.failed, s.total_jobs, s.dispatched, coalesce(extract(epoch from s.oldest_wait), 0)::float8 as oldest_wait_seconds,
    coalesce(s.deficit, 0)::float8 as deficit, coalesce(s.effective_share, 0)::float8 as effective_share, coalesce(s.actual_share, 0)::float8 as actual_share
from ojs.tenant_stats s left join ojs.tenant t on t.tenant_id = s.tenant_id
where s.tenant_id = coalesce(sqlc.narg('tenant')::text, s.tenant_id)
order by s.tenant_id;

-- name: ConfigureTenant :one
select * from ojs.configure_tenant(@tenant::text, sqlc.narg('weight')::numeric, sqlc.narg('priority_boost')::int);

-- name: Events :many
select e.id::text as id, e.type::text as type, e.at::timestamptz as at, e.tenant_id::text as tenant_id, e.queue::text as queue, e.subject::text as subject, e.data::jsonb as data
from ojs.events(sqlc.narg('types')::text[], sqlc.narg('queues')::text[], @max_rows::int, sqlc.narg('tenant')::text) e(id, type, at, tenant_id, queue, subject, data);
