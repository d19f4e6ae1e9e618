-- Makes jobs given field by field. For servers.
-- Locks nothing; for jobs with an id, waits for transactions that add jobs of the same ids.
-- Writes job, journal; timer for jobs that are scheduled or expire.
create or replace function ojs.enqueue_rows(
    p_types text[], p_args json[], p_queues text[] default null, p_priorities int[] default null, p_scheduled_at text[] default null,
    p_expires_at text[] default null, p_metas jsonb[] default null, p_retries jsonb[] default null, p_max_attempts int[] default null,
    p_timeouts_ms int[] default null, p_visibility_timeouts_ms int[] default null, p_tags json[] default null,
    p_pending boolean[] default null, p_options json[] default null, p_extras json[] default null, p_ids uuid[] default null,
    p_tenants text[] default null, p_tenant text default null, p_each boolean default false
) returns table (n int, sqlstate text, message text, detail jsonb, tenant_id text, id uuid, state ojs.job_state, max_attempts int,
    created_at timestamptz, scheduled_at timestamptz, expires_at timestamptz, meta jsonb, retry jsonb, priority int)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_jobs ojs._new_jobs := row(p_types, p_args, p_queues, p_priorities, p_scheduled_at, p_expires_at, p_metas, p_retries, p_max_attempts,
        p_timeouts_ms, p_visibility_timeouts_ms, p_tags, p_pending, p_options, p_extras, p_ids, p_tenants, null);
begin
    if (cardinality(p_types) between 1 and 10000) is not true then
        perform ojs._raise('OJ400', 'there must be between 1 and 10000 jobs', '{"field": "types"}');
    elsif num_nonnulls(p_scheduled_at, p_expires_at) > 0 then
        -- Convert the times here: for the 30th of February PostgreSQL raises an error, which in
        -- ojs._insert_jobs would show that whole statement.
        perform ojs._when(t, ojs.now()) from unnest(p_scheduled_at || p_expires_at) t;
    end if;
    return query
    select o.n, o.sqlstate, o.message, o.detail, o.tenant_id, o.id, o.state, o.max_attempts, o.created_at, o.scheduled_at, o.expires_at,
        nullif(o.meta, '{}'), o.retry, o.priority
    from ojs._insert_jobs(v_jobs, p_tenant, p_each) o where p_each or o.sqlstate is null or ojs._raise(o.sqlstate, o.message, o.detail);
end;
$$;
comment on function ojs.enqueue_rows(
    text[], json[], text[], int[], text[], text[], jsonb[], jsonb[], int[], int[], int[], json[], boolean[], json[], json[], uuid[], text[],
    text, boolean) is
'Enqueues 1 to 10000 jobs given field by field, and returns a row per job.
The lists: element i of each is of job i; a null element, or a null list, gives no value. The fields
are those of ojs.enqueue_many, with tags as JSON arrays.
p_each: each job succeeds or fails alone; else all or none.
Each row has n, from 0, and then what the caller could not know of the job (meta null: none), or
sqlstate, message and detail. Rows of jobs that failed are last. Raises what ojs.enqueue_many
raises.';

-- Every function that enqueues several jobs ends in this statement. It raises no error: an error
-- shows the statement that raised it, and this one is two pages long. If all or none are to be
-- enqueued and one job fails, the other jobs are left out, too, because inserting and undoing them
-- would leave dead rows. Only an id that the caller chose may exist already; checking for a
-- conflict takes time, so only the insert of such jobs does it.
create or replace function ojs._insert_jobs(p_jobs ojs._new_jobs, p_tenant text, p_each boolean) returns setof ojs._outcome
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_own    text := ojs._session_tenant(null);
    v_tenant text := ojs._session_tenant(p_tenant);
    v_latest uuid := ojs._latest_id();
begin
    return query
    with given as materialized (
        select g.*, ojs._size(g.args, g.meta, g.tags, g.retry, g.options, g.extra) as bytes, coalesce(g.given_id, ojs._uuid_v7()) as id,
            case when g.state = 'available' then nextval('ojs.job_seq') end as seq
        from ojs._judged_jobs(p_jobs, v_own, v_tenant, p_tenant, v_now, v_latest) g
    ), beyond as materialized (
        select b.* from ojs._beyond_limits(array(select row(g.n, g.tenant_id, g.queue, g.state, g.bytes)::ojs._new_place from given g
            where g.refusal is null), p_each) b where exists (select from ojs.allowance)
        union all select g.n, g.refusal from given g where not p_each and exists (select from given b where not b.refusal is null)
    ), allowed as not materialized (select g.* from given g where g.refusal is null and g.n not in (select b.n from beyond b)
    ), added as (
        insert into ojs.job (state, seq, enqueued_at, created_at, tenant_id, id, queue, type, priority, max_attempts, scheduled_at,
            expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
        select g.state, g.seq, v_now, v_now, g.tenant_id, g.id, g.queue, g.type, g.priority, g.max_attempts, g.scheduled_at,
            g.expires_at, g.timeout_ms, g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra
        from allowed g where g.given_id is null
    ), named as (
        insert into ojs.job (state, seq, enqueued_at, created_at, tenant_id, id, queue, type, priority, max_attempts, scheduled_at,
            expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
        select g.state, g.seq, v_now, v_now, g.tenant_id, g.id, g.queue, g.type, g.priority, g.max_attempts, g.scheduled_at,
            g.expires_at, g.timeout_ms, g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra
        from allowed g where g.given_id is not null
        on conflict do nothing returning id, tenant_id
    ), twice as materialized (
        select d.n, ojs._indexed(ojs._duplicate(d.id), d.n) as refusal from (
            select g.*, row_number() over (partition by g.id, g.tenant_id order by g.n) as nth from allowed g where g.given_id is not null
        ) d where d.nth > 1 or (d.id, d.tenant_id) not in (select a.id, a.tenant_id from named a)
    ), kept as not materialized (select g.* from allowed g where g.given_id is null or g.n not in (select t.n from twice t)
    ), noted as (
        insert into ojs.journal as w (tenant_id, queue, priority, to_state, jobs, lo, hi)
        select k.tenant_id, k.queue, k.priority, k.state, count(*), min(k.seq), max(k.seq)
        from kept k group by k.tenant_id, k.queue, k.priority, k.state
        returning case when w.to_state = 'available' then w.queue end as awaited
    ), told as materialized (
        select ojs._notify(array_agg(distinct n.awaited)) from noted n having count(n.awaited) > 0 union all
        select ojs._remind(r.kind, array_agg(r.at), array_agg(k.tenant_id), array_agg(k.id)) from kept k
        cross join lateral (values ('due'::ojs.timer_kind, k.scheduled_at, k.state = 'scheduled'), ('expiry', k.expires_at, true))
            r(kind, at, told) where r.told and r.at is not null group by r.kind union all
        select ojs._give_back(ojs._allowances(g.tenant_id, g.queue), ojs._wanted(1, g.state, g.bytes, true))
        from twice join given g using (n)
    )
    select k.n, null::text, null::text, null::jsonb, k.state, 0, null::uuid, null::timestamptz, null::timestamptz, null::timestamptz,
        null::timestamptz, v_now, null::text, null::int, null::real, null::jsonb, null::json, k.seq, k.tenant_id, k.id, k.queue, k.type,
        k.priority, (k.has).max_attempts, v_now, k.scheduled_at, k.expires_at, (k.has).timeout_ms, (k.has).visibility_timeout_ms, k.tags,
        k.args, k.meta, (k.has).retry, k.options, k.extra
    from (select k.*, case when (select ojs._ruled()) then ojs._defaulted(k.queue, s.says) else s.says end as has from kept k
        cross join lateral (select row(k.max_attempts, k.retry, k.timeout_ms, k.visibility_timeout_ms)::ojs._defaults says) s offset 0) k,
        (select count(*) from told) t union all
    select o.* from (select g.n, g.refusal from given g where not g.refusal is null union all table twice union all table beyond) r
    cross join lateral jsonb_populate_record(null::ojs._outcome, to_jsonb(r.refusal) || jsonb_build_object('n', r.n)) o;
end;
$$;
comment on function ojs._insert_jobs(ojs._new_jobs, text, boolean) is
'Enqueues several jobs, and returns a row per job in the order given, jobs that failed last.
p_each: each job succeeds or fails alone. Else the caller has to raise the first failure, which
undoes the other jobs.';

create or replace function ojs._judged_jobs(
    p_jobs ojs._new_jobs, p_own text, p_tenant text, p_call text, p_now timestamptz, p_latest uuid
) returns table (n int, refusal ojs.refusal, tenant_id text, given_id uuid, state ojs.job_state, queue text, type text, priority int,
    max_attempts int, scheduled_at timestamptz, expires_at timestamptz, timeout_ms int, visibility_timeout_ms int, tags text[], args json,
    meta jsonb, retry jsonb, options json, extra json)
language sql stable
as $$
    select g.n, coalesce(case
            when g.sqlstate is not null then row(g.sqlstate, g.message, g.detail)::ojs.refusal
            when g.untold is not null then ojs._indexed(ojs._not_a_time(g.untold, g.n), g.n)
            when (g.named = p_tenant) is not false
                and (g.names or ojs._ordinary_names(g.tenant_id, g.type, g.queue))
                and ojs._ordinary_id(g.id, p_latest)
                and ojs._ordinary_rest(g.tenant_id, g.priority, g.max_attempts, g.scheduled_at, g.expires_at, g.timeout_ms,
                    g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra) then null
            else ojs._new_job_refusal(g.n, p_own, p_call, g.named, g.tenant_id, g.id, g.type, g.queue, g.priority, g.max_attempts,
                g.scheduled_at, g.expires_at, g.timeout_ms, g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra)
            end, case when g.bars then ojs._indexed(ojs._barred(g.tenant_id, g.n), g.n) end,
            case when g.priority > g.lowest then ojs._indexed(ojs._too_high(g.tenant_id, g.priority, g.n), g.n) end),
        g.tenant_id, g.id, ojs._first_state(g.pending, g.scheduled_at, p_now), g.queue, g.type,
        case when g.priority > g.lowest then ojs._clamped(g.tenant_id, g.priority) else g.priority end, g.max_attempts,
        g.scheduled_at, g.expires_at, g.timeout_ms, g.visibility_timeout_ms, g.tags, g.args, g.meta, g.retry, g.options, g.extra
    from (
        select (u.n - 1)::int as n, u.type, u.args, coalesce(u.queue, 'default') as queue, coalesce(u.priority, 0) as priority,
            w.scheduled_at, w.expires_at, case when u.scheduled_at is not null and w.scheduled_at is null then 'scheduled_at'
                when u.expires_at is not null and w.expires_at is null then 'expires_at' end as untold,
            coalesce(u.meta, '{}') as meta, u.retry, ojs._attempts(u.max_attempts, u.retry) as max_attempts, u.timeout_ms,
            u.visibility_timeout_ms, case when u.tags is not null then ojs._tags(u.tags) end as tags,
            u.pending, u.options, u.extra, u.id, u.tenant as named, u.sqlstate, u.message, u.detail,
            coalesce(u.tenant, p_tenant, u.meta ->> 'tenant_id', case when not s.tenant_required then s.default_tenant end) as tenant_id,
            s.lowest_max_priority as lowest, s.bars,
            coalesce((select bool_and(ojs._ordinary_names(coalesce(d.tenant, p_tenant), d.type, coalesce(d.queue, 'default')))
                from (select distinct t.type, t.queue, t.tenant
                    from unnest((p_jobs).types, (p_jobs).queues, (p_jobs).tenants) t(type, queue, tenant)) d), false) as names
        from unnest((p_jobs).types, (p_jobs).args, (p_jobs).queues, (p_jobs).priorities, (p_jobs).scheduled_at, (p_jobs).expires_at,
            (p_jobs).metas, (p_jobs).retries, (p_jobs).max_attempts, (p_jobs).timeouts_ms, (p_jobs).visibility_timeouts_ms, (p_jobs).tags,
            (p_jobs).pending, (p_jobs).options, (p_jobs).extras, (p_jobs).ids, (p_jobs).tenants, (p_jobs).refusals)
            with ordinality u(type, args, queue, priority, scheduled_at, expires_at, meta, retry, max_attempts, timeout_ms,
                visibility_timeout_ms, tags, pending, options, extra, id, tenant, sqlstate, message, detail, n)
        cross join lateral (select ojs._when(u.scheduled_at, p_now) as scheduled_at, ojs._when(u.expires_at, p_now) as expires_at) w
        left join ojs.settings s on true
        offset 0
    ) g
    offset 0
$$;
comment on function ojs._judged_jobs(ojs._new_jobs, text, text, text, timestamptz, uuid) is
'Returns new jobs with defaults filled in, each with why it is refused, or null.
p_own: the tenant of the role that logged in; p_tenant: the tenant that the call acts for; p_call:
the tenant that the call names; p_latest: ojs._latest_id().';

create or replace function ojs._new_job_refusal(
    p_n int, p_own text, p_call text, p_named text, p_tenant text, p_id uuid, p_type text, p_queue text, p_priority int,
    p_max_attempts int, p_scheduled_at timestamptz, p_expires_at timestamptz, p_timeout_ms int, p_visibility_timeout_ms int, p_tags text[],
    p_args json, p_meta jsonb, p_retry jsonb, p_options json, p_extra json
) returns ojs.refusal
language plpgsql stable
as $$
declare
    v_violation ojs.violation;
    v_refusal   ojs.refusal := case
        when p_named <> p_call then
            row('OJ405', format('jobs[%s] names another tenant than the call', p_n), '{"field": "tenant"}')::ojs.refusal
        when p_named is not null then ojs._tenant_refusal(p_own, p_named)
        when p_call is null and p_own is null then ojs._unnamed_refusal(p_meta) end;
begin
    if v_refusal is null then
        v_violation := ojs._job_violation(p_tenant, p_id, p_type, p_queue, p_priority, p_max_attempts, p_scheduled_at, p_expires_at,
            p_timeout_ms, p_visibility_timeout_ms, p_tags, p_args, p_meta, p_retry, p_options, p_extra);
        if v_violation is null then
            return null;
        end if;
        v_refusal := row(v_violation.sqlstate, format('jobs[%s]: %s', p_n, v_violation.message),
            ojs._with_fault(jsonb_build_object('field', v_violation.field), v_violation.message));
    end if;
    return ojs._indexed(v_refusal, p_n);
end;
$$;
comment on function ojs._new_job_refusal(
    int, text, text, text, text, uuid, text, text, int, int, timestamptz, timestamptz, int, int, text[], json, jsonb, jsonb, json, json) is
'Returns why job p_n of several is refused, or null. p_named: the tenant that the job names;
p_tenant: the tenant that it belongs to.';

create or replace function ojs._indexed(p_refusal ojs.refusal, p_n int) returns ojs.refusal
language plpgsql immutable
as $$
begin
    if p_refusal is null then
        return null;
    end if;
    p_refusal.detail := coalesce(ojs._with_fault(p_refusal.detail, p_refusal.message), '{}') || jsonb_build_object('index', p_n);
    return p_refusal;
end;
$$;
comment on function ojs._indexed(ojs.refusal, int) is
'Returns a refusal with the index of its job, p_n, in the detail.';

create or replace function ojs._tags(p_tags json) returns text[]
language sql immutable
as $$
    select array_agg(case when json_typeof(t.tag) = 'string' then t.tag #>> '{}' end order by t.n)
    from json_array_elements(case when json_typeof(p_tags) = 'array' then p_tags else '[null]' end) with ordinality t(tag, n)
$$;
comment on function ojs._tags(json) is
'Returns tags as an array of text. An element that is no string becomes null, which the rules
refuse.';

create or replace function ojs._duplicate(p_id uuid) returns ojs.refusal
language sql immutable
as $$ select row('OJ410', format('job %s exists already', p_id), jsonb_build_object('field', 'id', 'job_id', p_id))::ojs.refusal $$;
comment on function ojs._duplicate(uuid) is
'Returns the refusal of a job whose id another job of the tenant has.';

create or replace function ojs._remind(p_kind ojs.timer_kind, p_due timestamptz[], p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
begin
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select j.due_at, p_kind, array_agg(j.tenant_id), array_agg(j.id)
    from (
        select u.*, (row_number() over (partition by u.due_at order by u.n) - 1) / 1000 as part
        from unnest(p_due, p_tenants, p_ids) with ordinality u(due_at, tenant_id, id, n)
    ) j
    group by j.due_at, j.part;
end;
$$;
comment on function ojs._remind(ojs.timer_kind, timestamptz[], text[], uuid[]) is
'Sets timers for jobs: a row for each time and thousand jobs. The lists are in step.';

-- Makes jobs that differ in their args only.
-- Locks nothing.
-- Writes job, journal; timer for jobs that are scheduled or expire.
create or replace function ojs.enqueue_bulk(
    p_type text, p_args json[], p_queue text default 'default', p_priority int default 0, p_scheduled_at timestamptz default null,
    p_expires_at timestamptz default null, p_meta anycompatible default '{}', p_retry anycompatible default null,
    p_max_attempts int default null, p_timeout_ms int default null, p_visibility_timeout_ms int default null, p_tags text[] default null,
    p_tenant text default null
) returns setof uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_meta));
    v_meta   jsonb := p_meta::jsonb;
    v_retry  jsonb := p_retry::jsonb;
    v_tenant text := coalesce(ojs._session_tenant(p_tenant), ojs._unnamed_tenant(v_meta));
    v_n      int[] := array[cardinality(p_args)];
    v_jobs   ojs._new_jobs;
begin
    if p_args is null or cardinality(p_args) not between 1 and 10000 or array_ndims(p_args) <> 1 then
        perform ojs._raise('OJ400', 'args must hold between 1 and 10000 arrays, one for each job', '{"field": "args"}');
    end if;
    -- In the lists below a null stands for the default. As a parameter of this function a null is a
    -- mistake, which this check raises.
    perform ojs._check_job(v_tenant, null, p_type, p_queue, p_priority, ojs._attempts(p_max_attempts, v_retry), p_scheduled_at,
        p_expires_at, p_timeout_ms, p_visibility_timeout_ms, p_tags, '[]', v_meta, v_retry, null, null);
    v_jobs.types := array_fill(p_type, v_n);
    v_jobs.args := p_args;
    v_jobs.queues := array_fill(p_queue, v_n);
    v_jobs.priorities := case when p_priority <> 0 then array_fill(p_priority, v_n) end;
    v_jobs.scheduled_at := case when p_scheduled_at is not null then array_fill(ojs._utc(p_scheduled_at), v_n) end;
    v_jobs.expires_at := case when p_expires_at is not null then array_fill(ojs._utc(p_expires_at), v_n) end;
    v_jobs.metas := case when v_meta <> '{}' then array_fill(v_meta, v_n) end;
    v_jobs.retries := case when v_retry is not null then array_fill(v_retry, v_n) end;
    v_jobs.max_attempts := case when p_max_attempts is not null then array_fill(p_max_attempts, v_n) end;
    v_jobs.timeouts_ms := case when p_timeout_ms is not null then array_fill(p_timeout_ms, v_n) end;
    v_jobs.visibility_timeouts_ms := case when p_visibility_timeout_ms is not null then array_fill(p_visibility_timeout_ms, v_n) end;
    v_jobs.tags := case when p_tags is not null then array_fill(array_to_json(p_tags), v_n) end;
    return query select j.id from ojs._insert_all(v_jobs, v_tenant) j;
end;
$$;
comment on function ojs.enqueue_bulk(
    text, json[], text, int, timestamptz, timestamptz, anycompatible, anycompatible, int, int, int, text[], text) is
'Enqueues 1 to 10000 jobs that differ in their args only, and returns their ids.
The ids are in the order of p_args.
It enqueues all or none, in the caller''s transaction. This is the fastest way to enqueue many jobs.
p_args: a JSON array for each job. The other parameters are those of ojs.enqueue.
Raises what ojs.enqueue raises; the detail of a problem with args names index and field.';
