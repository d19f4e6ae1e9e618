package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// eraseCommand returns the command that erases the content of jobs.
func eraseCommand() *cli.Command {
	at := func(name, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Sources: cli.EnvVars("OJS_ADMIN_" + strings.ToUpper(name)), Usage: usage}
	}
	return &cli.Command{
		Name: "erase", Usage: "erase the content of jobs, by id, by filter, or of the whole --tenant; needs --reason",
		Action: withAdmin("", erase),
		Flags: append(queueAndTypeFlags(),
			&cli.StringSliceFlag{
				Name: "id", Sources: cli.EnvVars("OJS_ADMIN_ID"),
				Usage: "`ID` of a job; several are separated by commas",
			},
			stateFlag(),
			at("since", "only jobs created at this `TIME` or later, as in RFC 3339"),
			at("until", "only jobs created before this `TIME`, as in RFC 3339"),
		),
	}
}

// erase erases page by page until no job is left, and prints the sums.
func erase(ctx context.Context, o *operator) error {
	params := sqlcgen.EraseParams{
		Reason: o.String("reason"), Ids: o.StringSlice("id"), States: o.StringSlice("state"), Queue: given(o.String("queue")),
		Type: given(o.String("type")), Tenant: o.tenant, MaxRows: 1000,
	}
	if params.Reason == "" {
		return cmdline.Misuse(errors.New("erase needs --reason: the audit trail keeps it"))
	}
	// An empty list would name no job, where none was meant to be named.
	if len(params.Ids) == 0 {
		params.Ids = nil
	}
	if len(params.States) == 0 {
		params.States = nil
	}
	for name, to := range map[string]**time.Time{"since": &params.Since, "until": &params.Until} {
		if text := o.String(name); text != "" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return cmdline.Misuse(fmt.Errorf("--%s must be a time as in RFC 3339, such as 2031-01-01T00:00:00Z", name))
			}
			*to = &at
		}
	}
	if params.Ids == nil && params.States == nil && params.Queue == nil && params.Type == nil && params.Since == nil &&
		params.Until == nil && params.Tenant == nil {
		return cmdline.Misuse(errors.New("erase needs --id, a filter or --tenant: without them all jobs would be meant"))
	}
	done, err := admin.Erase(ctx, o.sql, params, time.Now().Add(24*time.Hour))
	if err != nil {
		return err
	}
	return record(o, done)
}
