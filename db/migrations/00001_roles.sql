-- +goose Up
-- The roles, the schema, and which migrations the schema was made from: goose remembers it there, too, in the transaction of each
-- migration (internal/pg migrates and compares).
-- Six group roles, cluster-wide, created if absent and never dropped:
--   ojs_owner     owns every object of schema ojs; nobody logs in as it
--   ojs_service   the server; names the tenant in each call
--   ojs_operator  reads every tenant's statistics, configures tenants
--   ojs_producer  applications that enqueue, for any tenant, and read; they stop nothing
--   ojs_worker    applications that fetch jobs, of any tenant, and end attempts
--   ojs_tenant    the tenants' own login roles; each sees one tenant
-- +goose StatementBegin
do $$
declare
    v_role text;
begin
    foreach v_role in array array['ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_producer', 'ojs_worker', 'ojs_tenant'] loop
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
grant usage on schema ojs to ojs_service, ojs_operator, ojs_producer, ojs_worker, ojs_tenant;

set local role ojs_owner;
alter default privileges for role ojs_owner revoke execute on functions from public;

-- Before the first release migrations change in place, so that their numbers alone do not tell whether a schema is the one a server knows.
create table ojs.schema_hash (
    version    bigint primary key,
    hash       text not null,
    applied_at timestamptz not null default clock_timestamp(),
    left_at    timestamptz
);
comment on table ojs.schema_hash is
'The migrations this schema was made from, one row for each that is applied: by it ojs-pg migrate knows which are missing.';
comment on column ojs.schema_hash.version is 'The number of the migration.';
comment on column ojs.schema_hash.hash is 'SHA-256 over the migration files up to that one, hex.';
comment on column ojs.schema_hash.applied_at is 'When it was applied.';
comment on column ojs.schema_hash.left_at is 'When a migration from here to another version, or back to here, was begun last.';

-- The hash of the migrations that made this schema; a server asks it at start and refuses to serve another schema than its own.
-- Reads only.
-- +goose StatementBegin
create function ojs.schema_hash(p_version bigint default null) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select h.hash from ojs.schema_hash h
    where h.version = p_version or p_version is null
    order by h.version desc limit 1
$$;
-- +goose StatementEnd
comment on function ojs.schema_hash(bigint) is
'The hash of the migrations this schema was made from, up to p_version (null: all), or null. A server compares it with its own: it serves
its own schema, and one that was made from its own by further migrations.';

-- Whether a statement that failed for not fitting the schema may fit the next time; servers ask after such an error.
-- Reads only.
-- +goose StatementBegin
create function ojs.schema_changing() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select exists (select from ojs.schema_hash h where h.left_at > clock_timestamp() - interval '1 minute') $$;
-- +goose StatementEnd
comment on function ojs.schema_changing() is
'Whether a migration is under way or was begun within the last minute. A statement that was under way when it committed may then have
failed for not fitting the schema, and fits the next time.';

-- +goose StatementBegin
create function ojs._set_schema_hash(p_version bigint, p_hash text) returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    delete from ojs.schema_hash h where h.version >= p_version;
    insert into ojs.schema_hash (version, hash) values (p_version, p_hash);
end;
$$;
-- +goose StatementEnd
comment on function ojs._set_schema_hash(bigint, text) is
'Records the hash of the migrations up to p_version, which is the last now. Only whoever migrates may call it.';
reset role;

-- +goose Down
drop schema ojs cascade;
set local role ojs_owner;
alter default privileges for role ojs_owner grant execute on functions to public;
reset role;
