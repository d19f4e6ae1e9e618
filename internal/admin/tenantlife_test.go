package admin

import "testing"

func TestTenantLife(t *testing.T) {
	t.Parallel()
	r := start(t)
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
	r.gives("DELETE /admin/tenants/acme", `{"confirm": "acme", "reason": "left"}`, 202, `{"id": "acme", "state": "deregistering", "jobs": 2}`)
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "deregistering"}`)
	r.sql("select ojs.tick()")
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "active", "stats": {"jobs": {"available": 0, "cancelled": 2}}}`)
	r.gives("DELETE /admin/tenants/globex", "", 404, `{"error": {"code": "not_found"}}`)

	acme := r.as("acme")
	for _, call := range []string{"DELETE /admin/tenants/acme", "POST /admin/tenants/acme/suspend", "POST /admin/tenants/acme/unsuspend"} {
		acme.refuses(call, "", 422, "X-OJS-Tenant")
	}
	r.refuses("POST /admin/tenants/-/suspend", "", 400, "id")
	r.refuses("POST /admin/tenants/acme/suspend", `{"why": "x"}`, 400, "why")
}
