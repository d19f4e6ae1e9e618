-- Fetching without the lane: for tenants' logins, for callers that stay in their transaction, and
-- for sessions that waited for the lane in vain. Four steps: find the jobs that are due by the
-- state as it is now; lock them; write into the journal what the next fold is to charge; hand them
-- out. Several callers at once get different jobs.

create or replace function ojs._fetch_without_lane(p_ask ojs.ask, p_count int) returns ojs.decided
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
begin
    if p_ask.pool_limited then
        return v_done;
    end if;
    -- No rotation is read or written here: take a part by weight from each queue, and then what is
    -- missing from each. Parts are rounded up, so the first queue is drawn at random by weight;
    -- otherwise a caller that asks for one job at a time would only get jobs of the first queue.
    if not v_strict then
        v_weights := ojs._queue_weights(p_ask);
        select w.n - 1 into v_first from (
            select w.n, sum(w.weight) over (order by w.n) as upto from unnest(v_weights) with ordinality w(weight, n)) w
        where w.upto > random() * (select sum(w) from unnest(v_weights) w) order by w.n limit 1;
        v_weights := v_weights[v_first + 1:] || v_weights[:v_first];
        p_ask.queues := p_ask.queues[v_first + 1:] || p_ask.queues[:v_first];
    end if;
    -- In the second round each queue may give all that is still missing.
    for v_nth in 1 .. case when v_strict then v_n else 2 * v_n end loop
        v_left := p_count - cardinality(v_done.ids);
        exit when v_left = 0 or v_done.cut;
        v_upto := case when v_strict or v_nth >= v_n then p_count else p_count - v_left
            + ceil(v_left * v_weights[v_nth]::numeric / (select sum(w) from unnest(v_weights[v_nth:]) w)) end;
        v_done := ojs._serve_without_lane(p_ask.queues[(v_nth - 1) % v_n + 1], v_upto, p_ask, v_done);
    end loop;
    return v_done;
end;
$$;
comment on function ojs._fetch_without_lane(ojs.ask, int) is
'Returns the next p_count jobs for a FETCH, locked, by the state of fairness as it is now. No jobs
for a pool with a max_concurrency.';

create or replace function ojs._serve_without_lane(p_queue text, p_count int, p_ask ojs.ask, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_state    ojs.dispatch_state;
    v_priority int;
begin
    if exists (select from ojs.rule r where r.tenant_id = '' and r.queue = p_queue and r.most is not null) then
        -- A queue with a limit of its own gives nothing here: its count is one row for all tenants,
        -- and a caller that stays in its transaction would stop the whole queue.
        return p_done;
    end if;
    select * into v_state from ojs._state(p_queue);
    for v_priority in
        -- One statement, and so one snapshot: between two reads a decision could move work from a
        -- list that the second one reads to one that the first has read.
        select p.priority
        from (
            select l.priority from ojs._state(p_queue) s cross join lateral unnest(s.levels) l where l.ready + l.at_limit > 0
            union
            select w.priority from ojs._waiting() w where w.queue = p_queue
        ) p
        order by p.priority desc
    loop
        p_done := ojs._serve_level_without_lane(v_state, p_queue, v_priority, null, p_count, p_ask, p_done);
    end loop;
    if v_state.own_order and cardinality(p_done.ids) < p_count and not p_done.cut then
        -- So far only jobs of each tenant's highest priority were read. Go through the other
        -- priorities.
        foreach v_priority in array ojs._own_priorities(p_queue) loop
            p_done := ojs._serve_level_without_lane(v_state, p_queue, 0, v_priority, p_count, p_ask, p_done);
        end loop;
    end if;
    return p_done;
end;
$$;
comment on function ojs._serve_without_lane(text, int, ojs.ask, ojs.decided) is
'Adds jobs of a queue to p_done until it has p_count, the highest effective priority first.';

create or replace function ojs._serve_level_without_lane(
    p_state ojs.dispatch_state, p_queue text, p_priority int, p_own int, p_count int, p_ask ojs.ask, p_done ojs.decided
) returns ojs.decided
language plpgsql
as $$
declare
    v_reach int;
    v_left  int;
    v_more  record;
begin
    -- 100 jobs more than wanted are enough for several callers at once, each of which passes the
    -- jobs that another has locked. Read further only if they were not. Counts of limits stay
    -- locked until the transaction ends, so as few as possible are locked.
    foreach v_reach in array array[p_count + 100, 10000, 1000000] loop
        v_left := p_count - cardinality(p_done.ids);
        exit when v_left <= 0 or p_done.cut;
        select * into v_more from ojs._claim_without_lane(p_state, p_queue, p_priority, p_own, v_reach, v_left, p_ask, p_done);
        p_done := ojs._with(p_done, v_more.o_done);
        -- No job is due, and no tenant's count was locked: reading further finds nothing.
        exit when v_more.o_seen = 0;
    end loop;
    return p_done;
end;
$$;
comment on function ojs._serve_level_without_lane(ojs.dispatch_state, text, int, int, int, ojs.ask, ojs.decided) is
'Adds jobs of one level to p_done, as ojs._serve_without_lane.
p_own: jobs of that priority only, in a queue with priority_scope tenant (null: of each tenant''s
highest one).';

create or replace function ojs._claim_without_lane(
    p_state ojs.dispatch_state, p_queue text, p_priority int, p_own int, p_reach int, p_count int, p_ask ojs.ask, p_done ojs.decided,
    out o_done ojs.decided, out o_seen int
)
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_low    numeric := coalesce((select l.low from unnest(p_state.levels) l where l.priority = p_priority), 0);
    v_unit   ojs.unit := coalesce(p_state.unit, 'jobs');
    v_only   text[] := p_ask.tenants;
    v_but    text[] := p_ask.except_tenants;
    v_bytes  bigint := p_ask.max_bytes - p_done.bytes;
    v_rules  boolean := (select r.rules from ojs._rules_there() r);
    v_limits record;
    v_uncounted ojs.uncounted;
begin
    o_seen := 0;
    o_done := ojs._nothing();
    if v_rules then
        select * into v_limits from ojs._lock_usage(p_queue, p_priority, v_low, p_reach,
            case when p_reach < 10000 then p_count else p_reach / 10 end, v_only, v_but, true);
        v_uncounted := v_limits.o_uncounted;
        p_count := least(p_count, v_limits.o_capacity);
        -- Until this transaction ends no other session can give these tenants jobs, so limit how
        -- long it may idle. A tenant's login keeps its own timeout.
        perform ojs._guard(false) where v_limits.o_locked and ojs.current_tenant() is null;
    end if;
    with due as materialized (
        select d.nth::int, d.tenant_id, d.seq, d.id, d.place, d.price
        from ojs._due(p_queue, p_priority, v_low, p_reach, v_only, v_but, true, v_rules, v_uncounted, v_unit, v_now) d
        where p_state.own_order is not true and d.id is not null
        union all
        select d.* from ojs._own_due(p_queue, v_low, p_reach, v_only, v_but, p_own, v_rules, v_uncounted, v_unit, v_now) d
        where p_state.own_order
        order by nth
    ), held as materialized (
        select d.nth, d.tenant_id, d.id, d.seq, d.price, j.priority, j.place, j.bytes from due d
        cross join lateral (select j.ctid as place, j.priority,
                ojs._bytes(j.args, j.meta, j.options, j.extra, j.errors, j.retry, j.tags) as bytes
            from ojs.job j
            -- Without p_done the same job could be dealt twice: skip locked does not pass jobs that
            -- this transaction has locked itself.
            where j.ctid = d.place and j.id = d.id and j.state = 'available' and j.id <> all (p_done.ids) for update skip locked) j
        limit p_count
    ), kept as materialized (
        select h.* from (select h.*, sum(h.bytes) over (order by h.nth) as size, row_number() over (order by h.nth) as first from held h) h
        where h.size <= v_bytes or h.first = 1 and p_done.ids = '{}'
    ), noted as (
        -- jobs is 0: ojs.lease counts these jobs. owed and price are what the next fold charges.
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, owed, price, lo, hi)
        select k.tenant_id, p_queue, k.priority, 'available', 'active', 0, count(*), sum(k.price), min(k.seq), max(k.seq) from kept k
            group by k.tenant_id, k.priority
    )
    select coalesce(array_agg(k.id order by k.nth), '{}'), coalesce(array_agg(k.place order by k.nth), '{}'),
        coalesce(array_agg(case when v_unit = 'time' then k.price end order by k.nth), '{}'), coalesce(sum(k.bytes), 0),
        count(*) < (select count(*) from held), (select count(*) from due)
    into o_done.ids, o_done.places, o_done.charged, o_done.bytes, o_done.cut, o_seen from kept k;
    -- A tenant whose count is locked gives no due job now, but tenants behind it may: count it as
    -- seen.
    o_seen := o_seen + coalesce(cardinality(v_uncounted.busy), 0);
end;
$$;
comment on function ojs._claim_without_lane(ojs.dispatch_state, text, int, int, int, int, ojs.ask, ojs.decided) is
'Locks up to p_count jobs of one level, and journals one row for each tenant and priority, by which
the next fold charges them.
p_reach: of how many due jobs; p_own: as for ojs._serve_level_without_lane.
o_done: the locked jobs; o_seen: how many jobs were due, and how many tenants'' counts were locked
by other sessions.';

create or replace view ojs._handed with (security_invoker = true) as
select 0 as request, j.* from ojs.job j where false;
comment on view ojs._handed is
'Row type of ojs.fetch_many; holds no rows.
request: for which request of the call, from 1. The other columns are those of the job. Four kinds
of rows have no job:
- a worker_id alone: that worker is to get nothing (ojs.direct_worker);
- worker_id and meta: the worker has registered with another pool, strategy or weights than this
call has; its requests are to be made again with those in meta;
- worker_id and request: the worker''s concurrency allows at most so many jobs (attempt) for this
request (least-loaded);
- request 0: the call ended early, and there may be more jobs.';
