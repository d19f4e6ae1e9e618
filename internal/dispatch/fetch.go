package dispatch

import (
	"container/list"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// Looks that commits called for and that found nothing: so many in a row are let pass, then they are
	// spaced, up to slowest.
	fruitless   = 4
	slowestLook = 64 * time.Millisecond
	// Looks that are further apart are nobody's burden, whatever called for them.
	rare = time.Second
	// While commits are not heard of, every so often.
	deafFallback = 2 * time.Second
	// Notifications with this payload say that a worker that rested is to rest no more.
	awakeToken = "awake"
)

// Fetch is what a worker asks for.
type Fetch struct {
	Queues              []string // each once
	Count               int
	WorkerID            string  // empty: it gave none
	VisibilityTimeoutMs int     // 0: the job's own, or the default
	Tenant              *string // that tenant's jobs only
	Wait                time.Duration
}

// request is a fetch under way: fresh until it has been looked at once, then parked while it waits, or resting while its worker is to get no jobs,
// and in no list while a decision has it. Guarded by Dispatcher.mu until done is closed.
type request struct {
	Fetch
	group   *group
	place   *list.Element
	in      *list.List
	arrived uint64
	over    bool // its time to wait is over
	gone    bool // its caller is

	done chan struct{}
	jobs []sqlcgen.OjsJob
	err  error
}

type groupKey struct{ queues, tenant string }

// group are the requests that one call of ojs.fetch_many can serve: same queues, same tenant.
type group struct {
	d             *Dispatcher
	key           groupKey
	queues        []string
	tenant        *string
	slots         *slots
	fresh, parked list.List // of *request, in order of arrival
	roused        list.List // of *request that rested, and may go on now
	ready         bool      // is in slots.ready
	woken         bool      // the parked ones are due a look, too
	sub           *pg.Subscription
	timer         *time.Timer // the next look without being woken, or the end of the subscription
	lingers       bool        // the latter
	flying        int         // parts of decisions

	// Looks for those who wait since the last one that found a job, and when the latest was.
	vain     int
	lookedAt time.Time
	later    bool // a look is put off
}

// Fetch hands out jobs, or waits for some, or returns empty when the wait is over or the server
// stops. When ctx ends first, the request leaves no trace: a job that a decision under way may have for it goes
// back at once, and the attempt does not count.
func (d *Dispatcher) Fetch(ctx context.Context, f Fetch) ([]sqlcgen.OjsJob, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &request{Fetch: f, done: make(chan struct{})}
	d.mu.Lock()
	d.arrivals++
	r.arrived = d.arrivals
	r.group = d.groupOf(&f)
	r.queue(&r.group.fresh, false)
	d.due(r.group)
	d.mu.Unlock()

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
			d.mu.Lock()
			r.over = true
			if r.in != nil && r.in != &r.group.fresh {
				r.group.answer(r, nil, nil)
			}
			d.mu.Unlock()
			over = nil
		case <-ctx.Done():
			d.mu.Lock()
			defer d.mu.Unlock()
			select {
			case <-r.done:
				return r.jobs, r.err
			default:
			}
			r.gone = true
			r.leave()
			r.group.rest()
			return nil, ctx.Err()
		}
	}
}

// GiveBack makes jobs available again whose answer did not reach the client; the attempt does not count.
func (d *Dispatcher) GiveBack(jobs []sqlcgen.OjsJob) {
	var ids, leases []string
	for i := range jobs {
		if jobs[i].Lease != nil {
			ids, leases = append(ids, jobs[i].ID), append(leases, *jobs[i].Lease)
		}
	}
	release := func(ids, leases []string) error {
		return safely(d.opts.Query, func(ctx context.Context) error {
			d.statements.Add(1)
			_, err := d.db.Pool().Exec(ctx, "select from unnest($1::uuid[], $2::uuid[]) g(id, lease) cross join lateral ojs.release(g.id, g.lease)", ids, leases)
			return err
		})
	}
	if len(ids) == 0 || d.opts.Canned != nil || release(ids, leases) == nil {
		return
	}
	for i := range ids {
		if err := release(ids[i:i+1], leases[i:i+1]); err != nil {
			// Cancelled or taken back meanwhile; or else its lease has to run out.
			d.log.Warn("a job could not be given back", "job", ids[i], "error", err)
		}
	}
}

func (r *request) queue(l *list.List, front bool) {
	r.in = l
	if front {
		r.place = l.PushFront(r)
	} else {
		r.place = l.PushBack(r)
	}
}

func (r *request) leave() {
	if r.in != nil {
		r.in.Remove(r.place)
		r.in, r.place = nil, nil
	}
}

// --- groups; all with Dispatcher.mu held ---

func (d *Dispatcher) groupOf(f *Fetch) *group {
	key := groupKey{queues: strings.Join(f.Queues, ",")}
	if f.Tenant != nil {
		key.tenant = *f.Tenant
	}
	slots := &d.plain
	if !f.plain() {
		// Alone, under a key that no other has.
		slots = &d.odd
		d.arrivals++
		key.tenant += "\x00" + strconv.FormatUint(d.arrivals, 10)
	}
	g := d.groups[key]
	if g == nil {
		g = &group{d: d, key: key, queues: f.Queues, tenant: f.Tenant, slots: slots}
		d.groups[key] = g
	}
	return g
}

// plain tells what is surely acceptable from what may be refused. SQL refuses; this only keeps requests that
// would be refused from those they would be combined with.
func (f *Fetch) plain() bool {
	if len(f.Queues) < 1 || len(f.Queues) > 100 || f.Count < 1 || f.Count > 1000 || len(f.WorkerID) > 255 || !utf8.ValidString(f.WorkerID) ||
		strings.Contains(f.WorkerID, "\x00") || f.VisibilityTimeoutMs != 0 && (f.VisibilityTimeoutMs < 1000 || f.VisibilityTimeoutMs > 604800000) {
		return false
	}
	for _, q := range f.Queues {
		if len(q) < 1 || len(q) > 128 || strings.Trim(q, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" || q[0] == '-' || q[0] == '.' {
			return false
		}
	}
	if f.Tenant != nil {
		for _, c := range []byte(*f.Tenant) {
			if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("._:-", rune(c)) {
				return false
			}
		}
		return *f.Tenant != "" && len(*f.Tenant) <= 256
	}
	return true
}

// due puts the group in line for a decision if it has something to decide.
func (d *Dispatcher) due(g *group) {
	s := g.slots
	if !g.ready && (g.fresh.Len()+g.roused.Len() > 0 || g.woken && g.parked.Len() > 0) {
		g.ready = true
		s.ready = append(s.ready, g)
	}
	if s.taken < s.most && len(s.ready) > 0 {
		s.taken++
		go d.decide(s)
	}
}

func (g *group) answer(r *request, jobs []sqlcgen.OjsJob, err error) {
	r.leave()
	r.jobs, r.err = jobs, err
	close(r.done)
	g.rest()
}

// park has a request wait that found nothing.
func (g *group) park(r *request, front bool) {
	if r.over || r.Wait <= 0 || g.d.draining {
		g.answer(r, nil, nil)
		return
	}
	r.leave()
	r.queue(&g.parked, front)
	if g.sub == nil {
		g.sub = g.d.listener.Subscribe(g.queues, g.wake)
		g.lingers = true
	}
	if g.lingers {
		g.plan()
	}
}

// putToRest has a request wait whose worker is to get no jobs, where it takes nobody's place.
func (d *Dispatcher) putToRest(r *request, rouses uint64) {
	switch {
	case r.over || r.Wait <= 0 || d.draining:
		r.group.answer(r, nil, nil)
	case rouses != d.rouses:
		// Since the decision began somebody has been told to go on.
		r.queue(&r.group.roused, false)
	default:
		r.queue(&d.resting, false)
	}
}

// rouse has all who rest asked about again, before those who come from now on, who might leave them no room. A timer calls it, which the listener sets off when a worker has been told to go on.
func (d *Dispatcher) rouse() {
	in := d.opts.Fallback
	if d.listener.Backend() == 0 {
		in = min(in, deafFallback)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return
	}
	// Whoever tells workers to go on all the time must not keep everybody's decisions busy with it.
	if left := time.Until(d.rousedAt.Add(slowestLook)); left > 0 {
		d.rouser.Reset(left)
		return
	}
	// Before the rest: what the listener says from now on is for the next time.
	d.rouser.Reset(in)
	d.rousedAt = time.Now()
	d.rouses++
	for e := d.resting.Front(); e != nil; e = d.resting.Front() {
		r := e.Value.(*request)
		r.leave()
		r.group = d.groupOf(&r.Fetch)
		r.queue(&r.group.roused, false)
		d.due(r.group)
	}
}

// plan sets the timer: for the next look while somebody waits, for the end of the subscription when nobody does.
func (g *group) plan() {
	in := g.d.opts.Linger
	g.lingers = g.parked.Len() == 0
	if !g.lingers {
		in = g.d.opts.Fallback
		if !g.sub.Heard() {
			in = min(in, deafFallback)
		}
		// Spread, so that not all groups that began together look together, and then on a beat, so that some share a decision.
		in = g.d.onBeat(time.Now(), in+rand.N(in/4+1)-in/8, in/16)
	}
	if g.timer == nil {
		g.timer = time.AfterFunc(in, g.timeout)
	} else {
		g.timer.Reset(in)
	}
}

// onBeat puts off what is due after in to the next beat.
func (d *Dispatcher) onBeat(now time.Time, in, beat time.Duration) time.Duration {
	return in + beat - (now.Sub(d.began)+in)%max(beat, 1)
}

func (g *group) timeout() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	switch {
	case g.sub == nil:
	case !g.lingers:
		g.look()
	case g.parked.Len() == 0 && g.flying == 0:
		g.forget()
		g.rest()
	}
}

// rest notices that nobody waits any more, and forgets a group without requests.
func (g *group) rest() {
	switch {
	case g.parked.Len() > 0 || g.flying > 0:
	case g.sub != nil:
		if !g.lingers {
			g.plan()
		}
	case g.fresh.Len() == 0 && !g.ready:
		if g.d.groups[g.key] == g {
			delete(g.d.groups, g.key)
		}
	}
}

func (g *group) forget() {
	if g.sub != nil {
		g.sub.Close()
		g.timer.Stop()
		g.sub = nil
	}
}

// wake is called by the listener.
func (g *group) wake() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	if g.later {
		return
	}
	if g.vain > fruitless {
		// Commits that are not for those who wait here (a paused queue, other tenants' jobs, jobs that
		// another server was faster to take) must not keep it looking without pause.
		pause := min(time.Millisecond<<min(g.vain-fruitless-1, 10), slowestLook)
		if left := time.Until(g.lookedAt.Add(pause)); left > 0 {
			g.later = true
			time.AfterFunc(left, func() {
				g.d.mu.Lock()
				defer g.d.mu.Unlock()
				g.later = false
				g.look()
			})
			return
		}
	}
	g.look()
}

// look has the next decision look for those who wait, too.
func (g *group) look() {
	g.woken = true
	g.d.due(g)
	if g.sub != nil && g.parked.Len() > 0 {
		g.plan()
	}
}

// --- decisions ---

// slots are where decisions are taken: one for all that are plain, so that they are taken together, and others for what is
// likely to be refused, so that nobody shares a transaction with it or waits for it.
type slots struct {
	groups      int // in one decision
	taken, most int
	ready       []*group // with requests that are due a look, in turn
}

// part is one group's share of a decision.
type part struct {
	g        *group
	requests []*request
	asked    int
	woken    bool   // the parked ones are looked at, too
	left     bool   // some of them had no room
	until    uint64 // the last arrival before the decision
	rouses   uint64 // before the decision

	handed
	err  error
	each []outcome // instead of jobs and err, where requests were decided one by one
}

// handed is what a call of ojs.fetch_many returned.
type handed struct {
	jobs    []sqlcgen.OjsJob
	counts  []int    // how many of them, in order, each request got
	resting []string // workers that are to get no jobs
	cut     bool     // the call stopped early: there may be more
}

type outcome struct {
	jobs []sqlcgen.OjsJob
	err  error
}

func (d *Dispatcher) decide(s *slots) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(s.ready) > 0 {
		parts := d.take(s)
		d.mu.Unlock()
		d.ask(parts)
		d.mu.Lock()
		for _, p := range parts {
			d.handOut(p)
		}
	}
	s.taken--
	d.idle.Broadcast()
}

// take chooses what the next decision is about. Groups take turns.
func (d *Dispatcher) take(s *slots) (parts []*part) {
	room := d.opts.Jobs
	for len(s.ready) > 0 && len(parts) < s.groups {
		g := s.ready[0]
		p := &part{g: g, woken: g.woken, until: d.arrivals, rouses: d.rouses}
		full := false
		for _, l := range [...]*list.List{&g.parked, &g.roused, &g.fresh} {
			for l.Len() > 0 && !full && (l != &g.parked || g.woken) {
				r := l.Front().Value.(*request)
				if full = r.Count > room && len(parts)+len(p.requests) > 0; !full {
					r.leave()
					p.requests = append(p.requests, r)
					p.asked += r.Count
					room -= r.Count
				}
			}
		}
		if full && len(p.requests) == 0 {
			break // its turn is the next decision
		}
		s.ready = s.ready[1:]
		g.ready = false
		p.left = g.woken && g.parked.Len() > 0
		g.woken = false
		if len(p.requests) > 0 {
			if p.woken {
				if time.Since(g.lookedAt) > rare {
					g.vain = 0
				}
				g.lookedAt = time.Now()
			}
			g.flying++
			parts = append(parts, p)
		} else {
			g.rest()
		}
		if full {
			break
		}
	}
	return parts
}

// ask carries a decision out. An error is everybody's, unless one request alone may have caused it.
func (d *Dispatcher) ask(parts []*part) {
	if len(parts) == 0 {
		return
	}
	err := safely(d.opts.Query, func(ctx context.Context) error { return d.fetchMany(ctx, parts) })
	switch {
	case err == nil:
	case oneOfThem(err) && len(parts) > 1:
		for _, p := range parts {
			d.ask([]*part{p})
		}
	case oneOfThem(err) && len(parts[0].requests) > 1:
		p := parts[0]
		for _, r := range p.requests {
			one := &part{g: p.g, requests: []*request{r}, asked: r.Count}
			d.ask([]*part{one})
			p.each = append(p.each, outcome{one.jobs, one.err})
			p.resting = append(p.resting, one.resting...)
		}
	default:
		for _, p := range parts {
			p.handed, p.err = handed{}, fmt.Errorf("fetch: %w", d.db.Err(err))
		}
	}
}

const fetchMany = "select request, " + jobColumns + " from ojs.fetch_many($1, $2, $3, $4, $5)"

// fetchMany decides for several groups in one transaction. Nobody gets a job before it has committed.
func (d *Dispatcher) fetchMany(ctx context.Context, parts []*part) error {
	d.statements.Add(int64(len(parts)))
	if d.opts.Canned != nil {
		for _, p := range parts {
			p.handed = handed{jobs: d.opts.Canned(p.asked), counts: make([]int, len(p.requests))}
			left := len(p.jobs)
			for i, r := range p.requests {
				p.counts[i] = min(r.Count, left)
				left -= p.counts[i]
			}
		}
		return nil
	}
	if len(parts) == 1 {
		rows, err := d.db.Pool().Query(ctx, fetchMany, parts[0].arguments()...)
		if err != nil {
			return err
		}
		parts[0].handed, err = readHanded(rows, len(parts[0].requests), parts[0].asked)
		return err
	}
	batch := &pgx.Batch{}
	for _, p := range parts {
		batch.Queue(fetchMany, p.arguments()...)
	}
	results := d.db.Pool().SendBatch(ctx, batch)
	for _, p := range parts {
		rows, err := results.Query()
		if err == nil {
			p.handed, err = readHanded(rows, len(p.requests), p.asked)
		}
		if err != nil {
			_ = results.Close() // the same error
			return err
		}
	}
	return results.Close()
}

func (p *part) arguments() []any {
	n := len(p.requests)
	counts, timeouts := make([]int32, n), make([]int32, n)
	workers := make([]string, n)
	for i, r := range p.requests {
		counts[i], workers[i], timeouts[i] = int32(r.Count), r.WorkerID, int32(r.VisibilityTimeoutMs)
	}
	return []any{p.g.queues, counts, workers, timeouts, p.g.tenant}
}

// handOut answers the requests of a part in the order in which they arrived.
func (d *Dispatcher) handOut(p *part) {
	g, jobs, got := p.g, p.jobs, 0
	var back []sqlcgen.OjsJob
	var empty []*request
	for i, r := range p.requests {
		o, rests := outcome{err: p.err}, slices.Contains(p.resting, r.WorkerID)
		switch {
		case p.each != nil:
			o = p.each[i]
		case rests:
			p.asked -= r.Count
		case p.err == nil:
			n := p.counts[i]
			o.jobs, jobs = jobs[:n:n], jobs[n:]
		}
		got += len(o.jobs)
		switch {
		case r.gone:
			back = append(back, o.jobs...)
		case len(o.jobs) > 0 || o.err != nil:
			g.answer(r, o.jobs, o.err)
		case rests:
			d.putToRest(r, p.rouses)
		default:
			empty = append(empty, r)
		}
	}
	if len(back) > 0 {
		d.giving++
		go func() {
			d.GiveBack(back)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.giving--
			d.idle.Broadcast()
		}()
	}
	for i := range empty {
		if p.cut {
			// Nobody has looked for them yet.
			empty[i].queue(&g.roused, false)
		} else if p.woken {
			// They were in front of those who are parked, and are again.
			g.park(empty[len(empty)-1-i], true)
		} else {
			g.park(empty[i], false)
		}
	}
	switch {
	case got > 0:
		g.vain = 0
	case p.woken:
		g.vain++
	}
	if got < p.asked && p.err == nil && p.each == nil && !p.cut {
		// Nothing more was there when the decision began, so there is nothing for those it had no room for.
		for e := g.fresh.Front(); e != nil && e.Value.(*request).arrived <= p.until; e = g.fresh.Front() {
			g.park(e.Value.(*request), false)
		}
	} else if p.left {
		g.woken = true
	}
	g.flying--
	d.due(g)
	g.rest()
}
