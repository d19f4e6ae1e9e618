package db_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// ruled makes a database with ten jobs of each of the tenants a, b and c in each of the queues q and r.
func ruled(t *testing.T) *pgtest.DB {
	t.Helper()
	d := pgtest.New(t)
	for _, queue := range []string{"q", "r"} {
		for _, tenant := range []string{"a", "b", "c"} {
			enqueueFor(t, d.Service(), queue, tenant, 10)
		}
	}
	return d
}

// handedOut returns the tenants of which a FETCH got jobs, and how many of each.
func handedOut(t *testing.T, q querier, queues string, count int) string {
	t.Helper()
	// In one message: a caller that has been in its transaction for 20 ms, on a slow machine, fetches without the lane.
	return strings.Join(list[string](t, q, `
		select tenant_id || ' ' || count(*) from ojs.fetch($1::text::text[], $2) group by tenant_id order by 1`,
		pgx.QueryExecModeSimpleProtocol, queues, count), ", ")
}

func TestPauses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pause, queues, want string }{
		{"'q'", "{q}", ""},
		{"'q'", "{r}", "a 2, b 2, c 2"},
		{"null, 'a'", "{q}", "b 3, c 3"},
		{"null, 'a'", "{r}", "b 3, c 3"},
		{"'q', 'a'", "{q}", "b 3, c 3"},
		{"'q', 'a'", "{r}", "a 2, b 2, c 2"},
		{"'*'", "{r}", ""},
	} {
		t.Run(c.pause+" from "+c.queues, func(t *testing.T) {
			t.Parallel()
			d := ruled(t)
			service := d.Service()
			if got := handedOut(t, service, c.queues, 3); got != "a 1, b 1, c 1" {
				t.Fatalf("before: %s", got)
			}
			exec(t, service, "select ojs.pause("+c.pause+")")
			if got := handedOut(t, service, c.queues, 6); got != c.want {
				t.Errorf("paused, a FETCH of 6 gives %q, want %q", got, c.want)
			}
			exec(t, service, "select ojs.resume("+c.pause+")")
			handedOut(t, service, c.queues, 30)
			if got := one[string](t, d.Pool, `select string_agg(distinct tenant_id, '') from ojs.job
				where queue = any ($1::text::text[]) and state = 'active' having bool_and(state = 'active')`, c.queues); got != "abc" {
				t.Errorf("resumed, only jobs of %q are handed out", got)
			}
			expectNone(t, d.Pool, "left behind", "select * from ojs.job where queue = any ($1::text::text[]) and state = 'available'",
				c.queues)
			if rules := list[string](t, service, "select r::text from ojs.rule r"); len(rules) > 0 {
				t.Errorf("left of it: %v", rules)
			}
		})
	}
}

// Pausing a tenant neither costs it its turn nor gives it one that others have earned.
func TestAPausedTenantComesBackWithoutCreditOrLoss(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for _, tenant := range []string{"a", "b", "c"} {
		enqueueFor(t, service, "q", tenant, 100)
	}
	handedOut(t, service, "{q}", 6)
	exec(t, service, "select ojs.pause(null, 'a')")
	if got := handedOut(t, service, "{q}", 60); got != "b 30, c 30" {
		t.Errorf("while a is paused: %s", got)
	}
	exec(t, service, "select ojs.resume(null, 'a')")
	got := list[string](t, service, "select tenant_id from ojs.fetch('{q}', 60)")
	for n := 6; n <= len(got); n += 6 {
		for _, tenant := range []string{"a", "b", "c"} {
			of := len(got[:n]) - len(slices.DeleteFunc(slices.Clone(got[:n]), func(x string) bool { return x == tenant }))
			if of < n/3-2 || of > n/3+2 {
				t.Fatalf("of the first %d jobs after that %d are of %s", n, of, tenant)
			}
		}
	}
}

// A slot that comes back is used by the next FETCH.
func TestASlotThatComesBackIsUsedNext(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.limit_concurrency(1, 'a')")
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'a', 'x', 'urgent', 5 from generate_series(1, 20)")
	enqueueFor(t, service, "q", "a", 20)
	for _, queue := range []string{"q", "urgent"} {
		enqueueFor(t, service, queue, "b", 200)
		for mine, others := 0, 0; mine < 20; {
			got := lines(t, service, "select tenant_id, id::text from ojs.fetch(array[$1], 1)", pgx.QueryExecModeSimpleProtocol, queue)[0]
			tenant, id, _ := strings.Cut(got, " ")
			if others++; tenant == "a" {
				exec(t, service, "select ojs.ack($1)", id)
				mine, others = mine+1, 0
			}
			if others > 2 {
				t.Fatalf("from %s, %d jobs of others went before the next of a, which had room", queue, others)
			}
		}
	}
}

// A caller that gives up what it has taken keeps no slot of its tenant's, in whatever queue.
func TestARollbackKeepsNoSlot(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.limit_concurrency(2, 'a')")
	enqueueFor(t, service, "q", "a", 10)
	enqueueFor(t, service, "r", "a", 10)
	handedOut(t, service, "{q}", 1)
	tx := begin(t, service)
	if got := handedOut(t, tx, "{q}", 1); got != "a 1" {
		t.Fatalf("taken: %q", got)
	}
	if got := handedOut(t, service, "{q,r}", 5); got != "" {
		t.Fatalf("beside it %s", got)
	}
	rollback(t, tx)
	if got := handedOut(t, service, "{r}", 5); got != "a 1" {
		t.Errorf("then %q", got)
	}
}

// A job that commits late goes before later ones of its tenant, also where the tenant has a limit.
func TestALateJobGoesBeforeLaterOnes(t *testing.T) {
	t.Parallel()
	for _, fair := range []bool{true, false} {
		d := pgtest.New(t)
		service := d.Service()
		exec(t, service, `
			select ojs.configure_queue('q', jsonb_build_object('tenant_fairness', jsonb_build_object('enabled', $1::boolean)))`, fair)
		exec(t, service, "select ojs.limit_concurrency(3, 'a')")
		late := begin(t, service)
		exec(t, late, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a')")
		enqueueFor(t, service, "q", "a", 10)
		handedOut(t, service, "{q}", 1)
		said := "select e.certainty || ' ' || e.dispatches_ahead from ojs.job j cross join lateral ojs.explain(j.id) e where j.seq = 3"
		if got := one[string](t, service, said); got != "exact 0" {
			t.Errorf("fair %t: said of the next job: %s", fair, got)
		}
		next := one[string](t, d.Pool, "select id::text from ojs.job where seq = 3")
		if words, text := causes(t, service, next, nil); fmt.Sprint(words) != "[next]" {
			t.Errorf("fair %t: said to hold the next job back: %s", fair, text)
		}
		commit(t, late)
		if got := one[*string](t, service, said); got != nil && *got == "exact 0" {
			t.Errorf("fair %t: still said of the next job: %s", fair, *got)
		}
		if got := one[int](t, service, "select j.seq from ojs.fetch('{q}', 1) f join ojs.job j using (id)"); got != 1 {
			t.Errorf("fair %t: job %d went before the one that committed late", fair, got)
		}
	}
}

// Who waits in a thousand queues is served in the one that is asked for; who has no room in many holds up nobody who has.
func TestManyRowsAtTheirLimit(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.limit_concurrency(1, 'a')")
	exec(t, service, "select ojs.limit_concurrency(1, 'b')")
	exec(t, service, "select ojs.limit_concurrency(1, 'b', 'full')")
	exec(t, service, "select ojs.limit_concurrency(10, 'b')")
	enqueueFor(t, service, "run", "a", 1)
	run := one[string](t, service, "select id::text from ojs.fetch('{run}', 1)")
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'b', 'x', 'full', p from generate_series(-100, 100) p")
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue) select 'a', 'x', 'q' || n from generate_series(1, 500) n")
	handedOut(t, service, "{full}", 300)
	for n := 1; n < 500; n += 100 {
		exec(t, service, "select from ojs.fetch(array(select 'q' || n from generate_series($1::int, $1 + 99) n), 1)", n)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.tenant_fairness where at_limit"); got < 600 {
		t.Fatalf("%d rows are at their limit", got)
	}
	enqueueFor(t, service, "other", "b", 1)
	other := one[string](t, service, "select id::text from ojs.fetch('{other}', 1)")
	exec(t, service, "select ojs.ack_many($1::uuid[])", []string{run, other})
	if got := handedOut(t, service, "{q499}", 9); got != "a 1" {
		t.Errorf("from one of many queues: %q", got)
	}
}

// A rule about what nothing is called yet holds, and says that it may be misspelt.
func TestRulesAboutUnknownNames(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	enqueueFor(t, d.Service(), "mail", "acme", 1)
	config, err := pgx.ParseConfig(d.OperatorURL())
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { said = append(said, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	const unknown = " has no jobs and no configuration yet"
	for _, c := range []struct{ call, want string }{
		{"ojs.pause('mail')", ""},
		{"ojs.pause('*')", ""},
		{"ojs.pause('mial')", "queue mial" + unknown},
		{"ojs.throttle('acmee', 'x')", "tenant acmee" + unknown},
		{"ojs.suspend_tenant('acmes', 'x')", "tenant acmes" + unknown},
		{"ojs.suspend_tenant('acmes', 'x')", ""},
		{"ojs.resume_tenant('acmes')", ""},
		{"ojs.throttle('acme', 'x')", ""},
		{"ojs.suspend_tenant('acme', 'x')", ""},
		{"ojs.resume_tenant('acme')", ""},
		{"ojs.configure_tenant('acme', p_max_priority => 5)", ""},
		{"ojs.release_throttle('acme')", ""},
		{"ojs.pause(p_tenant => 'acme')", ""},
		{"ojs.limit_concurrency(3, 'amce', 'mail')", "tenant amce" + unknown},
		{"ojs.configure_tenant('acme', 2)", ""},
		{"ojs.configure_tenant('globex', 2)", "tenant globex" + unknown},
		{"ojs.configure_tenant('globex', 3)", ""},
	} {
		said = nil
		exec(t, conn, "select from "+c.call)
		if got := strings.Join(said, "; "); got != c.want {
			t.Errorf("%s: said is %q, want %q", c.call, got, c.want)
		}
	}
}

// Of very many tenants that have room again at once, all get their jobs, those of the highest priorities first, and none is forgotten.
func TestManyTenantsHaveRoomAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.limit_concurrency(1, 't' || n) from generate_series(1, 250) n")
	exec(t, service, `
		insert into ojs.jobs (tenant_id, type, queue, priority)
		select 't' || n, 'x', 'q', case when n = 250 then 10 when n > 230 then 5 else 0 end
		from generate_series(1, 250) n, generate_series(1, 4)`)
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'free', 'x', 'q', -1 from generate_series(1, 2000)")
	got := func() (all []string) {
		for {
			rows := lines(t, service, `
				select request, priority, tenant_id from ojs.fetch_many('{q}', '{250}', '{w}', '{0}')
				where worker_id is null or id is not null`)
			cut := false
			for _, row := range rows {
				if strings.HasPrefix(row, "0 ") {
					cut = true
				} else {
					all = append(all, row)
				}
			}
			if !cut || len(all) >= 250 {
				return all
			}
		}
	}
	for round := range 3 {
		all := got()
		if len(all) < 250 {
			t.Fatalf("round %d: handed out are %d jobs", round, len(all))
		}
		last := 10
		for i, row := range all[:250] {
			var request, priority int
			var tenant string
			if _, err := fmt.Sscan(row, &request, &priority, &tenant); err != nil {
				t.Fatal(err)
			}
			if priority > last || tenant == "free" {
				t.Fatalf("round %d: job %d is of %s and priority %d, behind one of %d", round, i, tenant, priority, last)
			}
			last = priority
		}
		ackActive(t, service)
	}
}

// While very many tenants have room again in a queue, later ones do not take its places.
func TestManyTenantsHaveRoomAgainInOneOfTwoQueues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		strategy, pool string
		a              int
	}{
		{"strict", "{}", 150},
		{"round-robin", "{}", 75},
		{"strict", `{"starvation_prevention": {"enabled": true, "min_dispatch_ratio": 0.1}}`, 134},
	} {
		t.Run(c.strategy+c.pool, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			service := d.Service()
			pooled(t, service, "p", c.pool)
			exec(t, service, "select ojs.limit_concurrency(1, 't' || n) from generate_series(1, 160) n")
			exec(t, service, `
				insert into ojs.jobs (tenant_id, type, queue, priority)
				select 't' || n, 'x', 'a', case when n % 2 = 0 then 5 else 0 end from generate_series(1, 160) n, generate_series(1, 3)`)
			exec(t, service, "insert into ojs.jobs (tenant_id, type, queue) select 'free', 'x', 'b' from generate_series(1, 500)")
			exec(t, service, "select ojs.fetch('{a}', 160)")
			ackActive(t, service)
			got := map[string]int{}
			for cut := true; cut; {
				cut = false
				left := 150 - got["a"] - got["b"]
				for _, row := range lines(t, service, "select request, queue from ojs.fetch_many('{a,b}', array[$1::int], '{w}', '{0}', "+
					"p_strategy => $2, p_pool => 'p') where worker_id is null or id is not null", left, c.strategy) {
					request, queue, _ := strings.Cut(row, " ")
					cut = cut || request == "0"
					if request != "0" {
						got[queue]++
					}
				}
			}
			if got["a"] < c.a || got["a"]+got["b"] != 150 {
				t.Errorf("of 150 jobs the queues have %v", got)
			}
		})
	}
}

// A queue all of whose tenants have room again, and no turns yet, is one with work, and has its part.
func TestAQueueOfTenantsThatHaveRoomAgain(t *testing.T) {
	t.Parallel()
	for strategy, least := range map[string]int{"round-robin": 10, "weighted": 15} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			service := pgtest.New(t).Service()
			exec(t, service, "select ojs.limit_concurrency(1, 't' || n) from generate_series(1, 300) n")
			exec(t, service, `
				insert into ojs.jobs (tenant_id, type, queue)
				select 't' || n, 'x', case when n <= 20 then 'a' else 'z' end from generate_series(1, 300) n, generate_series(1, 3)`)
			exec(t, service, "select ojs.fetch('{a}', 100)")
			exec(t, service, "select ojs.fetch('{z}', 1000)")
			// Those of z are freed, and wait in line, before those of a.
			exec(t, service, "select ojs.ack_many(array(select id from ojs.job where state = 'active' and queue = 'z'))")
			exec(t, service, "select ojs.fetch('{z}', 1)")
			ackActive(t, service)
			got := one[int](t, service, `select count(*) filter (where queue = 'a') from ojs.fetch('{z,a}', 30, p_strategy => $1,
				p_weights => '{"a": 9, "z": 1}')`, pgx.QueryExecModeSimpleProtocol, strategy)
			if got < least {
				t.Errorf("of 30 jobs %d are of a", got)
			}
		})
	}
}

// Who has room again is not forgotten behind others that have work in many queues, and no room for it any more.
func TestNobodyIsForgottenBehindOthers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.limit_concurrency(1, t) from (select 't' || n as t from generate_series(1, 130) n union all select 'x') t")
	exec(t, service, `
		insert into ojs.jobs (tenant_id, type, queue)
		select 't' || n, 'x', q from generate_series(1, 130) n, unnest('{a,b,c,d,e,f,g,h,i,j,k,l}'::text[]) q, generate_series(1, 3)`)
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue) select 'x', 'x', 'z' from generate_series(1, 3)")
	x := one[string](t, service, "select id::text from ojs.fetch('{z}', 1)")
	exec(t, service, "select ojs.fetch('{z,a,b,c,d,e,f,g,h,i,j,k,l}', 1000)")
	exec(t, service, "select ojs.ack_many(array(select id from ojs.job where state = 'active' and tenant_id <> 'x'))")
	// All others come back in queue a and lose their room there, while rows of theirs wait in the other queues, and x comes last.
	exec(t, service, "select ojs.fetch('{a}', 1)")
	exec(t, service, "select ojs.ack($1)", x)
	for _, count := range []int{129, 1} {
		exec(t, service, "select ojs.fetch('{a}', $1)", count)
	}
	if got := handedOut(t, service, "{z}", 9); got != "x 1" {
		t.Errorf("x gets %q", got)
	}
	ackActive(t, service)
	expectNone(t, d.Pool, "tenants that may be given jobs and are not in the ring", `
		select f.tenant_id from ojs.tenant_fairness f where f.at_limit
		and not exists (select from ojs.job j where j.tenant_id = f.tenant_id and j.state = 'active') and not exists (
			select from ojs._folded() o cross join lateral ojs._ends(o.snapshot, null) e where e.tenant_id = f.tenant_id)`)
}

// While a transaction that got jobs of a limited tenant stays open, others who ask for its jobs elsewhere are told that there are none.
func TestAHeldLimitHasNobodyAskAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.limit_concurrency(2, 'a')")
	enqueueFor(t, service, "q", "a", 3)
	enqueueFor(t, service, "r", "a", 3)
	exec(t, service, "select ojs.fetch('{q}')")
	worker := begin(t, service)
	if got := handedOut(t, worker, "{q}", 1); got != "a 1" {
		t.Fatalf("the worker has %q", got)
	}
	// On a busy machine a fold may take longer than a decision gives it. Then callers ask again, until the fold is done.
	pgtest.Eventually(t, "another one is told that there are none", func() bool {
		return len(lines(t, service, "select request, id from ojs.fetch_many('{r}', '{1}', '{w}', '{0}')")) == 0
	})
	commit(t, worker)
}

// A tenant with room for one job gets that of its highest priority, however many others it has.
func TestOneOfManyPriorities(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.limit_concurrency(1, 'a')")
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'a', 'x', 'q', p from generate_series(-100, 100) p")
	exec(t, service, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'b', 'x', 'q', -100 from generate_series(1, 500)")
	for want := 100; want > -100; want -= 7 {
		rows := lines(t, service, "select tenant_id, priority from ojs.fetch('{q}', 2)")
		if fmt.Sprint(rows) != fmt.Sprintf("[a %d b -100]", want) {
			t.Fatalf("handed out are %v, want priority %d", rows, want)
		}
		for skip := want - 1; skip > want-7; skip-- {
			exec(t, service, "select ojs.cancel(id) from ojs.job where tenant_id = 'a' and priority = $1", skip)
		}
		ackActive(t, service)
	}
}

// Whatever ends an attempt makes room, and the clock is one of those who do.
func TestEveryEndMakesRoom(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"ack":          "select ojs.ack($1)",
		"ack_many":     "select ojs.ack_many(array[$1::uuid])",
		"nack":         `select ojs.nack($1, '{"message": "no"}')`,
		"discard":      `select ojs.nack($1, '{"message": "no", "retryable": false}')`,
		"settle":       `select ojs.settle(json_build_array(json_build_object('id', $1::text, 'error', '{"message": "no"}'::json)))`,
		"release":      "select ojs.release(id, lease) from ojs.job where id = $1",
		"release_many": "select ojs.release_many(array[id], array[lease]) from ojs.job where id = $1",
		"cancel":       "select ojs.cancel($1)",
		"the clock":    "update ojs.job set lease_expires_at = now() - interval '1 s' where id = $1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := ruled(t)
			service := d.Service()
			exec(t, service, "select ojs.limit_concurrency(1, 'a')")
			job := one[string](t, service, "select id::text from ojs.fetch('{q}', 3) where tenant_id = 'a'")
			if got := handedOut(t, service, "{q,r}", 60); strings.Contains(got, "a ") {
				t.Fatalf("beyond the limit: %s", got)
			}
			exec(t, d.Pool, "delete from ojs.job where tenant_id <> 'a'")
			if name == "the clock" {
				exec(t, d.Pool, end, job)
				exec(t, d.Pool, "update ojs.lease set due_at = now() - interval '1 s'")
				exec(t, d.Pool, "update ojs.clock_mark set lease_at = '-infinity'")
				tick(t, service, 1000)
			} else {
				exec(t, d.Pool, end, job)
			}
			if got := handedOut(t, service, "{r}", 9); got != "a 1" {
				t.Errorf("after the end of its job a has %q", got)
			}
		})
	}
}

// A new limit counts jobs that run already, also those that a FETCH is taking at this moment, and waits until fewer run.
func TestALimitCountsWhatRunsAlready(t *testing.T) {
	t.Parallel()
	d := ruled(t)
	service := d.Service()
	ids := list[string](t, service, "select id::text from ojs.fetch('{q}', 12) where tenant_id = 'a'")
	tx := begin(t, service)
	taken := list[string](t, tx, "select id::text from ojs.fetch('{q}', 3) where tenant_id = 'a'")
	done := make(chan error, 1)
	go func() {
		_, err := service.Exec(t.Context(), "select ojs.limit_concurrency(3, 'a')")
		done <- err
	}()
	commit(t, tx)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ids = append(ids, taken...)
	if len(ids) != 5 {
		t.Fatalf("a has %d jobs", len(ids))
	}
	if got := one[int](t, service, "select active from ojs.rule_stats where tenant_id = 'a'"); got != 5 {
		t.Errorf("%d jobs are counted, 5 run", got)
	}
	exec(t, d.Pool, "delete from ojs.job where tenant_id <> 'a' and queue = 'r'")
	for n, id := range ids {
		if got, want := handedOut(t, service, "{r}", 9), n > 2; (got == "a 1") != want {
			t.Errorf("after %d ends a gets %q", n, got)
		}
		exec(t, service, "select ojs.ack($1)", id)
	}
}

// While a transaction keeps the lane, others fetch without it, and get all that the limits allow and no more.
func TestLimitsHoldWithoutTheLane(t *testing.T) {
	t.Parallel()
	d := ruled(t)
	service := d.Service()
	exec(t, service, "select ojs.limit_concurrency(3, 'a')")
	exec(t, service, "select ojs.limit_concurrency(2, 'b', 'q')")
	exec(t, service, "select ojs.limit_concurrency(5, null, 'r')")
	tick(t, service, 1000) // until the clock or a decision has counted for it, a new limit allows no jobs
	enqueueFor(t, service, "other", "b", 1)
	tx := begin(t, service)
	if got := handedOut(t, tx, "{other}", 1); got != "b 1" {
		t.Fatalf("the one who stays has %q", got)
	}
	for range 9 {
		if handedOut(t, service, "{q,r}", 30) == "" {
			break
		}
	}
	const run = `select count(*) filter (where tenant_id = 'a'), count(*) filter (where tenant_id = 'b' and queue = 'q'),
		count(*) filter (where tenant_id = 'c' and queue = 'q'), count(*) filter (where queue = 'r') from ojs.job where state = 'active'`
	if got := lines(t, service, run); got[0] != "3 2 10 0" {
		t.Errorf("of a, b in q, c in q, and in r, of which only decisions hand out jobs, run %s", got)
	}
	rollback(t, tx)
	handedOut(t, service, "{q,r}", 30)
	if got := lines(t, service, run); got[0] != "3 2 10 5" {
		t.Errorf("afterwards %q", got)
	}
}

// Waiting servers hear of room at the moment it comes.
func TestRoomWakesWhoWaits(t *testing.T) {
	t.Parallel()
	e := newEar(t)
	exec(t, e.service, "select ojs.limit_concurrency(1, 'acme')")
	exec(t, e.service, "select ojs.limit_concurrency(1, null, 'full')")
	q, full, other := e.register(firstServer, "q"), e.register(firstServer, "full"), e.register(firstServer, "other")
	enqueueFor(t, e.service, "run", "acme", 2)
	enqueueFor(t, e.service, "q", "acme", 2)
	enqueueFor(t, e.service, "other", "globex", 1)
	enqueueFor(t, e.service, "full", "globex", 2)
	e.expect("jobs come", q, other, full)
	acme := one[string](t, e.service, "select id::text from ojs.fetch('{run}', 9)")
	globex := one[string](t, e.service, "select id::text from ojs.fetch('{full}', 9)")
	one[string](t, e.service, "select id::text from ojs.fetch('{q,full,other}', 9)")
	exec(t, e.service, "select ojs.ack($1)", acme)
	e.expect("the tenant has room", q)
	exec(t, e.service, "select ojs.ack_many(array[$1::uuid])", globex)
	e.expect("the queue has room", full)

	// A decision that parks a tenant has not committed when its job ends.
	exec(t, e.service, "select ojs.limit_concurrency(1, 'late')")
	e.heard()
	enqueueFor(t, e.service, "run", "late", 1)
	late := one[string](t, e.service, "select id::text from ojs.fetch('{run}', 1, p_tenant => 'late')")
	enqueueFor(t, e.service, "other", "late", 1)
	e.expect("a job comes", other)
	tx := begin(t, e.service)
	if got := handedOut(t, tx, "{other}", 9); got != "" {
		t.Errorf("beyond the limit %s", got)
	}
	exec(t, e.service, "select ojs.ack($1)", late)
	e.expect("an end while somebody decides", other)
	rollback(t, tx)
}

// A tenant that waits for room is not forgotten, however long, and a rebuild counts anew.
func TestWhoWaitsForRoomIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := ruled(t)
	service := d.Service()
	exec(t, service, "select ojs.limit_concurrency(1, 'a')")
	exec(t, d.Pool, "delete from ojs.job where tenant_id <> 'a'")
	first := one[string](t, service, "select id::text from ojs.fetch('{q}', 2)")
	if got := handedOut(t, service, "{q,r}", 9); got != "" {
		t.Errorf("beyond the limit %s", got)
	}
	idleForLong(t, d)
	tick(t, service, 1000)
	exec(t, d.Pool, "select ojs.rebuild()")
	if got := handedOut(t, service, "{q,r}", 9); got != "" {
		t.Errorf("beyond the limit, after a rebuild: %s", got)
	}
	idleForLong(t, d)
	tick(t, service, 1000)
	exec(t, service, "select ojs.ack($1)", first)
	if got := handedOut(t, service, "{r}", 9); got != "a 1" {
		t.Errorf("then %q", got)
	}
}

// The ends of very many attempts in one transaction make room for the next FETCH.
func TestManyEndsAtOnce(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	exec(t, service, "select ojs.limit_concurrency(12000, 'a')")
	enqueueFor(t, service, "q", "a", 12_010)
	enqueueFor(t, service, "q", "b", 10)
	// A lease that ends meanwhile, on a slow machine, would have the tick hand its job out again.
	const fetch = "select id::text from ojs.fetch('{q}', 10000, p_visibility_timeout_ms => 600000)"
	if got := len(list[string](t, service, fetch)) + len(list[string](t, service, fetch)); got != 12_010 {
		t.Fatalf("%d jobs", got)
	}
	exec(t, service, "select count(ojs.cancel(id)) from ojs.job where state = 'active' and tenant_id = 'a'")
	enqueueFor(t, service, "q", "b", 10)
	if got := handedOut(t, service, "{q}", 30); got != "a 10, b 10" {
		t.Errorf("afterwards: %s", got)
	}
}

// A new limit loses no ends of those that are counted already, however many transactions they were in.
func TestANewLimitLosesNoEnds(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select ojs.limit_concurrency(20000, 'a')")
	enqueueFor(t, service, "q", "a", 15_000)
	exec(t, service, "select from ojs.fetch('{q}', 10000, p_visibility_timeout_ms => 600000)")
	exec(t, service, "select from ojs.fetch('{q}', 5000, p_visibility_timeout_ms => 600000)")
	exec(t, d.Pool, `do $$ declare v_id uuid; begin
		for v_id in select id from ojs.job where state = 'active' loop perform ojs.ack(v_id); commit; end loop; end $$`)
	exec(t, service, "select ojs.limit_concurrency(1, 'b')")
	exec(t, service, "select from ojs.fetch('{q}', 1)")
	tick(t, service, 1000)
	if got := lines(t, d.Pool, "select tenant_id, active from ojs.usage where active <> 0"); len(got) > 0 {
		t.Errorf("counted, though nothing runs: %v", got)
	}
}

// A tenant's own login gets jobs up to the tenant's limit, and others when some have ended.
func TestALimitedTenantsLogin(t *testing.T) {
	t.Parallel()
	d := ruled(t)
	service, a := d.Service(), d.As("a")
	exec(t, service, "select ojs.pause('q', 'a')")
	if got := handedOut(t, a, "{q,r}", 2); got != "a 2" {
		t.Errorf("beside a pause of another queue it gets %q", got)
	}
	exec(t, service, "select ojs.resume('q', 'a'), ojs.limit_concurrency(4, 'a'), ojs.limit_concurrency(1, 'a', 'q')")
	tick(t, service, 1000) // until the clock or a decision has counted for it, a new limit allows no jobs
	for _, c := range []struct{ queues, want string }{{"{q}", "a 1"}, {"{q}", ""}, {"{q,r}", "a 1"}, {"{r}", ""}} {
		if got := handedOut(t, a, c.queues, 9); got != c.want {
			t.Errorf("from %s it gets %q, want %q", c.queues, got, c.want)
		}
	}
	if got := handedOut(t, service, "{q,r}", 9); strings.Contains(got, "a ") {
		t.Errorf("beyond the limit: %s", got)
	}
	ackActive(t, service)
	if got := handedOut(t, a, "{q,r}", 9); got != "a 4" {
		t.Errorf("after the ends it gets %q", got)
	}
	if got := handedOut(t, d.As("b"), "{q,r}", 2); got != "b 2" {
		t.Errorf("another gets %q", got)
	}
}

// A tenant that only its own login serves gets jobs up to a new limit as soon as the clock has counted for it. The clock is woken for
// that: it may sleep for 10 seconds, and a login takes no decision.
func TestANewLimitOfALoginWakesTheClock(t *testing.T) {
	t.Parallel()
	e := newEar(t)
	enqueueFor(t, e.service, "q", "acme", 10)
	sleep := func() { exec(t, e.service, "select ojs.tick(1000, 'sleeper', 10000)") }
	sleep()
	e.heard()
	for _, c := range []struct{ limit, want string }{
		{"select ojs.limit_concurrency(4, 'acme')", "acme 4"},
		{"select ojs.limit_concurrency(3, 'acme', 'q')", "acme 3"},
		{"select ojs.throttle('acme', 'flood', 'concurrency', 0.5)", "acme 1"},
	} {
		exec(t, e.service, c.limit)
		if !slices.Contains(e.heard(), "sleeper") {
			t.Errorf("after %s the clock was not woken", c.limit)
		}
		sleep()
		if got := handedOut(t, e.acme, "{q}", 9); got != c.want {
			t.Errorf("after %s the login gets %q, want %q", c.limit, got, c.want)
		}
		ackActive(t, e.service)
	}
}

func TestRulesAreChecked(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	for sql, state := range map[string]string{
		"select ojs.limit_concurrency(0, 'a')":                "OJ422",
		"select ojs.limit_concurrency(1000001, 'a')":          "OJ422",
		"select ojs.limit_concurrency(1)":                     "OJ400",
		"select ojs.limit_concurrency(1, null, '*')":          "OJ400",
		"select ojs.limit_concurrency(1, '')":                 "OJ400",
		"select ojs.limit_concurrency(1, 'a', 'Not a queue')": "OJ400",
		"select ojs.pause()":                                  "OJ400",
		"select ojs.pause('q', ' ')":                          "OJ400",
		"select ojs.resume()":                                 "OJ400",
	} {
		refused(t, service, state, sql)
	}
}
