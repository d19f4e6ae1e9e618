package db_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// An error names the functions that it comes through, without their bodies: psql, drivers and the server's log print all of its context.
// One of a call for many jobs is no longer than one about a single job.
func TestErrorsOfManyAreAsShortAsOfOne(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	single := len(refused(t, d.Service(), "OJ400", "select ojs.enqueue('A B')").Where)

	const twice = `{"type": "a", "id": "01890a5d-ac96-774b-bcce-b302099a8057"}`
	many := map[string][]string{
		"enqueue_many": {
			`select ojs.enqueue_many('{}')`, `select ojs.enqueue_many('[]')`, `select ojs.enqueue_many('[{"type": "a"}, {"type": "A B"}]')`,
			`select ojs.enqueue_many('[{"typ": "a"}]')`, `select ojs.enqueue_many('[{"type": "a", "scheduled_at": "tomorrow"}]')`,
			`select ojs.enqueue_many('[{"type": "a", "priority": 101}]')`, `select ojs.enqueue_many('[` + twice + `, ` + twice + `]')`,
			`select ojs.enqueue_many('[{"type": "a", "queue": "full"}, {"type": "a", "queue": "full"}]')`,
			`select ojs.enqueue_many('[{"type": "a", "tenant": "globex"}]', 'acme')`,
		},
		"enqueue_each": {`select ojs.enqueue_each('{}')`},
		"enqueue_once": {
			`select ojs.enqueue_once('k', '[{"type": "A B"}]')`, `select ojs.enqueue_once('', '[]')`,
			`select ojs.enqueue_once('k', '[{"type": "a", "tenant": "!"}]')`,
		},
		"enqueue_rows": {
			`select ojs.enqueue_rows('{A B}', '{[]}')`, `select ojs.enqueue_rows('{a}', '{"{}"}')`, `select ojs.enqueue_rows('{}', '{}')`,
			`select ojs.enqueue_rows('{a}', '{[]}', p_scheduled_at => '{2031-02-30T00:00:00Z}')`,
			`select ojs.enqueue_rows('{a,a}', '{[],[]}', '{full,full}')`,
		},
		"enqueue_bulk": {
			`select ojs.enqueue_bulk('A B', '{[]}')`, `select ojs.enqueue_bulk('a', '{[],"{}"}')`, `select ojs.enqueue_bulk('a', '{}')`,
			`select ojs.enqueue_bulk('a', '{[],[]}', 'full')`,
		},
		"jobs": {
			`insert into ojs.jobs (type) values ('A B')`, `insert into ojs.jobs (type) values ('a'), ('A B')`,
			`insert into ojs.jobs (type, tags) values ('a', '{""}'), ('b', '{x}')`, `insert into ojs.jobs (type, args) values ('a', '{}')`,
			`insert into ojs.jobs (type, retry) values ('a', '{"max_attempts": 1.5}')`,
			`insert into ojs.jobs (type, queue) values ('a', 'full'), ('a', 'full')`,
		},
		"fetch": {
			`select ojs.fetch('{}')`, `select ojs.fetch('{A B}')`, `select ojs.fetch('{a}', 0)`,
			`select ojs.fetch('{elsewhere}', p_pool => 'p')`, `select ojs.fetch('{a}', p_strategy => 'fast')`,
		},
		"fetch_many":         {`select ojs.fetch_many('{a}', '{0}', '{w}', '{0}')`, `select ojs.fetch_many('{a}', '{1,1}', '{w}', '{0}')`},
		"settle":             {`select ojs.settle('{}')`, `select ojs.settle('[]')`},
		"retry_many":         {`select ojs.retry_many(p_limit => 0)`},
		"heartbeat":          {`select ojs.heartbeat('')`, `select ojs.heartbeat('w', '{}', -1)`},
		"retry_dead_letters": {`select ojs.retry_dead_letters(p_limit => 0)`},
		"configure_pools":    {`select ojs.configure_pools('[]')`},
	}
	exec(t, d.Operator(), "select ojs.configure_queue('full', '{\"max_size\": 1}')")
	exec(t, d.Operator(), `select ojs.configure_pool('p', '{"queues": ["a"]}')`)
	for _, calls := range many {
		for _, call := range calls {
			failure := refused(t, d.Service(), "OJ400 OJ405 OJ410 OJ422 OJ430 22008", call)
			if len(failure.Where) == 0 || len(failure.Where) > single {
				t.Errorf("%s: the context has %d bytes, that of a single job %d:\n%s", call, len(failure.Where), single, failure.Where)
			}
		}
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job"); got != 0 {
		t.Errorf("%d jobs were made", got)
	}
	for _, name := range list[string](t, d.Pool, `select distinct proname::text from pg_catalog.pg_proc
		where pronamespace = 'ojs'::pg_catalog.regnamespace and proretset and proname ~ '^(enqueue|fetch)'`) {
		if !slices.Contains(slices.Collect(maps.Keys(many)), name) {
			t.Errorf("no error of ojs.%s is provoked here", name)
		}
	}
}
