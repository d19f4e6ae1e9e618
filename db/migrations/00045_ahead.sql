-- +goose Up
-- Decided ahead: due and charge now, rows of ojs.turn, handed out when somebody takes them, so that many callers of one job each can go on
-- while one of them decides.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._take(p_queue text, p_count int, p_only text[], p_max_bytes bigint, p_without uuid[]) returns ojs.decided
language plpgsql
as $$
declare
    v_done ojs.decided := ojs._nothing();
    v_now  timestamptz := ojs.now();
    v_lo   bigint := (select m.lo from ojs._turn_mark(p_queue) m where m.hi >= m.lo);
begin
    with free as materialized (
        select t.n, t.id, t.bytes, t.ctid as spot, j.place from ojs.turn t
        cross join lateral (select j.ctid as place from ojs.job j where j.id = t.id and j.tenant_id = t.tenant_id
            and j.state = 'available' limit 1) j
        where t.queue = p_queue and t.n >= v_lo and (p_only is null or t.tenant_id = any (p_only)) and t.id <> all (p_without)
        order by t.n limit p_count for update of t skip locked
    ), fits as (
        select f.*, sum(f.bytes) over (order by f.n) as size from free f
    ), held as materialized (
        select f.n, f.id, f.spot, f.bytes, j.place from fits f
        cross join lateral (select j.ctid as place from ojs.job j
            where j.ctid = f.place and j.id = f.id and j.state = 'available'
                and (j.expires_at > v_now) is not false for update skip locked) j
        where f.size <= p_max_bytes or f.size = f.bytes
    ), gone as (
        delete from ojs.turn t using held h where t.ctid = h.spot
    )
    select coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.place), '{}'), array_agg(null::real),
        array_agg(h.n), coalesce(sum(h.bytes), 0), (select max(f.size) > p_max_bytes from fits f)
    into v_done.ids, v_done.places, v_done.charged, v_done.turns, v_done.bytes, v_done.cut
    from (select h.* from held h order by h.n) h;
    return v_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take(text, int, text[], bigint, uuid[]) is
'Up to p_count jobs of those that were decided ahead, locked; several callers at once take different ones. p_without: not these, because the
caller took them beside decisions, which charges for them, too.';

-- +goose StatementBegin
create function ojs._decide_ahead(p_queue text, p_count int, p_but text[]) returns void
language plpgsql
as $$
declare
    c_bytes constant bigint := 16777216;
    v_mark  ojs.turn_mark;
    v_base  bigint := nextval('ojs.decision_seq') * 10000;
    v_first record;
    v_ahead int;
    v_done  ojs.decided;
    v_ask   ojs.ask;
begin
    v_ask.max_bytes := c_bytes;
    v_ask.but := p_but;
    select * into v_mark from ojs._turn_mark(p_queue);
    if v_mark.held > 0 then
        perform ojs._revoke(p_queue, false);
        select * into v_mark from ojs._turn_mark(p_queue);
    end if;
    select t.n, t.tenant_id, t.id into v_first from ojs.turn t where t.queue = p_queue and t.n >= v_mark.lo order by t.n limit 1;
    if v_first.n = v_mark.lo and v_mark.hi >= v_mark.lo then
        -- It was the first the last time, too. Somebody has hold of it and may keep it, or its job has ended: scans begin behind it.
        perform ojs._look_again(array[v_first.tenant_id], array[v_first.id]);
        select t.n into v_first.n from ojs.turn t where t.queue = p_queue and t.n > v_mark.lo order by t.n limit 1;
        v_mark.held := v_mark.held + 1;
    end if;
    -- Further each time, and half as far after jobs were taken back: what is decided ahead and not taken is decided twice.
    v_ahead := least(p_count, greatest(2 * v_mark.ahead, p_count / 8));
    v_done := ojs._serve_queue(p_queue, v_ahead, v_ask, ojs._nothing(), v_base);
    if v_mark.queue is null then
        insert into ojs.turn_mark (queue, rev, lo, hi, ahead)
        values (p_queue, 1, v_base, v_base + cardinality(v_done.ids) - 1, v_ahead);
    elsif v_done.ids <> '{}' then
        update ojs.turn_mark m set rev = m.rev + 1, lo = coalesce(v_first.n, v_base), hi = v_base + cardinality(v_done.ids) - 1,
            ahead = v_ahead, held = v_mark.held
        where m.queue = p_queue and m.rev = v_mark.rev;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._decide_ahead(text, int, text[]) is
'Decides up to p_count jobs of a queue ahead, 16 MiB at most, of all tenants but p_but, and keeps them in ojs.turn. Only under the row of
ojs.lane.';

-- +goose StatementBegin
create function ojs._keep(p_level ojs.level, p_picks ojs.picks, p_from bigint) returns void
language plpgsql
as $$
begin
    insert into ojs.turn (queue, n, priority, job_priority, tenant_id, id, seq, bytes, price)
    select p_level.queue, p_from + row_number() over (order by p.n) - 1, p_level.priority, p_level.priority - coalesce(t.priority_boost,
        0), p.tenant_id, p.id, p.seq, p.bytes, p.price
    from unnest(p_picks.tenants, p_picks.ids, p_picks.seqs, p_picks.bytes, p_picks.prices) with ordinality
        p(tenant_id, id, seq, bytes, price, n)
    left join ojs.tenant t on t.tenant_id = p.tenant_id
    where p.id is not null;
    if p_picks.limited then
        perform ojs._note_ahead(p_level.queue, true);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._keep(ojs.level, ojs.picks, bigint) is
'Keeps picks for whoever takes them, from place p_from of the order of all decisions on.';

-- +goose StatementBegin
create function ojs._revoke(p_queue text, p_all boolean default true) returns void
language plpgsql
as $$
declare
    v_mark record;
    v_from bigint;
    v_upto bigint;
    v_back record;
    v_any  boolean := false;
    v_held record;
    v_tenants text[] := '{}';
    v_jobs    int[] := '{}';
begin
    select m.*, f.counts into v_mark from ojs._turn_mark(p_queue) m, ojs._folded() f;
    v_from := case when v_mark.held > 0 then 0 else v_mark.lo end;
    v_upto := case when p_all then v_mark.hi else v_mark.lo - 1 end;
    for v_back in
        -- From the end: callers take from the beginning, and nobody may get a job behind one that is taken back.
        with free as materialized (
            select t.ctid as spot from ojs.turn t where t.queue = p_queue and t.n between v_from and v_upto
                order by t.n desc for update skip locked
        ), gone as (
            delete from ojs.turn t using free f where t.ctid = f.spot returning t.*
        )
        -- A boost that changed while somebody had hold of a row has moved its tenant to another level.
        select g.job_priority + coalesce(t.priority_boost, 0) as priority, g.tenant_id, count(*)::int as jobs,
            sum(g.price) as price, min(g.seq) as lo, max(g.seq) as hi
        from gone g left join ojs.tenant t on t.tenant_id = g.tenant_id group by g.job_priority, t.priority_boost, g.tenant_id
    loop
        v_any := true;
        perform ojs._refund(p_queue, v_back.priority, v_back.tenant_id, v_back.jobs, v_back.price, v_back.lo, v_back.hi);
        v_tenants := v_tenants || v_back.tenant_id;
        v_jobs := v_jobs || v_back.jobs;
    end loop;
    -- Rows that somebody has hold of are out of everybody else's reach from now on: their jobs must not go before what is decided next.
    -- If they are let go of, the next decision takes them back, which the tick brings about where nothing else does.
    select count(*)::int as rows, array_agg(t.tenant_id) filter (where t.n >= v_mark.lo) as tenants,
        array_agg(t.id) filter (where t.n >= v_mark.lo) as ids
    into v_held from ojs.turn t where t.queue = p_queue and t.n between v_from and v_upto;
    perform ojs._look_again(v_held.tenants, v_held.ids);
    update ojs.turn_mark m set rev = m.rev + 1, lo = v_upto + 1, held = v_held.rows, ahead = case when v_any and p_all then m.ahead / 2
        else m.ahead end
    where m.queue = p_queue and m.rev = v_mark.rev and (v_any or v_upto >= m.lo or m.held <> v_held.rows);
    if v_mark.counts then
        perform ojs._note_ahead(p_queue, false) where p_all and v_held.rows = 0;
        perform ojs._free_slots(v_tenants, array_fill(p_queue, array[cardinality(v_tenants)]), v_jobs) where v_any;
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._revoke(text, boolean) is
'Takes back what was decided ahead for a queue and nobody has taken: the tenants are not charged for it, and the jobs are looked at
again first. Not p_all: only rows before ojs.turn_mark.lo whose holder has let go of them. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._revoke_stale(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint) returns void
language plpgsql
as $$
begin
    if exists (select from ojs.turn_mark) then
        perform ojs._revoke(q.queue) from ojs._stale_queues(p_from, p_to, p_xid, p_lo, p_hi, null) q(queue);
    end if;
end;
$$;
-- +goose StatementEnd
comment on function ojs._revoke_stale(pg_snapshot, pg_snapshot, xid8, bigint, bigint) is
'Takes back what was decided ahead without tenants that are about to join: they are placed among the others as these stand, and would
otherwise wait behind all of that. The parameters are those of ojs._fresh.';

-- +goose StatementBegin
create function ojs._stale_queues(p_from pg_snapshot, p_to pg_snapshot, p_xid xid8, p_lo bigint, p_hi bigint, p_queue text)
returns setof text
language sql stable
as $$
    select distinct c.queue
    from (
        select f.queue, f.priority, f.tenant_id, min(f.lo) as lo from ojs._fresh(p_from, p_to, p_xid, p_lo, p_hi) f
        where f.to_state = 'available' and (p_queue is null or f.queue = p_queue)
            -- Asked of each row. In a join the planner might first look at all that is known of tenants in queues without anything ahead.
            and exists (select from ojs._turn_mark(f.queue) m where m.hi >= m.lo)
        group by f.queue, f.priority, f.tenant_id
    ) c left join ojs.tenant t on t.tenant_id = c.tenant_id
    cross join lateral ojs._rank(c.queue, c.priority, t.priority_boost) r
    cross join lateral ojs._unforeseen(c.queue, r.priority, c.tenant_id, c.lo)
$$;
-- +goose StatementEnd
comment on function ojs._stale_queues(pg_snapshot, pg_snapshot, xid8, bigint, bigint, text) is
'Queues (p_queue: only that one) for which jobs were decided ahead, and in which work has come that may go before them. The other
parameters are those of ojs._fresh.';

-- +goose StatementBegin
create function ojs._unforeseen(p_queue text, p_priority int, p_tenant text, p_lo bigint) returns setof boolean
language sql stable rows 1
as $$
    select true
    from (select) x left join lateral ojs._fair(p_queue, p_priority, p_tenant) f on true
    where f.parked is not true and (f.ready is not true or p_lo <= f.head)
        -- It may have no room because of what was decided ahead for it.
        or (f.parked or (select b.unit from ojs._backlog(p_queue) b) = 'none')
            and exists (select from ojs.turn t
                where t.queue = p_queue and t.seq > p_lo and (f.parked is not true or t.tenant_id = p_tenant))
$$;
-- +goose StatementEnd
comment on function ojs._unforeseen(text, int, text, bigint) is
'A row if work of a tenant, at an effective priority, whose first job is p_lo, has the tenant join, lies behind its cursor, or goes before
what was decided ahead. Becomes part of the query that asks.';

-- +goose StatementBegin
create function ojs._turn_mark(p_queue text) returns setof ojs.turn_mark
language sql stable rows 1
as $$ select m.* from ojs.turn_mark m where m.queue = p_queue order by m.rev desc limit 1 $$;
-- +goose StatementEnd
comment on function ojs._turn_mark(text) is 'Where the jobs decided ahead for a queue lie; no row: none ever were.';
reset role;
