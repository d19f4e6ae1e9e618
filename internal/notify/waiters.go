package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	renewAfter      = 20 * time.Second // a registration lapses after 60 s
	lapsedAfter     = 50 * time.Second
	withdrawAfter   = time.Second
	registerTimeout = 5 * time.Second
	farewellTimeout = 2 * time.Second // to withdraw all registrations when the server stops
	crossingFirst   = 5 * time.Millisecond
	crossingLast    = 5 * time.Second
)

// recheckAfter holds the times after a registration at which subscribers poll again. A
// repeatable-read transaction may have begun before the registration and write after it. It does
// not see the registration, so it does not notify, and it is not in the list of open transactions
// either. These polls find its jobs, unless it takes longer.
var recheckAfter = [...]time.Duration{50 * time.Millisecond, 500 * time.Millisecond}

// queue is a queue that at least one request waits for, or waited for within the last second
// (withdrawAfter). It has one row in ojs.waiter, however many requests wait. Listener.mu guards it.
type queue struct {
	name      string
	subs      map[*Subscription]struct{}
	token     string // empty: not registered
	stale     bool   // commits may not have notified since it was registered
	renewedAt time.Time
	idleSince time.Time
	// open are the transactions that were open when the registration committed. Their statements
	// may not have seen it, so their commits may not notify this server; recheckCrossing looks when
	// they end.
	open []uint64
}

func (q *queue) registered() bool { return q.token != "" && !q.stale }

// Subscription is the interest of one subscriber in some queues.
type Subscription struct {
	listener *Listener
	queues   []*queue
	wake     func()
}

// Subscribe calls wake whenever a poll of one of the queues may find a job: once they are
// registered, after each commit with jobs for them, when a transaction that crossed the
// registration has ended, and when the connection is lost or back. A poll after each call misses
// nothing that was committed before it. registered says that all queues had been registered before,
// for other subscriptions: a commit at this moment woke only those, so the caller has to poll once.
// wake must not block; it is called without locks of the Listener.
func (l *Listener) Subscribe(queues []string, wake func()) (s *Subscription, registered bool) {
	s = &Subscription{listener: l, wake: wake}
	l.mu.Lock()
	defer l.mu.Unlock()
	registered = true
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
		registered = registered && q.registered()
	}
	if !registered {
		l.change()
	}
	return s, registered
}

// Notified reports whether a commit with jobs for any of the queues would call wake.
func (s *Subscription) Notified() bool {
	l := s.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listening && !l.full && !slices.ContainsFunc(s.queues, func(q *queue) bool { return !q.registered() })
}

// Close ends the subscription. A call of wake under way may still arrive.
func (s *Subscription) Close() {
	l := s.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range s.queues {
		delete(q.subs, s)
		if len(q.subs) == 0 {
			q.idleSince = time.Now()
			l.change()
		}
	}
}

// change wakes maintain.
func (l *Listener) change() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// wakeSet collects the subscriptions to wake, each once, so that they can be called without
// Listener.mu.
type wakeSet map[*Subscription]struct{}

func (w wakeSet) add(q *queue) {
	for s := range q.subs {
		w[s] = struct{}{}
	}
}

// wake calls all of them, also if one panics.
func (w wakeSet) wake() {
	for s := range w {
		err := guard.Call(func() error {
			s.wake()
			return nil
		})
		if err != nil {
			s.listener.log.Error("a subscriber panicked when it was woken", "error", err)
		}
	}
}

// registrar is the state of maintain between its steps. Only maintain uses it, so it needs no lock.
type registrar struct {
	*Listener
	lookedAt time.Time // when transactions that cross a registration were looked at last
	rechecks []recheck // in order
}

// recheck is a later poll for the subscriptions that existed when a queue was registered.
type recheck struct {
	at    time.Time
	wakes wakeSet
}

// maintain makes, renews and withdraws all registrations, on one goroutine and one step after the
// other, so that a registration and the withdrawal before it cannot overtake each other.
func (l *Listener) maintain(ctx context.Context) {
	// A statement in flight at the end is not broken off: PostgreSQL might carry it out after the
	// withdrawal, and the registration would stay.
	steady := context.WithoutCancel(ctx)
	r := &registrar{Listener: l}
	timer := time.NewTimer(0)
	defer timer.Stop()
	backoff := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			l.withdrawAll(steady)
			return
		case <-l.changed:
			if backoff > 0 {
				continue // the timer says when to try again
			}
		case <-timer.C:
		}
		next, err := r.step(steady)
		if err != nil {
			backoff = min(max(2*backoff, reconnectFirst), reconnectMax)
			l.log.Warn("waiting requests could not be registered; they poll meanwhile", "error", err)
			timer.Reset(backoff)
			continue
		}
		backoff = 0
		timer.Reset(next)
	}
}

// step makes and withdraws the registrations that are due, and returns the time until the next
// step.
func (r *registrar) step(ctx context.Context) (next time.Duration, err error) {
	add, drop, _ := r.pending(time.Now())
	if len(drop) > 0 {
		r.withdraw(ctx, drop)
	}
	if len(add) > 0 {
		var wakes wakeSet
		wakes, err = r.register(ctx, add)
		r.lookedAt = time.Now()
		if len(wakes) > 0 {
			for _, pause := range recheckAfter {
				r.rechecks = append(r.rechecks, recheck{r.lookedAt.Add(pause), wakes})
			}
			slices.SortFunc(r.rechecks, func(a, b recheck) int { return a.at.Compare(b.at) })
		}
	}
	for len(r.rechecks) > 0 && time.Until(r.rechecks[0].at) <= 0 {
		r.rechecks[0].wakes.wake()
		r.rechecks = r.rechecks[1:]
	}
	if crossing := r.crossingIn(); err == nil && crossing > 0 && time.Since(r.lookedAt) >= crossing {
		err = r.recheckCrossing(ctx)
		r.lookedAt = time.Now()
	}
	if err != nil {
		return 0, err
	}
	_, _, next = r.pending(time.Now())
	if crossing := r.crossingIn(); crossing > 0 {
		next = min(next, time.Until(r.lookedAt.Add(crossing)))
	}
	if len(r.rechecks) > 0 {
		next = min(next, time.Until(r.rechecks[0].at))
	}
	return max(next, 0), nil
}

func (l *Listener) crossingIn() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.crossing
}

// pending returns the queues to register and those to withdraw now, and how long to wait until
// there are more.
func (l *Listener) pending(now time.Time) (add, drop []string, next time.Duration) {
	next = time.Hour
	var soon []string
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queues {
		var in time.Duration
		switch {
		case len(q.subs) == 0:
			if in = q.idleSince.Add(l.withdrawAfter).Sub(now); in <= 0 {
				drop = append(drop, q.name)
			}
		case !q.registered():
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
		// Queues that are due soon are renewed in the same statement, so that all renewals fall
		// together.
		add = append(add, soon...)
	}
	return add, drop, next
}

// register inserts or renews the rows of ojs.waiter that make commits of these queues notify this
// server. It wakes the subscriptions to queues that were not registered before, and returns them.
func (l *Listener) register(ctx context.Context, names []string) (wakeSet, error) {
	ctx, cancel := context.WithTimeout(pg.Unchecked(ctx), registerTimeout)
	defer cancel()
	began := time.Now()
	l.mu.Lock()
	for _, name := range names {
		// Cleared before the statement: if the connection is lost and comes back meanwhile,
		// connected sets it again, and the queue is registered once more.
		if q := l.queues[name]; q != nil && q.stale {
			q.stale = false
			q.renewedAt = time.Time{}
		}
	}
	l.mu.Unlock()
	tokens, err := l.tokensOf(ctx, names)
	var open []uint64
	var full bool
	if err == nil {
		// Asked after the registration has committed: a transaction that begins later sees the
		// registration, and an earlier one that is still open is in the list.
		open, full, err = l.openTransactions(ctx)
	}
	l.mu.Lock()
	wakes := wakeSet{}
	changed := err == nil && l.noteFull(full, wakes)
	for _, name := range names {
		q := l.queues[name]
		switch {
		case q == nil:
		case err != nil:
			q.stale = true
		default:
			if q.token != tokens[name] || began.Sub(q.renewedAt) > lapsedAfter {
				delete(l.byToken, q.token)
				q.token = tokens[name]
				l.byToken[q.token] = q
				q.open = open
				if len(open) > 0 {
					l.crossing = crossingFirst
				}
				wakes.add(q)
			}
			q.renewedAt = began
		}
	}
	l.mu.Unlock()
	if changed {
		l.sayFull(full)
	}
	wakes.wake()
	return wakes, err
}

func (l *Listener) tokensOf(ctx context.Context, names []string) (map[string]string, error) {
	rows, err := l.q.RegisterWaiters(ctx, sqlcgen.RegisterWaitersParams{Server: l.server.String(), Queues: names})
	if err == nil && len(rows) != len(names) {
		err = fmt.Errorf("%d rows for %d queues", len(rows), len(names))
	}
	if err != nil {
		return nil, fmt.Errorf("register waiters: %w", err)
	}
	tokens := make(map[string]string, len(names))
	for _, row := range rows {
		tokens[row.Queue] = row.Token
	}
	return tokens, nil
}

// noteFull notes whether commits notify no server because PostgreSQL's NOTIFY queue is too full. When
// that changes it adds all subscriptions to wakes, so that they poll for jobs whose commits notified
// no server, and set the timer of their next poll anew. It returns whether that has changed, for
// sayFull. The caller holds mu.
func (l *Listener) noteFull(full bool, wakes wakeSet) (changed bool) {
	if l.full == full {
		return false
	}
	l.full = full
	for _, q := range l.queues {
		wakes.add(q)
	}
	return true
}

// sayFull logs what noteFull has noted. The caller does not hold mu.
func (l *Listener) sayFull(full bool) {
	if full {
		l.log.Warn("PostgreSQL's NOTIFY queue is more than half full, so commits notify no server; waiting requests poll meanwhile. " +
			"docs/runbooks/locks-or-notify-full.md")
	} else {
		l.log.Warn("PostgreSQL's NOTIFY queue has room again; commits notify servers")
	}
}

// openTransactions returns the transactions that have written something and not ended, and whether
// PostgreSQL's NOTIFY queue is too full for commits to notify servers.
func (l *Listener) openTransactions(ctx context.Context) (open []uint64, full bool, err error) {
	now, err := l.q.CurrentSnapshot(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("look for transactions under way: %w", err)
	}
	parts := strings.Split(now.Snapshot, ":") // xmin:xmax:xid,xid,...
	if len(parts) != 3 || parts[2] == "" {
		return nil, now.NotifyFull, nil
	}
	for _, text := range strings.Split(parts[2], ",") {
		xid, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, false, fmt.Errorf("read the snapshot %q: %w", now.Snapshot, err)
		}
		open = append(open, xid)
	}
	return open, now.NotifyFull, nil
}

// recheckCrossing looks whether a transaction that was open at a registration has ended. It may
// have brought a job without notifying this server, so the subscriptions are woken.
func (l *Listener) recheckCrossing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(pg.Unchecked(ctx), registerTimeout)
	defer cancel()
	now, full, err := l.openTransactions(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	wakes := wakeSet{}
	changed := l.noteFull(full, wakes)
	crossing := false
	for _, q := range l.queues {
		still := slices.DeleteFunc(slices.Clone(q.open), func(xid uint64) bool { return !slices.Contains(now, xid) })
		if len(still) < len(q.open) {
			wakes.add(q)
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
	if changed {
		l.sayFull(full)
	}
	wakes.wake()
	return nil
}

// withdraw ends the registration of queues that no request waits for any more.
func (l *Listener) withdraw(ctx context.Context, names []string) {
	var registered []string
	l.mu.Lock()
	for _, name := range names {
		q := l.queues[name]
		if q == nil || len(q.subs) > 0 {
			continue
		}
		if q.token != "" {
			registered = append(registered, name)
			delete(l.byToken, q.token)
		}
		// A new subscription makes a queue of its own and registers it, after this step.
		delete(l.queues, name)
	}
	l.mu.Unlock()
	l.dropWaiters(ctx, registered, registerTimeout)
}

// withdrawAll ends all registrations of a server that stops, so that producers no longer notify it.
func (l *Listener) withdrawAll(ctx context.Context) {
	l.mu.Lock()
	var registered []string
	for name, q := range l.queues {
		if q.token != "" {
			registered = append(registered, name)
		}
		q.token, q.stale = "", false
	}
	clear(l.byToken)
	l.mu.Unlock()
	l.dropWaiters(ctx, registered, farewellTimeout)
}

// dropWaiters deletes registrations. If it fails it is not tried again, because a registration
// lapses by itself after 60 s.
func (l *Listener) dropWaiters(ctx context.Context, queues []string, timeout time.Duration) {
	if len(queues) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := l.q.DropWaiters(ctx, sqlcgen.DropWaitersParams{Server: l.server.String(), Queues: queues})
	if err != nil && !errors.Is(err, context.Canceled) {
		l.log.Debug("registrations could not be withdrawn", "queues", queues, "error", err)
	}
}
