package db_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// leases is a database with available jobs, whose clock the test moves.
type leases struct {
	*pgtest.DB
	t *testing.T
}

func newLeases(t *testing.T, jobs int) leases {
	d := leases{pgtest.New(t), t}
	d.at(0)
	exec(t, d.Service(), `
		insert into ojs.jobs (tenant_id, type, priority) select 't' || i % 3, 'a', i % 2 from generate_series(1, $1) i`, jobs)
	return d
}

func (d leases) at(after time.Duration) { d.SetNow(noon.Add(after)) }

func (d leases) tick(what string, limit int, want string) {
	d.t.Helper()
	if got := tick(d.t, d.Service(), limit); got != want {
		d.t.Errorf("%s a tick promoted and reaped %s, want %s", what, got, want)
	}
}

func (d leases) active() int {
	d.t.Helper()
	return one[int](d.t, d.Pool, "select count(*) from ojs.job where state = 'active'")
}

// What is handed out leaves a row for 128 jobs of one kind, whatever their tenants, which is the clock's reminder, too.
func TestLeaseRows(t *testing.T) {
	t.Parallel()
	d := newLeases(t, 600)
	given := jobs(t, d.Service(), "ojs.fetch('{default}', 600)")
	if got := one[string](t, d.Pool, `
		select count(*) || ' ' || sum(jobs) || ' ' || max(jobs) || ' '
			|| bool_and(jobs = cardinality(ids) and jobs = cardinality(tenants))
		from ojs.lease`); got != "6 600 128 true" {
		t.Errorf("leases: %s, want 6 rows of 600 jobs, 128 at most, with lists of that length", got)
	}
	order := list[string](t, d.Pool, `
		select u.id::text from ojs.lease l cross join lateral unnest(l.ids) with ordinality u(id, n) order by l.turn + u.n`)
	for i, j := range given {
		if j.ID != order[i] {
			t.Fatalf("job %d of the answer is %s, and in the order of decisions %s", i, j.ID, order[i])
		}
	}
	if got := one[int](t, d.Pool, `
		select count(*) from ojs.lease l cross join lateral unnest(l.ids, l.tenants) u(id, tenant_id)
		join ojs.job j on j.id = u.id and j.tenant_id = u.tenant_id
			and j.lease_expires_at = l.due_at and j.priority = l.priority`); got != 600 {
		t.Errorf("%d of 600 jobs stand beside their tenant, under the time at which their lease ends", got)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.timer"); got != 0 {
		t.Errorf("%d timers were set at hand-out", got)
	}
}

// Leases are looked at once each, in bites, and what ends at one instant is one bite.
func TestLeasesAreLookedAtInBites(t *testing.T) {
	t.Parallel()
	d := newLeases(t, 100)
	for i := range 10 {
		d.at(time.Duration(i) * time.Second)
		jobs(t, d.Service(), "ojs.fetch('{default}', 10)")
	}
	d.at(29 * time.Second)
	d.tick("before any lease ends", 1000, "0 0")
	d.at(time.Minute)
	for _, want := range []string{"0 30", "0 30", "0 30", "0 10", "0 0"} {
		d.tick("of at most 25 jobs", 25, want)
	}
	if d.active() != 0 {
		t.Errorf("%d jobs are still active", d.active())
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.timer"); got != 0 {
		t.Errorf("%d timers are left", got)
	}
}

// A caller may stay in its transaction for longer than its leases last.
func TestLeasesThatCommitLate(t *testing.T) {
	t.Parallel()
	d := newLeases(t, 40)
	jobs(t, d.Service(), "ojs.fetch('{default}', 10)")
	early, late := begin(t, d.Service()), begin(t, d.Service())
	exec(t, late, "select pg_catalog.pg_current_xact_id()")
	jobs(t, early, "ojs.fetch('{default}', 10)")
	d.at(time.Minute)
	d.tick("beside an open transaction", 1000, "0 10")
	mark := one[time.Time](t, d.Pool, "select lease_at from ojs.clock_mark order by rev desc limit 1")
	if !mark.Equal(noon.Add(time.Minute)) {
		t.Fatalf("the mark is at %s, so this test tests nothing", mark)
	}
	commit(t, early)
	d.tick("after the commit", 1000, "0 10")
	d.tick("once more", 1000, "0 0")
	// Handed out by a transaction that is older than the mark.
	rows := jobs(t, late, "ojs.fetch('{default}', 5)")
	d.at(2 * time.Minute)
	d.tick("beside the older one", 1000, "0 0")
	commit(t, late)
	d.tick("after the older one", 1000, fmt.Sprintf("0 %d", len(rows)))
	// The wall clock is set back by an hour.
	d.at(-time.Hour)
	jobs(t, d.Service(), "ojs.fetch('{default}', 5)")
	d.at(-time.Hour + time.Minute)
	d.tick("after the clock was set back", 1000, "0 5")
}

// A lease may last for longer than the journal is kept.
func TestLeasesOutliveTheJournal(t *testing.T) {
	t.Parallel()
	d := newLeases(t, 2)
	jobs(t, d.Service(), "ojs.fetch('{default}', 1, p_visibility_timeout_ms => 604800000)")
	tick(t, d.Service(), 1000)
	d.at(49 * time.Hour)
	jobs(t, d.Service(), "ojs.fetch('{default}', 1)")
	d.at(50 * time.Hour)
	for range 20 {
		tick(t, d.Service(), 1000)
		if one[int](t, d.Pool, "select count(*) from ojs.lease where at = $1", noon) == 0 {
			break
		}
		exec(t, d.Service(), "select from ojs.enqueue('a', p_queue => 'other')")
	}
	left := lines(t, d.Pool, `
		select (select count(*) from ojs.lease where at = $1), kind, due_at = $1 + interval '7 days', cardinality(ids)
		from ojs.timer`, noon)
	if !slices.Equal(left, []string{"0 lease true 1"}) {
		t.Errorf("of the lease of a week are left %v", left)
	}
	d.at(7 * 24 * time.Hour)
	d.tick("at its end", 1000, "0 1")
}

// A heartbeat does not put off the end of an attempt, and one that has locked a row for a moment is waited for no longer than that.
func TestTheEndOfAnAttempt(t *testing.T) {
	t.Parallel()
	d := newLeases(t, 0)
	exec(t, d.Service(), "select ojs.enqueue('a', p_timeout_ms => 60000)")
	held := oneJob(t, d.Service(), "ojs.fetch('{default}', 1, 'w')")
	place := func() string {
		t.Helper()
		return one[string](t, d.Pool, `
			select xmin || ' ' || ctid || ' ' || xmax || ' ' || lease_expires_at from ojs.job where id = $1`, held.ID)
	}
	beat := func(listed int) {
		t.Helper()
		if got := jobs(t, d.Service(), "ojs.heartbeat('w', $1, 600000)", []string{held.ID}); len(got) != listed {
			t.Errorf("a heartbeat lists %d jobs, want %d", len(got), listed)
		}
	}
	d.at(10 * time.Second)
	beat(1)
	if got := one[time.Time](t, d.Pool, "select lease_expires_at from ojs.job"); !got.Equal(noon.Add(time.Minute)) {
		t.Errorf("a heartbeat extended the lease to %s, want the end of the attempt", got)
	}
	// Its lease goes on, and cannot go on for longer: the row stays as it is.
	before := place()
	d.at(50 * time.Second)
	beat(1)
	if got := place(); got != before {
		t.Errorf("a heartbeat that extends nothing has changed the row from %s to %s", before, got)
	}
	tx := begin(t, d.Service())
	exec(t, tx, "select from ojs.cancel($1)", held.ID)
	d.at(time.Minute)
	beat(0)
	d.tick("while somebody has the row locked", 1000, "0 0")
	again := one[time.Time](t, d.Pool, "select due_at from ojs.timer where kind = 'lease'")
	if after := again.Sub(noon.Add(time.Minute)); after != 100*time.Millisecond {
		t.Errorf("the clock looks again %s after the end of the attempt, want 100ms", after)
	}
	rollback(t, tx)
	before = place()
	beat(0)
	if got := place(); got != before {
		t.Errorf("a heartbeat at the limit has changed the row from %s to %s", before, got)
	}
	d.at(time.Minute + 100*time.Millisecond)
	d.tick("after that", 1000, "0 1")
}

// The marks stay small beside a writer with many savepoints, and the journal leaves beside it.
func TestMarksBesideAnOpenWriter(t *testing.T) {
	t.Parallel()
	d := newLeases(t, 20)
	jobs(t, d.Service(), "ojs.fetch('{default}', 10)")
	open := begin(t, d.Service())
	exec(t, open, "select from ojs.enqueue('late', p_queue => 'late')")
	savepoints(t, open, 3000)
	for i := range 5 {
		d.at(time.Duration(i) * time.Minute)
		jobs(t, d.Service(), "ojs.fetch('{default}', 2)")
		tick(t, d.Service(), 1000)
	}
	if got := one[int](t, d.Pool, "select max(pg_column_size(m)) from ojs.clock_mark m"); got > 1000 {
		t.Errorf("the clock's mark takes %d bytes", got)
	}
	const old = `select (select count(*) from ojs.journal where at < $1) + (select count(*) from ojs.lease where at < $1)
		+ (select count(*) from ojs.release where at < $1)`
	if one[int](t, d.Pool, old, noon.Add(time.Hour)) < 10 {
		t.Fatal("there is nothing to prune")
	}
	d.at(30 * time.Hour)
	for i := range 50 {
		exec(t, d.Service(), "select from ojs.enqueue('a', p_queue => 'other')")
		tick(t, d.Service(), 1000)
		if one[int](t, d.Pool, old, noon.Add(time.Hour)) == 0 {
			break
		}
		if i == 49 {
			t.Errorf("beside an open writer stay %v", lines(t, d.Pool, `
				select 'journal', xid, at from ojs.journal where at < $1
				union all
				select 'lease', xid, at from ojs.lease where at < $1`, noon.Add(time.Hour)))
		}
	}
	commit(t, open)
	if got := jobs(t, d.Service(), "ojs.fetch('{late}', 2)"); len(got) != 1 {
		t.Errorf("of the open writer's jobs %v were handed out, want one", got)
	}
	for range 50 {
		exec(t, d.Service(), "select from ojs.enqueue('a', p_queue => 'other')")
		tick(t, d.Service(), 1000)
		if one[int](t, d.Pool, old, noon.Add(time.Hour)) == 0 {
			return
		}
	}
	t.Error("the journal of the writer that committed late stays")
}

func savepoints(t *testing.T, tx pgx.Tx, n int) {
	t.Helper()
	exec(t, tx, "create temporary table sub (i int)")
	exec(t, tx, fmt.Sprintf(`do $$
		begin
			for i in 1 .. %d loop
				begin
					insert into sub values (i);
				exception when division_by_zero then null;
				end;
			end loop;
		end $$`, n))
}

// A heartbeat that names an id of two tenants without saying which is refused like any other call.
func TestHeartbeatOfAnIDInTwoTenants(t *testing.T) {
	t.Parallel()
	service := pgtest.New(t).Service()
	const id = "01900000-0000-7000-8000-000000000001"
	for _, tenant := range []string{"acme", "beta"} {
		if _, err := service.Exec(t.Context(), `select ojs.enqueue('x.y', p_id => $1, p_tenant => $2)`, id, tenant); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := service.Exec(t.Context(), `select ojs.fetch('{default}', 2, 'w')`); err != nil {
		t.Fatal(err)
	}
	refused(t, service, "OJ411", "select ojs.heartbeat('w', array[$1::uuid])", id)
	if _, err := service.Exec(t.Context(), `select ojs.heartbeat('w', array[$1::uuid], p_tenant => 'acme')`, id); err != nil {
		t.Error(err)
	}
}
