-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._weight_class(p_weight numeric) returns int
language sql immutable
as $$ select floor(8 * ln(p_weight::float8) / ln(2::float8))::int $$;
-- +goose StatementEnd
comment on function ojs._weight_class(numeric) is
'Class of a weight: eight to a doubling, so weights of one class differ by less than a tenth.';

-- +goose StatementBegin
create function ojs._step(p_weight numeric) returns numeric
language sql immutable
as $$ select round(1 / p_weight, 15) $$;
-- +goose StatementEnd
comment on function ojs._step(numeric) is
'By how much a job of its own advances a tenant''s virtual time: 1 / weight, to 15 decimals. numeric: no weight becomes 0 and no time
overflows.';

-- +goose StatementBegin
create function ojs._ring(p_queue text, p_priority int) returns ojs.ring
language plpgsql stable
as $$
declare
    v_ring ojs.ring;
begin
    select r.* into v_ring from ojs.ring r where r.queue = p_queue and r.priority = p_priority order by r.rev desc limit 1;
    return v_ring;
end;
$$;
-- +goose StatementEnd
comment on function ojs._ring(text, int) is 'The ring of an effective priority of a queue as it is now; null if there never was one.';

-- +goose StatementBegin
create function ojs._ring_here(p_queue text, p_priority int) returns ojs.ring
language plpgsql
as $$
declare
    v_ring ojs.ring := ojs._ring(p_queue, p_priority);
begin
    if v_ring.queue is null then
        insert into ojs.queue_priority (queue, priority) values (p_queue, p_priority) on conflict do nothing;
        insert into ojs.ring (queue, priority, rev, v, members, weight, class, class_members, class_weight, class_head)
        values (p_queue, p_priority, 1, 0, 0, 0, '{}', '{}', '{}', '{}')
        returning * into v_ring;
    end if;
    return v_ring;
end;
$$;
-- +goose StatementEnd
comment on function ojs._ring_here(text, int) is 'The ring of an effective priority of a queue, made if there never was one.';

-- +goose StatementBegin
create function ojs._ring_changed(p_ring ojs.ring) returns void
language plpgsql
as $$
begin
    update ojs.ring r
    set rev = r.rev + 1, v = p_ring.v, members = p_ring.members, weight = p_ring.weight, class = p_ring.class, class_members = p_ring.class_members,
        class_weight = p_ring.class_weight, class_head = p_ring.class_head, drift = p_ring.drift
    where r.queue = p_ring.queue and r.priority = p_ring.priority and r.rev = p_ring.rev;
end;
$$;
-- +goose StatementEnd
comment on function ojs._ring_changed(ojs.ring) is 'Stores a ring under its next rev.';

-- +goose StatementBegin
create function ojs._ring_join(p_ring ojs.ring, p_class int, p_members int, p_weight numeric, p_head numeric) returns ojs.ring
language plpgsql immutable
as $$
declare
    v_at int := array_position(p_ring.class, p_class);
begin
    if v_at is null then
        p_ring.class := p_ring.class || p_class;
        p_ring.class_members := p_ring.class_members || p_members;
        p_ring.class_weight := p_ring.class_weight || p_weight;
        p_ring.class_head := p_ring.class_head || p_head;
    else
        p_ring.class_members[v_at] := p_ring.class_members[v_at] + p_members;
        p_ring.class_weight[v_at] := p_ring.class_weight[v_at] + p_weight;
        p_ring.class_head[v_at] := least(p_ring.class_head[v_at], p_head);
    end if;
    p_ring.members := p_ring.members + p_members;
    p_ring.weight := p_ring.weight + p_weight;
    return p_ring;
end;
$$;
-- +goose StatementEnd
comment on function ojs._ring_join(ojs.ring, int, int, numeric, numeric) is
'The ring after p_members tenants of one class joined it (left it, when negative): p_weight their weights in sum, p_head the lowest of
their virtual times.';

-- +goose StatementBegin
create function ojs._ring_tidy(p_ring ojs.ring) returns ojs.ring
language plpgsql immutable
as $$
begin
    if 0 = any (p_ring.class_members) then
        select array_agg(c.class), array_agg(c.members), array_agg(c.weight), array_agg(c.head)
        into p_ring.class, p_ring.class_members, p_ring.class_weight, p_ring.class_head
        from unnest(p_ring.class, p_ring.class_members, p_ring.class_weight, p_ring.class_head) c(class, members, weight, head)
        where c.members > 0;
        p_ring.class := coalesce(p_ring.class, '{}');
        p_ring.class_members := coalesce(p_ring.class_members, '{}');
        p_ring.class_weight := coalesce(p_ring.class_weight, '{}');
        p_ring.class_head := coalesce(p_ring.class_head, '{}');
    end if;
    if p_ring.members = 0 then
        p_ring.weight := 0;
    end if;
    return p_ring;
end;
$$;
-- +goose StatementEnd
comment on function ojs._ring_tidy(ojs.ring) is 'The ring without its empty classes.';

-- +goose StatementBegin
create function ojs._stale_queues(p_queue text default null) returns setof text
language plpgsql stable
as $$
begin
    return query
    select distinct w.queue
    from (select w.queue, w.priority, w.tenant_id from ojs._unfolded() w where p_queue is null or w.queue = p_queue group by w.queue, w.priority, w.tenant_id) w
    left join ojs.tenant t on t.tenant_id = w.tenant_id
    left join lateral (select f.backlogged from ojs.tenant_fairness f
        where f.queue = w.queue and f.priority = w.priority + coalesce(t.priority_boost, 0) and f.tenant_id = w.tenant_id order by f.rev desc limit 1) f on true
    where f.backlogged is not true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._stale_queues(text) is
'Queues (p_queue: only that one) in which a tenant has got work, or work of another priority, of which the decisions made ahead know
nothing.';

-- +goose StatementBegin
create function ojs._charge(p_queue text, p_priority int, p_tenant text, p_jobs int, p_v float8, p_drift float8 default 0, p_line bigint default null, p_back bigint default null) returns void
language plpgsql
as $$
declare
    v_fair  ojs.tenant_fairness;
    v_ring  ojs.ring := ojs._ring(p_queue, p_priority);
    v_vtime numeric;
    v_at    int;
begin
    select f.* into v_fair from ojs.tenant_fairness f
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant order by f.rev desc limit 1;
    if v_fair.queue is null or v_ring.queue is null then
        return;
    end if;
    v_vtime := v_fair.vtime + p_jobs * ojs._step(v_fair.weight);
    if p_jobs > 0 and not v_fair.backlogged then
        -- A matter between the clock and a tenant that has left: those who stay are owed nothing for it.
        v_ring.drift := v_ring.drift + round(coalesce(p_v, 0)::numeric, 15);
    else
        v_ring.v := v_ring.v + round((coalesce(p_v, 0) - p_drift)::numeric, 15);
        v_ring.drift := v_ring.drift + round(p_drift::numeric, 15);
    end if;
    if p_jobs < 0 and not v_fair.backlogged then
        v_vtime := v_vtime - v_fair.drift;
        v_ring := ojs._ring_join(v_ring, v_fair.class, 1, v_fair.weight, v_vtime);
    elsif v_fair.backlogged then
        v_at := array_position(v_ring.class, v_fair.class);
        v_ring.class_head[v_at] := least(v_ring.class_head[v_at], v_vtime);
    end if;
    update ojs.tenant_fairness f
    set rev = f.rev + 1, vtime = v_vtime, drift = case when p_jobs < 0 then 0 else f.drift end, dispatched = f.dispatched + p_jobs, backlogged = f.backlogged or p_jobs < 0, deficit = round((v_ring.v - v_vtime) * f.weight, 6),
        head = least(f.head, p_line - 1), reentry_head = least(f.reentry_head, p_back - 1)
    where f.queue = p_queue and f.priority = p_priority and f.tenant_id = p_tenant and f.rev = v_fair.rev;
    perform ojs._ring_changed(v_ring);
end;
$$;
-- +goose StatementEnd
comment on function ojs._charge(text, int, text, int, float8, float8, bigint, bigint) is
'Charges a tenant for p_jobs jobs outside of a decision, or, negative, gives back what it was charged for jobs that return to the
line; the clock of the ring moves by p_v and its drift by p_drift. p_line, p_back: the first of those jobs in line and on the small list, to
which the cursors move back. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._revoke(p_queue text) returns void
language plpgsql
as $$
declare
    c_line  constant bigint := 4611686018427387904;
    v_mark  ojs.run_mark;
    v_any   boolean := false;
    v_taken record;
    v_held  record;
begin
    select m.* into v_mark from ojs.run_mark m where m.queue = p_queue order by m.rev desc limit 1;
    for v_taken in
        -- From the end: callers take from the beginning, and nobody may get a job behind one that is revoked.
        with free as materialized (
            select r.n, r.ctid as place from ojs.run r where r.queue = p_queue and r.n >= v_mark.lo order by r.n desc for update skip locked
        ), late as materialized (
            select r.n, r.place from unnest(v_mark.held) h(n)
            cross join lateral (select r.n, r.ctid as place from ojs.run r where r.queue = p_queue and r.n = h.n for update skip locked) r
        ), gone as (
            delete from ojs.run r using (select f.place from free f union all select l.place from late l) f where r.ctid = f.place returning r.*
        ), home as materialized (
            -- A boost that changed while somebody had hold of a row has moved its tenant to another ring, whose clock the job has not moved.
            select g.queue, b.priority, g.tenant_id, g.id, g.pos, case when b.priority = g.priority then g.step else 0 end as step, case when b.priority = g.priority then g.drift else 0 end as drift
            from gone g left join lateral (select t.priority_boost from ojs.tenant t where t.tenant_id = g.tenant_id limit 1) t on true
            cross join lateral (select g.job_priority + coalesce(t.priority_boost, 0) as priority) b
        ), back as (
            insert into ojs.reentry (queue, priority, tenant_id, n, id) overriding system value
            select h.queue, h.priority, h.tenant_id, h.pos, h.id from home h where h.pos < c_line
        )
        select h.priority, h.tenant_id, count(*)::int as jobs, sum(h.step) as v, sum(h.drift) as drift,
            min(h.pos) filter (where h.pos < c_line) as back, min(h.pos) filter (where h.pos >= c_line) - c_line as line
        from home h group by h.priority, h.tenant_id order by h.priority, h.tenant_id
    loop
        v_any := true;
        perform ojs._charge(p_queue, v_taken.priority, v_taken.tenant_id, -v_taken.jobs, -v_taken.v, -v_taken.drift, v_taken.line, v_taken.back);
    end loop;
    -- Rows that somebody has hold of are out of everybody else's reach from now on: let go of untaken, their jobs must not go before what is decided next. They are
    -- revoked by a later decision, which the tick brings about where nothing else does.
    select coalesce(array_agg(r.n order by r.n), '{}') as n, array_agg(r.tenant_id) filter (where r.n <> all (v_mark.held)) as tenants, array_agg(r.id) filter (where r.n <> all (v_mark.held)) as ids
    into v_held
    from (
        (select r.n, r.tenant_id, r.id from ojs.run r where r.queue = p_queue and r.n >= v_mark.lo order by r.n)
        union all
        select r.n, r.tenant_id, r.id from unnest(v_mark.held) h(n) cross join lateral (select r.* from ojs.run r where r.queue = p_queue and r.n = h.n limit 1) r
    ) r;
    perform ojs._look_again(v_held.tenants, v_held.ids);
    if v_any or v_held.n <> v_mark.held then
        update ojs.run_mark m set rev = m.rev + 1, lo = m.hi + 1, held = v_held.n, ahead = case when v_any then m.ahead / 2 else m.ahead end where m.queue = p_queue and m.rev = v_mark.rev;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._revoke(text) is
'Takes back what is left of a run queue: the jobs return to where they stood, and their tenants are not charged for them. This moves
cursors back, by no more jobs than were decided ahead. What somebody is taking at this moment stays taken. Only under the row of
ojs.lane.';

-- +goose StatementBegin
create function ojs._charge_owed(p_since pg_snapshot) returns void
language plpgsql
as $$
declare
    v_mark pg_snapshot;
    v_owed record;
begin
    -- Exactly what the fold has just passed: no charge is left out and none made twice.
    select f.snapshot into v_mark from ojs.fold f where f.lane = 0 order by f.rev desc limit 1;
    for v_owed in
        select l.queue, l.priority + coalesce(t.priority_boost, 0) as priority, l.tenant_id, sum(l.owed)::int as jobs
        from (
            select l.* from ojs.lease l where l.owed > 0 and l.xid >= pg_snapshot_xmax(p_since)
            union all
            select l.* from pg_snapshot_xip(p_since) x(xid) cross join lateral (select l.* from ojs.lease l where l.xid = x.xid and l.owed > 0 offset 0) l
        ) l
        left join ojs.tenant t on t.tenant_id = l.tenant_id
        where pg_visible_in_snapshot(l.xid, v_mark)
        group by l.queue, l.priority, t.priority_boost, l.tenant_id
    loop
        perform ojs._charge(v_owed.queue, v_owed.priority, v_owed.tenant_id, v_owed.jobs,
            (select v_owed.jobs / nullif(r.weight, 0) from ojs._ring(v_owed.queue, v_owed.priority) r)::float8);
        -- Cursors move on past what was taken, so that the next one who takes beside a decision need not.
        for i in 0 .. v_owed.jobs / 5000 loop
            perform ojs._skim(v_owed.queue, v_owed.priority, v_owed.tenant_id, (select s.last_value from ojs.reentry_n_seq s), false);
        end loop;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs._charge_owed(pg_snapshot) is
'Charges the tenants for jobs that were taken beside a decision and became visible to the fold since a snapshot, and moves their cursors
past them.';
reset role;
