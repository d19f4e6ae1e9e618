-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._end_workers(p_tenants text[], p_worker_ids text[]) returns int
language plpgsql
as $$
declare
    v_jobs record;
begin
    -- What it said it ran, and what it was handed since, or so shortly before that the answer may have been on its way. Where a tenant's worker and one that serves all have one name, only
    -- what this one said is surely its own; workers of other tenants cannot have been handed the job.
    with dead as materialized (
        select d.tenant_id, d.worker_id, b.ids, b.seen_at - greatest(ojs._silence(), interval '30 seconds') as since
        from unnest(p_tenants, p_worker_ids) d(tenant_id, worker_id)
        cross join lateral (select b.* from ojs.worker_beat b where b.tenant_id = d.tenant_id and b.worker_id = d.worker_id order by b.rev desc limit 1) b
    ), candidate as (
        select d.tenant_id as scope, d.worker_id, i.id from dead d cross join lateral unnest(d.ids) i(id)
        union
        select d.tenant_id, d.worker_id, j.id
        from ojs.lease l
        cross join lateral unnest(l.ids) i(id)
        cross join lateral (select j.id, j.worker_id from ojs.job j where j.id = i.id and j.tenant_id = l.tenant_id and j.state = 'active' limit 1) j
        join dead d on d.worker_id = j.worker_id and (d.tenant_id = '' or d.tenant_id = l.tenant_id) and l.at >= d.since
        where l.at >= (select min(d.since) from dead d)
          and not exists (select from ojs.worker o where o.tenant_id = case d.tenant_id when '' then l.tenant_id else '' end and o.worker_id = d.worker_id)
    )
    -- Fenced, one by one: ids have no statistics, and a join would read the whole table to find them.
    select array_agg(j.tenant_id) as tenants, array_agg(j.id) as ids, array_agg(c.worker_id) as lost into v_jobs
    from candidate c
    cross join lateral (select j.id, j.tenant_id from ojs.job j
        where j.id = c.id and (c.scope = '' or j.tenant_id = c.scope) and j.state = 'active' and j.worker_id = c.worker_id offset 0) j;
    delete from ojs.worker_beat b using unnest(p_tenants, p_worker_ids) d(tenant_id, worker_id) where b.tenant_id = d.tenant_id and b.worker_id = d.worker_id;
    delete from ojs.worker w using unnest(p_tenants, p_worker_ids) d(tenant_id, worker_id) where w.tenant_id = d.tenant_id and w.worker_id = d.worker_id;
    if v_jobs.ids is null then
        return 0;
    end if;
    return ojs._reap(v_jobs.tenants, v_jobs.ids, v_jobs.lost);
end;
$$;
-- +goose StatementEnd
comment on function ojs._end_workers(text[], text[]) is
'Ends the registrations of dead workers, whose rows the caller has locked, and takes their jobs back (ojs-worker-protocol section 10.2).
Returns how many. A job that is locked at this moment is left to its lease.';

-- +goose StatementBegin
create function ojs._check_workers(p_tenants text[], p_ids uuid[]) returns int
language plpgsql
as $$
declare
    c_jobs    constant int := 10000;
    v_now     timestamptz := ojs.now();
    v_quiet   interval := ojs._silence() * 16 / 15;
    v_locked  uuid[];
    v_tenants text[];
    v_workers text[];
begin
    -- Who is sending a heartbeat has locked its row, and lives.
    v_locked := array(select w.id from unnest(p_tenants, p_ids) a(tenant_id, id)
        cross join lateral (select w.id from ojs.worker w where w.tenant_id = a.tenant_id and w.id = a.id for update skip locked) w);
    -- A statement of its own: it sees the last heartbeat before the lock.
    with found as materialized (
        select w.tenant_id, w.worker_id, w.id, case when w.id = any (v_locked) then b.seen_at + v_quiet else v_now + interval '1 second' end as dead_at, cardinality(b.ids) as jobs
        from unnest(p_tenants, p_ids) a(tenant_id, id)
        cross join lateral (select w.* from ojs.worker w where w.tenant_id = a.tenant_id and w.id = a.id) w
        cross join lateral (select b.seen_at, b.ids from ojs.worker_beat b where b.tenant_id = w.tenant_id and b.worker_id = w.worker_id order by b.rev desc limit 1) b
    ), known as materialized (
        -- Each may claim thousands of jobs: after so many the next tick goes on.
        select f.tenant_id, f.worker_id, f.id, case when f.dead_at <= v_now and f.before >= c_jobs then v_now + interval '50 milliseconds' else f.dead_at end as dead_at
        from (select f.*, sum(f.jobs) over (partition by f.dead_at <= v_now order by f.dead_at, f.id) - f.jobs as before from found f) f
    ), later as (
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select max(k.dead_at), 'worker', array_agg(k.tenant_id), array_agg(k.id) from known k where k.dead_at > v_now group by date_bin('1 second', k.dead_at, 'epoch')
    )
    select array_agg(k.tenant_id), array_agg(k.worker_id) into v_tenants, v_workers from known k where k.dead_at <= v_now;
    if v_workers is null then
        return 0;
    end if;
    return ojs._end_workers(v_tenants, v_workers);
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_workers(text[], uuid[]) is
'Declares those of the workers dead that have been silent for too long (ojs-worker-protocol section 10.1), and has the tick look again at
the others. Returns how many jobs went back.';

-- +goose StatementBegin
create function ojs._worker_for(p_worker_id text, p_tenant text, p_lock boolean default false) returns ojs.worker
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
        -- Not one that serves all; then whosever it is.
        v_tenants := array(select w.tenant_id from ojs.worker w where w.worker_id = p_worker_id limit 2);
        if cardinality(v_tenants) > 1 then
            perform ojs._raise('OJ411', format('worker %s exists in more than one tenant', p_worker_id), jsonb_build_object('field', 'X-OJS-Tenant', 'worker_id', p_worker_id));
        end if;
        select * into v_worker from ojs.worker w where w.tenant_id = v_tenants[1] and w.worker_id = p_worker_id;
    end if;
    if p_lock and v_worker.worker_id is not null then
        select * into v_worker from ojs.worker w where w.tenant_id = v_worker.tenant_id and w.id = v_worker.id for no key update;
    end if;
    if v_worker.worker_id is null then
        perform ojs._raise('OJ404', format('worker %s not found', left(p_worker_id, 255)), jsonb_build_object('resource_type', 'worker', 'resource_id', left(p_worker_id, 255)));
    end if;
    return v_worker;
end;
$$;
-- +goose StatementEnd
comment on function ojs._worker_for(text, text, boolean) is
'A worker of a tenant; for null the one that serves all tenants, else whosever it is. p_lock: locks its row. Raises not_found,
ambiguous_job, invalid_request.';

-- +goose StatementBegin
create function ojs.direct_worker(p_worker_id text, p_directive text, p_tenant text default null) returns ojs.worker
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_worker ojs.worker;
begin
    if p_directive is null or p_directive not in ('running', 'quiet', 'terminate') then
        perform ojs._raise('OJ400', 'directive must be running, quiet or terminate', '{"field": "directive"}');
    end if;
    v_worker := ojs._worker_for(p_worker_id, ojs._session_tenant(p_tenant), true);
    if 'terminate' in (v_worker.state, v_worker.directive) and p_directive <> 'terminate' then
        perform ojs._raise('OJ409', format('worker %s is ending, and cannot go back', p_worker_id), jsonb_build_object('worker_id', p_worker_id, 'current_state', 'terminate'));
    end if;
    update ojs.worker w set directive = case when p_directive <> 'running' or w.state <> 'running' then p_directive::ojs.worker_state end
    where w.tenant_id = v_worker.tenant_id and w.worker_id = v_worker.worker_id
    returning * into v_worker;
    if p_directive = 'running' then
        -- It may be waiting, at any server.
        perform pg_notify('ojs_wake', 'awake');
    end if;
    return v_worker;
end;
$$;
-- +goose StatementEnd
comment on function ojs.direct_worker(text, text, text) is
'Tells a worker what to do and returns it (ojs-worker-protocol section 4.4): quiet: fetch no more; terminate: end; running: go on after
quiet. FETCH gives it nothing from then on, and its next heartbeat is answered with the directive. A worker that comes back after its end
is told nothing. p_tenant: whose worker; null: one that serves all tenants, else the only one of that name; a tenant''s login role
directs its own only. Raises invalid_request, not_found, conflict (it is ending already), ambiguous_job.';

-- +goose StatementBegin
create function ojs.direct_workers(p_directive text, p_tenant text default null) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant  text := ojs._session_tenant(p_tenant);
    v_workers int;
begin
    if p_directive is null or p_directive not in ('running', 'quiet', 'terminate') then
        perform ojs._raise('OJ400', 'directive must be running, quiet or terminate', '{"field": "directive"}');
    end if;
    -- Locks are taken in the order of the key, so that two calls cannot lock each other out.
    perform from ojs.worker w where (w.tenant_id = v_tenant) is not false order by w.tenant_id, w.worker_id for no key update;
    update ojs.worker w set directive = case when p_directive <> 'running' or w.state <> 'running' then p_directive::ojs.worker_state end
    where (w.tenant_id = v_tenant) is not false and (p_directive = 'terminate' or w.state <> 'terminate' and w.directive is distinct from 'terminate');
    get diagnostics v_workers = row_count;
    if p_directive = 'running' then
        perform pg_notify('ojs_wake', 'awake');
    end if;
    return v_workers;
end;
$$;
-- +goose StatementEnd
comment on function ojs.direct_workers(text, text) is
'ojs.direct_worker for all workers of a tenant, or for null all there are; returns how many were told. Those that are ending go on ending.
Raises invalid_request.';

-- +goose StatementBegin
create function ojs.remove_worker(p_worker_id text, p_tenant text default null) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_worker ojs.worker := ojs._worker_for(p_worker_id, ojs._session_tenant(p_tenant), true);
    v_seen   timestamptz;
begin
    select b.seen_at into v_seen from ojs.worker_beat b where b.tenant_id = v_worker.tenant_id and b.worker_id = v_worker.worker_id order by b.rev desc limit 1;
    if v_seen >= ojs.now() - ojs._silence() / 2 then
        perform ojs._raise('OJ409', format('worker %s sends heartbeats', p_worker_id), jsonb_build_object('worker_id', p_worker_id, 'last_heartbeat_at', ojs._utc(v_seen)),
            'Tell it to terminate, or wait until it is stale.');
    end if;
    return ojs._end_workers(array[v_worker.tenant_id], array[v_worker.worker_id]);
end;
$$;
-- +goose StatementEnd
comment on function ojs.remove_worker(text, text) is
'Declares a stale worker dead now instead of after its whole silence (ojs-admin-api section 9.4), and returns how many of its jobs went
back. Raises not_found, ambiguous_job, conflict (it has sent a heartbeat within half of the heartbeat timeout).';

create view ojs.workers with (security_invoker = true) as
select nullif(w.tenant_id, '') as tenant_id, w.worker_id, w.state::text as state, w.directive::text as directive, b.seen_at < ojs.now() - ojs._silence() / 2 as stale, w.resting,
    w.hostname, w.pid, w.queues, w.concurrency, coalesce(b.active, 0) as active_jobs, b.ids as active_job_ids, w.labels, w.version, w.metadata, w.started_at, w.registered_at,
    b.seen_at as last_heartbeat_at
from ojs.worker w
cross join lateral (select b.* from ojs.worker_beat b where b.tenant_id = w.tenant_id and b.worker_id = w.worker_id order by b.rev desc limit 1) b;
comment on view ojs.workers is
'Workers that have registered or send heartbeats: tenant_id null for one that serves all tenants; state: what it does, as it
says; directive: what it is told to do; resting: FETCH gives it nothing; stale: silent for more than half of the heartbeat
timeout; active_jobs, active_job_ids: what it runs, as it said last; last_heartbeat_at: to within a fifteenth of the timeout. A tenant sees its
own only.';

-- +goose StatementBegin
create function ojs.worker_info(p_worker_id text, p_tenant text default null) returns setof ojs.workers
language plpgsql stable security definer rows 1 set search_path = pg_catalog, pg_temp
as $$
declare
    v_worker ojs.worker := ojs._worker_for(p_worker_id, ojs._session_tenant(p_tenant));
begin
    return query select * from ojs.workers w where w.tenant_id is not distinct from nullif(v_worker.tenant_id, '') and w.worker_id = v_worker.worker_id;
end;
$$;
-- +goose StatementEnd
comment on function ojs.worker_info(text, text) is
'The row of ojs.workers of a worker: of p_tenant''s; for null of the one that serves all tenants, else of the only one of that name.
Raises not_found, ambiguous_job, invalid_request.';
reset role;
