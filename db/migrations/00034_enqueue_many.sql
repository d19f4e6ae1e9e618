-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- A view, so that what it is made of is written once: the columns of a job, behind what went wrong instead.
create view ojs._outcome with (security_invoker = true) as
select 0 as n, null::text as sqlstate, null::text as message, null::jsonb as detail, j.* from ojs.job j where false;
comment on view ojs._outcome is
'Row type of calls in which each element succeeds or fails by itself; holds no rows. n: which element, from 0. A problem as it would be
raised: sqlstate, message, detail; then the columns of the job are null.';

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
comment on function ojs._when(text, timestamptz) is
'A time as clients write it: with an offset, or + and an ISO 8601 duration from p_now on; null if the duration is none. Becomes part of
the query that asks.';

-- +goose StatementBegin
create function ojs._tells_time(p_text text) returns boolean
language sql immutable
as $$ select p_text like '+%' or p_text ~ '^\d{4,6}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[-+]\d\d(:?\d\d)?)$' $$;
-- +goose StatementEnd
comment on function ojs._tells_time(text) is
'Whether a text has a form that ojs._when is for: PostgreSQL also reads tomorrow, and 02/03/2031 by the settings of the session.';

-- +goose StatementBegin
create function ojs._indexed(p_refusal ojs.refusal, p_n int, p_each boolean) returns ojs.refusal
language plpgsql immutable
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
comment on function ojs._indexed(ojs.refusal, int, boolean) is
'Why job p_n of several is refused, with its index; raises it unless each job succeeds or fails by itself.';

-- +goose StatementBegin
create function ojs._shape_refusal(p_job json, p_n int, p_own text, p_tenant text) returns ojs.refusal
language plpgsql stable
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
'Why job p_n of several cannot be read, or null: not an object, an unknown or repeated field, a value that is not of its field''s type, a
tenant that is not the caller''s to name. p_own: the tenant of the role that logged in; p_tenant: that of the call.';

-- +goose StatementBegin
create function ojs._tenant_of_job(p_meta jsonb, p_n int) returns ojs.refusal
language plpgsql stable
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
language plpgsql
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
'Enqueues 1 to 10000 jobs, all or none, in the caller''s transaction, and returns them in the order given. p_jobs: a JSON array of objects
whose keys are the names of ojs.enqueue''s parameters without p_ (type, args, queue, ...); scheduled_at and expires_at may be + and an
ISO 8601 duration from now on (+PT90S). Raises what ojs.enqueue raises; the detail names index and field.';

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
'Enqueues 1 to 10000 jobs of which each succeeds or fails by itself, and returns one row per job in the order given: n from 0, then either
the job, or sqlstate, message and detail of what ojs.enqueue_many would raise about it. p_jobs as for ojs.enqueue_many, each naming its
own tenant. Raises invalid_request when p_jobs as a whole is malformed. A job with the id of one that another transaction is just adding
waits for that transaction.';
reset role;
