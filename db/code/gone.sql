-- What has vanished from the code: a statement for each object, the latest last, such as
--   drop function if exists ojs._old(int);
-- Nothing here cascades. Where something of a user's depends on an object, migrate up stops, changes no function and no view, and names
-- both. When this file changes, all code is applied anew. It runs again at later upgrades, so an object that comes back in another form is
-- dropped only while it has the old one; a test looks.

-- It returned nothing.
do $$
begin
    if (select p.prorettype = 'void'::regtype from pg_proc p where p.oid = to_regprocedure('ojs._begin_after_restore()')) then
        drop function ojs._begin_after_restore();
    end if;
end;
$$;

-- They were triggers that came and went, for which ojs.job had to be locked.
drop function if exists ojs._job_barred();
drop function if exists ojs._job_max_priority();
drop function if exists ojs._job_defaults();
drop function if exists ojs._has_defaults();
drop function if exists ojs._arm_defaults();
drop function if exists ojs._arm(text, text);

-- It has the parameter p_erase_after now.
drop function if exists ojs.deregister_tenant(text, text, text);

-- It returned fewer columns.
do $$
begin
    if (select cardinality(p.proallargtypes) from pg_proc p where p.oid = to_regprocedure('ojs._tenant_gauges(int)')) = 9 then
        drop function ojs._tenant_gauges(int);
    end if;
end;
$$;
