package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// What servers read for one tenant, with rights on everything, costs the same beside however many others. Of ojs.tally and what
// it is made of alone they read all, where they tell a part of all that tenants have.
func TestReadingOneTenantCostsWhatItHas(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := "acme"
	reads := []struct {
		what   string
		beside string // tables that are read as a whole
		read   func(*sqlcgen.Queries) error
	}{
		{"QueueNames", "", func(q *sqlcgen.Queries) error {
			_, err := q.QueueNames(t.Context(), sqlcgen.QueueNamesParams{MaxRows: 100, Tenant: &acme})
			return err
		}},
		{"Queues", "", func(q *sqlcgen.Queries) error {
			_, err := q.Queues(t.Context(), sqlcgen.QueuesParams{Names: []string{"q1", "q2"}, Tenant: &acme})
			return err
		}},
		{"TenantNames", "", func(q *sqlcgen.Queries) error {
			_, err := q.TenantNames(t.Context(), sqlcgen.TenantNamesParams{MaxRows: 100, Tenant: &acme})
			return err
		}},
		{"TopWaits", "", func(q *sqlcgen.Queries) error {
			_, err := q.TopWaits(t.Context(), []string{acme})
			return err
		}},
		{"Tenants", "^(tally|tenant|pace)", func(q *sqlcgen.Queries) error {
			_, err := q.Tenants(t.Context(), []string{acme})
			return err
		}},
	}
	const counted = `
		select coalesce(sum(
			pg_catalog.pg_stat_get_xact_tuples_returned(c.oid) + pg_catalog.pg_stat_get_xact_tuples_fetched(c.oid)), 0)::bigint
		from pg_catalog.pg_class c left join pg_catalog.pg_index i on i.indexrelid = c.oid
		left join pg_catalog.pg_class o on o.oid = i.indrelid
		where c.relkind in ('r', 'i') and c.relnamespace = 'ojs'::pg_catalog.regnamespace
			and ($1 = '' or coalesce(o.relname, c.relname) !~ ($1 || '$'))`
	examine := func() (rows []int64) {
		t.Helper()
		exec(t, d.Pool, "vacuum analyze")
		for _, r := range reads {
			tx := begin(t, d.Service())
			before := one[int64](t, tx, counted, r.beside)
			// With the plan that an old connection has, too: it knows no names.
			exec(t, tx, "set local plan_cache_mode = force_generic_plan")
			if err := r.read(sqlcgen.New(tx)); err != nil {
				t.Fatalf("%s: %v", r.what, err)
			}
			rows = append(rows, one[int64](t, tx, counted, r.beside)-before)
			rollback(t, tx)
		}
		return rows
	}
	enqueueOthers := func(from, to int) {
		t.Helper()
		exec(t, d.Service(), `insert into ojs.jobs (tenant_id, type, queue)
			select 't' || i, 'a', 'q' || q from generate_series($1::int, $2::int) i, generate_series(1, 3) q`, from, to)
		exec(t, d.Operator(), "select from generate_series($1::int, $2::int) i, ojs.configure_tenant('t' || i, 2)", from, min(to, from+20))
		exec(t, d.Service(), "select from ojs.fetch('{q1}', 1)")
		for one[bool](t, d.Service(), "select journal_rows > 0 or rolled_up_ago is distinct from '0' from ojs.clock_status") {
			tick(t, d.Service(), 1000)
		}
	}
	for _, queue := range strings.Fields("q1 q2 q3") {
		enqueueFor(t, d.Service(), queue, acme, 3)
	}
	enqueueOthers(1, 200)
	few := examine()
	enqueueOthers(201, 3000)
	many := examine()
	// What passes over all tenants, or all that they have, reads some thousands more every time; what is not vacuumed yet, some hundreds.
	grown := func(i int) bool { return many[i] > few[i]+1000 }
	for again := 0; again < 3 && slices.ContainsFunc([]int{0, 1, 2, 3, 4}, grown); again++ {
		for i, rows := range examine() {
			many[i] = min(many[i], rows)
		}
	}
	for i, r := range reads {
		if grown(i) {
			t.Errorf("%s of one tenant examines %d rows beside 200 others and %d beside 3000", r.what, few[i], many[i])
		}
	}
}
