-- +goose Up
set local role ojs_owner;
set local check_function_bodies = off;

create type ojs.event as (id text, type text, "time" timestamptz, tenant_id text, queue text, subject text, data jsonb);
comment on type ojs.event is
'A lifecycle event (ojs-events): id, type (job.enqueued, ...), when, whose, from which queue, which job, and its data.';

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
'The latest lifecycle events, newest first: job.enqueued, job.started (of the latest attempt), job.completed, job.retrying, job.discarded,
job.dead_lettered, dead_letter.retried, job.cancelled, job.expired, job.released, and job.timeout or job.stalled beside it for an attempt
that the clock ended, cron.triggered, cron.skipped (of the latest thousand times of each cron job), as far back as jobs and the journal
(ojs.configure) reach. p_types, p_queues: only those; p_limit 1 to 1000. Derived, not recorded: nothing is written twice.';
reset role;
