package admin

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) tenantRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/tenants", Handler: a.listTenants},
		{Method: http.MethodGet, Path: v1 + "/admin/tenants/:id", Handler: a.getTenant},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id", Handler: a.putTenant},
		{Method: http.MethodGet, Path: v1 + "/admin/tenants/:id/stats", Handler: a.tenantStats},
	})
}

type tenant struct {
	ID             string         `json:"id"`
	Name           string         `json:"name"`
	State          string         `json:"state"`
	Weight         json.Number    `json:"weight"`
	FairnessWeight json.Number    `json:"fairness_weight"`
	PriorityBoost  int32          `json:"priority_boost"`
	CreatedAt      *time.Time     `json:"created_at,omitempty"`
	Limits         map[string]any `json:"limits"`
	Stats          tenantStats    `json:"stats"`
}

// tenantStats is the body of multi-tenancy section 10.2, as far as it is measured.
type tenantStats struct {
	TenantID     string         `json:"tenant_id"`
	Jobs         tenantJobs     `json:"jobs"`
	TotalJobs    int64          `json:"total_jobs"`
	OldestWaitMs int64          `json:"oldest_wait_ms"`
	Limits       map[string]any `json:"limits"` // none can be set yet
	Fairness     fairness       `json:"fairness"`
}

type tenantJobs struct {
	Depth          int64 `json:"depth"`
	Available      int64 `json:"available"`
	Active         int64 `json:"active"`
	Scheduled      int64 `json:"scheduled"`
	Pending        int64 `json:"pending"`
	Retryable      int64 `json:"retryable"`
	Completed      int64 `json:"completed"`
	Cancelled      int64 `json:"cancelled"`
	Discarded      int64 `json:"discarded"`
	FailedAttempts int64 `json:"failed_attempts"`
}

// fairness says what a tenant is entitled to and what it gets.
type fairness struct {
	Weight         json.Number `json:"weight"`
	EffectiveShare float64     `json:"effective_share"`
	ActualShare    float64     `json:"actual_share"`
	Deficit        float64     `json:"deficit"`
	Dispatched     int64       `json:"dispatched"`
}

func statsOf(t *sqlcgen.TenantsRow) tenantStats {
	return tenantStats{
		TenantID: t.ID, TotalJobs: t.TotalJobs, OldestWaitMs: t.OldestWaitMs, Limits: map[string]any{},
		Jobs: tenantJobs{
			Depth: t.Depth, Available: t.Available, Active: t.Active, Scheduled: t.Scheduled, Pending: t.Pending, Retryable: t.Retryable,
			Completed: t.Completed, Cancelled: t.Cancelled, Discarded: t.Discarded, FailedAttempts: t.FailedAttempts,
		},
		Fairness: fairness{
			Weight: json.Number(t.Weight), EffectiveShare: t.EffectiveShare, ActualShare: t.ActualShare,
			Deficit: t.Deficit, Dispatched: t.Dispatched,
		},
	}
}

func tenantOf(t *sqlcgen.TenantsRow) tenant {
	weight := json.Number(t.Weight)
	return tenant{
		ID: t.ID, Name: t.ID, State: "active", Weight: weight, FairnessWeight: weight, PriorityBoost: t.PriorityBoost,
		CreatedAt: t.CreatedAt, Limits: map[string]any{}, Stats: statsOf(t),
	}
}

func (a *Admin) listTenants(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx := a.Context(c)
	page, err := a.SQL.TenantNames(ctx, sqlcgen.TenantNamesParams{Tenant: kit.Scope(c), MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	rows, err := a.SQL.Tenants(ctx, page.Names)
	if err != nil {
		return err
	}
	items := make([]tenant, len(rows))
	for i := range rows {
		items[i] = tenantOf(&rows[i])
	}
	return c.JSON(http.StatusOK, listed("tenants", items, kit.Pagination(int(page.Total), limit, offset, limit)))
}

// oneTenant reads the tenant that a path names. To a tenant the others are unknown.
func (a *Admin) oneTenant(c echo.Context) (*sqlcgen.TenantsRow, error) {
	id := c.Param("id")
	if own := kit.Scope(c); own != nil && id != *own || !names.Tenant.MatchString(id) {
		return nil, kit.NoSuch("tenant", id)
	}
	rows, err := a.SQL.Tenants(a.Context(c), []string{id})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, kit.NoSuch("tenant", id)
	}
	return &rows[0], nil
}

func (a *Admin) getTenant(c echo.Context) error {
	t, err := a.oneTenant(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, tenantOf(t))
}

func (a *Admin) tenantStats(c echo.Context) error {
	t, err := a.oneTenant(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, statsOf(t))
}

// tenantRequest sets what of a tenant can be set: its weight, under any of its three names, and its boost. What cannot is refused,
// because a limit that is accepted and not kept would be worse.
type tenantRequest struct {
	_              struct{}        `check:"configurable"`
	PriorityBoost  *int32          `json:"priority_boost"`
	Weight         json.RawMessage `json:"weight" check:"number,storable"`
	FairnessWeight json.RawMessage `json:"fairness_weight" check:"number,storable"`
	Fairness       *struct {
		_      struct{}        `check:"configurable"`
		Weight json.RawMessage `json:"weight" check:"number,storable"`
	} `json:"fairness"`

	weight *string
}

// Check settles which weight is meant.
func (r *tenantRequest) Check(o *kit.Object) {
	take := func(at string, raw json.RawMessage) {
		if raw == nil {
			return
		}
		v := string(raw)
		if r.weight != nil && *r.weight != v {
			o.Fail(kit.Invalid(at, "disagrees with another spelling of the weight"))
		}
		r.weight = &v
	}
	take("weight", r.Weight)
	take("fairness_weight", r.FairnessWeight)
	if r.Fairness != nil {
		take("fairness.weight", r.Fairness.Weight)
	}
}

// putTenant is for all tenants: what one's weight and boost give it, the others lose.
func (a *Admin) putTenant(c echo.Context) error {
	if err := kit.ForAllTenants(c, "shares between tenants cannot be set"); err != nil {
		return err
	}
	var req tenantRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	id := c.Param("id")
	if !names.Tenant.MatchString(id) {
		return kit.NoTenantID("id")
	}
	params := sqlcgen.ConfigureTenantParams{Tenant: id, Weight: req.weight, PriorityBoost: req.PriorityBoost}
	_, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).ConfigureTenant, params)
	if err != nil {
		return err
	}
	return a.getTenant(c)
}
