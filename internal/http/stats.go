package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) statsRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/stats", Scope: scopeRead, OfTenant: true, Handler: s.stats},
		{Method: http.MethodGet, Path: v1 + "/admin/scheduling/stats", Scope: scopeRead, Query: paged, Handler: s.schedulingStats},
		{
			Method: http.MethodGet, Path: v1 + "/admin/scheduling/tenants", Scope: scopeRead,
			Query: paged, OfTenant: true, Handler: s.tenantShares,
		},
	})
}

// stats answers with the numbers of jobs by state, over all tenants or of one, and with how many
// came and went in the last minute (ojs-admin-api section 10.1). A job counts as processed when it
// is completed or fails for good. as_of is the time of the numbers.
func (s *Server) stats(c echo.Context) error {
	ctx, tenant := s.queryContext(c), requestTenant(c)
	n, err := s.q.Stats(ctx, tenant)
	if err != nil {
		return err
	}
	queues, err := s.q.QueueNames(ctx, sqlcgen.QueueNamesParams{Tenant: tenant})
	if err != nil {
		return err
	}
	states, err := s.q.WorkerStates(ctx, tenant)
	if err != nil {
		return err
	}
	workers := 0
	for _, of := range states {
		workers += int(of.Workers)
	}
	return c.JSON(http.StatusOK, map[string]any{
		"queues": queues.Total, "workers": workers,
		"jobs": map[string]int64{
			"scheduled": n.Scheduled, "available": n.Available, "pending": n.Pending, "active": n.Active, "retryable": n.Retryable,
			"completed": n.Completed, "cancelled": n.Cancelled, "discarded": n.Discarded,
		},
		"throughput": map[string]int64{
			"enqueued_per_minute": n.Enqueued1m, "processed_per_minute": n.Processed1m, "failed_per_minute": n.Failed1m,
			"attempts_failed_per_minute": n.AttemptsFailed1m,
		},
		"as_of": n.AsOf,
	})
}

// schedulingStats answers with what was handed out of each queue. That is not counted by tenant, so
// a request that names a tenant is refused.
func (s *Server) schedulingStats(c echo.Context) error {
	if err := forAllTenants(c, "what is handed out of a queue is not counted"); err != nil {
		return err
	}
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx := s.queryContext(c)
	page, err := s.q.QueueNames(ctx, sqlcgen.QueueNamesParams{MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	queues, err := s.q.SchedulingStats(ctx, page.Names)
	if err != nil {
		return err
	}
	all, err := s.q.SchedulingTotals(ctx)
	if err != nil {
		return err
	}
	answer := listed("queues", queues, pagination(int(page.Total), limit, offset, limit))
	answer["window"], answer["stats"] = "PT1M", all
	return c.JSON(http.StatusOK, answer)
}

// tenantShares answers with the share that each tenant is entitled to, and the share that it got.
func (s *Server) tenantShares(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx := s.queryContext(c)
	page, err := s.q.TenantNames(ctx, sqlcgen.TenantNamesParams{Tenant: requestTenant(c), MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	tenants, err := s.q.TenantShares(ctx, page.Names)
	if err != nil {
		return err
	}
	answer := listed("tenants", tenants, pagination(int(page.Total), limit, offset, limit))
	answer["window"] = "PT1M"
	return c.JSON(http.StatusOK, answer)
}
