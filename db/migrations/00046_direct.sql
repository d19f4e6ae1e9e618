-- +goose Up
-- Two other ways to a job, of the same parts. Decided ahead: due and charge now, rows of ojs.turn, handed out when somebody takes
-- them, so that many callers of one job each can go on while one of them decides. Beside decisions: due and hand out, charged by the next
-- decision; for callers who may stay in their transaction, and for tenants, because whoever holds the lane keeps everybody waiting.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._take(p_queue text, p_count int, p_only text[], p_max_bytes bigint) returns ojs.decided
language plpgsql
as $$
declare
    v_done ojs.decided := row('{}', '{}', '{}', 0, 0, false)::ojs.decided;
    v_now  timestamptz := ojs.now();
    v_lo   bigint;
begin
    select m.lo into v_lo from ojs._turn_mark(p_queue) m where m.hi >= m.lo;
    with free as materialized (
        select t.n, t.id, t.bytes, t.ctid as spot, j.place from ojs.turn t
        cross join lateral (select j.ctid as place from ojs.job j where j.id = t.id and j.tenant_id = t.tenant_id
            and j.state = 'available' limit 1) j
        where t.queue = p_queue and t.n >= v_lo and (p_only is null or t.tenant_id = any (p_only))
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
    select coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.place), '{}'), array_agg(h.n), coalesce(sum(h.bytes), 0),
        (select max(f.size) > p_max_bytes from fits f)
    into v_done.ids, v_done.places, v_done.turns, v_done.bytes, v_done.cut
    from (select h.* from held h order by h.n) h;
    return v_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take(text, int, text[], bigint) is
'Up to p_count jobs of those that were decided ahead, locked; several callers at once take different ones.';

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
        insert into ojs.turn_mark (queue, rev, lo, hi, ahead) values (p_queue, 1, v_base, v_base + cardinality(v_done.ids) - 1, v_ahead);
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
create function ojs._turn_mark(p_queue text) returns setof ojs.turn_mark
language sql stable rows 1
as $$ select m.* from ojs.turn_mark m where m.queue = p_queue order by m.rev desc limit 1 $$;
-- +goose StatementEnd
comment on function ojs._turn_mark(text) is 'Where the jobs decided ahead for a queue lie; no row: none ever were.';

-- +goose StatementBegin
create function ojs._beside(p_queue text, p_count int, p_only text[], p_but text[], p_above int, p_max_bytes bigint,
    p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_backlog  ojs.backlog;
    v_priority int;
    v_reach    int;
    v_left     int;
    v_picks    record;
begin
    select * into v_backlog from ojs._backlog(p_queue);
    if v_backlog.limited then
        return p_done;
    end if;
    for v_priority in
        select p.priority
        from (select unnest(v_backlog.priorities) union select w.priority from ojs._waiting() w where w.queue = p_queue) p(priority)
        where (p.priority <= p_above) is not true
        order by p.priority desc
    loop
        -- Enough for several callers at once, each of whom passes over what another one has locked; further only where that was not.
        foreach v_reach in array array[p_count + 100, 10000, 1000000] loop
            v_left := p_count - cardinality(p_done.ids);
            exit when v_left <= 0 or p_done.cut;
            v_picks := ojs._claim_beside(p_queue, v_priority, v_reach, p_only, p_but, v_backlog.by_cost, v_left,
                p_max_bytes - p_done.bytes, p_done.ids);
            p_done.ids := p_done.ids || v_picks.o_ids;
            p_done.places := p_done.places || v_picks.o_places;
            p_done.bytes := p_done.bytes + v_picks.o_bytes;
            p_done.cut := v_picks.o_cut;
            exit when v_picks.o_seen = 0;
        end loop;
    end loop;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._beside(text, int, text[], text[], int, bigint, ojs.decided) is
'Adds jobs of a queue to p_done for a caller who must neither wait for a decision nor hold one up: those whose tenants are first as far
as is known, locked, in order; p_above: of a higher effective priority only. Leaves word in ojs.journal that their tenants are still to
be charged. Several callers at once take different jobs. None of a queue or a tenant with a max_concurrency: only decisions count.';

-- +goose StatementBegin
create function ojs._take_revoked(p_queue text, p_count int, p_only text[], p_max_bytes bigint, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
    v_got record;
begin
    with held as materialized (
        select t.n, t.tenant_id, t.id, t.seq, t.job_priority, t.bytes, t.price, j.place
        from (select t.* from ojs.turn t where t.queue = p_queue and (p_only is null or t.tenant_id = any (p_only))
            and not exists (select from ojs.tenant c where c.tenant_id = t.tenant_id and c.limited)
            and not exists (select from ojs._backlog(p_queue) b where b.limited) order by t.n) t
        cross join lateral (select j.ctid as place from ojs.job j
            where j.id = t.id and j.tenant_id = t.tenant_id and j.state = 'available' and (j.expires_at > v_now) is not false
              and j.id <> all (p_done.ids) limit 1 for update skip locked) j
        limit p_count - cardinality(p_done.ids)
    ), kept as materialized (
        select h.* from (select h.*, sum(h.bytes) over (order by h.n) as size, row_number() over (order by h.n) as nth from held h) h
        where h.size <= p_max_bytes - p_done.bytes or h.nth = 1 and p_done.ids = '{}'
    ), noted as (
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, owed, price, lo, hi)
        select k.tenant_id, p_queue, k.job_priority, 'available', 'active', 0, count(*), sum(k.price), min(k.seq), max(k.seq) from kept k
            group by k.tenant_id, k.job_priority
    )
    select coalesce(array_agg(k.id order by k.n), '{}') as ids, coalesce(array_agg(k.place order by k.n), '{}') as places,
        coalesce(sum(k.bytes), 0) as bytes, count(*) < (select count(*) from held) as cut
    into v_got from kept k;
    p_done.ids := p_done.ids || v_got.ids;
    p_done.places := p_done.places || v_got.places;
    p_done.bytes := p_done.bytes + v_got.bytes;
    p_done.cut := p_done.cut or v_got.cut;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_revoked(text, int, text[], bigint, ojs.decided) is
'Adds to p_done jobs that were decided ahead and ojs._take did not get, because a transaction that stays open is taking them back: no
cursor leads to them. The rows of ojs.turn stay; for each the tenant gets one job back, and the next decision charges it for one.';

-- +goose StatementBegin
create function ojs._claim_beside(
    p_queue text, p_priority int, p_reach int, p_only text[], p_but text[], p_by_cost boolean, p_count int, p_max_bytes bigint,
    p_without uuid[], out o_ids uuid[], out o_places tid[], out o_bytes bigint, out o_cut boolean, out o_seen int
)
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
    v_low numeric := coalesce((select l.low from ojs._level(p_queue, p_priority) l), 0);
begin
    with due as materialized (
        select d.* from ojs._due(p_queue, p_priority, v_low, p_reach, p_only, p_but, true, p_by_cost, v_now) d where d.id is not null
        order by d.turn
    ), held as materialized (
        select d.turn, d.tenant_id, d.id, d.seq, d.price, j.priority, j.place, j.bytes from due d
        cross join lateral (select j.ctid as place, j.priority,
                ojs._bytes(j.args, j.meta, j.options, j.extra, j.errors, j.retry, j.tags) as bytes
            from ojs.job j
            where j.ctid = d.place and j.id = d.id and j.state = 'available' and j.id <> all (p_without) for update skip locked) j
        limit p_count
    ), exact as materialized (
        select h.turn, h.tenant_id, h.id, h.seq, h.price, h.priority, h.place,
            case when sum(h.bytes) over () <= p_max_bytes / 100 then h.bytes else ojs._answer_bytes(h.id, h.place) end as bytes
        from held h
    ), kept as materialized (
        select h.* from (select h.*, sum(h.bytes) over (order by h.turn) as size, row_number() over (order by h.turn) as nth from exact h) h
        where h.size <= p_max_bytes or h.nth = 1 and p_without = '{}'
    ), noted as (
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, owed, price, lo, hi)
        select k.tenant_id, p_queue, k.priority, 'available', 'active', 0, count(*), sum(k.price), min(k.seq), max(k.seq) from kept k
            group by k.tenant_id, k.priority
    )
    select coalesce(array_agg(k.id order by k.turn), '{}'), coalesce(array_agg(k.place order by k.turn), '{}'), coalesce(sum(k.bytes), 0),
        count(*) < (select count(*) from held), (select count(*) from due)
    into o_ids, o_places, o_bytes, o_cut, o_seen from kept k;
end;
$$;
-- +goose StatementEnd
comment on function ojs._claim_beside(text, int, int, text[], text[], boolean, int, bigint, uuid[]) is
'Up to p_count jobs of one level for ojs._beside, locked, except those in p_without: of the first p_reach that are due.';
reset role;
