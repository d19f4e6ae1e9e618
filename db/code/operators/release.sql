comment on schema ojs is
'ojs-pg: a job system in which no tenant can starve another tenant. These functions do everything
that HTTP can do.';
comment on table ojs.schema_hash is
'The migrations that this schema was made from, one row each. By it ojs-pg migrate knows which
migrations are missing.';
comment on column ojs.schema_hash.version is 'The number of the migration.';
comment on column ojs.schema_hash.hash is 'SHA-256 over the migration files up to this one, hex.';
comment on column ojs.schema_hash.applied_at is 'When it was applied.';
comment on column ojs.schema_hash.left_at is
'When a migration from this version to another one, or back to it, was last begun.';

-- Returns the hash of the migrations that made this schema. A server asks for it at start, and
-- refuses to serve another schema than its own.
-- Reads only.
create or replace function ojs.schema_hash(p_version bigint default null) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select h.hash from ojs.schema_hash h
    where h.version = p_version or p_version is null
    order by h.version desc limit 1
$$;
comment on function ojs.schema_hash(bigint) is
'Returns the hash of the migrations that made this schema, up to p_version, or null.
A server compares it with its own. It serves its own schema, and a schema made from it by later
migrations.
p_version: null: the latest.';

-- Returns whether a statement that failed because it did not fit the schema may fit the next time;
-- servers ask after such an error.
-- Reads only.
create or replace function ojs.schema_changing() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select exists (select from ojs.schema_hash h where h.left_at > clock_timestamp() - interval '1 minute') $$;
comment on function ojs.schema_changing() is
'Returns whether a migration is under way or was begun within the last minute.
A statement that ran when the migration committed may have failed because it did not fit the
schema. It fits the next time.';
comment on table ojs.code is
'The files of functions, views, comments and grants in this database, as ojs-pg migrate applied
them.';
comment on column ojs.code.file is 'The file, below db/code.';
comment on column ojs.code.hash is
'SHA-256 over its text, hex. The next migrate up applies a file whose text has another hash.';
comment on column ojs.code.applied_at is 'When it was applied.';
comment on table ojs.schema_release is
'The release of the functions, and the servers that may run with them; one row.';
comment on column ojs.schema_release.one is 'Always true: there is one row.';
comment on column ojs.schema_release.release is 'The release.';
comment on column ojs.schema_release.needs_server is
'The oldest release whose servers may run with it. Servers of older releases say so and wait.';
comment on column ojs.schema_release.code_hash is 'SHA-256 over the names and hashes of all its files of code, hex.';
comment on column ojs.schema_release.applied_at is 'When one of its files was last applied.';
comment on column ojs.schema_release.postgres is
'The major version of PostgreSQL for which the functions were applied; 0: unknown. On another
version, the next migrate up applies all files anew.';
