package httpapi

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestQueues(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("GET", "/ojs/v1/queues", "").want(200).is(map[string]any{
		"queues": []any{}, "items": []any{}, "pagination.total": 0, "pagination.has_more": false,
	})
	for range 3 {
		a.push(`{"type":"a","args":[],"options":{"queue":"mail"}}`)
	}
	a.push(`{"type":"a","args":[],"options":{"queue":"mail","delay_until":"2099-01-01T00:00:00Z"}}`, "X-OJS-Tenant: acme")
	a.push(`{"type":"a","args":[],"options":{"queue":"mail","pending":true}}`)
	a.push(`{"type":"a","args":[],"options":{"queue":"reports"}}`)
	fetched := a.fetchOne("mail")
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+fetched.text("jobs.0.id")+`"}`).want(200)
	a.fetchOne("mail")

	list := a.do("GET", "/ojs/v1/queues", "").want(200)
	list.is(map[string]any{
		"queues.0.name": "mail", "queues.0.status": "active", "queues.1.name": "reports", "items.1.name": "reports",
		"pagination.total": 2,
	})
	a.do("GET", "/ojs/v1/queues?limit=1", "").want(200).is(map[string]any{
		"queues.0.name": "mail", "pagination.has_more": true, "pagination.limit": 1,
	}).absent("queues.1")
	a.do("GET", "/ojs/v1/queues?limit=1&offset=1", "").want(200).
		is(map[string]any{"queues.0.name": "reports", "pagination.has_more": false})
	a.do("GET", "/ojs/v1/queues?page=2&per_page=1", "").want(200).is(map[string]any{
		"items.0.name": "reports", "pagination.page": 2, "pagination.per_page": 1,
	})
	a.do("GET", "/ojs/v1/queues", "", "X-OJS-Tenant: acme").want(200).is(map[string]any{
		"queues.0.name": "mail", "queues.0.scheduled": 1, "queues.0.available": 0,
	}).absent("queues.1")

	want := map[string]any{
		"available": 1, "active": 1, "completed": 1, "scheduled": 1, "pending": 1, "retryable": 0, "discarded": 0, "cancelled": 0,
		"depth": 3,
	}
	stats := a.do("GET", "/ojs/v1/queues/mail/stats", "").want(200)
	for name, n := range want {
		stats.is(map[string]any{"queue." + name: n, "stats." + name: n, name: n})
	}
	stats.is(map[string]any{
		"queue.name": "mail", "queue.paused": false, "stats.queue": "mail", "name": "mail", "status": "active", "total_jobs": 5,
	}).present("computed_at")
	a.do("GET", "/ojs/v1/queues/mail", "").want(200).is(map[string]any{"queue.name": "mail", "queue.available": 1})
	a.do("GET", "/ojs/v1/queues/mail/stats", "",
		"OJS-Version: 1.0.0-rc.1").want(200).is(map[string]any{"queue": "mail", "stats.available": 1, "available": 1})
	a.do("GET", "/ojs/v1/queues/never-used/stats", "").want(200).is(map[string]any{
		"queue.name": "never-used", "queue.available": 0, "queue.paused": false,
	})

	a.do("POST", "/ojs/v1/queues/mail/pause", "").want(200).is(map[string]any{
		"queue.name": "mail", "queue.paused": true, "queue.status": "paused",
	})
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["mail"]}`).want(200).is(map[string]any{"jobs": []any{}})
	a.do("GET", "/ojs/v1/queues/mail/stats", "").want(200).is(map[string]any{"queue.paused": true, "status": "paused"})
	a.do("POST", "/ojs/v1/queues/mail/pause", "", "X-OJS-Tenant: acme").want(422).is(map[string]any{"error.code": "unsupported"})
	a.do("POST", "/ojs/v1/queues/mail/resume", "").want(200).is(map[string]any{"queue.paused": false})
	a.fetchOne("mail")
}

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

func TestTenants(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.push(`{"type":"a","args":[]}`, "X-OJS-Tenant: acme")
	a.push(`{"type":"a","args":[]}`, "X-OJS-Tenant: acme")
	a.push(`{"type":"a","args":[]}`, "X-OJS-Tenant: globex")
	put := a.do("PUT", "/ojs/v1/admin/tenants/acme", `{"weight":2.5,"priority_boost":5}`).want(200)
	put.is(map[string]any{
		"id": "acme", "weight": 2.5, "fairness_weight": 2.5, "priority_boost": 5, "stats.total_jobs": 2,
	}).present("created_at")
	a.do("PUT", "/ojs/v1/admin/tenants/acme",
		`{"fairness":{"weight":3},"fairness_weight":3}`).want(200).is(map[string]any{"weight": 3, "priority_boost": 5})
	a.do("PUT", "/ojs/v1/admin/tenants/new", `{}`).want(200).is(map[string]any{"id": "new", "weight": 1, "priority_boost": 0})
	a.do("GET", "/ojs/v1/admin/tenants/acme", "").want(200).is(map[string]any{"id": "acme", "weight": 3, "state": "active"})
	a.do("GET", "/ojs/v1/admin/tenants/globex", "").want(200).is(map[string]any{"id": "globex", "weight": 1})

	a.fetchOne("default", "X-OJS-Tenant: acme")
	a.do("GET", "/ojs/v1/admin/tenants/acme/stats", "").want(200).is(map[string]any{
		"tenant_id": "acme", "total_jobs": 2, "jobs.available": 1, "jobs.active": 1, "jobs.scheduled": 0, "fairness.weight": 3,
		"fairness.dispatched":      1,
		"fairness.effective_share": 0.75, "fairness.actual_share": 1,
	})
	list := a.do("GET", "/ojs/v1/admin/tenants", "").want(200)
	list.is(map[string]any{
		"items.0.id": "acme", "items.1.id": "globex", "items.2.id": "new", "tenants.0.id": "acme", "pagination.total": 3,
		"items.0.stats.jobs.active": 1,
	})
	a.do("GET", "/ojs/v1/admin/tenants/unknown", "").want(404).is(map[string]any{"error.code": "not_found"}).present("error.hint")

	// With a header a tenant sees itself.
	const own = "X-OJS-Tenant: acme"
	a.do("GET", "/ojs/v1/admin/tenants", "", own).want(200).is(map[string]any{
		"items.0.id": "acme", "tenants.0.weight": 3, "pagination.total": 1, "pagination.has_more": false,
	}).absent("items.1")
	a.do("GET", "/ojs/v1/admin/tenants?offset=1", "", own).want(200).is(map[string]any{"items": []any{}, "pagination.total": 1})
	a.do("GET", "/ojs/v1/admin/tenants", "", "X-OJS-Tenant: unknown").want(200).is(map[string]any{"items": []any{}, "pagination.total": 0})
	a.do("GET", "/ojs/v1/admin/tenants/acme", "", own).want(200).is(map[string]any{"id": "acme", "weight": 3})
	a.do("GET", "/ojs/v1/admin/tenants/acme/stats", "", own).want(200).is(map[string]any{"tenant_id": "acme", "jobs.active": 1})
	for _, rest := range []string{"", "/stats"} {
		path := "/ojs/v1/admin/tenants/globex" + rest
		foreign := a.do("GET", path, "", own, "X-Request-Id: same").want(404)
		unknown := a.do("GET", strings.Replace(path, "globex", "nobody", 1), "", own, "X-Request-Id: same").want(404)
		if got := strings.ReplaceAll(foreign.body, "globex", "nobody"); got != unknown.body {
			t.Errorf("another tenant is %s, an unknown one %s", foreign.body, unknown.body)
		}
	}
	for _, id := range []string{"acme", "globex"} {
		a.do("PUT", "/ojs/v1/admin/tenants/"+id, `{"weight":1000}`, own).want(422).is(map[string]any{
			"error.code": "unsupported", "error.details.field": "X-OJS-Tenant",
		})
	}
	a.do("GET", "/ojs/v1/admin/tenants/acme", "").want(200).is(map[string]any{"weight": 3})

	// Another default tenant is the one that is left out of meta.
	db := pgtest.New(t)
	b := &api{t: t, db: db, pool: db.Pool, log: &logs{}}
	if _, err := b.pool.Exec(context.Background(), "select ojs.configure(p_default_tenant => 'house')"); err != nil {
		t.Fatal(err)
	}
	b.serve(db.Open())
	b.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`).want(201).absent("job.meta.tenant_id")
	b.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`,
		"X-OJS-Tenant: _default").want(201).is(map[string]any{"job.meta.tenant_id": "_default"})
}
