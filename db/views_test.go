package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// aDay makes a database with one day of work. Its clock is stopped at the end of the day, so every number is
// the same each time.
func aDay(t *testing.T) *pgtest.DB {
	t.Helper()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	at := func(clock string) {
		t.Helper()
		now, err := time.Parse("2006-01-02 15:04:05", "2031-05-05 "+clock)
		if err != nil {
			t.Fatal(err)
		}
		d.SetNow(now)
		exec(t, service, "select ojs.tick()")
	}
	enqueue := func(tenant, queue string, jobs int, more string) {
		t.Helper()
		exec(t, service, `
			select from ojs.enqueue_many((
				select json_agg(json_build_object(
					'type', 'mail.send', 'args', '[]'::json, 'tenant', $1::text, 'queue', $2::text`+more+`))
				from generate_series(1, $3)))`, tenant, queue, jobs)
	}
	fetch := func(queues string, count int) []job {
		t.Helper()
		return jobs(t, service, "ojs.fetch($1::text::text[], $2, 'w1')", queues, count)
	}
	finish := func(held []job, call string) {
		t.Helper()
		for _, j := range held {
			exec(t, service, "select from ojs."+call, j.ID, j.Tenant)
		}
	}
	const failed = `nack($1, '{"message": "SMTP 451"}', p_tenant => $2)`

	at("06:00:00")
	exec(t, operator, "select from ojs.configure_tenant('acme', 10)")
	exec(t, operator, "select from ojs.configure_tenant('globex', 5)")
	exec(t, operator, "select from ojs.configure_tenant('initech', 1, 5)")
	exec(t, operator, "select from ojs.configure_tenant('umbrella', 2)")
	enqueue("globex", "reports", 3, ", 'scheduled_at', '2031-05-05T20:00:00Z'")
	enqueue("globex", "reports", 1, ", 'scheduled_at', '2031-05-06T06:00:00Z'")
	at("09:00:00")
	enqueue("acme", "mail", 40, "")
	enqueue("globex", "mail", 10, ", 'retry', '{\"jitter\": false, \"initial_interval\": \"PT1H\"}'::json")
	enqueue("initech", "mail", 2, "")
	finish(fetch("{mail}", 20), "ack($1, p_tenant => $2)")
	at("12:00:00")
	enqueue("initech", "mail", 4, ", 'pending', true, 'priority', 50")
	finish(fetch("{mail}", 6), failed)
	exec(t, service, "select from ojs.activate((select id from ojs.job where state = 'pending' order by id limit 1))")
	exec(t, service, "select from ojs.cancel((select id from ojs.job where state = 'pending' order by id limit 1))")
	at("15:00:00")
	finish(fetch("{mail}", 8), `nack($1, '{"message": "no such mailbox", "retryable": false}', p_tenant => $2)`)
	fetch("{mail,reports}", 2)
	at("18:00:00") // their workers did not finish them in time
	enqueue("_default", "exports", 1, ", 'expires_at', '2031-05-05T19:00:00Z'")
	at("20:00:00")
	fetch("{exports}", 1)
	exec(t, operator, "select from ojs.pause('exports')")
	exec(t, operator, "select from ojs.pause('archive')")
	enqueue("_default", "exports", 2, "")
	at("20:59:40")
	held := fetch("{mail,reports}", 12)
	at("20:59:50")
	finish(held[:3], "ack($1, p_tenant => $2)")
	finish(held[3:4], `nack($1, '{"message": "x"}', p_requeue => true, p_tenant => $2)`)
	at("21:00:00")
	return d
}

// page returns the rows of a view as an aligned table with a heading.
func page(t *testing.T, q querier, title, sql string) string {
	t.Helper()
	rows, err := q.Query(t.Context(), sql)
	if err != nil {
		t.Fatalf("%s: %s", pgtest.Short(sql), pgtest.Explain(err))
	}
	var table [][]string
	header := []string{}
	for _, field := range rows.FieldDescriptions() {
		header = append(header, field.Name)
	}
	table = append(table, header)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]string, error) {
		values, err := row.Values()
		texts := make([]string, len(values))
		for i, value := range values {
			if value != nil {
				texts[i] = fmt.Sprint(value)
			}
		}
		return texts, err
	})
	if err != nil {
		t.Fatalf("%s: %s", pgtest.Short(sql), pgtest.Explain(err))
	}
	table = append(table, all...)
	widths := make([]int, len(header))
	for _, row := range table {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", title)
	for _, row := range table {
		var line strings.Builder
		for i, text := range row {
			line.WriteString(text + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2))
		}
		b.WriteString("    " + strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String() + "\n"
}

func TestGoldenViewsOfADay(t *testing.T) {
	t.Parallel()
	d := aDay(t)
	const (
		tenants = `
			select tenant_id, weight::text, backlog, active, scheduled, pending, retryable, completed, cancelled, discarded,
				failed, total_jobs, dispatched,
			oldest_wait::text, round(deficit, 3)::text as deficit, effective_share::text, actual_share::text
				from ojs.tenant_stats order by tenant_id`
		queues = `
			select queue, available, active, scheduled, pending, retryable, completed, cancelled, discarded, failed, total_jobs,
				oldest_wait::text, tenants, paused
			from ojs.queue_stats order by queue`
		shards = `
			select tenant_id, queue, available, active, scheduled, pending, retryable, completed, cancelled, discarded, failed,
				total_jobs, oldest_wait::text
			from ojs.shard_stats order by tenant_id, queue`
		events = `select "time" at time zone 'UTC' as time, type, tenant_id, queue, data - 'job_type' - 'queue' as data from (
			select e.*, row_number() over () as n from ojs.events(p_limit => 1000) e) e
			where "time" > '2031-05-05 18:00Z' order by "time" desc, type, tenant_id, data::text`
	)
	operator := d.Operator()
	got := "Monday, 2031-05-05, 21:00: what people read. The day is in db/views_test.go.\n\n" +
		page(t, operator, "An operator: select * from ojs.tenant_stats", tenants) +
		page(t, operator, "select * from ojs.queue_stats", queues) +
		page(t, operator, "select * from ojs.shard_stats", shards) +
		page(t, operator, "select * from ojs.events(), since 18:00", events) +
		page(t, d.As("acme"), "acme's own login: select * from ojs.tenant_stats", tenants) +
		page(t, d.As("acme"), "select * from ojs.queue_stats", queues)
	golden(t, "testdata/views.txt", strings.TrimRight(got, "\n")+"\n")

	// The server reads what operators read.
	for _, sql := range []string{tenants, queues, shards, events} {
		if page(t, d.Service(), "", sql) != page(t, operator, "", sql) {
			t.Errorf("the service reads something else than an operator: %s", pgtest.Short(sql))
		}
	}
	// One number, three views.
	for _, column := range []string{
		"active", "scheduled", "pending", "retryable", "completed", "cancelled", "discarded", "failed", "total_jobs",
	} {
		sums := list[int64](t, operator, fmt.Sprintf(`
			select sum(%[1]s)::bigint from ojs.tenant_stats union all select sum(%[1]s)::bigint from ojs.queue_stats union all
			select sum(%[1]s)::bigint from ojs.shard_stats`, column))
		if sums[0] != sums[1] || sums[1] != sums[2] {
			t.Errorf("%s in sum is %v", column, sums)
		}
	}
	if got := lines(t, operator, `
		select sum(effective_share), sum(actual_share) from ojs.tenant_stats where effective_share is not null`); len(got) != 1 {
		t.Errorf("the shares add up to %v", got)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	d := aDay(t)
	service := d.Service()
	types := list[string](t, service, "select distinct type from ojs.events(p_limit => 1000) order by 1")
	want := []string{
		"job.cancelled", "job.completed", "job.discarded", "job.enqueued", "job.expired", "job.failed", "job.released", "job.retrying",
		"job.scheduled", "job.stalled", "job.started", "tenant.created",
	}
	if !slices.Equal(types, want) {
		t.Errorf("the day had events of the types %q, want %q", types, want)
	}
	for _, c := range []struct{ what, sql, unwanted string }{
		{
			"newest first", "select * from (select \"time\", lag(\"time\") over () as before from ojs.events(p_limit => 1000)) e",
			"\"time\" > before",
		},
		{"by type", "select * from ojs.events('{job.completed,job.expired}')", "type not in ('job.completed', 'job.expired')"},
		{"by queue", "select * from ojs.events(null, '{exports,none}')", "queue <> 'exports'"},
		{"by tenant", "select * from ojs.events(p_tenant => 'initech')", "tenant_id <> 'initech'"},
		{
			"of a job that exists", "select * from ojs.events(p_limit => 1000) where type like 'job.%'",
			"not exists (select from ojs.job j where j.id::text = subject and j.tenant_id = e.tenant_id and j.queue = e.queue)",
		},
		{
			"with data", "select * from ojs.events(p_limit => 1000) where type like 'job.%'",
			"data ->> 'job_type' is null or data ->> 'queue' <> queue or (data ->> 'attempt')::int < 0 or data ->> 'queue' is null",
		},
	} {
		if got := one[int](t, d.Pool, "select count(*) from ("+c.sql+") e"); got == 0 {
			t.Errorf("%s: no event", c.what)
		}
		expectNone(t, d.Pool, c.what, "select * from ("+c.sql+") e where "+c.unwanted)
	}
	if got := one[int](t, service, "select count(*) from ojs.events(p_limit => 7)"); got != 7 {
		t.Errorf("seven events asked for, %d given", got)
	}
	if all, ids := one[int](t, service, "select count(*) from ojs.events(p_limit => 1000)"), one[int](t, service, `
		select count(distinct id) from ojs.events(p_limit => 1000)`); all != ids {
		t.Errorf("%d events have %d ids", all, ids)
	}
	if got := one[int](t, service, "select count(*) from ojs.events('{none}')"); got != 0 {
		t.Errorf("%d events of an unknown type", got)
	}
}

// examined returns the number of rows that a statement has read, in tables and through indexes, from the
// counters of its transaction.
func examined(t *testing.T, q *pgxpool.Pool, sql string) (rows int64) {
	t.Helper()
	tx, err := q.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer rollback(t, tx)
	const counted = `
		select coalesce(sum(
			pg_catalog.pg_stat_get_xact_tuples_returned(c.oid) + pg_catalog.pg_stat_get_xact_tuples_fetched(c.oid)), 0)::bigint
		from pg_catalog.pg_class c where c.relkind in ('r', 'i') and c.relnamespace = 'ojs'::pg_catalog.regnamespace`
	before := one[int64](t, tx, counted)
	exec(t, tx, sql)
	return one[int64](t, tx, counted) - before
}

// What a tenant is told costs what it has, and what the service is told what it asks for, however many jobs there are.
func TestEventsCostWhatIsTold(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	calls := []struct {
		who *pgxpool.Pool
		sql string
	}{
		{n.As("initech"), "select from ojs.events()"},
		{n.As("acme"), "select from ojs.events(p_limit => 1000)"},
		{n.As("acme"), "select from ojs.events('{job.completed}', p_limit => 5)"},
		{n.As("acme"), "select from ojs.events('{job.cancelled,job.expired}', p_limit => 5)"},
		{n.As("acme"), "select from ojs.events('{none}')"},
		{n.Service(), "select from ojs.events(p_limit => 20, p_tenant => 'acme')"},
		{n.Service(), "select from ojs.events('{job.enqueued}', p_limit => 20)"},
		{n.Service(), "select from ojs.events('{job.cancelled}', p_limit => 20)"},
	}
	read := func() (rows []int64) {
		t.Helper()
		exec(t, n.Pool, "analyze")
		for _, call := range calls {
			rows = append(rows, examined(t, call.who, call.sql))
		}
		return rows
	}
	secretJobs(t, n.DB, 500)
	few := read()
	secretJobs(t, n.DB, 5000)
	many := read()
	grown := func(i int) bool { return few[i] > 1000 || many[i] > few[i]+few[i]/4+20 }
	// Beside a vacuum of this database more versions of rows are passed over. What grows with foreign jobs shows every time.
	for again := 0; again < 5 && slices.ContainsFunc([]int{0, 1, 2, 3, 4, 5, 6, 7}, grown); again++ {
		for i, rows := range read() {
			many[i] = min(many[i], rows)
		}
	}
	for i, call := range calls {
		if grown(i) {
			t.Errorf("%s as %s examines %d rows beside 500 foreign jobs and %d beside 5500",
				call.sql, one[string](t, call.who, "select session_user::text"), few[i], many[i])
		}
	}
}

// Each event of a job has what the document of events requires of its type.
func TestEventsHaveWhatTheDocumentRequires(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, `select from ojs.enqueue('later', '[]', p_tenant => 'acme', p_scheduled_at => '2099-01-01T01:00:00+01:00')`)
	exec(t, service, `select from ojs.enqueue('fails', '[]', p_tenant => 'acme', p_retry => '{"max_attempts": 2, "initial_interval": "PT1S",
		"jitter": false}')`)
	attempt := func(worker string) string {
		id := one[string](t, service, "select id::text from ojs.fetch('{default}', 1, $1)", worker)
		exec(t, service, `select from ojs.heartbeat($1, array[$2::uuid], 60000)`, worker, id)
		return id
	}
	id := attempt("w1")
	if got := lines(t, service, `select subject, data ->> 'worker_id', data ->> 'attempt', data ? 'visible_until'
		from ojs.events('{job.heartbeat}')`); !slices.Equal(got, []string{id + " w1 1 true"}) {
		t.Errorf("heartbeats: %q", got)
	}
	exec(t, service, `select from ojs.nack($1, '{"code": "smtp", "message": "refused"}')`, id)
	exec(t, d.Pool, "update ojs.job set retry_at = ojs.now() where id = $1", id)
	exec(t, d.Pool, "update ojs.timer set due_at = ojs.now() where kind = 'due' and $1 = any (ids)", id)
	exec(t, service, "select ojs.tick()")
	attempt("w2")
	exec(t, service, `select from ojs.nack($1, '{"code": "smtp", "message": "refused again", "retryable": false}')`, id)
	exec(t, service, `select from ojs.enqueue('done', '[]')`)
	exec(t, service, "select from ojs.ack($1)", attempt("w3"))
	exec(t, service, "select from ojs.cancel((ojs.enqueue('dropped', '[]')).id)")

	required := map[string]string{
		"job.enqueued": "job_type,queue", "job.started": "job_type,queue,worker_id,attempt",
		"job.completed": "job_type,queue,duration_ms,attempt",
		"job.failed":    "job_type,queue,attempt,error", "job.discarded": "job_type,queue,total_attempts,last_error",
		"job.retrying":  "job_type,queue,attempt,max_attempts,next_retry_at,error",
		"job.cancelled": "job_type,queue", "job.heartbeat": "job_type,queue,worker_id,attempt,visible_until",
		"job.scheduled": "job_type,queue,scheduled_at",
	}
	for kind, fields := range required {
		if kind != "job.heartbeat" && one[int](t, service, "select count(*) from ojs.events(array[$1])", kind) == 0 {
			t.Errorf("no event %s", kind)
		}
		expectNone(t, service, kind, "select data from ojs.events(array[$1], p_limit => 1000) where not data ?& string_to_array($2, ',')",
			kind, fields)
	}
	if got := lines(t, service, `select type, data ->> 'attempt', data #>> '{error,code}', data #>> '{error,message}',
		data #>> '{error,retryable}' from ojs.events('{job.failed}') order by "time"`); !slices.Equal(got, []string{
		"job.failed 1 smtp refused true", "job.failed 2 smtp refused again false",
	}) {
		t.Errorf("failures: %q", got)
	}
	// The job's row knows when it was to come back only until it fails again, or comes back by hand.
	if got := one[bool](t, service, `select (data ->> 'next_retry_at')::timestamptz > "time" from ojs.events('{job.retrying}')`); !got {
		t.Error("the retry is told to be before the failure")
	}
	if got := lines(t, service, `select data ->> 'total_attempts', data #>> '{last_error,message}'
		from ojs.events('{job.discarded}')`); !slices.
		Equal(got, []string{"2 refused again"}) {
		t.Errorf("discarded: %q", got)
	}
	if got := lines(t, service, "select data ->> 'scheduled_at' from ojs.events('{job.scheduled}')"); !slices.Equal(got,
		[]string{"2099-01-01T00:00:00Z"}) {
		t.Errorf("scheduled: %q", got)
	}
	if got := one[int](t, d.As("globex"), "select count(*) from ojs.events('{job.failed,job.heartbeat,job.scheduled}')"); got != 0 {
		t.Errorf("globex sees %d of acme's events", got)
	}
}
