-- How high the priority of a tenant's new jobs may be. A trigger on ojs.job exists only while some
-- tenant has a limit, and fires only for priorities above the lowest of these limits.

create or replace function ojs._arm_max_priority(p_tenant text, p_max_priority int) returns void
language plpgsql
as $$
declare
    v_lowest int;
begin
    -- Before the lane: a session that waits for a decision may have jobs locked.
    perform ojs._alone_with_queues();
    v_lowest := least(p_max_priority, (
        select min(t.max_priority) from ojs.tenant t where t.max_priority < 100 and t.tenant_id <> p_tenant));
    update ojs.settings s set lowest_max_priority = nullif(v_lowest, 100)
    where s.lowest_max_priority is distinct from nullif(v_lowest, 100);
    -- Priorities above 100 are refused anyway, with another error.
    perform ojs._arm('job_max_priority', case when v_lowest < 100 then
        format('new.priority between %s and 100 and new.state <> ''discarded''', v_lowest + 1) end);
end;
$$;
comment on function ojs._arm_max_priority(text, int) is
'Makes the trigger ojs._job_max_priority fire for the priorities that some tenant''s jobs may not
have, once p_tenant has this max_priority. Dead letters that move back from ojs.dead_job are not
new jobs.';

create or replace function ojs._job_max_priority() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_priority int := ojs._clamped(new.tenant_id, new.priority);
begin
    if v_priority = new.priority then
        perform ojs._refuse(r) from ojs._too_high(new.tenant_id, new.priority, null) r where r is not null;
    end if;
    new.priority := v_priority;
    return new;
end;
$$;
comment on function ojs._job_max_priority() is
'Trigger: refuses a new job whose priority is above its tenant''s max_priority, or lowers the
priority to it, however the job is enqueued. Functions that enqueue several jobs have checked
before, so that one refused job does not undo the other jobs.';

create or replace function ojs._clamped(p_tenant text, p_priority int) returns int
language plpgsql stable
as $$
begin
    return least(p_priority, (select t.max_priority from ojs.tenant t where t.tenant_id = p_tenant and t.over_priority = 'clamp'));
end;
$$;
comment on function ojs._clamped(text, int) is
'The priority that a job of a tenant gets: max_priority, if it asks for more and over_priority is
clamp.';

create or replace function ojs._too_high(p_tenant text, p_priority int, p_n int) returns ojs.refusal
language plpgsql stable
as $$
declare
    v_limit int := (select t.max_priority from ojs.tenant t
        where t.tenant_id = p_tenant and t.max_priority < p_priority and t.over_priority = 'refuse');
    v_fault text := format('must be at most %s, the max_priority of the tenant', v_limit);
begin
    if v_limit is null then
        return null;
    end if;
    return row('OJ422', coalesce('jobs[' || p_n || ']: ', '') || 'priority ' || v_fault,
        jsonb_build_object('field', 'priority', 'limit', v_limit, 'fault', v_fault))::ojs.refusal;
end;
$$;
comment on function ojs._too_high(text, int, int) is
'Why a job of a tenant is refused because of its priority, or null. p_n: the job''s index among
several; null: the only one.';
