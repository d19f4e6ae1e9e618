package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// env is a dispatcher with all that belongs to it. Nothing but a wake makes it poll.
type env struct {
	*Dispatcher
	t    *testing.T
	db   *pgtest.DB
	stop func()
}

func dispatcher(t *testing.T, opts Options) *env {
	t.Helper()
	db := pgtest.New(t)
	door := db.Open()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	listener := pg.NewListener(door, log)
	opts.Fallback = cmp.Or(opts.Fallback, time.Hour)
	b := &env{t: t, db: db, Dispatcher: New(door, listener, log, opts)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	running.Go(func() { b.Run(ctx) })
	b.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(b.stop)
	return b
}

func (b *env) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *env) count(sql string, args ...any) (n int) {
	b.t.Helper()
	if err := b.db.Pool.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// session begins a transaction that goes on until the returned function ends it.
func (b *env) session(sql string, args ...any) (end func(string)) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.db.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(b.t.Context(), "begin"); err != nil {
		b.t.Fatal(err)
	}
	if _, err := conn.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
	return func(how string) {
		b.t.Helper()
		if _, err := conn.Exec(context.Background(), how); err != nil {
			b.t.Error(err)
		}
	}
}

// blocked waits until so many of our sessions wait for a lock.
func (b *env) blocked(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "sessions wait for a lock", func() bool {
		return b.count("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == n
	})
}

// waiting waits until so many requests wait and nothing is left to be told about their queues.
func (b *env) waiting(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "the requests wait", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		total := 0
		for _, g := range b.groups {
			total += g.waiting.Len()
			if g.waiting.Len() > 0 && !g.sub.Notified() {
				return false
			}
		}
		return total == n && b.shared.inFlight+b.alone.inFlight == 0
	})
}

// idling waits until no statement has been sent for a while.
func (b *env) idling() int64 {
	b.t.Helper()
	for last, since := b.Statements(), time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if now := b.Statements(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > time.Second {
			return last
		}
	}
}

type answer struct {
	jobs []sqlcgen.OjsJob
	err  error
}

// later fetches in the background.
func (b *env) later(ctx context.Context, f Fetch) <-chan answer {
	c := make(chan answer, 1)
	f.Count = max(f.Count, 1)
	go func() {
		jobs, err := b.Fetch(ctx, f)
		c <- answer{jobs, err}
	}()
	return c
}

func (b *env) want(c <-chan answer, n int) []sqlcgen.OjsJob {
	b.t.Helper()
	select {
	case a := <-c:
		if a.err != nil || len(a.jobs) != n {
			b.t.Fatalf("got %d jobs and %v, want %d", len(a.jobs), a.err, n)
		}
		return a.jobs
	case <-time.After(time.Minute):
		b.t.Fatal("no answer within a minute")
		return nil
	}
}

func problem(err error) string {
	var known *pg.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return fmt.Sprint(err)
}

func (b *env) arrived(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "the requests are in line", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		total := 0
		for _, g := range b.groups {
			total += g.incoming.Len()
		}
		return total == n
	})
}

func TestRequestsThatComeTogetherGetFairSlicesOfOneDecision(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec(`select ojs.configure_tenant('a', 2), ojs.configure_tenant('b', 1);
		select ojs.enqueue('x', p_queue => 'q', p_tenant => t) from unnest(array['a', 'b']) t, generate_series(1, 100)`)
	end := b.session("select from ojs.lane for update")
	first := b.later(t.Context(), Fetch{Queues: []string{"q"}, Count: 3})
	b.blocked(1)
	var rest []<-chan answer
	for i := range 20 {
		rest = append(rest, b.later(t.Context(), Fetch{Queues: []string{"q"}, Count: 3, WorkerID: fmt.Sprint("w", i), VisibilityTimeoutMs: 60000 + i}))
		b.arrived(i + 1)
	}
	end("rollback")
	b.want(first, 3)
	seq := map[string]int64{"a": 0, "b": 0}
	for i, c := range rest {
		shares := map[string]int{}
		for _, j := range b.want(c, 3) {
			shares[j.TenantID]++
			// The order in which they asked is the order in which they are served.
			if j.Seq == nil || *j.Seq <= seq[j.TenantID] {
				t.Errorf("request %d got job %v of %s after %d", i, *j.Seq, j.TenantID, seq[j.TenantID])
			}
			seq[j.TenantID] = *j.Seq
			if lease := j.LeaseExpiresAt.Sub(*j.StartedAt); *j.WorkerID != fmt.Sprint("w", i) || lease != time.Duration(60000+i)*time.Millisecond {
				t.Errorf("request %d got a job of %s, leased for %s", i, *j.WorkerID, lease)
			}
		}
		if shares["a"] != 2 || shares["b"] != 1 {
			t.Errorf("request %d got %v", i, shares)
		}
	}
	if n := b.Statements(); n != 2 {
		t.Errorf("%d statements", n)
	}
}

func TestGroupsShareADecisionAndABadRequestSpoilsNoOther(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.enqueue('x', p_queue => q, p_tenant => 'a') from unnest(array['q1', 'q2', 'q3']) q, generate_series(1, 2)")
	end := b.session("select from ojs.lane for update")
	tenant, bad := "a", "no tenant!"
	first := b.later(t.Context(), Fetch{Queues: []string{"q1"}})
	b.blocked(1)
	good := []<-chan answer{
		b.later(t.Context(), Fetch{Queues: []string{"q1"}}),
		b.later(t.Context(), Fetch{Queues: []string{"q2"}, Tenant: &tenant}),
		b.later(t.Context(), Fetch{Queues: []string{"q3", "q2"}, Count: 3}),
	}
	b.arrived(3)
	refused := []<-chan answer{
		b.later(t.Context(), Fetch{Queues: []string{"Not A Queue"}, Wait: time.Hour}),
		b.later(t.Context(), Fetch{Queues: []string{"q1"}, Tenant: &bad}),
		b.later(t.Context(), Fetch{Queues: []string{"q1"}, WorkerID: strings.Repeat("w", 300)}),
		b.later(t.Context(), Fetch{Queues: []string{"q1"}, WorkerID: "a\x00b"}),
		b.later(t.Context(), Fetch{Queues: []string{"q1"}, VisibilityTimeoutMs: 5}),
		b.later(t.Context(), Fetch{Queues: []string{"q1"}, Count: 20000}),
		b.later(t.Context(), Fetch{}),
	}
	end("rollback")
	b.want(first, 1)
	for i, n := range []int{1, 1, 3} {
		b.want(good[i], n)
	}
	for i, c := range refused {
		if a := <-c; !strings.HasPrefix(problem(a.err), "invalid_") {
			t.Errorf("request %d got %d jobs and %v", i, len(a.jobs), a.err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.groups) > 0 {
		t.Errorf("%d groups are left", len(b.groups))
	}
}

func TestWhatIsLikelyToBeRefusedHoldsUpNoDecision(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Statements: 2})
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	end := b.session("lock table ojs.lease in share mode")
	first := b.later(t.Context(), Fetch{Queues: []string{"q"}})
	b.blocked(1)
	var refused []<-chan answer
	for range 20 {
		refused = append(refused, b.later(t.Context(), Fetch{Queues: []string{"q"}, VisibilityTimeoutMs: 5}))
	}
	for i, c := range refused {
		if a := <-c; problem(a.err) != "invalid_request" {
			t.Errorf("request %d got %d jobs and %v", i, len(a.jobs), a.err)
		}
	}
	if len(first) > 0 {
		t.Error("they waited for the decision under way")
	}
	end("rollback")
	b.want(first, 1)
}

// What plain lets pass and SQL refuses is found out one by one.
func TestAnErrorOfOneRequestReachesNoOther(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec(`alter table ojs.job_all add constraint no_bad_workers check (worker_id <> 'bad');
		select ojs.enqueue('x', p_queue => q) from unnest(array['q1', 'q2']) q, generate_series(1, 5)`)
	end := b.session("select from ojs.lane for update")
	first := b.later(t.Context(), Fetch{Queues: []string{"q1"}})
	b.blocked(1)
	good := []<-chan answer{b.later(t.Context(), Fetch{Queues: []string{"q1"}}), b.later(t.Context(), Fetch{Queues: []string{"q2"}})}
	b.arrived(2)
	bad := b.later(t.Context(), Fetch{Queues: []string{"q1"}, WorkerID: "bad"})
	b.arrived(3)
	good = append(good, b.later(t.Context(), Fetch{Queues: []string{"q1"}, Count: 3}))
	b.arrived(4)
	end("rollback")
	b.want(first, 1)
	b.want(good[0], 1)
	b.want(good[1], 1)
	b.want(good[2], 3)
	if a := <-bad; problem(a.err) != "invalid_request" {
		t.Errorf("got %d jobs and %v", len(a.jobs), a.err)
	}
}

func TestADecisionIsBounded(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 10})
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 95)")
	end := b.session("select from ojs.lane for update")
	all := []<-chan answer{b.later(t.Context(), Fetch{Queues: []string{"q"}, Count: 25})} // more than fits goes alone
	b.blocked(1)
	for i := range 20 {
		all = append(all, b.later(t.Context(), Fetch{Queues: []string{"q"}, Count: 5}))
		b.arrived(i + 1)
	}
	end("rollback")
	b.want(all[0], 25)
	for i, c := range all[1:] {
		// The last decision gets nothing, and answers all for whom it had no room.
		b.want(c, []int{5, 0}[min(i/14, 1)])
	}
	if n := b.Statements(); n != 9 {
		t.Errorf("%d statements", n)
	}
}

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
	// Idle means idle: nothing is asked of the database for whoever waits.
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
	// Also one that was over before the first decision was.
	end := b.session("select from ojs.lane for update")
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	c := b.later(t.Context(), Fetch{Queues: []string{"q"}, Count: 2, Wait: time.Nanosecond})
	b.blocked(1)
	end("rollback")
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

func TestHangingUpCostsNoJobAndNoAttempt(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	ctx, hangUp := context.WithCancel(t.Context())
	gone := b.later(ctx, Fetch{Queues: []string{"q"}, Wait: time.Hour})
	b.waiting(1)
	next := b.later(t.Context(), Fetch{Queues: []string{"q"}, Wait: time.Hour})
	b.waiting(2)
	hangUp()
	if a := <-gone; !errors.Is(a.err, context.Canceled) {
		t.Fatalf("got %v", a.err)
	}
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	if j := b.want(next, 1)[0]; j.Attempt != 1 {
		t.Errorf("attempt %d", j.Attempt)
	}

	// While a decision is under way; the jobs go back.
	b.exec("select ojs.enqueue('x', p_queue => 'r') from generate_series(1, 5)")
	end := b.session("select from ojs.lane for update")
	ctx, hangUp = context.WithCancel(t.Context())
	gone = b.later(ctx, Fetch{Queues: []string{"r"}, Count: 4, Wait: time.Hour})
	b.blocked(1)
	hangUp()
	if a := <-gone; !errors.Is(a.err, context.Canceled) {
		t.Fatalf("got %v", a.err)
	}
	end("rollback")
	pgtest.Eventually(b.t, "the jobs are given back", func() bool {
		return b.count("select count(*) from ojs.release where to_state = 'available'") == 4
	})
	for _, j := range b.want(b.later(t.Context(), Fetch{Queues: []string{"r"}, Count: 5}), 5) {
		if j.Attempt != 1 {
			t.Errorf("attempt %d", j.Attempt)
		}
	}
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
	b.exec("select ojs.pause_queue('q'); select ojs.enqueue('x', p_queue => 'q')")
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
	// Two groups, five looks at once each, then with pauses of up to 64 ms.
	if sent := b.idling() - before; sent > 2*(5+7+int64(took/maxPollInterval)+2) {
		t.Errorf("%d statements in %s", sent, took)
	}
	b.exec("select ojs.resume_queue('q')")
	b.want(waiting, 1)
}

// quieted waits until so many requests wait whose workers are to get no jobs.
func (b *env) quieted(n int) {
	b.t.Helper()
	pgtest.Eventually(b.t, "the requests are quiet", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.Dispatcher.quiet.Len() == n && b.shared.inFlight == 0
	})
}

// However many they are and whatever they ask for: those who wait and rest cost one look, and the others nothing.
func TestThoseWhoRestTakeNobodysPlace(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 100})
	const polls = 55
	b.exec("select ojs.beat('old' || i) from generate_series(1, 5) i")
	var old []<-chan answer
	for i := range polls {
		f := Fetch{Queues: []string{"q"}, Count: 10, WorkerID: fmt.Sprint("old", 1+i%5), Wait: time.Hour}
		if i%11 == 0 {
			f.Count = 1000
		}
		old = append(old, b.later(t.Context(), f))
	}
	b.waiting(polls)
	before := b.idling()
	b.exec("select ojs.direct_workers('quiet')")
	good := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "new", Wait: time.Hour})
	b.waiting(polls + 1)
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	b.want(good, 1)
	b.quieted(polls)
	// Its first look, and one for each hundred jobs that the others would take, or for one of them that would take more.
	if sent := b.idling() - before; sent > 20 {
		t.Errorf("%d statements until they rest", sent)
	}
	before = b.Statements()
	for range 5 {
		good = b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "new", Wait: time.Hour})
		b.waiting(1)
		b.exec("select ojs.enqueue('x', p_queue => 'q')")
		b.want(good, 1)
	}
	// Who does not wait is told so; who comes and waits is looked at once.
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "old1"}), 0)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := b.later(ctx, Fetch{Queues: []string{"q"}, WorkerID: "old1", Wait: time.Hour})
	b.quieted(polls + 1)
	if sent := b.idling() - before; sent > 5*3+2 {
		t.Errorf("%d statements beside those who rest", sent)
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

	// Told to go on, by whomever, they get what there is.
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 10)")
	b.exec("select ojs.direct_worker('old2', 'running')")
	pgtest.Eventually(b.t, "a worker told to go on has a job", func() bool {
		return slices.ContainsFunc(old, func(c <-chan answer) bool { return len(c) > 0 })
	})
	b.exec("select ojs.direct_workers('running')")
	pgtest.Eventually(b.t, "nobody rests", func() bool {
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

// A worker that rests by itself goes on by itself.
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

// A worker that goes on while the decision is under way that still sees it rest is not forgotten.
func TestAWorkerGoesOnWhileADecisionIsUnderWay(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.beat('w')")
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "w", Wait: time.Hour})
	other := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "other", Wait: time.Hour})
	b.waiting(2)
	b.exec("select ojs.direct_worker('w', 'quiet')")
	end := b.session("select from ojs.lane for update")
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	b.blocked(1)
	requeues := func() uint64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.requeues
	}
	before := requeues()
	b.exec("select ojs.direct_worker('w', 'running')")
	pgtest.Eventually(b.t, "that is heard", func() bool { return requeues() > before })
	end("rollback")
	b.want(other, 1)
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	b.want(waiting, 1)
}

// Those who come fill every decision, and whoever goes on has a place before them all the same.
func TestAWorkerGoesOnBeforeThoseWhoComeLater(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 1})
	b.exec("select ojs.beat('w', p_state => 'quiet')")
	waiting := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "w", Wait: time.Hour})
	b.quieted(1)
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 2)")
	end := b.session("select from ojs.lane for update")
	first := b.later(t.Context(), Fetch{Queues: []string{"q"}})
	b.blocked(1)
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
	end("rollback")
	b.want(first, 1)
	b.want(waiting, 1)
	for _, other := range others {
		b.want(other, 0)
	}
}

// Each round is a queue that nobody has waited for, so that each commit crosses a registration somehow.
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

func (b *env) active(n int) []sqlcgen.OjsJob {
	b.t.Helper()
	b.exec("select ojs.enqueue('x', '[1, 2]', p_tenant => 'a') from generate_series(1, $1)", n)
	return b.want(b.later(b.t.Context(), Fetch{Queues: []string{"default"}, Count: n, WorkerID: "w"}), n)
}

func TestSettlementsShareAStatementAndEachHasItsOwnResult(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Spacing: time.Hour})
	jobs := b.active(30)
	end := b.session("lock table ojs.release, ojs.journal in share mode")
	before := b.Statements()
	results := make([][]Settled, len(jobs))
	var all sync.WaitGroup
	for i := range jobs {
		all.Go(func() {
			s := []Settlement{{ID: jobs[i].ID, Lease: jobs[i].Lease, Result: []byte(`{ "n":1.0 }`)}}
			switch i % 3 {
			case 1:
				s[0] = Settlement{ID: jobs[i].ID, Error: []byte(`{"message": "m", "retryable": false}`)}
			case 2:
				s[0].Lease = jobs[i-1].Lease
				s = append(s, Settlement{ID: "019539a4-0000-7000-8000-000000000000"})
			}
			results[i] = b.Settle(t.Context(), s, i != 0)
		})
		// The first ACK and the first NACK go alone.
		if i < 2 {
			b.blocked(i + 1)
		}
	}
	pgtest.Eventually(b.t, "the others are in line", func() bool { return b.acks.Waiting() == 29 && b.settles.Waiting() == 9 })
	end("rollback")
	all.Wait()
	for i, r := range results {
		switch i % 3 {
		case 0:
			if j := r[0].Job; r[0].Err != nil || j.ID != jobs[i].ID || j.State != "completed" || i != 0 && (string(j.Result) != `{ "n":1.0 }` || string(j.Args) != "[1, 2]") || i == 0 && j.Args != nil {
				t.Errorf("ack %d: %+v", i, r[0])
			}
		case 1:
			if j := r[0].Job; r[0].Err != nil || j.ID != jobs[i].ID || j.State != "discarded" || !strings.Contains(string(j.Errors), `"m"`) {
				t.Errorf("nack %d: %+v", i, r[0])
			}
		case 2:
			if len(r) != 2 || problem(r[0].Err) != "conflict" || problem(r[1].Err) != "not_found" {
				t.Errorf("settlement %d: %+v", i, r)
			}
			var known *pg.Error
			if errors.As(r[0].Err, &known) && known.Details["field"] != "lease" {
				t.Errorf("settlement %d: %+v", i, known)
			}
		}
	}
	if sent := b.Statements() - before; sent > 6 {
		t.Errorf("%d statements", sent)
	}
}

func TestALockedJobDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Statements: 1})
	jobs := b.active(3)
	end := b.session("select from ojs.job where id = $1 for update", jobs[0].ID)
	locked := make(chan []Settled, 1)
	go func() {
		locked <- b.Settle(t.Context(), []Settlement{{ID: jobs[0].ID, Lease: jobs[0].Lease}, {ID: jobs[1].ID}}, true)
	}()
	pgtest.Eventually(b.t, "what is not locked is settled", func() bool {
		return b.count("select count(*) from ojs.job where state = 'completed'") == 1
	})
	if r := b.Settle(t.Context(), []Settlement{{ID: jobs[2].ID}}, true); r[0].Err != nil {
		t.Fatalf("%+v", r)
	}
	select {
	case r := <-locked:
		t.Fatalf("answered while the job was locked: %+v", r)
	default:
	}
	end("commit")
	for i, r := range <-locked {
		if r.Err != nil || r.Job.State != "completed" || r.Job.ID != jobs[i].ID {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

func TestAJobThatStaysLockedIsRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Query: time.Second})
	jobs := b.active(1)
	end := b.session("select from ojs.job where id = $1 for update", jobs[0].ID)
	r := b.Settle(t.Context(), []Settlement{{ID: jobs[0].ID}}, true)
	var known *pg.Error
	if !errors.As(r[0].Err, &known) || known.Code != "backend_unavailable" || !known.Retryable {
		t.Errorf("%+v", r)
	}
	end("commit")
}

// --- enqueue ---

func TestABadJobAmongMany(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Spacing: time.Hour})
	end := b.session("lock table ojs.journal in share mode")
	before := b.Statements()
	ids := make([]string, 40)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			job, tenant := fmt.Sprintf(`{"type": "t%d", "args": [%d.00]}`, i, i), fmt.Sprint("tenant", i%4)
			switch i {
			case 7:
				job = `{"type": "no good", "args": []}`
			case 8:
				job = `{"type": "t", "args": {}}`
			case 9:
				tenant = "no good"
			case 10:
				job = `{}`
			}
			j, err := b.Enqueue(t.Context(), newJob(job, &tenant))
			switch {
			case i >= 7 && i <= 10:
				if problem(err) != "invalid_request" {
					t.Errorf("job %d: %v", i, err)
				}
			case err != nil || j.TenantID != tenant || j.Type != fmt.Sprint("t", i) || string(j.Args) != fmt.Sprintf("[%d.00]", i):
				t.Errorf("job %d: %+v %v", i, j, err)
			}
			ids[i] = j.ID
		})
		if i == 0 {
			b.blocked(1)
		}
	}
	pgtest.Eventually(b.t, "the others are in line", func() bool { return b.enqueues.Waiting() == len(ids)-1 })
	end("rollback")
	all.Wait()
	if sent := b.Statements() - before; sent != 2 {
		t.Errorf("%d statements", sent)
	}
	if n := b.count("select count(*) from ojs.job where id::text = any ($1)", ids); n != 36 {
		t.Errorf("%d jobs", n)
	}
}

func TestAnIDThatAnotherTransactionIsAddingDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Statements: 1, Isolated: 2})
	const taken, free = "019539a4-0000-7000-8000-000000000001", "019539a4-0000-7000-8000-000000000002"
	for how, want := range map[string]string{"commit": "duplicate", "rollback": "<nil>"} {
		queue := "q-" + how
		end := b.session("select ojs.enqueue('x', p_id => $1, p_tenant => $2)", taken, "acme-"+how)
		acme, globex := "acme-"+how, "globex-"+how
		stuck := make(chan error, 1)
		go func() {
			_, err := b.Enqueue(t.Context(), newJob(`{"id": "`+taken+`", "type": "x", "args": [], "queue": "`+queue+`"}`, &acme))
			stuck <- err
		}()
		pgtest.Eventually(b.t, "it waits", func() bool {
			return b.count("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == 1
		})
		for _, job := range []struct {
			tenant *string
			flat   string
		}{
			{&acme, `{"type": "x", "args": [{"id": 1}]}`},
			{&globex, `{"type": "x", "args": []}`},
			{nil, `{"type": "x", "args": []}`},
			{&globex, `{"type": "x", "args": [], "id": "` + taken + `"}`},
			{&acme, `{"type": "x", "args": [], "id": "` + free + `"}`},
		} {
			if _, err := b.Enqueue(t.Context(), newJob(job.flat, job.tenant)); err != nil {
				t.Fatalf("%s: %v", job.flat, err)
			}
		}
		select {
		case err := <-stuck:
			t.Fatalf("answered before the other transaction ended: %v", err)
		default:
		}
		end(how)
		if err := <-stuck; problem(err) != want {
			t.Errorf("after %s: %v, want %s", how, err, want)
		}
	}
}

// Tenants that send many ids which other transactions are adding cost few statements, and nobody else's turn.
func TestManyLockedIDsDelayNobodyElse(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	const each = 100
	tenants := []string{"a", "b", "c", "d"}
	id := func(i int) string { return fmt.Sprintf("019539a4-0000-7000-8000-%012d", i) }
	end := b.session(`select ojs.enqueue('x', p_id => format('019539a4-0000-7000-8000-%s', lpad(i::text, 12, '0'))::uuid, p_tenant => t)
		from unnest($1::text[]) t, generate_series(1, $2) i`, tenants, each)
	send := func(tenant string, i int) error {
		_, err := b.Enqueue(t.Context(), newJob(`{"id": "`+id(i)+`", "type": "x", "args": []}`, &tenant))
		return err
	}
	before := b.Statements()
	var all sync.WaitGroup
	var early atomic.Int64 // answers before the locks are gone
	for _, tenant := range tenants {
		for i := range each + 1 {
			all.Go(func() {
				err := send(tenant, i) // 0 is nobody's
				early.Add(1)
				if want := map[bool]string{true: "<nil>", false: "duplicate"}[i == 0]; problem(err) != want {
					t.Errorf("%s %d: %v, want %s", tenant, i, err, want)
				}
			})
		}
	}
	pgtest.Eventually(b.t, "they are at it", func() bool { return b.Statements()-before > 20 })
	sent := b.Statements()
	if err := send("e", 1); err != nil {
		t.Error(err)
	}
	if sent = b.Statements() - sent; sent > 50 {
		t.Errorf("%d statements before it was another's turn", sent)
	}
	pgtest.Eventually(b.t, "what is not locked is added", func() bool {
		return b.count("select count(*) from ojs.job where id::text = $1", id(0)) == len(tenants)
	})
	pgtest.Eventually(b.t, "that is told", func() bool { return early.Load() >= 4 })
	if n := early.Load(); n != 4 {
		t.Errorf("%d answers while the ids were locked", n)
	}
	end("commit")
	all.Wait()
}

func TestALockedIDIsRefusedInTheEnd(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Query: time.Second})
	const taken = "019539a4-0000-7000-8000-000000000001"
	end := b.session("select ojs.enqueue('x', p_id => $1)", taken)
	job := newJob(`{"id": "`+taken+`", "type": "x", "args": []}`, nil)
	one := func() error { _, err := b.Enqueue(t.Context(), job); return err }
	many := func() error {
		_, err := b.EnqueueMany(t.Context(), []*NewJob{job}, nil)
		return err
	}
	for _, enqueue := range []func() error{one, many} {
		var known *pg.Error
		if err := b.Dispatcher.db.Err(enqueue()); !errors.As(err, &known) || known.Code != "backend_unavailable" || !known.Retryable {
			t.Errorf("%v", err)
		}
	}

	// A caller who leaves has it tried no more.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = b.Enqueue(ctx, job)
		_, _ = b.EnqueueMany(ctx, []*NewJob{job}, nil)
	}()
	before := b.Statements()
	pgtest.Eventually(b.t, "it was tried", func() bool { return b.Statements() > before })
	cancel()
	<-gone
	b.idling()
	end("rollback")
	if n := b.count("select count(*) from ojs.job"); n != 0 {
		t.Errorf("%d jobs", n)
	}
}

func TestCannedJobsTouchNoDatabase(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	held := b.active(1)
	canned := New(b.Dispatcher.db, nil, b.log, Options{Canned: func(n int) []sqlcgen.OjsJob { return make([]sqlcgen.OjsJob, n) }})
	for _, job := range []string{`{"type": "x", "args": []}`, `{"type": "x", "args": [], "id": "019539a4-0000-7000-8000-000000000001"}`} {
		if _, err := canned.Enqueue(t.Context(), newJob(job, nil)); err != nil {
			t.Error(err)
		}
	}
	if _, err := canned.EnqueueMany(t.Context(), []*NewJob{newJob(`{"type": "x", "args": []}`, nil)}, nil); err != nil {
		t.Error(err)
	}
	if r := canned.Settle(t.Context(), []Settlement{{ID: held[0].ID}, {ID: held[0].ID, Requeue: true}}, true); r[0].Err != nil || r[1].Err != nil {
		t.Errorf("%+v", r)
	}
	canned.GiveBack(held)
	if n := b.count("select count(*) from ojs.job where state = 'active'"); n != 1 || b.count("select count(*) from ojs.job") != 1 {
		t.Errorf("%d jobs are active", n)
	}
}

// --- everything at once ---

func TestNothingIsLostWhenCallersComeAndGo(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 40})
	const total = 3000
	queues := []string{"q1", "q2", "q3"}
	var work, made sync.WaitGroup
	for p := range 6 {
		made.Go(func() {
			tenant := fmt.Sprint("t", p%3)
			for i := p; i < total; i += 6 {
				job := fmt.Sprintf(`{"type": "x", "args": [%d], "queue": "%s"}`, i, queues[i%3])
				if _, err := b.Enqueue(t.Context(), newJob(job, &tenant)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	var completed atomic.Int64
	for w := range 24 {
		work.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				// Some have patience, or a slow machine would never serve anybody in time.
				patience := rand.N(8 * time.Millisecond)
				if rand.IntN(6) == 0 {
					patience = 5 * time.Second
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				f := Fetch{Queues: queues[:1+w%3], Count: 1 + rand.IntN(12), Wait: time.Second, WorkerID: fmt.Sprint("w", w)}
				if w%5 == 0 {
					tenant := fmt.Sprint("t", w%3)
					f.Tenant = &tenant
				}
				jobs, err := b.Fetch(ctx, f)
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) || len(jobs) > 0 {
						t.Errorf("%d jobs and %v", len(jobs), err)
					}
					continue
				}
				if rand.IntN(10) == 0 {
					b.GiveBack(jobs)
					continue
				}
				acks := make([]Settlement, len(jobs))
				for i := range jobs {
					acks[i] = Settlement{ID: jobs[i].ID, Lease: jobs[i].Lease}
				}
				settled := b.Settle(t.Context(), acks, false)
				for i := range settled {
					if settled[i].Err != nil || settled[i].Job.Attempt != 1 {
						t.Errorf("%+v", settled[i])
					}
				}
				completed.Add(int64(len(settled)))
			}
		})
	}
	made.Wait()
	pgtest.Eventually(b.t, "all are done", func() bool { return completed.Load() == total })
	close(done)
	work.Wait()
	b.stop()
	if n := b.count("select count(*) from ojs.job where state = 'completed' and attempt = 1"); n != total {
		t.Errorf("%d jobs completed at their first attempt", n)
	}
	var firsts []int
	rows, err := b.db.Pool.Query(t.Context(), "select (args ->> 0)::int from ojs.job order by 1")
	if err == nil {
		firsts, err = pgx.CollectRows(rows, pgx.RowTo[int])
	}
	if err != nil || len(slices.Compact(firsts)) != total {
		t.Errorf("%d jobs (%v)", len(firsts), err)
	}
}
