package db_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

var noon = time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)

var states = []string{"scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded"}

// bring makes a job of acme in a queue and brings it into a state.
func bring(t testing.TB, d *pgtest.DB, state, queue string) job {
	t.Helper()
	service := d.Service()
	enqueue := map[string]string{
		"scheduled": ", p_scheduled_at => ojs.now() + interval '10 minutes'", "pending": ", p_pending => true",
	}[state]
	id := one[string](t, service, "select id::text from ojs.enqueue('a', p_queue => $1, p_tenant => 'acme'"+enqueue+")", queue)
	if slices.Contains([]string{"active", "completed", "retryable", "discarded"}, state) {
		oneJob(t, service, "ojs.fetch(array[$1], p_worker_id => 'w1')", queue)
	}
	switch state {
	case "completed":
		exec(t, service, "select from ojs.ack($1)", id)
	case "retryable":
		exec(t, service, `select from ojs.nack($1, '{"message": "failed"}')`, id)
	case "discarded":
		exec(t, service, `select from ojs.nack($1, '{"message": "failed", "retryable": false}')`, id)
	case "cancelled":
		exec(t, service, "select from ojs.cancel($1)", id)
	}
	j := oneJob(t, service, "ojs.job_info($1)", id)
	if j.State != state {
		t.Fatalf("a job meant to be %s is %s", state, j.State)
	}
	return j
}

// row returns all rows about a job, as text.
func row(t testing.TB, d *pgtest.DB, id string) string {
	t.Helper()
	return one[string](t, d.Pool, "select j::text from ojs.job j where id = $1", id)
}

// unsound finds jobs that break an invariant of rows, which must hold for every job at every moment.
const unsound = `select id || ' ' || state || ' ' || j::text from ojs.job j where not (
	(state = 'active') = (lease is not null) and (state = 'active') = (lease_expires_at is not null)
	and (state in ('completed', 'cancelled', 'discarded')) = (finished_at is not null)
	and (state <> 'retryable' or retry_at is not null) and (state not in ('active', 'completed') or started_at is not null)
	and (state not in ('available', 'active', 'completed', 'retryable') or seq is not null)
	and (state <> 'completed' or attempt > 0) and attempt >= 0)`

func TestStateMachine(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	same := func(states string) map[string]string {
		m := map[string]string{}
		for _, s := range strings.Fields(states) {
			m[s] = s
		}
		return m
	}
	to := func(target string, from ...string) map[string]string {
		m := map[string]string{}
		for _, s := range from {
			m[s] = target
		}
		return m
	}
	for _, op := range []struct {
		name, call string
		// The state a job gets into; OJ409 for all that are not listed.
		outcome map[string]string
		// Returns nothing instead of raising.
		quiet    bool
		expected string // expected_state of the error
	}{
		{name: "fetch", call: "ojs.fetch(array[$3::text], p_worker_id => 'w2')", outcome: to("active", "available"), quiet: true},
		{name: "ack", call: "ojs.ack($1)", outcome: to("completed", "active"), expected: "active"},
		{name: "ack with lease", call: "ojs.ack($1, $2)", outcome: to("completed", "active"), expected: "active"},
		{name: "ack by the worker", call: "ojs.ack($1, p_worker_id => 'w1')", outcome: to("completed", "active"), expected: "active"},
		{name: "nack", call: `ojs.nack($1, '{"message": "x"}')`, outcome: to("retryable", "active"), expected: "active"},
		{
			name: "nack, requeue", call: `ojs.nack($1, '{"message": "x"}', $2, p_requeue => true)`,
			outcome: to("available", "active"), expected: "active",
		},
		{
			name: "nack, not retryable", call: `ojs.nack($1, '{"message": "x", "retryable": false}')`,
			outcome: to("discarded", "active"), expected: "active",
		},
		{name: "release", call: "ojs.release($1, $2)", outcome: to("available", "active"), expected: "active"},
		{name: "cancel", call: "ojs.cancel($1)", outcome: to("cancelled", "scheduled", "available", "pending", "active", "retryable")},
		{name: "activate", call: "ojs.activate($1)", outcome: to("available", "pending"), expected: "pending"},
		{name: "heartbeat", call: "ojs.heartbeat('w1', array[$1::uuid])", outcome: to("active", "active"), quiet: true},
		{name: "job_info", call: "ojs.job_info($1)", outcome: same(strings.Join(states, " "))},
	} {
		for _, state := range states {
			what := op.name + " of a job that is " + state
			queue := strings.NewReplacer(" ", "-", ",", "", "_", "").Replace(op.name) + "." + state
			j := bring(t, d, state, queue)
			lease := otherID
			if j.Lease != nil {
				lease = *j.Lease
			}
			params := []any{j.ID, lease, queue}
			for len(params) > 0 && !strings.Contains(op.call, "$"+strconv.Itoa(len(params))) {
				params = params[:len(params)-1]
			}
			call := op.call
			if op.name == "fetch" {
				call, params = "ojs.fetch(array[$1::text], p_worker_id => 'w2')", []any{queue}
			}
			before := row(t, d, j.ID)
			want, ok := op.outcome[state]
			switch {
			case ok:
				got := oneJob(t, service, call, params...)
				if got.State != want || got.ID != j.ID {
					t.Errorf("%s: it is %s, want %s", what, got.State, want)
				}
				if row(t, d, j.ID) != one[string](t, d.Pool, "select j::text from ojs.job_info($1) j", j.ID) {
					t.Errorf("%s: what is stored differs from what is returned", what)
				}
			case op.quiet:
				if got := jobs(t, service, call, params...); len(got) != 0 {
					t.Errorf("%s: returned %v", what, got)
				}
			default:
				failure := refused(t, service, "OJ409", "select from "+call, params...)
				got := detail(t, failure)
				if got["current_state"] != state || got["job_id"] != j.ID || op.expected != "" && got["expected_state"] != op.expected {
					t.Errorf("%s: the conflict is described as %v", what, got)
				}
			}
			if after := row(t, d, j.ID); !ok && after != before {
				t.Errorf("%s changed it\n  before %s\n  after  %s", what, before, after)
			}
		}
	}
	if got := list[string](t, d.Pool, unsound); len(got) > 0 {
		t.Errorf("unsound jobs:\n  %s", strings.Join(got, "\n  "))
	}
}

// The clock moves jobs, too: nothing before it is time, what is due afterwards.
func TestStatesAndTheTick(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	var all []job
	for _, state := range states {
		all = append(all, bring(t, d, state, "q."+state))
	}
	for _, c := range []struct {
		after time.Duration
		want  map[string]string
		did   string
	}{
		{0, map[string]string{}, "0 0"},
		{499 * time.Millisecond, map[string]string{}, "0 0"},
		{1500 * time.Millisecond, map[string]string{"retryable": "available"}, "1 0"},
		{29999 * time.Millisecond, map[string]string{"retryable": "available"}, "0 0"},
		{30 * time.Second, map[string]string{"retryable": "available", "active": "available"}, "0 1"},
		{599 * time.Second, map[string]string{"retryable": "available", "active": "available"}, "0 0"},
		{600 * time.Second, map[string]string{"retryable": "available", "active": "available", "scheduled": "available"}, "1 0"},
		{1000 * time.Hour, map[string]string{"retryable": "available", "active": "available", "scheduled": "available"}, "0 0"},
	} {
		d.SetNow(noon.Add(c.after))
		if got := lines(t, d.Service(), "select promoted, reaped from ojs.tick()"); got[0] != c.did {
			t.Errorf("after %s a tick promoted and reaped %s, want %s", c.after, got[0], c.did)
		}
		for i, state := range states {
			want := c.want[state]
			if want == "" {
				want = state
			}
			if got := oneJob(t, d.Service(), "ojs.job_info($1)", all[i].ID); got.State != want {
				t.Errorf("after %s a job that was %s is %s, want %s", c.after, state, got.State, want)
			}
		}
		if got := list[string](t, d.Pool, unsound); len(got) > 0 {
			t.Errorf("unsound jobs:\n  %s", strings.Join(got, "\n  "))
		}
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.timer"); got != 0 {
		t.Errorf("%d timers are left", got)
	}
	// What came back is handed out again, with the attempt counted.
	for _, state := range []string{"retryable", "active", "scheduled"} {
		want := 2
		if state == "scheduled" {
			want = 1
		}
		if got := oneJob(t, d.Service(), "ojs.fetch(array[$1])", "q."+state); got.Attempt != want {
			t.Errorf("a job that was %s is handed out with attempt %d, want %d", state, got.Attempt, want)
		}
	}
}

func TestMaxAttempts(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	now := noon
	for max, want := range map[int]string{
		0: "discarded", 1: "discarded", 2: "retryable discarded", 4: "retryable retryable retryable discarded",
	} {
		queue := "max" + strconv.Itoa(max)
		exec(t, service, "select from ojs.enqueue('a', p_queue => $1, p_max_attempts => $2)", queue, max)
		var got []string
		for len(got) == 0 || got[len(got)-1] == "retryable" {
			now = now.Add(time.Hour)
			d.SetNow(now)
			exec(t, service, "select ojs.tick()")
			held := oneJob(t, service, "ojs.fetch(array[$1])", queue)
			got = append(got, oneJob(t, service, `ojs.nack($1, '{"message": "x"}', $2)`, held.ID, held.Lease).State)
			if held.Attempt != len(got) {
				t.Errorf("attempt %d is counted as %d", len(got), held.Attempt)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("with %d attempts a job that always fails is %s, want %s", max, got, want)
		}
	}
}

func TestErrorsThatAreNotRetried(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for failure, want := range map[string]string{
		`{"message": "x"}`:                                         "retryable",
		`{"message": "x", "retryable": true}`:                      "retryable",
		`{"message": "x", "retryable": false}`:                     "discarded",
		`{"message": "x", "code": "bad_card"}`:                     "discarded",
		`{"message": "x", "type": "bad_card"}`:                     "discarded",
		`{"message": "x", "code": "bad_card", "retryable": true}`:  "discarded",
		`{"message": "bad_card", "code": "timeout", "type": "io"}`: "retryable",
		`{"message": "x", "code": "handler_error.sub"}`:            "retryable",
	} {
		held := jobWith(t, d, `{"non_retryable_errors": ["bad_card", "auth.denied"]}`)
		if got := oneJob(t, service, "ojs.nack($1, $2::text::jsonb)", held.ID, failure); got.State != want {
			t.Errorf("after %s the job is %s, want %s", failure, got.State, want)
		}
	}
}

// jobWith returns an active job with a retry policy.
func jobWith(t testing.TB, d *pgtest.DB, retry string) job {
	t.Helper()
	exec(t, d.Service(), "select from ojs.enqueue('a', p_retry => $1::text::jsonb)", retry)
	return oneJob(t, d.Service(), "ojs.fetch('{default}', 1, 'w1')")
}

func TestLeasesFence(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select from ojs.enqueue('a')")
	first := oneJob(t, service, "ojs.fetch('{default}', 1, 'w1')")
	d.SetNow(noon.Add(31 * time.Second))
	exec(t, service, "select ojs.tick()")
	second := oneJob(t, service, "ojs.fetch('{default}', 1, 'w2')")
	if second.ID != first.ID || *second.Lease == *first.Lease || second.Attempt != 2 {
		t.Fatalf("handed out again: %v, the first time %v", second, first)
	}
	before := row(t, d, first.ID)
	for _, c := range []struct {
		what, sql, field string
		params           []any
	}{
		{"ack under the old lease", "select from ojs.ack($1, $2)", "lease", []any{first.ID, first.Lease}},
		{"ack by the old worker", "select from ojs.ack($1, p_worker_id => 'w1')", "worker_id", []any{first.ID}},
		{
			"ack under the new lease by the old worker", "select from ojs.ack($1, $2, p_worker_id => 'w1')", "worker_id",
			[]any{first.ID, second.Lease},
		},
		{
			"ack under the old lease by the new worker", "select from ojs.ack($1, $2, p_worker_id => 'w2')", "lease",
			[]any{first.ID, first.Lease},
		},
		{"nack under the old lease", `select from ojs.nack($1, '{"message": "x"}', $2)`, "lease", []any{first.ID, first.Lease}},
		{"nack by the old worker", `select from ojs.nack($1, '{"message": "x"}', p_worker_id => 'w1')`, "worker_id", []any{first.ID}},
		{"release under the old lease", "select from ojs.release($1, $2)", "lease", []any{first.ID, first.Lease}},
	} {
		failure := refused(t, service, "OJ409", c.sql, c.params...)
		if got := detail(t, failure); got["field"] != c.field || got["job_id"] != first.ID || got["current_state"] != "active" {
			t.Errorf("%s: described as %v", c.what, got)
		}
	}
	if got := jobs(t, service, "ojs.heartbeat('w1', array[$1::uuid])", first.ID); len(got) != 0 {
		t.Errorf("a heartbeat of the old worker extended %v", got)
	}
	if after := row(t, d, first.ID); after != before {
		t.Errorf("the attempts of the old worker changed the job\n  before %s\n  after  %s", before, after)
	}
	if got := oneJob(t, service, "ojs.ack($1, $2, p_worker_id => 'w2')", second.ID, second.Lease); got.State != "completed" {
		t.Errorf("acknowledged by who holds it, the job is %s", got.State)
	}
	refused(t, service, "OJ409", "select from ojs.ack($1, $2)", second.ID, second.Lease)
}

// An error that is too large is cut, not refused: the attempt ends, and what decides is kept.
func TestLargeErrorsAreCut(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	large, deep := strings.Repeat("x", 1<<17), strings.Repeat("[", 200)+strings.Repeat("]", 200)
	frames := `["main.go:1 main` + strings.Repeat(`", "frame.go:100 `+strings.Repeat("f", 60), 3000) + `"]`
	for i, failure := range []string{
		`"message": "` + large + `"`, `"message": "m", "backtrace": "` + large + `"`, `"message": "m", "backtrace": ` + frames,
		`"message": "` + large + `", "backtrace": ` + frames, `"message": "m", "details": {"x": "` + large + `"}`,
		`"message": "m", "details": ` + deep, `"message": "m", "backtrace": ` + deep,
		`"message": "` + strings.Repeat(`\u0001`, 1<<15) + `", "x": "` + strings.Repeat("y", 16000) + `"`,
		`"message": "` + strings.Repeat("é", 1<<16) + `", "backtrace": 5, "retryable": null`,
	} {
		for call, of := range map[string]string{
			"nack": "select (errors -> 0)::text from ojs.nack($1, $2::text::jsonb)",
			"settle": "select (errors -> 0)::text from ojs.settle(jsonb_build_array(jsonb_build_object('id', $1::uuid, 'error', " +
				"$2::text::jsonb)))",
		} {
			held := jobWith(t, d, `{"non_retryable_errors": ["Fatal"]}`)
			raw := one[string](t, d.Service(), of, held.ID, `{"code": "C", "type": "Fatal", `+failure+`}`)
			var got map[string]any
			if err := json.Unmarshal([]byte(raw), &got); err != nil {
				t.Fatal(err)
			}
			message, _ := got["message"].(string)
			if len(raw) > 1<<16+300 || got["truncated"] != true || got["code"] != "C" || got["type"] != "Fatal" || message == "" {
				t.Errorf("%s %d: %d bytes, %.300s", call, i, len(raw), raw)
			}
			if trace, given := got["backtrace"].([]any); strings.Contains(failure, "main.go") && (!given || trace[0] != "main.go:1 main") {
				t.Errorf("%s %d: the backtrace is %.300v", call, i, got["backtrace"])
			}
		}
	}
	held := bring(t, d, "active", "q")
	if got := one[string](t, d.Service(), "select errors #>> '{0,type}' from ojs.nack($1, $2::text::jsonb)", held.ID,
		`{"message": "m", "details": {"error_class": "Mine", "x": "`+large+`"}}`); got != "Mine" {
		t.Errorf("the type is %s", got)
	}
}

// The journal tells which acknowledgements proved nothing.
func TestUnfencedIsRecorded(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for i, c := range []struct {
		call   string
		fenced bool
	}{
		{"ojs.ack($1)", false},
		{"ojs.ack($1, $2)", true},
		{"ojs.ack($1, p_worker_id => 'w1')", true},
		{`ojs.nack($1, '{"message": "x"}')`, false},
		{`ojs.nack($1, '{"message": "x"}', $2)`, true},
		{`ojs.nack($1, '{"message": "x"}', p_worker_id => 'w1')`, true},
		{"ojs.release($1, $2)", true},
	} {
		held := bring(t, d, "active", "q"+strconv.Itoa(i))
		params := []any{held.ID}
		if strings.Contains(c.call, "$2") {
			params = append(params, held.Lease)
		}
		exec(t, d.As("acme"), "select from "+c.call, params...)
		if got := one[bool](t, d.Pool, `
			select fenced from ojs.release where job_id = $1
			union all
			select unfenced = 0 from ojs.journal where to_state = 'completed' and queue = $2`, held.ID, held.Queue); got != c.fenced {
			t.Errorf("%s is recorded as fenced: %t, want %t", c.call, got, c.fenced)
		}
	}
}

// A result that ojs._plain_json cannot judge is judged by the rule of ojs.ack.
func TestAckManyReturnsJobsOnlyIfAsked(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "insert into ojs.jobs (type) select 'a' from generate_series(1, 8)")
	results := []any{nil, `{"a": 1}`, `"\u0041"`, `"\u0000"`}
	for _, whole := range []bool{false, true} {
		ids := list[string](t, service, "select id::text from ojs.fetch('{default}', 4)")
		got := lines(t, service, `
			select a.n, a.id = ($1::uuid[])[a.n], to_char(a.finished_at, 'HH24:MI'), (a.job).state, (a.job).result::text
			from ojs.ack_many($1, p_results => $2::text[]::json[], p_jobs => $3) a order by a.n`, ids, results, whole)
		want := []string{"1 true 12:00 - -", "2 true 12:00 - -", "3 true 12:00 - -"}
		if whole {
			want = []string{"1 true 12:00 completed -", `2 true 12:00 completed {"a": 1}`, `3 true 12:00 completed "\u0041"`}
		}
		if !slices.Equal(got, want) {
			t.Errorf("with jobs: %v; acknowledged %q, want %q", whole, got, want)
		}
		kept := list[string](t, d.Pool, "select coalesce(result::text, state::text) from ojs.job where id = any ($1) order by seq", ids)
		if want := []string{"completed", `{"a": 1}`, `"\u0041"`, "active"}; !slices.Equal(kept, want) {
			t.Errorf("with jobs: %v; kept %q, want %q", whole, kept, want)
		}
	}
}

// The rows a job produced and its completion are one transaction.
func TestAckWithProducedRows(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "create schema shop")
	exec(t, d.Pool, "create table shop.invoice (job uuid primary key)")
	exec(t, d.Pool, "grant usage on schema shop to ojs_tenant")
	exec(t, d.Pool, "grant select, insert on shop.invoice to ojs_tenant")
	acme := d.As("acme")
	held := bring(t, d, "active", "q")
	work := func(q querier) {
		t.Helper()
		exec(t, q, "insert into shop.invoice values ($1)", held.ID)
		exec(t, q, `select from ojs.ack($1, $2, '{"ok": true}')`, held.ID, held.Lease)
		exec(t, q, "select from ojs.enqueue('next', p_queue => 'next')")
	}
	outcome := func() string {
		t.Helper()
		return one[string](t, d.Pool, `select format('%s, %s invoices, %s next, %s journalled', (select state from ojs.job where id = $1),
			(select count(*) from shop.invoice), (select count(*) from ojs.job where queue = 'next'),
			(select coalesce(sum(jobs), 0) from ojs.journal where to_state = 'completed'))`, held.ID)
	}
	tx := begin(t, acme)
	work(tx)
	if got := oneJob(t, d.Service(), "ojs.job_info($1)", held.ID); got.State != "active" {
		t.Errorf("before the commit others see the job %s", got.State)
	}
	rollback(t, tx)
	if got, want := outcome(), "active, 0 invoices, 0 next, 0 journalled"; got != want {
		t.Errorf("after the rollback: %s, want %s", got, want)
	}
	// The lease of another worker: the whole transaction is refused.
	tx = begin(t, acme)
	exec(t, tx, "insert into shop.invoice values ($1)", held.ID)
	refused(t, tx, "OJ409", "select from ojs.ack($1, $2)", held.ID, otherID)
	rollback(t, tx)
	tx = begin(t, acme)
	work(tx)
	commit(t, tx)
	if got, want := outcome(), "completed, 1 invoices, 1 next, 1 journalled"; got != want {
		t.Errorf("after the commit: %s, want %s", got, want)
	}
}

// Two sessions end the same job; the second waits for the first and then learns what happened.
func TestTwoEndOneJob(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, second, state string }{
		{"ojs.ack($1)", "ojs.ack($1)", "completed"},
		{"ojs.ack($1)", "ojs.cancel($1)", "completed"},
		{"ojs.cancel($1)", "ojs.ack($1)", "cancelled"},
		{`ojs.nack($1, '{"message": "x"}')`, "ojs.ack($1)", "retryable"},
		{"ojs.cancel($1)", `ojs.nack($1, '{"message": "x"}')`, "cancelled"},
	} {
		t.Run(c.first+" "+c.second, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			held := bring(t, d, "active", "q")
			one, two := begin(t, d.Service()), begin(t, d.As("acme"))
			exec(t, one, "select from "+c.first, held.ID)
			done := make(chan error, 1)
			go func() {
				_, err := two.Exec(t.Context(), "select from "+c.second, held.ID)
				done <- err
			}()
			d.Blocked(backendPID(two))
			commit(t, one)
			failure := sqlstate(t, <-done, "OJ409", "the second")
			if got := detail(t, failure); got["current_state"] != c.state {
				t.Errorf("the second learns %v, want current_state %s", got, c.state)
			}
		})
	}
}

func TestErrorsHistory(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select from ojs.enqueue('a', p_max_attempts => 1000)")
	const detailed = `{"message": "card declined", "code": "card_declined", "type": "PaymentError", "retryable": true,
		"details": {"amount": 1.50, "note": null, "a": [null, {"b": 1}]}, "backtrace": ["x"]}`
	for i, report := range []string{
		`{"message": "one"}`, detailed, `{"message": "three", "code": "c"}`, `{"message": "four", "type": "T"}`,
		`{"message": "five", "details": {"error_class": "E"}}`,
	} {
		held := oneJob(t, service, "ojs.fetch('{default}')")
		d.SetNow(noon.Add(time.Duration(i) * time.Second))
		exec(t, service, "select from ojs.nack($1, $2::text::jsonb, p_requeue => true)", held.ID, report)
	}
	id := one[string](t, d.Pool, "select id::text from ojs.job")
	var got []map[string]any
	history := one[string](t, service, "select errors::text from ojs.job_info($1)", id)
	if err := json.Unmarshal([]byte(history), &got); err != nil || len(got) != 5 {
		t.Fatalf("errors: %v (%v)", got, err)
	}
	for i, want := range []string{
		"1 one handler_error handler_error 12:00:00",
		"2 card declined card_declined PaymentError 12:00:01",
		"3 three c c 12:00:02",
		"4 four T T 12:00:03",
		"5 five handler_error E 12:00:04",
	} {
		e := got[i]
		at := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(e["occurred_at"]), "2031-05-04T"), ".000Z")
		if text := fmt.Sprint(e["attempt"], " ", e["message"], " ", e["code"], " ", e["type"]) + " " + at; text != want {
			t.Errorf("error %d is %s, want %s", i+1, text, want)
		}
	}
	kept := fmt.Sprint(got[1]["details"], got[1]["backtrace"], got[1]["retryable"])
	if want := "map[a:[<nil> map[b:1]] amount:1.5 note:<nil>] [x] true"; kept != want {
		t.Errorf("of the error's details %s is kept, want %s", kept, want)
	}
	// The latest hundred.
	for range 100 {
		held := oneJob(t, service, "ojs.fetch('{default}')")
		exec(t, service, `select from ojs.nack($1, '{"message": "again"}', p_requeue => true)`, held.ID)
	}
	if got := lines(t, service, `
		select jsonb_array_length(errors), errors -> 0 ->> 'attempt', errors -> 99 ->> 'attempt'
		from ojs.job_info($1)`, id); got[0] != "100 6 105" {
		t.Errorf("number of errors, first and last attempt: %s, want 100 6 105", got[0])
	}
	// An acknowledgement leaves the history alone.
	oneJob(t, service, "ojs.fetch('{default}')")
	if got := one[int](t, service, "select jsonb_array_length(errors) from ojs.ack($1)", id); got != 100 {
		t.Errorf("a completed job has %d errors", got)
	}
}

// The kinds of jitter spread delays over different ranges, none of which goes beyond max_interval.
func TestRetryJitter(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, c := range []struct {
		jitter    string
		attempt   int
		low, high int64
	}{
		{`true`, 3, 2000, 6000},
		{`"full"`, 3, 0, 4000},
		{`"equal"`, 3, 2000, 4000},
		{`"decorrelated"`, 1, 1000, 3000},
		{`"decorrelated"`, 3, 1000, 6000},
		{`true`, 9, 3500, 7000},
		{`"full"`, 9, 0, 7000},
		{`"equal"`, 9, 3500, 7000},
		{`"decorrelated"`, 9, 1000, 7000},
	} {
		got := list[int64](t, d.Pool, `
			select ojs._retry_delay_ms(jsonb_build_object('jitter', $1::text::jsonb, 'max_interval', 'PT7S'), $2)
			from generate_series(1, 500)`, c.jitter, c.attempt)
		slices.Sort(got)
		if got[0] < c.low || got[len(got)-1] > c.high || got[len(got)-1]-got[0] < (c.high-c.low)*3/4 {
			t.Errorf("%s after attempt %d: %d to %d ms, want %d to %d", c.jitter, c.attempt, got[0], got[len(got)-1], c.low, c.high)
		}
	}
}

// Handlers' codes go before the policy, and the policy's patterns before what attempts are left (ojs-retry sections 6 and 7).
func TestFailuresThatEndAJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const policy = `{"max_attempts": 5, "non_retryable_errors": ["validation.payload_invalid", "auth.*", "E%.*"]}`
	for failure, want := range map[string]string{
		`{"message": "m"}`: "retryable",
		`{"message": "m", "type": "validation.payload_invalid"}`:              "discarded",
		`{"message": "m", "type": "validation.payload_invalid.really"}`:       "retryable",
		`{"message": "m", "type": "validation.schema_error"}`:                 "retryable",
		`{"message": "m", "type": "auth.token_expired"}`:                      "discarded",
		`{"message": "m", "code": "auth.forbidden"}`:                          "discarded",
		`{"message": "m", "type": "auth"}`:                                    "retryable",
		`{"message": "m", "type": "external.auth.failure"}`:                   "retryable",
		`{"message": "m", "type": "E100.x"}`:                                  "retryable",
		`{"message": "m", "type": "E%.x"}`:                                    "discarded",
		`{"message": "m", "code": "RETRY"}`:                                   "retryable",
		`{"message": "m", "code": "DISCARD"}`:                                 "discarded",
		`{"message": "m", "code": "FAIL", "type": "external.card_declined"}`:  "discarded",
		`{"message": "m", "code": "DEAD_LETTER"}`:                             "discarded",
		`{"message": "m", "retryable": false}`:                                "discarded",
		`{"message": "m", "retryable": true, "type": "auth.token_expired"}`:   "discarded",
		`{"message": "m", "code": "handler_error", "details": {"auth.x": 1}}`: "retryable",
	} {
		id := one[string](t, d.Service(), "select id::text from ojs.enqueue('a', p_queue => 'q', p_retry => $1::text::jsonb)", policy)
		exec(t, d.Service(), "select from ojs.fetch('{q}')")
		if got := one[string](t, d.Service(), "select state::text from ojs.nack($1, $2::text::jsonb)", id, failure); got != want {
			t.Errorf("%s: %s, want %s", failure, got, want)
		}
		again := one[string](t, d.Service(), "select id::text from ojs.enqueue('a', p_queue => 'q', p_retry => $1::text::jsonb)", policy)
		exec(t, d.Service(), "select from ojs.fetch('{q}')")
		if got := one[string](t, d.Service(), `
			select state::text from ojs.settle(json_build_array(
				json_build_object('id', $1::text, 'error', $2::text::json)))`, again, failure); got != want {
			t.Errorf("%s, of many: %s, want %s", failure, got, want)
		}
	}
}

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const year = 31_536_000_000
	for _, c := range []struct {
		policy string
		// What attempts 1, 2, ... are followed by, milliseconds.
		delays []int64
		cap    int64
		jitter bool
	}{
		{`null`, []int64{1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 300000, 300000}, 300000, true},
		{`{}`, []int64{1000, 2000, 4000}, 300000, true},
		{`{"jitter": true}`, []int64{1000, 2000, 4000}, 300000, true},
		{`{"jitter": false}`, []int64{1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 300000, 300000}, 0, false},
		{`{"jitter": "none"}`, []int64{1000, 2000}, 0, false},
		{`{"jitter": false, "initial_interval": "PT0.1S"}`, []int64{100, 200, 400}, 0, false},
		{`{"jitter": false, "initial_interval_ms": 100}`, []int64{100, 200, 400}, 0, false},
		{`{"jitter": false, "initial_interval_ms": 100, "initial_interval": "PT9S"}`, []int64{100, 200, 400}, 0, false},
		{`{"jitter": false, "initial_interval": "PT1M30S", "max_interval": "PT2M"}`, []int64{90000, 120000, 120000}, 0, false},
		{`{"jitter": false, "initial_interval": "PT1M30S", "max_interval_ms": 100000}`, []int64{90000, 100000}, 0, false},
		{`{"jitter": false, "initial_interval": "P1DT2H", "max_interval": "P2W"}`, []int64{93600000, 187200000}, 0, false},
		{`{"jitter": false, "initial_interval": "PT10M"}`, []int64{600000, 600000}, 0, false},
		{`{"jitter": false, "backoff_coefficient": 1.0}`, []int64{1000, 1000, 1000}, 0, false},
		{`{"jitter": false, "backoff_coefficient": 1.5}`, []int64{1000, 1500, 2250, 3375}, 0, false},
		{
			`{"jitter": false, "backoff_coefficient": 100, "max_interval": "P365D"}`,
			[]int64{1000, 100_000, 10_000_000, 1_000_000_000, year, year},
			0, false,
		},
		{`{"jitter": false, "backoff_strategy": "exponential", "backoff_coefficient": 3}`, []int64{1000, 3000, 9000, 27000}, 0, false},
		{
			`{"jitter": false, "backoff_strategy": "none", "initial_interval": "PT5S", "backoff_coefficient": 3}`,
			[]int64{5000, 5000, 5000},
			0, false,
		},
		{`{"jitter": false, "backoff_strategy": "constant", "initial_interval_ms": 5000}`, []int64{5000, 5000, 5000}, 0, false},
		{
			`{"jitter": false, "backoff_strategy": "linear", "initial_interval": "PT5S", "backoff_coefficient": 3,
				"max_interval": "PT12S"}`,
			[]int64{5000, 10000, 12000, 12000},
			0, false,
		},
		{
			`{"jitter": false, "backoff_strategy": "polynomial", "backoff_coefficient": 4}`,
			[]int64{1000, 16000, 81000, 256000, 300000},
			0, false,
		},
		{
			`{"jitter": false, "backoff_strategy": "polynomial", "backoff_coefficient": 100, "max_interval": "P365D"}`,
			[]int64{1000, year, year},
			0, false,
		},
		{
			`{"jitter": false, "backoff_strategy": "custom", "intervals": ["PT1S", 5000, "P1D"]}`,
			[]int64{1000, 5000, 86400000, 86400000},
			0, false,
		},
		{
			`{"jitter": false, "backoff_strategy": "custom", "intervals": [100, 90000], "max_interval": "PT1M"}`,
			[]int64{100, 60000, 60000},
			0, false,
		},
		{`{"backoff_strategy": "linear"}`, []int64{1000, 2000, 3000}, 300000, true},
		{`{"initial_interval": "PT10S", "max_interval": "PT12S"}`, []int64{10000, 12000, 12000}, 12000, true},
	} {
		for i, want := range c.delays {
			low, high := want, want
			if c.jitter {
				low, high = want/2, min(want*3/2, c.cap)
			}
			got := list[int64](t, d.Pool, `
				select ojs._retry_delay_ms(nullif($1::text::jsonb, 'null'), $2) from generate_series(1, 200)`, c.policy, i+1)
			slices.Sort(got)
			if got[0] < low || got[len(got)-1] > high {
				t.Errorf("%s, attempt %d: %d to %d ms, want %d to %d", c.policy, i+1, got[0], got[len(got)-1], low, high)
			}
			if c.jitter && got[len(got)-1]-got[0] < (high-low)/2 {
				t.Errorf("%s, attempt %d: 200 delays are between %d and %d ms, which is not spread over %d to %d", c.policy, i+1,
					got[0], got[len(got)-1], low, high)
			}
		}
		if got := one[int64](t, d.Pool, `
			select ojs._retry_delay_ms(nullif($1::text::jsonb, 'null'), 1000)`, c.policy); got < 0 || got > year {
			t.Errorf("%s, attempt 1000: %d ms", c.policy, got)
		}
	}
}

func TestAFailedJobWaitsAsItsPolicySays(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	now := noon
	d.SetNow(now)
	exec(t, d.Service(), `
		select from ojs.enqueue('a', p_queue => 'q', p_max_attempts => 4,
			p_retry => '{"jitter": false, "initial_interval": "PT5S", "backoff_coefficient": 3, "max_interval": "PT20S"}')`)
	for _, want := range []int{5, 15, 20} {
		held := oneJob(t, d.Service(), "ojs.fetch('{q}')")
		if got := one[time.Time](t, d.Service(), `
			select retry_at from ojs.nack($1, '{"message": "x"}')`, held.ID); !got.Equal(now.Add(time.Duration(want) * time.Second)) {
			t.Errorf("after attempt %d the next one is at %s, want %d s after %s", held.Attempt, got, want, now)
		}
		now = now.Add(time.Duration(want) * time.Second)
		d.SetNow(now)
		exec(t, d.Service(), "select ojs.tick()")
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "select from ojs.enqueue('a', p_visibility_timeout_ms => 60000)")
	exec(t, service, "insert into ojs.jobs (type) values ('b'), ('c')")
	held := jobs(t, service, "ojs.fetch('{default}', 2, 'w1')")
	nameless := oneJob(t, service, "ojs.fetch('{default}')")
	ends := func(id string) string {
		t.Helper()
		return one[time.Time](t, d.Pool, "select lease_expires_at from ojs.job where id = $1", id).UTC().Format("15:04:05")
	}
	if got := ends(held[0].ID) + " " + ends(held[1].ID); got != "12:01:00 12:00:30" {
		t.Errorf("leases end at %s", got)
	}
	d.SetNow(noon.Add(10 * time.Second))
	got := jobs(t, service, "ojs.heartbeat('w1', $1)", []string{held[0].ID, held[1].ID, nameless.ID, someID, held[0].ID})
	if len(got) != 3 {
		t.Errorf("a heartbeat extended %v, want its two jobs and the one of a worker without a name", got)
	}
	if got := ends(held[0].ID) + " " + ends(held[1].ID); got != "12:01:10 12:00:40" {
		t.Errorf("after a heartbeat leases end at %s", got)
	}
	exec(t, service, "select from ojs.heartbeat('w1', array[$1::uuid], 120000)", held[0].ID)
	exec(t, service, "select from ojs.heartbeat('w1', array[$1::uuid], 1000)", held[1].ID)
	if got := ends(held[0].ID) + " " + ends(held[1].ID); got != "12:02:10 12:00:40" {
		t.Errorf("a heartbeat that asks for less has shortened a lease: they end at %s", got)
	}
	for _, ids := range []any{nil, []string{}} {
		if got := jobs(t, service, "ojs.heartbeat('w1', $1::uuid[])", ids); len(got) != 0 {
			t.Errorf("a heartbeat without jobs extended %v", got)
		}
	}
	// One that is being ended at this moment is not waited for. It is held as far as anybody knows, and its lease stays as it is.
	tx := begin(t, service)
	exec(t, tx, "select from ojs.ack($1)", held[0].ID)
	if got := jobs(t, service, "ojs.heartbeat('w1', $1, 600000)", []string{held[0].ID, held[1].ID}); len(got) != 2 {
		t.Errorf("a heartbeat beside an acknowledgement lists %v", got)
	}
	rollback(t, tx)
	if got := ends(held[0].ID); got != "12:02:10" {
		t.Errorf("a heartbeat beside an acknowledgement has moved the lease to %s", got)
	}
}

func TestReleaseTakesTheAttemptBack(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "insert into ojs.jobs (type) values ('a'), ('b')")
	held := oneJob(t, service, "ojs.fetch('{default}', 1, 'w1')")
	got := oneJob(t, service, "ojs.release($1, $2)", held.ID, held.Lease)
	if got.State != "available" || got.Attempt != 0 || got.Lease != nil || got.WorkerID != nil {
		t.Errorf("given back: %+v", got)
	}
	if again := oneJob(t, service, "ojs.fetch('{default}')"); again.ID != held.ID || again.Attempt != 1 || *again.Lease == *held.Lease {
		t.Errorf("after that %+v is handed out, want the same job, first attempt, another lease", again)
	}
	refused(t, service, "OJ409", "select from ojs.release($1, $2)", held.ID, held.Lease)
	refused(t, service, "OJ400", "select from ojs.release($1, null)", held.ID)
	refused(t, service, "OJ404", "select from ojs.release($1, $2)", someID, held.Lease)
}

// Calls about jobs, with arguments that cannot be meant.
func TestMalformedCalls(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	server := d.Open()
	held := bring(t, d, "active", "q")
	before := row(t, d, held.ID)
	deep := strings.Repeat("[", 101) + strings.Repeat("]", 101)
	for _, c := range []struct {
		sql, states, field string
		params             []any
	}{
		{"ojs.ack(null)", "OJ400", "id", nil},
		{"ojs.ack('x')", "22P02", "", nil},
		{"ojs.ack($1)", "OJ404", "", []any{someID}},
		{"ojs.ack($1, p_result => $2::text::json)", "OJ412", "result", []any{held.ID, `"` + strings.Repeat("x", 1<<20) + `"`}},
		{"ojs.ack($1, p_result => $2::text::json)", "22P02", "", []any{held.ID, `{"a":`}},
		{"ojs.ack($1, p_result => $2::text::json)", "OJ401", "result", []any{held.ID, `{"a": "\u0000"}`}},
		{"ojs.ack($1, p_result => $2::text::json)", "OJ401", "result", []any{held.ID, `{"a": 1, "a": 2}`}},
		{"ojs.ack($1, p_result => $2::text::json)", "OJ401", "result", []any{held.ID, `"\udc00"`}},
		{"ojs.ack($1, p_result => $2::text::json)", "OJ401", "result", []any{held.ID, deep}},
		{"ojs.ack($1, 'lease')", "22P02", "", []any{held.ID}},

		{"ojs.nack(null, $1::text::jsonb)", "OJ400", "id", []any{`{"message": "x"}`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ404", "", []any{someID, `{"message": "x"}`}},
		{"ojs.nack($1, null)", "OJ400", "error", []any{held.ID}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error", []any{held.ID, `[]`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error", []any{held.ID, `"failed"`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error.message", []any{held.ID, `{}`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error.message", []any{held.ID, `{"message": null}`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error.message", []any{held.ID, `{"message": 5}`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error.code", []any{held.ID, `{"message": "x", "code": 5}`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error.type", []any{held.ID, `{"message": "x", "type": {}}`}},
		{"ojs.nack($1, $2::text::jsonb)", "OJ400", "error.retryable", []any{held.ID, `{"message": "x", "retryable": "no"}`}},
		{"ojs.nack($1, $2::text::jsonb)", "22P05", "", []any{held.ID, `{"message": "\u0000"}`}},

		{"ojs.heartbeat(null)", "OJ400", "worker_id", nil},
		{"ojs.heartbeat('')", "OJ400", "worker_id", nil},
		{"ojs.heartbeat(repeat('w', 256))", "OJ400", "worker_id", nil},
		{"ojs.heartbeat('w', '{}', 999)", "OJ400", "visibility_timeout_ms", nil},
		{"ojs.heartbeat('w', '{}', 604800001)", "OJ400", "visibility_timeout_ms", nil},
		{"ojs.heartbeat('w', array_fill($1::uuid, array[10001]))", "OJ400", "active_jobs", []any{held.ID}},
		{"ojs.heartbeat('w', '{x}')", "22P02", "", nil},

		{"ojs.release(null, $1)", "OJ400", "id", []any{someID}},
		{"ojs.cancel(null)", "OJ400", "id", nil},
		{"ojs.cancel($1)", "OJ404", "", []any{someID}},
		{"ojs.cancel($1, 'no such')", "OJ400", "tenant", []any{held.ID}},
		{"ojs.cancel($1, 'globex')", "OJ404", "", []any{held.ID}},
		{"ojs.activate(null)", "OJ400", "id", nil},
		{"ojs.activate($1)", "OJ404", "", []any{someID}},
		{"ojs.job_info(null)", "OJ400", "id", nil},
		{"ojs.job_info($1)", "OJ404", "", []any{someID}},
		{"ojs.job_info($1, '')", "OJ400", "tenant", []any{held.ID}},

		{"ojs.fetch(null)", "OJ400", "queues", nil},
		{"ojs.fetch('{}')", "OJ400", "queues", nil},
		{"ojs.fetch(array_fill('q'::text, array[101]))", "OJ400", "queues", nil},
		{"ojs.fetch('{q,null}')", "OJ400", "queues", nil},
		{"ojs.fetch('{q,Q}')", "OJ400", "queues", nil},
		{"ojs.fetch('{\"\"}')", "OJ400", "queues", nil},
		{"ojs.fetch('{{q,r}}')", "OJ400", "queues", nil},
		{"ojs.fetch(array[repeat('q', 129)])", "OJ400", "queues", nil},
		{"ojs.fetch('{q}', 0)", "OJ400", "count", nil},
		{"ojs.fetch('{q}', null)", "OJ400", "count", nil},
		{"ojs.fetch('{q}', 10001)", "OJ400", "count", nil},
		{"ojs.fetch('{q}', 1, repeat('w', 256))", "OJ400", "worker_id", nil},
		{"ojs.fetch('{q}', 1, 'w', 999)", "OJ400", "visibility_timeout_ms", nil},
		{"ojs.fetch('{q}', 1, 'w', 604800001)", "OJ400", "visibility_timeout_ms", nil},
		{"ojs.fetch('{q}', 1, 'w', 1000, 'no such')", "OJ400", "tenant", nil},

		{"ojs.tick(0)", "OJ400", "limit", nil},
		{"ojs.tick(null)", "OJ400", "limit", nil},
		{"ojs.tick(100001)", "OJ400", "limit", nil},
		{"ojs.events(p_limit => 0)", "OJ400", "limit", nil},
		{"ojs.events(p_limit => 1001)", "OJ400", "limit", nil},
		{"ojs.events(p_tenant => 'no such')", "OJ400", "tenant", nil},
		{"ojs.pause(null)", "OJ400 23502", "queue", nil},
		{"ojs.pause('')", "OJ400", "queue", nil},
		{"ojs.pause(repeat('q', 9000))", "OJ400", "queue", nil},
		{"ojs.resume('No Such')", "OJ400", "queue", nil},
		{"ojs.register_waiters(null, '{q}')", "OJ400 23502", "", nil},
		{"ojs.register_waiters($1, '{null}')", "OJ400 23502", "", []any{someID}},

		{"ojs.configure_tenant(null)", "OJ400", "tenant", nil},
		{"ojs.configure_tenant('no such')", "OJ400", "tenant", nil},
		{"ojs.configure_tenant('acme', 0)", "OJ422", "weight", nil},
		{"ojs.configure_tenant('acme', -1)", "OJ422", "weight", nil},
		{"ojs.configure_tenant('acme', 1000001)", "OJ422", "weight", nil},
		{"ojs.configure_tenant('acme', 'NaN')", "OJ422", "weight", nil},
		{"ojs.configure_tenant('acme', 'Infinity')", "OJ422", "weight", nil},
		{"ojs.configure_tenant('acme', 0.0000001)", "OJ422", "weight", nil},
		{"ojs.configure_tenant('acme', null, 101)", "OJ422", "priority_boost", nil},
	} {
		failure := refused(t, d.Service(), c.states, "select from "+c.sql, c.params...)
		if failure.Code == "" {
			continue
		}
		if answer := answers(t, server, failure); answer.Status < 400 || answer.Status > 499 {
			t.Errorf("%s: SQLSTATE %s would be answered with %d", c.sql, failure.Code, answer.Status)
		}
		if got := detail(t, failure); c.field != "" && strings.HasPrefix(failure.Code, "OJ") && got["field"] != c.field {
			t.Errorf("%s: the error names %v, want %s", c.sql, got["field"], c.field)
		}
	}
	refused(t, d.Operator(), "OJ400", "select from ojs.configure('no such')")
	for _, level := range []string{"repeatable read", "serializable"} {
		tx := begin(t, d.Service())
		exec(t, tx, "set transaction isolation level "+level)
		refused(t, tx, "OJ408", "select from ojs.fetch('{q}')")
	}
	if after := row(t, d, held.ID); after != before {
		t.Errorf("a malformed call changed a job\n  before %s\n  after  %s", before, after)
	}
	if got := one[int](t, d.Pool, `
		select (select count(*) from ojs.queue) + (select count(*) from ojs.tenant) + (select count(*) from ojs.waiter)`); got != 0 {
		t.Errorf("malformed calls left %d rows of configuration", got)
	}
}

// A random walk over one job: whatever is done to it, it stays sound and its attempts only grow (less what is given back).
func TestRandomLivesOfAJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	seed := newSeed()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	service := d.Service()
	now := noon
	d.SetNow(now)
	ids := list[string](t, service, `
		select id::text from ojs.enqueue_many((
			select json_agg(json_build_object('type', 'a', 'args', '[]'::json, 'pending', i % 3 = 0, 'max_attempts', 5))
			from generate_series(1, 12) i))`)
	calls := []string{
		"ojs.fetch('{default}', 2, 'w')", "ojs.fetch('{default}', 2, 'w')", "ojs.ack($1)", `ojs.nack($1, '{"message": "x"}')`,
		`ojs.nack($1, '{"message": "x"}', p_requeue => true)`,
		"ojs.cancel($1)", "ojs.activate($1)", "ojs.release($1, (select lease from ojs.job where id = $1))",
		"ojs.heartbeat('w', array[$1::uuid])", "ojs.tick()",
	}
	for step := range 300 {
		call := calls[r.IntN(len(calls))]
		if strings.HasPrefix(call, "ojs.cancel") && r.IntN(10) > 0 {
			continue
		}
		var params []any
		if strings.Contains(call, "$1") {
			params = []any{ids[r.IntN(len(ids))]}
		}
		if _, err := d.Pool.Exec(t.Context(), "select from "+call, params...); err != nil {
			if failure := sqlstate(t, err, "OJ409 OJ400", call); failure.Code == "" {
				t.FailNow()
			}
		}
		if r.IntN(10) == 0 {
			now = now.Add(time.Duration(r.IntN(40)) * time.Second)
			d.SetNow(now)
		}
		if got := list[string](t, d.Pool, unsound); len(got) > 0 {
			t.Fatalf("step %d, %s: unsound jobs:\n  %s", step, call, strings.Join(got, "\n  "))
		}
	}
}
