package httpapi

import (
	"strconv"

	"github.com/labstack/echo/v4"
)

// pressure tells the client how full the queues are that it has just enqueued into, if one of them is nearly full (ojs-backpressure
// section 7.3). A tenant's credential is not told: it would learn how many jobs others have there.
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
	// The jobs are made: if the question fails, the answer is without a warning.
	rows, err := s.q.QueuePressure(c.Request().Context(), bounded)
	if err != nil || len(rows) == 0 {
		return
	}
	h := c.Response().Header()
	h.Set("X-OJS-Queue-Depth", strconv.FormatInt(rows[0].Depth, 10))
	h.Set("X-OJS-Queue-Bound", strconv.FormatInt(rows[0].Bound, 10))
	h.Set("X-OJS-Queue-Pressure", usedUp(float64(rows[0].Depth), float64(rows[0].Bound)))
}
