package httpapi

import (
	"strings"
	"sync"
	"testing"
)

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, tc := range []struct{ path, body, id string }{
		{"/ojs/v1/jobs", `{"type":"a","args":[ 1.0 ],"options":{"delay_until":"+PT1H"}}`, "job.id"},
		{"/ojs/v1/jobs/batch", `{"jobs":[{"type":"a","args":[]},{"type":"b","args":[],"options":{"queue":"q"}}]}`, "jobs.1.id"},
	} {
		key := "key of " + tc.path
		first := a.do("POST", tc.path, tc.body, "Idempotency-Key: "+key).want(201)
		if got := first.header.Get("Idempotency-Replayed"); got != "" {
			t.Errorf("the first answer says replayed: %s", got)
		}
		a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default","q"],"count":5,"worker_id":"w"}`).want(200)
		second := a.do("POST", tc.path, tc.body, "Idempotency-Key: "+key).want(201)
		if second.header.Get(
			"Idempotency-Replayed",
		) != "true" || second.body != first.body || second.header.Get("Location") != first.header.Get("Location") {
			t.Errorf("%s: answered\n%s\nthen, %v,\n%s", tc.path, first.body, second.header, second.body)
		}
		a.do("POST", tc.path, strings.Replace(tc.body, `"a"`, `"c"`, 1), "Idempotency-Key: "+key).want(409).
			is(map[string]any{"error.code": "conflict", "error.details.field": "Idempotency-Key", "error.retryable": false})
		// Another tenant's key is another key, and without one everything is new.
		if other := a.do(
			"POST", tc.path, tc.body, "Idempotency-Key: "+key, "X-OJS-Tenant: acme",
		).want(201); other.text(tc.id) == first.text(tc.id) {
			t.Errorf("another tenant got %s", other.body)
		}
		if other := a.do("POST", tc.path, tc.body).want(201); other.text(tc.id) == first.text(tc.id) {
			t.Errorf("without a key got %s", other.body)
		}
		a.do("POST", tc.path, tc.body, "Idempotency-Key: ").want(400).is(map[string]any{"error.details.field": "Idempotency-Key"})
		a.do("POST", tc.path, tc.body, "Idempotency-Key: "+strings.Repeat("x", 257)).want(400)
		a.do("POST", tc.path, tc.body, "Idempotency-Key: 1", "Idempotency-Key: 2").want(400)
	}
	// A failure is not remembered, and says where it is as without a key.
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"options":{"priority":1000}}`, "Idempotency-Key: f").want(400).
		is(map[string]any{"error.details.field": "options.priority"}).absent("error.details.index")
	a.do(
		"POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"a","args":[]},{"type":"a","args":[],"options":{"priority":1000}}]}`,
		"Idempotency-Key: f",
	).want(400).
		is(map[string]any{"error.details.field": "jobs[1].options.priority", "error.details.index": 1})
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, "Idempotency-Key: f").want(201)

	// It may stand at the top of the body, and is no attribute of the job there.
	const single = `{"type":"a","args":[],"idempotency_key":"s"}`
	made := a.do("POST", "/ojs/v1/jobs", single).want(201).absent("job.idempotency_key")
	if second := a.do("POST", "/ojs/v1/jobs", single).want(201); second.text("job.id") != made.text("job.id") {
		t.Errorf("with the key in the body of a job: %s, then %s", made.body, second.body)
	}
	a.do("POST", "/ojs/v1/jobs", strings.Replace(single, `"a"`, `"c"`, 1)).want(409).
		is(map[string]any{"error.details.field": "idempotency_key"})
	a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[`+single+`]}`).want(400).
		is(map[string]any{"error.details.field": "jobs[0].idempotency_key"})

	// In a batch it stands next to jobs.
	const body = `{"idempotency_key":"b","jobs":[{"type":"a","args":[]}]}`
	first := a.do("POST", "/ojs/v1/jobs/batch", body).want(201)
	if second := a.do("POST", "/ojs/v1/jobs/batch", body).want(201); second.body != first.body {
		t.Errorf("with the key in the body: %s, then %s", first.body, second.body)
	}
	a.do(
		"POST", "/ojs/v1/jobs/batch", strings.Replace(body, `"a"`, `"c"`, 1),
	).want(409).is(map[string]any{"error.details.field": "idempotency_key"})
	a.do(
		"POST", "/ojs/v1/jobs/batch", `{"idempotency_key":7,"jobs":[{"type":"a","args":[]}]}`,
	).want(400).is(map[string]any{"error.details.field": "idempotency_key"})
	if second := a.do("POST", "/ojs/v1/jobs/batch", body, "Idempotency-Key: h").want(201); second.body == first.body {
		t.Error("the header does not win")
	}
}

func TestOneOfManyWithTheSameKeyEnqueues(t *testing.T) {
	t.Parallel()
	a := start(t)
	var running sync.WaitGroup
	bodies := make([]string, 20)
	for i := range bodies {
		running.Go(func() {
			if r, err := a.send(t.Context(), "POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, "Idempotency-Key: k"); err == nil {
				bodies[i] = r.body
			}
		})
	}
	running.Wait()
	for _, body := range bodies {
		if body != bodies[0] || body == "" {
			t.Fatalf("the answers differ: %s", strings.Join(bodies, "\n"))
		}
	}
	if got := a.count("select count(*) from ojs.job"); got != 1 {
		t.Errorf("%d jobs", got)
	}
}
