-- +goose Up
-- What a worker, a producer or an operator says about one job: ack, nack, heartbeat, release, cancel, activate. Each locks its job row, changes
-- it, and appends to the journal; none touches fairness state. An invalid transition is a typed error (ojs-core section 6.4).
set local role ojs_owner;

-- +goose StatementBegin
create function ojs._job_for(p_id uuid, p_tenant text) returns ojs.job
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_jobs ojs.job[];
begin
    if p_id is null then
        perform ojs._raise('OJ400', 'id is required', '{"field": "id"}');
    end if;
    v_jobs := array(select j from ojs.job j where j.id = p_id and (p_tenant is null or j.tenant_id = p_tenant) limit 2);
    if cardinality(v_jobs) = 0 then
        perform ojs._raise('OJ404', format('job %s not found', p_id), jsonb_build_object('resource_type', 'job', 'resource_id', p_id));
    elsif cardinality(v_jobs) > 1 then
        perform ojs._raise('OJ411', format('job id %s exists in more than one tenant', p_id), jsonb_build_object('field', 'X-OJS-Tenant', 'job_id', p_id));
    end if;
    return v_jobs[1];
end;
$$;
-- +goose StatementEnd
comment on function ojs._job_for(uuid, text) is 'The job with that id of a tenant, or of any tenant for null. Raises not_found, ambiguous_job.';

-- +goose StatementBegin
create function ojs._held_job(p_id uuid, p_tenant text, p_lease uuid, p_worker_id text, p_action text) returns ojs.job
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_job ojs.job := ojs._job_for(p_id, p_tenant);
begin
    select * into v_job from ojs.job j where j.id = v_job.id and j.tenant_id = v_job.tenant_id for update;
    if v_job.state <> 'active' then
        perform ojs._raise('OJ409', format('cannot %s job %s: its state is %s, not active', p_action, p_id, v_job.state),
            jsonb_build_object('job_id', p_id, 'current_state', v_job.state, 'expected_state', 'active'));
    elsif p_lease <> v_job.lease then
        perform ojs._raise('OJ409', format('cannot %s job %s: the lease is not that of the running attempt', p_action, p_id),
            jsonb_build_object('job_id', p_id, 'field', 'lease', 'current_state', v_job.state));
    elsif p_worker_id <> v_job.worker_id then
        perform ojs._raise('OJ409', format('cannot %s job %s: another worker holds it', p_action, p_id),
            jsonb_build_object('job_id', p_id, 'field', 'worker_id', 'current_state', v_job.state));
    end if;
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
create function ojs.ack(p_id uuid, p_lease uuid default null, p_result json default null, p_worker_id text default null, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_violation ojs.violation;
    v_old       ojs.job;
    v_job       ojs.job;
begin
    if p_result is not null then
        v_violation := ojs._json_violation(p_result, 'result', null, 1048576);
        if v_violation is not null then
            perform ojs._raise(v_violation.sqlstate, v_violation.message, jsonb_build_object('field', v_violation.field));
        end if;
    end if;
    v_old := ojs._held_job(p_id, ojs._session_tenant(p_tenant), p_lease, p_worker_id, 'acknowledge');
    update ojs.job j
    set state = 'completed', finished_at = ojs.now(), lease = null, lease_expires_at = null, result = p_result
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._released(v_old, 'completed', p_lease is not null or p_worker_id is not null);
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.ack(uuid, uuid, json, text, text) is
'Completes an active job and returns it (ojs-core section 7.3). Works in the caller''s own transaction: the rows the job produced and its completion commit
together. p_lease: the token ojs.fetch returned, or p_worker_id: either proves that the caller still holds the job; with neither the running attempt
is completed, counted as unfenced. p_result: any JSON up to 1048576 bytes, kept byte for byte. Raises not_found, conflict (not active, or another
holds it), ambiguous_job, invalid_payload, payload_too_large. Locks the job row.';

-- +goose StatementBegin
create function ojs._retry_delay_ms(p_retry jsonb, p_attempt int) returns bigint
language sql volatile
as $$
    select least(d.cap, least(d.cap, ojs._retry_interval_ms(p_retry, 'initial_interval', 1000)
                * power(coalesce((p_retry ->> 'backoff_coefficient')::float8, 2), least(p_attempt - 1, 60)))
        * case when coalesce(p_retry -> 'jitter', 'true') in ('false', '"none"') then 1 else 0.5 + random() end)::bigint
    from (select ojs._retry_interval_ms(p_retry, 'max_interval', 300000) as cap) d
$$;
-- +goose StatementEnd
comment on function ojs._retry_delay_ms(jsonb, int) is
'Milliseconds from the failure of an attempt to the next one: initial_interval * backoff_coefficient ^ (attempt - 1), at most max_interval, times 0.5 to 1.5
unless jitter is off, and again at most max_interval. Defaults: 1 s, 2, 5 min, on (ojs-retry section 3).';

-- +goose StatementBegin
create function ojs.nack(
    p_id uuid, p_error jsonb, p_lease uuid default null, p_worker_id text default null, p_requeue boolean default false, p_tenant text default null
) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old   ojs.job;
    v_job   ojs.job;
    v_error jsonb;
    v_now   timestamptz := ojs.now();
    v_to    ojs.job_state;
begin
    if p_error is null or jsonb_typeof(p_error) <> 'object' then
        perform ojs._raise('OJ400', 'error must be a JSON object', '{"field": "error"}');
    elsif coalesce(jsonb_typeof(p_error -> 'message'), 'null') <> 'string' then
        perform ojs._raise('OJ400', 'error.message must be a string', '{"field": "error.message"}');
    elsif p_error ? 'code' and jsonb_typeof(p_error -> 'code') <> 'string' then
        perform ojs._raise('OJ400', 'error.code must be a string', '{"field": "error.code"}');
    elsif p_error ? 'type' and jsonb_typeof(p_error -> 'type') <> 'string' then
        perform ojs._raise('OJ400', 'error.type must be a string', '{"field": "error.type"}');
    elsif p_error ? 'retryable' and jsonb_typeof(p_error -> 'retryable') <> 'boolean' then
        perform ojs._raise('OJ400', 'error.retryable must be a boolean', '{"field": "error.retryable"}');
    elsif octet_length(p_error::text) > 65536 then
        perform ojs._raise('OJ413', 'error is larger than 65536 bytes', '{"field": "error"}');
    elsif ojs._too_deep(p_error) then
        perform ojs._raise('OJ401', 'error is nested more than 100 levels deep', '{"field": "error"}');
    end if;
    v_old := ojs._held_job(p_id, ojs._session_tenant(p_tenant), p_lease, p_worker_id, 'fail');
    v_error := p_error || jsonb_build_object(
        'attempt', v_old.attempt,
        'code', coalesce(p_error ->> 'code', p_error ->> 'type', 'handler_error'),
        'type', coalesce(p_error ->> 'type', p_error #>> '{details,error_class}', p_error ->> 'code', 'handler_error'),
        'occurred_at', to_char(v_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'));
    v_to := case
        when p_requeue then 'available'
        when v_old.attempt >= v_old.max_attempts or p_error -> 'retryable' = 'false'
            or v_old.retry -> 'non_retryable_errors' ?| array[v_error ->> 'code', v_error ->> 'type'] then 'discarded'
        else 'retryable' end;

    update ojs.job j
    set state = v_to, lease = null, lease_expires_at = null,
        errors = case when jsonb_array_length(j.errors) >= 100 then j.errors - 0 else coalesce(j.errors, '[]') end || v_error,
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
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.nack(uuid, jsonb, uuid, text, boolean, text) is
'Reports that an active job failed and returns it (ojs-core section 7.4): retryable, to come back at retry_at by its retry policy; discarded, when attempts are
exhausted, p_error ->> ''retryable'' is false or the policy lists its code or type as non-retryable; with p_requeue available again at once. p_error: an
object {message, code, type, retryable, details} up to 65536 bytes, kept in errors. p_lease, p_worker_id as for ojs.ack. Raises invalid_request,
not_found, conflict, ambiguous_job, payload_too_large. Locks the job row.';

-- +goose StatementBegin
create function ojs.settle(p_settlements json, p_jobs boolean default true) returns setof ojs._outcome
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_given   record;
    v_job     ojs.job;
    v_outcome ojs._outcome;
    v_detail  text;
begin
    for v_given in select (e.ord - 1)::int as n, e.given from json_array_elements(p_settlements) with ordinality e(given, ord) loop
        begin
            perform from ojs.job j where j.id = (v_given.given ->> 'id')::uuid and (v_given.given ->> 'tenant' is null or j.tenant_id = v_given.given ->> 'tenant') for update nowait;
            if v_given.given -> 'error' is null then
                v_job := ojs.ack((v_given.given ->> 'id')::uuid, (v_given.given ->> 'lease')::uuid, v_given.given -> 'result', v_given.given ->> 'worker_id', v_given.given ->> 'tenant');
            else
                v_job := ojs.nack((v_given.given ->> 'id')::uuid, (v_given.given -> 'error')::jsonb, (v_given.given ->> 'lease')::uuid, v_given.given ->> 'worker_id',
                    coalesce((v_given.given ->> 'requeue')::boolean, false), v_given.given ->> 'tenant');
            end if;
            if not p_jobs then
                v_job.args := null; v_job.meta := null; v_job.options := null; v_job.extra := null; v_job.result := null;
            end if;
            select v_given.n, null, null, null, v_job.* into v_outcome;
        exception when others then
            v_outcome := null;
            v_outcome.n := v_given.n;
            get stacked diagnostics v_outcome.sqlstate = returned_sqlstate, v_outcome.message = message_text, v_detail = pg_exception_detail;
            v_outcome.detail := case when left(v_detail, 1) = '{' then v_detail::jsonb end;
        end;
        return next v_outcome;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs.settle(json, boolean) is
'Acknowledges and fails 1 to 10000 jobs, each for itself, and returns one row per element in the order given: n from 0, then either the job as it is
now, or sqlstate, message and detail of what ojs.ack or ojs.nack would raise. p_settlements: a JSON array of {id, lease, worker_id, tenant, result, error,
requeue}; with error it is a nack, else an ack. Never waits: a job that another transaction has locked gets 55P03, and ojs.ack or ojs.nack would wait
for it. Without p_jobs, args, meta, options, extra and result stay null. Raises invalid_request when p_settlements as a whole is malformed.';

-- +goose StatementBegin
create function ojs.heartbeat(
    p_worker_id text, p_ids uuid[] default '{}', p_visibility_timeout_ms int default null, p_tenant text default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    if p_worker_id is null or p_worker_id = '' or length(p_worker_id) > 255 then
        perform ojs._raise('OJ400', 'worker_id is required and has at most 255 characters', '{"field": "worker_id"}');
    end if;
    if p_visibility_timeout_ms not between 1000 and 604800000 then
        perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
    end if;
    if cardinality(p_ids) > 10000 then
        perform ojs._raise('OJ400', 'active_jobs must name at most 10000 jobs', '{"field": "active_jobs"}');
    end if;
    if v_tenant is null and exists (select from ojs.job j where j.id = any (p_ids) group by j.id having count(*) > 1) then
        perform ojs._raise('OJ411', 'a job id in active_jobs exists in more than one tenant', '{"field": "X-OJS-Tenant"}');
    end if;
    return query
    with held as materialized (
        select j.id, j.tenant_id from ojs.job j
        where j.id = any (p_ids) and (v_tenant is null or j.tenant_id = v_tenant) and j.state = 'active'
          and (j.worker_id is null or j.worker_id = p_worker_id)
        for update of j skip locked
    )
    update ojs.job j
    set lease_expires_at = greatest(j.lease_expires_at,
        ojs.now() + coalesce(p_visibility_timeout_ms, j.visibility_timeout_ms, 30000) * interval '1 millisecond')
    from held h where j.id = h.id and j.tenant_id = h.tenant_id
    returning j.*;
end;
$$;
-- +goose StatementEnd
comment on function ojs.heartbeat(text, uuid[], int, text) is
'Says that a worker is alive and still runs the jobs p_ids; extends their leases by p_visibility_timeout_ms (else the job''s own, else 30000 ms) from now and
returns those it extended (ojs-core section 7.5). A job not returned is no longer this worker''s, or is being ended at this moment. Raises invalid_request, ambiguous_job.';

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
create function ojs.job_info(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return ojs._job_for(p_id, ojs._session_tenant(p_tenant));
end;
$$;
-- +goose StatementEnd
comment on function ojs.job_info(uuid, text) is 'The job with that id (ojs-core section 7.7). Raises not_found, also for a job of another tenant; ambiguous_job.';
grant execute on function ojs.ack(uuid, uuid, json, text, text), ojs.nack(uuid, jsonb, uuid, text, boolean, text), ojs.settle(json, boolean), ojs.heartbeat(text, uuid[], int, text),
    ojs.release(uuid, uuid), ojs.cancel(uuid, text), ojs.activate(uuid, text), ojs.job_info(uuid, text) to ojs_service, ojs_operator, ojs_tenant;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.job_info(uuid, text);
drop function ojs.activate(uuid, text);
drop function ojs.cancel(uuid, text);
drop function ojs.release(uuid, uuid);
drop function ojs.heartbeat(text, uuid[], int, text);
drop function ojs.settle(json, boolean);
drop function ojs.nack(uuid, jsonb, uuid, text, boolean, text);
drop function ojs._retry_delay_ms(jsonb, int);
drop function ojs.ack(uuid, uuid, json, text, text);
drop function ojs._woken(ojs.job, ojs.job_state);
drop function ojs._released(ojs.job, ojs.job_state, boolean);
drop function ojs._held_job(uuid, text, uuid, text, text);
drop function ojs._job_for(uuid, text);
reset role;
