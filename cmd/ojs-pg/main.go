// Command ojs-pg is the program: it reads flags and environment, and wires the rooms together.
// What a job is and who is next is decided in PostgreSQL; see the README for the rooms.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v3"
)

// version is set by the linker; a build without it tells its commit.
var version string

func main() {
	// A server's live memory is small and its garbage is not: collecting it four times less often costs some
	// megabytes and saves a tenth of the processor.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	ctx, interrupt := watchSignals()
	defer interrupt.stop()
	app := command(interrupt)
	begun := false
	prepare(app, &begun)
	app.Writer, app.ErrWriter = stdout, stderr
	// Errors are printed here, once.
	app.ExitErrHandler = func(context.Context, *cli.Command, error) {}
	err := app.Run(ctx, args)
	var usage usageError
	switch {
	case err == nil, interrupt.happened() && errors.Is(err, context.Canceled):
		return 0
	case errors.As(err, &usage), !begun:
		fmt.Fprintf(stderr, "ojs-pg: %v\nTry: ojs-pg --help\n", err)
		return 2
	}
	fmt.Fprintf(stderr, "ojs-pg: %v\n", err)
	return 1
}

// usageError is a mistake on the command line rather than in the world.
type usageError struct{ error }

func command(interrupt *interrupt) *cli.Command {
	return &cli.Command{
		Name:  "ojs-pg",
		Usage: "a job system in PostgreSQL, fair between tenants",
		Description: `Jobs are enqueued from SQL, in your own transaction, or over HTTP (Open Job Spec); workers of any
language fetch them over HTTP or SQL. Everything is in one schema of one database.

To try it, with nothing installed:        ojs-pg dev
To run it on a database that you have:    export DATABASE_URL=postgres://user:password@host/database
                                          ojs-pg migrate up
                                          ojs-pg serve

Every option can be given in the environment instead, under the name in brackets; the command line wins.`,
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "log-format", Value: "text", Sources: cli.EnvVars("OJS_LOG_FORMAT"), Usage: "`FORMAT` of the log on stderr: text or json",
				Validator: oneOf("text", "json"), ValidateDefaults: true,
			},
			&cli.StringFlag{
				Name: "log-level", Value: "info", Sources: cli.EnvVars("OJS_LOG_LEVEL"), Usage: "least `LEVEL` that is logged: debug, info, warn or error",
				Validator: oneOf("debug", "info", "warn", "error"), ValidateDefaults: true,
			},
		},
		Commands: []*cli.Command{
			devCommand(interrupt),
			serveCommand(),
			migrateCommand(),
			healthCommand(),
			benchCommand(interrupt),
			{
				Name:  "version",
				Usage: "print the version",
				Action: func(_ context.Context, c *cli.Command) error {
					_, err := fmt.Fprintf(c.Root().Writer, "ojs-pg %s\n", versionText())
					return err
				},
			},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return usageError{fmt.Errorf("there is no command %q", c.Args().First())}
			}
			return cli.ShowRootCommandHelp(c)
		},
	}
}

// prepare keeps the library from printing errors itself, and notes when a command has begun: what
// fails before, in options or their environment, is a mistake of usage.
func prepare(c *cli.Command, begun *bool) {
	c.OnUsageError = func(_ context.Context, _ *cli.Command, err error, _ bool) error { return err }
	if action := c.Action; action != nil {
		c.Action = func(ctx context.Context, c *cli.Command) error {
			*begun = true
			return action(ctx, c)
		}
	}
	for _, sub := range c.Commands {
		prepare(sub, begun)
	}
}

func oneOf(words ...string) func(string) error {
	return func(s string) error {
		for _, word := range words {
			if s == word {
				return nil
			}
		}
		return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
	}
}

// noArguments catches a forgotten -- before an option's value.
func noArguments(c *cli.Command) error {
	if c.Args().Present() {
		return usageError{fmt.Errorf("%s takes no argument %q", c.FullName(), c.Args().First())}
	}
	return nil
}

func newLogger(c *cli.Command) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.String("log-level"))) // validated with the flag
	options := &slog.HandlerOptions{Level: level}
	if c.String("log-format") == "json" {
		return slog.New(slog.NewJSONHandler(c.Root().ErrWriter, options))
	}
	return slog.New(slog.NewTextHandler(c.Root().ErrWriter, options))
}

func versionText() string {
	name := version
	if info, ok := debug.ReadBuildInfo(); ok && name == "" {
		name = info.Main.Version
		if name == "" || name == "(devel)" {
			name = "development"
		}
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				name += " " + setting.Value[:min(12, len(setting.Value))]
			}
		}
	}
	return fmt.Sprintf("%s (%s, %s/%s)", name, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
