-- Tenants whose new jobs are refused: suspended tenants, and, if the deployment says so, tenants
-- that are not configured. enqueue/job_ruled.sql refuses their jobs. Jobs that run or wait are not
-- affected (ojs.pause stops them).

comment on table ojs.suspended is
'Suspended tenants: their new jobs are refused. Changed by ojs.suspend_tenant and
ojs.resume_tenant.';
comment on column ojs.suspended.tenant_id is 'The tenant.';
comment on column ojs.suspended.at is 'Since when it is suspended.';
comment on column ojs.suspended.reason is 'Why, in the words of the caller that suspended it.';

-- Refuses a tenant's new jobs.
-- Locks ojs.queue against other sessions that configure, and settings.
-- Writes suspended, tenant, settings, audit; makes ojs._job_rules.
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
A transaction that is open now may have enqueued before; its jobs are accepted when it commits.
p_reason: kept, and shown later.
Raises invalid_request. Waits for a session that configures queues.';

-- Accepts a tenant's new jobs again.
-- Locks and writes what ojs.suspend_tenant does; drops ojs._job_rules if no other rule needs it.
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
    perform ojs._arm_job_rules();
end;
$$;
comment on function ojs._arm_barred() is
'Has new jobs checked while there can be tenants whose jobs are refused. Only after
ojs._alone_with_queues.';

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
