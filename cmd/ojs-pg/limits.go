package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// limitCommands returns the commands for tenants' limits, and for tiers, which are named sets of
// limits and weights that many tenants share.
func limitCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "limits", ArgsUsage: "[JSON]", Flags: append(queueFlags(), pageFlags()...), Action: withAdmin("[JSON]", limits),
			Usage: "list limits with their use, or set limits of the tenant of --tenant, such as {\"max_queue_depth\": 1000}",
		},
		{
			Name: "tiers", Aliases: []string{"tier"}, Action: withAdmin("", listTiers),
			Usage: "list tiers, which are sets of limits and weights for many tenants",
			Commands: []*cli.Command{
				{
					Name: "set", ArgsUsage: "JSON", Action: withAdmin("JSON", setTiers),
					Usage: "make or change the tiers of a file, of the JSON itself, or of stdin (-), such as " +
						"{\"standard\": {\"limits\": {...}, \"fairness_weight\": 5}}",
				},
				{
					Name: "give", Usage: "give the tenant of --tenant a tier, or none", ArgsUsage: "NAME",
					Action: withAdmin("NAME", giveTier),
				},
				{
					Name: "delete", Usage: "remove a tier", ArgsUsage: "NAME", Action: withAdmin("NAME", deleteTier),
					Flags: []cli.Flag{&cli.BoolFlag{
						Name: "yes", Sources: cli.EnvVars("OJS_ADMIN_YES"),
						Usage: "remove it although tenants have it; they keep their limits and weights",
					}},
				},
			},
		},
	}
}

// limits lists limits. If it has an argument, a JSON object of limits, it first gives these limits
// to the tenant of --tenant, in the queue of --queue if there is one.
func limits(ctx context.Context, o *operator) error {
	queue := given(o.String("queue"))
	if text := o.argument(); text != "" {
		if err := o.forOne(); err != nil {
			return err
		}
		if !jsontext.Value(text).IsValid() {
			return cmdline.Misuse(fmt.Errorf("%s is not JSON", text))
		}
		if err := o.noteNew(ctx, o.tenant); err != nil {
			return err
		}
		_, err := o.sql.ConfigureLimits(ctx, sqlcgen.ConfigureLimitsParams{
			Tenant: *o.tenant, Limits: []byte(text), Queue: queue, Reason: given(o.String("reason")),
		})
		if err != nil {
			return err
		}
	}
	most, skip := o.page()
	return listLimits(ctx, o, sqlcgen.LimitRowsParams{Tenant: o.tenant, Queue: queue, MaxRows: most, Skip: skip})
}

// listLimits prints limits with what counts against them.
func listLimits(ctx context.Context, o *operator, of sqlcgen.LimitRowsParams) error {
	rows, err := o.sql.LimitRows(ctx, of)
	if err != nil {
		return err
	}
	if o.Bool("json") || o.Bool("wide") {
		return table(ctx, o, rows, nil)
	}
	short := make([]shortLimit, len(rows))
	for i := range rows {
		short[i] = shortLimit{rows[i], rate(rows[i].Maximum, rows[i].Period)}
	}
	return table(ctx, o, short, limitColumns)
}

// shortLimit is a limit with its number and its period in one column.
type shortLimit struct {
	sqlcgen.LimitRowsRow
	Limit string `json:"limit"`
}

// rate returns a limit with its period, such as 100/1m; without a period the number alone. period
// is PostgreSQL's text of an interval, such as 00:01:00.
func rate(maximum int64, period string) string {
	if period == "" {
		return admin.Count(maximum)
	}
	var hours, minutes int
	var seconds float64
	if _, err := fmt.Sscanf(period, "%d:%d:%f", &hours, &minutes, &seconds); err == nil {
		period = admin.Age(float64(hours*3600+minutes*60) + seconds)
		period = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(period, "00s"), "00m"), ".0s")
	}
	return admin.Count(maximum) + "/" + period
}

// listTiers prints tiers, with how many tenants have each, and to how many a change is still to be
// applied.
func listTiers(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	rows, err := o.sql.Tiers(ctx, nil)
	if err != nil {
		return err
	}
	return table(ctx, o, rows, tierColumns)
}

// setTiers makes or changes the tiers of a document, an object by name. Each tier is a transaction
// of its own: if one is refused, the tiers before it, in the order of their names, are changed.
func setTiers(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	read := func() ([]byte, error) { return readDocument(o.argument()) }
	if o.argument() == "-" {
		read = func() ([]byte, error) { return io.ReadAll(os.Stdin) }
	}
	text, err := read()
	if err != nil {
		return err
	}
	var tiers map[string]jsontext.Value
	if err := json.Unmarshal(text, &tiers); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(tiers)) {
		params := sqlcgen.ConfigureTierParams{Name: name, Config: tiers[name], Reason: given(o.String("reason"))}
		if _, err := o.sql.ConfigureTier(ctx, params); err != nil {
			return err
		}
	}
	return listTiers(ctx, o)
}

// giveTier gives a tenant a tier, or takes its tier away, and prints the limits that it has then.
func giveTier(ctx context.Context, o *operator) error {
	if err := o.forOne(); err != nil {
		return err
	}
	tier := given(o.argument())
	if o.argument() == "none" {
		tier = nil
	}
	params := sqlcgen.SetTierParams{Tenant: *o.tenant, Tier: tier, Reason: given(o.String("reason"))}
	if err := o.noteNew(ctx, o.tenant); err != nil {
		return err
	}
	if _, err := o.sql.SetTier(ctx, params); err != nil {
		return err
	}
	return listLimits(ctx, o, sqlcgen.LimitRowsParams{Tenant: o.tenant, MaxRows: 1000})
}

// deleteTier removes a tier. It fails if tenants have it, unless --yes is given.
func deleteTier(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	if o.argument() == "" {
		return cmdline.Misuse(errors.New("name the tier"))
	}
	_, err := o.sql.ConfigureTier(ctx, sqlcgen.ConfigureTierParams{
		Name: o.argument(), Confirm: o.Bool("yes"), Reason: given(o.String("reason")),
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(o.out, o.argument())
	return nil
}
