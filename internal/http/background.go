package httpapi

import (
	"context"
	"sync"
)

// background runs what a Server does beside its requests: reading limits again, noting refusals, asking whether awaited jobs have ended.
// The zero value is ready. stop is called once, when the server stops; nothing is started after it.
type background struct {
	mu      sync.Mutex
	stopped bool
	ctx     context.Context // ends with stop; nil until something is started
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// start runs do, which ends soon after its context does, and reports whether it is started: a stopped server starts nothing.
func (b *background) start(do func(context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	if b.ctx == nil {
		b.ctx, b.cancel = context.WithCancel(context.Background())
	}
	b.running.Go(func() { do(b.ctx) })
	return true
}

// stop ends all that was started, and returns when it has ended.
func (b *background) stop() {
	b.mu.Lock()
	b.stopped = true
	if b.cancel != nil {
		b.cancel()
	}
	b.mu.Unlock()
	b.running.Wait()
}
