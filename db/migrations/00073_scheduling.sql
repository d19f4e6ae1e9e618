-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

create type ojs.pace_sums as (
    jobs_1m bigint, waited_1m float8, jobs_5m bigint, waited_5m float8, jobs_1h bigint, waited_1h float8
);
comment on type ojs.pace_sums is
'Jobs handed out in the last minute, five minutes and hour, and how long they had been available, in seconds, in sum.';
create type ojs.pace_named as (name text, sums ojs.pace_sums);
comment on type ojs.pace_named is 'What was handed out of a queue or tenant; name is empty: of all.';

-- +goose StatementBegin
create function ojs._pace(p_queue text, p_tenant text, p_lately ojs.pace_sums) returns setof ojs.pace_sums
language sql stable rows 1
as $$
    -- The time by a query of its own: a function that tells it anew for each row would not be asked of the index.
    select coalesce(sum(w.jobs) filter (where s.span = '1 minute'), 0)::bigint + coalesce((p_lately).jobs_1m, 0),
        coalesce(sum(w.waited) filter (where s.span = '1 minute'), 0) + coalesce((p_lately).waited_1m, 0),
        coalesce(sum(w.jobs) filter (where s.span = '5 minutes'), 0)::bigint + coalesce((p_lately).jobs_5m, 0),
        coalesce(sum(w.waited) filter (where s.span = '5 minutes'), 0) + coalesce((p_lately).waited_5m, 0),
        coalesce(sum(w.jobs) filter (where s.span = '1 hour'), 0)::bigint + coalesce((p_lately).jobs_1h, 0),
        coalesce(sum(w.waited) filter (where s.span = '1 hour'), 0) + coalesce((p_lately).waited_1h, 0)
    from (values (interval '1 minute'), (interval '5 minutes'), (interval '1 hour')) s(span)
    cross join lateral (
        select z.jobs_before + z.jobs - a.jobs_before as jobs, z.waited_before + z.waited - a.waited_before as waited
        from (select p.* from ojs.pace p where p.queue = p_queue and p.tenant_id = p_tenant
            and p.at > (select ojs.now()) - s.span + ojs._pace_step() / 2 order by p.at limit 1) a
        cross join (select p.* from ojs.pace p where p.queue = p_queue and p.tenant_id = p_tenant order by p.at desc limit 1) z
    ) w
$$;
-- +goose StatementEnd
comment on function ojs._pace(text, text, ojs.pace_sums) is
'What was handed out of a queue (p_tenant is empty), of a tenant (p_queue is empty) or of all (both are): the rows of ojs.pace, and
p_lately. A row stands for the ten seconds before it, so a window begins up to five seconds sooner or later.';

-- A plan of its own reads the few rows at the end of the journal by index, whatever the planner of the asking query believes about their
-- number.
-- +goose StatementBegin
create function ojs._lately(p_by_tenant boolean) returns setof ojs.pace_named
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pg_snapshot := (select t.pace_snapshot from ojs.tally_mark t order by t.rev desc limit 1);
    v_now  timestamptz := ojs.now();
begin
    return query
    select coalesce(u.name, ''), (
        sum(u.jobs) filter (where u.at > v_now - interval '1 minute'), sum(u.waited) filter (where u.at > v_now - interval '1 minute'),
        sum(u.jobs) filter (where u.at > v_now - interval '5 minutes'), sum(u.waited) filter (where u.at > v_now - interval '5 minutes'),
        sum(u.jobs), sum(u.waited))::ojs.pace_sums
    from (
        select n.name, l.at, count(*) as jobs, sum(x.wait) as waited
        from ojs._leases_since(v_mark) l cross join lateral unnest(l.tenants, l.waits) x(tenant_id, wait)
        cross join lateral (select case when p_by_tenant then x.tenant_id else l.queue end as name) n
        where not ojs._foreign(v_mark) and l.at > v_now - interval '1 hour'
        group by n.name, l.at
    ) u
    group by rollup (u.name);
end;
$$;
-- +goose StatementEnd
comment on function ojs._lately(boolean) is
'What was handed out since the last roll-up into ojs.pace, per queue or per tenant, and in all under an empty name.';

create view ojs.scheduling_stats with (security_invoker = true) as
with lately as materialized (
    select l.name, l.sums from ojs._lately(false) l(name, sums)
), total as materialized (
    select p.jobs_1m, p.jobs_5m, p.jobs_1h
    from lately l cross join lateral ojs._pace('', '', l.sums) p(jobs_1m, waited_1m, jobs_5m, waited_5m, jobs_1h, waited_1h)
    where l.name = ''
)
select q.queue, s.jobs_1m as dispatched_1m, round(s.jobs_1m / nullif(t.jobs_1m, 0)::numeric, 4) as ratio_1m,
    s.waited_1m / nullif(s.jobs_1m, 0) * interval '1 second' as avg_wait_1m,
    s.jobs_5m as dispatched_5m, round(s.jobs_5m / nullif(t.jobs_5m, 0)::numeric, 4) as ratio_5m,
    s.waited_5m / nullif(s.jobs_5m, 0) * interval '1 second' as avg_wait_5m,
    s.jobs_1h as dispatched_1h, round(s.jobs_1h / nullif(t.jobs_1h, 0)::numeric, 4) as ratio_1h,
    s.waited_1h / nullif(s.jobs_1h, 0) * interval '1 second' as avg_wait_1h,
    q.available, q.active, q.oldest_wait
from ojs.queue_stats q
cross join total t
left join lately l on l.name = q.queue
cross join lateral ojs._pace(q.queue, '', l.sums) s(jobs_1m, waited_1m, jobs_5m, waited_5m, jobs_1h, waited_1h);
comment on view ojs.scheduling_stats is
'One row per queue, over all tenants: jobs handed out in the last minute, five minutes and hour (dispatched_), their part of what was
handed out of all queues (ratio_; null where nothing was), how long they had been available on average (avg_wait_; null where there were
none); available and active jobs now, and how long the first in line has waited, as in ojs.queue_stats. A window begins up to five
seconds sooner or later. Costs as much as there are shards and jobs handed out in the last ten seconds, not jobs.';

create view ojs.tenant_shares with (security_invoker = true) as
with lately as materialized (
    select l.name, l.sums from ojs._lately(true) l(name, sums)
), total as materialized (
    select p.jobs_1m, p.jobs_5m, p.jobs_1h
    from lately l cross join lateral ojs._pace('', '', l.sums) p(jobs_1m, waited_1m, jobs_5m, waited_5m, jobs_1h, waited_1h)
    where l.name = ''
), work as materialized (
    select n.tenant_id, coalesce(w.alike, coalesce(t.weight, w.fallback) * coalesce(t.throttle, 1)) as weight,
        n.available, n.active, n.available > 0 or n.active > 0 as works
    from (
        select u.tenant_id, sum(u.available)::bigint as available, sum(u.active)::bigint as active
        from (
            select t.tenant_id, t.available, t.active from ojs.tally t
            union all
            select r.tenant_id, r.available, r.active from ojs._recent() r
            union all
            select t.tenant_id, 0, 0 from ojs.tenant t
        ) u
        group by u.tenant_id
    ) n
    left join ojs.tenant t on t.tenant_id = n.tenant_id
    cross join ojs._usual_weight w
)
select w.tenant_id, w.weight,
    case when w.works then round(w.weight / (select sum(o.weight) from work o where o.works), 4) end as ideal_share,
    s.jobs_1m as dispatched_1m, round(s.jobs_1m / nullif(t.jobs_1m, 0)::numeric, 4) as share_1m,
    s.waited_1m / nullif(s.jobs_1m, 0) * interval '1 second' as avg_wait_1m,
    s.jobs_5m as dispatched_5m, round(s.jobs_5m / nullif(t.jobs_5m, 0)::numeric, 4) as share_5m,
    s.waited_5m / nullif(s.jobs_5m, 0) * interval '1 second' as avg_wait_5m,
    s.jobs_1h as dispatched_1h, round(s.jobs_1h / nullif(t.jobs_1h, 0)::numeric, 4) as share_1h,
    s.waited_1h / nullif(s.jobs_1h, 0) * interval '1 second' as avg_wait_1h,
    w.available, w.active
from work w
cross join total t
left join lately l on l.name = w.tenant_id
cross join lateral ojs._pace('', w.tenant_id, l.sums) s(jobs_1m, waited_1m, jobs_5m, waited_5m, jobs_1h, waited_1h);
comment on view ojs.tenant_shares is
'One row per tenant, over all queues: the weight it has in queues that do not say (ojs.queue_weight: in those that do), and its part of
these weights of all that have jobs available or active (ideal_share; null where it has none); jobs handed out in the last minute, five
minutes and hour (dispatched_), their part of all that were (share_; null where none were), how long they had been available on average
(avg_wait_; null where there were none); available and active jobs now. A window begins up to five seconds sooner or later. Costs as much
as there are shards and jobs handed out in the last ten seconds, not jobs.';

-- As ojs._recent.
-- +goose StatementBegin
create function ojs._pools_lately() returns table (pool int, active bigint, dispatched bigint)
language plpgsql stable security definer rows 10 set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    return query select p.id, c.* from ojs.pool p cross join lateral ojs._pool_changes(p.id, v_mark, null) c;
end;
$$;
-- +goose StatementEnd
comment on function ojs._pools_lately() is 'Changes of the numbers in ojs.pool_tally that are visible now and not rolled up yet.';

create view ojs.pool_stats with (security_invoker = true) as
select p.name, p.queues, p.max_concurrency, p.strategy, p.weights, p.isolated, p.tenants,
    case when p.rotation_interval is not null then jsonb_build_object('enabled', true, 'rotation_interval',
        format('PT%sS', trim_scale(extract(epoch from p.rotation_interval)::numeric)), 'min_dispatch_ratio', p.min_dispatch_ratio)
    end as starvation_prevention,
    (select count(*) from ojs.worker w where coalesce(w.pool, 'default') = p.name) as active_workers,
    coalesce(n.active, 0)::bigint as active_jobs, round(coalesce(n.active, 0)::numeric / p.max_concurrency, 4) as utilization,
    coalesce(n.dispatched, 0)::bigint as dispatched, p.created_at, p.updated_at
from ojs.pool p
left join (
    select u.pool, sum(u.active) as active, sum(u.dispatched) as dispatched
    from (
        select t.pool, t.active, t.dispatched from ojs.pool_tally t
        union all
        select l.pool, l.active, l.dispatched from ojs._pools_lately() l
    ) u
    group by u.pool
) n on n.pool = p.id;
comment on view ojs.pool_stats is
'One row per configured pool, and * for what holds for all FETCHes: what ojs.configure_pool has set (null: nothing); active_workers: those
registered in it; active_jobs: jobs that its workers run; utilization: their part of max_concurrency (null: no limit); dispatched: jobs
handed out to its workers, ever.';
reset role;
