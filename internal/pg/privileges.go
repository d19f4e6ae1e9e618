package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// ErrUnfit means that a restore has left out roles, owners, policies or grants (docs/runbooks/backup-and-restore.md).
var ErrUnfit = errors.New("a restore has left out what belongs to the schema")

const unfitAdvice = "Run, as a superuser or as the role that has restored it: ojs-pg migrate up"

// putRight makes again what a restore has left out. Servers are told of a change only where there is one.
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
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case insufficientPrivilege:
			return fmt.Errorf("%w. %s", err, superuserAdvice)
		case undefinedTable, undefinedFunction, undefinedColumn, undefinedObject:
			return fmt.Errorf("%w. %s", err, againAdvice)
		}
	}
	return err
}

const (
	superuserAdvice = "Run it once as a superuser: DATABASE_URL=postgres://SUPERUSER:PASSWORD@HOST/DATABASE ojs-pg migrate up"
	againAdvice     = "Objects are missing, too: restore the dump again, into an empty database, and look at what pg_restore says"
)

// unfit counts what a restore has left out; empty: nothing, or the schema is not complete.
func (m *migrator) unfit(ctx context.Context) (what string, err error) {
	var there bool
	err = m.db.QueryRowContext(ctx, "select to_regprocedure('ojs._unfit()') is not null").Scan(&there)
	if err == nil && there {
		err = m.db.QueryRowContext(ctx, "select coalesce(ojs._unfit(), '')").Scan(&what)
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == insufficientPrivilege {
		return pgErr.Message, nil // the function's owner does not own the schema
	}
	if err != nil {
		return "", fmt.Errorf("look at owners and grants: %w", explain(err))
	}
	return what, nil
}

// checkFit looks whether a restore has left out what servers cannot be without.
func (d *DB) checkFit(ctx context.Context) error {
	what, err := sqlcgen.New(d.pool).Unfit(ctx)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == insufficientPrivilege:
		return d.denied(ctx, pgErr)
	case err != nil:
		return fmt.Errorf("look at owners and grants: %w", err)
	case what != "":
		return fmt.Errorf("%w (%s). %s", ErrUnfit, what, unfitAdvice)
	}
	return nil
}

// denied says whose fault it is that the role may not use the schema: it is no member of its group, or its group may not, either.
func (d *DB) denied(ctx context.Context, refused *pgconn.PgError) error {
	var closed bool
	err := d.pool.QueryRow(ctx, `
		select coalesce(pg_has_role(g, 'usage') or not has_schema_privilege(g, 'ojs', 'usage'), true)
		from (select to_regrole('ojs_service')::oid) r(g)`).Scan(&closed)
	if err == nil && closed {
		return fmt.Errorf("%w (%s). %s", ErrUnfit, refused.Message, unfitAdvice)
	}
	return fmt.Errorf("%w, or its role may not use it: grant ojs_service to the role in DATABASE_URL (%s)", ErrSchema, refused.Message)
}
