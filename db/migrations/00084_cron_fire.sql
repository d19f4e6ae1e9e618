-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._cron_meta(p_meta jsonb, p_name text, p_due timestamptz, p_now timestamptz) returns jsonb
language sql immutable
as $$
    select p_meta || jsonb_build_object('cron_name', p_name, 'cron_scheduled_at', to_char(p_due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'cron_triggered_at', to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
$$;
-- +goose StatementEnd
comment on function ojs._cron_meta(jsonb, text, timestamptz, timestamptz) is
'The meta of a job that a cron job makes (ojs-cron section 6.3).';

-- +goose StatementBegin
create function ojs._cron_open(p_cron ojs.cron) returns uuid[]
language sql stable
as $$
    select coalesce(array_agg(j.id order by o.n), '{}')
    from unnest(p_cron.open) with ordinality o(id, n)
    cross join lateral (select j.id from ojs.job j where j.id = o.id and j.tenant_id = p_cron.tenant_id and j.state not in ('completed', 'cancelled', 'discarded') limit 1) j
$$;
-- +goose StatementEnd
comment on function ojs._cron_open(ojs.cron) is
'The jobs that a cron job made and that have not ended, oldest first: waiting, running, or to be retried.';

-- +goose StatementBegin
create function ojs._cron_first(p_cron ojs.cron) returns bigint
language sql stable
as $$
    -- In the order of the array, which a nested loop keeps: it ends with the first one.
    select o.n from unnest(p_cron.open) with ordinality o(id, n)
    cross join lateral (select j.id from ojs.job j where j.id = o.id and j.tenant_id = p_cron.tenant_id and j.state not in ('completed', 'cancelled', 'discarded') limit 1) j
    limit 1
$$;
-- +goose StatementEnd
comment on function ojs._cron_first(ojs.cron) is 'Where in open the oldest job stands that has not ended; null: all have.';

-- +goose StatementBegin
create function ojs._cron_forget(p_tenant text, p_name text) returns void
language sql
as $$
    delete from ojs.cron_run r
    using (select k.due_at from ojs.cron_run k where k.tenant_id = p_tenant and k.name = p_name
            and k.due_at < (select l.due_at from ojs.cron_run l where l.tenant_id = p_tenant and l.name = p_name order by l.due_at desc offset 1000 limit 1)
        order by k.due_at limit 1000) old
    where r.tenant_id = p_tenant and r.name = p_name and r.due_at = old.due_at
$$;
-- +goose StatementEnd
comment on function ojs._cron_forget(text, text) is
'Deletes up to a thousand of what the history of a cron job has beyond its latest thousand.';

-- +goose StatementBegin
create function ojs._run_cron(p_cron ojs.cron, p_due timestamptz, p_missed int, p_manual boolean) returns ojs.cron_run
language plpgsql
as $$
declare
    c_waiting constant int := 100;
    v_now  timestamptz := ojs.now();
    -- Looked up as far as the policy asks, and entirely when the list is full.
    v_open uuid[] := case p_cron.overlap_policy when 'allow' then p_cron.open when 'cancel_previous' then ojs._cron_open(p_cron) else coalesce(p_cron.open[ojs._cron_first(p_cron):], '{}') end;
    v_waits boolean := false;
    v_run  ojs.cron_run;
    v_job  uuid := ojs._uuid_v7();
    v_held int;
    v_state text;
begin
    if cardinality(v_open) >= c_waiting and p_cron.overlap_policy = 'enqueue' then
        v_open := ojs._cron_open(p_cron);
    end if;
    v_run := row(p_cron.tenant_id, p_cron.name, p_due, v_now, p_manual, p_missed, v_job, null, null, null);
    if not p_manual and p_cron.catch_up = 'skip' and p_due < v_now - interval '1 minute' then
        v_run.reason := 'misfire';
    elsif v_open <> '{}' and p_cron.overlap_policy = 'skip' then
        v_run.reason := 'overlap_skip';
    elsif cardinality(v_open) >= c_waiting and p_cron.overlap_policy = 'enqueue' then
        v_run.reason := 'waiting';
    elsif v_open <> '{}' and p_cron.overlap_policy = 'cancel_previous' then
        select count(*) into v_held
        from (select from ojs.job j where j.id = any (v_open) and j.tenant_id = p_cron.tenant_id and j.state not in ('completed', 'cancelled', 'discarded') for update skip locked) j;
        if v_held < cardinality(v_open) then
            -- Somebody is at one of them, and probably ends it.
            return null;
        end if;
    end if;
    if v_run.reason is not null then
        v_run.job_id := null;
        v_run.blocker := case when v_run.reason <> 'misfire' then v_open[1] end;
    end if;
    insert into ojs.cron_run values (v_run.*) on conflict do nothing;
    if not found then
        -- It was fired, and the clock of the database was set back; or the cron job was changed meanwhile.
        v_run.job_id := null;
        return v_run;
    end if;
    if p_cron.rev % 100 < 5 then
        -- Each time that it is due adds one or two to rev, and now and then a plan does.
        perform ojs._cron_forget(p_cron.tenant_id, p_cron.name);
    end if;
    if v_run.job_id is not null then
        v_waits := v_open <> '{}' and p_cron.overlap_policy = 'enqueue';
        begin
            -- Both or neither: who cannot be followed goes on.
            perform ojs.cancel(o.id, p_cron.tenant_id) from unnest(v_open) o(id) where p_cron.overlap_policy = 'cancel_previous';
            perform ojs.enqueue(p_cron.type, p_cron.args, p_cron.queue, p_cron.priority, p_meta => ojs._cron_meta(p_cron.meta, p_cron.name, p_due, v_now), p_retry => p_cron.retry,
                p_max_attempts => p_cron.max_attempts, p_timeout_ms => p_cron.timeout_ms, p_visibility_timeout_ms => coalesce(p_cron.visibility_timeout_ms, 600000), p_tags => p_cron.tags,
                -- Behind the run before: ojs._fire_crons activates it when that has ended.
                p_pending => v_waits, p_options => p_cron.options, p_extra => p_cron.extra, p_id => v_run.job_id, p_tenant => p_cron.tenant_id);
        exception when others then
            -- What another attempt can mend is attempted again with the rest of the transaction; a refusal is that of this time alone.
            get stacked diagnostics v_state = returned_sqlstate, v_run.message = message_text;
            if p_manual or v_state not like 'OJ%' and exists (select from ojs.problem p where p.sqlstate in (v_state, left(v_state, 2)) and p.retryable) then
                raise;
            end if;
            if v_state = 'OJ503' then
                -- Nobody can enqueue at this moment.
                delete from ojs.cron_run r where r.tenant_id = v_run.tenant_id and r.name = v_run.name and r.due_at = p_due;
                return null;
            end if;
            v_run.job_id := null;
            v_run.reason := 'refused';
            update ojs.cron_run r set job_id = null, reason = v_run.reason, message = v_run.message where r.tenant_id = v_run.tenant_id and r.name = v_run.name and r.due_at = p_due;
        end;
    end if;
    if v_run.job_id is not null then
        v_open := case when p_cron.overlap_policy = 'cancel_previous' then '{}' else v_open end || v_run.job_id;
        if cardinality(v_open) > c_waiting then
            -- The latest half of what has not ended, and those that wait for the run before, since the policy was another one then: who falls off the list is called up by nobody.
            v_open := array(select x.id
                from (select o.id, o.n, j.state, row_number() over (order by o.n desc) as back from unnest(v_open) with ordinality o(id, n)
                    cross join lateral (select j.state from ojs.job j where j.id = o.id and j.tenant_id = p_cron.tenant_id and j.state not in ('completed', 'cancelled', 'discarded') limit 1) j) x
                where x.back <= c_waiting / 2 or x.state = 'pending' order by x.n);
        end if;
        update ojs.cron c
        set rev = c.rev + 1, open = v_open, waiting = c.waiting or v_waits, run_count = c.run_count + 1, last_run_at = v_now,
            look_at = case when v_waits then ojs._cron_look(c, v_now + interval '1 second') else c.look_at end
        where c.id = p_cron.id;
    end if;
    return v_run;
end;
$$;
-- +goose StatementEnd
comment on function ojs._run_cron(ojs.cron, timestamptz, int, boolean) is
'Makes the job of a cron job that was due at p_due, or writes down why not, and returns the history''s row; null: a job that is to be
cancelled is locked at this moment, or nobody can enqueue. The caller holds the cron job''s row. p_missed: how many times before it
stands for.';

-- +goose StatementBegin
create function ojs._fire_crons(p_tenants text[], p_ids uuid[]) returns int
language plpgsql
as $$
declare
    c_most      constant int := 100;
    c_least     constant int := 20;
    v_until     timestamptz := clock_timestamp() + interval '50 milliseconds';
    v_due       record;
    v_fired     int := 0;
    v_cron      ojs.cron;
    v_run       ojs.cron_run;
    v_now       timestamptz;
    v_past      timestamptz[];
    v_rest      timestamptz[];
    v_open      uuid[];
    v_again     timestamptz;
    v_unplanned int := 0;
begin
    -- One of each tenant's in turn, whatever has been due for longest first.
    select array_agg(d.tenant_id order by d.turn, d.look_at, d.id) as tenants, array_agg(d.id order by d.turn, d.look_at, d.id) as ids, array_agg(d.turn order by d.turn, d.look_at, d.id) as turns into v_due
    from (
        select a.tenant_id, a.id, c.look_at, row_number() over (partition by a.tenant_id order by c.look_at, a.id) as turn
        from (select distinct a.tenant_id, a.id from unnest(p_tenants, p_ids) a(tenant_id, id)) a
        join ojs.cron c on c.id = a.id and c.tenant_id = a.tenant_id
    ) d;
    for i in 1 .. coalesce(cardinality(v_due.ids), 0) loop
        exit when v_fired >= c_most or v_fired >= c_least and v_due.turns[i] > 1 and clock_timestamp() > v_until;
        v_fired := i;
        v_now := ojs.now();
        select * into v_cron from ojs.cron c where c.id = v_due.ids[i] and c.tenant_id = v_due.tenants[i] for update skip locked;
        if not found then
            -- Gone, or in the hands of somebody who may change it, or fire it and fail.
            insert into ojs.timer (due_at, kind, tenant_ids, ids)
            select v_now + interval '200 milliseconds', 'cron', array[c.tenant_id], array[c.id] from ojs.cron c where c.id = v_due.ids[i] and c.tenant_id = v_due.tenants[i];
            continue;
        end if;
        v_again := null;
        v_past := array(select u from unnest(v_cron.upcoming) u where u <= v_now order by u);
        v_rest := array(select u from unnest(v_cron.upcoming) u where u > v_now order by u);
        if v_cron.enabled and v_past <> '{}' then
            -- However often it was due, it fires once.
            v_run := ojs._run_cron(v_cron, v_past[cardinality(v_past)], cardinality(v_past) - 1, false);
            if v_run.name is null then
                v_rest := v_cron.upcoming;
                v_again := v_now + interval '200 milliseconds';
            end if;
            select * into v_cron from ojs.cron c where c.id = v_cron.id;
        end if;
        if v_cron.left_out <> '{}' then
            insert into ojs.cron_run (tenant_id, name, due_at, reason)
            select v_cron.tenant_id, v_cron.name, u, 'dst_skip' from unnest(v_cron.left_out) u where u <= v_now and u <> all (v_rest)
            on conflict do nothing;
        end if;
        if v_cron.waiting then
            v_open := v_cron.open[ojs._cron_first(v_cron):];
            -- One after the other (ojs-cron section 6.1, enqueue).
            perform ojs.activate(j.id, j.tenant_id)
            from (select j.id, j.tenant_id from ojs.job j where j.id = v_open[1] and j.tenant_id = v_cron.tenant_id and j.state = 'pending' for update skip locked) j;
            v_cron.waiting := exists (select from unnest(v_open) o(id)
                cross join lateral (select j.id from ojs.job j where j.id = o.id and j.tenant_id = v_cron.tenant_id and j.state = 'pending' limit 1) j);
            if v_cron.waiting then
                v_again := least(v_again, v_now + interval '1 second');
            end if;
        end if;
        v_cron.upcoming := v_rest;
        if ojs._wants_plan(v_cron) then
            v_unplanned := v_unplanned + 1;
            -- Whoever is told of it may die.
            v_again := least(v_again, v_now + interval '5 seconds');
        end if;
        v_again := ojs._cron_look(v_cron, least(v_again, case when v_cron.enabled then greatest(v_rest[1], v_now) end));
        update ojs.cron c
        set rev = c.rev + (v_rest <> c.upcoming)::int, upcoming = v_rest, left_out = array(select u from unnest(c.left_out) u where u > v_now order by u), look_at = v_again,
            waiting = v_cron.waiting
        where c.id = v_cron.id and (c.upcoming, c.look_at, c.waiting) is distinct from (v_rest, v_again, v_cron.waiting);
    end loop;
    -- Half the world is due at midnight, and somebody's jobs fire every second: jobs that become due then are not to wait for all of it. What is left comes up again in its order, and not all
    -- of it at once, or nothing else would get into the next tick.
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select ojs.now() + min((i - v_fired - 1) / c_most) * interval '10 milliseconds', 'cron', array_agg(v_due.tenants[i] order by i), array_agg(v_due.ids[i] order by i)
    from generate_series(v_fired + 1, cardinality(v_due.ids)) i group by (i - v_fired - 1) / c_most;
    return v_unplanned;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fire_crons(text[], uuid[]) is
'Fires those of the cron jobs that are due, each once, one of each tenant''s in turn, and activates what waits for a run before that has
ended. What another session has locked is looked at again. After 100, or 20 when each tenant had one and 50 ms are over, the next tick
goes on. Returns how many are in want of a plan (ojs.unplanned_crons).';

-- +goose StatementBegin
create function ojs.trigger_cron(p_name text, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_cron ojs.cron := ojs._cron_for(p_name, ojs._session_tenant(p_tenant));
    v_run  ojs.cron_run;
    v_job  ojs.job;
begin
    select * into v_cron from ojs.cron c where c.id = v_cron.id for update;
    if not found then
        perform ojs._raise('OJ404', format('cron job %s does not exist', p_name), jsonb_build_object('field', 'name', 'cron_name', p_name));
    end if;
    v_run := ojs._run_cron(v_cron, ojs.now(), 0, true);
    if v_run.name is null then
        perform ojs._raise('55P03', format('a run of cron job %s is being ended', p_name));
    elsif v_run.job_id is null and v_run.reason is null then
        perform ojs._raise('OJ409', format('cron job %s was not triggered: it has a run of this very time, since the clock was set back', p_name), jsonb_build_object('cron_name', p_name), 'Try again.');
    elsif v_run.job_id is null then
        perform ojs._raise('OJ409', format('cron job %s was not triggered: job %s of it has not ended', p_name, v_run.blocker),
            jsonb_strip_nulls(jsonb_build_object('cron_name', p_name, 'reason', v_run.reason, 'job_id', v_run.blocker)), 'Wait for that job, cancel it, or choose another overlap policy.');
    end if;
    select * into v_job from ojs.job j where j.id = v_run.job_id and j.tenant_id = v_cron.tenant_id;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.trigger_cron(text, text) is
'Fires a cron job now, enabled or not, and returns the job. The schedule stays as it is; the overlap policy holds. Raises not_found,
conflict (skipped, since a run before has not ended), ambiguous_job, and what ojs.enqueue raises. Locks the row.';
reset role;
