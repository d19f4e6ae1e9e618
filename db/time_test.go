package db_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// attempts is a queue whose tenants share by time, and its workers. Attempts take no time in the test:
// their time is written into the job's row before they end.
type attempts struct {
	t       *testing.T
	pool    *pgxpool.Pool
	service *pgxpool.Pool
	length  map[string]func() float64 // in seconds, of a tenant's next attempt
	now     float64
	beat    float64
	flying  float64 // seconds that may have run at once
	running []attempt
	served  map[string]float64 // seconds that ended
	longest map[string]float64
}

type attempt struct {
	tenant, id, lease string
	seconds, ends     float64
}

func newAttempts(t *testing.T, length map[string]func() float64) *attempts {
	t.Helper()
	d := pgtest.New(t)
	a := &attempts{t: t, pool: d.Pool, service: d.Service(), length: length, served: map[string]float64{}, longest: map[string]float64{}}
	exec(t, a.service, `select ojs.configure_queue('q', '{"tenant_fairness": {"unit": "time"}}')`)
	for _, tenant := range slices.Sorted(maps.Keys(length)) {
		a.enqueue(tenant, 2000)
	}
	return a
}

func (a *attempts) enqueue(tenant string, jobs int) {
	a.t.Helper()
	exec(a.t, a.service, `
		select ojs.enqueue('a', p_queue => 'q', p_tenant => $1, p_max_attempts => 100) from generate_series(1, $2)`, tenant, jobs)
}

// fetch fetches a number of jobs.
func (a *attempts) fetch(q querier, count int) {
	a.t.Helper()
	for _, row := range lines(a.t, q, "select tenant_id, id::text, lease::text from ojs.fetch('{q}', $1)", count) {
		var next attempt
		if _, err := fmt.Sscan(row, &next.tenant, &next.id, &next.lease); err != nil {
			a.t.Fatal(err)
		}
		next.seconds = a.length[next.tenant]()
		next.ends = a.now + next.seconds
		a.longest[next.tenant] = max(a.longest[next.tenant], next.seconds)
		a.running = append(a.running, next)
	}
}

// withoutLane fetches a number of jobs without the lane, as a caller that stays in its transaction does.
func (a *attempts) withoutLane(count int) {
	a.t.Helper()
	tx := begin(a.t, a.service)
	exec(a.t, tx, "select pg_sleep(0.03)")
	a.fetch(tx, count)
	commit(a.t, tx)
}

// beats sends heartbeats for all active attempts.
func (a *attempts) beats() {
	a.t.Helper()
	a.beat += 15
	ids := make([]string, len(a.running))
	ran := make([]float64, len(a.running))
	for i, r := range a.running {
		ids[i], ran[i] = r.id, max(a.beat-r.ends+r.seconds, 0)
	}
	exec(a.t, a.pool, `update ojs.job j set started_at = ojs.now() - r.ran * interval '1 second'
		from unnest($1::uuid[], $2::float8[]) r(id, ran) where j.id = r.id`, ids, ran)
	exec(a.t, a.pool, "select ojs._extend('w', $1, null, null)", ids)
}

// end ends the attempt that ends first, in the given way.
func (a *attempts) end(how int) {
	a.t.Helper()
	i := slices.Index(a.running, slices.MinFunc(a.running, func(x, y attempt) int { return cmp.Compare(x.ends, y.ends) }))
	last := a.running[i]
	a.running = slices.Delete(a.running, i, i+1)
	for a.beat+15 <= last.ends {
		a.beats()
	}
	a.now = last.ends
	a.served[last.tenant] += last.seconds
	exec(a.t, a.pool, "update ojs.job set started_at = ojs.now() - $2 * interval '1 second' where id = $1", last.id, last.seconds)
	switch how {
	case 0:
		exec(a.t, a.service, "select ojs.ack($1, $2)", last.id, last.lease)
	case 1:
		exec(a.t, a.service, `select ojs.nack($1, '{"message": "broken"}', $2)`, last.id, last.lease)
	case 2:
		exec(a.t, a.service, "select ojs.cancel($1, $2)", last.id, last.tenant)
	case 3:
		exec(a.t, a.service, "select ojs.release_many(array[$1]::uuid[], array[$2]::uuid[])", last.id, last.lease)
	case 4:
		exec(a.t, a.pool, "update ojs.job set lease_expires_at = ojs.now() where id = $1", last.id)
		exec(a.t, a.pool, "select ojs._reap(array[$1]::text[], array[$2]::uuid[], null)", last.tenant, last.id)
	default:
		exec(a.t, a.service, "select ojs.ack_many(array[$1]::uuid[], array[$2]::uuid[], '{}', '{}', '{}')", last.id, last.lease)
	}
}

// By time a tenant of long jobs gets fewer workers at once, not as many as it has jobs for: what attempts ran in sum is in the ratio of the
// weights, but for what is running, though nobody says beforehand how long a job takes.
func TestTenantsShareByTime(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	r := rand.New(rand.NewPCG(seed, 0))
	const workers = 24
	weight := map[string]float64{"long": 1, "short": 1, "mixed": 2}
	a := newAttempts(t, map[string]func() float64{
		"long":  func() float64 { return 600 },
		"short": func() float64 { return 60 },
		"mixed": func() float64 { return 1 + 300*r.Float64() },
	})
	exec(t, a.service, "select ojs.configure_tenant('mixed', p_weight => 2)")
	for n := 0; n < 900; {
		switch free := workers - len(a.running); {
		case r.IntN(20) == 0 && free > 0:
			a.withoutLane(free)
		case free > 0:
			a.fetch(a.service, 1+r.IntN(free))
		default:
			a.end(r.IntN(8))
			n++
			a.near(weight, n == 900)
		}
	}
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

// near compares the time that tenants' attempts took with the time that was due to them. A tenant may be
// away by one and a half jobs and, with now, by the attempts that run now; without now, by the most that
// have run at once, because time beyond a tenant's share is charged to its next jobs.
func (a *attempts) near(weight map[string]float64, now bool) {
	a.t.Helper()
	var sum, weights, flying, most float64
	for t, w := range weight {
		sum += a.served[t]
		weights += w
		most = max(most, a.longest[t])
	}
	for _, r := range a.running {
		flying += a.longest[r.tenant]
	}
	a.flying = max(a.flying, flying)
	if !now {
		flying = a.flying
	}
	for t, w := range weight {
		if lag := math.Abs(a.served[t] - sum*w/weights); lag > flying+lagBound*most {
			a.t.Errorf("of %g s tenant %s has had %g, %g away from its share; %g may be running, the longest job runs %g s",
				sum, t, a.served[t], lag, flying, most)
		}
	}
}

// Whatever was expected, in the end a tenant has been charged for the seconds that its attempts ran, and for nothing else, where nobody
// else waits for what it is given back.
func TestTimeIsChargedAsItWas(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	r := rand.New(rand.NewPCG(seed, 0))
	a := newAttempts(t, map[string]func() float64{"a": func() float64 { return math.Exp(12*r.Float64() - 3) }})
	exec(t, a.service, "select ojs.configure_tenant('a', p_weight => 0.3)")
	vtime := func() float64 {
		exec(t, a.pool, "select ojs._fold_on()")
		return one[float64](t, a.pool, "select vtime::float8 from ojs.tenant_fairness")
	}
	before := vtime()
	for how := range 6 {
		for range 5 {
			a.fetch(a.service, 1+r.IntN(6))
			a.withoutLane(3)
			for len(a.running) > r.IntN(12) {
				a.end(how)
			}
		}
	}
	for len(a.running) > 0 {
		a.end(0)
	}
	want := a.served["a"]
	if got := (vtime() - before) * 0.3; math.Abs(got-want) > 0.5+want/1000 {
		t.Errorf("seed %d: the tenant was charged %g s, its attempts ran %g s", seed, got, want)
	}
}

// What a tenant was charged too much for, others that came meanwhile do not wait for: a tenant of which long attempts were expected, and
// whose ten attempts end at once, goes before them by one job at most.
func TestWhatIsGivenBackIsNotCredit(t *testing.T) {
	t.Parallel()
	long := 3600.0
	a := newAttempts(t, map[string]func() float64{"a": func() float64 { return long }})
	for range 12 {
		a.fetch(a.service, 1)
		a.end(5)
	}
	a.fetch(a.service, 10)
	a.enqueue("b", 2000)
	a.length["b"] = func() float64 { return 60 }
	exec(t, a.pool, "select ojs._fold_on()")
	for len(a.running) > 0 {
		a.running[0].seconds, a.running[0].ends = 0, a.now
		a.end(5)
	}
	long = 60
	a.served = map[string]float64{}
	for range 60 {
		a.fetch(a.service, 1)
		a.end(5)
	}
	// A minute each, and ten minutes that may have been expected of the last one.
	if a.served["a"]-a.served["b"] > 600+2*60 {
		t.Errorf("of an hour a has had %g s, b %g s", a.served["a"], a.served["b"])
	}
}

// What a tenant used while nobody else was there is not owed to those who come afterwards, whether or not a decision knows of it by then.
func TestWhatIsUsedAloneIsNotOwed(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		a := newAttempts(t, map[string]func() float64{})
		a.length["a"] = func() float64 { return 600 }
		if a.enqueue("a", 10); !known {
			a.enqueue("a", 2000)
		}
		a.fetch(a.service, 10)
		for len(a.running) > 0 {
			a.end(5)
		}
		if known {
			exec(t, a.pool, "select ojs._fold_on()")
		}
		a.enqueue("b", 2000)
		a.length["b"] = a.length["a"]
		if exec(t, a.pool, "select ojs._fold_on()"); known {
			a.enqueue("a", 2000)
		}
		a.served = map[string]float64{}
		for range 20 {
			a.fetch(a.service, 1)
			a.end(5)
		}
		if math.Abs(a.served["a"]-a.served["b"]) > 2*600 {
			t.Errorf("after a was alone (known: %t) it has had %g s, b %g s", known, a.served["a"], a.served["b"])
		}
	}
}

// Attempts that began while the unit was another one are settled in neither.
func TestTheUnitChangesWhileJobsRun(t *testing.T) {
	t.Parallel()
	a := newAttempts(t, map[string]func() float64{"a": func() float64 { return 1000 }, "b": func() float64 { return 1000 }})
	vtime := func() float64 {
		exec(t, a.pool, "select ojs._fold_on()")
		return one[float64](t, a.pool, "select max(vtime)::float8 from ojs.tenant_fairness")
	}
	for _, unit := range []string{"jobs", "time"} {
		a.fetch(a.service, 2)
		exec(t, a.service, `
			select ojs.configure_queue('q', jsonb_build_object('tenant_fairness', jsonb_build_object('unit', $1::text)))`, unit)
		before := vtime()
		for len(a.running) > 0 {
			a.end(5)
		}
		if got := vtime(); got > before+1 {
			t.Errorf("by %s a tenant was charged %g for attempts that began before", unit, got-before)
		}
	}
	exec(t, a.pool, "select ojs.rebuild()")
	before := vtime()
	a.fetch(a.service, 2)
	for len(a.running) > 0 {
		a.end(5)
	}
	if got := vtime(); math.Abs(got-before-1000) > 5 {
		t.Errorf("after a rebuild a tenant was charged %g for an attempt of 1000 s", got-before)
	}
}
