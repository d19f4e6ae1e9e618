-- +goose Up
-- Enqueue. Functions and the plain insert into ojs.jobs end in the same insert into ojs.job, the same validation
-- (ojs._job_violation) and the same statement trigger, which appends to the wake journal and notifies who waits.
set local role ojs_owner;

create type ojs.violation as (sqlstate text, field text, message text);
comment on type ojs.violation is 'Why a job is refused: the problem''s SQLSTATE, the field at fault, and a sentence.';

-- A view, so that what it is made of is written once: the columns of a job, behind what went wrong instead.
create view ojs._outcome with (security_invoker = true) as
select 0 as n, null::text as sqlstate, null::text as message, null::jsonb as detail, j.* from ojs.job j where false;
comment on view ojs._outcome is 'Row type of calls in which each element succeeds or fails by itself; holds no rows. n: which element, from 0. A problem as it would be raised: sqlstate, message, detail; then the columns of the job are null.';

-- PostgreSQL 16 finds repeated keys by itself; before that, the pairs in the text are counted (every colon outside of
-- strings) and compared with the pairs that are left once the text has become jsonb, which keeps one of each.
-- +goose StatementBegin
do $do$
begin
    if current_setting('server_version_num')::int >= 160000 then
        execute $fn$
            create function ojs._repeats_key(p_json json) returns boolean language sql immutable
            as $$ select not (p_json is json with unique keys) $$
        $fn$;
    else
        execute $fn$
            create function ojs._repeats_key(p_json json) returns boolean language plpgsql immutable set search_path = pg_catalog, pg_temp
            as $$
            begin
                if strpos(p_json::text, '{') = 0 then
                    return false;
                end if;
                return length(regexp_replace(regexp_replace(p_json::text, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^:]', '', 'g'))
                    <> length(regexp_replace(regexp_replace(p_json::jsonb::text, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^:]', '', 'g'));
            exception when numeric_value_out_of_range then
                -- A number beyond numeric: fine as text, but it cannot become jsonb to be compared.
                return false;
            end;
            $$
        $fn$;
    end if;
end;
$do$;
-- +goose StatementEnd
comment on function ojs._repeats_key(json) is 'Whether an object anywhere in a JSON text has the same key twice.';

-- +goose StatementBegin
create function ojs._json_violation(p_json json, p_field text, p_kind text, p_max_bytes int) returns ojs.violation
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_text    text := p_json::text;
    v_escapes text;
begin
    if octet_length(v_text) > p_max_bytes then
        return row('OJ413', p_field, format('%s is larger than %s bytes', p_field, p_max_bytes))::ojs.violation;
    end if;
    if p_kind is not null and json_typeof(p_json) <> p_kind then
        return row('OJ400', p_field, format('%s must be a JSON %s', p_field, p_kind))::ojs.violation;
    end if;
    if strpos(v_text, '\u') > 0 then
        -- Escaped backslashes and whole surrogate pairs set aside.
        v_escapes := regexp_replace(v_text, '\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', '', 'g');
        if strpos(v_escapes, '\u0000') > 0 then
            return row('OJ401', p_field, format('%s holds a NUL character (\u0000)', p_field))::ojs.violation;
        elsif v_escapes ~ '\\u[dD][89a-fA-F]' then
            return row('OJ401', p_field, format('%s holds half of a surrogate pair', p_field))::ojs.violation;
        end if;
    end if;
    if length(v_text) - length(translate(v_text, '[{', '')) > 100
            and jsonb_path_exists(p_json::jsonb, 'strict $.**{100} ? (@.type() == "array" || @.type() == "object")') then
        return row('OJ401', p_field, format('%s is nested more than 100 levels deep', p_field))::ojs.violation;
    end if;
    if ojs._repeats_key(p_json) then
        return row('OJ401', p_field, format('%s holds an object with the same key twice', p_field))::ojs.violation;
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._json_violation(json, text, text, int) is
'Why a JSON value that is stored byte for byte is refused, or null: larger than p_max_bytes, not of kind p_kind (a json_typeof; null: any),
a NUL character, half of a surrogate pair, more than 100 levels, a repeated key.';

-- +goose StatementBegin
create function ojs._too_deep(p_json jsonb) returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_text text := p_json::text;
begin
    -- Brackets are counted first: few values have so many.
    return length(v_text) - length(translate(v_text, '[{', '')) > 100
        and jsonb_path_exists(p_json, 'strict $.**{100} ? (@.type() == "array" || @.type() == "object")');
end;
$$;
-- +goose StatementEnd
comment on function ojs._too_deep(jsonb) is 'Whether JSON is nested more than 100 levels deep.';

-- +goose StatementBegin
create function ojs._duration(p_text text) returns interval
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if p_text ~ '^P(\d{1,8}Y)?(\d{1,8}M)?(\d{1,8}W)?(\d{1,8}D)?(T(\d{1,8}H)?(\d{1,8}M)?(\d{1,8}(\.\d{1,9})?S)?)?$' and p_text !~ '(P|T)$' then
        return p_text::interval;
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._duration(text) is 'An ISO 8601 duration (PT1.5S, P1DT2H) as an interval; null when it is none.';

-- +goose StatementBegin
create function ojs._retry_interval_ms(p_retry jsonb, p_name text, p_default bigint) returns bigint
language sql immutable
as $$
    select coalesce((p_retry ->> (p_name || '_ms'))::numeric::bigint,
                    (extract(epoch from ojs._duration(p_retry ->> p_name)) * 1000)::bigint, p_default)
$$;
-- +goose StatementEnd
comment on function ojs._retry_interval_ms(jsonb, text, bigint) is 'A duration of a retry policy in milliseconds, in either spelling: name as ISO 8601 text, name_ms as a number.';

-- +goose StatementBegin
create function ojs._retry_violation(p_retry jsonb) returns ojs.violation
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
    v_num  numeric;
begin
    if jsonb_typeof(p_retry) <> 'object' then
        return row('OJ422', 'retry', 'retry must be a JSON object')::ojs.violation;
    end if;
    if octet_length(p_retry::text) > 16384 then
        return row('OJ413', 'retry', 'retry is larger than 16384 bytes')::ojs.violation;
    end if;
    if ojs._too_deep(p_retry) then
        return row('OJ401', 'retry', 'retry is nested more than 100 levels deep')::ojs.violation;
    end if;
    if p_retry ? 'max_attempts' then
        if jsonb_typeof(p_retry -> 'max_attempts') <> 'number' or (p_retry ->> 'max_attempts') !~ '^\d{1,4}$' or (p_retry ->> 'max_attempts')::int > 1000 then
            return row('OJ422', 'retry.max_attempts', 'retry.max_attempts must be an integer between 0 and 1000')::ojs.violation;
        end if;
    end if;
    foreach v_name in array array['initial_interval', 'max_interval'] loop
        if p_retry ? v_name and (jsonb_typeof(p_retry -> v_name) <> 'string' or ojs._duration(p_retry ->> v_name) is null) then
            return row('OJ422', 'retry.' || v_name, format('retry.%s must be an ISO 8601 duration such as PT1S', v_name))::ojs.violation;
        end if;
        if p_retry ? (v_name || '_ms') then
            if jsonb_typeof(p_retry -> (v_name || '_ms')) <> 'number' then
                return row('OJ422', 'retry.' || v_name || '_ms', format('retry.%s_ms must be a number of milliseconds', v_name))::ojs.violation;
            end if;
            v_num := (p_retry ->> (v_name || '_ms'))::numeric;
            if v_num < 0 or v_num > 31536000000 or v_num <> trunc(v_num) then
                return row('OJ422', 'retry.' || v_name || '_ms', format('retry.%s_ms must be an integer between 0 and 31536000000', v_name))::ojs.violation;
            end if;
        end if;
        if ojs._retry_interval_ms(p_retry, v_name, 0) > 31536000000 then
            return row('OJ422', 'retry.' || v_name, format('retry.%s must be at most a year', v_name))::ojs.violation;
        end if;
    end loop;
    if p_retry ? 'backoff_coefficient' then
        if jsonb_typeof(p_retry -> 'backoff_coefficient') <> 'number' then
            return row('OJ422', 'retry.backoff_coefficient', 'retry.backoff_coefficient must be a number')::ojs.violation;
        end if;
        v_num := (p_retry ->> 'backoff_coefficient')::numeric;
        if v_num < 1 or v_num > 100 then
            return row('OJ422', 'retry.backoff_coefficient', 'retry.backoff_coefficient must be between 1.0 and 100')::ojs.violation;
        end if;
    end if;
    if p_retry ? 'jitter' and jsonb_typeof(p_retry -> 'jitter') <> 'boolean' and coalesce(p_retry ->> 'jitter', '') not in ('none', 'full', 'equal', 'decorrelated') then
        return row('OJ422', 'retry.jitter', 'retry.jitter must be a boolean')::ojs.violation;
    end if;
    if p_retry ? 'on_exhaustion' and coalesce(p_retry ->> 'on_exhaustion', '') not in ('discard', 'dead_letter') then
        return row('OJ422', 'retry.on_exhaustion', 'retry.on_exhaustion must be "discard" or "dead_letter"')::ojs.violation;
    end if;
    if p_retry ? 'non_retryable_errors' then
        if jsonb_typeof(p_retry -> 'non_retryable_errors') <> 'array'
            or jsonb_path_exists(p_retry -> 'non_retryable_errors', '$[*] ? (@.type() != "string")') then
            return row('OJ422', 'retry.non_retryable_errors', 'retry.non_retryable_errors must be an array of strings')::ojs.violation;
        end if;
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._retry_violation(jsonb) is 'Why a retry policy is refused (ojs-retry section 11), or null.';

-- +goose StatementBegin
create function ojs._job_violation(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz,
    p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns ojs.violation
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_violation ojs.violation;
begin
    if p_type is null then
        return row('OJ400', 'type', 'type is required')::ojs.violation;
    elsif p_type !~ '^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$' then
        return row('OJ400', 'type', 'type must be lowercase words of a-z, 0-9, _ and -, each beginning with a letter, separated by dots')::ojs.violation;
    elsif length(p_type) > 255 then
        return row('OJ400', 'type', 'type is longer than 255 characters')::ojs.violation;
    end if;
    if p_queue is null or p_queue !~ '^[a-z0-9][a-z0-9.-]*$' then
        return row('OJ400', 'queue', 'queue must consist of a-z, 0-9, - and . and begin with a letter or digit')::ojs.violation;
    elsif length(p_queue) > 128 then
        return row('OJ400', 'queue', 'queue is longer than 128 characters')::ojs.violation;
    end if;
    if p_priority is null or p_priority not between -100 and 100 then
        return row('OJ400', 'priority', 'priority must be an integer between -100 and 100')::ojs.violation;
    end if;
    if p_args is null then
        return row('OJ400', 'args', 'args is required')::ojs.violation;
    end if;
    v_violation := ojs._json_violation(p_args, 'args', 'array', 1048576);
    if v_violation is not null then
        return v_violation;
    end if;
    if p_meta is null or jsonb_typeof(p_meta) <> 'object' then
        return row('OJ400', 'meta', 'meta must be a JSON object')::ojs.violation;
    elsif p_meta <> '{}' then
        if octet_length(p_meta::text) > 65536 then
            return row('OJ413', 'meta', 'meta is larger than 65536 bytes')::ojs.violation;
        elsif ojs._too_deep(p_meta) then
            return row('OJ401', 'meta', 'meta is nested more than 100 levels deep')::ojs.violation;
        end if;
        if p_meta ? 'tenant_id' then
            if jsonb_typeof(p_meta -> 'tenant_id') <> 'string' or p_meta ->> 'tenant_id' = '' then
                return row('OJ400', 'meta.tenant_id', 'meta.tenant_id must be a non-empty string')::ojs.violation;
            elsif p_meta ->> 'tenant_id' <> p_tenant then
                return row('OJ405', 'meta.tenant_id', 'meta.tenant_id names another tenant than the call')::ojs.violation;
            end if;
        end if;
    end if;
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        return row('OJ400', 'tenant', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes')::ojs.violation;
    end if;
    if p_id is not null and p_id::text !~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab]' then
        return row('OJ400', 'id', 'id must be a UUIDv7')::ojs.violation;
    end if;
    if not isfinite(p_scheduled_at) or p_scheduled_at not between '0001-01-01 00:00Z' and '9999-12-31 23:59:59.999999Z' then
        return row('OJ400', 'scheduled_at', 'scheduled_at must be a time between the years 1 and 9999')::ojs.violation;
    end if;
    if not isfinite(p_expires_at) or p_expires_at not between '0001-01-01 00:00Z' and '9999-12-31 23:59:59.999999Z' then
        return row('OJ400', 'expires_at', 'expires_at must be a time between the years 1 and 9999')::ojs.violation;
    end if;
    if p_timeout_ms < 0 then
        return row('OJ400', 'timeout_ms', 'timeout_ms must not be negative')::ojs.violation;
    end if;
    if p_visibility_timeout_ms not between 1000 and 604800000 then
        return row('OJ400', 'visibility_timeout_ms', 'visibility_timeout_ms must be between 1000 and 604800000')::ojs.violation;
    end if;
    if p_tags is not null and (cardinality(p_tags) > 100 or array_ndims(p_tags) > 1 or exists (select from unnest(p_tags) t where t is null or t = '' or octet_length(t) > 255)) then
        return row('OJ400', 'tags', 'tags must be at most 100 non-empty strings of at most 255 bytes')::ojs.violation;
    end if;
    if p_retry is not null then
        v_violation := ojs._retry_violation(p_retry);
        if v_violation is not null then
            return v_violation;
        end if;
    end if;
    if p_max_attempts is null or p_max_attempts not between 0 and 1000 then
        return row('OJ422', 'max_attempts', 'max_attempts must be an integer between 0 and 1000')::ojs.violation;
    end if;
    if p_options is not null then
        v_violation := ojs._json_violation(p_options, 'options', 'object', 65536);
        if v_violation is not null then
            return v_violation;
        end if;
    end if;
    if p_extra is not null then
        v_violation := ojs._json_violation(p_extra, 'extra', 'object', 262144);
        if v_violation is not null then
            return v_violation;
        end if;
        if exists (select from json_object_keys(p_extra) k where k in ('specversion', 'id', 'type', 'queue', 'args', 'meta', 'priority', 'state', 'attempt', 'max_attempts', 'lease', 'errors', 'error',
                                   'result', 'options', 'retry', 'tags', 'worker_id', 'created_at', 'enqueued_at', 'started_at', 'completed_at',
                                   'cancelled_at', 'discarded_at', 'scheduled_at', 'expires_at', 'timeout_ms', 'visibility_timeout_ms')) then
            return row('OJ400', 'extra', 'extra must not hold attributes that the specification defines')::ojs.violation;
        end if;
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_violation(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Why a job is refused, or null: the rules of ojs-core section 5 and the limits of this system, once for every way in. Limits: type 255
characters, queue 128, args 1048576 bytes, meta 65536, retry 16384, options 65536, extra 262144, 100 tags of 255 bytes, 100 levels of JSON.';

-- Only for rows that need it (the trigger's condition), so that ordinary inserts call no function per row.
-- +goose StatementBegin
create function ojs._job_arriving() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if length(new.queue) > 128 then
        perform ojs._raise('OJ400', 'queue is longer than 128 characters', '{"field": "queue"}');
    elsif octet_length(new.tenant_id) > 256 then
        perform ojs._raise('OJ400', 'the tenant is longer than 256 bytes', '{"field": "tenant"}');
    end if;
    if new.meta ? 'tenant_id' and new.tenant_id is distinct from new.meta ->> 'tenant_id' and ojs.current_tenant() is null
            and new.tenant_id = (select s.default_tenant from ojs.settings s) and jsonb_typeof(new.meta -> 'tenant_id') = 'string' then
        new.tenant_id := new.meta ->> 'tenant_id';
    end if;
    if new.state = 'available' and new.scheduled_at > ojs.now() then
        new.state := 'scheduled';
    end if;
    if new.state <> 'available' then
        new.seq := null;
    end if;
    return new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_arriving() is
'Trigger: gives a new job the state and tenant that follow from its other attributes, and refuses what no index could hold, which is met before the rest is validated.';
create trigger job_arriving before insert on ojs.job for each row
    when (new.scheduled_at is not null or new.state <> 'available' or new.meta ? 'tenant_id' or length(new.queue) > 128 or octet_length(new.tenant_id) > 256)
    execute function ojs._job_arriving();

-- The enqueue functions have done it, and know whether max_attempts was given beside the policy.
-- +goose StatementBegin
create function ojs._job_attempts() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    new.max_attempts := coalesce(ojs._retry_max_attempts(new.retry), new.max_attempts);
    return new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_attempts() is 'Trigger: gives a plainly inserted job as many attempts as its retry policy says.';
create trigger job_attempts before insert on ojs.job for each row
    when (new.retry is not null and current_user <> 'ojs_owner') execute function ojs._job_attempts();

-- +goose StatementBegin
create function ojs._job_validated() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_violation record;
begin
    for v_violation in
        select j.id, (v.violation).*
        from inserted j
        cross join lateral (select ojs._job_violation(j.tenant_id, j.id, j.type, j.queue, j.priority, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms,
            j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra) as violation) v
        where v.violation is not null
        limit 1
    loop
        perform ojs._raise(v_violation.sqlstate, v_violation.message, jsonb_build_object('field', v_violation.field, 'job_id', v_violation.id));
    end loop;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_validated() is 'Trigger: refuses a statement that inserts a job which breaks a rule. The enqueue functions have validated their jobs before.';
create trigger job_validated after insert on ojs.job referencing new table as inserted for each statement
    when (current_user <> 'ojs_owner') execute function ojs._job_validated();

-- +goose StatementBegin
create function ojs._notify(p_queues text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_token text;
begin
    for v_token in select w.token from ojs.waiter w where w.queue = any (p_queues) and w.expires_at > ojs.now() loop
        perform pg_notify('ojs_wake', v_token);
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._notify(text[]) is 'Notifies, when this transaction commits, every server with a worker waiting for one of the queues. Nobody waiting: nothing, and no lock at commit.';

-- +goose StatementBegin
create function ojs._job_inserted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queues text[];
begin
    with woken as (
        insert into ojs.wake (tenant_id, queue, priority, to_state, jobs, lo, hi)
        select j.tenant_id, j.queue, j.priority, j.state, count(*), min(j.seq), max(j.seq)
        from inserted j
        group by j.tenant_id, j.queue, j.priority, j.state
        returning queue, to_state
    )
    select array_agg(w.queue) into v_queues from woken w where w.to_state = 'available';
    if v_queues is null or exists (select from inserted j where j.state = 'scheduled') then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select j.scheduled_at, 'due', array_agg(j.tenant_id), array_agg(j.id)
        from (select j.*, row_number() over (partition by j.scheduled_at) / 1000 as part from inserted j where j.state = 'scheduled') j
        group by j.scheduled_at, j.part;
    end if;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_inserted() is 'Trigger: appends to the wake journal and notifies. The only thing a producer writes besides its jobs.';
create trigger job_inserted after insert on ojs.job referencing new table as inserted for each statement execute function ojs._job_inserted();

-- +goose StatementBegin
create function ojs.enqueue(
    p_type text, p_args json default '[]', p_queue text default 'default', p_priority int default 0, p_scheduled_at timestamptz default null,
    p_expires_at timestamptz default null, p_meta jsonb default '{}', p_retry jsonb default null, p_max_attempts int default null, p_timeout_ms int default null,
    p_visibility_timeout_ms int default null, p_tags text[] default null, p_pending boolean default false, p_options json default null,
    p_extra json default null, p_id uuid default null, p_tenant text default null
) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant    text := ojs._enqueue_tenant(p_tenant, p_meta);
    v_attempts  int := coalesce(p_max_attempts, ojs._retry_max_attempts(p_retry), 3);
    v_now       timestamptz := ojs.now();
    v_violation ojs.violation;
    v_job       ojs.job;
begin
    v_violation := ojs._job_violation(v_tenant, p_id, p_type, p_queue, p_priority, v_attempts, p_scheduled_at, p_expires_at, p_timeout_ms,
        p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra);
    if v_violation is not null then
        perform ojs._raise(v_violation.sqlstate, v_violation.message, jsonb_build_object('field', v_violation.field));
    end if;
    insert into ojs.job (state, enqueued_at, created_at, tenant_id, id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms,
        visibility_timeout_ms, tags, args, meta, retry, options, extra)
    values (case when p_pending then 'pending' else 'available' end::ojs.job_state, v_now, v_now, v_tenant, coalesce(p_id, ojs._uuid_v7()), p_queue, p_type, p_priority, v_attempts,
        p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra)
    on conflict do nothing
    returning * into v_job;
    if not found then
        perform ojs._raise('OJ410', format('job %s exists already', p_id), jsonb_build_object('field', 'id', 'job_id', p_id));
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text) is
'Enqueues one job in the caller''s transaction and returns it (ojs-core section 7.1). It exists when the transaction commits, and then wakes a
waiting worker. p_scheduled_at in the future: scheduled; p_pending: pending until ojs.activate; else available. p_retry: retry policy (ojs-retry),
p_max_attempts overrides its max_attempts; default 3. p_timeout_ms, p_visibility_timeout_ms: milliseconds. p_options, p_extra: JSON objects kept
byte for byte. p_id: a UUIDv7 of the caller''s, else one is made. p_tenant: a tenant''s login role needs none; others name it here or in
p_meta ->> ''tenant_id'', else the default tenant. Raises invalid_request, invalid_payload, validation_error, payload_too_large (field in the
detail), duplicate, TENANT_REQUIRED, TENANT_ACCESS_DENIED, TENANT_MISMATCH.';

-- +goose StatementBegin
create function ojs._enqueue_tenant(p_tenant text, p_meta jsonb) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    if v_tenant is null and jsonb_typeof(p_meta -> 'tenant_id') = 'string' and p_meta ->> 'tenant_id' <> '' then
        v_tenant := p_meta ->> 'tenant_id';
        if not ojs._tenant_valid(v_tenant) then
            perform ojs._raise('OJ400', 'meta.tenant_id must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "meta.tenant_id"}');
        end if;
    end if;
    return coalesce(v_tenant, ojs._default_tenant());
end;
$$;
-- +goose StatementEnd
comment on function ojs._enqueue_tenant(text, jsonb) is 'The tenant of a new job: the caller''s own, else p_tenant, else meta.tenant_id, else the default tenant.';

-- +goose StatementBegin
create function ojs._retry_max_attempts(p_retry jsonb) returns int
language sql immutable
as $$ select case when jsonb_typeof(p_retry -> 'max_attempts') = 'number' and p_retry ->> 'max_attempts' ~ '^\d{1,4}$' then (p_retry ->> 'max_attempts')::int end $$;
-- +goose StatementEnd
comment on function ojs._retry_max_attempts(jsonb) is 'max_attempts of a retry policy; null when absent or malformed, which validation reports.';

-- +goose StatementBegin
create function ojs.enqueue_many(p_jobs json, p_tenant text default null) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_bad record;
    v_now timestamptz := ojs.now();
begin
    if p_jobs is null or json_typeof(p_jobs) <> 'array' then
        perform ojs._raise('OJ400', 'jobs must be a JSON array', '{"field": "jobs"}');
    end if;
    if json_array_length(p_jobs) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'jobs must hold between 1 and 10000 jobs', '{"field": "jobs"}');
    end if;

    select e.ord - 1 as index, f.key, f.fault into v_bad
    from json_array_elements(p_jobs) with ordinality e(job, ord)
    cross join lateral (
        select m.key, case
            when m.kind is null then case m.key when '' then 'must be a JSON object' else format('has an unknown field %I', m.key) end
            when m.again then format('has the field %I twice', m.key)
            when m.given = 'null' then null
            when m.kind = 'integer' then case when m.given <> 'number' or m.value::text !~ '^-?\d{1,10}$' then format('%I must be an integer', m.key) end
            when m.kind <> m.given then format('%I must be a JSON %s', m.key, m.kind)
            when m.key = 'tags' then case when exists (select from json_array_elements(m.value) t where json_typeof(t) <> 'string') then 'tags must be strings' end
            when m.key in ('meta', 'retry') then case when ojs._repeats_key(m.value) then format('%I holds an object with the same key twice', m.key) end
            when m.key = 'tenant' then case when m.value #>> '{}' <> p_tenant then 'names another tenant than the call' end
            end as fault
        from (
            -- json_to_record would make a text of a number and a number of a text.
            select x.key, x.value, json_typeof(x.value) as given, lag(x.key) over (order by x.key) = x.key as again, '{"type": "string", "args": "array", "queue": "string",
                "priority": "integer", "scheduled_at": "string", "expires_at": "string", "meta": "object", "retry": "object", "max_attempts": "integer",
                "timeout_ms": "integer", "visibility_timeout_ms": "integer", "tags": "array", "pending": "boolean", "options": "object", "extra": "object",
                "id": "string", "tenant": "string"}'::jsonb ->> x.key as kind
            from json_each(case when json_typeof(e.job) = 'object' then e.job else '{"": 0}' end) x
        ) m
    ) f
    where f.fault is not null
    order by e.ord limit 1;
    if found then
        perform ojs._raise(case v_bad.fault when 'names another tenant than the call' then 'OJ405' else 'OJ400' end, format('jobs[%s] %s', v_bad.index, v_bad.fault),
            jsonb_build_object('field', v_bad.key, 'index', v_bad.index));
    end if;

    return query
    with given as materialized (
        select e.ord, ojs._enqueue_tenant(coalesce(x.tenant, p_tenant), x.meta) as tenant_id, coalesce(x.id, ojs._uuid_v7()) as id, x.type,
            coalesce(x.queue, 'default') as queue, coalesce(x.priority, 0) as priority, x.scheduled_at, x.expires_at, coalesce(x.meta, '{}') as meta, x.retry,
            coalesce(x.max_attempts, ojs._retry_max_attempts(x.retry), 3) as max_attempts, x.timeout_ms, x.visibility_timeout_ms, x.tags, x.pending, x.options, x.extra,
            case when json_typeof(x.args) is not null then x.args end as args
        from json_array_elements(p_jobs) with ordinality e(job, ord)
        cross join lateral json_to_record(e.job) as x(type text, args json, queue text, priority int, scheduled_at timestamptz, expires_at timestamptz, meta jsonb,
            retry jsonb, max_attempts int, timeout_ms int, visibility_timeout_ms int, tags text[], pending boolean, options json, extra json, id uuid, tenant text)
        order by e.ord
    ), checked as materialized (
        select g.*, ojs._refuse(ojs._job_violation(g.tenant_id, g.id, g.type, g.queue, g.priority, g.max_attempts, g.scheduled_at, g.expires_at, g.timeout_ms,
            g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra), g.ord::int - 1) as accepted
        from given g
    ), added as (
        insert into ojs.job (state, enqueued_at, created_at, tenant_id, id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms,
            visibility_timeout_ms, tags, args, meta, retry, options, extra)
        select case when c.pending then 'pending' else 'available' end::ojs.job_state, v_now, v_now, c.tenant_id, c.id, c.queue, c.type, c.priority, c.max_attempts, c.scheduled_at,
            c.expires_at, c.timeout_ms, c.visibility_timeout_ms, c.tags, c.args, c.meta, c.retry, c.options, c.extra
        from checked c where c.accepted order by c.ord
        on conflict do nothing
        returning *
    )
    select a.*
    from (select d.ord, d.id, d.tenant_id, row_number() over (partition by d.id, d.tenant_id order by d.ord) as nth from checked d order by d.ord offset 0) c
    left join added a on a.id = c.id and a.tenant_id = c.tenant_id and c.nth = 1
    where a.id is not null
       or ojs._raise('OJ410', format('job %s exists already', c.id), jsonb_build_object('field', 'id', 'job_id', c.id, 'index', c.ord - 1))
    order by c.ord;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue_many(json, text) is
'Enqueues 1 to 10000 jobs, all or none, in the caller''s transaction, and returns them in the order given. p_jobs: a JSON array of objects whose
keys are the names of ojs.enqueue''s parameters without p_ (type, args, queue, ...). Raises what ojs.enqueue raises; the detail names index and field.';

-- +goose StatementBegin
create function ojs.enqueue_each(p_jobs json) returns setof ojs._outcome
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job     record;
    v_outcome ojs._outcome;
    v_detail  text;
begin
    for v_job in select (e.ord - 1)::int as n, e.job from json_array_elements(p_jobs) with ordinality e(job, ord) loop
        begin
            select v_job.n, null, null, null, j.* into v_outcome from ojs.enqueue_many(json_build_array(v_job.job)) j;
        exception when others then
            v_outcome := null;
            v_outcome.n := v_job.n;
            get stacked diagnostics v_outcome.sqlstate = returned_sqlstate, v_outcome.message = message_text, v_detail = pg_exception_detail;
            v_outcome.detail := case when left(v_detail, 1) = '{' then v_detail::jsonb end;
        end;
        return next v_outcome;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue_each(json) is
'Enqueues 1 to 10000 jobs of which each succeeds or fails by itself, and returns one row per job in the order given: n from 0, then either the job, or
sqlstate, message and detail of what ojs.enqueue_many would raise about it. p_jobs as for ojs.enqueue_many, each naming its own tenant. Raises
invalid_request when p_jobs as a whole is malformed. A job with the id of one that another transaction is just adding waits for that transaction.';

-- +goose StatementBegin
create function ojs._refuse(p_violation ojs.violation, p_index int) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if p_violation is null then
        return true;
    end if;
    return ojs._raise(p_violation.sqlstate, format('jobs[%s]: %s', p_index, p_violation.message),
        jsonb_build_object('field', p_violation.field, 'index', p_index));
end;
$$;
-- +goose StatementEnd
comment on function ojs._refuse(ojs.violation, int) is 'True for no violation; else raises it with the index of the job in its batch.';
grant execute on function ojs._job_violation(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json),
    ojs._json_violation(json, text, text, int), ojs._retry_violation(jsonb), ojs._retry_interval_ms(jsonb, text, bigint), ojs._duration(text), ojs._too_deep(jsonb), ojs._repeats_key(json),
    ojs._job_validated() to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text),
    ojs.enqueue_many(json, text), ojs.enqueue_each(json) to ojs_service, ojs_operator, ojs_tenant;
reset role;

-- +goose Down
set local role ojs_owner;
drop trigger job_inserted on ojs.job;
drop trigger job_validated on ojs.job;
drop trigger job_attempts on ojs.job;
drop trigger job_arriving on ojs.job;
drop function ojs.enqueue_each(json);
drop function ojs.enqueue_many(json, text);
drop function ojs._refuse(ojs.violation, int);
drop function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text);
drop function ojs._retry_max_attempts(jsonb);
drop function ojs._enqueue_tenant(text, jsonb);
drop function ojs._job_inserted();
drop function ojs._notify(text[]);
drop function ojs._job_validated();
drop function ojs._job_attempts();
drop function ojs._job_arriving();
drop function ojs._job_violation(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json);
drop function ojs._retry_violation(jsonb);
drop function ojs._retry_interval_ms(jsonb, text, bigint);
drop function ojs._duration(text);
drop function ojs._too_deep(jsonb);
drop function ojs._json_violation(json, text, text, int);
drop function ojs._repeats_key(json);
drop view ojs._outcome;
drop type ojs.violation;
reset role;
