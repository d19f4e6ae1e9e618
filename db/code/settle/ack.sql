-- Completes one job.
-- Locks the job's row.
-- Writes job, journal; notifies.
create or replace function ojs.ack(
    p_id uuid, p_lease uuid default null, p_result anycompatible default null, p_worker_id text default null,
    p_tenant text default null
) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_result));
    v_tenant  text;
    v_result  json;
    v_refusal ojs.refusal;
    v_job     ojs.job;
    v_counts  boolean;
begin
    if p_result is not null then
        v_result := p_result::json;
        if not ojs._plain_json(v_result) then
            v_refusal := ojs._result_refusal(v_result);
            perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail) where v_refusal is not null;
        end if;
    end if;
    if p_tenant is not null or not ojs._trusted() then
        v_tenant := ojs._session_tenant(p_tenant);
    end if;
    loop
        -- The conditions are written so that one generic plan serves all calls. With "p_lease is
        -- null or ..." the plan for known parameters would look cheaper, and PostgreSQL would plan
        -- every call anew.
        update ojs.job j
        set state = 'completed', finished_at = ojs.now(), lease = null, lease_expires_at = null,
            result = case when ojs._erased(j.retry) then null else v_result end
        where j.id = p_id and (j.tenant_id = v_tenant) is not false and ojs._holds(j.state, j.lease, j.worker_id, p_lease, p_worker_id)
          -- A lease identifies the job, because no two jobs have the same one. Without a lease, an
          -- id that two tenants use is refused.
          and (j.tenant_id = v_tenant or j.lease = p_lease
              or not exists (select from ojs.job k where k.id = p_id and k.tenant_id <> j.tenant_id))
        returning * into v_job;
        exit when found;
        -- Raise why the job cannot be completed. If it can be by now, because the row has changed
        -- since, the loop tries again.
        perform ojs._check_hold('acknowledge', ojs._job_for(p_id, v_tenant), p_lease, p_worker_id);
    end loop;
    insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, unfenced, seconds, at, pool)
    values (v_job.tenant_id, v_job.queue, v_job.priority, 'active', 'completed', 1, (p_lease is null and p_worker_id is null)::int,
        greatest(ojs._seconds(v_job.finished_at - v_job.started_at), 0), v_job.finished_at, v_job.pool)
    returning v_job.charged is not null or v_job.pool is not null or exists (select from ojs.rule) into v_counts;
    if v_counts then
        perform ojs._count_ends(array[(v_job.tenant_id, v_job.queue, v_job.priority, v_job.seq, v_job.started_at, v_job.pool, v_job.charged)
            ::ojs._counted_end], v_job.finished_at);
    end if;
    return v_job;
end;
$$;
comment on function ojs.ack(uuid, uuid, anycompatible, text, text) is
'Completes an active job and returns it (ojs-core section 7.3).
Runs in the caller''s own transaction, so that rows which the job wrote commit with its completion.
p_lease, p_worker_id: the token that ojs.fetch returned, or the worker; either proves that the
caller still holds the job. With neither the running attempt is completed, and counted as unfenced.
p_result: any JSON up to 1048576 bytes, kept byte for byte.
p_tenant: the tenant of the job; needed without p_lease if two tenants use the id.
Locks the job row. Raises not_found, conflict (not active, or another worker holds it),
ambiguous_job, invalid_payload, RESULT_TOO_LARGE.';

-- Completes many jobs.
-- Locks their rows in the order of the ids, with skip locked.
-- Writes job, journal: a row per tenant, queue and priority; notifies.
create or replace function ojs.ack_many(
    p_ids uuid[], p_leases uuid[] default '{}', p_results json[] default '{}', p_worker_ids text[] default '{}',
    p_tenants text[] default '{}', p_jobs boolean default false
) returns table (n int, id uuid, finished_at timestamptz, job ojs.job)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := ojs.now();
    v_own text := case when not ojs._trusted() then ojs._session_tenant(null) end;
begin
    if (cardinality(p_ids) <= 10000) is not true then
        perform ojs._raise('OJ400', 'ids must be given, and name at most 10000 jobs', '{"field": "ids"}');
    end if;
    return query
    with held as materialized (
        -- Locks are taken in the order of the ids, so that two calls for the same jobs do not each
        -- get a part of them.
        select g.n, g.lease is null and g.worker_id is null as unfenced, g.result, j.id, j.place
        from (
            select a.id, a.n, a.lease, a.result, a.worker_id, coalesce(v_own, a.tenant) as tenant
            from unnest(p_ids, p_leases, p_results, p_worker_ids, p_tenants) with ordinality a(id, lease, result, worker_id, tenant, n)
            where (v_own is null or a.tenant is null or a.tenant = v_own) and (a.result is null or ojs._result_refusal(a.result) is null)
            order by a.id, a.n
        ) g
        cross join lateral (
            select j.id, j.ctid as place, j.tenant_id from ojs.job j
            where j.id = g.id and (j.tenant_id = g.tenant) is not false and ojs._holds(j.state, j.lease, j.worker_id, g.lease, g.worker_id)
            for update skip locked
        ) j
        -- As in ojs.ack, an id that two tenants use needs a lease or a tenant.
        where g.lease is not null or g.tenant is not null
           or not exists (select from ojs.job k where k.id = g.id and k.tenant_id <> j.tenant_id)
    ), acked as (
        update ojs.job j
        set state = 'completed', finished_at = v_now, lease = null, lease_expires_at = null,
            result = case when ojs._erased(j.retry) then null else h.result end
        from held h where j.ctid = h.place and j.id = h.id
        returning h.n, h.unfenced, j.id, j.tenant_id, j.queue, j.priority, j.seq, j.started_at, j.pool, j.charged,
            case when p_jobs then j end as job
    ), journalled as (
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, unfenced, seconds, at, pool)
        select a.tenant_id, a.queue, a.priority, 'active', 'completed', count(*), count(*) filter (where a.unfenced),
            sum(greatest(date_part('epoch', v_now - a.started_at), 0)), v_now, a.pool
        from acked a group by a.tenant_id, a.queue, a.priority, a.pool
    )
    select a.n::int, a.id, v_now, a.job from acked a
    where (
        select ojs._count_ends(
            array_agg((e.tenant_id, e.queue, e.priority, e.seq, e.started_at, e.pool, e.charged)::ojs._counted_end), v_now)
        from acked e where e.charged is not null or e.pool is not null or exists (select from ojs.rule) having count(*) > 0
    ) is not false;
end;
$$;
comment on function ojs.ack_many(uuid[], uuid[], json[], text[], text[], boolean) is
'Completes many active jobs as ojs.ack does, and returns a row for each job that it completed.
n: the number of the job in p_ids (from 1); id; finished_at.
p_ids: at most 10000. The other arrays are in step with p_ids or empty; jsonb[] and text[] need
p_results::json[].
p_jobs: whether a row also has the job as it is then. Jobs cost time to read and to send, so ask for
them only to read them.
A job that is not returned was not completed: it is not active, another worker holds it, it is
locked at this moment, its id is unknown or ambiguous, or its result is refused. ojs.ack and
ojs.settle say which. Runs in the caller''s own transaction; never waits. Raises invalid_request.';

create or replace function ojs._result_refusal(p_result json) returns ojs.refusal
language plpgsql immutable
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
    return row(case v_violation.sqlstate when 'OJ413' then 'OJ412' else v_violation.sqlstate end, v_violation.message,
        jsonb_build_object('field', v_violation.field))::ojs.refusal;
end;
$$;
comment on function ojs._result_refusal(json) is 'Returns why a result is refused, or null.';
