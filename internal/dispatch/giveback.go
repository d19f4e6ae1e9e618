package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	giveBackItems      = 1000 // jobs in one statement
	firstGiveBackPause = 100 * time.Millisecond
	maxGiveBackPause   = 5 * time.Second
)

// GiveBack makes jobs available again whose answer did not reach the client; the attempt does not
// count. It returns at once. While the database is unreachable it tries again until the leases have
// ended. Options.GiveBacks bounds how many jobs are remembered; jobs beyond that, and jobs that
// come after Run has returned, wait for the end of their leases. A job that is no longer held is
// skipped.
func (d *Dispatcher) GiveBack(jobs []sqlcgen.OjsJob) { d.back.add(jobs) }

// giveBacks is the list of jobs to give back. One goroutine (run) sends them, so that only one
// statement runs at a time, however many clients leave while the database is away. add starts the
// goroutine when jobs come; it ends when the list is empty, and stop waits for that. mu guards the
// fields below it. It is a leaf: add may be called while Dispatcher.mu is held, nothing else is
// locked while mu is held, and no statement runs under it.
type giveBacks struct {
	d        *Dispatcher
	more     chan struct{} // add signals new jobs to run; holds one value, so that add never blocks
	stopping chan struct{} // closed when the server stops

	mu      sync.Mutex
	idle    sync.Cond // the goroutine has ended
	jobs    []heldJob // not in a statement at the moment
	dropped int       // jobs refused because the list was full, since it was empty last
	running bool      // the goroutine
	stopped bool      // the goroutine has ended and does not start again
}

// heldJob identifies a job that its client never got. Its arguments are not kept, so that a long
// list needs little memory.
type heldJob struct {
	id, lease string
	until     time.Time // its lease has ended by then: PostgreSQL gives the job back by itself

	// Set after another transaction had the job locked.
	pause     time.Duration // before the next try; it doubles with each
	notBefore time.Time     // when it is tried again
	last      bool          // the server stops, and the next try is the last one
}

func newGiveBacks(d *Dispatcher) *giveBacks {
	b := &giveBacks{d: d, more: make(chan struct{}, 1), stopping: make(chan struct{})}
	b.idle.L = &b.mu
	return b
}

// add appends jobs to the list, and starts the goroutine or tells it. Jobs that do not fit are
// counted and otherwise forgotten. The caller may hold Dispatcher.mu.
func (b *giveBacks) add(jobs []sqlcgen.OjsJob) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.Lease == nil || j.LeaseExpiresAt == nil || j.StartedAt == nil: // not leased: nothing to give back
		case b.stopped || len(b.jobs) >= b.d.opts.GiveBacks:
			b.dropped++
		default:
			// The length of the lease, counted from now: the clocks of server and database may differ.
			b.jobs = append(b.jobs, heldJob{id: j.ID, lease: *j.Lease, until: now.Add(j.LeaseExpiresAt.Sub(*j.StartedAt))})
		}
	}
	switch {
	case b.stopped && b.dropped > 0:
		// The goroutine, which else reports what was dropped, has ended.
		b.giveUp(b.dropped, errStopped)
		b.dropped = 0
	case b.running:
		select {
		case b.more <- struct{}{}:
		default:
		}
	case len(b.jobs) > 0:
		b.running = true
		go b.run()
	}
}

// stop returns when each job is given back or given up, and the goroutine has ended. Each job left
// gets one try that begins after the call of stop, and a locked job a second one. An error of such a
// try gives up all jobs that are left. It may be called once.
func (b *giveBacks) stop() {
	close(b.stopping)
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.running {
		b.idle.Wait()
	}
	b.stopped = true
}

// run gives jobs back until the list is empty. It logs one line when a failure begins and one when
// the list is empty again, with the number of jobs. It is the goroutine that add starts.
func (b *giveBacks) run() {
	pause, failing := firstGiveBackPause, false
	done, lost := 0, 0 // done counts jobs that were not held any more, too
	for {
		// Read before take. A stop that comes later gives the jobs of this statement another try.
		stopping := b.isStopping()
		due := b.take(stopping)
		lost += due.lapsed
		switch {
		case due.none:
			b.report(failing, done, lost+due.dropped)
			return
		case len(due.jobs) == 0: // all of them were locked at their last try
			b.sleep(time.Until(due.next), stopping, b.more)
			continue
		}
		locked, err := b.send(due.jobs)
		if err == nil {
			done += len(due.jobs) - len(locked)
			pause = firstGiveBackPause
			b.later(locked, stopping)
			continue
		}
		waiting := b.putBack(due.jobs)
		switch {
		case stopping:
			b.giveUp(b.clear(), err)
			continue
		case !failing:
			failing = true
			b.d.log.Warn("jobs whose clients left could not be given back; they are tried again until their leases end",
				"jobs", waiting, "error", err)
		}
		b.sleep(pause, stopping, nil) // new jobs do not end the pause: the database is away for them, too
		pause = min(2*pause, maxGiveBackPause)
	}
}

// sleep waits for a pause, or until more is signalled or the server begins to stop. stopping says
// that it has begun already. A nil channel never signals.
func (b *giveBacks) sleep(pause time.Duration, stopping bool, more <-chan struct{}) {
	begins := b.stopping
	if stopping {
		begins = nil // closed: it would end every pause at once
	}
	select {
	case <-time.After(pause):
	case <-more:
	case <-begins:
	}
}

// isStopping reports whether stop has been called.
func (b *giveBacks) isStopping() bool {
	select {
	case <-b.stopping:
		return true
	default:
		return false
	}
}

// report logs the end of a failure, or that jobs were lost. It logs nothing if all went well.
func (b *giveBacks) report(failed bool, done, lost int) {
	switch {
	case lost > 0:
		b.d.log.Warn("jobs come back when their leases end, because they could not be given back before",
			"jobs", lost, "not_held_any_more", done)
	case failed:
		b.d.log.Info("jobs whose clients left are not held any more", "jobs", done)
	}
}

var (
	errLocked  = errors.New("another transaction has them locked")
	errStopped = errors.New("their client left too late")
)

// giveUp logs that jobs stay leased to clients that never got them, because the server stops.
func (b *giveBacks) giveUp(jobs int, err error) {
	b.d.log.Warn("jobs could not be given back before the server stopped; they come back when their leases end",
		"jobs", jobs, "error", err)
}

// dueJobs holds the jobs of one statement, and what take found out about the list.
type dueJobs struct {
	jobs    []heldJob
	next    time.Time // when the first of the jobs left in the list is due
	lapsed  int       // jobs whose leases have ended, which take forgot
	none    bool      // the list is empty, and the goroutine has to end
	dropped int       // with none: jobs refused since the list was empty last
}

// take removes the jobs that are due from the list, at most giveBackItems. When the server stops,
// locked jobs are due at once. If the list is empty, take marks the goroutine as ended under the
// same hold of the lock: a job that add appends later starts another goroutine.
func (b *giveBacks) take(stopping bool) (due dueJobs) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = slices.DeleteFunc(b.jobs, func(j heldJob) bool {
		switch {
		case now.After(j.until):
			due.lapsed++
			return true
		case len(due.jobs) < giveBackItems && (!j.notBefore.After(now) || stopping && !j.last):
			due.jobs = append(due.jobs, j)
			return true
		case due.next.IsZero() || j.notBefore.Before(due.next):
			due.next = j.notBefore
		}
		return false
	})
	if due.none = len(due.jobs)+len(b.jobs) == 0; due.none {
		due.dropped, b.dropped, b.jobs, b.running = b.dropped, 0, nil, false
		b.idle.Broadcast()
	}
	return due
}

// later puts locked jobs back on the list, each with its own pause, so that no other job waits for
// them. When the server stops, a job is put back once; a job that is locked at that last try is
// given up.
func (b *giveBacks) later(locked []heldJob, stopping bool) {
	now, again := time.Now(), locked[:0]
	for _, j := range locked {
		if j.last {
			continue
		}
		j.pause = min(max(2*j.pause, firstGiveBackPause), maxGiveBackPause)
		if j.last = stopping; stopping {
			j.pause = firstGiveBackPause
		}
		j.notBefore = now.Add(j.pause)
		again = append(again, j)
	}
	if lost := len(locked) - len(again); lost > 0 {
		b.giveUp(lost, errLocked)
	}
	b.putBack(again)
}

// putBack appends jobs to the list and returns its length.
func (b *giveBacks) putBack(jobs []heldJob) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = append(b.jobs, jobs...)
	return len(b.jobs)
}

// clear empties the list and returns the number of jobs that were on it.
func (b *giveBacks) clear() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = len(b.jobs)
	b.jobs = nil
	return n
}

// send gives jobs back in one statement, and returns the jobs that another transaction has locked.
func (b *giveBacks) send(jobs []heldJob) (locked []heldJob, err error) {
	ids, leases := make([]string, len(jobs)), make([]string, len(jobs))
	for i, j := range jobs {
		ids[i], leases[i] = j.id, j.lease
	}
	var left []string
	err = pg.WithRetry(b.d.opts.Query, func(ctx context.Context) (err error) {
		left, err = b.d.send.release(ctx, ids, leases)
		return err
	})
	if len(left) > 0 {
		locked = slices.DeleteFunc(slices.Clone(jobs), func(j heldJob) bool { return !slices.Contains(left, j.id) })
	}
	return locked, err
}
