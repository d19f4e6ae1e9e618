package httpapi

import (
	"errors"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// Ways to know who makes a request.
const (
	AuthNone   = "none"    // nobody is asked: a private network, or a proxy that authenticates
	AuthAPIKey = "api-key" // ojs.api_key
	AuthJWT    = "jwt"     // a token that somebody else has signed (internal/jwt)
)

// authenticate identifies the caller before the body is read.
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

// isOpen reports whether the request needs no credential: its route is open, or there is no such
// route, and the router answers 404.
func (s *Server) isOpen(c echo.Context) bool {
	route := s.routeOf(c)
	return c.Path() == "" || route != nil && route.Scope == scopeOpen
}

// identify authenticates the request and checks that its credential may use the route. route may be
// nil; the router then answers 404.
func (s *Server) identify(c echo.Context, route *route) error {
	credential := c.Request().Header.Get("X-API-Key")
	if scheme, bearer, ok := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " "); ok && strings.EqualFold(scheme, "Bearer") {
		credential = bearer
	}
	c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="ojs"`)
	if credential == "" {
		return unauthorized("the request has no credential")
	}
	who, err := s.owner(c, credential)
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

// identifyAgain authenticates a request again that has waited: its key may have been revoked
// meanwhile.
func (s *Server) identifyAgain(c echo.Context) error {
	if principalOf(c) == nil {
		return nil
	}
	return s.identify(c, s.routeOf(c))
}

// owner returns the principal of a credential, or nil. A credential with a dot is a JWT, any other
// one an API key, so none is tried as both.
func (s *Server) owner(c echo.Context, credential string) (*principal, error) {
	if s.tokens != nil && strings.Contains(credential, ".") {
		return s.bearer(c, credential)
	}
	if s.keys != nil {
		return s.keys.owner(c.Request().Context(), credential)
	}
	return nil, nil //nolint:nilnil // nobody's
}

// bearer verifies a JWT. The reason of a refusal goes to the log only, because the caller may be
// guessing.
func (s *Server) bearer(c echo.Context, token string) (*principal, error) {
	caller, err := s.tokens.Verify(c.Request().Context(), token)
	switch {
	case errors.Is(err, jwt.ErrAway):
		return nil, &pg.Error{Code: problems.CodeAway, Message: jwt.ErrAway.Error(), Err: err}
	case err != nil:
		s.log.Debug("a token is refused", "request_id", requestID(c), "error", err)
		return nil, nil //nolint:nilnil // nobody's
	}
	return &principal{Name: "jwt:" + caller.Subject, Tenant: caller.Tenant, Scopes: caller.Scopes}, nil
}
