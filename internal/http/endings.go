package httpapi

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	firstPoll = 50 * time.Millisecond // after somebody new waits; each poll after it comes twice as late
	lastPoll  = time.Second
)

// endings tells requests that wait for the results of jobs when those have ended. One statement per poll asks about the jobs of all
// requests, and nothing is asked while nobody waits.
type endings struct {
	ended func(context.Context, []string) ([]string, error) // of jobs those that have ended

	mu     sync.Mutex
	jobs   map[string][]*ending
	newer  chan struct{} // somebody new waits
	cancel context.CancelFunc
}

// ending is what one request waits for. err is set when over is closed because the poll failed.
type ending struct {
	over chan struct{}
	err  error
}

// wait returns what tells that a job has ended, or may have: an id may stand for a job in each of several tenants. stop has to be called.
func (e *endings) wait(id string) (w *ending, stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w = &ending{over: make(chan struct{})}
	if len(e.jobs) == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		e.jobs, e.newer, e.cancel = map[string][]*ending{}, make(chan struct{}, 1), cancel
		go e.poll(ctx, e.newer)
	}
	e.jobs[id] = append(e.jobs[id], w)
	select {
	case e.newer <- struct{}{}:
	default:
	}
	return w, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if i := slices.Index(e.jobs[id], w); i >= 0 {
			e.jobs[id] = slices.Delete(e.jobs[id], i, i+1)
			e.forget(id)
		}
	}
}

// forget ends the polls when nobody waits any more.
func (e *endings) forget(id string) {
	if len(e.jobs[id]) == 0 {
		delete(e.jobs, id)
	}
	if len(e.jobs) == 0 {
		e.cancel()
	}
}

// tell ends the waiting for a job.
func (e *endings) tell(id string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	waiting := e.jobs[id]
	if waiting == nil {
		return
	}
	for _, w := range waiting {
		w.err = err
		close(w.over)
	}
	e.jobs[id] = nil
	e.forget(id)
}

func (e *endings) poll(ctx context.Context, newer <-chan struct{}) {
	pause := firstPoll
	due := time.Now().Add(pause)
	for {
		select {
		case <-ctx.Done():
			return
		case <-newer:
			// However many come, polls go on at the shortest interval.
			pause = firstPoll
			due = earlier(due, time.Now().Add(pause))
			continue
		case <-time.After(time.Until(due)):
		}
		e.mu.Lock()
		ids := make([]string, 0, len(e.jobs))
		for id := range e.jobs {
			ids = append(ids, id)
		}
		e.mu.Unlock()
		ended, err := e.ended(context.WithoutCancel(ctx), ids)
		if err != nil {
			ended = ids
		}
		for _, id := range ended {
			e.tell(id, err)
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
