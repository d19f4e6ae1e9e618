package httpapi

import (
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// badValues are values that are no acceptable JSON, though their ends can be found.
var badValues = map[string]string{
	"NaN":              `NaN`,
	"Infinity":         `[Infinity,-Infinity]`,
	"NUL":              `"a\u0000b"`,
	"half a surrogate": `"half \ud83d"`,
	"a repeated key":   `{"x":1,"x":2}`,
	"too many levels":  strings.Repeat("[", 120) + strings.Repeat("]", 120),
	"a latin1 byte":    "\"caf\xe9\"",
}

// brokenBodies are endings of a list of jobs that leave open where its items end.
var brokenBodies = []string{`]`, `}`, `,]}`, ` {}]}`, `]} x`, `]}}`, `,{"x":NaN]}`, `,{"x":"open}]}`, `,{x:NaN}]}`}

func (a *api) held(n int) (ids []string) {
	for range n {
		ids = append(ids, a.push(`{"type":"a","args":[],"options":{"queue":"q","retry":{"non_retryable_errors":["Fatal"]}}}`))
	}
	for range n {
		a.fetchOne("q")
	}
	return ids
}

func (a *api) inState(want string, ids ...string) {
	a.t.Helper()
	for _, id := range ids {
		a.do("GET", "/ojs/v1/jobs/"+id, "").want(200).is(map[string]any{"job.state": want})
	}
}

func TestOneBadItemOfManyAcks(t *testing.T) {
	t.Parallel()
	a := start(t)
	for name, value := range badValues {
		ids := a.held(3)
		r := a.do("POST", "/ojs/v1/workers/ack", `{"jobs":[{"job_id":"`+ids[0]+`","result":1},{"job_id":"`+ids[1]+`","result":`+value+`},
			{"job_id":"`+ids[2]+`","result":"}]"}]}`).want(200).is(map[string]any{
			"succeeded": 2, "failed": 1, "results.0.state": "completed", "results.2.state": "completed", "results.1.status": 400,
			"results.1.job_id": ids[1], "results.1.error.code": "invalid_payload", "results.1.error.details.index": 1,
		})
		if field := r.text("results.1.error.details.field"); !strings.HasPrefix(field, "jobs[1].result") {
			t.Errorf("%s: the field is %s", name, field)
		}
		a.inState("active", ids[1])
		a.inState("completed", ids[0], ids[2])
	}
	ids := a.held(1)
	good := `{"jobs":[{"job_id":"` + ids[0] + `"},{"job_id":"` + ids[0] + `","result":NaN}`
	for _, end := range brokenBodies {
		a.do("POST", "/ojs/v1/workers/ack", good+end).want(400).is(map[string]any{"error.code": "invalid_payload"})
	}
	a.do("POST", "/ojs/v1/workers/ack", `{"worker_id":"\u0000",`+good[1:]+`]}`).want(400)
	a.do("POST", "/ojs/v1/jobs/"+ids[0]+"/ack", good+`]}`).want(400)
	a.do("POST", "/ojs/v1/workers/ack",
		`{"job_id":"`+ids[0]+`","result":NaN}`).want(400).is(map[string]any{"error.details.field": "result"})
	a.inState("active", ids[0])
	a.do("POST", "/ojs/v1/workers/ack", `{"jobs":[NaN,"\u0000",{"job_id":"no"},{"job_id":"\ud800"},{"job_id":"`+ids[0]+`","job_id":"x"},
		{"job_id":"`+ids[0]+`"}]}`).want(200).is(map[string]any{
		"succeeded": 1, "failed": 5, "results.0.error.details.field": "jobs[0]", "results.1.error.details.field": "jobs[1]",
		"results.2.error.details.field": "jobs[2].job_id", "results.3.error.details.field": "jobs[3].job_id",
		"results.4.error.details.field": "jobs[4].job_id", "results.5.state": "completed",
	})
}

// The error of a NACK is repaired, so that the attempt ends and its type decides.
func TestErrorsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	a := start(t)
	values := map[string]string{"a huge number": `1e999999`}
	for name, value := range badValues {
		values[name] = value
	}
	for name, value := range values {
		ids := a.held(3)
		failure := `{"code":"C","type":"Fatal","message":"m","details":` + value + `}`
		mark := "repaired"
		if name == "too many levels" {
			mark = "truncated"
		}
		a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+ids[0]+`","error":`+failure+`}`).want(200).is(map[string]any{
			"state": "discarded", "job.error.type": "Fatal", "job.error.code": "C", "job.error.message": "m", "job.error." + mark: true,
		})
		a.do("POST", "/ojs/v1/workers/nack", `{"jobs":[{"job_id":"`+ids[1]+`","error":`+failure+`},{"job_id":"no","error":`+failure+`},
			{"job_id":"`+ids[2]+`","worker_id":"\u0000","error":`+failure+`}]}`).want(200).is(map[string]any{
			"succeeded": 1, "failed": 2, "results.0.state": "discarded", "results.1.error.details.field": "jobs[1].job_id",
			"results.2.error.details.field": "jobs[2].worker_id", "results.2.job_id": ids[2],
		})
		a.do("GET", "/ojs/v1/jobs/"+ids[1], "").is(map[string]any{"job.error.message": "m", "job.error." + mark: true})
		a.do("POST", "/ojs/v1/jobs/"+ids[2]+"/nack", `{"error":`+failure+`}`).want(200).is(map[string]any{"state": "discarded"})
	}
	ids := a.held(4)
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+ids[0]+`","error":{"type":"Fatal","message":"half \ud83d and \u0000"}}`).want(200).
		is(map[string]any{"state": "discarded", "job.error.message": "half \uFFFD and \uFFFD", "job.error.repaired": true})
	frames := `"backtrace":["frame` + strings.Repeat(`","`+strings.Repeat("f", 60), 3000) + `"]`
	r := a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+ids[1]+`","error":{"type":"Fatal","message":"`+strings.Repeat("x", 100_000)+
		`",`+frames+`}}`).want(200).is(map[string]any{"state": "discarded", "job.error.type": "Fatal", "job.error.truncated": true})
	if n := len(r.text("job.error.message")); n < 1000 || r.text("job.error.backtrace.0") != "frame" {
		t.Errorf("a message of %d bytes: %.300s", n, r.body)
	}
	// A mistake of the client is refused as ever.
	for _, failure := range []string{`NaN`, `"\u0000"`, `{"code":"\u0000"}`, `{"message":NaN,"retryable":1}`, `[NaN]`} {
		a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+ids[2]+`","error":`+failure+`}`).want(400)
	}
	good := `{"jobs":[{"job_id":"` + ids[2] + `","error":{"message":"m\u0000"}}`
	for _, end := range brokenBodies {
		a.do("POST", "/ojs/v1/workers/nack", good+end).want(400).is(map[string]any{"error.code": "invalid_payload"})
	}
	a.inState("active", ids[2:]...)
}

func TestOneBadIDOfAHeartbeat(t *testing.T) {
	t.Parallel()
	a := start(t)
	ids := a.held(2)
	for _, value := range []string{`NaN`, `"\u0000"`, `"\ud800"`, `7`, `null`, `"no id"`, "\"\xe9\"", `{}`} {
		for _, list := range []string{`"active_jobs":`, `"active_jobs":3,"active_job_ids":`} {
			r := a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w1",`+list+`["`+ids[0]+`",`+value+`,"`+ids[1]+`"]}`).want(200)
			if extended, _ := r.get("jobs_extended").([]any); len(extended) != 2 {
				t.Errorf("%s: %s", value, r.body)
			}
			field := strings.Trim(list[strings.LastIndex(list[:len(list)-2], `"`):], `":`) + "[1]"
			r.is(map[string]any{
				"jobs_refused.0.index": 1, "jobs_refused.0.status": 400, "jobs_refused.0.error.details.field": field,
			}).absent("jobs_refused.1")
		}
	}
	a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w1","active_jobs":["`+ids[0]+`"]}`).want(200).absent("jobs_refused")
	for _, body := range []string{
		`["` + ids[0] + `" NaN]}`, `["` + ids[0] + `",]}`, `["` + ids[0] + `",NaN]`, `["x],"pid":1}`,
		`[],"pid":NaN}`,
	} {
		a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w1","active_jobs":`+body).want(400)
	}
}

func TestOneBadItemOfAPartialBatch(t *testing.T) {
	t.Parallel()
	a := start(t)
	values := map[string]string{"no array": `{}`, "null": `null`}
	for name, value := range badValues {
		values[name] = value
	}
	for name, value := range values {
		jobs := `"jobs":[{"type":"a","args":[]},{"type":"b","args":` + value +
			`},7,{"type":"Bad Type","args":[]},{"type":"c","args":["}]"]}]}`
		r := a.do("POST", "/ojs/v1/jobs/batch", `{"atomicity":"partial",`+jobs).want(207).is(map[string]any{
			"count": 2, "enqueued": 2, "failed": 3, "results.0.status": "created", "results.4.status": "created",
			"results.1.status":              "failed",
			"results.1.error.details.index": 1, "results.2.error.details.field": "jobs[2]", "results.3.error.details.field": "jobs[3].type",
			"results.3.error.details.index": 3, "jobs.0.type": "a", "jobs.1.type": "c",
		})
		if field := r.text("results.1.error.details.field"); !strings.HasPrefix(field, "jobs[1].args") {
			t.Errorf("%s: the field is %s", name, field)
		}
		if message := r.text("results.3.error.message"); !strings.HasPrefix(message, "jobs[3].type") {
			t.Errorf("%s: the message is %s", name, message)
		}
		a.do("POST", "/ojs/v1/jobs/batch", `{`+jobs).want(400)
	}
	a.do("POST", "/ojs/v1/jobs/batch", `{"atomicity":"partial","jobs":[{"type":"a","args":[NaN]},{"type":"a","args":7}]}`).want(400).
		is(map[string]any{"error.details.field": "jobs[0].args[0]", "error.details.index": 0})
	for _, end := range brokenBodies {
		a.do("POST", "/ojs/v1/jobs/batch", `{"atomicity":"partial","jobs":[{"type":"a","args":[]},{"type":"a","args":[NaN]}`+end).want(400)
	}
	if got := pgtest.One[int](t, a.pool, "select count(*) from ojs.job where type = 'a'"); got != len(values) {
		t.Errorf("%d jobs of type a, want %d", got, len(values))
	}
}
