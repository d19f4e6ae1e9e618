package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func TestACommitWakesAsManyAsItHasJobsFor(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	const polls = 1000
	var answered atomic.Int64
	got := make(chan []sqlcgen.OjsJob, polls)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range polls {
		all.Go(func() {
			jobs, err := b.Fetch(ctx, Fetch{Queues: []string{"q"}, Count: 1, Wait: time.Hour})
			if err == nil {
				answered.Add(1)
				got <- jobs
			}
		})
	}
	b.waiting(polls)
	before := b.idling()
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	if jobs := <-got; len(jobs) != 1 {
		t.Fatalf("got %d jobs", len(jobs))
	}
	if sent := b.idling() - before; sent > 2 || answered.Load() != 1 {
		t.Errorf("one job took %d statements and answered %d requests", sent, answered.Load())
	}
	before = b.Statements()
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 7)") // one commit
	for range 7 {
		if jobs := <-got; len(jobs) != 1 {
			t.Fatalf("got %d jobs", len(jobs))
		}
	}
	if sent := b.idling() - before; sent > 2 || answered.Load() != 8 {
		t.Errorf("seven jobs took %d statements and answered %d requests", sent, answered.Load())
	}
	// No statement is sent for requests that wait.
	cancel()
	all.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		if g.waiting.Len()+g.incoming.Len() > 0 {
			t.Errorf("%d requests are left behind", g.waiting.Len()+g.incoming.Len())
		}
	}
}

func TestTheLongestWaitingIsServedFirst(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	var waiting []<-chan answer
	for i := range 10 {
		waiting = append(waiting, b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour}))
		b.waiting(i + 1)
	}
	for i := range waiting {
		b.exec("select ojs.enqueue('x', p_queue => 'q')")
		b.want(waiting[i], 1)
	}
}

func TestAWaitEnds(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: 50 * time.Millisecond}), 0)
	// A request whose wait is over before its first decision still gets jobs that are there.
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	c, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q"}, Count: 2, Wait: time.Nanosecond})
	goOn()
	b.want(c, 1)
}

func TestDrainLetsWaitersGo(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour})
	b.waiting(1)
	b.stop()
	b.want(waiting, 0)
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour}), 0)
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour}), 1)
}

func TestACommitWhileTheListenerIsCutOff(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	for range 5 {
		waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour})
		b.waiting(1)
		b.exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query = 'listen ojs_wake'`)
		b.exec("select ojs.enqueue('x', p_queue => 'q')")
		b.want(waiting, 1)
	}
}

// only returns the only group. The caller holds Dispatcher.mu.
func (b *env) only() *group {
	b.t.Helper()
	for _, g := range b.groups {
		if len(b.groups) == 1 {
			return g
		}
	}
	b.t.Fatalf("%d groups", len(b.groups))
	return nil
}

// fires makes the timer of the only group fire now, and later timers soon after they are set.
func (b *env) fires() {
	b.t.Helper()
	b.mu.Lock()
	g := b.only()
	g.timer.Stop()
	b.opts.Linger, b.opts.Fallback = time.Millisecond, time.Millisecond
	b.mu.Unlock()
	g.timerFired()
}

// The timer for the end of the subscription fires while a decision has the only request of the group.
func TestASubscriptionEndsAlthoughItsTimerFiresDuringADecision(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Linger: time.Hour})
	ctx, hangUp := context.WithCancel(t.Context())
	gone := b.later(ctx, Fetch{Queues: []string{"q"}, Wait: time.Hour})
	b.waiting(1)
	hangUp()
	<-gone
	last, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q"}})
	b.fires()
	goOn()
	b.want(last, 0)
	pgtest.Eventually(t, "the group is forgotten", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.groups) == 0
	})
	b.db.Eventually("commits of the queue notify nobody", "select not exists (select from ojs.waiter where queue = 'q')")
}

// The timer for the next poll fires while a decision has the only request of the group. That happens where
// commits do not notify and decisions take long: only the timer causes polls then.
func TestPollsGoOnAlthoughTheirTimerFiresDuringADecision(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour})
	b.waiting(1)
	b.idling() // the polls after the registration are over
	b.hold.Store(true)
	b.mu.Lock()
	b.only().poll()
	b.mu.Unlock()
	b.step("a poll is decided")
	b.fires()
	b.step("it is handed out")
	for n := range 5 {
		b.step(fmt.Sprintf("after %d more, a poll is decided", n))
		b.step("it is handed out, too")
	}
}

func TestLooksThatAreDueAtAboutTheSameTimeShareABeat(t *testing.T) {
	t.Parallel()
	d := &Dispatcher{began: time.Now()}
	const round, beat = 20 * time.Second, time.Second
	beats := map[time.Time]int{}
	for range 1000 {
		now := d.began.Add(rand.N(round))
		wanted := rand.N(round)
		in := d.onBeat(now, wanted, beat)
		if in <= wanted || in > wanted+beat {
			t.Errorf("%v became %v", wanted, in)
		}
		beats[now.Add(in)]++
	}
	if len(beats) > 40 {
		t.Errorf("%d beats", len(beats))
	}
}

func TestResumeWakesAndAPausedQueueIsNotAskedAllTheTime(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.pause('q'); select ojs.enqueue('x', p_queue => 'q')")
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour})
	other := "other"
	b.later(t.Context(), Fetch{Queues: []string{"q"}, Tenant: &other, Wait: time.Hour})
	b.waiting(2)
	before := b.idling()
	begin := time.Now()
	for range 500 {
		b.exec("select ojs.enqueue('x', p_queue => 'q')")
	}
	took := time.Since(begin)
	// Two groups, each with five polls at once and then with polls after pauses of up to 64 ms.
	if sent := b.idling() - before; sent > 2*(5+7+int64(took/maxPollInterval)+2) {
		t.Errorf("%d statements in %s", sent, took)
	}
	b.exec("select ojs.resume('q')")
	b.want(waiting, 1)
}

// Each round uses a queue for which no request has waited, so that its commit overlaps the registration.
func TestNoCommitIsMissed(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Linger: time.Millisecond})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 40 {
				queue := fmt.Sprintf("q%d-%d", w, i%7)
				waiting := b.later(t.Context(), Fetch{Queues: []string{queue, queue + "b"}, Wait: time.Hour})
				time.Sleep(rand.N(4 * time.Millisecond))
				tx, err := b.db.Pool.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				_, err = tx.Exec(t.Context(), "select ojs.enqueue('x', p_queue => $1)", queue)
				time.Sleep(rand.N(4 * time.Millisecond))
				if err = errors.Join(err, tx.Commit(t.Context())); err != nil {
					t.Error(err)
					return
				}
				select {
				case a := <-waiting:
					if a.err != nil || len(a.jobs) != 1 {
						t.Errorf("got %d jobs and %v", len(a.jobs), a.err)
					}
				case <-time.After(time.Minute):
					t.Errorf("%s was not woken", queue)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestALapsedLeaseWakes(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, VisibilityTimeoutMs: 1000}), 1)
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour})
	b.waiting(1)
	b.exec("update ojs.job set lease_expires_at = now(); update ojs.lease set due_at = now(); select ojs.tick()")
	if j := b.want(waiting, 1)[0]; j.Attempt != 2 {
		t.Errorf("attempt %d", j.Attempt)
	}
}

// --- settle ---
