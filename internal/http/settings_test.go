package httpapi

import "testing"

func TestSettings(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const put = "PUT /admin/settings"
	r.gives("GET /admin/settings", "", 200, `{"default_tenant": "_default", "tenant_required": false, "unknown_tenants": "accept",
		"unsupported": "refuse", "tenant_fairness": {}, "default_retry": null, "timeout_ms": 1800000, "heartbeat_timeout_ms": 30000,
		"retention": "P7D", "journal_retention": "P1D", "idempotency_window": "P1D"}`)
	r.with("X-OJS-Reason", "a house").gives(put, `{"default_tenant": "house", "retention": "P14D"}`, 200,
		`{"default_tenant": "house", "retention": "P14D", "journal_retention": "P1D"}`)
	r.gives("GET /admin/audit?limit=1", "", 200,
		`{"items": [{"kind": "deployment", "new": {"default_tenant": "house"}, "reason": "a house"}]}`)
	r.gives("POST /jobs", `{"type": "t", "args": []}`, 201, `"*"`)
	r.as("house").gives("GET /jobs", "", 200, `{"items": [{"type": "t"}]}`)
	r.gives(put, `{"config": {"tenant_fairness": {"weights": {"tenant:house": 5}, "default_weight": 2}}}`, 200,
		`{"default_tenant": "house", "tenant_fairness": {"default_weight": 2}}`)
	r.gives("GET /admin/tenants/house", "", 200, `{"weight": 5}`)
	r.gives(put, `{}`, 200, `{"default_tenant": "house"}`)

	r.refuses(put, `{"defaultTenant": "x"}`, 400, "defaultTenant")
	r.refuses(put, `{"maintenance": true}`, 400, "maintenance")
	r.refuses(put, `{"default_tenant": "no tenant"}`, 422, "default_tenant")
	r.refuses(put, `{"default_tenant": null}`, 422, "default_tenant")
	r.refuses(put, `{"tenant_required": "yes"}`, 422, "tenant_required")
	r.refuses(put, `{"unknown_tenants": "ask"}`, 422, "unknown_tenants")
	r.refuses(put, `{"retention": "a week"}`, 422, "retention")
	r.refuses(put, `{"retention": "PT1S"}`, 422, "retention")
	r.refuses(put, `{"heartbeat_timeout_ms": 5}`, 400, "heartbeat_timeout_ms")
	r.refuses(put, `{"timeout_ms": 3000000000}`, 422, "timeout_ms")
	r.refuses(put, `{"tenant_fairness": {"default_weight": 0}}`, 422, "tenant_fairness.default_weight")
	r.refuses(put, `{"default_retry": {"max_attempts": -1}}`, 422, "default_retry.max_attempts")
	r.as("acme").gives(put, `{"default_tenant": "acme"}`, 422, `{"error": {"code": "unsupported"}}`)
	r.as("acme").gives("GET /admin/settings", "", 422, `{"error": {"code": "unsupported"}}`)
	r.gives("GET /admin/settings", "", 200, `{"default_tenant": "house", "retention": "P14D", "unknown_tenants": "accept"}`)
}
