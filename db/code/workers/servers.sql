-- The server on duty, servers' clocks, and holding dispatch after a restore. Called by servers
-- (internal/sched, ojs-pg serve) and operators; _on_duty by the tick.

-- Ends the duty of a server that stops, so that another server takes it at once.
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
        perform ojs._wake('duty');
    end if;
    return found;
end;
$$;
comment on function ojs.stand_down(text) is
'Ends the duty of a server that stops, and returns whether it was on duty; for servers.
It notifies the other servers (channel ojs_wake, payload duty), so that one of them takes the duty
at once.
p_token: the token of the server''s clock (ojs.tick).';

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
    -- A duty that ends later than any that is given out does not count: the wall clock was set back
    -- since.
    if v_duty.expires_at > v_now and v_duty.expires_at <= v_now + c_lease then
        if v_duty.holder = p_token then
            if v_duty.backend is not distinct from p_backend and v_duty.expires_at > v_now + c_lease / 2 then
                return true;
            end if;
        -- Another server is on duty, and the session that it listens with still lives (or it has
        -- none).
        elsif v_duty.backend is null or ojs._session(v_duty.backend) = v_duty.session then
            return false;
        end if;
    end if;
    -- Only if the row is still as it was read: another server may have taken the duty since.
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
'Whether the server whose clock has this token is on duty; it takes the duty if no server has it.
Writes when the duty changes hands and every 15 seconds, and locks the row of ojs.duty (skip
locked) then. False: another session has locked the row, or has taken the duty first.';

-- Locks the row of the server.
-- Writes ojs.server_clock.
create or replace function ojs.note_clock(p_server text, p_ahead_seconds float8) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    insert into ojs.server_clock (server, ahead, noted_at)
    values (left(p_server, 200), make_interval(secs => p_ahead_seconds), clock_timestamp())
    on conflict (server) do update set ahead = excluded.ahead, noted_at = excluded.noted_at;
    delete from ojs.server_clock c where c.noted_at not between clock_timestamp() - interval '1 day' and clock_timestamp();
end;
$$;
comment on function ojs.note_clock(text, float8) is
'Notes that the clock of a server differs from PostgreSQL''s, for ojs.doctor; for servers, which
call it each minute while the difference is more than 10 seconds.
p_server: its host and process id; p_ahead_seconds: less than 0 if its clock is behind.';

create or replace function ojs._session(p_backend int) returns text
language sql stable
as $$
    select concat_ws(' ', a.usesysid, a.application_name) from pg_stat_get_activity(p_backend) a
    where a.pid = p_backend and a.datid = (select d.oid from pg_database d where d.datname = current_database())
$$;
comment on function ojs._session(int) is
'Role and application_name of a session of this database, by which a later session with the same
process id is recognized as another one; null: there is no such session. Any role may read these
two.';

-- After a restore, jobs that were done after the restored time seem not done. They must not run
-- again before an operator has looked at them.
create or replace view ojs.dispatch with (security_invoker = true) as
select s.held_at, coalesce(sum(q.available), 0)::bigint as available, coalesce(sum(q.active), 0)::bigint as active,
    coalesce(sum(q.scheduled), 0)::bigint as scheduled, coalesce(sum(q.retryable), 0)::bigint as retryable,
    coalesce(sum(q.pending), 0)::bigint as pending
from ojs.settings s left join ojs.queue_stats q on true group by s.held_at;
comment on view ojs.dispatch is
'Whether dispatch is held, and how many jobs would run if it were not. One row.
held_at: since when; null: it is not held.
available: would run at once.
active: when their leases end, unless they are acknowledged before.
scheduled, retryable: when they are due.';

-- Holds dispatch of all queues.
-- Locks the row of ojs.lane, so it waits for the decision under way.
-- Writes ojs.settings.
create or replace function ojs.hold_dispatch() returns ojs.dispatch
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    -- Settings first, then the lane: the other way round, decisions would wait while this call
    -- waits for a session that changes settings.
    perform from ojs.settings s for no key update;
    perform ojs._enter_lane();
    update ojs.settings s set held_at = ojs.now() where s.held_at is null;
    return (select d from ojs.dispatch d);
end;
$$;
comment on function ojs.hold_dispatch() is
'Holds dispatch of all queues until ojs.resume_dispatch, and returns the row of ojs.dispatch.
A FETCH finds no job. The clock makes no job available, takes no job back and fires no cron job.
Enqueue, ACK, NACK, heartbeat and cancel go on. Use it after a restore, before anything runs again
(ojs-pg serve --after-restore). Waits for the decision under way.';

-- Resumes dispatch.
-- Locks the rows it writes.
-- Writes ojs.settings.
create or replace function ojs.resume_dispatch() returns ojs.dispatch
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update ojs.settings s set held_at = null;
    perform ojs._notify(array(select distinct w.queue from ojs.waiter w)), ojs._wake('duty');
    return (select d from ojs.dispatch d);
end;
$$;
comment on function ojs.resume_dispatch() is
'Resumes dispatch that ojs.hold_dispatch has held, and returns the row of ojs.dispatch.
Wakes waiting workers and clocks.';
