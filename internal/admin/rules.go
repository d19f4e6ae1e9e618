package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
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
		{Method: http.MethodGet, Path: v1 + "/admin/rules", Scope: kit.Read, Query: kit.Paged, OfTenant: true, Handler: a.listRules},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id/limits", Scope: kit.Admin, Handler: a.limitTenant},
		{Method: http.MethodPut, Path: v1 + "/admin/queues/:name/limits", Scope: kit.Admin, Queues: kit.QueueInPath, Handler: a.limitQueue},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/pause", Scope: kit.Admin, Handler: a.pauseTenant(Pause)},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/resume", Scope: kit.Admin, Handler: a.pauseTenant(Resume)},
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
		var req struct {
			kit.Optional
			Reason *string `json:"reason"`
		}
		if err := c.Bind(&req); err != nil {
			return err
		}
		of.Reason = req.Reason
		kit.Because(c, req.Reason)
		known, err := a.SQL.Queues(a.Context(c), sqlcgen.QueuesParams{Names: []string{*of.Queue}})
		if err != nil {
			return err
		}
		rule, err := kit.Patiently(a.Kit, c, do, of)
		if err != nil {
			return err
		}
		paused := rule.PausedAt != nil
		queue := map[string]any{"name": *of.Queue, "status": statusOf(paused), "paused": paused, "paused_at": rule.PausedAt}
		answer := map[string]any{
			"queue": queue, "name": *of.Queue, "status": statusOf(paused), "state": statusOf(paused), "paused": paused,
			"paused_at": rule.PausedAt,
		}
		if paused && len(known) == 0 {
			answer["created"] = true // probably a name with a slip of the pen
		}
		return c.JSON(http.StatusOK, answer)
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

// limitsRequest has limits, each a number, an object or null, at the top, or under limits. SQL knows which there are and what they hold.
type limitsRequest struct {
	_        struct{}        `check:"any"`
	Limits   json.RawMessage `json:"limits" check:"object,storable"`
	Queue    *string         `json:"queue"`
	Reason   *string         `json:"reason"`
	TenantID *string         `json:"tenant_id"`
	Tenant   *string         `json:"tenant"`

	under json.RawMessage // those that stand under limits
}

// Check brings both places together.
func (r *limitsRequest) Check(o *kit.Object) {
	if o.Storable(o.Source, ""); o.Err() != nil {
		return
	}
	limits := map[string]json.RawMessage{}
	for _, m := range o.Fields {
		if name := m.Key; name != "limits" && name != "queue" && name != "reason" && name != "tenant_id" && name != "tenant" {
			limits[name] = m.Raw
		}
	}
	if r.under = r.Limits; r.Limits != nil {
		nested := o.Child("limits")
		for _, m := range nested.Fields {
			name := m.Key
			switch _, twice := limits[name]; {
			case name == "reason" && r.Reason == nil:
				r.Reason = nested.Text("reason")
				continue
			case twice:
				o.Fail(kit.Invalid(nested.At(name), "stands at the top, too"))
			}
			limits[name] = m.Raw
		}
	}
	if len(limits) == 0 {
		o.Fail(kit.Invalid("limits", "is missing: an object of limits, such as {\"max_concurrency\": 20}, of which null removes one"))
	}
	r.Limits, _ = json.Marshal(limits)
}

// underLimits says of an error about one of the limits in a document, which stands under limits, where the client wrote it.
func (a *Admin) underLimits(err error, limits json.RawMessage) error {
	var known *pg.Error
	if len(limits) == 0 || !errors.As(a.DB.Err(err), &known) {
		return err
	}
	var fields map[string]json.RawMessage
	field, _ := known.Details["field"].(string)
	name, _, _ := strings.Cut(field, ".")
	if err := json.Unmarshal(limits, &fields); err == nil && fields[name] != nil {
		kit.Locate(known, "limits."+field)
	}
	return known
}

// limitTenant sets limits of a tenant, or, with queue, of that tenant in it.
func (a *Admin) limitTenant(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant's limits cannot be set")
	if err != nil {
		return err
	}
	var req limitsRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	switch id := *of.Tenant; {
	case req.TenantID != nil && *req.TenantID != id:
		return kit.Invalid("tenant_id", "is not the one of the path")
	case req.Tenant != nil && *req.Tenant != id:
		return kit.Invalid("tenant", "is not the one of the path")
	}
	kit.Because(c, req.Reason)
	limits, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).ConfigureLimits, sqlcgen.ConfigureLimitsParams{
		Tenant: *of.Tenant, Limits: req.Limits, Queue: req.Queue, Reason: req.Reason,
	})
	if err != nil {
		return a.underLimits(err, req.under)
	}
	a.RefreshDoor(a.Context(c))
	shown, err := shownLimits(limits, false)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"tenant_id": *of.Tenant, "queue": req.Queue, "limits": shown})
}

// shownLimits are limits as ojs._limits_json has them: a number where there is nothing else to say; current: and what counts against them.
func shownLimits(raw json.RawMessage, current bool) (map[string]any, error) {
	limits := map[string]map[string]any{}
	if err := json.Unmarshal(raw, &limits); err != nil {
		return nil, err
	}
	shown := make(map[string]any, len(limits))
	for name, limit := range limits {
		if !current {
			delete(limit, "current")
		}
		if shown[name] = any(limit); len(limit) == 1 {
			shown[name] = limit["limit"]
		}
	}
	return shown, nil
}

// queueLimits is what can be set of all tenants of a queue together.
type queueLimits struct {
	_              struct{} `check:"configurable"`
	MaxConcurrency *int32   `json:"max_concurrency" check:"1..1000000"`
	Queue          *string  `json:"queue"`
	Reason         *string  `json:"reason"`
}

// Check wants to be told a number or null.
func (l *queueLimits) Check(o *kit.Object) {
	if !o.Has("max_concurrency") {
		o.Fail(kit.Invalid("max_concurrency", "is missing: an integer, or null for no limit"))
	}
}

func (a *Admin) limitQueue(c echo.Context) error {
	of, err := queueOf(c, "a queue's limits cannot be set")
	if err != nil {
		return err
	}
	var set queueLimits
	if err := c.Bind(&set); err != nil {
		return err
	}
	if set.Queue != nil && *set.Queue != *of.Queue {
		return kit.Invalid("queue", "is not the one of the path")
	}
	rule, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).LimitConcurrency, sqlcgen.LimitConcurrencyParams{
		MaxConcurrency: set.MaxConcurrency, Queue: of.Queue, Reason: set.Reason,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"limits": map[string]any{"max_concurrency": rule.MaxConcurrency}, "rule": rule})
}
