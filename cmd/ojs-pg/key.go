package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// keyCommand makes and ends API keys.
func keyCommand() *cli.Command {
	return &cli.Command{
		Name:  "key",
		Usage: "make, list, rotate and revoke API keys",
		Description: `Needs the database alone, no server: a login that is a member of ojs_operator, or ojs_service.
A secret is printed once, when it is made. Servers with --auth api-key ask for it.

    ojs-pg key create --scope admin                               for an operator
    ojs-pg key create --tenant acme --scope produce --scope read  for a tenant's producer`,
		Flags: []cli.Flag{
			databaseFlag(true),
			&cli.BoolFlag{Name: "json", Sources: cli.EnvVars("OJS_KEY_JSON"), Usage: "print JSON instead of tables"},
			wideFlag("OJS_KEY"),
			&cli.StringFlag{
				Name: "tenant", Sources: cli.EnvVars("OJS_KEY_TENANT"), Usage: "`ID` of the tenant; an operator if it is left out",
			},
			&cli.StringFlag{Name: "reason", Sources: cli.EnvVars("OJS_KEY_REASON"), Usage: "`WHY`, for the audit trail"},
		},
		Commands: []*cli.Command{
			{
				Name: "create", Usage: "make a key, and print it with its secret", Action: withAdmin("", createKey),
				Flags: []cli.Flag{
					&cli.StringSliceFlag{
						Name: "scope", Sources: cli.EnvVars("OJS_KEY_SCOPE"), Usage: "`WHAT` it may do: produce, work, read, admin",
					},
					&cli.StringSliceFlag{
						Name: "queue", Sources: cli.EnvVars("OJS_KEY_QUEUE"), Usage: "`NAME` of a queue that it is for; all if left out",
					},
					&cli.StringFlag{Name: "name", Sources: cli.EnvVars("OJS_KEY_NAME"), Usage: "`WORDS` for what it is for"},
					&cli.DurationFlag{
						Name: "lasts", Sources: cli.EnvVars("OJS_KEY_LASTS"), Usage: "for how `LONG`, such as 720h; for ever if left out",
					},
				},
			},
			{Name: "list", Usage: "list keys", Flags: pageFlags(), Action: withAdmin("", listKeys)},
			{
				Name: "rotate", Usage: "make another key in the place of one, and print it", ArgsUsage: "ID",
				Action: withAdmin("ID", rotateKey),
				Flags: []cli.Flag{&cli.DurationFlag{
					Name: "overlap", Value: 24 * time.Hour, Sources: cli.EnvVars("OJS_KEY_OVERLAP"),
					Usage: "for how `LONG` the old one is good",
				}},
			},
			{Name: "revoke", Usage: "end a key", ArgsUsage: "ID", Action: withAdmin("ID", revokeKey)},
		},
	}
}

func createKey(ctx context.Context, o *operator) error {
	params := sqlcgen.CreateAPIKeyParams{
		Tenant: o.tenant, Scopes: o.StringSlice("scope"), Queues: o.StringSlice("queue"), Name: o.String("name"),
	}
	if len(params.Scopes) == 0 {
		return cmdline.Misuse(errors.New("say what it may do: --scope produce, work, read or admin"))
	}
	if len(params.Queues) == 0 {
		params.Queues = nil
	}
	if lasts := o.Duration("lasts"); lasts != 0 {
		at := time.Now().Add(lasts)
		params.ExpiresAt = &at
	}
	key, err := o.sql.CreateAPIKey(ctx, params)
	if err != nil {
		return err
	}
	return record(o, key)
}

func listKeys(ctx context.Context, o *operator) error {
	limit, skip := o.page()
	rows, err := o.sql.APIKeys(ctx, sqlcgen.APIKeysParams{Tenant: o.tenant, MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, keyColumns)
}

// keyID is the argument, which PostgreSQL would refuse in words of its own if it were no UUID.
func (o *operator) keyID() (string, error) {
	id := o.argument()
	if !jsonbody.IsUUID(id) {
		return "", cmdline.Misuse(fmt.Errorf("ID %q is not that of a key: it must be a UUID, as ojs-pg key list shows it", id))
	}
	return id, nil
}

func rotateKey(ctx context.Context, o *operator) error {
	id, err := o.keyID()
	if err != nil {
		return err
	}
	key, err := o.sql.RotateAPIKey(ctx, sqlcgen.RotateAPIKeyParams{
		ID: id, GoodFor: fmt.Sprintf("%d milliseconds", o.Duration("overlap")/time.Millisecond),
	})
	if err != nil {
		return err
	}
	return record(o, key)
}

func revokeKey(ctx context.Context, o *operator) error {
	id, err := o.keyID()
	if err != nil {
		return err
	}
	key, err := o.sql.RevokeAPIKey(ctx, sqlcgen.RevokeAPIKeyParams{ID: id, Reason: given(o.String("reason"))})
	if err != nil {
		return err
	}
	return record(o, key)
}
