package httpapi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const acme, globex = "X-OJS-Tenant: acme", "X-OJS-Tenant: globex"

// inFlight returns when a tenant has n requests in flight.
func (a *api) inFlight(tenant string, n int64) {
	a.t.Helper()
	pgtest.Eventually(a.t, fmt.Sprintf("%s has %d in flight", tenant, n), func() bool { return a.srv.admission.requests.Held(tenant) == n })
}

// Requests beyond what a tenant may have in flight are refused, whether the header or a key names it. Other tenants' are not.
func TestRequestsInFlightOfATenant(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) {
		c.APIKeys, c.Limits.TenantRequests, c.Limits.TurnWait = true, 2, time.Millisecond
	})
	own, operator, other := a.key("acme", "{produce,read}"), a.key("", "{admin}"), a.key("globex", "{produce}")
	ends := []func() string{a.begin(batchOf(10), own), a.begin(batchOf(10), operator, acme)}
	a.inFlight("acme", 2)
	r := a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, own).want(429)
	r.is(map[string]any{
		"error.code": "TENANT_LIMIT_EXCEEDED", "error.retryable": true, "error.tenant_id": "acme",
		"error.limit": "max_in_flight_requests", "error.current": 2, "error.maximum": 2,
	})
	if wantErrorShape(r); r.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", r.header.Get("Retry-After"))
	}
	a.do("GET", v1+"/queues", "", own).want(429)
	a.do("GET", v1+"/queues", "", operator, "X-OJS-Tenant-ID: acme").want(429)
	a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, other).want(201)
	a.do("GET", v1+"/queues", "", operator).want(200)
	for _, end := range ends {
		if line := end(); line != "HTTP/1.1 201 Created" {
			t.Errorf("one that was let in: %s", line)
		}
	}
	a.inFlight("acme", 0)
	a.do("GET", v1+"/queues", "", own).want(200)
}

// A request waits for its turn, in a line that is not without end, and leaves it with its client.
func TestRequestsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.TenantRequests, c.Limits.TurnWait = 1, time.Hour })
	end := a.begin(batchOf(10), acme)
	a.inFlight("acme", 1)
	statuses := make(chan int, lineFor)
	waiting := func(n int) {
		t.Helper()
		pgtest.Eventually(t, fmt.Sprint(n, " wait"), func() bool { return a.srv.admission.requests.Waiting() == n })
	}
	ask := func(ctx context.Context) {
		r, err := a.send(ctx, "GET", v1+"/queues", "", acme)
		switch {
		case err == nil:
			statuses <- r.status
		case !errors.Is(err, context.Canceled):
			t.Error(err)
		}
	}
	gone, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { ask(gone) })
	for range lineFor - 1 {
		all.Go(func() { ask(t.Context()) })
	}
	waiting(lineFor)
	a.do("GET", v1+"/queues", "", acme).want(429)
	a.do("GET", v1+"/queues", "", globex).want(200)
	leave()
	waiting(lineFor - 1)
	if line := end(); line != "HTTP/1.1 201 Created" {
		t.Error(line)
	}
	all.Wait()
	close(statuses)
	for status := range statuses {
		if status != 200 {
			t.Errorf("one that waited: %d", status)
		}
	}
}

// Who waits for a job, or for a result, counts among those that wait, and no longer as in flight.
func TestWaitingPollsOfATenant(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) {
		c.Limits.TenantRequests, c.Limits.TenantPolls, c.Limits.TurnWait = 1, 2, time.Millisecond
	})
	fetch := func(wait string) string { return `{"queues": ["mail"], "worker_id": "w", "wait_ms": ` + wait + `}` }
	id := a.do("POST", v1+"/jobs", `{"type": "a", "args": [], "options": {"pending": true}}`, acme).want(201).text("job.id")
	a.inFlight("acme", 0)
	ctx, stop := context.WithCancel(t.Context())
	var polls sync.WaitGroup
	polling := func(n int64) {
		t.Helper()
		pgtest.Eventually(t, fmt.Sprint(n, " wait"), func() bool { return a.srv.admission.polls.Held("acme") == n })
		a.inFlight("acme", 0)
	}
	begin := func(method, path, body string) {
		polls.Go(func() {
			if r, err := a.send(ctx, method, path, body, acme); err == nil {
				t.Errorf("%s was answered %d %s", path, r.status, r.body)
			}
		})
	}
	begin("POST", v1+"/workers/fetch", fetch("60000"))
	polling(1)
	begin("GET", v1+"/jobs/"+id+"/result?wait=true", "")
	polling(2)
	for path, body := range map[string]string{"/workers/fetch": fetch("60000"), "/jobs/" + id + "/result?wait=true": ""} {
		method := "GET"
		if body != "" {
			method = "POST"
		}
		a.do(method, v1+path, body, acme).want(429).is(map[string]any{"error.limit": "max_waiting_polls", "error.maximum": 2})
		a.inFlight("acme", 0)
	}
	a.do("POST", v1+"/workers/fetch", fetch("0"), acme).want(200)
	a.do("POST", v1+"/workers/fetch", fetch("1"), globex).want(200)
	stop()
	polls.Wait()
	polling(0)
	a.do("POST", v1+"/workers/fetch", fetch("1"), acme).want(200)
}

// A caller without a tenant has half of the polls of a server; the other half is for others, until that is taken, too.
func TestWaitingPollsOfAServer(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Polls = 4 })
	const fetch = `{"queues": ["mail"], "worker_id": "w", "wait_ms": 60000}`
	ctx, stop := context.WithCancel(t.Context())
	var polls sync.WaitGroup
	begin := func(headers ...string) {
		polls.Go(func() {
			if r, err := a.send(ctx, "POST", v1+"/workers/fetch", fetch, headers...); err == nil {
				t.Errorf("answered %d %s", r.status, r.body)
			}
		})
	}
	waiting := func(n int) {
		t.Helper()
		pgtest.Eventually(t, fmt.Sprint(n, " wait"), func() bool {
			held := a.srv.admission.polls
			return held.Held("acme")+held.Held("globex")+held.Held(pg.NoTenant) == int64(n)
		})
	}
	begin()
	begin()
	waiting(2)
	a.do("POST", v1+"/workers/fetch", fetch).want(503).is(map[string]any{"error.code": "backend_unavailable"})
	begin(acme)
	begin(globex)
	waiting(4)
	a.do("POST", v1+"/workers/fetch", fetch, acme).want(503)
	a.do("POST", v1+"/workers/fetch", `{"queues": ["mail"], "worker_id": "w"}`, acme).want(200)
	stop()
	polls.Wait()
	waiting(0)
}

// One tenant's bodies and answers take half of the room, so that another tenant finds some.
func TestRoomOfATenant(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) {
		c.Limits.Bodies, c.Limits.BatchBody, c.Limits.RoomWait = 4<<20, 1<<20, time.Millisecond
		c.Limits.Answers = 1_600_000 // half of it is less than one of the answers
	})
	var ends []func() string
	for range 2 { // one of two steps, one of two places
		ends = append(ends, a.begin(batchOf(900_000), acme))
	}
	pgtest.Eventually(t, "the bodies have arrived", func() bool {
		return a.srv.admission.steps.Held("acme")+a.srv.admission.places.Held("acme") == 2
	})
	a.do("POST", v1+"/jobs/batch", batchOf(900_000), acme).want(503)
	a.do("POST", v1+"/jobs/batch", batchOf(900_000), globex).want(201)
	for _, end := range ends {
		if line := end(); line != "HTTP/1.1 201 Created" {
			t.Errorf("one that had room: %s", line)
		}
	}
	answers := a.srv.admission.answers
	if !answers.Try("acme", 800_000) || answers.Try("acme", 1) {
		t.Error("the tenant does not have half of the room for answers")
	}
	body := `{"queues": ["default"], "worker_id": "w"}`
	a.do("POST", v1+"/workers/fetch", body, acme).want(503)
	a.do("POST", v1+"/workers/fetch", body, globex).want(200)
	answers.Leave("acme", 800_000)
	if got := a.do("POST", v1+"/workers/fetch", body, acme).want(200).get("jobs.0.attempt"); fmt.Sprint(got) != "1" {
		t.Errorf("attempt %v: the one whose answer had no room counts", got)
	}
}

// The statements of one tenant's requests leave connections to others, also where each of them takes for ever.
func TestConnectionsOfATenant(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.TenantRequests = 1000 })
	a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, acme).want(201)
	// Only the server's own login waits for this lock.
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing was done
	if _, err := tx.Exec(t.Context(), "lock table ojs.cron"); err != nil {
		t.Fatal(err)
	}
	conns := int(a.srv.db.Pool().Config().MaxConns)
	var all sync.WaitGroup
	for range 2 * conns {
		all.Go(func() {
			if r, err := a.send(t.Context(), "GET", v1+"/cron", "", acme); err != nil || r.status != 200 {
				t.Errorf("one that waited: %v, %v", r, err)
			}
		})
	}
	a.db.BlockedSessions(conns / 8)
	a.inFlight("acme", int64(2*conns))
	a.do("GET", v1+"/queues", "", globex).want(200)
	a.do("POST", v1+"/jobs/batch", batchOf(10), globex).want(201)
	a.do("POST", v1+"/jobs", `{"type": "a", "args": []}`, acme).want(201)
	blocked := "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
	if n := pgtest.One[int](t, a.pool, blocked); n != conns/8 {
		t.Errorf("%d of %d connections are one tenant's", n, conns)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}
