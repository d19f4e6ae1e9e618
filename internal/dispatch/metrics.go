package dispatch

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// metrics counts the statements of a server. The database counts what is handed out of queues and
// how long it waited, because workers in SQL fetch, too (internal/http/queuemetrics.go).
type metrics struct {
	items   *prometheus.HistogramVec // by statement
	seconds *prometheus.HistogramVec // by statement
	jobs    prometheus.Histogram     // of a decision
}

func newMetrics() *metrics {
	sizes := []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}
	return &metrics{
		items: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ojs_statement_items", Buckets: sizes,
			Help: "Requests that shared a statement: FETCHes of fetch_many, attempts of ack_many and settle, jobs of the others.",
		}, []string{"statement"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ojs_statement_duration_seconds", Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 15},
			Help: "From sending a statement to its end, which is the commit.",
		}, []string{"statement"}),
		jobs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ojs_decision_jobs", Buckets: append([]float64{0}, sizes...), Help: "Jobs that one call of ojs.fetch_many handed out.",
		}),
	}
}

// Metrics returns the collectors of the Dispatcher for a registry.
func (d *Dispatcher) Metrics() []prometheus.Collector {
	m := d.metrics
	return []prometheus.Collector{
		m.items, m.seconds, m.jobs,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ojs_fetches_waiting", Help: "FETCHes that wait for a job.",
		}, func() float64 { return float64(d.waiting()) }),
	}
}

// waiting returns the number of requests that wait for a job. It locks Dispatcher.mu.
func (d *Dispatcher) waiting() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.groups {
		n += g.waiting.Len()
	}
	return n + d.quiet.Len() + d.full.Len()
}

// measured wraps statements so that each call is counted and timed.
func (m *metrics) measured(s statements) statements {
	return statements{
		fetch: func(ctx context.Context, parts []*part) error {
			began := time.Now()
			err := s.fetch(ctx, parts)
			m.seconds.WithLabelValues("fetch_many").Observe(time.Since(began).Seconds())
			for _, p := range parts {
				m.items.WithLabelValues("fetch_many").Observe(float64(len(p.requests)))
				if err == nil {
					m.jobs.Observe(float64(len(p.jobs)))
				}
			}
			return err
		},
		ack: func(ctx context.Context, items []ack, whole bool) ([]*sqlcgen.OjsJob, error) {
			defer m.statement("ack_many", len(items), time.Now())
			return s.ack(ctx, items, whole)
		},
		settle: func(ctx context.Context, items []Settlement, whole bool) ([]Settled, error) {
			defer m.statement("settle", len(items), time.Now())
			return s.settle(ctx, items, whole)
		},
		enqueue: func(ctx context.Context, db sqlcgen.DBTX, items []*NewJob, tenant *string, each bool, made madeJob) error {
			defer m.statement("enqueue_rows", len(items), time.Now())
			return s.enqueue(ctx, db, items, tenant, each, made)
		},
		release: func(ctx context.Context, ids, leases []string) ([]string, error) {
			defer m.statement("release_many", len(ids), time.Now())
			return s.release(ctx, ids, leases)
		},
	}
}

// statement counts one statement with its items, and its duration since began.
func (m *metrics) statement(name string, items int, began time.Time) {
	m.items.WithLabelValues(name).Observe(float64(items))
	m.seconds.WithLabelValues(name).Observe(time.Since(began).Seconds())
}
