create or replace function ojs._duration(p_text text) returns interval
language plpgsql immutable
as $$
begin
    if p_text ~ '^P([0-9]{1,8}Y)?([0-9]{1,8}M)?([0-9]{1,8}W)?([0-9]{1,8}D)?(T([0-9]{1,8}H)?([0-9]{1,8}M)?([0-9]{1,8}([.][0-9]{1,9})?S)?)?$'
            and p_text !~ '(P|T)$' then
        return p_text::interval;
    end if;
    return null;
end;
$$;
comment on function ojs._duration(text) is
'Returns an ISO 8601 duration (PT1.5S, P1DT2H) as an interval; null if the text is no duration.';

create or replace function ojs._interval_ms(p_interval jsonb) returns bigint
language sql immutable
as $$
    select case jsonb_typeof(p_interval)
        when 'string' then (extract(epoch from ojs._duration(p_interval #>> '{}')) * 1000)::bigint
        when 'number' then case when (p_interval #>> '{}')::numeric between 0 and 1e15 then (p_interval #>> '{}')::numeric::bigint end
        end
$$;
comment on function ojs._interval_ms(jsonb) is
'Returns a duration in milliseconds, of ISO 8601 text or a number of milliseconds; null if it is
neither.';

create or replace function ojs._retry_interval_ms(p_retry jsonb, p_name text, p_default bigint) returns bigint
language sql immutable
as $$
    select coalesce(ojs._interval_ms(p_retry -> (p_name || '_ms')), ojs._interval_ms(p_retry -> p_name), p_default)
$$;
comment on function ojs._retry_interval_ms(jsonb, text, bigint) is
'Returns a duration of a retry policy in milliseconds, in either spelling: name as ISO 8601 text,
name_ms as a number.';

create or replace function ojs._retry_violation(p_retry jsonb) returns ojs.violation
language plpgsql immutable
as $$
declare
    v_violation ojs.violation;
begin
    if jsonb_typeof(p_retry) <> 'object' then
        return row('OJ422', 'retry', 'retry must be a JSON object')::ojs.violation;
    elsif octet_length(p_retry::text) > 16384 then
        return row('OJ413', 'retry', 'retry is larger than 16384 bytes')::ojs.violation;
    elsif ojs._too_deep(p_retry) then
        return row('OJ401', 'retry', 'retry is nested more than 100 levels deep')::ojs.violation;
    end if;
    if p_retry ? 'erased' then
        -- With this mark ojs.erase tells jobs without content (jobs/erase.sql).
        return row('OJ400', 'retry.erased', 'retry.erased is not known')::ojs.violation;
    end if;
    if p_retry ? 'max_attempts' and (ojs._retry_max_attempts(p_retry) <= 1000) is not true then
        return row('OJ422', 'retry.max_attempts', 'retry.max_attempts must be an integer between 0 and 1000')::ojs.violation;
    end if;
    v_violation := coalesce(ojs._interval_violation(p_retry, 'initial_interval'), ojs._interval_violation(p_retry, 'max_interval'));
    if v_violation is null
            and ojs._retry_interval_ms(p_retry, 'max_interval', null) < ojs._retry_interval_ms(p_retry, 'initial_interval', 1000)
            and p_retry ?| array['initial_interval', 'initial_interval_ms'] then
        return row('OJ422', 'retry.max_interval', 'retry.max_interval must not be less than retry.initial_interval')::ojs.violation;
    end if;
    if v_violation is null then
        v_violation := ojs._backoff_violation(p_retry);
    end if;
    if v_violation is null then
        v_violation := coalesce(ojs._exhaustion_violation(p_retry), ojs._retry_misspelt(p_retry));
    end if;
    return v_violation;
end;
$$;
comment on function ojs._retry_violation(jsonb) is
'Returns why a retry policy is refused (ojs-retry section 11), or null.';

create or replace function ojs._check_default_retry(p_retry jsonb) returns void
language plpgsql
as $$
declare
    v_violation ojs.violation := ojs._retry_violation(p_retry);
begin
    if v_violation.sqlstate is not null then
        perform ojs._raise(v_violation.sqlstate, replace(v_violation.message, 'retry', 'default_retry'),
            jsonb_build_object('field', 'default_' || v_violation.field));
    end if;
end;
$$;
comment on function ojs._check_default_retry(jsonb) is
'Raises why a retry policy for jobs without one is refused.';

create or replace function ojs._interval_violation(p_retry jsonb, p_name text) returns ojs.violation
language plpgsql immutable
as $$
declare
    v_ms numeric;
begin
    if p_retry ? p_name and (jsonb_typeof(p_retry -> p_name) <> 'string' or ojs._duration(p_retry ->> p_name) is null) then
        return row('OJ422', 'retry.' || p_name, format('retry.%s must be an ISO 8601 duration such as PT1S', p_name))::ojs.violation;
    end if;
    if p_retry ? (p_name || '_ms') then
        if jsonb_typeof(p_retry -> (p_name || '_ms')) <> 'number' then
            return row('OJ422', 'retry.' || p_name || '_ms', format('retry.%s_ms must be a number of milliseconds', p_name))::ojs.violation;
        end if;
        v_ms := (p_retry ->> (p_name || '_ms'))::numeric;
        if v_ms < 1 or v_ms > 31536000000 or v_ms <> trunc(v_ms) then
            return row('OJ422', 'retry.' || p_name || '_ms',
                format('retry.%s_ms must be an integer between 1 and 31536000000', p_name))::ojs.violation;
        end if;
    end if;
    if ojs._retry_interval_ms(p_retry, p_name, 0) > 31536000000 then
        return row('OJ422', 'retry.' || p_name, format('retry.%s must be at most a year', p_name))::ojs.violation;
    elsif ojs._retry_interval_ms(p_retry, p_name, 1) < 1 then
        return row('OJ422', 'retry.' || p_name, format('retry.%s must be at least a millisecond', p_name))::ojs.violation;
    end if;
    return null;
end;
$$;
comment on function ojs._interval_violation(jsonb, text) is
'Returns why a duration of a retry policy is refused, or null. p_name: initial_interval or
max_interval, in either spelling.';

create or replace function ojs._backoff_violation(p_retry jsonb) returns ojs.violation
language plpgsql immutable
as $$
begin
    if p_retry ? 'backoff_strategy' and coalesce(p_retry ->> 'backoff_strategy', '')
            not in ('exponential', 'linear', 'polynomial', 'constant', 'none', 'custom') then
        return row('OJ422', 'retry.backoff_strategy',
            'retry.backoff_strategy must be "exponential", "linear", "polynomial", "constant", "none" or "custom"')::ojs.violation;
    end if;
    if p_retry ? 'intervals' then
        if (case when jsonb_typeof(p_retry -> 'intervals') <> 'array' then true
                else jsonb_array_length(p_retry -> 'intervals') not between 1 and 1000
                    or exists (select from jsonb_array_elements(p_retry -> 'intervals') i
                        where (ojs._interval_ms(i) between 1 and 31536000000) is not true) end) then
            return row('OJ422', 'retry.intervals', 'retry.intervals must be an array of 1 to 1000 ISO 8601 durations or numbers of '
                || 'milliseconds, each from a millisecond to a year')::ojs.violation;
        end if;
    elsif p_retry ->> 'backoff_strategy' = 'custom' then
        return row('OJ422', 'retry.intervals', 'retry.intervals is required with backoff_strategy "custom"')::ojs.violation;
    end if;
    if not p_retry ? 'backoff_coefficient' then
        return null;
    elsif jsonb_typeof(p_retry -> 'backoff_coefficient') <> 'number' then
        return row('OJ422', 'retry.backoff_coefficient', 'retry.backoff_coefficient must be a number')::ojs.violation;
    elsif (p_retry ->> 'backoff_coefficient')::numeric not between 1 and 100 then
        return row('OJ422', 'retry.backoff_coefficient', 'retry.backoff_coefficient must be between 1.0 and 100')::ojs.violation;
    end if;
    return null;
end;
$$;
comment on function ojs._backoff_violation(jsonb) is
'Returns why the backoff of a retry policy is refused (strategy, intervals, coefficient), or null.';

create or replace function ojs._exhaustion_violation(p_retry jsonb) returns ojs.violation
language plpgsql immutable
as $$
begin
    if p_retry ? 'jitter' and jsonb_typeof(p_retry -> 'jitter') <> 'boolean'
            and coalesce(p_retry ->> 'jitter', '') not in ('none', 'full', 'equal', 'decorrelated') then
        return row('OJ422', 'retry.jitter', 'retry.jitter must be a boolean, "none", "full", "equal" or "decorrelated"')::ojs.violation;
    end if;
    if p_retry ? 'on_exhaustion' and coalesce(p_retry ->> 'on_exhaustion', '') not in ('discard', 'dead_letter') then
        return row('OJ422', 'retry.on_exhaustion', 'retry.on_exhaustion must be "discard" or "dead_letter"')::ojs.violation;
    end if;
    if p_retry ? 'non_retryable_errors' and (jsonb_typeof(p_retry -> 'non_retryable_errors') <> 'array'
            or jsonb_path_exists(p_retry -> 'non_retryable_errors', '$[*] ? (@.type() != "string")')) then
        return row('OJ422', 'retry.non_retryable_errors', 'retry.non_retryable_errors must be an array of strings')::ojs.violation;
    end if;
    return null;
end;
$$;
comment on function ojs._exhaustion_violation(jsonb) is
'Returns why the jitter of a retry policy, or what it says about the end of retrying, is refused, or
null.';

create or replace function ojs._retry_max_attempts(p_retry jsonb) returns int
language sql immutable
as $$
    select case when jsonb_typeof(p_retry -> 'max_attempts') = 'number' and p_retry ->> 'max_attempts' ~ '^[0-9]{1,4}$'
        then (p_retry ->> 'max_attempts')::int end
$$;
comment on function ojs._retry_max_attempts(jsonb) is
'Returns max_attempts of a retry policy; null if it is absent, or malformed, which validation
reports.';

create or replace function ojs._attempts(p_given int, p_retry jsonb) returns int
language sql immutable
as $$ select coalesce(p_given, ojs._retry_max_attempts(p_retry), 3) $$;
comment on function ojs._attempts(int, jsonb) is
'Returns how many attempts a job may have: p_given, else as its retry policy says, else 3. Becomes
part of the query that asks.';
