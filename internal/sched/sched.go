// Package sched is the clock: it says when the database is asked, never what is done. The Scheduler calls ojs.tick, which promotes due jobs,
// takes back expired leases, fires cron jobs and rolls up statistics, and sleeps until that is next due. Of any number of servers one is on
// duty, which SQL settles at each tick; the others look whether it still is. Cron reads expressions, Upkeep calls ojs.upkeep. Requests of
// clients are not its business: internal/dispatch has those.
package sched

import (
	"context"
	"crypto/rand"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// Every is the usual pause between two ticks while there is much to do, or while nobody would wake a
	// clock that sleeps: a retry is promised within 200 ms of its time, and a tick takes time too.
	Every = 150 * time.Millisecond
	batch = 1000
	// A tick that makes so many jobs available is followed by the next one sooner.
	crowd = 100
	// The longest sleep. What is due sooner wakes the clock, so this bounds only how long a timer
	// waits after the connection that listens has died without a word. ojs.tick allows no more.
	stride = 10 * time.Second
	// Whoever wakes a clock pays for it at commit. A clock that is woken twice within hasty gets up
	// and beats for as long as beatFor.
	hasty   = time.Second
	beatFor = 5 * time.Second
	// A tick that takes longer than this is given up and tried again.
	patience = 30 * time.Second
	// The longest pause after errors.
	slowest = 5 * time.Second
	// So long a clock that stops may take to say that it need not be woken any more.
	farewell = 2 * time.Second
	// Notifications with this payload say that nobody is on duty.
	vacancy = "duty"
)

// Scheduler calls ojs.tick whenever something is due.
type Scheduler struct {
	// Duty is for the other loops of which one in all servers is enough.
	Duty Duty

	q        *sqlcgen.Queries
	cron     *Cron
	listener *pg.Listener
	log      *slog.Logger
	every    time.Duration
	token    string
	woken    chan struct{}
	vacant   chan struct{}
	planless chan struct{}
}

// New makes a Scheduler that pauses for every between two ticks when there is much to do; zero
// means Every. With nothing to do it sleeps, if a listener can wake it.
func New(db *pg.DB, listener *pg.Listener, log *slog.Logger, every time.Duration) *Scheduler {
	if every <= 0 {
		every = Every
	}
	return &Scheduler{
		q: sqlcgen.New(db.Pool()), cron: NewCron(db, log), listener: listener, log: log, every: every,
		token: rand.Text(), woken: make(chan struct{}, 1), vacant: make(chan struct{}, 1), planless: make(chan struct{}, 1),
	}
}

// Run ticks until ctx ends. An error of the database is logged and the clock slows down, so that
// a server outlives its database's restart.
func (s *Scheduler) Run(ctx context.Context) {
	if s.listener != nil {
		defer s.listener.OnToken(s.token, signal(s.woken))()
		defer s.listener.OnToken(vacancy, signal(s.vacant))()
	}
	defer s.Duty.set(false)
	var planning sync.WaitGroup
	defer planning.Wait()
	planning.Go(func() { s.planCrons(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	var (
		failures  int
		sleeps    bool      // registered, so that others wake it
		ticked    time.Time // when the last tick ended
		next      time.Time // when the timer fires
		disturbed time.Time // when it was woken last
		beatUntil time.Time
	)
	plan := func(pause time.Duration) {
		next = ticked.Add(pause)
		timer.Reset(pause)
	}
	for {
		select {
		case <-ctx.Done():
			s.standDown(ctx)
			return
		case <-s.vacant:
			if !s.Duty.Held() {
				timer.Reset(0)
			}
			continue
		case <-s.woken:
			if !sleeps {
				continue
			}
			now := time.Now()
			if now.Sub(disturbed) < hasty {
				beatUntil = now.Add(beatFor)
			}
			disturbed = now
			if at := ticked.Add(s.every); at.Before(next) {
				timer.Reset(max(0, at.Sub(now)))
				next = at
			}
			continue
		case <-timer.C:
		}
		sleeps = s.listener != nil && s.listener.Backend() != 0 && !time.Now().Before(beatUntil)
		done, err := s.tick(ctx, sleeps, failures)
		ticked = time.Now()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures++
			pause := min(s.every<<min(failures, 10), slowest)
			s.log.Warn("the tick failed", "error", err, "failures", failures, "next_in", pause)
			sleeps = false
			s.Duty.set(false)
			plan(pause)
		default:
			failures = 0
			sleeps = sleeps && done.OnDuty
			if done.OnDuty != s.Duty.Held() {
				s.log.Debug("duty", "held", done.OnDuty)
			}
			s.Duty.set(done.OnDuty)
			plan(s.pause(done, sleeps))
		}
	}
}

// pause is the time from a tick to the next one.
func (s *Scheduler) pause(done sqlcgen.TickRow, sleeps bool) time.Duration {
	// Servers that started together, or wait for the same job, must not tick together.
	spread := mathrand.N(s.every/10 + 1)
	every := s.every
	if done.Promoted >= crowd {
		// Where many are due, the more wait for the next tick the longer it takes.
		every /= 3
	}
	switch {
	case done.NextInMs == 0:
		return 0
	case !sleeps && done.OnDuty:
		return every - spread
	}
	return max(time.Duration(done.NextInMs)*time.Millisecond, every) + spread
}

// tick takes on less after each failure, for what failed may have been too much for one transaction.
func (s *Scheduler) tick(ctx context.Context, sleeps bool, failures int) (sqlcgen.TickRow, error) {
	ctx, cancel := context.WithTimeout(pg.Unchecked(ctx), patience)
	defer cancel()
	params := sqlcgen.TickParams{Batch: int32(max(1, batch>>min(2*failures, 10)))}
	if s.listener != nil {
		params.Token = &s.token
		if backend := s.listener.Backend(); backend != 0 {
			params.Backend = &backend
		}
	}
	if sleeps {
		params.StrideMs = int32(stride.Milliseconds())
	}
	done, err := s.q.Tick(ctx, params)
	if err == nil && done.Unplanned > 0 {
		signal(s.planless)()
	}
	if err == nil && done.Promoted+done.Reaped+done.RolledUp > 0 {
		s.log.Debug("tick", "promoted", done.Promoted, "reaped", done.Reaped, "rolled_up", done.RolledUp)
	}
	return done, err
}

// planCrons plans when a tick says so, beside the clock: whatever else is due does not wait until a thousand cron jobs are planned.
func (s *Scheduler) planCrons(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.planless:
		}
		if err := s.plan(ctx); err != nil && ctx.Err() == nil {
			// The database asks again.
			s.log.Warn("cron jobs could not be planned", "error", err)
		}
	}
}

func (s *Scheduler) plan(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.cron.Plan(ctx)
}

// standDown has another server take the duty at once, and spares others waking a clock that has stopped; else both lapse within a minute.
func (s *Scheduler) standDown(ctx context.Context) {
	if s.listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if _, err := s.q.StandDown(ctx, s.token); err != nil {
		s.log.Debug("the clock could not say that it has stopped", "error", err)
	}
}

// signal sends without waiting; who has not received the one before needs no second.
func signal(c chan<- struct{}) func() {
	return func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
