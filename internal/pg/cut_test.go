package pg_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Whatever PostgreSQL does not answer, the end comes.
func TestCut(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db := d.Open()
	const each = 5
	failed := make(chan error, each)
	for range each {
		go func() {
			_, err := db.Pool().Exec(context.Background(), "select pg_sleep(3600)")
			failed <- err
		}()
	}
	d.Eventually("all statements are under way", `
		select count(*) = $1 from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'`, each)
	db.Cut()
	_, late := db.Pool().Exec(context.Background(), "select 1")
	errs := []error{late}
	for range each {
		errs = append(errs, <-failed)
	}
	for _, err := range errs {
		var got *pg.Error
		if !errors.As(db.Err(err), &got) || got.Code != "backend_unavailable" {
			t.Errorf("%v", err)
		}
	}
	db.Close()
}
