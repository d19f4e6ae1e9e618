package httpapi

import (
	"context"
	"sync"
)

// background runs the work that a Server does outside of requests: reading limits again, noting
// refusals, asking whether awaited jobs have ended. The zero value is ready to use. Serve calls
// stop once, when the server stops; nothing is started after that.
type background struct {
	// mu protects stopped, ctx and cancel, so that start adds nothing to running after stop has
	// begun to wait.
	mu      sync.Mutex
	stopped bool
	ctx     context.Context // ends with stop; nil until something is started
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// start runs do in a goroutine, and reports whether it did: a stopped server starts nothing. do
// must end soon after its context ends.
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

// stop ends the context of everything that was started, and waits until all of it has ended.
func (b *background) stop() {
	b.mu.Lock()
	b.stopped = true
	if b.cancel != nil {
		b.cancel()
	}
	b.mu.Unlock()
	b.running.Wait()
}
