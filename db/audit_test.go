package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const lastAudit = `select tenant_id, kind, name, action, old, new, reason from ojs.audit_trail order by n desc limit 1`

// Whatever changes the configuration is recorded once, with what has changed and nothing else.
func TestAuditOfEachChange(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for _, c := range []struct{ sql, want string }{
		{"select ojs.configure(p_timeout_ms => 5000)", "- deployment - changed map[timeout_ms:1.8e+06] map[timeout_ms:5000] -"},
		{
			"select ojs.configure_dead_letters(p_max_count => 7)",
			"- deployment - changed map[dead_letter_max_count:10000] map[dead_letter_max_count:7] -",
		},
		{
			"select ojs.configure_tenant('acme', 2)",
			"acme tenant - created - map[max_priority:100 over_priority:refuse priority_boost:0 weight:2] -",
		},
		{"select ojs.configure_tenant('acme', 3)", "acme tenant - changed map[weight:2] map[weight:3] -"},
		{"select ojs.configure_tenant('acme', 5, p_queue => 'mail')", "acme fairness mail changed - map[weight:5] -"},
		{"select ojs.configure_tenant('acme', null, p_queue => 'mail')", "acme fairness mail changed map[weight:5] - -"},
		{"select ojs.limit_concurrency(4, 'acme', null, 'incident')", "acme rule - limited - map[max_concurrency:4] incident"},
		{"select ojs.limit_concurrency(5, 'acme')", "acme rule - limited map[max_concurrency:4] map[max_concurrency:5] -"},
		{"select ojs.limit_concurrency(null, 'acme')", "acme rule - unlimited map[max_concurrency:5] - -"},
		{
			"select ojs.configure_queue('mail', '{\"description\": \"d\"}')",
			"- queue mail changed map[config:map[]] map[config:map[description:d]] -",
		},
		{"select ojs.configure_pool('p', '{\"concurrency\": 3}')", "- pool p created - map[isolated:false max_concurrency:3] -"},
		{"select ojs.delete_pool('p', true)", "- pool p removed map[isolated:false max_concurrency:3] - -"},
		{
			"select ojs.configure_queue('mail', '{\"tenant_fairness\": {\"weights\": {\"acme\": 2}}}')",
			"- fairness mail changed - map[acme:2] -",
		},
		{"select ojs.delete_queue('mail')", "- fairness mail changed map[acme:2] - -"},
		{"select ojs.direct_workers('running', 'acme')", "acme worker - directed - map[directive:running workers:0] -"},
	} {
		n := one[int](t, operator, "select count(*) from ojs.audit")
		exec(t, operator, c.sql)
		if got := lines(t, operator, lastAudit); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s is recorded as\n%s, want\n%s", c.sql, got, c.want)
		}
		more := one[int](t, operator, "select count(*) from ojs.audit") - n
		if more == 0 || more > 2 {
			t.Errorf("%s: %d records", c.sql, more)
		}
		// Again it changes nothing, and so is not recorded, unless it cannot be done twice.
		if strings.Contains(c.sql, "configure(") || strings.Contains(c.sql, "configure_tenant('acme', 3") {
			exec(t, operator, c.sql)
			if again := one[int](t, operator, "select count(*) from ojs.audit") - n; again != more {
				t.Errorf("%s, once more, is recorded, too", c.sql)
			}
		}
	}
}

// A pause names its reason, and its end does not repeat it.
func TestAuditOfPauses(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	exec(t, operator, "select ojs.pause('mail', null, 'outage'), ojs.pause(null, 'acme')")
	exec(t, operator, "select ojs.resume('mail'), ojs.resume(null, 'acme'), ojs.hold_dispatch(), ojs.resume_dispatch()")
	got := lines(t, operator, "select tenant_id, kind, name, action, reason from ojs.audit_trail where kind <> 'tenant' order by n")
	want := []string{
		"- rule mail paused outage", "acme rule - paused -", "- rule mail resumed -", "acme rule - resumed -", "- deployment - held -",
		"- deployment - resumed -",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The audit trail believes the service's login when it names an actor. Any other login could set the same setting and is not believed.
func TestAuditKnowsTheActor(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, c := range []struct {
		url  string
		want func(login string) string
	}{
		{d.ServiceURL, func(string) string { return "ann" }},
		{d.OperatorURL(), func(login string) string { return login }},
		{d.TenantURL("acme"), func(login string) string { return login }},
	} {
		conn := connect(t, c.url)
		exec(t, conn, "select set_config('ojs.actor', 'ann', false), set_config('ojs.reason', 'because', false)")
		exec(t, conn, "select ojs.direct_workers('running', 'acme')")
		want := c.want(one[string](t, conn, "select session_user::text")) + " because"
		if got := lines(t, conn, "select actor, reason from ojs.audit_trail order by n desc limit 1"); !slices.Equal(got, []string{want}) {
			t.Errorf("the actor and the reason are %v, want %s", got, want)
		}
	}
}

// A tenant reads what is about itself, and neither writes it nor learns of a tenant whose role it was before.
func TestAuditOfATenant(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator, acme := d.Operator(), d.As("acme")
	exec(t, operator, "select ojs.limit_concurrency(4, 'acme'), ojs.limit_concurrency(5, 'globex'), ojs.pause('mail')")
	exec(t, d.Pool, "select ojs.create_tenant_role('globex', $1)", d.RoleName("moved"))
	exec(t, d.Pool, "select ojs.create_tenant_role('acme', $1)", d.RoleName("moved"))
	got := lines(t, acme, "select distinct tenant_id from ojs.audit_trail")
	if !slices.Equal(got, []string{"acme"}) {
		t.Errorf("acme reads of %v", got)
	}
	if text := one[string](t, acme, "select string_agg(a::text, ' ') from ojs.audit_trail a"); strings.Contains(text, "globex") {
		t.Errorf("acme reads %s", text)
	}
	got = lines(t, operator, "select tenant_id, action from ojs.audit where kind = 'role' and name = $1 order by n", d.RoleName("moved"))
	if want := []string{"globex created", "globex removed", "acme created"}; !slices.Equal(got, want) {
		t.Errorf("of the role is recorded %v, want %v", got, want)
	}
	for _, q := range []querier{acme, operator} {
		refused(t, q, "42501", "insert into ojs.audit (actor, kind, action) values ('x', 'y', 'z')")
		refused(t, q, "42501", "delete from ojs.audit")
	}
	refused(t, acme, "42501", "select from ojs.audit")
	refused(t, acme, "42501", "select ojs._audit('acme', 'a', 'b', 'c')")
}

// A change that is rolled back is not recorded, because it has not happened.
func TestAuditRollsBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.Operator())
	exec(t, tx, "select ojs.configure_tenant('acme', 2)")
	rollback(t, tx)
	if got := lines(t, d.Operator(), lastAudit); len(got) != 0 {
		t.Errorf("recorded is %v", got)
	}
}

// The tick removes what is older than 90 days, so many rows at a time.
func TestAuditIsPruned(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	begin := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	d.SetNow(begin)
	exec(t, d.Pool, "insert into ojs.audit (at, actor, kind, action) select ojs.now(), 'x', 'y', 'z' from generate_series(1, 25)")
	for _, step := range []struct{ days, limit, want int }{{89, 10, 25}, {91, 10, 15}, {91, 10, 5}, {91, 10, 0}} {
		d.SetNow(begin.AddDate(0, 0, step.days))
		exec(t, d.Service(), "select ojs.tick($1)", step.limit)
		if got := one[int](t, d.Pool, "select count(*) from ojs.audit"); got != step.want {
			t.Errorf("after %d days %d rows are left, want %d", step.days, got, step.want)
		}
	}
	exec(t, d.Operator(), "select ojs.configure(p_journal_retention => '200 days')")
	d.SetNow(begin.AddDate(0, 0, 250))
	exec(t, d.Service(), "select ojs.tick()")
	if got := one[int](t, d.Pool, "select count(*) from ojs.audit"); got != 1 {
		t.Errorf("%d rows are left where journals are kept for longer, want 1", got)
	}
}

// Bulk purges say how much went, whose it was, and by which filter.
func TestAuditOfPurges(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, `select ojs.enqueue('a', p_tenant => 'acme', p_retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}')`)
	exec(t, service, `select ojs.nack(f.id, '{"code": "x", "message": "x"}', f.lease) from ojs.fetch('{default}') f`)
	if got := one[int](t, service, "select ojs.purge_dead_letters(p_type => 'a')"); got != 1 {
		t.Fatalf("%d were purged", got)
	}
	exec(t, service, "select ojs.purge_dead_letters(p_type => 'a')")
	got := lines(t, service, "select tenant_id, kind, action, new from ojs.audit_trail")
	if want := []string{"- dead_letters purged map[jobs:1 type:a]"}; !slices.Equal(got, want) {
		t.Errorf("recorded are %v, want %v", got, want)
	}
}

// Multi-tenancy section 11.1: tenant.created when a tenant is configured first, for operators and for the tenant, and not for others.
func TestMT111TenantCreated(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Operator(), "select ojs.configure_tenant('acme', 2), ojs.configure_tenant('acme', 3), ojs.configure_tenant('globex', 1)")
	for _, c := range []struct {
		q    querier
		want []string
	}{
		{d.Service(), []string{"acme 2", "globex 1"}}, {d.As("acme"), []string{"acme 2"}}, {d.As("initech"), nil},
	} {
		got := lines(t, c.q, `select tenant_id, data -> 'config' -> 'weight' from ojs.events('{tenant.created}') order by id`)
		if !slices.Equal(got, c.want) {
			t.Errorf("events are %v, want %v", got, c.want)
		}
	}
}

// What a call is given a reason for says so in all that it changes, and nothing else in its transaction does.
func TestEachChangeHasItsOwnReason(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.Operator())
	for _, sql := range []string{
		"set local ojs.reason = 'night shift'",
		`select ojs.configure_limits('zz', '{"max_queue_depth": 5}', p_reason => 'depth')`,
		"select ojs.throttle('zz', 'flood')",
		`select ojs.configure_tier('gold', '{"fairness_weight": 5, "limits": {"max_scheduled": 9}}', 'prices')`,
		"select ojs.set_tier('zz', 'gold', 'contract')",
		"select ojs.limit_concurrency(50, p_queue => 'q', p_reason => 'slow')",
		"select ojs.pause('q', p_reason => 'on fire')",
		"select ojs.limit_concurrency(40, p_queue => 'q', p_reason => 'slower')",
		"select ojs.configure_tenant('other', 2)",
	} {
		exec(t, tx, sql)
	}
	if got := lines(t, tx, "select queue, reason, limit_reason from ojs.rule_stats where queue = 'q'"); !slices.Equal(got,
		[]string{"q on fire slower"}) {
		t.Errorf("the rule is %q", got)
	}
	exec(t, tx, "select ojs.resume('q')")
	commit(t, tx)
	got := lines(t, d.Operator(), "select kind, action, coalesce(name, '-'), reason from ojs.audit_trail order by n")
	want := []string{
		"tenant created - depth", "limit created max_queue_depth depth", "throttle created weight flood", "tier created gold prices",
		"tier created - contract", "limit created max_scheduled contract", "tenant changed - contract", "rule limited q slow",
		"rule paused q on fire", "rule limited q slower", "tenant created - night shift", "rule resumed q night shift",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := lines(t, d.Operator(), "select resource, reason from ojs.limits where queue = 'q'"); !slices.Equal(got,
		[]string{"max_concurrency slower"}) {
		t.Errorf("the limit is %q", got)
	}
	// Where there was none before, there is none behind.
	tx = begin(t, d.Operator())
	exec(t, tx, `select ojs.configure_limits('yy', '{"max_queue_depth": 5}', p_reason => 'depth')`)
	exec(t, tx, "select ojs.set_tier('yy', 'gold', 'contract')")
	exec(t, tx, "select ojs.configure_tenant('yy', 7)")
	commit(t, tx)
	if got := lines(t, d.Operator(), "select new, reason from ojs.audit_trail order by n desc limit 1"); !slices.Equal(got,
		[]string{"map[weight:7] -"}) {
		t.Errorf("behind a call with a reason the last change has %q", got)
	}
	expectNone(t, connect(t, d.TenantURL("zz")), "reasons of others",
		"select kind, reason, new from ojs.audit_trail where reason is not null or new ? 'reason'")
}
