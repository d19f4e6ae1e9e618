-- Gives a waiting job another priority.
-- Waits for the decision under way, and locks ojs.lane until the end of the transaction; then the job's row, without waiting for it.
-- Writes job, journal, audit; notifies.
create or replace function ojs.reprioritize(p_id uuid, p_priority int, p_tenant text default null) returns ojs.job
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant text := ojs._session_tenant(p_tenant);
    v_old    ojs.job;
    v_new    ojs.job;
begin
    if (p_priority between -100 and 100) is not true then
        perform ojs._raise('OJ400', 'priority must be an integer between -100 and 100', '{"field": "priority"}');
    end if;
    -- Jobs that no decision has read yet join with the priority they have now.
    perform ojs._stop_decisions();
    v_old := ojs._job_for(p_id, v_tenant);
    -- The session that holds the lane waits for no job.
    select * into v_old from ojs.job j where j.id = v_old.id and j.tenant_id = v_old.tenant_id for update nowait;
    if exists (select from ojs.departure d where d.tenant_id = v_old.tenant_id) then
        perform ojs._raise('OJ409', format('tenant %s is being deregistered', v_old.tenant_id), jsonb_build_object('job_id', p_id));
    end if;
    if v_old.state not in ('scheduled', 'available', 'pending', 'retryable') then
        perform ojs._raise('OJ409', format('cannot give job %s another priority: it is %s', p_id, v_old.state),
            jsonb_build_object('job_id', p_id, 'current_state', v_old.state));
    end if;
    perform ojs._refuse(r) from ojs._too_high(v_old.tenant_id, p_priority, null) r where r is not null;
    p_priority := ojs._clamped(v_old.tenant_id, p_priority);
    if p_priority = v_old.priority then
        return v_old;
    end if;
    update ojs.job j
    set priority = p_priority, seq = case when j.state = 'available' then nextval('ojs.job_seq') else j.seq end
    where j.id = v_old.id and j.tenant_id = v_old.tenant_id
    returning * into v_new;
    -- Counted as if it had never come, and then come anew.
    insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs)
    values (v_old.tenant_id, v_old.queue, v_old.priority, null, v_old.state, -1);
    if v_new.state = 'available' then
        perform ojs._woken(v_new, null);
    else
        insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs)
        values (v_new.tenant_id, v_new.queue, v_new.priority, null, v_new.state, 1);
    end if;
    perform ojs._audit(v_old.tenant_id, 'jobs', p_id::text, 'changed', jsonb_build_object('priority', v_old.priority),
        jsonb_build_object('priority', p_priority));
    return v_new;
end;
$$;
comment on function ojs.reprioritize(uuid, int, text) is
'Gives a job that waits, for a worker, for its time or for its next attempt, another priority (-100 to 100), and returns it. It joins the
end of the line of that priority. Meant for single jobs: each call waits for the decision under way. p_tenant: whose job. A higher one
than the tenant''s max_priority is refused with validation_error, or clamped, as that of a new job. Raises not_found, conflict (it runs or
has ended, or its tenant is being deregistered; also in a transaction that has fetched jobs), ambiguous_job, invalid_request, and 55P03
while somebody has the job locked.';
