create or replace function ojs._unknown(p_id uuid) returns ojs.refusal
language sql stable
as $$
    select row('OJ404', format('job %s not found', p_id), jsonb_build_object('resource_type', 'job', 'resource_id', p_id))::ojs.refusal
$$;
comment on function ojs._unknown(uuid) is
'Returns the refusal for a job that does not exist, or is another tenant''s.';

create or replace function ojs._ambiguous(p_id uuid) returns ojs.refusal
language sql stable
as $$ select row('OJ411', format('job id %s exists in more than one tenant', p_id),
    jsonb_build_object('field', 'X-OJS-Tenant', 'job_id', p_id))::ojs.refusal $$;
comment on function ojs._ambiguous(uuid) is
'Returns the refusal for a job id that two tenants use.';

create or replace function ojs._job_for(p_id uuid, p_tenant text) returns ojs.job
language plpgsql
as $$
declare
    v_job     ojs.job;
    v_found   ojs.job;
    v_refusal ojs.refusal;
begin
    if p_id is null then
        perform ojs._raise('OJ400', 'id is required', '{"field": "id"}');
    end if;
    for v_found in select j.* from ojs.job j where j.id = p_id and (j.tenant_id = p_tenant) is not false limit 2 loop
        if v_job.id is not null then
            v_refusal := ojs._ambiguous(p_id);
        end if;
        v_job := v_found;
    end loop;
    if v_job.id is null then
        v_refusal := ojs._unknown(p_id);
    end if;
    if v_refusal is not null then
        perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
    end if;
    return v_job;
end;
$$;
comment on function ojs._job_for(uuid, text) is
'Returns the job with an id, of a tenant (null: of any). Raises not_found, ambiguous_job.';

create or replace function ojs._lock_job(p_id uuid, p_tenant text) returns ojs.job
language plpgsql
as $$
declare
    v_job ojs.job := ojs._job_for(p_id, p_tenant);
begin
    select * into v_job from ojs.job j where j.id = v_job.id and j.tenant_id = v_job.tenant_id for update;
    return v_job;
end;
$$;
comment on function ojs._lock_job(uuid, text) is
'Locks the job that ojs._job_for finds, and returns it as it is then.';

create or replace function ojs._holds(p_state ojs.job_state, p_job_lease uuid, p_job_worker text, p_lease uuid, p_worker_id text)
returns boolean
language sql immutable
as $$ select p_state = 'active' and (p_lease <> p_job_lease) is not true and (p_worker_id <> p_job_worker) is not true $$;
comment on function ojs._holds(ojs.job_state, uuid, text, uuid, text) is
'Returns whether a caller may end the running attempt of a job: the job is active, and the lease and
the worker that the caller names are those of the attempt. A null is not compared.';

create or replace function ojs._hold_refusal(
    p_action text, p_id uuid, p_state ojs.job_state, p_job_lease uuid, p_job_worker text,
    p_lease uuid,
    p_worker_id text) returns ojs.refusal
language sql stable
as $$
    select case
        when ojs._holds(p_state, p_job_lease, p_job_worker, p_lease, p_worker_id) then null
        when p_state <> 'active' then row('OJ409', format('cannot %s job %s: its state is %s, not active', p_action, p_id, p_state),
            jsonb_build_object('job_id', p_id, 'current_state', p_state, 'expected_state', 'active'))::ojs.refusal
        when p_lease <> p_job_lease then row('OJ409', format('cannot %s job %s: the lease is not that of the running attempt',
                p_action, p_id),
            jsonb_build_object('job_id', p_id, 'field', 'lease', 'current_state', p_state))::ojs.refusal
        else row('OJ409', format('cannot %s job %s: another worker holds it', p_action, p_id),
            jsonb_build_object('job_id', p_id, 'field', 'worker_id', 'current_state', p_state))::ojs.refusal
        end
$$;
comment on function ojs._hold_refusal(text, uuid, ojs.job_state, uuid, text, uuid, text) is
'Returns why ojs._holds is false, or null. p_action: what the caller wants to do.';

create or replace function ojs._check_hold(p_action text, p_job ojs.job, p_lease uuid, p_worker_id text) returns void
language plpgsql
as $$
declare
    v_refusal ojs.refusal := ojs._hold_refusal(p_action, p_job.id, p_job.state, p_job.lease, p_job.worker_id, p_lease, p_worker_id);
begin
    if v_refusal is not null then
        perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
    end if;
end;
$$;
comment on function ojs._check_hold(text, ojs.job, uuid, text) is
'Raises conflict if a caller may not end the running attempt of a job.';

create or replace function ojs._held_job(p_id uuid, p_tenant text, p_lease uuid, p_worker_id text, p_action text) returns ojs.job
language plpgsql
as $$
declare
    v_job ojs.job := ojs._lock_job(p_id, p_tenant);
begin
    perform ojs._check_hold(p_action, v_job, p_lease, p_worker_id);
    return v_job;
end;
$$;
comment on function ojs._held_job(uuid, text, uuid, text, text) is
'Locks an active job and returns it. p_lease and p_worker_id, when given, must be those of the
running attempt. Raises not_found, ambiguous_job, conflict.';

create or replace function ojs._timeout_ms(p_timeout_ms int) returns int
language plpgsql stable
as $$
begin
    if p_timeout_ms <> 0 then
        return p_timeout_ms;
    end if;
    return (select nullif(s.timeout_ms, 0) from ojs.settings s);
end;
$$;
comment on function ojs._timeout_ms(int) is
'Returns how many milliseconds an attempt may run; null: without limit. p_timeout_ms: the job''s own
timeout.';

create or replace function ojs._lease_end(p_now timestamptz, p_visibility_timeout_ms int, p_started_at timestamptz, p_limit_ms int)
returns timestamptz
language sql stable
as $$
    select least(p_now + coalesce(p_visibility_timeout_ms, 30000) * interval '1 millisecond',
        p_started_at + p_limit_ms * interval '1 millisecond')
$$;
comment on function ojs._lease_end(timestamptz, int, timestamptz, int) is
'Returns when a lease that is given or extended at p_now ends: after p_visibility_timeout_ms (null:
30000), but not later than p_limit_ms after the attempt began (null: no limit). Becomes part of the
expression that asks.';

create or replace function ojs._released(p_job ojs.job, p_to ojs.job_state, p_fenced boolean) returns void
language plpgsql
as $$
begin
    insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, fenced,
        pool)
    values (p_job.tenant_id, p_job.queue, p_job.priority, p_job.id, p_job.type, p_job.attempt, p_job.state, p_to, p_job.started_at,
        p_fenced, p_job.pool);
    if p_job.state = 'active' and (p_job.charged is not null or p_job.pool is not null or exists (select from ojs.rule)) then
        perform ojs._count_ends(array[(p_job.tenant_id, p_job.queue, p_job.priority, p_job.seq, p_job.started_at, p_job.pool, p_job.charged)
            ::ojs._counted_end], ojs.now());
    end if;
end;
$$;
comment on function ojs._released(ojs.job, ojs.job_state, boolean) is
'Appends to ojs.release that a job left its state. p_job: as it was; p_to: the state that it
enters.';
comment on type ojs._counted_end is
'An attempt that has ended, as limits and shares by time need it: tenant, queue, priority and seq of
its job, when it began, the pool in which it ran, and how many seconds its tenant was charged (null:
its tenant does not share by time).';

create or replace function ojs._count_ends(p_ends ojs._counted_end[], p_now timestamptz) returns boolean
language plpgsql
as $$
declare
    v_all record;
begin
    select array_agg(e.tenant_id) as tenants, array_agg(e.queue) as queues, array_agg(e.pool) as pools, count(e.charged) as charged,
        count(e.pool) > 0 or exists (select from ojs.rule) as limited into v_all
    from unnest(p_ends) e;
    if v_all.charged > 0 then
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, owed, price, seconds, lo, hi, at)
        select e.tenant_id, e.queue, e.priority, 'active', 'active', 0, count(*),
            sum(greatest(ojs._seconds(p_now - e.started_at)::float8, 0) - e.charged), sum(ojs._seconds(p_now - e.started_at)), min(e.seq),
            max(e.seq), p_now
        from unnest(p_ends) e where e.charged is not null group by e.tenant_id, e.queue, e.priority;
    end if;
    if v_all.limited then
        perform ojs._notify_room(v_all.tenants, v_all.queues, v_all.pools);
    end if;
    return true;
end;
$$;
comment on function ojs._count_ends(ojs._counted_end[], timestamptz) is
'Writes into the journal by how much attempts that ended at p_now ran longer than was charged, and
notifies workers that wait for capacity.
The next fold charges the difference (less than 0: shorter). Returns true. A caller may leave this
out if no attempt was charged, no attempt ran in a pool, and ojs.rule is empty: nothing is to be
done then.';

create or replace function ojs._woken(p_job ojs.job, p_from ojs.job_state) returns void
language plpgsql
as $$
begin
    insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
    values (p_job.tenant_id, p_job.queue, p_job.priority, p_from, 'available', 1, p_job.seq, p_job.seq);
    perform ojs._notify(array[p_job.queue]);
    if p_job.expires_at is not null then
        -- The tick dropped a timer that was due during the attempt. Without a new one, a job that
        -- has expired meanwhile would never be discarded.
        insert into ojs.timer (due_at, kind, tenant_ids, ids) values (p_job.expires_at, 'expiry', array[p_job.tenant_id], array[p_job.id]);
    end if;
end;
$$;
comment on function ojs._woken(ojs.job, ojs.job_state) is
'Appends to the journal that one job became available, and notifies. p_from: the state that it left;
available if ojs.release has that state.';
