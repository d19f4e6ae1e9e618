comment on type ojs.tick_result is
'What a tick did: how many jobs became available, how many leases ended, and how many movements were
rolled up. Then: milliseconds until the next call (0: now); whether the caller is on duty; how many
cron jobs need their next time planned (ojs.unplanned_crons).';

-- Does what is due now.
-- Locks the timers that it takes and the jobs that it changes until it ends, with skip locked, and
-- so never waits.
-- Writes what the functions called write, and a version of ojs.clock_mark if there was something to
-- look at.
create or replace function ojs.tick(
    p_limit int default 1000, p_token text default null, p_stride_ms int default 0, p_backend int default null
) returns ojs.tick_result
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_result ojs.tick_result := (0, 0, 0, 10000, true, 0);
    v_now    timestamptz := ojs.now();
    v_held   boolean := exists (select from ojs.settings s where s.held_at is not null);
    v_known  boolean := true;
    v_busy   boolean := false;
    v_more   boolean;
    v_rested boolean;
    v_mark   ojs.clock_mark;
    v_timers record;
    v_leases record;
begin
    perform ojs._check_tick(p_limit, p_stride_ms), ojs._notice_copy();
    if ojs._begin_after_restore() or v_held then
        return (0, 0, 0, case when v_held then 1000 else 100 end, not v_held and p_token is null, 0);
    end if;
    if p_token is not null then
        if not ojs._on_duty(p_token, p_backend) then
            perform ojs._sleeps(p_token, 0);
            return (0, 0, 0, 1000, false, 0);
        end if;
        v_known := ojs._sleeps(p_token, p_stride_ms);
        -- Ask before reading timers. A transaction that is not open now has committed, so its
        -- timers are read below; or it begins later and sees that this clock sleeps. If asked
        -- afterwards, a transaction that commits in between would be missed.
        v_busy := p_stride_ms > 0 and ojs._somebody_reminds();
    end if;
    -- A roll-up writes a row for each shard that changed, so servers roll up every 2 seconds at
    -- most. Views add what is not rolled up yet.
    v_rested := p_token is null
        or (select t.at not between v_now - interval '2 seconds' and v_now from ojs.tally_mark t order by t.rev desc limit 1);
    if v_rested then
        v_result.rolled_up := ojs._roll_up();
        perform ojs._roll_up_pace(), ojs._keep_history(v_now), ojs._watch(v_now), ojs._look_at_neighbours(v_now);
    end if;

    v_mark := ojs._clock_mark();
    -- The mark is the time of an earlier look, or before it. So the clock was set back. The time
    -- allows for small corrections, which do no harm.
    if v_mark.due_at > v_now + interval '10 seconds' then
        perform ojs._clock_was_set_back(v_now);
    end if;
    select t.* into v_timers from ojs._do_timers(v_mark, v_now, p_limit, v_result) t;
    v_result := v_timers.o_result;
    select l.* into v_leases from ojs._reap_leases(v_mark, v_now, p_limit) l;
    v_result.reaped := v_result.reaped + v_leases.o_reaped;
    v_mark := ojs._move_clock(v_mark, v_now, v_timers.o_taken + v_leases.o_looked, v_leases.o_seen, v_leases.o_lease_at);
    v_more := ojs._tidy(v_mark, v_now, p_limit);
    -- Late, because the stripes that it fills stay locked until this transaction ends, and
    -- producers of the same limits cannot use them.
    v_result.next_in_ms := coalesce(least(ojs._give_room(v_now), ojs._meet_newcomers()), 10000);
    -- Last, because from here on this transaction may hold the lane, and decisions wait for it to
    -- end.
    v_more := true = any (array[ojs._fit_due(), ojs._throttle_due(v_now), ojs._depart_due(), v_more]);
    perform ojs._catch_up();
    perform ojs._forget(v_now);

    v_result.next_in_ms := case when greatest(v_timers.o_taken, v_leases.o_looked) < p_limit and v_known then
        -- With the NOTIFY queue more than half full, no commit wakes a clock that sleeps.
        least(nullif(p_stride_ms, 0), v_result.next_in_ms, case when v_busy or v_more then 100 end,
            case when p_stride_ms > 0 and ojs._notify_full() then 1000 end,
            case when not v_rested or v_result.rolled_up > 0 then 2000 end, ojs._next_look_ms(v_mark, v_now)) else 0 end;
    return v_result;
end;
$$;
comment on function ojs.tick(int, text, int, int) is
'Does what is due now, and returns what it did and when to call again.
next_in_ms: in how many milliseconds, at most 10000.
Promotes scheduled and retryable jobs, discards expired jobs, retries dead letters by their rules,
takes back jobs whose lease expired or whose worker fell silent, fires cron jobs, rolls up
statistics, removes old journal rows and old dead letters.
p_limit: looks at timers of about that many jobs, 1 to 100000.
p_token, p_stride_ms: a caller that listens on channel ojs_wake may sleep until the next call if it
gives a token of its own and the longest time that it sleeps, up to 10000 ms: a commit with a timer
that is due sooner sends the token. While PostgreSQL''s NOTIFY queue is more than half full no commit
sends it, and next_in_ms is 1000 at most. A p_stride_ms of 0 withdraws the token. Without both, timers
that are inserted meanwhile have to wait, so call every 150 ms or so.
p_backend: the process id of the session on which the holder of the duty listens.
Of all callers with a token one is on duty (ojs.duty). For other callers, and for all callers
while dispatch is held, it does nothing, on_duty is false, and next_in_ms 1000. The duty passes on
when the session of p_backend has ended, when its holder has not called for 30 seconds (2 without
p_backend), or by ojs.stand_down.
Servers call this all the time. Without a server call it yourself, without a token. Several sessions
may call it at once. Raises invalid_request.';

create or replace function ojs._check_tick(p_limit int, p_stride_ms int) returns void
language plpgsql
as $$
begin
    if p_limit is null or p_limit not between 1 and 100000 then
        perform ojs._raise('OJ400', 'limit must be an integer between 1 and 100000', '{"field": "limit"}');
    end if;
    if p_stride_ms is null or p_stride_ms not between 0 and 10000 then
        perform ojs._raise('OJ400', 'stride_ms must be an integer between 0 and 10000', '{"field": "stride_ms"}');
    end if;
end;
$$;
comment on function ojs._check_tick(int, int) is 'Raises why a tick is refused; else does nothing.';

create or replace function ojs._sleeps(p_token text, p_stride_ms int) returns boolean
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
comment on function ojs._sleeps(text, int) is
'Registers a clock that looks at least every p_stride_ms milliseconds and listens for p_token; 0
withdraws it.
Returns false if it was not registered before: then it has to look again, because commits before did
not notify it. Writes every 30 seconds.';

create or replace function ojs._somebody_reminds() returns boolean
language sql stable
as $$
    select exists (
        select from pg_locks l
        where l.locktype = 'relation' and l.relation in ('ojs.timer'::regclass, 'ojs.lease'::regclass)
          and l.mode = 'RowExclusiveLock' and l.granted and l.pid is distinct from pg_backend_pid()
          and l.database = (select d.oid from pg_database d where d.datname = current_database()))
$$;
comment on function ojs._somebody_reminds() is
'Returns whether a transaction is open that may have inserted a timer or a lease, which may be due
before it commits.';

create or replace function ojs._do_timers(p_mark ojs.clock_mark, p_now timestamptz, p_limit int, p_result ojs.tick_result,
    out o_result ojs.tick_result, out o_taken int)
language plpgsql
as $$
declare
    v_timer record;
begin
    o_result := p_result;
    o_taken := 0;
    for v_timer in
        with late as materialized (
            select t.due_at, t.seq, t.spot, cardinality(t.ids) as jobs
            from ojs._late_timers(p_mark) l
            cross join lateral (select t.*, t.ctid as spot from ojs.timer t
                where t.due_at = l.due_at and t.seq = l.seq and t.due_at <= p_now for update skip locked) t
        ), held as materialized (
            select t.due_at, t.seq, t.ctid as spot, cardinality(t.ids) as jobs from ojs.timer t
            where t.due_at >= p_mark.due_at and t.due_at <= p_now order by t.due_at, t.seq limit p_limit for update skip locked
        ), due as materialized (
            -- By ctid: with the key, a plan that was made while there were few timers would read
            -- all of them.
            select c.spot from (select h.*, sum(h.jobs) over (order by h.due_at, h.seq) - h.jobs as before
                from (select * from late union all select * from held) h) c where c.before < p_limit
        ), taken as (
            delete from ojs.timer t using due d where t.ctid = d.spot returning t.*
        )
        select t.kind, array_agg(x.tenant_id) as tenants, array_agg(x.id) as ids
        from taken t cross join lateral unnest(t.tenant_ids, t.ids) x(tenant_id, id)
        -- Cron is last, because it may work until its time is up, and the other kinds would wait for it.
        -- Leases come before workers, so that an attempt that ran too long counts as timed out even
        -- if its worker has fallen silent, too.
        group by t.kind order by t.kind = 'cron', t.kind
    loop
        o_taken := o_taken + cardinality(v_timer.ids);
        case v_timer.kind
            when 'due' then o_result.promoted := ojs._promote(v_timer.tenants, v_timer.ids);
            when 'lease' then o_result.reaped := o_result.reaped + ojs._reap(v_timer.tenants, v_timer.ids);
            when 'revisit' then perform ojs._revisit_now(v_timer.tenants, v_timer.ids);
            when 'expiry' then perform ojs._expire_due(v_timer.tenants, v_timer.ids);
            when 'replay' then perform ojs._replay(v_timer.tenants, v_timer.ids);
            when 'cron' then o_result.unplanned := ojs._fire_crons(v_timer.tenants, v_timer.ids);
            when 'departure' then perform ojs._see_off(v_timer.tenants);
            when 'worker' then o_result.reaped := o_result.reaped + ojs._check_workers(v_timer.tenants, v_timer.ids);
        end case;
    end loop;
end;
$$;
comment on function ojs._do_timers(ojs.clock_mark, timestamptz, int, ojs.tick_result) is
'Takes the timers that are due, of about p_limit jobs, and does what their kinds say.
o_result: p_result with what was done added; o_taken: how many jobs, workers and cron jobs the
timers were for.';

create or replace function ojs._tidy(p_mark ojs.clock_mark, p_now timestamptz, p_limit int) returns boolean
language plpgsql
as $$
declare
    v_old  timestamptz := p_now - ojs._journal_retention();
    v_more boolean := false;
begin
    if (select j.at from ojs.journal j where j.lo is not null and j.xid >= p_mark.journal order by j.xid limit 1) < v_old
            or (select j.at from ojs.journal j where j.lo is null and j.xid >= p_mark.journal order by j.xid limit 1) < v_old
            or (select l.at from ojs.lease l where l.xid >= p_mark.lease order by l.xid, l.n limit 1) < v_old
            or (select r.at from ojs.release r where r.xid >= p_mark.release order by r.xid, r.seq limit 1) < v_old
            or exists (select from unnest(p_mark.open) x(xid)
                where pg_visible_in_snapshot(x.xid, (select pg_current_snapshot())) and (
                    exists (select from ojs.journal j where j.lo is not null and j.xid = x.xid and j.at < v_old)
                    or exists (select from ojs.journal j where j.lo is null and j.xid = x.xid and j.at < v_old)
                    or exists (select from ojs.lease l where l.xid = x.xid and l.at < v_old)
                    or exists (select from ojs.release r where r.xid = x.xid and r.at < v_old))) then
        v_more := ojs._prune(10 * p_limit);
    end if;
    -- Rounds are 5 minutes apart. One that is due later was planned before the clock was set back.
    if (select m.next_at not between p_now + interval '1 microsecond' and p_now + interval '5 minutes' from ojs.dead_letter_mark m) then
        v_more := ojs._prune_dead_letters(p_limit) or v_more;
    end if;
    v_more := ojs._prune_audit(p_now, p_limit) or v_more;
    if exists (select from ojs.replay_rule r where not r.caught_up) then
        perform ojs._catch_up_replays();
    end if;
    -- The last notice of a starved queue has the number of those before it, which a metric reports
    -- and which must not go back. So it is kept.
    delete from ojs.notice n where n.at < v_old and n.ended_at < v_old
        and (n.type <> 'scheduling.queue_starved' or n.ended_at < v_old - interval '30 days' or exists (
            select from ojs.notice m where m.type = n.type and m.subject = n.subject and m.nth > n.nth));
    return v_more;
end;
$$;
comment on function ojs._tidy(ojs.clock_mark, timestamptz, int) is
'Removes journal rows, dead letters, audit entries and notices that are too old, and applies new
replay rules to existing dead letters. Returns whether there is more to remove.';
