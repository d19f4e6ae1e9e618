-- How high the priority of a tenant's new jobs may be. enqueue/job_ruled.sql applies it to new jobs.

create or replace function ojs._arm_max_priority(p_tenant text, p_max_priority int) returns void
language plpgsql
as $$
declare
    v_lowest int;
begin
    -- Before the lane (order of locks).
    perform ojs._alone_with_queues();
    v_lowest := least(p_max_priority, (
        select min(t.max_priority) from ojs.tenant t where t.max_priority < 100 and t.tenant_id <> p_tenant));
    update ojs.settings s set lowest_max_priority = nullif(v_lowest, 100)
    where s.lowest_max_priority is distinct from nullif(v_lowest, 100);
    perform ojs._arm_job_rules();
end;
$$;
comment on function ojs._arm_max_priority(text, int) is
'Has new jobs checked whose priority is above the lowest max_priority of all tenants, once p_tenant
has this max_priority.';

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
