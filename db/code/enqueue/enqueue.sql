-- Makes one job.
-- Locks nothing; with p_id, waits for a transaction that adds a job of the same id. With limits on
-- enqueueing, locks a row of ojs.stripe for each.
-- Writes job, journal; timer for a job that is scheduled or expires; stripe.
create or replace function ojs.enqueue(
    p_type text, p_args text default '[]', p_queue text default 'default', p_priority int default 0,
    p_scheduled_at timestamptz default null, p_expires_at timestamptz default null, p_meta anycompatible default '{}',
    p_retry anycompatible default null, p_max_attempts int default null, p_timeout_ms int default null,
    p_visibility_timeout_ms int default null, p_tags text[] default null, p_pending boolean default false,
    p_options anycompatible default null, p_extra anycompatible default null, p_id uuid default null, p_tenant text default null
) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_meta));
    v_tenant text := case when ojs._trusted() then p_tenant else ojs._session_tenant(p_tenant) end;
    v_now    timestamptz := ojs.now();
    v_args   json := p_args::json;
    v_made   record;
begin
    -- An ordinary job takes this branch. It has few expressions, because PostgreSQL prepares each
    -- one anew in every transaction.
    if num_nonnulls(p_tags, p_retry, p_options, p_extra, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_id,
            p_max_attempts) = 0 and not p_pending and ojs._bare_job(v_tenant, p_type, p_queue, p_priority, v_args, p_meta::jsonb) then
        with made as (
            insert into ojs.job as j (enqueued_at, created_at, tenant_id, queue, type, priority, args)
            values (v_now, v_now, v_tenant, p_queue, p_type, p_priority, v_args)
            returning j as job, j.priority, j.seq
        ), noted as (
            insert into ojs.journal (tenant_id, queue, priority, to_state, jobs, lo, hi, at)
            select v_tenant, p_queue, m.priority, 'available', 1, m.seq, m.seq, v_now from made m
        )
        select m.job, exists (select from ojs.waiter w where w.queue = p_queue) as awaited,
            (select array_agg(a) from ojs.allowance a where a.tenant_id in ('', v_tenant) and a.queue in ('', p_queue)) as allowances
        into v_made from made m;
        if v_made.allowances is not null then
            perform ojs._admit_one(v_made.allowances, v_tenant, p_queue, 'available', ojs._size(v_args, p_meta::jsonb));
        end if;
        if v_made.awaited then
            perform ojs._notify(array[p_queue]);
        end if;
        return v_made.job;
    end if;
    return ojs._enqueue_one(p_type, v_args, p_queue, p_priority, p_scheduled_at, p_expires_at, p_meta::jsonb, p_retry::jsonb,
        ojs._attempts(p_max_attempts, p_retry::jsonb), p_timeout_ms, p_visibility_timeout_ms, p_tags, p_pending,
        p_options::json, p_extra::json, p_id, coalesce(v_tenant, ojs._unnamed_tenant(p_meta::jsonb)), v_now);
end;
$$;
comment on function ojs.enqueue(
    text, text, text, int, timestamptz, timestamptz, anycompatible, anycompatible, int, int, int, text[], boolean, anycompatible,
    anycompatible, uuid, text) is
'Enqueues one job in the caller''s transaction and returns it (ojs-core section 7.1).
It exists when the transaction commits, and then wakes a waiting worker; after set local ojs.notify
= ''off'', for two-phase commit, the worker finds it within 25 seconds.
p_args, p_meta, p_retry, p_options, p_extra: json, jsonb or text, all but p_args of one type. As
json or text p_args, p_options and p_extra are kept byte for byte. p_options and p_extra are JSON
objects.
p_scheduled_at: in the future: the job is scheduled. p_pending: it is pending until ojs.activate.
Otherwise it is available.
p_expires_at: from then on it is not handed out any more.
p_retry: retry policy (ojs-retry); p_max_attempts overrides its max_attempts; default 3.
p_timeout_ms, p_visibility_timeout_ms: milliseconds.
p_id: a UUIDv7 that the caller chose, of at most a day ahead; default a new one.
p_tenant: a tenant''s login role needs none; others name it here or in p_meta ->> ''tenant_id'',
else it is the default tenant.
Raises invalid_request, invalid_payload, validation_error, payload_too_large (field in the detail),
duplicate, TENANT_REQUIRED, TENANT_ACCESS_DENIED, TENANT_MISMATCH, TENANT_SUSPENDED, TENANT_UNKNOWN,
TENANT_LIMIT_EXCEEDED, QUEUE_FULL.';

create or replace function ojs._enqueue_one(
    p_type text, p_args json, p_queue text, p_priority int, p_scheduled_at timestamptz, p_expires_at timestamptz, p_meta jsonb,
    p_retry jsonb, p_max_attempts int, p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[], p_pending boolean, p_options json,
    p_extra json, p_id uuid, p_tenant text, p_now timestamptz
) returns ojs.job
language plpgsql
as $$
declare
    v_state ojs.job_state := ojs._first_state(p_pending, p_scheduled_at, p_now);
    v_job   ojs.job;
begin
    perform ojs._check_job(p_tenant, p_id, p_type, p_queue, p_priority, p_max_attempts, p_scheduled_at, p_expires_at, p_timeout_ms,
        p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra);
    insert into ojs.job (id, state, seq, enqueued_at, created_at, tenant_id, queue, type, priority, max_attempts, scheduled_at, expires_at,
        timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
    values (coalesce(p_id, ojs._uuid_v7()), v_state, case when v_state = 'available' then nextval('ojs.job_seq') end, p_now, p_now,
        p_tenant, p_queue, p_type, p_priority, p_max_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags,
        p_args, p_meta, p_retry, p_options, p_extra)
    on conflict do nothing
    returning * into v_job;
    if not found then
        perform ojs._raise('OJ410', format('job %s exists already', p_id), jsonb_build_object('field', 'id', 'job_id', p_id));
    end if;
    perform ojs._admit_one(array_agg(a), p_tenant, p_queue, v_state, ojs._size(p_args, p_meta, p_tags, p_retry, p_options, p_extra))
    from ojs.allowance a where a.tenant_id in ('', p_tenant) and a.queue in ('', p_queue) having count(*) > 0;
    insert into ojs.journal (tenant_id, queue, priority, to_state, jobs, lo, hi, at)
    values (p_tenant, p_queue, v_job.priority, v_state, 1, v_job.seq, v_job.seq, p_now);
    if v_state = 'available' then
        perform ojs._notify(array[p_queue]);
    end if;
    if v_state = 'scheduled' then
        perform ojs._remind('due', array[p_scheduled_at], array[p_tenant], array[v_job.id]);
    end if;
    if p_expires_at is not null then
        perform ojs._remind('expiry', array[p_expires_at], array[p_tenant], array[v_job.id]);
    end if;
    return v_job;
end;
$$;
comment on function ojs._enqueue_one(
    text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text, timestamptz) is
'Does what ojs.enqueue does for a job that is not ordinary: checks it by all rules, in any first
state, and sets its timers.';

create or replace function ojs._first_state(p_pending boolean, p_scheduled_at timestamptz, p_now timestamptz) returns ojs.job_state
language sql stable
as $$ select case when p_pending then 'pending' when p_scheduled_at > p_now then 'scheduled' else 'available' end::ojs.job_state $$;
comment on function ojs._first_state(boolean, timestamptz, timestamptz) is
'Returns the state of a new job.';

create or replace function ojs._unnamed_tenant(p_meta jsonb) returns text
language plpgsql stable
as $$
declare
    v_refusal ojs.refusal := ojs._unnamed_refusal(p_meta);
begin
    if v_refusal is null then
        return coalesce(nullif(case when jsonb_typeof(p_meta -> 'tenant_id') = 'string' then p_meta ->> 'tenant_id' end, ''),
            (select s.default_tenant from ojs.settings s));
    end if;
    perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
end;
$$;
comment on function ojs._unnamed_tenant(jsonb) is
'Returns the tenant of a new job for which the call names none: meta.tenant_id, else the default
tenant. Raises what ojs._unnamed_refusal returns.';

create or replace function ojs._unnamed_refusal(p_meta jsonb) returns ojs.refusal
language sql stable
as $$
    select case
        when jsonb_typeof(p_meta -> 'tenant_id') = 'string' and p_meta ->> 'tenant_id' <> '' then
            case when not ojs._tenant_valid(p_meta ->> 'tenant_id') then
                row('OJ400', 'meta.tenant_id must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes',
                    '{"field": "meta.tenant_id"}')::ojs.refusal end
        when (select s.tenant_required from ojs.settings s) then
            row('OJ402', 'a tenant is required', '{"field": "meta.tenant_id"}')::ojs.refusal
        end
$$;
comment on function ojs._unnamed_refusal(jsonb) is
'Returns why a new job for which the call names no tenant is refused, or null.';

-- A view, because it gives the row type all columns of ojs.job. A "create type" would have to list
-- them, and to be kept in step.
create or replace view ojs._outcome with (security_invoker = true) as
select 0 as n, null::text as sqlstate, null::text as message, null::jsonb as detail, j.* from ojs.job j where false;
comment on view ojs._outcome is
'Row type of calls in which each job succeeds or fails alone; holds no rows. n: the number of the
job, from 0. sqlstate, message, detail: the problem as it would be raised; the columns of the job
are null then.';
