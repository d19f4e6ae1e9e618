-- +goose Up
-- What people read, and the tenant's door for plain inserts. Every view runs with its reader's rights: a tenant sees its own rows.
set local role ojs_owner;

create view ojs.jobs with (security_invoker = true) as
select j.tenant_id, j.id, j.type, j.queue, j.priority, j.state, j.attempt, j.max_attempts, j.args, j.meta, j.created_at, j.enqueued_at, j.scheduled_at, j.expires_at,
    j.started_at, j.lease_expires_at, j.finished_at, j.retry_at, j.worker_id, j.errors, j.result, j.timeout_ms, j.visibility_timeout_ms, j.tags, j.retry, j.options, j.extra
from ojs.job j;
comment on view ojs.jobs is
'Jobs, for reading and for plain inserts: insert into ojs.jobs (type, args, queue, ...) in a transaction of your own enqueues like ojs.enqueue, with
the same rules and the same errors. May be given: id (of at most a day ahead), type, queue, priority, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags,
args, meta, retry, options, extra; and tenant_id by a role that is no tenant''s. A tenant''s role sees and inserts its own jobs only.';
grant select on ojs.jobs to ojs_service, ojs_operator, ojs_tenant;
grant insert (id, type, queue, priority, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra)
    on ojs.jobs to ojs_service, ojs_operator, ojs_tenant;
grant insert (tenant_id) on ojs.jobs to ojs_service, ojs_operator;

-- The fairness state has an index without a tenant in it, by which explain analyze would count the others: so tenants read it here.
-- +goose StatementBegin
create function ojs._fairness() returns setof ojs.tenant_fairness
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_tenant text := ojs.current_tenant();
begin
    if v_tenant is null and not (pg_has_role(session_user, 'ojs_service', 'member') or pg_has_role(session_user, 'ojs_operator', 'member')) then
        return;
    end if;
    return query
    select f.queue, f.priority, f.tenant_id, f.vtime, f.weight, f.class, f.backlogged,
        case when f.backlogged then coalesce(round((r.v - f.vtime) * f.weight, 6), f.deficit) else 0 end, f.dispatched - coalesce(a.jobs, 0), f.job_priority, f.head, f.reentry_head, f.drift, f.rev
    from ojs.tenant_fairness f
    -- Decided ahead is not handed out.
    left join (select r.queue, r.priority, r.tenant_id, count(*) as jobs from ojs.run r group by r.queue, r.priority, r.tenant_id) a
        on a.queue = f.queue and a.priority = f.priority and a.tenant_id = f.tenant_id
    left join lateral (select r.v from ojs.ring r where r.queue = f.queue and r.priority = f.priority order by r.rev desc limit 1) r on f.backlogged
    where v_tenant is null or f.tenant_id = v_tenant;
end;
$$;
-- +goose StatementEnd
comment on function ojs._fairness() is 'The rows of ojs.tenant_fairness that are the caller''s to see, with the deficit as it is at this moment.';
grant execute on function ojs._fairness() to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs._oldest_aside() returns table (queue text, priority int, tenant_id text, oldest_at timestamptz)
language plpgsql stable security definer rows 100 set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    v_tenant text := ojs.current_tenant();
begin
    if v_tenant is null and not (pg_has_role(session_user, 'ojs_service', 'member') or pg_has_role(session_user, 'ojs_operator', 'member')) then
        return;
    end if;
    return query
    select a.queue, a.priority, a.tenant_id, min(j.enqueued_at)
    from (
        select e.queue, e.priority, e.tenant_id, e.id from ojs.reentry e
        union all
        select r.queue, r.priority, r.tenant_id, r.id from ojs.run r
        union all
        select j.queue, j.priority + coalesce(t.priority_boost, 0), j.tenant_id, j.id
        from ojs.timer m
        cross join lateral unnest(m.tenant_ids, m.ids) x(tenant_id, id)
        cross join lateral (select j.* from ojs.job j where j.id = x.id and j.tenant_id = x.tenant_id limit 1) j
        left join ojs.tenant t on t.tenant_id = j.tenant_id
        where m.kind = 'again' and m.due_at <= ojs.now() + interval '1 second'
    ) a
    cross join lateral (select j.enqueued_at from ojs.job j where j.id = a.id and j.tenant_id = a.tenant_id and j.state = 'available' limit 1) j
    where v_tenant is null or a.tenant_id = v_tenant
    group by a.queue, a.priority, a.tenant_id;
end;
$$;
-- +goose StatementEnd
comment on function ojs._oldest_aside() is
'Per effective priority of a queue and tenant the time of the oldest job that is available but not in line: on the small list, decided ahead, or locked when its turn came. The caller''s to see only.';
grant execute on function ojs._oldest_aside() to ojs_service, ojs_operator, ojs_tenant;

-- Per (tenant, queue, priority): the tally plus what the journal says since, and the oldest job in line.
create view ojs._line with (security_invoker = true) as
select n.*, least(w.oldest_at, b.oldest_at) as oldest_at
from (
    select u.tenant_id, u.queue, u.priority, sum(u.scheduled) as scheduled, sum(u.available) as available, sum(u.pending) as pending, sum(u.active) as active,
        sum(u.retryable) as retryable, sum(u.completed) as completed, sum(u.cancelled) as cancelled, sum(u.discarded) as discarded, sum(u.total) as total, sum(u.failed) as failed
    from (
        select t.tenant_id, t.queue, t.priority, t.scheduled, t.available, t.pending, t.active, t.retryable, t.completed, t.cancelled, t.discarded, t.total, t.failed
        from ojs.tally t
        union all
        select r.tenant_id, r.queue, r.priority, r.scheduled, r.available, r.pending, r.active, r.retryable, r.completed, r.cancelled, r.discarded, r.total, r.failed
        from ojs._recent() r
    ) u
    group by u.tenant_id, u.queue, u.priority
) n
left join ojs._fairness() f on n.available > 0 and f.queue = n.queue and f.job_priority = n.priority and f.tenant_id = n.tenant_id
-- Made available since the last decision: new jobs whose producer committed late begin before the cursor, jobs that came back are single.
left join (
    select u.tenant_id, u.queue, u.priority, min(u.lo) as lo from ojs._unfolded() u where u.from_state is distinct from 'available'
    group by u.tenant_id, u.queue, u.priority
) u on u.tenant_id = n.tenant_id and u.queue = n.queue and u.priority = n.priority
left join (
    select u.tenant_id, u.queue, u.priority, min(j.enqueued_at) as oldest_at
    from ojs._unfolded() u
    join ojs.job j on j.queue = u.queue and j.priority = u.priority and j.tenant_id = u.tenant_id and j.seq = u.lo and j.state = 'available'
    where u.from_state = 'available'
    group by u.tenant_id, u.queue, u.priority
) b on b.tenant_id = n.tenant_id and b.queue = n.queue and b.priority = n.priority
left join lateral (
    select min(o.enqueued_at) as oldest_at
    from (
        (select j.enqueued_at from ojs.job j
        where j.queue = n.queue and j.priority = n.priority and j.tenant_id = n.tenant_id and j.seq > least(coalesce(f.head, 0), u.lo - 1) and j.state = 'available'
        order by j.seq limit 1)
        union all
        select a.oldest_at from ojs._oldest_aside() a where a.queue = n.queue and a.priority = f.priority and a.tenant_id = n.tenant_id
    ) o
) w on n.available > 0;
comment on view ojs._line is 'Numbers of jobs per (tenant, queue, priority) as of now, and when the first in line became available.';
grant select on ojs._line to ojs_service, ojs_operator, ojs_tenant;

create view ojs.shard_stats with (security_invoker = true) as
select l.tenant_id, l.queue, sum(l.scheduled)::bigint as scheduled, sum(l.available)::bigint as available, sum(l.pending)::bigint as pending, sum(l.active)::bigint as active,
    sum(l.retryable)::bigint as retryable, sum(l.completed)::bigint as completed, sum(l.cancelled)::bigint as cancelled, sum(l.discarded)::bigint as discarded,
    ojs.now() - min(l.oldest_at) as oldest_wait, sum(l.total)::bigint as total_jobs, sum(l.failed)::bigint as failed
from ojs._line l
group by l.tenant_id, l.queue;
comment on view ojs.shard_stats is
'One row per tenant and queue: jobs by state now (scheduled, available, pending, active, retryable) and ever (completed, cancelled, discarded, total_jobs; failed counts
attempts), and how long the first in line has waited. Exact as of the reading transaction; costs as much as there are rows, not jobs.';
grant select on ojs.shard_stats to ojs_service, ojs_operator, ojs_tenant;

create view ojs.queue_stats with (security_invoker = true) as
select coalesce(s.queue, c.queue) as queue, coalesce(s.scheduled, 0) as scheduled, coalesce(s.available, 0) as available, coalesce(s.pending, 0) as pending, coalesce(s.active, 0) as active,
    coalesce(s.retryable, 0) as retryable, coalesce(s.completed, 0) as completed, coalesce(s.cancelled, 0) as cancelled, coalesce(s.discarded, 0) as discarded,
    s.oldest_wait, coalesce(s.total_jobs, 0) as total_jobs, coalesce(s.failed, 0) as failed, coalesce(s.tenants, 0) as tenants, coalesce(c.paused, false) as paused
from (
    select s.queue, sum(s.scheduled)::bigint as scheduled, sum(s.available)::bigint as available, sum(s.pending)::bigint as pending, sum(s.active)::bigint as active,
        sum(s.retryable)::bigint as retryable, sum(s.completed)::bigint as completed, sum(s.cancelled)::bigint as cancelled, sum(s.discarded)::bigint as discarded,
        max(s.oldest_wait) as oldest_wait, sum(s.total_jobs)::bigint as total_jobs, sum(s.failed)::bigint as failed,
        count(*) filter (where s.available > 0 or s.active > 0) as tenants
    from ojs.shard_stats s group by s.queue
) s
full join ojs.queue c on c.queue = s.queue;
comment on view ojs.queue_stats is
'One row per queue: as ojs.shard_stats, summed over the tenants the reader may see; tenants: how many have jobs available or active; paused: dispatch stands still.';
grant select on ojs.queue_stats to ojs_service, ojs_operator, ojs_tenant;

create view ojs.tenant_stats with (security_invoker = true) as
with shard as (
    select s.tenant_id, sum(s.available)::bigint as backlog, sum(s.active)::bigint as active, sum(s.scheduled)::bigint as scheduled, sum(s.pending)::bigint as pending,
        sum(s.retryable)::bigint as retryable, sum(s.completed)::bigint as completed, sum(s.cancelled)::bigint as cancelled, sum(s.discarded)::bigint as discarded,
        sum(s.failed)::bigint as failed, sum(s.total_jobs)::bigint as total_jobs, max(s.oldest_wait) as oldest_wait
    from ojs.shard_stats s group by s.tenant_id
), owed as (
    select f.tenant_id, sum(f.dispatched)::bigint as dispatched, sum(f.deficit) as deficit from ojs._fairness() f group by f.tenant_id
), minute as (
    select l.tenant_id, sum(l.jobs) as jobs from ojs.lease l where l.at > ojs.now() - interval '1 minute' group by l.tenant_id
)
select coalesce(s.tenant_id, c.tenant_id) as tenant_id, coalesce(c.weight, 1) as weight, coalesce(s.backlog, 0) as backlog, coalesce(s.active, 0) as active, coalesce(s.scheduled, 0) as scheduled,
    coalesce(s.pending, 0) as pending, coalesce(s.retryable, 0) as retryable, coalesce(s.completed, 0) as completed, coalesce(s.cancelled, 0) as cancelled,
    coalesce(s.discarded, 0) as discarded, coalesce(s.failed, 0) as failed, coalesce(s.total_jobs, 0) as total_jobs, s.oldest_wait, coalesce(o.deficit, 0) as deficit,
    case when s.backlog > 0 or s.active > 0
        then round(coalesce(c.weight, 1) / sum(coalesce(c.weight, 1)) filter (where s.backlog > 0 or s.active > 0) over (), 4) end as effective_share,
    round(m.jobs / sum(m.jobs) over (), 4) as actual_share, coalesce(o.dispatched, 0) as dispatched
from shard s
full join ojs.tenant c on c.tenant_id = s.tenant_id
left join owed o on o.tenant_id = coalesce(s.tenant_id, c.tenant_id)
left join minute m on m.tenant_id = coalesce(s.tenant_id, c.tenant_id);
comment on view ojs.tenant_stats is
'One row per tenant: weight; jobs now (backlog = available, active, scheduled, pending, retryable) and ever (completed, cancelled, discarded, total_jobs, dispatched; failed
counts attempts); how long its first job in line has waited; deficit: jobs it is owed at this moment, negative when it had more; effective_share:
its weight among the tenants with work; actual_share: its part of what was handed out in the last minute. A tenant sees its own row only, and shares among itself.';
grant select on ojs.tenant_stats to ojs_service, ojs_operator, ojs_tenant;

create view ojs.results with (security_invoker = true) as
select j.tenant_id, j.id, j.state, case when not x.pruned then j.result end as result, case when j.state in ('cancelled', 'discarded') then j.errors -> -1 end as error,
    j.finished_at as result_stored_at, nullif(u.until, 'infinity') as result_expires_at, octet_length(j.result::text) as result_size_bytes, x.pruned
from ojs.job j
cross join lateral (select ojs._result_until(j.finished_at, j.options, j.extra) as until) u
cross join lateral (select coalesce(j.state = 'completed' and u.until <= ojs.now(), false) as pruned) x;
comment on view ojs.results is
'What became of jobs (ojs-results): result as the worker acknowledged with, of a job that ended otherwise its last error; when that was, until when the result is shown (null: for ever), how many bytes it has; pruned: its
result_ttl has passed. A tenant sees its own.';
grant select on ojs.results to ojs_service, ojs_operator, ojs_tenant;

-- +goose StatementBegin
create function ojs.job_results(p_ids uuid[], p_tenant text default null, p_max_bytes bigint default null) returns setof ojs.results
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_bytes  bigint := 0;
    v_result ojs.results;
begin
    if p_ids is null or cardinality(p_ids) > 1000 then
        perform ojs._raise('OJ400', 'ids must be given, and name at most 1000 jobs', '{"field": "ids"}');
    elsif v_tenant is null and exists (select from ojs.job j where j.id = any (p_ids) group by j.id having count(*) > 1) then
        perform ojs._raise('OJ411', 'a job id in ids exists in more than one tenant', '{"field": "X-OJS-Tenant"}');
    end if;
    for v_result in select r.* from ojs.results r where r.id = any (p_ids) and (v_tenant is null or r.tenant_id = v_tenant) loop
        v_bytes := v_bytes + case when v_result.result is null then 0 else v_result.result_size_bytes end + coalesce(octet_length(v_result.error::text), 0);
        if v_bytes > p_max_bytes then
            perform ojs._raise('OJ413', format('the results of ids have more than %s bytes', p_max_bytes), '{"field": "ids"}', 'Ask for fewer at once.');
        end if;
        return next v_result;
    end loop;
end;
$$;
-- +goose StatementEnd
comment on function ojs.job_results(uuid[], text, bigint) is
'What became of those of up to 1000 jobs that there are, as a row of ojs.results each (ojs-results section 9.3). Raises invalid_request, ambiguous_job, and payload_too_large where
results and errors have more than p_max_bytes: none of them may be left out.';
grant execute on function ojs.job_results(uuid[], text, bigint) to ojs_service, ojs_operator, ojs_tenant;

create type ojs.event as (id text, type text, "time" timestamptz, tenant_id text, queue text, subject text, data jsonb);
comment on type ojs.event is 'A lifecycle event (ojs-events): id, type (job.enqueued, ...), when, whose, from which queue, which job, and its data.';

-- +goose StatementBegin
create function ojs.events(p_types text[] default null, p_queues text[] default null, p_limit int default 100, p_tenant text default null) returns setof ojs.event
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
        (select 'evt_' || j.id || '_enqueued', 'job.enqueued', j.created_at, j.tenant_id, j.queue, j.id::text,
            jsonb_build_object('job_type', j.type, 'queue', j.queue, 'priority', j.priority, 'attempt', 0)
        from ojs.job j
        where (v_tenant is null or j.tenant_id = v_tenant) and (p_types is null or 'job.enqueued' = any (p_types)) and (p_queues is null or j.queue = any (p_queues))
        order by j.id desc limit p_limit)
        union all
        (select 'evt_' || j.id || '_started_' || j.attempt, 'job.started', j.started_at, j.tenant_id, j.queue, j.id::text,
            jsonb_build_object('job_type', j.type, 'queue', j.queue, 'attempt', j.attempt)
        from ojs.job j
        where j.started_at is not null and (v_tenant is null or j.tenant_id = v_tenant) and (p_types is null or 'job.started' = any (p_types))
          and (p_queues is null or j.queue = any (p_queues))
        order by j.id desc limit p_limit)
        union all
        (select 'evt_' || d.id || '_dead_lettered_' || extract(epoch from d.at), 'job.dead_lettered', d.at, d.tenant_id, d.queue, d.id::text,
            jsonb_build_object('job_type', d.type, 'queue', d.queue, 'error_type', d.error_type, 'error_code', d.error_code, 'tenant_id', d.tenant_id)
        from ojs.dead_letter d
        where (v_tenant is null or d.tenant_id = v_tenant) and (p_types is null or 'job.dead_lettered' = any (p_types)) and (p_queues is null or d.queue = any (p_queues))
        order by d.at desc limit p_limit)
        union all
        (select 'evt_' || r.job_id || '_' || r.xid || '_' || r.seq, t.type, r.at, r.tenant_id, r.queue, r.job_id::text,
            jsonb_strip_nulls(jsonb_build_object('job_type', r.job_type, 'queue', r.queue, 'attempt', r.attempt,
                'duration_ms', (extract(epoch from r.at - r.started_at) * 1000)::bigint, 'created_at', ojs._utc(j.created_at), 'expired_at', case when t.type = 'job.expired' then ojs._utc(r.at) end,
                'ttl_ms', (extract(epoch from j.expires_at - j.created_at) * 1000)::bigint))
        from ojs.release r
        cross join lateral (select case
            when r.to_state = 'completed' then 'job.completed' when r.to_state = 'cancelled' then 'job.cancelled' when r.to_state = 'discarded' and r.from_state <> 'active' then 'job.expired'
            when r.from_state = 'discarded' then 'dead_letter.retried' when r.to_state = 'discarded' then 'job.discarded' when r.to_state = 'retryable' then 'job.retrying' else 'job.released' end as type) t
        left join lateral (select j.created_at, j.expires_at from ojs.job j where t.type = 'job.expired' and j.id = r.job_id and j.tenant_id = r.tenant_id limit 1) j on true
        where (v_tenant is null or r.tenant_id = v_tenant) and (p_types is null or t.type = any (p_types)) and (p_queues is null or r.queue = any (p_queues))
        order by r.xid desc, r.seq desc limit p_limit)
        union all
        (select 'evt_' || c.id || '_' || (extract(epoch from r.due_at) * 1000000)::bigint, t.type, r.at, r.tenant_id, c.queue, r.name,
            jsonb_strip_nulls(jsonb_build_object('cron_name', r.name, 'cron_expr', c.expression, 'cron_expression', c.expression, 'timezone', c.timezone, 'job_type', c.type,
                'job_id', r.job_id, 'reason', r.reason, 'existing_job_id', r.blocker, 'active_job_id', r.blocker, 'scheduled_at', t.due, 'scheduled_time', t.due,
                'actual_time', to_char(r.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
        from ojs.cron_run r
        join ojs.cron c on c.tenant_id = r.tenant_id and c.name = r.name
        cross join lateral (select case when r.job_id is null then 'cron.skipped' else 'cron.triggered' end as type,
            to_char(r.due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as due) t
        where (v_tenant is null or r.tenant_id = v_tenant) and (p_types is null or t.type = any (p_types)) and (p_queues is null or c.queue = any (p_queues))
        order by r.at desc limit p_limit)
        union all
        (select 'evt_' || r.job_id || '_' || r.xid || '_' || r.seq || '_ended', t.type, r.at, r.tenant_id, r.queue, r.job_id::text,
            jsonb_strip_nulls(jsonb_build_object('job_id', r.job_id, 'job_type', r.job_type, 'queue', r.queue, 'attempt', r.attempt,
                'timeout_kind', case t.type when 'job.timeout' then 'execution' else 'stalled' end, 'limit_seconds', case t.type when 'job.timeout' then trim_scale(ojs._timeout_ms(j.timeout_ms) / 1000.0) end,
                'elapsed_seconds', round(extract(epoch from r.at - r.started_at), 3)))
        from ojs.release r
        cross join lateral (select case r.cause when 'timeout' then 'job.timeout' else 'job.stalled' end as type) t
        left join ojs.job j on j.id = r.job_id and j.tenant_id = r.tenant_id
        where r.cause is not null and (v_tenant is null or r.tenant_id = v_tenant) and (p_types is null or t.type = any (p_types)) and (p_queues is null or r.queue = any (p_queues))
        order by r.xid desc, r.seq desc limit p_limit)
    ) e(id, type, "time", tenant_id, queue, subject, data)
    order by e."time" desc limit p_limit;
end;
$$;
-- +goose StatementEnd
comment on function ojs.events(text[], text[], int, text) is
'The latest lifecycle events, newest first: job.enqueued, job.started (of the latest attempt), job.completed, job.retrying, job.discarded, job.dead_lettered, dead_letter.retried,
job.cancelled, job.expired, job.released, and job.timeout or job.stalled beside it for an attempt that the clock ended, cron.triggered, cron.skipped (of the latest thousand times of each cron job), as far back as jobs and the journal (ojs.configure) reach. p_types, p_queues: only those; p_limit 1 to 1000. Derived, not recorded: nothing is written twice.';
grant execute on function ojs.events(text[], text[], int, text) to ojs_service, ojs_operator, ojs_tenant;
reset role;

-- +goose Down
set local role ojs_owner;
drop function ojs.events(text[], text[], int, text);
drop type ojs.event;
drop function ojs.job_results(uuid[], text, bigint);
drop view ojs.results;
drop view ojs.tenant_stats;
drop view ojs.queue_stats;
drop view ojs.shard_stats;
drop view ojs._line;
drop function ojs._oldest_aside();
drop function ojs._fairness();
drop view ojs.jobs;
reset role;
