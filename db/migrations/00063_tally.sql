-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- A function, so that the few rows at the end of the journal are read by index whatever the planner believes about their number.
-- +goose StatementBegin
create function ojs._recent() returns setof ojs.tally
language plpgsql stable rows 100 set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    return query
    select m.tenant_id, m.queue, m.priority,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'scheduled'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'scheduled'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'available'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'available'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'pending'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'pending'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'active'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'active'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'retryable'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'retryable'), 0))::bigint,
        coalesce(sum(m.jobs) filter (where m.to_state = 'completed'), 0)::bigint, coalesce(sum(m.jobs) filter (where m.to_state = 'cancelled'), 0)::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'discarded'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'discarded'), 0))::bigint,
        coalesce(sum(m.jobs) filter (where m.from_state is null), 0)::bigint,
        coalesce(sum(m.jobs) filter (where m.failure), 0)::bigint, 0::bigint
    from (
        select m.* from ojs._movement m where m.xid >= pg_snapshot_xmax(v_mark)
        union all
        select m.* from pg_snapshot_xip(v_mark) x(xid) cross join lateral (select m.* from ojs._movement m where m.xid = x.xid offset 0) m
    ) m
    group by m.tenant_id, m.queue, m.priority;
end;
$$;
-- +goose StatementEnd
comment on function ojs._recent() is 'Changes of the numbers in ojs.tally that are visible now and not rolled up yet.';

-- +goose StatementBegin
create function ojs._roll_up() returns int
language plpgsql
as $$
declare
    v_mark ojs.tally_mark;
    v_rows int;
begin
    -- Looked at first without a lock, so that an idle system writes nothing.
    select t.* into v_mark from ojs.tally_mark t order by t.rev desc limit 1;
    if pg_snapshot_xmax(v_mark.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
            and not exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(v_mark.snapshot))
            and not exists (select from ojs.lease l where l.xid >= pg_snapshot_xmax(v_mark.snapshot))
            and not exists (select from ojs.release r where r.xid >= pg_snapshot_xmax(v_mark.snapshot))
            and not exists (select from pg_snapshot_xip(v_mark.snapshot) x(xid) cross join lateral (select m.* from ojs._movement m where m.xid = x.xid offset 0) m) then
        return 0;
    end if;
    perform from ojs.tally_mark t where t.rev = v_mark.rev for update skip locked;
    if not found then
        return 0;
    end if;
    if exists (select from ojs._movement m where m.xid = pg_current_xact_id()) then
        -- What this transaction did before is not committed yet; a tick after it will count it, once.
        return 0;
    end if;
    if pg_snapshot_xmax(v_mark.snapshot) > pg_snapshot_xmax(pg_current_snapshot()) then
        -- Transaction ids ran backwards: this is a logical copy in another cluster. Count anew.
        delete from ojs.tally;
        insert into ojs.tally (tenant_id, queue, priority, scheduled, available, pending, active, retryable, completed, cancelled, discarded, total, failed)
        select j.tenant_id, j.queue, j.priority, count(*) filter (where j.state = 'scheduled'), count(*) filter (where j.state = 'available'),
            count(*) filter (where j.state = 'pending'), count(*) filter (where j.state = 'active'), count(*) filter (where j.state = 'retryable'),
            count(*) filter (where j.state = 'completed'), count(*) filter (where j.state = 'cancelled'), count(*) filter (where j.state = 'discarded'), count(*),
            coalesce(sum(jsonb_array_length(j.errors)), 0)
        from (select j.tenant_id, j.queue, j.priority, j.state, j.errors from ojs.job j union all select k.tenant_id, k.queue, k.priority, k.state, k.errors from ojs.dead_job k) j
        group by j.tenant_id, j.queue, j.priority;
        update ojs.tally_mark t set rev = t.rev + 1, snapshot = ojs._snapshot(), at = ojs.now() where t.rev = v_mark.rev;
        return 1;
    end if;
    with mark as materialized (
        select ojs._snapshot() as snapshot
    ), recent as materialized (
        select r.*, t.rev as old_rev
        from ojs._recent() r
        left join lateral (select t.rev from ojs.tally t where t.tenant_id = r.tenant_id and t.queue = r.queue and t.priority = r.priority
            order by t.rev desc limit 1) t on true
    ), marked as (
        update ojs.tally_mark t set rev = t.rev + 1, snapshot = m.snapshot, at = ojs.now() from mark m where t.rev = v_mark.rev and exists (select from recent)
    ), added as (
        insert into ojs.tally (tenant_id, queue, priority, scheduled, available, pending, active, retryable, completed, cancelled, discarded, total, failed)
        select r.tenant_id, r.queue, r.priority, r.scheduled, r.available, r.pending, r.active, r.retryable, r.completed, r.cancelled, r.discarded, r.total, r.failed
        from recent r where r.old_rev is null
    ), changed as (
        update ojs.tally t
        set rev = t.rev + 1, scheduled = t.scheduled + r.scheduled, available = t.available + r.available, pending = t.pending + r.pending,
            active = t.active + r.active, retryable = t.retryable + r.retryable, completed = t.completed + r.completed,
            cancelled = t.cancelled + r.cancelled, discarded = t.discarded + r.discarded, total = t.total + r.total, failed = t.failed + r.failed
        from recent r
        where t.tenant_id = r.tenant_id and t.queue = r.queue and t.priority = r.priority and t.rev = r.old_rev
    )
    select count(*) into v_rows from recent;
    return v_rows;
end;
$$;
-- +goose StatementEnd
comment on function ojs._roll_up() is
'Adds the movements since ojs.tally_mark to ojs.tally and moves the mark, in one statement: exact whenever it is read. Another server at
it: does nothing.';
reset role;
