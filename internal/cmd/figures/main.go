// Command figures measures and draws what the documents show. It runs at the root of the repository.
//
//	figures fairness          measures docs/images/fairness.svg, four minutes
//	figures benchmarks        draws docs/images/benchmarks.svg from docs/benchmarks/results.json
//	figures keep NAME FILE    stores the output of `ojs-bench --json` under a name in results.json
//	figures table             prints the figures of results.json as a table
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "fairness":
		return drawFairness(ctx, "docs/images/fairness.svg")
	case len(args) == 1 && args[0] == "benchmarks":
		return drawBenchmarks(resultsFile, "docs/images/benchmarks.svg")
	case len(args) == 3 && args[0] == "keep":
		return keep(resultsFile, args[1], args[2])
	case len(args) == 1 && args[0] == "table":
		return printTable(os.Stdout, resultsFile)
	}
	return errors.New("one of: fairness, benchmarks, keep NAME FILE, table")
}
