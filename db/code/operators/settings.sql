-- Settings of the deployment as one JSON document, for HTTP, the command line and configuration
-- files. In SQL ojs.configure has a parameter for each.

create or replace function ojs._setting_faults(p_config jsonb) returns void
language plpgsql
as $$
declare
    c_known constant text[] := '{default_tenant, tenant_required, unknown_tenants, tenant_fairness, default_retry, unsupported, timeout_ms,
        heartbeat_timeout_ms, retention, journal_retention, idempotency_window}';
    v_field record;
    v_bad   text;
begin
    if jsonb_typeof(p_config) is distinct from 'object' then
        perform ojs._raise('OJ400', 'settings must be a JSON object', '{"field": "settings"}');
    end if;
    for v_field in select left(e.key, 100) as key, e.value, jsonb_typeof(e.value) as type from jsonb_each(p_config) e loop
        perform ojs._misnamed(v_field.key, c_known) where v_field.key <> all (c_known);
        v_bad := case
            when v_field.key <> all (c_known) then 'is no setting; these are: ' || array_to_string(c_known, ', ')
            when v_field.key = 'default_tenant' then
                case when v_field.type <> 'string' or not ojs._tenant_valid(v_field.value #>> '{}') then 'is no valid tenant' end
            when v_field.key = 'tenant_required' then case when v_field.type <> 'boolean' then 'must be true or false' end
            when v_field.key in ('unknown_tenants', 'unsupported') then case when v_field.type <> 'string' then 'must be a string' end
            when v_field.key in ('tenant_fairness', 'default_retry') then
                case when v_field.type <> 'object' then 'must be a JSON object' end
            when v_field.key in ('timeout_ms', 'heartbeat_timeout_ms') then
                case when v_field.type <> 'number' or v_field.value::text !~ '^[0-9]{1,9}$' then 'must be an integer of milliseconds' end
            else case when v_field.type <> 'string' or ojs._duration(v_field.value #>> '{}') is null
                then 'must be an ISO 8601 duration such as P7D' end
            end;
        if v_bad is not null then
            perform ojs._raise(case when v_field.key = any (c_known) then 'OJ422' else 'OJ400' end,
                v_field.key || ' ' || v_bad, jsonb_build_object('field', v_field.key));
        end if;
    end loop;
    perform ojs._check_fairness(p_config -> 'tenant_fairness', false) where p_config ? 'tenant_fairness';
    perform ojs._check_default_retry(p_config -> 'default_retry') where p_config ? 'default_retry';
end;
$$;
comment on function ojs._setting_faults(jsonb) is
'Raises why settings are refused.';

-- Changes settings of the deployment.
-- Locks and writes what ojs.configure does.
create or replace function ojs.put_settings(p_config anycompatible, p_reason text default null) returns ojs.settings
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_config));
    v_config   jsonb := p_config::jsonb;
    v_settings ojs.settings;
    v_before   text := ojs._because(p_reason);
begin
    perform ojs._setting_faults(v_config);
    v_settings := ojs.configure(
        p_default_tenant => v_config ->> 'default_tenant', p_tenant_required => (v_config ->> 'tenant_required')::boolean,
        p_retention => (v_config ->> 'retention')::interval, p_journal_retention => (v_config ->> 'journal_retention')::interval,
        p_timeout_ms => (v_config ->> 'timeout_ms')::int, p_heartbeat_timeout_ms => (v_config ->> 'heartbeat_timeout_ms')::int,
        p_idempotency_window => (v_config ->> 'idempotency_window')::interval, p_tenant_fairness => v_config -> 'tenant_fairness',
        p_unknown_tenants => v_config ->> 'unknown_tenants', p_default_retry => v_config -> 'default_retry',
        p_unsupported => v_config ->> 'unsupported');
    perform set_config('ojs.reason', v_before, true);
    return v_settings;
end;
$$;
comment on function ojs.put_settings(anycompatible, text) is
'Changes settings of the deployment, and returns all.
p_config: an object such as {"default_tenant": "house", "tenant_fairness": {"default_weight": 1}}.
Its members are the parameters of ojs.configure without p_; durations as in ISO 8601. Members that
are left out stay as they are.
p_reason: for the audit trail.
Raises invalid_request, validation_error, and what ojs.configure raises.';
