package db_test

import (
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestWhoIsOnDuty(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	backend := func() (pid int, end func()) {
		conn := connect(t, d.ServiceURL)
		pid = one[int](t, conn, "select pg_backend_pid()")
		return pid, func() {
			_ = conn.Close(t.Context())
			d.Eventually("the session is gone", "select not exists (select from pg_stat_activity where pid = $1)", pid)
		}
	}
	onDuty := func(when, token string, listens any, want bool) {
		t.Helper()
		if got := one[bool](t, service, "select on_duty from ojs.tick(1000, $1, 0, $2)", token, listens); got != want {
			t.Errorf("%s: %s on duty is %v, want %v", when, token, got, want)
		}
	}
	a, endA := backend()
	b, _ := backend()
	at := func(seconds float64) { d.SetNow(noon.Add(time.Duration(seconds * float64(time.Second)))) }

	at(0)
	onDuty("nobody was", "a", a, true)
	onDuty("a is", "b", b, false)
	at(29)
	onDuty("a hangs", "b", b, false)
	onDuty("a is back", "a", a, true)
	at(58)
	onDuty("a has called in between", "b", b, false)
	at(59)
	onDuty("a hangs for too long", "b", b, true)
	onDuty("b is", "a", a, false)

	exec(t, service, "select ojs.stand_down('a')")
	onDuty("a stood down from nothing", "a", a, false)
	if !one[bool](t, service, "select ojs.stand_down('b')") {
		t.Error("b was not on duty")
	}
	onDuty("b stood down", "a", a, true)
	endA()
	onDuty("a's session has ended", "b", b, true)

	// Another session may get the process id.
	exec(t, d.Pool, "update ojs.duty set session = 'another'")
	onDuty("b's session is another's now", "a", nil, true)
	at(60)
	onDuty("a has none", "b", b, false)
	at(61)
	onDuty("a has none and does not renew", "b", b, true)
	onDuty("b is", "c", 0, false)

	at(-3600)
	onDuty("the clock was set back", "c", b, true)
	if got := one[int](t, d.Pool, "select count(*) from ojs.duty"); got != 1 {
		t.Errorf("there are %d rows", got)
	}
}

// A server that is not on duty does nothing, is not woken, and writes nothing; without a token the work is done all the same.
func TestTickOffDuty(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	exec(t, service, "select from ojs.enqueue('a', p_scheduled_at => ojs.now() + interval '1 second')")
	exec(t, service, "select from ojs.tick(1000, 'a', 10000, pg_backend_pid())")
	exec(t, d.Pool, "insert into ojs.sleeper (token, stride, expires_at) values ('b', '1 second', ojs.now() + interval '1 minute')")
	d.SetNow(noon.Add(2 * time.Second))
	// Its session may have gone back to the pool; the lease holds anyway if it is there.
	conn := connect(t, d.ServiceURL)
	exec(t, conn, "select from ojs.tick(1000, 'a', 10000, pg_backend_pid())")
	exec(t, service, "select from ojs.enqueue('a', p_scheduled_at => ojs.now() + interval '1 second')")
	d.SetNow(noon.Add(4 * time.Second))
	if got := lines(t, service, "select * from ojs.tick(1000, 'b', 10000, pg_backend_pid())"); got[0] != "0 0 0 1000 false 0" {
		t.Errorf("off duty a tick says %s", got[0])
	}
	if got := list[string](t, d.Pool, "select token from ojs.sleeper"); len(got) != 1 || got[0] != "a" {
		t.Errorf("the clocks that sleep are %v", got)
	}
	if got := tick(t, service, 1000); got != "1 0" {
		t.Errorf("by hand a tick promoted and reaped %s, want 1 0", got)
	}
	// Another server is taking the duty at this moment.
	d.SetNow(noon.Add(time.Minute))
	tx := begin(t, service)
	if !one[bool](t, tx, "select on_duty from ojs.tick(1000, 'b', 0, null)") {
		t.Error("nobody takes a duty that has lapsed")
	}
	if one[bool](t, service, "select on_duty from ojs.tick(1000, 'c', 0, null)") {
		t.Error("two are on duty")
	}
	rollback(t, tx)
	if !one[bool](t, service, "select on_duty from ojs.tick(1000, 'c', 0, null)") {
		t.Error("nobody takes a duty after the one who wanted it failed")
	}
}

// While dispatch is held nothing is handed out, by any way of asking; everything else goes on, and afterwards everything does.
func TestHeldDispatch(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service, acme := d.Service(), d.As("acme")
	exec(t, service, `
		insert into ojs.jobs (tenant_id, type, queue) select t, 'a', q
		from unnest(array['acme', 'globex']) t, unnest(array['default', 'other']) q, generate_series(1, 20)`)
	// Some are in workers' hands, one is due later.
	held := jobs(t, service, "ojs.fetch('{default}')")
	jobs(t, service, "ojs.fetch('{other}', 2)")
	exec(t, service, "select from ojs.enqueue('later', p_scheduled_at => ojs.now() + interval '1 second')")
	fetches := []struct {
		as  querier
		sql string
	}{
		{service, "ojs.fetch('{default}')"},
		{service, "ojs.fetch('{default}', 100)"},
		{service, "ojs.fetch('{other}', 1, p_tenant => 'acme')"},
		{service, "ojs.fetch('{default,other}', 5)"},
		{service, "ojs.fetch_many('{default}', '{1,2}', '{a,b}', '{0,0}')"},
		{acme, "ojs.fetch('{default}')"},
		{acme, "ojs.fetch('{default,other}', 5)"},
	}
	nothing := func(when string) {
		t.Helper()
		for _, f := range fetches {
			if got := jobs(t, f.as, f.sql); len(got) > 0 {
				t.Errorf("%s %s hands out %d jobs", when, f.sql, len(got))
			}
		}
		if got := lines(t, service, "select * from ojs.tick()"); got[0] != "0 0 0 1000 false 0" {
			t.Errorf("%s a tick says %s", when, got[0])
		}
		if one[bool](t, service, "select on_duty from ojs.tick(1000, 'token', 0, null)") {
			t.Errorf("%s somebody is on duty", when)
		}
	}
	if got := lines(t, service, `
		select held_at is not null, available, active, scheduled from ojs.hold_dispatch()`); got[0] != "true 77 3 1" {
		t.Errorf("held: %s", got[0])
	}
	d.SetNow(noon.Add(time.Hour))
	nothing("held")
	exec(t, service, "select ojs.hold_dispatch()")
	exec(t, service, "select from ojs.enqueue('b', p_tenant => 'globex', p_priority => 5)")
	exec(t, service, "select from ojs.ack($1)", held[0].ID)
	exec(t, d.Operator(), "select from ojs.configure_tenant('acme', 2)")
	nothing("after changes")
	exec(t, d.Pool, "select ojs.rebuild()")
	nothing("rebuilt")
	if got := one[time.Time](t, service, "select held_at from ojs.dispatch"); !got.Equal(noon) {
		t.Errorf("held since %s", got)
	}
	if got := lines(t, service, "select held_at is null from ojs.resume_dispatch()"); got[0] != "true" {
		t.Error("still held")
	}
	if got := tick(t, service, 1000); got != "1 2" {
		t.Errorf("resumed, a tick promoted and reaped %s, want 1 2", got)
	}
	if got := jobs(t, service, "ojs.fetch('{default,other}', 1000)"); len(got) != 81 {
		t.Errorf("resumed, a fetch hands out %d jobs, want 81", len(got))
	}
	refusedTo := d.As("acme")
	refused(t, refusedTo, "42501", "select ojs.hold_dispatch()")
	refused(t, refusedTo, "42501", "select ojs.resume_dispatch()")
}

// A call that waited for the transaction that holds dispatch hands out nothing.
func TestDispatchIsHeldBesideAFetch(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "insert into ojs.jobs (tenant_id, type) select 'acme', 'a' from generate_series(1, 20)")
	tx := begin(t, d.Service())
	exec(t, tx, "select ojs.hold_dispatch()")
	got := fetchLater(t, d, "default", 5, false)
	commit(t, tx)
	if n := <-got; n != 0 {
		t.Errorf("it hands out %d jobs", n)
	}
}
