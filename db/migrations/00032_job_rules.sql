-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._ttl_valid(p_ttl json) returns boolean
language sql immutable
as $$ select p_ttl is null or json_typeof(p_ttl) = 'number' and case when p_ttl::text ~ '^(-1|\d{1,9})$' then p_ttl::text::int <= 315360000 else false end $$;
-- +goose StatementEnd
comment on function ojs._ttl_valid(json) is
'Whether a value can be the result_ttl of a job: whole seconds up to ten years, -1 for ever, or absent.';

-- +goose StatementBegin
create function ojs._job_violation(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz,
    p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns ojs.violation
language plpgsql stable
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
    elsif p_id > ojs._latest_id() then
        return row('OJ400', 'id', format('id is of %s, which is more than a day ahead', to_char(ojs._id_time(p_id) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))::ojs.violation;
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
    if p_options is not null and not ojs._ttl_valid(p_options -> 'result_ttl') then
        return row('OJ400', 'options.result_ttl', 'options.result_ttl must be an integer of seconds between -1 and 315360000')::ojs.violation;
    elsif p_extra is not null and not ojs._ttl_valid(p_extra -> 'result_ttl') then
        return row('OJ400', 'result_ttl', 'result_ttl must be an integer of seconds between -1 and 315360000')::ojs.violation;
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_violation(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Why a job is refused, or null: the rules of ojs-core section 5 and the limits of this system, once for every way in. Limits: type 255
characters, queue 128, args 1048576 bytes, meta 65536, retry 16384, options 65536, extra 262144, 100 tags of 255 bytes, 100 levels of
JSON.';

-- +goose StatementBegin
create function ojs._violation_refusal(p_violation ojs.violation, p_n int) returns ojs.refusal
language sql immutable
as $$ select case when p_violation is not null then row((p_violation).sqlstate, format('jobs[%s]: %s', p_n, (p_violation).message), jsonb_build_object('field', (p_violation).field))::ojs.refusal end $$;
-- +goose StatementEnd
comment on function ojs._violation_refusal(ojs.violation, int) is 'A violation of job p_n of several as what is raised about it.';

-- Every statement prepares its expressions anew, so what most jobs pass is tested with few of them; what those do not let pass is
-- looked at more closely. All are narrower than the rules, never wider.
-- +goose StatementBegin
create function ojs._flat_args(p_args json) returns boolean
language sql stable
as $$
    select case when octet_length(p_args::text) <= 200 then starts_with(p_args::text, '[') and strpos(p_args::text, '{') = 0 and strpos(p_args::text, '\') = 0
        else octet_length(p_args::text) <= 65536 and p_args::text ~ '^\[[^][{\\]*\]$' end
$$;
-- +goose StatementEnd
comment on function ojs._flat_args(json) is
'Whether the args of a job break no rule for certain: without objects, escapes and deep arrays in them. Becomes part of the query that
asks.';

-- +goose StatementBegin
create function ojs._simple_names(p_tenant text, p_type text, p_queue text, p_priority int) returns boolean
language sql stable
as $$
    select (p_type || '/' || p_queue || '/' || p_tenant) ~ '^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*/[a-z0-9][a-z0-9.-]*/[a-zA-Z0-9][a-zA-Z0-9._:-]*$'
        and octet_length(p_type || p_queue || p_tenant) <= 128 and p_priority between -100 and 100
$$;
-- +goose StatementEnd
comment on function ojs._simple_names(text, text, text, int) is
'Whether tenant, type, queue and priority of a job break no rule for certain: short names. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._v7(p_id uuid) returns boolean
language sql immutable
as $$ select get_byte(uuid_send(p_id), 6) / 16 = 7 and get_byte(uuid_send(p_id), 8) / 64 = 2 $$;
-- +goose StatementEnd
comment on function ojs._v7(uuid) is 'Whether an id is a UUIDv7. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._simple_rest(
    p_id uuid, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz, p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb,
    p_retry jsonb, p_options json, p_extra json
) returns boolean
language sql stable
as $$
    select num_nonnulls(p_tags, p_retry, p_options, p_extra, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms) = 0
        and p_max_attempts between 0 and 1000 and p_meta = '{}' and ojs._flat_args(p_args) and ojs._v7(p_id)
$$;
-- +goose StatementEnd
comment on function ojs._simple_rest(uuid, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Whether what ojs._simple_names does not look at breaks no rule for certain: nothing but args. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._ordinary(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz,
    p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns boolean
language sql volatile
as $$
    select p_tags is null and p_retry is null and p_options is null and p_extra is null
        and p_type ~ '^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$' and octet_length(p_type) <= 255 and p_queue ~ '^[a-z0-9][a-z0-9.-]*$' and octet_length(p_queue) <= 128
        and ojs._tenant_valid(p_tenant) and p_priority between -100 and 100 and p_max_attempts between 0 and 1000
        and (p_id is null or ojs._v7(p_id) and p_id <= ojs._latest_id())
        and left(p_args::text, 1) = '[' and ojs._plain_json(p_args)
        and (p_meta = '{}' or jsonb_typeof(p_meta) = 'object' and octet_length(p_meta::text) < 200 and not p_meta ? 'tenant_id')
        and (p_scheduled_at is null or p_scheduled_at between '0001-01-01 00:00Z' and '9999-12-31 23:59:59Z')
        and (p_expires_at is null or p_expires_at between '0001-01-01 00:00Z' and '9999-12-31 23:59:59Z')
        and (p_timeout_ms is null or p_timeout_ms >= 0) and (p_visibility_timeout_ms is null or p_visibility_timeout_ms between 1000 and 604800000)
$$;
-- +goose StatementEnd
comment on function ojs._ordinary(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Whether a job is so ordinary that ojs._job_violation need not be asked. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._check_job(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz,
    p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns boolean
language plpgsql stable
as $$
declare
    v_violation ojs.violation;
begin
    if not coalesce(ojs._ordinary(p_tenant, p_id, p_type, p_queue, p_priority, p_max_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags,
            p_args, p_meta, p_retry, p_options, p_extra), false) then
        v_violation := ojs._job_violation(p_tenant, p_id, p_type, p_queue, p_priority, p_max_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags,
            p_args, p_meta, p_retry, p_options, p_extra);
        if v_violation is not null then
            perform ojs._raise(v_violation.sqlstate, v_violation.message, jsonb_strip_nulls(jsonb_build_object('field', v_violation.field, 'job_id', p_id)));
        end if;
    end if;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_job(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'True, or raises why a job is refused.';
reset role;
