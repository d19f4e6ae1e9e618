package httpapi

import (
	"context"
	"errors"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// principal is the identity in a request's credential.
type principal struct {
	Name   string   // in the audit trail and in the log
	Tenant *string  // nil: an operator
	Scopes []string // produce, work, read, admin
	Queues []string // nil: all
}

const principalKey = "principal"

// setPrincipal keeps the principal of a request for the handlers.
func setPrincipal(c echo.Context, p *principal) { c.Set(principalKey, p) }

// principalOf returns the principal of a request, or nil if the server asks for no credential.
func principalOf(c echo.Context) *principal {
	p, _ := c.Get(principalKey).(*principal)
	return p
}

// isTenants reports whether the request's credential belongs to a tenant.
func isTenants(c echo.Context) bool {
	p := principalOf(c)
	return p != nil && p.Tenant != nil
}

// actorOf returns the principal's name as the audit trail shows it, or "" if there is no principal.
func actorOf(c echo.Context) string {
	if p := principalOf(c); p != nil {
		return p.Name
	}
	return ""
}

// bound makes the tenant of the credential the tenant of the request. It fails if the request names
// another tenant.
func (r *request) bound(p *principal) error {
	if p == nil || p.Tenant == nil {
		return nil
	}
	if r.tenant != nil && *r.tenant != *p.Tenant {
		return problems.Refuse(problems.CodeTenantAccessDenied, r.header, "the credential is another tenant's than %s says", r.header)
	}
	r.tenant, r.header = p.Tenant, echo.HeaderAuthorization
	return nil
}

// unauthorized returns the 401 for a missing or invalid credential. An unknown credential and an
// expired one get the same answer.
func unauthorized(why string) *pg.Error {
	return &pg.Error{Code: problems.CodeUnauthorized, Message: why}
}

// reasonHeader carries the reason of a change when the body has no field for it.
const reasonHeader = "X-OJS-Reason"

// giveReason keeps the reason that the body of a request gives for a change. With nil the header
// counts.
func giveReason(c echo.Context, reason *string) {
	if reason != nil {
		requestOf(c).reason = *reason
	}
}

// reasonOf returns the reason of a change for the audit trail, or "" if the request gives none.
func reasonOf(c echo.Context) string {
	if reason := requestOf(c).reason; reason != "" {
		return reason
	}
	if reason := c.Request().Header.Get(reasonHeader); jsonbody.IsText(reason) {
		return reason
	}
	return ""
}

// changing returns the queries of a request that changes something. Each runs in a transaction of
// its own, and the audit trail notes the request's actor and reason.
func (s *Server) changing(c echo.Context) *sqlcgen.Queries {
	return sqlcgen.New(s.db.Within(s.limits.Query).As(actorOf(c), reasonOf(c)))
}

// request holds what this package knows about a request beyond echo's context.
type request struct {
	tenant *string
	header string // that named the tenant
	reason string // of a change, for the audit trail

	ctx    context.Context // of its calls into the database; nil before the first
	cancel context.CancelFunc
}

const requestKey = "request"

// requestOf returns what begin has put into the context.
func requestOf(c echo.Context) *request { return c.Get(requestKey).(*request) }

// begin is the middleware that prepares the request for all handlers. It ends the database context
// of the request when the handler returns.
func (s *Server) begin(next echo.HandlerFunc) echo.HandlerFunc {
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

// asBound turns the error TENANT_MISMATCH into TENANT_ACCESS_DENIED (403) for a tenant's
// credential: to name another tenant is not a slip in the form then, but an attempt that is denied.
func asBound(c echo.Context, err error) error {
	var problem *pg.Error
	if p := principalOf(c); p != nil && p.Tenant != nil && errors.As(err, &problem) && problem.Code == problems.CodeTenantMismatch {
		return &pg.Error{Code: problems.CodeTenantAccessDenied, Message: "the credential is another tenant's", Details: problem.Details}
	}
	return err
}

// requestTenant returns the tenant that a request of a scoped route acts for, or nil if the request
// names none. With nil SQL decides: an enqueue goes to the default tenant, everything else acts on
// all tenants.
func requestTenant(c echo.Context) *string { return requestOf(c).tenant }

// scopeHeader returns the name of the header that named the tenant, or "".
func scopeHeader(c echo.Context) string { return requestOf(c).header }

// forAllTenants refuses a request that names a tenant. cannot says what is impossible for one
// tenant.
func forAllTenants(c echo.Context, cannot string) error {
	header := scopeHeader(c)
	if header == echo.HeaderAuthorization {
		return problems.Forbidden(header, problems.HintOperator, nil, "%s by a tenant's credential", cannot)
	}
	if header != "" {
		return problems.Refuse(problems.CodeUnsupported, header, "%s for one tenant; send the request without %s", cannot, header)
	}
	return nil
}

// queryContext returns the context of a request's database calls. It ends after Limits.Query. It
// does not end when the client hangs up: the outcome of the call would be unknown, and its
// connection lost.
func (s *Server) queryContext(c echo.Context) context.Context {
	r := requestOf(c)
	if r.ctx == nil {
		r.ctx, r.cancel = context.WithTimeout(context.WithoutCancel(c.Request().Context()), s.limits.Query)
	}
	return r.ctx
}
