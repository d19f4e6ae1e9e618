package httpapi

import (
	"strings"
	"testing"
)

// With curl alone an operator learns what is wrong, and whose jobs cannot be handed out.
func TestDoctorOverHTTP(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /admin/blocked", "", 200, `{"blocked": [], "items": []}`)
	r.sql(`select ojs.enqueue_bulk('a', array_fill('[]'::json, array[n]), p_queue => 'billing', p_tenant => t)
		from unnest('{acme,globex}'::text[], '{5,3}'::int[]) u(t, n)`)
	r.sql("select ojs.pause('billing', p_reason => 'deploy of billing')")
	r.gives("GET /admin/blocked?limit=1", "", 200, `{"blocked": [{"tenant_id": "acme", "queue": "billing", "available": 5, "active": 0,
		"why": "the queue is paused"}], "pagination": {"limit": 1, "offset": 0, "has_more": true}}`)
	r.gives("GET /admin/blocked?limit=1&offset=1", "", 200, `{"items": [{"tenant_id": "globex"}], "pagination": {"has_more": false}}`)

	r.sql("select ojs.hold_dispatch()")
	// The test's PostgreSQL has fsync = off.
	r.gives("GET /admin/doctor", "", 200, `{"worst": "error"}`)
	if _, got := r.send("GET /admin/doctor", ""); !strings.Contains(got, "Dispatch is held since") || !strings.Contains(got,
		"after-restore.md") {
		t.Errorf("it answers %s", got)
	}
	for _, path := range []string{"/admin/doctor", "/admin/blocked"} {
		r.as("acme").refuses("GET "+path, "", 422, "X-OJS-Tenant")
	}
}
