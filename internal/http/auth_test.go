package httpapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// guarded is a server that asks for API keys.
func guarded(t *testing.T) *api {
	t.Helper()
	return start(t, func(c *Config) { c.APIKeys = true })
}

// key makes one and is its header.
func (a *api) key(tenant, scopes string, more ...string) string {
	a.t.Helper()
	return pgtest.One[string](a.t, a.db.Operator(), `select 'Authorization: Bearer ' || secret
		from ojs.create_api_key(nullif($1, ''), $2::text::text[]`+strings.Join(more, "")+")", tenant, scopes)
}

// Which scope each route wants. A route that is not on the list is new: decide.
func TestScopesOfRoutes(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	got := map[string][]string{}
	for path, methods := range a.paths() {
		for _, method := range methods {
			scope := scopeOf(method, path)
			if scope == "read" && strings.HasPrefix(path, v1) && method == "GET" {
				continue // all that is read
			}
			got[scope] = append(got[scope], method+" "+strings.TrimPrefix(path, v1))
		}
	}
	for scope, want := range map[string]int{"": 5, "work": 9} {
		if slices.Sort(got[scope]); len(got[scope]) != want {
			t.Errorf("%d routes want the scope %q: %q", len(got[scope]), scope, got[scope])
		}
	}
	for _, call := range got["produce"] {
		if _, path, _ := strings.Cut(call, " "); !strings.HasPrefix(path, "/jobs") && !strings.HasPrefix(path, "/cron") &&
			!strings.HasPrefix(path, "/dead-letter") {
			t.Errorf("%s wants the scope produce", call)
		}
	}
	// Without any credential, with none that is known, and with every scope but the one that is needed.
	known := slices.Sorted(maps.Keys(got))
	if !slices.Equal(known, []string{"", "admin", "produce", "read", "work"}) {
		t.Errorf("scopes are %q", known)
	}
	others := map[string]string{
		"produce": a.key("acme", "{work,read}"), "work": a.key("acme", "{produce,read}"), "read": a.key("acme", "{produce,work}"),
		"admin": a.key("acme", "{produce,work,read}"),
	}
	for path, methods := range a.paths() {
		for _, method := range methods {
			scope := scopeOf(method, path)
			if scope == "" {
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
	for path := range openRoutes {
		a.do("GET", path, "").want(200)
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

func TestKeysOfQueues(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	key := a.key("acme", "{produce,work}", ", p_queues => '{mail}'")
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
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["mail"], "worker_id": "w"}`, key).want(200)
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["mail", "default"], "worker_id": "w"}`, key).want(403)
	a.do("POST", "/ojs/v1/cron", `{"name": "c", "cron": "* * * * *", "type": "a", "args": []}`, key).want(403)
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
	if list := a.do("GET", "/ojs/v1/admin/api-keys", "", operator).want(200).body; strings.Contains(list, made.text("secret")) ||
		!strings.Contains(list, made.text("prefix")) {
		t.Errorf("the list is %s", list)
	}
	a.do("DELETE", "/ojs/v1/admin/api-keys/"+made.text("id"), `{"reason": "leaked"}`, operator).want(200)
	// Known for a second at most.
	a.srv.keys.known = nil
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

// A FETCH that waits is answered by 401 once its key has ended, and its job goes to somebody else.
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
	a.srv.keys.mu.Lock()
	a.srv.keys.known = nil
	a.srv.keys.mu.Unlock()
	a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": [], "options": {"queue": "mail"}}`, other).want(201)
	if r := <-asked; r == nil || r.status != 401 {
		t.Fatalf("the FETCH that waited: %+v", r)
	}
	a.db.Eventually("the job is back", "select exists (select from ojs.job where state = 'available')")
}

// A busy client costs a statement a second, and what is forgotten is asked anew.
func TestKeysAreRememberedForASecond(t *testing.T) {
	t.Parallel()
	asked := 0
	tenant := "acme"
	ring := keyring{find: func(context.Context, []byte) ([]sqlcgen.APIKeyRow, error) {
		asked++
		return []sqlcgen.APIKeyRow{{Prefix: "ojs_0", TenantID: &tenant}}, nil
	}}
	secret := "ojs_" + strings.Repeat("0", 64)
	for range 1000 {
		if who, err := ring.owner(t.Context(), secret); err != nil || who.Name != "key:ojs_0" {
			t.Fatal(who, err)
		}
	}
	if asked > 5 {
		t.Errorf("asked %d times", asked)
	}
	before := asked
	for hash, key := range ring.known {
		key.until = time.Now()
		ring.known[hash] = key
	}
	if _, err := ring.owner(t.Context(), secret); err != nil || asked != before+1 {
		t.Errorf("asked %d times after a second, %v", asked-before, err)
	}
	for _, form := range []string{"", "ojs_0", strings.Repeat("x", 68), secret + "0"} {
		if who, err := ring.owner(t.Context(), form); who != nil || err != nil || asked != before+1 {
			t.Errorf("%q was asked for", form)
		}
	}
	for n := range maxKeys + 10 {
		_, _ = ring.owner(t.Context(), fmt.Sprintf("ojs_%064x", n))
	}
	if len(ring.known) > maxKeys {
		t.Errorf("%d keys are kept", len(ring.known))
	}
}

// What asking for a key costs a request.
func BenchmarkKeyring(b *testing.B) {
	tenant := "acme"
	ring := keyring{find: func(context.Context, []byte) ([]sqlcgen.APIKeyRow, error) {
		return []sqlcgen.APIKeyRow{{Prefix: "ojs_0", TenantID: &tenant}}, nil
	}}
	secret := "ojs_" + strings.Repeat("0", 64)
	for b.Loop() {
		if _, err := ring.owner(b.Context(), secret); err != nil {
			b.Fatal(err)
		}
	}
}

// A key that is revoked in SQL is refused by every server, whichever has seen it before.
func TestARevokedKeyIsRefusedByEveryServer(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	b := &api{t: t, db: a.db, pool: a.pool, log: &logs{}}
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
