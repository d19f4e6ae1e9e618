package httpapi

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/names"
)

// FS-004 and FS 10.1: the listing has all that the example of ojs-fair-scheduling has, and PUT takes what it takes. What a GET shows of a
// pool that runs is what runs.
func TestFS004ThePoolsThatThereAre(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("PUT /admin/pools/critical-workers", `{
  "queues": ["critical", "payments"],
  "concurrency": 20,
  "strategy": "strict"
}`, 200, `{"name": "critical-workers"}`)
	r.gives("PUT /admin/pools/default-workers", `{"queues": ["default", "email", "notifications"], "concurrency": 50,
		"strategy": "weighted", "weights": {"default": 3, "email": 2, "notifications": 1}}`, 200, `{"name": "default-workers"}`)
	r.sql("select ojs.enqueue_bulk('a', array_fill('[]'::json, array[40]), p_queue => q) from unnest('{critical,default,email}'::text[]) q")
	r.sql("select ojs.register_worker('c' || n, p_pool => 'critical-workers') from generate_series(1, 4) n")
	r.sql("select ojs.register_worker('d' || n, p_pool => 'default-workers') from generate_series(1, 8) n")
	r.sql("select ojs.fetch('{critical,payments}', 12, 'c1')")
	r.sql("select ojs.fetch('{default,email,notifications}', 31, 'd1')")
	r.gives("GET /admin/pools", "", 200, `{
  "items": [
    {
      "name": "critical-workers",
      "queues": ["critical", "payments"],
      "concurrency": 20,
      "strategy": "strict",
      "active_workers": 4,
      "active_jobs": 12
    },
    {
      "name": "default-workers",
      "queues": ["default", "email", "notifications"],
      "concurrency": 50,
      "strategy": "weighted",
      "weights": { "default": 3, "email": 2, "notifications": 1 },
      "active_workers": 8,
      "active_jobs": 31
    }
  ]
}`)
}

// The documents of ojs-fair-scheduling about one pool are taken as they are printed.
func TestFSPoolsAsPrinted(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("PUT /admin/pools/critical-workers", `{
  "pool": {
    "name": "critical-workers",
    "queues": ["critical", "payments"],
    "concurrency": 20,
    "strategy": "strict"
  }
}`, 200, `{"name": "critical-workers", "concurrency": 20}`)
	r.gives("PUT /admin/pools/rotating", `{
  "starvation_prevention": {
    "enabled": true,
    "rotation_interval": "PT30S",
    "min_dispatch_ratio": 0.05
  }
}`, 200, `{"starvation_prevention": {"enabled": true, "rotation_interval": "PT30S", "min_dispatch_ratio": 0.05}}`)
	r.gives("PUT /admin/pools/general", `{
  "pool": {
    "name": "general",
    "queues": ["critical", "default", "analytics"],
    "strategy": "strict",
    "starvation_prevention": {
      "enabled": true,
      "rotation_interval": "PT30S",
      "min_dispatch_ratio": 0.10
    }
  }
}`, 200, `{"starvation_prevention": {"min_dispatch_ratio": 0.10}}`)
}

func TestPools(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /admin/pools", "", 200, `{"pools": [], "items": [], "pagination": {"total": 0}}`)
	r.knowsNo("pool", "GET /admin/pools/p", "")
	const critical = `{"name": "critical-workers", "queues": ["critical", "payments"], "concurrency": 20, "strategy": "strict",
		"isolated": false, "active_workers": 0, "active_jobs": 0}`
	r.gives("PUT /admin/pools/critical-workers", `{"queues": ["critical", "payments"], "concurrency": 20, "strategy": "strict"}`, 200,
		`{"name": "critical-workers", "pool": `+critical+`}`)
	// The forms of the public suite: an object of queues, and a pool under pool.
	r.gives("PUT /admin/pools/w", `{"name": "w", "strategy": "weighted", "queues": {"a": {"weight": 70}, "b": {"weight": 30}}}`, 200,
		`{"pool": {"name": "w", "queues": ["a", "b"], "weights": {"a": 70, "b": 30}}, "strategy": "weighted"}`)
	r.gives("PUT /admin/pools/general", `{"pool": {"name": "general", "queues": ["critical", "default", "analytics"], "strategy": "strict",
		"starvation_prevention": {"enabled": true, "rotation_interval": "PT30S", "min_dispatch_ratio": 0.10}}}`, 200,
		`{"starvation_prevention": {"enabled": true, "rotation_interval": "PT30S", "min_dispatch_ratio": 0.10}}`)
	r.gives("PUT /admin/pools/*", `{"strategy": "round-robin"}`, 200, `{"name": "*", "strategy": "round-robin"}`)
	r.gives("GET /admin/pools?limit=2", "", 200, `{"pools": [{"name": "*"}, `+critical+`],
		"items": [{"name": "*"}, {"name": "critical-workers"}], "pagination": {"total": 4, "has_more": true}}`)

	// What runs, in whose hands.
	r.sql("select ojs.register_worker('w1', p_pool => 'critical-workers')")
	r.sql("select ojs.enqueue_bulk('a', array_fill('[]'::json, array[3]), p_queue => 'payments')")
	r.sql("select ojs.fetch('{payments}', 2, 'w1')")
	r.gives("GET /admin/pools/critical-workers", "", 200, `{"active_workers": 1, "active_jobs": 2, "utilization": 0.1, "dispatched": 2,
		"dispatch_count_1m": 2, "dispatch_ratio_1m": 1, "dispatch_count_1h": 2, "avg_wait_ms": "*", "p95_wait_ms": "*"}`)

	r.refuses("DELETE /admin/pools/critical-workers", "", 409, "confirm")
	r.gives("DELETE /admin/pools/critical-workers", `{"confirm": true}`, 200, `{"name": "critical-workers", "deleted": true}`)
	r.gives("DELETE /admin/pools/w?confirm=true", "", 200, `{"deleted": true}`)
	r.knowsNo("pool", "DELETE /admin/pools/w", "")

	for body, field := range map[string]string{
		`{"queues": []}`:                       "queues",
		`{"pool": {"concurrency": 0}}`:         "concurrency",
		`{"strategy": "fair"}`:                 "strategy",
		`{"pool": {}, "queues": ["a"]}`:        "queues",
		`{"pool": 1}`:                          "pool",
		`{"weights": {"a": 1e999999999}}`:      "weights.a",
		`{"starvation_prevention": "enabled"}`: "starvation_prevention",
	} {
		status := 422
		if field == "pool" || body == `{"pool": {}, "queues": ["a"]}` || field == "weights.a" {
			status = 400
		}
		r.refuses("PUT /admin/pools/p", body, status, field)
	}
	for _, route := range []string{"GET /admin/pools", "GET /admin/pools/p", "PUT /admin/pools/p", "DELETE /admin/pools/p"} {
		body := ""
		if route == "PUT /admin/pools/p" {
			body = "{}"
		}
		r.as("acme").refuses(route, body, 422, names.TenantHeader)
	}
}
