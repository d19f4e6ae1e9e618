package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/fair"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// admission is what tenants may have under way at this server. Everything is counted by caller: a tenant, or else a credential that is no
// tenant's, or all requests without one. Those have no bounds of their own, because a fleet of workers may be behind them, but take turns.
//
//	requests  in flight, until their answer has left       a few wait a second for their turn, and are refused then
//	polls     that wait for a job, or for a job's result   refused beyond the bound
//	steps     of large bodies                              a body waits for a place then
//	places    for whole bodies                             waits, in turn
//	answers   bytes of large answers                       refused beyond the bound
//
// A tenant has at most half of what bodies and answers have in sum. Connections of the pool are divided by internal/pg.
type admission struct {
	requests, polls, steps, places, answers *fair.Gate
}

// tenantLimits are the limits of one tenant at this server.
type tenantLimits struct {
	Requests int64 // in flight
	Polls    int64 // that wait
}

// lineFor bounds the requests of a tenant that wait: at most lineFor times as many as may be in
// flight.
const lineFor = 16

// limitsOf returns the limits of a tenant at this server: its own, or the server's.
func (s *Server) limitsOf(tenant string) tenantLimits {
	own := s.boundsOf(tenant)
	return tenantLimits{
		Requests: cmp.Or(own.requests, int64(s.limits.TenantRequests)), Polls: cmp.Or(own.polls, int64(s.limits.TenantPolls)),
	}
}

func (s *Server) newAdmission() admission {
	const plenty = 1 << 50
	places := max(1, s.limits.Bodies/2/max(s.limits.Body, s.limits.BatchBody))
	steps := max(0, s.limits.Bodies-places*max(s.limits.Body, s.limits.BatchBody)) / step
	return admission{
		requests: fair.NewGate(plenty, s.ofTenants(func(of tenantLimits) fair.Bounds {
			return fair.Bounds{Most: of.Requests, Line: int(of.Requests) * lineFor}
		})),
		polls:   fair.NewGate(plenty, s.ofTenants(func(of tenantLimits) fair.Bounds { return fair.Bounds{Most: of.Polls} })),
		steps:   s.halved(steps),
		places:  s.halved(places),
		answers: s.halved(s.limits.Answers),
	}
}

func (s *Server) halved(units int64) *fair.Gate {
	return fair.NewGate(units, s.ofTenants(func(tenantLimits) fair.Bounds { return fair.Bounds{Most: half(units)} }))
}

// ofTenants returns the bounds for tenants. Other callers have no bounds.
func (s *Server) ofTenants(bounds func(tenantLimits) fair.Bounds) func(caller string) fair.Bounds {
	return func(caller string) fair.Bounds {
		if !pg.IsTenant(caller) {
			return fair.Bounds{}
		}
		return bounds(s.limitsOf(caller))
	}
}

// admitted is the state of a request that was let in.
type admitted struct {
	caller string
	in     *fair.Gate // where it counts: requests or polls
}

const admittedKey = "admitted"

// admit lets a request in, or makes it wait, or refuses it. It runs after authentication and before
// the body is read.
func (s *Server) admit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if s.isOpen(c) {
			return next(c)
		}
		a := &admitted{caller: s.caller(c), in: s.admission.requests}
		if !a.in.Try(a.caller, 1) {
			if err := s.awaitTurn(c, a.caller); err != nil {
				jsonbody.Drain(c.Request())
				return err
			}
		}
		defer func() { a.in.Leave(a.caller, 1) }()
		c.Set(admittedKey, a)
		r := c.Request()
		c.SetRequest(r.WithContext(pg.As(r.Context(), a.caller, r.Method == http.MethodGet || r.Method == http.MethodHead)))
		return next(c)
	}
}

func (s *Server) awaitTurn(c echo.Context, tenant string) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), s.limits.TurnWait)
	defer cancel()
	err := s.admission.requests.Enter(ctx, tenant)
	if errors.Is(err, fair.ErrLine) || errors.Is(err, context.DeadlineExceeded) {
		return tooMany(tenant, "max_in_flight_requests", "requests in flight", s.limitsOf(tenant).Requests)
	}
	return err
}

// mayWait moves a request from those in flight to those that wait for jobs or results, until it is
// answered. It fails beyond the tenant's limit.
func (s *Server) mayWait(c echo.Context) error {
	a, polls := c.Get(admittedKey).(*admitted), s.admission.polls
	if a.in == polls {
		return nil
	}
	if !polls.Try(a.caller, 1) {
		return tooMany(a.caller, "max_waiting_polls", "requests that wait for a job", s.limitsOf(a.caller).Polls)
	}
	a.in.Leave(a.caller, 1)
	a.in = polls
	return nil
}

// tooMany returns the 429 for a request beyond a limit of its tenant.
func tooMany(tenant, limit, what string, most int64) *pg.Error {
	return &pg.Error{
		Code:    problems.CodeLimit,
		Message: fmt.Sprintf("tenant %s has %d %s at this server, as many as it may", problems.Clip(tenant), most, what),
		Details: map[string]any{"tenant_id": problems.Clip(tenant), "limit": limit, "current": float64(most), "maximum": float64(most)},
	}
}
