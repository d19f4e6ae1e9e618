-- Reads leases in the order in which they end, beginning where the clock stopped last time. Before
-- them it reads the leases of transactions that committed late. So the clock reads each row once,
-- however long the row stays in the table.
create or replace function ojs._reap_leases(
    p_mark ojs.clock_mark, p_now timestamptz, p_limit int, out o_reaped int, out o_looked int, out o_seen pg_snapshot,
    out o_lease_at timestamptz
)
language plpgsql
as $$
declare
    v_jobs record;
begin
    with line as materialized (
        select l.due_at, l.ids, l.tenants, l.jobs from ojs._late_leases(p_mark) l where l.due_at <= p_now
        union all
        (select l.due_at, l.ids, l.tenants, l.jobs from ojs.lease l
        where l.due_at >= p_mark.lease_at and l.due_at <= p_now order by l.due_at fetch first (p_limit) rows with ties)
    ), bite as (
        -- Leases that end at the same time are read together. The mark is a time, and would pass
        -- the rest of them.
        select min(s.due_at) as until from (select l.due_at, sum(l.jobs) over (order by l.due_at) as jobs from line l) s
            where s.jobs >= p_limit
    )
    select ojs._snapshot() as seen, min(b.until) as until, array_agg(j.tenant_id) as tenants, array_agg(j.id) as ids
    into v_jobs
    from bite b
    left join line l on l.due_at <= b.until or b.until is null
    left join lateral unnest(l.ids, l.tenants) j(id, tenant_id) on true;
    o_seen := v_jobs.seen;
    o_lease_at := coalesce(v_jobs.until + interval '1 microsecond', p_now);
    o_looked := case when v_jobs.ids[1] is null then 0 else cardinality(v_jobs.ids) end;
    o_reaped := case when o_looked > 0 then ojs._reap(v_jobs.tenants, v_jobs.ids) else 0 end;
end;
$$;
comment on function ojs._reap_leases(ojs.clock_mark, timestamptz, int) is
'Reads leases that have ended, of about p_limit jobs, and ends the attempts of jobs that still run.
o_reaped: how many attempts it ended; o_looked: at how many jobs it looked; o_seen: the snapshot it
saw; o_lease_at: of the leases in that snapshot, those that end before this time are done.';

create or replace function ojs._moment() returns interval
language sql immutable
as $$ select interval '100 milliseconds' $$;
comment on function ojs._moment() is
'Returns after how long the clock looks again at a row that another session had locked.';

create or replace function ojs._late_leases(p_mark ojs.clock_mark) returns setof ojs.lease
language sql stable rows 10
as $$
    select l.* from ojs.lease l where l.xid >= pg_snapshot_xmax(p_mark.seen) and l.due_at < p_mark.lease_at
    union all
    select l.* from pg_snapshot_xip(p_mark.seen) x(xid)
    cross join lateral (select l.* from ojs.lease l where l.xid = x.xid and l.due_at < p_mark.lease_at offset 0) l
    where pg_visible_in_snapshot(x.xid, (select pg_current_snapshot()))
$$;
comment on function ojs._late_leases(ojs.clock_mark) is
'Returns leases that the clock has passed without seeing them: their transactions had not committed,
or the wall clock was set back.';

-- Ends attempts whose lease has ended or whose worker is lost.
-- Locks the rows of the jobs with skip locked; locked jobs are looked at again in 100 ms.
-- Writes the jobs, what ojs._book writes, and timers.
create or replace function ojs._reap(p_tenants text[], p_ids uuid[], p_lost text[] default null) returns int
language plpgsql
as $$
declare
    v_now  timestamptz := ojs.now();
    v_jobs int;
begin
    -- Nearly all of these jobs have ended by now. They are left out first, so that their rows are
    -- not locked.
    with asked as materialized (
        select distinct j.id, j.tenant_id, j.lease_expires_at, a.lost from unnest(p_ids, p_tenants, p_lost) a(id, tenant_id, lost)
        cross join lateral (select j.id, j.tenant_id, j.lease_expires_at from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'active' limit 1) j
    ), held as materialized (
        select j.*, ojs._loss(case when a.lost is not null then 'worker_death' when l.over then 'timeout' else 'visibility_timeout' end,
            j.attempt, j.worker_id, j.started_at, l.limit_ms, v_now) as entry
        from asked a
        cross join lateral (select j.* from ojs.job j
            where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'active' and (j.lease_expires_at <= v_now or j.worker_id = a.lost)
            for update skip locked) j
        cross join lateral (select t.limit_ms, j.started_at + t.limit_ms * interval '1 millisecond' <= j.lease_expires_at as over
            from (select ojs._timeout_ms(j.timeout_ms) as limit_ms offset 0) t) l
    ), judged as materialized (
        -- A job whose worker was lost becomes available at once; an attempt that ran too long has
        -- failed. In both cases the job is discarded if it has no attempts left.
        select h.*, t.to_state from held h
        cross join lateral (select case
            when ojs._failed_state(h.entry, false, h.attempt, h.max_attempts, h.retry) = 'discarded' then 'discarded'
            when h.entry ->> 'type' = 'timeout' then 'retryable' else 'available' end::ojs.job_state as to_state offset 0) t
        where t.to_state <> 'discarded' or not ojs._to_dead_letters(h.retry, h.entry) or ojs._can_bury(h.tenant_id, h.id)
    ), reaped as (
        update ojs.job j
        set state = g.to_state, lease = null, lease_expires_at = null,
            errors = case when ojs._erased(j.retry) then null else ojs._errors_with(j.errors, g.entry) end,
            started_at = case when g.to_state <> 'available' then j.started_at end,
            enqueued_at = case when g.to_state = 'available' then v_now else j.enqueued_at end,
            finished_at = case when g.to_state = 'discarded' then v_now end,
            retry_at = case when g.to_state = 'retryable' then ojs._retry_at(j.retry, j.attempt, v_now) else j.retry_at end
        from judged g where j.id = g.id and j.tenant_id = g.tenant_id
        returning (j.tenant_id, j.id, j.queue, j.priority, j.type, j.seq, j.attempt, g.started_at, j.state, j.retry_at, j.expires_at,
            j.retry, g.entry, true, g.entry ->> 'type', j.pool, j.charged)::ojs._attempt_end as ended
    ), booked as materialized (
        select ojs._book(array_agg(r.ended), v_now) from reaped r
    ), later as (
        -- Jobs whose lease a heartbeat has extended, or that another session has locked, get a new
        -- timer. For jobs that were handed out again their new lease is read instead.
        insert into ojs.timer (due_at, kind, tenant_ids, ids)
        select a.again_at, 'lease', array_agg(a.tenant_id), array_agg(a.id)
        from (select a.*, greatest(a.lease_expires_at, v_now + ojs._moment()) as again_at from asked a) a
        where (a.id, a.tenant_id) not in (select g.id, g.tenant_id from judged g)
          and not exists (select from ojs.timer t where t.due_at = a.again_at and t.kind = 'lease' and a.id = any (t.ids))
          and not exists (select from ojs.lease l where l.due_at = a.again_at and a.id = any (l.ids))
        group by a.again_at
    )
    select count(r.ended) into v_jobs from booked left join reaped r on true;
    return v_jobs;
end;
$$;
comment on function ojs._reap(text[], uuid[], text[]) is
'Ends the attempts of jobs whose lease has expired, or whose worker is the one in p_lost, and
returns how many.
The attempt counts and is added to errors. An attempt that ran as long as it may has failed
(timeout), and is retried by its policy. Otherwise its worker was lost (visibility_timeout,
worker_death), and the job is available at once. In both cases the job is discarded if its attempts
are used up or the policy does not retry such errors, and enters the dead letter queue if the policy
says so. So a job that kills its workers ends.
p_lost: in step with p_ids.';

create or replace function ojs._loss(
    p_cause text, p_attempt int, p_worker text, p_started_at timestamptz, p_limit_ms int, p_now timestamptz
)
returns jsonb
language plpgsql stable
as $$
begin
    return ojs._error_entry(jsonb_strip_nulls(jsonb_build_object(
        'type', p_cause,
        'message', case p_cause
            when 'timeout' then format('Job execution exceeded timeout of %s seconds', trim_scale(p_limit_ms / 1000.0))
            when 'worker_death' then 'The worker stopped sending heartbeats, or its process was started again.'
            else 'The worker neither finished the job nor sent a heartbeat in time.' end,
        'timeout_kind', case p_cause when 'timeout' then 'execution' else 'stalled' end,
        'limit_seconds', case p_cause when 'timeout' then trim_scale(p_limit_ms / 1000.0) end,
        'elapsed_seconds', round(extract(epoch from p_now - p_started_at), 3))), p_attempt, p_worker, p_now);
end;
$$;
comment on function ojs._loss(text, int, text, timestamptz, int, timestamptz) is
'Returns the error of an attempt that the clock ends, as its job keeps it. p_cause: timeout,
visibility_timeout, worker_death.';
