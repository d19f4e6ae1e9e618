package db_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// fluid is the ideal: a server that works for all tenants with work at once, in proportion to their weights, and has done
// as many jobs in sum as were dispatched. A tenant is done there when as much was done for it as it has jobs. It knows nothing of how the
// database chooses; it only follows what was dispatched.
type fluid struct {
	weight  map[string]float64
	backlog map[string]int     // jobs not dispatched
	left    map[string]float64 // jobs the ideal has still to do
}

func newFluid(weights map[string]float64) *fluid {
	return &fluid{weight: weights, backlog: map[string]int{}, left: map[string]float64{}}
}

func (f *fluid) arrive(tenant string, jobs int) {
	f.backlog[tenant] += jobs
	f.left[tenant] += float64(jobs)
}

func (f *fluid) reweigh(tenant string, weight float64) { f.weight[tenant] = weight }

// lag is the number of jobs a tenant is owed; negative: it is ahead.
func (f *fluid) lag(tenant string) float64 { return float64(f.backlog[tenant]) - f.left[tenant] }

// dispatch follows one job and returns the largest |lag| among tenants with work.
func (f *fluid) dispatch(tenant string) (float64, error) {
	if f.backlog[tenant] == 0 {
		return 0, fmt.Errorf("a job of %s was dispatched that had no work", tenant)
	}
	for work := 1.0; work > 1e-9; {
		sum, until := 0.0, math.Inf(1)
		for t, n := range f.left {
			if n > 1e-9 {
				sum += f.weight[t]
				until = min(until, n/f.weight[t])
			}
		}
		if sum == 0 {
			break
		}
		step := min(until, work/sum)
		for t, n := range f.left {
			if n > 1e-9 {
				f.left[t] -= step * f.weight[t]
			}
		}
		work -= step * sum
	}
	f.backlog[tenant]--
	worst := 0.0
	for t, n := range f.backlog {
		if n > 0 {
			worst = max(worst, math.Abs(f.lag(t)))
		}
	}
	return worst, nil
}

const (
	// What a tenant may be away from its fluid share, in jobs, while the same tenants have work.
	lagBound = 1.5
	// And while tenants come and go.
	churnBound = 3.0
)

type dispatched struct {
	tenant string
	seq    int64
	id     string
}

// decision is what one FETCH got.
type decision struct {
	jobs []dispatched
}

func fetchJobs(ctx context.Context, pool *pgxpool.Pool, queue string, count int) (decision, error) {
	var d decision
	rows, err := pool.Query(ctx, `select tenant_id, seq, id::text from ojs.fetch(array[$1], $2, 'w', 600000)`, queue, count)
	if err != nil {
		return d, err
	}
	defer rows.Close()
	for rows.Next() {
		var j dispatched
		if err := rows.Scan(&j.tenant, &j.seq, &j.id); err != nil {
			return d, err
		}
		d.jobs = append(d.jobs, j)
	}
	return d, rows.Err()
}

// race lets several fetchers take jobs at once and returns what they got in the order in which it was decided, which the
// journal keeps.
func race(t *testing.T, pool *pgxpool.Pool, queue string, counts [][]int) []dispatched {
	t.Helper()
	var (
		mu   sync.Mutex
		all  = map[string]dispatched{}
		ids  []string
		wg   sync.WaitGroup
		errs []error
	)
	for _, own := range counts {
		wg.Go(func() {
			for _, n := range own {
				d, err := fetchJobs(context.Background(), pool, queue, n)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				}
				for _, j := range d.jobs {
					if _, twice := all[j.id]; twice {
						errs = append(errs, fmt.Errorf("job %s was handed out twice", j.id))
					}
					all[j.id] = j
					ids = append(ids, j.id)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		t.Fatal(errs[0])
	}
	var sequence []dispatched
	for _, id := range list[string](t, pool, `
		select u.id::text from ojs.lease l cross join lateral unnest(l.ids) with ordinality u(id, n)
		where u.id = any ($1::uuid[]) order by l.turn + u.n, u.n`, ids) {
		sequence = append(sequence, all[id])
	}
	if len(sequence) != len(all) {
		t.Fatalf("the journal knows %d of %d jobs handed out", len(sequence), len(all))
	}
	return sequence
}

func enqueueFor(t *testing.T, pool *pgxpool.Pool, queue, tenant string, jobs int) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `
		insert into ojs.jobs (tenant_id, type, queue, args) select $1, 'fair.job', $2, '[1]'
		from generate_series(1, $3)`, tenant, queue, jobs)
	if err != nil {
		t.Fatal(err)
	}
}

func configureWeight(t *testing.T, pool *pgxpool.Pool, tenant string, weight float64) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `select ojs.configure_tenant($1, $2::float8::numeric)`, tenant, weight); err != nil {
		t.Fatal(err)
	}
}

// Random tenants, weights, arrivals and changes of weight; one to eight fetchers at once. Over every prefix of the dispatch
// sequence every tenant with work stays within a few jobs of its fluid share; nothing is dispatched twice, nothing is left behind, and
// each tenant's jobs come first in, first out. Every tenth run has up to 300 tenants. OJS_FLUID_RUNS: how many runs.
func TestFairnessFollowsTheFluidModel(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	seed := uint64(time.Now().UnixNano())
	weights := [][]float64{
		{1}, {10, 5, 1}, {0.1, 1, 10, 100}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, {0.37, 2.5, 1e3},
	}
	runs := 10
	if n, err := strconv.Atoi(os.Getenv("OJS_FLUID_RUNS")); err == nil {
		runs = n
	}
	for run := range runs {
		name := fmt.Sprintf("seed %d run %d", seed, run)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			queue := fmt.Sprintf("fluid-%d", run)
			choice := weights[r.IntN(len(weights))]
			tenants := make([]string, 2+r.IntN(11))
			// A weight that changes changes what is due from then on, of jobs that were due under the old one, too.
			bound, changes := churnBound, run%2 == 0
			if changes {
				bound++
			}
			if run%10 == 9 {
				tenants = make([]string, 50+r.IntN(251))
				heaviest := r.IntN(3)
				choice = [][]float64{{1}, {1, 1, 1, 10}, {1, 2, 3, 50}}[heaviest]
				bound = []float64{churnBound, 4, 6}[heaviest]
			}
			model := newFluid(map[string]float64{})
			for i := range tenants {
				tenants[i] = fmt.Sprintf("r%d-t%d", run, i)
				model.weight[tenants[i]] = choice[r.IntN(len(choice))]
				configureWeight(t, service, tenants[i], model.weight[tenants[i]])
			}
			seen := map[string]bool{}
			last := map[string]int64{}
			worst, total := 0.0, 0
			follow := func(sequence []dispatched) {
				for _, j := range sequence {
					if seen[j.id] {
						t.Fatalf("job %s was dispatched twice", j.id)
					}
					seen[j.id] = true
					if j.seq <= last[j.tenant] {
						t.Fatalf("%s: job %d came after job %d", j.tenant, j.seq, last[j.tenant])
					}
					last[j.tenant] = j.seq
					lag, err := model.dispatch(j.tenant)
					if err != nil {
						t.Fatal(err)
					}
					worst = max(worst, lag)
					total++
					if lag > bound {
						t.Fatalf("after %d dispatches a tenant is %.3f jobs away from its fluid share; weights %v, backlog %v",
							total, lag, model.weight, model.backlog)
					}
				}
			}
			for range 14 {
				for _, tenant := range tenants {
					if r.IntN(3) == 0 {
						jobs := []int{1, 1, 2, 5, 20, 60}[r.IntN(6)]
						enqueueFor(t, service, queue, tenant, jobs)
						model.arrive(tenant, jobs)
					}
					if changes && r.IntN(12) == 0 {
						weight := choice[r.IntN(len(choice))]
						configureWeight(t, service, tenant, weight)
						model.reweigh(tenant, weight)
					}
				}
				counts := make([][]int, 1+r.IntN(8))
				for i := range counts {
					for range 1 + r.IntN(3) {
						counts[i] = append(counts[i], []int{1, 1, 2, 3, 10, 25}[r.IntN(6)])
					}
				}
				follow(race(t, service, queue, counts))
			}
			for {
				rest := race(t, service, queue, [][]int{{40}, {40}})
				if len(rest) == 0 {
					break
				}
				follow(rest)
			}
			for tenant, n := range model.backlog {
				if n != 0 {
					t.Errorf("%s: %d jobs were left behind", tenant, n)
				}
			}
			ringsAgree(t, database.Pool)
			t.Logf("%d tenants, %d dispatches, largest lag %.3f jobs", len(tenants), total, worst)
		})
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
	for i, j := range sequence {
		got[j.tenant]++
		lag, err := model.dispatch(j.tenant)
		if err != nil {
			t.Fatal(err)
		}
		if lag > lagBound {
			t.Fatalf("dispatch %d: a tenant is %.3f jobs away from its share", i, lag)
		}
	}
	if got["acme"] != 1000 || got["beta"] != 500 || got["gamma"] != 100 {
		t.Errorf("of 1600 jobs: %v, want 1000, 500, 100", got)
	}
}

// A tenant's ten jobs behind another tenant's million are all dispatched within 10 * (sum of weights) / weight dispatches.
func TestSmallTenantBehindAMillion(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	enqueueFor(t, service, "default", "big", 1_000_000)
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

// ringsAgree compares what the rings keep in sum with the rows they sum up, and every available job with the ways a decision has to it.
func ringsAgree(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for what, sql := range map[string]string{
		"levels whose sums disagree with their tenants": `
			select count(*) from ojs.level l
			full join (select queue, priority, count(*) as tenants, sum(weight) as weight, sum(weight * vtime) as moment, min(vtime) as low
				from ojs.tenant_fairness where ready group by 1, 2) f using (queue, priority)
			where l.tenants is distinct from coalesce(f.tenants, 0) or l.weight is distinct from coalesce(f.weight, 0)
				or l.moment is distinct from coalesce(f.moment, 0) or l.low > f.low`,
		"queues whose backlog names other levels than those with work": `
			select count(*) from ojs.backlog b
			full join (
				select queue, array_agg(priority order by priority desc) as priorities from ojs.level where tenants > 0 group by 1
			) l using (queue)
			where coalesce(b.priorities, '{}') <> coalesce(l.priorities, '{}')`,
		"tenants with two rows": `
			select count(*) from (select from ojs.tenant_fairness group by queue, priority, tenant_id having count(*) > 1) x`,
		"levels with two rows": `select count(*) from (select from ojs.level group by queue, priority having count(*) > 1) x`,
		"available jobs no decision would find": `
			select count(*) from ojs.job j
			left join ojs.tenant c on c.tenant_id = j.tenant_id
			left join ojs.tenant_fairness f on f.queue = j.queue
				and f.priority = j.priority + coalesce(c.priority_boost, 0) and f.tenant_id = j.tenant_id
			where j.state = 'available' and (j.expires_at > ojs.now()) is not false
			and not coalesce(f.ready and (j.seq > f.head or f.behind and exists (
				select from ojs.again a
				where a.queue = f.queue and a.priority = f.priority and a.tenant_id = f.tenant_id and j.seq between a.lo and a.hi
					and a.lo >= f.again_lo and j.seq > f.again_seq)), false)
			and not exists (select from ojs._unfolded() u
				where u.queue = j.queue and u.priority = j.priority and u.tenant_id = j.tenant_id and j.seq between u.lo and u.hi)
			and not exists (select from ojs.timer m where m.kind = 'again' and j.id = any (m.ids))
			and not exists (select from ojs.turn t where t.queue = j.queue and t.id = j.id and t.tenant_id = j.tenant_id
				and t.n >= (select case when m.held > 0 then 0 else m.lo end from ojs._turn_mark(j.queue) m))`,
	} {
		var n int
		if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n > 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

// A long range whose first jobs have all ended hides no job of its own behind those of the next range:
// the cursor passes only what was read.
func TestASecondRangeHidesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	enqueueFor(t, service, "q", "t", 3000)
	if got := list[int64](t, service, "select seq from ojs.fetch('{q}', 3000)"); len(got) != 3000 {
		t.Fatalf("%d of 3000 jobs", len(got))
	}
	seqs := list[int64](t, d.Pool, `
		update ojs.job set state = 'available', lease = null
		where seq in (select seq from ojs.job order by seq offset 900 limit 1) or seq = (select max(seq) from ojs.job)
		returning seq`)
	exec(t, d.Pool, "select ojs._refund('q', 0, 't', 1, min(seq), min(seq) + 1000) from ojs.job")
	exec(t, d.Pool, "select ojs._refund('q', 0, 't', 1, max(seq), max(seq)) from ojs.job")
	got := list[int64](t, service, "select seq from ojs.fetch('{q}', 10)")
	if len(got) != 2 || got[0] != min(seqs[0], seqs[1]) || got[1] != max(seqs[0], seqs[1]) {
		t.Errorf("jobs %v came back, want %v", got, seqs)
	}
	ringsAgree(t, d.Pool)
}

// A FETCH that returns fewer than it asked for missed nothing: every job that had committed before it began was with a caller who had
// begun before it
// ended. Producers commit at random times, single callers take from the run queue, several at once are combined, and weights change.
func TestShortFetchMissedNothing(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	type call struct {
		begin, end time.Duration
		short      bool
	}
	var (
		mu        sync.Mutex
		calls     []call
		takenBy   = map[string]int{}
		committed = map[string]time.Duration{}
		started   = time.Now()
		producers sync.WaitGroup
		fetchers  sync.WaitGroup
		done      = make(chan struct{})
	)
	fetch := func(ask int, sql string, args ...any) (got int, err error) {
		c := call{begin: time.Since(started)}
		rows, err := service.Query(context.Background(), sql, args...)
		if err != nil {
			return 0, err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return 0, err
		}
		c.end = time.Since(started)
		c.short = len(ids) < ask
		mu.Lock()
		defer mu.Unlock()
		for _, id := range ids {
			if _, twice := takenBy[id]; twice {
				return 0, fmt.Errorf("job %s was handed out twice", id)
			}
			takenBy[id] = len(calls)
		}
		calls = append(calls, c)
		return len(ids), nil
	}
	for n := range 5 {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		producers.Go(func() {
			for range 80 {
				tx, err := service.Begin(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				ids, err := pgx.CollectRows(first(tx.Query(context.Background(), `
					insert into ojs.jobs (tenant_id, type, queue, priority) select 't' || $1::int, 'a.b', 'short', $2
					from generate_series(1, $3::int) returning id::text`,
					r.IntN(6), []int{0, 0, 0, 4}[r.IntN(4)], 1+r.IntN(4))), pgx.RowTo[string])
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(r.IntN(15)) * time.Millisecond)
				if r.IntN(6) == 0 {
					err = tx.Rollback(context.Background())
					ids = nil
				} else {
					err = tx.Commit(context.Background())
				}
				if err != nil {
					t.Error(err)
					return
				}
				at := time.Since(started)
				mu.Lock()
				for _, id := range ids {
					committed[id] = at
				}
				mu.Unlock()
			}
		})
	}
	for n := range 6 {
		r := rand.New(rand.NewPCG(seed, uint64(100+n)))
		fetchers.Go(func() {
			for over := false; !over; {
				select {
				case <-done:
					over = true // and a last look
				default:
				}
				var err error
				switch r.IntN(12) {
				case 0:
					_, err = service.Exec(context.Background(), `
						select ojs.configure_tenant('t' || $1::int, $2::int)`, r.IntN(6), 1+r.IntN(5))
				case 1, 2, 3:
					_, err = fetch(13, "select id::text from ojs.fetch_many('{short}', '{1,4,8}', '{a,b,c}', '{0,0,0}')")
				case 4, 5:
					_, err = fetch(40, "select id::text from ojs.fetch('{short}', 40)")
				default:
					count := []int{1, 1, 1, 2, 6}[r.IntN(5)]
					_, err = fetch(count, "select id::text from ojs.fetch('{short}', $1)", count)
				}
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
			}
		})
	}
	producers.Wait()
	close(done)
	fetchers.Wait()
	for {
		got, err := fetch(100, "select id::text from ojs.fetch('{short}', 100)")
		if err != nil {
			t.Fatal(err)
		}
		if got == 0 {
			break
		}
	}
	if len(takenBy) != len(committed) {
		t.Errorf("%d jobs were handed out, %d had been committed", len(takenBy), len(committed))
	}
	short := 0
	for _, c := range calls {
		if !c.short {
			continue
		}
		short++
		for id, at := range committed {
			if by, taken := takenBy[id]; at < c.begin && (!taken || calls[by].begin > c.end) {
				t.Fatalf("a fetch from %s to %s returned fewer than it asked for, but job %s, committed at %s, was left", c.begin,
					c.end, id, at)
			}
		}
	}
	t.Logf("%d jobs, %d calls, %d of them short", len(committed), len(calls), short)
	if short == 0 {
		t.Error("no call was short")
	}
}

func first(rows pgx.Rows, _ error) pgx.Rows { return rows }

// Everything at once: enqueue, fetch of all kinds, ack, nack, requeue, release, cancel, activate, ticks, changes of weight and boost,
// expiring
// leases, in transactions that commit, roll back or stay open for a while. Afterwards the sums agree with the rows, every
// available job can be found, and fetching finds each of them once.
func TestNothingIsStrandedWhateverHappens(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for worker := range 8 {
		r := rand.New(rand.NewPCG(seed, uint64(worker)))
		wg.Go(func() {
			ctx := context.Background()
			var held []string
			for range 120 {
				tenant := fmt.Sprintf("t%d", r.IntN(6))
				pick := func() string {
					if len(held) == 0 {
						return "01900000-0000-7000-8000-000000000000"
					}
					return held[r.IntN(len(held))]
				}
				var sql string
				var args []any
				keep := false
				switch r.IntN(16) {
				case 0, 1, 2, 3:
					sql, args = `
						select id::text
						from ojs.enqueue('x.y', '[1]', $1, $2, p_tenant => $3,
							p_retry => '{"initial_interval_ms": 1, "jitter": false}', p_pending => $4)`,
						[]any{[]string{"a", "b"}[r.IntN(2)], []int{-5, 0, 0, 0, 7}[r.IntN(5)], tenant, r.IntN(10) == 0}
					keep = r.IntN(3) == 0
				case 4:
					sql, args = `
						insert into ojs.jobs (tenant_id, type, queue) select $1, 'x.y', 'a' from generate_series(1, 20)`, []any{tenant}
				case 5, 6, 7:
					sql, args, keep = `select id::text from ojs.fetch(array['a', 'b'], $1, 'w', 1000)`, []any{1 + r.IntN(12)}, true
				case 8:
					sql, args, keep = `
						select id::text from ojs.fetch(array['b', 'a'], $1, p_tenant => $2)`, []any{1 + r.IntN(5), tenant}, true
				case 9, 10:
					sql, args = `select ojs.ack($1)`, []any{pick()}
				case 11:
					sql, args = `select ojs.nack($1, '{"message": "no"}', p_requeue => $2)`, []any{pick(), r.IntN(2) == 0}
				case 12:
					sql, args = `select ojs.cancel($1)`, []any{pick()}
				case 13:
					sql, args = `select ojs.release(id, lease) from ojs.job_info($1)`, []any{pick()}
				case 14:
					sql, args = `
						select ojs.configure_tenant($1, $2::int::numeric,
							$3)`, []any{tenant, 1 + r.IntN(9), []int{0, 0, 0, 5}[r.IntN(4)]}
				default:
					sql = `select ojs.tick()`
					if r.IntN(3) == 0 {
						sql, args = `select ojs.activate($1)`, []any{pick()}
					}
				}
				tx, err := service.Begin(ctx)
				if err != nil {
					errs <- err
					return
				}
				rows, err := tx.Query(ctx, sql, args...)
				if err == nil {
					for rows.Next() {
						var id string
						if keep && rows.Scan(&id) == nil {
							held = append(held, id)
						}
					}
					rows.Close()
					err = rows.Err()
				}
				var refused *pgconn.PgError
				if errors.As(err, &refused) && (refused.Code[:2] == "OJ" || refused.Code == "40P01") {
					if refused.Code == "40P01" {
						errs <- fmt.Errorf("%s: %w", sql, err)
					}
					_ = tx.Rollback(ctx)
					continue
				} else if err != nil {
					errs <- fmt.Errorf("%s: %w", sql, err)
					_ = tx.Rollback(ctx)
					return
				}
				if r.IntN(10) == 0 {
					time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
				}
				if r.IntN(6) == 0 {
					err = tx.Rollback(ctx)
				} else {
					err = tx.Commit(ctx)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		return
	}
	ringsAgree(t, database.Pool)
	// Leases of a second end, retries come due: after that nothing moves any more.
	for settled := false; !settled; {
		if _, err := service.Exec(t.Context(), `select ojs.tick()`); err != nil {
			t.Fatal(err)
		}
		err := database.Pool.QueryRow(t.Context(), `
			select not exists (select from ojs.job
				where state = 'retryable' or state = 'active' and lease_expires_at < ojs.now() + interval '5 seconds')`).Scan(&settled)
		if err != nil {
			t.Fatal(err)
		}
	}
	ringsAgree(t, database.Pool)
	var available, found int
	if err := database.Pool.QueryRow(t.Context(), `select count(*) from ojs.job where state = 'available'`).Scan(&available); err != nil {
		t.Fatal(err)
	}
	for {
		var got int
		if err := service.QueryRow(t.Context(), `select count(*) from ojs.fetch(array['a', 'b'], 7)`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		found += got
		if got < 7 {
			break
		}
	}
	if found != available {
		t.Errorf("%d jobs were available, a drain found %d", available, found)
	}
	ringsAgree(t, database.Pool)
	t.Logf("%d jobs were left to drain", available)
}

// A job whose producer commits late, after the cursor has passed its place, is not left behind.
func TestLateCommitsAreNotLeftBehind(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	var want []string
	for range 30 {
		late, err := service.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var id string
		if err := late.QueryRow(t.Context(), `select id from ojs.enqueue('late.job', p_tenant => 'acme')`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		early := 1 + r.IntN(3)
		enqueueFor(t, service, "default", "acme", early)
		first, err := fetchJobs(t.Context(), service, "default", 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(first.jobs) != early {
			t.Fatalf("%d jobs were committed, %d fetched", early, len(first.jobs))
		}
		if r.IntN(4) == 0 {
			if err := late.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			id = ""
		} else if err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		second, err := fetchJobs(t.Context(), service, "default", 10)
		if err != nil {
			t.Fatal(err)
		}
		want = want[:0]
		if id != "" {
			want = append(want, id)
		}
		var got []string
		for _, j := range second.jobs {
			got = append(got, j.id)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("after the late commit: fetched %v, want %v", got, want)
		}
	}
}

// A journal too long for one bite is folded in several, transactions whole, and nothing of it is lost.
func TestLongJournalsAreFoldedInBites(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	for _, statements := range []int{55_000, 5, 52_000, 5} {
		_, err := service.Exec(t.Context(), fmt.Sprintf(`
			do $$ begin for i in 1 .. %d loop insert into ojs.jobs (tenant_id, type, queue)
				values ('t' || i %% 7, 'x.y', 'q' || i %% 3);
			end loop; end $$`, statements))
		if err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for {
		var got int
		if err := service.QueryRow(t.Context(), `select count(*) from ojs.fetch(array['q0', 'q1', 'q2'], 10000)`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		found += got
		if got < 10_000 {
			break
		}
	}
	if found != 107_010 {
		t.Errorf("found %d of 107010 jobs", found)
	}
	ringsAgree(t, database.Pool)
}

// A job that somebody holds locked when its turn comes is passed over without waiting, and comes back if it is let go unchanged.
func TestLockedJobsComeBack(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	enqueueFor(t, service, "default", "acme", 3)
	var first string
	if err := service.QueryRow(t.Context(), `select id from ojs.jobs order by enqueued_at, id limit 1`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	tx, err := service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select ojs.cancel($1)`, first); err != nil {
		t.Fatal(err)
	}
	d, err := fetchJobs(t.Context(), service, "default", 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.jobs) != 2 {
		t.Fatalf("fetched %d jobs beside the locked one, want 2", len(d.jobs))
	}
	if d, err = fetchJobs(t.Context(), service, "default", 10); err != nil || len(d.jobs) != 0 {
		t.Fatalf("fetched %d jobs, %v; want none while the last is locked", len(d.jobs), err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	database.SetNow(time.Now().Add(2 * time.Second))
	if _, err := service.Exec(t.Context(), `select ojs.tick()`); err != nil {
		t.Fatal(err)
	}
	if d, err = fetchJobs(t.Context(), service, "default", 10); err != nil || len(d.jobs) != 1 || d.jobs[0].id != first {
		t.Fatalf("fetched %v, %v; want the job that was let go", d.jobs, err)
	}
}

// A long run of cancelled or expired jobs is passed over in one go, and the next job behind it is found by the same decision.
func TestEndedBacklogsArePassedOver(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	enqueueFor(t, service, "default", "big", 30_000)
	for _, sql := range []string{
		`select count(*) from (select ojs.cancel(id) from ojs.jobs) x`,
		`insert into ojs.jobs (tenant_id, type, expires_at) select 'big', 'x.y', now() - interval '1 hour' from generate_series(1, 12000)`,
		`select ojs.enqueue('x.y', p_tenant => 'big')`,
	} {
		if _, err := service.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	// Each decision passes over some 20000 of them at most, because others wait; the next one goes on behind them.
	found, calls := 0, 0
	for ; found == 0 && calls < 4; calls++ {
		d, err := fetchJobs(t.Context(), service, "default", 1)
		if err != nil {
			t.Fatal(err)
		}
		found = len(d.jobs)
	}
	if found != 1 || calls < 2 {
		t.Fatalf("found %d jobs in %d calls; want the one behind those that ended, in more than one", found, calls)
	}
	if _, err := service.Exec(t.Context(), `select ojs.tick(100000)`); err != nil {
		t.Fatal(err)
	}
	var expired int
	if err := service.QueryRow(t.Context(), `
		select count(*) from ojs.jobs where state = 'discarded'`).Scan(&expired); err != nil || expired != 12_000 {
		t.Errorf("%d expired jobs were discarded, %v; want 12000", expired, err)
	}
	ringsAgree(t, database.Pool)
}

// A tenant that keeps thousands of its own jobs locked delays nobody: they are passed over, nobody is charged for them, and the tenants
// beside it go on in their shares, one that arrives afterwards too.
func TestLockedBacklogDelaysNobody(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	enqueueFor(t, service, "default", "mallory", 8000)
	enqueueFor(t, service, "default", "acme", 400)
	tx, err := service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `
		select count(*) from (select ojs.cancel(id) from ojs.jobs where tenant_id = 'mallory') x`); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if d, err := fetchJobs(t.Context(), service, "default", 1); err != nil || len(d.jobs) != 1 || d.jobs[0].tenant != "acme" {
			t.Fatalf("fetched %v, %v; want a job of acme", d.jobs, err)
		}
	}
	enqueueFor(t, service, "default", "globex", 10)
	d, err := fetchJobs(t.Context(), service, "default", 21)
	if err != nil {
		t.Fatal(err)
	}
	globex := 0
	for _, j := range d.jobs {
		if j.tenant == "globex" {
			globex++
		}
	}
	if globex < 9 {
		t.Errorf("of 21 jobs the newcomer had %d, want its half", globex)
	}
	ringsAgree(t, database.Pool)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Let go of, they are found again: some were still in line, the others come back by the tick.
	database.SetNow(time.Now().Add(2 * time.Second))
	found := map[string]bool{}
	for range 30 {
		if _, err := service.Exec(t.Context(), `select ojs.tick(10000)`); err != nil {
			t.Fatal(err)
		}
		d, err := fetchJobs(t.Context(), service, "default", 2000)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range d.jobs {
			if j.tenant == "mallory" {
				found[j.id] = true
			}
		}
		if len(found) == 8000 {
			return
		}
	}
	t.Errorf("%d of 8000 jobs came back", len(found))
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

// Who fetches and stays in its transaction keeps nobody from the other jobs, new tenants' neither, and what is taken meanwhile
// is charged afterwards. If it was the one that decides, its session is ended, and its job is there again.
func TestSittingCallerStopsNobody(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	enqueueFor(t, service, "default", "acme", 3)
	tx, err := service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var first string
	if err := tx.QueryRow(t.Context(), `select id from ojs.fetch('{default}')`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	// Two that were there before, and one whose wake nobody can fold now.
	enqueueFor(t, service, "default", "globex", 1)
	got := map[string]int{}
	for range 3 {
		d, err := fetchJobs(t.Context(), service, "default", 1)
		if err != nil || len(d.jobs) != 1 || d.jobs[0].id == first {
			t.Fatalf("beside a caller that sits in its transaction another got %v, %v; want another job", d.jobs, err)
		}
		got[d.jobs[0].tenant]++
	}
	if got["acme"] != 2 || got["globex"] != 1 {
		t.Errorf("beside a caller that sits in its transaction: %v", got)
	}
	for {
		d, err := fetchJobs(t.Context(), service, "default", 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.jobs) == 1 {
			if d.jobs[0].id != first {
				t.Errorf("the last job is %s, want %s", d.jobs[0].id, first)
			}
			break
		}
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the caller that sat in its transaction could commit")
	}
	if d, err := fetchJobs(t.Context(), service, "default", 1); err != nil || len(d.jobs) != 0 {
		t.Fatalf("afterwards there is %v, %v; want nothing", d.jobs, err)
	}
	enqueueFor(t, service, "default", "initech", 1)
	if d, err := fetchJobs(t.Context(), service, "default", 1); err != nil || len(d.jobs) != 1 {
		t.Fatalf("a new tenant's job: %v, %v", d.jobs, err)
	}
	for tenant, want := range map[string]int{"acme": 3, "globex": 1, "initech": 1} {
		if n := one[int](t, database.Pool, "select charged::int from ojs.tenant_fairness where tenant_id = $1", tenant); n != want {
			t.Errorf("%s was charged for %d jobs, want %d", tenant, n, want)
		}
	}
	ringsAgree(t, database.Pool)
}

// A tenant's own session takes its own jobs only, by priority and first in first out, is charged for them, and never holds the
// row that decisions wait for.
func TestTenantsFetchTheirOwn(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service, acme := database.Service(), database.As("acme")
	enqueueFor(t, service, "default", "acme", 5)
	enqueueFor(t, service, "default", "globex", 5)
	if _, err := service.Exec(t.Context(), `select ojs.enqueue('fair.job', '[]', p_priority => 5, p_tenant => 'acme')`); err != nil {
		t.Fatal(err)
	}
	// Some of them decided ahead for somebody else.
	if d, err := fetchJobs(t.Context(), service, "default", 1); err != nil || len(d.jobs) != 1 || d.jobs[0].tenant != "acme" {
		t.Fatalf("the first job is %v, %v; want the one of high priority", d.jobs, err)
	}
	tx, err := acme.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var tenants []string
	var last int64
	for range 2 {
		rows, err := tx.Query(t.Context(), `select tenant_id, seq from ojs.fetch('{default}', 2)`)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var tenant string
			var seq int64
			if err := rows.Scan(&tenant, &seq); err != nil {
				t.Fatal(err)
			}
			if seq <= last {
				t.Errorf("job %d came after job %d", seq, last)
			}
			last = seq
			tenants = append(tenants, tenant)
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
	}
	if !slices.Equal(tenants, []string{"acme", "acme", "acme", "acme"}) {
		t.Fatalf("acme's own session got jobs of %q", tenants)
	}
	got := map[string]int{}
	for range 6 {
		d, err := fetchJobs(t.Context(), service, "default", 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range d.jobs {
			got[j.tenant]++
		}
	}
	if got["acme"] != 1 || got["globex"] != 5 {
		t.Errorf("beside a tenant's open transaction: %v", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	enqueueFor(t, service, "default", "globex", 1)
	if d, err := fetchJobs(t.Context(), service, "default", 10); err != nil || len(d.jobs) != 1 {
		t.Fatalf("at the end: %v, %v; want one job", d.jobs, err)
	}
	if n := one[int](t, database.Pool, "select sum(charged)::int from ojs.tenant_fairness where tenant_id = 'acme'"); n != 6 {
		t.Errorf("acme was charged for %d jobs, want 6", n)
	}
	ringsAgree(t, database.Pool)
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

// After a logical restore transaction ids begin anew and the stored snapshot means nothing: dispatch notices and counts from the jobs.
func TestRebuildAfterTransactionIDsRanBackwards(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	enqueueFor(t, service, "default", "acme", 5)
	if _, err := fetchJobs(t.Context(), service, "default", 2); err != nil {
		t.Fatal(err)
	}
	enqueueFor(t, service, "default", "beta", 5)
	for _, sql := range []string{`update ojs.fold set snapshot = '900000000:900000000:'`, `
		update ojs.tally_mark set snapshot = '900000000:900000000:'`} {
		if _, err := database.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	enqueueFor(t, service, "default", "gamma", 5)
	// A fetch does not do the work of beginning anew, and says who does.
	refused(t, service, "OJ503", "select from ojs.fetch('{default}', 100)")
	if _, err := service.Exec(t.Context(), `select ojs.tick()`); err != nil {
		t.Fatal(err)
	}
	d, err := fetchJobs(t.Context(), service, "default", 100)
	if err != nil || len(d.jobs) != 13 {
		t.Fatalf("fetched %d jobs, %v; want 13", len(d.jobs), err)
	}
	ringsAgree(t, database.Pool)
	var active, total int
	if err := service.QueryRow(t.Context(), `
		select active, total_jobs from ojs.queue_stats`).Scan(&active, &total); err != nil || active != 15 || total != 15 {
		t.Errorf("statistics say %d active of %d, %v; want 15 of 15", active, total, err)
	}
}

// A heartbeat that names an id of two tenants without saying which is refused like any other call.
func TestHeartbeatOfAnIDInTwoTenants(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	const id = "01900000-0000-7000-8000-000000000001"
	for _, tenant := range []string{"acme", "beta"} {
		if _, err := service.Exec(t.Context(), `select ojs.enqueue('x.y', p_id => $1, p_tenant => $2)`, id, tenant); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := service.Exec(t.Context(), `select ojs.fetch('{default}', 2, 'w')`); err != nil {
		t.Fatal(err)
	}
	var refused *pgconn.PgError
	if _, err := service.Exec(t.Context(), `select ojs.heartbeat('w', array[$1::uuid])`, id); !errors.As(err, &refused) ||
		refused.Code != "OJ411" {
		t.Errorf("a heartbeat for both got %v, want OJ411", err)
	}
	if _, err := service.Exec(t.Context(), `select ojs.heartbeat('w', array[$1::uuid], p_tenant => 'acme')`, id); err != nil {
		t.Error(err)
	}
}

// What was decided ahead is not what is handed out once something speaks against it: a higher priority, a pause, a cancelled job,
// another weight, a tenant that comes.
func TestLookAheadIsRevoked(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	next := func() dispatched {
		t.Helper()
		d, err := fetchJobs(t.Context(), service, "default", 1)
		if err != nil || len(d.jobs) != 1 {
			t.Fatalf("fetched %v, %v; want one job", d.jobs, err)
		}
		return d.jobs[0]
	}
	planned := func() string {
		t.Helper()
		ids := list[string](t, database.Pool, `select id::text from ojs.turn order by n limit 1`)
		if len(ids) == 0 {
			t.Fatal("nothing is decided ahead")
		}
		return ids[0]
	}
	enqueueFor(t, service, "default", "acme", 200)
	next()
	if first := planned(); next().id != first {
		t.Error("what was decided ahead is not handed out")
	}

	planned()
	urgent := one[string](t, service, `select id::text from ojs.enqueue('x.y', p_priority => 7, p_tenant => 'acme')`)
	if got := next().id; got != urgent {
		t.Errorf("after a job of higher priority came, %s was handed out, want %s", got, urgent)
	}

	next()
	planned()
	exec(t, service, `select ojs.pause_queue('default')`)
	if d, err := fetchJobs(t.Context(), service, "default", 1); err != nil || len(d.jobs) != 0 {
		t.Errorf("a paused queue handed out %v, %v", d.jobs, err)
	}
	exec(t, service, `select ojs.resume_queue('default')`)

	cancelled := planned()
	exec(t, service, `select ojs.cancel($1)`, cancelled)
	before := one[int](t, database.Pool, `select count(*) from ojs.lease l cross join lateral unnest(l.ids) u(id)`)
	for range 30 {
		if next().id == cancelled {
			t.Error("a cancelled job was handed out")
		}
	}
	if n := one[int](t, database.Pool, `select count(*) from ojs.lease l cross join lateral unnest(l.ids) u(id)`); n != before+30 {
		t.Errorf("%d jobs were handed out, want 30", n-before)
	}

	planned()
	enqueueFor(t, service, "default", "globex", 100)
	got := map[string]int{}
	for range 20 {
		got[next().tenant]++
	}
	if got["globex"] < 9 || got["globex"] > 11 {
		t.Errorf("of 20 jobs since it came a tenant had %d, want its half", got["globex"])
	}

	planned()
	configureWeight(t, service, "globex", 9)
	got = map[string]int{}
	for range 20 {
		got[next().tenant]++
	}
	if got["globex"] < 17 || got["globex"] > 19 {
		t.Errorf("of 20 jobs since its weight is 9 a tenant had %d, want 18", got["globex"])
	}
	ringsAgree(t, database.Pool)
}

// What happens to jobs decided ahead when somebody has hold of one of them, and lets go.
func TestRunQueueCorners(t *testing.T) {
	t.Parallel()
	fetchSeqs := func(t *testing.T, q querier, queue string, count int) []int64 {
		return list[int64](t, q, "select seq from ojs.fetch(array[$1], $2, 'w')", queue, count)
	}
	t.Run("a boost changes meanwhile", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		enqueueFor(t, service, "q", "t", 10)
		fetchSeqs(t, service, "q", 1)
		holder := begin(t, service)
		if got := fetchSeqs(t, holder, "q", 1); len(got) != 1 {
			t.Fatal(got)
		}
		exec(t, service, "select ojs.configure_tenant('t', null, 5)")
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		total := 0
		for range 5 {
			total += len(fetchSeqs(t, service, "q", 20))
		}
		if total != 9 {
			t.Errorf("%d of 9 jobs were found again", total)
		}
	})
	t.Run("a late commit lies within what is decided ahead", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		enqueueFor(t, service, "q", "t", 12)
		late := begin(t, service)
		exec(t, late, "insert into ojs.jobs (tenant_id, type, queue) values ('t', 'a', 'q')")
		enqueueFor(t, service, "q", "t", 12)
		fetchSeqs(t, service, "q", 1)
		commit(t, late)
		for range 9 {
			fetchSeqs(t, service, "q", 1)
		}
		if got := fetchSeqs(t, service, "q", 20); len(got) != 15 {
			t.Errorf("%d of 15 jobs", len(got))
		}
		got := one[int](t, service, "select charged::int from ojs.tenant_fairness where queue = 'q' order by rev desc limit 1")
		if got != 25 {
			t.Errorf("the tenant was charged for %d of 25 jobs", got)
		}
	})
	t.Run("ended jobs of a high priority do not let a low one by", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 't', 'a', 'q', 7 from generate_series(1, 360)")
		enqueueFor(t, service, "q", "t", 100)
		exec(t, service, "select ojs.cancel(id) from (select id from ojs.jobs where priority = 7 order by id limit 300 offset 2) j")
		for i := range 20 {
			if got := list[int](t, service, "select priority from ojs.fetch('{q}', 1, 'w')"); len(got) != 1 || got[0] != 7 {
				t.Fatalf("fetch %d: priority %v while jobs of priority 7 are available", i, got)
			}
		}
	})
	t.Run("tenants and those who linger find what is decided ahead", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service, tenant := d.Service(), connect(t, d.TenantURL("t"))
		enqueueFor(t, service, "q", "t", 10)
		fetchSeqs(t, service, "q", 1)
		if got := list[int64](t, tenant, "select seq from ojs.fetch('{q,other}', 3)"); len(got) != 3 {
			t.Errorf("a tenant got %d of 3 jobs from two queues", len(got))
		}
		exec(t, service, "select ojs.cancel(id) from (select id from ojs.jobs where state = 'available' order by id limit 1) j")
		if got := fetchSeqs(t, tenant, "q", 1); len(got) != 1 {
			t.Error("a cancelled job is in the way of a tenant")
		}
		lingering := begin(t, service)
		exec(t, lingering, "select pg_sleep(0.05)")
		if got := list[int64](t, lingering, "select seq from ojs.fetch('{q,other}', 2)"); len(got) != 2 {
			t.Errorf("who lingers got %d of 2 jobs", len(got))
		}
		commit(t, lingering)
	})
	t.Run("a row that is held is not what scans begin at", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service := d.Service()
		enqueueFor(t, service, "q", "t", 2000)
		fetchSeqs(t, service, "q", 1)
		holder := begin(t, service)
		held := fetchSeqs(t, holder, "q", 1)
		for range 600 {
			fetchSeqs(t, service, "q", 1)
		}
		if behind := one[int](t, d.Pool, "select (hi - lo)::int from ojs.turn_mark order by rev desc limit 1"); behind > 11000 {
			t.Errorf("scans begin %d rows before the end", behind)
		}
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			if got := fetchSeqs(t, service, "q", 1); got[0] == held[0] {
				return
			}
		}
		t.Error("the job that was let go of did not come back")
	})
	t.Run("a row that is held outlives the revocation of another", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service := d.Service()
		enqueueFor(t, service, "q", "t", 2000)
		fetchSeqs(t, service, "q", 1)
		early := begin(t, service)
		first := fetchSeqs(t, early, "q", 1)[0]
		for one[int](t, d.Pool, "select held from ojs.turn_mark order by rev desc limit 1") == 0 {
			fetchSeqs(t, service, "q", 1)
		}
		late := begin(t, service)
		fetchSeqs(t, late, "q", 1)
		if err := early.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for fetchSeqs(t, service, "q", 1)[0] != first {
		}
		if err := late.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for len(fetchSeqs(t, service, "q", 100)) > 0 {
		}
		if got := one[int](t, service, "select count(*)::int from ojs.jobs where state = 'available'"); got != 0 {
			t.Errorf("%d jobs are never found again", got)
		}
	})
	t.Run("a row that outlives its revocation goes before nothing", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		enqueueFor(t, service, "q", "t", 20)
		fetchSeqs(t, service, "q", 1)
		holder := begin(t, service)
		held := fetchSeqs(t, holder, "q", 1)[0]
		exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 't', 'a', 'q', 9 from generate_series(1, 3)")
		fetchSeqs(t, service, "q", 1)
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := list[int](t, service, "select priority from ojs.fetch('{q}', 1, 'w')"); len(got) != 1 || got[0] != 9 {
			t.Errorf("priority %v went before 9", got)
		}
		for range 30 {
			if got := fetchSeqs(t, service, "q", 1); len(got) == 1 && got[0] == held {
				return
			}
		}
		t.Error("the job that was let go of did not come back")
	})
	t.Run("the tick has a row looked at that somebody lets go of", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service := d.Service()
		enqueueFor(t, service, "q", "t", 20)
		fetchSeqs(t, service, "q", 1)
		holder := begin(t, service)
		fetchSeqs(t, holder, "q", 1)
		if got := fetchSeqs(t, service, "q", 100); len(got) != 18 {
			t.Fatalf("%d of 18 jobs", len(got))
		}
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		exec(t, d.Pool, "update ojs.timer set due_at = now() where kind = 'again'")
		exec(t, service, "select ojs.tick()")
		if got := one[int](t, d.Pool, "select count(*)::int from ojs._unfolded()"); got != 1 {
			t.Errorf("%d looks are called for, want 1", got)
		}
		if got := fetchSeqs(t, service, "q", 1); len(got) != 1 {
			t.Error("the job that was let go of did not come back")
		}
	})
	t.Run("beside a decision, too, a priority goes before what was decided ahead", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service, tenant := d.Service(), connect(t, d.TenantURL("t"))
		enqueueFor(t, service, "q", "t", 20)
		fetchSeqs(t, service, "q", 1)
		exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 't', 'a', 'q', 9 from generate_series(1, 2)")
		if got := list[int](t, tenant, "select priority from ojs.fetch('{q}', 4)"); !slices.Equal(got, []int{9, 9, 0, 0}) {
			t.Errorf("priorities %v", got)
		}
	})
	t.Run("the tick moves the cursor of a tenant that fetches alone", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service, tenant := d.Service(), connect(t, d.TenantURL("t"))
		enqueueFor(t, service, "q", "t", 300)
		for range 2 {
			if got := fetchSeqs(t, tenant, "q", 100); len(got) != 100 {
				t.Fatalf("%d of 100 jobs", len(got))
			}
			exec(t, service, "select ojs.tick()")
		}
		if got := one[int](t, d.Pool, "select count(*)::int from ojs.tenant_fairness f join ojs.job j on j.seq > f.head"); got != 100 {
			t.Errorf("%d jobs lie behind the cursor, want 100", got)
		}
		if got := one[int](t, d.Pool, "select charged::int from ojs.tenant_fairness order by rev desc limit 1"); got != 200 {
			t.Errorf("the tenant was charged for %d of 200 jobs", got)
		}
	})
	t.Run("beside a decision, too, what was decided ahead goes before what came behind it", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		enqueueFor(t, service, "q", "a", 10)
		seqs := fetchSeqs(t, service, "q", 1)
		enqueueFor(t, service, "q", "b", 1)
		lingering := begin(t, service)
		exec(t, lingering, "select pg_sleep(0.05)")
		for range 2 {
			seqs = append(seqs, fetchSeqs(t, lingering, "q", 5)...)
		}
		commit(t, lingering)
		if len(seqs) != 11 || !slices.IsSorted(seqs[:10]) {
			t.Errorf("jobs %v, want 11 in order", seqs)
		}
	})
	t.Run("who goes beside a decision after having taken some gets no more than asked", func(t *testing.T) {
		t.Parallel()
		try := func() int {
			d := pgtest.New(t)
			service := d.Service()
			enqueueFor(t, service, "q", "a", 5)
			fetchSeqs(t, service, "q", 1)
			decider, holder := begin(t, d.Pool), begin(t, service)
			exec(t, decider, "select from ojs.lane for update")
			fetchSeqs(t, holder, "q", 1)
			got := make(chan int, 1)
			go func() {
				n := -1
				_ = service.QueryRow(t.Context(), "select count(*)::int from ojs.fetch('{q}', 5)").Scan(&n)
				got <- n
			}()
			for one[int](t, d.Pool, `
				select count(*)::int from pg_stat_activity
				where datname = current_database() and wait_event_type = 'Lock'`) == 0 && len(got) == 0 {
				runtime.Gosched()
			}
			exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'b', 'a', 'q', 10 from generate_series(1, 9)")
			n := <-got
			commit(t, decider)
			commit(t, holder)
			return n
		}
		// It waits for a second only: where that was over before the priority came, it found the three that nobody has.
		n := try()
		for tries := 1; n == 3 && tries < 10; tries++ {
			n = try()
		}
		if n != 5 {
			t.Errorf("%d jobs were handed out to who asked for 5, want 5", n)
		}
	})
	t.Run("another tenant's job of the same id is not taken for one decided ahead", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		const id = "01890a5d-ac96-7fff-8000-000000000001"
		exec(t, service, "insert into ojs.jobs (id, tenant_id, type, queue) values ($1, 'b', 'a', 'q')", id)
		exec(t, service, "select from ojs.fetch_many('{q}', '{1}', '{w}', '{0}', null, false)")
		enqueueFor(t, service, "q", "b", 200)
		enqueueFor(t, service, "q", "a", 7)
		exec(t, service, "insert into ojs.jobs (id, tenant_id, type, queue) values ($1, 'a', 'a', 'q')", id)
		enqueueFor(t, service, "q", "a", 100)
		fetchSeqs(t, service, "q", 1)
		exec(t, service, "select ojs.nack($1, '{\"code\": \"x\", \"message\": \"m\"}', p_requeue => true, p_tenant => 'b')", id)
		for range 11 {
			fetchSeqs(t, service, "q", 1)
		}
		for len(fetchSeqs(t, service, "q", 1000)) > 0 {
		}
		if got := one[int](t, service, "select count(*)::int from ojs.jobs where state = 'available'"); got != 0 {
			t.Errorf("%d jobs are never found again", got)
		}
	})
	t.Run("a job that comes back to another ring does not move its clock", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		exec(t, service, "select ojs.configure_tenant('lite', 0.001)")
		exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'back', 'a', 'q', 7 from generate_series(1, 2)")
		fetchSeqs(t, service, "q", 2)
		enqueueFor(t, service, "q", "lite", 60)
		fetchSeqs(t, service, "q", 1)
		holder := begin(t, service)
		fetchSeqs(t, holder, "q", 1)
		exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'stays', 'a', 'q', 7 from generate_series(1, 400)")
		exec(t, service, "select ojs.configure_tenant('lite', null, 7)")
		fetchSeqs(t, service, "q", 100)
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		fetchSeqs(t, service, "q", 100)
		exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'back', 'a', 'q', 7 from generate_series(1, 60)")
		n := 0
		for _, tenant := range list[string](t, service, "select tenant_id from ojs.fetch('{q}', 100, 'w')") {
			if tenant == "back" {
				n++
			}
		}
		if n < 48 || n > 52 {
			t.Errorf("who came back had %d of 100 dispatches, its share is 50", n)
		}
	})
	t.Run("the tick has a row looked at that a refill passes over", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service := d.Service()
		enqueueFor(t, service, "q", "t", 200)
		fetchSeqs(t, service, "q", 1)
		holder := begin(t, service)
		fetchSeqs(t, holder, "q", 1)
		for one[int](t, d.Pool, "select held from ojs.turn_mark order by rev desc limit 1") == 0 {
			fetchSeqs(t, service, "q", 1)
		}
		if got := one[int](t, d.Pool, "select count(*)::int from ojs.timer where kind = 'again'"); got != 1 {
			t.Errorf("%d looks are planned, want 1", got)
		}
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a rebuild does not wait for who has hold of a row", func(t *testing.T) {
		t.Parallel()
		d := pgtest.New(t)
		service := d.Service()
		enqueueFor(t, service, "q", "t", 10)
		fetchSeqs(t, service, "q", 1)
		holder := begin(t, service)
		fetchSeqs(t, holder, "q", 1)
		operator := begin(t, d.Pool)
		exec(t, operator, "set local lock_timeout = '2s'")
		exec(t, operator, "select ojs.rebuild()")
		commit(t, operator)
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		total := 0
		for range 12 {
			total += len(fetchSeqs(t, service, "q", 1))
		}
		if total != 9 {
			t.Errorf("%d of 9 jobs", total)
		}
		ringsAgree(t, d.Pool)
	})
	t.Run("queues of which one is not paused are that queue", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		enqueueFor(t, service, "q", "t", 20)
		exec(t, service, "select ojs.pause_queue('p')")
		fetchSeqs(t, service, "q", 1)
		exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) values ('t', 'a', 'q', 9)")
		if got := list[int](t, service, "select priority from ojs.fetch('{p,q}', 1, 'w')"); len(got) != 1 || got[0] != 9 {
			t.Errorf("priority %v went before 9", got)
		}
	})
	t.Run("deficits keep their sum when what is decided ahead leaves a tenant out", func(t *testing.T) {
		t.Parallel()
		service := pgtest.New(t).Service()
		for _, tenant := range []string{"a", "b", "d", "e"} {
			enqueueFor(t, service, "q", tenant, 500)
		}
		for range 10 {
			enqueueFor(t, service, "q", "c", 6)
			exec(t, service, "select from ojs.fetch('{q}', 5, 'w', p_tenant => 'c')")
			exec(t, service, "select ojs.cancel(id) from ojs.jobs where tenant_id = 'c' and state = 'available'")
			fetchSeqs(t, service, "q", 1)
			exec(t, service, "select from ojs.fetch('{q,other}', 1, 'w')")
		}
		enqueueFor(t, service, "q", "late", 50)
		got := list[string](t, service, "select tenant_id from ojs.fetch('{q,other}', 40, 'w')")
		n := 0
		for _, tenant := range got {
			if tenant == "late" {
				n++
			}
		}
		if n < 6 || n > 10 {
			t.Errorf("who joined had %d of 40 dispatches, its share is 8", n)
		}
	})
}

// Ranges that are looked at again may overlap: a job that lies in two of them is handed out and charged for once, and the jobs behind it
// go to the requests they were chosen for.
func TestAJobInTwoPlacesIsChargedOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.enqueue_bulk('x', array_fill('[]'::json, array[30]), 'work', p_tenant => 'beta')")
	exec(t, service, "select ojs.enqueue_bulk('x', array_fill('[]'::json, array[1]), 'work', p_tenant => 'acme')")
	exec(t, service, "select ojs.release(f.id, f.lease) from ojs.fetch('{work}', 20) f where f.tenant_id = 'beta'")
	exec(t, d.Pool, `select ojs._look_back('work', 0, 'beta', array[min(seq), min(seq) + 3], array[max(seq), max(seq)])
		from (
			select seq from ojs.job where tenant_id = 'beta' and attempt = 0
			and seq < (select head from ojs.tenant_fairness where tenant_id = 'beta')
		) j`)
	counts, workers := make([]int, 28), make([]string, 28)
	for i := range counts {
		counts[i], workers[i] = 1, fmt.Sprintf("w%d", i+1)
	}
	got := list[string](t, service, `
		select format('w%s %s', request, worker_id) from ojs.fetch_many('{work}', $1, $2, array_fill(0, array[28]))`, counts, workers)
	for i, row := range got {
		if want := fmt.Sprintf("w%d w%d", i+1, i+1); row != want {
			t.Errorf("row %d is for request and worker %q, want %q", i, row, want)
		}
	}
	if len(got) != 28 {
		t.Errorf("%d jobs, want 28", len(got))
	}
	for _, tenant := range []string{"acme", "beta"} {
		charged := one[int](t, d.Pool, "select charged::int from ojs.tenant_fairness where tenant_id = $1", tenant)
		given := one[int](t, d.Pool, `
			select count(*) from ojs.lease l cross join lateral unnest(l.tenants) u(tenant_id) where tenant_id = $1`, tenant)
		if charged != given {
			t.Errorf("tenant %s was charged for %d jobs and given %d", tenant, charged, given)
		}
	}
}
