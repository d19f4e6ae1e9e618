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

create or replace function ojs._tenant_gauges(p_tenants int)
returns table (tenant_id text, queue text, depth bigint, active bigint, enqueued bigint, processed bigint, failed bigint, share float8)
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
            sum(u.completed) as completed, sum(u.failed) as failed
        from (select t.* from ojs.tally t union all select r.* from ojs._recent() r) u
        group by u.tenant_id, u.queue
    ), lately as materialized (
        select l.name, l.sums from ojs._lately('tenant') l
    ), handed_out as materialized (
        select m.tenant_id, (ojs._pace('tenant', m.tenant_id, l.sums)).jobs_1m as jobs
        from (select distinct p.tenant_id from place p where p.own) m left join lately l on l.name = m.tenant_id
    ), total as (
        select (ojs._pace('all', '', l.sums)).jobs_1m as jobs from lately l where l.name = ''
    )
    select case when p.own then p.tenant_id else '_other' end, case when p.own and p.own_queue then p.queue else '_other' end,
        sum(n.available)::bigint, sum(n.active)::bigint, sum(n.total + p.moved)::bigint, sum(n.completed + n.failed)::bigint,
        sum(n.failed)::bigint, null::float8
    from place p join numbers n on n.tenant_id = p.tenant_id and n.queue = p.queue
    group by 1, 2
    union all
    select h.tenant_id, '', 0, 0, 0, 0, 0, sum(coalesce(h.jobs / nullif(t.jobs, 0)::float8, 0))
    from (
        select h.tenant_id, h.jobs from handed_out h
        union all
        select '_other', greatest(t.jobs - coalesce((select sum(h.jobs) from handed_out h), 0), 0) from total t
        where exists (select from place p where not p.own)
    ) h
    cross join total t
    group by h.tenant_id
$$;
comment on function ojs._tenant_gauges(int) is
'The numbers about tenants for metrics.
A row per tenant and queue: available (depth) and active jobs now; jobs enqueued, attempts
completed or failed (processed), and attempts failed, ever. A row per tenant with an empty queue:
its share of the jobs handed out in the last minute. The first p_tenants tenants are named, each
with its first 20 queues; the rest is added up as _other. Reads ojs.tally, ojs.pace and the
journals since; no job.';
