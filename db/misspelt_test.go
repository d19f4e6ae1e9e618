package db_test

import (
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
		{"p_options", `{"delay": 5}`, "options.delay", "delay_until"},
		{"p_extra", `{"priorty": 5}`, "priorty", "priority"},
		{"p_extra", `{"tenant_id": "acme"}`, "tenant_id", "meta.tenant_id"},
		{"p_retry", `{"max_atempts": 5}`, "retry.max_atempts", "max_attempts"},
		{"p_retry", `{"max_attempts": 5, "backoff": "linear"}`, "retry.backoff", "backoff_strategy"},
	} {
		got := refused(t, service, "OJ400", "select ojs.enqueue('a', "+c.argument+" => $1)", c.json)
		if want := c.field + " is not known; " + c.meant + " is probably meant"; got.Message != want {
			t.Errorf("%s: %s, want %s", c.json, got.Message, want)
		}
		if c.argument != "p_retry" {
			refused(t, service, "OJ400", "insert into ojs.jobs (type, "+c.argument[2:]+") values ('a', $1)", c.json)
		}
	}
	exec(t, service, `
		select ojs.enqueue('a', p_options => '{"x_priorty": 1, "region": "eu"}', p_extra => '{"ext_typ": 1, "team": "a", "": 2}',
			p_retry => '{"max_attempts": 2, "owner": "me"}')`)
	refused(t, d.Operator(), "OJ400", `select ojs.configure_queue('q', '{"default_retry": {"jiter": false}}')`)
}
