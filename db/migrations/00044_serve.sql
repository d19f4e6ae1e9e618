-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._has_run(p_queue text) returns boolean
language plpgsql stable
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
create function ojs._has_work(p_queues text[]) returns boolean
language plpgsql stable
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
language plpgsql stable
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
comment on function ojs._anything_for(text[], text) is
'Whether a decision could find a job: a wake not folded yet, or a tenant with work in one of the queues. Writes nothing, so that idle
polling leaves no trace.';

-- +goose StatementBegin
create function ojs._serve(
    p_ring ojs.ring, p_count int, p_tenant text, p_reentry_max bigint, p_lock boolean,
    out o_ring ojs.ring, out o_ids uuid[], out o_rows tid[], out o_tenants text[], out o_places bigint[], out o_steps float8[], out o_drifts float8[], out o_progress boolean, out o_skimmed int
)
language plpgsql
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
'Chooses up to p_count jobs of one ring in fair order and charges their tenants. Returns the ring as it is then (to be stored by the
caller), the jobs in order, the places of their rows (p_lock) or their tenants, where each stood and by how much it moved the clock and
the drift of the ring, whether cursors moved (fewer jobs than asked with progress means there may be more), and how many ended or locked
jobs were passed over. p_lock: locks the jobs, and passes over what somebody else has locked. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._look_again(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
begin
    insert into ojs.timer (due_at, kind, tenant_ids, ids) select ojs.now() + interval '1 second', 'again', p_tenants, p_ids where cardinality(p_ids) > 0;
end;
$$;
-- +goose StatementEnd
comment on function ojs._look_again(text[], uuid[]) is
'Has the tick look again, in a second, at jobs that were passed over because somebody had them locked.';

-- +goose StatementBegin
create function ojs._first_free(p_tenant text, p_ids uuid[], p_test boolean) returns int
language plpgsql
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
language plpgsql
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
'Moves a tenant''s cursors past a run of jobs that have ended, expired, or (p_locked) are locked, thousands at a time, and returns how
many it looked at. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._discard_expired(p_ids uuid[], p_tenants text[]) returns table (id uuid, tenant_id text)
language sql
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
'Discards those of the jobs that wait past their expires_at, for a worker or for their time, and that nobody else has locked (ojs-core
section 5.2); says which.';

-- +goose StatementBegin
create function ojs._expire(p_ids uuid[], p_tenants text[]) returns void
language sql
as $$
    with ended as materialized (select x.id, x.tenant_id from ojs._discard_expired(p_ids, p_tenants) x)
    select ojs._look_again(array_agg(e.tenant_id), array_agg(e.id))
    from unnest(p_ids, p_tenants) e(id, tenant_id) where (e.id, e.tenant_id) not in (select x.id, x.tenant_id from ended x)
$$;
-- +goose StatementEnd
comment on function ojs._expire(uuid[], text[]) is
'Discards available jobs whose expires_at has passed, when their turn has come; those that are locked are looked at again.';
reset role;
