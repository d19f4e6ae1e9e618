package httpapi

import (
	"context"
	"errors"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// principal is the caller of a request, as its credential identifies it.
type principal struct {
	Name   string   // shown in the audit trail and in the log
	Tenant *string  // nil: all tenants; the credential has the scope admin or all-tenants
	Scopes []string // produce, work, read, admin, all-tenants
	Queues []string // nil: all queues
}

const principalKey = "principal"

// setPrincipal stores the caller of a request.
func setPrincipal(c echo.Context, p *principal) { c.Set(principalKey, p) }

// principalOf returns the caller of a request, or nil if no credential was asked for.
func principalOf(c echo.Context) *principal {
	p, _ := c.Get(principalKey).(*principal)
	return p
}

// isTenants reports whether a request was made with a tenant's credential.
func isTenants(c echo.Context) bool {
	p := principalOf(c)
	return p != nil && p.Tenant != nil
}

// actorOf returns the name of the caller for the audit trail, or "" if the caller is not known.
func actorOf(c echo.Context) string {
	if p := principalOf(c); p != nil {
		return p.Name
	}
	return ""
}

// bound makes the tenant of a credential the tenant of the request. It refuses a request whose
// header names another tenant.
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

// unauthorized returns the refusal of a request without a valid credential. The answer does not
// tell an unknown credential from an expired one.
func unauthorized(why string) *pg.Error {
	return &pg.Error{Code: problems.CodeUnauthorized, Message: why}
}

// reasonHeader is the header with the reason of a change, for requests whose body has none.
const reasonHeader = "X-OJS-Reason"

// giveReason stores the reason of a change; nil: the body has none.
func giveReason(c echo.Context, reason *string) {
	if reason != nil {
		requestOf(c).reason = *reason
	}
}

// reasonOf returns the reason of a change for the audit trail: the body's, or else the header's. It
// returns "" if there is none.
func reasonOf(c echo.Context) string {
	if reason := requestOf(c).reason; reason != "" {
		return reason
	}
	if reason := c.Request().Header.Get(reasonHeader); jsonbody.IsText(reason) {
		return reason
	}
	return ""
}

// changing returns queries for changes that the audit trail records with the actor and the reason
// of the request. Each query runs in a transaction of its own.
func (s *Server) changing(c echo.Context) *sqlcgen.Queries {
	return sqlcgen.New(s.db.Within(s.limits.Query).As(actorOf(c), reasonOf(c)))
}

// request holds the state of a request that echo's context does not have. Only the goroutine of the
// handler uses it, so it needs no lock.
type request struct {
	tenant *string
	header string // name of the header that named the tenant
	reason string // of a change, for the audit trail

	spelling spelling // of fields in errors of SQL; nil: as SQL names them

	ctx    context.Context // of the request's database calls; nil before the first (queryContext)
	cancel context.CancelFunc
}

const requestKey = "request"

// requestOf returns the state of a request. It panics if begin has not run.
func requestOf(c echo.Context) *request { return c.Get(requestKey).(*request) }

// begin is a middleware that creates the state of a request, which all handlers need, and ends the
// context of its database calls when the request is done.
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

// jobAt returns the path of the job at index i of a batch.
func jobAt(i int) string { return "jobs[" + strconv.Itoa(i) + "]" }

// spelling returns the path at which a client wrote the field that an error of SQL is about; ""
// leaves the error's field as it is. A handler whose SQL functions name fields otherwise than its
// route sets one (spelledBy) before it calls them.
type spelling func(problem *pg.Error) (path string)

// spelledBy sets the spelling of a request's errors.
func spelledBy(c echo.Context, s spelling) { requestOf(c).spelling = s }

// asBound returns err as the bearer of a tenant's credential gets it: TENANT_MISMATCH becomes
// TENANT_ACCESS_DENIED, because naming another tenant is then denied, and not a mistake of form.
func asBound(c echo.Context, err error) error {
	var problem *pg.Error
	if p := principalOf(c); p != nil && p.Tenant != nil && errors.As(err, &problem) && problem.Code == problems.CodeTenantMismatch {
		return &pg.Error{
			Code: problems.CodeTenantAccessDenied, Message: "the credential is another tenant's",
			Field: problem.Field, Details: problem.Details,
		}
	}
	return err
}

// requestTenant returns the tenant that a request of a scoped route acts for; nil: none is named.
// SQL decides what nil means: enqueue uses the default tenant, everything else acts across all
// tenants.
func requestTenant(c echo.Context) *string { return requestOf(c).tenant }

// scopeHeader returns the name of the header that named the tenant, or "" if none did. It is
// Authorization if the credential did.
func scopeHeader(c echo.Context) string { return requestOf(c).header }

// forAllTenants refuses a request that names a tenant, by header or by credential. cannot is the
// start of the error's message.
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

// queryContext returns the context of a request's database calls, which ends Limits.Query after the
// first call of queryContext. A client that hangs up does not end it: the outcome of a statement
// that is broken off is unknown, and its connection is lost.
func (s *Server) queryContext(c echo.Context) context.Context {
	r := requestOf(c)
	if r.ctx == nil {
		r.ctx, r.cancel = context.WithTimeout(context.WithoutCancel(c.Request().Context()), s.limits.Query)
	}
	return r.ctx
}
