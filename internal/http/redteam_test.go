package httpapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// The red team over HTTP: one tenant, with every scope that a tenant can have, attacks another on every route there is. Each attack is sent
// to two servers that differ in one thing: on one of them the other tenant has jobs, workers, keys and the rest, on the other nothing.
// Whatever the answers differ in is a leak: a row, a name or a figure.

// Names of the victim: some that the intruder has guessed, and some that it has not.
const (
	guessed = "c4n4ry"
	secret  = "s3cr3t"
)

const (
	victim   = "vault-" + guessed
	intruder = "intruder"
)

// loot holds the victim's jobs by their states. The intruder has guessed their ids.
var loot = map[string]string{
	"done": "019539a4-b68c-7def-8000-00000000000a", "dead": "019539a4-b68c-7def-8000-00000000000b",
	"active": "019539a4-b68c-7def-8000-00000000000c", "waiting": "019539a4-b68c-7def-8000-00000000000d",
	"scheduled": "019539a4-b68c-7def-8000-00000000000e",
}

// Placeholders in attacks for values that exist only if the victim has rows.
const (
	stolenKey   = "019539a4-b68c-7def-8000-0000000000f1"
	stolenLease = "019539a4-b68c-7def-8000-0000000000f2"
)

// battlefield is a server with the credentials of the intruder and, in one of two copies, with a victim.
type battlefield struct {
	*api
	credentials []string
	stolen      *strings.Replacer
	returned    *strings.Replacer
}

func newBattlefield(t *testing.T, at time.Time, withVictim bool) *battlefield {
	t.Helper()
	a := start(t, func(c *Config) { c.APIKeys, c.Tokens = true, tokens(t) })
	a.db.SetNow(at) // or the answers would differ in the minutes that they are about
	b := &battlefield{api: a, stolen: strings.NewReplacer(), returned: strings.NewReplacer(), credentials: []string{
		a.key(intruder, "{produce,work,read,admin}"), token(t, intruder, "produce work read admin", nil),
	}}
	for _, sql := range []string{
		`select ojs.enqueue('own.type', p_queue => 'own', p_tenant => 'intruder')`,
		`select ojs.put_cron('mine', '@yearly', 'own.type', p_queue => 'own', p_tenant => 'intruder')`,
		`select ojs.configure_tenant('intruder', 2)`,
		`select ojs.register_worker('mine', p_tenant => 'intruder')`,
	} {
		pgtest.Exec(t, a.pool, sql)
	}
	if withVictim {
		b.furnish()
	}
	pgtest.Exec(t, a.pool, `select ojs.tick()`)
	return b
}

// furnish makes rows of every kind for the victim.
func (b *battlefield) furnish() {
	b.t.Helper()
	run := func(sql string, args ...any) {
		b.t.Helper()
		pgtest.Exec(b.t, b.pool, sql, args...)
	}
	enqueue := func(what, more string) {
		b.t.Helper()
		run(`select ojs.enqueue('type.c4n4ry', '[{"secret": "args-s3cr3t"}]', p_queue => 'queue-c4n4ry', p_tenant => $1, p_id => $2,
			p_meta => '{"note": "meta-s3cr3t"}', p_tags => '{tag-s3cr3t}'`+more+`)`, victim, loot[what])
	}
	take := func(what string) {
		b.t.Helper()
		enqueue(what, `, p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'`)
		run(`select ojs.fetch('{queue-c4n4ry}', 1, 'worker-c4n4ry', p_tenant => $1)`, victim)
	}
	run(`select ojs.register_worker('worker-c4n4ry', p_tenant => $1, p_hostname => 'host-s3cr3t', p_queues => '{queue-c4n4ry}')`, victim)
	take("done")
	run(`select ojs.ack($1, p_result => '{"result": "result-s3cr3t"}')`, loot["done"])
	take("dead")
	run(`select ojs.nack($1, '{"code": "code-s3cr3t", "type": "error-s3cr3t", "message": "message-s3cr3t"}')`, loot["dead"])
	take("active")
	enqueue("waiting", "")
	enqueue("scheduled", ", p_scheduled_at => '2099-01-01Z'")
	run(`select ojs.enqueue_once('key-c4n4ry', '[{"type": "once.c4n4ry", "args": []}]', $1)`, victim)
	run(`select ojs.put_cron('cron-c4n4ry', '@yearly', 'type.c4n4ry', p_queue => 'queue-c4n4ry', p_tenant => $1)`, victim)
	run(`select ojs.trigger_cron('cron-c4n4ry', $1)`, victim)
	run(`select ojs.configure_tenant($1, 7)`, victim)
	run(`select ojs.limit_concurrency(17, $1, p_reason => 'limit-s3cr3t')`, victim)
	run(`select ojs.pause('queue-c4n4ry', $1, 'pause-s3cr3t')`, victim)
	key := pgtest.One[string](b.t, b.pool, `select id::text from ojs.create_api_key($1, '{produce}', 'name-s3cr3t')`, victim)
	lease := pgtest.One[string](b.t, b.pool, `select lease::text from ojs.job where id = $1`, loot["active"])
	b.stolen, b.returned = strings.NewReplacer(stolenKey, key, stolenLease, lease), strings.NewReplacer(key, stolenKey, lease, stolenLease)
}

// possessions returns the victim's rows, as text.
func (b *battlefield) possessions() string {
	b.t.Helper()
	all := ""
	for _, table := range []string{
		"job", "dead_letter", "idempotency", "cron", "cron_run", "worker", "worker_beat", "lease", "tenant", "rule", "api_key", "audit",
	} {
		rows := pgtest.One[string](b.t, b.pool, `select coalesce(string_agg(t::text, E'\n' order by t::text), '') from ojs.`+table+` t
			where to_jsonb(t) ->> 'tenant_id' = $1 or to_jsonb(t) -> 'tenants' ? $1`, victim)
		if all += table + ":\n" + rows + "\n"; rows == "" {
			b.t.Errorf("the victim has nothing in %s", table)
		}
	}
	return all
}

// attack is a request of the intruder.
type attack struct {
	method, path, body string
	headers            []string
	want               int // 0: whatever is answered where there is no victim
}

func (x attack) String() string {
	return strings.TrimSpace(fmt.Sprintln(x.method, x.path, x.body, x.headers))
}

// attacks returns the attacks on every route, and then those of cunning.
func (b *battlefield) attacks() []attack {
	var all []attack
	paths := b.paths()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		methods := paths[path]
		slices.Sort(methods)
		for _, method := range methods {
			if b.route(method, path).Scope != scopeOpen {
				all = append(all, onRoute(method, path)...)
			}
		}
	}
	all = append(all, cunning()...)
	// And once more what can be read, of what the intruder has changed by all this.
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if slices.Contains(paths[path], http.MethodGet) && b.route(http.MethodGet, path).Scope == scopeRead &&
			!strings.Contains(path, ":") {
			all = append(all, attack{method: http.MethodGet, path: path}, attack{method: http.MethodGet, path: path + "?limit=1"})
		}
	}
	return all
}

// targets returns the names of the victim that a path may hold.
func targets(path string) []string {
	switch {
	case !strings.Contains(path, "/:"):
		return []string{""}
	case strings.Contains(path, "/tenants/"):
		return []string{victim}
	case strings.Contains(path, "/api-keys/"):
		return []string{stolenKey}
	case strings.Contains(path, "/workers/"):
		return []string{"worker-c4n4ry"}
	case strings.Contains(path, "/cron"):
		return []string{"cron-c4n4ry"}
	case strings.Contains(path, "/pools/"):
		return []string{"pool-c4n4ry"}
	case strings.Contains(path, "/queues/"):
		return []string{"queue-c4n4ry"}
	}
	return []string{loot["done"], loot["dead"], loot["active"], loot["waiting"], loot["scheduled"]}
}

// onRoute returns attacks on a route, with names of the victim in its path, body, query and headers.
func onRoute(method, path string) (all []attack) {
	bodies, known := someBody[method+" "+path]
	switch {
	case known:
	case method == http.MethodGet || method == http.MethodDelete:
		bodies = []string{""}
	default:
		if bodies, known = someBody[path]; !known {
			bodies = []string{"{}"}
		}
	}
	for i, target := range targets(path) {
		call := strings.NewReplacer(":id", target, ":name", target).Replace(path)
		id := target
		if !jsonbody.IsUUID(target) {
			id = loot["active"]
		}
		mine := strings.NewReplacer(someID, id, `"default"`, `"queue-c4n4ry"`, `"made"`, `"queue-c4n4ry"`, `:"w"`, `:"worker-c4n4ry"`)
		for _, body := range bodies {
			all = append(all, attack{method: method, path: call, body: mine.Replace(body)})
			if i > 0 {
				continue
			}
			if rest, object := strings.CutPrefix(body, "{"); object {
				comma := ","
				if rest == "}" {
					comma = ""
				}
				for _, field := range []string{`"tenant_id":%q`, `"tenant":%q`, `"meta":{"tenant_id":%q}`} {
					forged := "{" + fmt.Sprintf(field, victim) + comma + mine.Replace(rest)
					all = append(all, attack{method: method, path: call, body: forged})
				}
			}
		}
		if i > 0 {
			continue
		}
		body := mine.Replace(bodies[0])
		denied, malformed := 403, 400
		if path == "/metrics" {
			malformed = 403
		}
		for _, h := range []struct {
			headers []string
			want    int
		}{
			{[]string{"X-OJS-Tenant: " + victim}, denied},
			{[]string{"x-ojs-tenant-id: " + victim}, denied},
			{[]string{"X-OJS-TENANT: " + intruder, "x-ojs-tenant: " + victim}, malformed},
			{[]string{"X-OJS-Tenant-ID: " + victim, "X-OJS-Tenant: " + intruder}, malformed},
			{[]string{"X-OJS-Tenant: " + intruder + "," + victim}, malformed},
		} {
			all = append(all, attack{method, call, body, h.headers, h.want})
		}
		if method == http.MethodGet {
			for _, query := range []string{
				"tenant=" + victim, "tenant_id=" + victim + "&queue=queue-c4n4ry&queues=queue-c4n4ry",
				"type=type.c4n4ry&types=job.completed",
				"cursor=" + loot["waiting"], "cursor=1", "limit=1000&offset=1000", "per_page=1&page=2", "actor=key",
			} {
				all = append(all, attack{method: method, path: call + "?" + query})
			}
		}
	}
	return all
}

// cunning returns attacks that are written by hand.
func cunning() []attack {
	const jobs, batch = v1 + "/jobs", v1 + "/jobs/batch"
	named := `"meta":{"tenant_id":"` + victim + `"}`
	post := func(path, body string, headers ...string) attack { return attack{"POST", path, body, headers, 0} }
	return []attack{
		// Ids and keys that the victim has taken must be as free as any.
		post(jobs, `{"type":"a","args":[],"id":"`+loot["waiting"]+`"}`),
		post(jobs, `{"type":"a","args":[],"id":"`+loot["dead"]+`"}`),
		post(batch, `{"jobs":[{"type":"a","args":[],"id":"`+loot["done"]+`"}]}`),
		post(jobs, `{"type":"once.c4n4ry","args":[]}`, "Idempotency-Key: key-c4n4ry"),
		post(batch, `{"jobs":[{"type":"once.c4n4ry","args":[]}],"idempotency_key":"key-c4n4ry"}`),
		post(batch, `[{"type":"once.c4n4ry","args":[]}]`, "Idempotency-Key: key-c4n4ry"),
		// One foreign element among others.
		{"POST", batch, `{"jobs":[{"type":"a","args":[]},{"type":"a","args":[],` + named + `}]}`, nil, 403},
		{"POST", jobs, `{"type":"a","args":[],"meta":{"tenant_id":"` + victim + `","tenant_id":"intruder"}}`, nil, 400},
		{"POST", jobs, `{"type":"a","args":[],"meta":{"tenant_id":["` + victim + `"]}}`, nil, 400},
		post(jobs, `{"type":"a","args":[],"tenant_id":"`+victim+`"}`),
		post(jobs, `{"type":"a","args":[],"meta":{"Tenant_ID":"`+victim+`"}}`),
		{"POST", v1 + "/cron", `{"name":"c","cron":"@daily","type":"a","job_template":{"type":"a",` + named + `}}`, nil, 0},
		{"PUT", v1 + "/cron/cron-c4n4ry", `{"cron":"@daily","type":"a",` + named + `}`, nil, 403},
		post(v1+"/jobs/results", `{"ids":["`+strings.Join([]string{loot["done"], loot["dead"], loot["active"]}, `","`)+`"]}`),
		// Attempts of others.
		post(v1+"/workers/ack", `{"job_id":"`+loot["active"]+`","lease":"`+stolenLease+`","worker_id":"worker-c4n4ry"}`),
		post(v1+"/workers/nack", `{"job_id":"`+loot["active"]+`","lease":"`+stolenLease+`","error":{"message":"x"}}`),
		post(v1+"/workers/nack", `{"job_id":"`+loot["active"]+`","requeue":true,"error":{"message":"x"}}`),
		post(v1+"/workers/ack", `{"jobs":[{"job_id":"`+loot["active"]+`","lease":"`+stolenLease+`"},{"job_id":"`+loot["done"]+`"}]}`),
		post(v1+"/workers/heartbeat", `{"worker_id":"worker-c4n4ry","active_jobs":["`+loot["active"]+`"],"visibility_timeout_ms":1000}`),
		post(v1+"/workers/heartbeat", `{"worker_id":"worker-c4n4ry","active_jobs":[],"shutdown":true}`),
		post(v1+"/workers/fetch", `{"queues":["queue-c4n4ry"],"worker_id":"worker-c4n4ry","count":1000}`),
		post(v1+"/workers/fetch", `{"queues":["queue-c4n4ry","own"],"worker_id":"x","count":1000,"tenant_id":"`+victim+`"}`),
		post(v1+"/workers/fetch", `{"queues":["queue-c4n4ry"],"worker_id":"x","pool":"pool-c4n4ry"}`),
		post(v1+"/workers/deregister", `{"worker_id":"worker-c4n4ry"}`),
		post(v1+"/workers/register", `{"worker":{"id":"worker-c4n4ry","hostname":"h"}}`),
		// Many at once.
		post(v1+"/admin/erase", `{"filter":{"tenant":"`+victim+`"},"confirm":true,"reason":"r"}`),
		post(v1+"/admin/erase", `{"filter":{"queue":"queue-c4n4ry"},"confirm":true,"reason":"r"}`),
		post(v1+"/admin/erase", `{"ids":["`+loot["waiting"]+`","`+loot["done"]+`"],"confirm":true,"reason":"r"}`),
		post(v1+"/admin/jobs/bulk/cancel", `{"filter":{"tenant":"`+victim+`"},"confirm":true}`),
		post(v1+"/admin/jobs/bulk/cancel", `{"filter":{"queue":"queue-c4n4ry"},"confirm":true}`),
		post(v1+"/admin/jobs/bulk/cancel", `{"ids":["`+loot["waiting"]+`","`+loot["scheduled"]+`"],"confirm":true}`),
		post(v1+"/admin/jobs/bulk/cancel", `{"cursor":"`+loot["waiting"]+`","confirm":true}`),
		post(v1+"/admin/jobs/bulk/retry", `{"ids":["`+loot["dead"]+`"],"confirm":true}`),
		post(v1+"/dead-letter/retry", `{"filter":{"queue":"queue-c4n4ry"},"confirm":true}`),
		post(v1+"/dead-letter/purge", `{"error_type":"error","confirm":true}`),
		post(v1+"/dead-letter/"+loot["dead"]+"/retry", `{"override":{"meta":{"tenant_id":"intruder"}}}`),
		post(v1+"/admin/workers/directive", `{"directive":"terminate"}`),
		// What is told of one's own changes.
		post(v1+"/queues/own/pause", `{"reason":"why"}`),
		post(v1+"/queues/own/resume", ""),
		// Credentials of one's own making.
		{"POST", v1 + "/admin/api-keys", `{"tenant_id":"` + victim + `","scopes":["admin"]}`, nil, 403},
		{"POST", v1 + "/admin/api-keys/" + stolenKey + "/rotate", `{}`, nil, 403},
		{"DELETE", v1 + "/admin/api-keys/" + stolenKey, "", nil, 403},
		// Paths that lead elsewhere.
		{"GET", v1 + "/admin/tenants/intruder%2f..%2f" + victim, "", nil, 404},
		{"GET", v1 + "/admin/tenants/" + strings.ToUpper(victim), "", nil, 404},
		{"GET", v1 + "/admin/tenants/%76ault-c4n4ry/stats", "", nil, 404},
		{"GET", v1 + "/admin/tenants/intruder/jobs?tenant=" + victim, "", nil, 0},
		{"GET", v1 + "/admin/jobs?tenant=" + victim + "&tenant=intruder", "", nil, 400},
		{"GET", "/metrics", "", []string{"Accept: application/openmetrics-text"}, 403},
	}
}

// Parts of answers that may differ although none tells of the victim: new ids, times of the server, and
// sums over all tenants that docs/operate/security.md lists.
var (
	madeID    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	different = regexp.MustCompile(strings.Join([]string{
		`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, `ojs_[0-9a-f]{8}`,
		`"(deficit|ideal_share|effective_share)":[-0-9.]+`, `"n":\d+`, `"next_cursor":"\d+"`,
		`(_created|evt_ID|evt_019539a4-b68c-7def-8000-[0-9a-f]{12})_\d+(_\d+)?`,
	}, "|"))
)

// told returns an answer as text, without these parts.
func (b *battlefield) told(r *reply) string {
	h := r.header.Clone()
	for _, name := range []string{"Date", "X-Request-Id", "Content-Length"} {
		h.Del(name)
	}
	text := b.returned.Replace(fmt.Sprint(r.status, h, r.body))
	text = madeID.ReplaceAllStringFunc(text, func(id string) string {
		if strings.HasPrefix(id, "019539a4-b68c-7def-8000-0000000000") {
			return id
		}
		return "ID"
	})
	return different.ReplaceAllString(text, "...")
}

// strike sends an attack with the nth of the credentials.
func (b *battlefield) strike(n int, x attack) *reply {
	b.t.Helper()
	headers := append([]string{b.credentials[n%len(b.credentials)]}, x.headers...)
	r, err := b.send(context.Background(), x.method, b.stolen.Replace(x.path), b.stolen.Replace(x.body), headers...)
	if err != nil {
		b.t.Fatalf("%s: %v", x, err)
	}
	return r
}

func TestRedTeamOverHTTP(t *testing.T) {
	t.Parallel()
	now := time.Now()
	with, without := newBattlefield(t, now, true), newBattlefield(t, now, false)
	before := with.possessions()
	attacks := with.attacks()
	for n, x := range attacks {
		found, empty := with.strike(n, x), without.strike(n, x)
		answer, nothing := with.told(found), without.told(empty)
		if answer != nothing {
			t.Errorf("%s tells the intruder of the victim:\n%s\nwithout it:\n%s", x, answer, nothing)
		}
		if found.status >= 500 || x.want != 0 && found.status != x.want {
			t.Errorf("%s: %d %s, want %d", x, found.status, found.body, x.want)
		}
		if strings.Contains(strings.ToLower(answer), secret) {
			t.Errorf("%s has in its answer what is the victim's: %s", x, answer)
		}
	}
	if after := with.possessions(); after != before {
		t.Errorf("the victim has\n%s\nand had\n%s", after, before)
	}
	if t.Logf("%d attacks", len(attacks)); len(attacks) < 500 {
		t.Errorf("only %d attacks were made", len(attacks))
	}
}
