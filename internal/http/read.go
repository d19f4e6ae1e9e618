package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
)

// body reads the request's JSON object.
func (s *Server) body(c echo.Context, limit int64, optional bool) (*kit.Object, error) {
	return kit.ReadBody(c, limit, s.limits.Depth, optional)
}
