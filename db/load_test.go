package db_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// byLoad returns the rows of a call of ojs.fetch_many with the strategy least-loaded: the worker of each
// job and, in brackets, the bounds of requests whose workers are near their concurrency.
func byLoad(t *testing.T, q querier, counts, workers string) string {
	t.Helper()
	return strings.Join(list[string](t, q, `select case when id is null then format('(%s of %s)', attempt, worker_id) else worker_id end
		from ojs.fetch_many('{q}', $1::int[], $2::text[], array_fill(0, array[cardinality($1::int[])]), p_strategy => 'least-loaded')`,
		counts, workers), " ")
}

// A worker at its concurrency gets nothing, and one below it as many as it has room for, in one call and over several, by each strategy;
// what it has got by another strategy counts once a heartbeat has named it.
func TestAWorkerAtItsConcurrencyGetsNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	fill(t, service, "q", 50)
	exec(t, service, "select ojs.register_worker('w', p_concurrency => 3), ojs.register_worker('free')")
	for _, c := range []struct{ counts, workers, want string }{
		{"{2}", "{w}", "w w"},
		{"{2}", "{w}", "w (1 of w)"},
		{"{1}", "{w}", "(0 of w)"},
		{"{1,2,1}", "{w,free,w}", "free free (0 of w) (0 of w)"},
		{"{9}", "{free}", strings.TrimSpace(strings.Repeat("free ", 9))},
		{"{1}", "{none}", "none"},
	} {
		if got := byLoad(t, service, c.counts, c.workers); got != c.want {
			t.Errorf("%s for %s: %q, want %q", c.counts, c.workers, got, c.want)
		}
	}
	// Other strategies know nothing of it.
	got := list[string](t, service, "select id::text from ojs.fetch('{q}', 1, 'w')")
	if len(got) != 1 {
		t.Errorf("by another strategy: %v", got)
	}
	exec(t, service, "select ojs.ack(id) from ojs.jobs where state = 'active' and worker_id = 'w' and id <> $1", got[0])
	// Heartbeats in quick succession are written down once.
	exec(t, d.Pool, "update ojs.worker_beat set seen_at = seen_at - interval '3 seconds'")
	exec(t, service, "select ojs.beat('w', array[$1::uuid])", got[0])
	if got := byLoad(t, service, "{1,1,1}", "{w,w,w}"); got != "w w (0 of w)" {
		t.Errorf("beside a job that a heartbeat names: %q", got)
	}
	// Over several queues, and as its pool, or the worker itself, has it.
	exec(t, service, "select ojs.configure_pool('p', '{\"strategy\": \"least-loaded\"}')")
	if got := inPool(t, service, "p", "{q,r}", 1, ", p_worker_id => 'w'"); got != "" {
		t.Errorf("in a pool that is least-loaded: %q", got)
	}
	exec(t, service, "select ojs.configure_pool('p', '{\"strategy\": \"strict\"}')")
	if got := inPool(t, service, "p", "{q}", 1, ", p_strategy => 'least-loaded', p_worker_id => 'w'"); got != "q" {
		t.Errorf("in a pool that is not: %q", got)
	}
	exec(t, service, "select ojs.register_worker('says', p_concurrency => 1, p_strategy => 'least-loaded')")
	if got := list[string](t, service, "select queue from ojs.fetch('{q}', 3, 'says')"); len(got) != 1 {
		t.Errorf("a worker that has registered with it: %v", got)
	}
	// A job that it gave back, and that another worker runs, is no longer its own.
	exec(t, service, "select ojs.release(id, lease) from ojs.job where state = 'active' and worker_id = 'says'")
	exec(t, service, "select ojs.fetch('{q}', 100, 'other')")
	fill(t, service, "q", 2)
	if got := list[string](t, service, "select queue from ojs.fetch('{q}', 3, 'says')"); len(got) != 1 {
		t.Errorf("once another worker has its job: %v", got)
	}
}

// Of the requests of a call those are served first whose workers have the fewest active jobs: what their requests that are listed before
// may get counts, too. Each gets a run of the fair sequence, under the number it has in the call.
func TestTheWorkerWithTheFewestJobsIsServedFirst(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	fill(t, service, "q", 50)
	exec(t, service, "select ojs.register_worker(w) from unnest('{a,b,c,d}'::text[]) w")
	exec(t, service, "select ojs.register_worker('full', p_concurrency => 1)")
	if got := byLoad(t, service, "{3,1,2,1}", "{a,b,c,full}"); got != "a a a b c c full" {
		t.Fatalf("workers that have none are served as listed, not %q", got)
	}
	const rows = "select request, worker_id, attempt from ojs.fetch_many('{q}', $1::int[], $2::text[], array_fill(0, " +
		"array[cardinality($1::int[])]), p_strategy => 'least-loaded')"
	for _, c := range []struct{ counts, workers, want string }{
		// d has none, b one, c two, a three; who has not registered is behind them.
		{"{1,1,1,2,1,1}", "{none,a,full,c,d,b}", "5 d 1, 6 b 1, 4 c 1, 4 c 1, 2 a 1, 1 none 1, 3 full 0"},
		// d has one, and with the two of its first request three; b two, a and c four.
		{"{2,1,1,1,1}", "{d,d,c,a,b}", "1 d 1, 1 d 1, 5 b 1, 2 d 1, 3 c 1, 4 a 1"},
	} {
		got := strings.Join(lines(t, service, rows, c.counts, c.workers), ", ")
		if got != c.want {
			t.Errorf("%s for %s:\n  %s, want\n  %s", c.counts, c.workers, got, c.want)
		}
	}
	// Where there are fewer jobs than requests, those with more have none.
	exec(t, service, "select ojs.fetch('{q}', 50, 'other')")
	fill(t, service, "q", 2)
	if got := byLoad(t, service, "{1,1,1}", "{a,b,d}"); got != "b d" {
		t.Errorf("two jobs go to %q", got)
	}
}

// Every way in which an attempt can end gives its worker room.
func TestEveryEndGivesAWorkerRoom(t *testing.T) {
	t.Parallel()
	for name := range endsOfAttempts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			fill(t, service, "q", 3)
			exec(t, service, "select ojs.register_worker('w', p_concurrency => 1)")
			const more = "select id::text from ojs.fetch('{q}', 3, 'w', p_strategy => 'least-loaded')"
			job := one[string](t, service, more)
			expectNone(t, service, "beyond its concurrency", more)
			endAttempt(t, d, name, job)
			if got := list[string](t, service, more); len(got) != 1 {
				t.Errorf("after the end of its job: %v", got)
			}
			expectNone(t, d.Pool, "noted jobs that have ended", `select i from ojs.worker_load l cross join unnest(l.ids) i
				where not exists (select from ojs.job j where j.id = i and j.state = 'active')`)
		})
	}
}

// A worker's FETCHes that run at the same time do not take it beyond its concurrency: not decisions, and not one in a transaction that
// stays open, which nobody waits for.
func TestConcurrentFetchesOfOneWorker(t *testing.T) {
	t.Parallel()
	seed := newSeed()
	d := pgtest.New(t)
	service := d.Service()
	fill(t, service, "q", 500)
	exec(t, service, "select ojs.register_worker(w, p_concurrency => 7) from unnest('{v,w}'::text[]) w")
	const some = "select id::text from ojs.fetch('{q,r}', $1, $2, p_strategy => 'least-loaded')"
	open := begin(t, service)
	exec(t, open, "select pg_sleep(0.05)") // a caller that stays in its transaction fetches without the lane
	if got := list[string](t, open, some, 2, "w"); len(got) != 2 {
		t.Fatalf("without the lane: %d jobs", len(got))
	}
	if got := list[string](t, open, some, 3, "w"); len(got) != 3 {
		t.Errorf("once more in the same transaction: %d jobs", len(got))
	}
	if got := list[string](t, service, some, 9, "w"); len(got) != 0 {
		t.Errorf("while its transaction is open, the worker gets %d jobs more", len(got))
	}
	if got := list[string](t, service, some, 9, "v"); len(got) != 7 {
		t.Errorf("meanwhile another one gets %d jobs", len(got))
	}
	commit(t, open)
	if got := list[string](t, service, some, 9, "w"); len(got) != 2 {
		t.Errorf("afterwards it gets %d jobs", len(got))
	}
	var running sync.WaitGroup
	for n := range 8 {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		running.Go(func() {
			for range 30 {
				worker := []string{"v", "w"}[r.IntN(2)]
				tx := begin(t, service)
				if r.IntN(3) == 0 {
					exec(t, tx, "select pg_sleep(0.03)")
				}
				list[string](t, tx, some, 1+r.IntN(5), worker)
				if got := one[int](t, tx, "select count(*) from ojs.job where state = 'active' and worker_id = $1", worker); got > 7 {
					t.Errorf("seed %d: %s has %d jobs", seed, worker, got)
				}
				if r.IntN(4) == 0 {
					rollback(t, tx)
				} else {
					commit(t, tx)
				}
				if r.IntN(3) == 0 {
					exec(t, service, `select ojs.ack_many(array(select id from ojs.jobs
						where state = 'active' and worker_id = $1 limit $2))`, worker, 1+r.IntN(6))
				}
			}
		})
	}
	running.Wait()
	exec(t, service, "select ojs.ack_many(array(select id from ojs.jobs where state = 'active'))")
	if got := list[string](t, service, some, 9, "w"); len(got) != 7 {
		t.Errorf("seed %d: at last it gets %d jobs", seed, len(got))
	}
}

// A tenant's worker and one of the same name that serves all have a concurrency each, a tenant's login too; what a worker was handed is
// forgotten with its registration; and FETCHes with another strategy note nothing.
func TestWhoseLoadItIs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme := d.Service(), d.As("acme")
	enqueueFor(t, service, "q", "acme", 20)
	enqueueFor(t, service, "q", "globex", 20)
	exec(t, service, "select ojs.register_worker('w', p_concurrency => 2)")
	exec(t, acme, "select ojs.register_worker('w', p_concurrency => 3)")
	const some = "select tenant_id from ojs.fetch('{q}', 9, 'w', p_strategy => 'least-loaded'"
	for _, c := range []struct {
		q    querier
		sql  string
		want int
	}{
		{acme, some + ")", 3},
		{acme, some + ")", 0},
		{service, some + ")", 2},
		{service, some + ")", 0},
		{service, some + ", p_tenant => 'acme')", 0},
		{service, some + ", p_tenant => 'globex')", 9},
	} {
		if got := list[string](t, c.q, c.sql); len(got) != c.want {
			t.Errorf("%s: %v, want %d", c.sql, got, c.want)
		}
	}
	loads := func() string {
		return fmt.Sprint(lines(t, d.Pool, "select tenant_id, rev, cardinality(ids) from ojs.worker_load order by tenant_id"))
	}
	if got := loads(); got != "[ 2 2 acme 2 3]" {
		t.Errorf("noted are %s", got)
	}
	exec(t, service, "select ojs.fetch('{q}', 1, 'w'), ojs.fetch('{q,r}', 1, 'w', p_strategy => 'strict')")
	if got := loads(); got != "[ 2 2 acme 2 3]" {
		t.Errorf("by other strategies noted are %s", got)
	}
	exec(t, acme, "select ojs.deregister_worker('w')")
	exec(t, d.Pool, "update ojs.worker_beat set seen_at = seen_at - interval '30 seconds'")
	exec(t, service, "select ojs.remove_worker('w')")
	expectNone(t, d.Pool, "loads of workers that have gone", "select from ojs.worker_load")
}
