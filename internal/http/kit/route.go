package kit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Kit is what handlers share.
type Kit struct {
	DB       *pg.DB
	SQL      *sqlcgen.Queries
	Log      *slog.Logger
	Problems *Problems
	Query    time.Duration // longest that a request's calls into the database may take
}

// New makes a Kit of a database whose problems are loaded.
func New(db *pg.DB, log *slog.Logger, query time.Duration) *Kit {
	return &Kit{DB: db, SQL: sqlcgen.New(db.Pool()), Log: log, Problems: NewProblems(db, log), Query: query}
}

// Route is a handler and how clients reach it. One of GET answers HEAD, too.
type Route struct {
	Method, Path string
	Handler      echo.HandlerFunc
}

// Under is routes once more below each of prefixes, by which clients know them.
func Under(prefixes []string, routes []Route) []Route {
	var all []Route
	for _, prefix := range prefixes {
		for _, r := range routes {
			all = append(all, Route{r.Method, prefix + r.Path, r.Handler})
		}
	}
	return all
}

// Scoped is routes for the tenant that the request's header names, which Scope tells.
func Scoped(routes []Route) []Route {
	for i := range routes {
		routes[i].Handler = scoped(routes[i].Handler)
	}
	return routes
}

// Mount gives routes to e.
func (k *Kit) Mount(e *echo.Echo, routes []Route) {
	for _, r := range routes {
		e.Add(r.Method, r.Path, r.Handler)
		if r.Method == http.MethodGet {
			e.HEAD(r.Path, r.Handler) // net/http leaves out the body
		}
	}
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

func scoped(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		r := requestOf(c)
		if r.tenant, r.header, err = readTenant(c.Request().Header); err != nil {
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
		return Refuse(CodeForbidden, header, "%s by a tenant's credential", cannot)
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
