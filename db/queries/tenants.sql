-- name: AuditTrail :many
-- The latest first, before a row of an earlier page.
select a.n, a.at, a.actor, a.tenant_id, a.kind, a.name, a.action, a.old, a.new, a.reason
from ojs.audit_trail a
where (sqlc.narg('before')::bigint is null or a.n < sqlc.narg('before')::bigint)
    and (sqlc.narg('tenant')::text is null or a.tenant_id = sqlc.narg('tenant')::text)
    and (sqlc.narg('actor')::text is null or a.actor = sqlc.narg('actor')::text)
    and (sqlc.narg('action')::text is null or a.action = sqlc.narg('action')::text)
    and (sqlc.narg('kind')::text is null or a.kind = sqlc.narg('kind')::text)
    and (sqlc.narg('since')::timestamptz is null or a.at >= sqlc.narg('since')::timestamptz)
order by a.n desc limit @max_rows::int offset @skip::int;

-- name: OwnAuditTrail :many
-- What a tenant may read of the audit trail. Its rows are numbered separately, because the numbers
-- of all rows would tell about changes of other tenants.
select a.nth::bigint as n, a.at, a.actor, a.tenant_id, a.kind, a.name, a.action, (a.old - 'reason')::jsonb as old,
    (a.new - 'reason')::jsonb as new, a.reason
from (select t.*, row_number() over (order by t.n) as nth from ojs.audit_trail t where t.tenant_id = @tenant::text) a
where (sqlc.narg('before')::bigint is null or a.nth < sqlc.narg('before')::bigint)
    and (sqlc.narg('action')::text is null or a.action = sqlc.narg('action')::text)
order by a.nth desc limit @max_rows::int offset @skip::int;

-- name: SuspendTenant :one
select s.tenant_id, s.at, s.reason from ojs.suspend_tenant(@tenant::text, sqlc.narg('reason')::text) s;

-- name: ResumeTenant :one
select ojs.resume_tenant(@tenant::text);

-- name: DeregisterTenant :one
with ended as materialized (
    select ojs.deregister_tenant(@tenant::text, sqlc.narg('confirm')::text, sqlc.narg('reason')::text,
        sqlc.narg('erase_after')::text::interval) as done
)
select (e.done).tenant_id::text as tenant_id, (e.done).at::timestamptz as at, (e.done).jobs::bigint as jobs
from ended e;

-- name: TenantIsConfigured :one
select exists (select from ojs.tenant t where t.tenant_id = @tenant::text and t.created_at is not null);

-- name: JobsFloor :one
select coalesce(ojs.jobs_floor(sqlc.narg('before')::uuid, sqlc.narg('until')::timestamptz, sqlc.narg('tenant')::text)::text, '')::text
    as floor;

-- name: ListJobs :many
select j.id, j.tenant_id, j.type, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.created_at, j.enqueued_at, j.scheduled_at,
    j.started_at, j.finished_at, j.worker_id
from ojs.list_jobs(sqlc.narg('states')::text[], sqlc.narg('queue')::text, sqlc.narg('type')::text,
    sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, sqlc.narg('before')::uuid, sqlc.narg('floor')::uuid,
    @skip::int, @max_rows::int, sqlc.narg('tenant')::text) j;

-- name: OldestStep :one
-- The id up to which a page of OldestJobs looks, 10,000 jobs on; empty if there are no more.
select coalesce((select max(s.id)::text
    from (select j.id::text as id from ojs.jobs j where j.id > @after::uuid order by j.id limit 10000) s), '')::text as upto;

-- name: OldestJobs :many
-- The oldest jobs that match a filter, among jobs with ids after one and up to another.
select j.id, j.tenant_id, j.type, j.queue, j.state::text as state, j.priority, j.attempt, j.max_attempts, j.created_at, j.enqueued_at,
    j.scheduled_at, j.started_at, j.finished_at, j.worker_id
from ojs.jobs j
where j.id > @after::uuid and j.id <= @upto::uuid
    and (sqlc.narg('tenant')::text is null or j.tenant_id = sqlc.narg('tenant')::text)
    and (sqlc.narg('states')::text[] is null or j.state::text = any (sqlc.narg('states')::text[]))
    and (sqlc.narg('queue')::text is null or j.queue = sqlc.narg('queue')::text)
    and (sqlc.narg('type')::text is null or j.type = sqlc.narg('type')::text
        or sqlc.narg('type')::text like '%*' and starts_with(j.type, left(sqlc.narg('type')::text, -1)))
order by j.id limit @max_rows::int;

-- name: WaitingJobs :one
-- How many available jobs a tenant or all have in a queue or in all, and how many tenants have some.
select coalesce(sum(n.available), 0)::bigint as jobs, count(distinct n.tenant_id)::bigint as tenants
from ojs._shard_numbers n
where n.available > 0 and (sqlc.narg('tenant')::text is null or n.tenant_id = sqlc.narg('tenant')::text)
    and (sqlc.narg('queue')::text is null or n.queue = sqlc.narg('queue')::text);

-- name: LiveJobs :one
-- How many jobs are in a state that is not final, of all tenants or of one, of all queues or of
-- one.
select coalesce(sum(case @state::text when 'scheduled' then u.scheduled when 'available' then u.available when 'pending' then u.pending
    when 'active' then u.active when 'retryable' then u.retryable end), 0)::bigint as jobs
from (select * from ojs.tally union all select * from ojs._recent()) u
where (sqlc.narg('tenant')::text is null or u.tenant_id = sqlc.narg('tenant')::text)
    and (sqlc.narg('queue')::text is null or u.queue = sqlc.narg('queue')::text);

-- name: CancelMany :many
select (select p.code from ojs.problem p where p.sqlstate = r.sqlstate)::text as code, r.message::text as message,
    (r.detail ->> 'job_id')::text as job_id
from ojs.cancel_many(@ids::uuid[], sqlc.narg('tenant')::text) r(sqlstate, message, detail);

-- name: Reprioritize :one
select * from ojs.reprioritize(@id::uuid, @priority::int, sqlc.narg('tenant')::text);

-- name: Tiers :many
select t.name, t.config, t.tenants, t.due, t.reason from ojs.tiers t
where sqlc.narg('name')::text is null or t.name = sqlc.narg('name')::text order by t.name;

-- name: ConfigureTier :many
select t.name, t.config, t.tenants, t.due, t.reason
from ojs.configure_tier(@name::text, sqlc.narg('config')::jsonb, sqlc.narg('reason')::text, @confirm::boolean) t;

-- name: SetTier :many
select t.tenant_id, t.weight, t.priority_boost from ojs.set_tier(@tenant::text, sqlc.narg('tier')::text, sqlc.narg('reason')::text) t;

-- name: ConfigureStatic :one
select ojs.configure_static(@kind::text, @name::text, @config::jsonb, @authoritative::boolean, @check_only::boolean);

-- name: LimitRows :many
select l.tenant_id, l.queue, l.resource, l.maximum, coalesce(l.period::text, '')::text as period, l.burst, l.soft, l.current, l.used_up,
    l.reason
from ojs.limits l
where (sqlc.narg('tenant')::text is null or l.tenant_id = sqlc.narg('tenant')::text)
    and (sqlc.narg('queue')::text is null or l.queue = sqlc.narg('queue')::text)
order by l.tenant_id, l.queue, l.resource limit @max_rows::int offset @skip::int;

-- name: UsageBatches :many
-- The usage ledger of one tenant or of all, hours from since on and before until, after a row.
select b.tenant_id, b.n, b.hour, b.closed_at, b.enqueued, b.attempts, b.completed, b.failed, b.failed_attempts, b.worker_ms,
    b.stored_bytes, b.refused_429, b.refused_507, b.previous, b.hash
from ojs.usage_batches b
where (sqlc.narg('tenant')::text is null or b.tenant_id = sqlc.narg('tenant')::text)
    and b.hour >= greatest(coalesce(sqlc.narg('since')::timestamptz, '-infinity'), @after_hour::timestamptz)
    and (sqlc.narg('until')::timestamptz is null or b.hour < sqlc.narg('until')::timestamptz)
    and (b.hour, b.tenant_id) > (@after_hour::timestamptz, @after_tenant::text)
order by b.hour, b.tenant_id limit @max_rows::int;

-- name: LatestUsageBatch :many
-- The end of a tenant's chain; without a tenant a row of the latest hour.
select b.tenant_id, b.n, b.hour, b.closed_at, b.enqueued, b.attempts, b.completed, b.failed, b.failed_attempts, b.worker_ms,
    b.stored_bytes, b.refused_429, b.refused_507, b.previous, b.hash
from (
    (select o.* from ojs.usage_batches o where o.tenant_id = sqlc.narg('tenant')::text order by o.n desc limit 1)
    union all
    (select o.* from ojs.usage_batches o where sqlc.narg('tenant')::text is null order by o.hour desc, o.tenant_id desc limit 1)
) b;

-- name: VerifyUsage :many
-- The hour is read from the view, because sqlc would take that of the function for never null.
select f.tenant_id::text as tenant_id, f.n::bigint as n, b.hour, f.fault::text as fault
from ojs.verify_usage(sqlc.narg('tenant')::text) f
left join ojs.usage_batches b on b.tenant_id = f.tenant_id::text and b.n = f.n::bigint;

-- name: PruneUsage :one
select ojs.prune_usage(@before::timestamptz)::bigint;

-- name: Erase :one
-- A page of ojs.erase. Next is empty after the last page.
with erased as (
    select ojs.erase(@reason::text, sqlc.narg('ids')::uuid[], sqlc.narg('states')::text[], sqlc.narg('queue')::text,
        sqlc.narg('type')::text, sqlc.narg('since')::timestamptz, sqlc.narg('until')::timestamptz, sqlc.narg('before')::uuid,
        @max_rows::int, sqlc.narg('tenant')::text) as done
)
select (e.done).jobs::int as jobs, (e.done).cancelled::int as cancelled, (e.done).active::int as active,
    (e.done).dead_letters::int as dead_letters, (e.done).answers::int as answers, (e.done).locked::int as locked,
    coalesce((e.done).next::text, '')::text as next
from erased e;
