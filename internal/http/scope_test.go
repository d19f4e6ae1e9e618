package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// takesTenant are the routes whose body has a tenant of its own: a filter, or the tenant that is configured.
var takesTenant = []string{
	"POST /ojs/v1/dead-letter/retry", "POST /ojs/v1/dead-letter/purge", "DELETE /ojs/v1/dead-letter",
	"POST /ojs/v1/admin/dead-letter/retry", "POST /ojs/v1/admin/dead-letter/purge", "DELETE /ojs/v1/admin/dead-letter",
	"POST /ojs/v1/admin/jobs/bulk/retry", "POST /ojs/v1/admin/jobs/bulk/cancel", "POST /ojs/v1/admin/api-keys",
	"PUT /ojs/v1/admin/tenants/:id", "PUT /ojs/v1/admin/tenants/:id/limits",
}

// with returns a body with a member more, in front of the others.
func with(body, name string) string {
	body = strings.TrimSpace(body)
	if body == "" || body == "{}" {
		return `{"` + name + `":"acme"}`
	}
	return `{"` + name + `":"acme",` + body[1:]
}

// A request that names something that a route does not know acts on nothing: the route would act on more than the client meant.
func TestEveryRouteRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	a := start(t)
	routes := a.srv.handler.(*echo.Echo).Routes()
	slices.SortFunc(routes, func(a, b *echo.Route) int { return strings.Compare(a.Method+a.Path, b.Method+b.Path) })
	for _, route := range routes {
		name := route.Method + " " + route.Path
		mounted := a.srv.mounted[routeKey{route.Method, route.Path}]
		if route.Method == http.MethodHead || mounted == nil || mounted.Scope == scopeOpen || slices.Contains(refusedAnyway, name) ||
			slices.Contains(refusedAnyway, name+" {}") {
			continue
		}
		path := strings.NewReplacer(":id", someID, ":name", "default").Replace(route.Path)
		body := ""
		if route.Method != http.MethodGet && route.Method != http.MethodDelete {
			body = "{}"
		}
		for _, key := range []string{route.Path, name} {
			if bodies, known := someBody[key]; known && (route.Method != http.MethodGet) {
				body = bodies[0]
			}
		}
		refused := func(what string, r *reply, status int, field string) {
			t.Helper()
			if r.status == 422 && status == 400 && strings.Contains(what, "member") {
				status = 422 // a setting that the server does not have
			}
			if r.status != status || field != "" && r.text("error.details.field") != field {
				t.Errorf("%s with %s: %d %s", name, what, r.status, r.body)
			}
		}
		refused("a parameter", a.do(route.Method, path+"?colour=red", body), 422, "colour")
		if mounted.scoped {
			refused("a header", a.do(route.Method, path, body, "X-Tenant: acme"), 400, "X-Tenant")
		}
		if !slices.Contains(mounted.Parameters(), "tenant") && !strings.Contains(mounted.Query, "tenant") {
			refused("a tenant in the query", a.do(route.Method, path+"?tenant=acme", body), 422, "tenant")
		}
		if route.Method == http.MethodGet {
			continue
		}
		refused("a member", a.do(route.Method, path, with(body, "colour")), 400, "colour")
		for _, spelling := range []string{"tenant", "tenant_id", "tenantId", "Tenant-ID", "TENANT"} {
			if slices.Contains(takesTenant, name) && (spelling == "tenant" || spelling == "tenant_id") {
				continue
			}
			refused("a member "+spelling, a.do(route.Method, path, with(body, spelling)), 400, spelling)
		}
	}
	// The error says where a scope belongs.
	for _, c := range []struct{ path, body, says string }{
		{"queues/default/pause", `{"tenant_id":"acme"}`, "pause one tenant in a queue with POST /ojs/v1/admin/tenants/{id}/pause"},
		{"admin/workers/directive", `{"directive":"terminate","pool":"payments"}`, "goes to one worker, to a tenant's workers, or to all"},
		{"admin/workers/directive", `{"directive":"terminate","worker_id":"w"}`, "POST /ojs/v1/admin/workers/{id}/directive"},
		{"workers/fetch", `{"queues":["q"],"tenantId":"zzz"}`, "X-OJS-Tenant"},
		{"jobs/batch", `{"tenant_id":"acme","jobs":[{"type":"a","args":[]}]}`, "X-OJS-Tenant"},
		{"jobs", `{"type":"a","args":[],"tenantId":"acme"}`, "meta.tenant_id"},
		{"jobs", `{"type":"a","args":[],"options":{"tenantId":"acme"}}`, "meta.tenant_id"},
		{"jobs", `{"type":"a","args":[],"meta":{"tenantId":"acme"}}`, "meta.tenant_id"},
		{"jobs", `{"type":"a","args":[],"options":{"metadata":{"tenant":"a"}}}`, "meta.tenant_id"},
	} {
		r := a.do("POST", v1+"/"+c.path, c.body).want(400)
		if !strings.Contains(r.text("error.message"), c.says) {
			t.Errorf("%s %s: %s, want %s", c.path, c.body, r.text("error.message"), c.says)
		}
	}
}
