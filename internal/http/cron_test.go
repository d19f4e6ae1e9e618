package httpapi

import (
	"strings"
	"testing"
	"time"
)

func TestCronJobInTheSpecificationsWords(t *testing.T) {
	t.Parallel()
	a := start(t)
	body := `{"name":"daily-report","cron":"0 9 * * *","timezone":"America/New_York","type":"report.generate",
		"args":[{"b" : 1.50,"a":"<>"}],"meta":{"owner":"me"},
		"options":{"queue":"reports","timeout":300,"retry":{"max_attempts":3},"tags":["x"],"priority":7,
			"meta":{"more":true},"only_once":{"key":"k"}},
		"overlap_policy":"allow","description":"for us",
		"next_run_at":"1999-01-01T00:00:00Z","run_count":99,"status":"paused"}`
	created := a.do("POST", "/ojs/v1/cron", body).want(201)
	for _, at := range []string{"cron.", "cron_job."} {
		created.is(map[string]any{
			at + "name": "daily-report", at + "cron": "0 9 * * *", at + "expression": "0 9 * * *",
			at + "timezone": "America/New_York", at + "type": "report.generate",
			at + "options.queue": "reports", at + "options.timeout": 300, at + "options.timeout_ms": 300000,
			at + "options.tags": []any{"x"}, at + "options.priority": 7,
			at + "options.retry.max_attempts": 3, at + "options.only_once.key": "k", at + "overlap_policy": "allow",
			at + "catch_up": "once", at + "enabled": true, at + "status": "active",
			at + "description": "for us", at + "last_run_at": nil, at + "run_count": 0,
			at + "meta": map[string]any{"more": true, "owner": "me"}, at + "job_template.type": "report.generate",
		}).present(at+"created_at", at+"next_run_at")
	}
	if !strings.Contains(created.body, `"args":[{"b" : 1.50,"a":"<>"}]`) {
		t.Errorf("args were changed: %s", created.body)
	}
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	next, err := time.Parse(time.RFC3339, created.text("cron.next_run_at"))
	if local := next.In(zone); err != nil || local.Hour() != 9 || local.Minute() != 0 || !next.After(time.Now()) {
		t.Errorf("next_run_at is %s (%v)", local, err)
	}
	a.do("GET", "/ojs/v1/cron/daily-report", "").want(200).is(map[string]any{"cron_job.next_run_at": created.text("cron.next_run_at")})

	// Registered again, as at every start of a program: nothing about the schedule changes.
	again := a.do("POST", "/ojs/v1/cron", body).want(200)
	again.is(map[string]any{"cron.next_run_at": created.text("cron.next_run_at"), "cron.created_at": created.text("cron.created_at")})
	a.do("PUT", "/ojs/v1/cron/daily-report", `{"cron":"@hourly","type":"b"}`).want(200).is(map[string]any{
		"cron.cron": "@hourly", "cron.type": "b", "cron.overlap_policy": "skip", "cron.description": nil,
	})
	a.do("PUT", "/ojs/v1/cron/new-one", `{"cron":"@hourly","type":"b"}`).want(201)
	a.do("PUT", "/ojs/v1/cron/new-one", `{"name":"other","cron":"@hourly","type":"b"}`).want(400)
}

func TestCronJobInTheSuitesWords(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/cron", `{"name":"c","expression":"*/5 * * * *",
		"job_template":{"type":"a","args":[1],"meta":{"k":1},"options":{"queue":"q","metadata":{"l":2}}}}`).want(201).
		is(map[string]any{
			"cron.expression": "*/5 * * * *", "cron.timezone": "UTC", "cron.overlap_policy": "skip",
			"cron.job_template.args": []any{1}, "cron.job_template.options.queue": "q", "cron.meta": map[string]any{"k": 1, "l": 2},
		})
	a.do("POST", "/ojs/v1/cron", `{"name":"d","cron":"@daily","type":"a"}`).want(201)
	for _, path := range []string{"/ojs/v1/cron", "/ojs/v1/crons"} {
		a.do("GET", path, "").want(200).is(map[string]any{
			"crons.0.name": "c", "cron_jobs.1.name": "d", "items.1.name": "d", "count": 2, "pagination.total": 2,
			"pagination.has_more": false,
		})
		a.do("GET", path+"/c", "").want(200).is(map[string]any{"cron.name": "c"})
	}
	a.do("GET", "/ojs/v1/cron?limit=1&offset=1", "").want(200).is(map[string]any{
		"crons.0.name": "d", "pagination.total": 2, "pagination.has_more": false,
	}).absent("crons.1")
	a.do("PATCH", "/ojs/v1/cron/c", `{"enabled":false}`).want(200).is(map[string]any{
		"cron_job.enabled": false, "cron.next_run_at": nil, "cron.status": "paused",
	})
	a.do("GET", "/ojs/v1/cron?enabled=true", "").want(200).is(map[string]any{"crons.0.name": "d"}).absent("crons.1")
	a.do("GET", "/ojs/v1/cron?enabled=false", "").want(200).is(map[string]any{"crons.0.name": "c"}).absent("crons.1")
	a.do("GET", "/ojs/v1/cron?enabled=maybe", "").want(400)
	a.do("POST", "/ojs/v1/cron/c/resume", "").want(200).is(map[string]any{"cron.enabled": true}).present("cron.next_run_at")
	a.do("POST", "/ojs/v1/cron/c/pause", "").want(200).is(map[string]any{"cron.enabled": false, "cron.next_run_at": nil})
	a.do("PATCH", "/ojs/v1/cron/c",
		`{"enabled":true,"cron":"@yearly","timezone":"Asia/Tokyo","overlap_policy":"allow","catch_up":"skip","description":"x"}`).want(200).
		is(map[string]any{
			"cron.cron": "@yearly", "cron.timezone": "Asia/Tokyo", "cron.overlap_policy": "allow", "cron.catch_up": "skip",
			"cron.description": "x", "cron.type": "a",
		})
	a.do("DELETE", "/ojs/v1/cron/c", "").want(200).is(map[string]any{"deleted": true, "name": "c", "cron.name": "c"})
	a.do("DELETE", "/ojs/v1/cron/c", "").want(404).is(map[string]any{"error.code": "not_found"})
	a.do("GET", "/ojs/v1/cron", "").want(200).is(map[string]any{"count": 1, "crons.0.name": "d"})
}

// It is registered over HTTP, in SQL and changed: in all cases it is due when the time that it names is over, not before.
func TestEveryIsDueAfterItsTime(t *testing.T) {
	t.Parallel()
	a := start(t)
	replies := []*reply{
		a.do("POST", "/ojs/v1/cron", `{"name":"posted","cron":"@every 24h","type":"a"}`).want(201),
		a.do("POST", "/ojs/v1/cron", `{"name":"posted","cron":"@every 36h","type":"a"}`).want(200),
		a.do("PATCH", "/ojs/v1/cron/posted", `{"cron":"@every 12h"}`).want(200),
		a.do("PATCH", "/ojs/v1/cron/posted", `{"cron":"@every 48h","timezone":"Europe/Berlin"}`).want(200),
	}
	for _, change := range []string{"select ojs.put_cron('sql', '@every 24h', 'a')", `
		select ojs.configure_cron('sql', p_expression => '@every 12h')`} {
		if _, err := a.pool.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if err := a.srv.cron.Plan(t.Context()); err != nil {
			t.Fatal(err)
		}
		replies = append(replies, a.do("GET", "/ojs/v1/cron/sql", "").want(200))
	}
	for i, every := range []time.Duration{24 * time.Hour, 36 * time.Hour, 12 * time.Hour, 48 * time.Hour, 24 * time.Hour, 12 * time.Hour} {
		since, err := time.Parse(time.RFC3339Nano, replies[i].text("cron.updated_at"))
		if err != nil {
			t.Fatal(err)
		}
		if next := replies[i].text("cron.next_run_at"); next != since.Add(every).Format(time.RFC3339Nano) {
			t.Errorf("%d: since %s, every %s, and next at %s", i, since, every, next)
		}
	}
}

func TestTriggerAndHistoryOfACronJob(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/cron", `{"name":"c","cron":"@yearly","type":"a","options":{"queue":"q"}}`, "X-OJS-Tenant: acme").want(201)
	id := a.do("POST", "/ojs/v1/cron/c/trigger", "").want(201).is(map[string]any{
		"job.type": "a", "job.queue": "q", "job.meta.tenant_id": "acme", "job.meta.cron_name": "c", "job.state": "available",
	}).text("job.id")
	a.do("POST", "/ojs/v1/cron/c/trigger", "").want(409).is(map[string]any{
		"error.code": "conflict", "error.reason": "overlap_skip", "error.job_id": id,
	})
	a.do("GET", "/ojs/v1/cron/c/history", "").want(200).is(map[string]any{
		"history.0.status": "triggered", "history.0.job_id": id, "history.0.manual": true, "items.0.missed": 0, "pagination.total": 1,
	}).present("history.0.scheduled_at", "history.0.triggered_at").absent("history.1")
	a.do("GET", "/ojs/v1/cron/c", "").want(200).is(map[string]any{"cron.run_count": 1}).present("cron.last_run_at")
	if a.fetchOne("q").text("jobs.0.id") != id {
		t.Error("another job than the one triggered")
	}
}

func TestCronJobsOfTenants(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/cron", `{"name":"c","cron":"@yearly","type":"a"}`,
		"X-OJS-Tenant: acme").want(201).is(map[string]any{"cron.meta.tenant_id": "acme"})
	a.do("POST", "/ojs/v1/cron", `{"name":"c","cron":"@yearly","type":"b","meta":{"tenant_id":"globex"}}`).want(201)
	a.do("POST", "/ojs/v1/cron", `{"name":"g","cron":"@yearly","type":"b"}`, "X-OJS-Tenant-ID: globex").want(201)
	a.do("POST", "/ojs/v1/cron", `{"name":"c","cron":"@yearly","type":"b","meta":{"tenant_id":"globex"}}`,
		"X-OJS-Tenant: acme").want(400).is(map[string]any{"error.code": "TENANT_MISMATCH"})
	a.do("GET", "/ojs/v1/cron", "", "X-OJS-Tenant: acme").want(200).is(map[string]any{"count": 1, "crons.0.type": "a"})
	a.do("GET", "/ojs/v1/cron", "").want(200).is(map[string]any{"count": 3})
	for _, r := range [][2]string{
		{"GET", ""},
		{"DELETE", ""},
		{"POST", "/trigger"},
		{"POST", "/pause"},
		{"GET", "/history"},
	} {
		foreign := a.do(r[0], "/ojs/v1/cron/g"+r[1], "", "X-OJS-Tenant: acme").want(404)
		unknown := a.do(r[0], "/ojs/v1/cron/n"+r[1], "", "X-OJS-Tenant: acme").want(404)
		if x, y := foreign.text("error.message"), unknown.text("error.message"); strings.Replace(x, " g ", " n ", 1) != y {
			t.Errorf("%v: %q and %q tell apart what is foreign and what is unknown", r, x, y)
		}
		a.do(r[0], "/ojs/v1/cron/c"+r[1], "").want(409).is(map[string]any{"error.code": "ambiguous_job"})
	}
	a.do("DELETE", "/ojs/v1/cron/c", "", "X-OJS-Tenant: acme").want(200)
	a.do("DELETE", "/ojs/v1/cron/c", "").want(200)
}

func TestCronRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, c := range []struct {
		body, code, field string
	}{
		{`{"cron":"@daily","type":"a"}`, "invalid_request", "name"},
		{`{"name":"BAD","cron":"@daily","type":"a"}`, "invalid_request", "name"},
		{`{"name":"a","type":"a"}`, "invalid_request", "cron"},
		{`{"name":"a","cron":"","type":"a"}`, "invalid_request", "cron"},
		{`{"name":"a","cron":7,"type":"a"}`, "invalid_request", "cron"},
		{`{"name":"a","cron":"61 * * * *","type":"a"}`, "invalid_request", "cron"},
		{`{"name":"a","expression":"not a valid cron","job_template":{"type":"a"}}`, "invalid_request", "expression"},
		{`{"name":"a","expression":"0 0 30 2 *","job_template":{"type":"a"}}`, "invalid_request", "expression"},
		{`{"name":"a","expression":"@daily","cron":"@hourly","type":"a"}`, "invalid_request", "cron"},
		{`{"name":"a","cron":"@daily","timezone":"EST","type":"a"}`, "invalid_request", "timezone"},
		{`{"name":"a","cron":"@daily","timezone":"+01:00","type":"a"}`, "invalid_request", "timezone"},
		{`{"name":"a","cron":"@daily","overlap_policy":"queue","type":"a"}`, "invalid_request", "overlap_policy"},
		{`{"name":"a","cron":"@daily","catch_up":"all","type":"a"}`, "invalid_request", "catch_up"},
		{`{"name":"a","cron":"@daily","enabled":"yes","type":"a"}`, "invalid_request", "enabled"},
		{`{"name":"a","cron":"@daily"}`, "invalid_request", "type"},
		{`{"name":"a","cron":"@daily","job_template":{}}`, "invalid_request", "job_template.type"},
		{`{"name":"a","cron":"@daily","type":"BAD TYPE"}`, "invalid_request", "type"},
		{`{"name":"a","cron":"@daily","job_template":{"type":"BAD TYPE"}}`, "invalid_request", "job_template.type"},
		{
			`{"name":"a","cron":"@daily","job_template":{"type":"a","options":{"queue":"BAD"}}}`, "invalid_request",
			"job_template.options.queue",
		},
		{`{"name":"a","cron":"@daily","job_template":{"type":"a"},"type":"b"}`, "invalid_request", "type"},
		{`{"name":"a","cron":"@daily","job_template":7}`, "invalid_request", "job_template"},
		{`{"name":"a","cron":"@daily","type":"a","args":{}}`, "invalid_request", "args"},
		{`{"name":"a","cron":"@daily","type":"a","options":{"timeout":-1}}`, "invalid_request", "options.timeout"},
		{
			`{"name":"a","cron":"@daily","type":"a","options":{"retry":{"max_attempts":-1}}}`, "validation_error",
			"options.retry.max_attempts",
		},
		{`{"name":"a","cron":"@daily","type":"a","options":{"delay_until":"2099-01-01T00:00:00Z"}}`, "unsupported", "options.delay_until"},
		{`{"name":"a","cron":"@daily","type":"a","options":{"expires_at":"+PT1H"}}`, "unsupported", "options.expires_at"},
		{`{"name":"a","cron":"@daily","type":"a","options":{"pending":true}}`, "unsupported", "options.pending"},
		{
			`{"name":"a","cron":"@daily","type":"a","args":[` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `]}`,
			"invalid_payload", "",
		},
		{`[]`, "invalid_payload", "body"},
	} {
		r := a.do("POST", "/ojs/v1/cron", c.body)
		if r.status < 400 || r.status > 422 || r.text("error.code") != c.code || c.field != "" && r.text("error.details.field") != c.field {
			t.Errorf("%.120s: %d %s", c.body, r.status, r.body)
		}
	}
	if n := a.count("select count(*) from ojs.cron"); n != 0 {
		t.Errorf("%d were registered", n)
	}
}

func TestCronRequestsByNameThatAreRefused(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/cron", `{"name":"a","cron":"@daily","type":"a"}`).want(201)
	a.do("PATCH", "/ojs/v1/cron/a", `{"type":"b"}`).want(422).is(map[string]any{"error.code": "unsupported", "error.details.field": "type"})
	a.do("PATCH", "/ojs/v1/cron/a", `{"cron":"61 * * * *"}`).want(400)
	a.do("PATCH", "/ojs/v1/cron/a", `{"timezone":"Nowhere/Land"}`).want(400).is(map[string]any{"error.details.field": "timezone"})
	all := a.do("GET", "/ojs/v1/cron", "").want(200).get("pagination.total")
	a.do("GET", "/ojs/v1/cron?offset=500", "").want(200).is(map[string]any{
		"count": 0, "pagination.total": all, "pagination.has_more": false,
	})
	a.do("GET", "/ojs/v1/cron/a/history?offset=500", "").want(200).is(map[string]any{"pagination.total": 0})
	for _, name := range []string{"BAD", "%00", "a%2fb", strings.Repeat("a", 300), "%ff"} {
		a.do("GET", "/ojs/v1/cron/"+name, "").want(404)
		a.do("PUT", "/ojs/v1/cron/"+name, `{"cron":"@daily","type":"b"}`).want(400).is(map[string]any{"error.details.field": "name"})
	}
}
