package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// fairnessJSON says what a tenant is entitled to and what it gets.
type fairnessJSON struct {
	Weight         json.Number `json:"weight"`
	EffectiveShare float64     `json:"effective_share"`
	ActualShare    float64     `json:"actual_share"`
	Deficit        float64     `json:"deficit"`
	Dispatched     int64       `json:"dispatched"`
}

// statsJSON is the body of multi-tenancy section 10.2, as far as it is measured.
type statsJSON struct {
	TenantID     string         `json:"tenant_id"`
	Jobs         countsJSON     `json:"jobs"`
	TotalJobs    int64          `json:"total_jobs"`
	OldestWaitMs int64          `json:"oldest_wait_ms"`
	Limits       map[string]any `json:"limits"` // none can be set yet
	Fairness     fairnessJSON   `json:"fairness"`
}

func statsOf(t admin.Tenant) statsJSON {
	return statsJSON{
		TenantID: t.ID, Jobs: countsOf(t.Counts), TotalJobs: t.Total, OldestWaitMs: t.OldestWait.Milliseconds(),
		Limits: map[string]any{},
		Fairness: fairnessJSON{
			Weight: json.Number(t.Weight), EffectiveShare: t.EffectiveShare, ActualShare: t.ActualShare,
			Deficit: t.Deficit, Dispatched: t.Dispatched,
		},
	}
}

type tenantJSON struct {
	ID             string         `json:"id"`
	Name           string         `json:"name"`
	State          string         `json:"state"`
	Weight         json.Number    `json:"weight"`
	FairnessWeight json.Number    `json:"fairness_weight"`
	PriorityBoost  int32          `json:"priority_boost"`
	CreatedAt      *kit.Stamp     `json:"created_at,omitempty"`
	Limits         map[string]any `json:"limits"`
	Stats          statsJSON      `json:"stats"`
}

func tenantOf(t admin.Tenant) tenantJSON {
	weight := json.Number(t.Weight)
	return tenantJSON{
		ID: t.ID, Name: t.ID, State: "active", Weight: weight, FairnessWeight: weight, PriorityBoost: t.PriorityBoost,
		CreatedAt: kit.StampOf(t.CreatedAt), Limits: map[string]any{}, Stats: statsOf(t),
	}
}

func (s *Server) listTenants(c echo.Context) error {
	ctx, cancel := s.query(c)
	defer cancel()
	tenants, err := admin.Tenants(ctx, s.q, nil)
	if err != nil {
		return err
	}
	tenants, pagination, err := kit.Page(c, tenants)
	if err != nil {
		return err
	}
	items := make([]tenantJSON, len(tenants))
	for i, t := range tenants {
		items[i] = tenantOf(t)
	}
	return kit.Encode(c, http.StatusOK, map[string]any{"items": items, "tenants": items, "pagination": pagination})
}

func (s *Server) oneTenant(c echo.Context) (admin.Tenant, error) {
	id := c.Param("id")
	if !kit.TenantID.MatchString(id) {
		return admin.Tenant{}, kit.NoSuch("tenant", id)
	}
	ctx, cancel := s.query(c)
	defer cancel()
	tenants, err := admin.Tenants(ctx, s.q, &id)
	if err != nil {
		return admin.Tenant{}, err
	}
	if len(tenants) == 0 {
		return admin.Tenant{}, kit.NoSuch("tenant", id)
	}
	return tenants[0], nil
}

func (s *Server) getTenant(c echo.Context) error {
	t, err := s.oneTenant(c)
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, tenantOf(t))
}

func (s *Server) tenantStats(c echo.Context) error {
	t, err := s.oneTenant(c)
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, statsOf(t))
}

// putTenant sets what of a tenant can be set: its weight, under any of its three names, and its
// boost. What cannot is refused, because a limit that is accepted and not kept would be worse.
func (s *Server) putTenant(c echo.Context) error {
	req, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	id := c.Param("id")
	if !kit.TenantID.MatchString(id) {
		return kit.Invalid("id", "must match ^[a-zA-Z0-9][a-zA-Z0-9._:-]*$ and be at most 256 bytes long")
	}
	params := sqlcgen.ConfigureTenantParams{Tenant: id, PriorityBoost: req.Integer("priority_boost", -1<<31)}
	weight := func(o *kit.Object, key string) {
		raw := o.Typed(key, "number")
		if raw == nil {
			return
		}
		o.Storable(raw, o.At(key))
		v := string(raw)
		if params.Weight != nil && *params.Weight != v {
			o.Fail(kit.Invalid(o.At(key), "disagrees with another spelling of the weight"))
		}
		params.Weight = &v
	}
	weight(req, "weight")
	weight(req, "fairness_weight")
	if fairness := req.Child("fairness"); fairness != nil {
		weight(fairness, "weight")
		kit.Only(fairness, kit.NotConfigurable, "weight")
	}
	kit.Only(req, kit.NotConfigurable, "weight", "fairness_weight", "fairness", "priority_boost")
	if err := req.Err(); err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	if _, err := s.q.ConfigureTenant(ctx, params); err != nil {
		return err
	}
	tenants, err := admin.Tenants(ctx, s.q, &id)
	if err != nil {
		return err
	}
	if len(tenants) == 0 {
		return kit.NoSuch("tenant", id)
	}
	return kit.Encode(c, http.StatusOK, tenantOf(tenants[0]))
}
