package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// serveCommand returns `ojs-pg serve`, the server of a production system.
func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run a server that answers HTTP requests for a database",
		Description: `Needs a database that 'ojs-pg migrate up' has prepared, and a login that is a member of ojs_service and of
nothing else (scripts/server-role.sql makes one). Any number of servers may run on one database. A server
refuses a schema of another version, and says what to do.

    DATABASE_URL=postgres://ojs_server:secret@db.internal/app ojs-pg serve --listen 10.0.0.5:8080 --auth api-key

After SIGINT or SIGTERM /ojs/v1/ready answers 503. --drain-delay later the server accepts no more connections,
finishes the requests under way, and ends. A second signal ends it at once.`,
		Flags: append([]cli.Flag{
			databaseFlag(true),
			&cli.StringFlag{
				Name: "direct-url", Sources: cli.EnvVars("OJS_DIRECT_URL"), DefaultText: "that of the database",
				Usage: "`URL` of PostgreSQL itself, for the one connection that receives notifications; " +
					"needed if the URL of the database leads to PgBouncer in transaction mode",
			},
			// The former name of direct-url, which was easily mistaken for the address of HTTP.
			&cli.StringFlag{Name: "listen-url", Sources: cli.EnvVars("OJS_LISTEN_URL"), Hidden: true},
			&cli.BoolFlag{
				Name: "after-restore", Sources: cli.EnvVars("OJS_AFTER_RESTORE"),
				Usage: "hold the dispatch of all servers at the start, so that no restored job runs before you resume it " +
					"(docs/runbooks/after-restore.md)",
			},
			configFlag(),
		}, serverFlags()...),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := cmdline.NoArguments(c); err != nil {
				return err
			}
			url, err := databaseURL(c)
			if err != nil {
				return err
			}
			return serve(ctx, c, url)
		},
	}
}

// serve runs a server until ctx ends. It fails if the database, the configuration or the address
// cannot be used. It opens the port after it has checked the database and applied the
// configuration, so that no client connects before.
func serve(ctx context.Context, c *cli.Command, url string) error {
	log := cmdline.Logger(c)
	db, err := openDatabase(ctx, pg.Config{
		URL: url, ListenURL: cmp.Or(c.String("direct-url"), c.String("listen-url")),
		MaxConns: c.Int32("max-conns"), AppName: "ojs-pg serve",
	}, log)
	if err != nil {
		return err
	}
	defer db.Close()
	q := sqlcgen.New(db.Pool())
	if c.Bool("after-restore") {
		if _, err := q.HoldDispatch(ctx); err != nil {
			return fmt.Errorf("hold dispatch: %w", err)
		}
	}
	dispatch, err := q.Dispatch(ctx)
	if err != nil {
		return fmt.Errorf("ask whether dispatch is held: %w", err)
	}
	if dispatch.HeldAt != nil {
		// Without this line a server that hands out nothing would look healthy.
		log.Warn("dispatch is held: nothing runs until POST /ojs/v1/admin/dispatch/resume, or ojs.resume_dispatch() in psql",
			"since", dispatch.HeldAt, "available", dispatch.Available, "active", dispatch.Active)
	}
	if err := applyConfig(ctx, db, log, c.String("config")); err != nil {
		return err
	}
	socket, err := listen(ctx, c)
	if err != nil {
		return err
	}
	defer socket.Close()
	s, err := newServer(c, db, socket)
	if err != nil {
		return err
	}
	s.held = dispatch.HeldAt != nil
	return s.run(ctx)
}
