package httpapi

import (
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// The names that Go asks about where there is no job yet are those that SQL asks about.
func TestEnvelopeNamesAreThoseOfSQL(t *testing.T) {
	t.Parallel()
	known := pgtest.One[[]string](t, start(t).pool, `select (regexp_match(p.prosrc, 'p_extra, '''', ''({[^}]*})'''))[1]::text[]
		from pg_proc p where p.proname = '_misspelt' and p.pronamespace = 'ojs'::regnamespace`)
	slices.Sort(known)
	if own := slices.Sorted(slices.Values(envelopeNames)); len(known) == 0 || !slices.Equal(own, known) {
		t.Errorf("Go knows %q\nSQL knows %q", own, known)
	}
}

// A field that is nearly right is refused with the name that was probably meant; what resembles nothing stays.
func TestMisspeltFields(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"a","args":[]}`)
	for _, c := range []struct{ path, body, field, meant string }{
		{"jobs", `{"type":"a","args":[],"priorty":5}`, "priorty", "priority"},
		{"jobs", `{"type":"a","args":[],"scheduledAt":"+PT1H"}`, "scheduledAt", "scheduled_at"},
		{"jobs", `{"type":"a","args":[],"delay":5}`, "delay", "scheduled_at"},
		{"jobs", `{"type":"a","args":[],"options":{"max_attempt":5}}`, "options.max_attempt", "max_attempts"},
		{"jobs", `{"type":"a","args":[],"options":{"retry":{"max_atempts":5}}}`, "options.retry.max_atempts", "max_attempts"},
		{"jobs", `{"type":"a","args":[],"tenant":"acme"}`, "tenant", "meta.tenant_id, or the header X-OJS-Tenant,"},
		{"jobs", `{"type":"a","args":[],"options":{"tenant_id":"acme"}}`, "options.tenant_id", "meta.tenant_id"},
		{"jobs/batch", `{"jobs":[{"type":"a","args":[],"quue":"q"}]}`, "jobs[0].quue", "queue"},
		{"jobs", `{"type":"a","args":[],"lease_token":"x"}`, "lease_token", "lease"},
		{"jobs", `{"type":"a","args":[],"options":{"lease_token":"x"}}`, "options.lease_token", "lease"},
		{"jobs/batch", `{"jobs":[{"type":"a","args":[],"lease_token":"x"}]}`, "jobs[0].lease_token", "lease"},
		{"cron", `{"name":"c","cron":"@daily","type":"a","options":{"lease_token":"x"}}`, "options.lease_token", "lease"},
		{"workers/heartbeat", `{"worker_id":"w","lease_token":"x"}`, "lease_token", "lease"},
		{"workers/fetch", `{"queues":["default"],"lease_token":"x"}`, "lease_token", "lease"},
		{"cron", `{"name":"c","cron":"@daily","type":"a","lease_token":"x"}`, "lease_token", "lease"},
		{"workers/nack", `{"job_id":"` + id + `","error":{"message":"m"},"lease_token":"x"}`, "lease_token", "lease"},
		{"workers/fetch", `{"queues":["default"],"workerid":"w"}`, "workerid", "worker_id"},
		{"workers/fetch", `{"queues":["default"],"tenant":"acme"}`, "tenant", "X-OJS-Tenant"},
		{"workers/ack", `{"job_id":"` + id + `","lease_token":"x"}`, "lease_token", "lease"},
		{"workers/ack", `{"job_id":"` + id + `","worker":"w"}`, "worker", "worker_id"},
		{"workers/ack", `{"job_id":"` + id + `","reslut":1}`, "reslut", "result"},
		{"workers/nack", `{"job_id":"` + id + `","error":{"message":"m"},"re_queue":true}`, "re_queue", "requeue"},
		{"workers/nack", `{"job_id":"` + id + `","error":{"typ":"x","message":"m","retriable":false}}`, "error.typ", "type"},
		{"workers/nack", `{"job_id":"` + id + `","error":{"message":"m","retriable":false}}`, "error.retriable", "retryable"},
		{"workers/nack", `{"job_id":"` + id + `","error":{"msg":"m"}}`, "error.msg", "message"},
		{"workers/heartbeat", `{"worker_id":"w","activeJobs":[]}`, "activeJobs", "active_jobs"},
		{"workers/heartbeat", `{"worker_id":"w","jobs":["` + id + `"]}`, "jobs", "active_jobs"},
		{"workers/register", `{"worker_id":"w","queue":["x"]}`, "queue", "queues"},
		{"workers/register", `{"worker":{"id":"w","concurency":3}}`, "worker.concurency", "concurrency"},
		{"workers/register", `{"worker_id":"w","tenant":"acme"}`, "tenant", "X-OJS-Tenant"},
		{"jobs/results", `{"ids":[],"tenant":"acme"}`, "tenant", "X-OJS-Tenant"},
		{"cron", `{"name":"c","cron":"@daily","type":"a","timezon":"UTC"}`, "timezon", "timezone"},
		{"cron", `{"name":"c","cron":"@daily","type":"a","tenant_id":"acme"}`, "tenant_id", "meta.tenant_id, or the header X-OJS-Tenant,"},
		{"cron", `{"name":"c","cron":"@daily","type":"a","tenant":"acme"}`, "tenant", "meta.tenant_id, or the header X-OJS-Tenant,"},
		{
			"crons", `{"name":"c","cron":"@daily","job_template":{"type":"a"},"tenant_id":"acme"}`, "tenant_id",
			"meta.tenant_id, or the header X-OJS-Tenant,",
		},
		{
			"crons", `{"name":"c","cron":"@daily","job_template":{"type":"a","tenant_id":"acme"}}`, "job_template.tenant_id",
			"meta.tenant_id, or the header X-OJS-Tenant,",
		},
		{"jobs/batch", `{"jobs":[{"type":"a","args":[]}],"atomicty":"partial"}`, "atomicty", "atomicity"},
		{"workers/ack", `{"jobs":[],"workerId":"w"}`, "workerId", "worker_id"},

		{"workers/fetch", `{"queue":"x"}`, "queue", "queues"},
		{"jobs", `{"arg":[]}`, "arg", "args"},
		{"jobs", `{"name":"a","args":[]}`, "name", "type"},
		{"jobs", `{"type":"a","payload":[]}`, "payload", "args"},
		{"jobs/batch", `{"job":[]}`, "job", "jobs"},
		{"workers/ack", `{"id":"` + id + `"}`, "id", "job_id"},
		{"cron", `{"name":"c","schedule":"@daily","type":"a"}`, "schedule", "cron"},
		{"workers/heartbeat", `{"worker":"w"}`, "worker", "worker_id"},
		{"workers/register", `{"id":"w"}`, "id", "worker_id"},
		{"workers/deregister", `{"worker":"w"}`, "worker", "worker_id"},
		{"jobs/results", `{"job_ids":[]}`, "job_ids", "ids"},
	} {
		example := ""
		if c.field == "delay" {
			example = `, such as "+PT5M"`
		}
		for _, headers := range [][]string{nil, {"X-OJS-Tenant: acme"}} {
			a.do("POST", "/ojs/v1/"+c.path, c.body, headers...).want(400).is(map[string]any{
				"error.code": "invalid_request", "error.details.field": c.field,
				"error.message": c.field + " is not known; " + c.meant + " is probably meant" + example,
			})
		}
	}
	const own = `{"type":"a","args":[],"x_priorty":1,"ext_team":"b","options":{"region":"eu"}}`
	a.do("POST", "/ojs/v1/jobs", own).want(201).is(map[string]any{
		"job.x_priorty": 1, "job.ext_team": "b", "job.options.region": "eu",
	})
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["none"],"ext_runtime":"go"}`).want(200)
	a.do("POST", "/ojs/v1/workers/register", `{"worker_id":"w","x_queue":["x"]}`).want(200)
	a.do("POST", "/ojs/v1/cron", `{"name":"c","cron":"@daily","type":"a","x_timezon":1,"x_team":"b"}`).want(201)
	a.fetchOne("default")
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"message":"m","code":"c","type":"t","retryable":true,
		"details":{"msg":1},"detail":"d","backtrace":[],"traceback":"","request_id":"r"}}`).want(200)
}

// Bodies of operators, of which some refuse every field that they do not have, say what was probably meant, too.
func TestMisspeltFieldsOfOperators(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, c := range []struct{ call, body, field, meant string }{
		{"POST admin/workers/w/directive", `{"directiv":"quiet"}`, "directiv", "directive"},
		{"DELETE admin/pools/p", `{"confrim":true}`, "confrim", "confirm"},
		{"POST admin/tenants/acme/pause", `{"resaon":"x"}`, "resaon", "reason"},
		{"PUT admin/tenants/acme", `{"wieght":2}`, "wieght", "weight"},
		{"PUT admin/tenants/acme", `{"fairness":{"wieght":2}}`, "fairness.wieght", "weight"},
		{"PUT admin/tenants/acme/tier", `{"teir":"gold"}`, "teir", "tier"},
		{"PUT admin/tenants/acme/limits", `{"max_queue_dept":2}`, "max_queue_dept", "max_queue_depth"},
		{"PUT admin/queues/q/limits", `{"max_concurency":2}`, "max_concurency", "max_concurrency"},
		{"POST admin/api-keys", `{"scope":["read"]}`, "scope", "scopes"},
		{"POST queues", `{"nmae":"q"}`, "nmae", "name"},
		{"POST queues", `{"name":"q","config":{"max_sze":5}}`, "config.max_sze", "max_size"},
		{"POST queues", `{"name":"q","confg":{"max_size":5}}`, "confg", "config"},
		{"PUT queues/q/config", `{"default_timout":5}`, "default_timout", "default_timeout"},
		{"PUT admin/queues/q/config", `{"config":{"tenant_fairness":{"unti":"cost"}}}`, "config.tenant_fairness.unti", "unit"},
		{"PATCH queues/q/config", `{"confg":{"max_size":5}}`, "confg", "config"},
		{"PUT admin/pools/p", `{"queus":["a"]}`, "queus", "queues"},
		{"PUT admin/pools/p", `{"pool":{"queus":["a"]}}`, "queus", "queues"},
		{"POST admin/jobs/bulk/cancel", `{"confrim":true}`, "confrim", "confirm"},
		{"POST admin/erase", `{"filter":{"tennant":"a"},"confirm":true}`, "filter.tennant", "tenant"},
		{"PATCH cron/c", `{"timezon":"UTC"}`, "timezon", "timezone"},
	} {
		method, path, _ := strings.Cut(c.call, " ")
		r := a.do(method, "/ojs/v1/"+path, c.body)
		if r.status != 400 || r.get("error.details.field") != c.field || r.get("error.details.meant") != c.meant {
			t.Errorf("%s %s: %d %s", c.call, c.body, r.status, r.body)
		}
	}
}

// What an error advises fits what it is about.
func TestHintsFit(t *testing.T) {
	t.Parallel()
	a := start(t)
	for path, hint := range map[string]string{
		"admin/workers/w": "Check the id; a worker that has not been heard of for long is forgotten.",
		"admin/tiers/t":   "Check the name; the list of tiers shows those that there are.",
		"admin/tenants/t": "Check the id; the list of tenants shows those that there are.",
		"admin/pools/p":   "Check the name; the list of pools shows those that there are.",
		"cron/c":          "Check the name, and whose cron job it is; the list of cron jobs shows those that there are.",
		"cron/C":          "Check the name, and whose cron job it is; the list of cron jobs shows those that there are.",
		"jobs/" + someID:  "Check the id; finished jobs are removed after their retention.",
	} {
		a.do("GET", "/ojs/v1/"+path, "").want(404).is(map[string]any{"error.code": "not_found", "error.hint": hint})
	}
	g := guarded(t)
	g.do("GET", "/ojs/v1/queues", "").want(401).is(map[string]any{
		"error.code": "unauthorized", "error.hint": "Send an API key or a token as Authorization: Bearer, or an API key as X-API-Key.",
	})
	g.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, g.key("acme", "{work}")).want(403).is(map[string]any{
		"error.code": "forbidden", "error.details.scope": "produce", "error.hint": "Use a credential with the scope produce.",
	})
	some := g.key("acme", "{produce,read}", ", p_queues => '{mail}'")
	g.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, some).want(403).is(map[string]any{
		"error.code": "forbidden", "error.details.queue": "default", "error.hint": "Use a credential that is for this queue, or for all.",
	})
	g.do("GET", "/ojs/v1/cron", "", some).want(403).is(map[string]any{
		"error.code": "forbidden", "error.hint": "Use a credential that is for all queues.",
	})
	g.do("GET", "/metrics", "", g.key("acme", "{admin}")).want(403).is(map[string]any{
		"error.code": "forbidden", "error.hint": "Use an operator's credential, which is no tenant's.",
	})
}

// A filter of the query that is passed over lets everything pass.
func TestMisspeltQueries(t *testing.T) {
	t.Parallel()
	a := start(t)
	for query, meant := range map[string]string{
		"jobs?stat=available": "state", "admin/jobs?quue=q": "queue", "jobs?tenantId=acme": "tenant_id",
		"dead-letter?errorType=x": "error_type",
		"events?typs=x":           "types", "cron?enbled=true": "enabled", "queues?limt=5": "limit", "admin/audit?actr=x": "actor",
		"jobs/" + someID + "/result?timout=5": "timeout", "admin/tenants?ofset=5": "offset",
	} {
		path, name, _ := strings.Cut(strings.Split(query, "=")[0], "?")
		a.do("GET", "/ojs/v1/"+query, "").want(400).is(map[string]any{
			"error.code": "invalid_request", "error.details.field": name, "error.details.meant": meant,
			"error.message": name + " is not known; " + meant + " is probably meant",
		})
		if !strings.HasSuffix(path, "result") {
			a.do("GET", "/ojs/v1/"+path+"?x_stat=y", "").want(200)
			a.do("GET", "/ojs/v1/"+path+"?color=red", "").want(422).is(map[string]any{"error.details.field": "color"})
		}
	}
	a.do("DELETE", "/ojs/v1/admin/pools/p?confrim=true", "").want(400).is(map[string]any{"error.details.meant": "confirm"})
}

// Lists are of one tenant if the query says so, under either name; to a tenant others are unknown.
func TestListsOfTheTenantInTheQuery(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, tenant := range []string{"acme", "globex"} {
		header := "X-OJS-Tenant: " + tenant
		a.bury("mail", "Timeout", header)
		a.push(`{"type":"a","args":[],"options":{"queue":"only-`+tenant+`"}}`, header)
		a.do("POST", "/ojs/v1/cron", `{"name":"c-`+tenant+`","cron":"@daily","type":"a"}`, header).want(201)
		a.do("POST", "/ojs/v1/workers/heartbeat", `{"worker_id":"w-`+tenant+`"}`, header).want(200)
	}
	one := map[string]map[string]any{
		"dead-letter": {"total": 1, "jobs.0.meta.tenant_id": "acme"}, "admin/dead-letter": {"total": 1},
		"dead-letter/stats": {"total": 1}, "events?types=job.enqueued": {}, "cron": {"pagination.total": 1, "crons.0.name": "c-acme"},
		"workers": {"pagination.total": 1, "workers.0.id": "w-acme"}, "queues": {"pagination.total": 2, "queues.1.name": "only-acme"},
		"queues/only-globex": {"queue.depth": 0}, "admin/stats": {"jobs.discarded": 1, "workers": 1},
		"admin/tenants": {"pagination.total": 1},
		"jobs":          {}, "admin/scheduling/tenants": {"pagination.total": 1},
	}
	for path, want := range one {
		for _, name := range []string{"tenant", "tenant_id"} {
			asked := "/ojs/v1/" + path + map[bool]string{false: "?", true: "&"}[strings.Contains(path, "?")] + name + "="
			r := a.do("GET", asked+"acme", "").want(200).is(want)
			if strings.Contains(string(r.body), "globex") != strings.Contains(path, "globex") {
				t.Errorf("%s: %s", asked, r.body)
			}
			a.do("GET", asked+"acme", "", "X-OJS-Tenant: acme").want(200).is(want)
			a.do("GET", asked+"acme", "", "X-OJS-Tenant: globex").want(404)
			a.do("GET", asked+"a%20b", "").want(400)
		}
	}
	for _, call := range []string{"dead-letter/retry", "admin/dead-letter/retry", "dead-letter/purge"} {
		a.do("POST", "/ojs/v1/"+call, `{"filter":{"tenant_id":"acme"},"confirm":true}`, "X-OJS-Tenant: globex").want(404)
		a.do("POST", "/ojs/v1/"+call, `{"tenant_id":"acme","tenant":"globex","confirm":true}`).want(400)
	}
	a.do("POST", "/ojs/v1/dead-letter/purge", `{"filter":{"tenant_id":"acme"},"confirm":true}`).want(200).is(map[string]any{"deleted": 1})
	a.do("GET", "/ojs/v1/dead-letter", "").want(200).is(map[string]any{"total": 1, "jobs.0.meta.tenant_id": "globex"})
	a.do("POST", "/ojs/v1/dead-letter/retry", `{"tenant":"globex","confirm":true}`).want(200).is(map[string]any{"retried": 1})
	a.do("POST", "/ojs/v1/admin/jobs/bulk/retry", `{"filter":{"tenant_id":"acme"},"confirm":true}`).want(200).
		is(map[string]any{"succeeded": 0})
}

// What is said of a queue is one truth, also of one that is only paused.
func TestAPausedQueueIsPausedEverywhere(t *testing.T) {
	t.Parallel()
	a := start(t)
	paused := a.do("POST", "/ojs/v1/queues/mial/pause", "").want(200).is(map[string]any{"created": true, "state": "paused"})
	a.do("POST", "/ojs/v1/queues/mial/pause", "").want(200).absent("created")
	for _, header := range [][]string{nil, {"X-OJS-Tenant: acme"}} {
		a.do("GET", "/ojs/v1/queues/mial", "", header...).want(200).is(map[string]any{
			"state": "paused", "paused": true, "queue.state": "paused", "queue.status": "paused", "stats.paused": true,
		})
		a.do("GET", "/ojs/v1/queues/mial/config", "", header...).want(200).is(map[string]any{"state": "paused"})
		a.do("GET", "/ojs/v1/admin/queues/mial/stats", "", header...).want(200).is(map[string]any{"status": "paused"})
	}
	if one, at := a.do("GET", "/ojs/v1/queues/mial", ""), paused.get("paused_at"); one.get("queue.created_at") == nil || at == nil {
		t.Errorf("paused at %v, the queue is said to be of %v", at, one.get("queue.created_at"))
	}
	a.do("POST", "/ojs/v1/queues/mial/resume", "").want(200).absent("created").is(map[string]any{"state": "active"})
	a.do("GET", "/ojs/v1/queues/mial", "").want(200).is(map[string]any{"state": "active", "paused": false})
}

// A single job is not told of its place among those of other clients.
func TestASuspendedTenantsSingleJob(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	pgtest.Exec(t, a.db.Operator(), "select ojs.suspend_tenant('acme', 'unpaid')")
	key := a.key("acme", "{produce}")
	a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, key).want(403).is(map[string]any{
		"error.code": "TENANT_SUSPENDED", "error.message": "tenant acme is suspended", "error.details.field": "Authorization",
	}).absent("error.details.index")
	a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"a","args":[]}]}`, key).want(403).is(map[string]any{
		"error.code": "TENANT_SUSPENDED", "error.details.index": 0,
	})
}
