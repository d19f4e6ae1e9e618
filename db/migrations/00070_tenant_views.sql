-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- Tenants read the fairness state by this function. The table has an index without a tenant in it, and explain analyze of a query on the
-- table would count the rows of others.
-- +goose StatementBegin
create function ojs._fairness() returns setof ojs.tenant_fairness
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs.current_tenant();
begin
    if v_tenant is null and not ojs._sees_all() then
        return;
    end if;
    return query
    -- The time of a tenant that comes says how many jobs its level has served.
    select f.queue, f.priority, f.tenant_id, f.rev, f.ready, case when v_tenant is null then f.vtime end, f.weight,
        case when f.ready and l.tenants > 0 and (select b.unit <> 'none' from ojs._backlog(f.queue) b)
            then ojs._deficit(l.tenants, l.weight, l.moment, l.low, f.weight, f.vtime) else 0 end,
        f.charged, f.job_priority, f.seconds, f.head, f.behind, f.again_lo, f.again_seq, f.limited, f.parked, f.lines
    from ojs.tenant_fairness f
    left join (
        select distinct on (l.queue, l.priority) l.* from ojs.level l order by l.queue, l.priority, l.rev desc
    ) l on f.ready and l.queue = f.queue and l.priority = f.priority
    where v_tenant is null or f.tenant_id = v_tenant;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fairness() is
'The rows of ojs.tenant_fairness that are the caller''s to see, with the deficit as it is at this moment.';

-- +goose StatementBegin
create function ojs._fair_cursors()
returns table (queue text, tenant_id text, job_priority int, head bigint, behind boolean, again_lo bigint, again_seq bigint)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs.current_tenant();
    v_all    boolean := v_tenant is null and ojs._sees_all();
begin
    return query select f.queue, f.tenant_id, c.job_priority, c.head, c.behind, c.again_lo, c.again_seq
    from ojs.tenant_fairness f cross join lateral unnest(ojs._cursors(f)) c where v_all or f.tenant_id = v_tenant;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fair_cursors() is 'Cursors that are the caller''s to see: a row per queue, tenant and priority of jobs.';

-- +goose StatementBegin
create function ojs._oldest_aside() returns table (queue text, priority int, tenant_id text, oldest_at timestamptz)
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
        from ojs.again g
        join ojs._fair_cursors() f on f.queue = g.queue and f.job_priority = g.priority and f.tenant_id = g.tenant_id
        cross join lateral (select j.id from ojs.job j
            where j.queue = g.queue and j.priority = g.priority and j.tenant_id = g.tenant_id and j.seq between g.lo and g.hi
              and j.state = 'available' and j.seq > f.again_seq
            order by j.seq limit 1) x
        where f.behind and g.lo >= f.again_lo and g.hi > f.again_seq and (v_tenant is null or g.tenant_id = v_tenant)
        union all
        select t.queue, t.job_priority, t.tenant_id, t.id from ojs.turn t where v_tenant is null or t.tenant_id = v_tenant
        union all
        select j.queue, j.priority, j.tenant_id, j.id
        from ojs.timer m
        cross join lateral unnest(m.tenant_ids, m.ids) x(tenant_id, id)
        cross join lateral (select j.* from ojs.job j where j.id = x.id and j.tenant_id = x.tenant_id limit 1) j
        where m.kind = 'again' and m.due_at <= ojs.now() + interval '1 second'
    ) a
    cross join lateral (
        select j.enqueued_at from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'available' limit 1
    ) j
    where v_tenant is null or a.tenant_id = v_tenant
    group by a.queue, a.priority, a.tenant_id;
end;
$$;
-- +goose StatementEnd
comment on function ojs._oldest_aside() is
'Per queue, priority and tenant the time of the oldest job that is available and behind its tenant''s cursor: to be looked at again,
decided ahead, or locked when its turn came. The caller''s to see only.';

-- +goose StatementBegin
create function ojs._arrivals() returns setof ojs._movement
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs.current_tenant();
begin
    if v_tenant is null and not ojs._sees_all() then
        return;
    end if;
    return query select u.* from ojs._unfolded() u where v_tenant is null or u.tenant_id = v_tenant;
end;
$$;
-- +goose StatementEnd
comment on function ojs._arrivals() is 'Jobs that became available since the last decision, per statement. The caller''s to see only.';

-- Adds, per tenant, queue and priority, what the journals say since the roll-up to the tally, and finds the oldest job in line.
create view ojs._shard_counts as
select n.*, least(w.oldest_at, b.oldest_at) as oldest_at
from (
    select u.tenant_id, u.queue, u.priority, sum(u.scheduled) as scheduled, sum(u.available) as available, sum(u.pending) as pending,
        sum(u.active) as active, sum(u.retryable) as retryable, sum(u.completed) as completed, sum(u.cancelled) as cancelled,
        sum(u.discarded) as discarded, sum(u.total) as total, sum(u.failed) as failed, sum(u.dispatched) as dispatched
    from (
        select t.tenant_id, t.queue, t.priority, t.scheduled, t.available, t.pending, t.active, t.retryable, t.completed, t.cancelled,
            t.discarded, t.total, t.failed, t.dispatched
        from ojs.tally t
        union all
        select r.tenant_id, r.queue, r.priority, r.scheduled, r.available, r.pending, r.active, r.retryable, r.completed, r.cancelled,
            r.discarded, r.total, r.failed, r.dispatched
        from ojs._recent() r
    ) u
    group by u.tenant_id, u.queue, u.priority
) n
left join ojs._fair_cursors() f on n.available > 0 and f.queue = n.queue and f.job_priority = n.priority and f.tenant_id = n.tenant_id
-- Jobs that became available since the last decision and may lie before the cursor: from the lowest one of those that committed late the
-- line is searched; jobs that came back are looked up one by one.
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
left join lateral (
    select min(o.enqueued_at) as oldest_at
    from (
        (select j.enqueued_at from ojs.job j
        where j.queue = n.queue and j.priority = n.priority and j.tenant_id = n.tenant_id and j.state = 'available'
          and j.seq > least(coalesce(f.head, 0), u.lo - 1)
        order by j.seq limit 1)
        union all
        select a.oldest_at from ojs._oldest_aside() a where a.queue = n.queue and a.priority = n.priority and a.tenant_id = n.tenant_id
    ) o
) w on n.available > 0;
comment on view ojs._shard_counts is
'Numbers of jobs per (tenant, queue, priority) as of now, and when the first in line became available.';

-- +goose StatementBegin
create function ojs._own_shard_counts(p_tenant text) returns setof ojs._shard_counts
language sql stable strict security definer rows 10 set search_path = pg_catalog, pg_temp
as $$ select c.* from ojs._shard_counts c where c.tenant_id = case p_tenant when ojs.current_tenant() then p_tenant end $$;
-- +goose StatementEnd
comment on function ojs._own_shard_counts(text) is 'The rows of ojs._shard_counts of the caller''s tenant; for another tenant none.';

create view ojs.shard_stats as
select l.tenant_id, l.queue, sum(l.scheduled)::bigint as scheduled, sum(l.available)::bigint as available,
    sum(l.pending)::bigint as pending, sum(l.active)::bigint as active, sum(l.retryable)::bigint as retryable,
    sum(l.completed)::bigint as completed, sum(l.cancelled)::bigint as cancelled, sum(l.discarded)::bigint as discarded,
    ojs.now() - min(l.oldest_at) as oldest_wait, sum(l.total)::bigint as total_jobs, sum(l.failed)::bigint as failed,
    sum(l.dispatched)::bigint as dispatched
from (
    select c.* from ojs._shard_counts c where ojs._reads_all()
    union all
    select c.* from ojs._only_tenant() t(tenant_id) cross join lateral ojs._own_shard_counts(t.tenant_id) c
) l
group by l.tenant_id, l.queue;
comment on view ojs.shard_stats is
'One row per tenant and queue: jobs by state now (scheduled, available, pending, active, retryable) and ever (completed, cancelled,
discarded, total_jobs, dispatched; failed counts attempts), and how long the first in line has waited. Exact as of the reading
transaction; costs as much as there are rows, not jobs.';

create view ojs.queue_stats as
select s.queue, s.scheduled, s.available, s.pending, s.active, s.retryable, s.completed, s.cancelled, s.discarded, s.oldest_wait,
    s.total_jobs, s.failed, s.tenants, c.paused_at is not null as paused
from (
    select p.queue, sum(p.scheduled)::bigint as scheduled, sum(p.available)::bigint as available, sum(p.pending)::bigint as pending,
        sum(p.active)::bigint as active, sum(p.retryable)::bigint as retryable, sum(p.completed)::bigint as completed,
        sum(p.cancelled)::bigint as cancelled, sum(p.discarded)::bigint as discarded, max(p.oldest_wait) as oldest_wait,
        sum(p.total_jobs)::bigint as total_jobs, sum(p.failed)::bigint as failed,
        count(*) filter (where p.available > 0 or p.active > 0) as tenants
    from (
        select s.queue, s.scheduled, s.available, s.pending, s.active, s.retryable, s.completed, s.cancelled, s.discarded, s.oldest_wait,
            s.total_jobs, s.failed
        from ojs.shard_stats s
        union all
        select q.queue, 0, 0, 0, 0, 0, 0, 0, 0, null, 0, 0 from ojs.queue q
        union all
        select r.queue, 0, 0, 0, 0, 0, 0, 0, 0, null, 0, 0 from ojs.rule r where r.tenant_id = '' and r.queue <> ''
    ) p
    group by p.queue
) s
left join ojs.rule c on c.tenant_id = '' and c.queue = s.queue;
comment on view ojs.queue_stats is
'One row per queue: as ojs.shard_stats, summed over the tenants the reader may see; tenants: how many have jobs available or
active; paused: dispatch stands still.';

-- What is asked of one tenant is read of one tenant: the condition goes down into each part of the union. Only the sums over all tenants,
-- of which shares are parts, need all of them.
create view ojs._tenant_parts as
select s.tenant_id, s.available, s.active, s.scheduled, s.pending, s.retryable, s.completed, s.cancelled, s.discarded, s.failed,
    s.total_jobs, s.oldest_wait, s.dispatched, 0::numeric as deficit, true as known
from ojs.shard_stats s
union all
select t.tenant_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, null, 0, 0, true from ojs.tenant t where ojs._reads_all()
union all
select t.tenant_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, null, 0, 0, true from ojs._own_tenant t
union all
select f.tenant_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, null, 0, f.deficit, false from ojs._fairness() f;
comment on view ojs._tenant_parts is
'What ojs.tenant_stats adds up per tenant: its shards, its deficits, and zeros for one that is configured. known: the tenant is to be
shown.';

-- A tenant's login may not read ojs.queue_weight, so that the views cannot ask ojs._weight_in.
create view ojs._usual_weight as
select (select w.weight from ojs.queue_weight w where w.queue = '' and w.tenant_id = '*') as alike,
    coalesce((select w.weight from ojs.queue_weight w where w.queue = '' and w.tenant_id = ''), 1) as fallback;
comment on view ojs._usual_weight is
'The weights of tenants in queues that do not say, as ojs._weight_in has them: alike, else a tenant''s own, else fallback. One row, of
no tenant.';

create view ojs._served_tenants as
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
'The tenants that have jobs available or active in queues that somebody serves, and their weights. Nothing for a tenant''s login.';

create view ojs._tenant_names with (security_invoker = true) as
select n.tenant_id
from (select t.tenant_id from ojs.tally t union select r.tenant_id from ojs._recent() r union select t.tenant_id from ojs.tenant t) n
where ojs._reads_all();
comment on view ojs._tenant_names is 'The tenants of ojs.tenant_stats, at the cost of their names alone. Nothing for a tenant''s login.';

create view ojs._queue_names with (security_invoker = true) as
select n.queue
from (select t.queue from ojs.tally t union select r.queue from ojs._recent() r union select q.queue from ojs.queue q
    union select r.queue from ojs.rule r where r.tenant_id = '' and r.queue <> '') n
where ojs._reads_all();
comment on view ojs._queue_names is 'The queues of ojs.queue_stats, at the cost of their names alone. Nothing for a tenant''s login.';

create view ojs.tenant_stats as
with served as materialized (
    select w.tenant_id, w.weight / sum(w.weight) over () as share from ojs._served_tenants w
), minute as (
    select t.tenant_id, count(*) as jobs from ojs.lease l cross join lateral unnest(l.tenants) t(tenant_id)
    where ojs._reads_all() and l.at > (select ojs.now()) - interval '1 minute' group by t.tenant_id
)
select s.tenant_id, coalesce(u.alike, c.weight, u.fallback) as weight,
    s.backlog, s.active, s.scheduled, s.pending, s.retryable, s.completed, s.cancelled, s.discarded, s.failed, s.total_jobs,
    s.oldest_wait, s.deficit,
    case when ojs._reads_all() then round(w.share, 4) when s.backlog > 0 or s.active > 0 then 1.0000 end as effective_share,
    round(m.jobs / (select sum(m.jobs) from minute m), 4) as actual_share, s.dispatched
from (
    select p.tenant_id, sum(p.available)::bigint as backlog, sum(p.active)::bigint as active, sum(p.scheduled)::bigint as scheduled,
        sum(p.pending)::bigint as pending, sum(p.retryable)::bigint as retryable, sum(p.completed)::bigint as completed,
        sum(p.cancelled)::bigint as cancelled, sum(p.discarded)::bigint as discarded, sum(p.failed)::bigint as failed,
        sum(p.total_jobs)::bigint as total_jobs, max(p.oldest_wait) as oldest_wait, sum(p.deficit) as deficit,
        sum(p.dispatched)::bigint as dispatched
    from ojs._tenant_parts p group by p.tenant_id having bool_or(p.known)
) s
left join (select c.* from ojs.tenant c where ojs._reads_all() union all select * from ojs._own_tenant) c on c.tenant_id = s.tenant_id
cross join ojs._usual_weight u
left join served w on w.tenant_id = s.tenant_id
left join minute m on m.tenant_id = s.tenant_id;
comment on view ojs.tenant_stats is
'One row per tenant: weight: the one it has in queues that do not say (ojs.queue_weight: in those that do); jobs now (backlog = available,
active, scheduled, pending, retryable) and ever (completed, cancelled, discarded, total_jobs, dispatched; failed counts attempts); how long
its first job in line has waited; deficit: jobs it is owed at this moment, negative when it had more; effective_share: its weight, lowered
while it is throttled, among the tenants with jobs in queues that somebody serves (ojs.queue_demands), null without any; actual_share: its
part of what was handed out in the last minute, null for a tenant''s login. A tenant sees its own row only, and its effective_share among
itself.';

create view ojs.rule_stats as
select r.tenant_id, r.queue, r.most as max_concurrency, u.active, r.paused_at, case when ojs._reads_all() then r.paused_by end as paused_by,
    case when ojs._reads_all() then r.reason end as reason, case when ojs._reads_all() then r.limit_reason end as limit_reason
from (select * from ojs.rule where ojs._reads_all() union all select * from ojs._own_rule) r
left join lateral (select u.active from ojs.usage u where u.tenant_id = r.tenant_id and u.queue = r.queue
    order by u.rev desc limit 1) u on true;
comment on view ojs.rule_stats is
'What holds dispatch back, one row per tenant (empty: all together) and queue (empty: all): max_concurrency, lowered while the tenant is
throttled; active: how many jobs the last decision counted against it, those decided ahead included; paused_at, paused_by and
reason of a pause; limit_reason. A tenant sees the rules about itself, and not who made them, and why.';
reset role;
