-- Makes a role a login of a tenant.
-- Locks what "create role" and "grant" lock, and the row of the role in tenant_role.
-- Writes the role, its password, bounds and membership, and tenant_role.
create or replace function ojs.create_tenant_role(p_tenant text, p_role name, p_password text default null, p_connections int default null)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if p_tenant is null or not ojs._tenant_valid(p_tenant) then
        perform ojs._raise('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes',
            '{"field": "tenant"}');
    end if;
    if coalesce(p_role, '') = '' or starts_with(p_role, 'pg_')
            or p_role in ('ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_producer', 'ojs_worker', 'ojs_tenant') then
        perform ojs._raise('OJ400', format('%s cannot be a tenant''s login role', coalesce(quote_ident(p_role), 'null')),
            '{"field": "role"}');
    end if;
    if p_connections < 1 then
        perform ojs._raise('OJ400', 'connections must be at least 1', '{"field": "connections"}');
    end if;
    if not exists (select from pg_roles where rolname = p_role) then
        -- Without these bounds one tenant could take all connections, keep processors busy with a
        -- query whose result is not read, or keep vacuum from all tables with a forgotten
        -- transaction.
        execute format('create role %I login connection limit %s', p_role, coalesce(p_connections, 20));
        execute format('alter role %I set statement_timeout = %L', p_role, '30s');
        execute format('alter role %I set idle_in_transaction_session_timeout = %L', p_role, '5min');
    elsif exists (select from pg_roles where rolname = p_role and (rolsuper or rolbypassrls))
            or exists (select from unnest('{ojs_owner,ojs_service,ojs_operator,ojs_producer,ojs_worker}'::name[]) g
                where pg_has_role(p_role, g, 'member')) then
        perform ojs._raise('OJ400', format('role %I sees more than one tenant', p_role), '{"field": "role"}');
    elsif p_connections is not null then
        execute format('alter role %I connection limit %s', p_role, p_connections);
    end if;
    if p_password is not null then
        execute format('alter role %I password %L', p_role, p_password);
    end if;
    execute format('grant ojs_tenant to %I', p_role);
    perform ojs._map_tenant_role(p_tenant, p_role);
end;
$$;
comment on function ojs.create_tenant_role(text, name, text, int) is
'Makes p_role a login role of tenant p_tenant.
It creates the role if absent, grants ojs_tenant, and maps it. From then on the role sees and
writes the jobs of that tenant only. A tenant may have several roles; calling it again moves the
role to another tenant. A role that it creates gets two bounds: a statement is cancelled after 30
seconds (statement_timeout), and a transaction that idles for 5 minutes is ended
(idle_in_transaction_session_timeout). Change them with alter role NAME set statement_timeout =
''5min''; a session may change them for itself.
p_password: set if given.
p_connections: how many connections it may have at once, from 1; null: 20 for a role that it
creates, unchanged for another.
Runs with the rights of its caller: an operator that may create roles (and administer ojs_tenant),
or a superuser.
Raises invalid_request.';

create or replace function ojs._map_tenant_role(p_tenant text, p_role name) returns void
language sql security definer set search_path = pg_catalog, pg_temp
as $$
    insert into ojs.tenant_role (role_name, tenant_id) values (p_role, p_tenant)
    on conflict (role_name) do update set tenant_id = excluded.tenant_id
$$;
comment on function ojs._map_tenant_role(text, name) is 'Maps a login role to its tenant.';

-- Changes settings of the deployment.
-- Locks the row of settings, and what ojs._alone_with_queues locks; ojs.lane for p_tenant_fairness.
-- Writes settings; makes or drops ojs._job_rules; with p_tenant_fairness, tenant and what
-- ojs.configure_queue writes of it.
create or replace function ojs.configure(
    p_default_tenant text default null, p_tenant_required boolean default null, p_retention interval default null,
    p_journal_retention interval default null, p_timeout_ms int default null, p_heartbeat_timeout_ms int default null,
    p_idempotency_window interval default null, p_tenant_fairness anycompatible default null,
    p_unknown_tenants text default null, p_default_retry anycompatible default null, p_unsupported text default null
) returns ojs.settings
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    c_json constant boolean := ojs._json_type(pg_typeof(p_tenant_fairness));
    v_fairness jsonb := p_tenant_fairness::jsonb;
    v_retry    jsonb := p_default_retry::jsonb;
    v_settings ojs.settings;
begin
    if p_default_tenant is not null and not ojs._tenant_valid(p_default_tenant) then
        perform ojs._raise('OJ400', 'default_tenant is no valid tenant', '{"field": "default_tenant"}');
    end if;
    if p_timeout_ms < 0 then
        perform ojs._raise('OJ400', 'timeout_ms must not be negative', '{"field": "timeout_ms"}');
    end if;
    if p_heartbeat_timeout_ms not between 1000 and 86400000 then
        perform ojs._raise('OJ400', 'heartbeat_timeout_ms must be between 1000 and 86400000', '{"field": "heartbeat_timeout_ms"}');
    end if;
    if p_retention > '0' then
        perform ojs._alone_with_queues();
        perform ojs._check_retention(p_retention, array(select q.queue from ojs.queue q where q.config ? 'retention'));
    end if;
    perform ojs._check_default_retry(v_retry) where v_retry is not null;
    perform ojs._alone_with_queues() where num_nonnulls(p_unknown_tenants, v_retry) > 0;
    if v_fairness is not null then
        perform ojs._check_fairness(v_fairness, false);
        perform ojs._alone_with_queues();
    end if;
    update ojs.settings s
    set default_tenant = coalesce(p_default_tenant, s.default_tenant), tenant_required = coalesce(p_tenant_required, s.tenant_required),
        retention = coalesce(p_retention, s.retention), journal_retention = coalesce(p_journal_retention, s.journal_retention),
        timeout_ms = coalesce(p_timeout_ms, s.timeout_ms), heartbeat_timeout_ms = coalesce(p_heartbeat_timeout_ms, s.heartbeat_timeout_ms),
        idempotency_window = coalesce(p_idempotency_window, s.idempotency_window),
        tenant_fairness = coalesce(v_fairness - 'weights', s.tenant_fairness),
        unknown_tenants = coalesce(p_unknown_tenants, s.unknown_tenants),
        default_retry = nullif(coalesce(v_retry, s.default_retry), '{}'),
        unsupported = coalesce(p_unsupported, s.unsupported)
    returning * into v_settings;
    if p_retention is not null then
        -- Servers sleep for up to a minute between calls of ojs.upkeep; a new retention acts at
        -- once.
        perform pg_notify('ojs_wake', 'upkeep');
    end if;
    perform ojs._arm_barred() where p_unknown_tenants is not null;
    perform ojs._arm_job_rules() where v_retry is not null;
    perform ojs._share_by('', v_fairness) where v_fairness is not null;
    return v_settings;
end;
$$;
comment on function ojs.configure(text, boolean, interval, interval, int, int, interval, anycompatible, text, anycompatible, text) is
'Changes settings of the deployment and returns them; null leaves a setting as it is.
p_default_tenant: tenant of jobs that name none; default _default.
p_tenant_required: refuse such jobs instead; default false.
p_retention: how long jobs are kept after they have ended, at least; default 7 days; 10 seconds to
36500 days; 0: until an operator drops them.
p_journal_retention: how long the journal is kept, if retention is not shorter; default 1 day;
from 1 minute.
p_timeout_ms: how long heartbeats keep an attempt of a job without a timeout_ms of its own,
milliseconds; default 1800000; 0: for ever.
p_heartbeat_timeout_ms: how long a worker that has sent heartbeats may be silent before it counts
as dead, 1000 to 86400000; default 30000.
p_idempotency_window: how long an idempotency key is kept, for requests from now on; default 1
day; 1 minute to 365 days.
p_tenant_fairness: how tenants share in queues without a tenant_fairness of their own, as in
ojs.configure_queue. It is replaced as a whole, except for weights: they are set as by
ojs.configure_tenant, null removes one, and tenants that are not named keep theirs. It acts on the
whole backlog from the next dispatch on, and waits for the decision under way.
p_unknown_tenants: new jobs of a tenant that is not configured, nor the default tenant: accept
(default), or refuse with TENANT_UNKNOWN.
p_default_retry: the retry policy of new jobs without one, in queues without a default_retry; used
as a whole; {}: that of ojs-retry section 8 again.
p_unsupported: new jobs that ask for something this server cannot do, such as unique: refuse
(default) with unsupported; or carry: accept them, and keep the request without acting on it.
Raises invalid_request, validation_error, unsupported for settings that this server does not
honour; with p_tenant_fairness conflict in a transaction that has fetched jobs; with
p_default_retry and p_unknown_tenants backend_unavailable while a transaction that uses jobs stays
open.';
