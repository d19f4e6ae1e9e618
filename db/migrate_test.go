package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// catalog lists everything that a migration can change: objects with owners, rights, options and comments.
const catalog = `
	select x from (
		select concat_ws(' ', 'schema', n.nspname, n.nspowner::regrole,
			(select string_agg(g.grantee::regrole || ' ' || g.privilege_type, ','
				order by g.grantee::regrole::text, g.privilege_type) from aclexplode(n.nspacl) g where g.grantee <> n.nspowner),
			obj_description(n.oid, 'pg_namespace'))
		from pg_namespace n where n.nspname = 'ojs'
		union all
		select concat_ws(' ', 'relation', c.oid::regclass, c.relkind, c.relowner::regrole,
			(select string_agg(g.grantee::regrole || ' ' || g.privilege_type, ','
				order by g.grantee::regrole::text, g.privilege_type) from aclexplode(c.relacl) g where g.grantee <> c.relowner),
			c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, pg_get_viewdef(c.oid),
			case when c.relkind in ('i', 'I') then pg_get_indexdef(c.oid) end,
				obj_description(c.oid, 'pg_class')) from pg_class c where c.relnamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'column', a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
			a.attnotnull, a.attidentity, a.attacl, nullif(a.attstattarget, -1),
			pg_get_expr(e.adbin, e.adrelid), col_description(c.oid, a.attnum))
		from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_attrdef e on e.adrelid = a.attrelid and e.adnum = a.attnum
		where c.relnamespace = to_regnamespace('ojs') and c.relkind not in ('i', 'I') and a.attnum > 0 and not a.attisdropped
		union all
		select concat_ws(' ', 'constraint', o.conrelid::regclass, o.conname, pg_get_constraintdef(o.oid)) from pg_constraint o
		where o.connamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'function', p.oid::regprocedure, p.proowner::regrole,
			(select string_agg(g.grantee::regrole || ' ' || g.privilege_type, ','
				order by g.grantee::regrole::text, g.privilege_type) from aclexplode(p.proacl) g where g.grantee <> p.proowner),
			pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc'))
		from pg_proc p where p.pronamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'type', y.oid::regtype, y.typowner::regrole, y.typacl, obj_description(y.oid, 'pg_type'),
			(select string_agg(l.enumlabel, ',' order by l.enumsortorder) from pg_enum l where l.enumtypid = y.oid))
		from pg_type y where y.typnamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'policy', p.polrelid::regclass, p.polname, p.polcmd, p.polroles::regrole[],
			pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
		from pg_policy p
		union all
		select concat_ws(' ', 'trigger', t.tgrelid::regclass, t.tgname, pg_get_triggerdef(t.oid), t.tgenabled) from pg_trigger t
		where not t.tgisinternal
		union all
		select concat_ws(' ', 'default privileges', d.defaclrole::regrole, d.defaclnamespace, d.defaclobjtype, d.defaclacl)
		from pg_default_acl d
		union all
		select concat_ws(' ', 'owned or granted', s.classid::regclass, s.deptype, s.refobjid::regrole, count(*)) from pg_shdepend s
		where s.dbid = (select oid from pg_database where datname = current_database()) and s.refclassid = 'pg_authid'::regclass
			and s.refobjid::regrole::text like 'ojs\_%'
		group by s.classid, s.deptype, s.refobjid
	) y(x) order by x collate "C"`

// Down leaves nothing but the roles, and up again makes what was there before, whatever the first way up had left behind.
func TestDownAndUpAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	conn := connect(t, d.URL)
	exec(t, conn, "set search_path = pg_catalog")
	made := list[string](t, conn, catalog)
	if len(made) < 500 {
		t.Errorf("the catalog has only %d entries", len(made))
	}
	for range 2 {
		if err := migrate.Run(t.Context(), d.URL, migrate.Down, nil); err != nil {
			t.Fatal(err)
		}
		if left := list[string](t, conn, catalog); len(left) > 0 {
			t.Errorf("migrating down leaves\n  %s", strings.Join(left, "\n  "))
		}
		if err := migrate.Run(t.Context(), d.URL, migrate.Up, nil); err != nil {
			t.Fatal(err)
		}
		if again := list[string](t, conn, catalog); !slices.Equal(made, again) {
			t.Errorf("the second way up makes %d entries, the first made %d, and they differ", len(again), len(made))
		}
	}
	if got := one[int](t, d.Pool, `
		select count(*) from pg_catalog.pg_roles
		where rolname in ('ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_producer', 'ojs_worker', 'ojs_tenant')`); got != 6 {
		t.Errorf("%d of the four roles are left; other databases of the cluster may use them", got)
	}
}
