-- +goose Up
-- Enqueue. Functions and the plain insert into ojs.jobs end in an insert into ojs.job under the same validation (ojs._job_violation), append to the wake
-- journal and notify who waits: a plain insert by its statement trigger, the functions themselves.
set local role ojs_owner;

create type ojs.violation as (sqlstate text, field text, message text);
comment on type ojs.violation is 'Why a job is refused: the problem''s SQLSTATE, the field at fault, and a sentence.';

-- A view, so that what it is made of is written once: the columns of a job, behind what went wrong instead.
create view ojs._outcome with (security_invoker = true) as
select 0 as n, null::text as sqlstate, null::text as message, null::jsonb as detail, j.* from ojs.job j where false;
comment on view ojs._outcome is 'Row type of calls in which each element succeeds or fails by itself; holds no rows. n: which element, from 0. A problem as it would be raised: sqlstate, message, detail; then the columns of the job are null.';

-- What a number can be in jsonb is 131072 digits before the point and 16383 behind it. The longest text that cannot be beyond that without a long run of
-- digits or a large exponent.
-- +goose StatementBegin
create function ojs._fits_jsonb(p_json json) returns boolean
language sql stable
as $$ select p_json::text !~ '[0-9][eE][-+]?[0-9]{3}' and (octet_length(p_json::text) < 16000 or p_json::text !~ '[0-9]{255}') $$;
-- +goose StatementEnd
comment on function ojs._fits_jsonb(json) is 'Whether all numbers of a JSON text certainly fit numeric, and with them the text jsonb. Becomes part of the query that asks.';

-- PostgreSQL 16 finds repeated keys by itself. Before that, the pairs in the text are counted (every colon outside of strings) and compared with
-- the pairs that are left once the text has become jsonb, which keeps one of each. Without escapes that could be a colon the strings
-- need not be set aside, because they keep their colons; which values can become jsonb is a question of their numbers.
-- +goose StatementBegin
do $do$
begin
    if current_setting('server_version_num')::int >= 160000 then
        execute $fn$
            create function ojs._repeats_key(p_json json) returns boolean language sql stable
            as $$ select not (p_json is json with unique keys) $$
        $fn$;
    else
        execute $fn$
            create function ojs._repeats_key_exactly(p_json json) returns boolean language plpgsql immutable set search_path = pg_catalog, pg_temp
            as $$
            begin
                return length(regexp_replace(regexp_replace(p_json::text, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^:]', '', 'g'))
                    <> length(regexp_replace(regexp_replace(p_json::jsonb::text, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^:]', '', 'g'));
            exception when numeric_value_out_of_range then
                -- A number beyond numeric: fine as text, but it cannot become jsonb to be compared.
                return false;
            end;
            $$
        $fn$;
        comment on function ojs._repeats_key_exactly(json) is 'ojs._repeats_key for texts with escapes or large numbers.';
        execute $fn$
            create function ojs._repeats_key(p_json json) returns boolean language sql stable
            as $$
                select case
                    when strpos(p_json::text, '{') = 0 then false
                    when strpos(p_json::text, '\u') > 0 or octet_length(p_json::text) > 100000 or not ojs._fits_jsonb(p_json) then ojs._repeats_key_exactly(p_json)
                    else octet_length(p_json::text) - octet_length(replace(p_json::text, ':', ''))
                        <> octet_length(p_json::jsonb::text) - octet_length(replace(p_json::jsonb::text, ':', '')) end
            $$
        $fn$;
    end if;
end;
$do$;
-- +goose StatementEnd
comment on function ojs._repeats_key(json) is 'Whether an object anywhere in a JSON text has the same key twice.';

-- +goose StatementBegin
create function ojs._bad_escape(p_text text) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_escapes text;
begin
    if strpos(p_text, '\u') > 0 then
        -- Escaped backslashes and whole surrogate pairs set aside.
        v_escapes := regexp_replace(p_text, '\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', '', 'g');
        if strpos(v_escapes, '\u0000') > 0 then
            return 'a NUL character (\u0000)';
        elsif v_escapes ~ '\\u[dD][89a-fA-F]' then
            return 'half of a surrogate pair';
        end if;
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._bad_escape(text) is 'What a JSON text holds that json keeps and text cannot be made of, or null.';

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
create function ojs._json_violation(p_json json, p_field text, p_kind text, p_max_bytes int) returns ojs.violation
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_text   text := p_json::text;
    v_escape text := ojs._bad_escape(v_text);
begin
    if octet_length(v_text) > p_max_bytes then
        return row('OJ413', p_field, format('%s is larger than %s bytes', p_field, p_max_bytes))::ojs.violation;
    end if;
    if p_kind is not null and json_typeof(p_json) <> p_kind then
        return row('OJ400', p_field, format('%s must be a JSON %s', p_field, p_kind))::ojs.violation;
    end if;
    if v_escape is not null then
        return row('OJ401', p_field, format('%s holds %s', p_field, v_escape))::ojs.violation;
    end if;
    if length(v_text) - length(translate(v_text, '[{', '')) > 100 then
        begin
            if ojs._too_deep(p_json::jsonb) then
                return row('OJ401', p_field, format('%s is nested more than 100 levels deep', p_field))::ojs.violation;
            end if;
        exception when numeric_value_out_of_range then
            return row('OJ401', p_field, format('%s holds more than 100 brackets and a number beyond 131072 digits', p_field))::ojs.violation;
        end;
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

-- Narrower than the rules, never wider: what it lets pass, ojs._json_violation would.
-- +goose StatementBegin
create function ojs._plain_json(p_json json) returns boolean
language sql stable
as $$
    select octet_length(p_json::text) <= 65536 and strpos(p_json::text, '\u') = 0
        and (octet_length(p_json::text) < 200 or octet_length(p_json::text) - octet_length(replace(replace(p_json::text, '[', ''), '{', '')) <= 100)
        and not ojs._repeats_key(p_json)
$$;
-- +goose StatementEnd
comment on function ojs._plain_json(json) is 'Whether a JSON value certainly breaks no rule of ojs._json_violation, whatever its kind: short, without \u escapes, few brackets, no repeated key. Becomes part of the query that asks.';

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
create function ojs._interval_ms(p_interval jsonb) returns bigint
language sql immutable
as $$
    select case jsonb_typeof(p_interval)
        when 'string' then (extract(epoch from ojs._duration(p_interval #>> '{}')) * 1000)::bigint
        when 'number' then case when (p_interval #>> '{}')::numeric between 0 and 1e15 then (p_interval #>> '{}')::numeric::bigint end
        end
$$;
-- +goose StatementEnd
comment on function ojs._interval_ms(jsonb) is 'A duration in milliseconds: ISO 8601 text, or a number of milliseconds; null when it is neither.';

-- +goose StatementBegin
create function ojs._retry_interval_ms(p_retry jsonb, p_name text, p_default bigint) returns bigint
language sql immutable
as $$
    select coalesce(ojs._interval_ms(p_retry -> (p_name || '_ms')), ojs._interval_ms(p_retry -> p_name), p_default)
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
            if v_num < 1 or v_num > 31536000000 or v_num <> trunc(v_num) then
                return row('OJ422', 'retry.' || v_name || '_ms', format('retry.%s_ms must be an integer between 1 and 31536000000', v_name))::ojs.violation;
            end if;
        end if;
        if ojs._retry_interval_ms(p_retry, v_name, 0) > 31536000000 then
            return row('OJ422', 'retry.' || v_name, format('retry.%s must be at most a year', v_name))::ojs.violation;
        elsif ojs._retry_interval_ms(p_retry, v_name, 1) < 1 then
            return row('OJ422', 'retry.' || v_name, format('retry.%s must be at least a millisecond', v_name))::ojs.violation;
        end if;
    end loop;
    if ojs._retry_interval_ms(p_retry, 'max_interval', null) < ojs._retry_interval_ms(p_retry, 'initial_interval', 1000) and p_retry ?| array['initial_interval', 'initial_interval_ms'] then
        return row('OJ422', 'retry.max_interval', 'retry.max_interval must not be less than retry.initial_interval')::ojs.violation;
    end if;
    if p_retry ? 'backoff_strategy' and coalesce(p_retry ->> 'backoff_strategy', '') not in ('exponential', 'linear', 'polynomial', 'constant', 'none', 'custom') then
        return row('OJ422', 'retry.backoff_strategy', 'retry.backoff_strategy must be "exponential", "linear", "polynomial", "constant", "none" or "custom"')::ojs.violation;
    end if;
    if p_retry ? 'intervals' then
        if (case when jsonb_typeof(p_retry -> 'intervals') = 'array' then jsonb_array_length(p_retry -> 'intervals') not between 1 and 1000
                or exists (select from jsonb_array_elements(p_retry -> 'intervals') i where (ojs._interval_ms(i) between 1 and 31536000000) is not true) else true end) then
            return row('OJ422', 'retry.intervals', 'retry.intervals must be an array of 1 to 1000 ISO 8601 durations or numbers of milliseconds, each from a millisecond to a year')::ojs.violation;
        end if;
    elsif p_retry ->> 'backoff_strategy' = 'custom' then
        return row('OJ422', 'retry.intervals', 'retry.intervals is required with backoff_strategy "custom"')::ojs.violation;
    end if;
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
        return row('OJ422', 'retry.jitter', 'retry.jitter must be a boolean, "none", "full", "equal" or "decorrelated"')::ojs.violation;
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
create function ojs._ttl_valid(p_ttl json) returns boolean
language sql immutable
as $$ select p_ttl is null or json_typeof(p_ttl) = 'number' and case when p_ttl::text ~ '^(-1|\d{1,9})$' then p_ttl::text::int <= 315360000 else false end $$;
-- +goose StatementEnd
comment on function ojs._ttl_valid(json) is 'Whether a value can be the result_ttl of a job: whole seconds up to ten years, -1 for ever, or absent.';

-- +goose StatementBegin
create function ojs._job_violation(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz,
    p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns ojs.violation
language plpgsql stable set search_path = pg_catalog, pg_temp
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
characters, queue 128, args 1048576 bytes, meta 65536, retry 16384, options 65536, extra 262144, 100 tags of 255 bytes, 100 levels of JSON.';

-- +goose StatementBegin
create function ojs._violation_refusal(p_violation ojs.violation, p_n int) returns ojs.refusal
language sql immutable
as $$ select case when p_violation is not null then row((p_violation).sqlstate, format('jobs[%s]: %s', p_n, (p_violation).message), jsonb_build_object('field', (p_violation).field))::ojs.refusal end $$;
-- +goose StatementEnd
comment on function ojs._violation_refusal(ojs.violation, int) is 'A violation of job p_n of several as what is raised about it.';

-- +goose StatementBegin
create function ojs._plain_uuid(p_json json) returns boolean
language sql stable
as $$
    select p_json::text like '"________-____-____-____-____________"' and octet_length(replace(p_json::text, '-', '')) = 34 and p_json::text ~ '^"[0-9a-fA-F-]+"$'
$$;
-- +goose StatementEnd
comment on function ojs._plain_uuid(json) is 'Whether a JSON value is a text that is certainly a UUID.';

-- +goose StatementBegin
create function ojs._plain_time(p_json json) returns boolean
language sql stable
as $$
    select p_json::text ~ '^"(19|20|21)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[-+](0\d|1[0-4]):[0-5]\d)"$'
$$;
-- +goose StatementEnd
comment on function ojs._plain_time(json) is 'Whether a JSON value is a text that is certainly a time.';

-- +goose StatementBegin
create function ojs._when(p_text text, p_now timestamptz) returns timestamptz
language sql stable
as $$ select case when left(p_text, 1) = '+' then p_now + ojs._duration(substr(p_text, 2)) else p_text::timestamptz end $$;
-- +goose StatementEnd
comment on function ojs._when(text, timestamptz) is 'A time as clients write it: with an offset, or + and an ISO 8601 duration from p_now on; null if the duration is none. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._tells_time(p_text text) returns boolean
language sql immutable
as $$ select p_text like '+%' or p_text ~ '^\d{4,6}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[-+]\d\d(:?\d\d)?)$' $$;
-- +goose StatementEnd
comment on function ojs._tells_time(text) is 'Whether a text has a form that ojs._when is for: PostgreSQL also reads tomorrow, and 02/03/2031 by the settings of the session.';

-- +goose StatementBegin
create function ojs._first_state(p_pending boolean, p_scheduled_at timestamptz, p_now timestamptz) returns ojs.job_state
language sql stable
as $$ select case when p_pending then 'pending' when p_scheduled_at > p_now then 'scheduled' else 'available' end::ojs.job_state $$;
-- +goose StatementEnd
comment on function ojs._first_state(boolean, timestamptz, timestamptz) is 'The state of a new job.';

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
comment on function ojs._flat_args(json) is 'Whether the args of a job break no rule for certain: without objects, escapes and deep arrays in them. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._simple_names(p_tenant text, p_type text, p_queue text, p_priority int) returns boolean
language sql stable
as $$
    select (p_type || '/' || p_queue || '/' || p_tenant) ~ '^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*/[a-z0-9][a-z0-9.-]*/[a-zA-Z0-9][a-zA-Z0-9._:-]*$'
        and octet_length(p_type || p_queue || p_tenant) <= 128 and p_priority between -100 and 100
$$;
-- +goose StatementEnd
comment on function ojs._simple_names(text, text, text, int) is 'Whether tenant, type, queue and priority of a job break no rule for certain: short names. Becomes part of the query that asks.';

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
create function ojs._retry_max_attempts(p_retry jsonb) returns int
language sql immutable
as $$ select case when jsonb_typeof(p_retry -> 'max_attempts') = 'number' and p_retry ->> 'max_attempts' ~ '^\d{1,4}$' then (p_retry ->> 'max_attempts')::int end $$;
-- +goose StatementEnd
comment on function ojs._retry_max_attempts(jsonb) is 'max_attempts of a retry policy; null when absent or malformed, which validation reports.';

-- With its caller's rights: who that is tells whether this is a plain insert. The enqueue functions know the tenant, and whether
-- max_attempts was given beside the policy. Only for rows that need it (the trigger's condition, which every statement reads
-- anew and which therefore is short), so that ordinary inserts call no function per row.
-- +goose StatementBegin
create function ojs._job_arriving() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if current_user <> 'ojs_owner' then
        new.state := ojs._first_state(new.state = 'pending', new.scheduled_at, ojs.now());
        if new.state <> 'available' then
            new.seq := null;
        end if;
        new.max_attempts := coalesce(ojs._retry_max_attempts(new.retry), new.max_attempts);
        if new.meta ? 'tenant_id' and new.tenant_id is distinct from new.meta ->> 'tenant_id' and ojs.current_tenant() is null
                and new.tenant_id = (select s.default_tenant from ojs.settings s) and jsonb_typeof(new.meta -> 'tenant_id') = 'string' then
            new.tenant_id := new.meta ->> 'tenant_id';
        end if;
    end if;
    return new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_arriving() is
'Trigger: gives a new job the state, tenant and attempts that follow from its other attributes.';
create trigger job_arriving before insert on ojs.job for each row
    when (new.scheduled_at is not null or new.retry is not null or new.meta <> '{}') execute function ojs._job_arriving();

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
create function ojs._check_job(
    p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int, p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz,
    p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
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

-- +goose StatementBegin
create function ojs._job_inserted() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_line      record;
    v_queues    text[];
    v_scheduled boolean := false;
    v_latest    uuid;
begin
    -- Most statements insert one simple job, and for one job aggregates cost more than all the rest.
    insert into ojs.wake as k (tenant_id, queue, priority, to_state, jobs, lo, hi)
    select j.tenant_id, j.queue, j.priority, j.state, 1, j.seq, j.seq
    from inserted j
    where not exists (select from inserted offset 1) and j.state = 'available' and ojs._simple_names(j.tenant_id, j.type, j.queue, j.priority)
      and ojs._simple_rest(j.id, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra)
      and j.id <= ojs._latest_id()
    returning case when exists (select from ojs.waiter w where w.queue = k.queue) then array[k.queue] end into v_queues;
    if found then
        if v_queues is not null then
            perform ojs._notify(v_queues);
        end if;
        return null;
    end if;
    v_latest := ojs._latest_id();
    for v_line in
        insert into ojs.wake as k (tenant_id, queue, priority, to_state, jobs, lo, hi)
        select j.tenant_id, j.queue, j.priority, j.state, sum(j.jobs), min(j.lo), max(j.hi)
        from (
            -- What jobs have in common is looked at once.
            select j.tenant_id, j.queue, j.priority, j.state, j.type, count(*) as jobs, min(j.seq) as lo, max(j.seq) as hi
            from inserted j
            group by j.tenant_id, j.queue, j.priority, j.state, j.type
            having bool_and(ojs._simple_rest(j.id, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options,
                    j.extra) and j.id <= v_latest
                or ojs._check_job(j.tenant_id, j.id, j.type, j.queue, j.priority, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms,
                    j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra))
        ) j
        group by j.tenant_id, j.queue, j.priority, j.state
        having bool_and(ojs._simple_names(j.tenant_id, j.type, j.queue, j.priority)
            or ojs._check_job(j.tenant_id, null, j.type, j.queue, j.priority, 3, null, null, null, null, null, '[]', '{}', null, null, null))
        returning k.queue, k.to_state, exists (select from ojs.waiter w where w.queue = k.queue) as awaited
    loop
        if v_line.to_state = 'available' and v_line.awaited then
            v_queues := v_queues || v_line.queue;
        elsif v_line.to_state = 'scheduled' then
            v_scheduled := true;
        end if;
    end loop;
    if v_scheduled then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select j.scheduled_at, 'due', array_agg(j.tenant_id), array_agg(j.id)
        from (select j.*, row_number() over (partition by j.scheduled_at) / 1000 as part from inserted j where j.state = 'scheduled') j
        group by j.scheduled_at, j.part;
    end if;
    if exists (select from inserted j where j.expires_at is not null) then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select j.expires_at, 'expiry', array_agg(j.tenant_id), array_agg(j.id)
        from (select j.*, row_number() over (partition by j.expires_at) / 1000 as part from inserted j where j.expires_at is not null) j
        group by j.expires_at, j.part;
    end if;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_inserted() is
'Trigger: refuses a statement that inserts a job which breaks a rule, appends to the wake journal and notifies. The only thing a producer writes besides its jobs.';
-- The enqueue functions do all of this themselves, because they know what they insert. As text, because every statement reads the condition
-- anew, and a constant of type name takes 64 numbers.
create trigger job_inserted after insert on ojs.job referencing new table as inserted for each statement
    when (current_user::text <> 'ojs_owner') execute function ojs._job_inserted();

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
    v_tenant   text := case when ojs._trusted() then p_tenant else ojs._session_tenant(p_tenant) end;
    v_now      timestamptz := ojs.now();
    v_attempts int;
    v_state    ojs.job_state;
    v_awaited  boolean;
    v_job      ojs.job;
begin
    -- Few expressions, because each is prepared anew in every transaction.
    if num_nonnulls(p_tags, p_retry, p_options, p_extra, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_id, p_max_attempts) = 0 and not p_pending
            and ojs._simple_names(v_tenant, p_type, p_queue, p_priority) and p_meta = '{}' and ojs._flat_args(p_args) then
        insert into ojs.job (enqueued_at, created_at, tenant_id, queue, type, priority, args) values (v_now, v_now, v_tenant, p_queue, p_type, p_priority, p_args)
        returning * into v_job;
    else
        if v_tenant is null then
            v_tenant := ojs._unnamed_tenant(p_meta);
        end if;
        v_attempts := coalesce(p_max_attempts, ojs._retry_max_attempts(p_retry), 3);
        perform ojs._check_job(v_tenant, p_id, p_type, p_queue, p_priority, v_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args,
            p_meta, p_retry, p_options, p_extra);
        v_state := ojs._first_state(p_pending, p_scheduled_at, v_now);
        insert into ojs.job (id, state, seq, enqueued_at, created_at, tenant_id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms,
            visibility_timeout_ms, tags, args, meta, retry, options, extra)
        values (coalesce(p_id, ojs._uuid_v7()), v_state, case when v_state = 'available' then nextval('ojs.job_seq') end, v_now, v_now, v_tenant, p_queue, p_type, p_priority,
            v_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra)
        on conflict do nothing
        returning * into v_job;
        if not found then
            perform ojs._raise('OJ410', format('job %s exists already', p_id), jsonb_build_object('field', 'id', 'job_id', p_id));
        elsif v_state = 'scheduled' then
            insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_scheduled_at, 'due', array[v_tenant], array[v_job.id]);
        end if;
        if p_expires_at is not null then
            insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_expires_at, 'expiry', array[v_tenant], array[v_job.id]);
        end if;
    end if;
    insert into ojs.wake as k (tenant_id, queue, priority, to_state, jobs, lo, hi, at)
    values (v_tenant, p_queue, p_priority, v_job.state, 1, v_job.seq, v_job.seq, v_now)
    returning k.lo is not null and exists (select from ojs.waiter w where w.queue = p_queue) into v_awaited;
    if v_awaited then
        perform ojs._notify(array[p_queue]);
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text) is
'Enqueues one job in the caller''s transaction and returns it (ojs-core section 7.1). It exists when the transaction commits, and then wakes a
waiting worker. p_scheduled_at in the future: scheduled; p_pending: pending until ojs.activate; else available. p_retry: retry policy (ojs-retry),
p_max_attempts overrides its max_attempts; default 3. p_timeout_ms, p_visibility_timeout_ms: milliseconds. p_options, p_extra: JSON objects kept
byte for byte. p_id: a UUIDv7 of the caller''s, of at most a day ahead, else one is made. p_tenant: a tenant''s login role needs none; others name it here or in
p_meta ->> ''tenant_id'', else the default tenant. Raises invalid_request, invalid_payload, validation_error, payload_too_large (field in the
detail), duplicate, TENANT_REQUIRED, TENANT_ACCESS_DENIED, TENANT_MISMATCH.';

-- +goose StatementBegin
create function ojs._unnamed_tenant(p_meta jsonb) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if jsonb_typeof(p_meta -> 'tenant_id') = 'string' and p_meta ->> 'tenant_id' <> '' then
        if not ojs._tenant_valid(p_meta ->> 'tenant_id') then
            perform ojs._raise('OJ400', 'meta.tenant_id must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "meta.tenant_id"}');
        end if;
        return p_meta ->> 'tenant_id';
    end if;
    return ojs._default_tenant();
end;
$$;
-- +goose StatementEnd
comment on function ojs._unnamed_tenant(jsonb) is 'The tenant of a new job for which the call names none: meta.tenant_id, else the default tenant.';

-- +goose StatementBegin
create function ojs._indexed(p_refusal ojs.refusal, p_n int, p_each boolean) returns ojs.refusal
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if p_refusal is null then
        return null;
    end if;
    p_refusal.detail := coalesce(p_refusal.detail, '{}') || jsonb_build_object('index', p_n);
    if not p_each then
        perform ojs._raise(p_refusal.sqlstate, p_refusal.message, p_refusal.detail);
    end if;
    return p_refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._indexed(ojs.refusal, int, boolean) is 'Why job p_n of several is refused, with its index; raises it unless each job succeeds or fails by itself.';

-- +goose StatementBegin
create function ojs._shape_refusal(p_job json, p_n int, p_own text, p_tenant text) returns ojs.refusal
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_field record;
    v_name  text;
    v_bad   text;
begin
    if json_typeof(p_job) <> 'object' then
        return row('OJ400', format('jobs[%s] must be a JSON object', p_n), '{"field": ""}')::ojs.refusal;
    end if;
    for v_field in
        -- json_to_record would make a text of a number and a number of a text.
        select x.key, x.value, json_typeof(x.value) as given, lag(x.key) over (order by x.key) = x.key as again, '{"type": "string", "args": "array", "queue": "string",
            "priority": "integer", "scheduled_at": "string", "expires_at": "string", "meta": "object", "retry": "object", "max_attempts": "integer",
            "timeout_ms": "integer", "visibility_timeout_ms": "integer", "tags": "array", "pending": "boolean", "options": "object", "extra": "object",
            "id": "string", "tenant": "string"}'::jsonb ->> x.key as kind
        from json_each(p_job) x
    loop
        v_name := v_field.key;
        v_bad := case
            when v_field.kind is null then format('has an unknown field %I', v_field.key)
            when v_field.again then format('has the field %I twice', v_field.key)
            when v_field.given = 'null' then null
            when v_field.kind = 'integer' then case when v_field.given <> 'number' or v_field.value::text !~ '^-?\d{1,10}$' then format('%I must be an integer', v_field.key) end
            when v_field.kind <> v_field.given then format('%I must be a JSON %s', v_field.key, v_field.kind)
            when v_field.key in ('scheduled_at', 'expires_at') then case when case when ojs._tells_time(v_field.value #>> '{}') then ojs._when(v_field.value #>> '{}', ojs.now()) end is null
                then format('%I must be a time with an offset, or + and an ISO 8601 duration such as +PT90S', v_field.key) end
            when v_field.key = 'tags' then case when exists (select from json_array_elements(v_field.value) t where json_typeof(t) <> 'string') then 'tags must be strings' end
            when v_field.key in ('meta', 'retry') then case when ojs._repeats_key(v_field.value) then format('%I holds an object with the same key twice', v_field.key) end
            end;
        if v_bad is not null then
            return row('OJ400', format('jobs[%s] %s', p_n, v_bad), jsonb_build_object('field', v_field.key))::ojs.refusal;
        elsif v_field.key = 'tenant' and v_field.value #>> '{}' <> p_tenant then
            return row('OJ405', format('jobs[%s] names another tenant than the call', p_n), '{"field": "tenant"}')::ojs.refusal;
        elsif v_field.given <> 'null' then
            perform case
                when v_field.kind = 'integer' then v_field.value::text::int is null
                when v_field.key = 'id' then (v_field.value #>> '{}')::uuid is null
                when v_field.key in ('meta', 'retry') then v_field.value::jsonb is null
                end;
        end if;
    end loop;
    return ojs._tenant_refusal(p_own, p_job ->> 'tenant');
exception when data_exception or statement_too_complex then
    -- PostgreSQL's own words; a text that it cannot take apart names no field.
    return row(sqlstate, format('jobs[%s]: %s', p_n, sqlerrm), case when v_name is null then '{}' else jsonb_build_object('field', v_name) end)::ojs.refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._shape_refusal(json, int, text, text) is
'Why job p_n of several cannot be read, or null: not an object, an unknown or repeated field, a value that is not of its field''s type, a tenant that is not the caller''s to name.
p_own: the tenant of the role that logged in; p_tenant: that of the call.';

-- +goose StatementBegin
create function ojs._tenant_of_job(p_meta jsonb, p_n int) returns ojs.refusal
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_detail text;
begin
    perform ojs._unnamed_tenant(p_meta);
    return null;
exception when others then
    get stacked diagnostics v_detail = pg_exception_detail;
    return row(sqlstate, sqlerrm, nullif(v_detail, '')::jsonb)::ojs.refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._tenant_of_job(jsonb, int) is 'Why a job for which nobody names a tenant has none, or null.';

-- +goose StatementBegin
create function ojs._enqueue(p_jobs json, p_tenant text, p_each boolean) returns setof ojs._outcome
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_now     timestamptz := ojs.now();
    v_own     text := ojs._session_tenant(null);
    v_tenant  text := ojs._session_tenant(p_tenant);
    v_default text := case when v_tenant is null then (select s.default_tenant from ojs.settings s where not s.tenant_required) end;
begin
    if p_jobs is null or json_typeof(p_jobs) <> 'array' then
        perform ojs._raise('OJ400', 'jobs must be a JSON array', '{"field": "jobs"}');
    end if;
    if json_array_length(p_jobs) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'jobs must hold between 1 and 10000 jobs', '{"field": "jobs"}');
    end if;
    return query
    with parsed as materialized (
        select (e.ord - 1)::int as n, e.job, x.*,
            -- Nothing but the fields asked for, each once and none null: as many bytes as they take when written without blanks, or as many fields.
            case when octet_length(r.job::text) = 1 + coalesce(octet_length(x.type::text) + 8, 0) + coalesce(octet_length(x.args::text) + 8, 0) + coalesce(octet_length(x.queue::text) + 9, 0) +
            coalesce(octet_length(x.priority::text) + 12, 0) + coalesce(octet_length(x.scheduled_at::text) + 16, 0) + coalesce(octet_length(x.expires_at::text) + 14,
            0) + coalesce(octet_length(x.meta::text) + 8, 0) + coalesce(octet_length(x.retry::text) + 9, 0) + coalesce(octet_length(x.max_attempts::text) + 16, 0) +
            coalesce(octet_length(x.timeout_ms::text) + 14, 0) + coalesce(octet_length(x.visibility_timeout_ms::text) + 25, 0) + coalesce(octet_length(x.tags::text)
            + 8, 0) + coalesce(octet_length(x.pending::text) + 11, 0) + coalesce(octet_length(x.options::text) + 11, 0) + coalesce(octet_length(x.extra::text) + 9,
            0) + coalesce(octet_length(x.id::text) + 6, 0) + coalesce(octet_length(x.tenant::text) + 10, 0) then true
            else (select count(*) from json_object_keys(r.job)) = num_nonnulls(x.type, x.args, x.queue, x.priority, x.scheduled_at, x.expires_at, x.meta, x.retry, x.max_attempts, x.timeout_ms, x.visibility_timeout_ms, x.tags,
                x.pending, x.options, x.extra, x.id, x.tenant) end as whole
        from json_array_elements(p_jobs) with ordinality e(job, ord)
        cross join lateral (select case when json_typeof(e.job) = 'object' and (strpos(e.job::text, '\u') = 0 or ojs._bad_escape(e.job::text) is null) then e.job else '{}' end as job) r
        cross join lateral json_to_record(r.job) as x(type json, args json, queue json, priority json, scheduled_at json, expires_at json, meta json, retry json, max_attempts json, timeout_ms json,
            visibility_timeout_ms json, tags json, pending json, options json, extra json, id json, tenant json)
    ), shaped as materialized (
        select p.*, case
            when p.whole and json_typeof(p.type) = 'string' and (p.queue is null or json_typeof(p.queue) = 'string') and (p.tenant is null or p.tenant #>> '{}' = v_tenant
                    or v_tenant is null and json_typeof(p.tenant) = 'string' and ojs._tenant_valid(p.tenant #>> '{}'))
                and (p.priority is null or p.priority::text ~ '^-?\d{1,9}$') and (p.max_attempts is null or p.max_attempts::text ~ '^-?\d{1,9}$')
                and (p.timeout_ms is null or p.timeout_ms::text ~ '^-?\d{1,9}$') and (p.visibility_timeout_ms is null or p.visibility_timeout_ms::text ~ '^-?\d{1,9}$')
                and (p.id is null or ojs._plain_uuid(p.id)) and json_typeof(p.args) = 'array'
                and (p.scheduled_at is null or ojs._plain_time(p.scheduled_at)) and (p.expires_at is null or ojs._plain_time(p.expires_at))
                and (p.meta is null or json_typeof(p.meta) = 'object' and ojs._plain_json(p.meta) and ojs._fits_jsonb(p.meta))
                and (p.retry is null or json_typeof(p.retry) = 'object' and ojs._plain_json(p.retry) and ojs._fits_jsonb(p.retry))
                and (p.tags is null or p.tags::text ~ '^\["[^"\\]*"(,"[^"\\]*")*\]$') and (p.pending is null or json_typeof(p.pending) = 'boolean')
                and (p.options is null or json_typeof(p.options) = 'object') and (p.extra is null or json_typeof(p.extra) = 'object') then null
            else ojs._indexed(ojs._shape_refusal(p.job, p.n, v_own, p_tenant), p.n, p_each) end as refusal
        from parsed p
    ), read as materialized (
        select s.n, s.type #>> '{}' as type, s.args, coalesce(s.queue #>> '{}', 'default') as queue, coalesce(s.priority::text::int, 0) as priority,
            ojs._when(s.scheduled_at #>> '{}', v_now) as scheduled_at, ojs._when(s.expires_at #>> '{}', v_now) as expires_at, coalesce(s.meta::jsonb, '{}') as meta,
            s.retry::jsonb as retry, coalesce(s.max_attempts::text::int, ojs._retry_max_attempts(s.retry::jsonb), 3) as max_attempts, s.timeout_ms::text::int as timeout_ms,
            s.visibility_timeout_ms::text::int as visibility_timeout_ms, case when s.tags is not null then array(select json_array_elements_text(s.tags)) end as tags,
            coalesce(s.pending::text::boolean, false) as pending, s.options, s.extra, (s.id #>> '{}')::uuid as id, coalesce(s.tenant #>> '{}', v_tenant) as tenant
        from shaped s where s.refusal is null
    ), judged as materialized (
        select r.*, coalesce(r.tenant, case when r.meta ? 'tenant_id' then r.meta ->> 'tenant_id' else v_default end) as tenant_id, case
            when (r.tenant is not null or v_default is not null) and ojs._ordinary(coalesce(r.tenant, v_default), r.id, r.type, r.queue, r.priority, r.max_attempts, r.scheduled_at,
                r.expires_at, r.timeout_ms, r.visibility_timeout_ms, r.tags, r.args, r.meta, r.retry, r.options, r.extra) then null
            else ojs._indexed(coalesce(case when r.tenant is null then ojs._tenant_of_job(r.meta, r.n) end, ojs._violation_refusal(ojs._job_violation(
                coalesce(r.tenant, nullif(r.meta ->> 'tenant_id', ''), v_default), r.id, r.type, r.queue, r.priority, r.max_attempts, r.scheduled_at, r.expires_at, r.timeout_ms,
                r.visibility_timeout_ms, r.tags, r.args, r.meta, r.retry, r.options, r.extra), r.n)), r.n, p_each) end as refusal
        from read r
    ), good as materialized (
        select j.n, t.state, case when t.state = 'available' then nextval('ojs.job_seq') end as seq, j.id is not null as named, j.tenant_id, coalesce(j.id, ojs._uuid_v7()) as id, j.queue,
            j.type, j.priority, j.max_attempts, j.scheduled_at, j.expires_at, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.args, j.meta, j.retry, j.options, j.extra
        from judged j
        cross join lateral (select ojs._first_state(j.pending, j.scheduled_at, v_now) as state) t
        where j.refusal is null
    ), added as (
        insert into ojs.job (state, seq, enqueued_at, created_at, tenant_id, id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms,
            visibility_timeout_ms, tags, args, meta, retry, options, extra)
        select g.state, g.seq, v_now, v_now, g.tenant_id, g.id, g.queue, g.type, g.priority, g.max_attempts, g.scheduled_at, g.expires_at, g.timeout_ms,
            g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra
        from good g where not g.named
    ), named as (
        -- Looking for a conflict costs, and only an id of the caller's can have one.
        insert into ojs.job (state, seq, enqueued_at, created_at, tenant_id, id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms,
            visibility_timeout_ms, tags, args, meta, retry, options, extra)
        select g.state, g.seq, v_now, v_now, g.tenant_id, g.id, g.queue, g.type, g.priority, g.max_attempts, g.scheduled_at, g.expires_at, g.timeout_ms,
            g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra
        from good g where g.named
        on conflict do nothing
        returning id, tenant_id
    ), twice as materialized (
        select g.n, ojs._indexed(row('OJ410', format('job %s exists already', g.id), jsonb_build_object('field', 'id', 'job_id', g.id))::ojs.refusal, g.n, p_each) as refusal
        from (select d.n, d.id, d.tenant_id, row_number() over (partition by d.id, d.tenant_id order by d.n) as nth from good d where d.named) g
        where g.nth > 1 or (g.id, g.tenant_id) not in (select a.id, a.tenant_id from named a)
    ), kept as materialized (
        select g.* from good g where not g.named or g.n not in (select t.n from twice t)
    ), woken as (
        insert into ojs.wake as k (tenant_id, queue, priority, to_state, jobs, lo, hi)
        select g.tenant_id, g.queue, g.priority, g.state, count(*), min(g.seq), max(g.seq) from kept g group by g.tenant_id, g.queue, g.priority, g.state
        returning case when k.to_state = 'available' then k.queue end as awaited
    ), notified as materialized (
        select ojs._notify(array_agg(distinct w.awaited)) from woken w having count(w.awaited) > 0
    ), reminded as (
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select g.scheduled_at, 'due'::ojs.timer_kind, array_agg(g.tenant_id), array_agg(g.id)
        from (select d.*, row_number() over (partition by d.scheduled_at) / 1000 as part from kept d where d.state = 'scheduled') g
        group by g.scheduled_at, g.part
        union all
        select g.expires_at, 'expiry', array_agg(g.tenant_id), array_agg(g.id)
        from (select d.*, row_number() over (partition by d.expires_at) / 1000 as part from kept d where d.expires_at is not null) g
        group by g.expires_at, g.part
    )
    select o.*
    from (
        select g.n, null::text, null::text, null::jsonb, g.state, 0, null::uuid, null::timestamptz, null::timestamptz, null::timestamptz, null::timestamptz, v_now, null::text, null::jsonb,
            null::json, g.seq, g.tenant_id, g.id, g.queue, g.type, g.priority, g.max_attempts, v_now, g.scheduled_at, g.expires_at, g.timeout_ms, g.visibility_timeout_ms, g.tags,
            g.args, g.meta, g.retry, g.options, g.extra
        from kept g left join notified on true
        union all
        select r.n, (r.refusal).sqlstate, (r.refusal).message, (r.refusal).detail, (null::ojs.job).*
        from (select s.n, s.refusal from shaped s where s.refusal is not null union all select j.n, j.refusal from judged j where j.refusal is not null
            union all select t.n, t.refusal from twice t) r
    ) o(n)
    order by o.n;
end;
$$;
-- +goose StatementEnd
comment on function ojs._enqueue(json, text, boolean) is
'Enqueues several jobs. p_each: each job succeeds or fails by itself; else the first problem is raised. Rows come in the order given.';

-- +goose StatementBegin
create function ojs.enqueue_many(p_jobs json, p_tenant text default null) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select o.state, o.attempt, o.lease, o.started_at, o.lease_expires_at, o.finished_at, o.retry_at, o.enqueued_at, o.worker_id, o.errors, o.result, o.seq, o.tenant_id, o.id,
        o.queue, o.type, o.priority, o.max_attempts, o.created_at, o.scheduled_at, o.expires_at, o.timeout_ms, o.visibility_timeout_ms, o.tags, o.args, o.meta, o.retry,
        o.options, o.extra
    from ojs._enqueue(p_jobs, p_tenant, false) o;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue_many(json, text) is
'Enqueues 1 to 10000 jobs, all or none, in the caller''s transaction, and returns them in the order given. p_jobs: a JSON array of objects whose
keys are the names of ojs.enqueue''s parameters without p_ (type, args, queue, ...); scheduled_at and expires_at may be + and an ISO 8601 duration from now on (+PT90S). Raises what ojs.enqueue raises; the detail names index and field.';

-- +goose StatementBegin
create function ojs.enqueue_bulk(
    p_type text, p_args json[], p_queue text default 'default', p_priority int default 0, p_scheduled_at timestamptz default null, p_expires_at timestamptz default null,
    p_meta jsonb default '{}', p_retry jsonb default null, p_max_attempts int default null, p_timeout_ms int default null, p_visibility_timeout_ms int default null,
    p_tags text[] default null, p_tenant text default null
) returns setof uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant   text := coalesce(ojs._session_tenant(p_tenant), ojs._unnamed_tenant(p_meta));
    v_attempts int := coalesce(p_max_attempts, ojs._retry_max_attempts(p_retry), 3);
    v_now      timestamptz := ojs.now();
    v_state    ojs.job_state := ojs._first_state(false, p_scheduled_at, v_now);
    v_lo       bigint;
    v_ids      uuid[];
begin
    if p_args is null or cardinality(p_args) not between 1 and 10000 or array_ndims(p_args) <> 1 then
        perform ojs._raise('OJ400', 'args must hold between 1 and 10000 arrays, one for each job', '{"field": "args"}');
    end if;
    -- What the jobs have in common is looked at once.
    perform ojs._check_job(v_tenant, null, p_type, p_queue, p_priority, v_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, '[]', p_meta, p_retry, null, null);
    perform ojs._indexed(ojs._violation_refusal(case when a.args is null then row('OJ400', 'args', 'args is required')::ojs.violation
            else ojs._json_violation(a.args, 'args', 'array', 1048576) end, a.n::int - 1), a.n::int - 1, false)
    from unnest(p_args) with ordinality a(args, n) where ojs._flat_args(a.args) is not true;
    if v_state = 'available' then
        v_lo := nextval('ojs.job_seq');
    end if;
    if v_lo is null or p_expires_at is not null then
        -- Chosen here, because the clock is to know them; else they go to the caller without being collected.
        v_ids := array(select ojs._uuid_v7() from unnest(p_args));
    end if;
    return query
    insert into ojs.job as j (id, state, seq, enqueued_at, created_at, tenant_id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms,
        tags, args, meta, retry)
    select coalesce(a.id, ojs._uuid_v7()), v_state, case when v_lo is not null then nextval('ojs.job_seq') end, v_now, v_now, v_tenant, p_queue, p_type, p_priority, v_attempts,
        p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, a.args, p_meta, p_retry
    from unnest(p_args, v_ids) a(args, id)
    returning j.id;
    insert into ojs.wake (tenant_id, queue, priority, to_state, jobs, lo, hi)
    values (v_tenant, p_queue, p_priority, v_state, cardinality(p_args), v_lo, case when v_lo is not null then currval('ojs.job_seq') end);
    if v_lo is not null then
        perform ojs._notify(array[p_queue]);
    end if;
    if v_ids is not null then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select t.due_at, t.kind, array_fill(v_tenant, array[cardinality(p.ids)]), p.ids
        from (select array_agg(i.id order by i.n) as ids from unnest(v_ids) with ordinality i(id, n) group by (i.n - 1) / 1000) p
        cross join (values (case when v_state = 'scheduled' then p_scheduled_at end, 'due'::ojs.timer_kind), (p_expires_at, 'expiry')) t(due_at, kind)
        where t.due_at is not null;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue_bulk(text, json[], text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], text) is
'Enqueues 1 to 10000 jobs that differ in their args only, all or none, in the caller''s transaction: the fastest way to enqueue many. Returns their ids in
the order of p_args; the other parameters are those of ojs.enqueue. Raises what ojs.enqueue raises; the detail of a problem with args names index and field.';

-- +goose StatementBegin
create function ojs.enqueue_each(p_jobs json) returns setof ojs._outcome
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query select * from ojs._enqueue(p_jobs, null, true);
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue_each(json) is
'Enqueues 1 to 10000 jobs of which each succeeds or fails by itself, and returns one row per job in the order given: n from 0, then either the job, or
sqlstate, message and detail of what ojs.enqueue_many would raise about it. p_jobs as for ojs.enqueue_many, each naming its own tenant. Raises
invalid_request when p_jobs as a whole is malformed. A job with the id of one that another transaction is just adding waits for that transaction.';

grant execute on function ojs._retry_max_attempts(jsonb), ojs._first_state(boolean, timestamptz, timestamptz) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text),
    ojs.enqueue_many(json, text), ojs.enqueue_each(json),
    ojs.enqueue_bulk(text, json[], text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], text) to ojs_service, ojs_operator, ojs_tenant;
reset role;

-- +goose Down
set local role ojs_owner;
drop trigger job_inserted on ojs.job;
drop trigger job_arriving on ojs.job;
drop function ojs.enqueue_each(json);
drop function ojs.enqueue_bulk(text, json[], text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], text);
drop function ojs.enqueue_many(json, text);
drop function ojs._enqueue(json, text, boolean);
drop function ojs._tenant_of_job(jsonb, int);
drop function ojs._shape_refusal(json, int, text, text);
drop function ojs._indexed(ojs.refusal, int, boolean);
drop function ojs._unnamed_tenant(jsonb);
drop function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text);
drop function ojs._job_inserted();
drop function ojs._check_job(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json);
drop function ojs._notify(text[]);
drop function ojs._job_arriving();
drop function ojs._retry_max_attempts(jsonb);
drop function ojs._simple_names(text, text, text, int);
drop function ojs._flat_args(json);
drop function ojs._simple_rest(uuid, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json);
drop function ojs._ordinary(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json);
drop function ojs._v7(uuid);
drop function ojs._first_state(boolean, timestamptz, timestamptz);
drop function ojs._tells_time(text);
drop function ojs._when(text, timestamptz);
drop function ojs._plain_time(json);
drop function ojs._plain_uuid(json);
drop function ojs._violation_refusal(ojs.violation, int);
drop function ojs._job_violation(text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json);
drop function ojs._ttl_valid(json);
drop function ojs._retry_violation(jsonb);
drop function ojs._retry_interval_ms(jsonb, text, bigint);
drop function ojs._interval_ms(jsonb);
drop function ojs._duration(text);
drop function ojs._too_deep(jsonb);
drop function ojs._plain_json(json);
drop function ojs._json_violation(json, text, text, int);
drop function ojs._bad_escape(text);
drop function ojs._repeats_key(json);
drop function if exists ojs._repeats_key_exactly(json);
drop function ojs._fits_jsonb(json);
drop view ojs._outcome;
drop type ojs.violation;
reset role;
