package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const fairnessRows = `
	select (select count(*) from ojs.dispatch_state s cross join unnest(s.levels)), (select count(*) from ojs.tenant_fairness),
		(select count(*) from ojs.dispatch_state), (select count(*) from ojs.rotation), (select count(*) from ojs.revisit)`

// Priorities, queues and lists of queues that were used once are gone after an hour, and nothing that is counted goes with them.
func TestWhatNobodyUsesLeaves(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, `select count(*) from (
		select ojs.enqueue('a', p_priority => p, p_tenant => 't' || p % 7) from generate_series(-100, 100) p) x`)
	exec(t, service, "select count(*) from (select ojs.enqueue('a', p_queue => 'q' || i) from generate_series(1, 150) i) x")
	exec(t, service, "select ojs.enqueue('a', p_queue => 'busy', p_tenant => 't' || i) from generate_series(1, 3) i")
	if got := one[int](t, service, "select count(*)::int from ojs.fetch('{default}', 1000)"); got != 201 {
		t.Fatalf("%d jobs were handed out, want 201", got)
	}
	for i := range 75 {
		// In one message: a caller that has been in its transaction for 20 ms, on a slow machine, fetches without the lane.
		got := one[int](t, service, "select count(*)::int from ojs.fetch(array['q' || $1::int, 'q' || $2::int], 10)",
			pgx.QueryExecModeSimpleProtocol, 2*i+1, 2*i+2)
		if got != 2 {
			t.Fatalf("%d jobs were handed out, want 2", got)
		}
	}
	exec(t, service, "select count(*) from ojs.fetch_many('{busy}', '{1}', '{\"\"}', '{0}')")
	ackActive(t, service)
	if got := lines(t, d.Pool, fairnessRows); !slices.Equal(got, []string{"352 354 152 75 0"}) {
		t.Errorf("levels, tenants, queues, lists, ranges: %v", got)
	}
	const statistics = "select tenant_id, total_jobs, completed, dispatched from ojs.tenant_stats order by 1"
	stats := lines(t, service, statistics)

	d.SetNow(noon.Add(59 * time.Minute))
	tick(t, service, 1000)
	if got := lines(t, d.Pool, fairnessRows); !slices.Equal(got, []string{"352 354 152 75 0"}) {
		t.Errorf("within the hour: %v", got)
	}
	d.SetNow(noon.Add(61 * time.Minute))
	for range 10 {
		tick(t, service, 1000)
	}
	if got := lines(t, d.Pool, fairnessRows); !slices.Equal(got, []string{"1 3 1 0 0"}) {
		t.Errorf("after an hour: %v", got)
	}
	if got := lines(t, service, statistics); !slices.Equal(got, stats) {
		t.Errorf("the statistics were\n%v and are\n%v", stats, got)
	}
	ringsAgree(t, d.Pool)

	// Who comes back is served, a late commit included.
	late := begin(t, service)
	exec(t, late, "select ojs.enqueue('late', p_tenant => 't1')")
	exec(t, service, "select ojs.enqueue('a', p_tenant => 't' || i) from generate_series(1, 3) i")
	if got := one[int](t, service, "select count(*)::int from ojs.fetch('{default}', 1000)"); got != 3 {
		t.Errorf("%d jobs were handed out, want 3", got)
	}
	commit(t, late)
	got := list[string](t, service, "select type from ojs.fetch('{default,busy}', 10) order by 1")
	if !slices.Equal(got, []string{"a", "a", "late"}) {
		t.Errorf("handed out %v", got)
	}
	ringsAgree(t, d.Pool)
}

// A job that was locked when its turn came and is let go of after more than an hour is found again.
func TestAJobThatIsLockedForLongIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a', p_tenant => 't' || i) from generate_series(1, 3) i")
	exec(t, service, "select count(*) from ojs.fetch_many('{default}', '{1}', '{\"\"}', '{0}')")
	tx := begin(t, service)
	exec(t, tx, "select pg_sleep(0.03)") // without the lane it keeps no decision waiting
	if got := one[int](t, tx, "select count(*)::int from ojs.fetch('{default}')"); got != 1 {
		t.Fatalf("%d jobs were handed out, want 1", got)
	}
	exec(t, service, "select count(*) from ojs.fetch('{default}', 10)")
	d.SetNow(noon.Add(2 * time.Hour))
	for range 3 {
		tick(t, service, 1000)
	}
	rollback(t, tx)
	d.SetNow(noon.Add(2*time.Hour + 2*time.Second))
	tick(t, service, 1000)
	if got := one[int](t, service, "select count(*)::int from ojs.fetch('{default}', 10) where attempt = 1"); got != 1 {
		t.Errorf("%d jobs were handed out for the first time, want 1", got)
	}
}
