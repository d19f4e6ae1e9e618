package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

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
func CheckSchema(ctx context.Context, pool *pgxpool.Pool) error {
	return checkSchema(ctx, pool, checkTimeout)
}

func checkSchema(ctx context.Context, pool *pgxpool.Pool, timeout time.Duration) error {
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

const recreateAdvice = "its tables were made by a build before the first release. Its jobs can be carried over (docs/operate/upgrade.md). " +
	`To begin anew, which deletes all jobs: psql -c "drop schema ojs cascade", then: ojs-pg migrate up`

const emptyAdvice = "there is a schema ojs without the rows that belong to it, as a dump of the schema alone makes it (pg_dump -s). " +
	`Take an empty database, or drop the schema: psql -c "drop schema ojs cascade". Then: ojs-pg migrate up`

// checkFit returns ErrUnfit if a restore has left out roles, owners, policies or grants that
// servers need.
func checkFit(ctx context.Context, pool *pgxpool.Pool) error {
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

// denied returns the error for a role that may not use the schema: ErrUnfit if its group
// ojs_service may not use it either, and else ErrSchema, with the advice to make the role a member
// of that group.
func denied(ctx context.Context, pool *pgxpool.Pool, refused *pgconn.PgError) error {
	var closed bool
	err := pool.QueryRow(ctx, `
		select coalesce(pg_has_role(g, 'usage') or not has_schema_privilege(g, 'ojs', 'usage'), true)
		from (select to_regrole('ojs_service')::oid) r(g)`).Scan(&closed)
	if err == nil && closed {
		return fmt.Errorf("%w (%s). %s", ErrUnfit, refused.Message, unfitAdvice)
	}
	return fmt.Errorf("%w, or its role may not use it: grant ojs_service to the role in DATABASE_URL (%s)", ErrSchema, refused.Message)
}
