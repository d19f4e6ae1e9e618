package pg

import (
	"context"
	"slices"
	"sync"
)

// gate lets a few in at once. Tenants that wait take turns, so that one that sends a thousand requests does not push the others back.
type gate struct {
	mu      sync.Mutex
	free    int
	waiting map[string][]chan struct{} // of each tenant that waits; closed when it is let in
	next    []string                   // the tenants that wait, in turn
}

// enter waits for its turn and reports true, or false when ctx ends first. Every enter that reported true is followed by leave.
func (g *gate) enter(ctx context.Context, tenant string) bool {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return true
	}
	in := make(chan struct{})
	if g.waiting == nil {
		g.waiting = map[string][]chan struct{}{}
	}
	if len(g.waiting[tenant]) == 0 {
		g.next = append(g.next, tenant)
	}
	g.waiting[tenant] = append(g.waiting[tenant], in)
	g.mu.Unlock()
	select {
	case <-in:
		return true
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-in:
		return true // at the same moment
	default:
	}
	callers := g.waiting[tenant]
	at := slices.Index(callers, in)
	g.waiting[tenant] = slices.Delete(callers, at, at+1)
	if len(callers) == 1 {
		delete(g.waiting, tenant)
		at = slices.Index(g.next, tenant)
		g.next = slices.Delete(g.next, at, at+1)
	}
	return false
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.next) == 0 {
		g.free++
		return
	}
	tenant := g.next[0]
	g.next = g.next[1:]
	callers := g.waiting[tenant]
	close(callers[0])
	if len(callers) > 1 {
		g.waiting[tenant] = callers[1:]
		g.next = append(g.next, tenant)
	} else {
		delete(g.waiting, tenant)
	}
}
