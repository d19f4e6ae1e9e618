-- Makes all jobs of a JSON array, or none.
-- Locks nothing; for jobs with an id, waits for transactions that add jobs of the same ids.
-- Writes job, journal; timer for jobs that are scheduled or expire.
create or replace function ojs.enqueue_many(p_jobs anycompatible, p_tenant text default null) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_jobs));
    v_jobs json := p_jobs::json;
begin
    return query select * from ojs._insert_all(ojs._read_jobs(v_jobs), p_tenant);
end;
$$;
comment on function ojs.enqueue_many(anycompatible, text) is
'Enqueues 1 to 10000 jobs, all or none, and returns them in the order given.
They exist when the caller''s transaction commits.
p_jobs: a JSON array of objects whose keys are the names of ojs.enqueue''s parameters without p_
(type, args, queue, ...); only type is required. scheduled_at and expires_at may be + and an ISO
8601 duration from now on (+PT90S).
p_tenant: as for ojs.enqueue, for all jobs.
Raises what ojs.enqueue raises; the detail names index and field.';

-- Makes the jobs of a JSON array that break no rule.
-- Locks nothing; for jobs with an id, waits for transactions that add jobs of the same ids.
-- Writes job, journal; timer for jobs that are scheduled or expire.
create or replace function ojs.enqueue_each(p_jobs anycompatible) returns setof ojs._outcome
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_jobs));
    v_jobs json := p_jobs::json;
begin
    return query
    select o.*
    from ojs._insert_jobs(ojs._read_jobs(v_jobs), null, true) o
    order by o.n;
end;
$$;
comment on function ojs.enqueue_each(anycompatible) is
'Enqueues 1 to 10000 jobs, each of which succeeds or fails alone, and returns a row for each.
The rows are in the order given. Each has n, from 0, and then either the job, or sqlstate, message
and detail of what ojs.enqueue_many would raise about it.
p_jobs: as for ojs.enqueue_many; each job names its own tenant.
A job with the id of a job that an open transaction adds waits for that transaction. Raises
invalid_request when p_jobs as a whole is malformed.';
comment on type ojs._new_jobs is
'New jobs, field by field: each list has an element per job, or is null if no job has the field.
refusals: why a job could not be read.';

create or replace function ojs._insert_all(p_jobs ojs._new_jobs, p_tenant text) returns setof ojs.job
language sql stable
as $$
    select o.state, o.attempt, o.lease, o.started_at, o.lease_expires_at, o.finished_at, o.retry_at, o.enqueued_at, o.worker_id, o.pool,
        o.charged, o.errors, o.result, o.seq, o.tenant_id, o.id, o.queue, o.type, o.priority, o.max_attempts, o.created_at, o.scheduled_at,
        o.expires_at, o.timeout_ms, o.visibility_timeout_ms, o.tags, o.args, o.meta, o.retry, o.options, o.extra
    from ojs._insert_jobs(p_jobs, p_tenant, false) o
    where o.sqlstate is null or ojs._raise(o.sqlstate, o.message, o.detail)
$$;
comment on function ojs._insert_all(ojs._new_jobs, text) is
'Enqueues several jobs, or raises the first problem. It writes, but is declared stable, or it could
not be inlined. Becomes part of the query that asks.';

create or replace function ojs._read_jobs(p_jobs json) returns ojs._new_jobs
language plpgsql stable
as $$
declare
    v_jobs ojs._new_jobs;
begin
    if p_jobs is null or json_typeof(p_jobs) <> 'array' then
        perform ojs._raise('OJ400', 'jobs must be a JSON array', '{"field": "jobs"}');
    end if;
    if json_array_length(p_jobs) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'jobs must hold between 1 and 10000 jobs', '{"field": "jobs"}');
    end if;
    select array_agg(s.type #>> '{}'), array_agg(coalesce(s.args, '[]')), array_agg(s.queue #>> '{}'),
        case when count(s.priority) > 0 then array_agg(s.priority::text::int) end,
        case when count(s.scheduled_at) > 0 then array_agg(s.scheduled_at #>> '{}') end,
        case when count(s.expires_at) > 0 then array_agg(s.expires_at #>> '{}') end,
        case when count(s.meta) > 0 then array_agg(s.meta::jsonb) end, case when count(s.retry) > 0 then array_agg(s.retry::jsonb) end,
        case when count(s.max_attempts) > 0 then array_agg(s.max_attempts::text::int) end,
        case when count(s.timeout_ms) > 0 then array_agg(s.timeout_ms::text::int) end,
        case when count(s.visibility_timeout_ms) > 0 then array_agg(s.visibility_timeout_ms::text::int) end,
        case when count(s.tags) > 0 then array_agg(s.tags) end, case when count(s.pending) > 0 then array_agg(s.pending::text::boolean) end,
        case when count(s.options) > 0 then array_agg(s.options) end, case when count(s.extra) > 0 then array_agg(s.extra) end,
        case when count(s.id) > 0 then array_agg((s.id #>> '{}')::uuid) end,
        case when count(coalesce(s.tenant, s.tenant_id)) > 0 then array_agg(coalesce(s.tenant, s.tenant_id) #>> '{}') end,
        case when count(s.refusal) > 0 then array_agg(s.refusal) end
    into v_jobs
    from ojs._shaped_jobs(p_jobs) s;
    return v_jobs;
end;
$$;
comment on function ojs._read_jobs(json) is
'Reads an array of jobs in JSON into lists of their fields. A job that cannot be read has a refusal
and no field.';
comment on type ojs._job_fields is 'A new job as JSON gives it, field by field.';

-- A job whose fields are all known, all different and none null has as many fields as it fills
-- columns. So one comparison of numbers shows that a job is well formed, for most jobs; only the
-- others are read field by field, which takes longer.
create or replace function ojs._shaped_jobs(p_jobs json)
returns table (type json, args json, queue json, priority json, scheduled_at json, expires_at json, meta json, retry json,
    max_attempts json, timeout_ms json, visibility_timeout_ms json, tags json, pending json, options json, extra json, id json, tenant json,
    tenant_id json, refusal ojs.refusal)
language sql stable
as $$
    select (s.x).*, s.refusal
    from (
        select case when j.refusal is null then j.x end as x, j.refusal
        from (
            select p.x, case
                when num_nonnulls((p.x).type, (p.x).args, (p.x).queue) = p.fields and json_typeof((p.x).type) = 'string'
                    and (json_typeof((p.x).queue) = 'string') is not false then null
                when ojs._plain_fields(p.x, p.fields) then null
                else ojs._indexed(ojs._shape_refusal(p.job, p.n), p.n) end as refusal
            from (
                select e.n::int - 1 as n, e.job, json_populate_record(null::ojs._job_fields, r.job) as x,
                    (select count(*) from (select json_object_keys(r.job) offset 0) k) as fields
                from json_array_elements(p_jobs) with ordinality e(job, n)
                cross join lateral (
                    select case when json_typeof(e.job) = 'object' and ojs._readable(e.job) then e.job else '{}' end as job
                ) r
                offset 0
            ) p
            offset 0
        ) j
        offset 0
    ) s
$$;
comment on function ojs._shaped_jobs(json) is
'Returns the fields of each job of an array, as JSON; for a job that cannot be read only the
refusal. Becomes part of the query that asks.';

create or replace function ojs._plain_fields(p_job ojs._job_fields, p_fields bigint) returns boolean
language sql stable
as $$
    select num_nonnulls(p.type, p.args, p.queue, p.priority, p.scheduled_at, p.expires_at, p.meta, p.retry, p.max_attempts, p.timeout_ms,
            p.visibility_timeout_ms, p.tags, p.pending, p.options, p.extra, p.id, coalesce(p.tenant, p.tenant_id)) = p_fields
        and json_typeof(p.type) = 'string' and (json_typeof(p.queue) = 'string') is not false
        and (json_typeof(coalesce(p.tenant, p.tenant_id)) = 'string') is not false and (p.priority::text ~ '^-?[0-9]{1,9}$') is not false
        and (p.max_attempts::text ~ '^-?[0-9]{1,9}$') is not false and (p.timeout_ms::text ~ '^-?[0-9]{1,9}$') is not false
        and (p.visibility_timeout_ms::text ~ '^-?[0-9]{1,9}$') is not false and ojs._plain_uuid(p.id) is not false
        and ojs._plain_time(p.scheduled_at) is not false and ojs._plain_time(p.expires_at) is not false
        and (p.meta is null or json_typeof(p.meta) = 'object' and ojs._plain_json(p.meta) and ojs._fits_jsonb(p.meta))
        and (p.retry is null or json_typeof(p.retry) = 'object' and ojs._plain_json(p.retry) and ojs._fits_jsonb(p.retry))
        and (p.tags::text ~ E'^[[]"[^"\\\\]*"(,"[^"\\\\]*")*[]]$') is not false and (json_typeof(p.pending) = 'boolean') is not false
        and (json_typeof(p.options) = 'object') is not false and (json_typeof(p.extra) = 'object') is not false
    from (select (p_job).*) p
$$;
comment on function ojs._plain_fields(ojs._job_fields, bigint) is
'Returns whether a job in JSON can certainly be read: it has p_fields fields, all of them known,
each of the right type.';

create or replace function ojs._shape_refusal(p_job json, p_n int) returns ojs.refusal
language plpgsql stable
as $$
declare
    v_field record;
    v_name  text;
    v_bad   text;
    v_lacks ojs.violation;
begin
    if json_typeof(p_job) <> 'object' then
        return row('OJ400', format('jobs[%s] must be a JSON object', p_n), '{"field": ""}')::ojs.refusal;
    end if;
    for v_field in
        select x.key, x.value, ojs._new_job_fields() ->> x.key as kind, json_typeof(x.value) as given,
            lag(x.key) over (order by x.key) = x.key as again
        from json_each(p_job) x
    loop
        v_name := v_field.key;
        if v_field.kind is null then
            v_lacks := ojs._lacking(null, json_build_object(v_name, v_field.value));
            if v_lacks.sqlstate is not null then
                return row(v_lacks.sqlstate, format('jobs[%s]: %s', p_n, v_lacks.message),
                    jsonb_build_object('field', v_name))::ojs.refusal;
            end if;
        end if;
        v_bad := case when v_field.kind is null then format('has an unknown field %I', v_name)
                || coalesce('; ' || ojs._meant_field(v_name) || ' is probably meant', '')
            when v_field.again then format('has the field %I twice', v_name)
            when v_name = 'tenant_id' and p_job ->> 'tenant' <> p_job ->> 'tenant_id' then 'names another tenant in tenant_id'
            when v_field.given <> 'null' then ojs._field_fault(v_name, v_field.kind, v_field.value) end;
        if v_bad is not null then
            return row('OJ400', format('jobs[%s] %s', p_n, v_bad), jsonb_build_object('field', v_name))::ojs.refusal;
        end if;
    end loop;
    return null;
exception when data_exception or statement_too_complex then
    -- The caller gets PostgreSQL's message. If PostgreSQL cannot parse the text, there is no field
    -- to name.
    return row(sqlstate, format('jobs[%s]: %s', p_n, sqlerrm),
        case when v_name is null then '{}' else jsonb_build_object('field', v_name) end)::ojs.refusal;
end;
$$;
comment on function ojs._shape_refusal(json, int) is
'Returns why job p_n of several cannot be read, or null. Reasons: it is no object; a field is
unknown or repeated; a value does not have its field''s type.';

create or replace function ojs._new_job_fields() returns jsonb
language sql immutable
as $$
    select '{"type": "string", "args": "array", "queue": "string", "priority": "integer", "scheduled_at": "string", "expires_at": "string",
        "meta": "object", "retry": "object", "max_attempts": "integer", "timeout_ms": "integer", "visibility_timeout_ms": "integer",
        "tags": "array", "pending": "boolean", "options": "object", "extra": "object", "id": "string", "tenant": "string",
        "tenant_id": "string"}'::jsonb
$$;
comment on function ojs._new_job_fields() is
'Returns the fields of a new job in JSON, and the type of each. tenant_id is another name of
tenant.';

-- json_populate_record would accept a number for a text and a text for a number, and jsonb would
-- keep one of two equal keys in meta. So values are checked before.
create or replace function ojs._field_fault(p_name text, p_kind text, p_value json) returns text
language plpgsql stable
as $$
begin
    if p_kind = 'integer' then
        if json_typeof(p_value) <> 'number' or p_value::text !~ '^-?[0-9]{1,10}$' then
            return format('%I must be an integer', p_name);
        end if;
        perform p_value::text::int;
    elsif json_typeof(p_value) <> p_kind then
        return format('%I must be a JSON %s', p_name, p_kind);
    elsif p_name in ('scheduled_at', 'expires_at') then
        -- Raises PostgreSQL's error about a time such as the 30th of February. A text that has not
        -- the form of a time is refused later, with the other rules.
        perform ojs._when(p_value #>> '{}', ojs.now());
    elsif p_name = 'tags' then
        if exists (select from json_array_elements(p_value) t where json_typeof(t) <> 'string') then
            return 'tags must be strings';
        end if;
    elsif p_name in ('meta', 'retry') then
        if ojs._repeats_key(p_value) then
            return format('%I holds an object with the same key twice', p_name);
        end if;
        perform p_value::jsonb;
    elsif p_name = 'id' then
        perform (p_value #>> '{}')::uuid;
    end if;
    return null;
end;
$$;
comment on function ojs._field_fault(text, text, json) is
'Returns what is wrong with the value of a field of a new job, or null. Raises PostgreSQL''s error
about a value that it cannot convert.';

create or replace function ojs._when(p_text text, p_now timestamptz) returns timestamptz
language sql stable
as $$
    select case when not ojs._tells_time(p_text) then null
        when left(p_text, 1) = '+' then ojs._later(p_now, ojs._duration(substr(p_text, 2)))
        else p_text::timestamptz end
$$;
comment on function ojs._when(text, timestamptz) is
'Returns the time that a text gives: a time with an offset, or + and an ISO 8601 duration from p_now
on; null if the text is neither. Becomes part of the query that asks.';

create or replace function ojs._not_a_time(p_field text, p_n int) returns ojs.refusal
language sql immutable
as $$
    select row('OJ400', format('jobs[%s] %I %s', p_n, p_field, r.fault),
        jsonb_build_object('field', p_field, 'fault', r.fault))::ojs.refusal
    from (select 'must be a time with an offset, or + and an ISO 8601 duration such as +PT90S' as fault) r
$$;
comment on function ojs._not_a_time(text, int) is
'Returns the refusal of job p_n of several, whose field p_field has a text that is no time.';

create or replace function ojs._tells_time(p_text text) returns boolean
language sql immutable
as $$
    select p_text like '+%'
        or p_text ~ E'^\\d{4,6}-\\d\\d-\\d\\d[T ]\\d\\d:\\d\\d(:\\d\\d([.]\\d+)?)?(Z|[-+]\\d\\d(:?\\d\\d)?)$'
$$;
comment on function ojs._tells_time(text) is
'Returns whether a text has the form of a time. PostgreSQL would accept more: tomorrow, and
02/03/2031 by the settings of the session.';
