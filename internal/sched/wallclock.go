package sched

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// A difference that no clock set by NTP has. Tokens have as much leeway.
	clockLeeway = 10 * time.Second
	// How often a difference is noted for ojs.doctor, which tells notes of the last three minutes.
	noteClockEvery = time.Minute
)

// wallClock compares the clock of this machine with PostgreSQL's. Leases, schedules and limits
// follow PostgreSQL's clock alone; tokens, and times such as +PT5M over HTTP, follow this one.
type wallClock struct {
	now     func() time.Time // time.Now, except in tests
	ahead   time.Duration    // at the last tick; less than 0: behind
	notedAt time.Time        // when ojs.doctor was told last
}

// compare takes a time that PostgreSQL read between began and ended, and reports whether the clocks
// differ by more than clockLeeway. The round trip is not part of the difference.
func (w *wallClock) compare(at, began, ended time.Time) bool {
	switch {
	case at.Before(began):
		w.ahead = began.Sub(at)
	case at.After(ended):
		w.ahead = -at.Sub(ended)
	default:
		w.ahead = 0
	}
	return w.ahead.Abs() > clockLeeway
}

// compareClocks logs when the clocks begin or cease to differ, and tells ojs.doctor each minute while
// they do.
func (c *clock) compareClocks(ctx context.Context, at, began time.Time) {
	w := &c.wall
	differed := w.ahead.Abs() > clockLeeway
	differs := w.compare(at, began, w.now())
	c.metrics.ahead.Set(w.ahead.Seconds())
	switch {
	case differs && !differed:
		c.log.Warn("the clock of this machine differs from PostgreSQL's: tokens are refused or pass too long, and times such as +PT5M are "+
			"off by as much", "ahead", w.ahead.Round(time.Millisecond), "runbook", "docs/runbooks/lost-server.md")
	case differed && !differs:
		c.log.Warn("the clock of this machine agrees with PostgreSQL's again")
	}
	if !differs || differed && c.ticked.Sub(w.notedAt) < noteClockEvery {
		return
	}
	w.notedAt = c.ticked
	host, _ := os.Hostname()
	err := c.q.NoteClock(ctx, sqlcgen.NoteClockParams{
		Server: fmt.Sprintf("%s (process %d)", host, os.Getpid()), AheadSeconds: w.ahead.Seconds(),
	})
	if err != nil {
		c.log.Debug("ojs.doctor could not be told of the clock", "error", err)
	}
}
