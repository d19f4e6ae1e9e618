// Package batch lets concurrent calls share a statement, and divides the statements fairly between
// tenants.
package batch

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// Options bound the statements of a Batcher and the items that wait for one.
type Options struct {
	Items      int           // in one statement
	Bytes      int           // of all items in one statement, unless a single item has more
	Statements int           // in flight at once
	Spacing    time.Duration // a second statement starts only when the first has been in flight for so long
	Timeout    time.Duration // of one statement
	Isolated   bool          // a statement has items of one caller only, and a caller has one statement in flight

	// Bounds of what waits to be sent: items, and bytes of items. A call that would exceed one of
	// them is refused with pg.ErrOverloaded, unless no item of the same caller waits. So a tenant
	// that sends more than the database takes does not get other tenants refused. Zero: 20,000 and
	// 64 MiB.
	WaitingItems int
	WaitingBytes int
}

const (
	defaultWaitingItems = 20_000
	defaultWaitingBytes = 64 << 20
)

// ErrNotSent says that an item was withdrawn before it was sent, because its caller left.
var ErrNotSent = errors.New("withdrawn before it was sent")

// Batcher puts the items of concurrent calls into few statements. An item that finds no statement
// in flight starts one; items that arrive meanwhile share the next statement. Items wait in one
// queue for each caller, such as a tenant, and a statement takes one item of each queue in turn, so
// that a tenant with a thousand items does not delay the items of other tenants.
//
// An item goes from its queue (accept) into a statement (takeShared or takeIsolated, then
// runOrSplit) and is done when its outcome stands in it. Goroutines: each runner sends one
// statement after the other until no item is ready; there are at most Options.Statements of them.
// mu guards all fields below it and all items, queues, calls and runners; it is not held while a
// statement runs.
type Batcher[T, R any] struct {
	run  func(ctx context.Context, items []T) ([]R, error)
	opts Options

	mu           sync.Mutex
	idle         sync.Cond // signalled when the last runner has ended; Wait waits for it
	queues       map[string]*callerQueue[T, R]
	ready        list.List // of *callerQueue: queues with items that may be sent, the next one in front
	runners      map[*runner]struct{}
	nextStart    *time.Timer // starts a further runner when Spacing is over; nil: no start is planned
	waitingItems int
	waitingBytes int
}

// runner is a goroutine that sends statements until no item is ready.
type runner struct {
	startedAt time.Time // when its statement in flight began; others keep Options.Spacing from it
}

// callerQueue holds the items of one caller that have not been sent. It exists while it has items
// or, with Options.Isolated, while a statement of the caller is in flight (forget).
type callerQueue[T, R any] struct {
	name  string
	items []*item[T, R]
	place *list.Element // in Batcher.ready; nil: it is not ready
	busy  bool          // with Options.Isolated: a statement of the caller is in flight
}

// item is one element of a call. out and err are set by the runner that has sent it, before it
// counts down call.left.
type item[T, R any] struct {
	call *call
	in   T
	size int
	out  R
	err  error
	sent bool
}

// call is one call of Do, which waits until all of its items are done.
type call struct {
	left int  // items that are not done; done is closed at 0
	gone bool // Do has returned: items that have not been sent are dropped when they are reached
	done chan struct{}
}

// New makes a Batcher. run sends the items in one transaction and returns one result for each; an
// error means that the statement has changed nothing.
func New[T, R any](opts Options, run func(ctx context.Context, items []T) ([]R, error)) *Batcher[T, R] {
	opts.WaitingItems = cmp.Or(opts.WaitingItems, defaultWaitingItems)
	opts.WaitingBytes = cmp.Or(opts.WaitingBytes, defaultWaitingBytes)
	b := &Batcher[T, R]{run: run, opts: opts, queues: map[string]*callerQueue[T, R]{}, runners: map[*runner]struct{}{}}
	b.idle.L = &b.mu
	return b
}

// Do returns when each item has its result or its error. If ctx ends first, items that have not
// been sent are withdrawn (ErrNotSent), and the outcome of items that have been sent is unknown.
// size returns an item's share of Options.Bytes.
func (b *Batcher[T, R]) Do(ctx context.Context, caller string, in []T, size func(*T) int) ([]R, []error) {
	c := &call{left: len(in), done: make(chan struct{})}
	items := make([]item[T, R], len(in))
	bytes := 0
	for i := range in {
		items[i] = item[T, R]{call: c, in: in[i], size: size(&in[i])}
		bytes += items[i].size
	}
	out, errs := make([]R, len(in)), make([]error, len(in))
	if !b.accept(caller, items, bytes) {
		for i := range errs {
			errs[i] = pg.ErrOverloaded
		}
		return out, errs
	}
	select {
	case <-c.done:
		for i := range items {
			out[i], errs[i] = items[i].out, items[i].err
		}
	case <-ctx.Done():
		b.abandon(ctx, c, items, out, errs)
	}
	return out, errs
}

// accept queues the items of a call. It returns false if too many items wait already and some of
// them belong to the same caller.
func (b *Batcher[T, R]) accept(name string, items []item[T, R], bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	full := b.waitingItems+len(items) > b.opts.WaitingItems || b.waitingBytes+bytes > b.opts.WaitingBytes
	if full && q != nil && len(q.items) > 0 {
		return false
	}
	b.waitingItems += len(items)
	b.waitingBytes += bytes
	if q == nil {
		q = &callerQueue[T, R]{name: name}
		b.queues[name] = q
	}
	for i := range items {
		q.items = append(q.items, &items[i])
	}
	b.makeReady(q)
	b.start()
	return true
}

// abandon marks a call as gone and collects the outcomes that are known by then.
func (b *Batcher[T, R]) abandon(ctx context.Context, c *call, items []item[T, R], out []R, errs []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.gone = true
	for i := range items {
		switch {
		case c.left == 0:
			out[i], errs[i] = items[i].out, items[i].err
		case items[i].sent:
			errs[i] = ctx.Err()
		default:
			errs[i] = errors.Join(ctx.Err(), ErrNotSent)
		}
	}
}

// Waiting returns the number of items that have not been sent.
func (b *Batcher[T, R]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waitingItems
}

// Wait returns when no statement is in flight and no start is planned.
func (b *Batcher[T, R]) Wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.runners) > 0 {
		b.idle.Wait()
	}
	if b.nextStart != nil {
		b.nextStart.Stop()
		b.nextStart = nil
	}
}

// makeReady puts a queue at the end of ready if it has items that may be sent and is not there yet.
func (b *Batcher[T, R]) makeReady(q *callerQueue[T, R]) {
	if q.place == nil && len(q.items) > 0 && !(b.opts.Isolated && q.busy) {
		q.place = b.ready.PushBack(q)
	}
}

// start begins a runner if there is an item to send and one more statement may be in flight.
func (b *Batcher[T, R]) start() {
	if b.ready.Len() == 0 || len(b.runners) >= b.opts.Statements {
		return
	}
	wait := b.spacingLeft(nil)
	if wait <= 0 {
		r := &runner{startedAt: time.Now()}
		b.runners[r] = struct{}{}
		go b.send(r)
		return
	}
	if b.nextStart == nil {
		b.nextStart = time.AfterFunc(wait, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.nextStart = nil
			b.start()
		})
	}
}

// spacingLeft returns the time until own may start a statement; own is nil for a runner that does
// not exist yet. Statements that start right after each other would divide items that could share
// one statement.
func (b *Batcher[T, R]) spacingLeft(own *runner) (wait time.Duration) {
	for r := range b.runners {
		if r != own {
			wait = max(wait, b.opts.Spacing-time.Since(r.startedAt))
		}
	}
	return wait
}

// send is the goroutine of a runner. It holds mu except while a statement runs.
func (b *Batcher[T, R]) send(own *runner) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.ready.Len() > 0 && b.spacingLeft(own) <= 0 {
		own.startedAt = time.Now()
		var items []*item[T, R]
		var busy *callerQueue[T, R]
		if b.opts.Isolated {
			items, busy = b.takeIsolated()
		} else {
			items = b.takeShared()
		}
		b.mu.Unlock()
		b.runOrSplit(items)
		b.mu.Lock()
		for _, i := range items {
			if i.call.left--; i.call.left == 0 {
				close(i.call.done)
			}
		}
		if busy != nil {
			busy.busy = false
			b.makeReady(busy)
			b.forget(busy)
		}
	}
	delete(b.runners, own)
	if len(b.runners) == 0 {
		b.idle.Broadcast()
	}
	b.start()
}

// takeShared takes one item of each ready queue in turn until the statement is full.
func (b *Batcher[T, R]) takeShared() (items []*item[T, R]) {
	size := 0
	for len(items) < b.opts.Items && b.ready.Len() > 0 {
		q := b.ready.Front().Value.(*callerQueue[T, R])
		if next := b.next(q); next != nil {
			if len(items) > 0 && size+next.size > b.opts.Bytes {
				break
			}
			size += next.size
			items = append(items, b.pop(q))
		}
		if len(q.items) > 0 {
			b.ready.MoveToBack(q.place)
		} else {
			b.ready.Remove(q.place)
			q.place = nil
			b.forget(q)
		}
	}
	return items
}

// takeIsolated takes the items of the next ready queue alone until the statement is full. The queue
// is busy until that statement has ended.
func (b *Batcher[T, R]) takeIsolated() (items []*item[T, R], q *callerQueue[T, R]) {
	q = b.ready.Remove(b.ready.Front()).(*callerQueue[T, R])
	q.place, q.busy = nil, true
	size := 0
	for len(items) < b.opts.Items {
		next := b.next(q)
		if next == nil || len(items) > 0 && size+next.size > b.opts.Bytes {
			break
		}
		size += next.size
		items = append(items, b.pop(q))
	}
	return items, q
}

// forget deletes an empty queue, so that callers who have left occupy no memory.
func (b *Batcher[T, R]) forget(q *callerQueue[T, R]) {
	if len(q.items) == 0 && q.place == nil && !q.busy {
		delete(b.queues, q.name)
	}
}

// next returns the first item of a queue whose call still waits, or nil. It drops the items of
// calls that have gone.
func (b *Batcher[T, R]) next(q *callerQueue[T, R]) *item[T, R] {
	for len(q.items) > 0 {
		if !q.items[0].call.gone {
			return q.items[0]
		}
		b.pop(q)
	}
	return nil
}

// pop takes the first item out of a queue.
func (b *Batcher[T, R]) pop(q *callerQueue[T, R]) *item[T, R] {
	first := q.items[0]
	q.items[0] = nil
	q.items = q.items[1:]
	b.waitingItems--
	b.waitingBytes -= first.size
	first.sent = !first.call.gone
	return first
}

// runOrSplit sends items in one statement and sets their outcomes. If the statement fails because
// of one item (pg.ItemFault), each half of the items is sent by itself, and so on, so that only the
// item at fault gets the error.
func (b *Batcher[T, R]) runOrSplit(items []*item[T, R]) {
	if len(items) == 0 {
		return
	}
	in := make([]T, len(items))
	for i := range items {
		in[i] = items[i].in
	}
	var out []R
	err := pg.WithRetry(b.opts.Timeout, func(ctx context.Context) (err error) {
		out, err = b.run(ctx, in)
		if err == nil && len(out) != len(in) {
			err = fmt.Errorf("%d results for %d items", len(out), len(in))
		}
		return err
	})
	switch {
	case err == nil:
		for i := range items {
			items[i].out = out[i]
		}
	case len(items) > 1 && pg.ItemFault(err):
		half := len(items) / 2
		b.runOrSplit(b.awaited(items[:half]))
		b.runOrSplit(b.awaited(items[half:]))
	default:
		for i := range items {
			items[i].err = err
		}
	}
}

// awaited returns the items whose calls still wait.
func (b *Batcher[T, R]) awaited(items []*item[T, R]) (some []*item[T, R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, i := range items {
		if !i.call.gone {
			some = append(some, i)
		}
	}
	return some
}
