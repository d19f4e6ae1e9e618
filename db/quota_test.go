package db_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// limited sets the limits of a tenant.
func limited(t testing.TB, q querier, tenant, limits string, queue ...string) {
	t.Helper()
	exec(t, q, "select ojs.configure_limits($1, $2::text::jsonb, nullif($3, ''))", tenant, limits, strings.Join(queue, ""))
}

// usage returns the counts of a tenant's limits.
func usage(t testing.TB, q querier, tenant string) string {
	t.Helper()
	return strings.Join(list[string](t, q, `select concat_ws(' ', nullif(queue, ''), resource, current || '/' || coalesce(burst, maximum))
		from ojs.limits where tenant_id = $1 order by queue, resource`, tenant), ", ")
}

// unbalanced finds limits for which jobs and tokens together are not the maximum, or ojs.quota has another
// number of jobs than exist. It holds after a tick only.
const unbalanced = `
	select format('%s %s %s: %s jobs, %s counted, %s tokens of %s', q.tenant_id, q.queue, q.resource, j.n, q.used + r.n, s.n, q.maximum)
	from ojs.quota q
	cross join lateral (select count(*) as n from ojs.job j where q.tenant_id in ('', j.tenant_id) and q.queue in ('', j.queue) and
		j.state::text = any (case q.resource when 'max_scheduled' then '{scheduled}' when 'max_queue_depth' then
			'{scheduled,available,pending}' else '{scheduled,available,pending,active,retryable}' end::text[])) j
	cross join lateral (select coalesce(sum(ojs._counting(q.resource, c)), 0) as n from ojs._recent() c
		where q.tenant_id in ('', c.tenant_id) and q.queue in ('', c.queue)) r
	cross join lateral (select coalesce(sum(s.tokens[q.nth]), 0) as n from ojs.stripe s
		where s.tenant_id = q.tenant_id and s.queue = q.queue) s
	where q.period is null and q.nth is not null and (j.n <> q.used + r.n or j.n + s.n <> q.maximum and not (j.n > q.maximum and s.n = 0))`

// MT-004: whichever way they come, jobs beyond a limit are refused, with all that came with them, and those of other tenants are not.
func TestMT004LimitsHoldForAllWaysIn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme := d.Service(), d.As("acme")
	limited(t, d.Operator(), "acme", `{"max_queue_depth": 1}`)
	for _, way := range waysIn {
		q := querier(service)
		if way.name == "login" {
			q = acme
		}
		failure := refused(t, q, "OJ429", way.sql, way.name)
		if said := detail(t, failure); said["tenant_id"] != "acme" || said["limit"] != "max_queue_depth" || said["maximum"] != 1.0 ||
			said["current"] == nil || said["retry_after"] == nil ||
			!strings.HasSuffix(failure.Message, "Tenant 'acme' has exceeded max_queue_depth (1)") {
			t.Errorf("%s is refused with %s %v", way.name, failure.Message, said)
		}
	}
	if got := stored(t, d); got != nothing {
		t.Errorf("of refused jobs are left: %s", got)
	}
	if got := answers(t, d.Open(), refused(t, acme, "OJ429", "insert into ojs.jobs (type) values ('a'), ('a')")); got.Status != 429 ||
		got.Code != "TENANT_LIMIT_EXCEEDED" || !got.Retryable {
		t.Errorf("it is answered with %+v", got)
	}
	exec(t, service, "select ojs.enqueue('a', p_tenant => t) from unnest('{acme,globex,globex}'::text[]) t")
	if got := usage(t, acme, "acme"); got != "max_queue_depth 1/1" {
		t.Errorf("used up are %s", got)
	}
	limited(t, d.Operator(), "acme", `{"max_queue_depth": null}`)
	for _, way := range waysIn {
		q := querier(service)
		if way.name == "login" {
			q = acme
		}
		exec(t, q, way.sql, way.name)
	}
}

// Where each job succeeds or fails by itself, the first ones are taken, of as many as all limits have room for.
func TestLimitsWhereEachJobIsByItself(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 5, "max_enqueue_rate": {"limit": 4, "period": "P1D"}}`)
	limited(t, service, "acme", `{"max_queue_depth": 2}`, "b")
	got := lines(t, service, `select n, sqlstate, detail ->> 'limit', detail ->> 'queue', detail ->> 'index'
		from ojs.enqueue_rows(array_fill('a'::text, array[9]), array_fill('[]'::json, array[9]), '{b,a,b,b,a,c,a,a,a}',
			p_tenants => '{acme,acme,acme,acme,acme,globex,acme,acme,acme}', p_each => true) order by n`)
	want := []string{
		"0 - - - -", "1 - - - -", "2 - - - -", "3 OJ429 max_queue_depth b 3", "4 - - - -", "5 - - - -",
		"6 OJ429 max_enqueue_rate - 6", "7 OJ429 max_enqueue_rate - 7", "8 OJ429 max_enqueue_rate - 8",
	}
	if !slices.Equal(got, want) {
		t.Errorf("of nine jobs the results are %v, want %v", got, want)
	}
	if got := usage(t, service, "acme"); got != "max_enqueue_rate 4/4, max_queue_depth 4/5, b max_queue_depth 2/2" {
		t.Errorf("used up are %s", got)
	}
}

// A tenant that dispatch, cancellation or expiry has freed of jobs has room again with the next tick; retries are never refused.
func TestJobsThatLeaveMakeRoom(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 20, "max_scheduled": 3}`)
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[17]), p_tenant => 'acme')")
	exec(t, service,
		"select ojs.enqueue_bulk('a', array_fill('[]'::json, array[3]), p_tenant => 'acme', p_scheduled_at => now() + interval '1 day')")
	full := func(state string) {
		t.Helper()
		exec(t, service, "select ojs.tick()")
		refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
		expectNone(t, d.Pool, state, unbalanced)
	}
	full("at first")
	exec(t, service, "select ojs.fetch('{default}', 5)")
	exec(t, service, "select ojs.tick()")
	if got := usage(t, service, "acme"); got != "max_queue_depth 15/20, max_scheduled 3/3" {
		t.Errorf("used up are %s", got)
	}
	refused(t, service, "OJ429", "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[6]), p_tenant => 'acme')")
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[5]), p_tenant => 'acme')")
	full("after dispatch")
	// What comes back is more than the limit, and nothing new comes until it is less.
	exec(t, d.Pool, `select ojs.nack(id, '{"message": "no"}', lease, p_requeue => true) from ojs.job where state = 'active'`)
	full("with requeued jobs")
	exec(t, service, "select ojs.cancel(id) from (select id from ojs.jobs where state = 'available' limit 5) j")
	full("after cancellations")
	exec(t, service, "select ojs.cancel(id) from ojs.jobs where state = 'scheduled' limit 1")
	exec(t, service, "select ojs.tick()")
	refused(t, service, "OJ429",
		"select ojs.enqueue_bulk('a', array_fill('[]'::json, array[2]), p_tenant => 'acme', p_scheduled_at => now() + interval '1 day')")
	exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme', p_scheduled_at => now() + interval '1 day')")
	full("with one less that is scheduled")
}

// A rate lets pass its burst at once, and from then on as many as have grown since; a batch above the burst never passes.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{5, 60, 1000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			d.SetNow(noon)
			limited(t, service, "acme", fmt.Sprintf(`{"max_enqueue_rate": {"limit": %d, "period": "PT1M"}}`, limit))
			bulk := "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[$1::int]), p_tenant => 'acme')"
			failure := refused(t, service, "OJ422", bulk, limit+1)
			if said := detail(t, failure); said["limit"] != float64(limit) || said["field"] != "jobs" {
				t.Errorf("a batch above the burst: %s, %v", failure.Message, said)
			}
			exec(t, service, bulk, limit-1)
			exec(t, service, "select ojs.enqueue('a', p_tenant => 'acme')")
			// A whole minute lets as many pass again, however they are divided over it.
			for second := 1; second <= 60; second++ {
				d.SetNow(noon.Add(time.Duration(second) * time.Second))
				passed := limit*second/60 - limit*(second-1)/60
				if passed > 0 {
					exec(t, service, bulk, passed)
				}
				failure := refused(t, service, "OJ429", "select ojs.enqueue('a', p_tenant => 'acme')")
				after := detail(t, failure)["retry_after"].(float64)
				if left := float64((limit*second/60+1)*60-limit*second) / float64(limit); after < left || after >= left+1 && after > 1 {
					t.Fatalf("in second %d: try again after %v seconds, want %v", second, after, left)
				}
			}
		})
	}
}

// What a transaction has taken nobody else has, as long as it is open, and its tenant goes on beside it with what is left. Rolled back, it
// gives everything back. Nobody of another tenant waits for it.
func TestAnOpenTransactionKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 160, "max_enqueue_rate": {"limit": 160, "period": "P1D"}}`)
	producer := begin(t, service)
	for range 10 {
		exec(t, producer, "select ojs.enqueue('a', p_tenant => 'acme')")
	}
	exec(t, service, "select ojs.tick()")
	each := func(tenant string, jobs int) int {
		tx := begin(t, service)
		defer commit(t, tx)
		exec(t, tx, "set local lock_timeout = 1")
		return one[int](t, tx, `select count(*) from ojs.enqueue_rows(array_fill('a'::text, array[$1::int]),
			array_fill('[]'::json, array[$1::int]), p_tenant => $2, p_each => true) where sqlstate is null`, jobs, tenant)
	}
	if got := each("globex", 10); got != 10 {
		t.Errorf("of another tenant's jobs %d were taken", got)
	}
	// A stripe of ten, at most, is out of reach beside what the open transaction took.
	got := each("acme", 160)
	if got < 140 || got > 150 {
		t.Errorf("beside the open transaction %d jobs were taken", got)
	}
	rollback(t, producer)
	exec(t, service, "select ojs.tick()")
	if left := each("acme", 160); left != 160-got {
		t.Errorf("after the rollback %d jobs were taken, want %d", left, 160-got)
	}
	expectNone(t, d.Pool, "at the end", unbalanced)
}

// A job writes one stripe for all limits of its tenant, also where another stripe than that of its session has the tokens.
func TestAllLimitsOfATenantCostOneRow(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	limited(t, d.Service(), "acme", `{"max_queue_depth": 1000, "max_scheduled": 1000, "max_stored_bytes": 1000000000,
		"max_enqueue_rate": {"limit": 1000, "period": "P1D"}}`)
	for job := range 70 {
		producer := begin(t, d.Pool)
		exec(t, producer, "select ojs.enqueue('a', p_tenant => 'acme')")
		if got := one[int](t, producer, "select count(*) from ojs.stripe where xmin = pg_current_xact_id()::xid"); got != 1 {
			t.Fatalf("job %d wrote %d stripes", job, got)
		}
		commit(t, producer)
	}
	got, want := usage(t, d.Service(), "acme"), "max_enqueue_rate 70/1000, max_queue_depth 70/1000, max_scheduled 0/1000"
	if !strings.HasPrefix(got, want) {
		t.Errorf("used up are %s", got)
	}
}

// A producer that has read the limits before one of them is removed takes its tokens of those that stay.
func TestAnotherLimitIsRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	limited(t, d.Service(), "acme", `{"max_queue_depth": 10, "max_enqueue_rate": {"limit": 1, "period": "P1D"}}`)
	exec(t, d.Service(), "select ojs.enqueue('a', p_tenant => 'acme')")
	read := one[string](t, d.Pool, "select ojs._allowances('acme', 'default')::text")
	limited(t, d.Service(), "acme", `{"max_enqueue_rate": null}`)
	if fit := one[int](t, d.Pool, `select fit
		from ojs._fit(row('acme', 'default', 'available', 3, 0, null)::ojs._new_group, $2, $1::ojs.allowance[])`,
		read, []float64{3, 3, 0, 0, 3}); fit != 3 {
		t.Errorf("%d of 3 jobs fit", fit)
	}
	for _, want := range []string{"max_queue_depth 4/10", "max_queue_depth 7/10", "max_queue_depth 10/10"} {
		exec(t, d.Pool, "select ojs._take($1::ojs.allowance[], 'acme', 'default', $2, false, null)", read, []float64{3, 3, 0, 0, 3})
		if got := usage(t, d.Service(), "acme"); got != want {
			t.Errorf("used up are %s, want %s", got, want)
		}
	}
	if code := one[string](t, d.Pool, "select (ojs._take($1::ojs.allowance[], 'acme', 'default', $2, false, null)).sqlstate",
		read, []float64{1, 1, 0, 0, 1}); code != "OJ429" {
		t.Errorf("one job too many: %s", code)
	}
}

// To set and remove another limit, a small one that needs fewer stripes, forgets nothing of what an open transaction has taken.
func TestAnotherLimitChangesMeanwhile(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", `{"max_queue_depth": 160, "max_stored_bytes": 1000000}`)
	measure(t, d)
	producer := begin(t, service)
	for range 20 {
		exec(t, producer, "select ojs.enqueue('a', p_tenant => 'acme')")
	}
	for _, other := range []string{`{"limit": 4, "period": "P1D"}`, `{"limit": 40, "period": "PT1S"}`, "null"} {
		limited(t, service, "acme", `{"max_enqueue_rate": `+other+"}")
		exec(t, service, "select ojs.tick()")
		exec(t, service, `select from ojs.enqueue_rows(array_fill('a'::text, array[200]), array_fill('[]'::json, array[200]),
			p_tenant => 'acme', p_each => true)`)
	}
	commit(t, producer)
	exec(t, service, "select ojs.tick()")
	exec(t, service, `select from ojs.enqueue_rows(array_fill('a'::text, array[200]), array_fill('[]'::json, array[200]),
		p_tenant => 'acme', p_each => true)`)
	if got := one[int](t, service, "select count(*) from ojs.jobs"); got != 160 {
		t.Errorf("there are %d jobs", got)
	}
	// A value that was sent has 3 bytes more than one that is stored.
	if got, want := one[int64](t, service, counted, "acme"), one[int64](t, d.Pool, sizes, "acme"); got < want || got > want+6*160 {
		t.Errorf("%d bytes count, and %d are there", got, want)
	}
	exec(t, service, "select ojs.cancel(id, 'acme') from ojs.jobs limit 10")
	exec(t, service, "select ojs.tick()")
	if got := usage(t, service, "acme"); !strings.HasPrefix(got, "max_queue_depth 150/160") {
		t.Errorf("used up are %s", got)
	}
}

// A job that came and went between two roll-ups changes no count, and the next look at its limit may be after the roll-up.
func TestTokensOfJobsThatCameAndWentReturn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	limited(t, d.Service(), "acme", `{"max_queue_depth": 3}`)
	exec(t, d.Service(), "select ojs.tick()")
	exec(t, d.Service(), "select ojs.cancel((ojs.enqueue('a', p_tenant => 'acme')).id, 'acme') from generate_series(1, 3)")
	exec(t, d.Pool, "select ojs._roll_up()")
	exec(t, d.Service(), "select ojs.tick()")
	expectNone(t, d.Pool, "after the roll-up", unbalanced)
	exec(t, d.Service(), "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[3]), p_tenant => 'acme')")
}

// A producer waits a moment for what another one of its tenant, or of its queue, has taken and may give back.
func TestAProducerWaitsForWhatOthersHave(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, limit, other, code string }{
		{"a tenant's limit", `select ojs.configure_limits('acme', '{"max_queue_depth": 3}')`, "acme", "OJ429"},
		{"a queue's bound", `select ojs.configure_queue('default', '{"backpressure": {"max_depth": 3}}')`, "globex", "OJ430"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			exec(t, service, c.limit)
			first := begin(t, service)
			exec(t, first, "select ojs.enqueue('a', p_tenant => 'acme')")
			second := begin(t, service)
			done := make(chan error, 1)
			go func() {
				_, err := second.Exec(t.Context(), "select ojs.enqueue('a', p_tenant => $1)", c.other)
				done <- err
			}()
			d.Blocked(backendPID(second))
			commit(t, first)
			if err := pgtest.Receive(t, "the second job", done); err != nil {
				t.Error(pgtest.Explain(err))
			}
			// It may have room when the other one is through.
			failure := refused(t, service, c.code, "select ojs.enqueue('a', p_tenant => 'acme')")
			if said := detail(t, failure); said["busy"] != true || said["retry_after"] != 1.0 ||
				!strings.Contains(failure.Message, "using what is left") {
				t.Errorf("it is refused with %s %v", failure.Message, said)
			}
			rollback(t, second)
			exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[2]), p_tenant => 'acme')")
		})
	}
}

// Producers of one tenant in many sessions, in all ways, with rollbacks, sessions that are ended, fetchers, and a clock: at no moment are
// there more jobs than the limit, while another limit comes and goes, all room is used, and at the end every counter is what the rows say.
func TestDepthIsExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	const limit, producers, rounds = 200, 10, 60
	d := pgtest.New(t)
	service := d.Service()
	limited(t, service, "acme", fmt.Sprintf(`{"max_queue_depth": %d}`, limit))
	limited(t, service, "acme", `{"max_queue_depth": 90}`, "b")
	exec(t, service, `select ojs.configure_queue('b', '{"backpressure": {"max_depth": 150}}')`)
	var producing, others sync.WaitGroup
	var stop atomic.Bool
	var refusals atomic.Int64
	for n := range producers {
		producing.Go(func() { produce(t, service, n, rounds, &refusals) })
	}
	for _, act := range []func() error{
		func() error { return tickOnce(t, service) },
		func() error { return killOne(t, d.Pool) },
		func() error {
			_, err := service.Exec(t.Context(), "select ojs.ack(f.id, f.lease) from ojs.fetch('{a,b}', 30) f")
			return err
		},
		func() error {
			_, err := service.Exec(t.Context(), `select ojs.configure_limits('acme', jsonb_build_object('max_enqueue_rate',
				(array['{"limit": 50, "period": "PT1S"}', '{"limit": 100000, "period": "PT1S"}', 'null'])[1 + random() * 2]::jsonb))`)
			time.Sleep(time.Millisecond)
			return err
		},
		func() error {
			over, err := rowsOf[struct{ What string }](t.Context(), d.Pool, `
				select q.queue || ' ' || q.resource || ': ' || j.n from ojs.quota q cross join lateral (select count(*) as n from ojs.job j
					where q.queue in ('', j.queue) and j.state in ('available', 'scheduled')) j where q.period is null and j.n > q.maximum`)
			for _, o := range over {
				t.Errorf("too many: %s", o.What)
			}
			return err
		},
	} {
		others.Go(func() {
			for !stop.Load() {
				if err := act(); err != nil && !ended(err) {
					t.Error(pgtest.Explain(err))
					return
				}
			}
		})
	}
	producing.Wait()
	stop.Store(true)
	others.Wait()
	// A session that was ended lets go of its rows a moment after its client has heard of it, and a tick passes over such rows.
	d.Eventually("no session has a transaction open", `select not exists (
		select from pg_stat_activity where datname = current_database() and xact_start is not null and pid <> pg_backend_pid())`)
	limited(t, service, "acme", `{"max_enqueue_rate": null}`)
	exec(t, service, "select ojs.tick()")
	expectNone(t, d.Pool, "at the end", unbalanced)
	if refusals.Load() == 0 {
		t.Error("nothing was refused, so that nothing was tried")
	}
	left := one[int](t, service, "select least(200 - count(*), 150) from ojs.jobs where state = 'available'")
	exec(t, service, "select ojs.enqueue_bulk('a', array_fill('[]'::json, array[$1::int]), 'a', p_tenant => 'acme')", left)
}

// ended reports whether a statement failed because its session was ended, or because other sessions held
// what it needed.
func ended(err error) bool {
	var failure *pgconn.PgError
	return !errors.As(err, &failure) || slices.Contains([]string{"57P01", "40P01", "55P03", "OJ503"}, failure.Code)
}

func tickOnce(t *testing.T, pool *pgxpool.Pool) error {
	_, err := pool.Exec(t.Context(), "select ojs.tick()")
	return err
}

// killOne ends a session that is enqueueing, if there is one.
func killOne(t *testing.T, pool *pgxpool.Pool) error {
	_, err := pool.Exec(t.Context(), `select pg_terminate_backend(pid), pg_sleep(0.05) from pg_stat_activity
		where datname = current_database() and query like '%enqueue%' and pid <> pg_backend_pid() and state <> 'idle' limit 1`)
	return err
}

func produce(t *testing.T, pool *pgxpool.Pool, n, rounds int, refusals *atomic.Int64) {
	for round := range rounds {
		sql := []string{
			"select ojs.enqueue('a', p_queue => 'a', p_tenant => 'acme')",
			"select ojs.enqueue_bulk('a', array_fill('[]'::json, array[7]), 'b', p_tenant => 'acme')",
			"insert into ojs.jobs (type, queue, tenant_id) select 'a', 'ab', 'acme' from generate_series(1, 3)",
			`select count(ojs.cancel(id, 'acme')) from ojs.enqueue_rows(array_fill('a'::text, array[20]), array_fill('[]'::json, array[20]),
				array_fill('b'::text, array[20]), p_tenant => 'acme', p_each => true) where n % 7 = 3 and sqlstate is null`,
		}[(n+round)%4]
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
		if err != nil {
			continue
		}
		_, err = tx.Exec(t.Context(), sql)
		var failure *pgconn.PgError
		if errors.As(err, &failure) && failure.Code == "OJ429" || errors.As(err, &failure) && failure.Code == "OJ430" {
			refusals.Add(1)
		} else if err != nil && !ended(err) {
			t.Error(pgtest.Explain(err))
		}
		if err != nil || round%5 == 4 {
			_ = tx.Rollback(t.Context())
		} else {
			_ = tx.Commit(t.Context())
		}
	}
}
