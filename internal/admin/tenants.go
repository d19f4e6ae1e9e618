package admin

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) tenantRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/tenants", Scope: kit.Read, Query: kit.Paged, OfTenant: true, Handler: a.listTenants},
		{Method: http.MethodGet, Path: v1 + "/admin/tenants/:id", Scope: kit.Read, Handler: a.getTenant},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id", Scope: kit.Admin, Handler: a.putTenant},
		{Method: http.MethodDelete, Path: v1 + "/admin/tenants/:id", Scope: kit.Admin, Query: "confirm", Handler: a.deregisterTenant},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/suspend", Scope: kit.Admin, Handler: a.suspendTenant},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/unsuspend", Scope: kit.Admin, Handler: a.unsuspendTenant},
		{Method: http.MethodGet, Path: v1 + "/admin/tenants/:id/stats", Scope: kit.Read, Handler: a.tenantStats},
	})
}

// statsOf is the body of multi-tenancy section 10.2.
func statsOf(t *sqlcgen.TenantsRow) map[string]any {
	return map[string]any{
		"tenant_id": t.ID, "total_jobs": t.TotalJobs, "oldest_wait_ms": t.OldestWaitMs, "queues": t.Queues, "workers": t.Workers,
		"limits": limitsOf(t, true),
		"jobs": map[string]any{
			"depth": t.Depth, "available": t.Available, "active": t.Active, "scheduled": t.Scheduled, "pending": t.Pending,
			"retryable": t.Retryable, "completed": t.Completed, "cancelled": t.Cancelled, "discarded": t.Discarded,
			"failed_attempts": t.FailedAttempts, "completed_24h": t.Completed24h, "failed_24h": t.Failed24h,
		},
		"throughput": map[string]any{"processed_per_minute": t.Processed1m, "enqueued_per_minute": t.Enqueued1m},
		// What it is entitled to, and what it gets.
		"fairness": map[string]any{
			"weight": json.Number(t.Weight), "effective_share": t.EffectiveShare, "actual_share": t.ActualShare, "deficit": t.Deficit,
			"dispatched": t.Dispatched,
		},
	}
}

// limitsOf has the limits that are set, and what counts against them. How many jobs run the statistics know better than the last decision.
func limitsOf(t *sqlcgen.TenantsRow, current bool) map[string]any {
	limits, err := shownLimits(t.Limits, current)
	if err != nil {
		return nil
	}
	switch {
	case t.MaxConcurrency == nil:
		delete(limits, "max_concurrency") // that of a throttle is none of its limits
	case current:
		limits["max_concurrency"] = map[string]any{"limit": *t.MaxConcurrency, "current": t.Active}
	default:
		limits["max_concurrency"] = *t.MaxConcurrency
	}
	return limits
}

func tenantOf(t *sqlcgen.TenantsRow) map[string]any {
	weight := json.Number(t.Weight)
	tenant := map[string]any{
		"id": t.ID, "name": t.ID, "state": t.State, "weight": weight, "fairness_weight": weight,
		"priority_boost": t.PriorityBoost, "max_priority": t.MaxPriority, "over_priority": t.OverPriority, "tier": t.Tier,
		"limits": limitsOf(t, false), "stats": statsOf(t),
	}
	if t.CreatedAt != nil {
		tenant["created_at"] = t.CreatedAt
	}
	return tenant
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
	items := make([]map[string]any, len(rows))
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

// noMaxPriority is what null sets: jobs may have any priority.
const noMaxPriority = 100

// tenantRequest sets what of a tenant can be set: its weight, under any of its three names, its boost, and how high the priorities of its
// jobs may be, its limits, and its tier, which null takes away. What cannot is refused, because a limit that is accepted and not kept
// would be worse.
type tenantRequest struct {
	_              struct{}        `check:"configurable"`
	PriorityBoost  *int32          `json:"priority_boost"`
	MaxPriority    *int32          `json:"max_priority"`
	OverPriority   *string         `json:"over_priority"`
	Reason         *string         `json:"reason"`
	TenantID       *string         `json:"tenant_id"`
	Tier           *string         `json:"tier"`
	Limits         json.RawMessage `json:"limits" check:"object,storable"`
	Weight         json.RawMessage `json:"weight" check:"number,storable"`
	FairnessWeight json.RawMessage `json:"fairness_weight" check:"number,storable"`
	Fairness       *struct {
		_      struct{}        `check:"configurable"`
		Weight json.RawMessage `json:"weight" check:"number,storable"`
	} `json:"fairness"`

	weight   *string
	weightAt string
	tiered   bool // the tier is given, be it null
}

// Check settles which weight is meant, and what null is.
func (r *tenantRequest) Check(o *kit.Object) {
	r.tiered = o.Has("tier")
	take := func(at string, raw json.RawMessage) {
		if raw == nil {
			return
		}
		v := string(raw)
		if r.weight != nil && *r.weight != v {
			o.Fail(kit.Invalid(at, "disagrees with another spelling of the weight"))
		}
		r.weight, r.weightAt = &v, at
	}
	take("weight", r.Weight)
	take("fairness_weight", r.FairnessWeight)
	if r.Fairness != nil {
		take("fairness.weight", r.Fairness.Weight)
	}
	if most := int32(noMaxPriority); o.Has("max_priority") && o.Raw("max_priority") == nil {
		r.MaxPriority = &most
	}
}

// params are what SQL is asked for. With a tier weight, boost and limits are set in one step with it, so that none is copied from the tier
// that the body has otherwise.
func (r *tenantRequest) params(id string) (sqlcgen.PutTenantParams, error) {
	p := sqlcgen.PutTenantParams{Tenant: id, MaxPriority: r.MaxPriority, OverPriority: r.OverPriority, Reason: r.Reason}
	if !r.tiered {
		p.Weight, p.PriorityBoost, p.Limits = r.weight, r.PriorityBoost, r.Limits
		return p, nil
	}
	with := map[string]any{"tier": r.Tier}
	if r.weight != nil {
		with["fairness_weight"] = json.RawMessage(*r.weight)
	}
	if r.PriorityBoost != nil {
		with["priority_boost"] = *r.PriorityBoost
	}
	if r.Limits != nil {
		with["limits"] = r.Limits
	}
	var err error
	p.WithTier, err = json.Marshal(with)
	return p, err
}

// located says of an error what the client calls the field.
func (a *Admin) located(err error, r *tenantRequest) error {
	var known *pg.Error
	if errors.As(a.DB.Err(err), &known) && known.Details["field"] == "fairness_weight" {
		kit.Locate(known, r.weightAt)
		return known
	}
	return a.underLimits(err, r.Limits)
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
	kit.Because(c, req.Reason)
	if req.TenantID != nil && *req.TenantID != id {
		return kit.Invalid("tenant_id", "is not the one of the path")
	}
	params, err := req.params(id)
	if err != nil {
		return err
	}
	known, err := a.SQL.TenantIsConfigured(a.Context(c), id)
	if err != nil {
		return err
	}
	if _, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).PutTenant, params); err != nil {
		return a.located(err, &req)
	}
	a.RefreshDoor(a.Context(c))
	t, err := a.oneTenant(c)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !known {
		status = http.StatusCreated
	}
	return c.JSON(status, tenantOf(t))
}
