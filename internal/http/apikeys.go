package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) keyRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/api-keys", Scope: scopeRead, Query: paged, Handler: s.listKeys},
		{Method: http.MethodPost, Path: v1 + "/admin/api-keys", Scope: scopeAdmin, Handler: s.createKey},
		{Method: http.MethodPost, Path: v1 + "/admin/api-keys/:id/rotate", Scope: scopeAdmin, Handler: s.rotateKey},
		{Method: http.MethodDelete, Path: v1 + "/admin/api-keys/:id", Scope: scopeAdmin, Handler: s.revokeKey},
	})
}

// noKeys is the start of the refusal of a request that names a tenant.
const noKeys = "API keys cannot be managed"

func (s *Server) listKeys(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	if err := forAllTenants(c, noKeys); err != nil {
		return err
	}
	rows, err := s.q.APIKeys(s.queryContext(c), sqlcgen.APIKeysParams{MaxRows: int32(limit) + 1, Skip: int32(offset)})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, partOf("api_keys", rows, limit, offset))
}

type createKeyRequest struct {
	TenantID  *string    `json:"tenant_id" check:"scope"`
	Tenant    *string    `json:"tenant" check:"scope"`
	Scopes    []string   `json:"scopes" check:"required"`
	Name      string     `json:"name"`
	Queues    []string   `json:"queues" check:"scope"`
	ExpiresAt *time.Time `json:"expires_at" check:"when"`
	Reason    *string    `json:"reason"`
}

// Check accepts tenant and tenant_id as two names of one field, and fails if they differ.
func (r *createKeyRequest) Check(o *jsonbody.Object) {
	var err error
	if r.TenantID, err = jsonbody.SameTenant(o.At("tenant"), r.Tenant, r.TenantID); err != nil {
		o.Fail(err)
	}
}

func (s *Server) createKey(c echo.Context) error {
	if err := forAllTenants(c, noKeys); err != nil {
		return err
	}
	var req createKeyRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	key, err := s.changing(c).CreateAPIKey(s.queryContext(c), sqlcgen.CreateAPIKeyParams{
		Tenant: req.TenantID, Scopes: req.Scopes, Name: req.Name, Queues: req.Queues, ExpiresAt: req.ExpiresAt,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, key)
}

// keyOfPath returns the id of the key in the path. It fails if no key can have that id, or if the
// request names a tenant.
func keyOfPath(c echo.Context) (string, error) {
	id := c.Param("id")
	if !jsonbody.IsUUID(id) {
		return "", problems.NoSuch("api_key", id)
	}
	return id, forAllTenants(c, noKeys)
}

type rotateKeyRequest struct {
	jsonbody.Optional
	Overlap *string `json:"overlap"`
	Reason  *string `json:"reason"`
}

// Check reads overlap: for how long both the old and the new key are valid.
func (r *rotateKeyRequest) Check(o *jsonbody.Object) { r.Overlap = seconds(o, "overlap", r.Overlap) }

func (s *Server) rotateKey(c echo.Context) error {
	id, err := keyOfPath(c)
	if err != nil {
		return err
	}
	var req rotateKeyRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	overlap := strconv.Itoa(24*60*60) + " seconds"
	if req.Overlap != nil {
		overlap = *req.Overlap
	}
	key, err := s.changing(c).RotateAPIKey(s.queryContext(c), sqlcgen.RotateAPIKeyParams{ID: id, GoodFor: overlap})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, key)
}

func (s *Server) revokeKey(c echo.Context) error {
	id, err := keyOfPath(c)
	if err != nil {
		return err
	}
	var req reasonRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	key, err := s.changing(c).RevokeAPIKey(s.queryContext(c), sqlcgen.RevokeAPIKeyParams{ID: id, Reason: req.Reason})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, key)
}
