-- Tenants whose new jobs are refused: suspended tenants, and, if the deployment says so, tenants
-- that are not configured. A trigger on ojs.job exists only while there can be such a tenant. Jobs
-- that run or wait are not affected (ojs.pause stops them).

comment on table ojs.suspended is
'Suspended tenants: their new jobs are refused. Changed by ojs.suspend_tenant and
ojs.resume_tenant.';
comment on column ojs.suspended.tenant_id is 'The tenant.';
comment on column ojs.suspended.at is 'Since when it is suspended.';
comment on column ojs.suspended.reason is 'Why, in the words of the caller that suspended it.';

-- Refuses a tenant's new jobs.
-- Locks ojs.queue against other sessions that configure, settings, and ojs.job for a moment when
-- the first tenant is suspended.
-- Writes suspended, tenant, settings, audit; makes the trigger job_barred.
create or replace function ojs.suspend_tenant(p_tenant text, p_reason text default null) returns ojs.suspended
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_row ojs.suspended;
begin
    perform ojs._check_tenant(p_tenant);
    perform ojs._say_if_new(p_tenant, null);
    perform ojs._alone_with_queues();
    insert into ojs.tenant (tenant_id, created_at) values (p_tenant, null) on conflict do nothing;
    insert into ojs.suspended (tenant_id, reason) values (p_tenant, left(p_reason, 1000))
    on conflict (tenant_id) do update set reason = coalesce(excluded.reason, suspended.reason)
    returning * into v_row;
    perform ojs._arm_barred();
    return v_row;
end;
$$;
comment on function ojs.suspend_tenant(text, text) is
'Refuses a tenant''s new jobs with TENANT_SUSPENDED from now on, and returns since when.
However they are enqueued. Cron jobs that fire are recorded as skipped. Existing jobs and retries
go on; ojs.pause stops dispatch. A tenant that is suspended again stays so since the first time.
p_reason: kept, and shown later.
Raises invalid_request, and backend_unavailable while a transaction that uses jobs stays open.
Waits for a session that configures queues.';

-- Accepts a tenant's new jobs again.
-- Locks and writes what ojs.suspend_tenant does; drops the trigger.
create or replace function ojs.resume_tenant(p_tenant text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_was boolean;
begin
    perform ojs._check_tenant(p_tenant);
    perform ojs._alone_with_queues();
    delete from ojs.suspended s where s.tenant_id = p_tenant;
    v_was := found;
    perform ojs._drop_tenant(p_tenant);
    perform ojs._arm_barred();
    return v_was;
end;
$$;
comment on function ojs.resume_tenant(text) is
'Accepts a tenant''s new jobs again, and returns whether it was suspended.
Raises as ojs.suspend_tenant does.';

create or replace function ojs._check_tenant(p_tenant text) returns void
language plpgsql
as $$
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}');
    end if;
end;
$$;
comment on function ojs._check_tenant(text) is 'Raises an error if a text cannot be a tenant.';

create or replace function ojs._drop_tenant(p_tenant text) returns void
language sql
as $$
    delete from ojs.tenant t
    where t.tenant_id = p_tenant and t.created_at is null and t.throttle is null
        and not exists (select from ojs.rule r where r.tenant_id = p_tenant)
        and not exists (select from ojs.suspended s where s.tenant_id = p_tenant)
$$;
comment on function ojs._drop_tenant(text) is
'Removes the row of a tenant that is not configured, once no rule, throttle or suspension needs it.';

create or replace function ojs._arm_barred() returns void
language plpgsql
as $$
declare
    v_bars boolean := exists (select from ojs.suspended) or (select s.unknown_tenants = 'refuse' from ojs.settings s);
begin
    update ojs.settings s set bars = v_bars where s.bars <> v_bars;
    -- The condition names no tenant, because every role can read the conditions of triggers.
    perform ojs._arm('job_barred', case when v_bars then 'new.state <> ''discarded''' end);
end;
$$;
comment on function ojs._arm_barred() is
'Makes the trigger ojs._job_barred fire for new jobs while there can be tenants whose jobs are
refused. Dead letters that move back from ojs.dead_job are not new jobs. Only after
ojs._alone_with_queues.';

create or replace function ojs._job_barred() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform ojs._refuse(r) from ojs._barred(new.tenant_id, null) r where r is not null;
    return new;
end;
$$;
comment on function ojs._job_barred() is
'Trigger: refuses a new job of a tenant that is suspended or not known, however the job is
enqueued. Functions that enqueue several jobs have checked before, so that one refused job does
not undo the other jobs.';

create or replace function ojs._barred(p_tenant text, p_n int) returns ojs.refusal
language plpgsql stable
as $$
declare
    v_which  text := coalesce('jobs[' || p_n || ']: ', '');
    v_detail jsonb := jsonb_build_object('field', 'tenant', 'tenant_id', p_tenant);
begin
    if exists (select from ojs.suspended s where s.tenant_id = p_tenant) then
        return row('OJ406', v_which || format('tenant %s is suspended', p_tenant), v_detail)::ojs.refusal;
    elsif exists (select from ojs.settings s where s.unknown_tenants = 'refuse' and s.default_tenant <> p_tenant)
            and not exists (select from ojs.tenant t where t.tenant_id = p_tenant and t.created_at is not null) then
        return row('OJ407', v_which || format('tenant %s is not known', p_tenant), v_detail)::ojs.refusal;
    end if;
    return null;
end;
$$;
comment on function ojs._barred(text, int) is
'Why new jobs of a tenant are refused, or null. p_n: the job''s index among several; null: the only
one.';
