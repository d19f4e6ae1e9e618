package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func connected(t *testing.T, address string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// busy enqueues, fetches and acknowledges jobs of another queue until stop is called.
func busy(t *testing.T, db *pgxpool.Pool) (stop func()) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			for ctx.Err() == nil {
				for _, sql := range []string{
					"select ojs.enqueue('a', p_queue => 'load', p_tenant => 'acme') from generate_series(1, 5)",
					"select ojs.ack(f.id, f.lease) from ojs.fetch('{load}', 3) f",
					"select ojs.fetch('{load}', 1)",
					"select ojs.tick()",
				} {
					// Not with ctx: a statement that is cut off goes on for a moment in PostgreSQL, and the decisions after
					// it would be made without the lane, out of order.
					if _, err := db.Exec(t.Context(), sql); err != nil {
						t.Errorf("%s: %v", sql, err)
						return
					}
				}
			}
		})
	}
	pgtest.Eventually(t, "jobs of the load are done", func() bool {
		return pgtest.One[int](t, db, "select count(*)::int from ojs.job where queue = 'load' and state = 'completed'") > 100
	})
	return func() {
		end()
		running.Wait()
	}
}

// A base backup that is taken while jobs come and go is complete when its server has started. Nothing has
// to be repaired: completed jobs stay completed, waiting jobs are handed out in the same order as in the
// original, and active jobs stay with their workers or come back.
func TestABaseBackupIsRestored(t *testing.T) {
	t.Parallel()
	from := pgtest.NewPrivate(t, nil)
	db := connected(t, from.URL)
	pgtest.Exec(t, db, "select ojs.configure_tenant('acme', p_weight => 3)")
	pgtest.Exec(t, db, `insert into ojs.jobs (tenant_id, type, queue)
		select unnest('{acme,globex}'::text[]), 'a', 'mail' from generate_series(1, 30)`)
	pgtest.Exec(t, db, "select ojs.enqueue('late', p_queue => 'mail', p_scheduled_at => ojs.now() + interval '1 day')")
	pgtest.Exec(t, db, "select ojs.ack(f.id, f.lease) from ojs.fetch('{mail}', 7) f")
	pgtest.Exec(t, db, "select ojs.tick()")
	pgtest.Exec(t, db, "select ojs.fetch('{mail}', 4, 'lost', 300000)")
	pgtest.Exec(t, db, "select ojs.fetch('{mail}', 5, 'alive', 3600000)")
	stop := busy(t, db)
	// What has not committed when the backup is taken has not happened.
	open, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, open, "select ojs.enqueue('never', p_queue => 'mail', p_tenant => 'acme')")
	pgtest.Exec(t, open, "select ojs.ack(id, lease) from ojs.job where worker_id = 'alive' order by id limit 1")
	restored := from.Backup()
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	const next = "select id::text from ojs.fetch('{mail}', 40, 'later', 3600000)"
	want := pgtest.List[string](t, db, next)
	restored.Start()
	testBaseBackup(t, restored, want, next)
}

// testBaseBackup looks at what was restored, ten minutes later. want is what the next fetch has handed out where the backup was taken.
func testBaseBackup(t *testing.T, restored *pgtest.Private, want []string, next string) {
	db := connected(t, restored.URL)
	pgtest.Exec(t, db, `create or replace function ojs.now() returns timestamptz language sql volatile set search_path = pg_catalog, pg_temp
		as $$ select clock_timestamp() + interval '10 minutes' $$`)
	does := func(args ...string) string {
		var said bytes.Buffer
		run(append(append([]string{"ojs-pg"}, args...), "--database-url", restored.URL), &said, &said)
		return said.String()
	}
	if said := does("migrate", "up"); !strings.HasPrefix(said, "nothing to do") {
		t.Errorf("migrate up says %s", said)
	}
	if said := does("doctor"); !strings.Contains(said, "No server is on duty") || strings.Contains(said, "was restored") {
		t.Errorf("doctor says %s", said)
	}
	done := pgtest.List[string](t, db, "select id::text from ojs.job where state = 'completed'")
	last := pgtest.One[int](t, db, "select max(seq)::int from ojs.job where queue = 'mail'")
	newest := pgtest.One[string](t, db, "select id::text from ojs.job order by id desc limit 1")

	handedOut := pgtest.List[string](t, db, next) // no tick so far
	if len(want) != 40 || !slices.Equal(handedOut, want) {
		t.Fatalf("handed out: %s, want %s", handedOut, want)
	}
	pgtest.Eventually(t, "jobs whose leases have ended come back", func() bool {
		pgtest.Exec(t, db, "select ojs.tick()")
		return pgtest.One[int](t, db, "select count(*)::int from ojs.job where state = 'active'") == 45
	})
	const counted = `select format('%s %s %s %s', sum(available), sum(active), sum(scheduled), sum(completed))
		from ojs.queue_stats where queue = 'mail'`
	if got := pgtest.One[string](t, db, counted); got != "8 45 1 7" {
		t.Errorf("jobs available, active, scheduled and completed: %s", got)
	}
	const differ = `select count(*)::int from ojs.queue_stats q cross join lateral (
			select count(*) filter (where j.state = 'available') as available, count(*) filter (where j.state = 'active') as active,
				count(*) filter (where j.state = 'completed') as completed from ojs.job j where j.queue = q.queue) j
		where (q.available, q.active, q.completed) is distinct from (j.available, j.active, j.completed)`
	pgtest.Exec(t, db, "select ojs.enqueue('new', p_queue => 'mail', p_tenant => 'globex') from generate_series(1, 3)")
	const ack = "select count(a.id)::int from ojs.job j cross join lateral ojs.ack(j.id, j.lease) a where j.state = 'active'"
	count := func(sql string, args ...any) int { return pgtest.One[int](t, db, sql, args...) }
	for what, n := range map[string][2]int{
		"queues whose numbers are not those of their jobs": {count(differ), 0},
		"jobs that come back with the error of their attempt": {count(`select count(*)::int from ojs.job
			where state = 'available' and attempt = 1 and errors -> -1 ->> 'worker_id' = 'lost'`), 4},
		"jobs that a worker ends which is still there": {count(ack + " and j.worker_id = 'alive'"), 5},
		"new jobs behind all others": {count(`select count(*)::int from ojs.job where seq > $1 and id > $2`,
			last, newest), 3},
	} {
		if n[0] != n[1] {
			t.Errorf("%d %s, want %d", n[0], what, n[1])
		}
	}
	for more := handedOut; len(more) > 0; handedOut = append(handedOut, more...) {
		more = pgtest.List[string](t, db, "select id::text from ojs.fetch('{mail,load}', 1000)")
	}
	if slices.ContainsFunc(handedOut, func(id string) bool { return slices.Contains(done, id) }) {
		t.Error("what was done is handed out once more")
	}
	count(ack)
	pgtest.Exec(t, db, "select ojs.tick()")
	if got := pgtest.One[string](t, db, counted); got != "0 0 1 63" {
		t.Errorf("afterwards: %s", got)
	}
	if n := count("select count(*)::int from ojs.job where type = 'never' or queue = 'load' and state <> 'completed'"); n != 0 {
		t.Errorf("%d jobs wait, or have never been enqueued", n)
	}
}
