package db_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Random tenants, weights (their own, or those of the queue), arrivals and changes of weight; one to eight fetchers at once. Over every
// prefix of the dispatch sequence every tenant with work stays within a few jobs of its fluid share; nothing is dispatched twice, nothing
// is left behind, and each tenant's jobs come first in, first out. Every tenth run has up to 300 tenants. The first ten runs are the same
// every time, so that their bounds can be tight: of random ones, one in 2,000 is farther off, where weights differ by decades.
// OJS_FLUID_RUNS: how many random runs.
func TestFairnessFollowsTheFluidModel(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	waitForLane(t, database, 60_000) // callers that wait in vain get jobs in an order that is about right
	runs := 10
	if n, err := strconv.Atoi(os.Getenv("OJS_FLUID_RUNS")); err == nil {
		runs = n
	}
	random := uint64(time.Now().UnixNano())
	for n := range 10 + runs {
		seed, tail := uint64(1), 0.0
		if n >= 10 {
			seed, tail = random, tailBound
		}
		// One after the other: in a line of 80 callers some wait for a decision in vain.
		t.Run(fmt.Sprintf("seed %d run %d", seed, n), func(t *testing.T) {
			run := newFluidRun(t, database.Service(), rand.New(rand.NewPCG(seed, uint64(n))), n)
			run.bound += tail
			run.play()
			ringsAgree(t, database.Pool)
		})
	}
}

// fluidRun is the state of a run, which has a queue of its own.
type fluidRun struct {
	t       *testing.T
	service *pgxpool.Pool
	r       *rand.Rand
	queue   string
	tenants []string
	weights []float64 // that tenants may have
	changes bool      // weights change
	byQueue bool      // the queue gives the weights, and tenants have others of their own
	bound   float64   // what a tenant may be away from its share, in jobs

	model *fluid
	seen  map[string]bool  // jobs dispatched
	last  map[string]int64 // seq, by tenant
	worst float64
}

func newFluidRun(t *testing.T, service *pgxpool.Pool, r *rand.Rand, n int) *fluidRun {
	t.Helper()
	choices := [][]float64{
		{1}, {10, 5, 1}, {0.1, 1, 10, 100}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, {0.37, 2.5, 1e3},
	}
	f := &fluidRun{
		t: t, service: service, r: r, queue: fmt.Sprintf("fluid-%d", n), bound: churnBound, changes: n%2 == 0,
		byQueue: n%3 == 1, model: newFluid(map[string]float64{}), seen: map[string]bool{}, last: map[string]int64{},
	}
	f.weights = choices[r.IntN(len(choices))]
	f.tenants = make([]string, 2+r.IntN(11))
	if f.changes {
		// A weight that changes changes what is due from then on, of jobs that were due under the old one, too.
		f.bound++
	}
	if n%10 == 9 {
		f.tenants = make([]string, 50+r.IntN(251))
		heaviest := r.IntN(3)
		f.weights = [][]float64{{1}, {1, 1, 1, 10}, {1, 2, 3, 50}}[heaviest]
		f.bound = []float64{churnBound, 4, 6}[heaviest]
	}
	for i := range f.tenants {
		f.tenants[i] = fmt.Sprintf("r%d-t%d", n, i)
		f.model.weight[f.tenants[i]] = f.weights[r.IntN(len(f.weights))]
		f.configure(f.tenants[i])
	}
	return f
}

// configure gives a tenant the weight that the model has for it.
func (f *fluidRun) configure(tenant string) {
	f.t.Helper()
	if !f.byQueue {
		configureWeight(f.t, f.service, tenant, f.model.weight[tenant])
		return
	}
	configureWeight(f.t, f.service, tenant, f.weights[f.r.IntN(len(f.weights))])
	exec(f.t, f.service, "select ojs.configure_tenant($1, $2::float8::numeric, p_queue => $3)", tenant, f.model.weight[tenant], f.queue)
}

// play lets jobs arrive and fetches jobs in alternation, and then fetches what is left.
func (f *fluidRun) play() {
	f.t.Helper()
	for range 14 {
		f.arrive()
		counts := make([][]int, 1+f.r.IntN(8))
		for i := range counts {
			for range 1 + f.r.IntN(3) {
				counts[i] = append(counts[i], []int{1, 1, 2, 3, 10, 25}[f.r.IntN(6)])
			}
		}
		f.follow(race(f.t, f.service, f.queue, counts))
	}
	for {
		rest := race(f.t, f.service, f.queue, [][]int{{40}, {40}})
		if len(rest) == 0 {
			break
		}
		f.follow(rest)
	}
	for tenant, n := range f.model.backlog {
		if n != 0 {
			f.t.Errorf("%s: %d jobs were left behind", tenant, n)
		}
	}
	f.t.Logf("%d tenants, %d dispatches, largest lag %.3f jobs", len(f.tenants), len(f.seen), f.worst)
}

func (f *fluidRun) arrive() {
	f.t.Helper()
	for _, tenant := range f.tenants {
		if f.r.IntN(3) == 0 {
			jobs := []int{1, 1, 2, 5, 20, 60}[f.r.IntN(6)]
			enqueueFor(f.t, f.service, f.queue, tenant, jobs)
			f.model.arrive(tenant, jobs)
		}
		if f.changes && f.r.IntN(12) == 0 {
			weight := f.weights[f.r.IntN(len(f.weights))]
			f.model.reweigh(tenant, weight)
			f.configure(tenant)
		}
	}
}

// follow makes the model follow dispatches, in their order.
func (f *fluidRun) follow(sequence []dispatched) {
	f.t.Helper()
	for _, j := range sequence {
		if f.seen[j.id] {
			f.t.Fatalf("job %s was dispatched twice", j.id)
		}
		f.seen[j.id] = true
		if j.seq <= f.last[j.tenant] && owed(f.t, f.service, f.queue) == 0 {
			f.t.Fatalf("%s: job %d came after job %d", j.tenant, j.seq, f.last[j.tenant])
		}
		f.last[j.tenant] = max(f.last[j.tenant], j.seq)
		lag, err := f.model.dispatch(j.tenant)
		if err != nil {
			f.t.Fatal(err)
		}
		f.worst = max(f.worst, lag)
		if lag > f.bound && lag > f.bound+float64(owed(f.t, f.service, f.queue)) {
			f.t.Fatalf("after %d dispatches a tenant is %.3f jobs away from its fluid share; weights %v, backlog %v",
				len(f.seen), lag, f.model.weight, f.model.backlog)
		}
	}
}

// owed returns the number of jobs of a queue that were handed out without the lane, to callers that did
// not get it in time. Such jobs are chosen by the state at that moment, without jobs that a decision
// under way has locked, and are charged afterwards. Exact order is promised only if there are none.
func owed(t *testing.T, q querier, queue string) int {
	t.Helper()
	return one[int](t, q, "select coalesce(sum(owed), 0) from ojs.journal where queue = $1", queue)
}

// Who joins a queue is spread over a step by those who joined it before, whatever goes on in other queues: 13 steps of the sequence that
// spreads them are nearly a whole number, so with one sequence for all queues these ten would begin together, before those that wait.
func TestOtherQueuesDoNotBunchNewcomers(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	model := newFluid(map[string]float64{})
	// A decision takes in what has come, whatever queue it is for.
	join := func(queue, tenant string, weight float64, jobs int) {
		configureWeight(t, service, tenant, weight)
		enqueueFor(t, service, queue, tenant, jobs)
		if _, err := fetchJobs(t.Context(), service, "elsewhere", 1); err != nil {
			t.Fatal(err)
		}
		if queue == "default" {
			model.reweigh(tenant, weight)
			model.arrive(tenant, jobs)
		}
	}
	join("default", "busy", 30, 200)
	for i := range 10 {
		join("default", fmt.Sprintf("new-%d", i), 1, 3)
		for n := range 12 {
			join(fmt.Sprintf("other-%d", i), fmt.Sprintf("t-%d", n), 1, 1)
		}
	}
	d, err := fetchJobs(t.Context(), service, "default", 100)
	if err != nil || len(d.jobs) != 100 {
		t.Fatalf("%d jobs, %v; want 100", len(d.jobs), err)
	}
	for i, j := range d.jobs {
		if lag, err := model.dispatch(j.tenant); err != nil || lag > churnBound {
			t.Fatalf("dispatch %d: a tenant is %.3f jobs away from its share, %v", i, lag, err)
		}
	}
}

// Weights 10:5:1 give 62.5 / 31.25 / 6.25 %, exactly, with sixteen fetchers at once; and in every response, not only in sum.
func TestWeightsGiveShares(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	model := newFluid(map[string]float64{"acme": 10, "beta": 5, "gamma": 1})
	for tenant, weight := range model.weight {
		configureWeight(t, service, tenant, weight)
		enqueueFor(t, service, "default", tenant, 2000)
		model.arrive(tenant, 2000)
	}
	counts := make([][]int, 16)
	for i := range counts {
		counts[i] = []int{20, 20, 20, 20, 20}
	}
	got := map[string]int{}
	sequence := race(t, service, "default", counts)
	beside := owed(t, service, "default")
	for i, j := range sequence {
		got[j.tenant]++
		lag, err := model.dispatch(j.tenant)
		if err != nil {
			t.Fatal(err)
		}
		if lag > lagBound+float64(beside) {
			t.Fatalf("dispatch %d: a tenant is %.3f jobs away from its share, with %d jobs handed out without the lane", i, lag, beside)
		}
	}
	if beside == 0 && (got["acme"] != 1000 || got["beta"] != 500 || got["gamma"] != 100) {
		t.Errorf("of 1600 jobs: %v, want 1000, 500, 100", got)
	}
}

// A tenant's ten jobs behind another tenant's hundred thousand (OJS_BACKLOG_JOBS: so many) are all dispatched within
// 10 * (sum of weights) / weight dispatches.
func TestSmallTenantBehindALargeBacklog(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	backlog := 100_000
	if n, err := strconv.Atoi(os.Getenv("OJS_BACKLOG_JOBS")); err == nil {
		backlog = n
	}
	enqueueFor(t, service, "default", "big", backlog)
	for _, weight := range []float64{1, 10} {
		configureWeight(t, service, "big", weight)
		enqueueFor(t, service, "default", "small", 10)
		limit := int(10 * (weight + 1))
		dispatches, small := 0, 0
		for small < 10 {
			d, err := fetchJobs(t.Context(), service, "default", 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(d.jobs) != 1 {
				t.Fatalf("a fetch found nothing after %d dispatches", dispatches)
			}
			dispatches++
			if d.jobs[0].tenant == "small" {
				small++
			}
			// One more: the dispatch in flight when the ten jobs arrived.
			if dispatches > limit+1 {
				t.Fatalf("weight %v against 1: only %d of 10 jobs after %d dispatches", weight, small, dispatches)
			}
		}
		t.Logf("weight %v against 1: ten jobs within %d dispatches of %d allowed", weight, dispatches, limit)
	}
}

// FETCH for one tenant takes that tenant's jobs only, and charges for them: the shared workers make it up to the others.
func TestFetchForOneTenantCharges(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "default", "acme", 30)
	enqueueFor(t, service, "default", "beta", 30)
	var got int
	if err := service.QueryRow(t.Context(), `
		select count(*) from ojs.fetch('{default}', 10, p_tenant => 'acme')
		where tenant_id = 'acme'`).Scan(&got); err != nil || got != 10 {
		t.Fatalf("%d jobs of acme, %v; want 10", got, err)
	}
	d, err := fetchJobs(t.Context(), service, "default", 12)
	if err != nil {
		t.Fatal(err)
	}
	shares := map[string]int{}
	for _, j := range d.jobs {
		shares[j.tenant]++
	}
	if shares["beta"] != 11 || shares["acme"] != 1 {
		t.Errorf("the shared fetch took %v, want beta 11, acme 1: of 22 jobs each has had 11", shares)
	}
}

// A tenant that was idle begins at the present: it neither collected credit nor has to wait.
func TestIdleTenantHasNoCreditAndLosesNoTurn(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "default", "idle", 1)
	enqueueFor(t, service, "default", "busy", 500)
	if _, err := fetchJobs(t.Context(), service, "default", 201); err != nil {
		t.Fatal(err)
	}
	enqueueFor(t, service, "default", "idle", 50)
	d, err := fetchJobs(t.Context(), service, "default", 40)
	if err != nil {
		t.Fatal(err)
	}
	idle := 0
	for i, j := range d.jobs {
		if j.tenant == "idle" {
			idle++
		}
		if off := math.Abs(float64(idle) - float64(i+1)/2); off > 1 {
			t.Fatalf("after %d dispatches the returning tenant had %d", i+1, idle)
		}
	}
	if idle != 20 {
		t.Errorf("the returning tenant had %d of 40, want 20", idle)
	}
}

// A change of the weight of a tenant without work leaves the low of the level alone. A tenant that joins afterwards begins at that low, and
// not at the old time of the tenant without work.
func TestTheWeightOfAnIdleTenantMovesNobody(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "default", "idle", 1)
	enqueueFor(t, service, "default", "busy", 100)
	if _, err := fetchJobs(t.Context(), service, "default", 51); err != nil {
		t.Fatal(err)
	}
	configureWeight(t, service, "idle", 2)
	enqueueFor(t, service, "default", "new", 20)
	d, err := fetchJobs(t.Context(), service, "default", 20)
	if err != nil {
		t.Fatal(err)
	}
	shares := map[string]int{}
	for _, j := range d.jobs {
		shares[j.tenant]++
	}
	if shares["new"] != 10 || shares["busy"] != 10 {
		t.Errorf("of 20 jobs: %v, want 10 each", shares)
	}
}

// The highest effective priority of a queue goes first; a boost acts on the whole backlog at once and leaves the jobs' own priority alone.
func TestPriorityAndBoost(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, job := range []struct {
		tenant   string
		priority int
	}{{"acme", 0}, {"acme", 10}, {"beta", 5}, {"beta", 5}, {"beta", -5}} {
		if _, err := service.Exec(t.Context(), `
			select ojs.enqueue('p.job', p_priority => $2, p_tenant => $1)`, job.tenant, job.priority); err != nil {
			t.Fatal(err)
		}
	}
	take := func() string {
		var got string
		if err := service.QueryRow(t.Context(), `select tenant_id || priority from ojs.fetch('{default}')`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := take(); got != "acme10" {
		t.Errorf("first %s, want acme10", got)
	}
	if got := take(); got != "beta5" {
		t.Errorf("second %s, want beta5", got)
	}
	if _, err := service.Exec(t.Context(), `select ojs.configure_tenant('acme', p_priority_boost => 20)`); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"acme0", "beta5", "beta-5"} {
		if got := take(); got != want {
			t.Errorf("job %d after the boost: %s, want %s", i+1, got, want)
		}
	}
}

// A boost takes jobs that came back along, too: they leave their old priority for good.
func TestBoostTakesReturnedJobsAlong(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, sql := range []string{
		`select ojs.enqueue('x.x', p_tenant => 'acme')`,
		`select ojs.enqueue('x.y', p_priority => 10, p_tenant => 'acme')`,
		`select ojs.enqueue('x.g', p_priority => -5, p_tenant => 'globex')`,
		`select ojs.nack(id, '{"message": "later"}', p_requeue => true) from ojs.fetch('{default}', 2)`,
		`select ojs.enqueue('x.z', p_queue => 'other', p_tenant => 'acme')`,
		`select from ojs.fetch('{other}')`,
		`select ojs.configure_tenant('acme', p_priority_boost => -10)`,
	} {
		if _, err := service.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	var got string
	for range 3 {
		var kind string
		if err := service.QueryRow(t.Context(), `select type from ojs.fetch('{default}')`).Scan(&kind); err != nil {
			t.Fatal(err)
		}
		got += kind + " "
	}
	if want := "x.y x.g x.x "; got != want {
		t.Errorf("dispatched %s, want %s", got, want)
	}
}

// Several queues: one job from each per turn, beginning with the first listed; the next decision goes on where the last one stopped.
func TestQueuesTakeTurns(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"a", "b", "c"} {
		enqueueFor(t, service, queue, "acme", 6)
	}
	take := func(count int) string {
		var got string
		err := service.QueryRow(t.Context(), `
			select coalesce(string_agg(queue, ''), '') from ojs.fetch(array['a', 'b', 'c', 'a'], $1)`, count).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for i, step := range []struct {
		count int
		want  string
	}{{1, "a"}, {1, "b"}, {1, "c"}, {1, "a"}, {4, "bcab"}, {3, "cab"}, {20, "cabcabc"}, {1, ""}} {
		if got := take(step.count); got != step.want {
			t.Errorf("fetch %d: jobs from %q, want %q", i+1, got, step.want)
		}
	}
}
