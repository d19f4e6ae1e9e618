-- +goose Up
-- Four group roles, cluster-wide, created if absent and never dropped:
--   ojs_owner     owns every object of schema ojs; nobody logs in as it
--   ojs_service   the server and trusted producers; names the tenant in each call
--   ojs_operator  reads every tenant's statistics, configures tenants
--   ojs_tenant    the tenants' own login roles; each sees one tenant
-- +goose StatementBegin
do $$
declare
    v_role text;
begin
    foreach v_role in array array['ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_tenant'] loop
        begin
            execute format('create role %I nologin', v_role);
        exception when duplicate_object or unique_violation then
            null;
        end;
    end loop;
    if not (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then
        execute format('grant ojs_owner to %I', current_user);
    end if;
end;
$$;
-- +goose StatementEnd

create schema ojs authorization ojs_owner;
comment on schema ojs is 'ojs-pg: a job system in which no tenant can starve another. Everything HTTP can do, these functions do.';
grant usage on schema ojs to ojs_service, ojs_operator, ojs_tenant;

set local role ojs_owner;
alter default privileges for role ojs_owner revoke execute on functions from public;

-- The migrations that made this schema, by hash: before the first release they change in place, and a server must notice.
create table ojs.schema_hash (
    hash       text primary key,
    applied_at timestamptz not null default clock_timestamp()
);
comment on table ojs.schema_hash is 'The hash of the migrations this schema was made from; one row.';
comment on column ojs.schema_hash.hash is 'SHA-256 over the migration files, hex.';
comment on column ojs.schema_hash.applied_at is 'When the migrations were applied.';

-- +goose StatementBegin
create function ojs.schema_hash() returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select h.hash from ojs.schema_hash h $$;
-- +goose StatementEnd
comment on function ojs.schema_hash() is 'The hash of the migrations this schema was made from, or null. A server compares it with its own and refuses to serve another.';
grant execute on function ojs.schema_hash() to ojs_service, ojs_operator;

-- +goose StatementBegin
create function ojs._set_schema_hash(p_hash text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    delete from ojs.schema_hash;
    insert into ojs.schema_hash (hash) values (p_hash);
end;
$$;
-- +goose StatementEnd
comment on function ojs._set_schema_hash(text) is 'Records the hash of the migrations just applied. Only whoever migrates may call it.';
reset role;

-- +goose Down
drop schema ojs cascade;
set local role ojs_owner;
alter default privileges for role ojs_owner grant execute on functions to public;
reset role;
