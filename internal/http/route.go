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

// v1 is the prefix of the paths of OJS.
const v1 = "/ojs/v1"

// metricsPath is the path of Prometheus's scrapes.
const metricsPath = "/metrics"

// access is the scope that a credential needs for a route.
type access string

// The scopes. A route with scopeOpen needs no credential: probes, and what a client reads before it
// has one. A credential with scopeAdmin has the other scopes, too (Allow).
const (
	scopeOpen    access = "open"
	scopeProduce access = "produce"
	scopeWork    access = "work"
	scopeRead    access = "read"
	scopeAdmin   access = "admin"
)

// route is a handler, the method and path under which clients reach it, and what it requires of
// their credentials. A route for GET answers HEAD, too.
type route struct {
	Method, Path string
	Scope        access
	Queues       reach
	Query        string // names of the parameters of the query, separated by spaces
	OfTenant     bool   // the query may name the tenant, as the header does
	Handler      echo.HandlerFunc

	// scoped says that the route acts for the tenant of the header or the credential: see the
	// function scoped.
	scoped bool
}

type routeKey struct{ method, path string }

// underPrefixes returns a copy of routes below each of the prefixes, because clients know the same
// routes under several paths.
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

// scoped marks routes as scoped and returns them. A handler of a scoped route gets the tenant of
// the request from requestTenant.
func scoped(routes []route) []route {
	for i := range routes {
		routes[i].scoped = true
	}
	return routes
}

// mount registers routes with e. It panics if a route has no scope, which is a programming error,
// so that the server does not start.
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

// add registers a route under one method. It wraps the handler from the inside out: a request
// passes scoped, bounded, spelled and ofTenant, in this order, as far as the fields of the route
// ask for them.
func (s *Server) add(e *echo.Echo, method string, r *route) {
	if s.mounted == nil {
		s.mounted = map[routeKey]*route{}
	}
	handler := r.Handler
	if r.OfTenant {
		handler = ofTenant(handler)
	}
	if r.Scope != scopeOpen {
		handler = spelled(handler, r.Parameters())
		handler = s.bounded(r.Queues, handler)
	}
	if r.scoped {
		handler = s.scoped(handler)
	}
	e.Add(method, r.Path, handler)
	s.mounted[routeKey{method, r.Path}] = r
}

// paged holds the names of the query parameters that paging reads. It ends with a space, so that
// more names can follow.
const paged = "limit offset page per_page "

// Parameters returns the names of the query parameters that the route knows.
func (r *route) Parameters() []string {
	known := strings.Fields(r.Query)
	if r.OfTenant {
		known = append(known, "tenant", "tenant_id")
	}
	return known
}

// spelled wraps next and refuses a query parameter that is not in known and does not begin with ext_
// or x_. A parameter that was ignored might be a filter, and the request would act on more than the
// client meant.
func spelled(next echo.HandlerFunc, known []string) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawQuery == "" {
			return next(c)
		}
		for _, name := range slices.Sorted(maps.Keys(c.Request().URL.Query())) {
			if slices.Contains(known, name) || jsonbody.Own.MatchString(name) {
				continue
			}
			at := problems.Clip(name)
			err := problems.Refuse(problems.CodeUnsupported, at, "the query of this route has no parameter %s", at)
			switch meant := jsonbody.Resembled(name, known); {
			case meant != "":
				err = jsonbody.Misnamed(at, meant)
			case names.IsTenant(name):
				err = problems.Refuse(problems.CodeUnsupported, at,
					"the query of this route has no parameter %s; name the tenant by the header %s", at, names.TenantHeader)
			}
			jsonbody.Drain(c.Request())
			return err
		}
		return next(c)
	}
}

// ofTenant wraps next and applies the tenant in the query as the tenant of the request. It refuses
// a tenant that is not the one of the header or the credential, with 404.
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

// narrowTenant returns the tenant that a filter is about. named is the tenant in the filter, at is
// the field that holds it, and scope is the tenant of the request. Without named it returns scope.
// It fails if named is no tenant id, and with 404 if named is another tenant than scope: a tenant
// does not learn which other tenants exist.
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

// Allow refuses a principal that lacks the scope of the route. It also refuses a principal of one
// tenant on a route that is not scoped.
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

// scoped wraps next and reads the tenant of the request from its header and its credential. It
// refuses a request whose header and credential name different tenants.
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

// patiently runs call, a change in a transaction of its own that the audit trail records with the
// actor and the reason of the request. While another transaction holds a lock that call needs, it
// tries again, for at most Limits.Query. It needs a request of a scoped route.
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
