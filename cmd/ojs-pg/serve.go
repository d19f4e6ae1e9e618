package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "answer HTTP for a database that has the schema",
		Description: `Needs a database that 'ojs-pg migrate up' has prepared, and a login role that is a member of ojs_service
and of nothing else (scripts/server-role.sql makes one). Any number of servers may run side by side.
A schema of another version is refused, with what to do about it.

    DATABASE_URL=postgres://ojs_server:secret@db.internal/app ojs-pg serve --listen 10.0.0.5:8080

SIGINT or SIGTERM: /ojs/v1/ready answers 503, requests under way are finished, then the server ends.
A second signal ends it at once.`,
		Flags: append([]cli.Flag{
			databaseFlag(true),
			&cli.StringFlag{
				Name: "listen-url", Sources: cli.EnvVars("OJS_LISTEN_URL"), DefaultText: "that of the database",
				Usage: "`URL` of PostgreSQL itself, for the one connection that listens, when the database's leads to PgBouncer in transaction mode",
			},
		}, serverFlags()...),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := noArguments(c); err != nil {
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
	log := newLogger(c)
	db, err := pg.Open(ctx, pg.Config{URL: url, ListenURL: c.String("listen-url"), MaxConns: c.Int32("max-conns"), AppName: "ojs-pg serve"})
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.CheckSchema(ctx); err != nil {
		return err
	}
	socket, err := listen(ctx, c.String("listen"))
	if err != nil {
		return err
	}
	return server{db: db, socket: socket, log: log, tick: c.Duration("tick"), drain: c.Duration("drain")}.run(ctx)
}
