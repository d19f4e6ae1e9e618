package db_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// All public functions that producers and workers may call. Think before you add one: a producer can stop
// no job, and a worker can end only attempts that it fetched.
var (
	producersMayCall = strings.Fields(`cron_info current_tenant dead_letter_count dead_letter_info dead_letter_stats dead_letters enqueue
		enqueue_bulk enqueue_each enqueue_many enqueue_once events explain help job_info job_results job_status now worker_info`)
	workersMayCall = strings.Fields(`ack ack_many beat current_tenant deregister_worker fetch heartbeat help job_info nack now
		register_worker release settle`)
)

func TestGrantsOfProducersAndWorkers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for role, want := range map[string][]string{"ojs_producer": producersMayCall, "ojs_worker": workersMayCall} {
		if got := list[string](t, d.Pool, `
			select distinct p.proname::text collate "C" from pg_catalog.pg_proc p
			where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.proname !~ '^_'
				and pg_catalog.has_function_privilege($1::text, p.oid, 'execute')
			order by 1`, role); !slices.Equal(got, want) {
			t.Errorf("%s may call\n  %q\nwant\n  %q", role, got, want)
		}
		expectNone(t, d.Pool, "what "+role+" may change", `
			select c.relname, p from pg_catalog.pg_class c, unnest('{update,delete,truncate,references,trigger}'::text[]) p
			where `+ours+` and c.relkind in ('r', 'p', 'v', 'm') and pg_catalog.has_table_privilege($1::text, c.oid, p)`, role)
		expectNone(t, d.Pool, "where "+role+" may insert", `
			select c.relname from pg_catalog.pg_class c where `+ours+` and c.relkind in ('r', 'p', 'v', 'm')
				and pg_catalog.has_any_column_privilege($1::text, c.oid, 'insert') and ($1, c.relname) <> ('ojs_producer', 'jobs')`, role)
	}
	// A producer reads jobs only through views, never a lease, and otherwise only what every role may read.
	if got := list[string](t, d.Pool, `select c.relname::text from pg_catalog.pg_class c where `+ours+` and c.relkind in ('r', 'p')
		and pg_catalog.has_any_column_privilege('ojs_producer', c.oid, 'select') order by 1`); !slices.Equal(got,
		[]string{"job", "problem", "queue", "settings"}) {
		t.Errorf("producers read the tables %q", got)
	}
	if one[bool](t, d.Pool, "select pg_catalog.has_column_privilege('ojs_producer', 'ojs.job', 'lease', 'select')") {
		t.Error("producers read leases, with which they could end attempts")
	}
}

// An application's own role enqueues in its transaction, for any tenant, and sees what becomes of it.
func TestProducersEnqueueAndStopNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	producer := connect(t, d.GroupURL("ojs_producer"))
	exec(t, d.Pool, "create schema shop; create table shop.orders (id int); grant usage on schema shop to ojs_producer")
	exec(t, d.Pool, "grant insert on shop.orders to ojs_producer")
	tx, err := producer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, "insert into shop.orders values (1)")
	id := one[string](t, tx, "select id::text from ojs.enqueue('a', '[]', p_tenant => 'acme')")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, producer, `select from ojs.enqueue_many('[{"type": "a", "tenant": "globex"}, {"type": "a", "tenant": "acme"}]')`)
	exec(t, producer, "select from ojs.enqueue_once('key', '[{\"type\": \"a\", \"tenant\": \"globex\"}]')")
	exec(t, producer, `insert into ojs.jobs (tenant_id, type, args) values ('initech', 'a', '[1]')`)
	exec(t, producer, `insert into ojs.jobs (type, retry, scheduled_at) values ('a', '{"max_attempts": 7}', now() + interval '1 hour')`)
	if got := lines(t, producer, "select tenant_id, count(*) from ojs.jobs group by 1 order by 1"); !slices.Equal(got,
		[]string{"_default 1", "acme 2", "globex 2", "initech 1"}) {
		t.Errorf("a producer sees the jobs %q", got)
	}
	for _, reads := range []string{
		"ojs.overview", "ojs.overview_by_queue", "ojs.tenant_stats", "ojs.queue_stats", "ojs.shard_stats", "ojs.results",
		"ojs.workers", "ojs.crons",
		"ojs.cron_runs",
		"ojs.limits", "ojs.refusals", "ojs.rule_stats", "ojs.events()", "ojs.dead_letters()", "ojs.help()",
		"ojs.job_info('" + id + "')", "ojs.explain('" + id + "')", "ojs.job_status('" + id + "')",
	} {
		exec(t, producer, "select from "+reads)
	}
	for _, stops := range []string{
		"ojs.fetch('{default}')", "ojs.fetch_many('{default}', '{1}', '{w}', '{0}')", "ojs.ack('" + id + "')",
		"ojs.nack('" + id + "', '{}')",
		"ojs.release('" + id + "', '" + id + "')", "ojs.cancel('" + id + "')", "ojs.activate('" + id + "')", "ojs.heartbeat('w')",
		"ojs.pause('default')", "ojs.hold_dispatch()", "ojs.configure()", "ojs.configure_tenant('acme', 9)",
		"ojs.configure_queue('q', '{}')",
		"ojs.limit_concurrency(0)", "ojs.suspend_tenant('acme')", "ojs.tick()", "ojs.retry('" + id + "')",
		"ojs.delete_dead_letter('" + id + "')",
		"ojs.put_cron('c', '* * * * *', 'a')", "ojs.resume('default')", "ojs.direct_workers('quiet')", "ojs.journal",
	} {
		forbidden(t, producer, "select from "+stops)
	}
	refused(t, producer, "42501 55000", "update ojs.jobs set priority = 1")
	refused(t, producer, "42501 55000", "delete from ojs.jobs")
	refused(t, producer, "OJ400", "insert into ojs.jobs (type, state) values ('a', 'active')")
}

// A worker that works in SQL takes jobs of all tenants, and ends what it holds.
func TestWorkersWorkAndNothingElse(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	worker := connect(t, d.GroupURL("ojs_worker"))
	enqueueFor(t, d.Service(), "default", "acme", 3)
	enqueueFor(t, d.Service(), "default", "globex", 3)
	exec(t, worker, "select from ojs.register_worker('w', p_queues => '{default}')")
	ids := list[string](t, worker, "select id::text from ojs.fetch('{default}', 6, 'w')")
	if len(ids) != 6 {
		t.Fatalf("a worker got %d jobs of 6", len(ids))
	}
	if got := one[int](t, worker, "select count(*) from ojs.heartbeat('w', $1::uuid[])", ids); got != 6 {
		t.Errorf("a heartbeat keeps %d jobs of 6", got)
	}
	exec(t, worker, "select from ojs.ack($1, p_worker_id => 'w')", ids[0])
	exec(t, worker, `select from ojs.nack($1, '{"message": "x"}', p_worker_id => 'w')`, ids[1])
	exec(t, worker, "select from ojs.job_info($1) j cross join lateral ojs.release(j.id, j.lease)", ids[2])
	exec(t, worker, "select from ojs.ack_many(array[$1::uuid], p_worker_ids => array['w'])", ids[3])
	if got := lines(t, d.Pool, "select state::text, count(*) from ojs.job group by 1 order by 1"); !slices.Equal(got,
		[]string{"active 2", "available 1", "completed 2", "retryable 1"}) {
		t.Errorf("the jobs are %q", got)
	}
	exec(t, worker, "select from ojs.deregister_worker('w')")
	for _, other := range []string{
		"ojs.enqueue('a')", "ojs.jobs", "ojs.tenant_stats", "ojs.events()", "ojs.cancel('" + ids[4] + "')", "ojs.pause('default')",
		"ojs.configure_tenant('acme', 9)", "ojs.hold_dispatch()", "ojs.retry('" + ids[4] + "')", "ojs.direct_worker('w', 'quiet')",
		"ojs.fetch_many('{default}', '{1}', '{w}', '{0}')", "ojs.job", "ojs.settings",
	} {
		forbidden(t, worker, "select from "+other)
	}
	forbidden(t, worker, "insert into ojs.jobs (type) values ('a')")
}

// forbidden checks that a statement is refused for lack of privileges.
func forbidden(t *testing.T, q querier, sql string) {
	t.Helper()
	refused(t, q, "42501", sql)
}

// A producer reads the views that security.md names. Every other public view is refused by its own name,
// not by that of a view inside it.
func TestViewsRefuseProducersByTheirOwnNames(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	producer := connect(t, d.GroupURL("ojs_producer"))
	page, err := os.ReadFile("../docs/operate/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, view := range list[string](t, d.Pool, `select c.relname::text from pg_catalog.pg_class c
		where c.relnamespace = 'ojs'::pg_catalog.regnamespace and c.relkind = 'v' and c.relname !~ '^_' order by 1`) {
		_, err := producer.Exec(t.Context(), "select * from ojs."+view)
		switch {
		case err == nil && !strings.Contains(string(page), "`"+view+"`"):
			t.Errorf("security.md does not say that producers read ojs.%s", view)
		case err != nil && !strings.Contains(err.Error(), "permission denied for view "+view) && view != "blocked_tenants":
			t.Errorf("ojs.%s is refused as %v", view, err)
		case err != nil && strings.Contains(err.Error(), "view _"):
			t.Errorf("ojs.%s is refused as %v", view, err)
		}
	}
}
