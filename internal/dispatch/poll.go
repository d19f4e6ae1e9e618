package dispatch

import (
	"container/list"
	"math/rand/v2"
	"time"
)

const (
	// maxEmptyPolls is the number of empty polls in a row after which the next commit still causes a
	// poll at once. Polls after more of them are spaced by pauses that double up to maxPollInterval.
	maxEmptyPolls   = 4
	maxPollInterval = 64 * time.Millisecond
	// emptyPollsKept is the pause between two polls after which the count of empty polls starts at 0.
	emptyPollsKept = time.Second
	// unnotifiedInterval is the interval between polls while commits do not notify this server: it has no
	// connection that listens, or PostgreSQL's NOTIFY queue is more than half full.
	unnotifiedInterval = 2 * time.Second
	// awakeToken is the payload of a notification that a quiet worker may work again.
	awakeToken = "awake"
)

// The caller of a method in this file holds Dispatcher.mu. The exceptions lock it themselves: wake
// (called by the Listener), delayedPoll, timerFired, requeueQuiet and requeueFull (called by timers,
// each in a goroutine of its own), and attemptsEnded (called by Settle). onBeat needs no lock.

// wait makes a request that got no job wait in its group: in front of the requests that wait there
// already, or behind them. It subscribes the group to its queues if the group has no subscription.
// A request that may not wait is answered without jobs: its caller did not ask to wait, its time is
// over, or the server stops.
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
			// The queues were registered for other groups already, so nothing calls wake for the start of this
			// subscription. A commit since the decision woke only those groups: look once for its jobs.
			g.pollSoon()
		}
	}
	if g.lingering {
		// The timer is set for the end of the subscription. It has to be set for a poll from now on.
		g.setTimer()
	}
}

// wake polls because a commit may have brought a job. The Listener calls it without its own locks,
// perhaps once more after the subscription is closed, which costs at most a needless poll.
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
		return // the delayed poll will see the jobs of this commit, too
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

// delayedPoll makes the poll that pollSoon has put off. A timer calls it.
func (g *group) delayedPoll() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	g.delayed = nil
	g.poll()
}

// poll makes the next decision include the requests that wait, and sets the timer anew: the next
// fallback poll is due one interval after this poll, whatever caused this one.
func (g *group) poll() {
	g.pollDue = true
	g.d.lineUp(g)
	if g.sub != nil && g.waiting.Len() > 0 {
		g.setTimer()
	}
}

// setTimer sets the timer for the next poll that no commit calls for. If no request waits, it sets
// the timer for the end of the subscription. g.sub must not be nil if a request waits.
func (g *group) setTimer() {
	in := g.d.opts.Linger
	g.lingering = g.waiting.Len() == 0
	if !g.lingering {
		in = g.d.opts.Fallback
		if !g.sub.Notified() {
			in = min(in, unnotifiedInterval)
		}
		// The random part spreads the polls of groups that began together. Rounding to a sixteenth of the
		// interval brings some of them together again, so that they share a decision.
		in = g.d.onBeat(time.Now(), in+rand.N(in/4+1)-in/8, in/16)
	}
	if g.timer == nil {
		g.timer = time.AfterFunc(in, g.timerFired)
	} else {
		g.timer.Reset(in)
	}
}

// onBeat returns in, extended to the next multiple of beat since the Dispatcher began, so that
// timers with different times fire together.
func (d *Dispatcher) onBeat(now time.Time, in, beat time.Duration) time.Duration {
	return in + beat - (now.Sub(d.began)+in)%max(beat, 1)
}

// timerFired makes the fallback poll, or ends the subscription of a group without waiting requests.
func (g *group) timerFired() {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	switch {
	case g.sub == nil: // the timer fired while unsubscribe held the lock
	case g.waiting.Len() > 0:
		g.poll()
	case g.deciding == 0:
		g.unsubscribe()
		g.tidy()
	default:
		// A decision has the group's requests. Set the timer again: a request that comes back from the
		// decision needs its fallback poll, and if no request comes back, the timer ends the subscription.
		g.setTimer()
	}
}

// unsubscribe ends the group's subscription, and stops its timers. It does nothing if there are none.
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

// putQuiet makes a request wait whose worker is to get no jobs. The request waits in
// Dispatcher.quiet, outside its group, so that polls of the group do not decide it each time.
// requeues is the value of Dispatcher.requeues when the decision began.
func (d *Dispatcher) putQuiet(r *request, requeues uint64) {
	switch {
	case r.over || r.Wait <= 0 || d.draining:
		r.group.answer(r, nil, nil)
	case requeues != d.requeues:
		// requeueQuiet ran while the decision was in flight, because a worker may work again. It may be the
		// worker of this request, which was in no list then: decide it again. handOut calls lineUp.
		r.enter(&r.group.requeued, false)
	default:
		r.enter(&d.quiet, false)
	}
}

// putFull makes a request wait whose worker is at its concurrency. The request waits in
// Dispatcher.full, outside its group, so that polls of the group do not decide it each time. ended
// is the value of Dispatcher.ended when the decision began.
func (d *Dispatcher) putFull(r *request, ended uint64) {
	if r.over || r.Wait <= 0 || d.draining {
		r.group.answer(r, nil, nil)
		return
	}
	r.enter(&d.full, false)
	if d.full.Len() == 1 {
		d.setFullTimer(d.opts.Recheck)
	}
	// Stored before ended is read. attemptsEnded counts in ended before it reads anyFull, so that of a
	// settlement at this moment at least one of the two knows, and sets the timer.
	d.anyFull.Store(true)
	if ended != d.ended.Load() {
		// An attempt ended after the decision began. It may be one of this worker, which can take a job now.
		d.setFullTimer(maxPollInterval)
	}
}

// setFullTimer makes requeueFull run after in, instead of at the time set before.
func (d *Dispatcher) setFullTimer(in time.Duration) {
	if d.fullTimer == nil {
		d.fullTimer = time.AfterFunc(in, d.requeueFull)
	} else {
		d.fullTimer.Reset(in)
	}
}

// attemptsEnded makes requeueFull run soon, because workers that were at their concurrency may take
// jobs again. Settle calls it at its end, so every ACK passes here: it takes the lock only if a request
// may be in Dispatcher.full.
func (d *Dispatcher) attemptsEnded() {
	d.ended.Add(1)
	if !d.anyFull.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full.Len() > 0 {
		// At most one run every 64 ms: ACKs that come all the time must not have the requests decided all the time.
		d.setFullTimer(max(0, time.Until(d.fullAt.Add(maxPollInterval))))
	}
}

// requeueFull queues the requests of workers that were at their concurrency for another decision.
// fullTimer calls it soon after this server has ended attempts, and else after Options.Recheck,
// because attempts also end at other servers. It does not set the timer again: putFull does, when a
// request comes back.
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
	if !d.listener.Notified() {
		in = min(in, unnotifiedInterval)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return
	}
	// Without this pause, notifications that come all the time would fill decisions with quiet requests.
	if left := time.Until(d.requeuedAt.Add(maxPollInterval)); left > 0 {
		d.quietTimer.Reset(left)
		return
	}
	// Set before the requests move: a notification from now on sets the timer to 0 again, and causes another run.
	d.quietTimer.Reset(in)
	d.requeuedAt = time.Now()
	d.requeues++ // tells putQuiet that a decision under way has missed this run
	d.requeue(&d.quiet)
}

// requeue moves all requests of a list to their groups and queues these for a decision.
func (d *Dispatcher) requeue(l *list.List) {
	for e := l.Front(); e != nil; e = l.Front() {
		r := e.Value.(*request)
		r.leave()
		r.group = d.groupOf(&r.Fetch) // the group may have been removed while the request was outside it
		r.enter(&r.group.requeued, false)
		d.lineUp(r.group)
	}
}
