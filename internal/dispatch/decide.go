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
// that a request that SQL refuses fails alone.
type decider struct {
	groups   int  // in one decision
	limit    int  // of decisions in flight
	inFlight int  // decisions
	line     line // groups with requests to decide

	// While there is enough for all, workers that were answered together come back together: see gather.
	answered   int           // requests that the last decision gave all they asked for; 0: not all of its requests got that
	answeredAt time.Time     // when
	came       int           // requests that have arrived since
	company    chan struct{} // tells that as many have arrived as were answered; holds one
}

// gatherFor is the longest time that a decision waits for more requests to share it.
const gatherFor = time.Millisecond

// gather waits for requests that are likely to arrive at once, so that they share a decision: a
// decision costs as much as many jobs. It waits only if the last decision, less than a millisecond
// ago, gave several requests all that they asked for, and fewer have arrived since. The caller
// holds Dispatcher.mu, which gather releases meanwhile.
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

// arrived counts a new request. It ends gather when as many requests have arrived as the last
// decision answered. The caller holds Dispatcher.mu.
func (s *decider) arrived() {
	if s.came++; s.came == s.answered {
		select {
		case s.company <- struct{}{}:
		default:
		}
	}
}

// answers notes how many requests a decision answered. The caller holds Dispatcher.mu.
func (s *decider) answers(parts []*part) {
	s.answered, s.answeredAt, s.came = 0, time.Now(), 0
	select {
	case <-s.company:
	default:
	}
	for _, p := range parts {
		if p.err != nil || p.each != nil || len(p.jobs) < p.asked {
			s.answered = 0
			return
		}
		s.answered += len(p.requests)
	}
}

// part is the share of one group in a decision.
type part struct {
	g           *group
	requests    []*request // waiting ones, then requeued ones, then new ones
	asked       int        // jobs
	polled      bool       // waiting requests are among them
	leftOut     bool       // some waiting requests had no room
	lastArrival uint64     // before the decision
	requeues    uint64     // before the decision
	ended       uint64     // calls that ended attempts before the decision

	fetched
	err  error
	each []outcome // instead of jobs and err, where requests were decided one by one
}

// fetched is the result of a call of ojs.fetch_many.
type fetched struct {
	jobs  []sqlcgen.OjsJob
	pool  int            // of the workers; 0: none that is configured
	runs  []run          // of each request
	quiet []string       // workers that are to get no jobs
	apart map[string]way // workers that have registered to be served otherwise
	cut   bool           // the call stopped early: there may be more
}

// run is the range of a call's jobs that one request gets.
type run struct {
	from, jobs int
	short      int // jobs that it asked for and its worker has no room for
}

// way is how a worker's requests are to be served.
type way struct {
	Pool     string          `json:"pool"`
	Strategy string          `json:"strategy"`
	Weights  json.RawMessage `json:"weights"`
}

// way is how a request wants to be served.
func (f *Fetch) way() way { return way{f.Pool, f.Strategy, json.RawMessage(f.Weights)} }

// outcome is what a call of ojs.fetch_many has for one request.
type outcome struct {
	jobs []sqlcgen.OjsJob
	err  error
	cut  bool // the call stopped early: there may be more
	full bool // its worker has no room for a job
}

// lineUp queues a group for a decision if it has requests to decide, and starts a decision if fewer
// are running than may. The caller holds Dispatcher.mu.
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

// decide takes decisions until no group is queued. A panic in a statement becomes the error of its
// requests. A panic in this goroutine's bookkeeping ends the process, because requests would wait
// for ever.
func (d *Dispatcher) decide(s *decider) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !s.line.empty() {
		d.gather(s)
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
	s.inFlight--
	d.idle.Broadcast()
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

// take chooses the groups of the next decision. taken counts them by tenant.
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
			break // its turn is the next decision
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
			g.tidy()
		}
		if full {
			break
		}
	}
	return parts, taken
}

// fill adds requests of the group to the decision as long as room is left for their jobs, and
// reports whether some had to stay. The first request of a decision always fits.
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

// fetch carries a decision out. An error is that of all requests, unless a single one may have caused it.
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

// outcome is what the call has for the nth request.
func (p *part) outcome(n int) outcome {
	if p.err != nil {
		return outcome{err: p.err}
	}
	r := p.runs[n]
	return outcome{p.jobs[r.from : r.from+r.jobs : r.from+r.jobs], nil, p.cut, r.short == p.requests[n].Count}
}

// handOut answers the requests of a part in the order of their arrival. A request that gets nothing
// waits.
func (d *Dispatcher) handOut(p *part) {
	g := p.g
	got, empty := d.assign(p)
	for i := range empty {
		if p.polled {
			// They were in front of the requests that wait, and are again.
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
		// No more was there when the decision began, so there is nothing for requests it had no room for.
		for e := g.incoming.Front(); e != nil && e.Value.(*request).arrived <= p.lastArrival; e = g.incoming.Front() {
			g.wait(e.Value.(*request), false)
		}
	} else if p.leftOut {
		g.pollDue = true
	}
	g.deciding--
	d.lineUp(g)
	g.tidy()
}

// assign gives each request its range of the jobs. It returns the number of jobs and the requests
// without any. Jobs of callers that have left are given back.
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
			// Nobody has looked for it yet.
			r.enter(&p.g.requeued, false)
		default:
			empty = append(empty, r)
		}
	}
	return got, empty
}

// mostMoves is how often a request changes its group before it is decided alone.
const mostMoves = 3

// toldDecision is the duration from which on a decision is logged. A decision waits up to two
// seconds for those of other servers, and then fetches without the lane.
const toldDecision = 3 * time.Second

// strayed reports whether SQL refused a request for a pool that it did not name: its worker was in
// that pool when the request came, and has registered for another one since.
func (r *request) strayed(err error) bool {
	var refused *pg.Error
	return r.Pool != r.asked.Pool && r.moves <= mostMoves && errors.As(err, &refused) && refused.Code == "conflict"
}

// move queues a request again, in the group that fits how its worker is registered now. A request
// that names another pool than its worker's is decided alone, so that SQL can say what is wrong.
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
