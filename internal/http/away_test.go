package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const someID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"

// someBody holds bodies with which a route asks the database, by path, or by method and path. Other routes
// get an empty object, or no body with GET and DELETE.
var someBody = map[string][]string{
	"/ojs/v1/jobs": {`{"type":"a","args":[]}`, `{"type":"a","args":[],"id":"` + someID + `"}`},
	"/ojs/v1/jobs/batch": {
		`{"jobs":[{"type":"a","args":[]}]}`, `{"jobs":[{"type":"a","args":[]}],"idempotency_key":"k"}`,
	},
	"/ojs/v1/jobs/results":  {`{"ids":["` + someID + `"]}`},
	"/ojs/v1/jobs/:id/nack": {`{"error":{"code":"x","message":"x"}}`},
	"/ojs/v1/workers/fetch": {`{"queues":["default"],"worker_id":"w"}`},
	"/ojs/v1/workers/ack": {
		`{"job_id":"` + someID + `"}`, `{"job_id":"` + someID + `","lease":"` + someID + `","result":1}`, `{"jobs":[{"job_id":"` + someID +
			`"},{"job_id":"` + someID + `"}]}`,
	},
	"/ojs/v1/workers/nack": {
		`{"job_id":"` + someID + `","error":{"code":"x","message":"x"}}`, `{"jobs":[{"job_id":"` + someID +
			`","error":{"code":"x","message":"x"}}]}`,
	},
	"/ojs/v1/workers/heartbeat":             {`{"worker_id":"w","active_jobs":["` + someID + `"]}`},
	"/ojs/v1/workers/beat":                  {`{"worker_id":"w","active_jobs":[]}`},
	"/ojs/v1/workers/register":              {`{"worker_id":"w"}`},
	"/ojs/v1/workers/deregister":            {`{"worker_id":"w"}`},
	"POST /ojs/v1/queues":                   {`{"name":"made","config":{"description":"d"}}`},
	"DELETE /ojs/v1/queues/:name":           {`{"strategy":"reject"}`},
	"/ojs/v1/queues/:name/config":           {`{"description":"d"}`},
	"/ojs/v1/admin/queues/:name/config":     {`{"config":{"description":null}}`},
	"POST /ojs/v1/cron":                     {`{"name":"default","cron":"@daily","type":"a"}`},
	"PUT /ojs/v1/cron/:name":                {`{"cron":"@daily","type":"a"}`},
	"PATCH /ojs/v1/cron/:name":              {`{"enabled":true}`, `{"cron":"@hourly"}`},
	"POST /ojs/v1/crons":                    {`{"name":"default","cron":"@daily","type":"a"}`},
	"PUT /ojs/v1/crons/:name":               {`{"cron":"@daily","type":"a"}`},
	"PATCH /ojs/v1/crons/:name":             {`{"enabled":true}`},
	"DELETE /ojs/v1/dead-letter":            {`{"confirm":true}`},
	"DELETE /ojs/v1/admin/dead-letter":      {`{"confirm":true}`},
	"/ojs/v1/dead-letter/retry":             {`{"confirm":true}`, `{"until":"2031-01-01T00:00:00Z","confirm":true}`},
	"/ojs/v1/dead-letter/purge":             {`{"confirm":true}`},
	"/ojs/v1/admin/dead-letter/retry":       {`{"confirm":true}`},
	"/ojs/v1/admin/dead-letter/purge":       {`{"confirm":true}`},
	"PATCH /ojs/v1/jobs/:id":                {`{"priority":1}`},
	"PATCH /ojs/v1/admin/jobs/:id":          {`{"priority":"high"}`},
	"/ojs/v1/admin/jobs/bulk/retry":         {`{"confirm":true}`},
	"/ojs/v1/admin/erase":                   {`{"ids":["` + someID + `"],"confirm":true,"reason":"r"}`},
	"/ojs/v1/admin/jobs/bulk/cancel":        {`{"confirm":true}`, `{"ids":["` + someID + `"],"confirm":true}`},
	"/ojs/v1/admin/workers/directive":       {`{"directive":"running"}`},
	"/ojs/v1/admin/workers/:id/directive":   {`{"directive":"running"}`},
	"POST /ojs/v1/admin/api-keys":           {`{"scopes":["admin"]}`},
	"PUT /ojs/v1/admin/tenants/:id":         {`{"weight":2}`},
	"DELETE /ojs/v1/admin/tenants/:id":      {`{"confirm":"` + someID + `"}`},
	"PUT /ojs/v1/admin/tenants/:id/limits":  {`{"max_concurrency":2}`},
	"PUT /ojs/v1/admin/queues/:name/limits": {`{"max_concurrency":2}`},
	"PUT /ojs/v1/admin/tenants/:id/tier":    {`{"tier":null}`},
}

// every calls each route, always in the same order, and returns the answers by method, path and body.
func (a *api) every(headers ...string) map[string]*reply {
	a.t.Helper()
	replies := map[string]*reply{}
	routes := a.srv.handler.(*echo.Echo).Routes()
	slices.SortFunc(routes, func(a, b *echo.Route) int { return strings.Compare(a.Method+a.Path, b.Method+b.Path) })
	for _, route := range routes {
		if route.Method == http.MethodHead || strings.HasPrefix(route.Method, "echo") {
			continue
		}
		path := strings.NewReplacer(":id", someID, ":name", "default").Replace(route.Path)
		name := route.Method + " " + route.Path
		bodies, known := someBody[name]
		switch {
		case known:
		case route.Method == http.MethodGet || route.Method == http.MethodDelete:
			bodies = []string{""}
		default:
			if bodies, known = someBody[route.Path]; !known {
				bodies = []string{"{}"}
			}
		}
		for _, body := range bodies {
			ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
			r, err := a.send(ctx, route.Method, path, body, headers...)
			cancel()
			if err != nil {
				a.t.Fatalf("%s: %v", name, err)
			}
			replies[strings.TrimSpace(name+" "+body)] = r
		}
	}
	return replies
}

// withoutDatabase are routes that need no database.
var withoutDatabase = []string{"GET /ojs/manifest", "GET /health", "GET /metrics"}

// refusedAnyway are routes that refuse every request.
var refusedAnyway = []string{"POST /ojs/v1/admin/jobs/bulk/delete {}", "DELETE /ojs/v1/admin/queues/:name/jobs"}

// unavailable checks that every route that needs the database answers that it is away and that the request
// may be repeated.
func (a *api) unavailable(when string) {
	a.t.Helper()
	for name, r := range a.every() {
		switch {
		case slices.Contains(withoutDatabase, name):
			if r.status != 200 {
				a.t.Errorf("%s answers %d %s", name, r.status, when)
			}
		case slices.Contains(refusedAnyway, name):
			if r.status != 422 {
				a.t.Errorf("%s answers %d %s", name, r.status, when)
			}
		case r.status != 503:
			a.t.Errorf("%s answers %d %s: %s", name, r.status, when, r.body)
		case r.header.Get("Retry-After") != "1":
			a.t.Errorf("%s says no Retry-After %s", name, when)
		case r.get("error") != nil && (r.get("error.retryable") != true || r.text("error.code") != "backend_unavailable"):
			a.t.Errorf("%s says %s %s", name, r.body, when)
		}
	}
}

func TestEveryRouteSurvivesPostgres(t *testing.T) {
	t.Parallel()
	database := pgtest.NewPrivate(t, nil)
	door, err := pg.Open(t.Context(), pg.Config{URL: database.ServiceURL, AppName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(door.Close)
	a := &api{t: t, log: &pgtest.Log{}}
	if a.pool, err = pgxpool.New(context.Background(), database.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.pool.Close)
	a.serve(door)
	before := a.every()
	for name, r := range before {
		// What is refused for its body does not ask the database.
		if slices.Contains(refusedAnyway, name) {
			continue
		}
		if r.status >= 500 || r.status == 400 || r.status == 413 || r.status == 422 {
			t.Errorf("%s answers %d: %s", name, r.status, r.body)
		}
	}
	for what, away := range map[string]func(){"stopped": database.Stop, "killed": database.Kill} {
		waiting := make(chan *reply, 1)
		go func() {
			r, err := a.send(t.Context(), "POST", "/ojs/v1/workers/fetch", `{"queues":["slow"],"worker_id":"w"}`, "Prefer: wait=50")
			if err != nil {
				t.Errorf("a FETCH that waited while Postgres was %s: %v", what, err)
			}
			waiting <- r
		}()
		pgtest.Eventually(a.t, "the FETCH waits", func() bool {
			return a.count(
				"select count(*) from ojs.waiter where queue = 'slow'",
			) > 0
		})
		away()
		if r := <-waiting; r != nil && r.status != 503 {
			t.Errorf("a FETCH that waited while Postgres was %s answers %d: %s", what, r.status, r.body)
		}
		a.unavailable("with Postgres " + what)
		database.Start()
		a.pool.Reset()
		pgtest.Eventually(a.t, "the server is ready again", func() bool { return a.do("GET", "/ojs/v1/ready", "").status == 200 })
		for name, r := range a.every() {
			if r.status >= 500 {
				t.Errorf("after Postgres was %s %s answers %d: %s", what, name, r.status, r.body)
			}
		}
	}
}

// PostgreSQL gives the server fewer connections than it would like, or none: what cannot be done is to be asked again, and nobody has to
// restart anything
// when there are some.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	a := start(t)
	role := pgx.Identifier{a.db.RoleName("service")}.Sanitize()
	limit := func(connections int) {
		t.Helper()
		if _, err := a.pool.Exec(t.Context(), fmt.Sprintf("alter role %s connection limit %d", role, connections)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.pool.Exec(
			t.Context(), "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = $1", a.db.RoleName("service"),
		); err != nil {
			t.Fatal(err)
		}
	}
	limit(2)
	var all sync.WaitGroup
	made := make(chan string, 200)
	for range 20 {
		all.Go(func() {
			for range cap(made) / 20 {
				r := a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"a","args":[],"options":{"queue":"few"}}]}`)
				switch {
				case r.status == 201:
					made <- r.text("jobs.0.id")
				case r.status != 503 || r.header.Get("Retry-After") == "" || r.get("error.retryable") != true:
					t.Errorf("with few connections an enqueue answers %d: %s", r.status, r.body)
				}
			}
		})
	}
	all.Wait()
	// A refused one has certainly left nothing behind: it had no connection.
	if n := a.count("select count(*) from ojs.job where queue = 'few'"); n != len(made) {
		t.Errorf("%d jobs, and %d were confirmed", n, len(made))
	}

	limit(0)
	var refused *pgconn.PgError
	if _, err := pgx.Connect(t.Context(), a.db.ServiceURL); !errors.As(err, &refused) || refused.Code != "53300" {
		t.Fatalf("a connection more is refused with %v", err)
	}
	a.unavailable("without a connection")

	limit(-1)
	pgtest.Eventually(a.t, "the server is ready again", func() bool { return a.do("GET", "/ojs/v1/ready", "").status == 200 })
	for name, r := range a.every() {
		if r.status >= 500 {
			t.Errorf("afterwards %s answers %d: %s", name, r.status, r.body)
		}
	}
	got := make(chan *reply, 1)
	go func() {
		got <- a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["later"],"worker_id":"later"}`, "Prefer: wait=50")
	}()
	pgtest.Eventually(a.t, "the FETCH waits", func() bool { return a.count("select count(*) from ojs.waiter where queue = 'later'") > 0 })
	id := a.push(`{"type":"a","args":[],"options":{"queue":"later"}}`)
	if r := <-got; r.text("jobs.0.id") != id {
		t.Errorf("the FETCH that waited answers %d: %s", r.status, r.body)
	}
}

// A FETCH that waits is woken by what was committed while the listening connection was away.
func TestWaitersLookAgainAfterReconnect(t *testing.T) {
	t.Parallel()
	a := start(t)
	for range 5 {
		got := make(chan *reply, 1)
		go func() {
			got <- a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"],"worker_id":"w"}`, "Prefer: wait=50")
		}()
		pgtest.Eventually(a.t, "the FETCH waits", func() bool {
			return a.count("select count(*) from ojs.waiter where queue = 'q' and expires_at > now()") > 0
		})
		if _, err := a.pool.Exec(t.Context(), `
			select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query = 'listen ojs_wake';
			insert into ojs.jobs (tenant_id, type, queue) values ('acme', 'a', 'q')`); err != nil {
			t.Fatal(err)
		}
		if r := <-got; r.status != 200 || r.get("jobs.0.id") == nil {
			t.Errorf("the FETCH answers %d: %s", r.status, r.body)
		}
	}
}
