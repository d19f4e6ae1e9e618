package sched

import (
	"context"
	"sync"
)

// Duty tells whether this server does the work that one server does for all. A server learns up to
// a few seconds late that it has lost the duty, so two servers may do such work at once. The clock
// sets it after each tick; any goroutine may read it. mu guards both fields and is never held while
// work runs.
type Duty struct {
	mu      sync.Mutex
	held    bool
	changed chan struct{} // closed at the next change of held; made by watch, nil if not watched
}

// Held reports whether the last tick found this server on duty.
func (d *Duty) Held() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held
}

// While runs work whenever this server is on duty, in the caller's goroutine. It returns when ctx
// has ended and work has returned. The context of work ends with the duty. If work returns before
// that, it runs again when the server has lost the duty and got it back.
func (d *Duty) While(ctx context.Context, work func(context.Context)) {
	for {
		held, changed := d.watch()
		if held {
			d.once(ctx, changed, work)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// once runs work until it returns, and cancels its context when changed is closed. It returns after
// its goroutine has ended.
func (d *Duty) once(ctx context.Context, changed <-chan struct{}, work func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	})
	work(ctx)
}

// watch returns the state, and a channel that is closed when it changes. Both are of one moment, so
// that no change between them is missed.
func (d *Duty) watch() (held bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.held, d.changed
}

// set changes the state and tells the goroutines that watch it.
func (d *Duty) set(held bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if held == d.held {
		return
	}
	d.held = held
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}
