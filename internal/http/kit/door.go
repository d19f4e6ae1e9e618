package kit

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
)

// door is what a server has to know of limits before it asks the database.
type door struct {
	limits  atomic.Pointer[doorLimits]
	next    atomic.Int64 // when to look again, in Unix nanoseconds
	looking sync.Mutex
}

type doorLimits struct {
	at      time.Time
	bounded map[string]bool // queues with a bound: enqueueing into others costs no look at how full they are
	tenants map[string]DoorLimits
}

// DoorLimits are what a tenant may have under way at a server; 0: as the server says.
type DoorLimits struct{ Requests, Polls int64 }

// A change that another server has made is known here after maxDoorAge at the latest. Requests that come all the time do not wait for
// the look at it, since it comes after doorAge, beside them.
const (
	doorAge    = maxDoorAge / 2
	maxDoorAge = time.Second

	doorPatience = 250 * time.Millisecond
)

// RefreshDoor has a change of limits act at once at this server.
func (k *Kit) RefreshDoor(ctx context.Context) {
	k.door.next.Store(time.Now().Add(doorAge).UnixNano())
	at := time.Now()
	rows, err := k.SQL.DoorLimits(ctx)
	if err != nil {
		k.Log.Debug("limits of tenants and queues are not known", "error", err)
		return
	}
	limits := &doorLimits{at: at, bounded: map[string]bool{}, tenants: map[string]DoorLimits{}}
	for _, r := range rows {
		own := limits.tenants[r.TenantID]
		switch r.Resource {
		case "max_depth":
			limits.bounded[r.Queue] = true
			continue
		case "max_in_flight_requests":
			own.Requests = r.Maximum
		case "max_waiting_polls":
			own.Polls = r.Maximum
		}
		limits.tenants[r.TenantID] = own
	}
	if known := k.door.limits.Load(); known == nil || known.at.Before(at) {
		k.door.limits.Store(limits)
	}
}

// doorNow is what is known, and looked at again when it has grown old.
func (k *Kit) doorNow() *doorLimits {
	if k.door.old() {
		k.door.looking.Lock()
		defer k.door.looking.Unlock()
		if k.door.old() && time.Now().UnixNano() > k.door.next.Load() {
			k.lookAtDoor()
		}
	} else if now, next := time.Now().UnixNano(), k.door.next.Load(); now > next && k.door.next.CompareAndSwap(next, now+int64(doorAge)) {
		go k.lookAtDoor()
	}
	return k.door.limits.Load()
}

func (d *door) old() bool {
	known := d.limits.Load()
	return known == nil || time.Since(known.at) > maxDoorAge
}

// lookAtDoor gives up soon: what is known is better than requests that wait. Then nobody tries again for a while, or those who wait would
// try one after the other.
func (k *Kit) lookAtDoor() {
	ctx, cancel := context.WithTimeout(context.Background(), min(k.Query, doorPatience))
	defer cancel()
	k.RefreshDoor(ctx)
	k.door.next.Store(time.Now().Add(doorAge).UnixNano())
}

// DoorLimits are those that are set for a tenant.
func (k *Kit) DoorLimits(tenant string) DoorLimits {
	if known := k.doorNow(); known != nil {
		return known.tenants[tenant]
	}
	return DoorLimits{}
}

// Pressure tells the client how full the queues are that it has just enqueued into, if one of them is nearly full (ojs-backpressure
// section 7.3). A tenant's credential is not told: it would learn how many jobs others have there.
func (k *Kit) Pressure(c echo.Context, queues ...string) {
	known := k.doorNow()
	if known == nil || isTenants(c) {
		return
	}
	var bounded []string
	for _, queue := range queues {
		if known.bounded[queue] {
			bounded = append(bounded, queue)
		}
	}
	if bounded == nil {
		return
	}
	// The jobs are made: if the question fails, the answer is without a warning.
	rows, err := k.SQL.QueuePressure(c.Request().Context(), bounded)
	if err != nil || len(rows) == 0 {
		return
	}
	h := c.Response().Header()
	h.Set("X-OJS-Queue-Depth", strconv.FormatInt(rows[0].Depth, 10))
	h.Set("X-OJS-Queue-Bound", strconv.FormatInt(rows[0].Bound, 10))
	h.Set("X-OJS-Queue-Pressure", pressure(float64(rows[0].Depth), float64(rows[0].Bound)))
}

func pressure(depth, bound float64) string { return fmt.Sprintf("%.2f", min(1, depth/bound)) }
