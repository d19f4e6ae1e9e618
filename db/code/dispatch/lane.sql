-- The lane: the row lock of ojs.lane, under which sessions decide one after another. And functions
-- that read the newest rows of the state of fairness, and change it.

create or replace function ojs._enter_lane(p_patience_ms int default 0) returns boolean
language plpgsql
as $$
declare
    v_lock_timeout text := current_setting('lock_timeout');
    v_held         boolean;
begin
    -- The statement that locks sets the guards, after the lock (offset 0), so only a session that
    -- holds the lane has them.
    select ojs._guard(true) into v_held from (select from ojs.lane l where l.lane = 0 for update skip locked offset 0) l;
    if not found then
        if p_patience_ms < 0 then
            return false;
        elsif p_patience_ms > 0 then
            begin
                perform set_config('lock_timeout', p_patience_ms::text, true);
                perform from ojs.lane l where l.lane = 0 for update;
            -- The rollback to before this block restores lock_timeout, too.
            exception when lock_not_available or deadlock_detected then
                return false;
            end;
            -- The wait for the lane alone is limited, not the statements that follow.
            perform set_config('lock_timeout', v_lock_timeout, true);
        else
            perform from ojs.lane l where l.lane = 0 for update;
        end if;
        perform ojs._guard(true);
    end if;
    return true;
end;
$$;
comment on function ojs._enter_lane(int) is
'Locks the row of ojs.lane until the transaction ends, and returns whether the session holds it.
p_patience_ms: how long to wait; 0: without limit; negative: not at all. Sets the timeouts of
ojs._guard.';

create or replace function ojs._guard(p_lane boolean) returns boolean
language sql
as $$
    select num_nulls(case when p_lane then set_config('ojs.lane', 'held', true) end,
        case when current_setting('idle_in_transaction_session_timeout')::interval not between '1 millisecond' and '10 seconds' then
            set_config('idle_in_transaction_session_timeout', '10s', true) end,
        -- Before PostgreSQL 17 this setting does not exist, and is null here.
        case when current_setting('transaction_timeout', true)::interval not between '1 millisecond' and '10 seconds' then
            set_config('transaction_timeout', '10s', true) end) >= 0
$$;
comment on function ojs._guard(boolean) is
'Limits how long this transaction may keep its locks; always true.
PostgreSQL ends the session when it idles for 10 seconds in this transaction, and from PostgreSQL 17
on when the transaction is still open after 10 seconds. p_lane: the lane is among the locks. Becomes
part of the expression that asks.';

create or replace function ojs._take_long() returns void
language plpgsql
as $$
begin
    -- Before PostgreSQL 17 this setting does not exist.
    if current_setting('transaction_timeout', true) is not null then
        perform set_config('transaction_timeout', '0', true);
    end if;
end;
$$;
comment on function ojs._take_long() is
'Lifts the limit of 10 seconds that ojs._guard has set for the transaction, so that the session may
hold the lane for longer.';

create or replace function ojs._wait_for_lane(p_needed boolean) returns boolean
language plpgsql
as $$
declare
    c_patience_ms constant int := 100;
    c_in_line_ms  constant int := 900;
    c_without     constant interval := interval '10 seconds';
    v_holder      xid;
begin
    -- After a wait in vain the session does not wait for 10 seconds: a session that works in its
    -- transaction holds the lane, and each FETCH would wait the whole 100 ms.
    if not p_needed and nullif(current_setting('ojs.lane_busy_until', true), '')::timestamptz > clock_timestamp() then
        return false;
    end if;
    -- PostgreSQL writes the id of the transaction that locks a row into its xmax.
    v_holder := (select l.xmax from ojs.lane l where l.lane = 0);
    -- If a different transaction has the lane after the first wait, sessions pass the lane on, and
    -- a longer wait will succeed.
    if ojs._enter_lane(c_patience_ms)
            or v_holder <> (select l.xmax from ojs.lane l where l.lane = 0) and ojs._enter_lane(c_in_line_ms) then
        return true;
    end if;
    perform set_config('ojs.lane_busy_until', ojs._utc(clock_timestamp() + c_without), false);
    return false;
end;
$$;
comment on function ojs._wait_for_lane(boolean) is
'Waits for the lane, which is not free, and returns whether the session holds it.
Waits 100 ms, and up to 900 ms more if a different transaction holds the lane by then. Twice as long
if several sessions wait: each waits first for the session before it, and then for the holder. After
a wait in vain the session does not wait for 10 seconds, and fetches without the lane unless it is
free.
p_needed: the session gets no jobs without the lane, so it waits each time.';

create or replace function ojs._lingers() returns boolean
language sql stable
as $$
    select statement_timestamp() - transaction_timestamp() > interval '20 milliseconds'
        and current_setting('ojs.autocommit', true) is distinct from 'on'
$$;
comment on function ojs._lingers() is
'Returns whether the caller has been in its transaction for 20 ms, so that it may stay in it and
must not hold the lane. Always false if the session has set ojs.autocommit to on: its transactions
end with their call. Becomes part of the expression that asks.';

create or replace function ojs._folded() returns setof ojs.fold
language sql stable rows 1
as $$ select f.* from ojs.fold f order by f.rev desc limit 1 $$;
comment on function ojs._folded() is
'Returns the row of ojs.fold as it is now: how far the journals are folded.';

create or replace function ojs._copied(p_fold ojs.fold) returns boolean
language sql stable
as $$ select p_fold.home <> 'ojs.fold'::regclass::oid or ojs._foreign(p_fold.snapshot) $$;
comment on function ojs._copied(ojs.fold) is
'Returns whether this database is a logical copy in which dispatch has not begun. Becomes part of
the expression that asks.';

create or replace function ojs._state(p_queue text) returns setof ojs.dispatch_state
language sql stable rows 1
as $$ select s.* from ojs.dispatch_state s where s.queue = p_queue order by s.rev desc limit 1 $$;
comment on function ojs._state(text) is
'Returns the row of ojs.dispatch_state of a queue as it is now; no row: no tenant ever had work
there.';

create or replace function ojs._level(p_queue text, p_priority int) returns setof ojs.level
language sql stable rows 1
as $$ select l.* from ojs._state(p_queue) s cross join lateral unnest(s.levels) l where l.priority = p_priority $$;
comment on function ojs._level(text, int) is
'Returns a level of a queue as it is now; no row: there is no such level.';

create or replace function ojs._fair(p_queue text, p_priority int, p_tenant text) returns setof ojs.tenant_fairness
language sql stable rows 1
as $$
    select f.* from ojs.tenant_fairness f
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant order by f.rev desc limit 1
$$;
comment on function ojs._fair(text, int, text) is
'Returns a tenant''s row of ojs.tenant_fairness as it is now; no row: the tenant has none.';

create or replace function ojs._rank(p_queue text, p_priority int, p_boost int)
returns table (priority int, unit ojs.unit, own_order boolean, levels ojs.level[], state_spot tid)
language sql stable rows 1
as $$
    select case when s.own_order then 0 else p_priority + coalesce(p_boost, 0) end, s.unit, s.own_order is true, s.levels, s.spot
    from (select 1) one
    left join lateral (select s.*, s.ctid as spot from ojs.dispatch_state s where s.queue = p_queue order by s.rev desc limit 1) s on true
$$;
comment on function ojs._rank(text, int, int) is
'Returns the effective priority of jobs: the level at which they are dispatched.
This is the one place that says so. p_priority: of the jobs; p_boost: of their tenant (null: 0).
Further columns are from the queue''s row of ojs.dispatch_state; state_spot: where that row is
(ctid). Becomes part of the query that asks.';

create or replace function ojs._merged(p_levels ojs.level[], p_by ojs.level[], p_now timestamptz) returns ojs.level[]
language plpgsql immutable
as $$
begin
    return (
        select array_agg(row(m.priority, m.low, m.joined, m.ready, m.at_limit,
            case when m.ready + m.at_limit = 0 then coalesce(m.idle_at, p_now) end)::ojs.level order by m.priority desc)
        from (
            select coalesce(l.priority, b.priority) as priority,
                case when l.priority is null then 0 else coalesce(least(l.low, b.low), l.low) end as low,
                coalesce(l.joined, 0) + coalesce(b.joined, 0) as joined, coalesce(l.ready, 0) + coalesce(b.ready, 0) as ready,
                coalesce(l.at_limit, 0) + coalesce(b.at_limit, 0) as at_limit, l.idle_at
            from unnest(p_levels) l full join unnest(p_by) b on b.priority = l.priority
        ) m);
end;
$$;
comment on function ojs._merged(ojs.level[], ojs.level[], timestamptz) is
'Returns the levels of a queue after tenants have joined or left.
p_by: per level, how many more tenants have joined, are in the ring and are at their limit, and the
lowest time of those that joined (null: none did).';

create or replace function ojs._idle_at(p_levels ojs.level[]) returns timestamptz
language plpgsql immutable
as $$
begin
    return (select min(l.idle_at) from unnest(p_levels) l);
end;
$$;
comment on function ojs._idle_at(ojs.level[]) is
'Returns the earliest idle_at of some levels; null: no level is idle.';

create or replace function ojs._change_level(p_queue text, p_by ojs.level, p_low numeric default null) returns void
language plpgsql
as $$
declare
    v_state  ojs.dispatch_state;
    v_levels ojs.level[];
begin
    select * into v_state from ojs._state(p_queue);
    v_levels := ojs._merged(v_state.levels, array[p_by], ojs.now());
    if p_low is not null then
        v_levels := array(select row(l.priority, case when l.priority = p_by.priority then p_low else l.low end, l.joined, l.ready,
            l.at_limit, l.idle_at)::ojs.level from unnest(v_levels) with ordinality l order by l.ordinality);
    end if;
    if v_state.queue is null then
        insert into ojs.dispatch_state (queue, rev, levels, idle_at) values (p_queue, 1, v_levels, ojs._idle_at(v_levels));
    else
        update ojs.dispatch_state s set rev = s.rev + 1, levels = v_levels, idle_at = ojs._idle_at(v_levels)
        where s.queue = p_queue and s.rev = v_state.rev;
    end if;
end;
$$;
comment on function ojs._change_level(text, ojs.level, numeric) is
'Changes one level of a queue as ojs._merged does, and sets its low to p_low (null: as ojs._merged
does). Only under the row of ojs.lane.';
