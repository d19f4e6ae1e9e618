package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

// Exit statuses of doctor, by the worst finding, and of admin usage verify. 1 and 2 mean what they
// mean for every command: a failure, and a mistake on the command line.
const (
	foundWarnings = 3
	foundErrors   = 4
)

// doctorCommand returns `ojs-pg doctor`.
func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check connection, schema, settings, clock, transactions, tables, queues and workers, and say what is wrong",
		Description: `Needs the database only, no server. The login must be a member of ojs_operator or ojs_service; as a member
of pg_read_all_stats, too, it sees the transactions of all roles. The findings are those of ojs.doctor(),
which psql can call.

Exit status: 0 if nothing is wrong or there are notes only; 3 if there are warnings; 4 if there are errors, or
if the database cannot be read; 2 for a mistake on the command line.

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

// examine returns the findings. If it cannot call ojs.doctor, it returns the reason as a finding,
// so that --json and the exit status tell of it in the same way.
func examine(ctx context.Context, url string, params sqlcgen.DoctorParams) []sqlcgen.DoctorRow {
	// is returns the one finding that keeps the doctor from looking further.
	is := func(topic string, err error, advice, runbook string) []sqlcgen.DoctorRow {
		return []sqlcgen.DoctorRow{{Severity: "error", Topic: topic, Finding: err.Error(), Advice: advice, Runbook: runbook}}
	}
	locks := func(err error) []sqlcgen.DoctorRow {
		return is("server", err,
			"Look which session holds most locks, and end it. If nobody can connect, the log of a server that runs names it.",
			"locks-or-notify-full.md")
	}
	db, err := pg.Open(ctx, pg.Config{URL: url, MaxConns: 1, AppName: "ojs-pg doctor"})
	if sqlstate.In(err, sqlstate.OutOfMemory) {
		return locks(err)
	}
	if err != nil {
		return is("connection", err, "Look at DATABASE_URL, and whether PostgreSQL runs and lets this role in.", "postgres-away.md")
	}
	defer db.Close()
	err = migrate.CheckSchema(ctx, db.Pool())
	if sqlstate.In(err, sqlstate.OutOfMemory) {
		err = nil // ojs.doctor() needs fewer locks, and names the session that holds them
	}
	if role, isRole := errors.AsType[*migrate.RoleError](err); isRole {
		// No runbook: the database may be in good order.
		return is("roles", errors.New(role.Holds()+", and the doctor needs an administrator's."), administratorAdvice, "")
	}
	switch {
	case errors.Is(err, migrate.ErrUnfit):
		return is("roles", err, "If a dump was restored into another cluster, create the login roles again.", "backup-and-restore.md")
	case errors.Is(err, migrate.ErrSchema):
		return is("schema", err, "ojs-pg migrate status shows which migrations are missing.", "failed-migration.md")
	case err != nil:
		return is("connection", err, "Look at DATABASE_URL, and whether PostgreSQL runs and lets this role in.", "postgres-away.md")
	}
	rows, err := sqlcgen.New(db.Pool()).Doctor(ctx, params)
	if sqlstate.In(err, sqlstate.OutOfMemory) {
		return locks(err)
	}
	if err != nil {
		return is("connection", err, "PostgreSQL has ended the statement: look at its log.", "postgres-away.md")
	}
	return rows
}

// tell prints the findings, or that nothing is wrong.
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

// tellOne prints a finding with its advice and the path of its runbook, if it has one. On a
// terminal it breaks lines between words, where the terminal would break them within words.
func tellOne(out io.Writer, f *sqlcgen.DoctorRow) error {
	finding, advice := fmt.Sprintf("%s: %s: %s", f.Severity, f.Topic, f.Finding), "    "+f.Advice
	if width := cmdline.Width(out); width > 0 {
		finding, advice = cmdline.Wrap(finding, "  ", width), cmdline.Wrap(advice, "    ", width)
	}
	finding = severity(out, f.Severity) + strings.TrimPrefix(finding, f.Severity)
	_, err := fmt.Fprintf(out, "%s\n%s\n", finding, advice)
	if err == nil && f.Runbook != "" {
		_, err = fmt.Fprintf(out, "    docs/runbooks/%s\n", f.Runbook)
	}
	return err
}

// severity returns a severity, in its colour if out is a terminal.
func severity(out io.Writer, of string) string {
	switch of {
	case "error":
		return cmdline.Paints(out).Red(of)
	case "warning":
		return cmdline.Paints(out).Yellow(of)
	}
	return of
}

// verdict returns the exit status for the worst finding, or nil if there is neither an error nor a
// warning.
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
