package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) doctorRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/doctor", Scope: scopeRead, Handler: s.doctor},
		{Method: http.MethodGet, Path: v1 + "/admin/blocked", Scope: scopeRead, Query: paged, Handler: s.listBlocked},
	})
}

// doctor answers with the findings of ojs.doctor, the worst first. They name logins, queues and
// tenants of all, so no tenant may read them.
func (s *Server) doctor(c echo.Context) error {
	if err := forAllTenants(c, "the state of the system cannot be read"); err != nil {
		return err
	}
	found, err := s.q.Doctor(s.queryContext(c), sqlcgen.DoctorParams{Servers: 1})
	if err != nil {
		return err
	}
	var worst *string
	if len(found) > 0 {
		worst = &found[0].Severity
	}
	return c.JSON(http.StatusOK, map[string]any{"worst": worst, "findings": found})
}

// listBlocked answers with a page of ojs.blocked_tenants, the tenants with most waiting jobs first.
// Its reasons name operators, so no tenant may read them; a tenant reads its rules.
func (s *Server) listBlocked(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	if err := forAllTenants(c, "blocked tenants cannot be listed"); err != nil {
		return err
	}
	params := sqlcgen.BlockedTenantsParams{MaxRows: int32(limit) + 1, Skip: int32(offset)}
	rows, err := s.q.BlockedTenants(s.queryContext(c), params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, partOf("blocked", rows, limit, offset))
}
