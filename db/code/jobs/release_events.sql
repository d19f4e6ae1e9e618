-- Events of single jobs from the journal ojs.release, and heartbeats, for ojs.events
-- (jobs/events.sql).

create or replace function ojs._newest_releases(p_tells text, p_types text[], p_queues text[], p_limit int, p_tenant text)
    returns table (r ojs.release, type text)
language sql stable
as $$
    select r, t.type
    from ojs.release r
    cross join lateral (select case
        when p_tells = 'clock' then case r.cause when 'timeout' then 'job.timeout' else 'job.stalled' end
        when p_tells = 'failure' then 'job.failed'
        when r.to_state = 'cancelled' then 'job.cancelled' when r.to_state = 'discarded' and r.from_state <> 'active' then 'job.expired'
        when r.from_state = 'discarded' then 'dead_letter.retried' when r.to_state = 'discarded' then 'job.discarded'
            when r.to_state = 'retryable' then 'job.retrying'
        else 'job.released' end as type) t
    where case p_tells when 'clock' then r.cause is not null
            when 'failure' then r.from_state = 'active' and (r.to_state in ('retryable', 'discarded') or r.cause is not null) else true end
      and (p_tenant is null or r.tenant_id = p_tenant)
      and (p_types is null or t.type = any (p_types)) and (p_queues is null or r.queue = any (p_queues))
    order by r.xid desc, r.seq desc limit p_limit
$$;
comment on function ojs._newest_releases(text, text[], text[], int, text) is
'Returns the newest rows of ojs.release, and the type of the event for each.
p_tells: outcome: what became of the job; clock: why the clock ended an attempt; failure: that an
attempt failed.';

-- Failures are kept only in the errors of the job; the journal has their times.
create or replace function ojs._failure(p_release ojs.release) returns table (error jsonb, max_attempts int, worker_id text)
language sql stable rows 1
as $$
    select jsonb_build_object('code', coalesce(e.entry ->> 'code', 'unknown'), 'type', coalesce(e.entry ->> 'type', 'unknown'),
            'message', coalesce(left(e.entry ->> 'message', 2000), 'The error is kept no longer.'),
            'retryable', coalesce((e.entry ->> 'retryable')::boolean,
                p_release.to_state = 'retryable' or p_release.attempt >= j.max_attempts, false)),
        j.max_attempts, e.entry ->> 'worker_id'
    from (select) one
    left join lateral (
        select j.errors, j.max_attempts from ojs.job j where j.id = p_release.job_id and j.tenant_id = p_release.tenant_id
        union all
        select k.errors, k.max_attempts from ojs.dead_job k where k.id = p_release.job_id and k.tenant_id = p_release.tenant_id
        limit 1
    ) j on true
    left join lateral (
        -- Compared by time, too, because a job that was retried after its end counts its attempts
        -- anew, and may have two of one number.
        select x.value as entry from jsonb_array_elements(j.errors) x
        where x.value ->> 'attempt' = p_release.attempt::text
          and x.value ->> 'occurred_at' = to_char(p_release.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
        limit 1
    ) e on true
$$;
comment on function ojs._failure(ojs.release) is
'Returns one row: the error of an attempt that failed as events have it, with a message of up to
2,000 characters, how many attempts its job may have (null: the job is gone), and the worker that
ran it (null: it gave no name).';

create or replace function ojs._release_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || r.job_id || '_' || r.xid || '_' || r.seq, n.type, r.at, r.tenant_id, r.queue, r.job_id::text,
        jsonb_strip_nulls(jsonb_build_object('job_type', r.job_type, 'queue', r.queue, 'attempt', r.attempt,
            'duration_ms', (extract(epoch from r.at - r.started_at) * 1000)::bigint, 'created_at', ojs._utc(j.created_at),
            'expired_at', case when n.type = 'job.expired' then ojs._utc(r.at) end,
            'ttl_ms', (extract(epoch from j.expires_at - j.created_at) * 1000)::bigint,
            'max_attempts', f.max_attempts, 'next_retry_at', ojs._utc(r.retry_at),
            'error', case when n.type = 'job.retrying' then f.error end,
            'total_attempts', case when n.type = 'job.discarded' then r.attempt end,
            'last_error', case when n.type = 'job.discarded' then f.error end))
    from ojs._newest_releases('outcome', p_types, p_queues, p_limit, p_tenant) n
    cross join lateral (select (n.r).*) r
    left join lateral (select j.created_at, j.expires_at from ojs.job j where n.type = 'job.expired' and j.id = r.job_id
        and j.tenant_id = r.tenant_id limit 1) j on true
    left join lateral ojs._failure(n.r) f on n.type in ('job.retrying', 'job.discarded')
    where p_types is null or p_types && '{job.cancelled,job.expired,dead_letter.retried,job.discarded,job.retrying,job.released}'
$$;
comment on function ojs._release_events(text[], text[], int, text) is
'Returns events from ojs.release: job.cancelled, job.expired, dead_letter.retried, job.discarded,
job.retrying, job.released.';

create or replace function ojs._failed_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || r.job_id || '_' || r.xid || '_' || r.seq || '_failed', n.type, r.at, r.tenant_id, r.queue, r.job_id::text,
        jsonb_strip_nulls(jsonb_build_object('job_type', r.job_type, 'queue', r.queue, 'attempt', r.attempt, 'worker_id', f.worker_id,
            'error', f.error,
            'duration_ms', (extract(epoch from r.at - r.started_at) * 1000)::bigint))
    from ojs._newest_releases('failure', p_types, p_queues, p_limit, p_tenant) n
    cross join lateral (select (n.r).*) r
    cross join lateral ojs._failure(n.r) f
    where p_types is null or 'job.failed' = any (p_types)
$$;
comment on function ojs._failed_events(text[], text[], int, text) is
'Returns job.failed for each attempt that failed, in addition to the event that says what became of
the job.';

create or replace function ojs._heartbeat_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || j.id || '_heartbeat_' || (extract(epoch from b.seen_at) * 1000000)::bigint, 'job.heartbeat', b.seen_at, j.tenant_id,
        j.queue, j.id::text, jsonb_build_object('job_type', j.type, 'queue', j.queue, 'worker_id', j.worker_id, 'attempt', j.attempt,
            'visible_until', ojs._utc(j.lease_expires_at))
    from (
        select distinct on (b.tenant_id, b.worker_id) b.* from ojs.worker_beat b order by b.tenant_id, b.worker_id, b.rev desc
    ) b
    cross join lateral unnest(b.ids) u(id)
    cross join lateral (select j.* from ojs.job j where j.id = u.id and (p_tenant is null or j.tenant_id = p_tenant)
        and j.state = 'active' and j.worker_id = b.worker_id and j.started_at <= b.seen_at) j
    where 'job.heartbeat' = any (p_types) and b.tenant_id in ('', j.tenant_id) and (p_queues is null or j.queue = any (p_queues))
    order by b.seen_at desc limit p_limit
$$;
comment on function ojs._heartbeat_events(text[], text[], int, text) is
'Returns job.heartbeat: for each running job the latest heartbeat that was stored. No rows unless
p_types names it.';

create or replace function ojs._clock_events(p_types text[], p_queues text[], p_limit int, p_tenant text) returns setof ojs.event
language sql stable
as $$
    select 'evt_' || r.job_id || '_' || r.xid || '_' || r.seq || '_ended', n.type, r.at, r.tenant_id, r.queue, r.job_id::text,
        jsonb_strip_nulls(jsonb_build_object('job_id', r.job_id, 'job_type', r.job_type, 'queue', r.queue, 'attempt', r.attempt,
            'worker_id', f.worker_id, 'timeout_kind', case n.type when 'job.timeout' then 'execution' else 'stalled' end,
            'limit_seconds', case n.type when 'job.timeout' then trim_scale(ojs._timeout_ms(j.timeout_ms) / 1000.0) end,
            'elapsed_seconds', round(extract(epoch from r.at - r.started_at), 3)))
    from ojs._newest_releases('clock', p_types, p_queues, p_limit, p_tenant) n
    cross join lateral (select (n.r).*) r
    cross join lateral ojs._failure(n.r) f
    left join lateral (select j.timeout_ms from ojs.job j where j.id = r.job_id and j.tenant_id = r.tenant_id limit 1) j on true
    where p_types is null or p_types && '{job.timeout,job.stalled}'
$$;
comment on function ojs._clock_events(text[], text[], int, text) is
'Returns events of attempts that the clock ended: job.timeout, job.stalled.';
