package httpapi

import "testing"

func TestTenantLife(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const enqueue = "select ojs.enqueue('a', p_tenant => 'acme')"
	r.sql(enqueue)
	r.gives("GET /admin/tenants/acme", "", 200, `{"id": "acme", "state": "active"}`)
	r.gives("POST /admin/tenants/acme/pause", "", 200, `{"paused": true}`)
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "paused"}`)
	r.gives("POST /admin/tenants/acme/suspend", `{"reason": "unpaid"}`, 200, `{"id": "acme", "state": "suspended"}`)
	// To resume dispatch is another thing than to take new jobs.
	r.gives("POST /admin/tenants/acme/resume", "", 200, `{"paused": false}`)
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "suspended"}`)
	r.gives("POST /admin/tenants/acme/unsuspend", `{"reason": "paid"}`, 200, `{"state": "active"}`)
	r.sql(enqueue)
	r.gives("GET /admin/audit?tenant=acme&limit=1", "", 200, `{"items": [{"action": "resumed", "reason": "paid"}]}`)

	r.gives("DELETE /admin/tenants/acme", `{"confirm": "globex"}`, 409, `{"error": {"details": {"field": "confirm", "jobs": 2}}}`)
	r.gives("DELETE /admin/tenants/acme", `{"confirm": "acme", "reason": "left"}`, 202,
		`{"id": "acme", "state": "deregistering", "jobs": 2}`)
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "deregistering"}`)
	// On a slow machine one tick is not enough.
	for range 5 {
		r.sql("select ojs.tick()")
	}
	// Its jobs have ended, so it is gone, until a new tenant of its name has jobs.
	r.gives("GET /admin/tenants/acme", "", 404, `{"error": {"code": "not_found"}}`)
	r.gives("DELETE /admin/tenants/acme", "", 404, `{"error": {"code": "not_found"}}`)
	r.gives("GET /admin/tenants", "", 200, `{"items": []}`)
	r.gives("DELETE /admin/tenants/globex", "", 404, `{"error": {"code": "not_found"}}`)
	r.sql(enqueue)
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "active", "stats": {"jobs": {"available": 1, "cancelled": 2}}}`)
	r.refuses("DELETE /admin/tenants/acme", `{"confirm": "acme", "erase_after": "a month"}`, 400, "erase_after")
	r.gives("DELETE /admin/tenants/acme", `{"confirm": "acme", "erase_after": "P30D"}`, 202, `{"state": "deregistering"}`)
	for range 5 {
		r.sql("select ojs.tick()")
	}
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "leaving"}`)
	// A second request brings the end forward.
	r.gives("DELETE /admin/tenants/acme", `{"erase_after": "PT0S"}`, 202, `{"state": "deregistering"}`)
	for range 5 {
		r.sql("select ojs.tick()")
		r.sql("select ojs.upkeep()")
	}
	r.gives("GET /admin/tenants/acme", "", 404, `{"error": {"code": "not_found"}}`)

	acme := r.as("acme")
	for _, call := range []string{"DELETE /admin/tenants/acme", "POST /admin/tenants/acme/suspend", "POST /admin/tenants/acme/unsuspend"} {
		acme.refuses(call, "", 422, "X-OJS-Tenant")
	}
	r.refuses("POST /admin/tenants/-/suspend", "", 400, "id")
	r.refuses("POST /admin/tenants/acme/suspend", `{"why": "x"}`, 400, "why")
}

// Multi-tenancy section 10.1: list, get, create and update, limits, deregister; the documents of sections 8.1 and 14.3 but for limits that
// are on enqueue.
func TestMT101TenantManagement(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const acme = "/admin/tenants/acme-corp"
	r.gives("PUT "+acme, `{"tenant_id": "acme-corp", "limits": {"max_concurrency": 20}, "fairness_weight": 10, "priority_boost": 0}`, 201,
		`{"id": "acme-corp", "name": "acme-corp", "state": "active", "limits": {"max_concurrency": 20}, "fairness_weight": 10,
		"priority_boost": 0, "created_at": "*", "stats": {"queues": 0, "workers": 0, "jobs": {"available": 0}}}`)
	r.gives("PUT "+acme, `{"fairness_weight": 5}`, 200, `{"limits": {"max_concurrency": 20}, "fairness_weight": 5}`)
	r.gives("PUT "+acme+"/limits", `{"max_concurrency": 5}`, 200, `{"limits": {"max_concurrency": 5}}`)
	r.gives("GET "+acme, "", 200, `{"limits": {"max_concurrency": 5}}`)
	r.gives("GET /admin/tenants", "", 200, `{"items": [{"id": "acme-corp", "stats": {"total_jobs": 0}}]}`)
	r.gives("PUT "+acme, `{"limits": {"max_concurrency": null}}`, 200, `{"limits": {}}`)
	r.gives("DELETE "+acme, "", 202, `{"jobs": 0}`)
	r.sql("select ojs.tick()")
	r.gives("GET /admin/tenants", "", 200, `{"items": []}`)
}

// Multi-tenancy section 10.2, the document as printed, of a tenant that has run and failed jobs.
func TestMT102TenantStatistics(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("PUT /admin/tenants/acme-corp", `{"limits": {"max_concurrency": 20}, "fairness_weight": 10}`, 201, `"*"`)
	r.sql("select ojs.enqueue('a', p_tenant => 'acme-corp') from generate_series(1, 9)")
	r.sql("select ojs.enqueue('a', p_tenant => 'acme-corp', p_scheduled_at => ojs.now() + interval '1 hour')")
	r.sql("select ojs.ack(id) from ojs.fetch('{default}', 3)")
	r.sql(`select ojs.nack(id, '{"code": "x", "message": "x"}') from ojs.fetch('{default}', 2)`)
	r.sql("select ojs.fetch('{default}', 3)")
	r.gives("GET /admin/tenants/acme-corp/stats", "", 200, `{"tenant_id": "acme-corp", "as_of": "*", "total_jobs": 10,
		"jobs": {"available": 1, "active": 3, "scheduled": 1, "completed_24h": 3, "failed_24h": 0, "attempts_failed_24h": 2},
		"throughput": {"processed_per_minute": 3, "enqueued_per_minute": 10, "attempts_failed_per_minute": 2},
		"limits": {"max_concurrency": {"limit": 20, "current": 3}},
		"fairness": {"weight": 10, "effective_share": 1, "actual_share": 1}}`)
	r.sql(`select ojs.nack(id, '{"code": "x", "message": "x", "retryable": false}') from ojs.fetch('{default}', 1)`)
	r.gives("GET /admin/tenants/acme-corp/stats", "", 200, `{"jobs": {"completed_24h": 3, "failed_24h": 1, "attempts_failed_24h": 3},
		"throughput": {"processed_per_minute": 4, "attempts_failed_per_minute": 3}}`)
	r.gives("GET /admin/stats", "", 200, `{"throughput": {"processed_per_minute": 4, "failed_per_minute": 1,
		"attempts_failed_per_minute": 3}, "as_of": "*"}`)
	r.gives("GET /queues/default/stats", "", 200, `{"completed_last_hour": 3, "failed_last_hour": 1, "attempts_failed_last_hour": 3}`)
}
