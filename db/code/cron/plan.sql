-- When cron jobs are due. Expressions and time zones are translated by servers, in Go: the one on duty asks which cron jobs know too few
-- times to come (unplanned_crons) and appends them (plan_cron). A timer has the tick look at a cron job when the first of them is due.

create or replace function ojs._wants_plan(p_cron ojs.cron) returns boolean
language sql stable
as $$
    select p_cron.enabled and p_cron.error is null
        and (cardinality(p_cron.upcoming) < 2 or p_cron.upcoming[cardinality(p_cron.upcoming)] < ojs.now() + interval '5 seconds')
$$;
comment on function ojs._wants_plan(ojs.cron) is
'Whether so few of the times at which a cron job is due are known that a server is to tell more.';

-- The cron jobs that a server has to work out further.
-- Locks their rows (skip locked).
-- Writes nothing.
create or replace function ojs.unplanned_crons(p_limit int default 1000)
returns table (id uuid, rev bigint, expression text, timezone text, anchor_at timestamptz, after_at timestamptz)
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    -- Locked ones cannot be planned and stay unplanned. Without skip locked they would come first each time, and as many of them as
    -- p_limit would keep all others out.
    select c.id, c.rev, c.expression, c.timezone, c.anchor_at, coalesce(c.upcoming[cardinality(c.upcoming)], ojs.now())
    from ojs.cron c
    where ojs._wants_plan(c)
    order by c.upcoming[1] nulls first limit p_limit
    for update skip locked
$$;
comment on function ojs.unplanned_crons(int) is
'Cron jobs of which too few times to come are known: a server works out when they are due after after_at and says so (ojs.plan_cron).
anchor_at is what @every counts from. Leaves out those that somebody has locked; locks the rows.';

-- Appends times at which a cron job is due, unless it has changed since it was asked about, or somebody has it locked.
-- Locks its row (skip locked).
-- Writes ojs.cron, and ojs.timer.
create or replace function ojs.plan_cron(
    p_id uuid, p_rev bigint, p_upcoming timestamptz[], p_error text default null, p_left_out timestamptz[] default '{}'
) returns setof ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    -- A transaction that stays open with one cron job would keep the session that plans waiting, and with it all others that want a plan.
    perform from ojs.cron c where c.id = p_id and c.rev = p_rev for update skip locked;
    if not found then
        return;
    end if;
    return query
    update ojs.cron c
    set rev = c.rev + 1, upcoming = c.upcoming || p_upcoming, left_out = c.left_out || p_left_out, error = p_error,
        look_at = ojs._cron_look(c, greatest((c.upcoming || p_upcoming)[1], ojs.now()))
    where c.id = p_id
    returning c.*;
end;
$$;
comment on function ojs.plan_cron(uuid, bigint, timestamptz[], text, timestamptz[]) is
'Appends the times at which a cron job is due, ascending, or says why there are none (p_error), and returns it. p_left_out: when clocks
that are put forward leave out times between them. Nothing happens unless its rev is still p_rev, and nothing while somebody has it locked:
ojs.unplanned_crons brings it up again. For servers. Locks the row.';

create or replace function ojs._cron_look(p_cron ojs.cron, p_at timestamptz) returns timestamptz
language plpgsql
as $$
begin
    if p_at is null or p_cron.look_at > ojs.now() and p_cron.look_at <= p_at then
        return p_cron.look_at;
    end if;
    insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_at, 'cron', array[p_cron.tenant_id], array[p_cron.id]);
    return p_at;
end;
$$;
comment on function ojs._cron_look(ojs.cron, timestamptz) is
'Has the clock look at a cron job at p_at, unless it will do so before, and returns when it will: its new look_at.';

create or replace function ojs._reschedule(p_cron ojs.cron, p_old ojs.cron) returns ojs.cron
language plpgsql
as $$
declare
    v_cron ojs.cron;
begin
    if (p_cron.enabled, p_cron.expression, p_cron.timezone) = (p_old.enabled, p_old.expression, p_old.timezone) then
        return p_cron;
    end if;
    update ojs.cron c
    set upcoming = '{}', left_out = '{}', error = null,
        anchor_at = case when c.expression = p_old.expression then c.anchor_at else c.updated_at end,
        look_at = case when c.enabled then ojs._cron_look(p_cron, ojs.now()) else c.look_at end
    where c.id = p_cron.id
    returning * into v_cron;
    return v_cron;
end;
$$;
comment on function ojs._reschedule(ojs.cron, ojs.cron) is
'Forgets when a cron job is due and has a server work it out anew, if it is new (p_old null) or its schedule differs from p_old''s. Returns
it.';
