package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// tiers are the three tiers of 000 section 14.1.
var tiers = map[string]string{
	"enterprise": `{"limits": {"max_concurrency": 50, "max_queue_depth": 200000, "max_enqueue_rate": {"limit": 5000, "period": "PT1M"}},
		"fairness_weight": 20}`,
	"standard": `{"limits": {"max_concurrency": 10, "max_queue_depth": 50000, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}},
		"fairness_weight": 5}`,
	"free": `{"limits": {"max_concurrency": 2, "max_queue_depth": 1000, "max_enqueue_rate": {"limit": 100, "period": "PT1M"}},
		"fairness_weight": 1}`,
}

// tier makes a tier.
func tier(t testing.TB, q querier, name, config string) {
	t.Helper()
	exec(t, q, "select ojs.configure_tier($1, $2::text::jsonb)", name, config)
}

// standing returns what a tenant has from its tier: weight, boost and limits.
func standing(t testing.TB, q querier, tenant string) string {
	t.Helper()
	return strings.Join(list[string](t, q, `select concat_ws(' ', weight, priority_boost) from ojs.tenant where tenant_id = $1
		union all
		(select resource || ' ' || maximum from ojs.limits where tenant_id = $1 and queue = '' order by resource)`, tenant), ", ")
}

// 000 section 14.1: a tier is copied to the tenants that get it, and so is what changes in it, but nothing else of theirs.
func TestTiersAreCopiedToTenants(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for name, config := range tiers {
		tier(t, operator, name, config)
	}
	has := func(tenant, want string) {
		t.Helper()
		if got := standing(t, operator, tenant); got != want {
			t.Errorf("%s has %s, want %s", tenant, got, want)
		}
	}
	exec(t, operator, `select ojs.configure_limits('enterprise-acme', '{"max_scheduled": 7, "max_queue_depth": 1}')`)
	exec(t, operator, `select ojs.set_tier(t || n, t, 'sold')
		from (values ('enterprise', '-acme'), ('standard', '-beta'), ('free', '-gamma')) v(t, n)`)
	has("enterprise-acme", "20 0, max_concurrency 50, max_enqueue_rate 5000, max_queue_depth 200000, max_scheduled 7")
	has("standard-beta", "5 0, max_concurrency 10, max_enqueue_rate 1000, max_queue_depth 50000")
	has("free-gamma", "1 0, max_concurrency 2, max_enqueue_rate 100, max_queue_depth 1000")

	// Given again, a rate does not begin with a full burst.
	exec(t, operator, "select ojs.enqueue('a', p_tenant => 'standard-beta')")
	exec(t, operator, "select ojs.set_tier('standard-beta', 'standard')")
	if got := usage(t, operator, "standard-beta"); got != "max_concurrency 0/10, max_enqueue_rate 1/1000, max_queue_depth 1/50000" {
		t.Errorf("of standard-beta are used up %s", got)
	}

	// What has changed follows; a limit that is one tenant's own, and what the template no longer names, stay.
	exec(t, operator, `select ojs.configure_limits('free-gamma', '{"max_queue_depth": 5}')`)
	tier(t, operator, "free", `{"limits": {"concurrency": 3, "queue_depth": 1000}, "weight": 2, "priority_boost": -5}`)
	has("free-gamma", "2 -5, max_concurrency 3, max_enqueue_rate 100, max_queue_depth 5")
	tier(t, operator, "free", `{"limits": {"max_concurrency": null, "max_queue_depth": null}}`)
	has("free-gamma", "2 -5, max_enqueue_rate 100")
	exec(t, operator, "select ojs.set_tier('free-gamma', 'standard')")
	has("free-gamma", "5 -5, max_concurrency 10, max_enqueue_rate 1000, max_queue_depth 50000")
	has("enterprise-acme", "20 0, max_concurrency 50, max_enqueue_rate 5000, max_queue_depth 200000, max_scheduled 7")

	// A tier that tenants have is removed if that is meant, and leaves their numbers.
	failure := refused(t, operator, "OJ409", "select ojs.configure_tier('standard', null)")
	if detail(t, failure)["tenants"] != 2.0 {
		t.Errorf("refused with %s", failure.Message)
	}
	exec(t, operator, "select ojs.configure_tier('standard', null, 'sold no more', true)")
	exec(t, operator, "select ojs.configure_tier('free', null)")
	exec(t, operator, "select ojs.set_tier('enterprise-acme', null)")
	has("enterprise-acme", "20 0, max_concurrency 50, max_enqueue_rate 5000, max_queue_depth 200000, max_scheduled 7")
	has("standard-beta", "5 0, max_concurrency 10, max_enqueue_rate 1000, max_queue_depth 50000")
	if got := lines(t, operator, "select name, tenants, due from ojs.tiers"); !slices.Equal(got, []string{"enterprise 0 0"}) {
		t.Errorf("there are %q", got)
	}
	got := lines(t, operator, `select action, coalesce(tenant_id, name), old ->> 'tier', new ->> 'tier', reason from ojs.audit_trail
		where kind = 'tier' and 'free-gamma' in (tenant_id, name) or name = 'standard' order by n`)
	want := []string{
		"created standard - - -", "created free-gamma - free sold", "changed free-gamma free standard -",
		"removed free-gamma standard - sold no more", "removed standard - - sold no more",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded are %q, want %q", got, want)
	}
}

// A tier that is wrong is refused when it is made, and names the field.
func TestTiersThatAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	tier(t, operator, "free", `{"limits": {"max_queue_depth": 3}}`)
	for config, field := range map[string]string{
		`[]`: "OJ400 config", `{"limits": []}`: "OJ400 limits", `{"max_queue_depth": 3}`: "OJ408 max_queue_depth",
		`{"limits": {"max_memory": 1}}`: "OJ408 max_memory", `{"fairness_weight": 0}`: "OJ422 fairness_weight",
		`{"fairness_weight": "1"}`: "OJ422 fairness_weight", `{"weight": null}`: "OJ422 fairness_weight",
		`{"weight": 1, "fairness_weight": 2}`: "OJ422 weight", `{"priority_boost": 101}`: "OJ422 priority_boost",
		`{"priority_boost": 1.5}`: "OJ422 priority_boost", `{"priority_boost": "1"}`: "OJ422 priority_boost",
		`{"limits": {"max_concurrency": 0}}`:                                           "OJ422 max_concurrency",
		`{"limits": {"max_queue_depth": -1}}`:                                          "OJ422 max_queue_depth.limit",
		`{"limits": {"max_enqueue_rate": {"limit": 0, "period": "PT1S"}}}`:             "OJ422 max_enqueue_rate",
		`{"limits": {"max_enqueue_rate": {"limit": 1, "period": "PT0S"}}}`:             "OJ422 max_enqueue_rate.period",
		`{"limits": {"max_enqueue_rate": {"limit": 1, "period": "PT1S", "burst": 0}}}`: "OJ422 max_enqueue_rate.burst",
	} {
		state, name, _ := strings.Cut(field, " ")
		failure := refused(t, operator, state, "select ojs.configure_tier('free', $1::text::jsonb)", config)
		if got := detail(t, failure)["field"]; got != name {
			t.Errorf("%s: refused for %v with %s", config, got, failure.Message)
		}
	}
	refused(t, operator, "OJ400", "select ojs.configure_tier('no tier', '{}')")
	refused(t, operator, "OJ404", "select ojs.configure_tier('other', null)")
	refused(t, operator, "OJ404", "select ojs.set_tier('acme', 'other')")
	refused(t, operator, "OJ400", "select ojs.set_tier('no tenant', 'free')")
	refused(t, d.As("acme"), "42501", "select ojs.set_tier('acme', 'free')")
	refused(t, d.As("acme"), "42501", "select * from ojs.tiers")
	if got := lines(t, operator, "select config::text from ojs.tiers"); !slices.Equal(got, []string{`{"limits": {"max_queue_depth": 3}}`}) {
		t.Errorf("there are %q", got)
	}
}

// A tier that many tenants have is copied to a few of them at once, and to the others by the clock.
func TestATierOfManyTenants(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	tier(t, operator, "free", `{"limits": {"max_queue_depth": 1}}`)
	exec(t, operator, "select ojs.set_tier('t' || n, 'free') from generate_series(1, 130) n")
	tier(t, operator, "free", `{"limits": {"max_queue_depth": 2, "max_concurrency": 5}, "fairness_weight": 3}`)
	if due := one[int](t, operator, "select due from ojs.tiers"); due < 110 || due == 130 {
		t.Errorf("after the change %d tenants are to be looked at", due)
	}
	// A session that configures delays the tick no more than decisions.
	holder := begin(t, operator)
	exec(t, holder, `select ojs.configure_limits('other', '{"max_queue_depth": 9}')`)
	before := one[int](t, operator, "select due from ojs.tiers")
	if next := one[int](t, d.Service(), "select next_in_ms from ojs.tick()"); next > 250 {
		t.Errorf("the clock comes again in %d ms", next)
	}
	if due := one[int](t, operator, "select due from ojs.tiers"); due != before {
		t.Errorf("beside somebody who configures %d of %d tenants are left", due, before)
	}
	commit(t, holder)
	for n := 0; one[int](t, operator, "select due from ojs.tiers") > 0; n++ {
		if n > 200 {
			t.Fatal("the clock does not come to an end")
		}
		exec(t, d.Service(), "select ojs.tick()")
	}
	for _, n := range []int{1, 77, 130} {
		if got, want := standing(t, operator, fmt.Sprint("t", n)), "3 0, max_concurrency 5, max_queue_depth 2"; got != want {
			t.Errorf("tenant %d has %s", n, got)
		}
	}
	expectNone(t, d.Pool, "in the end", unbalanced)
}
