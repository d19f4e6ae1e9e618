package db_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// docs/reference/sql-api.md is written from the comments and signatures in the database, so that nothing
// in it is written twice. A change of a comment or of a signature makes this test fail until the page is
// generated again (make golden).
func TestGoldenSQLAPI(t *testing.T) {
	t.Parallel()
	p := &apiPage{t: t, d: pgtest.New(t)}
	p.add("# SQL API\n\nMade from the comments in the database (`\\df+ ojs.*` and `\\d+ ojs.*` show them in psql); do not edit. ")
	p.add("Names that begin with an underscore are private.\n\n")
	p.add("Roles: `ojs_service` is the server, `ojs_operator` operators, `ojs_producer` and `ojs_worker` applications that enqueue " +
		"or work for any tenant, `ojs_tenant` the group of the tenants' login roles ([security](../operate/security.md)).\n")
	p.functions()
	p.views()
	p.types()
	p.errors()
	p.tables()
	golden(t, "../docs/reference/sql-api.md", p.text.String())
}

type apiPage struct {
	t    *testing.T
	d    *pgtest.DB
	text strings.Builder
}

func (p *apiPage) add(format string, args ...any) { fmt.Fprintf(&p.text, format, args...) }

// each calls row for each row of a query, with its columns as texts. Null is "".
func (p *apiPage) each(sql string, row func(values []string)) {
	p.t.Helper()
	rows, err := p.d.Pool.Query(p.t.Context(), sql)
	if err != nil {
		p.t.Fatal(err)
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
		p.t.Fatalf("%v: %s", err, sql)
	}
	for _, values := range all {
		row(values)
	}
}

// prose returns a comment as one line: comments are wrapped for psql, and a page wraps by itself.
func prose(s string) string { return strings.Join(strings.Fields(s), " ") }

func cell(s string) string { return strings.ReplaceAll(prose(s), "|", `\|`) }

func (p *apiPage) functions() {
	p.add("\n## Functions\n\n")
	p.add("JSON is `json`, `jsonb` or `text`, whichever the caller has. Parameters that say `anycompatible` are of one type in one call " +
		"([why](../design/0016-json-types.md)); a literal, a null and a parameter without a type go with any. `p_args` is of a type " +
		"of its own. What nobody gives a type is text: `ojs.enqueue($1, $2)` takes JSON as text, and a driver that makes JSON of " +
		"values of its language wants `$2::json`.\n")
	before := ""
	p.each(`
		select p.proname, replace(pg_get_function_arguments(p.oid), '::unknown', ''), pg_get_function_result(p.oid),
			obj_description(p.oid, 'pg_proc'),
			coalesce((
				select string_agg(format('`+"`%s`"+`', r.rolname), ', ' order by r.rolname)
				from aclexplode(p.proacl) a join pg_roles r on r.oid = a.grantee
				where a.privilege_type = 'EXECUTE' and r.rolname <> 'ojs_owner'), '')
		from pg_proc p where p.pronamespace = 'ojs'::regnamespace and p.proname not like '\_%'
		order by p.proname, p.oid`,
		func(v []string) {
			if v[0] == before {
				p.add("\nOverloaded: %s\n", prose(v[3]))
				return
			}
			before = v[0]
			// One parameter to a line once there are more than two; commas inside of a default do not count.
			arguments := v[1]
			if strings.Count(arguments, ", p_") > 1 {
				arguments = "\n    " + regexp.MustCompile(`, (p_)`).ReplaceAllString(arguments, ",\n    $1") + "\n"
			}
			p.add("\n### ojs.%s\n\n```\nojs.%s(%s) returns %s\n```\n\n%s\n", v[0], v[0], arguments, v[2], prose(v[3]))
			if v[4] != "" {
				p.add("\nMay be called by %s.\n", v[4])
			} else {
				p.add("\nMay be called by the schema's owner only.\n")
			}
		})
}

func (p *apiPage) views() {
	p.add("\n## Views\n")
	p.each(`
		select c.relname, obj_description(c.oid, 'pg_class'),
			(select string_agg(format('`+"`%s`"+` %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
				from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)
		from pg_class c where c.relnamespace = 'ojs'::regnamespace and c.relkind = 'v' and c.relname not like '\_%' order by c.relname`,
		func(v []string) { p.add("\n### ojs.%s\n\n%s\n\nColumns: %s.\n", v[0], prose(v[1]), v[2]) })
}

func (p *apiPage) types() {
	p.add("\n## Types\n")
	p.each(`
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
		func(v []string) { p.add("\n- `ojs.%s`: %s %s.\n", v[0], prose(v[1]), v[2]) })
}

func (p *apiPage) errors() {
	p.add("\n## Errors\n\nA key of two characters stands for the rest of its SQLSTATE class. " +
		"The error's DETAIL is a JSON object that names the field.\n\n")
	p.add("| SQLSTATE | code | HTTP | retryable | meaning | what to do |\n|---|---|---|---|---|---|\n")
	p.each(`
		select sqlstate, code, http_status::text, case when retryable then 'yes' else 'no' end, title, hint from ojs.problem
		order by sqlstate like 'OJ%' desc, sqlstate collate "C"`,
		func(v []string) {
			p.add("| %s | %s | %s | %s | %s | %s |\n", v[0], v[1], v[2], v[3], cell(v[4]), cell(v[5]))
		})
	p.add("\nThe table is for SQL. Over HTTP two rows differ by their cause:\n\n" +
		"- 54000 is 413 only if a value is too large. If PostgreSQL has reached a limit of its own (the\n" +
		"  NOTIFY queue is full, transaction ids are used up), the answer is 503 `backend_unavailable`,\n" +
		"  retryable.\n" +
		"- 42501 is 503 `backend_unavailable`, retryable: the sessions are the server's own, so its role\n" +
		"  lacks a right, which its log names. What a client may not do is OJ403.\n")
}

func (p *apiPage) tables() {
	p.add("\n## Tables\n\nPrivate to the functions above; for understanding, not for writing.\n")
	table := ""
	p.each(`
		select c.relname, obj_description(c.oid, 'pg_class'), a.attname, format_type(a.atttypid, a.atttypmod),
			col_description(c.oid, a.attnum)
		from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by c.relname, a.attnum`,
		func(v []string) {
			if v[0] != table {
				table = v[0]
				p.add("\n### ojs.%s\n\n%s\n\n| column | type | |\n|---|---|---|\n", v[0], prose(v[1]))
			}
			p.add("| %s | %s | %s |\n", v[2], v[3], cell(v[4]))
		})
}
