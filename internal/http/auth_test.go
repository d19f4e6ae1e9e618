package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const (
	elsewhereID = "019539a4-b68c-7def-8000-1a2b3c4d5e71"
	once        = `{"max_attempts": 1, "on_exhaustion": "dead_letter"}`
)

// guarded starts a server that asks for API keys.
func guarded(t *testing.T) *api {
	t.Helper()
	return start(t, func(c *Config) { c.APIKeys = true })
}

// key makes an API key and returns the header with it.
func (a *api) key(tenant, scopes string, more ...string) string {
	a.t.Helper()
	return pgtest.One[string](a.t, a.db.Operator(), `select 'Authorization: Bearer ' || secret
		from ojs.create_api_key(nullif($1, ''), $2::text::text[]`+strings.Join(more, "")+")", tenant, scopes)
}

// Which scope each route wants. A route that is not on the list is new: decide.
func TestScopesOfRoutes(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	got := map[access][]string{}
	for path, methods := range a.paths() {
		for _, method := range methods {
			scope := a.route(method, path).Scope
			if scope == scopeRead && strings.HasPrefix(path, v1) && method == "GET" {
				continue // all that is read
			}
			got[scope] = append(got[scope], method+" "+strings.TrimPrefix(path, v1))
		}
	}
	for scope, want := range map[access]int{scopeOpen: 6, scopeWork: 9} {
		if slices.Sort(got[scope]); len(got[scope]) != want {
			t.Errorf("%d routes want the scope %q: %q", len(got[scope]), scope, got[scope])
		}
	}
	for _, call := range got[scopeProduce] {
		if _, path, _ := strings.Cut(call, " "); !strings.HasPrefix(path, "/jobs") && !strings.HasPrefix(path, "/cron") &&
			!strings.HasPrefix(path, "/dead-letter") {
			t.Errorf("%s wants the scope produce", call)
		}
	}
	// Without any credential, with none that is known, and with every scope but the one that is needed.
	known := slices.Sorted(maps.Keys(got))
	if !slices.Equal(known, []access{"admin", "open", "produce", "read", "work"}) {
		t.Errorf("scopes are %q", known)
	}
	others := map[access]string{
		"produce": a.key("acme", "{work,read}"), "work": a.key("acme", "{produce,read}"), "read": a.key("acme", "{produce,work}"),
		"admin": a.key("acme", "{produce,work,read}"),
	}
	for path, methods := range a.paths() {
		for _, method := range methods {
			scope := a.route(method, path).Scope
			if scope == scopeOpen {
				a.do(method, path, "").want(200)
				continue
			}
			call := strings.NewReplacer(":id", someID, ":name", "some").Replace(path)
			for who, headers := range map[string][]string{"nobody": nil, "a stranger": {"X-API-Key: ojs_" + strings.Repeat("0", 64)}} {
				r := a.do(method, call, "", headers...)
				if r.status != 401 || r.header.Get("WWW-Authenticate") == "" {
					t.Errorf("%s %s by %s: %d %s", method, path, who, r.status, r.body)
				}
			}
			if r := a.do(method, call, "", others[scope]); r.status != 403 || !strings.Contains(r.body, `"forbidden"`) {
				t.Errorf("%s %s without the scope %s: %d %s", method, path, scope, r.status, r.body)
			}
		}
	}
}

// A route without a scope would be open to every credential: the server does not start.
func TestNoRouteIsWithoutAScope(t *testing.T) {
	t.Parallel()
	for _, scope := range []access{"", "reads"} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, "GET /new has the scope") {
					t.Errorf("a route with the scope %q: %s", scope, said)
				}
			}()
			handler := func(echo.Context) error { return nil }
			guarded(t).srv.mount(echo.New(), []route{{Method: http.MethodGet, Path: "/new", Scope: scope, Handler: handler}})
		}()
	}
}

// MT 5.2: the tenant is the API key's, whatever the request says.
func TestMT52TenantOfAnAPIKey(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	acme, globex, operator := a.key("acme", "{produce,work,read}"), a.key("globex", "{produce,work,read}"), a.key("", "{admin}")
	job := a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`, acme).want(201).text("job.id")
	if got := pgtest.One[string](t, a.pool, "select tenant_id from ojs.job"); got != "acme" {
		t.Fatalf("the job is %s's", got)
	}
	for _, c := range []struct{ method, path, body, key, more, want string }{
		{"POST", "/jobs", `{"type": "a", "args": []}`, acme, "X-OJS-Tenant: globex", "403 TENANT_ACCESS_DENIED"},
		{"POST", "/jobs", `{"type": "a", "args": [], "meta": {"tenant_id": "globex"}}`, acme, "", "403 TENANT_ACCESS_DENIED"},
		{
			"POST", "/jobs/batch", `{"jobs": [{"type": "a", "args": [], "meta": {"tenant_id": "globex"}}]}`, acme, "",
			"403 TENANT_ACCESS_DENIED",
		},
		{"POST", "/jobs", `{"type": "a", "args": [], "meta": {"tenant_id": "acme"}}`, acme, "X-OJS-Tenant: acme", "201"},
		{"GET", "/jobs/" + job, "", globex, "", "404 not_found"},
		{"GET", "/jobs/" + job, "", globex, "X-OJS-Tenant: acme", "403 TENANT_ACCESS_DENIED"},
		{"DELETE", "/jobs/" + job, "", globex, "", "404 not_found"},
		{"POST", "/workers/ack", `{"job_id": "` + job + `"}`, globex, "", "404 not_found"},
		{"POST", "/workers/nack", `{"job_id": "` + job + `", "error": {"message": "x"}}`, globex, "", "404 not_found"},
		{"GET", "/jobs/" + job, "", operator, "", "200"},
		{"GET", "/jobs/" + job, "", operator, "X-OJS-Tenant: globex", "404 not_found"},
		{"GET", "/admin/tenants/acme", "", globex, "", "404 not_found"},
		{"PUT", "/admin/tenants/acme", "{}", globex, "", "403 forbidden"},
		{"PUT", "/admin/tenants/acme", "{}", a.key("acme", "{admin}"), "", "403 forbidden"},
		{"POST", "/admin/api-keys", `{"scopes": ["admin"]}`, a.key("acme", "{admin}"), "", "403 forbidden"},
		{"GET", "/admin/api-keys", "", a.key("acme", "{admin}"), "", "403 forbidden"},
		{"POST", "/admin/dispatch/hold", "", a.key("acme", "{admin}"), "", "403 forbidden"},
	} {
		headers := []string{c.key}
		if c.more != "" {
			headers = append(headers, c.more)
		}
		r := a.do(c.method, v1+c.path, c.body, headers...)
		status, code, _ := strings.Cut(c.want, " ")
		if fmt.Sprint(r.status) != status || !strings.Contains(r.body, code) {
			t.Errorf("%s %s %s %s: %d %s, want %s", c.method, c.path, c.body, c.more, r.status, r.body, c.want)
		}
	}
	// A worker's key claims its tenant's jobs only.
	for who, gets := range map[string]bool{globex: false, acme: true} {
		got := a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["default"], "worker_id": "w", "count": 10}`, who).want(200).body
		if strings.Contains(got, job) != gets {
			t.Errorf("handed out %s", got)
		}
	}
	if r := a.do("GET", "/metrics", "", acme); r.status != 403 {
		t.Errorf("/metrics for a tenant: %d", r.status)
	}
	a.do("GET", "/metrics", "", operator).want(200)
}

// A worker of all tenants settles the jobs of all tenants, and reaches nothing else. A producer or
// reader of all tenants has to name one of them in each request.
func TestKeysOfAllTenants(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	worker := a.key("", "{work,all-tenants}")
	for _, tenant := range []string{"acme", "globex"} {
		pgtest.Exec(t, a.pool, "select ojs.enqueue('a', p_tenant => $1)", tenant)
	}
	pgtest.Exec(t, a.pool, "select ojs.put_cron('nightly', '@daily', 'a', p_tenant => 'acme')")
	fetched := a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["default"], "worker_id": "w", "count": 10}`, worker).want(200)
	jobs, _ := fetched.get("jobs").([]any)
	if len(jobs) != 2 {
		t.Fatalf("fetched %s", fetched.body)
	}
	ids := []string{fetched.text("jobs.0.id"), fetched.text("jobs.1.id")}
	a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id": "w", "active_jobs": ["`+ids[0]+`"]}`, worker).want(200)
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id": "`+ids[0]+`", "worker_id": "w"}`, worker, "X-OJS-Tenant: initech").want(404)
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id": "`+ids[0]+`", "worker_id": "w"}`, worker).want(200)
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id": "`+ids[1]+`", "worker_id": "w", "error": {"code": "x", "message": "x"}}`,
		worker).want(200)

	client := a.key("", "{produce,read,all-tenants}")
	before := a.trace()
	for path, methods := range a.paths() {
		for _, method := range methods {
			scope, call := a.route(method, path).Scope, strings.NewReplacer(":id", ids[0], ":name", "default").Replace(path)
			if scope == scopeOpen {
				continue
			}
			if r := a.do(method, call, "", worker); scope != scopeWork && r.status != 403 {
				t.Errorf("%s %s of a worker: %d %s", method, path, r.status, r.body)
			}
			r := a.do(method, call, "", client)
			switch {
			case scope == scopeWork || scope == scopeAdmin:
				if r.status != 403 {
					t.Errorf("%s %s of a client: %d %s", method, path, r.status, r.body)
				}
			case r.status != 400 || method != "HEAD" && r.text("error.details.field") != "X-OJS-Tenant":
				t.Errorf("%s %s of a client that names no tenant: %d %s", method, path, r.status, r.body)
			}
		}
	}
	if after := a.trace(); after != before {
		t.Errorf("what the queue held has changed: %s, before: %s", after, before)
	}
	const job = `{"type": "a", "args": []}`
	made := a.do("POST", "/ojs/v1/jobs", job, client, "X-OJS-Tenant: acme").want(201).text("job.id")
	a.do("GET", "/ojs/v1/jobs/"+made, "", client, "X-OJS-Tenant: acme").want(200)
	a.do("GET", "/ojs/v1/jobs/"+made, "", client, "X-OJS-Tenant: globex").want(404)
	if got := pgtest.One[string](t, a.pool, "select tenant_id from ojs.job where id = $1", made); got != "acme" {
		t.Errorf("the job is %s's", got)
	}
}

// busy makes a dead letter with the id someID in the queue default, an active job, and a cron job named
// someID. It returns the ids of the two jobs.
func (a *api) busy() (dead, active string) {
	a.t.Helper()
	active = "019539a4-b68c-7def-8000-1a2b3c4d5e70"
	for _, id := range []string{someID, active} {
		pgtest.Exec(a.t, a.pool, `select ojs.enqueue('a', p_tenant => 'acme', p_id => $1, p_retry => $2)`, id, once)
		pgtest.Exec(a.t, a.pool, "select ojs.fetch('{default}', 1, 'w')")
		if id == someID {
			pgtest.Exec(a.t, a.pool, `select ojs.nack($1, '{"code": "x", "message": "x"}')`, id)
		}
	}
	pgtest.Exec(a.t, a.pool, "select ojs.put_cron('default', '@daily', 'a', p_tenant => 'acme')")
	return someID, active
}

// Every route asks whether a credential is for the queues that the request is about.
func TestKeysOfQueuesOnEveryRoute(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	a.busy()
	before := a.trace()
	for who, key := range map[string]string{
		"a tenant": a.key("acme", "{produce,work,read,admin}", ", p_queues => '{mail}'"),
		"operator": a.key("", "{admin}", ", p_queues => '{mail}'"),
	} {
		for name, r := range a.every(key) {
			method, path, _ := strings.Cut(name, " ")
			path, _, _ = strings.Cut(path, " ")
			route := a.route(method, path)
			switch {
			case route.Scope == scopeOpen, route.Queues == noQueue, strings.Contains(name, `"active_jobs":[]`):
				if r.status != 200 {
					t.Errorf("%s of %s: %d %s", name, who, r.status, r.body)
				}
			case strings.Contains(name, `"jobs":[{"job_id"`):
				if r.status != 200 || r.get("succeeded") != json.Number("0") || r.text("results.0.error.code") != "forbidden" {
					t.Errorf("%s of %s: %d %s", name, who, r.status, r.body)
				}
			case r.status != 403 || r.text("error.code") != "forbidden":
				t.Errorf("%s of %s: %d %s", name, who, r.status, r.body)
			}
		}
	}
	if after := a.trace(); after != before {
		t.Errorf("what the queue held has changed: %s, before: %s", after, before)
	}
	// And lets through what is for it.
	for name, r := range a.every(a.key("acme", "{produce,work,read,admin}", ", p_queues => '{default}'")) {
		method, path, _ := strings.Cut(name, " ")
		path, body, _ := strings.Cut(path, " ")
		route := a.route(method, path)
		named := strings.Contains(body, `"ids"`) || !strings.Contains(body, `"confirm"`)
		if own := route.Queues == queueOfJob || route.Queues == queueOfCron || route.Queues == queuesInBody && named; own &&
			r.status == 403 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
}

// trace returns the states of all jobs and cron jobs, as text.
func (a *api) trace() string {
	return pgtest.One[string](a.t, a.pool, `select (select jsonb_agg(to_jsonb(j) order by j.id) from ojs.job j)::text
		|| (select jsonb_agg(to_jsonb(c) order by c.id) from ojs.cron c)`)
}

func TestKeysOfQueues(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	dead, active := a.busy()
	key := a.key("acme", "{produce,work,read,admin}", ", p_queues => '{mail}'")
	for body, status := range map[string]int{
		`{"type": "a", "args": [], "options": {"queue": "mail"}}`:    201,
		`{"type": "a", "args": [], "options": {"queue": "reports"}}`: 403,
		`{"type": "a", "args": []}`:                                  403,
	} {
		if r := a.do("POST", "/ojs/v1/jobs", body, key); r.status != status {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
		if r := a.do("POST", "/ojs/v1/jobs/batch", `{"jobs": [`+body+`]}`, key); r.status != status {
			t.Errorf("a batch of %s: %d %s", body, r.status, r.body)
		}
	}
	own := pgtest.One[string](t, a.pool, "select id::text from ojs.job where queue = 'mail' limit 1")
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/workers/fetch", `{"queues": ["mail", "default"], "worker_id": "w"}`, 403},
		{"POST", "/workers/fetch", `{"queues": ["mail"], "worker_id": "w"}`, 200},
		{"POST", "/cron", `{"name": "c", "cron": "@daily", "type": "a"}`, 403},
		{"POST", "/cron", `{"name": "c", "cron": "@daily", "type": "a", "options": {"queue": "mail"}}`, 201},
		// It would take the place of another queue's.
		{"POST", "/cron", `{"name": "default", "cron": "@daily", "type": "a", "options": {"queue": "mail"}}`, 403},
		{"PUT", "/cron/default", `{"cron": "@daily", "type": "a", "options": {"queue": "mail"}}`, 403},
		{"POST", "/cron/c/trigger", "", 201},
		{"POST", "/cron/default/trigger", "", 403},
		{"GET", "/cron", "", 403},
		{"GET", "/jobs", "", 403},
		{"GET", "/jobs?queue=default", "", 403},
		{"GET", "/jobs?queue=", "", 403},
		{"GET", "/jobs?queues=mail", "", 403},
		{"GET", "/jobs?queue=mail&queue=default", "", 400},
		{"GET", "/jobs?queue=default&queue=mail", "", 403},
		{"GET", "/admin/tenants/acme/jobs?queue=mail", "", 200},
		{"GET", "/events?queues=mail", "", 200},
		{"GET", "/events?queues=mail,default", "", 403},
		{"GET", "/events?queue=mail", "", 403},
		{"GET", "/dead-letter?queue=mail", "", 200},
		{"GET", "/dead-letter", "", 403},
		{"GET", "/queues/mail/stats", "", 200},
		{"GET", "/queues/default/stats", "", 403},
		{"GET", "/jobs/" + own, "", 200},
		{"GET", "/jobs/" + active, "", 403},
		{"POST", "/jobs/results", `{"ids": ["` + own + `"]}`, 200},
		{"POST", "/jobs/results", `{"ids": ["` + own + `", "` + active + `"]}`, 403},
		{"POST", "/dead-letter/" + dead + "/retry", `{"override": {"queue": "mail"}}`, 403},
		{"POST", "/dead-letter/retry", `{"filter": {"queue": "mail"}, "confirm": true}`, 200},
		{"POST", "/dead-letter/retry", `{"queue": "default", "confirm": true}`, 403},
		{"POST", "/dead-letter/purge", `{"confirm": true}`, 403},
		{"POST", "/admin/jobs/bulk/retry", `{"ids": ["` + dead + `"], "confirm": true}`, 403},
		{"POST", "/admin/jobs/bulk/cancel", `{"ids": ["` + own + `", "` + active + `"], "confirm": true}`, 403},
		{"POST", "/admin/jobs/bulk/cancel", `{"filter": {"queue": "default"}, "confirm": true}`, 403},
		{"POST", "/workers/heartbeat", `{"worker_id": "w", "active_jobs": ["` + active + `"]}`, 403},
		{"POST", "/admin/jobs/bulk/cancel", `{"filter": {"queue": "mail"}, "confirm": true}`, 200},
	} {
		if r := a.do(c.method, v1+c.path, c.body, key); r.status != c.status {
			t.Errorf("%s %s %s: %d %s, want %d", c.method, c.path, c.body, r.status, r.body, c.status)
		}
	}
	// A dead letter of its own stays in its queues.
	pgtest.Exec(t, a.pool, "select ojs.enqueue('a', p_tenant => 'acme', p_id => $1, p_queue => 'mail', p_retry => $2)", elsewhereID, once)
	pgtest.Exec(t, a.pool, "select ojs.fetch('{mail}', 10, 'w')")
	pgtest.Exec(t, a.pool, `select ojs.nack($1, '{"code": "x", "message": "x"}')`, elsewhereID)
	retry := "/ojs/v1/dead-letter/" + elsewhereID + "/retry"
	a.do("POST", retry, `{"override": {"queue": "default"}}`, key).want(403)
	a.do("POST", retry, `{"override": {"queue": "mail", "priority": 1}}`, key).want(200)
}

// A key is made, rotated and revoked over HTTP; what is told of it afterwards holds no secret.
func TestKeysOverHTTP(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	operator := a.key("", "{admin}")
	made := a.do("POST", "/ojs/v1/admin/api-keys", `{"tenant_id": "acme", "scopes": ["produce"], "name": "shop", "reason": "a new shop"}`,
		operator).want(201)
	first := "X-API-Key: " + made.text("secret")
	const job = `{"type": "a", "args": []}`
	a.do("POST", "/ojs/v1/jobs", job, first).want(201)
	rotate := "/ojs/v1/admin/api-keys/" + made.text("id") + "/rotate"
	second := "X-API-Key: " + a.do("POST", rotate, `{"overlap": "PT1H"}`, operator).want(201).text("secret")
	a.do("POST", "/ojs/v1/jobs", job, first).want(201)
	a.do("POST", "/ojs/v1/jobs", job, second).want(201)
	// Two credentials may be of two tenants.
	for _, two := range [][]string{{first, operator}, {first, second}} {
		a.do("POST", "/ojs/v1/jobs", job, two...).want(400).is(map[string]any{"error.details.field": "Authorization"})
	}
	if list := a.do("GET", "/ojs/v1/admin/api-keys", "", operator).want(200).body; strings.Contains(list, made.text("secret")) ||
		!strings.Contains(list, made.text("prefix")) {
		t.Errorf("the list is %s", list)
	}
	a.do("DELETE", "/ojs/v1/admin/api-keys/"+made.text("id"), `{"reason": "leaked"}`, operator).want(200)
	// Known for a second at most.
	a.srv.keys.forget()
	a.do("POST", "/ojs/v1/jobs", job, first).want(401)
	a.do("POST", "/ojs/v1/jobs", job, second).want(201)
	if got := pgtest.List[string](t, a.pool, `select action || coalesce(' ' || reason, '') from ojs.audit
		where kind = 'api_key' and actor like 'key:ojs\_%' order by n`); !slices.Equal(got, []string{
		"created a new shop", "created", "changed", "changed leaked",
	}) {
		t.Errorf("the audit trail has %q", got)
	}
	a.do("POST", "/ojs/v1/admin/api-keys", `{"scopes": ["produce"]}`, operator).want(422)
	a.do("POST", "/ojs/v1/admin/api-keys", `{"tenant_id": "acme", "scopes": ["everything"]}`, operator).want(422)
	a.do("POST", rotate, "", operator).want(404)
	a.do("DELETE", "/ojs/v1/admin/api-keys/nobody", "", operator).want(404)
}

// A FETCH that waits is answered with 401 once its key has ended, and its job goes to another worker.
func TestAKeyThatEndsWhileAFetchWaits(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	key, other := a.key("acme", "{work}"), a.key("acme", "{produce,work}")
	asked := make(chan *reply, 1)
	go func() {
		body := `{"queues": ["mail"], "worker_id": "w", "wait_ms": 30000}`
		r, _ := a.send(context.Background(), "POST", "/ojs/v1/workers/fetch", body, key)
		asked <- r
	}()
	a.db.Eventually("a worker waits", "select exists (select from ojs.waiter where queue = 'mail')")
	pgtest.Exec(t, a.db.Operator(), "select ojs.revoke_api_key(id) from ojs.api_keys where scopes = '{work}'")
	a.srv.keys.forget()
	a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": [], "options": {"queue": "mail"}}`, other).want(201)
	if r := <-asked; r == nil || r.status != 401 {
		t.Fatalf("the FETCH that waited: %+v", r)
	}
	a.db.Eventually("the job is back", "select exists (select from ojs.job where state = 'available')")
}

// A key that is revoked in SQL is refused by every server, whichever has seen it before.
func TestARevokedKeyIsRefusedByEveryServer(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	b := &api{t: t, db: a.db, pool: a.pool, log: &pgtest.Log{}}
	b.serve(a.db.Open(), func(c *Config) { c.APIKeys = true })
	key := a.key("acme", "{produce}")
	const job = `{"type": "a", "args": []}`
	for _, server := range []*api{a, b} {
		server.do("POST", "/ojs/v1/jobs", job, key).want(201)
	}
	pgtest.Exec(t, a.db.Operator(), "select ojs.revoke_api_key(id, 'leaked') from ojs.api_keys")
	for _, server := range []*api{a, b} {
		pgtest.Eventually(t, "the key is refused", func() bool { return server.do("POST", "/ojs/v1/jobs", job, key).status == 401 })
	}
	if memory := keyMemory; memory > time.Second {
		t.Errorf("servers remember a key for %s", memory)
	}
}

// A token that names queues is for these only, as a key of queues.
func TestTokensOfQueues(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Tokens = tokens(t) })
	some := token(t, "acme", "produce work read", map[string]any{"queues": []string{"mail"}})
	a.do("POST", v1+"/jobs", `{"type": "a", "args": [], "options": {"queue": "mail"}}`, some).want(201)
	a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, some).want(403).is(map[string]any{"error.code": "forbidden"})
	a.do("POST", v1+"/workers/fetch", `{"queues": ["mail"], "worker_id": "w"}`, some).want(200)
	a.do("POST", v1+"/workers/fetch", `{"queues": ["mail", "default"], "worker_id": "w"}`, some).want(403)
	a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, token(t, "acme", "produce", nil)).want(201)
	a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, token(t, "acme", "produce", map[string]any{"queues": []string{}})).want(401)
}
