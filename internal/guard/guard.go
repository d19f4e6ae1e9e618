// Package guard decides what a panic in a background goroutine becomes: an error for the callers
// that wait for its result (Call), or a log line and a new start (Loop). Without it a panic could
// leave a server that answers but no longer ticks, because deferred functions of the panicking
// goroutine wait for others that never end.
package guard

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// restartPause is the pause between a panic and the new start, so that code that always panics does
// not fill the log.
const restartPause = time.Second

// Panic is the error that Call returns for a panic.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// Call runs f. It returns a panic of f as a *Panic.
func Call(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{v, debug.Stack()}
		}
	}()
	return f()
}

// Loop calls run, a loop that belongs to the server, and returns when run does, which it should when
// ctx ends. If run panics, Loop logs the panic as an error under the name part, and calls run again
// after restartPause, unless ctx ends before. State that has to survive a panic must not be local
// to run.
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
