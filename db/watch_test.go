package db_test

import (
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// notices returns the events of scheduling, newest first, as a caller sees them.
func notices(t *testing.T, q querier) []string {
	t.Helper()
	return lines(t, q, `select type, subject, data - 'duration', data ? 'duration'
		from ojs.events(array['scheduling.queue_starved', 'scheduling.pool_overloaded', 'scheduling.rebalanced'])`)
}

// Starved queues and overloaded pools are told once for as long as it lasts, and again when it begins again; pauses are no starvation.
func TestStarvedQueuesAndOverloadedPools(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	look := func() {
		exec(t, d.Pool, "update ojs.tally_mark set watched_at = '-infinity', pace_at = '-infinity'")
		tick(t, service, 1000)
	}
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 3)
	}
	exec(t, d.Pool, "update ojs.job set enqueued_at = now() - interval '5 minutes'")
	look()
	if got := notices(t, service); len(got) != 0 {
		t.Errorf("without pools: %v", got)
	}
	pooled(t, service, "p", `{"queues": ["a", "b"], "concurrency": 1,
		"starvation_prevention": {"enabled": true, "rotation_interval": "PT2M"}}`)
	exec(t, service, "select ojs.pause('b')")
	job := one[string](t, service, "select id::text from ojs.fetch('{a}', 1, p_pool => 'p')")
	look()
	look()
	overloaded := "scheduling.pool_overloaded p map[active_jobs:1 pool:p waiting_jobs:2] false"
	if got := notices(t, service); !slices.Equal(got, []string{overloaded}) {
		t.Errorf("%q, want one pool overloaded", got)
	}
	// What was handed out was five minutes ago.
	exec(t, service, "select ojs.ack($1)", job)
	exec(t, d.Pool, "update ojs.pace set at = at - interval '5 minutes'")
	exec(t, service, "select ojs.resume('b')")
	look()
	look()
	got := notices(t, service)
	slices.Sort(got)
	want := []string{
		overloaded, "scheduling.queue_starved a map[available_count:2 queue:a] true",
		"scheduling.queue_starved b map[available_count:3 queue:b] true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// It ends, and begins again.
	one[string](t, service, "select id::text from ojs.fetch('{a}', 1, p_pool => 'p')")
	look()
	got = notices(t, service)
	if len(got) != 4 || got[0] != "scheduling.pool_overloaded p map[active_jobs:1 pool:p waiting_jobs:4] false" {
		t.Errorf("then %q", got)
	}
	tenant := connect(t, d.TenantURL("acme"))
	if got := notices(t, tenant); len(got) != 0 {
		t.Errorf("a tenant sees %v", got)
	}
	// Without pools nothing goes on, and how often a queue was starved is counted on from what retention has left.
	exec(t, service, "select ojs.delete_pool('p')")
	look()
	expectNone(t, d.Pool, "goes on", "select type, subject from ojs.notice where ended_at is null")
	exec(t, d.Pool, "update ojs.notice set at = at - interval '9 days', ended_at = ended_at - interval '9 days'")
	look()
	if got := lines(t, d.Pool, "select subject, nth from ojs.notice where type like 'scheduling.%' order by 1, 2"); !slices.Equal(got,
		[]string{"a 1", "b 1"}) {
		t.Errorf("kept are %q", got)
	}
}

// A queue does not starve when all who have jobs in it are paused, or at their limits.
func TestPausedTenantsDoNotStarve(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	pooled(t, service, "p", `{"queues": ["a", "b"]}`)
	exec(t, service, "select ojs.pause(null, 'acme'), ojs.limit_concurrency(1, 'globex')")
	for _, tenant := range []string{"acme", "globex"} {
		enqueueFor(t, service, "a", tenant, 3)
	}
	exec(t, d.Pool, "update ojs.job set enqueued_at = now() - interval '5 minutes'")
	tick(t, service, 1000)
	const starved = "select queue, available from ojs._starved()"
	if got := lines(t, d.Pool, starved); !slices.Equal(got, []string{"a 6"}) {
		t.Errorf("before anybody asks %q starve", got)
	}
	one[string](t, service, "select id::text from ojs.fetch('{a}', 9, p_pool => 'p')")
	exec(t, d.Pool, "update ojs.tally_mark set pace_at = '-infinity'")
	tick(t, service, 1000)
	exec(t, d.Pool, "update ojs.pace set at = at - interval '5 minutes'")
	expectNone(t, d.Pool, "starved", starved)
	exec(t, service, "select ojs.resume(null, 'acme')")
	if got := lines(t, d.Pool, starved); !slices.Equal(got, []string{"a 5"}) {
		t.Errorf("then %q starve", got)
	}
}

// A pool that is full is not overloaded by what only others may have.
func TestAFullPoolAndOthersJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	pooled(t, service, "p", `{"concurrency": 1}`)
	pooled(t, service, "gpu", `{"queues": ["images"], "isolated": true}`)
	fill(t, service, "images", 5)
	fill(t, service, "mail", 1)
	one[string](t, service, "select id::text from ojs.fetch('{mail}', 1, p_pool => 'p')")
	expectNone(t, d.Pool, "overloaded", "select * from ojs._overloaded()")
	fill(t, service, "mail", 2)
	if got := lines(t, d.Pool, "select pool, active, waiting from ojs._overloaded()"); !slices.Equal(got, []string{"p 1 2"}) {
		t.Errorf("overloaded: %q", got)
	}
}

// Who changes a pool's strategy or weights is heard of.
func TestRebalancedPools(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	pooled(t, service, "p", `{"strategy": "strict"}`)
	pooled(t, service, "p", `{"strategy": "strict", "concurrency": 3}`)
	pooled(t, service, "p", `{"strategy": "weighted"}`)
	pooled(t, service, "p", `{"strategy": "weighted", "weights": {"a": 2}}`)
	exec(t, service, "select ojs.delete_pool('p')")
	want := []string{
		"scheduling.rebalanced p map[new_strategy:round-robin pool:p previous_strategy:weighted] false",
		"scheduling.rebalanced p map[new_strategy:weighted pool:p previous_strategy:weighted] false",
		"scheduling.rebalanced p map[new_strategy:weighted pool:p previous_strategy:strict] false",
	}
	if got := notices(t, service); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
