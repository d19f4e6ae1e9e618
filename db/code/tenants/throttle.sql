-- Throttles (multi-tenancy section 9.2): a tenant gets less for a while. Its configuration stays as
-- it is, and holds again when the throttle ends.

-- Lowers what a tenant gets for a while.
-- Waits for the decision under way, and locks ojs.lane until the end of the transaction.
-- Writes throttle, notice, tenant, rule or quota, and what a change of weight or limit writes
-- (weights, rules, configure_limits).
create or replace function ojs.throttle(
    p_tenant text, p_reason text default 'manual', p_action text default null, p_factor numeric default null,
    p_lasts interval default null
) returns ojs.throttle
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_watch ojs.neighbour_watch := (select w from ojs.neighbour_watch w);
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    elsif (coalesce(p_action, v_watch.action) in ('weight', 'concurrency', 'rate')) is not true then
        perform ojs._raise('OJ422', 'action must be "weight", "concurrency" or "rate"', '{"field": "action"}');
    elsif (coalesce(p_factor, v_watch.factor) between 0.001 and 0.999) is not true then
        perform ojs._raise('OJ422', 'factor must be between 0.001 and 0.999', '{"field": "factor"}');
    elsif (coalesce(p_lasts, v_watch.lasts) between '1 second' and '7 days') is not true then
        perform ojs._raise('OJ422', 'lasts must be between 1 second and 7 days', '{"field": "lasts"}');
    end if;
    -- In this order: a session that sets limits locks ojs.tally_mark before the lane, too.
    perform ojs._alone_with_tally();
    perform ojs._say_if_new(p_tenant, null), ojs._stop_decisions();
    return ojs._begin_throttle(p_tenant, coalesce(left(p_reason, 1000), 'manual'), coalesce(p_action, v_watch.action),
        coalesce(p_factor, v_watch.factor), coalesce(p_lasts, v_watch.lasts), ojs._actor());
end;
$$;
comment on function ojs.throttle(text, text, text, numeric, interval) is
'Lowers for a while what a tenant gets, and returns the throttle.
It acts from the next dispatch on, changes no configuration, and replaces a throttle that the
tenant has. The event is tenant.throttled. Waits for the decision under way. A null takes the
setting of ojs.watch_neighbours.
p_action: what is lowered:
- weight; it stays where all tenants of a queue have the same weight.
- concurrency: how many of its jobs may be active. Without a limit, the limit is that part of what
it runs, at least 1. The tick lowers the weight instead for tenants with logins.
- rate: what it may enqueue: that part of its average in the span of ojs.watch_neighbours, or of
its max_enqueue_rate if that is less, at least 1 a second. More is refused with
TENANT_LIMIT_EXCEEDED (throttled_rate).
p_factor: to which part, 0.001 to 0.999.
p_lasts: 1 second to 7 days.
p_reason: kept, and shown later.
Raises invalid_request, validation_error, conflict in a transaction that has fetched jobs.';

-- Ends a throttle.
-- Locks and writes what ojs.throttle does.
create or replace function ojs.release_throttle(p_tenant text) returns setof ojs.throttle
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from ojs.throttle h where h.tenant_id = p_tenant) then
        -- In this order: a session that sets limits locks ojs.tally_mark before the lane, too.
        perform ojs._alone_with_tally();
        perform ojs._stop_decisions();
        -- What the tenant did before does not count: only a later check may throttle it again.
        delete from ojs.neighbour n where n.tenant_id = p_tenant;
        return query select e.* from ojs._end_throttle(p_tenant) e;
    end if;
end;
$$;
comment on function ojs.release_throttle(text) is
'Ends a tenant''s throttle and returns it; no row if it had none.
The event is tenant.throttle_released. Waits for the decision under way.
Raises conflict in a transaction that has fetched jobs.';

create or replace function ojs._begin_throttle(p_tenant text, p_reason text, p_action text, p_factor numeric, p_lasts interval, p_by text)
returns ojs.throttle
language plpgsql
as $$
declare
    v_throttle ojs.throttle;
    v_own      ojs.tenant;
begin
    perform ojs._end_throttle(p_tenant);
    select * into v_own from ojs.tenant t where t.tenant_id = p_tenant;
    v_throttle := (p_tenant, p_action, null, null, p_reason, ojs.now(), ojs._later(ojs.now(), p_lasts), p_by)::ojs.throttle;
    if p_action = 'weight' then
        v_throttle.original := (select w.weight from ojs._weight_in('', p_tenant, v_own.weight, null) w);
        v_throttle.effective := (select w.weight from ojs._weight_in('', p_tenant, v_own.weight, p_factor) w);
        perform ojs._multiply_weight(p_tenant, p_factor);
    elsif p_action = 'rate' then
        select s.original, s.effective into v_throttle.original, v_throttle.effective from ojs._slow_down(p_tenant, p_factor) s;
    else
        v_throttle.original := (select r.max_concurrency from ojs.rule r where r.tenant_id = p_tenant and r.queue = '');
        -- First set a limit of 1, which makes its jobs counted; the final limit is a part of that
        -- count.
        perform ojs._bound_concurrency(p_tenant, 1);
        v_throttle.effective := greatest(1, floor(p_factor * least(v_throttle.original,
            ojs._active_jobs(p_tenant, '', null))));
        update ojs.rule r set throttled_to = v_throttle.effective where r.tenant_id = p_tenant and r.queue = '';
    end if;
    insert into ojs.throttle select v_throttle.*;
    insert into ojs.notice (at, type, subject, data)
    values (v_throttle.since, 'tenant.throttled', p_tenant, ojs._throttle_event(v_throttle));
    return v_throttle;
end;
$$;
comment on function ojs._begin_throttle(text, text, text, numeric, interval, text) is
'Throttles a tenant, in place of a throttle that it has. Only after ojs._stop_decisions.';

create or replace function ojs._end_throttle(p_tenant text) returns setof ojs.throttle
language plpgsql
as $$
declare
    v_throttle ojs.throttle;
begin
    delete from ojs.throttle h where h.tenant_id = p_tenant returning * into v_throttle;
    if v_throttle.tenant_id is null then
        return;
    elsif v_throttle.action = 'weight' then
        perform ojs._multiply_weight(p_tenant, null);
    elsif v_throttle.action = 'rate' then
        perform ojs._set_quota(p_tenant, '', 'throttled_rate', null, null), ojs._give_room(ojs.now());
    else
        perform ojs._bound_concurrency(p_tenant, null);
    end if;
    update ojs.notice n set ended_at = ojs.now() where n.type = 'tenant.throttled' and n.subject = p_tenant and n.ended_at is null;
    insert into ojs.notice (type, subject, data, ended_at)
    values ('tenant.throttle_released', p_tenant, ojs._throttle_event(v_throttle), ojs.now());
    return next v_throttle;
end;
$$;
comment on function ojs._end_throttle(text) is
'Ends a tenant''s throttle and returns it, if it has one. Only after ojs._stop_decisions.';

create or replace function ojs._multiply_weight(p_tenant text, p_factor numeric) returns void
language plpgsql
as $$
declare
    v_tenant ojs.tenant;
begin
    insert into ojs.tenant as t (tenant_id, throttle, created_at) values (p_tenant, p_factor, null)
    on conflict (tenant_id) do update set throttle = excluded.throttle returning * into v_tenant;
    perform ojs._reweigh(v_tenant, 0);
    perform ojs._drop_tenant(p_tenant);
end;
$$;
comment on function ojs._multiply_weight(text, numeric) is
'Multiplies a tenant''s configured weights by p_factor (null: by 1) from the next decision on. Only
after ojs._stop_decisions.';

create or replace function ojs._bound_concurrency(p_tenant text, p_jobs int) returns void
language plpgsql
as $$
declare
    v_rule ojs.rule;
begin
    insert into ojs.rule as r (tenant_id, throttled_to) values (p_tenant, p_jobs)
    on conflict (tenant_id, queue) do update set throttled_to = excluded.throttled_to returning * into v_rule;
    perform ojs._apply_rule(v_rule);
end;
$$;
comment on function ojs._bound_concurrency(text, int) is
'Limits a tenant to p_jobs active jobs (null: as configured) from the next decision on. Only after
ojs._stop_decisions.';

create or replace function ojs._slow_down(p_tenant text, p_factor numeric, out original numeric, out effective numeric)
language plpgsql
as $$
declare
    v_span interval := (select w.span from ojs.neighbour_watch w);
    v_seen numeric;
begin
    original := (select q.maximum * 60 / extract(epoch from q.period) from ojs.quota q
        where q.tenant_id = p_tenant and q.queue = '' and q.resource = 'max_enqueue_rate');
    select (ojs._counts_since('', p_tenant, p.counts, ojs.now() - v_span)).entered * 60 / extract(epoch from v_span) into v_seen
    from (
        select row(sum(t.total), sum(t.dispatched), sum(t.completed), sum(t.cancelled), sum(t.failed_jobs), sum(t.failed))
            ::ojs.counts as counts
        from ojs.tally t where t.tenant_id = p_tenant
    ) p;
    effective := greatest(1, floor(least(original * p_factor, greatest(60, v_seen * p_factor))));
    perform ojs._set_quota(p_tenant, '', 'throttled_rate', jsonb_build_object('limit', effective, 'period', 'PT1M',
        'burst', greatest(1, floor(effective / 6))), 'throttled');
    perform ojs._give_room(ojs.now());
end;
$$;
comment on function ojs._slow_down(text, numeric) is
'Limits what a tenant may enqueue in a minute to a part of what it did. Returns the limit before
(null: none) and the limit now. Only after ojs._alone_with_tally.';

create or replace function ojs._throttle_event(p_throttle ojs.throttle) returns jsonb
language sql immutable
as $$
    select jsonb_build_object('tenant_id', p_throttle.tenant_id, 'reason', p_throttle.reason, 'action', p_throttle.action || '_reduced',
        'original_' || p_throttle.action, p_throttle.original::numeric, 'effective_' || p_throttle.action, p_throttle.effective::numeric,
        'until', to_char(p_throttle.until at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
$$;
comment on function ojs._throttle_event(ojs.throttle) is
'The data of an event about a throttle (multi-tenancy section 9.2).';

create or replace function ojs._throttle_due(p_now timestamptz) returns boolean
language plpgsql
as $$
declare
    c_most  constant int := 10;
    v_watch ojs.neighbour_watch := (select w from ojs.neighbour_watch w);
    v_ended text[] := array(select h.tenant_id from ojs.throttle h where h.until <= p_now order by h.until limit c_most);
    v_noisy text[] := array(select distinct n.tenant_id from ojs.neighbour n
        where v_watch.mode = 'on' and not exists (select from ojs.throttle h where h.tenant_id = n.tenant_id)
            and not exists (select from ojs.departure d where d.tenant_id = n.tenant_id) limit c_most);
    v_one   text;
    v_does  text;
begin
    if v_ended || v_noisy = '{}' or ojs._has_fetched() then
        return false;
    elsif not ojs._enter_lane(-1) then
        return true;
    end if;
    perform ojs._stop_decisions();
    foreach v_one in array v_ended || v_noisy loop
        -- A login that stays in its transaction keeps its tenant's count locked. With a limit, the
        -- tenant would get no second job meanwhile, so lower the weight.
        v_does := case when v_watch.action = 'concurrency' and exists (select from ojs.tenant_role r where r.tenant_id = v_one)
            then 'weight' else v_watch.action end;
        -- If another session is configuring the tenant, a later tick throttles it: decisions must
        -- not wait for that session.
        continue when not ojs._free_to_throttle(v_one);
        if v_one = any (v_ended) then
            perform ojs._end_throttle(v_one);
            -- What the tenant did before does not count: only a later check may throttle it again.
            delete from ojs.neighbour n where n.tenant_id = v_one;
        else
            perform ojs._begin_throttle(v_one, (select min(n.signal) from ojs.neighbour n where n.tenant_id = v_one) || '_exceeded',
                v_does, v_watch.factor, v_watch.lasts, null);
        end if;
    end loop;
    return c_most in (cardinality(v_ended), cardinality(v_noisy));
end;
$$;
comment on function ojs._throttle_due(timestamptz) is
'Throttles noisy tenants if mode is on, and ends throttles whose time is over, 10 at a time. Waits
for no lock; returns whether there is more to do.';

create or replace function ojs._free_to_throttle(p_tenant text) returns boolean
language plpgsql
as $$
begin
    perform from ojs.tally_mark t where t.rev = (select n.rev from ojs.tally_mark n order by n.rev desc limit 1) for update skip locked;
    if not found then
        return false;
    end if;
    perform from ojs.tenant t where t.tenant_id = p_tenant for update skip locked;
    if not found and exists (select from ojs.tenant t where t.tenant_id = p_tenant) then
        return false;
    end if;
    perform from ojs.rule r where r.tenant_id = p_tenant and r.queue = '' for update skip locked;
    return found or not exists (select from ojs.rule r where r.tenant_id = p_tenant and r.queue = '');
end;
$$;
comment on function ojs._free_to_throttle(text) is
'Locks the rows that a throttle of a tenant writes (skip locked), and returns whether it has got
all of them.';

create or replace view ojs.throttles as
select h.tenant_id, h.action,
    (case h.action when 'weight' then coalesce(u.alike, t.weight, u.fallback) when 'rate' then h.original
        else r.max_concurrency end)::float8 as original,
    (case h.action when 'concurrency' then r.most when 'rate' then h.effective
        else coalesce(u.alike, greatest(coalesce(t.weight, u.fallback) * t.throttle, 0.000001)) end)::float8 as effective,
    h.reason, h.since, h.until, case when ojs._reads_all() then h.set_by end as set_by
from (select * from ojs.throttle where ojs._reads_all() union all select * from ojs._own_throttle) h
left join ojs.tenant t on t.tenant_id = h.tenant_id
left join ojs.rule r on r.tenant_id = h.tenant_id and r.queue = ''
cross join ojs._usual_weight u;
comment on view ojs.throttles is
'Tenants that get less for a while (ojs.throttle).
A tenant sees its own row.';
comment on column ojs.throttles.tenant_id is 'The tenant.';
comment on column ojs.throttles.action is 'What is lowered: weight, concurrency or rate.';
comment on column ojs.throttles.original is
'The value without the throttle now, in queues without weights of their own; for a rate, the limit
when the throttle began, in jobs a minute; null: no limit.';
comment on column ojs.throttles.effective is 'The value with the throttle.';
comment on column ojs.throttles.reason is
'Why: a signal of ojs.noisy_neighbours followed by _exceeded, or an operator''s words.';
comment on column ojs.throttles.since is 'Since when it is throttled.';
comment on column ojs.throttles.until is 'When the throttle ends by itself.';
comment on column ojs.throttles.set_by is
'The login that set it; null: the tick, or hidden from a tenant.';
