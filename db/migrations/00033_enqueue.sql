-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._first_state(p_pending boolean, p_scheduled_at timestamptz, p_now timestamptz) returns ojs.job_state
language sql stable
as $$ select case when p_pending then 'pending' when p_scheduled_at > p_now then 'scheduled' else 'available' end::ojs.job_state $$;
-- +goose StatementEnd
comment on function ojs._first_state(boolean, timestamptz, timestamptz) is 'The state of a new job.';

-- +goose StatementBegin
create function ojs.enqueue(
    p_type text, p_args json default '[]', p_queue text default 'default', p_priority int default 0, p_scheduled_at timestamptz default null,
    p_expires_at timestamptz default null, p_meta jsonb default '{}', p_retry jsonb default null, p_max_attempts int default null, p_timeout_ms int default null,
    p_visibility_timeout_ms int default null, p_tags text[] default null, p_pending boolean default false, p_options json default null,
    p_extra json default null, p_id uuid default null, p_tenant text default null
) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant   text := case when ojs._trusted() then p_tenant else ojs._session_tenant(p_tenant) end;
    v_now      timestamptz := ojs.now();
    v_attempts int;
    v_state    ojs.job_state;
    v_awaited  boolean;
    v_job      ojs.job;
begin
    -- Few expressions, because each is prepared anew in every transaction.
    if num_nonnulls(p_tags, p_retry, p_options, p_extra, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_id, p_max_attempts) = 0 and not p_pending
            and ojs._simple_names(v_tenant, p_type, p_queue, p_priority) and p_meta = '{}' and ojs._flat_args(p_args) then
        insert into ojs.job (enqueued_at, created_at, tenant_id, queue, type, priority, args) values (v_now, v_now, v_tenant, p_queue, p_type, p_priority, p_args)
        returning * into v_job;
    else
        if v_tenant is null then
            v_tenant := ojs._unnamed_tenant(p_meta);
        end if;
        v_attempts := coalesce(p_max_attempts, ojs._retry_max_attempts(p_retry), 3);
        perform ojs._check_job(v_tenant, p_id, p_type, p_queue, p_priority, v_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args,
            p_meta, p_retry, p_options, p_extra);
        v_state := ojs._first_state(p_pending, p_scheduled_at, v_now);
        insert into ojs.job (id, state, seq, enqueued_at, created_at, tenant_id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms,
            visibility_timeout_ms, tags, args, meta, retry, options, extra)
        values (coalesce(p_id, ojs._uuid_v7()), v_state, case when v_state = 'available' then nextval('ojs.job_seq') end, v_now, v_now, v_tenant, p_queue, p_type, p_priority,
            v_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra)
        on conflict do nothing
        returning * into v_job;
        if not found then
            perform ojs._raise('OJ410', format('job %s exists already', p_id), jsonb_build_object('field', 'id', 'job_id', p_id));
        elsif v_state = 'scheduled' then
            insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_scheduled_at, 'due', array[v_tenant], array[v_job.id]);
        end if;
        if p_expires_at is not null then
            insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_expires_at, 'expiry', array[v_tenant], array[v_job.id]);
        end if;
    end if;
    insert into ojs.wake as k (tenant_id, queue, priority, to_state, jobs, lo, hi, at)
    values (v_tenant, p_queue, p_priority, v_job.state, 1, v_job.seq, v_job.seq, v_now)
    returning k.lo is not null and exists (select from ojs.waiter w where w.queue = p_queue) into v_awaited;
    if v_awaited then
        perform ojs._notify(array[p_queue]);
    end if;
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue(text, json, text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], boolean, json, json, uuid, text) is
'Enqueues one job in the caller''s transaction and returns it (ojs-core section 7.1). It exists when the transaction commits, and then
wakes a waiting worker. p_scheduled_at in the future: scheduled; p_pending: pending until ojs.activate; else available. p_retry: retry
policy (ojs-retry), p_max_attempts overrides its max_attempts; default 3. p_timeout_ms, p_visibility_timeout_ms: milliseconds. p_options,
p_extra: JSON objects kept byte for byte. p_id: a UUIDv7 of the caller''s, of at most a day ahead, else one is made. p_tenant: a
tenant''s login role needs none; others name it here or in p_meta ->> ''tenant_id'', else the default tenant. Raises invalid_request,
invalid_payload, validation_error, payload_too_large (field in the detail), duplicate, TENANT_REQUIRED, TENANT_ACCESS_DENIED,
TENANT_MISMATCH.';

-- +goose StatementBegin
create function ojs._unnamed_tenant(p_meta jsonb) returns text
language plpgsql stable
as $$
begin
    if jsonb_typeof(p_meta -> 'tenant_id') = 'string' and p_meta ->> 'tenant_id' <> '' then
        if not ojs._tenant_valid(p_meta ->> 'tenant_id') then
            perform ojs._raise('OJ400', 'meta.tenant_id must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "meta.tenant_id"}');
        end if;
        return p_meta ->> 'tenant_id';
    end if;
    return ojs._default_tenant();
end;
$$;
-- +goose StatementEnd
comment on function ojs._unnamed_tenant(jsonb) is
'The tenant of a new job for which the call names none: meta.tenant_id, else the default tenant.';

-- +goose StatementBegin
create function ojs.enqueue_bulk(
    p_type text, p_args json[], p_queue text default 'default', p_priority int default 0, p_scheduled_at timestamptz default null, p_expires_at timestamptz default null,
    p_meta jsonb default '{}', p_retry jsonb default null, p_max_attempts int default null, p_timeout_ms int default null, p_visibility_timeout_ms int default null,
    p_tags text[] default null, p_tenant text default null
) returns setof uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant   text := coalesce(ojs._session_tenant(p_tenant), ojs._unnamed_tenant(p_meta));
    v_attempts int := coalesce(p_max_attempts, ojs._retry_max_attempts(p_retry), 3);
    v_now      timestamptz := ojs.now();
    v_state    ojs.job_state := ojs._first_state(false, p_scheduled_at, v_now);
    v_lo       bigint;
    v_ids      uuid[];
begin
    if p_args is null or cardinality(p_args) not between 1 and 10000 or array_ndims(p_args) <> 1 then
        perform ojs._raise('OJ400', 'args must hold between 1 and 10000 arrays, one for each job', '{"field": "args"}');
    end if;
    -- What the jobs have in common is looked at once.
    perform ojs._check_job(v_tenant, null, p_type, p_queue, p_priority, v_attempts, p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, '[]', p_meta, p_retry, null, null);
    perform ojs._indexed(ojs._violation_refusal(case when a.args is null then row('OJ400', 'args', 'args is required')::ojs.violation
            else ojs._json_violation(a.args, 'args', 'array', 1048576) end, a.n::int - 1), a.n::int - 1, false)
    from unnest(p_args) with ordinality a(args, n) where ojs._flat_args(a.args) is not true;
    if v_state = 'available' then
        v_lo := nextval('ojs.job_seq');
    end if;
    if v_lo is null or p_expires_at is not null then
        -- Chosen here, because the clock is to know them; else they go to the caller without being collected.
        v_ids := array(select ojs._uuid_v7() from unnest(p_args));
    end if;
    return query
    insert into ojs.job as j (id, state, seq, enqueued_at, created_at, tenant_id, queue, type, priority, max_attempts, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms,
        tags, args, meta, retry)
    select coalesce(a.id, ojs._uuid_v7()), v_state, case when v_lo is not null then nextval('ojs.job_seq') end, v_now, v_now, v_tenant, p_queue, p_type, p_priority, v_attempts,
        p_scheduled_at, p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, a.args, p_meta, p_retry
    from unnest(p_args, v_ids) a(args, id)
    returning j.id;
    insert into ojs.wake (tenant_id, queue, priority, to_state, jobs, lo, hi)
    values (v_tenant, p_queue, p_priority, v_state, cardinality(p_args), v_lo, case when v_lo is not null then currval('ojs.job_seq') end);
    if v_lo is not null then
        perform ojs._notify(array[p_queue]);
    end if;
    if v_ids is not null then
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select t.due_at, t.kind, array_fill(v_tenant, array[cardinality(p.ids)]), p.ids
        from (select array_agg(i.id order by i.n) as ids from unnest(v_ids) with ordinality i(id, n) group by (i.n - 1) / 1000) p
        cross join (values (case when v_state = 'scheduled' then p_scheduled_at end, 'due'::ojs.timer_kind), (p_expires_at, 'expiry')) t(due_at, kind)
        where t.due_at is not null;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs.enqueue_bulk(text, json[], text, int, timestamptz, timestamptz, jsonb, jsonb, int, int, int, text[], text) is
'Enqueues 1 to 10000 jobs that differ in their args only, all or none, in the caller''s transaction: the fastest way to enqueue many.
Returns their ids in the order of p_args; the other parameters are those of ojs.enqueue. Raises what ojs.enqueue raises; the detail of a
problem with args names index and field.';
reset role;
