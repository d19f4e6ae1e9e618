package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/singleflight"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Ways to know who makes a request.
const (
	AuthNone   = "none"    // nobody is asked: a private network, or a proxy that authenticates
	AuthAPIKey = "api-key" // ojs.api_key
	AuthJWT    = "jwt"     // a token that somebody else has signed (internal/jwt)
)

// openRoutes need no credential: probes, and what a client reads before it has one.
var openRoutes = map[string]bool{"/health": true, "/ready": true, v1 + "/health": true, v1 + "/ready": true, "/ojs/manifest": true}

// workRoutes are those of workers.
var workRoutes = regexp.MustCompile(`^` + v1 + `/(workers/[a-z]+|jobs/:id/(ack|nack))$`)

// scopeOf is what a credential has to have for a route; empty: nothing.
func scopeOf(method, path string) string {
	read := method == http.MethodGet || method == http.MethodHead
	switch {
	case openRoutes[path]:
		return ""
	case path == "/metrics":
		return "admin"
	case read, path == v1+"/jobs/results":
		return "read"
	case strings.HasPrefix(path, v1+"/admin/"), strings.HasPrefix(path, v1+"/queues"):
		return "admin"
	case workRoutes.MatchString(path):
		return "work"
	}
	return "produce"
}

// authenticate comes before the body is read.
func (s *Server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if s.keys == nil && s.tokens == nil || c.Path() == "" || openRoutes[c.Path()] {
			return next(c)
		}
		err := s.identify(c)
		if err != nil {
			kit.Drain(c.Request())
			return err
		}
		return next(c)
	}
}

func (s *Server) identify(c echo.Context) error {
	credential := c.Request().Header.Get("X-API-Key")
	if scheme, bearer, ok := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " "); ok && strings.EqualFold(scheme, "Bearer") {
		credential = bearer
	}
	c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="ojs"`)
	if credential == "" {
		return kit.Unauthorized("the request has no credential")
	}
	who, err := s.owner(c, credential)
	if err != nil {
		return err
	}
	if who == nil {
		return kit.Unauthorized("the credential is not valid")
	}
	c.Response().Header().Del(echo.HeaderWWWAuthenticate)
	kit.SetPrincipal(c, who)
	if scope := scopeOf(c.Request().Method, c.Path()); !who.May(scope) {
		return kit.Refuse(kit.CodeForbidden, "scope", "the credential does not have the scope %s", scope)
	}
	if who.Tenant != nil && (c.Path() == "/metrics" || c.Path() == v1+"/admin/reset") {
		return kit.Refuse(kit.CodeForbidden, "scope", "this is about all tenants, and the credential is one tenant's")
	}
	return nil
}

// identifyAgain is for what has waited.
func (s *Server) identifyAgain(c echo.Context) error {
	if kit.Who(c) == nil {
		return nil
	}
	return s.identify(c)
}

// owner is whose a credential is, or nil. Its form says which kind it is, so nothing is tried as both.
func (s *Server) owner(c echo.Context, credential string) (*kit.Principal, error) {
	if s.tokens != nil && strings.Contains(credential, ".") {
		return s.bearer(c, credential)
	}
	if s.keys != nil {
		return s.keys.owner(c.Request().Context(), credential)
	}
	return nil, nil //nolint:nilnil // nobody's
}

// bearer is whose token it is. Why one is refused stands in the log only: the bearer may be somebody who tries what passes.
func (s *Server) bearer(c echo.Context, token string) (*kit.Principal, error) {
	caller, err := s.tokens.Verify(c.Request().Context(), token)
	switch {
	case errors.Is(err, jwt.ErrAway):
		return nil, &pg.Error{Code: kit.CodeAway, Message: jwt.ErrAway.Error(), Err: err}
	case err != nil:
		s.log.Debug("a token is refused", "request_id", kit.RequestID(c), "error", err)
		return nil, nil //nolint:nilnil // nobody's
	}
	return &kit.Principal{Name: "jwt:" + caller.Subject, Tenant: caller.Tenant, Scopes: caller.Scopes}, nil
}

// keyring remembers for a second whose API keys are, so that a busy client costs one statement a second, and a key that is revoked is
// refused within one.
type keyring struct {
	find func(context.Context, []byte) ([]sqlcgen.APIKeyRow, error)

	asking singleflight.Group
	mu     sync.Mutex
	known  map[[sha256.Size]byte]knownKey
}

type knownKey struct {
	owner *kit.Principal // nil: the key is not valid
	until time.Time
}

const (
	keyMemory = time.Second
	maxKeys   = 10_000
)

var keyForm = regexp.MustCompile(`^ojs_[0-9a-f]{64}$`)

// owner is whose key a secret is, or nil. Only its hash is compared, by the database, and kept.
func (k *keyring) owner(ctx context.Context, secret string) (*kit.Principal, error) {
	if !keyForm.MatchString(secret) {
		return nil, nil //nolint:nilnil // nobody's
	}
	hash, now := sha256.Sum256([]byte(secret)), time.Now()
	k.mu.Lock()
	known, ok := k.known[hash]
	k.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.owner, nil
	}
	found, err, _ := k.asking.Do(string(hash[:]), func() (any, error) {
		rows, err := k.find(context.WithoutCancel(ctx), hash[:])
		if err != nil {
			return nil, err
		}
		var owner *kit.Principal
		if len(rows) > 0 {
			owner = &kit.Principal{Name: "key:" + rows[0].Prefix, Tenant: rows[0].TenantID, Scopes: rows[0].Scopes, Queues: rows[0].Queues}
		}
		k.remember(hash, knownKey{owner, now.Add(keyMemory)})
		return owner, nil
	})
	if err != nil {
		return nil, err
	}
	return found.(*kit.Principal), nil
}

func (s *Server) findKey(ctx context.Context, hash []byte) ([]sqlcgen.APIKeyRow, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Query)
	defer cancel()
	return s.q.APIKey(ctx, hash)
}

func (k *keyring) remember(hash [sha256.Size]byte, key knownKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Secrets that somebody makes up must not fill the memory.
	if k.known == nil || len(k.known) >= maxKeys {
		k.known = make(map[[sha256.Size]byte]knownKey)
	}
	k.known[hash] = key
}
