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

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "answer HTTP for a database that has the schema",
		Description: `Needs a database that 'ojs-pg migrate up' has prepared, and a login role that is a member of ojs_service
and of nothing else (scripts/server-role.sql makes one). Any number of servers may run side by side.
A schema of another version is refused, with what to do about it.

    DATABASE_URL=postgres://ojs_server:secret@db.internal/app ojs-pg serve --listen 10.0.0.5:8080 --auth api-key

SIGINT or SIGTERM: /ojs/v1/ready answers 503; --drain-delay later nobody is let in any more, requests under
way are finished, and the server ends.
A second signal ends it at once.`,
		Flags: append([]cli.Flag{
			databaseFlag(true),
			&cli.StringFlag{
				Name: "direct-url", Sources: cli.EnvVars("OJS_DIRECT_URL"), DefaultText: "that of the database",
				Usage: "`URL` of PostgreSQL itself, for the one connection that takes notifications, " +
					"when the database's leads to PgBouncer in transaction mode",
			},
			// The name before, which was easily taken for the address of HTTP.
			&cli.StringFlag{Name: "listen-url", Sources: cli.EnvVars("OJS_LISTEN_URL"), Hidden: true},
			&cli.BoolFlag{
				Name: "after-restore", Sources: cli.EnvVars("OJS_AFTER_RESTORE"),
				Usage: "hold dispatch at the start, of all servers: nothing that was restored runs before you have looked and resumed it " +
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
