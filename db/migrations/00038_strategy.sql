-- +goose Up
-- Between queues: which of the queues that a FETCH names has the next job. A strategy says how many jobs each of them may give and in which
-- order these stand; what goes first within a queue is decided by ojs._serve_queue (decide).
set local role ojs_owner;
set local check_function_bodies = off;

create type ojs.ask as (
    queues text[], count int, tenant text, counts boolean, aside boolean, others jsonb, requests int[], starts int[], workers text[],
    lease_ms int[], max_bytes bigint, strategy text, weights jsonb, pool int, limited boolean, tenants text[], but text[],
    exclusive boolean, ratio numeric, rotation interval,
    freed text[]
);
comment on type ojs.ask is
'What a FETCH asks for: queues that are not paused; how many jobs in sum; for which tenant (null: for all); whether there are rules for
which decisions count; whether the caller must not hold up decisions; requests that are left out (ojs._no_jobs); and of the others in step
the number of the request, its first place, its worker, and its lease in milliseconds (0: the job''s own); bytes in sum; how it goes over
several queues; its pool and whether that has a max_concurrency; of which tenants (null: of all), and of which not (null: of none),
whether nobody else gets jobs of these tenants; the pool''s min_dispatch_ratio and rotation_interval; and tenants of
these that have room again and not all their turns yet.';

create type ojs.decided as (ids uuid[], places tid[], charged real[], turns bigint[], bytes bigint, skimmed int, cut boolean);
comment on type ojs.decided is
'Jobs that the transaction has locked for its caller, in order: their ids, the places of their rows, how many seconds their tenants were
charged (null where they do not share by time), their places in the order of all decisions (null: the next ones), their bytes in sum, how
many rows were passed over, and whether it stopped early, so that there may be more.';

-- +goose StatementBegin
create function ojs._with(p_done ojs.decided, p_more ojs.decided) returns ojs.decided
language plpgsql immutable
as $$
begin
    p_done.ids := p_done.ids || p_more.ids;
    p_done.places := p_done.places || p_more.places;
    p_done.charged := p_done.charged || p_more.charged;
    p_done.bytes := p_done.bytes + p_more.bytes;
    p_done.skimmed := p_done.skimmed + p_more.skimmed;
    p_done.cut := p_done.cut or p_more.cut is true;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._with(ojs.decided, ojs.decided) is 'What is decided, and more behind it, in the order of the next decision.';

-- +goose StatementBegin
create function ojs._serve_queues(p_ask ojs.ask, p_count int, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_queue text;
begin
    if cardinality(p_ask.queues) > 1 and (p_ask.ratio is not null or p_ask.strategy is not distinct from 'least-loaded') then
        return ojs._serve_planned(p_ask, p_count, p_done);
    elsif cardinality(p_ask.queues) > 1 and p_ask.strategy is distinct from 'strict' then
        return ojs._serve_round(p_ask, p_count, p_done);
    end if;
    foreach v_queue in array p_ask.queues loop
        p_done := ojs._serve_queue(v_queue, p_count, p_ask, p_done);
        exit when cardinality(p_done.ids) = p_count or p_done.cut or ojs._turns_to_come(p_ask, v_queue);
    end loop;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve_queues(ojs.ask, int, ojs.decided) is
'Adds jobs of the queues to p_done, which has none, until it has p_count: by the strategy of the FETCH.';

-- +goose StatementBegin
create function ojs._turns_to_come(p_ask ojs.ask, p_queue text) returns boolean
language plpgsql stable
as $$
begin
    return p_ask.freed <> '{}' and ojs._freed_priority(p_ask.freed, p_queue) is not null;
end;
$$;
-- +goose StatementEnd
comment on function ojs._turns_to_come(ojs.ask, text) is
'Whether a queue that gave fewer jobs than wanted has tenants with room whose turns are not back yet: then the decision serves all queues
again with these (ojs._serve_again), and no other queue gets its places.';

-- Round-robin is this with weights of 1. Weights are shares of dispatches whatever the queues hold: by virtual time, as tenants in a queue,
-- and so exact in every answer, where a random choice would be right on average alone.
-- +goose StatementBegin
create function ojs._serve_round(p_ask ojs.ask, p_count int, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_weights  int[] := ojs._queue_weights(p_ask);
    v_rotation ojs.rotation := ojs._rotation(p_ask, v_weights);
    v_times    numeric[] := v_rotation.times;
    v_open     int[] := ojs._with_work(p_ask.queues, p_ask.freed);
    v_tags     numeric[] := '{}';
    v_from     int[] := '{}';
    v_short    int[] := '{}';
    v_now      numeric;
    v_before   int;
    v_got      int;
    v_q        int;
    v_want     int;
    v_later    boolean := false;
begin
    while cardinality(p_done.ids) < p_count and v_open <> '{}' and not (p_done.cut or v_later) loop
        for v_q, v_want in select * from ojs._next_queues(v_open, v_times, v_weights, p_count - cardinality(p_done.ids)) loop
            v_before := cardinality(p_done.ids);
            p_done := ojs._serve_queue(p_ask.queues[v_q], v_before + v_want, p_ask, p_done);
            v_got := cardinality(p_done.ids) - v_before;
            v_tags := v_tags || array(select v_times[v_q] + (k - 1)::numeric / v_weights[v_q] from generate_series(1, v_got) k);
            v_from := v_from || array_fill(v_q, array[v_got]);
            v_times[v_q] := v_times[v_q] + v_got::numeric / v_weights[v_q];
            if p_done.cut and p_done.ids = '{}' then
                -- Else the others would wait until it is through with its ended jobs, which may be millions. One that is cut for the bytes
                -- behind others keeps its turn.
                v_times[v_q] := v_times[v_q] + 1::numeric / v_weights[v_q];
            end if;
            v_later := v_got < v_want and ojs._turns_to_come(p_ask, p_ask.queues[v_q]);
            exit when p_done.cut or v_later;
            if v_got < v_want then
                v_open := array_remove(v_open, v_q);
                v_short := v_short || v_q;
            end if;
        end loop;
    end loop;
    v_now := coalesce((select max(t) from unnest(v_tags) t), 0);
    -- Else a queue that has work which this caller may not have, or no room, would fall behind without end, and then go before all others.
    foreach v_q in array v_short loop
        v_times[v_q] := greatest(v_times[v_q], v_now - 1::numeric / v_weights[v_q]);
    end loop;
    if v_tags <> '{}' then
        select array_agg(g.id order by g.tag, g.q), array_agg(g.place order by g.tag, g.q), array_agg(g.charged order by g.tag, g.q)
        into p_done.ids, p_done.places, p_done.charged
        from unnest(p_done.ids, p_done.places, p_done.charged, v_tags, v_from) g(id, place, charged, tag, q);
    end if;
    if v_tags <> '{}' or p_done.cut then
        v_rotation.times := v_times;
        perform ojs._rotate(v_rotation, v_now, p_ask.freed);
    end if;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve_round(ojs.ask, int, ojs.decided) is
'Adds jobs of several queues to p_done, which has none, until it has p_count: each queue with jobs gets its share by weight, beginning with
the first one listed, and in the order in which it is due. Goes on where the last decision over the same queues and weights stopped. Where
it is cut for the bytes, the queues whose turn did not come are first next time.';

-- +goose StatementBegin
create function ojs._with_work(p_queues text[], p_freed text[]) returns int[]
language plpgsql stable
as $$
begin
    return array(select q.n::int from unnest(p_queues) with ordinality q(queue, n) cross join lateral ojs._backlog(q.queue) b
        where b.priorities <> '{}' or p_freed <> '{}' and ojs._freed_priority(p_freed, q.queue) is not null order by q.n);
end;
$$;
-- +goose StatementEnd
comment on function ojs._with_work(text[], text[]) is
'Which of the queues have work, by their numbers from 1. p_freed: tenants that have room again and not all their turns yet.';

-- +goose StatementBegin
create function ojs._queue_weights(p_ask ojs.ask) returns int[]
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
-- +goose StatementEnd
comment on function ojs._queue_weights(ojs.ask) is
'The weights of the queues of a FETCH, in step: 1 unless the strategy is weighted and has others.';

-- +goose StatementBegin
create function ojs._queue_leads(p_weights int[]) returns numeric[]
language sql immutable
as $$
    select array_agg(case when s.alike then 0 else (2 * w.q - 1)::numeric / (2 * cardinality(p_weights)) / w.weight end order by w.q)
    from unnest(p_weights) with ordinality w(weight, q)
    cross join (select min(w) = max(w) as alike from unnest(p_weights) w) s
$$;
-- +goose StatementEnd
comment on function ojs._queue_leads(int[]) is
'How long after now the first job of each queue is due that comes: spread over a step of each, so that many light queues that come together
do not all go before a heavy one. 0 where all weights are alike: then the order is that in which the queues are listed.';

-- +goose StatementBegin
create function ojs._next_queues(p_open int[], p_times numeric[], p_weights int[], p_count int) returns table (q int, jobs int)
language sql stable
as $$
    -- No queue is behind by more than a step, so none of them is due more than its share and some. Where that is too few, the caller asks
    -- again.
    select d.q, count(*)::int
    from (
        select o.q, p_times[o.q] + (k - 1)::numeric / p_weights[o.q] as tag
        from unnest(p_open) o(q)
        cross join (select sum(p_weights[o.q]) as weight, count(*) as n from unnest(p_open) o(q)) s
        cross join lateral generate_series(1, least(p_count, 1 + ceil(p_weights[o.q] * (p_count + 2 * s.n)::numeric / s.weight))::int) k
        order by tag, o.q limit p_count
    ) d
    group by d.q order by min(d.tag), d.q
$$;
-- +goose StatementEnd
comment on function ojs._next_queues(int[], numeric[], int[], int) is
'How many of the next p_count jobs are due to each of the queues p_open, as if all had enough, in the order in which they begin. Queues are
numbers from 1 in the order listed; p_times: when the next job of each is due.';

-- +goose StatementBegin
create function ojs._rotation(p_ask ojs.ask, p_weights int[]) returns ojs.rotation
language plpgsql stable
as $$
declare
    -- A list of a hundred queues does not fit into an index.
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
-- +goose StatementEnd
comment on function ojs._rotation(ojs.ask, int[]) is
'Where the round over the queues of a FETCH stands: of its pool, with these weights. rev is null: it begins.';

-- +goose StatementBegin
create function ojs._rotate(p_rotation ojs.rotation, p_now numeric, p_freed text[]) returns void
language plpgsql
as $$
declare
    v_working int[] := ojs._with_work(p_rotation.queues, p_freed);
    -- A queue without work begins anew: it keeps no credit.
    v_times   numeric[] := array(select case when t.q = any (v_working) then t.due else greatest(t.due, p_now + t.lead) end - p_now
        from unnest(p_rotation.times, ojs._queue_leads(p_rotation.weights)) with ordinality t(due, lead, q) order by t.q);
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
-- +goose StatementEnd
comment on function ojs._rotate(ojs.rotation, numeric, text[]) is
'Keeps where the round over some queues stands. p_now: when the last job was due. p_freed: as for ojs._with_work.';
reset role;
