package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3/database"

	"github.com/ojs-pg/ojs-pg/db"
)

// versions is the store in which goose records the applied migrations: the table ojs.schema_hash.
// The first migration makes the table and its way back drops it. So a dump of schema ojs contains
// the table, and a first migration that fails leaves nothing. While there is no table, the version
// is 0; goose expects a row for version 0, and gets one that is not stored.
type versions struct{ files fs.FS }

func (versions) Tablename() string { return "ojs.schema_hash" }

// TableExists returns true, so that goose does not make the table itself.
func (versions) TableExists(context.Context, database.DBTxConn) (bool, error) { return true, nil }

func (versions) CreateVersionTable(context.Context, database.DBTxConn) error {
	return errors.ErrUnsupported
}

func (v versions) Insert(ctx context.Context, tx database.DBTxConn, req database.InsertRequest) error {
	_, err := tx.ExecContext(ctx, "select ojs._set_schema_hash($1, $2)", req.Version, db.HashOf(v.files, req.Version))
	if err != nil {
		return fmt.Errorf("store the schema's hash: %w", err)
	}
	// All code is to be applied again: a view of all columns of a table has only the columns of the
	// time at which it was made. Until that is done, the owners and grants recorded for the version
	// before are in force.
	_, err = tx.ExecContext(ctx, `
		with code as (delete from ojs.code)
		update ojs.schema_hash h set privileges = b.privileges
		from (select b.privileges from ojs.schema_hash b where b.version < $1 order by b.version desc limit 1) b
		where h.version = $1`, req.Version)
	if err != nil {
		return fmt.Errorf("forget the code and keep the privileges: %w", err)
	}
	return nil
}

// Delete also updates the time of the version before, so that a server tries a statement that was
// in flight again.
func (v versions) Delete(ctx context.Context, tx database.DBTxConn, version int64) error {
	if exists, err := v.exist(ctx, tx); err != nil || !exists {
		return err
	}
	_, err := tx.ExecContext(ctx, `
		with gone as (delete from ojs.schema_hash h where h.version = $1)
		update ojs.schema_hash h set left_at = clock_timestamp()
		where h.version = (select max(b.version) from ojs.schema_hash b where b.version < $1)`, version)
	if err != nil {
		return fmt.Errorf("forget version %d: %w", version, err)
	}
	return nil
}

func (v versions) GetMigration(ctx context.Context, tx database.DBTxConn, version int64) (*database.GetMigrationResult, error) {
	exists, err := v.exist(ctx, tx)
	if err != nil {
		return nil, err
	}
	result := &database.GetMigrationResult{IsApplied: true}
	if exists {
		err = tx.QueryRowContext(ctx, "select h.applied_at from ojs.schema_hash h where h.version = $1", version).Scan(&result.Timestamp)
	}
	if !exists || errors.Is(err, sql.ErrNoRows) {
		return nil, database.ErrVersionNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("look for version %d: %w", version, err)
	}
	return result, nil
}

func (v versions) GetLatestVersion(ctx context.Context, tx database.DBTxConn) (version int64, err error) {
	exists, err := v.exist(ctx, tx)
	if err != nil || !exists {
		return 0, err
	}
	if err := tx.QueryRowContext(ctx, "select coalesce(max(h.version), 0) from ojs.schema_hash h").Scan(&version); err != nil {
		return 0, fmt.Errorf("look for the last migration: %w", err)
	}
	return version, nil
}

func (v versions) ListMigrations(ctx context.Context, tx database.DBTxConn) (list []*database.ListMigrationsResult, err error) {
	exists, err := v.exist(ctx, tx)
	if err != nil {
		return nil, err
	}
	if exists {
		rows, err := tx.QueryContext(ctx, "select h.version from ojs.schema_hash h order by h.version desc")
		if err != nil {
			return nil, fmt.Errorf("list the migrations: %w", err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			row := &database.ListMigrationsResult{IsApplied: true}
			if err := rows.Scan(&row.Version); err != nil {
				return nil, fmt.Errorf("list the migrations: %w", err)
			}
			list = append(list, row)
		}
		if err := rows.Err(); err != nil {
			return nil, fmt.Errorf("list the migrations: %w", err)
		}
	}
	return append(list, &database.ListMigrationsResult{IsApplied: true}), nil
}

// exist reports whether the table exists. It asks the catalog, because a query of a missing table
// would end the transaction.
func (versions) exist(ctx context.Context, tx database.DBTxConn) (exists bool, err error) {
	if err := tx.QueryRowContext(ctx, "select to_regclass('ojs.schema_hash') is not null").Scan(&exists); err != nil {
		return false, fmt.Errorf("look for the table of migrations: %w", err)
	}
	return exists, nil
}
