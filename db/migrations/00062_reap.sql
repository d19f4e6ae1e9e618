-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

-- +goose StatementBegin
create function ojs._reap(p_tenants text[], p_ids uuid[], p_lost text[] default null) returns int
language plpgsql
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
'Ends the attempts of those of the jobs whose lease has expired, or whose worker is the one in p_lost, in step with p_ids: the attempt
counts and is recorded as an error. One that ran for as long as it may failed (timeout) and is retried by its policy; else its worker was
lost (visibility_timeout, worker_death) and it is available again at once. Discarded in either case, and put among the dead letters if
the policy says so, when attempts are exhausted or the policy does not retry such errors: a job that kills its workers ends. Returns how
many.';
reset role;
