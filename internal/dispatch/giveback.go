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

// giveBacks is the list of jobs to give back. One goroutine sends them, so that only one statement
// runs at a time, however many clients leave while the database is away. Its lock is a leaf:
// nothing else is locked under it.
type giveBacks struct {
	d        *Dispatcher
	more     chan struct{} // jobs were added
	stopping chan struct{}

	mu      sync.Mutex
	idle    sync.Cond
	jobs    []heldJob
	dropped int  // since the list was empty last
	running bool // the goroutine
	stopped bool // the goroutine has ended and does not start again
}

// heldJob identifies a job that its client never got. Its arguments are not kept.
type heldJob struct {
	id, lease string
	until     time.Time // its lease has ended by then

	// Of a job that somebody had locked.
	pause     time.Duration
	notBefore time.Time // when it is tried again
	last      bool      // the server stops, and the next try is the last one
}

func newGiveBacks(d *Dispatcher) *giveBacks {
	b := &giveBacks{d: d, more: make(chan struct{}, 1), stopping: make(chan struct{})}
	b.idle.L = &b.mu
	return b
}

func (b *giveBacks) add(jobs []sqlcgen.OjsJob) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range jobs {
		j := &jobs[i]
		switch {
		case j.Lease == nil || j.LeaseExpiresAt == nil || j.StartedAt == nil:
		case b.stopped || len(b.jobs) >= b.d.opts.GiveBacks:
			b.dropped++
		default:
			// The length of the lease from now on: the clocks of server and database may differ.
			b.jobs = append(b.jobs, heldJob{id: j.ID, lease: *j.Lease, until: now.Add(j.LeaseExpiresAt.Sub(*j.StartedAt))})
		}
	}
	switch {
	case b.stopped && b.dropped > 0:
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

// stop returns when each job is given back or given up. While the server stops, an error gives up
// all that are left, after one try that began later than stop. A job that is locked is tried twice.
func (b *giveBacks) stop() {
	close(b.stopping)
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.running {
		b.idle.Wait()
	}
	b.stopped = true
}

// run gives jobs back until none is left. It logs a failure when it begins and when it is over,
// with the number of jobs.
func (b *giveBacks) run() {
	pause, failing := firstGiveBackPause, false
	done, lost := 0, 0 // those that nobody held any more are done, too
	for {
		stopping := b.isStopping()
		due := b.take(stopping)
		lost += due.lapsed
		switch {
		case due.none:
			b.report(failing, done, lost+due.dropped)
			return
		case len(due.jobs) == 0: // somebody has all of them locked
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
		b.sleep(pause, stopping, nil) // the database is away for jobs that come meanwhile, too
		pause = min(2*pause, maxGiveBackPause)
	}
}

// sleep waits for a pause, or until more is signalled or the server begins to stop.
func (b *giveBacks) sleep(pause time.Duration, stopping bool, more <-chan struct{}) {
	begins := b.stopping
	if stopping {
		begins = nil
	}
	select {
	case <-time.After(pause):
	case <-more:
	case <-begins:
	}
}

func (b *giveBacks) isStopping() bool {
	select {
	case <-b.stopping:
		return true
	default:
		return false
	}
}

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

func (b *giveBacks) giveUp(jobs int, err error) {
	b.d.log.Warn("jobs could not be given back before the server stopped; they come back when their leases end",
		"jobs", jobs, "error", err)
}

// dueJobs are the jobs of one statement.
type dueJobs struct {
	jobs    []heldJob
	next    time.Time // when one is due, if none is now
	lapsed  int       // jobs whose leases have ended, which are forgotten
	none    bool      // no jobs are left, and the goroutine ends
	dropped int       // since the list was empty last, if none are left
}

// take removes the jobs that are due from the list. When the server stops, locked jobs are due at
// once.
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
// them.
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
