-- +goose Up
-- FETCH: one serial decision under the row of ojs.lane, and the only writer of fairness state. Servers combine what is asked of them into
-- ojs.fetch_many; direct callers of ojs.fetch take from a run queue that decisions fill ahead.
set local role ojs_owner;

-- +goose StatementBegin
create function ojs._has_run(p_queue text) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from (select m.lo from ojs.run_mark m where m.queue = p_queue order by m.rev desc limit 1) m
        cross join lateral (select r.n from ojs.run r where r.queue = p_queue and r.n >= m.lo order by r.n limit 1) r)
        or exists (select from (select m.held from ojs.run_mark m where m.queue = p_queue order by m.rev desc limit 1) m
            cross join lateral unnest(m.held) h(n) cross join lateral (select r.n from ojs.run r where r.queue = p_queue and r.n = h.n limit 1) r);
end;
$$;
-- +goose StatementEnd
comment on function ojs._has_run(text) is 'Whether anything is left of what was decided ahead for a queue.';

-- +goose StatementBegin
create function ojs._lingers() returns boolean
language sql stable
as $$ select statement_timestamp() - transaction_timestamp() > interval '20 milliseconds' $$;
-- +goose StatementEnd
comment on function ojs._lingers() is 'Whether the caller has been in its transaction for a while: it may stay there, and must not keep decisions waiting. Becomes part of the expression that asks.';

-- +goose StatementBegin
create function ojs._has_work(p_queues text[]) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from ojs.queue_priority q
        cross join lateral (select r.members from ojs.ring r where r.queue = q.queue and r.priority = q.priority order by r.rev desc limit 1) r
        where q.queue = any (p_queues) and r.members > 0);
end;
$$;
-- +goose StatementEnd
comment on function ojs._has_work(text[]) is 'Whether a tenant had work in one of the queues when the last decision ended.';

-- +goose StatementBegin
create function ojs._anything_for(p_queues text[], p_tenant text) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    -- Each of them costs more to begin than to do. All look at one moment: between two of them a decision could take a job from where the second looks to
    -- where the first has looked.
    if p_tenant is null and ojs._has_work(p_queues) then
        return true;
    elsif exists (select from (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f
            where exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(f.snapshot) and w.to_state = 'available')
                or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' offset 0) w)
                or pg_snapshot_xmax(f.snapshot) > pg_snapshot_xmax(pg_current_snapshot())) then
        return true;
    end if;
    return p_tenant is not null and exists (select from ojs.queue_priority q
            cross join lateral (select f.backlogged from ojs.tenant_fairness f
                where f.queue = q.queue and f.priority = q.priority and f.tenant_id = p_tenant order by f.rev desc limit 1) f
            where q.queue = any (p_queues) and f.backlogged)
        or exists (select from unnest(p_queues) q(queue) where ojs._has_run(q.queue));
end;
$$;
-- +goose StatementEnd
comment on function ojs._anything_for(text[], text) is 'Whether a decision could find a job: a wake not folded yet, or a tenant with work in one of the queues. Writes nothing, so that idle polling leaves no trace.';

-- +goose StatementBegin
create function ojs._serve(
    p_ring ojs.ring, p_count int, p_tenant text, p_reentry_max bigint, p_lock boolean,
    out o_ring ojs.ring, out o_ids uuid[], out o_rows tid[], out o_tenants text[], out o_places bigint[], out o_steps float8[], out o_drifts float8[], out o_progress boolean, out o_skimmed int
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    c_line     constant bigint := 4611686018427387904;
    v_now      timestamptz := ojs.now();
    -- The tenants at the front of each class, as read.
    f_class    int[];
    f_row      tid[];
    f_tenant   text[];
    f_vtime    numeric[];
    f_weight   numeric[];
    f_w        float8[];
    f_own      float8[];
    f_step     float8[];
    f_look     int[];
    f_job_priority int[];
    f_head     bigint[];
    f_reentry  bigint[];
    -- What was seen of each: jobs, and jobs that can be had.
    f_seen     int[];
    f_total    int[];
    -- How far its picks go: how many, and the last of them on the small list and in line.
    f_done     int[];
    f_back     bigint[];
    f_line     bigint[];
    f_lost     int[];
    -- The jobs that can be had, class by class in the order of their tenants' virtual time. A position on the small list is the n there, one in
    -- line is c_line + seq.
    r_who      int[];
    r_start    float8[];
    r_pos      bigint[];
    r_id       uuid[];
    r_row      tid[];
    r_last     boolean[];
    -- Jobs in the way that have ended, or expired.
    g_who      int[];
    g_pos      bigint[];
    g_expired  uuid[];
    -- Per class: the job that is next (infinity: none is known), its weight, the last one, and how far the order is known.
    c_at       int[];
    c_start    float8[];
    c_weight   float8[];
    c_end      int[];
    c_known    float8[];
    v_ends     boolean := false;
    v_picked   int[] := '{}';
    v_picks    int := 0;
    v_v        float8 := 0;
    v_due      float8;
    v_step     float8;
    v_shift    float8 := 0;
    v_drift    float8 := 0;
    v_late     numeric := 0;
    v_weight   float8 := p_ring.weight::float8;
    v_classes  int := cardinality(p_ring.class);
    v_best     int;
    v_owed     float8;
    v_most     float8;
    v_at       int;
    v_who      int;
    v_held     int[];
    v_own      numeric;
    v_lasts    numeric[];
    v_members  int[];
    v_barren   text[] := '{}';
    v_blocked  text[] := '{}';
    v_tenant   text;
    v_passed   record;
    v_charged  record;
begin
    o_ring := p_ring;
    o_ids := '{}';
    o_rows := '{}';
    o_tenants := '{}';
    o_places := '{}';
    o_steps := '{}';
    o_drifts := '{}';
    o_progress := false;
    o_skimmed := 0;

    select array_agg(c.ord::int), array_agg(f.row_at), array_agg(f.tenant_id), array_agg(f.vtime), array_agg(f.weight), array_agg((f.vtime - p_ring.v)::float8),
        array_agg(f.weight::float8), array_agg(1 / f.weight::float8), array_agg(f.look), array_agg(f.job_priority), array_agg(f.head), array_agg(f.reentry_head)
    into f_class, f_row, f_tenant, f_vtime, f_weight, f_own, f_w, f_step, f_look, f_job_priority, f_head, f_reentry
    from unnest(p_ring.class, p_ring.class_members, p_ring.class_weight, p_ring.class_head) with ordinality c(class, members, weight, head, ord)
    cross join lateral (
        (select f.*, f.ctid as row_at, ceil(p_count * f.weight / p_ring.weight)::int + case when 2 * p_count * f.weight < p_ring.weight then 1 else 2 end as look
        from ojs.tenant_fairness f
        where p_tenant is null and f.queue = p_ring.queue and f.priority = p_ring.priority and f.class = c.class and f.backlogged and f.vtime >= c.head
        order by f.vtime
        limit least(c.members, ceil(p_count * c.weight / p_ring.weight)::int + 2))
        union all
        select f.*, p_count + 1
        from (select f.*, f.ctid as row_at from ojs.tenant_fairness f
            where p_tenant is not null and f.queue = p_ring.queue and f.priority = p_ring.priority and f.tenant_id = p_tenant
            order by f.rev desc limit 1) f
        where f.backlogged and f.class = c.class
    ) f;
    if f_class is null then
        return;
    end if;

    -- Of each tenant the first jobs, from the small list and then from the cursor.
    with seen as materialized (
        select j.*, t.class, t.own, t.step
        from unnest(f_class, f_tenant, f_own, f_step, f_look, f_job_priority, f_head, f_reentry) with ordinality
            t(class, tenant_id, own, step, look, job_priority, head, reentry_head, ord)
        cross join lateral (
            (select t.ord::int as who, e.n as pos, j.id, j.ctid as row_at, j.state = 'available' as waits, j.expires_at <= v_now as expired
            from ojs.reentry e join ojs.job j on j.id = e.id and j.tenant_id = e.tenant_id
            where e.queue = p_ring.queue and e.priority = p_ring.priority and e.tenant_id = t.tenant_id and e.n > t.reentry_head and e.n <= p_reentry_max
            order by e.n limit t.look)
            union all
            (select t.ord::int, c_line + j.seq, j.id, j.ctid, j.state = 'available', j.expires_at <= v_now
            from ojs.job j
            where j.queue = p_ring.queue and j.priority = t.job_priority and j.tenant_id = t.tenant_id and j.seq > t.head and j.seq is not null
            order by j.seq limit t.look)
            limit t.look
        ) j
    ), twice as materialized (
        -- On the small list twice, or in line, too: its later places are passed over.
        select s.who, s.id, min(s.pos) as pos from seen s where (select bool_or(b.pos < c_line) from seen b) group by s.who, s.id having count(*) > 1
    ), job as materialized (
        select s.who, s.pos, s.id, s.row_at, s.expired, s.class, s.own, s.step, s.waits and t.pos is null as waits, s.waits and t.pos is null and s.expired is not true as ready
        from seen s left join twice t on t.who = s.who and t.id = s.id and t.pos < s.pos
    ), placed as materialized (
        select j.who, j.class, j.pos, j.id, j.row_at, j.own + (row_number() over w - 1) * j.step as start, lead(j.pos) over w is null as last
        from job j where j.ready window w as (partition by j.who order by j.pos)
    ), line as (
        select array_agg(p.who) as who, array_agg(p.start) as start, array_agg(p.pos) as pos, array_agg(p.id) as id, array_agg(p.row_at) as row_at, array_agg(p.last) as last
        from (select * from placed p order by p.class, p.start, p.who, p.pos) p
    ), gone as (
        select array_agg(j.who) as who, array_agg(j.pos) as pos, array_agg(case when j.waits then j.id end) as expired from job j where not j.ready
    ), count as (
        select array_agg(coalesce(c.seen, 0) order by g.i) as seen, array_agg(coalesce(c.ready, 0) order by g.i) as ready
        from generate_series(1, cardinality(f_class)) g(i)
        left join (select j.who, count(*)::int as seen, count(*) filter (where j.ready)::int as ready from job j group by j.who) c on c.who = g.i
    )
    select l.who, l.start, l.pos, l.id, l.row_at, l.last, c.seen, c.ready, g.who, g.pos, g.expired
    into r_who, r_start, r_pos, r_id, r_row, r_last, f_seen, f_total, g_who, g_pos, g_expired
    from line l, count c, gone g;
    f_done := array_fill(0, array[cardinality(f_class)]);
    f_lost := f_done;
    f_back := array_fill(0::bigint, array[cardinality(f_class)]);
    f_line := f_back;

    -- How far the order within a class is known: an open tenant, one that may have more jobs than were read, up to its next one; a class of which
    -- not all tenants were read up to the last of them. Who turns out to have nothing is due nothing.
    c_at := array_fill(0, array[v_classes]);
    c_end := c_at;
    v_members := c_at;
    c_start := array_fill('infinity'::float8, array[v_classes]);
    c_known := c_start;
    c_weight := c_start;
    v_lasts := array_fill(null::numeric, array[v_classes]);
    for i in 1 .. cardinality(f_class) loop
        v_at := f_class[i];
        v_members[v_at] := v_members[v_at] + 1;
        v_lasts[v_at] := greatest(v_lasts[v_at], f_vtime[i]);
        c_end[v_at] := c_end[v_at] + f_total[i];
        if f_seen[i] >= f_look[i] then
            c_known[v_at] := least(c_known[v_at], f_own[i] + f_total[i] * f_step[i]);
        elsif f_total[i] = 0 then
            v_weight := v_weight - f_w[i];
            v_shift := v_shift - f_own[i] * f_w[i];
        end if;
    end loop;
    v_at := 0;
    for c in 1 .. v_classes loop
        c_at[c] := v_at + 1;
        v_at := v_at + c_end[c];
        c_end[c] := v_at;
        if p_tenant is null and v_members[c] < p_ring.class_members[c] then
            c_known[c] := least(c_known[c], (v_lasts[c] - p_ring.v)::float8);
        end if;
        if c_at[c] <= v_at and r_start[c_at[c]] <= c_known[c] then
            c_start[c] := r_start[c_at[c]];
            c_weight[c] := f_w[r_who[c_at[c]]];
        else
            v_ends := true;
        end if;
    end loop;

    -- Who leaves the round hands what it was owed, or had ahead, to those who stay: their deficits keep their sum, and virtual time stays where somebody is
    -- owed nothing. Else it would run ahead of all who stay, and whoever joins would have to wait for them.
    if v_weight > 1e-9 then
        v_v := v_shift / v_weight;
        v_drift := -v_v;
    end if;
    -- The largest deficit is next, as long as nobody beyond what was read can be owed more. Whether a tenant has more jobs decides what the others are
    -- due: where that is not known, picking ends, and whoever called reads on.
    if v_classes = 1 then
        -- In a single class that is the order of the line, and there is nothing to choose.
        select array_agg(y.at order by y.at), array_agg(y.step order by y.at), array_agg(coalesce(y.drift, y.before) - y.before order by y.at), count(*)
        into v_picked, o_steps, o_drifts, v_picks
        from (
            select x.at, x.step, x.drift, lag(x.drift, 1, v_drift) over (order by x.at) as before
            from (
                -- Between clock and drift lies virtual time: the sum of deficits does not change, and a pick is one job.
                select x.at, x.step, case when x.left > 1e-9 then sum(x.step) over upto - (v_shift + x.at - coalesce(sum(x.gone) over upto, 0)) / x.left end as drift
                from (
                    select r.at, 1 / greatest(v_weight - coalesce(sum(r.leaves) over before, 0), 1e-9) as step, r.start * r.leaves + 1 as gone,
                        v_weight - coalesce(sum(r.leaves) over upto, 0) as left, coalesce(bool_or(r.last and r.open) over before, false) as beyond
                    from (
                        select l.at, l.start, l.last, f_seen[l.who] >= f_look[l.who] as open, case when l.last and f_seen[l.who] < f_look[l.who] then f_w[l.who] end as leaves
                        from unnest(r_who, r_start, r_last) with ordinality l(who, start, last, at)
                        where l.at <= p_count and l.start <= c_known[1]
                    ) r
                    window upto as (order by r.at), before as (order by r.at rows between unbounded preceding and 1 preceding)
                ) x
                where not x.beyond
                window upto as (order by x.at)
            ) x
        ) y;
        if v_picks > 0 then
            v_drift := v_drift + (select sum(d) from unnest(o_drifts) d);
            v_v := (select sum(t) from unnest(o_steps) t) - v_drift;
        end if;
    else
        v_step := 1 / greatest(v_weight, 1e-9);
        <<pick>>
        while v_picks < p_count loop
            v_best := 0;
            v_most := '-infinity';
            v_due := v_v + v_step;
            for c in 1 .. v_classes loop
                v_owed := (v_due - c_start[c]) * c_weight[c];
                if v_owed > v_most then
                    v_best := c;
                    v_most := v_owed;
                end if;
            end loop;
            exit pick when v_best = 0;
            if v_ends and p_tenant is null then
                for c in 1 .. v_classes loop
                    exit pick when c_start[c] = 'infinity' and (v_due - c_known[c]) * power(2, (p_ring.class[c] + 1) / 8.0) > v_most;
                end loop;
            end if;
            v_at := c_at[v_best];
            v_picks := v_picks + 1;
            v_picked[v_picks] := v_at;
            o_steps[v_picks] := v_step;
            o_drifts[v_picks] := 0;
            v_v := v_due;
            if r_last[v_at] then
                v_who := r_who[v_at];
                exit pick when f_seen[v_who] >= f_look[v_who];
                v_weight := v_weight - f_w[v_who];
                exit pick when v_weight <= 1e-9;
                v_step := 1 / v_weight;
                v_shift := ((v_v - r_start[v_at]) * f_w[v_who] - 1) * v_step;
                v_v := v_v + v_shift;
                v_drift := v_drift - v_shift;
                o_drifts[v_picks] := -v_shift;
            end if;
            v_at := v_at + 1;
            c_at[v_best] := v_at;
            if v_at <= c_end[v_best] and r_start[v_at] <= c_known[v_best] then
                c_start[v_best] := r_start[v_at];
                c_weight[v_best] := f_w[r_who[v_at]];
            else
                c_start[v_best] := 'infinity';
                v_ends := true;
            end if;
        end loop;
    end if;
    for v_passed in
        select r_who[p] as who, count(*) as done, coalesce(max(r_pos[p]) filter (where r_pos[p] < c_line), 0) as back,
            coalesce(max(r_pos[p]) filter (where r_pos[p] >= c_line) - c_line, 0) as line
        from unnest(v_picked) p group by r_who[p]
    loop
        f_done[v_passed.who] := v_passed.done;
        f_back[v_passed.who] := v_passed.back;
        f_line[v_passed.who] := v_passed.line;
    end loop;

    if v_picks > 0 and p_lock then
        -- By their place: who has changed one since is told from who has it locked when it is looked at again.
        select coalesce(array_agg(p.at), '{}'), coalesce(array_agg(p.id), '{}'), coalesce(array_agg(p.row_at), '{}') into v_held, o_ids, o_rows
        from (
            select p.at, j.id, j.row_at from unnest(v_picked) with ordinality p(at, turn)
            cross join lateral (select j.id, j.ctid as row_at from ojs.job j
                where j.ctid = r_row[p.at] and j.id = r_id[p.at] and j.tenant_id = f_tenant[r_who[p.at]] and j.state = 'available' for update skip locked) j
            order by p.turn
        ) p;
        if cardinality(v_held) < v_picks then
            -- Locked by somebody, who may let go of them unchanged: the tick has them looked at again. Nobody is charged for them.
            foreach v_at in array v_picked loop
                if v_at <> all (v_held) then
                    f_lost[r_who[v_at]] := f_lost[r_who[v_at]] + 1;
                end if;
            end loop;
            perform ojs._look_again(array(select f_tenant[r_who[p]] from unnest(v_picked) p where p <> all (v_held)), array(select r_id[p] from unnest(v_picked) p where p <> all (v_held)));
            v_v := v_v * cardinality(v_held) / v_picks;
            v_drift := v_drift * cardinality(v_held) / v_picks;
        end if;
    elsif v_picks > 0 then
        select array_agg(r_id[p.at]), array_agg(f_tenant[r_who[p.at]]), array_agg(r_pos[p.at]) into o_ids, o_tenants, o_places
        from (select p.at from unnest(v_picked) with ordinality p(at, turn) order by p.turn) p;
    end if;

    if g_who is not null then
        -- What ended lies in the way: cursors move up to the first job that is left.
        for v_passed in
            select a.who, coalesce(max(a.pos) filter (where a.pos < c_line), 0) as back, coalesce(max(a.pos) filter (where a.pos >= c_line) - c_line, 0) as line
            from (
                select x.who, x.pos, count(*) filter (where x.ready) over (partition by x.who order by x.pos rows unbounded preceding) as nth
                from (
                    select r.who, r.pos, true as ready from unnest(r_who, r_pos) r(who, pos)
                    union all
                    select g.who, g.pos, false from unnest(g_who, g_pos) g(who, pos)
                ) x
            ) a
            where a.nth <= f_done[a.who]
            group by a.who
        loop
            f_back[v_passed.who] := v_passed.back;
            f_line[v_passed.who] := v_passed.line;
        end loop;
        perform ojs._expire(array_agg(e.id), array_agg(f_tenant[e.who])) from unnest(g_expired, g_who) e(id, who) where e.id is not null having count(*) > 0;
    end if;

    -- Charge: own time forward by the jobs taken, cursors past what was taken or is gone, out of the round who has no more. Rows are found by their
    -- place, which only decisions change: a join by key could be turned around, and then it would walk the ring, dead versions included.
    o_ring.v := round(p_ring.v + v_v::numeric, 15);
    o_ring.drift := round(p_ring.drift + v_drift::numeric, 15);
    for v_charged in
        with charge as materialized (
            select t.*, t.seen >= t.look as open, t.seen >= t.look and t.done = t.total and t.total < t.seen and t.lost = 0 as barren, t.vtime + (t.done - t.lost) * ojs._step(t.weight) as own,
                t.done < t.total or t.seen >= t.look and (t.done < t.seen
                    -- All that was read is taken. A tenant without more is out of the round now, else it would return with what it is owed today.
                    or exists (select from ojs.job j where j.queue = p_ring.queue and j.priority = t.job_priority and j.tenant_id = t.tenant_id
                        and j.seq > greatest(t.head, t.line) and j.seq is not null)
                    or exists (select from ojs.reentry e where e.queue = p_ring.queue and e.priority = p_ring.priority and e.tenant_id = t.tenant_id
                        and e.n > greatest(t.reentry, t.back) and e.n <= p_reentry_max)) as stays
            from unnest(f_row, f_class, f_tenant, f_vtime, f_weight, f_job_priority, f_head, f_reentry, f_look, f_seen, f_total, f_done, f_lost, f_line, f_back)
                t(row_at, class, tenant_id, vtime, weight, job_priority, head, reentry, look, seen, total, done, lost, line, back)
        ), due as materialized (
            -- A tenant whose jobs were all locked was owed nothing meanwhile.
            select c.*, case when c.lost > 0 and c.done = c.lost then greatest(c.own, o_ring.v) else c.own end as now, c.done > 0 or not c.stays or c.line > 0 or c.back > 0 as moves
            from charge c
        ), charged as (
            update ojs.tenant_fairness f
            set rev = f.rev + 1, vtime = d.now + case when d.stays then 0 else p_ring.drift end, drift = case when d.stays then 0 else p_ring.drift end,
                head = greatest(f.head, d.line), reentry_head = greatest(f.reentry_head, d.back), backlogged = d.stays,
                dispatched = f.dispatched + d.done - d.lost, deficit = round((o_ring.v - d.now) * f.weight, 6)
            from due d where d.moves and f.ctid = d.row_at
        ), passed as (
            delete from ojs.reentry e
            using (select x.place from due d
                cross join lateral (select e.ctid as place from ojs.reentry e
                    where e.queue = p_ring.queue and e.priority = p_ring.priority and e.tenant_id = d.tenant_id and e.n <= d.back order by e.n limit 2147483647) x
                where d.back > 0) p
            where e.ctid = p.place
        )
        select d.class, count(*)::int as members, max(d.vtime) as last, min(d.now) filter (where d.stays) as head, count(*) filter (where not d.stays)::int as left,
            sum(d.weight) filter (where not d.stays) as weight, coalesce(sum((o_ring.v - d.now) * d.weight) filter (where not d.stays and d.open), 0) as late,
            bool_or(d.moves) as moves, array_agg(d.tenant_id) filter (where d.lost > 0) as blocked,
            array_agg(d.tenant_id) filter (where d.barren) as barren
        from due d group by d.class
    loop
        v_at := v_charged.class;
        o_progress := o_progress or v_charged.moves;
        v_blocked := v_blocked || v_charged.blocked;
        v_barren := v_barren || v_charged.barren;
        v_late := v_late + v_charged.late;
        if v_charged.left > 0 then
            o_ring.class_members[v_at] := o_ring.class_members[v_at] - v_charged.left;
            o_ring.class_weight[v_at] := o_ring.class_weight[v_at] - v_charged.weight;
            o_ring.members := o_ring.members - v_charged.left;
            o_ring.weight := o_ring.weight - v_charged.weight;
        end if;
        if p_tenant is null then
            o_ring.class_head[v_at] := coalesce(least(v_charged.head, case when v_charged.members < p_ring.class_members[v_at] then v_charged.last end), o_ring.v);
        end if;
    end loop;
    foreach v_tenant in array v_barren || v_blocked loop
        o_skimmed := o_skimmed + ojs._skim(p_ring.queue, p_ring.priority, v_tenant, p_reentry_max, v_tenant = any (v_blocked));
    end loop;
    o_ring := ojs._ring_tidy(o_ring);
    if o_ring.members > 0 then
        v_own := greatest(o_ring.v + round(v_late / o_ring.weight, 15), (select min(h) from unnest(o_ring.class_head) h));
        o_ring.drift := o_ring.drift - (v_own - o_ring.v);
        if v_picks > 0 and not p_lock then
            o_drifts[v_picks] := o_drifts[v_picks] - (v_own - o_ring.v)::float8;
        end if;
        o_ring.v := v_own;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve(ojs.ring, int, text, bigint, boolean) is
'Chooses up to p_count jobs of one ring in fair order and charges their tenants. Returns the ring as it is then (to be stored by the caller), the jobs in order, the places
of their rows (p_lock) or their tenants, where each stood and by how much it moved the clock and the drift of the ring, whether cursors moved (fewer jobs than asked with progress means there may be more), and how many ended or locked
jobs were passed over. p_lock: locks the jobs, and passes over what somebody else has locked. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._look_again(p_tenants text[], p_ids uuid[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    insert into ojs.timer (due_at, kind, tenant_ids, ids) select ojs.now() + interval '1 second', 'again', p_tenants, p_ids where cardinality(p_ids) > 0;
end;
$$;
-- +goose StatementEnd
comment on function ojs._look_again(text[], uuid[]) is 'Has the tick look again, in a second, at jobs that were passed over because somebody had them locked.';

-- +goose StatementBegin
create function ojs._first_free(p_tenant text, p_ids uuid[], p_test boolean) returns int
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_free uuid[];
    v_at   int;
begin
    if p_ids is null or not p_test then
        return case when p_ids is not null then 1 end;
    end if;
    v_free := array(select j.id from unnest(p_ids) i
        cross join lateral (select j.id from ojs.job j where j.id = i and j.tenant_id = p_tenant and j.state = 'available' for update skip locked) j);
    select min(i.at) into v_at from unnest(p_ids) with ordinality i(id, at) where i.id in (select f.id from unnest(v_free) f(id));
    perform ojs._look_again(array_fill(p_tenant, array[coalesce(v_at - 1, cardinality(p_ids))]), p_ids[:coalesce(v_at - 1, cardinality(p_ids))]);
    return v_at;
end;
$$;
-- +goose StatementEnd
comment on function ojs._first_free(text, uuid[], boolean) is
'Index of the first of the jobs that nobody has locked (without p_test: the first); those before it are to be looked at again. Null: none.';

-- +goose StatementBegin
create function ojs._skim(p_queue text, p_priority int, p_tenant text, p_reentry_max bigint, p_locked boolean) returns int
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    c_rows    constant int := 5000;
    v_now     timestamptz := ojs.now();
    v_fair    ojs.tenant_fairness;
    v_list    record;
    v_line    record;
    v_stop    int;
begin
    select f.* into v_fair from ojs.tenant_fairness f
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant order by f.rev desc limit 1;
    -- The small list up to the first job that can be had.
    select count(*) as seen, max(e.n) as last, array_agg(e.n order by e.n) filter (where j.state = 'available') as at,
        array_agg(e.id order by e.n) filter (where j.state = 'available') as ready
    into v_list
    from (select e.n, e.id, e.tenant_id from ojs.reentry e
        where e.queue = p_queue and e.priority = p_priority and e.tenant_id = p_tenant and e.n > v_fair.reentry_head and e.n <= p_reentry_max
        order by e.n limit c_rows) e
    left join ojs.job j on j.id = e.id and j.tenant_id = e.tenant_id;
    if v_list.seen > 0 then
        v_stop := ojs._first_free(p_tenant, v_list.ready, p_locked);
        update ojs.tenant_fairness f set reentry_head = coalesce(v_list.at[v_stop] - 1, v_list.last)
        where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
        return v_list.seen;
    end if;
    -- Then the line.
    select count(*) as seen, max(j.seq) as last, array_agg(j.id) filter (where j.state = 'available' and j.expires_at <= v_now) as expired,
        array_agg(j.seq order by j.seq) filter (where j.state = 'available' and (j.expires_at > v_now) is not false) as at,
        array_agg(j.id order by j.seq) filter (where j.state = 'available' and (j.expires_at > v_now) is not false) as ready
    into v_line
    from (select j.seq, j.id, j.state, j.expires_at from ojs.job j
        where j.queue = p_queue and j.priority = v_fair.job_priority and j.tenant_id = p_tenant and j.seq > v_fair.head and j.seq is not null
        order by j.seq limit c_rows) j;
    v_stop := ojs._first_free(p_tenant, v_line.ready, p_locked);
    perform ojs._expire(v_line.expired, array(select p_tenant from unnest(v_line.expired))) where v_line.expired is not null;
    update ojs.tenant_fairness f set head = greatest(f.head, coalesce(v_line.at[v_stop] - 1, v_line.last))
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev and v_line.seen > 0;
    return v_line.seen;
end;
$$;
-- +goose StatementEnd
comment on function ojs._skim(text, int, text, bigint, boolean) is
'Moves a tenant''s cursors past a run of jobs that have ended, expired, or (p_locked) are locked, thousands at a time, and returns how many it looked at.
Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._discard_expired(p_ids uuid[], p_tenants text[]) returns table (id uuid, tenant_id text)
language sql set search_path = pg_catalog, pg_temp
as $$
    with held as materialized (
        select j.* from unnest(p_ids, p_tenants) e(id, tenant_id)
        cross join lateral (select j.id, j.tenant_id, j.state from ojs.job j
            where j.id = e.id and j.tenant_id = e.tenant_id and j.state in ('available', 'scheduled', 'retryable', 'pending') and j.expires_at <= ojs.now() for update skip locked) j
    ), ended as (
        update ojs.job j set state = 'discarded', finished_at = ojs.now(), retry_at = null from held h where j.id = h.id and j.tenant_id = h.tenant_id
        returning j.tenant_id, j.queue, j.priority, j.id, j.type, j.attempt, h.state as from_state
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
        select e.tenant_id, e.queue, e.priority, e.id, e.type, e.attempt, e.from_state, 'discarded' from ended e
    )
    select h.id, h.tenant_id from held h
$$;
-- +goose StatementEnd
comment on function ojs._discard_expired(uuid[], text[]) is
'Discards those of the jobs that wait past their expires_at, for a worker or for their time, and that nobody else has locked (ojs-core section 5.2); says which.';

-- +goose StatementBegin
create function ojs._expire(p_ids uuid[], p_tenants text[]) returns void
language sql set search_path = pg_catalog, pg_temp
as $$
    with ended as materialized (select x.id, x.tenant_id from ojs._discard_expired(p_ids, p_tenants) x)
    select ojs._look_again(array_agg(e.tenant_id), array_agg(e.id))
    from unnest(p_ids, p_tenants) e(id, tenant_id) where (e.id, e.tenant_id) not in (select x.id, x.tenant_id from ended x)
$$;
-- +goose StatementEnd
comment on function ojs._expire(uuid[], text[]) is 'Discards available jobs whose expires_at has passed, when their turn has come; those that are locked are looked at again.';

-- +goose StatementBegin
create function ojs._serve_queue(p_queue text, p_count int, p_tenant text, p_reentry_max bigint, p_skim int, out o_ids uuid[], out o_rows tid[], out o_skimmed int)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_ring   ojs.ring;
    v_left   int := p_count;
    v_served record;
begin
    o_ids := '{}';
    o_rows := '{}';
    o_skimmed := 0;
    for v_ring in
        select r.* from ojs.queue_priority q
        cross join lateral (select r.* from ojs.ring r where r.queue = q.queue and r.priority = q.priority order by r.rev desc limit 1) r
        where q.queue = p_queue and r.members > 0 order by q.priority desc
    loop
        loop
            v_served := ojs._serve(v_ring, v_left, p_tenant, p_reentry_max, true);
            v_ring := v_served.o_ring;
            o_ids := o_ids || v_served.o_ids;
            o_rows := o_rows || v_served.o_rows;
            o_skimmed := o_skimmed + v_served.o_skimmed;
            v_left := p_count - cardinality(o_ids);
            exit when v_left <= 0 or v_ring.members = 0 or not v_served.o_progress or o_skimmed > p_skim;
        end loop;
        perform ojs._ring_changed(v_ring);
        exit when v_left <= 0 or o_skimmed > p_skim;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve_queue(text, int, text, bigint, int) is
'The next p_count jobs of one queue, of one tenant or of all, locked and in fair order, with the places of their rows, and how many ended or locked jobs were passed over: when these are more than
p_skim, there may be more. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._decide(p_queues text[], p_count int, p_tenant text, out o_ids uuid[], out o_rows tid[])
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    c_skim     constant int := 200000;
    v_behind   boolean;
    v_runs     text[];
    v_n        int := cardinality(p_queues);
    v_more     boolean;
    v_max      bigint;
    v_served   record;
    v_total    int := 0;
    v_skimmed  int := 0;
    -- The round over several queues.
    v_rotation ojs.rotation;
    v_queues   text[];
    v_share    int[];
    v_want     int;
    v_got      int;
    v_left     int;
    v_open     int;
    v_at       int;
    v_turn     int[];
    v_empty    boolean[];
begin
    o_ids := '{}';
    o_rows := '{}';
    select pg_snapshot_xmax(f.snapshot) > pg_snapshot_xmax(pg_current_snapshot()), array(select q.queue from unnest(p_queues) q(queue)
        where case when (select m.rev from ojs.run_mark m where m.queue = q.queue order by m.rev desc limit 1) is not null then ojs._has_run(q.queue) end)
    into v_behind, v_runs
    from (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f;
    if v_behind then
        perform ojs.rebuild();
    elsif v_runs <> '{}' then
        -- What was decided ahead for direct callers is decided again.
        perform ojs._revoke(q.queue) from unnest(v_runs) q(queue);
    elsif v_runs is null then
        -- Dispatch is held since this call began.
        return;
    end if;
    -- One job from each queue per turn, beginning where the last decision over the same queues stopped.
    if v_n > 1 then
        select * into v_rotation from ojs.rotation r where r.queues = p_queues order by r.rev desc limit 1;
        v_at := coalesce(v_rotation.next, 1);
        v_queues := p_queues[v_at:] || p_queues[:v_at - 1];
        v_share := array_fill(0, array[v_n]);
        v_turn := '{}';
    end if;
    loop
        v_more := ojs._fold();
        select s.last_value into v_max from ojs.reentry_n_seq s;
        if v_n = 1 then
            v_served := ojs._serve_queue(p_queues[1], p_count - v_total, p_tenant, v_max, c_skim - v_skimmed);
            o_ids := o_ids || v_served.o_ids;
            o_rows := o_rows || v_served.o_rows;
            v_skimmed := v_skimmed + v_served.o_skimmed;
            v_total := cardinality(o_ids);
        else
            v_empty := array_fill(false, array[v_n]);
            while v_total < p_count and false = any (v_empty) loop
                v_left := p_count - v_total;
                v_open := (select count(*) from unnest(v_empty) e where not e)::int;
                v_at := 0;
                for q in 1 .. v_n loop
                    continue when v_empty[q];
                    v_at := v_at + 1;
                    v_want := v_left / v_open + case when v_at <= v_left % v_open then 1 else 0 end;
                    exit when v_want = 0;
                    v_served := ojs._serve_queue(v_queues[q], v_want, p_tenant, v_max, c_skim - v_skimmed);
                    v_got := cardinality(v_served.o_ids);
                    o_ids := o_ids || v_served.o_ids;
                    o_rows := o_rows || v_served.o_rows;
                    v_turn := v_turn || array(select (v_share[q] + t) * v_n + q from generate_subscripts(v_served.o_ids, 1) t);
                    v_share[q] := v_share[q] + v_got;
                    v_skimmed := v_skimmed + v_served.o_skimmed;
                    v_empty[q] := v_got < v_want;
                    v_total := v_total + v_got;
                end loop;
            end loop;
        end if;
        exit when v_total >= p_count or not v_more or v_skimmed > c_skim;
    end loop;
    if v_skimmed > c_skim and v_total < p_count then
        -- Enough for one decision: others wait. What was passed over stays passed over, and whoever waits is told to come again.
        perform ojs._notify(p_queues);
    end if;

    if v_n > 1 and v_total > 0 then
        -- The next turn is that of the queue after the one that had the last.
        select (m.turn - 1) % v_n + 1 into v_at from unnest(v_turn) m(turn) order by m.turn desc limit 1;
        v_at := (coalesce(v_rotation.next, 1) - 1 + v_at) % v_n + 1;
        if v_rotation.queues is null then
            insert into ojs.rotation (queues, rev, next) values (p_queues, 1, v_at);
        elsif v_rotation.next <> v_at then
            update ojs.rotation r set rev = r.rev + 1, next = v_at where r.queues = v_rotation.queues and r.rev = v_rotation.rev;
        end if;
        select array_agg(g.id order by g.turn), array_agg(g.row_at order by g.turn) into o_ids, o_rows from unnest(o_ids, o_rows, v_turn) g(id, row_at, turn);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._decide(text[], int, text) is
'The decision: the next p_count jobs of the queues (unpaused ones, each once), of one tenant or of all, locked and in fair order, with the places of their rows. Their tenants have been charged.
Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._plan(p_queue text, p_count int) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_max      bigint;
    v_ahead    int;
    v_left     int;
    v_mark     ojs.run_mark;
    v_held     bigint[];
    v_lo       bigint;
    v_hi       bigint;
    v_priority int;
    v_ring     ojs.ring;
    v_served   record;
    v_added    record;
begin
    select s.last_value into v_max from ojs.reentry_n_seq s;
    select * into v_mark from ojs.run_mark m where m.queue = p_queue order by m.rev desc limit 1;
    -- Whoever has hold of a row may keep it for long. One that was the first at the last refill, too, is remembered, and scans begin behind it; let go of
    -- untaken, it is revoked with all the rest, and so is one whose job has ended.
    if exists (select from unnest(v_mark.held) h(n) cross join lateral (select from ojs.run r where r.queue = p_queue and r.n = h.n limit 1 for update skip locked) r)
            or exists (select from (select r.id, r.tenant_id from ojs.run r where r.queue = p_queue and r.n >= v_mark.lo order by r.n limit 1) r
                where not exists (select from ojs.job j where j.id = r.id and j.tenant_id = r.tenant_id and j.state = 'available')) then
        perform ojs._revoke(p_queue);
        select * into v_mark from ojs.run_mark m where m.queue = p_queue order by m.rev desc limit 1;
    end if;
    select r.n into v_lo from ojs.run r where r.queue = p_queue and r.n >= v_mark.lo order by r.n limit 1;
    v_held := array(select r.n from unnest(v_mark.held) h(n) cross join lateral (select r.n from ojs.run r where r.queue = p_queue and r.n = h.n limit 1) r);
    if v_lo = v_mark.lo then
        v_held := v_held || v_lo;
        perform ojs._look_again(array[r.tenant_id], array[r.id]) from ojs.run r where r.queue = p_queue and r.n = v_lo;
        select r.n into v_lo from ojs.run r where r.queue = p_queue and r.n > v_mark.lo order by r.n limit 1;
    end if;
    -- Further each time, and half as far after each revocation: what is decided ahead and not taken is decided twice.
    v_ahead := least(p_count, greatest(2 * v_mark.ahead, p_count / 8));
    v_left := v_ahead;
    for v_priority in select p.priority from ojs.queue_priority p where p.queue = p_queue order by p.priority desc loop
        v_ring := ojs._ring(p_queue, v_priority);
        continue when v_ring.members = 0;
        loop
            v_served := ojs._serve(v_ring, v_left, null, v_max, false);
            v_ring := v_served.o_ring;
            if cardinality(v_served.o_ids) > 0 then
                with added as (
                    insert into ojs.run (queue, priority, job_priority, tenant_id, id, pos, step, drift)
                    select p_queue, v_priority, v_priority - coalesce((select t.priority_boost from ojs.tenant t where t.tenant_id = s.tenant_id), 0), s.tenant_id, s.id, s.pos, s.step, s.drift
                    from unnest(v_served.o_ids, v_served.o_tenants, v_served.o_places, v_served.o_steps, v_served.o_drifts) s(id, tenant_id, pos, step, drift)
                    returning n
                )
                select min(a.n) as lo, max(a.n) as hi into v_added from added a;
                v_lo := coalesce(v_lo, v_added.lo);
                v_hi := v_added.hi;
                v_left := v_left - cardinality(v_served.o_ids);
            end if;
            exit when v_left <= 0 or v_ring.members = 0 or not v_served.o_progress or v_served.o_skimmed > 0;
        end loop;
        perform ojs._ring_changed(v_ring);
        -- Nothing of a lower priority goes before what is left here.
        exit when v_left <= 0 or v_ring.members > 0;
    end loop;
    if v_hi is null then
        return;
    elsif v_mark.queue is null then
        insert into ojs.run_mark (queue, rev, lo, hi, ahead) values (p_queue, 1, v_lo, v_hi, v_ahead);
    else
        update ojs.run_mark m set rev = m.rev + 1, lo = v_lo, hi = v_hi, ahead = v_ahead, held = v_held where m.queue = p_queue and m.rev = v_mark.rev;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._plan(text, int) is
'Decides up to p_count jobs ahead and appends them to the run queue of a queue, where direct callers take them without a decision of their own. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._refill(p_queue text, p_count int, p_in_lane boolean default false) returns void
language plpgsql set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off
    set plan_cache_mode = force_generic_plan set max_parallel_workers_per_gather = 0 set jit = off
as $$
begin
    -- Most often, under light load, there is nothing left.
    if ojs._has_work(array[p_queue]) and (p_in_lane or not ojs._lingers() and ojs._enter_lane(-1)) then
        perform ojs._fold();
        perform ojs._plan(p_queue, greatest(128, 32 * p_count));
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._refill(text, int, boolean) is 'Decides ahead for callers who ask for p_count jobs each, unless somebody decides at this moment. p_in_lane: the caller is the one.';

-- +goose StatementBegin
create function ojs._check_fetch(p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if p_queues is null or cardinality(p_queues) not between 1 and 100 or array_ndims(p_queues) <> 1 or array_lower(p_queues, 1) <> 1 then
        perform ojs._raise('OJ400', 'queues must name between 1 and 100 queues', '{"field": "queues"}');
    end if;
    if exists (select from unnest(p_queues) q where q is null or q !~ '^[a-z0-9][a-z0-9.-]*$' or length(q) > 128) then
        perform ojs._raise('OJ400', 'queues must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters', '{"field": "queues"}');
    end if;
    if exists (select from unnest(p_counts) c where c is null or c < 1) or (select sum(c) from unnest(p_counts) c) is null or (select sum(c::bigint) from unnest(p_counts) c) > 10000 then
        perform ojs._raise('OJ400', 'count must be an integer between 1 and 10000', '{"field": "count"}');
    end if;
    if exists (select from unnest(p_visibility_timeouts_ms) v where v not between 1000 and 604800000 and v <> 0) then
        perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
    end if;
    if exists (select from unnest(p_worker_ids) w where length(w) > 255) then
        perform ojs._raise('OJ400', 'worker_id is longer than 255 characters', '{"field": "worker_id"}');
    end if;
    if cardinality(p_worker_ids) <> cardinality(p_counts) or cardinality(p_visibility_timeouts_ms) <> cardinality(p_counts)
            or array_ndims(p_counts) <> 1 or array_ndims(p_worker_ids) <> 1 or array_ndims(p_visibility_timeouts_ms) <> 1 then
        perform ojs._raise('OJ400', 'counts, worker_ids and visibility_timeouts_ms must be of one length', '{"field": "counts"}');
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform ojs._raise('OJ408', 'ojs.fetch needs a transaction of isolation level read committed', '{"field": "transaction_isolation"}');
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._check_fetch(text[], int[], text[], int[]) is 'Raises why a FETCH is refused; else does nothing. 0 and empty text mean that nothing was given.';
-- +goose StatementBegin
create function ojs._aside(p_queues text[], p_count int, p_tenant text, p_above int default null, out o_ids uuid[], out o_rows tid[])
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    c_line     constant bigint := 4611686018427387904;
    c_more     constant int := 100;
    v_now      timestamptz := ojs.now();
    v_ring     ojs.ring;
    v_priority int;
    v_want     int;
    v_got      record;
begin
    o_ids := '{}';
    o_rows := '{}';
    for q in 1 .. cardinality(p_queues) loop
        v_want := ceil((p_count - cardinality(o_ids)) / (cardinality(p_queues) - q + 1)::numeric);
        for v_priority in
            select p.priority
            from (
                select p.priority from ojs.queue_priority p where p.queue = p_queues[q]
                union
                select w.priority + coalesce(t.priority_boost, 0) from ojs._unfolded() w left join ojs.tenant t on t.tenant_id = w.tenant_id where w.queue = p_queues[q]
            ) p
            where (p.priority <= p_above) is not true
            order by p.priority desc
        loop
            exit when v_want <= 0;
            v_ring := ojs._ring(p_queues[q], v_priority);
            with fresh as materialized (
                select w.tenant_id, w.priority as job_priority, w.lo, w.hi, coalesce(t.weight, 1) as weight
                from ojs._unfolded() w left join ojs.tenant t on t.tenant_id = w.tenant_id
                where w.queue = p_queues[q] and w.priority + coalesce(t.priority_boost, 0) = v_priority and (p_tenant is null or w.tenant_id = p_tenant)
            ), shard as materialized (
                select f.tenant_id, f.job_priority, f.vtime, f.weight, f.head, f.reentry_head
                from unnest(v_ring.class, v_ring.class_head) c(class, head)
                cross join lateral (
                    select f.* from ojs.tenant_fairness f
                    where p_tenant is null and f.queue = p_queues[q] and f.priority = v_priority and f.class = c.class and f.backlogged and f.vtime >= c.head
                    order by f.vtime limit p_count + c_more
                ) f
                union all
                select f.tenant_id, f.job_priority, f.vtime, f.weight, f.head, f.reentry_head
                from (select f.* from ojs.tenant_fairness f
                    where p_tenant is not null and f.queue = p_queues[q] and f.priority = v_priority and f.tenant_id = p_tenant
                    order by f.rev desc limit 1) f
                where f.backlogged
                union all
                select w.tenant_id, w.job_priority, greatest(f.vtime - v_ring.drift, v_ring.v, 0), w.weight, coalesce(f.head, w.lo - 1), coalesce(f.reentry_head, 0)
                from (select w.tenant_id, w.job_priority, w.weight, min(w.lo) as lo from fresh w group by w.tenant_id, w.job_priority, w.weight) w
                left join lateral (select f.* from ojs.tenant_fairness f
                    where f.queue = p_queues[q] and f.priority = v_priority and f.tenant_id = w.tenant_id order by f.rev desc limit 1) f on true
                where f.backlogged is not true
            ), line as (
                -- Jobs on the small list, jobs that became visible behind the cursor, and the line.
                select s.tenant_id, s.vtime, s.weight, j.id, min(j.pos) as pos
                from shard s
                cross join lateral (
                    (select e.n as pos, j.id from ojs.reentry e
                    cross join lateral (select j.id from ojs.job j
                        where j.id = e.id and j.tenant_id = e.tenant_id and j.state = 'available' and (j.expires_at > v_now) is not false limit 1) j
                    where e.queue = p_queues[q] and e.priority = v_priority and e.tenant_id = s.tenant_id and e.n > s.reentry_head
                    order by e.n limit p_count + c_more)
                    union all
                    (select c_line + j.seq, j.id from fresh w
                    cross join lateral (select j.seq, j.id from ojs.job j
                        where j.queue = p_queues[q] and j.priority = s.job_priority and j.tenant_id = s.tenant_id and j.seq between w.lo and least(w.hi, s.head)
                          and j.state = 'available' and (j.expires_at > v_now) is not false
                        order by j.seq limit p_count + c_more) j
                    where w.tenant_id = s.tenant_id and w.lo <= s.head)
                    union all
                    (select c_line + j.seq, j.id from ojs.job j
                    where j.queue = p_queues[q] and j.priority = s.job_priority and j.tenant_id = s.tenant_id and j.seq > s.head and j.seq is not null
                      and j.state = 'available' and (j.expires_at > v_now) is not false
                    order by j.seq limit p_count + c_more)
                ) j
                group by s.tenant_id, s.vtime, s.weight, j.id
            ), due as (
                select l.id, l.tenant_id from line l order by l.vtime + row_number() over (partition by l.tenant_id order by l.pos) / l.weight
            )
            select coalesce(array_agg(x.id), '{}') as ids, coalesce(array_agg(x.row_at), '{}') as rows into v_got
            from (
                select d.id, j.row_at from due d
                cross join lateral (select j.ctid as row_at from ojs.job j
                    where j.id = d.id and j.tenant_id = d.tenant_id and j.state = 'available' for update skip locked) j
                limit v_want
            ) x;
            o_ids := o_ids || v_got.ids;
            o_rows := o_rows || v_got.rows;
            v_want := v_want - cardinality(v_got.ids);
        end loop;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._aside(text[], int, text, int) is
'Jobs for a caller that must not wait for a decision, or hold one up: those whose tenants are owed most as far as is known, locked, in order, with the places of their rows; p_above: only those of a higher
effective priority. Whoever takes them is to leave word that their tenants are still to be charged. Writes nothing else; several callers at once take different jobs.';

-- +goose StatementBegin
create function ojs._unpaused(p_queues text[]) returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select q.queue from unnest(p_queues) with ordinality q(queue, n)
        where not exists (select from ojs.queue c where c.queue = q.queue and c.paused) group by q.queue order by min(q.n));
end;
$$;
-- +goose StatementEnd
comment on function ojs._unpaused(text[]) is 'Those of the queues that are not paused, each once, in the order given.';

-- +goose StatementBegin
create function ojs.fetch_many(
    p_queues text[], p_counts int[], p_worker_ids text[], p_visibility_timeouts_ms int[], p_tenant text default null, p_ahead boolean default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
    -- Index order only: a bitmap or a sort would read every dead version of the few rows that change all the time.
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off
    set plan_cache_mode = force_generic_plan set max_parallel_workers_per_gather = 0 set jit = off
as $$
declare
    c_patience_ms constant int := 1000;
    c_waits       constant int := 3;
    -- Deciding ahead pays where few jobs are asked for at once: enough then to keep sixteen callers going while one of them decides.
    c_few         constant int := 16;
    v_count       int;
    v_tenant      text;
    v_own         text;
    v_paused      boolean;
    v_resting     boolean;
    v_awake       record;
    v_fresh       boolean;
    v_queues      text[] := p_queues;
    v_queue       text;
    v_single      boolean := cardinality(p_queues) = 1;
    -- Who stays in its transaction, and any tenant, must not keep others waiting.
    v_aside       boolean;
    v_in_lane     boolean := false;
    v_above       int;
    v_looked      boolean := false;
    v_mark        ojs.run_mark;
    v_seen        bigint;
    v_waits       int := 0;
    v_got         int := 0;
    v_rows        int;
    v_want        int;
    v_decided     boolean := false;
    v_ids         uuid[] := '{}';
    v_places      tid[] := '{}';
    v_turns       bigint[];
    v_now         timestamptz;
    v_plain       boolean;
    -- The request that each job is for; null when there is one request, or each asks for one job.
    v_request     int[];
    v_ones        boolean;
begin
    -- All that has to be known before, in one statement: each costs more to begin than to do.
    v_queue := p_queues[1];
    select (select least(sum(c), 10001) from unnest(p_counts) c), cardinality(p_queues) between 1 and 100 and array_ndims(p_queues) = 1 and array_lower(p_queues, 1) = 1 and octet_length(array_to_string(p_queues, '/')) <= 128
        and array_to_string(p_queues, '/', '') ~ '^[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9.-]*)*$' and strpos(array_to_string(p_queues, ''), '/') = 0 and 0 < all (p_counts) and (0 = all (p_visibility_timeouts_ms)) is not false
        and (select coalesce(max(length(w)), 0) from unnest(p_worker_ids) w) <= 255 and cardinality(p_worker_ids) = cardinality(p_counts)
        and cardinality(p_visibility_timeouts_ms) = cardinality(p_counts) and array_ndims(p_counts) = 1 and array_ndims(p_worker_ids) = 1 and current_setting('transaction_isolation') = 'read committed',
        ojs.current_tenant(), exists (select from ojs.queue c where c.queue = v_queue and c.paused),
        exists (select from ojs.worker w where w.resting and w.tenant_id = coalesce(p_tenant, '') and w.worker_id = any (p_worker_ids)), m.*, m.queue is not null
        and (exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(f.snapshot) and w.to_state = 'available' and w.queue = v_queue)
            or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' and w.queue = v_queue offset 0) w))
    into v_count, v_plain, v_own, v_paused, v_resting, v_mark.queue, v_mark.rev, v_mark.lo, v_mark.hi, v_mark.ahead, v_mark.held, v_fresh
    from (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f
    left join lateral (select m.* from ojs.run_mark m where v_single and m.queue = v_queue and pg_snapshot_xmax(f.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
        order by m.rev desc limit 1) m on exists (select from ojs.run r where r.queue = m.queue and r.n >= m.lo);
    if (v_plain and v_count <= 10000) is not true then
        perform ojs._check_fetch(p_queues, p_counts, p_worker_ids, p_visibility_timeouts_ms);
        if v_plain is null and exists (select from ojs.settings s where s.held_at is not null) then
            -- There is no fold to be found.
            return;
        end if;
    end if;
    v_ones := v_count = cardinality(p_counts);
    if not v_ones and cardinality(p_counts) > 1 then
        v_request := array(select r.n from unnest(p_counts) with ordinality r(jobs, n) cross join lateral generate_series(1, r.jobs) order by r.n);
    end if;
    if v_own is not null or p_tenant is not null or not pg_has_role(session_user, 'ojs_service', 'member') then
        v_tenant := ojs._session_tenant(p_tenant);
    end if;
    if v_resting or v_own is not null then
        -- Each gets its answer all the same.
        select array_agg(r.jobs order by r.n) as counts, array_agg(r.worker_id order by r.n) as worker_ids, array_agg(r.timeout order by r.n) as timeouts, count(*) as requests
        into v_awake
        from unnest(p_counts, p_worker_ids, p_visibility_timeouts_ms) with ordinality r(jobs, worker_id, timeout, n)
        where not exists (select from ojs.worker w where w.resting and w.tenant_id = coalesce(v_tenant, '') and w.worker_id = r.worker_id);
        if v_awake.requests < cardinality(p_counts) then
            if v_awake.requests > 0 then
                return query select * from ojs.fetch_many(p_queues, v_awake.counts, v_awake.worker_ids, v_awake.timeouts, p_tenant, p_ahead);
            end if;
            return query select j.* from (select distinct r.worker_id from unnest(p_worker_ids) r(worker_id) where (r.worker_id = any (v_awake.worker_ids)) is not true) w
                cross join lateral jsonb_populate_record(null::ojs.job, jsonb_build_object('worker_id', w.worker_id)) j;
            return;
        end if;
    end if;
    v_aside := v_own is not null or ojs._lingers() and current_setting('ojs.lane', true) is distinct from 'held';
    if not v_single then
        v_queues := ojs._unpaused(p_queues);
        if cardinality(v_queues) = 0 then
            return;
        elsif cardinality(v_queues) = 1 then
            return query select * from ojs.fetch_many(v_queues, p_counts, p_worker_ids, p_visibility_timeouts_ms, p_tenant, p_ahead);
            return;
        elsif v_aside and cardinality(p_counts) = 1 then
            -- Beside a decision there is no round over queues: from each its part, and then from each what is missing.
            for v_turn in 1 .. 2 * cardinality(v_queues) loop
                exit when v_got = v_count;
                return query select * from ojs.fetch_many(array[v_queues[(v_turn - 1) % cardinality(v_queues) + 1]],
                    array[case when v_turn > cardinality(v_queues) then v_count - v_got else ceil((v_count - v_got) / (cardinality(v_queues) - v_turn + 1)::numeric)::int end],
                    p_worker_ids, p_visibility_timeouts_ms, p_tenant);
                get diagnostics v_rows = row_count;
                v_got := v_got + v_rows;
            end loop;
            return;
        end if;
    elsif v_paused then
        return;
    end if;
    while v_fresh and not v_aside and not v_in_lane and exists (select from ojs._stale_queues(v_queue)) loop
        -- Work has come that may go before what was decided ahead: whoever decides at this moment may well see to it.
        v_in_lane := ojs._enter_lane(case when v_waits < c_waits then -1 else c_patience_ms end);
        if v_in_lane then
            perform ojs._fold();
        else
            v_aside := v_waits = c_waits or not ojs._await_lane(c_patience_ms);
            v_waits := v_waits + 1;
        end if;
    end loop;

    loop
        if v_aside and v_mark.queue is not null and not v_looked then
            -- What was decided ahead cannot be revoked from here. Work that has come since and goes before it is taken first.
            v_looked := true;
            select max(r.priority) into v_above from ojs.run r where r.queue = v_queue and r.n >= v_mark.lo and exists (select from ojs._stale_queues(v_queue));
            if v_above is not null then
                select a.o_ids, a.o_rows into v_ids, v_places from ojs._aside(v_queues, v_count - v_got, v_tenant, v_above) a;
                v_decided := true;
                v_want := 0;
            end if;
        end if;
        if not v_decided then
            v_want := case when v_mark.queue is not null and (v_tenant is null or v_aside) then v_count - v_got else 0 end;
        end if;
        if v_want > 0 or v_decided then
            -- Handed out are the next v_want jobs of the run queue, or those that this transaction has just decided on and locked.
            v_now := ojs.now();
            if not v_decided then
                with free as materialized (
                    select r.n, r.id, r.ctid as place, j.row_at from ojs.run r
                    cross join lateral (select j.ctid as row_at from ojs.job j where j.id = r.id and j.tenant_id = r.tenant_id and j.state = 'available' limit 1) j
                    where r.queue = v_queue and r.n >= v_mark.lo and (v_tenant is null or r.tenant_id = v_tenant)
                    order by r.n limit v_want for update of r skip locked
                ), held as materialized (
                    select f.n, f.id, f.place, j.row_at from free f
                    cross join lateral (select j.ctid as row_at from ojs.job j
                        where j.ctid = f.row_at and j.id = f.id and j.state = 'available' and (j.expires_at > v_now) is not false for update skip locked) j
                ), gone as (
                    delete from ojs.run r using held h where r.ctid = h.place
                )
                select array_agg(h.id), array_agg(h.row_at), array_agg(h.n) into v_ids, v_places, v_turns from (select h.* from held h order by h.n) h;
            end if;
            if v_ids <> '{}' then
                -- A statement of its own: it sees what those who locked the jobs found, whoever changed them before.
                return query
                with given as materialized (
                    select g.*, case when v_ones then g.place else coalesce(v_request[g.place], 1) end as request
                    from (select g.id, g.row_at, coalesce(g.turn, nextval('ojs.run_n_seq')) as turn, v_got + g.n as place
                        from unnest(v_ids, v_places, v_turns) with ordinality g(id, row_at, turn, n)) g
                ), taken as (
                    update ojs.job j
                    set state = 'active', attempt = j.attempt + 1, lease = gen_random_uuid(), started_at = v_now, worker_id = nullif(p_worker_ids[g.request], ''),
                        lease_expires_at = v_now + least(coalesce(nullif(p_visibility_timeouts_ms[g.request], 0), j.visibility_timeout_ms, 30000), nullif(j.timeout_ms, 0)) * interval '1 millisecond'
                    from given g
                    where j.ctid = g.row_at and j.id = g.id and j.state = 'available'
                    returning g.turn, g.place, j.*
                ), leased as (
                    insert into ojs.lease (tenant_id, queue, priority, jobs, owed, ids, turns, at)
                    select t.tenant_id, t.queue, t.priority, count(*), case when v_decided and v_aside then count(*) else 0 end, array_agg(t.id), array_agg(t.turn), v_now
                    -- Lists that fit into a row as they are: compressing them would cost more than it saves.
                    from taken t group by t.tenant_id, t.queue, t.priority, t.place / 128
                ), timed as (
                    insert into ojs.timer (due_at, kind, tenant_ids, ids)
                    select t.lease_expires_at, 'lease', array_agg(t.tenant_id), array_agg(t.id) from taken t group by t.lease_expires_at, t.place / 128
                )
                select t.state, t.attempt, t.lease, t.started_at, t.lease_expires_at, t.finished_at, t.retry_at, t.enqueued_at, t.worker_id, t.errors, t.result, t.seq, t.tenant_id, t.id,
                    t.queue, t.type, t.priority, t.max_attempts, t.created_at, t.scheduled_at, t.expires_at, t.timeout_ms, t.visibility_timeout_ms, t.tags, t.args, t.meta, t.retry, t.options,
                    t.extra
                from taken t order by t.turn;
                get diagnostics v_rows = row_count;
                v_got := v_got + v_rows;
                if v_in_lane and v_decided and v_rows < cardinality(v_ids) then
                    -- A job on the small list may stand in line, too, and a decision that reads on finds it again.
                    perform ojs._charge(x.queue, x.priority, x.tenant_id, -x.twice, (select -x.twice / nullif(r.weight, 0) from ojs._ring(x.queue, x.priority) r)::float8)
                    from (
                        select j.queue, j.priority + coalesce(t.priority_boost, 0) as priority, j.tenant_id, sum(g.n - 1)::int as twice
                        from (select g.id, count(*) as n from unnest(v_ids) g(id) group by g.id having count(*) > 1) g
                        cross join lateral (select j.* from ojs.job j where j.id = g.id and j.started_at = v_now limit 1) j
                        left join ojs.tenant t on t.tenant_id = j.tenant_id
                        group by j.queue, j.priority, t.priority_boost, j.tenant_id
                    ) x;
                end if;
            end if;
            exit when v_got = v_count or v_decided and v_above is null and (v_aside or v_rows = cardinality(v_ids));
            v_decided := false;
            v_turns := null;
            if v_above is not null then
                v_above := null;
                continue;
            end if;
        end if;
        if v_aside or v_in_lane and v_seen = v_mark.rev then
            if v_in_lane then
                select d.o_ids, d.o_rows into v_ids, v_places from ojs._decide(v_queues, v_count - v_got, v_tenant) d;
            else
                select a.o_ids, a.o_rows into v_ids, v_places from ojs._aside(v_queues, v_count - v_got, v_tenant) a;
            end if;
            exit when v_ids = '{}';
            v_decided := true;
            v_want := 0;
        else
            exit when not v_in_lane and not ojs._anything_for(v_queues, v_tenant);
            -- Whoever decides at this moment may well decide ahead for this caller, too.
            v_in_lane := v_in_lane or ojs._enter_lane(-1);
            if not v_in_lane then
                v_aside := not ojs._await_lane(c_patience_ms);
                v_waits := v_waits + 1;
                if v_waits > c_waits then
                    v_in_lane := ojs._enter_lane(c_patience_ms);
                    v_aside := not v_in_lane;
                end if;
            end if;
            v_seen := coalesce(v_mark.rev, 0);
            if v_single then
                select * into v_mark from (select m.* from ojs.run_mark m where m.queue = v_queue order by m.rev desc limit 1) m
                where exists (select from ojs.run r where r.queue = m.queue and r.n >= m.lo);
            end if;
            v_mark.rev := coalesce(v_mark.rev, 0);
        end if;
    end loop;

    if coalesce(p_ahead, v_count < 2 * cardinality(p_counts)) and v_got = v_count and v_count <= c_few and v_single and v_tenant is null and not v_aside
            and (v_decided or coalesce((select r.n > v_mark.hi - v_mark.ahead / 2 from ojs.run r where r.queue = v_queue and r.n >= v_mark.lo order by r.n limit 1), true)) then
        perform ojs._refill(v_queue, v_count, v_in_lane);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs.fetch_many(text[], int[], text[], int[], text, boolean) is
'One decision for several FETCH requests over the same queues: the first p_counts[1] rows are those of the first request, for worker p_worker_ids[1] under a lease of
p_visibility_timeouts_ms[1], the next p_counts[2] those of the second, and so on; only the last get fewer, or none. Empty text and 0: none given. The counts sum to 10000
at most. Requests of workers that are to get nothing (ojs.direct_worker) are left out: for each such worker there is, after the jobs, one row that is null but for worker_id. p_ahead: decide ahead for later calls, too; by default where the requests ask for about one job each. The order is that of ojs.fetch, and so is what fewer than asked proves. Commit at once. Raises what ojs.fetch raises.';
grant execute on function ojs.fetch_many(text[], int[], text[], int[], text, boolean) to ojs_service, ojs_operator;

-- +goose StatementBegin
create function ojs.fetch(
    p_queues text[], p_count int default 1, p_worker_id text default null, p_visibility_timeout_ms int default null, p_tenant text default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off
    set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
    v_mark ojs.run_mark;
    v_now  timestamptz;
    v_one  record;
begin
    if p_count = 1 and cardinality(p_queues) = 1 and p_visibility_timeout_ms is null and p_tenant is null and (length(p_worker_id) > 255) is not true then
        -- As ordinary as can be. Most such calls find what they want in the run queue, and need little else.
        select m.*, ojs.now() into v_mark.queue, v_mark.rev, v_mark.lo, v_mark.hi, v_mark.ahead, v_mark.held, v_now
        from (select m.* from ojs.run_mark m where m.queue = p_queues[1] order by m.rev desc limit 1) m
        cross join lateral (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f
        where ojs._trusted() and current_setting('transaction_isolation') = 'read committed' and pg_snapshot_xmax(f.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
          and not exists (select from ojs.queue c where c.queue = m.queue and c.paused)
          and not exists (select from ojs.worker w where w.resting and w.tenant_id = '' and w.worker_id = p_worker_id)
          and not (case when exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(f.snapshot) and w.to_state = 'available' and w.queue = m.queue)
                  or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' and w.queue = m.queue offset 0) w)
              then exists (select from ojs._stale_queues(m.queue)) else false end);
        if found then
            -- What ojs.fetch_many does, at half the cost for a single job.
            with free as materialized (
                select r.n, r.id, r.tenant_id, r.ctid as place from ojs.run r
                where r.queue = v_mark.queue and r.n >= v_mark.lo
                  and exists (select from ojs.job j where j.id = r.id and j.tenant_id = r.tenant_id and j.state = 'available')
                order by r.n limit 1 for update of r skip locked
            ), held as materialized (
                select f.n, f.id, f.tenant_id, f.place from free f
                cross join lateral (select j.id from ojs.job j
                    where j.id = f.id and j.tenant_id = f.tenant_id and j.state = 'available' and (j.expires_at > v_now) is not false for update skip locked) j
            ), gone as (
                delete from ojs.run r using held h where r.ctid = h.place
            ), taken as (
                update ojs.job j
                set state = 'active', attempt = j.attempt + 1, lease = gen_random_uuid(), started_at = v_now, worker_id = nullif(p_worker_id, ''),
                    lease_expires_at = v_now + least(coalesce(j.visibility_timeout_ms, 30000), nullif(j.timeout_ms, 0)) * interval '1 millisecond'
                from held h where j.id = h.id and j.tenant_id = h.tenant_id
                returning h.n, j.tenant_id, j.queue, j.priority, j.id, j.lease_expires_at, j as job
            ), leased as (
                insert into ojs.lease (tenant_id, queue, priority, jobs, ids, turns, at)
                select t.tenant_id, t.queue, t.priority, 1, array[t.id], array[t.n], v_now from taken t
            ), timed as (
                insert into ojs.timer (due_at, kind, tenant_ids, ids) select t.lease_expires_at, 'lease', array[t.tenant_id], array[t.id] from taken t
            )
            select t.job, t.n into v_one from taken t;
            if found then
                return next v_one.job;
                if v_one.n > v_mark.hi - v_mark.ahead / 2 then
                    perform ojs._refill(v_mark.queue, 1);
                end if;
                return;
            end if;
        end if;
    end if;
    -- To fetch_many 0 means that nothing was given.
    return query select * from ojs.fetch_many(p_queues, array[p_count], array[p_worker_id], array[case when p_visibility_timeout_ms = 0 then -1 else p_visibility_timeout_ms end],
        p_tenant, true) f where f.id is not null;
end;
$$;
-- +goose StatementEnd
comment on function ojs.fetch(text[], int, text, int, text) is
'Hands out up to p_count jobs (1 to 10000) of the queues and returns them in fair order (ojs-core section 7.2): highest effective priority of a queue first,
within it tenants by weight, within a tenant first in first out; over several queues one from each per turn. Each is active from then on, attempt
counted, under a lease of p_visibility_timeout_ms (else the job''s own, else 30000 ms) that heartbeats extend, but never beyond the job''s timeout_ms. p_tenant: that tenant''s
jobs only; a tenant''s login role always its own. A worker that drains or was told to rest (ojs.direct_worker) gets none. The jobs are the caller''s when its transaction commits.
Callers of one queue take from a run queue that one of them fills ahead, so they need not wait for each other; a priority, a pause, a weight or a tenant that comes
acts on the next call all the same. Fewer than asked: no eligible job had committed before the call began, other than one that somebody had locked
when its turn came (the tick has it looked at again after a second), or 200000 ended jobs in a row lay in the way (the next call goes on behind them).
A caller may stay in its transaction: others then go on within a second, by what their tenants are owed as far as is known, and the session is ended when it idles for 10
seconds while it keeps decisions waiting. Needs read committed. Raises invalid_request, unsupported, TENANT_ACCESS_DENIED.';
grant execute on function ojs.fetch(text[], int, text, int, text) to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs.pause_queue(p_queue text) returns ojs.queue
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    insert into ojs.queue (queue, paused) values (p_queue, true) on conflict (queue) do update set paused = true returning *
$$;
-- +goose StatementEnd
comment on function ojs.pause_queue(text) is 'Stops dispatch from a queue from the next decision on; enqueue goes on, running jobs are not affected.';

-- +goose StatementBegin
create function ojs.resume_queue(p_queue text) returns ojs.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue ojs.queue;
begin
    insert into ojs.queue (queue, paused) values (p_queue, false) on conflict (queue) do update set paused = false returning * into v_queue;
    perform ojs._notify(array[p_queue]);
    return v_queue;
end;
$$;
-- +goose StatementEnd
comment on function ojs.resume_queue(text) is 'Lets dispatch from a paused queue go on and wakes its waiting workers.';
grant execute on function ojs.pause_queue(text), ojs.resume_queue(text) to ojs_operator, ojs_service;

-- +goose StatementBegin
create function ojs.register_waiters(p_server uuid, p_queues text[]) returns table (queue text, token text)
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    insert into ojs.waiter as w (server_id, queue, token, expires_at)
    select p_server, q.queue, encode(uuid_send(gen_random_uuid()), 'hex'), ojs.now() + interval '60 seconds' from (select distinct unnest(p_queues) as queue) q
    on conflict (queue, server_id) do update set expires_at = excluded.expires_at
    returning w.queue, w.token
$$;
-- +goose StatementEnd
comment on function ojs.register_waiters(uuid, text[]) is
'Says that a server has a worker waiting for each of some queues, for 60 seconds, and returns with each queue the token that a commit with jobs for it sends on channel ojs_wake. A producer
whose statement ran before this registration committed does not see it: look again a few times after registering.';

-- +goose StatementBegin
create function ojs.drop_waiter(p_server uuid, p_queue text) returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$ delete from ojs.waiter w where w.server_id = p_server and w.queue = p_queue $$;
-- +goose StatementEnd
comment on function ojs.drop_waiter(uuid, text) is 'Says that a server has no worker waiting for a queue any more.';
grant execute on function ojs.register_waiters(uuid, text[]), ojs.drop_waiter(uuid, text) to ojs_service;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.drop_waiter(uuid, text);
drop function ojs.register_waiters(uuid, text[]);
drop function ojs.resume_queue(text);
drop function ojs.pause_queue(text);
drop function ojs.fetch(text[], int, text, int, text);
drop function ojs.fetch_many(text[], int[], text[], int[], text, boolean);
drop function ojs._unpaused(text[]);
drop function ojs._aside(text[], int, text, int);
drop function ojs._check_fetch(text[], int[], text[], int[]);
drop function ojs._refill(text, int, boolean);
drop function ojs._plan(text, int);
drop function ojs._decide(text[], int, text);
drop function ojs._serve_queue(text, int, text, bigint, int);
drop function ojs._expire(uuid[], text[]);
drop function ojs._discard_expired(uuid[], text[]);
drop function ojs._skim(text, int, text, bigint, boolean);
drop function ojs._first_free(text, uuid[], boolean);
drop function ojs._look_again(text[], uuid[]);
drop function ojs._serve(ojs.ring, int, text, bigint, boolean);
drop function ojs._anything_for(text[], text);
drop function ojs._has_work(text[]);
drop function ojs._lingers();
drop function ojs._has_run(text);
reset role;
