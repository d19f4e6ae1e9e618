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

// principal is who makes a request, as its credential says.
type principal struct {
	Name   string   // in the audit trail and in the log
	Tenant *string  // nil: an operator
	Scopes []string // produce, work, read, admin
	Queues []string // nil: all
}

const principalKey = "principal"

// setPrincipal says who makes a request.
func setPrincipal(c echo.Context, p *principal) { c.Set(principalKey, p) }

// principalOf makes a request; nil: nobody was asked for a credential.
func principalOf(c echo.Context) *principal {
	p, _ := c.Get(principalKey).(*principal)
	return p
}

// isTenants is whether a request was made with a tenant's credential.
func isTenants(c echo.Context) bool {
	p := principalOf(c)
	return p != nil && p.Tenant != nil
}

// actorOf is the principal of a request, as the audit trail shows it; empty if nobody is known.
func actorOf(c echo.Context) string {
	if p := principalOf(c); p != nil {
		return p.Name
	}
	return ""
}

// bound makes the tenant of a credential that of the request.
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

// unauthorized is the refusal of a request without a valid credential. It does not tell an unknown one from one that has ended.
func unauthorized(why string) *pg.Error {
	return &pg.Error{Code: problems.CodeUnauthorized, Message: why}
}

// reasonHeader says why a request changes something, where its body does not.
const reasonHeader = "X-OJS-Reason"

// giveReason keeps why a request changes something; nil: its body does not say.
func giveReason(c echo.Context, reason *string) {
	if reason != nil {
		requestOf(c).reason = *reason
	}
}

// reasonOf is why a request changes something, for the audit trail; empty if it does not say.
func reasonOf(c echo.Context) string {
	if reason := requestOf(c).reason; reason != "" {
		return reason
	}
	if reason := c.Request().Header.Get(reasonHeader); jsonbody.IsText(reason) {
		return reason
	}
	return ""
}

// changing has the calls of a request that the audit trail is to tell of, each in a transaction of its own.
func (s *Server) changing(c echo.Context) *sqlcgen.Queries {
	return sqlcgen.New(s.db.Within(s.limits.Query).As(actorOf(c), reasonOf(c)))
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

// begin is a middleware that all handlers need which use this package.
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

// asBound is an error as the bearer of a tenant's credential gets it: naming another tenant is no mistake of form, but denied.
func asBound(c echo.Context, err error) error {
	var problem *pg.Error
	if p := principalOf(c); p != nil && p.Tenant != nil && errors.As(err, &problem) && problem.Code == problems.CodeTenantMismatch {
		return &pg.Error{Code: problems.CodeTenantAccessDenied, Message: "the credential is another tenant's", Details: problem.Details}
	}
	return err
}

// requestTenant is the tenant whom a request of a scoped route is for; nil: none is named. Without one SQL decides: enqueue falls to the
// default tenant, everything else acts across tenants.
func requestTenant(c echo.Context) *string { return requestOf(c).tenant }

// scopeHeader is the header that named the tenant; empty if none did.
func scopeHeader(c echo.Context) string { return requestOf(c).header }

// forAllTenants refuses a request that names a tenant.
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

// queryContext is that of a request's calls into the database, which end with Query. A client that hangs up does not stop them: their
// outcome would be unknown and their connection lost.
func (s *Server) queryContext(c echo.Context) context.Context {
	r := requestOf(c)
	if r.ctx == nil {
		r.ctx, r.cancel = context.WithTimeout(context.WithoutCancel(c.Request().Context()), s.limits.Query)
	}
	return r.ctx
}
