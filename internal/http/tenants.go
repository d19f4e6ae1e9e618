package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) tenantRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/tenants", Scope: scopeRead, Query: paged, OfTenant: true, Handler: s.listTenants},
		{Method: http.MethodGet, Path: v1 + "/admin/tenants/:id", Scope: scopeRead, Handler: s.getTenant},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id", Scope: scopeAdmin, Handler: s.putTenant},
		{Method: http.MethodDelete, Path: v1 + "/admin/tenants/:id", Scope: scopeAdmin, Query: "confirm", Handler: s.deregisterTenant},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/suspend", Scope: scopeAdmin, Handler: s.suspendTenant},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/unsuspend", Scope: scopeAdmin, Handler: s.unsuspendTenant},
		{Method: http.MethodGet, Path: v1 + "/admin/tenants/:id/stats", Scope: scopeRead, Handler: s.tenantStats},
	})
}

// statsOf returns the body of multi-tenancy section 10.2.
func statsOf(t *sqlcgen.TenantsRow) map[string]any {
	return map[string]any{
		"as_of": t.AsOf, "tenant_id": t.ID, "total_jobs": t.TotalJobs, "oldest_wait_ms": t.OldestWaitMs,
		"queues": t.Queues, "workers": t.Workers,
		"limits": limitsOf(t, true),
		"jobs": map[string]any{
			"depth": t.Depth, "available": t.Available, "active": t.Active, "scheduled": t.Scheduled, "pending": t.Pending,
			"retryable": t.Retryable, "completed": t.Completed, "cancelled": t.Cancelled, "discarded": t.Discarded,
			"failed_attempts": t.FailedAttempts, "completed_24h": t.Completed24h, "failed_24h": t.Failed24h,
			"attempts_failed_24h": t.AttemptsFailed24h,
		},
		"throughput": map[string]any{
			"enqueued_per_minute": t.Enqueued1m, "processed_per_minute": t.Processed1m,
			"attempts_failed_per_minute": t.AttemptsFailed1m,
		},
		// The share that the tenant is entitled to, and the share that it gets.
		"fairness": map[string]any{
			"weight": json.Number(t.Weight), "effective_share": t.EffectiveShare, "actual_share": t.ActualShare, "deficit": t.Deficit,
			"dispatched": t.Dispatched,
		},
	}
}

// limitsOf returns the limits that are set for a tenant; with current also what counts against
// them. The number of running jobs comes from the statistics, which are more recent than the last
// decision of dispatch.
func limitsOf(t *sqlcgen.TenantsRow, current bool) map[string]any {
	limits, err := shownLimits(t.Limits, current)
	if err != nil {
		return nil
	}
	switch {
	case t.MaxConcurrency == nil:
		delete(limits, "max_concurrency") // the limit of a throttle is not one of the tenant's own
	case current:
		limits["max_concurrency"] = map[string]any{"limit": *t.MaxConcurrency, "current": t.Active}
	default:
		limits["max_concurrency"] = *t.MaxConcurrency
	}
	return limits
}

// tenantOf returns a tenant as answers show it.
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

func (s *Server) listTenants(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx := s.queryContext(c)
	page, err := s.q.TenantNames(ctx, sqlcgen.TenantNamesParams{Tenant: requestTenant(c), MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	rows, err := s.q.Tenants(ctx, page.Names)
	if err != nil {
		return err
	}
	items := make([]map[string]any, len(rows))
	for i := range rows {
		items[i] = tenantOf(&rows[i])
	}
	return c.JSON(http.StatusOK, listed("tenants", items, pagination(int(page.Total), limit, offset, limit)))
}

// oneTenant reads the tenant that a path names. A tenant gets 404 for other tenants.
func (s *Server) oneTenant(c echo.Context) (*sqlcgen.TenantsRow, error) {
	id := c.Param("id")
	if own := requestTenant(c); own != nil && id != *own || !names.Tenant.MatchString(id) {
		return nil, problems.NoSuch("tenant", id)
	}
	rows, err := s.q.Tenants(s.queryContext(c), []string{id})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, problems.NoSuch("tenant", id)
	}
	return &rows[0], nil
}

func (s *Server) getTenant(c echo.Context) error {
	t, err := s.oneTenant(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, tenantOf(t))
}

func (s *Server) tenantStats(c echo.Context) error {
	t, err := s.oneTenant(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, statsOf(t))
}

// noMaxPriority is the value that null sets: jobs may have any priority.
const noMaxPriority = 100

// tenantRequest changes settings of a tenant: its weight, under any of three names, its boost, the
// highest priority of its jobs, its limits, and its tier, which null removes. Other settings are
// refused, because a limit that is accepted and not enforced would be worse.
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
	tiered   bool // the body has a tier, which may be null
}

// Check reads the weight under its names, which must agree, and the null of max_priority.
func (r *tenantRequest) Check(o *jsonbody.Object) {
	r.tiered = o.Has("tier")
	take := func(at string, raw json.RawMessage) {
		if raw == nil {
			return
		}
		v := string(raw)
		if r.weight != nil && *r.weight != v {
			o.Fail(problems.Invalid(at, "disagrees with another spelling of the weight"))
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

// params returns the parameters of the SQL function. With a tier, it sets weight, boost and limits
// in one step with the tier, so that the tier does not replace the values that the body gives.
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

// spell is the spelling of the request's errors.
func (r *tenantRequest) spell(problem *pg.Error) (path string) {
	if problem.Field == "fairness_weight" {
		return r.weightAt
	}
	return underLimits(problem, r.Limits)
}

// putTenant changes settings of a tenant. A request for one tenant may not, because what a tenant
// gains by weight and boost is lost by the others.
func (s *Server) putTenant(c echo.Context) error {
	if err := forAllTenants(c, "shares between tenants cannot be set"); err != nil {
		return err
	}
	var req tenantRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	id := c.Param("id")
	if !names.Tenant.MatchString(id) {
		return noTenantID("id")
	}
	if req.TenantID != nil && *req.TenantID != id {
		return problems.Invalid("tenant_id", "is not the one of the path")
	}
	params, err := req.params(id)
	if err != nil {
		return err
	}
	known, err := s.q.TenantIsConfigured(s.queryContext(c), id)
	if err != nil {
		return err
	}
	spelledBy(c, req.spell)
	if _, err := patiently(s, c, (*sqlcgen.Queries).PutTenant, params); err != nil {
		return err
	}
	s.refreshBounds(s.queryContext(c))
	t, err := s.oneTenant(c)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !known {
		status = http.StatusCreated
	}
	return c.JSON(status, tenantOf(t))
}

// reasonRequest is a body that may hold only a reason.
type reasonRequest struct {
	jsonbody.Optional
	Reason *string `json:"reason"`
}

func (s *Server) suspendTenant(c echo.Context) error {
	return s.switchTenant(c, func(q *sqlcgen.Queries, ctx context.Context, of admin.Of) (any, error) {
		return q.SuspendTenant(ctx, sqlcgen.SuspendTenantParams{Tenant: *of.Tenant, Reason: of.Reason})
	})
}

func (s *Server) unsuspendTenant(c echo.Context) error {
	return s.switchTenant(c, func(q *sqlcgen.Queries, ctx context.Context, of admin.Of) (any, error) {
		return q.ResumeTenant(ctx, *of.Tenant)
	})
}

// switchTenant suspends the tenant that the path names, or resumes it, by do. It answers with the
// tenant.
func (s *Server) switchTenant(c echo.Context, do func(*sqlcgen.Queries, context.Context, admin.Of) (any, error)) error {
	of, err := tenantOfPath(c, "a tenant cannot be suspended")
	if err != nil {
		return err
	}
	var req reasonRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	of.Reason = req.Reason
	if _, err := patiently(s, c, do, of); err != nil {
		return err
	}
	return s.getTenant(c)
}

// deregisterTenantRequest is the body of a deregistration. Confirm repeats the name of the tenant,
// because jobs that have not ended are cancelled and dead letters are deleted.
type deregisterTenantRequest struct {
	jsonbody.Optional
	Confirm *string `json:"confirm"`
	Reason  *string `json:"reason"`
}

// deregisterTenant ends a tenant. It answers 202, because the scheduler cancels the remaining jobs
// later.
func (s *Server) deregisterTenant(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant cannot be deregistered")
	if err != nil {
		return err
	}
	var req deregisterTenantRequest
	if req.Confirm, err = queryText(c, "confirm"); err != nil {
		return err
	}
	if err := c.Bind(&req); err != nil {
		return err
	}
	row, err := patiently(s, c, (*sqlcgen.Queries).DeregisterTenant, sqlcgen.DeregisterTenantParams{
		Tenant: *of.Tenant, Confirm: req.Confirm, Reason: req.Reason,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, map[string]any{
		"id": row.TenantID, "tenant_id": row.TenantID, "state": "deregistering", "jobs": row.Jobs, "deregistered_at": row.At,
	})
}
