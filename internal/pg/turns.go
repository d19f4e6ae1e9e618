package pg

import (
	"context"
	"slices"
	"sync"
)

// turns lets a few in at once. Tenants that wait take turns, so that one that sends a thousand requests does not push the others back.
type turns struct {
	mu    sync.Mutex
	free  int
	lines map[string][]chan struct{} // of each tenant that waits; closed when it is let in
	next  []string                   // the tenants that wait, in turn
}

// enter waits for its turn and reports true, or false when ctx ends first. Every enter that reported true is followed by leave.
func (t *turns) enter(ctx context.Context, tenant string) bool {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return true
	}
	in := make(chan struct{})
	if t.lines == nil {
		t.lines = map[string][]chan struct{}{}
	}
	if len(t.lines[tenant]) == 0 {
		t.next = append(t.next, tenant)
	}
	t.lines[tenant] = append(t.lines[tenant], in)
	t.mu.Unlock()
	select {
	case <-in:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-in:
		return true // at the same moment
	default:
	}
	line := t.lines[tenant]
	at := slices.Index(line, in)
	t.lines[tenant] = slices.Delete(line, at, at+1)
	if len(line) == 1 {
		delete(t.lines, tenant)
		at = slices.Index(t.next, tenant)
		t.next = slices.Delete(t.next, at, at+1)
	}
	return false
}

func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.next) == 0 {
		t.free++
		return
	}
	tenant := t.next[0]
	t.next = t.next[1:]
	line := t.lines[tenant]
	close(line[0])
	if len(line) > 1 {
		t.lines[tenant] = line[1:]
		t.next = append(t.next, tenant)
	} else {
		delete(t.lines, tenant)
	}
}
