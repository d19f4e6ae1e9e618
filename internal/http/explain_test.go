package httpapi

import (
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	const unknown = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
	r.sql(`insert into ojs.jobs (tenant_id, type, queue, priority) select tenant, 'a', 'mail', i % 2
		from unnest('{acme,globex}'::text[]) tenant, generate_series(1, 6) i`)
	r.sql("select ojs.limit_concurrency(2, p_queue => 'mail')")
	r.sql("select ojs.pause('mail', p_by => 'mary', p_reason => 'rain'), ojs.resume('mail')")
	r.sql("select ojs.fetch('{mail}', 2, E'w\\x1b7')")
	r.sql("select ojs.pause('mail', p_by => 'mary', p_reason => 'rain')")
	id := pgtest.One[string](t, r.db.Pool,
		"select id::text from ojs.job where tenant_id = 'acme' and priority = 0 order by seq desc limit 1")
	call := "GET /admin/jobs/" + id + "/explain"
	const numbers = `"id": "*", "tenant_id": "acme", "queue": "mail", "state": "available", "priority": 0, "effective_priority": 0,
		"tenant_ahead": 2, "higher_ahead": 4, "certainty": "exact"`
	r.gives(call, "", 200, `{`+numbers+`, "held_by": [
		{"cause": "paused", "scope": "queue", "since": "*", "by": "mary", "because": "rain", "text": "*"},
		{"cause": "limit", "scope": "queue", "max_concurrency": 2, "active": 2, "held_by": [{"worker_id": "w\u001b7"}, {"queue": "mail"}]},
		{"cause": "priority", "jobs": 4, "text": "Before it in queue mail: 4 jobs of a higher priority."},
		{"cause": "turns", "text": "*"},
		{"cause": "line", "jobs": 2, "text": "Before it in line: 2 jobs of its own tenant."}]}`)
	r.as("acme").gives(call, "", 200, `{`+numbers+`}`)
	if _, answer := r.as("acme").send(call, ""); strings.Contains(answer, "globex") || strings.Contains(answer, "mary") ||
		strings.Contains(answer, "w\\u001b7") {
		t.Errorf("a tenant is told %s", answer)
	}
	r.as("globex").gives(call, "", 404, `{"error": {"code": "not_found"}}`)
	r.gives("GET /admin/jobs/"+unknown+"/explain", "", 404, `{"error": {"code": "not_found"}}`)
	r.gives("GET /admin/jobs/nothing/explain", "", 404, `{"error": {"code": "not_found"}}`)

	// In a terminal: sentences, and nothing of a worker's that steers it.
	var text, asJSON strings.Builder
	if err := admin.Explain(t.Context(), &text, sqlcgen.New(r.db.Pool), id, nil, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Job " + id + " of tenant acme, in queue mail with priority 0, is available and has waited for ",
		"  - Queue mail is paused since ", " by mary: rain.\n",
		"  - Queue mail is at its limit: 2 of at most 2 jobs are active.\n", "at most ten:\n\nid", `"w\x1b7"`,
		"\nJobs of queue mail that are handed out before it: ",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, &text)
		}
	}
	if err := admin.Explain(t.Context(), &asJSON, sqlcgen.New(r.db.Pool), id, nil, true); err != nil ||
		!strings.Contains(asJSON.String(), `"cause": "paused"`) {
		t.Errorf("%v: %s", err, &asJSON)
	}
}
