package db_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// catalog is everything a migration can leave behind: objects with their owners, rights, options and comments.
const catalog = `
	select x from (
		select concat_ws(' ', 'schema', n.nspname, n.nspowner::regrole, (select string_agg(g.grantee::regrole || ' ' || g.privilege_type, ',' order by g.grantee::regrole::text, g.privilege_type) from aclexplode(n.nspacl) g where g.grantee <> n.nspowner), obj_description(n.oid, 'pg_namespace')) from pg_namespace n where n.nspname = 'ojs'
		union all
		select concat_ws(' ', 'relation', c.oid::regclass, c.relkind, c.relowner::regrole, (select string_agg(g.grantee::regrole || ' ' || g.privilege_type, ',' order by g.grantee::regrole::text, g.privilege_type) from aclexplode(c.relacl) g where g.grantee <> c.relowner), c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident, pg_get_viewdef(c.oid),
			case when c.relkind in ('i', 'I') then pg_get_indexdef(c.oid) end, obj_description(c.oid, 'pg_class')) from pg_class c where c.relnamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'column', a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attacl, nullif(a.attstattarget, -1),
			pg_get_expr(e.adbin, e.adrelid), col_description(c.oid, a.attnum))
		from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_attrdef e on e.adrelid = a.attrelid and e.adnum = a.attnum
		where c.relnamespace = to_regnamespace('ojs') and c.relkind not in ('i', 'I') and a.attnum > 0 and not a.attisdropped
		union all
		select concat_ws(' ', 'constraint', o.conrelid::regclass, o.conname, pg_get_constraintdef(o.oid)) from pg_constraint o where o.connamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'function', p.oid::regprocedure, p.proowner::regrole, (select string_agg(g.grantee::regrole || ' ' || g.privilege_type, ',' order by g.grantee::regrole::text, g.privilege_type) from aclexplode(p.proacl) g where g.grantee <> p.proowner), pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc'))
		from pg_proc p where p.pronamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'type', y.oid::regtype, y.typowner::regrole, y.typacl, obj_description(y.oid, 'pg_type'), (select string_agg(l.enumlabel, ',' order by l.enumsortorder) from pg_enum l where l.enumtypid = y.oid))
		from pg_type y where y.typnamespace = to_regnamespace('ojs')
		union all
		select concat_ws(' ', 'policy', p.polrelid::regclass, p.polname, p.polcmd, p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)) from pg_policy p
		union all
		select concat_ws(' ', 'trigger', t.tgrelid::regclass, t.tgname, pg_get_triggerdef(t.oid), t.tgenabled) from pg_trigger t where not t.tgisinternal
		union all
		select concat_ws(' ', 'default privileges', d.defaclrole::regrole, d.defaclnamespace, d.defaclobjtype, d.defaclacl) from pg_default_acl d
		union all
		select concat_ws(' ', 'owned or granted', s.classid::regclass, s.deptype, s.refobjid::regrole, count(*)) from pg_shdepend s
		where s.dbid = (select oid from pg_database where datname = current_database()) and s.refclassid = 'pg_authid'::regclass and s.refobjid::regrole::text like 'ojs\_%'
		group by s.classid, s.deptype, s.refobjid
	) y(x) order by x collate "C"`

// Each migration's way down undoes its way up, exactly, and the last one leaves nothing but the roles.
func TestEveryMigrationUndoesItself(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if err := pg.Migrate(t.Context(), d.URL, pg.Down, nil); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, d.URL)
	exec(t, conn, "set search_path = pg_catalog")
	read := func() []string { t.Helper(); return list[string](t, conn, catalog) }
	files, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("migrations: %v (%v)", files, err)
	}
	run := func(file, sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(t.Context(), "begin; "+sql+"; commit").ReadAll(); err != nil {
			t.Fatalf("%s: %s", file, explain(err))
		}
	}
	before := [][]string{read()}
	if len(before[0]) > 0 {
		t.Errorf("migrating down leaves\n  %s", strings.Join(before[0], "\n  "))
	}
	downs := make([]string, len(files))
	for i, file := range files {
		raw, err := fs.ReadFile(db.Migrations, file)
		if err != nil {
			t.Fatal(err)
		}
		up, down, ok := strings.Cut(string(raw), "-- +goose Down")
		if !ok {
			t.Fatalf("%s has no way down", file)
		}
		run(file, up)
		downs[i] = down
		before = append(before, read())
	}
	if all := len(before[len(files)]); all < 500 {
		t.Errorf("the catalog has only %d entries", all)
	}
	for i, file := range slices.Backward(files) {
		run(file, downs[i])
		after := read()
		for _, entry := range after {
			if !slices.Contains(before[i], entry) {
				t.Errorf("%s, down, leaves %s", file, short(entry))
			}
		}
		for _, entry := range before[i] {
			if !slices.Contains(after, entry) {
				t.Errorf("%s, down, takes away or changes %s", file, short(entry))
			}
		}
	}
	if got := one[int](t, d.Pool, "select count(*) from pg_catalog.pg_roles where rolname in ('ojs_owner', 'ojs_service', 'ojs_operator', 'ojs_tenant')"); got != 4 {
		t.Errorf("%d of the four roles are left; other databases of the cluster may use them", got)
	}
}
