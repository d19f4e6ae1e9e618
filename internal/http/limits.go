package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) limitRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/rules", Scope: scopeRead, Query: paged, OfTenant: true, Handler: s.listRules},
		{Method: http.MethodPut, Path: v1 + "/admin/tenants/:id/limits", Scope: scopeAdmin, Handler: s.limitTenant},
		{Method: http.MethodPut, Path: v1 + "/admin/queues/:name/limits", Scope: scopeAdmin, Queues: queueInPath, Handler: s.limitQueue},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/pause", Scope: scopeAdmin, Handler: s.pauseTenant(admin.Pause)},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/resume", Scope: scopeAdmin, Handler: s.pauseTenant(admin.Resume)},
	})
}

func (s *Server) listRules(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := s.queryContext(c), requestTenant(c)
	total, err := s.q.RuleCount(ctx, tenant)
	if err != nil {
		return err
	}
	rows, err := s.q.Rules(ctx, sqlcgen.RulesParams{Tenant: tenant, MaxRows: int32(limit), Skip: int32(offset)})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, listed("rules", rows, pagination(int(total), limit, offset, limit)))
}

// ofRequest is the body of a pause. It may name the queue in which the tenant is paused, and a
// reason.
type ofRequest struct {
	jsonbody.Optional
	_      struct{} `check:"configurable"`
	Queue  *string  `json:"queue" check:"scope"`
	Reason *string  `json:"reason"`
}

// queueOf returns the queue that a path names, over all tenants. It fails if no queue can have that
// name, or if the request names a tenant.
func queueOf(c echo.Context, cannot string) (admin.Of, error) {
	name := c.Param("name")
	if !names.Queue.MatchString(name) {
		return admin.Of{}, problems.NoSuch("queue", name)
	}
	return admin.Of{Queue: &name}, forAllTenants(c, cannot)
}

// tenantOfPath returns the tenant that a path names. It fails if the id is not valid, or if the
// request itself is for one tenant: only operators decide about tenants.
func tenantOfPath(c echo.Context, cannot string) (admin.Of, error) {
	if err := forAllTenants(c, cannot); err != nil {
		return admin.Of{}, err
	}
	id := c.Param("id")
	if !names.Tenant.MatchString(id) {
		return admin.Of{}, noTenantID("id")
	}
	return admin.Of{Tenant: &id}, nil
}

// pauseRequest is the body of a pause of a queue.
type pauseRequest struct {
	jsonbody.Optional
	Reason *string `json:"reason"`
}

// Belongs says how one tenant is paused in a queue.
func (*pauseRequest) Belongs() map[string]string {
	return map[string]string{"tenant": `pause one tenant in a queue with POST /ojs/v1/admin/tenants/{id}/pause and {"queue": "NAME"}`}
}

// pauseQueue returns a handler that pauses or resumes, with do, the queue that the path names.
func (s *Server) pauseQueue(do admin.Switch) echo.HandlerFunc {
	return func(c echo.Context) error {
		of, err := queueOf(c, "a queue cannot be paused")
		if err != nil {
			return err
		}
		var req pauseRequest
		if err := c.Bind(&req); err != nil {
			return err
		}
		of.Reason = req.Reason
		known, err := s.q.Queues(s.queryContext(c), sqlcgen.QueuesParams{Names: []string{*of.Queue}})
		if err != nil {
			return err
		}
		rule, err := patiently(s, c, do, of)
		if err != nil {
			return err
		}
		paused := rule.PausedAt != nil
		queue := map[string]any{"name": *of.Queue, "status": admin.StatusOf(paused), "paused": paused, "paused_at": rule.PausedAt}
		answer := map[string]any{
			"queue": queue, "name": *of.Queue, "status": admin.StatusOf(paused), "state": admin.StatusOf(paused), "paused": paused,
			"paused_at": rule.PausedAt,
		}
		if paused && len(known) == 0 {
			answer["created"] = true // the queue was not known: the name is probably misspelt
		}
		return c.JSON(http.StatusOK, answer)
	}
}

// pauseTenant returns a handler that pauses or resumes, with do, the tenant that the path names. If
// the body names a queue, it does so in that queue only.
func (s *Server) pauseTenant(do admin.Switch) echo.HandlerFunc {
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
		rule, err := patiently(s, c, do, of)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, map[string]any{"paused": rule.PausedAt != nil, "rule": shownRule{OjsRule: rule}})
	}
}

// shownRule is a rule as answers show it: without the transaction that is noted for the limit, which
// only decisions need.
type shownRule struct {
	sqlcgen.OjsRule
	LimitXid *struct{} `json:"limit_xid,omitempty"`
}

// limitsRequest is the body of a change of limits. Each limit is a number, an object or null, and
// stands at the top or under limits. SQL knows which limits there are and which values they take.
type limitsRequest struct {
	_        struct{}        `check:"any"`
	Limits   json.RawMessage `json:"limits" check:"object,storable"`
	Queue    *string         `json:"queue" check:"scope"`
	Reason   *string         `json:"reason"`
	TenantID *string         `json:"tenant_id" check:"scope"`
	Tenant   *string         `json:"tenant" check:"scope"`

	under json.RawMessage // the limits that the client wrote under limits
}

// Check puts the limits of both places into Limits. It fails if one limit stands in both.
func (r *limitsRequest) Check(o *jsonbody.Object) {
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
				o.Fail(problems.Invalid(nested.At(name), "stands at the top, too"))
			}
			limits[name] = m.Raw
		}
	}
	if len(limits) == 0 {
		o.Fail(problems.Invalid("limits", "is missing: an object of limits, such as {\"max_concurrency\": 20}, of which null removes one"))
	}
	r.Limits, _ = json.Marshal(limits)
}

// underLimits returns the path of a limit that the client wrote under limits, or "" if it did not. limits is what the client wrote there.
func underLimits(problem *pg.Error, limits json.RawMessage) (path string) {
	var fields map[string]json.RawMessage
	name, _, _ := strings.Cut(problem.Field, ".")
	if len(limits) > 0 && json.Unmarshal(limits, &fields) == nil && fields[name] != nil {
		return "limits." + problem.Field
	}
	return ""
}

// limitTenant sets limits of the tenant that the path names. If the body names a queue, they hold
// in that queue only.
func (s *Server) limitTenant(c echo.Context) error {
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
		return problems.Invalid("tenant_id", "is not the one of the path")
	case req.Tenant != nil && *req.Tenant != id:
		return problems.Invalid("tenant", "is not the one of the path")
	}
	giveReason(c, req.Reason) // it may stand under limits
	spelledBy(c, func(problem *pg.Error) string { return underLimits(problem, req.under) })
	limits, err := patiently(s, c, (*sqlcgen.Queries).ConfigureLimits, sqlcgen.ConfigureLimitsParams{
		Tenant: *of.Tenant, Limits: req.Limits, Queue: req.Queue, Reason: req.Reason,
	})
	if err != nil {
		return err
	}
	s.refreshBounds(s.queryContext(c))
	shown, err := shownLimits(limits, false)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"tenant_id": *of.Tenant, "queue": req.Queue, "limits": shown})
}

// shownLimits returns limits, which come in the form of ojs._limit_json, as answers show them: as
// a number if a limit has no other attribute. With current it keeps what counts against each limit.
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

// queueLimits holds the limits that a queue can have over all tenants.
type queueLimits struct {
	_              struct{} `check:"configurable"`
	MaxConcurrency *int32   `json:"max_concurrency" check:"1..1000000"`
	Queue          *string  `json:"queue" check:"scope"`
	Reason         *string  `json:"reason"`
}

// Check refuses a body without max_concurrency, which may be a number or null.
func (l *queueLimits) Check(o *jsonbody.Object) {
	if !o.Has("max_concurrency") {
		o.Fail(problems.Invalid("max_concurrency", "is missing: an integer, or null for no limit"))
	}
}

func (s *Server) limitQueue(c echo.Context) error {
	of, err := queueOf(c, "a queue's limits cannot be set")
	if err != nil {
		return err
	}
	var set queueLimits
	if err := c.Bind(&set); err != nil {
		return err
	}
	if set.Queue != nil && *set.Queue != *of.Queue {
		return problems.Invalid("queue", "is not the one of the path")
	}
	rule, err := patiently(s, c, (*sqlcgen.Queries).LimitConcurrency, sqlcgen.LimitConcurrencyParams{
		MaxConcurrency: set.MaxConcurrency, Queue: of.Queue, Reason: set.Reason,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{
		"limits": map[string]any{"max_concurrency": rule.MaxConcurrency},
		"rule":   shownRule{OjsRule: rule},
	})
}
