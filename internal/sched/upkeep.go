package sched

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// upkeepToken is the payload of a notification that settings have changed. Any session may send it,
	// so there is a pause of at least upkeepPause between two calls.
	upkeepToken    = "upkeep"
	upkeepPause    = time.Second
	maxUpkeepPause = time.Minute // after errors
)

// Upkeep calls ojs.upkeep whenever it is due: it drops partitions of finished jobs, for example. It
// runs in a goroutine of its own, because a step may take long.
type Upkeep struct {
	q        *sqlcgen.Queries
	listener *notify.Listener
	log      *slog.Logger
}

// NewUpkeep makes an Upkeep. It notices changed settings within a minute, and at once if it has a
// listener.
func NewUpkeep(db *pg.DB, listener *notify.Listener, log *slog.Logger) *Upkeep {
	return &Upkeep{q: sqlcgen.New(db.Pool()), listener: listener, log: log}
}

// Run does what is due until ctx ends. An error of the database is logged and tried again later. A
// panic is logged, and the upkeep starts again.
func (u *Upkeep) Run(ctx context.Context) { guard.Loop(ctx, u.log, "upkeep", u.run) }

// run is Run without the protection against panics. It alone holds the state of the loop.
func (u *Upkeep) run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	if u.listener != nil {
		stop := u.listener.OnToken(upkeepToken, signal(changed))
		defer stop()
	}
	// At random, so that servers that started together do not call at the same time.
	timer := time.NewTimer(rand.N(upkeepPause))
	defer timer.Stop()
	var (
		failures int
		next     time.Time // when the timer fires
	)
	for {
		pause := upkeepPause
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if time.Until(next) <= upkeepPause {
				continue // the timer fires soon enough
			}
		case <-timer.C:
			pause, failures = u.step(ctx, failures)
		}
		next = time.Now().Add(pause)
		timer.Reset(pause)
	}
}

// step does one thing that is due. It returns how long to pause, and how many steps in a row have
// failed.
func (u *Upkeep) step(ctx context.Context, failures int) (pause time.Duration, failed int) {
	// No time limit: reading a large partition takes hours while everything else goes on. If it were
	// broken off it would begin anew, and never end. SQL gives up a step that comes too late.
	done, err := u.q.Upkeep(pg.Unchecked(ctx))
	switch {
	case ctx.Err() != nil:
		return upkeepPause, failures
	case err != nil:
		failures++
		pause = min(upkeepPause<<min(failures, 10), maxUpkeepPause)
		u.log.Warn("the upkeep failed", "error", err, "failures", failures, "next_in", pause)
		return pause, failures
	}
	switch {
	case strings.HasPrefix(done.Step, "failed"):
		// SQL has noted the error in ojs.upkeep_status, and waits longer after each failure.
		u.log.Warn("a step of the upkeep failed", "task", done.Task, "step", done.Step)
	case done.Task != "":
		u.log.Debug("upkeep", "task", done.Task, "step", done.Step)
	}
	pause = time.Duration(done.NextInMs) * time.Millisecond
	return pause + rand.N(pause/20+1), 0
}
