package httpapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// The example of fair scheduling section 5.2, with the weights in the answer, and beside requests that go over the same queues otherwise.
func TestFetchByStrategy(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, queue := range []string{"critical", "default", "low"} {
		for range 12 {
			a.push(`{"type":"a","args":[],"options":{"queue":"` + queue + `"}}`)
		}
	}
	const queues = `{"queues":["critical","default","low"],"count":8`
	for _, c := range []struct{ more, want string }{
		{`}`, "cdlcdlcd"},
		{`,"strategy":"weighted","weights":{"critical":5,"default":2,"low":1}}`, "ccdccdcl"},
		{`,"strategy":"strict"}`, "ccccdddd"},
	} {
		got := ""
		for _, job := range a.do("POST", "/ojs/v1/workers/fetch", queues+c.more).want(200).get("jobs").([]any) {
			got += job.(map[string]any)["queue"].(string)[:1]
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.more, got, c.want)
		}
	}
}

func TestFetchAckShapes(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"]}`).want(200).is(map[string]any{"jobs": []any{}})
	id := a.push(`{"type":"a.b","args":[1],"options":{"queue":"q"}}`)
	second := a.push(`{"type":"a.b","args":[2],"options":{"queue":"q"}}`)
	r := a.do("POST", "/ojs/v1/workers/fetch",
		`{"queues":["none","q","q"],"count":5,"worker_id":"w1","visibility_timeout_ms":60000,"strategy":"round-robin"}`).want(200)
	r.is(map[string]any{
		"jobs.0.id": id, "jobs.1.id": second, "jobs.0.state": "active", "jobs.0.attempt": 1, "jobs.0.args": []any{1},
		"jobs.0.worker_id": "w1", "jobs.0.priority": 0,
	})
	r.present("jobs.0.started_at", "jobs.0.lease", "jobs.0.lease_expires_at",
		"jobs.0.enqueued_at").absent("jobs.2", "jobs.0.error", "jobs.0.completed_at")
	wantHeaders(r)
	lease := r.text("jobs.0.lease")
	a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{"job.state": "active"}).absent("job.lease", "job.lease_expires_at")

	// The lease fences.
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","lease":"`+r.text("jobs.1.lease")+`"}`).want(409).
		is(map[string]any{"error.code": "conflict", "error.retryable": false, "error.details.field": "lease"})
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","worker_id":"w2"}`).want(409)
	ack := a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","lease":"`+lease+`","worker_id":"w1","result":{"ok":true}}`).want(200)
	ack.is(map[string]any{
		"acknowledged": true, "id": id, "job_id": id, "state": "completed", "job.id": id, "job.state": "completed",
		"job.result.ok": true, "job.attempt": 1,
	})
	ack.present("completed_at", "job.completed_at", "job.started_at")
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`).want(409).
		is(map[string]any{"error.code": "conflict", "error.details.current_state": "completed", "error.details.expected_state": "active"})

	// The other way to say it, with and without a body.
	a.do("POST", "/ojs/v1/jobs/"+second+"/ack", "").want(200).is(map[string]any{"job.state": "completed"}).absent("job.result")
	third := a.push(`{"type":"a.b","args":[3],"options":{"queue":"q"}}`)
	a.fetchOne("q")
	a.do("POST", "/ojs/v1/jobs/"+third+"/ack", `{"result":[3]}`).want(200).is(map[string]any{"job.result": []any{3}})
}

func TestNack(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"a.b","args":[],"options":{"queue":"q","retry":{"max_attempts":2,"initial_interval_ms":60000,"jitter":false}}}`)
	a.fetchOne("q")
	r := a.do("POST", "/ojs/v1/workers/nack",
		`{"job_id":"`+id+`","error":{"code":"handler_error","message":"refused","retryable":true,
			"details":{"error_class":"SmtpError","port":587}}}`).want(200)
	r.is(map[string]any{
		"id": id, "job_id": id, "state": "retryable", "attempt": 1, "max_attempts": 2, "retry_delay_ms": 60000,
		"job.state": "retryable", "job.error.message": "refused",
		"job.error.type": "SmtpError", "job.error.code": "handler_error", "job.error.attempt": 1, "job.errors.0.details.port": 587,
		"job.retry_delay_ms": 60000,
	})
	r.present("next_attempt_at", "job.next_attempt_at", "job.error.occurred_at").absent("discarded_at", "completed_at", "job.completed_at")
	if _, err := a.pool.Exec(context.Background(), `
		update ojs.job set retry_at = now(); update ojs.timer set due_at = now(); select ojs.tick()`); err != nil {
		t.Fatal(err)
	}
	a.fetchOne("q")
	r = a.do("POST", "/ojs/v1/jobs/"+id+"/nack", `{"error":{"message":"again"}}`).want(200)
	r.is(map[string]any{
		"state": "discarded", "attempt": 2, "job.error.message": "again", "job.errors.1.attempt": 2,
		"job.errors.0.message": "refused",
	})
	r.present("discarded_at", "completed_at", "job.completed_at", "job.discarded_at").absent("next_attempt_at", "retry_delay_ms")
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"message":"m"}}`).want(409)

	id = a.push(`{"type":"a.b","args":[],"options":{"queue":"q"}}`)
	a.fetchOne("q")
	a.do("POST", "/ojs/v1/workers/nack",
		`{"job_id":"`+id+`","error":{"code":"cancelled","message":"terminating"},"requeue":true}`).want(200).
		is(map[string]any{"state": "available"})

	// An error that a later success clears stays in the history.
	a.fetchOne("q")
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`).want(200).present("job.errors").absent("job.error")
}

func TestSettleMany(t *testing.T) {
	t.Parallel()
	a := start(t)
	one, two, three := a.push(`{"type":"a","args":[]}`), a.push(`{"type":"a","args":[]}`), a.push(`{"type":"a","args":[]}`)
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"count":2}`).want(200)
	r := a.do("POST", "/ojs/v1/workers/ack", `{"jobs":[{"job_id":"`+one+`","result":1},
		{"job_id":"`+three+`"},{"job_id":"019539a4-0000-7000-8000-000000000000"}]}`).want(200)
	r.is(map[string]any{
		"succeeded": 1, "failed": 2, "results.0.acknowledged": true, "results.0.id": one, "results.1.id": three,
		"results.1.status":     409,
		"results.1.error.code": "conflict", "results.2.status": 404, "results.2.error.code": "not_found",
	})
	a.do("GET", "/ojs/v1/jobs/"+one, "").want(200).is(map[string]any{"job.result": 1})
	a.do("POST", "/ojs/v1/workers/nack", `{"jobs":[{"job_id":"`+two+`","error":{"message":"m"}}]}`).want(200).
		is(map[string]any{"succeeded": 1, "results.0.state": "retryable"})
}

func TestNullsInAnErrorAreAbsent(t *testing.T) {
	t.Parallel()
	a := start(t)
	one, two := a.push(`{"type":"a","args":[]}`), a.push(`{"type":"a","args":[]}`)
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"count":2}`).want(200)
	failure := `{"message":"m","code":null,"type":null,"retryable":null,"details":null}`
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+one+`","error":`+failure+`}`).want(200).is(map[string]any{
		"state": "retryable", "job.error.code": "handler_error", "job.error.type": "handler_error",
	})
	a.do("POST", "/ojs/v1/workers/nack",
		`{"jobs":[{"job_id":"`+two+`","error":`+failure+`}]}`).want(200).is(map[string]any{"succeeded": 1, "results.0.state": "retryable"})
}

// Whatever is wrong with one of many, the others are settled.
func TestEachOfManyHasItsOwnResult(t *testing.T) {
	t.Parallel()
	a := start(t)
	var ids []string
	for _, tenant := range []string{"acme", "acme", "globex", "globex", "globex"} {
		ids = append(ids, a.push(`{"type":"a","args":[]}`, "X-OJS-Tenant: "+tenant))
	}
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"count":5,"worker_id":"w"}`).want(200)
	a.do("POST", "/ojs/v1/workers/nack", `{"worker_id":"w","jobs":[{"job_id":"`+ids[0]+`"},7,{"error":{"message":"m"}},
		{"job_id":"no","error":{"message":"m"}},
		{"job_id":"`+ids[0]+`","error":{"message":"m"}},{"job_id":"`+ids[0]+`","error":{"message":"again"}},
		{"job_id":"`+ids[1]+`","worker_id":"other","error":{"message":"m"}}]}`).want(200).is(map[string]any{
		"succeeded": 1, "failed": 6,
		"results.0.status": 400, "results.0.job_id": ids[0], "results.0.error.details.field": "jobs[0].error",
		"results.0.error.details.index": 0,
		"results.1.status":              400, "results.1.error.details.field": "jobs[1]",
		"results.2.status": 400, "results.2.error.details.field": "jobs[2].job_id",
		"results.3.status": 400, "results.3.error.details.field": "jobs[3].job_id",
		"results.4.state":  "retryable",
		"results.5.status": 409, "results.5.error.details.index": 5,
		"results.6.status": 409,
	})
	// SQL's names of fields are those of the client, in its place.
	a.do("POST", "/ojs/v1/workers/nack", `{"worker_id":"nobody","jobs":[
		{"job_id":"`+ids[1]+`","error":{"message":"`+strings.Repeat("x", 1<<16)+`"}},
		{"job_id":"`+ids[1]+`","lease":"`+ids[1]+`","error":{"message":"m"}},
		{"job_id":"`+ids[1]+`","error":{"message":"m"}},{"job_id":"`+ids[1]+`","worker_id":"other","error":{"message":"m"}}]}`).want(200).
		is(map[string]any{
			"failed": 4, "results.0.error.details.field": "worker_id", "results.1.error.details.field": "jobs[1].lease",
			"results.2.error.details.field": "worker_id", "results.3.error.details.field": "jobs[3].worker_id",
		})
	a.do("POST", "/ojs/v1/workers/ack", `{"jobs":[{"job_id":"`+ids[1]+`"}]}`, "X-OJS-Tenant: _mine").want(400).is(map[string]any{
		"error.details.field": "X-OJS-Tenant",
		"error.message":       "X-OJS-Tenant must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and have at most 256 bytes",
	})
	// With a header, other tenants' jobs are unknown; without one, a shared worker settles jobs of every tenant.
	a.do("POST", "/ojs/v1/workers/ack", `{"jobs":[{"job_id":"`+ids[1]+`"},{"job_id":"`+ids[2]+`"}]}`, "X-OJS-Tenant: globex").want(200).
		is(map[string]any{"succeeded": 1, "results.0.status": 404, "results.1.state": "completed"})
	large := `"` + strings.Repeat("x", 1<<19) + `"`
	a.do("POST", "/ojs/v1/workers/ack", `{"worker_id":"w","jobs":[{"job_id":"`+ids[1]+`","result":`+large+`},
		{"job_id":"`+ids[3]+`","result":`+large+`},{"job_id":"`+ids[4]+`","result":`+large+`}]}`).want(200).
		is(map[string]any{"succeeded": 3, "failed": 0})
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+ids[0]+`","result":"`+strings.Repeat("x", 1<<20)+`"}`).want(413)
	for _, body := range []string{
		`{"jobs":[]}`, `{"jobs":{}}`, `{"jobs":[{}` + strings.Repeat(",{}", 1000) + `]}`, `{"jobs":[{}],"worker_id":""}`,
	} {
		a.do("POST", "/ojs/v1/workers/ack", body).want(400)
	}
}

// Some of many are out of reach for the moment: the answer says when to send them again, and the log tells once.
func TestSomeOfManyAreToBeSentAgain(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Query = 2 * time.Second })
	held := []string{a.push(`{"type":"a","args":[]}`), a.push(`{"type":"a","args":[]}`)}
	free := a.push(`{"type":"a","args":[]}`)
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"count":3}`).want(200)
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing was done
	if _, err := tx.Exec(t.Context(), "select from ojs.job where id = any ($1) for update", held); err != nil {
		t.Fatal(err)
	}
	r := a.do("POST", "/ojs/v1/workers/ack", `{"jobs":[{"job_id":"`+held[0]+`"},{"job_id":"`+free+`"},
		{"job_id":"`+held[1]+`"},{}]}`, "X-Request-Id: some").want(200).is(map[string]any{
		"succeeded": 1, "failed": 3, "results.0.status": 503, "results.0.error.retryable": true, "results.1.state": "completed",
		"results.2.status": 503, "results.3.status": 400,
	})
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if told := strings.Count(a.log.String(), "level=ERROR"); told != 1 || !strings.Contains(a.log.String(), "request_id=some") {
		t.Errorf("the log tells %d times: %s", told, a.log)
	}
	r = a.do("POST", "/ojs/v1/workers/ack", `{"jobs":[{"job_id":"`+held[0]+`"},{"job_id":"`+held[1]+`"}]}`).want(503).is(map[string]any{
		"error.code": "backend_unavailable", "error.retryable": true,
	})
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// For one job the answer holds it, unless the client prefers otherwise; for many it never does.
func TestWholeJobOrNot(t *testing.T) {
	t.Parallel()
	a := start(t)
	var ids []string
	for range 8 {
		ids = append(ids, a.push(`{"type":"a","args":[1],"options":{"retry":{"jitter":false}}}`))
	}
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"count":8}`).want(200)
	one := func(id, more string) string { return `{"job_id":"` + id + `"` + more + `}` }
	many := func(id, more string) string { return `{"jobs":[` + one(id, more) + `]}` }
	const failure = `,"error":{"message":"m"}`

	a.do("POST", "/ojs/v1/workers/ack", one(ids[0], ""), "Prefer: return=minimal").want(200).
		is(map[string]any{"id": ids[0], "state": "completed"}).present("completed_at").absent("job")
	a.do("POST", "/ojs/v1/workers/nack", one(ids[1], failure), "Prefer: handling=strict, return=minimal; x=y").want(200).
		is(map[string]any{
			"state": "retryable", "attempt": 1, "max_attempts": 3, "retry_delay_ms": 1000,
		}).present("next_attempt_at").absent("job")
	a.do("POST", "/ojs/v1/workers/ack", many(ids[2], "")).want(200).
		is(map[string]any{"results.0.state": "completed"}).absent("results.0.job")
	a.do("POST", "/ojs/v1/workers/nack", many(ids[3], failure)).want(200).
		is(map[string]any{"results.0.attempt": 1, "results.0.max_attempts": 3, "results.0.retry_delay_ms": 1000}).absent("results.0.job")
	for i, path := range []string{"/ojs/v1/workers/ack", "/ojs/v1/workers/nack"} {
		r := a.do("POST", path, many(ids[4+i], failure[:i*len(failure)]), "Prefer: return=representation").want(200)
		r.is(map[string]any{"succeeded": 1, "results.0.id": ids[4+i]}).absent("results.0.job")
		if got := r.header.Get("Preference-Applied"); got != "" {
			t.Errorf("Preference-Applied %q", got)
		}
	}
	r := a.do("POST", "/ojs/v1/workers/nack", one(ids[6], failure), "Prefer: return=representation").want(200)
	r.is(map[string]any{"job.args": []any{1}, "job.error.message": "m"})
	if got := r.header.Get("Preference-Applied"); got != "return=representation" {
		t.Errorf("Preference-Applied %q", got)
	}
	if r := a.do("POST", "/ojs/v1/workers/ack", one(ids[7], ""),
		"Prefer: return=something").want(200).present("job.args"); r.header.Get("Preference-Applied") != "" {
		t.Error("applied what it does not know")
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	a := start(t)
	one, two := a.push(`{"type":"a","args":[]}`), a.push(`{"type":"a","args":[]}`)
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"count":2,"worker_id":"w1"}`).want(200)
	until := func(id string) (at time.Time) {
		t.Helper()
		if err := a.pool.QueryRow(context.Background(), "select lease_expires_at from ojs.job where id = $1", id).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	before := until(one)
	r := a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w1","active_jobs":["`+one+`"],"visibility_timeout_ms":1500000}`).want(200)
	r.is(map[string]any{"state": "running", "jobs_extended": []any{one}}).present("server_time")
	if after := until(one); after.Sub(before) < 20*time.Minute {
		t.Errorf("the lease went from %s to %s", before, after)
	}
	// As the official SDKs say it.
	a.do("POST", "/ojs/v1/workers/heartbeat",
		`{"worker_id":"w1","state":"running","active_jobs":1,"active_job_ids":["`+two+`"],"hostname":"h","pid":5}`).want(200).
		is(map[string]any{"jobs_extended": []any{two}})
	a.do("POST", "/ojs/v1/workers/heartbeat",
		`{"worker_id":"w2","active_jobs":["`+one+`"]}`).want(200).is(map[string]any{"jobs_extended": []any{}})
	a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"idle","active_jobs":0}`).want(200).is(map[string]any{"jobs_extended": []any{}})
}

// waiting reports how many fetches are asleep.
func (a *api) waiting() int {
	return a.count("select count(*) from ojs.waiter")
}

// looks returns how many decisions have been made so far.
func (a *api) looks() int64 {
	a.t.Helper()
	n, err := strconv.ParseInt(a.metrics()[`ojs_statement_items_count{statement="fetch_many"}`], 10, 64)
	if err != nil {
		a.t.Fatal(err)
	}
	return n
}

func TestLongPollWokenByACommit(t *testing.T) {
	t.Parallel()
	a := start(t)
	// Only a wake can help: the dispatcher's own look is far away.
	for name, preference := range map[string]string{"body": "", "header": "Prefer: respond-async, wait=30"} {
		queue := "wait-" + name
		body := `{"queues":["` + queue + `"],"wait_ms":30000}`
		var headers []string
		if preference != "" {
			body, headers = `{"queues":["`+queue+`"]}`, []string{preference}
		}
		answers := make(chan *reply, 1)
		go func() {
			r, err := a.send(context.Background(), "POST", "/ojs/v1/workers/fetch", body, headers...)
			if err != nil {
				t.Error(err)
			}
			answers <- r
		}()
		pgtest.Eventually(a.t, "the fetch sleeps", func() bool {
			return a.count("select count(*) from ojs.waiter where queue = $1", queue) == 1
		})
		pgtest.AtRest(t, "the looks that follow a registration are over", a.looks)
		tx, err := a.db.As("acme").Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var id string
		if err := tx.QueryRow(context.Background(), "select id from ojs.enqueue('sql.job', p_queue => $1)", queue).Scan(&id); err != nil {
			t.Fatal(err)
		}
		if pgtest.AtRest(t, "nobody looks", a.looks); len(answers) > 0 {
			t.Fatalf("answered before the commit: %s", (<-answers).body)
		}
		if err := tx.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		r := <-answers
		r.want(200).is(map[string]any{"jobs.0.id": id, "jobs.0.type": "sql.job", "jobs.0.meta.tenant_id": "acme"})
		if preference != "" && r.header.Get("Preference-Applied") != "wait=30" {
			t.Errorf("Preference-Applied %q", r.header.Get("Preference-Applied"))
		}
	}
}

func TestLongPollEnds(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Wait = 200 * time.Millisecond })
	// Clamped to the longest wait, and said so.
	r := a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"]}`, "Prefer: wait=3600").want(200)
	r.is(map[string]any{"jobs": []any{}})
	if got := r.header.Get("Preference-Applied"); got != "wait=1" {
		t.Errorf("Preference-Applied %q", got)
	}
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"],"wait_ms":86400000}`).want(200).is(map[string]any{"jobs": []any{}})
	for _, odd := range []string{"wait", "wait=soon", "wait=-1", "handling=lenient"} {
		if r := a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"]}`,
			"Prefer: "+odd).want(200); r.header.Get("Preference-Applied") != "" {
			t.Errorf("applied %q", odd)
		}
	}
}

// A client that hangs up while its fetch is being decided gives the job back, and no attempt is lost.
func TestHangUpWhileClaiming(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"a","args":[],"options":{"queue":"q"}}`)
	// The decision can write no lease for as long as we like.
	tx, err := a.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // done already when the test passes
	if _, err := tx.Exec(context.Background(), "lock table ojs.lease in share mode"); err != nil {
		t.Fatal(err)
	}
	noticed := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { close(noticed) })
		a.srv.Handler().ServeHTTP(w, r)
	}))
	defer web.Close()
	direct := a.url
	a.url = web.URL
	ctx, hangUp := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := a.send(ctx, "POST", "/ojs/v1/workers/fetch", `{"queues":["q"],"worker_id":"w1"}`)
		gone <- err
	}()
	pgtest.Eventually(a.t, "the decision waits", func() bool {
		return a.count(`
			select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like '%ojs.fetch%'`) == 1
	})
	hangUp()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client got %v", err)
	}
	<-noticed
	a.url = direct
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(a.t, "the job was handed out and given back", func() bool {
		return a.count("select count(*) from ojs.job where state = 'available' and attempt = 0 and lease is null") == 1 &&
			a.count("select count(*) from ojs.release where to_state = 'available'") == 1
	})
	a.fetchOne("q").is(map[string]any{"jobs.0.id": id, "jobs.0.attempt": 1})
}

// The same for a client that hangs up while it waits: the job that comes later is not lost to it.
func TestHangUpWhileWaiting(t *testing.T) {
	t.Parallel()
	a := start(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	body := `{"queues":["q"],"wait_ms":60000}`
	fmt.Fprintf(conn, "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	pgtest.Eventually(a.t, "the fetch sleeps", func() bool { return a.waiting() == 1 })
	conn.Close()
	id := a.push(`{"type":"a","args":[],"options":{"queue":"q"}}`)
	var got string
	pgtest.Eventually(a.t, "another worker gets the job", func() bool {
		got = a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"]}`).want(200).text("jobs.0.id")
		return got != ""
	})
	a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{"job.attempt": 1})
	if got != id {
		t.Errorf("got %s", got)
	}
}

// serve runs the server on a socket of its own, with its timeouts.
func serve(t *testing.T, a *api) (url string, stop context.CancelFunc, done chan error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done = make(chan error, 1)
	go func() { done <- a.srv.Serve(ctx, ln) }()
	t.Cleanup(stop)
	return "http://" + ln.Addr().String(), stop, done
}

func TestServe(t *testing.T) {
	t.Parallel()
	// A wait longer than the read and write timeouts together must not break.
	a := start(t, func(c *Config) {
		c.Limits.Read, c.Limits.Write, c.Limits.Wait, c.Limits.Headers = time.Second, time.Second, 2500*time.Millisecond, 1024
	})
	url, stop, done := serve(t, a)
	a.url = url
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"],"wait_ms":2500}`).want(200).is(map[string]any{"jobs": []any{}})
	a.do("GET", "/ready", "").want(200).is(map[string]any{"status": "ready"})

	// A client that never finishes its request is cut off.
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /ojs/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"type\":")
	if answer, _ := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
		t.Errorf("an unfinished request was answered with %q", answer)
	}

	// Headers far beyond the limit end before our code.
	conn, err = net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: x\r\nX-Huge: %s\r\n\r\n", strings.Repeat("x", 100_000))
	if line, _ := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, "431") {
		t.Errorf("huge headers were answered with %q", line)
	}

	stop()
	if err := <-done; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// A server that stops lets waiting workers go at once, and its readiness ends first.
func TestShutdown(t *testing.T) {
	t.Parallel()
	a := start(t)
	url, stop, done := serve(t, a)
	behind := a.url // the same server through a socket that stays open
	a.url = url
	answers := make(chan *reply, 1)
	go func() {
		r, err := a.send(context.Background(), "POST", "/ojs/v1/workers/fetch", `{"queues":["q"],"wait_ms":60000}`)
		if err != nil {
			t.Error(err)
		}
		answers <- r
	}()
	pgtest.Eventually(a.t, "the fetch sleeps", func() bool { return a.waiting() == 1 })
	stop()
	(<-answers).want(200).is(map[string]any{"jobs": []any{}})
	if err := <-done; err != nil {
		t.Errorf("stopped with %v", err)
	}
	a.url = behind
	a.do("GET", "/ojs/v1/ready", "").want(503).is(map[string]any{"status": "draining"})
	a.do("GET", "/ojs/v1/health", "").want(200)
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("still answering")
	}
}

// A response that could not be written gives its jobs back too.
func TestUnwritableResponse(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"a","args":[],"options":{"queue":"q"}}`)
	req, err := http.NewRequest("POST", "/ojs/v1/workers/fetch", strings.NewReader(`{"queues":["q"]}`))
	if err != nil {
		t.Fatal(err)
	}
	a.srv.Handler().ServeHTTP(&brokenWriter{header: http.Header{}}, req)
	a.givenBack(id)

	// Small ones stay in a buffer, and only that it cannot be emptied tells.
	if req, err = http.NewRequest("POST", "/ojs/v1/workers/fetch", strings.NewReader(`{"queues":["q"]}`)); err != nil {
		t.Fatal(err)
	}
	a.srv.Handler().ServeHTTP(&unflushable{brokenWriter{header: http.Header{}, good: 1}}, req)
	a.givenBack(id)
}

// unflushable takes what is written, and cannot pass it on.
type unflushable struct{ brokenWriter }

func (w *unflushable) FlushError() error { return errors.New("broken pipe") }

// A large answer leaves bit by bit, and is the same; one that breaks off half-way gives all its jobs back.
func TestLargeFetch(t *testing.T) {
	t.Parallel()
	a := start(t)
	var ids []string
	for i := range 5 {
		ids = append(ids, a.push(fmt.Sprintf(`{"type":"a","args":[%d, "%s"],"options":{"queue":"q"}}`, i, strings.Repeat("x", 700_000))))
	}
	for _, failing := range []int{0, 1, 2} {
		req, err := http.NewRequest("POST", "/ojs/v1/workers/fetch", strings.NewReader(`{"queues":["q"],"count":5}`))
		if err != nil {
			t.Fatal(err)
		}
		w := &brokenWriter{header: http.Header{}, good: failing}
		if a.srv.Handler().ServeHTTP(w, req); w.good >= 0 {
			t.Errorf("the answer left in fewer than %d bits", failing+1)
		}
		for _, id := range ids {
			a.givenBack(id)
		}
	}
	r := a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"],"count":5}`).want(200)
	for i, id := range ids {
		at := fmt.Sprintf("jobs.%d.", i)
		if r.present(at+"lease", at+"lease_expires_at"); r.text(at+"id") != id ||
			fmt.Sprint(r.get(at+"args.0")) != strconv.Itoa(i) || len(r.text(at+"args.1")) != 700_000 {
			t.Errorf("job %d is %s, and not %s with its args", i, r.text(at+"id"), id)
		}
	}
}

// A FETCH whose answer breaks down half-way is cut off, and its jobs are given back.
func TestFetchBreaksDown(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"an answer in one piece": 1, "an answer in several pieces": 700_000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fetchBreaksDown(t, size)
		})
	}
}

func fetchBreaksDown(t *testing.T, size int) {
	a := start(t)
	var ids []string
	for range 3 {
		ids = append(ids, a.push(`{"type":"a","args":["`+strings.Repeat("x", size)+`"],"options":{"queue":"q"}}`))
	}
	req, err := http.NewRequest("POST", "/ojs/v1/workers/fetch", strings.NewReader(`{"queues":["q"],"count":3}`))
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if got := recover(); got != http.ErrAbortHandler { //nolint:errorlint // net/http compares them, too
				t.Errorf("the answer ends with %v", got)
			}
		}()
		a.srv.Handler().ServeHTTP(&panickyWriter{brokenWriter{header: http.Header{}}}, req)
	}()
	if log := a.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "out of ink") {
		t.Errorf("the log does not have it: %s", log)
	}
	for _, id := range ids {
		a.givenBack(id)
	}
}

type panickyWriter struct{ brokenWriter }

func (w *panickyWriter) Write([]byte) (int, error) { panic("out of ink") }

// givenBack waits until a job is available again and its attempt does not count.
func (a *api) givenBack(id string) {
	a.t.Helper()
	pgtest.Eventually(a.t, "job "+id+" is given back", func() bool {
		r := a.do("GET", "/ojs/v1/jobs/"+id, "").want(200)
		return r.text("job.state") == "available" && fmt.Sprint(r.get("job.attempt")) == "0"
	})
}

// brokenWriter takes a few writes and then no more.
type brokenWriter struct {
	header http.Header
	good   int
}

func (w *brokenWriter) Header() http.Header { return w.header }
func (w *brokenWriter) WriteHeader(int)     {}

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.good--; w.good < 0 {
		return 0, errors.New("broken pipe")
	}
	return len(b), nil
}

// A database that is gone is a 503 that may be tried again, everywhere.
func TestDatabaseGone(t *testing.T) {
	t.Parallel()
	a := start(t)
	door, err := pg.Open(t.Context(), pg.Config{URL: a.db.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(a.db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.pool.Exec(t.Context(), "alter role "+pgx.Identifier{cfg.User}.Sanitize()+" nologin"); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(a.log, nil))
	dispatcher := dispatch.New(door, notify.New(door, log), log, dispatch.Options{Query: 2 * time.Second})
	a.srv = New(Config{DB: door, Dispatcher: dispatcher, Logger: log, Limits: Limits{Query: 2 * time.Second}})
	if _, err := a.pool.Exec(t.Context(), `
		select pg_terminate_backend(pid) from pg_stat_activity where usename = $1`, cfg.User); err != nil {
		t.Fatal(err)
	}
	url, stop, done := serve(t, a)
	a.url = url
	const id = "019539a4-0000-7000-8000-000000000000"
	for i, req := range [][3]string{
		{"POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`},
		{"POST", "/ojs/v1/workers/fetch", `{"queues":["q"]}`},
		{"POST", "/ojs/v1/workers/ack", `{"jobs":[{"job_id":"` + id + `"},{"job_id":"` + id + `"},{}]}`},
		{
			"POST", "/ojs/v1/workers/nack",
			`{"jobs":[{"job_id":"` + id + `","error":{"message":"m"}},{"job_id":"` + id + `","error":{"message":"m"}}]}`,
		},
		{"GET", "/ojs/v1/queues", ""},
		{"GET", "/ojs/v1/admin/tenants", ""},
	} {
		name := fmt.Sprintf("request-%d", i)
		r := a.do(req[0], req[1], req[2], "X-Request-Id: "+name).want(503)
		if told := strings.Count(a.log.String(), "request_id="+name); told != 1 {
			t.Errorf("%s %s: the log tells %d times: %s", req[0], req[1], told, a.log)
		}
		r.is(map[string]any{"error.code": "backend_unavailable", "error.retryable": true})
		if r.header.Get("Retry-After") == "" {
			t.Errorf("%s %s says nothing of when to retry", req[0], req[1])
		}
		wantErrorShape(r)
	}
	a.do("GET", "/ojs/v1/health", "").want(503).is(map[string]any{"status": "degraded", "backend.status": "unhealthy"})
	a.do("GET", "/ready", "").want(503)
	a.do("GET", "/ojs/manifest", "").want(200)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	door.Close()
}

// The requests of workers in ojs-fair-scheduling, sections 5.2 and 14.1, are taken as they are printed.
func TestFSRequestsAsPrinted(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, queue := range []string{"critical", "default", "low"} {
		a.push(`{"type":"a","args":[],"options":{"queue":"` + queue + `"}}`)
	}
	a.do("POST", "/ojs/v1/workers/fetch", `{
  "queues": ["critical", "default", "low"],
  "strategy": "weighted",
  "weights": { "critical": 5, "default": 2, "low": 1 }
}`).want(200).present("jobs.0.id")
	a.do("POST", "/ojs/v1/workers/register", `{
  "worker": {
    "id": "worker-abc-123",
    "pool": "general",
    "queues": ["critical", "default", "low"],
    "strategy": "weighted",
    "weights": { "critical": 5, "default": 3, "low": 1 },
    "concurrency": 10
  }
}`).want(200).is(map[string]any{"worker_id": "worker-abc-123"})
	a.do("GET", "/ojs/v1/admin/workers/worker-abc-123", "").want(200).is(map[string]any{"pool": "general", "strategy": "weighted"})
}

// A worker registers with its pool, its strategy and its weights, flat or in an object (fair-scheduling section 14.1), and is served so,
// whatever its FETCH says.
func TestWorkersRegisterHowTheyAreServed(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, queue := range []string{"critical", "default", "low"} {
		for range 12 {
			a.push(`{"type":"a","args":[],"options":{"queue":"` + queue + `"}}`)
		}
	}
	a.do("POST", "/ojs/v1/workers/register", `{"worker": {"id": "worker-abc-123", "pool": "general",
		"queues": ["critical", "default", "low"], "strategy": "weighted", "weights": {"critical": 5, "default": 3, "low": 1},
		"concurrency": 10}}`).want(200)
	reply := a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["critical", "default", "low"], "count": 9,
		"worker_id": "worker-abc-123"}`).want(200)
	if n := strings.Count(reply.body, `"queue":"critical"`); n != 5 {
		t.Errorf("%d of nine jobs are critical, want 5: %s", n, reply.body)
	}
	a.do("PUT", "/ojs/v1/admin/pools/general", `{"queues": ["low", "default"], "strategy": "strict"}`).want(200)
	reply = a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["critical", "default", "low"], "count": 3,
		"worker_id": "worker-abc-123"}`).want(200)
	if n := strings.Count(reply.body, `"queue":"low"`); n != 3 {
		t.Errorf("%d of three jobs are low, want 3: %s", n, reply.body)
	}
	a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id": "worker-abc-123", "active_jobs": [], "pool": "other"}`).want(409)
	if pool := a.do("GET", "/ojs/v1/admin/workers/worker-abc-123", "").want(200).text("pool"); pool != "general" {
		t.Errorf("its pool is %q", pool)
	}
}
