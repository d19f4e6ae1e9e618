-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- Makes the fairness state anew.
-- Locks ojs.lane until the end of the transaction, so that decisions wait.
-- Writes fold, again, turn, turn_mark, backlog, level and tenant_fairness.
-- +goose StatementBegin
create function ojs.rebuild() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_next xid8 := pg_snapshot_xmax(pg_current_snapshot());
begin
    perform ojs._fetched_nothing();
    perform ojs._enter_lane(), ojs._notice_copy();
    if current_setting('server_version_num')::int >= 170000 then
        -- ojs._enter_lane has limited the transaction to ten seconds; a rebuild of many tenants may take longer.
        perform set_config('transaction_timeout', '0', true);
    end if;
    if (select ojs._foreign(f.snapshot) from ojs._folded() f) then
        -- Else rows of the other cluster would be new once more when the ids of transactions here come to theirs.
        update ojs.journal j set xid = '3' where j.xid >= v_next;
        update ojs.release r set xid = '3' where r.xid >= v_next;
        update ojs.lease l set xid = '3' where l.xid >= v_next;
    end if;
    update ojs.fold f set rev = f.rev + 1, snapshot = ojs._snapshot(), part_xid = null, part_lo = null;
    delete from ojs.again;
    delete from ojs.turn r using (select r.ctid as place from ojs.turn r for update skip locked) f where r.ctid = f.place;
    update ojs.turn_mark m set rev = m.rev + 1, lo = m.hi + 1, held = (select count(*) from ojs.turn t where t.queue = m.queue);
    delete from ojs.backlog;
    delete from ojs.level;
    delete from ojs.tenant_fairness;
    -- The recursion looks up the first job of each tenant, queue and priority in the index, however many jobs there are. Decisions then
    -- move the cursors past jobs that have ended.
    with recursive shard as (
        (select j.queue, j.priority, j.tenant_id, j.seq from ojs.job j where j.seq is not null
        order by j.queue, j.priority, j.tenant_id, j.seq limit 1)
        union all
        select n.* from shard s cross join lateral (
            select j.queue, j.priority, j.tenant_id, j.seq from ojs.job j
            where (j.queue, j.priority, j.tenant_id) > (s.queue, s.priority, s.tenant_id) and j.seq is not null
            order by j.queue, j.priority, j.tenant_id, j.seq limit 1) n
    )
    insert into ojs.tenant_fairness (queue, priority, tenant_id, ready, weight, limited, job_priority, head, lines, vtime)
    select s.queue, s.rank, s.tenant_id, true, w.weight, s.limited, (s.cursors[1]).job_priority, (s.cursors[1]).head,
        nullif(s.cursors[2:], '{}'), case when s.unit = 'none' then s.seq
            else ojs._join_at(0, 0, w.weight, 0, row_number() over (partition by s.queue, s.rank)) end
    from (
        select s.queue, s.tenant_id, min(s.seq) as seq, t.weight, t.throttle, coalesce(t.limited, false) as limited,
            ojs._unit(q.config -> 'tenant_fairness') as unit,
            case when ojs._own_order(q.config -> 'tenant_fairness') then 0 else s.priority + coalesce(t.priority_boost, 0) end as rank,
            array_agg(row(s.priority, s.seq - 1, false, 0, 0, true)::ojs.cursor order by s.priority desc) as cursors
        from shard s left join ojs.tenant t on t.tenant_id = s.tenant_id left join ojs.queue q on q.queue = s.queue
        group by s.queue, s.tenant_id, t.weight, t.throttle, t.limited, q.config, rank
    ) s cross join lateral ojs._weight_in(s.queue, s.tenant_id, s.weight, s.throttle) w;
    insert into ojs.level (queue, priority, rev, low, tenants, joined, weight, moment)
    select f.queue, f.priority, 1, 0, count(*), count(*), sum(f.weight), sum(f.weight * f.vtime)
    from ojs.tenant_fairness f group by f.queue, f.priority;
    insert into ojs.backlog (queue, rev, priorities, unit, own_order)
    select coalesce(l.queue, c.queue), 1, coalesce(array_agg(l.priority order by l.priority desc) filter (where l.queue is not null), '{}'),
        coalesce(max(c.unit), 'jobs'), coalesce(bool_or(c.own_order), false)
    from ojs.level l full join (select q.queue, ojs._unit(q.config -> 'tenant_fairness') as unit,
        ojs._own_order(q.config -> 'tenant_fairness') as own_order from ojs.queue q) c on c.queue = l.queue
    where l.queue is not null or c.unit <> 'jobs' or c.own_order group by 1;
    perform ojs._recount_slots();
end;
$$;
-- +goose StatementEnd
comment on function ojs.rebuild() is
'Makes the fairness state anew from the jobs. For after a logical restore, whose transaction ids are not those that the stored snapshot
knows; the tick notices and calls it, and until then ojs.fetch refuses. Looks once at each tenant, queue and priority; dispatch
waits meanwhile. Deficits begin at 0.';

-- +goose StatementBegin
create function ojs._notice_copy() returns void
language plpgsql
as $$
declare
    -- No cluster comes so far, so that to all who remember a snapshot it is another one's.
    c_beyond constant pg_snapshot := '9000000000000000000:9000000000000000000:';
begin
    if (select f.home = 'ojs.fold'::regclass from ojs._folded() f) or not ojs._enter_lane(-1) then
        return;
    end if;
    update ojs.fold f set home = 'ojs.fold'::regclass, snapshot = c_beyond;
    update ojs.tally_mark t set snapshot = c_beyond, pace_snapshot = c_beyond;
    update ojs.clock_mark m set seen = c_beyond;
end;
$$;
-- +goose StatementEnd
comment on function ojs._notice_copy() is
'In a logical copy makes all marks those of another cluster, so that each begins anew, even where transaction ids here are ahead of those
that are stored. Waits for nobody: who holds the lane is told of it by the next tick.';

-- +goose StatementBegin
create function ojs._begin_after_restore() returns void
language plpgsql
as $$
begin
    if (select ojs._foreign(f.snapshot) from ojs._folded() f) then
        perform ojs._move_clock(ojs._clock_mark(), ojs.now(), 1, '1:1:', '-infinity');
        perform ojs._roll_up();
        perform ojs._catch_up();
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._begin_after_restore() is
'In a logical copy begins the marks of the clock, of statistics and of decisions
anew. For while dispatch is held, because once the ids of producers'' transactions have caught up nobody can tell any more.';

-- +goose StatementBegin
create function ojs._catch_up() returns void
language plpgsql
as $$
declare
    v_fold ojs.fold;
begin
    select * into v_fold from ojs._folded();
    if v_fold.counts and not ojs._foreign(v_fold.snapshot) then
        perform ojs._take_aside();
    end if;
    if v_fold.part_xid is null and not ojs._foreign(v_fold.snapshot)
            and not (v_fold.counts and (ojs._slots_behind() or not exists (select from ojs.rule)))
            and not exists (select from ojs._fresh(v_fold.snapshot, null, null, null, null) offset 1000)
            and not exists (select from ojs._fresh(v_fold.snapshot, null, null, null, null) f
                where f.owed > 0 or f.at < ojs.now() - interval '1 minute') then
        return;
    end if;
    perform from ojs.lane l where l.lane = 0 for update skip locked;
    if not found then
        return;
    elsif ojs._foreign(v_fold.snapshot) then
        perform ojs.rebuild();
    else
        perform ojs._fold_on();
        -- With the last rule the tenants that it had parked come back by and by.
        perform ojs._count_or_not() where v_fold.counts and not exists (select from ojs.rule);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._catch_up() is
'Folds, for 100 ms at most, where nobody decides for long while producers go on, where jobs taken beside decisions are not charged yet, or
where a transaction is taken in by half; and begins anew in a logical copy. Somebody decides at this
moment: does nothing. For the tick.';
reset role;
