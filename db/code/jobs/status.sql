-- Describes a job in words, for people at a prompt.
-- Locks nothing.
-- Reads only: the job, what ojs.explain reads, registered workers, and workers with jobs of the
-- queue.
create or replace function ojs.job_status(p_id uuid, p_tenant text default null) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_job    ojs.job := ojs._job_for(p_id, v_tenant);
    v_says   ojs.explanation := ojs.explain(p_id, v_tenant);
    v_since  timestamptz := case
        when ojs._ended(v_job.state) then v_job.finished_at when v_job.state = 'active' then v_job.started_at
        when v_job.state = 'available' then v_job.enqueued_at
        when v_job.state = 'retryable' then (v_job.errors -> -1 ->> 'occurred_at')::timestamptz else v_job.created_at end;
begin
    return concat_ws(' ',
        format('Job %s (%s) of tenant %s in queue %s is %s since %s.', v_job.id, v_job.type, v_job.tenant_id, v_job.queue, v_job.state,
            ojs._in_words(v_since)),
        case when v_says.tenant_ahead is not null then
            case v_says.tenant_ahead when 0 then 'It is the first in its tenant''s line.'
                else format('%s%s of its tenant come%s before it.', case v_says.certainty when 'at_least' then 'At least ' end,
                    case v_says.tenant_ahead when 1 then '1 job' else v_says.tenant_ahead || ' jobs' end,
                    case v_says.tenant_ahead when 1 then 's' end) end end,
        array_to_string(v_says.reasons, ' '),
        case when not ojs._ended(v_job.state) then ojs._serving(v_job.queue, v_tenant) end);
end;
$$;
comment on function ojs.job_status(uuid, text) is
'Describes a job in words.
The text has its state and since when, the jobs before it, why it waits, and which workers serve
its queue.
The reasons are those of ojs.explain. A caller that acts for a tenant, by p_tenant or by its login,
is told only of the tenant''s own workers. For people; programs read ojs.explain and ojs.job_info.
Raises not_found, also for a job of another tenant; ambiguous_job.';

create or replace function ojs._serving(p_queue text, p_tenant text) returns text
language plpgsql stable
as $$
declare
    c_named  constant int := 5;
    v_names  text[] := array(select n.worker_id from (
            select w.worker_id, w.last_heartbeat_at as at from ojs.workers w
            where p_queue = any (w.queues) and not w.stale and (p_tenant is null or w.tenant_id = p_tenant)
            union all
            select h.worker_id, null from ojs._holders(p_queue, p_tenant) h
        ) n group by n.worker_id order by max(n.at) desc nulls last, n.worker_id);
begin
    return case
        when v_names <> '{}' then format('Queue %s is served by %s%s.', p_queue, array_to_string(v_names[:c_named], ', '),
            case when cardinality(v_names) > c_named then format(' and %s more', cardinality(v_names) - c_named) end)
        -- A tenant does not learn of workers that wait for other tenants.
        when p_tenant is null and exists (select from ojs._waiting_servers() s where s.queue = p_queue) then
            format('A FETCH waits for jobs of queue %s; its worker is not registered.', p_queue)
        else format('No worker%s is registered for queue %s; others may serve it all the same.',
            case when p_tenant is not null then ' of the tenant' end, p_queue) end;
end;
$$;
comment on function ojs._serving(text, text) is
'Returns a sentence about which workers serve a queue, with at most five names, those with the
latest heartbeat first: registered workers, and workers that hold jobs of it. p_tenant: only the
tenant''s own workers, or those with its jobs.';
