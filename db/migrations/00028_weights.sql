-- +goose Up
-- Weights and boosts, which act on the whole backlog from the next decision on. How tenants share in a queue
-- stands in (shares), how high their priorities may be in (max_priority).
set local role ojs_owner;
set local check_function_bodies = off;

-- Sets a tenant's weight, everywhere or in a queue, its boost, and how high its jobs' priorities may be.
-- Waits for the decision under way, and locks ojs.lane until the end of the transaction; before it ojs.queue, settings and job, if need be.
-- Writes tenant, queue_weight, tenant_fairness, level, backlog and again; takes back what was decided ahead.
-- +goose StatementBegin
create function ojs.configure_tenant(
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
    perform ojs._stop_ahead();
    select * into v_old from ojs.tenant t where t.tenant_id = p_tenant;
    insert into ojs.tenant as t (tenant_id, weight, priority_boost, max_priority, over_priority)
    values (p_tenant, p_weight, coalesce(p_priority_boost, 0), coalesce(p_max_priority, 100), coalesce(p_over_priority, 'refuse'))
    on conflict (tenant_id) do update
    set weight = coalesce(p_weight, t.weight), priority_boost = coalesce(p_priority_boost, t.priority_boost),
        max_priority = coalesce(p_max_priority, t.max_priority), over_priority = coalesce(p_over_priority, t.over_priority),
        created_at = coalesce(t.created_at, excluded.created_at)
    returning * into v_new;
    if v_new.weight is distinct from v_old.weight or v_new.priority_boost <> coalesce(v_old.priority_boost, 0) then
        perform ojs._reweigh(v_new, v_new.priority_boost - coalesce(v_old.priority_boost, 0));
    end if;
    return v_new;
end;
$$;
-- +goose StatementEnd
comment on function ojs.configure_tenant(text, numeric, int, int, text, text) is
'Sets a tenant''s weight (0.000001 to 1000000, default 1) and priority boost (-100 to 100, default 0), and returns its configuration; a
null argument leaves its setting as it is. Acts on the whole backlog from the next dispatch on. p_max_priority (-100 to 100, default 100):
new jobs of a higher priority are refused with validation_error or, with p_over_priority ''clamp'' (default ''refuse''), get this one,
whichever way they come. Dead letters that are retried are not new, and the boost does not count. p_queue: p_weight is the tenant''s
weight in this queue only, null takes it away (ojs.queue_weight). What is returned does not show it. Waits for a running dispatch, and
with p_max_priority or p_queue for whoever else configures queues. Raises validation_error, invalid_request, conflict in a transaction
that has fetched jobs, backend_unavailable for p_max_priority while a transaction stays open that uses jobs, and not_found for a weight to
take away that the queue does not have.';

-- Read where a tenant joins, so it is one look into an index that is empty where no queue and no deployment says anything.
-- +goose StatementBegin
create function ojs._weight_in(p_queue text, p_tenant text, p_own numeric, p_throttle numeric) returns table (weight numeric)
language sql stable rows 1
as $$
    select case when p_throttle is null or n.alike then n.weight
        else greatest(trim_scale(round(n.weight * p_throttle, 15)), 0.000001) end
    from (select coalesce(w.weight, p_own, 1) as weight, coalesce(w.tenant_id = '*', false) as alike
        from (select 1) one
        left join lateral (
            select case when w.tenant_id = '' then coalesce(p_own, w.weight) else w.weight end as weight, w.tenant_id
            from ojs.queue_weight w
            -- Asked once by a whole query. Looks into an empty index would be a fifth of what it costs to take a tenant in.
            where exists (select from ojs.queue_weight)
                and w.queue in (p_queue, '') and w.tenant_id in ('*', p_tenant, 'tenant:' || p_tenant, '')
            order by w.tenant_id = '', w.queue = '', w.tenant_id <> '*', w.tenant_id <> p_tenant limit 1) w on true) n
$$;
-- +goose StatementEnd
comment on function ojs._weight_in(text, text, numeric, numeric) is
'The weight of a tenant in a queue, the one place: 1 where the queue has all tenants alike, else the queue''s weight for the tenant, else 1
where the deployment has all alike, else the tenant''s own weight (p_own: ojs.tenant.weight), else the queue''s default weight, else the
deployment''s, else 1; and but where all are alike, p_throttle (ojs.tenant.throttle) times that. p_queue empty: in queues that do not say.
Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._reweigh(p_tenant ojs.tenant, p_by int) returns void
language plpgsql
as $$
declare
    v_fair  ojs.tenant_fairness;
    v_level ojs.level;
    v_to    int;
    v_own   numeric;
    v_new   numeric;
begin
    -- A boost moves rows to other levels. The row at the end to which they move goes first; otherwise one would meet another's key.
    for v_fair in
        select f.* from (select distinct l.queue, l.priority from ojs.level l) l
        cross join lateral ojs._fair(l.queue, l.priority, p_tenant.tenant_id) f
        order by f.queue, f.priority * case when p_by > 0 then -1 else 1 end
    loop
        select r.priority into v_to from ojs._rank(v_fair.queue, v_fair.job_priority, p_tenant.priority_boost) r;
        select * into v_level from ojs._level(v_fair.queue, v_fair.priority);
        v_own := v_fair.vtime;
        select w.weight into v_new from ojs._weight_in(v_fair.queue, p_tenant.tenant_id, p_tenant.weight, p_tenant.throttle) w;
        if v_fair.ready then
            -- The tenant's lead, counted in jobs, stays as it is; only its time is in units of the new weight.
            v_own := v_level.low + round((v_fair.vtime - v_level.low) * v_fair.weight / v_new, 15);
            perform ojs._move_level(v_level, -1, -v_fair.weight, -v_fair.weight * v_fair.vtime, null);
        end if;
        select * into v_level from ojs._level(v_fair.queue, v_to);
        v_level.queue := v_fair.queue;
        v_level.priority := v_to;
        if v_to <> v_fair.priority then
            -- Each level has a time of its own. With its old time the tenant might wait there for long, or be served alone.
            v_own := case when (select b.unit from ojs._backlog(v_fair.queue) b) = 'none' then v_own
                else ojs._join_at(0, v_level.low, v_new, v_level.joined) end;
            v_level.joined := coalesce(v_level.joined, 0) + 1;
        end if;
        update ojs.tenant_fairness f set priority = v_to, rev = f.rev + 1, vtime = v_own, weight = v_new
        where f.queue = v_fair.queue and f.priority = v_fair.priority and f.tenant_id = v_fair.tenant_id and f.rev = v_fair.rev;
        if v_fair.ready then
            perform ojs._move_level(v_level, 1, v_new, v_new * v_own, least(v_level.low, v_own));
        elsif v_to <> v_fair.priority then
            -- Rows are found by their levels. Without a level here, the next change would miss this one.
            perform ojs._move_level(v_level, 0, 0, 0, null);
        end if;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._reweigh(ojs.tenant, int) is
'Has a tenant''s weight and boost act on its rows of ojs.tenant_fairness; p_by: by how much the boost has changed. Only under the row of
ojs.lane.';

-- +goose StatementBegin
create function ojs._move_level(p_level ojs.level, p_tenants int, p_weight numeric, p_moment numeric, p_low numeric) returns void
language plpgsql
as $$
begin
    if p_level.rev is null then
        insert into ojs.level (queue, priority, rev, low, tenants, joined, weight, moment)
        values (p_level.queue, p_level.priority, 1, 0, p_tenants, coalesce(p_level.joined, 0), p_weight, p_moment);
    else
        update ojs.level l
        set rev = l.rev + 1, tenants = l.tenants + p_tenants, joined = p_level.joined, weight = l.weight + p_weight,
            moment = l.moment + p_moment, low = coalesce(p_low, l.low), used_at = ojs.now()
        where l.queue = p_level.queue and l.priority = p_level.priority and l.rev = p_level.rev;
    end if;
    if p_tenants > 0 and coalesce(p_level.tenants, 0) = 0 or p_level.tenants + p_tenants = 0 then
        perform ojs._set_backlog(p_level.queue, p_level.priority, p_tenants > 0);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._move_level(ojs.level, int, numeric, numeric, numeric) is
'Adds tenants to a level (takes them away, when negative): how many, their weights in sum, and those times their times; p_low: the lowest
time of its tenants from then on (null: as it was). A tenant that comes back where it was has not joined, so who calls counts
p_level.joined. Otherwise the beginnings of those who join later would lie in heaps.';

-- +goose StatementBegin
create function ojs._note_levels(p_queues text[], p_priorities int[]) returns setof text
language sql
as $$
    with known as materialized (
        select o.queue, o.priorities, b.spot, b.priorities as before
        from (select u.queue, array_agg(u.priority) as priorities
            from (select u.* from unnest(p_queues, p_priorities) u(queue, priority) order by u.queue, u.priority desc) u group by u.queue) o
        left join lateral (select b.priorities, b.ctid as spot from ojs.backlog b where b.queue = o.queue order by b.rev desc limit 1) b
            on true
    ), added as (
        insert into ojs.backlog (queue, rev, priorities)
        select k.queue, 1, k.priorities from known k where k.spot is null
    ), changed as (
        update ojs.backlog b
        set rev = b.rev + 1, priorities = case when k.before = '{}' then k.priorities else array(
            select p from unnest(k.before || k.priorities) p group by p order by p desc) end
        from known k where b.ctid = k.spot
    )
    select null::text where false
$$;
-- +goose StatementEnd
comment on function ojs._note_levels(text[], int[]) is
'Notes that queues have tenants with work at effective priorities; the lists are in step. Returns no rows. One by one
they would take four times as long, while others wait.';
reset role;
