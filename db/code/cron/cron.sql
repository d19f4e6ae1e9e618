-- Cron jobs: register, change, remove, list. Servers work out when they are due (cron/plan.sql);
-- the tick fires them (cron/fire.sql). Called by tenants, over HTTP and in SQL.

create or replace view ojs.crons as
select c.tenant_id, c.name, c.expression, c.timezone, c.enabled, c.overlap_policy, c.catch_up,
    case when c.enabled then c.upcoming[1] end as next_run_at, c.upcoming, c.last_run_at, c.run_count, c.error,
    c.type, c.queue, c.priority, c.args, c.meta, c.retry, c.max_attempts, c.timeout_ms, c.visibility_timeout_ms, c.tags, c.options, c.extra,
    c.description, c.created_at, c.updated_at
from (select c.* from ojs.cron c where ojs._reads_all() union all select * from ojs._own_cron) c;
comment on view ojs.crons is
'Cron jobs (ojs-cron), changed by ojs.put_cron, ojs.configure_cron and ojs.delete_cron.
next_run_at: null while the cron job is disabled, has an error, or no server has looked at it yet.
upcoming: when it fires next, as far as known; the first is next_run_at.
error: why it does not fire.
A tenant''s role sees its own.';

create or replace view ojs.cron_runs as
select r.tenant_id, r.name, r.due_at, r.at, r.job_id, r.reason, r.message, r.blocker, r.missed, r.manual, r.at - r.due_at as late
from (select r.* from ojs.cron_run r where ojs._reads_all() union all select * from ojs._own_cron_run) r;
comment on view ojs.cron_runs is
'What cron jobs did when they were due.
job_id: the job that was made; null if the run was skipped.
reason: overlap_skip, misfire, waiting, refused or dst_skip; message and blocker say more.
missed: how many earlier times the run stands for.
manual: triggered by hand.
Each cron job keeps its latest 1000 rows, and about 100 more at most.';

-- Registers a cron job, or changes the one of that name.
-- Locks its row.
-- Writes ojs.cron, and ojs.timer when the schedule is new.
create or replace function ojs.put_cron(
    p_name text, p_expression text, p_type text, p_args text default '[]', p_timezone text default 'UTC',
    p_queue text default 'default', p_priority int default 0, p_meta anycompatible default '{}', p_retry anycompatible default null,
    p_max_attempts int default null, p_timeout_ms int default null, p_visibility_timeout_ms int default null,
    p_tags text[] default null, p_options anycompatible default null, p_extra anycompatible default null,
    p_overlap_policy text default 'skip', p_catch_up text default 'once',
    p_enabled boolean default null, p_description text default null, p_tenant text default null
) returns ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_meta));
    v_tenant  text := coalesce(ojs._session_tenant(p_tenant), ojs._unnamed_tenant(p_meta::jsonb));
    v_now     timestamptz := ojs.now();
    v_args    json := p_args::json;
    v_meta    jsonb := p_meta::jsonb;
    v_whole   jsonb := case when jsonb_typeof(v_meta) = 'object' then ojs._cron_meta(v_meta, p_name, v_now, v_now) else v_meta end;
    v_retry   jsonb := p_retry::jsonb;
    v_options json := p_options::json;
    v_extra   json := p_extra::json;
    v_old     ojs.cron;
    v_cron    ojs.cron;
begin
    perform ojs._check_cron(p_name, p_expression, p_timezone, p_overlap_policy, p_catch_up, p_description);
    perform ojs._check_job(v_tenant, null, p_type, p_queue, p_priority, coalesce(p_max_attempts, ojs._retry_max_attempts(v_retry), 3),
        null, null, p_timeout_ms, p_visibility_timeout_ms, p_tags, v_args, v_whole, v_retry, v_options, v_extra);
    select * into v_old from ojs.cron c where c.tenant_id = v_tenant and c.name = p_name for update;
    insert into ojs.cron as c (
        tenant_id, name, enabled, expression, timezone, overlap_policy, catch_up, description,
        anchor_at, created_at, updated_at,
        type, queue, priority, max_attempts, timeout_ms, visibility_timeout_ms,
        tags, args, meta, retry, options, extra)
    values (
        v_tenant, p_name, coalesce(p_enabled, true), p_expression, p_timezone, p_overlap_policy, p_catch_up, p_description,
        v_now, v_now, v_now,
        p_type, p_queue, p_priority, p_max_attempts, p_timeout_ms, p_visibility_timeout_ms,
        p_tags, v_args, v_meta, v_retry, v_options, v_extra)
    on conflict (tenant_id, name) do update
    set rev = c.rev + 1, enabled = coalesce(p_enabled, c.enabled), expression = p_expression, timezone = p_timezone,
        overlap_policy = p_overlap_policy, catch_up = p_catch_up, description = p_description,
        updated_at = greatest(v_now, c.created_at + interval '1 microsecond'),
        type = p_type, queue = p_queue, priority = p_priority, max_attempts = p_max_attempts, timeout_ms = p_timeout_ms,
        visibility_timeout_ms = p_visibility_timeout_ms, tags = p_tags, args = v_args, meta = v_meta, retry = v_retry,
        options = v_options, extra = v_extra
    returning * into v_cron;
    if v_old.name is null then
        perform ojs._limit_crons(v_tenant);
    end if;
    return ojs._reschedule(v_cron, v_old);
end;
$$;
comment on function ojs.put_cron(
    text, text, text, text, text, text, int, anycompatible, anycompatible, int, int, int, text[], anycompatible, anycompatible,
    text, text, boolean, text, text) is
'Registers a cron job, or changes the one of that name (ojs-cron section 8.1), and returns it.
It is new if created_at = updated_at.
A server works out when it fires next, a moment later: until then upcoming is empty. If the
expression means nothing, error says why. A change that leaves expression and time zone as they
are leaves the schedule as it is. At most 1000 cron jobs per tenant.
p_expression: five fields, six with seconds first, a name such as @daily, or @every 1h30m.
p_timezone: an IANA name.
p_overlap_policy: skip, allow, cancel_previous or enqueue (section 6).
p_catch_up: once or skip, for times more than a minute ago.
p_enabled: null: on, or as it was.
p_visibility_timeout_ms: null: 600000.
The other parameters are those of ojs.enqueue.
Raises what ojs.enqueue raises.
Locks the row.';

-- Changes a cron job; parameters that are null leave their values as they are.
-- Locks its row.
-- Writes ojs.cron, and ojs.timer when the schedule is new.
create or replace function ojs.configure_cron(
    p_name text, p_enabled boolean default null, p_expression text default null, p_timezone text default null,
    p_overlap_policy text default null, p_catch_up text default null, p_description text default null, p_tenant text default null
) returns ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old  ojs.cron := ojs._cron_for(p_name, ojs._session_tenant(p_tenant), true);
    v_cron ojs.cron;
begin
    perform ojs._check_cron(p_name, coalesce(p_expression, v_old.expression), coalesce(p_timezone, v_old.timezone),
        coalesce(p_overlap_policy, v_old.overlap_policy), coalesce(p_catch_up, v_old.catch_up), p_description);
    update ojs.cron c
    set rev = c.rev + 1, enabled = coalesce(p_enabled, c.enabled),
        expression = coalesce(p_expression, c.expression), timezone = coalesce(p_timezone, c.timezone),
        overlap_policy = coalesce(p_overlap_policy, c.overlap_policy), catch_up = coalesce(p_catch_up, c.catch_up),
        description = coalesce(p_description, c.description),
        updated_at = greatest(ojs.now(), c.created_at + interval '1 microsecond')
    where c.id = v_old.id
    returning * into v_cron;
    return ojs._reschedule(v_cron, v_old);
end;
$$;
comment on function ojs.configure_cron(text, boolean, text, text, text, text, text, text) is
'Changes a cron job and returns it (ojs-cron section 8.5); null leaves a value as it is.
p_enabled: false stops it until it is true again; times that pass meanwhile are not made up for.
Raises not_found, invalid_request, ambiguous_job.
Locks the row.';

-- Removes a cron job and its history.
-- Locks its row, then the rows of its jobs that wait for the run before (skip locked).
-- Writes ojs.cron, ojs.cron_run, and makes the waiting jobs available (ojs.activate).
create or replace function ojs.delete_cron(p_name text, p_tenant text default null) returns ojs.cron
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_cron ojs.cron := ojs._cron_for(p_name, ojs._session_tenant(p_tenant), true);
begin
    -- Only the tick makes waiting jobs available, by the cron job's row. Without the row they would
    -- stay pending for ever.
    perform ojs.activate(j.id, j.tenant_id)
    from unnest(ojs._cron_open(v_cron)) o(id)
    cross join lateral (
        select j.* from ojs.job j where j.id = o.id and j.tenant_id = v_cron.tenant_id and j.state = 'pending' for update skip locked
    ) j;
    delete from ojs.cron c where c.id = v_cron.id;
    delete from ojs.cron_run r where r.tenant_id = v_cron.tenant_id and r.name = v_cron.name;
    return v_cron;
end;
$$;
comment on function ojs.delete_cron(text, text) is
'Removes a cron job and its history, and returns what it was (ojs-cron section 8.4).
The jobs that it made stay. Jobs that waited for the run before become available.
Raises not_found, ambiguous_job.
Locks the row.';

-- Returns one cron job.
-- Reads only.
create or replace function ojs.cron_info(p_name text, p_tenant text default null) returns ojs.cron
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return ojs._cron_for(p_name, ojs._session_tenant(p_tenant));
end;
$$;
comment on function ojs.cron_info(text, text) is
'Returns the cron job of that name (ojs-cron section 8.3).
Raises not_found, also for a cron job of another tenant; ambiguous_job.';

create or replace function ojs._cron_for(p_name text, p_tenant text, p_lock boolean default false) returns ojs.cron
language plpgsql
as $$
declare
    v_cron ojs.cron;
begin
    if (select count(*) from ojs.cron c where c.name = p_name and (c.tenant_id = p_tenant) is not false) > 1 then
        perform ojs._raise('OJ411', format('cron job %s exists in more than one tenant', p_name),
            jsonb_build_object('field', 'name', 'cron_name', p_name));
    end if;
    select c.* into v_cron from ojs.cron c where c.name = p_name and (c.tenant_id = p_tenant) is not false;
    -- Read again under the lock: the row may have changed or gone while this call waited.
    if p_lock then
        select c.* into v_cron from ojs.cron c where c.id = v_cron.id for update;
    end if;
    if v_cron.id is null then
        perform ojs._raise('OJ404', format('cron job %s does not exist', left(p_name, 255)),
            jsonb_build_object('field', 'name', 'cron_name', left(p_name, 255)),
            'Check the name, and whose cron job it is; the list of cron jobs shows those that there are.');
    end if;
    return v_cron;
end;
$$;
comment on function ojs._cron_for(text, text, boolean) is
'Returns the cron job of that name, of tenant p_tenant or, if null, of the one tenant that has it.
p_lock: locks its row. Raises not_found, ambiguous_job.';

create or replace function ojs._check_cron(
    p_name text, p_expression text, p_timezone text, p_overlap_policy text, p_catch_up text, p_description text
) returns void
language plpgsql
as $$
declare
    c_field constant text := '[0-9A-Za-z*,/#?-]+';
begin
    if p_name is null or p_name !~ '^[a-z0-9][a-z0-9.-]*$' or length(p_name) > 255 then
        perform ojs._raise('OJ400', 'name must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 255 characters',
            '{"field": "name"}');
    end if;
    -- Only the form is checked here. A server works out the meaning, and writes to ojs.cron.error
    -- if there is none.
    if p_expression is null or length(p_expression) > 255
            or p_expression !~ format(E'^\\s*(%1$s\\s+){4,5}%1$s\\s*$', c_field)
            and p_expression !~ (E'^\\s*@(yearly|annually|monthly|weekly|daily|midnight|hourly'
                || E'|every\\s+([0-9]+([.][0-9]+)?(ms|s|m|h))+)\\s*$') then
        perform ojs._raise('OJ400', 'expression must have five or six fields, or be @yearly, @annually, @monthly, @weekly, @daily, '
            '@midnight, @hourly or @every and a duration such as 1h30m', '{"field": "expression"}');
    end if;
    -- Refuse offsets, POSIX rules, and abbreviations that the time zone database keeps for the
    -- past.
    if p_timezone is null or length(p_timezone) > 64
            or p_timezone !~ '^(UTC|GMT|[A-Z][A-Za-z]*[a-z-][A-Za-z-]*|[A-Z][A-Za-z]+(/[A-Z][A-Za-z0-9_+-]*)+)$'
            or not ojs._is_timezone(p_timezone) then
        perform ojs._raise('OJ400', 'timezone must be a name of the IANA time zone database such as Europe/Berlin',
            '{"field": "timezone"}');
    end if;
    if coalesce(p_overlap_policy, '') not in ('skip', 'allow', 'cancel_previous', 'enqueue') then
        perform ojs._raise('OJ400', 'overlap_policy must be "skip", "allow", "cancel_previous" or "enqueue"',
            '{"field": "overlap_policy"}');
    end if;
    if coalesce(p_catch_up, '') not in ('once', 'skip') then
        perform ojs._raise('OJ400', 'catch_up must be "once" or "skip"', '{"field": "catch_up"}');
    end if;
    if length(p_description) > 1000 then
        perform ojs._raise('OJ400', 'description is longer than 1000 characters', '{"field": "description"}');
    end if;
end;
$$;
comment on function ojs._check_cron(text, text, text, text, text, text) is
'Raises why a cron job is refused, except for attributes of the jobs it makes.';

create or replace function ojs._is_timezone(p_timezone text) returns boolean
language plpgsql set timezone = 'UTC'
as $$
begin
    -- PostgreSQL takes Foo/Bar+5 for a rule and returns it in capitals, and it accepts
    -- europe/berlin as Europe/Berlin. So the name that it returns is compared. The view
    -- pg_timezone_names has the names, too, but reads hundreds of files.
    perform set_config('timezone', p_timezone, true);
    return current_setting('timezone') = p_timezone and (p_timezone ~ '[a-z]' or p_timezone !~ '[0-9]');
exception when invalid_parameter_value then
    return false;
end;
$$;
comment on function ojs._is_timezone(text) is
'Whether PostgreSQL has a time zone of exactly that name in its database.';

create or replace function ojs._limit_crons(p_tenant text) returns void
language plpgsql
as $$
declare
    c_most constant int := 1000;
begin
    if exists (select from ojs.cron c where c.tenant_id = p_tenant offset c_most) then
        perform ojs._raise('OJ422', format('a tenant may have at most %s cron jobs', c_most),
            jsonb_build_object('field', 'name', 'limit', c_most));
    end if;
end;
$$;
comment on function ojs._limit_crons(text) is
'Raises an error if a tenant has more than 1000 cron jobs.';
