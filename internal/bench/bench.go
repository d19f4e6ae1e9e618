//go:build unix

// Package bench measures the system and a baseline, the queue that a competent developer would write
// without it, in one run on one server, so that the ratio of the two means the same on every machine.
// It loads backlogs, drives workers and producers, and judges fairness. It measures the code that
// servers run: internal/sched, internal/http and the functions of the schema, as a login role under
// row security, with leases and the clock.
//
// It is not a test: no figure makes it fail. Results go to cmd/ojs-bench, which prints them.
package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

// queue is the queue of all measured jobs.
const queue = "bench"

// Options holds on which server to measure.
type Options struct {
	// DatabaseURL names a database without jobs, and a role that may migrate it. Empty: a PostgreSQL
	// is started, and deleted at the end.
	DatabaseURL string
	// Dir is the directory for the data of a PostgreSQL that is started; empty: the one for temporary
	// files.
	Dir string
	// BinDir holds the programs of PostgreSQL; empty: they are searched (embedpg.Find).
	BinDir string
	// Stock leaves all settings of a PostgreSQL that is started at their defaults.
	Stock bool
	// Self is the command line that calls RunChild, beginning with a program. The kind of child is
	// appended to it.
	Self     []string
	Log      *slog.Logger
	Progress func(step string, done, total int64)
}

// Env is the PostgreSQL server that is measured, and the databases on it.
type Env struct {
	log       *slog.Logger
	self      []string
	stock     bool
	progress  func(step string, done, total int64)
	own       *embedpg.Server // the server that Open has started; nil: it was given
	ownDir    string
	url       string // of an administrator; its database is replaced
	suffix    string
	databases []*database
}

// settings are those of a PostgreSQL that is started. All that makes a commit durable stays on. They
// set what every administrator sets: memory, and a log so large that no checkpoint falls into some
// slices and not into others.
var settings = map[string]string{
	"max_connections":    "300",
	"shared_buffers":     "1GB",
	"max_wal_size":       "16GB",
	"checkpoint_timeout": "30min",
	"fsync":              "on",
	"synchronous_commit": "on",
	"full_page_writes":   "on",
}

const dirPrefix = "ojs-bench-"

// Open starts a server, or connects to the one in Options.DatabaseURL. The caller must Close the Env.
func Open(ctx context.Context, opts Options) (_ *Env, err error) {
	env := &Env{log: opts.Log, self: opts.Self, stock: opts.Stock, progress: opts.Progress, suffix: randomName()}
	if env.progress == nil {
		env.progress = func(string, int64, int64) {}
	}
	if opts.DatabaseURL != "" {
		if opts.Stock {
			return nil, errors.New("stock settings are for the PostgreSQL that is started here: " +
				"one that is already there has the settings it has")
		}
		env.url = opts.DatabaseURL
		return env, nil
	}
	parent := opts.Dir
	if parent == "" {
		parent = os.TempDir()
	}
	prefix := dirPrefix + strconv.Itoa(os.Getuid()) + "-"
	sweep(ctx, filepath.Join(parent, prefix+"*"))
	if env.ownDir, err = os.MkdirTemp(parent, prefix); err != nil {
		return nil, fmt.Errorf("make a directory for PostgreSQL: %w", err)
	}
	tuned := settings
	if opts.Stock {
		tuned = nil
	}
	env.own, err = embedpg.Start(ctx, embedpg.Options{
		DataDir: env.ownDir, BinDir: opts.BinDir, Settings: tuned, Throwaway: true, Logger: opts.Log, Progress: opts.Progress,
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(env.ownDir))
	}
	env.url = env.own.URL("postgres")
	return env, nil
}

// sweep removes the data directories of runs that were killed.
func sweep(ctx context.Context, pattern string) {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return
	}
	for _, dir := range dirs {
		// A directory that is in use is refused with an error.
		if err := embedpg.Remove(ctx, dir); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(dir) // only if empty
		}
	}
}

// Close drops or empties all databases that were used, and stops a server that Open has started.
func (e *Env) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	e.progress("cleaning up", 0, 0)
	var errs []error
	if e.own == nil {
		for _, d := range e.databases {
			errs = append(errs, d.cleanUp(ctx))
		}
		return errors.Join(errs...)
	}
	for _, d := range e.databases {
		d.close()
	}
	// Its data is deleted below, so the server need not write it first.
	e.own.Kill()
	select {
	case <-e.own.Exited():
	case <-time.After(10 * time.Second):
	}
	errs = append(errs, ignoreKilled(e.own.Stop()), os.RemoveAll(e.ownDir))
	return errors.Join(errs...)
}

// ignoreKilled returns err, or nil if it says only that the process had ended already.
func ignoreKilled(err error) error {
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// database is a database with our schema and no jobs but those of the benchmark.
type database struct {
	env     *Env
	name    string
	admin   string // URL of the role that has migrated it
	service string // URL that logs in as a server does
	role    string // role that a login by service takes; empty: none
	// What close has to do: drop the database, or remove the schema from it, or only the jobs.
	drop, down bool
	control    *pgx.Conn // of the administrator, for one caller at a time
	baseline   baseline
}

// database prepares a database. On a server that Open has not started, the first one is that of the
// URL. All others are made, and dropped in the end.
func (e *Env) database(ctx context.Context, name string) (_ *database, err error) {
	d := &database{env: e, name: name}
	switch {
	case e.own != nil:
		if err := setup.CreateDatabase(ctx, e.url, name); err != nil {
			return nil, err
		}
		d.admin, d.drop = e.own.URL(name), true
	case len(e.databases) == 0:
		d.admin = e.url
	default:
		d.name = name + "_" + e.suffix
		if err := setup.CreateDatabase(ctx, e.url, d.name); err != nil {
			return nil, err
		}
		if d.admin, err = withDatabase(e.url, d.name); err != nil {
			return nil, err
		}
		d.drop = true
	}
	if d.control, err = pgx.Connect(ctx, d.admin); err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	e.databases = append(e.databases, d)
	if !d.drop {
		if err := d.claim(ctx); err != nil {
			e.databases = e.databases[:len(e.databases)-1]
			d.close()
			return nil, err
		}
	}
	if err := migrate.Run(ctx, d.admin, migrate.Up, nil); err != nil {
		return nil, err
	}
	d.service, d.role = d.admin, "ojs_service"
	if e.own != nil {
		const role = "ojs_bench_server"
		if err := setup.CreateServerRole(ctx, d.admin, role, e.suffix); err != nil {
			return nil, err
		}
		d.service, d.role = e.own.URLFor(role, e.suffix, name), ""
	}
	if err := d.exec(ctx, baselineSchema); err != nil {
		return nil, fmt.Errorf("make the baseline: %w", err)
	}
	return d, nil
}

// mark is the comment on the schema of the baseline. A database with this comment belongs to the
// benchmark, which may delete all jobs in it.
const mark = "Made by ojs-bench, which deletes it, and all jobs of this database with it."

// claim fails if the database holds jobs, unless an earlier run has left them (mark).
func (d *database) claim(ctx context.Context) error {
	var schema, marked bool
	err := d.control.QueryRow(ctx, `
		select to_regnamespace('ojs') is not null,
			coalesce(obj_description(to_regnamespace('ojs_bench'), 'pg_namespace') = $1, false)`, mark).
		Scan(&schema, &marked)
	if err != nil {
		return fmt.Errorf("look at the database: %w", err)
	}
	switch {
	case !schema:
		d.down = true
	case marked:
		d.env.log.Warn("an earlier run of ojs-bench did not clean up; its jobs are deleted")
		if err := d.reset(ctx); err != nil {
			return err
		}
		return d.exec(ctx, "drop schema ojs_bench cascade")
	default:
		var used bool
		err := d.control.QueryRow(ctx, `
			select exists (select from ojs.job) or exists (select from ojs.tenant) or exists (select from ojs.queue)
				or exists (select from ojs.rule) or exists (select from ojs.tenant_role)`).Scan(&used)
		if err != nil {
			return fmt.Errorf("look whether the database is in use: %w (the role must be the one that migrated it)", err)
		}
		if used {
			return errors.New("the database holds jobs or configuration (tenants, queues): a benchmark would spoil them. " +
				"Name an empty database, or none, and a PostgreSQL is started for it")
		}
	}
	var taken bool
	if err := d.control.QueryRow(ctx, "select to_regnamespace('ojs_bench') is not null").Scan(&taken); err != nil {
		return fmt.Errorf("look at the database: %w", err)
	}
	if taken {
		return errors.New("the database has a schema ojs_bench that ojs-bench did not make")
	}
	return nil
}

// exec runs a statement as the administrator. It must not be called from several goroutines at once.
func (d *database) exec(ctx context.Context, sql string, args ...any) error {
	_, err := d.control.Exec(ctx, sql, args...)
	return err
}

// reset removes every job and all rows that follow from jobs, and empties the baseline.
func (d *database) reset(ctx context.Context) error {
	if err := d.exec(ctx, `do $$ begin
			if to_regclass('ojs_bench.job') is not null then truncate ojs_bench.job, ojs_bench.bare; end if;
		end $$`); err != nil {
		return fmt.Errorf("empty the baseline: %w", err)
	}
	return setup.Reset(ctx, d.admin)
}

func (d *database) close() {
	if d.control != nil {
		_ = d.control.Close(context.Background())
	}
}

// cleanUp drops the database if the benchmark has made it. Otherwise it removes the jobs and the
// baseline, and the schema if the benchmark has made it.
func (d *database) cleanUp(ctx context.Context) error {
	defer d.close()
	if d.drop {
		d.close()
		conn, err := pgx.Connect(ctx, d.env.url)
		if err != nil {
			return fmt.Errorf("connect to drop the database %s: %w", d.name, err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "drop database if exists "+pgx.Identifier{d.name}.Sanitize()+" with (force)"); err != nil {
			return fmt.Errorf("drop the database %s: %w", d.name, err)
		}
		return nil
	}
	if d.control.IsClosed() {
		var err error
		if d.control, err = pgx.Connect(ctx, d.admin); err != nil {
			return fmt.Errorf("connect to clean up: %w", err)
		}
	}
	// The mark is removed last: if this is interrupted, the next run may delete the rest.
	if err := d.reset(ctx); err != nil {
		return fmt.Errorf("remove the jobs of the benchmark: %w", err)
	}
	if err := d.exec(ctx, "drop schema if exists ojs_bench cascade"); err != nil {
		return fmt.Errorf("remove the baseline: %w", err)
	}
	if !d.down {
		return nil
	}
	if err := migrate.Run(ctx, d.admin, migrate.Down, nil); err != nil {
		return fmt.Errorf("remove the schema: %w", err)
	}
	return nil
}

// connect opens a connection as the role that a server has, as a client that speaks SQL does.
func (d *database) connect(ctx context.Context) (*pgx.Conn, error) {
	return connectAs(ctx, d.service, d.role)
}

// connectAs logs in, and takes a role if one is named.
func connectAs(ctx context.Context, url, role string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	if role != "" {
		cfg.RuntimeParams["role"] = role
	}
	cfg.RuntimeParams["application_name"] = "ojs-bench"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// withDatabase returns a URL with another database. It fails if the address is no URL.
func withDatabase(address, name string) (string, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return "", errors.New("this benchmark makes databases beside the given one and needs its address as a postgres URL")
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("read the database URL: %w", err)
	}
	u.Path = "/" + name
	return u.String(), nil
}

func randomName() string {
	raw := make([]byte, 6)
	rand.Read(raw)
	return hex.EncodeToString(raw)
}
