package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// fail makes jobs of a tenant that fail finally, each of another type and with the given retry policy.
func fail(t testing.TB, d *pgtest.DB, tenant, policy, failure string, types ...string) (ids []string) {
	t.Helper()
	service := d.Service()
	for _, kind := range types {
		id := one[string](t, service, `
			select id::text from ojs.enqueue($1, p_queue => 'again', p_retry => $2::text::jsonb, p_tenant => $3)`, kind, policy, tenant)
		oneJob(t, service, "ojs.fetch('{again}')")
		if got := one[string](t, service, "select state::text from ojs.nack($1, $2::text::jsonb)", id, failure); got != "discarded" {
			t.Fatalf("%s is %s", kind, got)
		}
		ids = append(ids, id)
	}
	return ids
}

// Whatever the policy said, what failed for good is still there and runs again.
func TestAnyDiscardedJobRunsAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	for _, c := range []struct{ name, policy, failure string }{
		{"attempts are exhausted, no word about it", `{"max_attempts": 1}`, `{"message": "m"}`},
		{"attempts are exhausted, discard", `{"max_attempts": 1, "on_exhaustion": "discard"}`, `{"message": "m"}`},
		{"attempts are exhausted, dead_letter", deadPolicy, `{"message": "m"}`},
		{"the handler discards it", `{}`, `{"message": "m", "code": "DISCARD"}`},
		{"no attempts were allowed", `{"max_attempts": 0}`, `{"message": "m"}`},
	} {
		id := fail(t, d, "acme", c.policy, c.failure, "a")[0]
		if got := lines(t, service, `
			select state, attempt, jsonb_array_length(errors), finished_at, meta ->> 'by'
			from ojs.retry($1, '{"meta": {"by": "me"}}')`, id); !slices.Equal(got, []string{"available 0 1 - me"}) {
			t.Errorf("%s: retried, it is %v", c.name, got)
		}
		if got := oneJob(t, service, "ojs.fetch('{again}')"); got.ID != id {
			t.Errorf("%s: handed out is %v", c.name, got)
		}
		refused(t, service, "OJ409", "select from ojs.retry($1)", id)
		exec(t, service, "select from ojs.ack($1)", id)
		refused(t, service, "OJ409", "select from ojs.retry($1)", id)
	}
	refused(t, service, "OJ404", "select from ojs.retry(gen_random_uuid())")
	refused(t, service, "OJ400", "select from ojs.retry(null)")
	lost := fail(t, d, "acme", `{"max_attempts": 1}`, `{"message": "m"}`, "a")[0]
	refused(t, d.As("globex"), "OJ404", "select from ojs.retry($1)", lost)
	if got := one[string](t, d.As("acme"), "select state::text from ojs.retry($1)", lost); got != "available" {
		t.Errorf("its own tenant retries a job, which is %s then", got)
	}
	tick(t, service, 1000)
	if got := shards(t, service); !slices.Equal(got, []string{"acme again 1 0 0 6 6"}) {
		t.Errorf("the statistics are %v", got)
	}
	if got := list[string](t, d.Pool, unsound); len(got) > 0 {
		t.Errorf("unsound: %v", got)
	}
}

func TestManyDiscardedJobsRunAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	mails := fail(t, d, "acme", `{"max_attempts": 1}`, `{"message": "m", "type": "Timeout"}`, "mail.a", "mail.b")
	d.SetNow(noon.Add(time.Minute))
	cards := fail(t, d, "acme", deadPolicy, `{"message": "m", "code": "bad_card"}`, "card", "card")
	foreign := fail(t, d, "globex", `{"max_attempts": 1}`, `{"message": "m", "type": "Timeout"}`, "mail.a")
	d.SetNow(noon.Add(2 * time.Minute))
	available := func() []string {
		return list[string](t, service, "select id::text from ojs.jobs where state = 'available' order by id")
	}
	for _, c := range []struct {
		call string
		want []string
	}{
		{"p_queue => 'other'", nil},
		{"p_type => 'mail.*', p_tenant => 'acme', p_limit => 1", mails[:1]},
		{"p_type => 'mail.*', p_tenant => 'acme'", mails[1:]},
		{"p_until => '2031-05-04T12:01:00Z'", nil},
		{"p_error_type => 'bad_card', p_since => '2031-05-04T12:01:00Z'", cards},
		{"'again'", foreign},
		{"", nil},
	} {
		before := available()
		if got := one[int](t, service, "select ojs.retry_many("+c.call+")"); got != len(c.want) {
			t.Errorf("%s: %d jobs are retried, want %d", c.call, got, len(c.want))
		}
		want := append(before, c.want...)
		slices.Sort(want)
		if got := available(); !slices.Equal(got, want) {
			t.Errorf("%s: available are %v, want %v", c.call, got, want)
		}
	}
	refused(t, service, "OJ400", "select ojs.retry_many(p_limit => 0)")
	if got := one[int](t, service, "select count(*)::int from ojs.dead_letter"); got != 0 {
		t.Errorf("%d dead letters are left of jobs that run again", got)
	}
	if got := list[string](t, d.Pool, unsound); len(got) > 0 {
		t.Errorf("unsound: %v", got)
	}
}

// Tenants whose jobs cannot come back do not keep back those of others.
func TestATenantAtItsLimitKeepsBackNobodysRetries(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	fail(t, d, "full", `{"max_attempts": 1}`, `{"message": "m"}`, "a", "a", "a")
	exec(t, d.Operator(), `select ojs.configure_limits('full', '{"max_queue_depth": 0}')`)
	d.SetNow(noon.Add(time.Minute))
	mine := fail(t, d, "acme", `{"max_attempts": 1}`, `{"message": "m"}`, "a", "a")
	d.SetNow(noon.Add(2 * time.Minute))
	if got := one[int](t, service, "select ojs.failed_count()"); got != 5 {
		t.Errorf("%d jobs have failed", got)
	}
	for _, want := range []int{1, 1, 0} {
		if got := one[int](t, service, "select ojs.retry_many(p_limit => 1)"); got != want {
			t.Errorf("%d jobs are retried, want %d", got, want)
		}
	}
	if got := list[string](t, service, "select id::text from ojs.fetch('{again}', 10) order by id"); !slices.Equal(got, mine) {
		t.Errorf("handed out are %v", got)
	}
}

// Attempts are counted anew when a job runs again, and events of two attempts have two ids all the same.
func TestEventsOfJobsThatRunAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	job := fail(t, d, "acme", `{"max_attempts": 1}`, `{"message": "m"}`, "a")[0]
	began := func() string {
		return one[string](t, d.Service(), "select id from ojs.events('{job.started}') where subject = $1", job)
	}
	first := began()
	d.SetNow(noon.Add(time.Minute))
	exec(t, d.Service(), "select ojs.retry($1)", job)
	exec(t, d.Service(), "select ojs.fetch('{again}')")
	if again := began(); again == first {
		t.Errorf("the events of two attempts are %s", again)
	}
}

// Two who retry the same job at once make one attempt of it.
func TestTwoRetryAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	id := fail(t, d, "acme", `{"max_attempts": 1}`, `{"message": "m"}`, "a")[0]
	tx := begin(t, d.Service())
	exec(t, tx, "select from ojs.retry($1)", id)
	if got := one[int](t, d.Service(), "select ojs.retry_many()"); got != 0 {
		t.Errorf("beside another session %d jobs are retried, want to pass over what that one is at", got)
	}
	commit(t, tx)
	if got := one[int](t, d.Service(), "select ojs.retry_many()"); got != 0 {
		t.Errorf("%d jobs are retried again", got)
	}
	if got := list[string](t, d.Service(), "select id::text from ojs.fetch('{again}', 10)"); !slices.Equal(got, []string{id}) {
		t.Errorf("handed out are %v", got)
	}
}
