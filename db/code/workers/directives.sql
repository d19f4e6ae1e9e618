-- Listing workers and directing them (ojs-worker-protocol section 4.4). Called by tenants and
-- operators, over HTTP and in SQL.

create or replace view ojs.workers as
select nullif(w.tenant_id, '') as tenant_id, w.worker_id, w.state::text as state, w.directive::text as directive,
    w.seen_at < ojs.now() - ojs._heartbeat_timeout() / 2 as stale, w.resting,
    w.hostname, w.pid, ojs._serves(w.queues, w.asks) as queues, w.concurrency, coalesce(w.active, 0) as active_jobs,
    w.ids as active_job_ids, w.labels, w.version, w.metadata, w.pool, w.strategy, w.weights, w.started_at, w.registered_at,
    w.seen_at as last_heartbeat_at
from (
    select w.*, b.seen_at, b.active, b.ids
    from ojs.worker w
    cross join lateral (
        select b.* from ojs.worker_beat b where b.tenant_id = w.tenant_id and b.worker_id = w.worker_id order by b.rev desc limit 1
    ) b
    where ojs._reads_all()
    union all
    select * from ojs._own_worker
) w;
comment on view ojs.workers is
'Workers that have registered or send heartbeats.
tenant_id: null for a worker that serves all tenants.
state: what it does, as it reports; directive: what it is told to do.
resting: FETCH gives it no jobs.
stale: silent for more than half of the heartbeat timeout.
active_jobs, active_job_ids: the jobs it runs, as it last reported.
pool, strategy, weights: how its FETCHes are served, as it says.
last_heartbeat_at: to within a fifteenth of the heartbeat timeout.
A tenant sees its own only.';

-- Directs one worker.
-- Locks its row.
-- Writes ojs.worker.
create or replace function ojs.direct_worker(p_worker_id text, p_directive text, p_tenant text default null) returns ojs.worker
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tells  ojs.worker_state := ojs._directive(p_directive);
    v_worker ojs.worker := ojs._worker_for(p_worker_id, ojs._session_tenant(p_tenant), true);
begin
    if 'terminate' in (v_worker.state, v_worker.directive) and v_tells <> 'terminate' then
        perform ojs._raise('OJ409', format('worker %s is ending, and cannot go back', p_worker_id),
            jsonb_build_object('worker_id', p_worker_id, 'current_state', 'terminate'));
    end if;
    select * into v_worker from ojs._direct(array[v_worker], v_tells);
    perform ojs._audit(v_worker.tenant_id, 'worker', p_worker_id, 'directed', null, jsonb_build_object('directive', v_tells));
    return v_worker;
end;
$$;
comment on function ojs.direct_worker(text, text, text) is
'Directs a worker to work, to rest or to end, and returns it (ojs-worker-protocol section 4.4).
FETCH obeys at once, and the answer to the worker''s next heartbeat has the directive. A worker
that registers again has none.
p_directive: quiet: fetch no more; terminate: end; running or resume: go on after quiet.
p_tenant: the worker''s tenant; null: the worker that serves all tenants, else the only one of
that name. A tenant''s login role directs its own only.
Raises invalid_request, not_found, conflict (it is ending already), ambiguous_job.';

-- Directs all workers of a tenant, or all workers.
-- Locks their rows, in the order of their key.
-- Writes ojs.worker.
create or replace function ojs.direct_workers(p_directive text, p_tenant text default null) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tells   ojs.worker_state := ojs._directive(p_directive);
    v_tenant  text := ojs._session_tenant(p_tenant);
    v_workers ojs.worker[];
begin
    -- In the order of the key: otherwise two calls could deadlock.
    v_workers := array(
        select w from ojs.worker w
        where (w.tenant_id = v_tenant) is not false
          and (v_tells = 'terminate' or w.state <> 'terminate' and w.directive is distinct from 'terminate')
        order by w.tenant_id, w.worker_id for no key update);
    perform ojs._direct(v_workers, v_tells);
    perform ojs._audit(v_tenant, 'worker', null, 'directed', null,
        jsonb_build_object('directive', v_tells, 'workers', cardinality(v_workers)));
    return cardinality(v_workers);
end;
$$;
comment on function ojs.direct_workers(text, text) is
'Directs all workers of a tenant as ojs.direct_worker does, and returns how many.
Workers that are ending are left out.
p_tenant: null: all workers.
Raises invalid_request.';

-- Returns the row of ojs.workers of one worker.
-- Reads only.
create or replace function ojs.worker_info(p_worker_id text, p_tenant text default null) returns setof ojs.workers
language plpgsql stable security definer rows 1 set search_path = pg_catalog, pg_temp
as $$
declare
    v_worker ojs.worker := ojs._worker_for(p_worker_id, ojs._session_tenant(p_tenant));
begin
    return query
    select * from ojs.workers w
    where w.tenant_id is not distinct from nullif(v_worker.tenant_id, '') and w.worker_id = v_worker.worker_id;
end;
$$;
comment on function ojs.worker_info(text, text) is
'Returns the row of ojs.workers of one worker.
p_tenant: the worker''s tenant; null: the worker that serves all tenants, else the only one of
that name.
Raises not_found, ambiguous_job, invalid_request.';

create or replace function ojs._directive(p_directive text) returns ojs.worker_state
language plpgsql
as $$
begin
    -- The command-line tool of the Open Job Spec calls it resume.
    if p_directive = 'resume' then
        return 'running';
    end if;
    if coalesce(p_directive, '') not in ('running', 'quiet', 'terminate') then
        perform ojs._raise('OJ400', 'directive must be running, quiet or terminate', '{"field": "directive"}');
    end if;
    return p_directive;
end;
$$;
comment on function ojs._directive(text) is
'The directive in a call. Raises invalid_request if there is no such directive.';

create or replace function ojs._direct(p_workers ojs.worker[], p_directive ojs.worker_state) returns setof ojs.worker
language sql
as $$
    -- Workers that rested may be waiting in a FETCH, at any server.
    select ojs._wake('awake') where p_directive = 'running';
    update ojs.worker w
    set directive = case when p_directive <> 'running' or w.state <> 'running' then p_directive end
    from unnest(p_workers) k where w.tenant_id = k.tenant_id and w.worker_id = k.worker_id
    returning w.*
$$;
comment on function ojs._direct(ojs.worker[], ojs.worker_state) is
'Gives workers, whose rows the caller has locked, a directive, and returns their rows. A worker
that runs and is directed to run gets no directive.';

create or replace function ojs._worker_for(p_worker_id text, p_tenant text, p_lock boolean default false) returns ojs.worker
language plpgsql
as $$
declare
    v_worker  ojs.worker;
    v_tenants text[];
begin
    if p_worker_id is null then
        perform ojs._raise('OJ400', 'worker_id is required', '{"field": "worker_id"}');
    end if;
    select * into v_worker from ojs.worker w where w.tenant_id = coalesce(p_tenant, '') and w.worker_id = p_worker_id;
    if not found and p_tenant is null then
        -- No worker of that name serves all tenants; take the only one of that name.
        v_tenants := array(select w.tenant_id from ojs.worker w where w.worker_id = p_worker_id limit 2);
        if cardinality(v_tenants) > 1 then
            perform ojs._raise('OJ411', format('worker %s exists in more than one tenant', p_worker_id),
                jsonb_build_object('field', 'X-OJS-Tenant', 'worker_id', p_worker_id));
        end if;
        select * into v_worker from ojs.worker w where w.tenant_id = v_tenants[1] and w.worker_id = p_worker_id;
    end if;
    if p_lock and v_worker.worker_id is not null then
        select * into v_worker from ojs.worker w where w.tenant_id = v_worker.tenant_id and w.id = v_worker.id for no key update;
    end if;
    if v_worker.worker_id is null then
        perform ojs._raise('OJ404', format('worker %s not found', left(p_worker_id, 255)),
            jsonb_build_object('resource_type', 'worker', 'resource_id', left(p_worker_id, 255)),
            'Check the id; a worker that has not been heard of for long is forgotten.');
    end if;
    return v_worker;
end;
$$;
comment on function ojs._worker_for(text, text, boolean) is
'The worker of that name of a tenant; for null the worker that serves all tenants, else the only
one of that name. p_lock: locks its row. Raises not_found, ambiguous_job, invalid_request.';
