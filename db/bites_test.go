package db_test

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// smallBites makes a database in which a fold reads five rows of the journal at a time.
func smallBites(t *testing.T) *pgtest.DB {
	t.Helper()
	d := pgtest.New(t)
	exec(t, d.Pool, "create or replace function ojs._bite() returns int language sql immutable as 'select 5'")
	return d
}

// enqueueSingly enqueues jobs, each with a statement and transaction of its own.
func enqueueSingly(t *testing.T, d *pgtest.DB, queue, tenant string, jobs int) {
	t.Helper()
	for range jobs {
		exec(t, d.Pool, "select ojs.enqueue('x', p_queue => $1, p_tenant => $2)", queue, tenant)
	}
}

// fetchedOf returns the number of jobs of queue q that some FETCHes get for tenant a, one after the other.
func fetchedOf(t *testing.T, d *pgtest.DB) int {
	t.Helper()
	jobs := 0
	for range 8 {
		jobs += one[int](t, d.Service(), "select count(*) from ojs.fetch('{q}', 10) where tenant_id = 'a'")
	}
	return jobs
}

// A change of a rule is read wherever in the journal a fold ends: as its last row, before it and behind it.
func TestRulesChangeWhereAFoldEnds(t *testing.T) {
	t.Parallel()
	for before := 3; before <= 6; before++ {
		d := smallBites(t)
		enqueueSingly(t, d, "z", "other", before)
		exec(t, d.Pool, "select ojs.limit_concurrency(2, 'a')")
		enqueueSingly(t, d, "q", "a", 5)
		if got := fetchedOf(t, d); got != 2 {
			t.Errorf("behind %d rows: %d jobs, want 2", before, got)
		}
	}
}

// A change of a rule that commits late is read, however many rows are newer.
func TestARuleThatChangesLate(t *testing.T) {
	t.Parallel()
	d := smallBites(t)
	enqueueSingly(t, d, "q", "a", 5)
	late := begin(t, d.Pool)
	exec(t, late, "select ojs.limit_concurrency(2, 'a')")
	enqueueSingly(t, d, "z", "other", 1)
	exec(t, d.Service(), "select from ojs.fetch('{z}')") // a fold sees it in progress
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	enqueueSingly(t, d, "z", "other", 12)
	if got := fetchedOf(t, d); got != 2 {
		t.Errorf("%d jobs, want 2", got)
	}
}

// Ends that were kept for later, because a session had their count locked, are not taken from a limit that began to count after them.
func TestEndsKeptForLaterAreCountedOnce(t *testing.T) {
	t.Parallel()
	d := smallBites(t)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a') from generate_series(1, 40)")
	exec(t, d.Pool, "select ojs.limit_concurrency(20, 'a')")
	exec(t, d.Service(), "select from ojs.fetch('{q}', 10)")
	holder := begin(t, d.Service())
	exec(t, holder, "select pg_sleep(0.03)")
	exec(t, holder, "select from ojs.fetch('{q}')") // has the count locked
	exec(t, d.Pool, "select ojs.ack_many(array(select id from ojs.job where state = 'active' limit 4))")
	enqueueSingly(t, d, "z", "other", 12)
	exec(t, d.Pool, "select ojs.limit_concurrency(10, 'a', 'q')")
	folds := begin(t, d.Pool)
	for range 5 {
		exec(t, folds, "select ojs._stop_decisions()")
	}
	if err := folds.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	rollback(t, holder)
	exec(t, d.Pool, "select ojs._stop_decisions()")
	for range 3 {
		exec(t, d.Service(), "select from ojs.fetch('{q}', 30)")
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'active' and tenant_id = 'a'"); got != 10 {
		t.Errorf("%d active jobs, want 10", got)
	}
}

// A count of a limit that is gone, which a session still has locked, is skipped: no session waits for it, and the new limit is exact.
func TestACountThatIsGoneAndStillLocked(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a') from generate_series(1, 20)")
	exec(t, d.Pool, "select ojs.limit_concurrency(5, 'a')")
	exec(t, d.Service(), "select from ojs.fetch('{q}')")
	holder := begin(t, d.Service())
	exec(t, holder, "select pg_sleep(0.03)")
	equal(t, "without the lane", list[string](t, holder, "select tenant_id from ojs.fetch('{q}')"), "a")
	exec(t, d.Pool, "select ojs.limit_concurrency(null, 'a')")
	exec(t, d.Pool, "select ojs.limit_concurrency(5, 'a')")
	exec(t, d.Service(), "select from ojs.fetch('{q}')")
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, d.Service(), "select from ojs.fetch('{q}')")
	another := begin(t, d.Service())
	exec(t, another, "select pg_sleep(0.03)")
	exec(t, another, "select from ojs.fetch('{q}', 2)")
	exec(t, d.Service(), "select from ojs.fetch('{q}', 10)") // a wait for the open transaction would not end
	if err := another.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		exec(t, d.Service(), "select from ojs.fetch('{q}', 10)")
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'active' and tenant_id = 'a'"); got != 5 {
		t.Errorf("%d active jobs, want 5", got)
	}
}

// Where steps are so small beside a tenant's time that its jobs are due at one time, they come first in, first out, and none is passed.
func TestJobsThatAreDueAtOneTimeComeInOrder(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, `select ojs.configure_queue('q', '{"tenant_fairness": {"unit": "cost"}}'), ojs.configure_tenant('big', 0.000001)`)
	exec(t, service, `select ojs.enqueue('x', p_queue => 'q', p_tenant => 'v', p_extra => '{"cost": 1000000}')`)
	exec(t, service, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'v') from generate_series(1, 7)")
	exec(t, service, `select ojs.enqueue('x', p_queue => 'q', p_tenant => 'big', p_extra => '{"cost": 1000000}')`)
	exec(t, service, "select from ojs.fetch('{q}', 2)")
	exec(t, service, "select from ojs.fetch('{q}', 1)")
	exec(t, service, "select ojs.configure_tenant(t, 1000000) from unnest('{big,v,w}'::text[]) t")
	exec(t, service, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'w') from generate_series(1, 6)")
	exec(t, service, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'big') from generate_series(1, 30)")
	for _, count := range []int{18, 100, 100, 100} {
		exec(t, service, "select from ojs.fetch('{q}', $1)", count)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'available'"); got != 0 {
		t.Errorf("%d jobs were passed by the cursor", got)
	}
}
