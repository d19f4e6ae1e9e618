package httpapi

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const tokenSecret = "0123456789abcdef0123456789abcdef"

// token is the header with a token of a tenant, or of an operator if it is empty.
func token(t testing.TB, tenant, scope string, changes map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"iss": "https://issuer.test", "aud": "ojs", "sub": "ada", "scope": scope, "exp": time.Now().Add(time.Hour).Unix(),
	}
	if tenant != "" {
		claims["tenant_id"] = tenant
	}
	maps.Copy(claims, changes)
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(tokenSecret)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return "Authorization: Bearer " + text
}

func tokens(t testing.TB) *jwt.Verifier {
	t.Helper()
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, []byte(tokenSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := jwt.New(jwt.Config{KeyFile: name, Issuer: "https://issuer.test", Audience: "ojs"})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A token says whose a request is, as an API key does.
func TestTenantOfAToken(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Tokens = tokens(t) })
	acme, globex := token(t, "acme", "produce work read", nil), token(t, "globex", "produce work read", nil)
	operator := token(t, "", "admin", nil)
	const job = `{"type": "a", "args": []}`
	id := a.do("POST", "/ojs/v1/jobs", job, acme).want(201).text("job.id")
	if got := pgtest.One[string](t, a.pool, "select tenant_id from ojs.job"); got != "acme" {
		t.Fatalf("the job is %s's", got)
	}
	for _, c := range []struct {
		method, path, body string
		headers            []string
		want               string
	}{
		{"GET", "/jobs/" + id, "", []string{acme}, "200"},
		{"GET", "/jobs/" + id, "", []string{strings.Replace(acme, "Bearer", "bearer", 1)}, "200"},
		{"GET", "/jobs/" + id, "", []string{globex}, "404 not_found"},
		{"GET", "/jobs/" + id, "", []string{globex, "X-OJS-Tenant: acme"}, "403 TENANT_ACCESS_DENIED"},
		{"GET", "/jobs/" + id, "", []string{operator}, "200"},
		{"GET", "/jobs/" + id, "", []string{operator, "X-OJS-Tenant: globex"}, "404 not_found"},
		{"POST", "/jobs", `{"type": "a", "args": [], "meta": {"tenant_id": "globex"}}`, []string{acme}, "403 TENANT_ACCESS_DENIED"},
		{"POST", "/workers/ack", `{"job_id": "` + id + `"}`, []string{globex}, "404 not_found"},
		{"POST", "/jobs", job, []string{token(t, "acme", "read", nil)}, "403 forbidden"},
		{"POST", "/jobs", job, []string{token(t, "acme", "", nil)}, "403 forbidden"},
		{"POST", "/admin/dispatch/hold", "", []string{token(t, "acme", "admin", nil)}, "403 forbidden"},
		{"POST", "/jobs", job, nil, "401 unauthorized"},
		{"POST", "/jobs", job, []string{"Authorization: Basic YWNtZTpzZWNyZXQ="}, "401 unauthorized"},
		{"POST", "/jobs", job, []string{acme + "x"}, "401 unauthorized"},
		{"POST", "/jobs", job, []string{token(t, "", "produce", nil)}, "401 unauthorized"},
		{"POST", "/workers/fetch", `{"queues": ["none"]}`, []string{token(t, "", "work", nil)}, "401 unauthorized"},
		{"POST", "/workers/fetch", `{"queues": ["none"]}`, []string{token(t, "", "work all-tenants", nil)}, "200"},
		{"GET", "/jobs/" + id, "", []string{token(t, "", "work all-tenants", nil)}, "403 forbidden"},
		{"GET", "/jobs/" + id, "", []string{token(t, "", "all-tenants", nil)}, "403 forbidden"},
		{"GET", "/jobs/" + id, "", []string{token(t, "globex", "read all-tenants", nil)}, "404 not_found"},
		{"POST", "/jobs", job, []string{token(t, "acme", "produce", map[string]any{"exp": 1})}, "401 unauthorized"},
		{"POST", "/jobs", job, []string{token(t, "acme", "produce", map[string]any{"aud": "mail"})}, "401 unauthorized"},
		{"POST", "/jobs", job, []string{token(t, "a b", "produce", nil)}, "401 unauthorized"},
		// There are no API keys here, not even one that the database knows.
		{"POST", "/jobs", job, []string{a.key("acme", "{produce}")}, "401 unauthorized"},
	} {
		r := a.do(c.method, v1+c.path, c.body, c.headers...)
		status, code, _ := strings.Cut(c.want, " ")
		if fmt.Sprint(r.status) != status || !strings.Contains(r.body, code) {
			t.Errorf("%s %s %s %q: %d %s, want %s", c.method, c.path, c.body, c.headers, r.status, r.body, c.want)
		}
		if (r.status == 401) != (r.header.Get("WWW-Authenticate") != "") {
			t.Errorf("%d with WWW-Authenticate %q", r.status, r.header.Get("WWW-Authenticate"))
		}
	}
	// What an operator changes is told of with the token's subject.
	a.do("POST", "/ojs/v1/admin/queues/default/pause", "", operator).want(200)
	if got := pgtest.One[string](t, a.pool, "select actor from ojs.audit order by n desc limit 1"); got != "jwt:ada" {
		t.Errorf("the audit trail has %q", got)
	}
	// A worker's token claims its tenant's jobs only.
	for who, gets := range map[string]bool{globex: false, acme: true} {
		a.do("POST", "/ojs/v1/admin/queues/default/resume", "", operator).want(200)
		got := a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["default"], "worker_id": "w", "count": 10}`, who).want(200).body
		if strings.Contains(got, id) != gets {
			t.Errorf("handed out %s", got)
		}
	}
}

// No route takes a forged token, and none tells why.
func TestNoRouteTakesAForgedToken(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Tokens = tokens(t) })
	forged := "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJ0ZW5hbnRfaWQiOiJhY21lIiwic2NvcGUiOiJhZG1pbiJ9."
	for path, methods := range a.paths() {
		for _, method := range methods {
			call := strings.NewReplacer(":id", someID, ":name", "some").Replace(path)
			r := a.do(method, call, "", forged)
			open := a.route(method, path).Scope == scopeOpen
			if open != (r.status == 200) || !open && (r.status != 401 || strings.Contains(r.body, "alg")) {
				t.Errorf("%s %s: %d %s", method, path, r.status, r.body)
			}
		}
	}
}

// Both ways side by side: the form of a credential says which is meant.
func TestTokensBesideKeys(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.APIKeys, c.Tokens = true, tokens(t) })
	for _, who := range []string{a.key("acme", "{produce}"), token(t, "acme", "produce", nil)} {
		a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`, who).want(201)
	}
	a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`, "X-API-Key: ojs_"+strings.Repeat("0", 64)).want(401)
	a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`, "X-API-Key: a.b.c").want(401)
}

// A key set that cannot be read is not the caller's fault: the same request may succeed later.
func TestTokensWhileTheIssuerIsAway(t *testing.T) {
	t.Parallel()
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer issuer.Close()
	v, err := jwt.New(jwt.Config{KeysURL: issuer.URL, Issuer: "https://issuer.test", Audience: "ojs"})
	if err != nil {
		t.Fatal(err)
	}
	a := start(t, func(c *Config) { c.Tokens = v })
	r := a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`, token(t, "acme", "produce", nil)).want(503)
	if r.header.Get("Retry-After") == "" || strings.Contains(r.body, issuer.URL) {
		t.Errorf("it answers %v %s", r.header, r.body)
	}
}

// The log says who asked, and never with what.
func TestTheLogNamesTheCaller(t *testing.T) {
	t.Parallel()
	all := &pgtest.Log{}
	a := start(t, func(c *Config) {
		c.APIKeys, c.Tokens = true, tokens(t)
		c.Logger = slog.New(slog.NewTextHandler(all, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	key, jwt, late := a.key("acme", "{read}"), token(t, "globex", "read", nil), token(t, "acme", "read", map[string]any{"exp": 1})
	a.do("GET", "/ojs/v1/jobs/"+someID, "", key).want(404)
	a.do("GET", "/ojs/v1/jobs/"+someID, "", jwt).want(404)
	a.do("GET", "/ojs/v1/jobs/"+someID, "", late).want(401)
	a.do("GET", "/ojs/v1/jobs/"+someID, "", "X-API-Key: ojs_"+strings.Repeat("1", 64)).want(401)
	prefix := pgtest.One[string](t, a.pool, "select prefix from ojs.api_key")
	for _, want := range []string{"actor=key:" + prefix + " tenant=acme", "actor=jwt:ada tenant=globex", "token is expired"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	for _, header := range []string{key, jwt, late, "X-API-Key: ojs_" + strings.Repeat("1", 64)} {
		_, secret, _ := strings.Cut(strings.Replace(header, "Bearer ", "", 1), ": ")
		if strings.Contains(all.String(), secret[20:]) {
			t.Errorf("the log has %s", secret)
		}
	}
}

// The cost of authentication for a request, compared with a server without it.
func BenchmarkAuthenticate(b *testing.B) {
	e, mounted := echo.New(), &Server{}
	mounted.mount(e, scoped([]route{{Method: http.MethodPost, Path: v1 + "/jobs", Scope: scopeProduce}}))
	for name, c := range map[string]struct {
		s      *Server
		header string
	}{
		"none":    {&Server{}, "X-Nothing: 0"},
		"api-key": {&Server{keys: keysOf(func([]keyHash) {})}, "Authorization: Bearer " + goodKey},
		"jwt":     {&Server{tokens: tokens(b)}, token(b, "acme", "produce", nil)},
	} {
		b.Run(name, func(b *testing.B) {
			c.s.mounted = mounted.mounted
			handler := c.s.authenticate(func(echo.Context) error { return nil })
			field, value, _ := strings.Cut(c.header, ": ")
			r := httptest.NewRequest(http.MethodPost, v1+"/jobs", nil)
			r.Header.Set(field, value)
			for b.Loop() {
				ctx := e.NewContext(r, httptest.NewRecorder())
				ctx.SetPath(v1 + "/jobs")
				if err := handler(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
