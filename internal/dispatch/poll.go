package dispatch

import (
	"container/list"
	"math/rand/v2"
	"time"
)

const (
	// Polls that commits called for and that found nothing: so many in a row follow each other at once, then they are spaced, up to
	// maxPollInterval.
	maxEmptyPolls   = 4
	maxPollInterval = 64 * time.Millisecond
	// A poll after such a pause forgets the empty ones before it.
	emptyPollsKept = time.Second
	// The interval between polls while commits do not notify this server.
	unnotifiedInterval = 2 * time.Second
	// Notifications with this payload say that a quiet worker may work again.
	awakeToken = "awake"
)

// All methods here need Dispatcher.mu, but for those that timers and the Listener call: wake, delayedPoll, timerFired, requeueQuiet,
// requeueFull; and attemptsEnded.

// wait puts a request that found nothing among the waiting ones: in front of the others, or behind
// them.
func (g *group) wait(r *request, front bool) {
	if r.over || r.Wait <= 0 || g.d.draining {
		g.answer(r, nil, nil)
		return
	}
	r.leave()
	r.enter(&g.waiting, front)
	if g.sub == nil {
		var registered bool
		g.sub, registered = g.d.listener.Subscribe(g.queues, g.wake)
		g.lingering = true
		if registered {
			// A commit since the decision notified others only.
			g.pollSoon()
		}
	}
	if g.lingering {
		g.setTimer()
	}
}

// wake is called by the Listener when a poll may find a job.
func (g *group) wake() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	g.pollSoon()
}

// pollSoon polls now, or after a pause if too many polls in a row found nothing. Commits that bring
// nothing for the requests here (a paused queue, another tenant's jobs, jobs that another server
// took) must not make the group poll without pause.
func (g *group) pollSoon() {
	if g.delayed != nil {
		return
	}
	if g.emptyPolls > maxEmptyPolls {
		pause := min(time.Millisecond<<min(g.emptyPolls-maxEmptyPolls-1, 10), maxPollInterval)
		if left := time.Until(g.polledAt.Add(pause)); left > 0 {
			g.delayed = time.AfterFunc(left, g.delayedPoll)
			return
		}
	}
	g.poll()
}

func (g *group) delayedPoll() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	g.delayed = nil
	g.poll()
}

// poll makes the next decision include the requests that wait.
func (g *group) poll() {
	g.pollDue = true
	g.d.lineUp(g)
	if g.sub != nil && g.waiting.Len() > 0 {
		g.setTimer()
	}
}

// setTimer sets the timer for the next poll that no commit calls for. If no request waits, it is
// set for the end of the subscription.
func (g *group) setTimer() {
	in := g.d.opts.Linger
	g.lingering = g.waiting.Len() == 0
	if !g.lingering {
		in = g.d.opts.Fallback
		if !g.sub.Notified() {
			in = min(in, unnotifiedInterval)
		}
		// At random, so that groups that began together do not all poll together, and then on a beat, so that some share a decision.
		in = g.d.onBeat(time.Now(), in+rand.N(in/4+1)-in/8, in/16)
	}
	if g.timer == nil {
		g.timer = time.AfterFunc(in, g.timerFired)
	} else {
		g.timer.Reset(in)
	}
}

// onBeat returns how long to wait for what is due after in: until the next multiple of beat since
// the start, so that many timers fire together.
func (d *Dispatcher) onBeat(now time.Time, in, beat time.Duration) time.Duration {
	return in + beat - (now.Sub(d.began)+in)%max(beat, 1)
}

func (g *group) timerFired() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	switch {
	case g.sub == nil:
	case g.waiting.Len() > 0:
		g.poll()
	case g.deciding == 0:
		g.unsubscribe()
		g.tidy()
	default:
		// The requests are being decided. Without a timer, one that comes back would wait for a commit alone; if none does, nobody would
		// end the subscription.
		g.setTimer()
	}
}

func (g *group) unsubscribe() {
	if g.sub != nil {
		g.sub.Close()
		g.timer.Stop()
		g.sub = nil
	}
	if g.delayed != nil {
		g.delayed.Stop()
		g.delayed = nil
	}
}

// putQuiet makes a request wait whose worker is to get no jobs. It waits apart from its group, so
// that it takes no other request's place. requeues is how often requeueQuiet had run when the
// decision began.
func (d *Dispatcher) putQuiet(r *request, requeues uint64) {
	switch {
	case r.over || r.Wait <= 0 || d.draining:
		r.group.answer(r, nil, nil)
	case requeues != d.requeues:
		// A worker was told to work again while the decision was in flight, and it may be this one.
		r.enter(&r.group.requeued, false)
	default:
		r.enter(&d.quiet, false)
	}
}

// putFull makes a request wait whose worker is at its concurrency. It waits apart from its group,
// so that it takes no other request's place. ended is the value of Dispatcher.ended before the
// decision.
func (d *Dispatcher) putFull(r *request, ended uint64) {
	if r.over || r.Wait <= 0 || d.draining {
		r.group.answer(r, nil, nil)
		return
	}
	r.enter(&d.full, false)
	if d.full.Len() == 1 {
		d.setFullTimer(d.opts.Recheck)
	}
	d.anyFull.Store(true)
	if ended != d.ended.Load() {
		// It may have been an attempt of this worker, which the decision did not see.
		d.setFullTimer(maxPollInterval)
	}
}

func (d *Dispatcher) setFullTimer(in time.Duration) {
	if d.fullTimer == nil {
		d.fullTimer = time.AfterFunc(in, d.requeueFull)
	} else {
		d.fullTimer.Reset(in)
	}
}

// attemptsEnded is called when a statement has ended attempts: workers that were at their
// concurrency may take jobs again.
func (d *Dispatcher) attemptsEnded() {
	d.ended.Add(1)
	if !d.anyFull.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full.Len() > 0 {
		d.setFullTimer(max(0, time.Until(d.fullAt.Add(maxPollInterval))))
	}
}

// requeueFull queues the requests of workers that were at their concurrency again: soon after this
// server has ended attempts, and after an interval, because attempts also end at other servers.
func (d *Dispatcher) requeueFull() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return
	}
	d.fullAt = time.Now()
	d.anyFull.Store(false)
	d.requeue(&d.full)
}

// requeueQuiet queues the requests of quiet workers again, before new requests, which might take
// all jobs. The next decision checks whether the workers may work again. quietTimer calls it at the
// fallback interval, and soon after a notification that a worker was told to work again.
func (d *Dispatcher) requeueQuiet() {
	in := d.opts.Fallback
	if d.listener.Backend() == 0 {
		in = min(in, unnotifiedInterval)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return
	}
	// Notifications that come all the time must not fill everybody's decisions with quiet requests.
	if left := time.Until(d.requeuedAt.Add(maxPollInterval)); left > 0 {
		d.quietTimer.Reset(left)
		return
	}
	// Set before the requests move: a notification from now on is for the next time.
	d.quietTimer.Reset(in)
	d.requeuedAt = time.Now()
	d.requeues++
	d.requeue(&d.quiet)
}

func (d *Dispatcher) requeue(l *list.List) {
	for e := l.Front(); e != nil; e = l.Front() {
		r := e.Value.(*request)
		r.leave()
		r.group = d.groupOf(&r.Fetch)
		r.enter(&r.group.requeued, false)
		d.lineUp(r.group)
	}
}
