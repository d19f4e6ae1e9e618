package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// applyCode applies the files of db/code that have changed, in one transaction: functions, views,
// comments and grants. An unchanged file does not run, because replacing a view would lock it
// against running work.
func (m *migrator) applyCode(ctx context.Context) error {
	files, change, noted, err := m.codeDue(ctx)
	if err != nil || noted && len(change) == 0 {
		return err
	}
	if err := m.withLockRetry(ctx, func() error { return m.applyFiles(ctx, files, change) }); err != nil {
		return fmt.Errorf("migrate up: %w", explain(err))
	}
	return nil
}

// codeDue returns all files of code, and those that are to be applied. noted reports whether the
// database records this program's release and hash for its code; a new release may have the same
// files, and then only that record changes.
func (m *migrator) codeDue(ctx context.Context) (files, change []db.CodeFile, noted bool, err error) {
	if files, err = db.CodeFiles(m.from.Code); err != nil {
		return nil, nil, false, err
	}
	has, err := m.appliedCode(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	noted, err = m.codeNoted(ctx, files)
	return files, codeChange(files, has), noted, err
}

// applyFiles runs the files in change, in one transaction, and records the hashes of all files and
// the owners and grants that result.
func (m *migrator) applyFiles(ctx context.Context, files, change []db.CodeFile) error {
	tx, err := m.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin to apply the code: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "set local role ojs_owner; set local check_function_bodies = off"); err != nil {
		return fmt.Errorf("become ojs_owner: %w", err)
	}
	patience := time.Duration(m.lockWait.Load())
	for _, f := range change {
		began := time.Now()
		if _, err := tx.ExecContext(ctx, f.Text); err != nil {
			return locateInCode(f, err)
		}
		// Locks that the transaction holds block running work while it waits for further locks. So
		// the time that a file took is taken off the time that later files may wait. It never
		// reaches zero, because on a slow machine a file takes long without waiting for any lock.
		waited := time.Since(began) - quickFile
		if waited <= 0 {
			continue
		}
		patience = max(patience-waited, leastLockTimeout)
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("set local lock_timeout = %d", patience.Milliseconds())); err != nil {
			return fmt.Errorf("bound the wait for locks: %w", err)
		}
	}
	if err := m.noteCode(ctx, tx, files); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "reset role; select ojs._keep_privileges()"); err != nil {
		return fmt.Errorf("remember owners and grants: %w", err)
	}
	return tx.Commit()
}

const (
	// quickFile is how long a file of code may take before it counts as having waited for a lock;
	// most files take a few milliseconds.
	quickFile = 100 * time.Millisecond
	// leastLockTimeout is how long a file may always wait for a lock, however long the files before
	// it have waited.
	leastLockTimeout = 50 * time.Millisecond
)

// codeNoted reports whether the database records this program's release and the hash of these
// files.
func (m *migrator) codeNoted(ctx context.Context, files []db.CodeFile) (noted bool, err error) {
	err = m.db.QueryRowContext(ctx, `
		select exists (select from ojs.schema_release r where r.release = $1 and r.needs_server = $2 and r.code_hash = $3)`,
		m.from.Release, m.from.NeedsServer, db.CodeHash(files)).Scan(&noted)
	if schemaLacks(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the schema's release: %w", explain(err))
	}
	return noted, nil
}

// schemaLacks reports whether a statement failed because the schema does not have a table or column
// yet.
func schemaLacks(err error) bool {
	return sqlstate.In(err, sqlstate.UndefinedTable, sqlstate.UndefinedColumn, sqlstate.InvalidSchemaName)
}

// appliedCode returns the hash of each applied file of code, by file name. It is empty if all files
// are to be applied: in a new schema, after a migration (versions.Insert deletes the hashes), and
// on another major version of PostgreSQL, for which some files make other functions.
func (m *migrator) appliedCode(ctx context.Context) (map[string]string, error) {
	has := map[string]string{}
	rows, err := m.db.QueryContext(ctx, `
		select c.file, c.hash from ojs.code c join ojs.schema_release r on true
		where r.postgres = current_setting('server_version_num')::int / 10000`)
	if schemaLacks(err) {
		return has, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which code is applied: %w", explain(err))
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var file, hash string
		if err := rows.Scan(&file, &hash); err != nil {
			return nil, fmt.Errorf("read which code is applied: %w", err)
		}
		has[file] = hash
	}
	return has, rows.Err()
}

// codeChange returns the files that are to be applied. These are all files if db.Gone has changed,
// because it may drop an object that another file makes again, or if db.Access has changed, because
// a function loses a planner setting that was removed from that file only when it is made again.
func codeChange(files []db.CodeFile, has map[string]string) (change []db.CodeFile) {
	all := false
	for _, f := range files {
		all = all || (f.Name == db.Gone || f.Name == db.Access) && f.Hash != has[f.Name]
	}
	for _, f := range files {
		if all || f.Hash != has[f.Name] || f.Always && len(change) > 0 {
			change = append(change, f)
		}
	}
	return change
}

// noteCode records the hashes of the applied files, their release, and the oldest release whose
// servers may run with them.
func (m *migrator) noteCode(ctx context.Context, tx *sql.Tx, files []db.CodeFile) error {
	names, hashes := make([]string, len(files)), make([]string, len(files))
	for i, f := range files {
		names[i], hashes[i] = f.Name, f.Hash
	}
	_, err := tx.ExecContext(ctx, `
		with gone as (delete from ojs.code c where c.file <> all ($1)), noted as (
			insert into ojs.code as c (file, hash) select * from unnest($1::text[], $2::text[])
			on conflict (file) do update set hash = excluded.hash, applied_at = excluded.applied_at where c.hash <> excluded.hash
		)
		insert into ojs.schema_release (release, needs_server, code_hash, applied_at, postgres)
		values ($3, $4, $5, clock_timestamp(), current_setting('server_version_num')::int / 10000)
		on conflict (one) do update
		set release = excluded.release, needs_server = excluded.needs_server, code_hash = excluded.code_hash,
			applied_at = excluded.applied_at, postgres = excluded.postgres`,
		names, hashes, m.from.Release, m.from.NeedsServer, db.CodeHash(files))
	if err != nil {
		return fmt.Errorf("remember which code is applied: %w", err)
	}
	return nil
}

// locateInCode adds to an error the file and line at which PostgreSQL refused a statement. If an
// object of the user depends on one that is dropped, it adds what to do.
func locateInCode(f db.CodeFile, err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	where := f.Name
	if pgErr.Position > 0 {
		before := []rune(f.Text)
		where += fmt.Sprintf(":%d", 1+strings.Count(string(before[:min(int(pgErr.Position)-1, len(before))]), "\n"))
	}
	if pgErr.Code == sqlstate.DependentObjectsExist {
		return fmt.Errorf("%s: %w (%s). No function and no view has changed. Drop what depends on it, or make it independent; then run "+
			"ojs-pg migrate up again", where, err, strings.ReplaceAll(pgErr.Detail, "\n", "; "))
	}
	return fmt.Errorf("%s: %w", where, err)
}

// release returns the release of the database's code, and the oldest release whose servers may run
// with it; "" if the database has no code.
func (m *migrator) release(ctx context.Context) (release, needsServer string, err error) {
	err = m.db.QueryRowContext(ctx, "select r.release, r.needs_server from ojs.schema_release r").Scan(&release, &needsServer)
	switch {
	case errors.Is(err, sql.ErrNoRows), schemaLacks(err):
		return "", "", nil
	case err != nil:
		return "", "", fmt.Errorf("read the schema's release: %w", explain(err))
	}
	return release, needsServer, nil
}

// refuseNewer returns ErrSchema if the database has the code of a later release than this
// program's.
func (m *migrator) refuseNewer(ctx context.Context) error {
	release, _, err := m.release(ctx)
	if err == nil && db.CompareReleases(m.from.Release, release) < 0 {
		err = fmt.Errorf("%w: it is of release %s, and this program of %s. Migrate with the later one", ErrSchema, release, m.from.Release)
	}
	return err
}
