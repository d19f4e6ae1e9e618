package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Serve answers requests on ln until ctx ends. Then it is no longer ready and lets waiting fetches
// return empty, goes on answering for DrainDelay, so that load balancers and clients notice, closes
// ln, finishes what is under way, notes the last refusals by limits, and returns.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	beside, done := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.defaultTenant.refresh(beside) })
	defer running.Wait()
	defer done()
	defer s.kit.Problems.NoteRefusals()

	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: min(s.limits.Read, 10*time.Second),
		ReadTimeout:       s.limits.Read,
		WriteTimeout:      s.limits.Wait + s.limits.Write,
		IdleTimeout:       s.limits.Idle,
		// Room above our own limit, whose refusal has the error shape.
		MaxHeaderBytes: 4 * s.limits.Headers,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	s.drain.Do(func() { close(s.draining) })
	s.dispatch.Drain()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-time.After(s.limits.DrainDelay):
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.Drain)
	defer cancel()
	err := server.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests were still under way when the server had to stop", "waited", s.limits.Drain)
		err = server.Close()
	}
	if err != nil {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

// defaultTenant is the name of the tenant of jobs that named none, which is left out of meta. It can be reconfigured at run time; an
// answer may show the one before for half a minute.
type defaultTenant struct {
	read func(context.Context) (string, error)
	log  *slog.Logger

	known atomic.Pointer[string] // nil until it has been read

	mu       sync.Mutex // of who reads it
	failedAt time.Time
}

// refresh reads it again and again until ctx ends.
func (d *defaultTenant) refresh(ctx context.Context) {
	for {
		d.mu.Lock()
		read := d.ask()
		d.mu.Unlock()
		pause := 30 * time.Second
		if !read {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// name asks the database only where nothing has been read yet, and not within a second of a failure: each answer would wait for so long
// while the database is away. It is empty if it is not known.
func (d *defaultTenant) name() string {
	if known := d.known.Load(); known != nil {
		return *known
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known.Load() == nil && time.Since(d.failedAt) > time.Second {
		d.ask()
	}
	if known := d.known.Load(); known != nil {
		return *known
	}
	return ""
}

// ask reads the name, and reports whether it could; for one at a time.
func (d *defaultTenant) ask() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	name, err := d.read(ctx)
	if err != nil {
		d.log.Warn("the default tenant could not be read", "error", err)
		d.failedAt = time.Now()
		return false
	}
	d.known.Store(&name)
	return true
}
