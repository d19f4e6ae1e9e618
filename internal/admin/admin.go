// Package admin is what operators see and do: tenants, queues and their configuration, pools, workers and what they are told, dead letters
// in bulk, holding dispatch, what was handed out. It has the handlers of those routes, which internal/http mounts, the tables that `ojs-pg
// admin` prints, and what metrics say of queues; all show the rows of db/queries as they are. It decides nothing: what a number means is
// said in the view's comment (db/code/statistics/tenants.sql and scheduling.sql).
package admin

import (
	"slices"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
)

const v1 = "/ojs/v1"

// Admin has the handlers of operators' routes.
type Admin struct {
	*kit.Kit
}

// Routes are all of them.
func (a *Admin) Routes() []kit.Route {
	return slices.Concat(
		a.tenantRoutes(), a.queueRoutes(), a.queueConfigRoutes(), a.workerRoutes(), a.deadLetterRoutes(), a.dispatchRoutes(),
		a.schedulingRoutes(), a.ruleRoutes(), a.poolRoutes(), a.explainRoutes(), a.statsRoutes(),
		a.neighbourRoutes(), a.auditRoutes(), a.jobRoutes(), a.keyRoutes(), a.tierRoutes())
}

// partOf is a page of a list of which one row more than limit was read, which tells whether there are more.
func partOf[T any](name string, rows []T, limit, offset int) map[string]any {
	more := len(rows) > limit
	return listed(name, rows[:min(len(rows), limit)], map[string]any{"limit": limit, "offset": offset, "has_more": more})
}

// listed is a page of a list under both names that clients read it by: items, and its own.
func listed(name string, items, page any) map[string]any {
	return map[string]any{"items": items, name: items, "pagination": page}
}
