package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) explainRoutes() []route {
	return scoped([]route{{Method: http.MethodGet, Path: v1 + "/admin/jobs/:id/explain", Scope: scopeRead, Handler: s.explainJob}})
}

// explainJob answers why a job waits. A tenant gets 404 for a job of another tenant, and does not
// read the names of other tenants' jobs.
func (s *Server) explainJob(c echo.Context) error {
	id := c.Param("id")
	if !jsonbody.IsUUID(id) {
		return problems.NoSuch("job", id)
	}
	explanation, err := s.q.Explain(s.queryContext(c), sqlcgen.ExplainParams{ID: id, Tenant: requestTenant(c)})
	if err != nil {
		return err
	}
	return writeBlob(c, http.StatusOK, explanation)
}
