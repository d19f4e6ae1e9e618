package sched

import (
	"context"
	"sync"
)

// Duty tells whether this server does the work that one server does for all. A server learns up to
// a few seconds late that it has lost the duty, so two servers may do such work at once.
type Duty struct {
	mu      sync.Mutex
	held    bool
	changed chan struct{} // closed at the next change; nil until somebody waits for it
}

// Held reports whether this server was on duty when it asked last.
func (d *Duty) Held() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held
}

// While runs work whenever this server is on duty. It returns when ctx has ended and work has
// returned. The context of work ends with the duty. If work returns before, it runs again with the
// next duty.
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

func (d *Duty) watch() (held bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
	return d.held, d.changed
}

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
