package admin

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) statsRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{{Method: http.MethodGet, Path: v1 + "/admin/stats", Scope: kit.Read, OfTenant: true, Handler: a.stats}})
}

// stats is ojs-admin-api section 10.1: numbers of jobs now and ever, over all tenants or of one, and how many came and went in the last
// minute. Each attempt that was acknowledged or failed was processed.
func (a *Admin) stats(c echo.Context) error {
	ctx, tenant := a.Context(c), kit.Scope(c)
	n, err := a.SQL.Stats(ctx, tenant)
	if err != nil {
		return err
	}
	queues, err := a.SQL.QueueNames(ctx, sqlcgen.QueueNamesParams{Tenant: tenant})
	if err != nil {
		return err
	}
	states, err := a.SQL.WorkerStates(ctx, tenant)
	if err != nil {
		return err
	}
	workers := 0
	for _, s := range states {
		workers += int(s.Workers)
	}
	return c.JSON(http.StatusOK, map[string]any{
		"queues": queues.Total, "workers": workers,
		"jobs": map[string]int64{
			"scheduled": n.Scheduled, "available": n.Available, "pending": n.Pending, "active": n.Active, "retryable": n.Retryable,
			"completed": n.Completed, "cancelled": n.Cancelled, "discarded": n.Discarded,
		},
		"throughput": map[string]int64{
			"enqueued_per_minute": n.Enqueued1m, "processed_per_minute": n.Processed1m, "failed_per_minute": n.Failed1m,
		},
	})
}
