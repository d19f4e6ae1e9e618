package httpapi

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// 000 section 8.2: what a client that is beyond a limit is answered, one job or several, and when it may come again.
func TestMT82SPATenantBeyondItsLimits(t *testing.T) {
	t.Parallel()
	a := start(t)
	pgtest.Exec(t, a.pool, `select ojs.configure_limits('acme-corp', '{"max_queue_depth": 3}'),
		ojs.configure_limits('slow', '{"max_enqueue_rate": {"limit": 2, "period": "PT1H"}}')`)
	job := `{"type":"x","args":[]}`
	three := `{"jobs":[` + job + "," + job + "," + job + `]}`
	as := func(tenant, path, body string) *reply { return a.do("POST", path, body, "X-OJS-Tenant: "+tenant) }
	for range 3 {
		as("acme-corp", "/ojs/v1/jobs", job).want(201)
	}
	refused := as("acme-corp", "/ojs/v1/jobs", job).want(429)
	refused.is(map[string]any{
		"error.code": "TENANT_LIMIT_EXCEEDED", "error.message": "Tenant 'acme-corp' has exceeded max_queue_depth (3)",
		"error.tenant_id": "acme-corp", "error.limit": "max_queue_depth", "error.current": 3.0, "error.maximum": 3.0,
		"error.retryable": true,
	})
	if got := refused.header.Get("OJS-Quota"); got != "max_queue_depth,used=3,limit=3" || refused.header.Get("Retry-After") != "30" {
		t.Errorf("the headers are %q, Retry-After %q", got, refused.header.Get("Retry-After"))
	}
	as("acme-corp", "/ojs/v1/jobs/batch", three).want(429).is(map[string]any{"error.limit": "max_queue_depth"})
	as("slow", "/ojs/v1/jobs", job).want(201)
	as("slow", "/ojs/v1/jobs/batch", three).want(422).is(map[string]any{"error.details.field": "jobs", "error.details.limit": 2.0})
	// Of a batch in which each is by itself there is room for one.
	some := as("slow", "/ojs/v1/jobs/batch", `{"atomicity":"partial",`+three[1:]).want(207)
	some.is(map[string]any{
		"count": 1.0, "failed": 2.0, "results.0.status": "created", "results.1.status": "failed",
		"results.1.error.limit": "max_enqueue_rate", "results.2.error.code": "TENANT_LIMIT_EXCEEDED", "results.2.error.details.index": 2.0,
	})
	none := as("slow", "/ojs/v1/jobs/batch", `{"atomicity":"partial",`+three[1:]).want(429)
	for header, want := range map[string]string{
		"Retry-After": "1800", "X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0",
		"OJS-Quota": "max_enqueue_rate,used=2,limit=2",
	} {
		if got := none.header.Get(header); got != want {
			t.Errorf("%s: %s, want %s", header, got, want)
		}
	}
	if at, err := strconv.ParseInt(none.header.Get("X-RateLimit-Reset"), 10, 64); err != nil || at < time.Now().Unix()+1700 ||
		at > time.Now().Unix()+1800 {
		t.Errorf("X-RateLimit-Reset is %q", none.header.Get("X-RateLimit-Reset"))
	}
	as("other", "/ojs/v1/jobs/batch", `{"atomicity":"partial",`+three[1:]).want(201).is(map[string]any{"count": 3.0, "failed": 0.0})
	as("other", "/ojs/v1/jobs/batch", `{"atomicity":"perhaps",`+three[1:]).want(400).is(map[string]any{"error.details.field": "atomicity"})
	a.do("POST", "/ojs/v1/jobs/batch", `{"atomicity":"partial",`+three[1:], "Idempotency-Key: k").want(422)
	// Waiting does not free stored bytes, so there is no Retry-After.
	pgtest.Exec(t, a.pool, `select ojs.configure_limits('big', '{"max_stored_bytes": 1000}')`)
	as("big", "/ojs/v1/jobs", job).want(201)
	stored := as("big", "/ojs/v1/jobs", job).want(507)
	stored.is(map[string]any{
		"error.code": "TENANT_LIMIT_EXCEEDED", "error.limit": "max_stored_bytes", "error.maximum": 1000.0, "error.retryable": false,
		"error.retry_after": nil,
	})
	if used, after := stored.header.Get("OJS-Quota"), stored.header.Get("Retry-After"); after != "" ||
		!strings.HasPrefix(used, "max_stored_bytes,used=5") {
		t.Errorf("the headers are %q, Retry-After %q", used, after)
	}
	as("big", "/ojs/v1/jobs/batch", `{"atomicity":"partial",`+three[1:]).want(507)
	a.db.Eventually("refusals are noted", `select coalesce(array_agg(r.what order by r.what) =
		'{acme-corp max_queue_depth 2,big max_stored_bytes 2,slow max_enqueue_rate 3}', false)
		from (select concat_ws(' ', tenant_id, resource, sum(requests)) as what from ojs.refusals group by tenant_id, resource) r`)
}

// When a server has stopped, nothing of it runs any more, and its last refusals are noted. Not parallel: it looks at all goroutines.
func TestAServerThatStops(t *testing.T) {
	db := pgtest.New(t)
	pgtest.Exec(t, db.Pool, `select ojs.configure_limits('acme', '{"max_queue_depth": 0}')`)
	t.Run("a server", func(t *testing.T) {
		a := &api{t: t, db: db, pool: db.Pool, log: &pgtest.Log{}}
		a.serve(db.Open())
		a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`, "X-OJS-Tenant: acme").want(429)
		id := a.push(`{"type": "a", "args": []}`)
		a.do("GET", "/ojs/v1/jobs/"+id+"/result?wait=true&timeout=1", "").want(408)
	})
	if n := pgtest.One[int](t, db.Pool, "select count(*) from ojs.refusals where tenant_id = 'acme'"); n != 1 {
		t.Errorf("%d refusals are noted", n)
	}
	stacks := make([]byte, 1<<20)
	if stacks = stacks[:runtime.Stack(stacks, true)]; bytes.Contains(stacks, []byte("(*background)")) {
		t.Errorf("something still runs:\n%s", stacks)
	}
}

// Requests that come together are taken one by one as long as there is room, also where one of them has the room locked.
func TestLimitsOfRequestsThatComeTogether(t *testing.T) {
	t.Parallel()
	a := start(t)
	pgtest.Exec(t, a.pool, `select ojs.configure_limits('acme', '{"max_queue_depth": 5}')`)
	var all sync.WaitGroup
	statuses := make([]int, 12)
	for n := range statuses {
		all.Go(func() {
			body := `{"type":"x","args":[]}`
			if path := "/ojs/v1/jobs"; n%3 == 0 {
				statuses[n] = a.do("POST", path+"/batch", `{"jobs":[`+body+`]}`, "X-OJS-Tenant: acme").status
			} else {
				statuses[n] = a.do("POST", path, body, "X-OJS-Tenant: acme").status
			}
		})
	}
	all.Wait()
	seen := map[int]int{}
	for _, status := range statuses {
		seen[status]++
	}
	if fmt.Sprint(seen) != "map[201:5 429:7]" {
		t.Errorf("the statuses are %v", seen)
	}
}

// A change that was made elsewhere is known to a server that had nothing to do, when the next request comes.
func TestLimitsAreChangedElsewhere(t *testing.T) {
	t.Parallel()
	a := start(t)
	job := `{"type":"x","args":[],"options":{"queue":"q"}}`
	a.do("POST", "/ojs/v1/jobs", job).want(201)
	pgtest.Exec(t, a.pool, `select ojs.configure_queue('q', '{"backpressure": {"max_depth": 2, "warning_threshold": 0.5}}')`)
	time.Sleep(time.Second)
	if got := a.do("POST", "/ojs/v1/jobs", job).want(201).header.Get("X-OJS-Queue-Depth"); got != "2" {
		t.Errorf("the depth is %q", got)
	}
}

// What a tenant's credential may know of a queue that is full is its bound.
func TestAFullQueueTellsACredentialItsBound(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	pgtest.Exec(t, a.pool, `select ojs.configure_queue('q', '{"backpressure": {"max_depth": 5, "warning_threshold": 0.1}}'),
		ojs.enqueue('x', p_queue => 'q', p_tenant => 'globex') from generate_series(1, 3)`)
	own := a.key("acme", "{produce}")
	job := `{"type":"x","args":[],"options":{"queue":"q"}}`
	if got := a.do("POST", "/ojs/v1/jobs", job, own).want(201).header.Get("X-OJS-Queue-Depth"); got != "" {
		t.Errorf("with a new job it is told %s", got)
	}
	full := a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[`+job+","+job+`]}`, own).want(429)
	if full.is(map[string]any{"error.depth": 5.0, "error.details.depth": 5.0}); full.header.Get("X-OJS-Queue-Depth") != "5" {
		t.Errorf("it is told %s", full.header.Get("X-OJS-Queue-Depth"))
	}
}

// ojs-backpressure section 7: a queue that is full, or nearly so.
func TestAQueueIsFull(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("PUT", "/ojs/v1/admin/queues/q/config", `{"backpressure":{"max_depth":4,"strategy":"reject","warning_threshold":0.5}}`).want(200)
	job := `{"type":"x","args":[],"options":{"queue":"q"}}`
	for n, want := range []string{"", "2 4 0.50", "3 4 0.75", "4 4 1.00"} {
		h := a.do("POST", "/ojs/v1/jobs", job).want(201).header
		got := strings.TrimSpace(h.Get("X-OJS-Queue-Depth") + " " + h.Get("X-OJS-Queue-Bound") + " " + h.Get("X-OJS-Queue-Pressure"))
		if got != want {
			t.Errorf("with job %d the headers say %q, want %q", n+1, got, want)
		}
	}
	full := a.do("POST", "/ojs/v1/jobs", job).want(429)
	full.is(map[string]any{
		"error.code": "QUEUE_FULL", "error.message": "Queue 'q' has reached its depth bound (4)", "error.queue": "q", "error.depth": 4.0,
		"error.bound": 4.0, "error.strategy": "reject",
	})
	if h := full.header; h.Get("X-OJS-Queue-Depth") != "4" || h.Get("X-OJS-Queue-Bound") != "4" || h.Get("Retry-After") != "30" {
		t.Errorf("the headers are %v", h)
	}
	a.do("POST", "/ojs/v1/jobs", `{"type":"x","args":[]}`).want(201)
}
