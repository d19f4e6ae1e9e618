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

// Serve answers requests on ln until ctx ends. Then it stops in these steps:
//
//  1. GET /ready answers 503, and waiting FETCHes return empty.
//  2. Requests are answered for another DrainDelay, so that load balancers and clients notice.
//  3. ln is closed, and requests under way have up to Drain to end.
//  4. The last refusals by limits are written.
//
// Requests that have not ended after Drain are cut off. Serve fails if ln fails, or if the sockets
// cannot be closed.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	s.background.start(s.defaultTenant.refresh)
	// The log says at the start, too, that the server cannot do its work: that the URL leads to a
	// standby, for example.
	s.background.start(func(ctx context.Context) { s.ask(ctx) })
	defer s.background.stop()

	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: min(s.limits.Read, 10*time.Second),
		ReadTimeout:       s.limits.Read,
		WriteTimeout:      s.limits.Wait + s.limits.Write,
		IdleTimeout:       s.limits.Idle,
		// Four times our own limit, so that headers refuses first, with an answer in the OJS error
		// shape.
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
