package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// auditCommand returns the command that reads the audit trail.
func auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Usage: "list changes of the configuration with their authors, the latest first",
		Flags: []cli.Flag{
			limitFlag(),
			&cli.Int64Flag{Name: "before", Sources: cli.EnvVars("OJS_ADMIN_BEFORE"), Usage: "only changes whose number n is below `N`"},
			&cli.StringFlag{Name: "actor", Sources: cli.EnvVars("OJS_ADMIN_ACTOR"), Usage: "only changes by this `NAME`"},
			&cli.StringFlag{
				Name: "action", Sources: cli.EnvVars("OJS_ADMIN_ACTION"),
				Usage: "only changes with this `ACTION`, such as limited or paused; limits on enqueueing are created, changed, removed",
			},
			&cli.StringFlag{
				Name: "kind", Sources: cli.EnvVars("OJS_ADMIN_KIND"),
				Usage: "only changes of this `KIND` of thing, such as rule (a limit of concurrency or a pause), " +
					"limit (on enqueueing), tenant",
			},
			&cli.StringFlag{
				Name: "since", Sources: cli.EnvVars("OJS_ADMIN_SINCE"),
				Usage: "leave out changes before this `TIME`, as in RFC 3339, or longer ago than this age, such as P1D",
			},
		},
		Action: withAdmin("", listAudit),
	}
}

// tenantCommands returns the commands that suspend and end tenants, and the audit trail.
func tenantCommands() []*cli.Command {
	return []*cli.Command{
		auditCommand(), usageCommand(),
		{Name: "suspend", Usage: "refuse new jobs of a tenant; its present jobs go on", ArgsUsage: "ID", Action: withAdmin("ID", suspend)},
		{
			Name: "resume-tenant", Usage: "accept new jobs of a suspended tenant again", ArgsUsage: "ID",
			Action: withAdmin("ID", resumeTenant),
		},
		{
			Name: "deregister", Usage: "end a tenant: delete its configuration and cancel its jobs", ArgsUsage: "ID",
			Flags: []cli.Flag{
				&cli.StringFlag{
					Name: "confirm", Sources: cli.EnvVars("OJS_ADMIN_CONFIRM"),
					Usage: "the `ID` once more; needed if the tenant has jobs that have not ended, or dead letters",
				},
				&cli.StringFlag{
					Name: "erase-after", Sources: cli.EnvVars("OJS_ADMIN_ERASE_AFTER"),
					Usage: "erase the content of its jobs after this `PERIOD`, such as P30D; left out, it stays as long as its jobs",
				},
			},
			Action: withAdmin("ID", deregister),
		},
		eraseCommand(),
	}
}

// theTenant returns the tenant of the argument. It fails if --tenant is given, too, which may name
// another one.
func (o *operator) theTenant() (string, error) {
	if o.tenant != nil {
		return "", cmdline.Misuse(errors.New("the tenant is the argument: leave out --tenant"))
	}
	return o.argument(), nil
}

// suspend refuses new jobs of a tenant.
func suspend(ctx context.Context, o *operator) error {
	tenant, err := o.theTenant()
	if err != nil {
		return err
	}
	if err := o.noteNew(ctx, &tenant); err != nil {
		return err
	}
	row, err := o.sql.SuspendTenant(ctx, sqlcgen.SuspendTenantParams{Tenant: tenant, Reason: given(o.String("reason"))})
	if err != nil {
		return err
	}
	return record(o, row)
}

// resumeTenant ends a suspension, and prints whether there was one.
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

// deregister ends a tenant. The clock cancels its jobs afterwards, in many ticks if there are many.
func deregister(ctx context.Context, o *operator) error {
	tenant, err := o.theTenant()
	if err != nil {
		return err
	}
	row, err := o.sql.DeregisterTenant(ctx, sqlcgen.DeregisterTenantParams{
		Tenant: tenant, Confirm: given(o.String("confirm")), Reason: given(o.String("reason")),
		EraseAfter: given(o.String("erase-after")),
	})
	if err != nil {
		return err
	}
	return record(o, row)
}

// listAudit prints the audit trail, the latest change first. The next page begins with --before and
// the last n.
func listAudit(ctx context.Context, o *operator) error {
	params := sqlcgen.AuditTrailParams{
		Tenant: o.tenant, Actor: given(o.String("actor")), Action: given(o.String("action")), Kind: given(o.String("kind")),
		MaxRows: o.Int32("limit"),
	}
	var err error
	if params.Since, err = readTime(ctx, o, "since"); err != nil {
		return err
	}
	if before := o.Int64("before"); before > 0 {
		params.Before = &before
	}
	rows, err := o.sql.AuditTrail(ctx, params)
	if err != nil {
		return err
	}
	if o.Bool("json") || o.Bool("wide") {
		return table(ctx, o, rows, nil)
	}
	short := make([]shortChange, len(rows))
	for i := range rows {
		short[i] = shortChange{rows[i], change(rows[i].Old, rows[i].New)}
	}
	return table(ctx, o, short, auditColumns)
}

// shortChange is a row of the audit trail with its old and new members in one column.
type shortChange struct {
	sqlcgen.OjsAuditTrail
	Change string `json:"change"`
}

// change returns what has changed, such as weight 1 -> 2; two changes are separated by a comma. A
// member without an old or a new value has - there.
func change(before, after []byte) string {
	var was, is map[string]json.RawMessage
	_ = json.Unmarshal(before, &was) // null: nothing was there before
	_ = json.Unmarshal(after, &is)
	all := maps.Clone(was)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	maps.Copy(all, is)
	value := func(of map[string]json.RawMessage, member string) string {
		if of[member] == nil {
			return "-"
		}
		return strings.Trim(string(of[member]), `"`)
	}
	var changes []string
	for _, member := range slices.Sorted(maps.Keys(all)) {
		changes = append(changes, fmt.Sprintf("%s %s -> %s", member, value(was, member), value(is, member)))
	}
	return strings.Join(changes, ", ")
}
