package main

import (
	"context"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// usageCommand returns the command that reads, verifies and prunes the usage ledger.
func usageCommand() *cli.Command {
	period := []cli.Flag{
		&cli.StringFlag{
			Name: "since", Value: "P1D", Sources: cli.EnvVars("OJS_ADMIN_SINCE"),
			Usage: "only hours since a `TIME`, as in RFC 3339, or since an age, such as P31D",
		},
		&cli.StringFlag{
			Name: "until", Sources: cli.EnvVars("OJS_ADMIN_UNTIL"), Usage: "only hours before a `TIME`, as in RFC 3339, or an age",
		},
	}
	return &cli.Command{
		Name: "usage", Usage: "list what each tenant used in each hour, for billing", Flags: append([]cli.Flag{limitFlag()}, period...),
		Action: withAdmin("", listUsage),
		Commands: []*cli.Command{
			{Name: "csv", Usage: "print all rows of the period as CSV", Action: withAdmin("", printUsageCSV)},
			{Name: "latest", Usage: "show the latest row of a tenant", ArgsUsage: "ID", Action: withAdmin("ID", latestUsage)},
			{
				Name: "verify", Usage: "verify the hashes of all rows, or those of a tenant (--tenant); exit status 4: a row was changed",
				Action: withAdmin("", verifyUsage),
			},
			{
				Name: "prune", Usage: "delete the rows of hours before a time", Action: withAdmin("", pruneUsage),
				Flags: []cli.Flag{&cli.StringFlag{
					Name: "before", Required: true, Sources: cli.EnvVars("OJS_ADMIN_BEFORE_TIME"),
					Usage: "a `TIME`, as in RFC 3339, or an age, such as P400D",
				}},
			},
		},
	}
}

// usageOf reads the options of a period.
func usageOf(ctx context.Context, o *operator) (of admin.Usage, err error) {
	of.Tenant = o.tenant
	if of.Since, err = readTime(ctx, o, "since"); err != nil {
		return of, err
	}
	of.Until, err = readTime(ctx, o, "until")
	return of, err
}

// listUsage prints rows of the usage ledger, the oldest first.
func listUsage(ctx context.Context, o *operator) error {
	of, err := usageOf(ctx, o)
	if err != nil {
		return err
	}
	rows, err := of.Read(ctx, o.sql, int(o.Int32("limit")))
	if err != nil {
		return err
	}
	return table(ctx, o, rows, usageColumns)
}

// printUsageCSV prints all rows of the period.
func printUsageCSV(ctx context.Context, o *operator) error {
	of, err := usageOf(ctx, o)
	if err != nil {
		return err
	}
	return of.WriteCSV(o.out, func(most int) ([]sqlcgen.OjsUsageBatches, error) { return of.Read(ctx, o.sql, most) })
}

// latestUsage prints the latest row of a tenant.
func latestUsage(ctx context.Context, o *operator) error {
	tenant, err := o.theTenant()
	if err != nil {
		return err
	}
	rows, err := o.sql.LatestUsageBatch(ctx, &tenant)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return problems.NoSuch("usage", tenant)
	}
	return record(o, rows[0])
}

// verifyUsage prints the first fault of each tenant, and fails if there is one.
func verifyUsage(ctx context.Context, o *operator) error {
	faults, err := o.sql.VerifyUsage(ctx, o.tenant)
	if err != nil {
		return err
	}
	if err := table(ctx, o, faults, usageFaultColumns); err != nil {
		return err
	}
	if len(faults) > 0 {
		return cmdline.Status(foundErrors)
	}
	return nil
}

// pruneUsage deletes old rows of the usage ledger, and prints how many.
func pruneUsage(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	before, err := readTime(ctx, o, "before")
	if err != nil {
		return err
	}
	rows, err := o.sql.PruneUsage(ctx, *before)
	if err != nil {
		return err
	}
	return record(o, struct {
		Before time.Time `json:"before"`
		Rows   int64     `json:"rows"`
	}{*before, rows})
}
