-- Firing: a cron job that is due makes a job, or its overlap policy says why not. ojs.cron_run
-- keeps the history.
-- Called by the tick (_fire_crons) and by ojs.trigger_cron.

-- Fires a cron job now.
-- Locks its row, and the jobs that it cancels.
-- Writes what an enqueue writes, ojs.cron_run, ojs.cron, and what a cancellation writes.
create or replace function ojs.trigger_cron(p_name text, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_cron ojs.cron := ojs._cron_for(p_name, ojs._session_tenant(p_tenant), true);
    v_run  ojs.cron_run := ojs._run_cron(v_cron, ojs.now(), 0, true);
    v_job  ojs.job;
begin
    if v_run.name is null then
        perform ojs._raise('55P03', format('a run of cron job %s is being ended', p_name));
    elsif v_run.job_id is null and v_run.reason is null then
        perform ojs._raise('OJ409',
            format('cron job %s was not triggered: it has a run of this very time, since the clock was set back', p_name),
            jsonb_build_object('cron_name', p_name), 'Try again.');
    elsif v_run.job_id is null then
        perform ojs._raise('OJ409', format('cron job %s was not triggered: job %s of it has not ended', p_name, v_run.blocker),
            jsonb_strip_nulls(jsonb_build_object('cron_name', p_name, 'reason', v_run.reason, 'job_id', v_run.blocker)),
            'Wait for that job, cancel it, or choose another overlap policy.');
    end if;
    select * into v_job from ojs.job j where j.id = v_run.job_id and j.tenant_id = v_cron.tenant_id;
    return v_job;
end;
$$;
comment on function ojs.trigger_cron(text, text) is
'Fires a cron job now, enabled or not, and returns the job.
The schedule stays as it is; the overlap policy holds.
Raises not_found, ambiguous_job, conflict (skipped, because a run before has not ended), and what
ojs.enqueue raises.
Locks the row.';

create or replace function ojs._fire_crons(p_tenants text[], p_ids uuid[]) returns int
language plpgsql
as $$
declare
    c_most      constant int := 100;
    c_least     constant int := 20;
    v_until     timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_due       record;
    v_fired     int := 0;
    v_unplanned int := 0;
begin
    -- One cron job of each tenant, then a second one of each, and so on; of one tenant first the
    -- one that has been due for longest. Otherwise a tenant with thousands of cron jobs would delay
    -- all other tenants.
    select array_agg(d.tenant_id order by d.turn, d.look_at, d.id) as tenants, array_agg(d.id order by d.turn, d.look_at, d.id) as ids,
        array_agg(d.turn order by d.turn, d.look_at, d.id) as turns
    into v_due
    from (
        select a.tenant_id, a.id, c.look_at, row_number() over (partition by a.tenant_id order by c.look_at, a.id) as turn
        from (select distinct a.tenant_id, a.id from unnest(p_tenants, p_ids) a(tenant_id, id)) a
        join ojs.cron c on c.id = a.id and c.tenant_id = a.tenant_id
        -- A departing tenant's cron jobs are about to be removed, also one whose registration
        -- committed after the departure began.
        where not exists (select from ojs.departure d where d.tenant_id = c.tenant_id and d.at >= c.created_at)
    ) d;
    for i in 1 .. coalesce(cardinality(v_due.ids), 0) loop
        exit when v_fired >= c_most or v_fired >= c_least and v_due.turns[i] > 1 and clock_timestamp() > v_until;
        v_fired := i;
        v_unplanned := v_unplanned + ojs._fire_cron(v_due.tenants[i], v_due.ids[i])::int;
    end loop;
    -- At midnight thousands are due at once. Without a bound, ordinary jobs that fall due then
    -- would wait for all of them. The rest gets timers in its order, 100 cron jobs each and 10 ms
    -- after each other; one timer for all would fill the next tick.
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select ojs.now() + min((i - v_fired - 1) / c_most) * interval '10 milliseconds', 'cron',
        array_agg(v_due.tenants[i] order by i), array_agg(v_due.ids[i] order by i)
    from generate_series(v_fired + 1, cardinality(v_due.ids)) i group by (i - v_fired - 1) / c_most;
    return v_unplanned;
end;
$$;
comment on function ojs._fire_crons(text[], uuid[]) is
'Fires the given cron jobs that are due, each once, and makes waiting jobs available if their run
before has ended. Tenants alternate. Cron jobs that another session has locked get a timer. Stops
after 100 cron jobs; or after 20, if each tenant had one and 50 ms have passed. A timer makes the
next tick go on. Returns for how many cron jobs a server has to work out more times
(ojs.unplanned_crons).';

create or replace function ojs._fire_cron(p_tenant text, p_id uuid) returns boolean
language plpgsql
as $$
declare
    v_now   timestamptz := ojs.now();
    v_cron  ojs.cron;
    v_run   ojs.cron_run;
    v_past  timestamptz[];
    v_rest  timestamptz[];
    v_again timestamptz;
    v_wants boolean;
begin
    select * into v_cron from ojs.cron c where c.id = p_id and c.tenant_id = p_tenant for update skip locked;
    if not found then
        -- The row was deleted, or another session has it locked. That session may change it, or
        -- fire it and roll back: look again in 200 ms.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select v_now + interval '200 milliseconds', 'cron', array[c.tenant_id], array[c.id]
        from ojs.cron c where c.id = p_id and c.tenant_id = p_tenant;
        return false;
    end if;
    v_past := array(select u from unnest(v_cron.upcoming) u where u <= v_now order by u);
    v_rest := array(select u from unnest(v_cron.upcoming) u where u > v_now order by u);
    if v_cron.enabled and v_past <> '{}' then
        -- However often it was due, it fires once, for the latest of these times.
        v_run := ojs._run_cron(v_cron, v_past[cardinality(v_past)], cardinality(v_past) - 1, false);
        -- Nothing was written (a job to be cancelled is locked, or enqueueing is not possible): all
        -- times stay, for a second attempt in 200 ms.
        if v_run.name is null then
            v_rest := v_cron.upcoming;
            v_again := v_now + interval '200 milliseconds';
        end if;
        select * into v_cron from ojs.cron c where c.id = v_cron.id;
    elsif v_cron.enabled and v_cron.look_at >= v_now + interval '10 seconds' then
        -- Its own timer is due later, so this one is of ojs._clock_was_set_back: the known times
        -- follow a moment that the clock had reached, and the next one may be days away. If this is
        -- an older timer, planning anew gives the same times.
        v_rest := '{}';
        v_cron.left_out := '{}';
    end if;
    -- Due times that did not exist, because clocks were put forward, get a row of the history, too.
    insert into ojs.cron_run (tenant_id, name, due_at, reason)
    select v_cron.tenant_id, v_cron.name, u, 'dst_skip' from unnest(v_cron.left_out) u where u <= v_now and u <> all (v_rest)
    on conflict do nothing;
    if v_cron.waiting then
        v_cron.waiting := ojs._call_next_run(v_cron);
        v_again := case when v_cron.waiting then least(v_again, v_now + interval '1 second') else v_again end;
    end if;
    v_cron.upcoming := v_rest;
    v_wants := ojs._wants_plan(v_cron);
    -- A server is asked for more times. If it dies before it answers, the timer asks again in 5
    -- seconds.
    v_again := ojs._cron_look(v_cron, least(v_again, case when v_wants then v_now + interval '5 seconds' end,
        case when v_cron.enabled then greatest(v_rest[1], v_now) end));
    update ojs.cron c
    set rev = c.rev + (v_rest <> c.upcoming)::int, upcoming = v_rest,
        left_out = array(select u from unnest(v_cron.left_out) u where u > v_now order by u),
        anchor_at = least(c.anchor_at, v_now), look_at = v_again, waiting = v_cron.waiting
    where c.id = v_cron.id and (c.upcoming, c.look_at, c.waiting) is distinct from (v_rest, v_again, v_cron.waiting);
    return v_wants;
end;
$$;
comment on function ojs._fire_cron(text, uuid) is
'Fires a cron job if it is due, makes the next waiting job available if its run before has ended,
and sets a timer for when the cron job is due next. Returns whether a server has to work out more
times. Forgets the known times if the clock was set back. If another session has the row locked, a
timer has it looked at again in 200 ms.';

create or replace function ojs._run_cron(p_cron ojs.cron, p_due timestamptz, p_missed int, p_manual boolean) returns ojs.cron_run
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_open uuid[] := ojs._jobs_before(p_cron);
    v_run  ojs.cron_run := row(p_cron.tenant_id, p_cron.name, p_due, v_now, p_manual, p_missed, ojs._uuid_v7(), null, null, null);
begin
    v_run.reason := case
        when not p_manual and p_cron.catch_up = 'skip' and p_due < v_now - interval '1 minute' then 'misfire'
        when v_open <> '{}' and p_cron.overlap_policy = 'skip' then 'overlap_skip'
        when cardinality(v_open) >= ojs._cron_most_open() and p_cron.overlap_policy = 'enqueue' then 'waiting' end;
    if v_run.reason is not null then
        v_run.job_id := null;
        v_run.blocker := case when v_run.reason <> 'misfire' then v_open[1] end;
    elsif p_cron.overlap_policy = 'cancel_previous' and not ojs._lock_open(p_cron, v_open) then
        -- Another session has one of the jobs locked, and probably ends it. Cancelling would wait
        -- for that session.
        return null;
    end if;
    insert into ojs.cron_run values (v_run.*) on conflict do nothing;
    if not found then
        -- The history has this time already: the cron job was fired, and the database's clock was
        -- set back or the cron job was changed since.
        v_run.job_id := null;
        return v_run;
    end if;
    -- Trimming reads the history, so only some runs do it. Each run adds one or two to rev.
    if p_cron.rev % 100 < 5 then
        perform ojs._trim_cron_runs(p_cron.tenant_id, p_cron.name);
    end if;
    if v_run.job_id is not null then
        v_run := ojs._make_cron_job(p_cron, v_run, v_open);
    end if;
    if v_run.job_id is not null then
        perform ojs._note_cron_job(p_cron, v_run, v_open);
    end if;
    return v_run;
end;
$$;
comment on function ojs._run_cron(ojs.cron, timestamptz, int, boolean) is
'Makes the job of a cron job that was due at p_due, or notes why not, and returns the row of the
history. Null: nothing was noted, because a job that is to be cancelled is locked now, or
enqueueing is not possible now. The caller holds the lock of the cron job''s row. p_missed: how
many earlier times this run stands for.';

create or replace function ojs._make_cron_job(p_cron ojs.cron, p_run ojs.cron_run, p_open uuid[]) returns ojs.cron_run
language plpgsql
as $$
declare
    v_run   ojs.cron_run := p_run;
    v_state text;
    v_meta  jsonb := ojs._cron_meta(p_cron.meta, p_cron.name, p_run.due_at, p_run.at);
    v_bytes bigint := ojs._size(p_cron.args, v_meta, p_cron.tags, p_cron.retry, p_cron.options, p_cron.extra);
begin
    if not p_run.manual and exists (
            select from ojs._fit(row(p_cron.tenant_id, p_cron.queue, 'available', 1, v_bytes, array[v_bytes])::ojs._new_group,
                ojs._wanted(1, 'available', v_bytes, true), ojs._allowances(p_cron.tenant_id, p_cron.queue)) r
            where (r.refusal).detail ? 'busy') then
        -- ojs.enqueue would wait for the transactions that hold the rest of the limit. In the tick
        -- that wait would stop the clock for all tenants.
        perform ojs._raise('OJ503', 'others have what is left of a limit');
    end if;
    -- Cancelling and enqueueing are one subtransaction: if the new job is refused, the jobs that
    -- would have been cancelled go on.
    perform ojs.cancel(o.id, p_cron.tenant_id) from unnest(p_open) o(id) where p_cron.overlap_policy = 'cancel_previous';
    perform ojs.enqueue(p_cron.type, p_cron.args::text, p_cron.queue, p_cron.priority,
        p_meta => v_meta::text, p_retry => p_cron.retry::text,
        p_max_attempts => p_cron.max_attempts, p_timeout_ms => p_cron.timeout_ms,
        p_visibility_timeout_ms => coalesce(p_cron.visibility_timeout_ms, 600000), p_tags => p_cron.tags,
        p_pending => ojs._waits_for_run(p_cron, p_open), p_options => p_cron.options::text,
        p_extra => p_cron.extra::text, p_id => p_run.job_id, p_tenant => p_cron.tenant_id);
    return v_run;
exception when others then
    get stacked diagnostics v_state = returned_sqlstate, v_run.message = message_text;
    -- Errors that a repetition can overcome are raised, and the whole transaction is repeated. A
    -- refusal concerns this run only, and is noted.
    if p_run.manual or v_state not like 'OJ%'
            and exists (select from ojs.problem p where p.sqlstate in (v_state, left(v_state, 2)) and p.retryable) then
        raise;
    end if;
    if v_state = 'OJ503' then
        -- Enqueueing is not possible at this moment: leave no row of the history, so that the same
        -- time can be fired later.
        delete from ojs.cron_run r where r.tenant_id = v_run.tenant_id and r.name = v_run.name and r.due_at = v_run.due_at;
        return null;
    end if;
    v_run.job_id := null;
    v_run.reason := 'refused';
    update ojs.cron_run r set job_id = null, reason = v_run.reason, message = v_run.message
    where r.tenant_id = v_run.tenant_id and r.name = v_run.name and r.due_at = v_run.due_at;
    return v_run;
end;
$$;
comment on function ojs._make_cron_job(ojs.cron, ojs.cron_run, uuid[]) is
'Enqueues the job of a run, and before that cancels p_open if the policy says so. Returns the run;
with reason "refused" and the message, if the job was refused. Null, and no row of the history:
enqueueing is not possible now.';
