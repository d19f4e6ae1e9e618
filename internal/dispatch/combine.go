package dispatch

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// combiner puts the items of concurrent calls into few statements. An item that finds no statement under way
// starts one; those that arrive meanwhile go together in the next. Lines (tenants) take turns,
// item by item, so that one who sends a thousand does not push the others back.
type combiner[T, R any] struct {
	// run does the items in one transaction and returns one result for each. An error means that none was done.
	run   func(ctx context.Context, items []T) ([]R, error)
	most  int // items in one statement
	bytes int // of all items in one statement, unless a single one has more

	flights int           // statements under way at once
	spacing time.Duration // one takes off beside another only when that has been under way for so long
	limit   time.Duration // for one statement
	apart   bool          // a statement has items of one line only, and a line has one statement under way

	mu     sync.Mutex
	idle   *sync.Cond
	lines  map[string]*line[T, R]
	turns  list.List // of *line: those with items that may go, the next in front
	flying map[*flight]struct{}
	armed  bool // a take-off is planned
}

// flight is a statement under way, and then the next.
type flight struct{ tookOff time.Time }

type line[T, R any] struct {
	name  string
	items []*item[T, R]
	turn  *list.Element
	busy  bool
}

type item[T, R any] struct {
	call   *call
	in     T
	size   int
	out    R
	err    error
	flying bool
}

// call is a caller who waits for all of its items.
type call struct {
	left int
	gone bool
	done chan struct{}
}

var errWithdrawn = errors.New("withdrawn before it was sent")

// do returns when every item is done, each with its result or its error. When ctx ends first, what has not been
// sent will not be; of what has been sent, the outcome is unknown.
func (c *combiner[T, R]) do(ctx context.Context, name string, in []T, size func(*T) int) ([]R, []error) {
	w := &call{left: len(in), done: make(chan struct{})}
	items := make([]*item[T, R], len(in))
	block := make([]item[T, R], len(in))
	for i := range in {
		block[i] = item[T, R]{call: w, in: in[i], size: size(&in[i])}
		items[i] = &block[i]
	}
	c.mu.Lock()
	l := c.lines[name]
	if l == nil {
		if c.lines == nil {
			c.lines = map[string]*line[T, R]{}
		}
		l = &line[T, R]{name: name}
		c.lines[name] = l
	}
	l.items = append(l.items, items...)
	c.queue(l)
	c.start()
	c.mu.Unlock()

	out, errs := make([]R, len(in)), make([]error, len(in))
	select {
	case <-w.done:
		for i := range block {
			out[i], errs[i] = block[i].out, block[i].err
		}
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		w.gone = true
		finished := w.left == 0
		for i := range block {
			switch {
			case finished:
				out[i], errs[i] = block[i].out, block[i].err
			case block[i].flying:
				errs[i] = ctx.Err()
			default:
				errs[i] = errors.Join(ctx.Err(), errWithdrawn)
			}
		}
	}
	return out, errs
}

// wait returns when no statement is under way.
func (c *combiner[T, R]) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle == nil {
		c.idle = sync.NewCond(&c.mu)
	}
	for len(c.flying) > 0 {
		c.idle.Wait()
	}
}

func (c *combiner[T, R]) queue(l *line[T, R]) {
	if l.turn == nil && len(l.items) > 0 && !(c.apart && l.busy) {
		l.turn = c.turns.PushBack(l)
	}
}

// start begins a flight if there is something to do and room for it.
func (c *combiner[T, R]) start() {
	if c.turns.Len() == 0 || len(c.flying) >= c.flights {
		return
	}
	if wait := c.crowded(nil); wait > 0 {
		if c.armed {
			return
		}
		c.armed = true
		time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.armed = false
			c.start()
		})
		return
	}
	f := &flight{tookOff: time.Now()}
	if c.flying == nil {
		c.flying = map[*flight]struct{}{}
	}
	c.flying[f] = struct{}{}
	go c.fly(f)
}

// crowded is how long it takes until a flight may take off beside the others. One that others would follow at once
// divides what could go together.
func (c *combiner[T, R]) crowded(own *flight) (wait time.Duration) {
	for f := range c.flying {
		if f != own {
			wait = max(wait, c.spacing-time.Since(f.tookOff))
		}
	}
	return wait
}

func (c *combiner[T, R]) fly(own *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.turns.Len() > 0 && c.crowded(own) <= 0 {
		own.tookOff = time.Now()
		var items []*item[T, R]
		var resting *line[T, R]
		if c.apart {
			items, resting = c.takeLine()
		} else {
			items = c.takeTurns()
		}
		c.mu.Unlock()
		c.solve(items)
		c.mu.Lock()
		for _, i := range items {
			if i.call.left--; i.call.left == 0 {
				close(i.call.done)
			}
		}
		if resting != nil {
			resting.busy = false
			c.queue(resting)
			c.forget(resting)
		}
	}
	delete(c.flying, own)
	if len(c.flying) == 0 && c.idle != nil {
		c.idle.Broadcast()
	}
	c.start()
}

// takeTurns takes one item of each line in turn.
func (c *combiner[T, R]) takeTurns() (items []*item[T, R]) {
	size := 0
	for len(items) < c.most && c.turns.Len() > 0 {
		l := c.turns.Front().Value.(*line[T, R])
		if next := l.next(); next != nil {
			if len(items) > 0 && size+next.size > c.bytes {
				break
			}
			size += next.size
			items = append(items, l.pop())
		}
		if len(l.items) > 0 {
			c.turns.MoveToBack(l.turn)
		} else {
			c.turns.Remove(l.turn)
			l.turn = nil
			c.forget(l)
		}
	}
	return items
}

// takeLine takes what goes together of the line whose turn it is, and has the line rest.
func (c *combiner[T, R]) takeLine() (items []*item[T, R], l *line[T, R]) {
	l = c.turns.Remove(c.turns.Front()).(*line[T, R])
	l.turn, l.busy = nil, true
	size := 0
	for len(items) < c.most {
		next := l.next()
		if next == nil || len(items) > 0 && size+next.size > c.bytes {
			break
		}
		size += next.size
		items = append(items, l.pop())
	}
	return items, l
}

func (c *combiner[T, R]) forget(l *line[T, R]) {
	if len(l.items) == 0 && l.turn == nil && !l.busy {
		delete(c.lines, l.name)
	}
}

// next is the first item somebody still waits for; nil if there is none.
func (l *line[T, R]) next() *item[T, R] {
	for len(l.items) > 0 {
		if !l.items[0].call.gone {
			return l.items[0]
		}
		l.pop()
	}
	return nil
}

func (l *line[T, R]) pop() *item[T, R] {
	first := l.items[0]
	l.items[0] = nil
	l.items = l.items[1:]
	first.flying = !first.call.gone
	return first
}

// solve does items together. If that fails because of what one of them is, halves are tried, so that the
// bad one alone gets the error.
func (c *combiner[T, R]) solve(items []*item[T, R]) {
	if len(items) == 0 {
		return
	}
	in := make([]T, len(items))
	for i := range items {
		in[i] = items[i].in
	}
	var out []R
	err := safely(c.limit, func(ctx context.Context) (err error) {
		out, err = c.run(ctx, in)
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
	case len(items) > 1 && oneOfThem(err):
		half := len(items) / 2
		c.solve(c.wanted(items[:half]))
		c.solve(c.wanted(items[half:]))
	default:
		for i := range items {
			items[i].err = err
		}
	}
}

// wanted are the items somebody still waits for.
func (c *combiner[T, R]) wanted(items []*item[T, R]) (some []*item[T, R]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range items {
		if !i.call.gone {
			some = append(some, i)
		}
	}
	return some
}

// safely runs a statement, and up to twice more if it certainly did nothing and may well succeed now.
func safely(limit time.Duration, run func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := run(ctx)
		cancel()
		if err == nil || attempt == 2 || !nothingDone(err) {
			return err
		}
	}
}

// nothingDone: the statement never left, or was prepared for another schema, or the transaction lost against another one and was rolled back.
func nothingDone(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code == "40001" || pgErr.Code == "40P01" || pg.Outdated(err)
	}
	return pgconn.SafeToRetry(err) && !errors.Is(err, context.DeadlineExceeded)
}

// oneOfThem: an error that Postgres answered with and that a single item may have caused. Not: it is not
// there, it stops, it lacks something, the statement took too long. Nor a lock in the way: to look for whose it is would be to wait for it over and over.
func oneOfThem(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code[:2] {
	case "08", "25", "28", "53", "55", "57", "58", "XX":
		return false
	}
	return true
}
