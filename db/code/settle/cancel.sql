-- Gives back a job that never reached its worker.
-- Locks the job's row.
-- Writes job, release, journal; notifies.
create or replace function ojs.release(p_id uuid, p_lease uuid) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.job;
    v_job ojs.job;
begin
    if p_lease is null then
        perform ojs._raise('OJ400', 'lease is required', '{"field": "lease"}');
    end if;
    -- If two tenants use the same id, the lease says which job is meant.
    v_old := ojs._held_job(p_id, coalesce(ojs._session_tenant(null),
        (select j.tenant_id from ojs.job j where j.id = p_id and j.lease = p_lease)), p_lease, null, 'release');
    update ojs.job j
    set state = case when ojs._erased(j.retry) then 'cancelled' else 'available' end::ojs.job_state,
        finished_at = case when ojs._erased(j.retry) then ojs.now() end,
        attempt = j.attempt - 1, lease = null, lease_expires_at = null, started_at = null, worker_id = null
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._released(v_old, v_job.state, true);
    perform ojs._woken(v_job, 'available') where v_job.state = 'available';
    return v_job;
end;
$$;
comment on function ojs.release(uuid, uuid) is
'Gives back a job that never reached its worker, and returns it.
It is available at once, first among the jobs of its tenant, and the attempt is not counted. An
erased job is cancelled.
p_lease: required.
Raises not_found, conflict.';

-- Gives back many jobs that never reached their worker.
-- Locks their rows in the order of the ids, with skip locked.
-- Writes the jobs and what ojs._book writes.
create or replace function ojs.release_many(p_ids uuid[], p_leases uuid[]) returns setof uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_ends ojs._attempt_end[];
begin
    if (cardinality(p_ids) = cardinality(p_leases) and cardinality(p_ids) <= 10000) is not true then
        perform ojs._raise('OJ400', 'ids and leases must be of one length, and name at most 10000 jobs', '{"field": "ids"}');
    end if;
    with held as materialized (
        -- Locks are taken in the order of the ids, so that two calls for the same jobs do not each
        -- get a part of them.
        select j.* from (select distinct r.id, r.lease from unnest(p_ids, p_leases) r(id, lease) order by r.id) g
        cross join lateral (
            select j.id, j.tenant_id, j.attempt, j.started_at from ojs.job j
            where j.id = g.id and j.state = 'active' and j.lease = g.lease
            for update skip locked
        ) j
    ), released as (
        update ojs.job j
        set state = case when ojs._erased(j.retry) then 'cancelled' else 'available' end::ojs.job_state,
            finished_at = case when ojs._erased(j.retry) then ojs.now() end,
            attempt = j.attempt - 1, lease = null, lease_expires_at = null, started_at = null, worker_id = null
        from held h where j.id = h.id and j.tenant_id = h.tenant_id
        returning j.*, h.attempt as ended_attempt, h.started_at as ended_start
    )
    select array_agg((r.tenant_id, r.id, r.queue, r.priority, r.type, r.seq, r.ended_attempt, r.ended_start, r.state, null,
        r.expires_at, r.retry, null, true, null, r.pool, r.charged)::ojs._attempt_end order by r.id) into v_ends
    from released r;
    if v_ends is not null then
        perform ojs._book(v_ends, ojs.now());
    end if;
    -- This statement sees the update, so the jobs that it still finds are those that another
    -- session had locked.
    return query select j.id from unnest(p_ids, p_leases) r(id, lease)
    join ojs.job j on j.id = r.id and j.state = 'active' and j.lease = r.lease;
end;
$$;
comment on function ojs.release_many(uuid[], uuid[]) is
'Gives back jobs that never reached their worker, and returns the ids of jobs that are locked.
Gives them back as ojs.release does. Call it again for the locked jobs.
p_ids, p_leases: in step, at most 10000. A job that is not held under its lease any more is passed
over. Never waits. Raises invalid_request.';

-- Cancels a job.
-- Locks the job's row.
-- Writes job, release.
create or replace function ojs.cancel(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.job := ojs._lock_job(p_id, ojs._session_tenant(p_tenant));
    v_job ojs.job;
begin
    if ojs._ended(v_old.state) then
        perform ojs._raise('OJ409', format('cannot cancel job %s: it is %s already', p_id, v_old.state),
            jsonb_build_object('job_id', p_id, 'current_state', v_old.state));
    end if;
    update ojs.job j
    set state = 'cancelled', finished_at = ojs.now(), lease = null, lease_expires_at = null, retry_at = null
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._released(v_old, 'cancelled', true);
    return v_job;
end;
$$;
comment on function ojs.cancel(uuid, text) is
'Cancels a job that has not ended, and returns it (ojs-core section 7.6).
A worker that runs the job learns of it from its next heartbeat or ack. Locks the job row. Raises
not_found, conflict (ended already), ambiguous_job.';

-- Makes a pending job available.
-- Locks the job's row.
-- Writes job, journal; notifies.
create or replace function ojs.activate(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_old ojs.job := ojs._lock_job(p_id, ojs._session_tenant(p_tenant));
    v_job ojs.job;
begin
    if v_old.state <> 'pending' then
        perform ojs._raise('OJ409', format('cannot activate job %s: its state is %s, not pending', p_id, v_old.state),
            jsonb_build_object('job_id', p_id, 'current_state', v_old.state, 'expected_state', 'pending'));
    end if;
    update ojs.job j
    set state = 'available', seq = nextval('ojs.job_seq'), enqueued_at = ojs.now()
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_job;
    perform ojs._woken(v_job, 'pending');
    return v_job;
end;
$$;
comment on function ojs.activate(uuid, text) is
'Makes a pending job available and returns it (ojs-http-binding section 9.5).
Locks the job row. Raises not_found, conflict (not pending), ambiguous_job.';

create or replace function ojs._extend(p_worker_id text, p_ids uuid[], p_visibility_timeout_ms int, p_tenant text) returns setof ojs.job
language sql
as $$
    with mine as materialized (
        select j as job, n.now, ojs._lease_end(n.now, coalesce(p_visibility_timeout_ms, j.visibility_timeout_ms), j.started_at,
            coalesce(nullif(j.timeout_ms, 0), n.limit_ms)) as until
        from (select ojs.now() as now, ojs._timeout_ms(null) as limit_ms offset 0) n
        cross join ojs.job j
        where j.id = any (p_ids) and (p_tenant is null or j.tenant_id = p_tenant) and j.state = 'active'
          and (j.worker_id is null or j.worker_id = p_worker_id)
    ), held as materialized (
        -- Only rows that are to change are locked: a lock would keep the clock from ending the
        -- attempt in time.
        select j.id, j.tenant_id, j.charged, m.until, m.now from mine m
        cross join lateral (
            select j.id, j.tenant_id, j.charged from ojs.job j
            where j.id = (m.job).id and j.tenant_id = (m.job).tenant_id and j.state = 'active' and j.started_at = (m.job).started_at
            for update skip locked
        ) j
        where m.until > (m.job).lease_expires_at and m.until > m.now
            or (m.job).charged + 10 < ojs._seconds(m.now - (m.job).started_at) and (m.job).lease_expires_at > m.now
    ), extended as (
        update ojs.job j set lease_expires_at = greatest(j.lease_expires_at, h.until),
            charged = case when h.charged is not null then greatest(h.charged, ojs._seconds(h.now - j.started_at)) end
        from held h where j.id = h.id and j.tenant_id = h.tenant_id
        returning j as job, j.charged - h.charged as more
    ), owed as (
        -- Charge for the time that attempts have run so far. Otherwise a tenant whose jobs run for
        -- long would get more workers than its share, until the first of them ends.
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, price, lo, hi)
        select (e.job).tenant_id, (e.job).queue, (e.job).priority, 'active', 'active', 0, sum(e.more), min((e.job).seq), max((e.job).seq)
        from extended e where e.more > 0 group by (e.job).tenant_id, (e.job).queue, (e.job).priority
    )
    select (e.job).* from extended e
    union all
    -- A job that another heartbeat has locked at this moment is held all the same. If it were left
    -- out, its worker would abort it.
    select (m.job).* from mine m
    where (m.job).lease_expires_at > m.now and ((m.job).id, (m.job).tenant_id) not in (select h.id, h.tenant_id from held h)
$$;
comment on function ojs._extend(text, uuid[], int, text) is
'Extends the leases of jobs that a worker holds, and returns the jobs whose lease goes on.
No lease goes beyond the time that the attempt may run. Where tenants share by time, they are
charged for what the attempts have run so far. Locks and writes only rows whose lease moves, or
whose attempt has run 10 seconds longer than was charged. The leases of jobs that another session
has locked stay as they are.';
