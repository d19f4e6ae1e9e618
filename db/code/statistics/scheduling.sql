comment on type ojs.pace_sums is
'Jobs handed out in the last minute, 5 minutes and hour: how many, the sum of how long they had
been available in seconds, and how many in each class of waits (ojs._wait_bounds; null for
tenants).';

create or replace function ojs._pace(p_kind text, p_name text, p_lately ojs.pace_sums) returns table (
    jobs_1m bigint, waited_1m float8, waits_1m bigint[], jobs_5m bigint, waited_5m float8, waits_5m bigint[],
    jobs_1h bigint, waited_1h float8, waits_1h bigint[])
language sql stable rows 1
as $$
    select coalesce(z.jobs - m.jobs_before, 0) + coalesce((p_lately).jobs_1m, 0),
        coalesce(z.waited - m.waited_before, 0) + coalesce((p_lately).waited_1m, 0),
        ojs._waits_sum(case when m.at is not null then ojs._waits_sum(z.waits_before, z.waits, m.waits_before) end, (p_lately).waits_1m),
        coalesce(z.jobs - f.jobs_before, 0) + coalesce((p_lately).jobs_5m, 0),
        coalesce(z.waited - f.waited_before, 0) + coalesce((p_lately).waited_5m, 0),
        ojs._waits_sum(case when f.at is not null then ojs._waits_sum(z.waits_before, z.waits, f.waits_before) end, (p_lately).waits_5m),
        coalesce(z.jobs - h.jobs_before, 0) + coalesce((p_lately).jobs_1h, 0),
        coalesce(z.waited - h.waited_before, 0) + coalesce((p_lately).waited_1h, 0),
        ojs._waits_sum(case when h.at is not null then ojs._waits_sum(z.waits_before, z.waits, h.waits_before) end, (p_lately).waits_1h)
    from (values (0)) one
    left join lateral (
        select p.jobs_before + p.jobs as jobs, p.waited_before + p.waited as waited, p.waits, p.waits_before
        from ojs.pace p where p.kind = p_kind and p.name = p_name order by p.at desc limit 1
    ) z on true
    left join lateral (select p.* from ojs._pace_from(p_kind, p_name, '1 minute') p) m on true
    left join lateral (select p.* from ojs._pace_from(p_kind, p_name, '5 minutes') p) f on true
    left join lateral (select p.* from ojs._pace_from(p_kind, p_name, '1 hour') p) h on true
$$;
comment on function ojs._pace(text, text, ojs.pace_sums) is
'Jobs handed out of a queue or tenant, to a pool, or in all: the rows of ojs.pace of that kind and
name, plus p_lately. A row stands for the 10 seconds before it, so a window begins up to 5 seconds
sooner or later.';

create or replace function ojs._pace_from(p_kind text, p_name text, p_span interval) returns setof ojs.pace
language sql stable rows 1
as $$
    -- The time as a subquery: a function that is evaluated for each row would not be used as a
    -- condition of the index.
    select p.* from ojs.pace p
    where p.kind = p_kind and p.name = p_name and p.at > (select ojs.now()) - p_span + ojs._pace_step() / 2 order by p.at limit 1
$$;
comment on function ojs._pace_from(text, text, interval) is
'The first row of ojs.pace within a period. Becomes part of the query that asks.';

-- plpgsql, for a plan of its own: it reads the few rows at the end of the journal by index,
-- whatever the planner of the calling query assumes about their number.
create or replace function ojs._lately(p_kind text) returns table (name text, sums ojs.pace_sums)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pg_snapshot := (select t.pace_snapshot from ojs.tally_mark t order by t.rev desc limit 1);
    v_now  timestamptz := ojs.now();
begin
    return query
    select coalesce(u.name, ''), (
        sum(u.jobs) filter (where u.m), sum(u.waited) filter (where u.m), case when p_kind <> 'tenant' then
            ojs._waits(array_agg(u.class) filter (where u.m), array_agg(u.jobs) filter (where u.m)) end,
        sum(u.jobs) filter (where u.f), sum(u.waited) filter (where u.f), case when p_kind <> 'tenant' then
            ojs._waits(array_agg(u.class) filter (where u.f), array_agg(u.jobs) filter (where u.f)) end,
        sum(u.jobs), sum(u.waited), case when p_kind <> 'tenant' then
            ojs._waits(array_agg(u.class), array_agg(u.jobs)) end)::ojs.pace_sums
    from (
        select n.name, c.class, l.at > v_now - interval '1 minute' as m, l.at > v_now - interval '5 minutes' as f,
            count(*) as jobs, sum(x.wait::float8) as waited
        from ojs._leases_since(v_mark) l cross join lateral unnest(l.tenants, l.waits) x(tenant_id, wait)
        cross join lateral (select case p_kind when 'queue' then l.queue when 'pool' then l.pool::text else x.tenant_id end as name) n
        cross join lateral (select case when p_kind <> 'tenant' then ojs._wait_class(x.wait) end as class) c
        where not ojs._foreign(v_mark) and l.at > v_now - interval '1 hour' and n.name is not null
        group by 1, 2, 3, 4
    ) u
    group by rollup (u.name);
end;
$$;
comment on function ojs._lately(text) is
'Jobs handed out since the last roll-up into ojs.pace, per queue, tenant or pool (p_kind), and in
all under an empty name.';

create or replace view ojs.scheduling_stats with (security_invoker = true) as
with lately as materialized (
    select l.name, l.sums from ojs._lately('queue') l(name, sums)
), total as materialized (
    select p.jobs_1m, p.jobs_5m, p.jobs_1h
    from lately l
    cross join lateral ojs._pace('all', '', l.sums)
        p(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h)
    where l.name = ''
)
select q.queue,
    s.jobs_1m as dispatched_1m, round(s.jobs_1m / nullif(t.jobs_1m, 0)::numeric, 4) as ratio_1m,
    s.waited_1m / nullif(s.jobs_1m, 0) * interval '1 second' as avg_wait_1m, ojs._percentile(s.waits_1m, 0.5) as p50_wait_1m,
    ojs._percentile(s.waits_1m, 0.95) as p95_wait_1m, ojs._percentile(s.waits_1m, 0.99) as p99_wait_1m,
    s.jobs_5m as dispatched_5m, round(s.jobs_5m / nullif(t.jobs_5m, 0)::numeric, 4) as ratio_5m,
    s.waited_5m / nullif(s.jobs_5m, 0) * interval '1 second' as avg_wait_5m, ojs._percentile(s.waits_5m, 0.5) as p50_wait_5m,
    ojs._percentile(s.waits_5m, 0.95) as p95_wait_5m, ojs._percentile(s.waits_5m, 0.99) as p99_wait_5m,
    s.jobs_1h as dispatched_1h, round(s.jobs_1h / nullif(t.jobs_1h, 0)::numeric, 4) as ratio_1h,
    s.waited_1h / nullif(s.jobs_1h, 0) * interval '1 second' as avg_wait_1h, ojs._percentile(s.waits_1h, 0.5) as p50_wait_1h,
    ojs._percentile(s.waits_1h, 0.95) as p95_wait_1h, ojs._percentile(s.waits_1h, 0.99) as p99_wait_1h,
    q.available, q.active, q.oldest_wait
from ojs.queue_stats q
cross join total t
left join lately l on l.name = q.queue
cross join lateral ojs._pace('queue', q.queue, l.sums)
    s(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h);
comment on view ojs.scheduling_stats is
'Jobs handed out and waits, one row per queue, over all tenants.
In the last minute, 5 minutes and hour (_1m, _5m, _1h); a window begins up to 5 seconds sooner or
later:
dispatched_: jobs handed out.
ratio_: their part of the jobs handed out of all queues; null if there were none.
avg_wait_: how long they had been available on average; null if there were none.
p50_wait_, p95_wait_, p99_wait_: the wait that half, 95 and 99 of 100 did not exceed; estimates.
available, active, oldest_wait: now, as in ojs.queue_stats.
Costs as much as there are shards and jobs handed out in the last 10 seconds.';

create or replace view ojs.tenant_shares with (security_invoker = true) as
with lately as materialized (
    select l.name, l.sums from ojs._lately('tenant') l(name, sums)
), total as materialized (
    select p.jobs_1m, p.jobs_5m, p.jobs_1h
    from lately l
    cross join lateral ojs._pace('all', '', l.sums)
        p(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h)
    where l.name = ''
), served as materialized (
    select v.queue from ojs._served_queues() v(queue)
), work as materialized (
    select n.tenant_id, coalesce(w.alike, coalesce(t.weight, w.fallback) * coalesce(t.throttle, 1)) as weight,
        n.available, n.active, n.works
    from (
        select q.tenant_id, sum(q.available)::bigint as available, sum(q.active)::bigint as active,
            bool_or(q.active > 0 or q.available > 0 and (v.queue is not null or not exists (select from served))) as works
        from (
            select u.tenant_id, u.queue, sum(u.available) as available, sum(u.active) as active
            from (
                select t.tenant_id, t.queue, t.available, t.active from ojs.tally t
                union all
                select r.tenant_id, r.queue, r.available, r.active from ojs._recent() r
                union all
                select t.tenant_id, '', 0, 0 from ojs.tenant t
            ) u
            group by u.tenant_id, u.queue
        ) q
        left join served v on v.queue = q.queue
        group by q.tenant_id
    ) n
    left join ojs.tenant t on t.tenant_id = n.tenant_id
    cross join ojs._usual_weight w
)
select w.tenant_id, w.weight, round(i.share, 4) as ideal_share,
    s.jobs_1m as dispatched_1m, round(s.jobs_1m / nullif(t.jobs_1m, 0)::numeric, 4) as share_1m,
    round(i.share * t.jobs_1m - s.jobs_1m, 1) as lag_1m, s.waited_1m / nullif(s.jobs_1m, 0) * interval '1 second' as avg_wait_1m,
    s.jobs_5m as dispatched_5m, round(s.jobs_5m / nullif(t.jobs_5m, 0)::numeric, 4) as share_5m,
    round(i.share * t.jobs_5m - s.jobs_5m, 1) as lag_5m, s.waited_5m / nullif(s.jobs_5m, 0) * interval '1 second' as avg_wait_5m,
    s.jobs_1h as dispatched_1h, round(s.jobs_1h / nullif(t.jobs_1h, 0)::numeric, 4) as share_1h,
    round(i.share * t.jobs_1h - s.jobs_1h, 1) as lag_1h, s.waited_1h / nullif(s.jobs_1h, 0) * interval '1 second' as avg_wait_1h,
    w.available, w.active
from work w
cross join lateral (select case when w.works then w.weight / (select sum(o.weight) from work o where o.works) end as share) i
cross join total t
left join lately l on l.name = w.tenant_id
cross join lateral ojs._pace('tenant', w.tenant_id, l.sums)
    s(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h);
comment on view ojs.tenant_shares is
'Shares of tenants and what they got, one row per tenant, over all queues.
weight: its weight in queues without weights of their own (ojs.queue_weight has those).
ideal_share: its part of the weights of all tenants that have active jobs, or available jobs in
queues that workers serve, if there are such queues (ojs.queue_demands); null if it has no such
jobs.
In the last minute, 5 minutes and hour (_1m, _5m, _1h); a window begins up to 5 seconds sooner or
later:
dispatched_: jobs handed out.
share_: their part of all jobs handed out; null if there were none.
lag_: how many more the ideal share would have been; negative: fewer; null without an ideal share.
avg_wait_: how long they had been available on average; null if there were none.
available, active: jobs now.
Costs as much as there are shards and jobs handed out in the last 10 seconds.';

-- plpgsql and security definer for the same reasons as ojs._recent.
create or replace function ojs._pools_lately() returns table (pool int, active bigint, dispatched bigint)
language plpgsql stable security definer rows 10 set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    return query select p.id, c.* from ojs.pool p cross join lateral ojs._pool_changes(p.id, v_mark, null) c;
end;
$$;
comment on function ojs._pools_lately() is
'Changes of the numbers in ojs.pool_tally that are visible now and not rolled up yet.';

create or replace view ojs._pool_use with (security_invoker = true) as
select u.pool, sum(u.active)::bigint as active, sum(u.dispatched)::bigint as dispatched
from (
    select t.pool, t.active, t.dispatched from ojs.pool_tally t
    union all
    select l.pool, l.active, l.dispatched from ojs._pools_lately() l
) u
group by u.pool;
comment on view ojs._pool_use is
'Jobs that the workers of each pool run, and that they were ever handed; no row: none.';

-- plpgsql and security definer for the same reasons as ojs._recent.
create or replace function ojs._pool_holders() returns table (pool int, tenant_id text, worker_id text)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
begin
    if not ojs._sees_all() then
        return;
    end if;
    return query
    select i.pool, i.tenant_id, j.worker_id
    from (
        select l.pool, u.tenant_id, u.id
        from ojs.pool p
        cross join lateral (select l.* from ojs.lease l where l.pool = p.id order by l.xid desc limit 10000) l
        cross join lateral unnest(l.tenants, l.ids) u(tenant_id, id)
        where l.due_at > ojs.now() limit 10000
    ) i
    -- Read each job by its key (limit): a join would read the whole table.
    cross join lateral (
        select j.worker_id from ojs.job j where j.id = i.id and j.tenant_id = i.tenant_id and j.state = 'active' and j.pool = i.pool limit 1
    ) j
    where j.worker_id is not null
    group by i.pool, i.tenant_id, j.worker_id;
end;
$$;
comment on function ojs._pool_holders() is
'The workers that hold jobs of each pool, among the 10,000 jobs handed out last whose first leases
have not ended. Empty for a tenant''s login.';

create or replace view ojs.pool_stats with (security_invoker = true) as
with lately as materialized (
    select l.name, l.sums from ojs._lately('pool') l(name, sums)
), holder as materialized (
    select h.pool, h.tenant_id, h.worker_id from ojs._pool_holders() h(pool, tenant_id, worker_id)
), total as materialized (
    select p.jobs_1m, p.jobs_5m, p.jobs_1h
    from (values (0)) one left join ojs._lately('queue') l(name, sums) on l.name = ''
    cross join lateral ojs._pace('all', '', l.sums)
        p(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h)
)
select p.name, p.queues, p.max_concurrency, p.strategy, p.weights, p.isolated, p.tenants,
    case when p.rotation_interval is not null then jsonb_build_object('enabled', true, 'rotation_interval',
        format('PT%sS', trim_scale(extract(epoch from p.rotation_interval)::numeric)), 'min_dispatch_ratio', p.min_dispatch_ratio)
    end as starvation_prevention,
    (select count(*) from ojs.worker w where coalesce(w.pool, 'default') = p.name)
        + (select count(distinct h.worker_id) from holder h where h.pool = p.id and not exists (select from ojs.worker w
            where w.tenant_id in ('', h.tenant_id) and w.worker_id = h.worker_id and coalesce(w.pool, 'default') = p.name))
        as active_workers,
    coalesce(n.active, 0) as active_jobs, round(coalesce(n.active, 0)::numeric / p.max_concurrency, 4) as utilization,
    coalesce(n.dispatched, 0) as dispatched,
    s.jobs_1m as dispatched_1m, round(s.jobs_1m / nullif(t.jobs_1m, 0)::numeric, 4) as ratio_1m,
    s.waited_1m / nullif(s.jobs_1m, 0) * interval '1 second' as avg_wait_1m, ojs._percentile(s.waits_1m, 0.5) as p50_wait_1m,
    ojs._percentile(s.waits_1m, 0.95) as p95_wait_1m, ojs._percentile(s.waits_1m, 0.99) as p99_wait_1m,
    s.jobs_5m as dispatched_5m, round(s.jobs_5m / nullif(t.jobs_5m, 0)::numeric, 4) as ratio_5m,
    s.waited_5m / nullif(s.jobs_5m, 0) * interval '1 second' as avg_wait_5m, ojs._percentile(s.waits_5m, 0.5) as p50_wait_5m,
    ojs._percentile(s.waits_5m, 0.95) as p95_wait_5m, ojs._percentile(s.waits_5m, 0.99) as p99_wait_5m,
    s.jobs_1h as dispatched_1h, round(s.jobs_1h / nullif(t.jobs_1h, 0)::numeric, 4) as ratio_1h,
    s.waited_1h / nullif(s.jobs_1h, 0) * interval '1 second' as avg_wait_1h, ojs._percentile(s.waits_1h, 0.5) as p50_wait_1h,
    ojs._percentile(s.waits_1h, 0.95) as p95_wait_1h, ojs._percentile(s.waits_1h, 0.99) as p99_wait_1h,
    p.created_at, p.updated_at
from ojs.pool p
cross join total t
left join lately l on l.name = p.id::text
cross join lateral ojs._pace('pool', p.id::text, l.sums)
    s(jobs_1m, waited_1m, waits_1m, jobs_5m, waited_5m, waits_5m, jobs_1h, waited_1h, waits_1h)
left join ojs._pool_use n on n.pool = p.id;
comment on view ojs.pool_stats is
'Configuration and numbers of pools, one row per configured pool, and * for all FETCHes.
The columns of ojs.configure_pool: null if not set.
active_workers: workers registered in it, and others that hold jobs which they took as its workers
(ojs._pool_holders); who fetches without the name of a worker is not counted.
active_jobs: jobs that its workers run; utilization: their part of max_concurrency (null: no
limit).
dispatched: jobs ever handed out to its workers.
dispatched_, ratio_, avg_wait_, p50_wait_, p95_wait_, p99_wait_: as in ojs.scheduling_stats;
ratio_ is its part of all jobs handed out.';
