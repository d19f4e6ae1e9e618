package db_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// share returns the number of jobs that each tenant gets of the next ones.
func share(t *testing.T, pool *pgxpool.Pool, count int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for _, tenant := range list[string](t, pool, `
		select tenant_id from ojs.fetch_many('{default}', array[$1::int], '{""}', '{0}')
		where tenant_id is not null`, count) {
		got[tenant]++
	}
	return got
}

// Where more has committed than one bite takes in, a decision neither hands out nor charges a job twice, and says that there is more.
func TestADecisionOfSeveralBites(t *testing.T) {
	t.Parallel()
	const many = "insert into ojs.jobs (tenant_id, type, queue) select 'big', 't', 'q' || i from generate_series(1, 5000) i"
	const fetch = `select coalesce(tenant_id, 'more') from ojs.fetch_many('{default}', '{6}', '{""}', '{600000}')`
	for name, own := range map[string]bool{"others' jobs": false, "the transaction's own jobs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			enqueueFor(t, service, "default", "a", 2)
			if got := share(t, service, 1); got["a"] != 1 {
				t.Fatalf("handed out %v", got)
			}
			exec(t, service, many)
			tx := begin(t, service)
			if own {
				exec(t, tx, "insert into ojs.jobs (tenant_id, type) values ('a', 't'), ('a', 't'), ('a', 't')")
			} else {
				enqueueFor(t, service, "default", "a", 3)
			}
			enqueueFor(t, service, "default", "b", 2)
			had := 0
			for range 10 {
				got := list[string](t, tx, fetch)
				if had += len(got); len(got) == 0 || got[len(got)-1] != "more" {
					break
				}
				had--
			}
			commit(t, tx)
			if had != 6 {
				t.Errorf("%d of 6 jobs were handed out", had)
			}
			for range 5 { // jobs handed out without the lane are charged then
				exec(t, service, "select ojs.tick()")
			}
			for _, tenant := range []string{"a", "b"} {
				charged := one[int](t, d.Pool, `select coalesce(sum(charged), 0)::int from ojs.tenant_fairness
					where tenant_id = $1 and queue = 'default'`, tenant)
				given := one[int](t, d.Pool, "select count(*)::int from ojs.job where tenant_id = $1 and state = 'active'", tenant)
				if charged != given {
					t.Errorf("%s was charged for %d jobs and has %d", tenant, charged, given)
				}
			}
			ringsAgree(t, d.Pool)
		})
	}
}

// A transaction that configures may itself bring more rows than a bite has room for.
func TestConfiguringAfterManyOwnJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue) select 'big', 't', 'q' || i from generate_series(1, 1995) i")
	tx := begin(t, service)
	exec(t, tx, "set local statement_timeout = '30s'")
	exec(t, tx, "select ojs.enqueue('t', p_tenant => 'acme') from generate_series(1, 10)")
	exec(t, tx, "select ojs.configure_tenant('acme', 2)")
	commit(t, tx)
	if got := share(t, service, 20); got["acme"] != 10 {
		t.Errorf("handed out %v", got)
	}
	ringsAgree(t, d.Pool)
}

// Who comes while one tenant takes its jobs by itself begins where that one is, and not where it began.
func TestWhoComesBesideOneTenant(t *testing.T) {
	t.Parallel()
	for name, alone := range map[string]func(t *testing.T, d *pgtest.DB) int{
		"its own login": func(t *testing.T, d *pgtest.DB) int {
			return one[int](t, d.As("a"), "select count(*)::int from ojs.fetch('{default}', 100)")
		},
		"a fetch for it": func(t *testing.T, d *pgtest.DB) int {
			return one[int](t, d.Service(), "select count(*)::int from ojs.fetch('{default}', 100, p_tenant => 'a')")
		},
	} {
		for _, empties := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, takes all: %v", name, empties), func(t *testing.T) {
				t.Parallel()
				d := pgtest.New(t)
				service := d.Service()
				for range 5 {
					enqueueFor(t, service, "default", "a", 100)
					if !empties {
						enqueueFor(t, service, "default", "a", 20)
					}
					if got := alone(t, d); got != 100 {
						t.Fatalf("a got %d jobs", got)
					}
					exec(t, service, "select ojs.tick()")
				}
				enqueueFor(t, service, "default", "b", 200)
				enqueueFor(t, service, "default", "a", 100)
				for range 3 {
					if got := share(t, service, 50); got["a"] < 24 || got["b"] < 24 {
						t.Errorf("of the next 50 jobs they get %v", got)
					}
				}
				ringsAgree(t, d.Pool)
			})
		}
	}
}

// A tenant that is to look again at jobs that ended is not passed over meanwhile.
func TestAnEmptyRangeCostsNoTurn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for _, tenant := range []string{"a", "b", "c"} {
		enqueueFor(t, service, "default", tenant, 200)
	}
	share(t, service, 30)
	id := one[string](t, service, "select id::text from ojs.job where tenant_id = 'a' and state = 'active' order by seq limit 1")
	exec(t, service, `select ojs.nack($1, '{"message": "m"}', p_requeue => true)`, id)
	exec(t, service, "select ojs.cancel($1)", id)
	got := map[string]int{}
	for i, tenant := range list[string](t, service, "select tenant_id from ojs.fetch('{default}', 300)") {
		got[tenant]++
		if fair := (i + 1) / 3; min(got["a"], got["b"], got["c"]) < fair-2 {
			t.Fatalf("after %d jobs they have %v", i+1, got)
		}
	}
	if want := map[string]int{"a": 100, "b": 100, "c": 100}; !maps.Equal(got, want) {
		t.Errorf("they have %v", got)
	}
}

// While a transaction that holds the lane stays open, others get jobs, and each is charged for once, however that transaction ends.
func TestATransactionThatKeepsTheLane(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{false, true} {
		t.Run(fmt.Sprintf("commits: %v", commits), func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			enqueueFor(t, service, "default", "a", 16)
			enqueueFor(t, service, "default", "b", 16)
			for range 3 {
				exec(t, service, "select count(*) from ojs.fetch('{default}')")
			}
			tx := begin(t, service)
			exec(t, tx, "select ojs.configure_tenant('c', 2)")
			if got := one[int](t, service, "select count(*)::int from ojs.fetch('{default}', 10)"); got != 10 {
				t.Errorf("%d of 10 jobs", got)
			}
			if got := one[int](t, d.As("a"), "select count(*)::int from ojs.fetch('{default}', 5)"); got != 5 {
				t.Errorf("%d of 5 jobs", got)
			}
			if commits {
				commit(t, tx)
			} else {
				rollback(t, tx)
			}
			if got := one[int](t, service, "select count(*)::int from ojs.fetch('{default}', 100)"); got != 14 {
				t.Errorf("%d of the last 14 jobs", got)
			}
			exec(t, service, "select ojs.enqueue('t', p_tenant => 'a')")
			exec(t, service, "select count(*) from ojs.fetch('{default}', 100)")
			for tenant, want := range map[string]int{"a": 17, "b": 16} {
				got := one[int](t, d.Pool, "select sum(charged)::int from ojs.tenant_fairness where tenant_id = $1", tenant)
				if got != want {
					t.Errorf("%s was charged for %d of %d jobs", tenant, got, want)
				}
			}
			ringsAgree(t, d.Pool)
		})
	}
}

// A call that waits for the decision under way finds a queue paused that was paused meanwhile, whether or not the decision ends.
func TestAPauseWhileACallWaits(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"the decision ends": true, "the decision goes on": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			enqueueFor(t, service, "q", "a", 2)
			decision, paused := begin(t, service), begin(t, service)
			exec(t, decision, "select ojs.configure_tenant('c', 2)")
			exec(t, paused, "select ojs.pause('q')")
			got := fetchLater(t, d, "q", 1, !ends)
			if commit(t, paused); ends {
				commit(t, decision)
			}
			if n := <-got; n != 0 {
				t.Errorf("it got %d jobs", n)
			}
		})
	}
}

// Jobs that another session keeps locked get one journal row together, each time that the tick looks at them again.
func TestLockedJobsAreNotedInSum(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	enqueueFor(t, service, "default", "a", 500)
	tx := begin(t, d.Pool)
	exec(t, tx, "select count(*) from (select from ojs.job for update) x")
	if got := share(t, service, 100); len(got) != 0 {
		t.Fatalf("handed out %v", got)
	}
	before := one[int](t, d.Pool, "select count(*)::int from ojs.journal")
	for i := range 5 {
		d.SetNow(noon.Add(time.Duration(i+1) * 2 * time.Second))
		tick(t, service, 10000)
		share(t, service, 100)
	}
	if got := one[int](t, d.Pool, "select count(*)::int from ojs.journal") - before; got == 0 || got > 30 {
		t.Errorf("%d rows were added to the journal", got)
	}
	rollback(t, tx)
	d.SetNow(noon.Add(time.Minute))
	tick(t, service, 10000)
	if got := share(t, service, 1000); got["a"] != 500 {
		t.Errorf("handed out %v", got)
	}
}
