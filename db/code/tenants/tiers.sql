-- Tiers: templates of limits and shares. A tenant that is given a tier has its numbers copied
-- (tenants/tier_fit.sql), so that no call about a job reads these tables.

comment on table ojs.tier is
'Tiers, templates of limits and shares. Changed by ojs.configure_tier; read as ojs.tiers.';
comment on column ojs.tier.name is 'The tier. Tenants without a tier get the tier named default.';
comment on column ojs.tier.config is
'The template as it was given: {"limits": {...}, "fairness_weight": 10, "priority_boost": 5}.';
comment on column ojs.tier.fields is
'The same as one flat object with each limit under its own name, as ojs._tier_fields returns it.';
comment on column ojs.tier.reason is 'The reason given with the last change.';
comment on table ojs.tenant_tier is
'The tier of each tenant that has one. Written by ojs.set_tier, ojs.configure_tier and the tick,
always under the lock of ojs.queue.';
comment on column ojs.tenant_tier.tenant_id is 'The tenant.';
comment on column ojs.tenant_tier.tier is 'Its tier.';
comment on column ojs.tenant_tier.due is
'The fields of the tier that have not been copied to the tenant yet; null: all have been.';
comment on table ojs.newcomer is
'Tenants without a tier that the tick has to check: they may get the tier named default. Written
only under the lock of ojs.tally_mark.';
comment on column ojs.newcomer.tenant_id is 'The tenant.';

create or replace view ojs.tiers with (security_invoker = true) as
select r.name, r.config, n.tenants, n.due, r.reason
from ojs.tier r
cross join lateral (
    select count(*) as tenants, count(t.due) as due from ojs.tenant_tier t where t.tier = r.name
) n;
comment on view ojs.tiers is
'Tiers, templates of limits and shares.
Set by ojs.configure_tier, given to tenants by ojs.set_tier.';
comment on column ojs.tiers.name is 'The tier. Tenants without a tier get the tier named default.';
comment on column ojs.tiers.config is 'The template.';
comment on column ojs.tiers.tenants is 'How many tenants have it.';
comment on column ojs.tiers.due is 'How many of them do not have all fields of it yet.';
comment on column ojs.tiers.reason is 'The reason given with the last change.';

-- Makes, changes or removes a tier.
-- Locks ojs.queue against other sessions that configure, and ojs.tally_mark; for a weight, a boost
-- or max_concurrency ojs.lane, until the end.
-- Writes tier, tenant_tier, audit, and what ojs.set_tier writes; notifies the clock.
create or replace function ojs.configure_tier(
    p_tier text, p_config anycompatible, p_reason text default null, p_confirm boolean default false
)
returns setof ojs.tiers
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_config));
    v_config  jsonb := p_config::jsonb;
    v_fields  jsonb := case when v_config <> 'null' then ojs._tier_fields(v_config) end;
    v_changed jsonb;
    v_old     ojs.tier;
    v_before  text := ojs._because(p_reason);
begin
    perform ojs._check_tier(p_tier);
    perform ojs._alone_with_queues();
    select * into v_old from ojs.tier r where r.name = p_tier;
    if v_fields is null then
        perform ojs._remove_tier(v_old, p_tier, p_reason, p_confirm), set_config('ojs.reason', v_before, true);
        return;
    end if;
    insert into ojs.tier as r (name, config, fields, reason) values (p_tier, v_config, v_fields, left(p_reason, 1000))
    on conflict (name) do update set config = excluded.config, fields = excluded.fields, reason = excluded.reason;
    perform ojs._audit(null, 'tier', p_tier, case when v_old.name is null then 'created' else 'changed' end, v_old.fields, v_fields,
        p_reason);
    -- Copy only changed fields: one that has not changed may have been set to another value for one
    -- tenant, which keeps it.
    select jsonb_object_agg(f.key, f.value) into v_changed from jsonb_each(v_fields) f
    where f.value is distinct from v_old.fields -> f.key;
    update ojs.tenant_tier t set due = coalesce(t.due, '{}') || v_changed where t.tier = p_tier and v_changed is not null;
    if p_tier = 'default' and v_old.name is null then
        perform ojs._alone_with_tally();
        perform ojs._meet_all();
    end if;
    perform ojs._fit_tenants(array(select t.tenant_id from ojs.tenant_tier t where t.tier = p_tier and t.due is not null limit 20), true),
        ojs._wake_clocks();
    perform set_config('ojs.reason', v_before, true);
    return query select r.* from ojs.tiers r where r.name = p_tier;
end;
$$;
comment on function ojs.configure_tier(text, anycompatible, text, boolean) is
'Makes, changes or removes a tier, a template of limits and shares, and returns it.
See multi-tenancy section 14.1. Fields that have changed are copied to the tenants that have the
tier: to the first 20 at once, to the rest by the clock, for 50 ms at a time. Other fields, and
fields that the template no longer names, stay as each tenant has them.
The tier named default is given to tenants without a tier, except for fields that they have set
themselves: to all of them when it is made, later to each tenant that enqueues for the first time,
by the clock, within about a quarter of a second; its jobs up to then are counted and not refused.
p_config: {"limits": {...}, "fairness_weight": 10, "priority_boost": 5}, replaced as a whole;
members that are left out are not part of the tier. limits as for ojs.configure_limits, without a
queue; null: no limit. weight is another name of fairness_weight. Null removes the tier.
p_confirm: required to remove a tier that tenants have. They keep their numbers, and have no tier
from then on.
p_reason: kept, and shown later.
Raises invalid_request, validation_error, unsupported, not_found, conflict (also in a transaction
that has fetched jobs).';

-- Gives a tenant a tier.
-- Locks what ojs.configure_tier locks.
-- Writes tenant_tier, audit, and what ojs.configure_limits, ojs.configure_tenant and
-- ojs.limit_concurrency write.
create or replace function ojs.set_tier(p_tenant text, p_tier text, p_reason text default null) returns setof ojs.tenant
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_before text := ojs._because(p_reason);
begin
    perform ojs._check_tenant(p_tenant);
    perform ojs._alone_with_queues();
    perform ojs._give_tier(p_tenant, p_tier, p_reason);
    perform ojs._fit_tenants(array[p_tenant], true) where p_tier is not null;
    perform set_config('ojs.reason', v_before, true);
    return query select t.* from ojs.tenant t where t.tenant_id = p_tenant;
end;
$$;
comment on function ojs.set_tier(text, text, text) is
'Gives a tenant a tier, and returns the tenant''s configuration.
The fields of the template are copied to the tenant; others stay as they are. If the tenant has
the tier already, they are copied again. Later changes of the template follow
(ojs.configure_tier).
p_tier: null: it has no tier from then on, and keeps its numbers.
p_reason: for the audit trail.
Raises invalid_request, not_found, conflict in a transaction that has fetched jobs.';

create or replace function ojs._check_tier(p_tier text) returns void
language plpgsql immutable
as $$
begin
    if (p_tier ~ '^[a-zA-Z0-9][a-zA-Z0-9._:-]*$' and length(p_tier) <= 128) is not true then
        perform ojs._raise('OJ400', 'tier must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 128 characters', '{"field": "tier"}');
    end if;
end;
$$;
comment on function ojs._check_tier(text) is
'Raises an error if a text cannot be the name of a tier.';

create or replace function ojs._remove_tier(p_old ojs.tier, p_tier text, p_reason text, p_confirm boolean) returns void
language plpgsql
as $$
declare
    v_tenants bigint := (select count(*) from ojs.tenant_tier t where t.tier = p_tier);
begin
    if p_old.name is null then
        perform ojs._no_such('tier', p_tier);
    elsif v_tenants > 0 and p_confirm is not true then
        perform ojs._raise('OJ409', format('%s tenants have tier %s', v_tenants, p_tier),
            jsonb_build_object('field', 'confirm', 'tenants', v_tenants), 'With confirm they keep their numbers and have no tier.');
    end if;
    perform ojs._give_tier(t.tenant_id, null, coalesce(p_reason, 'the tier was removed'))
    from (select t.tenant_id from ojs.tenant_tier t where t.tier = p_tier offset 0) t;
    delete from ojs.tier r where r.name = p_tier;
    perform ojs._audit(null, 'tier', p_tier, 'removed', p_old.fields, null, p_reason);
end;
$$;
comment on function ojs._remove_tier(ojs.tier, text, text, boolean) is
'Removes a tier. Only after ojs._alone_with_queues.';

create or replace function ojs._give_tier(p_tenant text, p_tier text, p_reason text) returns void
language plpgsql
as $$
declare
    v_fields jsonb;
    v_old    text := (select t.tier from ojs.tenant_tier t where t.tenant_id = p_tenant);
begin
    if p_tier is null then
        delete from ojs.tenant_tier t where t.tenant_id = p_tenant;
    else
        select r.fields into v_fields from ojs.tier r where r.name = p_tier;
        if v_fields is null then
            perform ojs._no_such('tier', left(p_tier, 128));
        end if;
        insert into ojs.tenant_tier as t (tenant_id, tier, due) values (p_tenant, p_tier, v_fields)
        on conflict (tenant_id) do update set tier = excluded.tier, due = excluded.due;
    end if;
    perform ojs._audit(p_tenant, 'tier', null, case when p_tier is null then 'removed' when v_old is null then 'created' else 'changed' end,
        jsonb_build_object('tier', v_old), jsonb_build_object('tier', p_tier), p_reason) where v_old is distinct from p_tier;
end;
$$;
comment on function ojs._give_tier(text, text, text) is
'Notes that a tenant has a tier (null: none), and that its fields are to be copied. Only after
ojs._alone_with_queues.';

create or replace function ojs._wake_clocks() returns void
language sql
as $$ select ojs._wake(s.token) from ojs.sleeper s where s.expires_at > ojs.now() $$;
comment on function ojs._wake_clocks() is
'Wakes the clocks that sleep when this transaction commits.';
