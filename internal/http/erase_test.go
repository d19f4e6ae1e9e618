package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// What clients put into jobs over HTTP is found on no route, in no table, no metric and no line of the log once it was erased.
func TestEraseOverHTTP(t *testing.T) {
	t.Parallel()
	a := start(t)
	const mark = "m4rk3d-c0nt3nt"
	const acme = "X-OJS-Tenant: acme"
	job := func(kind, queue string) string {
		return `{"type":"` + kind + `","args":[{"who":"` + mark + `"}],"meta":{"note":"` + mark + `"},"ext_more":"` + mark +
			`","options":{"queue":"` + queue + `","tags":["` + mark + `"],"retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}}}`
	}
	ids := []string{a.push(job("single", "waits"), acme), a.push(job("keyed", "waits"), acme, "Idempotency-Key: k")}
	a.do("POST", v1+"/jobs/batch", `{"jobs":[`+job("batch", "waits")+`,`+job("batch", "waits")+`]}`, acme).want(201)
	a.do("POST", v1+"/jobs/batch", `{"jobs":[`+job("batch", "waits")+`],"idempotency_key":"b"}`, acme).want(201)
	take := func(kind string) (id string) {
		t.Helper()
		id = a.push(job(kind, "runs"), acme)
		a.fetchOne("runs", acme)
		ids = append(ids, id)
		return id
	}
	a.do("POST", v1+"/workers/ack", `{"job_id":"`+take("acked")+`","result":{"r":"`+mark+`"}}`).want(200)
	a.do("POST", v1+"/workers/nack", `{"job_id":"`+take("dead")+
		`","error":{"code":"`+mark+`","type":"`+mark+`","message":"`+mark+`"}}`).want(200)
	running := take("active")
	kept := a.push(`{"type":"kept","args":["kept"]}`, "X-OJS-Tenant: globex")
	a.do("GET", v1+"/jobs/"+ids[0], "", acme).want(200)

	const reason = `,"confirm":true,"reason":"asked"}`
	for body, field := range map[string]string{
		`{"confirm":true,"reason":"r"}`:                          "filter",
		`{"filter":{},"confirm":true,"reason":"r"}`:              "filter",
		`{"filter":{"tenant":"acme"},"reason":"r"}`:              "confirm",
		`{"filter":{"tenant":"acme"},"confirm":true}`:            "reason",
		`{"ids":["` + kept + `"],"filter":{"type":"a"}` + reason: "ids",
		`{"filter":{"tenant":"acme","state":"gone"}` + reason:    "filter.state",
		`{"filter":{"tenant":"acme","error_type":"x"}` + reason:  "filter.error_type",
	} {
		if got := a.do("POST", v1+"/admin/erase", body).want(400).text("error.details.field"); got != field {
			t.Errorf("%s is refused for %q, want %q", body, got, field)
		}
	}
	a.do("POST", v1+"/admin/erase", `{"filter":{"tenant":"globex"}`+reason, acme).want(404)
	a.do("POST", v1+"/admin/erase", `{"ids":["`+kept+`"]`+reason, acme).want(200).is(map[string]any{"jobs": 0})
	a.do("POST", v1+"/admin/erase", `{"ids":["`+ids[0]+`"]`+reason).want(200).is(map[string]any{"jobs": 1, "cancelled": 1})
	a.do("POST", v1+"/admin/erase", `{"filter":{"type":"keyed"}`+reason, acme).want(200).is(map[string]any{"jobs": 1, "answers": 1})
	replayed := a.do("POST", v1+"/jobs", job("keyed", "waits"), acme, "Idempotency-Key: k").want(201)
	if strings.Contains(replayed.body, mark) || replayed.text("job.id") != ids[1] {
		t.Errorf("the repeated request is answered %s", replayed.body)
	}
	a.do("POST", v1+"/admin/erase", `{"filter":{"tenant":"acme"}`+reason).want(200).is(map[string]any{
		"jobs": 6, "active": 1, "cancelled": 3, "dead_letters": 1, "locked": 0, "next_cursor": nil,
	})
	a.do("POST", v1+"/workers/ack", `{"job_id":"`+running+`","result":"`+mark+`"}`).want(200)
	pgtest.Exec(t, a.pool, "select ojs.tick()")

	paths := []string{
		"/jobs", "/admin/jobs", "/events?limit=1000", "/dead-letter", "/admin/audit", "/admin/tenants",
		"/admin/stats", "/admin/doctor", "/queues",
	}
	for _, id := range ids {
		paths = append(paths, "/jobs/"+id, "/jobs/"+id+"/result", "/admin/jobs/"+id, "/admin/jobs/"+id+"/explain")
	}
	for _, path := range paths {
		if r := a.do("GET", v1+path, ""); strings.Contains(r.body, mark) {
			t.Errorf("GET %s shows %s", path, r.body)
		}
	}
	if got := a.do("GET", "/metrics", "").want(200).body; strings.Contains(got, mark) {
		t.Error("the metrics show the mark")
	}
	if got := a.log.String(); strings.Contains(got, mark) {
		t.Errorf("the log has the mark: %s", got)
	}
	for _, table := range pgtest.List[string](t, a.pool, `select c.relname::text from pg_class c
		where c.relnamespace = 'ojs'::regnamespace and c.relkind in ('r', 'p') order by 1`) {
		if n := a.count(fmt.Sprintf("select count(*) from ojs.%s t where to_jsonb(t)::text like '%%%s%%'", table, mark)); n > 0 {
			t.Errorf("ojs.%s has the mark in %d rows", table, n)
		}
	}
	a.do("GET", v1+"/jobs/"+kept, "").want(200).is(map[string]any{"job.args": []string{"kept"}})
}
