package pg_test

import (
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Times are UTC wherever the server stands: rows are written as answers without being looked at.
func TestTimesAreUTC(t *testing.T) {
	t.Parallel()
	db, err := pg.Open(t.Context(), pg.Config{URL: pgtest.New(t).ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	var at *time.Time
	if err := db.Pool().QueryRow(t.Context(), "select now()").Scan(&at); err != nil || at.Location() != time.UTC {
		t.Errorf("%v in %v, %v", at, at.Location(), err)
	}
}
