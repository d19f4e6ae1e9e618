package httpapi

import "testing"

func TestTiers(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
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

// PUT of a tenant gives it a tier with all else, and what the body has of its own goes before the tier's.
func TestTierOfATenantsConfiguration(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("PUT /admin/tiers/standard", `{"limits": {"max_concurrency": 10, "max_queue_depth": 50000}, "fairness_weight": 5}`, 200, `"*"`)
	r.gives("PUT /admin/tenants/acme", `{"weight": 2}`, 201, `{"weight": 2, "tier": null}`)

	r.gives("PUT /admin/tenants/beta", `{"tier": "standard", "limits": {"max_concurrency": 15}, "fairness": {"weight": 7.5},
		"priority_boost": 2, "max_priority": 9, "reason": "sold"}`, 201, `{"tier": "standard", "weight": 7.5, "priority_boost": 2,
		"max_priority": 9, "limits": {"max_concurrency": 15, "max_queue_depth": 50000}}`)
	r.gives("GET /admin/audit?tenant=beta", "", 200, `{"items": [{"kind": "tenant", "new": {"max_priority": 9}, "reason": "sold"},
		{"kind": "rule", "new": {"max_concurrency": 15}, "reason": "sold"}, {"kind": "tenant", "new": {"weight": 7.5}, "reason": "sold"},
		{"kind": "limit", "new": {"maximum": 50000}, "reason": "sold"}, {"kind": "tier", "new": {"tier": "standard"}, "reason": "sold"},
		{"kind": "tenant", "action": "created"}]}`)
	r.gives("GET /admin/tenants", "", 200, `{"items": [{"id": "acme", "tier": null}, {"id": "beta", "tier": "standard"}]}`)
	r.as("beta").gives("GET /admin/tenants/beta", "", 200, `{"tier": "standard"}`)
	// Without the field it stays, and what is configured otherwise, too.
	r.gives("PUT /admin/tenants/beta", `{"weight": 3}`, 200, `{"tier": "standard", "weight": 3, "limits": {"max_concurrency": 15}}`)
	r.gives("PUT /admin/tenants/beta", `{"tier": "standard"}`, 200, `{"tier": "standard", "weight": 5, "limits": {"max_concurrency": 10}}`)
	r.gives("PUT /admin/tenants/beta", `{"tier": null, "priority_boost": 3}`, 200, `{"tier": null, "weight": 5, "priority_boost": 3,
		"limits": {"max_concurrency": 10, "max_queue_depth": 50000}}`)

	const put = "PUT /admin/tenants/acme"
	r.gives(put, `{"tier": "none", "weight": 9}`, 404, `{"error": {"code": "not_found", "details": {"field": "tier"}}}`)
	r.refuses(put, `{"tier": 5}`, 400, "tier")
	r.refuses(put, `{"tier": "standard", "fairness": {"weight": 0}}`, 422, "fairness.weight")
	r.refuses(put, `{"tier": "standard", "limits": {"max_concurrency": 0}}`, 422, "limits.max_concurrency")
	r.refuses(put, `{"tier": "standard", "limits": {"max_jobs": 5}}`, 422, "limits.max_jobs")
	r.refuses(put, `{"tier": "standard", "max_priority": 101}`, 422, "max_priority")
	r.gives("GET /admin/tenants/acme", "", 200, `{"tier": null, "weight": 2, "limits": {}}`)
}
