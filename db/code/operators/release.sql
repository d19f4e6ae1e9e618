comment on schema ojs is 'ojs-pg: a job system in which no tenant can starve another. Everything HTTP can do, these functions do.';
comment on table ojs.schema_hash is
'The migrations this schema was made from, one row for each that is applied: by it ojs-pg migrate knows which are missing.';
comment on column ojs.schema_hash.version is 'The number of the migration.';
comment on column ojs.schema_hash.hash is 'SHA-256 over the migration files up to that one, hex.';
comment on column ojs.schema_hash.applied_at is 'When it was applied.';
comment on column ojs.schema_hash.left_at is 'When a migration from here to another version, or back to here, was begun last.';

-- The hash of the migrations that made this schema; a server asks it at start and refuses to serve another schema than its own.
-- Reads only.
create or replace function ojs.schema_hash(p_version bigint default null) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select h.hash from ojs.schema_hash h
    where h.version = p_version or p_version is null
    order by h.version desc limit 1
$$;
comment on function ojs.schema_hash(bigint) is
'The hash of the migrations this schema was made from, up to p_version (null: all), or null. A server compares it with its own: it serves
its own schema, and one that was made from its own by further migrations.';

-- Whether a statement that failed for not fitting the schema may fit the next time; servers ask after such an error.
-- Reads only.
create or replace function ojs.schema_changing() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select exists (select from ojs.schema_hash h where h.left_at > clock_timestamp() - interval '1 minute') $$;
comment on function ojs.schema_changing() is
'Whether a migration is under way or was begun within the last minute. A statement that was under way when it committed may then have
failed for not fitting the schema, and fits the next time.';
comment on table ojs.code is 'The files of functions, views, comments and grants that this database has, as ojs-pg migrate applied them.';
comment on column ojs.code.file is 'The file, below db/code.';
comment on column ojs.code.hash is 'SHA-256 over its text, hex. A file whose text differs is applied by the next migrate up.';
comment on column ojs.code.applied_at is 'When it was applied.';
comment on table ojs.schema_release is 'Which release the functions are of, and which servers may run with them; one row.';
comment on column ojs.schema_release.one is 'Always true: there is one row.';
comment on column ojs.schema_release.release is 'The release.';
comment on column ojs.schema_release.needs_server is 'The oldest release whose servers may run with it. Older ones say so and wait.';
comment on column ojs.schema_release.code_hash is 'SHA-256 over the names and hashes of all its files of code, hex.';
comment on column ojs.schema_release.applied_at is 'When a file of it was applied last.';
comment on column ojs.schema_release.postgres is
'The major version of PostgreSQL for which the functions were applied, 0 unknown. On another one, the next migrate up applies all anew.';
