comment on type ojs.event is
'A lifecycle event (ojs-events): its id, type (job.enqueued, ...), time, tenant, queue, subject
(such as the job), and data, which has the fields that ojs-events requires. worker_id is empty if
the worker gave no name.';

-- Returns the latest events of the tenant that the caller acts for, or of all; the functions below
-- do not check the caller.
-- Reads: for one tenant its own rows, by its shards or by indexes that begin with the tenant; for
-- all tenants the newest rows of each source.
-- Locks nothing, writes nothing.
create or replace function ojs.events(
    p_types text[] default null, p_queues text[] default null, p_limit int default 100, p_tenant text default null
)
    returns setof ojs.event
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
begin
    if p_limit is null or p_limit not between 1 and 1000 then
        perform ojs._raise('OJ400', 'limit must be an integer between 1 and 1000', '{"field": "limit"}');
    end if;
    return query
    select e.* from (
        select * from ojs._enqueued_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._attempt_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._release_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._failed_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._heartbeat_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._clock_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._dead_letter_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._cron_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._tenant_events(p_types, p_queues, p_limit, v_tenant)
        union all
        select * from ojs._notice_events(p_types, p_queues, p_limit, v_tenant)
    ) e
    order by e."time" desc limit p_limit;
end;
$$;
comment on function ojs.events(text[], text[], int, text) is
'Returns the latest lifecycle events, newest first.
They reach as far back as jobs and the journal (ojs.configure).
p_types, p_queues: only events of these types and queues (null: all).
p_limit: 1 to 1000.
p_tenant: only events of this tenant; a tenant''s login role gets its own.
Types:
- job.enqueued, and for a job that is to wait also job.scheduled;
- job.started (of the latest attempt), job.completed;
- job.failed (of each attempt that failed), and with it job.retrying or job.discarded;
- job.dead_lettered; dead_letter.retried (for any discarded job that runs again);
- job.cancelled, job.expired, job.released; for an attempt that the clock ended also job.timeout or
job.stalled;
- job.heartbeat (the latest one of each running job), only if p_types names it, because there are
many;
- cron.triggered, cron.skipped (of the latest thousand times of each cron job);
- tenant.created, tenant.throttled, tenant.throttle_released (multi-tenancy sections 9 and 11.1);
- for a caller that sees all tenants: tenant.noisy, scheduling.queue_starved,
scheduling.pool_overloaded, scheduling.rebalanced (fair-scheduling section 11.1).
Events are derived from the rows of jobs and journals; they are not stored. Raises
invalid_request.';

create or replace function ojs._newest_jobs(p_event text, p_queues text[], p_limit int, p_tenant text) returns setof ojs.job
language sql stable
as $$
    (select j.* from ojs.job j
    where p_tenant is null and (p_queues is null or j.queue = any (p_queues))
      and (p_event = 'job.enqueued' or j.started_at is not null and (p_event = 'job.started' or j.state = 'completed'))
    order by j.id desc limit p_limit)
    union all
    select j.*
    from ojs._shards(p_tenant) s
    cross join lateral (
        (select j.* from ojs.job j
        where j.queue = s.queue and j.priority = s.priority and j.tenant_id = p_tenant and j.seq is not null
          and (p_event = 'job.enqueued' or j.started_at is not null and (p_event = 'job.started' or j.state = 'completed'))
        order by j.seq desc limit p_limit)
        union all
        -- Jobs that have not been available yet have no seq, so the query above does not find them.
        (select j.* from ojs.job j
        where p_event = 'job.enqueued' and j.queue = s.queue and j.priority = s.priority and j.tenant_id = p_tenant and j.seq is null
        order by j.id desc limit p_limit)
    ) j
    where p_tenant is not null and (p_queues is null or s.queue = any (p_queues))
$$;
comment on function ojs._newest_jobs(text, text[], int, text) is
'Returns the newest p_limit jobs that have had an event: job.enqueued, job.started or job.completed.
Of all tenants: in the order of ids. Of one tenant: p_limit of each of its shards, in the order in
which they became available, and p_limit that have not been available yet.';

-- No index says which jobs are scheduled, so a search for job.scheduled alone ends after 10,000
-- jobs.
create or replace function ojs._enqueued_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || j.id || e.mark, e.type, j.created_at, j.tenant_id, j.queue, j.id::text, jsonb_strip_nulls(e.data
        || jsonb_build_object('job_type', j.type, 'queue', j.queue, 'scheduled_at', ojs._utc(j.scheduled_at)))
    from ojs._newest_jobs('job.enqueued', p_queues, case when p_types is null or 'job.enqueued' = any (p_types) then p_limit else 10000 end,
        p_tenant) j
    cross join lateral (
        select 'job.enqueued' as type, '_enqueued' as mark, jsonb_build_object('priority', j.priority, 'attempt', 0) as data
        union all
        select 'job.scheduled', '_scheduled', '{}' where j.scheduled_at > j.created_at
    ) e
    where p_types is null or p_types && '{job.enqueued,job.scheduled}' and e.type = any (p_types)
$$;
comment on function ojs._enqueued_events(text[], text[], int, text) is
'Returns job.enqueued and job.scheduled, from the rows of jobs. job.scheduled is of the jobs whose
job.enqueued is returned, or without that type of the newest 10,000 jobs.';

-- One scan finds both types. With a long backlog it passes over many jobs that have not been
-- started, and two scans would do so twice.
create or replace function ojs._attempt_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    -- The id of the event has its time, because attempts are counted anew when a job is retried,
    -- and two events would have the same id.
    select 'evt_' || j.id || e.mark || (extract(epoch from e.at) * 1000000)::bigint, e.type, e.at, j.tenant_id, j.queue, j.id::text,
        jsonb_strip_nulls(jsonb_build_object('job_type', j.type, 'queue', j.queue, 'attempt', j.attempt,
            'worker_id', case e.type when 'job.started' then coalesce(j.worker_id, '') end, 'duration_ms', e.duration_ms))
    from ojs._newest_jobs(case when p_types is null or 'job.started' = any (p_types) then 'job.started' else 'job.completed' end, p_queues,
        p_limit, p_tenant) j
    cross join lateral (
        select 'job.started' as type, '_started_' as mark, j.started_at as at, null::bigint as duration_ms
        union all
        select 'job.completed', '_completed_', j.finished_at, (extract(epoch from j.finished_at - j.started_at) * 1000)::bigint
            where j.state = 'completed'
    ) e
    where p_types is null or p_types && '{job.started,job.completed}' and e.type = any (p_types)
$$;
comment on function ojs._attempt_events(text[], text[], int, text) is
'Returns job.started, of the latest attempt, and job.completed, from the rows of jobs. With both
types job.completed is of the jobs whose job.started is returned.';

create or replace function ojs._dead_letter_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || d.id || '_dead_lettered_' || extract(epoch from d.at), 'job.dead_lettered', d.at, d.tenant_id, d.queue, d.id::text,
        jsonb_build_object('job_type', d.type, 'queue', d.queue, 'error_type', d.error_type, 'error_code', d.error_code,
            'tenant_id', d.tenant_id)
    from ojs.dead_letter d
    where (p_types is null or 'job.dead_lettered' = any (p_types)) and (p_tenant is null or d.tenant_id = p_tenant)
      and (p_queues is null or d.queue = any (p_queues))
    order by d.at desc limit p_limit
$$;
comment on function ojs._dead_letter_events(text[], text[], int, text) is
'Returns job.dead_lettered, of the jobs that are dead letters now.';

create or replace function ojs._cron_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || c.id || '_' || (extract(epoch from r.due_at) * 1000000)::bigint, t.type, r.at, r.tenant_id, c.queue, r.name,
        jsonb_strip_nulls(jsonb_build_object('cron_name', r.name, 'cron_expr', c.expression, 'cron_expression', c.expression,
            'timezone', c.timezone, 'job_type', c.type, 'job_id', r.job_id, 'reason', r.reason, 'existing_job_id', r.blocker,
            'active_job_id', r.blocker, 'scheduled_at', t.due, 'scheduled_time', t.due,
            'actual_time', to_char(r.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
    from ojs.cron_run r
    join ojs.cron c on c.tenant_id = r.tenant_id and c.name = r.name
    cross join lateral (select case when r.job_id is null then 'cron.skipped' else 'cron.triggered' end as type,
        to_char(r.due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as due) t
    where (p_types is null or p_types && '{cron.triggered,cron.skipped}' and t.type = any (p_types))
      and (p_tenant is null or r.tenant_id = p_tenant) and (p_queues is null or c.queue = any (p_queues))
    order by r.at desc limit p_limit
$$;
comment on function ojs._cron_events(text[], text[], int, text) is
'Returns events of cron jobs: cron.triggered, cron.skipped.';

create or replace function ojs._notice_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    -- A tenant sees what is done with it, but not how it compares with others. Nor are notice
    -- numbers in its ids, because they show how many notices there are.
    select case when p_tenant is null then 'evt_notice_' || n.n
            else 'evt_' || n.type || '_' || (extract(epoch from n.at) * 1000000)::bigint end,
        n.type, n.at, n.data ->> 'tenant_id', n.data ->> 'queue', n.subject, n.data
    from ojs.notice n
    where (p_tenant is null or n.data ->> 'tenant_id' = p_tenant and n.type <> 'tenant.noisy')
      and (p_types is null or n.type = any (p_types)) and (p_queues is null or n.data ->> 'queue' = any (p_queues))
    order by n.at desc limit p_limit
$$;
comment on function ojs._notice_events(text[], text[], int, text) is
'Returns the events in ojs.notice; with p_tenant those about the tenant, without tenant.noisy.';
