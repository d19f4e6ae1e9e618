package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// waysIn are statements that make jobs of acme with the priorities 10 and 11, in a queue with the
// statement's name.
var waysIn = []struct{ name, sql string }{
	{"enqueue", "select ojs.enqueue('a', p_queue => $1, p_priority => p, p_tenant => 'acme') from unnest(array[10, 11]) p"},
	{"unusual", `select ojs.enqueue('a', p_queue => $1, p_priority => p, p_meta => '{"tenant_id": "acme"}', p_tags => '{x}',
		p_expires_at => now() + interval '1 hour') from unnest(array[10, 11]) p`},
	{"many", `select ojs.enqueue_many(jsonb_build_array(
		jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue', $1::text, 'priority', 10, 'tenant', 'acme'),
		jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue', $1::text, 'priority', 11, 'tenant', 'acme'))::json)`},
	{"each", `select from ojs.enqueue_each(jsonb_build_array(
		jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue', $1::text, 'priority', 10, 'tenant', 'acme'),
		jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue', $1::text, 'priority', 11,
			'meta', '{"tenant_id": "acme"}'::jsonb))::json) e
		cross join lateral ojs._raise(e.sqlstate, e.message, e.detail) where e.sqlstate is not null`},
	{"bulk", "select ojs.enqueue_bulk('a', array['[]']::json[], $1, p, p_tenant => 'acme') from unnest(array[10, 11]) p"},
	{"rows", `select from ojs.enqueue_rows('{a,a}', array['[]', '[]']::json[], array[$1, $1], '{10,11}', p_tenant => 'acme',
		p_tags => array['["x"]', null]::json[])`},
	{"once", `select from ojs.enqueue_once($1, jsonb_build_array(
		jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue', $1::text, 'priority', 10),
		jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'queue', $1::text, 'priority', 11))::json, 'acme')`},
	{"insert", "insert into ojs.jobs (type, queue, priority, tenant_id) values ('a', $1, 10, 'acme'), ('a', $1, 11, 'acme')"},
	{"login", "insert into ojs.jobs (type, queue, priority) values ('a', $1, 10), ('a', $1, 11)"},
	{"meta", `insert into ojs.jobs (type, queue, priority, meta) select 'a', $1, p, '{"tenant_id": "acme"}' from unnest(array[10, 11]) p`},
}

// Whichever way they come, jobs above their tenant's max_priority are refused, with all that came with them.
func TestMaxPriorityHoldsForAllWaysIn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme := d.Service(), d.As("acme")
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', p_max_priority => 10)")
	for _, way := range waysIn {
		q := querier(service)
		if way.name == "login" {
			q = acme
		}
		failure := refused(t, q, "OJ422", way.sql, way.name)
		said := detail(t, failure)
		if said["field"] != "priority" || said["limit"] != 10.0 || said["fault"] != "must be at most 10, the max_priority of the tenant" ||
			!strings.HasSuffix(failure.Message, "priority must be at most 10, the max_priority of the tenant") {
			t.Errorf("%s is refused with %s %v", way.name, failure.Message, said)
		}
	}
	if got := stored(t, d); got != nothing {
		t.Errorf("of refused jobs are left: %s", got)
	}
	// Others, and lower ones, are not concerned; what no job may have is still refused for that.
	exec(t, service, "select ojs.enqueue('a', p_priority => p, p_tenant => t) from (values ('globex', 100), ('acme', 10)) x(t, p)")
	for _, sql := range []string{
		"select ojs.enqueue('a', p_priority => 101, p_tenant => 'acme')",
		"insert into ojs.jobs (type, priority, tenant_id) values ('a', 101, 'acme')",
		`select ojs.enqueue_many('[{"type": "a", "args": [], "priority": 101, "tenant": "acme"}]')`,
	} {
		refused(t, service, "OJ400", sql)
	}
}

// Clamped jobs are stored, journalled and handed out with the highest priority that they may have.
func TestMaxPriorityClamps(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme := d.Service(), d.As("acme")
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', p_max_priority => 10, p_over_priority => 'clamp')")
	for _, way := range waysIn {
		q := querier(service)
		if way.name == "login" {
			q = acme
		}
		exec(t, q, way.sql, way.name)
		got := lines(t, d.Pool, "select priority, count(*) from ojs.job where queue = $1 group by 1", way.name)
		if !slices.Equal(got, []string{"10 2"}) {
			t.Errorf("%s: priorities are %v", way.name, got)
		}
		got = lines(t, d.Pool, "select available, active from ojs.shard_stats where queue = $1", way.name)
		if !slices.Equal(got, []string{"2 0"}) {
			t.Errorf("%s: jobs available and active are %v", way.name, got)
		}
		if got := taken(t, service, way.name, 3); got != "acmeacme" {
			t.Errorf("%s: handed out are jobs of %q", way.name, got)
		}
		ringsAgree(t, d.Pool)
	}
	for _, sql := range []string{
		"select priority from ojs.enqueue('a', p_priority => 50, p_tenant => 'acme')",
		`select priority from ojs.enqueue_many('[{"type": "a", "args": [], "priority": 50, "tenant": "acme"}]')`,
		"select priority from ojs.enqueue_rows('{a}', array['[]']::json[], p_priorities => '{50}', p_tenant => 'acme')",
		"insert into ojs.jobs (type, priority, tenant_id) values ('a', 50, 'acme') returning priority",
	} {
		if got := one[int](t, service, sql); got != 10 {
			t.Errorf("%s returns priority %d", sql, got)
		}
	}
	refused(t, service, "OJ400", "insert into ojs.jobs (type, priority, tenant_id) values ('a', 101, 'acme')")
	refused(t, service, "OJ400", `select ojs.enqueue_many('[{"type": "a", "args": [], "priority": 101, "tenant": "acme"}]')`)
}

// Where each job succeeds or fails by itself, a priority that is too high is the matter of one job.
func TestMaxPriorityRefusesOneOfMany(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', null, null, -5), ojs.configure_tenant('clamped', null, null, 0, 'clamp')")
	got := lines(t, service, `
		select n, sqlstate, detail ->> 'field', detail ->> 'index', priority from ojs.enqueue_rows('{a,a,a,a,a}',
			array['[]', '[]', '[]', '[]', '[]']::json[], p_priorities => array[null, -5, 90, 90, -4],
			p_tenants => '{acme,acme,globex,clamped,acme}', p_each => true)`)
	want := []string{"1 - - - -5", "2 - - - 90", "3 - - - 0", "0 OJ422 priority 0 -", "4 OJ422 priority 4 -"}
	if !slices.Equal(got, want) {
		t.Errorf("results are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := refused(t, service, "OJ422", `select ojs.enqueue_many('[{"type": "a", "args": [], "priority": -9, "tenant": "acme"},
		{"type": "a", "args": [], "tenant": "acme"}]')`); detail(t, got)["index"] != 1.0 {
		t.Errorf("the refusal says %s", got.Detail)
	}
	if got := taken(t, service, "default", 9); got != "globexclampedacme" {
		t.Errorf("handed out are jobs of %q", got)
	}
}

// A tenant that only ever sends the highest priority goes before all others, unless it may not.
func TestMaxPriorityKeepsATenantFromStarvingOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, configure, over, want string }{
		{"without a limit it goes first, always", "", "", "aaaaaaaaaa"},
		{"clamped it shares", "select ojs.configure_tenant('a', p_max_priority => 0, p_over_priority => 'clamp')", "", "ababababab"},
		{"refused it sends what it may", "select ojs.configure_tenant('a', p_max_priority => 0)", "OJ422", "ababababab"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			if c.configure != "" {
				exec(t, d.Operator(), c.configure)
			}
			enqueueFor(t, service, "q", "b", 20)
			exec(t, d.Pool, "select ojs._fold_on()")
			priority, order := 100, ""
			if c.over != "" {
				refused(t, service, c.over, "select ojs.enqueue('a', p_queue => 'q', p_priority => 100, p_tenant => 'a')")
				priority = 0
			}
			for range 10 {
				// It sends one more as soon as one is taken.
				exec(t, service, `
					select ojs.enqueue('a', p_queue => 'q', p_priority => $1, p_tenant => 'a') from generate_series(1, 2)`, priority)
				order += taken(t, service, "q", 1)
			}
			if order != c.want {
				t.Errorf("handed out are jobs of %s, want %s", order, c.want)
			}
		})
	}
}

// Cron jobs obey, and their history says so; what is no new job does not ask again.
func TestMaxPriorityIsForNewJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	dead := one[string](t, service, "select id::text from ojs.enqueue('a', p_priority => 50, p_tenant => 'acme')")
	again := one[string](t, service, "select id::text from ojs.enqueue('a', p_priority => 50, p_tenant => 'acme')")
	exec(t, service, `select ojs.nack(id, '{"message": "m", "code": "DEAD_LETTER"}') from ojs.fetch('{default}')`)
	exec(t, service, `select ojs.nack(id, '{"message": "m"}', p_requeue => true) from ojs.fetch('{default}')`)
	exec(t, d.Pool, "select ojs._put_aside('ffffffff-ffff-ffff-ffff-ffffffffffff')")
	exec(t, operator, "select ojs.configure_tenant('acme', p_max_priority => 10)")
	if got := one[int](t, service, "select priority from ojs.retry_dead_letter($1)", dead); got != 50 {
		t.Errorf("retried, a job has priority %d", got)
	}
	if got := list[string](t, service, "select id::text from ojs.fetch('{default}', 5)"); !slices.Equal(got, []string{again, dead}) {
		t.Errorf("handed out are %v, want %s and %s", got, again, dead)
	}

	exec(t, service, "select ojs.put_cron('c', '@daily', 'a', p_priority => 11, p_tenant => 'acme')")
	refused(t, service, "OJ422", "select ojs.trigger_cron('c', 'acme')")
	exec(t, operator, "select ojs.configure_tenant('acme', p_over_priority => 'clamp')")
	exec(t, service, "select ojs.trigger_cron('c', 'acme')")
	if got := one[int](t, service, "select priority from ojs.fetch('{default}')"); got != 10 {
		t.Errorf("the cron job made a job of priority %d", got)
	}
}

// Jobs cost a call only where some tenant has a limit.
func TestMaxPriorityIsArmed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	armed := func() string {
		t.Helper()
		return one[string](t, d.Pool, `
			select concat_ws(' ', to_regclass('ojs._job_rules')::text, s.lowest_max_priority) from ojs.settings s`)
	}
	for _, c := range []struct{ sql, want string }{
		{"select ojs.configure_tenant('acme', 2)", ""},
		{"select ojs.configure_tenant('acme', p_max_priority => 10)", "ojs._job_rules 10"},
		{"select ojs.configure_tenant('globex', p_max_priority => 50)", "ojs._job_rules 10"},
		{"select ojs.configure_tenant('low', p_max_priority => -100)", "ojs._job_rules -100"},
		{"select ojs.configure_tenant('low', p_max_priority => 100)", "ojs._job_rules 10"},
		{"select ojs.configure_tenant('acme', 5, 5)", "ojs._job_rules 10"},
		{"select ojs.configure_tenant('acme', p_max_priority => 100)", "ojs._job_rules 50"},
		{"select ojs.configure_tenant('globex', p_max_priority => 100)", ""},
	} {
		exec(t, operator, c.sql)
		if got := armed(); got != c.want {
			t.Errorf("after %s jobs are checked by %q, want %q", c.sql, got, c.want)
		}
	}
	for _, c := range []struct{ call, field string }{
		{"'acme', p_max_priority => 101", "max_priority"},
		{"'acme', p_max_priority => -101", "max_priority"},
		{"'acme', p_over_priority => 'ignore'", "over_priority"},
	} {
		if got := detail(t, refused(t, operator, "OJ422", "select ojs.configure_tenant("+c.call+")")); got["field"] != c.field {
			t.Errorf("%s: %v", c.call, got)
		}
	}
	if got := armed(); got != "" {
		t.Errorf("a refused limit is asked about: %s", got)
	}

	// Two that set limits at once do so one after the other.
	first, second := begin(t, operator), begin(t, operator)
	exec(t, first, "select ojs.configure_tenant('acme', p_max_priority => 10)")
	waited := make(chan error, 1)
	go func() {
		_, err := second.Exec(t.Context(), "select ojs.configure_tenant('globex', p_max_priority => 50)")
		waited <- err
	}()
	d.Blocked(backendPID(second))
	commit(t, first)
	if err := <-waited; err != nil {
		t.Fatal(pgtest.Explain(err))
	}
	commit(t, second)
	if got := armed(); got != "ojs._job_rules 10" {
		t.Errorf("of two limits that are set at once, jobs are checked by %q", got)
	}
}
