package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) settingRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/settings", Scope: scopeRead, Handler: s.getSettings},
		{Method: http.MethodPut, Path: v1 + "/admin/settings", Scope: scopeAdmin, Handler: s.putSettings},
	})
}

func (s *Server) getSettings(c echo.Context) error {
	if err := forAllTenants(c, "settings cannot be shown"); err != nil {
		return err
	}
	settings, err := s.q.Settings(s.queryContext(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, settings)
}

// putSettings changes the settings that the body names, and answers with all.
func (s *Server) putSettings(c echo.Context) error {
	if err := forAllTenants(c, "settings cannot be changed"); err != nil {
		return err
	}
	var req configRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	_, err := patiently(s, c, (*sqlcgen.Queries).PutSettings, sqlcgen.PutSettingsParams{Config: req.Config, Reason: because(c)})
	if err != nil {
		return err
	}
	return s.getSettings(c)
}
