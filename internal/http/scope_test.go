package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
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

// A member that narrows a request and is null acts on nothing: the variable of the client was empty,
// and without the member the request would act on everything.
func TestANullScopeActsOnNothing(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, tenant := range []string{"acme", "globex"} {
		for range 2 {
			a.do("POST", v1+"/jobs", `{"type":"a","args":[],"options":{"queue":"mail"}}`, "X-OJS-Tenant: "+tenant).want(201)
		}
	}
	refuse := func(method, path, body, field string) {
		t.Helper()
		r := a.do(method, v1+path, body)
		if r.status != 400 || r.text("error.details.field") != field {
			t.Errorf("%s %s %s: %d %s", method, path, body, r.status, r.body)
		}
	}
	both := []string{"queue", "type", "tenant", "tenant_id", "since", "until"}
	for path, members := range map[string][]string{
		"/admin/jobs/bulk/cancel": append(both[:len(both):len(both)], "state"),
		"/admin/jobs/bulk/retry":  append(both[:len(both):len(both)], "state", "error_type", "older_than"),
		"/dead-letter/retry":      append(both[:len(both):len(both)], "error_type", "older_than"),
		"/dead-letter/purge":      append(both[:len(both):len(both)], "error_type", "older_than"),
	} {
		refuse("POST", path, `{"filter":null,"confirm":true}`, "filter")
		if strings.Contains(path, "bulk") {
			refuse("POST", path, `{"ids":null,"confirm":true}`, "ids")
		}
		for _, member := range members {
			refuse("POST", path, `{"filter":{"`+member+`":null},"confirm":true}`, "filter."+member)
			if !strings.Contains(path, "bulk") {
				refuse("POST", path, `{"`+member+`":null,"confirm":true}`, member)
			}
		}
	}
	refuse("POST", "/admin/tenants/acme/pause", `{"queue":null}`, "queue")
	refuse("POST", "/admin/tenants/acme/resume", `{"queue":null}`, "queue")
	refuse("PUT", "/admin/tenants/acme/limits", `{"max_queue_depth":5,"queue":null}`, "queue")
	refuse("POST", "/admin/api-keys", `{"tenant_id":null,"scopes":["admin"]}`, "tenant_id")
	refuse("POST", "/admin/api-keys", `{"tenant_id":"acme","scopes":["read"],"queues":null}`, "queues")
	if waiting := pgtest.One[int](t, a.pool, "select count(*)::int from ojs.jobs where state = 'available'"); waiting != 4 {
		t.Errorf("%d jobs are available, want 4", waiting)
	}
}

// A filter in the query that is empty selects nothing: the variable of the client was empty. One that
// stands there twice is refused, too, because the server would read one of the two.
func TestAnEmptyOrRepeatedParameterIsRefused(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", v1+"/jobs", `{"type":"a","args":[]}`, "X-OJS-Tenant: acme").want(201)
	refused := func(path, query, field string) {
		t.Helper()
		r := a.do("GET", path+query, "")
		if r.status != 400 || r.text("error.details.field") != field {
			t.Errorf("GET %s%s: %d %s", path, query, r.status, r.body)
		}
	}
	filters := 0
	for key, mounted := range a.srv.mounted {
		if key.method != http.MethodGet || mounted.Scope == scopeOpen {
			continue
		}
		path := strings.NewReplacer(":id", someID, ":name", "default").Replace(key.path)
		for _, name := range mounted.Parameters() {
			refused(path, "?"+name+"=1&"+name+"=2", name)
			if slices.Contains(mayBeEmpty, name) {
				continue
			}
			refused(path, "?"+name+"=", name)
			filters++
		}
	}
	if filters < 20 {
		t.Errorf("only %d filters in queries", filters)
	}
	a.do("GET", v1+"/jobs?cursor=&limit=&tenant=acme", "").want(200)
}
