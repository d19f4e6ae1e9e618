-- +goose Up
-- FETCH: one serial decision under the row of ojs.lane, and the only writer of fairness state.
set local role ojs_owner;

-- +goose StatementBegin
create function ojs._anything_for(p_queues text[], p_tenant text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_fold ojs.fold;
begin
    select * into v_fold from ojs.fold f where f.lane = 0 order by f.rev desc limit 1;
    return exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(v_fold.snapshot) and w.to_state = 'available')
        or exists (select from pg_snapshot_xip(v_fold.snapshot) x join ojs.wake w on w.xid = x and w.to_state = 'available')
        or pg_snapshot_xmax(v_fold.snapshot) > pg_snapshot_xmax(pg_current_snapshot())
        or case when p_tenant is null then
            exists (select from ojs.queue_priority q
                cross join lateral (select r.members from ojs.ring r where r.queue = q.queue and r.priority = q.priority order by r.rev desc limit 1) r
                where q.queue = any (p_queues) and r.members > 0)
        else
            exists (select from ojs.queue_priority q
                cross join lateral (select f.backlogged from ojs.tenant_fairness f
                    where f.queue = q.queue and f.priority = q.priority and f.tenant_id = p_tenant order by f.vtime desc limit 1) f
                where q.queue = any (p_queues) and f.backlogged)
        end;
end;
$$;
-- +goose StatementEnd
comment on function ojs._anything_for(text[], text) is 'Whether a decision could find a job: a wake not folded yet, or a tenant with work in one of the queues. Writes nothing, so that idle polling leaves no trace.';

-- +goose StatementBegin
create function ojs._serve(
    p_ring ojs.ring, p_count int, p_worker_id text, p_visibility_timeout_ms int, p_tenant text, p_reentry_max bigint, out o_ring ojs.ring,
    out o_ids uuid[], out o_tenants text[], out o_progress boolean, out o_skimmed int
)
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now       timestamptz := ojs.now();
    -- What was read: one element per job in sight, in class order and in the order of its tenant's virtual time.
    r_class     int[];
    r_tenant    text[];
    r_vtime     numeric[];
    r_weight    numeric[];
    r_start     float8[];
    r_step      float8[];
    r_last      boolean[];
    r_open      boolean[];
    r_known     float8[];
    r_src       int[];
    r_pos       bigint[];
    r_id        uuid[];
    r_ready     boolean[];
    r_expired   boolean[];
    r_turn      int[];
    -- Per class of the ring: the next element, the last one, and how far its order is known.
    v_next      int[];
    v_end       int[];
    v_limit     float8[];
    v_v         float8 := 0;
    v_weight    float8 := p_ring.weight::float8;
    v_picks     int := 0;
    v_classes   int := cardinality(p_ring.class);
    v_best      int;
    v_owed      float8;
    v_most      float8;
    v_beyond    float8;
    v_at        int;
    v_held      int[];
    v_lost      int[];
    v_blocked   text[] := '{}';
    v_barren    text[] := '{}';
    v_tenant    text;
    v_row       record;
    v_own       numeric;
    v_stays     boolean;
    v_fair      ojs.tenant_fairness;
    v_heads     numeric[];
    v_lasts     numeric[];
    v_seen      int[];
    v_class     record;
begin
    o_ring := p_ring;
    o_ids := '{}';
    o_tenants := '{}';
    o_progress := false;
    o_skimmed := 0;

    -- The front of every class, and of each tenant there the first jobs from the small list and then from the cursor.
    select array_agg(x.ord), array_agg(x.tenant_id), array_agg(x.vtime), array_agg(x.weight), array_agg(x.start), array_agg(x.step), array_agg(x.last),
        array_agg(x.open), array_agg(x.known), array_agg(x.src), array_agg(x.pos), array_agg(x.id), array_agg(x.ready), array_agg(x.expired)
    into r_class, r_tenant, r_vtime, r_weight, r_start, r_step, r_last, r_open, r_known, r_src, r_pos, r_id, r_ready, r_expired
    from (
        select y.*, (y.vtime - p_ring.v)::float8 + y.nth * y.step as start, y.ready and y.nth + 1 = y.total as last,
            -- A tenant that may have more jobs than were read is known up to its next one.
            case when y.open then (y.vtime - p_ring.v)::float8 + y.total * y.step else 'infinity' end as known
        from (
            select c.ord::int, f.tenant_id, f.vtime, f.weight, 1 / f.weight::float8 as step, j.src, j.pos, j.id,
                coalesce(j.state = 'available' and (j.expires_at is null or j.expires_at > v_now), false) as ready,
                coalesce(j.state = 'available' and j.expires_at <= v_now, false) as expired,
                count(*) over (partition by f.tenant_id) = f.look as open,
                count(*) filter (where j.state = 'available' and (j.expires_at is null or j.expires_at > v_now))
                    over (partition by f.tenant_id order by j.src, j.pos rows between unbounded preceding and 1 preceding) as nth,
                count(*) filter (where j.state = 'available' and (j.expires_at is null or j.expires_at > v_now)) over (partition by f.tenant_id) as total
            from unnest(p_ring.class, p_ring.class_members, p_ring.class_weight, p_ring.class_head) with ordinality c(class, members, weight, head, ord)
            cross join lateral (
                (select f.*, ceil(p_count * f.weight / p_ring.weight)::int + 2 as look
                from ojs.tenant_fairness f
                where p_tenant is null and f.queue = p_ring.queue and f.priority = p_ring.priority and f.class = c.class and f.backlogged and f.vtime >= c.head
                order by f.vtime
                limit least(c.members, ceil(p_count * c.weight / p_ring.weight)::int + 2))
                union all
                select f.*, p_count + 1
                from (select f.* from ojs.tenant_fairness f
                    where p_tenant is not null and f.queue = p_ring.queue and f.priority = p_ring.priority and f.tenant_id = p_tenant
                    order by f.vtime desc limit 1) f
                where f.backlogged and f.class = c.class
            ) f
            left join lateral (
                (select 0 as src, e.n as pos, j.id, j.state, j.expires_at
                from ojs.reentry e join ojs.job j on j.id = e.id and j.tenant_id = e.tenant_id
                where e.queue = f.queue and e.priority = f.priority and e.tenant_id = f.tenant_id and e.n > f.reentry_head and e.n <= p_reentry_max
                order by e.n limit f.look)
                union all
                (select 1, j.seq, j.id, j.state, j.expires_at
                from ojs.job j
                where j.queue = f.queue and j.priority = f.job_priority and j.tenant_id = f.tenant_id and j.seq > f.head and j.seq is not null
                order by j.seq limit f.look)
                limit f.look
            ) j on true
        ) y
        order by y.ord, (y.vtime - p_ring.v)::float8 + y.nth * y.step, y.tenant_id, y.src, y.pos
    ) x;
    if r_class is null then
        return;
    end if;

    r_turn := array_fill(0, array[cardinality(r_class)]);
    v_next := array_fill(0, array[v_classes]);
    v_end := array_fill(-1, array[v_classes]);
    v_limit := array_fill('infinity'::float8, array[v_classes]);
    for i in 1 .. cardinality(r_class) loop
        v_at := r_class[i];
        if v_next[v_at] = 0 then
            v_next[v_at] := i;
        end if;
        v_end[v_at] := i;
        v_limit[v_at] := least(v_limit[v_at], r_known[i]);
    end loop;
    for v_class in
        select t.ord, count(*) as seen, max(t.start) as start, sum(1 / t.step) filter (where t.idle) as idle
        from (select distinct on (x.tenant_id) x.ord, x.tenant_id, (x.vtime - p_ring.v)::float8 as start, x.step, x.known = 'infinity' and not x.any_ready as idle
            from (select x.*, bool_or(x.ready) over (partition by x.tenant_id) as any_ready
                from unnest(r_class, r_tenant, r_vtime, r_step, r_known, r_ready) x(ord, tenant_id, vtime, step, known, ready)) x) t
        group by t.ord
    loop
        -- Who turns out to have nothing is due nothing.
        v_weight := v_weight - coalesce(v_class.idle, 0);
        -- A class of which not all tenants were read is known up to the last one read.
        if p_tenant is null and v_class.seen < p_ring.class_members[v_class.ord] then
            v_limit[v_class.ord] := least(v_limit[v_class.ord], v_class.start);
        end if;
    end loop;

    <<pick>>
    while v_picks < p_count and v_weight > 1e-9 loop
        v_best := 0;
        v_most := '-infinity';
        v_beyond := '-infinity';
        for c in 1 .. v_classes loop
            v_at := v_next[c];
            continue when v_at = 0;
            while v_at <= v_end[c] and not r_ready[v_at] loop
                v_at := v_at + 1;
            end loop;
            v_next[c] := v_at;
            if v_at > v_end[c] or r_start[v_at] > v_limit[c] then
                -- Beyond what was read: nobody there can be owed more than this.
                v_beyond := greatest(v_beyond, (v_v + 1 / v_weight - v_limit[c]) * power(2, (p_ring.class[c] + 1) / 8.0));
            else
                v_owed := (v_v + 1 / v_weight - r_start[v_at]) / r_step[v_at];
                if v_owed > v_most then
                    v_best := c;
                    v_most := v_owed;
                end if;
            end if;
        end loop;
        exit pick when v_best = 0 or v_beyond > v_most and p_tenant is null;
        v_at := v_next[v_best];
        v_picks := v_picks + 1;
        r_turn[v_at] := v_picks;
        v_next[v_best] := v_at + 1;
        v_v := v_v + 1 / v_weight;
        if r_last[v_at] and not r_open[v_at] then
            v_weight := v_weight - 1 / r_step[v_at];
            exit pick when v_weight <= 1e-9;
        end if;
        -- Whether this tenant has more decides what the others are due: read on.
        exit pick when r_last[v_at] and r_open[v_at];
    end loop;

    if v_picks > 0 then
        with pick as materialized (
            select p.turn, p.id, p.tenant_id, gen_random_uuid() as lease
            from unnest(r_turn, r_id, r_tenant) p(turn, id, tenant_id) where p.turn > 0 order by p.turn
        ), held as materialized (
            select j.id, j.tenant_id, p.lease, p.turn from pick p
            cross join lateral (select j.id, j.tenant_id from ojs.job j
                where j.id = p.id and j.tenant_id = p.tenant_id and j.state = 'available' for update skip locked) j
        ), taken as (
            update ojs.job j
            set state = 'active', attempt = j.attempt + 1, lease = h.lease, started_at = v_now, worker_id = p_worker_id,
                lease_expires_at = v_now + coalesce(p_visibility_timeout_ms, j.visibility_timeout_ms, 30000) * interval '1 millisecond'
            from held h where j.id = h.id and j.tenant_id = h.tenant_id and j.state = 'available'
            returning h.turn, j.id, j.tenant_id, j.priority, j.lease_expires_at
        ), leased as (
            insert into ojs.lease (tenant_id, queue, priority, jobs)
            select t.tenant_id, p_ring.queue, t.priority, count(*) from taken t group by t.tenant_id, t.priority
        ), timed as (
            insert into ojs.timer (due_at, kind, tenant_ids, ids)
            select t.lease_expires_at, 'lease', array_agg(t.tenant_id), array_agg(t.id) from taken t group by t.lease_expires_at
        )
        select coalesce(array_agg(t.id order by t.turn), '{}'), coalesce(array_agg(t.tenant_id order by t.turn), '{}'), array_agg(t.turn)
        into o_ids, o_tenants, v_held
        from taken t;
        if cardinality(o_ids) < v_picks then
            -- Locked by somebody, who may let go of them unchanged: the tick has them looked at again. Nobody is charged for them.
            v_lost := array(select x.at from unnest(r_turn) with ordinality x(turn, at) where x.turn > 0 and x.turn <> all (coalesce(v_held, '{}')));
            foreach v_at in array v_lost loop
                r_turn[v_at] := 0;
                r_ready[v_at] := false;
                v_blocked := v_blocked || r_tenant[v_at];
            end loop;
            perform ojs._look_again(array(select r_tenant[i] from unnest(v_lost) i), array(select r_id[i] from unnest(v_lost) i));
            v_v := v_v * cardinality(o_ids) / v_picks;
        end if;
    end if;
    if true = any (r_expired) then
        perform ojs._expire(array(select r_id[i] from generate_subscripts(r_id, 1) i where r_expired[i]),
                            array(select r_tenant[i] from generate_subscripts(r_id, 1) i where r_expired[i]));
    end if;

    -- Charge: own time forward by the jobs taken, cursors past what was taken or is gone, out of the round who has no more. One tenant after the
    -- other, by its whole key: a join could be turned around, and then it would walk the ring, dead versions included.
    o_ring.v := round(p_ring.v + v_v::numeric, 15);
    v_heads := array_fill(null::numeric, array[v_classes]);
    v_lasts := v_heads;
    v_seen := array_fill(0, array[v_classes]);
    for v_row in
        with seen as (
            select x.*, min(x.pos) filter (where x.ready and x.turn = 0) over (partition by x.tenant_id, x.src) as stop
            from unnest(r_class, r_tenant, r_vtime, r_weight, r_src, r_pos, r_ready, r_turn, r_open) x(ord, tenant_id, vtime, weight, src, pos, ready, turn, open)
        )
        select s.ord, s.tenant_id, s.vtime, s.weight, count(*) filter (where s.turn > 0) as taken,
            max(s.pos) filter (where s.src = 1 and s.pos < coalesce(s.stop, s.pos + 1)) as head, max(s.pos) filter (where s.src = 0 and s.pos < coalesce(s.stop, s.pos + 1)) as reentry_head,
            bool_or(s.open) or bool_or(s.ready and s.turn = 0) as stays,
            -- Nothing but ended or locked jobs in sight, and more behind them.
            bool_or(s.open) and not bool_or(s.ready and s.turn = 0) and not bool_and(s.turn > 0) as barren,
            bool_or(s.open) and bool_and(s.turn > 0) as spent
        from seen s group by s.ord, s.tenant_id, s.vtime, s.weight
    loop
        v_stays := v_row.stays;
        if v_row.spent then
            -- All that was read is taken. A tenant without more is out of the round now, else it would return with what it is owed today.
            select f.* into v_fair from ojs.tenant_fairness f
            where f.queue = p_ring.queue and f.priority = p_ring.priority and f.tenant_id = v_row.tenant_id and f.vtime = v_row.vtime;
            v_stays := exists (select from ojs.job j where j.queue = p_ring.queue and j.priority = v_fair.job_priority and j.tenant_id = v_row.tenant_id
                    and j.seq > greatest(v_fair.head, v_row.head) and j.seq is not null)
                or exists (select from ojs.reentry e where e.queue = p_ring.queue and e.priority = p_ring.priority and e.tenant_id = v_row.tenant_id
                    and e.n > greatest(v_fair.reentry_head, v_row.reentry_head) and e.n <= p_reentry_max);
        end if;
        v_own := v_row.vtime + v_row.taken * ojs._step(v_row.weight);
        if v_row.taken = 0 and v_row.tenant_id = any (v_blocked) then
            -- A tenant whose jobs were all locked was owed nothing meanwhile.
            v_own := greatest(v_own, o_ring.v);
        end if;
        if v_row.taken > 0 or not v_stays or v_row.head is not null or v_row.reentry_head is not null then
            o_progress := true;
            update ojs.tenant_fairness f
            set vtime = v_own, head = greatest(f.head, v_row.head), reentry_head = greatest(f.reentry_head, v_row.reentry_head), backlogged = v_stays,
                dispatched = f.dispatched + v_row.taken, deficit = round((o_ring.v - v_own) * f.weight, 6)
            where f.queue = p_ring.queue and f.priority = p_ring.priority and f.tenant_id = v_row.tenant_id and f.vtime = v_row.vtime;
        end if;
        if v_row.reentry_head is not null then
            delete from ojs.reentry e
            where e.queue = p_ring.queue and e.priority = p_ring.priority and e.tenant_id = v_row.tenant_id and e.n <= v_row.reentry_head;
        end if;
        v_at := v_row.ord;
        v_seen[v_at] := v_seen[v_at] + 1;
        v_lasts[v_at] := greatest(v_lasts[v_at], v_row.vtime);
        if v_stays then
            v_heads[v_at] := least(v_heads[v_at], v_own);
        else
            o_ring.class_members[v_at] := o_ring.class_members[v_at] - 1;
            o_ring.class_weight[v_at] := o_ring.class_weight[v_at] - v_row.weight;
            o_ring.members := o_ring.members - 1;
            o_ring.weight := o_ring.weight - v_row.weight;
        end if;
        if v_row.barren then
            v_barren := v_barren || v_row.tenant_id;
        end if;
    end loop;
    if p_tenant is null then
        for c in 1 .. v_classes loop
            if v_seen[c] > 0 then
                o_ring.class_head[c] := coalesce(least(v_heads[c], case when v_seen[c] < p_ring.class_members[c] then v_lasts[c] end), o_ring.v);
            end if;
        end loop;
    end if;
    for v_tenant in select distinct b.tenant from unnest(v_barren || v_blocked) b(tenant) loop
        o_skimmed := o_skimmed + ojs._skim(p_ring.queue, p_ring.priority, v_tenant, p_reentry_max, v_tenant = any (v_blocked));
    end loop;
    o_ring := ojs._ring_tidy(o_ring);
    if o_ring.members > 0 then
        o_ring.v := greatest(o_ring.v, (select min(h) from unnest(o_ring.class_head) h));
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve(ojs.ring, int, text, int, text, bigint) is
'Takes up to p_count jobs from one ring in fair order and charges their tenants. Returns the ring as it is then (to be stored by the caller), the jobs
taken in order, whether cursors moved (fewer jobs than asked with progress means there may be more), and how many ended or locked jobs were
passed over. Only under the row of ojs.lane.';

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
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant order by f.vtime desc limit 1;
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
        where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.vtime = v_fair.vtime;
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
    perform ojs._expire(v_line.expired, array_fill(p_tenant, array[cardinality(v_line.expired)])) where v_line.expired is not null;
    update ojs.tenant_fairness f set head = greatest(f.head, coalesce(v_line.at[v_stop] - 1, v_line.last))
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.vtime = v_fair.vtime and v_line.seen > 0;
    return v_line.seen;
end;
$$;
-- +goose StatementEnd
comment on function ojs._skim(text, int, text, bigint, boolean) is
'Moves a tenant''s cursors past a run of jobs that have ended, expired, or (p_locked) are locked, thousands at a time, and returns how many it looked at.
Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._expire(p_ids uuid[], p_tenants text[]) returns void
language sql set search_path = pg_catalog, pg_temp
as $$
    with held as materialized (
        select j.id, j.tenant_id from unnest(p_ids, p_tenants) e(id, tenant_id)
        cross join lateral (select j.id, j.tenant_id from ojs.job j
            where j.id = e.id and j.tenant_id = e.tenant_id and j.state = 'available' for update skip locked) j
    ), ended as (
        update ojs.job j set state = 'discarded', finished_at = ojs.now() from held h where j.id = h.id and j.tenant_id = h.tenant_id returning j.*
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state)
        select e.tenant_id, e.queue, e.priority, e.id, e.type, e.attempt, 'available', 'discarded' from ended e
    )
    select ojs._look_again(array_agg(e.tenant_id), array_agg(e.id))
    from unnest(p_ids, p_tenants) e(id, tenant_id) where (e.id, e.tenant_id) not in (select h.id, h.tenant_id from held h)
$$;
-- +goose StatementEnd
comment on function ojs._expire(uuid[], text[]) is 'Discards available jobs whose expires_at has passed (ojs-core section 5.2).';

-- +goose StatementBegin
create function ojs.fetch(
    p_queues text[], p_count int default 1, p_worker_id text default null, p_visibility_timeout_ms int default null, p_tenant text default null
) returns setof ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
    -- Index order only: a bitmap or a sort would read every dead version of the few rows that change all the time.
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off
    set plan_cache_mode = force_generic_plan set max_parallel_workers_per_gather = 0 set jit = off
as $$
declare
    c_skim     constant int := 200000;
    v_tenant   text := ojs._session_tenant(p_tenant);
    v_queues   text[];
    v_rotation ojs.rotation;
    v_share    int[];
    v_want     int;
    v_got      int;
    v_left     int;
    v_open     int;
    v_at       int;
    v_n        int;
    v_priority int;
    v_ring     ojs.ring;
    v_served   record;
    v_more     boolean;
    v_skimmed  int := 0;
    v_max      bigint;
    v_got_id     uuid[] := '{}';
    v_got_tenant text[] := '{}';
    v_got_turn   int[] := '{}';
    v_empty    boolean[];
    v_total    int := 0;
begin
    if p_queues is null or cardinality(p_queues) not between 1 and 100 or array_ndims(p_queues) <> 1 then
        perform ojs._raise('OJ400', 'queues must name between 1 and 100 queues', '{"field": "queues"}');
    end if;
    if exists (select from unnest(p_queues) q where q is null or q !~ '^[a-z0-9][a-z0-9.-]*$' or length(q) > 128) then
        perform ojs._raise('OJ400', 'queues must consist of a-z, 0-9, - and ., begin with a letter or digit and have at most 128 characters', '{"field": "queues"}');
    end if;
    if p_count is null or p_count not between 1 and 10000 then
        perform ojs._raise('OJ400', 'count must be an integer between 1 and 10000', '{"field": "count"}');
    end if;
    if p_visibility_timeout_ms not between 1000 and 604800000 then
        perform ojs._raise('OJ400', 'visibility_timeout_ms must be between 1000 and 604800000', '{"field": "visibility_timeout_ms"}');
    end if;
    if length(p_worker_id) > 255 then
        perform ojs._raise('OJ400', 'worker_id is longer than 255 characters', '{"field": "worker_id"}');
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform ojs._raise('OJ408', 'ojs.fetch needs a transaction of isolation level read committed', '{"field": "transaction_isolation"}');
    end if;
    if not ojs._anything_for(p_queues, v_tenant) then
        return;
    end if;

    v_queues := array(select q.queue from unnest(p_queues) with ordinality q(queue, n)
        where not exists (select from ojs.queue c where c.queue = q.queue and c.paused) group by q.queue order by min(q.n));
    -- A decision waits here for the one before it, holding nothing.
    perform ojs._enter_lane();
    if (select pg_snapshot_xmax(f.snapshot) from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) > pg_snapshot_xmax(pg_current_snapshot()) then
        perform ojs.rebuild();
    end if;
    -- One job from each queue per turn, beginning where the last decision over the same queues stopped.
    v_n := cardinality(v_queues);
    if v_n > 1 then
        select * into v_rotation from ojs.rotation r where r.queues = v_queues order by r.rev desc limit 1;
        v_at := coalesce(v_rotation.next, 1);
        v_queues := v_queues[v_at:] || v_queues[:v_at - 1];
    end if;
    v_share := array_fill(0, array[v_n]);
    loop
        v_more := ojs._fold();
        select s.last_value into v_max from ojs.reentry_n_seq s;
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
                v_got := 0;
                for v_priority in select p.priority from ojs.queue_priority p where p.queue = v_queues[q] order by p.priority desc loop
                    v_ring := ojs._ring(v_queues[q], v_priority);
                    continue when v_ring.members = 0;
                    loop
                        v_served := ojs._serve(v_ring, v_want - v_got, p_worker_id, p_visibility_timeout_ms, v_tenant, v_max);
                        v_ring := v_served.o_ring;
                        v_got_id := v_got_id || v_served.o_ids;
                        v_got_tenant := v_got_tenant || v_served.o_tenants;
                        v_got_turn := v_got_turn || array(select (v_share[q] + t) * v_n + q from generate_subscripts(v_served.o_ids, 1) t);
                        v_share[q] := v_share[q] + cardinality(v_served.o_ids);
                        v_got := v_got + cardinality(v_served.o_ids);
                        v_skimmed := v_skimmed + v_served.o_skimmed;
                        exit when v_got >= v_want or v_ring.members = 0 or not v_served.o_progress or v_skimmed > c_skim;
                    end loop;
                    perform ojs._ring_changed(v_ring);
                    exit when v_got >= v_want or v_skimmed > c_skim;
                end loop;
                v_empty[q] := v_got < v_want;
                v_total := v_total + v_got;
            end loop;
        end loop;
        exit when v_total >= p_count or not v_more or v_skimmed > c_skim;
    end loop;
    if v_skimmed > c_skim and v_total < p_count then
        -- Enough for one decision: others wait. What was passed over stays passed over, and whoever waits is told to come again.
        perform ojs._notify(v_queues);
    end if;

    if v_n > 1 and v_total > 0 then
        -- The next turn is that of the queue after the one that had the last.
        select (m.turn - 1) % v_n + 1 into v_at from unnest(v_got_turn) m(turn) order by m.turn desc limit 1;
        v_at := (coalesce(v_rotation.next, 1) - 1 + v_at) % v_n + 1;
        if v_rotation.queues is null then
            insert into ojs.rotation (queues, rev, next)
            values (array(select q.queue from unnest(p_queues) with ordinality q(queue, n)
                where not exists (select from ojs.queue c where c.queue = q.queue and c.paused) group by q.queue order by min(q.n)), 1, v_at);
        elsif v_rotation.next <> v_at then
            update ojs.rotation r set rev = r.rev + 1, next = v_at where r.queues = v_rotation.queues and r.rev = v_rotation.rev;
        end if;
    end if;
    return query
    select j.* from unnest(v_got_id, v_got_tenant, v_got_turn) with ordinality g(id, tenant_id, turn, n)
    join ojs.job j on j.id = g.id and j.tenant_id = g.tenant_id
    order by g.turn, g.n;
end;
$$;
-- +goose StatementEnd
comment on function ojs.fetch(text[], int, text, int, text) is
'Hands out up to p_count jobs (1 to 10000) of the queues and returns them in fair order (ojs-core section 7.2): highest effective priority of a queue first,
within it tenants by weight, within a tenant first in first out; over several queues one from each per turn. Each is active from then on, attempt
counted, under a lease of p_visibility_timeout_ms (else the job''s own, else 30000 ms) that heartbeats extend. p_tenant: that tenant''s jobs only. Fewer than
asked: no eligible job had committed before the call began, other than one that somebody had locked when its turn came (the tick has it looked at
again after a second), or 200000 ended jobs in a row lay in the way (the next call goes on behind them). The jobs are the caller''s when its transaction commits. Until then other decisions
wait, so commit at once: a session that idles in this transaction for 10 seconds is ended, from PostgreSQL 17 on also one whose transaction goes on for
10 seconds more. Needs read committed.
Raises invalid_request, unsupported, TENANT_ACCESS_DENIED. Locks the row of ojs.lane, then jobs with skip locked.';
-- Not to tenants' own roles: whoever fetches holds the row of ojs.lane until the end of its transaction, and a tenant that stayed in it
-- would stop dispatch for all others. Their workers fetch over HTTP.
grant execute on function ojs.fetch(text[], int, text, int, text) to ojs_service, ojs_operator;

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
create function ojs.register_waiter(p_server uuid, p_queue text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_token text;
begin
    insert into ojs.waiter as w (server_id, queue, token, expires_at)
    values (p_server, p_queue, encode(uuid_send(gen_random_uuid()), 'hex'), ojs.now() + interval '60 seconds')
    on conflict (queue, server_id) do update set expires_at = excluded.expires_at
    returning w.token into v_token;
    return v_token;
end;
$$;
-- +goose StatementEnd
comment on function ojs.register_waiter(uuid, text) is
'Says that a server has a worker waiting for a queue, for 60 seconds, and returns the token that a commit with jobs for it sends on channel ojs_wake. A producer
whose statement ran before this registration committed does not see it: look again a few times after registering.';

-- +goose StatementBegin
create function ojs.drop_waiter(p_server uuid, p_queue text) returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$ delete from ojs.waiter w where w.server_id = p_server and w.queue = p_queue $$;
-- +goose StatementEnd
comment on function ojs.drop_waiter(uuid, text) is 'Says that a server has no worker waiting for a queue any more.';
grant execute on function ojs.register_waiter(uuid, text), ojs.drop_waiter(uuid, text) to ojs_service;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.drop_waiter(uuid, text);
drop function ojs.register_waiter(uuid, text);
drop function ojs.resume_queue(text);
drop function ojs.pause_queue(text);
drop function ojs.fetch(text[], int, text, int, text);
drop function ojs._expire(uuid[], text[]);
drop function ojs._skim(text, int, text, bigint, boolean);
drop function ojs._first_free(text, uuid[], boolean);
drop function ojs._look_again(text[], uuid[]);
drop function ojs._serve(ojs.ring, int, text, int, text, bigint);
drop function ojs._anything_for(text[], text);
reset role;
