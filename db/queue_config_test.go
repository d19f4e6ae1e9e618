package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Whichever way a job comes, it gets what its queue gives, and other jobs get nothing.
func TestQueuesGiveDefaults(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator, acme := d.Service(), d.Operator(), d.As("acme")
	armed := func() bool {
		t.Helper()
		return one[bool](t, d.Pool, "select to_regclass('ojs._job_rules') is not null")
	}
	exec(t, operator, `select ojs.configure_queue('described', '{"description": "x", "retention": {"completed": "P1D"}}')`)
	if armed() {
		t.Error("a queue without defaults costs a call for each job")
	}
	exec(t, service, "select ojs.enqueue('before', p_queue => 'mail')")
	exec(t, operator, `
		select ojs.configure_queue('mail',
			'{"visibility_timeout": 60, "default_timeout": 5, "default_retry": {"max_attempts": 7, "initial_interval": "PT2S"}}')`)
	exec(t, service, "select ojs.enqueue('plain', p_queue => 'mail', p_tenant => 'acme')")
	exec(t, service, `
		select ojs.enqueue('own', p_queue => 'mail', p_timeout_ms => 1, p_visibility_timeout_ms => 2000,
			p_retry => '{"initial_interval_ms": 1}', p_max_attempts => 4)`)
	exec(t, service, "select ojs.enqueue('asks', p_queue => 'mail', p_max_attempts => 4)")
	exec(t, service, `select from ojs.enqueue_many('[{"type": "many", "args": [], "queue": "mail"}, {"type": "elsewhere", "args": []}]')`)
	exec(t, service, "select ojs.enqueue_bulk('bulk', array['[]', '[1]']::json[], 'mail', p_scheduled_at => now() + interval '1 hour')")
	exec(t, acme, "insert into ojs.jobs (type, queue) values ('insert', 'mail')")
	exec(t, acme, "insert into ojs.jobs (type) values ('insert.elsewhere')")
	got := lines(t, d.Pool, `
		select type, coalesce(visibility_timeout_ms, 0), coalesce(timeout_ms, 0), max_attempts, retry ->> 'initial_interval'
		from ojs.job order by type`)
	want := []string{
		"asks 60000 5000 4 PT2S", "before 0 0 3 -", "bulk 60000 5000 7 PT2S", "bulk 60000 5000 7 PT2S", "elsewhere 0 0 3 -",
		"insert 60000 5000 7 PT2S",
		"insert.elsewhere 0 0 3 -", "many 60000 5000 7 PT2S", "own 2000 1 4 -", "plain 60000 5000 7 PT2S",
	}
	if !slices.Equal(got, want) {
		t.Errorf("jobs are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// New partitions give them, too.
	exec(t, operator, "select ojs.configure(p_retention => '1 day')")
	now := time.Now()
	d.SetNow(now)
	keepUp(t, d)
	exec(t, service, "select ojs.cancel(id) from ojs.job where state <> 'completed'")
	d.SetNow(now.AddDate(0, 0, 3))
	keepUp(t, d)
	for i, at := range []time.Time{now.AddDate(-1, 0, 0), now, now.AddDate(0, 0, 3)} {
		if got := one[int](t, service, "select (ojs.enqueue('a', p_queue => 'mail', p_id => $1)).timeout_ms", uuidAt(at)); got != 5000 {
			t.Errorf("job %d has a timeout of %d", i, got)
		}
	}

	exec(t, operator, `select ojs.configure_queue('other', '{"default_timeout": 0}')`)
	exec(t, operator, `select ojs.configure_queue('mail', '{"visibility_timeout": null, "default_timeout": null, "default_retry": null}')`)
	exec(t, service, "select ojs.enqueue('z', p_queue => 'mail')")
	if got := lines(t, d.Pool, `
		select visibility_timeout_ms is null, timeout_ms is null, max_attempts from ojs.job
		where type = 'z'`); !slices.Equal(got, []string{"true true 3"}) {
		t.Errorf("without defaults a job is %v", got)
	}
	exec(t, operator, "select ojs.delete_queue('other')")
	if armed() {
		t.Error("the trigger outlives the defaults")
	}
}

func TestWhatAQueueCannotBe(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	const configure = "select ojs.configure_queue('q', $1)"
	for _, c := range []struct{ config, state, field string }{
		{`{"max_size_bytes": 5}`, "OJ408", "max_size_bytes"},
		{`{"allowed_job_types": ["a.*"]}`, "OJ408", "allowed_job_types"},
		{`{"dead_letter_queue": "dlq"}`, "OJ408", "dead_letter_queue"},
		{`{"retention": {"completed": "P8D"}}`, "OJ408", "retention.completed"},
		{`{"retention": {"completed": "a week"}}`, "OJ422", "retention.completed"},
		{`{"retention": "P1D"}`, "OJ422", "retention"},
		{`{"visibility_timeout": 1.5}`, "OJ422", "visibility_timeout"},
		{`{"visibility_timeout": "60"}`, "OJ422", "visibility_timeout"},
		{`{"default_timeout": 99999999999}`, "OJ422", "default_timeout"},
		{`{"default_retry": {"backoff_coefficient": 0.5}}`, "OJ422", "default_retry.backoff_coefficient"},
		{`{"default_retry": 3}`, "OJ422", "default_retry"},
		{`{"description": 1}`, "OJ422", "description"},
		{`{"color": 1}`, "OJ400", "color"},
		{`[]`, "OJ400", "config"},
	} {
		if got := detail(t, refused(t, operator, c.state, configure, c.config)); got["field"] != c.field {
			t.Errorf("%s: %v", c.config, got)
		}
	}
	refused(t, operator, "OJ400", "select ojs.configure_queue('Q')")
	refused(t, d.As("acme"), "42501", configure, `{}`)
	refused(t, d.As("acme"), "42501", "select ojs.delete_queue('q')")
	if got := one[int](t, d.Pool, "select count(*) from ojs.queue"); got != 0 {
		t.Errorf("%d queues were configured", got)
	}
	// What a queue promises, the deployment keeps.
	exec(t, operator, configure, `{"retention": {"completed": "P7D", "cancelled": "PT1H"}}`)
	if got := detail(t, refused(t, operator, "OJ408", "select ojs.configure(p_retention => '6 days')")); got["queue"] != "q" {
		t.Errorf("the refusal says %v", got)
	}
	exec(t, operator, "select ojs.configure(p_retention => '0')")
	exec(t, operator, configure, `{"retention": {"completed": "P1Y"}}`)
	exec(t, operator, configure, `{"max_size": null, "retention": null}`)

	// A transaction that stays open is not waited for.
	tx := begin(t, service)
	exec(t, tx, "select ojs.enqueue('a', p_queue => 'busy')")
	exec(t, operator, "select ojs.configure_queue('busy', '{\"default_timeout\": 1}')")
	commit(t, tx)

	refused(t, operator, "OJ409", "select ojs.delete_queue('busy')")
	if got := one[int](t, d.Pool, "select count(*) from ojs.queue where queue = 'busy'"); got != 1 {
		t.Error("a refused deletion deletes")
	}
	exec(t, service, "select ojs.cancel(id) from ojs.job")
	exec(t, operator, "select ojs.limit_concurrency(7, p_queue => 'busy'), ojs.limit_concurrency(3, 'acme', 'busy'), ojs.pause('busy')")
	if got := lines(t, operator, "select queue, config from ojs.delete_queue('busy')"); fmt.Sprint(got) != "[busy map[default_timeout:1]]" {
		t.Errorf("a deletion returns %q", got)
	}
	// Its numbers stay, and what is about single tenants.
	left := lines(t, operator, "select queue, cancelled, paused from ojs.queue_stats where queue = 'busy'")
	if fmt.Sprint(left) != "[busy 1 false]" {
		t.Errorf("a deletion leaves of the queue %q", left)
	}
	left = lines(t, operator, "select tenant_id, max_concurrency from ojs.rule_stats where queue = 'busy'")
	if fmt.Sprint(left) != "[acme 3]" {
		t.Errorf("a deletion leaves the limits %q", left)
	}
	if got := lines(t, operator, "select queue from ojs.delete_queue('busy')"); fmt.Sprint(got) != "[-]" {
		t.Errorf("another deletion returns %q", got)
	}
	refused(t, operator, "OJ404", "select ojs.delete_queue('never')")
	refused(t, operator, "OJ408", "select ojs.delete_queue('q', 'discard')")
	refused(t, operator, "OJ400", "select ojs.delete_queue('q', null)")
}

// The session that configures a queue last arms what queues give, and therefore has to see what all others did.
func TestQueuesAreConfiguredOneAfterTheOther(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, operator, `select ojs.configure_queue('gone', '{"default_timeout": 1, "retention": {"completed": "PT1H"}}')`)
	for i, c := range []struct{ second, states, want string }{
		{`select ojs.configure_queue('b', '{"default_timeout": 22}')`, "", "a 10000, b 22000"},
		{"select ojs.delete_queue('gone')", "", "a 11000, b 22000"},
		{"select ojs.delete_queue('b')", "", "a 12000, b -"},
		{"select ojs.configure(p_retention => '1 hour')", "OJ408", "a 13000, b -"},
	} {
		first, second := begin(t, operator), begin(t, operator)
		exec(t, first, "select ojs.configure_queue('a', $1)",
			fmt.Sprintf(`{"default_timeout": %d, "retention": {"completed": "PT2H"}}`, 10+i))
		waited := make(chan error, 1)
		go func() {
			_, err := second.Exec(t.Context(), c.second)
			waited <- err
		}()
		d.Blocked(backendPID(second))
		exec(t, operator, "select ojs.pause('b')")
		commit(t, first)
		if err := <-waited; c.states != "" {
			sqlstate(t, err, c.states, c.second)
		} else if err != nil {
			t.Fatalf("%s: %s", c.second, pgtest.Explain(err))
		}
		if c.states == "" {
			commit(t, second)
		} else {
			rollback(t, second)
		}
		if got := one[string](t, service, `
			select string_agg(concat_ws(' ', e.queue, coalesce(e.timeout_ms::text, '-')), ', ' order by e.queue)
			from (values ('a'), ('b')) q(name) cross join lateral ojs.enqueue('t', p_queue => q.name) e`); got != c.want {
			t.Errorf("after %s jobs are %s, want %s", c.second, got, c.want)
		}
		exec(t, service, "select ojs.cancel(id) from ojs.job where state = 'available'")
	}
	tx := begin(t, operator)
	exec(t, tx, "set transaction isolation level repeatable read")
	refused(t, tx, "OJ408", "select ojs.configure_queue('a', '{}')")
}

// The call that creates a queue returns whether it was new, also when two do at once.
func TestAQueueIsNewOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	const create = `select ojs.configure_queue('q', '{"default_timeout": 1}', p_new => true)`
	first, second := begin(t, operator), begin(t, operator)
	exec(t, first, create)
	waited := make(chan error, 1)
	go func() {
		_, err := second.Exec(t.Context(), create)
		waited <- err
	}()
	d.Blocked(backendPID(second))
	commit(t, first)
	sqlstate(t, <-waited, "OJ410", create)
	rollback(t, second)
	refused(t, operator, "OJ410", create)

	exec(t, operator, "select ojs.configure_queue('q', '{\"default_timeout\": 2}')")
	exec(t, operator, "select ojs.delete_queue('q')")
	exec(t, operator, "select ojs.pause('q')") // which configures nothing
	exec(t, operator, create)
}

// Jobs without a policy get their queue's, else the deployment's, whichever way they come; those with one keep it.
func TestDefaultRetryOfTheDeployment(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	made := func(call string) string {
		t.Helper()
		ids := list[string](t, service, "select id::text from "+call)
		return strings.Join(lines(t, service, `
			select max_attempts, retry ->> 'initial_interval' from ojs.jobs where id = any ($1::uuid[]) order by type`, ids), ", ")
	}
	expect := func(when string, want map[string]string) {
		t.Helper()
		for call, attempts := range want {
			if got := made(call); got != attempts {
				t.Errorf("%s, %s makes %s, want %s", when, call, got, attempts)
			}
		}
	}
	const plain, own, many, given = "ojs.enqueue('a')", `ojs.enqueue('a', p_retry => '{"max_attempts": 4}')`,
		`ojs.enqueue_many('[{"type": "a", "args": []}, {"type": "b", "args": [], "queue": "q"},
			{"type": "c", "args": [], "retry": {}}]')`,
		"ojs.enqueue('a', p_max_attempts => 7)"
	expect("at first", map[string]string{plain: "3 -", own: "4 -", given: "7 -"})
	exec(t, operator, `select ojs.configure(p_default_retry => '{"max_attempts": 20, "initial_interval": "PT15S"}')`)
	exec(t, operator, `select ojs.configure_queue('q', '{"default_retry": {"max_attempts": 9}}')`)
	expect("with both", map[string]string{
		plain: "20 PT15S", own: "4 -", many: "20 PT15S, 9 -, 3 -", given: "7 PT15S",
		"ojs.enqueue('a', p_queue => 'q')": "9 -",
	})
	tx := begin(t, service)
	if got := lines(t, tx, `
		insert into ojs.jobs (type) values ('a') returning max_attempts, retry ->> 'initial_interval'`); got[0] != "20 PT15S" {
		t.Errorf("a plain insert makes %v", got)
	}
	bulk := one[string](t, tx, "select ojs.enqueue_bulk('a', array['[]'::json])::text")
	if got := lines(t, tx, "select max_attempts, retry ->> 'initial_interval' from ojs.jobs where id = $1", bulk); got[0] != "20 PT15S" {
		t.Errorf("ojs.enqueue_bulk makes %v", got)
	}
	commit(t, tx)
	// What the functions return is what is stored.
	for call, want := range map[string]string{
		plain: "20 PT15S", many: "20 PT15S, 9 -, 3 -",
		"ojs.enqueue_rows('{a,b}', array['[]', '[]']::json[], '{q,other}', p_max_attempts => '{null,7}')": "9 -, 7 PT15S",
	} {
		got := strings.Join(lines(t, service, "select max_attempts, retry ->> 'initial_interval' from "+call), ", ")
		if got != want {
			t.Errorf("%s returns %s, want %s", call, got, want)
		}
	}
	exec(t, operator, "select ojs.configure(p_timeout_ms => 1000)")
	expect("with another setting changed", map[string]string{plain: "20 PT15S"})
	refused(t, operator, "OJ422", `select ojs.configure(p_default_retry => '{"max_attempts": -1}')`)
	exec(t, operator, "select ojs.configure(p_default_retry => '{}')")
	expect("taken back", map[string]string{plain: "3 -", "ojs.enqueue('a', p_queue => 'q')": "9 -"})
}

// A dead letter that comes back is the job it was.
func TestDeadLettersGetNoDefaults(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	id := one[string](t, service, "select id::text from ojs.enqueue('a', p_queue => 'q')")
	exec(t, service, `select ojs.nack(id, '{"message": "m", "code": "DEAD_LETTER"}') from ojs.fetch('{q}')`)
	exec(t, operator, `
		select ojs.configure_queue('q',
			'{"default_timeout": 77, "visibility_timeout": 60, "default_retry": {"max_attempts": 9}}')`)
	if got := one[int](t, d.Pool, "select ojs._put_aside('ffffffff-ffff-ffff-ffff-ffffffffffff')"); got != 1 {
		t.Fatalf("%d were put aside", got)
	}
	if got := lines(t, service, `
		select state, timeout_ms is null, visibility_timeout_ms is null, retry is null, max_attempts
		from ojs.retry_dead_letter($1)`, id); !slices.Equal(got, []string{"available true true true 3"}) {
		t.Errorf("retried, it is %v", got)
	}
}
