-- The end of a worker that fell silent, and how its jobs are taken back (ojs-worker-protocol
-- section 10). The tick calls _check_workers. Operators call remove_worker to end a worker earlier.

-- Declares a stale worker dead now.
-- Locks the row of ojs.worker, and the rows of its jobs (skip locked).
-- Writes ojs.worker, ojs.worker_beat, ojs.worker_load, ojs.lost_worker, and what the end of an
-- attempt writes.
create or replace function ojs.remove_worker(p_worker_id text, p_tenant text default null) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_worker ojs.worker := ojs._worker_for(p_worker_id, ojs._session_tenant(p_tenant), true);
    v_seen   timestamptz;
begin
    select b.seen_at into v_seen from ojs.worker_beat b
    where b.tenant_id = v_worker.tenant_id and b.worker_id = v_worker.worker_id order by b.rev desc limit 1;
    if v_seen >= ojs.now() - ojs._heartbeat_timeout() / 2 then
        perform ojs._raise('OJ409', format('worker %s sends heartbeats', p_worker_id),
            jsonb_build_object('worker_id', p_worker_id, 'last_heartbeat_at', ojs._utc(v_seen)),
            format('If it lives, tell it to terminate. If it is dead, call again when it has been silent for %s s (stale).',
                extract(epoch from ojs._heartbeat_timeout() / 2)::float8));
    end if;
    return ojs._end_workers(array[v_worker.tenant_id], array[v_worker.worker_id]);
end;
$$;
comment on function ojs.remove_worker(text, text) is
'Declares a stale worker dead now, and returns how many of its jobs were taken back.
Without this call, it is dead after the whole heartbeat timeout (ojs-admin-api section 9.4).
Raises not_found, ambiguous_job, conflict (it has sent a heartbeat within half of the heartbeat
timeout).';

create or replace function ojs._check_workers(p_tenants text[], p_ids uuid[]) returns int
language plpgsql
as $$
declare
    c_jobs    constant int := 10000;
    v_now     timestamptz := ojs.now();
    v_silence interval := ojs._dead_after();
    v_locked  uuid[];
    v_tenants text[];
    v_workers text[];
begin
    -- If its row is locked by another session, the worker is sending a heartbeat, and so it lives.
    v_locked := array(
        select w.id from unnest(p_tenants, p_ids) a(tenant_id, id)
        cross join lateral (select w.id from ojs.worker w where w.tenant_id = a.tenant_id and w.id = a.id for update skip locked) w);
    -- A second statement, because the first would not see a heartbeat that committed just before
    -- the row was locked.
    with found as materialized (
        select w.tenant_id, w.worker_id, w.id, cardinality(b.ids) as jobs,
            case when w.id = any (v_locked) then b.seen_at + v_silence else v_now + interval '1 second' end as dead_at
        from unnest(p_tenants, p_ids) a(tenant_id, id)
        cross join lateral (select w.* from ojs.worker w where w.tenant_id = a.tenant_id and w.id = a.id) w
        cross join lateral (
            select b.seen_at, b.ids from ojs.worker_beat b
            where b.tenant_id = w.tenant_id and b.worker_id = w.worker_id order by b.rev desc limit 1
        ) b
    ), known as materialized (
        -- Each worker may have thousands of jobs: after 10000 the next tick goes on.
        select f.tenant_id, f.worker_id, f.id,
            case when f.dead_at <= v_now and f.before >= c_jobs then v_now + interval '50 milliseconds' else f.dead_at end as dead_at
        from (
            select f.*, sum(f.jobs) over (partition by f.dead_at <= v_now order by f.dead_at, f.id) - f.jobs as before from found f
        ) f
    ), later as (
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select max(k.dead_at), 'worker', array_agg(k.tenant_id), array_agg(k.id)
        from known k where k.dead_at > v_now group by date_bin('1 second', k.dead_at, 'epoch')
    )
    select array_agg(k.tenant_id), array_agg(k.worker_id) into v_tenants, v_workers from known k where k.dead_at <= v_now;
    if v_workers is null then
        return 0;
    end if;
    return ojs._end_workers(v_tenants, v_workers);
end;
$$;
comment on function ojs._check_workers(text[], uuid[]) is
'Declares those of the given workers dead that have been silent too long (ojs-worker-protocol
section 10.1), and sets timers for the rest. Returns how many jobs were taken back.';

create or replace function ojs._held_by(p_tenants text[], p_worker_ids text[], out tenants text[], out ids uuid[], out lost text[])
language sql stable
as $$
    -- A worker's jobs are those that its last heartbeat named, and those handed to it since then or
    -- shortly before, while the answer may have been on its way. If a tenant's worker and a worker
    -- for all tenants have the same name, only the named jobs are certainly its own.
    with dead as materialized (
        select d.tenant_id, d.worker_id, b.ids, b.seen_at - greatest(ojs._heartbeat_timeout(), interval '30 seconds') as since
        from unnest(p_tenants, p_worker_ids) d(tenant_id, worker_id)
        cross join lateral (
            select b.* from ojs.worker_beat b
            where b.tenant_id = d.tenant_id and b.worker_id = d.worker_id order by b.rev desc limit 1
        ) b
    ), candidate as (
        select d.tenant_id as scope, d.worker_id, i.id from dead d cross join lateral unnest(d.ids) i(id)
        union
        select d.tenant_id, d.worker_id, j.id
        from ojs.lease l
        cross join lateral unnest(l.ids, l.tenants) i(id, tenant_id)
        cross join lateral (
            select j.id, j.worker_id from ojs.job j where j.id = i.id and j.tenant_id = i.tenant_id and j.state = 'active' limit 1
        ) j
        join dead d on d.worker_id = j.worker_id and (d.tenant_id = '' or d.tenant_id = i.tenant_id) and l.at >= d.since
        where l.at >= (select min(d.since) from dead d)
          and not exists (
            select from ojs.worker o
            where o.tenant_id = case d.tenant_id when '' then i.tenant_id else '' end and o.worker_id = d.worker_id)
    )
    -- Read each job by its key (offset 0): the planner knows nothing about the ids, and a join
    -- would read the whole table.
    select array_agg(j.tenant_id), array_agg(j.id), array_agg(c.worker_id)
    from candidate c
    cross join lateral (
        select j.id, j.tenant_id from ojs.job j
        where j.id = c.id and (c.scope = '' or j.tenant_id = c.scope) and j.state = 'active' and j.worker_id = c.worker_id offset 0
    ) j
$$;
comment on function ojs._held_by(text[], text[]) is
'Returns the running jobs of workers, in step, with the name of the worker in lost; null: they have
no jobs.';

create or replace function ojs._end_workers(p_tenants text[], p_worker_ids text[]) returns int
language plpgsql
as $$
declare
    v_jobs record;
begin
    select h.* into v_jobs from ojs._held_by(p_tenants, p_worker_ids) h;
    insert into ojs.lost_worker (tenant_id, worker_id, id, pool, hostname, queues, jobs, last_heartbeat_at)
    select w.tenant_id, w.worker_id, w.id, w.pool, w.hostname, ojs._serves(w.queues, w.asks), cardinality(b.ids), b.seen_at
    from unnest(p_tenants, p_worker_ids) d(tenant_id, worker_id)
    join ojs.worker w on w.tenant_id = d.tenant_id and w.worker_id = d.worker_id
    cross join lateral (select b.* from ojs.worker_beat b where b.tenant_id = d.tenant_id and b.worker_id = d.worker_id
        order by b.rev desc limit 1) b on conflict do nothing;
    -- Skip locked rows: a caller of remove_worker may stay in its transaction, and the clock must
    -- not wait for it.
    delete from ojs.lost_worker l using (
        select o.ctid as spot from ojs.lost_worker o where o.lost_at < ojs.now() - interval '1 day' limit 1000 for update skip locked) o
    where l.ctid = o.spot;
    delete from ojs.worker_beat b using unnest(p_tenants, p_worker_ids) d(tenant_id, worker_id)
    where b.tenant_id = d.tenant_id and b.worker_id = d.worker_id;
    delete from ojs.worker w using unnest(p_tenants, p_worker_ids) d(tenant_id, worker_id)
    where w.tenant_id = d.tenant_id and w.worker_id = d.worker_id;
    perform ojs._forget_loads(p_tenants, p_worker_ids);
    if v_jobs.ids is null then
        return 0;
    end if;
    return ojs._reap(v_jobs.tenants, v_jobs.ids, v_jobs.lost);
end;
$$;
comment on function ojs._end_workers(text[], text[]) is
'Ends the registrations of dead workers, whose rows the caller has locked, and takes their jobs
back (ojs-worker-protocol section 10.2). Returns how many. A job that another session has locked
is left until its lease ends.';

create or replace function ojs._follows(p_says ojs.worker, p_known ojs.worker) returns boolean
language sql immutable
as $$
    -- A registration that is sent again has the same start and the same pid. A process that started
    -- earlier is not the next one, whatever its pid: its registration was on its way for long.
    select coalesce(p_says.started_at > p_known.started_at, false)
        or coalesce(p_says.hostname = p_known.hostname and p_says.pid <> p_known.pid, false)
            and (p_says.started_at < p_known.started_at) is not true
$$;
comment on function ojs._follows(ojs.worker, ojs.worker) is
'Returns whether what a worker says when it registers shows that the process known under its name
has ended: it started later, or has another pid on the same host.';

create or replace function ojs._take_from_old_process(p_known ojs.worker) returns int
language plpgsql
as $$
declare
    v_jobs record;
begin
    select h.* into v_jobs from ojs._held_by(array[p_known.tenant_id], array[p_known.worker_id]) h;
    return case when v_jobs.ids is null then 0 else ojs._reap(v_jobs.tenants, v_jobs.ids, v_jobs.lost) end;
end;
$$;
comment on function ojs._take_from_old_process(ojs.worker) is
'Takes back the jobs of a worker''s old process, and returns how many. The caller has locked the
worker''s row, and has not yet changed its row of ojs.worker_beat, which names the jobs. A job that
another session has locked is left until its lease ends.';
