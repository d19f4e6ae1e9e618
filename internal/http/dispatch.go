package httpapi

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) dispatchRoutes() []route {
	const on = v1 + "/admin/dispatch"
	return scoped([]route{
		{Method: http.MethodGet, Path: on, Scope: scopeRead, Handler: s.dispatching((*sqlcgen.Queries).Dispatch)},
		{
			Method: http.MethodPost, Path: on + "/hold", Scope: scopeAdmin,
			Handler: withoutBody(s.dispatching((*sqlcgen.Queries).HoldDispatch)),
		},
		{
			Method: http.MethodPost, Path: on + "/resume", Scope: scopeAdmin,
			Handler: withoutBody(s.dispatching((*sqlcgen.Queries).ResumeDispatch)),
		},
	})
}

// dispatching returns a handler that reads or changes, by call, whether dispatch is held for all
// tenants. It answers with the result.
func (s *Server) dispatching(call func(*sqlcgen.Queries, context.Context) (sqlcgen.OjsDispatch, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := forAllTenants(c, "dispatch cannot be held"); err != nil {
			return err
		}
		d, err := patiently(s, c, func(q *sqlcgen.Queries, ctx context.Context, _ struct{}) (sqlcgen.OjsDispatch, error) {
			return call(q, ctx)
		}, struct{}{})
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, map[string]admin.Dispatch{"dispatch": {Held: d.HeldAt != nil, OjsDispatch: d}})
	}
}
