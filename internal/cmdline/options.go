package cmdline

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/names"
)

// LogFlags returns the options of the log, which Logger reads. They are options of the program, so
// that all its commands have them.
func LogFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "log-format", Value: "text", Sources: cli.EnvVars("OJS_LOG_FORMAT"),
			Usage:     "`FORMAT` of the log on stderr: text or json",
			Validator: OneOf("text", "json"), ValidateDefaults: true,
		},
		&cli.StringFlag{
			Name: "log-level", Value: "info", Sources: cli.EnvVars("OJS_LOG_LEVEL"),
			Usage:     "lowest `LEVEL` that is logged: debug, info, warn or error",
			Validator: OneOf("debug", "info", "warn", "error"), ValidateDefaults: true,
		},
	}
}

// Logger returns a logger that writes to stderr in the format and from the level on that the
// options say.
func Logger(c *cli.Command) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.String("log-level"))) // validated with the flag
	options := &slog.HandlerOptions{Level: level}
	if c.String("log-format") == "json" {
		return slog.New(slog.NewJSONHandler(c.Root().ErrWriter, options))
	}
	return slog.New(slog.NewTextHandler(c.Root().ErrWriter, options))
}

// OneOf returns a validator that accepts these words only.
func OneOf(words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
		}
		return nil
	}
}

// AtLeast returns a validator that refuses values below least.
func AtLeast[T cmp.Ordered](least T) func(T) error {
	return func(v T) error {
		if v < least {
			return fmt.Errorf("%v is less than %v", v, least)
		}
		return nil
	}
}

// Between returns a validator that refuses values below least or above most.
func Between[T cmp.Ordered](least, most T) func(T) error {
	return func(v T) error {
		if v < least || v > most {
			return fmt.Errorf("%v is not between %v and %v", v, least, most)
		}
		return nil
	}
}

// NoArguments fails if there are arguments. An option without its two hyphens is one, and would be
// ignored otherwise.
func NoArguments(c *cli.Command) error {
	if c.Args().Present() {
		return Unexpected(c, c.Args().First())
	}
	return nil
}

// Unexpected returns the error about an argument that a command does not take. If the command has
// commands of its own, the error names the command whose name resembles the argument.
func Unexpected(c *cli.Command, argument string) error {
	commands := c.VisibleCommands()
	if len(commands) == 0 {
		return Misuse(fmt.Errorf("%s takes no argument %q", c.FullName(), argument))
	}
	for _, known := range commands {
		if slices.ContainsFunc(known.Names(), func(name string) bool { return names.Resembles(argument, name) }) {
			return Misuse(fmt.Errorf("%s has no command %q; did you mean %q?", c.FullName(), argument, known.FullName()))
		}
	}
	return Misuse(fmt.Errorf("%s has no command %q", c.FullName(), argument))
}
