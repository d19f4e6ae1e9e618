-- +goose Up
-- Between queues where a decision plans job by job: with a minimum for each queue (starvation prevention), and where the queue with the
-- most jobs goes first. Deployments that ask for neither never come here.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._serve_planned(p_ask ojs.ask, p_count int, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    -- Each dispatch looks at each queue. A thousand jobs of a hundred queues would keep all others waiting for a second.
    v_most     int := least(p_count, 20000 / cardinality(p_ask.queues));
    v_weights  int[] := ojs._queue_weights(p_ask);
    v_rotation ojs.rotation := ojs._rotation(p_ask, v_weights);
    v_open     int[] := ojs._with_work(p_ask.queues, p_ask.freed);
    v_ratio    numeric := least(coalesce(p_ask.ratio, 0), 1::numeric / cardinality(p_ask.queues));
    v_depths   bigint[] := case when p_ask.strategy = 'least-loaded' then ojs._depths(p_ask.queues) end;
    v_plan     int[];
    v_from     int[] := '{}';
    v_line     int[] := '{}';
    v_got      int;
    v_asked    int[];
    v_short    int[];
    v_q        int;
    v_want     int;
    v_stop     boolean := false;
begin
    v_rotation.owed := ojs._owed_by_time(v_rotation, v_open, ojs.now() - p_ask.rotation);
    while cardinality(p_done.ids) < v_most and v_open <> '{}' and not v_stop loop
        v_plan := ojs._plan_queues(p_ask.strategy, v_open, v_rotation, v_depths, v_ratio, v_most - cardinality(p_done.ids));
        v_asked := '{}';
        v_short := '{}';
        for v_q, v_want in
            select p.q, count(*) from unnest(v_plan) with ordinality p(q, n) group by p.q order by min(p.n)
        loop
            p_done := ojs._serve_queue(p_ask.queues[v_q], cardinality(v_from) + v_want, p_ask, p_done);
            v_got := cardinality(p_done.ids) - cardinality(v_from);
            v_from := v_from || array_fill(v_q, array[v_got]);
            v_asked := v_asked || v_q;
            v_stop := p_done.cut or v_got < v_want and ojs._turns_to_come(p_ask, p_ask.queues[v_q]);
            if v_got < v_want then
                v_plan := ojs._first_of(v_plan, v_q, v_got);
                v_short := v_short || v_q;
            end if;
            exit when v_stop;
        end loop;
        -- The queues behind have not been asked.
        v_plan := array(select p.q from unnest(v_plan) with ordinality p(q, n) where not v_stop or p.q = any (v_asked) order by p.n);
        v_line := v_line || v_plan;
        -- One that is cut with no jobs pays. Else the others would wait until it is through with its ended jobs, which may be millions.
        v_rotation := ojs._after_plan(v_rotation, v_open, v_plan || array(select v_q where p_done.cut and v_got = 0), v_ratio,
            ojs.now(), v_short);
        v_depths := array(select d.jobs - (select count(*) from unnest(v_plan) p where p = d.q)
            from unnest(v_depths) with ordinality d(jobs, q) order by d.q);
        v_open := array(select o from unnest(v_open) with ordinality u(o, n) where o <> all (v_short) order by n);
    end loop;
    if v_line <> '{}' or p_done.cut then
        p_done := ojs._in_line(p_done, v_from, v_line);
        perform ojs._rotate(v_rotation, coalesce((select min(v_rotation.times[o])
            from unnest(ojs._with_work(p_ask.queues, p_ask.freed)) o), 0), p_ask.freed);
    end if;
    p_done.cut := p_done.cut or v_most < p_count and cardinality(p_done.ids) = v_most;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve_planned(ojs.ask, int, ojs.decided) is
'Adds jobs of several queues to p_done, which has none, until it has p_count, as ojs._plan_queues says. Where a queue has fewer jobs than
are planned, the rest is planned anew without it. Stops early (cut) at 20000 dispatches divided by the number of queues.';

-- +goose StatementBegin
create function ojs._plan_queues(
    p_strategy text, p_open int[], p_rotation ojs.rotation, p_depths bigint[], p_ratio numeric, p_count int
) returns int[]
language plpgsql
as $$
declare
    v_plan int[] := '{}';
    v_next int;
    v_best numeric;
    v_key  numeric;
    v_q    int;
begin
    for i in 1 .. p_count loop
        v_next := null;
        foreach v_q in array p_open loop
            -- The lowest goes next. Who is owed a dispatch goes before all others.
            v_key := case when p_rotation.owed[v_q] >= 1 then -1e18 - p_rotation.owed[v_q]
                when p_strategy = 'strict' then 0
                when p_strategy = 'least-loaded' then -p_depths[v_q]
                else p_rotation.times[v_q] end;
            if v_next is null or v_key < v_best then
                v_next := v_q;
                v_best := v_key;
            end if;
        end loop;
        v_plan := v_plan || v_next;
        p_rotation := ojs._after_plan(p_rotation, p_open, array[v_next], p_ratio, null);
        p_depths[v_next] := p_depths[v_next] - 1;
    end loop;
    return v_plan;
end;
$$;
-- +goose StatementEnd
comment on function ojs._plan_queues(text, int[], ojs.rotation, bigint[], numeric, int) is
'From which of the queues p_open each of the next p_count jobs is to come, as if all had enough: by the strategy, but a queue that is owed a
dispatch goes first. p_depths: how many jobs each has.';

-- +goose StatementBegin
create function ojs._after_plan(
    p_rotation ojs.rotation, p_open int[], p_plan int[], p_ratio numeric, p_now timestamptz, p_short int[] default '{}'
) returns ojs.rotation
language plpgsql
as $$
declare
    v_q int;
    v_o int;
begin
    foreach v_q in array p_plan loop
        foreach v_o in array p_open loop
            p_rotation.owed[v_o] := p_rotation.owed[v_o] + p_ratio;
        end loop;
        p_rotation.owed[v_q] := greatest(p_rotation.owed[v_q] - 1, 0);
        -- A queue that goes for its minimum pays, too, but never for more than one dispatch ahead.
        p_rotation.times[v_q] := least(p_rotation.times[v_q], (select min(p_rotation.times[o]) from unnest(p_open) o)
            + 1::numeric / p_rotation.weights[v_q]) + 1::numeric / p_rotation.weights[v_q];
        if p_now is not null then
            p_rotation.served[v_q] := p_now;
        end if;
    end loop;
    if p_now is not null then
        for v_q in 1 .. cardinality(p_rotation.queues) loop
            if v_q <> all (p_open) then
                p_rotation.owed[v_q] := 0;
                p_rotation.served[v_q] := p_now;
            elsif v_q = any (p_short) then
                p_rotation.owed[v_q] := least(p_rotation.owed[v_q], 1);
            end if;
        end loop;
    end if;
    return p_rotation;
end;
$$;
-- +goose StatementEnd
comment on function ojs._after_plan(ojs.rotation, int[], int[], numeric, timestamptz, int[]) is
'Where a round stands after dispatches from the queues p_plan: each of p_open is owed p_ratio of a dispatch more with each, and its own
counts. So in any stretch of d dispatches a queue with work gets at least floor(ratio * d) - 1 of them. p_now: they were made now.
p_short: those of p_open that could not give what was planned, and save up no minimum for later.';

-- +goose StatementBegin
create function ojs._owed_by_time(p_rotation ojs.rotation, p_open int[], p_before timestamptz) returns numeric[]
language plpgsql
as $$
begin
    return array(select case when p_rotation.served[o.q] <= p_before and o.q = any (p_open) then greatest(o.owed, 1) else o.owed end
        from unnest(p_rotation.owed) with ordinality o(owed, q) order by o.q);
end;
$$;
-- +goose StatementEnd
comment on function ojs._owed_by_time(ojs.rotation, int[], timestamptz) is
'What the queues are owed when those that gave no job since p_before go next.';

-- +goose StatementBegin
create function ojs._first_of(p_plan int[], p_q int, p_count int) returns int[]
language plpgsql
as $$
begin
    return array(select p.q from (select u.q, u.n, count(*) filter (where u.q = p_q) over (order by u.n) as nth
            from unnest(p_plan) with ordinality u(q, n)) p
        where p.q <> p_q or p.nth <= p_count order by p.n);
end;
$$;
-- +goose StatementEnd
comment on function ojs._first_of(int[], int, int) is 'A plan with only the first p_count dispatches of one of its queues.';

-- +goose StatementBegin
create function ojs._in_line(p_done ojs.decided, p_from int[], p_line int[]) returns ojs.decided
language plpgsql
as $$
begin
    select coalesce(array_agg(d.id order by l.n), '{}'), coalesce(array_agg(d.place order by l.n), '{}'),
        coalesce(array_agg(d.charged order by l.n), '{}')
    into p_done.ids, p_done.places, p_done.charged
    from (select u.*, row_number() over (partition by u.q order by u.n) as nth
        from unnest(p_done.ids, p_done.places, p_done.charged, p_from) with ordinality u(id, place, charged, q, n)) d
    join (select u.*, row_number() over (partition by u.q order by u.n) as nth from unnest(p_line) with ordinality u(q, n)) l
        on l.q = d.q and l.nth = d.nth;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._in_line(ojs.decided, int[], int[]) is
'Puts jobs, of which p_from says from which queue each came, into the order of queues p_line.';

-- +goose StatementBegin
create function ojs._depths(p_queues text[]) returns bigint[]
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
-- +goose StatementEnd
comment on function ojs._depths(text[]) is 'How many jobs are available in each of the queues.';
reset role;
