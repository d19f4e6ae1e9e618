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

// applyCode brings functions, views, comments and grants to what the files say, in one transaction.
// Files that the database has already do not run, so that nobody waits for a view that has not
// changed.
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

// codeDue returns all files of code, and those that are to run. noted: what the database says of
// its code is what this program says, too; a release may differ from the one before in nothing
// else.
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

// applyFiles runs those files that have changed, in one transaction, and remembers all of them, and
// who may do what then.
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
		// What the transaction has locked stays locked while it waits for more. So a file that may
		// have waited leaves less for the others, but never nothing: a slow machine takes long
		// without any lock in the way.
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
	// quickFile is how long a file of code takes at most without waiting for a lock; most take a
	// few milliseconds.
	quickFile = 100 * time.Millisecond
	// leastLockTimeout is how long a file of code waits for a lock when those before it have
	// waited.
	leastLockTimeout = 50 * time.Millisecond
)

// codeNoted reports whether the database says of its code what this program says of these files.
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

// schemaLacks reports that the schema has not come to a table or column that the statement names.
func schemaLacks(err error) bool {
	return sqlstate.In(err, sqlstate.UndefinedTable, sqlstate.UndefinedColumn, sqlstate.InvalidSchemaName)
}

// appliedCode is the hash of each file of code that the database has, by its name. It is empty
// where all files are to run: before the first one, after a migration, which deletes what is
// remembered (versions.Insert), and on another major version of PostgreSQL, where some files make
// other functions.
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

// codeChange is which files are to run. If the list of what vanished has changed, all of them: it
// may have dropped what is to be made anew. If the grants and planner settings have changed, too:
// only a function that is made anew loses a setting that was taken off the list.
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

// noteCode remembers which code is applied, of which release it is, and which servers may run with
// it.
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

// locateInCode says in which file and line PostgreSQL refused a statement, and what to do where
// something of the user's is in the way.
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

// release is which one the database's code is of, and the oldest whose servers may run with it;
// empty before the first.
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

// refuseNewer stops before the code of a later release is replaced by this program's.
func (m *migrator) refuseNewer(ctx context.Context) error {
	release, _, err := m.release(ctx)
	if err == nil && db.CompareReleases(m.from.Release, release) < 0 {
		err = fmt.Errorf("%w: it is of release %s, and this program of %s. Migrate with the later one", ErrSchema, release, m.from.Release)
	}
	return err
}
