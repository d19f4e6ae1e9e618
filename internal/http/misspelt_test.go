package httpapi

import "testing"

// A field that is nearly right is refused with the name that was probably meant; what resembles nothing stays.
func TestMisspeltFields(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"a","args":[]}`)
	for _, c := range []struct{ path, body, field, meant string }{
		{"jobs", `{"type":"a","args":[],"priorty":5}`, "priorty", "priority"},
		{"jobs", `{"type":"a","args":[],"scheduledAt":"+PT1H"}`, "scheduledAt", "scheduled_at"},
		{"jobs", `{"type":"a","args":[],"delay":5}`, "delay", "delay_until"},
		{"jobs", `{"type":"a","args":[],"options":{"max_attempt":5}}`, "options.max_attempt", "max_attempts"},
		{"jobs", `{"type":"a","args":[],"options":{"retry":{"max_atempts":5}}}`, "options.retry.max_atempts", "max_attempts"},
		{"jobs", `{"type":"a","args":[],"tenant":"acme"}`, "tenant", "meta.tenant_id, or the header X-OJS-Tenant,"},
		{"jobs", `{"type":"a","args":[],"options":{"tenant_id":"acme"}}`, "options.tenant_id", "meta.tenant_id"},
		{"jobs/batch", `{"jobs":[{"type":"a","args":[],"quue":"q"}]}`, "jobs[0].quue", "queue"},
		{"workers/fetch", `{"queues":["default"],"workerid":"w"}`, "workerid", "worker_id"},
		{"workers/fetch", `{"queues":["default"],"tenant":"acme"}`, "tenant", "X-OJS-Tenant"},
		{"workers/ack", `{"job_id":"` + id + `","lease_token":"x"}`, "lease_token", "lease"},
		{"workers/ack", `{"job_id":"` + id + `","worker":"w"}`, "worker", "worker_id"},
		{"workers/ack", `{"job_id":"` + id + `","reslut":1}`, "reslut", "result"},
		{"workers/nack", `{"job_id":"` + id + `","error":{"message":"m"},"re_queue":true}`, "re_queue", "requeue"},
		{"workers/heartbeat", `{"worker_id":"w","activeJobs":[]}`, "activeJobs", "active_jobs"},
	} {
		for _, headers := range [][]string{nil, {"X-OJS-Tenant: acme"}} {
			a.do("POST", "/ojs/v1/"+c.path, c.body, headers...).want(400).is(map[string]any{
				"error.code": "invalid_request", "error.details.field": c.field,
				"error.message": c.field + " is not known; " + c.meant + " is probably meant",
			})
		}
	}
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"x_priorty":1,"team":"b","options":{"region":"eu"}}`).want(201).is(map[string]any{
		"job.x_priorty": 1, "job.team": "b", "job.options.region": "eu",
	})
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["none"],"runtime":"go","active_jobs":3}`).want(200)
}
