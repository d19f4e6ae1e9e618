package db_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// work runs a statement that returns a number, and counts the rows that it read, wrote and deleted. It
// sends all in one message: a caller that has been in its transaction for 20 ms fetches without the lane,
// and reads more.
func work(t *testing.T, pool *pgxpool.Pool, sql string) (result, rows int) {
	t.Helper()
	const touched = `select coalesce(sum(seq_tup_read + idx_tup_fetch + n_tup_ins + n_tup_upd + n_tup_del), 0)::int
		from pg_catalog.pg_stat_xact_all_tables where schemaname = 'ojs'`
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	results, err := conn.Conn().PgConn().Exec(t.Context(), strings.Join([]string{"begin", touched, sql, touched, "commit"}, "; ")).ReadAll()
	if err != nil {
		t.Fatalf("%s: %s", pgtest.Short(sql), pgtest.Explain(err))
	}
	var numbers [3]int
	for i := range numbers {
		if numbers[i], err = strconv.Atoi(string(results[i+1].Rows[0][0])); err != nil {
			t.Fatal(err)
		}
	}
	return numbers[1], numbers[2] - numbers[0]
}

// While a decision takes in what a tenant's transaction brought late, everybody waits. What it does must not grow with that transaction,
// whether its jobs came in a few statements or in one each, and whether callers ask for many jobs or for one.
func TestALateCommitStopsNobody(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"few statements": `do $$ begin for i in 1 .. 6 loop
			perform ojs.enqueue_bulk('late', array_fill('[]'::json, array[10000]), 'q', p_tenant => 'a'); end loop; end $$`,
		"many statements": `do $$ begin for i in 1 .. 60000 loop insert into ojs.jobs (tenant_id, type, queue) values ('a', 'late', 'q');
			end loop; end $$`,
	} {
		for call, fetch := range map[string]string{
			"many jobs": "select count(*)::int from ojs.fetch_many('{q}', '{20}', '{\"\"}', '{0}') where id is not null",
			"one job":   "select count(*)::int from ojs.fetch_many('{q}', '{1}', '{\"\"}', '{0}') where id is not null",
		} {
			t.Run(name+", "+call, func(t *testing.T) {
				t.Parallel()
				d := pgtest.New(t)
				service := d.Service()
				late := begin(t, service)
				exec(t, late, insert)
				live := func() {
					exec(t, service, "select count(*) from (select ojs.enqueue('live', p_queue => 'q', p_tenant => t)"+
						" from unnest('{a,b}'::text[]) t, generate_series(1, 40)) x")
				}
				live()
				work(t, service, fetch)
				live()
				commit(t, late)
				most, byOthers := 0, 0
				for range 20 {
					got, rows := work(t, service, fetch)
					most = max(most, rows)
					byOthers = one[int](t, d.Pool, "select count(*)::int from ojs.job where state = 'active' and tenant_id = 'b'")
					if got == 0 {
						t.Fatal("nothing was handed out")
					}
				}
				// How many bites a call takes in depends on the machine, but each reads only its own rows, some times over: five of them
				// for each late one at most. Were all that is left read for each bite, it would be 840,000.
				if most > 300_000 {
					t.Errorf("a call touched %d rows", most)
				}
				if byOthers < 8 {
					t.Errorf("b had %d jobs", byOthers)
				}
				all := one[int](t, d.Pool, "select count(*)::int from ojs.job where state = 'active'")
				for {
					got, _ := work(t, service, "select count(*)::int from ojs.fetch('{q}', 10000)")
					if all += got; got == 0 {
						break
					}
				}
				if all != 60_160 {
					t.Errorf("%d of 60160 jobs were handed out", all)
				}
				ringsAgree(t, d.Pool)
			})
		}
	}
}

// Many transactions with hundreds of names each, some of them committed late, are all taken in, each row once.
func TestManyLargeTransactions(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const large, tenants, small = 104, 201, 30
	insert := func(q querier) {
		exec(t, q, "insert into ojs.jobs (tenant_id, type) select 't' || i, 't' from generate_series(1, $1) i", tenants)
	}
	late := []pgx.Tx{begin(t, service), begin(t, service)}
	insert(late[0])
	insert(late[1])
	got := 0
	for n := range large - len(late) {
		insert(service)
		if n < small {
			enqueueFor(t, service, "default", "calm", 1)
			got += share(t, service, 2)["calm"]
		}
		if n == 50 {
			commit(t, late[0])
		}
	}
	commit(t, late[1])
	seen := map[string]bool{}
	for {
		jobs := list[string](t, service, "select id::text from ojs.fetch('{default}', 5000)")
		for _, id := range jobs {
			if seen[id] {
				t.Fatalf("job %s was handed out twice", id)
			}
			seen[id] = true
		}
		if len(jobs) == 0 && one[bool](t, service, "select not exists (select from ojs.jobs where state = 'available')") {
			break
		}
	}
	if active := one[int](t, service, "select count(*)::int from ojs.jobs where state = 'active'"); active != large*tenants+small {
		t.Errorf("%d of %d jobs were handed out", active, large*tenants+small)
	}
	ringsAgree(t, d.Pool)
}

// A session that made its plans while there was little takes in what comes to thousands of queues without reading what is there already.
func TestPlansOfAnEmptyHouse(t *testing.T) {
	t.Parallel()
	const (
		fetch = "select count(*)::int from ojs.fetch_many('{q}', '{1}', '{\"\"}', '{0}') where id is not null"
		crowd = `insert into ojs.jobs (tenant_id, type, queue, priority)
			select 'a', 't', 'crowd-' || i, $3 from generate_series($1::int, $2) i`
	)
	d := pgtest.New(t)
	service := d.Service()
	for _, table := range []string{"dispatch_state", "tenant_fairness"} {
		exec(t, d.Pool, "vacuum analyze ojs."+table)
	}
	enqueueFor(t, service, "q", "b", 10)
	work(t, service, fetch)
	exec(t, service, crowd, 1, 3000, 0)
	for range 3 {
		work(t, service, fetch)
	}
	exec(t, service, crowd, 1, 10, 1)
	if got, rows := work(t, service, fetch); got != 1 || rows > 1000 {
		t.Errorf("a call that took in ten new priorities got %d jobs and touched %d rows", got, rows)
	}
	ringsAgree(t, d.Pool)
}

// Priorities and queues that were used once cost later decisions nothing.
func TestNamesUsedOnceCostNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const (
		idle  = "select count(*)::int from ojs.fetch('{q}', 10)"
		fetch = "select count(*)::int from ojs.fetch('{q}', 10)"
	)
	round := func() (rows [2]int) {
		_, rows[0] = work(t, service, idle)
		exec(t, service, "select ojs.enqueue('a', p_queue => 'q') from generate_series(1, 5)")
		_, rows[1] = work(t, service, fetch)
		return rows
	}
	round()
	before := round()
	exec(t, service, "select count(*) from (select ojs.enqueue('a', p_queue => 'q', p_priority => p) from generate_series(-100, 100) p) x")
	exec(t, service, "select count(*) from (select ojs.enqueue('a', p_queue => 'other-' || i) from generate_series(1, 1000) i) x")
	if got, _ := work(t, service, "select count(*)::int from ojs.fetch('{q}', 1000)"); got != 201 {
		t.Fatalf("%d jobs, want 201", got)
	}
	for range 3 {
		round()
	}
	if after := round(); after[0] > before[0]+2 || after[1] > before[1]+10 {
		t.Errorf("without jobs and with five a call touched %v rows, and now %v", before, after)
	}
}

// An answer has 16 MiB at most, or what its caller allows, and one job at least; the rest comes with the next ones.
func TestAnswersAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	const large = `select count(*)::int from (select ojs.enqueue('a', to_json(array[x]), p_tenant => 'acme')
		from (select string_agg(md5(i::text || g), '') as x from generate_series(1, 30000) i, generate_series(1, %d) g group by g) x) x`
	for name, c := range map[string]struct {
		fetch string
		want  []int
	}{
		"fetch": {"select count(*)::int from ojs.fetch('{default}', 100)", []int{17, 3, 0}},
		"one decision for many": {
			"select count(id)::int from ojs.fetch_many('{default}', '{10,90}', '{\"\",\"\"}', '{0,0}')", []int{17, 3, 0},
		},
		"one job for each of many": {
			`select count(id)::int from ojs.fetch_many('{default}', array_fill(1, '{16}'), array_fill(''::text, '{16}'),
				array_fill(0, '{16}'))`, []int{16, 4, 0},
		},
		"two megabytes": {
			"select count(id)::int from ojs.fetch_many('{default}', '{100}', '{\"\"}', '{0}', p_max_bytes => 2000000)", []int{2, 2, 2},
		},
		"less than a job": {
			"select count(id)::int from ojs.fetch_many('{default}', '{100}', '{\"\"}', '{0}', p_max_bytes => 1)", []int{1, 1, 1},
		},
		"without the lane":             {"select count(*)::int from ojs.fetch('{default}', 100)", []int{17, 3, 0}},
		"compressed":                   {"select count(*)::int from ojs.fetch('{default}', 100)", []int{17, 3, 0}},
		"compressed, without the lane": {"select count(*)::int from ojs.fetch('{default}', 100)", []int{17, 3, 0}},
		"errors":                       {"select count(*)::int from ojs.fetch('{default}', 100)", []int{17, 3, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			pool := d.Service()
			switch {
			case strings.HasPrefix(name, "compressed"):
				exec(t, pool, `select count(*) from ojs.enqueue_bulk('a', array_fill(to_json(array[repeat('x', 960000)]), '{20}'),
					p_tenant => 'acme')`)
			case name == "errors":
				exec(t, pool, "select count(*) from ojs.enqueue_bulk('a', array_fill('[]'::json, '{20}'), p_tenant => 'acme')")
				exec(t, d.Pool, "update ojs.job set errors = to_jsonb(array[repeat('x', 960000)])")
			default:
				exec(t, pool, fmt.Sprintf(large, 20))
			}
			if strings.HasSuffix(name, "without the lane") {
				pool = d.As("acme")
			}
			for _, want := range c.want {
				if got, _ := work(t, pool, c.fetch); got != want {
					t.Errorf("%d jobs, want %d", got, want)
				}
			}
		})
	}
}

// A session keeps the plans that it made while the tables were small. Completions fill the journal, and a worker that takes one job at a
// time must not read them again in each call.
func TestCompletionsDoNotSlowFetches(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	config, err := pgxpool.ParseConfig(d.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1 // one session for all
	worker, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Close)
	exec(t, worker, "select count(*) from ojs.enqueue_bulk('x', array_fill('[]'::json, array[4000]), 'q')")
	fetched := func() int {
		least := 1 << 30
		for range 8 {
			_, rows := work(t, worker, "select count(*)::int from ojs.fetch('{q}', 1)")
			least = min(least, rows)
		}
		return least
	}
	run := func(jobs int) {
		exec(t, worker, fmt.Sprintf(`do $$ declare v_job record; begin for i in 1 .. %d loop
			select * into strict v_job from ojs.fetch('{q}', 1);
			perform ojs.ack(v_job.id, v_job.lease);
			commit;
		end loop; end $$`, jobs))
	}
	run(20)
	before := fetched()
	run(1500)
	if after := fetched(); after > before+50 {
		t.Errorf("a fetch touches %d rows beside 1,520 completions, %d beside 20", after, before)
	}
}

// A session that throttles or limits a tenant keeps decisions waiting, so it must not read the numbers of all others.
func TestALimitReadsItsTenantAlone(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "select ojs.enqueue('a', p_tenant => 'acme'), ojs.tick()")
	exec(t, d.Pool, "insert into ojs.tally (tenant_id, queue, priority, active) select 't' || n, 'q', 0, 1 from generate_series(1, 5000) n")
	for _, sql := range []string{
		"select count(*)::int from ojs.throttle('acme', p_action => 'concurrency')",
		"select count(*)::int from ojs.limit_concurrency(5, 'globex')",
	} {
		if _, rows := work(t, d.Pool, sql); rows > 1000 {
			t.Errorf("%s read or wrote %d rows", sql, rows)
		}
	}
}
