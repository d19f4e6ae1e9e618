package db_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// However many jobs others have, a tenant's reading examines the same rows: its own.
func TestReadingCostsWhatIsOwn(t *testing.T) {
	t.Parallel()
	n := newNeighbours(t)
	sources := tenantSources(t, n.DB, n.theirs["active"])
	read := func() map[string]float64 {
		t.Helper()
		tx := begin(t, n.As("acme"))
		defer rollback(t, tx)
		got := map[string]float64{}
		for _, settings := range leading[:3] {
			lead(t, tx, settings)
			for _, source := range sources {
				if settings == leading[0] && !strings.HasPrefix(source, "ojs.jobs") {
					continue // small tables are read as a whole
				}
				for _, condition := range []string{
					"", " where queue = 'shared'", " where queue = 'secret.queue'",
					" where tenant_id = 'globex'", " where id = '" + someID + "'",
				} {
					sql := "select count(*) from " + source + condition
					exec(t, tx, "savepoint s")
					if _, err := tx.Exec(t.Context(), sql); err != nil { // has no such column
						exec(t, tx, "rollback to s")
						continue
					}
					for path, numbers := range planNumbers(t, tx, sql) {
						switch key := path[strings.LastIndex(path, "/")+1:]; {
						case key == "pages":
							got[settings+": "+sql+": pages"] = numbers[0]
						case strings.Contains(key, "Rows Removed") || key == "Actual Rows" || key == "Heap Fetches":
							for _, number := range numbers {
								got[settings+": "+sql+": rows"] += number
							}
						}
					}
				}
			}
		}
		return got
	}
	secretJobs(t, n.DB, 500)
	few := read()
	secretJobs(t, n.DB, 5000)
	many := read()
	if len(few) < 100 || len(few) != len(many) {
		t.Errorf("%d and %d plans", len(few), len(many))
	}
	// Indexes have become higher, and plans may have become others.
	grown := func(sql string) bool { return many[sql] > 1.3*few[sql]+20 }
	// A read after a vacuum or another test's change reads catalogs, too, and one after a roll-up looks for each transaction that was open
	// then, in whatever database. What grows with foreign jobs shows every time.
	for again := 0; again < 5 && slices.ContainsFunc(slices.Collect(maps.Keys(few)), grown); again++ {
		exec(t, n.Service(), "select ojs.enqueue('secret.type', p_queue => 'secret.queue', p_tenant => 'globex')")
		tick(t, n.Service(), 1000)
		for sql, number := range read() {
			many[sql] = min(many[sql], number)
		}
	}
	for sql := range few {
		if grown(sql) {
			t.Errorf("%s: %v beside 500 foreign jobs, %v beside 5500", sql, few[sql], many[sql])
		}
	}
}
