package httpapi

import (
	"context"
	"fmt"
	"maps"
	"math"
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

// nearRoute returns the method and path of the route that a request was probably meant for, or "". It
// compares what follows the prefix, which clients forget, and accepts paths that resemble a route's,
// or that are its end, as fetch is of workers/fetch.
func (s *Server) nearRoute(method, path string) string {
	words := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	for len(words) > 0 && slices.Contains([]string{"ojs", "api", "v1"}, words[0]) {
		words = words[1:]
	}
	if len(words) == 0 || len(words) > 8 {
		return ""
	}
	best, least := routeKey{}, math.MaxInt
	for key := range s.mounted {
		below, ok := strings.CutPrefix(key.path, v1+"/")
		if !ok || key.method == http.MethodHead {
			continue
		}
		far := distance(words, strings.Split(below, "/"))
		if far < 0 {
			continue
		}
		if far *= 2; key.method != method {
			far++
		}
		if far < least || far == least && key.path+key.method < best.path+best.method {
			best, least = key, far
		}
	}
	if least == math.MaxInt {
		return ""
	}
	return best.method + " " + best.path
}

// distance returns how many words of a request's path differ from those of a route, plus ten for each
// word that is missing at its beginning. It returns -1 if the route was not meant.
func distance(words, route []string) int {
	missing := len(route) - len(words)
	if missing < 0 || missing > 1 {
		return -1
	}
	far, same := 10*missing, 0
	for i, word := range words {
		of := route[missing+i]
		switch {
		case strings.HasPrefix(of, ":"):
			far++
		case of == word:
			same++
		case missing == 0 && names.Resembles(word, of):
			far, same = far+2, same+1
		default:
			return -1
		}
	}
	if same == 0 {
		return -1 // any word fits a parameter
	}
	return far
}

// paged holds the names of the query parameters that paging reads. It ends with a space, so that
// more names can follow.
const paged = "limit offset page per_page "

// mayBeEmpty holds the names of the query parameters that select nothing.
var mayBeEmpty = append(strings.Fields(paged), "cursor", "sort", "order", "confirm", "strategy", "wait", "timeout")

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
// client meant. For the same reason it refuses a filter that is empty, because the variable of the
// client probably was, and a parameter that stands in the query twice, because one of the two would
// be ignored. Parameters of paging may be empty: the first page of a list has no cursor.
func spelled(next echo.HandlerFunc, known []string) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawQuery == "" {
			return next(c)
		}
		query := c.Request().URL.Query()
		for _, name := range slices.Sorted(maps.Keys(query)) {
			if jsonbody.Own.MatchString(name) {
				continue
			}
			if slices.Contains(known, name) {
				var err error
				switch values := query[name]; {
				case len(values) > 1:
					err = problems.Invalid(name, "stands in the query more than once")
				case values[0] == "" && !slices.Contains(mayBeEmpty, name):
					err = problems.Invalid(name, "must not be empty; leave it out for all")
				default:
					continue
				}
				jsonbody.Drain(c.Request())
				return err
			}
			at := problems.Clip(name)
			err := problems.Refuse(problems.CodeUnsupported, at, "the query of this route has no parameter %s", at)
			meant := jsonbody.Resembled(name, known)
			if alias := queryAliases[strings.ToLower(name)]; meant == "" && slices.Contains(known, alias) {
				meant = alias
			}
			switch {
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

// queryAliases are names that clients write for parameters of a query.
var queryAliases = map[string]string{
	"status": "state", "job_state": "state", "queue_name": "queue", "job_type": "type", "kind": "type",
	"size": "limit", "count": "limit", "page_size": "limit", "max": "limit", "skip": "offset", "start": "offset",
	"after": "cursor", "from": "since", "to": "until",
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

// has reports whether the credential has a scope.
func (p *principal) has(scope access) bool { return slices.Contains(p.Scopes, string(scope)) }

// Allow refuses a principal that lacks the scope of the route. It also refuses a principal of one
// tenant on a route that is not scoped.
func (r *route) Allow(p *principal) error {
	if !p.has(r.Scope) && !p.has(scopeAdmin) {
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
		if err = r.bound(principalOf(c)); err == nil {
			err = s.named(c, r)
		}
		if err != nil {
			jsonbody.Drain(c.Request())
			return err
		}
		return asBound(c, next(c))
	}
}

// named refuses a request that names no tenant, if its credential is for all tenants without the
// scope admin. Only the routes of workers act for all tenants at once with such a credential: on
// other routes a forgotten header would read, retry or delete jobs of all tenants.
func (s *Server) named(c echo.Context, r *request) error {
	p, route := principalOf(c), s.routeOf(c)
	if p == nil || p.Tenant != nil || r.tenant != nil || route == nil || route.Scope == scopeWork || p.has(scopeAdmin) {
		return nil
	}
	header := names.TenantHeader
	if len(s.problems.tenant) > 0 {
		header = s.problems.tenant[0]
	}
	return problems.Refuse(problems.CodeInvalidRequest, header,
		"the credential is for all tenants and has not the scope admin: name the tenant by the header %s", header)
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
