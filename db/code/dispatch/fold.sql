-- The fold reads what the journals gained since the last fold: the rows that are visible now and
-- were not visible to the snapshot stored then. So it reads each row once, also of a transaction
-- that committed late. A tenant with new work joins the ring. Jobs behind its cursor become ranges
-- to revisit: one per transaction, however many jobs it brought. Needs the lane.

comment on type ojs.news is
'What a decision has to know once it holds the lane.
fold: how far the journals are folded; upto: how far they can be folded now.
rows: how many rows of ojs.journal with a lo lie in between, counted up to one more than a fold
reads; own: how many of these are of the running transaction.
uncharged: whether attempts are to be charged; ruled: whether rules have changed.
limits: whether rules limit how many jobs may run; rules: whether there are such rules, or rules
about tenants.
states: the queues that ever had work, in the order asked for.';

create or replace function ojs._rules_there(out limits boolean, out rules boolean) returns setof record
language sql stable rows 1
as $$
    select exists (select from ojs.rule r where r.most is not null),
        exists (select from ojs.rule r where r.tenant_id <> '' or r.most is not null)
$$;
comment on function ojs._rules_there() is
'Returns which rules there are.
limits: rules that limit how many jobs may run; rules: such rules, or rules about tenants. Becomes
part of the query that asks.';

create or replace function ojs._states(p_queues text[]) returns table (states ojs.dispatch_state[])
language sql stable rows 1
as $$
    select array(select s::ojs.dispatch_state from unnest(p_queues) with ordinality q(queue, n)
        cross join lateral ojs._state(q.queue) s order by q.n)
$$;
comment on function ojs._states(text[]) is
'Returns the rows of ojs.dispatch_state of the queues that ever had work, in the order asked for.
Becomes part of the query that asks.';

create or replace function ojs._look(p_queues text[]) returns setof ojs.news
language sql stable rows 1
as $$
    select f, u.upto, j.rows, j.own, j.uncharged, j.ruled, r.limits, r.rules,
        s.states
    from ojs._folded() f
    cross join (select ojs._snapshot() as upto offset 0) u
    cross join lateral (
        select count(*) as rows, count(*) filter (where n.xid = pg_current_xact_id_if_assigned()) as own,
            coalesce(bool_or(n.to_state = 'active' and (n.from_state = 'available' or n.price is not null)), false) as uncharged,
            coalesce(bool_or(n.from_state = 'active' and n.price is null), false) as ruled
        from (select n.xid, n.from_state, n.to_state, n.price
            from ojs._fresh(row(f.snapshot, u.upto, null, null, null, null)::ojs.slice) n limit ojs._bite() + 1) n
    ) j
    cross join ojs._rules_there() r
    cross join ojs._states(p_queues) s
$$;
comment on function ojs._look(text[]) is
'Reads, in one statement, what a decision over some queues has to know once it holds the lane.';

create or replace function ojs._ends_wait(p_news ojs.news) returns boolean
language plpgsql stable
as $$
declare
    -- To fold ends writes a row for each tenant and limit. While there are few ends, it is cheaper
    -- to add them up with each call.
    c_few constant int := 200;
begin
    return exists (select from ojs._ends((p_news.fold).snapshot, null) offset case when exists (
        select from unnest(p_news.states) s cross join lateral unnest(s.levels) l where l.at_limit > 0) then 0 else c_few end);
end;
$$;
comment on function ojs._ends_wait(ojs.news) is
'Returns whether ends of attempts alone are reason to fold: more than 200 rows of the journals, or
one while a tenant of the queues is at its limit.';

create or replace function ojs._bite() returns int
language sql immutable
as $$ select 2000 $$;
comment on function ojs._bite() is
'Returns how many rows of the journal one fold reads at most, because other sessions wait for the
lane. Becomes part of the expression that asks.';

create or replace function ojs._patience() returns interval
language sql immutable
as $$ select interval '100 milliseconds' $$;
comment on function ojs._patience() is
'Returns for how long a call goes on folding while other sessions wait for the lane.';

create or replace function ojs._fold(p_news ojs.news) returns boolean
language plpgsql
as $$
declare
    v_fold  ojs.fold := p_news.fold;
    v_slice ojs.slice;
    v_more  boolean := true;
begin
    if p_news.own > ojs._bite() then
        -- Rows of this transaction stay new until it commits. Each FETCH in it would fold all of
        -- them again, under the lane.
        perform ojs._raise('OJ409', format('this transaction has enqueued jobs by more than %s statements: commit it before it fetches',
            ojs._bite()), '{"field": "transaction"}');
    elsif v_fold.part_xid is not null then
        -- The last fold stopped within a transaction: go on there.
        v_slice := row(null, null, v_fold.part_xid, v_fold.part_lo, (select max(j.lo) from (select j.lo from ojs.journal j
            where j.xid = v_fold.part_xid and j.lo > v_fold.part_lo order by j.lo limit ojs._bite()) j), v_fold.snapshot);
    else
        -- after_lo is -1, because rows about changed rules have a lo of 0.
        v_slice := row(v_fold.snapshot, p_news.upto, null, -1, null, p_news.upto);
        if p_news.rows > ojs._bite() then
            select e.o_xid, e.o_lo into v_slice.part_xid, v_slice.upto_lo from ojs._bite_end(v_fold.snapshot, p_news.upto, ojs._bite()) e;
        end if;
        -- To fold more at once would keep other sessions waiting. Transactions are folded in the
        -- order of their ids, and of the last one only a part. The rows of the running transaction
        -- are not part of this: each fold reads all of them.
        v_more := v_slice.part_xid is not null;
        if v_more then
            v_slice.upto := ojs._snapshot_part(v_fold.snapshot, p_news.upto, v_slice.part_xid, false);
            v_slice.becomes := ojs._snapshot_part(v_fold.snapshot, p_news.upto, v_slice.part_xid, true);
        end if;
    end if;
    -- A part may have a changed rule that p_news does not show, because ojs._look reads one row
    -- more than a fold at most.
    if p_news.limits or p_news.ruled or v_more then
        v_slice := ojs._take_in_ends(v_slice, p_news.ruled or v_more, v_more);
    end if;
    -- Where rules have changed, ojs._take_in_ends may have extended the slice, and p_news does not
    -- say whether the new rows hold attempts to be charged.
    perform ojs._take_in(v_slice, p_news.uncharged or p_news.ruled or v_more) where p_news.rows > 0 or v_more;
    update ojs.fold f set rev = f.rev + 1, snapshot = v_slice.becomes, part_lo = v_slice.upto_lo,
        part_xid = case when v_slice.upto_lo is not null then v_slice.part_xid end
    where f.rev = v_fold.rev;
    return v_more;
end;
$$;
comment on function ojs._fold(ojs.news) is
'Folds what the journals gained since the last fold, about 2000 rows at most.
Returns whether there may be more. Raises conflict for a transaction with more than 2000 rows of its
own.';

create or replace function ojs._fold_on() returns void
language plpgsql
as $$
declare
    v_until timestamptz := clock_timestamp() + ojs._patience();
    v_news  ojs.news;
begin
    loop
        select * into v_news from ojs._look('{}');
        exit when not ojs._fold(v_news) or clock_timestamp() > v_until;
    end loop;
end;
$$;
comment on function ojs._fold_on() is
'Folds, 2000 rows at a time, until there is no more or 100 ms have passed.';

create or replace function ojs._bite_end(p_from pg_snapshot, p_to pg_snapshot, p_rows int, out o_xid xid8, out o_lo bigint)
language plpgsql
as $$
declare
    v_left int := p_rows;
    v_seen record;
begin
    -- Transactions that p_from lists as in progress began before all others that are new to it, so
    -- they are first in the order of ids.
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
comment on function ojs._bite_end(pg_snapshot, pg_snapshot, int) is
'Returns where a fold of p_rows rows ends: the transaction and the lo of its last row.
The rows are those that p_to sees and p_from does not, in the order of transaction ids and lo.';

create or replace function ojs._fresh(p_slice ojs.slice) returns setof ojs._movement
language sql stable rows 10
as $$
    select s.* from ojs._since((p_slice).seen, (p_slice).upto, true) s
    union all
    select m.* from ojs._movement m where m.xid = (p_slice).part_xid and m.lo > (p_slice).after_lo and m.lo <= (p_slice).upto_lo
    union all
    -- The rows of the running transaction count, too. No fold before its commit may mark them as
    -- read, because the transaction may write more.
    select m.* from ojs._movement m where m.xid = pg_current_xact_id_if_assigned() and m.lo is not null
$$;
comment on function ojs._fresh(ojs.slice) is
'Returns the rows of ojs.journal with a lo that a fold reads: those of its slice, and those of the
running transaction.';

create or replace function ojs._take_in(p_slice ojs.slice, p_uncharged boolean) returns void
language plpgsql
as $$
declare
    v_back record;
begin
    -- Charge ended attempts first: that moves the low of levels, and tenants join at the low.
    perform ojs._charge_ends(p_slice) where p_uncharged;
    for v_back in
        -- Sorted, because ojs._join_at numbers the tenants that join together, and their order must
        -- not depend on the plan.
        with came as materialized (
            select c.*, row_number() over (partition by c.queue, c.tenant_id order by c.job_priority desc) as nth
            from ojs._came(p_slice) c order by c.queue, c.tenant_id, c.job_priority desc
        ), known as materialized (
            select k.*, case when k.in_order then k.lo else ojs._join_at(k.vtime, k.low, k.weight, k.joined, row_number() over (
                partition by k.queue, k.priority, k.works is true order by k.tenant_id)) end as joins_at
            from (
                select c.*, f.spot, f.vtime, f.head, f.ready or f.at_limit as works, l.low, l.joined, w.weight, c.unit = 'none' as in_order
                from came c
                left join lateral (select f.*, f.ctid as spot from ojs.tenant_fairness f where f.queue = c.queue
                    and f.priority = c.priority and f.tenant_id = c.tenant_id order by f.rev desc limit 1) f on true
                left join lateral (select l.* from unnest(c.levels) l where l.priority = c.priority) l on true
                cross join lateral ojs._weight_in(c.queue, c.tenant_id, c.own_weight, c.throttle) w
                -- In a queue with priority_scope tenant only new tenants join here, with their
                -- highest priority; ojs._take_in_own does the rest. A tenant in the ring whose new
                -- jobs lie ahead of its cursor needs nothing.
                where (not c.own_order or c.nth = 1 and f.spot is null)
                    and ((f.ready or f.at_limit) is not true or c.lo <= f.head or c.lo < f.vtime and c.unit = 'none')
            ) k
        ), joined as (
            insert into ojs.tenant_fairness (queue, priority, tenant_id, ready, vtime, weight, job_priority, head)
            select k.queue, k.priority, k.tenant_id, true, k.joins_at, k.weight, k.job_priority, k.lo - 1
            from known k where k.spot is null
        ), rejoined as (
            -- By ctid: with the key it would be a join, and a plan that was made while the table
            -- was small reads the whole table.
            update ojs.tenant_fairness f set rev = f.rev + 1, ready = f.ready or not k.works, weight = k.weight,
                vtime = case when k.works then least(f.vtime, k.lo) else k.joins_at end
            from known k where f.ctid = k.spot and (not k.works or k.in_order)
        ), changed as materialized (
            select n.queue, n.spot, ojs._merged((select k.levels from known k where k.queue = n.queue limit 1), array_agg(n.by),
                ojs.now()) as levels
            from (
                select k.queue, k.state_spot as spot, row(k.priority, min(k.joins_at), count(*) filter (where k.works is not true),
                    count(*) filter (where k.works is not true), 0, null)::ojs.level as by
                from known k where k.works is not true or k.in_order group by k.queue, k.state_spot, k.priority
            ) n
            group by n.queue, n.spot
        ), opened as (
            insert into ojs.dispatch_state (queue, rev, levels) select c.queue, 1, c.levels from changed c where c.spot is null
        ), moved as (
            update ojs.dispatch_state s set rev = s.rev + 1, levels = c.levels, idle_at = ojs._idle_at(c.levels)
            from changed c where s.ctid = c.spot
        )
        -- Only what lies behind the cursor becomes a range. The cursor will come to the rest.
        select k.queue, k.priority, k.tenant_id, array_agg(r.lo) as los, array_agg(least(r.hi, k.head)) as his, null::int[] as own
        from known k cross join lateral unnest(k.los, k.his) r(lo, hi) where r.lo <= k.head group by k.queue, k.priority, k.tenant_id
        union all
        (select c.queue, 0, c.tenant_id, array_agg(r.lo), array_agg(r.hi), array_agg(c.job_priority) from came c
        cross join lateral unnest(c.los, c.his) r(lo, hi) where c.own_order group by c.queue, c.tenant_id order by c.queue, c.tenant_id)
    loop
        if v_back.own is not null then
            perform ojs._take_in_own(v_back.queue, v_back.tenant_id, v_back.own, v_back.los, v_back.his);
        else
            perform ojs._revisit(v_back.queue, v_back.priority, v_back.tenant_id, v_back.los, v_back.his);
        end if;
    end loop;
    -- After the tenants have joined: a tenant without a row cannot be charged.
    perform ojs._charge_taken(p_slice) where p_uncharged;
end;
$$;
comment on function ojs._take_in(ojs.slice, boolean) is
'Has the tenants of jobs that became available join the ring, and jobs behind their cursors
revisited.
p_uncharged: attempts are to be charged, too.';

-- The jobs of one transaction become one range. It may cover jobs that were read before; these are
-- passed. With a range per row, a transaction with very many rows would keep other sessions
-- waiting.
create or replace function ojs._came(p_slice ojs.slice) returns table (
    queue text, tenant_id text, job_priority int, priority int, unit ojs.unit, own_order boolean, levels ojs.level[], state_spot tid,
    own_weight numeric, throttle numeric, lo bigint, los bigint[], his bigint[]
)
language sql stable rows 10
as $$
    select x.queue, x.tenant_id, x.priority, r.priority, r.unit, r.own_order, r.levels, r.state_spot, t.weight, t.throttle, x.lo, x.los,
        x.his
    from (
        select x.queue, x.tenant_id, x.priority, min(x.lo) as lo, array_agg(x.lo) as los, array_agg(x.hi) as his
        from (
            select f.queue, f.tenant_id, f.priority, min(f.lo) as lo, max(f.hi) as hi from ojs._fresh(p_slice) f
            where f.to_state = 'available' group by f.queue, f.tenant_id, f.priority, f.xid
        ) x
        group by x.queue, x.tenant_id, x.priority order by x.queue, x.tenant_id, x.priority desc
    ) x left join ojs.tenant t on t.tenant_id = x.tenant_id
    cross join lateral ojs._rank(x.queue, x.priority, t.priority_boost) r
$$;
comment on function ojs._came(ojs.slice) is
'Returns the tenants with jobs that became available in a slice, per queue and priority.
lo: the first job.seq; los, his: the ranges of job.seq, one per transaction; unit, own_order,
levels, state_spot: from the queue''s row of ojs.dispatch_state; own_weight, throttle: the
tenant''s.';
