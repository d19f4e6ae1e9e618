package admin

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) keyRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/api-keys", Scope: kit.Read, Query: kit.Paged, Handler: a.listKeys},
		{Method: http.MethodPost, Path: v1 + "/admin/api-keys", Scope: kit.Admin, Handler: a.createKey},
		{Method: http.MethodPost, Path: v1 + "/admin/api-keys/:id/rotate", Scope: kit.Admin, Handler: a.rotateKey},
		{Method: http.MethodDelete, Path: v1 + "/admin/api-keys/:id", Scope: kit.Admin, Handler: a.revokeKey},
	})
}

const noKeys = "API keys cannot be managed"

func (a *Admin) listKeys(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	if err := kit.ForAllTenants(c, noKeys); err != nil {
		return err
	}
	rows, err := a.SQL.APIKeys(a.Context(c), sqlcgen.APIKeysParams{MaxRows: int32(limit) + 1, Skip: int32(offset)})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, partOf("api_keys", rows, limit, offset))
}

type createKeyRequest struct {
	_         struct{}   `check:"only"`
	TenantID  *string    `json:"tenant_id"`
	Tenant    *string    `json:"tenant"`
	Scopes    []string   `json:"scopes" check:"required"`
	Name      string     `json:"name"`
	Queues    []string   `json:"queues"`
	ExpiresAt *time.Time `json:"expires_at" check:"when"`
	Reason    *string    `json:"reason"`
}

// Check takes both names of the tenant.
func (r *createKeyRequest) Check(o *kit.Object) {
	var err error
	if r.TenantID, err = kit.SameTenant(o.At("tenant"), r.Tenant, r.TenantID); err != nil {
		o.Fail(err)
	}
}

func (a *Admin) createKey(c echo.Context) error {
	if err := kit.ForAllTenants(c, noKeys); err != nil {
		return err
	}
	var req createKeyRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	kit.Because(c, req.Reason)
	key, err := a.Changing(c).CreateAPIKey(a.Context(c), sqlcgen.CreateAPIKeyParams{
		Tenant: req.TenantID, Scopes: req.Scopes, Name: req.Name, Queues: req.Queues, ExpiresAt: req.ExpiresAt,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, key)
}

// keyOfPath is the id of the key that a path names.
func keyOfPath(c echo.Context) (string, error) {
	id := c.Param("id")
	if !kit.IsUUID(id) {
		return "", kit.NoSuch("api_key", id)
	}
	return id, kit.ForAllTenants(c, noKeys)
}

type rotateKeyRequest struct {
	kit.Optional
	_       struct{} `check:"only"`
	Overlap *string  `json:"overlap"`
	Reason  *string  `json:"reason"`
}

// Check reads how long both are good.
func (r *rotateKeyRequest) Check(o *kit.Object) { r.Overlap = seconds(o, "overlap", r.Overlap) }

func (a *Admin) rotateKey(c echo.Context) error {
	id, err := keyOfPath(c)
	if err != nil {
		return err
	}
	var req rotateKeyRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	kit.Because(c, req.Reason)
	overlap := strconv.Itoa(24*60*60) + " seconds"
	if req.Overlap != nil {
		overlap = *req.Overlap
	}
	key, err := a.Changing(c).RotateAPIKey(a.Context(c), sqlcgen.RotateAPIKeyParams{ID: id, GoodFor: overlap})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, key)
}

func (a *Admin) revokeKey(c echo.Context) error {
	id, err := keyOfPath(c)
	if err != nil {
		return err
	}
	var req reasonRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	kit.Because(c, req.Reason)
	key, err := a.Changing(c).RevokeAPIKey(a.Context(c), sqlcgen.RevokeAPIKeyParams{ID: id, Reason: req.Reason})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, key)
}
