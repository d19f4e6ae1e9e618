package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Serve answers requests on ln until ctx ends. Then it is no longer ready and lets waiting fetches return empty, goes on answering for
// DrainDelay, so that load balancers and clients notice, closes ln, finishes what is under way and returns.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	beside, done := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.refreshDefaultTenant(beside) })
	defer running.Wait()
	defer done()

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

// defaultTenant is the name of the tenant of jobs that named none, which is left out of meta.
type defaultTenant struct {
	sync.RWMutex
	name string // empty until it is known
}

// refreshDefaultTenant reads the name every half a minute until ctx ends, because it can be reconfigured at run time; an answer may show
// the one before for so long.
func (s *Server) refreshDefaultTenant(ctx context.Context) {
	for {
		pause := 30 * time.Second
		if s.readDefaultTenant() == "" {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (s *Server) readDefaultTenant() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	name, err := s.q.DefaultTenant(ctx)
	if err != nil {
		s.log.Warn("the default tenant could not be read", "error", err)
		return ""
	}
	s.noTenant.Lock()
	defer s.noTenant.Unlock()
	s.noTenant.name = name
	return name
}

// defaultTenant asks the database only where nothing has been read yet.
func (s *Server) defaultTenant() string {
	s.noTenant.RLock()
	name := s.noTenant.name
	s.noTenant.RUnlock()
	if name == "" {
		name = s.readDefaultTenant()
	}
	return name
}
