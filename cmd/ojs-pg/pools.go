package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// poolsCommand returns the command for pools, which are groups of workers with queues, a limit and
// a strategy of their own.
func poolsCommand() *cli.Command {
	return &cli.Command{
		Name: "pools", Usage: "list pools of workers", Flags: pageFlags(), Action: withAdmin("", listPools),
		Commands: []*cli.Command{
			{
				Name: "set", ArgsUsage: "FILE", Action: withAdmin("FILE", setPools),
				Usage: "configure the pools of a JSON file or of stdin (-): {\"pool\": {...}} or {\"pools\": [...]}, each with its name",
			},
			{
				Name: "delete", Usage: "remove the configuration of a pool", ArgsUsage: "NAME",
				Flags: []cli.Flag{&cli.BoolFlag{
					Name: "yes", Sources: cli.EnvVars("OJS_ADMIN_YES"), Usage: "remove it although it has live workers, or isolates queues",
				}},
				Action: withAdmin("NAME", deletePool),
			},
		},
	}
}

// listPools prints pools, with what their workers do.
func listPools(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	limit, skip := o.page()
	rows, err := o.sql.Pools(ctx, sqlcgen.PoolsParams{MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, poolColumns)
}

// setPools configures the pools of a document, and prints their names. It changes no pool if one of
// them is refused.
func setPools(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	read := func() ([]byte, error) { return os.ReadFile(o.argument()) }
	if o.argument() == "-" {
		read = func() ([]byte, error) { return io.ReadAll(os.Stdin) }
	}
	document, err := read()
	if err != nil {
		return err
	}
	if !json.Valid(document) {
		return fmt.Errorf("%s is not a JSON document", o.argument())
	}
	names, err := o.sql.ConfigurePools(ctx, document)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintln(o.out, name)
	}
	return nil
}

// deletePool removes the configuration of a pool. It fails if the pool is in use, unless --yes is
// given.
func deletePool(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	if o.argument() == "" {
		return cmdline.Misuse(errors.New("name the pool"))
	}
	name, err := o.sql.DeletePool(ctx, sqlcgen.DeletePoolParams{Name: o.argument(), Confirm: o.Bool("yes")})
	if err != nil {
		return err
	}
	fmt.Fprintln(o.out, name)
	return nil
}
