comment on type ojs.privilege is
'An owner, a grant, a policy or a default privilege that an object of the schema has or should
have. kind: owner, grant, policy, default. object: its name. key: text by which two of these are
compared. statement: makes it so. passing: the object comes and goes, as partitions do.';
comment on column ojs.schema_hash.privileges is
'The privileges as they were when migrate had applied the last migration; null in all other rows. A
restored database is compared with them.';

create or replace function ojs._privileges() returns setof ojs.privilege
language sql stable set search_path = pg_catalog, pg_temp
as $$
    with ours as materialized (
        select format('ojs.%I', c.relname) as object, case c.relkind when 'S' then 'sequence' else 'table' end as word, c.relowner as owner,
            coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner)) as acl,
            coalesce(c.relispartition or starts_with(c.relname, 'job_dropped_'), false) as passing, c.oid as relation,
            exists (select from pg_catalog.pg_depend d where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
                and d.refclassid = 'pg_catalog.pg_class'::regclass and d.deptype in ('a', 'i') and c.relkind = 'S') as follows
        from pg_catalog.pg_class c where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
        union all
        select p.oid::regprocedure::text, 'routine', p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)), false, null, false
        from pg_catalog.pg_proc p where p.pronamespace = 'ojs'::regnamespace
        union all
        select format('ojs.%I', y.typname), 'type', y.typowner, coalesce(y.typacl, acldefault('T', y.typowner)), false, null, false
        from pg_catalog.pg_type y left join pg_catalog.pg_class c on c.oid = y.typrelid
        where y.typnamespace = 'ojs'::regnamespace and (y.typtype in ('e', 'd', 'r') or c.relkind = 'c')
        union all
        select 'ojs', 'schema', n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner)), false, null, false
        from pg_catalog.pg_namespace n where n.nspname = 'ojs'
    ), given(object, word, what, owner, acl) as (
        select o.object, o.word, '', o.owner, o.acl from ours o
        union all
        select o.object, 'table', format(' (%I)', a.attname), o.owner, a.attacl
        from ours o join pg_catalog.pg_attribute a on a.attrelid = o.relation and a.attacl is not null and not a.attisdropped
    )
    select 'owner', o.object, s, s, o.passing
    from ours o cross join format('alter %s %s owner to %I', o.word, o.object, pg_get_userbyid(o.owner)) s where not o.follows
    union all
    select 'grant', g.object, s, s, false
    from given g cross join lateral aclexplode(g.acl) a
    cross join format('grant %s%s on %s %s to %s', lower(a.privilege_type collate "C"), g.what, g.word, g.object,
        case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end) s
    -- Grants to other roles are not made by migrations, and those roles may be dropped one day.
    where a.grantee <> g.owner and (a.grantee = 0 or pg_get_userbyid(a.grantee) in (
        'ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_producer', 'ojs_worker', 'ojs_tenant'))
    union all
    select 'policy', o.object, format('policy %I on %s for %s to %s', p.policyname, o.object, lower(p.cmd collate "C"), r),
        format('drop policy if exists %I on %s; create policy %I on %s as %s for %s to %s', p.policyname, o.object, p.policyname, o.object,
            p.permissive, p.cmd, r) || coalesce(' using (' || p.qual || ')', '') || coalesce(' with check (' || p.with_check || ')', ''),
        o.passing
    from ours o join pg_catalog.pg_policies p on format('%I.%I', p.schemaname, p.tablename) = o.object
    cross join lateral (select string_agg(quote_ident(n), ', ' order by n) as r from unnest(p.roles) n) r
    union all
    select 'default', 'functions', s, s, false
    from pg_catalog.pg_default_acl d cross join format('alter default privileges for role %I revoke execute on functions from public',
        pg_get_userbyid(d.defaclrole)) s
    where d.defaclnamespace = 0 and d.defaclobjtype = 'f' and pg_get_userbyid(d.defaclrole) = 'ojs_owner'
      and not exists (select from aclexplode(d.defaclacl) a where a.grantee = 0)
$$;
comment on function ojs._privileges() is
'The owners, grants, policies and default privileges of the schema, by the catalogs.';

create or replace function ojs._amiss() returns setof ojs.privilege
language sql stable
as $$
    with has as materialized (
        select * from ojs._privileges()
    ), kept as materialized (
        select k.* from ojs.schema_hash h cross join unnest(h.privileges) k
        where h.version = (select max(l.version) from ojs.schema_hash l)
    ), wanted as (
        select k.kind, k.object, k.key, k.statement, false from kept k
        union all
        select w.kind, h.object, w.key, w.statement, true
        from has h cross join lateral (values
            ('owner', format('alter table %s owner to ojs_owner', h.object), format('alter table %s owner to ojs_owner', h.object)),
            ('policy', format('policy functions on %s for all to ojs_owner', h.object),
                format('create policy functions on %s to ojs_owner using (true) with check (true)', h.object))
        ) w(kind, key, statement)
        where h.kind = 'owner' and h.passing
    )
    select 'role', r, r, format('create role %I nologin', r), false
    from unnest('{ojs_owner,ojs_service,ojs_operator,ojs_producer,ojs_worker,ojs_tenant}'::text[]) r where to_regrole(r) is null
    union all
    select w.* from wanted w where not exists (select from has h where h.key = w.key)
    union all
    select 'public', h.object, h.key, regexp_replace(h.key, '^grant (.*) to public$', E'revoke \\1 from public'), false
    from has h
    where h.kind = 'grant' and h.key like 'grant execute on routine % to public'
      and exists (select from kept k where k.object = h.object) and not exists (select from kept k where k.key = h.key)
$$;
comment on function ojs._amiss() is
'The roles, owners, policies and grants that differ from what the migrations made, each with the
statement that mends it. kind role: a group that is missing. kind public: a function that every
role may call. Grants to other roles are not looked at.';

create or replace function ojs._unfit() returns text
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('%s %s', k.n, k.what), ', ' order by k.what)
    from (
        select count(*) as n, case a.kind when 'role' then 'groups' when 'owner' then 'owners' when 'policy' then 'policies'
            when 'default' then 'default privileges' when 'public' then 'revocations' else 'grants' end as what,
            bool_or(a.kind <> 'grant' or a.key like '% to ojs_service') as bars
        from ojs._amiss() a group by 2
    ) k
    having bool_or(k.bars)
$$;
comment on function ojs._unfit() is
'Why no server may start on this schema: how many groups, owners, policies and grants a restore has
left out. Null: servers may start. Missing grants of groups other than ojs_service alone do not
stop servers: an operator may have revoked them on purpose.';

-- security definer: only the owner may read which tenant a login belongs to (ojs.tenant_role), and
-- the privileges that migrate has kept.
create or replace function ojs._doctor_privileges() returns setof ojs.finding
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select 'error'::ojs.severity, 'roles', format('A restore has left out what belongs to the schema: %s. No server starts on it.', u),
        'Run ojs-pg migrate up, as a superuser.', 'backup-and-restore.md'
    from ojs._unfit() u where u is not null
    union all
    select 'note', 'roles', format('%s grants of the migrations are missing, such as: %s', count(*), min(a.statement)),
        'Unless they were revoked on purpose: run such statements, as a superuser.', 'backup-and-restore.md'
    from ojs._amiss() a where ojs._unfit() is null
    having count(*) > 0
    union all
    select 'warning', 'roles',
        format('%s logins of tenants may open any number of connections, such as %I: one of them can take all that there are.', count(*),
            min(r.rolname)),
        format('alter role %I connection limit 20, and so on.', min(r.rolname)), 'maintenance.md'
    from ojs.tenant_role t join pg_catalog.pg_roles r on r.rolname = t.role_name
    where r.rolconnlimit = -1 and r.rolcanlogin
    having count(*) > 0
$$;
comment on function ojs._doctor_privileges() is
'The findings of ojs.doctor about owners, policies and grants, and about the bounds of tenants''
logins.';

-- Makes roles, owners, policies and grants what the migrations made them.
-- Locks each object whose owner changes, and each table that gets a policy, against all other
-- sessions.
-- Writes the catalogs.
create or replace function ojs._put_right() returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_statement text;
begin
    -- Not security definer: after a restore the functions may belong to a role that may not even
    -- use the schema.
    if not exists (select from ojs._amiss() a where a.kind <> 'grant' or a.key like '% to ojs_service') then
        return;
    end if;
    foreach v_statement in array array(select a.statement from ojs._amiss() a where a.kind = 'role') loop
        execute v_statement;
    end loop;
    if not (select rolsuper from pg_roles where rolname = current_user) then
        execute format('grant ojs_owner to %I', current_user);
    end if;
    -- The owner of the schema comes first: PostgreSQL gives an object only to a role that may
    -- create in its schema. Grants come last, because an object's owner grants them.
    foreach v_statement in array array(
        select a.statement from ojs._amiss() a
        order by array_position('{owner,default,policy,public,grant}', a.kind), a.object <> 'ojs', a.object, a.key
    ) loop
        execute v_statement;
    end loop;
end;
$$;
comment on function ojs._put_right() is
'Makes roles, owners, policies and grants what the migrations made them, if a restore has left out
some without which servers do not work. Only the role that migrates can call it.';

create or replace function ojs._keep_privileges() returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    update ojs.schema_hash h
    set privileges = case when h.version = l.version then array(select p from ojs._privileges() p where not p.passing) end
    from (select max(m.version) as version from ojs.schema_hash m) l
    where h.version = l.version or h.privileges is not null;
end;
$$;
comment on function ojs._keep_privileges() is
'Keeps the privileges of the schema as they are now, for later comparison. Only the role that
migrates can call it.';
