package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// pythonSDK is the start of the User-Agent of the official Python SDK. That SDK parses an answer
// only if its type is application/json: with the OJS media type it would fetch jobs and not see
// them.
const pythonSDK = "python-httpx/"

// Server serves the OJS HTTP binding.
type Server struct {
	db       *pg.DB
	q        *sqlcgen.Queries // shares connections fairly between tenants (pg.Shared)
	problems *problemWriter
	dispatch *dispatch.Dispatcher
	cron     *sched.Cron
	log      *slog.Logger
	limits   Limits
	version  string
	reset    func(context.Context) error
	keys     *keyring      // nil: API keys are not accepted
	tokens   *jwt.Verifier // nil: JWTs are not accepted
	metrics  *metrics
	started  time.Time
	handler  http.Handler

	drain    sync.Once     // closes draining only once
	draining chan struct{} // closed when the server begins to stop

	handing  context.Context // ends with TakeBack; then FETCH answers are broken off (handOver)
	takeBack context.CancelFunc

	// mounted holds the routes by method and path. mount fills it before the first request, and
	// after that it is only read, so it needs no lock. Each of the fields after it has its own
	// locks.
	mounted       map[routeKey]*route
	bounds        boundsCache
	requestRates  requestRates
	background    background
	admission     admission
	endings       endings
	defaultTenant defaultTenant
	refusedTokens refusedTokens

	unable atomic.Pointer[string] // why the server could not do its work when it last asked; nil: it has not asked
}

// New returns a Server for cfg. It answers requests by Handler or Serve.
func New(cfg Config) *Server {
	cfg.Version = cmp.Or(cfg.Version, "dev")
	s := &Server{
		db:       cfg.DB,
		q:        sqlcgen.New(cfg.DB.Shared()),
		dispatch: cfg.Dispatcher,
		cron:     sched.NewCron(cfg.DB, cfg.Logger),
		log:      cfg.Logger,
		limits:   cfg.Limits.withDefaults(),
		version:  cfg.Version,
		metrics:  newMetrics(&cfg),
		started:  time.Now(),
		draining: make(chan struct{}),
		tokens:   cfg.Tokens,
	}
	s.problems = newProblems(cfg.DB, cfg.Logger, &s.background)
	s.problems.near = s.nearRoute
	if cfg.TenantHeaders != nil {
		s.problems.tenant = cfg.TenantHeaders
	}
	s.admission = s.newAdmission()
	s.endings.over, s.endings.background = s.jobsOver, &s.background
	s.defaultTenant.read, s.defaultTenant.log = s.q.DefaultTenant, cfg.Logger
	s.handing, s.takeBack = context.WithCancel(context.Background())
	if cfg.AllowReset {
		s.reset = cfg.Reset
	}
	if cfg.APIKeys {
		s.keys = newKeyring(s.limits.Query, s.findKeys)
	}
	s.handler = s.routes()
	return s
}

// TakeBack breaks off all answers to FETCHes that clients have not read to the end. Their handlers
// then give the jobs back. Call it when the server is about to stop, while the database can still
// be reached.
func (s *Server) TakeBack() { s.takeBack() }

// Handler returns the server as an http.Handler, without sockets.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) routes() http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = s.problems.write
	e.Binder = binder{Read: func(c echo.Context, optional bool, parts jsonbody.Parts) (*jsonbody.Object, error) {
		return s.body(c, s.limits.Body, optional, parts)
	}}
	e.JSONSerializer = serializer{}
	e.Pre(s.metrics.observe, s.headers)
	e.Use(s.recover, s.authenticate, s.admit, s.bodies, unescape, s.begin)

	for _, routes := range [][]route{
		s.jobRoutes(), s.resultRoutes(), s.fetchRoutes(), s.settleRoutes(), s.workerRoutes(), s.eventRoutes(), s.cronRoutes(),
		s.deadLetterRoutes(), s.queueRoutes(), s.tenantRoutes(), s.eraseRoutes(), s.tierRoutes(), s.settingRoutes(), s.limitRoutes(),
		s.poolRoutes(), s.neighbourRoutes(), s.doctorRoutes(), s.dispatchRoutes(), s.explainRoutes(), s.statsRoutes(), s.usageRoutes(),
		s.auditRoutes(), s.keyRoutes(), s.systemRoutes(),
	} {
		s.mount(e, routes)
	}
	for _, l := range lacking {
		for _, path := range l.paths {
			e.RouteNotFound(v1+path, l.refuse)
		}
	}
	s.metrics.learn(e.Routes())
	return e
}

// headers is a middleware that sets the headers of every response. It refuses requests whose
// headers are too large, that name another version of OJS, or whose query cannot be parsed. It runs
// before routing, so that a 404 carries the headers, too.
func (s *Server) headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, h := c.Request(), c.Response().Header()
		h.Set(echo.HeaderContentType, jsonbody.ContentType)
		if strings.HasPrefix(r.UserAgent(), pythonSDK) {
			h.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
		}
		h.Set(versionHeader, specVersion)
		id := r.Header.Get(requestIDHeader)
		if !visible(id) {
			id = "req_" + uuid.Must(uuid.NewV7()).String()
		}
		h.Set(requestIDHeader, id)
		c.Response().Before(func() {
			select {
			case <-s.draining:
				// The client sends its next request over a new connection: to another server, or to
				// this one as long as it listens. A request on the old connection could arrive
				// while the server closes it.
				h.Set("Connection", "close")
			default:
			}
		})

		size := 0
		for name, values := range r.Header {
			for _, v := range values {
				size += len(name) + len(v) + 4
			}
		}
		if size > s.limits.Headers {
			return &pg.Error{
				Code: problems.CodeInvalidRequest, Status: http.StatusRequestHeaderFieldsTooLarge,
				Message: fmt.Sprintf("the headers are larger than %d bytes", s.limits.Headers), Details: map[string]any{"field": "headers"},
			}
		}
		if err := checkVersion(r.Header.Values(versionHeader)); err != nil {
			return err
		}
		// net/http drops the parameters that cannot be parsed. A filter among them would be
		// ignored.
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			return problems.Invalid("query", "must be names and values joined by &, escaped as in a URL")
		}
		return next(c)
	}
}

// checkVersion refuses a version of OJS that this server does not speak.
func checkVersion(values []string) error {
	for _, v := range values {
		switch v {
		case "", "1", "1.0", "1.0.0", goSDKVersion:
		default:
			return problems.Refuse(problems.CodeUnsupported, versionHeader,
				"%s %q is not supported; this server speaks %s", versionHeader, problems.Clip(v), specVersion)
		}
	}
	return nil
}

// visible reports whether a client's request id can be echoed and logged as it is: at most 128
// printable ASCII characters without spaces.
func visible(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// unescape is a middleware that decodes percent escapes in the parameters of a path. echo leaves
// parameters as they were sent if the path holds an escape that could have been left out or that
// hides a slash.
func unescape(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawPath == "" {
			return next(c)
		}
		names, values := c.ParamNames(), slices.Clone(c.ParamValues())
		for i, v := range values {
			plain, err := url.PathUnescape(v)
			if err != nil {
				return problems.Invalid(names[i], "must be escaped as in a URL")
			}
			values[i] = plain
		}
		c.SetParamValues(values...)
		return next(c)
	}
}

// recover is a middleware that turns a panic of a handler into an error with the stack. It lets
// http.ErrAbortHandler pass, by which net/http cuts an answer off.
func (s *Server) recover(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler { //nolint:errorlint // net/http panics with this very value
					panic(v)
				}
				err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		return next(c)
	}
}
