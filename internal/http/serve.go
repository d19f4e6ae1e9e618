package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Serve answers requests on ln until ctx ends. Then it reports itself as not ready, lets waiting
// FETCHes return empty, goes on answering for DrainDelay so that load balancers and clients notice,
// closes ln, finishes the requests under way, ends its background tasks, and returns.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	s.background.start(s.defaultTenant.refresh)
	defer s.background.stop()

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
