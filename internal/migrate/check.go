package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// ErrSchema means that the database does not have the schema that this program was built for. The
// error's text says what to do.
var ErrSchema = errors.New("the database does not have this program's schema")

// ErrRelease is an ErrSchema in the middle of an upgrade: the schema and this program are of
// different releases that may not run together. A server waits until the other half of the upgrade
// is done.
var ErrRelease = fmt.Errorf("%w", ErrSchema)

const checkTimeout = 10 * time.Second

// CheckSchema compares the database's schema with the one compiled into this program, within 10 s.
// It accepts the schema of a later release if that release records that servers of this one may run
// with it. Fails with ErrSchema, ErrRelease or ErrUnfit; the text says what to do.
func CheckSchema(ctx context.Context, pool sqlcgen.DBTX) error {
	return checkSchema(ctx, pool, checkTimeout)
}

func checkSchema(ctx context.Context, pool sqlcgen.DBTX, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	queries := sqlcgen.New(pool)
	hash, err := queries.SchemaHashes(ctx, db.Version())
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case sqlstate.InvalidSchemaName, sqlstate.UndefinedFunction:
			return fmt.Errorf("%w: there is none yet. Run: ojs-pg migrate up", ErrSchema)
		case sqlstate.InsufficientPrivilege:
			return denied(ctx, pool, pgErr)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("read the schema's hash: %w", err)
	case hash.Stored == "":
		return fmt.Errorf("%w: %s", ErrSchema, emptyAdvice)
	case hash.AtVersion == "":
		return fmt.Errorf("%w: it lacks the latest migrations. Run: ojs-pg migrate up", ErrRelease)
	case hash.AtVersion != db.Hash():
		return fmt.Errorf("%w: %s", ErrSchema, recreateAdvice)
	}
	if err := fits(queries.SchemaRelease(ctx)); err != nil {
		return err
	}
	return checkFit(ctx, pool)
}

// fits returns nil if this program's servers may run with the functions that the database has, and
// else ErrRelease.
func fits(has sqlcgen.SchemaReleaseRow, err error) error {
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: it lacks its functions. Run: ojs-pg migrate up", ErrRelease)
	case err != nil:
		return fmt.Errorf("read the schema's release: %w", err)
	case db.CompareReleases(db.Release, has.NeedsServer) < 0:
		return fmt.Errorf("%w: it is of release %s, which needs servers of release %s or later, and this one is of %s. Start a later one",
			ErrRelease, has.Release, has.NeedsServer, db.Release)
	case db.CompareReleases(has.Release, db.Release) < 0:
		return fmt.Errorf("%w: it is of release %s, and this program of %s. Run: ojs-pg migrate up", ErrRelease, has.Release, db.Release)
	case has.Release == db.Release && has.CodeHash != db.OwnCodeHash():
		return fmt.Errorf("%w: its functions are of another build of release %s. Run: ojs-pg migrate up", ErrRelease, db.Release)
	}
	return nil
}

const recreateAdvice = "its tables were made by a build before the first release. " +
	"Its jobs can be carried over (docs/operate/upgrade.md). " +
	`To begin anew, which deletes all jobs: psql -c "drop schema ojs cascade", then: ojs-pg migrate up`

const emptyAdvice = "there is a schema ojs without the rows that belong to it, as a dump of the schema alone makes it (pg_dump -s). " +
	`Take an empty database, or drop the schema: psql -c "drop schema ojs cascade". Then: ojs-pg migrate up`

// checkFit returns ErrUnfit if a restore has left out roles, owners, policies or grants that
// servers need.
func checkFit(ctx context.Context, pool sqlcgen.DBTX) error {
	what, err := sqlcgen.New(pool).Unfit(ctx)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == sqlstate.InsufficientPrivilege:
		return denied(ctx, pool, pgErr)
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
func denied(ctx context.Context, pool sqlcgen.DBTX, refused *pgconn.PgError) error {
	role := RoleError{}
	var damaged bool
	err := pool.QueryRow(ctx, `
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
