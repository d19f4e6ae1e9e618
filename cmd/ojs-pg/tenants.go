package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Usage: "show who changed what in the configuration, the latest first",
		Flags: []cli.Flag{
			limitFlag(),
			&cli.Int64Flag{Name: "before", Sources: cli.EnvVars("OJS_ADMIN_BEFORE"), Usage: "only rows with an n below `N`"},
			&cli.StringFlag{Name: "actor", Sources: cli.EnvVars("OJS_ADMIN_ACTOR"), Usage: "only what this `NAME` did"},
			&cli.StringFlag{
				Name: "action", Sources: cli.EnvVars("OJS_ADMIN_ACTION"), Usage: "only this `ACTION`, such as limited or paused",
			},
		},
		Action: withAdmin("", listAudit),
	}
}

// tenantCommands are about the life of a tenant.
func tenantCommands() []*cli.Command {
	return []*cli.Command{
		auditCommand(),
		{Name: "suspend", Usage: "refuse new jobs of a tenant; old ones go on", ArgsUsage: "ID", Action: withAdmin("ID", suspend)},
		{Name: "resume-tenant", Usage: "take new jobs of a suspended tenant again", ArgsUsage: "ID", Action: withAdmin("ID", resumeTenant)},
		{
			Name: "deregister", Usage: "end a tenant: its configuration goes, and its jobs are cancelled", ArgsUsage: "ID",
			Flags: []cli.Flag{&cli.StringFlag{
				Name: "confirm", Sources: cli.EnvVars("OJS_ADMIN_CONFIRM"),
				Usage: "the `ID` once more, if it has jobs that have not ended, or dead letters",
			}},
			Action: withAdmin("ID", deregister),
		},
	}
}

// theTenant is the one of the argument.
func (o *operator) theTenant() (string, error) {
	if o.tenant != nil {
		return "", cmdline.Misuse(errors.New("the tenant is the argument: leave out --tenant"))
	}
	return o.argument(), nil
}

func suspend(ctx context.Context, o *operator) error {
	tenant, err := o.theTenant()
	if err != nil {
		return err
	}
	row, err := o.sql.SuspendTenant(ctx, sqlcgen.SuspendTenantParams{Tenant: tenant, Reason: given(o.String("reason"))})
	if err != nil {
		return err
	}
	return record(o, row)
}

func resumeTenant(ctx context.Context, o *operator) error {
	tenant, err := o.theTenant()
	if err != nil {
		return err
	}
	was, err := o.sql.ResumeTenant(ctx, tenant)
	if err != nil {
		return err
	}
	return record(o, struct {
		Tenant string `json:"tenant_id"`
		Was    bool   `json:"was_suspended"`
	}{tenant, was})
}

func deregister(ctx context.Context, o *operator) error {
	tenant, err := o.theTenant()
	if err != nil {
		return err
	}
	row, err := o.sql.DeregisterTenant(ctx, sqlcgen.DeregisterTenantParams{
		Tenant: tenant, Confirm: given(o.String("confirm")), Reason: given(o.String("reason")),
	})
	if err != nil {
		return err
	}
	return record(o, row)
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
	return table(ctx, o, rows, auditColumns)
}
