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

// Fetch is a worker's request for jobs.
type Fetch struct {
	Queues              []string // each once
	Count               int
	WorkerID            string  // empty: not given
	VisibilityTimeoutMs int     // 0: the job's own, or the default
	Tenant              *string // only jobs of this tenant; nil: jobs of all tenants
	Strategy            string  // between queues, as ojs.fetch takes it; empty: its default
	Weights             string  // of queues, a JSON object; empty: not given
	Pool                string  // of the worker; empty: the pool it has registered with, if any
	Wait                time.Duration

	isolated bool // the request is decided alone; set by normalise and move
}

// request is a FETCH under way; doc.go describes its states. Dispatcher.mu guards all its fields
// until done is closed. answer sets jobs and err before it closes done, and nothing changes them
// after that, so Fetch reads them without the lock.
type request struct {
	Fetch               // as it is decided: normalised, and changed by move
	asked Fetch         // as its caller made it
	group *group        // the group whose decisions it takes part in
	list  *list.List    // the list it is in; nil while it is decided, and after its end
	place *list.Element // its element of list

	arrived uint64 // its number, in order of arrival
	moves   int    // how often it has changed its group
	over    bool   // its time to wait is over: answer it after the decision under way
	gone    bool   // its caller has left: give back the jobs that a decision under way has for it

	done chan struct{} // closed when the request is answered; never if its caller has left
	jobs []sqlcgen.OjsJob
	err  error
}

// groupKey holds all that requests of a group have in common.
type groupKey struct{ queues, tenant, strategy, weights, pool string }

// group holds the requests that one call of ojs.fetch_many can serve: they name the same queues,
// tenant, pool, strategy and weights. Dispatcher.mu guards all fields that change. groupOf makes a
// group for its first request; tidy removes it when it has no request and no subscription.
type group struct {
	d       *Dispatcher
	key     groupKey
	queues  []string
	tenant  *string
	decider *decider // the one that decides its requests: Dispatcher.shared or Dispatcher.isolated

	// Lists of *request. A request is in at most one list.
	incoming list.List // new requests, in order of arrival
	waiting  list.List // requests that got no job, the longest waiting first
	requeued list.List // requests to decide again: moved from another group, from quiet or full, or cut off

	inLine   bool // the group is in decider.line
	pollDue  bool // the next decision includes the waiting requests
	deciding int  // parts of decisions in flight that have requests of the group

	// sub is nil while no request waits, but for Options.Linger after the last one: workers come back
	// soon, and a registration costs a transaction.
	sub       *notify.Subscription
	timer     *time.Timer // fires for the fallback poll or, if lingering, for the end of sub
	lingering bool        // no request waits, and timer is set for the end of sub

	emptyPolls int         // polls in a row that found no job
	polledAt   time.Time   // the last poll
	delayed    *time.Timer // set if pollSoon has put a poll off, else nil
}

// Fetch returns jobs. If there are none it waits, and returns without jobs when f.Wait is over or
// the server stops. When ctx ends first it returns ctx's error and the request leaves no trace: jobs
// that a decision under way has for it are given back, and the attempt does not count. Any other
// error is that of the database.
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
			d.endWait(r) // closes done, now or after the decision under way
			over = nil
		case <-ctx.Done():
			if d.abandon(r) {
				return nil, ctx.Err()
			}
			// Answered at the same moment. The jobs are leased: the caller has to get them, or give them back.
			return r.jobs, r.err
		}
	}
}

// arrive makes a request, puts it into its group and queues the group for a decision.
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

// endWait answers a request whose time to wait is over. A request that is new or is being decided is
// answered after its decision: a FETCH always gets at least one look for jobs.
func (d *Dispatcher) endWait(r *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.over = true
	if r.list != nil && r.list != &r.group.incoming {
		r.group.answer(r, nil, nil)
	}
}

// abandon removes a request whose caller leaves, and returns true. It returns false if the request
// has been answered already.
func (d *Dispatcher) abandon(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-r.done:
		return false
	default:
	}
	r.gone = true // for assign, if a decision has the request now
	r.leave()
	r.group.tidy()
	return true
}

// enter puts a request that is in no list into one. The caller holds Dispatcher.mu.
func (r *request) enter(l *list.List, front bool) {
	r.list = l
	if front {
		r.place = l.PushFront(r)
	} else {
		r.place = l.PushBack(r)
	}
}

// leave takes a request out of its list, if it is in one. The caller holds Dispatcher.mu.
func (r *request) leave() {
	if r.list != nil {
		r.list.Remove(r.place)
		r.list, r.place = nil, nil
	}
}

// answer ends a request with jobs, with an error, or with neither. It may be called once for a
// request. The caller holds Dispatcher.mu.
func (g *group) answer(r *request, jobs []sqlcgen.OjsJob, err error) {
	r.leave()
	r.jobs, r.err = jobs, err
	close(r.done)
	g.tidy()
}

// tidy sets the end of a group's subscription if no request waits, and removes a group without
// requests and without a subscription. It has to be called after a request has left the group;
// else groups of queues that are no longer used stay in memory. The caller holds Dispatcher.mu.
func (g *group) tidy() {
	switch {
	case g.waiting.Len() > 0 || g.deciding > 0: // in use; handOut calls tidy after the decision
	case g.sub != nil:
		if !g.lingering {
			g.setTimer()
		}
	case g.incoming.Len()+g.requeued.Len() == 0 && !g.inLine:
		// Another group may have the key: this one was removed before, while a request outside it knew it.
		if g.d.groups[g.key] == g {
			delete(g.d.groups, g.key)
		}
	}
}

// groupOf returns the group for a normalised request, and makes it if there is none. An isolated
// request always gets a group of its own. The caller holds Dispatcher.mu.
func (d *Dispatcher) groupOf(f *Fetch) *group {
	key := groupKey{queues: strings.Join(f.Queues, ","), strategy: f.Strategy, weights: f.Weights, pool: f.Pool}
	if f.Tenant != nil {
		key.tenant = *f.Tenant
	}
	decider := &d.shared
	if f.isolated {
		// A number behind a zero byte, which no name has, makes the key unique.
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

// Bounds within which SQL certainly accepts a request (acceptable). SQL has the rules themselves.
const (
	maxQueues     = 100
	maxCount      = 1000
	maxWorkerID   = 255
	minVisibility = 1000
	maxVisibility = 7 * 24 * 3600 * 1000
	maxWeight     = 1_000_000
)

// acceptable reports whether SQL certainly accepts the request. It refuses nothing: SQL does. It
// keeps requests that SQL may refuse out of shared decisions. A rule that is stricter here than in
// SQL costs a decision for the request alone; one that is laxer lets the request fail a decision,
// whose other requests are then decided one by one.
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

// strategies are the names that ojs.fetch takes.
var strategies = []string{"strict", "round-robin", "weighted", "least-loaded"}

// normalise gives requests that ask for the same an equal form, so that they share decisions, and
// marks a request that SQL may refuse as isolated. It keeps the text of such a request, so that SQL
// judges what the caller wrote.
func (f *Fetch) normalise() {
	weights, known := f.weights()
	f.isolated = !known || !f.acceptable()
	switch {
	case f.isolated:
	case f.Strategy == "round-robin" || len(f.Queues) == 1 && f.Strategy != "least-loaded":
		f.Strategy, f.Weights = "", "" // the default; with one queue there is nothing to choose between
	case f.Strategy != "weighted" || len(weights) == 0:
		f.Weights = "" // not used
	default:
		text, _ := json.Marshal(weights) // sorted by name, and cannot fail
		f.Weights = string(text)
	}
}

// weights returns the weights of the queues that the request names. known reports whether SQL
// certainly accepts Weights, also where it names other queues.
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
