package httpapi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestEnqueueShape(t *testing.T) {
	t.Parallel()
	a := start(t)
	r := a.do("POST", "/ojs/v1/jobs", `{"type":"email.send","args":["a@b.c","welcome"]}`).want(201)
	wantHeaders(r)
	id := r.text("job.id")
	if !jsonbody.IsUUID(id) || id[14] != '7' {
		t.Errorf("id %q is no UUIDv7", id)
	}
	if got, want := r.header.Get("Location"), "/ojs/v1/jobs/"+id; got != want {
		t.Errorf("Location %q, want %q", got, want)
	}
	r.is(map[string]any{
		"job.specversion": "1.0", "job.type": "email.send", "job.queue": "default", "job.state": "available", "job.args": []any{
			"a@b.c", "welcome",
		},
		"job.meta": map[string]any{}, "job.priority": 0, "job.attempt": 0, "job.max_attempts": 3,
	})
	r.present("job.created_at", "job.enqueued_at")
	r.absent("job.started_at", "job.completed_at", "job.cancelled_at", "job.error", "job.errors", "job.result", "job.lease",
		"job.worker_id", "job.scheduled_at", "job.expires_at", "job.tags", "job.retry", "job.options", "job.timeout_ms",
		"job.next_attempt_at", "job.seq")
	for _, name := range []string{"created_at", "enqueued_at"} {
		text := r.text("job." + name)
		if at, err := time.Parse(time.RFC3339Nano, text); err != nil || !strings.HasSuffix(text, "Z") || time.Since(at).Abs() > time.Hour {
			t.Errorf("%s is %q", name, text)
		}
	}
	if info := a.do("GET", "/ojs/v1/jobs/"+id, "").want(200); info.body != r.body {
		t.Errorf("GET shows\n%s\nand POST showed\n%s", info.body, r.body)
	}
}

func TestEveryOption(t *testing.T) {
	t.Parallel()
	a := start(t)
	r := a.do("POST", "/ojs/v1/jobs", `{
		"id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "specversion": "1.0", "type": "report.generate", "args": [],
		"meta": {"trace_id": "t1", "shared": "meta"}, "schema": "urn:ojs:schema:report.generate:v1",
		"state": "completed", "attempt": 7, "created_at": "yesterday", "result": {"forged": true}, "error": null, "lease": "x",
		"options": {
			"queue": "reports", "priority": 10, "timeout_ms": 300000, "visibility_timeout_ms": 60000, "delay_until": "2099-12-31T23:59:59Z",
			"expires_at": "2100-01-01T01:00:00+01:00", "tags": ["a", "b"], "pending": null,
			"retry": {"max_attempts": 5, "initial_interval": "PT1S", "jitter": false},
			"metadata": {"test_directive": "quiet", "shared": "options"},
			"only_once": {"keys": ["type", "args"], "period": "PT1H"}, "pace_hint": {"max_per_second": 5}
		}
	}`).want(201)
	r.is(map[string]any{
		"job.id": "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f", "job.queue": "reports", "job.priority": 10, "job.timeout_ms": 300000,
		"job.visibility_timeout_ms": 60000,
		"job.state":                 "scheduled", "job.attempt": 0, "job.max_attempts": 5, "job.scheduled_at": "2099-12-31T23:59:59Z",
		"job.expires_at": "2100-01-01T00:00:00Z",
		"job.tags":       []any{"a", "b"}, "job.meta": map[string]any{"trace_id": "t1", "shared": "meta", "test_directive": "quiet"},
		"job.schema": "urn:ojs:schema:report.generate:v1", "job.retry.max_attempts": 5, "job.retry.initial_interval": "PT1S",
		"job.options": map[string]any{
			"only_once": map[string]any{"keys": []any{"type", "args"}, "period": "PT1H"}, "pace_hint": map[string]any{"max_per_second": 5},
		},
	})
	r.absent("job.result", "job.error", "job.lease")
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"id":"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}`).want(409).
		is(map[string]any{"error.code": "duplicate", "error.retryable": false, "error.details.field": "id"})
}

// A field has one meaning under each of its spellings.
func TestSpellings(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, tc := range []struct {
		fields string
		want   map[string]any
	}{
		{`"queue":"q1"`, map[string]any{"job.queue": "q1"}},
		{`"queue":"q1","options":{"queue":"q1"}`, map[string]any{"job.queue": "q1"}},
		{`"priority":-7.0`, map[string]any{"job.priority": -7}},
		{`"timeout":30`, map[string]any{"job.timeout_ms": 30000}},
		{`"timeout":30,"options":{"timeout_ms":30000}`, map[string]any{"job.timeout_ms": 30000}},
		{`"timeout_ms":5`, map[string]any{"job.timeout_ms": 5}},
		{`"max_attempts":9`, map[string]any{"job.max_attempts": 9}},
		{`"options":{"max_attempts":8}`, map[string]any{"job.max_attempts": 8}},
		{`"retry":{"max_attempts":4}`, map[string]any{"job.max_attempts": 4, "job.retry.max_attempts": 4}},
		{`"options":{"retry":{"max_attempts":2,"initial_interval_ms":50}}`, map[string]any{"job.max_attempts": 2}},
		{`"tags":["x"]`, map[string]any{"job.tags": []any{"x"}}},
		{`"options":{"tags":[]}`, map[string]any{"job.tags": []any{}}},
		{`"scheduled_at":"2099-01-01T00:00:00Z"`, map[string]any{"job.state": "scheduled", "job.scheduled_at": "2099-01-01T00:00:00Z"}},
		{
			`"options":{"scheduled_at":"2099-01-01T00:00:00+02:00","delay_until":"2098-12-31T22:00:00Z"}`,
			map[string]any{"job.scheduled_at": "2098-12-31T22:00:00Z"},
		},
		{`"delay_until":"2020-01-01T00:00:00Z"`, map[string]any{"job.state": "available"}},
		{`"options":{"scheduled_at":"+PT2H"}`, map[string]any{"job.state": "scheduled"}},
		{`"expires_at":"2099-01-01T00:00:00.25Z"`, map[string]any{"job.expires_at": "2099-01-01T00:00:00.25Z"}},
		{`"options":{"pending":true}`, map[string]any{"job.state": "pending"}},
		{
			`"options":null,"meta":null,"id":null,"queue":null,"priority":null,"retry":null,"tags":null,"scheduled_at":null`,
			map[string]any{"job.queue": "default"},
		},
		{`"options":{"metadata":{"tenant_id":"acme"}}`, map[string]any{"job.meta.tenant_id": "acme"}},
		{`"specversion":"1.0.0"`, map[string]any{"job.specversion": "1.0"}},
	} {
		a.do("POST", "/ojs/v1/jobs", `{"type":"a.b","args":[],`+tc.fields+`}`).want(201).is(tc.want)
	}
	relative := a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"options":{"scheduled_at":"+PT90S"}}`).want(201)
	at, err := time.Parse(time.RFC3339Nano, relative.text("job.scheduled_at"))
	if err != nil || time.Until(at) > 91*time.Second || time.Until(at) < 0 {
		t.Errorf("+PT90S became %s", relative.text("job.scheduled_at"))
	}
}

// What a client sends and the server does not understand comes back byte for byte, all the way
// from POST through FETCH to the result.
func TestFidelity(t *testing.T) {
	t.Parallel()
	a := start(t)
	const (
		args = `[ 1234567890123456789012345678901234567890 ,-0.0, 1.000, 1E+2,{"z" : 1,"a":{"y":2,"b":[ ]}, ` +
			`"<b>&":"<script>\u00e9\/\ud83d\ude00é"},"tab\tline\u2028"	, 1e999999]`
		big = `{ "n":0.1234567890123456789012345678901234567891,"z":1, "a":2e400000 ,"html":"<&>"}`
		num = `3.14159265358979323846264338327950288419716939937510`
		opt = `{"max_per_second" :5.50, "key":"<x>"}`
		res = `{ "count" : 12345678901234567890123456789012345678901234567890, "b":1 , "a":[1.0,"<&>\u00e9"]}`
	)
	r := a.do(
		"POST", "/ojs/v1/jobs",
		`{"type":"f","x_big":`+big+`,"args":`+args+`,"x_num":`+num+`,"options":{"queue":"fid","pace_hint":`+opt+`},"x_ä\u0062":"\u0041"}`,
	).want(201)
	want := []string{`"args":` + args, `"x_big":` + big, `"x_num":` + num, `"pace_hint":` + opt, `"x_ä\u0062":"\u0041"`}
	check := func(where, body string) {
		t.Helper()
		for _, piece := range want {
			if !strings.Contains(body, piece) {
				t.Errorf("%s lacks %s:\n%s", where, piece, body)
			}
		}
	}
	check("POST", r.body)
	id := r.text("job.id")
	check("GET", a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).body)
	check("FETCH", a.fetchOne("fid").body)
	want = append(want, `"result":`+res)
	check("ACK", a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","result":`+res+`}`).want(200).body)
	check("GET after ACK", a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).body)

	batch := a.do(
		"POST", "/ojs/v1/jobs/batch",
		`{"jobs":[{"type":"f","args":`+args+`,"x_big":`+big+`,"x_num":`+num+`,"x_ä\u0062":"\u0041","options":{"pace_hint":`+opt+`}}]}`,
	).want(201)
	want = want[:5]
	check("batch", batch.body)

	for _, result := range []string{`null`, `"text"`, `0`, `[ ]`, `false`} {
		id := a.push(`{"type":"f","args":[],"queue":"results"}`)
		a.fetchOne("results")
		a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","result":`+result+`}`).want(200)
		if body := a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).body; !strings.Contains(body, `"result":`+result) {
			t.Errorf("the result %s is lost: %s", result, body)
		}
	}
}

// Attributes that a SQL producer puts under extra never repeat the server's own.
// As text a number has any length; where it has to become one, the field is named.
func TestNumbersOfManyDigits(t *testing.T) {
	t.Parallel()
	a := start(t)
	number := "0." + strings.Repeat("1", 17_000)
	object := `{"n":` + number + `}`
	id := a.push(`{"type":"x","args":[` + object + `],"options":{"queue":"q","unknown":` + object + `},"x_extra":` + object + `}`)
	if got := a.do("GET", "/ojs/v1/jobs/"+id, ""); strings.Count(got.body, object) != 3 {
		t.Error("the number came back different")
	}
	a.fetchOne("q").want(200)
	if got := a.do("POST", "/ojs/v1/jobs/"+id+"/ack", `{"result":`+object+`}`).want(200); strings.Count(got.body, object) != 4 {
		t.Error("the result came back different")
	}
	for field, body := range map[string]string{
		"meta.n":          `{"type":"x","args":[],"meta":` + object + `}`,
		"options.retry.n": `{"type":"x","args":[],"options":{"retry":` + object + `}}`,
	} {
		r := a.do("POST", "/ojs/v1/jobs", body).want(400).is(map[string]any{"error.details.field": field})
		if !strings.Contains(r.text("error.message"), "digits") {
			t.Error(r.body)
		}
	}
}

func TestExtraOfSQLProducers(t *testing.T) {
	t.Parallel()
	a := start(t)
	pgtest.Exec(t, a.db.Operator(), "select ojs.configure(p_unsupported => 'carry')")
	var id string
	if err := a.pool.QueryRow(context.Background(),
		`select id from ojs.enqueue('t', p_extra => '{"x":1,"retry_delay_ms":5,"activated_at":2}')`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{"job.x": 1}).absent("job.retry_delay_ms", "job.activated_at")
}

func TestBatch(t *testing.T) {
	t.Parallel()
	a := start(t)
	r := a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[
		{"type":"a","args":[1]}, {"type":"b","args":[2],"options":{"queue":"q","retry":{"max_attempts":1}}},
		{"type":"c","args":[3],"meta":{"tenant_id":"acme"}}]}`).want(201)
	r.is(map[string]any{
		"count": 3, "enqueued": 3, "failed": 0, "jobs.0.type": "a", "jobs.1.type": "b", "jobs.1.queue": "q", "jobs.1.max_attempts": 1,
		"jobs.2.type": "c", "jobs.2.meta.tenant_id": "acme", "jobs.2.state": "available", "jobs.0.args": []any{1},
	})
	r.absent("jobs.3", "jobs.0.meta.tenant_id")
	wantHeaders(r)

	// Whole or not at all.
	before := a.count("select count(*) from ojs.job")
	bad := a.do(
		"POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"a","args":[1]},{"type":"b","args":[2],"options":{"retry":{"max_attempts":-1}}}]}`,
	).want(422)
	bad.is(map[string]any{
		"error.code": "validation_error", "error.type": "validation_error", "error.details.index": 1,
		"error.details.field": "jobs[1].options.retry.max_attempts",
	})
	if !strings.HasPrefix(bad.text("error.message"), "jobs[1].options.retry.max_attempts must be ") {
		t.Errorf("message %q", bad.text("error.message"))
	}
	if after := a.count("select count(*) from ojs.job"); after != before {
		t.Errorf("%d jobs stored by a refused batch", after-before)
	}
}

func ofMeta(meta string) string { return `{"type":"a","args":[],"queue":"shared","meta":` + meta + `}` }

// The header names the tenant. meta shows it, unless the request named none.
func TestMT51SPTheTenantOfANewJob(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{}`)).want(201).absent("job.meta.tenant_id")
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{"k":1}`), "X-OJS-Tenant: acme").want(201).is(map[string]any{
		"job.meta": map[string]any{"tenant_id": "acme", "k": 1},
	})
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{}`), "X-OJS-Tenant-ID: globex").want(201).is(map[string]any{"job.meta.tenant_id": "globex"})
	a.do(
		"POST", "/ojs/v1/jobs", ofMeta(`{"tenant_id":"acme"}`), "X-OJS-Tenant: acme",
	).want(201).is(map[string]any{"job.meta.tenant_id": "acme"})
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{"tenant_id":"initech"}`)).want(201).is(map[string]any{"job.meta.tenant_id": "initech"})
	a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[`+ofMeta(`{}`)+`,`+ofMeta(`{"tenant_id":"acme"}`)+`]}`, "X-OJS-Tenant: acme").
		want(201).is(map[string]any{"jobs.0.meta.tenant_id": "acme", "jobs.1.meta.tenant_id": "acme"})
	if n := a.count("select count(*) from ojs.job where tenant_id = 'acme'"); n != 4 {
		t.Errorf("acme has %d jobs, want 4", n)
	}

	mismatch := a.do("POST", "/ojs/v1/jobs", ofMeta(`{"tenant_id":"acme"}`), "X-OJS-Tenant: globex").want(400)
	mismatch.is(map[string]any{"error.code": "TENANT_MISMATCH", "error.tenant_id": "globex"})
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{}`), "X-OJS-Tenant: acme", "X-OJS-Tenant-ID: globex").want(400)
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{}`), "X-OJS-Tenant: acme", "X-OJS-Tenant: acme").want(400)

	pgtest.Exec(t, a.pool, "select ojs.configure(p_tenant_required => true)")
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{}`)).want(422).is(map[string]any{
		"error.code": "TENANT_REQUIRED", "error.details.field": "meta.tenant_id",
	})
	a.do("POST", "/ojs/v1/jobs", ofMeta(`{}`), "X-OJS-Tenant: acme").want(201)
}

// Reads, cancel, activate, ack, nack and heartbeat are scoped by the header; a foreign id is an unknown one.
func TestTheTenantHeaderIsAScope(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(ofMeta(`{}`), "X-OJS-Tenant: acme")
	for _, tenant := range []string{"acme", "globex", "_default"} {
		a.push(ofMeta(`{}`), "X-OJS-Tenant: "+tenant)
	}
	a.do("GET", "/ojs/v1/jobs/"+id, "").want(200)
	a.do("GET", "/ojs/v1/jobs/"+id, "", "X-OJS-Tenant: acme").want(200)
	foreign := a.do("GET", "/ojs/v1/jobs/"+id, "", "X-OJS-Tenant: globex").want(404)
	unknown := a.do("GET", "/ojs/v1/jobs/019539a4-0000-7000-8000-000000000000", "", "X-OJS-Tenant: globex").want(404)
	shape := func(r *reply, id string) string {
		return strings.ReplaceAll(strings.ReplaceAll(r.body, r.text("error.request_id"), "R"), id, "ID")
	}
	if shape(foreign, id) != shape(unknown, "019539a4-0000-7000-8000-000000000000") {
		t.Errorf("a foreign id can be told from an unknown one:\n%s\n%s", foreign.body, unknown.body)
	}
	for _, path := range []string{"/cancel", "/activate"} {
		a.do("POST", "/ojs/v1/jobs/"+id+path, "", "X-OJS-Tenant: globex").want(404)
	}
	a.do("DELETE", "/ojs/v1/jobs/"+id, "", "X-OJS-Tenant: globex").want(404)
	fetched := a.fetchOne("shared", "X-OJS-Tenant: acme")
	if fetched.text("jobs.0.id") != id {
		t.Errorf("acme fetched %s, want its oldest", fetched.body)
	}
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`, "X-OJS-Tenant: globex").want(404)
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"message":"m"}}`, "X-OJS-Tenant: globex").want(404)
	a.do(
		"POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w1","active_jobs":["`+id+`"]}`, "X-OJS-Tenant: globex",
	).want(200).is(map[string]any{"jobs_extended": []any{}})
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`, "X-OJS-Tenant: acme").want(200)
	a.do("GET", "/ojs/v1/queues/shared", "", "X-OJS-Tenant: acme").want(200).is(map[string]any{"queue.available": 1, "queue.completed": 1})
	a.do("GET", "/ojs/v1/queues/shared", "").want(200).is(map[string]any{"queue.available": 3, "queue.completed": 1})
}

// One id in two tenants: a call without a tenant is told to name one.
func TestAnIDOfTwoTenants(t *testing.T) {
	t.Parallel()
	a := start(t)
	const twice = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
	for _, tenant := range []string{"acme", "globex"} {
		a.push(`{"type":"a","args":[],"id":"`+twice+`"}`, "X-OJS-Tenant: "+tenant)
	}
	a.do("GET", "/ojs/v1/jobs/"+twice, "").want(409).is(map[string]any{
		"error.code": "ambiguous_job", "error.details.field": "X-OJS-Tenant",
	})
	a.do("GET", "/ojs/v1/jobs/"+twice, "", "X-OJS-Tenant: globex").want(200)
}

// The default tenant is left out of meta, whatever its name is.
func TestAnotherDefaultTenant(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Exec(t, db.Pool, "select ojs.configure(p_default_tenant => 'house')")
	a := &api{t: t, db: db, pool: db.Pool, log: &pgtest.Log{}}
	a.serve(db.Open())
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`).want(201).absent("job.meta.tenant_id")
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`,
		"X-OJS-Tenant: _default").want(201).is(map[string]any{"job.meta.tenant_id": "_default"})
}

func TestCancelAndActivate(t *testing.T) {
	t.Parallel()
	a := start(t)
	pending := a.push(`{"type":"a","args":[],"options":{"pending":true}}`)
	a.do("POST", "/ojs/v1/jobs/"+pending+"/activate", "").want(200).
		is(map[string]any{"job.state": "available", "job.previous_state": "pending", "job.id": pending}).present("job.activated_at")
	a.do("POST", "/ojs/v1/jobs/"+pending+"/activate", "").want(409).
		is(map[string]any{"error.code": "conflict", "error.current_state": "available", "error.details.expected_state": "pending"})
	cancelled := a.do("DELETE", "/ojs/v1/jobs/"+pending, "").want(200)
	cancelled.is(map[string]any{"job.state": "cancelled"}).present("job.cancelled_at").absent("job.completed_at")
	a.do("DELETE", "/ojs/v1/jobs/"+pending, "").want(409).is(map[string]any{"error.code": "conflict", "error.retryable": false})
	other := a.push(`{"type":"a","args":[]}`)
	a.do("POST", "/ojs/v1/jobs/"+other+"/cancel", `{"reason":"no longer wanted"}`).want(200).
		is(map[string]any{"job.state": "cancelled", "job.previous_state": "available"})
	later := a.push(`{"type":"a","args":[],"options":{"scheduled_at":"2099-01-01T00:00:00Z"}}`)
	a.do("DELETE", "/ojs/v1/jobs/"+later, "").want(200).is(map[string]any{"job.previous_state": "scheduled"})
	running := a.push(`{"type":"a","args":[]}`, "X-OJS-Tenant: acme")
	a.fetchOne("default")
	a.do("DELETE", "/ojs/v1/jobs/"+running, "").want(200).is(map[string]any{"job.previous_state": "active"})
	a.do("GET", "/ojs/v1/jobs/"+running, "").want(200).absent("job.previous_state")

	missing := a.do("DELETE", "/ojs/v1/jobs/01961111-aaaa-7bbb-8ccc-dddddddddddd", "").want(404)
	missing.is(map[string]any{
		"error.code": "not_found", "error.retryable": false, "error.resource_type": "job",
	}).present("error.hint", "error.docs_url")
}

func TestReadJob(t *testing.T) {
	t.Parallel()
	src := `{"type":"a","args":[ 1 ],"meta":{"k" : 1},"x":{ },"state":"active","y":1.50,
		"options":{"queue":"q","priority":5,"unique":{ "k":1 },"metadata":{"m":2,"k":9}}}`
	sent := objectOf(src)
	header := "acme"
	job := readJob(sent, &header, names.TenantHeader, time.Now())
	if sent.Err() != nil || job.Tenant == nil || *job.Tenant != "acme" || job.Priority == nil || *job.Priority != 5 {
		t.Errorf("%+v (%v)", job, sent.Err())
	}
	for what, piece := range map[string]struct {
		got  []byte
		want string
	}{
		"type": {job.Type, "a"}, "args": {job.Args, "[ 1 ]"}, "queue": {job.Queue, "q"}, "meta": {job.Meta, `{"k":1,"m":2}`},
		"options": {job.Options, `{"unique":{ "k":1 }}`}, "extra": {job.Extra, `{"x":{ },"y":1.50}`}, "retry": {job.Retry, ""},
	} {
		if string(piece.got) != piece.want {
			t.Errorf("%s is %s, want %s", what, piece.got, piece.want)
		}
	}
}

// objectOf returns the object that a body holds.
func objectOf(src string) *jsonbody.Object {
	return jsonbody.ObjectOf(&jsonbody.Member{Raw: []byte(src)}, "", new(error))
}

func TestLocate(t *testing.T) {
	t.Parallel()
	src := `{"type":"a","timeout":5,"delay_until":"x","meta":{},"options":{"queue":"q","retry":{}}}`
	job := jsonbody.ObjectOf(&jsonbody.Member{Raw: []byte(src)}, "jobs[3]", new(error))
	for field, want := range map[string]string{
		"queue": "jobs[3].options.queue", "retry.max_attempts": "jobs[3].options.retry.max_attempts", "priority": "jobs[3].priority",
		"timeout_ms":   "jobs[3].timeout",
		"scheduled_at": "jobs[3].delay_until", "tenant": "jobs[3].meta.tenant_id", "meta.tenant_id": "jobs[3].meta.tenant_id",
		"type": "jobs[3].type", "args": "jobs[3].args",
	} {
		if got := locate(job, "", field); got != want {
			t.Errorf("%s is at %s, want %s", field, got, want)
		}
	}
	if got := locate(job, "X-OJS-Tenant", "tenant"); got != "X-OJS-Tenant" {
		t.Error(got)
	}
}

// What came with others is told as if it had come alone.
func TestSingleEnqueuesThatCameTogether(t *testing.T) {
	t.Parallel()
	a := start(t)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			body, want := fmt.Sprintf(`{"type":"a","args":[%d]}`, i), 201
			switch i % 6 {
			case 1:
				body, want = `{"type":"a","args":[],"options":{"priority":1000}}`, 400
			case 2:
				body, want = `{"type":"not a type","args":[]}`, 400
			case 3:
				body, want = `{"type":"a","args":[],"options":{"retry":{"max_attempts":-1}}}`, 422
			}
			r, err := a.send(context.Background(), "POST", "/ojs/v1/jobs", body, fmt.Sprintf("X-OJS-Tenant: t%d", i%5))
			if err != nil {
				t.Error(err)
				return
			}
			field := map[int]string{1: "options.priority", 2: "type", 3: "options.retry.max_attempts"}[i%6]
			message := r.text("error.message")
			switch {
			case r.status != want:
				t.Errorf("%s: status %d, want %d: %s", body, r.status, want, r.body)
			case want == 201:
				r.is(map[string]any{"job.args": []any{i}, "job.meta.tenant_id": fmt.Sprintf("t%d", i%5)})
			case r.text("error.details.field") != field || !strings.HasPrefix(message, field) || r.get("error.details.index") != nil:
				t.Errorf("%s: %s", body, r.body)
			}
		})
	}
	all.Wait()
}

// A request that has to wait for a lock holds no connection meanwhile, so that others are served.
func TestWaitingForLocksKeepsNobodyElse(t *testing.T) {
	t.Parallel()
	a := start(t)
	locked := a.push(`{"type":"x","args":[]}`)
	pending := a.push(`{"type":"x","args":[],"options":{"pending":true}}`)
	const added = "019539a4-0000-7000-8000-000000000001"
	a.do("POST", "/ojs/v1/queues/q/pause", "").want(200)
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // done already when the test passes
	if _, err := tx.Exec(t.Context(), "select from ojs.job where id = any ($1::uuid[]) for update", []string{locked, pending}); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select ojs.enqueue('x', p_id => $1), ojs.resume('q')", added); err != nil {
		t.Fatal(err)
	}
	const each = 10
	answers := make(chan *reply, 4*each)
	for i := range cap(answers) {
		go func() {
			var r *reply
			switch i % 4 {
			case 0:
				r, _ = a.send(context.Background(), "POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"x","args":[],"id":"`+added+`"}]}`)
			case 1:
				r, _ = a.send(context.Background(), "POST", "/ojs/v1/jobs/"+locked+"/cancel", "")
			case 2:
				r, _ = a.send(context.Background(), "POST", "/ojs/v1/jobs/"+pending+"/activate", "")
			case 3:
				r, _ = a.send(context.Background(), "POST", "/ojs/v1/queues/q/pause", "")
			}
			answers <- r
		}()
	}
	stat := a.srv.db.Pool().Stat()
	before := stat.AcquireCount()
	pgtest.Eventually(a.t, "they are at it", func() bool { return a.srv.db.Pool().Stat().AcquireCount() >= before+12 })
	a.do("GET", "/ojs/v1/jobs/"+locked, "").want(200)
	if len(answers) > 0 {
		t.Error("answered before the locks were gone")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[int]int{}
	for range cap(answers) {
		if r := <-answers; r != nil {
			got[r.status]++
		}
	}
	if got[201] != 1 || got[200] != 2+each || got[409] != 3*(each-1) {
		t.Errorf("statuses %v", got)
	}
	if n := a.count("select count(*) from ojs.job where id = $1", added); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

func TestALockThatStaysIsToldInTheEnd(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Query = time.Second })
	id := a.push(`{"type":"x","args":[]}`)
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing was done
	if _, err := tx.Exec(t.Context(), "select from ojs.job where id = $1 for update", id); err != nil {
		t.Fatal(err)
	}
	r := a.do("DELETE", "/ojs/v1/jobs/"+id, "").want(503).is(map[string]any{"error.code": "backend_unavailable", "error.retryable": true})
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// A job that waits may be given another priority, by a number or by one of three names.
func TestPriorityIsPatched(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, "X-OJS-Tenant: acme").want(201).text("job.id")
	for _, path := range []string{"/ojs/v1/jobs/" + id, "/ojs/v1/admin/jobs/" + id} {
		for priority, want := range map[string]int{"7": 7, `"high"`: 10, `"low"`: -10, `"normal"`: 0, "-100": -100} {
			a.do("PATCH", path, `{"priority":`+priority+`}`).want(200).is(map[string]any{"id": id, "priority": want, "state": "available"})
		}
		a.do("PATCH", path, `{"priority":1}`, "X-OJS-Tenant: acme").want(200)
		a.do("PATCH", path, `{"priority":1}`, "X-OJS-Tenant: globex").want(404)
		for _, bad := range []string{"{}", `{"priority":101}`, `{"priority":"urgent"}`, `{"priority":null}`, `{"priority":-101}`} {
			a.do("PATCH", path, bad).want(400).is(map[string]any{"error.details.field": "priority"})
		}
		a.do("PATCH", path, `{"priority":1,"queue":"q"}`).want(422).is(map[string]any{"error.details.field": "queue"})
	}
	a.do("DELETE", "/ojs/v1/jobs/"+id, "").want(200)
	a.do("PATCH", "/ojs/v1/jobs/"+id, `{"priority":1}`).want(409)
}
