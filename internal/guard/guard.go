// Package guard decides what a panic in a background goroutine becomes: an error for those who wait for the goroutine's result (Call), or a
// logged error and a new start of the part (Loop). Without it a panic can leave a server that answers and no longer ticks, because deferred
// functions of the panicking goroutine wait for others that never end.
package guard

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// restartPause is between a panic and the new start of a part, so that one that always panics does not fill the log.
const restartPause = time.Second

// Panic is a panic as an error.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// Call runs f. A panic of f is returned as a *Panic.
func Call(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{v, debug.Stack()}
		}
	}()
	return f()
}

// Loop runs a part of the server until it returns, which it does when ctx ends. When the part panics, that is logged as an error and the
// part starts again after a second.
func Loop(ctx context.Context, log *slog.Logger, part string, run func(context.Context)) {
	for {
		err := Call(func() error {
			run(ctx)
			return nil
		})
		if err == nil {
			return
		}
		log.Error("a part of the server panicked and starts again", "part", part, "error", err)
		select {
		case <-time.After(restartPause):
		case <-ctx.Done():
			return
		}
	}
}
