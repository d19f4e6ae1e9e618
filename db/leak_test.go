package db_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// tenantSources returns everything that tenants may read: relations, and functions that return rows.
func tenantSources(t *testing.T, d *pgtest.DB, foreignID string) []string {
	t.Helper()
	sources := list[string](t, d.Pool, `select c.oid::pg_catalog.regclass::text from pg_catalog.pg_class c
		where `+ours+` and c.relkind in ('r', 'p', 'v', 'm')
		and pg_catalog.has_any_column_privilege('ojs_tenant', c.oid, 'select') order by 1`)
	// They are asked about another tenant, where they let themselves be asked; null is what they must not be asked here,
	// because they write.
	calls := map[string]string{
		"_own_shards": "ojs._own_shards('globex')", "_own_shard_groups": "ojs._own_shard_groups('globex')",
		"_own_tenant_groups": "ojs._own_tenant_groups('globex')",
		"_recent":            "ojs._recent()", "_arrivals": "ojs._arrivals()",
		"_oldest_aside": "ojs._oldest_aside()", "_served_queues": "ojs._served_queues()",
		"_queue_shares": "ojs._queue_shares()",
		"events":        "ojs.events(p_queues => '{secret.queue}')",
		"job_results":   "ojs.job_results(array['" + foreignID + "'::uuid])", "dead_letters": "ojs.dead_letters('secret.queue')",
		"enqueue_bulk": "", "enqueue_many": "", "enqueue_each": "", "enqueue_once": "", "fetch": "",
		"ack_many": "", "settle": "", "heartbeat": "",
		"worker_info":  "", // there is no such worker
		"verify_usage": "", // planned for its argument, so it reads its tenant's rows by the index
		"help":         "", // reads the catalog of functions only
	}
	for _, name := range list[string](t, d.Pool, `select distinct p.proname from pg_catalog.pg_proc p
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.proretset
		  and pg_catalog.has_function_privilege('ojs_tenant', p.oid, 'execute') order by 1`) {
		call, known := calls[name]
		if !known {
			t.Errorf("tenants may call ojs.%s, and nobody has looked whether its plan tells of others", name)
		} else if call != "" {
			sources = append(sources, call)
		}
	}
	return sources
}

var measured = regexp.MustCompile("Memory|Disk|Space|JIT")

// planNumbers returns the numbers in a plan by their paths, without times and memory. Pages are the sum of
// all nodes.
func planNumbers(t *testing.T, q querier, sql string) map[string][]float64 {
	t.Helper()
	var tree any
	plan := one[string](t, q, "explain (analyze, verbose, buffers, timing off, summary off, format json) "+sql)
	if err := json.Unmarshal([]byte(plan), &tree); err != nil {
		t.Fatal(err)
	}
	into := map[string][]float64{}
	var read func(any, string)
	read = func(node any, path string) {
		switch v := node.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if key != "Planning" {
					read(v[key], path+"/"+key)
				}
			}
		case []any:
			for _, element := range v {
				read(element, path)
			}
		case float64:
			if key := path[strings.LastIndex(path, "/")+1:]; strings.HasSuffix(key, " Blocks") {
				if path == "/Plan/Shared Hit Blocks" || path == "/Plan/Shared Read Blocks" {
					into["pages"] = []float64{v + append(into["pages"], 0)[0]}
				}
			} else if !measured.MatchString(key) {
				into[path] = append(into[path], v)
			}
		}
	}
	read(tree, "")
	return into
}

// differences returns the numbers in which two plans differ, and pages if they differ by more than chance
// explains.
func differences(a, b map[string][]float64) (all []string) {
	for key := range maps.Keys(a) {
		if key == "pages" {
			if more := a[key][0] - b[key][0]; more > 10 || more < -10 {
				all = append(all, fmt.Sprintf("pages %v and %v", a[key], b[key]))
			}
		} else if !reflect.DeepEqual(a[key], b[key]) {
			all = append(all, fmt.Sprintf("%s %v and %v", key, a[key], b[key]))
		}
	}
	if len(a) != len(b) {
		all = append(all, "plans of another shape")
	}
	return all
}

// leading are settings by which a session makes the planner check its own conditions before those of a
// policy.
var leading = []string{
	"set local jit = off",
	"set local enable_seqscan = off",
	"set local cpu_index_tuple_cost = 100; set local cpu_operator_cost = 100000",
	"set local random_page_cost = 0; set local cpu_tuple_cost = 1000000; set local effective_cache_size = '1TB'",
	"set local enable_nestloop = off; set local enable_material = off; set local enable_memoize = off",
	"set local enable_nestloop = on; set local enable_hashjoin = off; set local enable_mergejoin = off; set local enable_sort = off",
	"set local enable_indexscan = off; set local enable_indexonlyscan = off",
	"set local enable_bitmapscan = off; set local enable_indexscan = on; set local enable_indexonlyscan = on",
	"set local plan_cache_mode = force_generic_plan; set local enable_partition_pruning = off; set local constraint_exclusion = off",
}

func lead(t *testing.T, q querier, settings string) {
	t.Helper()
	for set := range strings.SplitSeq(settings, "; ") {
		exec(t, q, set)
	}
}

// secretJobs gives globex jobs in most states, workers, cron jobs and a configuration.
func secretJobs(t *testing.T, d *pgtest.DB, count int) {
	t.Helper()
	exec(t, d.Service(), `insert into ojs.jobs (tenant_id, type, queue, priority, tags, meta, timeout_ms, scheduled_at)
		select 'globex', 'secret.type', 'secret.queue', 77, '{secret}', '{"secret": 1}', 777777,
			case when i % 10 = 0 then now() + interval '1 day' end from generate_series(1, $1) i`, count)
	// With an ordinary lease, a test on a machine that stops for half a minute would find attempts that the clock ended.
	jobs(t, d.Service(), "ojs.fetch('{secret.queue}', $1, 'secret-worker', 600000)", count/8)
	exec(t, d.Service(), `select ojs.ack_many((select array_agg(id) from (
		select id from ojs.job where worker_id = 'secret-worker' and state = 'active' limit $1) j))`, count/16)
	exec(t, d.Service(), `select (ojs.cancel(id)).state from ojs.job
		where worker_id = 'secret-worker' and state = 'active' limit $1`, count/20)
	exec(t, d.Service(), `select ojs.put_cron('secret.' || i, '@daily', 'secret.type', p_queue => 'secret.queue', p_tenant => 'globex')
		from generate_series(1, $1) i`, count/50)
	exec(t, d.Pool, `insert into ojs.cron_run (tenant_id, name, due_at) select tenant_id, name, now() + i * interval '1 s'
		from ojs.cron, generate_series(1, 5) i where name like 'secret%' on conflict do nothing`)
	exec(t, d.Service(), "select ojs.beat('secret.' || i, p_tenant => 'globex') from generate_series(1, $1) i", count/50)
	for range 3 {
		tick(t, d.Service(), 1000)
	}
	exec(t, d.Pool, "analyze")
}

// A condition of the reader's own is not asked about rows that are not theirs.
func TestConditionsDoNotLeak(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	conn := connect(t, n.TenantURL("acme"))
	role := one[string](t, conn, "select session_user::text")
	exec(t, n.Pool, "create schema evil authorization "+role)
	exec(t, conn, "create table evil.seen (what text)")
	exec(t, conn, `create function evil.see(anyelement) returns boolean language plpgsql cost 0.0000001
		as $$ begin insert into evil.seen values ($1::text); return true; end $$`)
	// Nor may a function of the reader's decide who sees all.
	exec(t, conn, "create function evil.pg_has_role(name, name, text) returns boolean language sql immutable as $$ select true $$")
	exec(t, conn, "create function evil.eq(name, name) returns boolean language sql immutable as $$ select true $$")
	exec(t, conn, "create operator evil.= (function = evil.eq, leftarg = name, rightarg = name)")
	exec(t, conn, "set search_path = evil, pg_catalog")
	for _, source := range tenantSources(t, n.DB, n.theirs["active"]) {
		for _, column := range []string{"tenant_id", "queue", "id", "worker_id", "name", "state"} {
			if source == "ojs.queue" || source == "ojs.queue_stats" && column != "queue" {
				continue
			}
			_, err := conn.Exec(t.Context(), "select count(*) from "+source+" where evil.see("+column+"::text)")
			if err != nil && !strings.Contains(err.Error(), "42703") { // has no such column
				t.Errorf("%s: %v", source, err)
			}
		}
	}
	exec(t, conn, "select count(*) from ojs.jobs where evil.see(args::text) and evil.see(meta::text)")
	if got := list[string](t, conn, "select distinct what from evil.seen where what like '%globex' or what like 'secret%'"); len(got) > 0 {
		t.Errorf("a condition was asked about %q", got)
	}
	const foreign = "select count(*) from evil.seen s join ojs.job j on j.id::text = s.what and j.tenant_id <> 'acme'"
	if got := one[int](t, n.Pool, foreign); got > 0 {
		t.Errorf("a condition was asked about %d foreign jobs", got)
	}
	if got := one[int](t, conn, "select count(*) from evil.seen where what = 'acme'"); got == 0 {
		t.Error("a condition was asked about nothing")
	}
	exec(t, conn, "select 1 / (case when tenant_id = 'acme' then 1 else 0 end) from ojs.jobs")
	exec(t, conn, "select (case when queue like 'secret%' then 'x' else '1' end)::int from ojs.jobs")
}

// condition is a condition on a column, with a value that rows of globex have, and one that no row has.
type condition struct{ column, foreign, made string }

// foreignConditions returns conditions on all columns that a source may have. id is that of a job of
// globex.
func foreignConditions(id string) []condition {
	return []condition{
		{"tenant_id", "tenant_id = 'globex'", "tenant_id = 'nobody'"},
		{"tenant_id", "tenant_id > 'globe' and tenant_id < 'globf'", "tenant_id > 'nobod' and tenant_id < 'noboe'"},
		{"queue", "queue = 'secret.queue'", "queue = 'public.queue'"},
		{"queue", "queue > 'secret.p' and queue < 'secret.r'", "queue > 'public.p' and queue < 'public.r'"},
		{"priority", "priority = 77", "priority = 78"},
		{"id", "id = '" + id + "'", "id = '" + someID + "'"},
		{"id", "id >= '" + id + "' and id <= '" + id + "'", "id >= '" + someID + "' and id <= '" + someID + "'"},
		{"id", "id = any ('{" + id + "," + someID + "}')", "id = any ('{" + otherID + "," + someID + "}')"},
		{"worker_id", "worker_id = 'secret-worker'", "worker_id = 'public-worker'"},
		{"worker_id", "worker_id > 'secret.' and worker_id < 'secret.9'", "worker_id > 'public.' and worker_id < 'public.9'"},
		{"name", "name = 'secret.1'", "name = 'public.1'"},
		{"name", "name > 'secret.' and name < 'secret.9'", "name > 'public.' and name < 'public.9'"},
		{"type", "type = 'secret.type'", "type = 'public.type'"},
		{"tags", "tags = '{secret}'", "tags = '{public}'"},
		{"meta", `meta @> '{"secret": 1}'`, `meta @> '{"public": 1}'`},
		{"timeout_ms", "timeout_ms > 776 and timeout_ms < 778", "timeout_ms > 778 and timeout_ms < 780"},
		{"weight", "weight = 7.5", "weight = 7.25"},
	}
}

// columnsOf returns the columns of a source that its reader may see.
func columnsOf(t *testing.T, q querier, source string) (names []string) {
	t.Helper()
	all := "*"
	if source == "ojs.job" {
		all = "tenant_id, queue, priority, id, worker_id, type, tags, meta, timeout_ms" // not the lease
	}
	rows, err := q.Query(t.Context(), "select "+all+" from "+source+" limit 0")
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	for _, field := range rows.FieldDescriptions() {
		names = append(names, field.Name)
	}
	return names
}

// explain says the same about a value of another tenant as about one that does not exist: what the planner expects, and what it has seen.
func TestExplainDoesNotLeak(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	secretJobs(t, n.DB, 2000)
	id := one[string](t, n.Pool, "select id::text from ojs.job where queue = 'secret.queue' and state = 'active' limit 1")
	queries := []string{
		"select count(*) from SOURCE s where CONDITION",
		"select from SOURCE s where CONDITION limit 1",
		"select COLUMN from SOURCE s where CONDITION order by 1 desc limit 1",
		"select exists (select from SOURCE s where CONDITION)",
	}
	joins := []string{
		"select count(*) from probe p join SOURCE s on s.COLUMN::text = p.CONDITION",
		"select from probe p cross join lateral (select from SOURCE s where s.COLUMN::text = p.CONDITION limit 1) x",
		"select from probe p where exists (select from SOURCE s where s.COLUMN::text = p.CONDITION)",
	}
	tx := begin(t, n.As("acme"))
	exec(t, tx, "create temp table probe (foreign_value text, made text)")
	exec(t, tx, `insert into probe values ('globex', 'nobody'), ('secret.queue', 'public.queue'), ('77', '78'), ($1, $2),
		('secret-worker', 'public-worker'), ('secret.1', 'public.1')`, id, someID)
	exec(t, tx, "analyze probe")
	compare := func(settings, query, source string, c condition) {
		t.Helper()
		said := func(condition string) string {
			return strings.NewReplacer("SOURCE", source, "CONDITION", condition, "COLUMN", c.column).Replace(query)
		}
		found := differences(planNumbers(t, tx, said(c.foreign)), planNumbers(t, tx, said(c.made)))
		// The first call of a function reads catalogs, and so does one after a vacuum or another test's change. A leak shows every time.
		for again := 0; again < 4 && len(found) > 0; again++ {
			found = differences(planNumbers(t, tx, said(c.foreign)), planNumbers(t, tx, said(c.made)))
		}
		for _, difference := range found {
			t.Errorf("%s: %s, or %s: %s", settings, said(c.foreign), said(c.made), difference)
		}
	}
	columns := map[string][]string{}
	sources := tenantSources(t, n.DB, id)
	for _, source := range sources {
		columns[source] = columnsOf(t, tx, source)
	}
	for i, settings := range leading {
		lead(t, tx, settings)
		for _, source := range sources {
			inside := strings.HasSuffix(source, ")") // of functions nothing but their pages is seen
			if inside && i > 2 {
				continue
			}
			for _, c := range foreignConditions(id) {
				for n, query := range queries {
					if slices.Contains(columns[source], c.column) && (n == 0 || !inside && (i == 0 || i == 2)) {
						compare(settings, query, source, c)
					}
				}
			}
			for _, column := range []string{"tenant_id", "queue", "id", "priority", "worker_id", "name"} {
				if slices.Contains(columns[source], column) && !inside && (i == 0 || i == 2 || i == 5) {
					for _, join := range joins {
						compare(settings, join, source, condition{column, "foreign_value", "made"})
					}
				}
			}
		}
	}
}
