-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._result_refusal(p_result json) returns ojs.refusal
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
    return row(case v_violation.sqlstate when 'OJ413' then 'OJ412' else v_violation.sqlstate end, v_violation.message, jsonb_build_object('field', v_violation.field))::ojs.refusal;
end;
$$;
-- +goose StatementEnd
comment on function ojs._result_refusal(json) is 'Why a result is refused, or null.';

-- +goose StatementBegin
create function ojs.ack(p_id uuid, p_lease uuid default null, p_result json default null, p_worker_id text default null, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant  text;
    v_refusal ojs.refusal;
    v_job     ojs.job;
begin
    if p_result is not null and not ojs._plain_json(p_result) then
        v_refusal := ojs._result_refusal(p_result);
        if v_refusal is not null then
            perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
        end if;
    end if;
    if p_tenant is not null or not ojs._trusted() then
        v_tenant := ojs._session_tenant(p_tenant);
    end if;
    loop
        -- Written so that no parameter can be better known than the generic plan, or every call would be planned anew.
        update ojs.job j
        set state = 'completed', finished_at = ojs.now(), lease = null, lease_expires_at = null, result = p_result
        where j.id = p_id and (j.tenant_id = v_tenant) is not false and ojs._holds(j.state, j.lease, j.worker_id, p_lease, p_worker_id)
          and (v_tenant is not null or not exists (select from ojs.job k where k.id = p_id and k.tenant_id <> j.tenant_id))
        returning * into v_job;
        exit when found;
        -- Says why not; if what it sees has changed meanwhile, try again.
        perform ojs._check_hold('acknowledge', ojs._job_for(p_id, v_tenant), p_lease, p_worker_id);
    end loop;
    insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced)
    values (v_job.tenant_id, v_job.queue, v_job.priority, v_job.id, v_job.type, v_job.attempt, 'active', 'completed', v_job.started_at,
        p_lease is not null or p_worker_id is not null);
    return v_job;
end;
$$;
-- +goose StatementEnd
comment on function ojs.ack(uuid, uuid, json, text, text) is
'Completes an active job and returns it (ojs-core section 7.3). Works in the caller''s own transaction: the rows the job produced and its
completion commit together. p_lease: the token ojs.fetch returned, or p_worker_id: either proves that the caller still holds the
job; with neither the running attempt is completed, counted as unfenced. p_result: any JSON up to 1048576 bytes, kept byte for byte. Raises
not_found, conflict (not active, or another holds it), ambiguous_job, invalid_payload, RESULT_TOO_LARGE. Locks the job row.';

-- +goose StatementBegin
create function ojs.ack_many(
    p_ids uuid[], p_leases uuid[] default '{}', p_results json[] default '{}', p_worker_ids text[] default '{}', p_tenants text[] default '{}', p_jobs boolean default false
) returns table (n int, id uuid, tenant_id text, attempt int, finished_at timestamptz, job ojs.job)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := ojs.now();
    v_own text;
begin
    if not ojs._trusted() then
        v_own := ojs._session_tenant(null);
    end if;
    if p_ids is null or cardinality(p_ids) > 10000 then
        perform ojs._raise('OJ400', 'ids must be given, and name at most 10000 jobs', '{"field": "ids"}');
    end if;
    return query
    with held as materialized (
        select g.n::int as n, g.lease, g.worker_id, g.result, j.id, j.tenant_id
        from (select g.* from unnest(p_ids, p_leases, p_results, p_worker_ids, p_tenants) with ordinality g(id, lease, result, worker_id, tenant, n) order by g.id) g
        cross join lateral (
            select j.id, j.tenant_id from ojs.job j
            where j.id = g.id and (j.tenant_id = coalesce(v_own, g.tenant)) is not false and ojs._holds(j.state, j.lease, j.worker_id, g.lease, g.worker_id)
            for update skip locked
        ) j
        where (coalesce(v_own, g.tenant) is not null or not exists (select from ojs.job k where k.id = j.id and k.tenant_id <> j.tenant_id))
          and (v_own is null or g.tenant is null or g.tenant = v_own) and (g.result is null or ojs._plain_json(g.result))
    ), acked as (
        update ojs.job j
        set state = 'completed', finished_at = v_now, lease = null, lease_expires_at = null, result = h.result
        from held h where j.id = h.id and j.tenant_id = h.tenant_id
        returning h.n, h.lease is not null or h.worker_id is not null as fenced, j.id, j.tenant_id, j.queue, j.priority, j.type, j.attempt, j.started_at, case when p_jobs then j end as job
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced, at)
        select a.tenant_id, a.queue, a.priority, a.id, a.type, a.attempt, 'active', 'completed', a.started_at, a.fenced, v_now from acked a
    )
    select a.n, a.id, a.tenant_id, a.attempt, v_now, a.job from acked a;
end;
$$;
-- +goose StatementEnd
comment on function ojs.ack_many(uuid[], uuid[], json[], text[], text[], boolean) is
'Completes many active jobs as ojs.ack does, in the caller''s own transaction, and returns those it completed with their place (from 1) in
p_ids, and with p_jobs each job as it is then. The other arrays are in step with p_ids or empty. A job that is not returned was not
completed: it is not active, another holds it, it is locked at this moment, its id is unknown or ambiguous, or its result wants a closer
look; ojs.ack and ojs.settle say which. At most 10000. Waits for nothing.';
reset role;
