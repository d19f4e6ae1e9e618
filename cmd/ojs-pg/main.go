// Command ojs-pg is the program. It reads options from the command line and the environment, opens
// the database, and connects the packages below internal with each other. PostgreSQL decides what a
// job is and which job is next, so that no rule of the job system stands here. CONTRIBUTING.md lists the
// packages. Commands are in files by subject, such as migrate.go; what several programs need on the
// command line is in internal/cmdline.
package main

import (
	"context"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
)

// version is set by the linker (make build). If it is empty, versionText returns the commit
// instead.
var version string

func main() {
	cmdline.TuneMemory()
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// run runs the program and returns its exit status. Tests call it in place of main.
func run(args []string, stdout, stderr io.Writer) int {
	return cmdline.Run(command(), args, stdout, stderr)
}

// command returns the program with all its commands.
func command() *cli.Command {
	return &cli.Command{
		Name:    "ojs-pg",
		Usage:   "a job system in PostgreSQL, fair between tenants",
		Version: versionText(),
		// The library hides the command that prints the scripts, and --help would not list it.
		EnableShellCompletion:           true,
		ConfigureShellCompletionCommand: func(c *cli.Command) { c.Hidden = false },
		Description: `Applications enqueue jobs from SQL, in their own transactions, or over HTTP (Open Job Spec). Workers in any
language fetch them over HTTP or SQL. Everything is in one schema of one database.

To try it, with nothing installed:        ojs-pg dev
To run it on your own database:           export DATABASE_URL=postgres://user:password@host/database
                                          ojs-pg migrate up
                                          ojs-pg serve

Every option has a name in the environment, which --help shows in brackets; the command line wins.`,
		Flags: cmdline.LogFlags(),
		Commands: []*cli.Command{
			devCommand(),
			serveCommand(),
			migrateCommand(),
			adminCommand(),
			keyCommand(),
			topCommand(),
			healthCommand(),
			doctorCommand(),
			{
				Name:  "version",
				Usage: "print the version",
				Action: func(_ context.Context, c *cli.Command) error {
					cli.ShowVersion(c.Root())
					return nil
				},
			},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return cmdline.Unexpected(c, c.Args().First())
			}
			return cli.ShowRootCommandHelp(c)
		},
	}
}

// versionText returns the version, with that of Go and the platform.
func versionText() string { return cmdline.Version(version) }
