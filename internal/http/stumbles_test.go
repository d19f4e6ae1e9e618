package httpapi

import (
	"strings"
	"testing"
)

// What somebody who is new writes, and what the answer says about it.
func TestErrorsNameWhatWasMeant(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/ojs/v1/job", "{}", 404, "there is no such route; POST /ojs/v1/jobs is probably meant"},
		{"POST", "/jobs", "{}", 404, "; POST /ojs/v1/jobs is probably meant"},
		{"POST", "/v1/jobs", "{}", 404, "; POST /ojs/v1/jobs is probably meant"},
		{"POST", "/api/v1/jobs", "{}", 404, "; POST /ojs/v1/jobs is probably meant"},
		{"POST", "/ojs/v1/fetch", "{}", 404, "; POST /ojs/v1/workers/fetch is probably meant"},
		{"POST", "/ojs/v1/workers/heartbeats", "{}", 404, "; POST /ojs/v1/workers/heartbeat is probably meant"},
		{"GET", "/ojs/v1/job/" + someID, "", 404, "; GET /ojs/v1/jobs/:id is probably meant"},
		{"GET", "/", "", 404, "there is no such route"},
		{"GET", "/ojs/v1/nothing/like/it", "", 404, "there is no such route"},
		{"GET", "/ojs/v1/workers/fetch", "", 405, "the route does not have this method; use POST"},
		{"GET", "/ojs/v1/jobs?status=available", "", 400, "status is not known; state is probably meant"},
		{
			"POST", "/ojs/v1/jobs", `{"type": "a", "args": [], "timeout": "30s"}`, 400,
			"timeout must be a number of seconds, such as 30, not string; or use timeout_ms",
		},
		{"POST", "/ojs/v1/jobs", `{"type": "a", "args": [], "options": {"timeout": "30s"}}`, 400, "options.timeout must be a number"},
		{"POST", "/ojs/v1/jobs", `{"type": "a", "args": [], "timeout": 3000000}`, 400, "timeout is in seconds, and must be at most"},
		{"POST", "/ojs/v1/jobs", `{"type": "a", "args": [], "delay": "5m"}`, 400, `scheduled_at is probably meant, such as "+PT5M"`},
		{"POST", "/ojs/v1/jobs", `{"type": "a", "args": [], "delay_until": "5m"}`, 400, "or + and an ISO 8601 duration, such as +PT5M"},
	} {
		r := a.do(c.method, c.path, c.body)
		said := r.text("error.message")
		if r.status != c.status || !strings.Contains(said, c.says) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, r.status, r.body)
		}
		if strings.HasSuffix(said, "no such route") && strings.Contains(said, "meant") || strings.Contains(r.body, "The message says why") {
			t.Errorf("%s %s: %s", c.method, c.path, r.body)
		}
	}
	r := a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`, "Content-Type: application/x-www-form-urlencoded")
	if r.status != 400 || !strings.Contains(r.text("error.hint"), "-H 'Content-Type: application/json'") {
		t.Errorf("without a Content-Type: %s", r.body)
	}
	// A repeated ACK names the client's own earlier request as a cause.
	a.do("POST", "/ojs/v1/jobs", `{"type": "a", "args": []}`).want(201)
	job := a.do("POST", "/ojs/v1/workers/fetch", `{"queues": ["default"], "worker_id": "w"}`).want(200)
	ack := `{"job_id": "` + job.text("jobs.0.id") + `", "lease": "` + job.text("jobs.0.lease") + `"}`
	a.do("POST", "/ojs/v1/workers/ack", ack).want(200)
	again := a.do("POST", "/ojs/v1/workers/ack", ack).want(409)
	if !strings.Contains(again.text("error.hint"), "earlier request of your own") {
		t.Errorf("a second ACK: %s", again.body)
	}
}
