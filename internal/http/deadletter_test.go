package httpapi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// bury makes a dead letter and returns its id.
func (a *api) bury(queue, errorType string, headers ...string) (id string) {
	a.t.Helper()
	id = a.push(`{"type":"dead.job","args":[1.50],
		"options":{"queue":"`+queue+`","retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}}}`, headers...)
	a.fetchOne(queue, headers...)
	a.do("POST", "/ojs/v1/workers/nack",
		`{"job_id":"`+id+`","error":{"code":"handler_error","type":"`+errorType+`","message":"m"}}`, headers...).
		want(200).is(map[string]any{"state": "discarded"})
	return id
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, base := range []string{"/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter"} {
		a.do("GET", base, "").want(200).is(map[string]any{
			"jobs": []any{}, "items": []any{}, "total": 0, "pagination.total": 0, "pagination.page": 1,
			"pagination.has_more": false,
		})
		first := a.bury("mail", "Timeout")
		second := a.bury("billing", "BadCard")
		foreign := a.bury("mail", "Timeout", "X-OJS-Tenant: acme")
		a.do("GET", base, "").want(200).is(map[string]any{
			"jobs.0.id": foreign, "jobs.1.id": second, "items.2.id": first, "jobs.2.state": "discarded",
			"jobs.2.errors.0.type": "Timeout", "jobs.2.error.message": "m", "jobs.2.attempt": 1, "total": 3,
		}).present("jobs.2.discarded_at", "jobs.2.args").absent("jobs.3")
		a.do("GET", base, "", "X-OJS-Tenant: acme").want(200).
			is(map[string]any{"jobs.0.id": foreign, "pagination.total": 1}).absent("jobs.1")
		a.do("GET", base+"?queue=billing", "").want(200).is(map[string]any{"jobs.0.id": second, "total": 1})
		a.do("GET", base+"?error_type=Timeout&type=dead.job&since=2000-01-01T00:00:00Z", "").want(200).is(map[string]any{"total": 2})
		a.do("GET", base+"?older_than=2000-01-01T00:00:00Z", "").want(200).is(map[string]any{"total": 0})
		a.do("GET", base+"?limit=1&offset=1", "").want(200).is(map[string]any{
			"jobs.0.id": second, "pagination.has_more": true, "pagination.page": 2, "pagination.limit": 1,
		}).absent("jobs.1")
		for query, field := range map[string]string{
			"limit=0": "limit", "since=yesterday": "since", "queue=%00": "queue", "offset=-1": "offset", "type=%ff": "type",
		} {
			a.do("GET", base+"?"+query, "").want(400).is(map[string]any{"error.code": "invalid_request", "error.details.field": field})
		}
		a.do("GET", base+"?type=%EF%BF%BD", "").want(200).is(map[string]any{"total": 0})
		a.do("GET", base+"?type=%FF", "").want(400)

		one := a.do("GET", base+"/"+first, "").want(200)
		if base == "/ojs/v1/dead-letter" {
			one.is(map[string]any{"job.id": first})
		} else {
			one.is(map[string]any{"id": first})
		}
		for _, id := range []string{"01932a4e-0000-7000-8000-000000000000", foreign} {
			for _, call := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/retry"}} {
				a.do(call[0], base+"/"+id+call[1], "", "X-OJS-Tenant: globex").want(404).is(map[string]any{
					"error.code": "not_found", "error.details.resource_type": "dead_letter_job",
				})
			}
		}
		a.do("GET", base+"/what", "").want(404)

		a.do("POST", base+"/"+first+"/retry", `{"overide":{}}`).want(400).is(map[string]any{"error.details.field": "overide"})
		a.do("POST", base+"/"+first+"/retry", `{"override":5}`).want(400).is(map[string]any{"error.details.field": "override"})
		a.do("POST", base+"/"+first+"/retry",
			`{"override":{"state":"active"}}`).want(400).is(map[string]any{"error.details.field": "override.state"})
		for override, field := range map[string]string{
			`"queue":"No"`: "queue", `"priority":101`: "priority", `"retry":{"max_attempts":-1}`: "retry.max_attempts",
			`"expires_at":"tomorrow"`: "expires_at", `"expires_at":"2031-01-01"`: "expires_at",
			`"expires_at":"+PT"`: "expires_at", `"meta":{"tenant_id":"acme"}`: "meta.tenant_id",
		} {
			r := a.do("POST", base+"/"+first+"/retry", `{"override":{`+override+`}}`)
			if r.is(map[string]any{"error.details.field": "override." + field}); r.status >= 500 ||
				!strings.HasPrefix(r.text("error.message"), "override."+field) {
				t.Errorf("%s: %d %s", override, r.status, r.body)
			}
		}
		a.do("POST", base+"/"+first+"/retry", `{"override":{"meta":{"by":"me"},"expires_at":"+PT1H"}}`).want(200).is(map[string]any{
			"job.id": first, "job.state": "available", "job.attempt": 0, "job.meta.by": "me", "job.previous_state": "discarded",
		}).present("job.re_enqueued_at", "job.errors.0").absent("job.discarded_at")
		a.do("POST", base+"/"+first+"/retry", "").want(404)

		for _, id := range []string{second, foreign} {
			if base == "/ojs/v1/dead-letter" {
				a.do("DELETE", base+"/"+id, "").want(200).is(map[string]any{"deleted": true, "job_id": id})
			} else {
				a.do("DELETE", base+"/"+id, "").want(204)
			}
			a.do("GET", "/ojs/v1/jobs/"+id, "").want(404)
		}
		a.do("DELETE", "/ojs/v1/jobs/"+first, "").want(200)
	}
}

// A job that failed for good without a word about dead letters runs again by the routes of jobs, and by no route of dead letters.
func TestDiscardedJobsRunAgain(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"options":{"queue":"q","retry":{"max_attempts":1}}}`).want(201).text("job.id")
	for _, path := range []string{"/ojs/v1/jobs/" + id + "/retry", "/ojs/v1/admin/jobs/" + id + "/retry", "/ojs/v1/admin/jobs/bulk/retry"} {
		a.do("POST", "/ojs/v1/jobs/"+id+"/retry", "").want(409)
		a.fetchOne("q")
		failure := `{"job_id":"` + id + `","error":{"message":"m"}}`
		a.do("POST", "/ojs/v1/workers/nack", failure).want(200).is(map[string]any{"state": "discarded"})
		a.do("POST", "/ojs/v1/dead-letter/"+id+"/retry", "").want(404)
		body := ""
		if strings.HasSuffix(path, "bulk/retry") {
			body = `{"ids":["` + id + `"],"confirm":true}`
		}
		a.do("POST", path, body).want(200)
		a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{"job.state": "available", "job.attempt": 0})
	}
}

// What a job has from its producer under a name of ours is not written beside ours.
func TestRetriedDeadLettersRepeatNoName(t *testing.T) {
	t.Parallel()
	a := start(t)
	pgtest.Exec(t, a.db.Operator(), "select ojs.configure(p_unsupported => 'carry')")
	const retries = `'{"max_attempts":1,"on_exhaustion":"dead_letter"}'`
	id := pgtest.One[string](t, a.pool, `
		select id from ojs.enqueue('a', p_queue => 'q', p_retry => `+retries+`,
			p_extra => '{"re_enqueued_at": "mine", "previous_state": "mine", "other": 1}')`)
	a.fetchOne("q")
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"message":"m"}}`).want(200)
	for _, path := range []string{"/ojs/v1/admin/jobs/", "/ojs/v1/jobs/"} {
		a.do("POST", path+id+"/retry", "").want(200).is(map[string]any{"job.state": "available", "job.attempt": 0})
		a.fetchOne("q")
		a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"message":"m"}}`).want(200)
	}
	r := a.do("POST", "/ojs/v1/dead-letter/"+id+"/retry", "").want(200)
	a.do("GET", "/ojs/v1/admin/jobs/"+id, "").want(200).is(map[string]any{"id": id, "type": "a", "queue": "q", "state": "available"})
	enqueued := a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).text("job.enqueued_at")
	r.is(map[string]any{"job.previous_state": "discarded", "job.re_enqueued_at": enqueued, "job.other": 1})
	for _, name := range []string{"re_enqueued_at", "previous_state"} {
		if n := strings.Count(r.body, `"`+name+`"`); n != 1 {
			t.Errorf("%s is there %d times in %s", name, n, r.body)
		}
	}
}

// Ages and the present are told by the clock of the database, which dead letters are dated with.
func TestDeadLettersByAge(t *testing.T) {
	t.Parallel()
	a := start(t)
	const base = "/ojs/v1/dead-letter"
	now := time.Now().Add(time.Hour)
	a.db.SetNow(now)
	old := a.bury("mail", "Timeout")
	a.db.SetNow(now.Add(40 * 24 * time.Hour))
	a.bury("mail", "Timeout")
	a.db.SetNow(now.Add(40*24*time.Hour + time.Minute))

	for query, field := range map[string]string{
		"older_than=%2BP30D": "older_than", "older_than=30": "older_than", "since=P1D": "since", "until=%2BP1D": "until",
		"older_than=P30D&until=2031-01-01T00:00:00Z": "older_than",
	} {
		a.do("GET", base+"?"+query, "").want(400).is(map[string]any{"error.details.field": field})
	}
	a.do("GET", base+"?older_than=P30D", "").want(200).is(map[string]any{"total": 1, "jobs.0.id": old})
	a.do("GET", base+"?older_than=P41D", "").want(200).is(map[string]any{"total": 0})
	a.do("GET", base+"?older_than=2031-01-01T01:00:00%2B01:00&until=2031-01-01T00:00:00Z", "").want(200)
}

// A page ends before it grows too large; what it holds and how many there are says where the next begins.
func TestLargeDeadLetters(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.List = 100_000 })
	for i := range 7 {
		size := 45_000
		if i == 3 {
			size = 200_000 // more than a page, and yet a page
		}
		if _, err := a.pool.Exec(t.Context(), `
			select ojs.enqueue('large', json_build_array($1::int, repeat('x', $2)), p_queue => 'large',
				p_retry => '{"max_attempts":1,"on_exhaustion":"dead_letter"}')`, i, size); err != nil {
			t.Fatal(err)
		}
		a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+a.fetchOne("large").text("jobs.0.id")+`","error":{"message":"m"}}`).want(200)
	}
	var pages, seen []int
	for offset, more := 0, true; more; more = len(seen) < 7 {
		r := a.do("GET", fmt.Sprint("/ojs/v1/dead-letter?limit=1000&offset=", offset), "").want(200)
		jobs := r.get("jobs").([]any)
		for i := range jobs {
			n, err := strconv.Atoi(fmt.Sprint(r.get(fmt.Sprint("items.", i, ".args.0"))))
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, n)
		}
		if len(jobs) == 0 {
			t.Fatalf("nothing at %d: %s", offset, r.body)
		}
		offset += len(jobs)
		r.is(map[string]any{"total": 7, "pagination.has_more": offset < 7, "pagination.total": 7})
		pages = append(pages, len(jobs))
	}
	if !slices.Equal(pages, []int{2, 1, 1, 2, 1}) || !slices.Equal(seen, []int{6, 5, 4, 3, 2, 1, 0}) {
		t.Errorf("pages of %v: %v", pages, seen)
	}
	a.do("GET", "/ojs/v1/dead-letter?limit=1", "").want(200).is(map[string]any{"pagination.has_more": true})
}
