// Package sched is the clock: it says when, never what. On a beat it calls ojs.tick, which
// promotes due jobs, returns expired leases and rolls up statistics. Any number of servers may
// tick at once; what they do is divided in SQL.
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
	// Every is the usual longest pause between two ticks: a retry is promised within 200 ms of its
	// time, and a tick takes time too.
	Every = 150 * time.Millisecond
	batch = 1000
	// A tick that takes longer than this is given up and tried again.
	patience = 30 * time.Second
	// The longest pause after errors.
	slowest = 5 * time.Second
)

// Scheduler calls ojs.tick on a beat.
type Scheduler struct {
	q     *sqlcgen.Queries
	log   *slog.Logger
	every time.Duration
}

// New makes a Scheduler that pauses at most every between two ticks; zero means Every.
func New(db *pg.DB, log *slog.Logger, every time.Duration) *Scheduler {
	if every <= 0 {
		every = Every
	}
	return &Scheduler{q: sqlcgen.New(db.Pool()), log: log, every: every}
}

// Run ticks until ctx ends. An error of the database is logged and the beat slows down, so that
// a server outlives its database's restart.
func (s *Scheduler) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		full, err := s.tick(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			pause := min(s.every<<min(failures, 10), slowest)
			s.log.Warn("the tick failed", "error", err, "failures", failures, "next_in", pause)
			timer.Reset(pause)
		case full:
			failures = 0
			timer.Reset(0)
		default:
			failures = 0
			// Servers started together must not beat together.
			timer.Reset(s.every - rand.N(s.every/3+1))
		}
	}
}

// tick reports whether there was as much to do as it may do at once.
func (s *Scheduler) tick(ctx context.Context) (full bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done, err := s.q.Tick(ctx, batch)
	if err != nil {
		return false, err
	}
	if done.Promoted+done.Reaped+done.RolledUp > 0 {
		s.log.Debug("tick", "promoted", done.Promoted, "reaped", done.Reaped, "rolled_up", done.RolledUp)
	}
	return done.Promoted >= batch || done.Reaped >= batch || done.RolledUp >= batch, nil
}
