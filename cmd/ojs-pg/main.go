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
	var began, mistake string
	prepare(app, &began, &mistake)
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
	case errors.As(err, &usage), began == "":
		fmt.Fprintf(stderr, "%s %v\nTry: %s --help\n", paints(stderr).red("ojs-pg:"), err, cmp.Or(began, mistake, named(app, args[1:])))
		return 2
	}
	fmt.Fprintf(stderr, "%s %v\n", paints(stderr).red("ojs-pg:"), err)
	return 1
}

// named is the command that arguments seem to be for, where an error in the environment kept it from being looked for.
func named(at *cli.Command, args []string) string {
	name := at.Name
	for _, arg := range args {
		if sub := at.Command(arg); sub != nil {
			at = sub
			name += " " + sub.Name
		}
	}
	return name
}

// usageError is a mistake on the command line rather than in the world.
type usageError struct{ error }

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
					cli.ShowVersion(c.Root())
					return nil
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

// prepare keeps the library from printing errors itself. began becomes the name of the command that begins: an error before that is a
// mistake in options or their environment, and mistake the name of the command whose options they are, as far as the library says.
func prepare(c *cli.Command, began, mistake *string) {
	c.OnUsageError = func(_ context.Context, c *cli.Command, err error, _ bool) error {
		*mistake = c.FullName()
		return err
	}
	if action := c.Action; action != nil {
		c.Action = func(ctx context.Context, c *cli.Command) error {
			*began = c.FullName()
			return action(ctx, c)
		}
	}
	for _, sub := range c.Commands {
		prepare(sub, began, mistake)
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
