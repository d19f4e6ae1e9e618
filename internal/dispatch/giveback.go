package dispatch

import (
	"context"
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

// GiveBack makes jobs available again whose answer did not reach the client; the attempt does not count. It returns at once. While the
// database cannot be reached, jobs are tried again until their leases have ended; Options.GiveBacks bounds how many are remembered, and
// jobs beyond wait for the end of their leases. A job that is not held any more is passed over.
func (d *Dispatcher) GiveBack(jobs []sqlcgen.OjsJob) { d.back.add(jobs) }

// giveBacks are jobs to be given back. One goroutine sends them, so that however many clients leave while the database is away, there is
// one statement at a time. Its lock is a leaf.
type giveBacks struct {
	d *Dispatcher

	mu       sync.Mutex
	idle     sync.Cond
	jobs     []heldJob
	dropped  int  // since the list was empty last
	running  bool // the goroutine
	stopping chan struct{}
}

// heldJob is a job that its client never got. Its arguments are not kept.
type heldJob struct {
	id, lease string
	until     time.Time // its lease has ended by then
}

func newGiveBacks(d *Dispatcher) *giveBacks {
	b := &giveBacks{d: d, stopping: make(chan struct{})}
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
		case len(b.jobs) >= b.d.opts.GiveBacks:
			b.dropped++
		default:
			// The length of the lease from now on: the clocks of server and database may differ.
			b.jobs = append(b.jobs, heldJob{j.ID, *j.Lease, now.Add(j.LeaseExpiresAt.Sub(*j.StartedAt))})
		}
	}
	if len(b.jobs) > 0 && !b.running {
		b.running = true
		go b.run()
	}
}

// stop returns when all jobs are given back, or one more try has failed.
func (b *giveBacks) stop() {
	close(b.stopping)
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.running {
		b.idle.Wait()
	}
}

// run gives jobs back until none are left. A failure is logged when it begins and when it is over, with the number of jobs.
func (b *giveBacks) run() {
	pause, failing, last := firstGiveBackPause, false, false
	given, expired := 0, 0
	for {
		jobs, lapsed := b.take()
		expired += lapsed
		if len(jobs) == 0 {
			if dropped, done := b.finish(); done {
				b.report(failing, given, expired, dropped)
				return
			}
			continue
		}
		locked, err := b.send(jobs)
		if err != nil {
			locked = jobs
		}
		given += len(jobs) - len(locked)
		waiting := b.putBack(locked)
		switch {
		case len(locked) == 0:
			pause = firstGiveBackPause
			continue
		case last:
			b.d.log.Warn("jobs could not be given back before the server stopped; they come back when their leases end",
				"jobs", b.clear(), "error", err)
			continue
		case err != nil && !failing:
			failing = true
			b.d.log.Warn("jobs whose clients left could not be given back; they are tried again until their leases end",
				"jobs", waiting, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-b.stopping:
			last = true
		}
		pause = min(2*pause, maxGiveBackPause)
	}
}

func (b *giveBacks) report(failed bool, given, expired, dropped int) {
	switch {
	case expired+dropped > 0:
		b.d.log.Warn("jobs come back when their leases end, because they could not be given back before",
			"jobs", expired+dropped, "given_back", given)
	case failed:
		b.d.log.Info("jobs whose clients left are given back", "jobs", given)
	}
}

// take takes jobs for one statement off the list. Jobs whose leases have ended are forgotten; lapsed is how many.
func (b *giveBacks) take() (jobs []heldJob, lapsed int) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.jobs)
	b.jobs = slices.DeleteFunc(b.jobs, func(j heldJob) bool { return now.After(j.until) })
	lapsed = before - len(b.jobs)
	n := min(len(b.jobs), giveBackItems)
	jobs = slices.Clone(b.jobs[:n])
	b.jobs = slices.Delete(b.jobs, 0, n)
	return jobs, lapsed
}

// putBack puts jobs at the end of the list, so that others have their turn, and says how many there are.
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

// finish ends the goroutine unless jobs have come meanwhile.
func (b *giveBacks) finish() (dropped int, done bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.jobs) > 0 {
		return 0, false
	}
	dropped, b.dropped, b.jobs, b.running = b.dropped, 0, nil, false
	b.idle.Broadcast()
	return dropped, true
}

// send gives jobs back in one statement, and returns those that somebody has locked at this moment.
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
