create or replace function ojs._moved(p_from ojs.job_state, p_to ojs.job_state, p_state ojs.job_state) returns int
language sql immutable
as $$ select (p_to = p_state)::int - (p_from is not distinct from p_state)::int $$;
comment on function ojs._moved(ojs.job_state, ojs.job_state, ojs.job_state) is
'By how much a move of one job changes the number of jobs in p_state: 1, 0 or -1. Becomes part of
the expression that asks.';

create or replace function ojs._changes(p_from pg_snapshot, p_to pg_snapshot) returns setof ojs.tally
language sql stable rows 100
as $$
    select m.tenant_id, m.queue, m.priority,
        sum(m.jobs * ojs._moved(m.from_state, m.to_state, 'scheduled')),
        sum(m.jobs * ojs._moved(m.from_state, m.to_state, 'available')),
        sum(m.jobs * ojs._moved(m.from_state, m.to_state, 'pending')),
        sum(m.jobs * ojs._moved(m.from_state, m.to_state, 'active')),
        sum(m.jobs * ojs._moved(m.from_state, m.to_state, 'retryable')),
        coalesce(sum(m.jobs) filter (where m.to_state = 'completed'), 0),
        coalesce(sum(m.jobs) filter (where m.to_state = 'cancelled'), 0),
        sum(m.jobs * ojs._moved(m.from_state, m.to_state, 'discarded')),
        coalesce(sum(m.jobs) filter (where m.from_state is null), 0),
        sum(m.failed), coalesce(sum(m.jobs) filter (where m.to_state = 'active'), 0), 0::bigint,
        coalesce(sum(m.jobs) filter (where m.to_state = 'discarded' and m.from_state <> 'discarded'), 0),
        coalesce(round(1000 * sum(m.seconds::float8) filter (where m.from_state = 'active')), 0)::bigint
    from ojs._since(p_from, p_to, false) m
    -- Rows with 0 jobs are there for decisions.
    where m.jobs <> 0
    group by m.tenant_id, m.queue, m.priority
$$;
comment on function ojs._changes(pg_snapshot, pg_snapshot) is
'The changes of the numbers in ojs.tally between two snapshots, by the journals; arguments as for
ojs._since.';

-- plpgsql, for a plan of its own: it reads the few rows at the end of the journals by index,
-- whatever the planner of the calling query assumes about their number. security definer, because a
-- row of ojs.lease names jobs of several tenants, which no policy could separate.
create or replace function ojs._recent() returns setof ojs.tally
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
    v_own  text := ojs.current_tenant();
    v_all  boolean := ojs._sees_all();
begin
    return query select c.* from ojs._changes(v_mark, null) c where v_all or c.tenant_id = v_own;
end;
$$;
comment on function ojs._recent() is
'Changes of the numbers in ojs.tally that are visible now and not rolled up yet. A tenant gets its
own.';

-- Adds what the journals have had since the last call to ojs.tally.
-- Locks the row of ojs.tally_mark (skip locked).
-- Writes a version of each row that changes and of the mark; nothing if nothing has happened.
create or replace function ojs._roll_up() returns int
language plpgsql
as $$
declare
    v_mark ojs.tally_mark;
    v_rows int;
begin
    perform ojs._close_usage(ojs.now());
    -- Without this check, an idle system would lock the mark and write at every tick.
    select t.* into v_mark from ojs.tally_mark t order by t.rev desc limit 1;
    if not ojs._foreign(v_mark.snapshot)
            and not exists (select from ojs._since(v_mark.snapshot, null, false) s where s.jobs <> 0) then
        return 0;
    end if;
    -- Not found: another server has the row locked, or has moved it to a higher rev since it was
    -- read.
    perform from ojs.tally_mark t where t.rev = v_mark.rev for update skip locked;
    if not found then
        return 0;
    end if;
    -- Again, because another session may have had the mark locked above.
    perform ojs._close_usage(ojs.now());
    if exists (select from ojs._movement m where m.xid = pg_current_xact_id() and m.lo is not null)
            or exists (select from ojs._movement m where m.xid = pg_current_xact_id() and m.lo is null) then
        -- The snapshot does not hold this transaction: its own rows would be counted now and by the
        -- next tick.
        return 0;
    end if;
    if ojs._foreign(v_mark.snapshot) then
        -- The snapshot is of another cluster, as after a restore: its transaction ids mean nothing
        -- here.
        perform ojs._recount(), ojs._count_quotas();
        perform ojs._meet_all() where exists (select from ojs.tier r where r.name = 'default');
        update ojs.tally_mark t set rev = t.rev + 1, snapshot = ojs._snapshot(), at = ojs.now() where t.rev = v_mark.rev;
        return 1;
    end if;
    with mark as materialized (
        select ojs._snapshot() as snapshot
    ), recent as materialized (
        -- Find rows by ctid. By the key, a plan made while the table was small would compare every
        -- row with every change.
        select r.*, t.spot
        from ojs._changes(v_mark.snapshot, null) r
        left join lateral (select t.ctid as spot from ojs.tally t where t.tenant_id = r.tenant_id and t.queue = r.queue
            and t.priority = r.priority order by t.rev desc limit 1) t on true
    ), marked as (
        update ojs.tally_mark t set rev = t.rev + 1, snapshot = m.snapshot, at = ojs.now() from mark m where t.rev = v_mark.rev
            and exists (select from recent)
    ), added as (
        insert into ojs.tally (tenant_id, queue, priority, scheduled, available, pending, active, retryable, completed, cancelled,
            discarded, total, failed, dispatched, failed_jobs, worker_ms)
        select r.tenant_id, r.queue, r.priority, r.scheduled, r.available, r.pending, r.active, r.retryable, r.completed, r.cancelled,
            r.discarded, r.total, r.failed, r.dispatched, r.failed_jobs, r.worker_ms
        from recent r where r.spot is null
    ), changed as (
        update ojs.tally t
        set rev = t.rev + 1, scheduled = t.scheduled + r.scheduled, available = t.available + r.available, pending = t.pending + r.pending,
            active = t.active + r.active, retryable = t.retryable + r.retryable, completed = t.completed + r.completed,
            cancelled = t.cancelled + r.cancelled, discarded = t.discarded + r.discarded, total = t.total + r.total,
            failed = t.failed + r.failed, dispatched = t.dispatched + r.dispatched, failed_jobs = t.failed_jobs + r.failed_jobs,
            worker_ms = t.worker_ms + r.worker_ms
        from recent r where t.ctid = r.spot
    )
    select count(*) into v_rows from recent;
    perform ojs._roll_up_pools(v_mark.snapshot), ojs._use_quotas(v_mark.snapshot), ojs._meet_rolled_up(v_mark.snapshot)
    where v_rows > 0;
    return v_rows;
end;
$$;
comment on function ojs._roll_up() is
'Adds the movements since ojs.tally_mark to ojs.tally and moves the mark, in one statement, so that
every reader sees both or neither. If another server does it, it does nothing.';

create or replace function ojs._pool_changes(p_pool int, p_from pg_snapshot, p_to pg_snapshot)
returns table (active bigint, dispatched bigint)
language sql stable rows 1
as $$
    select coalesce(sum(m.jobs * ojs._moved(m.from_state, m.to_state, 'active')), 0)::bigint,
        coalesce(sum(m.jobs) filter (where m.to_state = 'active'), 0)::bigint
    from (
        select m.* from ojs._pool_movement m
        where m.pool = p_pool and m.xid >= pg_snapshot_xmax(p_from) and pg_visible_in_snapshot(m.xid, p_to) is not false
        union all
        select m.* from pg_snapshot_xip(p_from) x(xid)
        cross join lateral (select m.* from ojs._pool_movement m where m.pool = p_pool and m.xid = x.xid offset 0) m
        where pg_visible_in_snapshot(x.xid, coalesce(p_to, (select pg_current_snapshot())))
    ) m
$$;
comment on function ojs._pool_changes(int, pg_snapshot, pg_snapshot) is
'The changes of the numbers of a pool in ojs.pool_tally between two snapshots, by the journals, as
for ojs._since; p_to null: up to now.';

create or replace function ojs._roll_up_pools(p_from pg_snapshot) returns void
language plpgsql
as $$
declare
    v_to pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    with recent as materialized (
        select p.id as pool, c.*, t.rev from ojs.pool p cross join lateral ojs._pool_changes(p.id, p_from, v_to) c
        left join lateral (select t.rev from ojs.pool_tally t where t.pool = p.id order by t.rev desc limit 1) t on true
        where c.active <> 0 or c.dispatched <> 0
    ), added as (
        insert into ojs.pool_tally (pool, active, dispatched) select r.pool, r.active, r.dispatched from recent r where r.rev is null
    )
    update ojs.pool_tally t set rev = t.rev + 1, active = t.active + r.active, dispatched = t.dispatched + r.dispatched
    from recent r where t.pool = r.pool and t.rev = r.rev;
end;
$$;
comment on function ojs._roll_up_pools(pg_snapshot) is
'Adds to ojs.pool_tally the changes between p_from and the snapshot of ojs.tally_mark.';

create or replace function ojs._recount() returns void
language plpgsql
as $$
begin
    perform ojs._rebase_usage(-1);
    delete from ojs.tally;
    delete from ojs.history;
    insert into ojs.tally (tenant_id, queue, priority, scheduled, available, pending, active, retryable, completed, cancelled,
        discarded, total, failed, dispatched, failed_jobs)
    select j.tenant_id, j.queue, j.priority,
        count(*) filter (where j.state = 'scheduled'), count(*) filter (where j.state = 'available'),
        count(*) filter (where j.state = 'pending'), count(*) filter (where j.state = 'active'),
        count(*) filter (where j.state = 'retryable'), count(*) filter (where j.state = 'completed'),
        count(*) filter (where j.state = 'cancelled'), count(*) filter (where j.state = 'discarded'),
        count(*), coalesce(sum(jsonb_array_length(j.errors)), 0), sum(j.attempt),
        count(*) filter (where j.state = 'discarded')
    from (
        select j.tenant_id, j.queue, j.priority, j.state, j.errors, j.attempt from ojs.job j
        union all
        select k.tenant_id, k.queue, k.priority, k.state, k.errors, k.attempt from ojs.dead_job k
    ) j
    group by j.tenant_id, j.queue, j.priority;
    perform ojs._rebase_usage(1);
    delete from ojs.pool_tally;
    if exists (select from ojs.pool) then
        insert into ojs.pool_tally (pool, active, dispatched)
        select j.pool, count(*) filter (where j.state = 'active'), 0 from ojs.job j where j.pool is not null group by j.pool;
    end if;
end;
$$;
comment on function ojs._recount() is
'Makes ojs.tally and ojs.pool_tally anew from the jobs. Reads all jobs.';
