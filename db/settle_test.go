package db_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// outcome is a row of a call in which each element succeeds or fails by itself.
type outcome struct {
	N                        int
	SQLState, Message, State string
	Detail                   map[string]any
	ID                       string
}

func outcomes(t testing.TB, q querier, call string, args ...any) []outcome {
	t.Helper()
	rows, err := q.Query(t.Context(), `
		select n, coalesce(sqlstate, ''), coalesce(message, ''), coalesce(state::text, ''), detail,
			coalesce(id::text, '')
		from `+call, args...)
	if err == nil {
		var all []outcome
		if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[outcome]); err == nil {
			for i, o := range all {
				if o.N != i {
					t.Errorf("%s: row %d is of element %d", pgtest.Short(call), i, o.N)
				}
				if (o.SQLState == "") != (o.State != "") {
					t.Errorf("%s: row %d is both or neither a job and a problem: %+v", pgtest.Short(call), i, o)
				}
			}
			return all
		}
	}
	t.Fatalf("%s: %s", pgtest.Short(call), pgtest.Explain(err))
	return nil
}

func settle(t testing.TB, q querier, settlements ...string) []outcome {
	t.Helper()
	return outcomes(t, q, "ojs.settle($1::text::json)", "["+strings.Join(settlements, ",")+"]")
}

func TestNullsInAnErrorAreAbsent(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select from ojs.enqueue('a')")
	held := jobs(t, service, "ojs.fetch('{default}')")
	if got := lines(t, service, `
		select n.state, n.errors -> -1 ->> 'code', n.errors -> -1 ->> 'type'
		from ojs.nack($1, '{"message": "x", "code": null, "type": null, "retryable": null}') n`, held[0].ID); !slices.Equal(got,
		[]string{"retryable handler_error handler_error"}) {
		t.Errorf("it is %v", got)
	}
}

func TestSettleMany(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "insert into ojs.jobs (tenant_id, type, args) select 'acme', 'a', '[ 1 ]' from generate_series(1, 12)")
	held := jobs(t, service, "ojs.fetch('{default}', 12, 'w1')")
	exec(t, service, "select from ojs.cancel($1)", held[7].ID)
	at := func(format string, i int) string { return strings.ReplaceAll(format, "?", held[i].ID) }
	got := settle(t, service,
		at(`{"id":"?"}`, 0),
		fmt.Sprintf(`{ "id": "%s", "lease": "%s", "worker_id": "w1", "tenant": "acme", "result": { "b":1, "a":[2.50]} }`,
			held[1].ID, *held[1].Lease),
		at(`{"id":"?","error":{"message":"x"}}`, 2),
		at(`{"id":"?","error":{"message":"x","retryable":false,"code":null,"type":null}}`, 3),
		at(`{"id":"?","error":{"message":"x"},"requeue":true}`, 4),
		fmt.Sprintf(`{"id":"%s","lease":"%s"}`, held[5].ID, *held[1].Lease),
		at(`{"id":"?","worker_id":"w2"}`, 5),
		at(`{"id":"?","tenant":"globex"}`, 5),
		at(`{"id":"?"}`, 7),
		`{"id":"`+someID+`"}`,
		`{"id":"x"}`, `{"id":null}`, `{}`,
		at(`{"id":"?","lease":"x"}`, 5),
		at(`{"id":"?","error":null}`, 5),
		at(`{"id":"?","error":{"message":5}}`, 5),
		at(`{"id":"?","result":{"a":1,"a":2}}`, 5),
		at(`{"id":"?","result":"\u0000"}`, 5),
		at(`{"id":"?","error":{"message":"x","n":1e999999}}`, 5),
		at(`{"id":"?","error":{"message":"x","n":0.`+strings.Repeat("1", 17_000)+`}}`, 5),
		at(`{"id":"?","tenant":"no such"}`, 5),
		at(`{"id":"?","result":null,"lease":null,"worker_id":null,"tenant":null,"requeue":null}`, 6),
		at(`{"id":"?"}`, 0),
		at(`{"id":"?","error":{"message":"again"}}`, 2),
		fmt.Sprintf(`{"id":"%s","lease":"%s"}`, held[8].ID, *held[1].Lease), at(`{"id":"?"}`, 8),
		at(`{"id":"?","error":{"message":"late"}}`, 8),
	)
	want := []string{
		"completed", "completed", "retryable", "discarded", "available", "OJ409 lease", "OJ409 worker_id", "OJ404", "OJ409",
		"OJ404", "22P02 id", "OJ400 id", "OJ400 id", "22P02 lease",
		"OJ400 error", "OJ400 error.message", "OJ401 result", "OJ401 settlement", "22003 error", "22003 error", "OJ400 tenant",
		"completed", "OJ409", "OJ409", "OJ409 lease", "completed", "OJ409",
	}
	for i, w := range want {
		o := got[i]
		text := o.State + o.SQLState
		if field, ok := o.Detail["field"].(string); ok {
			text += " " + field
		}
		if text != w {
			t.Errorf("element %d: %s, want %s (%+v)", i, text, w, o)
		}
	}
	for i, state := range map[int]string{8: "cancelled", 22: "completed", 23: "retryable", 26: "completed"} {
		if got[i].Detail["current_state"] != state {
			t.Errorf("element %d meets the job as %v, want %s", i, got[i].Detail["current_state"], state)
		}
	}
	if result := one[string](t, service, "select result::text from ojs.job_info($1)", held[1].ID); result != `{ "b":1, "a":[2.50]}` {
		t.Errorf("the result is kept as %s", result)
	}
	if result := one[string](t, service, "select result::text from ojs.job_info($1)", held[6].ID); result != "null" {
		t.Errorf("a result that is null is kept as %s", result)
	}
	if held := row(t, d, held[5].ID); !strings.HasPrefix(held, "(active,") {
		t.Errorf("a job that nobody could settle is %s", held)
	}
	if got := lines(t, d.Pool, `
		select to_state::text, fenced, count(*) from ojs.release where to_state <> 'cancelled' group by 1, 2
		union all select to_state::text, null, sum(jobs) from ojs.journal where to_state = 'completed' group by 1
		union all select 'unfenced', null, sum(unfenced) from ojs.journal order by 1, 2`); !slices.Equal(got, []string{
		"available false 1", "completed - 4", "discarded false 1", "retryable false 1", "unfenced - 3",
	}) {
		t.Errorf("the journal says %q", got)
	}
	if list := list[string](t, d.Pool, unsound); len(list) > 0 {
		t.Errorf("unsound jobs:\n  %s", strings.Join(list, "\n  "))
	}
	if again := jobs(t, service, "ojs.fetch('{default}', 10)"); len(again) != 1 || again[0].ID != held[4].ID {
		t.Errorf("afterwards %v is handed out, want the job that was put back", again)
	}
	// The narrow answer leaves out what the producer sent and what the worker sent.
	if got := lines(t, service, `
		select sqlstate, state::text, args, meta, options, extra, result, type
		from ojs.settle($1::text::json, false)`, at(`[{"id":"?","result":{"a":1}}]`, 9)); got[0] != "- completed - - - - - a" {
		t.Errorf("the narrow answer is %q", got[0])
	}
}

func TestSettleAsAWhole(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	held := bring(t, d, "active", "q")
	before := row(t, d, held.ID)
	ok := `{"id":"` + held.ID + `"}`
	for name, c := range map[string]struct{ settlements, state, field string }{
		"null": {"null", "OJ400", "settlements"}, "an object": {ok, "OJ400", "settlements"}, "nothing": {"[]", "OJ400", "settlements"},
		"10001": {"[" + strings.Repeat(ok+",", 10_000) + ok + "]", "OJ400", "settlements"}, "not JSON": {"[" + ok, "22P02", ""},
		"a number among them": {"[" + ok + ",5]", "OJ400", ""}, "null among them": {"[" + ok + ",null]", "OJ400", ""},
		"an unknown field": {
			"[" + ok + `,{"id":"` + someID + `","job_id":"x"}]`, "OJ400",
			"job_id",
		}, "a field twice": {
			"[" + ok + `,{"id":"` + someID + `","id":"` + someID + `"}]`, "OJ400", "id",
		},
		"an id that is a number": {
			"[" + ok + `,{"id":5}]`, "OJ400",
			"id",
		}, "a lease that is an object": {
			"[" + ok + `,{"id":"` + someID + `","lease":{}}]`, "OJ400", "lease",
		},
		"a requeue that is a string": {
			"[" + ok + `,{"id":"` + someID + `","requeue":"true"}]`, "OJ400",
			"requeue",
		}, "a worker that is a number": {
			"[" + ok + `,{"id":"` + someID + `","worker_id":1}]`, "OJ400", "worker_id",
		},
	} {
		failure := refused(t, d.Service(), c.state, "select n from ojs.settle($1::text::json)", c.settlements)
		if got, _ := detail(t, failure)["field"].(string); got != c.field {
			t.Errorf("%s: the error names %q, want %q", name, got, c.field)
		}
	}
	refused(t, d.Service(), "OJ400", "select n from ojs.settle(null)")
	if after := row(t, d, held.ID); after != before {
		t.Errorf("malformed calls changed a job\n  before %s\n  after  %s", before, after)
	}
}

// Who holds a lock is not waited for, and a rollback takes everything back.
func TestSettleBesideALock(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "insert into ojs.jobs (tenant_id, type) values ('acme', 'a'), ('acme', 'b')")
	held := jobs(t, service, "ojs.fetch('{default}', 2)")
	both := []string{`{"id":"` + held[0].ID + `"}`, `{"id":"` + held[1].ID + `","error":{"message":"x"},"requeue":true}`}
	tx := begin(t, service)
	exec(t, tx, "select from ojs.cancel($1)", held[0].ID)
	before := stored(t, d)
	other := begin(t, service)
	got := settle(t, other, both...)
	if got[0].SQLState != "55P03" || got[0].Detail["job_id"] != held[0].ID || got[1].State != "available" {
		t.Errorf("beside a lock: %+v", got)
	}
	rollback(t, other)
	if after := stored(t, d); after != before {
		t.Errorf("after a rollback: %s, before: %s", after, before)
	}
	rollback(t, tx)
	if got := settle(t, service, both...); got[0].State != "completed" || got[1].State != "available" {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestSettleIsForOnesOwn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	held := bring(t, d, "active", "q")
	if got := settle(t, d.As("globex"), `{"id":"`+held.ID+`"}`, `{"id":"`+held.ID+`","tenant":"acme"}`,
		`{"id":"`+someID+`"}`); got[0].SQLState != "OJ404" ||
		got[1].SQLState != "OJ403" || strings.ReplaceAll(got[2].Message, someID, held.ID) != got[0].Message {
		t.Errorf("a foreign job: %+v", got)
	}
	// An id that two tenants have.
	exec(t, d.As("globex"), "select from ojs.enqueue('a', p_id => $1, p_queue => 'q')", held.ID)
	oneJob(t, d.Service(), "ojs.fetch('{q}')")
	got := settle(t, d.Service(), `{"id":"`+held.ID+`"}`, `{"id":"`+held.ID+`","tenant":"acme"}`, `{"id":"`+held.ID+`"}`)
	if got[0].SQLState != "OJ411" || got[1].State != "completed" || got[2].SQLState != "OJ411" {
		t.Errorf("an id of two tenants: %+v", got)
	}
	if got := settle(t, d.As("globex"), `{"id":"`+held.ID+`"}`); got[0].State != "completed" {
		t.Errorf("one's own: %+v", got)
	}
}

// element is one of the settlements in a call.
type element struct {
	ID       string          `json:"id"`
	Lease    *string         `json:"lease,omitempty"`
	WorkerID *string         `json:"worker_id,omitempty"`
	Tenant   *string         `json:"tenant,omitempty"`
	Result   json.RawMessage `json:"result,omitempty"`
	Error    json.RawMessage `json:"error,omitempty"`
	Requeue  bool            `json:"requeue,omitempty"`
}

// numbered returns the id of the nth job of sixtyJobs.
func numbered(n int) string { return fmt.Sprintf("01932a4e-0000-7000-8000-%012x", n) }

// sixtyJobs makes sixty jobs of two tenants, of which fifty are active. The same seed makes the same jobs.
func sixtyJobs(t *testing.T, d *pgtest.DB, seed uint64) {
	t.Helper()
	d.SetNow(noon)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range 60 {
		exec(t, d.Service(), `
			select from ojs.enqueue('a', p_id => $1, p_tenant => $2, p_max_attempts => $3, p_retry => $4::text::jsonb)`,
			numbered(i), []string{"acme", "globex"}[r.IntN(2)], 1+r.IntN(3),
			[]string{`{"jitter": false}`, `{"jitter": false, "non_retryable_errors": ["bad"]}`}[r.IntN(2)])
	}
	fetchFifty(t, d)
}

// fetchFifty hands out fifty jobs, under leases that are computed from their ids.
func fetchFifty(t *testing.T, d *pgtest.DB) {
	t.Helper()
	exec(t, d.Service(), "select from ojs.fetch('{default}', 50, 'w1')")
	exec(t, d.Pool, "update ojs.job set lease = ('0' || substr(id::text, 2))::uuid where state = 'active'")
}

func randomElement(r *rand.Rand) element {
	maybe := func(values ...string) *string {
		if n := r.IntN(2 * len(values)); n < len(values) {
			return &values[n]
		}
		return nil
	}
	e := element{ID: numbered(r.IntN(62)), WorkerID: maybe("w1", "w1", "w2"), Tenant: maybe("acme", "globex", "no such")}
	e.Lease = maybe(e.ID, e.ID, otherID)
	if r.IntN(2) == 0 {
		e.Error = json.RawMessage([]string{
			`{"message":"x"}`, `{"message":"x","code":"bad"}`, `{"message":"x","retryable":false}`, `{"code":"bad"}`, `[]`,
			`{"message":"é\"\n"}`,
		}[r.IntN(6)])
		e.Requeue = r.IntN(3) == 0
	} else if r.IntN(2) == 0 {
		e.Result = json.RawMessage([]string{`null`, `{"a":[1,{"b":":"}]}`, `{"a":1,"a":1}`, `"é"`, `5.0`}[r.IntN(5)])
	}
	return e
}

// alone settles an element with a call of its own.
func (e element) alone(t *testing.T, q querier, n int) outcome {
	t.Helper()
	call, args := "ojs.ack($1, $2, $5::text::json, $3, $4)", []any{e.ID, e.Lease, e.WorkerID, e.Tenant, nil}
	if e.Result != nil {
		args[4] = string(e.Result)
	}
	if e.Error != nil {
		call, args = "ojs.nack($1, $5::text::jsonb, $2, $3, $6, $4)", append(args[:4], string(e.Error), e.Requeue)
	}
	o := outcome{N: n}
	if err := q.QueryRow(t.Context(), "select state::text, id::text from "+call, args...).Scan(&o.State, &o.ID); err != nil {
		failure := sqlstate(t, err, "OJ400 OJ401 OJ404 OJ409", call)
		o.SQLState, o.Message, o.Detail = failure.Code, failure.Message, detail(t, failure)
	}
	return o
}

// alike fails if a query returns different rows in the two databases.
func alike(t *testing.T, one, other *pgtest.DB, queries ...string) {
	t.Helper()
	for _, sql := range queries {
		if a, b := list[string](t, one.Pool, sql), list[string](t, other.Pool, sql); !slices.Equal(a, b) {
			t.Errorf("%s\n%s", pgtest.Short(sql), firstDifference(strings.Join(a, "\n"), strings.Join(b, "\n")))
		}
	}
}

// What is done in one call leaves the same rows and the same journals as what is done one by one.
func TestSettleLikeOneByOne(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	single, bulk := pgtest.New(t), pgtest.New(t)
	sixtyJobs(t, single, seed)
	sixtyJobs(t, bulk, seed)
	for round := range 12 {
		elements := make([]element, 1+r.IntN(20))
		want := make([]outcome, len(elements))
		for i := range elements {
			elements[i] = randomElement(r)
			want[i] = elements[i].alone(t, single.Service(), i)
		}
		raw, err := json.Marshal(elements)
		if err != nil {
			t.Fatal(err)
		}
		got := outcomes(t, bulk.Service(), "ojs.settle($1::text::json, $2)", string(raw), round%2 == 0)
		for i := range want {
			if fmt.Sprint(got[i]) != fmt.Sprint(want[i]) {
				t.Errorf("round %d, element %d: %+v, alone %+v", round, i, got[i], want[i])
			}
		}
		alike(t, single, bulk,
			"select j::text from ojs.job j order by id",
			`select concat_ws(' ', tenant_id, queue, priority, job_id, job_type, attempt, from_state, to_state,
					started_at, fenced, at)
				from ojs.release order by 1`,
			`select concat_ws(' ', tenant_id, queue, priority, from_state, to_state, sum(jobs), min(lo), max(hi), sum(unfenced))
				from ojs.journal group by tenant_id, queue, priority, from_state, to_state, lo order by 1`,
			`select concat_ws(' ', x.tenant_id, x.id, abs(extract(epoch from due_at - j.retry_at)) < 0.05) from ojs.timer t
				cross join unnest(t.tenant_ids, t.ids) x(tenant_id, id) join ojs.job j on j.id = x.id where t.kind = 'due'
				order by 1`)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
		if round%4 == 3 {
			for _, d := range []*pgtest.DB{single, bulk} {
				d.SetNow(noon.Add(time.Duration(round) * time.Hour))
				exec(t, d.Service(), "select ojs.tick()")
				fetchFifty(t, d)
			}
		}
	}
}

// Every job is refused or accepted as if it came alone, and has no effect on other jobs.
func TestEnqueueEach(t *testing.T) {
	t.Parallel()
	d, alone := pgtest.New(t), pgtest.New(t)
	acme := d.As("acme")
	exec(t, acme, "select from ojs.enqueue('first', p_id => $1)", someID)
	exec(t, alone.As("acme"), "select from ojs.enqueue('first', p_id => $1)", someID)
	var elements []string
	good := 0
	for _, c := range malformedJobs() {
		raw := c.doors()["many"].params
		if len(raw) != 1 || strings.Contains(c.text, "\x00") || !utf8.ValidString(c.text) || len(raw[0]) > 50_000 || !json.Valid(raw[0]) {
			continue
		}
		_, bad, _ := strings.Cut(string(raw[0]), "[]}, ")
		elements = append(elements, strings.TrimSuffix(bad, "]"), fmt.Sprintf(`{"type":"good","args":[%d]}`, good))
		good++
	}
	elements = append(elements,
		`{"type":"dup","args":[],"id":"`+someID+`"}`,
		`{"type":"new","args":[],"id":"`+otherID+`"}`,
		`{"type":"new","args":[],"id":"`+otherID+`"}`,
		`{"type":"later","args":[],"scheduled_at":"2999-01-01T00:00:00Z"}`, `{"type":"held","args":[],"pending":true}`, `null`,
		`[]`, `{"type":"x","args":[],"type":"y"}`,
		`{"type":"x","args":[],"tenant":"globex"}`,
		`{"type":"full","args":[{"a":[1]}],"queue":"q","priority":-5,"meta":{"tenant_id":"acme"},"retry":{"max_attempts":7},
			"tags":["é"],"options":{"o":1},"extra":{"e":1},"timeout_ms":0}`)
	got := outcomes(t, acme, "ojs.enqueue_each($1::text::json)", "["+strings.Join(elements, ",")+"]")
	if len(got) != len(elements) {
		t.Fatalf("%d rows for %d jobs", len(got), len(elements))
	}
	for i, element := range elements {
		want := outcome{N: i}
		err := alone.As("acme").QueryRow(t.Context(), `
			select state::text from ojs.enqueue_many($1::text::json)`, "["+element+"]").Scan(&want.State)
		if err != nil {
			failure := sqlstate(t, err, "OJ400 OJ401 OJ403 OJ405 OJ410 OJ413 OJ422 22P02 22P05 22003 22007 22008 22009 54001", element)
			want.SQLState, want.Message = failure.Code, strings.Replace(failure.Message, "jobs[0]", fmt.Sprintf("jobs[%d]", i), 1)
			if err := json.Unmarshal([]byte(failure.Detail), &want.Detail); err != nil || want.Detail["index"] != 0.0 {
				t.Errorf("%.100s: detail %s", element, failure.Detail)
			}
			want.Detail["index"] = float64(i)
			if _, ok := want.Detail["field"]; !ok && failure.Code != "22P05" && !strings.Contains(element, `\u`) {
				t.Errorf("%.100s: the error names no field: %s", element, failure.Message)
			}
		}
		if got[i].ID = ""; fmt.Sprint(got[i]) != fmt.Sprint(want) {
			t.Errorf("%.100s: %+v, alone %+v", element, got[i], want)
		}
	}
	alike(t, alone, d,
		`select concat_ws(' ', type, state, seq is null, queue, priority, max_attempts, tenant_id, args, meta, retry,
				tags, options, extra, timeout_ms)
			from ojs.job order by 1`,
		`select concat_ws(' ', tenant_id, queue, priority, from_state, to_state, sum(jobs))
			from ojs.journal group by tenant_id, queue, priority, from_state, to_state order by 1`,
		"select concat_ws(' ', due_at, kind, tenant_ids) from ojs.timer order by 1")
	t.Logf("%d bad among %d", len(elements)-good, len(elements))
	// In the order given.
	if numbers := list[int](t, d.Pool, `
		select (args ->> 0)::int from ojs.job where type = 'good' order by seq`); !slices.IsSorted(numbers) || len(numbers) != good {
		t.Errorf("the good ones line up as %v", numbers)
	}
	for _, whole := range []string{"null", "{}", "[]", "5"} {
		refused(t, acme, "OJ400", "select n from ojs.enqueue_each($1::text::json)", whole)
	}
}

// The service names a tenant per job.
func TestTheServiceEnqueuesEachForATenant(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tenants := list[string](t, d.Service(), `
		select coalesce(tenant_id, sqlstate) from ojs.enqueue_each('[
			{"type":"a","args":[],"tenant":"globex"},
			{"type":"a","args":[]},
			{"type":"a","args":[],"tenant":"no such"},
			{"type":"a","args":[],"meta":{"tenant_id":"initech"}},
			{"type":"a","args":[],"meta":{"tenant_id":"a b"}}]')`)
	if !slices.Equal(tenants, []string{"globex", "_default", "OJ400", "initech", "OJ400"}) {
		t.Errorf("the tenants are %v", tenants)
	}
	exec(t, d.Operator(), "select from ojs.configure(p_tenant_required => true)")
	got := outcomes(t, d.Service(), `ojs.enqueue_each('[{"type":"a","args":[],"tenant":"globex"},{"type":"a","args":[]}]')`)
	if got[0].State != "available" || got[1].SQLState != "OJ402" {
		t.Errorf("where tenants are required: %+v", got)
	}
}

// What lets jobs pass quickly lets none pass that breaks a rule.
func TestNoQuickPassForBadJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const quickly = `select coalesce(ojs._ordinary_names(x.tenant, x.type, x.queue) and ojs._ordinary_id(x.id, ojs._latest_id())
		and ojs._ordinary_rest(x.tenant, x.priority, x.max_attempts, x.scheduled_at, x.expires_at, x.timeout_ms, x.visibility_timeout_ms,
			x.tags, x.args, x.meta, x.retry, x.options, x.extra), false) from (select %s) x`
	ordinary := map[string]string{
		"type": "'a'::text", "queue": "'q'::text", "priority": "0", "max_attempts": "3", "scheduled_at": "null::timestamptz",
		"expires_at": "null::timestamptz", "timeout_ms": "null::int", "visibility_timeout_ms": "null::int", "tags": "null::text[]",
		"args": "'[]'::json", "meta": "'{}'::jsonb", "retry": "null::jsonb", "options": "null::json", "extra": "null::json",
		"id": "null::uuid", "tenant": "'acme'::text",
	}
	columns := func(replaced string) string {
		var list []string
		for name, value := range ordinary {
			if name == replaced {
				value = "$1::text::" + sqlType[name]
			}
			list = append(list, value+" as "+name)
		}
		return fmt.Sprintf(quickly, strings.Join(list, ", "))
	}
	if !one[bool](t, d.Pool, columns("")) {
		t.Error("an ordinary job does not pass")
	}
	passed := 0
	for _, c := range malformedJobs() {
		if _, ok := ordinary[c.field]; !ok || c.null || c.only == "m" || c.field == "tenant" {
			continue
		}
		var quick bool
		err := d.Pool.QueryRow(t.Context(), columns(c.field), c.text).Scan(&quick)
		if failure := new(pgconn.PgError); err != nil && (!errors.As(err, &failure) || strings.HasPrefix(failure.Code, "42")) {
			t.Fatal(err)
		}
		if quick && c.name != "max_attempts by insert" {
			t.Errorf("%s passes quickly", c.name)
		}
		passed++
	}
	if passed < 60 {
		t.Errorf("only %d cases were tried", passed)
	}
}
