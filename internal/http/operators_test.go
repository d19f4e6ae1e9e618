package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// room has the handlers of operators, mounted as a server mounts them, on a database of its own.
type room struct {
	*testing.T
	db      *pgtest.DB
	handler http.Handler
	headers map[string]string
}

func startOperators(t *testing.T) *room {
	t.Helper()
	a := start(t)
	return &room{T: t, db: a.db, handler: a.srv.Handler()}
}

// with is the room for requests that have a header.
func (r *room) with(name, value string) *room {
	with := *r
	with.headers = map[string]string{name: value}
	return &with
}

func (r *room) as(tenant string) *room { return r.with(names.TenantHeader, tenant) }

func (r *room) sql(query string, args ...any) {
	r.Helper()
	pgtest.Exec(r, r.db.Pool, query, args...)
}

// send calls a route, such as "GET /queues".
func (r *room) send(call, body string) (status int, answer string) {
	method, path, _ := strings.Cut(call, " ")
	req := httptest.NewRequestWithContext(r.Context(), method, v1+path, strings.NewReader(body))
	req.Header.Set(requestIDHeader, "test") // errors name it
	for name, value := range r.headers {
		req.Header.Set(name, value)
	}
	rec := httptest.NewRecorder()
	r.handler.ServeHTTP(rec, req)
	answered := &reply{t: r.T, status: rec.Code, header: rec.Header(), body: rec.Body.String()}
	if strings.Contains(rec.Header().Get("Content-Type"), "json") {
		if err := answered.parse(); err != nil {
			r.Errorf("%s is answered with no JSON: %s", call, answered.body)
		}
		checkContract(r.T, r.handler.(*echo.Echo), req, body, answered)
	}
	return rec.Code, rec.Body.String()
}

// gives wants a call to be answered with status and with what want says.
func (r *room) gives(call, body string, status int, want string) {
	r.Helper()
	var got, wanted any
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		r.Fatalf("%s: %v", want, err)
	}
	code, answer := r.send(call, body)
	if err := json.Unmarshal([]byte(answer), &got); err != nil || code != status || !holds(got, wanted) {
		r.Errorf("%s %s is answered with\n%d %s, want\n%d %s", call, body, code, answer, status, want)
	}
}

// refuses wants a call to be refused for what a field holds.
func (r *room) refuses(call, body string, status int, field string) {
	r.Helper()
	r.gives(call, body, status, fmt.Sprintf(`{"error": {"details": {"field": %q}}}`, field))
}

// knowsNo wants a call to be refused for a name that stands for nothing.
func (r *room) knowsNo(what, call, body string) {
	r.Helper()
	r.gives(call, body, 404, fmt.Sprintf(`{"error": {"code": "not_found", "details": {"resource_type": %q}}}`, what))
}

// holds compares an answer with what is wanted of it. It may have more fields; a list has no more items, and {} is empty. "*" stands for
// something, null for nothing.
func holds(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		ok = ok && (len(want) > 0 || len(object) == 0)
		for name, value := range want {
			ok = ok && holds(object[name], value)
		}
		return ok
	case []any:
		list, ok := got.([]any)
		ok = ok && len(list) == len(want)
		for i := range want {
			ok = ok && holds(list[i], want[i])
		}
		return ok
	}
	return want == "*" && got != nil || got == want
}

func TestQueues(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /queues", "", 200, `{"queues": [], "items": [], "pagination": {"total": 0, "has_more": false}}`)
	r.sql(`select ojs.enqueue_many('[
		{"type": "a", "args": [], "queue": "mail"}, {"type": "a", "args": [], "queue": "mail"}, {"type": "a", "args": [], "queue": "mail"},
		{"type": "a", "args": [], "queue": "mail", "scheduled_at": "2099-01-01T00:00:00Z", "tenant": "acme"},
		{"type": "a", "args": [], "queue": "mail", "pending": true}, {"type": "a", "args": [], "queue": "reports"}]')`)
	r.sql("select ojs.ack(f.id) from ojs.fetch('{mail}', 1, 'w1') f")
	r.sql("select ojs.fetch('{mail}', 1, 'w1')")

	r.gives("GET /queues", "", 200, `{"queues": [{"name": "mail", "status": "active"}, {"name": "reports"}],
		"items": [{"name": "mail"}, {"name": "reports"}], "pagination": {"total": 2}}`)
	// Since when a queue is there, is noted by the roll-up of the tick, or when it is configured.
	r.sql("select ojs.tick()")
	r.sql("select ojs.configure_queue('later', '{}')")
	r.gives("GET /queues", "", 200, `{"queues": [{"name": "later", "created_at": "*"}, {"name": "mail", "created_at": "*"},
		{"name": "reports", "created_at": "*"}]}`)
	r.as("acme").gives("GET /queues", "", 200, `{"queues": [{"name": "mail", "created_at": "*"}]}`)
	r.sql("select ojs.delete_queue('later')")
	r.gives("GET /queues?limit=1", "", 200, `{"queues": [{"name": "mail"}], "pagination": {"total": 2, "has_more": true, "limit": 1}}`)
	r.gives("GET /queues?limit=1&offset=1", "", 200, `{"queues": [{"name": "reports"}], "pagination": {"total": 2, "has_more": false}}`)
	r.gives("GET /queues?page=2&per_page=1", "", 200, `{"items": [{"name": "reports"}], "pagination": {"page": 2, "per_page": 1}}`)
	r.gives("GET /queues?offset=9", "", 200, `{"items": [], "pagination": {"total": 2, "has_more": false}}`)
	r.gives("GET /queues?page=2&per_page=1&offset=1", "", 200, `{"items": [{"name": "reports"}]}`)
	r.refuses("GET /queues?page=1&offset=1", "", 400, "offset")
	r.refuses("GET /queues?limit=0", "", 400, "limit")

	const numbers = `"name": "mail", "status": "active", "paused": false, "total_jobs": 5, "oldest_wait_ms": "*", "depth": 3,
		"available": 1, "active": 1, "scheduled": 1, "pending": 1, "retryable": 0, "completed": 1, "cancelled": 0, "discarded": 0,
		"failed_attempts": 0`
	const rates = `"completed_last_hour": 1, "failed_last_hour": 0, "avg_wait_ms": "*", "throughput_per_second": 0.02`
	r.gives("GET /queues/mail", "", 200,
		`{"name": "mail", "state": "active", "config": {}, "queue": {`+numbers+`}, "stats": {`+numbers+`}}`)
	r.gives("GET /queues/mail/stats", "", 200,
		`{"queue": {`+numbers+`}, "stats": {"queue": "mail", `+numbers+`, `+rates+`}, `+numbers+`, `+rates+`, "computed_at": "*"}`)
	r.with(versionHeader, goSDKVersion).gives("GET /queues/mail/stats", "", 200,
		`{"queue": "mail", "stats": {`+numbers+`}, `+numbers+`}`)
	r.gives("GET /queues/never-used/stats", "", 200, `{"name": "never-used", "status": "active", "paused": false, "available": 0,
		"stats": {"completed_last_hour": 0}}`)
	// A name with a slip of the pen looks like a queue that is healthy.
	r.gives("GET /queues/never-used", "", 200, `{"name": "never-used", "exists": false}`)
	r.gives("GET /queues/never-used/stats", "", 200, `{"exists": false}`)
	r.as("globex").gives("GET /queues/reports", "", 200, `{"exists": false}`)
	r.gives("GET /queues/mail", "", 200, `{"exists": true}`)
	r.gives("GET /queues/mail/stats", "", 200, `{"exists": true}`)
	r.knowsNo("queue", "GET /queues/No", "")
	r.knowsNo("queue", "GET /queues/No/stats", "")
	const counts = `"counts": {"available": 1, "active": 1, "scheduled": 1, "pending": 1, "retryable": 0, "completed": 1, "cancelled": 0,
		"discarded": 0}`
	const speed = `"throughput": {"processed_per_minute": 1, "failed_per_minute": 0}, "latency_ms": {"p50": "*", "p95": "*", "p99": "*"}`
	r.gives("GET /admin/queues", "", 200, `{"items": [{"name": "mail", "state": "active", `+counts+`, `+speed+`}, {"name": "reports"}],
		"pagination": {"total": 2}}`)
	r.gives("GET /admin/queues/mail", "", 200, `{"name": "mail", "state": "active", "paused": false, "configuration": {}, `+counts+`}`)
	r.gives("GET /admin/stats", "", 200, `{"queues": 2, "workers": 0, "jobs": {"available": 2, "active": 1, "scheduled": 1, "pending": 1,
		"retryable": 0, "completed": 1, "cancelled": 0, "discarded": 0},
		"throughput": {"enqueued_per_minute": 6, "processed_per_minute": 1, "failed_per_minute": 0}}`)
	r.as("acme").gives("GET /admin/stats", "", 200, `{"queues": 1, "jobs": {"available": 0, "scheduled": 1},
		"throughput": {"enqueued_per_minute": 1, "processed_per_minute": 0}}`)
	r.gives("GET /admin/tenants/acme/stats", "", 200, `{"jobs": {"completed_24h": 0, "failed_24h": 0},
		"throughput": {"enqueued_per_minute": 1, "processed_per_minute": 0}}`)

	acme := r.as("acme")
	acme.gives("GET /queues", "", 200, `{"queues": [{"name": "mail", "scheduled": 1, "available": 0}], "pagination": {"total": 1}}`)
	acme.gives("GET /queues/mail", "", 200, `{"queue": {"scheduled": 1, "available": 0, "depth": 1}}`)
	acme.gives("GET /queues/reports/stats", "", 200, `{"name": "reports", "available": 0, "total_jobs": 0}`)

	r.gives("POST /queues/mail/pause", "", 200, `{"queue": {"name": "mail", "paused": true, "status": "paused", "paused_at": "*"},
		"status": "paused", "paused": true, "paused_at": "*"}`)
	for _, who := range []*room{r, acme} {
		who.gives("GET /queues/mail/stats", "", 200, `{"queue": {"paused": true}, "status": "paused"}`)
	}
	for _, verb := range []string{"pause", "resume"} {
		acme.refuses("POST /queues/mail/"+verb, "", 422, names.TenantHeader)
		r.knowsNo("queue", "POST /queues/No/"+verb, "")
	}
	r.gives("POST /queues/mail/resume", "", 200, `{"queue": {"name": "mail", "paused": false, "status": "active"}, "paused": false}`)
	r.gives("POST /queues/mail/pause", `{"reason": "on fire"}`, 200, `{"paused": true}`)
	r.gives("GET /admin/audit?action=paused&limit=1", "", 200, `{"items": [{"name": "mail", "reason": "on fire"}]}`)
	r.gives("POST /queues/mail/resume", `{}`, 200, `{"paused": false}`)
	r.gives("POST /admin/queues/mail/pause", "", 200, `{"name": "mail", "state": "paused", "paused": true, "paused_at": "*"}`)
	r.gives("POST /admin/queues/mail/resume", "", 200, `{"name": "mail", "state": "active", "paused": false, "paused_at": null}`)
}

func TestQueueConfiguration(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /queues/mail/config", "", 200, `{"name": "mail", "state": "active", "config": {}, "created_at": null, "updated_at": null}`)
	r.gives("POST /queues", `{"name": "mail", "config": {"visibility_timeout": 300, "default_timeout": 1800,
		"retention": {"completed": "P3D"}, "description": "letters", "default_retry": {"max_attempts": 5}}}`, 201,
		`{"name": "mail", "state": "active", "config": {"visibility_timeout": 300, "retention": {"completed": "P3D"},
		"default_retry": {"max_attempts": 5}}, "created_at": "*", "updated_at": "*"}`)
	r.gives("POST /queues", `{"name": "mail"}`, 409, `{"error": {"code": "duplicate", "details": {"field": "name"}}}`)
	// Pausing and resuming configures nothing.
	for name, state := range map[string]string{"held": "paused", "let-go": "active"} {
		r.sql(`select ojs.pause($1)`, name)
		if state == "active" {
			r.sql(`select ojs.resume($1)`, name)
		}
		r.gives("POST /queues", `{"name": "`+name+`"}`, 201, `{"name": "`+name+`", "state": "`+state+`", "config": {}}`)
		r.sql(`select ojs.pause($1)`, name)
		r.gives("POST /queues", `{"name": "`+name+`"}`, 409, `{"error": {"code": "duplicate"}}`)
	}
	// What is not named stays; null removes.
	for _, path := range []string{"/queues/mail/config", "/admin/queues/mail/config"} {
		for _, method := range []string{"PUT ", "PATCH "} {
			r.gives(method+path, `{"default_timeout": 60}`, 200, `{"config": {"default_timeout": 60, "visibility_timeout": 300}}`)
			r.gives(method+path, `{"config": {"default_timeout": null, "description": null}}`, 200,
				`{"config": {"default_timeout": null, "description": null, "visibility_timeout": 300}}`)
		}
		r.as("acme").gives("GET "+path, "", 200, `{"config": {"visibility_timeout": 300}}`)
	}
	r.gives("GET /queues/mail", "", 200, `{"queue": {"name": "mail"}, "config": {"visibility_timeout": 300}, "updated_at": "*"}`)

	r.sql("select ojs.enqueue('a', p_queue => 'mail')")
	for _, c := range []struct {
		call, body string
		status     int
		field      string
	}{
		{"PUT /queues/mail/config", `{"concurrency": 10}`, 422, "concurrency"},
		{"PUT /queues/mail/config", `{"config": {"rate_limit": {"limit": 1}}}`, 422, "config.rate_limit"},
		{"PUT /queues/mail/config", `{"visibility_timeout": 0}`, 422, "visibility_timeout"},
		{"PUT /queues/mail/config", `{"default_retry": {"max_attempts": -1}}`, 422, "default_retry.max_attempts"},
		{"PUT /queues/mail/config", `{"config": {"retention": {"discarded": "P30D"}}}`, 422, "config.retention.discarded"},
		{"PUT /queues/mail/config", `{"colour": "red"}`, 400, "colour"},
		{"PUT /queues/mail/config", `{"tenant_fairness": {"weights": {"acme": 0}}}`, 422, "tenant_fairness.weights.acme"},
		{"PUT /queues/mail/config", `{"config": {"tenant_fairness": {"enabled": "no"}}}`, 422, "config.tenant_fairness.enabled"},
		{"PUT /queues/mail/config", `{"tenant_fairness": {"stratagem": 1}}`, 400, "tenant_fairness.stratagem"},
		{"PUT /queues/mail/config", `{"tenant_fairness": {"default_weight": 1e400}}`, 422, "tenant_fairness.default_weight"},
		{"PUT /queues/mail/config", `{"config": 7}`, 400, "config"},
		{"PUT /queues/mail/config", `{"config": null}`, 400, "config"},
		{"PUT /queues/mail/config", `{"config": {}, "default_timeout": 60}`, 400, "default_timeout"},
		{"PUT /queues/mail/config", `{"default_timeout": 1e1001}`, 400, "default_timeout"},
		{"PUT /queues/mail/config", `[]`, 400, "body"},
		{"PUT /queues/_default/config", `{}`, 422, "name"},
		{"POST /queues", `{"name": "No"}`, 400, "name"},
		{"POST /queues", `{}`, 400, "name"},
		{"POST /queues", `{"name": "x", "default_timeout": 60}`, 400, "default_timeout"},
		{"POST /queues", `{"name": "x", "config": {"max_size_bytes": 1}}`, 422, "config.max_size_bytes"},
		{"DELETE /queues/mail", ``, 400, "strategy"},
		{"DELETE /queues/mail", `{"strategy": "move", "target_queue": "x"}`, 422, "strategy"},
		{"DELETE /queues/mail", `{"strategy": "eat"}`, 400, "strategy"},
		{"DELETE /queues/mail", `{"strategy": "reject"}`, 409, "strategy"},
		{"DELETE /queues/unknown?strategy=reject", ``, 404, "queue"},
	} {
		r.refuses(c.call, c.body, c.status, c.field)
	}
	for _, call := range []string{"POST /queues", "PUT /queues/mail/config", "PATCH /admin/queues/mail/config", "DELETE /queues/mail"} {
		r.as("acme").refuses(call, `{"name": "x"}`, 422, names.TenantHeader)
	}
	for _, call := range []string{"GET /queues/No/config", "PUT /queues/No/config", "DELETE /queues/No"} {
		r.knowsNo("queue", call, `{}`)
	}
	r.sql("select ojs.cancel(id) from ojs.job")
	r.gives("DELETE /queues/mail", `{"strategy": "reject"}`, 200,
		`{"queue": "mail", "strategy": "reject", "jobs_affected": 0, "state": "deleted"}`)
	r.gives("GET /queues/mail/config", "", 200, `{"config": {}, "updated_at": null}`)
}

func TestTenants(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /admin/tenants", "", 200, `{"items": [], "tenants": [], "pagination": {"total": 0}}`)
	r.sql("select ojs.enqueue('a', p_tenant => t) from unnest('{acme,acme,globex}'::text[]) t")
	r.gives("PUT /admin/tenants/acme", `{"weight": 2.5, "priority_boost": 5}`, 201, `{"id": "acme", "name": "acme", "state": "active",
		"weight": 2.5, "fairness_weight": 2.5, "priority_boost": 5, "created_at": "*", "limits": {}, "stats": {"total_jobs": 2}}`)
	r.gives("PUT /admin/tenants/acme", `{"fairness": {"weight": 3}, "fairness_weight": 3}`, 200, `{"weight": 3, "priority_boost": 5}`)
	r.gives("PUT /admin/tenants/new", `{}`, 201, `{"id": "new", "weight": 1, "priority_boost": 0}`)
	r.gives("GET /admin/tenants/globex", "", 200, `{"id": "globex", "weight": 1, "created_at": null}`)

	r.sql("select ojs.fetch('{default}', p_tenant => 'acme')")
	r.gives("GET /admin/tenants/acme/stats", "", 200, `{"tenant_id": "acme", "total_jobs": 2, "oldest_wait_ms": "*", "limits": {},
		"jobs": {"depth": 1, "available": 1, "active": 1, "scheduled": 0, "pending": 0, "retryable": 0, "completed": 0, "cancelled": 0,
			"discarded": 0, "failed_attempts": 0},
		"fairness": {"weight": 3, "effective_share": 0.75, "actual_share": 1, "deficit": "*", "dispatched": 1}}`)
	r.gives("GET /admin/tenants", "", 200, `{"items": [{"id": "acme", "stats": {"jobs": {"active": 1}}}, {"id": "globex"}, {"id": "new"}],
		"tenants": [{"id": "acme"}, {"id": "globex"}, {"id": "new"}], "pagination": {"total": 3, "has_more": false}}`)
	r.gives("GET /admin/tenants?limit=1&offset=1", "", 200, `{"items": [{"id": "globex"}], "pagination": {"total": 3, "has_more": true}}`)
	r.gives("GET /admin/tenants?offset=9", "", 200, `{"items": [], "pagination": {"total": 3, "has_more": false}}`)

	// With a header a tenant sees itself, and another one looks like none.
	acme := r.as("acme")
	acme.gives("GET /admin/tenants", "", 200, `{"items": [{"id": "acme"}], "tenants": [{"weight": 3}], "pagination": {"total": 1}}`)
	acme.gives("GET /admin/tenants?offset=1", "", 200, `{"items": [], "pagination": {"total": 1}}`)
	r.as("unknown").gives("GET /admin/tenants", "", 200, `{"items": [], "pagination": {"total": 0}}`)
	acme.gives("GET /admin/tenants/acme", "", 200, `{"id": "acme", "weight": 3}`)
	for _, rest := range []string{"", "/stats"} {
		r.knowsNo("tenant", "GET /admin/tenants/nobody"+rest, "")
		r.knowsNo("tenant", "GET /admin/tenants/no:-body%20"+rest, "")
		acme.knowsNo("tenant", "GET /admin/tenants/globex"+rest, "")
		_, foreign := acme.send("GET /admin/tenants/globex"+rest, "")
		if _, unknown := acme.send("GET /admin/tenants/nobody"+rest, ""); strings.ReplaceAll(foreign, "globex", "nobody") != unknown {
			t.Errorf("another tenant is %s, an unknown one %s", foreign, unknown)
		}
	}

	const put = "PUT /admin/tenants/acme"
	for _, tenant := range []string{"acme", "globex"} {
		acme.refuses("PUT /admin/tenants/"+tenant, `{"weight": 1000}`, 422, names.TenantHeader)
	}
	r.refuses(put, `{"weight": 0}`, 422, "weight")
	r.refuses(put, `{"weight": "5"}`, 400, "weight")
	r.refuses(put, `{"weight": 1, "fairness": {"weight": 2}}`, 400, "fairness.weight")
	r.refuses(put, `{"weight": 1, "fairness_weight": 2}`, 400, "fairness_weight")
	r.refuses(put, `{"priority_boost": 1000}`, 422, "priority_boost")
	r.refuses(put, `{"limits": {"max_jobs": 5}}`, 422, "limits.max_jobs")
	r.refuses(put, `{"weight": 7, "limits": {"max_concurrency": 0}}`, 422, "limits.max_concurrency")
	r.refuses(put, `{"tenant_id": "globex"}`, 400, "tenant_id")
	r.refuses(put, `{"fairness": {"max": 5}}`, 422, "fairness.max")
	r.refuses(put, `{"max_priority": 101}`, 422, "max_priority")
	r.refuses(put, `{"max_priority": "9"}`, 400, "max_priority")
	r.refuses(put, `{"over_priority": "ignore"}`, 422, "over_priority")
	r.gives("GET /admin/tenants/globex", "", 200, `{"max_priority": 100, "over_priority": "refuse"}`)
	r.gives(put, `{"max_priority": 10, "over_priority": "clamp"}`, 200, `{"max_priority": 10, "over_priority": "clamp", "weight": 3}`)
	r.gives(put, `{"priority_boost": 5}`, 200, `{"max_priority": 10, "over_priority": "clamp"}`)
	r.gives(put, `{"max_priority": null}`, 200, `{"max_priority": 100, "over_priority": "clamp"}`)
	r.refuses("PUT /admin/tenants/-", `{"weight": 1}`, 400, "id")
	r.gives("GET /admin/tenants/acme", "", 200, `{"weight": 3, "priority_boost": 5}`)
}

// How tenants share in a queue is configured as the specification prints it, and no tenant is told of the others.
func TestTenantsShareInAQueue(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const fairness = `{"tenant_fairness": {"enabled": true, "strategy": "fair-share",
		"weights": {"tenant:enterprise-a": 5, "tenant:startup-b": 1}, "default_weight": 1}}`
	const seen = `{"tenant_fairness": {"enabled": true, "strategy": "fair-share", "default_weight": 1, "weights": null}}`
	for _, call := range []string{"PUT /queues/mail/config", "GET /queues/mail/config", "GET /queues/mail"} {
		r.gives(call, map[bool]string{true: fairness}[call[0] == 'P'], 200, `{"config": `+fairness+`}`)
	}
	r.as("startup-b").gives("GET /queues/mail/config", "", 200, `{"config": `+seen+`}`)
	r.as("startup-b").gives("GET /queues/mail", "", 200, `{"config": `+seen+`}`)
	r.gives("PATCH /admin/queues/mail/config", `{"config": {"description": "post"}}`, 200, `{"config": `+fairness+`}`)
	r.sql(`
		select ojs.enqueue('a', p_queue => 'mail', p_tenant => t)
		from unnest('{enterprise-a,startup-b}'::text[]) t, generate_series(1, 30)`)
	got := pgtest.List[string](t, r.db.Pool, `
		select tenant_id || ' ' || count(*) from ojs.fetch('{mail}', 24) group by tenant_id order by 1`)
	if strings.Join(got, ", ") != "enterprise-a 20, startup-b 4" {
		t.Errorf("handed out: %v", got)
	}
	r.gives("PUT /queues/mail/config", `{"tenant_fairness": null}`, 200, `{"config": {"tenant_fairness": null, "description": "post"}}`)
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.gives("GET /admin/workers", "", 200, `{"items": [], "workers": [], "summary": {"total": 0}, "pagination": {"total": 0}}`)
	r.sql(`select ojs.register_worker('w1', 'h', 12, '{default}', 3, '{canary}', '1.2', '{"node": "n"}', '2025-06-01T08:00:00Z')`)
	job := pgtest.One[string](t, r.db.Pool, "select id from ojs.enqueue('a')")
	r.sql("select ojs.fetch('{default}', 1, 'w1')")
	// Heartbeats within two seconds are written down once, and so is the registration.
	r.sql("update ojs.worker_beat set seen_at = seen_at - interval '3 seconds'")
	r.sql("select ojs.beat('w1', array[$1::uuid])", job)
	r.sql("select ojs.beat('w2', p_state => 'drain')")
	r.sql("select ojs.beat('theirs', p_tenant => 'acme')")

	const w1 = `"id": "w1", "worker_id": "w1", "tenant_id": null, "state": "running", "directive": null, "hostname": "h", "pid": 12,
		"queues": ["default"], "concurrency": 3, "active_jobs": 1, "labels": ["canary"], "version": "1.2", "metadata": {"node": "n"},
		"started_at": "2025-06-01T08:00:00Z", "registered_at": "*", "last_heartbeat_at": "*"`
	r.gives("GET /admin/workers", "", 200, `{"items": [{`+w1+`, "active_job_ids": ["`+job+`"], "jobs": null},
		{"id": "w2", "state": "drain", "queues": [], "labels": [], "active_job_ids": [], "hostname": null},
		{"id": "theirs", "tenant_id": "acme"}], "workers": [{"id": "w1"}, {"id": "w2"}, {"id": "theirs"}],
		"summary": {"total": 3, "running": 2, "quiet": 0, "drain": 1, "terminate": 0, "stale": 0}, "pagination": {"total": 3}}`)
	r.gives("GET /workers?per_page=1&page=2", "", 200, `{"items": [{"id": "w2"}], "summary": {"total": 3}, "pagination": {"total": 3}}`)
	r.gives("GET /admin/workers/w1", "", 200, `{`+w1+`, "jobs": [{"id": "`+job+`", "type": "a", "queue": "default", "attempt": 1,
		"tenant_id": "*", "started_at": "*", "lease_expires_at": "*"}]}`)
	r.gives("GET /admin/workers/theirs", "", 200, `{"id": "theirs", "tenant_id": "acme", "jobs": null}`)
	r.gives("GET /workers/w1/health", "", 200,
		`{"status": "ok", "worker_id": "w1", "state": "running", "directive": null, "active_jobs": 1, "last_heartbeat_at": "*"}`)
	r.gives("GET /workers/w2/health", "", 503, `{"status": "degraded", "state": "drain"}`)

	acme := r.as("acme")
	acme.gives("GET /workers", "", 200, `{"items": [{"id": "theirs"}], "summary": {"total": 1}, "pagination": {"total": 1}}`)
	for call, body := range map[string]string{
		"GET /admin/workers/%s": "", "GET /workers/%s/health": "", "POST /admin/workers/%s/quiet": "",
		"POST /admin/workers/%s/directive": `{"directive": "quiet"}`, "DELETE /admin/workers/%s": "",
	} {
		for _, name := range []string{"none", "%00", "w1%00", "%FF", "w%2F1"} {
			r.knowsNo("worker", fmt.Sprintf(call, name), body)
		}
		acme.knowsNo("worker", fmt.Sprintf(call, "w1"), body)
	}
	r.sql("select ojs.beat('theirs', p_tenant => 'globex')")
	r.gives("GET /admin/workers/theirs", "", 409, `{"error": {"code": "ambiguous_job", "details": {"field": "X-OJS-Tenant"}}}`)
	acme.gives("GET /admin/workers/theirs", "", 200, `{"tenant_id": "acme"}`)
}

func TestDirectingWorkers(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	told := func(want string) {
		t.Helper()
		if got := pgtest.One[string](t, r.db.Pool, "select state from ojs.beat('w1', p_state => 'running')"); got != want {
			t.Errorf("the worker is told to be %s, want %s", got, want)
		}
	}
	r.sql("select ojs.enqueue('a')")
	told("running")
	r.sql("select ojs.fetch('{default}', 1, 'w1')")
	r.gives("POST /admin/workers/w1/quiet", "", 200, `{"id": "w1", "state": "running", "directive": "quiet"}`)
	told("quiet")
	r.gives("GET /workers/w1/health", "", 503, `{"status": "degraded", "state": "running", "directive": "quiet"}`)
	r.gives("POST /admin/workers/w1/directive", `{"directive": "running"}`, 200, `{"id": "w1", "directive": null}`)
	r.as("acme").gives("POST /admin/workers/directive", `{"directive": "quiet"}`, 200, `{"workers": 0, "directive": "quiet"}`)
	told("running")
	for _, call := range []string{"POST /admin/workers/directive", "POST /admin/workers/w1/directive"} {
		r.refuses(call, `{}`, 400, "directive")
		r.refuses(call, `{"directive": ""}`, 400, "directive")
		r.refuses(call, `{"directive": "stop"}`, 400, "directive")
	}
	r.gives("POST /admin/workers/directive", `{"directive": "terminate"}`, 200, `{"workers": 1, "directive": "terminate"}`)
	told("terminate")
	r.gives("POST /admin/workers/w1/quiet", "", 409, `{"error": {"code": "conflict"}}`)

	r.gives("DELETE /admin/workers/w1", "", 409, `{"error": {"code": "conflict"}}`)
	r.sql("update ojs.worker_beat set seen_at = now() - interval '20 seconds'")
	r.gives("GET /admin/workers", "", 200, `{"items": [{"state": "stale"}], "summary": {"stale": 1, "running": 0}}`)
	r.gives("DELETE /admin/workers/w1", "", 200, `{"deleted": true, "worker_id": "w1", "jobs_requeued": 1}`)
	r.knowsNo("worker", "DELETE /admin/workers/w1", "")
}

// bury makes a dead letter.
func (r *room) bury(queue, kind, tenant string) {
	r.Helper()
	r.sql(`select ojs.enqueue('dead.job', p_queue => $1, p_tenant => $2, p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')`,
		queue, tenant)
	r.sql(`select ojs.nack(f.id, jsonb_build_object('type', $2::text, 'message', 'm')) from ojs.fetch(array[$1::text]) f`, queue, kind)
}

func TestDeadLettersInBulk(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	acme := r.as("acme")
	for _, base := range []string{"/dead-letter", "/admin/dead-letter"} {
		r.bury("mail", "Timeout", "globex")
		r.bury("billing", "BadCard", "globex")
		r.bury("mail", "Timeout", "acme")
		r.gives("GET "+base+"/stats", "", 200, `{"total": 3, "by_queue": {"mail": 2, "billing": 1}, "by_error_type": {"BadCard": 1},
			"oldest_at": "*", "newest_at": "*", "retention": {"max_age": "P180D", "max_count": 10000, "next_prune_at": "*"}}`)
		acme.gives("GET "+base+"/stats", "", 200, `{"total": 1, "by_queue": {"mail": 1, "billing": null}}`)

		for _, call := range []string{"POST " + base + "/retry", "POST " + base + "/purge", "DELETE " + base} {
			for _, body := range []string{"", `{}`, `{"confirm": false}`, `{"filter": {"queue": "billing"}}`} {
				r.refuses(call, body, 400, "confirm")
			}
			r.refuses(call, `{"filter": {"que": "billing"}, "confirm": true}`, 400, "filter.que")
			r.refuses(call, `{"queue": "billing", "filter": {}, "confirm": true}`, 400, "queue")
			r.refuses(call, `{"filter": {"queue": ""}, "confirm": true}`, 400, "filter.queue")
			r.refuses(call, `{"filter": {"since": "yesterday"}, "confirm": true}`, 400, "filter.since")
			r.refuses(call, `{"limit": 0, "confirm": true}`, 400, "limit")
			r.refuses(call, `{"limit": 10001, "confirm": true}`, 400, "limit")
			r.refuses(call+"?queue=billing", `{"confirm": true}`, 422, "queue")
		}
		r.gives("POST "+base+"/retry", `{"queue": "nothing-there", "confirm": true}`, 200, `{"retried": 0, "remaining": 0}`)
		r.as("nobody").gives("POST "+base+"/retry", `{"filter": {"queue": "mail"}, "confirm": true}`, 200, `{"retried": 0, "remaining": 0}`)
		r.gives("POST "+base+"/retry", `{"filter": {"error_type": "BadCard", "since": "2000-01-01T00:00:00Z"}, "confirm": true}`, 200,
			`{"retried": 1, "remaining": 0}`)
		r.gives("DELETE "+base, `{"older_than": "2000-01-01T00:00:00Z", "confirm": true}`, 200, `{"deleted": 0, "remaining": 0}`)
		acme.gives("DELETE "+base, `{"type": "dead.job", "confirm": true}`, 200, `{"deleted": 1, "remaining": 0}`)
		r.bury("mail", "Timeout", "globex")
		r.bury("mail", "Timeout", "globex")
		r.gives("POST "+base+"/purge", `{"limit": 2, "confirm": true}`, 200, `{"deleted": 2, "remaining": 1}`)
		r.gives("DELETE "+base, `{"confirm": true}`, 200, `{"deleted": 1, "remaining": 0}`)
		if n := pgtest.One[int](t, r.db.Pool, "select count(*) from ojs.jobs where state = 'available'"); n != 1 {
			t.Errorf("%d jobs are back in their queues", n)
		}
		r.sql("select ojs.cancel(id) from ojs.jobs where state = 'available'")
	}
}

// Bulk retry in the words of ojs-admin-api section 8.1.
func TestJobsAreRetriedInBulk(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const call = "POST /admin/jobs/bulk/retry"
	r.bury("mail", "Timeout", "globex")
	r.bury("mail", "Timeout", "acme")
	r.bury("billing", "BadCard", "globex")
	for _, body := range []string{"", `{}`, `{"filter": {"state": "discarded"}, "confirm": false}`} {
		r.refuses(call, body, 400, "confirm")
	}
	r.refuses(call, `{"filter": {"state": "cancelled"}, "confirm": true}`, 422, "filter.state")
	r.refuses(call, `{"filter": {"que": "mail"}, "confirm": true}`, 400, "filter.que")
	r.refuses(call, `{"queue": "mail", "confirm": true}`, 400, "queue")
	r.refuses(call, `{"limit": 10001, "confirm": true}`, 400, "limit")
	r.gives(call, `{"filter": {"queue": "mail", "state": "discarded"}, "limit": 1, "confirm": true}`, 200,
		`{"action": "retry", "matched": 2, "succeeded": 1, "failed": 0, "errors": [], "remaining": 1}`)
	r.as("nobody").gives(call, `{"confirm": true}`, 200, `{"matched": 0, "succeeded": 0, "remaining": 0}`)
	r.gives(call, `{"confirm": true}`, 200, `{"matched": 2, "succeeded": 2, "remaining": 0}`)
	if n := pgtest.One[int](t, r.db.Pool, "select count(*) from ojs.jobs where state = 'available'"); n != 3 {
		t.Errorf("%d jobs are back in their queues", n)
	}
	// One that failed and is no dead letter.
	r.sql("select ojs.enqueue('a', p_queue => 'plain', p_max_attempts => 1)")
	r.sql(`select ojs.nack(f.id, '{"message": "m"}') from ojs.fetch('{plain}') f`)
	r.gives(call, `{"filter": {"queue": "plain"}, "confirm": true}`, 200, `{"matched": 1, "succeeded": 1, "remaining": 0}`)
}

// A bulk change that was made is answered as made, also if the rest cannot be counted.
func TestBulkWithoutACount(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.sql("revoke execute on function ojs.dead_letter_count, ojs.failed_count from ojs_service, ojs_operator, ojs_tenant, public")
	for range 4 {
		r.bury("mail", "Timeout", "acme")
	}
	r.gives("POST /dead-letter/purge", `{"limit": 1, "confirm": true}`, 200, `{"deleted": 1, "remaining": null}`)
	r.gives("POST /dead-letter/retry", `{"limit": 1, "confirm": true}`, 200, `{"retried": 1, "remaining": null}`)
	r.gives("POST /admin/jobs/bulk/retry", `{"limit": 2, "confirm": true}`, 200, `{"matched": 2, "succeeded": 2, "remaining": null}`)
}

// Ages and the present are told by the clock of the database, which dead letters are dated with.
func TestDeadLettersOfAnAge(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	now := time.Now().Add(time.Hour)
	r.db.SetNow(now)
	r.bury("mail", "Timeout", "acme")
	r.db.SetNow(now.Add(40 * 24 * time.Hour))
	r.bury("mail", "Timeout", "acme")
	r.db.SetNow(now.Add(40*24*time.Hour + time.Minute))

	for _, c := range [][2]string{
		{`"older_than": "+P30D"`, "older_than"},
		{`"older_than": "+PT0S"`, "older_than"},
		{`"older_than": "-P30D"`, "older_than"},
		{`"older_than": "30 days"`, "older_than"},
		{`"older_than": "P1M"`, "older_than"},
		{`"older_than": ""`, "older_than"},
		{`"since": "+P1D"`, "since"},
		{`"since": "P1D"`, "since"},
		{`"until": "+P1D"`, "until"},
		{`"until": "P1D"`, "until"},
		{`"older_than": "P30D", "until": "2031-01-01T00:00:00Z"`, "older_than"},
		{`"older_than": "2030-01-01T00:00:00Z", "until": "2031-01-01T00:00:00Z"`, "older_than"},
	} {
		r.refuses("POST /dead-letter/purge", `{"filter": {`+c[0]+`}, "confirm": true}`, 400, "filter."+c[1])
		r.refuses("POST /dead-letter/purge", `{`+c[0]+`, "confirm": true}`, 400, c[1])
	}
	r.gives("POST /dead-letter/purge", `{"filter": {"older_than": "P6W"}, "confirm": true}`, 200, `{"deleted": 0, "remaining": 0}`)
	r.gives("POST /dead-letter/purge", `{"filter": {"older_than": "P30D"}, "confirm": true}`, 200, `{"deleted": 1, "remaining": 0}`)
	r.gives("POST /dead-letter/retry", `{"confirm": true}`, 200, `{"retried": 1, "remaining": 0}`)
}

// What is for all tenants is no single tenant's to change or to see.
func TestDispatchIsHeldForAll(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.sql("select ojs.enqueue('a')")
	for _, call := range []string{"GET /admin/dispatch", "POST /admin/dispatch/hold", "POST /admin/dispatch/resume"} {
		r.as("acme").refuses(call, "", 422, names.TenantHeader)
	}
	r.gives("GET /admin/dispatch", "", 200, `{"dispatch": {"held": false, "held_at": null, "available": 1, "active": 0, "scheduled": 0,
		"retryable": 0, "pending": 0}}`)
	r.gives("POST /admin/dispatch/hold", "", 200, `{"dispatch": {"held": true, "held_at": "*"}}`)
	r.gives("POST /admin/dispatch/resume", "", 200, `{"dispatch": {"held": false, "held_at": null}}`)
}

// 000 sections 8.1 and 10.2, and the spellings of others.
func TestLimitsOfTenants(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const limits = `{"max_concurrency": 20, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}, "max_queue_depth": 50000,
		"max_scheduled": 10000}`
	r.gives("PUT /admin/tenants/acme-corp", `{"tenant_id": "acme-corp", "limits": `+limits+`, "fairness_weight": 10, "priority_boost": 0}`,
		201, `{"weight": 10, "limits": `+limits+`}`)
	r.sql("select ojs.enqueue('a', p_tenant => 'acme-corp') from generate_series(1, 57)")
	r.sql("select ojs.fetch('{default}', 8)")
	r.sql("select ojs.tick()")
	r.gives("GET /admin/tenants/acme-corp/stats", "", 200, `{"limits": {"max_concurrency": {"limit": 20, "current": 8},
		"max_queue_depth": {"limit": 50000, "current": 49}, "max_enqueue_rate": {"limit": 1000, "period": "PT1M", "current": "*"}}}`)
	r.gives("PUT /admin/tenants/acme-corp/limits", `{"tenant_id": "acme-corp", "limits": {"concurrency": 50, "enqueue_rate": 100,
		"queue_depth": 10000, "scheduled_jobs": null}}`, 200, `{"limits": {"max_concurrency": 50, "max_queue_depth": 10000,
		"max_enqueue_rate": {"limit": 100, "period": "PT1S"}}}`)
	r.gives("PUT /admin/tenants/acme-corp/limits", `{"max_queue_depth": {"limit": 7, "soft": true}, "reason": "trial"}`, 200,
		`{"limits": {"max_queue_depth": {"limit": 7, "soft": true}}}`)
	r.gives("GET /admin/audit?tenant=acme-corp&limit=1", "", 200,
		`{"items": [{"kind": "limit", "name": "max_queue_depth", "new": {"maximum": 7, "soft": true}, "reason": "trial"}]}`)
	r.refuses("PUT /admin/tenants/acme-corp/limits", `{"tenant_id": "other", "max_queue_depth": 1}`, 400, "tenant_id")
	r.refuses("PUT /admin/tenants/acme-corp/limits", `{"tenant": "other", "max_queue_depth": 1}`, 400, "tenant")
	r.refuses("PUT /admin/tenants/acme-corp", `{"limits": {"queue_depth": 1, "max_queue_depth": 2}}`, 422, "limits.queue_depth")
	r.refuses("PUT /admin/tenants/acme-corp/limits", `{"limits": {"max_queue_depth": 1e400}}`, 422, "limits.max_queue_depth.limit")
}

func TestRules(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.sql("select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 3)")
	r.gives("GET /admin/rules", "", 200, `{"items": [], "rules": [], "pagination": {"total": 0}}`)
	r.gives("PUT /admin/tenants/acme/limits", `{"max_concurrency": 1, "reason": "downstream is away"}`, 200,
		`{"tenant_id": "acme", "limits": {"max_concurrency": 1}}`)
	r.sql("select ojs.fetch('{default}', 3)")
	r.gives("GET /admin/tenants/acme/stats", "", 200,
		`{"limits": {"max_concurrency": {"limit": 1, "current": 1}}, "jobs": {"available": 2}}`)
	r.gives("PUT /admin/tenants/acme/limits", `{"limits": {"max_concurrency": 7}, "queue": "mail"}`, 200,
		`{"tenant_id": "acme", "queue": "mail", "limits": {"max_concurrency": 7}}`)
	r.gives("PUT /admin/queues/mail/limits", `{"max_concurrency": 9}`, 200, `{"rule": {"tenant_id": "", "queue": "mail"}}`)
	r.gives("POST /admin/tenants/acme/pause", `{"queue": "reports"}`, 200, `{"paused": true, "rule": {"queue": "reports"}}`)
	r.gives("POST /admin/tenants/globex/pause", "", 200, `{"paused": true, "rule": {"tenant_id": "globex", "queue": ""}}`)
	r.gives("GET /admin/tenants/globex", "", 200, `{"state": "paused", "limits": {}}`)
	r.gives("GET /admin/rules?limit=2", "", 200, `{"items": [{"queue": "mail", "max_concurrency": 9}, {"tenant_id": "acme", "queue": ""}],
		"pagination": {"total": 5, "has_more": true}}`)
	r.as("globex").gives("GET /admin/rules", "", 200, `{"items": [{"tenant_id": "globex", "paused_at": "*"}]}`)
	r.gives("POST /admin/tenants/globex/resume", "", 200, `{"paused": false}`)
	r.gives("PUT /admin/tenants/acme/limits", `{"max_concurrency": null}`, 200, `{"limits": {}}`)
	r.gives("GET /admin/tenants/acme", "", 200, `{"state": "active", "limits": {}}`)

	r.refuses("PUT /admin/tenants/acme/limits", `{}`, 400, "limits")
	r.refuses("PUT /admin/tenants/acme/limits", `{"max_concurrency": 0}`, 422, "max_concurrency")
	r.refuses("PUT /admin/tenants/acme/limits", `{"limits": {"max_queue_depth": -5}}`, 422, "limits.max_queue_depth.limit")
	r.refuses("PUT /admin/tenants/acme/limits", `{"max_memory": 5}`, 422, "max_memory")
	r.refuses("PUT /admin/tenants/acme/limits", `{"max_concurrency": 1, "limits": {"max_concurrency": 2}}`, 400, "limits.max_concurrency")
	r.refuses("PUT /admin/queues/mail/limits", `{"max_concurrency": 1, "queue": "other"}`, 400, "queue")
	r.refuses("POST /admin/tenants/acme/pause", `{"queue": "Not one"}`, 400, "queue")
	r.knowsNo("queue", "PUT /admin/queues/No/limits", `{"max_concurrency": 1}`)
	for _, call := range []string{"PUT /admin/tenants/acme/limits", "PUT /admin/queues/mail/limits", "POST /admin/tenants/acme/pause"} {
		r.as("acme").refuses(call, `{"max_concurrency": 1}`, 422, names.TenantHeader)
	}
}
