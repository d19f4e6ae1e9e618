package httpapi

import (
	"fmt"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// What is above a tenant's max_priority is refused, or answered as it is stored.
func TestMaxPriority(t *testing.T) {
	t.Parallel()
	a := start(t)
	pgtest.Exec(t, a.pool, "select ojs.configure_tenant('acme', null, null, 10), ojs.configure_tenant('clamped', null, null, 0, 'clamp')")
	job := func(tenant string, priority int) string {
		return fmt.Sprintf(`{"type":"x","args":[],"meta":{"tenant_id":%q},"options":{"priority":%d}}`, tenant, priority)
	}
	refused := a.do("POST", "/ojs/v1/jobs", job("acme", 11)).want(422)
	refused.is(map[string]any{
		"error.code": "validation_error", "error.details.field": "options.priority", "error.details.limit": 10.0,
		"error.message": "options.priority must be at most 10, the max_priority of the tenant",
	})
	a.do("POST", "/ojs/v1/jobs", job("acme", 10)).want(201).is(map[string]any{"job.priority": 10.0})
	a.do("POST", "/ojs/v1/jobs", job("clamped", 50)).want(201).is(map[string]any{"job.priority": 0.0})
	a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[`+job("acme", 10)+","+job("acme", 11)+`]}`).want(422).is(map[string]any{
		"error.details.index": 1.0, "error.details.limit": 10.0,
	})
	a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[`+job("clamped", -1)+","+job("clamped", 50)+`]}`).want(201).is(map[string]any{
		"jobs.0.priority": -1.0, "jobs.1.priority": 0.0,
	})
}
