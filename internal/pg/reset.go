package pg

import (
	"context"
	"fmt"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Reset removes everything that clients have put into the database at url, whose role must be
// a superuser: for conformance runs. It tries again while servers are in its way, until ctx ends.
func Reset(ctx context.Context, url string) error {
	conn, err := connectAlone(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to reset the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		err := sqlcgen.New(conn).Reset(ctx)
		if lockConflict(err) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("reset the database: %w", err)
		}
		return nil
	}
}
