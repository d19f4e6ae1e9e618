-- A FETCH that names several queues: these functions decide from which queue each job comes. Within
-- a queue ojs._serve_queue decides. The weight of a queue is its share of the dispatches; how many
-- jobs the queues hold does not matter. Queues are chosen by virtual time, as tenants in a queue
-- are, so the shares are exact in every answer. A random choice would be right on average only.
-- Round-robin is the same with weights of 1.

create or replace function ojs._serve_queues(p_ask ojs.ask, p_news ojs.news, p_count int, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
begin
    if cardinality(p_ask.queues) > 1 and (p_ask.min_ratio is not null or p_ask.strategy is distinct from 'strict') then
        return ojs._serve_planned(p_ask, p_news, p_count, p_done);
    end if;
    for i in 1 .. cardinality(p_news.states) loop
        p_done := ojs._serve_queue(p_news.states[i], p_count, p_ask, p_news, p_done);
        exit when cardinality(p_done.ids) >= p_count or p_done.cut;
    end loop;
    return p_done;
end;
$$;
comment on function ojs._serve_queues(ojs.ask, ojs.news, int, ojs.decided) is
'Adds jobs of the queues to p_done, which has none, until it has p_count, by the strategy of the
FETCH.';

create or replace function ojs._serve_planned(p_ask ojs.ask, p_news ojs.news, p_count int, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    -- Each dispatch reads the numbers of each queue, which takes 1 microsecond or so. 10,000 jobs
    -- of 100 queues would keep other sessions waiting for a second.
    v_most     int := least(p_count, 100000 / cardinality(p_ask.queues));
    v_rotation ojs.rotation := ojs._rotation(p_ask, ojs._queue_weights(p_ask));
    v_states   ojs.dispatch_state[] := ojs._states_of(p_ask.queues, p_news.states);
    v_open     int[] := ojs._with_work(v_states);
    v_ratio    numeric := least(coalesce(p_ask.min_ratio, 0), 1::numeric / cardinality(p_ask.queues));
    v_depths   bigint[] := case when p_ask.strategy = 'least-loaded' then ojs._depths(p_ask.queues) end;
    v_plan     int[];
    v_from     int[] := '{}';
    v_order    int[] := '{}';
    v_asked    int[];
    v_short    int[] := '{}';
    v_got      int;
    v_q        int;
    v_want     int;
begin
    v_rotation.owed := ojs._owed_by_time(v_rotation, v_open, ojs.now() - p_ask.rotation);
    while cardinality(p_done.ids) < v_most and v_open <> '{}' and not p_done.cut loop
        -- Plan as if each queue had enough jobs, serve, and plan the rest again without the queues
        -- that had too few.
        v_plan := ojs._plan_queues(p_ask.strategy, v_open, v_rotation, v_depths, v_ratio, v_most - cardinality(p_done.ids));
        v_asked := '{}';
        for v_q, v_want in
            select p.q, count(*) from unnest(v_plan) with ordinality p(q, n) group by p.q order by min(p.n)
        loop
            p_done := ojs._serve_queue(v_states[v_q], cardinality(v_from) + v_want, p_ask, p_news, p_done);
            v_states[v_q] := p_done.state;
            v_got := cardinality(p_done.ids) - cardinality(v_from);
            v_from := v_from || array_fill(v_q, array[v_got]);
            v_asked := v_asked || v_q;
            if v_got < v_want then
                -- The plan keeps only the jobs that the queue gave: it says which queues pay, and
                -- in which order the jobs go.
                v_plan := ojs._first_of(v_plan, v_q, v_got);
                v_short := v_short || case when not p_done.cut then v_q end;
            end if;
            exit when p_done.cut;
        end loop;
        -- The queues planned after one that was cut have not been served: they do not pay.
        v_plan := array(select p.q from unnest(v_plan) with ordinality p(q, n) where not p_done.cut or p.q = any (v_asked) order by p.n);
        v_order := v_order || v_plan;
        -- A queue that was cut and gave nothing pays as for one job. Otherwise the other queues
        -- would wait until its ended jobs are passed, which may be millions. A queue that was cut
        -- for bytes, after others gave jobs, keeps its time and is next.
        v_rotation := ojs._after_plan(v_rotation, v_open, v_plan || array(select v_q where p_done.cut and p_done.ids = '{}'), v_ratio,
            ojs.now(), v_short);
        v_depths := array(select d.jobs - (select count(*) from unnest(v_plan) p where p = d.q)
            from unnest(v_depths) with ordinality d(jobs, q) order by d.q);
        v_open := array(select o from unnest(v_open) with ordinality u(o, n) where o <> all (v_short) order by n);
    end loop;
    if v_order <> '{}' or p_done.cut then
        p_done := ojs._in_order(p_done, v_from, v_order);
        perform ojs._rotate(v_rotation, v_states, v_short);
    end if;
    p_done.cut := p_done.cut or v_most < p_count and cardinality(p_done.ids) = v_most;
    return p_done;
end;
$$;
comment on function ojs._serve_planned(ojs.ask, ojs.news, int, ojs.decided) is
'Adds jobs of several queues to p_done, which has none, until it has p_count, in the order of
ojs._plan_queues.
If a queue has fewer jobs than planned, the rest is planned again without it. Continues where the
last decision over the same queues and weights stopped. Stops early (cut) at 100000 dispatches
divided by the number of queues.';

create or replace function ojs._states_of(p_queues text[], p_states ojs.dispatch_state[]) returns ojs.dispatch_state[]
language plpgsql immutable
as $$
begin
    return (
        select array(select s::ojs.dispatch_state from unnest(p_queues) with ordinality q(queue, n) left join unnest(p_states) s
            on s.queue = q.queue order by q.n));
end;
$$;
comment on function ojs._states_of(text[], ojs.dispatch_state[]) is
'Returns the states in step with the queues; null: the queue never had work.';

create or replace function ojs._with_work(p_states ojs.dispatch_state[]) returns int[]
language plpgsql immutable
as $$
begin
    return (
        select array(select s.n::int from unnest(p_states) with ordinality s(queue, rev, unit, own_order, levels, idle_at, n)
            where exists (select from unnest(s.levels) l where l.ready > 0) order by s.n));
end;
$$;
comment on function ojs._with_work(ojs.dispatch_state[]) is
'Returns which of the queues have tenants in a ring, by their numbers from 1.';

create or replace function ojs._queue_weights(p_ask ojs.ask) returns int[]
language plpgsql stable
as $$
begin
    if p_ask.strategy is distinct from 'weighted' then
        return array_fill(1, array[cardinality(p_ask.queues)]);
    end if;
    return array(select coalesce((p_ask.weights -> q.queue)::numeric::int, 1)
        from unnest(p_ask.queues) with ordinality q(queue, n) order by q.n);
end;
$$;
comment on function ojs._queue_weights(ojs.ask) is
'Returns the weights of the queues of a FETCH, in step: 1 unless the strategy is weighted and names
another.';

create or replace function ojs._queue_leads(p_weights int[]) returns numeric[]
language plpgsql immutable
as $$
begin
    return (
        select array_agg(case when s.alike then 0 else (2 * w.q - 1)::numeric / (2 * cardinality(p_weights)) / w.weight end order by w.q)
        from unnest(p_weights) with ordinality w(weight, q)
        cross join (select min(w) = max(w) as alike from unnest(p_weights) w) s);
end;
$$;
comment on function ojs._queue_leads(int[]) is
'Returns how long after now the first job of each queue is due when the queue gets work.
The times are spread over one step of each queue, so that many light queues that get work together
do not all go before a heavy one. 0 where all weights are equal: then the queues go in the order in
which they are listed.';

create or replace function ojs._rotation(p_ask ojs.ask, p_weights int[]) returns ojs.rotation
language plpgsql stable
as $$
declare
    -- A hash, because a list of a hundred queues does not fit into an index.
    v_key      bytea := sha256(convert_to(concat(p_ask.pool, ' ', p_ask.queues, p_weights), 'UTF8'));
    v_rotation ojs.rotation;
begin
    select * into v_rotation from ojs.rotation r where r.key = v_key order by r.rev desc limit 1;
    if v_rotation.key is null then
        v_rotation := (v_key, p_ask.pool, p_ask.queues, p_weights, null, ojs._queue_leads(p_weights),
            array_fill(0::numeric, array[cardinality(p_weights)]), array_fill(ojs.now(), array[cardinality(p_weights)]), null);
    end if;
    return v_rotation;
end;
$$;
comment on function ojs._rotation(ojs.ask, int[]) is
'Returns the row of ojs.rotation for the pool, queues and weights of a FETCH; with rev null it is
new, and not written yet.';

create or replace function ojs._plan_queues(
    p_strategy text, p_open int[], p_rotation ojs.rotation, p_depths bigint[], p_ratio numeric, p_count int
) returns int[]
language plpgsql
as $$
declare
    v_plan  int[] := '{}';
    v_times numeric[] := p_rotation.times;
    v_owed  numeric[] := p_rotation.owed;
    v_one   int;
    v_next  int;
    v_best  numeric;
    v_key   numeric;
    v_low   numeric;
    v_q     int;
begin
    if cardinality(p_open) = 1 then
        return array_fill(p_open[1], array[p_count]);
    end if;
    for i in 1 .. p_count loop
        v_next := null;
        v_low := null;
        foreach v_q in array p_open loop
            -- The queue with the lowest key is next. One that is owed a dispatch goes before all
            -- that are not.
            v_key := case when v_owed[v_q] >= 1 then -1e18 - v_owed[v_q] when p_strategy = 'strict' then 0
                when p_strategy = 'least-loaded' then -p_depths[v_q] else v_times[v_q] end;
            if v_next is null or v_key < v_best then
                v_next := v_q;
                v_best := v_key;
            end if;
            v_low := least(v_low, v_times[v_q]);
        end loop;
        v_plan := v_plan || v_next;
        if p_ratio > 0 then
            foreach v_q in array p_open loop
                v_owed[v_q] := v_owed[v_q] + p_ratio;
            end loop;
        end if;
        v_owed[v_next] := greatest(v_owed[v_next] - 1, 0);
        -- A queue that goes for its minimum pays too, but its time is never more than two steps
        -- above the lowest: it must not pay for its minimum for long.
        v_times[v_next] := least(v_times[v_next], v_low + 1::numeric / p_rotation.weights[v_next])
            + 1::numeric / p_rotation.weights[v_next];
        p_depths[v_next] := p_depths[v_next] - 1;
    end loop;
    return v_plan;
end;
$$;
comment on function ojs._plan_queues(text, int[], ojs.rotation, bigint[], numeric, int) is
'Returns from which of the queues p_open each of the next p_count jobs is to come, as if all had
enough jobs.
By the strategy, but a queue that is owed a dispatch goes first. p_depths: how many jobs each queue
has.';

create or replace function ojs._after_plan(
    p_rotation ojs.rotation, p_open int[], p_plan int[], p_ratio numeric, p_now timestamptz, p_short int[] default '{}'
) returns ojs.rotation
language plpgsql
as $$
declare
    v_times numeric[] := p_rotation.times;
    v_owed  numeric[] := p_rotation.owed;
    v_low   numeric;
    v_q     int;
    v_o     int;
begin
    foreach v_q in array p_plan loop
        v_low := null;
        foreach v_o in array p_open loop
            v_owed[v_o] := v_owed[v_o] + p_ratio;
            -- A queue that has run out is no bound: its time does not move, and below it the other
            -- queues would give jobs without paying.
            v_low := least(v_low, case when v_o <> all (p_short) then v_times[v_o] end);
        end loop;
        v_owed[v_q] := greatest(v_owed[v_q] - 1, 0);
        -- As in ojs._plan_queues.
        v_times[v_q] := least(v_times[v_q], v_low + 1::numeric / p_rotation.weights[v_q]) + 1::numeric / p_rotation.weights[v_q];
        p_rotation.served[v_q] := p_now;
    end loop;
    for v_q in 1 .. cardinality(p_rotation.queues) loop
        if v_q <> all (p_open) then
            v_owed[v_q] := 0;
            p_rotation.served[v_q] := p_now;
        elsif v_q = any (p_short) then
            v_owed[v_q] := least(v_owed[v_q], 1);
        end if;
    end loop;
    p_rotation.times := v_times;
    p_rotation.owed := v_owed;
    return p_rotation;
end;
$$;
comment on function ojs._after_plan(ojs.rotation, int[], int[], numeric, timestamptz, int[]) is
'Returns a rotation after dispatches from the queues p_plan.
With each dispatch each queue of p_open is owed p_ratio of a dispatch more, and the queue served one
less. So in any d dispatches in a row a queue with work gets at least floor(ratio * d) - 1.
p_now: when they were made; p_short: queues of p_open that could not give what was planned, and so
save up no minimum for later.';

create or replace function ojs._owed_by_time(p_rotation ojs.rotation, p_open int[], p_before timestamptz) returns numeric[]
language plpgsql
as $$
begin
    if p_before is null then
        return p_rotation.owed;
    end if;
    return array(select case when p_rotation.served[o.q] <= p_before and o.q = any (p_open) then greatest(o.owed, 1) else o.owed end
        from unnest(p_rotation.owed) with ordinality o(owed, q) order by o.q);
end;
$$;
comment on function ojs._owed_by_time(ojs.rotation, int[], timestamptz) is
'Returns what the queues are owed when queues with work that gave no job since p_before go next
(null: no change).';

create or replace function ojs._first_of(p_plan int[], p_q int, p_count int) returns int[]
language plpgsql
as $$
begin
    return array(select p.q from (select u.q, u.n, count(*) filter (where u.q = p_q) over (order by u.n) as nth
            from unnest(p_plan) with ordinality u(q, n)) p
        where p.q <> p_q or p.nth <= p_count order by p.n);
end;
$$;
comment on function ojs._first_of(int[], int, int) is
'Returns a plan with only the first p_count dispatches of one of its queues.';

create or replace function ojs._in_order(p_done ojs.decided, p_from int[], p_order int[]) returns ojs.decided
language plpgsql
as $$
begin
    select coalesce(array_agg(d.id order by l.n), '{}'), coalesce(array_agg(d.place order by l.n), '{}'),
        coalesce(array_agg(d.charged order by l.n), '{}')
    into p_done.ids, p_done.places, p_done.charged
    from (select u.*, row_number() over (partition by u.q order by u.n) as nth
        from unnest(p_done.ids, p_done.places, p_done.charged, p_from) with ordinality u(id, place, charged, q, n)) d
    join (select u.*, row_number() over (partition by u.q order by u.n) as nth from unnest(p_order) with ordinality u(q, n)) l
        on l.q = d.q and l.nth = d.nth;
    return p_done;
end;
$$;
comment on function ojs._in_order(ojs.decided, int[], int[]) is
'Puts jobs into the order of queues p_order. p_from: from which queue each job came.';

create or replace function ojs._rotate(p_rotation ojs.rotation, p_states ojs.dispatch_state[], p_short int[]) returns void
language plpgsql
as $$
declare
    v_working int[] := ojs._with_work(p_states);
    -- The time of the queue that is next; without queues with work, that of the last job. All times
    -- are stored relative to it.
    v_now     numeric := coalesce((select min(p_rotation.times[w]) from unnest(v_working) w where w <> all (p_short)),
        (select min(p_rotation.times[w]) from unnest(v_working) w),
        (select max(t.due - 1::numeric / t.weight) from unnest(p_rotation.times, p_rotation.weights) t(due, weight)));
    -- A queue without work begins anew, so it saves up no credit. A queue with work that this
    -- caller may not have stays at most one step below other queues; otherwise it would fall behind
    -- without end, and later go before all others.
    v_times   numeric[] := array(select case when t.q <> all (v_working) then greatest(t.due, v_now + t.lead)
            when t.q = any (p_short) then greatest(t.due, v_now - 1::numeric / t.weight) else t.due end - v_now
        from unnest(p_rotation.times, ojs._queue_leads(p_rotation.weights), p_rotation.weights) with ordinality t(due, lead, weight, q)
        order by t.q);
begin
    if p_rotation.rev is null then
        insert into ojs.rotation (key, pool, queues, weights, rev, times, owed, served)
        values (p_rotation.key, p_rotation.pool, p_rotation.queues, p_rotation.weights, 1, v_times, p_rotation.owed, p_rotation.served);
    else
        update ojs.rotation r set rev = r.rev + 1, times = v_times, owed = p_rotation.owed, served = p_rotation.served, used_at = ojs.now()
        where r.key = p_rotation.key and r.rev = p_rotation.rev;
    end if;
end;
$$;
comment on function ojs._rotate(ojs.rotation, ojs.dispatch_state[], int[]) is
'Writes a rotation. p_states: of its queues, in step; p_short: queues that could not give what was
planned.';

create or replace function ojs._depths(p_queues text[]) returns bigint[]
language plpgsql stable
as $$
begin
    return array(select coalesce(sum(n.available), 0)::bigint
        from unnest(p_queues) with ordinality q(queue, n)
        left join (
            select t.queue, t.available from ojs.tally t where t.queue = any (p_queues)
            union all
            select r.queue, r.available from ojs._recent() r where r.queue = any (p_queues)
        ) n on n.queue = q.queue
        group by q.n order by q.n);
end;
$$;
comment on function ojs._depths(text[]) is
'Returns how many jobs are available in each of the queues.';
