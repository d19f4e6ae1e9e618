package dispatch

import (
	"container/list"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Fetch is what a worker asks for.
type Fetch struct {
	Queues              []string // each once
	Count               int
	WorkerID            string  // empty: it gave none
	VisibilityTimeoutMs int     // 0: the job's own, or the default
	Tenant              *string // that tenant's jobs only
	Strategy            string  // between queues, as ojs.fetch takes it; empty: its default
	Weights             string  // of queues, a JSON object; empty: none
	Pool                string  // of the worker; empty: the one it has registered with, or none
	Wait                time.Duration

	isolated bool // no other request is to share its decision
}

// request is a FETCH under way; doc.go describes its states. Dispatcher.mu guards it until done is
// closed.
type request struct {
	Fetch
	asked   Fetch // as it came
	group   *group
	list    *list.List    // nil while it is decided
	place   *list.Element // in list
	arrived uint64
	moves   int  // how often it was told to ask in another way
	over    bool // its time to wait is over
	gone    bool // its caller has left

	done chan struct{}
	jobs []sqlcgen.OjsJob
	err  error
}

type groupKey struct{ queues, tenant, strategy, weights, pool string }

// group holds the requests that one call of ojs.fetch_many can serve: they name the same queues,
// tenant and pool, and are served in the same way.
type group struct {
	d       *Dispatcher
	key     groupKey
	queues  []string
	tenant  *string
	decider *decider

	// Lists of *request, each in order of arrival.
	incoming list.List // new
	waiting  list.List // for a job
	requeued list.List // were quiet, and may get jobs now

	inLine   bool // in decider.line
	pollDue  bool // the next decision takes the waiting ones, too
	deciding int  // parts of decisions in flight

	sub       *notify.Subscription
	timer     *time.Timer // the next poll without a wake, or the end of the subscription
	lingering bool        // the latter

	emptyPolls int // since the last one that found a job
	polledAt   time.Time
	delayed    *time.Timer // a poll that a wake called for; nil: none is put off
}

// Fetch hands out jobs, or waits for some, or returns empty when the wait is over or the server
// stops. When ctx ends first, the request leaves no trace: jobs that a decision in flight may have for it go
// back at once, and the attempt does not count.
func (d *Dispatcher) Fetch(ctx context.Context, f Fetch) ([]sqlcgen.OjsJob, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := d.arrive(f)
	var over <-chan time.Time
	if f.Wait > 0 {
		timer := time.NewTimer(f.Wait)
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-r.done:
			return r.jobs, r.err
		case <-over:
			d.endWait(r)
			over = nil
		case <-ctx.Done():
			if d.abandon(r) {
				return nil, ctx.Err()
			}
			return r.jobs, r.err
		}
	}
}

func (d *Dispatcher) arrive(f Fetch) *request {
	r := &request{Fetch: f, asked: f, done: make(chan struct{})}
	r.normalise() // before the lock: weights may be long
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arrivals++
	r.arrived = d.arrivals
	r.group = d.groupOf(&r.Fetch)
	r.enter(&r.group.incoming, false)
	r.group.decider.arrived()
	d.lineUp(r.group)
	return r
}

// endWait answers a request whose time to wait is over. A request that has never been decided, or
// is being decided now, is answered later.
func (d *Dispatcher) endWait(r *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.over = true
	if r.list != nil && r.list != &r.group.incoming {
		r.group.answer(r, nil, nil)
	}
}

// abandon removes a request whose caller leaves. It returns false if the request has been answered
// at the same moment.
func (d *Dispatcher) abandon(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-r.done:
		return false
	default:
	}
	r.gone = true
	r.leave()
	r.group.tidy()
	return true
}

func (r *request) enter(l *list.List, front bool) {
	r.list = l
	if front {
		r.place = l.PushFront(r)
	} else {
		r.place = l.PushBack(r)
	}
}

func (r *request) leave() {
	if r.list != nil {
		r.list.Remove(r.place)
		r.list, r.place = nil, nil
	}
}

func (g *group) answer(r *request, jobs []sqlcgen.OjsJob, err error) {
	r.leave()
	r.jobs, r.err = jobs, err
	close(r.done)
	g.tidy()
}

// tidy lets the subscription of a group end some time after its last request has stopped waiting,
// and removes a group without requests.
func (g *group) tidy() {
	switch {
	case g.waiting.Len() > 0 || g.deciding > 0:
	case g.sub != nil:
		if !g.lingering {
			g.setTimer()
		}
	case g.incoming.Len()+g.requeued.Len() == 0 && !g.inLine:
		if g.d.groups[g.key] == g {
			delete(g.d.groups, g.key)
		}
	}
}

func (d *Dispatcher) groupOf(f *Fetch) *group {
	key := groupKey{queues: strings.Join(f.Queues, ","), strategy: f.Strategy, weights: f.Weights, pool: f.Pool}
	if f.Tenant != nil {
		key.tenant = *f.Tenant
	}
	decider := &d.shared
	if f.isolated {
		// A group of its own, under a key that no other has.
		decider = &d.isolated
		d.arrivals++
		key.tenant += "\x00" + strconv.FormatUint(d.arrivals, 10)
	}
	g := d.groups[key]
	if g == nil {
		g = &group{d: d, key: key, queues: f.Queues, tenant: f.Tenant, decider: decider}
		d.groups[key] = g
	}
	return g
}

const (
	maxQueues     = 100
	maxCount      = 1000
	maxWorkerID   = 255
	minVisibility = 1000
	maxVisibility = 7 * 24 * 3600 * 1000
	maxWeight     = 1_000_000
)

// acceptable reports whether SQL certainly accepts the request. SQL alone refuses; this only keeps
// requests that SQL may refuse out of decisions that others share. A rule that is stricter here
// than in SQL merely makes a request go alone.
func (f *Fetch) acceptable() bool {
	if len(f.Queues) < 1 || len(f.Queues) > maxQueues || f.Count < 1 || f.Count > maxCount {
		return false
	}
	if len(f.WorkerID) > maxWorkerID || !utf8.ValidString(f.WorkerID) || strings.Contains(f.WorkerID, "\x00") {
		return false
	}
	if f.VisibilityTimeoutMs != 0 && (f.VisibilityTimeoutMs < minVisibility || f.VisibilityTimeoutMs > maxVisibility) {
		return false
	}
	for _, q := range f.Queues {
		if !names.Queue.MatchString(q) {
			return false
		}
	}
	if f.Tenant != nil && !names.Tenant.MatchString(*f.Tenant) {
		return false
	}
	return (f.Pool == "" || names.Pool.MatchString(f.Pool)) && (f.Strategy == "" || slices.Contains(strategies, f.Strategy))
}

var strategies = []string{"strict", "round-robin", "weighted", "least-loaded"}

// normalise gives requests that ask for the same an equal form, so that they share decisions, and
// marks those that SQL may refuse.
func (f *Fetch) normalise() {
	weights, known := f.weights()
	f.isolated = !known || !f.acceptable()
	switch {
	case f.isolated:
	case f.Strategy == "round-robin" || len(f.Queues) == 1 && f.Strategy != "least-loaded":
		f.Strategy, f.Weights = "", ""
	case f.Strategy != "weighted" || len(weights) == 0:
		f.Weights = ""
	default:
		text, _ := json.Marshal(weights) // in the order of the names
		f.Weights = string(text)
	}
}

// weights returns the weights of the queues that the request names. known reports whether SQL
// certainly accepts all of them.
func (f *Fetch) weights() (own map[string]int32, known bool) {
	if f.Weights == "" {
		return nil, true
	}
	var all map[string]int32
	if json.Unmarshal([]byte(f.Weights), &all) != nil || all == nil {
		return nil, false
	}
	own = map[string]int32{}
	for queue, weight := range all {
		if weight < 1 || weight > maxWeight {
			return nil, false
		}
		if slices.Contains(f.Queues, queue) {
			own[queue] = weight
		}
	}
	return own, true
}
