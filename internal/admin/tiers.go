package admin

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) tierRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/tiers", Scope: kit.Read, Query: kit.Paged, Handler: a.listTiers},
		{Method: http.MethodGet, Path: v1 + "/admin/tiers/:name", Scope: kit.Read, Handler: a.getTier},
		{Method: http.MethodPut, Path: v1 + "/admin/tiers/:name", Scope: kit.Admin, Handler: a.putTier},
		{Method: http.MethodDelete, Path: v1 + "/admin/tiers/:name", Scope: kit.Admin, Query: "confirm", Handler: a.deleteTier},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id/tier", Scope: kit.Admin, Handler: a.setTier},
	})
}

func (a *Admin) listTiers(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	if err := kit.ForAllTenants(c, "tiers cannot be listed"); err != nil {
		return err
	}
	tiers, err := a.SQL.Tiers(a.Context(c), nil)
	if err != nil {
		return err
	}
	from := min(offset, len(tiers))
	page := tiers[from:min(from+limit, len(tiers))]
	return c.JSON(http.StatusOK, listed("tiers", page, kit.Pagination(len(tiers), limit, offset, limit)))
}

// tierOfPath is the name of the tier that a path names.
func tierOfPath(c echo.Context, cannot string) (string, error) {
	name := c.Param("name")
	if !names.Tenant.MatchString(name) {
		return "", kit.NoSuch("tier", name)
	}
	return name, kit.ForAllTenants(c, cannot)
}

func (a *Admin) getTier(c echo.Context) error {
	name, err := tierOfPath(c, "a tier cannot be shown")
	if err != nil {
		return err
	}
	tiers, err := a.SQL.Tiers(a.Context(c), &name)
	if err != nil {
		return err
	}
	return showTier(c, name, tiers)
}

func showTier(c echo.Context, name string, tiers []sqlcgen.OjsTiers) error {
	if len(tiers) == 0 {
		return kit.NoSuch("tier", name)
	}
	return c.JSON(http.StatusOK, tiers[0])
}

func (a *Admin) putTier(c echo.Context) error {
	name, err := tierOfPath(c, "a tier cannot be configured")
	if err != nil {
		return err
	}
	var req configRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	tiers, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).ConfigureTier, sqlcgen.ConfigureTierParams{
		Name: name, Config: req.Config, Reason: because(c),
	})
	if err != nil {
		return err
	}
	return showTier(c, name, tiers)
}

// because is why a request changes something, or nil.
func because(c echo.Context) *string {
	if reason := kit.Reason(c); reason != "" {
		return &reason
	}
	return nil
}

func (a *Admin) deleteTier(c echo.Context) error {
	name, err := tierOfPath(c, "a tier cannot be removed")
	if err != nil {
		return err
	}
	req := deletePoolRequest{Confirm: c.QueryParam("confirm") == "true"}
	if err := c.Bind(&req); err != nil {
		return err
	}
	_, err = kit.Patiently(a.Kit, c, (*sqlcgen.Queries).ConfigureTier, sqlcgen.ConfigureTierParams{
		Name: name, Confirm: req.Confirm, Reason: because(c),
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"name": name, "deleted": true})
}

// tierRequest gives a tenant a tier; null takes it away.
type tierRequest struct {
	_      struct{} `check:"configurable"`
	Tier   *string  `json:"tier"`
	Reason *string  `json:"reason"`
}

// Check tells null from absent.
func (r *tierRequest) Check(o *kit.Object) {
	if !o.Has("tier") {
		o.Missing("tier")
	}
}

func (a *Admin) setTier(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant's tier cannot be set")
	if err != nil {
		return err
	}
	var req tierRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	kit.Because(c, req.Reason)
	params := sqlcgen.SetTierParams{Tenant: *of.Tenant, Tier: req.Tier, Reason: because(c)}
	if _, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).SetTier, params); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"tenant_id": *of.Tenant, "tier": req.Tier})
}
