-- Erasing the content of jobs: args, meta, options, extra, retry, tags, errors and result. The row
-- of the job stays, with its id, type, queue, state and times, and retry says that it is erased.
-- The statements that end an attempt read this mark: they keep no result and no error of an erased
-- job, and it does not run again. So an ordinary ack has no statement more. Called by tenants,
-- operators, and by ojs.upkeep for tenants that have left.

comment on type ojs.erasure is
'What a call of ojs.erase did.
jobs: how many jobs it erased; of these cancelled: waited, and were cancelled first; active: run,
and end without a result. dead_letters: how many it deleted. answers: how many answers to
idempotency keys it emptied or deleted. locked: how many jobs another session had locked; erase them
again. next: p_before of the next call; null: there are no more jobs.';

-- Erases the content of jobs, a page at a time.
-- Locks the rows of the jobs and dead letters in the order of their ids, with skip locked.
-- Writes job, release, dead_letter, dead_job, idempotency, audit.
create or replace function ojs.erase(
    p_reason text, p_ids uuid[] default null, p_states text[] default null, p_queue text default null, p_type text default null,
    p_since timestamptz default null, p_until timestamptz default null, p_before uuid default null, p_limit int default 1000,
    p_tenant text default null
) returns ojs.erasure
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_done   ojs.erasure;
begin
    if coalesce(p_reason, '') !~ '[^[:space:]]' then
        perform ojs._raise('OJ400', 'reason is required: the audit trail keeps it', '{"field": "reason"}');
    elsif p_ids is not null and cardinality(p_ids) not between 1 and 10000 then
        perform ojs._raise('OJ400', 'ids must name 1 to 10000 jobs', '{"field": "ids"}');
    elsif p_ids is not null and num_nonnulls(p_states, p_queue, p_type, p_since, p_until, p_before) > 0 then
        perform ojs._raise('OJ400', 'ids do not go with a filter', '{"field": "ids"}');
    elsif num_nonnulls(p_ids, p_states, p_queue, p_type, p_since, p_until, p_tenant) = 0 then
        perform ojs._raise('OJ400', 'ids, a filter or a tenant must be given: nothing would mean all jobs', '{"field": "ids"}');
    end if;
    perform ojs._check_limit(p_limit, 10000);
    if p_ids is not null then
        v_done := (select ojs._erase_jobs(array_agg(j.tenant_id), array_agg(j.id)) from ojs._erasable(p_ids, v_tenant) j);
    else
        v_done := ojs._erase_page(v_tenant, p_states, p_queue, p_type, p_since, p_until, p_before, p_limit);
    end if;
    -- The filter's values may be content, too, so only its names are kept.
    perform ojs._audit(v_tenant, 'jobs', null, 'erased', null, jsonb_strip_nulls(jsonb_build_object('jobs', v_done.jobs,
            'cancelled', v_done.cancelled, 'active', v_done.active, 'dead_letters', v_done.dead_letters, 'ids', cardinality(p_ids),
            'filter', (select jsonb_agg(f.name order by f.name)
                from (values ('states', p_states is not null), ('queue', p_queue is not null), ('type', p_type is not null),
                    ('since', p_since is not null), ('until', p_until is not null)) f(name, given) where f.given))), p_reason)
    -- Callers begin again while a job is locked. Passes that did nothing have no row.
    where p_before is null and v_done.locked = 0 or v_done.jobs + v_done.dead_letters + v_done.answers > 0;
    return v_done;
end;
$$;
comment on function ojs.erase(text, uuid[], text[], text, text, timestamptz, timestamptz, uuid, int, text) is
'Erases the content of jobs in any state, and returns how many (ojs.erasure).
args and meta become empty; options, extra, tags, errors and result null; retry {"erased": true}.
Id, type, queue, state and times stay. No reader sees the content from the commit on: not in jobs,
dead letters, events, results, nor in answers to idempotency keys.
Jobs that wait are cancelled. An active job goes on at its worker; the end of its attempt keeps no
result and no error, and it does not run again. A dead letter is deleted.
VACUUM removes the old versions of rows; docs/runbooks/deleting-personal-data.md names log files,
disk blocks and backups.
p_reason: required, for the audit trail, which has no content of jobs.
p_ids: 1 to 10000 jobs; else a filter, as for ojs.list_jobs: p_states, p_queue, p_type, p_since,
p_until. p_tenant: only jobs of this tenant; alone: all of its jobs, and all its answers to
idempotency keys. At least one of these is required.
p_limit: how many jobs a call erases, 1 to 10000. p_before: next of the call before. Call it, each
time in a transaction of its own, until next is null, and again from the start while locked is not
0. Jobs that commit later are not erased. Never waits. Raises invalid_request.';

create or replace function ojs._erased(p_retry jsonb) returns boolean
language sql immutable
as $$ select p_retry = '{"erased": true}' $$;
comment on function ojs._erased(jsonb) is
'Returns whether a job is erased, by its retry policy; null: it has none. No producer may set this
policy (ojs._retry_violation). Becomes part of the query that asks.';

create or replace function ojs._has_content(p_retry jsonb, p_args json, p_meta jsonb) returns boolean
language sql immutable
as $$ select (ojs._erased(p_retry) and p_args::text = '[]' and p_meta = '{}') is not true $$;
comment on function ojs._has_content(jsonb, json, jsonb) is
'Returns whether there is something of a job to erase. Becomes part of the query that asks.';

create or replace function ojs._blank(p_job ojs.job) returns ojs.job
language plpgsql immutable
as $$
begin
    p_job.args := '[]';
    p_job.meta := '{}';
    p_job.options := null;
    p_job.extra := null;
    p_job.tags := null;
    p_job.errors := null;
    p_job.result := null;
    p_job.retry := '{"erased": true}';
    return p_job;
end;
$$;
comment on function ojs._blank(ojs.job) is 'Returns a job without its content.';

create or replace function ojs._erasable(p_ids uuid[], p_tenant text) returns table (tenant_id text, id uuid)
language sql stable
as $$
    select j.tenant_id, j.id from ojs.job j where j.id = any (p_ids) and (p_tenant is null or j.tenant_id = p_tenant)
    union
    select k.tenant_id, k.id from ojs.dead_job k where k.id = any (p_ids) and (p_tenant is null or k.tenant_id = p_tenant)
    order by 2, 1
$$;
comment on function ojs._erasable(uuid[], text) is
'Returns the jobs with these ids that the caller may erase, dead letters without a job included.';

create or replace function ojs._erase_page(
    p_tenant text, p_states text[], p_queue text, p_type text, p_since timestamptz, p_until timestamptz, p_before uuid, p_limit int
) returns ojs.erasure
language plpgsql
as $$
declare
    c_lowest constant uuid := '00000000-0000-0000-0000-000000000000';
    v_prefix text := case when p_type like '%*' then left(p_type, -1) end;
    v_whole  boolean := p_tenant is not null and num_nonnulls(p_states, p_queue, p_type, p_since) = 0;
    v_floor  uuid;
    v_found  record;
    v_done   ojs.erasure;
begin
    if p_before = c_lowest then
        -- All of ojs.job is done. Dead letters whose partition was dropped are in ojs.dead_job.
        select array_agg(k.tenant_id) as tenants, array_agg(k.id) as ids, count(*) as jobs, null::uuid as last into v_found
        from (
            select k.tenant_id, k.id from ojs.dead_job k
            where (p_tenant is null or k.tenant_id = p_tenant) and (p_states is null or k.state::text = any (p_states))
                and (p_queue is null or k.queue = p_queue) and (p_type is null or k.type = p_type or starts_with(k.type, v_prefix))
                and (p_since is null or k.created_at >= p_since) and (p_until is null or k.created_at < p_until)
            order by k.id limit p_limit
        ) k;
        v_done := ojs._erase_jobs(v_found.tenants, v_found.ids);
        v_done.next := case when v_found.jobs >= p_limit and v_done.dead_letters > 0 then c_lowest end;
    else
        v_floor := ojs.jobs_floor(p_before, p_until, p_tenant);
        -- A page of ojs.list_jobs has 1000 jobs at most.
        select array_agg(j.tenant_id order by j.id) as tenants, array_agg(j.id order by j.id) as ids, count(*) as jobs,
            min(j.id::text)::uuid as last
        into v_found
        from ojs.list_jobs(p_states, p_queue, p_type, p_since, p_until, p_before, v_floor, 0, least(p_limit, 1000), p_tenant) j;
        v_done := ojs._erase_jobs(v_found.tenants, v_found.ids);
        v_done.next := case when v_found.jobs >= least(p_limit, 1000) then v_found.last else coalesce(v_floor, c_lowest) end;
        if v_done.next = c_lowest and not exists (select from ojs.dead_job k where p_tenant is null or k.tenant_id = p_tenant) then
            v_done.next := null;
        end if;
    end if;
    if v_whole then
        with found as materialized (
            select i.tenant_id, i.key from ojs.idempotency i
            where i.tenant_id = p_tenant and (p_until is null
                or i.expires_at <= (select ojs._later(p_until, s.idempotency_window) from ojs.settings s))
        ), held as materialized (
            select i.tenant_id, i.key from found f join ojs.idempotency i on i.tenant_id = f.tenant_id and i.key = f.key
            for update of i skip locked
        ), deleted as (
            delete from ojs.idempotency i using held h where i.tenant_id = h.tenant_id and i.key = h.key
        )
        select v_done.answers + count(*), v_done.locked + (select count(*) from found) - count(*) into v_done.answers, v_done.locked
        from held h;
    end if;
    return v_done;
end;
$$;
comment on function ojs._erase_page(text, text[], text, text, timestamptz, timestamptz, uuid, int) is
'Erases the next page of jobs that pass a filter, as ojs.erase says.';

create or replace function ojs._erase_jobs(p_tenants text[], p_ids uuid[]) returns ojs.erasure
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_done ojs.erasure := (0, 0, 0, 0, 0, 0, null);
    v_more int;
begin
    if coalesce(cardinality(p_ids), 0) = 0 then
        return v_done;
    end if;
    with held as materialized (
        select k.id, k.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)
        cross join lateral (
            select k.id, k.tenant_id from ojs.dead_job k where k.id = a.id and k.tenant_id = a.tenant_id for update skip locked
        ) k
    ), gone as (
        delete from ojs.dead_letter d using held h where d.id = h.id and d.tenant_id = h.tenant_id and d.aside
    ), deleted as (
        delete from ojs.dead_job k using held h where k.id = h.id and k.tenant_id = h.tenant_id
    )
    select count(*) into v_done.dead_letters from held;

    with held as materialized (
        -- Locks are taken in the order of the ids, as by all calls that lock many jobs.
        select j.*, j.state in ('scheduled', 'available', 'pending', 'retryable') as waits
        from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id) order by a.id, a.tenant_id) a
        cross join lateral (
            select j.id, j.tenant_id, j.queue, j.priority, j.type, j.attempt, j.state, j.started_at, j.pool from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id and ojs._has_content(j.retry, j.args, j.meta)
            for update skip locked
        ) j
    ), erased as (
        update ojs.job j
        set state = case when h.waits then 'cancelled' else j.state end, finished_at = case when h.waits then v_now else j.finished_at end,
            retry_at = case when not h.waits then j.retry_at end, args = '[]', meta = '{}', options = null, extra = null, tags = null,
            errors = null, result = null, retry = '{"erased": true}'
        from held h where j.id = h.id and j.tenant_id = h.tenant_id
    ), noted as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, pool)
        select h.tenant_id, h.queue, h.priority, h.id, h.type, h.attempt, h.state, 'cancelled', h.started_at, h.pool
        from held h where h.waits
    ), unburied as (
        delete from ojs.dead_letter d using held h where d.id = h.id and d.tenant_id = h.tenant_id and not d.aside returning d.id
    )
    select count(*), count(*) filter (where h.waits), count(*) filter (where h.state = 'active'), (select count(*) from unburied)
    into v_done.jobs, v_done.cancelled, v_done.active, v_more
    from held h;
    v_done.dead_letters := v_done.dead_letters + v_more;

    v_done.locked := (
        select count(*) from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)) a
        where exists (select from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and ojs._has_content(j.retry, j.args, j.meta))
            or exists (select from ojs.dead_job k where k.id = a.id and k.tenant_id = a.tenant_id));

    with found as materialized (
        select i.tenant_id, i.key from ojs.idempotency i
        where i.tenant_id = any (p_tenants) and exists (
            select from json_array_elements(i.answer) x
            where (x.value ->> 'id')::uuid = any (p_ids) and x.value ->> 'tenant_id' = any (p_tenants)
                and ojs._erased((x.value ->> 'retry')::jsonb) is not true)
    ), held as materialized (
        -- A session that repeats a call has the row of its key locked.
        select i.tenant_id, i.key from found f join ojs.idempotency i on i.tenant_id = f.tenant_id and i.key = f.key
        for update of i skip locked
    ), emptied as (
        update ojs.idempotency i
        set answer = (
            select json_agg(case when (x.value ->> 'id')::uuid = any (p_ids)
                then row_to_json(ojs._blank(json_populate_record(null::ojs.job, x.value))) else x.value end order by x.n)
            from json_array_elements(i.answer) with ordinality x(value, n))
        from held h where i.tenant_id = h.tenant_id and i.key = h.key
    )
    select count(*), v_done.locked + (select count(*) from found) - count(*) into v_done.answers, v_done.locked from held h;
    return v_done;
end;
$$;
comment on function ojs._erase_jobs(text[], uuid[]) is
'Erases the content of the given jobs, their dead letters and their answers to idempotency keys;
jobs that another session has locked stay as they are. The arrays are in step.';
