package httpapi

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// done makes a job, completes it with a result, and returns its id.
func (a *api) done(options, result string) string {
	a.t.Helper()
	id := a.push(`{"type":"a","args":[]` + options + `}`)
	a.fetchOne("default")
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","result":`+result+`}`).want(200)
	return id
}

// failed makes a job that fails finally, and returns its id.
func (a *api) failed() string {
	a.t.Helper()
	id := a.push(`{"type":"a","args":[],"options":{"retry":{"max_attempts":1}}}`)
	a.fetchOne("default")
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"message":"m","type":"T"}}`).want(200)
	return id
}

func TestResultsAreAsTheyWereSent(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.done("", `{"n": 1.50}`)
	r := a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{
		"job.result.n": json.Number("1.50"), "job.result_size_bytes": 11,
	}).present("job.result_stored_at", "job.result_expires_at")
	if !strings.Contains(r.body, `"result":{"n": 1.50}`) {
		t.Errorf("the result is not as it was sent: %s", r.body)
	}
	a.do("GET", "/ojs/v1/jobs/"+id+"/result", "").want(200).is(map[string]any{
		"job_id": id, "state": "completed", "result.n": json.Number("1.50"), "result_size_bytes": 11,
	}).present("result_expires_at")
	a.do("GET", "/ojs/v1/jobs/"+id+"/result", "", "X-OJS-Tenant: acme").want(404)
	a.do("GET", "/ojs/v1/jobs/01932a4e-0000-7000-8000-000000000000/result?wait=true", "").want(404)
	a.do("GET", "/ojs/v1/jobs/what/result", "").want(404)
	a.do("GET", "/ojs/v1/jobs/"+a.failed()+"/result", "").want(200).is(map[string]any{
		"state": "discarded", "result": nil, "error.type": "T",
	})
}

func TestResultsAreKeptAsLongAsTheirJobSays(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, options := range []string{`,"options":{"result_ttl":0}`, `,"result_ttl":0`} {
		gone := a.done(options, `5`)
		a.do("GET", "/ojs/v1/jobs/"+gone, "").want(200).is(map[string]any{"job.state": "completed"}).absent("job.result")
		a.do("GET", "/ojs/v1/jobs/"+gone+"/result", "").want(410).is(map[string]any{
			"error.code": "RESULT_PRUNED", "error.retryable": false,
		})
	}
	ever := a.done(`,"options":{"result_ttl":-1}`, `[7]`)
	a.do("GET", "/ojs/v1/jobs/"+ever+"/result", "").want(200).is(map[string]any{"result.0": 7}).absent("result_expires_at")
	for _, bad := range []string{`-2`, `1.5`, `"P7D"`, `315360001`, `[]`} {
		a.do(
			"POST", "/ojs/v1/jobs", `{"type":"a","args":[],"options":{"result_ttl":`+bad+`}}`,
		).want(400).is(map[string]any{"error.details.field": "options.result_ttl"})
		a.do(
			"POST", "/ojs/v1/jobs", `{"type":"a","args":[],"result_ttl":`+bad+`}`,
		).want(400).is(map[string]any{"error.details.field": "result_ttl"})
	}
}

func TestResultsAreWaitedFor(t *testing.T) {
	t.Parallel()
	a := start(t)
	open := a.push(`{"type":"a","args":[]}`)
	path := "/ojs/v1/jobs/" + open + "/result"
	if got := a.do("GET", path, "").want(200).is(map[string]any{
		"state": "available", "result": nil,
	}); got.header.Get("Retry-After") != "1" {
		t.Error("nothing says to ask again")
	}
	a.do("GET", path+"?wait=true&timeout=0", "").want(408).is(map[string]any{
		"error.code": "timeout", "error.retryable": true, "error.details.current_state": "available",
	})
	a.do("GET", path+"?wait=maybe", "").want(400).is(map[string]any{"error.details.field": "wait"})
	a.do("GET", path+"?timeout=x", "").want(400).is(map[string]any{"error.details.field": "timeout"})
	waited := make(chan *reply, 1)
	go func() {
		r, err := a.send(context.Background(), "GET", path+"?wait=true&timeout=60", "")
		if err != nil {
			t.Error(err)
		}
		waited <- r
	}()
	pgtest.Eventually(t, "it is waited for", func() bool {
		a.srv.endings.mu.Lock()
		defer a.srv.endings.mu.Unlock()
		return len(a.srv.endings.jobs) > 0
	})
	a.fetchOne("default")
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+open+`","result":"late"}`).want(200)
	if r := <-waited; r != nil {
		r.want(200).is(map[string]any{"result": "late"})
	}
}

func TestResultsOfMany(t *testing.T) {
	t.Parallel()
	a := start(t)
	plain, failed := a.done("", `{"n": 1.50}`), a.failed()
	const unknown = "01932a4e-0000-7000-8000-000000000000"
	list := a.do("POST", "/ojs/v1/jobs/results", `{"ids":["`+strings.Join([]string{plain, failed, unknown, plain}, `","`)+`"]}`).want(200)
	list.is(map[string]any{
		"results." + plain + ".result.n": json.Number("1.50"), "results." + failed + ".state": "discarded",
		"results." + failed + ".result": nil, "results." + unknown: nil,
	})
	if strings.Count(list.body, plain) != 1 {
		t.Errorf("an id named twice is answered twice: %s", list.body)
	}
	a.do(
		"POST", "/ojs/v1/jobs/results", `{"ids":["`+plain+`"]}`, "X-OJS-Tenant: acme",
	).want(200).is(map[string]any{"results." + plain: nil})
	a.do("POST", "/ojs/v1/jobs/results", `{"ids":["x"]}`).want(400).is(map[string]any{"error.details.field": "ids[0]"})
	a.do("POST", "/ojs/v1/jobs/results", `{}`).want(400).is(map[string]any{"error.details.field": "ids"})
}

// What a result may have is the same by every door, and one that has more is told so; its job stays active.
func TestLargeResults(t *testing.T) {
	t.Parallel()
	a := start(t)
	result := func(size int) string { return `"` + strings.Repeat("x", size-2) + `"` }
	for _, byPath := range []bool{false, true} {
		id := a.push(`{"type":"a","args":[]}`)
		lease := a.fetchOne("default").text("jobs.0.lease")
		route := "/ojs/v1/workers/ack"
		if byPath {
			route = "/ojs/v1/jobs/" + id + "/ack"
		}
		for _, size := range []int{1<<20 + 1, 3 << 20, 15 << 20} {
			a.do("POST", route, `{"job_id":"`+id+`","lease":"`+lease+`","result":`+result(size)+`}`).want(413).is(map[string]any{
				"error.code": "RESULT_TOO_LARGE", "error.details.field": "result",
			})
		}
		a.do("POST", route, `{"job_id":"`+id+`","lease":"`+lease+`","result":`+result(17<<20)+`}`).want(413)
		a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{"job.state": "active"})
		a.do("POST", route, `{"job_id":"`+id+`","lease":"`+lease+`","result":`+result(1<<20)+`}`, "Prefer: return=minimal").want(200)
		a.do("GET", "/ojs/v1/jobs/"+id+"/result", "").want(200).is(map[string]any{"result_size_bytes": 1 << 20})
	}
}

// Results of many are told all, or none if they are too many bytes.
func TestLargeAnswersAreRefused(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.List = 100_000 })
	var ids []string
	for range 3 {
		ids = append(ids, a.push(`{"type":"a","args":[]}`))
		a.fetchOne("default")
		a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+ids[len(ids)-1]+`","result":"`+strings.Repeat("x", 45_000)+`"}`).want(200)
	}
	ask := func(ids ...string) *reply {
		return a.do("POST", "/ojs/v1/jobs/results", `{"ids":["`+strings.Join(ids, `","`)+`"]}`)
	}
	ask(ids...).want(413).is(map[string]any{"error.code": "payload_too_large", "error.details.field": "ids"})
	ask(ids[:2]...).want(200).is(map[string]any{"results." + ids[1] + ".result_size_bytes": 45_002})
	ask(ids[2]).want(200).present("results." + ids[2] + ".result")
}
