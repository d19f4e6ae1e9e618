// Package migrate brings the schema of a database to this program's release: migrations of tables
// (db/migrations, goose) and after them the functions and views (db/code), of which it applies the
// files that have changed. It also tells a server whether the schema fits (CheckSchema), and makes
// again what a restore has left out.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/ojs-pg/ojs-pg/db"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// Direction says where to migrate: Up or Down. The way back to an earlier release is a restore of a
// backup, not a migration.
type Direction struct{ down bool }

var (
	// Up applies every migration that is missing, and the code that has changed.
	Up = Direction{}
	// Down removes the schema, all jobs included.
	Down = Direction{down: true}
)

// Progress is called before each migration with its name and the number of migrations that are
// done. At the end it is called with done equal to total.
type Progress func(name string, done, total int64)

// Run changes the schema of the database at url. The role of the URL must be a superuser, or have
// CREATEROLE and own the database. If several programs run it at once, each waits until the one
// before it is done. Fails with ErrSchema if the database has the schema of a later release, or one
// that this program cannot change.
func Run(ctx context.Context, url string, direction Direction, progress Progress) error {
	return RunFrom(ctx, OwnSource(), url, direction, progress)
}

// Source is what a schema is made from: the files, the release that they belong to, and the oldest
// release whose servers may run with them.
type Source struct {
	Migrations, Code     fs.FS
	Release, NeedsServer string
}

// OwnSource returns the source that is compiled into this program.
func OwnSource() Source { return Source{db.Files(), db.Code(), db.Release, db.NeedsServer} }

// RunFrom is Run with another source, such as that of a later release.
func RunFrom(ctx context.Context, from Source, url string, direction Direction, progress Progress) error {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	m, err := newMigrator(url, from)
	if err != nil {
		return err
	}
	defer m.close()
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if direction.down {
		return m.down(ctx, progress)
	}
	return m.up(ctx, progress)
}

// Migration is one file of db/migrations and whether the database has it.
type Migration struct {
	Name      string
	Applied   bool
	AppliedAt time.Time
}

// SchemaStatus describes the schema of a database, beside the source compiled into this program.
type SchemaStatus struct {
	Migrations []Migration
	// Hash is the hash of the migrations that the database stores, or "" if it stores none.
	Hash string
	// Code names the files of code that migrate up would run, because they are new or have changed.
	Code []string
	// Release is the release of the database's code, and NeedsServer the oldest release whose
	// servers may run with it; both are "" if the database has no code.
	Release, NeedsServer string
	// Current reports whether all migrations and all code are applied, and none has changed since.
	Current bool
	// Unfit lists how many roles, owners, policies and grants a restore has left out; migrate up
	// makes them again. It is "" if none is missing.
	Unfit string
}

// Status compares the database at url with the migrations compiled in, and changes nothing.
func Status(ctx context.Context, url string) (SchemaStatus, error) {
	m, err := newMigrator(url, OwnSource())
	if err != nil {
		return SchemaStatus{}, err
	}
	defer m.close()
	var status SchemaStatus
	if status.Hash, _, err = m.storedHash(ctx); err != nil {
		return SchemaStatus{}, err
	}
	applied := map[int64]time.Time{}
	if status.Hash != "" {
		if applied, err = m.applied(ctx); err != nil {
			return SchemaStatus{}, err
		}
		if status.Unfit, err = m.unfit(ctx); err != nil {
			return SchemaStatus{}, err
		}
		if status.Release, status.NeedsServer, err = m.release(ctx); err != nil {
			return SchemaStatus{}, err
		}
	}
	missing := false
	for _, source := range m.provider.ListSources() {
		at, ok := applied[source.Version]
		status.Migrations = append(status.Migrations, Migration{Name: source.Path, Applied: ok, AppliedAt: at})
		missing = missing || !ok
	}
	files, change, noted, err := m.codeDue(ctx)
	if err != nil {
		return SchemaStatus{}, err
	}
	if missing {
		change = files // a migration has all code applied
	}
	for _, f := range change {
		status.Code = append(status.Code, f.Name)
	}
	status.Current = status.Hash == db.Hash() && !missing && noted && len(change) == 0
	return status, nil
}

const (
	// firstLockTimeout is how long the first try of a migration waits for a lock. Statements that
	// want the same lock wait behind the migration, so the time is short. It doubles with each try,
	// up to maxLockTimeout, because PostgreSQL cancels an automatic vacuum that is in the way only
	// for a session that has waited for a second.
	firstLockTimeout = 200 * time.Millisecond
	maxLockTimeout   = 2 * time.Second
	// lockRetryPause is the time between two tries, in which the statements that waited behind the
	// migration run.
	lockRetryPause = 300 * time.Millisecond
	// maxLockTries tries take about five minutes.
	maxLockTries = 130

	// unlockTimeout bounds the unlock at the end: PostgreSQL may be gone by then.
	unlockTimeout = 5 * time.Second
)

// migrator changes the schema of one database. One goroutine uses it; the fields that hooks of the
// connection read are atomic, because pgx may call a hook on another goroutine.
type migrator struct {
	db       *sql.DB
	provider *goose.Provider
	from     Source
	inUse    bool         // the database has a schema, so servers may be running on it
	lockWait atomic.Int64 // time.Duration; lock_timeout of the next statement
	failed   atomic.Pointer[failedStatement]
}

func newMigrator(url string, from Source) (*migrator, error) {
	cfg, err := pg.ConnConfig(url)
	if err != nil {
		return nil, err
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "ojs-pg migrate"
	}
	m := &migrator{from: from}
	m.lockWait.Store(int64(firstLockTimeout))
	cfg.Tracer = m
	conn := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(m.setLockTimeout), stdlib.OptionResetSession(m.setLockTimeout))
	provider, err := goose.NewProvider(goose.DialectCustom, conn, from.Migrations,
		goose.WithStore(versions{from.Migrations}),
		goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger()))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	m.db, m.provider = conn, provider
	return m, nil
}

// setLockTimeout bounds how long the statements of a session wait for a lock, and switches off all
// other timeouts that the role may have. They would end a long migration, or the session that holds
// the migration lock.
func (m *migrator) setLockTimeout(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "set lock_timeout = "+strconv.FormatInt(time.Duration(m.lockWait.Load()).Milliseconds(), 10)+`;
		select set_config(s.name, '0', false) from pg_settings s
		where s.name in ('statement_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`)
	return err
}

// withLockRetry runs a step, and runs it again while a lock of running work is in its way, up to
// maxLockTries times. Each step is a transaction, so a step that failed has changed nothing.
func (m *migrator) withLockRetry(ctx context.Context, step func() error) error {
	m.lockWait.Store(int64(firstLockTimeout))
	for n := 1; ; n++ {
		err := m.announceChange(ctx)
		if err == nil {
			err = step()
		}
		if !lockConflict(err) || ctx.Err() != nil {
			return err
		}
		if n == maxLockTries {
			return fmt.Errorf("running work was in the way %d times; see pg_stat_activity for whose transaction is open for long: %w", n,
				err)
		}
		m.lockWait.Store(min(2*m.lockWait.Load(), int64(maxLockTimeout)))
		select {
		case <-time.After(lockRetryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *migrator) close() { m.db.Close() }

// lock takes the migration lock, for which other programs that migrate wait until unlock is called.
// goose's own lock would be free between two migrations.
func (m *migrator) lock(ctx context.Context) (unlock func(), err error) {
	// It asks for the lock every second for an hour, because the migrations of a large installation
	// may take long.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 3600))
	if err != nil {
		return nil, fmt.Errorf("prepare the migration lock: %w", err)
	}
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to migrate: %w", pg.ExplainRefusal(err))
	}
	// The lock belongs to a session, so a pooler that shares sessions would lose it.
	err = conn.Raw(func(c any) error { return pg.RefusePooler(ctx, c.(*stdlib.Conn).Conn()) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to migrate: %w", err), conn.Close())
	}
	if err := locker.SessionLock(ctx, conn); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the migration lock: %w", err), conn.Close())
	}
	return func() {
		unlocking, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
		defer cancel()
		_ = locker.SessionUnlock(unlocking, conn) // the session's end unlocks, too
		_ = conn.Close()
	}, nil
}

// up applies missing migrations, then changed code. It refuses a database that it cannot bring to
// this release before it changes anything. Each migration is one transaction, so a first migration
// that fails leaves nothing.
func (m *migrator) up(ctx context.Context, progress Progress) error {
	if err := m.refuseEncoding(ctx); err != nil {
		return err
	}
	if err := m.refuseNewer(ctx); err != nil {
		return err
	}
	if err := m.refuseChanged(ctx); err != nil {
		return err
	}
	if err := m.putRight(ctx); err != nil {
		return err
	}
	if err := m.upByStep(ctx, progress); err != nil {
		return err
	}
	return m.applyCode(ctx)
}

// upByStep applies the missing migrations one by one, and reports each to progress.
func (m *migrator) upByStep(ctx context.Context, progress Progress) error {
	sources := m.provider.ListSources()
	total := int64(len(sources))
	for {
		version, err := m.provider.GetDBVersion(ctx)
		if err != nil {
			return fmt.Errorf("read the schema's version: %w", explain(err))
		}
		done, next := total, ""
		for i, source := range sources {
			if source.Version > version {
				done, next = int64(i), source.Path
				break
			}
		}
		progress(next, done, total)
		if next == "" {
			return nil
		}
		err = m.withLockRetry(ctx, func() error {
			_, err := m.provider.UpByOne(ctx)
			return m.locate(err)
		})
		if err != nil {
			return fmt.Errorf("migrate up: %w", explain(err))
		}
	}
}

func (m *migrator) down(ctx context.Context, progress Progress) error {
	start, err := m.provider.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", explain(err))
	}
	stored, _, err := m.storedHash(ctx)
	if err != nil {
		return err
	}
	m.inUse = stored != ""
	for version := start; version > 0; {
		progress(fmt.Sprintf("%05d", version), start-version, start)
		err := m.withLockRetry(ctx, func() error {
			_, err := m.provider.Down(ctx)
			return m.locate(err)
		})
		if err != nil {
			return fmt.Errorf("migrate down: %w", explain(err))
		}
		if version, err = m.provider.GetDBVersion(ctx); err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
	}
	progress("", start, start)
	return nil
}

func (m *migrator) refuseEncoding(ctx context.Context) error {
	var encoding string
	if err := m.db.QueryRowContext(ctx, "show server_encoding").Scan(&encoding); err != nil {
		return fmt.Errorf("read the encoding of the database: %w", err)
	}
	return pg.CheckEncoding(encoding)
}

// refuseChanged returns ErrSchema if migrations that the database has applied differ from those of
// this program: new migrations would not fit on top of them.
func (m *migrator) refuseChanged(ctx context.Context) error {
	stored, version, err := m.storedHash(ctx)
	if err != nil {
		return err
	}
	m.inUse = stored != ""
	if stored == "" {
		return m.refuseWithoutRows(ctx)
	}
	if stored == db.HashOf(m.from.Migrations, version) {
		return nil
	}
	// The hash is that of a later release whose upgrade was interrupted before its functions were
	// applied.
	var later bool
	sources := m.provider.ListSources()
	own := sources[len(sources)-1].Version
	err = m.db.QueryRowContext(ctx, "select exists (select from ojs.schema_hash h where h.version = $1 and h.hash = $2 and h.version < $3)",
		own, db.HashOf(m.from.Migrations, own), version).Scan(&later)
	if err != nil {
		return fmt.Errorf("read the schema's hash: %w", explain(err))
	}
	if later {
		return fmt.Errorf("%w: it has migrations of a later release than %s. Migrate with the later one", ErrSchema, m.from.Release)
	}
	return fmt.Errorf("%w: %s", ErrSchema, recreateAdvice)
}

// refuseWithoutRows returns ErrSchema if there is a schema ojs in which no migration is recorded.
// The first migration would fail on it.
func (m *migrator) refuseWithoutRows(ctx context.Context) (err error) {
	var exists bool
	if err := m.db.QueryRowContext(ctx, "select to_regnamespace('ojs') is not null").Scan(&exists); err != nil {
		return fmt.Errorf("look for the schema: %w", err)
	}
	if exists {
		return fmt.Errorf("%w: %s", ErrSchema, emptyAdvice)
	}
	return nil
}

// storedHash returns the latest hash that the database stores, and the migration that it belongs
// to; "" and 0 if it stores none.
func (m *migrator) storedHash(ctx context.Context) (hash string, version int64, err error) {
	err = m.db.QueryRowContext(ctx, "select hash, version from ojs.schema_hash order by version desc limit 1").Scan(&hash, &version)
	switch {
	case err == nil, errors.Is(err, sql.ErrNoRows), sqlstate.In(err, sqlstate.InvalidSchemaName, sqlstate.UndefinedTable):
	case sqlstate.In(err, sqlstate.UndefinedColumn):
		return "", 0, fmt.Errorf("%w: %s", ErrSchema, recreateAdvice)
	default:
		return "", 0, fmt.Errorf("read the schema's hash: %w", explain(err))
	}
	return hash, version, nil
}

// lockConflict reports whether a lock of running work was in the way.
func lockConflict(err error) bool {
	return sqlstate.In(err, sqlstate.LockNotAvailable, sqlstate.DeadlockDetected)
}

// announceChange records that the schema is about to change. A server that meets a statement which
// does not fit the schema then answers with a 503, which clients try again, and not with a 500. A
// new schema has no servers yet.
func (m *migrator) announceChange(ctx context.Context) error {
	if !m.inUse {
		return nil
	}
	_, err := m.db.ExecContext(ctx,
		"update ojs.schema_hash set left_at = clock_timestamp() where version = (select max(version) from ojs.schema_hash)")
	return err
}

func (m *migrator) applied(ctx context.Context) (map[int64]time.Time, error) {
	rows, err := m.db.QueryContext(ctx, "select h.version, h.applied_at from ojs.schema_hash h")
	if err != nil {
		return nil, fmt.Errorf("read the applied migrations: %w", explain(err))
	}
	defer func() { _ = rows.Close() }()
	applied := map[int64]time.Time{}
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, fmt.Errorf("read the applied migrations: %w", err)
		}
		applied[version] = at
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the applied migrations: %w", err)
	}
	return applied, nil
}

// failedStatement is the last statement that PostgreSQL refused. goose does not tell which
// statement of a file failed, so the tracer records it.
type failedStatement struct {
	sql string
	err *pgconn.PgError
}

type statementKey struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (m *migrator) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statementKey{}, data.SQL)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (m *migrator) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	var pgErr *pgconn.PgError
	if sql, ok := ctx.Value(statementKey{}).(string); ok && errors.As(data.Err, &pgErr) {
		m.failed.Store(&failedStatement{sql, pgErr})
	}
}

// locate adds to an error of goose the file in which a migration failed and, if PostgreSQL refused
// a statement, the line.
func (m *migrator) locate(err error) error {
	var partial *goose.PartialError
	if !errors.As(err, &partial) {
		return err
	}
	where := partial.Failed.Source.Path
	var pgErr *pgconn.PgError
	failed := m.failed.Load()
	if failed != nil && errors.As(err, &pgErr) && pgErr == failed.err {
		if text, readErr := fs.ReadFile(m.from.Migrations, where); readErr == nil {
			// goose sends the statements of a file as they stand there, and a commit of its own. A
			// statement that stands there twice is located at its first place.
			if before, _, found := strings.Cut(string(text), failed.sql); found && !strings.EqualFold(failed.sql, "commit") {
				where += ":" + strconv.Itoa(1+strings.Count(before+failed.untilFault(), "\n"))
			}
		}
	}
	return fmt.Errorf("%s: %w", where, partial.Err)
}

// untilFault returns the statement up to the position that PostgreSQL names, or "" if it names
// none.
func (f *failedStatement) untilFault() string {
	characters := []rune(f.sql)
	return string(characters[:min(max(int(f.err.Position)-1, 0), len(characters))])
}

// explain adds to an error which role migrations need, if the role has too few rights.
func explain(err error) error {
	if sqlstate.In(err, sqlstate.InsufficientPrivilege) {
		return fmt.Errorf("%w (migrations need a superuser, or a role with CREATEROLE that owns the database)", err)
	}
	return err
}
