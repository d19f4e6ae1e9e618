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
	"unicode"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/names"
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

// Meant returns an error if an option or the argument of a command is an empty text, or if an option
// that takes one value is given twice. The options of mayBeEmpty may be empty. A script whose variable
// is empty means one tenant or one queue, and without the option the command would act on all; of two
// values, the first would be passed over.
func Meant(c *cli.Command, mayBeEmpty ...string) error {
	if c.Args().Present() && slices.Contains(c.Args().Slice(), "") {
		return Misuse(fmt.Errorf("the argument of %s is empty", c.FullName()))
	}
	for _, at := range c.Lineage() {
		for _, flag := range at.Flags {
			name := flag.Names()[0]
			if _, single := flag.(*cli.StringFlag); !single || !flag.IsSet() {
				continue
			}
			switch {
			case c.Count(name) > 1:
				return Misuse(fmt.Errorf("--%s is given more than once", name))
			case c.String(name) == "" && !slices.Contains(mayBeEmpty, name):
				return Misuse(fmt.Errorf("--%s is empty: leave it out, and unset its variable, if all are meant", name))
			}
		}
	}
	return nil
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
		return mistaken(c, args, err)
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

// mistaken returns the error of an option that c does not have. It says that the option stands after
// the command, if a command below c has it, or else which options of c were probably meant.
func mistaken(c *cli.Command, args []string, err error) error {
	_, option, unknown := strings.Cut(err.Error(), "flag provided but not defined: ")
	if option = strings.TrimLeft(option, "-"); !unknown {
		return err
	}
	if takes := takerOf(c, args, option); takes != nil {
		return fmt.Errorf("%s has no option --%s; write it after the command: %s --%s", c.FullName(), option, takes.FullName(), option)
	}
	if near := nearFlags(c, option); len(near) > 0 {
		return fmt.Errorf("there is no option --%s; did you mean --%s?", option, strings.Join(near, " or --"))
	}
	return err
}

// nearFlags returns at most two options of a command that an unknown one was probably meant for:
// options whose names resemble it or have it as one of their words, then options whose help says the
// word.
func nearFlags(c *cli.Command, unknown string) []string {
	var near, mentioned []string
	for _, flag := range c.VisibleFlags() {
		help := ""
		if documented, ok := flag.(cli.DocGenerationFlag); ok {
			help = documented.GetUsage()
		}
		name := flag.Names()[0]
		words := strings.FieldsFunc(help, func(r rune) bool { return !unicode.IsLetter(r) && r != '-' })
		if names.Resembles(unknown, name) || slices.Contains(strings.Split(name, "-"), unknown) {
			near = append(near, name)
		} else if slices.Contains(words, unknown) {
			mentioned = append(mentioned, name)
		}
	}
	near = append(near, mentioned...)
	return near[:min(len(near), 2)]
}

// takerOf returns a command below c that has an option, preferably the one that the arguments name;
// nil: there is none.
func takerOf(c *cli.Command, args []string, option string) (takes *cli.Command) {
	for _, sub := range c.Commands {
		has := slices.ContainsFunc(sub.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), option) })
		if has && (takes == nil || slices.Contains(args, sub.Name)) {
			takes = sub
		}
	}
	return takes
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
