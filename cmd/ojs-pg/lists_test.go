package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// startCrowded is a database with what an operator finds at night: tenants and queues whose names
// have 20 characters, numbers of seven digits, limits, pauses with long reasons, throttles.
func startCrowded(t *testing.T) *operating {
	t.Helper()
	d := pgtest.New(t)
	o := &operating{t, d.OperatorURL(), d.OperatorURL, d.Pool}
	o.sql(`
		select ojs.enqueue_many((
			select jsonb_agg(jsonb_build_object('type', 'email.send.confirmation', 'args', '[]'::jsonb, 'queue', q, 'tenant', t,
				'max_attempts', 1, 'retry', '{"on_exhaustion": "dead_letter"}'::jsonb))
			from unnest('{production-emails-eu,billing-exports-us-1,webhooks-outgoing-01}'::text[]) q,
				unnest('{customer-northwind-1,customer-contoso-eu1,customer-fabrikam-us}'::text[]) t, generate_series(1, 4)))`)
	// Finished and failed jobs, a worker that holds some, and one that is silent.
	o.sql(`
		do $$
		declare v_job ojs.job;
		begin
			for v_job in
				select * from ojs.fetch('{production-emails-eu}', 6, 'worker-mail-eu-0001', p_tenant => 'customer-contoso-eu1')
			loop
				if v_job.seq % 2 = 0 then
					perform ojs.ack(v_job.id);
				else
					perform ojs.nack(v_job.id, '{"code": "smtp", "message": "no route to host"}');
				end if;
			end loop;
			perform ojs.fetch('{webhooks-outgoing-01}', 3, 'worker-mail-eu-0001');
			perform ojs.beat('worker-mail-eu-0001', array(select id from ojs.jobs where state = 'active'),
				p_hostname => 'ip-10-132-44-17.eu-central-1.compute.internal',
				p_queues => '{production-emails-eu,webhooks-outgoing-01}');
		end $$`)
	o.sql(`
		select ojs.configure_tenant('customer-northwind-1', 0.125);
		select ojs.pause('billing-exports-us-1', p_reason => 'deploy of the billing service, see the on-call notes of today');
		select ojs.pause('production-emails-eu', 'customer-fabrikam-us', 'complaints about duplicates');
		select ojs.limit_concurrency(1, 'customer-northwind-1', 'webhooks-outgoing-01', 'their endpoint allows one connection');
		select ojs.limit_concurrency(1000000, 'customer-fabrikam-us');
		select ojs.configure_limits('customer-northwind-1', '{"max_queue_depth": 1000000, "max_concurrency": 1000000,
			"max_enqueue_rate": {"limit": 1000000, "period": "PT1M"}, "max_stored_bytes": 5000000000}', p_reason => 'contract of 2031');
		select ojs.configure_limits('customer-northwind-1', '{"max_queue_depth": 3}', 'production-emails-eu', 'one queue is enough');
		select ojs.configure_tier('enterprise-platinum1', '{"limits": {"max_concurrency": 20, "max_queue_depth": 1000000},
			"fairness_weight": 5}', 'the contract of 2031 for large customers');
		select ojs.set_tier('customer-contoso-eu1', 'enterprise-platinum1', 'they have signed');
		select ojs.throttle('customer-contoso-eu1', 'floods the queue of emails since noon', 'concurrency', 0.2, '30 minutes');
		select ojs.configure_pool('production-emails-eu', '{"queues": ["production-emails-eu", "billing-exports-us-1"],
			"strategy": "weighted", "weights": {"production-emails-eu": 3, "billing-exports-us-1": 1}, "concurrency": 1000000}');
		select ojs.create_api_key('customer-northwind-1', '{produce,read}', 'the web application in the eu', null,
			ojs.now() + interval '90 days')`)
	// Numbers of seven digits cannot be made by a test in time, so they are written where they are counted.
	o.sql(`insert into ojs.tally (tenant_id, queue, priority, available, active, retryable, discarded, total, dispatched)
		values ('customer-northwind-1', 'production-emails-eu', 5, 1234567, 7654321, 1234567, 7654321, 9999999, 1234567),
			('customer-fabrikam-us', 'billing-exports-us-1', 5, 7654321, 1234567, 1234567, 7654321, 9999999, 1234567)`)
	// A row that no hour has closed, which usage verify finds.
	o.sql(`insert into ojs.usage_batch (tenant_id, n, hour, closed_at, enqueued, attempts, completed, failed, failed_attempts, worker_ms,
			stored_bytes, refused_429, refused_507, hash)
		values ('customer-contoso-eu1', 1000000, date_trunc('hour', ojs.now(), 'UTC') - interval '2 hours', ojs.now(), 9999999, 9999999,
			9999999, 9999999, 9999999, 36000000000, 5000000000, 9999999, 9999999, '0')`)
	// Noise is measured for minutes until a tenant counts as noisy.
	o.sql(`insert into ojs.neighbour (tenant_id, signal, value, threshold, since, seen_at)
		values ('customer-contoso-eu1', 'enqueue_rate_ratio', 12.34567, 10, ojs.now() - interval '9 days', ojs.now())`)
	return o
}

// Every list fits into 80 columns, and --wide and --json have everything that is left out.
func TestAdminListsFitIntoEightyColumns(t *testing.T) {
	t.Parallel()
	o := startCrowded(t)
	active := pgtest.One[string](t, o.pool, "select id::text from ojs.job where state = 'active' limit 1")
	waits := pgtest.One[string](t, o.pool, `select id::text from ojs.job
		where state = 'available' and queue = 'webhooks-outgoing-01' and tenant_id = 'customer-northwind-1' limit 1`)
	// What each list has to show, however narrow it is.
	// key is a command of its own, with the same tables.
	print := func(option, list string) string {
		t.Helper()
		args := []string{"ojs-pg", "admin", "--database-url", o.url}
		if rest, isKey := strings.CutPrefix(list, "key "); isKey {
			args[1], list = "key", rest
		}
		if option != "" {
			args = append(args, option)
		}
		var stdout, stderr bytes.Buffer
		if status := run(append(args, strings.Fields(list)...), &stdout, &stderr); status != 0 {
			t.Fatalf("%v %s ends with %d: %s", args, list, status, &stderr)
		}
		return stdout.String()
	}
	for list, want := range map[string]string{
		"key list":                        "the web",
		"tenants":                         "customer-northwind-1",
		"queues":                          "production-emails-eu",
		"rules":                           "billing-exports-us-1",
		"limits":                          "max_stored_bytes",
		"tiers":                           "enterprise-platinum1",
		"workers":                         "worker-mail-eu-0001",
		"worker " + "worker-mail-eu-0001": active,
		"pools":                           "production-emails-eu",
		"scheduling":                      "webhooks-outgoing-01",
		"scheduling tenants":              "customer-fabrikam-us",
		"neighbours":                      "enqueue_rate_ratio",
		"audit":                           "throttle",
		"usage":                           "9999k",
		"jobs":                            active,
		"jobs --state active":             active,
		"jobs --queue webhooks-outgoing-01 --type email.*": active,
		"--tenant customer-contoso-eu1 jobs":               "discarded",
		"events":                                           "job.enqueued",
		"--tenant customer-contoso-eu1 events":             "job.dead_lettered",
		"blocked":                                          "queue paused",
		"explain " + waits:                                 waits,
		"--tenant customer-northwind-1 preview-weight 9":   "customer-fabrikam-us",
	} {
		text := print("", list)
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", list, want, text)
		}
		rows := 0
		if _, jobs, isRecord := strings.Cut(text, "\n\n"); isRecord && strings.HasPrefix(list, "worker ") {
			text = jobs // of the worker that is shown before
		}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			// Sentences are no list: the terminal may break their lines.
			isList := !strings.HasPrefix(list, "explain") || !strings.Contains(line, ". ") && !strings.HasSuffix(line, ".")
			if columns := utf8.RuneCountInString(line); isList && columns > 80 {
				t.Errorf("%s has a line of %d columns:\n%s", list, columns, line)
			}
			rows++
		}
		if rows < 2 {
			t.Errorf("%s has no rows:\n%s", list, text)
		}

		var shown any
		if err := json.Unmarshal([]byte(print("--json", list)), &shown); err != nil {
			t.Errorf("%s --json: %v", list, err)
			continue
		}
		all, isList := shown.([]any)
		if !isList {
			continue
		}
		wide := strings.SplitN(print("--wide", list), "\n", 2)[0]
		for field := range all[0].(map[string]any) {
			if head := strings.TrimSuffix(field, "_ms"); !strings.Contains(" "+strings.Join(strings.Fields(wide), " ")+" ", " "+head+" ") {
				t.Errorf("%s --wide has no column %s:\n%s", list, head, wide)
			}
		}
	}
	if got := print("--json", "tenants"); !strings.Contains(got, `"max_stored_bytes": {`) {
		t.Errorf("the limits of tenants are not printed as JSON:\n%s", got)
	}
}
