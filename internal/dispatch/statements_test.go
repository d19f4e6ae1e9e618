package dispatch

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/jobrow"
)

// A row about an element that was not sent, or about a request out of order, is an error, and no caller
// gets its job: the job with its lease would go to another worker.
func TestRowsOutOfTheirPlaceAreRefused(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.enqueue('x')")
	const sent = 2
	readers := map[string]struct {
		columns string
		read    func(pgx.Rows) error
	}{
		"fetched": {"n, pool, " + jobrow.Columns, func(rows pgx.Rows) error {
			return (&part{requests: make([]*request, sent)}).read(rows)
		}},
		"acknowledged": {"n, " + jobrow.Columns, func(rows pgx.Rows) error {
			_, err := readAcked(rows, []ack{{Settlement: &Settlement{}}, {Settlement: &Settlement{}}})
			return err
		}},
		"settled": {"n - 1, null, null, null, " + jobrow.Columns, func(rows pgx.Rows) error {
			_, err := b.readSettled(rows, sent)
			return err
		}},
	}
	rows := func(columns, places string) pgx.Rows {
		t.Helper()
		rows, err := b.db.Pool.Query(t.Context(), "select "+columns+" from ojs.job, unnest($1::text::int[]) n", places)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	for name, r := range readers {
		if err := r.read(rows(r.columns, "{1,2}")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, places := range []string{"{-1}", "{0,1}", "{1,3}", "{1,2,2147483647}"} {
			if err := r.read(rows(r.columns, places)); err == nil || !strings.Contains(err.Error(), "of 2") {
				t.Errorf("%s: places %s: %v", name, places, err)
			}
		}
	}
	p := &part{requests: make([]*request, sent)}
	if err := p.read(rows("n, pool, "+jobrow.Columns, "{1,2,1}")); err == nil || p.jobs != nil || p.runs != nil {
		t.Errorf("a job of request 1 after one of request 2: %v, %+v", err, p.fetched)
	}
}
