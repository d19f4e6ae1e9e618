-- Strategy least-loaded, the part about workers: which requests of a FETCH are served, and in which
-- order. Not called for other strategies.

create or replace function ojs._by_load(p_ask ojs.ask) returns ojs.ask
language plpgsql
as $$
begin
    with request as materialized (
        select r.n::int as n, r.worker_id, r.lease_ms, coalesce(p_ask.requests[r.n], r.n::int) as request,
            lead(r.start, 1, p_ask.count + 1) over (order by r.n) - r.start as jobs
        from unnest(p_ask.workers, p_ask.lease_ms, p_ask.starts) with ordinality r(worker_id, lease_ms, start, n)
    ), loaded as materialized (
        -- If another session has the row locked, it is giving the worker jobs in an open
        -- transaction, and this session cannot see how many: the worker counts as full.
        select r.*, a.active, case when w.concurrency is not null and l.ids is not null then greatest(w.concurrency - a.active, 0)
            when w.concurrency is not null then 0 end as room
        from request r
        -- One by one (limit): a join would compare each request with all workers.
        left join lateral (select w.* from ojs.worker w where w.tenant_id = coalesce(p_ask.tenant, '') and w.worker_id = r.worker_id
            limit 1) w on true
        left join lateral (select l.ids from ojs.worker_load l where l.tenant_id = w.tenant_id and l.worker_id = w.worker_id
            and l.rev = ojs._load_rev(w.tenant_id, w.worker_id) for update skip locked) l on true
        left join lateral (select b.ids from ojs.worker_beat b where b.tenant_id = w.tenant_id and b.worker_id = w.worker_id
            order by b.rev desc limit 1) b on true
        left join lateral (select cardinality(ojs._running(w.tenant_id, w.worker_id, l.ids || b.ids)) as active
            where w.worker_id is not null) a on true
    ), shared as (
        -- If a worker has several requests, what the earlier ones may get counts against the later
        -- ones.
        select l.*, sum(l.jobs) over (partition by l.worker_id order by l.n) - l.jobs as before from loaded l
    ), bounded as (
        select s.*, case when s.room is null then s.jobs else least(s.jobs, greatest(s.room - s.before, 0)) end as may from shared s
    ), placed as (
        select b.*, sum(b.may) over (order by b.active + b.before nulls last, b.n) - b.may + 1 as start from bounded b
    )
    select sum(p.may), coalesce(p_ask.others, '[]') || coalesce(jsonb_agg(jsonb_build_object(
            'request', p.request, 'worker_id', p.worker_id, 'attempt', p.may)) filter (where p.may < p.jobs), '[]'),
        array_agg(p.request order by p.start) filter (where p.may > 0), array_agg(p.start::int order by p.start) filter (where p.may > 0),
        array_agg(p.worker_id order by p.start) filter (where p.may > 0), array_agg(p.lease_ms order by p.start) filter (where p.may > 0)
    into p_ask.count, p_ask.others, p_ask.requests, p_ask.starts, p_ask.workers, p_ask.lease_ms
    from placed p;
    return p_ask;
end;
$$;
comment on function ojs._by_load(ojs.ask) is
'Orders the requests of a FETCH by strategy least-loaded: workers with the fewest active jobs
first, equal ones in the order of the list, unregistered workers last. A worker that has
registered with a concurrency gets at most the jobs that it lacks. Locks the rows of
ojs.worker_load (skip locked), so that the counts hold until the transaction ends; a worker whose
row another session has locked counts as full.';

create or replace function ojs._note_loads(p_ids uuid[], p_ask ojs.ask) returns void
language plpgsql
as $$
begin
    with given as materialized (
        select p_ask.workers[g.at] as worker_id, array_agg(g.id order by g.n) as ids
        from (select d.*, width_bucket(d.n::int, p_ask.starts) as at from unnest(p_ids) with ordinality d(id, n)) g
        group by p_ask.workers[g.at]
    ), mine as materialized (
        select g.worker_id, ojs._running(l.tenant_id, l.worker_id, l.ids) || g.ids as ids, l.spot
        from given g
        cross join lateral (select l.*, l.ctid as spot from ojs.worker_load l
            where l.tenant_id = coalesce(p_ask.tenant, '') and l.worker_id = g.worker_id
              and l.rev = ojs._load_rev(l.tenant_id, l.worker_id) for update skip locked) l
    )
    update ojs.worker_load l set rev = l.rev + 1, ids = m.ids from mine m where l.ctid = m.spot;
end;
$$;
comment on function ojs._note_loads(uuid[], ojs.ask) is
'Notes the jobs that ojs.fetch_many has handed out, for ojs._by_load, and removes ended jobs from
the list.';

create or replace function ojs._running(p_tenant text, p_worker_id text, p_ids uuid[]) returns uuid[]
language plpgsql stable
as $$
begin
    -- Most workers that wait have no jobs, and starting the query costs more than everything else
    -- here.
    if cardinality(p_ids) > 0 is not true then
        return '{}';
    end if;
    -- Read each job by its key (limit): the planner knows nothing about the ids, and a join would
    -- read the whole table.
    return array(
        select i.id from (select i as id from unnest(p_ids) i group by i) i
        cross join lateral (
            select from ojs.job j
            where j.id = i.id and (p_tenant = '' or j.tenant_id = p_tenant) and j.state = 'active' and j.worker_id = p_worker_id limit 1
        ) j);
end;
$$;
comment on function ojs._running(text, text, uuid[]) is
'The given jobs, each once, that a worker runs now. p_tenant: the worker''s tenant; empty: all.';

create or replace function ojs._load_rev(p_tenant text, p_worker_id text) returns bigint
language plpgsql stable
as $$
begin
    return (select l.rev from ojs.worker_load l where l.tenant_id = p_tenant and l.worker_id = p_worker_id order by l.rev desc limit 1);
end;
$$;
comment on function ojs._load_rev(text, text) is
'The highest rev of a worker''s rows; the row that has it counts.';

create or replace function ojs._forget_loads(p_tenants text[], p_worker_ids text[]) returns void
language plpgsql
as $$
begin
    -- Skip rows that an open FETCH has locked: the clock must not wait for it. The next worker of
    -- that name uses such a row again.
    delete from ojs.worker_load l where l.ctid = any (array(
        select l.ctid from unnest(p_tenants, p_worker_ids) w(tenant_id, worker_id)
        join ojs.worker_load l on l.tenant_id = w.tenant_id and l.worker_id = w.worker_id for update of l skip locked));
end;
$$;
comment on function ojs._forget_loads(text[], text[]) is
'Removes the load of workers that are no longer registered.';
