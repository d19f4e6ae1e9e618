package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A job that another session has locked is skipped without a wait, and comes back if it is unlocked unchanged.
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

// Who fetches and stays in its transaction keeps nobody from the other jobs, new tenants' neither, and what is taken meanwhile
// is charged afterwards. If it was the one that decides, its session is ended, and its job is there again.
func TestSittingCallerStopsNobody(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	enqueueFor(t, service, "default", "acme", 3)
	// In one message: a caller that has been in its transaction for 20 ms fetches without the lane, and is not the one that decides.
	tx, err := service.BeginTx(t.Context(), pgx.TxOptions{BeginQuery: "begin; select from ojs.fetch('{default}')"})
	if err != nil {
		t.Fatal(err)
	}
	first := one[string](t, tx, "select id::text from ojs.jobs where state = 'active'")
	// Two jobs that were there before, and one whose journal row cannot be folded now.
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
	var last decision
	pgtest.Eventually(t, "the caller's job is there again", func() bool {
		if last, err = fetchJobs(t.Context(), service, "default", 1); err != nil {
			t.Fatal(err)
		}
		return len(last.jobs) == 1
	})
	if last.jobs[0].id != first {
		t.Errorf("the last job is %s, want %s", last.jobs[0].id, first)
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
