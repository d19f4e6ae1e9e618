-- Retrying jobs that failed for good, dead letters or not. The row of such a job stays until
-- retention removes its partition, whatever its policy says about the end of retrying. Tenants and
-- operators call these functions.

-- Has a discarded job run again, with the changes in p_override.
-- Locks the job row.
-- Writes what ojs.retry_dead_letter writes.
create or replace function ojs.retry(p_id uuid, p_override anycompatible default null, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_override));
    v_tenant text := ojs._session_tenant(p_tenant);
    v_job    ojs.job;
begin
    if exists (select from ojs.dead_letter d where d.id = p_id and (d.tenant_id = v_tenant) is not false
            and (not d.aside or not exists (select from ojs.job j where j.id = p_id and (j.tenant_id = v_tenant) is not false))) then
        return ojs._retry_one(ojs._lock_dead(p_id, v_tenant), p_override::json);
    end if;
    v_job := ojs._lock_job(p_id, v_tenant);
    if v_job.state <> 'discarded' then
        perform ojs._raise('OJ409', format('cannot retry job %s: its state is %s, not discarded', p_id, v_job.state),
            jsonb_build_object('job_id', p_id, 'current_state', v_job.state, 'expected_state', 'discarded'));
    end if;
    return ojs._retry_one(v_job, p_override::json);
end;
$$;
comment on function ojs.retry(uuid, anycompatible, text) is
'Has a discarded job run again, and returns it.
It is available at once, behind jobs that are available, with attempt 0 and its errors kept. Any job
that failed for good can run again until retention removes it, whatever its policy said; a dead
letter also later.
p_override: as for ojs.retry_dead_letter. p_tenant: the tenant of the job.
Locks the job row. Raises not_found, ambiguous_job, conflict (not discarded, expired, erased, its tenant
is being deregistered), and what ojs.enqueue raises about an override.';

-- Has the discarded jobs that match a filter run again.
-- Locks their rows with skip locked.
-- Reads all jobs; writes what ojs.retry_dead_letters writes.
create or replace function ojs.retry_many(
    p_queue text default null, p_type text default null, p_error_type text default null, p_since timestamptz default null,
    p_until timestamptz default null, p_limit int default 1000, p_tenant text default null
) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_but    text[] := '{}';
    v_want   int;
    v_rounds int := 0;
    v_done   int := 0;
    v_found  record;
begin
    perform ojs._check_limit(p_limit, 10000);
    loop
        v_want := p_limit - v_done;
        select array_agg(f.tenant_id) as tenants, array_agg(f.id) as ids, array_agg(f.place) as places into v_found
        from (select f.tenant_id, f.id, f.tenant_id || ' ' || f.queue as place
            from ojs._failed_jobs(p_queue, p_type, p_error_type, p_since, p_until, v_tenant) f
            where f.tenant_id || ' ' || f.queue <> all (v_but) order by f.finished_at, f.id limit v_want) f;
        v_done := v_done + ojs._retry_dead(v_found.tenants, v_found.ids, p_any => true);
        v_rounds := v_rounds + 1;
        exit when v_done >= p_limit or coalesce(cardinality(v_found.ids), 0) < v_want
            -- Each round reads all jobs, so there are 10 at most.
            or v_done > 0 and v_rounds >= 10;
        -- Leave out tenants and queues whose jobs cannot come back now, because a limit has no
        -- tokens left. Otherwise these jobs would be found first each time, and keep back all that
        -- failed after them.
        v_but := v_but || array(select distinct u.place from unnest(v_found.tenants, v_found.ids, v_found.places) u(tenant_id, id, place)
            where not exists (select from ojs.job j where j.id = u.id and j.tenant_id = u.tenant_id and j.state <> 'discarded'));
    end loop;
    return v_done;
end;
$$;
comment on function ojs.retry_many(text, text, text, timestamptz, timestamptz, int, text) is
'Has the oldest jobs that failed for good and match run again, and returns how many.
The jobs run again as by ojs.retry.
p_queue, p_type, p_error_type: only jobs of this queue, of this type (mail.*: all that begin so),
with this type or code of their last error.
p_since, p_until: discarded from one time on, and before another (default now).
p_limit: how many, 1 to 10000.
p_tenant: only jobs of this tenant.
Call it again until it returns 0, with a p_until in the past; otherwise jobs that fail again are
retried again. Leaves out jobs that have expired, that another session has locked, or whose tenant
may have no more jobs (ojs.failed_count counts these, too). Reads all jobs each time. Raises
invalid_request.';

create or replace function ojs._failed_jobs(
    p_queue text, p_type text, p_error_type text, p_since timestamptz, p_until timestamptz, p_tenant text
)
returns table (tenant_id text, id uuid, queue text, finished_at timestamptz)
language sql stable
as $$
    select j.tenant_id, j.id, j.queue, j.finished_at
    from (
        select j.tenant_id, j.id, j.queue, j.type, j.finished_at, j.expires_at, j.errors from ojs.job j
        where j.state = 'discarded' and ojs._erased(j.retry) is not true
        union all
        select k.tenant_id, k.id, k.queue, k.type, k.finished_at, k.expires_at, k.errors from ojs.dead_job k
    ) j
    where (p_tenant is null or j.tenant_id = p_tenant) and (p_queue is null or j.queue = p_queue)
        and (p_type is null or j.type = p_type or p_type like '%*' and starts_with(j.type, left(p_type, -1)))
        and (p_error_type is null or p_error_type in (j.errors -> -1 ->> 'type', j.errors -> -1 ->> 'code'))
        and (p_since is null or j.finished_at >= p_since) and j.finished_at < coalesce(p_until, ojs.now())
        and (j.expires_at > ojs.now()) is not false
$$;
comment on function ojs._failed_jobs(text, text, text, timestamptz, timestamptz, text) is
'Returns the jobs that failed for good and match the filters of ojs.retry_many. Becomes part of the
query that asks.';

-- Returns how many jobs match the filters of ojs.retry_many.
-- Locks nothing.
-- Reads all jobs.
create or replace function ojs.failed_count(
    p_queue text default null, p_type text default null, p_error_type text default null, p_since timestamptz default null,
    p_until timestamptz default null, p_tenant text default null
) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select count(*) from ojs._failed_jobs(p_queue, p_type, p_error_type, p_since, p_until, ojs._session_tenant(p_tenant)) f);
end;
$$;
comment on function ojs.failed_count(text, text, text, timestamptz, timestamptz, text) is
'Returns how many jobs failed for good and could run again by ojs.retry_many with these arguments.
Reads all jobs each time.';

create or replace function ojs._retry_one(p_job ojs.job, p_override json) returns ojs.job
language plpgsql
as $$
declare
    v_job ojs.job := p_job;
begin
    if ojs._erased(p_job.retry) then
        perform ojs._raise('OJ409', format('cannot retry job %s: its content was erased', p_job.id),
            jsonb_build_object('job_id', p_job.id));
    end if;
    if p_override is not null then
        v_job := ojs._override(v_job, p_override);
    end if;
    if v_job.expires_at <= ojs.now() then
        perform ojs._raise('OJ409', format('cannot retry job %s: it expired at %s',
                v_job.id, to_char(v_job.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
            jsonb_build_object('job_id', v_job.id, 'field', 'override.expires_at'), 'Override expires_at with a later time, or with null.');
    end if;
    if ojs._retry_dead(array[v_job.tenant_id], array[v_job.id], p_each => false, p_any => true) = 0 then
        perform ojs._raise('OJ409', format('cannot retry job %s: its tenant is being deregistered', v_job.id),
            jsonb_build_object('job_id', v_job.id));
    end if;
    select * into v_job from ojs.job j where j.id = v_job.id and j.tenant_id = v_job.tenant_id;
    return v_job;
end;
$$;
comment on function ojs._retry_one(ojs.job, json) is
'Has a discarded job that this transaction has locked run again, with the changes in p_override, and
returns it. Raises conflict.';
