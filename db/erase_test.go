package db_test

import (
	"fmt"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// erasedMark is put into every field that can hold content.
const erasedMark = "m4rk3d-c0nt3nt"

// furnishMarks puts the mark into every field that can hold one, of jobs in all states, through every call that makes or ends jobs. Types
// and queues stay after erasure, so they do not hold it; keys of requests go with the whole tenant.
func furnishMarks(t testing.TB, d *pgtest.DB, tenant string) {
	t.Helper()
	service := d.Service()
	run := func(sql string) {
		t.Helper()
		exec(t, service, strings.NewReplacer("MARK", erasedMark, "TENANT", tenant).Replace(sql))
	}
	const fields = `p_args => '[{"who": "MARK"}]', p_meta => '{"note": "MARK"}', p_tags => '{MARK}', p_tenant => 'TENANT'`
	run(`insert into ojs.jobs (tenant_id, queue, type, args, meta, tags) values
		('TENANT', 'q', 'plain', '["MARK"]', '{"note": "MARK"}', '{MARK}')`)
	if _, err := connect(t, d.ServiceURL).PgConn().CopyFrom(t.Context(), strings.NewReader(fmt.Sprintf("%s,q,copied,\"[\"\"%s\"\"]\"\n",
		tenant, erasedMark)), "copy ojs.jobs (tenant_id, queue, type, args) from stdin with (format csv)"); err != nil {
		t.Fatal(err)
	}
	run(`select ojs.enqueue('one', p_queue => 'q', ` + fields + `)`)
	run(`select ojs.enqueue('later', p_queue => 'q', p_scheduled_at => ojs.now() + interval '1 day', ` + fields + `)`)
	run(`select ojs.enqueue('pending', p_queue => 'q', p_pending => true, ` + fields + `)`)
	run(`select ojs.enqueue_many('[{"type": "many", "queue": "q", "args": ["MARK"], "meta": {"note": "MARK"}, "tags": ["MARK"],
		"options": {"note": "MARK"}, "extra": {"ext_more": "MARK"}}]', 'TENANT')`)
	run(`select ojs.enqueue_bulk('bulk', array['["MARK"]'::json], p_queue => 'q', p_tenant => 'TENANT')`)
	run(`select ojs.enqueue_once('key-MARK', '[{"type": "once", "queue": "q", "args": ["MARK"], "meta": {"note": "MARK"},
		"tags": ["MARK"]}]', 'TENANT')`)
	run(`select ojs.put_cron('cron', '@yearly', 'cron', '["MARK"]', p_queue => 'q', p_meta => '{"note": "MARK"}', p_tenant => 'TENANT')`)
	run(`select ojs.trigger_cron('cron', 'TENANT')`)
	ended := func(kind, how string) {
		t.Helper()
		id := one[string](t, service, strings.NewReplacer("MARK", erasedMark, "TENANT", tenant).Replace(`select id::text from
			ojs.enqueue('`+kind+`', p_queue => 'ends', p_retry => '{"max_attempts": 2, "initial_interval": "PT1H",
			"on_exhaustion": "dead_letter"}', `+fields+`)`))
		exec(t, service, "select ojs.fetch('{ends}', 1, 'w', p_tenant => $1)", tenant)
		if how != "" {
			run(strings.ReplaceAll(how, "ID", id))
		}
	}
	ended("acked", `select ojs.ack('ID', p_result => '{"r": "MARK"}')`)
	ended("settled", `select ojs.settle('[{"id": "ID", "result": "MARK"}]')`)
	ended("acks", `select ojs.ack_many('{ID}', p_results => array['"MARK"'::json])`)
	ended("retried", `select ojs.nack('ID', '{"message": "MARK", "code": "MARK", "type": "MARK", "details": {"d": "MARK"}}')`)
	ended("discarded", `select ojs.nack('ID', '{"message": "MARK", "code": "DISCARD", "type": "MARK"}')`)
	ended("dead", `select ojs.nack('ID', '{"message": "MARK", "code": "MARK", "type": "MARK", "retryable": false}')`)
	ended("cancelled", `select ojs.cancel('ID')`)
	ended("replayed", `select ojs.nack('ID', '{"message": "MARK", "code": "MARK", "type": "MARK", "retryable": false}')`)
	ended("active", "")
	run(`select ojs.retry_dead_letter((select id from ojs.job where type = 'replayed' and tenant_id = 'TENANT'), p_tenant => 'TENANT')`)
	run(`select ojs.tick()`)
}

// markedRows returns the tables of ojs that hold the mark, with a row of each.
func markedRows(t testing.TB, d *pgtest.DB, q querier) (found []string) {
	t.Helper()
	for _, table := range list[string](t, q, `select c.relname::text from pg_class c
		where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
			and has_table_privilege(c.oid, 'select') order by 1`) {
		if table == "code" || table == "schema_hash" {
			continue
		}
		rows := list[string](t, q, fmt.Sprintf("select to_jsonb(t)::text from ojs.%s t where to_jsonb(t)::text like '%%%s%%' limit 1",
			table, erasedMark))
		for _, row := range rows {
			found = append(found, table+": "+row)
		}
	}
	for _, events := range list[string](t, q, "select to_jsonb(e)::text from ojs.events(p_limit => 1000) e") {
		if strings.Contains(events, erasedMark) {
			found = append(found, "events: "+events)
		}
	}
	return found
}

// dumped returns what pg_dump prints of a database.
func dumped(t testing.TB, d *pgtest.DB) string {
	t.Helper()
	found, err := embedpg.Find("")
	if err != nil {
		t.Fatal(err)
	}
	major := one[int](t, d.Pool, "select current_setting('server_version_num')::int / 10000")
	at := slices.IndexFunc(found, func(b embedpg.Binaries) bool { return b.Major == major })
	if at < 0 {
		t.Fatalf("there is no pg_dump of PostgreSQL %d", major)
	}
	dump, err := osexec.CommandContext(t.Context(), filepath.Join(found[at].Dir, "pg_dump"), d.URL).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	return string(dump)
}

// eraseAll calls ojs.erase until it says that it is done, and returns the sums.
func eraseAll(t testing.TB, q querier, args string) (jobs, cancelled, active, dead, answers int) {
	t.Helper()
	before, missed := "null", 0
	for range 1000 {
		row := one[string](t, q, `select concat_ws(' ', e.jobs, e.cancelled, e.active, e.dead_letters, e.answers, e.locked,
			coalesce(e.next::text, '-')) from ojs.erase('asked to', `+args+`, p_before => `+before+`) e`)
		var j, c, a, dl, an, locked int
		var next string
		if _, err := fmt.Sscan(row, &j, &c, &a, &dl, &an, &locked, &next); err != nil {
			t.Fatal(row, err)
		}
		jobs, cancelled, active, dead, answers = jobs+j, cancelled+c, active+a, dead+dl, answers+an
		missed += locked
		if next == "-" && missed == 0 {
			return jobs, cancelled, active, dead, answers
		}
		if before = "'" + next + "'"; next == "-" {
			before, missed = "null", 0
		}
	}
	t.Fatal("it does not come to an end")
	return
}

// A mark in every field that can hold one is found in no table, view and event after the tenant's jobs were erased, nor in the data files
// after VACUUM FULL; another tenant keeps its jobs.
func TestErasedContentIsFoundNowhere(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	furnishMarks(t, d, "acme")
	exec(t, service, "select ojs.enqueue('kept', '[\"kept\"]', p_tenant => 'globex')")
	if got := markedRows(t, d, d.Pool); len(got) < 8 {
		t.Fatalf("the mark is found only in %v", got)
	}
	total := one[int](t, d.Pool, "select count(*) from ojs.job where tenant_id = 'acme'")
	jobs, cancelled, active, dead, answers := eraseAll(t, operator, "p_tenant => 'acme'")
	if jobs != total || cancelled == 0 || active != 1 || dead != 1 || answers < 1 {
		t.Errorf("of %d jobs %d are erased; cancelled %d, active %d, dead letters %d, answers %d",
			total, jobs, cancelled, active, dead, answers)
	}
	// What configures future jobs is not content of jobs.
	exec(t, service, "select ojs.delete_cron('cron', 'acme')")
	for _, q := range []querier{d.Pool, operator, service} {
		if got := markedRows(t, d, q); len(got) > 0 {
			t.Errorf("the mark is found in %v", strings.Join(got, "\n"))
		}
	}
	for _, sql := range []string{
		"select to_jsonb(i)::text from ojs.job j cross join lateral ojs.job_info(j.id, j.tenant_id) i",
		"select to_jsonb(j)::text from ojs.dead_letters() j",
	} {
		for _, row := range list[string](t, operator, sql) {
			if strings.Contains(row, erasedMark) {
				t.Errorf("%s shows %s", sql, row)
			}
		}
	}
	// The running attempt ends in the ordinary way, without leaving its result.
	id := one[string](t, d.Pool, "select id::text from ojs.job where state = 'active'")
	exec(t, service, "select ojs.ack($1, p_result => '\""+erasedMark+"\"')", id)
	if got := markedRows(t, d, d.Pool); len(got) > 0 {
		t.Errorf("after the ACK the mark is found in %v", got)
	}
	if got := one[string](t, d.Pool, "select args::text from ojs.job where tenant_id = 'globex'"); got != `["kept"]` {
		t.Errorf("another tenant's job has %s", got)
	}
	if got := one[string](t, operator, `select concat_ws(' ', reason, new ->> 'jobs') from ojs.audit_trail where action = 'erased'
		order by n limit 1`); got != fmt.Sprintf("asked to %d", total) {
		t.Errorf("the audit trail says %q", got)
	}
	got := lines(t, d.Pool, "select distinct state from ojs.job where tenant_id = 'acme' order by 1")
	if want := []string{"completed", "cancelled", "discarded"}; !slices.Equal(got, want) {
		t.Errorf("states are %v, want %v", got, want)
	}
	ringsAgree(t, d.Pool)
	exec(t, d.Pool, "vacuum ojs.job")
	if n := one[int](t, d.Pool, "select coalesce(max(n_dead_tup), 0) from pg_stat_user_tables where relname = 'job_all'"); n > 0 {
		t.Errorf("%d dead rows are left after VACUUM", n)
	}
	exec(t, d.Pool, "vacuum full")
	exec(t, d.Pool, "checkpoint")
	for _, file := range list[string](t, d.Pool, `select c.relname || ' ' || pg_relation_filepath(c.oid) from pg_class c
		where pg_relation_filepath(c.oid) is not null`) {
		name, path, _ := strings.Cut(file, " ")
		if n := one[int](t, d.Pool, `select coalesce(position(convert_to($2, 'UTF8') in pg_read_binary_file($1, 0, 1000000000, true)), 0)`,
			path, erasedMark); n > 0 {
			t.Errorf("the file of %s holds the mark", name)
		}
	}
}

// A dump that is made after an erasure has nothing of it.
func TestADumpHasNoErasedContent(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	furnishMarks(t, d, "acme")
	eraseAll(t, d.Operator(), "p_tenant => 'acme'")
	exec(t, d.Service(), "select ojs.delete_cron('cron', 'acme')")
	if dump := dumped(t, d); strings.Contains(dump, erasedMark) || !strings.Contains(dump, "COPY ojs.job") {
		t.Error("pg_dump prints the mark, or no jobs")
	}
}

// An erased job that runs is completed without a result; fails without an error, and for good; given back, or lost, it does not run again.
func TestErasedWhileItRuns(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	for _, c := range []struct{ name, end, want string }{
		{"ack", "select ojs.ack('ID', 'LEASE', '\"x\"')", "completed"},
		{"ack_many", "select ojs.ack_many('{ID}', '{LEASE}', array['\"x\"'::json])", "completed"},
		{"settle", `select ojs.settle('[{"id": "ID", "lease": "LEASE", "result": "x"}]')`, "completed"},
		{"settled nack", `select ojs.settle('[{"id": "ID", "lease": "LEASE", "error": {"message": "x"}}]')`, "discarded"},
		{"nack", `select ojs.nack('ID', '{"message": "x"}', 'LEASE')`, "discarded"},
		{"requeue", `select ojs.nack('ID', '{"message": "x"}', 'LEASE', p_requeue => true)`, "discarded"},
		{"dead letter", `select ojs.nack('ID', '{"message": "x", "code": "DEAD_LETTER"}', 'LEASE')`, "discarded"},
		{"release", "select ojs.release('ID', 'LEASE')", "cancelled"},
		{"release_many", "select ojs.release_many('{ID}', '{LEASE}')", "cancelled"},
		{"cancel", "select ojs.cancel('ID')", "cancelled"},
		{"lost", "", "discarded"},
	} {
		id := one[string](t, service, `select id::text from ojs.enqueue('a', '["x"]', p_queue => 'q', p_tenant => 'acme',
			p_retry => '{"max_attempts": 5, "on_exhaustion": "dead_letter"}')`)
		lease := one[string](t, service, "select lease::text from ojs.fetch('{q}')")
		if got := one[int](t, operator, "select active from ojs.erase('r', array[$1]::uuid[])", id); got != 1 {
			t.Errorf("%s: %d active jobs are erased", c.name, got)
		}
		if c.end == "" {
			d.SetNow(time.Now().Add(2 * time.Hour))
			exec(t, service, "select ojs.tick()")
			d.SetNow(time.Time{})
		} else {
			exec(t, service, strings.NewReplacer("ID", id, "LEASE", lease).Replace(c.end))
		}
		got := one[string](t, d.Pool, `select concat_ws(' ', state, args, meta, result, errors, retry) from ojs.job where id = $1`, id)
		if want := c.want + ` [] {} {"erased": true}`; got != want {
			t.Errorf("%s: the job is %s, want %s", c.name, got, want)
		}
		if c.want == "discarded" {
			refused(t, operator, "OJ409", "select ojs.retry($1)", id)
		}
	}
	if n := one[int](t, service, "select ojs.retry_many() + (select count(*)::int from ojs.dead_letter)"); n != 0 {
		t.Errorf("%d erased jobs run again or are dead letters", n)
	}
	ringsAgree(t, d.Pool)
}

// A call names jobs, a filter or a tenant, and a reason; a tenant erases its own jobs only.
func TestWhatErasingWants(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, d.Service(), "select ojs.enqueue('mail.' || chr(96 + n), '[1]', p_tenant => $1) from generate_series(1, 3) n", tenant)
	}
	for _, args := range []string{
		"null, p_tenant => 'acme'", "' ', p_tenant => 'acme'", "'r'", "'r', '{}'", "'r', p_limit => 0, p_type => 'a'",
		"'r', array[gen_random_uuid()], p_type => 'a'",
	} {
		refused(t, operator, "OJ400", "select ojs.erase("+args+")")
	}
	acme := d.As("acme")
	refused(t, acme, "OJ400", "select ojs.erase('r')")
	refused(t, acme, "OJ403", "select ojs.erase('r', p_tenant => 'globex')")
	ids := list[string](t, d.Pool, "select id::text from ojs.job order by id")
	if got := one[int](t, acme, "select jobs from ojs.erase('r', $1::uuid[])", ids); got != 3 {
		t.Errorf("the tenant erases %d jobs", got)
	}
	if got := one[int](t, operator, "select jobs from ojs.erase('r', p_type => 'mail.*', p_states => '{available}')"); got != 3 {
		t.Errorf("by type %d jobs are erased", got)
	}
	if got := one[int](t, operator, "select jobs from ojs.erase('r', p_type => 'mail.*')"); got != 0 {
		t.Errorf("%d jobs are erased twice", got)
	}
	refused(t, d.As("globex"), "OJ404", "select ojs.cancel($1)", ids[0])
}

// Dead letters whose partition was dropped are erased, too, by id and by filter.
func TestErasingDeadLettersPutAside(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	for range 3 {
		exec(t, service, `select ojs.enqueue('a', '["x"]', p_queue => 'q', p_tenant => 'acme', p_retry => '{"max_attempts": 1,
			"on_exhaustion": "dead_letter"}')`)
	}
	exec(t, service, `select ojs.nack(id, '{"message": "x"}') from ojs.fetch('{q}', 3)`)
	at, _ := cutAhead(t, d)
	d.SetNow(at.Add(time.Hour))
	untilDone(t, operator, "select ojs.drop_finished($1)", at.Add(time.Minute))
	ids := list[string](t, d.Pool, "select id::text from ojs.dead_job")
	if len(ids) != 3 {
		t.Fatalf("%d dead letters are put aside", len(ids))
	}
	if got := one[int](t, operator, "select dead_letters from ojs.erase('r', array[$1::uuid])", ids[0]); got != 1 {
		t.Errorf("by id %d are erased", got)
	}
	if _, _, _, dead, _ := eraseAll(t, operator, "p_type => 'a', p_limit => 1"); dead != 2 {
		t.Errorf("by type %d are erased", dead)
	}
	if n := one[int](t, d.Pool, "select (select count(*) from ojs.dead_job) + (select count(*) from ojs.dead_letter)"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Erasing goes on beside workers: a job either ends at its worker or is cancelled, once.
func TestErasingBesideWorkers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	const jobs = 3000
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[\"x\"]'::json, array[$1::int]), p_queue => 'q', p_tenant => 'acme')", jobs)
	var ran sync.Map
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				ids := list[string](t, service, "select id::text from ojs.fetch('{q}', 10)")
				if len(ids) == 0 {
					if one[int](t, d.Pool, "select count(*) from ojs.job where state = 'available'") == 0 {
						return
					}
					continue
				}
				for _, id := range ids {
					if _, twice := ran.LoadOrStore(id, true); twice {
						t.Errorf("job %s ran twice", id)
					}
				}
				if n := one[int](t, service, "select count(*) from ojs.ack_many($1::uuid[])", ids); n != len(ids) {
					// A job that is erased at this moment is locked.
					exec(t, service, "select ojs.ack(id) from ojs.job where id = any ($1::uuid[]) and state = 'active'", ids)
				}
			}
		})
	}
	erased, cancelled, _, _, _ := eraseAll(t, operator, "p_tenant => 'acme', p_limit => 100")
	workers.Wait()
	n := 0
	ran.Range(func(any, any) bool { n++; return true })
	got := one[string](t, d.Pool, `select concat_ws(' ', count(*) filter (where state = 'completed'), count(*)
		filter (where state = 'cancelled'), count(*) filter (where args::text <> '[]')) from ojs.job`)
	if want := fmt.Sprintf("%d %d 0", n, cancelled); got != want || n+cancelled != jobs || erased != jobs {
		t.Errorf("ended are %s, want %s; %d jobs erased, %d ran", got, want, erased, n)
	}
	ringsAgree(t, d.Pool)
}

// A tenant that was deregistered is listed as leaving, its content is erased after the period, and then it is gone; a new tenant of its
// name is listed, and keeps its jobs.
func TestATenantLeavesForGood(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	begun := time.Now().Truncate(time.Second)
	d.SetNow(begun)
	furnishMarks(t, d, "acme")
	refused(t, operator, "OJ422", "select ojs.deregister_tenant('acme', 'acme', p_erase_after => '-1 day')")
	exec(t, operator, "select ojs.deregister_tenant('acme', 'acme', 'left', '30 days')")
	for i := 0; one[bool](t, d.Pool, "select exists (select from ojs.departure)"); i++ {
		if exec(t, service, "select ojs.tick()"); i > 1000 {
			t.Fatal("it does not come to an end")
		}
	}
	listed := func() string {
		t.Helper()
		return one[string](t, operator, `select concat_ws(' ', (select count(*) from ojs.tenant_stats where tenant_id = 'acme'),
			(select count(*) from ojs._tenant_names where tenant_id = 'acme'), (select gone_at is null from ojs.leaving))`)
	}
	if steps := keepUp(t, d); len(markedRows(t, d, d.Pool)) == 0 || listed() != "1 1 t" {
		t.Errorf("before the period is over: %v, listed %s", steps, listed())
	}
	d.SetNow(begun.Add(time.Hour))
	exec(t, operator, "select ojs.configure(p_retention => '0')")
	later := one[string](t, service, "select id::text from ojs.enqueue('new', '[\"new\"]', p_tenant => 'acme', p_queue => 'q')")
	d.SetNow(begun.Add(31 * 24 * time.Hour))
	for range 20 {
		keepUp(t, d)
	}
	if got := markedRows(t, d, d.Pool); len(got) > 0 {
		t.Errorf("the mark is found in %v", strings.Join(got, "\n"))
	}
	if got := one[string](t, d.Pool, "select args::text from ojs.job where id = $1", later); got != `["new"]` {
		t.Errorf("the new tenant's job has %s", got)
	}
	if got := listed(); got != "1 1 f" {
		t.Errorf("with a new tenant of its name it is listed %s", got)
	}
	exec(t, d.Pool, "update ojs.leaving set total = total + 1")
	if got := listed(); got != "0 0 f" {
		t.Errorf("without a new tenant it is listed %s", got)
	}
	refused(t, operator, "OJ404", "select ojs.deregister_tenant('acme', 'acme')")
}

// No producer can mark a job as erased: ojs.erase would pass over it.
func TestNobodyMarksAJobAsErased(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, way := range []string{
		`select ojs.enqueue('a', p_retry => '{"erased": true}')`,
		`select ojs.enqueue_many('[{"type": "a", "retry": {"erased": false}}]')`,
		`insert into ojs.jobs (type, retry) values ('a', '{"erased": true}')`,
		`select ojs.put_cron('c', '@daily', 'a', p_retry => '{"erased": true}')`,
	} {
		failure := refused(t, service, "OJ400", way)
		if field := detail(t, failure)["field"]; field != "retry.erased" {
			t.Errorf("%s is refused for %v: %s", way, field, failure.Message)
		}
	}
	refused(t, d.Operator(), "OJ400", `select ojs.configure(p_default_retry => '{"erased": true}')`)
	// A job that has the mark already, and content, is erased all the same.
	id := one[string](t, service, "select id::text from ojs.enqueue('a', '[\"secret\"]', p_tenant => 'acme')")
	exec(t, d.Pool, `update ojs.job set retry = '{"erased": true}' where id = $1`, id)
	if got := one[int](t, service, "select jobs from ojs.erase('asked', array[$1::uuid])", id); got != 1 {
		t.Errorf("%d jobs are erased", got)
	}
	if got := one[string](t, d.Pool, "select args::text from ojs.job where id = $1", id); got != "[]" {
		t.Errorf("args are %s", got)
	}
}

// A session that has the row of a key locked, as one that repeats a call, makes no erasure wait. Passes that did nothing have no rows in
// the audit trail.
func TestErasingPassesOverLockedKeys(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	const once = `select id::text from ojs.enqueue_once('k', '[{"type": "a", "args": ["secret"]}]', p_tenant => 'acme')`
	id := one[string](t, service, once)
	session := begin(t, d.As("acme"))
	exec(t, session, once)
	exec(t, operator, "set statement_timeout = '20s'")
	for _, call := range []string{
		"select locked from ojs.erase('asked', array['" + id + "'::uuid])", "select locked from ojs.erase('asked', p_tenant => 'acme')",
	} {
		if got := one[int](t, operator, call); got == 0 {
			t.Errorf("%s: nothing is locked", call)
		}
	}
	audited := "select count(*) from ojs.audit_trail where action = 'erased'"
	before := one[int](t, operator, audited)
	for range 3 {
		one[int](t, operator, "select locked from ojs.erase('asked', array['"+id+"'::uuid])")
	}
	if after := one[int](t, operator, audited); after != before {
		t.Errorf("passes that did nothing have %d rows", after-before)
	}
	rollback(t, session)
	const erase = "select concat_ws(' ', locked, answers) from ojs.erase('asked', array[$1::uuid])"
	if got := one[string](t, operator, erase, id); got != "0 1" {
		t.Errorf("afterwards: %s", got)
	}
}
