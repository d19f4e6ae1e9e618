package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestRequestsThatComeTogetherGetFairSlicesOfOneDecision(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec(`select ojs.configure_tenant('a', 2), ojs.configure_tenant('b', 1);
		select ojs.enqueue('x', p_queue => 'q', p_tenant => t) from unnest(array['a', 'b']) t, generate_series(1, 100)`)
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q"}, Count: 3})
	var rest []<-chan answer
	for i := range 20 {
		rest = append(rest, b.later(t.Context(),
			Fetch{Queues: []string{"q"}, Count: 3, WorkerID: fmt.Sprint("w", i), VisibilityTimeoutMs: 60000 + i}))
		b.arrived(i + 1)
	}
	goOn()
	b.want(first, 3)
	seq := map[string]int64{"a": 0, "b": 0}
	for i, c := range rest {
		shares := map[string]int{}
		for _, j := range b.want(c, 3) {
			shares[j.TenantID]++
			// Requests are served in the order in which they came.
			if j.Seq == nil || *j.Seq <= seq[j.TenantID] {
				t.Errorf("request %d got job %v of %s after %d", i, *j.Seq, j.TenantID, seq[j.TenantID])
			}
			seq[j.TenantID] = *j.Seq
			if lease := j.LeaseExpiresAt.Sub(*j.StartedAt); *j.WorkerID != fmt.Sprint("w", i) ||
				lease != time.Duration(60000+i)*time.Millisecond {
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
	// A request for three jobs of q3 and q2 may begin with either.
	b.exec("select ojs.enqueue('x', p_queue => q, p_tenant => 'a') from unnest(array['q1', 'q2', 'q3']) q, generate_series(1, 4)")
	tenant, bad := "a", "no tenant!"
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q1"}})
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
	goOn()
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
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q"}})
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
	goOn()
	b.want(first, 1)
}

// A request that Fetch.acceptable accepts and SQL refuses gets the error alone: the requests of its
// decision are decided one by one.
func TestAnErrorOfOneRequestReachesNoOther(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec(`alter table ojs.job_all add constraint no_bad_workers check (worker_id <> 'bad');
		select ojs.enqueue('x', p_queue => q) from unnest(array['q1', 'q2']) q, generate_series(1, 5)`)
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q1"}})
	good := []<-chan answer{b.later(t.Context(), Fetch{Queues: []string{"q1"}}), b.later(t.Context(), Fetch{Queues: []string{"q2"}})}
	b.arrived(2)
	bad := b.later(t.Context(), Fetch{Queues: []string{"q1"}, WorkerID: "bad"})
	b.arrived(3)
	good = append(good, b.later(t.Context(), Fetch{Queues: []string{"q1"}, Count: 3}))
	b.arrived(4)
	goOn()
	b.want(first, 1)
	b.want(good[0], 1)
	b.want(good[1], 1)
	b.want(good[2], 3)
	if a := <-bad; problem(a.err) != "invalid_request" {
		t.Errorf("got %d jobs and %v", len(a.jobs), a.err)
	}
}

// One of two requests is refused, so each is decided by itself. The call for the other one stops early.
func TestARequestDecidedByItselfIsAskedAgainIfTheCallStopsEarly(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	fetch, cut := b.send.fetch, false
	b.send.fetch = func(ctx context.Context, parts []*part) error {
		if p := parts[0]; !cut && len(p.requests) == 1 && p.requests[0].WorkerID == "good" {
			cut = true
			p.fetched = fetched{runs: make([]run, 1), cut: true}
			return nil
		}
		return fetch(ctx, parts)
	}
	b.exec(`alter table ojs.job_all add constraint no_bad_workers check (worker_id <> 'bad');
		select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 3)`)
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q"}})
	bad := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "bad"})
	b.arrived(1)
	good := b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "good"})
	b.arrived(2)
	goOn()
	b.want(first, 1)
	b.want(good, 1)
	if a := <-bad; problem(a.err) != "invalid_request" {
		t.Errorf("got %d jobs and %v", len(a.jobs), a.err)
	}
	if !cut {
		t.Error("no call for the request alone")
	}
}

func TestADecisionIsBounded(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{Jobs: 10})
	b.exec("select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 95)")
	first, goOn := b.deciding(t.Context(), Fetch{Queues: []string{"q"}, Count: 25}) // more than fits goes alone
	all := []<-chan answer{first}
	for i := range 20 {
		all = append(all, b.later(t.Context(), Fetch{Queues: []string{"q"}, Count: 5}))
		b.arrived(i + 1)
	}
	goOn()
	b.want(all[0], 25)
	for i, c := range all[1:] {
		// The last decision gets nothing, which answers the requests that had no room in it, too.
		b.want(c, []int{5, 0}[min(i/14, 1)])
	}
	if n := b.Statements(); n != 9 {
		t.Errorf("%d statements", n)
	}
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
	ctx, hangUp = context.WithCancel(t.Context())
	gone, goOn := b.deciding(ctx, Fetch{Queues: []string{"r"}, Count: 4, Wait: time.Hour})
	hangUp()
	if a := <-gone; !errors.Is(a.err, context.Canceled) {
		t.Fatalf("got %v", a.err)
	}
	goOn()
	pgtest.Eventually(b.t, "the jobs are given back", func() bool {
		return b.count("select count(*) from ojs.release where to_state = 'available'") == 4
	})
	for _, j := range b.want(b.later(t.Context(), Fetch{Queues: []string{"r"}, Count: 5}), 5) {
		if j.Attempt != 1 {
			t.Errorf("attempt %d", j.Attempt)
		}
	}
}
