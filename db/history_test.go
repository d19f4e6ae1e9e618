package db_test

import (
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// since returns by how much three counters have grown within some time: jobs enqueued, jobs completed,
// and failed attempts. It counts all jobs, or those of a queue or a tenant.
func since(t *testing.T, d *pgtest.DB, queue, tenant, span string) [3]int64 {
	t.Helper()
	return [3]int64(list[int64](t, d.Operator(), `
		select unnest(array[c.entered, c.completed, c.failed])
		from (select row(sum(t.total), sum(t.dispatched), sum(t.completed), sum(t.cancelled), sum(t.failed_jobs),
				sum(t.failed))::ojs.counts as now
			from (select * from ojs.tally union all select * from ojs._recent()) t
			where $1 in ('', t.queue) and $2 in ('', t.tenant_id)) n
		cross join lateral ojs._counts_since($1, $2, n.now, ojs.now() - $3::interval) c`, queue, tenant, span))
}

// An hour with a job each minute, a day in which nothing comes, and another hour. What is known by the minute at first is known by the
// hour later, and the numbers stay right.
func TestHistoryTellsWhatCameAndWentWithinSomeTime(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, now := d.Service(), noon
	d.SetNow(now)
	minutes := func(n int) {
		t.Helper()
		for range n {
			exec(t, service, "select ojs.enqueue('a', p_queue => 'q', p_tenant => 'acme')")
			exec(t, service, "select ojs.ack(id) from ojs.fetch('{q}', 1)")
			now = now.Add(time.Minute)
			d.SetNow(now)
			exec(t, service, "select ojs.tick()")
		}
	}
	grew := func(what, queue, tenant, span string, want int64) {
		t.Helper()
		if got := since(t, d, queue, tenant, span); got != [3]int64{want, want, 0} {
			t.Errorf("%s: within %s it grew by %v, want %d", what, span, got, want)
		}
	}
	keys := [][3]string{{"all", "", ""}, {"the queue", "q", ""}, {"the tenant", "", "acme"}}
	minutes(60)
	for _, k := range keys {
		grew(k[0], k[1], k[2], "1 minute", 1)
		grew(k[0], k[1], k[2], "30 minutes", 30)
		grew(k[0], k[1], k[2], "1 day", 60)
	}
	grew("another tenant", "", "globex", "1 day", 0)
	if n := one[int](t, d.Pool, "select count(*) from ojs.history"); n != 180 {
		t.Errorf("%d rows are kept, want one for each minute of each of the three", n)
	}

	for range 24 {
		now = now.Add(time.Hour)
		d.SetNow(now)
		exec(t, service, "select ojs.tick()")
	}
	exec(t, service, `select ojs.enqueue('a', p_queue => 'q', p_tenant => 'globex', p_retry => '{"max_attempts": 1}')`)
	exec(t, service, `select ojs.nack(id, '{"message": "m"}') from ojs.fetch('{q}', 1)`)
	minutes(59)
	for _, k := range keys {
		grew(k[0], k[1], k[2], "10 minutes", 10)
	}
	if got := since(t, d, "q", "", "2 hours"); got != [3]int64{60, 59, 1} {
		t.Errorf("within 2 hours the queue grew by %v, want 60 jobs of which 59 were completed and one failed", got)
	}
	if got := since(t, d, "q", "", "2 days"); got != [3]int64{120, 119, 1} {
		t.Errorf("within 2 days the queue grew by %v, want 120 jobs of which 119 were completed and one failed", got)
	}
	if n := one[int](t, d.Pool, "select count(*) from ojs.history where at < $1", noon.Add(20*time.Hour)); n > 6 {
		t.Errorf("%d rows of the first day are kept, want one for each hour of each of the three", n)
	}
	grew("the tenant", "", "acme", "26 hours", 119)
}

// What is older than 31 days goes, but for the latest row of each, without which its numbers would seem to have grown just now.
func TestHistoryIsKeptForAMonth(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	for i, tenant := range []string{"old", "new", "new"} {
		d.SetNow(noon.Add(time.Duration(i) * 40 * 24 * time.Hour))
		exec(t, service, "select ojs.enqueue('a', p_queue => $1, p_tenant => $1)", tenant)
		exec(t, service, "select ojs.tick()")
	}
	if got := lines(t, d.Pool, "select distinct tenant_id from ojs.history where tenant_id <> '' order by 1"); len(got) != 2 {
		t.Errorf("history is kept of %v, want of both", got)
	}
	if n := one[int](t, d.Pool, "select count(*) from ojs.history where tenant_id = 'new'"); n != 1 {
		t.Errorf("%d rows are kept of new, want its latest", n)
	}
	if got := since(t, d, "", "old", "1 day"); got != [3]int64{} {
		t.Errorf("the tenant that did nothing grew by %v within a day", got)
	}
}
