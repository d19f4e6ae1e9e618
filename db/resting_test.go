package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A queue whose workers were all told to rest or end is not served, although a FETCH of one waits and jobs were handed out a moment ago.
func TestQueueOfWorkersThatRestIsNotServed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service, operator := d.Service(), d.Operator()
	enqueueFor(t, service, "mail", "acme", 5)
	exec(t, service, "select ojs.register_worker('w1', p_queues => '{mail}'), ojs.register_worker('w2', p_queues => '{mail}')")
	exec(t, service, "select ojs.ack(f.id) from ojs.fetch('{mail}', 1, 'w1') f")
	exec(t, service, "select ojs.fetch('{mail}', 1, 'w1')")
	exec(t, service, "select ojs.register_waiters($1, '{mail}')", someID)
	id := one[string](t, service, "select id::text from ojs.job where state = 'available' order by seq limit 1")
	told := one[string](t, operator, "select session_user::text")

	const served = "select served from ojs.queue_demands where queue = 'mail'"
	const doctor = "select severity || ' ' || finding || ' ' || advice from ojs.doctor() where topic = 'queues'"
	expect := func(what string, serves bool, finding, why, reason string) {
		t.Helper()
		if got := one[bool](t, operator, served); got != serves {
			t.Errorf("%s: served is %v", what, got)
		}
		if got := strings.Join(lines(t, operator, doctor), "; "); !strings.HasPrefix(got, finding) || (finding == "") != (got == "") {
			t.Errorf("%s the doctor says %q, want %q", what, got, finding)
		}
		got := strings.Join(lines(t, operator, "select why, detail from ojs.blocked_tenants"), "; ")
		if got != why {
			t.Errorf("%s blocked are %q, want %q", what, got, why)
		}
		reasons := one[string](t, operator, "select array_to_string(reasons, ' ') from ojs.explain($1)", id)
		if !strings.Contains(reasons, reason) ||
			reason == "" && strings.Contains(reasons, "worker") != strings.Contains(reasons, "the next worker") {
			t.Errorf("%s the job is explained by %q, want %q", what, reasons, reason)
		}
		got = one[string](t, d.As("acme"), "select array_to_string(reasons, ' ') from ojs.explain($1)", id)
		if strings.Contains(got, "rest") || strings.Contains(got, told) {
			t.Errorf("%s the tenant is told %q", what, got)
		}
	}
	expect("at first", true, "", "", "")
	exec(t, operator, "select ojs.direct_worker('w1', 'quiet')")
	expect("when one of two rests", true, "", "", "")
	exec(t, operator, "select ojs.direct_workers('quiet')")
	expect("when both rest", false,
		"warning All 2 workers of queue mail rest or end: 3 jobs of 1 tenants wait, the first for 00:00:00. "+told+
			" told the workers to rest (quiet) at ",
		"all workers of the queue rest or end "+told+" told them: quiet",
		"The 2 workers of queue mail all rest or end. "+told+" told the workers to rest (quiet) at ")
	exec(t, operator, "select ojs.direct_workers('running')")
	expect("when they go on", true, "", "", "")

	exec(t, operator, "select ojs.direct_workers('terminate')")
	final := "terminate is final for the processes that were told."
	expect("when they are ending", false, "error All 2 workers of queue mail rest or end: 3 jobs of 1 tenants wait",
		"all workers of the queue rest or end "+told+" told them: terminate", "Start workers again: terminate is final.")
	if got := lines(t, operator, doctor); len(got) != 1 || !strings.HasSuffix(got[0], final) {
		t.Errorf("the doctor says %q", got)
	}
	// A worker that is not registered may take jobs all the same.
	d.SetNow(noon.Add(5 * time.Second))
	exec(t, service, "select ojs.ack(f.id) from ojs.fetch('{mail}', 1, 'curl') f")
	id = one[string](t, service, "select id::text from ojs.job where state = 'available' order by seq limit 1")
	expect("when another worker takes jobs", true, "", "", "")

	// They end. What was handed out before the directive is no sign that anybody asks.
	exec(t, operator, "select ojs.direct_workers('terminate')")
	exec(t, service, "select ojs.ack(id) from ojs.job where state = 'active'")
	exec(t, service, "select ojs.deregister_worker('w1'), ojs.deregister_worker('w2'), ojs.drop_waiter($1, 'mail')", someID)
	exec(t, service, "select ojs.tick()")
	d.SetNow(noon.Add(20 * time.Second))
	exec(t, service, "select ojs.tick()")
	expect("when they have ended", false, "error No worker asks for queue mail: 2 jobs of 1 tenants wait, the first for 00:00:20. "+told,
		"no worker asks for the queue "+told+" told all workers: terminate", "No worker asks for queue mail. "+told)
	exec(t, service, "select ojs.register_worker('w3', p_queues => '{mail}'), ojs.register_waiters($1, '{mail}')", someID)
	expect("when a new worker waits", true, "", "", "")
}

// An operator that may not end sessions is told so before it has to end one.
func TestDoctorNamesWhatAnOperatorLacks(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const lacks = "select advice from ojs.doctor() where topic = 'roles' and severity = 'note' order by 1"
	name := one[string](t, d.Operator(), "select session_user::text")
	want := []string{"grant pg_read_all_stats to " + name, "grant pg_signal_backend to " + name}
	if got := lines(t, d.Operator(), lacks); !slices.Equal(got, want) {
		t.Errorf("the doctor says %q, want %q", got, want)
	}
	exec(t, d.Pool, "grant pg_read_all_stats, pg_signal_backend to "+name)
	if got := lines(t, d.Operator(), lacks); len(got) != 0 {
		t.Errorf("with both the doctor says %q", got)
	}
}

// The doctor reads neither leases nor the audit trail for workers that rest while none does.
func TestNobodyRestsCostsNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "select ojs.register_worker('w', p_queues => '{mail}')")
	enqueueFor(t, d.Service(), "mail", "acme", 3)
	exec(t, d.Service(), "select ojs.fetch('{mail}', 2, 'w')")
	tx := begin(t, d.Operator())
	exec(t, tx, "select * from ojs._resting_queues()")
	got := lines(t, tx, `select s.relname::text from pg_catalog.pg_stat_xact_user_tables s
		where s.schemaname = 'ojs' and s.seq_tup_read + s.idx_tup_fetch > 0 order by 1`)
	if slices.Contains(got, "lease") || slices.Contains(got, "worker_beat") || slices.Contains(got, "audit") {
		t.Errorf("read are %s", fmt.Sprint(got))
	}
	rollback(t, tx)
}
