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
'Milliseconds from the failure of an attempt to the next one, without jitter (ojs-retry section 3): by backoff_strategy initial_interval *
backoff_coefficient ^ (attempt - 1) (exponential, the default), initial_interval * attempt (linear), initial_interval * attempt ^
backoff_coefficient (polynomial), initial_interval (none, constant), or the attempt''s element of intervals, of which the last holds on
(custom); at most max_interval.';

create or replace function ojs._retry_cap_ms(p_retry jsonb) returns bigint
language sql immutable
as $$
    select ojs._retry_interval_ms(p_retry, 'max_interval', case when p_retry ->> 'backoff_strategy' = 'custom' then 31536000000
        else greatest(300000, ojs._retry_interval_ms(p_retry, 'initial_interval', 1000)) end)
$$;
comment on function ojs._retry_cap_ms(jsonb) is
'The longest wait that a retry policy allows, milliseconds: max_interval; by default 5 min, or initial_interval if that is longer, or with
intervals of its own a year.';

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
'Milliseconds from the failure of an attempt to the next one: ojs._backoff_ms with jitter (ojs-retry section 5), and again at most
max_interval. jitter: true, the default, times 0.5 to 1.5; full: 0 to the whole; equal: half to the whole; decorrelated: the first
interval to three times the one before; false, none: as it is.';

create or replace function ojs._retry_at(p_retry jsonb, p_attempt int, p_now timestamptz) returns timestamptz
language sql
as $$ select p_now + ojs._retry_delay_ms(p_retry, p_attempt) * interval '1 millisecond' $$;
comment on function ojs._retry_at(jsonb, int, timestamptz) is 'When an attempt that failed at p_now is followed by the next one.';

create or replace function ojs._failed_state(p_entry jsonb, p_requeue boolean, p_attempt int, p_max_attempts int, p_retry jsonb)
returns ojs.job_state
language plpgsql stable
as $$
begin
    if p_requeue then
        return 'available';
    elsif p_attempt >= p_max_attempts or p_entry -> 'retryable' = 'false' or p_entry ->> 'code' in ('DISCARD', 'DEAD_LETTER', 'FAIL') then
        return 'discarded';
    elsif p_retry ? 'non_retryable_errors' then
        -- Few policies have some, and the query would cost each failed job more than all the rest does.
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
'Where a failed attempt leads. p_entry: its ojs._error_entry; its code DISCARD, FAIL or DEAD_LETTER ends the job whatever the policy says
(ojs-retry section 7), and so does a code or type that non_retryable_errors name, literally or, ending in .*, by what it begins with
(section 6).';
