package dispatch

import (
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// leastLoaded returns a request for jobs with the strategy least-loaded.
func leastLoaded(worker string, count int) Fetch {
	return Fetch{Queues: []string{"q"}, Count: count, WorkerID: worker, Strategy: "least-loaded", Wait: time.Hour}
}

// atConcurrency returns when n requests wait because their workers are at their concurrency.
func (b *env) atConcurrency(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "workers are at their concurrency", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.Dispatcher.full.Len() == n && b.shared.inFlight == 0
	})
}

// busy registers a worker with a concurrency and gives it as many jobs. It returns the id of the first.
func (b *env) busy(worker string, concurrency int) (job string) {
	b.t.Helper()
	b.exec("select ojs.register_worker($1, p_concurrency => $2)", worker, concurrency)
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, $1)", concurrency)
	return b.want(b.later(b.t.Context(), leastLoaded(worker, concurrency)), concurrency)[0].ID
}

func (b *env) ack(job string) {
	b.t.Helper()
	if s := b.Settle(b.t.Context(), []Settlement{{ID: job}}, false); s[0].Err != nil {
		b.t.Error(s[0].Err)
	}
}

// A FETCH of a worker at its concurrency waits until one of the worker's jobs ends, at this server or
// elsewhere. Meanwhile it is in no decision of other requests.
func TestAWorkerAtItsConcurrencyWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		recheck time.Duration
		end     func(b *env, job string)
	}{
		"acknowledged here": {time.Hour, (*env).ack},
		"failed here": {time.Hour, func(b *env, job string) {
			b.Settle(b.t.Context(), []Settlement{{ID: job, Error: []byte(`{"message": "no"}`)}}, false)
		}},
		"ended elsewhere": {20 * time.Millisecond, func(b *env, job string) { b.exec("select ojs.ack($1)", job) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := dispatcher(t, Options{Recheck: c.recheck})
			job := b.busy("w", 2)
			b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 5)")
			b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "w", Strategy: "least-loaded"}), 0)
			waits := b.later(t.Context(), leastLoaded("w", 3))
			b.atConcurrency(1)
			b.want(b.later(t.Context(), leastLoaded("other", 1)), 1)
			if len(waits) > 0 {
				t.Fatal("it was answered at its concurrency")
			}
			c.end(b, job)
			if got := b.want(waits, 1)[0]; *got.WorkerID != "w" {
				t.Errorf("a job of worker %s", *got.WorkerID)
			}
		})
	}
}

// A job ends while a decision is under way that still counts it. The request of its worker is decided
// again soon.
func TestAJobEndsWhileADecisionCountsIt(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Recheck: time.Hour})
	job := b.busy("w", 1)
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	waits, goOn := b.deciding(t.Context(), leastLoaded("w", 1))
	b.ack(job)
	goOn()
	b.want(waits, 1)
}

// Requests of workers at their concurrency fill a decision. Requests that do not fit into it still get the
// jobs that there are.
func TestWorkersAtTheirConcurrencyLeaveOthersTheJobs(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 4, Recheck: time.Hour})
	b.busy("w", 3)
	b.exec("select ojs.register_worker('v', p_concurrency => 1)")
	var full []<-chan answer
	for range 5 {
		full = append(full, b.later(t.Context(), leastLoaded("w", 4)))
	}
	b.waiting(len(full))
	waits := b.later(t.Context(), leastLoaded("v", 4))
	b.waiting(len(full) + 1)
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 9)")
	b.want(waits, 1)
	b.atConcurrency(len(full))
	// The same if the requests that fill the decision are new.
	first, goOn := b.deciding(t.Context(), leastLoaded("w", 4))
	full = append(full, first, b.later(t.Context(), leastLoaded("w", 4)))
	b.arrived(1)
	other := b.later(t.Context(), leastLoaded("other", 4))
	b.arrived(2)
	goOn()
	b.want(other, 4)
	b.atConcurrency(len(full))
	b.stop()
	for _, c := range full {
		b.want(c, 0)
	}
}

// Of the requests that wait, the one of the worker with the fewest jobs is served first, and not the
// oldest one. Each gets its own jobs.
func TestTheWorkerWithTheFewestJobsIsServedFirst(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	waits := map[string]<-chan answer{}
	has := []struct {
		worker string
		jobs   int
	}{{"c", 3}, {"a", 1}, {"b", 2}}
	for _, w := range has {
		b.exec("select ojs.register_worker($1)", w.worker)
		b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, $1)", w.jobs)
		b.want(b.later(t.Context(), leastLoaded(w.worker, w.jobs)), w.jobs)
	}
	for i, w := range has {
		waits[w.worker] = b.later(t.Context(), leastLoaded(w.worker, 2))
		b.waiting(i + 1)
	}
	b.exec("select ojs.enqueue_bulk('x', array_fill('[]'::json, array[5]), p_queue => 'q')")
	for w, n := range map[string]int{"a": 2, "b": 2, "c": 1} {
		for _, j := range b.want(waits[w], n) {
			if *j.WorkerID != w {
				t.Errorf("%s got a job of %s", w, *j.WorkerID)
			}
		}
	}
}
