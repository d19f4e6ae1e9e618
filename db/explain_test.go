package db_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// explained is what ojs.explain says of an available job.
type explained struct {
	ID, Tenant, Certainty                string
	TenantAhead, HigherAhead, Dispatches *int
}

const explainAll = `
	select j.id::text, j.tenant_id, coalesce(e.certainty, ''), e.tenant_ahead::int, e.higher_ahead::int, e.dispatches_ahead::int
	from ojs.job j cross join lateral ojs.explain(j.id, null) e where j.queue = $1 and j.state = 'available' order by j.seq`

// explainJobs asks about all available jobs of a queue.
func explainJobs(t *testing.T, q querier, queue string) []explained {
	t.Helper()
	rows, err := q.Query(t.Context(), explainAll, queue)
	if err == nil {
		var all []explained
		if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[explained]); err == nil {
			return all
		}
	}
	t.Fatal(pgtest.Explain(err))
	return nil
}

// mixedQueue is a random queue: tenants, weights, priorities, and jobs that come while others are handed out.
func mixedQueue(t *testing.T, d *pgtest.DB, r *rand.Rand, queue string) (weights map[string]float64) {
	t.Helper()
	weights = map[string]float64{}
	choices := []float64{1, 1, 2, 3, 5, 10, 0.5}
	service := d.Service()
	for i := range 2 + r.IntN(9) {
		tenant := fmt.Sprintf("%s-t%d", queue, i)
		weights[tenant] = choices[r.IntN(len(choices))]
		configureWeight(t, service, tenant, weights[tenant])
	}
	for round := range 4 {
		for tenant := range weights {
			if r.IntN(3) > 0 {
				exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select $1, 'x', $2, $3 from generate_series(1, $4)",
					tenant, queue, []int{0, 0, 0, 0, 3, -3}[r.IntN(6)], []int{1, 2, 5, 20, 60}[r.IntN(5)])
			}
		}
		if round < 3 {
			exec(t, service, "select ojs.fetch(array[$1], $2)", pgx.QueryExecModeSimpleProtocol, queue, 1+r.IntN(20))
		}
	}
	return weights
}

// What ojs.explain says of every job of a queue is what happens: where it says exact, to the job.
func TestExplainFollowsTheDecisions(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	seed := newSeed()
	counted := map[string]int{}
	worst := 0.0
	for run := range 12 {
		r := rand.New(rand.NewPCG(seed, uint64(run)))
		queue := fmt.Sprintf("q%d", run)
		weights := mixedQueue(t, d, r, queue)
		if run%3 > 0 {
			// All is taken in. In every other one nothing is decided ahead, because one call asks for many.
			exec(t, d.Service(), "select ojs.fetch(array[$1], $2)", pgx.QueryExecModeSimpleProtocol, queue, []int{0, 1, 40}[run%3])
		}
		before := explainJobs(t, d.Service(), queue)
		place := map[string]int{}
		for {
			got := list[string](t, d.Service(), "select id::text from ojs.fetch(array[$1], 1)", pgx.QueryExecModeSimpleProtocol, queue)
			if len(got) == 0 {
				break
			}
			place[got[0]] = len(place)
		}
		for _, e := range before {
			if e.Dispatches == nil {
				t.Fatalf("seed %d run %d: nothing is said of job %s of %s", seed, run, e.ID, e.Tenant)
			}
			counted[e.Certainty]++
			sum, off := 0.0, float64(*e.Dispatches-place[e.ID])
			for _, w := range weights {
				sum += w
			}
			jobs := off * weights[e.Tenant] / sum
			switch {
			case e.Certainty == "exact" && off != 0:
				t.Errorf("seed %d run %d: exactly %d are said to come before a job of %s, and %d did",
					seed, run, *e.Dispatches, e.Tenant, place[e.ID])
			case e.Certainty == "estimate" && (jobs > 2 || jobs < -2) && (off > float64(2*len(weights)) || off < -float64(2*len(weights))):
				t.Errorf("seed %d run %d: about %d are said to come before a job of %s, and %d did",
					seed, run, *e.Dispatches, e.Tenant, place[e.ID])
			}
			if e.Certainty != "exact" {
				worst = max(worst, jobs, -jobs)
			}
		}
	}
	t.Logf("seed %d: %v; estimates are off by up to %.2f of their tenants' own turns", seed, counted, worst)
	if counted["exact"] < 100 || counted["estimate"] < 100 {
		t.Errorf("seed %d: too few of a kind: %v", seed, counted)
	}
}
