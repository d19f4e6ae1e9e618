package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Usage: "show who changed what in the configuration, the latest first",
		Flags: []cli.Flag{
			&cli.Int32Flag{
				Name: "limit", Value: 50, Sources: cli.EnvVars("OJS_ADMIN_LIMIT"), Usage: "at most so many `ROWS`",
				Validator: between[int32](1, 1000),
			},
			&cli.Int64Flag{Name: "before", Sources: cli.EnvVars("OJS_ADMIN_BEFORE"), Usage: "only rows with an n below `N`"},
			&cli.StringFlag{Name: "actor", Sources: cli.EnvVars("OJS_ADMIN_ACTOR"), Usage: "only what this `NAME` did"},
			&cli.StringFlag{
				Name: "action", Sources: cli.EnvVars("OJS_ADMIN_ACTION"), Usage: "only this `ACTION`, such as limited or paused",
			},
		},
		Action: withAdmin("", listAudit),
	}
}

func listAudit(ctx context.Context, o *operator) error {
	params := sqlcgen.AuditTrailParams{
		Tenant: o.tenant, Actor: given(o.String("actor")), Action: given(o.String("action")), MaxRows: o.Int32("limit"),
	}
	if before := o.Int64("before"); before > 0 {
		params.Before = &before
	}
	rows, err := o.sql.AuditTrail(ctx, params)
	if err != nil {
		return err
	}
	return table(o, rows, "n", "at", "actor", "tenant_id", "kind", "name", "action", "old", "new", "reason")
}
