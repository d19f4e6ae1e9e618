package dispatch

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// decider takes decisions for a queue of groups, one after the other. There are two: one for
// requests that SQL certainly accepts, so that they share decisions, and one for all others, so
// that a request that SQL refuses fails alone. Dispatcher.mu guards all fields. lineUp starts a
// goroutine (decide) while groups are queued and fewer than limit run; it ends when no group is
// queued.
type decider struct {
	groups   int  // most groups in one decision
	limit    int  // most decisions in flight
	inFlight int  // decisions in flight, each with a goroutine
	line     line // groups with requests to decide

	// While there are jobs for all requests, workers that were answered together come back together:
	// see gather.
	answered   int       // requests of the last decision if each got all the jobs it asked for, else 0
	answeredAt time.Time // the end of that decision
	came       int       // requests that have arrived since
	// company gets a value when as many requests have arrived as were answered. It has a buffer of one,
	// so that arrived never blocks under the lock. Only gather reads from it; answers empties it.
	company chan struct{}
}

// gatherFor is the longest time that a decision waits for more requests to share it.
const gatherFor = time.Millisecond

// gather waits for requests that are likely to arrive at once, so that they share a decision: the
// fixed cost of a decision is that of many jobs. It waits only if the last decision ended less than
// gatherFor ago, gave several requests all the jobs they asked for, and fewer requests have arrived
// since. It returns when as many have arrived, or gatherFor after that decision. The caller holds
// Dispatcher.mu, which gather releases while it waits.
func (d *Dispatcher) gather(s *decider) {
	left := gatherFor - time.Since(s.answeredAt)
	if s.answered < 2 || s.came >= s.answered || left <= 0 {
		return
	}
	d.mu.Unlock()
	timer := time.NewTimer(left)
	select {
	case <-s.company:
	case <-timer.C:
	}
	timer.Stop()
	d.mu.Lock()
}

// arrived counts a new request. If as many requests have arrived as the last decision answered, it
// ends the wait in gather. The caller holds Dispatcher.mu.
func (s *decider) arrived() {
	if s.came++; s.came == s.answered {
		select {
		case s.company <- struct{}{}:
		default:
		}
	}
}

// answers notes for gather how many requests a decision answered in full. The caller holds
// Dispatcher.mu.
func (s *decider) answers(parts []*part) {
	s.answered, s.answeredAt, s.came = 0, time.Now(), 0
	select {
	case <-s.company: // a value about the decision before would end the next gather at once
	default:
	}
	for _, p := range parts {
		// After an error, or with jobs for some requests only, the next requests need not come together.
		if p.err != nil || p.each != nil || len(p.jobs) < p.asked {
			s.answered = 0
			return
		}
		s.answered += len(p.requests)
	}
}

// part is the share of one group in a decision. take makes it and handOut uses it up, both under
// Dispatcher.mu. Between them it belongs to the goroutine of the decision: its requests are in no
// list, and fetch fills in the result without the lock.
type part struct {
	g           *group
	requests    []*request // waiting ones, then requeued ones, then new ones
	asked       int        // jobs that they ask for in sum
	polled      bool       // the group's waiting requests were included
	leftOut     bool       // some waiting requests did not fit into the decision
	lastArrival uint64     // Dispatcher.arrivals when the decision began
	requeues    uint64     // Dispatcher.requeues when the decision began
	ended       uint64     // Dispatcher.ended when the decision began

	fetched
	err  error     // of the whole call; no request got a job
	each []outcome // instead of jobs and err, if requests were decided one by one
}

// fetched is the result of a call of ojs.fetch_many.
type fetched struct {
	jobs  []sqlcgen.OjsJob
	pool  int            // id of the workers' pool; 0: none is configured
	runs  []run          // the range of jobs of each request
	quiet []string       // workers that are to get no jobs
	apart map[string]way // workers that have registered with another pool, strategy or weights
	cut   bool           // the call stopped early: there may be more jobs
}

// run is the range of a call's jobs that one request gets.
type run struct {
	from, jobs int
	short      int // jobs that it asked for beyond the concurrency of its worker
}

// way holds the pool, the strategy and the weights by which requests of a worker are served.
type way struct {
	Pool     string          `json:"pool"`
	Strategy string          `json:"strategy"`
	Weights  json.RawMessage `json:"weights"`
}

// way returns the pool, the strategy and the weights that the request names.
func (f *Fetch) way() way { return way{f.Pool, f.Strategy, json.RawMessage(f.Weights)} }

// outcome is the result of a call of ojs.fetch_many for one request.
type outcome struct {
	jobs []sqlcgen.OjsJob
	err  error
	cut  bool // the call stopped early: there may be more jobs
	full bool // its worker is at its concurrency
}

// lineUp queues a group for a decision if it has requests to decide, and starts a goroutine if
// groups are queued and fewer decisions are in flight than may be. Code that puts a request into
// incoming or requeued, or sets pollDue, has to call it: else the request is not decided until
// another one comes. The caller holds Dispatcher.mu.
func (d *Dispatcher) lineUp(g *group) {
	s := g.decider
	if !g.inLine && (g.incoming.Len()+g.requeued.Len() > 0 || g.pollDue && g.waiting.Len() > 0) {
		g.inLine = true
		s.line.add(g)
	}
	if s.inFlight < s.limit && !s.line.empty() {
		s.inFlight++
		go d.decide(s)
	}
}

// decide takes decisions until no group is queued. It releases Dispatcher.mu while a statement runs,
// so that requests may arrive and leave meanwhile. A panic in a statement becomes the error of its
// requests (pg.WithRetry). A panic elsewhere in this goroutine ends the process, because requests of
// the decision, which are in no list, would wait for ever.
func (d *Dispatcher) decide(s *decider) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !s.line.empty() {
		d.gather(s) // releases the lock: line may be empty afterwards, and take then returns nothing
		parts, taken := d.take(s)
		d.mu.Unlock()
		began := time.Now()
		d.fetch(parts)
		took := time.Since(began)
		d.mu.Lock()
		d.tellSlow(parts, took)
		s.line.learn(taken, took)
		s.answers(parts)
		for _, p := range parts {
			d.handOut(p)
		}
	}
	// Under the same hold of the lock in which line was seen empty: else lineUp could count this
	// goroutine as running, and a group would stay queued.
	s.inFlight--
	d.idle.Broadcast() // for waitForDecisions
}

// tellSlow logs a decision that took long, at most one per minute. The caller holds Dispatcher.mu.
func (d *Dispatcher) tellSlow(parts []*part, took time.Duration) {
	if len(parts) == 0 || took < toldDecision || time.Since(d.slowTold) < time.Minute {
		return
	}
	d.slowTold = time.Now()
	requests := 0
	for _, p := range parts {
		requests += len(p.requests)
	}
	d.log.Warn("a decision took long; the next one is told in a minute", "took", took, "requests", requests, "queues", parts[0].g.queues)
}

// take takes groups out of the queue for the next decision, with their requests. taken counts the
// groups by tenant. A decision has at most decider.groups groups, and its requests ask for at most
// Options.Jobs jobs, but for a first request that asks for more alone. The caller holds
// Dispatcher.mu.
func (d *Dispatcher) take(s *decider) (parts []*part, taken map[string]int) {
	room := d.opts.Jobs
	taken = map[string]int{}
	for len(parts) < s.groups {
		g := s.line.next(taken)
		if g == nil {
			break
		}
		p := &part{g: g, polled: g.pollDue, lastArrival: d.arrivals, requeues: d.requeues, ended: d.ended.Load()}
		full := p.fill(&room, len(parts) > 0)
		if full && len(p.requests) == 0 {
			break // not one of its requests fits: the group stays first in the queue for the next decision
		}
		s.line.remove(g)
		g.inLine = false
		p.leftOut = g.pollDue && g.waiting.Len() > 0
		g.pollDue = false
		if len(p.requests) > 0 {
			if p.polled {
				if time.Since(g.polledAt) > emptyPollsKept {
					g.emptyPolls = 0
				}
				g.polledAt = time.Now()
			}
			g.deciding++
			taken[g.tenantName()]++
			parts = append(parts, p)
		} else {
			g.tidy() // its requests have left: the group may be removed
		}
		if full {
			break
		}
	}
	return parts, taken
}

// fill moves requests of the group into the decision while the jobs that they ask for fit into room,
// which it reduces. It returns true if a request did not fit. others says that the decision has
// requests of other groups. The first request of a decision always fits: else it would never be
// decided. The caller holds Dispatcher.mu.
func (p *part) fill(room *int, others bool) (full bool) {
	g := p.g
	for _, l := range [...]*list.List{&g.waiting, &g.requeued, &g.incoming} {
		for l.Len() > 0 && (l != &g.waiting || g.pollDue) {
			r := l.Front().Value.(*request)
			if r.Count > *room && (others || len(p.requests) > 0) {
				return true
			}
			r.leave()
			p.requests = append(p.requests, r)
			p.asked += r.Count
			*room -= r.Count
		}
	}
	return false
}

// fetch carries a decision out: it runs the statements and sets the result of each part. If a single
// request may have caused an error, each part is tried by itself, and then each request of a part,
// so that only the request at fault gets the error. Else all requests get it. The caller does not
// hold Dispatcher.mu.
func (d *Dispatcher) fetch(parts []*part) {
	if len(parts) == 0 {
		return
	}
	err := pg.WithRetry(d.opts.Query, func(ctx context.Context) error { return d.send.fetch(ctx, parts) })
	switch {
	case err == nil:
	case pg.ItemFault(err) && len(parts) > 1:
		for _, p := range parts {
			d.fetch([]*part{p})
		}
	case pg.ItemFault(err) && len(parts[0].requests) > 1:
		p := parts[0]
		for _, r := range p.requests {
			one := &part{g: p.g, requests: []*request{r}, asked: r.Count}
			d.fetch([]*part{one})
			p.each = append(p.each, one.outcome(0))
			p.quiet = append(p.quiet, one.quiet...)
		}
	default:
		for _, p := range parts {
			p.fetched, p.err = fetched{}, fmt.Errorf("fetch: %w", d.db.Err(err))
		}
	}
}

// outcome returns the result of the nth request. The slice of its jobs has no spare capacity, so
// that an append cannot overwrite the jobs of the next request.
func (p *part) outcome(n int) outcome {
	if p.err != nil {
		return outcome{err: p.err}
	}
	r := p.runs[n]
	return outcome{p.jobs[r.from : r.from+r.jobs : r.from+r.jobs], nil, p.cut, r.short == p.requests[n].Count}
}

// handOut ends a part of a decision: it answers the requests that got jobs or an error, makes the
// others wait, and queues the group again if it has more requests. The caller holds Dispatcher.mu.
func (d *Dispatcher) handOut(p *part) {
	g := p.g
	got, empty := d.assign(p)
	for i := range empty {
		if p.polled {
			// They waited longest, so they return to the front, in the same order: from the last one to the first.
			g.wait(empty[len(empty)-1-i], true)
		} else {
			g.wait(empty[i], false)
		}
	}
	switch {
	case got > 0:
		g.emptyPolls = 0
	case p.polled:
		g.emptyPolls++
	}
	if got < p.asked && p.err == nil && p.each == nil && !p.cut {
		// The decision found fewer jobs than it asked for, so no more were available when it began. Requests
		// that were there by then and did not fit into it need no decision of their own: they wait.
		for e := g.incoming.Front(); e != nil && e.Value.(*request).arrived <= p.lastArrival; e = g.incoming.Front() {
			g.wait(e.Value.(*request), false)
		}
	} else if p.leftOut {
		g.pollDue = true // there may be jobs for the waiting requests that did not fit
	}
	g.deciding--
	d.lineUp(g)
	g.tidy()
}

// assign answers each request of a part with its range of the jobs, or puts it where it waits. Jobs
// of a caller that has left are given back. It returns the number of jobs, and the requests that
// have to wait for one in their group. From p.asked it subtracts jobs that a worker may not have, so
// that a shortfall still proves that no more jobs were available. The caller holds Dispatcher.mu.
func (d *Dispatcher) assign(p *part) (got int, empty []*request) {
	for i, r := range p.requests {
		var o outcome
		quiet := slices.Contains(p.quiet, r.WorkerID)
		way, apart := p.apart[r.WorkerID]
		switch {
		case p.each != nil:
			o = p.each[i]
		case quiet || apart:
			p.asked -= r.Count
			o.cut = p.cut
		default:
			if o = p.outcome(i); o.err == nil {
				p.asked -= p.runs[i].short
			}
		}
		got += len(o.jobs)
		switch {
		case r.gone:
			d.back.add(o.jobs)
		case r.strayed(o.err):
			d.move(r, r.asked.way())
		case len(o.jobs) > 0 || o.err != nil:
			p.g.answer(r, o.jobs, o.err)
		case quiet:
			d.putQuiet(r, p.requeues)
		case apart:
			d.move(r, way)
		case o.full:
			d.putFull(r, p.ended)
		case o.cut:
			// The call stopped before it looked for jobs of this request: decide it again before new requests.
			r.enter(&p.g.requeued, false)
		default:
			empty = append(empty, r)
		}
	}
	return got, empty
}

// mostMoves is the number of times that a request may change its group. After that it is decided
// alone: a worker that registers anew all the time must not have its request moved for ever.
const mostMoves = 3

// toldDecision is the duration from which on a decision is logged. A decision waits up to two
// seconds for the decisions of other servers (ojs.lane), and then fetches without the lane.
const toldDecision = 3 * time.Second

// strayed reports whether SQL refused a request because of a pool that its caller did not name: the
// Dispatcher had moved the request to the pool of its worker, and the worker has registered for
// another pool since. Such a request is made again as it came. The caller holds Dispatcher.mu.
func (r *request) strayed(err error) bool {
	var refused *pg.Error
	return r.Pool != r.asked.Pool && r.moves <= mostMoves && errors.As(err, &refused) && refused.Code == "conflict"
}

// move queues a request again, in the group for the pool, strategy and weights with which its worker
// is registered now. A request that names another pool than its worker's is decided alone, so that
// SQL can refuse it with a reason. The caller holds Dispatcher.mu.
func (d *Dispatcher) move(r *request, to way) {
	r.moves++
	if r.asked.Pool != "" && r.asked.Pool != to.Pool || r.moves > mostMoves {
		r.isolated = true
	} else {
		r.Pool, r.Strategy, r.Weights = to.Pool, to.Strategy, string(to.Weights)
		r.normalise()
	}
	r.group = d.groupOf(&r.Fetch)
	r.enter(&r.group.requeued, false)
	d.lineUp(r.group)
}
