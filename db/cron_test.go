package db_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// due makes a cron job due now and at the given distances from now, as if a server had planned it so.
func due(t *testing.T, q querier, name string, distances ...string) {
	t.Helper()
	times := make([]string, len(distances))
	for i, d := range distances {
		times[i] = fmt.Sprintf("ojs.now() + interval '%s'", d)
	}
	exec(t, q, `update ojs.cron set upcoming = '{}', look_at = null where name = $1`, name)
	exec(t, q, fmt.Sprintf(`
		select ojs.plan_cron(c.id, c.rev, array[%s]::timestamptz[]) from ojs.cron c
		where c.name = $1`, strings.Join(times, ", ")), name)
}

// hurry makes timers that are due soon due now.
func hurry(t *testing.T, q querier) {
	t.Helper()
	exec(t, q, "update ojs.timer set due_at = ojs.now() where kind = 'cron' and due_at < now() + interval '1 minute'")
	exec(t, q, "update ojs.cron set look_at = null")
}

func TestCronJobMakesOneJobPerDueTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Service(), `
		select ojs.put_cron('report', '0 9 * * *', 'report.make', '[{"b" :1,"a":2.50}]', 'Europe/Berlin', 'reports', 5,
			'{"k": "v"}', p_tags => array['daily'], p_tenant => 'acme')`)
	if got := one[bool](t, db.Pool, "select next_run_at is null and enabled and upcoming = '{}' from ojs.crons"); !got {
		t.Error("nobody has told yet when it fires, but something is known")
	}
	if got := one[int](t, db.Service(), "select (ojs.tick()).unplanned"); got != 1 {
		t.Errorf("%d cron jobs want a plan", got)
	}
	due(t, db.Pool, "report", "-1 second", "1 hour", "2 hours")
	tick(t, db.Service(), 1000)
	tick(t, db.Service(), 1000)
	if got := lines(t, db.Pool, `
		select tenant_id, queue, type, priority, args::text, state, visibility_timeout_ms, tags,
			meta - 'cron_scheduled_at' - 'cron_triggered_at' = '{"k": "v", "cron_name": "report"}'
		from ojs.job`); len(got) != 1 ||
		got[0] != `acme reports report.make 5 [{"b" :1,"a":2.50}] available 600000 [daily] true` {
		t.Errorf("made %q", got)
	}
	if got := one[bool](t, db.Pool, `
		select c.run_count = 1 and c.last_run_at = r.at and r.due_at = r.at - r.late and r.job_id = j.id and r.missed = 0
			and not r.manual and c.next_run_at > now() + interval '59 minutes'
			and j.meta ->> 'cron_scheduled_at' = to_char(r.due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
		from ojs.crons c, ojs.cron_runs r, ojs.job j`); !got {
		t.Error("the cron job and its history do not agree")
	}
	// The next time is later than any clock sleeps, but its timer is there.
	if got := one[int](t, db.Pool, `
		select count(*)::int from ojs.timer where kind = 'cron' and due_at > now() + interval '59 minutes'`); got != 1 {
		t.Errorf("%d timers", got)
	}
}

func TestNewlyPutCronJobWakesTheClock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := pgx.Connect(t.Context(), db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	exec(t, conn, "listen ojs_wake")
	exec(t, conn, "select ojs.tick(p_token => 'me', p_stride_ms => 10000)")
	exec(t, db.As("acme"), "select ojs.put_cron('c', '@hourly', 'a')")
	notice, err := conn.WaitForNotification(t.Context())
	if err != nil || notice.Payload != "me" {
		t.Fatalf("%v %v", notice, err)
	}
}

func TestMissedTimesAreMadeUpForOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, `
		select ojs.put_cron('once', '* * * * *', 'a'), ojs.put_cron('skip', '* * * * *', 'b', p_catch_up => 'skip'),
			ojs.put_cron('late', '* * * * *', 'c', p_catch_up => 'skip')`)
	due(t, db.Pool, "once", "-10 minutes", "-9 minutes", "-8 minutes", "1 hour", "2 hours")
	due(t, db.Pool, "skip", "-10 minutes", "-9 minutes", "1 hour", "2 hours")
	due(t, db.Pool, "late", "-2 minutes", "-30 seconds", "1 hour", "2 hours")
	tick(t, db.Pool, 1000)
	got := lines(t, db.Pool, `
		select name, missed, job_id is not null, reason, round(extract(epoch from late) / 30)::int from ojs.cron_runs
		order by name`)
	want := []string{"late 1 true - 1", "once 2 true - 16", "skip 1 false misfire 18"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q, want %q", got, want)
	}
	if got := list[string](t, db.Pool, "select type from ojs.job order by type"); strings.Join(got, "") != "ac" {
		t.Errorf("made %q", got)
	}
}

func TestOverlapPolicies(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	fire := func(name string) {
		t.Helper()
		due(t, db.Pool, name, "-1 millisecond", "1 hour", "2 hours")
		tick(t, db.Pool, 1000)
	}
	states := func(name string) string {
		return strings.Join(list[string](t, db.Pool, "select state::text from ojs.job where type = $1 order by id, created_at", name), " ")
	}
	for _, policy := range []string{"skip", "allow", "cancel_previous", "enqueue"} {
		name := strings.ReplaceAll(policy, "_", "-")
		exec(t, db.Pool, "select ojs.put_cron($1, '* * * * *', $2, p_queue => $1, p_overlap_policy => $2)", name, policy)
		fire(name)
		exec(t, db.Pool, "select ojs.fetch(array[$1])", name)
		fire(name)
	}
	for policy, want := range map[string]string{
		"skip": "active", "allow": "active available", "cancel_previous": "cancelled available", "enqueue": "active pending",
	} {
		if got := states(policy); got != want {
			t.Errorf("%s: %s, want %s", policy, got, want)
		}
	}
	if got := lines(t, db.Pool, `
		select r.reason, r.blocker = j.id, r.job_id from ojs.cron_runs r join ojs.job j on j.type = 'skip'
		where r.name = 'skip' and r.reason is not null`); len(got) != 1 || got[0] != "overlap_skip true -" {
		t.Errorf("history %q", got)
	}
	if got := one[int64](t, db.Pool, "select run_count from ojs.crons where name = 'skip'"); got != 1 {
		t.Errorf("skipping counted: %d", got)
	}
	// A job that waits for a worker or for its next attempt has not ended either.
	exec(t, db.Pool, "select ojs.nack(id, '{\"code\": \"x\", \"message\": \"y\"}') from ojs.job where type = 'skip'")
	fire("skip")
	if got := states("skip"); got != "retryable" {
		t.Errorf("skip: %s", got)
	}
	exec(t, db.Pool, "select ojs.cancel(id) from ojs.job where type = 'skip'")
	fire("skip")
	if got := states("skip"); got != "cancelled available" {
		t.Errorf("skip: %s", got)
	}

	// What waits runs one after the other.
	fire("enqueue")
	if got := states("enqueue"); got != "active pending pending" {
		t.Errorf("enqueue: %s", got)
	}
	for _, want := range []string{"completed available pending", "completed active pending", "completed completed available"} {
		if strings.Contains(want, "active") {
			exec(t, db.Pool, "select ojs.fetch(array['enqueue'])")
		} else {
			exec(t, db.Pool, "select ojs.ack(id) from ojs.job where type = 'enqueue' and state = 'active'")
			hurry(t, db.Pool)
			tick(t, db.Pool, 1000)
		}
		if got := states("enqueue"); got != want {
			t.Errorf("enqueue: %s, want %s", got, want)
		}
	}
}

func TestRunThatIsToBeCancelledAndIsLockedIsWaitedFor(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c', '* * * * *', 'a', p_overlap_policy => 'cancel_previous')")
	due(t, db.Pool, "c", "-1 millisecond", "1 hour", "2 hours")
	tick(t, db.Pool, 1000)
	exec(t, db.Pool, "select ojs.fetch(array['default'])")
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	exec(t, tx, "select ojs.ack(id) from ojs.job")
	due(t, db.Pool, "c", "-1 millisecond", "1 hour", "2 hours")
	tick(t, db.Pool, 1000)
	if got := one[int](t, db.Pool, "select count(*)::int from ojs.job"); got != 1 {
		t.Fatalf("%d jobs while the first is being acknowledged", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	hurry(t, db.Pool)
	tick(t, db.Pool, 1000)
	if got := list[string](t, db.Pool, "select state::text from ojs.job order by id"); strings.Join(got, " ") != "completed available" {
		t.Errorf("%q", got)
	}
}

func TestCronEventsAndTimesThatAreLeftOut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c', '30 2 * * *', 'a', p_timezone => 'Europe/Berlin', p_queue => 'q', p_tenant => 'acme')")
	exec(t, db.Pool, `
		select ojs.plan_cron(id, rev, array[ojs.now() - interval '1 millisecond', ojs.now() + interval '1 hour'], null,
			array[ojs.now() - interval '1 second', ojs.now() + interval '10 minutes'])
		from ojs.cron`)
	tick(t, db.Pool, 1000)
	due(t, db.Pool, "c", "-1 millisecond", "1 hour")
	tick(t, db.Pool, 1000)
	got := lines(t, db.As("acme"), `
		select type, queue, subject, data ->> 'cron_expr', data ->> 'timezone', data ->> 'job_type', data ->> 'reason',
			(data ->> 'job_id') is not null, (data ->> 'existing_job_id') is not null
		from ojs.events(array['cron.triggered', 'cron.skipped']) order by data ->> 'scheduled_at'`)
	want := []string{
		"cron.skipped q c 30 2 * * * Europe/Berlin a dst_skip false false",
		"cron.triggered q c 30 2 * * * Europe/Berlin a - true false",
		"cron.skipped q c 30 2 * * * Europe/Berlin a overlap_skip false true",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", got)
	}
	if got := lines(t, db.As("globex"), "select from ojs.events(array['cron.triggered', 'cron.skipped'])"); len(got) > 0 {
		t.Errorf("globex sees %q", got)
	}
	if got := one[int](t, db.Pool, "select cardinality(left_out) from ojs.cron"); got != 1 {
		t.Errorf("%d left", got)
	}
}

func TestTicksAtTheSameTimeFireOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c' || n, '* * * * * *', 'a', p_overlap_policy => 'allow') from generate_series(1, 20) n")
	for range 5 {
		exec(t, db.Pool, `update ojs.cron set upcoming = '{}', look_at = null`)
		exec(t, db.Pool, `
			select ojs.plan_cron(c.id, c.rev, array[ojs.now(), ojs.now() + interval '1 hour', ojs.now() + interval '2 hours'])
			from ojs.cron c`)
		var ticks sync.WaitGroup
		for range 8 {
			ticks.Go(func() {
				if _, err := db.Service().Exec(t.Context(), "select ojs.tick()"); err != nil {
					t.Error(err)
				}
			})
		}
		ticks.Wait()
	}
	hurry(t, db.Pool)
	tick(t, db.Pool, 1000)
	if got := lines(t, db.Pool, `
		select count(*), count(distinct (name, due_at)), count(distinct job_id), (select count(*) from ojs.job),
			(select min(run_count) from ojs.cron), (select max(run_count) from ojs.cron)
		from ojs.cron_run`); got[0] != "100 100 100 100 5 5" {
		t.Errorf("runs, due times, jobs: %s", got[0])
	}
}

func TestManyThatAreDueAtOnceTakeSeveralTicks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	now := noon
	db.SetNow(now)
	exec(t, db.Pool, "select ojs.put_cron('c' || n, '@daily', 'a') from generate_series(1, 450) n")
	exec(t, db.Pool, "delete from ojs.timer")
	exec(t, db.Pool, "update ojs.cron set look_at = null")
	exec(t, db.Pool, "select ojs.plan_cron(id, rev, array[ojs.now(), ojs.now() + interval '1 day']) from ojs.cron")
	for before := 0; before < 450; {
		now = now.Add(100 * time.Millisecond)
		db.SetNow(now)
		tick(t, db.Pool, 1000)
		after := one[int](t, db.Pool, "select count(*)::int from ojs.cron_run")
		if after-before > 100 {
			t.Errorf("a tick fired %d", after-before)
		}
		before = after
	}
	if got := one[int](t, db.Pool, "select count(*)::int from ojs.job"); got != 450 {
		t.Errorf("%d jobs are made", got)
	}
	if got := one[int](t, db.Pool, "select count(*)::int from ojs.timer where due_at <= ojs.now()"); got != 0 {
		t.Errorf("%d timers are left", got)
	}
}

// However many cron jobs of one tenant are due, each tick fires some of every tenant, and other due work does not wait.
func TestTenantsTakeTurnsAtBeingFired(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.put_cron('c' || n, '@daily', 'a', p_tenant => 'busy') from generate_series(1, 300) n")
	exec(t, service, "select ojs.put_cron('c' || n, '@daily', 'a', p_tenant => 'small' || n) from generate_series(1, 5) n")
	exec(t, service, "select ojs.enqueue('b', p_queue => 'other', p_scheduled_at => ojs.now() + interval '1 second', p_tenant => 'small1')")
	exec(t, d.Pool, "delete from ojs.timer where kind = 'cron'")
	exec(t, d.Pool, "update ojs.cron set look_at = null")
	exec(t, d.Pool, "select ojs.plan_cron(id, rev, array[ojs.now(), ojs.now() + interval '1 day']) from ojs.cron order by tenant_id")
	now := noon.Add(2 * time.Second)
	d.SetNow(now)
	if got := tick(t, service, 1000); got != "1 0" {
		t.Errorf("promoted and reaped %s beside cron jobs", got)
	}
	fired := lines(t, d.Pool, "select tenant_id, least(count(*), 2) from ojs.cron_run group by 1 order by 1")
	if len(fired) != 6 {
		t.Errorf("after one tick, fired are %q", fired)
	}
	for before := 0; before < 305; {
		now = now.Add(100 * time.Millisecond)
		d.SetNow(now)
		tick(t, service, 1000)
		after := one[int](t, d.Pool, "select count(*)::int from ojs.cron_run")
		if after == before {
			t.Fatalf("%d of 305 are fired and no more", after)
		}
		before = after
	}
	if got := one[int](t, d.Pool, "select count(distinct (tenant_id, name))::int from ojs.cron_run"); got != 305 {
		t.Errorf("%d are fired", got)
	}
}

// Whatever came of it, what a cron job did longest ago is forgotten.
func TestHistoryKeepsTheLatestThousand(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Service(), "select ojs.put_cron('c', '@daily', 'a', p_tenant => 'acme')")
	exec(t, db.Service(), "select ojs.trigger_cron('c')")
	exec(t, db.Pool, `
		insert into ojs.cron_run (tenant_id, name, due_at, reason)
		select 'acme', 'c', now() - n * interval '1 hour', 'overlap_skip' from generate_series(1, 2500) n`)
	exec(t, db.Pool, `
		insert into ojs.cron_run (tenant_id, name, due_at, reason)
		select 'acme', 'other', now() - n * interval '1 hour', 'overlap_skip' from generate_series(1, 2500) n`)
	for range 110 {
		due(t, db.Pool, "c", "-1 millisecond", "1 hour", "2 hours")
		tick(t, db.Pool, 1000)
	}
	// Those that it did since, and the latest of those before.
	if got := one[bool](t, db.Pool, `
		select count(*) between 1000 and 1111 and count(*) filter (where due_at > now() - interval '5 minutes') = 111
			and min(due_at) > now() - interval '1112 hours'
		from ojs.cron_run where name = 'c'`); !got {
		t.Errorf("left are %q", lines(t, db.Pool, "select reason, count(*), min(due_at) from ojs.cron_run where name = 'c' group by 1"))
	}
	if got := one[int](t, db.Pool, "select count(*)::int from ojs.cron_run where name = 'other'"); got != 2500 {
		t.Errorf("of another's history %d are left", got)
	}
}

// With allow it does not matter what runs, but that is known when the policy changes.
func TestRunsBesideEachOtherAreKnown(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.put_cron('c', '@daily', 'a', p_overlap_policy => 'allow', p_tenant => 'acme')")
	exec(t, service, "select ojs.trigger_cron('c')")
	exec(t, service, "select ojs.fetch('{default}', 1, 'slow')")
	for n := range 250 {
		d.SetNow(noon.Add(time.Duration(n+1) * time.Millisecond))
		exec(t, service, "select ojs.trigger_cron('c')")
		exec(t, service, "select ojs.ack(id) from ojs.fetch('{default}', 1, 'fast')")
	}
	if got := one[bool](t, d.Pool, "select cardinality(open) <= 100 from ojs.cron"); !got {
		t.Error("what has ended is kept")
	}
	exec(t, service, "select ojs.configure_cron('c', p_overlap_policy => 'skip')")
	d.SetNow(noon.Add(time.Second))
	refused(t, service, "OJ409", "select ojs.trigger_cron('c')")
	exec(t, service, "select ojs.cancel(id) from ojs.jobs where state = 'active'")
	exec(t, service, "select ojs.trigger_cron('c')")
}

func TestChangingACronJobThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c', '@daily', 'a')")
	tx := begin(t, db.Pool)
	exec(t, tx, "select ojs.delete_cron('c')")
	failed := make(chan error, 1)
	go func() {
		_, err := db.Pool.Exec(t.Context(), "select ojs.configure_cron('c', false)")
		failed <- err
	}()
	db.BlockedSessions(1)
	commit(t, tx)
	sqlstate(t, <-failed, "OJ404", "to change it")
}

func TestSessionThatDiesWhileItFiresHasFiredNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c', '* * * * *', 'a')")
	due(t, db.Pool, "c", "-1 millisecond", "1 hour", "2 hours")
	conn, err := pgx.Connect(t.Context(), db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	exec(t, conn, "begin")
	exec(t, conn, "select ojs.tick()")
	tick(t, db.Pool, 1000) // has to leave it alone
	if got := one[int](t, conn, "select count(*)::int from ojs.job"); got != 1 {
		t.Fatalf("the session that fires sees %d jobs", got)
	}
	exec(t, db.Pool, "select pg_terminate_backend($1, 10000)", int32(conn.PgConn().PID()))
	if got := one[int](t, db.Pool, "select count(*)::int from ojs.job"); got != 0 {
		t.Fatalf("%d jobs of a session that died", got)
	}
	hurry(t, db.Pool)
	tick(t, db.Pool, 1000)
	if got := one[int](t, db.Pool, "select count(*)::int from ojs.job"); got != 1 {
		t.Errorf("%d jobs", got)
	}
}

func TestCronJobsAreTheTenantsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	acme, globex := db.As("acme"), db.As("globex")
	exec(t, acme, "select ojs.put_cron('c', '@hourly', 'a')")
	exec(t, globex, "select ojs.put_cron('c', '@daily', 'b'), ojs.put_cron('g', '@daily', 'b')")
	for _, sql := range []string{
		"select ojs.cron_info('%s')", "select ojs.delete_cron('%s')", "select ojs.trigger_cron('%s')",
		"select ojs.configure_cron('%s', false)",
	} {
		// A cron job of another tenant gets the answer for one that does not exist.
		for _, name := range []string{"g", "nothing"} {
			f := refused(t, acme, "OJ404", fmt.Sprintf(sql, name))
			if want := "cron job " + name + " does not exist"; !strings.Contains(f.Message, want) {
				t.Errorf("%s of %s: %s, want %s", sql, name, f.Message, want)
			}
		}
	}
	refused(t, acme, "OJ403", "select ojs.put_cron('c', '@hourly', 'a', p_tenant => 'globex')")
	refused(t, acme, "OJ403", "select ojs.trigger_cron('g', 'globex')")
	refused(t, acme, "OJ405 OJ403", `select ojs.put_cron('c', '@hourly', 'a', p_meta => '{"tenant_id": "globex"}')`)
	refused(t, acme, "42501", "select ojs.plan_cron(gen_random_uuid(), 1, '{}')")
	refused(t, acme, "42501", "select ojs.unplanned_crons()")
	refused(t, acme, "42501", "update ojs.cron set enabled = false")
	refused(t, db.Service(), "OJ411", "select ojs.cron_info('c')")
	if got := lines(t, acme, "select tenant_id, name from ojs.crons"); len(got) != 1 || got[0] != "acme c" {
		t.Errorf("acme sees %q", got)
	}
	exec(t, acme, "select ojs.trigger_cron('c')")
	exec(t, db.Service(), "select ojs.trigger_cron('c', 'globex')")
	if got := lines(t, db.Pool, "select tenant_id, type from ojs.job order by 1"); strings.Join(got, "|") != "acme a|globex b" {
		t.Errorf("made %q", got)
	}
	if got := lines(t, globex, "select tenant_id, manual from ojs.cron_runs"); len(got) != 1 || got[0] != "globex true" {
		t.Errorf("globex sees %q", got)
	}
	exec(t, acme, "select ojs.delete_cron('c')")
	if got := lines(t, db.Service(), "select tenant_id, name from ojs.crons order by 2"); strings.Join(got, "|") != "globex c|globex g" {
		t.Errorf("left %q", got)
	}
	if got := lines(t, db.Service(), "select tenant_id from ojs.cron_runs"); strings.Join(got, "|") != "globex" {
		t.Errorf("history left %q", got)
	}
}

func TestPausedCronJobDoesNotFireAndARegistrationKeepsThePause(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c', '* * * * *', 'a')")
	due(t, db.Pool, "c", "-1 millisecond", "1 hour", "2 hours")
	exec(t, db.Pool, "select ojs.configure_cron('c', p_enabled => false)")
	exec(t, db.Pool, "select ojs.tick()")
	exec(t, db.Pool, "select ojs.put_cron('c', '* * * * *', 'b')")
	tick(t, db.Pool, 1000)
	if got := lines(t, db.Pool, "select enabled, next_run_at, type, run_count from ojs.crons"); got[0] != "false - b 0" {
		t.Errorf("%q", got)
	}
	// By hand it can be triggered all the same.
	exec(t, db.Pool, "select ojs.trigger_cron('c')")
	f := refused(t, db.Pool, "OJ409", "select ojs.trigger_cron('c')")
	if d := detail(t, f); d["reason"] != "overlap_skip" || d["job_id"] != one[string](t, db.Pool, "select id::text from ojs.job") {
		t.Errorf("refused with %v", d)
	}
	exec(t, db.Pool, "select ojs.configure_cron('c', p_enabled => true)")
	if got := one[int](t, db.Service(), "select (ojs.tick()).unplanned"); got != 1 {
		t.Errorf("%d want a plan", got)
	}
}

func TestRegisteringAgainLeavesTheScheduleAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c', '@every 1h', 'a')")
	due(t, db.Pool, "c", "1 hour", "2 hours")
	before := one[string](t, db.Pool, "select (upcoming, anchor_at, created_at, run_count)::text from ojs.cron")
	exec(t, db.Pool, "select ojs.put_cron('c', '@every 1h', 'b')")
	if after := one[string](t, db.Pool, "select (upcoming, anchor_at, created_at, run_count)::text from ojs.cron"); after != before {
		t.Errorf("%s, before %s", after, before)
	}
	exec(t, db.Pool, "select ojs.put_cron('c', '@every 2h', 'b')")
	if got := lines(t, db.Pool, "select upcoming, anchor_at > created_at from ojs.cron"); got[0] != "[] true" {
		t.Errorf("%q", got)
	}
}

func TestRefusedRunIsSkippedAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('bad', '* * * * *', 'a'), ojs.put_cron('good', '* * * * *', 'b')")
	// A limit, say, that did not hold when it was registered.
	exec(t, db.Pool, "update ojs.cron set type = 'NOT A TYPE' where name = 'bad'")
	due(t, db.Pool, "bad", "-1 millisecond", "1 hour", "2 hours")
	due(t, db.Pool, "good", "-1 millisecond", "1 hour", "2 hours")
	tick(t, db.Pool, 1000)
	if got := lines(t, db.Pool, `
		select name, job_id is null, reason, message like 'type must%' from ojs.cron_runs
		order by name`); strings.Join(got, "|") != "bad true refused true|good false - -" {
		t.Errorf("%q", got)
	}
	if got := lines(t, db.Pool, `
		select name, run_count, next_run_at > now() from ojs.crons order by name`); strings.Join(got, "|") != "bad 0 true|good 1 true" {
		t.Errorf("%q", got)
	}
}

func TestPlanOfAnotherRevisionIsIgnored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db.Pool, "select ojs.put_cron('c', '* * * * *', 'a')")
	for range 2 {
		exec(t, db.Service(), "select ojs.plan_cron(id, 1, array[now() + interval '1 minute', now() + interval '2 minutes']) from ojs.cron")
	}
	if got := one[int](t, db.Pool, "select cardinality(upcoming) from ojs.cron"); got != 2 {
		t.Errorf("%d times", got)
	}
	exec(t, db.Pool, "select ojs.put_cron('d', '61 * * * *', 'a')")
	exec(t, db.Service(), "select ojs.plan_cron(id, rev, '{}', 'expression is not understood') from ojs.cron where name = 'd'")
	if got := lines(t, db.Pool, `
		select error, next_run_at, enabled from ojs.crons where name = 'd'`); got[0] != "expression is not understood - true" {
		t.Errorf("%q", got)
	}
	if got := one[int](t, db.Service(), "select count(*)::int from ojs.unplanned_crons()"); got != 0 {
		t.Errorf("%d want a plan", got)
	}
	exec(t, db.Pool, "select ojs.configure_cron('d', p_expression => '1 * * * *')")
	if got := one[int](t, db.Service(), "select count(*)::int from ojs.unplanned_crons()"); got != 1 {
		t.Errorf("%d want a plan after the correction", got)
	}
}

func TestCronJobsThatAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, c := range []struct{ sqlstate, field, call string }{
		{"OJ400", "name", "'Bad Name', '@daily', 'a'"},
		{"OJ400", "name", "null, '@daily', 'a'"},
		{"OJ400", "name", "'-a', '@daily', 'a'"},
		{"OJ400", "name", "repeat('a', 256), '@daily', 'a'"},
		{"OJ400", "expression", "'a', '', 'a'"},
		{"OJ400", "expression", "'a', null, 'a'"},
		{"OJ400", "expression", "'a', '* * * *', 'a'"},
		{"OJ400", "expression", "'a', '* * * * * * *', 'a'"},
		{"OJ400", "expression", "'a', 'TZ=UTC * * * * *', 'a'"},
		{"OJ400", "expression", "'a', '@never', 'a'"},
		{"OJ400", "expression", "'a', '@every 1y', 'a'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => '+05:00'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'UTC+5'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'EST'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'EST5EDT'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'Mars/Olympus'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'Foo/Bar+5'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'FOO/BAR+5'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'Etc/GMT+40'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => 'EUROPE/BERLIN'"},
		{"OJ400", "timezone", "'a', '@daily', 'a', p_timezone => null"},
		{"OJ400", "overlap_policy", "'a', '@daily', 'a', p_overlap_policy => 'queue'"},
		{"OJ400", "catch_up", "'a', '@daily', 'a', p_catch_up => 'all'"},
		{"OJ400", "description", "'a', '@daily', 'a', p_description => repeat('a', 1001)"},
		{"OJ400", "type", "'a', '@daily', 'BAD TYPE'"},
		{"OJ400", "args", "'a', '@daily', 'a', '{}'"},
		{"OJ400", "meta", "'a', '@daily', 'a', p_meta => '[]'"},
		{"OJ400", "queue", "'a', '@daily', 'a', p_queue => 'BAD QUEUE'"},
		{"OJ422", "retry.max_attempts", `'a', '@daily', 'a', p_retry => '{"max_attempts": -1}'`},
		{"OJ400", "visibility_timeout_ms", "'a', '@daily', 'a', p_visibility_timeout_ms => 1"},
	} {
		f := refused(t, db.Service(), c.sqlstate, "select ojs.put_cron("+c.call+")")
		if d := detail(t, f); d["field"] != c.field {
			t.Errorf("%s: field %v, want %s (%s)", c.call, d["field"], c.field, f.Message)
		}
	}
	tx := begin(t, db.Pool)
	exec(t, tx, "set timezone = 'Asia/Kolkata'")
	for _, zone := range []string{"UTC", "Etc/GMT+5", "America/Port-au-Prince", "America/Argentina/Buenos_Aires"} {
		exec(t, tx, "select ojs.put_cron('z', '@daily', 'a', p_timezone => $1)", zone)
	}
	if got := one[string](t, tx, "show timezone"); got != "Asia/Kolkata" {
		t.Errorf("the session's time zone has become %s", got)
	}
	rollback(t, tx)
	exec(t, db.Service(), "select ojs.put_cron('c' || n, '@daily', 'a', p_tenant => 'full') from generate_series(1, 1000) n")
	f := refused(t, db.Service(), "OJ422", "select ojs.put_cron('one-more', '@daily', 'a', p_tenant => 'full')")
	if d := detail(t, f); d["limit"] != float64(1000) {
		t.Errorf("%s %v", f.Message, d)
	}
	exec(t, db.Service(), "select ojs.put_cron('c7', '@hourly', 'a', p_tenant => 'full')")
}

// Runs that wait for the one before are called up although the overlap policy has changed and many have been made since.
func TestRunsThatWaitAreNotForgotten(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.put_cron('c', '0 0 1 1 *', 'a', p_overlap_policy => 'enqueue', p_tenant => 'acme')")
	now := noon
	trigger := func(times int) {
		t.Helper()
		for range times {
			now = now.Add(time.Millisecond)
			d.SetNow(now)
			exec(t, service, "select ojs.trigger_cron('c')")
		}
	}
	trigger(3)
	if got := refused(t, service, "OJ409", "select ojs.trigger_cron('c')").Message; !strings.Contains(got, "the clock was set back") {
		t.Errorf("triggered at the same time again: %s", got)
	}
	exec(t, service, "select ojs.configure_cron('c', p_overlap_policy => 'allow')")
	trigger(110)
	for range 4 {
		now = now.Add(time.Second)
		d.SetNow(now)
		tick(t, service, 1000)
		exec(t, service, "select ojs.ack(id) from ojs.fetch('{default}', 1000)")
	}
	if got := lines(t, service, "select state, count(*) from ojs.job group by 1"); !slices.Equal(got, []string{"completed 113"}) {
		t.Errorf("of 113 runs are %q", got)
	}
}
