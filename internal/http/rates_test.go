package httpapi

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A tenant with a rate may send burst requests at once, and gets told how many are left. Others are not concerned.
func TestRequestsOfATenantKeepToItsRate(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("PUT", v1+"/admin/tenants/acme/limits", `{"max_request_rate": {"limit": 1, "period": "PT1H", "burst": 3}}`).want(200)
	for left := 2; left >= 0; left-- {
		r := a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, acme).want(201)
		if got := r.header.Get("X-RateLimit-Limit") + " " + r.header.Get("X-RateLimit-Remaining"); got != "3 "+strconv.Itoa(left) {
			t.Errorf("of its tokens there are %s, want 3 %d", got, left)
		}
	}
	for _, route := range []string{"GET /queues", "POST /workers/fetch", "POST /jobs"} {
		method, path, _ := strings.Cut(route, " ")
		r := a.do(method, v1+path, map[string]string{
			"/workers/fetch": `{"queues": ["default"], "worker_id": "w"}`, "/jobs": `{"type": "a", "args": []}`,
		}[path], acme).want(429)
		r.is(map[string]any{
			"error.code": "TENANT_LIMIT_EXCEEDED", "error.retryable": true, "error.tenant_id": "acme", "error.limit": "max_request_rate",
			"error.maximum": 1.0,
		})
		wantErrorShape(r)
		after, err := strconv.Atoi(r.header.Get("Retry-After"))
		if err != nil || after < 3590 || after > 3600 || r.header.Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("%s: the headers are %v", route, r.header)
		}
		if at, err := strconv.ParseInt(r.header.Get("X-RateLimit-Reset"), 10, 64); err != nil || at < time.Now().Unix()+3500 {
			t.Errorf("%s: X-RateLimit-Reset is %q", route, r.header.Get("X-RateLimit-Reset"))
		}
	}
	a.do("GET", v1+"/health", "", acme).want(200)
	if r := a.do("GET", v1+"/queues", "", "X-OJS-Tenant: globex").want(200); r.header.Get("X-RateLimit-Limit") != "" {
		t.Errorf("a tenant without a rate is told %v", r.header)
	}
	a.do("GET", v1+"/queues", "").want(200)

	// A change acts at once, through this server; the bucket is full again.
	a.do("PUT", v1+"/admin/tenants/acme/limits", `{"max_request_rate": null}`).want(200)
	for range 5 {
		a.do("GET", v1+"/queues", "", acme).want(200)
	}
	pgtest.Exec(t, a.pool, `select ojs.configure_tier('paid', '{"limits": {"max_request_rate": {"limit": 1000, "period": "PT1S"}}}'),
		ojs.set_tier('acme', 'paid')`)
	pgtest.Eventually(t, "the tier's rate acts", func() bool {
		return a.do("GET", v1+"/queues", "", acme).want(200).header.Get("X-RateLimit-Limit") == "1000"
	})
}
