package admin

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) schedulingRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/scheduling/stats", Scope: kit.Read, Query: kit.Paged, Handler: a.schedulingStats},
		{
			Method: http.MethodGet, Path: v1 + "/admin/scheduling/tenants", Scope: kit.Read,
			Query: kit.Paged, OfTenant: true, Handler: a.tenantShares,
		},
	})
}

// schedulingStats tells of each queue what was handed out of it. That is not counted by queue and tenant, so there is none of one tenant.
func (a *Admin) schedulingStats(c echo.Context) error {
	if err := kit.ForAllTenants(c, "what is handed out of a queue is not counted"); err != nil {
		return err
	}
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx := a.Context(c)
	page, err := a.SQL.QueueNames(ctx, sqlcgen.QueueNamesParams{MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	queues, err := a.SQL.SchedulingStats(ctx, page.Names)
	if err != nil {
		return err
	}
	all, err := a.SQL.SchedulingTotals(ctx)
	if err != nil {
		return err
	}
	answer := listed("queues", queues, kit.Pagination(int(page.Total), limit, offset, limit))
	answer["window"], answer["stats"] = "PT1M", all
	return c.JSON(http.StatusOK, answer)
}

// tenantShares tells of each tenant what it was to get and what it got.
func (a *Admin) tenantShares(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx := a.Context(c)
	page, err := a.SQL.TenantNames(ctx, sqlcgen.TenantNamesParams{Tenant: kit.Scope(c), MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	tenants, err := a.SQL.TenantShares(ctx, page.Names)
	if err != nil {
		return err
	}
	answer := listed("tenants", tenants, kit.Pagination(int(page.Total), limit, offset, limit))
	answer["window"] = "PT1M"
	return c.JSON(http.StatusOK, answer)
}
