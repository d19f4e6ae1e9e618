package db_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Everything at once: enqueue, fetch of all kinds, ack, nack, requeue, release, cancel, activate, ticks, changes of weight and boost,
// expiring leases, in transactions that commit, roll back or stay open for a while. Afterwards the sums agree with the rows, every
// available job can be found, and fetching finds each of them once.
func TestNothingIsStrandedWhateverHappens(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	service := database.Service()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var all sync.WaitGroup
	for n := range 8 {
		v := &vandal{t: t, service: service, r: rand.New(rand.NewPCG(seed, uint64(n)))}
		all.Go(v.run)
	}
	all.Wait()
	if t.Failed() {
		return
	}
	ringsAgree(t, database.Pool)
	// Leases of a second end, retries come due: after that nothing moves any more.
	pgtest.Eventually(t, "nothing runs or waits for a retry", func() bool {
		exec(t, service, "select ojs.tick()")
		return one[bool](t, database.Pool, `
			select not exists (
				select from ojs.job
				where state = 'retryable' or state = 'active' and lease_expires_at < ojs.now() + interval '5 seconds')`)
	})
	ringsAgree(t, database.Pool)
	available, found := one[int](t, database.Pool, "select count(*) from ojs.job where state = 'available'"), 0
	for got := 7; got == 7; found += got {
		got = one[int](t, service, "select count(*) from ojs.fetch(array['a', 'b'], 7)")
	}
	if found != available {
		t.Errorf("%d jobs were available, a drain found %d", available, found)
	}
	ringsAgree(t, database.Pool)
	t.Logf("%d jobs were left to drain", available)
}

// vandal is a session that makes random calls.
type vandal struct {
	t       *testing.T
	service *pgxpool.Pool
	r       *rand.Rand
	held    []string // jobs that it knows
}

func (v *vandal) run() {
	for range 120 {
		sql, args, keep := v.choose()
		if err := v.call(sql, args, keep); err != nil {
			v.t.Errorf("%s: %s", pgtest.Short(sql), pgtest.Explain(err))
			return
		}
	}
}

func (v *vandal) pick() string {
	if len(v.held) == 0 {
		return "01900000-0000-7000-8000-000000000000"
	}
	return v.held[v.r.IntN(len(v.held))]
}

// choose returns a random call. keep says that it returns ids of jobs for later calls.
func (v *vandal) choose() (sql string, args []any, keep bool) {
	r, tenant := v.r, fmt.Sprintf("t%d", v.r.IntN(6))
	switch r.IntN(16) {
	case 0, 1, 2, 3:
		args = []any{[]string{"a", "b"}[r.IntN(2)], []int{-5, 0, 0, 0, 7}[r.IntN(5)], tenant, r.IntN(10) == 0}
		return `
			select id::text from ojs.enqueue('x.y', '[1]', $1, $2, p_tenant => $3,
				p_retry => '{"initial_interval_ms": 1, "jitter": false}', p_pending => $4)`, args, r.IntN(3) == 0
	case 4:
		return `insert into ojs.jobs (tenant_id, type, queue) select $1, 'x.y', 'a' from generate_series(1, 20)`, []any{tenant}, false
	case 5, 6, 7:
		return `select id::text from ojs.fetch(array['a', 'b'], $1, 'w', 1000)`, []any{1 + r.IntN(12)}, true
	case 8:
		return `select id::text from ojs.fetch(array['b', 'a'], $1, p_tenant => $2)`, []any{1 + r.IntN(5), tenant}, true
	case 9, 10:
		return `select ojs.ack($1)`, []any{v.pick()}, false
	case 11:
		return `select ojs.nack($1, '{"message": "no"}', p_requeue => $2)`, []any{v.pick(), r.IntN(2) == 0}, false
	case 12:
		return `select ojs.cancel($1)`, []any{v.pick()}, false
	case 13:
		return `select ojs.release(id, lease) from ojs.job_info($1)`, []any{v.pick()}, false
	case 14:
		args = []any{tenant, 1 + r.IntN(9), []int{0, 0, 0, 5}[r.IntN(4)]}
		return `select ojs.configure_tenant($1, $2::int::numeric, $3)`, args, false
	}
	if r.IntN(3) == 0 {
		return `select ojs.activate($1)`, []any{v.pick()}, false
	}
	return `select ojs.tick()`, nil, false
}

// call makes a call in a transaction of its own. A refusal of ours is not an error; a deadlock is one.
func (v *vandal) call(sql string, args []any, keep bool) error {
	ctx := context.Background()
	tx, err := v.service.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	rows, err := tx.Query(ctx, sql, args...)
	if err == nil {
		for rows.Next() {
			var id string
			if keep && rows.Scan(&id) == nil {
				v.held = append(v.held, id)
			}
		}
		rows.Close()
		err = rows.Err()
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "OJ") {
		return nil
	}
	if err != nil {
		return err
	}
	if v.r.IntN(10) == 0 {
		time.Sleep(time.Duration(v.r.IntN(30)) * time.Millisecond)
	}
	if v.r.IntN(6) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// A FETCH that returns fewer than it asked for missed nothing: every job that had committed before it began was with a caller who had
// begun before it ended. Producers commit at random times, single callers take from the run queue, several at once are combined, and
// weights change.
func TestShortFetchMissedNothing(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := &witness{
		t: t, service: pgtest.New(t).Service(), began: time.Now(), over: make(chan struct{}),
		takenBy: map[string]int{}, committed: map[string]time.Duration{},
	}
	var producers, fetchers sync.WaitGroup
	for n := range 5 {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		producers.Go(func() { w.produce(r) })
	}
	for n := range 6 {
		r := rand.New(rand.NewPCG(seed, uint64(100+n)))
		fetchers.Go(func() { w.consume(r) })
	}
	producers.Wait()
	close(w.over)
	fetchers.Wait()
	for {
		got, err := w.fetch(100, "select id::text from ojs.fetch('{short}', 100)")
		if err != nil {
			t.Fatal(err)
		}
		if got == 0 {
			break
		}
	}
	w.judge()
}

// witness records when jobs were committed, and which calls handed them out.
type witness struct {
	t       *testing.T
	service *pgxpool.Pool
	began   time.Time // all durations count from here
	over    chan struct{}

	mu        sync.Mutex
	calls     []fetchCall
	takenBy   map[string]int // index of the call by job
	committed map[string]time.Duration
}

type fetchCall struct {
	begin, end time.Duration
	short      bool
}

// fetch makes a FETCH for a number of jobs and returns how many it got.
func (w *witness) fetch(count int, sql string, args ...any) (int, error) {
	c := fetchCall{begin: time.Since(w.began)}
	rows, err := w.service.Query(context.Background(), sql, args...)
	if err != nil {
		return 0, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	c.end = time.Since(w.began)
	c.short = len(ids) < count
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if _, twice := w.takenBy[id]; twice {
			return 0, fmt.Errorf("job %s was handed out twice", id)
		}
		w.takenBy[id] = len(w.calls)
	}
	w.calls = append(w.calls, c)
	return len(ids), nil
}

// produce enqueues a few jobs at a time, waits, and commits or rolls back.
func (w *witness) produce(r *rand.Rand) {
	for range 80 {
		ids, err := w.enqueue(r)
		if err != nil {
			w.t.Error(err)
			return
		}
		at := time.Since(w.began)
		w.mu.Lock()
		for _, id := range ids {
			w.committed[id] = at
		}
		w.mu.Unlock()
	}
}

// enqueue returns the ids of the jobs that it committed.
func (w *witness) enqueue(r *rand.Rand) ([]string, error) {
	ctx := context.Background()
	tx, err := w.service.Begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		insert into ojs.jobs (tenant_id, type, queue, priority)
		select 't' || $1::int, 'a.b', 'short', $2 from generate_series(1, $3::int)
		returning id::text`, r.IntN(6), []int{0, 0, 0, 4}[r.IntN(4)], 1+r.IntN(4))
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(r.IntN(15)) * time.Millisecond)
	if r.IntN(6) == 0 {
		return nil, tx.Rollback(ctx)
	}
	return ids, tx.Commit(ctx)
}

// consume fetches in every way and changes weights until producers have ended, and then once more.
func (w *witness) consume(r *rand.Rand) {
	for over := false; !over; {
		select {
		case <-w.over:
			over = true
		default:
		}
		var err error
		switch r.IntN(12) {
		case 0:
			_, err = w.service.Exec(context.Background(), `
				select ojs.configure_tenant('t' || $1::int, $2::int)`, r.IntN(6), 1+r.IntN(5))
		case 1, 2, 3:
			_, err = w.fetch(13, "select id::text from ojs.fetch_many('{short}', '{1,4,8}', '{a,b,c}', '{0,0,0}')")
		case 4, 5:
			_, err = w.fetch(40, "select id::text from ojs.fetch('{short}', 40)")
		default:
			count := []int{1, 1, 1, 2, 6}[r.IntN(5)]
			_, err = w.fetch(count, "select id::text from ojs.fetch('{short}', $1)", count)
		}
		if err != nil {
			w.t.Error(err)
			return
		}
		time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
	}
}

// judge checks for each call that got fewer jobs than it asked for that there was no other job for it.
func (w *witness) judge() {
	w.t.Helper()
	if len(w.takenBy) != len(w.committed) {
		w.t.Errorf("%d jobs were handed out, %d had been committed", len(w.takenBy), len(w.committed))
	}
	short := 0
	for _, c := range w.calls {
		if !c.short {
			continue
		}
		short++
		for id, at := range w.committed {
			if by, taken := w.takenBy[id]; at < c.begin && (!taken || w.calls[by].begin > c.end) {
				w.t.Fatalf("a fetch from %s to %s returned fewer than it asked for, but job %s, committed at %s, was left",
					c.begin, c.end, id, at)
			}
		}
	}
	w.t.Logf("%d jobs, %d calls, %d of them short", len(w.committed), len(w.calls), short)
	if short == 0 {
		w.t.Error("no call was short")
	}
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
	for _, statements := range []int{11_000, 5, 10_400, 5} {
		_, err := service.Exec(t.Context(), fmt.Sprintf(`
			do $$ begin for i in 1 .. %d loop insert into ojs.jobs (tenant_id, type, queue)
				values ('t' || i %% 7, 'x.y', 'q' || i %% 3);
			end loop; end $$`, statements))
		if err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for got := -1; got != 0; {
		if err := service.QueryRow(t.Context(), `select count(*) from ojs.fetch(array['q0', 'q1', 'q2'], 3000)`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		found += got
	}
	if found != 21_410 {
		t.Errorf("found %d of 21410 jobs", found)
	}
	ringsAgree(t, database.Pool)
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
	for _, ends := range []string{"min(seq), min(seq) + 1000", "max(seq), max(seq)"} {
		exec(t, d.Pool, `insert into ojs.journal (tenant_id, queue, priority, from_state, to_state, jobs, lo, hi)
			select 't', 'q', 0, 'active', 'available', 1, `+ends+" from ojs.job")
	}
	got := list[int64](t, service, "select seq from ojs.fetch('{q}', 10)")
	if len(got) != 2 || got[0] != min(seqs[0], seqs[1]) || got[1] != max(seqs[0], seqs[1]) {
		t.Errorf("jobs %v came back, want %v", got, seqs)
	}
	ringsAgree(t, d.Pool)
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
	exec(t, d.Pool, `select ojs._revisit('work', 0, 'beta', array[min(seq), min(seq) + 3], array[max(seq), max(seq)])
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
