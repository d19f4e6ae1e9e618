package setup

import (
	"context"
	"fmt"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// Reset deletes everything that clients have stored in the database at url. The role of the URL
// must be a superuser. It is for conformance runs. While locks of servers are in its way it tries
// again, until ctx ends.
func Reset(ctx context.Context, url string) error {
	conn, err := pg.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to reset the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		err := sqlcgen.New(conn).Reset(ctx)
		if sqlstate.In(err, sqlstate.LockNotAvailable, sqlstate.DeadlockDetected) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("reset the database: %w", err)
		}
		return nil
	}
}
