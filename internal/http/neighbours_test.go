package httpapi

import "testing"

func TestNeighbours(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /admin/neighbours", "", 200, `{"settings": {"mode": "observe", "span_seconds": 300, "depth_ratio": 10, "rate_ratio": 5,
		"active_share": 0.5, "error_ratio": 3, "min_jobs": 1000, "min_active": 10, "action": "weight", "factor": 0.2, "lasts_seconds": 600},
		"noisy": [], "throttles": []}`)
	r.gives("PUT /admin/neighbours", `{"mode": "on", "min_jobs": 20, "depth_ratio": 4.5, "rate_ratio": 1000, "lasts": "PT1H"}`, 200,
		`{"settings": {"mode": "on", "min_jobs": 20, "depth_ratio": 4.5, "lasts_seconds": 3600}}`)
	r.gives("PUT /admin/neighbours", `{"lasts": "soon"}`, 400, `{"error": {"details": {"field": "lasts"}}}`)
	r.gives("PUT /admin/neighbours", `{"factor": 2}`, 422, `{"error": {"details": {"field": "factor"}}}`)
	r.gives("PUT /admin/neighbours", `{"depth": 2}`, 422, `{"error": {"details": {"field": "depth"}}}`)

	r.sql(`select ojs.enqueue_bulk('a', array_fill('[]'::json, array[n]), p_tenant => t)
		from unnest('{acme,globex}'::text[], '{100,5}'::int[]) u(t, n)`)
	r.sql("select ojs.register_waiters(gen_random_uuid(), '{default}')") // a worker waits, so that tenants have shares
	r.sql("select ojs.configure_tenant('acme', 10)")
	r.sql("select ojs.tick()")
	r.gives("GET /admin/neighbours", "", 200, `{
		"noisy": [{"tenant_id": "acme", "signal": "queue_depth_ratio", "value": 20, "threshold": 4.5}],
		"throttles": [{"tenant_id": "acme", "action": "weight", "original": 10, "effective": 2, "reason": "queue_depth_ratio_exceeded",
			"set_by": null}]}`)
	// What is configured stays; its part of the weights is 2 of 3.
	r.gives("GET /admin/tenants/acme", "", 200, `{"weight": 10, "stats": {"fairness": {"effective_share": 0.6667}}}`)
	for range 2 {
		r.gives("DELETE /admin/tenants/acme/throttle", "", 200, `{"tenant_id": "acme", "throttled": false}`)
	}
	r.gives("GET /admin/tenants/acme", "", 200, `{"weight": 10, "stats": {"fairness": {"effective_share": 0.9091}}}`)

	r.gives("POST /admin/tenants/globex/throttle", `{"action": "concurrency", "factor": 0.5, "lasts": "PT30M", "reason": "an outage"}`, 200,
		`{"throttle": {"tenant_id": "globex", "action": "concurrency", "original": null, "effective": 1, "reason": "an outage"}}`)
	r.gives("GET /admin/throttles", "", 200, `{"throttles": [{"tenant_id": "globex"}]}`)
	r.sql("select ojs.throttle('acme')")
	r.gives("GET /admin/throttles?per_page=1", "", 200, `{"items": [{"tenant_id": "acme"}],
		"pagination": {"limit": 1, "offset": 0, "has_more": true}}`)
	for _, page := range []string{"page=2", "offset=1"} {
		r.gives("GET /admin/throttles?per_page=1&"+page, "", 200, `{"items": [{"tenant_id": "globex"}],
			"pagination": {"limit": 1, "offset": 1, "has_more": false}}`)
	}
	r.gives("GET /admin/neighbours?page=1", "", 200, `{"throttles": [{"tenant_id": "acme"}, {"tenant_id": "globex"}]}`)
	r.refuses("GET /admin/neighbours?page=2", "", 422, "page")
	r.refuses("GET /admin/neighbours?offset=1", "", 422, "page")
	r.gives("POST /admin/tenants/globex/throttle", `{"factor": "much"}`, 400, `{"error": {"details": {"field": "factor"}}}`)
	r.gives("POST /admin/tenants/globex/throttle", `{"for": "ever"}`, 422, `{"error": {"details": {"field": "for"}}}`)
}
