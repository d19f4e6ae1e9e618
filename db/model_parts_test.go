package db_test

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"testing"
)

// Tenants that all have jobs throughout are close to their parts, whatever unit they share by, and wherever it is configured: jobs
// by weights that queues and the deployment give or take away, what jobs cost, the time that attempts take.
func TestPartsFollowTheModel(t *testing.T) {
	schedules(t, 2, func(m *model) {
		m.byWeights()
		m.byCost()
		m.byTime()
	})
}

// parts counts what tenants of one queue have got of what they share. All of them always have jobs.
type parts struct {
	weight, served map[string]float64
	sum, most      float64 // that was served, and of one job
}

func (p *parts) serve(tenant string, amount float64) {
	p.served[tenant] += amount
	p.sum += amount
	p.most = max(p.most, amount)
}

// away returns the largest distance of a tenant from its share.
func (p *parts) away() (lag float64) {
	sum := 0.0
	for _, weight := range p.weight {
		sum += weight
	}
	for tenant, weight := range p.weight {
		lag = max(lag, math.Abs(p.served[tenant]-p.sum*weight/sum))
	}
	return lag
}

// sharing is the configured fairness of a queue or of the deployment.
type sharing struct {
	Strategy string             `json:"strategy,omitempty"`
	Weights  map[string]float64 `json:"weights,omitempty"`
	Default  *float64           `json:"default_weight,omitempty"`
	Unit     string             `json:"unit,omitempty"`
}

func (s sharing) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// weightOf returns the weight of a tenant in a queue. own is the tenant's own weight, or 0 if it has none.
func weightOf(tenant string, own float64, queue, deployment sharing) float64 {
	weight, named := queue.Weights[tenant]
	switch {
	case queue.Strategy == "round-robin":
		return 1
	case named:
		return weight
	case deployment.Strategy == "round-robin":
		return 1
	case own > 0:
		return own
	case queue.Default != nil:
		return *queue.Default
	case deployment.Default != nil:
		return *deployment.Default
	}
	return 1
}

func (m *model) weight() float64 { return []float64{0.5, 1, 2, 5}[m.r.IntN(4)] }

func (m *model) sharing(named bool) (s sharing) {
	s.Strategy = m.pick([]string{"", "fair-share", "round-robin"})
	if m.r.IntN(2) == 0 {
		weight := m.weight()
		s.Default = &weight
	}
	for _, tenant := range m.tenants {
		if named && m.r.IntN(2) == 0 {
			if s.Weights == nil {
				s.Weights = map[string]float64{}
			}
			s.Weights[tenant] = m.weight()
		}
	}
	return s
}

// byWeights gives tenants weights in every possible way, and compares what each gets of two queues.
func (m *model) byWeights() {
	m.tenants = []string{"t1", "t2", "t3", "t4"}[:2+m.r.IntN(3)]
	own, deployment := map[string]float64{}, m.sharing(false)
	m.did("tenants of all queues share by %s", deployment)
	m.exec(m.d.Pool, "select ojs.configure(p_tenant_fairness => $1::text::jsonb)", deployment.String())
	for _, tenant := range m.tenants {
		if m.r.IntN(2) == 0 {
			own[tenant] = m.weight()
			m.did("%s weighs %g", tenant, own[tenant])
			m.exec(m.service, "select ojs.configure_tenant($1, $2::float8::numeric)", tenant, own[tenant])
		}
	}
	for _, queue := range []string{"weighed1", "weighed2"} {
		of := m.sharing(true)
		m.shareAs(queue, of.String())
		p := &parts{weight: map[string]float64{}, served: map[string]float64{}}
		for _, tenant := range m.tenants {
			p.weight[tenant] = weightOf(tenant, own[tenant], of, deployment)
		}
		m.serveAll(queue, p, 80, func(string) float64 { return 1 })
	}
}

// byCost makes tenants share by the cost of their jobs, some of which are expensive.
func (m *model) byCost() {
	m.tenants = []string{"t1", "t2", "t3"}
	p := &parts{weight: map[string]float64{}, served: map[string]float64{}}
	dearest := map[string]int{}
	for _, tenant := range m.tenants {
		p.weight[tenant], dearest[tenant] = m.weight(), []int{1, 4, 16}[m.r.IntN(3)]
	}
	m.shareAs("costly", sharing{Weights: p.weight, Unit: "cost"}.String())
	m.serveAll("costly", p, 120, func(tenant string) float64 { return float64(1+m.r.IntN(4*dearest[tenant])) / 4 })
}

// serveAll makes a number of dispatches from a queue whose tenants all have enough jobs, and compares their
// shares after each.
func (m *model) serveAll(queue string, p *parts, dispatches int, cost func(tenant string) float64) {
	for range dispatches / 20 {
		for _, tenant := range m.tenants {
			if m.has(tenant, queue) < 25 {
				m.stockAt(tenant, queue, 30, cost)
			}
		}
		for _, h := range m.play(20, ask{queues: []string{queue}}) {
			p.serve(h.Tenant, m.jobs[h.ID].cost)
			if lag := p.away(); lag > farBound*p.most && !m.beside() {
				m.fail("of %g that %s has given a tenant is %g away from its part, and the dearest job costs %g; weights %v, served %v",
					p.sum, queue, lag, p.most, p.weight, p.served)
			}
		}
	}
}

// has returns the number of jobs of a tenant that wait in a queue.
func (m *model) has(tenant, queue string) (n int) {
	for _, j := range m.jobs {
		if j.state == "available" && j.tenant == tenant && j.queue == queue {
			n++
		}
	}
	return n
}

func (m *model) stockAt(tenant, queue string, n int, cost func(tenant string) float64) {
	costs := make([]float64, n)
	for i := range costs {
		costs[i] = cost(tenant)
	}
	for i, id := range m.ids(m.service, `select (ojs.enqueue('x', p_queue => $1, p_tenant => $2,
			p_extra => json_build_object('cost', c))).id::text from unnest($3::float8[]) c`, queue, tenant, costs) {
		m.jobs[id] = &modelJob{id: id, tenant: tenant, queue: queue, state: "available", place: m.nextPlace(), cost: costs[i]}
	}
}

// byTime makes tenants share by the time that attempts take, which is not known beforehand. Attempts take
// no time in this test: their time is written into the job's row before they end.
func (m *model) byTime() {
	const workers, queue = 3, "timed"
	type attempt struct {
		job           *modelJob
		seconds, ends float64
	}
	m.tenants = []string{"t1", "t2", "t3"}
	p := &parts{weight: map[string]float64{}, served: map[string]float64{}}
	length, now, flying, running := map[string]float64{}, 0.0, 0.0, []attempt{}
	for i, tenant := range m.tenants {
		p.weight[tenant], length[tenant] = 1+float64(m.r.IntN(2)), []float64{3600, 300, 300 * float64(1+m.r.IntN(12))}[i]
	}
	m.shareAs(queue, sharing{Weights: p.weight, Unit: "time"}.String())
	for ended := 0; ended < 70 && m.err == nil; {
		if free := workers - len(running); free > 0 {
			for _, tenant := range m.tenants {
				if m.has(tenant, queue) < workers {
					m.stock(tenant, queue, 20)
				}
			}
			a := ask{queues: []string{queue}, counts: []int{1 + m.r.IntN(free)}, many: true}
			for _, h := range m.fetch(a, true) {
				seconds := length[h.Tenant] * (0.8 + 0.2*m.r.Float64())
				running = append(running, attempt{m.jobs[h.ID], seconds, now + seconds})
			}
			continue
		}
		slices.SortFunc(running, func(a, b attempt) int { return cmp.Compare(a.ends, b.ends) })
		most := 0.0
		for _, a := range running {
			most += length[a.job.tenant]
		}
		last := running[0]
		running, now, flying = running[1:], last.ends, max(flying, most)
		m.exec(m.d.Pool, "update ojs.job set started_at = ojs.now() - $2 * interval '1 second' where id = $1", last.job.id, last.seconds)
		m.endBy(modelEnds[m.r.IntN(len(modelEnds))], last.job)
		p.serve(last.job.tenant, last.seconds)
		if lag := p.away(); lag > flying+lagBound*p.most {
			m.fail("of %g seconds a tenant is %g away from its part, and %g may have run at once; weights %v, served %v, lengths %v",
				p.sum, lag, flying, p.weight, p.served, length)
		}
		ended++
	}
}
