-- The decision. Sessions decide one after another, under the row lock of ojs.lane. A decision folds
-- the journal, asks which jobs are due, locks them, and charges their tenants. The caller hands the
-- jobs out.
--
-- Order of locks: ojs.lane, rows of ojs.usage, jobs. The last two are locked with skip locked, so
-- the session that holds the lane does not wait for them.

create or replace function ojs._decide(p_ask ojs.ask, p_count int) returns ojs.decided
language plpgsql
as $$
declare
    v_done  ojs.decided := ojs._nothing();
    v_until timestamptz;
    v_news  ojs.news;
    v_more  boolean;
begin
    loop
        select * into v_news from ojs._look(p_ask.queues);
        v_more := false;
        -- More than 2000 transaction ids since the last fold cause a fold, too. Every caller reads
        -- the journals from the snapshot of the last fold on, and would read more each time until
        -- jobs come.
        if v_news.rows > 0 or (v_news.fold).part_xid is not null
                or pg_snapshot_xmax(v_news.upto)::text::bigint - pg_snapshot_xmax((v_news.fold).snapshot)::text::bigint > 2000
                or v_news.limits and ojs._ends_wait(v_news) then
            v_more := ojs._fold(v_news);
            -- The fold has changed levels. It may also have written the first count of a limit that
            -- is newer than the look; jobs dealt from here on have to count there.
            select r.limits, r.rules, s.states into v_news.limits, v_news.rules, v_news.states
            from ojs._rules_there() r, ojs._states(p_ask.queues) s;
        end if;
        if p_ask.pool_limited then
            p_count := least(p_count, ojs._pool_room(p_ask.pool));
        end if;
        v_done := ojs._serve_queues(p_ask, v_news, p_count, v_done);
        -- Do not fold again once jobs are locked: they are still available, and a fold may move
        -- cursors back to them, so that they would be dealt twice.
        exit when v_done.ids <> '{}' or v_done.cut or not v_more;
        v_until := coalesce(v_until, clock_timestamp() + ojs._patience());
        exit when clock_timestamp() > v_until;
    end loop;
    v_done.cut := v_done.cut or v_more and cardinality(v_done.ids) < p_count;
    return v_done;
end;
$$;
comment on function ojs._decide(ojs.ask, int) is
'Returns the next p_count jobs for a FETCH, locked and in fair order; their tenants are charged.
Their size in sum is at most max_bytes of the ask, but one job may be larger.
Stops early (cut): at max_bytes; after 20000 rows of ended jobs; after 1000 tenants whose counts are
locked; or when the journal has more than can be folded in 100 ms, because other sessions wait. Only
under the row of ojs.lane.';

create or replace function ojs._nothing() returns ojs.decided
language sql immutable
as $$ select row('{}', '{}', '{}', 0, 0, false, null)::ojs.decided $$;
comment on function ojs._nothing() is 'Returns a result without jobs, with which a call begins.';

create or replace function ojs._serve_queue(p_state ojs.dispatch_state, p_count int, p_ask ojs.ask, p_news ojs.news, p_done ojs.decided)
returns ojs.decided
language plpgsql
as $$
declare
    c_passed constant int := 20000;
    c_busy   constant int := 1000;
    v_state  ojs.dispatch_state := p_state;
    v_level  ojs.level;
    v_left   int := p_count - cardinality(p_done.ids);
    v_limits record;
    v_uncounted ojs.uncounted;
    v_step   ojs.step;
    v_passed int;
    v_vain   int := 0;
begin
    for v_nth in 1 .. coalesce(cardinality(p_state.levels), 0) loop
        v_level := v_state.levels[v_nth];
        -- Other pools pass over these tenants, so the low may have risen above their times.
        if v_level.ready > 0 and p_ask.exclusive then
            perform ojs._raise_times(v_state.queue, v_level, v_state.unit, p_ask.tenants);
        end if;
        while v_level.ready > 0 and v_left > 0 and not p_done.cut loop
            -- A time that is too low would let the tenant go before tenants with older jobs.
            if v_state.unit = 'none' then
                perform ojs._true_times(v_state.queue, v_level, v_left, p_ask);
            end if;
            if p_news.limits then
                -- The counts are locked before jobs are dealt, so that no other session gives the
                -- same capacity away. Capacity 0: the queue has reached its own limit, or its count
                -- is locked.
                select * into v_limits from ojs._lock_usage(v_state.queue, v_level.priority, v_level.low, v_left, v_left + 1, p_ask.tenants,
                    p_ask.except_tenants, false);
                v_uncounted := v_limits.o_uncounted;
                v_left := least(v_left, v_limits.o_capacity);
                exit when v_left = 0;
            end if;
            v_step := ojs._step(v_state, v_nth, v_left, p_ask, p_news.rules, v_uncounted, p_done);
            -- No tenant is due.
            exit when v_step.state is null;
            if p_news.limits and v_step.ids <> '{}' then
                perform ojs._count_dealt(v_state.queue, v_step.tenants);
            end if;
            v_passed := 0;
            if coalesce(v_step.dry, v_step.locked) is not null then
                v_passed := coalesce((select sum(ojs._pass_ended(v_state.queue, v_level.priority, t)) from unnest(v_step.dry) t), 0)
                    -- Passing a locked row costs four times as much as passing one that ended, and
                    -- counts so.
                    + coalesce((select sum(4 * ojs._pass_ended(v_state.queue, v_level.priority, t, true)) from unnest(v_step.locked) t), 0);
            end if;
            v_state := v_step.state;
            p_done.ids := p_done.ids || v_step.ids;
            p_done.places := p_done.places || v_step.places;
            p_done.charged := p_done.charged || v_step.charged;
            p_done.bytes := p_done.bytes + v_step.bytes;
            p_done.passed := p_done.passed + v_passed;
            v_left := v_left - cardinality(v_step.ids);
            p_done.cut := v_step.cut or v_left > 0 and p_done.passed > c_passed;
            -- This step dealt no job, passed no row, and moved no tenant. The next one would do the
            -- same, for ever: the work that is left is not for this caller.
            exit when v_step.ids = '{}' and v_passed = 0 and v_step.locked is null
                and (v_state.levels[v_nth]).ready = v_level.ready and not v_step.behind;
            -- Such a step only moved tenants back whose counts other sessions have locked. After
            -- 1000 tenants read in vain the call ends early, so that other sessions get the lane.
            v_vain := case when v_step.ids = '{}' and v_step.behind then v_vain + v_left + 1 else 0 end;
            p_done.cut := p_done.cut or v_vain > c_busy;
            v_level := v_state.levels[v_nth];
        end loop;
        exit when v_left <= 0 or p_done.cut;
    end loop;
    p_done.state := v_state;
    return p_done;
end;
$$;
comment on function ojs._serve_queue(ojs.dispatch_state, int, ojs.ask, ojs.news, ojs.decided) is
'Adds jobs of one queue to p_done until it has p_count, the highest effective priority first.
Keeps to the tenants and the bytes of the ask. The state in p_done is that of the queue
afterwards.';
comment on type ojs.step is
'What was dealt at one level and is locked.
ids, places, in order: the jobs, and where their rows are (ctid).
tenants: their tenants, in step, where there are rules.
charged: how many seconds their tenants were charged (null where they do not share by time).
bytes: size in sum; cut: jobs were left out because of max_bytes.
dry: tenants whose cursors have to pass jobs that ended.
locked: tenants of jobs that another session has locked.
behind: tenants whose counts another session has locked were moved behind the next tenant.
state: of the queue afterwards.';

create or replace function ojs._step(
    p_state ojs.dispatch_state, p_nth int, p_count int, p_ask ojs.ask, p_rules boolean, p_uncounted ojs.uncounted, p_done ojs.decided
) returns ojs.step
language plpgsql
as $$
declare
    v_level   ojs.level := p_state.levels[p_nth];
    v_queue   text := p_state.queue;
    v_unit    ojs.unit := p_state.unit;
    v_only    text[] := p_ask.tenants;
    v_but     text[] := p_ask.except_tenants;
    v_own     boolean := cardinality(p_ask.tenants) = 1 and p_ask.exclusive is not true;
    v_bytes   bigint := p_ask.max_bytes - p_done.bytes;
    v_now     timestamptz := ojs.now();
    v_step    ojs.step;
    v_locked  uuid[];
    v_revised text[];
    v_from    bigint[];
begin
    with held as materialized (
        -- Lock the jobs that are due. The state is checked again with the lock, because another
        -- session may have fetched or ended the job. A job that is locked or gone keeps its row
        -- here with held null: its tenant's cursor passes it, and the tenant is not charged. fits:
        -- within the bytes of the call, where the first job always fits.
        select d.*, h.place as held, coalesce(d.tenant_id = any (p_uncounted.busy), false) as busy,
            sum(d.bytes) filter (where h.place is not null) over w <= v_bytes
                or p_done.ids = '{}' and count(h.place) over w <= 1 as fits
        from ojs._due(v_queue, v_level.priority, v_level.low, p_count, v_only, v_but, false, p_rules, p_uncounted, v_unit, v_now) d
        left join lateral (select j.ctid as place from ojs.job j
            where d.dealt and j.ctid = d.place and j.id = d.id and j.state = 'available' for update skip locked) h on true
        window w as (order by d.nth rows unbounded preceding)
    ), bill as materialized (
        -- One row per tenant. line and back: how far its cursor and its cursor in ranges move.
        -- more: it may have jobs behind those dealt; cut: some were left out for their bytes.
        select h.spot, min(h.vtime) as vtime, bool_or(h.dealt or h.id is null) as served, min(h.edge) as edge,
            count(h.held) filter (where h.fits is not false) as jobs, bool_or(h.dealt) as dealt, bool_or(h.busy) as busy,
            bool_or(h.last or h.id is not null and not h.dealt) as more, bool_or(h.dealt and h.fits is false) as cut,
            max(h.price) filter (where h.dealt)::numeric as price_each,
            max(h.seq) filter (where h.dealt and h.fits is not false and not h.revisited) as line,
            max(h.seq) filter (where h.dealt and h.fits is not false and h.revisited) as back,
            coalesce(sum(h.price) filter (where h.held is not null and h.fits is not false), 0)::numeric as price,
            min(h.capacity) as capacity
        from held h group by h.spot
    ), rest as materialized (
        -- The lowest time of a tenant that is not served here, and whether jobs are left out for
        -- their bytes. The low of the level must not pass that time.
        select least(min(b.vtime) filter (where not b.served), min(b.edge)) as vtime, coalesce(bool_or(b.cut), false) as cut from bill b
    ), moved as materialized (
        select b.spot, b.jobs, f.weight,
            -- First in, first out: the job.seq of the next job is the time.
            case when v_unit = 'none' then greatest(f.vtime, least(r.next, w.next))
                -- If other sessions have locked all jobs dealt to a tenant, or its count, its time
                -- moves one step behind the next tenant. Otherwise the call would go through
                -- thousands of locked jobs of one tenant before it came to other tenants.
                when b.jobs = 0 and (b.dealt or b.busy) and not b.cut
                    then greatest(f.vtime, x.vtime + round(coalesce(b.price_each, 1) / f.weight, 15))
                -- This FETCH is for one tenant, so its order does not depend on the time.
                when v_own then ojs._ahead(f.vtime, v_level.low, f.weight, b.jobs, b.price)
                else f.vtime + round(b.price / f.weight, 15) end as vtime,
            greatest(f.head, b.line) as head, greatest(f.revisit_seq, b.back) as revisit_seq, r.lo as revisit_lo,
            case when b.back is not null then f.revisit_lo end as was_revisit_lo, f.tenant_id,
            w.works and not w.full as stays, w.works and w.full as stops
        from bill b
        cross join rest x
        cross join lateral (select f.* from ojs.tenant_fairness f where f.ctid = b.spot) f
        left join lateral (select r.lo, greatest(r.lo, f.revisit_seq + 1, b.back + 1) as next from ojs.revisit r
            where f.revisit_lo is not null and r.queue = v_queue and r.priority = f.job_priority and r.tenant_id = f.tenant_id
              and r.lo >= f.revisit_lo and r.hi > greatest(f.revisit_seq, b.back)
            order by r.lo limit 1) r on true
        cross join lateral (
            select b.more or b.cut or x.cut and b.capacity is distinct from 0 or r.lo is not null or n.next is not null
                    or (f.cursors[1]).works is true as works,
                n.next, (b.capacity <= b.jobs) is true and not b.busy and not b.cut as full
            from (select case when v_unit = 'none' or r.lo is null and not b.more then (select j.seq from ojs.job j
                    where j.queue = v_queue and j.priority = f.job_priority and j.tenant_id = f.tenant_id
                        and j.seq > greatest(f.head, b.line)
                    order by j.seq limit 1) end as next offset 0) n
            offset 0) w
        -- A tenant all of whose jobs were left out for their bytes keeps its time and cursors.
        where b.served and (b.line is not null or b.back is not null or not b.cut)
    ), total as materialized (
        select count(*) filter (where m.stops)::int as stops, count(*) filter (where m.stays is not true)::int as gone,
            -- As numeric, because float8 would lose tenants for ever (see ojs._front). If no tenant
            -- stays in the ring, the low becomes the time of the last one: tenants that join at a
            -- lower low would go before those that come back. First in, first out the low must not
            -- pass tenants that this call left out (v_but): there ojs._raise_times does not raise
            -- their times later.
            greatest(v_level.low, coalesce(least(min(m.vtime) filter (where m.stays),
                (select case when x.cut then v_level.low else x.vtime end from rest x),
                case when v_only is not null or v_but is not null and v_unit = 'none'
                    then ojs._lowest(v_queue, v_level, array(select m.tenant_id from moved m)) end), max(m.vtime))) as low
        -- No tenant was served: no row here, so nothing is written, and the state stays null.
        from moved m having count(*) > 0
    ), charged as (
        update ojs.tenant_fairness f
        set rev = f.rev + 1, vtime = m.vtime, head = m.head, revisit_seq = m.revisit_seq, revisit_lo = m.revisit_lo, ready = m.stays,
            at_limit = m.stops, charged = f.charged + m.jobs,
            deficit = case when m.stays and v_unit <> 'none' then ojs._deficit(t.low, m.vtime, m.weight) else 0 end
        from moved m, total t where f.ctid = m.spot
    ), noted as (
        update ojs.dispatch_state s set rev = s.rev + 1, levels = p_state.levels[:p_nth - 1]
                || row(v_level.priority, t.low, v_level.joined, v_level.ready - t.gone, v_level.at_limit + t.stops,
                    case when v_level.ready - t.gone + v_level.at_limit + t.stops = 0 then v_now end)::ojs.level
                || p_state.levels[p_nth + 1:],
            idle_at = case when v_level.ready - t.gone + v_level.at_limit + t.stops = 0 then coalesce(s.idle_at, v_now) else s.idle_at end
        from total t where s.queue = v_queue and s.rev = p_state.rev
        returning s.*
    )
    select coalesce(array_agg(h.id) filter (where h.held is not null), '{}'),
        coalesce(array_agg(h.held) filter (where h.held is not null), '{}'),
        array_agg(h.tenant_id) filter (where p_rules and h.held is not null),
        coalesce(array_agg(case when v_unit = 'time' then h.price end) filter (where h.held is not null), '{}'),
        coalesce(sum(h.bytes) filter (where h.held is not null), 0), (select x.cut from rest x),
        array_agg(h.tenant_id) filter (where h.id is null and h.capacity is distinct from 0),
        array_agg(h.tenant_id) filter (where h.dealt and h.held is null), coalesce(bool_or(h.busy), false),
        (select n::ojs.dispatch_state from noted n), array_agg(h.id) filter (where h.dealt and h.held is null),
        (select array_agg(m.tenant_id) from moved m where m.was_revisit_lo is not null),
        (select array_agg(m.was_revisit_lo) from moved m where m.was_revisit_lo is not null)
    into v_step.ids, v_step.places, v_step.tenants, v_step.charged, v_step.bytes, v_step.cut, v_step.dry, v_step.locked, v_step.behind,
        v_step.state, v_locked, v_revised, v_from
    from held h where h.fits is not false;
    if v_locked is not null then
        -- The cursors have moved past these jobs. Without the timer a job whose session rolls back
        -- would never be dealt.
        perform ojs._revisit_later(v_step.locked, v_locked);
        v_step.locked := array(select distinct t from unnest(v_step.locked) t);
    end if;
    if v_revised is not null then
        -- Delete the ranges that the cursors have passed whole.
        delete from ojs.revisit r using unnest(v_revised, v_from) t(tenant_id, lo)
        cross join lateral ojs._fair(v_queue, v_level.priority, t.tenant_id) f
        where r.queue = v_queue and r.priority = f.job_priority and r.tenant_id = t.tenant_id and r.lo >= t.lo and r.hi <= f.revisit_seq;
    end if;
    return v_step;
end;
$$;
comment on function ojs._step(ojs.dispatch_state, int, int, ojs.ask, boolean, ojs.uncounted, ojs.decided) is
'Deals up to p_count jobs at one level of a queue, the nth of p_state, in one statement.
Asks which jobs are due, locks them, and charges their tenants. Times and cursors move on, also past
jobs that another session has locked, which are charged to no tenant. A tenant without more jobs
leaves the ring, and so does a tenant at its limit.
p_rules, p_uncounted: as for ojs._due; p_done: what the call has already.
A null state: no tenant is due. Only under the row of ojs.lane.';
