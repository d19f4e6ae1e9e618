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
	Spacing    time.Duration // a statement starts beside another one only when that has been in flight for so long
	Timeout    time.Duration // of one statement
	Isolated   bool          // a statement has items of one line only, and a line has one statement in flight

	// Items, and bytes of items, that wait to be sent. A call that would exceed one of them is
	// refused with pg.ErrOverloaded, unless nothing of its own line waits: a tenant that sends more
	// than the database takes must not have the others refused. Zero: 20,000 and 64 MiB.
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
// in flight starts one; items that arrive meanwhile share the next one. Items wait in one queue
// (line) for each tenant. The queues take turns item by item, so that a tenant with a thousand
// items does not delay the others. mu guards everything below it; no statement runs under it.
type Batcher[T, R any] struct {
	run  func(ctx context.Context, items []T) ([]R, error)
	opts Options

	mu           sync.Mutex
	idle         sync.Cond // a runner has ended
	lines        map[string]*line[T, R]
	turns        list.List // of *line: those with items that may be sent, the next one in front
	runners      map[*runner]struct{}
	nextStart    *time.Timer // starts a runner beside others; nil: none is planned
	waitingItems int
	waitingBytes int
}

// runner is a goroutine that sends statements until no item is left. startedAt is when the
// statement in flight began.
type runner struct{ startedAt time.Time } // when the statement in flight began

type line[T, R any] struct {
	name  string
	items []*item[T, R]
	turn  *list.Element // in Batcher.turns
	busy  bool          // has a statement of its own in flight
}

type item[T, R any] struct {
	call *call
	in   T
	size int
	out  R
	err  error
	sent bool
}

// call is a caller that waits for all of its items.
type call struct {
	left int // items that are not done
	gone bool
	done chan struct{}
}

// New makes a Batcher. run sends the items in one transaction and returns one result for
// each; an error means that nothing was done.
func New[T, R any](opts Options, run func(ctx context.Context, items []T) ([]R, error)) *Batcher[T, R] {
	opts.WaitingItems = cmp.Or(opts.WaitingItems, defaultWaitingItems)
	opts.WaitingBytes = cmp.Or(opts.WaitingBytes, defaultWaitingBytes)
	b := &Batcher[T, R]{run: run, opts: opts, lines: map[string]*line[T, R]{}, runners: map[*runner]struct{}{}}
	b.idle.L = &b.mu
	return b
}

// Do returns when each item has its result or its error. If ctx ends first, items that have not
// been sent are withdrawn (ErrNotSent), and the outcome of items that have been sent is unknown.
// size returns an item's share of Options.Bytes.
func (b *Batcher[T, R]) Do(ctx context.Context, lineName string, in []T, size func(*T) int) ([]R, []error) {
	c := &call{left: len(in), done: make(chan struct{})}
	items := make([]item[T, R], len(in))
	bytes := 0
	for i := range in {
		items[i] = item[T, R]{call: c, in: in[i], size: size(&in[i])}
		bytes += items[i].size
	}
	out, errs := make([]R, len(in)), make([]error, len(in))
	if !b.accept(lineName, items, bytes) {
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
// them belong to the same tenant.
func (b *Batcher[T, R]) accept(name string, items []item[T, R], bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lines[name]
	full := b.waitingItems+len(items) > b.opts.WaitingItems || b.waitingBytes+bytes > b.opts.WaitingBytes
	if full && l != nil && len(l.items) > 0 {
		return false
	}
	b.waitingItems += len(items)
	b.waitingBytes += bytes
	if l == nil {
		l = &line[T, R]{name: name}
		b.lines[name] = l
	}
	for i := range items {
		l.items = append(l.items, &items[i])
	}
	b.queue(l)
	b.start()
	return true
}

// abandon collects what is known of a call whose caller leaves.
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

// queue lets a tenant's line take part in the turns if it has items that may be sent.
func (b *Batcher[T, R]) queue(l *line[T, R]) {
	if l.turn == nil && len(l.items) > 0 && !(b.opts.Isolated && l.busy) {
		l.turn = b.turns.PushBack(l)
	}
}

// start begins a runner if there is an item to send and one more statement may be in flight.
func (b *Batcher[T, R]) start() {
	if b.turns.Len() == 0 || len(b.runners) >= b.opts.Statements {
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

// spacingLeft returns the time until another runner may start a statement. Statements that start at
// once after each other would divide items that could share one.
func (b *Batcher[T, R]) spacingLeft(own *runner) (wait time.Duration) {
	for r := range b.runners {
		if r != own {
			wait = max(wait, b.opts.Spacing-time.Since(r.startedAt))
		}
	}
	return wait
}

func (b *Batcher[T, R]) send(own *runner) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.turns.Len() > 0 && b.spacingLeft(own) <= 0 {
		own.startedAt = time.Now()
		var items []*item[T, R]
		var busy *line[T, R]
		if b.opts.Isolated {
			items, busy = b.takeLine()
		} else {
			items = b.takeTurns()
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
			b.queue(busy)
			b.forget(busy)
		}
	}
	delete(b.runners, own)
	if len(b.runners) == 0 {
		b.idle.Broadcast()
	}
	b.start()
}

// takeTurns takes one item from each line in turn until the statement is full.
func (b *Batcher[T, R]) takeTurns() (items []*item[T, R]) {
	size := 0
	for len(items) < b.opts.Items && b.turns.Len() > 0 {
		l := b.turns.Front().Value.(*line[T, R])
		if next := b.next(l); next != nil {
			if len(items) > 0 && size+next.size > b.opts.Bytes {
				break
			}
			size += next.size
			items = append(items, b.pop(l))
		}
		if len(l.items) > 0 {
			b.turns.MoveToBack(l.turn)
		} else {
			b.turns.Remove(l.turn)
			l.turn = nil
			b.forget(l)
		}
	}
	return items
}

// takeLine takes the items for one statement from the next line alone, which is busy from then on.
func (b *Batcher[T, R]) takeLine() (items []*item[T, R], l *line[T, R]) {
	l = b.turns.Remove(b.turns.Front()).(*line[T, R])
	l.turn, l.busy = nil, true
	size := 0
	for len(items) < b.opts.Items {
		next := b.next(l)
		if next == nil || len(items) > 0 && size+next.size > b.opts.Bytes {
			break
		}
		size += next.size
		items = append(items, b.pop(l))
	}
	return items, l
}

func (b *Batcher[T, R]) forget(l *line[T, R]) {
	if len(l.items) == 0 && l.turn == nil && !l.busy {
		delete(b.lines, l.name)
	}
}

// next returns the line's first item whose caller still waits, or nil.
func (b *Batcher[T, R]) next(l *line[T, R]) *item[T, R] {
	for len(l.items) > 0 {
		if !l.items[0].call.gone {
			return l.items[0]
		}
		b.pop(l)
	}
	return nil
}

func (b *Batcher[T, R]) pop(l *line[T, R]) *item[T, R] {
	first := l.items[0]
	l.items[0] = nil
	l.items = l.items[1:]
	b.waitingItems--
	b.waitingBytes -= first.size
	first.sent = !first.call.gone
	return first
}

// runOrSplit sends items in one statement. If it fails because of one of the items, each half is
// sent by itself, and so on, so that only the item at fault gets the error.
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

// awaited returns the items whose callers still wait.
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
