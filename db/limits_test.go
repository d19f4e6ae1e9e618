package db_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// No more jobs of a tenant run at once than its limit allows, in all queues together, and what ends makes room.
func TestATenantsLimitHoldsOverAllQueues(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.limit_concurrency(3, 'acme')")
	enqueueFor(t, service, "a", "acme", 10)
	enqueueFor(t, service, "b", "acme", 10)
	enqueueFor(t, service, "b", "globex", 2)
	first := list[string](t, service, "select id::text from ojs.fetch('{a}', 2)")
	if len(first) != 2 {
		t.Fatalf("%d jobs", len(first))
	}
	if got := list[string](t, service, "select tenant_id from ojs.fetch('{a,b}', 9) order by 1"); !slices.Equal(got,
		[]string{"acme", "globex", "globex"}) {
		t.Errorf("of 9 jobs there were %v", got)
	}
	if got := list[string](t, service, "select tenant_id from ojs.fetch('{a,b}', 9)"); len(got) != 0 {
		t.Errorf("beyond the limit %v", got)
	}
	exec(t, service, "select ojs.ack($1)", first[0])
	if got := list[string](t, service, "select queue from ojs.fetch('{b}', 9)"); len(got) != 1 {
		t.Errorf("one slot gave %v", got)
	}
	exec(t, service, "select ojs.limit_concurrency(null, 'acme')")
	if got := list[string](t, service, "select queue from ojs.fetch('{a,b}', 100)"); len(got) != 16 {
		t.Errorf("without a limit %v", got)
	}
}

// quotas holds the limits of a random run, by tenant, queue and pool. An empty name stands for all.
type quotas map[[3]string]int

// broken returns an error that names the limit which the active jobs exceed, or nil.
func (q quotas) broken(active map[[3]string]int) error {
	sums := map[[3]string]int{}
	for shard, n := range active {
		tenant, queue, pool := shard[0], shard[1], shard[2]
		for _, of := range [][3]string{{tenant, queue, ""}, {tenant, "", ""}, {"", queue, ""}, {"", "", pool}} {
			sums[of] += n
		}
	}
	for of, limit := range q {
		if sums[of] > limit {
			return fmt.Errorf("%d jobs of tenant, queue and pool %q are active, at most %d may be", sums[of], of, limit)
		}
	}
	return nil
}

// limitedRun is the workers of a random run. They keep a ledger of active jobs: a job is entered after it
// was handed out, and removed before it ends, so the ledger never has more jobs than run.
type limitedRun struct {
	pool   *pgxpool.Pool
	quotas quotas
	mu     sync.Mutex
	active map[[3]string]int
	got    map[string]bool
	errs   []error
}

type heldJob struct {
	id, lease, tenant, queue, pool string
}

func (w *limitedRun) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err)
}

func (w *limitedRun) enter(jobs []heldJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range jobs {
		w.active[[3]string{j.tenant, j.queue, j.pool}]++
	}
	if err := w.quotas.broken(w.active); err != nil {
		w.errs = append(w.errs, err)
	}
}

// end ends an attempt in a random way. It returns true if the job has ended.
func (w *limitedRun) end(ctx context.Context, r *rand.Rand, j heldJob) (bool, error) {
	w.mu.Lock()
	w.active[[3]string{j.tenant, j.queue, j.pool}]--
	w.mu.Unlock()
	ways := []string{
		"select (ojs.ack($1, $2)).state = 'completed'",
		"select (ojs.nack($1, '{\"message\": \"again\"}', p_lease => $2)).state = 'cancelled'",
		"select (ojs.cancel($1, $3)).state = 'cancelled' and $2::uuid is not null",
		"select (ojs.release($1, $2)).state = 'cancelled'",
		"select count(*) = 1 from ojs.ack_many(array[$1::uuid], array[$2::uuid])",
	}
	way := r.IntN(len(ways))
	args := []any{j.id, j.lease}
	if way == 2 {
		args = append(args, j.tenant)
	}
	var done bool
	err := w.pool.QueryRow(ctx, ways[way], args...).Scan(&done)
	if err == nil && way == 4 && !done {
		// It leaves out a job that another session has locked, as a FETCH without the lane does for a moment when it looks at it.
		err = w.pool.QueryRow(ctx, ways[0], args...).Scan(&done)
	}
	return done, err
}

func (w *limitedRun) work(ctx context.Context, r *rand.Rand, pool string, queues []string, rounds int) {
	var held []heldJob
	for range rounds {
		own := append([]string(nil), queues...)
		r.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
		rows, err := w.pool.Query(ctx, "select id::text, lease::text, tenant_id, queue from ojs.fetch($1, $2, p_pool => $3)",
			own[:1+r.IntN(len(own))], 1+r.IntN(4), pool)
		if err != nil {
			w.fail(err)
			return
		}
		var jobs []heldJob
		for rows.Next() {
			j := heldJob{pool: pool}
			if err := rows.Scan(&j.id, &j.lease, &j.tenant, &j.queue); err != nil {
				w.fail(err)
			}
			jobs = append(jobs, j)
		}
		if rows.Err() != nil {
			w.fail(rows.Err())
			return
		}
		w.enter(jobs)
		held = append(held, jobs...)
		for len(held) > 0 && (len(held) > 3 || r.IntN(2) == 0) {
			if _, err := w.end(ctx, r, held[0]); err != nil {
				w.fail(err)
			}
			held = held[1:]
		}
	}
	for _, j := range held {
		if _, err := w.end(ctx, r, j); err != nil {
			w.fail(err)
		}
	}
}

// Random limits, tenants, queues and ends, several workers at once: no limit is ever exceeded, what is counted is what runs, and in the
// end every job that may run has run.
func TestLimitsAreExact(t *testing.T) {
	t.Parallel()
	for range 4 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) { limitsAreExact(t, seed) })
	}
}

// eligible finds jobs that wait although every rule about them has capacity.
const eligible = `
	select a.tenant_id, a.queue, count(*) from ojs.job a
	where a.state = 'available' and a.queue = any ($1) and not exists (
		select from ojs.rule r
		where r.tenant_id in ('', a.tenant_id) and r.queue in ('', a.queue) and (r.paused_at is not null or r.max_concurrency <= (
			select count(*) from ojs.job j
			where j.state = 'active' and r.tenant_id in ('', j.tenant_id) and r.queue in ('', j.queue))))
	group by 1, 2`

func limitsAreExact(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	d := pgtest.New(t)
	service := d.Service()
	tenants, queues := []string{"t1", "t2", "t3", "t4"}, []string{"a", "b", "c"}
	w := &limitedRun{pool: service, quotas: quotas{}, active: map[[3]string]int{}, got: map[string]bool{}}
	limit := func(tenant, queue string, most int) {
		w.quotas[[3]string{tenant, queue}] = most
		exec(t, service, "select ojs.limit_concurrency($1, nullif($2, ''), nullif($3, ''))", most, tenant, queue)
	}
	limit("t1", "", 2+r.IntN(3))
	limit("t2", "", 1+r.IntN(5))
	limit("t2", "a", 1+r.IntN(3))
	limit("t3", "b", 1+r.IntN(2))
	if r.IntN(2) == 0 {
		limit("", "c", 1+r.IntN(4))
	}
	for _, pool := range []string{"p1", "p2"} {
		most := 2 + r.IntN(5)
		w.quotas[[3]string{"", "", pool}] = most
		exec(t, service, "select ojs.configure_pool($1, jsonb_build_object('concurrency', $2::int))", pool, most)
	}
	for _, tenant := range tenants {
		for _, queue := range queues {
			enqueueFor(t, service, queue, tenant, 5+r.IntN(15))
		}
	}
	var wg sync.WaitGroup
	for n := range 6 {
		own := rand.New(rand.NewPCG(seed, uint64(n)+1))
		wg.Go(func() { w.work(t.Context(), own, []string{"default", "p1", "p2"}[n%3], queues, 40) })
	}
	wg.Wait()
	if err := errors.Join(w.errs...); err != nil {
		t.Fatal(err)
	}
	// One worker alone goes on until nothing is left, and nothing is left by a FETCH that it could have had.
	var held []string
	for range 500 {
		allDue(t, d)
		asked := queues[:1+r.IntN(len(queues))]
		held = append(held, list[string](t, service, "select id::text from ojs.fetch($1, 50)", asked)...)
		if left := lines(t, d.Pool, eligible, asked); len(left) > 0 {
			t.Fatalf("a FETCH from %v has left %v; limits %v", asked, left, w.quotas)
		}
		r.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		n := (len(held) + 1) / 2
		if n > 0 {
			exec(t, service, "select ojs.ack_many($1::uuid[])", held[:n])
		}
		held = held[n:]
		if one[int](t, d.Pool, "select count(*) from ojs.job where not ojs._ended(state)") == 0 {
			break
		}
	}
	expectNone(t, d.Pool, "left over", "select * from ojs.job where not ojs._ended(state)")
	exec(t, service, "select from ojs.fetch($1, 1)", queues)
	tick(t, service, 1000)
	if got := lines(t, d.Pool, "select tenant_id, queue, active from ojs.usage where active <> 0"); len(got) > 0 {
		t.Errorf("counted, though nothing runs: %v", got)
	}
	expectNone(t, service, "in the hands of a pool", "select name, active_jobs from ojs.pool_stats where active_jobs <> 0")
}
