// Command ojs-bench measures ojs-pg and a baseline. It reads the options and prints the results; internal/bench measures.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
)

func main() {
	// As ojs-pg does, so that servers behave in the same way.
	cmdline.TuneMemory()
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	return cmdline.Run(command(), args, stdout, stderr)
}

func command() *cli.Command {
	var b benchmarks
	return &cli.Command{
		Name:    "ojs-bench",
		Usage:   "measure ojs-pg beside a baseline, on this machine",
		Version: cmdline.Version(""),
		Description: `Each benchmark runs against a PostgreSQL that it starts itself and deletes at the end, on Ctrl-C too; fsync
and synchronous_commit are on. With DATABASE_URL it uses that database instead: it must be empty, or migrated and without any job,
tenant or queue in it (else the benchmark refuses), and the role must be a superuser. What it makes there, jobs, the schema
ojs_bench, and the schema ojs where there was none, it deletes in the end; the six group roles of the schema stay.

Ours and the baseline take turns in slices of one run; the figure is the median of the ratios of the slices, with an interval that holds
the median with at least 95 %. Nothing else should run on the machine. docs/benchmarks says more about each figure.

    ojs-bench dispatch --workers 16 --batch 10
    ojs-bench dispatch --json > dispatch.json`,
		Flags: cmdline.LogFlags(),
		Commands: []*cli.Command{
			b.dispatch(), b.enqueue(), b.scale(), b.pinned(), b.neighbour(), b.wakeup(), b.light(), b.mixed(), b.child(),
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return cmdline.Misuse(fmt.Errorf("there is no benchmark %q", c.Args().First()))
			}
			return cli.ShowRootCommandHelp(c)
		},
	}
}
