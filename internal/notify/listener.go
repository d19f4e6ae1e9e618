// Package notify hears of commits: a Listener keeps one connection on which PostgreSQL notifies
// this server when a transaction with jobs for a queue commits, and wakes the requests that wait
// for the queue.
package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	channel = "ojs_wake"

	listenTimeout  = 10 * time.Second // to begin to listen, once connected
	pingInterval   = 30 * time.Second // notices a connection that died without a word
	pingTimeout    = 5 * time.Second
	reconnectFirst = 100 * time.Millisecond
	reconnectMax   = 5 * time.Second
)

// Listener receives, on one connection, a notification for each commit that makes a job available
// in a queue for which a request waits here. A notification is a hint to poll, not a promise that
// there is a job. listener.go keeps the connection; waiters.go keeps the rows of ojs.waiter that
// make commits notify this server.
//
// Two goroutines run while Run does: reconnect, which receives notifications, and maintain, which
// keeps the rows. Subscribe, Close and OnToken may be called on any goroutine. Listener.mu guards
// the queues, tokens.mu the token functions. Neither is held while another lock is taken, nor while
// a subscriber is called, so a subscriber may call the Listener again.
type Listener struct {
	db      *pg.DB
	q       *sqlcgen.Queries
	log     *slog.Logger
	server  uuid.UUID     // names this server in ojs.waiter
	changed chan struct{} // registrations have to be brought up to date

	// Like the constants; tests shorten them.
	listenTimeout, renewAfter, withdrawAfter time.Duration

	tokens tokens

	mu        sync.Mutex
	listening bool
	full      bool // PostgreSQL's NOTIFY queue is too full for commits to notify (ojs._notify_full)
	queues    map[string]*queue
	byToken   map[string]*queue
	crossing  time.Duration // until the next look at transactions that cross a registration; 0: there are none
}

// New makes a listener. It receives nothing before Run.
func New(db *pg.DB, log *slog.Logger) *Listener {
	return &Listener{
		db: db, q: sqlcgen.New(db.Pool()), log: log, server: uuid.New(), changed: make(chan struct{}, 1),
		queues: map[string]*queue{}, byToken: map[string]*queue{},
		listenTimeout: listenTimeout, renewAfter: renewAfter, withdrawAfter: withdrawAfter,
	}
}

// Run listens until ctx ends, through lost connections. It returns when everything that it started
// has ended.
func (l *Listener) Run(ctx context.Context) {
	var registering sync.WaitGroup
	registering.Go(func() { guard.Loop(ctx, l.log, "registration of waiters", l.maintain) })
	defer registering.Wait()
	guard.Loop(ctx, l.log, "listener", l.reconnect)
}

// reconnect opens a connection, listens until it is lost, and opens the next one after a pause,
// until ctx ends.
func (l *Listener) reconnect(ctx context.Context) {
	defer l.disconnected() // also when it panics: waiters must not rely on a connection that is gone
	pause, lost := reconnectFirst, false
	for ctx.Err() == nil {
		started := time.Now()
		err := l.listen(ctx, lost)
		lost = true
		l.disconnected()
		if ctx.Err() != nil {
			return
		}
		l.log.Warn("the connection that listens for commits is lost; waiting requests poll meanwhile", "error", err)
		if time.Since(started) > reconnectMax {
			pause = reconnectFirst
		}
		select {
		case <-time.After(pause/2 + mathrand.N(pause/2+1)):
		case <-ctx.Done():
		}
		pause = min(2*pause, reconnectMax)
	}
}

// listen returns the error with which the connection is lost. again says that an earlier connection
// was lost.
func (l *Listener) listen(ctx context.Context, again bool) error {
	conn, backend, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer pg.HangUp(ctx, conn)
	l.connected(backend)
	if again {
		l.log.Warn("a connection listens for commits again")
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, pingInterval)
		notification, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			l.notified(notification.Payload)
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			pinging, cancel := context.WithTimeout(ctx, pingTimeout)
			err := conn.Ping(pinging)
			cancel()
			if err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// connect opens the connection and begins to listen. Each host of the URL has its connect_timeout,
// and the first statement has listenTimeout: a server that accepts connections and answers nothing
// must not keep us from trying another one.
func (l *Listener) connect(ctx context.Context) (conn *pgx.Conn, backend int32, err error) {
	config := l.db.ListenConfig()
	// The name identifies the session: another server compares it to find out whether the session
	// on duty is still the same one (ojs.duty).
	config.RuntimeParams["application_name"] += " listens " + rand.Text()[:8]
	conn, err = pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, 0, err
	}
	beginning, cancel := context.WithTimeout(ctx, l.listenTimeout)
	defer cancel()
	backend, err = sqlcgen.New(conn).DetectLoss(beginning)
	if err == nil {
		_, err = conn.Exec(beginning, "listen "+channel)
	}
	if err != nil {
		pg.HangUp(ctx, conn)
		return nil, 0, fmt.Errorf("begin to listen: %w", err)
	}
	return conn, backend, nil
}

// connected is called when a connection listens. Commits before it have not notified this server,
// and the registrations may be lost with the database that held them. So all queues are registered
// again, and all subscriptions are woken to poll.
func (l *Listener) connected(backend int32) {
	l.mu.Lock()
	l.listening = true
	for _, q := range l.queues {
		q.stale = true
	}
	l.mu.Unlock()
	l.tokens.connected(backend) // after listening is set: the functions that it calls may ask Notified
	l.change()
	l.wakeAll()
}

func (l *Listener) disconnected() {
	l.mu.Lock()
	l.listening = false
	l.mu.Unlock()
	l.wakeAll()
	l.tokens.connected(0)
}

func (l *Listener) notified(token string) {
	l.tokens.notified(token)
	l.mu.Lock()
	wakes := wakeSet{}
	// Tokens of other servers arrive here too; so do ours from before the last withdrawal.
	if q := l.byToken[token]; q != nil {
		wakes.add(q)
	}
	l.mu.Unlock()
	wakes.wake()
}

func (l *Listener) wakeAll() {
	l.mu.Lock()
	wakes := wakeSet{}
	for _, q := range l.queues {
		wakes.add(q)
	}
	l.mu.Unlock()
	wakes.wake()
}

// OnToken calls f at every notification with the token, and when the connection comes or goes,
// until stop is called. A call under way may still arrive after stop. Several functions may have
// the same token. f must not block.
func (l *Listener) OnToken(token string, f func()) (stop func()) { return l.tokens.add(token, f) }

// Backend returns the process id of the listening session while notifications arrive, else 0.
func (l *Listener) Backend() int32 {
	l.tokens.mu.Lock()
	defer l.tokens.mu.Unlock()
	return l.tokens.backend
}

// Notified reports whether notifications arrive: a connection listens, and commits send them.
func (l *Listener) Notified() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listening && !l.full
}

// tokens hold the functions of components that wait for a token instead of a queue, such as the
// clock. mu guards all fields.
type tokens struct {
	mu      sync.Mutex
	backend int32 // of the connection that listens; 0: there is none
	funcs   []*tokenFunc
}

type tokenFunc struct {
	token string
	f     func()
}

func (t *tokens) add(token string, f func()) (stop func()) {
	added := &tokenFunc{token, f}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.funcs = append(t.funcs, added)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if at := slices.Index(t.funcs, added); at >= 0 {
			// A new slice, because notified may be reading the old one without the lock.
			t.funcs = slices.Delete(slices.Clone(t.funcs), at, at+1)
		}
	}
}

func (t *tokens) connected(backend int32) {
	t.mu.Lock()
	changed, funcs := t.backend != backend, t.funcs
	t.backend = backend
	t.mu.Unlock()
	if !changed {
		return
	}
	for _, f := range funcs {
		f.f()
	}
}

func (t *tokens) notified(token string) {
	t.mu.Lock()
	funcs := t.funcs
	t.mu.Unlock()
	for _, f := range funcs {
		if f.token == token {
			f.f()
		}
	}
}
