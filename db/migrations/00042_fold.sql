-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._fold() returns boolean
language plpgsql
as $$
declare
    c_bite   constant int := 10000;
    v_fold   ojs.fold;
    v_mark   pg_snapshot;
    v_until  xid8;
    v_joined record;
    v_ring   ojs.ring;
    v_owes   boolean;
    v_fresh  boolean;
begin
    select f.rev, f.snapshot, ojs._snapshot(),
        exists (select from ojs.lease l where l.owed > 0 and l.xid >= pg_snapshot_xmax(f.snapshot))
            or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select l.* from ojs.lease l where l.xid = x.xid and l.owed > 0 offset 0) l),
        exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(f.snapshot))
            or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' offset 0) w)
    into v_fold.rev, v_fold.snapshot, v_mark, v_owes, v_fresh
    from (select f.* from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f;
    if (v_owes or v_fresh) is not true then
        return false;
    end if;
    if (select m.rev from ojs.run_mark m order by m.queue desc, m.rev desc limit 1) is not null then
        -- What was decided ahead knows nothing of whoever joins now: this looks at what v_mark sees, and more.
        perform ojs._revoke(s.queue) from ojs._stale_queues() s(queue) where ojs._has_run(s.queue);
    end if;
    -- A long journal is taken in bites, a transaction always whole.
    select w.xid into v_until from ojs.wake w where w.xid >= pg_snapshot_xmax(v_fold.snapshot) order by w.xid, w.seq offset c_bite limit 1;
    if v_until = (select w.xid from ojs.wake w where w.xid >= pg_snapshot_xmax(v_fold.snapshot) order by w.xid, w.seq limit 1) then
        v_until := (select w.xid from ojs.wake w where w.xid > v_until order by w.xid, w.seq limit 1);
    end if;
    v_mark := ojs._snapshot_before(v_mark, v_until);
    for v_joined in
        with fresh as materialized (
            select w.* from (
                select w.* from ojs.wake w where w.xid >= pg_snapshot_xmax(v_fold.snapshot) and w.to_state = 'available'
                union all
                select w.* from pg_snapshot_xip(v_fold.snapshot) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' offset 0) w
            ) w
            -- What the transaction itself did counts, but not as folded: it may do more.
            where pg_visible_in_snapshot(w.xid, v_mark) or w.xid = pg_current_xact_id_if_assigned()
        ), shard as materialized (
            select s.*, s.job_priority + coalesce(t.priority_boost, 0) as priority, coalesce(t.weight, 1) as weight
            from (select f.queue, f.priority as job_priority, f.tenant_id, min(f.lo) as lo, array_agg(f.lo) as los, array_agg(f.hi) as his from fresh f group by f.queue, f.priority, f.tenant_id) s
            left join ojs.tenant t on t.tenant_id = s.tenant_id
        ), known as materialized (
            select s.*, coalesce(r.v, 0) as v, coalesce(r.drift, 0) as drift, f.rev, f.backlogged, f.head
            from shard s
            left join lateral (select r.v, r.drift from ojs.ring r where r.queue = s.queue and r.priority = s.priority order by r.rev desc limit 1) r on true
            left join lateral (select f.rev, f.backlogged, f.head from ojs.tenant_fairness f
                where f.queue = s.queue and f.priority = s.priority and f.tenant_id = s.tenant_id order by f.rev desc limit 1) f on true
        ), behind as (
            -- Jobs that became visible behind the cursor: each statement's own narrow range is searched for them.
            insert into ojs.reentry (queue, priority, tenant_id, id)
            select b.queue, b.priority, b.tenant_id, b.id
            from (
                select k.queue, k.priority, k.tenant_id, j.id, min(j.seq) as seq
                from known k
                cross join lateral unnest(k.los, k.his) w(lo, hi)
                -- The limit keeps this from being turned around: one index range per wake row.
                cross join lateral (
                    select j.id, j.seq from ojs.job j
                    where j.queue = k.queue and j.priority = k.job_priority and j.tenant_id = k.tenant_id and j.seq between w.lo and least(w.hi, k.head) and j.state = 'available'
                    order by j.seq limit 2147483647
                ) j
                where k.lo <= k.head and w.lo <= k.head
                group by k.queue, k.priority, k.tenant_id, j.id
            ) b
            -- What was decided ahead is on its way.
            where not exists (select from (select m.lo, m.held from ojs.run_mark m where m.queue = b.queue order by m.rev desc limit 1) m
                cross join lateral (
                    (select r.id, r.tenant_id from ojs.run r where r.queue = b.queue and r.n >= m.lo order by r.n limit 100000)
                    union all
                    select r.id, r.tenant_id from unnest(m.held) h(n) cross join lateral (select r.id, r.tenant_id from ojs.run r where r.queue = b.queue and r.n = h.n limit 1) r
                ) r where r.id = b.id and r.tenant_id = b.tenant_id)
            order by b.seq
        ), joined as (
            insert into ojs.tenant_fairness (queue, priority, tenant_id, vtime, weight, class, backlogged, job_priority, head)
            select k.queue, k.priority, k.tenant_id, k.v, k.weight, ojs._weight_class(k.weight), true, k.job_priority, k.lo - 1
            from known k where k.rev is null
            returning queue, priority, class, weight, vtime
        ), rejoined as (
            update ojs.tenant_fairness f
            set rev = f.rev + 1, backlogged = true, vtime = greatest(f.vtime, k.v + k.drift) - k.drift, drift = 0, weight = k.weight, class = ojs._weight_class(k.weight)
            from known k
            where not k.backlogged and f.queue = k.queue and f.priority = k.priority and f.tenant_id = k.tenant_id and f.rev = k.rev
            returning f.queue, f.priority, f.class, f.weight, f.vtime
        ), folded as (
            update ojs.fold f set rev = f.rev + 1, snapshot = v_mark
            where f.lane = 0 and f.rev = v_fold.rev
        )
        select j.queue, j.priority, j.class, count(*)::int as members, sum(j.weight) as weight, min(j.vtime) as head
        from (select * from joined union all select * from rejoined) j
        group by j.queue, j.priority, j.class
        order by j.queue, j.priority
    loop
        if v_ring.queue is distinct from v_joined.queue or v_ring.priority is distinct from v_joined.priority then
            if v_ring.queue is not null then
                perform ojs._ring_changed(v_ring);
            end if;
            v_ring := ojs._ring_here(v_joined.queue, v_joined.priority);
        end if;
        v_ring := ojs._ring_join(v_ring, v_joined.class, v_joined.members, v_joined.weight, v_joined.head);
    end loop;
    if v_ring.queue is not null then
        perform ojs._ring_changed(v_ring);
    end if;
    if v_owes then
        perform ojs._charge_owed(v_fold.snapshot);
    end if;
    return v_until is not null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fold() is
'Takes into the rings what the wake journal has gained since the last fold: exactly the rows visible now and not to the snapshot stored
then, so the order in which producers committed does not matter. A tenant that joins begins at the later of its own virtual time and V:
no credit from idleness, no turn lost. Jobs that were taken beside a decision are charged. Takes about 10000 rows at most and returns
whether there are more. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs.rebuild() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_ring   ojs.ring;
    v_joined record;
begin
    perform ojs._enter_lane();
    if current_setting('server_version_num')::int >= 170000 then
        -- Reading all jobs takes as long as it takes.
        perform set_config('transaction_timeout', '0', true);
    end if;
    update ojs.fold f set rev = f.rev + 1, snapshot = ojs._snapshot();
    delete from ojs.reentry;
    -- What somebody is taking at this moment stays, out of reach without a mark.
    delete from ojs.run r using (select r.ctid as place from ojs.run r for update skip locked) f where r.ctid = f.place;
    delete from ojs.run_mark;
    delete from ojs.ring;
    delete from ojs.queue_priority;
    delete from ojs.tenant_fairness;
    insert into ojs.tenant_fairness (queue, priority, tenant_id, vtime, weight, class, backlogged, job_priority, head)
    select j.queue, j.priority + coalesce(t.priority_boost, 0), j.tenant_id, 0, coalesce(t.weight, 1), ojs._weight_class(coalesce(t.weight, 1)), true, j.priority, j.lo - 1
    from (select j.queue, j.priority, j.tenant_id, min(j.seq) as lo from ojs.job j where j.state = 'available' group by j.queue, j.priority, j.tenant_id) j
    left join ojs.tenant t on t.tenant_id = j.tenant_id;
    for v_joined in
        select f.queue, f.priority, f.class, count(*)::int as members, sum(f.weight) as weight from ojs.tenant_fairness f group by f.queue, f.priority, f.class
    loop
        v_ring := ojs._ring_join(ojs._ring_here(v_joined.queue, v_joined.priority), v_joined.class, v_joined.members, v_joined.weight, 0);
        perform ojs._ring_changed(v_ring);
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs.rebuild() is
'Makes the fairness state anew from the jobs. For after a logical restore into another cluster, whose transaction ids the stored snapshot
does not know (ojs.fetch notices when they ran backwards and calls it itself). Reads all jobs; dispatch waits meanwhile. Deficits begin
at 0.';
reset role;
