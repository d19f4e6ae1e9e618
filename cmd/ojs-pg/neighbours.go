package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// neighbourCommands returns the commands for noisy neighbours, which are tenants that use so much
// that other tenants wait longer, and for throttles, which lower what such a tenant gets for a
// while.
func neighbourCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "neighbours", Usage: "list noisy tenants, and throttled tenants", Flags: []cli.Flag{limitFlag()},
			Action: withAdmin("", listNeighbours),
			Commands: []*cli.Command{{
				Name: "watch", ArgsUsage: "MODE",
				Usage:  "set whether noisy tenants are ignored (off), reported (observe) or throttled, too (on)",
				Action: withAdmin("MODE", watchNeighbours),
			}},
		},
		{
			Name: "throttle", Usage: "lower what the tenant of --tenant gets, for a while", Action: withAdmin("", throttle),
			Flags: []cli.Flag{
				&cli.StringFlag{
					Name: "action", Sources: cli.EnvVars("OJS_ADMIN_ACTION"),
					Usage: "`WHAT` is lowered: weight, concurrency or rate",
				},
				&cli.Float64Flag{
					Name: "factor", Sources: cli.EnvVars("OJS_ADMIN_FACTOR"), HideDefault: true,
					Usage: "`PART` to which it is lowered, such as 0.2; by default the factor of the watch for noisy neighbours",
				},
				&durationFlag{
					Name: "lasts", Sources: cli.EnvVars("OJS_ADMIN_LASTS"), HideDefault: true,
					Usage: "`TIME` for which it is lowered, such as 30m",
				},
			},
		},
		{Name: "release", Usage: "end the throttle of the tenant of --tenant", Action: withAdmin("", releaseThrottle)},
	}
}

// listNeighbours prints noisy tenants, and below them the throttles.
func listNeighbours(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	found, err := admin.NoisyNeighbours(ctx, o.sql, o.Int32("limit"))
	if err != nil {
		return err
	}
	if o.Bool("json") {
		return admin.JSON(o.out, found)
	}
	if err := table(ctx, o, found.Noisy, neighbourColumns); err != nil {
		return err
	}
	fmt.Fprintf(o.out, "\nthrottled (mode %s):\n", found.Settings.Mode)
	return table(ctx, o, found.Throttles, throttleColumns)
}

// watchNeighbours sets the mode, and prints all settings.
func watchNeighbours(ctx context.Context, o *operator) error {
	if err := o.forAll(); err != nil {
		return err
	}
	mode := o.argument()
	if err := o.sql.WatchNeighbours(ctx, sqlcgen.WatchNeighboursParams{Mode: &mode}); err != nil {
		return err
	}
	settings, err := o.sql.NeighbourWatch(ctx)
	if err != nil {
		return err
	}
	return record(o, settings)
}

// throttle sets a throttle. What the options leave out is as ojs.watch_neighbours says.
func throttle(ctx context.Context, o *operator) error {
	if err := o.forOne(); err != nil {
		return err
	}
	params := sqlcgen.ThrottleParams{Tenant: *o.tenant, Reason: given(o.String("reason")), Action: given(o.String("action"))}
	if o.IsSet("factor") {
		params.Factor = given(strconv.FormatFloat(o.Float64("factor"), 'f', -1, 64))
	}
	if lasts := o.Duration("lasts"); lasts != 0 {
		params.Lasts = given(fmt.Sprintf("%d milliseconds", lasts/time.Millisecond))
	}
	if err := o.noteNew(ctx, o.tenant); err != nil {
		return err
	}
	set, err := o.sql.Throttle(ctx, params)
	if err != nil {
		return err
	}
	return record(o, set)
}

// releaseThrottle ends the throttle of a tenant, and prints what it was.
func releaseThrottle(ctx context.Context, o *operator) error {
	if err := o.forOne(); err != nil {
		return err
	}
	released, err := o.sql.ReleaseThrottle(ctx, *o.tenant)
	if err != nil {
		return err
	}
	return table(ctx, o, released, throttleColumns)
}
