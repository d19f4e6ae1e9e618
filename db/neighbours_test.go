package db_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// noisy returns the tenants that the tick has found noisy, with the reasons.
func noisy(t *testing.T, d *pgtest.DB) []string {
	t.Helper()
	return list[string](t, d.Operator(), "select tenant_id || ' ' || signal from ojs.noisy_neighbours order by 1")
}

// crowded makes a database with a queue and some tenants, a stopped clock, and low bounds above which a
// tenant counts as noisy.
func crowded(t *testing.T, tenants map[string]int) *pgtest.DB {
	t.Helper()
	d := pgtest.New(t)
	d.SetNow(noon)
	exec(t, d.Operator(), "select ojs.watch_neighbours(p_min_jobs => 20, p_min_active => 4)")
	for tenant, n := range tenants {
		enqueueFor(t, d.Service(), "q", tenant, n)
	}
	return d
}

func TestMT91SPNoisyNeighbours(t *testing.T) {
	t.Parallel()
	fail := "select ojs.nack(id, '{\"message\": \"broken\"}') from ojs.fetch('{q}', %d, p_tenant => '%s')"
	for _, c := range []struct {
		name    string
		tenants map[string]int
		then    []string
		want    []string
	}{
		{
			"who has ten times the median waiting",
			map[string]int{"a": 31, "b": 3, "c": 3},
			nil,
			[]string{"a enqueue_rate_ratio", "a queue_depth_ratio"},
		},
		{"not who has less", map[string]int{"a": 30, "b": 6, "c": 6}, nil, []string{}},
		{"not who has few", map[string]int{"a": 19, "b": 1, "c": 1}, nil, []string{}},
		{"not who is alone", map[string]int{"a": 100}, nil, []string{}},
		{
			"who enqueues five times the average of the others, although nothing waits",
			map[string]int{"a": 30, "b": 2, "c": 2},
			[]string{"select ojs.ack(id) from ojs.fetch('{q}', 34)"},
			[]string{"a enqueue_rate_ratio"},
		},
		{
			"who runs most of what runs while others wait",
			map[string]int{"a": 12, "b": 12, "c": 12},
			[]string{"select ojs.fetch('{q}', 5, p_tenant => 'a')", "select ojs.fetch('{q}', 3, p_tenant => 'b')"},
			[]string{"a active_job_ratio"},
		},
		{
			"not who runs no more than its weight gives it",
			map[string]int{"a": 12, "b": 12, "c": 12},
			[]string{
				"select ojs.configure_tenant('a', 8)", "select ojs.fetch('{q}', 5, p_tenant => 'a')",
				"select ojs.fetch('{q}', 3, p_tenant => 'b')",
			},
			[]string{},
		},
		{
			"not who runs all while nobody waits",
			map[string]int{"a": 12, "b": 1},
			[]string{"select ojs.fetch('{q}', 1, p_tenant => 'b')", "select ojs.fetch('{q}', 6, p_tenant => 'a')"},
			[]string{},
		},
		{
			"whose attempts fail three times as often",
			map[string]int{"a": 40, "b": 40, "c": 40},
			[]string{
				fmt.Sprintf(fail, 10, "a"), "select ojs.ack(id) from ojs.fetch('{q}', 30, p_tenant => 'a')",
				fmt.Sprintf(fail, 3, "b"), "select ojs.ack(id) from ojs.fetch('{q}', 37, p_tenant => 'b')",
				fmt.Sprintf(fail, 3, "c"), "select ojs.ack(id) from ojs.fetch('{q}', 37, p_tenant => 'c')",
			},
			[]string{"a error_rate"},
		},
		{
			"not whose attempts fail hardly ever, where others' never do",
			map[string]int{"a": 80, "b": 80},
			[]string{
				fmt.Sprintf(fail, 2, "a"), "select ojs.ack(id) from ojs.fetch('{q}', 78, p_tenant => 'a')",
				"select ojs.ack(id) from ojs.fetch('{q}', 80, p_tenant => 'b')",
			},
			[]string{},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := crowded(t, c.tenants)
			for _, sql := range c.then {
				exec(t, d.Operator(), sql)
			}
			exec(t, d.Service(), "select ojs.tick()")
			if got := noisy(t, d); !slices.Equal(got, c.want) {
				t.Errorf("noisy are %q, want %q", got, c.want)
			}
			if n := one[int](t, d.Pool, "select count(*) from ojs.throttle"); n != 0 {
				t.Errorf("%d tenants are throttled, although nobody said so", n)
			}
		})
	}
}

// An episode is reported once, and forgotten when it is over. Nothing is measured while the watch is off.
func TestNoisyNeighboursAreToldOfOnce(t *testing.T) {
	t.Parallel()
	d := crowded(t, map[string]int{"a": 40, "b": 3, "c": 3})
	operator, now := d.Operator(), noon
	look := func() {
		t.Helper()
		now = now.Add(time.Minute + time.Second)
		d.SetNow(now)
		exec(t, d.Service(), "select ojs.tick()")
	}
	told := func() int {
		return one[int](t, operator, "select count(*) from ojs.events('{tenant.noisy}') e where e.tenant_id = 'a'")
	}
	exec(t, d.Service(), "select ojs.tick()")
	look()
	if told() != 2 || len(noisy(t, d)) != 2 {
		t.Errorf("told %d times of %q, want of each once", told(), noisy(t, d))
	}
	exec(t, operator, "select ojs.ack(id) from ojs.fetch('{q}', 46)")
	look()
	if got := noisy(t, d); !slices.Equal(got, []string{"a enqueue_rate_ratio"}) {
		t.Errorf("with nothing waiting noisy are %q", got)
	}
	exec(t, operator, "select ojs.watch_neighbours('off')")
	enqueueFor(t, d.Service(), "q", "a", 1000)
	look()
	if got := noisy(t, d); len(got) != 0 {
		t.Errorf("switched off, noisy are %q", got)
	}
}

// The document of section 9.2, with a weight of 10 lowered to 2, bounded in time and released by itself; then the old share holds again.
func TestMT92AutomaticThrottling(t *testing.T) {
	t.Parallel()
	d := crowded(t, map[string]int{"acme-corp": 200, "b": 20, "c": 20})
	operator := d.Operator()
	exec(t, operator, "select ojs.configure_tenant('acme-corp', 10)")
	exec(t, operator, "select ojs.watch_neighbours('on', p_rate_ratio => 1000, p_depth_ratio => 5)")
	exec(t, d.Service(), "select ojs.tick()")
	var event map[string]any
	data := one[string](t, operator, "select data::text from ojs.events('{tenant.throttled}')")
	if err := json.Unmarshal([]byte(data), &event); err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]any{
		"tenant_id": "acme-corp", "reason": "queue_depth_ratio_exceeded", "action": "weight_reduced", "original_weight": 10.0,
		"effective_weight": 2.0, "until": noon.Add(10 * time.Minute).UTC().Format(time.RFC3339),
	} {
		if event[field] != want {
			t.Errorf("%s of tenant.throttled is %v, want %v", field, event[field], want)
		}
	}
	if got := handedOut(t, operator, "{q}", 24); got != "acme-corp 12, b 6, c 6" {
		t.Errorf("throttled, 24 jobs went to %s", got)
	}
	// What is configured stays, and the tenant may know.
	if got := one[string](t, operator, "select weight::text from ojs.tenant where tenant_id = 'acme-corp'"); got != "10" {
		t.Errorf("the configured weight is %s", got)
	}
	if got := one[string](t, d.As("acme-corp"), "select effective || coalesce(set_by, '') from ojs.throttles"); got != "2.0" && got != "2" {
		t.Errorf("the tenant sees %q", got)
	}
	for _, what := range []string{"ojs.throttles", "ojs.events('{tenant.throttled}')"} {
		if n := one[int](t, d.As("b"), "select count(*) from "+what); n != 0 {
			t.Errorf("another tenant sees %d rows of %s", n, what)
		}
	}

	exec(t, operator, "select ojs.watch_neighbours('observe')")
	d.SetNow(noon.Add(10*time.Minute + time.Second))
	exec(t, d.Service(), "select ojs.tick()")
	if n := one[int](t, operator, "select count(*) from ojs.events('{tenant.throttle_released}')"); n != 1 {
		t.Errorf("tenant.throttle_released is told %d times", n)
	}
	if got := handedOut(t, operator, "{q}", 24); got != "acme-corp 20, b 2, c 2" {
		t.Errorf("released, 24 jobs went to %s", got)
	}
}

// A throttle by hand, of what runs at once, beside a limit, and its end.
func TestThrottlesByHand(t *testing.T) {
	t.Parallel()
	d := crowded(t, map[string]int{"a": 60, "b": 60})
	operator := d.Operator()
	exec(t, operator, "select ojs.limit_concurrency(10, 'a')")
	exec(t, operator, "select ojs.fetch('{q}', 10, p_tenant => 'a')")
	exec(t, operator, "select ojs.throttle('a', 'a downstream outage', 'concurrency', 0.5, '1 hour')")
	exec(t, operator, "select ojs.ack(id) from ojs.job where state = 'active'")
	if got := handedOut(t, operator, "{q}", 20); got != "a 5, b 15" {
		t.Errorf("throttled to half of 10, 20 jobs went to %s", got)
	}
	// A limit set meanwhile is kept, and the lower one holds.
	exec(t, operator, "select ojs.limit_concurrency(8, 'a')")
	if got := handedOut(t, operator, "{q}", 4); got != "b 4" {
		t.Errorf("with a new limit 4 jobs went to %s", got)
	}
	if n := exec(t, operator, "select from ojs.release_throttle('a')"); n != 1 {
		t.Errorf("released %d throttles", n)
	}
	if got := handedOut(t, operator, "{q}", 10); got != "a 3, b 7" {
		t.Errorf("released, with a limit of 8, 10 jobs went to %s", got)
	}
	if n := exec(t, operator, "select from ojs.release_throttle('a')"); n != 0 {
		t.Errorf("released %d throttles of none", n)
	}

	// Without a limit of its own the tenant is bounded by what it runs, and unbounded afterwards.
	exec(t, operator, "select ojs.throttle('b', p_action => 'concurrency', p_factor => 0.5)")
	exec(t, operator, "select ojs.ack(id) from ojs.job where state = 'active' and tenant_id = 'b'")
	if got := handedOut(t, operator, "{q}", 40); got != "b 13" {
		t.Errorf("throttled to half of 26, of 40 jobs b got %s", got)
	}
	exec(t, operator, "select ojs.release_throttle('b')")
	if n := one[int](t, d.Pool, "select count(*) from ojs.rule where tenant_id = 'b'"); n != 0 {
		t.Error("a rule about b is left")
	}
	if got := handedOut(t, operator, "{q}", 40); !strings.HasPrefix(got, "b ") {
		t.Errorf("released, 40 jobs went to %s", got)
	}
	// A tenant at its limit is in no ring, until the clock or a decision has taken in that the limit is gone.
	exec(t, operator, "select ojs.limit_concurrency(null, 'a')")
	tick(t, d.Service(), 1000)
	ringsAgree(t, d.Pool)
}

// The clock ends throttles of the rate without waiting for a session that sets limits of another tenant.
func TestTheEndOfAThrottleOfTheRateWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := crowded(t, map[string]int{"a": 10})
	operator, service := d.Operator(), d.Service()
	exec(t, operator, "select ojs.throttle('a', 'by hand', 'rate', 0.5)")
	exec(t, service, "select ojs.tick()")
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'a') from generate_series(1, 10)")
	if said := detail(t, refused(t, service, "OJ429",
		"insert into ojs.jobs (tenant_id, type) select 'a', 'a' from generate_series(1, 20)")); said["retry_after"] != 600.0 {
		t.Errorf("of more than may go in at once is said %v", said)
	}
	open := begin(t, operator)
	exec(t, open, `select ojs.configure_limits('b', '{"max_enqueue_rate": {"limit": 1000, "period": "PT1M"}}')`)
	d.SetNow(noon.Add(11 * time.Minute))
	exec(t, service, "set lock_timeout = '5s'; select ojs.tick()", pgx.QueryExecModeSimpleProtocol)
	exec(t, open, `select ojs.configure_limits('b', '{"max_concurrency": 100}')`)
	commit(t, open)
	exec(t, service, "select ojs.tick()")
	if n := one[int](t, operator, "select count(*) from ojs.throttles"); n != 0 {
		t.Errorf("%d throttles are left", n)
	}
}

// A throttle of the rate holds back what a tenant enqueues, whichever way, to a part of what it did, until it ends.
func TestMT92SPThrottlesOfTheRate(t *testing.T) {
	t.Parallel()
	d := crowded(t, map[string]int{"a": 6000, "b": 2})
	operator, service := d.Operator(), d.Service()
	exec(t, operator, "select ojs.watch_neighbours('on', p_depth_ratio => 1000000, p_action => 'rate')")
	exec(t, service, "select ojs.tick()")
	if got := lines(t, operator, "select tenant_id, action, original, effective, reason from ojs.throttles"); !slices.Equal(got,
		[]string{"a rate - 240 enqueue_rate_ratio_exceeded"}) {
		t.Fatalf("throttled are %q", got)
	}
	// A fifth of 1200 a minute: 40 at once, then four a second.
	enqueue := func(tenant string, n int) string {
		return fmt.Sprintf("insert into ojs.jobs (tenant_id, type) select '%s', 'a' from generate_series(1, %d)", tenant, n)
	}
	exec(t, service, enqueue("a", 40))
	said := detail(t, refused(t, service, "OJ429", enqueue("a", 1)))
	if said["limit"] != "throttled_rate" || said["maximum"] != 40.0 || said["retry_after"] != 1.0 {
		t.Errorf("beyond it is said %v", said)
	}
	refused(t, d.As("a"), "OJ429", "insert into ojs.jobs (type) values ('a')")
	refused(t, service, "OJ429", enqueue("a", 41))
	exec(t, service, enqueue("b", 100))
	d.SetNow(noon.Add(2 * time.Second))
	exec(t, service, enqueue("a", 8))
	refused(t, service, "OJ429", enqueue("a", 1))
	exec(t, operator, "select ojs.watch_neighbours('observe')")
	d.SetNow(noon.Add(11 * time.Minute))
	exec(t, service, "select ojs.tick()")
	exec(t, service, enqueue("a", 500))
	if one[bool](t, d.Pool, "select exists (select from ojs.allowance) or exists (select from ojs.limits)") {
		t.Error("a limit is left")
	}

	limited(t, operator, "a", `{"max_enqueue_rate": {"limit": 2, "period": "PT1S"}}`)
	exec(t, operator, "select ojs.throttle('a', 'by hand', 'rate', 0.1)")
	if got := lines(t, operator, "select original, effective from ojs.throttles"); !slices.Equal(got, []string{"120 12"}) {
		t.Errorf("by hand it is %q", got)
	}
	exec(t, operator, "select ojs.throttle('a', 'once more', 'weight', 0.1)")
	if got := list[string](t, operator, "select resource from ojs.limits"); !slices.Equal(got, []string{"max_enqueue_rate"}) {
		t.Errorf("of another throttle is left %q", got)
	}
}

func TestThrottlesAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, c := range []struct{ call, state, field string }{
		{"ojs.throttle(null)", "OJ400", "tenant"},
		{"ojs.throttle('a b')", "OJ400", "tenant"},
		{"ojs.throttle('a', p_action => 'speed')", "OJ422", "action"},
		{"ojs.throttle('a', p_factor => 1)", "OJ422", "factor"},
		{"ojs.throttle('a', p_factor => 'NaN')", "OJ422", "factor"},
		{"ojs.throttle('a', p_lasts => '0')", "OJ422", "lasts"},
		{"ojs.watch_neighbours('always')", "OJ422", "mode"},
		{"ojs.watch_neighbours(p_span => '1 second')", "OJ422", "span"},
		{"ojs.watch_neighbours(p_depth_ratio => 1)", "OJ422", "ratio"},
		{"ojs.watch_neighbours(p_depth_ratio => 'NaN')", "OJ422", "ratio"},
		{"ojs.watch_neighbours(p_min_jobs => 0)", "OJ422", "min_jobs"},
		{"ojs.watch_neighbours(p_action => 'speed')", "OJ422", "action"},
		{"ojs.watch_neighbours(p_factor => 0)", "OJ422", "factor"},
		{"ojs.watch_neighbours(p_lasts => '1 year')", "OJ422", "lasts"},
	} {
		failure := refused(t, d.Operator(), c.state, "select "+c.call)
		if got := detail(t, failure)["field"]; got != c.field {
			t.Errorf("%s names field %v", c.call, got)
		}
	}
	refused(t, d.As("acme"), "42501", "select ojs.throttle('globex')")
	refused(t, d.As("acme"), "42501", "select ojs.release_throttle('acme')")
	refused(t, d.As("acme"), "42501", "select ojs.watch_neighbours('off')")
	refused(t, d.As("acme"), "42501", "select * from ojs.noisy_neighbours")
}

// The tick waits for no session when it throttles a neighbour. A throttle that an operator lifts stays lifted until the watch looks again.
func TestThrottlesKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	d := crowded(t, map[string]int{"a": 40, "b": 3, "c": 3})
	operator := d.Operator()
	exec(t, operator, "select ojs.watch_neighbours('on')")
	exec(t, operator, "select ojs.configure_tenant('a', 2)")
	tx := begin(t, d.Pool)
	exec(t, tx, "select from ojs.tenant where tenant_id = 'a' for update")
	exec(t, d.Service(), "set statement_timeout = '20s'; select ojs.tick()", pgx.QueryExecModeSimpleProtocol)
	if n := one[int](t, d.Pool, "select count(*) from ojs.throttle"); n != 0 {
		t.Error("throttled, although somebody else configures the tenant")
	}
	rollback(t, tx)
	exec(t, d.Service(), "select ojs.tick()")
	if n := exec(t, operator, "select from ojs.release_throttle('a')"); n != 1 {
		t.Errorf("%d throttles are released", n)
	}
	exec(t, d.Service(), "select ojs.tick()")
	if n := one[int](t, d.Pool, "select count(*) from ojs.throttle"); n != 0 {
		t.Error("what was lifted by hand is back, although nobody has looked")
	}
	// The tenant learns of the throttle, and not how it compares.
	const events = "select type from ojs.events(p_limit => 1000) where type like 'tenant.%' order by 1"
	want := []string{"tenant.created", "tenant.throttle_released", "tenant.throttled"}
	if got := list[string](t, d.As("a"), events); !slices.Equal(got, want) {
		t.Errorf("the tenant sees %q", got)
	}
}

// Who configures a throttled tenant sees what comes of it, and not what was when the throttle began.
func TestThrottlesShowWhatIsInForce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator, acme := d.Operator(), d.As("acme")
	for _, c := range []struct{ sql, want string }{
		{"select ojs.throttle('acme', p_factor => 0.5)", "weight 1 0.5"},
		{"select ojs.configure_tenant('acme', 20)", "weight 20 10"},
		{`select ojs.configure(p_tenant_fairness => '{"strategy": "round-robin"}')`, "weight 1 1"},
		{"select ojs.throttle('acme', p_action => 'concurrency')", "concurrency - 1"},
		{"select ojs.limit_concurrency(7, 'acme')", "concurrency 7 1"},
	} {
		exec(t, operator, c.sql)
		for _, q := range []querier{operator, acme} {
			got := lines(t, q, "select action, original, effective from ojs.throttles")
			if !slices.Equal(got, []string{c.want}) {
				t.Errorf("after %s: %v, want %s", c.sql, got, c.want)
			}
		}
	}
}
