package migrate

import (
	"context"
	"fmt"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// Losses counts what is deleted together with the schema of a database.
type Losses struct {
	Database    string
	Waiting     int64 // jobs that have not ended
	Ended       int64
	DeadLetters int64
}

// CountLosses counts the jobs and dead letters of the database at url. It returns nil if the
// database has no schema ojs.
func CountLosses(ctx context.Context, url string) (*Losses, error) {
	conn, err := pg.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to count jobs: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	l := &Losses{}
	there := false
	if err := conn.QueryRow(ctx, "select current_database(), to_regclass('ojs.job') is not null").Scan(&l.Database, &there); err != nil {
		return nil, fmt.Errorf("look for jobs: %w", err)
	}
	if !there {
		return nil, nil //nolint:nilnil // nothing to lose
	}
	err = conn.QueryRow(ctx, `
		select count(*) filter (where finished_at is null), count(*) filter (where finished_at is not null),
			(select count(*) from ojs.dead_letter)
		from ojs.job`).Scan(&l.Waiting, &l.Ended, &l.DeadLetters)
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	return l, nil
}
