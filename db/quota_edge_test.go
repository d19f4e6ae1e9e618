package db_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A job that is refused for its id takes nothing from the limits: otherwise an idle queue would be full of jobs that do not exist.
func TestJobsThatExistAlreadyTakeNoTokens(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 4, "max_enqueue_rate": {"limit": 4, "period": "P1D"}}`)
	exec(t, service, `select ojs.configure_queue('default', '{"backpressure": {"max_depth": 4}}')`)
	made := one[string](t, service, "select id::text from ojs.enqueue('a', p_id => ojs._uuid_v7(), p_tenant => 'acme')")
	exec(t, service, "select ojs.tick()")
	for range 5 {
		exec(t, service, `select ojs.enqueue_rows(array['a'], array['[]']::json[], p_ids => array[$1::uuid],
			p_tenant => 'acme', p_each => true)`,
			made)
	}
	exec(t, service, "select ojs.tick()")
	if got := usage(t, service, "acme"); got != "max_enqueue_rate 1/4, max_queue_depth 1/4" {
		t.Errorf("of one job the limits say %s", got)
	}
	exec(t, service, "select ojs.enqueue_bulk('a', array['[]', '[]', '[]']::json[], p_tenant => 'acme')")
	expectNone(t, d.Pool, "in the end", unbalanced)
}

// The clock does not wait for a producer that has what is left of a limit; the cron job fires when that is through.
func TestTheClockWaitsForNoTokens(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 2}`)
	exec(t, service, `select ojs.put_cron('c', '@daily', 'a', p_tenant => 'acme')`)
	exec(t, d.Pool, "update ojs.cron set upcoming = array[ojs.now() - interval '1 second']")
	exec(t, d.Pool, `insert into ojs.timer (due_at, kind, tenant_ids, ids)
		select ojs.now() - interval '1 second', 'cron', array[tenant_id], array[id] from ojs.cron`)
	// A statement that would wait fails here.
	exec(t, d.Pool, `create or replace function ojs._await_stripes(p_of ojs.allowance, p_stripes int[]) returns void language plpgsql
		as 'begin raise exception $$waits$$; end'`)
	producer := begin(t, service)
	exec(t, producer, "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, service, "select ojs.tick()")
	if got := lines(t, service, "select reason, message from ojs.cron_runs"); len(got) != 0 {
		t.Errorf("the cron job has %q", got)
	}
	commit(t, producer)
	pgtest.Eventually(t, "the cron job fires", func() bool {
		exec(t, service, "select ojs.tick()")
		return one[bool](t, service, "select exists (select from ojs.cron_runs where job_id is not null)")
	})
}

// Jobs beyond a soft limit count when it becomes hard, wherever they have left their mark.
func TestASoftLimitBecomesHard(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": {"limit": 100, "soft": true}}`)
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[300]), p_tenant => 'acme')")
	exec(t, service, "select ojs.tick()")
	exec(t, service, "select ojs.cancel(id, 'acme') from ojs.jobs limit 180")
	exec(t, service, "select ojs.tick()")
	limited(t, service, "acme", `{"max_queue_depth": 100}`)
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, service, "select ojs.cancel(id, 'acme') from ojs.jobs where state = 'available' limit 30")
	exec(t, service, "select ojs.tick()")
	expectNone(t, d.Pool, "in the end", unbalanced)
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[10]), p_tenant => 'acme')")
}

// A limit that was small has as many stripes as one that was large from the beginning, or one producer would hold up all others.
func TestALimitGrows(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 5}`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	limited(t, service, "acme", `{"max_queue_depth": 5000}`)
	producer := begin(t, service)
	exec(t, producer, "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	commit(t, producer)
	expectNone(t, d.Pool, "in the end", unbalanced)
}

// To set a rate that is set already changes nothing, and another one has what is left of it.
func TestTheSameRateIsSetAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const rate, three = `{"max_enqueue_rate": {"limit": 3, "period": "P1D"}}`,
		"select ojs.enqueue_bulk('a', array['[]', '[]', '[]']::json[], p_tenant => 'acme')"
	limited(t, service, "acme", rate)
	exec(t, service, three)
	limited(t, service, "acme", rate)
	refused(t, service, "OJ429", three)
	limited(t, service, "acme", `{"max_enqueue_rate": {"limit": 5, "period": "PT12H"}}`)
	refused(t, service, "OJ429", three)
	limited(t, service, "acme", `{"max_enqueue_rate": {"limit": 6, "period": "PT12H"}}`)
	exec(t, service, three)
}

// What goes in together is judged together, in however many queues: a batch above burst would be told to try again for ever.
func TestABatchAboveBurstInSeveralQueues(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_enqueue_rate": {"limit": 10, "period": "P1D"}}`)
	const batch = "insert into ojs.jobs (type, queue, tenant_id) select 'a', 'q' || i % 2, 'acme' from generate_series(1, $1::int) i"
	if said := detail(t, refused(t, service, "OJ422", batch, 12)); said["limit"] != 10.0 {
		t.Errorf("the detail is %v", said)
	}
	exec(t, service, batch, 10)
}

// A time that is too long for an integer is no error of another kind.
func TestTokensThatComeInCenturies(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_enqueue_rate": {"limit": 1, "period": "P31D", "burst": 2000}}`)
	const jobs = "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[$1::int]), p_tenant => 'acme')"
	exec(t, service, jobs, 2000)
	if said := detail(t, refused(t, service, "OJ429", jobs, 1000)); said["retry_after"] != 2147483647.0 {
		t.Errorf("the detail is %v", said)
	}
}

// A producer that has read a limit which an operator removes meanwhile finds no stripes.
func TestALimitWithoutStripes(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, limits := range []string{`{"max_queue_depth": 100}`, `{"max_queue_depth": {"limit": 100, "soft": true}}`} {
		limited(t, service, "acme", limits)
		exec(t, d.Pool, "delete from ojs.stripe")
		for _, each := range []bool{false, true} {
			_, err := service.Exec(t.Context(),
				"select ojs.enqueue_rows(array['a'], array['[]']::json[], p_tenant => 'acme', p_each => $1)", each)
			if err != nil {
				sqlstate(t, err, "OJ429", limits)
			}
		}
	}
}

// Two names for the bound of a queue agree, also when one was set before: else a bound that is set would be none.
func TestABoundIsSetByBothNames(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const configure = "select ojs.configure_queue('q', $1::text::jsonb)"
	exec(t, service, configure, `{"backpressure": {"max_depth": 50}}`)
	refused(t, service, "OJ422", configure, `{"max_size": 30}`)
	exec(t, service, configure, `{"max_size": 50}`)
	exec(t, service, configure, `{"max_size": 30, "backpressure": null}`)
	exec(t, service, configure, `{"description": "kept"}`)
	if got := list[int](t, service, "select maximum from ojs.limits where queue = 'q'"); !slices.Equal(got, []int{30}) {
		t.Errorf("the bounds are %v", got)
	}
}

// A number per second that comes with another period is for that period.
func TestARateByItsOtherNameHasItsPeriod(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"enqueue_rate": {"limit": 10, "period": "PT1M"}}`)
	limited(t, service, "globex", `{"enqueue_rate": {"limit": 10, "burst": 20}}`)
	got := list[string](t, service, "select maximum || ' ' || period || ' ' || burst from ojs.limits order by tenant_id")
	if want := []string{"10 00:01:00 10", "10 00:00:01 20"}; !slices.Equal(got, want) {
		t.Errorf("the rates are %q", got)
	}
}

// The clock does not wait for an operator's transaction that removes a tenant with its limits.
func TestTheClockWaitsForNoDeregistration(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	limited(t, service, "acme", `{"max_queue_depth": 10}`)
	clock, leaving := begin(t, d.Pool), begin(t, operator)
	exec(t, clock, "select from ojs.tally_mark for update")
	done := make(chan error, 1)
	go func() {
		_, err := leaving.Exec(t.Context(), "select ojs.deregister_tenant('acme')")
		done <- err
	}()
	d.Blocked(backendPID(leaving))
	commit(t, clock)
	if err := pgtest.Receive(t, "the tenant leaves", done); err != nil {
		t.Fatal(pgtest.Explain(err))
	}
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
	tick := begin(t, service)
	exec(t, tick, "set local lock_timeout = '1s'")
	exec(t, tick, "select ojs.tick()")
}

// Beyond a soft limit no producer waits for tokens, which would change nothing.
func TestASoftLimitWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": {"limit": 1, "soft": true}}`)
	exec(t, d.Pool, `create or replace function ojs._await_stripes(p_of ojs.allowance, p_stripes int[]) returns void language plpgsql
		as 'begin raise exception $$waits$$; end'`)
	producer := begin(t, service)
	exec(t, producer, "select ojs.enqueue('a', p_tenant => 'acme')")
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
}

// A rate that is changed lets no burst in anew, and a limit that is lowered says what counts against it.
func TestAChangeOfALimitGivesNothingAway(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	d.SetNow(noon)
	limited(t, service, "acme", `{"max_enqueue_rate": {"limit": 10, "period": "P1D"}}`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme') from generate_series(1, 7)")
	for _, c := range []struct {
		limit, left int
		soft        bool
	}{{9, 2, false}, {12, 5, false}, {8, 1, true}, {8, 1, false}, {5, 0, false}} {
		limited(t, service, "acme", fmt.Sprintf(`{"max_enqueue_rate": {"limit": %d, "period": "P1D", "soft": %t}}`, c.limit, c.soft))
		if got, want := usage(t, service, "acme"), fmt.Sprintf("max_enqueue_rate %d/%d", c.limit-c.left, c.limit); got != want {
			t.Errorf("of a rate of %d are used up %s, want %s", c.limit, got, want)
		}
	}
	refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
	limited(t, service, "globex", `{"max_queue_depth": 50}`)
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'globex') from generate_series(1, 40)")
	exec(t, d.Pool, "select ojs._roll_up()")
	limited(t, service, "globex", `{"max_queue_depth": 5}`)
	if got := usage(t, service, "globex"); got != "max_queue_depth 40/5" {
		t.Errorf("of a lowered limit are used up %s", got)
	}
	said := detail(t, refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'globex')"))
	if said["current"] != 40.0 || said["maximum"] != 5.0 {
		t.Errorf("it is refused with %v", said)
	}
}

// A tenant's login learns nothing of how many jobs others have in a queue that is full.
func TestAFullQueueTellsTenantsItsBound(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Operator(), `select ojs.configure_queue('q', '{"backpressure": {"max_depth": 10}}')`)
	enqueueFor(t, d.Service(), "q", "globex", 7)
	many := "insert into ojs.jobs (type, queue) select 'a', 'q' from generate_series(1, 8)"
	if said := detail(t, refused(t, d.As("acme"), "OJ430", many)); said["depth"] != 10.0 || said["bound"] != 10.0 {
		t.Errorf("a tenant is told %v", said)
	}
	if said := detail(t, refused(t, d.Service(), "OJ430", many)); said["depth"] != 7.0 {
		t.Errorf("a service is told %v", said)
	}
}
