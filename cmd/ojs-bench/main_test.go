package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// The environment must not change what is tested. A child that a test starts finds its input closed.
func TestMain(m *testing.M) {
	for _, name := range []string{"DATABASE_URL", "OJS_LOG_LEVEL", "OJS_LOG_FORMAT", "OJS_BENCH_DIR"} {
		os.Unsetenv(name)
	}
	var err error
	if os.Stdin, err = os.Open(os.DevNull); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestHelpAndMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"", 0, "COMMANDS:"},
		{"--version", 0, "ojs-bench version "},
		{"dispatch --help", 0, "within_bounds"},
		{"fly", 2, `there is no benchmark "fly"`},
		{"fly", 2, "Try: ojs-bench --help"},
		{"dispatch --nope", 2, "Try: ojs-bench dispatch --help"},
		{"dispatch --workers 0", 2, "0 is less than 1"},
		{"dispatch workers", 2, `takes no argument "workers"`},
		{"dispatch --path sideways", 2, "none of combined, sql, http"},
		{"dispatch --database-url postgres://x/y --stock", 2, "DATABASE_URL names another one"},
		{"enqueue --auth api-key", 2, "with --path http"},
		{"scale --few-jobs 100", 2, "take fewer samples, or more jobs"},
		{"--log-level loud wakeup", 2, "none of debug, info, warn, error"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			status := run(append([]string{"ojs-bench"}, strings.Fields(c.args)...), &out, &errs)
			if output := out.String() + errs.String(); status != c.status || !strings.Contains(output, c.want) {
				t.Errorf("it ends with %d, want %d and %q in:\n%s", status, c.status, c.want, output)
			}
		})
	}
}

// Benchmarks start this program again, so the command line that self returns has to run a child. Its
// input is closed, so it ends at once.
func TestHowChildrenAreStarted(t *testing.T) {
	t.Parallel()
	var again []string
	app := command()
	app.Action = func(_ context.Context, c *cli.Command) (err error) {
		again, err = self(c)
		return err
	}
	if err := app.Run(t.Context(), []string{"ojs-bench", "--log-level", "warn", "--log-format", "json"}); err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"warn", "json"} {
		if !slices.Contains(again, option) {
			t.Errorf("a child is started by %q, without %s", again, option)
		}
	}
	var out, errs bytes.Buffer
	if status := run(append(again, "hog"), &out, &errs); status != 0 || out.String() != "ok\n" {
		t.Errorf("%q hog ends with %d and says %q, %q", again, status, &out, &errs)
	}
}
