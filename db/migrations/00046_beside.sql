-- +goose Up
-- Beside decisions: due and hand out, charged by the next decision. For callers who may stay in their transaction, and for tenants, because
-- whoever holds the lane keeps everybody waiting.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._beside_all(p_ask ojs.ask, p_count int) returns ojs.decided
language plpgsql
as $$
declare
    v_done    ojs.decided := ojs._nothing();
    v_n       int := cardinality(p_ask.queues);
    v_strict  boolean := v_n = 1 or p_ask.strategy is not distinct from 'strict';
    v_weights int[];
    v_first   int;
    v_left    int;
    v_upto    int;
    v_queue   text;
    v_ahead   ojs.decided;
begin
    if p_ask.limited then
        return v_done;
    end if;
    -- Beside a decision there is no round over queues: from each its part, and then from each what is missing. Parts are rounded up, so
    -- the first queue is drawn by weight: who asks for one job at a time would have those of one queue only.
    if not v_strict then
        v_weights := ojs._queue_weights(p_ask);
        select w.n - 1 into v_first from (
            select w.n, sum(w.weight) over (order by w.n) as upto from unnest(v_weights) with ordinality w(weight, n)) w
        where w.upto > random() * (select sum(w) from unnest(v_weights) w) order by w.n limit 1;
        v_weights := v_weights[v_first + 1:] || v_weights[:v_first];
        p_ask.queues := p_ask.queues[v_first + 1:] || p_ask.queues[:v_first];
    end if;
    for v_turn in 1 .. case when v_strict then v_n else 2 * v_n end loop
        exit when cardinality(v_done.ids) = p_count or v_done.cut;
        v_left := p_count - cardinality(v_done.ids);
        v_upto := case when v_strict or v_turn >= v_n then p_count else p_count - v_left
            + ceil(v_left * v_weights[v_turn]::numeric / (select sum(w) from unnest(v_weights[v_turn:]) w)) end;
        v_queue := p_ask.queues[(v_turn - 1) % v_n + 1];
        if (v_n > 1 or p_ask.strategy = 'least-loaded') and exists (select from ojs._turn_mark(v_queue) m where m.hi >= m.lo) then
            v_ahead := ojs._take(v_queue, v_upto - cardinality(v_done.ids), p_ask.tenants, p_ask.max_bytes - v_done.bytes,
                v_done.ids);
            v_done := ojs._with(v_done, v_ahead);
            v_done.cut := v_done.cut or v_done.bytes >= p_ask.max_bytes;
            exit when v_done.cut;
        end if;
        v_done := ojs._take_revoked(v_queue, v_upto, p_ask.tenants, p_ask.max_bytes, v_done);
        v_done := ojs._beside(v_queue, v_upto, p_ask.tenants, p_ask.but, null, p_ask.max_bytes, v_done);
    end loop;
    return v_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._beside_all(ojs.ask, int) is
'Jobs for a caller who must not hold up decisions; none for a pool with a max_concurrency.';

-- +goose StatementBegin
create function ojs._beside(p_queue text, p_count int, p_only text[], p_but text[], p_above int, p_max_bytes bigint,
    p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_backlog  ojs.backlog;
    v_priority int;
begin
    select * into v_backlog from ojs._backlog(p_queue);
    if v_backlog.limited then
        return p_done;
    end if;
    for v_priority in
        -- All at one moment: a decision that commits between two looks would take work from where the second looks to where the first has.
        select p.priority
        from (
            select unnest(b.priorities) from ojs._backlog(p_queue) b
            union
            select w.priority from ojs._waiting() w where w.queue = p_queue
        ) p(priority)
        where (p.priority <= p_above) is not true
        order by p.priority desc
    loop
        p_done := ojs._beside_at(p_queue, v_priority, null, p_count, p_only, p_but, v_backlog, p_max_bytes, p_done);
    end loop;
    if v_backlog.own_order and cardinality(p_done.ids) < p_count and not p_done.cut then
        -- So far it was each tenant's highest priority.
        foreach v_priority in array ojs._own_priorities(p_queue) loop
            p_done := ojs._beside_at(p_queue, 0, v_priority, p_count, p_only, p_but, v_backlog, p_max_bytes, p_done);
        end loop;
    end if;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._beside(text, int, text[], text[], int, bigint, ojs.decided) is
'Adds jobs of a queue to p_done for a caller who must neither wait for a decision nor hold one up: those whose tenants are first as far
as is known, locked, in order; p_above: of a higher effective priority only. Leaves word in ojs.journal that their tenants are still to
be charged. Several callers at once take different jobs. None of a queue or a tenant with a max_concurrency: only decisions count.';

-- +goose StatementBegin
create function ojs._beside_at(
    p_queue text, p_priority int, p_own int, p_count int, p_only text[], p_but text[], p_backlog ojs.backlog, p_max_bytes bigint,
    p_done ojs.decided
) returns ojs.decided
language plpgsql
as $$
declare
    v_reach int;
    v_left  int;
    v_more  record;
begin
    -- Enough for several callers at once, each of whom passes over what another one has locked; further only where that was not.
    foreach v_reach in array array[p_count + 100, 10000, 1000000] loop
        v_left := p_count - cardinality(p_done.ids);
        exit when v_left <= 0 or p_done.cut;
        v_more := ojs._claim_beside(p_queue, p_priority, p_own, v_reach, p_only, p_but, p_backlog, v_left, p_max_bytes - p_done.bytes,
            p_done.ids);
        p_done := ojs._with(p_done, v_more.o_done);
        exit when v_more.o_seen = 0;
    end loop;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._beside_at(text, int, int, int, text[], text[], ojs.backlog, bigint, ojs.decided) is
'ojs._beside at one level; p_own: of jobs of that priority only, where priorities order a tenant''s own jobs.';

-- +goose StatementBegin
create function ojs._take_revoked(p_queue text, p_count int, p_only text[], p_max_bytes bigint, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_more ojs.decided := ojs._nothing();
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
    select array_agg(k.id order by k.n), array_agg(k.place order by k.n), array_agg(null::real), coalesce(sum(k.bytes), 0),
        count(k.id) < (select count(*) from held)
    into v_more.ids, v_more.places, v_more.charged, v_more.bytes, v_more.cut
    from kept k;
    return ojs._with(p_done, v_more);
end;
$$;
-- +goose StatementEnd
comment on function ojs._take_revoked(text, int, text[], bigint, ojs.decided) is
'Adds to p_done jobs that were decided ahead and ojs._take did not get, because a transaction that stays open is taking them back: no
cursor leads to them. The rows of ojs.turn stay; for each the tenant gets one job back, and the next decision charges it for one.';

-- +goose StatementBegin
create function ojs._claim_beside(
    p_queue text, p_priority int, p_own int, p_reach int, p_only text[], p_but text[], p_backlog ojs.backlog, p_count int,
    p_max_bytes bigint, p_without uuid[], out o_done ojs.decided, out o_seen int
)
language plpgsql
as $$
declare
    v_now timestamptz := ojs.now();
    v_low numeric := coalesce((select l.low from ojs._level(p_queue, p_priority) l), 0);
    v_unit ojs.unit := coalesce(p_backlog.unit, 'jobs');
begin
    with due as materialized (
        select d.turn, d.tenant_id, d.seq, d.id, d.place, d.price
        from ojs._due(p_queue, p_priority, v_low, p_reach, p_only, p_but, true, v_unit, v_now) d
        where p_backlog.own_order is not true and d.id is not null
        union all
        select d.* from ojs._own_due(p_queue, v_low, p_reach, p_only, p_but, p_own, v_unit, v_now) d where p_backlog.own_order
        order by turn
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
    select array_agg(k.id order by k.turn), array_agg(k.place order by k.turn),
        array_agg(case when v_unit = 'time' then k.price end order by k.turn), coalesce(sum(k.bytes), 0),
        count(*) < (select count(*) from held), (select count(*) from due)
    into o_done.ids, o_done.places, o_done.charged, o_done.bytes, o_done.cut, o_seen from kept k;
    o_done.skimmed := 0;
end;
$$;
-- +goose StatementEnd
comment on function ojs._claim_beside(text, int, int, int, text[], text[], ojs.backlog, int, bigint, uuid[]) is
'Up to p_count jobs of one level for ojs._beside, locked, except those in p_without: of the first p_reach that are due, and how many these
are. p_own: as ojs._beside_at has it.';

create view ojs._handed with (security_invoker = true) as
select 0 as request, j.* from ojs.job j where false;
comment on view ojs._handed is
'Row type of ojs.fetch_many; holds no rows. request: for which request of the call, from 1; then the columns of the job. Four kinds of
rows have no job: with a worker_id, that worker is to get nothing (ojs.direct_worker), or, with meta, its requests are to be made again
with the pool, strategy and weights in it, because it has registered with others than those of this call; with a worker_id and a request,
this one may have as many jobs as attempt says at most, because its worker has no room for more (least-loaded); with request 0, the call
stopped early, and there may be more.';
reset role;
