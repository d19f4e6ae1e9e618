package httpapi

import (
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// FS 10.2: the statistics have all that the example of ojs-fair-scheduling has, and the numbers are those of what was dispatched.
func TestFS102StatisticsOfScheduling(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.sql(`select ojs.enqueue_bulk('a', array_fill('[]'::json, array[n]), p_queue => q)
		from unnest('{critical,default,low}'::text[], '{142,134,38}'::int[]) u(q, n)`)
	r.sql("select ojs.fetch(array[q], 200) from unnest('{critical,default,low}'::text[]) q")
	r.sql(`select ojs.ack_many(array(select j.id from ojs.job j where j.queue = q limit n))
		from unnest('{critical,default,low}'::text[], '{134,110,33}'::int[]) u(q, n)`)
	r.gives("GET /admin/scheduling/stats", "", 200, `{
  "queues": [
    {
      "name": "critical",
      "dispatch_count_1m": 142,
      "dispatch_ratio_1m": 0.4522,
      "avg_wait_ms": "*",
      "active_jobs": 8
    },
    {
      "name": "default",
      "dispatch_count_1m": 134,
      "dispatch_ratio_1m": 0.4268,
      "avg_wait_ms": "*",
      "active_jobs": 24
    },
    {
      "name": "low",
      "dispatch_count_1m": 38,
      "dispatch_ratio_1m": 0.121,
      "avg_wait_ms": "*",
      "active_jobs": 5
    }
  ],
  "window": "PT1M"
}`)
}

func TestScheduling(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /admin/scheduling/stats", "", 200, `{"queues": [], "items": [], "window": "PT1M", "pagination": {"total": 0},
		"stats": {"dispatch_count_1m": 0, "avg_wait_ms": 0, "dispatch_count_5m": 0, "dispatch_count_1h": 0}}`)
	r.gives("GET /admin/scheduling/tenants", "", 200, `{"tenants": [], "items": [], "window": "PT1M", "pagination": {"total": 0}}`)
	r.sql(`select ojs.enqueue_many('[
		{"type": "a", "args": [], "queue": "mail", "tenant": "acme"}, {"type": "a", "args": [], "queue": "mail", "tenant": "acme"},
		{"type": "a", "args": [], "queue": "mail", "tenant": "globex"}, {"type": "a", "args": [], "queue": "mail", "tenant": "globex"},
		{"type": "a", "args": [], "queue": "reports", "tenant": "globex"}]')`)
	r.sql("select ojs.configure_tenant('acme', 3)")
	r.sql("update ojs.job set enqueued_at = ojs.now() - interval '2 seconds'")
	r.sql("select ojs.fetch('{mail}', 2, p_tenant => 'acme')")
	r.sql("select ojs.fetch('{mail}', 1, p_tenant => 'globex')")
	r.sql("select ojs.fetch('{reports}')")

	const mail = `{"name": "mail", "dispatch_count_1m": 3, "dispatch_ratio_1m": 0.75, "avg_wait_ms": "*", "dispatch_count_5m": 3,
		"dispatch_ratio_5m": 0.75, "avg_wait_5m_ms": "*", "dispatch_count_1h": 3, "dispatch_ratio_1h": 0.75, "avg_wait_1h_ms": "*",
		"active_jobs": 3, "waiting_jobs": 1, "oldest_wait_ms": "*"}`
	const reports = `{"name": "reports", "dispatch_count_1m": 1, "dispatch_ratio_1m": 0.25, "active_jobs": 1, "waiting_jobs": 0,
		"oldest_wait_ms": 0}`
	const all = `"window": "PT1M", "stats": {"dispatch_count_1m": 4, "dispatch_count_5m": 4, "dispatch_count_1h": 4}`
	r.gives("GET /admin/scheduling/stats", "", 200, `{"queues": [`+mail+`, `+reports+`], "items": [`+mail+`, `+reports+`],
		"pagination": {"total": 2, "has_more": false}, `+all+`}`)
	r.gives("GET /admin/scheduling/stats?limit=1", "", 200, `{"queues": [`+mail+`], "pagination": {"has_more": true}, `+all+`}`)
	r.gives("GET /admin/scheduling/stats?limit=1&offset=1", "", 200, `{"queues": [`+reports+`], "pagination": {"has_more": false}}`)
	r.refuses("GET /admin/scheduling/stats?limit=0", "", 400, "limit")
	// The longer it is, the more a wait in other units stands out.
	if rows, err := sqlcgen.New(r.db.Pool).SchedulingStats(t.Context(), []string{"mail"}); err != nil || len(rows) != 1 ||
		slices.ContainsFunc([]int64{
			rows[0].AvgWaitMs, rows[0].AvgWait5mMs, rows[0].AvgWait1hMs, rows[0].OldestWaitMs, rows[0].P50WaitMs, rows[0].P99Wait1hMs,
		},
			func(ms int64) bool { return ms < 2000 || ms > 1_999_000 }) {
		t.Errorf("%+v, %v: want waits of some two seconds", rows, err)
	}

	const acme = `{"id": "acme", "weight": 3, "ideal_share": 0.75, "dispatch_count_1m": 2, "dispatch_share_1m": 0.5, "avg_wait_ms": "*",
		"dispatch_count_5m": 2, "dispatch_share_5m": 0.5, "dispatch_count_1h": 2, "dispatch_share_1h": 0.5, "active_jobs": 2,
		"waiting_jobs": 0}`
	const globex = `{"id": "globex", "weight": 1, "ideal_share": 0.25, "dispatch_count_1m": 2, "active_jobs": 2, "waiting_jobs": 1}`
	r.gives("GET /admin/scheduling/tenants", "", 200, `{"tenants": [`+acme+`, `+globex+`], "items": [`+acme+`, `+globex+`],
		"pagination": {"total": 2}}`)
	r.gives("GET /admin/scheduling/tenants?limit=1&offset=1", "", 200, `{"tenants": [`+globex+`]}`)
	r.refuses("GET /admin/scheduling/tenants?limit=0", "", 400, "limit")
	r.as("globex").gives("GET /admin/scheduling/tenants", "", 200, `{"tenants": [`+globex+`], "pagination": {"total": 1}}`)
	r.as("globex").refuses("GET /admin/scheduling/stats", "", 422, names.TenantHeader)
}
