package httpapi

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// other is the label of routes and methods that this server does not have. Clients make up as many
// of them as they like, and each would become a series of its own.
const other = "_other"

// metrics counts requests, and shows what all components of the server count. docs/operate/metrics.md lists
// the metrics.
type metrics struct {
	requests *prometheus.HistogramVec
	inFlight prometheus.Gauge
	known    map[string]bool // paths of routes, and methods; learn fills it before the first request
	show     http.Handler
}

func newMetrics(cfg *Config) *metrics {
	m := &metrics{
		known: map[string]bool{},
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ojs_http_request_duration_seconds", Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
			Help: "From a request's head to the end of its answer; of a FETCH also while it waits for a job.",
		}, []string{"method", "route", "status"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ojs_http_requests_in_flight", Help: "Requests that are not answered yet.",
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ojs_server_info", Help: "Always 1; the version of this server.", ConstLabels: prometheus.Labels{"version": cfg.Version},
	})
	info.Set(1)
	all := prometheus.NewRegistry()
	all.MustRegister(m.requests, m.inFlight, info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newQueueMetrics(cfg.DB, cfg.Logger, cmp.Or(cfg.MetricTenants, MetricTenants)))
	all.MustRegister(slices.Concat(cfg.DB.Metrics(), cfg.Dispatcher.Metrics(), cfg.Metrics)...)
	m.show = promhttp.HandlerFor(all, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	})
	return m
}

// learn stores the paths and the methods of the routes.
func (m *metrics) learn(routes []*echo.Route) {
	for _, r := range routes {
		m.known[r.Path], m.known[r.Method] = true, true
	}
}

// observe is a middleware that counts and times requests. It runs before all others, and writes
// errors itself, because it has to know the status.
func (m *metrics) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		m.inFlight.Inc()
		// Deferred, because a panic may cut the answer off.
		defer func() {
			m.inFlight.Dec()
			m.requests.WithLabelValues(m.label(c.Request().Method), m.label(c.Path()), strconv.Itoa(c.Response().Status)).
				Observe(time.Since(began).Seconds())
		}()
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

// label returns name if it is the path or the method of a route, and otherwise other.
func (m *metrics) label(name string) string {
	if m.known[name] {
		return name
	}
	return other
}

// metricsText answers with all metrics, in the format that the client prefers: Prometheus's text,
// or OpenMetrics.
func (s *Server) metricsText(c echo.Context) error {
	if c.Request().Header.Get(echo.HeaderAccept) == echo.MIMETextPlain {
		// A client that names no version of the format may not expect one in the answer.
		c.Response().Before(func() { c.Response().Header().Set(echo.HeaderContentType, echo.MIMETextPlain) })
	}
	s.metrics.show.ServeHTTP(c.Response(), c.Request())
	return nil
}
