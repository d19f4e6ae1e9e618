package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
)

// body reads the request's JSON object.
func (s *Server) body(c echo.Context, limit int64, optional bool) (*kit.Object, error) {
	return kit.ReadBody(c, limit, s.limits.Depth, optional)
}

// scoped is body, and whose tenant the request is for.
func (s *Server) scoped(c echo.Context, limit int64, optional bool) (req *kit.Object, scope *string, err error) {
	if req, err = s.body(c, limit, optional); err == nil {
		scope, _, err = kit.Tenant(c.Request().Header)
	}
	return req, scope, err
}
