-- Queues with priority_scope tenant, in which priorities order each tenant's own jobs only. A
-- tenant has one row of ojs.tenant_fairness there, for the highest priority at which it has work.
-- Its cursors at other priorities are in the same row.

create or replace function ojs._cursors(p_fair ojs.tenant_fairness) returns ojs.cursor[]
language sql immutable
as $$
    select row(p_fair.job_priority, p_fair.head, p_fair.revisit_lo, p_fair.revisit_seq, p_fair.ready or p_fair.at_limit)::ojs.cursor
        || coalesce(p_fair.cursors, '{}')
$$;
comment on function ojs._cursors(ojs.tenant_fairness) is
'Returns all cursors of a tenant in a queue, that of its present priority first.';

create or replace function ojs._at_cursors(p_fair ojs.tenant_fairness, p_cursors ojs.cursor[]) returns ojs.tenant_fairness
language plpgsql immutable
as $$
begin
    p_cursors := array(select c from unnest(p_cursors) c order by c.works desc, c.job_priority desc);
    p_fair.job_priority := (p_cursors[1]).job_priority;
    p_fair.head := (p_cursors[1]).head;
    p_fair.revisit_lo := (p_cursors[1]).revisit_lo;
    p_fair.revisit_seq := (p_cursors[1]).revisit_seq;
    p_fair.cursors := nullif(p_cursors[2:], '{}');
    return p_fair;
end;
$$;
comment on function ojs._at_cursors(ojs.tenant_fairness, ojs.cursor[]) is
'Returns a tenant''s row with these cursors. The present one becomes that of the highest priority
with work.';

create or replace function ojs._set_cursors(p_fair ojs.tenant_fairness) returns void
language plpgsql
as $$
begin
    update ojs.tenant_fairness f
    set rev = f.rev + 1, job_priority = p_fair.job_priority, head = p_fair.head, revisit_lo = p_fair.revisit_lo,
        revisit_seq = p_fair.revisit_seq, cursors = p_fair.cursors
    where f.queue = p_fair.queue and f.priority = p_fair.priority and f.tenant_id = p_fair.tenant_id and f.rev = p_fair.rev;
end;
$$;
comment on function ojs._set_cursors(ojs.tenant_fairness) is
'Writes the cursors of a tenant''s row.';

create or replace function ojs._next_priority(p_fair ojs.tenant_fairness) returns void
language plpgsql
as $$
declare
    v_cursors ojs.cursor[] := ojs._cursors(p_fair);
begin
    -- New jobs of this priority set it to true again (ojs._take_in_own).
    v_cursors[1].works := false;
    perform ojs._set_cursors(ojs._at_cursors(p_fair, v_cursors));
end;
$$;
comment on function ojs._next_priority(ojs.tenant_fairness) is
'Moves a tenant on to its next priority with work, because it has no more jobs at the present one.';

create or replace function ojs._take_in_own(p_queue text, p_tenant text, p_priorities int[], p_los bigint[], p_his bigint[]) returns void
language plpgsql
as $$
declare
    v_fair    ojs.tenant_fairness;
    v_cursors ojs.cursor[];
    v_moves   boolean;
begin
    select * into v_fair from ojs._fair(p_queue, 0, p_tenant);
    select array_agg(coalesce(b.cursor, row(c.job_priority, coalesce(c.head, c.lo - 1), c.revisit_lo, c.revisit_seq,
            c.works or c.lo is not null)::ojs.cursor)), bool_or(not c.works and c.lo is not null or c.lo <= c.head)
    into v_cursors, v_moves
    from (
        select x.job_priority, max(x.head) as head, max(x.revisit_lo) as revisit_lo, max(x.revisit_seq) as revisit_seq,
            bool_or(x.works) as works, min(x.lo) as lo, array_agg(x.lo) as los, array_agg(x.hi) as his
        from (
            select c.*, null::bigint as lo, null::bigint as hi from unnest(ojs._cursors(v_fair)) c where v_fair.queue is not null
            union all
            select r.job_priority, null, null, 0, false, r.lo, r.hi from unnest(p_priorities, p_los, p_his) r(job_priority, lo, hi)
        ) x
        group by x.job_priority
    ) c
    left join lateral (
        select ojs._moved_back(v_fair, row(c.job_priority, c.head, c.revisit_lo, c.revisit_seq, true)::ojs.cursor,
            array_agg(r.lo), array_agg(least(r.hi, c.head))) as cursor
        from unnest(c.los, c.his) r(lo, hi) where r.lo <= c.head having count(*) > 0
    ) b on true;
    -- All new jobs lie ahead of cursors that have work: the cursors will come to them.
    if not v_moves then
        return;
    elsif (v_fair.ready or v_fair.at_limit) is not true then
        v_fair := ojs._rejoin(v_fair);
    end if;
    perform ojs._set_cursors(ojs._at_cursors(v_fair, v_cursors));
end;
$$;
comment on function ojs._take_in_own(text, text, int[], bigint[], bigint[]) is
'Folds jobs of one tenant that became available, in ranges of job.seq, each of one priority.
p_priorities, p_los, p_his: the ranges, in step. All of a fold in one call, because each call writes
all cursors of the tenant.';

create or replace function ojs._rejoin(p_fair ojs.tenant_fairness) returns ojs.tenant_fairness
language plpgsql
as $$
declare
    v_own numeric;
begin
    select ojs._join_at(p_fair.vtime, l.low, w.weight, l.joined), w.weight into v_own, p_fair.weight
    from (select 1) one
    left join ojs._level(p_fair.queue, 0) l on true
    left join ojs.tenant t on t.tenant_id = p_fair.tenant_id
    cross join lateral ojs._weight_in(p_fair.queue, p_fair.tenant_id, t.weight, t.throttle) w;
    update ojs.tenant_fairness f set rev = f.rev + 1, ready = true, vtime = v_own, weight = p_fair.weight
    where f.queue = p_fair.queue and f.priority = 0 and f.tenant_id = p_fair.tenant_id and f.rev = p_fair.rev
    returning f.* into p_fair;
    perform ojs._change_level(p_fair.queue, row(0, v_own, 1, 1, 0, null));
    return p_fair;
end;
$$;
comment on function ojs._rejoin(ojs.tenant_fairness) is
'Has a tenant with new work join the ring again, in a queue with priority_scope tenant. Returns its
row.';

create or replace function ojs._share_order(p_queue text, p_own boolean) returns void
language plpgsql
as $$
declare
    v_state ojs.dispatch_state;
begin
    if p_own = coalesce((select s.own_order from ojs._state(p_queue) s), false) then
        return;
    end if;
    -- Under the lane, because the rows of all tenants of the queue are made anew.
    perform ojs._stop_decisions();
    select * into v_state from ojs._state(p_queue);
    with gone as materialized (
        delete from ojs.tenant_fairness f where f.queue = p_queue returning f.tenant_id, f.rev, f.seconds, f.weight,
            ojs._cursors(f) as cursors
    ), sorted as (
        select g.tenant_id, r.priority, max(g.rev) as rev, max(g.seconds) as seconds, max(g.weight) as weight,
            array_agg(c::ojs.cursor order by c.works desc, c.job_priority desc) as cursors
        from gone g left join ojs.tenant t on t.tenant_id = g.tenant_id
        cross join lateral unnest(g.cursors) c
        cross join lateral (select case when p_own then 0 else c.job_priority + coalesce(t.priority_boost, 0) end as priority) r
        group by g.tenant_id, r.priority
    )
    insert into ojs.tenant_fairness (queue, priority, tenant_id, rev, ready, vtime, weight, job_priority, seconds, head, revisit_lo,
        revisit_seq, cursors)
    -- Each priority had a time of its own, so all times begin anew. The next decision finds out
    -- which tenants are at their limit.
    select p_queue, s.priority, s.tenant_id, s.rev + 1, (s.cursors[1]).works,
        ojs._join_at(0, 0, s.weight, 0, row_number() over (partition by s.priority)), s.weight,
        (s.cursors[1]).job_priority, s.seconds, (s.cursors[1]).head, (s.cursors[1]).revisit_lo, (s.cursors[1]).revisit_seq,
        nullif(s.cursors[2:], '{}')
    from sorted s;
    perform ojs._set_state(p_queue, v_state.unit, p_own);
end;
$$;
comment on function ojs._share_order(text, boolean) is
'Sets whether priorities order each tenant''s own jobs only (p_own), or the jobs of all tenants of a
queue, from the next decision on. Holds the lane until the transaction ends.';

create or replace function ojs._set_state(p_queue text, p_unit ojs.unit, p_own boolean) returns void
language plpgsql
as $$
begin
        with fresh as materialized (
            select coalesce(max(s.rev), 0) + 1 as rev from ojs.dispatch_state s where s.queue = p_queue
        ), gone as (
            delete from ojs.dispatch_state s where s.queue = p_queue
        )
        insert into ojs.dispatch_state (queue, rev, unit, own_order, levels, idle_at)
        select p_queue, f.rev, coalesce(p_unit, 'jobs'), coalesce(p_own, false), n.levels, ojs._idle_at(n.levels)
        from fresh f cross join lateral (
            select coalesce(array_agg(row(l.priority, 0, l.joined, l.ready, l.at_limit,
                case when l.ready + l.at_limit = 0 then ojs.now() end)::ojs.level
                order by l.priority desc), '{}') as levels
            from (
                select t.priority, count(*) as joined, count(*) filter (where t.ready) as ready,
                    count(*) filter (where t.at_limit) as at_limit
                from ojs.tenant_fairness t where t.queue = p_queue group by t.priority
            ) l
        ) n;
end;
$$;
comment on function ojs._set_state(text, ojs.unit, boolean) is
'Makes the row of ojs.dispatch_state of a queue anew from the rows of its tenants, with each low at
0. Only under the row of ojs.lane.';

create or replace function ojs._own_order(p_fairness jsonb) returns boolean
language sql immutable
as $$ select coalesce(p_fairness ->> 'priority_scope' = 'tenant', false) $$;
comment on function ojs._own_order(jsonb) is
'Returns whether a tenant_fairness (null: the default) has priorities order each tenant''s own jobs
only.';

create or replace function ojs._own_front(p_queue text, p_low numeric, p_count int, p_only text[], p_but text[], p_priority int)
returns table (
    tenant_id text, job_priority int, seconds real, head bigint, revisit_lo bigint, revisit_seq bigint, weight float8, vtime numeric
)
language sql stable rows 10
as $$
    select distinct on (x.tenant_id) x.tenant_id, x.job_priority, x.seconds, x.head, x.revisit_lo, x.revisit_seq, x.weight, x.vtime
    from (
        select f.tenant_id, c.job_priority, f.seconds, c.head, c.revisit_lo, c.revisit_seq, f.weight, f.vtime, 1 as n
        from ojs._front(p_queue, 0, p_low, case when p_priority is null then p_count else 1000000 end, p_only, p_but, true) f
        cross join lateral (
            select f.job_priority, f.head, f.revisit_lo, f.revisit_seq where f.spot is not null
            union all
            select l.job_priority, l.head, l.revisit_lo, l.revisit_seq from unnest(f.cursors) l where l.works
        ) c
        union all
        select w.tenant_id, w.job_priority, coalesce(f.seconds, 1), w.lo - 1, null, 0, w.weight::float8, greatest(f.vtime, p_low), 2
        from ojs._waiting() w left join lateral ojs._fair(w.queue, 0, w.tenant_id) f on true
        where w.queue = p_queue and (p_only is null or w.tenant_id = any (p_only)) and (p_but is null or w.tenant_id <> all (p_but))
    ) x
    where p_priority is null or x.job_priority = p_priority
    order by x.tenant_id, x.job_priority desc, x.n
$$;
comment on function ojs._own_front(text, numeric, int, text[], text[], int) is
'Does what ojs._front does for a caller without the lane, in a queue with priority_scope tenant.
Each tenant comes with the highest priority at which it has work, or with p_priority.';

create or replace function ojs._own_due(
    p_queue text, p_low numeric, p_count int, p_only text[], p_but text[], p_priority int, p_rules boolean, p_uncounted ojs.uncounted,
    p_unit ojs.unit, p_now timestamptz
) returns table (nth int, tenant_id text, seq bigint, id uuid, place tid, price float8)
language sql stable rows 100
as $$
    select (row_number() over (order by (f.vtime - p_low)::float8 + (l.upto - l.price) / f.weight, f.tenant_id, l.seq))::int,
        f.tenant_id, l.seq, l.id, l.place, l.price
    from ojs._own_front(p_queue, p_low, p_count, p_only, p_but, p_priority) f
    cross join lateral (select case when p_rules then (select c.jobs from ojs._capacity(p_queue, f.tenant_id, p_uncounted) c) end as jobs
        offset 0) r
    cross join lateral (
        select y.*, sum(y.price) over (order by y.seq rows unbounded preceding) as upto
        from ojs._line(p_queue, f.job_priority, f.tenant_id, f.head, f.revisit_lo, f.revisit_seq, least(p_count, r.jobs), true, p_unit,
            f.seconds, p_now) y
    ) l
    order by 1 limit p_count
$$;
comment on function ojs._own_due(text, numeric, int, text[], text[], int, boolean, ojs.uncounted, ojs.unit, timestamptz) is
'Does what ojs._due does for a caller without the lane, in a queue with priority_scope tenant.
The jobs are of each tenant''s highest priority with work, or of p_priority.';

create or replace function ojs._own_priorities(p_queue text) returns int[]
language plpgsql stable
as $$
begin
    return array(select p.priority from (
        select c.job_priority from ojs.tenant_fairness f cross join lateral unnest(ojs._cursors(f)) c
            where f.queue = p_queue and f.priority = 0 and (f.ready or f.at_limit) and c.works
        union
        select w.job_priority from ojs._waiting() w where w.queue = p_queue
    ) p(priority) order by p.priority desc);
end;
$$;
comment on function ojs._own_priorities(text) is
'Returns the priorities at which tenants of a queue with priority_scope tenant have work, the
highest first.';
