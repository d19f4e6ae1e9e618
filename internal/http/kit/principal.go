package kit

import (
	"net/http"
	"slices"

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

// May reports whether the principal has a scope; admin is all of them.
func (p *Principal) May(scope string) bool {
	return scope == "" || slices.Contains(p.Scopes, scope) || slices.Contains(p.Scopes, "admin")
}

const principalKey = "principal"

// SetPrincipal says who makes a request.
func SetPrincipal(c echo.Context, p *Principal) { c.Set(principalKey, p) }

// Who makes a request; nil: nobody was asked for a credential.
func Who(c echo.Context) *Principal {
	p, _ := c.Get(principalKey).(*Principal)
	return p
}

// Actor is the principal of a request, as the audit trail shows it; empty if nobody is known.
func Actor(c echo.Context) string {
	if p := Who(c); p != nil {
		return p.Name
	}
	return ""
}

// ForQueues refuses queues that are not among those of the credential.
func ForQueues(c echo.Context, field string, queues ...string) error {
	p := Who(c)
	if p == nil || p.Queues == nil {
		return nil
	}
	for _, queue := range queues {
		if !slices.Contains(p.Queues, queue) {
			return Refuse(CodeForbidden, field, "the credential is not for queue %q", Clip(queue))
		}
	}
	return nil
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
	return &pg.Error{Code: CodeUnauthorized, Status: http.StatusUnauthorized, Message: why}
}
