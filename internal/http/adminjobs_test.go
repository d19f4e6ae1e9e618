package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Multi-tenancy section 10.3: jobs of a tenant, by state and page.
func TestMT103JobsOfATenant(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.sql("select ojs.enqueue('a', p_tenant => x) from unnest('{acme-corp,acme-corp,acme-corp,globex}'::text[]) x")
	r.sql("select ojs.fetch('{default}', 2, p_tenant => 'acme-corp')")
	const call = "GET /admin/tenants/acme-corp/jobs"
	r.gives(call+"?state=active&page=1&per_page=20", "", 200, `{"items": [
		{"state": "active", "tenant_id": "acme-corp", "type": "a", "id": "*",
		"queue": "default", "priority": 0, "attempt": 1, "created_at": "*", "started_at": "*"}, {"state": "active"}],
		"pagination": {"total": 2, "page": 1, "per_page": 20, "has_more": false, "next_cursor": null}}`)
	r.gives(call+"?page=2&per_page=2", "", 200, `{"items": [{"tenant_id": "acme-corp"}], "pagination": {"page": 2, "total": null}}`)
	r.as("acme-corp").gives(call, "", 200, `{"jobs": ["*", "*", "*"]}`)
	r.as("globex").knowsNo("tenant", call, "")
	r.knowsNo("tenant", "GET /admin/tenants/nobody/jobs", "")
}

// Running jobs are the oldest. A list finds them behind more jobs than one page looks at.
func TestRunningJobsBehindABacklog(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	r.sql("select ojs.enqueue('a', p_tenant => 'acme', p_queue => 'old')")
	r.sql("select ojs.fetch('{old}')")
	for range 2 {
		r.sql(`select ojs.enqueue_many((select jsonb_agg('{"type": "many", "args": [], "queue": "bulk", "tenant": "acme"}'::jsonb)
			from generate_series(1, 5025)))`)
	}
	r.sql("select ojs.tick()")
	for _, list := range []string{"GET /jobs", "GET /admin/jobs", "GET /admin/tenants/acme/jobs"} {
		r.gives(list+"?state=active", "", 200, `{"jobs": [{"state": "active", "type": "a"}], "pagination": {"total": 1}}`)
	}
}

func TestJobs(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	// Ids that are made within a millisecond have no order.
	r.sql(`select ojs.enqueue(t, p_queue => q, p_tenant => n, p_id => ('0198c0de-0000-7000-8000-00000000000' || i)::uuid) from (values
		('mail.send', 'mail', 'acme', 1), ('mail.bounce', 'mail', 'globex', 2), ('report', 'default', 'acme', 3)) x(t, q, n, i)`)
	for _, list := range []string{"GET /admin/jobs", "GET /jobs"} {
		r.gives(list, "", 200, `{"items": [{"type": "report"}, {"type": "mail.bounce"}, {"type": "mail.send"}]}`)
		r.gives(list+"?queue=mail&state=available", "", 200, `{"jobs": ["*", "*"], "pagination": {"total": 2}}`)
		r.gives(list+"?type=mail.*&tenant=globex", "", 200, `{"items": [{"type": "mail.bounce"}], "pagination": {"total": null}}`)
		r.gives(list+"?until=2001-01-01T00:00:00Z", "", 200, `{"items": []}`)
		r.as("acme").gives(list, "", 200, `{"items": [{"tenant_id": "acme"}, {"tenant_id": "acme"}]}`)
		r.as("acme").gives(list+"?state=available", "", 200, `{"items": ["*", "*"], "pagination": {"total": 2}}`)
		r.as("acme").knowsNo("tenant", list+"?tenant=globex", "")
		r.refuses(list+"?state=lost", "", 400, "state")
		r.refuses(list+"?cursor=1", "", 400, "cursor")
		r.refuses(list+"?tenant=-", "", 400, "tenant")
		r.refuses(list+"?sort=priority", "", 422, "sort")
		r.refuses(list+"?order=asc", "", 422, "order")
	}
	second := pgtest.One[string](r, r.db.Pool, "select id::text from ojs.job where type = 'mail.bounce'")
	r.gives("GET /admin/jobs?limit=2", "", 200, fmt.Sprintf(`{"pagination": {"has_more": true, "next_cursor": %q}}`, second))
	r.gives("GET /admin/jobs?limit=2&cursor="+second, "", 200, `{"items": [{"type": "mail.send"}], "pagination": {"has_more": false}}`)
}

// Jobs are cancelled in bulk by a filter or by their ids, and never without a confirmation.
func TestJobsAreCancelledInBulk(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const call = "POST /admin/jobs/bulk/cancel"
	r.sql("select ojs.enqueue('a', p_queue => q, p_tenant => n) from unnest('{q,r}'::text[]) q, unnest('{acme,acme,globex}'::text[]) n")
	r.refuses(call, `{"filter": {"queue": "q"}}`, 400, "confirm")
	r.refuses(call, `{"filter": {"queue": "q"}, "confirm": false}`, 400, "confirm")
	r.refuses(call, `{"filter": {"state": "completed"}, "confirm": true}`, 400, "filter.state")
	r.refuses(call, `{"filter": {"typo": "q"}, "confirm": true}`, 400, "filter.typo")
	r.refuses(call, `{"filter": {}, "ids": [], "confirm": true}`, 400, "ids")
	r.refuses(call, `{"ids": [], "confirm": true}`, 400, "ids")
	r.refuses(call, `{"filter": {"tenant": "globex", "tenant_id": "acme"}, "confirm": true}`, 400, "filter.tenant")
	r.as("acme").knowsNo("tenant", call, `{"filter": {"tenant_id": "globex"}, "confirm": true}`)
	r.as("acme").knowsNo("tenant", call, `{"filter": {"tenant": "globex"}, "confirm": true}`)
	r.as("acme").gives(call, `{"filter": {"queue": "q"}, "confirm": true, "reason": "by mistake"}`, 200,
		`{"action": "cancel", "matched": 2, "succeeded": 2, "failed": 0, "errors": [], "next_cursor": null}`)
	r.gives("GET /admin/audit?action=cancelled", "", 200, `{"items": [{"tenant_id": "acme", "new": {"jobs": 2}, "reason": "by mistake"}]}`)
	ids := pgtest.List[string](r, r.db.Pool, "select id::text from ojs.job order by state, id")
	body := fmt.Sprintf(`{"ids": ["%s"], "confirm": true}`, strings.Join(ids, `", "`))
	r.gives(call, body, 200, `{"matched": 6, "succeeded": 4, "failed": 2, "errors": [{"code": "conflict"}, {"code": "conflict"}]}`)
	r.gives(call, `{"confirm": true}`, 200, `{"matched": 0, "succeeded": 0}`)

	for _, call := range []string{"POST /admin/jobs/bulk/delete", "DELETE /admin/queues/q/jobs"} {
		r.refuses(call, `{"filter": {"state": "completed"}, "confirm": true}`, 422, "action")
	}
}

func TestJobsAreRetriedByIDs(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const call = "POST /admin/jobs/bulk/retry"
	r.sql(`select ojs.enqueue('a', p_tenant => n, p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')
		from unnest('{acme,globex}'::text[]) n`)
	r.sql(`select ojs.nack(f.id, '{"code": "x", "message": "x"}', f.lease) from ojs.fetch('{default}', 2) f`)
	ids := strings.Join(pgtest.List[string](r, r.db.Pool, "select id::text from ojs.dead_letter order by tenant_id"), `", "`)
	r.refuses(call, `{"ids": ["`+ids+`"]}`, 400, "confirm")
	r.as("acme").gives(call, `{"ids": ["`+ids+`"], "confirm": true}`, 200,
		`{"action": "retry", "matched": 2, "succeeded": 1, "failed": 1, "errors": [{"code": "not_found"}]}`)
	r.gives(call, `{"ids": ["`+ids+`"], "confirm": true}`, 200, `{"matched": 2, "succeeded": 1, "errors": ["*"]}`)
}
