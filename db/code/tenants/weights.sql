-- Weights and boosts, which act on the whole backlog from the next decision on. See
-- tenants/shares.sql for how the tenants of a queue share, tenants/max_priority.sql for how high
-- their
-- priorities may be.

-- Sets a tenant's weight, everywhere or in a queue, its boost, and how high its jobs' priorities
-- may be.
-- For a weight or a boost, waits for the decision under way, and locks ojs.lane until the end of the
-- transaction. With p_max_priority, locks ojs.queue and settings before that.
-- Writes tenant, queue_weight, tenant_fairness and dispatch_state.
create or replace function ojs.configure_tenant(
    p_tenant text, p_weight numeric default null, p_priority_boost int default null, p_max_priority int default null,
    p_over_priority text default null, p_queue text default null
) returns ojs.tenant
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.tenant;
    v_new ojs.tenant;
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    elsif p_weight = 'NaN' then
        perform ojs._raise('OJ422', 'weight must be a number', '{"field": "weight"}');
    end if;
    perform ojs._say_if_new(p_tenant, p_queue);
    if p_queue is not null then
        if num_nonnulls(p_priority_boost, p_max_priority, p_over_priority) > 0 then
            perform ojs._raise('OJ400', 'queue goes with a weight alone', '{"field": "queue"}');
        end if;
        perform ojs._weigh_in(p_queue, p_tenant, p_weight);
        select * into v_old from ojs.tenant t where t.tenant_id = p_tenant;
        return v_old;
    end if;
    perform ojs._arm_max_priority(p_tenant, p_max_priority) where p_max_priority is not null;
    -- Decisions read weights and boosts, and no max_priority.
    if num_nonnulls(p_weight, p_priority_boost) > 0 then
        perform ojs._stop_decisions();
    else
        -- Holders of the lane may wait for the tenant's row.
        perform ojs._guard(false);
    end if;
    select * into v_old from ojs.tenant t where t.tenant_id = p_tenant;
    insert into ojs.tenant as t (tenant_id, weight, priority_boost, max_priority, over_priority)
    values (p_tenant, p_weight, coalesce(p_priority_boost, 0), coalesce(p_max_priority, 100), coalesce(p_over_priority, 'refuse'))
    on conflict (tenant_id) do update
    set weight = coalesce(p_weight, t.weight), priority_boost = coalesce(p_priority_boost, t.priority_boost),
        max_priority = coalesce(p_max_priority, t.max_priority), over_priority = coalesce(p_over_priority, t.over_priority),
        created_at = coalesce(t.created_at, excluded.created_at)
    returning * into v_new;
    if num_nonnulls(p_weight, p_priority_boost) > 0
            and (v_new.weight is distinct from v_old.weight or v_new.priority_boost <> coalesce(v_old.priority_boost, 0)) then
        perform ojs._reweigh(v_new, v_new.priority_boost - coalesce(v_old.priority_boost, 0));
    end if;
    return v_new;
end;
$$;
comment on function ojs.configure_tenant(text, numeric, int, int, text, text) is
'Sets a tenant''s weight, boost and highest priority, and returns its configuration.
Weight and boost act on the whole backlog from the next dispatch on, and wait for the decision
under way. Null leaves a setting as it is. With p_max_priority or p_queue, waits for another session
that configures queues.
p_weight: 0.000001 to 1000000, default 1.
p_priority_boost: -100 to 100, default 0.
p_max_priority: -100 to 100, default 100, the boost not counted. New jobs of a higher priority,
however they are enqueued, are treated by p_over_priority; dead letters that are retried are not
new.
p_over_priority: refuse (default): with validation_error; clamp: the job gets max_priority.
p_queue: p_weight is the tenant''s weight in this queue only, null removes it (ojs.queue_weight).
The returned configuration does not show it.
Raises validation_error, invalid_request; for a weight or a boost conflict in a transaction that has
fetched jobs; not_found for a weight to be removed that the queue does not have.';

-- Called for each tenant that joins, so it is one index lookup, in an index that is empty where
-- neither a queue nor the deployment sets weights.
create or replace function ojs._weight_in(p_queue text, p_tenant text, p_own numeric, p_throttle numeric) returns table (weight numeric)
language sql stable rows 1
as $$
    select case when p_throttle is null or n.alike then n.weight
        else greatest(trim_scale(round(n.weight * p_throttle, 15)), 0.000001) end
    from (select coalesce(w.weight, p_own, 1) as weight, coalesce(w.tenant_id = '*', false) as alike
        from (select 1) one
        left join lateral (
            select case when w.tenant_id = '' then coalesce(p_own, w.weight) else w.weight end as weight, w.tenant_id
            from ojs.queue_weight w
            -- Evaluated once for a whole query. Lookups in an empty index would be a fifth of what
            -- it costs to fold in a tenant.
            where exists (select from ojs.queue_weight)
                and w.queue in (p_queue, '') and w.tenant_id in ('*', p_tenant, 'tenant:' || p_tenant, '')
            order by w.tenant_id = '', w.queue = '', w.tenant_id <> '*', w.tenant_id <> p_tenant limit 1) w on true) n
$$;
comment on function ojs._weight_in(text, text, numeric, numeric) is
'The weight of a tenant in a queue; the only function that decides it. The first of these that
applies:
1 if the queue gives all tenants the same weight; the queue''s weight for the tenant; 1 if the
deployment gives all the same weight; the tenant''s own weight (p_own: ojs.tenant.weight); the
queue''s default weight; the deployment''s; 1.
Except where all are the same, it is multiplied by p_throttle (ojs.tenant.throttle).
p_queue empty: in queues without weights of their own. Becomes part of the query that asks.';

create or replace function ojs._reweigh(p_tenant ojs.tenant, p_by int) returns void
language plpgsql
as $$
declare
    v_fair  ojs.tenant_fairness;
    v_rank  record;
    v_from  ojs.level;
    v_to    ojs.level;
    v_own   numeric;
    v_new   numeric;
begin
    -- A boost moves rows to other levels. Begin at the end to which they move; otherwise a row
    -- would get a key that another row still has.
    for v_fair in
        select f.* from ojs._queues_with_state() q(queue)
        cross join lateral (select l.priority from ojs._state(q.queue) s cross join lateral unnest(s.levels) l) l
        cross join lateral ojs._fair(q.queue, l.priority, p_tenant.tenant_id) f
        order by f.queue, f.priority * case when p_by > 0 then -1 else 1 end
    loop
        select * into v_rank from ojs._rank(v_fair.queue, v_fair.job_priority, p_tenant.priority_boost);
        select * into v_from from unnest(v_rank.levels) l where l.priority = v_fair.priority;
        select * into v_to from unnest(v_rank.levels) l where l.priority = v_rank.priority;
        select w.weight into v_new from ojs._weight_in(v_fair.queue, p_tenant.tenant_id, p_tenant.weight, p_tenant.throttle) w;
        v_own := case when v_rank.unit = 'none' or v_rank.priority = v_fair.priority and not v_fair.ready then v_fair.vtime
            -- The tenant's lead, counted in jobs, stays as it is; only its time is in units of the
            -- new weight.
            when v_rank.priority = v_fair.priority then v_from.low + round((v_fair.vtime - v_from.low) * v_fair.weight / v_new, 15)
            -- Each level has virtual times of its own. With its old time the tenant might wait
            -- there for long, or be the only one that is served.
            else ojs._join_at(0, v_to.low, v_new, v_to.joined) end;
        update ojs.tenant_fairness f set priority = v_rank.priority, rev = f.rev + 1, vtime = v_own, weight = v_new
        where f.queue = v_fair.queue and f.priority = v_fair.priority and f.tenant_id = v_fair.tenant_id and f.rev = v_fair.rev;
        if v_rank.priority <> v_fair.priority then
            perform ojs._change_level(v_fair.queue, row(v_fair.priority, null, 0, -v_fair.ready::int, -v_fair.at_limit::int, null)),
                ojs._change_level(v_fair.queue, row(v_rank.priority, case when v_fair.ready then v_own end, 1, v_fair.ready::int,
                    v_fair.at_limit::int, null));
        end if;
    end loop;
end;
$$;
comment on function ojs._reweigh(ojs.tenant, int) is
'Makes a tenant''s weight and boost act on its rows of ojs.tenant_fairness. p_by: by how much the
boost has changed. Only under the lane.';

create or replace function ojs._queues_with_state() returns setof text
language sql stable rows 100
as $$
    -- By key from queue to queue: a scan would read all versions of each row.
    with recursive q as (
        (select s.queue from ojs.dispatch_state s order by s.queue limit 1)
        union all
        select (select s.queue from ojs.dispatch_state s where s.queue > q.queue order by s.queue limit 1) from q where q.queue is not null
    )
    select q.queue from q where q.queue is not null
$$;
comment on function ojs._queues_with_state() is
'The queues that have a row in ojs.dispatch_state, each once.';
