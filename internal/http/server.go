// Package httpapi is the OJS HTTP binding: routes, JSON shapes, headers, limits of bodies and how
// long to wait. What a request means is SQL's business: a handler binds, calls one function with
// the tenant, and writes the shape; it never picks the status of an error. Data goes next to
// internal/sqlcgen's calls, and from there into db/migrations.
//
// The directory is called http as the room is; the package is not, so that net/http keeps its name.
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
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/jwt"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const v1 = "/ojs/v1"

// pythonSDK begins the User-Agent of the official Python SDK, which takes an answer of any other type than application/json for no JSON:
// it would fetch jobs and not see them.
const pythonSDK = "python-httpx/"

// What tenants may have under way, unless Limits say otherwise.
const (
	TenantRequests = 16
	TenantPolls    = 256
)

// Limits bound what a request may cost. A zero field takes its default.
type Limits struct {
	Body      int64 // bytes of a request body; default 1 MiB
	BatchBody int64 // bytes of a batch enqueue's body; default 16 MiB
	BatchJobs int   // jobs in one batch; default 1000
	List      int64 // bytes of jobs, results or cron jobs in one answer that lists them; default 16 MiB
	Bodies    int64 // bytes of all request bodies above 64 KiB under way; default 128 MiB
	Answers   int64 // bytes of jobs, above 64 KiB each, in all answers to FETCHes and lists under way; default 128 MiB
	Depth     int   // levels of JSON, the body itself being the first; default 100
	Headers   int   // bytes of all request headers; default 32 KiB

	TenantRequests int // of one tenant in flight; default 16
	TenantPolls    int // of one tenant that wait for jobs; default 256

	Wait     time.Duration // longest wait of a FETCH; default 60 s
	TurnWait time.Duration // longest that a request waits for others of its tenant; default 1 s
	RoomWait time.Duration // longest that a large body waits for room among the others; default 15 s

	Query time.Duration // longest a call into the database may take; default 15 s
	Read  time.Duration // to receive a request; default 30 s
	Write time.Duration // to send a response, beyond Wait; default 30 s
	Idle  time.Duration // between two requests of a connection; default 120 s
	Drain time.Duration // for requests under way when the server stops; default 20 s

	DrainDelay time.Duration // from the moment when the server is no longer ready until it closes its door; default none
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Body:           cmp.Or(l.Body, 1<<20),
		BatchBody:      cmp.Or(l.BatchBody, 16<<20),
		BatchJobs:      cmp.Or(l.BatchJobs, 1000),
		List:           cmp.Or(l.List, 16<<20),
		Bodies:         cmp.Or(l.Bodies, 128<<20),
		Answers:        cmp.Or(l.Answers, 128<<20),
		Depth:          cmp.Or(l.Depth, 100),
		Headers:        cmp.Or(l.Headers, 32<<10),
		TenantRequests: cmp.Or(l.TenantRequests, TenantRequests),
		TenantPolls:    cmp.Or(l.TenantPolls, TenantPolls),
		Wait:           cmp.Or(l.Wait, 60*time.Second),
		TurnWait:       cmp.Or(l.TurnWait, time.Second),
		RoomWait:       cmp.Or(l.RoomWait, 15*time.Second),
		Query:          cmp.Or(l.Query, 15*time.Second),
		Read:           cmp.Or(l.Read, 30*time.Second),
		Write:          cmp.Or(l.Write, 30*time.Second),
		Idle:           cmp.Or(l.Idle, 120*time.Second),
		Drain:          cmp.Or(l.Drain, 20*time.Second),
		DrainDelay:     l.DrainDelay,
	}
}

// Config is what a Server needs. DB, Dispatcher and Logger are required.
type Config struct {
	DB         *pg.DB
	Dispatcher *dispatch.Dispatcher // not run by the Server
	Logger     *slog.Logger
	Limits     Limits
	Version    string                 // of this program, for the manifest; default "dev"
	Metrics    []prometheus.Collector // of the parts that the Server does not know

	MetricTenants int32 // how many tenants have series of their own; default admin.MetricTenants

	TenantHeaders kit.TenantHeaders // that name the tenant; nil: kit.KnownTenantHeaders

	APIKeys bool          // whether callers may be known by an API key
	Tokens  *jwt.Verifier // by a JWT; nil: they may not. Without either nobody is asked for a credential

	// AllowReset adds POST /ojs/v1/admin/reset, which calls Reset: for conformance runs. A server
	// in production has neither.
	AllowReset bool
	Reset      func(context.Context) error
}

// Server answers the OJS HTTP binding.
type Server struct {
	db       *pg.DB
	kit      *kit.Kit
	q        *sqlcgen.Queries // of kit
	dispatch *dispatch.Dispatcher
	cron     *sched.Cron
	log      *slog.Logger
	limits   Limits
	version  string
	reset    func(context.Context) error
	keys     *keyring      // nil: there are no API keys
	tokens   *jwt.Verifier // nil: there are no tokens
	metrics  *metrics
	started  time.Time
	handler  http.Handler

	drain    sync.Once
	draining chan struct{} // closed when the server begins to stop

	handing  context.Context // until TakeBack
	takeBack context.CancelFunc

	admission     admission
	endings       endings
	defaultTenant defaultTenant
}

// New makes a Server; Handler or Serve puts it to use.
func New(cfg Config) *Server {
	cfg.Version = cmp.Or(cfg.Version, "dev")
	s := &Server{
		db:       cfg.DB,
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
	s.kit = kit.New(cfg.DB, cfg.Logger, s.limits.Query)
	s.q = s.kit.SQL
	if cfg.TenantHeaders != nil {
		s.kit.NameTenantsBy(cfg.TenantHeaders)
	}
	s.admission = s.newAdmission()
	s.endings.over = s.jobsOver
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

// TakeBack ends all answers to FETCHes that clients have not read, and gives their jobs back while the database is still there. Call it
// when the server is about to stop.
func (s *Server) TakeBack() { s.takeBack() }

// Handler is the server without its sockets.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) routes() http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = s.kit.Problems.Write
	e.Binder = kit.Binder{Read: func(c echo.Context, optional bool) (*kit.Object, error) { return s.body(c, s.limits.Body, optional) }}
	e.JSONSerializer = kit.Serializer{}
	e.Pre(s.metrics.observe, s.headers)
	e.Use(s.recover, s.authenticate, s.admit, s.bodies, unescape, s.kit.Begin)

	for _, routes := range [][]kit.Route{
		s.jobRoutes(), s.resultRoutes(), s.workerRoutes(), s.settleRoutes(), s.eventRoutes(), s.cronRoutes(), s.deadLetterRoutes(),
		(&admin.Admin{Kit: s.kit}).Routes(), s.systemRoutes(),
	} {
		s.kit.Mount(e, routes)
	}
	for _, l := range lacking {
		for _, path := range l.paths {
			e.RouteNotFound(v1+path, l.refuse)
		}
	}
	s.metrics.learn(e.Routes())
	return e
}

// headers comes before routing, so that a 404 carries what every response must carry.
func (s *Server) headers(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, h := c.Request(), c.Response().Header()
		h.Set(echo.HeaderContentType, kit.ContentType)
		if strings.HasPrefix(r.UserAgent(), pythonSDK) {
			h.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
		}
		h.Set(kit.VersionHeader, kit.SpecVersion)
		id := r.Header.Get(kit.RequestIDHeader)
		if !visible(id) {
			id = "req_" + uuid.Must(uuid.NewV7()).String()
		}
		h.Set(kit.RequestIDHeader, id)
		c.Response().Before(func() {
			select {
			case <-s.draining:
				// The client comes back elsewhere, or by a new connection as long as there is a door: on a connection that is kept, its
				// next request could cross the end of it.
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
				Code: kit.CodeInvalidRequest, Status: http.StatusRequestHeaderFieldsTooLarge,
				Message: fmt.Sprintf("the headers are larger than %d bytes", s.limits.Headers), Details: map[string]any{"field": "headers"},
			}
		}
		if err := checkVersion(r.Header.Values(kit.VersionHeader)); err != nil {
			return err
		}
		// What cannot be read would be overlooked, and a filter with it.
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			return kit.Invalid("query", "must be names and values joined by &, escaped as in a URL")
		}
		return next(c)
	}
}

func checkVersion(values []string) error {
	for _, v := range values {
		switch v {
		case "", "1", "1.0", "1.0.0", kit.GoSDKVersion:
		default:
			return kit.Refuse(kit.CodeUnsupported, kit.VersionHeader,
				"%s %q is not supported; this server speaks %s", kit.VersionHeader, kit.Clip(v), kit.SpecVersion)
		}
	}
	return nil
}

// visible reports whether a client's request id can be echoed and logged as it is.
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

// unescape makes of the names in a path what the client meant by them: the router reads the path as it was sent, if there is an escape in
// it that could have been left out or hides a slash.
func unescape(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawPath == "" {
			return next(c)
		}
		names, values := c.ParamNames(), slices.Clone(c.ParamValues())
		for i, v := range values {
			plain, err := url.PathUnescape(v)
			if err != nil {
				return kit.Invalid(names[i], "must be escaped as in a URL")
			}
			values[i] = plain
		}
		c.SetParamValues(values...)
		return next(c)
	}
}

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
