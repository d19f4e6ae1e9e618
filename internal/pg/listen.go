package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	channel = "ojs_wake"

	renewAfter    = 20 * time.Second // a registration lapses after 60 s
	lapsedAfter   = 50 * time.Second
	dropAfter     = time.Second
	upkeepLimit   = 5 * time.Second
	closeLimit    = 2 * time.Second
	probeEvery    = 30 * time.Second // notices a connection that died without a word
	reconnectMin  = 100 * time.Millisecond
	reconnectMax  = 5 * time.Second
	crossingFirst = 5 * time.Millisecond
	crossingLast  = 5 * time.Second
)

// The session ends within seconds after our machine, or the way to it, has.
const announceDeath = `select pg_backend_pid() from (select set_config('tcp_keepalives_idle', '2', false), set_config('tcp_keepalives_interval', '1', false),
	set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '5000', false)) s`

// A transaction above read committed may have begun before a registration and write only after it, so that it is
// not seen to cross it; unless it is a long one, looking again at these times finds its jobs.
var againAfter = [...]time.Duration{50 * time.Millisecond, 500 * time.Millisecond}

// Listener hears, on one connection, of every commit that makes a job available in a queue
// for which somebody here waits. It never says that there is a job, only that looking may pay.
//
// What it knows of is queues, however many wait for them: each queue is registered once, and all
// registrations are renewed by one statement.
type Listener struct {
	db     *DB
	log    *slog.Logger
	server [16]byte // under this name we register
	others others   // who hears of tokens that are no queue's
	kick   chan struct{}

	// As the constants say; tests are less patient.
	renewAfter, dropAfter time.Duration

	mu        sync.Mutex
	listening bool
	queues    map[string]*queue
	tokens    map[string]*queue
	crossing  time.Duration // until the next look at transactions that cross a registration
}

// queue is one queue that somebody waits for, or waited for a moment ago.
type queue struct {
	name      string
	subs      map[*Subscription]struct{}
	token     string // empty: not registered
	stale     bool   // commits may have gone unheard since it was registered
	renewedAt time.Time
	idleSince time.Time
	// open are the transactions that were under way when the registration committed. Their statements may
	// not have seen it, so that they commit without a word.
	open []uint64
}

// Subscription is somebody's interest in one or more queues.
type Subscription struct {
	listener *Listener
	queues   []*queue
	wake     func()
}

// NewListener makes a listener; it hears nothing before Run.
func NewListener(db *DB, log *slog.Logger) *Listener {
	l := &Listener{
		db: db, log: log, kick: make(chan struct{}, 1), queues: map[string]*queue{}, tokens: map[string]*queue{},
		renewAfter: renewAfter, dropAfter: dropAfter,
	}
	rand.Read(l.server[:])
	l.server[6] = l.server[6]&0x0f | 0x40 // a random UUID
	l.server[8] = l.server[8]&0x3f | 0x80
	return l
}

// Subscribe has wake called whenever it may pay to look into one of the queues: once they are
// registered, after each commit with jobs for them, when a transaction that crossed the registration
// has ended, and when the connection is lost or back. Who looks after each call misses nothing that was
// committed before it. wake must not block.
func (l *Listener) Subscribe(queues []string, wake func()) *Subscription {
	s := &Subscription{listener: l, wake: wake}
	l.mu.Lock()
	defer l.mu.Unlock()
	heard := true
	for _, name := range queues {
		q := l.queues[name]
		if q == nil {
			q = &queue{name: name, subs: map[*Subscription]struct{}{}}
			l.queues[name] = q
		}
		if _, twice := q.subs[s]; !twice {
			q.subs[s] = struct{}{}
			s.queues = append(s.queues, q)
		}
		heard = heard && q.token != "" && !q.stale
	}
	if heard {
		// Registered for somebody else; what was committed just now woke only them.
		go wake()
	} else {
		l.nudge()
	}
	return s
}

// Heard reports whether a commit with jobs for any of the queues would be heard of.
func (s *Subscription) Heard() bool {
	l := s.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listening && !slices.ContainsFunc(s.queues, func(q *queue) bool { return q.token == "" || q.stale })
}

// Close ends the subscription. A wake under way may still arrive.
func (s *Subscription) Close() {
	l := s.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range s.queues {
		delete(q.subs, s)
		if len(q.subs) == 0 {
			q.idleSince = time.Now()
			l.nudge()
		}
	}
}

// nudge has the upkeep look at what is to be done.
func (l *Listener) nudge() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// waked collects who has to be told, each once, so that they are told without l.mu.
type waked map[*Subscription]struct{}

func (w waked) add(q *queue) {
	for s := range q.subs {
		w[s] = struct{}{}
	}
}

func (w waked) tell() {
	for s := range w {
		s.wake()
	}
}

// Run listens until ctx ends, through lost connections. It returns when all it started is done.
func (l *Listener) Run(ctx context.Context) {
	var upkeep sync.WaitGroup
	upkeep.Go(func() { l.keep(ctx) })
	defer upkeep.Wait()

	pause := reconnectMin
	for ctx.Err() == nil {
		started := time.Now()
		err := l.listen(ctx)
		l.deaf()
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
	config := l.db.listen.Copy()
	// Other servers tell by the name whether the session is still the one that they have seen (ojs.duty).
	config.RuntimeParams["application_name"] += " listens " + rand.Text()[:8]
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		_ = conn.Close(closing)
	}()
	// Not what the protocol told: a proxy makes that up.
	var backend int32
	if err := conn.QueryRow(ctx, announceDeath).Scan(&backend); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return err
	}
	l.others.connected(backend)
	defer l.others.connected(0)
	l.hearing()
	for {
		waiting, cancel := context.WithTimeout(ctx, probeEvery)
		notification, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			l.heard(notification.Payload)
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			probing, cancel := context.WithTimeout(ctx, upkeepLimit)
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

func (l *Listener) heard(token string) {
	l.others.heard(token)
	l.mu.Lock()
	wake := waked{}
	// Tokens of other servers arrive here too; so do ours from before the last withdrawal.
	if q := l.tokens[token]; q != nil {
		wake.add(q)
	}
	l.mu.Unlock()
	wake.tell()
}

// hearing begins a connection: what was committed before it was told to nobody, and registrations may
// have gone with the server that had them.
func (l *Listener) hearing() {
	l.mu.Lock()
	l.listening = true
	for _, q := range l.queues {
		q.stale = true
	}
	l.mu.Unlock()
	l.nudge()
	l.wakeAll()
}

func (l *Listener) deaf() {
	l.mu.Lock()
	l.listening = false
	l.mu.Unlock()
	l.wakeAll()
}

func (l *Listener) wakeAll() {
	l.mu.Lock()
	wake := waked{}
	for _, q := range l.queues {
		wake.add(q)
	}
	l.mu.Unlock()
	wake.tell()
}

// keep does everything about registrations, one thing after the other, so that a registration and
// the withdrawal of the one before cannot overtake each other.
func (l *Listener) keep(ctx context.Context) {
	// A statement under way at the end is not cut off: the server might still carry it out, after
	// the withdrawal.
	steady := context.WithoutCancel(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	trouble := time.Duration(0)
	var crossed time.Time
	for {
		select {
		case <-ctx.Done():
			l.withdraw(steady)
			return
		case <-l.kick:
			if trouble > 0 {
				continue // the timer says when to try again
			}
		case <-timer.C:
		}
		now := time.Now()
		add, drop, _ := l.due(now)
		var err error
		if len(drop) > 0 {
			err = l.drop(steady, drop)
		}
		if len(add) > 0 {
			err = errors.Join(err, l.register(steady, add))
			crossed = now
		}
		l.mu.Lock()
		crossing := l.crossing
		l.mu.Unlock()
		if err == nil && crossing > 0 && time.Since(crossed) >= crossing {
			err = l.look(steady)
			crossed = time.Now()
		}
		if err != nil {
			trouble = min(max(2*trouble, reconnectMin), reconnectMax)
			l.log.Warn("who waits for what could not be registered; waiters look by themselves meanwhile", "error", err)
			timer.Reset(trouble)
			continue
		}
		trouble = 0
		_, _, next := l.due(time.Now())
		l.mu.Lock()
		if l.crossing > 0 {
			next = min(next, time.Until(crossed.Add(l.crossing)))
		}
		l.mu.Unlock()
		timer.Reset(max(next, 0))
	}
}

// due says which queues are to be registered and which withdrawn now, and how long to wait until there are more.
func (l *Listener) due(now time.Time) (add, drop []string, next time.Duration) {
	next = time.Hour
	var soon []string
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queues {
		var in time.Duration
		switch {
		case len(q.subs) == 0:
			if in = q.idleSince.Add(l.dropAfter).Sub(now); in <= 0 {
				drop = append(drop, q.name)
			}
		case q.token == "" || q.stale:
			add = append(add, q.name)
		default:
			if in = q.renewedAt.Add(l.renewAfter).Sub(now); in <= 0 {
				add = append(add, q.name)
			} else if in <= l.renewAfter/2 {
				soon = append(soon, q.name)
			}
		}
		next = min(next, in)
	}
	if len(add) > 0 {
		// What is due soon is renewed with the rest, so that the queues come into step.
		add = append(add, soon...)
	}
	return add, drop, next
}

// register makes sure that commits of these queues notify us.
func (l *Listener) register(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, upkeepLimit)
	defer cancel()
	began := time.Now()
	l.mu.Lock()
	for _, name := range names {
		// A connection that comes back meanwhile wants it registered once more.
		if q := l.queues[name]; q != nil && q.stale {
			q.stale = false
			q.renewedAt = time.Time{}
		}
	}
	l.mu.Unlock()
	tokens, err := l.tokensOf(ctx, names)
	var open []uint64
	if err == nil {
		// After the registration is there to be seen: whoever is not under way now will see it, or can be seen.
		open, err = l.underWay(ctx)
	}
	l.mu.Lock()
	wake := waked{}
	for _, name := range names {
		q := l.queues[name]
		switch {
		case q == nil:
		case err != nil:
			q.stale = true
		default:
			if q.token != tokens[name] || began.Sub(q.renewedAt) > lapsedAfter {
				delete(l.tokens, q.token)
				q.token = tokens[name]
				l.tokens[q.token] = q
				q.open = open
				if len(open) > 0 {
					l.crossing = crossingFirst
				}
				wake.add(q)
			}
			q.renewedAt = began
		}
	}
	l.mu.Unlock()
	wake.tell()
	if len(wake) > 0 {
		for _, pause := range againAfter {
			time.AfterFunc(pause, wake.tell)
		}
	}
	return err
}

func (l *Listener) tokensOf(ctx context.Context, names []string) (map[string]string, error) {
	tokens := make(map[string]string, len(names))
	rows, err := l.db.pool.Query(Unchecked(ctx), "select queue, token from ojs.register_waiters($1, $2)", l.server, names)
	if err == nil {
		var name, token string
		_, err = pgx.ForEachRow(rows, []any{&name, &token}, func() error {
			tokens[name] = token
			return nil
		})
	}
	if err == nil && len(tokens) != len(names) {
		err = errors.New("an unexpected number of rows")
	}
	if err != nil {
		return nil, fmt.Errorf("register waiters: %w", err)
	}
	return tokens, nil
}

// underWay lists the transactions that have written something and not ended.
func (l *Listener) underWay(ctx context.Context) ([]uint64, error) {
	var snapshot string
	if err := l.db.pool.QueryRow(Unchecked(ctx), "select pg_current_snapshot()::text").Scan(&snapshot); err != nil {
		return nil, fmt.Errorf("look for transactions under way: %w", err)
	}
	parts := strings.Split(snapshot, ":") // xmin:xmax:xid,xid,...
	if len(parts) != 3 || parts[2] == "" {
		return nil, nil
	}
	var open []uint64
	for _, text := range strings.Split(parts[2], ",") {
		xid, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the snapshot %q: %w", snapshot, err)
		}
		open = append(open, xid)
	}
	return open, nil
}

// look asks whether a transaction that crossed a registration has ended. If it brought a job, it told
// nobody.
func (l *Listener) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upkeepLimit)
	defer cancel()
	now, err := l.underWay(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	wake := waked{}
	crossing := false
	for _, q := range l.queues {
		still := slices.DeleteFunc(slices.Clone(q.open), func(xid uint64) bool { return !slices.Contains(now, xid) })
		if len(still) < len(q.open) {
			wake.add(q)
		}
		q.open = still
		crossing = crossing || len(still) > 0
	}
	if crossing {
		l.crossing = min(3*l.crossing, crossingLast)
	} else {
		l.crossing = 0
	}
	l.mu.Unlock()
	wake.tell()
	return nil
}

// drop withdraws queues that nobody waits for any more.
func (l *Listener) drop(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, upkeepLimit)
	defer cancel()
	var registered []string
	l.mu.Lock()
	for _, name := range names {
		q := l.queues[name]
		if q == nil || len(q.subs) > 0 {
			continue
		}
		if q.token != "" {
			registered = append(registered, name)
			delete(l.tokens, q.token)
		}
		// A newcomer registers anew, after this.
		delete(l.queues, name)
	}
	l.mu.Unlock()
	if len(registered) == 0 {
		return nil
	}
	if _, err := l.db.pool.Exec(ctx, "select ojs.drop_waiter($1, q) from unnest($2::text[]) q", l.server, registered); err != nil {
		// It lapses by itself.
		l.log.Debug("registrations could not be withdrawn", "queues", registered, "error", err)
	}
	return nil
}

// withdraw spares producers notifications to a server that is gone; what it does not
// reach in time lapses by itself.
func (l *Listener) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	l.mu.Lock()
	var names []string
	for name, q := range l.queues {
		if q.token != "" {
			names = append(names, name)
		}
		q.token, q.stale = "", false
	}
	clear(l.tokens)
	l.mu.Unlock()
	if len(names) == 0 {
		return
	}
	if _, err := l.db.pool.Exec(ctx, "select ojs.drop_waiter($1, q) from unnest($2::text[]) q", l.server, names); err != nil {
		l.log.Debug("the registrations could not be withdrawn", "error", err)
	}
}
