package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
)

// body reads the JSON object of a request, and judges parts of it by themselves. A body that is
// announced as larger than limit is discarded, and takes no memory.
func (s *Server) body(c echo.Context, limit int64, optional bool, parts jsonbody.Parts) (*jsonbody.Object, error) {
	r := c.Request()
	if b, large := r.Body.(*roomyBody); large && r.ContentLength <= limit {
		b.limit = limit
	}
	return jsonbody.ReadBody(c.Response(), r, limit, s.limits.Depth, optional, parts)
}
