package db_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// fluid is the ideal: a server that works for all tenants with work at once, in proportion to their
// weights, and has done as many jobs in sum as were dispatched. It has finished a tenant when it has done
// as many jobs for it as the tenant has. It does not know how the database chooses; it only follows the
// dispatches.
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

// lag returns the number of jobs by which a tenant is behind the ideal; negative: ahead of it.
func (f *fluid) lag(tenant string) float64 { return float64(f.backlog[tenant]) - f.left[tenant] }

// dispatch follows one job and returns the largest |lag| of the tenants with work.
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
	// How much farther off the worst of 400,000 random schedules is.
	tailBound = 1.5
)

type dispatched struct {
	tenant string
	seq    int64
	id     string
}

// decision holds the jobs of one FETCH.
type decision struct {
	jobs []dispatched
}

func fetchJobs(ctx context.Context, pool *pgxpool.Pool, queue string, count int) (decision, error) {
	var d decision
	// In one message: a caller that is slow between two would go beside decisions.
	rows, err := pool.Query(ctx, `select tenant_id, seq, id::text from ojs.fetch(array[$1], $2, 'w', 600000)`,
		pgx.QueryExecModeSimpleProtocol, queue, count)
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

// race lets several fetchers take jobs at once, and returns their jobs in the order of the decisions,
// which the journal keeps.
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

// levelsDisagree finds levels with a wrong count of tenants, or whose low is above the time of a tenant
// that is not in an isolated pool.
const levelsDisagree = `
	select coalesce(l.queue, f.queue), coalesce(l.priority, f.priority), l.ready, f.ready, l.at_limit, f.at_limit, l.low, f.low
	from (select s.queue, l.* from ojs.dispatch_state s cross join lateral unnest(s.levels) l) l
	full join (select queue, priority, count(*) filter (where ready) as ready, count(*) filter (where at_limit) as at_limit,
			min(vtime) filter (where ready) as low
		from ojs.tenant_fairness group by 1, 2) f using (queue, priority)
	where coalesce(l.ready, 0) <> coalesce(f.ready, 0) or coalesce(l.at_limit, 0) <> coalesce(f.at_limit, 0)
		or l.low > f.low and not exists (select from ojs.pool p where p.isolated and p.tenants is not null)`

// ringsAgree compares the sums that rings keep with their rows, and checks that a decision can find every
// available job.
func ringsAgree(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for what, sql := range map[string]string{
		"levels that do not count their tenants": "select count(*) from (" + levelsDisagree + ") x",
		"tenants with two rows": `
			select count(*) from (select from ojs.tenant_fairness group by queue, priority, tenant_id having count(*) > 1) x`,
		"tenants that are given jobs of another priority than the highest with work": `
			select count(*) from ojs.tenant_fairness f cross join unnest(f.cursors) l
			where f.ready and l.works and l.job_priority > f.job_priority`,
		"queues with two rows": `select count(*) from (select from ojs.dispatch_state group by queue having count(*) > 1) x`,
		"available jobs no decision would find": `
			select count(*) from ojs.job j
			left join ojs.tenant c on c.tenant_id = j.tenant_id
			left join ojs._state(j.queue) b on true
			left join ojs.tenant_fairness f on f.queue = j.queue and f.tenant_id = j.tenant_id
				and f.priority = case when b.own_order then 0 else j.priority + coalesce(c.priority_boost, 0) end
			left join unnest(ojs._cursors(f)) l on l.job_priority = j.priority
			where j.state = 'available' and (j.expires_at > ojs.now()) is not false
			and not coalesce(f.ready and l.works and (j.seq > l.head or exists (
				select from ojs.revisit a
				where a.queue = f.queue and a.priority = l.job_priority and a.tenant_id = f.tenant_id and j.seq between a.lo and a.hi
					and a.lo >= l.revisit_lo and j.seq > l.revisit_seq)), false)
			and not exists (select from ojs._unfolded() u
				where u.queue = j.queue and u.priority = j.priority and u.tenant_id = j.tenant_id and j.seq between u.lo and u.hi)
			and not exists (select from ojs.timer m where m.kind = 'revisit' and j.id = any (m.ids))`,
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
