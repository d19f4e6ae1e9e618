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

// auth is how a server knows its callers.
type auth struct {
	keys   bool
	tokens *jwt.Verifier // nil: no tokens are taken
}

func authFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{
			Name: "auth", Sources: cli.EnvVars("OJS_AUTH"),
			Usage: "`WAYS` to know callers, separated by commas: api-key (see ojs-pg key), jwt, or none: " +
				"every client that reaches the port may do " +
				"anything; none is the default on loopback addresses only",
			Validator: func(ways string) error {
				list := strings.Split(ways, ",")
				for _, way := range list {
					if err := cmdline.OneOf(httpapi.AuthAPIKey, httpapi.AuthJWT, httpapi.AuthNone)(way); err != nil {
						return err
					}
				}
				if len(list) > 1 && slices.Contains(list, httpapi.AuthNone) {
					return errors.New("none stands alone: with another way beside it callers would be asked after all")
				}
				return nil
			},
		},
		&cli.StringFlag{
			Name: "jwt-keys", Sources: cli.EnvVars("OJS_JWT_KEYS"),
			Usage: "`FILE` of what tokens are verified with: public keys in PEM (RS256, ES256, EdDSA), " +
				"or 32 bytes or more that the issuer shares (HS256)",
		},
		&cli.StringFlag{
			Name: "jwt-keys-url", Sources: cli.EnvVars("OJS_JWT_KEYS_URL"),
			Usage: "`URL` of a JSON Web Key Set with these public keys, instead",
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
	}
}

func newAuth(c *cli.Command) (a auth, err error) {
	ways := strings.Split(c.String("auth"), ",")
	a.keys = slices.Contains(ways, httpapi.AuthAPIKey)
	if !slices.Contains(ways, httpapi.AuthJWT) {
		if c.String("jwt-keys") != "" || c.String("jwt-keys-url") != "" {
			return a, cmdline.Misuse(fmt.Errorf("there are keys for tokens, and no jwt in --auth %q: add it", c.String("auth")))
		}
		return a, nil
	}
	a.tokens, err = jwt.New(jwt.Config{
		KeyFile: c.String("jwt-keys"), KeysURL: c.String("jwt-keys-url"),
		Issuer: c.String("jwt-issuer"), Audience: c.String("jwt-audience"),
		TenantClaim: c.String("jwt-tenant-claim"), ScopeClaim: c.String("jwt-scope-claim"),
	})
	if err != nil {
		return a, cmdline.Misuse(fmt.Errorf("--auth jwt: %w (--jwt-keys or --jwt-keys-url, --jwt-issuer, --jwt-audience)", err))
	}
	return a, nil
}

// prime tells of a key set that cannot be read. The server starts all the same: the issuer may come later, and until then tokens are 503.
func (a auth) prime(ctx context.Context, log *slog.Logger) {
	if a.tokens == nil {
		return
	}
	if err := a.tokens.Prime(ctx); err != nil {
		log.Warn("tokens cannot be verified yet", "error", err)
	}
}
