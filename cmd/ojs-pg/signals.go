package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupt turns the first SIGINT or SIGTERM into the end of a context, for an orderly stop,
// and the second one into the end of the program.
type interrupt struct {
	signals chan os.Signal
	done    chan struct{}

	mu        sync.Mutex
	caught    bool
	emergency func() // what has to happen even then
}

func watchSignals() (context.Context, *interrupt) {
	ctx, cancel := context.WithCancel(context.Background())
	i := &interrupt{signals: make(chan os.Signal, 2), done: make(chan struct{}), emergency: func() {}}
	signal.Notify(i.signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer cancel()
		select {
		case <-i.signals:
		case <-i.done:
			return
		}
		i.mu.Lock()
		i.caught = true
		i.mu.Unlock()
		cancel()
		select {
		case <-i.signals:
		case <-i.done:
			return
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.emergency()
		fmt.Fprintln(os.Stderr, "ojs-pg: stopped at once")
		os.Exit(130)
	}()
	return ctx, i
}

func (i *interrupt) stop() {
	signal.Stop(i.signals)
	close(i.done)
}

func (i *interrupt) happened() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.caught
}

// onEmergency says what the second signal has to do before the program ends.
func (i *interrupt) onEmergency(do func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.emergency = do
}
