-- +goose Up
-- The decision: one at a time, under the row of ojs.lane. It takes in what is new, asks who is due, locks the jobs, and books. The
-- caller hands them out. Locked in this order: the lane, then jobs with skip locked; nothing is waited for in between.
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._decide(p_ask ojs.ask, p_count int) returns ojs.decided
language plpgsql
as $$
declare
    v_done  ojs.decided := ojs._nothing();
    v_until timestamptz := ojs.now() + ojs._patience();
    v_ahead text[];
    v_counts boolean;
    v_more  boolean;
begin
    -- Since this call began, a queue may have been paused, or dispatch held.
    select ojs._open_queues(p_ask.queues), array(select q.queue from unnest(p_ask.queues) q(queue)
        cross join lateral ojs._turn_mark(q.queue) m where m.hi >= m.lo or m.held > 0), f.counts
    into p_ask.queues, v_ahead, v_counts from ojs._folded() f;
    if p_ask.queues = '{}' then
        return v_done;
    elsif v_ahead <> '{}' then
        -- What was decided ahead is decided again, with what came since.
        perform ojs._revoke(q.queue) from unnest(v_ahead) q(queue);
    end if;
    loop
        v_more := ojs._fold(p_ask.queues);
        if p_ask.limited then
            p_count := least(p_count, ojs._pool_room(p_ask.pool));
        end if;
        p_ask.freed := case when v_counts then ojs._freed(p_ask.queues, p_ask.tenants, p_ask.but) end;
        v_done := ojs._serve_queues(p_ask, p_count, v_done);
        -- Another fold may move cursors back to the jobs just locked, which are still available, and they would be decided twice.
        exit when v_done.ids <> '{}' or v_done.cut or not v_more or ojs.now() > v_until;
    end loop;
    if v_counts and cardinality(v_done.ids) < p_count and not v_done.cut then
        v_done := ojs._serve_again(p_ask, p_count, v_done);
    end if;
    v_done.cut := v_done.cut or v_more and cardinality(v_done.ids) < p_count;
    return v_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._decide(ojs.ask, int) is
'The next p_count jobs for what a FETCH asks for, locked and in fair order, of at most its max_bytes in sum but one at least. Their
tenants have been charged. Stops early (cut) for the bytes, when it has passed over 20000 rows of jobs that ended, and when more has
committed, or more tenants have room again, than can be taken in at once, because others wait. Only under the row of ojs.lane.';

-- +goose StatementBegin
create function ojs._serve_again(p_ask ojs.ask, p_count int, p_done ojs.decided) returns ojs.decided
language plpgsql
as $$
declare
    v_until  timestamptz := clock_timestamp() + ojs._patience();
    v_bytes  bigint := p_ask.max_bytes;
    v_ahead  text[] := array(select b.queue from ojs._blocking(p_ask.queues) b);
    v_before int;
    v_rows   int;
begin
    perform ojs._revoke(q) from unnest(v_ahead) q;
    -- What the last serving left out below those who had no turns yet is served in any case.
    while v_ahead <> '{}' or p_ask.freed <> '{}' loop
        p_done.cut := p_done.bytes >= v_bytes or clock_timestamp() > v_until;
        exit when p_done.cut;
        v_before := cardinality(p_done.ids);
        -- First the queue that serving stopped at, or nothing would be handed out until all are back.
        v_rows := ojs._unpark('{}', coalesce((select array[q.queue] from unnest(p_ask.queues) with ordinality q(queue, n)
            where ojs._turns_to_come(p_ask, q.queue) order by q.n limit 1), p_ask.queues));
        p_ask.freed := ojs._freed(p_ask.queues, p_ask.tenants, p_ask.but);
        p_ask.max_bytes := v_bytes - p_done.bytes;
        p_done := ojs._with(p_done, ojs._serve_queues(p_ask, p_count - v_before, ojs._nothing()));
        exit when cardinality(p_done.ids) >= p_count or p_done.cut or v_rows + cardinality(p_done.ids) = v_before;
        v_ahead := '{}';
    end loop;
    -- Nobody has looked at the others yet.
    p_done.cut := p_done.cut or cardinality(p_done.ids) < p_count
        and exists (select from ojs._slot_mark() m where cardinality(m.freed) > ojs._freed_window(p_ask.queues));
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve_again(ojs.ask, int, ojs.decided) is
'Adds to p_done what tenants may have whose turns have not come back yet because there were so many, or once nobody else can take what was
decided ahead for them in other queues, which counts against the same rules.';

-- +goose StatementBegin
create function ojs._nothing() returns ojs.decided
language sql immutable
as $$ select row('{}', '{}', '{}', null, 0, 0, false)::ojs.decided $$;
-- +goose StatementEnd
comment on function ojs._nothing() is 'Nothing decided yet.';

-- +goose StatementBegin
create function ojs._serve_queue(
    p_queue text, p_count int, p_ask ojs.ask, p_done ojs.decided, p_ahead bigint default null
) returns ojs.decided
language plpgsql
as $$
declare
    c_skim     constant int := 20000;
    v_left     int := p_count - cardinality(p_done.ids);
    v_floor    int := case when p_ask.freed <> '{}' then ojs._freed_priority(p_ask.freed, p_queue) end;
    v_priority int;
    v_limited  boolean;
    v_unit     ojs.unit;
    v_level    ojs.level;
    v_picks    ojs.picks;
    v_skimmed  int;
    v_tenants  int;
begin
    for v_priority, v_limited, v_unit in
        select unnest(b.priorities), b.limited, b.unit from ojs._backlog(p_queue) b
    loop
        exit when v_priority < v_floor;
        if v_limited then
            p_count := least(p_count, cardinality(p_done.ids) + (select r.jobs from ojs._room(p_queue, '') r));
            v_left := p_count - cardinality(p_done.ids);
            exit when v_left <= 0;
        end if;
        select * into v_level from ojs._level(p_queue, v_priority);
        if p_ask.exclusive then
            v_level := ojs._raise_times(v_level, p_ask.tenants);
        end if;
        loop
            v_level := case when v_unit = 'none' then ojs._true_times(v_level, v_left, p_ask) else v_level end;
            v_picks := ojs._claim(v_level, v_left, p_ask, p_ahead is null, v_unit);
            exit when v_picks.spots is null;
            if v_picks.size + p_done.bytes > p_ask.max_bytes / 100 then
                v_picks := ojs._within(v_picks, p_ask.max_bytes - p_done.bytes, cardinality(p_done.ids) = 0, v_level.low);
                exit when cardinality(v_picks.spots) = 0;
            end if;
            v_tenants := v_level.tenants;
            v_level := ojs._charge(v_level, v_picks, p_ask.tenants, p_ask.but, v_unit);
            perform ojs._take_slots(p_queue, v_picks) where v_picks.limited or v_limited;
            if p_ahead is not null then
                perform ojs._keep(v_level, v_picks, p_ahead + cardinality(p_done.ids));
            end if;
            v_skimmed := coalesce((select sum(ojs._skim(p_queue, v_priority, s)) from unnest(v_picks.skims) s), 0)
                -- To find one locked costs four times as much.
                + coalesce((select sum(4 * ojs._skim(p_queue, v_priority, s, true)) from unnest(v_picks.blocked) s), 0);
            p_done := ojs._with_picks(p_done, v_picks, v_skimmed, v_unit = 'time');
            v_left := p_count - cardinality(p_done.ids);
            p_done.cut := p_done.cut or v_left > 0 and p_done.skimmed > c_skim;
            exit when v_left <= 0 or p_done.cut or v_level.tenants = 0
                or v_level.tenants = v_tenants and v_skimmed = 0 and v_picks.ids = array_fill(null::uuid, array[cardinality(v_picks.ids)]);
        end loop;
        p_done.cut := p_done.cut or v_picks.cut is true;
        exit when v_left <= 0 or p_done.cut;
    end loop;
    return p_done;
end;
$$;
-- +goose StatementEnd
comment on function ojs._serve_queue(text, int, ojs.ask, ojs.decided, bigint) is
'Adds jobs of one queue to p_done until it has p_count, highest effective priority first, of the tenants and bytes of the ask. p_ahead:
decides ahead, for whoever takes them: the jobs are not locked but kept in ojs.turn, from that place on.';

-- +goose StatementBegin
create function ojs._claim(p_level ojs.level, p_count int, p_ask ojs.ask, p_lock boolean, p_unit ojs.unit) returns ojs.picks
language plpgsql
as $$
declare
    v_now     timestamptz := ojs.now();
    v_picks   ojs.picks;
    v_tenants text[];
    v_ids     uuid[];
begin
    select array_agg(d.spot) filter (where d.booked), array_agg(d.tenant_id) filter (where d.booked),
        array_agg(d.id) filter (where d.booked), array_agg(d.held) filter (where d.booked), array_agg(d.seq) filter (where d.booked),
        array_agg(d.again) filter (where d.booked), array_agg(d.more) filter (where d.booked), array_agg(d.bytes) filter (where d.booked),
        array_agg(d.price) filter (where d.booked), bool_or(d.limited), least(min(d.vtime) filter (where not d.served), min(d.edge)),
        -- One row each; with distinct, PostgreSQL 16 and later would sort all arrays by tenant.
        array_agg(d.tenant_id) filter (where d.id is null and d.room is distinct from 0), coalesce(sum(d.bytes) filter (where d.dealt), 0),
        array_agg(d.tenant_id) filter (where d.dealt and d.held is null), array_agg(d.id) filter (where d.dealt and d.held is null)
    into v_picks.spots, v_picks.tenants, v_picks.ids, v_picks.places, v_picks.seqs, v_picks.agains, v_picks.more, v_picks.bytes,
        v_picks.prices, v_picks.limited, v_picks.rest, v_picks.skims, v_picks.size, v_tenants, v_ids
    from (
        select d.*, d.dealt or d.id is null as booked, case when p_lock then h.place when d.dealt then d.place end as held
        from ojs._due(p_level.queue, p_level.priority, p_level.low, p_count, p_ask.tenants, p_ask.but, false, p_unit, v_now) d
        left join lateral (select j.ctid as place from ojs.job j
            where p_lock and d.dealt and j.ctid = d.place and j.id = d.id and j.state = 'available' for update skip locked) h on true
        order by d.turn
    ) d;
    if v_ids is not null then
        perform ojs._look_again(v_tenants, v_ids);
        v_picks.blocked := array(select distinct t from unnest(v_tenants) t);
    end if;
    return v_picks;
end;
$$;
-- +goose StatementEnd
comment on function ojs._claim(ojs.level, int, ojs.ask, boolean, ojs.unit) is
'Asks who is due at one level and locks the jobs (p_lock). Those that somebody else has locked are passed over, and the tick has them
looked at again.';

-- +goose StatementBegin
create function ojs._within(p_picks ojs.picks, p_bytes bigint, p_first boolean, p_low numeric) returns ojs.picks
language plpgsql
as $$
declare
    v_sum   bigint := 0;
    v_exact bigint;
    v_keep  int := cardinality(p_picks.spots);
begin
    for i in 1 .. cardinality(p_picks.spots) loop
        continue when p_picks.places[i] is null;
        v_exact := p_picks.bytes[i];
        if v_exact > 500 then
            -- Perhaps compressed.
            v_exact := ojs._answer_bytes(p_picks.ids[i], p_picks.places[i]);
        end if;
        v_sum := v_sum + v_exact;
        if v_sum > p_bytes and not (p_first and v_sum = v_exact) then
            v_keep := i - 1;
            p_picks.cut := true;
            exit;
        end if;
        p_picks.bytes[i] := v_exact;
    end loop;
    p_picks.size := v_sum;
    if p_picks.cut then
        p_picks.spots := p_picks.spots[:v_keep];
        p_picks.tenants := p_picks.tenants[:v_keep];
        p_picks.ids := p_picks.ids[:v_keep];
        p_picks.places := p_picks.places[:v_keep];
        p_picks.seqs := p_picks.seqs[:v_keep];
        p_picks.agains := p_picks.agains[:v_keep];
        p_picks.bytes := p_picks.bytes[:v_keep];
        p_picks.prices := p_picks.prices[:v_keep];
        -- Tenants whose jobs were left out still have them, and stand where they stood.
        p_picks.more := array_fill(true, array[v_keep]);
        p_picks.rest := p_low;
        p_picks.skims := null;
        p_picks.size := v_sum - v_exact;
    end if;
    return p_picks;
end;
$$;
-- +goose StatementEnd
comment on function ojs._within(ojs.picks, bigint, boolean, numeric) is
'The first picks whose jobs have p_bytes in sum, as large as they are in an answer; p_first: one at least.';

-- +goose StatementBegin
create function ojs._with_picks(p_done ojs.decided, p_picks ojs.picks, p_skimmed int, p_by_time boolean) returns ojs.decided
language plpgsql
as $$
begin
    if array_position(p_picks.places, null) is not null then
        select coalesce(array_agg(p.id order by p.n), '{}'), coalesce(array_agg(p.place order by p.n), '{}'),
            coalesce(array_agg(p.price order by p.n), '{}')
        into p_picks.ids, p_picks.places, p_picks.prices
        from unnest(p_picks.ids, p_picks.places, p_picks.prices) with ordinality p(id, place, price, n) where p.place is not null;
    end if;
    return ojs._with(p_done, row(p_picks.ids, p_picks.places,
        case when p_by_time then p_picks.prices else array_fill(null::float8, array[cardinality(p_picks.ids)]) end,
        null, p_picks.size, p_skimmed, false)::ojs.decided);
end;
$$;
-- +goose StatementEnd
comment on function ojs._with_picks(ojs.decided, ojs.picks, int, boolean) is 'What is decided, and the picks that are locked behind it.';

-- +goose StatementBegin
create function ojs._look_again(p_tenants text[], p_ids uuid[]) returns void
language plpgsql
as $$
begin
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select ojs.now() + interval '1 second', 'again', p_tenants, p_ids where cardinality(p_ids) > 0;
end;
$$;
-- +goose StatementEnd
comment on function ojs._look_again(text[], uuid[]) is
'Has the tick look again, in a second, at jobs that were passed over because somebody had them locked.';
reset role;
