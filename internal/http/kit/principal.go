package kit

import (
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// Principal is who makes a request, as its credential says.
type Principal struct {
	Name   string   // in the audit trail and in the log
	Tenant *string  // nil: an operator
	Scopes []string // produce, work, read, admin
	Queues []string // nil: all
}

const principalKey = "principal"

// SetPrincipal says who makes a request.
func SetPrincipal(c echo.Context, p *Principal) { c.Set(principalKey, p) }

// Who makes a request; nil: nobody was asked for a credential.
func Who(c echo.Context) *Principal {
	p, _ := c.Get(principalKey).(*Principal)
	return p
}

// isTenants is whether a request was made with a tenant's credential.
func isTenants(c echo.Context) bool {
	p := Who(c)
	return p != nil && p.Tenant != nil
}

// Actor is the principal of a request, as the audit trail shows it; empty if nobody is known.
func Actor(c echo.Context) string {
	if p := Who(c); p != nil {
		return p.Name
	}
	return ""
}

// bound makes the tenant of a credential that of the request.
func (r *request) bound(p *Principal) error {
	if p == nil || p.Tenant == nil {
		return nil
	}
	if r.tenant != nil && *r.tenant != *p.Tenant {
		return Refuse(CodeTenantAccessDenied, r.header, "the credential is another tenant's than %s says", r.header)
	}
	r.tenant, r.header = p.Tenant, echo.HeaderAuthorization
	return nil
}

// Unauthorized is the refusal of a request without a valid credential. It does not tell an unknown one from one that has ended.
func Unauthorized(why string) *pg.Error {
	return &pg.Error{Code: CodeUnauthorized, Message: why}
}
