-- name: QueueNames :one
-- A page of names, and how many there are: names are cheap, numbers are not.
with f as materialized (
    select n.queue as name from ojs._queue_names n
    where sqlc.narg('tenant')::text is null
        or n.queue in (select t.queue from ojs.shard_stats t where t.tenant_id = sqlc.narg('tenant')::text)
)
select array(select f.name from f order by f.name limit @max_rows::int offset @skip::int)::text[] as names, count(*) as total from f;

-- name: Queues :many
-- Over all tenants, or one tenant's part of them; what holds nothing of the tenant's is not among them then.
select s.queue as name, case when s.paused then 'paused' else 'active' end::text as status, s.paused, s.total_jobs,
    coalesce(extract(epoch from s.oldest_wait) * 1000, 0)::bigint as oldest_wait_ms,
    (s.available + s.scheduled + s.pending)::bigint as depth, s.available, s.active, s.scheduled,
    s.pending, s.retryable, s.completed, s.cancelled, s.discarded, s.failed as failed_attempts
from (
    select * from ojs.queue_stats where sqlc.narg('tenant')::text is null
    union all
    select t.queue, t.scheduled, t.available, t.pending, t.active, t.retryable, t.completed, t.cancelled, t.discarded, t.oldest_wait,
        t.total_jobs, t.failed, 1, coalesce(q.paused, false)
    from ojs.shard_stats t left join ojs.queue q on q.queue = t.queue
    where t.tenant_id = sqlc.narg('tenant')::text
) s
where s.queue = any (@names::text[])
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

-- name: QueueConfig :many
select q.queue as name, case when q.paused then 'paused' else 'active' end::text as state, q.config, q.created_at, q.updated_at
from ojs.queue q where q.queue = @queue::text;

-- name: ConfigureQueue :one
select q.queue as name, case when q.paused then 'paused' else 'active' end::text as state, q.config, q.created_at, q.updated_at
from ojs.configure_queue(@queue::text, @config::jsonb, @is_new::boolean) q;

-- name: DeleteQueue :exec
select ojs.delete_queue(@queue::text, @strategy::text);

-- name: TenantNames :one
-- As QueueNames.
with f as materialized (
    select n.tenant_id as name from ojs._tenant_names n
    where sqlc.narg('tenant')::text is null or n.tenant_id = sqlc.narg('tenant')::text
)
select array(select f.name from f order by f.name limit @max_rows::int offset @skip::int)::text[] as names, count(*) as total from f;

-- name: Tenants :many
select s.tenant_id as id, s.weight::numeric as weight, coalesce(t.priority_boost, 0)::int as priority_boost, t.created_at,
    coalesce(s.effective_share, 0)::float8 as effective_share, coalesce(s.actual_share, 0)::float8 as actual_share,
    coalesce(s.deficit, 0)::float8 as deficit, s.dispatched, s.total_jobs,
    coalesce(extract(epoch from s.oldest_wait) * 1000, 0)::bigint as oldest_wait_ms,
    (s.backlog + s.scheduled + s.pending)::bigint as depth, s.backlog as available, s.active, s.scheduled, s.pending, s.retryable,
    s.completed, s.cancelled, s.discarded, s.failed as failed_attempts
from ojs.tenant_stats s left join ojs.tenant t on t.tenant_id = s.tenant_id
where s.tenant_id = any (@names::text[])
order by s.tenant_id;

-- name: ConfigureTenant :one
select * from ojs.configure_tenant(@tenant::text, sqlc.narg('weight')::numeric, sqlc.narg('priority_boost')::int);

-- name: Events :many
select e.id::text as id, e.type::text as type, e.at::timestamptz as at, e.tenant_id::text as tenant_id,
    e.queue::text as queue, e.subject::text as subject, e.data::jsonb as data
from ojs.events(sqlc.narg('types')::text[], sqlc.narg('queues')::text[], @max_rows::int, sqlc.narg('tenant')::text)
    e(id, type, at, tenant_id, queue, subject, data);
