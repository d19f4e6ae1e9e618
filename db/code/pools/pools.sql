-- Configuration of pools of workers (fair-scheduling section 6), called by operators.
-- pools/fetch.sql applies it to a FETCH.

-- Configures a pool.
-- Waits for the decision under way, and locks ojs.lane until the end of the transaction.
-- Writes pool and notice, and the times of tenants in tenant_fairness.
create or replace function ojs.configure_pool(p_pool text, p_config anycompatible) returns ojs.pool
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_config));
    v_old ojs.pool;
    v_new ojs.pool;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        -- In another isolation level the transaction would not see which queues other sessions have
        -- isolated since it began.
        perform ojs._raise('OJ408', 'pools are configured in transactions of isolation level read committed',
            '{"field": "transaction_isolation"}');
    end if;
    perform ojs._check_pool_name(p_pool, true);
    v_new := ojs._read_pool(p_pool, p_config::jsonb);
    perform ojs._stop_decisions();
    -- Under the lane: otherwise two calls could isolate the same queue, each without seeing the
    -- other one.
    perform ojs._check_isolated(v_new);
    select * into v_old from ojs.pool p where p.name = p_pool;
    insert into ojs.pool as p (name, queues, max_concurrency, strategy, weights, isolated, tenants, rotation_interval, min_dispatch_ratio)
    values (p_pool, v_new.queues, v_new.max_concurrency, v_new.strategy, v_new.weights, v_new.isolated, v_new.tenants,
        v_new.rotation_interval, v_new.min_dispatch_ratio)
    on conflict (name) do update
    set queues = excluded.queues, max_concurrency = excluded.max_concurrency, strategy = excluded.strategy, weights = excluded.weights,
        isolated = excluded.isolated, tenants = excluded.tenants, rotation_interval = excluded.rotation_interval,
        min_dispatch_ratio = excluded.min_dispatch_ratio, updated_at = ojs.now()
    returning * into v_new;
    perform ojs._pool_changed(v_old, v_new);
    return v_new;
end;
$$;
comment on function ojs.configure_pool(text, anycompatible) is
'Configures a pool of workers as a whole, and returns it.
It acts on the next FETCH and not on running jobs. Waits for the decision under way. Needs read
committed.
p_pool: a name; default for workers that name no pool; or * for all FETCHes: then only strategy,
weights and starvation_prevention, which go before those of pools and workers.
p_config: an object; members that are left out have their defaults:
queues: the queues whose jobs its workers get; default all. May be an object, {"mail": {"weight":
3}}.
concurrency: how many jobs its workers may run at once, together, 1 to 1000000; default any
number. Jobs handed out before the pool was first configured do not count.
strategy: strict, round-robin, weighted or least-loaded; weights: such as {"mail": 3}; default: as
each FETCH asks.
isolated: workers of other pools get no jobs of these queues; only one isolated pool may have a
queue.
tenants: the tenants whose jobs its workers get; default all. With isolated, workers of other
pools get no jobs of these tenants in any queue.
starvation_prevention: {enabled, rotation_interval (ISO 8601, default PT30S), min_dispatch_ratio
(default 0.05)}. A queue with work that has given no job for rotation_interval is next; each queue
gets at least that ratio of the dispatches.
Raises invalid_request, validation_error, conflict, unsupported.';

-- Configures the pools of a document.
-- Locks and writes what ojs.configure_pool does.
create or replace function ojs.configure_pools(p_document anycompatible) returns setof ojs.pool
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_document));
    v_document jsonb := p_document::jsonb;
    v_pool     jsonb;
begin
    if jsonb_typeof(v_document -> 'pool') = 'object' and not v_document ? 'pools' then
        v_document := jsonb_build_object('pools', jsonb_build_array(v_document -> 'pool'));
    end if;
    if jsonb_typeof(v_document -> 'pools') is distinct from 'array' then
        perform ojs._raise('OJ400', 'the document must be {"pool": {...}} or {"pools": [...]}', '{"field": "pools"}');
    end if;
    for v_pool in select jsonb_array_elements(v_document -> 'pools') loop
        return next ojs.configure_pool(v_pool ->> 'name', v_pool);
    end loop;
end;
$$;
comment on function ojs.configure_pools(anycompatible) is
'Configures each pool of a document by ojs.configure_pool, all or none, and returns the pools.
p_document: {"pool": {...}} or {"pools": [...]}, each pool with its name.
Raises what ojs.configure_pool raises.';

-- Removes a pool.
-- Locks and writes what ojs.configure_pool does.
create or replace function ojs.delete_pool(p_pool text, p_confirm boolean default false) returns ojs.pool
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old     ojs.pool;
    v_workers bigint;
begin
    perform ojs._stop_decisions();
    select * into v_old from ojs.pool p where p.name = p_pool;
    if v_old.name is null then
        perform ojs._raise('OJ404', format('pool %s not found', left(p_pool, 128)),
            jsonb_build_object('resource_type', 'pool', 'resource_id', left(p_pool, 128)),
            'Check the name; the list of pools shows those that there are.');
    end if;
    v_workers := (select count(*) from ojs.worker w where coalesce(w.pool, 'default') = p_pool);
    if p_confirm is not true and (v_workers > 0 or v_old.isolated) then
        perform ojs._raise('OJ409', format('pool %s has %s live workers%s', p_pool, v_workers, case when v_old.isolated then
            ', and what it isolates would be open to all' else '' end), '{"field": "confirm"}', 'Say so: confirm.');
    end if;
    delete from ojs.pool p where p.name = p_pool;
    delete from ojs.pool_tally t where t.pool = v_old.id;
    perform ojs._pool_changed(v_old, null);
    return v_old;
end;
$$;
comment on function ojs.delete_pool(text, boolean) is
'Removes the configuration of a pool, and returns what it was.
Its workers are then in a pool without configuration: they get jobs of all queues that are not
isolated. Running jobs go on. Waits for the decision under way.
p_confirm: required if the pool has live workers or isolates queues or tenants.
Raises not_found, conflict.';

create or replace function ojs._pool_changed(p_old ojs.pool, p_new ojs.pool) returns void
language plpgsql
as $$
begin
    if p_old.isolated and p_old.tenants is not null then
        -- While only this pool served its tenants, their times may have moved far below or above
        -- those of other tenants. From now on all are served together: without this line, one side
        -- would get nothing until the other has caught up.
        perform ojs._raise_times(s.queue, l, s.unit, p_old.tenants, true)
        from ojs._queues_with_state() q(queue) cross join lateral ojs._state(q.queue) s cross join lateral unnest(s.levels) l;
    end if;
    insert into ojs.notice (type, subject, data, ended_at)
    select 'scheduling.rebalanced', p_old.name, jsonb_build_object('pool', p_old.name,
        'previous_strategy', coalesce(p_old.strategy, 'round-robin'), 'new_strategy', coalesce(p_new.strategy, 'round-robin')), ojs.now()
    where (p_old.strategy, p_old.weights) is distinct from (p_new.strategy, p_new.weights) and p_old.name is not null;
    perform ojs._notify(array(select distinct w.queue from ojs.waiter w));
end;
$$;
comment on function ojs._pool_changed(ojs.pool, ojs.pool) is
'Makes the next decision apply a changed pool, and notes the change as an event. Only under the
lane.';

create or replace function ojs._check_isolated(p_pool ojs.pool) returns void
language plpgsql
as $$
declare
    v_other record;
begin
    select o.name, coalesce(q, t) as what, case when q is null then 'tenants' else 'queues' end as field into v_other
    from ojs.pool o
    left join lateral (select q from unnest(o.queues) q where o.tenants is null and p_pool.tenants is null and q = any (p_pool.queues)
        limit 1) q on true
    left join lateral (select t from unnest(o.tenants) t where t = any (p_pool.tenants) limit 1) t on true
    where p_pool.isolated and o.isolated and o.name <> p_pool.name and coalesce(q, t) is not null limit 1;
    if v_other.name is not null then
        perform ojs._raise('OJ409', format('pool %s isolates %s already', v_other.name, v_other.what),
            jsonb_build_object('field', v_other.field, 'pool', v_other.name));
    end if;
end;
$$;
comment on function ojs._check_isolated(ojs.pool) is
'Raises an error if two isolated pools would have the same queue or tenant.';
