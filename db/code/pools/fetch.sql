-- Pools of workers in a FETCH: which requests of a call can be served together, and what the
-- configuration of their pool (ojs.pool) changes. Not called if no pool is configured and the
-- workers have registered with none.

create or replace function ojs._in_pool(p_ask ojs.ask, p_queues text[], p_pool text) returns ojs.ask
language plpgsql stable
as $$
declare
    v_name text := coalesce((select w.pool from ojs.worker w
        where w.apart and w.tenant_id = coalesce(p_ask.tenant, '') and w.worker_id = p_ask.workers[1]), p_pool, 'default');
    v_pool ojs.pool;
    v_all  ojs.pool;
    v_mine text[];
begin
    select * into v_pool from ojs.pool p where p.name = v_name;
    select * into v_all from ojs.pool p where p.name = '*';
    v_mine := array(select q.queue from unnest(p_queues) with ordinality q(queue, n)
        where (v_pool.queues is null or q.queue = any (v_pool.queues)) and not ojs._isolated_from(v_name, q.queue)
        order by array_position(v_pool.queues, q.queue), q.n);
    if v_mine = '{}' then
        perform ojs._raise('OJ422', format('none of these queues is for workers of pool %s', left(v_name, 128)), '{"field": "queues"}',
            'ojs.pool_stats says which queues are.');
    elsif v_pool.tenants is not null then
        p_ask.exclusive := v_pool.isolated;
        p_ask.tenants := array(select t from unnest(v_pool.tenants) t where p_ask.tenants is null or t = any (p_ask.tenants));
        if p_ask.tenants = '{}' then
            perform ojs._raise('OJ422', format('workers of pool %s get no jobs of tenant %s', v_name, p_ask.tenant), '{"field": "tenant"}');
        end if;
    end if;
    if v_pool.max_concurrency is not null then
        if ojs.current_tenant() is not null then
            perform ojs._raise('OJ408', format('a tenant''s login cannot fetch in pool %s, which has a concurrency', v_name),
                '{"field": "pool"}', 'Its workers fetch over HTTP.');
        end if;
        -- The limit is exact only under the lane, so the call waits for the lane, however long its
        -- transaction has been open.
        p_ask.pool_limited := true;
        p_ask.no_lane := false;
    end if;
    p_ask.queues := array(select q.queue from unnest(v_mine) with ordinality q(queue, n) where q.queue = any (p_ask.queues)
        group by q.queue order by min(q.n));
    p_ask.except_tenants := (select array_agg(distinct t) from ojs.pool o cross join lateral unnest(o.tenants) t
        where o.isolated and o.name <> v_name);
    p_ask.pool := v_pool.id;
    p_ask.strategy := coalesce(v_all.strategy, v_pool.strategy, p_ask.strategy);
    p_ask.weights := coalesce(v_all.weights, v_pool.weights, p_ask.weights);
    p_ask.min_ratio := coalesce(v_all.min_dispatch_ratio, v_pool.min_dispatch_ratio);
    p_ask.rotation := coalesce(v_all.rotation_interval, v_pool.rotation_interval);
    return p_ask;
end;
$$;
comment on function ojs._in_pool(ojs.ask, text[], text) is
'Applies the configuration of its pool to what a FETCH asks for. p_queues: the queues it names,
including paused ones. A pool that is not configured has no settings of its own. Raises
validation_error, unsupported.';

create or replace function ojs._note_fetch(p_tenant text, p_worker_ids text[], p_pool text, p_queues text[]) returns void
language plpgsql
as $$
begin
    -- If a heartbeat has the row locked, skip it: the next FETCH notes the same again.
    update ojs.worker w
    set pool = coalesce(w.pool, p_pool),
        asks = case when not o.anew then w.asks else array(select q from unnest(p_queues) q
            union select q from unnest(w.asks) q where w.asked_at > ojs.now() - interval '1 minute' order by 1) end,
        asked_at = case when o.anew then ojs.now() else w.asked_at end
    from (select w.tenant_id, w.worker_id, ojs._asks_anew(w.queues, w.asks, w.asked_at, p_queues) as anew from ojs.worker w
        where w.tenant_id = p_tenant and w.worker_id = any (p_worker_ids) for no key update skip locked) o
    where w.tenant_id = o.tenant_id and w.worker_id = o.worker_id and (o.anew or p_pool is not null and w.pool is null);
end;
$$;
comment on function ojs._note_fetch(text, text[], text, text[]) is
'Puts registered workers that have named no pool into the pool that their FETCH names, and notes
queues that they have not said they serve. Not for callers that may stay in their transaction: the
lock on the row would make heartbeats wait.';

create or replace function ojs._asks_anew(p_says text[], p_asks text[], p_asked_at timestamptz, p_queues text[]) returns boolean
language sql
as $$
    -- Without these bounds, a worker that asks for a hundred queues one by one would have its row
    -- written by each FETCH.
    select case when p_queues <@ p_says or p_queues <@ p_asks then false when p_asked_at is null then true
        else cardinality(p_asks) + cardinality(p_queues) <= 100 or p_asked_at <= ojs.now() - interval '1 minute' end
$$;
comment on function ojs._asks_anew(text[], text[], timestamptz, text[]) is
'Whether the queues that a FETCH names are to be noted in its worker''s row. Becomes part of the
query that asks.';

create or replace function ojs._serves(p_says text[], p_asks text[]) returns text[]
language sql immutable
as $$
    select case when p_asks is null then p_says
        else p_says || array(select a from unnest(p_asks) a where a <> all (p_says) is not false) end
$$;
comment on function ojs._serves(text[], text[]) is
'The queues that a worker serves: queues that it has named, and others that it asks for.';

create or replace function ojs._isolated_from(p_pool text, p_queue text) returns boolean
language plpgsql stable
as $$
begin
    return exists (select from ojs.pool o
        where o.isolated and o.tenants is null and o.name <> p_pool and p_queue = any (o.queues));
end;
$$;
comment on function ojs._isolated_from(text, text) is 'Whether another pool has a queue isolated.';

-- There is no counter that could be wrong: the number at the last roll-up, plus the changes in the
-- journals since then. Both are read with one snapshot, because the function is stable.
create or replace function ojs._pool_active(p_pool int) returns bigint
language plpgsql stable
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    return coalesce((select t.active from ojs.pool_tally t where t.pool = p_pool order by t.rev desc limit 1), 0)
        + (select c.active from ojs._pool_changes(p_pool, v_mark, null) c);
end;
$$;
comment on function ojs._pool_active(int) is 'How many jobs the workers of a pool run.';

create or replace view ojs._pool_movement with (security_invoker = true) as
select j.xid, j.pool, j.from_state, j.to_state, j.jobs from ojs.journal j where j.pool is not null
union all
select l.xid, l.pool, 'available', 'active', l.jobs from ojs.lease l where l.pool is not null
union all
select r.xid, r.pool, r.from_state, r.to_state, 1 from ojs.release r where r.pool is not null;
comment on view ojs._pool_movement is 'The rows of ojs._movement about jobs of pools.';

create or replace function ojs._pool_room(p_pool int) returns int
language plpgsql stable
as $$
begin
    return (select greatest(p.max_concurrency - ojs._pool_active(p.id), 0) from ojs.pool p
        where p.id = p_pool and p.max_concurrency is not null);
end;
$$;
comment on function ojs._pool_room(int) is
'How many more jobs the workers of a pool may be given now; null: no limit. Exact under the lane.';

create or replace function ojs._without_others(p_ask ojs.ask, p_counts int[], p_queues text[], p_pool text) returns ojs.ask
language plpgsql stable
as $$
declare
    v_way jsonb := ojs._way(p_queues, p_pool, p_ask.strategy, p_ask.weights);
begin
    with request as materialized (
        select r.*, coalesce(w.resting, false) as rests, p_pool <> w.pool as elsewhere, case when w.apart is null then v_way
            else ojs._way(p_queues, coalesce(w.pool, p_pool), coalesce(w.strategy, p_ask.strategy),
                coalesce(w.weights, p_ask.weights)) end as way
        from unnest(p_counts, p_ask.workers, p_ask.lease_ms) with ordinality r(jobs, worker_id, lease_ms, n)
        left join ojs.worker w on w.apart and w.tenant_id = coalesce(p_ask.tenant, '') and w.worker_id = r.worker_id
    ), first as (
        select r.way from request r where not r.rests and r.elsewhere is not true order by r.n limit 1
    ), judged as (
        select r.*, not r.rests and r.elsewhere is not true and r.way = (select f.way from first f) as served from request r
    ), placed as (
        select j.*, sum(j.jobs) filter (where j.served) over (order by j.n) - j.jobs + 1 as start from judged j
    )
    select coalesce(sum(r.jobs) filter (where r.served), 0), jsonb_agg(distinct jsonb_strip_nulls(jsonb_build_object(
            'worker_id', r.worker_id, 'meta', case when not r.rests then r.way end))) filter (where not r.served),
        coalesce(array_agg(r.n order by r.n) filter (where r.served), '{}'),
        coalesce(array_agg(r.start order by r.n) filter (where r.served), '{}'),
        coalesce(array_agg(r.worker_id order by r.n) filter (where r.served), '{}'),
        coalesce(array_agg(r.lease_ms order by r.n) filter (where r.served), '{}'), (select f.way from first f)
    into p_ask.count, p_ask.others, p_ask.requests, p_ask.starts, p_ask.workers, p_ask.lease_ms, v_way
    from placed r;
    if cardinality(p_counts) = 1 and (p_ask.others -> 0) ? 'meta' then
        perform ojs._raise('OJ409', format('worker %s is registered in pool %s', p_ask.others #>> '{0,worker_id}',
            p_ask.others #>> '{0,meta,pool}'), '{"field": "pool"}');
    end if;
    p_ask.strategy := coalesce(v_way ->> 'strategy', p_ask.strategy);
    p_ask.weights := coalesce(v_way -> 'weights', p_ask.weights);
    return p_ask;
end;
$$;
comment on function ojs._without_others(ojs.ask, int[], text[], text) is
'Leaves out requests of a FETCH that this call does not serve: those of workers that are to get no
jobs, and those whose pool, strategy or weights differ from those of the first request. Raises
conflict for a single worker that names another pool than it has registered with.';

create or replace function ojs._way(p_queues text[], p_pool text, p_strategy text, p_weights jsonb) returns jsonb
language plpgsql immutable
as $$
begin
    return jsonb_strip_nulls(jsonb_build_object('pool', coalesce(p_pool, 'default'),
        'strategy', case when cardinality(p_queues) > 1 or p_strategy = 'least-loaded' then nullif(p_strategy, 'round-robin') end,
        'weights', case when cardinality(p_queues) > 1 and p_strategy = 'weighted' then (
            select jsonb_object_agg(w.key, w.value) from jsonb_each(p_weights) w where w.key = any (p_queues)) end));
end;
$$;
comment on function ojs._way(text[], text, text, jsonb) is
'The pool, strategy and weights of a request, as far as they matter for its queues. Requests with
equal values are served together.';
