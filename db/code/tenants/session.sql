-- Returns the tenant of the role that logged in.
-- Reads only.
create or replace function ojs.current_tenant() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select r.tenant_id from ojs.tenant_role r where r.role_name = session_user);
end;
$$;
comment on function ojs.current_tenant() is
'Returns the tenant of the role that logged in; null if the role is not a tenant''s login.';

create or replace function ojs._tenant_valid(p_tenant text) returns boolean
language sql immutable
as $$ select (p_tenant ~ '^[a-zA-Z0-9][a-zA-Z0-9._:-]*$' or p_tenant in ('_default', '_other')) and octet_length(p_tenant) <= 256 $$;
comment on function ojs._tenant_valid(text) is
'Whether a text can be a tenant: the pattern of multi-tenancy section 5.2, at most 256 bytes, or
one of the two reserved names.';

create or replace function ojs._tenant_refusal(p_own text, p_tenant text) returns ojs.refusal
language sql immutable
as $$
    select case
        when p_tenant is null or p_tenant = p_own then null
        when p_own is not null then
            row('OJ403', 'this role may act for its own tenant only',
                jsonb_build_object('field', 'tenant', 'tenant_id', left(p_tenant, 256)))::ojs.refusal
        when not ojs._tenant_valid(p_tenant) then
            row('OJ400', 'tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes', '{"field": "tenant"}')::ojs.refusal
        end
$$;
comment on function ojs._tenant_refusal(text, text) is
'Why a call may not name p_tenant, or null. p_own: the tenant of the role that logged in; null if
it is not a tenant''s login.';

create or replace function ojs._trusted() returns boolean
language sql stable
as $$ select pg_has_role(session_user, 'ojs_service', 'member') and not pg_has_role(session_user, 'ojs_tenant', 'member') $$;
comment on function ojs._trusted() is
'Whether the role that logged in is the service''s and certainly not a tenant''s (a tenant''s login
role is a member of ojs_tenant). Becomes part of the expression that asks.';

create or replace function ojs._sees_all() returns boolean
language sql stable parallel safe set search_path = pg_catalog, pg_temp
as $$
    select pg_has_role(session_user, 'ojs_service', 'member') or pg_has_role(session_user, 'ojs_operator', 'member')
        or pg_has_role(session_user, 'ojs_producer', 'member')
$$;
comment on function ojs._sees_all() is
'Whether the role that logged in may read data about several tenants: the service, operators and
producers may.';

create or replace function ojs._acts_for_all() returns boolean
language sql stable
as $$
    select pg_has_role(session_user, 'ojs_service', 'member') or pg_has_role(session_user, 'ojs_operator', 'member')
        or pg_has_role(session_user, 'ojs_producer', 'member') or pg_has_role(session_user, 'ojs_worker', 'member')
$$;
comment on function ojs._acts_for_all() is
'Whether the role that logged in may name any tenant in the calls that are granted to it. Becomes
part of the expression that asks.';

create or replace function ojs._session_tenant(p_tenant text) returns text
language plpgsql stable
as $$
declare
    v_own     text;
    v_refusal ojs.refusal;
begin
    -- A tenant's login role is always a member of ojs_tenant. Without this test, each call of the
    -- service would read ojs.tenant_role.
    if pg_has_role(session_user, 'ojs_tenant', 'member') then
        v_own := (select r.tenant_id from ojs.tenant_role r where r.role_name = session_user);
    end if;
    if v_own is null and not ojs._acts_for_all() then
        perform ojs._raise('OJ403', format('role %I is mapped to no tenant', session_user), null,
            'An operator maps it with ojs.create_tenant_role(tenant, role), or grants it ojs_producer or ojs_worker.');
    end if;
    if p_tenant <> v_own or not ojs._tenant_valid(p_tenant) then
        v_refusal := ojs._tenant_refusal(v_own, p_tenant);
        perform ojs._raise(v_refusal.sqlstate, v_refusal.message, v_refusal.detail);
    end if;
    return coalesce(v_own, p_tenant);
end;
$$;
comment on function ojs._session_tenant(text) is
'The tenant that a call acts for. For a tenant''s login role always its own tenant; for the
service, an operator, a producer or a worker p_tenant, null being all. Raises TENANT_ACCESS_DENIED
for another tenant or an unmapped role, invalid_request for a malformed tenant.';

create or replace function ojs._default_tenant() returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(ojs._session_tenant(null), (select s.default_tenant from ojs.settings s where not s.tenant_required));
end;
$$;
comment on function ojs._default_tenant() is
'The tenant of a job that names none: the caller''s own, else the default tenant; null if tenants
are required.';
