package admin

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// The database is asked once in so long, whoever asks for metrics, and not again before so many times as long as it took: metrics keep
	// at most a tenth of a session busy.
	gaugesEvery = time.Second
	gaugesPause = 9

	gaugesTimeout  = 5 * time.Second // PostgreSQL breaks the statement off
	gaugesPatience = 8 * time.Second // to get a connection and the answer; scrapers wait for 10 s
)

// QueueMetrics tell what there is in each queue, as the database has it: every server says the same. They are read when somebody asks, and
// left out when they cannot be read.
type QueueMetrics struct {
	db  *pg.DB
	log *slog.Logger

	up                               *prometheus.Desc
	available, active, oldest, ratio *prometheus.Desc
	utilization, starved             *prometheus.Desc

	mu   sync.Mutex // held while the database is asked: others who ask get the same answer
	next time.Time  // when it may be asked again
	rows []sqlcgen.QueueGaugesRow
	more []sqlcgen.PoolGaugesRow
	err  error
}

// NewQueueMetrics makes what a registry collects.
func NewQueueMetrics(db *pg.DB, log *slog.Logger) *QueueMetrics {
	of := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"queue"}, nil)
	}
	return &QueueMetrics{
		db: db, log: log,
		up:        prometheus.NewDesc("ojs_queues_up", "Whether the numbers of queues could be read: 1 or 0.", nil, nil),
		available: of("ojs_queue_depth", "Jobs that are available."),
		active:    of("ojs_queue_active_jobs", "Jobs in workers' hands."),
		oldest:    of("ojs_queue_oldest_wait_seconds", "How long the first available job has waited; 0 if there is none."),
		ratio:     of("ojs_scheduling_dispatch_ratio", "The queue's part of all jobs handed out in the last minute, by whatever door."),
		utilization: prometheus.NewDesc("ojs_scheduling_pool_utilization", "The part of its concurrency that a pool of workers uses.",
			[]string{"pool"}, nil),
		starved: of("ojs_scheduling_starvation_events_total", "How often the queue, of a pool, gave no job for its rotation interval."),
	}
}

// Describe implements prometheus.Collector.
func (m *QueueMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{m.up, m.available, m.active, m.oldest, m.ratio, m.utilization, m.starved} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *QueueMetrics) Collect(to chan<- prometheus.Metric) {
	rows, more, err := m.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if err != nil {
		gauge(m.up, 0)
		return
	}
	gauge(m.up, 1)
	for i := range rows {
		q := &rows[i]
		gauge(m.available, float64(q.Available), q.Queue)
		gauge(m.active, float64(q.Active), q.Queue)
		gauge(m.oldest, q.OldestWaitSeconds, q.Queue)
		gauge(m.ratio, q.DispatchRatio, q.Queue)
	}
	for _, r := range more {
		if r.What == "starved" {
			to <- prometheus.MustNewConstMetric(m.starved, prometheus.CounterValue, r.Value, r.Subject)
		} else {
			gauge(m.utilization, r.Value, r.Subject)
		}
	}
}

// read asks the database, unless it was asked just now.
func (m *QueueMetrics) read() ([]sqlcgen.QueueGaugesRow, []sqlcgen.PoolGaugesRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := time.Now()
	if began.Before(m.next) {
		return m.rows, m.more, m.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), gaugesPatience)
	defer cancel()
	sql := sqlcgen.New(m.db.Within(gaugesTimeout))
	if m.rows, m.err = sql.QueueGauges(ctx, dispatch.MetricQueues); m.err == nil {
		m.more, m.err = sql.PoolGauges(ctx, dispatch.MetricQueues)
	}
	took := time.Since(began)
	pause := gaugesPause * took
	if m.err != nil {
		m.log.Warn("the numbers of queues are left out of the metrics", "error", m.err)
		pause = took // it was the time of waiting for a database that was away, and is back soon
	}
	m.next = time.Now().Add(max(gaugesEvery, pause))
	return m.rows, m.more, m.err
}
