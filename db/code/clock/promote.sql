create or replace function ojs._promote(p_tenants text[], p_ids uuid[]) returns int
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_queues text[];
    v_jobs   int;
begin
    with asked as materialized (
        select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)
    ), held as materialized (
        select j.id, j.tenant_id, j.state, coalesce(j.retry_at, j.scheduled_at) as due_at
        from asked a
        cross join lateral (select j.* from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id
              and (j.state = 'scheduled' and j.scheduled_at <= v_now or j.state = 'retryable' and j.retry_at <= v_now)
            for update skip locked) j
    ), numbered as materialized (
        select h.*, nextval('ojs.job_seq') as seq from (select * from held order by due_at, id) h
    ), promoted as (
        update ojs.job j set state = 'available', seq = n.seq, enqueued_at = v_now
        from numbered n where j.id = n.id and j.tenant_id = n.tenant_id
        returning j.tenant_id, j.queue, j.priority, n.state as from_state, j.seq
    ), noted as (
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select p.tenant_id, p.queue, p.priority, p.from_state, 'available', count(*), min(p.seq), max(p.seq)
        from promoted p group by p.tenant_id, p.queue, p.priority, p.from_state
        returning queue
    ), later as (
        -- Jobs that another session has locked, or that were moved to a later time, get a new
        -- timer.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select greatest(coalesce(j.retry_at, j.scheduled_at), v_now + ojs._moment()), 'due', array[j.tenant_id], array[j.id]
        from asked a
        cross join lateral (select j.* from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id
            and j.state in ('scheduled', 'retryable') limit 1) j
        where (a.id, a.tenant_id) not in (select h.id, h.tenant_id from held h)
    )
    select (select array_agg(distinct n.queue) from noted n), (select count(*) from promoted) into v_queues, v_jobs;
    perform ojs._notify(v_queues);
    return v_jobs;
end;
$$;
comment on function ojs._promote(text[], uuid[]) is
'Makes the jobs that are due available, behind jobs that are available already, and returns how
many.';

create or replace function ojs._expire_due(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
begin
    with ended as materialized (
        select x.id, x.tenant_id from ojs._discard_expired(p_ids, p_tenants) x
    )
    -- Jobs that another session has locked get a new timer. An active job gets one when its attempt
    -- ends (ojs._book).
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select greatest(j.expires_at, v_now + ojs._moment()), 'expiry', array[j.tenant_id], array[j.id]
    from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)) a
    cross join lateral (select j.expires_at, j.tenant_id, j.id, j.state from ojs.job j
        where j.id = a.id and j.tenant_id = a.tenant_id and j.expires_at is not null limit 1) j
    where j.state <> 'active' and not ojs._ended(j.state) and (a.id, a.tenant_id) not in (select e.id, e.tenant_id from ended e);
end;
$$;
comment on function ojs._expire_due(text[], uuid[]) is
'Discards jobs that still wait after their expires_at.';

create or replace function ojs._revisit_now(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_queues text[];
begin
    -- Jobs that lie close together share a row, because this repeats every second while another
    -- session has them locked.
    with noted as (
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select j.tenant_id, j.queue, j.priority, 'available', 'available', 1, r.lo, r.hi
        from (
            select j.tenant_id, j.queue, j.priority, array_agg(j.seq) as seqs
            from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)) a
            cross join lateral (select j.tenant_id, j.queue, j.priority, j.seq from ojs.job j
                where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'available' limit 1) j
            group by j.tenant_id, j.queue, j.priority
        ) j cross join lateral ojs._islands(j.seqs, j.seqs) r
        returning queue
    )
    select array_agg(distinct n.queue) into v_queues from noted n;
    perform ojs._notify(v_queues);
end;
$$;
comment on function ojs._revisit_now(text[], uuid[]) is
'Has the next fold make ranges of the jobs that are still available, so that they are revisited.';

create or replace function ojs._discard_expired(p_ids uuid[], p_tenants text[]) returns table (id uuid, tenant_id text)
language sql
as $$
    with held as materialized (
        select j.* from unnest(p_ids, p_tenants) e(id, tenant_id)
        cross join lateral (select j.id, j.tenant_id, j.state from ojs.job j
            where j.id = e.id and j.tenant_id = e.tenant_id and j.state <> 'active' and not ojs._ended(j.state)
              and j.expires_at <= ojs.now()
            for update skip locked) j
    ), ended as (
        update ojs.job j set state = 'discarded', finished_at = ojs.now(), retry_at = null
        from held h where j.id = h.id and j.tenant_id = h.tenant_id
        returning j.tenant_id, j.queue, j.priority, j.id, j.type, j.attempt, h.state as from_state
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
        select e.tenant_id, e.queue, e.priority, e.id, e.type, e.attempt, e.from_state, 'discarded' from ended e
    )
    select h.id, h.tenant_id from held h
$$;
comment on function ojs._discard_expired(uuid[], text[]) is
'Discards jobs that wait for a worker or for their time after their expires_at, and returns their
ids (ojs-core section 5.2). Passes over jobs that another session has locked.';
