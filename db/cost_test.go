package db_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// costly is a queue whose tenants share by the cost of their jobs. All of them always have jobs.
type costly struct {
	t      *testing.T
	q      querier
	weight map[string]float64
	served map[string]float64
	sum    float64
	most   float64 // that a job costs
}

func (c *costly) add(tenant string, jobs int, cost func() float64) {
	c.t.Helper()
	for range jobs {
		price := cost()
		c.most = max(c.most, price)
		exec(c.t, c.q, "select ojs.enqueue('a', p_queue => 'q', p_tenant => $1, p_extra => json_build_object('cost', $2::float8))",
			tenant, price)
	}
}

// take fetches jobs, and compares what each tenant has got with what was due to it, after every job.
func (c *costly) take(q querier, count int) (got int) {
	c.t.Helper()
	rows := lines(c.t, q, "select tenant_id, coalesce(extra ->> 'cost', '1')::float8 from ojs.fetch('{q}', $1)", count)
	weights := 0.0
	for _, w := range c.weight {
		weights += w
	}
	for _, row := range rows {
		var tenant string
		var cost float64
		if _, err := fmt.Sscan(row, &tenant, &cost); err != nil {
			c.t.Fatal(err)
		}
		c.served[tenant] += cost
		c.sum += cost
		for t, w := range c.weight {
			lag := math.Abs(c.served[t] - c.sum*w/weights)
			if lag > lagBound*c.most && lag > (lagBound+float64(owed(c.t, c.q, "q")))*c.most {
				c.t.Errorf("after %g tenant %s has had %g, %g away from its share; the dearest job costs %g",
					c.sum, t, c.served[t], lag, c.most)
			}
		}
	}
	return len(rows)
}

// By cost a tenant of dear jobs gets fewer of them: the sums are in the ratio of the weights, in every prefix, whichever way the jobs take
// from the queue to their callers.
func TestTenantsShareByCost(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	r := rand.New(rand.NewPCG(seed, 0))
	d := pgtest.New(t)
	service := d.Service()
	c := &costly{t: t, q: service, weight: map[string]float64{"dear": 1, "cheap": 1, "mixed": 2.5}, served: map[string]float64{}}
	exec(t, service, `select ojs.configure_queue('q', '{"tenant_fairness": {"unit": "cost", "weights": {"mixed": 2.5}}}')`)
	c.add("dear", 60, func() float64 { return 8 })
	c.add("cheap", 400, func() float64 { return 1 })
	c.add("mixed", 300, func() float64 { return float64(1+r.IntN(40)) / 5 })
	// Without a cost a job costs 1.
	exec(t, service, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'cheap') from generate_series(1, 50)")
	for c.sum < 900 {
		switch r.IntN(4) {
		case 0:
			c.take(service, 1)
		case 1:
			tx := begin(t, service)
			exec(t, tx, "select pg_sleep(0.03)") // a caller that stays in its transaction fetches without the lane
			before := c.sum
			c.take(tx, 1+r.IntN(3))
			if commit(t, tx); c.sum == before {
				t.Fatalf("seed %d: nothing is left", seed)
			}
		default:
			c.take(service, 1+r.IntN(20))
		}
	}
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

// The unit of a queue can change while it has jobs, and stays after a rebuild and when nothing has been there for long.
func TestTheUnitOfAQueue(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	ratio := func(want string) {
		t.Helper()
		got := one[string](t, service, `
			select count(*) filter (where tenant_id = 'dear') || ':' || count(*) filter (where tenant_id = 'cheap')
			from ojs.fetch('{q}', 20)`)
		if got != want {
			t.Errorf("dear to cheap %s, want %s", got, want)
		}
	}
	c := &costly{t: t, q: service}
	c.add("dear", 60, func() float64 { return 4 })
	c.add("cheap", 200, func() float64 { return 1 })
	ratio("10:10")
	exec(t, service, `select ojs.configure_queue('q', '{"tenant_fairness": {"unit": "cost"}}')`)
	ratio("4:16")
	exec(t, d.Pool, "select ojs.rebuild()")
	ratio("4:16")
	exec(t, service, `select ojs.configure_queue('q', '{"tenant_fairness": {"unit": "jobs"}}')`)
	ratio("10:10")
	exec(t, service, `select ojs.configure_queue('q', '{"tenant_fairness": {"unit": "cost"}}')`)
	exec(t, service, "select ojs.fetch('{q}', 1000)")
	idleForLong(t, d)
	tick(t, service, 1000)
	c.add("dear", 20, func() float64 { return 4 })
	c.add("cheap", 20, func() float64 { return 1 })
	ratio("4:16")
}

// What a cost and a unit cannot be is refused, with the field.
func TestWhatACostCannotBe(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, cost := range []string{"0", "-1", "1000001", `"5"`, "null", "[]", "1e-9"} {
		failure := refused(t, service, "OJ422", "select ojs.enqueue('a', p_extra => json_build_object('cost', $1::text::json))", cost)
		if got := detail(t, failure)["field"]; got != "cost" {
			t.Errorf("cost %s: the field is %v", cost, got)
		}
	}
	for _, cost := range []string{"0.001", "1000000", "2.5", "1e3"} {
		exec(t, service, "select ojs.enqueue('a', p_extra => json_build_object('cost', $1::text::json))", cost)
	}
	refused(t, service, "OJ422", `select ojs.configure_queue('q', '{"tenant_fairness": {"unit": "bytes"}}')`)
	refused(t, d.Pool, "OJ408", `select ojs.configure(p_tenant_fairness => '{"unit": "cost"}')`)
	refused(t, d.Pool, "OJ408", `select ojs.configure(p_tenant_fairness => '{"enabled": false}')`)
	refused(t, d.Pool, "OJ408", `select ojs.configure(p_tenant_fairness => '{"priority_scope": "tenant"}')`)
}
