package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	channel = "ojs_wake"

	refreshAfter  = 20 * time.Second // a registration lapses after 60 s
	dropAfter     = 5 * time.Second  // a queue that is asked for again soon stays registered
	sweepEvery    = time.Second
	registerLimit = 5 * time.Second
	closeLimit    = 2 * time.Second
	probeEvery    = 30 * time.Second // notices a connection that died without a word
	reconnectMin  = 100 * time.Millisecond
	reconnectMax  = 5 * time.Second

	// DefaultFallback is how often a waiter looks by itself when nothing wakes it.
	DefaultFallback = 5 * time.Second
)

// A producer whose statement ran just before a registration committed does not see it, and
// notifies nobody; its jobs are found by looking again at these times after registering.
var recheckAfter = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond}

// Listener hears, on one connection, of every commit that makes a job available in a queue
// for which somebody here waits. It never says that there is a job, only that looking may pay.
type Listener struct {
	// Fallback may be set before the first Wait.
	Fallback time.Duration

	db     *DB
	log    *slog.Logger
	server [16]byte // under this name we register
	others others   // who hears of tokens that are no queue's

	// As the constants say; tests are less patient.
	recheckAfter                        []time.Duration
	refreshAfter, dropAfter, sweepEvery time.Duration

	mu     sync.Mutex
	queues map[string]*queue
	tokens map[string]*queue
}

// queue is one queue that somebody waits for, or waited for a moment ago.
type queue struct {
	name string
	// gate is held during a statement about this queue, so that a registration and the
	// withdrawal of the one before cannot overtake each other.
	gate chan struct{}

	// The rest is guarded by Listener.mu.
	waits       map[*Wait]struct{}
	registered  bool
	refreshedAt time.Time
	token       string
	idleSince   time.Time
}

// NewListener makes a listener; it hears nothing before Run.
func NewListener(db *DB, log *slog.Logger) *Listener {
	l := &Listener{
		Fallback: DefaultFallback, db: db, log: log, queues: map[string]*queue{}, tokens: map[string]*queue{},
		recheckAfter: recheckAfter, refreshAfter: refreshAfter, dropAfter: dropAfter, sweepEvery: sweepEvery,
	}
	rand.Read(l.server[:])
	l.server[6] = l.server[6]&0x0f | 0x40 // a random UUID
	l.server[8] = l.server[8]&0x3f | 0x80
	return l
}

// Wait is one caller who waits for one or more queues.
type Wait struct {
	// C receives when it may pay to fetch again. Several wakes may become one.
	C <-chan struct{}

	listener *Listener
	queues   []*queue
	wake     chan struct{}

	mu     sync.Mutex
	closed bool
	timer  *time.Timer
	looks  int // planned so far
}

// Wait returns when every queue is registered, so that a caller who then fetches once more and
// finds nothing misses no later commit. If registering fails, the caller still looks
// again from time to time. The caller must Close it.
func (l *Listener) Wait(ctx context.Context, queues []string) *Wait {
	w := &Wait{listener: l, wake: make(chan struct{}, 1)}
	w.C = w.wake
	l.mu.Lock()
	for _, name := range queues {
		q := l.queues[name]
		if q == nil {
			q = &queue{name: name, gate: make(chan struct{}, 1), waits: map[*Wait]struct{}{}}
			l.queues[name] = q
		}
		if _, twice := q.waits[w]; !twice {
			q.waits[w] = struct{}{}
			w.queues = append(w.queues, q)
		}
	}
	l.mu.Unlock()

	for _, q := range w.queues {
		if err := l.register(ctx, q, false); err != nil && ctx.Err() == nil {
			l.log.Warn("waiting for a queue without being woken", "queue", q.name, "error", err)
		}
	}
	w.mu.Lock()
	w.timer = time.AfterFunc(w.pause(), w.recheck)
	w.mu.Unlock()
	return w
}

// Close ends the wait.
func (w *Wait) Close() {
	w.mu.Lock()
	w.closed = true
	w.timer.Stop()
	w.mu.Unlock()

	l := w.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range w.queues {
		delete(q.waits, w)
		if len(q.waits) == 0 {
			q.idleSince = time.Now()
		}
	}
}

// signal never blocks: a wake that is still unread serves as this one.
func (w *Wait) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Wait) recheck() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.signal()
	w.timer.Reset(w.pause())
}

// pause is the time until the waiter looks again by itself.
func (w *Wait) pause() time.Duration {
	l, looks := w.listener, w.looks
	w.looks++
	switch {
	case looks == 0 && len(l.recheckAfter) > 0:
		return l.recheckAfter[0]
	case looks < len(l.recheckAfter):
		return l.recheckAfter[looks] - l.recheckAfter[looks-1]
	}
	// Spread, so that a thousand waiters do not look in the same moment.
	return l.Fallback - l.Fallback/10 + mathrand.N(l.Fallback/5+1)
}

// register makes sure that commits of this queue notify us; again renews a registration.
func (l *Listener) register(ctx context.Context, q *queue, again bool) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	select {
	case q.gate <- struct{}{}:
		defer func() { <-q.gate }()
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	done := q.registered && !again
	l.mu.Unlock()
	if done {
		return nil
	}
	var token string
	err := l.db.pool.QueryRow(ctx, "select ojs.register_waiter($1, $2)", l.server, q.name).Scan(&token)
	if err != nil {
		return fmt.Errorf("register a waiter: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.token != token {
		delete(l.tokens, q.token)
		q.token = token
		l.tokens[token] = q
	}
	q.registered, q.refreshedAt = true, time.Now()
	return nil
}

// unregister withdraws a queue that nobody waits for any more.
func (l *Listener) unregister(ctx context.Context, q *queue) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	select {
	case q.gate <- struct{}{}:
		defer func() { <-q.gate }()
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	if len(q.waits) > 0 {
		l.mu.Unlock()
		return nil
	}
	// From here on a newcomer registers anew, after us because of the gate.
	registered := q.registered
	q.registered = false
	delete(l.tokens, q.token)
	q.token = ""
	l.mu.Unlock()
	if registered {
		if _, err := l.db.pool.Exec(ctx, "select ojs.drop_waiter($1, $2)", l.server, q.name); err != nil {
			return fmt.Errorf("drop a waiter: %w", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(q.waits) == 0 {
		delete(l.queues, q.name)
	}
	return nil
}

// Run listens until ctx ends, through lost connections. It returns when all it started is done.
func (l *Listener) Run(ctx context.Context) {
	var sweeper sync.WaitGroup
	sweeper.Go(func() { l.sweep(ctx) })
	defer sweeper.Wait()

	pause := reconnectMin
	for ctx.Err() == nil {
		started := time.Now()
		err := l.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		l.log.Warn("the connection that listens for commits is lost; waiters look by themselves meanwhile", "error", err)
		if time.Since(started) > reconnectMax {
			pause = reconnectMin
		}
		select {
		case <-time.After(pause/2 + mathrand.N(pause/2+1)):
		case <-ctx.Done():
		}
		pause = min(2*pause, reconnectMax)
	}
}

func (l *Listener) listen(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, l.db.pool.Config().ConnConfig.Copy())
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return err
	}
	l.others.connected(true)
	defer l.others.connected(false)
	// What was committed before we listened was told to nobody.
	l.wakeAll()
	for {
		waiting, cancel := context.WithTimeout(ctx, probeEvery)
		notification, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			l.wake(notification.Payload)
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			probing, cancel := context.WithTimeout(ctx, registerLimit)
			err := conn.Ping(probing)
			cancel()
			if err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func (l *Listener) wake(token string) {
	l.others.heard(token)
	l.mu.Lock()
	defer l.mu.Unlock()
	// Tokens of other servers arrive here too; so do ours from before the last withdrawal.
	if q := l.tokens[token]; q != nil {
		for w := range q.waits {
			w.signal()
		}
	}
}

func (l *Listener) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queues {
		for w := range q.waits {
			w.signal()
		}
	}
}

// sweep renews registrations in use and withdraws the others, and all at the end.
func (l *Listener) sweep(ctx context.Context) {
	// A renewal under way at the end is not cut off: the server might still carry it out, after
	// the withdrawal.
	steady := context.WithoutCancel(ctx)
	tick := time.NewTicker(l.sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.withdrawAll(steady)
			return
		case now := <-tick.C:
			var renew, drop []*queue
			l.mu.Lock()
			for _, q := range l.queues {
				switch {
				case len(q.waits) == 0 && now.Sub(q.idleSince) >= l.dropAfter:
					drop = append(drop, q)
				case len(q.waits) > 0 && now.Sub(q.refreshedAt) >= l.refreshAfter:
					renew = append(renew, q)
				}
			}
			l.mu.Unlock()
			for _, q := range renew {
				if ctx.Err() != nil {
					break
				}
				if err := l.register(steady, q, true); err != nil {
					l.log.Warn("a queue's registration could not be renewed", "queue", q.name, "error", err)
				}
			}
			for _, q := range drop {
				if ctx.Err() != nil {
					break
				}
				if err := l.unregister(steady, q); err != nil {
					// It lapses by itself.
					l.log.Debug("a queue's registration could not be withdrawn", "queue", q.name, "error", err)
				}
			}
		}
	}
}

// withdrawAll spares producers notifications to a server that is gone; what it does not
// reach in time lapses by itself.
func (l *Listener) withdrawAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	l.mu.Lock()
	registered := len(l.tokens) > 0
	names := make([]string, 0, len(l.queues))
	for name := range l.queues {
		names = append(names, name)
	}
	l.mu.Unlock()
	if !registered {
		return
	}
	if _, err := l.db.pool.Exec(ctx, "select ojs.drop_waiter($1, q) from unnest($2::text[]) q", l.server, names); err != nil {
		l.log.Debug("the registrations could not be withdrawn", "error", err)
	}
}
