-- +goose Up
-- Who is next, and nothing else: the tenant that is owed most. Each (queue, effective priority) is a ring of the tenants with work
-- there. The ring's virtual time V advances by 1 / (sum of weights) per dispatched job: what a tenant is due per unit of weight. A
-- tenant's own virtual time advances by 1 / weight per job of its own. deficit = (V - own time) * weight is the number of jobs it is
-- owed, and the largest deficit is served next. So every tenant stays within about one job of its fluid share at every moment,
-- whatever the weights and however tenants come and go (docs/design/0002-fair-decision.md). Tenants of equal weight are next
-- in the order of their own time, so they form a class, and only the front of each class has to be read.
set local role ojs_owner;

-- +goose StatementBegin
create function ojs._enter_lane(p_patience_ms int default 0) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_lock_timeout text := current_setting('lock_timeout');
begin
    perform from ojs.lane l where l.lane = 0 for update skip locked;
    if not found then
        if p_patience_ms < 0 then
            return false;
        elsif p_patience_ms = 0 then
            perform from ojs.lane l where l.lane = 0 for update;
        else
            begin
                perform set_config('lock_timeout', p_patience_ms::text, true);
                perform from ojs.lane l where l.lane = 0 for update;
            exception when lock_not_available or deadlock_detected then
                return false;
            end;
            perform set_config('lock_timeout', v_lock_timeout, true);
        end if;
    end if;
    perform set_config('ojs.lane', 'held', true),
        case when current_setting('idle_in_transaction_session_timeout')::interval not between '1 millisecond' and '10 seconds' then set_config('idle_in_transaction_session_timeout', '10s', true) end,
        -- Unknown before PostgreSQL 17.
        case when current_setting('transaction_timeout', true)::interval not between '1 millisecond' and '10 seconds' then set_config('transaction_timeout', '10s', true) end;
    return true;
end;
$$;
-- +goose StatementEnd
comment on function ojs._enter_lane(int) is
'Waits for the row of ojs.lane, p_patience_ms at most (0: as long as it takes; negative: not at all), and says whether it holds it, which it does until the
transaction ends. Whoever holds it keeps decisions waiting, so the session is ended when it then idles for 10 seconds, and from PostgreSQL 17 on when its
transaction is still open after 10 seconds.';

-- +goose StatementBegin
create function ojs._await_lane(p_patience_ms int) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    perform set_config('lock_timeout', p_patience_ms::text, true);
    perform from ojs.lane l where l.lane = 0 for update;
    raise sqlstate 'OJ000';
exception
    when sqlstate 'OJ000' then
        return true;
    when lock_not_available or deadlock_detected then
        return false;
end;
$$;
-- +goose StatementEnd
comment on function ojs._await_lane(int) is
'Waits until the decision under way has ended, p_patience_ms at most, and says whether it has. Holds nothing afterwards: the row lock goes with the subtransaction.';

-- +goose StatementBegin
create function ojs._weight_class(p_weight numeric) returns int
language sql immutable
as $$ select floor(8 * ln(p_weight::float8) / ln(2::float8))::int $$;
-- +goose StatementEnd
comment on function ojs._weight_class(numeric) is 'Class of a weight: eight to a doubling, so weights of one class differ by less than a tenth.';

-- +goose StatementBegin
create function ojs._step(p_weight numeric) returns numeric
language sql immutable
as $$ select round(1 / p_weight, 15) $$;
-- +goose StatementEnd
comment on function ojs._step(numeric) is 'By how much a job of its own advances a tenant''s virtual time: 1 / weight, to 15 decimals. numeric: no weight becomes 0 and no time overflows.';

-- +goose StatementBegin
create function ojs._ring(p_queue text, p_priority int) returns ojs.ring
language plpgsql stable set search_path = pg_catalog, pg_temp
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
language plpgsql set search_path = pg_catalog, pg_temp
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
language plpgsql set search_path = pg_catalog, pg_temp
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
language plpgsql immutable set search_path = pg_catalog, pg_temp
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
'The ring after p_members tenants of one class joined it (left it, when negative): p_weight their weights in sum, p_head the lowest of their virtual times.';

-- +goose StatementBegin
create function ojs._ring_tidy(p_ring ojs.ring) returns ojs.ring
language plpgsql immutable set search_path = pg_catalog, pg_temp
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
create function ojs._snapshot_before(p_snapshot pg_snapshot, p_xid xid8) returns pg_snapshot
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if p_xid is null or p_xid >= pg_snapshot_xmax(p_snapshot) then
        return p_snapshot;
    end if;
    return (least(pg_snapshot_xmin(p_snapshot), p_xid) || ':' || p_xid || ':'
        || coalesce((select string_agg(x::text, ',' order by x) from pg_snapshot_xip(p_snapshot) x where x < p_xid), ''))::pg_snapshot;
end;
$$;
-- +goose StatementEnd
comment on function ojs._snapshot_before(pg_snapshot, xid8) is 'The part of a snapshot that lies before a transaction; null: all of it.';

-- +goose StatementBegin
create function ojs._unfolded() returns setof ojs.wake
language plpgsql stable rows 100 set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off set max_parallel_workers_per_gather = 0 set jit = off
as $$
declare
    v_fold pg_snapshot := (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1);
begin
    return query
    select w.* from ojs.wake w where w.xid >= pg_snapshot_xmax(v_fold) and w.to_state = 'available'
    union all
    select w.* from pg_snapshot_xip(v_fold) x(xid) cross join lateral (select w.* from ojs.wake w where w.xid = x.xid and w.to_state = 'available' offset 0) w;
end;
$$;
-- +goose StatementEnd
comment on function ojs._unfolded() is 'What the wake journal has gained since the last decision: jobs that may be available behind their tenant''s cursor.';
grant execute on function ojs._unfolded() to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs._stale_queues(p_queue text default null) returns setof text
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
    set jit = off
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
'Queues (p_queue: only that one) in which a tenant has got work, or work of another priority, of which the decisions made ahead know nothing.';

-- +goose StatementBegin
create function ojs._charge(p_queue text, p_priority int, p_tenant text, p_jobs int, p_v float8, p_drift float8 default 0, p_line bigint default null, p_back bigint default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp
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
'Charges a tenant for p_jobs jobs outside of a decision, or, negative, gives back what it was charged for jobs that return to the line; the clock of
the ring moves by p_v and its drift by p_drift. p_line, p_back: the first of those jobs in line and on the small list, to which the cursors move back. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._revoke(p_queue text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
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
'Takes back what is left of a run queue: the jobs return to where they stood, and their tenants are not charged for them. This moves cursors back, by no more
jobs than were decided ahead. What somebody is taking at this moment stays taken. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._charge_owed(p_since pg_snapshot) returns void
language plpgsql set search_path = pg_catalog, pg_temp
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
comment on function ojs._charge_owed(pg_snapshot) is 'Charges the tenants for jobs that were taken beside a decision and became visible to the fold since a snapshot, and moves their cursors past them.';

-- +goose StatementBegin
create function ojs._fold() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
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
'Takes into the rings what the wake journal has gained since the last fold: exactly the rows visible now and not to the snapshot stored then,
so the order in which producers committed does not matter. A tenant that joins begins at the later of its own virtual time and V: no credit
from idleness, no turn lost. Jobs that were taken beside a decision are charged. Takes about 10000 rows at most and returns whether there are more. Only under the row of ojs.lane.';

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
does not know (ojs.fetch notices when they ran backwards and calls it itself). Reads all jobs; dispatch waits meanwhile. Deficits begin at 0.';
grant execute on function ojs.rebuild() to ojs_operator;

-- +goose StatementBegin
create function ojs.configure_tenant(p_tenant text, p_weight numeric default null, p_priority_boost int default null) returns ojs.tenant
language plpgsql security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off
    set plan_cache_mode = force_generic_plan set max_parallel_workers_per_gather = 0 set jit = off
as $$
declare
    v_old    ojs.tenant;
    v_new    ojs.tenant;
    v_row    ojs.tenant_fairness;
    v_ring   ojs.ring;
    v_vtime  numeric;
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    end if;
    if p_weight = 'NaN' then
        perform ojs._raise('OJ422', 'weight must be a number', '{"field": "weight"}');
    end if;
    perform ojs._enter_lane();
    -- What was decided under the old settings is decided again.
    perform ojs._revoke(q.queue) from (select distinct q.queue from ojs.queue_priority q offset 0) q where ojs._has_run(q.queue);
    -- Wakes of this tenant that are not folded yet join under the settings that held when they committed.
    while ojs._fold() loop
    end loop;
    select * into v_old from ojs.tenant t where t.tenant_id = p_tenant;
    insert into ojs.tenant (tenant_id, weight, priority_boost) values (p_tenant, coalesce(p_weight, 1), coalesce(p_priority_boost, 0))
    on conflict (tenant_id) do update set weight = coalesce(p_weight, ojs.tenant.weight), priority_boost = coalesce(p_priority_boost, ojs.tenant.priority_boost)
    returning * into v_new;
    if v_new.weight = coalesce(v_old.weight, 1) and v_new.priority_boost = coalesce(v_old.priority_boost, 0) then
        return v_new;
    end if;

    for v_row in
        select f.* from ojs.queue_priority q
        cross join lateral (select f.* from ojs.tenant_fairness f
            where f.queue = q.queue and f.priority = q.priority and f.tenant_id = p_tenant order by f.rev desc limit 1) f
        order by f.queue, f.priority * case when v_new.priority_boost > coalesce(v_old.priority_boost, 0) then -1 else 1 end
    loop
        v_ring := ojs._ring(v_row.queue, v_row.priority);
        v_vtime := v_row.vtime;
        if v_row.backlogged then
            -- What it is owed stays the same number of jobs.
            v_vtime := v_ring.v - round((v_ring.v - v_row.vtime) * v_row.weight / v_new.weight, 15);
            perform ojs._ring_changed(ojs._ring_tidy(ojs._ring_join(v_ring, v_row.class, -1, -v_row.weight, v_row.vtime)));
        end if;
        if v_row.job_priority + v_new.priority_boost <> v_row.priority then
            -- Jobs on the small list move along; a ring of another priority has a virtual time of its own.
            with moved as (
                delete from ojs.reentry e where e.queue = v_row.queue and e.priority = v_row.priority and e.tenant_id = p_tenant returning e.*
            )
            insert into ojs.reentry (queue, priority, tenant_id, id)
            select m.queue, v_row.job_priority + v_new.priority_boost, m.tenant_id, m.id from moved m where m.n > v_row.reentry_head order by m.n;
            v_ring := ojs._ring_here(v_row.queue, v_row.job_priority + v_new.priority_boost);
            v_vtime := v_ring.v + case when v_row.backlogged then 0 else v_ring.drift end;
        end if;
        update ojs.tenant_fairness f
        set priority = v_row.job_priority + v_new.priority_boost, rev = f.rev + 1, vtime = v_vtime, weight = v_new.weight, class = ojs._weight_class(v_new.weight),
            drift = case when v_row.backlogged then 0 when v_row.job_priority + v_new.priority_boost <> v_row.priority then v_ring.drift else f.drift end
        where f.queue = v_row.queue and f.priority = v_row.priority and f.tenant_id = p_tenant and f.rev = v_row.rev;
        if v_row.backlogged then
            perform ojs._ring_changed(ojs._ring_join(ojs._ring(v_row.queue, v_row.job_priority + v_new.priority_boost),
                ojs._weight_class(v_new.weight), 1, v_new.weight, v_vtime));
        end if;
    end loop;
    return v_new;
end;
$$;
-- +goose StatementEnd
comment on function ojs.configure_tenant(text, numeric, int) is
'Sets a tenant''s weight (0.000001 to 1000000, default 1) and priority boost (-100 to 100, default 0), and returns its configuration; a null
argument leaves its setting as it is. Acts on the whole backlog from the next dispatch on. Waits for a running dispatch. Raises validation_error.';
grant execute on function ojs.configure_tenant(text, numeric, int) to ojs_operator, ojs_service;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.configure_tenant(text, numeric, int);
drop function ojs.rebuild();
drop function ojs._fold();
drop function ojs._charge_owed(pg_snapshot);
drop function ojs._revoke(text);
drop function ojs._charge(text, int, text, int, float8, float8, bigint, bigint);
drop function ojs._stale_queues(text);
drop function ojs._unfolded();
drop function ojs._snapshot_before(pg_snapshot, xid8);
drop function ojs._ring_tidy(ojs.ring);
drop function ojs._ring_join(ojs.ring, int, int, numeric, numeric);
drop function ojs._ring_changed(ojs.ring);
drop function ojs._ring_here(text, int);
drop function ojs._ring(text, int);
drop function ojs._step(numeric);
drop function ojs._weight_class(numeric);
drop function ojs._await_lane(int);
drop function ojs._enter_lane(int);
reset role;
