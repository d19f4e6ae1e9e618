-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._promote(p_tenants text[], p_ids uuid[]) returns int
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
    ), woken as (
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select p.tenant_id, p.queue, p.priority, p.from_state, 'available', count(*), min(p.seq), max(p.seq)
        from promoted p group by p.tenant_id, p.queue, p.priority, p.from_state
        returning queue
    ), later as (
        -- Locked by somebody just now, or moved to a later time: look again.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select greatest(coalesce(j.retry_at, j.scheduled_at), v_now + interval '1 second'), 'due', array[j.tenant_id], array[j.id]
        from asked a
        cross join lateral (select j.* from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state in ('scheduled', 'retryable') limit 1) j
        where (a.id, a.tenant_id) not in (select h.id, h.tenant_id from held h)
    )
    select (select array_agg(distinct w.queue) from woken w), (select count(*) from promoted) into v_queues, v_jobs;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    return v_jobs;
end;
$$;
-- +goose StatementEnd
comment on function ojs._promote(text[], uuid[]) is
'Makes those of the jobs that are due available; they line up behind what was available before. Returns how many.';

-- +goose StatementBegin
create function ojs._expire_due(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
begin
    with ended as materialized (
        select x.id, x.tenant_id from ojs._discard_expired(p_ids, p_tenants) x
    )
    -- Locked by somebody just now: look again. In a worker's hands: it may come back.
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select case when j.state = 'active' then greatest(j.lease_expires_at, v_now + interval '1 second') else greatest(j.expires_at, v_now + interval '1 second') end, 'expiry', array[j.tenant_id], array[j.id]
    from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)) a
    cross join lateral (select j.* from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state not in ('completed', 'cancelled', 'discarded') and j.expires_at is not null limit 1) j
    where (a.id, a.tenant_id) not in (select e.id, e.tenant_id from ended e);
end;
$$;
-- +goose StatementEnd
comment on function ojs._expire_due(text[], uuid[]) is 'Discards those of the jobs that wait past their expires_at.';

-- +goose StatementBegin
create function ojs._wake_again(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_queues text[];
begin
    with woken as (
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select j.tenant_id, j.queue, j.priority, 'available', 'available', 1, j.seq, j.seq
        from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)) a
        cross join lateral (select j.* from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'available' limit 1) j
        returning queue
    )
    select array_agg(distinct w.queue) into v_queues from woken w;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    -- As long as somebody has hold of what was decided ahead.
    perform ojs._look_again(array_agg(r.tenant_id), array_agg(r.id))
    from unnest(v_queues) q(queue)
    cross join lateral (select m.held from ojs.run_mark m where m.queue = q.queue order by m.rev desc limit 1) m
    cross join lateral unnest(m.held) h(n)
    cross join lateral (select r.tenant_id, r.id from ojs.run r where r.queue = q.queue and r.n = h.n limit 1) r
    where r.id = any (p_ids);
end;
$$;
-- +goose StatementEnd
comment on function ojs._wake_again(text[], uuid[]) is 'Has the next decision look again at those of the jobs that are still available.';
reset role;
