package httpapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// v1 is where the routes of OJS begin.
const v1 = "/ojs/v1"

// access is the scope that a route demands of a credential.
type access string

// The scopes. Open is none, not even a credential: probes, and what a client reads before it has one.
const (
	scopeOpen    access = "open"
	scopeProduce access = "produce"
	scopeWork    access = "work"
	scopeRead    access = "read"
	scopeAdmin   access = "admin"
)

// route is a handler with its method and path, and with what a credential needs to use it. A route
// for GET also answers HEAD.
type route struct {
	Method, Path string
	Scope        access
	Queues       reach
	Query        string // names of the parameters of the query, separated by blanks
	OfTenant     bool   // the query may name the tenant, as the header does
	Handler      echo.HandlerFunc

	scoped bool
}

type routeKey struct{ method, path string }

// underPrefixes returns the routes once for each prefix.
func underPrefixes(prefixes []string, routes []route) []route {
	var all []route
	for _, prefix := range prefixes {
		for _, r := range routes {
			r.Path = prefix + r.Path
			all = append(all, r)
		}
	}
	return all
}

// scoped is routes for the tenant that the request's header names, which Scope tells.
func scoped(routes []route) []route {
	for i := range routes {
		routes[i].scoped = true
	}
	return routes
}

// mount adds routes to e. It panics on a route without a scope: every credential could use it.
func (s *Server) mount(e *echo.Echo, routes []route) {
	for i := range routes {
		r := &routes[i]
		switch r.Scope {
		case scopeOpen, scopeProduce, scopeWork, scopeRead, scopeAdmin:
		default:
			panic(fmt.Sprintf("%s %s has the scope %q", r.Method, r.Path, r.Scope))
		}
		s.add(e, r.Method, r)
		if r.Method == http.MethodGet {
			s.add(e, http.MethodHead, r) // net/http leaves out the body
		}
	}
}

func (s *Server) add(e *echo.Echo, method string, r *route) {
	if s.mounted == nil {
		s.mounted = map[routeKey]*route{}
	}
	handler := r.Handler
	if r.OfTenant {
		handler = ofTenant(handler)
	}
	if known := r.Parameters(); len(known) > 0 {
		handler = spelled(handler, known)
	}
	if r.Scope != scopeOpen {
		handler = s.bounded(r.Queues, handler)
	}
	if r.scoped {
		handler = s.scoped(handler)
	}
	e.Add(method, r.Path, handler)
	s.mounted[routeKey{method, r.Path}] = r
}

// paged are the query parameters that paging reads.
const paged = "limit offset page per_page "

// Parameters returns the names of the query parameters that the route knows.
func (r *route) Parameters() []string {
	known := strings.Fields(r.Query)
	if r.OfTenant {
		known = append(known, "tenant", "tenant_id")
	}
	return known
}

// spelled refuses a query parameter whose name is nearly a known one: a filter that is ignored
// would match everything.
func spelled(next echo.HandlerFunc, known []string) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawQuery == "" {
			return next(c)
		}
		given := slices.Sorted(maps.Keys(c.Request().URL.Query()))
		for _, name := range given[:min(len(given), jsonbody.MostNear)] {
			if slices.Contains(known, name) || jsonbody.Own.MatchString(name) {
				continue
			}
			if meant := jsonbody.Resembled(name, known); meant != "" {
				return jsonbody.Misnamed(problems.Clip(name), meant)
			}
		}
		return next(c)
	}
}

// ofTenant applies ?tenant= (or ?tenant_id=) as the tenant of the request. It must agree with the
// tenant header; to a tenant every other tenant is unknown (404).
func ofTenant(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		named, err := queryTenant(c)
		if err != nil {
			return err
		}
		r := requestOf(c)
		if r.tenant, err = narrowTenant("tenant", named, r.tenant); err != nil {
			return err
		}
		return next(c)
	}
}

// narrowTenant returns the tenant that a filter is about: the one that it names, or else scope, the
// tenant of the request. at is the path of the field. To a tenant every other tenant is unknown
// (404).
func narrowTenant(at string, named, scope *string) (*string, error) {
	switch {
	case named == nil:
		return scope, nil
	case !names.Tenant.MatchString(*named):
		return nil, noTenantID(at)
	case scope != nil && *named != *scope:
		return nil, problems.NoSuch("tenant", *named)
	}
	return named, nil
}

// routeOf returns the route of a request, or nil if there is none.
func (s *Server) routeOf(c echo.Context) *route {
	return s.mounted[routeKey{c.Request().Method, c.Path()}]
}

// Allow refuses a principal that may not use the route.
func (r *route) Allow(p *principal) error {
	if !slices.Contains(p.Scopes, string(r.Scope)) && !slices.Contains(p.Scopes, string(scopeAdmin)) {
		return problems.Forbidden("scope", "Use a credential with the scope "+string(r.Scope)+".", map[string]any{"scope": r.Scope},
			"the credential does not have the scope %s", r.Scope)
	}
	if p.Tenant != nil && !r.scoped {
		return problems.Forbidden("scope", problems.HintOperator, nil, "this is about all tenants, and the credential is one tenant's")
	}
	return nil
}

func (s *Server) scoped(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		r := requestOf(c)
		if r.tenant, r.header, err = s.problems.tenant.read(c.Request().Header); err != nil {
			jsonbody.Drain(c.Request())
			return err
		}
		if err := r.bound(principalOf(c)); err != nil {
			jsonbody.Drain(c.Request())
			return err
		}
		return asBound(c, next(c))
	}
}

// patiently runs a change that may have to wait for the lock of another transaction. It is tried
// again until Limits.Query is over, and the audit trail notes the request's actor and reason.
func patiently[P, T any](s *Server, c echo.Context, call func(*sqlcgen.Queries, context.Context, P) (T, error),
	params P,
) (out T, err error) {
	actor, reason := actorOf(c), reasonOf(c)
	err = s.db.WithLockRetry(c.Request().Context(), requestTenant(c), s.limits.Query, func(ctx context.Context, db pg.Brief) (err error) {
		out, err = call(sqlcgen.New(db.As(actor, reason)), ctx, params)
		return err
	})
	return out, err
}
