-- Static configuration: the entries in a server's configuration file, about settings, pools, tiers
-- and tenants. Each entry is kept as it was applied last. A server that starts applies only entries
-- that differ from that, so it does not undo later changes by operators.

comment on table ojs.static_config is
'Entries of configuration files as they were applied last. Written by ojs.configure_static under the lock of ojs.queue.';
comment on column ojs.static_config.kind is 'setting, pool, tier or tenant.';
comment on column ojs.static_config.name is 'The name of the setting, pool, tier or tenant.';
comment on column ojs.static_config.config is 'The entry in the file.';
comment on column ojs.static_config.at is 'When it was applied.';

-- Applies an entry of a configuration file.
-- Locks what ojs.configure_tier locks; for a pool, what ojs.configure_pool locks.
-- Writes static_config, and what ojs.put_settings, ojs.configure_pool, ojs.configure_tier or
-- ojs.put_tenant write.
create or replace function ojs.configure_static(
    p_kind text, p_name text, p_config anycompatible, p_authoritative boolean default false, p_check boolean default false
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_config));
    v_config jsonb := p_config::jsonb;
begin
    if p_kind = 'tier' then
        perform ojs._check_tier(p_name), ojs._tier_fields(v_config);
    elsif p_kind = 'tenant' then
        perform ojs._check_tenant(p_name), ojs._tenant_fields(v_config), ojs._check_entry(p_name, v_config);
    elsif p_kind = 'pool' then
        perform ojs._check_pool_name(p_name, true), ojs._read_pool(p_name, v_config);
    elsif p_kind = 'setting' then
        perform ojs._setting_faults(jsonb_build_object(p_name, v_config));
    else
        perform ojs._raise('OJ400', 'kind must be "setting", "pool", "tier" or "tenant"', '{"field": "kind"}');
    end if;
    if p_check then
        return false;
    end if;
    perform ojs._alone_with_queues();
    -- Under the lock: of several servers that start at once, the first applies the entry and the
    -- others see that it is applied.
    if p_authoritative is not true and exists (
            select from ojs.static_config c where c.kind = p_kind and c.name = p_name and c.config = v_config) then
        return false;
    end if;
    insert into ojs.static_config as c (kind, name, config) values (p_kind, p_name, v_config)
    on conflict (kind, name) do update set config = excluded.config, at = excluded.at;
    if p_kind = 'tier' then
        perform ojs.configure_tier(p_name, v_config, 'configuration file');
    elsif p_kind = 'pool' then
        perform ojs.configure_pool(p_name, v_config);
    elsif p_kind = 'setting' then
        perform ojs.put_settings(jsonb_build_object(p_name, v_config), 'configuration file');
    else
        perform ojs.put_tenant(p_name, v_config, 'configuration file');
    end if;
    return true;
end;
$$;
comment on function ojs.configure_static(text, text, anycompatible, boolean, boolean) is
'Applies an entry of a configuration file, and returns whether it did.
If the same entry was applied last, nothing is done, so that changes made since then stay.
p_kind, p_config: tier, as for ojs.configure_tier; tenant, as for ojs.put_tenant: {"limits": {...},
"fairness_weight": 10, "priority_boost": 0, "tier": "standard"}; pool, as for ojs.configure_pool;
setting, the value of the setting p_name of ojs.put_settings.
p_authoritative: apply the entry in any case.
p_check: only raise what is wrong with it.
Raises what these functions raise.';

-- Configures a tenant: its tier, and values of its own.
-- Locks what ojs.configure_tier locks.
-- Writes what ojs.set_tier writes.
create or replace function ojs.put_tenant(p_tenant text, p_config anycompatible, p_reason text default null) returns setof ojs.tenant
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_config));
    v_fields jsonb := ojs._tenant_fields(p_config::jsonb);
    v_before text := ojs._because(p_reason);
begin
    perform ojs._check_tenant(p_tenant);
    perform ojs._check_entry(p_tenant, p_config::jsonb);
    perform ojs._alone_with_queues();
    perform ojs._fit_tenant(p_tenant, v_fields, p_reason);
    perform set_config('ojs.reason', v_before, true);
    return query select t.* from ojs.tenant t where t.tenant_id = p_tenant;
end;
$$;
comment on function ojs.put_tenant(text, anycompatible, text) is
'Configures a tenant in one step, and returns its configuration.
p_config: {"tier": "standard", "limits": {...}, "fairness_weight": 10, "priority_boost": 0};
members that are left out stay as they are. weight is another name of fairness_weight. Members of
limits (as for ojs.configure_limits) may stand at the top, too. tier as by ojs.set_tier, null
takes it away; values that stand next to it go before those of the tier.
p_reason: for the audit trail.
Raises invalid_request, validation_error, unsupported, not_found, conflict in a transaction that
has fetched jobs.';

create or replace function ojs._check_entry(p_tenant text, p_config jsonb) returns void
language plpgsql
as $$
begin
    if p_config ? 'tenant_id' and p_config -> 'tenant_id' <> to_jsonb(p_tenant) then
        perform ojs._raise('OJ400', 'tenant_id is another tenant than the one that is configured', '{"field": "tenant_id"}');
    end if;
end;
$$;
comment on function ojs._check_entry(text, jsonb) is
'Raises an error if the entry of a tenant names another tenant: it would set the limits of the wrong
one.';

create or replace function ojs._tenant_fields(p_config jsonb) returns jsonb
language plpgsql
as $$
declare
    c_own    constant text[] := '{tenant_id,tier,limits,fairness_weight,weight,priority_boost}';
    v_limits jsonb := '{}';
begin
    if jsonb_typeof(p_config) is distinct from 'object' then
        perform ojs._raise('OJ400', 'the entry of a tenant must be an object', '{"field": "tenants"}');
    elsif p_config ? 'tier' and (jsonb_typeof(p_config -> 'tier') not in ('string', 'null')) then
        perform ojs._raise('OJ422', 'tier must be the name of a tier, or null', '{"field": "tier"}');
    end if;
    v_limits := ojs._limit_fields(p_config - c_own, null);
    if exists (select from jsonb_each(v_limits) f join jsonb_each(ojs._limit_fields(coalesce(p_config -> 'limits', '{}'), null)) l
            on l.key = f.key and l.value <> f.value) then
        perform ojs._raise('OJ422', 'limits has another value than the same member at the top', '{"field": "limits"}');
    end if;
    return ojs._tier_fields((select coalesce(jsonb_object_agg(f.key, f.value), '{}') from jsonb_each(p_config) f
            where f.key = any (c_own) and f.key not in ('tenant_id', 'tier', 'limits'))
        || jsonb_build_object('limits', coalesce(p_config -> 'limits', '{}') || v_limits))
        || case when p_config ? 'tier' then jsonb_build_object('tier', p_config -> 'tier') else '{}' end;
end;
$$;
comment on function ojs._tenant_fields(jsonb) is
'The fields that the entry of a tenant sets, in the form of ojs._tier_fields, and its tier. Raises
what is wrong with it.';

create or replace function ojs._fit_tenant(p_tenant text, p_fields jsonb, p_reason text) returns void
language plpgsql
as $$
declare
    c_share constant text[] := '{fairness_weight,priority_boost,max_concurrency}';
    v_fields jsonb := p_fields - 'tier';
begin
    perform ojs._know(p_tenant);
    if p_fields ? 'tier' then
        perform ojs._give_tier(p_tenant, p_fields ->> 'tier', p_reason);
        v_fields := coalesce((select r.fields from ojs.tier r where r.name = p_fields ->> 'tier'), '{}') || v_fields;
        update ojs.tenant_tier t set due = null where t.tenant_id = p_tenant;
    end if;
    if v_fields - c_share <> '{}' then
        perform ojs._alone_with_tally();
        perform ojs._set_limits(p_tenant, v_fields - c_share, p_reason);
        perform ojs._give_room(ojs.now());
    end if;
    -- This comes last, because from here on decisions wait.
    if v_fields ?| c_share then
        perform ojs._enter_lane();
        perform ojs._fit_share(p_tenant, v_fields, p_reason);
    end if;
end;
$$;
comment on function ojs._fit_tenant(text, jsonb, text) is
'Gives a tenant the tier that p_fields names, and the values in p_fields. Only after
ojs._alone_with_queues.';
