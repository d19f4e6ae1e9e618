package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// typedColumns lists the names and types of a relation's columns, in their order.
const typedColumns = `
	select a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod) from pg_catalog.pg_attribute a
	where a.attrelid = $1::pg_catalog.regclass and a.attnum > 0 and not a.attisdropped `

// Rows of these relations become rows of ojs.job, or the other way round, by the place of each column. A view is made with the columns that
// ojs.job has then: where a later migration adds one, the file of the view has to be applied again.
func TestRowsOfJobsHaveTheColumnsOfJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	want := strings.Join(list[string](t, d.Pool, typedColumns+"order by a.attnum", "ojs.job"), ", ")
	for relation, before := range map[string]string{
		"ojs.dead_job": "",
		"ojs._handed":  "request integer, ",
		"ojs._outcome": "n integer, sqlstate text, message text, detail jsonb, ",
		"ojs._once":    "replayed boolean, ",
	} {
		if got := strings.Join(list[string](t, d.Pool, typedColumns+"order by a.attnum", relation), ", "); got != before+want {
			t.Errorf("%s has the columns\n%s\nand not\n%s", relation, got, before+want)
		}
	}
}

// The view ojs.jobs names its columns three times: for all jobs, for a tenant's own jobs, and in the rule for inserts. A column that the
// view lacks is shown to nobody. A value for a column that the rule lacks would be dropped without an error.
func TestTheViewOfJobsShowsAndTakesEachColumn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	shown := list[string](t, d.Pool, typedColumns+"order by a.attnum", "ojs.jobs")
	if own := list[string](t, d.Pool, typedColumns+"order by a.attnum", "ojs._own_job"); !slices.Equal(own, shown) {
		t.Errorf("ojs._own_job has the columns\n%q\nand ojs.jobs\n%q", own, shown)
	}
	expectNone(t, d.Pool, "columns of ojs.job that ojs.jobs does not show", typedColumns+`
		and a.attname <> all ('{lease,pool,charged,seq}')
		and a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod) <> all ($2)`,
		"ojs.job", shown)
	rule := one[string](t, d.Pool, "select pg_catalog.pg_get_ruledef(oid) from pg_catalog.pg_rewrite where rulename = 'jobs_insert'")
	for _, column := range shown {
		name, _, _ := strings.Cut(column, " ")
		if !strings.Contains(rule, "new."+name+",") && !strings.Contains(rule, "new."+name+")") {
			t.Errorf("the rule jobs_insert neither stores nor refuses a value for %s:\n%s", name, rule)
		}
	}
}

// Functions list the columns of a job by hand. PostgreSQL sees that one is missing, but not that two of a type have changed places.
func TestFunctionsReturnTheJobThatIsStored(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const given = `'[{"type": "a", "queue": "q", "args": [1], "meta": {"m": 2}, "retry": {"max_attempts": 9}, "tags": ["t"], "priority": 3,
		"max_attempts": 4, "timeout_ms": 5000, "visibility_timeout_ms": 6000, "scheduled_at": "2001-01-01T00:00:00Z",
		"expires_at": "2999-01-01T00:00:00Z", "options": {"o": 7}, "extra": {"ext_e": 8}, "tenant": "acme"}]'`
	for _, call := range []string{
		"ojs.enqueue_many(" + given + ")", "ojs.enqueue_each(" + given + ")", "ojs.enqueue_once('k', " + given + ")",
		"ojs.fetch('{q}', 1, 'w')", "ojs.fetch_many('{q}', '{1}', '{w}', '{0}')",
		`ojs.settle((select json_agg(json_build_object('id', id, 'error', json_build_object('message', 'm'))) from (
			select id from ojs.job where state = 'active' limit 1) j))`,
	} {
		returned := one[string](t, d.Pool, `
			select (to_jsonb(r) - '{n,sqlstate,message,detail,request,replayed}'::text[])::text from `+call+" r")
		stored := one[string](t, d.Pool, "select to_jsonb(j)::text from ojs.job j where j.id = ($1::jsonb ->> 'id')::uuid", returned)
		if returned != stored {
			t.Errorf("%s returns\n%s\nand stored is\n%s", call, returned, stored)
		}
		// No two columns of a type have the same value in the next call.
		exec(t, d.Pool, `
			update ojs.job set created_at = '2002-02-02', enqueued_at = '2003-03-03', retry_at = '2004-04-04', finished_at = '2005-05-05',
				errors = '[{"attempt": 10}]', result = '{"r": 11}'`)
	}
}
