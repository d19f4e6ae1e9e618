-- How tenants share: the weights that a queue or the deployment gives them. If there are several
-- weights, ojs._weight_in decides which one counts (tenants/weights.sql).

create or replace function ojs._check_fairness(p_fairness jsonb, p_of_queue boolean) returns void
language plpgsql
as $$
declare
    c_at    constant text := 'tenant_fairness';
    c_known constant text[] := '{enabled, strategy, weights, default_weight, unit, priority_scope}';
    v_field record;
    v_bad   text;
begin
    if jsonb_typeof(p_fairness) <> 'object' then
        perform ojs._raise('OJ422', 'tenant_fairness must be a JSON object', jsonb_build_object('field', c_at));
    end if;
    for v_field in select e.key, c_at || '.' || left(e.key, 100) as path, e.value from jsonb_each(p_fairness) e where e.value <> 'null' loop
        if not p_of_queue and (v_field.key in ('unit', 'priority_scope') or v_field.key = 'enabled' and v_field.value = 'false') then
            perform ojs._raise('OJ408', format('tenant_fairness.%s is of a queue: configure each', v_field.key),
                jsonb_build_object('field', v_field.path));
        end if;
        perform ojs._misnamed(v_field.key, c_known, c_at || '.') where v_field.key <> all (c_known);
        v_bad := case v_field.key
            when 'enabled' then case when jsonb_typeof(v_field.value) <> 'boolean' then 'must be true or false' end
            when 'strategy' then
                case when v_field.value not in ('"fair-share"', '"round-robin"') then 'must be "fair-share" or "round-robin"' end
            when 'default_weight' then ojs._weight_fault(v_field.value)
            when 'unit' then
                case when v_field.value not in ('"jobs"', '"cost"', '"time"') then 'must be "jobs", "cost" or "time"' end
            when 'priority_scope' then case when v_field.value not in ('"queue"', '"tenant"') then 'must be "queue" or "tenant"'
                when v_field.value = '"tenant"' and p_fairness -> 'enabled' = 'false' then 'must be "queue" where enabled is false' end
            when 'weights' then
                case when jsonb_typeof(v_field.value) <> 'object' or (select count(*) from jsonb_object_keys(v_field.value)) > 10000
                    then 'must be a JSON object of at most 10000 tenants' end
            else 'is no field of tenant_fairness' end;
        if v_bad is null and v_field.key = 'weights' then
            select v_field.path || '.' || left(w.key, 256), w.fault into v_field.path, v_bad
            from (
                select e.key, case when not ojs._tenant_valid(e.key) then 'is no valid tenant'
                    when e.value <> 'null' then ojs._weight_fault(e.value) end as fault
                from jsonb_each(v_field.value) e
            ) w
            where w.fault is not null order by w.key limit 1;
        end if;
        if v_bad is not null then
            perform ojs._raise(case when v_bad like 'is no%' then 'OJ400' else 'OJ422' end, v_field.path || ' ' || v_bad,
                jsonb_build_object('field', v_field.path));
        end if;
    end loop;
end;
$$;
comment on function ojs._check_fairness(jsonb, boolean) is
'Raises why a tenant_fairness of a queue, or of the deployment, is refused.';

create or replace function ojs._weight_fault(p_weight jsonb) returns text
language sql immutable
as $$
    select case when jsonb_typeof(p_weight) = 'number' and p_weight between '0.000001' and '1000000' then null
        else 'must be a number between 0.000001 and 1000000' end
$$;
comment on function ojs._weight_fault(jsonb) is 'Why a JSON value cannot be a weight, or null.';

create or replace function ojs._share_by(p_queue text, p_fairness jsonb) returns void
language plpgsql
as $$
declare
    v_names   text[];
    v_weights numeric[];
begin
    select coalesce(array_agg(n.name order by n.name), '{}'), coalesce(array_agg(n.weight order by n.name), '{}')
    into v_names, v_weights
    from (
        select '*' collate "C" as name, 1::numeric as weight
        where p_fairness ->> 'strategy' = 'round-robin' or ojs._unit(p_fairness) = 'none'
        union all
        select '', ojs._weight(p_fairness -> 'default_weight')
        union all
        select e.key collate "C", ojs._weight(e.value) from jsonb_each(nullif(p_fairness -> 'weights', 'null')) e where p_queue <> ''
    ) n
    where n.weight is not null;
    if p_queue = '' and p_fairness -> 'weights' <> 'null'
            or v_names <> array(select w.tenant_id from ojs.queue_weight w where w.queue = p_queue order by w.tenant_id)
            or v_weights <> array(select w.weight from ojs.queue_weight w where w.queue = p_queue order by w.tenant_id) then
        perform ojs._stop_decisions();
        perform ojs._audit(null, 'fairness', p_queue, 'changed', jsonb_object(array_agg(w.tenant_id::text), array_agg(w.weight::text)),
            jsonb_object(v_names, v_weights::text[]))
        from ojs.queue_weight w where w.queue = p_queue;
        delete from ojs.queue_weight w where w.queue = p_queue;
        insert into ojs.queue_weight (queue, tenant_id, weight)
        select p_queue, n.name, n.weight from unnest(v_names, v_weights) n(name, weight);
        perform ojs._weigh_tenants(nullif(p_fairness -> 'weights', 'null')) where p_queue = '';
        perform ojs._reweigh_in(nullif(p_queue, ''));
    end if;
    -- After the weights: times that begin anew must not be converted to other weights.
    perform ojs._share_unit(p_queue, ojs._unit(p_fairness)), ojs._share_order(p_queue, ojs._own_order(p_fairness)) where p_queue <> '';
end;
$$;
comment on function ojs._share_by(text, jsonb) is
'Makes the tenants of a queue (empty: of all queues without a tenant_fairness) share by p_fairness
(null: none) from the next decision on. Only after ojs._alone_with_queues.';

create or replace function ojs._unit(p_fairness jsonb) returns ojs.unit
language sql immutable
as $$ select case when p_fairness -> 'enabled' = 'false' then 'none' else coalesce(p_fairness ->> 'unit', 'jobs') end::ojs.unit $$;
comment on function ojs._unit(jsonb) is
'The unit that tenants share by a tenant_fairness; jobs by default, none if it is not enabled.';

create or replace function ojs._share_unit(p_queue text, p_unit ojs.unit) returns void
language plpgsql
as $$
declare
    v_state ojs.dispatch_state;
begin
    if p_unit = coalesce((select s.unit from ojs._state(p_queue) s), 'jobs') then
        return;
    end if;
    perform ojs._stop_decisions();
    select * into v_state from ojs._state(p_queue);
    if v_state.queue is not null and 'none' not in (v_state.unit, p_unit) then
        update ojs.dispatch_state s set rev = s.rev + 1, unit = p_unit where s.queue = p_queue and s.rev = v_state.rev;
        return;
    end if;
    -- All times begin anew: with a unit at the same time for all tenants; first in, first out at
    -- the seq of each tenant's next job.
    update ojs.tenant_fairness f
    set rev = f.rev + 1, vtime = case when p_unit <> 'none' then ojs._join_at(0, 0, f.weight, 0, n.nth)
        else coalesce(least(
            (select min(r.lo) from ojs.revisit r where f.revisit_lo is not null and r.queue = f.queue and r.priority = f.job_priority
                and r.tenant_id = f.tenant_id and r.hi > f.revisit_seq),
            (select j.seq from ojs.job j where j.queue = f.queue and j.priority = f.job_priority and j.tenant_id = f.tenant_id
                and j.seq > f.head order by j.seq limit 1)), 0) end
    from (select n.ctid as spot, row_number() over (partition by n.priority) as nth from ojs.tenant_fairness n where n.queue = p_queue) n
    where f.ctid = n.spot;
    perform ojs._set_state(p_queue, p_unit, v_state.own_order);
end;
$$;
comment on function ojs._share_unit(text, ojs.unit) is
'Makes the tenants of a queue share by a unit from the next decision on.';

create or replace function ojs._weight(p_weight jsonb) returns numeric
language sql immutable
as $$ select trim_scale(round(p_weight::numeric, 15)) where p_weight <> 'null' $$;
comment on function ojs._weight(jsonb) is
'A weight from JSON with the 15 decimals that virtual times have; null: none. A number of a
thousand digits would slow down each decision.';

create or replace function ojs._weigh_tenants(p_weights jsonb) returns void
language sql
as $$
    insert into ojs.tenant as t (tenant_id, weight)
    select distinct on (n.tenant_id) n.tenant_id, ojs._weight(n.value)
    from (
        select e.value, e.key,
            case when e.key like 'tenant:_%' and not exists (select from ojs._tenant_names k where k.tenant_id = e.key)
                and ojs._tenant_valid(substr(e.key, 8)) then substr(e.key, 8) else e.key end as tenant_id
        from jsonb_each(p_weights) e
    ) n
    order by n.tenant_id, n.key <> n.tenant_id
    on conflict (tenant_id) do update set weight = excluded.weight, created_at = coalesce(t.created_at, excluded.created_at)
    where t.weight is distinct from excluded.weight
$$;
comment on function ojs._weigh_tenants(jsonb) is
'Sets tenants'' own weights (null: none). A name means the tenant of that name, if there is one;
otherwise a prefix "tenant:" is left out.';

create or replace function ojs._weigh_in(p_queue text, p_tenant text, p_weight numeric) returns void
language plpgsql
as $$
begin
    perform ojs._alone_with_queues();
    insert into ojs.queue as q (queue, updated_at) values (p_queue, ojs.now()) on conflict (queue) do update set updated_at = ojs.now();
    perform ojs._stop_decisions();
    perform ojs._audit(p_tenant, 'fairness', p_queue, 'changed',
        (select jsonb_build_object('weight', w.weight) from ojs.queue_weight w where w.queue = p_queue and w.tenant_id = p_tenant),
        jsonb_build_object('weight', trim_scale(round(p_weight, 15))));
    if p_weight is null then
        delete from ojs.queue_weight w where w.queue = p_queue and w.tenant_id = p_tenant;
        if not found then
            perform ojs._raise('OJ404', format('queue %s has no weight for tenant %s', p_queue, p_tenant), '{"field": "queue"}',
                'Check the names; ojs.queue_weight has the weights that there are.');
        end if;
    else
        insert into ojs.queue_weight as w (queue, tenant_id, weight) values (p_queue, p_tenant, trim_scale(round(p_weight, 15)))
        on conflict (queue, tenant_id) do update set weight = excluded.weight;
    end if;
    perform ojs._reweigh_in(p_queue);
end;
$$;
comment on function ojs._weigh_in(text, text, numeric) is
'Gives a tenant a weight in a queue (null: removes it); the rest of the queue''s tenant_fairness
stays.';

create or replace function ojs._reweigh_in(p_queue text) returns void
language sql
as $$
    with changed as materialized (
        select f.ctid as spot, f.queue, f.priority, w.weight,
            -- The tenant's lead, counted in jobs, stays as it is; only its time is in units of the
            -- new weight.
            case when f.ready then l.low + round((f.vtime - l.low) * f.weight / w.weight, 15) else f.vtime end as vtime
        from ojs.tenant_fairness f
        left join ojs.tenant t on t.tenant_id = f.tenant_id
        cross join lateral ojs._weight_in(f.queue, f.tenant_id, t.weight, t.throttle) w
        left join lateral ojs._level(f.queue, f.priority) l on true
        where (p_queue is null or f.queue = p_queue) and f.weight <> w.weight
    )
    update ojs.tenant_fairness f set rev = f.rev + 1, weight = c.weight, vtime = c.vtime from changed c where f.ctid = c.spot
$$;
comment on function ojs._reweigh_in(text) is
'Makes changed weights in a queue (null: in all queues) act on its rows of ojs.tenant_fairness.
Only under the lane.';

create or replace function ojs._whole_config(p_queue text, p_config jsonb) returns jsonb
language sql stable
as $$
    select case when w.weights is null then p_config else p_config || jsonb_build_object('tenant_fairness',
        coalesce(nullif(p_config -> 'tenant_fairness', 'null'), '{}') || jsonb_build_object('weights', w.weights)) end
    from (select jsonb_object_agg(w.tenant_id, w.weight) as weights from ojs.queue_weight w
        where w.queue = p_queue and w.tenant_id not in ('', '*')) w
$$;
comment on function ojs._whole_config(text, jsonb) is
'The configuration of a queue with the weights of its tenants, as an operator gave it.';

create or replace function ojs._configured(p_queue text, p_whole boolean) returns setof ojs.queue
language sql stable rows 1
as $$
    select q.queue, q.created_at, q.updated_at, case when p_whole then ojs._whole_config(q.queue, q.config) else q.config end
    from ojs.queue q where q.queue = p_queue
$$;
comment on function ojs._configured(text, boolean) is
'A queue and its configuration. p_whole: with the weights of tenants, which tenants must not see.';
