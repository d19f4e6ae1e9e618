comment on table ojs.shard is
'Each pair of a tenant and a queue that has ever had a job, in the order in which ojs.tally first
knew of them. The first ones have series of their own in metrics. A row is never removed.';
comment on column ojs.shard.tenant_id is 'The tenant.';
comment on column ojs.shard.queue is 'The queue.';
comment on column ojs.shard.n is 'Number of the pair; later pairs have higher numbers.';
comment on column ojs.shard.moved is
'How many jobs were enqueued here and moved to another queue by a retry. Added to the count, so
that a counter never goes back.';
comment on column ojs.shard.created_at is 'When ojs.tally first knew of the pair, within seconds of its first job.';

create or replace function ojs._number_shards() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    insert into ojs.shard (tenant_id, queue)
    select distinct a.tenant_id, a.queue from added a
    where not exists (select from ojs.shard s where s.tenant_id = a.tenant_id and s.queue = a.queue)
    order by a.tenant_id, a.queue
    on conflict do nothing;
    return null;
end;
$$;
comment on function ojs._number_shards() is
'Trigger: numbers each pair of tenant and queue that is new in ojs.tally. The roll-up inserts rows
only for new pairs and priorities; otherwise it updates.';

create or replace function ojs._pace_ever(p_kind text, p_name text) returns table (jobs bigint, waited float8, waits bigint[])
language sql stable rows 1
as $$
    select p.jobs_before + p.jobs, p.waited_before + p.waited, ojs._waits_sum(p.waits_before, p.waits)
    from ojs.pace p where p.kind = p_kind and p.name = p_name order by p.at desc limit 1
$$;
comment on function ojs._pace_ever(text, text) is
'Jobs ever handed out, the sum of their waits in seconds, and how many in each class of waits, up to
the last roll-up into ojs.pace. No row: none.';

create or replace function ojs._tenant_gauges(p_tenants int)
returns table (tenant_id text, queue text, depth bigint, active bigint, enqueued bigint, processed bigint, failed bigint, share float8,
    failed_attempts bigint, handed_out bigint, waited float8)
language sql stable rows 1000
as $$
    with place as materialized (
        select s.tenant_id, s.queue, s.moved, s.nth <= 20 as own_queue, dense_rank() over (order by s.first) <= p_tenants as own
        from (
            select s.*, min(s.n) over (partition by s.tenant_id) as first, row_number() over (partition by s.tenant_id order by s.n) as nth
            from ojs.shard s
        ) s
    ), numbers as materialized (
        -- A pair that the roll-up has not seen has no number, and the join below leaves it out.
        -- Under _other now and under its own name 2 seconds later, it would make a counter of
        -- _other go back.
        select u.tenant_id, u.queue, sum(u.available) as available, sum(u.active) as active, sum(u.total) as total,
            sum(u.completed) as completed, sum(u.failed) as failed, sum(u.failed_jobs) as failed_jobs
        from (select t.* from ojs.tally t union all select r.* from ojs._recent() r) u
        group by u.tenant_id, u.queue
    ), lately as materialized (
        select l.name, l.sums from ojs._lately('tenant') l
    ), handed_out as materialized (
        select m.tenant_id, (ojs._pace('tenant', m.tenant_id, l.sums)).jobs_1m as jobs, coalesce(e.jobs, 0) as ever,
            coalesce(e.waited, 0) as waited
        from (select distinct p.tenant_id from place p where p.own) m
        left join lately l on l.name = m.tenant_id
        left join lateral ojs._pace_ever('tenant', m.tenant_id) e on true
    ), total as (
        select (ojs._pace('all', '', l.sums)).jobs_1m as jobs, coalesce(e.jobs, 0) as ever, coalesce(e.waited, 0) as waited
        from lately l left join lateral ojs._pace_ever('all', '') e on true where l.name = ''
    )
    select case when p.own then p.tenant_id else '_other' end, case when p.own and p.own_queue then p.queue else '_other' end,
        sum(n.available)::bigint, sum(n.active)::bigint, sum(n.total + p.moved)::bigint, sum(n.completed + n.failed_jobs)::bigint,
        sum(n.failed_jobs)::bigint, null::float8, sum(n.failed)::bigint, 0::bigint, 0::float8
    from place p join numbers n on n.tenant_id = p.tenant_id and n.queue = p.queue
    group by 1, 2
    union all
    select h.tenant_id, '', 0, 0, 0, 0, 0, sum(coalesce(h.jobs / nullif(t.jobs, 0)::float8, 0)), 0, sum(h.ever)::bigint, sum(h.waited)
    from (
        select h.tenant_id, h.jobs, h.ever, h.waited from handed_out h
        union all
        select '_other', greatest(t.jobs - n.jobs, 0), greatest(t.ever - n.ever, 0), greatest(t.waited - n.waited, 0)
        from total t
        cross join (select coalesce(sum(h.jobs), 0) as jobs, coalesce(sum(h.ever), 0) as ever, coalesce(sum(h.waited), 0) as waited
            from handed_out h) n
        where exists (select from place p where not p.own)
    ) h
    cross join total t
    group by h.tenant_id
$$;
comment on function ojs._tenant_gauges(int) is
'The numbers about tenants for metrics.
A row per tenant and queue: available (depth) and active jobs now; jobs enqueued, jobs completed or
failed for good (processed), jobs failed for good, and failed_attempts, ever. A row per tenant with
an empty queue: its share of the jobs handed out in the last minute, and how many were ever handed
out, with the sum of their waits in seconds (up to the last roll-up into ojs.pace). The first p_tenants tenants are named, each
with its first 20 queues; the rest is added up as _other. Reads ojs.tally, ojs.pace and the
journals since; no job.';

create or replace function ojs._dispatch_counters(p_queues int)
returns table (queue text, pool text, jobs bigint, waited float8, waits bigint[])
language sql stable rows 1000
as $$
    -- The names one after the other: a row of ojs.pace is for 10 seconds, and a name has hundreds.
    with recursive pair(name) as (
        select (select min(p.name) from ojs.pace p where p.kind = 'pool_queue')
        union all
        select (select min(p.name) from ojs.pace p where p.kind = 'pool_queue' and p.name > r.name) from pair r where r.name is not null
    ), place as materialized (
        -- In the order of their first job: a later queue never takes the place of an earlier one,
        -- so that no counter goes back.
        select s.queue, case when row_number() over (order by min(s.n)) <= p_queues then s.queue else '_other' end as label
        from ojs.shard s group by s.queue
    ), of_queue as materialized (
        select p.queue, p.label, e.jobs, e.waited, e.waits from place p cross join lateral ojs._pace_ever('queue', p.queue) e
    ), of_pool as materialized (
        select split_part(r.name, ' ', 1) as pool, split_part(r.name, ' ', 2) as queue, e.jobs
        from pair r cross join lateral ojs._pace_ever('pool_queue', r.name) e where r.name is not null
    ), class as (
        select u.label, array_agg(u.jobs order by u.class) as waits
        from (
            select q.label, w.class, sum(w.jobs)::bigint as jobs
            from of_queue q cross join lateral unnest(q.waits) with ordinality w(jobs, class) group by q.label, w.class
        ) u
        group by u.label
    )
    select q.label, null, sum(q.jobs)::bigint, sum(q.waited), c.waits
    from of_queue q left join class c on c.label = q.label group by q.label, c.waits
    union all
    select d.label, case when d.label = '_other' then '_other' else d.pool end, sum(d.jobs)::bigint, null, null
    from (
        select q.label, o.pool, o.jobs from of_pool o join of_queue q on q.queue = o.queue
        union all
        select q.label, 'default', q.jobs - coalesce(o.jobs, 0) from of_queue q
        left join (select o.queue, sum(o.jobs) as jobs from of_pool o group by o.queue) o on o.queue = q.queue
    ) d
    group by 1, 2 having sum(d.jobs) > 0
$$;
comment on function ojs._dispatch_counters(int) is
'The counters of dispatch for metrics, over all servers and workers in SQL, up to the last roll-up
into ojs.pace.
A row per queue with pool null: jobs ever handed out, the sum of their waits in seconds, and how
many in each class of waits (ojs._wait_bounds). A row per queue and pool: jobs ever handed out;
default: to workers whose pool is not configured. The first p_queues queues, by their first job,
are named; the rest is added up as _other.';
