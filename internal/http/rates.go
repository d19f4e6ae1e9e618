package httpapi

import (
	"fmt"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// requestRate is how many requests a tenant may send to one server: limit in each period, and burst
// at once (max_request_rate). The zero value means that there is no limit.
type requestRate struct {
	limit  int64
	period time.Duration
	burst  int64
}

func (r requestRate) perSecond() float64 { return float64(r.limit) / r.period.Seconds() }

// requestRates are the token buckets of the tenants that have a rate. They are in the memory of this
// server, so N servers let N times the rate pass, and a restart fills the buckets. A tenant whose
// rate was changed begins with a full bucket.
type requestRates struct {
	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	rate    requestRate
	limiter *rate.Limiter
}

// of returns the bucket of a tenant that has a rate.
func (r *requestRates) of(tenant string, most requestRate) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.buckets[tenant]
	if b == nil || b.rate != most {
		b = &bucket{most, rate.NewLimiter(rate.Limit(most.perSecond()), int(most.burst))}
		if r.buckets == nil {
			r.buckets = map[string]*bucket{}
		}
		r.buckets[tenant] = b
	}
	return b.limiter
}

// keep removes the buckets of tenants that have no rate any more.
func (r *requestRates) keep(has func(tenant string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.buckets, func(tenant string, _ *bucket) bool { return !has(tenant) })
}

// keepToRate takes a token for a request of a tenant that has a rate, and sets the headers that say
// how many are left (ojs-rate-limiting section 9). It fails with TENANT_LIMIT_EXCEEDED if there is
// none. Other callers have no rate.
func (s *Server) keepToRate(c echo.Context, caller string) error {
	if !pg.IsTenant(caller) {
		return nil
	}
	most := s.boundsOf(caller).rate
	if most == (requestRate{}) {
		return nil
	}
	limiter, now := s.requestRates.of(caller, most), time.Now()
	allowed := limiter.AllowN(now, 1)
	tokens := limiter.TokensAt(now)
	wait := math.Ceil(max(0, 1-tokens) / most.perSecond())
	h := c.Response().Header()
	h.Set("X-RateLimit-Limit", strconv.FormatInt(most.burst, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(max(0, int64(tokens)), 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(now.Add(time.Duration(wait)*time.Second).Unix(), 10))
	if allowed {
		return nil
	}
	return &pg.Error{
		Code: problems.CodeLimit,
		Message: fmt.Sprintf("tenant %s may send %d requests in %s to this server", problems.Clip(caller), most.limit,
			most.period),
		Details: map[string]any{
			"tenant_id": problems.Clip(caller), "limit": "max_request_rate", "current": float64(most.limit), "maximum": float64(most.limit),
			"retry_after": max(1, wait),
		},
	}
}
