package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

func (s *Server) systemRoutes() []route {
	routes := []route{
		{Method: http.MethodGet, Path: "/ojs/manifest", Scope: scopeOpen, Handler: s.manifest},
		{Method: http.MethodGet, Path: v1 + "/health", Scope: scopeOpen, Handler: s.health},
		// The official command-line tool uses this path.
		{Method: http.MethodGet, Path: v1 + "/admin/observability/health", Scope: scopeOpen, Handler: s.health},
		{Method: http.MethodGet, Path: "/health", Scope: scopeOpen, Handler: s.live},
		{Method: http.MethodGet, Path: v1 + "/ready", Scope: scopeOpen, Handler: s.ready},
		{Method: http.MethodGet, Path: "/ready", Scope: scopeOpen, Handler: s.ready},
		{Method: http.MethodGet, Path: metricsPath, Scope: scopeAdmin, Handler: s.metricsText},
	}
	if s.reset != nil {
		routes = append(routes, route{Method: http.MethodPost, Path: v1 + "/admin/reset", Scope: scopeAdmin, Handler: s.resetAll})
	}
	return routes
}

type healthJSON struct {
	Status        string       `json:"status"`
	Version       string       `json:"version"`
	UptimeSeconds int64        `json:"uptime_seconds"`
	Backend       *backendJSON `json:"backend,omitempty"`
}

type backendJSON struct {
	Type      string `json:"type"`
	Status    string `json:"status"`
	LatencyMs *int64 `json:"latency_ms,omitempty"`
	Error     string `json:"error,omitempty"`
}

const noAnswer = "the database does not answer"

// ask measures one round trip to the database. why says why the server cannot do its work, for any
// caller; "" if it can. The log says it once, and once more when it is over.
func (s *Server) ask(ctx context.Context) (latency time.Duration, why string) {
	begin := time.Now()
	err := s.db.Probe(ctx)
	latency = time.Since(begin)
	var unable pg.Unable
	switch {
	case errors.As(err, &unable):
		why = unable.Error()
	case err != nil:
		why = noAnswer
	}
	if before := s.unable.Swap(&why); before == nil && why == "" || before != nil && *before == why {
		return latency, why
	}
	if why == "" {
		s.log.Warn("the server is ready again: the database answers and accepts writes")
	} else {
		s.log.Warn("the server is not ready", "reason", why, "error", err)
	}
	return latency, why
}

// live answers 200 while the process runs, even if the database is away: a restart of the process
// would not help then.
func (s *Server) live(c echo.Context) error {
	return c.JSON(http.StatusOK, s.healthOf("ok", nil))
}

func (s *Server) healthOf(status string, backend *backendJSON) healthJSON {
	return healthJSON{Status: status, Version: specVersion, UptimeSeconds: int64(time.Since(s.started).Seconds()), Backend: backend}
}

// health answers with the state of the server and its database. It is 503 if the database does not
// answer, or accepts no writes, and "degraded" with 200 if memory runs out that all of its sessions
// share: to start this server anew would not help.
func (s *Server) health(c echo.Context) error {
	latency, why := s.ask(c.Request().Context())
	if why != "" {
		backend := &backendJSON{Type: "postgres", Status: "unhealthy", Error: why}
		return c.JSON(http.StatusServiceUnavailable, s.healthOf("degraded", backend))
	}
	ms := latency.Milliseconds()
	short, err := s.db.Shortage(c.Request().Context())
	switch {
	case err != nil:
		s.log.Debug("the database does not say how full its shared memory is", "error", err)
	case short.What != "":
		s.log.Warn(short.What, "holders", short.Holders, "runbook", "docs/runbooks/locks-or-notify-full.md")
		return c.JSON(http.StatusOK, s.healthOf("degraded", &backendJSON{
			Type: "postgres", Status: "degraded", LatencyMs: &ms, Error: short.What,
		}))
	}
	return c.JSON(http.StatusOK, s.healthOf("ok", &backendJSON{Type: "postgres", Status: "healthy", LatencyMs: &ms}))
}

type readyJSON struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}

// ready tells a load balancer whether to send requests here. It answers 503 while the server
// drains, or if the database does not answer or accepts no writes.
func (s *Server) ready(c echo.Context) error {
	select {
	case <-s.draining:
		return c.JSON(http.StatusServiceUnavailable, readyJSON{Status: "draining"})
	default:
	}
	if _, why := s.ask(c.Request().Context()); why != "" {
		return c.JSON(http.StatusServiceUnavailable, readyJSON{Status: "database unavailable", Reason: why})
	}
	return c.JSON(http.StatusOK, readyJSON{Status: "ready"})
}

type manifestJSON struct {
	Specversion      string             `json:"specversion"`
	OJSVersion       string             `json:"ojs_version"`
	Implementation   implementationJSON `json:"implementation"`
	ConformanceLevel int                `json:"conformance_level"`
	Protocols        []string           `json:"protocols"`
	Backend          string             `json:"backend"`
	Capabilities     map[string]bool    `json:"capabilities"`
	Extensions       []string           `json:"extensions"`
	Endpoints        map[string]string  `json:"endpoints"`
}

type implementationJSON struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Language string `json:"language"`
	Homepage string `json:"homepage"`
}

// manifest declares what works, and nothing that is only planned.
func (s *Server) manifest(c echo.Context) error {
	return c.JSON(http.StatusOK, manifestJSON{
		Specversion:      specVersion,
		OJSVersion:       specVersion,
		Implementation:   implementationJSON{"ojs-pg", s.version, "go", "https://github.com/ojs-pg/ojs-pg"},
		ConformanceLevel: 2,
		Protocols:        []string{"http"},
		Backend:          "postgres",
		Capabilities: map[string]bool{
			"batch_enqueue":     true,
			"cron_jobs":         true,
			"dead_letter":       true,
			"delayed_jobs":      true,
			"job_ttl":           true,
			"pause_resume":      true,
			"priority_queues":   true,
			"rate_limiting":     false,
			"schema_validation": false,
			"unique_jobs":       false,
			"workflows":         false,
		},
		Extensions: []string{"urn:ojs:ext:admin-api", "urn:ojs:ext:dead-letter", "urn:ojs:ext:fair-scheduling"},
		Endpoints:  map[string]string{"base_url": "/ojs/v1", "manifest": "/ojs/manifest", "health": "/ojs/v1/health"},
	})
}

func (s *Server) resetAll(c echo.Context) error {
	if err := s.reset(s.queryContext(c)); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]bool{"reset": true})
}
