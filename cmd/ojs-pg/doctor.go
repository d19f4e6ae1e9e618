package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// What doctor ends with; 1 and 2 are errors of other kinds, as of every command.
const (
	foundWarnings = 3
	foundErrors   = 4
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "say what is wrong: connection, schema, settings, clock, transactions, tables, queues, workers",
		Description: `Needs the database alone, no server: a login that is a member of ojs_operator, or ojs_service. A member of
pg_read_all_stats, too, sees the transactions of all roles. What is found is judged by ojs.doctor(), so that
psql says the same.

Ends with 0 if nothing is wrong, or there are notes only; 3 if there are warnings; 4 if there are errors, or
the database cannot be asked; 2 for a mistake on the command line.

    ojs-pg doctor --max-conns 16 --servers 3`,
		Flags: []cli.Flag{
			databaseFlag(true),
			&cli.BoolFlag{Name: "json", Sources: cli.EnvVars("OJS_DOCTOR_JSON"), Usage: "print JSON instead of sentences"},
			&cli.Int32Flag{
				Name: "max-conns", Value: 16, Sources: cli.EnvVars("OJS_MAX_CONNS"),
				Usage: "`NUMBER` of connections that each server may open", Validator: cmdline.AtLeast[int32](minConns),
			},
			&cli.Int32Flag{
				Name: "servers", Value: 1, Sources: cli.EnvVars("OJS_DOCTOR_SERVERS"), Usage: "`NUMBER` of servers that run",
				Validator: cmdline.AtLeast[int32](1),
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := cmdline.NoArguments(c); err != nil {
				return err
			}
			url, err := databaseURL(c)
			if err != nil {
				return err
			}
			found := examine(ctx, url, sqlcgen.DoctorParams{MaxConns: new(c.Int32("max-conns")), Servers: c.Int32("servers")})
			if err := tell(c, found); err != nil {
				return err
			}
			return verdict(found)
		},
	}
}

// examine says what is wrong. What keeps it from asking is a finding, too.
func examine(ctx context.Context, url string, params sqlcgen.DoctorParams) []sqlcgen.DoctorRow {
	is := func(topic string, err error, advice, runbook string) []sqlcgen.DoctorRow {
		return []sqlcgen.DoctorRow{{Severity: "error", Topic: topic, Finding: err.Error(), Advice: advice, Runbook: runbook}}
	}
	db, err := pg.Open(ctx, pg.Config{URL: url, MaxConns: 1, AppName: "ojs-pg doctor"})
	if err != nil {
		return is("connection", err, "Look at DATABASE_URL, and whether PostgreSQL runs and lets this role in.", "postgres-away.md")
	}
	defer db.Close()
	err = db.CheckSchema(ctx)
	if role, isRole := errors.AsType[*pg.RoleError](err); isRole {
		// No runbook: the database may be in good order.
		return is("roles", errors.New(role.Holds()+", and the doctor needs an administrator's."), administratorAdvice, "")
	}
	switch {
	case errors.Is(err, pg.ErrUnfit):
		return is("roles", err, "Create the login roles again afterwards, if the cluster is another one.", "backup-and-restore.md")
	case errors.Is(err, pg.ErrSchema):
		return is("schema", err, "Compare with ojs-pg migrate status.", "failed-migration.md")
	case err != nil:
		return is("connection", err, "Look at DATABASE_URL, and whether PostgreSQL runs and lets this role in.", "postgres-away.md")
	}
	rows, err := sqlcgen.New(db.Pool()).Doctor(ctx, params)
	if err != nil {
		return is("connection", err, "PostgreSQL broke off the question: look at its log.", "postgres-away.md")
	}
	return rows
}

// tell prints what was found.
func tell(c *cli.Command, found []sqlcgen.DoctorRow) error {
	out := c.Root().Writer
	if c.Bool("json") {
		if found == nil {
			found = []sqlcgen.DoctorRow{}
		}
		return admin.JSON(out, found)
	}
	if len(found) == 0 {
		_, err := fmt.Fprintln(out, cmdline.Paints(out).Green("nothing is wrong"))
		return err
	}
	for i := range found {
		if err := tellOne(out, &found[i]); err != nil {
			return err
		}
	}
	return nil
}

// tellOne prints a finding with its advice and the path of its runbook, if it has one.
func tellOne(out io.Writer, f *sqlcgen.DoctorRow) error {
	_, err := fmt.Fprintf(out, "%s: %s: %s\n    %s\n", severity(out, f.Severity), f.Topic, f.Finding, f.Advice)
	if err == nil && f.Runbook != "" {
		_, err = fmt.Fprintf(out, "    docs/runbooks/%s\n", f.Runbook)
	}
	return err
}

// severity is written in the colour that it has on a terminal.
func severity(out io.Writer, of string) string {
	switch of {
	case "error":
		return cmdline.Paints(out).Red(of)
	case "warning":
		return cmdline.Paints(out).Yellow(of)
	}
	return of
}

// verdict is the worst that was found.
func verdict(found []sqlcgen.DoctorRow) error {
	worst := cmdline.Status(0)
	for i := range found {
		switch found[i].Severity {
		case "error":
			worst = foundErrors
		case "warning":
			worst = max(worst, foundWarnings)
		}
	}
	if worst == 0 {
		return nil
	}
	return worst
}
