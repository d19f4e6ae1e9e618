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

// ErrLine means that the caller has as many requests waiting as Bounds.Line allows.
var ErrLine = errors.New("too many of the caller's own are in line")

// Bounds are the limits of one caller.
type Bounds struct {
	Most int64 // units that the caller may hold at once; 0: all units
	Line int   // requests of the caller that may wait for a unit; 0: any number
}

// Gate hands out a number of units. A free unit goes to the waiting caller that holds the fewest,
// so that no caller can hold more than the others while they wait, however many requests it makes
// and however slow they are. Callers that hold equally many are served in the order in which they
// began to wait. A Gate has no goroutine: Leave serves the requests that wait.
type Gate struct {
	bounds func(caller string) Bounds // called without mu: it may look something up

	// mu guards everything below and the fields of callers. It is held for a few steps only, and
	// nothing else is locked meanwhile.
	mu      sync.Mutex
	free    int64
	callers map[string]*caller // callers that hold units or wait for one
	turns   list.List          // of *caller: those that wait and may hold more, in order of arrival
	spare   *caller            // the last one forgotten, for the next new caller: saves an allocation
}

// caller is the state of one caller, while it holds units or waits for one.
type caller struct {
	name string
	held int64         // units that it holds
	most int64         // Bounds.Most when it entered last
	line list.List     // of chan struct{}, one for each request that waits; closed when it has a unit
	turn *list.Element // its element of Gate.turns; nil: it does not wait, or is at its own bound
}

// NewGate makes a Gate with so many units. bounds is called whenever a caller asks for a unit; nil
// means no bounds.
func NewGate(units int64, bounds func(caller string) Bounds) *Gate {
	if bounds == nil {
		bounds = func(string) Bounds { return Bounds{} }
	}
	return &Gate{bounds: bounds, free: units, callers: map[string]*caller{}}
}

// Enter waits for a unit, which Leave gives back. It fails with ErrLine if too many requests of the
// caller wait already, or with the error of ctx if ctx ends first. After an error the caller holds no
// unit of this request.
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
		return nil // served at the same moment: the unit is taken, so the caller has to give it back
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

// Try takes units and returns true if so many are free and the caller may hold them. Otherwise it
// takes none. It does not wait.
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

// Leave gives back units that the caller holds, and hands free units to requests that wait.
func (g *Gate) Leave(name string, units int64) {
	if units == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.callers[name]
	c.held -= units
	g.free += units
	g.lineUp(c) // it may have waited at its own bound only
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

// Waiting returns the number of requests of all callers that wait for a unit.
func (g *Gate) Waiting() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.callers {
		n += c.line.Len()
	}
	return n
}

// caller returns the state of a caller, and makes it if the caller holds nothing and does not wait.
// forget has to be called if it takes and waits for nothing after all. The caller of this method
// and of all below holds Gate.mu.
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

// forget removes a caller that holds nothing and does not wait. Without it the names of all callers
// ever seen would stay in memory.
func (g *Gate) forget(c *caller) {
	if c.held == 0 && c.line.Len() == 0 {
		delete(g.callers, c.name)
		g.spare = c
	}
}

// fits reports whether a caller may take units now. It need not look for requests that wait: while a
// unit is free, only callers at their own bound have any.
func (g *Gate) fits(c *caller, units int64) bool { return units <= g.free && units <= c.most-c.held }

// take moves free units to a caller.
func (g *Gate) take(c *caller, units int64) {
	g.free -= units
	c.held += units
}

// lineUp adds a caller to turns if it waits and has not reached its own bound. A caller at its bound
// stays out, so that serve does not pass a unit to it.
func (g *Gate) lineUp(c *caller) {
	if c.turn == nil && c.line.Len() > 0 && c.held < c.most {
		c.turn = g.turns.PushBack(c)
	}
}

// serve gives a free unit to the oldest request of the waiting caller that holds the fewest units.
// turns must not be empty.
func (g *Gate) serve() {
	var next *caller
	// The search ends at a caller that holds nothing: none holds fewer.
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
