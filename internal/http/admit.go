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

// admission bounds how much callers may have under way at this server at once. A caller is a
// tenant, or a credential that is not a tenant's, or all requests without a credential together.
// Tenants have bounds of their own. A credential that is not a tenant's may belong to a whole fleet
// of workers, so it may have as many requests in flight as it sends, and half of all polls.
//
//	requests  in flight, until the answer has left      over the bound: waits TurnWait, then refused
//	polls     requests that wait for a job or result    over the bound: refused
//	steps     of large bodies (room.go)                 none free: the body waits for a place
//	places    for whole bodies                          none free: waits RoomWait, then refused
//	answers   bytes of large answers                    over the bound: refused
//
// A tenant may hold at most half of the steps, of the places and of the bytes of answers, and any
// caller at most half of the polls. Each Gate has its own lock. Connections of the pool are divided by internal/pg.
type admission struct {
	requests, polls, steps, places, answers *fair.Gate
}

// tenantLimits are the limits of one tenant at this server.
type tenantLimits struct {
	Requests int64 // requests in flight
	Polls    int64 // requests that wait
}

// lineFor bounds how many requests of a tenant may wait until they may be in flight: so many times
// its limit of requests in flight. A request beyond that is refused at once.
const lineFor = 16

// limitsOf returns the limits of a tenant at this server: its own, or else the server's.
func (s *Server) limitsOf(tenant string) tenantLimits {
	own := s.boundsOf(tenant)
	return tenantLimits{
		Requests: cmp.Or(own.requests, int64(s.limits.TenantRequests)), Polls: cmp.Or(own.polls, int64(s.limits.TenantPolls)),
	}
}

// newAdmission makes the gates. For all callers together, requests have no bound (plenty): each
// tenant has its own, and net/http has a goroutine for each connection in any case.
func (s *Server) newAdmission() admission {
	const plenty = 1 << 50
	places := max(1, s.limits.Bodies/2/max(s.limits.Body, s.limits.BatchBody))
	steps := max(0, s.limits.Bodies-places*max(s.limits.Body, s.limits.BatchBody)) / step
	return admission{
		requests: fair.NewGate(plenty, s.ofTenants(func(of tenantLimits) fair.Bounds {
			return fair.Bounds{Most: of.Requests, Line: int(of.Requests) * lineFor}
		})),
		polls:   fair.NewGate(int64(s.limits.Polls), func(caller string) fair.Bounds { return fair.Bounds{Most: s.pollsOf(caller)} }),
		steps:   s.halved(steps),
		places:  s.halved(places),
		answers: s.halved(s.limits.Answers),
	}
}

// halved makes a gate of so many units, of which a tenant may hold half.
func (s *Server) halved(units int64) *fair.Gate {
	return fair.NewGate(units, s.ofTenants(func(tenantLimits) fair.Bounds { return fair.Bounds{Most: half(units)} }))
}

// ofTenants returns a function that gives bounds to tenants, and no bounds to other callers.
func (s *Server) ofTenants(bounds func(tenantLimits) fair.Bounds) func(caller string) fair.Bounds {
	return func(caller string) fair.Bounds {
		if !pg.IsTenant(caller) {
			return fair.Bounds{}
		}
		return bounds(s.limitsOf(caller))
	}
}

// pollsOf returns how many requests of a caller may wait. It is at most half of what the server
// has, so that one caller's polls cannot refuse all polls of the others.
func (s *Server) pollsOf(caller string) int64 {
	most := half(int64(s.limits.Polls))
	if pg.IsTenant(caller) {
		most = min(most, s.limitsOf(caller).Polls)
	}
	return most
}

// admitted is a request that was let in.
type admitted struct {
	caller string
	in     *fair.Gate // gate that counts the request: requests or polls
}

const admittedKey = "admitted"

// admit is a middleware that counts a request among its caller's requests in flight until it is
// answered. It runs after authenticate, so that the caller is known, and before the body is read.
func (s *Server) admit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if s.isOpen(c) {
			return next(c)
		}
		a := &admitted{caller: s.caller(c), in: s.admission.requests}
		if err := s.keepToRate(c, a.caller); err != nil {
			jsonbody.Drain(c.Request())
			return err
		}
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

// awaitTurn waits until the tenant may have one more request in flight, for at most
// Limits.TurnWait. It fails with TENANT_LIMIT_EXCEEDED if that is not enough, or if too many
// requests wait already.
func (s *Server) awaitTurn(c echo.Context, tenant string) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), s.limits.TurnWait)
	defer cancel()
	err := s.admission.requests.Enter(ctx, tenant)
	if errors.Is(err, fair.ErrLine) || errors.Is(err, context.DeadlineExceeded) {
		return tooMany(tenant, "max_in_flight_requests", "requests in flight", s.limitsOf(tenant).Requests)
	}
	return err
}

// mayWait counts a request as waiting, and no longer as in flight, until it is answered. It fails
// if too many requests of the caller, or of all callers, wait. A second call for the same request
// changes nothing.
func (s *Server) mayWait(c echo.Context) error {
	a, polls := c.Get(admittedKey).(*admitted), s.admission.polls
	if a.in == polls {
		return nil
	}
	if !polls.Try(a.caller, 1) {
		if most := s.pollsOf(a.caller); pg.IsTenant(a.caller) && polls.Held(a.caller) >= most {
			return tooMany(a.caller, "max_waiting_polls", "requests that wait for a job", most)
		}
		return &pg.Error{
			Code: problems.CodeAway, Message: "too many requests wait for a job at this server",
			Hint: "Ask another server, or ask without waiting.",
		}
	}
	a.in.Leave(a.caller, 1)
	a.in = polls
	return nil
}

// tooMany returns the refusal of a request over a limit of its tenant. what names the requests that
// the limit counts, and most is how many there may be.
func tooMany(tenant, limit, what string, most int64) *pg.Error {
	return &pg.Error{
		Code:    problems.CodeLimit,
		Message: fmt.Sprintf("tenant %s has %d %s at this server, as many as it may", problems.Clip(tenant), most, what),
		Details: map[string]any{"tenant_id": problems.Clip(tenant), "limit": limit, "current": float64(most), "maximum": float64(most)},
	}
}
