package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// ErrUnfit means that a restore has left out roles, owners, policies or grants
// (docs/runbooks/backup-and-restore.md).
var ErrUnfit = errors.New("a restore has left out what belongs to the schema")

const unfitAdvice = "Run, as a superuser or as the role that has restored it: ojs-pg migrate up"

// putRight makes the roles, owners, policies and grants again that a restore has left out. It
// announces no change to servers if nothing is missing.
func (m *migrator) putRight(ctx context.Context) error {
	what, err := m.unfit(ctx)
	if err != nil || what == "" {
		return err
	}
	err = m.withLockRetry(ctx, func() error {
		_, err := m.db.ExecContext(ctx, "select ojs._put_right()")
		return err
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("make again what a restore has left out (%s): %w", what, explain(err))
	switch sqlstate.Of(err) {
	case sqlstate.InsufficientPrivilege:
		return fmt.Errorf("%w. %s", err, superuserAdvice)
	case sqlstate.UndefinedTable, sqlstate.UndefinedFunction, sqlstate.UndefinedColumn, sqlstate.UndefinedObject:
		return fmt.Errorf("%w. %s", err, againAdvice)
	}
	return err
}

const (
	superuserAdvice = "Run it once as a superuser: DATABASE_URL=postgres://SUPERUSER:PASSWORD@HOST/DATABASE ojs-pg migrate up"
	againAdvice     = "Objects are missing, too: restore the dump again, into an empty database, and look at what pg_restore says"
)

// unfit lists how many roles, owners, policies and grants are missing; "" if none is, or if the
// schema is incomplete.
func (m *migrator) unfit(ctx context.Context) (what string, err error) {
	var there bool
	err = m.db.QueryRowContext(ctx, "select to_regprocedure('ojs._unfit()') is not null").Scan(&there)
	if err == nil && there {
		err = m.db.QueryRowContext(ctx, "select coalesce(ojs._unfit(), '')").Scan(&what)
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == sqlstate.InsufficientPrivilege {
		return pgErr.Message, nil // the function's owner does not own the schema
	}
	if err != nil {
		return "", fmt.Errorf("look at owners and grants: %w", explain(err))
	}
	return what, nil
}
