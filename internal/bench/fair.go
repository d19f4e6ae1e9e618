//go:build unix

package bench

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
)

// fluid is the ideal with which the sequence of dispatches is compared: a server that works for all
// tenants with work at once, by weight, and has done as many jobs in sum as were dispatched. It has
// finished a tenant when it has done as many jobs for it as the tenant has. It does not know how the
// database chooses; it only follows the sequence. Tenants are numbers.
type fluid struct {
	weight  []float64
	backlog []int64   // jobs not dispatched
	served  []int64   // jobs dispatched
	v       float64   // done for each tenant with work, per unit of weight
	sum     float64   // of the weights of the tenants with work
	base    []float64 // done for a tenant until since
	since   []float64 // of v
	until   []float64 // the v at which nothing is left to do for a tenant
	working []bool
	ends    ends // tenants with work, the next to be done first
}

// newFluid returns an ideal without jobs for tenants of the given weights.
func newFluid(weights []float64) *fluid {
	n := len(weights)
	return &fluid{
		weight: weights, backlog: make([]int64, n), served: make([]int64, n),
		base: make([]float64, n), since: make([]float64, n), until: make([]float64, n), working: make([]bool, n),
	}
}

// arrive adds jobs of a tenant.
func (f *fluid) arrive(tenant int, jobs int64) {
	if jobs <= 0 {
		return
	}
	f.backlog[tenant] += jobs
	from := f.v
	if f.working[tenant] {
		from = f.until[tenant]
	} else {
		f.working[tenant] = true
		f.since[tenant] = f.v
		f.sum += f.weight[tenant]
	}
	f.until[tenant] = from + float64(jobs)/f.weight[tenant]
	heap.Push(&f.ends, end{f.until[tenant], tenant})
}

// ideal returns the number of jobs that were due to a tenant so far.
func (f *fluid) ideal(tenant int) float64 {
	if !f.working[tenant] {
		return f.base[tenant]
	}
	return f.base[tenant] + f.weight[tenant]*(f.v-f.since[tenant])
}

// lag returns the number of jobs by which a tenant is behind the ideal; negative: ahead of it.
func (f *fluid) lag(tenant int) float64 { return f.ideal(tenant) - float64(f.served[tenant]) }

// dispatch follows one job, and returns the larger |lag| of its tenant, of that before and that after
// the job. Between two of its jobs the lag of a tenant only grows, so these moments and the end are all
// that has to be judged.
func (f *fluid) dispatch(tenant int) (float64, error) {
	if f.backlog[tenant] == 0 {
		return 0, fmt.Errorf("a job was dispatched of tenant %d, which should have none", tenant)
	}
	worst := math.Abs(f.lag(tenant))
	for work := 1.0; work > 0 && len(f.ends) > 0; {
		next := f.ends[0]
		if next.at != f.until[next.tenant] || !f.working[next.tenant] {
			heap.Pop(&f.ends) // more arrived meanwhile
			continue
		}
		need := max(0, (next.at-f.v)*f.sum)
		if need > work {
			f.v += work / f.sum
			break
		}
		work -= need
		heap.Pop(&f.ends)
		f.v = max(f.v, next.at)
		f.base[next.tenant] += f.weight[next.tenant] * (next.at - f.since[next.tenant])
		f.working[next.tenant] = false
		f.sum -= f.weight[next.tenant]
	}
	f.served[tenant]++
	f.backlog[tenant]--
	if f.backlog[tenant] > 0 {
		return max(worst, math.Abs(f.lag(tenant))), nil
	}
	return worst, nil
}

// worst returns the largest |lag| of all tenants at this moment.
func (f *fluid) worst() float64 {
	worst := 0.0
	for tenant, jobs := range f.backlog {
		if jobs > 0 {
			worst = max(worst, math.Abs(f.lag(tenant)))
		}
	}
	return worst
}

// end is the v at which the ideal has finished a tenant.
type end struct {
	at     float64
	tenant int
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// dispatched is one job in the order of dispatch: its tenant, its response, and its time in
// microseconds. Times do not decrease.
type dispatched struct {
	tenant, response int32
	at               int64
}

// stretch is a time without arrivals: jobs arrive, and then jobs are dispatched, in this order, in a
// number of responses.
type stretch struct {
	arrived   []int64
	sequence  []dispatched
	responses int
}

// Fairness holds how far a sequence of dispatches was from the fluid ideal.
type Fairness struct {
	// ShareErrorPP is the largest difference over tenants between the share of all dispatches that a tenant had and the share that was
	// due to it, in percentage points.
	ShareErrorPP float64 `json:"share_error_pp"`
	// ShareError1sPP is the same within one second, the worst over all seconds that begin with a decision.
	ShareError1sPP float64 `json:"share_error_1s_pp"`
	// MaxLagQuanta is the largest |served - due| of a tenant with work over every prefix of the sequence, in quanta of one job.
	MaxLagQuanta float64 `json:"max_lag_quanta"`
	// ResponseShareError is the largest |served - due| of a tenant within one response, in jobs.
	ResponseShareError float64 `json:"response_share_error"`
	// Dispatches and Windows are the numbers of jobs and of seconds that were judged.
	Dispatches int64 `json:"dispatches_judged"`
	Windows    int   `json:"seconds_judged"`
}

// judge follows the sequence twice: once from job to job, and once with windows of a second.
func judge(weights []float64, stretches []stretch) (Fairness, error) {
	var fair Fairness
	f := newFluid(weights)
	for _, s := range stretches {
		for tenant, jobs := range s.arrived {
			f.arrive(tenant, jobs)
		}
		answers := make([]answer, s.responses)
		for _, d := range s.sequence {
			answers[d.response].asked++
		}
		for _, d := range s.sequence {
			a := &answers[d.response]
			before := f.v
			lag, err := f.dispatch(int(d.tenant))
			if err != nil {
				return fair, fmt.Errorf("after %d dispatches: %w", fair.Dispatches, err)
			}
			fair.MaxLagQuanta = max(fair.MaxLagQuanta, lag)
			fair.Dispatches++
			a.add(d.tenant, f.v-before, f.backlog[d.tenant] == 0)
			if a.asked == 0 {
				fair.ResponseShareError = max(fair.ResponseShareError, a.worst(f))
				*a = answer{}
			}
		}
	}
	fair.MaxLagQuanta = max(fair.MaxLagQuanta, f.worst())
	if fair.Dispatches > 0 {
		for tenant := range weights {
			fair.ShareErrorPP = max(fair.ShareErrorPP, math.Abs(f.lag(tenant))/float64(fair.Dispatches)*100)
		}
	}
	var err error
	if fair.ShareError1sPP, fair.Windows, err = judgeWindows(weights, stretches, 1e6); err != nil {
		return fair, err
	}
	fair.ShareErrorPP, fair.ShareError1sPP = round(fair.ShareErrorPP, 5), round(fair.ShareError1sPP, 5)
	fair.MaxLagQuanta, fair.ResponseShareError = round(fair.MaxLagQuanta, 4), round(fair.ResponseShareError, 4)
	return fair, nil
}

// answer holds the jobs of one response so far. Its jobs need not follow each other in the sequence,
// because callers that fetch at the same time take turns in it. Each of its jobs counts as work that
// was due to all tenants, by weight.
type answer struct {
	asked  int     // jobs that are still to come
	due    float64 // per unit of weight
	served []servedTenant
}

type servedTenant struct {
	tenant int32
	jobs   int
	left   bool    // that was its last job
	due    float64 // per unit of weight, when it left
}

// add notes one job of the response. step is the work per unit of weight that the job is worth, and left
// says that it was the last job of its tenant.
func (a *answer) add(tenant int32, step float64, left bool) {
	a.asked--
	a.due += step
	at := slices.IndexFunc(a.served, func(s servedTenant) bool { return s.tenant == tenant })
	if at < 0 {
		at = len(a.served)
		a.served = append(a.served, servedTenant{tenant: tenant})
	}
	a.served[at].jobs++
	a.served[at].left, a.served[at].due = left, a.due
}

// worst returns the largest |served - due| of a tenant in the response.
func (a *answer) worst(f *fluid) float64 {
	worst := 0.0
	for tenant, weight := range f.weight {
		if f.backlog[tenant] > 0 && !slices.ContainsFunc(a.served, func(s servedTenant) bool { return int(s.tenant) == tenant }) {
			worst = max(worst, weight*a.due)
		}
	}
	for _, s := range a.served {
		due := a.due
		if s.left {
			due = s.due
		}
		worst = max(worst, math.Abs(float64(s.jobs)-f.weight[s.tenant]*due))
	}
	return worst
}

// judgeWindows judges every window of the given width that begins with a decision. It moves two copies
// of the ideal through the sequence, the second one window behind the first. A window that does not
// fit into its stretch is left out. If none fits, each stretch is one window, and it returns 0 for
// their number.
func judgeWindows(weights []float64, stretches []stretch, width int64) (worst float64, windows int, err error) {
	compare := func(from, to *fluid) float64 {
		var dispatched int64
		worst := 0.0
		for tenant := range weights {
			dispatched += to.served[tenant] - from.served[tenant]
			worst = max(worst, math.Abs(to.lag(tenant)-from.lag(tenant)))
		}
		if dispatched == 0 {
			return 0
		}
		return worst / float64(dispatched) * 100
	}
	head, tail := newFluid(weights), newFluid(weights)
	whole := 0.0
	for _, s := range stretches {
		for tenant, jobs := range s.arrived {
			head.arrive(tenant, jobs)
			tail.arrive(tenant, jobs)
		}
		next := 0
		for i, d := range s.sequence {
			if i == 0 || d.at != s.sequence[i-1].at {
				for next < len(s.sequence) && s.sequence[next].at < d.at+width {
					if _, err := head.dispatch(int(s.sequence[next].tenant)); err != nil {
						return 0, 0, err
					}
					next++
				}
				if next < len(s.sequence) {
					worst = max(worst, compare(tail, head))
					windows++
				} else if i == 0 {
					whole = max(whole, compare(tail, head))
				}
			}
			if _, err := tail.dispatch(int(d.tenant)); err != nil {
				return 0, 0, err
			}
		}
	}
	if windows == 0 {
		return whole, 0, nil
	}
	return worst, windows, nil
}

// turn is a job in the journal.
type turn struct {
	n int64
	dispatched
}

// inTurn sorts jobs by their turns. Their times are those at which they were handed out, which may be
// in another order: a caller may be overtaken. A job gets no earlier time than the jobs before it.
func inTurn(turns []turn) []dispatched {
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.n, b.n) })
	sequence := make([]dispatched, len(turns))
	var latest int64
	for i, t := range turns {
		latest = max(latest, t.at)
		t.at = latest
		sequence[i] = t.dispatched
	}
	return sequence
}
