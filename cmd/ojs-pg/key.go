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

// keyCommand returns `ojs-pg key`, which makes and revokes API keys. It uses the options and the
// database of `ojs-pg admin`.
func keyCommand() *cli.Command {
	return &cli.Command{
		Name:  "key",
		Usage: "create, list, rotate and revoke API keys",
		Description: `Needs the database only, no server. The login must be a member of ojs_operator or ojs_service.
The secret of a key is printed once, when the key is made: the database has only its hash. Servers with
--auth api-key ask clients for a key.

    ojs-pg key create --scope admin                               for an operator
    ojs-pg key create --scope work --scope all-tenants            for a worker of all tenants
    ojs-pg key create --tenant acme --scope produce --scope read  for a tenant's producer`,
		Flags: []cli.Flag{
			databaseFlag(true),
			&cli.BoolFlag{Name: "json", Sources: cli.EnvVars("OJS_KEY_JSON"), Usage: "print JSON instead of tables"},
			wideFlag("OJS_KEY"),
			&cli.StringFlag{
				Name: "tenant", Sources: cli.EnvVars("OJS_KEY_TENANT"),
				Usage: "`ID` of the tenant; if it is left out, the key needs the scope admin or all-tenants",
			},
			&cli.StringFlag{Name: "reason", Sources: cli.EnvVars("OJS_KEY_REASON"), Usage: "`TEXT` that says why, for the audit trail"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if err := cmdline.NoArguments(c); err != nil {
				return err
			}
			return cli.ShowSubcommandHelp(c)
		},
		Commands: []*cli.Command{
			{
				Name: "create", Aliases: []string{"make"}, Action: withAdmin("", createKey),
				Usage: "make a key, and print it with its secret",
				Flags: []cli.Flag{
					&cli.StringSliceFlag{
						Name: "scope", Sources: cli.EnvVars("OJS_KEY_SCOPE"),
						Usage: "`SCOPE` of the key: produce, work, read or admin; without --tenant also all-tenants; " +
							"may be given several times",
					},
					&cli.StringSliceFlag{
						Name: "queue", Sources: cli.EnvVars("OJS_KEY_QUEUE"),
						Usage: "`NAME` of a queue that the key is for; all queues if it is left out",
					},
					&cli.StringFlag{Name: "name", Sources: cli.EnvVars("OJS_KEY_NAME"), Usage: "`TEXT` that says what the key is for"},
					&durationFlag{
						Name: "lasts", Sources: cli.EnvVars("OJS_KEY_LASTS"),
						Usage: "`TIME` for which the key is valid, such as 720h; for ever if it is left out",
					},
				},
			},
			{Name: "list", Usage: "list keys", Flags: pageFlags(), Action: withAdmin("", listKeys)},
			{
				Name: "rotate", Usage: "make a key that replaces another key, and print it with its secret", ArgsUsage: "ID",
				Action: withAdmin("ID", rotateKey),
				Flags: []cli.Flag{&durationFlag{
					Name: "overlap", Value: 24 * time.Hour, Sources: cli.EnvVars("OJS_KEY_OVERLAP"),
					Usage: "`TIME` for which the old key stays valid",
				}},
			},
			{Name: "revoke", Usage: "make a key invalid", ArgsUsage: "ID", Action: withAdmin("ID", revokeKey)},
		},
	}
}

// createKey makes a key, and prints it with its secret. It fails without a scope: a key that may do
// nothing is a mistake.
func createKey(ctx context.Context, o *operator) error {
	params := sqlcgen.CreateAPIKeyParams{
		Tenant: o.tenant, Scopes: o.StringSlice("scope"), Queues: o.StringSlice("queue"), Name: o.String("name"),
	}
	if len(params.Scopes) == 0 {
		return cmdline.Misuse(errors.New("name what the key may do: --scope produce, work, read or admin"))
	}
	if len(params.Queues) == 0 {
		params.Queues = nil // all queues; SQL refuses an empty list
	}
	if lasts := o.Duration("lasts"); lasts != 0 {
		at := time.Now().Add(lasts)
		params.ExpiresAt = &at
	}
	if err := o.noteNew(ctx, o.tenant); err != nil {
		return err
	}
	key, err := o.sql.CreateAPIKey(ctx, params)
	if err != nil {
		return err
	}
	return record(o, key)
}

// listKeys prints keys without their secrets, which are not stored.
func listKeys(ctx context.Context, o *operator) error {
	limit, skip := o.page()
	rows, err := o.sql.APIKeys(ctx, sqlcgen.APIKeysParams{Tenant: o.tenant, MaxRows: limit, Skip: skip})
	if err != nil {
		return err
	}
	return table(ctx, o, rows, keyColumns)
}

// keyID returns the argument. It fails if that is not a UUID, with a better message than
// PostgreSQL's, and if --tenant is given, too.
func (o *operator) keyID() (string, error) {
	if o.tenant != nil { // the key may be another tenant's
		return "", cmdline.Misuse(errors.New("the argument names one key: leave out --tenant"))
	}
	id := o.argument()
	if !jsonbody.IsUUID(id) {
		return "", cmdline.Misuse(fmt.Errorf("%q is not the ID of a key, which is a UUID: ojs-pg key list shows it", id))
	}
	return id, nil
}

// rotateKey makes a key like an old one, which stays valid for --overlap, so that clients can
// change over without an interruption.
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

// revokeKey makes a key invalid. Servers refuse it within a second.
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
