-- Gives the server a login role of its own: a member of ojs_service and of nothing else.
-- Run it with psql as a superuser, or as a role that may create roles, after `ojs-pg migrate up`;
-- the password is read from the environment, so that no command line shows it:
--
--   OJS_SERVER_PASSWORD=... psql "$DATABASE_URL" -f scripts/server-role.sql
--
-- Running it again sets the password again.

\getenv password OJS_SERVER_PASSWORD

select 'create role ojs_server login in role ojs_service'
where not exists (select from pg_catalog.pg_roles where rolname = 'ojs_server') \gexec

alter role ojs_server password :'password';
-- The server sets these for itself, except through PgBouncer. The first two prevail over what the
-- database says.
alter role ojs_server set default_transaction_isolation = 'read committed';
alter role ojs_server set row_security = on;
alter role ojs_server set search_path = '';
alter role ojs_server set jit = off;
