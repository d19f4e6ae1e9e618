package httpapi

import (
	"context"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// What the manifest does not promise is refused by name, in every door, instead of taken and not done.
func TestJobsThatAskForWhatThereIsNot(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, c := range []struct{ fields, field, feature string }{
		{`"options":{"unique":{"keys":["type"]}}`, "options.unique", "unique jobs"},
		{`"unique":{"key":"k"}`, "unique", "unique jobs"},
		{`"options":{"rate_limit":{"key":"k"}}`, "options.rate_limit", "rate limiting"},
		{`"rate_limit":{"key":"k"},"options":{"queue":"q"}`, "rate_limit", "rate limiting"},
		{`"options":{"workflow":"w"}`, "options.workflow", "workflows"},
	} {
		job := `{"type":"a","args":[],` + c.fields + `}`
		for path, body := range map[string]string{"": job, "/batch": `{"jobs":[{"type":"a","args":[]},` + job + `]}`} {
			field := c.field
			if path != "" {
				field = "jobs[1]." + field
			}
			a.do("POST", "/ojs/v1/jobs"+path, body).want(422).is(map[string]any{
				"error.code": "unsupported", "error.retryable": false, "error.details.field": field,
				"error.message": field + " is not supported: this server does not have " + c.feature,
			})
		}
	}
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"unique":null,"options":{"rate_limit":null}}`).want(201)
	cron := `{"name":"n","cron":"@daily","type":"a","args":[],"options":{"unique":{"key":"k"}}}`
	a.do("POST", "/ojs/v1/cron", cron).want(422).is(map[string]any{"error.code": "unsupported"})

	if _, err := a.pool.Exec(context.Background(), "select ojs.configure(p_unsupported => 'carry')"); err != nil {
		t.Fatal(pgtest.Explain(err))
	}
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"options":{"unique":{ "key":"k" }}}`).want(201).is(map[string]any{
		"job.options.unique.key": "k", "job.unique.key": "k",
	})
}

func TestRoutesOfWhatThereIsNot(t *testing.T) {
	t.Parallel()
	a := start(t)
	for call, status := range map[[2]string]int{
		{"POST", "/jobs/bulk/cancel"}: 422, {"POST", "/jobs/bulk/retry"}: 422, {"POST", "/jobs/bulk/delete"}: 422,
		{"GET", "/unique-jobs"}: 422, {"GET", "/jobs/" + someID + "/retries"}: 422, {"GET", "/admin/stats/history"}: 422,
		{"GET", "/queues/q/priority-stats"}: 422, {"POST", "/admin/maintenance"}: 422, {"GET", "/events/e/history"}: 422,
		{"POST", "/workflows"}: 422, {"GET", "/workflows/" + someID}: 422, {"GET", "/rate-limits/k"}: 422,
		{"PUT", "/jobs/" + someID + "/progress"}: 422, {"PUT", "/jobs/" + someID + "/checkpoint"}: 422,
		{"POST", "/webhooks/subscriptions"}: 422, {"GET", "/events/stream"}: 422, {"POST", "/agents/a/pause"}: 501,
		{"PUT", "/admin/schemas/a/1"}: 501, {"POST", "/attest/verify"}: 501, {"GET", "/ws"}: 501,
		{"POST", "/queues/q/purge"}: 422, {"POST", "/admin/queues/q/purge"}: 422, {"GET", "/admin/jobs/" + someID + "/trace"}: 422,
		{"GET", "/jobs/" + someID + "/receipt"}: 501, {"GET", "/ojs/v1/checkpoints/" + someID + "/resume"}: 422,
		{"POST", "/ojs/v1/checkpoints/" + someID}: 422, {"DELETE", "/ojs/v1/checkpoints/" + someID}: 422,
	} {
		body := ""
		if call[0] != "GET" {
			body = "{}"
		}
		a.do(call[0], "/ojs/v1"+call[1], body).want(status).is(map[string]any{"error.code": "unsupported", "error.retryable": false}).
			present("error.feature")
	}
	a.do("GET", "/ojs/v1/nothing", "").want(404).is(map[string]any{"error.code": "not_found"})
	a.do("DELETE", "/ojs/v1/events", "").want(405)
}
