// Package admin is what operators see and do: tenants, queues and their configuration, workers and what they are told, dead letters in
// bulk, holding dispatch. It has the handlers of those routes, which internal/http mounts, and the tables that `ojs-pg admin` prints; both
// show the rows of db/queries as they are. It decides nothing: what a number means is said in the view's comment (db/migrations,
// 00070_tenant_views).
package admin

import (
	"slices"

	"github.com/labstack/echo/v4"

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
		a.tenantRoutes(), a.queueRoutes(), a.queueConfigRoutes(), a.workerRoutes(), a.deadLetterRoutes(), a.dispatchRoutes())
}

// listed is a page of a list under both names that clients read it by: items, and its own.
func listed(name string, items any, page kit.PageJSON) map[string]any {
	return map[string]any{"items": items, name: items, "pagination": page}
}

// pageOfNames asks for the names on a page of a list, and then for what is shown of these alone: names are cheap, numbers are not.
func pageOfNames[N, T any](
	c echo.Context, ask func(limit, skip int32) ([]N, error), name func(N) (string, int64), show func(names []string) ([]T, error),
) ([]T, kit.PageJSON, error) {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return nil, kit.PageJSON{}, err
	}
	rows, total, err := kit.PageOf(limit, offset, ask, func(n N) int64 { _, total := name(n); return total })
	if err != nil {
		return nil, kit.PageJSON{}, err
	}
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i], _ = name(row)
	}
	items := []T{}
	if len(names) > 0 {
		items, err = show(names)
	}
	return items, kit.Pagination(total, limit, offset, limit), err
}
