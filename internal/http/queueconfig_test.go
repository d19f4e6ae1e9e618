package httpapi

import (
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestQueueConfiguration(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("GET", "/ojs/v1/queues/mail/config", "").want(200).is(map[string]any{
		"name": "mail", "state": "active", "config": map[string]any{},
	})
	r := a.do("POST", "/ojs/v1/queues", `{"name":"mail",
		"config":{"visibility_timeout":300,"default_timeout":1800,"retention":{"completed":"P3D"},
		"description":"letters",
		"default_retry":{"max_attempts":5,"initial_interval":"PT5S","backoff_coefficient":3.0}}}`).want(201)
	r.is(map[string]any{
		"name": "mail", "state": "active", "config.visibility_timeout": 300, "config.retention.completed": "P3D",
		"config.default_retry.max_attempts": 5,
	}).present("created_at")
	if got := r.header.Get("Location"); got != "/ojs/v1/queues/mail" {
		t.Errorf("Location %q", got)
	}
	a.do("POST", "/ojs/v1/queues", `{"name":"mail"}`).want(409).is(map[string]any{"error.code": "duplicate"})
	// Pausing and resuming configures nothing.
	a.do("POST", "/ojs/v1/queues/held/pause", "").want(200)
	a.do("POST", "/ojs/v1/queues", `{"name":"held","config":{"default_timeout":60}}`).want(201).is(map[string]any{
		"name": "held", "state": "paused", "config.default_timeout": 60,
	})
	a.do("POST", "/ojs/v1/queues/let-go/resume", "").want(200)
	a.do("POST", "/ojs/v1/queues", `{"name":"let-go"}`).want(201).is(map[string]any{"state": "active", "config": map[string]any{}})
	for _, name := range []string{"held", "let-go"} {
		a.do("POST", "/ojs/v1/queues/"+name+"/pause", "").want(200)
		a.do("POST", "/ojs/v1/queues", `{"name":"`+name+`"}`).want(409).is(map[string]any{"error.code": "duplicate"})
	}
	// What is not named stays; null removes.
	for _, path := range []string{"/ojs/v1/queues/mail/config", "/ojs/v1/admin/queues/mail/config"} {
		for _, method := range []string{"PUT", "PATCH"} {
			a.do(method, path, `{"default_timeout":60}`).want(200).is(map[string]any{
				"config.default_timeout": 60, "config.visibility_timeout": 300,
			})
			a.do(method, path,
				`{"config":{"default_timeout":null,"description":null}}`).want(200).absent("config.default_timeout", "config.description")
		}
		a.do("GET", path, "", "X-OJS-Tenant: acme").want(200).is(map[string]any{"config.visibility_timeout": 300})
	}
	a.do("GET", "/ojs/v1/queues/mail", "").want(200).is(map[string]any{
		"name": "mail", "queue.name": "mail", "config.visibility_timeout": 300, "stats.depth": 0,
	}).present("updated_at")

	// Jobs get what they do not say themselves.
	id := a.push(`{"type":"a","args":[],"options":{"queue":"mail"}}`)
	a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{
		"job.visibility_timeout_ms": 300000, "job.max_attempts": 5, "job.retry.initial_interval": "PT5S",
	})
	id = a.push(`{"type":"a","args":[],"options":{"queue":"mail","visibility_timeout_ms":1000,"retry":{"max_attempts":2}}}`)
	a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{"job.visibility_timeout_ms": 1000, "job.max_attempts": 2})

	for _, tc := range []struct {
		method, path, body string
		status             int
		field              string
	}{
		{"PUT", "/ojs/v1/queues/mail/config", `{"concurrency":10}`, 422, "concurrency"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"config":{"rate_limit":{"limit":1}}}`, 422, "config.rate_limit"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"visibility_timeout":0}`, 422, "visibility_timeout"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"default_retry":{"max_attempts":-1}}`, 422, "default_retry.max_attempts"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"retention":{"discarded":"P30D"}}`, 422, "retention.discarded"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"retention":{"failed":"P1D"}}`, 422, "retention.failed"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"colour":"red"}`, 400, "colour"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"config":7}`, 400, "config"},
		{"PUT", "/ojs/v1/queues/mail/config", `{"config":{},"default_timeout":60}`, 400, "default_timeout"},
		{"PUT", "/ojs/v1/queues/mail/config", `[]`, 400, "body"},
		{"PUT", "/ojs/v1/queues/_default/config", `{}`, 422, "name"},
		{"PUT", "/ojs/v1/queues/Mail/config", `{}`, 404, "queue"},
		{"POST", "/ojs/v1/queues", `{"name":"No"}`, 400, "name"},
		{"POST", "/ojs/v1/queues", `{}`, 400, "name"},
		{"POST", "/ojs/v1/queues", `{"name":"x","default_timeout":60}`, 400, "default_timeout"},
		{"POST", "/ojs/v1/queues", `{"name":"x","config":{"max_size":1}}`, 422, "config.max_size"},
		{"DELETE", "/ojs/v1/queues/mail", ``, 400, "strategy"},
		{"DELETE", "/ojs/v1/queues/mail", `{"strategy":"move","target_queue":"x"}`, 422, "strategy"},
		{"DELETE", "/ojs/v1/queues/mail", `{"strategy":"eat"}`, 400, "strategy"},
		{"DELETE", "/ojs/v1/queues/mail", `{"strategy":"reject"}`, 409, "strategy"},
		{"DELETE", "/ojs/v1/queues/unknown?strategy=reject", ``, 404, "queue"},
	} {
		if got := a.do(tc.method, tc.path, tc.body).want(tc.status).get("error.details.field"); tc.status != 404 && got != tc.field {
			t.Errorf("%s %s %s: field %v, want %s", tc.method, tc.path, tc.body, got, tc.field)
		}
	}
	a.do("PUT", "/ojs/v1/queues/mail/config", `{}`, "X-OJS-Tenant: acme").want(422).is(map[string]any{"error.code": "unsupported"})
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["mail"],"count":5,"worker_id":"w"}`).want(200)
	if _, err := a.db.Pool.Exec(t.Context(), "select ojs.ack(id) from ojs.job"); err != nil {
		t.Fatal(err)
	}
	a.do("DELETE", "/ojs/v1/queues/mail", `{"strategy":"reject"}`).want(200).is(map[string]any{
		"queue": "mail", "strategy": "reject", "jobs_affected": 0, "state": "deleted",
	})
	a.do("GET", "/ojs/v1/queues/mail/config", "").want(200).is(map[string]any{"config": map[string]any{}})
}

// Of two that create a queue at once, one does, and the other is told what it would be told a moment later.
func TestAQueueIsCreatedOnce(t *testing.T) {
	t.Parallel()
	a := start(t)
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "lock table ojs.queue in share update exclusive mode") // as who configures another queue
	answers := make(chan *reply, 2)
	for _, description := range []string{"first", "second"} {
		go func() {
			r, err := a.send(t.Context(), "POST", "/ojs/v1/queues", `{"name":"mail","config":{"description":"`+description+`"}}`)
			if err != nil {
				t.Error(err)
			}
			answers <- r
		}()
	}
	a.db.BlockedSessions(2)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, other := <-answers, <-answers
	if one == nil || other == nil {
		t.FailNow()
	}
	if one.status > other.status {
		one, other = other, one
	}
	one.want(201)
	late := a.do("POST", "/ojs/v1/queues", `{"name":"mail"}`).want(409)
	for _, at := range []string{"error.code", "error.message", "error.hint", "error.details.field"} {
		if got := other.want(409).get(at); got != late.get(at) {
			t.Errorf("%s is %v, and a moment later %v", at, got, late.get(at))
		}
	}
	a.do("GET", "/ojs/v1/queues/mail/config", "").want(200).is(map[string]any{"config.description": one.get("config.description")})
}
