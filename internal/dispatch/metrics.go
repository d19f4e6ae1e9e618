package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// MetricQueues is the number of queues and pools that get time series of their own. Those that come
	// later share one, so that a client that makes up names fills no memory, here or in Prometheus.
	MetricQueues = 1000
	// OtherQueues is the label of that shared series. No queue can have this name.
	OtherQueues = "_other"

	noPool = "default" // the label of workers whose pool is not configured
)

// metrics counts the statements of a server and the jobs that it hands out. mu guards queues and
// pools; the collectors have locks of their own.
type metrics struct {
	items      *prometheus.HistogramVec // by statement
	seconds    *prometheus.HistogramVec // by statement
	jobs       prometheus.Histogram     // of a decision
	dispatched *prometheus.CounterVec   // by queue and pool
	waits      *prometheus.HistogramVec // by queue

	mu     sync.Mutex
	queues map[queuePool]queueMetrics // the counters of each series: to look them up by label costs more
	pools  map[int]string             // names by id
}

type queuePool struct{ queue, pool string }

type queueMetrics struct {
	dispatched prometheus.Counter
	wait       prometheus.Observer
}

func newMetrics() *metrics {
	sizes := []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}
	return &metrics{
		queues: map[queuePool]queueMetrics{}, pools: map[int]string{0: noPool},
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
		dispatched: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ojs_scheduling_dispatch_total", Help: "Jobs handed out by this server.",
		}, []string{"queue", "pool"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ojs_scheduling_queue_wait_duration", Buckets: []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600},
			Help: "Seconds from when a job became available to when this server handed it out.",
		}, []string{"queue"}),
	}
}

// Metrics returns the collectors of the Dispatcher for a registry.
func (d *Dispatcher) Metrics() []prometheus.Collector {
	m := d.metrics
	return []prometheus.Collector{
		m.items, m.seconds, m.jobs, m.dispatched, m.waits,
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

// measured wraps statements so that each call is counted and timed. poolName is called once for each
// pool.
func (m *metrics) measured(s statements, poolName func(id int) (string, error)) statements {
	return statements{
		fetch: func(ctx context.Context, parts []*part) error {
			began := time.Now()
			err := s.fetch(ctx, parts)
			m.seconds.WithLabelValues("fetch_many").Observe(time.Since(began).Seconds())
			for _, p := range parts {
				m.items.WithLabelValues("fetch_many").Observe(float64(len(p.requests)))
				if err == nil {
					m.jobs.Observe(float64(len(p.jobs)))
					m.handedOut(p.jobs, m.nameOf(p.pool, poolName))
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

// nameOf returns the name of a pool. It asks for it once and keeps it for good: a pool that is
// deleted and made anew has another id. If the question fails, it returns OtherQueues. It asks
// without the lock, because the answer comes from the database.
func (m *metrics) nameOf(pool int, ask func(id int) (string, error)) string {
	m.mu.Lock()
	name, known := m.pools[pool]
	m.mu.Unlock()
	if known {
		return name
	}
	name, err := ask(pool)
	if err != nil {
		return OtherQueues
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pools[pool] = name
	return name
}

// handedOut counts jobs by queue and pool, with the time that they waited from when they became
// available.
func (m *metrics) handedOut(jobs []sqlcgen.OjsJob, pool string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range jobs {
		q := m.queue(queuePool{jobs[i].Queue, pool})
		q.dispatched.Inc()
		if at := jobs[i].StartedAt; at != nil {
			q.wait.Observe(max(0, at.Sub(jobs[i].EnqueuedAt).Seconds()))
		}
	}
}

// queue returns the counters of a queue and pool. The caller holds metrics.mu.
func (m *metrics) queue(of queuePool) queueMetrics {
	q, known := m.queues[of]
	if !known {
		if other := (queuePool{OtherQueues, OtherQueues}); len(m.queues) >= MetricQueues && of != other {
			return m.queue(other)
		}
		q = queueMetrics{m.dispatched.WithLabelValues(of.queue, of.pool), m.waits.WithLabelValues(of.queue)}
		m.queues[of] = q
	}
	return q
}
