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
	firstPoll = 50 * time.Millisecond // pause after a new request waits; it doubles with each poll
	lastPoll  = time.Second
)

// endings tells requests that wait for results when their jobs have ended. One statement per poll
// asks about the jobs of all waiting requests. The first request that waits starts the goroutine
// that polls, and the last one that leaves ends it, so an idle server asks nothing.
type endings struct {
	over       func(context.Context, []awaited) ([]awaited, error) // returns the jobs that have ended or are gone (jobsOver)
	background *background

	// mu protects the fields below, and the lists in jobs. newer and idle belong to the goroutine
	// that polls now; each such goroutine gets its own.
	mu    sync.Mutex
	jobs  map[awaited][]*ending
	newer chan struct{} // receives a value when a new request waits
	idle  chan struct{} // closed when no request waits any more
}

// awaited is a job of a tenant; the tenant "" stands for any.
type awaited struct{ id, tenant string }

// ending is what one request waits for. over is closed when the job has ended or is gone, or when
// the poll has failed. err then says why the poll failed; read it only after over is closed.
type ending struct {
	over chan struct{}
	err  error
}

// wait registers a request that waits for a job, and returns its ending. The caller must call stop
// when it no longer waits: otherwise the polls never end.
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

// forget removes a job for which no request waits, and ends the polls after the last one. mu is
// held.
func (e *endings) forget(job awaited) {
	if len(e.jobs[job]) == 0 {
		delete(e.jobs, job)
	}
	if len(e.jobs) == 0 {
		close(e.idle)
	}
}

// tell ends the waits of all requests for a job; err says why the poll failed.
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

// poll asks about the awaited jobs, with pauses, until no request waits (idle) or the server stops.
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
			// A new request brings the next poll forward and never puts it off. Otherwise a steady
			// stream of new requests would keep all of them waiting.
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
			// A failed poll ends all waits with its error.
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
