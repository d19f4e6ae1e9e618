package db_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Tests by the numbers of the Open Job Spec: the examples of ojs-multi-tenancy (MT) and ojs-fair-scheduling (FS), and the rows of their
// tables of conformance. A name like FS73 is section 7.3, one like FSR002 the row FS-R002, and SP is what the short page of multi-tenancy
// says about the same.

// answerSizes are the sizes of FETCHes, one after the other. Their answers end in the middle of cycles.
var answerSizes = []int{1, 1, 1, 2, 3, 1, 5, 7, 16, 1, 4, 30, 2, 9}

// dealt returns a word about each of n jobs, in the order of dispatch by FETCHes of several sizes. what is
// an expression for the word, and fetch the call, with $1 for its size.
func dealt(t *testing.T, q querier, n int, what, fetch string) []string {
	t.Helper()
	var all []string
	for i := 0; len(all) < n; i++ {
		size := min(answerSizes[i%len(answerSizes)], n-len(all))
		// In one message: who has been in its transaction for 20 ms fetches without the lane.
		got := list[string](t, q, "select "+what+" from "+fetch, pgx.QueryExecModeSimpleProtocol, size)
		if len(got) != size {
			t.Fatalf("a FETCH of %d jobs gets %d, after %d", size, len(got), len(all))
		}
		all = append(all, got...)
	}
	return all
}

const fetchWork = "ojs.fetch('{work}', $1)"

// wantShares checks that each full cycle of a sequence holds exactly the shares, and that after any number
// of dispatches no tenant is further from its share than lagBound.
func wantShares(t *testing.T, sequence []string, shares map[string]int) {
	t.Helper()
	cycle := 0
	for _, share := range shares {
		cycle += share
	}
	if len(sequence)%cycle != 0 || len(sequence) == 0 {
		t.Fatalf("%d dispatches are no full cycles of %d", len(sequence), cycle)
	}
	had := map[string]int{}
	for i, name := range sequence {
		had[name]++
		for who, share := range shares {
			part := float64((i+1)*share) / float64(cycle)
			if (i+1)%cycle == 0 && had[who]*cycle != (i+1)*share {
				t.Fatalf("after %d full cycles %s had %d, its part is %v", (i+1)/cycle, who, had[who], part)
			}
			if math.Abs(float64(had[who])-part) > lagBound {
				t.Fatalf("after %d dispatches %s had %d, its part is %.2f: %v", i+1, who, had[who], part, sequence[:i+1])
			}
		}
	}
	if len(had) != len(shares) {
		t.Errorf("dispatched: %v", had)
	}
}

// wantTurns checks that each of a number of names comes once in every round, in the same order. It returns
// the order, which for tenants is that of their first jobs.
func wantTurns(t *testing.T, sequence []string, names int) []string {
	t.Helper()
	for i, name := range sequence {
		if at := slices.Index(sequence[:i], name); at != i%names && (at >= 0 || i >= names) {
			t.Fatalf("dispatch %d is of %s: %v", i+1, name, sequence)
		}
	}
	return sequence[:names]
}

// --- ojs-multi-tenancy ---

// MT 7.1: tenants take turns, one job each, whatever the depth of their queues; who has no more is left out.
func TestMT71RoundRobinOfTenants(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "work", "a", 100_000)
	enqueueFor(t, service, "work", "b", 10)
	enqueueFor(t, service, "work", "c", 100)
	order := slices.Clone(wantTurns(t, dealt(t, service, 30, "tenant_id", fetchWork), 3))
	order = slices.DeleteFunc(order, func(tenant string) bool { return tenant == "b" })
	if rest := dealt(t, service, 30, "tenant_id", fetchWork); !slices.Equal(wantTurns(t, rest, 2), order) {
		t.Errorf("when b has no more: %v", rest)
	}
}

// MT 7.2: weights 10, 5 and 1 are 62.5, 31.25 and 6.25 % of each sixteen dispatches.
func TestMT72Weights10To5To1(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	shares := map[string]int{"acme-corp": 10, "beta-inc": 5, "gamma-llc": 1}
	for tenant, weight := range shares {
		configureWeight(t, service, tenant, float64(weight))
		enqueueFor(t, service, "work", tenant, 300)
	}
	wantShares(t, dealt(t, service, 16*20, "tenant_id", fetchWork), shares)
}

// MT 7.3: what each of three tenants may run at once, and no more, however much there is to do.
func TestMT73ConcurrencyOfEachTenant(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for tenant, most := range map[string]int{"acme-corp": 20, "beta-inc": 10, "gamma-llc": 5} {
		exec(t, service, "select ojs.limit_concurrency($1, $2)", most, tenant)
		enqueueFor(t, service, "work", tenant, 100)
	}
	got := handedOut(t, service, "{work}", 15)
	if got != "acme-corp 5, beta-inc 5, gamma-llc 5" {
		t.Errorf("while all have room: %s", got)
	}
	if got = handedOut(t, service, "{work}", 100); got != "acme-corp 15, beta-inc 5" {
		t.Errorf("what is left: %s", got)
	}
	if got = handedOut(t, service, "{work}", 100); got != "" {
		t.Errorf("beyond the limits: %s", got)
	}
}

// MT 9.3 and 14.3: a limit that an operator lowers in an incident lets run what runs, and then holds.
func TestMT93ALimitIsLowered(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.limit_concurrency(20, 'acme-corp')")
	enqueueFor(t, service, "work", "acme-corp", 100)
	running := list[string](t, service, "select id::text from ojs.fetch('{work}', 8)", pgx.QueryExecModeSimpleProtocol)
	exec(t, service, "select ojs.limit_concurrency(5, 'acme-corp', p_reason => 'reduced while what is behind it is away')")
	for i, id := range running {
		want := ""
		if i > 3 {
			want = "acme-corp 1"
		}
		if got := handedOut(t, service, "{work}", 100); got != want {
			t.Errorf("when %d of 8 have ended: %q, want %q", i, got, want)
		}
		exec(t, service, "select ojs.ack($1)", id)
	}
}

// MT 14.1: three tiers, weights 20, 5 and 1, of whom 50, 10 and 2 jobs may run at once: shares while all have room, and then the limits.
func TestMT141ThreeTiers(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, tier := range []struct {
		tenant       string
		weight, most int
	}{{"enterprise-acme", 20, 50}, {"standard-beta", 5, 10}, {"free-gamma", 1, 2}} {
		configureWeight(t, service, tier.tenant, float64(tier.weight))
		exec(t, service, "select ojs.limit_concurrency($1, $2)", tier.most, tier.tenant)
		enqueueFor(t, service, "work", tier.tenant, 200)
	}
	wantShares(t, dealt(t, service, 2*26, "tenant_id", fetchWork),
		map[string]int{"enterprise-acme": 20, "standard-beta": 5, "free-gamma": 1})
	if got := handedOut(t, service, "{work}", 1000); got != "enterprise-acme 10" {
		t.Errorf("the other two are at their limits, and there go %s", got)
	}
	if got := handedOut(t, service, "{work}", 1000); got != "" {
		t.Errorf("all are at their limits, and there go %s", got)
	}
}

// MT 15.1: a weight that changes holds from the next dispatch on.
func TestMT151AWeightChangesAtRunTime(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "work", "a", 200)
	enqueueFor(t, service, "work", "b", 200)
	wantShares(t, dealt(t, service, 40, "tenant_id", fetchWork), map[string]int{"a": 1, "b": 1})
	configureWeight(t, service, "a", 3)
	wantShares(t, dealt(t, service, 40, "tenant_id", fetchWork), map[string]int{"a": 3, "b": 1})
}

// MT 15.3: who names no tenant is the default one, and has its turns like any other.
func TestMT153TheDefaultTenantTakesTurns(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "work", "acme", 20)
	exec(t, service, "select ojs.enqueue('a', p_queue => 'work') from generate_series(1, 20)")
	got := dealt(t, service, 40, "tenant_id", fetchWork)
	if !slices.Contains(got, "_default") {
		t.Fatalf("dispatched: %v", got)
	}
	wantShares(t, got, map[string]int{"acme": 1, "_default": 1})
}

// MT-001: the tenant is meta.tenant_id where the call names none, and two that differ are refused.
func TestMT001TheTenantIsInMeta(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, `select ojs.enqueue('a', p_queue => 'work', p_meta => '{"tenant_id": "acme-corp"}')`)
	exec(t, service, `select ojs.enqueue('a', p_queue => 'work', p_meta => '{"tenant_id": "beta-inc"}', p_tenant => 'beta-inc')`)
	refused(t, service, "OJ405", `
		select ojs.enqueue('a', p_queue => 'work', p_meta => '{"tenant_id": "beta-inc"}', p_tenant => 'acme-corp')`)
	if got := handedOut(t, service, "{work}", 10); got != "acme-corp 1, beta-inc 1" {
		t.Errorf("jobs of %s", got)
	}
}

// MT-002, 4 and 6.3: one queue for all, its tenants apart. A burst of one delays each job of the others by no more than a cycle.
func TestMT002ABurstDelaysNobody(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "work", "burst", 10_000)
	for n := range 25 {
		enqueueFor(t, service, "work", fmt.Sprintf("t%d", n), 4)
	}
	wantTurns(t, dealt(t, service, 4*26, "tenant_id", fetchWork), 26)
}

// MT-003 and 8.1: a tenant's limit is one over all queues; what it may not have, others get, and each end makes room for one.
func TestMT003ALimitOverAllQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.limit_concurrency(20, 'acme-corp')")
	for _, queue := range []string{"mail", "work"} {
		enqueueFor(t, service, queue, "acme-corp", 50)
		enqueueFor(t, service, queue, "beta-inc", 20)
	}
	// Each queue has a round of its own.
	wantShares(t, dealt(t, service, 40, "tenant_id", "ojs.fetch('{mail,work}', $1)"), map[string]int{"acme-corp": 2, "beta-inc": 2})
	if got := handedOut(t, service, "{mail,work}", 100); got != "beta-inc 20" {
		t.Errorf("at its limit, and there go %s", got)
	}
	for range 3 {
		exec(t, service, "select ojs.ack_many(array(select id from ojs.job where tenant_id = 'acme-corp' and state = 'active' limit 7))")
		if got := handedOut(t, service, "{mail,work}", 100); got != "acme-corp 7" {
			t.Errorf("after 7 ends: %s", got)
		}
	}
}

// MT-005: what the statistics of tenants say is what was dispatched.
func TestMT005StatisticsOfTenants(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for tenant, weight := range map[string]float64{"acme-corp": 10, "beta-inc": 5, "gamma-llc": 1} {
		configureWeight(t, service, tenant, weight)
		enqueueFor(t, service, "work", tenant, 300)
	}
	dealt(t, service, 16*10, "tenant_id", fetchWork)
	exec(t, service, "select ojs.ack_many(array(select id from ojs.job where tenant_id = 'beta-inc' and state = 'active' limit 8))")
	tick(t, service, 1000)
	got := lines(t, service, `
		select tenant_id, weight::float8, effective_share::float8, actual_share::float8, backlog, active, completed
		from ojs.tenant_stats order by 1`)
	want := []string{"acme-corp 10 0.625 0.625 200 100 0", "beta-inc 5 0.3125 0.3125 250 42 8", "gamma-llc 1 0.0625 0.0625 290 10 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// --- ojs-fair-scheduling ---

// FS 5.2: weights 5, 2 and 1 that a worker names, in every eight dispatches.
func TestFS52WeightsOfAWorker(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"critical", "default", "low"} {
		fill(t, service, queue, 300)
	}
	wantShares(t, dealt(t, service, 8*30, "queue", `ojs.fetch('{critical,default,low}', $1, p_strategy => 'weighted',
		p_weights => '{"critical": 5, "default": 2, "low": 1}')`), map[string]int{"critical": 5, "default": 2, "low": 1})
}

// FS 6.1: workers of a pool run twenty jobs together, critical ones before payments; where the strategy is left out, one of each in turn.
func TestFS61APool(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.configure_pools($1::text::jsonb)", fs61)
	for queue, jobs := range map[string]int{"critical": 15, "payments": 15, "mail": 15} {
		fill(t, service, queue, jobs)
	}
	got := list[string](t, service, `select queue || ' ' || count(*)
		from ojs.fetch('{payments,mail,critical}', 100, p_pool => 'critical-workers') group by queue order by 1`)
	if !slices.Equal(got, []string{"critical 15", "payments 5"}) {
		t.Errorf("dispatched %v", got)
	}
	pooled(t, service, "plain", `{"queues": ["mail", "payments"]}`)
	if got := inPool(t, service, "plain", "{payments,mail}", 4); got != "mailpaymentsmailpayments" {
		t.Errorf("by default dispatched %s", got)
	}
}

// FS 6.2: a worker names its pool when it registers, and is in that one only.
func TestFS62APoolForEachWorker(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "a", 5)
	fill(t, service, "b", 5)
	pooled(t, service, "of-a", `{"queues": ["a"]}`)
	pooled(t, service, "of-b", `{"queues": ["b"]}`)
	exec(t, service, "select ojs.register_worker('w', p_pool => 'of-a')")
	if got := list[string](t, service, "select queue from ojs.fetch('{b,a}', 3, 'w')"); strings.Join(got, "") != "aaa" {
		t.Errorf("dispatched %v", got)
	}
	for _, call := range []string{"select ojs.fetch('{b,a}', 1, 'w', p_pool => 'of-b')", "select ojs.beat('w', p_pool => 'of-b')"} {
		if failure := refused(t, service, "OJ409", call); detail(t, failure)["field"] != "pool" {
			t.Errorf("%s: %s", call, failure.Detail)
		}
	}
}

// FS 6.3 and FS-R006: of an isolated queue workers outside the pool get nothing; of one that is not, all get jobs, in a pool or not.
func TestFSR006IsolationOfPools(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "images", 40)
	fill(t, service, "mail", 40)
	const pool = `{"queues": ["images"], "isolated": %t}`
	pooled(t, service, "gpu", fmt.Sprintf(pool, true))
	pooled(t, service, "general", `{"queues": ["images", "mail"]}`)
	for _, other := range []string{"general", "default", "one-more"} {
		if got := inPool(t, service, other, "{images,mail}", 3); got != "mailmailmail" {
			t.Errorf("isolated, and pool %s gets %s", other, got)
		}
		refused(t, service, "OJ422", "select ojs.fetch('{images}', 1, p_pool => $1)", other)
	}
	if got := inPool(t, service, "gpu", "{images,mail}", 2); got != "imagesimages" {
		t.Errorf("isolated, and the pool gets %s", got)
	}
	pooled(t, service, "gpu", fmt.Sprintf(pool, false))
	for _, any := range []string{"general", "default", "one-more", "gpu"} {
		if got := inPool(t, service, any, "{images}", 2); got != "imagesimages" {
			t.Errorf("not isolated, and pool %s gets %q", any, got)
		}
	}
}

// FS 7.1: one job of each queue in a cycle, in the order of the list, whatever they hold; one that is empty is passed over, and has its
// place again when it is not.
func TestFS71RoundRobin(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "a", 10_000)
	fill(t, service, "b", 3)
	fill(t, service, "c", 50)
	const fetch = "ojs.fetch('{a,b,c}', $1, p_strategy => 'round-robin')"
	step := func(n int, want string) {
		t.Helper()
		if got := strings.Join(dealt(t, service, n, "queue", fetch), ""); got != want {
			t.Errorf("dispatched %s, want %s", got, want)
		}
	}
	step(2, "ab")
	step(7, "cabcabc")
	step(9, "acacacaca")
	fill(t, service, "b", 100)
	step(30, strings.Repeat("bca", 10))
}

// FS 7.3: weights 3, 2 and 1 are three, two and one of each six dispatches.
func TestFS73Weights3To2To1(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 300)
	}
	got := dealt(t, service, 6*40, "queue", `ojs.fetch('{a,b,c}', $1, p_strategy => 'weighted', p_weights => '{"a": 3, "b": 2, "c": 1}')`)
	wantShares(t, got, map[string]int{"a": 3, "b": 2, "c": 1})
	if got := strings.Join(got, ""); got != strings.Repeat("abaabc", 40) {
		t.Errorf("dispatched %s", got)
	}
}

// FS 8.1 and FS-R003: of queues that a strategy passes over, each goes next once it gave no job for the interval, whatever that is.
func TestFSR003RotationOfQueues(t *testing.T) {
	t.Parallel()
	for _, interval := range []string{"PT30S", "PT1H"} {
		t.Run(interval, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			for _, queue := range []string{"a", "b", "c"} {
				fill(t, service, queue, 100)
			}
			pooled(t, service, "general", fmt.Sprintf(`{"queues": ["a", "b", "c"], "strategy": "strict",
				"starvation_prevention": {"enabled": true, "rotation_interval": %q, "min_dispatch_ratio": 0}}`, interval))
			passed := func(part float64, want string) {
				t.Helper()
				exec(t, d.Pool, "update ojs.rotation set served = array_fill(now() - $1 * $2::text::interval, array[3])", part, interval)
				if got := inPool(t, service, "general", "{a,b,c}", 5); got != want {
					t.Errorf("when %g of the interval is over: %s, want %s", part, got, want)
				}
			}
			if got := inPool(t, service, "general", "{a,b,c}", 5); got != "aaaaa" {
				t.Errorf("at first: %s", got)
			}
			passed(0.5, "aaaaa")
			passed(1, "abcaa")
			passed(0.5, "aaaaa")
		})
	}
}

// FS 8.1: off is the default, and what is left out of an object that turns it on has 30 seconds and 5 %.
func TestFS81Defaults(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for prevention, want := range map[string]string{
		`{}`:                          "-",
		`{"enabled": false}`:          "-",
		`{"min_dispatch_ratio": 0.2}`: "-",
		`{"enabled": true}`:           "map[enabled:true min_dispatch_ratio:0.05 rotation_interval:PT30S]",
		`{"enabled": true, "rotation_interval": "PT30S", "min_dispatch_ratio": 0.05}`: "map[enabled:true min_dispatch_ratio:0.05 " +
			"rotation_interval:PT30S]",
	} {
		pooled(t, service, "p", `{"starvation_prevention": `+prevention+`}`)
		if got := lines(t, service, "select starvation_prevention from ojs.pool_stats"); got[0] != want {
			t.Errorf("%s is %s, want %s", prevention, got[0], want)
		}
	}
}

// minimum fetches 400 jobs of three queues for a pool with the strategy strict and a minimum of each queue.
// It returns how many jobs each queue gave.
func minimum(t *testing.T, queues [3]string, ratio float64) [3]int {
	t.Helper()
	service := pgtest.New(t).Service()
	for _, queue := range queues {
		fill(t, service, queue, 500)
	}
	pooled(t, service, "general", fmt.Sprintf(`{"queues": ["%s"], "strategy": "strict",
		"starvation_prevention": {"enabled": true, "rotation_interval": "PT30S", "min_dispatch_ratio": %g}}`,
		strings.Join(queues[:], `", "`), ratio))
	var given [3]int
	sequence := ""
	fetch := fmt.Sprintf("ojs.fetch('{%s}', $1, p_pool => 'general')", strings.Join(queues[:], ","))
	for _, queue := range dealt(t, service, 400, "queue", fetch) {
		i := slices.Index(queues[:], queue)
		given[i]++
		sequence += "abc"[i : i+1]
	}
	if err := guaranteed(sequence, "abc", ratio); err != nil {
		t.Errorf("%v: %s", err, sequence)
	}
	return given
}

// FS 8.2: with three queues and a minimum of 5 % each, the first has the rest, 90 %, which is no less than the 85 % that are left to share.
func TestFS82ThreeQueuesAndFivePercent(t *testing.T) {
	t.Parallel()
	if got := minimum(t, [3]string{"a", "b", "c"}, 0.05); got[0] < 340 || got[1] < 19 || got[2] < 19 {
		t.Errorf("of 400 dispatches the queues have %v", got)
	}
}

// FS 9.1: a tenant with ten thousand jobs blocks none of those who have ten each.
func TestFS91TenThousandJobsBlockNobody(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "work", "big", 10_000)
	for n := range 9 {
		enqueueFor(t, service, "work", fmt.Sprintf("small%d", n), 10)
	}
	wantTurns(t, dealt(t, service, 10*10, "tenant_id", fetchWork), 10)
	if got := handedOut(t, service, "{work}", 20); got != "big 20" {
		t.Errorf("when the others have no more: %s", got)
	}
}

// FS 9.2: weights for some, and the default of 1 for the others; all alike where there are none.
func TestFS92FairShare(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	tenants := []string{"tenant:enterprise-a", "tenant:startup-b", "tenant:other"}
	for _, tenant := range tenants {
		enqueueFor(t, service, "work", tenant, 300)
	}
	wantShares(t, dealt(t, service, 3*20, "tenant_id", fetchWork), map[string]int{tenants[0]: 1, tenants[1]: 1, tenants[2]: 1})
	configureWeight(t, service, tenants[0], 5)
	configureWeight(t, service, tenants[1], 1)
	wantShares(t, dealt(t, service, 7*20, "tenant_id", fetchWork), map[string]int{tenants[0]: 5, tenants[1]: 1, tenants[2]: 1})
}

// FS 9.3: tenants take turns within a priority. A job of a higher one goes first, however much its tenant has had.
func TestFS93FairnessIsWithinAPriority(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	configureWeight(t, service, "b", 100)
	for _, tenant := range []string{"a", "b"} {
		for _, priority := range []int{0, 10} {
			exec(t, service, `insert into ojs.jobs (tenant_id, type, queue, priority)
				select $1, 'x', 'work', $2 from generate_series(1, 4 - 2 * ($1 = 'b' and $2 = 10)::int)`, tenant, priority)
		}
	}
	configureWeight(t, service, "b", 1)
	got := dealt(t, service, 14, "tenant_id || ' of ' || priority", fetchWork)
	wantTurns(t, got[:4], 2)
	if slices.Contains(got[:4], "a of 0") || got[4] != "a of 10" || got[5] != "a of 10" {
		t.Errorf("dispatched first: %v", got[:6])
	}
	wantTurns(t, got[6:], 2)
}

// FS 14.1: weights 5, 3 and 1 are five, three and one of each nine dispatches.
func TestFS141Weights5To3To1(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"critical", "default", "low"} {
		fill(t, service, queue, 300)
	}
	wantShares(t, dealt(t, service, 9*40, "queue", `ojs.fetch('{critical,default,low}', $1, p_worker_id => 'worker-abc-123',
		p_strategy => 'weighted', p_weights => '{"critical": 5, "default": 3, "low": 1}')`),
		map[string]int{"critical": 5, "default": 3, "low": 1})
}

// FS 14.1: the same for a worker that has registered so, in a pool that is not configured.
func TestFS141AsRegistered(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"critical", "default", "low"} {
		fill(t, service, queue, 300)
	}
	exec(t, service, `select ojs.register_worker('worker-abc-123', p_queues => '{critical,default,low}', p_concurrency => 10,
		p_pool => 'general', p_strategy => 'weighted', p_weights => '{"critical": 5, "default": 3, "low": 1}')`)
	wantShares(t, dealt(t, service, 9*40, "queue", "ojs.fetch('{critical,default,low}', $1, 'worker-abc-123')"),
		map[string]int{"critical": 5, "default": 3, "low": 1})
}

// FS 14.2: ten payments at once, by the workers of their pool and by nobody else, however idle others are; these take turns at theirs.
func TestFS142PaymentsOnTheirOwn(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.configure_pools($1::text::jsonb)", fs142)
	for _, queue := range []string{"payments", "default", "email", "notifications"} {
		fill(t, service, queue, 20)
	}
	const all = "{payments,default,email,notifications}"
	if got := inPool(t, service, "general-workers", all, 6); got != "defaultemailnotificationsdefaultemailnotifications" {
		t.Errorf("the general workers get %s", got)
	}
	rest := list[string](t, service, "select queue from ojs.fetch($1::text[], 100, p_pool => 'general-workers')", all)
	if len(rest) != 44 || slices.Contains(rest, "payments") {
		t.Errorf("of fifty, six of which run, the general workers get %d: %v", len(rest), rest)
	}
	if got := inPool(t, service, "default", all, 100); strings.Contains(got, "payments") {
		t.Errorf("others get %s", got)
	}
	if got := inPool(t, service, "payment-workers", all, 100); got != strings.Repeat("payments", 10) {
		t.Errorf("the workers of payments get %s", got)
	}
	exec(t, service, "select ojs.ack_many(array(select id from ojs.job where queue = 'payments' and state = 'active' limit 4))")
	if got := inPool(t, service, "payment-workers", all, 100); got != strings.Repeat("payments", 4) {
		t.Errorf("when four have ended they get %s", got)
	}
}

// FS 14.3: behind critical jobs without end, analytics have a tenth of the dispatches.
func TestFS143ATenthForAnalytics(t *testing.T) {
	t.Parallel()
	if got := minimum(t, [3]string{"critical", "default", "analytics"}, 0.1); got[2] < 39 || got[1] < 39 || got[0] < 300 {
		t.Errorf("of 400 dispatches the queues have %v", got)
	}
}

// FS 14.4: ten thousand jobs of a and a hundred of b go in turns, until b has no more.
func TestFS144TenThousandAndAHundred(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	// As the deployment's setting, and as a queue's.
	exec(t, d.Operator(), "select ojs.configure(p_tenant_fairness => $1::text::jsonb -> 'tenant_fairness')", fs144)
	exec(t, service, "select ojs.configure_queue('work', $1::text::jsonb)", fs144)
	enqueueFor(t, service, "work", "a", 10_000)
	enqueueFor(t, service, "work", "b", 100)
	wantTurns(t, dealt(t, service, 200, "tenant_id", fetchWork), 2)
	wantTurns(t, dealt(t, service, 50, "tenant_id", fetchWork), 1)
}

// FS-001: each job goes to one worker, however many ask at once, and none is left.
func TestFS001AJobGoesToOneWorker(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "work", "a", 300)
	enqueueFor(t, service, "work", "b", 300)
	counts := make([][]int, 12)
	for i := range counts {
		counts[i] = answerSizes
	}
	// race fails if a job is handed out twice.
	if got := len(race(t, service, "work", counts)); got != 600 {
		t.Errorf("%d of 600 jobs were handed out", got)
	}
	if got := one[int](t, service, "select count(*) from ojs.job where state = 'active' and attempt = 1"); got != 600 {
		t.Errorf("%d of 600 jobs are in their first attempt", got)
	}
}

// FS-002: a worker names several queues and has jobs of these, and of no others.
func TestFS002AWorkerOfSeveralQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"a", "b", "c", "d"} {
		fill(t, service, queue, 4)
	}
	for _, c := range []struct{ queues, want string }{
		{"{c}", "c"}, {"{b,d}", "bdb"}, {"{a,b,d}", "abdabdada"}, {"{a,b,d}", ""}, {"{a,b,c,d}", "ccc"},
	} {
		n := len(c.want)
		if c.want == "" || c.want == "ccc" {
			n = 10
		}
		if got := from(t, service, c.queues, n, "", ""); got != c.want {
			t.Errorf("of %s: %q, want %q", c.queues, got, c.want)
		}
	}
}

// FS-003: the strategies that there are, each with its order, over the same jobs.
func TestFS003Strategies(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[string]string{
		"round-robin": "abcabcabcabc", "": "abcabcabcabc", "weighted": "abaabcabaabc", "strict": "aaaaaaaaaaaa",
	} {
		t.Run("strategy "+strategy, func(t *testing.T) {
			t.Parallel()
			service := pgtest.New(t).Service()
			for _, queue := range []string{"a", "b", "c"} {
				fill(t, service, queue, 30)
			}
			fetch := fmt.Sprintf(`ojs.fetch('{a,b,c}', $1, p_strategy => nullif('%s', ''), p_weights => '{"a": 3, "b": 2}')`, strategy)
			if got := strings.Join(dealt(t, service, 12, "queue", fetch), ""); got != want {
				t.Errorf("dispatched %s, want %s", got, want)
			}
		})
	}
}

// FS-R001: a pool has its queues, and its workers together run so many jobs at once and no more, however many ask at the same time.
func TestFSR001QueuesAndConcurrencyOfPools(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	pooled(t, service, "p", `{"queues": ["a", "b"], "concurrency": 7}`)
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 50)
	}
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			_, err := service.Exec(t.Context(), "select ojs.fetch('{a,b,c}', 3, $1, p_pool => 'p')", fmt.Sprint("w", n))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	const running = "select queue || ' ' || count(*) from ojs.job where state = 'active' group by queue order by 1"
	if got := list[string](t, service, running); !slices.Equal(got, []string{"a 4", "b 3"}) {
		t.Errorf("running: %v", got)
	}
	if got := inPool(t, service, "p", "{a,b,c}", 1); got != "" {
		t.Errorf("beyond the concurrency: %s", got)
	}
}

// FS-R002: shares are those of the weights, whatever these are, in every full cycle.
func TestFSR002AnyWeights(t *testing.T) {
	t.Parallel()
	for _, weights := range []map[string]int{
		{"a": 1, "b": 1}, {"a": 2, "b": 7}, {"a": 100, "b": 1}, {"a": 1, "b": 2, "c": 3, "d": 4}, {"a": 20, "b": 20, "c": 1},
	} {
		t.Run(fmt.Sprint(weights), func(t *testing.T) {
			t.Parallel()
			service := pgtest.New(t).Service()
			var named []string
			cycle := 0
			for queue, weight := range weights {
				fill(t, service, queue, 6*weight)
				named, cycle = append(named, fmt.Sprintf("%q: %d", queue, weight)), cycle+weight
			}
			wantShares(t, dealt(t, service, 6*cycle, "queue", fmt.Sprintf(`ojs.fetch((array['a', 'b', 'c', 'd'])[1:%d], $1,
				p_strategy => 'weighted', p_weights => '{%s}')`, len(weights), strings.Join(named, ", "))), weights)
		})
	}
}

// FS-R004 and 10.2: what the statistics of scheduling say is what was dispatched.
func TestFSR004StatisticsOfScheduling(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"critical", "default", "low"} {
		fill(t, service, queue, 100)
	}
	dealt(t, service, 90, "queue", `ojs.fetch('{critical,default,low}', $1, p_strategy => 'weighted',
		p_weights => '{"critical": 5, "default": 3, "low": 1}')`)
	exec(t, service, "select ojs.ack_many(array(select id from ojs.job where queue = 'default' and state = 'active' limit 6))")
	got := lines(t, service, "select queue, dispatched_1m, ratio_1m::float8, available, active from ojs.scheduling_stats order by 1")
	want := []string{"critical 50 0.5556 50 50", "default 30 0.3333 70 24", "low 10 0.1111 90 10"}
	if !slices.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// FS-R005: fairness between tenants holds in each of the queues that a worker names.
func TestFSR005TenantsInEachQueue(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	configureWeight(t, service, "acme", 2)
	for _, queue := range []string{"a", "b"} {
		enqueueFor(t, service, queue, "acme", 1000)
		enqueueFor(t, service, queue, "beta", 100)
	}
	got := dealt(t, service, 6*20, "queue || ' ' || tenant_id", "ojs.fetch('{a,b}', $1)")
	for _, queue := range []string{"a", "b"} {
		var tenants []string
		for _, job := range got {
			if name, found := strings.CutPrefix(job, queue+" "); found {
				tenants = append(tenants, name)
			}
		}
		wantShares(t, tenants, map[string]int{"acme": 2, "beta": 1})
	}
}

// Every document of ojs-fair-scheduling that configures pools is taken as it is printed.
func TestFSDocumentsAsPrinted(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, document := range []string{fs61, fs142, fs143} {
		exec(t, service, "select ojs.configure_pools($1::text::jsonb)", document)
	}
	pooled(t, service, "rotating", fs81)
	pooled(t, service, "critical", fs101)
	got := lines(t, service, "select name, queues, max_concurrency, strategy, isolated from ojs.pool order by name")
	want := []string{
		"critical [critical payments] 20 strict false", "critical-workers [critical payments] 20 strict false",
		"general [critical default analytics] - strict false", "general-workers [default email notifications] 50 round-robin false",
		"payment-workers [payments] 10 strict true", "rotating - - - false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

const (
	fs61 = `{
  "pool": {
    "name": "critical-workers",
    "queues": ["critical", "payments"],
    "concurrency": 20,
    "strategy": "strict"
  }
}`
	fs81 = `{
  "starvation_prevention": {
    "enabled": true,
    "rotation_interval": "PT30S",
    "min_dispatch_ratio": 0.05
  }
}`
	fs101 = `{
  "queues": ["critical", "payments"],
  "concurrency": 20,
  "strategy": "strict"
}`
	fs144 = `{
  "tenant_fairness": {
    "enabled": true,
    "strategy": "fair-share",
    "default_weight": 1
  }
}`
	fs142 = `{
  "pools": [
    {
      "name": "payment-workers",
      "queues": ["payments"],
      "concurrency": 10,
      "strategy": "strict",
      "isolated": true
    },
    {
      "name": "general-workers",
      "queues": ["default", "email", "notifications"],
      "concurrency": 50,
      "strategy": "round-robin"
    }
  ]
}`
	fs143 = `{
  "pool": {
    "name": "general",
    "queues": ["critical", "default", "analytics"],
    "strategy": "strict",
    "starvation_prevention": {
      "enabled": true,
      "rotation_interval": "PT30S",
      "min_dispatch_ratio": 0.10
    }
  }
}`
)
