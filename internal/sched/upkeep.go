package sched

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// upkeepToken is notified when settings change. Anybody may send it, so upkeepRest passes between two calls.
	upkeepToken   = "upkeep"
	upkeepRest    = time.Second
	upkeepSlowest = time.Minute
)

// Upkeep calls ojs.upkeep whenever it says that something is due: finished jobs leave by the partition. Beside the clock, because
// a step may take long.
type Upkeep struct {
	q        *sqlcgen.Queries
	listener *pg.Listener
	log      *slog.Logger
}

// NewUpkeep makes an Upkeep that notices changed settings within a minute, and at once if it has a listener.
func NewUpkeep(db *pg.DB, listener *pg.Listener, log *slog.Logger) *Upkeep {
	return &Upkeep{q: sqlcgen.New(db.Pool()), listener: listener, log: log}
}

// Run does what is due until ctx ends. An error of the database is logged and tried again later.
func (u *Upkeep) Run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	if u.listener != nil {
		stop := u.listener.OnToken(upkeepToken, signal(changed))
		defer stop()
	}
	// Servers that started together take turns.
	timer := time.NewTimer(rand.N(upkeepRest))
	defer timer.Stop()
	var (
		failures int
		next     time.Time // when the timer fires
	)
	plan := func(pause time.Duration) {
		next = time.Now().Add(pause)
		timer.Reset(pause)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if time.Until(next) > upkeepRest {
				plan(upkeepRest)
			}
			continue
		case <-timer.C:
		}
		// Reading a large partition takes hours, beside everything else. Broken off, it would begin anew and never end; what comes too late, SQL gives up.
		done, err := u.q.Upkeep(pg.Unchecked(ctx))
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures++
			pause := min(upkeepRest<<min(failures, 10), upkeepSlowest)
			u.log.Warn("the upkeep failed", "error", err, "failures", failures, "next_in", pause)
			plan(pause)
		default:
			failures = 0
			if done.Task != "" {
				u.log.Debug("upkeep", "task", done.Task, "step", done.Step)
			}
			pause := time.Duration(done.NextInMs) * time.Millisecond
			plan(pause + rand.N(pause/20+1))
		}
	}
}
