package db_test

import (
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// default_limits: the tier default is given to tenants without a tier, by the tick after their first jobs; what is their own stays.
func TestTheTierOfTenantsWithoutOne(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	enqueueFor(t, service, "q", "early", 3)
	exec(t, service, "select ojs.tick()")
	exec(t, operator, "select ojs.configure_tenant('configured', 4)")
	limited(t, operator, "limited", `{"max_queue_depth": 9, "max_scheduled": 7}`)
	tier(t, operator, "none", `{}`)
	exec(t, operator, "select ojs.set_tier('exempt', 'none')")
	tier(t, operator, "default", `{"limits": {"max_queue_depth": 2, "max_concurrency": 1}, "fairness_weight": 2}`)
	enqueueFor(t, service, "q", "new", 5)
	enqueueFor(t, service, "r", "new", 5)
	for _, tenant := range []string{"configured", "limited", "exempt"} {
		enqueueFor(t, service, "q", tenant, 5)
	}
	enqueueFor(t, service, "q", "_default", 1)
	const whole = "2 0, max_concurrency 1, max_queue_depth 2"
	const left = "select exists (select from ojs.newcomer) or exists (select from ojs.tenant_tier where due is not null)"
	settle := func() {
		t.Helper()
		for n := 0; n == 0 || one[bool](t, d.Pool, left); n++ {
			if n > 50 {
				t.Fatal("the clock does not come to an end")
			}
			if next := one[int](t, service, "select next_in_ms from ojs.tick()"); next > 250 {
				t.Errorf("the clock comes again in %d ms", next)
			}
		}
	}
	settle()
	for tenant, want := range map[string]string{
		"early": whole, "new": whole, "_default": whole, "configured": "4 0, max_concurrency 1, max_queue_depth 2",
		"limited": "2 0, max_concurrency 1, max_queue_depth 9, max_scheduled 7", "exempt": "0", "unknown": "",
	} {
		if got := standing(t, operator, tenant); got != want {
			t.Errorf("%s has %s, want %s", tenant, got, want)
		}
	}
	// What was there before counts.
	for _, tenant := range []string{"early", "new", "configured"} {
		refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => $1)", tenant)
	}
	exec(t, service, "select ojs.enqueue('a', p_tenant => t) from unnest('{limited,exempt}'::text[]) t")
	expectNone(t, d.Pool, "in the end", unbalanced)

	// A tick in the time between two roll-ups meets them, too.
	exec(t, service, "select ojs.tick(1000, 'server')")
	enqueueFor(t, service, "q", "later", 1)
	exec(t, service, "select ojs.tick(1000, 'server')")
	settle()
	if got := standing(t, operator, "later"); got != whole {
		t.Errorf("a tenant that came between two roll-ups has %s", got)
	}
	// A tenant that has left and comes again is new.
	exec(t, operator, "select ojs.deregister_tenant('new', 'new')")
	if got := lines(t, operator, "select tier from ojs.tenant_tier where tenant_id = 'new'"); len(got) > 0 {
		t.Errorf("a tenant that has left has the tier %v", got)
	}
	got := lines(t, operator, "select tenants, due from ojs.tiers where name = 'default'")
	if want := []string{"5 0"}; !slices.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
	exec(t, operator, "select ojs.configure_tier('default', null, null, true)")
	enqueueFor(t, service, "q", "last", 5)
	exec(t, service, "select ojs.tick()")
	if got := standing(t, operator, "last"); got != "" {
		t.Errorf("after the tier is gone new tenants have %s", got)
	}
}

// The tick waits for no session that configures, and forgets no new tenant meanwhile.
func TestNewcomersBesideSomebodyWhoConfigures(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	tier(t, operator, "default", `{"limits": {"max_queue_depth": 2}}`)
	for name, hold := range map[string]string{
		"queues":   `select ojs.configure_limits('other', '{"max_queue_depth": 9}')`,
		"lane":     "select ojs.configure_tenant('lanes', 2)",
		"settings": "select ojs.configure(p_tenant_required => false)",
		"itself":   "select ojs.set_tier('itself', 'default')",
	} {
		holder := begin(t, operator)
		exec(t, holder, hold)
		enqueueFor(t, service, "q", name, 1)
		exec(t, service, "select ojs.tick()")
		exec(t, service, "select ojs.tick()")
		if name != "lane" && name != "itself" && standing(t, operator, name) != "" {
			t.Errorf("beside %s the newcomer has a tier", name)
		}
		commit(t, holder)
		for n := 0; n < 3; n++ {
			exec(t, service, "select ojs.tick()")
		}
		if got := standing(t, operator, name); got != "0, max_queue_depth 2" {
			t.Errorf("after %s the newcomer has %s", name, got)
		}
	}
	expectNone(t, d.Pool, "in the end", unbalanced)
}

// A tenant that was deregistered gets no tier, and so does not come back, although its jobs are still counted. A new tenant of its name
// does.
func TestTheTierDefaultBringsNoTenantBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	for _, tenant := range []string{"gone", "returns", "stays"} {
		enqueueFor(t, service, "q", tenant, 2)
	}
	for _, tenant := range []string{"gone", "returns"} {
		exec(t, operator, "select ojs.deregister_tenant($1, $1)", tenant)
	}
	ticks := func() {
		t.Helper()
		for range 5 {
			exec(t, service, "select ojs.tick()")
		}
	}
	ticks()
	tier(t, operator, "default", `{"fairness_weight": 2}`)
	ticks()
	const listed = "select string_agg(tenant_id, ' ' order by tenant_id) from ojs.tenant_stats"
	if got := one[string](t, operator, listed); got != "stays" {
		t.Errorf("the tenants are %s", got)
	}
	enqueueFor(t, service, "q", "returns", 1)
	ticks()
	if got := one[string](t, operator, listed); got != "returns stays" || standing(t, operator, "returns") != "2 0" {
		t.Errorf("the tenants are %s, and one has %s", got, standing(t, operator, "returns"))
	}
}
