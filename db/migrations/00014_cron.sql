-- +goose Up
-- Cron jobs. What an expression means is a matter of calendars and is told by the servers: they write the next times into ojs.cron.upcoming
-- (ojs.plan_cron). The rest is here: a timer wakes the clock, the tick takes the cron job's row, which one session can, looks at the runs before,
-- enqueues, and writes the history, in one transaction. Who is killed meanwhile has done nothing.
set local role ojs_owner;

create view ojs.crons with (security_invoker = true) as
select c.tenant_id, c.name, c.expression, c.timezone, c.enabled, c.overlap_policy, c.catch_up, case when c.enabled then c.upcoming[1] end as next_run_at, c.upcoming, c.last_run_at, c.run_count,
    c.error, c.type, c.queue, c.priority, c.args, c.meta, c.retry, c.max_attempts, c.timeout_ms, c.visibility_timeout_ms, c.tags, c.options, c.extra, c.description, c.created_at, c.updated_at
from ojs.cron c;
comment on view ojs.crons is
'Cron jobs (ojs-cron), changed by ojs.put_cron, ojs.configure_cron and ojs.delete_cron. next_run_at: null while it is disabled, has an error, or no server has looked at it yet; upcoming: the
times after it that are known; error: why it does not fire. A tenant''s role sees its own.';
grant select on ojs.crons to ojs_service, ojs_operator, ojs_tenant;

create view ojs.cron_runs with (security_invoker = true) as
select r.tenant_id, r.name, r.due_at, r.at, r.job_id, r.reason, r.message, r.blocker, r.missed, r.manual, r.at - r.due_at as late from ojs.cron_run r;
comment on view ojs.cron_runs is
'What cron jobs did when they were due: job_id, or why there is none (reason: overlap_skip, misfire, waiting, refused, dst_skip; message, blocker); missed: how many earlier times it stands for; manual:
triggered by hand. The latest thousand or so of each cron job.';
grant select on ojs.cron_runs to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs._cron_check(p_name text, p_expression text, p_timezone text, p_overlap_policy text, p_catch_up text, p_description text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if p_name is null or p_name !~ '^[a-z0-9][a-z0-9.-]*$' or length(p_name) > 255 then
        perform ojs._raise('OJ400', 'name must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 255 characters', '{"field": "name"}');
    end if;
    -- The form alone; what it means is told by a server.
    if p_expression is null or length(p_expression) > 255 or p_expression !~ '^\s*([0-9A-Za-z*,/#?-]+\s+){4,5}[0-9A-Za-z*,/#?-]+\s*$'
            and p_expression !~ '^\s*@(yearly|annually|monthly|weekly|daily|midnight|hourly|every\s+(\d+(\.\d+)?(ms|s|m|h))+)\s*$' then
        perform ojs._raise('OJ400', 'expression must have five or six fields, or be @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly or @every and a duration such as 1h30m',
            '{"field": "expression"}');
    end if;
    -- No offsets, no POSIX rules, and none of the abbreviations that the time zone database keeps for old times' sake.
    if p_timezone is null or length(p_timezone) > 64 or p_timezone !~ '^(UTC|GMT|[A-Z][A-Za-z]*[a-z-][A-Za-z-]*|[A-Z][A-Za-z]+(/[A-Z][A-Za-z0-9_+-]*)+)$' or not ojs._is_timezone(p_timezone) then
        perform ojs._raise('OJ400', 'timezone must be a name of the IANA time zone database such as Europe/Berlin', '{"field": "timezone"}');
    end if;
    if coalesce(p_overlap_policy, '') not in ('skip', 'allow', 'cancel_previous', 'enqueue') then
        perform ojs._raise('OJ400', 'overlap_policy must be "skip", "allow", "cancel_previous" or "enqueue"', '{"field": "overlap_policy"}');
    end if;
    if coalesce(p_catch_up, '') not in ('once', 'skip') then
        perform ojs._raise('OJ400', 'catch_up must be "once" or "skip"', '{"field": "catch_up"}');
    end if;
    if length(p_description) > 1000 then
        perform ojs._raise('OJ400', 'description is longer than 1000 characters', '{"field": "description"}');
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._cron_check(text, text, text, text, text, text) is 'Raises why a cron job is refused, apart from the jobs it makes.';

-- +goose StatementBegin
create function ojs._is_timezone(p_timezone text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set timezone = 'UTC'
as $$
begin
    -- PostgreSQL takes Foo/Bar+5 for a rule, whose name it tells in capitals, and europe/berlin for Europe/Berlin. pg_timezone_names would tell, too, but reads hundreds of files.
    perform set_config('timezone', p_timezone, true);
    return current_setting('timezone') = p_timezone and (p_timezone ~ '[a-z]' or p_timezone !~ '\d');
exception when invalid_parameter_value then
    return false;
end;
$$;
-- +goose StatementEnd
comment on function ojs._is_timezone(text) is 'Whether PostgreSQL has a time zone of exactly that name in its database.';

-- +goose StatementBegin
create function ojs._cron_for(p_name text, p_tenant text) returns ojs.cron
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_cron ojs.cron;
begin
    if (select count(*) from ojs.cron c where c.name = p_name and (p_tenant is null or c.tenant_id = p_tenant)) > 1 then
        perform ojs._raise('OJ411', format('cron job %s exists in more than one tenant', p_name), jsonb_build_object('field', 'name', 'cron_name', p_name));
    end if;
    select c.* into v_cron from ojs.cron c where c.name = p_name and (p_tenant is null or c.tenant_id = p_tenant);
    if not found then
        perform ojs._raise('OJ404', format('cron job %s does not exist', left(p_name, 255)), jsonb_build_object('field', 'name', 'cron_name', left(p_name, 255)));
    end if;
    return v_cron;
end;
$$;
-- +goose StatementEnd
comment on function ojs._cron_for(text, text) is 'The cron job of that name, in p_tenant or, if null, in whichever tenant has it. Raises not_found, ambiguous_job.';

-- +goose StatementBegin
create function ojs.cron_info(p_name text, p_tenant text default null) returns ojs.cron
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return ojs._cron_for(p_name, ojs._session_tenant(p_tenant));
end;
$$;
-- +goose StatementEnd
comment on function ojs.cron_info(text, text) is 'The cron job of that name (ojs-cron section 8.3). Raises not_found, also for one of another tenant; ambiguous_job.';

-- +goose StatementBegin
create function ojs._wants_plan(p_cron ojs.cron) returns boolean
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select p_cron.enabled and p_cron.error is null
        and (cardinality(p_cron.upcoming) < 2 or p_cron.upcoming[cardinality(p_cron.upcoming)] < ojs.now() + interval '5 seconds')
$$;
-- +goose StatementEnd
comment on function ojs._wants_plan(ojs.cron) is 'Whether so few of the times at which a cron job is due are known that a server is to tell more.';

-- +goose StatementBegin
create function ojs._cron_look(p_cron ojs.cron, p_at timestamptz) returns timestamptz
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if p_at is null or p_cron.look_at > ojs.now() and p_cron.look_at <= p_at then
        return p_cron.look_at;
    end if;
    insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_at, 'cron', array[p_cron.tenant_id], array[p_cron.id]);
    return p_at;
end;
$$;
-- +goose StatementEnd
comment on function ojs._cron_look(ojs.cron, timestamptz) is 'Has the clock look at a cron job at p_at, unless it will do so before, and returns when it will: its new look_at.';

-- +goose StatementBegin
create function ojs.put_cron(
    p_name text, p_expression text, p_type text, p_args json default '[]', p_timezone text default 'UTC', p_queue text default 'default', p_priority int default 0,
    p_meta jsonb default '{}', p_retry jsonb default null, p_max_attempts int default null, p_timeout_ms int default null, p_visibility_timeout_ms int default null,
    p_tags text[] default null, p_options json default null, p_extra json default null, p_overlap_policy text default 'skip', p_catch_up text default 'once',
    p_enabled boolean default null, p_description text default null, p_tenant text default null
) returns ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_most   constant int := 1000;
    v_tenant text := coalesce(ojs._session_tenant(p_tenant), ojs._unnamed_tenant(p_meta));
    v_now    timestamptz := ojs.now();
    v_same   boolean;
    v_old    ojs.cron;
    v_cron   ojs.cron;
begin
    perform ojs._cron_check(p_name, p_expression, p_timezone, p_overlap_policy, p_catch_up, p_description);
    perform ojs._check_job(v_tenant, null, p_type, p_queue, p_priority, coalesce(p_max_attempts, ojs._retry_max_attempts(p_retry), 3), null, null, p_timeout_ms,
        p_visibility_timeout_ms, p_tags, p_args, case when jsonb_typeof(p_meta) = 'object' then ojs._cron_meta(p_meta, p_name, v_now, v_now) else p_meta end, p_retry, p_options, p_extra);
    insert into ojs.cron (tenant_id, name, enabled, expression, timezone, overlap_policy, catch_up, description, anchor_at, created_at, updated_at, type, queue, priority, max_attempts, timeout_ms,
        visibility_timeout_ms, tags, args, meta, retry, options, extra)
    values (v_tenant, p_name, coalesce(p_enabled, true), p_expression, p_timezone, p_overlap_policy, p_catch_up, p_description, v_now, v_now, v_now, p_type, p_queue, p_priority, p_max_attempts,
        p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra)
    on conflict (tenant_id, name) do nothing
    returning * into v_cron;
    if found then
        if (select count(*) from (select from ojs.cron c where c.tenant_id = v_tenant limit c_most + 1) c) > c_most then
            perform ojs._raise('OJ422', format('a tenant may have at most %s cron jobs', c_most), jsonb_build_object('field', 'name', 'limit', c_most));
        end if;
        v_same := false;
    else
        select * into v_old from ojs.cron c where c.tenant_id = v_tenant and c.name = p_name for update;
        if not found then
            perform ojs._raise('40001', format('cron job %s was just deleted', p_name));
        end if;
        v_same := v_old.expression = p_expression and v_old.timezone = p_timezone and v_old.enabled = coalesce(p_enabled, v_old.enabled);
        update ojs.cron c
        set rev = c.rev + 1, enabled = coalesce(p_enabled, c.enabled), expression = p_expression, timezone = p_timezone, overlap_policy = p_overlap_policy, catch_up = p_catch_up,
            description = p_description, updated_at = greatest(v_now, c.created_at + interval '1 microsecond'), type = p_type, queue = p_queue, priority = p_priority,
            max_attempts = p_max_attempts, timeout_ms = p_timeout_ms, visibility_timeout_ms = p_visibility_timeout_ms, tags = p_tags, args = p_args, meta = p_meta, retry = p_retry,
            options = p_options, extra = p_extra
        where c.tenant_id = v_tenant and c.name = p_name
        returning * into v_cron;
    end if;
    return case when v_same then v_cron else ojs._cron_rescheduled(v_cron, v_old) end;
end;
$$;
-- +goose StatementEnd
comment on function ojs.put_cron(text, text, text, json, text, text, int, jsonb, jsonb, int, int, int, text[], json, json, text, text, boolean, text, text) is
'Registers a cron job, or changes the one of that name (ojs-cron section 8.1), and returns it; created_at = updated_at: it is new. p_expression: five fields, six with seconds first, @daily and
its like, or @every 1h30m; p_timezone: an IANA name. p_overlap_policy: skip, allow, cancel_previous, enqueue (section 6); p_catch_up: once or skip what was due more than a minute ago. p_enabled null: on,
or as it was. The other parameters are those of ojs.enqueue; p_visibility_timeout_ms null: 600000. When it fires next is told by a server, a moment later: until then upcoming is
empty, and if the expression means nothing, error says why. A change that leaves expression and time zone as they are leaves the schedule as it is. At most 1000 cron jobs per tenant.
Raises what ojs.enqueue raises. Locks the row.';

-- +goose StatementBegin
create function ojs._cron_meta(p_meta jsonb, p_name text, p_due timestamptz, p_now timestamptz) returns jsonb
language sql immutable
as $$
    select p_meta || jsonb_build_object('cron_name', p_name, 'cron_scheduled_at', to_char(p_due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'cron_triggered_at', to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
$$;
-- +goose StatementEnd
comment on function ojs._cron_meta(jsonb, text, timestamptz, timestamptz) is 'The meta of a job that a cron job makes (ojs-cron section 6.3).';

-- +goose StatementBegin
create function ojs._cron_rescheduled(p_cron ojs.cron, p_old ojs.cron) returns ojs.cron
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_cron ojs.cron;
begin
    update ojs.cron c
    set upcoming = '{}', left_out = '{}', error = null, anchor_at = case when c.expression = p_old.expression then c.anchor_at else c.updated_at end,
        look_at = case when c.enabled then ojs._cron_look(p_cron, ojs.now()) else c.look_at end
    where c.id = p_cron.id
    returning * into v_cron;
    return v_cron;
end;
$$;
-- +goose StatementEnd
comment on function ojs._cron_rescheduled(ojs.cron, ojs.cron) is 'Forgets when a cron job fires, because it was p_old and has changed, and has a server tell it anew. Returns it.';

-- +goose StatementBegin
create function ojs.configure_cron(
    p_name text, p_enabled boolean default null, p_expression text default null, p_timezone text default null, p_overlap_policy text default null, p_catch_up text default null,
    p_description text default null, p_tenant text default null
) returns ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old  ojs.cron := ojs._cron_for(p_name, ojs._session_tenant(p_tenant));
    v_cron ojs.cron;
begin
    select * into v_old from ojs.cron c where c.id = v_old.id for update;
    if not found then
        perform ojs._raise('OJ404', format('cron job %s does not exist', p_name), jsonb_build_object('field', 'name', 'cron_name', p_name));
    end if;
    perform ojs._cron_check(p_name, coalesce(p_expression, v_old.expression), coalesce(p_timezone, v_old.timezone), coalesce(p_overlap_policy, v_old.overlap_policy),
        coalesce(p_catch_up, v_old.catch_up), p_description);
    update ojs.cron c
    set rev = c.rev + 1, enabled = coalesce(p_enabled, c.enabled), expression = coalesce(p_expression, c.expression), timezone = coalesce(p_timezone, c.timezone),
        overlap_policy = coalesce(p_overlap_policy, c.overlap_policy), catch_up = coalesce(p_catch_up, c.catch_up), description = coalesce(p_description, c.description),
        updated_at = greatest(ojs.now(), c.created_at + interval '1 microsecond')
    where c.id = v_old.id
    returning * into v_cron;
    if (v_cron.enabled, v_cron.expression, v_cron.timezone) is distinct from (v_old.enabled, v_old.expression, v_old.timezone) then
        v_cron := ojs._cron_rescheduled(v_cron, v_old);
    end if;
    return v_cron;
end;
$$;
-- +goose StatementEnd
comment on function ojs.configure_cron(text, boolean, text, text, text, text, text, text) is
'Changes what is given of a cron job and returns it (ojs-cron section 8.5). p_enabled false stops it until it is true again: what would have been due meanwhile is not made up for.
Raises not_found, invalid_request, ambiguous_job. Locks the row.';

-- +goose StatementBegin
create function ojs.delete_cron(p_name text, p_tenant text default null) returns ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_cron ojs.cron := ojs._cron_for(p_name, ojs._session_tenant(p_tenant));
    v_open uuid[];
begin
    select * into v_cron from ojs.cron c where c.id = v_cron.id for update;
    if not found then
        perform ojs._raise('OJ404', format('cron job %s does not exist', p_name), jsonb_build_object('field', 'name', 'cron_name', p_name));
    end if;
    -- Nobody would call up later what waits for the run before.
    v_open := ojs._cron_open(v_cron);
    perform ojs.activate(j.id, j.tenant_id) from unnest(v_open) o(id)
    cross join lateral (select j.* from ojs.job j where j.id = o.id and j.tenant_id = v_cron.tenant_id and j.state = 'pending' for update skip locked) j;
    delete from ojs.cron c where c.id = v_cron.id;
    delete from ojs.cron_run r where r.tenant_id = v_cron.tenant_id and r.name = v_cron.name;
    return v_cron;
end;
$$;
-- +goose StatementEnd
comment on function ojs.delete_cron(text, text) is
'Removes a cron job and its history, and returns what it was (ojs-cron section 8.4). Jobs it made stay; those that waited for the run before become available. Raises not_found, ambiguous_job. Locks the row.';

-- +goose StatementBegin
create function ojs._cron_open(p_cron ojs.cron) returns uuid[]
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(j.id order by o.n), '{}')
    from unnest(p_cron.open) with ordinality o(id, n)
    cross join lateral (select j.id from ojs.job j where j.id = o.id and j.tenant_id = p_cron.tenant_id and j.state not in ('completed', 'cancelled', 'discarded') limit 1) j
$$;
-- +goose StatementEnd
comment on function ojs._cron_open(ojs.cron) is 'The jobs that a cron job made and that have not ended, oldest first: waiting, running, or to be retried.';

-- +goose StatementBegin
create function ojs._cron_first(p_cron ojs.cron) returns bigint
language sql stable set search_path = pg_catalog, pg_temp
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
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
    delete from ojs.cron_run r
    using (select k.due_at from ojs.cron_run k where k.tenant_id = p_tenant and k.name = p_name
            and k.due_at < (select l.due_at from ojs.cron_run l where l.tenant_id = p_tenant and l.name = p_name order by l.due_at desc offset 1000 limit 1)
        order by k.due_at limit 1000) old
    where r.tenant_id = p_tenant and r.name = p_name and r.due_at = old.due_at
$$;
-- +goose StatementEnd
comment on function ojs._cron_forget(text, text) is 'Deletes up to a thousand of what the history of a cron job has beyond its latest thousand.';

-- +goose StatementBegin
create function ojs._run_cron(p_cron ojs.cron, p_due timestamptz, p_missed int, p_manual boolean) returns ojs.cron_run
language plpgsql set search_path = pg_catalog, pg_temp
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
'Makes the job of a cron job that was due at p_due, or writes down why not, and returns the history''s row; null: a job that is to be cancelled is locked at this moment, or nobody can enqueue. The caller holds
the cron job''s row. p_missed: how many times before it stands for.';

-- +goose StatementBegin
create function ojs._fire_crons(p_tenants text[], p_ids uuid[]) returns int
language plpgsql set search_path = pg_catalog, pg_temp
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
'Fires those of the cron jobs that are due, each once, one of each tenant''s in turn, and activates what waits for a run before that has ended. What another session has locked is looked at again. After
100, or 20 when each tenant had one and 50 ms are over, the next tick goes on. Returns how many are in want of a plan (ojs.unplanned_crons).';

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
'Fires a cron job now, enabled or not, and returns the job. The schedule stays as it is; the overlap policy holds. Raises not_found, conflict (skipped, since a run before has not ended), ambiguous_job,
and what ojs.enqueue raises. Locks the row.';

-- +goose StatementBegin
create function ojs.unplanned_crons(p_limit int default 1000) returns table (id uuid, rev bigint, expression text, timezone text, anchor_at timestamptz, after_at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select c.id, c.rev, c.expression, c.timezone, c.anchor_at, coalesce(c.upcoming[cardinality(c.upcoming)], ojs.now())
    from ojs.cron c
    where ojs._wants_plan(c)
    order by c.upcoming[1] nulls first limit p_limit
$$;
-- +goose StatementEnd
comment on function ojs.unplanned_crons(int) is 'Cron jobs of which too few times to come are known: a server works out when they are due after after_at and says so (ojs.plan_cron). anchor_at is what @every counts from.';

-- +goose StatementBegin
create function ojs.plan_cron(p_id uuid, p_rev bigint, p_upcoming timestamptz[], p_error text default null, p_left_out timestamptz[] default '{}') returns setof ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    update ojs.cron c
    set rev = c.rev + 1, upcoming = c.upcoming || p_upcoming, left_out = c.left_out || p_left_out, error = p_error, look_at = ojs._cron_look(c, greatest((c.upcoming || p_upcoming)[1], ojs.now()))
    where c.id = p_id and c.rev = p_rev
    returning c.*;
end;
$$;
-- +goose StatementEnd
comment on function ojs.plan_cron(uuid, bigint, timestamptz[], text, timestamptz[]) is
'Appends the times at which a cron job is due, ascending, or says why there are none (p_error), and returns it. p_left_out: when clocks that are put forward leave out times between them. Nothing happens unless its rev is still p_rev. For servers. Locks the row.';

grant execute on function ojs.put_cron(text, text, text, json, text, text, int, jsonb, jsonb, int, int, int, text[], json, json, text, text, boolean, text, text),
    ojs.configure_cron(text, boolean, text, text, text, text, text, text), ojs.delete_cron(text, text), ojs.trigger_cron(text, text), ojs.cron_info(text, text) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.unplanned_crons(int), ojs.plan_cron(uuid, bigint, timestamptz[], text, timestamptz[]) to ojs_service, ojs_operator;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.plan_cron(uuid, bigint, timestamptz[], text, timestamptz[]);
drop function ojs.unplanned_crons(int);
drop function ojs.trigger_cron(text, text);
drop function ojs._fire_crons(text[], uuid[]);
drop function ojs._run_cron(ojs.cron, timestamptz, int, boolean);
drop function ojs._cron_forget(text, text);
drop function ojs._cron_first(ojs.cron);
drop function ojs._cron_open(ojs.cron);
drop function ojs.delete_cron(text, text);
drop function ojs.configure_cron(text, boolean, text, text, text, text, text, text);
drop function ojs._cron_rescheduled(ojs.cron, ojs.cron);
drop function ojs._cron_meta(jsonb, text, timestamptz, timestamptz);
drop function ojs.put_cron(text, text, text, json, text, text, int, jsonb, jsonb, int, int, int, text[], json, json, text, text, boolean, text, text);
drop function ojs._cron_look(ojs.cron, timestamptz);
drop function ojs._wants_plan(ojs.cron);
drop function ojs.cron_info(text, text);
drop function ojs._cron_for(text, text);
drop function ojs._is_timezone(text);
drop function ojs._cron_check(text, text, text, text, text, text);
drop view ojs.cron_runs;
drop view ojs.crons;
reset role;
