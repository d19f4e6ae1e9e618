-- name: QueueNames :one
-- A page of queues and how many there are. Reading names is cheap, reading numbers is not.
with f as materialized (
    select n.queue as name from ojs._queue_names n where sqlc.narg('tenant')::text is null
    union all
    select t.queue from ojs.shard_stats t where t.tenant_id = sqlc.narg('tenant')::text
)
select array(select f.name from f order by f.name limit @max_rows::int offset @skip::int)::text[] as names, count(*) as total from f;

-- name: Queues :many
-- Over all tenants, or of one tenant; then queues without jobs of that tenant are left out.
select s.queue as name, case when s.paused then 'paused' else 'active' end::text as status, s.paused::boolean as paused, s.total_jobs,
    coalesce(extract(epoch from s.oldest_wait) * 1000, 0)::bigint as oldest_wait_ms,
    (s.available + s.scheduled + s.pending)::bigint as depth, s.available, s.active, s.scheduled,
    s.pending, s.retryable, s.completed, s.cancelled, s.discarded, s.failed as failed_attempts, k.created_at
from (
    select * from ojs.queue_stats where sqlc.narg('tenant')::text is null
    union all
    select t.queue, t.scheduled, t.available, t.pending, t.active, t.retryable, t.completed, t.cancelled, t.discarded, t.oldest_wait,
        t.total_jobs, t.failed, 1, r.paused_at is not null, t.failed_jobs
    from ojs.shard_stats t left join ojs.rule r on r.tenant_id = '' and r.queue = t.queue
    where t.tenant_id = sqlc.narg('tenant')::text
) s
-- A queue exists since it was configured or had its first job; for a tenant, since the tenant's
-- first job in it.
left join lateral (
    (select h.created_at from ojs.shard h where h.queue = s.queue and sqlc.narg('tenant')::text is null order by h.created_at limit 1)
    union all
    select h.created_at from ojs.shard h where h.queue = s.queue and h.tenant_id = sqlc.narg('tenant')::text
    union all
    select q.created_at from ojs.queue q where q.queue = s.queue and sqlc.narg('tenant')::text is null
    union all
    -- A queue may be only paused: then this is all that is known of it.
    select p.paused_at from ojs.rule p
    where p.tenant_id = '' and p.queue = s.queue and p.paused_at is not null and sqlc.narg('tenant')::text is null
    order by created_at limit 1
) k on true
where s.queue = any (@names::text[])
order by s.queue;

-- name: QueueRates :many
-- Per queue, over all tenants: jobs that completed or failed for good in the last hour and minute,
-- attempts that failed, and how long the jobs handed out in the last hour had waited.
with lately as materialized (
    select l.name, l.sums from ojs._lately('queue') l(name, sums)
)
select s.queue as name, h.completed::bigint as completed_last_hour, h.failed_jobs::bigint as failed_last_hour,
    h.failed::bigint as attempts_failed_last_hour, (m.completed + m.failed_jobs)::bigint as processed_per_minute,
    m.failed_jobs::bigint as failed_per_minute, m.failed::bigint as attempts_failed_per_minute,
    round((m.completed + m.failed_jobs) / 60.0, 2)::float8 as throughput_per_second,
    coalesce(p.waited_1h * 1000 / nullif(p.jobs_1h, 0), 0)::bigint as avg_wait_ms,
    coalesce(extract(epoch from ojs._percentile(p.waits_1h, 0.5)) * 1000, 0)::bigint as p50_wait_ms,
    coalesce(extract(epoch from ojs._percentile(p.waits_1h, 0.95)) * 1000, 0)::bigint as p95_wait_ms,
    coalesce(extract(epoch from ojs._percentile(p.waits_1h, 0.99)) * 1000, 0)::bigint as p99_wait_ms
from ojs.queue_stats s
left join lately l on l.name = s.queue
cross join lateral ojs._pace('queue', s.queue, l.sums)
    p(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h)
cross join lateral (select row(s.total_jobs, 0, s.completed, s.cancelled, s.failed_jobs, s.failed)::ojs.counts as counts) n
cross join lateral ojs._counts_since(s.queue, '', n.counts, ojs.now() - interval '1 hour') h
cross join lateral ojs._counts_since(s.queue, '', n.counts, ojs.now() - interval '1 minute') m
where s.queue = any (@names::text[]);

-- name: Pause :one
select * from ojs.pause(sqlc.narg('queue')::text, sqlc.narg('tenant')::text, sqlc.narg('reason')::text);

-- name: Resume :one
select * from ojs.resume(sqlc.narg('queue')::text, sqlc.narg('tenant')::text);

-- name: Rules :many
select r.tenant_id, r.queue, r.max_concurrency, r.active, r.paused_at, r.paused_by, r.reason, r.limit_reason
from ojs.rule_stats r where sqlc.narg('tenant')::text is null or r.tenant_id = sqlc.narg('tenant')::text
order by r.tenant_id, r.queue limit @max_rows::int offset @skip::int;

-- name: RuleCount :one
select count(*) from ojs.rule_stats r where sqlc.narg('tenant')::text is null or r.tenant_id = sqlc.narg('tenant')::text;

-- name: LimitConcurrency :one
select * from ojs.limit_concurrency(sqlc.narg('max_concurrency')::int, sqlc.narg('tenant')::text, sqlc.narg('queue')::text,
    sqlc.narg('reason')::text);

-- name: Dispatch :one
select * from ojs.dispatch;

-- name: HoldDispatch :one
select * from ojs.hold_dispatch();

-- name: ResumeDispatch :one
select * from ojs.resume_dispatch();

-- name: QueueConfig :many
select q.queue as name, case when r.paused_at is not null then 'paused' else 'active' end::text as state, q.config, q.created_at,
    q.updated_at
from ojs._configured(@queue::text, sqlc.narg('tenant')::text is null) q
left join ojs.rule r on r.tenant_id = '' and r.queue = q.queue;

-- name: QueuePause :many
-- Since when a queue is paused; no row: it is not paused.
select r.paused_at from ojs.rule r where r.tenant_id = '' and r.queue = @queue::text and r.paused_at is not null;

-- name: ConfigureQueue :one
select q.queue as name, case when r.paused_at is not null then 'paused' else 'active' end::text as state, q.config, q.created_at,
    q.updated_at
from ojs.configure_queue(@queue::text, @config::jsonb, @is_new::boolean) q
left join ojs.rule r on r.tenant_id = '' and r.queue = q.queue;

-- name: DeleteQueue :exec
select ojs.delete_queue(@queue::text, @strategy::text);

-- name: TenantNames :one
-- A page of tenants and how many there are, as QueueNames.
with f as materialized (
    select n.tenant_id as name from ojs._tenant_names n where sqlc.narg('tenant')::text is null
    union all
    select n.tenant_id from ojs._tenant_names n where n.tenant_id = sqlc.narg('tenant')::text
)
select array(select f.name from f order by f.name limit @max_rows::int offset @skip::int)::text[] as names, count(*) as total from f;

-- name: Tenants :many
select s.tenant_id as id, s.weight::numeric as weight, coalesce(t.priority_boost, 0)::int as priority_boost,
    coalesce(t.max_priority, 100)::int as max_priority, coalesce(t.over_priority, 'refuse')::text as over_priority, t.created_at, x.tier,
    coalesce(s.effective_share, 0)::float8 as effective_share, coalesce(s.actual_share, 0)::float8 as actual_share,
    coalesce(s.deficit, 0)::float8 as deficit, s.dispatched, s.total_jobs,
    coalesce(extract(epoch from s.oldest_wait) * 1000, 0)::bigint as oldest_wait_ms,
    case when e.at is not null then 'deregistering'
        when t.tenant_id is null and s.total_jobs <= v.total then 'leaving'
        when u.at is not null then 'suspended' when r.paused_at is not null then 'paused'
        else 'active' end::text as state,
    (s.backlog + s.scheduled + s.pending)::bigint as depth, s.backlog as available, s.active, s.scheduled, s.pending, s.retryable,
    s.completed, s.cancelled, s.discarded, s.failed as failed_attempts, r.max_concurrency, r.paused_at,
    coalesce((select jsonb_object_agg(l.resource, ojs._limit_json(l)) from ojs.limits l where l.tenant_id = s.tenant_id and l.queue = ''
        and l.resource <> 'throttled_rate'),
        '{}')::jsonb as limits,
    (select count(distinct y.queue) from ojs.tally y where y.tenant_id = s.tenant_id)::bigint as queues,
    (select count(*) from ojs.worker w where w.tenant_id = s.tenant_id)::bigint as workers,
    m.entered::bigint as enqueued_1m, (m.completed + m.failed_jobs)::bigint as processed_1m, m.failed::bigint as attempts_failed_1m,
    d.completed::bigint as completed_24h, d.failed_jobs::bigint as failed_24h, d.failed::bigint as attempts_failed_24h,
    ojs.now()::timestamptz as as_of
from ojs.tenant_stats s left join ojs.tenant t on t.tenant_id = s.tenant_id
cross join lateral (select row(s.total_jobs, s.dispatched, s.completed, s.cancelled, s.failed_jobs, s.failed)::ojs.counts as counts) n
cross join lateral ojs._counts_since('', s.tenant_id, n.counts, ojs.now() - interval '1 minute') m
cross join lateral ojs._counts_since('', s.tenant_id, n.counts, ojs.now() - interval '1 day') d
left join ojs.rule r on r.tenant_id = s.tenant_id and r.queue = ''
left join ojs.suspended u on u.tenant_id = s.tenant_id
left join ojs.departure e on e.tenant_id = s.tenant_id
left join ojs.leaving v on v.tenant_id = s.tenant_id and v.gone_at is null
left join ojs.tenant_tier x on x.tenant_id = s.tenant_id
where s.tenant_id = any (@names::text[])
order by s.tenant_id;

-- name: Stats :one
-- Over all tenants, or of one.
select n.scheduled::bigint as scheduled, n.available::bigint as available, n.pending::bigint as pending, n.active::bigint as active,
    n.retryable::bigint as retryable, n.completed::bigint as completed, n.cancelled::bigint as cancelled, n.discarded::bigint as discarded,
    m.entered::bigint as enqueued_1m, (m.completed + m.failed_jobs)::bigint as processed_1m, m.failed_jobs::bigint as failed_1m,
    m.failed::bigint as attempts_failed_1m, ojs.now()::timestamptz as as_of
from (
    select coalesce(sum(u.scheduled), 0) as scheduled, coalesce(sum(u.available), 0) as available, coalesce(sum(u.pending), 0) as pending,
        coalesce(sum(u.active), 0) as active, coalesce(sum(u.retryable), 0) as retryable, coalesce(sum(u.completed), 0) as completed,
        coalesce(sum(u.cancelled), 0) as cancelled, coalesce(sum(u.discarded), 0) as discarded, coalesce(sum(u.total), 0) as total,
        coalesce(sum(u.dispatched), 0) as dispatched, coalesce(sum(u.failed), 0) as failed,
        coalesce(sum(u.failed_jobs), 0) as failed_jobs
    from (select * from ojs.tally union all select * from ojs._recent()) u
    where sqlc.narg('tenant')::text is null or u.tenant_id = sqlc.narg('tenant')::text
) n
cross join lateral ojs._counts_since('', coalesce(sqlc.narg('tenant')::text, ''),
    row(n.total, n.dispatched, n.completed, n.cancelled, n.failed_jobs, n.failed)::ojs.counts, ojs.now() - interval '1 minute') m;

-- name: ConfigureTenant :one
select * from ojs.configure_tenant(@tenant::text, sqlc.narg('weight')::numeric, sqlc.narg('priority_boost')::int,
    sqlc.narg('max_priority')::int, sqlc.narg('over_priority')::text);

-- name: PutTenant :one
-- A tenant as ConfigureTenant sets it and, if given, its limits, or a tier with the values that go
-- before it, in one transaction. The order of the calls is that of the locks.
select t.tenant_id
from (select count(*) from ojs.configure_limits(@tenant::text, sqlc.narg('limits')::jsonb, null, sqlc.narg('reason')::text)
    where sqlc.narg('limits')::jsonb is not null) l
cross join lateral (select count(*) from ojs.put_tenant(@tenant::text, sqlc.narg('with_tier')::jsonb, sqlc.narg('reason')::text)
    where sqlc.narg('with_tier')::jsonb is not null and l.count >= 0) w
cross join lateral (select t.tenant_id from ojs.configure_tenant(@tenant::text, sqlc.narg('weight')::numeric,
    sqlc.narg('priority_boost')::int, sqlc.narg('max_priority')::int, sqlc.narg('over_priority')::text) t where w.count >= 0) t;

-- name: ConfigureLimits :one
select coalesce(jsonb_object_agg(l.resource, ojs._limit_json(l)), '{}')::jsonb as limits
from ojs.configure_limits(@tenant::text, @limits::jsonb, sqlc.narg('queue')::text, sqlc.narg('reason')::text) l;

-- name: WeighTenant :exec
select ojs.configure_tenant(@tenant::text, sqlc.narg('weight')::numeric, p_queue => sqlc.narg('queue')::text);

-- name: Settings :one
select s.default_tenant, s.tenant_required, s.unknown_tenants, s.tenant_fairness, s.default_retry, s.unsupported, s.timeout_ms,
    s.heartbeat_timeout_ms, ojs._iso_duration(s.retention)::text as retention,
    ojs._iso_duration(s.journal_retention)::text as journal_retention, ojs._iso_duration(s.idempotency_window)::text as idempotency_window
from ojs.settings s;

-- name: PutSettings :one
select (ojs.put_settings(@config::jsonb, sqlc.narg('reason')::text)).default_tenant::text as default_tenant;

-- name: Events :many
select e.id::text as id, e.type::text as type, e.at::timestamptz as at, coalesce(e.tenant_id, '')::text as tenant_id,
    coalesce(e.queue, '')::text as queue, e.subject::text as subject, e.data::jsonb as data
from ojs.events(sqlc.narg('types')::text[], sqlc.narg('queues')::text[], @max_rows::int, sqlc.narg('tenant')::text)
    e(id, type, at, tenant_id, queue, subject, data);

-- name: BlockedTenants :many
-- Tenants with jobs of which none can be handed out now, those with the most jobs first.
select b.tenant_id, b.queue, b.available, b.active, b.why::text as why, b.since, b.detail
from ojs.blocked_tenants b
where (sqlc.narg('tenant')::text is null or b.tenant_id = sqlc.narg('tenant')::text)
    and (sqlc.narg('queue')::text is null or b.queue = sqlc.narg('queue')::text)
order by b.available desc, b.tenant_id, b.queue limit @max_rows::int offset @skip::int;

-- name: SchedulingStats :many
select s.queue as name, s.dispatched_1m::bigint as dispatch_count_1m, coalesce(s.ratio_1m, 0)::float8 as dispatch_ratio_1m,
    coalesce(extract(epoch from s.avg_wait_1m) * 1000, 0)::bigint as avg_wait_ms,
    coalesce(extract(epoch from s.p50_wait_1m) * 1000, 0)::bigint as p50_wait_ms,
    coalesce(extract(epoch from s.p95_wait_1m) * 1000, 0)::bigint as p95_wait_ms,
    coalesce(extract(epoch from s.p99_wait_1m) * 1000, 0)::bigint as p99_wait_ms,
    s.dispatched_5m::bigint as dispatch_count_5m, coalesce(s.ratio_5m, 0)::float8 as dispatch_ratio_5m,
    coalesce(extract(epoch from s.avg_wait_5m) * 1000, 0)::bigint as avg_wait_5m_ms,
    coalesce(extract(epoch from s.p50_wait_5m) * 1000, 0)::bigint as p50_wait_5m_ms,
    coalesce(extract(epoch from s.p95_wait_5m) * 1000, 0)::bigint as p95_wait_5m_ms,
    coalesce(extract(epoch from s.p99_wait_5m) * 1000, 0)::bigint as p99_wait_5m_ms,
    s.dispatched_1h::bigint as dispatch_count_1h, coalesce(s.ratio_1h, 0)::float8 as dispatch_ratio_1h,
    coalesce(extract(epoch from s.avg_wait_1h) * 1000, 0)::bigint as avg_wait_1h_ms,
    coalesce(extract(epoch from s.p50_wait_1h) * 1000, 0)::bigint as p50_wait_1h_ms,
    coalesce(extract(epoch from s.p95_wait_1h) * 1000, 0)::bigint as p95_wait_1h_ms,
    coalesce(extract(epoch from s.p99_wait_1h) * 1000, 0)::bigint as p99_wait_1h_ms,
    s.active as active_jobs, s.available as waiting_jobs, coalesce(extract(epoch from s.oldest_wait) * 1000, 0)::bigint as oldest_wait_ms
from ojs.scheduling_stats s
where s.queue = any (@names::text[])
order by s.queue;

-- name: SchedulingTotals :one
select p.jobs_1m::bigint as dispatch_count_1m, coalesce(p.waited_1m * 1000 / nullif(p.jobs_1m, 0), 0)::bigint as avg_wait_ms,
    p.jobs_5m::bigint as dispatch_count_5m, coalesce(p.waited_5m * 1000 / nullif(p.jobs_5m, 0), 0)::bigint as avg_wait_5m_ms,
    p.jobs_1h::bigint as dispatch_count_1h, coalesce(p.waited_1h * 1000 / nullif(p.jobs_1h, 0), 0)::bigint as avg_wait_1h_ms,
    ojs.now()::timestamptz as as_of
from ojs._lately('queue') l(name, sums)
cross join lateral ojs._pace('all', '', l.sums)
    p(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h)
where l.name = '';

-- name: TenantShares :many
select s.tenant_id as id, s.weight::float8 as weight, coalesce(s.ideal_share, 0)::float8 as ideal_share,
    s.dispatched_1m::bigint as dispatch_count_1m, coalesce(s.share_1m, 0)::float8 as dispatch_share_1m,
    coalesce(extract(epoch from s.avg_wait_1m) * 1000, 0)::bigint as avg_wait_ms,
    s.dispatched_5m::bigint as dispatch_count_5m, coalesce(s.share_5m, 0)::float8 as dispatch_share_5m,
    coalesce(extract(epoch from s.avg_wait_5m) * 1000, 0)::bigint as avg_wait_5m_ms,
    s.dispatched_1h::bigint as dispatch_count_1h, coalesce(s.share_1h, 0)::float8 as dispatch_share_1h,
    coalesce(extract(epoch from s.avg_wait_1h) * 1000, 0)::bigint as avg_wait_1h_ms,
    s.active as active_jobs, s.available as waiting_jobs
from ojs.tenant_shares s
where s.tenant_id = any (@names::text[])
order by s.tenant_id;

-- name: QueueGauges :many
-- For metrics, whose series must not grow without bounds: the queues after the first max_queues, by
-- name, are added up.
select case when s.n <= @max_queues::int then s.queue else '_other' end::text as queue, sum(s.available)::bigint as available,
    sum(s.active)::bigint as active, coalesce(extract(epoch from max(s.oldest_wait)), 0)::float8 as oldest_wait_seconds,
    coalesce(sum(s.ratio_1m), 0)::float8 as dispatch_ratio
from (select s.*, row_number() over (order by s.queue) as n from ojs.scheduling_stats s) s
group by 1 order by 1;

-- name: Pools :many
select p.name as id, p.name, p.queues, p.max_concurrency as concurrency, p.strategy, p.weights, p.isolated, p.tenants,
    p.starvation_prevention, p.active_workers, p.active_jobs, coalesce(p.utilization, 0)::float8 as utilization, p.dispatched,
    p.dispatched_1m::bigint as dispatch_count_1m, coalesce(p.ratio_1m, 0)::float8 as dispatch_ratio_1m,
    coalesce(extract(epoch from p.avg_wait_1m) * 1000, 0)::bigint as avg_wait_ms,
    coalesce(extract(epoch from p.p50_wait_1m) * 1000, 0)::bigint as p50_wait_ms,
    coalesce(extract(epoch from p.p95_wait_1m) * 1000, 0)::bigint as p95_wait_ms,
    coalesce(extract(epoch from p.p99_wait_1m) * 1000, 0)::bigint as p99_wait_ms,
    p.dispatched_5m::bigint as dispatch_count_5m, coalesce(p.ratio_5m, 0)::float8 as dispatch_ratio_5m,
    coalesce(extract(epoch from p.avg_wait_5m) * 1000, 0)::bigint as avg_wait_5m_ms,
    coalesce(extract(epoch from p.p50_wait_5m) * 1000, 0)::bigint as p50_wait_5m_ms,
    coalesce(extract(epoch from p.p95_wait_5m) * 1000, 0)::bigint as p95_wait_5m_ms,
    coalesce(extract(epoch from p.p99_wait_5m) * 1000, 0)::bigint as p99_wait_5m_ms,
    p.dispatched_1h::bigint as dispatch_count_1h, coalesce(p.ratio_1h, 0)::float8 as dispatch_ratio_1h,
    coalesce(extract(epoch from p.avg_wait_1h) * 1000, 0)::bigint as avg_wait_1h_ms,
    coalesce(extract(epoch from p.p50_wait_1h) * 1000, 0)::bigint as p50_wait_1h_ms,
    coalesce(extract(epoch from p.p95_wait_1h) * 1000, 0)::bigint as p95_wait_1h_ms,
    coalesce(extract(epoch from p.p99_wait_1h) * 1000, 0)::bigint as p99_wait_1h_ms,
    p.created_at, p.updated_at
from ojs.pool_stats p
where p.name = sqlc.narg('name')::text or sqlc.narg('name')::text is null
order by p.name limit @max_rows::int offset @skip::int;

-- name: PoolCount :one
select count(*) from ojs.pool_stats;

-- name: ConfigurePool :one
select p.name from ojs.configure_pool(@name::text, @config::jsonb) p;

-- name: ConfigurePools :many
select p.name from ojs.configure_pools(@document::jsonb) p;

-- name: DeletePool :one
select p.name from ojs.delete_pool(@name::text, @confirm::boolean) p;

-- name: PoolGauges :many
-- For metrics: the use of pools, whose number operators decide; how long ago statistics were rolled
-- up, and how often queues were starved.
select 'utilization' as what, p.name as subject, (coalesce(u.active, 0)::float8 / p.max_concurrency)::float8 as value
from ojs.pool p left join ojs._pool_use u on u.pool = p.id where p.max_concurrency is not null
union all
select 'age', '', extract(epoch from c.rolled_up_ago)::float8 from ojs._clock_lag() c where c.rolled_up_ago is not null
union all
(select 'starved', n.subject, max(n.nth)::float8 from ojs.notice n where n.type = 'scheduling.queue_starved' group by n.subject
order by n.subject limit @max_queues::int);

-- name: DispatchCounters :many
-- For metrics: jobs handed out by queue (pool empty), with the waits, and by queue and pool.
select d.queue::text as queue, coalesce(d.pool, '')::text as pool, d.jobs::bigint as jobs, coalesce(d.waited, 0)::float8 as waited_seconds,
    coalesce(d.waits, '{}')::bigint[] as waits
from ojs._dispatch_counters(@max_queues::int) d;

-- name: WaitBounds :one
select ojs._wait_bounds()::float8[] as bounds;

-- name: TenantGauges :many
-- For metrics: numbers of the first tenants by name, and of the rest in sum. A row with an empty
-- queue has the tenant's share and its waits.
select g.tenant_id::text as tenant_id, g.queue::text as queue, g.depth::bigint as depth, g.active::bigint as active,
    g.enqueued::bigint as enqueued, g.processed::bigint as processed, g.failed::bigint as failed, coalesce(g.share, 0)::float8 as share,
    g.failed_attempts::bigint as failed_attempts, g.handed_out::bigint as handed_out, g.waited::float8 as waited_seconds
from ojs._tenant_gauges(@max_tenants::int) g;

-- name: Doctor :many
select f.severity::text as severity, f.topic::text as topic, f.finding::text as finding, f.advice::text as advice,
    f.runbook::text as runbook
from ojs.doctor(sqlc.narg('max_conns')::int, @servers::int) f;

-- name: NeighbourWatch :one
select w.mode, extract(epoch from w.span)::float8 as span_seconds, w.depth_ratio::float8 as depth_ratio, w.rate_ratio::float8 as rate_ratio,
    w.active_share::float8 as active_share, w.error_ratio::float8 as error_ratio, w.min_jobs, w.min_active, w.action,
    w.factor::float8 as factor, extract(epoch from w.lasts)::float8 as lasts_seconds
from ojs.neighbour_watch w;

-- name: WatchNeighbours :exec
select ojs.watch_neighbours(sqlc.narg('mode')::text, sqlc.narg('span')::text::interval, sqlc.narg('depth_ratio')::text::numeric,
    sqlc.narg('rate_ratio')::text::numeric, sqlc.narg('active_share')::text::numeric, sqlc.narg('error_ratio')::text::numeric,
    sqlc.narg('min_jobs')::int, sqlc.narg('min_active')::int, sqlc.narg('action')::text, sqlc.narg('factor')::text::numeric,
    sqlc.narg('lasts')::text::interval);

-- name: NoisyNeighbours :many
select * from ojs.noisy_neighbours n order by n.tenant_id, n.signal limit @max_rows::int;

-- name: Throttles :many
select * from ojs.throttles h where sqlc.narg('tenant')::text is null or h.tenant_id = sqlc.narg('tenant')::text
order by h.tenant_id limit @max_rows::int offset @skip::int;

-- name: Throttle :one
select * from ojs.throttle(@tenant::text, coalesce(sqlc.narg('reason')::text, 'manual'), sqlc.narg('action')::text,
    sqlc.narg('factor')::text::numeric, sqlc.narg('lasts')::text::interval);

-- name: ReleaseThrottle :many
select * from ojs.release_throttle(@tenant::text);

-- name: KeyOwners :many
-- The valid keys among the given hashes, each with its index.
select h.n::int as n, k.prefix, k.tenant_id, k.scopes, k.queues
from unnest(@hashes::bytea[]) with ordinality h(hash, n) cross join lateral ojs._key_owner(h.hash) k;

-- name: APIKeys :many
select k.id, k.prefix, k.tenant_id, k.scopes, k.queues, k.name, k.state, k.created_at, k.created_by, k.expires_at, k.revoked_at,
    k.reason, k.last_used_at, k.rotated_to
from ojs.api_keys k where (sqlc.narg('tenant')::text is null or k.tenant_id = sqlc.narg('tenant')::text)
order by k.created_at desc, k.id limit @max_rows::int offset @skip::int;

-- name: CreateAPIKey :one
select k.secret, k.id, k.prefix, k.tenant_id, k.scopes, k.queues, k.name, k.state, k.created_at, k.created_by, k.expires_at, k.revoked_at,
    k.reason, k.last_used_at, k.rotated_to
from ojs.create_api_key(sqlc.narg('tenant')::text, @scopes::text[], @name::text, @queues::text[],
    sqlc.narg('expires_at')::timestamptz) k;

-- name: RotateAPIKey :one
select k.secret, k.id, k.prefix, k.tenant_id, k.scopes, k.queues, k.name, k.state, k.created_at, k.created_by, k.expires_at, k.revoked_at,
    k.reason, k.last_used_at, k.rotated_to
from ojs.rotate_api_key(@id::uuid, sqlc.arg('good_for')::text::interval) k;

-- name: RevokeAPIKey :one
select k.id, k.prefix, k.tenant_id, k.scopes, k.queues, k.name, k.state, k.created_at, k.created_by, k.expires_at, k.revoked_at,
    k.reason, k.last_used_at, k.rotated_to
from ojs.revoke_api_key(@id::uuid, sqlc.narg('reason')::text) k;

-- name: DoorLimits :many
-- The limits that servers have to know before they call.
select q.tenant_id, q.queue, q.resource, q.maximum, coalesce(date_part('epoch', q.period), 0)::float8 as period_seconds,
    coalesce(q.burst, 0)::bigint as burst
from ojs.quota q where q.resource in ('max_depth', 'max_in_flight_requests', 'max_waiting_polls', 'max_request_rate');

-- name: QueuePressure :many
-- The fullest of the given queues, if it is nearly full (at warn_from of its bound or above).
select l.queue::text as queue, l.current::bigint as depth, l.maximum::bigint as bound
from ojs.quota q join ojs.limits l on l.tenant_id = q.tenant_id and l.queue = q.queue and l.resource = q.resource
where q.tenant_id = '' and q.queue = any (@queues::text[]) and q.resource = 'max_depth' and l.current >= q.warn_from * q.maximum
order by l.used_up desc limit 1;

-- name: NoteRefusals :exec
select ojs.note_refusals(@tenants::text[], @queues::text[], @resources::text[], @requests::int[]);

-- name: SharedMemory :one
-- Calls no function of ours, and reads no table that all databases share: it works in a session that
-- is open already while the lock table is full.
select pg_notification_queue_usage()::float8 as notify_queue,
    (select count(*) from pg_catalog.pg_locks l where not l.fastpath)::bigint as locks,
    (current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint))::bigint as lock_table,
    coalesce((select string_agg(format('process %s: %s locks', coalesce(h.pid::text, 'of prepared transactions'), h.locks), ', '
            order by h.locks desc)
        from (select l.pid, count(*) as locks from pg_catalog.pg_locks l where not l.fastpath group by l.pid
            order by count(*) desc limit 3) h), '')::text as holders;
