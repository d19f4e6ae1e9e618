-- Fails one job.
-- Locks the job's row.
-- Writes the job and what ojs._book writes.
create or replace function ojs.nack(
    p_id uuid, p_error anycompatible, p_lease uuid default null, p_worker_id text default null, p_requeue boolean default false,
    p_tenant text default null
) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_error));
    v_error   jsonb := p_error::jsonb;
    v_refusal ojs.refusal := ojs._error_refusal(v_error);
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
    v_entry := ojs._error_entry(v_error, v_old.attempt, v_old.worker_id, v_now);
    v_to := ojs._failed_state(v_entry, p_requeue, v_old.attempt, v_old.max_attempts, v_old.retry);
    update ojs.job j
    set state = v_to, lease = null, lease_expires_at = null,
        errors = case when ojs._erased(j.retry) then null else ojs._errors_with(j.errors, v_entry) end,
        finished_at = case when v_to = 'discarded' then v_now end,
        retry_at = case when v_to = 'retryable' then ojs._retry_at(j.retry, j.attempt, v_now) end,
        enqueued_at = case when v_to = 'available' then v_now else j.enqueued_at end
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._book(array[(v_job.tenant_id, v_job.id, v_job.queue, v_job.priority, v_job.type, v_job.seq, v_job.attempt,
        v_job.started_at, v_to, v_job.retry_at, v_job.expires_at, v_job.retry, v_entry,
        p_lease is not null or p_worker_id is not null, null, v_job.pool, v_job.charged)::ojs._attempt_end], v_now);
    return v_job;
end;
$$;
comment on function ojs.nack(uuid, anycompatible, uuid, text, boolean, text) is
'Reports that an active job failed, and returns it (ojs-core section 7.4).
p_error: an object {message, code, type, retryable, details}, kept in errors; null means absent, but
for message. An error of more than 65536 bytes or 100 levels is cut, and gets "truncated": true.
p_lease, p_worker_id, p_tenant: as for ojs.ack.
p_requeue: the job is available again at once.
The job becomes retryable, and available at retry_at by its retry policy. It becomes discarded if
its attempts are used up, p_error ->> ''retryable'' is false, the policy lists its code or type as
non-retryable, or the code is DISCARD, FAIL or DEAD_LETTER. A discarded job enters the dead letter
queue if the policy says on_exhaustion dead_letter or the code is DEAD_LETTER.
Locks the job row. Raises invalid_request, not_found, conflict, ambiguous_job.';

create or replace function ojs._error_refusal(p_error jsonb) returns ojs.refusal
language sql stable
as $$
    select case
        when p_error is null or jsonb_typeof(p_error) <> 'object' then row('OJ400', 'error must be a JSON object',
            '{"field": "error"}')::ojs.refusal
        when ojs._error_misspelt(p_error) is not null then (
            select row(v.sqlstate, v.message, jsonb_build_object('field', v.field))::ojs.refusal from ojs._error_misspelt(p_error) v)
        when coalesce(jsonb_typeof(p_error -> 'message'), 'null') <> 'string' then row('OJ400', 'error.message must be a string',
            '{"field": "error.message"}')::ojs.refusal
        when jsonb_typeof(p_error -> 'code') not in ('string', 'null') then row('OJ400', 'error.code must be a string',
            '{"field": "error.code"}')::ojs.refusal
        when jsonb_typeof(p_error -> 'type') not in ('string', 'null') then row('OJ400', 'error.type must be a string',
            '{"field": "error.type"}')::ojs.refusal
        when jsonb_typeof(p_error -> 'retryable') not in ('boolean', 'null') then
            row('OJ400', 'error.retryable must be a boolean', '{"field": "error.retryable"}')::ojs.refusal
        end
$$;
comment on function ojs._error_refusal(jsonb) is
'Returns why the error of a nack is refused, or null.';

create or replace function ojs._error_entry(p_error jsonb, p_attempt int, p_worker text, p_now timestamptz) returns jsonb
language plpgsql stable
as $$
declare
    v_error jsonb := ojs._error_cut(p_error);
begin
    return (v_error - 'worker_id') || jsonb_strip_nulls(jsonb_build_object(
        'attempt', p_attempt, 'worker_id', p_worker,
        'code', coalesce(v_error ->> 'code', v_error ->> 'type', 'handler_error'),
        'type', coalesce(v_error ->> 'type', v_error #>> '{details,error_class}', v_error ->> 'code', 'handler_error'),
        'occurred_at', to_char(p_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')));
end;
$$;
comment on function ojs._error_entry(jsonb, int, text, timestamptz) is
'Returns the error of a nack as it is kept in the errors of its job, with the worker that ran the
attempt, if it has a name.';

-- If a large error were refused, the attempt would go on until its lease ends, and the job would keep
-- visibility_timeout in place of the true error.
create or replace function ojs._error_cut(p_error jsonb) returns jsonb
language plpgsql immutable
as $$
declare
    c_bytes constant int := 65536;
    c_known constant text[] := '{message, code, type, retryable, backtrace}';
    v_rest  jsonb;
    v_trace jsonb := p_error -> 'backtrace';
    v_cut   jsonb;
    v_most  int := 30000;
begin
    if octet_length(p_error::text) <= c_bytes and not ojs._too_deep(p_error) then
        return p_error;
    end if;
    v_rest := p_error - c_known;
    if octet_length(v_rest::text) > 16384 or ojs._too_deep(v_rest) then
        -- The type of the error may be in its details.
        v_rest := case when jsonb_typeof(p_error #> '{details,error_class}') = 'string'
            then jsonb_build_object('details', jsonb_build_object('error_class', left(p_error #>> '{details,error_class}', 1000)))
            else '{}' end;
    end if;
    if jsonb_typeof(v_trace) not in ('string', 'array') or ojs._too_deep(v_trace) then
        v_trace := null;
    end if;
    loop
        v_cut := v_rest || jsonb_build_object('truncated', true, 'message', left(p_error ->> 'message', v_most))
            || jsonb_strip_nulls(jsonb_build_object('retryable', p_error -> 'retryable',
                'code', left(p_error ->> 'code', least(v_most, 1000)), 'type', left(p_error ->> 'type', least(v_most, 1000)),
                'backtrace', case when jsonb_typeof(v_trace) = 'string' then to_jsonb(left(v_trace #>> '{}', v_most))
                    when v_trace is not null then (
                        select jsonb_agg(f.frame order by f.n)
                        from (select t.frame, t.n, sum(length(t.frame::text)) over (order by t.n) as so_far
                            from jsonb_array_elements(v_trace) with ordinality t(frame, n)) f
                        where f.so_far <= v_most) end));
        exit when octet_length(v_cut::text) <= c_bytes;
        v_most := v_most / 2;
    end loop;
    return v_cut;
end;
$$;
comment on function ojs._error_cut(jsonb) is
'Returns the error of a nack, cut if it has more than 65536 bytes or 100 levels.
The message and the backtrace are cut, code and type to 1000 characters; other members are left out
if they have more than 16384 bytes. The member truncated says that the error was cut.';

create or replace function ojs._errors_with(p_errors jsonb, p_entry jsonb) returns jsonb
language sql immutable
as $$ select case when jsonb_array_length(p_errors) >= 100 then p_errors - 0 else coalesce(p_errors, '[]') end || p_entry $$;
comment on function ojs._errors_with(jsonb, jsonb) is
'Returns the errors of a job and one more; only the latest 100.';

create or replace function ojs._to_dead_letters(p_retry jsonb, p_entry jsonb) returns boolean
language sql immutable
as $$ select ojs._erased(p_retry) is not true and (p_entry ->> 'code' = 'DEAD_LETTER'
    or p_retry ->> 'on_exhaustion' = 'dead_letter' and p_entry ->> 'code' not in ('DISCARD', 'FAIL')) $$;
comment on function ojs._to_dead_letters(jsonb, jsonb) is
'Returns whether a job that is discarded for an error enters the dead letter queue (ojs-retry
section 7).
It does if its policy says so (by default it does not) or the handler said so. An erased job does
not. p_entry: the error as
ojs._error_entry made it.';

create or replace function ojs._ruled(p_rule ojs.replay_rule, p_dead ojs.dead_letter) returns boolean
language sql immutable
as $$
    select (p_rule.tenant_id is null or p_rule.tenant_id = p_dead.tenant_id) and (p_rule.queue is null or p_rule.queue = p_dead.queue)
        and (p_rule.type is null or p_rule.type = p_dead.type)
        and (p_rule.error_type is null or p_rule.error_type in (p_dead.error_type, p_dead.error_code))
$$;
comment on function ojs._ruled(ojs.replay_rule, ojs.dead_letter) is
'Returns whether a replay rule applies to a dead letter. Becomes part of the query that asks.';

create or replace function ojs._can_bury(p_tenant text, p_id uuid) returns boolean
language plpgsql
as $$
begin
    if not exists (select from ojs.dead_job k where k.id = p_id and k.tenant_id = p_tenant) then
        return true;
    end if;
    perform from ojs.dead_job k where k.id = p_id and k.tenant_id = p_tenant for update skip locked;
    return found;
end;
$$;
comment on function ojs._can_bury(text, uuid) is
'Locks the dead letter with the id of a job, if there is one, and returns whether ojs._bury would
not have to wait.
It would wait for a session that deletes this dead letter, in a transaction that may stay open.';

create or replace function ojs._bury(p_tenants text[], p_ids uuid[], p_queues text[], p_types text[], p_entries jsonb[],
    p_at timestamptz) returns boolean
language plpgsql
as $$
begin
    -- Retention may have kept a dead letter whose id its producer has used again since. Delete it;
    -- otherwise the id would stand for two dead letters.
    delete from ojs.dead_job k using unnest(p_ids, p_tenants) b(id, tenant_id) where k.id = b.id and k.tenant_id = b.tenant_id;
    insert into ojs.dead_letter as d (tenant_id, id, queue, type, error_type, error_code, at)
    select b.tenant_id, b.id, b.queue, b.type, left(b.entry ->> 'type', 1000), left(b.entry ->> 'code', 1000), p_at
    from unnest(p_tenants, p_ids, p_queues, p_types, p_entries) b(tenant_id, id, queue, type, entry)
    on conflict (id, tenant_id) do update set queue = excluded.queue, type = excluded.type, error_type = excluded.error_type,
        error_code = excluded.error_code, at = excluded.at, aside = false;
    if exists (select from ojs.replay_rule r where r.enabled) then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select ojs._later(p_at, r.delay), 'replay', array_agg(d.tenant_id), array_agg(d.id)
        from unnest(p_ids, p_tenants) b(id, tenant_id)
        join ojs.dead_letter d on d.id = b.id and d.tenant_id = b.tenant_id
        join ojs.replay_rule r on r.enabled and ojs._ruled(r, d)
        group by r.name, r.delay;
    end if;
    return true;
end;
$$;
comment on function ojs._bury(text[], uuid[], text[], text[], jsonb[], timestamptz) is
'Puts jobs that this transaction discards at p_at into the dead letter queue; returns true.
ojs._to_dead_letters says which. The arrays are in step; p_entries: the last error of each job.';
comment on type ojs._attempt_end is
'An attempt that has ended: its job, the state that the job entered, when it is retried, when it
expires, its retry policy, the error as the job keeps it, whether the caller proved that it held the
job, why the clock ended it, the pool in which it ran, and how many seconds its tenant was
charged.';

create or replace function ojs._book(p_ends ojs._attempt_end[], p_now timestamptz) returns boolean
language plpgsql
as $$
begin
    insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, unfenced, seconds, at, pool)
    select e.tenant_id, e.queue, e.priority, 'active', 'completed', count(*), count(*) filter (where not e.fenced),
        sum(greatest(date_part('epoch', p_now - e.started_at), 0)), p_now, e.pool
    from unnest(p_ends) e where e.to_state = 'completed' group by e.tenant_id, e.queue, e.priority, e.pool;

    insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced, cause, at,
        pool, retry_at)
    select e.tenant_id, e.queue, e.priority, e.id, e.type, e.attempt, 'active', e.to_state, e.started_at, e.fenced, e.cause, p_now, e.pool,
        case when e.to_state = 'retryable' then e.retry_at end
    from unnest(p_ends) e where e.to_state <> 'completed';

    insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi, at)
    select e.tenant_id, e.queue, e.priority, 'available', 'available', 1, e.seq, e.seq, p_now from unnest(p_ends) e
        where e.to_state = 'available';
    perform ojs._notify(array_agg(distinct e.queue)) from unnest(p_ends) e where e.to_state = 'available' having count(*) > 0;

    -- Jobs that are retried within the same 50 ms share a timer; with one each, every failure would
    -- write one row more.
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select max(e.retry_at), 'due', array_agg(e.tenant_id), array_agg(e.id)
    from unnest(p_ends) e where e.to_state = 'retryable' group by date_bin('50 milliseconds', e.retry_at, 'epoch');

    -- The tick dropped a timer that was due during the attempt. Without a new one, a job that has
    -- expired meanwhile would never be discarded.
    perform ojs._remind('expiry', array_agg(e.expires_at), array_agg(e.tenant_id), array_agg(e.id))
    from unnest(p_ends) e where e.to_state in ('available', 'retryable') and e.expires_at is not null having count(*) > 0;

    perform ojs._bury(array_agg(e.tenant_id), array_agg(e.id), array_agg(e.queue), array_agg(e.type), array_agg(e.entry), p_now)
    from unnest(p_ends) e where e.to_state = 'discarded' and ojs._to_dead_letters(e.retry, e.entry) having count(*) > 0;

    perform ojs._count_ends(array_agg((e.tenant_id, e.queue, e.priority, e.seq, e.started_at, e.pool, e.charged)::ojs._counted_end), p_now)
    from unnest(p_ends) e where e.charged is not null or e.pool is not null or exists (select from ojs.rule) having count(*) > 0;
    return true;
end;
$$;
comment on function ojs._book(ojs._attempt_end[], timestamptz) is
'Writes what follows from the end of attempts whose jobs the same statement has changed: journals,
timers, dead letters, notifications. Returns true.';
