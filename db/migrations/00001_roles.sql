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

grant usage on schema ojs to ojs_service, ojs_operator, ojs_producer, ojs_worker, ojs_tenant;

set local role ojs_owner;
alter default privileges for role ojs_owner revoke execute on functions from public;

-- Roles belong to the cluster and are in no dump. pg_restore leaves out what names a role that is not there, or all of it (--no-owner,
-- --no-acl): nobody owns what he should, row security admits nobody, and functions that nobody may call are everybody's. So the schema
-- remembers, in a table, what its migrations have made, and ojs-pg migrate up makes it again.
create type ojs.privilege as (kind text, object text, key text, statement text, passing boolean);

-- Which migrations are applied. Goose remembers it here, in the transaction of each (internal/pg).
create table ojs.schema_hash (
    version    bigint primary key,
    hash       text not null,
    applied_at timestamptz not null default clock_timestamp(),
    left_at    timestamptz,
    privileges ojs.privilege[]
);

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

-- Which files of code are applied (db/code), and which release they are of.
create table ojs.code (
    file       text collate "C" primary key,
    hash       text not null,
    applied_at timestamptz not null default clock_timestamp()
);

create table ojs.schema_release (
    one          boolean primary key default true check (one),
    release      text not null,
    needs_server text not null,
    code_hash    text not null,
    applied_at   timestamptz not null
);
grant select on ojs.schema_release, ojs.code to ojs_service, ojs_operator;

-- Tables, triggers and policies name these functions. What they do is code; until it is applied, they do nothing.
-- +goose StatementBegin
create function ojs._raise(p_sqlstate text, p_message text, p_detail jsonb default null, p_hint text default null) returns boolean
language sql
as 'select null::boolean';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs.now() returns timestamptz language sql stable
as 'select pg_catalog.clock_timestamp()';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._uuid_v7() returns uuid language sql
as 'select null::uuid';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._queue_name(p_queue text) returns boolean language sql immutable
as 'select null::boolean';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._timer_arriving() returns trigger language plpgsql
as 'begin return new; end';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._default_tenant() returns text language sql stable
as 'select null::text';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._refuse_long(p_queue text, p_tenant text) returns boolean language sql
as 'select null::boolean';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._job_arriving() returns trigger language plpgsql
as 'begin return new; end';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._job_inserted() returns trigger language plpgsql
as 'begin return new; end';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._most(p_resource text) returns bigint language sql immutable
as 'select null::bigint';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._audit_row() returns trigger language plpgsql
as 'begin return new; end';
-- +goose StatementEnd
-- +goose StatementBegin
create function ojs._number_shards() returns trigger language plpgsql
as 'begin return new; end';
-- +goose StatementEnd
reset role;

-- +goose Down
drop schema ojs cascade;
set local role ojs_owner;
alter default privileges for role ojs_owner grant execute on functions to public;
reset role;
