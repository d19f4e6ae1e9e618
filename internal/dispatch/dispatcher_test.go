package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func TestCannedJobsTouchNoDatabase(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	held := b.active(1)
	canned := New(b.Dispatcher.db, nil, b.log, Options{})
	canned.Can(func(n int) []sqlcgen.OjsJob { return make([]sqlcgen.OjsJob, n) })
	for _, job := range []string{`{"type": "x", "args": []}`, `{"type": "x", "args": [], "id": "019539a4-0000-7000-8000-000000000001"}`} {
		if _, err := canned.Enqueue(t.Context(), newJob(job, nil)); err != nil {
			t.Error(err)
		}
	}
	if _, err := canned.EnqueueMany(t.Context(), []*NewJob{newJob(`{"type": "x", "args": []}`, nil)}, nil); err != nil {
		t.Error(err)
	}
	if r := canned.Settle(t.Context(), []Settlement{{ID: held[0].ID}, {ID: held[0].ID, Requeue: true}}, true); r[0].Err != nil ||
		r[1].Err != nil {
		t.Errorf("%+v", r)
	}
	canned.GiveBack(held)
	if n := b.count("select count(*) from ojs.job where state = 'active'"); n != 1 || b.count("select count(*) from ojs.job") != 1 {
		t.Errorf("%d jobs are active", n)
	}
}

// --- everything at once ---

// crowd is a number of producers and workers that come and go.
type crowd struct {
	*env
	queues    []string
	total     int
	completed atomic.Int64
	done      chan struct{}
}

func (c *crowd) produce(p int) {
	tenant := fmt.Sprint("t", p%3)
	for i := p; i < c.total; i += 6 {
		job := fmt.Sprintf(`{"type": "x", "args": [%d], "queue": "%s"}`, i, c.queues[i%3])
		if _, err := c.Enqueue(c.t.Context(), newJob(job, &tenant)); err != nil {
			c.t.Error(err)
		}
	}
}

func (c *crowd) work(w int) {
	for {
		select {
		case <-c.done:
			return
		default:
		}
		jobs := c.fetchAWhile(w)
		if len(jobs) == 0 {
			continue
		}
		if rand.IntN(10) == 0 {
			c.GiveBack(jobs)
			continue
		}
		acks := make([]Settlement, len(jobs))
		for i := range jobs {
			acks[i] = Settlement{ID: jobs[i].ID, Lease: jobs[i].Lease}
		}
		settled := c.Settle(c.t.Context(), acks, false)
		for i := range settled {
			if settled[i].Err != nil || jobs[i].Attempt != 1 {
				c.t.Errorf("%+v", settled[i])
			}
		}
		c.completed.Add(int64(len(settled)))
	}
}

// fetchAWhile makes a FETCH that leaves after some milliseconds. One time in six it waits for long:
// otherwise no FETCH would get a job on a slow machine.
func (c *crowd) fetchAWhile(w int) []sqlcgen.OjsJob {
	stay := rand.N(8 * time.Millisecond)
	if rand.IntN(6) == 0 {
		stay = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), stay)
	defer cancel()
	f := Fetch{Queues: c.queues[:1+w%3], Count: 1 + rand.IntN(12), Wait: time.Second, WorkerID: fmt.Sprint("w", w)}
	if w%5 == 0 {
		tenant := fmt.Sprint("t", w%3)
		f.Tenant = &tenant
	}
	jobs, err := c.Fetch(ctx, f)
	if err != nil && (!errors.Is(err, context.DeadlineExceeded) || len(jobs) > 0) {
		c.t.Errorf("%d jobs and %v", len(jobs), err)
	}
	return jobs
}

func TestNothingIsLostWhenCallersComeAndGo(t *testing.T) {
	t.Parallel()
	c := &crowd{
		env: dispatcher(t, Options{Jobs: 40}), queues: []string{"q1", "q2", "q3"}, total: 3000, done: make(chan struct{}),
	}
	var work, made sync.WaitGroup
	for p := range 6 {
		made.Go(func() { c.produce(p) })
	}
	for w := range 24 {
		work.Go(func() { c.work(w) })
	}
	made.Wait()
	pgtest.Eventually(t, "all are done", func() bool { return c.completed.Load() == int64(c.total) })
	close(c.done)
	work.Wait()
	c.stop()
	if n := c.count("select count(*) from ojs.job where state = 'completed' and attempt = 1"); n != c.total {
		t.Errorf("%d jobs completed at their first attempt", n)
	}
	firsts := pgtest.List[int](t, c.db.Pool, "select (args ->> 0)::int from ojs.job order by 1")
	if len(slices.Compact(firsts)) != c.total {
		t.Errorf("%d jobs", len(firsts))
	}
}
