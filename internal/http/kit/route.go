package kit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Kit is what handlers share.
type Kit struct {
	routes map[routeKey]*Route // that are mounted

	DB       *pg.DB
	SQL      *sqlcgen.Queries
	Log      *slog.Logger
	Problems *Problems
	Query    time.Duration // longest that a request's calls into the database may take

	door door
}

// NameTenantsBy has headers name the tenants of requests, instead of those that are known.
func (k *Kit) NameTenantsBy(headers TenantHeaders) { k.Problems.tenant = headers }

// New makes a Kit of a database whose problems are loaded.
func New(db *pg.DB, log *slog.Logger, query time.Duration) *Kit {
	return &Kit{DB: db, SQL: sqlcgen.New(db.Shared()), Log: log, Problems: NewProblems(db, log), Query: query}
}

// Access is the scope that a credential has to have for a route.
type Access string

// The scopes. Open is none, not even a credential: probes, and what a client reads before it has one.
const (
	Open    Access = "open"
	Produce Access = "produce"
	Work    Access = "work"
	Read    Access = "read"
	Admin   Access = "admin"
)

// Route is a handler, how clients reach it, and what their credentials have to have and be for. One of GET answers HEAD, too.
type Route struct {
	Method, Path string
	Scope        Access
	Queues       Reach
	Query        string // names of the parameters of the query, separated by blanks
	OfTenant     bool   // the query may name the tenant, as the header does
	Handler      echo.HandlerFunc

	scoped bool
}

type routeKey struct{ method, path string }

// Under is routes once more below each of prefixes, by which clients know them.
func Under(prefixes []string, routes []Route) []Route {
	var all []Route
	for _, prefix := range prefixes {
		for _, r := range routes {
			r.Path = prefix + r.Path
			all = append(all, r)
		}
	}
	return all
}

// Scoped is routes for the tenant that the request's header names, which Scope tells.
func Scoped(routes []Route) []Route {
	for i := range routes {
		routes[i].scoped = true
	}
	return routes
}

// Mount gives routes to e. A route without a scope is a mistake of whoever wrote it, and the server does not start: it would be open to
// every credential.
func (k *Kit) Mount(e *echo.Echo, routes []Route) {
	for i := range routes {
		r := &routes[i]
		switch r.Scope {
		case Open, Produce, Work, Read, Admin:
		default:
			panic(fmt.Sprintf("%s %s has the scope %q", r.Method, r.Path, r.Scope))
		}
		k.add(e, r.Method, r)
		if r.Method == http.MethodGet {
			k.add(e, http.MethodHead, r) // net/http leaves out the body
		}
	}
}

func (k *Kit) add(e *echo.Echo, method string, r *Route) {
	if k.routes == nil {
		k.routes = map[routeKey]*Route{}
	}
	handler := r.Handler
	if r.OfTenant {
		handler = ofTenant(handler)
	}
	if known := r.Parameters(); len(known) > 0 {
		handler = spelled(handler, known)
	}
	if r.Scope != Open {
		handler = k.bounded(r.Queues, handler)
	}
	if r.scoped {
		handler = k.scoped(handler)
	}
	e.Add(method, r.Path, handler)
	k.routes[routeKey{method, r.Path}] = r
}

// Paged are the parameters of a list that Paging reads.
const Paged = "limit offset page per_page "

// Parameters are the names of the query that the route knows.
func (r *Route) Parameters() []string {
	known := strings.Fields(r.Query)
	if r.OfTenant {
		known = append(known, "tenant", "tenant_id")
	}
	return known
}

// spelled refuses a query with a slip of the pen in a name: a filter that is passed over lets everything pass.
func spelled(next echo.HandlerFunc, known []string) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawQuery == "" {
			return next(c)
		}
		given := slices.Sorted(maps.Keys(c.Request().URL.Query()))
		for _, name := range given[:min(len(given), mostNear)] {
			if slices.Contains(known, name) || own.MatchString(name) {
				continue
			}
			if meant := resembled(name, known); meant != "" {
				return misnamed(Clip(name), meant)
			}
		}
		return next(c)
	}
}

// ofTenant has a request whose query names a tenant be for that one, which must be the header's if there is one. To a tenant others are
// unknown.
func ofTenant(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		named, err := QueryTenant(c)
		if err != nil {
			return err
		}
		r := requestOf(c)
		if r.tenant, err = Narrow("tenant", named, r.tenant); err != nil {
			return err
		}
		return next(c)
	}
}

// Narrow is the tenant whom a filter is about that names one, at a field of the request, or none; scope: the request's own, to whom others
// are unknown.
func Narrow(at string, named, scope *string) (*string, error) {
	switch {
	case named == nil:
		return scope, nil
	case !names.Tenant.MatchString(*named):
		return nil, NoTenantID(at)
	case scope != nil && *named != *scope:
		return nil, NoSuch("tenant", *named)
	}
	return named, nil
}

// RouteOf is the route of a request; nil: there is none.
func (k *Kit) RouteOf(c echo.Context) *Route { return k.routes[routeKey{c.Request().Method, c.Path()}] }

// Allow refuses a principal that may not use the route.
func (r *Route) Allow(p *Principal) error {
	if !slices.Contains(p.Scopes, string(r.Scope)) && !slices.Contains(p.Scopes, string(Admin)) {
		return Forbidden("scope", "Use a credential with the scope "+string(r.Scope)+".", map[string]any{"scope": r.Scope},
			"the credential does not have the scope %s", r.Scope)
	}
	if p.Tenant != nil && !r.scoped {
		return Forbidden("scope", hintOperator, nil, "this is about all tenants, and the credential is one tenant's")
	}
	return nil
}

// request is what is known of a request beside what echo knows.
type request struct {
	tenant *string
	header string // that named the tenant
	reason string // of a change, for the audit trail

	ctx    context.Context // of its calls into the database; nil before the first
	cancel context.CancelFunc
}

const requestKey = "request"

func requestOf(c echo.Context) *request { return c.Get(requestKey).(*request) }

// Begin is a middleware that all handlers need which use this package.
func (k *Kit) Begin(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := &request{}
		c.Set(requestKey, r)
		defer func() {
			if r.cancel != nil {
				r.cancel()
			}
		}()
		return next(c)
	}
}

func (k *Kit) scoped(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		r := requestOf(c)
		if r.tenant, r.header, err = k.Problems.tenant.read(c.Request().Header); err != nil {
			Drain(c.Request())
			return err
		}
		if err := r.bound(Who(c)); err != nil {
			Drain(c.Request())
			return err
		}
		return asBound(c, next(c))
	}
}

// asBound is an error as the bearer of a tenant's credential gets it: naming another tenant is no mistake of form, but denied.
func asBound(c echo.Context, err error) error {
	var problem *pg.Error
	if p := Who(c); p != nil && p.Tenant != nil && errors.As(err, &problem) && problem.Code == CodeTenantMismatch {
		return &pg.Error{Code: CodeTenantAccessDenied, Message: "the credential is another tenant's", Details: problem.Details}
	}
	return err
}

// Scope is the tenant whom a request of a scoped route is for; nil: none is named. Without one SQL decides: enqueue falls to the default
// tenant, everything else acts across tenants.
func Scope(c echo.Context) *string { return requestOf(c).tenant }

// ScopeHeader is the header that named the tenant; empty if none did.
func ScopeHeader(c echo.Context) string { return requestOf(c).header }

// ForAllTenants refuses a request that names a tenant.
func ForAllTenants(c echo.Context, cannot string) error {
	header := ScopeHeader(c)
	if header == echo.HeaderAuthorization {
		return Forbidden(header, hintOperator, nil, "%s by a tenant's credential", cannot)
	}
	if header != "" {
		return Refuse(CodeUnsupported, header, "%s for one tenant; send the request without %s", cannot, header)
	}
	return nil
}

// Context is that of a request's calls into the database, which end with Query. A client that hangs up does not stop them: their
// outcome would be unknown and their connection lost.
func (k *Kit) Context(c echo.Context) context.Context {
	r := requestOf(c)
	if r.ctx == nil {
		r.ctx, r.cancel = context.WithTimeout(context.WithoutCancel(c.Request().Context()), k.Query)
	}
	return r.ctx
}

// Patiently is a call of a scoped route that may have to wait for another transaction's lock, and that the audit trail is to tell of.
func Patiently[P, T any](k *Kit, c echo.Context, call func(*sqlcgen.Queries, context.Context, P) (T, error), params P) (out T, err error) {
	actor, reason := Actor(c), Reason(c)
	err = k.DB.WithLockRetry(c.Request().Context(), Scope(c), k.Query, func(ctx context.Context, db pg.Brief) (err error) {
		out, err = call(sqlcgen.New(db.As(actor, reason)), ctx, params)
		return err
	})
	return out, err
}
