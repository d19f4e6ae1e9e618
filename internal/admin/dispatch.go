package admin

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) dispatchRoutes() []kit.Route {
	const on = v1 + "/admin/dispatch"
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: on, Scope: kit.Read, Handler: a.dispatching((*sqlcgen.Queries).Dispatch)},
		{Method: http.MethodPost, Path: on + "/hold", Scope: kit.Admin, Handler: kit.Bare(a.dispatching((*sqlcgen.Queries).HoldDispatch))},
		{
			Method: http.MethodPost, Path: on + "/resume", Scope: kit.Admin,
			Handler: kit.Bare(a.dispatching((*sqlcgen.Queries).ResumeDispatch)),
		},
	})
}

// Dispatch says whether dispatch is held, and what there is to dispatch.
type Dispatch struct {
	Held bool `json:"held"`
	sqlcgen.OjsDispatch
}

// dispatching is a handler that reads or changes whether dispatch is held, for all tenants.
func (a *Admin) dispatching(call func(*sqlcgen.Queries, context.Context) (sqlcgen.OjsDispatch, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := kit.ForAllTenants(c, "dispatch cannot be held"); err != nil {
			return err
		}
		d, err := kit.Patiently(a.Kit, c, func(q *sqlcgen.Queries, ctx context.Context, _ struct{}) (sqlcgen.OjsDispatch, error) {
			return call(q, ctx)
		}, struct{}{})
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, map[string]Dispatch{"dispatch": {d.HeldAt != nil, d}})
	}
}
