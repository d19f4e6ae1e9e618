package httpapi

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// The ways to authenticate requests, as the configuration names them.
const (
	AuthNone   = "none"    // no credential is asked for: a private network, or a proxy that authenticates
	AuthAPIKey = "api-key" // keys of ojs.api_key
	AuthJWT    = "jwt"     // tokens that an identity provider has signed (internal/jwt)
)

// authenticate is a middleware that identifies the caller of a request and checks its scope. It
// runs before the body is read; the body of a refused request is drained.
func (s *Server) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if s.keys == nil && s.tokens == nil || s.isOpen(c) {
			return next(c)
		}
		if err := s.identify(c, s.routeOf(c)); err != nil {
			jsonbody.Drain(c.Request())
			return err
		}
		return next(c)
	}
}

// isOpen reports whether a request needs no credential: its route is open, or no route matches, and
// the router answers later.
func (s *Server) isOpen(c echo.Context) bool {
	route := s.routeOf(c)
	return c.Path() == "" || route != nil && route.Scope == scopeOpen
}

// identify authenticates a request and checks that its credential may use route. It fails if there
// is no valid credential, or if the credential lacks the scope. route is nil if no route matches;
// the router answers later.
func (s *Server) identify(c echo.Context, route *route) error {
	credential, err := credentialOf(c.Request().Header)
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="ojs"`)
	if credential == "" {
		return unauthorized("the request has no credential")
	}
	who, err := s.owner(c, route, credential)
	if err != nil {
		return err
	}
	if who == nil {
		return unauthorized("the credential is not valid")
	}
	c.Response().Header().Del(echo.HeaderWWWAuthenticate)
	setPrincipal(c, who)
	if route == nil {
		return nil
	}
	return route.Allow(who)
}

// credentialOf returns the credential of a request: the bearer token, or the API key of X-API-Key. It
// fails if there are two, because they may be of different tenants.
func credentialOf(h http.Header) (credential string, err error) {
	sent := h.Values("X-API-Key")
	for _, value := range h.Values(echo.HeaderAuthorization) {
		if scheme, bearer, ok := strings.Cut(value, " "); ok && strings.EqualFold(scheme, "Bearer") {
			sent = append(sent, strings.TrimSpace(bearer))
		}
	}
	switch len(sent) {
	case 0:
		return "", nil
	case 1:
		return sent[0], nil
	}
	return "", problems.Refuse(problems.CodeInvalidRequest, echo.HeaderAuthorization,
		"the request has %d credentials; send one, as Authorization: Bearer or as X-API-Key", len(sent))
}

// identifyAgain checks the credential of a request that has waited: it may have expired or have
// been revoked meanwhile.
func (s *Server) identifyAgain(c echo.Context) error {
	if principalOf(c) == nil {
		return nil
	}
	return s.identify(c, s.routeOf(c))
}

// owner returns the principal that a credential belongs to, or nil if it is not valid. The form of
// the credential decides how it is checked: with a dot it is a JWT, otherwise an API key. Metrics
// are answered while PostgreSQL is away, too, because alerts about the outage are made of them.
func (s *Server) owner(c echo.Context, route *route, credential string) (*principal, error) {
	if s.tokens != nil && strings.Contains(credential, ".") {
		return s.bearer(c, credential)
	}
	if s.keys != nil && route != nil && route.Path == metricsPath {
		return s.keys.ownerInOutage(c.Request().Context(), credential)
	}
	if s.keys != nil {
		return s.keys.owner(c.Request().Context(), credential)
	}
	return nil, nil //nolint:nilnil // the credential is not valid
}

// bearer returns the principal of a JWT, or nil if the token is not valid. It fails if the keys
// that verify tokens cannot be fetched. Only the log says why a token is refused, because the
// bearer may be trying out which tokens pass.
func (s *Server) bearer(c echo.Context, token string) (*principal, error) {
	caller, err := s.tokens.Verify(c.Request().Context(), token)
	switch {
	case errors.Is(err, jwt.ErrAway):
		return nil, &pg.Error{Code: problems.CodeAway, Message: jwt.ErrAway.Error(), Err: err}
	case err != nil:
		s.log.Debug("a token is refused", "request_id", requestID(c), "error", err)
		s.refusedTokens.note(s.log, err, time.Now())
		return nil, nil //nolint:nilnil // the credential is not valid
	}
	return &principal{Name: "jwt:" + caller.Subject, Tenant: caller.Tenant, Scopes: caller.Scopes, Queues: caller.Queues}, nil
}
