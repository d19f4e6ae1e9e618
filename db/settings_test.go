package db_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A backslash in an ordinary literal means something else in sessions with standard_conforming_strings = off. In E'...' it never does.
func TestNoFunctionDependsOnStandardConformingStrings(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	escapes := regexp.MustCompile(`(?s)--[^\n]*|E'(?:[^'\\]|\\.|'')*'`)
	for _, body := range list[string](t, d.Pool, `
		select p.oid::pg_catalog.regprocedure || E'\n' || p.prosrc from pg_catalog.pg_proc p
		where p.pronamespace = 'ojs'::pg_catalog.regnamespace and p.prosrc like E'%\\\\%'`) {
		if name, rest, _ := strings.Cut(body, "\n"); strings.Contains(escapes.ReplaceAllString(rest, ""), `\`) {
			t.Errorf("%s has a backslash outside of E'...'", name)
		}
	}
}

// oddSettings are settings that a session may have by its role, its database or a program.
var oddSettings = []string{
	"standard_conforming_strings = off", "datestyle = 'German, DMY'", "intervalstyle = 'sql_standard'", "timezone = 'America/New_York'",
	"extra_float_digits = -10", "bytea_output = 'escape'", "array_nulls = off", "transform_null_equals = on",
	"search_path = pg_temp, public", "quote_all_identifiers = on",
	"client_encoding = 'LATIN1'", "xmloption = 'document'", "default_transaction_deferrable = on",
}

// dayOfNewYork is the noon before a day that has 23 hours in New York.
var dayOfNewYork = time.Date(2027, 3, 13, 12, 0, 0, 0, time.UTC)

// Callers are left what they have set, and what is stored and answered is the same.
func TestSettingsOfACallerChangeNothing(t *testing.T) {
	t.Parallel()
	random := regexp.MustCompile(`ojs_[0-9a-f]{8}\b|[0-9a-f]{8}-[0-9a-f-]{27}|all_ojs_test_\w+`)
	played := func(settings ...string) []string {
		d := pgtest.New(t)
		d.SetNow(dayOfNewYork)
		conn := connect(t, d.LoginURL("all", "in role ojs_operator, ojs_producer, ojs_worker"))
		for _, setting := range settings {
			exec(t, conn, "set "+setting)
		}
		var answers []string
		for _, sql := range []string{
			`select array[j.args::text, j.meta::text, j.tags::text]
				from ojs.enqueue('a.b', E'["C:\\\\x", "\\u00e9", 1.50]', p_tags => '{a,b}', p_meta => E'{"k": "\\\\"}') j`,
			`select array_agg(j.args::text || extract(epoch from j.scheduled_at)) from ojs.enqueue_many('[
				{"type": "a", "args": [], "queue": "later", "scheduled_at": "+P1D", "tags": ["x"], "priority": -3},
				{"type": "a", "args": [1e400], "queue": "later", "scheduled_at": "2027-03-15T01:02:03+01:00",
					"retry": {"max_interval": "P1D"}}]') j`,
			`select array[count(*)::text] from ojs.enqueue_once('once', '[{"type": "a", "args": [], "queue": "other"}]', null)`,
			`insert into ojs.jobs (type, args, queue) values ('a', '[2]', 'copied') returning type`,
			`select array[c.expression] from ojs.put_cron('daily', '0 3 * * *', 'a', p_timezone => 'Europe/Berlin') c`,
			`select array[c.expression] from ojs.put_cron('often', '@every 1h30m', 'a') c`,
			`select array[s.retention = interval '3 days 4 hours'] from ojs.configure(p_retention => '3 days 4 hours') s`,
			`select array_agg(ojs._limit_json(l) order by l.resource) from ojs.configure_limits('acme',
				'{"max_enqueue_rate": {"limit": 100, "period": "P1DT1M"}, "max_queue_depth": 12345678}') l`,
			`select array[count(*)] from ojs.create_api_key('acme', '{read}') k, ojs.rotate_api_key(k.id, '1 day') r`,
			`select array[extract(epoch from h.until)]
				from ojs.throttle('acme', p_action => 'weight', p_factor => 0.123456789, p_lasts => '1 day') h`,
			`select array[r.name] from ojs.set_replay_rule('r', '1 day') r`,
			`select f.args from ojs.fetch('{default}', p_worker_id => 'w') f`,
			`select array[n.state::text, n.errors::text] from ojs.jobs j cross join lateral ojs.nack(j.id,
				'{"type": "t", "message": "m", "retryable": false}') n where j.state = 'active'`,
			`select array[ojs.dead_letter_stats() #- '{retention,next_prune_at}']`,
			`select array_agg(e.data - '{id,job_id}'::text[] order by e.type, e.data::text) from ojs.events() e`,
			`select e.reasons from ojs.jobs j cross join lateral ojs.explain(j.id) e where j.queue = 'other'`,
			`select array[ojs.purge_dead_letters(p_since => '2027-01-01Z', p_until => '2028-01-01Z')]`,
		} {
			answers = append(answers, list[string](t, conn, "with x as ("+sql+") select x::text from x")...)
		}
		for _, sql := range []string{
			"select to_jsonb(j) - '{id,seq,lease,worker_id}'::text[] from ojs.job j order by queue, args::text",
			"select to_jsonb(a) - 'n' - 'actor' from ojs.audit a order by n",
			"select k.expires_at from ojs.api_key k order by 1", "select i.expires_at from ojs.idempotency i",
			"select h from ojs.throttle h",
			"select to_jsonb(c) - 'id' from ojs.cron c order by name", "select t.due_at, t.kind from ojs.timer t order by 1, 2",
		} {
			answers = append(answers, list[string](t, d.Pool, "with x as ("+sql+") select x::text from x")...)
		}
		for i := range answers {
			answers[i] = random.ReplaceAllString(answers[i], "?")
		}
		return answers
	}
	want, got := played(), played(oddSettings...)
	if len(got) != len(want) {
		t.Fatalf("%d answers instead of %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("the answer is\n%s\ninstead of\n%s", got[i], want[i])
		}
	}
}
