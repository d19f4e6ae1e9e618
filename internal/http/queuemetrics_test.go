package httpapi

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// However many ask for metrics, the database is asked once in a while; however many queues there are, they become so many series.
func TestQueueMetrics(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	m := newQueueMetrics(r.db.Open(), slog.New(slog.DiscardHandler), MetricTenants)
	read := func() (queues []string) {
		t.Helper()
		n, err := m.read()
		if err != nil {
			t.Fatal(err)
		}
		for i := range n.queues {
			queues = append(queues, n.queues[i].Queue)
		}
		return queues
	}
	r.sql("select ojs.enqueue('a', p_queue => 'a')")
	if got := read(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the queues are %q", got)
	}
	r.sql("select ojs.enqueue('a', p_queue => 'b')")
	m.next = m.next.AddDate(1, 0, 0)
	if got := read(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the database was asked again, and said %q", got)
	}
	m.next = m.next.AddDate(-2, 0, 0)
	if got := read(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the database was not asked again, but said %q", got)
	}
	before := time.Now()
	m.next = m.next.AddDate(-2, 0, 0)
	if read(); !m.next.After(before) {
		t.Error("who asks next asks the database again")
	}

	for _, queue := range []string{"b", "c", "d"} {
		r.sql("select ojs.enqueue('a', p_queue => $1)", queue)
	}
	r.sql("select ojs.fetch('{c,d}', 2)")
	rows, err := sqlcgen.New(r.db.Pool).QueueGauges(t.Context(), 2)
	if err != nil || len(rows) != 3 {
		t.Fatalf("%+v, %v: want two queues and the rest", rows, err)
	}
	if rest := rows[0]; rest.Queue != "_other" || rest.Available != 0 || rest.Active != 2 || rest.DispatchRatio != 1 {
		t.Errorf("the rest is %+v", rest)
	}
	if b := rows[2]; b.Queue != "b" || b.Available != 2 || b.OldestWaitSeconds <= 0 || b.DispatchRatio != 0 {
		t.Errorf("b is %+v", b)
	}
}

// The tenants that came first stay in, whichever come after them and whatever their names; the others are added up, and no
// counter goes back.
func TestMT006MT154TenantMetricsKeepTheirMembers(t *testing.T) {
	t.Parallel()
	r := startOperators(t)
	sql := sqlcgen.New(r.db.Pool)
	read := func(tenants int32) map[string]sqlcgen.TenantGaugesRow {
		t.Helper()
		r.sql("select ojs.tick()")
		rows, err := sql.TenantGauges(t.Context(), tenants)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]sqlcgen.TenantGaugesRow{}
		for _, row := range rows {
			got[row.TenantID+"/"+row.Queue] = row
		}
		return got
	}
	enqueue := func(tenant, queue string) {
		t.Helper()
		r.sql("update ojs.tally_mark set at = '-infinity'") // the roll-up is not to wait for two seconds
		r.sql(`select ojs.enqueue('a', p_queue => $2, p_tenant => $1, p_retry => '{"on_exhaustion": "dead_letter"}')`, tenant, queue)
	}
	names := func(got map[string]sqlcgen.TenantGaugesRow) string { return fmt.Sprint(slices.Sorted(maps.Keys(got))) }
	enqueue("zoo", "a")
	read(2)
	enqueue("mid", "a")
	read(2)
	for range 2 {
		enqueue("ape", "a")
	}
	enqueue("ant", "b")
	enqueue("zoo", "b")
	got := read(2)
	if want := "[_other/ _other/_other mid/ mid/a zoo/ zoo/a zoo/b]"; names(got) != want {
		t.Fatalf("series are of %s, want %s", names(got), want)
	}
	if n := got["_other/_other"]; n.Enqueued != 3 || n.Depth != 3 {
		t.Errorf("the others are %+v", n)
	}
	// Of more queues than twenty, the twenty that came first.
	for i := range 25 {
		enqueue("mid", fmt.Sprintf("q%02d", i))
	}
	if got := read(2); len(got) != 7+20 || got["mid/_other"].Enqueued != 6 {
		t.Errorf("series are of %s, mid's other queues %+v", names(got), got["mid/_other"])
	}

	r.sql("select ojs.fetch('{a}', 4)")
	r.sql(`select ojs.nack(id, '{"message": "x", "retryable": false}', p_tenant => tenant_id) from ojs.jobs
		where state = 'active' and tenant_id in ('zoo', 'mid')`)
	r.sql("select ojs.ack(id, p_tenant => tenant_id) from ojs.jobs where state = 'active' and tenant_id = 'ape'")
	got = read(2)
	if n := got["zoo/a"]; n.Enqueued != 1 || n.Processed != 1 || n.Failed != 1 || n.Depth != 0 {
		t.Errorf("after a failure it is %+v", n)
	}
	if n := got["_other/_other"]; n.Processed != 2 || n.Failed != 0 {
		t.Errorf("after two completions it is %+v", n)
	}
	if zoo, rest := got["zoo/"].Share, got["_other/"].Share; zoo != 0.25 || rest != 0.5 {
		t.Errorf("zoo's share is %v, that of the others %v", zoo, rest)
	}
	// A dead letter that is retried in another queue counts there, and was enqueued here all the same.
	r.sql(`select ojs.retry_dead_letter(id, '{"queue": "b"}', tenant_id) from ojs.jobs where state = 'discarded' and tenant_id = 'zoo'`)
	got = read(2)
	if a, b := got["zoo/a"], got["zoo/b"]; a.Enqueued != 1 || b.Enqueued != 2 || b.Depth != 2 {
		t.Errorf("after it moved, a is %+v and b %+v", a, b)
	}
}
