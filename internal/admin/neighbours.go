package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (a *Admin) neighbourRoutes() []kit.Route {
	return kit.Scoped([]kit.Route{
		{Method: http.MethodGet, Path: v1 + "/admin/neighbours", Scope: kit.Read, Query: kit.Paged, Handler: a.listNeighbours},
		{Method: http.MethodPut, Path: v1 + "/admin/neighbours", Scope: kit.Admin, Handler: a.watchNeighbours},
		{
			Method: http.MethodGet, Path: v1 + "/admin/throttles", Scope: kit.Read,
			Query: kit.Paged, OfTenant: true, Handler: a.listThrottles,
		},
		{Method: http.MethodPost, Path: v1 + "/admin/tenants/:id/throttle", Scope: kit.Admin, Handler: a.throttle},
		{Method: http.MethodDelete, Path: v1 + "/admin/tenants/:id/throttle", Scope: kit.Admin, Handler: kit.Bare(a.releaseThrottle)},
	})
}

// Neighbours are the settings, the noisy tenants, and those that are throttled.
type Neighbours struct {
	Settings  sqlcgen.NeighbourWatchRow   `json:"settings"`
	Noisy     []sqlcgen.OjsNoisyNeighbour `json:"noisy"`
	Throttles []sqlcgen.OjsThrottles      `json:"throttles"`
}

// NoisyNeighbours are all of them, most rows of each list.
func NoisyNeighbours(ctx context.Context, q *sqlcgen.Queries, most int32) (n Neighbours, err error) {
	if n.Settings, err = q.NeighbourWatch(ctx); err != nil {
		return n, err
	}
	if n.Noisy, err = q.NoisyNeighbours(ctx, most); err != nil {
		return n, err
	}
	n.Throttles, err = q.Throttles(ctx, sqlcgen.ThrottlesParams{MaxRows: most})
	return n, err
}

func (a *Admin) listNeighbours(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	if offset > 0 {
		return kit.Refuse(kit.CodeUnsupported, "page", "there is one page of noisy tenants; limit says how long it is")
	}
	if err := kit.ForAllTenants(c, "tenants cannot be compared"); err != nil {
		return err
	}
	found, err := NoisyNeighbours(a.Context(c), a.SQL, int32(limit))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, found)
}

// watchRequest changes the settings that it names.
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

// Check reads durations.
func (r *watchRequest) Check(o *kit.Object) {
	r.Span, r.Lasts = seconds(o, "span", r.Span), seconds(o, "lasts", r.Lasts)
}

// seconds is an ISO 8601 duration as PostgreSQL reads it.
func seconds(o *kit.Object, field string, text *string) *string {
	if text == nil {
		return nil
	}
	d, err := kit.ParseDuration(*text)
	if err != nil {
		o.Fail(kit.Invalid(o.At(field), "must be an ISO 8601 duration of weeks to seconds, such as PT10M"))
		return nil
	}
	of := strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " seconds"
	return &of
}

// decimal is a number as it was sent.
func decimal(raw json.RawMessage) *string {
	if raw == nil {
		return nil
	}
	text := string(raw)
	return &text
}

func (a *Admin) watchNeighbours(c echo.Context) error {
	if err := kit.ForAllTenants(c, "what makes a tenant noisy cannot be set"); err != nil {
		return err
	}
	var req watchRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	if err := a.Changing(c).WatchNeighbours(a.Context(c), sqlcgen.WatchNeighboursParams{
		Mode: req.Mode, Span: req.Span, DepthRatio: decimal(req.DepthRatio), RateRatio: decimal(req.RateRatio),
		ActiveShare: decimal(req.ActiveShare), ErrorRatio: decimal(req.ErrorRatio), MinJobs: req.MinJobs, MinActive: req.MinActive,
		Action: req.Action, Factor: decimal(req.Factor), Lasts: req.Lasts,
	}); err != nil {
		return err
	}
	settings, err := a.SQL.NeighbourWatch(a.Context(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"settings": settings})
}

func (a *Admin) listThrottles(c echo.Context) error {
	limit, offset, err := kit.Paging(c)
	if err != nil {
		return err
	}
	params := sqlcgen.ThrottlesParams{Tenant: kit.Scope(c), MaxRows: int32(limit) + 1, Skip: int32(offset)}
	rows, err := a.SQL.Throttles(a.Context(c), params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, partOf("throttles", rows, limit, offset))
}

type throttleRequest struct {
	kit.Optional
	_      struct{}        `check:"configurable"`
	Reason *string         `json:"reason"`
	Action *string         `json:"action"`
	Factor json.RawMessage `json:"factor" check:"number"`
	Lasts  *string         `json:"lasts"`
}

// Check reads how long it is to last.
func (r *throttleRequest) Check(o *kit.Object) {
	r.Lasts = seconds(o, "lasts", r.Lasts)
}

func (a *Admin) throttle(c echo.Context) error {
	of, err := tenantOfPath(c, "a tenant cannot be throttled")
	if err != nil {
		return err
	}
	var req throttleRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	throttle, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).Throttle, sqlcgen.ThrottleParams{
		Tenant: *of.Tenant, Reason: req.Reason, Action: req.Action, Factor: decimal(req.Factor), Lasts: req.Lasts,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"throttle": throttle})
}

func (a *Admin) releaseThrottle(c echo.Context) error {
	of, err := tenantOfPath(c, "a throttle cannot be released")
	if err != nil {
		return err
	}
	if _, err := kit.Patiently(a.Kit, c, (*sqlcgen.Queries).ReleaseThrottle, *of.Tenant); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"tenant_id": *of.Tenant, "throttled": false})
}
