create or replace function ojs._oldest_aside() returns table (queue text, priority int, tenant_id text, oldest_at timestamptz)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs.current_tenant();
begin
    if v_tenant is null and not ojs._sees_all() then
        return;
    end if;
    return query select a.queue, a.priority, a.tenant_id, min(j.enqueued_at)
    from (
        select g.queue, g.priority, g.tenant_id, x.id
        from ojs.revisit g
        left join ojs.tenant t on t.tenant_id = g.tenant_id
        cross join lateral ojs._rank(g.queue, g.priority, t.priority_boost) r
        cross join lateral ojs._fair(g.queue, r.priority, g.tenant_id) o
        cross join lateral unnest(ojs._cursors(o)) f
        cross join lateral (select j.id from ojs.job j
            where j.queue = g.queue and j.priority = g.priority and j.tenant_id = g.tenant_id and j.seq between g.lo and g.hi
              and j.state = 'available' and j.seq > f.revisit_seq
            order by j.seq limit 1) x
        where f.job_priority = g.priority and g.lo >= f.revisit_lo and g.hi > f.revisit_seq
          and (v_tenant is null or g.tenant_id = v_tenant)
        union all
        select j.queue, j.priority, j.tenant_id, j.id
        from ojs.timer m
        cross join lateral unnest(m.tenant_ids, m.ids) x(tenant_id, id)
        cross join lateral (select j.* from ojs.job j where j.id = x.id and j.tenant_id = x.tenant_id limit 1) j
        where m.kind = 'revisit' and m.due_at <= ojs.now() + interval '1 second'
    ) a
    cross join lateral (
        select j.enqueued_at from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'available' limit 1
    ) j
    where v_tenant is null or a.tenant_id = v_tenant
    group by a.queue, a.priority, a.tenant_id;
end;
$$;
comment on function ojs._oldest_aside() is
'Per queue, priority and tenant, since when the oldest job has been available that is behind its
tenant''s cursor: in a range to be revisited, or passed because another session had it locked. A
caller gets what it may see.';

create or replace function ojs._arrivals() returns setof ojs._movement
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs.current_tenant();
begin
    if v_tenant is null and not ojs._sees_all() then
        return;
    end if;
    return query select u.* from ojs._unfolded() u where u.to_state = 'available' and (v_tenant is null or u.tenant_id = v_tenant);
end;
$$;
comment on function ojs._arrivals() is
'Jobs that became available since the last decision, a row per statement. A caller gets what it may
see.';

-- Per tenant, queue and priority: the tally, plus the changes in the journals since the roll-up;
-- and jobs that came since the last decision and may be behind a cursor. In order: otherwise a
-- query for the first hundred rows would wait until the oldest job of every row has been found.
create or replace view ojs._shard_sums as
select n.tenant_id, n.queue, n.priority, n.scheduled, n.available, n.pending, n.active, n.retryable, n.completed, n.cancelled,
    n.discarded, n.total, n.failed, n.dispatched, u.lo, least(b.oldest_at, a.oldest_at) as aside_at, n.failed_jobs
from (
    select u.tenant_id, u.queue, u.priority, sum(u.scheduled)::bigint as scheduled, sum(u.available)::bigint as available,
        sum(u.pending)::bigint as pending, sum(u.active)::bigint as active, sum(u.retryable)::bigint as retryable,
        sum(u.completed)::bigint as completed, sum(u.cancelled)::bigint as cancelled, sum(u.discarded)::bigint as discarded,
        sum(u.total)::bigint as total, sum(u.failed)::bigint as failed, sum(u.dispatched)::bigint as dispatched,
        sum(u.failed_jobs)::bigint as failed_jobs
    from (
        select t.tenant_id, t.queue, t.priority, t.scheduled, t.available, t.pending, t.active, t.retryable, t.completed, t.cancelled,
            t.discarded, t.total, t.failed, t.dispatched, t.failed_jobs
        from ojs.tally t
        union all
        select r.tenant_id, r.queue, r.priority, r.scheduled, r.available, r.pending, r.active, r.retryable, r.completed, r.cancelled,
            r.discarded, r.total, r.failed, r.dispatched, r.failed_jobs
        from ojs._recent() r
        union all
        select t.tenant_id, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 from ojs.tenant t
    ) u
    group by u.tenant_id, u.queue, u.priority
) n
-- Jobs that committed late: the search for the oldest job begins at the lowest lo. Jobs that came
-- back are looked up one by one.
left join (
    select u.tenant_id, u.queue, u.priority, min(u.lo) as lo from ojs._arrivals() u where u.from_state is distinct from 'available'
    group by u.tenant_id, u.queue, u.priority
) u on u.tenant_id = n.tenant_id and u.queue = n.queue and u.priority = n.priority
left join (
    select u.tenant_id, u.queue, u.priority, min(j.enqueued_at) as oldest_at
    from ojs._arrivals() u
    join ojs.job j on j.queue = u.queue and j.priority = u.priority and j.tenant_id = u.tenant_id and j.seq = u.lo and j.state = 'available'
    where u.from_state = 'available'
    group by u.tenant_id, u.queue, u.priority
) b on b.tenant_id = n.tenant_id and b.queue = n.queue and b.priority = n.priority
left join ojs._oldest_aside() a on a.queue = n.queue and a.priority = n.priority and a.tenant_id = n.tenant_id
order by n.tenant_id, n.queue, n.priority;
comment on view ojs._shard_sums is
'Numbers of jobs per (tenant, queue, priority) now, and where the oldest job may be; and a row of
zeros without a queue for each configured tenant.';

-- Everything by key, row by row: otherwise the state of fairness of one tenant would be found by
-- reading that of all. PostgreSQL leaves out expressions of columns that are not read. The
-- effective priority is that of ojs._rank, which some readers may not call.
create or replace view ojs._shard_counts as
select n.tenant_id, n.queue, n.priority, n.scheduled, n.available, n.pending, n.active, n.retryable, n.completed, n.cancelled,
    n.discarded, n.total, n.failed, n.dispatched,
    case when n.available > 0 then least(n.aside_at, (
        select j.enqueued_at from ojs.job j
        where j.queue = n.queue and j.priority = n.priority and j.tenant_id = n.tenant_id and j.state = 'available'
          and j.seq > coalesce(least(case (n.fair).job_priority when n.priority then (n.fair).head
                else (select c.head from unnest((n.fair).cursors) c where c.job_priority = n.priority) end, n.lo - 1), 0)
        order by j.seq limit 1)) end as oldest_at,
    -- Where priorities of a tenant share one state, it counts in the row of the priority of its
    -- next jobs.
    case when (n.fair).ready and (n.fair).job_priority = n.priority then coalesce((
        select ojs._deficit(l.low, (n.fair).vtime, (n.fair).weight)
        from (select s.* from ojs.dispatch_state s where s.queue = n.queue order by s.rev desc limit 1) s
        cross join lateral unnest(s.levels) l where l.priority = (n.fair).priority and s.unit <> 'none'), 0) else 0 end as deficit,
    n.failed_jobs
from (
    select n.*, (
        select f.*::ojs.tenant_fairness from ojs.tenant_fairness f
        where f.queue = n.queue and f.tenant_id = n.tenant_id and f.priority = (
            select case when s.own_order then 0 else n.priority + coalesce(t.priority_boost, 0) end
            from (select 1) one
            left join lateral (select s.own_order from ojs.dispatch_state s where s.queue = n.queue order by s.rev desc limit 1) s on true
            left join ojs.tenant t on t.tenant_id = n.tenant_id)
        order by f.rev desc limit 1) as fair
    from ojs._shard_sums n order by n.tenant_id, n.queue, n.priority
) n;
comment on view ojs._shard_counts is
'The rows of ojs._shard_sums, with since when the oldest available job has been available, and the
tenant''s deficit now.';

create or replace view ojs._shard_groups as
select c.tenant_id, c.queue, sum(c.scheduled)::bigint as scheduled, sum(c.available)::bigint as available,
    sum(c.pending)::bigint as pending, sum(c.active)::bigint as active, sum(c.retryable)::bigint as retryable,
    sum(c.completed)::bigint as completed, sum(c.cancelled)::bigint as cancelled, sum(c.discarded)::bigint as discarded,
    min(c.oldest_at) as oldest_at, sum(c.total)::bigint as total_jobs, sum(c.failed)::bigint as failed,
    sum(c.dispatched)::bigint as dispatched, sum(c.failed_jobs)::bigint as failed_jobs
from ojs._shard_counts c where c.queue <> '' group by c.tenant_id, c.queue order by c.tenant_id, c.queue;
comment on view ojs._shard_groups is 'The rows of ojs.shard_stats, of all tenants.';

create or replace view ojs._tenant_groups as
select c.tenant_id, sum(c.available)::bigint as backlog, sum(c.active)::bigint as active, sum(c.scheduled)::bigint as scheduled,
    sum(c.pending)::bigint as pending, sum(c.retryable)::bigint as retryable, sum(c.completed)::bigint as completed,
    sum(c.cancelled)::bigint as cancelled, sum(c.discarded)::bigint as discarded, sum(c.failed)::bigint as failed,
    sum(c.total)::bigint as total_jobs, min(c.oldest_at) as oldest_at, sum(c.deficit) as deficit, sum(c.dispatched)::bigint as dispatched,
    sum(c.failed_jobs)::bigint as failed_jobs
from ojs._shard_counts c group by c.tenant_id order by c.tenant_id;
comment on view ojs._tenant_groups is 'The sums for ojs.tenant_stats, of all tenants.';

create or replace function ojs._own_shard_groups(p_tenant text) returns setof ojs._shard_groups
language sql stable strict security definer rows 10 set search_path = pg_catalog, pg_temp
as $$ select s.* from ojs._shard_groups s where s.tenant_id = case p_tenant when ojs.current_tenant() then p_tenant end $$;
comment on function ojs._own_shard_groups(text) is
'The rows of ojs._shard_groups of the caller''s tenant; empty for another tenant.';

create or replace function ojs._own_tenant_groups(p_tenant text) returns setof ojs._tenant_groups
language sql stable strict security definer rows 1 set search_path = pg_catalog, pg_temp
as $$ select s.* from ojs._tenant_groups s where s.tenant_id = case p_tenant when ojs.current_tenant() then p_tenant end $$;
comment on function ojs._own_tenant_groups(text) is
'The row of ojs._tenant_groups of the caller''s tenant; empty for another tenant.';

create or replace view ojs.shard_stats as
select l.tenant_id, l.queue, l.scheduled, l.available, l.pending, l.active, l.retryable, l.completed, l.cancelled, l.discarded,
    c.now - l.oldest_at as oldest_wait, l.total_jobs, l.failed, l.dispatched, l.failed_jobs
from (
    (select s.* from ojs._shard_groups s where ojs._reads_all() order by s.tenant_id, s.queue)
    union all
    select s.* from ojs._only_tenant() t(tenant_id) cross join lateral ojs._own_shard_groups(t.tenant_id) s
) l
-- One time for all rows. With a function that is evaluated for each row, the planner would compute
-- the whole view before it applies a limit.
cross join (select ojs.now() as now) c;
comment on view ojs.shard_stats is
'Numbers of jobs, one row per tenant and queue.
scheduled, available, pending, active, retryable: jobs now.
completed, cancelled, discarded, total_jobs, dispatched: jobs ever; failed: attempts ever;
failed_jobs: jobs that ever failed for good, those retried since included.
oldest_wait: how long the oldest available job has waited.
Exact for the reading transaction. Costs as much as there are rows, not jobs.';

create or replace view ojs.queue_stats as
select s.queue, s.scheduled, s.available, s.pending, s.active, s.retryable, s.completed, s.cancelled, s.discarded, s.oldest_wait,
    s.total_jobs, s.failed, s.tenants, c.paused_at is not null as paused, s.failed_jobs
from (
    select p.queue, sum(p.scheduled)::bigint as scheduled, sum(p.available)::bigint as available, sum(p.pending)::bigint as pending,
        sum(p.active)::bigint as active, sum(p.retryable)::bigint as retryable, sum(p.completed)::bigint as completed,
        sum(p.cancelled)::bigint as cancelled, sum(p.discarded)::bigint as discarded, max(p.oldest_wait) as oldest_wait,
        sum(p.total_jobs)::bigint as total_jobs, sum(p.failed)::bigint as failed, sum(p.failed_jobs)::bigint as failed_jobs,
        count(*) filter (where p.available > 0 or p.active > 0) as tenants
    from (
        select s.queue, s.scheduled, s.available, s.pending, s.active, s.retryable, s.completed, s.cancelled, s.discarded, s.oldest_wait,
            s.total_jobs, s.failed, s.failed_jobs
        from ojs.shard_stats s
        union all
        -- With these types the planner can leave the branch out; otherwise it would find the oldest
        -- jobs for readers of other columns, too.
        select n.queue, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, null::interval, 0::bigint,
            0::bigint, 0::bigint
        from (select q.queue from ojs.queue q union all select r.queue from ojs.rule r where r.tenant_id = '' and r.queue <> '') n
    ) p
    group by p.queue
) s
left join ojs.rule c on c.tenant_id = '' and c.queue = s.queue;
comment on view ojs.queue_stats is
'Numbers of jobs, one row per queue.
As in ojs.shard_stats, summed over the tenants that the reader may see.
tenants: how many have available or active jobs.
paused: whether dispatch of the queue is paused.';

-- A tenant's login may not read ojs.queue_weight, so the views cannot call ojs._weight_in.
create or replace view ojs._usual_weight as
select (select w.weight from ojs.queue_weight w where w.queue = '' and w.tenant_id = '*') as alike,
    coalesce((select w.weight from ojs.queue_weight w where w.queue = '' and w.tenant_id = ''), 1) as fallback;
comment on view ojs._usual_weight is
'The weights of tenants in queues without weights of their own, as ojs._weight_in has them: alike,
else the tenant''s own, else fallback. One row.';

create or replace view ojs._served_tenants as
select n.tenant_id, coalesce(w.alike, coalesce(t.weight, w.fallback) * coalesce(t.throttle, 1)) as weight
from (
    select distinct u.tenant_id
    from (
        select u.tenant_id, u.queue
        from (select t.* from ojs.tally t union all select r.* from ojs._recent() r) u
        group by u.tenant_id, u.queue having sum(u.available) > 0 or sum(u.active) > 0
    ) u
    join ojs._served_queues() q on q.queue = u.queue
) n
left join ojs.tenant t on t.tenant_id = n.tenant_id
cross join ojs._usual_weight w
where ojs._reads_all();
comment on view ojs._served_tenants is
'The tenants that have available or active jobs in queues that workers serve, and their weights.
Empty for a tenant''s login.';

create or replace view ojs._queue_names with (security_invoker = true) as
select n.queue
from (select t.queue from ojs.tally t union select r.queue from ojs._recent() r union select q.queue from ojs.queue q
    union select r.queue from ojs.rule r where r.tenant_id = '' and r.queue <> '') n
where ojs._reads_all();
comment on view ojs._queue_names is
'The queues of ojs.queue_stats, without the cost of their numbers. Empty for a tenant''s login.';

create or replace view ojs.tenant_stats as
select s.tenant_id, coalesce(u.alike, c.weight, u.fallback) as weight,
    s.backlog, s.active, s.scheduled, s.pending, s.retryable, s.completed, s.cancelled, s.discarded, s.failed, s.total_jobs,
    n.now - s.oldest_at as oldest_wait, s.deficit,
    case when (select ojs._reads_all()) then round(w.share, 4) when s.backlog > 0 or s.active > 0 then 1.0000 end as effective_share,
    round(m.jobs / m.all_jobs, 4) as actual_share, s.dispatched, s.backlog as available, s.failed_jobs
from (
    (select g.* from ojs._tenant_groups g where ojs._reads_all() order by g.tenant_id)
    union all
    select g.* from ojs._only_tenant() t(tenant_id) cross join lateral ojs._own_tenant_groups(t.tenant_id) g
) s
left join (select c.* from ojs.tenant c where ojs._reads_all() union all select * from ojs._own_tenant) c on c.tenant_id = s.tenant_id
cross join ojs._usual_weight u
cross join (select ojs.now() as now) n
left join (select w.tenant_id, w.weight / sum(w.weight) over () as share from ojs._served_tenants w) w on w.tenant_id = s.tenant_id
left join (
    select t.tenant_id, count(*) as jobs, sum(count(*)) over () as all_jobs
    from ojs.lease l cross join lateral unnest(l.tenants) t(tenant_id)
    where ojs._reads_all() and l.at > (select ojs.now()) - interval '1 minute' group by t.tenant_id
) m on m.tenant_id = s.tenant_id
-- Looked up row by row, so that a reader of the first hundred rows does not wait for all.
where c.tenant_id is not null
    or (s.total_jobs > (
        select l.total from ojs.leaving l where l.tenant_id = s.tenant_id and l.gone_at is not null)) is not false;
comment on view ojs.tenant_stats is
'Numbers of jobs and shares, one row per tenant.
A tenant that was deregistered and is gone (ojs.leaving) is left out; its jobs count elsewhere.
weight: its weight in queues without weights of their own (ojs.queue_weight has the weights of
queues).
available (also as backlog), active, scheduled, pending, retryable: jobs now.
completed, cancelled, discarded, total_jobs, dispatched: jobs ever; failed: attempts ever;
failed_jobs: jobs that ever failed for good, those retried since included.
oldest_wait: how long its oldest available job has waited.
deficit: 0: the tenant is next; below 0: how many jobs it has had more than its share, compared
with the tenant that is next.
effective_share: its weight, lowered while it is throttled, among the tenants with jobs in queues
that workers serve (ojs.queue_demands); null without such jobs.
actual_share: its part of the jobs handed out in the last minute; null for a tenant''s login.
A tenant sees only its own row, with its effective_share among itself alone.';

create or replace view ojs._tenant_names with (security_invoker = true) as
select n.tenant_id
from (select t.tenant_id from ojs.tally t union select r.tenant_id from ojs._recent() r union select t.tenant_id from ojs.tenant t) n
where ojs._reads_all()
    and case when not exists (select from ojs.leaving l where l.tenant_id = n.tenant_id and l.gone_at is not null) then true
    else exists (select from ojs.tenant_stats s where s.tenant_id = n.tenant_id) end;
comment on view ojs._tenant_names is
'The tenants of ojs.tenant_stats, without the cost of their numbers. Empty for a tenant''s login.';

create or replace view ojs.rule_stats as
select r.tenant_id, r.queue, r.most as max_concurrency, u.active::int as active, r.paused_at,
    case when (select ojs._reads_all()) then r.paused_by end as paused_by,
    case when (select ojs._reads_all()) then r.reason end as reason,
    case when (select ojs._reads_all()) then r.limit_reason end as limit_reason
from (select * from ojs.rule where ojs._reads_all() union all select * from ojs._own_rule) r
left join lateral (select coalesce(sum(s.active), 0) as active from ojs.shard_stats s
    where r.tenant_id in ('', s.tenant_id) and r.queue in ('', s.queue)) u on r.most is not null;
comment on view ojs.rule_stats is
'Limits and pauses, one row per tenant (empty: all together) and queue (empty: all).
max_concurrency: lowered while the tenant is throttled.
active: how many jobs count against it.
paused_at, paused_by, reason: of a pause; limit_reason: of a limit.
A tenant sees the rules about itself, without paused_by and the reasons.';
