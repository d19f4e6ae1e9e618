-- How dead letters become available again: one, perhaps with other attributes, or all that match a
-- filter. Called by tenants and operators; _retry_dead also by rules (dead_letters/replay.sql).

-- Takes one job out of the dead letter queue, with the changes in p_override.
-- Locks the job row.
-- Writes ojs.job (and ojs.dead_job, if it was there), ojs.dead_letter, the journal, and ojs.timer
-- for expires_at.
create or replace function ojs.retry_dead_letter(p_id uuid, p_override anycompatible default null, p_tenant text default null)
returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_override));
begin
    return ojs._retry_one(ojs._lock_dead(p_id, ojs._session_tenant(p_tenant)), p_override::json);
end;
$$;
comment on function ojs.retry_dead_letter(uuid, anycompatible, text) is
'Takes a job out of the dead letter queue and returns it (ojs-dead-letter section 6.1).
The job is available at once, after the jobs that are available already, like a new job. Its
attempt is 0, its errors are kept.
p_override: a JSON object of attributes to change (section 6.3): queue, priority, args, meta
(merged), retry (merged), max_attempts, expires_at (null: never).
Raises not_found, ambiguous_job, conflict (expired, or its tenant is being deregistered),
TENANT_LIMIT_EXCEEDED, QUEUE_FULL, and what ojs.enqueue raises about an attribute.
Locks the job row.';

-- Retries the oldest dead letters that match a filter.
-- Locks the job rows (skip locked).
-- Writes ojs.job, ojs.dead_job, ojs.dead_letter, the journal.
create or replace function ojs.retry_dead_letters(
    p_queue text default null, p_type text default null, p_error_type text default null,
    p_since timestamptz default null, p_until timestamptz default null, p_limit int default 1000, p_tenant text default null
) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_held record;
begin
    perform ojs._check_limit(p_limit, 10000);
    v_held := ojs._lock_matching(ojs._session_tenant(p_tenant), p_queue, p_type, p_error_type, p_since, p_until, p_limit, true);
    return ojs._retry_dead(v_held.o_tenants, v_held.o_ids);
end;
$$;
comment on function ojs.retry_dead_letters(text, text, text, timestamptz, timestamptz, int, text) is
'Retries the oldest of the jobs that ojs.dead_letters would list, and returns how many.
Each as by ojs.retry_dead_letter (ojs-dead-letter section 6.2). Call it again until it returns 0,
with p_until in the past: otherwise jobs that fail again are retried again. Leaves out jobs that
have expired, and skips jobs that another session has locked.
p_limit: 1 to 10000.
Raises invalid_request.';

create or replace function ojs._retry_dead(p_tenants text[], p_ids uuid[], p_rules text[] default '{}', p_each boolean default true,
    p_any boolean default false) returns int
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_queues text[];
    v_jobs   int;
    v_beyond ojs.refusal[];
begin
    perform ojs._try_to_restore(p_tenants, p_ids);
    with asked as materialized (
        select a.id, a.tenant_id, min(a.rule) as rule
        from unnest(p_ids, p_tenants, p_rules) a(id, tenant_id, rule)
        -- The clock cancels the jobs of a departing tenant queue by queue. A job retried in a queue
        -- that is done would never be cancelled.
        where not exists (select from ojs.departure d where d.tenant_id = a.tenant_id) group by a.id, a.tenant_id
    ), held as materialized (
        select j.*, a.rule, row_number() over (order by j.id)::int as n from asked a
        cross join lateral (
            select j.id, j.tenant_id, j.queue, j.priority, j.type, j.attempt, j.expires_at, j.finished_at from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'discarded' and (j.expires_at > v_now) is not false
                and ojs._erased(j.retry) is not true
            for update skip locked
        ) j
        where p_any or exists (select from ojs.dead_letter d where d.id = a.id and d.tenant_id = a.tenant_id and not d.aside)
    ), beyond as materialized (
        select b.* from ojs._beyond_limits(array(select row(h.n, h.tenant_id, h.queue, 'available', 0)::ojs._new_place from held h), p_each,
            false) b where exists (select from ojs.allowance)
    ), kept as materialized (
        select h.* from held h where h.n not in (select b.n from beyond b) order by h.finished_at, h.id
    ), gone as (
        delete from ojs.dead_letter d using kept k where d.id = k.id and d.tenant_id = k.tenant_id and not d.aside
    ), numbered as materialized (
        select k.*, nextval('ojs.job_seq') as seq from kept k
    ), retried as (
        update ojs.job j
        set state = 'available', attempt = 0, seq = n.seq, enqueued_at = v_now,
            started_at = null, finished_at = null, retry_at = null, worker_id = null,
            meta = ojs._replayed_meta(j.meta, n.rule, v_now)
        from numbered n where j.id = n.id and j.tenant_id = n.tenant_id
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
        select n.tenant_id, n.queue, n.priority, n.id, n.type, n.attempt, 'discarded', 'available' from numbered n
    ), reminded as (
        -- The timer for expires_at may have fired, without effect, while the job was dead.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select n.expires_at, 'expiry', array[n.tenant_id], array[n.id] from numbered n where n.expires_at is not null
    ), woken as (
        -- Statistics count this as a job that returns to the available ones; ojs.release says which
        -- state it left.
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select n.tenant_id, n.queue, n.priority, 'available', 'available', 1, n.seq, n.seq from numbered n order by n.seq
        returning queue
    )
    select (select array_agg(distinct w.queue) from woken w), (select count(*) from numbered), array(select b.refusal from beyond b)
    into v_queues, v_jobs, v_beyond;
    perform ojs._refuse(r) from unnest(v_beyond) r where not p_each;
    perform ojs._notify(v_queues);
    return v_jobs;
end;
$$;
comment on function ojs._retry_dead(text[], uuid[], text[], boolean, boolean) is
'Makes the given jobs available again, after the jobs that are available already. Only jobs in the
dead letter queue that no other session has locked, that have not expired, and whose tenant is not
being deregistered. Returns how many.
p_rules: the rule that retries each job, noted in its meta; empty: none, an operator or tenant
does.
p_each: jobs that limits refuse stay; false: the refusal is raised.
p_any: also discarded jobs that are not in the dead letter queue.';

create or replace function ojs._try_to_restore(p_tenants text[], p_ids uuid[]) returns void
language plpgsql set lock_timeout = '20ms'
as $$
declare
    v_of record;
begin
    perform ojs._restore_dead(p_tenants, p_ids);
exception when lock_not_available or unique_violation then
    -- An open transaction of a producer uses one of the ids again. Only the jobs of that tenant
    -- must wait for it: try each tenant by itself.
    for v_of in select a.tenant_id, array_agg(a.id) as ids from unnest(p_ids, p_tenants) a(id, tenant_id) group by a.tenant_id loop
        begin
            perform ojs._restore_dead(array_fill(v_of.tenant_id, array[cardinality(v_of.ids)]), v_of.ids);
        exception when lock_not_available or unique_violation then
            null;
        end;
    end loop;
end;
$$;
comment on function ojs._try_to_restore(text[], uuid[]) is
'Moves the given dead letters from ojs.dead_job back to ojs.job, except those of a tenant that is
using one of the ids again in an open transaction (it waits 20 ms for it).';

create or replace function ojs._restore_dead(p_tenants text[], p_ids uuid[]) returns void
language sql
as $$
    with asked as materialized (
        -- If its producer has used the id again, the row of ojs.job would have to be locked first
        -- (order of locks). The dead letter stays where it is.
        select a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)
        where not exists (select from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id)
    ), held as materialized (
        select k.id, k.tenant_id from asked a
        cross join lateral (
            select k.id, k.tenant_id from ojs.dead_job k where k.id = a.id and k.tenant_id = a.tenant_id for update skip locked
        ) k
    ), moved as (
        delete from ojs.dead_job k using held h where k.id = h.id and k.tenant_id = h.tenant_id returning k.*
    ), back as (
        insert into ojs.job select m.* from moved m
    )
    update ojs.dead_letter d set aside = false from held h where d.id = h.id and d.tenant_id = h.tenant_id
$$;
comment on function ojs._restore_dead(text[], uuid[]) is
'Moves the given dead letters from ojs.dead_job back to ojs.job.';

create or replace function ojs._override(p_job ojs.job, p_override json) returns ojs.job
language plpgsql
as $$
declare
    v_job ojs.job := p_job;
    v_new jsonb := p_override::jsonb;
    v_bad ojs.violation;
begin
    perform ojs._check_override(v_new);
    v_job.queue := coalesce(v_new ->> 'queue', v_job.queue);
    v_job.priority := coalesce((v_new ->> 'priority')::int, v_job.priority);
    v_job.args := coalesce(p_override -> 'args', v_job.args);
    v_job.meta := v_job.meta || coalesce(v_new -> 'meta', '{}');
    v_job.retry := case when v_new ? 'retry' then coalesce(v_job.retry, '{}') || (v_new -> 'retry') else v_job.retry end;
    v_job.max_attempts := coalesce((v_new ->> 'max_attempts')::int, ojs._retry_max_attempts(v_new -> 'retry'), v_job.max_attempts);
    if v_new ? 'expires_at' then
        v_job.expires_at := ojs._override_expiry(v_new ->> 'expires_at');
    end if;
    v_bad := ojs._job_violation(v_job.tenant_id, v_job.id, v_job.type, v_job.queue, v_job.priority, v_job.max_attempts,
        v_job.scheduled_at, v_job.expires_at, v_job.timeout_ms, v_job.visibility_timeout_ms,
        v_job.tags, v_job.args, v_job.meta, v_job.retry, v_job.options, v_job.extra);
    if v_bad.sqlstate is not null then
        perform ojs._raise(v_bad.sqlstate, 'override.' || v_bad.message,
            jsonb_build_object('field', 'override.' || v_bad.field, 'job_id', v_job.id));
    end if;
    if (v_job.queue, v_job.priority) <> (p_job.queue, p_job.priority) then
        -- Statistics stop counting the job in the old queue and count it in the new one.
        insert into ojs.journal (tenant_id, queue, priority, to_state, jobs)
        values (p_job.tenant_id, p_job.queue, p_job.priority, 'discarded', -1),
            (p_job.tenant_id, v_job.queue, v_job.priority, 'discarded', 1);
        update ojs.shard s set moved = s.moved + 1
        where s.tenant_id = p_job.tenant_id and s.queue = p_job.queue and s.queue <> v_job.queue;
    end if;
    update ojs.job j
    set queue = v_job.queue, priority = v_job.priority, args = v_job.args, meta = v_job.meta, retry = v_job.retry,
        max_attempts = v_job.max_attempts, expires_at = v_job.expires_at
    where j.id = v_job.id and j.tenant_id = v_job.tenant_id;
    return v_job;
end;
$$;
comment on function ojs._override(ojs.job, json) is
'Changes attributes of a job that is about to be retried, and returns the changed job. Raises what
ojs.enqueue would raise about them.';

create or replace function ojs._check_override(p_override jsonb) returns void
language plpgsql
as $$
declare
    c_kinds constant jsonb := '{"queue": "string", "priority": "number", "args": "array", "meta": "object", "retry": "object",
        "max_attempts": "number", "expires_at": "string"}';
    v_name text;
    v_kind text;
begin
    if jsonb_typeof(p_override) <> 'object' then
        perform ojs._raise('OJ400', 'override must be a JSON object', '{"field": "override"}');
    end if;
    for v_name, v_kind in select k.key, jsonb_typeof(k.value) from jsonb_each(p_override) k loop
        if not c_kinds ? v_name then
            perform ojs._raise('OJ400', format('override.%s cannot be changed', left(v_name, 100)),
                jsonb_build_object('field', 'override.' || left(v_name, 100)));
        elsif v_kind <> c_kinds ->> v_name and (v_name, v_kind) <> ('expires_at', 'null')
                or v_kind = 'number' and p_override ->> v_name !~ '^-?[0-9]{1,9}$' then
            perform ojs._raise('OJ400', format('override.%s has a value of the wrong kind', v_name),
                jsonb_build_object('field', 'override.' || v_name));
        end if;
    end loop;
end;
$$;
comment on function ojs._check_override(jsonb) is
'Raises an error if an override names an attribute that cannot be changed, or has a value of the
wrong kind.';

create or replace function ojs._override_expiry(p_text text) returns timestamptz
language plpgsql
as $$
declare
    v_at timestamptz;
begin
    begin
        v_at := case when ojs._tells_time(p_text) then ojs._when(p_text, ojs.now()) end;
    exception when data_exception then
        v_at := null;
    end;
    if v_at is null and p_text is not null then
        perform ojs._raise('OJ400', 'override.expires_at must be a time with an offset, or + and an ISO 8601 duration such as +PT90S',
            '{"field": "override.expires_at"}');
    end if;
    return v_at;
end;
$$;
comment on function ojs._override_expiry(text) is
'The time that an override gives for expires_at; null: never. Raises invalid_request.';
