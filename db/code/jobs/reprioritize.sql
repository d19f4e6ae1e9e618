-- Gives a waiting job another priority.
-- Waits for the decision under way, and holds ojs.lane until the end of the transaction; then locks
-- the job's row, without waiting.
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
    -- This folds the journal first, so that jobs join with the priority that they have now.
    perform ojs._stop_decisions();
    v_old := ojs._job_for(p_id, v_tenant);
    -- nowait, because a session that holds the lane must not wait for a job.
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
    -- For the statistics the job leaves the old priority and is new at the other one.
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
'Gives a job that waits for a worker, its time or its next attempt another priority, and returns it.
It goes behind the jobs of its tenant that are available at that priority.
p_priority: -100 to 100. One above the tenant''s max_priority is refused with validation_error, or
reduced to it, as for a new job.
p_tenant: the tenant of the job.
Meant for single jobs, because each call waits for the decision under way. Raises not_found,
conflict (it runs or has ended, its tenant is being deregistered, or the transaction has fetched
jobs), ambiguous_job, invalid_request, and 55P03 if another session has the job locked.';
