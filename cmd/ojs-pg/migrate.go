package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v3"
	"golang.org/x/term"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
)

// migrateCommand returns `ojs-pg migrate`, the only command that changes the schema.
func migrateCommand() *cli.Command {
	return &cli.Command{
		Name:  "migrate",
		Usage: "create, upgrade, remove or show the schema",
		Description: `Needs a superuser, or a role with CREATEROLE that owns the database. If several run at once, each waits for
the one before. Six group roles are made besides the schema ojs; 'down' leaves them, because they belong to the
whole cluster.

    DATABASE_URL=postgres://postgres:secret@db.internal/app ojs-pg migrate up`,
		Commands: []*cli.Command{
			{
				Name:  "up",
				Usage: "create the schema, or upgrade it to this program's version",
				Flags: []cli.Flag{databaseFlag(true)},
				Action: func(ctx context.Context, c *cli.Command) error {
					return changeSchema(ctx, c, migrate.Up, "migrating")
				},
			},
			{
				Name:  "down",
				Usage: "remove the schema, with ALL JOBS in it",
				Flags: []cli.Flag{
					databaseFlag(true),
					&cli.BoolFlag{
						Name: "yes", Sources: cli.EnvVars("OJS_MIGRATE_YES"),
						Usage: "remove it without asking for the name of the database",
					},
				},
				Action: migrateDown,
			},
			{
				Name:   "status",
				Usage:  "list the migrations, and the code that up would apply",
				Flags:  []cli.Flag{databaseFlag(true)},
				Action: migrateStatus,
			},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if err := cmdline.NoArguments(c); err != nil {
				return err
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

// migrateDown removes the schema. It asks first, unless --yes is given or there is no schema.
func migrateDown(ctx context.Context, c *cli.Command) error {
	if err := cmdline.NoArguments(c); err != nil {
		return err
	}
	url, err := databaseURL(c)
	if err != nil {
		return err
	}
	if !c.Bool("yes") {
		losses, err := migrate.CountLosses(ctx, url)
		if err != nil {
			return err
		}
		if losses != nil {
			if err := consent(c, losses); err != nil {
				return err
			}
		}
	}
	return changeSchema(ctx, c, migrate.Down, "migrating down")
}

// consent asks for the name of the database, and fails if something else is typed. It does not ask
// for y, which is typed by habit. It fails at once if stdin is not a terminal, because nobody can
// answer.
func consent(c *cli.Command, losses *migrate.Losses) error {
	what := fmt.Sprintf("database %s has %d jobs that have not ended, %d that have, and %d dead letters, which would be lost",
		losses.Database, losses.Waiting, losses.Ended, losses.DeadLetters)
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return cmdline.Misuse(fmt.Errorf("%s: add --yes", what))
	}
	fmt.Fprintf(c.Root().ErrWriter, "%s.\nType the name of the database to go on: ", what)
	typed, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(typed) != losses.Database {
		return errors.New("nothing is changed, because that is not the name of the database")
	}
	return nil
}

// changeSchema migrates in a direction, and prints what it has done. what names the direction for
// people.
func changeSchema(ctx context.Context, c *cli.Command, direction migrate.Direction, what string) error {
	if err := cmdline.NoArguments(c); err != nil {
		return err
	}
	url, err := databaseURL(c)
	if err != nil {
		return err
	}
	before, _ := migrate.Status(ctx, url) // if this fails, migrate.Run fails, too
	bar := cmdline.NewProgress(c.Root().ErrWriter, cmdline.Logger(c))
	defer bar.Finish()
	first, last := int64(-1), int64(0) // how many migrations were applied at the first and the last report
	err = migrate.Run(ctx, url, direction, func(_ string, done, total int64) {
		bar.Report(what, done, total)
		if first < 0 {
			first = done
		}
		last = done
	})
	if err != nil {
		return err
	}
	bar.Finish()
	status, err := migrate.Status(ctx, url)
	if err != nil {
		return err
	}
	applied := 0
	for _, m := range status.Migrations {
		if m.Applied {
			applied++
		}
	}
	if direction == migrate.Up && before.Unfit != "" {
		fmt.Fprintf(c.Root().Writer, "made again what a restore had left out: %s\n", before.Unfit)
	}
	if first == last && (direction == migrate.Down || len(before.Code) == 0) {
		what = "nothing to do"
	} else {
		what += " is done"
	}
	_, err = fmt.Fprintf(c.Root().Writer, "%s: %d of %d migrations are applied\n", what, applied, len(status.Migrations))
	return err
}

// migrateStatus prints which migrations are applied, which code would be, and whether this program
// may run with the schema. It changes nothing.
func migrateStatus(ctx context.Context, c *cli.Command) error {
	if err := cmdline.NoArguments(c); err != nil {
		return err
	}
	url, err := databaseURL(c)
	if err != nil {
		return err
	}
	status, err := migrate.Status(ctx, url)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(c.Root().Writer, 0, 0, 2, ' ', 0)
	for _, m := range status.Migrations {
		when := "not applied"
		if m.Applied {
			when = "applied " + m.AppliedAt.UTC().Format("2006-01-02 15:04:05 UTC")
		}
		fmt.Fprintf(out, "%s\t%s\n", m.Name, when)
	}
	for _, name := range status.Code {
		fmt.Fprintf(out, "%s\tto be applied\n", name)
	}
	if status.Release != "" {
		fmt.Fprintf(out, "the functions are of release %s; servers of release %s and later may run with them\n", status.Release,
			status.NeedsServer)
	}
	switch {
	case status.Unfit != "":
		fmt.Fprintf(out, "a restore has left out what belongs to the schema (%s): run ojs-pg migrate up\n", status.Unfit)
	case status.Current:
		fmt.Fprintln(out, "the schema is this program's")
	case status.Hash == "":
		fmt.Fprintln(out, "there is no complete schema: run ojs-pg migrate up")
	default:
		fmt.Fprintln(out, "the schema is not this program's: run ojs-pg migrate up")
	}
	return out.Flush()
}
