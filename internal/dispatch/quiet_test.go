package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// quieted returns when n requests wait because their workers are to get no jobs.
func (b *env) quieted(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "the requests are quiet", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.Dispatcher.quiet.Len() == n && b.shared.inFlight == 0
	})
}

// quietPolls makes FETCHes of workers that are to get no jobs.
func (b *env) quietPolls(polls int) (answers []<-chan answer) {
	b.t.Helper()
	b.exec("select ojs.beat('old' || i) from generate_series(1, 5) i")
	for i := range polls {
		f := Fetch{Queues: []string{"q"}, Count: 10, WorkerID: fmt.Sprint("old", 1+i%5), Wait: time.Hour}
		if i%11 == 0 {
			f.Count = 1000
		}
		answers = append(answers, b.later(b.t.Context(), f))
	}
	b.waiting(polls)
	return answers
}

// Many requests of quiet workers, which ask for many jobs, cost one decision and do not delay other
// requests.
func TestRequestsOfQuietWorkersTakeNobodysPlace(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 100})
	const polls = 55
	old := b.quietPolls(polls)
	before := b.idling()
	b.exec("select ojs.direct_workers('quiet')")
	good := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "new", Wait: time.Hour})
	b.waiting(polls + 1)
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	b.want(good, 1)
	b.quieted(polls)
	// The first poll of the request, and one decision for each hundred jobs that the quiet workers ask for, or
	// for a single one that asks for more.
	if sent := b.idling() - before; sent > 20 {
		t.Errorf("%d statements until they are quiet", sent)
	}
	before = b.Statements()
	for range 5 {
		good = b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "new", Wait: time.Hour})
		b.waiting(1)
		b.exec("select ojs.enqueue('x', p_queue => 'q')")
		b.want(good, 1)
	}
	// A request without a wait is answered empty; one that waits is decided once.
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "old1"}), 0)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := b.later(ctx, Fetch{Queues: []string{"q"}, WorkerID: "old1", Wait: time.Hour})
	b.quieted(polls + 1)
	if sent := b.idling() - before; sent > 5*3+2 {
		t.Errorf("%d statements beside those that are quiet", sent)
	}
	for i := range old {
		if len(old[i]) > 0 {
			t.Fatalf("request %d was answered", i)
		}
	}
	hangUp()
	if a := <-gone; !errors.Is(a.err, context.Canceled) {
		t.Errorf("got %v", a.err)
	}
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "old1", Wait: 50 * time.Millisecond}), 0)
	b.quieted(polls)
}

// Quiet workers that are told to go on, one by one or all at once, get jobs.
func TestQuietWorkersThatAreToldToGoOnGetJobs(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 100})
	const polls = 55
	old := b.quietPolls(polls)
	b.exec("select ojs.direct_workers('quiet')")
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 10)")
	b.quieted(polls)
	b.exec("select ojs.direct_worker('old2', 'running')")
	pgtest.Eventually(b.t, "a worker told to go on has a job", func() bool {
		return slices.ContainsFunc(old, func(c <-chan answer) bool { return len(c) > 0 })
	})
	b.exec("select ojs.direct_workers('running')")
	pgtest.Eventually(b.t, "no request is quiet", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.Dispatcher.quiet.Len() == 0
	})
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 10000)")
	for _, c := range old {
		a := <-c
		if a.err != nil || len(a.jobs) == 0 {
			t.Errorf("got %d jobs and %v", len(a.jobs), a.err)
		}
	}
}

// A worker that has made itself quiet gets jobs when it says that it runs.
func TestAWorkerThatSaysItRunsGoesOn(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 2)")
	for _, on := range []string{"select ojs.beat('w', p_state => 'running')", "select ojs.register_worker('w')"} {
		b.exec("select ojs.beat('w', p_state => 'quiet')")
		waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "w", Wait: time.Hour})
		b.quieted(1)
		b.exec(on)
		b.want(waiting, 1)
	}
	b.exec("select ojs.beat('w', p_state => 'quiet')")
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "w", Wait: time.Hour})
	b.quieted(1)
	b.stop()
	b.want(waiting, 0)
}

// A worker is told to go on while a decision is under way that still sees it quiet. Its request is decided
// again.
func TestAWorkerGoesOnWhileADecisionIsUnderWay(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.beat('w')")
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "w", Wait: time.Hour})
	other := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "other", Wait: time.Hour})
	b.waiting(2)
	b.exec("select ojs.direct_worker('w', 'quiet')")
	goOn := b.decides(func() { b.exec("select ojs.enqueue('x', p_queue => 'q')") })
	requeues := func() uint64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.requeues
	}
	before := requeues()
	b.exec("select ojs.direct_worker('w', 'running')")
	pgtest.Eventually(b.t, "that is heard", func() bool { return requeues() > before })
	goOn()
	b.want(other, 1)
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	b.want(waiting, 1)
}

// New requests fill every decision. The request of a worker that goes on is decided before them.
func TestAWorkerThatGoesOnIsBeforeNewRequests(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 1})
	b.exec("select ojs.beat('w', p_state => 'quiet')")
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "w", Wait: time.Hour})
	b.quieted(1)
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 2)")
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q"}})
	b.exec("select ojs.direct_worker('w', 'running')")
	b.exec("select ojs.beat('w', p_state => 'running')")
	pgtest.Eventually(b.t, "it goes on", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.Dispatcher.quiet.Len() == 0
	})
	var others []<-chan answer
	for range 3 {
		others = append(others, b.later(t.Context(), Fetch{Queues: []string{"q"}}))
	}
	b.arrived(len(others))
	goOn()
	b.want(first, 1)
	b.want(waiting, 1)
	for _, other := range others {
		b.want(other, 0)
	}
}
