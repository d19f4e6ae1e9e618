-- Raises why a job may not be enqueued.
-- Locks nothing.
-- Reads its parameters only; writes nothing.
create or replace function ojs._check_job(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz,
    p_expires_at timestamptz, p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb,
    p_options json, p_extra json
) returns boolean
language plpgsql stable
as $$
declare
    v_violation ojs.violation;
begin
    if num_nonnulls(p_tags, p_retry, p_options, p_extra) = 0 then
        if ojs._ordinary_names(p_tenant, p_type, p_queue) and ojs._ordinary_id(p_id, ojs._latest_id())
                and ojs._ordinary_rest(p_tenant, p_priority, p_max_attempts, p_scheduled_at, p_expires_at, p_timeout_ms,
                    p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra) then
            return true;
        end if;
    end if;
    v_violation := ojs._job_violation(p_tenant, p_id, p_type, p_queue, p_priority, p_max_attempts, p_scheduled_at, p_expires_at,
        p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra);
    if v_violation is not null then
        perform ojs._raise(v_violation.sqlstate, v_violation.message,
            jsonb_strip_nulls(jsonb_build_object('field', v_violation.field, 'job_id', p_id)));
    end if;
    return true;
end;
$$;
comment on function ojs._check_job(
    text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Returns true, or raises why a job is refused.';

-- Of several violations the first is reported, in the order in which people read a job.
create or replace function ojs._job_violation(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz,
    p_expires_at timestamptz, p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb,
    p_options json, p_extra json
) returns ojs.violation
language plpgsql stable
as $$
declare
    v_violation ojs.violation := ojs._name_violation(p_type, p_queue, p_priority);
begin
    if v_violation is null then
        v_violation := case when p_args is null then row('OJ400', 'args', 'args is required')::ojs.violation
            else ojs._json_violation(p_args, 'args', 'array', 1048576) end;
    end if;
    if v_violation is null and (p_meta = '{}') is not true then
        v_violation := ojs._meta_violation(p_meta, p_tenant);
    end if;
    if v_violation is null and ojs._tenant_valid(p_tenant) is not true then
        v_violation := row('OJ400', 'tenant', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes')::ojs.violation;
    end if;
    if v_violation is null and p_id is not null then
        v_violation := ojs._id_violation(p_id);
    end if;
    if v_violation is null and num_nonnulls(p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms) > 0 then
        v_violation := ojs._time_violation(p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms);
    end if;
    if v_violation is null and (cardinality(p_tags) > 100 or array_ndims(p_tags) > 1
            or exists (select from unnest(p_tags) t where t is null or t = '' or octet_length(t) > 255)) then
        v_violation := row('OJ400', 'tags', 'tags must be at most 100 non-empty strings of at most 255 bytes')::ojs.violation;
    end if;
    if v_violation is null and p_retry is not null then
        v_violation := ojs._retry_violation(p_retry);
    end if;
    if v_violation is null and (p_max_attempts between 0 and 1000) is not true then
        v_violation := row('OJ422', 'max_attempts', 'max_attempts must be an integer between 0 and 1000')::ojs.violation;
    end if;
    if v_violation is null and num_nonnulls(p_options, p_extra) > 0 then
        v_violation := ojs._options_violation(p_options, p_extra);
    end if;
    return v_violation;
end;
$$;
comment on function ojs._job_violation(
    text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Returns why a job is refused, or null: by the rules of ojs-core section 5 and the limits of this
system.
Every function that enqueues applies these. Limits: type 255 characters, queue 128, args 1048576
bytes, meta 65536, retry 16384, options 65536, extra 262144, 100 tags of 255 bytes, 100 levels of
JSON.';

create or replace function ojs._name_violation(p_type text, p_queue text, p_priority int) returns ojs.violation
language plpgsql immutable
as $$
begin
    return case
        when coalesce(p_type, '') = '' then row('OJ400', 'type', 'type is required')::ojs.violation
        when length(p_type) > 255 then row('OJ400', 'type', 'type is longer than 255 characters')::ojs.violation
        when not ojs._type_name(p_type) then
            row('OJ400', 'type',
                'type must be lowercase words of a-z, 0-9, _ and -, each beginning with a letter, separated by dots')::ojs.violation
        when length(p_queue) > 128 then row('OJ400', 'queue', 'queue is longer than 128 characters')::ojs.violation
        when ojs._queue_name(p_queue) is not true then
            row('OJ400', 'queue', 'queue must consist of a-z, 0-9, - and . and begin with a letter or digit')::ojs.violation
        when (p_priority between -100 and 100) is not true then
            row('OJ400', 'priority', 'priority must be an integer between -100 and 100')::ojs.violation
        end;
end;
$$;
comment on function ojs._name_violation(text, text, int) is
'Returns why the type, queue or priority of a job is refused, or null.';

create or replace function ojs._type_name(p_type text) returns boolean
language sql immutable
as $$ select p_type ~ '^[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*$' and octet_length(p_type) <= 255 $$;
comment on function ojs._type_name(text) is
'Returns whether a text can be the type of a job. Becomes part of the query that asks.';

create or replace function ojs._meta_violation(p_meta jsonb, p_tenant text) returns ojs.violation
language plpgsql immutable
as $$
begin
    if p_meta is null or jsonb_typeof(p_meta) <> 'object' then
        return row('OJ400', 'meta', 'meta must be a JSON object')::ojs.violation;
    elsif octet_length(p_meta::text) > 65536 then
        return row('OJ413', 'meta', 'meta is larger than 65536 bytes')::ojs.violation;
    elsif ojs._too_deep(p_meta) then
        return row('OJ401', 'meta', 'meta is nested more than 100 levels deep')::ojs.violation;
    elsif p_meta::text ~* 'tenant' collate "C" and ojs._tenant_misspelt(p_meta) is not null then
        return ojs._tenant_misspelt(p_meta);
    elsif not p_meta ? 'tenant_id' then
        return null;
    elsif jsonb_typeof(p_meta -> 'tenant_id') <> 'string' or p_meta ->> 'tenant_id' = '' then
        return row('OJ400', 'meta.tenant_id', 'meta.tenant_id must be a non-empty string')::ojs.violation;
    elsif p_meta ->> 'tenant_id' <> p_tenant then
        return row('OJ405', 'meta.tenant_id', 'meta.tenant_id names another tenant than the call')::ojs.violation;
    end if;
    return null;
end;
$$;
comment on function ojs._meta_violation(jsonb, text) is
'Returns why the meta of a job is refused, or null. p_tenant: the tenant of the job.';

create or replace function ojs._id_violation(p_id uuid) returns ojs.violation
language plpgsql stable
as $$
begin
    return case
        when not ojs._v7(p_id) then row('OJ400', 'id', 'id must be a UUIDv7')::ojs.violation
        when p_id > ojs._latest_id() then row('OJ400', 'id', format('id is of %s, which is more than a day ahead',
            to_char(ojs._id_time(p_id) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))::ojs.violation
        end;
end;
$$;
comment on function ojs._id_violation(uuid) is
'Returns why an id that a client chose is refused, or null.';

create or replace function ojs._v7(p_id uuid) returns boolean
language sql immutable
as $$ select get_byte(uuid_send(p_id), 6) / 16 = 7 and get_byte(uuid_send(p_id), 8) / 64 = 2 $$;
comment on function ojs._v7(uuid) is
'Returns whether an id is a UUIDv7. Becomes part of the query that asks.';

create or replace function ojs._time_violation(
    p_scheduled_at timestamptz, p_expires_at timestamptz, p_timeout_ms int, p_visibility_timeout_ms int
)
returns ojs.violation
language plpgsql immutable
as $$
begin
    return case
        when not ojs._storable_time(p_scheduled_at) then
            row('OJ400', 'scheduled_at', 'scheduled_at must be a time between the years 1 and 9999')::ojs.violation
        when not ojs._storable_time(p_expires_at) then
            row('OJ400', 'expires_at', 'expires_at must be a time between the years 1 and 9999')::ojs.violation
        when p_expires_at <= p_scheduled_at then
            row('OJ400', 'expires_at', 'expires_at must be later than scheduled_at: the job would expire before it is due')::ojs.violation
        when p_timeout_ms < 0 then row('OJ400', 'timeout_ms', 'timeout_ms must not be negative')::ojs.violation
        when not ojs._lease_length(p_visibility_timeout_ms) then
            row('OJ400', 'visibility_timeout_ms', 'visibility_timeout_ms must be between 1000 and 604800000')::ojs.violation
        end;
end;
$$;
comment on function ojs._time_violation(timestamptz, timestamptz, int, int) is
'Returns why a time or a timeout of a job is refused, or null.';

create or replace function ojs._storable_time(p_at timestamptz) returns boolean
language sql immutable
as $$ select p_at between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' $$;
comment on function ojs._storable_time(timestamptz) is
'Returns whether a time is of the years 1 to 9999, which RFC 3339 can write. Becomes part of the
query that asks.';

create or replace function ojs._options_violation(p_options json, p_extra json) returns ojs.violation
language plpgsql stable
as $$
declare
    v_violation ojs.violation;
begin
    if p_options is not null then
        v_violation := ojs._json_violation(p_options, 'options', 'object', 65536);
    end if;
    if v_violation is null and p_extra is not null then
        v_violation := ojs._json_violation(p_extra, 'extra', 'object', 262144);
    end if;
    if v_violation is not null then
        return v_violation;
    elsif exists (select from json_object_keys(p_extra) k where k in (
            'specversion', 'id', 'type', 'queue', 'args', 'meta', 'priority', 'state', 'attempt', 'max_attempts', 'lease', 'errors',
            'error', 'result', 'options', 'retry', 'tags', 'worker_id', 'created_at', 'enqueued_at', 'started_at', 'completed_at',
            'cancelled_at', 'discarded_at', 'scheduled_at', 'expires_at', 'timeout_ms', 'visibility_timeout_ms')) then
        return row('OJ400', 'extra', 'extra must not hold attributes that the specification defines')::ojs.violation;
    elsif ojs._columns_among(p_options) is not null then
        return ojs._columns_among(p_options);
    elsif not ojs._ttl_valid(p_options -> 'result_ttl') then
        return row('OJ400', 'options.result_ttl',
            'options.result_ttl must be an integer of seconds between -1 and 315360000')::ojs.violation;
    elsif not ojs._ttl_valid(p_extra -> 'result_ttl') then
        return row('OJ400', 'result_ttl', 'result_ttl must be an integer of seconds between -1 and 315360000')::ojs.violation;
    elsif p_extra -> 'cost' is not null and (json_typeof(p_extra -> 'cost') = 'number'
            and (p_extra ->> 'cost')::numeric between 0.001 and 1000000) is not true then
        return row('OJ422', 'cost', 'cost must be a number between 0.001 and 1000000')::ojs.violation;
    end if;
    return coalesce(ojs._lacking(p_options, p_extra), ojs._misspelt(p_options, p_extra));
end;
$$;
comment on function ojs._options_violation(json, json) is
'Returns why the options or the extra attributes of a job are refused, or null.';

create or replace function ojs._columns_among(p_options json) returns ojs.violation
language sql immutable
as $$
    select row('OJ400', 'options.' || k, format('options.%s is a parameter of its own here: %s', k, case k
        when 'delay_until' then 'scheduled_at' when 'timeout' then 'timeout_ms' when 'metadata' then 'meta'
        when 'max_attempts' then 'retry.max_attempts' else k end))::ojs.violation
    from json_object_keys(p_options) k
    where k in ('queue', 'priority', 'retry', 'tags', 'max_attempts', 'timeout', 'timeout_ms', 'visibility_timeout_ms', 'scheduled_at',
        'delay_until', 'expires_at', 'pending', 'metadata', 'meta') limit 1
$$;
comment on function ojs._columns_among(json) is
'Returns why a job is refused whose options hold what is a parameter of its own in SQL, or null. Over HTTP these
stand in options; the server takes them from there. Kept as options they would do nothing: the job would run
in another queue, and at once.';

create or replace function ojs._ttl_valid(p_ttl json) returns boolean
language sql immutable
as $$
    select p_ttl is null or json_typeof(p_ttl) = 'number'
        and case when p_ttl::text ~ '^(-1|[0-9]{1,9})$' then p_ttl::text::int <= 315360000 else false end
$$;
comment on function ojs._ttl_valid(json) is
'Returns whether a value can be the result_ttl of a job: whole seconds up to ten years, -1 for ever,
or absent.';

-- Most jobs break no rule, and to call the functions above for each of a thousand jobs would cost
-- as much as to store them. The functions below become part of a query. They must never accept more
-- than the rules, because a job that passes them is not checked again. Names have a function of
-- their own: jobs that are enqueued together share names, so that each name is checked once.
create or replace function ojs._ordinary_names(p_tenant text, p_type text, p_queue text) returns boolean
language sql stable
as $$
    select concat_ws('/', p_type, p_queue, p_tenant) ~ ('^[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*/[a-z0-9][a-z0-9.-]*'
            || '/([a-zA-Z0-9][a-zA-Z0-9._:-]*|_default|_other)$')
        and octet_length(p_type || p_queue || p_tenant) <= 128
$$;
comment on function ojs._ordinary_names(text, text, text) is
'Returns whether tenant, type and queue of a job certainly break no rule: short names, none null.
Becomes part of the query that asks.';

-- A statement that makes one job prepares its expressions for that job alone, so there are few
-- here.
create or replace function ojs._bare_job(p_tenant text, p_type text, p_queue text, p_priority int, p_args json, p_meta jsonb)
returns boolean
language sql stable
as $$
    select p_priority between -100 and 100 and p_meta = '{}' and ojs._ordinary_names(p_tenant, p_type, p_queue)
        and starts_with(p_args::text, '[') and ojs._plain_json(p_args)
$$;
comment on function ojs._bare_job(text, text, text, int, json, jsonb) is
'Returns whether a job with these attributes only certainly breaks no rule. Becomes part of the
query that asks.';

create or replace function ojs._ordinary_id(p_id uuid, p_latest uuid) returns boolean
language sql immutable
as $$ select p_id is null or ojs._v7(p_id) and p_id <= p_latest $$;
comment on function ojs._ordinary_id(uuid, uuid) is
'Returns whether an id that a client chose certainly breaks no rule. p_latest: ojs._latest_id().
Becomes part of the query that asks.';

create or replace function ojs._ordinary_rest(
    p_tenant text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz, p_timeout_ms int,
    p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns boolean
language sql stable
as $$
    select num_nonnulls(p_tags, p_retry, p_options, p_extra) = 0 and p_priority between -100 and 100 and p_max_attempts between 0 and 1000
        and starts_with(p_args::text, '[') and ojs._plain_json(p_args)
        and (p_meta = '{}' or jsonb_typeof(p_meta) = 'object' and octet_length(p_meta::text) < 200
            and (p_meta -> 'tenant_id' = to_jsonb(p_tenant)) is not false
            and case when p_meta ? 'tenant_id' then (p_meta - 'tenant_id')::text else p_meta::text end !~* 'tenant' collate "C")
        and ojs._storable_time(p_scheduled_at) is not false and ojs._storable_time(p_expires_at) is not false
        and (p_scheduled_at < p_expires_at) is not false
        and (p_timeout_ms >= 0) is not false and ojs._lease_length(p_visibility_timeout_ms) is not false
$$;
comment on function ojs._ordinary_rest(
    text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Returns whether the other attributes of a job certainly break no rule. Becomes part of the query
that asks.';
