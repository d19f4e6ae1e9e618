package admin

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) auditRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{{
		Method: http.MethodGet, Path: v1 + "/admin/audit", Scope: kit.Read, Query: kit.Paged + "tenant tenant_id actor action cursor",
		Handler: a.listAudit,
	}})
}

// cursorPage is a page of a list that goes on behind a cursor, and does not know how long it is.
type cursorPage struct {
	Limit   int     `json:"limit"`
	HasMore bool    `json:"has_more"`
	Next    *string `json:"next_cursor"`
	Total   *int64  `json:"total"`
	Page    int     `json:"page"`
	PerPage int     `json:"per_page"`
}

// listAudit is who changed what, the latest first; with a tenant header what is about that tenant.
func (a *Admin) listAudit(c echo.Context) error {
	limit, skip, err := kit.Paging(c)
	if err != nil {
		return err
	}
	params := sqlcgen.AuditTrailParams{MaxRows: int32(limit), Skip: int32(skip)}
	if params.Tenant, err = kit.QueryTenant(c); err != nil {
		return err
	}
	if err := kit.QueryAll(c, kit.QueryText, map[string]**string{"actor": &params.Actor, "action": &params.Action}); err != nil {
		return err
	}
	if params.Tenant != nil && !names.Tenant.MatchString(*params.Tenant) {
		return kit.NoTenantID("tenant")
	}
	if own := kit.Scope(c); own != nil {
		if params.Tenant != nil && *params.Tenant != *own {
			return kit.NoSuch("tenant", *params.Tenant)
		}
		if params.Actor != nil {
			return kit.Refuse(kit.CodeUnsupported, "actor", "a tenant does not learn who else acts")
		}
	}
	if v := c.QueryParam("cursor"); v != "" {
		before, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return kit.Invalid("cursor", "must be the next_cursor of an earlier page")
		}
		params.Before = &before
	}
	rows, err := a.auditTrail(c, params)
	if err != nil {
		return err
	}
	page := cursorPage{Limit: limit, PerPage: limit, HasMore: len(rows) == limit, Page: skip/limit + 1}
	if page.HasMore {
		next := strconv.FormatInt(rows[limit-1].N, 10)
		page.Next = &next
	}
	return c.JSON(http.StatusOK, listed("audit", rows, page))
}

// auditTrail is one page. Who else acts, and why, is no tenant's business, nor is how often: its rows have numbers of its own.
func (a *Admin) auditTrail(c echo.Context, params sqlcgen.AuditTrailParams) ([]sqlcgen.OjsAuditTrail, error) {
	if kit.Scope(c) == nil {
		return a.SQL.AuditTrail(a.Context(c), params)
	}
	own, err := a.SQL.OwnAuditTrail(a.Context(c), sqlcgen.OwnAuditTrailParams{
		Tenant: *kit.Scope(c), Before: params.Before, Action: params.Action, MaxRows: params.MaxRows, Skip: params.Skip,
	})
	if err != nil {
		return nil, err
	}
	rows := make([]sqlcgen.OjsAuditTrail, len(own))
	for i := range own {
		o := &own[i]
		rows[i] = sqlcgen.OjsAuditTrail{
			N: o.N, At: o.At, TenantID: o.TenantID, Kind: o.Kind, Name: o.Name, Action: o.Action, Old: o.Old, New: o.New,
		}
		if o.Actor == kit.Actor(c) {
			rows[i].Actor, rows[i].Reason = o.Actor, o.Reason
		}
	}
	return rows, nil
}
