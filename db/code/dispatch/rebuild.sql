-- Makes the state of fairness anew.
-- Locks the rows of ojs.rule, and then ojs.lane until the end of the transaction, so that decisions
-- wait.
-- Writes fold, revisit, dispatch_state, tenant_fairness, usage and rule.
create or replace function ojs.rebuild() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_next xid8 := pg_snapshot_xmax(pg_current_snapshot());
begin
    perform ojs._fetched_nothing();
    -- All limits are counted anew. A session that changes a limit is waited for before the lane is
    -- taken, while dispatch goes on.
    perform from ojs.rule r for update;
    perform ojs._enter_lane(), ojs._notice_copy();
    -- A rebuild of many tenants may take longer than 10 seconds.
    perform ojs._take_long();
    if (select ojs._foreign(f.snapshot) from ojs._folded() f) then
        -- Give these rows a low transaction id. Otherwise they would count as new once more when
        -- transaction ids here reach theirs.
        update ojs.journal j set xid = '3' where j.xid >= v_next;
        update ojs.release r set xid = '3' where r.xid >= v_next;
        update ojs.lease l set xid = '3' where l.xid >= v_next;
    end if;
    update ojs.fold f set rev = f.rev + 1, snapshot = ojs._snapshot(), part_xid = null, part_lo = null;
    delete from ojs.revisit;
    delete from ojs.dispatch_state;
    delete from ojs.tenant_fairness;
    -- The recursion reads the first job of each tenant, queue and priority from the index, however
    -- many jobs there are. Decisions then move the cursors past jobs that have ended.
    with recursive shard as (
        (select j.queue, j.priority, j.tenant_id, j.seq from ojs.job j where j.seq is not null
        order by j.queue, j.priority, j.tenant_id, j.seq limit 1)
        union all
        select n.* from shard s cross join lateral (
            select j.queue, j.priority, j.tenant_id, j.seq from ojs.job j
            where (j.queue, j.priority, j.tenant_id) > (s.queue, s.priority, s.tenant_id) and j.seq is not null
            order by j.queue, j.priority, j.tenant_id, j.seq limit 1) n
    )
    insert into ojs.tenant_fairness (queue, priority, tenant_id, ready, weight, job_priority, head, cursors, vtime)
    select s.queue, s.rank, s.tenant_id, true, w.weight, (s.cursors[1]).job_priority, (s.cursors[1]).head,
        nullif(s.cursors[2:], '{}'), case when s.unit = 'none' then s.seq
            else ojs._join_at(0, 0, w.weight, 0, row_number() over (partition by s.queue, s.rank)) end
    from (
        select s.queue, s.tenant_id, min(s.seq) as seq, t.weight, t.throttle,
            ojs._unit(q.config -> 'tenant_fairness') as unit,
            case when ojs._own_order(q.config -> 'tenant_fairness') then 0 else s.priority + coalesce(t.priority_boost, 0) end as rank,
            array_agg(row(s.priority, s.seq - 1, null, 0, true)::ojs.cursor order by s.priority desc) as cursors
        from shard s left join ojs.tenant t on t.tenant_id = s.tenant_id left join ojs.queue q on q.queue = s.queue
        group by s.queue, s.tenant_id, t.weight, t.throttle, q.config, rank
    ) s cross join lateral ojs._weight_in(s.queue, s.tenant_id, s.weight, s.throttle) w;
    perform ojs._set_state(q.queue, ojs._unit(q.config -> 'tenant_fairness'), ojs._own_order(q.config -> 'tenant_fairness'))
    from (
        select coalesce(f.queue, q.queue) as queue, q.config from (select distinct f.queue from ojs.tenant_fairness f) f
        full join ojs.queue q on q.queue = f.queue
    ) q
    where exists (select from ojs.tenant_fairness f where f.queue = q.queue) or ojs._unit(q.config -> 'tenant_fairness') <> 'jobs'
        or ojs._own_order(q.config -> 'tenant_fairness');
    perform ojs._recount_usage();
end;
$$;
comment on function ojs.rebuild() is
'Makes the state of fairness anew from the jobs.
For after a logical restore, where the stored snapshot has transaction ids of another cluster. The
tick notices this and calls it; until then ojs.fetch refuses. Reads the first job of each tenant,
queue and priority; dispatch waits meanwhile. Deficits begin at 0.
Raises conflict in a transaction that has fetched jobs.';

create or replace function ojs._notice_copy() returns void
language plpgsql
as $$
declare
    -- No cluster reaches this snapshot, so each reader of it takes it for one of another cluster.
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
comment on function ojs._notice_copy() is
'In a logical copy marks all stored snapshots as those of another cluster, so that each reader
begins anew, also where transaction ids here lie ahead of the stored ones.
Does not wait: if another session holds the lane, the next tick does this.';

create or replace function ojs._begin_after_restore() returns boolean
language plpgsql
as $$
begin
    if not (select ojs._foreign(f.snapshot) from ojs._folded() f) then
        return false;
    end if;
    -- Counting all jobs may take longer than 10 seconds. The rebuild follows in ojs._catch_up,
    -- which takes the lane once more.
    perform ojs._take_long();
    perform ojs._move_clock(ojs._clock_mark(), ojs.now(), 1, '1:1:', '-infinity');
    perform ojs._roll_up();
    perform ojs._catch_up();
    return true;
end;
$$;
comment on function ojs._begin_after_restore() is
'In a logical copy begins the clock, the statistics and decisions anew; returns whether this
database is one.
Runs before a tick does anything else, because rows that the tick writes could not be distinguished
from rows of the other cluster. Runs while dispatch is held, too: once the transaction ids here have
reached the stored ones, a copy can no longer be recognized.';

create or replace function ojs._catch_up() returns void
language plpgsql
as $$
declare
    v_fold   ojs.fold;
    v_limits boolean := exists (select from ojs.rule r where r.most is not null);
begin
    select * into v_fold from ojs._folded();
    if not ojs._foreign(v_fold.snapshot) and v_fold.part_xid is null
            and not (v_limits and exists (select from ojs._ends(v_fold.snapshot, null)))
            and not exists (select from ojs._unfolded() offset 1000)
            and not exists (select from ojs._unfolded() f where f.to_state = 'active' or f.at < ojs.now() - interval '1 minute') then
        return;
    end if;
    if not ojs._enter_lane(-1) then
        return;
    elsif ojs._foreign(v_fold.snapshot) then
        perform ojs.rebuild();
    else
        perform ojs._fold_on();
    end if;
end;
$$;
comment on function ojs._catch_up() is
'Folds for 100 ms at most, where no decision would do it in time; in a logical copy rebuilds the
state of fairness.
Folds if 1000 rows wait, a row is a minute old, attempts are to be charged, attempts have ended
under a limit, or a transaction is folded in part. If another session holds the lane, does nothing.
For the tick.';
