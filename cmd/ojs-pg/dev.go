package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

// Names that `ojs-pg dev` uses in its PostgreSQL and in the data directory.
const (
	devDatabase   = "ojs"
	devServerRole = "ojs_server"
	devAppRole    = "ojs_app"
	devURLFile    = "url"
	devAdminFile  = "admin-url"
)

// devCommand returns `ojs-pg dev`, the whole system on one machine.
func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "run a server with a PostgreSQL of its own on this machine",
		Description: `PostgreSQL is found on the machine (PATH, the usual places of Debian, Homebrew, Postgres.app) or downloaded
once. Its data stays in the data directory for the next start. It works as root, too: PostgreSQL, which refuses
root, then runs as an unprivileged user. Ctrl-C stops both.

    ojs-pg dev                                       data in the user's data directory
    ojs-pg dev --data-dir ./data --listen :9090 --auth api-key      data here, HTTP for the whole network
    DATABASE_URL=postgres://... ojs-pg dev           on a database that you have; the schema is migrated

Two files in the data directory have the URLs of the database: url is for applications, whose login may enqueue
for any tenant, work and read; admin-url is for an administrator, and for ojs-pg top, doctor and admin.

For production use ojs-pg migrate and ojs-pg serve.`,
		Flags: append([]cli.Flag{
			databaseFlag(false),
			&cli.StringFlag{
				Name: "data-dir", Sources: cli.EnvVars("OJS_DATA_DIR"), DefaultText: "ojs-pg in $XDG_DATA_HOME or ~/.local/share",
				Usage: "`DIRECTORY` for the data of PostgreSQL; it is made if it is absent",
			},
			&cli.IntFlag{
				Name: "postgres-port", Sources: cli.EnvVars("OJS_POSTGRES_PORT"), DefaultText: "the last one, else a free one",
				Usage: "`PORT` of PostgreSQL on 127.0.0.1",
			},
			&cli.StringFlag{
				Name: "postgres-bin", Sources: cli.EnvVars(embedpg.BinEnv),
				Usage: "`DIRECTORY` of PostgreSQL's programs (15 or later); without it they are searched for",
			},
			&cli.StringFlag{
				Name: "postgres-repository", Value: embedpg.DefaultRepository, Sources: cli.EnvVars("OJS_POSTGRES_REPOSITORY"),
				Usage: "`URL` of the Maven repository from which PostgreSQL is downloaded",
			},
			&cli.StringFlag{
				Name: "cache-dir", Sources: cli.EnvVars("OJS_CACHE_DIR"),
				DefaultText: "ojs-pg in the user's cache; for root /var/cache/ojs-pg",
				Usage:       "`DIRECTORY` for a downloaded PostgreSQL",
			},
			&cli.BoolFlag{
				Name: "allow-reset", Sources: cli.EnvVars("OJS_ALLOW_RESET"),
				Usage: "add POST /ojs/v1/admin/reset, which DELETES ALL JOBS; for conformance runs",
			},
		}, serverFlags()...),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := cmdline.NoArguments(c); err != nil {
				return err
			}
			return dev(ctx, c)
		},
	}
}

// dev runs PostgreSQL, unless DATABASE_URL names one, and a server, until ctx ends or one of both
// fails. The server stops first, because it gives jobs back while it stops.
func dev(ctx context.Context, c *cli.Command) (err error) {
	log := cmdline.Logger(c)
	bar := cmdline.NewProgress(c.Root().ErrWriter, log)
	defer bar.Finish()

	// If the address is taken, the command fails before it starts PostgreSQL.
	socket, err := listen(ctx, c)
	if err != nil {
		return err
	}
	defer socket.Close()

	if c.String("database-url") != "" {
		if c.IsSet("data-dir") {
			log.Warn("DATABASE_URL is set, so the data directory is not used")
		}
		return serveDev(ctx, c, nil, socket, bar)
	}
	own, err := startOwn(ctx, c, log, bar)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, own.Stop())
		log.Info("stopped PostgreSQL")
	}()
	// Without PostgreSQL the server would answer 503 for ever, so that its end is the end of both.
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	go func() {
		select {
		case <-own.Exited():
			fail(fmt.Errorf("PostgreSQL has ended by itself; its log is %s", own.LogFile()))
		case <-ctx.Done():
		}
	}()
	err = serveDev(ctx, c, own, socket, bar)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// serveDev migrates the database and serves until ctx ends. own is nil if the database is the one
// of DATABASE_URL.
func serveDev(ctx context.Context, c *cli.Command, own *embedpg.Server, socket net.Listener, bar *cmdline.Progress) error {
	adminURL, config, err := prepareDev(ctx, c, own, bar)
	if err != nil {
		return err
	}
	if own != nil {
		if err := noteURLs(ctx, own, adminURL); err != nil {
			return err
		}
	}
	db, err := openDatabase(ctx, config, cmdline.Logger(c))
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := newServer(c, db, socket)
	if err != nil {
		return err
	}
	if c.Bool("allow-reset") {
		s.log.Warn("anybody who reaches the HTTP port can delete all jobs (--allow-reset)")
		s.reset = func(ctx context.Context) error { return setup.Reset(ctx, adminURL) }
	}
	bar.Finish()
	if err := printWelcome(c.Root().Writer, s.scheme+"://"+socket.Addr().String(), own, adminURL); err != nil {
		return err
	}
	return s.run(ctx)
}

// prepareDev migrates the database. It returns its address for the role that owns it, and how the
// server connects to it.
func prepareDev(
	ctx context.Context, c *cli.Command, own *embedpg.Server, bar *cmdline.Progress,
) (adminURL string, config pg.Config, err error) {
	config = pg.Config{MaxConns: c.Int32("max-conns"), AppName: "ojs-pg dev"}
	adminURL = c.String("database-url")
	if own != nil {
		adminURL = own.URL(devDatabase)
		if err := setup.CreateDatabase(ctx, own.URL("postgres"), devDatabase); err != nil {
			return "", config, err
		}
	}
	err = migrate.Run(ctx, adminURL, migrate.Up, func(_ string, done, total int64) { bar.Report("migrating", done, total) })
	if errors.Is(err, migrate.ErrSchema) && own != nil {
		return "", config, fmt.Errorf("%w\nFor `ojs-pg dev` it is enough to delete the data directory, %s", err, own.DataDir)
	}
	if err != nil {
		return "", config, err
	}
	if own == nil {
		// Row security does not apply to a role that may migrate, so the server takes the rights of
		// the group role.
		config.URL, config.Role = adminURL, "ojs_service"
		return adminURL, config, nil
	}
	// The server gets a login role of its own, to which row security applies, as in production.
	password := rand.Text()
	config.URL = own.URLFor(devServerRole, password, devDatabase)
	return adminURL, config, setup.CreateServerRole(ctx, adminURL, devServerRole, password)
}

// startOwn starts a PostgreSQL in the data directory. The caller stops it.
func startOwn(ctx context.Context, c *cli.Command, log *slog.Logger, bar *cmdline.Progress) (*embedpg.Server, error) {
	dir, err := dataDir(c)
	if err != nil {
		return nil, err
	}
	own, err := embedpg.Start(ctx, embedpg.Options{
		DataDir:    dir,
		Port:       c.Int("postgres-port"),
		BinDir:     c.String("postgres-bin"),
		Repository: c.String("postgres-repository"),
		CacheDir:   c.String("cache-dir"),
		Logger:     log,
		Progress:   bar.Report,
	})
	if err != nil {
		return nil, err
	}
	log.Info("PostgreSQL has started", "version", own.Binaries.Version, "data_dir", own.DataDir, "pid", own.PID())
	return own, nil
}

// noteURLs writes the URLs of the database to files in the data directory, an application's and the
// administrator's, for scripts and for people. The application's login keeps its password from one
// start to the next, so that its URL stays valid.
func noteURLs(ctx context.Context, own *embedpg.Server, adminURL string) error {
	password := rand.Text()
	if noted, err := os.ReadFile(filepath.Join(own.DataDir, devURLFile)); err == nil {
		if u, err := url.Parse(strings.TrimSpace(string(noted))); err == nil && u.User.Username() == devAppRole {
			password, _ = u.User.Password()
		}
	}
	if err := setup.CreateAppRole(ctx, adminURL, devAppRole, password); err != nil {
		return err
	}
	appURL := own.URLFor(devAppRole, password, devDatabase)
	for name, address := range map[string]string{devURLFile: appURL, devAdminFile: adminURL} {
		if err := own.WriteFile(name, address+"\n"); err != nil {
			return fmt.Errorf("write the database's address: %w", err)
		}
	}
	return nil
}

// dataDir returns the data directory: the option, or the user's place for data. It fails if the
// user has no home directory.
func dataDir(c *cli.Command) (string, error) {
	if dir := c.String("data-dir"); dir != "" {
		return dir, nil
	}
	if base := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "ojs-pg"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", cmdline.Misuse(fmt.Errorf("find a directory for the data: %w; name one with --data-dir", err))
	}
	return filepath.Join(home, ".local", "share", "ojs-pg"), nil
}

// printWelcome prints how to reach the system, and three commands to try. own is dev's own
// PostgreSQL, whose URLs are in files, because they are too long for a line of a terminal; nil: the
// database at url is the user's.
func printWelcome(out io.Writer, http string, own *embedpg.Server, url string) error {
	psql := "psql '" + url + "'"
	if own != nil {
		in := func(file string) string { return `psql "$(cat '` + filepath.Join(own.DataDir, file) + `')"` }
		psql = in(devURLFile) + "\n         as an application, which enqueues, works and reads\n  admin  " + in(devAdminFile)
	}
	_, err := fmt.Fprintf(out, `
  HTTP   %[1]s
  psql   %[2]s

Try, in psql:

  select id, state from ojs.enqueue('email.send', '["ada@example.com"]',
      p_tenant => 'acme');

in a shell:

  curl -sS %[1]s/ojs/v1/workers/fetch \
    -H 'Content-Type: application/json' \
    -d '{"queues": ["default"], "worker_id": "w1"}'

and in psql again:

  select * from ojs.overview;
  \set SHOW_CONTEXT never

The last line makes errors in psql three lines long. Ctrl-C stops it.

`, http, psql)
	return err
}
