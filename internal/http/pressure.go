package httpapi

import (
	"strconv"

	"github.com/labstack/echo/v4"
)

// pressure tells a client, by headers, how full the fullest of the queues is that it has just
// enqueued into, if that queue is nearly full (ojs-backpressure section 7.3). It tells a tenant
// nothing, because the tenant would learn how many jobs others have in the queue.
func (s *Server) pressure(c echo.Context, queues ...string) {
	known := s.currentBounds()
	if known == nil || isTenants(c) {
		return
	}
	var bounded []string
	for _, queue := range queues {
		if known.queues[queue] {
			bounded = append(bounded, queue)
		}
	}
	if bounded == nil {
		return
	}
	// The jobs are stored already: if this query fails, the answer has no warning.
	rows, err := s.q.QueuePressure(c.Request().Context(), bounded)
	if err != nil || len(rows) == 0 {
		return
	}
	h := c.Response().Header()
	h.Set("X-OJS-Queue-Depth", strconv.FormatInt(rows[0].Depth, 10))
	h.Set("X-OJS-Queue-Bound", strconv.FormatInt(rows[0].Bound, 10))
	h.Set("X-OJS-Queue-Pressure", usedUp(float64(rows[0].Depth), float64(rows[0].Bound)))
}
