package db_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// inPool returns the queues of the jobs that a FETCH in a pool gets.
func inPool(t *testing.T, q querier, pool, queues string, count int, more ...string) string {
	t.Helper()
	return strings.Join(list[string](t, q, "select queue from ojs.fetch($1::text[], $2, p_pool => $3"+strings.Join(more, "")+")",
		queues, count, pool), "")
}

func pooled(t *testing.T, q querier, pool, config string) {
	t.Helper()
	exec(t, q, "select ojs.configure_pool($1, $2::text::jsonb)", pool, config)
}

// Workers of a pool get jobs of its queues only, in the pool's order; others are served as before.
func TestAPoolsQueues(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 50)
	}
	pooled(t, service, "narrow", `{"queues": ["b", "a"], "strategy": "strict"}`)
	for _, c := range []struct{ pool, queues, want string }{
		{"narrow", "{a,b,c}", "bbbb"},
		{"narrow", "{a,c}", "aaaa"},
		{"default", "{a,b,c}", "abca"},
		{"unknown", "{b,c}", "bcbc"},
	} {
		if got := inPool(t, service, c.pool, c.queues, 4); got != c.want {
			t.Errorf("pool %s, queues %s: %s, want %s", c.pool, c.queues, got, c.want)
		}
	}
	refused(t, service, "OJ422", "select ojs.fetch('{c}', 1, p_pool => 'narrow')")
	// Workers that name no pool are in pool default.
	pooled(t, service, "default", `{"queues": ["c"]}`)
	if got := from(t, service, "{a,b,c}", 3, "", ""); got != "ccc" {
		t.Errorf("of pool default: %s", got)
	}
	exec(t, service, "select ojs.pause('b')")
	if got := inPool(t, service, "narrow", "{b}", 3); got != "" {
		t.Errorf("of a paused queue %s", got)
	}
	// A queue that is named twice is one.
	got := lines(t, d.Pool, "select queues from ojs._ask('{c,a,a,c}', '{1}', '{null}', '{0}', null, 1, null, null, 'none')")
	if got[0] != "[c a]" {
		t.Errorf("queues %s", got)
	}
}

// No pool but the one that isolates a queue gets its jobs (fair-scheduling section 14.2).
func TestIsolatedQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"payments", "default", "email"} {
		fill(t, service, queue, 20)
	}
	pooled(t, service, "payment-workers",
		`{"name": "payment-workers", "queues": ["payments"], "concurrency": 10, "strategy": "strict", "isolated": true}`)
	pooled(t, service, "general-workers", `{"queues": ["default", "email", "notifications"], "concurrency": 50, "strategy": "round-robin"}`)
	for _, pool := range []string{"default", "general-workers", "unknown"} {
		if got := inPool(t, service, pool, "{payments,default,email}", 4); got != "defaultemaildefaultemail" {
			t.Errorf("pool %s gets %s", pool, got)
		}
		refused(t, service, "OJ422", "select ojs.fetch('{payments}', 1, p_pool => $1)", pool)
	}
	if got := inPool(t, service, "payment-workers", "{payments,default}", 99); got != strings.Repeat("payments", 10) {
		t.Errorf("the pool gets %s", got)
	}
	refused(t, service, "OJ409", `select ojs.configure_pool('second', '{"queues": ["email", "payments"], "isolated": true}')`)
	refused(t, service, "OJ409", "select ojs.delete_pool('payment-workers')")
	exec(t, service, "select ojs.delete_pool('payment-workers', true)")
	if got := inPool(t, service, "default", "{payments}", 2); got != "paymentspayments" {
		t.Errorf("afterwards others get %s", got)
	}
}

// tenantsOf returns the tenants of the jobs that a FETCH in a pool gets.
func tenantsOf(t *testing.T, q querier, pool string, count int) string {
	t.Helper()
	return strings.Join(list[string](t, q, "select tenant_id from ojs.fetch('{q}', $1, p_pool => $2)", count, pool), "")
}

// A pool that is bound to tenants gets their jobs only, by weight; with isolated, no other pool gets them (multi-tenancy section 7.3).
func TestPoolsOfTenants(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.configure_tenant('b', 2)")
	for _, tenant := range []string{"a", "b", "c"} {
		enqueueFor(t, service, "q", tenant, 60)
	}
	pooled(t, service, "bound", `{"tenants": ["a", "b"]}`)
	if got := tenantsOf(t, service, "bound", 12); strings.Count(got, "a") != 4 || strings.Count(got, "b") != 8 {
		t.Errorf("bound: %s", got)
	}
	if got := tenantsOf(t, service, "default", 12); strings.Count(got, "c") < 4 {
		t.Errorf("default, where c is behind: %s", got)
	}
	refused(t, service, "OJ422", "select ojs.fetch('{q}', 1, p_pool => 'bound', p_tenant => 'c')")
	pooled(t, service, "bound", `{"tenants": ["a", "b"], "isolated": true}`)
	if got := tenantsOf(t, service, "default", 30); got != strings.Repeat("c", 30) {
		t.Errorf("others get %s", got)
	}
	// Tenants that come behind their backs are served together with those who were there, and not after them.
	enqueueFor(t, service, "q", "d", 10)
	pooled(t, service, "bound", `{"tenants": ["a", "b", "d"], "isolated": true}`)
	got := tenantsOf(t, service, "bound", 8)
	if strings.Count(got, "a") != 2 || strings.Count(got, "b") != 4 || strings.Count(got, "d") != 2 {
		t.Errorf("bound: %s", got)
	}
	exec(t, service, "select ojs.delete_pool('bound', true)")
	// When all pools serve all tenants again, no tenant has to make up for jobs that others got meanwhile.
	got = tenantsOf(t, service, "default", 10)
	if strings.Count(got, "c") < 1 || strings.Count(got, "b") > 5 {
		t.Errorf("afterwards: %s", got)
	}
}

// When an isolated pool's tenant is served among all again, what the pool has given it meanwhile is not held against it, nor what it has
// not given it held in its favour, whether it has work then or comes with work later.
func TestIsolationOfATenantIsLifted(t *testing.T) {
	t.Parallel()
	const isolated = `{"tenants": ["own"], "isolated": true}`
	for name, lift := range map[string]string{
		"deleted":          "select ojs.delete_pool('bound', true)",
		"not isolated":     `select ojs.configure_pool('bound', '{"tenants": ["own"]}')`,
		"of other tenants": `select ojs.configure_pool('bound', '{"tenants": ["other"], "isolated": true}')`,
	} {
		for _, c := range []struct {
			name           string
			jobs, own, all int // jobs of the tenant, how many its pool gives it, and others everybody else
		}{
			{"ahead", 1000, 300, 20},
			{"behind", 1000, 20, 300},
			{"ahead without work", 300, 300, 20},
		} {
			t.Run(name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				d := pgtest.New(t)
				service := d.Service()
				enqueueFor(t, service, "q", "own", c.jobs)
				enqueueFor(t, service, "q", "a", 1000)
				enqueueFor(t, service, "q", "b", 1000)
				pooled(t, service, "bound", isolated)
				tenantsOf(t, service, "bound", c.own)
				tenantsOf(t, service, "default", c.all)
				tenantsOf(t, service, "bound", 1)
				exec(t, service, lift)
				if c.jobs == c.own {
					enqueueFor(t, service, "q", "own", 1000)
				}
				wantShares(t, dealt(t, service, 30, "tenant_id", "ojs.fetch('{q}', $1)"), map[string]int{"own": 1, "a": 1, "b": 1})
				expectNone(t, d.Pool, "wrong levels", levelsDisagree)
			})
		}
	}
}

// First in, first out, a tenant that waits for the workers of an isolated pool keeps its place, and has it among all when the pool is gone.
func TestIsolationInAFIFOQueueIsLifted(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, `select ojs.configure_queue('q', '{"tenant_fairness": {"enabled": false}}')`)
	enqueueFor(t, service, "q", "own", 2)
	enqueueFor(t, service, "q", "a", 3)
	enqueueFor(t, service, "q", "b", 1)
	pooled(t, service, "bound", `{"tenants": ["own"], "isolated": true}`)
	if got := tenantsOf(t, service, "default", 2); got != "aa" {
		t.Errorf("default: %s", got)
	}
	if got := tenantsOf(t, service, "bound", 1); got != "own" {
		t.Errorf("bound: %s", got)
	}
	if got := tenantsOf(t, service, "default", 9); got != "ab" {
		t.Errorf("default: %s", got)
	}
	exec(t, service, "select ojs.delete_pool('bound', true)")
	if got := tenantsOf(t, service, "default", 9); got != "own" {
		t.Errorf("afterwards: %s", got)
	}
}

// What holds for all FETCHes goes before the pool, that before what the worker has registered with, that before the FETCH.
func TestSettingsOfServerPoolWorkerAndFetch(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"a", "b"} {
		fill(t, service, queue, 90)
	}
	const asks = ", p_strategy => 'weighted', p_weights => '{\"a\": 5}', p_worker_id => 'w'"
	for _, step := range []struct{ then, want string }{
		{"", "aaaaba"},
		{"select ojs.register_worker('w', p_pool => 'p', p_strategy => 'weighted', p_weights => '{\"b\": 5}')", "babbbb"},
		{"select ojs.configure_pool('p', '{\"strategy\": \"strict\"}')", "aaaaaa"},
		{"select ojs.configure_pool('p', '{\"strategy\": \"weighted\", \"weights\": {\"a\": 2}}')", "aabaab"},
		{"select ojs.configure_pool('*', '{\"strategy\": \"round-robin\"}')", "ababab"},
		{"select ojs.delete_pool('*')", "aabaab"},
	} {
		if step.then != "" {
			exec(t, service, step.then)
		}
		if got := inPool(t, service, "p", "{a,b}", 6, asks); got != step.want {
			t.Errorf("after %q: %s, want %s", step.then, got, step.want)
		}
	}
}

// A worker is in one pool.
func TestAWorkerIsInOnePool(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	fill(t, service, "a", 9)
	pooled(t, service, "p", `{"queues": ["b"]}`)
	exec(t, service, "select ojs.heartbeat('w'), ojs.beat('w', p_pool => 'p'), ojs.heartbeat('shared')")
	// Nobody names a pool for another's worker, nor while its transaction stays open, which would hold up heartbeats.
	exec(t, connect(t, d.TenantURL("acme")), "select ojs.fetch('{a}', 1, 'shared', p_pool => 'other')")
	expectNone(t, d.Pool, "named by a tenant", "select pool from ojs.worker where worker_id = 'shared' and pool is not null")
	refused(t, service, "OJ409", "select ojs.beat('w', p_pool => 'other')")
	refused(t, service, "OJ409", "select ojs.fetch('{a}', 1, 'w', p_pool => 'other')")
	refused(t, service, "OJ422", "select ojs.fetch('{a}', 1, 'w')")
	exec(t, service, "select ojs.register_worker('w')")
	if got := inPool(t, service, "other", "{a}", 1, ", p_worker_id => 'w'"); got != "a" {
		t.Errorf("a worker that registered anew gets %q", got)
	}
	// Its first FETCH has named its pool.
	refused(t, service, "OJ409", "select ojs.beat('w', p_pool => 'p')")
	refused(t, service, "OJ409", "select ojs.fetch('{a}', 1, 'w', p_pool => 'p')")
	refused(t, service, "OJ400", "select ojs.fetch('{a}', 1, 'unknown', p_pool => '')")
	refused(t, service, "OJ400", "select ojs.beat('w', p_pool => '')")
	refused(t, service, "OJ422", "select ojs.beat('w', p_strategy => 'fair')")
}

// One call serves requests that are to be served in one way; the others are told how to ask again.
func TestRequestsOfSeveralPools(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "a", 9)
	fill(t, service, "b", 9)
	exec(t, service, "select ojs.register_worker('one', p_pool => 'p')")
	exec(t, service, "select ojs.register_worker('two', p_pool => 'p', p_strategy => 'weighted', p_weights => '{\"a\": 3, \"z\": 9}')")
	exec(t, service, "select ojs.register_worker('quiet')")
	exec(t, service, "select ojs.direct_worker('quiet', 'quiet')")
	got := lines(t, service, "select request, worker_id, queue, meta "+
		"from ojs.fetch_many('{a,b}', '{1,1,1,1}', '{quiet,one,two,none}', '{0,0,0,0}')")
	want := []string{
		"2 one a map[]", "- none - map[pool:default]", "- quiet - -",
		"- two - map[pool:p strategy:weighted weights:map[a:3]]",
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	again := list[string](t, service, "select worker_id from ojs.fetch_many('{a,b}', '{4}', '{two}', '{0}', p_pool => 'p', "+
		`p_strategy => 'weighted', p_weights => '{"a": 3}')`)
	if len(again) != 4 {
		t.Errorf("asked again: %v", again)
	}
}

// guaranteed returns an error if, in a sequence of dispatches from queues that always have jobs, a queue
// has less than its share: in any stretch of d dispatches at least floor(ratio * d) - 1.
func guaranteed(sequence string, queues string, ratio float64) error {
	for _, queue := range queues {
		for from := range sequence {
			got := 0
			for d, c := range sequence[from:] {
				if c == queue {
					got++
				}
				if got < int(ratio*float64(d+1)+1e-9)-1 {
					return fmt.Errorf("queue %c has %d of %d dispatches from %d on", queue, got, d+1, from)
				}
			}
		}
	}
	return nil
}

// The example of fair scheduling section 8.2: of three queues each gets 5 % at least, and the first in line the rest; and that of section
// 14.3, with 10 %.
func TestAMinimumForEachQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, strategy, weights string
		ratio                   float64
		want                    [3]int // of 200
	}{
		{"strict, 5 %", "strict", "{}", 0.05, [3]int{180, 10, 10}},
		{"strict, 10 %", "strict", "{}", 0.1, [3]int{160, 20, 20}},
		{"weighted, 10 %", "weighted", `{"a": 98}`, 0.1, [3]int{160, 20, 20}},
		{"weighted, which gives more", "weighted", `{"a": 2}`, 0.1, [3]int{100, 50, 50}},
		{"least-loaded", "least-loaded", "{}", 0.1, [3]int{160, 20, 20}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			service := pgtest.New(t).Service()
			fill(t, service, "a", 1000)
			fill(t, service, "b", 300)
			fill(t, service, "c", 300)
			pooled(t, service, "general", fmt.Sprintf(`{"queues": ["a", "b", "c"], "strategy": %q, "weights": %s,
				"starvation_prevention": {"enabled": true, "rotation_interval": "PT30S", "min_dispatch_ratio": %g}}`,
				c.strategy, c.weights, c.ratio))
			sequence := ""
			for len(sequence) < 200 {
				sequence += inPool(t, service, "general", "{a,b,c}", min(1+rand.IntN(30), 200-len(sequence)))
			}
			got := [3]int{strings.Count(sequence, "a"), strings.Count(sequence, "b"), strings.Count(sequence, "c")}
			for i := range got {
				if got[i] < c.want[i]-2 || got[i] > c.want[i]+2 {
					t.Errorf("%v of 200 dispatches, want %v", got, c.want)
				}
			}
			if err := guaranteed(sequence, "abc", c.ratio); err != nil {
				t.Errorf("%v: %s", err, sequence)
			}
		})
	}
}

// A minimum for each of a hundred queues is planned dispatch by dispatch, while others wait; so an answer ends early, and the next goes on.
func TestAMinimumForAHundredQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	queues := make([]string, 100)
	for i := range queues {
		queues[i] = fmt.Sprintf("q%d", i)
	}
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[25]), p_queue => q) from unnest($1::text[]) q", queues)
	pooled(t, service, "general", `{"strategy": "strict", "starvation_prevention": {"enabled": true, "min_dispatch_ratio": 0.01}}`)
	const some = "select request, queue from ojs.fetch_many($1, '{2000}', '{null}', '{0}', p_pool => 'general')"
	for _, want := range []int{1001, 1001, 500, 0} {
		got := lines(t, service, some, queues)
		if len(got) != want || want == 1001 && !slices.Contains(got, "0 -") {
			t.Fatalf("%d rows, want %d: %v", len(got), want, got)
		}
	}
}

// Queues come and go; each job is handed out, none twice, nothing eligible is left, and the minimum holds while all have jobs.
func TestAMinimumForQueuesThatComeAndGo(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	r := rand.New(rand.NewPCG(seed, 0))
	d := pgtest.New(t)
	service := d.Service()
	pooled(t, service, "general", `{"strategy": "strict", "starvation_prevention": {"enabled": true, "min_dispatch_ratio": 0.2}}`)
	for range 80 {
		for _, queue := range []string{"a", "b", "c"} {
			if r.IntN(3) == 0 {
				fill(t, service, queue, 1+r.IntN(6))
			}
		}
		n := 1 + r.IntN(8)
		left := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'available'")
		if got := inPool(t, service, "general", "{a,b,c}", n); len(got) != min(n, left) {
			t.Fatalf("seed %d: asked for %d of %d and got %q", seed, n, left, got)
		}
	}
}

// A queue with jobs that gave none for a rotation interval goes next, whatever the strategy.
func TestRotation(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 100)
	}
	pooled(t, service, "general", `{"queues": ["a", "b", "c"], "strategy": "strict",
		"starvation_prevention": {"enabled": true, "rotation_interval": "PT1H", "min_dispatch_ratio": 0}}`)
	for _, want := range []string{"aaaaa", "bcaaa", "aaaaa", "bcaaa"} {
		if got := inPool(t, service, "general", "{a,b,c}", 5); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if want == "aaaaa" {
			exec(t, d.Pool, "update ojs.rotation set served = array[now(), now() - interval '1 hour', now() - interval '1 hour']")
		}
	}
	// A queue that had no jobs meanwhile has not been passed over.
	exec(t, service, "select ojs.fetch('{c}', 100)")
	inPool(t, service, "general", "{a,b,c}", 1)
	exec(t, d.Pool, "update ojs.rotation set served = array[now(), now(), served[3]]")
	fill(t, service, "c", 5)
	if got := inPool(t, service, "general", "{a,b,c}", 2); got != "aa" {
		t.Errorf("%s, want aa", got)
	}
}

// Least-loaded takes from the queue with most jobs.
func TestTheDeepestQueueFirst(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "a", 3)
	fill(t, service, "b", 6)
	if got := from(t, service, "{a,b}", 5, "least-loaded", ""); got != "bbbab" {
		t.Errorf("%s, want bbbab", got)
	}
	fill(t, service, "a", 10)
	tick(t, service, 1000)
	if got := from(t, service, "{a,b}", 20, "least-loaded", ""); got != strings.Repeat("a", 10)+"abab" {
		t.Errorf("%s, want ten of a first", got)
	}
}

// endsOfAttempts are statements for all ways in which the attempt of a job, $1, can end.
var endsOfAttempts = map[string]string{
	"ack":          "select ojs.ack($1)",
	"ack_many":     "select ojs.ack_many(array[$1::uuid])",
	"nack":         `select ojs.nack($1, '{"message": "no"}')`,
	"settle":       `select ojs.settle(json_build_array(json_build_object('id', $1::text, 'error', '{"message": "no"}'::json)))`,
	"settled":      `select ojs.settle(json_build_array(json_build_object('id', $1::text)))`,
	"release":      "select ojs.release(id, lease) from ojs.job where id = $1",
	"release_many": "select ojs.release_many(array[id], array[lease]) from ojs.job where id = $1",
	"cancel":       "select ojs.cancel($1)",
	"the clock":    "update ojs.job set lease_expires_at = now() - interval '1 s' where id = $1",
}

// endAttempt ends the attempt of a job by one of endsOfAttempts.
func endAttempt(t *testing.T, d *pgtest.DB, how, job string) {
	t.Helper()
	exec(t, d.Pool, endsOfAttempts[how], job)
	if how == "the clock" {
		exec(t, d.Pool, "update ojs.lease set due_at = now() - interval '1 s'")
		exec(t, d.Pool, "update ojs.clock_mark set lease_at = '-infinity'")
		tick(t, d.Pool, 1000)
	}
}

// Every way in which an attempt can end makes room in its pool.
func TestEveryEndMakesRoomInAPool(t *testing.T) {
	t.Parallel()
	for name := range endsOfAttempts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			fill(t, service, "a", 3)
			pooled(t, service, "p", `{"concurrency": 1}`)
			job := one[string](t, service, "select id::text from ojs.fetch('{a}', 3, p_pool => 'p')")
			if got := inPool(t, service, "p", "{a}", 3); got != "" {
				t.Fatalf("beyond the limit: %s", got)
			}
			endAttempt(t, d, name, job)
			if got := inPool(t, service, "p", "{a}", 3); got != "a" {
				t.Errorf("after the end of its job: %q", got)
			}
		})
	}
}

// A limit counts what the pool's workers run already, before and after a roll-up and a rebuild; lowered, it stops new dispatch only; and
// others are not held back.
func TestAPoolsLimitCountsWhatRunsAlready(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	fill(t, service, "a", 20)
	pooled(t, service, "p", `{}`)
	held := list[string](t, service, "select id::text from ojs.fetch('{a}', 4, p_pool => 'p')")
	pooled(t, service, "p", `{"concurrency": 5}`)
	tick(t, service, 1000)
	if got := inPool(t, service, "p", "{a}", 9); got != "a" {
		t.Errorf("of 5 with 4 running: %q", got)
	}
	pooled(t, service, "p", `{"concurrency": 3}`)
	exec(t, service, "select ojs.ack_many($1::uuid[])", held[:2])
	exec(t, d.Pool, "select ojs.rebuild()")
	if got := inPool(t, service, "p", "{a}", 9); got != "" {
		t.Errorf("of 3 with 3 running: %q", got)
	}
	if got := inPool(t, service, "default", "{a}", 2); got != "aa" {
		t.Errorf("others get %q", got)
	}
	exec(t, service, "select ojs.ack_many($1::uuid[])", held[2:3])
	if got := inPool(t, service, "p", "{a}", 9); got != "a" {
		t.Errorf("of 3 with 2 running: %q", got)
	}
	stats := lines(t, service, "select active_jobs, utilization::text, dispatched from ojs.pool_stats where name = 'p'")
	if stats[0] != "3 1.0000 6" {
		t.Errorf("statistics: %v", stats)
	}
}

// An end in a pool that is full wakes who waits.
func TestRoomInAPoolWakesWhoWaits(t *testing.T) {
	t.Parallel()
	e := newEar(t)
	pooled(t, e.service, "p", `{"queues": ["q", "r"], "concurrency": 1}`)
	q, other := e.register(firstServer, "q"), e.register(firstServer, "other")
	fill(t, e.service, "q", 2)
	fill(t, e.service, "r", 2)
	fill(t, e.service, "other", 2)
	e.expect("jobs come", q, other)
	job := one[string](t, e.service, "select id::text from ojs.fetch('{r}', 1, p_pool => 'p')")
	for range 5 {
		if got := inPool(t, e.service, "p", "{q,r}", 1); got != "" {
			t.Errorf("beyond the limit %s", got)
		}
	}
	exec(t, e.service, "select ojs.ack($1)", job)
	e.expect("the pool has room", q)
}

// What a pool cannot be is refused, with the field, and changes nothing.
func TestConfigurationsOfPoolsAreChecked(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	const prevention = "starvation_prevention"
	for config, want := range map[string]string{
		`[]`:                      "OJ400 config",
		`{"queue": ["a"]}`:        "OJ400 queue",
		`{"queues": []}`:          "OJ422 queues",
		`{"queues": "a"}`:         "OJ422 queues",
		`{"queues": ["A b"]}`:     "OJ422 queues",
		`{"concurrency": 0}`:      "OJ422 concurrency",
		`{"concurrency": "many"}`: "OJ422 concurrency",
		`{"concurrency": 1.5}`:    "OJ422 concurrency",
		`{"concurrency": 1, "max_concurrency": 2}`:                 "OJ422 concurrency",
		`{"strategy": "fair"}`:                                     "OJ422 strategy",
		`{"strategy": 1}`:                                          "OJ422 strategy",
		`{"weights": {"a": 0}}`:                                    "OJ422 weights",
		`{"weights": {"a": null}}`:                                 "OJ422 weights",
		`{"queues": {"a": {"weight": null}}}`:                      "OJ422 weights",
		`{"weights": [1]}`:                                         "OJ422 weights",
		`{"isolated": "yes"}`:                                      "OJ422 isolated",
		`{"isolated": true}`:                                       "OJ422 queues",
		`{"tenants": ["not a name"]}`:                              "OJ422 tenants",
		`{"name": "q"}`:                                            "OJ400 name",
		`{"starvation_prevention": 1}`:                             "OJ422 starvation_prevention",
		`{"starvation_prevention": {"ratio": 1}}`:                  "OJ422 starvation_prevention.ratio",
		`{"starvation_prevention": {"min_dispatch_ratio": 2}}`:     "OJ422 " + prevention + ".min_dispatch_ratio",
		`{"starvation_prevention": {"rotation_interval": "soon"}}`: "OJ422 " + prevention + ".rotation_interval",
		`{"queues": ["a", "b"], "starvation_prevention": {"enabled": true, "min_dispatch_ratio": 0.51}}`: "OJ422 " + prevention +
			".min_dispatch_ratio",
	} {
		failure := refused(t, service, "OJ400 OJ422", "select ojs.configure_pool('p', $1::text::jsonb)", config)
		if got := fmt.Sprint(failure.Code, " ", detail(t, failure)["field"]); got != want {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
	refused(t, service, "OJ422", `select ojs.configure_pool('*', '{"queues": ["a"]}')`)
	refused(t, service, "OJ400", `select ojs.configure_pool('a b', '{}')`)
	// With an older snapshot, two pools could isolate the same queue.
	tx, err := service.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, tx, "OJ408", "select ojs.configure_pool('p', '{}')")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What the same transaction has fetched would not be counted.
	if tx, err = service.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(t, service, "work", 1)
	exec(t, tx, "select ojs.fetch('{work}')")
	failure := refused(t, tx, "OJ409", "select ojs.configure_pool('p', '{}')")
	if detail(t, failure)["field"] != "transaction" || !strings.Contains(failure.Hint, "of its own") {
		t.Errorf("%s, %s", failure.Detail, failure.Hint)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(t, service, "OJ404", "select ojs.delete_pool('p')")
	expectNone(t, service, "configured", "select * from ojs.pool")
	pooled(t, service, "p", `{"queues": {"a": {"weight": 70}, "b": {"weight": 30}}, "strategy": "weighted"}`)
	if got := lines(t, service, "select queues, weights from ojs.pool"); got[0] != "[a b] map[a:70 b:30]" {
		t.Errorf("queues with weights: %v", got)
	}
}
