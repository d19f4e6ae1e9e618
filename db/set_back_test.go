package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A bucket that was used while the clock was ahead gives tokens as soon as the clock is right again.
func TestRateLimitsAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"hours": 2 * time.Hour, "seconds": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			d.SetNow(noon)
			exec(t, service, `select ojs.configure_limits('acme', '{"max_enqueue_rate": {"limit": 60, "period": "PT1M", "burst": 3}}')`)
			enqueue := func(times int) {
				t.Helper()
				for range times {
					exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
				}
				refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
			}
			d.SetNow(noon.Add(ahead))
			enqueue(3)
			d.SetNow(noon)
			if got := one[int64](t, service, "select current from ojs.limits where tenant_id = 'acme'"); got != 0 {
				t.Errorf("%d jobs count against the limit after the clock was set back", got)
			}
			enqueue(3)
			// From here on the tokens grow as ever.
			d.SetNow(noon.Add(time.Second))
			enqueue(1)
			// Jobs that take tokens of several stripes, too.
			d.SetNow(noon.Add(ahead))
			exec(t, service, "select ojs.enqueue_many('[{\"type\": \"a\"}, {\"type\": \"a\"}, {\"type\": \"a\"}]', p_tenant => 'acme')")
			d.SetNow(noon.Add(2 * time.Second))
			exec(t, service, "select ojs.enqueue_many('[{\"type\": \"a\"}, {\"type\": \"a\"}, {\"type\": \"a\"}]', p_tenant => 'acme')")
			enqueue(0)
			// Another limit is set while the mark is in the future.
			d.SetNow(noon.Add(ahead))
			enqueue(3)
			d.SetNow(noon.Add(3 * time.Second))
			exec(t, service, `select ojs.configure_limits('acme', '{"max_enqueue_rate": {"limit": 60, "period": "PT1M", "burst": 4}}')`)
			enqueue(4)
		})
	}
}

// Sessions read the clock at slightly different times; that gives nobody tokens.
func TestRateLimitsWithClocksThatDifferSlightly(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon.Add(5 * time.Second))
	exec(t, service, `
		select ojs.configure_limits('acme', '{"max_enqueue_rate": {"limit": 60, "period": "PT1M", "burst": 3}}');`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 3)")
	d.SetNow(noon)
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
	d.SetNow(noon.Add(6 * time.Second))
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
}

// Cron jobs that were planned while the clock was ahead are planned anew, also one that is locked at that moment.
func TestCronAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	exec(t, service, "select ojs.tick()")
	exec(t, service, `
		select ojs.put_cron('planned', '*/5 * * * * *', 'a', p_overlap_policy => 'allow'), ojs.put_cron('locked', '*/5 * * * * *', 'a'),
			ojs.put_cron('off', '*/5 * * * * *', 'a'), ojs.put_cron('later', '@daily', 'a')`)
	for _, name := range []string{"planned", "locked", "off"} {
		due(t, d.Pool, name, "5 seconds", "10 seconds", "15 seconds")
	}
	due(t, d.Pool, "later", "12 hours", "36 hours")
	exec(t, service, "select ojs.tick()")
	exec(t, service, "select ojs.configure_cron('off', p_enabled => false)")

	far := noon.Add(33 * 24 * time.Hour)
	d.SetNow(far)
	exec(t, service, "select ojs.put_cron('new', '@every 1h', 'a')")
	tick(t, service, 1000)
	for _, name := range []string{"planned", "locked", "later", "new"} {
		due(t, d.Pool, name, "5 seconds", "10 seconds", "15 seconds")
	}
	d.SetNow(far.Add(5 * time.Second))
	tick(t, service, 1000)
	made := one[int](t, service, "select count(*)::int from ojs.job")

	back := noon.Add(time.Minute)
	d.SetNow(back)
	tx := begin(t, d.Pool)
	exec(t, tx, "select from ojs.cron where name = 'locked' for update")
	tick(t, service, 1000)
	rollback(t, tx)
	d.SetNow(back.Add(time.Second))
	tick(t, service, 1000)
	got := lines(t, d.Pool, "select name, upcoming = '{}', look_at <= ojs.now() + interval '5 seconds', anchor_at <= ojs.now() from "+
		"ojs.cron where enabled order by name")
	if want := []string{
		"later true true true", "locked true true true", "new true true true",
		"planned true true true",
	}; !slices.Equal(got, want) {
		t.Errorf("after the clock was set back: %q, want %q", got, want)
	}
	if got := list[string](t, d.Pool, `
		select name from ojs.unplanned_crons() u join ojs.cron c on c.id = u.id where u.after_at = ojs.now() order by
			name`); !slices.Equal(got, []string{"later", "locked", "new", "planned"}) {
		t.Errorf("planned from now on: %q", got)
	}
	// From here on all is as ever: a tick plans nothing anew, and the cron job fires.
	due(t, d.Pool, "planned", "5 seconds", "10 seconds", "1 hour")
	rev := one[int64](t, d.Pool, "select rev from ojs.cron where name = 'planned'")
	tick(t, service, 1000)
	if got := one[int64](t, d.Pool, "select rev from ojs.cron where name = 'planned'"); got != rev {
		t.Error("planned anew once more")
	}
	d.SetNow(back.Add(7 * time.Second))
	tick(t, service, 1000)
	if got := one[int](t, service, "select count(*)::int from ojs.job"); got != made+1 {
		t.Errorf("%d jobs made after the clock was set back, want 1", got-made)
	}
}

// Stored bytes are measured and the upkeep is tried again as soon as the clock is right again.
func TestMeasuringAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon.Add(2 * time.Hour))
	exec(t, service, `select ojs.configure_limits('acme', '{"max_stored_bytes": 1000000}')`)
	for range 3 {
		exec(t, service, "select ojs.upkeep()")
	}
	if !one[bool](t, d.Pool, "select measure_at > ojs.now() from ojs.quota where resource = 'max_stored_bytes'") {
		t.Fatal("stored bytes have not been measured")
	}
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme', p_scheduled_at => ojs.now() + interval '1 second')")
	exec(t, d.Pool, `
		insert into ojs.upkeep_task (task, last_step, last_at, not_before) values ('cut', 'not yet', ojs.now(), ojs.now()
			+ interval '1 hour')
		on conflict (task) do update set not_before = excluded.not_before`)
	d.SetNow(noon.Add(2*time.Hour + time.Second))
	tick(t, service, 1000)
	d.SetNow(noon)
	tick(t, service, 1000)
	if !one[bool](t, d.Pool, "select measure_at is null from ojs.quota where resource = 'max_stored_bytes'") {
		t.Error("stored bytes are not measured until the clock has caught up")
	}
	if !one[bool](t, d.Pool, "select not_before <= ojs.now() from ojs.upkeep_task where task = 'cut'") {
		t.Error("the upkeep waits until the clock has caught up")
	}
}

// Dead letters that are too old are removed as soon as the clock is right again.
func TestDeadLettersAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, d.Operator(), "select ojs.configure_dead_letters(p_max_count => 1)")
	d.SetNow(noon.Add(2 * time.Hour))
	tick(t, service, 1000)
	d.SetNow(noon)
	for range 2 {
		exec(t, service, `select ojs.enqueue('a', p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')`)
		exec(t, service, `select ojs.nack(f.id, '{"message": "x"}') from ojs.fetch('{default}') f`)
	}
	tick(t, service, 1000)
	tick(t, service, 1000)
	if n := one[int](t, d.Pool, "select count(*)::int from ojs.dead_letter"); n != 1 {
		t.Errorf("%d dead letters are kept until the clock has caught up, want 1", n)
	}
}
