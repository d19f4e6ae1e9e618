package db_test

import (
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// SQL and the server have the same idea of a slip of the pen.
func TestWhichNamesResemble(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, c := range []struct {
		name, known string
		want        bool
	}{
		{"scheduledAt", "scheduled_at", true},
		{"Priority", "priority", true},
		{"timeout-ms", "timeout_ms", true},
		{"schedule_at", "scheduled_at", true},
		{"priorty", "priority", true},
		{"prioirty", "priority", true},
		{"tag", "tags", true},
		{"typpe", "type", true},
		{"tyep", "type", true},
		{"prionity", "priority", true},
		{"visibilty_timout_ms", "visibility_timeout_ms", false},
		{"max_attemts", "max_attempts", true},
		{"max_atemps", "max_attempts", false},
		{"expires_on", "expires_at", true},
		{"tape", "type", false},
		{"ty", "type", false},
		{"retries", "retry", false},
		{"", "type", false},
		{"x", "y", false},
		{"retention", "retry", false},
		{"cost_center", "cost", false},
		{"é", "id", false},
		{"timeoutt", "timeout", true},
	} {
		if got := names.Resembles(c.name, c.known); got != c.want {
			t.Errorf("by Go %q resembles %q: %v", c.name, c.known, got)
		}
		if got := one[bool](t, d.Pool, "select ojs._resembles($1, $2)", c.name, c.known); got != c.want {
			t.Errorf("by SQL %q resembles %q: %v", c.name, c.known, got)
		}
	}
}

func TestMisspeltFieldsAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, c := range []struct{ argument, json, field, meant string }{
		{"p_options", `{"schedule_at": "+PT1H"}`, "options.schedule_at", "scheduled_at"},
		{"p_options", `{"delay": 5}`, "options.delay", "scheduled_at"},
		{"p_extra", `{"priorty": 5}`, "priorty", "priority"},
		{"p_extra", `{"lease_token": "x"}`, "lease_token", "lease"},
		{"p_options", `{"lease_id": "x"}`, "options.lease_id", "lease"},
		{"p_extra", `{"tenant_id": "acme"}`, "tenant_id", "meta.tenant_id"},
		{"p_retry", `{"max_atempts": 5}`, "retry.max_atempts", "max_attempts"},
		{"p_retry", `{"max_attempts": 5, "backoff": "linear"}`, "retry.backoff", "backoff_strategy"},
	} {
		got := refused(t, service, "OJ400", "select ojs.enqueue('a', "+c.argument+" => $1)", c.json)
		want := c.field + " is not known; " + c.meant + " is probably meant"
		if c.field == "options.delay" {
			want += `, such as "+PT5M"`
		}
		if got.Message != want {
			t.Errorf("%s: %s, want %s", c.json, got.Message, want)
		}
		if c.argument != "p_retry" {
			refused(t, service, "OJ400", "insert into ojs.jobs (type, "+c.argument[2:]+") values ('a', $1)", c.json)
		}
	}
	exec(t, service, `
		select ojs.enqueue('a', p_options => '{"x_priorty": 1, "region": "eu"}', p_extra => '{"ext_typ": 1, "x_team": "a", "version": 2}',
			p_retry => '{"max_attempts": 2, "owner": "me"}')`)
	for name, says := range map[string]string{
		"team":       "team is no attribute of a job; begin a name of your own with x_ or ext_, or write it into meta",
		"":           " is no attribute of a job; begin a name of your own with x_ or ext_, or write it into meta",
		"maxRetries": "maxRetries is not known; retry.max_attempts is probably meant",
		"startAfter": `startAfter is not known; scheduled_at is probably meant, such as "+PT5M"`,
		"queue_name": "queue_name is not known; queue is probably meant",
		"unique_key": "unique_key is not known; unique is probably meant",
		"eta":        `eta is not known; scheduled_at is probably meant, such as "+PT5M"`,
		"tenantId":   "tenantId is not known; meta.tenant_id is probably meant",
	} {
		got := refused(t, service, "OJ400", "select ojs.enqueue('a', p_extra => json_build_object($1::text, 1))", name)
		if got.Message != says {
			t.Errorf("%q: %s, want %s", name, got.Message, says)
		}
	}
	for _, name := range []string{"tenantId", "tenant", "Tenant-ID", "X-Tenant-ID"} {
		got := refused(t, service, "OJ400", "select ojs.enqueue('a', p_meta => jsonb_build_object($1::text, 'acme'))", name)
		if want := "meta." + name + " is not known; meta.tenant_id is probably meant"; got.Message != want {
			t.Errorf("%s, want %s", got.Message, want)
		}
		refused(t, service, "OJ400", "insert into ojs.jobs (type, meta) values ('a', jsonb_build_object($1::text, 'acme'))", name)
	}
	exec(t, service, `select ojs.enqueue('a', p_meta => '{"about": "a tenant", "tenant_name": "Acme", "tenant_id": "acme"}')`)
	// What stands in options over HTTP is a parameter here.
	for option, parameter := range map[string]string{
		"queue": "queue", "priority": "priority", "delay_until": "scheduled_at", "max_attempts": "retry.max_attempts", "metadata": "meta",
	} {
		want := "options." + option + " is a parameter of its own here: " + parameter
		got := refused(t, service, "OJ400", "select ojs.enqueue('a', p_options => json_build_object($1::text, 1))", option)
		if got.Message != want {
			t.Errorf("%s, want %s", got.Message, want)
		}
		refused(t, service, "OJ400", `select ojs.enqueue_many(jsonb_build_array(jsonb_build_object('type', 'a', 'options',
			jsonb_build_object($1::text, 1))))`, option)
	}
	operator := d.Operator()
	exec(t, operator, "select ojs.configure(p_unsupported => 'carry')")
	exec(t, service, `select ojs.enqueue('a', p_extra => '{"team": 1}')`)
	refused(t, d.Operator(), "OJ400", `select ojs.configure_queue('q', '{"default_retry": {"jiter": false}}')`)
}

// The error of a nack decides whether its job runs again.
func TestMisspeltErrorsAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.enqueue('a')")
	id := one[string](t, service, "select id from ojs.fetch('{default}')")
	for _, c := range []struct{ json, field, meant string }{
		{`{"message": "m", "retriable": false}`, "error.retriable", "retryable"},
		{`{"message": "m", "typ": "x"}`, "error.typ", "type"},
		{`{"mesage": "m"}`, "error.mesage", "message"},
	} {
		got := refused(t, service, "OJ400", "select ojs.nack($1, $2)", id, c.json)
		if want := c.field + " is not known; " + c.meant + " is probably meant"; got.Message != want {
			t.Errorf("%s: %s, want %s", c.json, got.Message, want)
		}
	}
	exec(t, service, "select ojs.nack($1, $2)", id,
		`{"message": "m", "code": "c", "detail": 1, "details": {"typ": 1}, "backtrace": [], "x_typ": 1, "traceback": ""}`)
}

// Settings that are not there are refused with the one that was probably meant, or with those that there are.
func TestMisspeltSettingsAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	const limits = "The limits are max_concurrency, max_enqueue_rate, max_queue_depth, max_scheduled, max_stored_bytes, " +
		"max_in_flight_requests, max_waiting_polls, max_request_rate."
	for _, c := range []struct{ state, call, message, hint string }{
		{
			"OJ400", `ojs.configure_limits('acme', '{"max_queue_dept": 5}')`,
			"max_queue_dept is not known; max_queue_depth is probably meant", "",
		},
		{"OJ408", `ojs.configure_limits('acme', '{"size": 5}')`, "size is not supported", limits},
		{
			"OJ408", `ojs.configure_tier('x', '{"max_concurrency": 2}')`, "max_concurrency is not supported",
			"A tier has fairness_weight, priority_boost and limits, under which all limits stand.",
		},
		{"OJ400", `ojs.configure_tier('x', '{"limit": {}}')`, "limit is not known; limits is probably meant", ""},
		{
			"OJ400", `ojs.configure_tier('x', '{"limits": {"max_schedule": 2}}')`,
			"max_schedule is not known; max_scheduled is probably meant", "",
		},
		{"OJ400", `ojs.enqueue_many('[{"type": "a", "argss": []}]')`, "jobs[0] has an unknown field argss; args is probably meant", ""},
		{
			"OJ400", `ojs.enqueue_many('[{"type": "a"}, {"type": "a", "schedule_at": "+PT1H"}]')`,
			"jobs[1] has an unknown field schedule_at; scheduled_at is probably meant", "",
		},
		{"OJ400", `ojs.enqueue_many('[{"type": "a", "color": 1}]')`, "jobs[0] has an unknown field color", ""},
		{
			"OJ400", `ojs.enqueue_many('[{"type": "a", "delay": 5}]')`,
			"jobs[0] has an unknown field delay; scheduled_at is probably meant", "",
		},
		{
			"OJ400", `ojs.enqueue_many('[{"type": "a", "delay_until": "+PT1H"}]')`,
			"jobs[0] has an unknown field delay_until; scheduled_at is probably meant", "",
		},
		{
			"OJ400", `ojs.enqueue_many('[{"type": "a", "lease_token": "x"}]')`,
			"jobs[0] has an unknown field lease_token; lease is probably meant", "",
		},
		{
			"OJ408", `ojs.enqueue_many('[{"type": "a"}, {"type": "a", "unique": {"keys": ["type"]}}]')`,
			"jobs[1]: unique is not supported: this server does not have unique jobs", "",
		},
		{
			"OJ408", `ojs.enqueue_many('[{"type": "a", "rate_limit": {"key": "k"}}]')`,
			"jobs[0]: rate_limit is not supported: this server does not have rate limiting", "",
		},
		{"OJ400", `ojs.configure_queue('q', '{"max_sze": 5}')`, "max_sze is not known; max_size is probably meant", ""},
		{
			"OJ400", `ojs.configure_queue('q', '{"default_timout": 5}')`,
			"default_timout is not known; default_timeout is probably meant", "",
		},
		{"OJ400", `ojs.configure_queue('q', '{"color": 5}')`, "color is no field of a queue's configuration", ""},
		{
			"OJ400", `ojs.configure_queue('q', '{"backpressure": {"max_dept": 5}}')`,
			"backpressure.max_dept is not known; max_depth is probably meant", "",
		},
		{
			"OJ400", `ojs.configure_queue('q', '{"tenant_fairness": {"unti": "cost"}}')`,
			"tenant_fairness.unti is not known; unit is probably meant", "",
		},
		{
			"OJ400", `ojs.configure(p_tenant_fairness => '{"strategi": "fair-share"}')`,
			"tenant_fairness.strategi is not known; strategy is probably meant", "",
		},
		{
			"OJ400", `ojs.configure_queue('q', '{"tenant_fairness": {"color": 1}}')`,
			"tenant_fairness.color is no field of tenant_fairness", "",
		},
		{"OJ400", `ojs.configure_pool('p', '{"queus": ["a"]}')`, "queus is not known; queues is probably meant", ""},
		{"OJ400", `ojs.configure_pool('p', '{"color": 1}')`, "color is no field of a pool", ""},
		{
			"OJ400", `ojs.settle('[{"id": "` + someID + `", "eror": {}}]')`,
			"settlements[0] has an unknown field eror; error is probably meant", "",
		},
		{"OJ400", `ojs.settle('[{"job_id": "` + someID + `"}]')`, "settlements[0] has an unknown field job_id; id is probably meant", ""},
		{
			"OJ400", `ojs.settle('[{"id": "` + someID + `", "lease_token": "x"}]')`,
			"settlements[0] has an unknown field lease_token; lease is probably meant", "",
		},
	} {
		got := refused(t, operator, c.state, "select "+c.call)
		if got.Message != c.message || c.hint != "" && got.Hint != c.hint {
			t.Errorf("%s: %s (%s), want %s", c.call, got.Message, got.Hint, c.message)
		}
	}
}

// What to do about a name that nothing has depends on what it is a name of.
func TestHintsOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for call, want := range map[string]string{
		"ojs.ack(gen_random_uuid())":      "Check the id; finished jobs are removed after their retention.",
		"ojs.set_tier('acme', 'gold')":    "Check the name; the list of tiers shows those that there are.",
		"ojs.deregister_tenant('none')":   "Check the name; the list of tenants shows those that there are.",
		"ojs.direct_worker('w', 'quiet')": "Check the id; a worker that has not been heard of for long is forgotten.",
		"ojs.delete_pool('p')":            "Check the name; the list of pools shows those that there are.",
		"ojs.delete_queue('q')":           "Check the name; the list of queues shows those that there are.",
	} {
		if got := refused(t, operator, "OJ404", "select "+call); got.Hint != want {
			t.Errorf("%s: %s, want %s", call, got.Hint, want)
		}
	}
}

// An entry that names another tenant sets nothing, and a rule for a queue that cannot exist is refused:
// it would never retry a job, without a word.
func TestScopesThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for _, c := range []struct{ call, field string }{
		{`ojs.put_tenant('acme', '{"tenant_id": "globex", "weight": 9}')`, "tenant_id"},
		{`ojs.put_tenant('acme', '{"tenant_id": null, "weight": 9}')`, "tenant_id"},
		{`ojs.configure_static('tenant', 'acme', '{"tenant_id": "globex"}')`, "tenant_id"},
		{`ojs.set_replay_rule('r', p_queue => '')`, "queue"},
		{`ojs.set_replay_rule('r', p_queue => 'MAIL')`, "queue"},
		{`ojs.set_replay_rule('r', p_queue => 'mail,more')`, "queue"},
		{`ojs.set_replay_rule('r', p_type => '')`, "type"},
		{`ojs.set_replay_rule('r', p_error_type => '')`, "error_type"},
	} {
		if got := refused(t, operator, "OJ400", "select "+c.call); !strings.Contains(got.Detail, `"field": "`+c.field+`"`) {
			t.Errorf("%s: %s %s", c.call, got.Message, got.Detail)
		}
	}
	exec(t, operator, `select ojs.put_tenant('acme', '{"tenant_id": "acme", "weight": 9}'), ojs.set_replay_rule('r', p_queue => 'mail')`)
}
