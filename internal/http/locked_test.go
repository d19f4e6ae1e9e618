package httpapi

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// However many calls meet the lock of a transaction that stays open, they keep no connection from others, and succeed when it ends.
func TestCallsThatMeetALockKeepNoConnection(t *testing.T) {
	t.Parallel()
	const workers, lane = "select from ojs.worker for update", "select from ojs.lane for update"
	const acme = "X-OJS-Tenant: acme"
	for _, c := range []struct {
		name, hold, method, path, body string // %d: the number of the call
		headers                        []string
	}{
		{"heartbeats", workers, "POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w%d"}`, []string{acme}},
		{"registrations", workers, "POST", "/ojs/v1/workers/register", `{"worker_id":"w%d"}`, []string{acme}},
		{"sign-offs", workers, "POST", "/ojs/v1/workers/deregister", `{"worker_id":"w%d"}`, []string{acme}},
		{"directives", workers, "POST", "/ojs/v1/admin/workers/w%d/directive", `{"directive":"quiet"}`, []string{acme}},
		{"directives for all", workers, "POST", "/ojs/v1/admin/workers/directive", `{"directive":"quiet"}`, []string{acme}},
		{"removals", workers, "DELETE", "/ojs/v1/admin/workers/w%d", "", []string{acme}},
		{"weights", lane, "PUT", "/ojs/v1/admin/tenants/t%d", `{"weight":2}`, nil},
		{"holding dispatch", lane, "POST", "/ojs/v1/admin/dispatch/hold", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// All calls wait, for the lock or for their tenant's turn, until the test has seen what it looks for.
			a := start(t, func(cfg *Config) { cfg.Limits.Query, cfg.Limits.TurnWait = time.Minute, time.Minute })
			pool := a.srv.db.Pool()
			calls := int(pool.Config().MaxConns) + 24
			// A heartbeat soon after another one would not be written, and workers that beat are not removed.
			pgtest.Exec(t, a.pool, "select ojs.register_worker('w' || n, p_tenant => 'acme') from generate_series(1, $1) n", calls)
			pgtest.Exec(t, a.pool, "update ojs.worker_beat set seen_at = seen_at - interval '20 seconds'")
			tx, err := a.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, tx, c.hold)
			before := pool.Stat().AcquireCount()
			of := func(text string, n int) string { return strings.ReplaceAll(text, "%d", strconv.Itoa(n)) }
			succeeds := func(who, method, path, body string, headers ...string) {
				if r, err := a.send(t.Context(), method, path, body, headers...); err != nil {
					t.Errorf("%s: %v", who, err)
				} else if r.status != 200 && r.status != 201 {
					t.Errorf("%s: %d %s", who, r.status, r.body)
				}
			}
			var all sync.WaitGroup
			var ended atomic.Int32
			for n := 1; n <= calls; n++ {
				all.Go(func() {
					succeeds(of("call %d", n), c.method, of(c.path, n), of(c.body, n), c.headers...)
					ended.Add(1)
				})
			}
			pgtest.Eventually(t, "all calls have met the lock, or have all connections", func() bool {
				stat := pool.Stat()
				return stat.AcquireCount()-before >= int64(calls) || stat.AcquiredConns() == stat.MaxConns()
			})
			succeeds("another tenant meanwhile", "POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w1"}`, "X-OJS-Tenant: globex")
			if n := ended.Load(); n > 0 {
				t.Errorf("another tenant was answered when %d calls had ended, and not meanwhile", n)
			}
			if err := tx.Rollback(context.Background()); err != nil {
				t.Error(err)
			}
			all.Wait()
		})
	}
}
