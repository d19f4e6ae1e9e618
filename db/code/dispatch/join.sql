-- Joining: the virtual time at which a tenant begins that comes with work. And charging afterwards:
-- for jobs handed out without the lane, and for how long attempts ran. All writes here need the
-- lane.

comment on type ojs.slice is
'The rows of ojs.journal that one fold reads.
seen, upto: rows that upto sees and seen does not.
part_xid, after_lo, upto_lo: of this transaction also the rows with a lo above after_lo, up to
upto_lo (null: no rows).
becomes: the snapshot that ojs.fold has afterwards.';

create or replace function ojs._join_at(p_own numeric, p_low numeric, p_weight numeric, p_joined bigint, p_nth bigint default 1)
returns numeric
language sql immutable
as $$ select greatest(p_own, coalesce(p_low, 0) + round((coalesce(p_joined, 0) + p_nth) * 0.6180339887498949 % 1 / p_weight, 15)) $$;
comment on function ojs._join_at(numeric, numeric, numeric, bigint, bigint) is
'Returns the virtual time at which a tenant joins a ring.
That is the low of the level plus a fraction of one step (1 / weight), or its own old time if that
is later. Each tenant that joins gets the next of evenly spread fractions, so that tenants that join
together do not all go before tenants that wait.
p_own: the time it had when it left, if any.
p_low, p_joined: of the level, if there is one. Each level counts its own tenants; with one count
for all, a level could get fractions that lie close together.
p_nth: its number among the tenants that join now.';

create or replace function ojs._ahead(p_vtime numeric, p_low numeric, p_weight numeric, p_jobs bigint, p_price numeric)
returns numeric
language sql immutable
as $$ select greatest(p_vtime, least(p_vtime + round(p_price / p_weight, 15), p_low + round(100 * p_price / nullif(p_jobs, 0), 15))) $$;
comment on function ojs._ahead(numeric, numeric, numeric, bigint, numeric) is
'Returns the virtual time of a tenant after jobs that its own workers got, or a caller without the
lane: at most 100 jobs of weight 1 above the low of the level.
Other tenants get none of the turns of such workers. Without the bound shared workers would pass
over the tenant until each other tenant has had as many turns as its own workers took, hours perhaps.
p_jobs, p_price: the jobs, and what they cost in sum.';

create or replace function ojs._deficit(p_low numeric, p_vtime numeric, p_weight numeric) returns numeric
language sql immutable
as $$ select round((p_low - p_vtime) * p_weight, 6) $$;
comment on function ojs._deficit(numeric, numeric, numeric) is
'Returns a tenant''s deficit in the unit of its queue: 0 for the tenant that is next, less than 0 by
how much it has had ahead of that tenant.
p_low: of its level; p_vtime, p_weight: its time and weight. Becomes part of the query that asks.';

create or replace function ojs._lowest(p_queue text, p_level ojs.level, p_but text[]) returns numeric
language plpgsql stable
as $$
begin
    return (select f.vtime from ojs.tenant_fairness f
        where f.queue = p_queue and f.priority = p_level.priority and f.ready and f.vtime >= p_level.low
          and (p_but is null or f.tenant_id <> all (p_but))
        order by f.vtime limit 1);
end;
$$;
comment on function ojs._lowest(text, ojs.level, text[]) is
'Returns the lowest virtual time in the ring of a level, without the tenants p_but; null: there is
no other tenant.';

create or replace function ojs._raise_times(
    p_queue text, p_level ojs.level, p_unit ojs.unit, p_tenants text[], p_back boolean default false
)
returns void
language plpgsql
as $$
begin
    if p_unit = 'none' then
        return;
    end if;
    with behind as materialized (
        select f.spot, f.ready or f.at_limit as works, f.vtime
        from unnest(p_tenants) t(tenant_id)
        cross join lateral (select f.*, f.ctid as spot from ojs.tenant_fairness f
            where f.queue = p_queue and f.priority = p_level.priority and f.tenant_id = t.tenant_id order by f.rev desc limit 1) f
        where f.ready or f.at_limit or p_back and f.vtime > p_level.low
    ), step as (
        select p_level.low - min(b.vtime) filter (where b.works) as step from behind b having p_back or min(b.vtime) < p_level.low
    )
    update ojs.tenant_fairness f
    set rev = f.rev + 1, vtime = case when b.works then f.vtime + s.step else p_level.low end
    from behind b, step s where f.ctid = b.spot;
end;
$$;
comment on function ojs._raise_times(text, ojs.level, ojs.unit, text[], boolean) is
'Raises the virtual times of p_tenants by one common step, so that the lowest is the low of the
level.
For tenants whose jobs only one isolated pool gets. Other FETCHes pass over these tenants, so the
low may have risen above their times; without this a tenant that joins at the low would wait until
they have caught up.
p_back: lowers times to the low, too, also of tenants without work. For when all workers get their
jobs again: otherwise they would wait for as many jobs as the pool has given them.';

create or replace function ojs._charge(p_queue text, p_priority int, p_tenant text, p_unit ojs.unit, p_jobs int, p_price float8)
returns void
language plpgsql
as $$
declare
    v_fair  ojs.tenant_fairness;
    v_level ojs.level;
    v_own   numeric;
begin
    select * into v_fair from ojs._fair(p_queue, p_priority, p_tenant);
    select * into v_level from ojs._level(p_queue, p_priority);
    -- The tenant or level has been forgotten (ojs._forget): there is no time to move.
    if v_fair.queue is null or v_level.priority is null then
        return;
    end if;
    v_own := case when p_unit = 'none' then v_fair.vtime
        when p_jobs > 0 then ojs._ahead(v_fair.vtime, v_level.low, v_fair.weight, p_jobs, p_price::numeric)
        else v_fair.vtime + round(p_price::numeric / v_fair.weight, 15) end;
    update ojs.tenant_fairness f set rev = f.rev + 1, vtime = v_own, charged = f.charged + p_jobs
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
    if v_fair.ready then
        -- The low rises here, too, for when all callers fetch without the lane. Otherwise tenants
        -- that join at the low would be served alone until they have caught up with the tenants in
        -- the ring.
        perform ojs._change_level(p_queue, row(p_priority, null, 0, 0, 0, null),
            case when v_own < v_fair.vtime then least(v_level.low, v_own) else ojs._lowest(p_queue, v_level, null) end);
    elsif v_level.ready = 0 and v_own > v_fair.vtime then
        -- The ring is empty: tenants that join later begin where the last tenant was.
        perform ojs._change_level(p_queue, row(p_priority, null, 0, 0, 0, null), greatest(v_level.low, v_own));
    end if;
end;
$$;
comment on function ojs._charge(text, int, text, ojs.unit, int, float8) is
'Charges a tenant afterwards.
p_jobs: for how many jobs that were handed out without the lane; 0: for how long attempts ran.
p_price: the price in sum; less than 0 if attempts ran for less time than was charged.';

create or replace function ojs._charge_ends(p_slice ojs.slice) returns void
language plpgsql
as $$
begin
    perform ojs._charge_end(f.queue, r.priority, f.tenant_id, f.jobs, f.price, f.seconds)
    from (
        select f.queue, f.priority, f.tenant_id, sum(f.owed)::int as jobs, sum(f.price) as price, sum(f.seconds) as seconds
        from ojs._fresh(p_slice) f
        where f.from_state = 'active' and f.price is not null and f.xid is distinct from pg_current_xact_id_if_assigned()
        group by f.queue, f.priority, f.tenant_id
    ) f left join ojs.tenant t on t.tenant_id = f.tenant_id
    cross join lateral ojs._rank(f.queue, f.priority, t.priority_boost) r
    where r.unit = 'time';
end;
$$;
comment on function ojs._charge_ends(ojs.slice) is
'Charges tenants that share by time for how much longer their ended attempts ran than was charged,
or refunds the rest.';

create or replace function ojs._charge_end(p_queue text, p_priority int, p_tenant text, p_jobs int, p_price float8, p_seconds float8)
returns void
language plpgsql
as $$
declare
    -- At most 600 seconds: a tenant charged for too long an attempt waits until it ends.
    c_most constant real := 600;
    v_fair ojs.tenant_fairness;
    v_low  numeric;
begin
    select f.* into v_fair from ojs._fair(p_queue, p_priority, p_tenant) f;
    if v_fair.queue is null then
        return;
    end if;
    if p_price < 0 then
        -- A refund moves a tenant at most one job before the next tenant. Otherwise tenants that
        -- joined meanwhile would wait for all of it.
        v_low := (select ojs._lowest(p_queue, l, array[p_tenant]) from ojs._level(p_queue, p_priority) l);
        if v_low is not null then
            p_price := greatest(p_price, least(0, (v_low - v_fair.vtime) * v_fair.weight - v_fair.seconds));
        end if;
    end if;
    perform ojs._charge(p_queue, p_priority, p_tenant, 'time', 0, coalesce(p_price, 0));
    -- The average follows the last five attempts or so. A slower one would charge wrong prices for
    -- many jobs of another kind.
    update ojs.tenant_fairness f
    set rev = f.rev + 1, seconds = greatest(0.001, least(c_most, f.seconds + (p_seconds / p_jobs - f.seconds) * (1 - 0.8 ^ p_jobs)))
    where p_jobs > 0 and f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant
        and f.rev = (select n.rev from ojs._fair(p_queue, p_priority, p_tenant) n);
end;
$$;
comment on function ojs._charge_end(text, int, text, int, float8, float8) is
'Charges a tenant that shares by time for attempts that ended, and adapts how long its next attempt
is expected to run.
p_jobs: how many attempts (0: none ended, some have run longer); p_price: seconds beyond those
charged, in sum; p_seconds: how long the attempts ran, in sum.';

create or replace function ojs._charge_taken(p_slice ojs.slice) returns void
language plpgsql
as $$
declare
    v_taken  record;
begin
    for v_taken in
        select x.*, r.priority, r.unit
        from (
            select f.queue, f.priority as job_priority, f.tenant_id, sum(f.owed)::int as jobs, sum(f.price) as price
            from ojs._fresh(p_slice) f
            where f.from_state = 'available' and f.to_state = 'active' and f.xid is distinct from pg_current_xact_id_if_assigned()
            group by f.queue, f.priority, f.tenant_id
        ) x left join ojs.tenant t on t.tenant_id = x.tenant_id
        cross join lateral ojs._rank(x.queue, x.job_priority, t.priority_boost) r
    loop
        perform ojs._charge(v_taken.queue, v_taken.priority, v_taken.tenant_id, v_taken.unit, v_taken.jobs, v_taken.price);
        -- If all callers fetch without the lane, no decision moves the cursor. Without this loop
        -- each of them would read past all jobs that were handed out before.
        for i in 0 .. least(v_taken.jobs / 5000, 4) loop
            exit when ojs._pass_ended(v_taken.queue, v_taken.priority, v_taken.tenant_id) = 0;
        end loop;
    end loop;
end;
$$;
comment on function ojs._charge_taken(ojs.slice) is
'Charges the tenants for jobs that were handed out without the lane, and moves their cursors past
these jobs.';
