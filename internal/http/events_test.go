package httpapi

import (
	"strconv"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"test.echo","args":[],"options":{"queue":"ev"}}`, "X-OJS-Tenant: acme")
	a.push(`{"type":"other","args":[]}`)
	a.do("GET", "/ojs/v1/events?types=job.enqueued&queues=ev&limit=10", "").want(200).is(map[string]any{
		"events.0.type": "job.enqueued", "events.0.specversion": "1.0", "events.0.subject": id, "events.0.tenant_id": "acme",
		"events.0.data.job_type": "test.echo",
		"events.0.data.queue":    "ev", "items.0.type": "job.enqueued", "pagination.has_more": false,
	}).present("events.0.id", "events.0.source", "events.0.time").absent("events.1")
	a.fetchOne("ev")
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`).want(200)
	a.do("GET", "/ojs/v1/events?types=job.completed&queues=ev", "").want(200).
		is(map[string]any{
			"events.0.type": "job.completed", "events.0.data.attempt": 1,
		}).present("events.0.data.duration_ms").absent("events.1")
	a.do("GET", "/ojs/v1/events?types=job.enqueued&limit=1", "").want(200).
		is(map[string]any{"pagination.has_more": true}).absent("events.1")
	a.do("GET", "/ojs/v1/events", "", "X-OJS-Tenant: globex").want(200).is(map[string]any{"events": []any{}})
	a.do("GET", "/ojs/v1/events?after=evt_1", "").want(422).
		is(map[string]any{"error.code": "unsupported", "error.details.field": "after"})
	// As the admin UI asks.
	a.do("GET", "/ojs/v1/events?type=job.completed&since=2020-01-01T00:00:00Z&page=1&per_page=5", "").want(200).
		is(map[string]any{"events.0.type": "job.completed", "pagination.has_more": false}).absent("events.1")
	a.do("GET", "/ojs/v1/events?since=2120-01-01T00:00:00Z", "").want(200).is(map[string]any{"events": []any{}})
	for query, field := range map[string]string{"page=2": "page", "offset=1": "page"} {
		a.do("GET", "/ojs/v1/events?"+query, "").want(422).is(map[string]any{"error.code": "unsupported", "error.details.field": field})
	}
	a.do("GET", "/ojs/v1/events?since=yesterday", "").want(400).is(map[string]any{"error.details.field": "since"})
	a.push(`{"type":"fails","args":[],"options":{"queue":"ev"}}`)
	failed := a.fetchOne("ev").text("jobs.0.id")
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+failed+`","error":{"code":"smtp","message":"refused"}}`).want(200)
	a.do("GET", "/ojs/v1/events?types=job.failed,job.retrying&queues=ev", "").want(200).is(map[string]any{
		"events.0.data.error.code": "smtp", "events.1.data.error.message": "refused",
	}).absent("events.2")
	a.do("GET", "/ojs/v1/events?types=job.started&limit=1", "").want(200).present("events.0.data.worker_id")
}

// As many as may be asked for can be had, and whether there are more is told.
func TestManyEvents(t *testing.T) {
	t.Parallel()
	a := start(t)
	const path = "/ojs/v1/events?types=job.enqueued&limit="
	add := func(jobs int) {
		t.Helper()
		pgtest.Exec(t, a.pool, "insert into ojs.jobs (tenant_id, type) select 'acme', 'a' from generate_series(1, $1)", jobs)
	}
	shows := func(limit, events int, more bool) {
		t.Helper()
		r := a.do("GET", path+strconv.Itoa(limit), "").want(200)
		if got := len(r.get("events").([]any)); got != events {
			t.Errorf("%d events with limit %d, want %d", got, limit, events)
		}
		r.is(map[string]any{"pagination.has_more": more, "pagination.limit": limit})
	}
	add(998)
	shows(1000, 998, false)
	shows(999, 998, false)
	shows(998, 998, false)
	shows(997, 997, true)
	add(1)
	shows(1000, 999, false)
	shows(999, 999, false)
	add(2)
	shows(1000, 1000, true)
	shows(999, 999, true)
	a.do("GET", path+"1001", "").want(400).is(map[string]any{"error.details.field": "limit"})
}
