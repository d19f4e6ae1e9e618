// Package sched is the clock: it decides when the database is asked, never what is done. The
// Scheduler calls ojs.tick, which promotes due jobs, takes back expired leases, fires cron jobs and
// rolls up statistics, and sleeps until the next work is due. One of all servers is on duty, which
// SQL decides at each tick; the others check whether it still is. Cron reads expressions, Upkeep
// calls ojs.upkeep. Requests of clients belong to internal/dispatch.
package sched

import (
	"context"
	"crypto/rand"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// Every is the usual interval between two ticks while there is much to do, or while nobody would wake a
	// clock that sleeps: a retry is promised within 200 ms of its time, and a tick takes time too.
	Every = 150 * time.Millisecond
	batch = 1000
	// A tick that makes so many jobs available is followed by the next one after a third of the interval.
	manyPromoted = 100
	// The longest sleep. Work that is due sooner wakes the clock, so this bounds only how long a timer
	// waits after the connection that listens has died without a word. ojs.tick allows no more.
	maxSleep = 10 * time.Second
	// A transaction that wakes the clock pays for it at commit. A clock that is woken twice within wakesTooOften stays
	// awake for stayAwake.
	wakesTooOften = time.Second
	stayAwake     = 5 * time.Second
	// A tick that takes longer than this is broken off and tried again.
	tickTimeout = 30 * time.Second
	// The longest pause after errors.
	maxErrorPause = 5 * time.Second
	// A clock that stops has so long to say that it need not be woken any more.
	standDownTimeout = 2 * time.Second
	// The log says at most so often how many attempts the clock has ended.
	tellReaped = time.Minute
	// Notifications with this payload say that no server is on duty.
	vacantToken = "duty"
)

// Scheduler calls ojs.tick whenever something is due.
type Scheduler struct {
	// Duty is for the other loops of which one in all servers is enough.
	Duty Duty
	// DispatchHeld is whether the last tick, or before the first one the caller, found dispatch held. Changes are logged.
	DispatchHeld bool

	q         *sqlcgen.Queries
	cron      *Cron
	listener  *notify.Listener
	log       *slog.Logger
	every     time.Duration
	token     string        // notifications with it wake this clock
	woken     chan struct{} // something is due
	vacant    chan struct{} // no server is on duty
	unplanned chan struct{} // there are cron jobs without a plan
	metrics   *metrics
}

// New makes a Scheduler that pauses for every between two ticks when there is much to do; zero
// means Every. With nothing to do it sleeps, if a listener can wake it.
func New(db *pg.DB, listener *notify.Listener, log *slog.Logger, every time.Duration) *Scheduler {
	if every <= 0 {
		every = Every
	}
	return &Scheduler{
		q: sqlcgen.New(db.Pool()), cron: NewCron(db, log), listener: listener, log: log, every: every,
		token: rand.Text(), woken: make(chan struct{}, 1), vacant: make(chan struct{}, 1), unplanned: make(chan struct{}, 1),
		metrics: newMetrics(),
	}
}

// Run ticks until ctx ends. An error of the database is logged and the clock slows down, so that
// a server outlives its database's restart; a panic is logged and the clock starts again.
func (s *Scheduler) Run(ctx context.Context) {
	if s.listener != nil {
		defer s.listener.OnToken(s.token, signal(s.woken))()
		defer s.listener.OnToken(vacantToken, signal(s.vacant))()
	}
	var planning sync.WaitGroup
	defer planning.Wait()
	planning.Go(func() { guard.Loop(ctx, s.log, "planning of cron jobs", s.planCrons) })
	guard.Loop(ctx, s.log, "clock", s.runClock)
	s.standDown(ctx)
}

func (s *Scheduler) runClock(ctx context.Context) {
	defer s.Duty.set(false)
	c := &clock{Scheduler: s, timer: time.NewTimer(0)}
	defer c.timer.Stop()
	defer func() { c.sayReaped(time.Now()) }()
	s.metrics.dueAt(time.Now())
	defer s.metrics.due.Store(nil)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.vacant:
			if !s.Duty.Held() {
				s.metrics.dueAt(time.Now())
				c.timer.Reset(0)
			}
		case <-s.woken:
			c.wake(time.Now())
		case <-c.timer.C:
			c.tick(ctx)
		}
	}
}

// clock is the state of runClock between ticks.
type clock struct {
	*Scheduler
	timer      *time.Timer
	failures   int       // in a row
	sleeps     bool      // registered, so that others wake it
	ticked     time.Time // when the last tick ended
	next       time.Time // when the timer fires
	wokenAt    time.Time
	awakeUntil time.Time
	reaped     int // attempts that the clock has ended and the log does not say yet
	reapedSaid time.Time
}

func (c *clock) tickIn(pause time.Duration) {
	c.next = c.ticked.Add(pause)
	c.metrics.dueAt(c.next)
	c.timer.Reset(pause)
}

// wake makes the next tick come sooner, but not within the interval after the last one.
func (c *clock) wake(now time.Time) {
	if !c.sleeps {
		return
	}
	if now.Sub(c.wokenAt) < wakesTooOften {
		c.awakeUntil = now.Add(stayAwake)
	}
	c.wokenAt = now
	if at := c.ticked.Add(c.every); at.Before(c.next) {
		c.timer.Reset(max(0, at.Sub(now)))
		c.next = at
		c.metrics.dueAt(at)
	}
}

func (c *clock) tick(ctx context.Context) {
	sleeps := c.listener != nil && c.listener.Backend() != 0 && !time.Now().Before(c.awakeUntil)
	began := time.Now()
	done, err := c.callTick(ctx, sleeps, c.failures)
	c.metrics.seconds.Observe(time.Since(began).Seconds())
	c.ticked = time.Now()
	c.noteReaped(int(done.Reaped), c.ticked)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.failures++
		c.metrics.failures.Inc()
		c.sleeps = false
		c.setDuty(false)
		pause := min(c.every<<min(c.failures, 10), maxErrorPause)
		c.log.Warn("the tick failed", "error", err, "failures", c.failures, "next_in", pause)
		c.tickIn(pause)
	default:
		if c.failures > 0 {
			c.log.Warn("the tick works again", "after_failures", c.failures)
		}
		c.failures = 0
		c.sleeps = sleeps && done.OnDuty
		c.setDuty(done.OnDuty)
		c.setDispatchHeld(done.DispatchHeld)
		c.tickIn(c.pause(done, c.sleeps))
	}
}

// noteReaped logs attempts that no client has ended, at once or together with those of the same
// minute: where a thousand workers die, each tick would write a line.
func (c *clock) noteReaped(attempts int, now time.Time) {
	if c.reaped += attempts; now.Sub(c.reapedSaid) >= tellReaped {
		c.sayReaped(now)
	}
}

func (c *clock) sayReaped(now time.Time) {
	if c.reaped == 0 {
		return
	}
	c.log.Info("attempts were ended, because their time was over or their workers were lost; ojs.lost_attempts says which",
		"attempts", c.reaped)
	c.reaped, c.reapedSaid = 0, now
}

func (s *Scheduler) setDuty(held bool) {
	if held != s.Duty.Held() {
		s.log.Info("duty", "held", held)
	}
	s.Duty.set(held)
}

// setDispatchHeld logs both changes: while dispatch is held, a server hands out nothing and shows
// no error.
func (s *Scheduler) setDispatchHeld(held bool) {
	switch {
	case held && !s.DispatchHeld:
		s.log.Warn("dispatch is held: nothing runs until POST /ojs/v1/admin/dispatch/resume, or ojs.resume_dispatch() in psql")
	case !held && s.DispatchHeld:
		s.log.Warn("dispatch is held no longer")
	}
	s.DispatchHeld = held
}

// pause returns the time from a tick to the next one.
func (s *Scheduler) pause(done sqlcgen.TickRow, sleeps bool) time.Duration {
	// Servers that started together, or wait for the same job, must not tick together.
	spread := mathrand.N(s.every/10 + 1)
	every := s.every
	if done.Promoted >= manyPromoted {
		// The more jobs are due, the more wait for the next tick.
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

// callTick asks for less work after each failure, because the work may have been too much for one
// transaction.
func (s *Scheduler) callTick(ctx context.Context, sleeps bool, failures int) (sqlcgen.TickRow, error) {
	ctx, cancel := context.WithTimeout(pg.Unchecked(ctx), tickTimeout)
	defer cancel()
	params := sqlcgen.TickParams{Batch: int32(max(1, batch>>min(2*failures, 10)))}
	if s.listener != nil {
		params.Token = &s.token
		if backend := s.listener.Backend(); backend != 0 {
			params.Backend = &backend
		}
	}
	if sleeps {
		params.StrideMs = int32(maxSleep.Milliseconds())
	}
	done, err := s.q.Tick(ctx, params)
	if err == nil && done.Unplanned > 0 {
		signal(s.unplanned)()
	}
	if err == nil && done.Promoted+done.Reaped+done.RolledUp > 0 {
		s.log.Debug("tick", "promoted", done.Promoted, "reaped", done.Reaped, "rolled_up", done.RolledUp)
	}
	return done, err
}

// planCrons plans cron jobs when a tick asks for it, in a goroutine of its own, so that other due
// work does not wait until a thousand cron jobs are planned.
func (s *Scheduler) planCrons(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.unplanned:
		}
		if err := s.plan(ctx); err != nil && ctx.Err() == nil {
			// The database asks again.
			s.log.Warn("cron jobs could not be planned", "error", err)
		}
	}
}

func (s *Scheduler) plan(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	return s.cron.Plan(ctx)
}

// standDown gives up the duty, so that another server takes it at once, and ends the registrations
// that wake this clock. Without it both lapse within a minute.
func (s *Scheduler) standDown(ctx context.Context) {
	if s.listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), standDownTimeout)
	defer cancel()
	if _, err := s.q.StandDown(ctx, s.token); err != nil {
		s.log.Debug("the clock could not say that it has stopped", "error", err)
	}
}

// signal returns a function that sends without waiting. A receiver that has not taken the last
// signal needs no second one.
func signal(c chan<- struct{}) func() {
	return func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
