-- name: Beat :one
with beat as (
    select ojs.beat(@worker_id::text, @ids::uuid[], sqlc.narg('state')::text, sqlc.narg('visibility_timeout_ms')::int,
        sqlc.narg('tenant')::text, sqlc.narg('active')::int, sqlc.narg('hostname')::text, sqlc.narg('pid')::int,
        sqlc.narg('queues')::text[], sqlc.narg('concurrency')::int, sqlc.narg('labels')::text[], sqlc.narg('version')::text,
        sqlc.narg('metadata')::jsonb, sqlc.narg('started_at')::timestamptz, sqlc.narg('pool')::text, sqlc.narg('strategy')::text,
        sqlc.narg('weights')::jsonb) as done)
select (beat.done).state::text as state, (beat.done).jobs_extended::uuid[] as jobs_extended,
    (beat.done).server_time::timestamptz as server_time,
    (beat.done).heartbeat_interval_ms::int as heartbeat_interval_ms, (beat.done).heartbeat_timeout_ms::int as heartbeat_timeout_ms
from beat;

-- name: RegisterWorker :one
with beat as (
    select ojs.register_worker(@worker_id::text, sqlc.narg('hostname')::text, sqlc.narg('pid')::int, sqlc.narg('queues')::text[],
        sqlc.narg('concurrency')::int, sqlc.narg('labels')::text[], sqlc.narg('version')::text, sqlc.narg('metadata')::jsonb,
        sqlc.narg('started_at')::timestamptz, sqlc.narg('tenant')::text, sqlc.narg('pool')::text, sqlc.narg('strategy')::text,
        sqlc.narg('weights')::jsonb) as done)
select (beat.done).state::text as state, (beat.done).server_time::timestamptz as server_time,
    (beat.done).heartbeat_interval_ms::int as heartbeat_interval_ms, (beat.done).heartbeat_timeout_ms::int as heartbeat_timeout_ms
from beat;

-- name: DeregisterWorker :one
select ojs.deregister_worker(@worker_id::text, sqlc.narg('tenant')::text)::boolean;

-- name: DirectWorker :one
select w.worker_id from ojs.direct_worker(@worker_id::text, @directive::text, sqlc.narg('tenant')::text) w;

-- name: DirectByTestJob :many
-- Directs a worker as a job of a conformance run says in meta.test_directive, if the worker holds
-- one.
select w.directive::text as directive from ojs.jobs j
cross join lateral ojs.direct_worker(@worker_id::text, j.meta ->> 'test_directive', sqlc.narg('tenant')::text) w
where j.id = any (@ids::uuid[]) and (j.tenant_id = sqlc.narg('tenant')::text or sqlc.narg('tenant')::text is null)
    and j.meta ->> 'test_directive' in ('quiet', 'terminate')
limit 1;

-- name: DirectWorkers :one
select ojs.direct_workers(@directive::text, sqlc.narg('tenant')::text)::int;

-- name: RemoveWorker :one
select ojs.remove_worker(@worker_id::text, sqlc.narg('tenant')::text)::int;

-- name: Workers :many
-- The workers of a tenant, or all; with a name, the worker that ojs.worker_info finds. A page ends
-- before the worker that would make it larger than max_bytes, but has at least one.
select w.worker_id as id, w.worker_id, w.tenant_id, case when w.stale then 'stale' else w.state end::text as state, w.directive,
    w.hostname, w.pid, coalesce(w.queues, '{}')::text[] as queues, w.concurrency, w.active_jobs,
    coalesce(w.active_job_ids, '{}')::uuid[] as active_job_ids, coalesce(w.labels, '{}')::text[] as labels, w.version, w.metadata,
    w.pool, w.strategy, w.weights,
    w.started_at, w.registered_at, w.last_heartbeat_at
from (
    select k.*, row_number() over page as place,
        sum(octet_length(concat(k.worker_id, k.hostname, k.version, k.queues, k.labels, k.metadata, k.active_job_ids))) over page as size
    from (
        select v.* from (
            select * from ojs.workers
            where sqlc.narg('worker_id')::text is null and (tenant_id = sqlc.narg('tenant')::text or sqlc.narg('tenant')::text is null)
            union all
            select * from ojs.worker_info(sqlc.narg('worker_id')::text, sqlc.narg('tenant')::text)
            where sqlc.narg('worker_id')::text is not null
        ) v
        order by v.tenant_id nulls first, v.worker_id
        limit @max_rows::int offset @skip::int
    ) k
    window page as (order by k.tenant_id nulls first, k.worker_id)
) w
where w.place = 1 or w.size <= @max_bytes::bigint
order by w.tenant_id nulls first, w.worker_id;

-- name: WorkerStates :many
select case when w.stale then 'stale' else w.state end::text as state, count(*)::int as workers
from ojs.workers w where w.tenant_id = sqlc.narg('tenant')::text or sqlc.narg('tenant')::text is null group by 1;

-- name: WorkerJobs :many
select j.id, j.tenant_id, j.type, j.queue, j.attempt, j.started_at, j.lease_expires_at
from ojs.jobs j
where j.id = any (@ids::uuid[]) and j.state = 'active' and j.worker_id = @worker_id::text
    and (j.tenant_id = sqlc.narg('tenant')::text or sqlc.narg('tenant')::text is null)
order by j.started_at, j.id;
