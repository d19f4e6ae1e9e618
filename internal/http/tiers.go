package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) tierRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/tiers", Scope: scopeRead, Query: paged, Handler: s.listTiers},
		{Method: http.MethodGet, Path: v1 + "/admin/tiers/:name", Scope: scopeRead, Handler: s.getTier},
		{Method: http.MethodPut, Path: v1 + "/admin/tiers/:name", Scope: scopeAdmin, Handler: s.putTier},
		{Method: http.MethodDelete, Path: v1 + "/admin/tiers/:name", Scope: scopeAdmin, Query: "confirm", Handler: s.deleteTier},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id/tier", Scope: scopeAdmin, Handler: s.setTier},
	})
}

func (s *Server) listTiers(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	if err := forAllTenants(c, "tiers cannot be listed"); err != nil {
		return err
	}
	tiers, err := s.q.Tiers(s.queryContext(c), nil)
	if err != nil {
		return err
	}
	from := min(offset, len(tiers))
	page := tiers[from:min(from+limit, len(tiers))]
	return c.JSON(http.StatusOK, listed("tiers", page, pagination(len(tiers), limit, offset, limit)))
}

// tierOfPath returns the name of the tier in the path. It fails if no tier can have that name, or
// if the request names a tenant.
func tierOfPath(c echo.Context, cannot string) (string, error) {
	name := c.Param("name")
	if !names.Tenant.MatchString(name) {
		return "", problems.NoSuch("tier", name)
	}
	return name, forAllTenants(c, cannot)
}

func (s *Server) getTier(c echo.Context) error {
	name, err := tierOfPath(c, "a tier cannot be shown")
	if err != nil {
		return err
	}
	tiers, err := s.q.Tiers(s.queryContext(c), &name)
	if err != nil {
		return err
	}
	return showTier(c, name, tiers)
}

func showTier(c echo.Context, name string, tiers []sqlcgen.OjsTiers) error {
	if len(tiers) == 0 {
		return problems.NoSuch("tier", name)
	}
	return c.JSON(http.StatusOK, tiers[0])
}

func (s *Server) putTier(c echo.Context) error {
	name, err := tierOfPath(c, "a tier cannot be configured")
	if err != nil {
		return err
	}
	var req configRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	tiers, err := patiently(s, c, (*sqlcgen.Queries).ConfigureTier, sqlcgen.ConfigureTierParams{
		Name: name, Config: req.Config, Reason: because(c),
	})
	if err != nil {
		return err
	}
	return showTier(c, name, tiers)
}

// because returns the reason of a change, or nil if the request has none.
func because(c echo.Context) *string {
	if reason := reasonOf(c); reason != "" {
		return &reason
	}
	return nil
}

func (s *Server) deleteTier(c echo.Context) error {
	name, err := tierOfPath(c, "a tier cannot be removed")
	if err != nil {
		return err
	}
	req := deletePoolRequest{Confirm: c.QueryParam("confirm") == "true"}
	if err := c.Bind(&req); err != nil {
		return err
	}
	_, err = patiently(s, c, (*sqlcgen.Queries).ConfigureTier, sqlcgen.ConfigureTierParams{
		Name: name, Confirm: req.Confirm, Reason: because(c),
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"name": name, "deleted": true})
}

// tierRequest sets the tier of a tenant; null removes it.
type tierRequest struct {
	_      struct{} `check:"configurable"`
	Tier   *string  `json:"tier"`
	Reason *string  `json:"reason"`
}

// Check refuses a body without tier, because only null removes a tier.
func (r *tierRequest) Check(o *jsonbody.Object) {
	if !o.Has("tier") {
		o.Missing("tier")
	}
}

func (s *Server) setTier(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant's tier cannot be set")
	if err != nil {
		return err
	}
	var req tierRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.SetTierParams{Tenant: *of.Tenant, Tier: req.Tier, Reason: because(c)}
	if _, err := patiently(s, c, (*sqlcgen.Queries).SetTier, params); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"tenant_id": *of.Tenant, "tier": req.Tier})
}
