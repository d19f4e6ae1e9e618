package migrate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestCheckSchemaDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // done already when the test passes
	if _, err := tx.Exec(t.Context(), "lock table ojs.schema_hash"); err != nil {
		t.Fatal(err)
	}
	if err := migrate.CheckSchemaWithin(t.Context(), d.Open().Pool(), 300*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
