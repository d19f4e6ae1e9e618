package httpapi

import (
	"regexp"
	"strings"
	"testing"
)

// Who has the server's log alone sees which jobs fail, and why: those of single NACKs and of many at once.
func TestTheLogSaysWhichJobsFail(t *testing.T) {
	t.Parallel()
	var a *api
	var last string
	// What is not told yet is told when the server stops.
	t.Run("served", func(t *testing.T) {
		a = start(t)
		var ids []string
		for range 3 {
			ids = append(ids, a.push(`{"type":"mail.send","args":[],"options":{"queue":"q"}}`))
			a.fetchOne("q")
		}
		a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+ids[0]+`","error":{"message":"no route"}}`).want(200)
		a.do("POST", "/ojs/v1/jobs/"+ids[1]+"/nack", `{"error":{"message":"no \u0072oute","retryable":false}}`).want(200)
		a.do("POST", "/ojs/v1/workers/nack", `{"jobs":[{"job_id":"`+ids[2]+`","error":{"message":"timed out"}}]}`).want(200)
		last = ids[2]
	})
	log := a.log.String()
	want := `type=mail\.send attempts=3 discarded=1 tenants=1 tenant=_default queue=q job=` + last + ` worker=w1 error="timed out"\n`
	if !regexp.MustCompile(want).MatchString(log) || strings.Count(log, "attempts failed") != 1 {
		t.Errorf("logged is %s", log)
	}
}
