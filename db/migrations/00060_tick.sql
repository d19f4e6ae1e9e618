-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

create type ojs.tick_result as (promoted int, reaped int, rolled_up int, next_in_ms int, on_duty boolean, unplanned int);
comment on type ojs.tick_result is
'What a tick did: jobs made available, leases ended, movements rolled up; milliseconds until there is more to do, 0: now; whether the
caller is the one to do it; and how many cron jobs want to be told when they are due (ojs.unplanned_crons).';

-- +goose StatementBegin
create function ojs._sleeps(p_token text, p_stride_ms int) returns boolean
language plpgsql
as $$
declare
    v_now    timestamptz := ojs.now();
    v_stride interval := p_stride_ms * interval '1 millisecond';
    v_known  ojs.sleeper;
begin
    select * into v_known from ojs.sleeper s where s.token = p_token;
    if p_stride_ms = 0 then
        delete from ojs.sleeper s where s.token = v_known.token;
        return true;
    end if;
    if v_known.stride = v_stride and v_known.expires_at > v_now + interval '30 seconds' then
        return true;
    end if;
    insert into ojs.sleeper (token, stride, expires_at) values (p_token, v_stride, v_now + interval '1 minute')
    on conflict (token) do update set stride = excluded.stride, expires_at = excluded.expires_at;
    return coalesce(v_known.stride >= v_stride and v_known.expires_at > v_now, false);
end;
$$;
-- +goose StatementEnd
comment on function ojs._sleeps(text, int) is
'Registers a clock that looks at least every p_stride_ms milliseconds and listens for p_token, or withdraws it (0). Returns false if it
was not registered before: then it has to look again. Writes every half minute.';

-- +goose StatementBegin
create function ojs.tick(p_limit int default 1000, p_token text default null, p_stride_ms int default 0, p_backend int default null) returns ojs.tick_result
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_result ojs.tick_result := (0, 0, 0, 10000, true, 0);
    v_now    timestamptz := ojs.now();
    v_old    timestamptz := v_now - ojs._journal_retention();
    v_first  boolean := pg_current_xact_id_if_assigned() is null;
    v_known  boolean := true;
    v_busy   boolean := false;
    v_more   boolean := false;
    v_early  boolean;
    v_taken  int := 0;
    v_mark   ojs.clock_mark;
    v_from   timestamptz;
    v_next   timestamptz;
    v_timer  record;
begin
    if p_limit is null or p_limit not between 1 and 100000 then
        perform ojs._raise('OJ400', 'limit must be an integer between 1 and 100000', '{"field": "limit"}');
    end if;
    if p_stride_ms is null or p_stride_ms not between 0 and 10000 then
        perform ojs._raise('OJ400', 'stride_ms must be an integer between 0 and 10000', '{"field": "stride_ms"}');
    end if;
    if exists (select from ojs.settings s where s.held_at is not null) then
        return (0, 0, 0, 1000, false, 0);
    end if;
    if p_token is not null then
        if not ojs._on_duty(p_token, p_backend) then
            perform ojs._sleeps(p_token, 0);
            return (0, 0, 0, 1000, false, 0);
        end if;
        v_known := ojs._sleeps(p_token, p_stride_ms);
        if p_stride_ms > 0 then
            -- Before the timers are looked at: whoever is not seen here has committed, or will see that we sleep.
            v_busy := exists (select from pg_locks l where l.locktype = 'relation' and l.relation = 'ojs.timer'::regclass and l.mode = 'RowExclusiveLock' and l.granted
                and l.database = (select d.oid from pg_database d where d.datname = current_database()) and l.pid is distinct from pg_backend_pid());
        end if;
    end if;
    -- A roll-up writes a row for each shard that moved; the views add what is not rolled up yet. So servers let two seconds pass.
    v_early := p_token is not null and (select t.at between v_now - interval '2 seconds' and v_now from ojs.tally_mark t order by t.rev desc limit 1);
    if not v_early then
        v_result.rolled_up := ojs._roll_up();
    end if;

    select m.* into v_mark from ojs.clock_mark m order by m.rev desc limit 1;
    v_from := v_mark.due_at;
    if v_from > v_now or v_mark.swept_at < v_now - interval '15 minutes' or v_mark.xid > pg_snapshot_xmax(pg_current_snapshot()) then
        -- The wall clock was set back, perhaps; or this is a logical copy in another cluster.
        v_from := '-infinity';
    end if;
    for v_timer in
        with late as materialized (
            select t.due_at, t.seq, t.jobs
            from unnest(v_mark.open) x
            cross join lateral (select t.due_at, t.seq, cardinality(t.ids) as jobs from ojs.timer t
                where t.xid = x and t.due_at < v_from and t.due_at <= v_now for update skip locked) t
        ), held as materialized (
            select t.due_at, t.seq, cardinality(t.ids) as jobs from ojs.timer t
            where t.due_at >= v_from and t.due_at <= v_now order by t.due_at, t.seq limit p_limit for update skip locked
        ), due as materialized (
            select c.due_at, c.seq from (select h.*, sum(h.jobs) over (order by h.due_at, h.seq) - h.jobs as before
                from (select * from late union all select * from held) h) c where c.before < p_limit
        ), taken as (
            delete from ojs.timer t using due d where t.due_at = d.due_at and t.seq = d.seq returning t.*
        )
        select t.kind, array_agg(x.tenant_id) as tenants, array_agg(x.id) as ids
        from taken t cross join lateral unnest(t.tenant_ids, t.ids) x(tenant_id, id)
        -- Cron last, because it is bounded by the time it takes. The time of an attempt before the silence of its worker, where both are over.
        group by t.kind order by t.kind = 'cron', t.kind
    loop
        v_taken := v_taken + cardinality(v_timer.ids);
        if v_timer.kind = 'due' then
            v_result.promoted := ojs._promote(v_timer.tenants, v_timer.ids);
        elsif v_timer.kind = 'again' then
            perform ojs._wake_again(v_timer.tenants, v_timer.ids);
        elsif v_timer.kind = 'cron' then
            v_result.unplanned := ojs._fire_crons(v_timer.tenants, v_timer.ids);
        elsif v_timer.kind = 'expiry' then
            perform ojs._expire_due(v_timer.tenants, v_timer.ids);
        elsif v_timer.kind = 'replay' then
            perform ojs._replay(v_timer.tenants, v_timer.ids);
        elsif v_timer.kind = 'worker' then
            v_result.reaped := v_result.reaped + ojs._check_workers(v_timer.tenants, v_timer.ids);
        else
            v_result.reaped := v_result.reaped + ojs._reap(v_timer.tenants, v_timer.ids);
        end if;
    end loop;
    if v_first and (v_taken > 0 and v_mark.due_at < v_now - interval '1 second' or v_from < v_mark.due_at) then
        perform from ojs.clock_mark m where m.rev = v_mark.rev for update skip locked;
        if found then
            -- Up to the first timer that is left. Transactions that began to write before this one and have not ended may still bring earlier ones. This one
            -- began after v_now, and so did later ones, whose timers come no earlier (ojs._timer_arriving). xmax is one past the latest that has ended.
            update ojs.clock_mark m
            set rev = m.rev + 1, xid = pg_current_xact_id(), swept_at = case when v_from = '-infinity' then v_now else m.swept_at end,
                open = array(select x from pg_snapshot_xip(pg_current_snapshot()) x
                    union select x::text::xid8 from generate_series(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint - 1) x),
                due_at = least(v_now,
                    (select t.due_at from ojs.timer t where t.due_at >= v_from order by t.due_at, t.seq limit 1),
                    (select min(t.due_at) from unnest(v_mark.open) x join ojs.timer t on t.xid = x where t.due_at < v_from))
            where m.rev = v_mark.rev;
        end if;
    end if;

    if (select w.at from ojs.wake w where w.xid >= v_mark.wake order by w.xid, w.seq limit 1) < v_old
            or (select l.at from ojs.lease l where l.xid >= v_mark.lease order by l.xid, l.seq limit 1) < v_old
            or (select r.at from ojs.release r where r.xid >= v_mark.release order by r.xid, r.seq limit 1) < v_old then
        v_more := ojs._prune(10 * p_limit);
    end if;
    if (select m.next_at <= v_now from ojs.dead_letter_mark m) then
        v_more := ojs._prune_dead_letters(p_limit) or v_more;
    end if;
    if exists (select from ojs.replay_rule r where not r.caught_up) then
        perform ojs._catch_up_replays();
    end if;
    -- Nobody fetches for hours while producers go on: the journal must not grow into a decision that takes forever. Or everybody fetches beside decisions, and
    -- nobody charges. Last, because from here on decisions wait for this transaction to end.
    if (select exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(f.snapshot) offset 1000 limit 1) or exists (select from ojs.lease l where l.owed > 0 and l.xid >= pg_snapshot_xmax(f.snapshot))
                or exists (select from pg_snapshot_xip(f.snapshot) x(xid) cross join lateral (select l.* from ojs.lease l where l.xid = x.xid and l.owed > 0 offset 0) l)
            from (select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1) f) then
        perform from ojs.lane l where l.lane = 0 for update skip locked;
        if found then
            perform ojs._fold();
        end if;
    end if;

    if v_taken >= p_limit or not v_known then
        v_result.next_in_ms := 0;
    else
        -- What is due and still there is in the hands of another tick, which may fail.
        v_next := least((select t.due_at from ojs.timer t where t.due_at >= v_from order by t.due_at, t.seq limit 1),
            (select min(t.due_at) from unnest(v_mark.open) x join ojs.timer t on t.xid = x where t.due_at < v_from));
        v_result.next_in_ms := least(case when p_stride_ms > 0 then p_stride_ms else 10000 end, case when v_busy or v_more or v_next <= v_now then 100 end,
            case when v_early or v_result.rolled_up > 0 then 2000 end,
            case when v_next > v_now then ceil(extract(epoch from least(v_next, v_now + interval '10 seconds') - least(ojs.now(), v_next)) * 1000) end);
    end if;
    return v_result;
end;
$$;
-- +goose StatementEnd
comment on function ojs.tick(int, text, int, int) is
'Does what is due now: promotes scheduled and retryable jobs, discards jobs that expired, retries dead letters by their rules, takes back
jobs whose lease expired or whose worker fell silent, fires cron jobs, rolls up statistics, removes old journal rows and old dead
letters. Looks at timers of about p_limit (1 to 100000) jobs. Returns what it did and when to call again: next_in_ms milliseconds later,
at most 10000. A caller that listens on channel ojs_wake may sleep that long if it gives a p_token of its own and the most it ever
sleeps, p_stride_ms (up to 10000): a commit with a timer that is due sooner sends the token. Without both, timers that are inserted
meanwhile have to wait, so call it every 150 ms or so. p_stride_ms 0 with a token withdraws it. Of all who give a token, one is on duty
(ojs.duty); for the others, and for everybody while dispatch is held, nothing is done, on_duty is false and next_in_ms 1000. The duty
passes on when the session of p_backend has ended, the process id of the one on which its holder listens for notifications, when its
holder has not called for 30 seconds (2 without p_backend), or by ojs.stand_down. Servers call it all the time; without a server, call it
yourself, without a token. Safe from many sessions at once.';
reset role;
