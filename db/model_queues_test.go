package db_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
)

// A queue that has waited for a rotation_interval goes next, whatever the strategy; and least-loaded takes from the queue that has most,
// for the worker that has fewest.
func TestTurnsOfQueuesFollowTheModel(t *testing.T) {
	schedules(t, 2, func(m *model) {
		m.queues, m.tenants = []string{"a", "b", "c", "d"}[:2+m.r.IntN(3)], []string{"t1", "t2"}
		m.rotations()
		m.loads()
	})
}

// waiting returns the number of jobs that wait in each queue.
func (m *model) waiting() map[string]int {
	n := map[string]int{}
	for _, j := range m.jobs {
		if j.state == "available" {
			n[j.queue]++
		}
	}
	return n
}

// rotations lets time pass under a rotation_interval: queues with jobs that gave none for so long get the
// next dispatches, one each.
func (m *model) rotations() {
	strategy := m.pick([]string{"strict", "strict", "weighted", "round-robin", "least-loaded"})
	m.exec(m.service, "select ojs.configure_pool('turns', $1::text::jsonb)", fmt.Sprintf(`{"strategy": %q, "weights": {"a": 98},
		"starvation_prevention": {"enabled": true, "rotation_interval": "PT1H", "min_dispatch_ratio": 0}}`, strategy))
	m.pools["turns"] = &modelPool{strategy: strategy, rotates: true}
	a := ask{queues: m.queues, counts: []int{1}, pool: "turns"}
	// Nothing has waited before the first FETCH.
	m.stock(m.tenants[0], m.queues[0], 1)
	m.fetch(a, true)
	idle := map[string]int{}  // for how many minutes a queue has given no job though it had some
	quiet := map[string]int{} // the same, whether it had some or not
	early := 1
	for range 40 {
		// A FETCH that gets nothing does not tell which queues have no jobs, so there is always one to get.
		m.stock(m.pick(m.tenants), m.queues[0], 10)
		for _, queue := range m.queues {
			if m.r.IntN(4) == 0 {
				m.stock(m.pick(m.tenants), queue, 1+m.r.IntN(4))
			}
		}
		minutes := []int{0, 18, 36, 66}[m.r.IntN(4)]
		m.did("%d minutes pass", minutes)
		m.exec(m.d.Pool, `update ojs.rotation set served = array(select s - $1 * interval '1 minute'
			from unnest(served) with ordinality u(s, n) order by n)`, minutes)
		before := m.waiting()
		var due, seem []string
		for _, queue := range m.queues {
			if quiet[queue] += minutes; before[queue] > 0 && quiet[queue] > 60 {
				seem = append(seem, queue)
			}
			if idle[queue] += minutes; before[queue] == 0 {
				idle[queue] = 0
			} else if idle[queue] > 60 {
				due = append(due, queue)
			}
		}
		a.counts, a.many = []int{1 + m.r.IntN(6)}, m.r.IntN(2) == 0
		got := m.fetch(a, true)
		// A queue whose last job has ended in a certain way seems to have one until a decision looks, and then goes first sooner.
		err := m.rotated(got, due, before, strategy)
		if err != nil && early > 0 && m.rotated(got, seem, before, strategy) == nil {
			err, early = nil, early-1
		}
		if err != nil {
			m.fail("%s, where %v have waited: %w", strategy, due, err)
		}
		for _, h := range got {
			idle[h.Queue], quiet[h.Queue] = 0, 0
		}
	}
}

// rotated returns what is wrong with the order of queues in an answer in which the queues due had to come
// first, or nil.
func (m *model) rotated(got []handedJob, due []string, waiting map[string]int, strategy string) error {
	left, waiting := slices.Clone(due), maps.Clone(waiting)
	for i, h := range got {
		n := slices.Index(left, h.Queue)
		first := slices.IndexFunc(m.queues, func(queue string) bool { return waiting[queue] > 0 })
		switch waiting[h.Queue]--; {
		case n >= 0:
			left = slices.Delete(left, n, n+1)
		case len(left) > 0:
			return fmt.Errorf("dispatch %d is of %s before all of these had one", i+1, h.Queue)
		case strategy == "strict" && h.Queue != m.queues[first]:
			return fmt.Errorf("dispatch %d is of %s, though %s has jobs", i+1, h.Queue, m.queues[first])
		}
	}
	return nil
}

// loads makes FETCHes of workers with the strategy least-loaded; some workers have a concurrency.
func (m *model) loads() {
	workers := []string{"w1", "w2", "w3", "nobody"}
	for _, worker := range workers[:3] {
		most := m.r.IntN(6)
		m.exec(m.service, "select ojs.register_worker($1, p_concurrency => nullif($2::int, 0))", worker, most)
		m.workers[worker] = most
	}
	for range 40 {
		if m.r.IntN(2) == 0 {
			m.stock(m.pick(m.tenants), m.pick(m.queues), 1+m.r.IntN(9))
		}
		if m.r.IntN(3) == 0 {
			m.endSome()
		}
		a := ask{queues: some(m.r, m.queues), strategy: "least-loaded", many: true}
		for range 1 + m.r.IntN(4) {
			a.counts, a.workers = append(a.counts, 1+m.r.IntN(4)), append(a.workers, m.pick(workers))
		}
		n, keep := m.waiting(), m.r.IntN(8) > 0
		got := m.fetch(a, keep)
		if !keep {
			// On a slow machine its transaction is 20 ms old when it comes to FETCH, which decides nothing then, and takes what there is.
			continue
		}
		for i, h := range got {
			for _, queue := range a.queues {
				if n[queue] > n[h.Queue] {
					m.fail("job %d of the answer is of %s, which has %d jobs, and %s has %d", i+1, h.Queue, n[h.Queue], queue, n[queue])
				}
			}
			n[h.Queue]--
		}
	}
}

// byLoad returns the requests of a FETCH in the order in which they are served, one element for each job
// that they may get: requests of workers with the fewest jobs first, and for each worker no more than its
// concurrency allows. nil means that any order is right.
func (m *model) byLoad(a ask) []int {
	if strategy, _ := m.strategyOf(a); strategy != "least-loaded" || a.workers == nil {
		return nil
	}
	has := map[string]int{}
	for _, j := range m.jobs {
		if j.state == "active" {
			has[j.worker]++
		}
	}
	type request struct{ n, has, may int }
	requests := make([]request, len(a.workers))
	for i, worker := range a.workers {
		most, registered := m.workers[worker]
		requests[i] = request{i + 1, has[worker], a.counts[i]}
		if most > 0 {
			requests[i].may = max(0, min(a.counts[i], most-has[worker]))
		}
		if !registered {
			requests[i].has = math.MaxInt
		}
		has[worker] += a.counts[i]
	}
	slices.SortStableFunc(requests, func(a, b request) int { return cmp.Compare(a.has, b.has) })
	turns := []int{}
	for _, r := range requests {
		turns = append(turns, slices.Repeat([]int{r.n}, r.may)...)
	}
	return turns
}
