package pg

import (
	"context"
	"fmt"
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
		_, err := conn.Exec(ctx, "select ojs._reset()")
		if lockConflict(err) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("reset the database: %w", err)
		}
		return nil
	}
}
