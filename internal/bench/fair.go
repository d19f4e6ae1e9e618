//go:build unix

package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// fluid is the ideal that the dispatch sequence is compared with: while tenants have work, each dispatch is due to all of them by
// weight. It knows nothing of how the database chooses; it only follows what was dispatched. Tenants are numbers.
type fluid struct {
	weight  []float64
	backlog []int64
	v       float64 // due to each tenant with work, per unit of weight
	sum     float64 // of the weights of the tenants with work

	// own is what a tenant was served, per unit of weight, on the scale of v. Idleness earns nothing: who comes back begins no earlier than now.
	own []float64
	// What was due to a tenant and what it got, for shares: due grows only while it has work.
	due    []float64 // per unit of weight, until since
	since  []float64
	served []int64
}

func newFluid(weights []float64) *fluid {
	n := len(weights)
	return &fluid{
		weight: weights, backlog: make([]int64, n), own: make([]float64, n), due: make([]float64, n), since: make([]float64, n), served: make([]int64, n),
	}
}

func (f *fluid) arrive(tenant int, jobs int64) {
	if jobs > 0 && f.backlog[tenant] == 0 {
		f.own[tenant] = max(f.own[tenant], f.v)
		f.since[tenant] = f.v
		f.sum += f.weight[tenant]
	}
	f.backlog[tenant] += jobs
}

// lag is the number of jobs a tenant is owed; negative: it is ahead.
func (f *fluid) lag(tenant int) float64 { return f.weight[tenant] * (f.v - f.own[tenant]) }

// ideal is the number of jobs that were due to a tenant so far.
func (f *fluid) ideal(tenant int) float64 {
	due := f.due[tenant]
	if f.backlog[tenant] > 0 {
		due += f.v - f.since[tenant]
	}
	return f.weight[tenant] * due
}

// over is by how many jobs a tenant had more than was due to it; negative: less.
func (f *fluid) over(tenant int) float64 { return float64(f.served[tenant]) - f.ideal(tenant) }

// dispatch follows one job, and returns the largest |lag| of its tenant before and after. Between two jobs of its own a tenant's lag only
// grows, so no other moment has to be looked at, except the end.
func (f *fluid) dispatch(tenant int) (float64, error) {
	if f.backlog[tenant] == 0 {
		return 0, fmt.Errorf("a job was dispatched of tenant %d, which should have none", tenant)
	}
	worst := math.Abs(f.lag(tenant))
	f.v += 1 / f.sum
	f.own[tenant] += 1 / f.weight[tenant]
	f.served[tenant]++
	f.backlog[tenant]--
	if f.backlog[tenant] > 0 {
		return max(worst, math.Abs(f.lag(tenant))), nil
	}
	f.due[tenant] += f.v - f.since[tenant]
	f.sum -= f.weight[tenant]
	if f.sum < 1e-9 {
		f.sum = 0
	}
	return worst, nil
}

// worst is the largest |lag| at this moment.
func (f *fluid) worst() float64 {
	worst := 0.0
	for tenant, jobs := range f.backlog {
		if jobs > 0 {
			worst = max(worst, math.Abs(f.lag(tenant)))
		}
	}
	return worst
}

// dispatched is one job in the order of dispatch: whose it was, in which response it went out, and when, in microseconds. Times do not fall.
type dispatched struct {
	tenant, response int32
	at               int64
}

// stretch is a time without arrivals: first these jobs came, then those were dispatched, in this order, in so many responses.
type stretch struct {
	arrived   []int64
	sequence  []dispatched
	responses int
}

// Fairness is how far a dispatch sequence was from the fluid ideal.
type Fairness struct {
	// ShareErrorPP is the largest difference over tenants between the share of all dispatches that a tenant had and the share that was due to it, in
	// percentage points.
	ShareErrorPP float64 `json:"share_error_pp"`
	// ShareError1sPP is the same within one second, the worst over all seconds that begin with a decision.
	ShareError1sPP float64 `json:"share_error_1s_pp"`
	// MaxLagQuanta is the largest |served - due| of a tenant with work over every prefix of the sequence, in quanta of one job.
	MaxLagQuanta float64 `json:"max_lag_quanta"`
	// ResponseShareError is the largest |served - due| of a tenant within one response, in jobs.
	ResponseShareError float64 `json:"response_share_error"`
	// Dispatches and Windows say what that was judged on.
	Dispatches int64 `json:"dispatches_judged"`
	Windows    int   `json:"seconds_judged"`
}

// judge follows the sequence twice: once from job to job, once with a second behind.
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
			fair.ShareErrorPP = max(fair.ShareErrorPP, math.Abs(f.over(tenant))/float64(fair.Dispatches)*100)
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

// answer is what one response held so far. Its jobs need not follow each other in the sequence: callers who take from a run queue at the same time
// take turns there. What was due to a tenant in it is what its own jobs were worth, to all tenants by weight.
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

// worst is the largest |served - due| of a tenant in the response.
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

// judgeWindows moves two copies of the ideal through the sequence, the second one window behind, beginning at each decision in turn. A window
// that does not fit into its stretch is left out; where none fits, each stretch is one, and their number is returned as 0.
func judgeWindows(weights []float64, stretches []stretch, width int64) (worst float64, windows int, err error) {
	compare := func(from, to *fluid) float64 {
		var dispatched int64
		worst := 0.0
		for tenant := range weights {
			dispatched += to.served[tenant] - from.served[tenant]
			worst = max(worst, math.Abs(to.over(tenant)-from.over(tenant)))
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

// turn is a job of the journal.
type turn struct {
	n int64
	dispatched
}

// inTurn puts jobs in the order of their turns. Their times are those at which they were handed out, and who takes from a run queue may be overtaken; a
// job belongs to the time of those before it.
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
