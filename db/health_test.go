package db_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// operatorViews are the views for operators, besides ojs.tenant_stats and ojs.queue_stats.
var operatorViews = []string{
	"queue_demands", "unserved_queues", "blocked_tenants", "longest_waits", "dead_letter_errors", "lost_attempts", "lost_workers",
	"queue_workers",
	"table_health", "open_transactions", "clock_status",
}

// Each column says in psql what it means.
func TestColumnsOfViewsHaveComments(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	expectNone(t, d.Pool, "columns without a comment", `
		select c.relname, a.attname from pg_catalog.pg_class c
		join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0
		where `+ours+` and c.relkind = 'v' and c.relname !~ '^_' and pg_catalog.col_description(c.oid, a.attnum) is null`)
	for _, view := range operatorViews {
		refused(t, d.As("acme"), "42501", "select from ojs."+view)
	}
	refused(t, d.As("acme"), "42501", "select ojs.doctor()")
}

// However many jobs wait, the views read none of them, those with waits the first of each line, and none goes through the table. Who asks
// for the first rows by tenant waits for the first of their lines only. OJS_BACKLOG_JOBS: so many jobs, of a hundredth as many tenants;
// then it says how long each view takes.
func TestOperatorViewsReadNoJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	jobs, loaded := 5000, false
	if n, err := strconv.Atoi(os.Getenv("OJS_BACKLOG_JOBS")); err == nil {
		jobs, loaded = n, true
	}
	tenants := min(jobs/100, 10000)
	for from := 0; from < jobs; from += 100_000 {
		exec(t, d.Service(), `
			insert into ojs.jobs (tenant_id, type, queue)
			select 't' || i % $3, 'a', 'q' || i % $3 % 7 from generate_series($1::int, $2::int - 1) i`,
			from, min(from+100_000, jobs), tenants)
	}
	exec(t, d.Operator(), "select ojs.limit_concurrency(1, 't' || i) from generate_series(0, 9) i")
	exec(t, d.Service(), "select ojs.fetch('{q0,q1,q2,q3}', 100)")
	// What is not folded yet is a cost of its own.
	for one[int](t, d.Service(), "select journal_rows from ojs.clock_status") > 0 {
		tick(t, d.Service(), 1000)
		exec(t, d.Service(), "select ojs.fetch('{q4,q5,q6}', 1)")
	}
	exec(t, d.Pool, "vacuum analyze")
	const read = `select coalesce(sum(s.seq_tup_read + s.idx_tup_fetch), 0)::bigint from pg_catalog.pg_stat_xact_user_tables s
		where s.schemaname = 'ojs' and s.relname ~ '^job'`
	const scanned = `select coalesce(sum(s.seq_scan), 0)::bigint from pg_catalog.pg_stat_xact_user_tables s
		where s.schemaname = 'ojs' and s.relname ~ '^(job|dead_job)'`
	for _, c := range []struct {
		what string
		most int
	}{
		{"ojs.tenant_stats", 3*tenants + 200},
		{"ojs.shard_stats", 3*tenants + 200},
		{"ojs.queue_stats", 3*tenants + 200},
		{"ojs.scheduling_stats", 3*tenants + 200},
		{"(select from ojs.tenant_stats order by tenant_id limit 5)", 20},
		{"(select from ojs.shard_stats order by tenant_id, queue limit 5)", 20},
		{"(select from ojs.tenant_stats limit 5)", 20},
		{"(select from ojs.shard_stats limit 5)", 20},
		{"(select total_jobs from ojs.queue_stats)", 0},
		{"ojs.tenant_shares", 0},
		{"ojs.limits", 0},
		{"ojs.rule_stats", 0},
		{"ojs.pool_stats", 0},
		{"ojs.queue_demands", 0},
		{"ojs.unserved_queues", 0},
		{"ojs.blocked_tenants", 0},
		{"ojs.queue_workers", 200}, // of those in workers' hands
		{"ojs.dead_letter_errors", 0},
		{"ojs.lost_attempts", 0},
		{"ojs.table_health", 0},
		{"ojs.open_transactions", 0},
		{"ojs.clock_status", 0},
		{"ojs._tenant_gauges(1000)", 0},
		{"ojs.longest_waits", 3*tenants + 200},
		{"ojs.doctor()", 3*tenants + 200},
	} {
		tx := begin(t, d.Operator())
		before, scans := one[int](t, tx, read), one[int](t, tx, scanned)
		var rows int
		if err := tx.QueryRow(t.Context(), "select count(v) from "+c.what+" v").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if n := one[int](t, tx, read) - before; n > c.most {
			t.Errorf("%s reads %d of %d jobs, more than %d", c.what, n, jobs, c.most)
		}
		if one[int](t, tx, scanned) > scans && !slices.Contains([]string{"ojs.dead_letter_errors", "ojs.doctor()"}, c.what) {
			t.Errorf("%s goes through a table of jobs", c.what)
		}
		rollback(t, tx)
		if !loaded {
			continue
		}
		took := [2]time.Duration{}
		for i, limit := range []string{" limit 100", ""} {
			for range 3 {
				began := time.Now()
				exec(t, d.Operator(), "select * from "+c.what+" v"+limit)
				if n := time.Since(began); took[i] == 0 || n < took[i] {
					took[i] = n
				}
			}
		}
		t.Logf("%-26s %6d rows, the first 100 in %v, all in %v", c.what, rows,
			took[0].Round(time.Millisecond), took[1].Round(time.Millisecond))
	}
	if n := one[int](t, d.Operator(), "select count(*) from ojs.longest_waits"); n < tenants-100 {
		t.Errorf("%d of %d tenants wait", n, tenants)
	}
}

// A tenant whose queues no worker serves takes nothing from other tenants, and does not count in their shares.
func TestSharesAmongTenantsThatAreServed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	enqueueFor(t, service, "q", "acme", 3)
	enqueueFor(t, service, "q", "globex", 3)
	enqueueFor(t, service, "abandoned", "initech", 3)
	expect := func(what string, want ...string) {
		t.Helper()
		if got := lines(t, operator, `select tenant_id, effective_share::text from ojs.tenant_stats order by tenant_id`); !slices.Equal(
			got, want) {
			t.Errorf("%s, the shares are %q, want %q", what, got, want)
		}
	}
	expect("before anybody asks", "acme -", "globex -", "initech -")
	exec(t, service, "select ojs.register_waiters($1, '{q}')", someID)
	expect("while a worker waits for q", "acme 0.5000", "globex 0.5000", "initech -")
	exec(t, service, "select ojs.drop_waiter($1, 'q')", someID)
	exec(t, service, "select ojs.ack(f.id) from ojs.fetch('{q,abandoned}', 2) f")
	expect("after both queues gave a job", "acme 0.3333", "globex 0.3333", "initech 0.3333")
	if got := lines(t, d.As("initech"), "select effective_share::text from ojs.tenant_stats"); !slices.Equal(got, []string{"1.0000"}) {
		t.Errorf("initech sees of itself %q", got)
	}
	expectNone(t, d.As("initech"), "queues that a tenant is told of", "select queue from ojs._served_queues()")
}

// Whatever keeps a tenant's jobs back is named, and no longer once it is gone.
func TestBlockedTenantsSayWhy(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	enqueueFor(t, service, "q", "acme", 3)
	expect := func(want string) {
		t.Helper()
		got := strings.Join(lines(t, operator, "select tenant_id, queue, available, why, detail from ojs.blocked_tenants"), "; ")
		if got != want {
			t.Errorf("blocked are %q, want %q", got, want)
		}
	}
	expect("acme q 3 no worker asks for the queue -")
	if got := lines(t, operator, "select queue, tenants, available, workers from ojs.unserved_queues"); fmt.Sprint(got) != "[q 1 3 0]" {
		t.Errorf("queues that nobody serves: %q", got)
	}
	exec(t, service, "select ojs.register_waiters($1, '{q}')", someID)
	expect("")
	exec(t, service, "select ojs.drop_waiter($1, 'q')", someID)
	first := oneJob(t, service, "ojs.fetch('{q}')")
	expect("")
	for _, c := range []struct{ do, undo, want string }{
		{"ojs.hold_dispatch()", "ojs.resume_dispatch()", "dispatch is held -"},
		{"ojs.pause('*')", "ojs.resume('*')", "everything is paused %s"},
		{"ojs.pause('q')", "ojs.resume('q')", "the queue is paused %s"},
		{"ojs.pause(p_tenant => 'acme', p_reason => 'late bill')", "ojs.resume(p_tenant => 'acme')", "the tenant is paused %s: late bill"},
		{"ojs.pause('q', 'acme')", "ojs.resume('q', 'acme')", "the tenant is paused in the queue %s"},
		{"ojs.limit_concurrency(1, 'acme')", "ojs.limit_concurrency(null, 'acme')", "the tenant's limit is reached 1 of 1 run"},
		{
			"ojs.limit_concurrency(1, p_queue => 'q')", "ojs.limit_concurrency(null, p_queue => 'q')",
			"the queue's limit is reached 1 of 1 run",
		},
		{
			"ojs.limit_concurrency(1, 'acme', 'q')", "ojs.limit_concurrency(null, 'acme', 'q')",
			"the tenant's limit in the queue is reached 1 of 1 run",
		},
	} {
		exec(t, operator, "select from "+c.do)
		expect("acme q 2 " + strings.ReplaceAll(c.want, "%s", one[string](t, operator, "select session_user::text")))
		exec(t, operator, "select from "+c.undo)
		expect("")
	}
	// A worker that has asked within five minutes may ask again.
	exec(t, service, "select ojs.ack($1)", first.ID)
	expect("")
	d.SetNow(time.Now().Add(2 * time.Hour))
	expect("acme q 2 no worker asks for the queue -")
}

// A worker that fell silent is remembered for a day, by name; one that signs off is not.
func TestLostWorkersAreRemembered(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.register_worker('gone', p_queues => '{a,b}'), ojs.register_worker('acme', p_tenant => 'acme')")
	exec(t, service, "select ojs.register_worker('done'), ojs.register_worker('alive')")
	exec(t, service, "select ojs.deregister_worker('done')")
	now := time.Now()
	expect := func(after time.Duration, want string) {
		t.Helper()
		now = now.Add(after)
		d.SetNow(now)
		exec(t, service, "select ojs.beat('alive')")
		tick(t, service, 1000)
		got := strings.Join(lines(t, d.Operator(), "select worker_id, tenant_id, is_back from ojs.lost_workers order by 1"), "; ")
		if got != want {
			t.Errorf("lost are %q, want %q", got, want)
		}
	}
	expect(20*time.Second, "")
	expect(20*time.Second, "acme acme false; gone - false")
	exec(t, service, "select ojs.register_worker('gone')")
	expect(0, "acme acme false; gone - true")
	if got := one[string](t, d.Operator(), "select queues::text from ojs.lost_workers where worker_id = 'gone'"); got != "{a,b}" {
		t.Errorf("it served %s", got)
	}
	now = now.Add(25 * time.Hour)
	d.SetNow(now)
	if got := lines(t, d.Operator(), "select * from ojs.lost_workers"); len(got) != 0 {
		t.Errorf("a day later lost are %q", got)
	}
	exec(t, service, "select ojs.register_worker('next')")
	d.SetNow(now.Add(time.Minute))
	tick(t, service, 1000)
	if got := list[string](t, d.Pool, "select worker_id from ojs.lost_worker where lost_at < $1 order by 1", now); len(got) != 0 {
		t.Errorf("those of the day before stay: %q", got)
	}
}

// Who keeps a transaction open, and whether dispatch may wait for it, is seen by whom PostgreSQL lets see it.
func TestOpenTransactionsAreSeen(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := holdLane(t, d)
	pid := one[string](t, tx, "select pg_backend_pid()::text")
	const seen = "select t.name, t.state, t.holds_lane from ojs.open_transactions t where t.kind = 'session'"
	if got := lines(t, d.Pool, seen); fmt.Sprint(got) != "["+pid+" idle in transaction true]" {
		t.Errorf("open are %q", got)
	}
	if got := lines(t, d.Operator(), seen); fmt.Sprint(got) != "["+pid+" - true]" {
		t.Errorf("who may not know what others do sees %q", got)
	}
	rollback(t, tx)
	if got := lines(t, d.Pool, seen); len(got) != 0 {
		t.Errorf("after its end %q are open", got)
	}
}

// The transaction that holds the lane is known from those that only tried to lock it, whether it is a session's or a prepared one, and
// from the moment on at which it does. The doctor says how to end a prepared one.
func TestTheHolderOfTheLaneIsSeen(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPrivate(t, map[string]string{"max_prepared_transactions": "2", "fsync": "off"})
	conn, holder, other := connect(t, p.URL), connect(t, p.URL), connect(t, p.URL)
	expect := func(what string, want ...string) {
		t.Helper()
		got := list[string](t, conn, "select kind || ' ' || name from ojs.open_transactions where holds_lane order by 1")
		if !slices.Equal(got, want) {
			t.Errorf("%s, the lane is held by %q, want %q", what, got, want)
		}
	}
	const try = "select from ojs.lane for update skip locked"
	session := func(c *pgx.Conn) string { return fmt.Sprintf("session %d", c.PgConn().PID()) }
	for _, c := range []struct {
		name string
		lock []string
	}{
		{"locked by a transaction", []string{"select from ojs.lane for update"}},
		{"locked by a subtransaction", []string{"savepoint s", "select from ojs.lane for update", "release s"}},
	} {
		exec(t, holder, "begin")
		for _, sql := range c.lock {
			exec(t, holder, sql)
		}
		expect(c.name, session(holder))
		exec(t, other, "begin")
		exec(t, other, try)
		expect(c.name+" while another tried", session(holder))
		exec(t, holder, "rollback")
		exec(t, other, "select pg_catalog.pg_current_xact_id()")
		expect(c.name + " that has ended")
		exec(t, other, "rollback")
	}

	exec(t, conn, "select ojs.enqueue('a')")
	exec(t, holder, "begin")
	exec(t, holder, "select count(*) from ojs.lane")
	exec(t, holder, "select ojs.enqueue('a')")
	exec(t, holder, "prepare transaction 'reader'")
	exec(t, holder, "begin")
	exec(t, holder, "select ojs.fetch('{default}')")
	exec(t, holder, "prepare transaction 'it''s'")
	expect("prepared", "prepared it's")
	const found = "select finding || ' ' || advice from ojs.doctor() where runbook = 'long-transaction.md' and severity = 'error'"
	want := "The prepared transaction 'it''s' of " + one[string](t, conn, "select session_user::text") +
		" holds the lane: each FETCH waits for it in vain. commit prepared 'it''s', or rollback prepared 'it''s'"
	if got := list[string](t, conn, found); !slices.Equal(got, []string{want}) {
		t.Errorf("the doctor says %q, want %q", got, want)
	}
	for _, name := range []string{"reader", "it''s"} {
		exec(t, conn, "rollback prepared '"+name+"'")
	}
	expect("after all")
	if got := list[string](t, conn, found); len(got) != 0 {
		t.Errorf("afterwards the doctor says %q", got)
	}
}

// Each finding of the doctor is there when its cause is, and not before.
func TestDoctorFinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, runbook, finding string
		arrange                func(t *testing.T, d *pgtest.DB)
	}{
		{"that dispatch is held", "after-restore.md", "error Dispatch is held since ", func(t *testing.T, d *pgtest.DB) {
			exec(t, d.Operator(), "select ojs.hold_dispatch()")
		}},
		{"a late clock", "lost-server.md", "error The clock is 00:01:", func(t *testing.T, d *pgtest.DB) {
			exec(t, d.Service(), "select ojs.enqueue('a', p_scheduled_at => ojs.now() + interval '10 seconds')")
			d.SetNow(time.Now().Add(90 * time.Second))
			exec(t, d.Pool, "update ojs.duty set holder = 'x', since = ojs.now(), expires_at = ojs.now() + interval '15 seconds'")
		}},
		{
			"a tenant beyond its limits", "tenant-flooding.md",
			"warning Servers have refused 7 requests of tenant acme in queue q in ten minutes, beyond max_queue_depth.",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Service(), "select ojs.note_refusals('{acme}', '{q}', '{max_queue_depth}', '{7}')")
			},
		},
		{
			"a queue that no worker asks for", "queue-stuck.md",
			"warning No worker asks for queue q: 3 jobs of 1 tenants wait, the first for 00:02:3",
			func(t *testing.T, d *pgtest.DB) {
				enqueueFor(t, d.Service(), "q", "acme", 3)
				// A worker may ask every half minute.
				d.SetNow(time.Now().Add(30 * time.Second))
				expectNone(t, d.Pool, "early", "select * from ojs.doctor() where topic = 'queues'")
				enqueueFor(t, d.Service(), "young", "acme", 3)
				d.SetNow(time.Now().Add(150 * time.Second))
				exec(t, d.Service(), "select ojs.fetch('{young}')")
			},
		},
		{
			"a queue that is paused", "job-waits.md", "note Queue q is paused since ",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Operator(), "select ojs.pause('q', p_reason => 'deploy of billing')")
				expectNone(t, d.Pool, "pauses without work", "select * from ojs.doctor() where topic = 'queues'")
				enqueueFor(t, d.Service(), "q", "acme", 3)
				enqueueFor(t, d.Service(), "q", "globex", 1)
				got := lines(t, d.Pool, "select finding from ojs.doctor() where topic = 'queues'")
				if want := ": deploy of billing): 4 jobs of 2 tenants wait."; len(got) != 1 || !strings.HasSuffix(got[0], want) {
					t.Errorf("it finds %q, want %q", got, want)
				}
			},
		},
		{
			"a tenant at its limit", "job-waits.md", "note Tenant acme is at its limit (2 of 2 run): 7 jobs of 1 tenants wait.",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Operator(), "select ojs.limit_concurrency(2, 'acme')")
				enqueueFor(t, d.Service(), "q", "acme", 5)
				enqueueFor(t, d.Service(), "r", "acme", 4)
				exec(t, d.Service(), "select ojs.fetch('{q}', 5)")
			},
		},
		{
			"a throttle", "tenant-flooding.md", "note Tenant acme is throttled until ",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Operator(), "select ojs.throttle('acme', 'too many exports', 'weight', 0.2, '30 minutes')")
				got := lines(t, d.Pool, "select finding from ojs.doctor() where runbook = 'tenant-flooding.md'")
				want := ": its weight is 0.2, without the throttle 1 (too many exports, by "
				if len(got) != 1 || !strings.Contains(got[0], want) {
					t.Errorf("it finds %q, want %q", got, want)
				}
			},
		},
		{
			"a worker that was declared dead", "worker-died.md",
			"warning 1 workers were declared dead within the last hour, such as w, which ran 0 jobs and was silent since ",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Service(), "select ojs.register_worker('w'), ojs.register_worker('back')")
				d.SetNow(time.Now().Add(10 * time.Minute))
				tick(t, d.Service(), 1000)
				exec(t, d.Service(), "select ojs.register_worker('back')")
			},
		},
		{
			"a type that fails among others that do not", "dead-letters.md",
			"warning Jobs of type pdf.render in queue q fail: 25 attempts of 25 jobs failed in ten minutes, the last with Boom.",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Service(), `select ojs.enqueue((array['pdf.render', 'half', 'well', 'well'])[1 + i % 4],
					p_queue => 'q', p_tenant => 't' || i % 10) from generate_series(0, 199) i where i < 100 or i % 4 = 1`)
				// Of type half 25 attempts fail, too, and as many jobs are completed.
				exec(t, d.Service(), `select case when f.type = 'well' or f.type = 'half' and row_number() over (partition by f.type) > 25
						then ojs.ack(f.id)::text else ojs.nack(f.id, '{"type": "Boom", "message": "m"}')::text end
					from ojs.fetch('{q}', 200) f`)
				if got := lines(t, d.Pool, "select finding from ojs.doctor() where topic = 'jobs'"); len(got) != 1 {
					t.Errorf("it finds %q", got)
				}
			},
		},
		{
			"a tenant that is paused for long", "job-waits.md", "warning Tenant acme is paused since ",
			func(t *testing.T, d *pgtest.DB) {
				enqueueFor(t, d.Service(), "q", "acme", 3)
				exec(t, d.Operator(), "select ojs.pause(p_tenant => 'acme')")
				d.SetNow(time.Now().Add(2 * time.Hour))
			},
		},
		{
			"a job that waits for long", "job-waits.md", "warning The first job of tenant acme in queue q has waited for 02:00:",
			func(t *testing.T, d *pgtest.DB) {
				enqueueFor(t, d.Service(), "q", "acme", 1)
				d.SetNow(time.Now().Add(2 * time.Hour))
			},
		},
		{"a silent worker", "worker-died.md", "warning 1 workers are silent, such as w.", func(t *testing.T, d *pgtest.DB) {
			exec(t, d.Service(), "select ojs.register_worker('w')")
			d.SetNow(time.Now().Add(20 * time.Second))
		}},
		{
			"a poison job", "poison-job.md",
			"warning Attempts of type a in queue q of tenant acme were lost: 12, of 1 jobs, by visibility_timeout.",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Service(), `select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme', p_max_attempts => 50)`)
				now := time.Now()
				for range 12 {
					oneJob(t, d.Service(), "ojs.fetch('{q}')")
					now = now.Add(40 * time.Second)
					d.SetNow(now)
					tick(t, d.Service(), 1000)
				}
			},
		},
		{
			"dead letters by error", "dead-letters.md",
			"warning 100 jobs of type a in queue q of tenant acme are dead letters with Boom, the last of ",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Service(), `select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme',
					p_retry => '{"on_exhaustion": "dead_letter"}') from generate_series(1, 100)`)
				exec(t, d.Service(), `select ojs.nack(f.id, '{"type": "Boom", "message": "m", "retryable": false}')
					from ojs.fetch('{q}', 100) f`)
			},
		},
		{
			"noisy tenants", "tenant-flooding.md",
			"warning 4 tenants use much more than the others: a (queue_depth_ratio), b (queue_depth_ratio), c (queue_depth_ratio) and " +
				"others.",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Operator(), "select ojs.watch_neighbours(p_min_jobs => 20, p_rate_ratio => 1000)")
				for i, n := range []int{1, 1, 1, 1, 1, 30, 30, 30, 30} {
					enqueueFor(t, d.Service(), "q", string("stuvwabcd"[i]), n)
				}
				tick(t, d.Service(), 1000)
			},
		},
		{
			"attempts that fail", "dead-letters.md", "warning In queue q 21 of 41 attempts that ended in ten minutes failed.",
			func(t *testing.T, d *pgtest.DB) {
				for _, queue := range []string{"q", "well", "small"} {
					enqueueFor(t, d.Service(), queue, "acme", 100)
				}
				const fail = `select ojs.nack(f.id, '{"type": "Boom", "message": "m"}') from ojs.fetch(array[$1], $2) f`
				// What failed long ago does not count.
				exec(t, d.Service(), fail, "well", 30)
				tick(t, d.Service(), 1000)
				d.SetNow(time.Now().Add(30 * time.Minute))
				for queue, n := range map[string][2]int{"q": {21, 20}, "well": {20, 20}, "small": {19, 1}} {
					exec(t, d.Service(), fail, queue, n[0])
					exec(t, d.Service(), "select ojs.ack(f.id) from ojs.fetch(array[$1], $2) f", queue, n[1])
				}
				tick(t, d.Service(), 1000)
				if got := lines(t, d.Pool, "select finding from ojs.doctor() where finding like 'In queue%'"); len(got) != 1 {
					t.Errorf("it finds %q", got)
				}
			},
		},
		{"a tenant's role that sees all", "maintenance.md", "error Role tenant1_%s is a tenant's", func(t *testing.T, d *pgtest.DB) {
			d.TenantURL("acme")
			exec(t, d.Pool, "grant ojs_operator to "+d.RoleName("tenant1"))
		}},
		{
			"a server whose statements are cut off", "drop-finished-jobs.md",
			"warning Statements of role service_%s, which serves, are cut off by ",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, fmt.Sprintf("alter role %s in database %s set statement_timeout = '1min'", d.RoleName("service"), d.Name))
			},
		},
		{
			"a database in which sessions begin with another isolation", "maintenance.md",
			"warning Sessions of database %s begin with default_transaction_isolation = serializable: ojs.fetch",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, "alter database "+d.Name+" set default_transaction_isolation = 'serializable'")
			},
		},
		{
			"a role with another encoding", "maintenance.md",
			"warning Sessions of role service_%s begin with client_encoding = LATIN1: one job",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, "alter role "+d.RoleName("service")+" set client_encoding = 'LATIN1'")
				exec(t, d.Pool, "alter role "+d.RoleName("service")+" set row_security = on")
			},
		},
		{
			"a role without row security", "maintenance.md",
			"error Sessions of role service_%s in database %s begin with row_security = off: each call",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, "alter role "+d.RoleName("service")+" in database "+d.Name+" set row_security = off")
			},
		},
		{
			"a database that is read only", "maintenance.md",
			"error Sessions of database %s begin with default_transaction_read_only = on: no session",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, "alter database "+d.Name+" set default_transaction_read_only = on")
			},
		},
		{
			"a restore from another cluster", "backup-and-restore.md", "error The database was restored from another cluster",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, "update ojs.tally_mark set snapshot = '900000000000:900000000000:'")
			},
		},
		{
			"a tenant's login without a bound", "maintenance.md",
			"warning 1 logins of tenants may open any number of connections, such as tenant1_%s:",
			func(t *testing.T, d *pgtest.DB) {
				d.TenantURL("acme")
				d.TenantURL("globex")
				exec(t, d.Pool, "alter role "+d.RoleName("tenant1")+" connection limit -1")
			},
		},
		{
			"a restore without grants", "backup-and-restore.md", "error A restore has left out what belongs to the schema: 1 grants.",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, "revoke execute on function ojs.ack from ojs_service")
			},
		},
		{
			"a grant that somebody took away", "backup-and-restore.md",
			"note 1 grants of the migrations are missing, such as: grant execute on routine ojs.ack(",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, "revoke execute on function ojs.ack from ojs_worker")
			},
		},
		{
			"a session that holds the lane", "long-transaction.md",
			"error Process 1 (acme, application 'app', idle in transaction) holds the lane: its transaction has been open since ",
			func(t *testing.T, d *pgtest.DB) {
				exec(t, d.Pool, `drop view ojs.open_transactions; create view ojs.open_transactions as
					select 'session' as kind, '1' as name, 'acme' as role_name, 'app' as application, 'idle in transaction' as state,
						interval '2 seconds' / n as open_for, 5::bigint as holds_back_xids, true as holds_lane, false as waits, '' as query
					from generate_series(1, 3) n`)
			},
		},
		{
			"a forgotten transaction", "long-transaction.md",
			"warning Process 1 (acme, application 'app', idle in transaction) has had its transaction open for 00:01:30:",
			func(t *testing.T, d *pgtest.DB) {
				// A statement that runs for so long is no sign.
				exec(t, d.Pool, `drop view ojs.open_transactions; create view ojs.open_transactions as
					select 'session' as kind, n::text as name, 'acme' as role_name, 'app' as application,
						case n when 1 then 'idle in transaction' else 'active' end as state, interval '90 seconds' as open_for,
						5::bigint as holds_back_xids, false as holds_lane, false as waits, '' as query
					from generate_series(1, 2) n`)
			},
		},
		{"a transaction of hours", "long-transaction.md", "error Process 1 (acme, ", func(t *testing.T, d *pgtest.DB) {
			exec(t, d.Pool, `drop view ojs.open_transactions; create view ojs.open_transactions as
				select 'session' as kind, '1' as name, 'acme' as role_name,
				'app' as application, 'active' as state, interval '2 hours' as open_for, 5::bigint as holds_back_xids,
				false as holds_lane, false as waits, '' as query`)
		}},
		{"a table that vacuum cannot clean", "bloat.md", "warning Of ojs.timer 90 % are dead rows (900", func(t *testing.T, d *pgtest.DB) {
			exec(t, d.Pool, `drop view ojs.table_health; create view ojs.table_health as
				select 'timer' as table_name, 100000::bigint as live_rows,
				900000::bigint as dead_rows, 0.9 as dead_part, 1::bigint as bytes, 1.0 as bytes_per_row, false as is_partition,
				null::timestamptz as vacuumed_at, 0::bigint as vacuums, null::timestamptz as analyzed_at, 1::bigint as unfrozen_xids`)
		}},
		{"a schema that is not complete", "failed-migration.md", "error The schema is not complete", func(t *testing.T, d *pgtest.DB) {
			exec(t, d.Pool, "delete from ojs.schema_hash")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			want := strings.ReplaceAll(c.finding, "%s", d.Name)
			found := func() (n int) {
				t.Helper()
				for _, line := range lines(t, d.Pool, "select severity || ' ' || finding from ojs.doctor() where runbook = $1", c.runbook) {
					if strings.HasPrefix(line, want) {
						n++
					}
				}
				return n
			}
			if n := found(); n != 0 {
				t.Errorf("it is found before")
			}
			c.arrange(t, d)
			if n := found(); n != 1 {
				t.Errorf("it is found %d times among\n  %s", n, strings.Join(lines(t, d.Pool, "select * from ojs.doctor()"), "\n  "))
			}
		})
	}
}

// A replication slot that nobody reads keeps the log until the disk is full.
func TestDoctorNamesAnAbandonedSlot(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPrivate(t, map[string]string{"max_wal_size": "32MB", "fsync": "off"})
	conn := connect(t, p.URL)
	found := func() []string {
		t.Helper()
		return list[string](t, conn, "select finding || ' ' || advice from ojs.doctor() where runbook = 'disk-full.md'")
	}
	exec(t, conn, "select pg_create_physical_replication_slot('gone', true)")
	if got := found(); len(got) != 0 {
		t.Errorf("a new slot is found: %q", got)
	}
	for range 8 {
		exec(t, conn, "select pg_logical_emit_message(false, 'x', repeat('x', 16000000))")
	}
	exec(t, conn, "checkpoint")
	if got := found(); len(got) != 1 || !strings.Contains(got[0], "slot gone, which keeps 1") || !strings.Contains(got[0],
		"pg_drop_replication_slot('gone')") {
		t.Errorf("the doctor says %q", got)
	}
	exec(t, conn, "select pg_drop_replication_slot('gone')")
	if got := found(); len(got) != 0 {
		t.Errorf("afterwards the doctor says %q", got)
	}
}

// After an idle hour the first change is not an hour late: the clock sleeps while nothing happens.
func TestTheDoctorIsQuietAfterAnIdleHour(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a')")
	exec(t, service, "select ojs.tick(p_token => 'one')")
	late := "select count(*) from ojs.doctor() f where f.topic = 'clock' and f.finding like 'Changes have waited%'"
	d.SetNow(noon.Add(time.Hour))
	exec(t, service, "select ojs.tick(p_token => 'one')")
	exec(t, service, "select ojs.enqueue('a')")
	if got := one[int](t, service, late); got != 0 {
		t.Error("a change of this moment is late")
	}
	d.SetNow(noon.Add(time.Hour + 31*time.Second))
	exec(t, d.Pool, "update ojs.duty set expires_at = ojs.now() + interval '1 minute'")
	if got := one[int](t, service, late); got != 1 {
		t.Error("a change that has waited for 31 seconds is not late")
	}
}
