package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Limits under all their names, merged into what there is; what is wrong with them is named, and changes nothing.
func TestMT81SPLimitsAreConfigured(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	set := func(limits string) string {
		return strings.Join(lines(t, operator, `select resource, maximum,
			coalesce(burst::text, '-') || case when soft then ' soft' else '' end
			from ojs.configure_limits('acme', $1::text::jsonb)`, limits), ", ")
	}
	for _, c := range []struct{ limits, want string }{
		{`{}`, ""},
		{
			`{"max_concurrency": 20, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}, "max_queue_depth": 50000,
				"max_scheduled": 10000}`,
			"max_concurrency 20 -, max_enqueue_rate 1000 1000, max_queue_depth 50000 -, max_scheduled 10000 -",
		},
		{`{"max_concurrency": null, "max_scheduled": null}`, "max_enqueue_rate 1000 1000, max_queue_depth 50000 -"},
		{`{"enqueue_rate": 5, "max_jobs_per_second": 5, "queue_depth": 7}`, "max_enqueue_rate 5 5, max_queue_depth 7 -"},
		{
			`{"max_enqueue_rate": {"limit": 10, "period": "PT1S", "burst": 99, "soft": true},
				"max_queue_depth": {"limit": 8, "soft": true}}`,
			"max_enqueue_rate 10 99 soft, max_queue_depth 8 - soft",
		},
		{
			`{"max_enqueue_rate": null, "max_in_flight_requests": 3, "max_waiting_polls": 9}`,
			"max_in_flight_requests 3 -, max_queue_depth 8 - soft, max_waiting_polls 9 -",
		},
		{
			`{"max_waiting_polls": null, "max_in_flight_requests": null, "max_request_rate": {"limit": 5, "period": "PT1S", "burst": 9}}`,
			"max_queue_depth 8 - soft, max_request_rate 5 9",
		},
		{`{"max_request_rate": null}`, "max_queue_depth 8 - soft"},
	} {
		if got := set(c.limits); got != c.want {
			t.Errorf("%s: %s, want %s", c.limits, got, c.want)
		}
	}
	before := usage(t, operator, "acme")
	for limits, field := range map[string]string{
		`[]`: "limits", `{"max_memory": 1}`: "OJ408 max_memory", `{"max_queue_depth": -1}`: "max_queue_depth.limit",
		`{"max_queue_depth": 1.5}`: "max_queue_depth.limit", `{"max_queue_depth": "7"}`: "max_queue_depth",
		`{"max_queue_depth": {"soft": true}}`: "max_queue_depth", `{"max_queue_depth": {"limit": 1, "soft": 1}}`: "max_queue_depth.soft",
		`{"max_queue_depth": {"limit": 1, "period": "PT1S"}}`: "max_queue_depth.period", `{"max_enqueue_rate": 7}`: "max_enqueue_rate",
		`{"max_enqueue_rate": {"limit": 1, "period": "soon"}}`:               "max_enqueue_rate.period",
		`{"max_enqueue_rate": {"limit": 0, "period": "PT1S"}}`:               "max_enqueue_rate",
		`{"max_enqueue_rate": {"limit": 1, "period": "PT0.5S"}}`:             "max_enqueue_rate.period",
		`{"max_enqueue_rate": {"limit": 1, "period": "PT1S", "burst": 0}}`:   "max_enqueue_rate.burst",
		`{"max_request_rate": 5}`:                                            "max_request_rate",
		`{"max_request_rate": {"limit": 0, "period": "PT1S"}}`:               "max_request_rate",
		`{"max_request_rate": {"limit": 1, "period": "P32D"}}`:               "max_request_rate.period",
		`{"max_request_rate": {"limit": 1, "period": "PT1S", "burst": 0}}`:   "max_request_rate.burst",
		`{"max_request_rate": {"limit": 1, "period": "PT1S", "soft": true}}`: "max_request_rate.soft",
		`{"queue_depth": 1, "max_queue_depth": 2}`:                           "queue_depth",
		`{"max_queue_depth": 99999999999}`:                                   "max_queue_depth.limit",
		`{"max_concurrency": 0}`:                                             "max_concurrency",
	} {
		state, name := "OJ400 OJ422", field
		if after, unsupported := strings.CutPrefix(field, "OJ408 "); unsupported {
			state, name = "OJ408", after
		}
		failure := refused(t, operator, state, "select ojs.configure_limits('acme', $1::text::jsonb)", limits)
		if got := detail(t, failure)["field"]; got != name {
			t.Errorf("%s: refused for %v with %s", limits, got, failure.Message)
		}
	}
	refused(t, operator, "OJ422", `select ojs.configure_limits('acme', '{"max_waiting_polls": 1}', 'q')`)
	refused(t, operator, "OJ400", `select ojs.configure_limits('no tenant', '{"max_queue_depth": 1}')`)
	refused(t, operator, "OJ400", `select ojs.configure_limits('acme', '{"max_queue_depth": 1}', 'No Queue')`)
	if got := usage(t, operator, "acme"); got != before {
		t.Errorf("after refusals the limits are %s, want %s", got, before)
	}
	refused(t, d.As("acme"), "42501", `select ojs.configure_limits('acme', '{"max_queue_depth": null}')`)
	got := lines(t, operator, "select action, name, new ->> 'maximum' from ojs.audit_trail where kind = 'limit' order by n limit 3")
	if want := []string{"created max_enqueue_rate 1000", "created max_queue_depth 50000", "created max_scheduled 10000"}; !slices.Equal(
		got, want) {
		t.Errorf("recorded are %q, want %q", got, want)
	}
}

// A tenant sees its own limits, without the reason, and no other tenant's.
func TestATenantSeesItsOwnLimits(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, tenant := range []string{"acme", "globex"} {
		exec(t, d.Operator(), `select ojs.configure_limits($1, '{"max_queue_depth": 5, "max_concurrency": 3}', null, 'unpaid')`, tenant)
	}
	exec(t, d.Service(), `select ojs.configure_queue('q', '{"backpressure": {"max_depth": 5}}')`)
	got := lines(t, d.As("acme"), "select tenant_id, queue, resource, maximum, reason from ojs.limits order by resource")
	if want := []string{"acme  max_concurrency 3 -", "acme  max_queue_depth 5 -"}; !slices.Equal(got, want) {
		t.Errorf("it sees %q", got)
	}
	if n := one[int](t, d.Operator(), "select count(*) from ojs.limits"); n != 5 {
		t.Errorf("an operator sees %d", n)
	}
}

// A limit that is lowered below what there is refuses what is new, and takes nothing away; one that is raised acts at once.
func TestLimitsAreChangedUnderWay(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueueFor(t, service, "q", "acme", 30)
	limited(t, service, "acme", `{"max_queue_depth": 20}`)
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
	limited(t, service, "acme", `{"max_queue_depth": 32}`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	limited(t, service, "acme", `{"max_queue_depth": 31}`)
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
	expectNone(t, d.Pool, "in the end", unbalanced)
	// Nothing that is open holds the change of a rate up. Until it ends it keeps what lies beside what it took.
	limited(t, service, "globex", `{"max_enqueue_rate": {"limit": 2, "period": "P1D"}}`)
	producer := begin(t, service)
	exec(t, producer, "select ojs.enqueue_bulk('a', array['[]', '[]']::json[], p_tenant => 'globex')")
	limited(t, service, "globex", `{"max_enqueue_rate": {"limit": 3, "period": "P1D"}}`)
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'globex')")
	rollback(t, producer)
	exec(t, service, "select ojs.enqueue_bulk('a', array['[]', '[]']::json[], p_tenant => 'globex')")
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'globex')")
	limited(t, service, "globex", `{"max_enqueue_rate": null}`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'globex')")
	exec(t, d.Operator(), "select ojs.deregister_tenant('acme', 'acme')")
	if got := usage(t, service, "acme"); got != "" || one[bool](t, d.Pool, "select exists (select from ojs.allowance)") {
		t.Errorf("of a tenant that has left there are the limits %q", got)
	}
}

// 000 section 15.5: beyond a soft limit jobs are taken, and told of; once for as long as it lasts, and a warning before.
func TestMT155SoftLimitsAndEvents(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	limited(t, service, "acme", `{"max_queue_depth": {"limit": 10, "soft": true}}`)
	limited(t, service, "globex", `{"max_enqueue_rate": {"limit": 10, "period": "PT10S", "soft": true}}`)
	exec(t, service, `select ojs.configure_queue('q', '{"backpressure": {"max_depth": 10, "warning_threshold": 0.5}}')`)
	told := func(want ...string) {
		t.Helper()
		got := lines(t, service, `select type, coalesce(tenant_id, queue), coalesce(data ->> 'current', data ->> 'depth'),
			coalesce(data ->> 'maximum', data ->> 'bound') from ojs.events('{tenant.limit_approaching,tenant.limit_exceeded,
			backpressure.warning,backpressure.rejected,backpressure.cleared}') order by time, 2`)
		if !slices.Equal(got, want) {
			t.Errorf("told are %q, want %q", got, want)
		}
		exec(t, d.Pool, "delete from ojs.notice")
	}
	bulk := "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[$3::int]), $2, p_tenant => $1)"
	exec(t, service, bulk, "acme", "a", 7)
	exec(t, service, bulk, "globex", "a", 9)
	exec(t, service, bulk, "other", "q", 6)
	exec(t, service, "select ojs.tick()")
	told("tenant.limit_approaching globex 9 10", "backpressure.warning q 6 10")
	exec(t, service, bulk, "acme", "a", 5)
	exec(t, service, bulk, "globex", "a", 9)
	exec(t, service, bulk, "other", "q", 4)
	failure := refused(t, service, "OJ430", bulk, "other", "q", 1)
	if said := detail(t, failure); said["queue"] != "q" || said["depth"] != 10.0 || said["bound"] != 10.0 {
		t.Errorf("refused with %s %v", failure.Message, said)
	}
	exec(t, service, "select ojs.note_refusals(array['acme', 'acme'], array['', ''], '{max_queue_depth,max_queue_depth}', '{3,4}')")
	exec(t, service, "select ojs.tick()")
	if got := one[int](t, service,
		"select (data ->> 'refused')::int from ojs.events('{tenant.limit_exceeded}', p_tenant => 'acme')"); got != 7 {
		t.Errorf("the event tells of %d refusals", got)
	}
	told("tenant.limit_exceeded acme 12 10", "tenant.limit_exceeded globex 18 10", "backpressure.rejected q 10 10")
	exec(t, service, "select ojs.tick()")
	told()
	// What a rate was exceeded by has to grow again.
	d.SetNow(noon.Add(9 * time.Second))
	exec(t, service, bulk, "globex", "a", 1)
	if got := usage(t, service, "globex"); got != "max_enqueue_rate 10/10" {
		t.Errorf("used up are %s", got)
	}
	exec(t, service, "select ojs.cancel(id) from ojs.jobs where state = 'available'")
	d.SetNow(noon.Add(time.Hour))
	exec(t, service, "select ojs.tick()")
	told("backpressure.cleared q 0 10")
	expectNone(t, d.Pool, "in the end", unbalanced)
	exec(t, service, bulk, "acme", "a", 8)
	exec(t, service, "select ojs.tick()")
	told("tenant.limit_approaching acme 8 10")
}

// Dead letters that come back count against the depth, and not against rates; those for which there is no room stay.
func TestDeadLettersObeyLimits(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	ids := bury(t, d, "acme", "q", "Timeout", 4)
	limited(t, service, "acme", `{"max_queue_depth": 2, "max_enqueue_rate": {"limit": 1, "period": "P1D"}}`)
	if n := one[int](t, service, "select ojs.retry_dead_letters()"); n != 2 {
		t.Errorf("%d were retried", n)
	}
	dead := list[string](t, service, "select id::text from ojs.dead_letters()")
	if len(dead) != 2 || !slices.Contains(ids, dead[0]) {
		t.Fatalf("there are %v", dead)
	}
	failure := refused(t, service, "OJ429", "select ojs.retry_dead_letter($1)", dead[0])
	if said := detail(t, failure); said["limit"] != "max_queue_depth" {
		t.Errorf("refused with %s", failure.Message)
	}
	exec(t, d.Operator(), "select ojs.set_replay_rule('r', '1 second', 1000)")
	for !one[bool](t, d.Pool, "select caught_up from ojs.replay_rule") {
		ticks(t, d)
	}
	d.SetNow(noon.Add(time.Minute))
	ticks(t, d)
	exec(t, service, "select ojs.cancel(id) from (select id from ojs.jobs where state = 'available' limit 1) j")
	ticks(t, d)
	d.SetNow(noon.Add(2 * time.Minute))
	ticks(t, d)
	if n := one[int](t, service, "select count(*) from ojs.dead_letters()"); n != 1 {
		t.Errorf("%d are left", n)
	}
	expectNone(t, d.Pool, "in the end", unbalanced)
}

// Cron jobs that fire beyond a limit are recorded as skipped.
func TestCronJobsObeyLimits(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 0}`)
	exec(t, service, `select ojs.put_cron('c', '@daily', 'a', p_tenant => 'acme')`)
	failure := refused(t, service, "OJ429", "select ojs.trigger_cron('c', 'acme')")
	if !strings.Contains(failure.Message, "max_queue_depth (0)") {
		t.Errorf("refused with %s", failure.Message)
	}
	exec(t, d.Pool, "update ojs.cron set upcoming = array[ojs.now() - interval '1 second']")
	exec(t, d.Pool, `insert into ojs.timer (due_at, kind, tenant_ids, ids)
		select ojs.now() - interval '1 second', 'cron', array[tenant_id], array[id] from ojs.cron`)
	exec(t, service, "select ojs.tick()")
	got := lines(t, service, "select reason, message from ojs.cron_runs")
	if want := []string{"refused Tenant 'acme' has exceeded max_queue_depth (0)"}; !slices.Equal(got, want) {
		t.Errorf("the cron job has %q", got)
	}
}

// A queue takes new jobs until it holds as many as its bound, of all tenants together, running and failed ones among them.
func TestBoundsOfQueuesAreConfigured(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueueFor(t, service, "q", "acme", 3)
	exec(t, service, `select ojs.configure_queue('q', '{"max_size": 4}')`)
	enqueueFor(t, service, "q", "globex", 1)
	refused(t, service, "OJ430", "select ojs.enqueue('a', p_queue => 'q')")
	exec(t, service, "select ojs.fetch('{q}', 2)")
	exec(t, service, "select ojs.tick()")
	refused(t, service, "OJ430", "select ojs.enqueue('a', p_queue => 'q')")
	exec(t, d.Pool, "select ojs.ack(id, lease) from ojs.job where state = 'active'")
	exec(t, service, "select ojs.tick()")
	exec(t, service, "select ojs.enqueue('a', p_queue => 'q')")
	expectNone(t, d.Pool, "in the end", unbalanced)
	exec(t, service, `select ojs.configure_queue('q', '{"max_size": null}')`)
	enqueueFor(t, service, "q", "acme", 9)
	for config, field := range map[string]string{
		`{"backpressure": 1}`: "backpressure", `{"backpressure": {"max_depth": -1}}`: "backpressure.max_depth",
		`{"max_size": "x"}`: "max_size", `{"max_size": 3, "backpressure": {"max_depth": 4}}`: "backpressure.max_depth",
		`{"backpressure": {"strategy": "block"}}`: "backpressure.strategy", `{"backpressure": {"strategy": 3}}`: "backpressure.strategy",
		`{"backpressure": {"max_size_bytes": 1}}`:              "backpressure.max_size_bytes",
		`{"backpressure": {"warning_threshold": 2}}`:           "backpressure.warning_threshold",
		`{"backpressure": {"max_depth": 3, "color": 4}}`:       "backpressure.color",
		`{"backpressure": {"max_depth": 3, "strategy": null}}`: "backpressure.strategy",
	} {
		failure := refused(t, service, "OJ408 OJ422", "select ojs.configure_queue('q', $1::text::jsonb)", config)
		if got := detail(t, failure)["field"]; got != field {
			t.Errorf("%s: refused for %v with %s", config, got, failure.Message)
		}
	}
}

// What servers refuse below a limit, a batch that is too large or a poll too many, is told of once a minute, with how many there were.
func TestRefusalsAreToldOf(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	limited(t, service, "acme", `{"max_queue_depth": 10, "max_waiting_polls": 3}`)
	exec(t, service, `select ojs.configure_queue('q', '{"backpressure": {"max_depth": 10}}')`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 3)")
	note := `select ojs.note_refusals('{acme,acme,""}', '{"","",q}', '{max_queue_depth,max_waiting_polls,max_depth}', $1)`
	exec(t, service, note, []int{2, 5, 7})
	exec(t, service, note, []int{1, 1, 1})
	const events = `select type, concat_ws(' ', data ->> 'limit', data ->> 'queue', data ->> 'current', data ->> 'maximum',
		data ->> 'depth', data ->> 'bound', data ->> 'refused') from ojs.events() where data ? 'refused' order by 1, 2`
	want := []string{
		"backpressure.rejected q 0 10 8", "tenant.limit_exceeded max_queue_depth 3 10 3", "tenant.limit_exceeded max_waiting_polls 3 6",
	}
	if got := lines(t, service, events); !slices.Equal(got, want) {
		t.Errorf("told are %q, want %q", got, want)
	}
	d.SetNow(noon.Add(61 * time.Second))
	exec(t, service, note, []int{4, 4, 4})
	if got := lines(t, service, events); len(got) != 6 {
		t.Errorf("a minute later told are %q", got)
	}
	if got := lines(t, d.As("globex"), events); len(got) != 0 {
		t.Errorf("another tenant sees %q", got)
	}
}
