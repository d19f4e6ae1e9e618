package db_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A commit that makes jobs available notifies each server where a worker waits for their queue, once, and no other server.
func TestNotifyReachesWhoWaits(t *testing.T) {
	t.Parallel()
	e := newEar(t)
	exec(t, e.acme, "select from ojs.enqueue('a')")
	e.expect("nobody waits")
	token := e.register(firstServer, "default")
	if again := e.register(firstServer, "default"); again != token {
		t.Error("registering again changed the token")
	}
	if n := one[int](t, e.service, `
		select count(*) filter (where queue = 'default' and token = $2 or queue <> 'default')
		from ojs.register_waiters($1, '{elsewhere,default,elsewhere}')`, firstServer, token); n != 2 {
		t.Errorf("registering several returned %d of 2 queues", n)
	}
	e.expectEnqueued(token)
	e.expectCommitted(token)

	other, mail := e.register(secondServer, "default"), e.register(secondServer, "mail")
	exec(t, e.acme, "insert into ojs.jobs (type, queue) values ('a', 'default'), ('b', 'mail')")
	e.expect("two servers, two queues", token, other, mail)
	exec(t, e.service, "select ojs.drop_waiter($1, 'default')", secondServer)
	exec(t, e.service, "select ojs.drop_waiter($1, 'mail')", secondServer)
	e.expectReturned(token)
	e.expectByTheClock(token)
}

const firstServer, secondServer = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"

// ear is a session that listens as servers do.
type ear struct {
	t             *testing.T
	d             *pgtest.DB
	acme, service *pgxpool.Pool
	conn          *pgx.Conn
}

func newEar(t *testing.T) *ear {
	t.Helper()
	d := pgtest.New(t)
	e := &ear{t: t, d: d, acme: d.As("acme"), service: d.Service(), conn: connect(t, d.ServiceURL)}
	exec(t, e.conn, "listen ojs_wake")
	return e
}

// register registers a server as waiting for a queue, and returns the token of its notifications.
func (e *ear) register(server, queue string) string {
	e.t.Helper()
	return one[string](e.t, e.service, "select token from ojs.register_waiters($1, array[$2])", server, queue)
}

// heard returns the notifications that came before a mark, which it sends. Notifications come in the order
// of commits.
func (e *ear) heard() []string {
	e.t.Helper()
	exec(e.t, e.d.Pool, "select pg_catalog.pg_notify('ojs_wake', 'mark')")
	var all []string
	for {
		n, err := e.conn.WaitForNotification(e.t.Context())
		if err != nil {
			e.t.Fatal(err)
		}
		if n.Payload == "mark" {
			return all
		}
		all = append(all, n.Payload)
	}
}

func (e *ear) expect(what string, want ...string) {
	e.t.Helper()
	got := e.heard()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		e.t.Errorf("%s: heard %q, want %q", what, got, want)
	}
}

// expectEnqueued enqueues jobs in a queue for which a server waits, and in one for which none does.
func (e *ear) expectEnqueued(token string) {
	e.t.Helper()
	for _, c := range []struct{ what, sql string }{
		{"enqueue", "select from ojs.enqueue('a')"},
		{"insert", "insert into ojs.jobs (type) values ('a'), ('b')"},
		{"batch", `
			select from ojs.enqueue_many('[{"type": "a", "args": []},
				{"type": "a", "args": [], "scheduled_at": "2999-01-01T00:00:00Z"}]')`},
	} {
		exec(e.t, e.acme, c.sql)
		e.expect(c.what, token)
	}
	for _, c := range []struct{ what, sql string }{
		{"another queue", "select from ojs.enqueue('a', p_queue => 'other')"},
		{"scheduled", "select from ojs.enqueue('a', p_scheduled_at => now() + interval '1 hour')"},
		{"pending", "select from ojs.enqueue('a', p_pending => true, p_id => '" + someID + "')"},
		{"refused", "select from ojs.enqueue('A')"},
	} {
		_, err := e.acme.Exec(e.t.Context(), c.sql)
		if failure := new(pgconn.PgError); err != nil && !errors.As(err, &failure) {
			e.t.Fatal(err)
		}
		e.expect(c.what)
	}
}

// expectCommitted enqueues in two transactions, one that commits and one that rolls back, and checks which
// of them notify.
func (e *ear) expectCommitted(token string) {
	e.t.Helper()
	tx := begin(e.t, e.acme)
	exec(e.t, tx, "select from ojs.enqueue('a')")
	e.expect("not committed")
	commit(e.t, tx)
	e.expect("committed", token)
	tx = begin(e.t, e.acme)
	exec(e.t, tx, "select from ojs.enqueue('a')")
	rollback(e.t, tx)
	e.expect("rolled back")
}

// expectReturned makes jobs available that exist already: a pending one, and jobs that workers give back.
func (e *ear) expectReturned(token string) {
	e.t.Helper()
	t, service := e.t, e.service
	exec(t, e.acme, "select from ojs.activate($1)", someID)
	e.expect("activated", token)
	held := oneJob(t, service, "ojs.fetch('{default}')")
	exec(t, service, `select from ojs.nack($1, '{"message": "x"}', p_requeue => true)`, held.ID)
	e.expect("requeued", token)
	held = oneJob(t, service, "ojs.fetch('{default}')")
	e.expect("fetched")
	exec(t, service, "select from ojs.release($1, $2)", held.ID, held.Lease)
	e.expect("given back", token)
	held = oneJob(t, service, "ojs.fetch('{default}')")
	exec(t, service, "select from ojs.ack($1)", held.ID)
	e.expect("acknowledged")
}

// expectByTheClock lets a scheduled job become due, a lease end and, last, the registrations lapse.
func (e *ear) expectByTheClock(token string) {
	e.t.Helper()
	t, service := e.t, e.service
	e.d.SetNow(time.Date(2990, 1, 1, 0, 0, 0, 0, time.UTC))
	e.register(firstServer, "default")
	oneJob(t, service, "ojs.fetch('{other}')")
	exec(t, service, "select ojs.tick()")
	e.expect("promoted", token)
	e.d.SetNow(time.Date(2990, 1, 1, 0, 0, 50, 0, time.UTC))
	e.register(firstServer, "other")
	exec(t, service, "select ojs.tick()")
	if got := e.heard(); len(got) != 1 {
		t.Errorf("after a lease ran out: heard %q", got)
	}
	// A registration that was not renewed is over.
	e.d.SetNow(time.Date(2990, 1, 1, 0, 3, 0, 0, time.UTC))
	exec(t, e.acme, "insert into ojs.jobs (type, queue) values ('a', 'default'), ('b', 'other')")
	e.expect("a lapsed registration")
}

// A session that listens and stays in a transaction keeps PostgreSQL's NOTIFY queue from being emptied. When the queue is more than half
// full, nothing is notified, so that all calls commit; the clock sleeps for a second at most. Afterwards commits notify again.
func TestNothingIsNotifiedIntoAFullQueue(t *testing.T) {
	t.Parallel()
	e := newEar(t)
	token := e.register(firstServer, "default")
	next := func() int {
		t.Helper()
		exec(t, e.service, "select ojs.tick(p_token => 'clock', p_stride_ms => 10000)")
		return one[int](t, e.service, "select next_in_ms from ojs.tick(p_token => 'clock', p_stride_ms => 10000)")
	}
	// 80 kB of 8 GB stand for half.
	exec(t, e.d.Pool, "create or replace function ojs._notify_full() returns boolean language sql as 'select "+
		"pg_notification_queue_usage() > 1e-5'")
	busy := connect(t, e.d.URL)
	exec(t, busy, "listen mine")
	exec(t, busy, "begin")
	exec(t, busy, "select")
	exec(t, e.d.Pool, "select pg_catalog.pg_notify('mine', repeat('x', 7000) || i) from generate_series(1, 100) i")
	for _, sql := range []string{
		"select ojs.enqueue('a', p_tenant => 'acme')",
		"insert into ojs.jobs (tenant_id, type) values ('acme', 'a'), ('acme', 'b')",
		"select ojs.enqueue('a', p_tenant => 'acme', p_scheduled_at => now() + interval '300 ms')",
		"select ojs.pause('default')", "select ojs.resume('default')", "select ojs.hold_dispatch()", "select ojs.resume_dispatch()",
		`select ojs.configure_limits('acme', '{"max_concurrency": 5, "max_stored_bytes": 1000000}')`,
		"select ojs.register_worker('w')", "select ojs.direct_worker('w', 'quiet')", "select ojs.direct_worker('w', 'running')",
		"select ojs.stand_down('clock')",
	} {
		exec(t, e.service, sql)
	}
	e.expect("the queue is full")
	if ms := next(); ms > 1000 {
		t.Errorf("the clock sleeps for %d ms", ms)
	}
	exec(t, e.d.Operator(), "select ojs.configure(p_retention => '8 days')")
	e.expect("the queue is full, and the retention changes")

	exec(t, busy, "rollback")
	e.d.Eventually("the queue is empty", "select not ojs._notify_full()")
	exec(t, e.service, "select ojs.enqueue('a', p_tenant => 'acme')")
	e.expect("the queue is empty", token)
}

// Each notification passes ojs._wake, which asks how full the queue is.
func TestOneFunctionNotifies(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	if got := lines(t, d.Pool, `
		select proname from pg_proc where pronamespace = 'ojs'::regnamespace and prosrc ~* 'pg_notify *\(|\mnotify +[a-z"]+
			*[,;]'`); !slices.Equal(
		got, []string{"_wake"}) {
		t.Errorf("%v notify", got)
	}
}

// The journal has one row per statement and line, whatever the number of jobs.
func TestWakeRows(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.Service())
	exec(t, tx, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'acme', 'a', 'q', i % 2 from generate_series(1, 10) i")
	exec(t, tx, `
		insert into ojs.jobs (tenant_id, type, queue, scheduled_at)
		select 'globex', 'a', 'q', case when i > 2 then '2999-01-01Z'::timestamptz end from generate_series(1, 5) i`)
	exec(t, tx, "insert into ojs.jobs (tenant_id, type) select 'none', 'a' where false")
	commit(t, tx)
	got := lines(t, d.Pool, `
		select tenant_id, queue, priority, from_state is null, to_state::text, jobs, lo is not null, hi - lo < 100
		from ojs.journal order by 1, 3, 5`)
	want := []string{
		"acme q 0 true available 5 true true", "acme q 1 true available 5 true true", "globex q 0 true available 2 true true",
		"globex q 0 true scheduled 3 false -",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the journal says\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if got := lines(t, d.Pool, `
		select kind, cardinality(ids), cardinality(tenant_ids) from ojs.timer`); !slices.Equal(got, []string{"due 3 3"}) {
		t.Errorf("the timers are %v", got)
	}
}

// Everything that a transaction does with jobs can be prepared for two-phase commit while workers wait, with ojs.notify off.
func TestTwoPhaseCommitWhileWorkersWait(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPrivate(t, map[string]string{"max_prepared_transactions": "2", "fsync": "off"})
	conn, ear := connect(t, p.URL), connect(t, p.URL)
	exec(t, ear, "listen ojs_wake")
	exec(t, conn, "select ojs.register_waiters($1, '{default}')", firstServer)
	exec(t, conn, "select ojs.tick(p_token => 'me', p_stride_ms => 10000)")
	for i, c := range []struct{ name, arrange, do string }{
		{"enqueue", "", "select from ojs.enqueue('a', p_tenant => 'acme')"},
		{"enqueue with options", "", "select from ojs.enqueue('a', p_tags => '{x}', p_tenant => 'acme')"},
		{"enqueue later", "", "select from ojs.enqueue('a', p_scheduled_at => ojs.now() + interval '1 second', p_tenant => 'acme')"},
		{
			"enqueue with a deadline", "",
			"select from ojs.enqueue('a', p_expires_at => ojs.now() + interval '1 second', p_tenant => 'acme')",
		},
		{"enqueue many", "", `select from ojs.enqueue_many('[{"type": "a"}, {"type": "b"}]', p_tenant => 'acme')`},
		{"enqueue once", "", `select from ojs.enqueue_once('k', '[{"type": "a"}]', p_tenant => 'acme')`},
		{"insert", "", "insert into ojs.jobs (type, tenant_id) values ('a', 'acme')"},
		{"insert two", "", "insert into ojs.jobs (type, tenant_id) values ('a', 'acme'), ('b', 'acme')"},
		{
			"activate", "select from ojs.enqueue('p', p_pending => true)",
			"select from ojs.activate((select id from ojs.jobs where state = 'pending'))",
		},
		{"fail", "select from ojs.enqueue('f')", `
			select ojs.nack(id, '{"message": "again"}', p_lease => lease) from ojs.fetch('{default}', 1)`},
		{"requeue", "select from ojs.enqueue('r')", "select ojs.release(id, lease) from ojs.fetch('{default}', 1)"},
		{"acknowledge", "select from ojs.enqueue('r')", "select ojs.ack(id, lease) from ojs.fetch('{default}', 1)"},
	} {
		if c.arrange != "" {
			exec(t, conn, c.arrange)
		}
		tx := connect(t, p.URL)
		if i == 0 {
			// Without the setting it fails, and PostgreSQL says why.
			exec(t, tx, "begin")
			exec(t, tx, c.do)
			if _, err := tx.Exec(t.Context(), "prepare transaction 'tpc'"); err == nil || !strings.Contains(err.Error(), "NOTIFY") {
				t.Errorf("%s without the setting: %v", c.name, err)
			}
		}
		exec(t, tx, "begin")
		exec(t, tx, "set local ojs.notify = 'off'")
		exec(t, tx, c.do)
		before := one[int](t, conn, "select ((select count(*) from ojs.journal) + (select count(*) from ojs.lease))::int")
		if _, err := tx.Exec(t.Context(), "prepare transaction 'tpc'"); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		exec(t, tx, "commit prepared 'tpc'")
		if after := one[int](t, conn,
			"select ((select count(*) from ojs.journal) + (select count(*) from ojs.lease))::int"); after == before {
			t.Errorf("%s has committed nothing", c.name)
		}
	}
	// Without the setting, commits notify as ever.
	exec(t, conn, "select from ojs.enqueue('a')")
	if _, err := ear.WaitForNotification(t.Context()); err != nil {
		t.Error(err)
	}
}
