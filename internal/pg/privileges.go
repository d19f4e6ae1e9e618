package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// RoleError means that the database has the schema, and that the login may not use it as servers
// and operators do.
type RoleError struct {
	Login  string
	Groups []string // group roles of the schema whose rights the login has, by name; empty: of no group
}

// Error says which rights the login has, and what a server needs. Commands for operators print
// their own advice.
func (e *RoleError) Error() string {
	return e.Holds() + ". A server needs a login that is a member of ojs_service"
}

// Holds returns the sentence that says which rights the login has, without a full stop.
func (e *RoleError) Holds() string {
	groups := strings.Join(e.Groups, " and ")
	switch {
	case len(e.Groups) == 0:
		return fmt.Sprintf("login %s has the rights of no group of ojs-pg, so that it may not use schema ojs", e.Login)
	case groups == "ojs_tenant":
		return fmt.Sprintf("login %s is a tenant's: it is a member of %s only", e.Login, groups)
	default:
		return fmt.Sprintf("login %s is an application's: it is a member of %s only", e.Login, groups)
	}
}

// denied explains why PostgreSQL has refused the role. It returns ErrUnfit if the group that should
// have the rights lacks them, and a RoleError if the role is a member of neither ojs_service nor
// ojs_operator. The catalogs tell, because the refusal reads the same in both cases.
func (d *DB) denied(ctx context.Context, refused *pgconn.PgError) error {
	role := RoleError{}
	var damaged bool
	err := d.pool.QueryRow(ctx, `
		select current_user::text,
			coalesce(array_agg(g.name order by g.nth) filter (where pg_has_role(g.name, 'usage')), '{}'),
			-- Without the groups, or with groups that may not use the schema, no grant to the role would help.
			count(*) < 6 or not has_schema_privilege(to_regrole('ojs_service')::oid, 'ojs', 'usage')
				or bool_or(g.name in ('ojs_owner', 'ojs_service', 'ojs_operator') and pg_has_role(g.name, 'usage'))
		from (
			select r.rolname::text as name, w.nth
			from unnest('{ojs_owner, ojs_service, ojs_operator, ojs_producer, ojs_worker, ojs_tenant}'::text[])
				with ordinality w(name, nth)
			join pg_catalog.pg_roles r on r.rolname = w.name
			offset 0
		) g`).Scan(&role.Login, &role.Groups, &damaged)
	if err != nil {
		return fmt.Errorf("ask which groups the role in DATABASE_URL is a member of (%s): %w", refused.Message, err)
	}
	if damaged {
		return fmt.Errorf("%w (%s). %s", ErrUnfit, refused.Message, unfitAdvice)
	}
	return &role
}
