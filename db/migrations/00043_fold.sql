-- +goose Up
-- The fold takes in what ojs.journal gained since the last fold: exactly the rows that are visible now and were not to the snapshot
-- stored then, so that none is missed whose transaction committed late. A tenant that comes with work joins. Jobs behind its cursor become
-- ranges that are looked at again, one per transaction, however many jobs it brought. Only under the row of ojs.lane.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._fold(p_queues text[] default '{}') returns boolean
language plpgsql
as $$
declare
    c_bite  constant int := 2000;
    v_fold  ojs.fold;
    v_to    pg_snapshot := ojs._snapshot();
    v_rows  bigint;
    v_taken boolean;
    v_xid   xid8;
    v_lo    bigint;
begin
    select * into v_fold from ojs._folded();
    if v_fold.counts then
        perform ojs._take_ends(v_to, p_queues);
    end if;
    if v_fold.part_xid is not null then
        return ojs._fold_part(v_fold, c_bite);
    end if;
    select count(*), bool_or(x.to_state = 'active') into v_rows, v_taken
    from (select s.to_state from ojs._fresh(v_fold.snapshot, v_to, null, null, null) s limit c_bite + 1) x;
    if v_rows = 0 then
        -- Otherwise the stretch of the journal that every caller looks through would grow until jobs come.
        update ojs.fold f set rev = f.rev + 1, snapshot = v_to
        where f.rev = v_fold.rev
          and pg_snapshot_xmax(v_to)::text::bigint - pg_snapshot_xmax(v_fold.snapshot)::text::bigint > c_bite;
        return false;
    end if;
    if v_rows > c_bite then
        select e.o_xid, e.o_lo into v_xid, v_lo from ojs._bite_end(v_fold.snapshot, v_to, c_bite) e;
    end if;
    -- Of the running transaction's own rows nothing is left for a next bite: they are taken in each time.
    if v_rows <= c_bite or v_xid is null then
        perform ojs._take_in(v_fold.snapshot, v_to, null, null, null, v_taken);
        update ojs.fold f set rev = f.rev + 1, snapshot = v_to where f.rev = v_fold.rev;
        return false;
    end if;
    -- Taking in more at once would keep everybody waiting. So transactions are taken in by their order, and of the last one a part.
    perform ojs._take_in(
        v_fold.snapshot, ojs._snapshot_part(v_fold.snapshot, v_to, v_xid, false), v_xid, 0, v_lo, true);
    update ojs.fold f
    set rev = f.rev + 1, snapshot = ojs._snapshot_part(v_fold.snapshot, v_to, v_xid, true), part_xid = v_xid,
        part_lo = v_lo
    where f.rev = v_fold.rev;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fold(text[]) is
'Takes in what ojs.journal gained since the last fold, about 2000 rows at most, and returns whether there may be more. p_queues: tenants
that have room again take their turns there first.';

-- +goose StatementBegin
create function ojs._fold_on() returns void
language plpgsql
as $$
declare
    v_until timestamptz := ojs.now() + ojs._patience();
begin
    loop
        exit when not ojs._fold() or ojs.now() > v_until;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fold_on() is 'Folds bite after bite, until there is no more or others have waited long enough.';

-- +goose StatementBegin
create function ojs._patience() returns interval
language sql immutable
as $$ select interval '100 milliseconds' $$;
-- +goose StatementEnd
comment on function ojs._patience() is 'How long a call goes on taking in the journal while others wait for the lane.';

-- +goose StatementBegin
create function ojs._fold_part(p_fold ojs.fold, p_rows int) returns boolean
language plpgsql
as $$
declare
    v_hi    bigint;
    v_taken boolean;
begin
    select max(j.lo), bool_or(j.to_state = 'active') into v_hi, v_taken
    from (select j.lo, j.to_state from ojs.journal j where j.xid = p_fold.part_xid and j.lo > p_fold.part_lo order by j.lo limit p_rows) j;
    if v_hi is not null then
        perform ojs._take_in(null, null, p_fold.part_xid, p_fold.part_lo, v_hi, v_taken);
    end if;
    update ojs.fold f set rev = f.rev + 1, part_lo = v_hi, part_xid = case when v_hi is not null then f.part_xid end
    where f.rev = p_fold.rev;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fold_part(ojs.fold, int) is 'Takes in the next p_rows rows of a transaction of which a part was taken in.';

-- +goose StatementBegin
create function ojs._bite_end(p_from pg_snapshot, p_to pg_snapshot, p_rows int, out o_xid xid8, out o_lo bigint)
language plpgsql
as $$
declare
    v_left int := p_rows;
    v_seen record;
begin
    for o_xid in select x from pg_snapshot_xip(p_from) x where pg_visible_in_snapshot(x, p_to) order by x loop
        select count(*) as rows, max(j.lo) as lo into v_seen
        from (select j.lo from ojs.journal j where j.xid = o_xid and j.lo is not null order by j.lo limit v_left) j;
        o_lo := v_seen.lo;
        v_left := v_left - v_seen.rows;
        if v_left <= 0 then
            return;
        end if;
    end loop;
    select j.xid, j.lo into o_xid, o_lo from ojs.journal j
    where j.xid >= pg_snapshot_xmax(p_from) and pg_visible_in_snapshot(j.xid, p_to) and j.lo is not null
    order by j.xid, j.lo offset v_left - 1 limit 1;
end;
$$;
-- +goose StatementEnd
comment on function ojs._bite_end(pg_snapshot, pg_snapshot, int) is
'The row of the journal with which the first p_rows end that p_to sees and p_from does not: its transaction and its lo.';

-- +goose StatementBegin
create function ojs._fresh(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint) returns setof ojs._movement
language sql stable rows 10
as $$
    select s.* from ojs._since(p_from, p_to, true) s
    union all
    select m.* from ojs._movement m where m.xid = p_xid and m.lo > p_lo and m.lo <= p_hi
    union all
    -- What the running transaction did counts. It stays fresh, because the transaction may do more that must not be missed.
    select m.* from ojs._movement m where m.xid = pg_current_xact_id_if_assigned() and m.lo is not null
$$;
-- +goose StatementEnd
comment on function ojs._fresh(pg_snapshot, pg_snapshot, xid8, bigint, bigint) is
'Rows of the journal about jobs that became available or were taken beside decisions: those that p_to sees and p_from does not, those of
the transaction p_xid whose lo lies behind p_lo and up to p_hi, and those of the running transaction.';

-- +goose StatementBegin
create function ojs._take_in(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint, p_taken boolean) returns void
language plpgsql
as $$
declare
    v_came record;
begin
    perform ojs._revoke_stale(p_from, p_to, p_xid, p_lo, p_hi);
    -- Who comes begins where the others are. Settled afterwards, what they used before would be owed to it.
    perform ojs._settle_ends(p_from, p_to, p_xid, p_lo, p_hi) where p_taken;
    for v_came in
        with came as materialized (
            -- Otherwise the plan would say who goes first of those who join together.
            select c.*, row_number() over (partition by c.queue, c.tenant_id order by c.job_priority desc) as nth
            from ojs._came_in(p_from, p_to, p_xid, p_lo, p_hi) c order by c.queue, c.tenant_id, c.job_priority desc
        ), known as materialized (
            select k.*, case when k.in_order then k.lo else ojs._join_at(k.vtime, k.low, k.weight, k.joined, row_number() over (
                partition by k.queue, k.priority, k.works is true order by k.tenant_id)) end as joins_at
            from (
                select c.*, s.*, c.unit = 'none' as in_order
                from came c cross join lateral ojs._stands(c.queue, c.priority, c.tenant_id, c.own_weight, c.throttle) s
                -- Who is new may join with the others there, too.
                where (not c.own_order or c.nth = 1 and s.spot is null)
                    and (s.works is not true or c.lo <= s.head or c.lo < s.vtime and c.unit = 'none')
            ) k
        ), joined as (
            insert into ojs.tenant_fairness (queue, priority, tenant_id, ready, vtime, weight, limited, job_priority, head)
            select k.queue, k.priority, k.tenant_id, true, k.joins_at, k.weight, k.limited, k.job_priority, k.lo - 1
            from known k where k.spot is null
        ), rejoined as (
            update ojs.tenant_fairness f set rev = f.rev + 1, ready = true, vtime = k.joins_at, weight = k.weight, limited = k.limited
            from known k where not k.works and f.ctid = k.spot
        ), coming as materialized (
            select k.queue, k.priority, k.level_spot, count(*) as tenants, sum(k.weight) as weight, sum(k.weight * k.joins_at) as moment,
                min(k.joins_at) as low
            from known k where k.works is not true group by k.queue, k.priority, k.level_spot
        ), opened as (
            insert into ojs.level (queue, priority, rev, low, tenants, joined, weight, moment) select c.queue, c.priority, 1, 0, c.tenants,
                c.tenants, c.weight, c.moment from coming c where c.level_spot is null returning queue, priority
        ), reopened as (
            update ojs.level l set rev = l.rev + 1, tenants = l.tenants + c.tenants, joined = l.joined + c.tenants,
                weight = l.weight + c.weight, moment = l.moment + c.moment, low = least(l.low, c.low), used_at = ojs.now()
            from coming c where l.ctid = c.level_spot returning l.queue, l.priority, l.tenants = c.tenants as opened
        )
        select n as queue, null::int as priority, null as tenant_id, null::bigint[] as los, null::bigint[] as his, null::int[] as own
        from (select array_agg(o.queue) as queues, array_agg(o.priority) as priorities from (table opened union all
            select r.queue, r.priority from reopened r where r.opened) o) o cross join lateral ojs._note_levels(o.queues, o.priorities) n
        union all
        select k.queue, k.priority, k.tenant_id, array_agg(r.lo), array_agg(least(r.hi, k.head)), null
        from known k cross join lateral unnest(k.los, k.his) r(lo, hi) where r.lo <= k.head group by k.queue, k.priority, k.tenant_id
        union all
        select k.queue, k.priority, k.tenant_id, array[k.lo], null, null from known k where k.in_order and k.works
        union all
        (select c.queue, 0, c.tenant_id, array_agg(r.lo), array_agg(r.hi), array_agg(c.job_priority) from came c
        cross join lateral unnest(c.los, c.his) r(lo, hi) where c.own_order group by c.queue, c.tenant_id order by c.queue, c.tenant_id)
    loop
        perform ojs._take_in_one(v_came.queue, v_came.priority, v_came.tenant_id, v_came.los, v_came.his, v_came.own);
    end loop;
    perform ojs._charge_taken(p_from, p_to, p_xid, p_lo, p_hi) where p_taken;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_in(pg_snapshot, pg_snapshot, xid8, bigint, bigint, boolean) is
'Has the tenants of jobs that became available join the round, and the jobs that lie behind their cursors looked at again.
p_taken: jobs were taken beside decisions, too. The other parameters are those of ojs._fresh.';

-- +goose StatementBegin
create function ojs._stands(p_queue text, p_priority int, p_tenant text, p_own numeric, p_throttle numeric) returns table (
    spot tid, vtime numeric, head bigint, works boolean, level_spot tid, low numeric, joined bigint, weight numeric
)
language sql stable rows 1
as $$
    select f.spot, f.vtime, f.head, f.ready or f.parked, l.spot, l.low, l.joined, w.weight
    from (select 1) one
    left join lateral (select f.*, f.ctid as spot from ojs.tenant_fairness f
        where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant order by f.rev desc limit 1) f on true
    left join lateral (select l.*, l.ctid as spot from ojs.level l
        where l.queue = p_queue and l.priority = p_priority order by l.rev desc limit 1) l on true
    cross join lateral ojs._weight_in(p_queue, p_tenant, p_own, p_throttle) w
$$;
-- +goose StatementEnd
comment on function ojs._stands(text, int, text, numeric, numeric) is
'Where a tenant stands at a level, and where the level stands: their rows as they are now (null: there is none) and the tenant''s weight.
Rows are written by their spot: by their keys they would be joined, and a plan that was made while the tables were small reads all of them
for each tenant that comes. p_own, p_throttle: those of ojs._weight_in. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._take_in_one(
    p_queue text, p_priority int, p_tenant text, p_los bigint[], p_his bigint[], p_own int[]
) returns void
language plpgsql
as $$
begin
    if p_own is not null then
        perform ojs._take_in_own(p_queue, p_tenant, p_own, p_los, p_his);
    elsif p_his is null then
        perform ojs._refund(p_queue, p_priority, p_tenant, 0, 0, p_los[1], null);
    else
        perform ojs._look_back(p_queue, p_priority, p_tenant, p_los, p_his);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_in_one(text, int, text, bigint[], bigint[], int[]) is
'What ojs._take_in has found beside tenants that join: jobs behind a cursor, a first one where the queue is
first in, first out (no p_his), or jobs of the priorities p_own, in step with the ranges, where priorities order a tenant''s own jobs
only.';

-- +goose StatementBegin
create function ojs._charge_taken(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint) returns void
language plpgsql
as $$
declare
    v_counts boolean := (select f.counts from ojs._folded() f);
    v_taken  record;
begin
    for v_taken in
        select x.*, r.priority
        from (
            select f.queue, f.priority as job_priority, f.tenant_id, sum(f.owed)::int as jobs, sum(f.price) as price,
                case when v_counts then array_agg(f.xid) end as xids, case when v_counts then array_agg(f.owed) end as owed
            from ojs._fresh(p_from, p_to, p_xid, p_lo, p_hi) f
            where f.from_state = 'available' and f.to_state = 'active' and f.xid is distinct from pg_current_xact_id_if_assigned()
            group by f.queue, f.priority, f.tenant_id
        ) x left join ojs.tenant t on t.tenant_id = x.tenant_id
        cross join lateral ojs._rank(x.queue, x.job_priority, t.priority_boost) r
    loop
        perform ojs._refund(v_taken.queue, v_taken.priority, v_taken.tenant_id, -v_taken.jobs, -v_taken.price, null, null);
        -- Taken by who did not know of a rule yet.
        perform ojs._use(array[v_taken.tenant_id], array[v_taken.queue], array[u.owed], u.xid)
        from unnest(v_taken.xids, v_taken.owed) u(xid, owed);
        -- Where all callers take jobs beside decisions, no decision moves the cursor. Without moving it here, each of them would walk past
        -- all jobs that were taken before.
        for i in 0 .. least(v_taken.jobs / 5000, 4) loop
            exit when ojs._skim(v_taken.queue, v_taken.priority, v_taken.tenant_id) = 0;
        end loop;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._charge_taken(pg_snapshot, pg_snapshot, xid8, bigint, bigint) is
'Charges the tenants for jobs that were taken beside decisions, and moves their cursors past them.';
reset role;
