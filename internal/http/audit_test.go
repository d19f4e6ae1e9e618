package httpapi

import (
	"strings"
	"testing"
)

// Multi-tenancy section 9.3, the document as printed: a limit is lowered, and why stands in the audit trail.
func TestMT93TheReasonIsKept(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const why = "Incident response: reducing capacity during downstream outage"
	r.gives("PUT /admin/tenants/acme-corp/limits", `{"max_concurrency": 5, "reason": "`+why+`"}`, 200, `{"limits": {"max_concurrency": 5}}`)
	r.gives("GET /admin/audit?tenant=acme-corp&action=limited", "", 200, `{"items": [{"tenant_id": "acme-corp", "kind": "rule",
		"action": "limited", "new": {"max_concurrency": 5}, "reason": "`+why+`"}], "pagination": {"has_more": false}}`)
}

func TestAudit(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("PUT /admin/tenants/acme", `{"weight": 2, "reason": "upgrade"}`, 201, `"*"`)
	r.with("X-OJS-Reason", "tuning").gives("PUT /admin/pools/p", `{"concurrency": 3}`, 200, `"*"`)
	r.gives("POST /admin/tenants/globex/pause", `{"reason": "abuse"}`, 200, `"*"`)
	r.gives("POST /admin/tenants/globex/resume", `{"reason": "sorted out"}`, 200, `"*"`)
	r.gives("GET /admin/audit", "", 200, `{"audit": [
		{"tenant_id": "globex", "kind": "rule", "action": "resumed", "reason": "sorted out"},
		{"tenant_id": "globex", "kind": "rule", "action": "paused", "reason": "abuse"},
		{"kind": "pool", "name": "p", "action": "created", "new": {"max_concurrency": 3}, "reason": "tuning"},
		{"tenant_id": "acme", "kind": "tenant", "action": "created", "new": {"weight": 2}, "reason": "upgrade"}
	]}`)

	// Pages go on behind what has been shown, whatever has come meanwhile.
	r.gives("GET /admin/audit?limit=2", "", 200, `{"items": [{"action": "resumed"}, {"action": "paused"}],
		"pagination": {"has_more": true, "next_cursor": "3"}}`)
	r.gives("PUT /admin/tenants/acme", `{"weight": 3}`, 200, `"*"`)
	r.gives("GET /admin/audit?limit=2&cursor=3", "", 200, `{"items": [{"kind": "pool"}, {"action": "created"}]}`)
	// A page may have a number, too, counted from the latest or from a cursor.
	r.gives("GET /admin/audit?page=2&per_page=2", "", 200, `{"items": [{"action": "paused"}, {"kind": "pool"}],
		"pagination": {"page": 2, "per_page": 2, "has_more": true, "next_cursor": "2"}}`)
	r.gives("GET /admin/audit?cursor=3&offset=1", "", 200, `{"items": [{"action": "created", "tenant_id": "acme"}]}`)
	r.gives("GET /admin/audit?page=4&per_page=2", "", 200, `{"items": [], "pagination": {"has_more": false}}`)
	r.gives("GET /admin/audit?action=changed", "", 200, `{"items": [{"old": {"weight": 2}, "new": {"weight": 3}}]}`)
	r.gives("GET /admin/audit?actor=nobody", "", 200, `{"items": []}`)
	r.refuses("GET /admin/audit?cursor=x", "", 400, "cursor")
	r.refuses("GET /admin/audit?tenant=%20", "", 400, "tenant")
	r.refuses("GET /admin/audit?tenant=acme-corp&tenant_id=acme", "", 400, "tenant")
	r.gives("GET /admin/audit?tenant_id=nobody", "", 200, `{"items": []}`)

	// A tenant sees what is about itself.
	r.as("acme").gives("GET /admin/audit", "", 200, `{"items": [{"n": 2, "new": {"weight": 3}}, {"n": 1, "new": {"weight": 2}}]}`)
	r.as("acme").gives("GET /admin/audit?limit=1", "", 200, `{"items": [{"n": 2}], "pagination": {"next_cursor": "2"}}`)
	r.as("acme").gives("GET /admin/audit?limit=1&cursor=2", "", 200, `{"items": [{"n": 1}]}`)
	r.as("acme").gives("GET /admin/audit?limit=1&page=2", "", 200, `{"items": [{"n": 1}]}`)
	// But not why others did it.
	r.sql("select ojs.throttle('acme', 'flood')")
	if _, got := r.as("acme").send("GET /admin/audit", ""); !strings.Contains(got, `"throttle"`) || strings.Contains(got, "flood") ||
		strings.Contains(got, "upgrade") {
		t.Errorf("a tenant reads others' reasons: %s", got)
	}
	r.as("initech").gives("GET /admin/audit", "", 200, `{"items": []}`)
	r.as("acme").knowsNo("tenant", "GET /admin/audit?tenant=globex", "")
}
