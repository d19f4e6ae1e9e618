package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const theFile = `{
	"default_limits": {"max_queue_depth": 10000},
	"tiers": {"standard": {"limits": {"max_concurrency": 10, "max_queue_depth": 50000}, "fairness_weight": 5}},
	"tenants": [
		{"tenant_id": "acme-corp", "limits": {"max_concurrency": 20, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}},
			"fairness_weight": 10, "priority_boost": 0},
		{"tenant_id": "tenant_acme", "limits": {"concurrency": 50, "enqueue_rate": 100, "queue_depth": 10000, "scheduled_jobs": 1000}},
		{"tenant_id": "beta", "tier": "standard"}]}`

// configured starts a server with a configuration and stops it. The server has to log changed as the
// number of settings that were new.
func configured(t *testing.T, d *pgtest.DB, config, changed string) {
	t.Helper()
	p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0", "--config", config)
	p.find(`msg="configuration applied" entries=\d+ "(new or changed"=` + changed + `)$`)
	p.find(`msg=(serving)`)
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("it ended with %d", status)
	}
}

// 000 section 15.1: the file holds initial settings. Settings that are changed afterwards survive a
// restart, unless the file is authoritative.
func TestServeWithAConfigurationFile(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	file := filepath.Join(t.TempDir(), "ojs.json")
	if err := os.WriteFile(file, []byte(theFile), 0o600); err != nil {
		t.Fatal(err)
	}
	const has = `select string_agg(concat_ws(' ', tenant_id, resource, maximum), ', ' order by tenant_id, resource) from ojs.limits`
	const all = "acme-corp max_concurrency 20, acme-corp max_enqueue_rate 1000, beta max_concurrency 10, beta max_queue_depth 50000, " +
		"tenant_acme max_concurrency 50, tenant_acme max_enqueue_rate 100, tenant_acme max_queue_depth 10000, " +
		"tenant_acme max_scheduled 1000"
	configured(t, d, file, "5")
	if got := query(t, d.URL, has); got != all {
		t.Errorf("there are %s", got)
	}
	if got := query(t, d.URL, "select string_agg(name, ' ' order by name) from ojs.tiers"); got != "default standard" {
		t.Errorf("there are the tiers %s", got)
	}
	pgtest.Exec(t, d.Service(), `select ojs.configure_limits('acme-corp', '{"max_concurrency": 5}')`)
	configured(t, d, file, "0")
	if got := query(t, d.URL, has); !strings.HasPrefix(got, "acme-corp max_concurrency 5,") {
		t.Errorf("after a restart there are %s", got)
	}
	configured(t, d, strings.Replace(theFile, "{", `{"authoritative": true,`, 1), "5")
	if got := query(t, d.URL, has); got != all {
		t.Errorf("after a start with an authoritative file there are %s", got)
	}
	// The documents of fairness, of the default tenant and of pools, in the forms of 001 sections 9.2 and 14.2.
	configured(t, d, `{"tenant_fairness": {"enabled": true, "strategy": "fair-share",
		"weights": {"tenant:enterprise-a": 5, "tenant:startup-b": 1}, "default_weight": 1}, "default_tenant": "house"}`, "2")
	configured(t, d, `{"pools": [
		{"name": "payment-workers", "queues": ["payments"], "concurrency": 10, "strategy": "strict", "isolated": true},
		{"name": "general-workers", "queues": ["default", "email", "notifications"], "concurrency": 50, "strategy": "round-robin"}]}`, "2")
	configured(t, d, `{"pool": {"name": "one", "queues": ["email"]}}`, "1")
	if got := query(t, d.URL, `select concat_ws(' ', (select string_agg(p.name, ' ' order by p.name) from ojs.pool_stats p),
			s.default_tenant, s.tenant_fairness ->> 'strategy', (select t.weight from ojs.tenant t where t.tenant_id = 'enterprise-a'))
			from ojs.settings s`); got != "general-workers one payment-workers house fair-share 5" {
		t.Errorf("the files made %s", got)
	}
	// The document of one tenant, in the form of 000 section 7.
	configured(t, d, `{"tenant_id": "gamma", "limits": {"max_queue_depth": 7}}`, "1")
	configured(t, d, `{"tenants": {"acme-corp": {"weight": 10}, "beta-inc": {"concurrency": 10}}}`, "2")
	page, err := os.ReadFile("../../docs/operate/tiers.md")
	if err != nil {
		t.Fatal(err)
	}
	configured(t, d, regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(string(page))[1], "5")
}

// With a mistake in the file the server does not start and changes no setting. The error names the field
// and the reason.
func TestMistakesInAConfigurationFile(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for config, want := range map[string]string{
		`{"tenants": [{"tenant_id": "a", "weight": 2}, {"tenant_id": "b", "limits": {"max_queue_depth": -1}}]}`: "tenants[1] (b): " +
			"max_queue_depth.limit must be an integer",
		`{"tenants": [{"limits": {}}]}`:                                               "tenants[0]: tenant_id is missing",
		`{"pools": [{"queues": ["a"]}]}`:                                              "pools[0]: name is missing",
		`{"pools": [{"name": "a", "concurency": 5}]}`:                                 "pools[0] (a): concurency is not known",
		`{"pool": {"name": "a"}, "pools": []}`:                                        "pool: there is pools, too",
		`{"default_tennant": "house"}`:                                                "default_tenant is probably meant",
		`{"memory": 5}`:                                                               "memory is not known; the members are",
		`{"default_tenant": ["house"]}`:                                               "default_tenant is no valid tenant",
		`{"tenant_fairness": {"default_weight": "9"}}`:                                "tenant_fairness.default_weight must be a number",
		`{"tenants": {"a": {"max_memory": 1}}}`:                                       "tenants.a: max_memory is not supported",
		`{"tiers": {"free": {"limits": {"max_concurrency": 0}}}}`:                     "tiers.free: max_concurrency must be",
		`{"default_limits": {"max_queue_depth": "9"}}`:                                "default_limits: max_queue_depth must be",
		`{"default_limits": {}, "tiers": {"default": {}}}`:                            "default_limits: the tier default has limits, too",
		`{"tenant": []}`:                                                              "tenant",
		`{"tenants": [], "tenants": []}`:                                              "duplicate",
		`{"tenants": 3}`:                                                              "tenants:",
		`{"tenants": [`:                                                               "configuration:",
		filepath.Join(t.TempDir(), "none.json"):                                       "no such file",
		`{"tenants": [{"tenant_id": "a", "tier": "gold"}], "authoritative": true}`:    "tenants[0] (a): tier gold does not exist",
		`{"tenants": [{"tenant_id": "no tenant"}]}`:                                   "tenants[0] (no tenant): tenant must match",
		`{"tenants": [{"tenant_id": "a", "limits": {"max_queue_depth": 1, "x": 2}}]}`: "tenants[0] (a): x is not supported",
	} {
		p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL, "OJS_CONFIG=" + config}, "serve", "--listen", "127.0.0.1:0")
		if status := p.wait(); status != 1 {
			t.Errorf("with %s it ends with %d", config, status)
		}
		if got := p.output(); !strings.Contains(got, want) {
			t.Errorf("of %s it says %s, want %s", config, got, want)
		}
	}
	if n := query(t, d.URL, "select count(*)::text from ojs.tenant"); n != "0" {
		t.Errorf("%s tenants were configured", n)
	}
}
