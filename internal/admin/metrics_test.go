package admin

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// However many ask for metrics, the database is asked once in a while; however many queues there are, they become so many series.
func TestQueueMetrics(t *testing.T) {
	t.Parallel()
	r := start(t)
	m := NewQueueMetrics(r.db.Open(), slog.New(slog.DiscardHandler))
	read := func() (queues []string) {
		t.Helper()
		rows, _, err := m.read()
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			queues = append(queues, rows[i].Queue)
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
