-- A tenant's login reads through the views below (named _own_...) and has no rights on the tables.
-- Row security alone would leak: equality of text and uuid is leakproof, so the planner may look up
-- a tenant's own condition in an index and check the policy afterwards, and explain analyze then
-- counts rows of other tenants. Such a view has its owner's rights: it starts from the tenant,
-- finds the tenant's rows by an index that begins with the tenant, or with a queue and priority of
-- the tenant, and "offset 0" keeps all conditions of the reader outside.
-- A view for all readers has two branches: the table, for readers that see all tenants; and the
-- _own_ view. The condition of the first branch names no column, so the executor checks it once,
-- before it reads the table, whatever other conditions there are.

create or replace function ojs._reads_all() returns boolean
language sql stable parallel safe set search_path = pg_catalog, pg_temp
as $$ select current_user = 'ojs_owner' or ojs._sees_all() $$;
comment on function ojs._reads_all() is
'Whether a view shows its reader the rows of all tenants: the service, operators, producers, and
the functions of this schema.';

create or replace function ojs._only_tenant() returns text
language sql stable parallel safe set search_path = pg_catalog, pg_temp
as $$ select case when not ojs._reads_all() then ojs.current_tenant() end $$;
comment on function ojs._only_tenant() is
'The tenant of the role that logged in, if the caller sees only that tenant; else null.';

create or replace function ojs._shards(p_tenant text) returns table (queue text, priority int)
language sql stable rows 10
as $$
    select t.queue, t.priority from ojs.tally t where t.tenant_id = p_tenant
    union
    select r.queue, r.priority from ojs._recent() r where r.tenant_id = p_tenant
$$;
comment on function ojs._shards(text) is
'The queues and priorities in which a tenant has or had jobs.';

create or replace function ojs._own_shards(p_tenant text) returns table (queue text, priority int)
language sql stable strict parallel safe security definer rows 10 set search_path = pg_catalog, pg_temp
as $$ select s.queue, s.priority from ojs._shards(case p_tenant when ojs.current_tenant() then p_tenant end) s $$;
comment on function ojs._own_shards(text) is
'The queues and priorities in which the caller''s tenant has or had jobs; empty for another tenant.';

-- The queue comes from ojs._own_shards: a condition on the queue then leaves out the jobs of other
-- queues before they are read.
create or replace view ojs._own_job as
select t.tenant_id, j.id, j.type, s.queue, s.priority, j.state, j.attempt, j.max_attempts, j.args, j.meta, j.created_at, j.enqueued_at,
    j.scheduled_at, j.expires_at, j.started_at, j.lease_expires_at, j.finished_at, j.retry_at, j.worker_id, j.errors, j.result,
    j.timeout_ms, j.visibility_timeout_ms, j.tags, j.retry, j.options, j.extra
from ojs._only_tenant() t(tenant_id)
cross join lateral ojs._own_shards(t.tenant_id) s(queue, priority)
cross join lateral (select j.* from ojs.job j where j.queue = s.queue and j.priority = s.priority and j.tenant_id = t.tenant_id offset 0) j;
comment on view ojs._own_job is
'A tenant''s own jobs, queue by queue and priority by priority; empty for other callers.';

create or replace view ojs._own_tenant as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.tenant r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_tenant is 'A tenant''s own configuration; empty for other callers.';

create or replace view ojs._own_rule as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.rule r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_rule is 'The rules about a tenant itself; empty for other callers.';

create or replace view ojs._own_throttle as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.throttle r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_throttle is 'A tenant''s own throttle; empty for other callers.';

create or replace view ojs._own_worker as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (
    select w.*, b.seen_at, b.active, b.ids
    from ojs.worker w
    cross join lateral (
        select b.* from ojs.worker_beat b where b.tenant_id = w.tenant_id and b.worker_id = w.worker_id order by b.rev desc limit 1
    ) b
    where w.tenant_id = t.tenant_id offset 0
) r;
comment on view ojs._own_worker is
'A tenant''s own workers with their latest heartbeat; empty for other callers.';

create or replace view ojs._own_cron as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.cron r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_cron is 'A tenant''s own cron jobs; empty for other callers.';

create or replace view ojs._own_cron_run as
select r.* from ojs._only_tenant() t(tenant_id)
cross join lateral (select r.* from ojs.cron_run r where r.tenant_id = t.tenant_id offset 0) r;
comment on view ojs._own_cron_run is
'The history of a tenant''s own cron jobs; empty for other callers.';
