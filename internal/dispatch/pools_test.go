package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Workers that have registered with pools are served by these, whether their FETCH names the pool or not,
// also together with equal requests of workers in no pool.
func TestRequestsOfWorkersInPools(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec(`select ojs.configure_pool('a', '{"queues": ["a"]}'), ojs.configure_pool('b', '{"queues": ["b"], "concurrency": 1}')`)
	b.exec(`select ojs.register_worker('in-a', p_pool => 'a'), ojs.register_worker('in-b', p_pool => 'b'),
		ojs.register_worker('weighs', p_strategy => 'weighted', p_weights => '{"a": 3}')`)
	b.exec("select ojs.enqueue_bulk('x', array_fill('[]'::json, array[9]), p_queue => q) from unnest('{a,b}'::text[]) q")
	ask := func(worker string, count int) Fetch {
		return Fetch{Queues: []string{"a", "b"}, Count: count, WorkerID: worker, Wait: time.Hour}
	}
	// Requests that come while a decision is under way share the next one.
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"a", "b"}, Count: 1, WorkerID: "none"})
	answers := map[string]<-chan answer{}
	for worker, count := range map[string]int{"in-a": 2, "in-b": 3, "weighs": 4, "none": 2} {
		answers[worker] = b.later(t.Context(), ask(worker, count))
	}
	b.arrived(len(answers))
	goOn()
	b.want(first, 1)
	queues := map[string]string{}
	for worker, got := range answers {
		a := pgtest.Receive(t, "an answer", got)
		if a.err != nil {
			t.Fatalf("%s: %v", worker, a.err)
		}
		for _, j := range a.jobs {
			queues[worker] += j.Queue
		}
	}
	if queues["in-a"] != "aa" || queues["in-b"] != "b" || len(queues["weighs"]) != 4 || len(queues["none"]) != 2 {
		t.Errorf("jobs of queues %v", queues)
	}
	// The pool is at its concurrency, so the next request waits until a job of the pool ends.
	full := b.later(t.Context(), ask("in-b", 1))
	b.waiting(1)
	b.exec("select ojs.ack(j.id) from ojs.job j where j.worker_id = 'in-b'")
	b.want(full, 1)

	var refused *pg.Error
	_, err := b.Fetch(t.Context(), Fetch{Queues: []string{"a"}, Count: 1, WorkerID: "in-a", Pool: "b"})
	if !errors.As(err, &refused) || refused.Code != "conflict" {
		t.Errorf("in another pool: %v", err)
	}
	_, err = b.Fetch(t.Context(), Fetch{Queues: []string{"a"}, Count: 1, WorkerID: "in-b"})
	if !errors.As(err, &refused) || refused.Field != "queues" {
		t.Errorf("no queue of the pool: %v", err)
	}
}

// A FETCH waits while its worker registers for another pool. It named no pool, so it is served by the new
// one and not refused.
func TestAWorkerRegistersInAnotherPoolWhileItWaits(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec(`select ojs.configure_pool('p', '{"queues": ["a"]}'), ojs.register_worker('w', p_pool => 'p')`)
	ask := Fetch{Queues: []string{"a"}, Count: 1, WorkerID: "none", Wait: time.Hour}
	first, goOn := b.deciding(t.Context(), ask)
	// Together with a worker that is in no pool.
	second := b.later(t.Context(), ask)
	ask.WorkerID = "w"
	moved := b.later(t.Context(), ask)
	b.arrived(2)
	goOn()
	pgtest.Eventually(t, "the request waits in pool p", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for key, g := range b.groups {
			if key.pool == "p" && g.waiting.Len() == 1 {
				return true
			}
		}
		return false
	})
	b.exec("select ojs.register_worker('w', p_pool => 'q')")
	b.exec("select ojs.enqueue_bulk('x', array_fill('[]'::json, array[3]), p_queue => 'a')")
	for _, got := range []<-chan answer{first, second, moved} {
		b.want(got, 1)
	}
}
