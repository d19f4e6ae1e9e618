package db_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// taken returns the tenants of the next jobs of a queue, in order.
func taken(t *testing.T, q querier, queue string, count int) string {
	t.Helper()
	return one[string](t, q, "select coalesce(string_agg(tenant_id, ''), '') from ojs.fetch(array[$1], $2)", queue, count)
}

// What a queue says counts there, then what the deployment says, then a tenant's own weight; each change acts on what waits already.
func TestTenantsShareByTheQueue(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	for _, queue := range []string{"q", "p"} {
		for _, tenant := range []string{"x", "y"} {
			enqueueFor(t, service, queue, tenant, 400)
			exec(t, d.Pool, "select ojs._fold_on()") // one joins after the other, so that the order is the same each time
		}
	}
	const queue = "select ojs.configure_queue('q', jsonb_build_object('tenant_fairness', $1::jsonb))"
	const deployment = "select ojs.configure(p_tenant_fairness => $1)"
	for _, c := range []struct{ name, sql, document, q, p string }{
		{"nobody says anything", "", "", "yxyxyxyx", "yxyxyxyx"},
		{"a tenant's weight counts everywhere", "select ojs.configure_tenant('x', 3)", "", "yxxxyxxx", "yxxxyxxx"},
		{"a queue's weights count there", queue, `{"weights": {"x": 1, "tenant:x": 99, "tenant:y": 3}}`, "yyxyyyxy", "yxxxyxxx"},
		{"all are alike in the queue", queue, `{"strategy": "round-robin", "weights": {"x": 1, "y": 3}}`, "yxyxyxyx", "yxxxyxxx"},
		{"a default of the queue is for tenants without a weight", queue, `{"default_weight": 9}`, "yyxyyyxy", "yxxxyxxx"},
		{"weights of the queue are for all others than it names", queue, `{"weights": {"x": 0.25}}`, "yyxyyyyx", "yxxxyxxx"},
		{"all are alike where the queue does not say", deployment, `{"strategy": "round-robin"}`, "yyyyxyyy", "yxyxyxyx"},
		{"the weight in one queue beats alike in all", "select ojs.configure_tenant('y', 4, p_queue => 'p')", "", "yxyyyyxy", "yyxyyyyx"},
		{"and is taken away again", "select ojs.configure_tenant('y', null, p_queue => 'p')", "", "yyyxyyyy", "yxyxyxyx"},
		{"a default of the deployment", deployment, `{"strategy": "fair-share", "default_weight": 9}`, "xyyyyyyy", "yyyxyyyx"},
		{
			"the deployment's weights are the tenants' own", deployment,
			`{"weights": {"tenant:y": 0.000003, "x": 0.000001, "tenant:x": 99}}`, "yxxxxxxx", "yyyxyyyx",
		},
		{"and can be taken away", deployment, `{"weights": {"y": null, "x": null}}`, "xyyyyxyy", "yxyxyxyx"},
		{"the queue says nothing any more", queue, `null`, "yxyxyxyx", "yxyxyxyx"},
	} {
		switch {
		case c.document != "":
			exec(t, operator, c.sql, c.document)
		case c.sql != "":
			exec(t, operator, c.sql)
		}
		if q, p := taken(t, service, "q", 8), taken(t, service, "p", 8); q != c.q || p != c.p {
			t.Errorf("%s: %q, %q, want %q, %q", c.name, q, p, c.q, c.p)
		}
		ringsAgree(t, d.Pool)
	}
}

// shares is the configured fairness, with a second implementation of the rule which weight counts.
type shares struct {
	own      map[string]float64
	queue    map[string]map[string]float64
	alike    map[string]bool    // by queue; "": the deployment
	fallback map[string]float64 // by queue; "": the deployment
}

func (s *shares) weight(queue, tenant string) float64 {
	if s.alike[queue] {
		return 1
	}
	for _, name := range []string{tenant, "tenant:" + tenant} {
		if w, ok := s.queue[queue][name]; ok {
			return w
		}
	}
	if s.alike[""] {
		return 1
	}
	if w, ok := s.own[tenant]; ok {
		return w
	}
	for _, at := range []string{queue, ""} {
		if w, ok := s.fallback[at]; ok {
			return w
		}
	}
	return 1
}

// document returns a random tenant_fairness, and notes its content.
func (s *shares) document(r *rand.Rand, queue string, tenants []string) string {
	doc, weights := map[string]any{}, map[string]any{}
	s.alike[queue] = r.IntN(3) == 0
	if s.alike[queue] {
		doc["strategy"] = "round-robin"
	}
	delete(s.fallback, queue)
	if r.IntN(2) == 0 {
		s.fallback[queue] = float64(1+r.IntN(40)) / 8
		doc["default_weight"] = s.fallback[queue]
	}
	s.queue[queue] = map[string]float64{}
	for _, tenant := range tenants {
		name := []string{tenant, "tenant:" + tenant}[r.IntN(2)]
		switch weight := float64(1+r.IntN(40)) / 8; {
		case r.IntN(2) == 0:
		case queue != "":
			s.queue[queue][name] = weight
			weights[name] = weight
		case r.IntN(4) == 0:
			delete(s.own, tenant)
			weights[name] = nil
		default:
			s.own[tenant] = weight
			weights[name] = weight
		}
	}
	if len(weights) > 0 || r.IntN(2) == 0 {
		doc["weights"] = weights
	}
	if queue == "" {
		delete(s.queue, queue)
	}
	text, _ := json.Marshal(doc)
	return string(text)
}

// Whatever is configured, in whatever order with jobs that come and go: the weight in effect is that of a second way to say it, and what
// the views show is what holds in queues that do not say.
func TestTheWeightInEffect(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	seed := newSeed()
	t.Logf("-seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 7))
	queues, tenants := []string{"q", "p", "silent"}, []string{"a", "b", "c", "tenant:a"}
	s := &shares{map[string]float64{}, map[string]map[string]float64{}, map[string]bool{}, map[string]float64{}}
	exec(t, operator, "select ojs.configure_tenant('tenant:a', p_priority_boost => 0)")
	for step := range 150 {
		queue, tenant, did := queues[r.IntN(2)], tenants[r.IntN(len(tenants))], ""
		switch r.IntN(9) {
		case 0, 1:
			did = s.document(r, queue, tenants[:3])
			exec(t, operator, `select ojs.configure_queue($1, jsonb_build_object('tenant_fairness', $2::jsonb))`, queue, did)
		case 2:
			did = s.document(r, "", tenants[1:])
			exec(t, operator, "select ojs.configure(p_tenant_fairness => $1)", did)
		case 3:
			s.own[tenant] = float64(1+r.IntN(40)) / 8
			did = fmt.Sprintf("configure_tenant %s %v", tenant, s.own[tenant])
			exec(t, operator, "select ojs.configure_tenant($1, $2::float8::numeric, $3)", tenant, s.own[tenant], r.IntN(3)-1)
		case 4:
			if s.queue[queue] == nil {
				s.queue[queue] = map[string]float64{}
			}
			s.queue[queue][tenant] = float64(1+r.IntN(40)) / 8
			exec(t, operator, "select ojs.configure_tenant($1, $2::float8::numeric, p_queue => $3)", tenant, s.queue[queue][tenant], queue)
		case 5:
			exec(t, operator, "select ojs.rebuild()")
		case 6:
			exec(t, service, "select ojs.fetch(array[$1], $2)", queues[r.IntN(3)], 1+r.IntN(8))
		default:
			enqueueFor(t, service, queues[r.IntN(3)], tenant, 1+r.IntN(4))
			exec(t, service, "select ojs.fetch(array[$1])", queues[r.IntN(3)])
		}
		ringsAgree(t, d.Pool)
		for _, row := range lines(t, d.Pool, `
			select f.queue, f.tenant_id, f.weight::float8 from ojs.tenant_fairness f where f.ready
			union select '', s.tenant_id, s.weight::float8 from ojs.tenant_stats s
			union select '', s.tenant_id, s.weight::float8 from ojs.tenant_shares s`) {
			var queue, tenant string
			var weight float64
			if row[0] == ' ' {
				row = "nowhere" + row
			}
			if _, err := fmt.Sscan(row, &queue, &tenant, &weight); err != nil {
				t.Fatal(err)
			}
			if want := s.weight(queue, tenant); weight != want {
				t.Fatalf("step %d (%s): the weight of %s in %s is %v, want %v of %+v", step, did, tenant, queue, weight, want, s)
			}
		}
	}
}

// Who comes back, and who is there when the state of fairness is made anew, has the queue's weight; a deleted queue gives none.
func TestQueuesKeepTheirWeights(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	weights := func() []string {
		t.Helper()
		exec(t, service, "select from ojs.fetch('{nothing}')")
		return lines(t, d.Pool, "select tenant_id, weight::text from ojs.tenant_fairness where queue = 'q' and ready order by 1")
	}
	exec(t, operator, `select ojs.configure_queue('q', '{"tenant_fairness": {"weights": {"a": 0.5}, "default_weight": 7}}')`)
	for _, name := range []string{"at first", "back", "rebuilt", "back again"} {
		enqueueFor(t, service, "q", "a", 1)
		enqueueFor(t, service, "q", "b", 1)
		if name == "rebuilt" {
			exec(t, operator, "select ojs.rebuild()")
		} else {
			exec(t, d.Pool, "select ojs._fold_on()")
		}
		if got := weights(); !slices.Equal(got, []string{"a 0.5", "b 7"}) {
			t.Errorf("%s: %v", name, got)
		}
		exec(t, service, "select ojs.ack(id) from ojs.fetch('{q}', 2)")
	}
	exec(t, operator, "select ojs.delete_queue('q')")
	enqueueFor(t, service, "q", "a", 1)
	exec(t, d.Pool, "select ojs._fold_on()")
	if got := weights(); !slices.Equal(got, []string{"a 1"}) {
		t.Errorf("in a deleted queue: %v", got)
	}
	if n := one[int](t, d.Pool, "select count(*) from ojs.queue_weight"); n != 0 {
		t.Errorf("%d weights outlive their queue", n)
	}
}

// A caller without the lane goes by the queue's weights, too, before a decision has taken in whose jobs they are.
func TestCallersWithoutTheLaneKnowTheQueuesWeights(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, d.Operator(), `select ojs.configure_queue('q', '{"tenant_fairness": {"weights": {"b": 3}}}')`)
	enqueueFor(t, service, "q", "a", 20)
	enqueueFor(t, service, "q", "b", 20)
	tx := begin(t, service)
	exec(t, tx, "select pg_sleep(0.05)") // by then the transaction is taken for one that stays open
	if got := taken(t, tx, "q", 8); got != "abbbabbb" {
		t.Errorf("handed out are jobs of %s", got)
	}
	commit(t, tx)
	if n := owed(t, d.Pool, "q"); n != 8 {
		t.Errorf("%d jobs were handed out without the lane, want 8", n)
	}
}

// A document is refused as a whole, and says where.
func TestWhatTenantFairnessCannotBe(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator := d.Operator()
	for _, c := range []struct{ document, state, field string }{
		{`3`, "OJ422", ""},
		{`[]`, "OJ422", ""},
		{`{"enabled": "yes"}`, "OJ422", ".enabled"},
		{`{"strategy": "lottery"}`, "OJ422", ".strategy"},
		{`{"strategy": 1}`, "OJ422", ".strategy"},
		{`{"default_weight": 0}`, "OJ422", ".default_weight"},
		{`{"default_weight": "2"}`, "OJ422", ".default_weight"},
		{`{"default_weight": 1000000.1}`, "OJ422", ".default_weight"},
		{`{"weights": [1]}`, "OJ422", ".weights"},
		{`{"weights": {"ok": 1, "acme": 0.0000009}}`, "OJ422", ".weights.acme"},
		{`{"weights": {"tenant:acme": -1}}`, "OJ422", ".weights.tenant:acme"},
		{`{"weights": {"acme": "5"}}`, "OJ422", ".weights.acme"},
		{`{"weights": {"-": 1}}`, "OJ400", ".weights.-"},
		{`{"weights": {"*": 1}}`, "OJ400", ".weights.*"},
		{`{"weights": {"": 1}}`, "OJ400", ".weights."},
		{`{"share": 1}`, "OJ400", ".share"},
	} {
		for _, sql := range []string{
			"select ojs.configure_queue('q', jsonb_build_object('tenant_fairness', $1::jsonb))",
			"select ojs.configure(p_tenant_fairness => $1)",
		} {
			problem := refused(t, operator, c.state, sql, c.document)
			field := "tenant_fairness" + c.field
			if got := detail(t, problem); got["field"] != field || len(got) != 1 || !strings.HasPrefix(problem.Message, field+" ") {
				t.Errorf("%s: %s %v", c.document, problem.Message, got)
			}
		}
	}
	refused(t, operator, "OJ422", "select ojs.configure_tenant('acme', 0, p_queue => 'q')")
	refused(t, operator, "OJ422", "select ojs.configure_tenant('acme', 'NaN', p_queue => 'q')")
	refused(t, operator, "OJ422", "select ojs.configure_tenant('acme', 'Infinity', p_queue => 'q')")
	refused(t, operator, "OJ400", "select ojs.configure_tenant('acme', 1, p_queue => 'Q')")
	refused(t, operator, "OJ400", "select ojs.configure_tenant('acme', 1, 1, p_queue => 'q')")
	refused(t, operator, "OJ404", "select ojs.configure_tenant('acme', p_queue => 'q')")
	for table, n := range map[string]int{"ojs.queue": 0, "ojs.queue_weight": 0, "ojs.tenant": 0} {
		if got := one[int](t, d.Pool, "select count(*) from "+table); got != n {
			t.Errorf("%d rows of %s", got, table)
		}
	}

	exec(t, operator, `select ojs.configure_queue('q', '{"tenant_fairness": {"enabled": true, "strategy": null, "weights": null}}')`)
	tx := begin(t, operator)
	exec(t, tx, "select from ojs.enqueue('a')")
	exec(t, tx, "select from ojs.fetch('{default}')")
	refused(t, tx, "OJ409", `select ojs.configure_queue('q', '{"tenant_fairness": {"default_weight": 2}}')`)
	rollback(t, tx)
	tx = begin(t, operator)
	exec(t, tx, "set transaction isolation level repeatable read")
	refused(t, tx, "OJ408", `select ojs.configure(p_tenant_fairness => '{}')`)
}

// Operators read back what they gave; a tenant does not learn who else there is, and at what weight.
func TestTenantsSeeNoWeightsOfOthers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	operator, acme := d.Operator(), d.As("acme")
	const configure = `
		select (ojs.configure_queue('q', '{"description": "x", "tenant_fairness": {
			"enabled": true, "strategy": "fair-share", "weights": {"tenant:globex": 5, "acme": 0.10}, "default_weight": 2}}')).config::text`
	const want = `{"description": "x", "tenant_fairness": {"enabled": true, "weights": {"acme": 0.1, "tenant:globex": 5}, ` +
		`"strategy": "fair-share", "default_weight": 2}}`
	for range 2 {
		if got := one[string](t, operator, configure); got != want {
			t.Errorf("the queue is configured as %s", got)
		}
	}
	const seen = `{"description": "x", "tenant_fairness": {"enabled": true, "strategy": "fair-share", "default_weight": 2}}`
	if got := one[string](t, acme, "select config::text from ojs.queue"); got != seen {
		t.Errorf("a tenant sees %s", got)
	}
	exec(t, operator, `select ojs.configure(p_tenant_fairness => '{"weights": {"globex": 5}, "default_weight": 3}')`)
	if got := one[string](t, acme, "select tenant_fairness::text from ojs.settings"); got != `{"default_weight": 3}` {
		t.Errorf("a tenant sees %s", got)
	}
	exec(t, acme, "insert into ojs.jobs (type) values ('a')")
	const own = "select concat_ws(' ', tenant_id, weight::float8, effective_share::float8) from ojs.tenant_stats"
	if got := list[string](t, acme, own); !slices.Equal(got, []string{"acme 3 1"}) {
		t.Errorf("a tenant sees itself as %v", got)
	}
	refused(t, acme, "42501", "select from ojs.queue_weight")
	refused(t, acme, "42501", "select from ojs._whole_config('q', '{}')")
	if got := one[int](t, d.Service(), "select count(*) from ojs.queue_weight"); got != 4 {
		t.Errorf("the service sees %d weights, want 4", got)
	}
}

// A change of how a queue's tenants share keeps each tenant's lead in jobs, and costs one statement whatever their number.
func TestSharesOfManyTenantsChangeAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator := d.Service(), d.Operator()
	exec(t, service, `
		insert into ojs.jobs (type, queue, tenant_id, priority) select 'a', 'q', 't' || n % 2000, n % 2 from generate_series(1, 8000) n`)
	exec(t, service, "select from ojs.fetch('{q}', 300)")
	leads := func() map[string]float64 {
		t.Helper()
		leads := map[string]float64{}
		for _, row := range lines(t, d.Pool, `
			select f.tenant_id, f.priority, ((f.vtime - l.low) * f.weight)::float8
			from ojs.tenant_fairness f cross join lateral ojs._level(f.queue, f.priority) l where f.ready`) {
			var tenant, priority string
			var lead float64
			if _, err := fmt.Sscan(row, &tenant, &priority, &lead); err != nil {
				t.Fatal(err)
			}
			leads[tenant+" "+priority] = lead
		}
		return leads
	}
	before := leads()
	exec(t, operator, `select ojs.configure_queue('q', '{"tenant_fairness": {"weights": {"t1": 3}, "default_weight": 0.5}}')`)
	after := leads()
	if !slices.Equal(slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))) || len(after) != 2000 {
		t.Fatalf("%d tenants at levels, %d before", len(after), len(before))
	}
	for tenant, lead := range before {
		if math.Abs(lead-after[tenant]) > 1e-9 {
			t.Fatalf("%s was %v jobs ahead and is %v", tenant, lead, after[tenant])
		}
	}
	ringsAgree(t, d.Pool)
}
