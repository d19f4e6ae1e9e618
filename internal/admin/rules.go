package admin

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Of is what a rule is about, a tenant, a queue or a tenant in a queue, and why there is one.
type Of struct {
	Queue, Tenant, Reason *string
}

// Switch stops or resumes dispatch.
type Switch func(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error)

// Pause stops dispatch (ojs.pause).
func Pause(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error) {
	return q.Pause(ctx, sqlcgen.PauseParams{Queue: of.Queue, Tenant: of.Tenant, Reason: of.Reason})
}

// Resume lets dispatch go on (ojs.resume).
func Resume(q *sqlcgen.Queries, ctx context.Context, of Of) (sqlcgen.OjsRule, error) {
	return q.Resume(ctx, sqlcgen.ResumeParams{Queue: of.Queue, Tenant: of.Tenant})
}

func (a *Admin) ruleRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/rules", Handler: a.listRules},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id/limits", Handler: a.limitTenant},
		{Method: http.MethodPut, Path: v1 + "/admin/queues/:name/limits", Handler: a.limitQueue},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/pause", Handler: a.pauseTenant(Pause)},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/resume", Handler: a.pauseTenant(Resume)},
	})
}

func (a *Admin) listRules(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := a.Context(c), kit.Scope(c)
	total, err := a.SQL.RuleCount(ctx, tenant)
	if err != nil {
		return err
	}
	rows, err := a.SQL.Rules(ctx, sqlcgen.RulesParams{Tenant: tenant, MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, listed("rules", rows, kit.Pagination(int(total), limit, offset, limit)))
}

// ofRequest says more of a rule than its path does.
type ofRequest struct {
	kit.Optional
	_      struct{} `check:"configurable"`
	Queue  *string  `json:"queue"`
	Reason *string  `json:"reason"`
}

// queueOf is the queue that a path names, of all tenants.
func queueOf(c echo.Context, cannot string) (Of, error) {
	name := c.Param("name")
	if !names.Queue.MatchString(name) {
		return Of{}, kit.NoSuch("queue", name)
	}
	return Of{Queue: &name}, kit.ForAllTenants(c, cannot)
}

// tenantOfPath is the tenant that a path names, for a caller who may decide about tenants.
func tenantOfPath(c echo.Context, cannot string) (Of, error) {
	if err := kit.ForAllTenants(c, cannot); err != nil {
		return Of{}, err
	}
	id := c.Param("id")
	if !names.Tenant.MatchString(id) {
		return Of{}, kit.NoTenantID("id")
	}
	return Of{Tenant: &id}, nil
}

func (a *Admin) pauseQueue(do Switch) echo.HandlerFunc {
	return func(c echo.Context) error {
		of, err := queueOf(c, "a queue cannot be paused")
		if err != nil {
			return err
		}
		rule, err := kit.Patiently(a.Kit, c, do, of)
		if err != nil {
			return err
		}
		paused := rule.PausedAt != nil
		queue := map[string]any{"name": *of.Queue, "status": statusOf(paused), "paused": paused}
		return c.JSON(http.StatusOK, map[string]any{
			"queue": queue, "name": *of.Queue, "state": statusOf(paused), "paused": paused, "paused_at": rule.PausedAt,
		})
	}
}

// pauseTenant stops or resumes a tenant, or, with queue, that tenant in it.
func (a *Admin) pauseTenant(do Switch) echo.HandlerFunc {
	return func(c echo.Context) error {
		of, err := tenantOfPath(c, "a tenant cannot be paused")
		if err != nil {
			return err
		}
		var req ofRequest
		if err := c.Bind(&req); err != nil {
			return err
		}
		of.Queue, of.Reason = req.Queue, req.Reason
		kit.Because(c, req.Reason)
		rule, err := kit.Patiently(a.Kit, c, do, of)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, map[string]any{"paused": rule.PausedAt != nil, "rule": rule})
	}
}

func statusOf(paused bool) string {
	if paused {
		return "paused"
	}
	return "active"
}

// limitFields set limits: what is absent stays as it is, null removes a limit.
type limitFields struct {
	MaxConcurrency *int32  `json:"max_concurrency" check:"1..1000000"`
	Reason         *string `json:"reason"`

	given bool
}

// Check tells null from absent.
func (l *limitFields) Check(o *kit.Object) { l.given = o.Has("max_concurrency") }

// limitsRequest has its fields at the top, or under limits.
type limitsRequest struct {
	_ struct{} `check:"configurable"`
	limitFields
	Limits *nestedLimits `json:"limits"`
	Queue  *string       `json:"queue"`
}

type nestedLimits struct {
	_ struct{} `check:"configurable"`
	limitFields
}

// limitTenant sets limits of a tenant, or, with queue, of that tenant in it.
func (a *Admin) limitTenant(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant's limits cannot be set")
	if err != nil {
		return err
	}
	return a.limit(c, of)
}

func (a *Admin) limitQueue(c echo.Context) error {
	of, err := queueOf(c, "a queue's limits cannot be set")
	if err != nil {
		return err
	}
	return a.limit(c, of)
}

func (a *Admin) limit(c echo.Context, of Of) error {
	var req limitsRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	set := req.limitFields
	if req.Limits != nil {
		if set.given && req.Limits.given {
			return kit.Invalid("limits.max_concurrency", "stands at the top, too")
		}
		set = req.Limits.limitFields
	}
	if !set.given {
		return kit.Invalid("max_concurrency", "is missing: an integer, or null for no limit")
	}
	if req.Queue != nil {
		if of.Queue != nil && *of.Queue != *req.Queue {
			return kit.Invalid("queue", "is not the one of the path")
		}
		of.Queue = req.Queue
	}
	rule, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).LimitConcurrency, sqlcgen.LimitConcurrencyParams{
		MaxConcurrency: set.MaxConcurrency, Tenant: of.Tenant, Queue: of.Queue, Reason: set.Reason,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"limits": map[string]any{"max_concurrency": rule.MaxConcurrency}, "rule": rule})
}
