package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
	httpapi "github.com/ojs-pg/ojs-pg/internal/http"
	"github.com/ojs-pg/ojs-pg/internal/jwt"
)

// auth says how a server verifies its callers. Without keys and tokens it accepts every caller.
type auth struct {
	keys   bool          // API keys are accepted
	tokens *jwt.Verifier // nil: tokens are not accepted
}

// authFlags are the options that newAuth reads.
func authFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "auth", Sources: cli.EnvVars("OJS_AUTH"),
			Usage: "`METHODS` to verify callers, separated by commas: api-key (see ojs-pg key), jwt, or none, with which " +
				"every client that reaches the port may do anything; none is the default on loopback addresses only",
			Validator: func(ways string) error {
				list := strings.Split(ways, ",")
				for _, way := range list {
					if err := cmdline.OneOf(httpapi.AuthAPIKey, httpapi.AuthJWT, httpapi.AuthNone)(way); err != nil {
						return err
					}
				}
				if len(list) > 1 && slices.Contains(list, httpapi.AuthNone) {
					return errors.New("none excludes the other methods: with one of them callers would be verified")
				}
				return nil
			},
		},
		&cli.StringFlag{
			Name: "jwt-keys", Sources: cli.EnvVars("OJS_JWT_KEYS"),
			Usage: "`FILE` with the keys that verify tokens: public keys in PEM (RS256, ES256, EdDSA), " +
				"or 32 bytes or more that only the issuer has, too (HS256)",
		},
		&cli.StringFlag{
			Name: "jwt-keys-url", Sources: cli.EnvVars("OJS_JWT_KEYS_URL"),
			Usage: "`URL` of a JSON Web Key Set with the public keys, instead of a file",
		},
		&cli.StringFlag{
			Name: "jwt-issuer", Sources: cli.EnvVars("OJS_JWT_ISSUER"), Usage: "`NAME` that iss of a token must have",
		},
		&cli.StringFlag{
			Name: "jwt-audience", Sources: cli.EnvVars("OJS_JWT_AUDIENCE"), Usage: "`NAME` that aud of a token must hold",
		},
		&cli.StringFlag{
			Name: "jwt-tenant-claim", Value: "tenant_id", Sources: cli.EnvVars("OJS_JWT_TENANT_CLAIM"),
			Usage: "`CLAIM` that names the tenant",
		},
		&cli.StringFlag{
			Name: "jwt-scope-claim", Value: "scope", Sources: cli.EnvVars("OJS_JWT_SCOPE_CLAIM"),
			Usage: "`CLAIM` that holds the scopes, separated by spaces or as an array",
		},
		&cli.StringFlag{
			Name: "jwt-queues-claim", Value: "queues", Sources: cli.EnvVars("OJS_JWT_QUEUES_CLAIM"),
			Usage: "`CLAIM` that holds the queues that the token is for, in the same forms; a token without it is for all queues",
		},
	}
}

// newAuth reads authFlags and the keys of tokens. It fails if the options contradict each other, or
// if a key file cannot be used. A key set behind a URL is read later (prime).
func newAuth(c *cli.Command) (a auth, err error) {
	ways := strings.Split(c.String("auth"), ",")
	a.keys = slices.Contains(ways, httpapi.AuthAPIKey)
	if !slices.Contains(ways, httpapi.AuthJWT) {
		if c.String("jwt-keys") != "" || c.String("jwt-keys-url") != "" {
			return a, cmdline.Misuse(fmt.Errorf("keys for tokens are given, but --auth %q does not have jwt: add it", c.String("auth")))
		}
		return a, nil
	}
	a.tokens, err = jwt.New(jwt.Config{
		KeyFile: c.String("jwt-keys"), KeysURL: c.String("jwt-keys-url"),
		Issuer: c.String("jwt-issuer"), Audience: c.String("jwt-audience"),
		TenantClaim: c.String("jwt-tenant-claim"), ScopeClaim: c.String("jwt-scope-claim"),
		QueuesClaim: c.String("jwt-queues-claim"),
	})
	if err != nil {
		return a, cmdline.Misuse(fmt.Errorf("--auth jwt: %w (--jwt-keys or --jwt-keys-url, --jwt-issuer, --jwt-audience)", err))
	}
	return a, nil
}

// prime reads the key set of the issuer once, so that a wrong address is in the log at the start.
// The server starts although the set cannot be read, because the issuer may start later. Until then
// requests with tokens get 503.
func (a auth) prime(ctx context.Context, log *slog.Logger) {
	if a.tokens == nil {
		return
	}
	if err := a.tokens.Prime(ctx); err != nil {
		log.Warn("tokens cannot be verified yet", "error", err)
	}
}
