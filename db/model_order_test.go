package db_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// farBound is by how many jobs a tenant may be away from its share, while the same tenants have work and
// their weights are far apart. Tenants of little weight may all be ahead at once, as in 3 % of random
// tenants with weights 0.1, 0.37 and 2.5. A simulation of the rule alone gives 2.2.
const farBound = 2.5

// Tenants that all have jobs throughout, with weights that stand: over every prefix of the dispatches each is close to its part, however
// they are asked for, and whatever is rolled back between.
func TestSharesFollowTheModel(t *testing.T) {
	schedules(t, 6, (*model).shares)
}

// Queues that all have jobs throughout, one strategy after the other: the order of queues in each answer is the one that is documented. And
// queues that come and go have their minimum for as long as they have jobs.
func TestStrategiesFollowTheModel(t *testing.T) {
	schedules(t, 6, func(m *model) {
		m.queues = []string{"a", "b", "c", "d"}[:2+m.r.IntN(3)]
		m.tenants = []string{"t1", "t2", "t3"}[:1+m.r.IntN(3)]
		for range 3 {
			m.strategies()
		}
		m.minimum()
	})
}

// Jobs come, are cancelled, come back and are held in queues without fairness: the order is that in which they came, of all tenants alike.
func TestFirstInFirstOutFollowsTheModel(t *testing.T) {
	schedules(t, 3, (*model).firstIn)
}

// firstIn is a schedule of queues that are first in, first out most of the time.
func (m *model) firstIn() {
	m.tenants, m.queues = []string{"t1", "t2", "t3", "t4"}, []string{"a", "b"}[:1+m.r.IntN(2)]
	for _, queue := range m.queues {
		m.shareAs(queue, `{"enabled": false}`)
	}
	for range 60 {
		switch m.r.IntN(12) {
		case 0, 1, 2:
			m.arrive()
		case 3, 4:
			m.end()
		case 5:
			m.cancelFirst(m.pick(m.tenants), m.pick(m.queues))
		case 6:
			m.promote()
		case 7:
			m.weigh()
		case 8:
			if of := m.scope(); m.r.IntN(2) == 0 {
				m.limit(of, 1+m.r.IntN(4))
			} else {
				m.unlimit(of)
			}
		case 9:
			queue := m.pick(m.queues)
			m.shareAs(queue, `{}`)
			m.fetch(ask{queues: []string{queue}, counts: []int{2}}, true)
			m.shareAs(queue, `{"enabled": false}`)
		default:
			m.fetch(ask{queues: some(m.r, m.queues), counts: []int{1 + m.r.IntN(1+m.r.IntN(20))}, many: m.r.IntN(2) == 0}, m.r.IntN(6) > 0)
		}
	}
	m.drain()
}

// stock enqueues jobs, so that a tenant has enough of them in a queue.
func (m *model) stock(tenant, queue string, n int) {
	for n > 0 && m.err == nil {
		some, priority := n, 0
		if m.own[queue] {
			some, priority = min(n, 1+m.r.IntN(20)), m.r.IntN(4)
		}
		n -= some
		for _, id := range m.ids(m.service, `select i::text from ojs.enqueue_bulk('x', array_fill('[]'::json, array[$1::int]),
				p_queue => $2, p_tenant => $3, p_priority => $4) i`, some, queue, tenant, priority) {
			m.jobs[id] = &modelJob{id: id, tenant: tenant, queue: queue, state: "available", place: m.nextPlace(), priority: priority}
		}
	}
}

// beside reports whether jobs were handed out without the lane, for instance to a caller that waited too
// long for it. No order is promised then.
func (m *model) beside() bool {
	for _, n := range m.ids(m.d.Pool, "select coalesce(sum(owed), 0)::text from ojs.journal") {
		return n != "0"
	}
	return true
}

// play makes FETCHes until a number of jobs are handed out, and returns these in order.
func (m *model) play(dispatches int, a ask) (all []handedJob) {
	for len(all) < dispatches && m.err == nil {
		a.many, a.counts = m.r.IntN(2) == 0, []int{min([]int{1, 1, 2, 3, 7, 20}[m.r.IntN(6)], dispatches-len(all))}
		if m.r.IntN(8) == 0 {
			m.fetch(a, false)
		}
		got := m.fetch(a, true)
		if len(got) < a.count() {
			m.fail("%d of %d jobs, though there are enough", len(got), a.count())
		}
		all = append(all, got...)
	}
	return all
}

func (m *model) shares() {
	model := newFluid(map[string]float64{})
	weights, bound := [][]float64{{1}, {10, 5, 1}}[m.r.IntN(2)], lagBound
	if m.r.IntN(2) == 0 {
		weights, bound = [][]float64{{0.1, 0.37, 2.5}, {1, 2, 3, 5, 8, 13}, {0.5, 100}}[m.r.IntN(3)], farBound
	}
	if m.own["q"] = m.r.IntN(3) == 0; m.own["q"] {
		m.exec(m.service, `select ojs.configure_queue('q', '{"tenant_fairness": {"priority_scope": "tenant"}}')`)
	}
	const dispatches = 120
	sum := 0.0
	for n := range 2 + m.r.IntN(7) {
		tenant := fmt.Sprint("t", n)
		model.weight[tenant] = weights[m.r.IntN(len(weights))]
		sum += model.weight[tenant]
		m.exec(m.service, "select ojs.configure_tenant($1, $2::float8::numeric)", tenant, model.weight[tenant])
	}
	for tenant, weight := range model.weight {
		n := 3 + int(math.Ceil(dispatches*weight/sum))
		m.stock(tenant, "q", n)
		model.arrive(tenant, n)
	}
	for i, h := range m.play(dispatches, ask{queues: []string{"q"}}) {
		lag, err := model.dispatch(h.Tenant)
		if (err != nil || lag > bound) && !m.beside() {
			m.fail("after %d dispatches a tenant is %.3f jobs from its part, %v; weights %v", i+1, lag, err, model.weight)
			return
		}
	}
}

// strategies compares the order of jobs with the documented one, for a random strategy and list of queues.
func (m *model) strategies() {
	a := ask{queues: m.queues, strategy: m.pick([]string{"strict", "round-robin", "weighted"})}
	model, weights := newFluid(map[string]float64{}), make([]string, len(a.queues))
	for i, queue := range a.queues {
		model.weight[queue] = 1
		if a.strategy == "weighted" {
			weight := []int{1, 2, 3, 5, 20}[m.r.IntN(5)]
			model.weight[queue] = float64(weight)
			weights[i] = fmt.Sprintf("%q: %d", queue, weight)
		}
		for _, tenant := range m.tenants {
			m.stock(tenant, queue, 60)
		}
		model.arrive(queue, 1000)
	}
	if a.strategy == "weighted" {
		a.weights = "{" + strings.Join(weights, ",") + "}"
	}
	if m.r.IntN(2) == 0 {
		a.pool = "p"
		config := fmt.Sprintf(`{"strategy": %q}`, a.strategy)
		if a.strategy == "weighted" {
			config = fmt.Sprintf(`{"strategy": "weighted", "weights": %s}`, a.weights)
		}
		m.exec(m.service, "select ojs.configure_pool('p', $1::text::jsonb)", config)
		m.pools["p"] = &modelPool{strategy: a.strategy}
		a.strategy, a.weights = m.pick([]string{"strict", "round-robin"}), nil
	}
	got := m.play(58, a)
	if m.err == nil && !m.beside() {
		strategy, _ := m.strategyOf(a)
		if err := orderOf(got, a.queues, strategy, model); err != nil {
			m.fail("%s over %v, weights %v: %w", strategy, a.queues, model.weight, err)
		}
	}
	if a.pool != "" {
		m.exec(m.service, "select ojs.delete_pool('p')")
		delete(m.pools, "p")
	}
}

// orderOf returns what is wrong with the order of queues that always have jobs, or nil. Round-robin may
// begin with any queue, because a round goes on from one FETCH to the next; so a queue may begin one job
// ahead and end one behind. waits counts the dispatches of other queues since the last one of a queue.
func orderOf(got []handedJob, queues []string, strategy string, model *fluid) error {
	sum, waits, at := 0.0, map[string]int{}, map[string]int{}
	for i, queue := range queues {
		sum += model.weight[queue]
		at[queue] = i
	}
	for i, h := range got {
		if strategy == "strict" && h.Queue != queues[0] {
			return fmt.Errorf("dispatch %d is of %s", i+1, h.Queue)
		} else if strategy == "strict" {
			continue
		}
		if i > 0 && strategy == "round-robin" && at[h.Queue] != (at[got[i-1].Queue]+1)%len(queues) {
			return fmt.Errorf("dispatch %d is of %s, behind one of %s", i+1, h.Queue, got[i-1].Queue)
		}
		lag, err := model.dispatch(h.Queue)
		if err != nil || lag > churnBound {
			return fmt.Errorf("after %d dispatches a queue is %.3f jobs from its part, %v", i+1, lag, err)
		}
		for _, queue := range queues {
			if waits[queue]++; queue == h.Queue {
				waits[queue] = 0
			}
			if most := sum/model.weight[queue] + float64(len(queues)); float64(waits[queue]) > most {
				return fmt.Errorf("%s has waited for %d jobs of others, at most %.0f", queue, waits[queue], most)
			}
		}
	}
	return nil
}

// minimum lets queues come and go under a min_dispatch_ratio. In every stretch of dispatches in which a
// queue always has jobs, it gets its share of them.
func (m *model) minimum() {
	ratio := []float64{0.05, 0.1, 0.2, 0.25}[m.r.IntN(4)]
	strategy := m.pick([]string{"strict", "weighted", "round-robin", "least-loaded"})
	m.exec(m.service, "select ojs.configure_pool('least', $1::text::jsonb)", fmt.Sprintf(`{"strategy": %q, "weights": {"a": 98},
		"starvation_prevention": {"enabled": true, "rotation_interval": "PT1H", "min_dispatch_ratio": %g}}`, strategy, ratio))
	m.pools["least"] = &modelPool{strategy: strategy, ratio: ratio}
	a := ask{queues: m.queues, pool: "least"}
	waiting := map[string]int{}
	for _, j := range m.jobs {
		if j.state == "available" {
			waiting[j.queue]++
		}
	}
	stretch := map[string]string{} // of each queue: the dispatches since it has had jobs
	for range 40 {
		for _, queue := range m.queues {
			if n := []int{1, 3, 8, 30}[m.r.IntN(4)]; m.r.IntN(4) == 0 {
				m.stock(m.pick(m.tenants), queue, n)
				waiting[queue] += n
			}
		}
		a.counts = []int{1 + m.r.IntN(12)}
		for _, h := range m.fetch(a, true) {
			waiting[h.Queue]--
			for _, queue := range m.queues {
				if stretch[queue] += h.Queue; waiting[queue] == 0 {
					stretch[queue] = ""
				}
			}
		}
		for _, queue := range m.queues {
			if err := guaranteed(stretch[queue], queue, ratio); err != nil && !m.beside() {
				m.fail("%s with a minimum of %g: %w", strategy, ratio, err)
			}
		}
	}
}
