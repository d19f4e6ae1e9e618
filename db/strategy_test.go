package db_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func fill(t *testing.T, service *pgxpool.Pool, queue string, jobs int) {
	t.Helper()
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[$1::int]), p_queue => $2)", jobs, queue)
}

// from returns the queues of the jobs that a FETCH over several queues gets.
func from(t *testing.T, q querier, queues string, count int, strategy, weights string) string {
	t.Helper()
	return strings.Join(list[string](t, q,
		"select queue from ojs.fetch($1::text[], $2, p_strategy => nullif($3, ''), p_weights => nullif($4, '')::jsonb)",
		queues, count, strategy, weights), "")
}

// The example of fair scheduling section 7.3: weights 3:2:1, exactly, in every six dispatches, in answers of any size.
func TestWeightedQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 200)
	}
	const weights = `{"a": 3, "b": 2, "c": 1, "elsewhere": 9}`
	sequence := ""
	for _, n := range []int{6, 1, 1, 1, 1, 1, 1, 3, 3, 7, 5, 60, 2, 4, 12, 100, 8} {
		sequence += from(t, service, "{a,b,c}", n, "weighted", weights)
	}
	if len(sequence) != 216 {
		t.Fatalf("%d jobs", len(sequence))
	}
	for i := 0; i < len(sequence); i += 6 {
		if six := sequence[i : i+6]; six != "abaabc" {
			t.Errorf("dispatches %d to %d are of %s", i+1, i+6, six)
		}
	}
}

// Each list of queues with its weights has a round of its own. Weights count for strategy weighted alone; a queue that has none weighs 1.
func TestStrategiesBetweenQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 30)
	}
	for _, c := range []struct {
		queues            string
		count             int
		strategy, weights string
		want              string
	}{
		{"{a,b,c}", 4, "", "", "abca"},
		{"{a,b,c}", 4, "round-robin", "", "bcab"},
		{"{a,b,c}", 3, "", `{"a": 5}`, "cab"},
		{"{c,b}", 3, "", "", "cbc"},
		{"{a,b}", 6, "weighted", `{"a": 5}`, "aaaaba"},
		{"{a,b}", 6, "weighted", `{"a": 5}`, "aaaaba"},
		{"{a,b}", 4, "weighted", "", "abab"},
		{"{a}", 3, "weighted", `{"a": 5}`, "aaa"},
		{"{b,a,c}", 3, "strict", `{"c": 5}`, "bbb"},
	} {
		if got := from(t, service, c.queues, c.count, c.strategy, c.weights); got != c.want {
			t.Errorf("%d of %s, strategy %q, weights %s: %s, want %s", c.count, c.queues, c.strategy, c.weights, got, c.want)
		}
	}
}

// Strict: later queues get what is left. A priority counts within its queue alone.
func TestStrictQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "a", 2)
	fill(t, service, "b", 3)
	exec(t, service, "select ojs.enqueue('a', p_queue => 'c', p_priority => 100) from generate_series(1, 3)")
	if got := from(t, service, "{a,b,c}", 4, "strict", ""); got != "aabb" {
		t.Error(got)
	}
	fill(t, service, "a", 1)
	if got := from(t, service, "{a,b,c}", 10, "strict", ""); got != "abccc" {
		t.Error(got)
	}
}

// Callers who must not hold up decisions get as much of each queue.
func TestStrategiesBesideDecisions(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, queue := range []string{"a", "b", "c"} {
		fill(t, service, queue, 60)
	}
	for strategy, want := range map[string]string{"": "4 4 4", "weighted": "6 4 2", "strict": "12 0 0"} {
		tx := begin(t, service)
		exec(t, tx, "select pg_sleep(0.03)") // who stays in its transaction fetches without the lane
		got := from(t, tx, "{a,b,c}", 12, strategy, `{"a": 3, "b": 2}`)
		if counts := fmt.Sprint(strings.Count(got, "a"), strings.Count(got, "b"), strings.Count(got, "c")); counts != want {
			t.Errorf("strategy %q: %s, want %s", strategy, counts, want)
		}
		commit(t, tx)
	}
	counts := map[string]int{}
	for range 150 {
		tx := begin(t, service)
		exec(t, tx, "select pg_sleep(0.021)")
		counts[from(t, tx, "{a,b,c}", 1, "weighted", `{"a": 3, "b": 2}`)]++
		rollback(t, tx)
	}
	if counts["a"] == 0 || counts["b"] == 0 || counts["c"] == 0 {
		t.Errorf("of 150 callers for one job: %v", counts)
	}
}

func TestBadStrategies(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	const fetch = "select from ojs.fetch('{a,b}', 1, p_strategy => $1, p_weights => $2)"
	for _, c := range []struct {
		state             string
		strategy, weights any
	}{
		{"OJ422", "fifo", nil},
		{"OJ422", "", nil},
		{"OJ422", "weighted", "[]"},
		{"OJ422", "weighted", "null"},
		{"OJ422", "weighted", `{"a": 0}`},
		{"OJ422", "weighted", `{"a": 1.5}`},
		{"OJ422", "weighted", `{"a": "1"}`},
		{"OJ422", "weighted", `{"a": null}`},
		{"OJ422", nil, `{"a": 1000001}`},
	} {
		refused(t, service, c.state, fetch, c.strategy, c.weights)
	}
	for _, weights := range []string{`{}`, `{"a": 1000000, "b": 1}`, `{"a": 1.0}`, `{"a": 1.50e1}`, `{"Not a queue": 1}`} {
		fill(t, service, "a", 1)
		fill(t, service, "b", 1)
		if n := len(from(t, service, "{a,b}", 2, "weighted", weights)); n != 2 {
			t.Errorf("weights %s: %d jobs", weights, n)
		}
	}
}

// Calls for one tenant with jobs in only one of the queues do not take the turn of the other queue from other tenants.
func TestATenantsCallsLeaveTheTurnsOfOthers(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "a", "t", 2000)
	enqueueFor(t, service, "a", "u", 200)
	enqueueFor(t, service, "b", "u", 200)
	got := ""
	for range 30 {
		exec(t, service, `select from ojs.fetch('{a,b}', 10, p_tenant => 't', p_strategy => 'weighted', p_weights => '{"a": 5}')`)
		got += from(t, service, "{a,b}", 1, "weighted", `{"a": 5}`)
	}
	if !strings.Contains(got, "b") {
		t.Errorf("30 calls got jobs of %s", got)
	}
}

// A queue that has work and cannot give it, whatever keeps it from that, has no more than its turn when it can again.
func TestAQueueThatCannotGiveSavesNothingUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, takes, after, asks string }{
		"it is at its limit": {
			"select ojs.limit_concurrency(1, p_queue => 'a')", "select from ojs.fetch('{a,b}', 1)",
			"select ojs.limit_concurrency(null, p_queue => 'a')", "",
		},
		"with a minimum": {
			`select ojs.configure_pool('general', '{"starvation_prevention": {"enabled": true, "min_dispatch_ratio": 0.3}}');
				select ojs.limit_concurrency(1, p_queue => 'a')`,
			"select from ojs.fetch('{a,b}', 10)", "select ojs.limit_concurrency(null, p_queue => 'a')", "",
		},
		"its tenant has workers of its own": {
			`select ojs.configure_pool('own', '{"tenants": ["a"], "isolated": true}')`, "select from ojs.fetch('{a,b}', 1)",
			"", "u",
		},
		"others are asked for": {"", "select from ojs.fetch('{a,b}', 1, p_tenant => 'b')", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service := pgtest.New(t).Service()
			enqueueFor(t, service, "a", "a", 600)
			enqueueFor(t, service, "b", "b", 2000)
			exec(t, service, c.before, pgx.QueryExecModeSimpleProtocol)
			for range 100 {
				exec(t, service, c.takes)
			}
			if c.after != "" {
				exec(t, service, c.after)
			}
			if c.asks != "" {
				enqueueFor(t, service, "a", c.asks, 100)
			}
			got := ""
			for range 20 {
				got += from(t, service, "{a,b}", 1, "", "")
			}
			if n := strings.Count(got, "a"); n < 8 || n > 12 {
				t.Errorf("20 calls got jobs of %s", got)
			}
		})
	}
}

// While a queue is through with a long run of ended jobs, the others have their turns.
func TestEndedJobsOfAQueueLeaveTheTurnsOfOthers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueueFor(t, service, "a", "t", 100_000)
	exec(t, d.Pool, "update ojs.job set state = 'cancelled', finished_at = ojs.now() where queue = 'a'")
	fill(t, service, "a", 1)
	fill(t, service, "b", 5)
	if got := from(t, service, "{a,b}", 1, "", "") + from(t, service, "{a,b}", 1, "", ""); !strings.Contains(got, "b") {
		t.Errorf("two calls got %q", got)
	}
}

// Where the bytes of an answer are used up before a queue's turn comes, it is first in the next one.
func TestAQueueKeepsTheTurnThatBytesTook(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "a", 10)
	fill(t, service, "b", 10)
	got := ""
	for range 6 {
		got += one[string](t, service, `select queue from ojs.fetch_many('{a,b}', '{2}', '{w}', '{0}', p_max_bytes => 1)
			where id is not null`)
	}
	if got != "ababab" {
		t.Errorf("six answers of one job each are of %s", got)
	}
}

// A list of a hundred queues with long names has a round, too.
func TestManyLongNamesOfQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	names := list[string](t, service, "select md5(n::text) || md5(n::text || 'x') || md5(n::text || 'y') from generate_series(1, 100) n")
	for _, name := range names[97:] {
		fill(t, service, name, 2)
	}
	got := list[string](t, service, "select queue from ojs.fetch($1, 4)", names)
	if want := []string{names[97], names[98], names[99], names[97]}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// Random weights and arrivals, answers of one to fifty: over every prefix each queue with jobs is within a few jobs of its share, none is
// left behind, and a queue that comes back has no credit.
func TestQueuesFollowTheFluidModel(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	seed := uint64(time.Now().UnixNano())
	for run := range 8 {
		r := rand.New(rand.NewPCG(seed, uint64(run)))
		queues := make([]string, 2+r.IntN(6))
		model := newFluid(map[string]float64{})
		weights := make([]string, len(queues))
		for i := range queues {
			queues[i] = fmt.Sprintf("r%d-%d", run, i)
			weight := []int{1, 1, 2, 3, 7, 20}[r.IntN(6)]
			model.weight[queues[i]] = float64(weight)
			weights[i] = fmt.Sprintf("%q: %d", queues[i], weight)
		}
		worst, since := 0.0, map[string]int{}
		waits := func(queue string) {
			sum := 0.0
			for other, n := range model.backlog {
				sum += model.weight[other]
				if n > 0 && other != queue {
					since[other]++
				} else {
					since[other] = 0
				}
			}
			for other, n := range since {
				if most := sum/model.weight[other] + float64(len(queues)); float64(n) > most {
					t.Errorf("seed %d run %d: a queue waited for %d jobs of others, at most %.0f", seed, run, n, most)
				}
			}
		}
		follow := func(count int) int {
			// In one message: a caller that has been in its transaction for 20 ms, on a slow machine, fetches without the lane.
			got := list[string](t, service, `select queue
				from ojs.fetch($1::text::text[], $2, p_strategy => 'weighted', p_weights => $3::jsonb)`,
				pgx.QueryExecModeSimpleProtocol, "{"+strings.Join(queues, ",")+"}", count, "{"+strings.Join(weights, ",")+"}")
			for _, queue := range got {
				lag, err := model.dispatch(queue)
				if err != nil {
					t.Fatalf("seed %d run %d: %v", seed, run, err)
				}
				worst = max(worst, lag)
				waits(queue)
			}
			return len(got)
		}
		for range 60 {
			for _, queue := range queues {
				if r.IntN(3) == 0 {
					jobs := []int{1, 2, 10, 40}[r.IntN(4)]
					fill(t, service, queue, jobs)
					model.arrive(queue, jobs)
				}
			}
			follow([]int{1, 1, 2, 5, 20, 50}[r.IntN(6)])
		}
		for follow(50) > 0 {
		}
		for queue, n := range model.backlog {
			if n != 0 {
				t.Errorf("seed %d run %d: %d jobs of %s were left behind", seed, run, n, queue)
			}
		}
		t.Logf("seed %d run %d: weights %v, largest lag %.2f", seed, run, weights, worst)
		if worst > churnBound {
			t.Errorf("seed %d run %d: a queue was %.2f jobs away from its share", seed, run, worst)
		}
	}
}
