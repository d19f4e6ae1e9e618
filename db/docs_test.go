package db_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// docs/sql-api.md is what the database says of itself: nothing in it is written twice. A change of a comment or of a signature makes this
// test fail until the page is written anew.
func TestGoldenSQLAPI(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	var page strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&page, format, args...) }
	each := func(sql string, row func(values []string)) {
		t.Helper()
		rows, err := d.Pool.Query(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) ([]string, error) {
			values, err := r.Values()
			texts := make([]string, len(values))
			for i, v := range values {
				if v != nil {
					texts[i] = fmt.Sprint(v)
				}
			}
			return texts, err
		})
		if err != nil {
			t.Fatalf("%v: %s", err, sql)
		}
		for _, values := range all {
			row(values)
		}
	}
	// Comments are wrapped for psql; a page wraps by itself.
	prose := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	cell := func(s string) string { return strings.ReplaceAll(prose(s), "|", `\|`) }

	add("# SQL API\n\nMade from the comments in the database (`\\df+ ojs.*` and `\\d+ ojs.*` show them in psql); do not edit. ")
	add("Names that begin with an underscore are private.\n\n")
	add("Roles: `ojs_service` is the server and trusted producers, `ojs_operator` operators, " +
		"`ojs_tenant` the group of the tenants' login roles ([security](security.md)).\n")

	add("\n## Functions\n")
	each(`
		select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc'),
			coalesce((
				select string_agg(format('`+"`%s`"+`', r.rolname), ', ' order by r.rolname)
				from aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee
				where a.privilege_type = 'EXECUTE' and r.rolname <> 'ojs_owner'), '')
		from pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname not like '\_%'
		order by p.proname, pg_get_function_identity_arguments(p.oid)`,
		func(v []string) {
			// One parameter to a line once there are more than two; commas inside of a default do not count.
			arguments := v[1]
			if strings.Count(arguments, ", p_") > 1 {
				arguments = "\n    " + regexp.MustCompile(`, (p_)`).ReplaceAllString(arguments, ",\n    $1") + "\n"
			}
			add("\n### ojs.%s\n\n```\nojs.%s(%s) returns %s\n```\n\n%s\n", v[0], v[0], arguments, v[2], prose(v[3]))
			if v[4] != "" {
				add("\nMay be called by %s.\n", v[4])
			} else {
				add("\nMay be called by the schema's owner only.\n")
			}
		})

	add("\n## Views\n")
	each(`
		select c.relname, obj_description(c.oid, 'pg_class'),
			(select string_agg(format('`+"`%s`"+` %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
				from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)
		from pg_class c where c.relnamespace = 'ojs'::regnamespace and c.relkind = 'v' and c.relname not like '\_%' order by c.relname`,
		func(v []string) { add("\n### ojs.%s\n\n%s\n\nColumns: %s.\n", v[0], prose(v[1]), v[2]) })

	add("\n## Types\n")
	each(`
		select t.typname, obj_description(t.oid, 'pg_type'),
			case when t.typtype = 'e' then (
				select string_agg(format('`+"`%s`"+`', e.enumlabel), ', ' order by e.enumsortorder)
				from pg_enum e where e.enumtypid = t.oid)
			else (
				select string_agg(format('`+"`%s`"+` %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
				from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0)
			end
		from pg_type t left join pg_class c on c.oid = t.typrelid
		where t.typnamespace = 'ojs'::regnamespace and (t.typtype = 'e' or t.typtype = 'c' and c.relkind = 'c') order by t.typname`,
		func(v []string) { add("\n- `ojs.%s`: %s %s.\n", v[0], prose(v[1]), v[2]) })

	add("\n## Errors\n\nA key of two characters stands for the rest of its SQLSTATE class. " +
		"The error's DETAIL is a JSON object that names the field.\n\n")
	add("| SQLSTATE | code | HTTP | retryable | meaning | what to do |\n|---|---|---|---|---|---|\n")
	each(`
		select sqlstate, code, http_status::text, case when retryable then 'yes' else 'no' end, title, hint from ojs.problem
		order by sqlstate like 'OJ%' desc, sqlstate collate "C"`,
		func(v []string) {
			add("| %s | %s | %s | %s | %s | %s |\n", v[0], v[1], v[2], v[3], cell(v[4]), cell(v[5]))
		})

	add("\n## Tables\n\nPrivate to the functions above; for understanding, not for writing.\n")
	each(`
		select c.relname, obj_description(c.oid, 'pg_class'), a.attname, format_type(a.atttypid, a.atttypmod),
			col_description(c.oid, a.attnum)
		from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by c.relname, a.attnum`,
		func() func(v []string) {
			table := ""
			return func(v []string) {
				if v[0] != table {
					table = v[0]
					add("\n### ojs.%s\n\n%s\n\n| column | type | |\n|---|---|---|\n", v[0], prose(v[1]))
				}
				add("| %s | %s | %s |\n", v[2], v[3], cell(v[4]))
			}
		}())
	golden(t, "../docs/sql-api.md", page.String())
}
