package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) neighbourRoutes() []route {
	return scoped([]route{
		{Method: http.MethodGet, Path: v1 + "/admin/neighbours", Scope: scopeRead, Query: paged, Handler: s.listNeighbours},
		{Method: http.MethodPut, Path: v1 + "/admin/neighbours", Scope: scopeAdmin, Handler: s.watchNeighbours},
		{
			Method: http.MethodGet, Path: v1 + "/admin/throttles", Scope: scopeRead,
			Query: paged, OfTenant: true, Handler: s.listThrottles,
		},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/throttle", Scope: scopeAdmin, Handler: s.throttle},
		{Method: http.MethodDelete, Path: v1 + "/admin/tenants/:id/throttle", Scope: scopeAdmin, Handler: withoutBody(s.releaseThrottle)},
	})
}

func (s *Server) listNeighbours(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	if offset > 0 {
		return problems.Refuse(problems.CodeUnsupported, "page", "there is one page of noisy tenants; limit says how long it is")
	}
	if err := forAllTenants(c, "tenants cannot be compared"); err != nil {
		return err
	}
	found, err := admin.NoisyNeighbours(s.queryContext(c), s.q, int32(limit))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, found)
}

// watchRequest changes the settings that it names, by which a tenant counts as noisy.
type watchRequest struct {
	_           struct{}        `check:"configurable"`
	Mode        *string         `json:"mode"`
	Span        *string         `json:"span"`
	DepthRatio  json.RawMessage `json:"depth_ratio" check:"number"`
	RateRatio   json.RawMessage `json:"rate_ratio" check:"number"`
	ActiveShare json.RawMessage `json:"active_share" check:"number"`
	ErrorRatio  json.RawMessage `json:"error_ratio" check:"number"`
	MinJobs     *int32          `json:"min_jobs" check:"1.."`
	MinActive   *int32          `json:"min_active" check:"1.."`
	Action      *string         `json:"action"`
	Factor      json.RawMessage `json:"factor" check:"number"`
	Lasts       *string         `json:"lasts"`
}

// Check reads the durations.
func (r *watchRequest) Check(o *jsonbody.Object) {
	r.Span, r.Lasts = seconds(o, "span", r.Span), seconds(o, "lasts", r.Lasts)
}

// decimal returns a number as the client wrote it, and nil for nil.
func decimal(raw json.RawMessage) *string {
	if raw == nil {
		return nil
	}
	text := string(raw)
	return &text
}

func (s *Server) watchNeighbours(c echo.Context) error {
	if err := forAllTenants(c, "what makes a tenant noisy cannot be set"); err != nil {
		return err
	}
	var req watchRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	if err := s.changing(c).WatchNeighbours(s.queryContext(c), sqlcgen.WatchNeighboursParams{
		Mode: req.Mode, Span: req.Span, DepthRatio: decimal(req.DepthRatio), RateRatio: decimal(req.RateRatio),
		ActiveShare: decimal(req.ActiveShare), ErrorRatio: decimal(req.ErrorRatio), MinJobs: req.MinJobs, MinActive: req.MinActive,
		Action: req.Action, Factor: decimal(req.Factor), Lasts: req.Lasts,
	}); err != nil {
		return err
	}
	settings, err := s.q.NeighbourWatch(s.queryContext(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"settings": settings})
}

func (s *Server) listThrottles(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	params := sqlcgen.ThrottlesParams{Tenant: requestTenant(c), MaxRows: int32(limit) + 1, Skip: int32(offset)}
	rows, err := s.q.Throttles(s.queryContext(c), params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, partOf("throttles", rows, limit, offset))
}

type throttleRequest struct {
	jsonbody.Optional
	_      struct{}        `check:"configurable"`
	Reason *string         `json:"reason"`
	Action *string         `json:"action"`
	Factor json.RawMessage `json:"factor" check:"number"`
	Lasts  *string         `json:"lasts"`
}

// Check reads how long the throttle is to last.
func (r *throttleRequest) Check(o *jsonbody.Object) {
	r.Lasts = seconds(o, "lasts", r.Lasts)
}

func (s *Server) throttle(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant cannot be throttled")
	if err != nil {
		return err
	}
	var req throttleRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	throttle, err := patiently(s, c, (*sqlcgen.Queries).Throttle, sqlcgen.ThrottleParams{
		Tenant: *of.Tenant, Reason: req.Reason, Action: req.Action, Factor: decimal(req.Factor), Lasts: req.Lasts,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"throttle": throttle})
}

func (s *Server) releaseThrottle(c echo.Context) error {
	of, err := tenantOfPath(c, "a throttle cannot be released")
	if err != nil {
		return err
	}
	if _, err := patiently(s, c, (*sqlcgen.Queries).ReleaseThrottle, *of.Tenant); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"tenant_id": *of.Tenant, "throttled": false})
}
