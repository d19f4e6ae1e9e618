package db_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

var calledName = regexp.MustCompile(`ojs\._\w+\(`)

// A function that PostgreSQL has to call costs up to a hundred times what its expression costs. It is called if it is strict or security
// definer, if it has a setting, or if it calls a function that is more volatile than itself. So the planner is asked.
func TestFunctionsThatBecomePartOfAQueryDo(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	calls := list[string](t, d.Pool, `
		select format(case when p.proretset then 'select f.* from (select %s offset 0) x cross join lateral %s f'
				else 'select %2$s from (select %1$s offset 0) x' end,
			coalesce(string_agg(format('null::%s as a%s', a.type::pg_catalog.regtype, a.n), ', ' order by a.n)
				filter (where a.n is not null), '1'),
			format('ojs.%s(%s)', p.proname, string_agg('x.a' || a.n, ', ' order by a.n)))
		from pg_catalog.pg_proc p left join lateral unnest(p.proargtypes::oid[]) with ordinality a(type, n) on true
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace
		  and pg_catalog.obj_description(p.oid, 'pg_proc') ~ 'Becomes\s+part\s+of'
		group by p.oid order by p.proname`)
	if len(calls) < 40 {
		t.Errorf("only %d functions become part of a query", len(calls))
	}
	for _, call := range calls {
		name := calledName.FindString(call)
		plan := strings.Join(list[string](t, d.Pool, "explain (verbose, costs off) "+call), "\n")
		if strings.Contains(plan, name) {
			t.Errorf("%s...) is called:\n%s", name, plan)
		}
	}
}
