package admin

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// reasonRequest says why.
type reasonRequest struct {
	kit.Optional
	_      struct{} `check:"only"`
	Reason *string  `json:"reason"`
}

func (a *Admin) suspendTenant(c echo.Context) error {
	return a.switchTenant(c, func(q *sqlcgen.Queries, ctx context.Context, of Of) (any, error) {
		return q.SuspendTenant(ctx, sqlcgen.SuspendTenantParams{Tenant: *of.Tenant, Reason: of.Reason})
	})
}

func (a *Admin) unsuspendTenant(c echo.Context) error {
	return a.switchTenant(c, func(q *sqlcgen.Queries, ctx context.Context, of Of) (any, error) {
		return q.ResumeTenant(ctx, *of.Tenant)
	})
}

// switchTenant suspends the tenant that the path names, or takes its jobs again, and answers with it.
func (a *Admin) switchTenant(c echo.Context, do func(*sqlcgen.Queries, context.Context, Of) (any, error)) error {
	of, err := tenantOfPath(c, "a tenant cannot be suspended")
	if err != nil {
		return err
	}
	var req reasonRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	of.Reason = req.Reason
	kit.Because(c, req.Reason)
	if _, err := kit.Patiently(a.Kit, c, do, of); err != nil {
		return err
	}
	return a.getTenant(c)
}

// deregisterRequest confirms by the tenant's name that jobs that have not ended are to be cancelled, and dead letters deleted.
type deregisterRequest struct {
	kit.Optional
	_       struct{} `check:"only"`
	Confirm *string  `json:"confirm"`
	Reason  *string  `json:"reason"`
}

// deregisterTenant ends a tenant. What is left of its jobs the clock cancels: 202 says so.
func (a *Admin) deregisterTenant(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant cannot be deregistered")
	if err != nil {
		return err
	}
	var req deregisterRequest
	if req.Confirm, err = kit.QueryText(c, "confirm"); err != nil {
		return err
	}
	if err := c.Bind(&req); err != nil {
		return err
	}
	kit.Because(c, req.Reason)
	row, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).DeregisterTenant, sqlcgen.DeregisterTenantParams{
		Tenant: *of.Tenant, Confirm: req.Confirm, Reason: req.Reason,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, map[string]any{
		"id": row.TenantID, "tenant_id": row.TenantID, "state": "deregistering", "jobs": row.Jobs, "deregistered_at": row.At,
	})
}
