package admin

import "testing"

func TestTiers(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.gives("GET /admin/tiers", "", 200, `{"items": [], "tiers": [], "pagination": {"total": 0}}`)
	r.gives("PUT /admin/tiers/standard", `{"limits": {"max_concurrency": 10, "max_queue_depth": 50000,
		"max_enqueue_rate": {"limit": 1000, "period": "PT1M"}}, "fairness_weight": 5}`, 200,
		`{"name": "standard", "config": {"fairness_weight": 5}, "tenants": 0, "due": 0}`)
	r.gives("PUT /admin/tiers/free", `{"config": {"limits": {"queue_depth": 1000}}}`, 200, `{"name": "free"}`)
	r.gives("PUT /admin/tiers/free", `{"limits": {"max_queue_depth": -1}}`, 422,
		`{"error": {"details": {"field": "max_queue_depth.limit"}}}`)
	r.gives("PUT /admin/tiers/no%20tier", `{}`, 404, `{"error": {"code": "not_found"}}`)
	r.gives("GET /admin/tiers/none", "", 404, `{"error": {"code": "not_found"}}`)
	r.gives("GET /admin/tiers/free", "", 200, `{"config": {"limits": {"queue_depth": 1000}}}`)

	r.gives("PUT /admin/tenants/standard-beta/tier", `{"tier": "standard", "reason": "sold"}`, 200,
		`{"tenant_id": "standard-beta", "tier": "standard"}`)
	r.gives("GET /admin/tenants/standard-beta", "", 200, `{"weight": 5, "limits": {"max_concurrency": 10}}`)
	r.gives("PUT /admin/tenants/standard-beta/tier", `{"tier": "none"}`, 404, `{"error": {"details": {"field": "tier"}}}`)
	r.gives("PUT /admin/tenants/standard-beta/tier", `{}`, 400, `{"error": {"details": {"field": "tier"}}}`)
	r.gives("GET /admin/tiers?limit=1&offset=1", "", 200, `{"tiers": [{"name": "standard", "tenants": 1}], "pagination": {"total": 2}}`)

	r.gives("DELETE /admin/tiers/standard", "", 409, `{"error": {"details": {"field": "confirm", "tenants": 1}}}`)
	r.gives("DELETE /admin/tiers/standard", `{"confirm": true}`, 200, `{"name": "standard", "deleted": true}`)
	r.gives("PUT /admin/tenants/standard-beta/tier", `{"tier": null}`, 200, `{"tier": null}`)
	r.gives("GET /admin/tenants/standard-beta", "", 200, `{"weight": 5, "limits": {"max_concurrency": 10}}`)
	r.gives("DELETE /admin/tiers/standard", "", 404, `{"error": {"code": "not_found"}}`)
}
