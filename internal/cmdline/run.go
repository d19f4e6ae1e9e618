// Package cmdline holds what the programs in cmd share on the command line: how a program starts and ends, options of the log,
// validators, progress and colours. It knows no command, and nothing of jobs or PostgreSQL.
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
	"syscall"

	"github.com/urfave/cli/v3"
)

// Run runs a program and returns its exit status: 0 if it is done or a signal has stopped it in good order, 1 if something failed, 2 for
// a mistake on the command line. Errors go to stderr.
func Run(app *cli.Command, args []string, stdout, stderr io.Writer) int {
	// The first signal ends ctx, for an orderly stop. The second one meets Go's own handling and ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	var began, mistake string
	prepare(app, &began, &mistake)
	app.Writer, app.ErrWriter = stdout, stderr
	// Errors are printed here, once.
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

// Status is an error that ends the program with this exit status and prints nothing, because the command has printed all there is to say.
type Status int

func (s Status) Error() string { return fmt.Sprintf("status %d", int(s)) }

// misuse is a mistake on the command line rather than in the world.
type misuse struct{ error }

// Misuse marks an error as a mistake on the command line: Run then names the --help of the command, and returns 2.
func Misuse(err error) error { return misuse{err} }

// IsMisuse tells whether Misuse marked an error.
func IsMisuse(err error) bool {
	_, is := errors.AsType[misuse](err)
	return is
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

// Version is the version that a program shows: linked is what the linker has set. Without it, it is the commit that was built.
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
