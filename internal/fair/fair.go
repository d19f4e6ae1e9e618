// Package fair shares a server's connections, memory and request slots fairly between callers. It
// knows callers by name only, and nothing of tenants or HTTP. internal/pg and internal/http have a
// Gate for each resource.
package fair

import (
	"container/list"
	"context"
	"errors"
	"math"
	"sync"
)

// ErrLine means that as many requests of the caller wait as may.
var ErrLine = errors.New("too many of the caller's own are in line")

// Bounds are the limits of one caller.
type Bounds struct {
	Most int64 // units that it may hold at once; 0: all there are
	Line int   // of its own that may wait for a unit; 0: any number
}

// Gate hands out a number of units. A free unit goes to the waiting caller that holds the fewest,
// so that no caller can hold more than the others while they wait, however many requests it makes
// and however slow they are. Equal callers take turns.
type Gate struct {
	bounds func(caller string) Bounds

	mu      sync.Mutex
	free    int64
	callers map[string]*caller // that hold something or wait
	turns   list.List          // of *caller: those in line that may hold more, who came first in front
	spare   *caller
}

type caller struct {
	name string
	held int64
	most int64
	line list.List     // of chan struct{}, each closed when it has a unit
	turn *list.Element // in turns
}

// NewGate makes a Gate with so many units. bounds is called whenever a caller enters; nil means no
// bounds.
func NewGate(units int64, bounds func(caller string) Bounds) *Gate {
	if bounds == nil {
		bounds = func(string) Bounds { return Bounds{} }
	}
	return &Gate{bounds: bounds, free: units, callers: map[string]*caller{}}
}

// Enter waits for a unit, which Leave gives back. The error is ErrLine, or that of ctx if it ends
// first.
func (g *Gate) Enter(ctx context.Context, name string) error {
	bounds := g.bounds(name)
	g.mu.Lock()
	c := g.caller(name, bounds)
	if g.fits(c, 1) {
		g.take(c, 1)
		g.mu.Unlock()
		return nil
	}
	if bounds.Line > 0 && c.line.Len() >= bounds.Line {
		g.mu.Unlock()
		return ErrLine
	}
	in := make(chan struct{})
	place := c.line.PushBack(in)
	g.lineUp(c)
	g.mu.Unlock()
	select {
	case <-in:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-in:
		return nil // at the same moment
	default:
	}
	c.line.Remove(place)
	if c.line.Len() == 0 && c.turn != nil {
		g.turns.Remove(c.turn)
		c.turn = nil
	}
	g.forget(c)
	return ctx.Err()
}

// Try takes units if they are free at once.
func (g *Gate) Try(name string, units int64) bool {
	bounds := g.bounds(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.caller(name, bounds)
	if !g.fits(c, units) {
		g.forget(c)
		return false
	}
	g.take(c, units)
	return true
}

// Leave gives units back.
func (g *Gate) Leave(name string, units int64) {
	if units == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.callers[name]
	c.held -= units
	g.free += units
	g.lineUp(c)
	for g.free > 0 && g.turns.Len() > 0 {
		g.serve()
	}
	g.forget(c)
}

// Held returns how many units a caller holds.
func (g *Gate) Held(name string) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.callers[name]; c != nil {
		return c.held
	}
	return 0
}

// Waiting returns how many requests wait, of all callers.
func (g *Gate) Waiting() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.callers {
		n += c.line.Len()
	}
	return n
}

// caller remembers one by name while it holds something or waits.
func (g *Gate) caller(name string, bounds Bounds) *caller {
	c := g.callers[name]
	if c == nil {
		if c, g.spare = g.spare, nil; c == nil {
			c = &caller{}
		}
		c.name = name
		g.callers[name] = c
	}
	if c.most = bounds.Most; c.most == 0 {
		c.most = math.MaxInt64
	}
	return c
}

func (g *Gate) forget(c *caller) {
	if c.held == 0 && c.line.Len() == 0 {
		delete(g.callers, c.name)
		g.spare = c
	}
}

// fits reports whether a caller may take units now. While a unit is free, no caller waits for it.
func (g *Gate) fits(c *caller, units int64) bool { return units <= g.free && units <= c.most-c.held }

func (g *Gate) take(c *caller, units int64) {
	g.free -= units
	c.held += units
}

// lineUp lets a caller take part in the turns if it waits for units of others and has not reached
// its own bound.
func (g *Gate) lineUp(c *caller) {
	if c.turn == nil && c.line.Len() > 0 && c.held < c.most {
		c.turn = g.turns.PushBack(c)
	}
}

// serve gives a free unit to the waiting caller that holds the fewest.
func (g *Gate) serve() {
	var next *caller
	for e := g.turns.Front(); e != nil && (next == nil || next.held > 0); e = e.Next() {
		if c := e.Value.(*caller); next == nil || c.held < next.held {
			next = c
		}
	}
	g.take(next, 1)
	close(next.line.Remove(next.line.Front()).(chan struct{}))
	g.turns.Remove(next.turn)
	next.turn = nil
	g.lineUp(next)
}
