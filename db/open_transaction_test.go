package db_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const everyID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

// A tenant's transaction that stays open must not stop the clock, nor the acknowledgements of others that travel with its own. All of this
// runs in sessions that give up waiting for a lock after two seconds.
func TestOpenTransactionsOfATenantStopNobodyElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *pgtest.DB){
		"the id of a dead letter is used again while a rule retries it":     replayBesideAnEnqueue,
		"a lease ends while a dead letter with the id is being deleted":     reapBesideAPurge,
		"an attempt fails while a dead letter with the id is being deleted": settleBesideAPurge,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, pgtest.New(t))
		})
	}
}

func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// ticks calls ojs.tick as a server does, without pauses.
func ticks(t *testing.T, d *pgtest.DB) {
	t.Helper()
	tx := begin(t, d.Service())
	exec(t, tx, "set local lock_timeout = '2s'")
	tick(t, tx, 1000)
	commit(t, tx)
}

func replayBesideAnEnqueue(t *testing.T, d *pgtest.DB) {
	d.SetNow(noon)
	used := bury(t, d, "acme", "q", "Timeout", 2)
	other := bury(t, d, "globex", "q", "Timeout", 2)
	exec(t, d.Pool, "select ojs._put_aside($1)", everyID)
	exec(t, d.Operator(), "select ojs.set_replay_rule('r', '1 second', 1000)")
	for !one[bool](t, d.Pool, "select caught_up from ojs.replay_rule") {
		ticks(t, d)
	}
	producer := begin(t, d.As("acme"))
	exec(t, producer, "select from ojs.enqueue('again', p_queue => 'other', p_id => $1)", used[0])
	d.SetNow(noon.Add(time.Minute))
	ticks(t, d)
	available := func(ids []string) int {
		return one[int](t, d.Pool, "select count(*) from ojs.job where id = any ($1) and state = 'available'", ids)
	}
	if got := available(other); got != 2 {
		t.Errorf("%d of the other tenant's 2 jobs are retried", got)
	}
	rollback(t, producer)
	d.SetNow(noon.Add(2 * time.Minute))
	ticks(t, d)
	if got := available(used); got != 2 {
		t.Errorf("%d of the tenant's own 2 jobs are retried when it has let go", got)
	}
}

// twin makes a job that is active in its last attempt and has the id of an older dead letter, which its
// tenant is deleting in an open transaction.
func twin(t *testing.T, d *pgtest.DB) (id string, letGo func()) {
	t.Helper()
	d.SetNow(noon)
	id = bury(t, d, "acme", "q", "Timeout", 1)[0]
	exec(t, d.Pool, "select ojs._put_aside($1)", everyID)
	purge := begin(t, d.As("acme"))
	if got := one[int](t, purge, "select ojs.purge_dead_letters()"); got != 1 {
		t.Fatalf("%d dead letters are deleted", got)
	}
	exec(t, d.Service(), "select from ojs.enqueue('again', p_queue => 'q', p_retry => $2, p_id => $1, p_tenant => 'acme')", id, deadPolicy)
	exec(t, d.Service(), "select from ojs.enqueue('b', p_queue => 'q', p_retry => $1, p_tenant => 'globex')", deadPolicy)
	if got := one[int](t, d.Service(), "select count(*) from ojs.fetch('{q}', 2)"); got != 2 {
		t.Fatalf("%d jobs are handed out", got)
	}
	return id, func() { commit(t, purge) }
}

func reapBesideAPurge(t *testing.T, d *pgtest.DB) {
	id, letGo := twin(t, d)
	d.SetNow(noon.Add(time.Minute))
	ticks(t, d)
	states := func() []string { return lines(t, d.Pool, "select tenant_id, state from ojs.job order by 1") }
	equal(t, "while the dead letter is being deleted", states(), "acme active", "globex discarded")
	letGo()
	d.SetNow(noon.Add(2 * time.Minute))
	ticks(t, d)
	equal(t, "afterwards", states(), "acme discarded", "globex discarded")
	equal(t, "the dead letter", list[string](t, d.Pool, "select id::text from ojs.dead_letter where tenant_id = 'acme' and not aside"), id)
}

func settleBesideAPurge(t *testing.T, d *pgtest.DB) {
	_, letGo := twin(t, d)
	settle := func() []string {
		tx := begin(t, d.Service())
		defer commit(t, tx)
		exec(t, tx, "set local lock_timeout = '2s'")
		return lines(t, tx, `
			select s.tenant_id, s.state, s.sqlstate
			from ojs.settle((select json_agg(json_build_object('id', id, 'tenant', tenant_id, 'error', json_build_object('message', 'm'))
				order by tenant_id) from ojs.job where state = 'active')) s`)
	}
	equal(t, "while the dead letter is being deleted", settle(), "- - 55P03", "globex discarded -")
	letGo()
	equal(t, "afterwards", settle(), "acme discarded -")
}

// Where a logical copy begins while dispatch is held, producers' transactions catch up with the stored ids before anything is dispatched.
func TestACopyBeginsAnewWhileDispatchIsHeld(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueueFor(t, service, "q", "acme", 5)
	tick(t, service, 1000)
	exec(t, d.Pool, `update ojs.fold set snapshot = '900000000000:900000000000:'`)
	exec(t, d.Pool, `update ojs.tally_mark set snapshot = '900000000000:900000000000:'`)
	exec(t, d.Pool, `update ojs.clock_mark set seen = '900000000000:900000000000:', lease_at = 'infinity'`)
	exec(t, service, "select ojs.hold_dispatch()")
	tick(t, service, 1000)
	for _, mark := range []string{"snapshot from ojs.fold", "snapshot from ojs.tally_mark", "seen from ojs.clock_mark"} {
		if one[bool](t, d.Pool, "select pg_snapshot_xmax(m.s) > pg_snapshot_xmax(pg_current_snapshot()) from (select "+
			mark+" order by rev desc limit 1) m(s)") {
			t.Errorf("%s is still that of the other cluster", mark)
		}
	}
	exec(t, service, "select ojs.resume_dispatch()")
	if got := one[int](t, service, "select count(*) from ojs.fetch('{q}', 10)"); got != 5 {
		t.Errorf("%d jobs, want 5", got)
	}
}

// A session that changes the settings may take long, and decisions go on.
func TestAHoldWaitsForTheSettingsOutsideTheLane(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueueFor(t, service, "q", "acme", 5)
	settings := begin(t, d.Operator())
	exec(t, settings, "select ojs.configure(p_timeout_ms => 60000)")
	conn := connect(t, d.ServiceURL)
	held := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "select ojs.hold_dispatch()")
		held <- err
	}()
	d.Blocked(conn.PgConn().PID())
	tx := begin(t, d.Pool)
	if !one[bool](t, tx, "select exists (select from ojs.lane where lane = 0 for update skip locked)") {
		t.Error("the lane is held")
	}
	rollback(t, tx)
	commit(t, settings)
	if err := <-held; err != nil {
		t.Error(err)
	}
}

// A new session whose transaction has enqueued jobs takes nothing in without the lane: the session that holds it would wait for that
// transaction.
func TestANewSessionWithJobsOfItsOwn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	decides := begin(t, d.Service())
	exec(t, decides, "set local lock_timeout = '5s'")
	exec(t, decides, "select ojs.configure_tenant('c', 2)")
	fresh, err := connect(t, d.ServiceURL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tx := range []pgx.Tx{fresh, decides} {
		exec(t, tx, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
		if got := one[int](t, tx, "select count(*) from ojs.fetch('{q}', 9)"); got != 1 {
			t.Errorf("of its own job it gets %d", got)
		}
	}
	commit(t, fresh)
	commit(t, decides)
	if got := one[int](t, d.Service(), "select count(*) from ojs.fetch('{q}', 9)"); got != 0 {
		t.Errorf("%d jobs are left", got)
	}
	tick(t, d.Service(), 1000)
	ringsAgree(t, d.Pool)
}

// Rules for new jobs act at once, whatever other transactions have done and not committed. A transaction that has enqueued before commits
// what it has.
func TestRulesForNewJobsActBesideOpenTransactions(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	exec(t, d.Service(), "select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 3)")
	producer, reader, worker := begin(t, d.As("acme")), begin(t, d.As("acme")), begin(t, d.Service())
	exec(t, producer, "select ojs.enqueue('late', p_priority => 5)")
	exec(t, producer, "insert into ojs.jobs (type, priority) values ('late', 5)")
	exec(t, reader, "select count(*) from ojs.jobs")
	exec(t, worker, "select ojs.fetch('{default}')")
	// asked is what a producer is told, by each of three ways to enqueue.
	asked := func(tenant string, priority int) []string {
		var all []string
		for _, sql := range []string{
			"select concat_ws(' ', priority, max_attempts) from ojs.enqueue('a', p_priority => $2, p_tenant => $1)",
			`select concat_ws(' ', priority, max_attempts) from ojs.enqueue_many(
				jsonb_build_array(jsonb_build_object('type', 'a', 'args', '[]'::jsonb, 'priority', $2::int)), $1)`,
			"insert into ojs.jobs (type, tenant_id, priority) values ('a', $1, $2) returning concat_ws(' ', priority, max_attempts)",
		} {
			var got string
			if err := d.Service().QueryRow(t.Context(), sql, tenant, priority).Scan(&got); err != nil {
				var failure *pgconn.PgError
				if !errors.As(err, &failure) {
					t.Fatal(err)
				}
				got = failure.Code
			}
			all = append(all, got)
		}
		return slices.Compact(all)
	}
	for _, c := range []struct{ sql, want string }{
		{"select ojs.suspend_tenant('acme')", "OJ406"},
		{"select ojs.resume_tenant('acme')", "5 3"},
		{"select ojs.configure_tenant('acme', p_max_priority => 2)", "OJ422"},
		{"select ojs.configure_tenant('acme', p_over_priority => 'clamp')", "2 3"},
		{"select ojs.configure_tenant('acme', p_max_priority => 100)", "5 3"},
		{`select ojs.configure_queue('default', '{"default_retry": {"max_attempts": 7}}')`, "5 7"},
		{`select ojs.configure_queue('default', '{"default_retry": null}')`, "5 3"},
		{`select ojs.configure(p_default_retry => '{"max_attempts": 9}')`, "5 9"},
		{`select ojs.configure(p_default_retry => '{}')`, "5 3"},
		{"select ojs.configure(p_unknown_tenants => 'refuse')", "5 3"},
	} {
		tx := begin(t, d.Operator())
		exec(t, tx, "set local lock_timeout = '1s'")
		exec(t, tx, c.sql)
		commit(t, tx)
		equal(t, c.sql, asked("acme", 5), c.want)
	}
	equal(t, "an unknown tenant", asked("nobody", 0), "OJ407")
	for _, tx := range []pgx.Tx{producer, reader, worker} {
		commit(t, tx)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where type = 'late' and priority = 5"); got != 2 {
		t.Errorf("%d of 2 jobs were committed", got)
	}
}
