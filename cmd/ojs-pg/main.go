// Command ojs-pg is the program: it reads flags and environment, and wires the rooms together.
// What a job is and who is next is decided in PostgreSQL; see CONTRIBUTING.md for the packages.
package main

import (
	"context"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
)

// version is set by the linker; a build without it tells its commit.
var version string

func main() {
	cmdline.TuneMemory()
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	return cmdline.Run(command(), args, stdout, stderr)
}

func command() *cli.Command {
	return &cli.Command{
		Name:    "ojs-pg",
		Usage:   "a job system in PostgreSQL, fair between tenants",
		Version: versionText(),
		// The library hides the command that prints the scripts.
		EnableShellCompletion:           true,
		ConfigureShellCompletionCommand: func(c *cli.Command) { c.Hidden = false },
		Description: `Jobs are enqueued from SQL, in your own transaction, or over HTTP (Open Job Spec); workers of any
language fetch them over HTTP or SQL. Everything is in one schema of one database.

To try it, with nothing installed:        ojs-pg dev
To run it on a database that you have:    export DATABASE_URL=postgres://user:password@host/database
                                          ojs-pg migrate up
                                          ojs-pg serve

Every option can be given in the environment instead, under the name in brackets; the command line wins.`,
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

func versionText() string { return cmdline.Version(version) }
