// Command ojs-pg is the program: it reads flags and environment, and wires the rooms together.
// What a job is and who is next is decided in PostgreSQL; see the README for the rooms.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v3"
)

// version is set by the linker; a build without it tells its commit.
var version string

func main() {
	tuneMemory()
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	// The first signal ends ctx, for an orderly stop. The second one meets Go's own handling and ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	app := command()
	begun := false
	prepare(app, &begun)
	app.Writer, app.ErrWriter = stdout, stderr
	// Errors are printed here, once.
	app.ExitErrHandler = func(context.Context, *cli.Command, error) {}
	err := app.Run(ctx, args)
	var usage usageError
	var end status
	switch {
	case errors.As(err, &end):
		return int(end)
	case err == nil, ctx.Err() != nil && errors.Is(err, context.Canceled):
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

func command() *cli.Command {
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
				Name: "log-format", Value: "text", Sources: cli.EnvVars("OJS_LOG_FORMAT"),
				Usage:     "`FORMAT` of the log on stderr: text or json",
				Validator: oneOf("text", "json"), ValidateDefaults: true,
			},
			&cli.StringFlag{
				Name: "log-level", Value: "info", Sources: cli.EnvVars("OJS_LOG_LEVEL"),
				Usage:     "least `LEVEL` that is logged: debug, info, warn or error",
				Validator: oneOf("debug", "info", "warn", "error"), ValidateDefaults: true,
			},
		},
		Commands: []*cli.Command{
			devCommand(),
			serveCommand(),
			migrateCommand(),
			adminCommand(),
			keyCommand(),
			topCommand(),
			healthCommand(),
			doctorCommand(),
			benchCommand(),
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

// prepare keeps the library from printing errors itself, and sets begun when a command begins: an error before that is a mistake
// in options or their environment.
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
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
		}
		return nil
	}
}

func atLeast[T cmp.Ordered](least T) func(T) error {
	return func(v T) error {
		if v < least {
			return fmt.Errorf("%v is less than %v", v, least)
		}
		return nil
	}
}

func between[T cmp.Ordered](least, most T) func(T) error {
	return func(v T) error {
		if v < least || v > most {
			return fmt.Errorf("%v is not between %v and %v", v, least, most)
		}
		return nil
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
