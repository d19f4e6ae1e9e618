-- Which server is on duty, and holding dispatch after a restore. Called by servers (internal/sched, ojs-pg serve) and operators; _on_duty
-- by the tick.

-- Ends the duty of a server that stops, so that another takes it at once.
-- Locks the row of ojs.duty.
-- Writes ojs.duty and ojs.sleeper.
create or replace function ojs.stand_down(p_token text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform ojs._sleeps(p_token, 0);
    update ojs.duty d set holder = null, backend = null, session = null, since = ojs.now(), expires_at = '-infinity'
    where d.holder = p_token;
    if found then
        perform pg_notify('ojs_wake', 'duty');
    end if;
    return found;
end;
$$;
comment on function ojs.stand_down(text) is
'Ends the duty of the server whose clock has this token (ojs.tick), and notifies the others (channel ojs_wake, payload duty), so that one
of them takes it at once. Returns whether it was on duty. For servers that stop.';

create or replace function ojs._on_duty(p_token text, p_backend int) returns boolean
language plpgsql
as $$
declare
    c_lease   constant interval := '30 seconds';
    v_now     timestamptz := ojs.now();
    v_duty    ojs.duty;
    v_session text;
begin
    select * into v_duty from ojs.duty;
    -- A lease longer than any that is given out is not believed: the wall clock was set back since.
    if v_duty.expires_at > v_now and v_duty.expires_at <= v_now + c_lease then
        if v_duty.holder = p_token then
            if v_duty.backend is not distinct from p_backend and v_duty.expires_at > v_now + c_lease / 2 then
                return true;
            end if;
        elsif v_duty.backend is null or ojs._session(v_duty.backend) = v_duty.session then
            return false;
        end if;
    end if;
    perform from ojs.duty d where d = v_duty for update skip locked;
    if not found then
        return false;
    end if;
    v_session := ojs._session(p_backend);
    update ojs.duty d
    set holder = p_token, backend = case when v_session is not null then p_backend end, session = v_session,
        since = case when d.holder = p_token then d.since else v_now end,
        expires_at = v_now + case when v_session is null then interval '2 seconds' else c_lease end;
    return true;
end;
$$;
comment on function ojs._on_duty(text, int) is
'Whether the server whose clock has this token is on duty, which it becomes if nobody is. Writes when the duty changes hands and every 15
seconds. Locks the row of ojs.duty then; another session at it, or faster: false.';

create or replace function ojs._session(p_backend int) returns text
language sql stable
as $$
    select concat_ws(' ', a.usesysid, a.application_name) from pg_stat_get_activity(p_backend) a
    where a.pid = p_backend and a.datid = (select d.oid from pg_database d where d.datname = current_database())
$$;
comment on function ojs._session(int) is
'What tells a session of this database from another one that had its process id before, as far as any role may know; null if there is
none.';

-- After a restore, jobs that were done after the moment restored seem undone. They must not run again before somebody has looked.
create or replace view ojs.dispatch with (security_invoker = true) as
select s.held_at, coalesce(sum(q.available), 0)::bigint as available, coalesce(sum(q.active), 0)::bigint as active,
    coalesce(sum(q.scheduled), 0)::bigint as scheduled, coalesce(sum(q.retryable), 0)::bigint as retryable,
    coalesce(sum(q.pending), 0)::bigint as pending
from ojs.settings s left join ojs.queue_stats q on true group by s.held_at;
comment on view ojs.dispatch is
'Whether dispatch is held (held_at: since when, else null), and how many jobs would run if it went on: available at once, active when
their leases end, unless they are acknowledged before, scheduled and retryable when they are due. One row.';

-- Holds dispatch of all queues.
-- Locks the row of ojs.lane, so it waits for the decision under way.
-- Writes ojs.settings.
create or replace function ojs.hold_dispatch() returns ojs.dispatch
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    -- Nobody must hold the lane and wait for who is changing the settings.
    perform from ojs.settings s for no key update;
    perform ojs._enter_lane();
    update ojs.settings s set held_at = ojs.now() where s.held_at is null;
    return (select d from ojs.dispatch d);
end;
$$;
comment on function ojs.hold_dispatch() is
'Holds dispatch of all queues until ojs.resume_dispatch: a fetch finds nothing; the clock promotes, takes back and fires nothing. Enqueue,
ACK, NACK, heartbeat and cancel go on. For the time after a restore (ojs-pg serve --after-restore), before anything runs again. Waits for
the decision under way. Returns the row of ojs.dispatch.';

-- Lets dispatch go on.
-- Locks the rows it writes.
-- Writes ojs.settings.
create or replace function ojs.resume_dispatch() returns ojs.dispatch
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update ojs.settings s set held_at = null;
    perform ojs._notify(array(select distinct w.queue from ojs.waiter w)), pg_notify('ojs_wake', 'duty');
    return (select d from ojs.dispatch d);
end;
$$;
comment on function ojs.resume_dispatch() is
'Lets dispatch go on that ojs.hold_dispatch has held, and wakes waiting workers and clocks. Returns the row of ojs.dispatch.';
