-- Returns a job.
-- Reads only.
create or replace function ojs.job_info(p_id uuid, p_tenant text default null) returns ojs.job
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_job ojs.job := ojs._job_for(p_id, ojs._session_tenant(p_tenant));
begin
    if v_job.result is not null and ojs._result_until(v_job.finished_at, v_job.options, v_job.extra) <= ojs.now() then
        v_job.result := null;
    end if;
    return v_job;
end;
$$;
comment on function ojs.job_info(uuid, text) is
'Returns a job by its id (ojs-core section 7.7).
The result is null once its result_ttl has passed.
Raises not_found, also for a job of another tenant; ambiguous_job.';

create or replace function ojs._result_until(p_finished_at timestamptz, p_options json, p_extra json) returns timestamptz
language sql immutable
as $$
    select case t.ttl when -1 then 'infinity' else p_finished_at + t.ttl * interval '1 second' end
    from (select coalesce((p_options ->> 'result_ttl')::int, (p_extra ->> 'result_ttl')::int, 604800) as ttl) t
$$;
comment on function ojs._result_until(timestamptz, json, json) is
'Returns until when the result of a job that ended is kept (ojs-results section 7): result_ttl
seconds from then on. result_ttl is an option or attribute of the job, by default 604800; -1: for
ever.';

create or replace view ojs.results with (security_invoker = true) as
select j.tenant_id, j.id, j.state, case when not x.pruned then j.result end as result,
    case when j.state in ('cancelled', 'discarded') then j.errors -> -1 end as error, j.finished_at as result_stored_at,
    nullif(u.until, 'infinity') as result_expires_at, octet_length(j.result::text) as result_size_bytes, x.pruned
from ojs.jobs j
cross join lateral (select ojs._result_until(j.finished_at, j.options, j.extra) as until) u
cross join lateral (select coalesce(j.state = 'completed' and u.until <= ojs.now(), false) as pruned) x;
comment on view ojs.results is
'Results of jobs, and the last error of jobs that were cancelled or discarded (ojs-results).
result: as the worker acknowledged with; result_stored_at: when the job ended; result_expires_at:
until when the result is shown (null: for ever); result_size_bytes: its size; pruned: its result_ttl
has passed. A tenant sees its own.';

-- Returns the results of several jobs.
-- Reads only.
create or replace function ojs.job_results(p_ids uuid[], p_tenant text default null, p_max_bytes bigint default null)
returns setof ojs.results
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
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
        v_bytes := v_bytes + case when v_result.result is null then 0 else v_result.result_size_bytes end
            + coalesce(octet_length(v_result.error::text), 0);
        if v_bytes > p_max_bytes then
            perform ojs._raise('OJ413', format('the results of ids have more than %s bytes', p_max_bytes), '{"field": "ids"}',
                'Ask for fewer at once.');
        end if;
        return next v_result;
    end loop;
end;
$$;
comment on function ojs.job_results(uuid[], text, bigint) is
'Returns a row of ojs.results for each of the jobs that exists (ojs-results section 9.3).
p_ids: at most 1000; p_tenant: only jobs of this tenant.
p_max_bytes: more bytes of results and errors are refused with payload_too_large, because no job may
be left out.
Raises invalid_request, ambiguous_job, payload_too_large.';
