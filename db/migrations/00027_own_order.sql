-- +goose Up
-- Queues in which priorities order each tenant's own jobs only (priority_scope tenant). A tenant has one row of ojs.tenant_fairness there,
-- whose turns go to the highest priority at which it has work; how far its other priorities have been looked at stands in the same row.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._cursors(p_fair ojs.tenant_fairness) returns ojs.cursor[]
language sql immutable
as $$
    select row(p_fair.job_priority, p_fair.head, p_fair.behind, p_fair.again_lo, p_fair.again_seq,
        p_fair.ready or p_fair.parked)::ojs.cursor || coalesce(p_fair.lines, '{}')
$$;
-- +goose StatementEnd
comment on function ojs._cursors(ojs.tenant_fairness) is 'All cursors of a tenant in a queue.';

-- +goose StatementBegin
create function ojs._turn_to(p_fair ojs.tenant_fairness, p_cursors ojs.cursor[]) returns ojs.tenant_fairness
language plpgsql immutable
as $$
begin
    p_cursors := array(select c from unnest(p_cursors) c order by c.works desc, c.job_priority desc);
    p_fair.job_priority := (p_cursors[1]).job_priority;
    p_fair.head := (p_cursors[1]).head;
    p_fair.behind := (p_cursors[1]).behind;
    p_fair.again_lo := (p_cursors[1]).again_lo;
    p_fair.again_seq := (p_cursors[1]).again_seq;
    p_fair.lines := nullif(p_cursors[2:], '{}');
    return p_fair;
end;
$$;
-- +goose StatementEnd
comment on function ojs._turn_to(ojs.tenant_fairness, ojs.cursor[]) is
'A tenant''s row with these cursors: its turns go to the highest priority that has work.';

-- +goose StatementBegin
create function ojs._set_cursors(p_fair ojs.tenant_fairness) returns void
language plpgsql
as $$
begin
    update ojs.tenant_fairness f
    set rev = f.rev + 1, job_priority = p_fair.job_priority, head = p_fair.head, behind = p_fair.behind, again_lo = p_fair.again_lo,
        again_seq = p_fair.again_seq, lines = p_fair.lines
    where f.queue = p_fair.queue and f.priority = p_fair.priority and f.tenant_id = p_fair.tenant_id and f.rev = p_fair.rev;
end;
$$;
-- +goose StatementEnd
comment on function ojs._set_cursors(ojs.tenant_fairness) is 'Writes the cursors of a tenant''s row.';

-- +goose StatementBegin
create function ojs._next_line(p_fair ojs.tenant_fairness) returns void
language plpgsql
as $$
declare
    v_cursors ojs.cursor[] := ojs._cursors(p_fair);
begin
    v_cursors[1].works := false;
    perform ojs._set_cursors(ojs._turn_to(p_fair, v_cursors));
end;
$$;
-- +goose StatementEnd
comment on function ojs._next_line(ojs.tenant_fairness) is
'Has a tenant''s turns go to its next priority, because it has no more jobs at this one.';

-- +goose StatementBegin
create function ojs._take_in_own(p_queue text, p_tenant text, p_priorities int[], p_los bigint[], p_his bigint[]) returns void
language plpgsql
as $$
declare
    v_fair    ojs.tenant_fairness;
    v_cursors ojs.cursor[];
    v_moves   boolean;
begin
    select * into v_fair from ojs._fair(p_queue, 0, p_tenant);
    select array_agg(coalesce(b.cursor, row(c.job_priority, coalesce(c.head, c.lo - 1), c.behind, c.again_lo, c.again_seq,
            c.works or c.lo is not null)::ojs.cursor)), bool_or(not c.works and c.lo is not null or c.lo <= c.head)
    into v_cursors, v_moves
    from (
        select x.job_priority, max(x.head) as head, bool_or(x.behind) as behind, max(x.again_lo) as again_lo,
            max(x.again_seq) as again_seq, bool_or(x.works) as works, min(x.lo) as lo, array_agg(x.lo) as los, array_agg(x.hi) as his
        from (
            select c.*, null::bigint as lo, null::bigint as hi from unnest(ojs._cursors(v_fair)) c where v_fair.queue is not null
            union all
            select r.job_priority, null, false, 0, 0, false, r.lo, r.hi from unnest(p_priorities, p_los, p_his) r(job_priority, lo, hi)
        ) x
        group by x.job_priority
    ) c
    left join lateral (
        select ojs._moved_back(v_fair, row(c.job_priority, c.head, c.behind, c.again_lo, c.again_seq, true)::ojs.cursor,
            array_agg(r.lo), array_agg(least(r.hi, c.head))) as cursor
        from unnest(c.los, c.his) r(lo, hi) where r.lo <= c.head having count(*) > 0
    ) b on true;
    if not v_moves then
        return;
    elsif (v_fair.ready or v_fair.parked) is not true then
        v_fair := ojs._join(v_fair, p_queue, p_tenant);
    end if;
    perform ojs._set_cursors(ojs._turn_to(v_fair, v_cursors));
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_in_own(text, text, int[], bigint[], bigint[]) is
'Takes in jobs of a tenant that became available, in ranges of job.seq, each of one priority; the lists are in step. All at once: each
change writes all cursors of the tenant.';

-- +goose StatementBegin
create function ojs._join(p_fair ojs.tenant_fairness, p_queue text, p_tenant text) returns ojs.tenant_fairness
language plpgsql
as $$
declare
    v_tenant ojs.tenant;
    v_level  ojs.level;
    v_weight numeric;
    v_own    numeric;
begin
    select * into v_tenant from ojs.tenant t where t.tenant_id = p_tenant;
    select * into v_level from ojs._level(p_queue, 0);
    select w.weight into v_weight from ojs._weight_in(p_queue, p_tenant, v_tenant.weight, v_tenant.throttle) w;
    v_own := ojs._join_at(p_fair.vtime, v_level.low, v_weight, v_level.joined);
    if p_fair.queue is null then
        insert into ojs.tenant_fairness (queue, priority, tenant_id, ready, vtime, weight, limited, job_priority, head)
        values (p_queue, 0, p_tenant, true, v_own, v_weight, coalesce(v_tenant.limited, false), 0, 0)
        returning * into p_fair;
    else
        update ojs.tenant_fairness f
        set rev = f.rev + 1, ready = true, vtime = v_own, weight = v_weight, limited = coalesce(v_tenant.limited, false)
        where f.queue = p_queue and f.priority = 0 and f.tenant_id = p_tenant and f.rev = p_fair.rev
        returning f.* into p_fair;
    end if;
    v_level.queue := p_queue;
    v_level.priority := 0;
    v_level.joined := coalesce(v_level.joined, 0) + 1;
    perform ojs._move_level(v_level, 1, v_weight, v_weight * v_own, least(v_level.low, v_own));
    return p_fair;
end;
$$;
-- +goose StatementEnd
comment on function ojs._join(ojs.tenant_fairness, text, text) is
'Has a tenant with new work take its turns, as ojs._take_in has in other queues. p_fair: its row, null: it has none. Returns the row.';

-- +goose StatementBegin
create function ojs._share_order(p_queue text, p_own boolean) returns void
language plpgsql
as $$
begin
    if p_own = coalesce((select b.own_order from ojs._backlog(p_queue) b), false) then
        return;
    end if;
    perform ojs._stop_ahead();
    insert into ojs.backlog (queue, rev, priorities) select p_queue, 1, '{}' where not exists (select from ojs._backlog(p_queue));
    update ojs.backlog b set rev = b.rev + 1, own_order = p_own
    where b.queue = p_queue and b.rev = (select c.rev from ojs._backlog(p_queue) c);
    with gone as materialized (
        delete from ojs.tenant_fairness f where f.queue = p_queue returning f.tenant_id, f.rev, f.seconds, f.weight, f.limited,
            ojs._cursors(f) as cursors
    ), sorted as (
        select g.tenant_id, r.priority, max(g.rev) as rev, max(g.seconds) as seconds, max(g.weight) as weight,
            bool_or(g.limited) as limited,
            array_agg(c::ojs.cursor order by c.works desc, c.job_priority desc) as cursors
        from gone g left join ojs.tenant t on t.tenant_id = g.tenant_id
        cross join lateral unnest(g.cursors) c cross join lateral ojs._rank(p_queue, c.job_priority, t.priority_boost) r
        group by g.tenant_id, r.priority
    )
    insert into ojs.tenant_fairness (queue, priority, tenant_id, rev, ready, vtime, weight, job_priority, seconds, head, behind, again_lo,
        again_seq, limited, lines)
    -- Each priority has had a time of its own. All begin anew, and who has no room is parked again by the next decision.
    select p_queue, s.priority, s.tenant_id, s.rev + 1, (s.cursors[1]).works,
        ojs._join_at(0, 0, s.weight, 0, row_number() over (partition by s.priority)), s.weight,
        (s.cursors[1]).job_priority, s.seconds, (s.cursors[1]).head, (s.cursors[1]).behind, (s.cursors[1]).again_lo,
        (s.cursors[1]).again_seq, s.limited, nullif(s.cursors[2:], '{}')
    from sorted s;
    delete from ojs.level l where l.queue = p_queue;
    insert into ojs.level (queue, priority, rev, low, tenants, joined, weight, moment)
    select p_queue, f.priority, 1, 0, count(*) filter (where f.ready), count(*), coalesce(sum(f.weight) filter (where f.ready), 0),
        coalesce(sum(f.weight * f.vtime) filter (where f.ready), 0)
    from ojs.tenant_fairness f where f.queue = p_queue group by f.priority;
    update ojs.backlog b set rev = b.rev + 1,
        priorities = array(select l.priority from ojs.level l where l.queue = p_queue and l.tenants > 0 order by l.priority desc)
    where b.queue = p_queue and b.rev = (select c.rev from ojs._backlog(p_queue) c);
end;
$$;
-- +goose StatementEnd
comment on function ojs._share_order(text, boolean) is
'Has priorities order each tenant''s own jobs only (p_own), or the jobs of all tenants of a queue, from the next decision on.';

-- +goose StatementBegin
create function ojs._own_order(p_fairness jsonb) returns boolean
language sql immutable
as $$ select coalesce(p_fairness ->> 'priority_scope' = 'tenant', false) $$;
-- +goose StatementEnd
comment on function ojs._own_order(jsonb) is
'Whether, by a tenant_fairness (null: none), priorities order each tenant''s own jobs only.';

-- +goose StatementBegin
create function ojs._own_front(p_queue text, p_low numeric, p_count int, p_only text[], p_but text[], p_priority int)
returns table (
    tenant_id text, job_priority int, seconds real, head bigint, behind boolean, again_lo bigint, again_seq bigint, weight float8,
    vtime numeric, limited boolean
)
language sql stable rows 10
as $$
    select distinct on (x.tenant_id) x.tenant_id, x.job_priority, x.seconds, x.head, x.behind, x.again_lo, x.again_seq, x.weight, x.vtime,
        x.limited
    from (
        select f.tenant_id, c.job_priority, f.seconds, c.head, c.behind, c.again_lo, c.again_seq, f.weight, f.vtime, f.limited, 1 as n
        from ojs._front(p_queue, 0, p_low, case when p_priority is null then p_count else 1000000 end, p_only, p_but, false) f
        cross join lateral (
            select f.job_priority, f.head, f.behind, f.again_lo, f.again_seq
            union all
            select l.job_priority, l.head, l.behind, l.again_lo, l.again_seq from unnest(f.lines) l where l.works
        ) c
        union all
        select w.tenant_id, w.job_priority, coalesce(f.seconds, 1), w.lo - 1, false, 0, 0, w.weight::float8,
            greatest(f.vtime, p_low), w.limited, 2
        from ojs._waiting() w left join lateral ojs._fair(w.queue, 0, w.tenant_id) f on true
        where w.queue = p_queue and (p_only is null or w.tenant_id = any (p_only)) and (p_but is null or w.tenant_id <> all (p_but))
    ) x
    where p_priority is null or x.job_priority = p_priority
    order by x.tenant_id, x.job_priority desc, x.n
$$;
-- +goose StatementEnd
comment on function ojs._own_front(text, numeric, int, text[], text[], int) is
'As ojs._front for a caller beside decisions, where priorities order a tenant''s own jobs only: of each tenant the highest priority at
which it has work, or (p_priority) that one.';

-- +goose StatementBegin
create function ojs._own_due(
    p_queue text, p_low numeric, p_count int, p_only text[], p_but text[], p_priority int, p_unit ojs.unit, p_now timestamptz
) returns table (turn int, tenant_id text, seq bigint, id uuid, place tid, price float8)
language sql stable rows 100
as $$
    select (row_number() over (order by (f.vtime - p_low)::float8 + (l.upto - l.price) / f.weight, f.tenant_id, l.seq))::int,
        f.tenant_id, l.seq, l.id, l.place, l.price
    from ojs._own_front(p_queue, p_low, p_count, p_only, p_but, p_priority) f
    cross join lateral (
        select y.*, sum(y.price) over (order by y.seq rows unbounded preceding) as upto
        from ojs._line(p_queue, f.job_priority, f.tenant_id, f.head, f.behind, f.again_lo, f.again_seq, p_count, true, p_unit, f.seconds,
            p_now) y
    ) l
    where not f.limited or (select case when r.counted then 0 else r.jobs end from ojs._room(p_queue, f.tenant_id) r) is distinct from 0
    order by 1 limit p_count
$$;
-- +goose StatementEnd
comment on function ojs._own_due(text, numeric, int, text[], text[], int, ojs.unit, timestamptz) is
'As ojs._due for a caller beside decisions, where priorities order a tenant''s own jobs only: jobs of each tenant''s highest priority, or of
p_priority.';

-- +goose StatementBegin
create function ojs._own_priorities(p_queue text) returns int[]
language plpgsql stable
as $$
begin
    return array(select p.priority from (
        select c.job_priority from ojs.tenant_fairness f cross join lateral unnest(ojs._cursors(f)) c
            where f.queue = p_queue and f.priority = 0 and f.ready and c.works
        union
        select w.job_priority from ojs._waiting() w where w.queue = p_queue
    ) p(priority) order by p.priority desc);
end;
$$;
-- +goose StatementEnd
comment on function ojs._own_priorities(text) is
'The priorities at which tenants have work, the highest first, where priorities order a tenant''s own jobs only.';

reset role;
