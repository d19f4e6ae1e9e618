-- +goose Up
-- The clock's work: scheduled and retryable jobs become available, expired leases end, the journal is rolled up and, later, removed.
-- Any number of servers may tick at once; what another one holds is skipped.
--
-- A server's clock sleeps until the next timer is due, or for its stride. It is in ojs.sleeper meanwhile, and a timer that is inserted with less
-- than a stride to go notifies it. None is lost between the two: whoever inserted a timer and could not see the registration had locked
-- ojs.timer before that committed, and the look after it either sees the timer or sees the lock, and then looks again soon.
set local role ojs_owner;

create type ojs.tick_result as (promoted int, reaped int, rolled_up int, next_in_ms int, on_duty boolean, unplanned int);
comment on type ojs.tick_result is 'What a tick did: jobs made available, leases ended, movements rolled up; milliseconds until there is more to do, 0: now; whether the caller is the one to do it; and how many cron jobs want to be told when they are due (ojs.unplanned_crons).';

-- Timers further ahead, like those of ordinary leases, pay a comparison.
-- +goose StatementBegin
create function ojs._timer_arriving() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now   timestamptz := ojs.now();
    v_token text;
begin
    -- A time that passed while the transaction waited for a lock could lie before where the clock looks.
    new.due_at := greatest(new.due_at, v_now);
    for v_token in select s.token from ojs.sleeper s where s.expires_at > v_now and new.due_at < v_now + s.stride loop
        perform pg_notify('ojs_wake', v_token);
    end loop;
    return new;
end;
$$;
-- +goose StatementEnd
comment on function ojs._timer_arriving() is 'Trigger: a timer that is due soon notifies, at commit, the clocks that would sleep past it.';
-- Not ojs.now(): each insert would parse it anew.
create trigger timer_arriving before insert on ojs.timer for each row
    when (new.due_at < clock_timestamp() + interval '10 seconds') execute function ojs._timer_arriving();

create view ojs._movement with (security_invoker = true) as
select w.xid, w.tenant_id, w.queue, w.priority, w.from_state, w.to_state, w.jobs, false as failure from ojs.wake w
union all
select l.xid, l.tenant_id, l.queue, l.priority, 'available', 'active', l.jobs, false from ojs.lease l
union all
select r.xid, r.tenant_id, r.queue, r.priority, r.from_state, r.to_state, 1, r.from_state = 'active' and r.to_state in ('retryable', 'discarded') from ojs.release r;
comment on view ojs._movement is 'The three journals as one: how many jobs of a (tenant, queue, priority) went from one state (null: they are new) into another.';
grant select on ojs._movement to ojs_service, ojs_operator, ojs_tenant;

-- A function, so that the few rows at the end of the journal are read by index whatever the planner believes about their number.
-- +goose StatementBegin
create function ojs._recent() returns setof ojs.tally
language plpgsql stable rows 100 set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
    set enable_mergejoin = off set max_parallel_workers_per_gather = 0 set jit = off
as $$
declare
    v_mark pg_snapshot := (select t.snapshot from ojs.tally_mark t order by t.rev desc limit 1);
begin
    return query
    select m.tenant_id, m.queue, m.priority,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'scheduled'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'scheduled'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'available'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'available'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'pending'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'pending'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'active'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'active'), 0))::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'retryable'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'retryable'), 0))::bigint,
        coalesce(sum(m.jobs) filter (where m.to_state = 'completed'), 0)::bigint, coalesce(sum(m.jobs) filter (where m.to_state = 'cancelled'), 0)::bigint,
        (coalesce(sum(m.jobs) filter (where m.to_state = 'discarded'), 0) - coalesce(sum(m.jobs) filter (where m.from_state = 'discarded'), 0))::bigint,
        coalesce(sum(m.jobs) filter (where m.from_state is null), 0)::bigint,
        coalesce(sum(m.jobs) filter (where m.failure), 0)::bigint, 0::bigint
    from (
        select m.* from ojs._movement m where m.xid >= pg_snapshot_xmax(v_mark)
        union all
        select m.* from pg_snapshot_xip(v_mark) x(xid) cross join lateral (select m.* from ojs._movement m where m.xid = x.xid offset 0) m
    ) m
    group by m.tenant_id, m.queue, m.priority;
end;
$$;
-- +goose StatementEnd
comment on function ojs._recent() is 'Changes of the numbers in ojs.tally that are visible now and not rolled up yet.';
grant execute on function ojs._recent() to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs._roll_up() returns int
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark ojs.tally_mark;
    v_rows int;
begin
    -- Looked at first without a lock, so that an idle system writes nothing.
    select t.* into v_mark from ojs.tally_mark t order by t.rev desc limit 1;
    if pg_snapshot_xmax(v_mark.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())
            and not exists (select from ojs.wake w where w.xid >= pg_snapshot_xmax(v_mark.snapshot))
            and not exists (select from ojs.lease l where l.xid >= pg_snapshot_xmax(v_mark.snapshot))
            and not exists (select from ojs.release r where r.xid >= pg_snapshot_xmax(v_mark.snapshot))
            and not exists (select from pg_snapshot_xip(v_mark.snapshot) x(xid) cross join lateral (select m.* from ojs._movement m where m.xid = x.xid offset 0) m) then
        return 0;
    end if;
    perform from ojs.tally_mark t where t.rev = v_mark.rev for update skip locked;
    if not found then
        return 0;
    end if;
    if exists (select from ojs._movement m where m.xid = pg_current_xact_id()) then
        -- What this transaction did before is not committed yet; a tick after it will count it, once.
        return 0;
    end if;
    if pg_snapshot_xmax(v_mark.snapshot) > pg_snapshot_xmax(pg_current_snapshot()) then
        -- Transaction ids ran backwards: this is a logical copy in another cluster. Count anew.
        delete from ojs.tally;
        insert into ojs.tally (tenant_id, queue, priority, scheduled, available, pending, active, retryable, completed, cancelled, discarded, total, failed)
        select j.tenant_id, j.queue, j.priority, count(*) filter (where j.state = 'scheduled'), count(*) filter (where j.state = 'available'),
            count(*) filter (where j.state = 'pending'), count(*) filter (where j.state = 'active'), count(*) filter (where j.state = 'retryable'),
            count(*) filter (where j.state = 'completed'), count(*) filter (where j.state = 'cancelled'), count(*) filter (where j.state = 'discarded'), count(*),
            coalesce(sum(jsonb_array_length(j.errors)), 0)
        from (select j.tenant_id, j.queue, j.priority, j.state, j.errors from ojs.job j union all select k.tenant_id, k.queue, k.priority, k.state, k.errors from ojs.dead_job k) j
        group by j.tenant_id, j.queue, j.priority;
        update ojs.tally_mark t set rev = t.rev + 1, snapshot = ojs._snapshot(), at = ojs.now() where t.rev = v_mark.rev;
        return 1;
    end if;
    with mark as materialized (
        select ojs._snapshot() as snapshot
    ), recent as materialized (
        select r.*, t.rev as old_rev
        from ojs._recent() r
        left join lateral (select t.rev from ojs.tally t where t.tenant_id = r.tenant_id and t.queue = r.queue and t.priority = r.priority
            order by t.rev desc limit 1) t on true
    ), marked as (
        update ojs.tally_mark t set rev = t.rev + 1, snapshot = m.snapshot, at = ojs.now() from mark m where t.rev = v_mark.rev and exists (select from recent)
    ), added as (
        insert into ojs.tally (tenant_id, queue, priority, scheduled, available, pending, active, retryable, completed, cancelled, discarded, total, failed)
        select r.tenant_id, r.queue, r.priority, r.scheduled, r.available, r.pending, r.active, r.retryable, r.completed, r.cancelled, r.discarded, r.total, r.failed
        from recent r where r.old_rev is null
    ), changed as (
        update ojs.tally t
        set rev = t.rev + 1, scheduled = t.scheduled + r.scheduled, available = t.available + r.available, pending = t.pending + r.pending,
            active = t.active + r.active, retryable = t.retryable + r.retryable, completed = t.completed + r.completed,
            cancelled = t.cancelled + r.cancelled, discarded = t.discarded + r.discarded, total = t.total + r.total, failed = t.failed + r.failed
        from recent r
        where t.tenant_id = r.tenant_id and t.queue = r.queue and t.priority = r.priority and t.rev = r.old_rev
    )
    select count(*) into v_rows from recent;
    return v_rows;
end;
$$;
-- +goose StatementEnd
comment on function ojs._roll_up() is 'Adds the movements since ojs.tally_mark to ojs.tally and moves the mark, in one statement: exact whenever it is read. Another server at it: does nothing.';

-- +goose StatementBegin
create function ojs._promote(p_tenants text[], p_ids uuid[]) returns int
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now    timestamptz := ojs.now();
    v_queues text[];
    v_jobs   int;
begin
    with asked as materialized (
        select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)
    ), held as materialized (
        select j.id, j.tenant_id, j.state, coalesce(j.retry_at, j.scheduled_at) as due_at
        from asked a
        cross join lateral (select j.* from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id
              and (j.state = 'scheduled' and j.scheduled_at <= v_now or j.state = 'retryable' and j.retry_at <= v_now)
            for update skip locked) j
    ), numbered as materialized (
        select h.*, nextval('ojs.job_seq') as seq from (select * from held order by due_at, id) h
    ), promoted as (
        update ojs.job j set state = 'available', seq = n.seq, enqueued_at = v_now
        from numbered n where j.id = n.id and j.tenant_id = n.tenant_id
        returning j.tenant_id, j.queue, j.priority, n.state as from_state, j.seq
    ), woken as (
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select p.tenant_id, p.queue, p.priority, p.from_state, 'available', count(*), min(p.seq), max(p.seq)
        from promoted p group by p.tenant_id, p.queue, p.priority, p.from_state
        returning queue
    ), later as (
        -- Locked by somebody just now, or moved to a later time: look again.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select greatest(coalesce(j.retry_at, j.scheduled_at), v_now + interval '1 second'), 'due', array[j.tenant_id], array[j.id]
        from asked a
        cross join lateral (select j.* from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state in ('scheduled', 'retryable') limit 1) j
        where (a.id, a.tenant_id) not in (select h.id, h.tenant_id from held h)
    )
    select (select array_agg(distinct w.queue) from woken w), (select count(*) from promoted) into v_queues, v_jobs;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    return v_jobs;
end;
$$;
-- +goose StatementEnd
comment on function ojs._promote(text[], uuid[]) is 'Makes those of the jobs that are due available; they line up behind what was available before. Returns how many.';

-- +goose StatementBegin
create function ojs._reap(p_tenants text[], p_ids uuid[], p_lost text[] default null) returns int
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now    timestamptz := ojs.now();
    v_queues text[];
    v_jobs   int;
begin
    -- Nearly all of them are done by now.
    with asked as materialized (
        select distinct j.id, j.tenant_id, j.lease_expires_at, a.lost from unnest(p_ids, p_tenants, p_lost) a(id, tenant_id, lost)
        cross join lateral (select j.id, j.tenant_id, j.lease_expires_at from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'active' limit 1) j
    ), held as materialized (
        select j.*, case when a.lost is not null then 'worker_death' when j.started_at + l.limit_ms * interval '1 millisecond' <= j.lease_expires_at then 'timeout' else 'visibility_timeout' end as cause,
            l.limit_ms
        from asked a
        cross join lateral (select j.* from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'active' and (j.lease_expires_at <= v_now or j.worker_id = a.lost)
            for update skip locked) j
        cross join lateral (select ojs._timeout_ms(j.timeout_ms) as limit_ms) l
    ), judged as materialized (
        -- A lost attempt goes back at once; one that ran for too long failed. Either was the last if no attempts are left.
        select e.*, case when ojs._failed_state(e.entry, false, e.attempt, e.max_attempts, e.retry) = 'discarded' then 'discarded' when e.cause = 'timeout' then 'retryable' else 'available'
            end::ojs.job_state as to_state
        from (
            select h.*, ojs._error_entry(jsonb_strip_nulls(jsonb_build_object('type', h.cause, 'message', case h.cause
                    when 'timeout' then format('Job execution exceeded timeout of %s seconds', trim_scale(h.limit_ms / 1000.0))
                    when 'worker_death' then 'The worker stopped sending heartbeats.'
                    else 'The worker neither finished the job nor sent a heartbeat in time.' end,
                'timeout_kind', case h.cause when 'timeout' then 'execution' else 'stalled' end, 'limit_seconds', case h.cause when 'timeout' then trim_scale(h.limit_ms / 1000.0) end,
                'elapsed_seconds', round(extract(epoch from v_now - h.started_at), 3))), h.attempt, v_now) as entry
            from held h
        ) e
    ), reaped as (
        update ojs.job j
        set state = g.to_state, lease = null, lease_expires_at = null, errors = ojs._errors_with(j.errors, g.entry),
            started_at = case when g.to_state <> 'available' then j.started_at end, enqueued_at = case when g.to_state = 'available' then v_now else j.enqueued_at end,
            finished_at = case when g.to_state = 'discarded' then v_now end,
            retry_at = case when g.to_state = 'retryable' then v_now + ojs._retry_delay_ms(j.retry, j.attempt) * interval '1 millisecond' else j.retry_at end
        from judged g where j.id = g.id and j.tenant_id = g.tenant_id
        returning j.tenant_id, j.id, j.queue, j.priority, j.seq, j.state, j.retry_at
    ), released as (
        insert into ojs.release (tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state, started_at, cause)
        select g.tenant_id, g.queue, g.priority, g.id, g.type, g.attempt, g.state, g.to_state, g.started_at, g.cause from judged g
    ), woken as (
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select r.tenant_id, r.queue, r.priority, 'available', 'available', 1, r.seq, r.seq from reaped r where r.state = 'available'
        returning queue
    ), reminded as (
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select max(r.retry_at), 'due', array_agg(r.tenant_id), array_agg(r.id)
        from reaped r where r.state = 'retryable' group by date_bin('50 milliseconds', r.retry_at, 'epoch')
    ), buried as materialized (
        select ojs._bury(array_agg(g.tenant_id), array_agg(g.id), array_agg(g.queue), array_agg(g.type), array_agg(g.entry), v_now)
        from judged g where g.to_state = 'discarded' and ojs._to_dead_letters(g.retry, g.entry) having count(*) > 0
    ), later as (
        -- Extended by a heartbeat, handed out anew, or locked by an acknowledgement at this moment: look again.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select greatest(a.lease_expires_at, v_now + interval '1 second'), 'lease', array[a.tenant_id], array[a.id]
        from asked a
        where (a.id, a.tenant_id) not in (select h.id, h.tenant_id from held h)
          and not exists (select from ojs.timer t where t.due_at = a.lease_expires_at and t.kind = 'lease' and a.id = any (t.ids))
    )
    select (select array_agg(distinct w.queue) from woken w), (select count(*) from reaped, (select count(*) from buried) b) into v_queues, v_jobs;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    return v_jobs;
end;
$$;
-- +goose StatementEnd
comment on function ojs._reap(text[], uuid[], text[]) is
'Ends the attempts of those of the jobs whose lease has expired, or whose worker is the one in p_lost, in step with p_ids: the attempt counts and is recorded as an error. One that ran for as long as it
may failed (timeout) and is retried by its policy; else its worker was lost (visibility_timeout, worker_death) and it is available again at once. Discarded in either case, and put among the dead letters if the policy
says so, when attempts are exhausted or the policy does not retry such errors: a job that kills its workers ends. Returns how many.';

-- +goose StatementBegin
create function ojs._expire_due(p_tenants text[], p_ids uuid[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := ojs.now();
begin
    with ended as materialized (
        select x.id, x.tenant_id from ojs._discard_expired(p_ids, p_tenants) x
    )
    -- Locked by somebody just now: look again. In a worker's hands: it may come back.
    insert into ojs.timer (due_at, kind, tenant_ids, ids)
    select case when j.state = 'active' then greatest(j.lease_expires_at, v_now + interval '1 second') else greatest(j.expires_at, v_now + interval '1 second') end, 'expiry', array[j.tenant_id], array[j.id]
    from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)) a
    cross join lateral (select j.* from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state not in ('completed', 'cancelled', 'discarded') and j.expires_at is not null limit 1) j
    where (a.id, a.tenant_id) not in (select e.id, e.tenant_id from ended e);
end;
$$;
-- +goose StatementEnd
comment on function ojs._expire_due(text[], uuid[]) is 'Discards those of the jobs that wait past their expires_at.';

-- +goose StatementBegin
create function ojs._wake_again(p_tenants text[], p_ids uuid[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_queues text[];
begin
    with woken as (
        insert into ojs.wake (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
        select j.tenant_id, j.queue, j.priority, 'available', 'available', 1, j.seq, j.seq
        from (select distinct a.id, a.tenant_id from unnest(p_ids, p_tenants) a(id, tenant_id)) a
        cross join lateral (select j.* from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'available' limit 1) j
        returning queue
    )
    select array_agg(distinct w.queue) into v_queues from woken w;
    if v_queues is not null then
        perform ojs._notify(v_queues);
    end if;
    -- As long as somebody has hold of what was decided ahead.
    perform ojs._look_again(array_agg(r.tenant_id), array_agg(r.id))
    from unnest(v_queues) q(queue)
    cross join lateral (select m.held from ojs.run_mark m where m.queue = q.queue order by m.rev desc limit 1) m
    cross join lateral unnest(m.held) h(n)
    cross join lateral (select r.tenant_id, r.id from ojs.run r where r.queue = q.queue and r.n = h.n limit 1) r
    where r.id = any (p_ids);
end;
$$;
-- +goose StatementEnd
comment on function ojs._wake_again(text[], uuid[]) is 'Has the next decision look again at those of the jobs that are still available.';

-- +goose StatementBegin
create function ojs._journal_retention() returns interval
language sql stable
as $$ select greatest(case when s.retention = '0' then s.journal_retention else least(s.journal_retention, s.retention) end, interval '1 minute') from ojs.settings s $$;
-- +goose StatementEnd
comment on function ojs._journal_retention() is 'How long the journal is kept: the statistics of the last minute come from it, and it would outweigh jobs that stay for less.';

-- +goose StatementBegin
create function ojs._prune(p_limit int) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark   ojs.clock_mark;
    v_until  xid8;
    v_before timestamptz := ojs.now() - ojs._journal_retention();
    v_rows   int;
    v_more   boolean := false;
begin
    select m.* into v_mark from ojs.clock_mark m order by m.rev desc limit 1;
    perform from ojs.clock_mark m where m.rev = v_mark.rev for update skip locked;
    if not found then
        return false;
    end if;
    delete from ojs.waiter w where w.expires_at < ojs.now() - interval '1 minute';
    delete from ojs.sleeper s where s.expires_at < ojs.now() - interval '1 minute';
    select least(pg_snapshot_xmin((select f.snapshot from ojs.fold f where f.lane = 0 order by f.rev desc limit 1)), pg_snapshot_xmin(t.snapshot))
    into v_until from ojs.tally_mark t order by t.rev desc limit 1;
    delete from ojs.wake w using (select x.xid, x.seq from ojs.wake x where x.xid >= v_mark.wake and x.xid < v_until order by x.xid, x.seq limit p_limit) old
    where w.xid = old.xid and w.seq = old.seq and w.at < v_before;
    get diagnostics v_rows = row_count;
    v_more := v_more or v_rows >= p_limit;
    delete from ojs.lease l using (select x.xid, x.seq from ojs.lease x where x.xid >= v_mark.lease and x.xid < v_until order by x.xid, x.seq limit p_limit) old
    where l.xid = old.xid and l.seq = old.seq and l.at < v_before;
    get diagnostics v_rows = row_count;
    v_more := v_more or v_rows >= p_limit;
    delete from ojs.release r using (select x.xid, x.seq from ojs.release x where x.xid >= v_mark.release and x.xid < v_until order by x.xid, x.seq limit p_limit) old
    where r.xid = old.xid and r.seq = old.seq and r.at < v_before;
    get diagnostics v_rows = row_count;
    v_more := v_more or v_rows >= p_limit;
    -- Nobody inserts below v_until any more: all those transactions had ended when the journal was folded and rolled up.
    update ojs.clock_mark m
    set rev = m.rev + 1,
        wake = greatest(m.wake, least(v_until, (select w.xid from ojs.wake w where w.xid >= m.wake order by w.xid, w.seq limit 1))),
        lease = greatest(m.lease, least(v_until, (select l.xid from ojs.lease l where l.xid >= m.lease order by l.xid, l.seq limit 1))),
        release = greatest(m.release, least(v_until, (select r.xid from ojs.release r where r.xid >= m.release order by r.xid, r.seq limit 1)))
    where m.rev = v_mark.rev;
    return v_more;
end;
$$;
-- +goose StatementEnd
comment on function ojs._prune(int) is
'Removes journal rows that are old (ojs._journal_retention) and have been folded and rolled up, up to p_limit of each, and returns whether there are more. Another
session at it: does nothing.';

-- +goose StatementBegin
create function ojs._sleeps(p_token text, p_stride_ms int) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
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
'Registers a clock that looks at least every p_stride_ms milliseconds and listens for p_token, or withdraws it (0). Returns false if it was not registered before: then it has to look again.
Writes every half minute.';

-- +goose StatementBegin
create function ojs.tick(p_limit int default 1000, p_token text default null, p_stride_ms int default 0, p_backend int default null) returns ojs.tick_result
language plpgsql security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set max_parallel_workers_per_gather = 0 set jit = off
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
    if (select m.next_at <= v_now from ojs.dead_letter_mark m order by m.rev desc limit 1) then
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
'Does what is due now: promotes scheduled and retryable jobs, discards jobs that expired, retries dead letters by their rules, takes back jobs whose lease expired or whose worker fell silent, fires cron jobs, rolls up statistics, removes old journal rows and old dead letters. Looks at
timers of about p_limit (1 to 100000) jobs. Returns what it did and when to call again: next_in_ms milliseconds later, at most 10000. A caller that listens on
channel ojs_wake may sleep that long if it gives a p_token of its own and the most it ever sleeps, p_stride_ms (up to 10000): a commit with a timer that is due
sooner sends the token. Without both, timers that are inserted meanwhile have to wait, so call it every 150 ms or so. p_stride_ms 0 with a token withdraws it.
Of all who give a token, one is on duty (ojs.duty); for the others, and for everybody while dispatch is held, nothing is done, on_duty is false and next_in_ms 1000. The duty passes on when the session
of p_backend has ended, the process id of the one on which its holder listens for notifications, when its holder has not called for 30 seconds (2 without p_backend), or by
ojs.stand_down. Servers call it all the time; without a server, call it yourself, without a token. Safe from many sessions at once.';
grant execute on function ojs.tick(int, text, int, int) to ojs_service, ojs_operator;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.tick(int, text, int, int);
drop function ojs._sleeps(text, int);
drop function ojs._prune(int);
drop function ojs._journal_retention();
drop function ojs._wake_again(text[], uuid[]);
drop function ojs._expire_due(text[], uuid[]);
drop function ojs._reap(text[], uuid[], text[]);
drop function ojs._promote(text[], uuid[]);
drop function ojs._roll_up();
drop function ojs._recent();
drop view ojs._movement;
drop trigger timer_arriving on ojs.timer;
drop function ojs._timer_arriving();
drop type ojs.tick_result;
reset role;
