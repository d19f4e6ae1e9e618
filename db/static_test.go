package db_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Entries of a configuration file: what was changed since they were applied stays, unless the entry changes or the file is authoritative.
func TestMT151StaticConfiguration(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	apply := func(want bool, kind, name, config string, authoritative ...bool) {
		t.Helper()
		if got := one[bool](t, service, "select ojs.configure_static($1, $2, $3::text::jsonb, $4)", kind, name, config,
			len(authoritative) > 0); got != want {
			t.Errorf("of %s %s it is applied: %v, want %v", kind, name, got, want)
		}
	}
	has := func(tenant, want string) {
		t.Helper()
		if got := standing(t, service, tenant); got != want {
			t.Errorf("%s has %s, want %s", tenant, got, want)
		}
	}
	const acme = `{"tenant_id": "acme-corp", "limits": {"max_concurrency": 20, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"},
		"max_queue_depth": 50000, "max_scheduled": 10000}, "fairness_weight": 10, "priority_boost": 0}`
	const whole = "10 0, max_concurrency 20, max_enqueue_rate 1000, max_queue_depth 50000, max_scheduled 10000"
	apply(true, "tenant", "acme-corp", acme)
	has("acme-corp", whole)
	exec(t, service, `select ojs.configure_limits('acme-corp', '{"max_concurrency": 5}'), ojs.configure_tenant('acme-corp', 3)`)
	apply(false, "tenant", "acme-corp", acme)
	has("acme-corp", "3 0, max_concurrency 5, max_enqueue_rate 1000, max_queue_depth 50000, max_scheduled 10000")
	apply(true, "tenant", "acme-corp", acme, true)
	has("acme-corp", whole)

	// 002's names, 000 section 7's, and a tier below what is the tenant's own.
	apply(true, "tier", "standard", tiers["standard"])
	apply(true, "tenant", "tenant_acme",
		`{"tenant_id": "tenant_acme", "limits": {"concurrency": 50, "enqueue_rate": 100, "queue_depth": 10000, "scheduled_jobs": 1000}}`)
	has("tenant_acme", "0, max_concurrency 50, max_enqueue_rate 100, max_queue_depth 10000, max_scheduled 1000")
	apply(true, "tenant", "beta-inc", `{"weight": 7, "concurrency": 10, "tier": "standard"}`)
	has("beta-inc", "7 0, max_concurrency 10, max_enqueue_rate 1000, max_queue_depth 50000")
	exec(t, service, "select ojs.set_tier('beta-inc', null)")
	apply(false, "tier", "standard", tiers["standard"])
	apply(true, "tier", "standard", tiers["free"])
	has("beta-inc", "7 0, max_concurrency 10, max_enqueue_rate 1000, max_queue_depth 50000")

	// A tenant of the file counts as configured, also if a throttle had noted its name before.
	exec(t, d.Operator(), "select ojs.configure(p_unknown_tenants => 'refuse'), ojs.throttle('of-the-file')")
	apply(true, "tenant", "of-the-file", `{}`)
	exec(t, service, "select ojs.enqueue('t', p_tenant => 'of-the-file')")
	exec(t, d.Operator(), "select ojs.configure(p_unknown_tenants => 'accept')")

	// A tenant that has left does not come back with the next start.
	exec(t, d.Operator(), "select ojs.deregister_tenant('beta-inc')")
	exec(t, service, "select ojs.tick()")
	apply(false, "tenant", "beta-inc", `{"weight": 7, "concurrency": 10, "tier": "standard"}`)
	for _, c := range []struct{ kind, name, config, state, field string }{
		{"queue", "q", `{}`, "OJ400", "kind"},
		{"pool", "no pool", `{}`, "OJ400", "pool"},
		{"pool", "p", `{"queues": 5}`, "OJ422", "queues"},
		{"pool", "p", `{"concurency": 5}`, "OJ400", "concurency"},
		{"setting", "default_tenant", `"no tenant"`, "OJ422", "default_tenant"},
		{"setting", "default_tennant", `"house"`, "OJ400", "default_tennant"},
		{"setting", "tenant_fairness", `{"default_wait": 2}`, "OJ400", "tenant_fairness.default_wait"},
		{"tenant", "no tenant", `{}`, "OJ400", "tenant"},
		{"tenant", "acme", `[]`, "OJ400", "tenants"},
		{"tenant", "acme", `{"tier": 1}`, "OJ422", "tier"},
		{"tenant", "acme", `{"wieght": 1}`, "OJ408", "wieght"},
		{"tenant", "acme", `{"limits": {"max_queue_depth": -1}}`, "OJ422", "max_queue_depth.limit"},
		{"tenant", "acme", `{"concurrency": 1, "limits": {"max_concurrency": 2}}`, "OJ422", "limits"},
		{"tenant", "acme", `{"weight": 0}`, "OJ422", "fairness_weight"},
		{"tier", "free", `{"limits": 1}`, "OJ400", "limits"},
	} {
		failure := refused(t, service, c.state, "select ojs.configure_static($1, $2, $3::text::jsonb, p_check => true)",
			c.kind, c.name, c.config)
		if got := detail(t, failure)["field"]; got != c.field {
			t.Errorf("%s: refused for %v with %s", c.config, got, failure.Message)
		}
	}
	// Pools and settings of the file.
	apply(true, "pool", "mailers", `{"queues": ["mail"], "concurrency": 5}`)
	apply(false, "pool", "mailers", `{"queues": ["mail"], "concurrency": 5}`)
	apply(true, "setting", "default_tenant", `"house"`)
	apply(true, "setting", "tenant_fairness", `{"default_weight": 2}`)
	exec(t, d.Operator(), "select ojs.configure(p_default_tenant => 'inn')")
	apply(false, "setting", "default_tenant", `"house"`)
	if got := one[string](t, service, `select concat_ws(' ', s.default_tenant, s.tenant_fairness, p.name, p.queues, p.max_concurrency)
			from ojs.settings s, ojs.pool_stats p where p.name = 'mailers'`); got != `inn {"default_weight": 2} mailers {mail} 5` {
		t.Errorf("the file made %s", got)
	}
	refused(t, service, "OJ404", `select ojs.configure_static('tenant', 'acme', '{"tier": "none"}')`)
	exec(t, service, `select ojs.configure_static('tenant', 'acme', '{"weight": 3}', p_check => true)`)
	has("acme", "")
}

// What configures a tenant in one step has its own numbers before its tier's, and copies none that it has otherwise.
func TestTenantWithItsTier(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	tier(t, operator, "standard", tiers["standard"])
	exec(t, operator, `select ojs.put_tenant('acme', '{"tier": "standard", "limits": {"max_concurrency": 20}, "weight": 7}', 'sold')`)
	if got := standing(t, operator, "acme"); got != "7 0, max_concurrency 20, max_enqueue_rate 1000, max_queue_depth 50000" {
		t.Errorf("it has %s", got)
	}
	others := one[int](t, operator, "select count(*) from ojs.audit_trail where tenant_id = 'acme' and reason is distinct from 'sold'")
	if others > 0 {
		t.Errorf("%d changes have another reason, or none", others)
	}
	if n := one[int](t, operator, "select count(*) from ojs.audit_trail where new ->> 'max_concurrency' = '10'"); n > 0 {
		t.Error("the tier's max_concurrency was copied on the way")
	}
	// Its tier is known, and changes of it follow.
	exec(t, operator, `select ojs.configure_tier('standard', '{"limits": {"max_queue_depth": 7}}')`)
	if got := standing(t, operator, "acme"); got != "7 0, max_concurrency 20, max_enqueue_rate 1000, max_queue_depth 7" {
		t.Errorf("it has %s", got)
	}
	exec(t, operator, `select ojs.put_tenant('acme', '{"tier": null, "max_scheduled": 3}')`)
	if got := standing(t, operator, "acme"); got != "7 0, max_concurrency 20, max_enqueue_rate 1000, max_queue_depth 7, max_scheduled 3" {
		t.Errorf("without its tier it has %s", got)
	}
	if n := one[int](t, operator, "select tenants from ojs.tiers"); n > 0 {
		t.Errorf("%d tenants have the tier", n)
	}
	for _, c := range []struct{ config, state, field string }{
		{`{"tier": "none"}`, "OJ404", "tier"},
		{`{"tier": 1}`, "OJ422", "tier"},
		{`{"weight": 0}`, "OJ422", "fairness_weight"},
		{`{"max_jobs": 1}`, "OJ408", "max_jobs"},
	} {
		failure := refused(t, operator, c.state, "select ojs.put_tenant('acme', $1::text::jsonb)", c.config)
		if got := detail(t, failure)["field"]; got != c.field {
			t.Errorf("%s: field %v, want %s", c.config, got, c.field)
		}
	}
	refused(t, operator, "OJ400", "select ojs.put_tenant('no tenant', '{}')")
	refused(t, d.As("acme"), "42501", "select ojs.put_tenant('acme', '{}')")
}

// Servers that start at the same time with the same file apply it once, and none of them fails.
func TestServersApplyAFileAtTheSameTime(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const servers = 6
	applied, failed := make(chan bool, servers), make(chan error, servers)
	for range servers {
		go func(service *pgxpool.Pool) {
			var did bool
			err := service.QueryRow(t.Context(), "select ojs.configure_static('tenant', 'acme', $1)", tiers["enterprise"]).Scan(&did)
			applied <- did
			failed <- err
		}(d.Service())
	}
	once := 0
	for range servers {
		if pgtest.Receive(t, "an answer", applied) {
			once++
		}
		if err := pgtest.Receive(t, "an answer", failed); err != nil {
			t.Error(pgtest.Explain(err))
		}
	}
	if once != 1 {
		t.Errorf("%d of them applied it", once)
	}
	if n := one[int](t, d.Operator(), "select count(*) from ojs.audit_trail where kind = 'limit'"); n != 2 {
		t.Errorf("%d limits were recorded", n)
	}
}

// lower and upper map letters by the database's locale: in a Turkish one, lower('I') is 'ı', and a misspelt name or a
// privilege is not recognized.
func TestLetterCaseHasACollation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sql  string
		want []string
	}{
		{`select lower(x), upper ( y collate "C" )`, []string{"lower(x)"}},
		{`select lower(f(x) collate "C") || initcap(f(y))`, []string{"initcap(f(y))"}},
		{"-- lower(x)\nselect a.lower, lower_inf(r)", nil},
		{"select x ~* 'i', y !~* 'i' collate \"C\", z ilike 'i'", []string{"~* 'i'", "ilike 'i'"}},
		{
			"select x ~ '(?i)id', regexp_replace(x, 'i', '', 'gi'), regexp_replace(x, 'i', '', 'g')",
			[]string{"regexp_replace(x, 'i', '', 'gi')", "(?i)"},
		},
	} {
		if got := withoutCollation(c.sql); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, want %q", c.sql, got, c.want)
		}
	}
	files := 0
	for _, root := range []string{"code", "queries"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".sql" {
				return err
			}
			files++
			for _, found := range withoutCollation(readFile(t, path)) {
				t.Errorf(`%s: %s lacks collate "C": it depends on the locale of the database`, path, found)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 50 {
		t.Errorf("only %d files were read", files)
	}
}

var (
	sqlComment = regexp.MustCompile(`(?m)--.*$`)
	caseCall   = regexp.MustCompile(`\b(lower|upper|initcap|casefold|regexp_[a-z]+) ?\(`)
	caseMatch  = regexp.MustCompile(`(?i)(?:!?~~?\*|\bilike\b)\s*'(?:[^']|'')*'(\s*collate "C")?`)
	caseEmbed  = regexp.MustCompile(`\(\?[a-z]*i[a-z]*\)`)
	caseFlag   = regexp.MustCompile(`'[a-z]*i[a-z]*'\)$`)
)

// withoutCollation returns the places of an SQL text that compare or change letters by the locale of the database.
func withoutCollation(sql string) (found []string) {
	sql = sqlComment.ReplaceAllString(sql, "")
	for _, at := range caseCall.FindAllStringIndex(sql, -1) {
		end, depth := at[1], 1
		for ; end < len(sql) && depth > 0; end++ {
			switch sql[end] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		call := sql[at[0]:end]
		if strings.HasPrefix(call, "regexp_") && !caseFlag.MatchString(call) {
			continue
		}
		if !strings.Contains(call, `collate "C"`) {
			found = append(found, call)
		}
	}
	for _, m := range caseMatch.FindAllStringSubmatch(sql, -1) {
		if m[1] == "" {
			found = append(found, m[0])
		}
	}
	return append(found, caseEmbed.FindAllString(sql, -1)...)
}
