create or replace function ojs._clock_mark() returns ojs.clock_mark
language plpgsql stable
as $$
declare
    v_mark ojs.clock_mark;
begin
    select m.* into v_mark from ojs.clock_mark m order by m.rev desc limit 1;
    if ojs._foreign(v_mark.seen) then
        v_mark.seen := '1:1:';
        v_mark.due_at := '-infinity';
        v_mark.lease_at := '-infinity';
        v_mark.journal := '0';
        v_mark.lease := '0';
        v_mark.release := '0';
        v_mark.open := '{}';
    end if;
    return v_mark;
end;
$$;
comment on function ojs._clock_mark() is
'Returns how far the clock has come; in a logical copy the beginning, so that it looks at all timers
and leases.';

create or replace function ojs._move_clock(p_mark ojs.clock_mark, p_now timestamptz, p_looked int, p_seen pg_snapshot,
    p_lease_at timestamptz) returns ojs.clock_mark
language plpgsql
as $$
declare
    v_mark ojs.clock_mark;
begin
    -- Each tick reads all timers and leases that came after the mark. So the mark moves even if
    -- nothing is due; otherwise each tick would read more.
    if p_looked = 0 and (p_mark.lease_at between p_now - interval '1 second' and p_now
            or not exists (select from ojs.timer t where t.xid >= pg_snapshot_xmax(p_mark.seen))
            and not exists (select from ojs.lease l where l.xid >= pg_snapshot_xmax(p_mark.seen))) then
        return p_mark;
    end if;
    perform from ojs.clock_mark m where m.rev = p_mark.rev for update skip locked;
    if not found then
        return p_mark;
    end if;
    -- Another tick may have taken timers and not committed. They are still visible, and the mark
    -- stays before them, because that tick may fail.
    update ojs.clock_mark m
    set rev = m.rev + 1, seen = p_seen, lease_at = p_lease_at, journal = p_mark.journal, lease = p_mark.lease, release = p_mark.release,
        open = p_mark.open,
        due_at = least(p_now, ojs._first_timer(p_mark))
    where m.rev = p_mark.rev
    returning * into v_mark;
    return v_mark;
end;
$$;
comment on function ojs._move_clock(ojs.clock_mark, timestamptz, int, pg_snapshot, timestamptz) is
'Moves the mark to where a tick has come, and returns it.
p_looked: at how many jobs the tick looked; p_seen, p_lease_at: what ojs._reap_leases saw, and how
far it came. If another session has the mark locked, does nothing, so that jobs may be looked at
twice.';

create or replace function ojs._first_timer(p_mark ojs.clock_mark) returns timestamptz
language plpgsql stable
as $$
begin
    return least((select t.due_at from ojs.timer t where t.due_at >= p_mark.due_at order by t.due_at, t.seq limit 1),
        (select min(t.due_at) from ojs._late_timers(p_mark) t));
end;
$$;
comment on function ojs._first_timer(ojs.clock_mark) is
'Returns when the first timer that is left is due; null: there is no timer.';

create or replace function ojs._late_timers(p_mark ojs.clock_mark) returns setof ojs.timer
language sql stable rows 10
as $$
    select t.* from ojs.timer t where t.xid >= pg_snapshot_xmax(p_mark.seen) and t.due_at < p_mark.due_at
    union all
    select t.* from pg_snapshot_xip(p_mark.seen) x(xid)
    cross join lateral (select t.* from ojs.timer t where t.xid = x.xid and t.due_at < p_mark.due_at offset 0) t
    where pg_visible_in_snapshot(x.xid, (select pg_current_snapshot()))
$$;
comment on function ojs._late_timers(ojs.clock_mark) is
'Returns timers that the clock has passed without seeing them: their transactions had not committed,
or the wall clock was set back.';

create or replace function ojs._next_look_ms(p_mark ojs.clock_mark, p_now timestamptz) returns int
language plpgsql stable
as $$
declare
    v_timer timestamptz := ojs._first_timer(p_mark);
    v_lease timestamptz := (select l.due_at from ojs.lease l where l.due_at >= greatest(p_mark.lease_at, p_now) order by l.due_at limit 1);
begin
    -- A timer that is due and still there is locked by another tick, which may fail, so look again
    -- in 100 ms. On a busy system a lease ends every moment; without the minimum of 100 ms the
    -- clock would never rest.
    return least(
        case when v_timer <= p_now then 100 when v_timer > p_now then ojs._ms_until(v_timer) end,
        case when v_lease is not null then greatest(100, ojs._ms_until(v_lease)) end);
end;
$$;
comment on function ojs._next_look_ms(ojs.clock_mark, timestamptz) is
'Returns the milliseconds until the next timer or lease is due; null: there is none.';

create or replace function ojs._ms_until(p_at timestamptz) returns int
language sql
as $$
    select greatest(0, least(10000, ceil(extract(epoch from least(p_at, n.now + interval '10 seconds') - n.now) * 1000)))::int
    from (select ojs.now() as now where p_at is not null) n
$$;
comment on function ojs._ms_until(timestamptz) is
'Returns the milliseconds until a time, 0 to 10000; null for null.';

-- Changes the times to look again that were worked out while the clock was ahead. Other times of the
-- future (schedules, leases) stay as they are: the jobs' owners may have meant them.
create or replace function ojs._clock_was_set_back(p_now timestamptz) returns void
language sql
as $$
    -- A cron job that is looked at long before its time is planned anew (_fire_cron).
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select p_now, 'cron', array_agg(c.tenant_id), array_agg(c.id)
    from (
        select c.tenant_id, c.id, (row_number() over (order by c.look_at) - 1) / 100 as hundred from ojs.cron c
        where c.enabled and c.look_at >= p_now + interval '10 seconds'
    ) c group by c.hundred;
    update ojs.quota q set measure_at = null
    from (
        select o.tenant_id, o.queue, o.resource from ojs.quota o
        where o.measure_at >= p_now + interval '10 seconds' for update skip locked
    ) o where q.tenant_id = o.tenant_id and q.queue = o.queue and q.resource = o.resource;
    update ojs.upkeep_task t set not_before = p_now
    from (
        select o.task from ojs.upkeep_task o where o.not_before >= p_now + interval '10 seconds' for update skip locked
    ) o where t.task = o.task
$$;
comment on function ojs._clock_was_set_back(timestamptz) is
'Has all cron jobs planned anew from p_now on, stored bytes measured and the upkeep tried again,
after the clock was ahead and has been set back. Otherwise they would wait until the clock has
caught up. Does the same again until the mark of the clock has moved back, too. Never waits.';
