-- +goose Up
-- What a worker, a producer or an operator says about a job: ack, nack, release, cancel, activate; and about many: ack_many, settle. Each locks its
-- job rows, changes them, and appends to the journal; none touches fairness state. An invalid transition is a typed error (ojs-core section 6.4).
set local role ojs_owner;

-- +goose StatementBegin
create function ojs._unknown(p_id uuid) returns ojs.refusal
language sql stable
as $$ select row('OJ404', format('job %s not found', p_id), jsonb_build_object('resource_type', 'job', 'resource_id', p_id))::ojs.refusal $$;
-- +goose StatementEnd
comment on function ojs._unknown(uuid) is 'There is no such job, or it is another tenant''s.';

-- +goose StatementBegin
create function ojs._ambiguous(p_id uuid) returns ojs.refusal
language sql stable
as $$ select row('OJ411', format('job id %s exists in more than one tenant', p_id), jsonb_build_object('field', 'X-OJS-Tenant', 'job_id', p_id))::ojs.refusal $$;
-- +goose StatementEnd
comment on function ojs._ambiguous(uuid) is 'Two tenants have a job with that id.';

-- +goose StatementBegin
create function ojs._job_for(p_id uuid, p_tenant text) returns ojs.job
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_job     ojs.job;
    v_found   ojs.job;
    v_refusal ojs.refusal;
begin
    if p_id is null then
        perform ojs._raise('OJ400', 'id is required', '{"field": "id"}');
    end if;
    for v_found in select j.* from ojs.job j where j.id = p_id and (j.tenant_id = p_tenant) is not false limit 2 loop
        if v_job.id is not null then
            v_refusal := ojs._ambiguous(p_id);
        end if;
        v_job := v_found;
    end loop;
    if v_job.id is null then
        v_refusal := ojs._unknown(p_id);
    end if;
    if v_refusal is not null then
        perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_for(uuid, text) is 'The job with that id of a tenant, or of any tenant for null. Raises not_found, ambiguous_job.';

-- +goose StatementBegin
create function ojs._holds(p_state ojs.job_state, p_job_lease uuid, p_job_worker text, p_lease uuid, p_worker_id text) returns boolean
language sql immutable
as $$ select p_state = 'active' and (p_lease <> p_job_lease) is not true and (p_worker_id <> p_job_worker) is not true $$;
-- +goose StatementEnd
comment on function ojs._holds(ojs.job_state, uuid, text, uuid, text) is
'Whether a caller may end the running attempt of a job: it is active, and the lease and the worker are those of the caller as far as it named them.';

-- +goose StatementBegin
create function ojs._hold_refusal(p_action text, p_id uuid, p_state ojs.job_state, p_job_lease uuid, p_job_worker text, p_lease uuid, p_worker_id text) returns ojs.refusal
language sql stable
as $$
    select case
        when ojs._holds(p_state, p_job_lease, p_job_worker, p_lease, p_worker_id) then null
        when p_state <> 'active' then row('OJ409', format('cannot %s job %s: its state is %s, not active', p_action, p_id, p_state),
            jsonb_build_object('job_id', p_id, 'current_state', p_state, 'expected_state', 'active'))::ojs.refusal
        when p_lease <> p_job_lease then row('OJ409', format('cannot %s job %s: the lease is not that of the running attempt', p_action, p_id),
            jsonb_build_object('job_id', p_id, 'field', 'lease', 'current_state', p_state))::ojs.refusal
        else row('OJ409', format('cannot %s job %s: another worker holds it', p_action, p_id),
            jsonb_build_object('job_id', p_id, 'field', 'worker_id', 'current_state', p_state))::ojs.refusal
        end
$$;
-- +goose StatementEnd
comment on function ojs._hold_refusal(text, uuid, ojs.job_state, uuid, text, uuid, text) is 'Why ojs._holds says no, or null. p_action: what the caller wants to do.';

-- +goose StatementBegin
create function ojs._check_hold(p_action text, p_job ojs.job, p_lease uuid, p_worker_id text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_refusal ojs.refusal := ojs._hold_refusal(p_action, p_job.id, p_job.state, p_job.lease, p_job.worker_id, p_lease, p_worker_id);
begin
    if v_refusal is not null then
        perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_hold(text, ojs.job, uuid, text) is 'Raises conflict when a caller may not end the running attempt of a job.';

-- +goose StatementBegin
create function ojs._held_job(p_id uuid, p_tenant text, p_lease uuid, p_worker_id text, p_action text) returns ojs.job
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_job ojs.job := ojs._job_for(p_id, p_tenant);
begin
    select * into v_job from ojs.job j where j.id = v_job.id and j.tenant_id = v_job.tenant_id for update;
    perform ojs._check_hold(p_action, v_job, p_lease, p_worker_id);
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs._held_job(uuid, text, uuid, text, text) is
'Locks an active job and returns it. p_lease and p_worker_id, when given, must be those of the running attempt. Raises not_found, ambiguous_job, conflict.';

-- +goose StatementBegin
create function ojs._released(p_job ojs.job, p_to ojs.job_state, p_fenced boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced)
    values (p_job.tenant_id, p_job.queue, p_job.priority, p_job.id, p_job.type, p_job.attempt, p_job.state, p_to, p_job.started_at, p_fenced);
end;
$$;
-- +goose StatementEnd
comment on function ojs._released(ojs.job, ojs.job_state, boolean) is 'Appends to the release journal: p_job as it was, and the state it enters.';

-- +goose StatementBegin
create function ojs._woken(p_job ojs.job, p_from ojs.job_state) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
    values (p_job.tenant_id, p_job.queue, p_job.priority, p_from, 'available', 1, p_job.seq, p_job.seq);
    perform ojs._notify(array[p_job.queue]);
end;
$$;
-- +goose StatementEnd
comment on function ojs._woken(ojs.job, ojs.job_state) is 'Appends to the wake journal that one job became available, and notifies. p_from: the state it left; available when the release journal tells that.';

-- +goose StatementBegin
create function ojs._result_refusal(p_result json) returns ojs.refusal
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_violation ojs.violation;
begin
    if p_result is null or ojs._plain_json(p_result) then
        return null;
    end if;
    v_violation := ojs._json_violation(p_result, 'result', null, 1048576);
    if v_violation is null then
        return null;
    end if;
    return row(case v_violation.sqlstate when 'OJ413' then 'OJ412' else v_violation.sqlstate end, v_violation.message, jsonb_build_object('field', v_violation.field))::ojs.refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._result_refusal(json) is 'Why a result is refused, or null.';

-- +goose StatementBegin
create function ojs.ack(p_id uuid, p_lease uuid default null, p_result json default null, p_worker_id text default null, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant  text;
    v_refusal ojs.refusal;
    v_job     ojs.job;
begin
    if p_result is not null and not ojs._plain_json(p_result) then
        v_refusal := ojs._result_refusal(p_result);
        if v_refusal is not null then
            perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
        end if;
    end if;
    if p_tenant is not null or not ojs._trusted() then
        v_tenant := ojs._session_tenant(p_tenant);
    end if;
    loop
        -- Written so that no parameter can be better known than the generic plan, or every call would be planned anew.
        update ojs.job j
        set state = 'completed', finished_at = ojs.now(), lease = null, lease_expires_at = null, result = p_result
        where j.id = p_id and (j.tenant_id = v_tenant) is not false and ojs._holds(j.state, j.lease, j.worker_id, p_lease, p_worker_id)
          and (v_tenant is not null or not exists (select from ojs.job k where k.id = p_id and k.tenant_id <> j.tenant_id))
        returning * into v_job;
        exit when found;
        -- Says why not; if what it sees has changed meanwhile, try again.
        perform ojs._check_hold('acknowledge', ojs._job_for(p_id, v_tenant), p_lease, p_worker_id);
    end loop;
    insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced)
    values (v_job.tenant_id, v_job.queue, v_job.priority, v_job.id, v_job.type, v_job.attempt, 'active', 'completed', v_job.started_at,
        p_lease is not null or p_worker_id is not null);
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.ack(uuid, uuid, json, text, text) is
'Completes an active job and returns it (ojs-core section 7.3). Works in the caller''s own transaction: the rows the job produced and its completion commit
together. p_lease: the token ojs.fetch returned, or p_worker_id: either proves that the caller still holds the job; with neither the running attempt
is completed, counted as unfenced. p_result: any JSON up to 1048576 bytes, kept byte for byte. Raises not_found, conflict (not active, or another
holds it), ambiguous_job, invalid_payload, RESULT_TOO_LARGE. Locks the job row.';

-- +goose StatementBegin
create function ojs._backoff_ms(p_retry jsonb, p_attempt int) returns bigint
language plpgsql immutable set search_path = pg_catalog, pg_temp
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
-- +goose StatementEnd
comment on function ojs._backoff_ms(jsonb, int) is
'Milliseconds from the failure of an attempt to the next one, without jitter (ojs-retry section 3): by backoff_strategy initial_interval * backoff_coefficient ^ (attempt - 1) (exponential, the
default), initial_interval * attempt (linear), initial_interval * attempt ^ backoff_coefficient (polynomial), initial_interval (none, constant), or the attempt''s element of intervals, of which the last
holds on (custom); at most max_interval.';

-- +goose StatementBegin
create function ojs._retry_cap_ms(p_retry jsonb) returns bigint
language sql immutable
as $$
    select ojs._retry_interval_ms(p_retry, 'max_interval', case when p_retry ->> 'backoff_strategy' = 'custom' then 31536000000
        else greatest(300000, ojs._retry_interval_ms(p_retry, 'initial_interval', 1000)) end)
$$;
-- +goose StatementEnd
comment on function ojs._retry_cap_ms(jsonb) is 'The longest wait that a retry policy allows, milliseconds: max_interval; by default 5 min, or initial_interval if that is longer, or with intervals of its own a year.';

-- +goose StatementBegin
create function ojs._retry_delay_ms(p_retry jsonb, p_attempt int) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_delay float8 := ojs._backoff_ms(p_retry, p_attempt);
begin
    return least(ojs._retry_cap_ms(p_retry), case coalesce(p_retry ->> 'jitter', 'true')
        when 'false' then v_delay
        when 'none' then v_delay
        when 'full' then random() * v_delay
        when 'equal' then v_delay * (1 + random()) / 2
        when 'decorrelated' then (select b.first + random() * (3 * b.before - b.first) from (select ojs._backoff_ms(p_retry, 1) as first, ojs._backoff_ms(p_retry, p_attempt - 1) as before) b)
        else v_delay * (0.5 + random()) end)::bigint;
end;
$$;
-- +goose StatementEnd
comment on function ojs._retry_delay_ms(jsonb, int) is
'Milliseconds from the failure of an attempt to the next one: ojs._backoff_ms with jitter (ojs-retry section 5), and again at most max_interval. jitter: true, the default, times 0.5 to 1.5; full: 0 to
the whole; equal: half to the whole; decorrelated: the first interval to three times the one before; false, none: as it is.';

-- +goose StatementBegin
create function ojs._error_refusal(p_error jsonb) returns ojs.refusal
language sql stable
as $$
    select case
        when p_error is null or jsonb_typeof(p_error) <> 'object' then row('OJ400', 'error must be a JSON object', '{"field": "error"}')::ojs.refusal
        when coalesce(jsonb_typeof(p_error -> 'message'), 'null') <> 'string' then row('OJ400', 'error.message must be a string', '{"field": "error.message"}')::ojs.refusal
        when jsonb_typeof(p_error -> 'code') not in ('string', 'null') then row('OJ400', 'error.code must be a string', '{"field": "error.code"}')::ojs.refusal
        when jsonb_typeof(p_error -> 'type') not in ('string', 'null') then row('OJ400', 'error.type must be a string', '{"field": "error.type"}')::ojs.refusal
        when jsonb_typeof(p_error -> 'retryable') not in ('boolean', 'null') then
            row('OJ400', 'error.retryable must be a boolean', '{"field": "error.retryable"}')::ojs.refusal
        when octet_length(p_error::text) > 65536 then row('OJ413', 'error is larger than 65536 bytes', '{"field": "error"}')::ojs.refusal
        when ojs._too_deep(p_error) then row('OJ401', 'error is nested more than 100 levels deep', '{"field": "error"}')::ojs.refusal
        end
$$;
-- +goose StatementEnd
comment on function ojs._error_refusal(jsonb) is 'Why the error of a nack is refused, or null.';

-- +goose StatementBegin
create function ojs._error_entry(p_error jsonb, p_attempt int, p_now timestamptz) returns jsonb
language sql stable
as $$
    select p_error || jsonb_build_object(
        'attempt', p_attempt,
        'code', coalesce(p_error ->> 'code', p_error ->> 'type', 'handler_error'),
        'type', coalesce(p_error ->> 'type', p_error #>> '{details,error_class}', p_error ->> 'code', 'handler_error'),
        'occurred_at', to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
$$;
-- +goose StatementEnd
comment on function ojs._error_entry(jsonb, int, timestamptz) is 'The error of a nack as it is kept in the errors of its job.';

-- +goose StatementBegin
create function ojs._failed_state(p_entry jsonb, p_requeue boolean, p_attempt int, p_max_attempts int, p_retry jsonb) returns ojs.job_state
language sql stable
as $$
    select case
        when p_requeue then 'available'
        when p_attempt >= p_max_attempts or p_entry -> 'retryable' = 'false' or p_entry ->> 'code' in ('DISCARD', 'DEAD_LETTER', 'FAIL')
            or p_retry ? 'non_retryable_errors' and exists (select from jsonb_array_elements_text(p_retry -> 'non_retryable_errors') e(pattern)
                where e.pattern in (p_entry ->> 'code', p_entry ->> 'type')
                   or e.pattern like '%.*' and (starts_with(p_entry ->> 'code', left(e.pattern, -1)) or starts_with(p_entry ->> 'type', left(e.pattern, -1)))) then 'discarded'
        else 'retryable' end::ojs.job_state
$$;
-- +goose StatementEnd
comment on function ojs._failed_state(jsonb, boolean, int, int, jsonb) is
'Where a failed attempt leads. p_entry: its ojs._error_entry; its code DISCARD, FAIL or DEAD_LETTER ends the job whatever the policy says (ojs-retry section 7), and so does a code or type that
non_retryable_errors name, literally or, ending in .*, by what it begins with (section 6).';

-- +goose StatementBegin
create function ojs._errors_with(p_errors jsonb, p_entry jsonb) returns jsonb
language sql immutable
as $$ select case when jsonb_array_length(p_errors) >= 100 then p_errors - 0 else coalesce(p_errors, '[]') end || p_entry $$;
-- +goose StatementEnd
comment on function ojs._errors_with(jsonb, jsonb) is 'The errors of a job and one more; the latest 100.';

-- +goose StatementBegin
create function ojs._to_dead_letters(p_retry jsonb, p_entry jsonb) returns boolean
language sql immutable
as $$ select p_entry ->> 'code' = 'DEAD_LETTER' or p_retry ->> 'on_exhaustion' = 'dead_letter' and p_entry ->> 'code' not in ('DISCARD', 'FAIL') $$;
-- +goose StatementEnd
comment on function ojs._to_dead_letters(jsonb, jsonb) is
'Whether a job that is discarded for an error enters the dead letter queue: its policy says so, which by default it does not, or the handler did (ojs-retry section 7). p_entry: the error as ojs._error_entry made it.';

-- +goose StatementBegin
create function ojs._ruled(p_rule ojs.replay_rule, p_dead ojs.dead_letter) returns boolean
language sql immutable
as $$
    select (p_rule.tenant_id is null or p_rule.tenant_id = p_dead.tenant_id) and (p_rule.queue is null or p_rule.queue = p_dead.queue) and (p_rule.type is null or p_rule.type = p_dead.type)
        and (p_rule.error_type is null or p_rule.error_type in (p_dead.error_type, p_dead.error_code))
$$;
-- +goose StatementEnd
comment on function ojs._ruled(ojs.replay_rule, ojs.dead_letter) is 'Whether a dead letter is one that a rule is for. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._bury(p_tenants text[], p_ids uuid[], p_queues text[], p_types text[], p_entries jsonb[], p_at timestamptz) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    -- One that was put aside, and whose id its producer has used again since, gives way.
    delete from ojs.dead_job k using unnest(p_ids, p_tenants) b(id, tenant_id) where k.id = b.id and k.tenant_id = b.tenant_id;
    insert into ojs.dead_letter as d (tenant_id, id, queue, type, error_type, error_code, at)
    select b.tenant_id, b.id, b.queue, b.type, left(b.entry ->> 'type', 1000), left(b.entry ->> 'code', 1000), p_at
    from unnest(p_tenants, p_ids, p_queues, p_types, p_entries) b(tenant_id, id, queue, type, entry)
    on conflict (id, tenant_id) do update set queue = excluded.queue, type = excluded.type, error_type = excluded.error_type, error_code = excluded.error_code, at = excluded.at, aside = false;
    if exists (select from ojs.replay_rule r where r.enabled) then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select p_at + r.delay, 'replay', array_agg(d.tenant_id), array_agg(d.id)
        from unnest(p_ids, p_tenants) b(id, tenant_id)
        join ojs.dead_letter d on d.id = b.id and d.tenant_id = b.tenant_id
        join ojs.replay_rule r on r.enabled and ojs._ruled(r, d)
        group by r.name, r.delay;
    end if;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._bury(text[], uuid[], text[], text[], jsonb[], timestamptz) is
'Puts jobs that the same transaction discards at p_at into the dead letter queue; which ones ojs._to_dead_letters says. The arrays are in step; p_entries: the last error of each. True.';

-- +goose StatementBegin
create function ojs.nack(
    p_id uuid, p_error jsonb, p_lease uuid default null, p_worker_id text default null, p_requeue boolean default false, p_tenant text default null
) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_refusal ojs.refusal := ojs._error_refusal(p_error);
    v_old     ojs.job;
    v_job     ojs.job;
    v_entry   jsonb;
    v_now     timestamptz := ojs.now();
    v_to      ojs.job_state;
begin
    if v_refusal is not null then
        perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
    end if;
    v_old := ojs._held_job(p_id, ojs._session_tenant(p_tenant), p_lease, p_worker_id, 'fail');
    v_entry := ojs._error_entry(p_error, v_old.attempt, v_now);
    v_to := ojs._failed_state(v_entry, p_requeue, v_old.attempt, v_old.max_attempts, v_old.retry);
    update ojs.job j
    set state = v_to, lease = null, lease_expires_at = null, errors = ojs._errors_with(j.errors, v_entry),
        finished_at = case when v_to = 'discarded' then v_now end,
        retry_at = case when v_to = 'retryable' then v_now + ojs._retry_delay_ms(j.retry, j.attempt) * interval '1 millisecond' end,
        enqueued_at = case when v_to = 'available' then v_now else j.enqueued_at end
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._released(v_old, v_to, p_lease is not null or p_worker_id is not null);
    if v_to = 'available' then
        perform ojs._woken(v_job, 'available');
    elsif v_to = 'retryable' then
        insert into ojs.timer (due_at, kind, tenant_ids, ids) values (v_job.retry_at, 'due', array[v_job.tenant_id], array[v_job.id]);
    elsif ojs._to_dead_letters(v_job.retry, v_entry) then
        perform ojs._bury(array[v_job.tenant_id], array[v_job.id], array[v_job.queue], array[v_job.type], array[v_entry], v_now);
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.nack(uuid, jsonb, uuid, text, boolean, text) is
'Reports that an active job failed and returns it (ojs-core section 7.4): retryable, to come back at retry_at by its retry policy; discarded, when attempts are
exhausted, p_error ->> ''retryable'' is false or the policy lists its code or type as non-retryable, or the code is DISCARD, FAIL or DEAD_LETTER, and then kept in the dead letter queue
if the policy says on_exhaustion dead_letter or the code is DEAD_LETTER; with p_requeue available again at once. p_error: an
object {message, code, type, retryable, details} up to 65536 bytes, kept in errors; of all but the message, null means absent. p_lease, p_worker_id as for ojs.ack. Raises invalid_request,
not_found, conflict, ambiguous_job, payload_too_large. Locks the job row.';

-- +goose StatementBegin
create function ojs._readable(p_json json) returns boolean
language sql stable
as $$ select strpos(p_json::text, '\u') = 0 or ojs._bad_escape(p_json::text) is null $$;
-- +goose StatementEnd
comment on function ojs._readable(json) is 'Whether PostgreSQL can take a JSON value apart: it stumbles over escapes of characters that text cannot hold.';

-- +goose StatementBegin
create function ojs._uuid(p_text text) returns uuid
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return p_text::uuid;
exception when invalid_text_representation then
    return null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._uuid(text) is 'A text as a UUID; null when it is none.';

-- +goose StatementBegin
create function ojs._settlement_refusal(p_given json, p_n int, p_own text) returns ojs.refusal
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_bad     record;
    v_refusal ojs.refusal;
begin
    if json_typeof(p_given) <> 'object' then
        perform ojs._raise('OJ400', format('settlements[%s] must be a JSON object', p_n), jsonb_build_object('field', '', 'index', p_n));
    elsif not ojs._readable(p_given) then
        return row('OJ401', 'the settlement holds ' || ojs._bad_escape(p_given::text), '{"field": "settlement"}')::ojs.refusal;
    end if;
    select m.key, case
        when m.kind is null then format('has an unknown field %I', m.key)
        when m.again then format('has the field %I twice', m.key)
        else format('%I must be a JSON %s', m.key, m.kind) end as fault into v_bad
    from (
        select x.key, json_typeof(x.value) as given, lag(x.key) over (order by x.key) = x.key as again,
            '{"id": "string", "lease": "string", "worker_id": "string", "tenant": "string", "result": "any", "error": "any", "requeue": "boolean"}'::jsonb ->> x.key as kind
        from json_each(p_given) x
    ) m
    where m.kind is null or m.again or m.given <> 'null' and m.kind not in ('any', m.given) limit 1;
    if found then
        perform ojs._raise('OJ400', format('settlements[%s] %s', p_n, v_bad.fault), jsonb_build_object('field', v_bad.key, 'index', p_n));
    end if;

    select '22P02', format('invalid input syntax for type uuid: "%s"', left(f.value, 100)), jsonb_build_object('field', f.field) into v_refusal
    from (values (1, 'id', p_given ->> 'id'), (2, 'lease', p_given ->> 'lease')) f(ord, field, value)
    where f.value is not null and ojs._uuid(f.value) is null order by f.ord limit 1;
    if found then
        return v_refusal;
    end if;
    if p_given -> 'error' is null then
        v_refusal := ojs._result_refusal(p_given -> 'result');
    else
        begin
            v_refusal := ojs._error_refusal((p_given -> 'error')::jsonb);
        exception when data_exception or statement_too_complex then
            v_refusal := row(sqlstate, sqlerrm, '{"field": "error"}')::ojs.refusal;
        end;
    end if;
    if v_refusal is null then
        v_refusal := ojs._tenant_refusal(p_own, p_given ->> 'tenant');
    end if;
    if v_refusal is null and p_given ->> 'id' is null then
        v_refusal := row('OJ400', 'id is required', '{"field": "id"}');
    end if;
    return v_refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._settlement_refusal(json, int, text) is
'Why element p_n of ojs.settle is refused before its job is looked for, or null. Raises what spoils the whole call. p_own: the tenant of the role that logged in.';

-- +goose StatementBegin
create function ojs.settle(p_settlements json, p_jobs boolean default true) returns setof ojs._outcome
language plpgsql security definer set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_now timestamptz := ojs.now();
    v_own text := ojs._session_tenant(null);
begin
    if p_settlements is null or json_typeof(p_settlements) <> 'array' then
        perform ojs._raise('OJ400', 'settlements must be a JSON array', '{"field": "settlements"}');
    elsif json_array_length(p_settlements) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'settlements must hold between 1 and 10000 settlements', '{"field": "settlements"}');
    end if;
    return query
    with parsed as materialized (
        select (e.ord - 1)::int as n, e.given, x.id, x.lease, x.worker_id #>> '{}' as worker_id, x.tenant #>> '{}' as tenant, x.requeue::text = 'true' as requeue,
            -- What is null as JSON is null here, too; the count tells.
            case when k.plain then x.result else r.given -> 'result' end as result, case when k.plain then x.error else r.given -> 'error' end as error,
            k.plain and ojs._plain_uuid(x.id) and (x.lease is null or ojs._plain_uuid(x.lease)) and (x.worker_id is null or json_typeof(x.worker_id) = 'string')
                and (x.tenant is null or json_typeof(x.tenant) = 'string') and (x.requeue is null or json_typeof(x.requeue) = 'boolean')
                and (x.result is null or ojs._plain_json(x.result)) and case when x.error is null then true
                    when ojs._plain_json(x.error) and ojs._fits_jsonb(x.error) then ojs._error_refusal(x.error::jsonb) is null end as plain
        from json_array_elements(p_settlements) with ordinality e(given, ord)
        cross join lateral (select case when json_typeof(e.given) = 'object' and ojs._readable(e.given) then e.given else '{}' end as given) r
        cross join lateral json_to_record(r.given) as x(id json, lease json, worker_id json, tenant json, result json, error json, requeue json)
        -- Nothing but the keys asked for, each once and none null: as many bytes as they take when written without blanks, or as many keys.
        cross join lateral (select case when octet_length(r.given::text) = 1 + coalesce(octet_length(x.id::text) + 6, 0) + coalesce(octet_length(x.lease::text) + 9, 0)
            + coalesce(octet_length(x.worker_id::text) + 13, 0) + coalesce(octet_length(x.tenant::text) + 10, 0) + coalesce(octet_length(x.result::text) + 10, 0)
            + coalesce(octet_length(x.error::text) + 9, 0) + coalesce(octet_length(x.requeue::text) + 11, 0) then true
            else (select count(*) from json_object_keys(r.given)) = num_nonnulls(x.id, x.lease, x.worker_id, x.tenant, x.result, x.error, x.requeue) end as plain offset 0) k
    ), checked as materialized (
        select p.*, case when p.plain and (p.tenant is null or p.tenant = v_own or v_own is null and ojs._tenant_valid(p.tenant)) then null
            else ojs._settlement_refusal(p.given, p.n, v_own) end as refusal
        from parsed p
    ), given as materialized (
        -- Locks are taken in the order of the ids, so that two calls cannot lock each other out.
        select c.n, c.worker_id, c.result, c.error, coalesce(c.requeue, false) as requeue, c.refusal, coalesce(v_own, c.tenant) as tenant,
            case when c.plain then substr(c.id::text, 2, 36)::uuid when c.refusal is null then (c.id #>> '{}')::uuid end as id,
            case when c.plain then substr(c.lease::text, 2, 36)::uuid when c.refusal is null then (c.lease #>> '{}')::uuid end as lease
        from checked c
        order by id, tenant
    ), held as materialized (
        select g.n, g.lease, g.worker_id, g.result, g.error, g.requeue, j.*,
            (select count(*) from (select from ojs.job k where k.id = g.id and (g.tenant is null or k.tenant_id = g.tenant) limit 2) k) as twins
        from given g
        cross join lateral (
            select j.id, j.tenant_id, j.state, j.lease as job_lease, j.worker_id as job_worker, j.attempt, j.max_attempts, j.retry
            from ojs.job j where j.id = g.id and (g.tenant is null or j.tenant_id = g.tenant)
            for update skip locked
        ) j
        where g.refusal is null
    ), judged as materialized (
        select h.*, min(h.n) filter (where h.twins = 1 and ojs._holds(h.state, h.job_lease, h.job_worker, h.lease, h.worker_id)) over (partition by h.id, h.tenant_id) as winner
        from held h
    ), winning as materialized (
        select w.*, case when w.error is null then 'completed' else ojs._failed_state(w.entry, w.requeue, w.attempt, w.max_attempts, w.retry) end as to_state
        from (select d.*, case when d.error is not null then ojs._error_entry(d.error::jsonb, d.attempt, v_now) end as entry from judged d where d.n = d.winner) w
    ), settled as (
        update ojs.job j
        set state = w.to_state, lease = null, lease_expires_at = null,
            finished_at = case when w.to_state in ('completed', 'discarded') then v_now end,
            result = case when w.error is null then w.result else j.result end,
            errors = case when w.error is null then j.errors else ojs._errors_with(j.errors, w.entry) end,
            retry_at = case when w.error is null then j.retry_at when w.to_state = 'retryable' then v_now + ojs._retry_delay_ms(j.retry, j.attempt) * interval '1 millisecond' end,
            enqueued_at = case when w.to_state = 'available' then v_now else j.enqueued_at end
        from winning w where j.id = w.id and j.tenant_id = w.tenant_id
        returning w.n, w.lease is not null or w.worker_id is not null as fenced, j.*
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced)
        select s.tenant_id, s.queue, s.priority, s.id, s.type, s.attempt, 'active', s.state, s.started_at, s.fenced from settled s order by s.n
    ), notified as materialized (
        select ojs._notify(array_agg(distinct s.queue)) as done from settled s where s.state = 'available' having count(*) > 0
    ), woken as (
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select s.tenant_id, s.queue, s.priority, 'available', 'available', 1, s.seq, s.seq from settled s, notified d where s.state = 'available' and d.done is not null order by s.n
    ), reminded as (
        -- Jobs that come back within the same twentieth of a second share a reminder.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select max(s.retry_at), 'due', array_agg(s.tenant_id), array_agg(s.id)
        from settled s where s.state = 'retryable' group by date_bin('50 milliseconds', s.retry_at, 'epoch')
    ), buried as materialized (
        select ojs._bury(array_agg(s.tenant_id), array_agg(s.id), array_agg(s.queue), array_agg(s.type), array_agg(s.errors -> -1), v_now)
        from settled s where s.state = 'discarded' and ojs._to_dead_letters(s.retry, s.errors -> -1) having count(*) > 0
    ), refused as (
        select d.n, case when d.twins > 1 then ojs._ambiguous(d.id)
            when d.n > d.winner then ojs._hold_refusal(d.action, d.id, (select w.to_state from winning w where w.n = d.winner), null, d.job_worker, d.lease, d.worker_id)
            else ojs._hold_refusal(d.action, d.id, d.state, d.job_lease, d.job_worker, d.lease, d.worker_id) end as refusal
        from (select d.*, case when d.error is null then 'acknowledge' else 'fail' end as action, row_number() over (partition by d.n) as twin from judged d) d
        where d.twin = 1 and d.n is distinct from d.winner
        union all
        select g.n, coalesce(g.refusal, case
            when exists (select from ojs.job j where j.id = g.id and (g.tenant is null or j.tenant_id = g.tenant)) then
                row('55P03', format('job %s is locked by another transaction', g.id), jsonb_build_object('job_id', g.id))::ojs.refusal
            else ojs._unknown(g.id) end)
        from given g where g.n not in (select h.n from held h)
    )
    select o.*
    from (
        select s.n, null::text, null::text, null::jsonb, s.state, s.attempt, s.lease, s.started_at, s.lease_expires_at, s.finished_at, s.retry_at, s.enqueued_at, s.worker_id,
            s.errors, case when p_jobs then s.result end, s.seq, s.tenant_id, s.id, s.queue, s.type, s.priority, s.max_attempts, s.created_at, s.scheduled_at, s.expires_at,
            s.timeout_ms, s.visibility_timeout_ms, s.tags, case when p_jobs then s.args end, case when p_jobs then s.meta end, s.retry, case when p_jobs then s.options end,
            case when p_jobs then s.extra end
        from settled s left join buried on true
        union all
        select r.n, (r.refusal).sqlstate, (r.refusal).message, (r.refusal).detail, (null::ojs.job).* from refused r
    ) o
    order by o.n;
end;
$$;
-- +goose StatementEnd
comment on function ojs.settle(json, boolean) is
'Acknowledges and fails 1 to 10000 jobs, each for itself, and returns one row per element in the order given: n from 0, then either the job as it is
now, or sqlstate, message and detail of what ojs.ack or ojs.nack would raise. p_settlements: a JSON array of {id, lease, worker_id, tenant, result, error,
requeue}; with error it is a nack, else an ack. Never waits: a job that another transaction has locked gets 55P03, and ojs.ack or ojs.nack would wait
for it. Without p_jobs, args, meta, options, extra and result stay null. Raises invalid_request when p_settlements as a whole is malformed.';

-- +goose StatementBegin
create function ojs._timeout_ms(p_timeout_ms int) returns int
language sql stable
as $$ select coalesce(nullif(p_timeout_ms, 0), (select nullif(s.timeout_ms, 0) from ojs.settings s)) $$;
-- +goose StatementEnd
comment on function ojs._timeout_ms(int) is 'How long an attempt may run, milliseconds, or null for ever. p_timeout_ms: the job''s own.';

-- +goose StatementBegin
create function ojs._extend(p_worker_id text, p_ids uuid[], p_visibility_timeout_ms int, p_tenant text) returns setof ojs.job
language sql set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
    with held as materialized (
        select j.id, j.tenant_id from ojs.job j
        where j.id = any (p_ids) and (p_tenant is null or j.tenant_id = p_tenant) and j.state = 'active'
          and (j.worker_id is null or j.worker_id = p_worker_id)
        for update of j skip locked
    )
    update ojs.job j
    set lease_expires_at = greatest(j.lease_expires_at,
        least(ojs.now() + coalesce(p_visibility_timeout_ms, j.visibility_timeout_ms, 30000) * interval '1 millisecond', j.started_at + ojs._timeout_ms(j.timeout_ms) * interval '1 millisecond'))
    from held h where j.id = h.id and j.tenant_id = h.tenant_id
    returning j.*
$$;
-- +goose StatementEnd
comment on function ojs._extend(text, uuid[], int, text) is
'Extends the leases of those of the jobs that a worker holds, never beyond the time that the attempt may run, and returns them. Passes over what is locked.';

-- +goose StatementBegin
create function ojs.release(p_id uuid, p_lease uuid) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.job;
    v_job ojs.job;
begin
    if p_lease is null then
        perform ojs._raise('OJ400', 'lease is required', '{"field": "lease"}');
    end if;
    -- An id that two tenants use is told apart by the lease.
    v_old := ojs._held_job(p_id, coalesce(ojs._session_tenant(null), (select j.tenant_id from ojs.job j where j.id = p_id and j.lease = p_lease)), p_lease, null, 'release');
    update ojs.job j
    set state = 'available', attempt = j.attempt - 1, lease = null, lease_expires_at = null, started_at = null, worker_id = null
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._released(v_old, 'available', true);
    perform ojs._woken(v_job, 'available');
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.release(uuid, uuid) is
'Gives back a job that never reached its worker, and returns it: available at once, first among its tenant''s, the attempt not counted. p_lease is required.
Raises not_found, conflict.';

-- +goose StatementBegin
create function ojs.cancel(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.job := ojs._job_for(p_id, ojs._session_tenant(p_tenant));
    v_job ojs.job;
begin
    select * into v_old from ojs.job j where j.id = v_old.id and j.tenant_id = v_old.tenant_id for update;
    if v_old.state in ('completed', 'cancelled', 'discarded') then
        perform ojs._raise('OJ409', format('cannot cancel job %s: it is %s already', p_id, v_old.state),
            jsonb_build_object('job_id', p_id, 'current_state', v_old.state));
    end if;
    update ojs.job j
    set state = 'cancelled', finished_at = ojs.now(), lease = null, lease_expires_at = null, retry_at = null
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._released(v_old, 'cancelled', true);
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.cancel(uuid, text) is
'Cancels a job that has not ended, whether waiting or running, and returns it (ojs-core section 7.6). A worker that runs it learns from its next heartbeat or
ack. Raises not_found, conflict (ended already), ambiguous_job. Locks the job row.';

-- +goose StatementBegin
create function ojs.activate(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.job := ojs._job_for(p_id, ojs._session_tenant(p_tenant));
    v_job ojs.job;
begin
    select * into v_old from ojs.job j where j.id = v_old.id and j.tenant_id = v_old.tenant_id for update;
    if v_old.state <> 'pending' then
        perform ojs._raise('OJ409', format('cannot activate job %s: its state is %s, not pending', p_id, v_old.state),
            jsonb_build_object('job_id', p_id, 'current_state', v_old.state, 'expected_state', 'pending'));
    end if;
    update ojs.job j
    set state = 'available', seq = nextval('ojs.job_seq'), enqueued_at = ojs.now()
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._woken(v_job, 'pending');
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.activate(uuid, text) is
'Makes a pending job available and returns it (ojs-http-binding section 9.5). Raises not_found, conflict (not pending), ambiguous_job. Locks the job row.';

-- +goose StatementBegin
create function ojs._result_until(p_finished_at timestamptz, p_options json, p_extra json) returns timestamptz
language sql immutable
as $$
    select case t.ttl when -1 then 'infinity' else p_finished_at + t.ttl * interval '1 second' end
    from (select coalesce((p_options ->> 'result_ttl')::int, (p_extra ->> 'result_ttl')::int, 604800) as ttl) t
$$;
-- +goose StatementEnd
comment on function ojs._result_until(timestamptz, json, json) is
'Until when the result of a job that ended is kept (ojs-results section 7): result_ttl seconds from then, which is 604800 unless the option or attribute of that name says otherwise; -1: for ever.';

-- +goose StatementBegin
create function ojs.job_info(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job ojs.job := ojs._job_for(p_id, ojs._session_tenant(p_tenant));
begin
    if v_job.result is not null and ojs._result_until(v_job.finished_at, v_job.options, v_job.extra) <= ojs.now() then
        v_job.result := null;
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.job_info(uuid, text) is 'The job with that id (ojs-core section 7.7), without its result once its result_ttl has passed. Raises not_found, also for a job of another tenant; ambiguous_job.';
-- +goose StatementBegin
create function ojs.ack_many(
    p_ids uuid[], p_leases uuid[] default '{}', p_results json[] default '{}', p_worker_ids text[] default '{}', p_tenants text[] default '{}', p_jobs boolean default false
) returns table (n int, id uuid, tenant_id text, attempt int, finished_at timestamptz, job ojs.job)
language plpgsql security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := ojs.now();
    v_own text;
begin
    if not ojs._trusted() then
        v_own := ojs._session_tenant(null);
    end if;
    if p_ids is null or cardinality(p_ids) > 10000 then
        perform ojs._raise('OJ400', 'ids must be given, and name at most 10000 jobs', '{"field": "ids"}');
    end if;
    return query
    with held as materialized (
        select g.n::int as n, g.lease, g.worker_id, g.result, j.id, j.tenant_id
        from (select g.* from unnest(p_ids, p_leases, p_results, p_worker_ids, p_tenants) with ordinality g(id, lease, result, worker_id, tenant, n) order by g.id) g
        cross join lateral (
            select j.id, j.tenant_id from ojs.job j
            where j.id = g.id and (j.tenant_id = coalesce(v_own, g.tenant)) is not false and ojs._holds(j.state, j.lease, j.worker_id, g.lease, g.worker_id)
            for update skip locked
        ) j
        where (coalesce(v_own, g.tenant) is not null or not exists (select from ojs.job k where k.id = j.id and k.tenant_id <> j.tenant_id))
          and (v_own is null or g.tenant is null or g.tenant = v_own) and (g.result is null or ojs._plain_json(g.result))
    ), acked as (
        update ojs.job j
        set state = 'completed', finished_at = v_now, lease = null, lease_expires_at = null, result = h.result
        from held h where j.id = h.id and j.tenant_id = h.tenant_id
        returning h.n, h.lease is not null or h.worker_id is not null as fenced, j.id, j.tenant_id, j.queue, j.priority, j.type, j.attempt, j.started_at, case when p_jobs then j end as job
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced, at)
        select a.tenant_id, a.queue, a.priority, a.id, a.type, a.attempt, 'active', 'completed', a.started_at, a.fenced, v_now from acked a
    )
    select a.n, a.id, a.tenant_id, a.attempt, v_now, a.job from acked a;
end;
$$;
-- +goose StatementEnd
comment on function ojs.ack_many(uuid[], uuid[], json[], text[], text[], boolean) is
'Completes many active jobs as ojs.ack does, in the caller''s own transaction, and returns those it completed with their place (from 1) in p_ids, and with p_jobs each job
as it is then. The other arrays are in step with p_ids or empty. A job that is not returned was not completed: it is not active, another holds it, it is locked at this moment, its id is unknown or
ambiguous, or its result wants a closer look; ojs.ack and ojs.settle say which. At most 10000. Waits for nothing.';
grant execute on function ojs._result_until(timestamptz, json, json) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.ack_many(uuid[], uuid[], json[], text[], text[], boolean) to ojs_service, ojs_operator, ojs_tenant;
grant execute on function ojs.ack(uuid, uuid, json, text, text), ojs.nack(uuid, jsonb, uuid, text, boolean, text), ojs.settle(json, boolean),
    ojs.release(uuid, uuid), ojs.cancel(uuid, text), ojs.activate(uuid, text), ojs.job_info(uuid, text) to ojs_service, ojs_operator, ojs_tenant;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.ack_many(uuid[], uuid[], json[], text[], text[], boolean);
drop function ojs.job_info(uuid, text);
drop function ojs._result_until(timestamptz, json, json);
drop function ojs.activate(uuid, text);
drop function ojs.cancel(uuid, text);
drop function ojs.release(uuid, uuid);
drop function ojs._extend(text, uuid[], int, text);
drop function ojs._timeout_ms(int);
drop function ojs.settle(json, boolean);
drop function ojs._settlement_refusal(json, int, text);
drop function ojs._uuid(text);
drop function ojs._readable(json);
drop function ojs.nack(uuid, jsonb, uuid, text, boolean, text);
drop function ojs._bury(text[], uuid[], text[], text[], jsonb[], timestamptz);
drop function ojs._ruled(ojs.replay_rule, ojs.dead_letter);
drop function ojs._to_dead_letters(jsonb, jsonb);
drop function ojs._errors_with(jsonb, jsonb);
drop function ojs._failed_state(jsonb, boolean, int, int, jsonb);
drop function ojs._error_entry(jsonb, int, timestamptz);
drop function ojs._error_refusal(jsonb);
drop function ojs._retry_delay_ms(jsonb, int);
drop function ojs._retry_cap_ms(jsonb);
drop function ojs._backoff_ms(jsonb, int);
drop function ojs.ack(uuid, uuid, json, text, text);
drop function ojs._result_refusal(json);
drop function ojs._woken(ojs.job, ojs.job_state);
drop function ojs._released(ojs.job, ojs.job_state, boolean);
drop function ojs._held_job(uuid, text, uuid, text, text);
drop function ojs._check_hold(text, ojs.job, uuid, text);
drop function ojs._hold_refusal(text, uuid, ojs.job_state, uuid, text, uuid, text);
drop function ojs._holds(ojs.job_state, uuid, text, uuid, text);
drop function ojs._job_for(uuid, text);
drop function ojs._ambiguous(uuid);
drop function ojs._unknown(uuid);
reset role;
