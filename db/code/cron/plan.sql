-- When cron jobs are due. Servers translate expressions and time zones, in Go: the server on duty
-- asks for the cron jobs of which too few future times are known (unplanned_crons) and appends
-- times (plan_cron). A timer has the tick look at a cron job at the first of its times.

create or replace function ojs._wants_plan(p_cron ojs.cron) returns boolean
language sql stable
as $$
    select p_cron.enabled and p_cron.error is null
        and (cardinality(p_cron.upcoming) < 2 or p_cron.upcoming[cardinality(p_cron.upcoming)] < ojs.now() + interval '5 seconds')
$$;
comment on function ojs._wants_plan(ojs.cron) is
'Whether a server has to work out more times of a cron job: fewer than 2 are known, or the last one
is less than 5 seconds ahead.';

-- Lists the cron jobs of which a server has to work out more times.
-- Locks their rows (skip locked).
-- Writes nothing.
create or replace function ojs.unplanned_crons(p_limit int default 1000)
returns table (id uuid, rev bigint, expression text, timezone text, anchor_at timestamptz, after_at timestamptz)
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    -- Locked rows cannot be planned now and would be first again in each call: p_limit of them
    -- would keep out all other cron jobs.
    select c.id, c.rev, c.expression, c.timezone, c.anchor_at, coalesce(c.upcoming[cardinality(c.upcoming)], ojs.now())
    from ojs.cron c
    where ojs._wants_plan(c)
    order by c.upcoming[1] nulls first limit p_limit
    for update skip locked
$$;
comment on function ojs.unplanned_crons(int) is
'Lists the cron jobs of which too few future times are known.
A server works out when each is due after after_at, and calls ojs.plan_cron. @every counts from
anchor_at. Leaves out rows that another session has locked.
Locks the rows.';

-- Appends to ojs.cron.upcoming the next times at which a cron job is due. Does nothing if the cron
-- job has changed since p_rev, or while another session has it locked.
-- Locks the row of the cron job (skip locked).
-- Writes ojs.cron, and ojs.timer.
create or replace function ojs.plan_cron(
    p_id uuid, p_rev bigint, p_upcoming timestamptz[], p_error text default null, p_left_out timestamptz[] default '{}'
) returns setof ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    -- Without skip locked, one transaction that stays open after it changed a cron job would stop
    -- the server that plans, and with it all other cron jobs that need times.
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
'Appends the times at which a cron job is due, and returns it; for servers.
Nothing happens if its rev is no longer p_rev, or while another session has it locked: then
ojs.unplanned_crons lists it again.
p_upcoming: ascending.
p_error: why there are no times.
p_left_out: due times that do not exist, because clocks are put forward.
Locks the row.';

create or replace function ojs._cron_look(p_cron ojs.cron, p_at timestamptz) returns timestamptz
language plpgsql
as $$
begin
    -- An earlier pending timer is enough: when it fires, it sets the next one (_fire_cron).
    if p_at is null or p_cron.look_at > ojs.now() and p_cron.look_at <= p_at then
        return p_cron.look_at;
    end if;
    insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_at, 'cron', array[p_cron.tenant_id], array[p_cron.id]);
    return p_at;
end;
$$;
comment on function ojs._cron_look(ojs.cron, timestamptz) is
'Sets a timer for a cron job at p_at, unless an earlier one is pending, and returns its new
look_at: when the first of its timers is due.';

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
'Forgets the known times of a cron job, so that a server works them out anew, if it is new (p_old
null) or its schedule differs from that of p_old. Returns the cron job.';
