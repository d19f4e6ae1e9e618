package db_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A job that fails twice and then completes is one completed job, no failed one, and two failed attempts. A discarded job is
// a failed job, also after it is retried from the dead letters.
func TestFailedJobsAreCountedApartFromFailedAttempts(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, now := d.Service(), noon
	d.SetNow(now)
	pass := func(span time.Duration) {
		t.Helper()
		now = now.Add(span)
		d.SetNow(now)
		exec(t, service, "select ojs.tick()")
	}
	counted := func(completed, failed, attempts int) {
		t.Helper()
		want := fmt.Sprintf("%d %d %d", completed, failed, attempts)
		for _, view := range []string{"tenant_stats", "queue_stats", "shard_stats"} {
			if got := one[string](t, d.Operator(), "select concat_ws(' ', completed, failed_jobs, failed) from ojs."+view); got != want {
				t.Errorf("%s: %q completed jobs, failed jobs and failed attempts, want %q", view, got, want)
			}
		}
		got := one[string](t, d.Operator(), `
			select concat_ws(' ', c.completed, c.failed_jobs, c.failed)
			from ojs.tenant_stats s cross join lateral ojs._counts_since('', s.tenant_id, row(s.total_jobs, s.dispatched, s.completed,
				s.cancelled, s.failed_jobs, s.failed)::ojs.counts, ojs.now() - interval '1 day') c`)
		if got != want {
			t.Errorf("in 24 hours: %q completed jobs, failed jobs and failed attempts, want %q", got, want)
		}
		got = one[string](t, d.Operator(), `
			select concat_ws(' ', processed - failed, failed, failed_attempts) from ojs._tenant_gauges(10) where queue <> ''`)
		if got != want {
			t.Errorf("for metrics: %q completed jobs, failed jobs and failed attempts, want %q", got, want)
		}
	}
	const nack = `select ojs.nack(id, '{"message": "m"}') from ojs.fetch('{q}', 1)`
	exec(t, service, `select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme',
		p_retry => '{"max_attempts": 3, "on_exhaustion": "dead_letter"}')`)
	pass(time.Minute)
	for range 2 {
		exec(t, service, nack)
		pass(time.Hour)
	}
	counted(0, 0, 2)
	exec(t, service, "select ojs.ack(id) from ojs.fetch('{q}', 1)")
	counted(1, 0, 2)
	pass(time.Hour)
	counted(1, 0, 2)

	exec(t, service, `select ojs.enqueue('b', p_queue => 'q', p_tenant => 'acme',
		p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')`)
	pass(time.Minute)
	exec(t, service, nack)
	counted(1, 1, 3)
	pass(time.Hour)
	exec(t, service, "select ojs.retry_dead_letter(id, p_tenant => tenant_id) from ojs.jobs where state = 'discarded'")
	exec(t, service, "select ojs.ack(id) from ojs.fetch('{q}', 1)")
	counted(2, 1, 3)
	pass(time.Hour)
	counted(2, 1, 3)
	if got := one[int](t, d.Operator(), "select discarded from ojs.tenant_stats"); got != 0 {
		t.Errorf("%d jobs are discarded now, want 0", got)
	}
}

// What workers in SQL fetch counts, by queue and pool, with its waits; and a counter never goes back, also after hours in
// which its queue gave nothing.
func TestDispatchIsCountedForGood(t *testing.T) {
	t.Parallel()
	p := startPace(t)
	exec(t, p.d.Pool, `select ojs.configure_pool('busy', '{}')`)
	p.enqueue("acme", "mail", 10).enqueue("globex", "logs", 10)
	p.at(3 * time.Second)
	exec(t, p.d.Service(), "select ojs.fetch('{mail}', 3)")
	exec(t, p.d.Service(), "select ojs.fetch('{mail}', 2, p_pool => 'busy')")
	exec(t, p.d.Service(), "select ojs.fetch('{logs}', 1)")
	const queues = "select queue, jobs, waited, waits[9], pool is null from ojs._dispatch_counters(10) where pool is null order by 1"
	const pools = "select queue, pool, jobs from ojs._dispatch_counters(10) where pool is not null order by 1, 2"
	const tenants = "select tenant_id, handed_out, waited from ojs._tenant_gauges(10) where queue = '' order by 1"
	p.at(time.Minute)
	exec(t, p.d.Service(), "select ojs.tick()")
	p.want(queues, "logs 1 3 1 true", "mail 5 15 5 true")
	p.want(pools, "logs default 1", "mail busy 2", "mail default 3")
	p.want(tenants, "acme 5 15", "globex 1 3")

	// Three hours later only logs is asked for. The rows of the first hour go, and their sums stay.
	for range 2 {
		p.at(p.now.Sub(beginning) + 3*time.Hour)
		exec(t, p.d.Service(), "select ojs.fetch('{logs}', 1)")
		p.at(p.now.Sub(beginning) + time.Minute)
		exec(t, p.d.Service(), "select ojs.tick()")
	}
	if n := one[int](t, p.d.Pool, "select count(*) from ojs.pace where kind = 'queue' and name = 'mail' and at > '-infinity'"); n != 0 {
		t.Errorf("%d rows of mail are kept", n)
	}
	p.want("select queue, jobs from ojs._dispatch_counters(10) where pool is null order by 1", "logs 3", "mail 5")
	p.want(pools, "logs default 3", "mail busy 2", "mail default 3")
	p.want("select queue, handed_out_at is null from ojs.queue_demands order by 1", "logs false", "mail true")
	exec(t, p.d.Service(), "select ojs.fetch('{mail}', 2, p_pool => 'busy')")
	p.at(p.now.Sub(beginning) + time.Minute)
	exec(t, p.d.Service(), "select ojs.tick()")
	p.want(pools, "logs default 3", "mail busy 4", "mail default 3")
	p.want("select queue, pool, jobs from ojs._dispatch_counters(1) where pool is not null order by 1, 2", "_other _other 3", "mail busy 4",
		"mail default 3")
	p.want("select tenant_id, handed_out from ojs._tenant_gauges(1) where queue = '' order by 1", "_other 3", "acme 7")
}

// Workers that never registered count in their pool for as long as they hold jobs.
func TestActiveWorkersHoldJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, d.Pool, `select ojs.configure_pool('p', '{"concurrency": 20}')`)
	exec(t, service, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme') from generate_series(1, 9)")
	exec(t, service, "select ojs.register_worker('w1', p_pool => 'p')")
	workers := func(want int) {
		t.Helper()
		for _, q := range []querier{service, d.Operator()} {
			if got := one[int](t, q, "select active_workers from ojs.pool_stats where name = 'p'"); got != want {
				t.Errorf("%d active workers, want %d", got, want)
			}
		}
	}
	workers(1)
	for _, worker := range []string{"w1", "w2", "w3", "w4"} {
		exec(t, service, "select ojs.fetch('{q}', 2, $1, p_pool => 'p')", worker)
	}
	workers(4)
	exec(t, service, "select ojs.ack(id, p_tenant => tenant_id) from ojs.jobs where worker_id = 'w4' and state = 'active'")
	workers(3)
}
