package httpapi

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// boundsCache holds the limits that a server applies before it asks the database: how many requests
// and waiting polls each tenant may have here and at which rate, and which queues have a depth bound. They are read
// from ojs.quota.
//
// A change made through this server acts at once (refreshBounds). A change made elsewhere is known
// after maxBoundsAge at the latest. A server with steady traffic reads again after boundsAge in the
// background, so that no request waits for it.
type boundsCache struct {
	// known is read without a lock. nil: nothing has been read yet.
	known atomic.Pointer[knownBounds]
	next  atomic.Int64 // when to read again, in Unix nanoseconds
	// reading is held by a request that reads the limits because they are too old. Other requests
	// wait for it, instead of sending the same statement.
	reading sync.Mutex
}

// knownBounds are the limits as they were read at a time. They are never changed after that, only
// replaced, because many requests read them.
type knownBounds struct {
	at      time.Time
	queues  map[string]bool // queues with a depth bound: only these are asked how full they are (pressure)
	tenants map[string]tenantBounds
}

// tenantBounds are how many requests and waiting polls a tenant may have at one server. 0 means the
// limit in the server's own configuration. The zero rate means that there is no limit.
type tenantBounds struct {
	requests, polls int64
	rate            requestRate
}

const (
	boundsAge    = maxBoundsAge / 2
	maxBoundsAge = time.Second

	boundsTimeout = 250 * time.Millisecond
)

// refreshBounds reads the limits now. If that fails, the old ones stay.
func (s *Server) refreshBounds(ctx context.Context) {
	s.bounds.next.Store(time.Now().Add(boundsAge).UnixNano())
	at := time.Now()
	rows, err := s.q.DoorLimits(ctx)
	if err != nil {
		s.log.Debug("limits of tenants and queues are not known", "error", err)
		return
	}
	bounds := &knownBounds{at: at, queues: map[string]bool{}, tenants: map[string]tenantBounds{}}
	for _, r := range rows {
		own := bounds.tenants[r.TenantID]
		switch r.Resource {
		case "max_depth":
			bounds.queues[r.Queue] = true
			continue
		case "max_in_flight_requests":
			own.requests = r.Maximum
		case "max_waiting_polls":
			own.polls = r.Maximum
		case "max_request_rate":
			own.rate = requestRate{limit: r.Maximum, period: time.Duration(r.PeriodSeconds * float64(time.Second)), burst: r.Burst}
		}
		bounds.tenants[r.TenantID] = own
	}
	// Two reads may overlap: the one that began later wins.
	if known := s.bounds.known.Load(); known == nil || known.at.Before(at) {
		s.bounds.known.Store(bounds)
		s.requestRates.keep(func(tenant string) bool { return bounds.tenants[tenant].rate != (requestRate{}) })
	}
}

// currentBounds returns the limits, read at most maxBoundsAge ago if the database answers; nil:
// nothing has been read yet.
func (s *Server) currentBounds() *knownBounds {
	if s.bounds.old() {
		s.bounds.reading.Lock()
		defer s.bounds.reading.Unlock()
		if s.bounds.old() && time.Now().UnixNano() > s.bounds.next.Load() {
			s.rereadBounds(context.Background())
		}
	} else if now, next := time.Now().UnixNano(), s.bounds.next.Load(); now > next &&
		s.bounds.next.CompareAndSwap(next, now+int64(boundsAge)) {
		s.background.start(s.rereadBounds)
	}
	return s.bounds.known.Load()
}

// old reports whether the limits are not known or older than maxBoundsAge.
func (b *boundsCache) old() bool {
	known := b.known.Load()
	return known == nil || time.Since(known.at) > maxBoundsAge
}

// rereadBounds is refreshBounds that gives up after boundsTimeout: old limits are better than
// requests that wait. After a failure the next try is boundsAge later. Otherwise each request that
// waited would try, one after the other.
func (s *Server) rereadBounds(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, min(s.limits.Query, boundsTimeout))
	defer cancel()
	s.refreshBounds(ctx)
	s.bounds.next.Store(time.Now().Add(boundsAge).UnixNano())
}

// boundsOf returns the limits of a tenant; the zero value if it has none of its own.
func (s *Server) boundsOf(tenant string) tenantBounds {
	if known := s.currentBounds(); known != nil {
		return known.tenants[tenant]
	}
	return tenantBounds{}
}
