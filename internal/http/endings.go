package httpapi

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/guard"
)

const (
	firstPoll = 50 * time.Millisecond // after somebody new waits; each poll after it comes twice as late
	lastPoll  = time.Second
)

// endings tells requests that wait for the results of jobs when those have ended. One statement per poll asks about the jobs of all
// requests, and nothing is asked while nobody waits.
type endings struct {
	over       func(context.Context, []awaited) ([]awaited, error) // those of the jobs that nobody needs to wait for any longer
	background *background

	mu    sync.Mutex
	jobs  map[awaited][]*ending
	newer chan struct{} // somebody new waits
	idle  chan struct{} // closed when nobody waits any more
}

// awaited is a job of a tenant; the tenant "" stands for any.
type awaited struct{ id, tenant string }

// ending is what one request waits for. err is set when over is closed because the poll failed.
type ending struct {
	over chan struct{}
	err  error
}

// wait returns what tells that a job has ended or is gone. stop has to be called.
func (e *endings) wait(id string, scope *string) (w *ending, stop func()) {
	job := awaited{id: id}
	if scope != nil {
		job.tenant = *scope
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	w = &ending{over: make(chan struct{})}
	if len(e.jobs) == 0 {
		e.jobs, e.newer, e.idle = map[awaited][]*ending{}, make(chan struct{}, 1), make(chan struct{})
		newer, idle := e.newer, e.idle
		e.background.start(func(ctx context.Context) { e.poll(ctx, newer, idle) })
	}
	e.jobs[job] = append(e.jobs[job], w)
	select {
	case e.newer <- struct{}{}:
	default:
	}
	return w, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if i := slices.Index(e.jobs[job], w); i >= 0 {
			e.jobs[job] = slices.Delete(e.jobs[job], i, i+1)
			e.forget(job)
		}
	}
}

// forget ends the polls when nobody waits any more.
func (e *endings) forget(job awaited) {
	if len(e.jobs[job]) == 0 {
		delete(e.jobs, job)
	}
	if len(e.jobs) == 0 {
		close(e.idle)
	}
}

// tell ends the waiting for a job.
func (e *endings) tell(job awaited, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	waiting := e.jobs[job]
	if waiting == nil {
		return
	}
	for _, w := range waiting {
		w.err = err
		close(w.over)
	}
	e.jobs[job] = nil
	e.forget(job)
}

func (e *endings) poll(ctx context.Context, newer, idle <-chan struct{}) {
	pause := firstPoll
	due := time.Now().Add(pause)
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle:
			return
		case <-newer:
			// However many come, polls go on at the shortest interval.
			pause = firstPoll
			due = earlier(due, time.Now().Add(pause))
			continue
		case <-time.After(time.Until(due)):
		}
		e.mu.Lock()
		jobs := slices.Collect(maps.Keys(e.jobs))
		e.mu.Unlock()
		var over []awaited
		err := guard.Call(func() (err error) {
			over, err = e.over(context.WithoutCancel(ctx), jobs)
			return err
		})
		if err != nil {
			over = jobs
		}
		for _, job := range over {
			e.tell(job, err)
		}
		pause = min(2*pause, lastPoll)
		due = time.Now().Add(pause)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
