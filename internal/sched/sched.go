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
	"github.com/ojs-pg/ojs-pg/internal/sqlstate"
)

const (
	// Every is the usual interval between two ticks while there is much to do, or while no notification
	// would wake a clock that sleeps: a retry is promised within 200 ms of its time, and a tick takes
	// time too.
	Every = 150 * time.Millisecond
	// batch is the number of jobs whose timers one tick looks at, about.
	batch = 1000
	// manyPromoted is the number of jobs that a tick has to make available for the next tick to come after
	// a third of the interval.
	manyPromoted = 100
	// maxSleep is the longest sleep. Work that is due sooner wakes the clock, so this bounds only how long
	// it sleeps after the connection that listens has died unnoticed. ojs.tick allows no more.
	maxSleep = 10 * time.Second
	// A transaction that wakes the clock pays for the notification at commit. A clock that is woken twice
	// within wakesTooOften stays awake for stayAwake, and so is not notified.
	wakesTooOften = time.Second
	stayAwake     = 5 * time.Second
	// tickTimeout is the time after which a tick is broken off and tried again.
	tickTimeout = 30 * time.Second
	// maxErrorPause is the longest pause after errors.
	maxErrorPause = 5 * time.Second
	// standDownTimeout bounds the statement by which a clock that stops gives up the duty.
	standDownTimeout = 2 * time.Second
	// tellReaped is the shortest time between two log lines about attempts that the clock has ended.
	tellReaped = time.Minute
	// vacantToken is the payload of a notification that no server is on duty.
	vacantToken = "duty"
)

// Scheduler calls ojs.tick whenever something is due. Run has two goroutines: the clock, which alone
// uses the type clock and DispatchHeld, and the planning of cron jobs. Everything else that they
// share is constant, a channel, or has a lock of its own (Duty, metrics).
type Scheduler struct {
	// Duty tells other loops whether this server is the one that does their work for all servers.
	Duty Duty
	// DispatchHeld says whether the last tick found dispatch held. The caller may set it before Run.
	// Changes are logged.
	DispatchHeld bool

	db       *pg.DB
	q        *sqlcgen.Queries
	cron     *Cron
	listener *notify.Listener
	log      *slog.Logger
	every    time.Duration
	token    string // notifications with this payload wake this clock
	// Signals, each with a buffer of one: a signal that has not been received says all that a second one
	// would. The Listener sends the first two, a tick the third.
	woken     chan struct{} // something is due
	vacant    chan struct{} // no server is on duty
	unplanned chan struct{} // there are cron jobs without a plan
	metrics   *metrics
	wall      wallClock
}

// New makes a Scheduler that pauses for every between two ticks when there is much to do; zero
// means Every. With nothing to do it sleeps, if a listener can wake it.
func New(db *pg.DB, listener *notify.Listener, log *slog.Logger, every time.Duration) *Scheduler {
	if every <= 0 {
		every = Every
	}
	return &Scheduler{
		db: db, q: sqlcgen.New(db.Pool()), cron: NewCron(db, log), listener: listener, log: log, every: every,
		token: rand.Text(), woken: make(chan struct{}, 1), vacant: make(chan struct{}, 1), unplanned: make(chan struct{}, 1),
		metrics: newMetrics(), wall: wallClock{now: time.Now},
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

// runClock ticks until ctx ends. It waits for its timer, which says when the next tick is due, and
// for signals that make it due sooner.
func (s *Scheduler) runClock(ctx context.Context) {
	defer s.Duty.set(false) // after a panic, too: other loops must not go on while no clock renews the duty
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
			if !s.Duty.Held() { // the server on duty ticks in its own time
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

// clock is the state of runClock between ticks. Only the goroutine of runClock uses it.
type clock struct {
	*Scheduler
	timer      *time.Timer
	failures   int       // ticks in a row that failed
	sleeps     bool      // SQL knows that the clock sleeps, so transactions with something due notify it
	ticked     time.Time // when the last tick ended
	next       time.Time // when the timer fires
	wokenAt    time.Time // when it was woken last
	awakeUntil time.Time // it does not sleep before
	reaped     int       // attempts that the clock has ended and the log does not tell yet
	reapedSaid time.Time // when the log told last
}

// tickIn sets the timer for a pause after the last tick.
func (c *clock) tickIn(pause time.Duration) {
	c.next = c.ticked.Add(pause)
	c.metrics.dueAt(c.next)
	c.timer.Reset(pause)
}

// wake makes the next tick come sooner, but not within Scheduler.every after the last one. A clock
// that does not sleep ignores it: its next tick comes soon anyway.
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

// tick calls ojs.tick once, and sets the timer for the next tick.
func (c *clock) tick(ctx context.Context) {
	// May the clock sleep afterwards? Only if a notification can reach it.
	sleeps := c.listener != nil && c.listener.Backend() != 0 && !time.Now().Before(c.awakeUntil)
	began, wall := time.Now(), c.wall.now()
	done, err := c.callTick(ctx, sleeps, c.failures)
	c.metrics.seconds.Observe(time.Since(began).Seconds())
	c.ticked = time.Now()
	c.noteReaped(int(done.Reaped), c.ticked)
	switch {
	case ctx.Err() != nil: // the server stops; an error only says that the call was cut off
	case err != nil:
		c.failures++
		c.metrics.failures.Inc()
		// Nothing is known: SQL may not have stored that the clock sleeps, or that this server is on duty.
		c.sleeps = false
		c.setDuty(false)
		pause := min(c.every<<min(c.failures, 10), maxErrorPause)
		c.log.Warn("the tick failed", "error", err, "failures", c.failures, "next_in", pause)
		if sqlstate.In(err, sqlstate.OutOfMemory) {
			c.sayShortage(ctx)
		}
		c.tickIn(pause)
	default:
		if c.failures > 0 {
			c.log.Warn("the tick works again", "after_failures", c.failures)
		}
		c.failures = 0
		c.sleeps = sleeps && done.OnDuty
		c.setDuty(done.OnDuty)
		c.setDispatchHeld(done.DispatchHeld)
		c.compareClocks(ctx, done.At, wall)
		c.tickIn(c.pause(done, c.sleeps))
	}
}

// sayShortage logs which sessions fill PostgreSQL's lock table. While it is full nobody can connect to
// ask for them, but the server's connections go on.
func (s *Scheduler) sayShortage(ctx context.Context) {
	short, err := s.db.Shortage(ctx)
	if err != nil {
		s.log.Warn("the sessions that fill the lock table are not known", "error", err)
	} else if short.What != "" {
		s.log.Warn(short.What, "holders", short.Holders, "runbook", "docs/runbooks/locks-or-notify-full.md")
	}
}

// noteReaped logs how many attempts the clock has ended. It writes the line at once if the last
// such line is a minute old. Otherwise the next line counts them, too. Without this, each tick
// would write a line when a thousand workers die.
func (c *clock) noteReaped(attempts int, now time.Time) {
	if c.reaped += attempts; now.Sub(c.reapedSaid) >= tellReaped {
		c.sayReaped(now)
	}
}

// sayReaped logs the attempts counted since the last line, if there are any.
func (c *clock) sayReaped(now time.Time) {
	if c.reaped == 0 {
		return
	}
	c.log.Info("attempts were ended, because their time was over or their workers were lost; ojs.lost_attempts says which",
		"attempts", c.reaped)
	c.reaped, c.reapedSaid = 0, now
}

// setDuty notes whether this server is on duty, and logs changes.
func (s *Scheduler) setDuty(held bool) {
	if held != s.Duty.Held() {
		s.log.Info("duty", "held", held)
	}
	s.Duty.set(held)
}

// setDispatchHeld notes whether dispatch is held, and logs changes: while dispatch is held, a server
// hands out no jobs and shows no error.
func (s *Scheduler) setDispatchHeld(held bool) {
	switch {
	case held && !s.DispatchHeld:
		s.log.Warn("dispatch is held: nothing runs until POST /ojs/v1/admin/dispatch/resume, or ojs.resume_dispatch() in psql")
	case !held && s.DispatchHeld:
		s.log.Warn("dispatch is held no longer")
	}
	s.DispatchHeld = held
}

// pause returns the time from a tick to the next one: none if the tick left work, the interval while
// the clock does not sleep, else the time until something is due.
func (s *Scheduler) pause(done sqlcgen.TickRow, sleeps bool) time.Duration {
	// The random part keeps servers that started together, or wait for the same job, from ticking together.
	spread := mathrand.N(s.every/10 + 1)
	every := s.every
	if done.Promoted >= manyPromoted {
		// Many jobs were due in one interval, so many will be due in the next. They should not wait for all
		// of it.
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

// callTick calls ojs.tick. After failures it asks for less work, because the work may have been too
// much for one transaction. sleeps asks SQL to notify the clock of what becomes due, instead of
// expecting it soon. If there are cron jobs without a plan it signals planCrons.
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
			// Tried again when the next tick finds cron jobs without a plan.
			s.log.Warn("cron jobs could not be planned", "error", err)
		}
	}
}

// plan plans cron jobs within tickTimeout.
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

// signal returns a function that sends to c without waiting. c has a buffer of one: a receiver that
// has not taken the last signal needs no second one.
func signal(c chan<- struct{}) func() {
	return func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
