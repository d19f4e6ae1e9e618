// Package cmdline holds what the programs in cmd share on the command line: how a program starts
// and ends, the options of the log, validators, progress and colours. It knows no command, and
// nothing of jobs or PostgreSQL.
package cmdline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v3"
)

// Run runs a program and returns its exit status: 0 if it is done or a signal has stopped it in
// good order, 1 if something failed, 2 for a mistake on the command line, or the Status that a
// command returns. It prints errors to stderr.
func Run(app *cli.Command, args []string, stdout, stderr io.Writer) int {
	// The first signal ends ctx, for an orderly stop. After it signals are no longer caught, so
	// that the second signal ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	var began, mistake string
	prepare(app, args, &began, &mistake)
	app.Writer, app.ErrWriter = stdout, stderr
	// The library would print errors, too.
	app.ExitErrHandler = func(context.Context, *cli.Command, error) {}
	err := app.Run(ctx, args)
	var end Status
	switch {
	case errors.As(err, &end):
		return int(end)
	case err == nil, ctx.Err() != nil && errors.Is(err, context.Canceled):
		return 0
	case IsMisuse(err), began == "":
		fmt.Fprintf(stderr, "%s %v\nTry: %s --help\n", Paints(stderr).Red(app.Name+":"), err, cmp.Or(began, mistake, named(app, args[1:])))
		return 2
	}
	fmt.Fprintf(stderr, "%s %v\n", Paints(stderr).Red(app.Name+":"), err)
	return 1
}

// Status is an error that ends the program with this exit status. Run prints nothing for it,
// because the command has printed its result.
type Status int

// Error is for logs; Run does not print it.
func (s Status) Error() string { return fmt.Sprintf("status %d", int(s)) }

// misuse is an error that the person at the command line can correct there.
type misuse struct{ error }

// Misuse marks an error as a mistake on the command line: Run then names the --help of the command,
// and returns 2.
func Misuse(err error) error { return misuse{err} }

// IsMisuse tells whether Misuse marked an error.
func IsMisuse(err error) bool {
	_, is := errors.AsType[misuse](err)
	return is
}

// named returns the name of the command that the arguments name. It is for errors of options in the
// environment, which the library reports before it looks for the command.
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

// prepare makes the library report errors without printing them. began becomes the name of the
// command when its action begins: an error before that is a mistake in options or in the
// environment. mistake becomes the name of the command whose options are wrong, if the library says
// which.
func prepare(c *cli.Command, args []string, began, mistake *string) {
	c.OnUsageError = func(_ context.Context, c *cli.Command, err error, _ bool) error {
		*mistake = c.FullName()
		return misplaced(c, args, err)
	}
	if action := c.Action; action != nil {
		c.Action = func(ctx context.Context, c *cli.Command) error {
			*began = c.FullName()
			return action(ctx, c)
		}
	}
	for _, sub := range c.Commands {
		prepare(sub, args, began, mistake)
	}
}

// misplaced returns the error of an option that c does not have. If a command below c has the
// option, preferably the one that the arguments name, the error says that it stands after the
// command.
func misplaced(c *cli.Command, args []string, err error) error {
	_, option, unknown := strings.Cut(err.Error(), "flag provided but not defined: ")
	if option = strings.TrimLeft(option, "-"); !unknown {
		return err
	}
	var takes *cli.Command
	for _, sub := range c.Commands {
		has := slices.ContainsFunc(sub.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), option) })
		if has && (takes == nil || slices.Contains(args, sub.Name)) {
			takes = sub
		}
	}
	if takes == nil {
		return err
	}
	return fmt.Errorf("%s has no option --%s; write it after the command: %s --%s", c.FullName(), option, takes.FullName(), option)
}

// Version returns the version that a program shows, with those of Go and the platform. linked is
// the version that the linker has set; without it Version names the commit that was built.
func Version(linked string) string {
	name := linked
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
