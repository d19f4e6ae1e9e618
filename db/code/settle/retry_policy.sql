create or replace function ojs._backoff_ms(p_retry jsonb, p_attempt int) returns bigint
language plpgsql immutable
as $$
declare
    v_strategy text := coalesce(p_retry ->> 'backoff_strategy', 'exponential');
    v_initial  bigint := ojs._retry_interval_ms(p_retry, 'initial_interval', 1000);
    v_by       float8 := coalesce((p_retry ->> 'backoff_coefficient')::float8, 2);
    v_n        int := greatest(p_attempt, 1);
begin
    return least(ojs._retry_cap_ms(p_retry), case v_strategy
        when 'none' then v_initial
        when 'constant' then v_initial
        when 'linear' then v_initial::float8 * v_n
        when 'polynomial' then v_initial * least(power(v_n::float8, v_by), 1e15)
        when 'custom' then ojs._interval_ms(p_retry -> 'intervals' -> (least(v_n, jsonb_array_length(p_retry -> 'intervals')) - 1))
        else v_initial * least(power(v_by, least(v_n - 1, 60)), 1e15) end)::bigint;
end;
$$;
comment on function ojs._backoff_ms(jsonb, int) is
'Returns the milliseconds from the failure of an attempt to the next one, without jitter (ojs-retry
section 3).
By backoff_strategy: exponential (default): initial_interval * backoff_coefficient ^ (attempt - 1);
linear: initial_interval * attempt; polynomial: initial_interval * attempt ^ backoff_coefficient;
none, constant: initial_interval; custom: the element of intervals for the attempt, and then the
last one. At most max_interval.';

create or replace function ojs._retry_cap_ms(p_retry jsonb) returns bigint
language sql immutable
as $$
    select ojs._retry_interval_ms(p_retry, 'max_interval', case when p_retry ->> 'backoff_strategy' = 'custom' then 31536000000
        else greatest(300000, ojs._retry_interval_ms(p_retry, 'initial_interval', 1000)) end)
$$;
comment on function ojs._retry_cap_ms(jsonb) is
'Returns the longest wait that a retry policy allows, in milliseconds: max_interval. Its default is
5 min, or initial_interval if that is longer; with backoff_strategy custom a year.';

create or replace function ojs._retry_delay_ms(p_retry jsonb, p_attempt int) returns bigint
language plpgsql
as $$
declare
    v_delay float8 := ojs._backoff_ms(p_retry, p_attempt);
begin
    return least(ojs._retry_cap_ms(p_retry), case coalesce(p_retry ->> 'jitter', 'true')
        when 'false' then v_delay
        when 'none' then v_delay
        when 'full' then random() * v_delay
        when 'equal' then v_delay * (1 + random()) / 2
        when 'decorrelated' then ojs._backoff_ms(p_retry, 1)
            + random() * (3 * ojs._backoff_ms(p_retry, p_attempt - 1) - ojs._backoff_ms(p_retry, 1))
        else v_delay * (0.5 + random()) end)::bigint;
end;
$$;
comment on function ojs._retry_delay_ms(jsonb, int) is
'Returns the milliseconds from the failure of an attempt to the next one: ojs._backoff_ms with
jitter, at most max_interval (ojs-retry section 5).
jitter: true (default): times 0.5 to 1.5; full: 0 to the whole; equal: half to the whole;
decorrelated: the first interval to three times the one before; false, none: no change.';

create or replace function ojs._retry_at(p_retry jsonb, p_attempt int, p_now timestamptz) returns timestamptz
language sql
as $$ select p_now + ojs._retry_delay_ms(p_retry, p_attempt) * interval '1 millisecond' $$;
comment on function ojs._retry_at(jsonb, int, timestamptz) is
'Returns when the next attempt follows one that failed at p_now.';

create or replace function ojs._failed_state(p_entry jsonb, p_requeue boolean, p_attempt int, p_max_attempts int, p_retry jsonb)
returns ojs.job_state
language plpgsql stable
as $$
begin
    if ojs._erased(p_retry) then
        return 'discarded';
    elsif p_requeue then
        return 'available';
    elsif p_attempt >= p_max_attempts or p_entry -> 'retryable' = 'false' or p_entry ->> 'code' in ('DISCARD', 'DEAD_LETTER', 'FAIL') then
        return 'discarded';
    elsif p_retry ? 'non_retryable_errors' then
        -- Few policies have such errors, and the query would cost each failed job more than all the
        -- rest.
        if exists (select from jsonb_array_elements_text(p_retry -> 'non_retryable_errors') e(pattern)
            where e.pattern in (p_entry ->> 'code', p_entry ->> 'type')
               or e.pattern like '%.*' and (starts_with(p_entry ->> 'code', left(e.pattern, -1))
                   or starts_with(p_entry ->> 'type', left(e.pattern, -1)))) then
            return 'discarded';
        end if;
    end if;
    return 'retryable';
end;
$$;
comment on function ojs._failed_state(jsonb, boolean, int, int, jsonb) is
'Returns the state that a job enters when its attempt has failed.
p_entry: the error, by ojs._error_entry. Its code DISCARD, FAIL or DEAD_LETTER ends the job whatever
the policy says (ojs-retry section 7). So does a code or type that non_retryable_errors name,
literally or, ending in .*, by its beginning (section 6).';
