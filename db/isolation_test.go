package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// What the models of isolation promise (multi-tenancy section 6, docs/scheduling.md), each on the same two tenants in the same queues.
func TestMT6SPModelsOfIsolation(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	tenants := func(sql string) string { return strings.Join(list[string](t, service, sql), "") }
	for _, tenant := range []string{"a", "b"} {
		enqueueFor(t, service, "q", tenant, 40)
		enqueueFor(t, service, tenant+"-only", tenant, 5)
	}
	if got := tenants("select tenant_id from ojs.fetch('{q}', 8)"); strings.Count(got, "a") != 4 {
		t.Errorf("of a shared queue: %s", got)
	}

	// Shards: seen, paused, limited and weighed by themselves.
	if got := lines(t, service, "select tenant_id, queue, active from ojs.shard_stats where queue = 'q' order by 1"); !slices.Equal(got,
		[]string{"a q 4", "b q 4"}) {
		t.Errorf("shards: %v", got)
	}
	exec(t, service, "select ojs.configure_tenant('a', 3, p_queue => 'q'), ojs.limit_concurrency(6, 'b', 'q')")
	if got := tenants("select tenant_id from ojs.fetch('{q}', 8)"); strings.Count(got, "b") != 2 {
		t.Errorf("with a weight and a limit: %s", got)
	}
	exec(t, service, "select ojs.pause('q', 'a')")
	if got := tenants("select tenant_id from ojs.fetch('{q,a-only}', 1)"); got != "a" {
		t.Errorf("with a shard paused: %q", got)
	}
	exec(t, service, "select ojs.resume('q', 'a'), ojs.limit_concurrency(null, 'b', 'q')")

	// Namespaces: a tenant's login sees and gets its own.
	login := connect(t, d.TenantURL("b"))
	if got := list[string](t, login, "select queue from ojs.queue_stats order by 1"); !slices.Equal(got, []string{"b-only", "q"}) {
		t.Errorf("b sees queues %v", got)
	}
	if got := strings.Join(list[string](t, login, "select distinct tenant_id from ojs.fetch('{q,a-only,b-only}', 6)"), ""); got != "b" {
		t.Errorf("b gets jobs of %s", got)
	}

	// Strict pools: each has its tenant's jobs, as many at once as it may, and leaves the others none.
	exec(t, d.Pool, "update ojs.job set state = 'cancelled' where state = 'active'")
	exec(t, service, `select ojs.configure_pools('{"pools": [
		{"name": "of-a", "tenants": ["a"], "isolated": true, "concurrency": 3},
		{"name": "of-b", "tenants": ["b"], "isolated": true, "concurrency": 2}]}')`)
	for pool, want := range map[string]string{"of-a": "aaa", "of-b": "bb", "default": ""} {
		for range 2 {
			if got := tenants("select tenant_id from ojs.fetch('{q}', 9, p_pool => '" + pool + "')"); got != want {
				t.Errorf("pool %s: %q, want %q", pool, got, want)
			}
			want = "" // it is full
		}
	}
}
