package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// keepUp calls ojs.upkeep until nothing is due, and returns what it did.
func keepUp(t testing.TB, d *pgtest.DB) (steps []string) {
	t.Helper()
	for range 100 {
		step := one[string](t, d.Service(), `
			select concat_ws(': ', u.task, u.step, case when u.next_in_ms > 0 then 'later' end) from ojs.upkeep() u`)
		if step == "later" {
			return steps
		}
		steps = append(steps, step)
		if strings.HasSuffix(step, "later") {
			return steps
		}
	}
	t.Fatalf("there is always more to do: %v", steps)
	return nil
}

// Half a day by a clock that is set, in which a job lives for up to an hour, or is scheduled for hours ahead.
func TestFinishedJobsLeaveAfterTheRetention(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, operator, "select ojs.configure(p_retention => '1 hour')")
	start := time.Now().Truncate(time.Hour)
	ended := map[string]time.Time{}
	made, most := 0, 0
	for minute := 0; minute < 720; minute += 5 {
		now := start.Add(time.Duration(minute) * time.Minute)
		d.SetNow(now)
		if steps := keepUp(t, d); slices.ContainsFunc(steps, func(s string) bool { return strings.Contains(s, "not yet") }) {
			t.Errorf("after %d minutes: %v", minute, steps)
		}
		tick(t, service, 1000)
		for i := range 4 {
			var due *time.Time
			if i == 0 && minute%30 == 0 {
				due = new(now.Add(5 * time.Hour))
			}
			exec(t, service, `
				select ojs.enqueue('a', p_id => $1, p_scheduled_at => $2,
					p_tenant => 'acme')`, uuidAt(now.Add(time.Duration(i)*time.Millisecond)), due)
			made++
		}
		exec(t, service, "select ojs.ack(id, lease) from ojs.fetch('{default}', 3)")
		for _, id := range list[string](t, d.Pool, "select id from ojs.job where finished_at = $1", now) {
			ended[id] = now
		}
		there := map[string]bool{}
		for _, id := range list[string](t, d.Pool, "select id from ojs.job where state = 'completed'") {
			there[id] = true
		}
		for id, at := range ended {
			if age := now.Sub(at); age < time.Hour && !there[id] || age > 2*time.Hour && there[id] {
				t.Errorf("after %d minutes, job %s, which ended %s ago: there %v", minute, id, age, there[id])
			}
		}
		most = max(most, len(partitions(t, d)))
	}
	if most > 5 {
		t.Errorf("there were %d partitions at once", most)
	}
	if got := one[int](t, service, "select sum(total_jobs)::int from ojs.shard_stats"); got != made {
		t.Errorf("the statistics count %d jobs of %d", got, made)
	}
	if got, want := one[int](t, d.Pool, "select count(*) from ojs.job where state <> 'completed'"), made-len(ended); got != want {
		t.Errorf("%d jobs have not ended, want %d", got, want)
	}
}

// Ids that a producer takes from a time to come hold up nothing.
func TestIdsFromTheFuture(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, operator, "select ojs.configure(p_retention => '1 hour')")
	now := time.Now().Truncate(time.Second)
	ids := []string{uuidAt(now.Add(20 * time.Minute)), uuidAt(now.Add(3 * time.Hour)), uuidAt(now.Add(23 * time.Hour))}
	for _, id := range ids {
		exec(t, service, "select ojs.enqueue('a', p_id => $1, p_meta => '{\"k\": 1}')", id)
	}
	wakes := one[int](t, service, "select count(*) from ojs.journal")
	for range 24 {
		now = now.Add(10 * time.Minute)
		d.SetNow(now)
		if steps := keepUp(t, d); slices.ContainsFunc(steps, func(s string) bool { return strings.Contains(s, "not yet") }) {
			t.Errorf("at %s: %v", now, steps)
		}
	}
	if got := partitions(t, d); len(got) > 5 {
		t.Errorf("the partitions are %v", got)
	}
	if got := one[int](t, service, "select count(*) from ojs.journal"); got != wakes {
		t.Errorf("%d lines in the journal, were %d", got, wakes)
	}
	if got := list[string](t, service, "select id::text from ojs.fetch('{default}', 10)"); !slices.Equal(got, ids) {
		t.Errorf("handed out %v, want %v", got, ids)
	}
	for _, id := range ids {
		exec(t, service, "select ojs.ack($1)", id)
	}
}

// A partition that has to stay is no reason to keep the others.
func TestWhatStaysKeepsNothingElse(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	start := time.Now()
	var hours []time.Time
	for hour := range 5 {
		now := start.Add(time.Duration(hour) * time.Hour)
		hours = append(hours, now)
		d.SetNow(now)
		untilDone(t, operator, "select ojs.cut_partition($1)", now.Add(time.Hour))
		open := []int{1, 4, 1, 1, 0}[hour]
		for i := range 10 {
			queue := "done"
			if i < open {
				queue = "open"
			}
			id := uuidAt(now.Add(time.Minute + time.Duration(i)*time.Millisecond))
			exec(t, service, "select ojs.enqueue('a', p_id => $1, p_queue => $2)", id, queue)
		}
		for exec(t, service, "select ojs.ack(id, lease) from ojs.fetch('{done}', 100)") > 0 {
		}
	}
	d.SetNow(start.Add(24 * time.Hour))
	const drop = "select ojs.drop_finished($1, 2)"
	for one[int](t, d.Pool, "select count(*) from ojs.job where state = 'completed'") > 16 {
		exec(t, operator, drop, hours[4].Add(time.Minute))
	}
	for range 5 {
		if _, err := operator.Exec(t.Context(), drop, hours[4].Add(time.Minute)); err != nil {
			if failure := refused(t, operator, "OJ409", drop, hours[4].Add(time.Minute)); len(detail(t, failure)["job_ids"].([]any)) != 3 {
				t.Errorf("the refusal says %v", detail(t, failure))
			}
			break
		}
	}
	// The first is replaced, the second stays, the third and the fourth became one; then the fifth and the open one.
	if got := partitions(t, d); !slices.Equal(got, []string{"job_before", "job_from", "job_before", "job_from", "job_from"}) {
		t.Errorf("the partitions are %v", got)
	}
	if got := lines(t, d.Pool, `
		select state, count(*) from ojs.job group by 1 order by 1`); !slices.Equal(got, []string{"available 7", "completed 16"}) {
		t.Errorf("there are jobs %v", got)
	}
	for _, hour := range hours {
		exec(t, service, "select ojs.enqueue('a', p_id => $1, p_queue => 'open')", uuidAt(hour.Add(2*time.Minute)))
	}
	if got := exec(t, service, "select ojs.ack(id, lease) from ojs.fetch('{open}', 100)"); got != 12 {
		t.Errorf("%d jobs were handed out, want 12", got)
	}
	// They ended just now.
	refused(t, operator, "OJ409", drop, hours[4].Add(time.Minute))
	d.SetNow(start.Add(25 * time.Hour))
	untilDone(t, operator, drop, start.Add(25*time.Hour))
	if got := one[int](t, d.Pool, "select count(*) from ojs.job"); got != 0 {
		t.Errorf("%d jobs are left", got)
	}
}

// A step that cannot be done is reported and tried again, more and more rarely. No session waits for it.
func TestUpkeepThatHasToWait(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	status := func(task string) string {
		t.Helper()
		return one[string](t, operator, "select concat_ws(' ', s.last_step, s.failures) from ojs.upkeep_status s where s.task = $1", task)
	}
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	exec(t, tx, "select ojs.enqueue('a')")
	now := time.Now()
	for n := range 3 {
		d.SetNow(now.Add(time.Duration(n) * time.Hour))
		if got := keepUp(t, d); !slices.Equal(got, []string{"cut: again: the table was in use: later"}) {
			t.Errorf("beside a transaction that stays open: %v", got)
		}
		if got, want := status("cut"), fmt.Sprintf("again: the table was in use %d", n+1); got != want {
			t.Errorf("the status is %q, want %q", got, want)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(4 * time.Hour)
	d.SetNow(now)
	if got := keepUp(t, d); len(got) != 1 || !strings.HasPrefix(got[0], "cut: done: cut ") {
		t.Errorf("after it: %v", got)
	}

	// More jobs that have not ended than can be moved.
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue) select 'acme', 'a', 'q' from generate_series(1, 10001)")
	now = now.Add(30 * 24 * time.Hour)
	d.SetNow(now)
	steps := keepUp(t, d)
	if got := status("drop"); !strings.HasPrefix(got, "not yet: job_all holds more than 10000 jobs that have not ended") {
		t.Errorf("the status is %q after %v", got, steps)
	}
	// No worker takes these jobs, and other jobs come and go.
	exec(t, service, "select ojs.cancel(id) from ojs.job where queue = 'q'")
	now = now.Add(6 * 24 * time.Hour)
	d.SetNow(now)
	keepUp(t, d)
	if got := one[int](t, d.Pool, "select count(*) from ojs.job"); got != 10002 {
		t.Errorf("%d jobs are left, want all: they were cancelled less than 7 days ago", got)
	}
	d.SetNow(now.Add(2 * 24 * time.Hour))
	keepUp(t, d)
	if got := one[int](t, d.Pool, "select count(*) from ojs.job"); got != 1 {
		t.Errorf("%d jobs are left, want the one that has not ended", got)
	}
	if got := status("drop"); !strings.HasPrefix(got, "done") && !strings.HasPrefix(got, "again: dropped") {
		t.Errorf("the status is %q", got)
	}
}

func TestRetentionIsConfigured(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for _, bad := range []string{"1 second", "-1 day", "102 years"} {
		if got := detail(t, refused(t, operator, "OJ422", "select ojs.configure(p_retention => $1)", bad)); got["field"] != "retention" {
			t.Errorf("the refusal of %s says %v", bad, got)
		}
	}
	refused(t, operator, "OJ422", "select ojs.configure(p_journal_retention => '59 seconds')")
	refused(t, d.Service(), "42501", "select ojs.configure(p_retention => '1 day')")
	exec(t, operator, "select ojs.configure(p_retention => '0')")
	d.SetNow(time.Now().AddDate(1, 0, 0))
	if got := keepUp(t, d); len(got) > 0 {
		t.Errorf("without a retention: %v", got)
	}
	// A month is as long as it is, whatever the calendar and the session's time zone say.
	exec(t, operator, "select ojs.configure(p_retention => '1 month')")
	d.SetNow(time.Date(2031, 1, 31, 0, 30, 0, 0, time.UTC))
	keepUp(t, d)
	for day := range 90 {
		d.SetNow(time.Date(2031, 1, 31, 1, 0, 0, 0, time.UTC).AddDate(0, 0, day))
		keepUp(t, d)
	}
	if got := len(partitions(t, d)); got > 5 {
		t.Errorf("%d partitions", got)
	}
}

// The journal outlives jobs by a minute at most.
func TestTheJournalIsKeptNoLongerThanJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	now := time.Now().Truncate(time.Second)
	d.SetNow(now)
	journal := func() int {
		t.Helper()
		return one[int](t, service, `
			select (select count(*) from ojs.journal where at = $1) + (select count(*) from ojs.lease where at = $1)
				+ (select count(*) from ojs.release where at = $1)`, now)
	}
	enqueueFor(t, service, "default", "acme", 10)
	exec(t, service, "select ojs.ack(id) from ojs.fetch('{default}', 10)")
	before := journal()
	tick(t, service, 1000)
	d.SetNow(now.Add(time.Hour))
	tick(t, service, 1000)
	if got := journal(); got != before || got == 0 {
		t.Errorf("after an hour the journal has %d rows, of %d", got, before)
	}
	exec(t, operator, "select ojs.configure(p_retention => '10 seconds')")
	d.SetNow(now.Add(50 * time.Second))
	tick(t, service, 1000)
	if got := journal(); got != before {
		t.Errorf("after 50 seconds the journal has %d rows, of %d", got, before)
	}
	d.SetNow(now.Add(70 * time.Second))
	// As far as the oldest transaction anywhere on the server, and other tests have theirs.
	for journal() > 0 {
		exec(t, service, "select from ojs.enqueue('a', p_tenant => 'globex')")
		exec(t, service, "select ojs.cancel(id) from ojs.fetch('{default}', 10)")
		tick(t, service, 1000)
	}
	if got := one[int](t, service, "select sum(completed)::int from ojs.shard_stats"); got != 10 {
		t.Errorf("the statistics count %d jobs", got)
	}
}

// However many ids of the day to come a tenant takes, and however short the retention is, the jobs of all leave, a day later at most.
func TestManyIdsFromTheFuture(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator, acme := d.Service(), d.Operator(), d.As("acme")
	exec(t, operator, "select ojs.configure(p_retention => '1 hour')")
	now := time.Now().Truncate(time.Second)
	take := func() {
		t.Helper()
		exec(t, acme, `
			insert into ojs.jobs (type, queue, id) select 'a', 'mine', ($1 || lpad(to_hex(n), 12, '0'))::uuid
			from generate_series(1, 10001) n`, uuidAt(now.Add(23 * time.Hour))[:24])
	}
	take()
	if got := keepUp(t, d); !strings.HasPrefix(got[len(got)-1], "cut: done") {
		t.Errorf("the upkeep did %v", got)
	}
	first := one[time.Time](t, operator, "select max(from_at) from ojs.job_partitions")
	if ahead := first.Sub(now); ahead < 24*time.Hour || ahead > 26*time.Hour {
		t.Errorf("the cut lies %s ahead", ahead)
	}
	exec(t, service, "select ojs.enqueue('b')")
	exec(t, service, "select ojs.ack(id, lease) from ojs.fetch('{default}')")
	exec(t, service, "select ojs.cancel(id) from ojs.job where queue = 'mine'")
	for now.Before(first.Add(3 * time.Hour)) {
		now = now.Add(30 * time.Minute)
		d.SetNow(now)
		keepUp(t, d)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job"); got != 0 {
		t.Errorf("%d jobs are left", got)
	}
}

// A step that fails is noted with its error, does not keep other tasks from their turn, and is named by the doctor after three times.
func TestUpkeepNotesItsErrors(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	now := time.Now().Truncate(time.Second)
	d.SetNow(now)
	exec(t, d.Pool, `
		create function public.forbid() returns event_trigger language plpgsql as 'begin raise exception ''no DDL here''; end';
		create event trigger `+d.RoleName("forbid")+` on ddl_command_start execute function public.forbid();`)
	exec(t, service, `select ojs.enqueue_once('k', '[{"type": "a"}]')`)
	exec(t, d.Pool, "update ojs.idempotency set expires_at = ojs.now()")
	doctor := func() []string {
		return lines(t, d.Operator(), "select finding from ojs.doctor() where topic = 'upkeep'")
	}
	const failed = "failed: no DDL here (P0001)"
	for i := 1; i <= 3; i++ {
		if got := doctor(); len(got) != 0 {
			t.Errorf("after %d failures the doctor says %q", i-1, got)
		}
		keepUp(t, d)
		if got := lines(t, d.Operator(),
			"select last_step, failures from ojs.upkeep_status where task = 'cut'"); got[0] != fmt.Sprint(failed, " ", i) {
			t.Errorf("the cut is noted as %q, want failure %d", got, i)
		}
		now = now.Add(5 * time.Minute)
		d.SetNow(now)
	}
	if got := doctor(); len(got) != 1 || !strings.Contains(got[0], "cut") || !strings.Contains(got[0], failed) {
		t.Errorf("after three failures the doctor says %q", got)
	}
	if n := one[int](t, d.Pool, "select count(*)::int from ojs.idempotency"); n != 0 {
		t.Error("the other tasks are not done")
	}
	exec(t, d.Pool, "drop event trigger "+d.RoleName("forbid"))
	if steps := keepUp(t, d); len(doctor()) != 0 {
		t.Errorf("when the trigger is gone the upkeep does %q, and the doctor says %q", steps, doctor())
	}
}
