-- Takes from all roles what PostgreSQL gives every login and one login can use against all others.
--
-- READ THIS FIRST. It is for a database that is ojs-pg's own. In a database that other programs use,
-- too, they may need what it takes: many migration tools (goose, Flyway, golang-migrate, Rails,
-- Django plugins) take advisory locks, reports make temporary tables.
--
-- It revokes from public, in the database that it runs in:
--   advisory locks (pg_advisory_*, pg_try_advisory_*): one idle session fills the lock table with them
--   large objects (lo_*, loread, lowrite): no limit counts them, and they keep their role from being dropped
--   pg_logical_emit_message: it writes WAL
--   TEMP on the database: temporary tables take locks and disk outside of temp_file_limit
--   CREATE on schema public
-- The owner of the database keeps advisory locks, because `ojs-pg migrate up` takes one. Superusers
-- keep all. Give another role back what it needs, such as:
--   grant execute on function pg_catalog.pg_advisory_xact_lock(bigint) to NAME;
--   grant temporary on database NAME to NAME;
--
-- Run it as a superuser, after `ojs-pg migrate up`, in one transaction:
--
--   psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -1 -f scripts/harden.sql
--
-- It may run again at any time, and should after an upgrade of PostgreSQL by dump or pg_upgrade. Its
-- last result lists other databases of the cluster in which tenants' logins can still do all of this,
-- because they may connect: the lock table belongs to the cluster. Close them, such as:
--   revoke connect on database postgres from public;

do $$
declare
    v_function regprocedure;
    v_owner    name := (select pg_get_userbyid(d.datdba) from pg_catalog.pg_database d where d.datname = current_database());
begin
    if not (select r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user) then
        raise exception 'only a superuser can revoke functions of PostgreSQL from public';
    end if;
    if to_regclass('ojs.job') is null then
        raise exception 'database % is not ojs-pg''s: it has no schema ojs', current_database()
            using hint = 'Connect to the right database, or run ojs-pg migrate up first.';
    end if;
    for v_function in
        select p.oid from pg_catalog.pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace
          and (p.proname ~ '^(pg_(try_)?advisory_|lo_)' or p.proname in ('loread', 'lowrite', 'pg_logical_emit_message'))
    loop
        execute format('revoke execute on function %s from public', v_function);
        if v_function::text ~ 'advisory_' then
            execute format('grant execute on function %s to %I', v_function, v_owner);
        end if;
    end loop;
    execute format('revoke temporary on database %I from public', current_database());
    revoke create on schema public from public;
end;
$$;

-- What it did: a tenant's login may do none of this any more.
select s.what, case when s.open then 'STILL OPEN' else 'closed' end as to_tenants
from (values
    ('advisory locks', (select bool_or(has_function_privilege('ojs_tenant', p.oid, 'execute')) from pg_catalog.pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.proname ~ '^pg_(try_)?advisory_')),
    ('large objects', (select bool_or(has_function_privilege('ojs_tenant', p.oid, 'execute')) from pg_catalog.pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and (p.proname ~ '^lo_' or p.proname in ('loread', 'lowrite')))),
    ('pg_logical_emit_message', (select bool_or(has_function_privilege('ojs_tenant', p.oid, 'execute')) from pg_catalog.pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = 'pg_logical_emit_message')),
    ('temporary tables', has_database_privilege('ojs_tenant', current_database(), 'temporary')),
    ('tables in schema public', has_schema_privilege('ojs_tenant', 'public', 'create'))
) s(what, open);

select d.datname as other_database_open_to_tenants, format('revoke connect on database %I from public', d.datname) as to_close_it
from pg_catalog.pg_database d
where d.datname <> current_database() and d.datallowconn and has_database_privilege('ojs_tenant', d.oid, 'connect')
order by d.datname;
