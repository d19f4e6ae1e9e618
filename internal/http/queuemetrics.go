package httpapi

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
	// gaugesEvery is the shortest time between two reads of the database, however many scrapers ask
	// for metrics. After a read, the next one comes gaugesPause times its duration later at the
	// earliest: so metrics keep a session busy for at most a tenth of the time.
	gaugesEvery = time.Second
	gaugesPause = 9

	gaugesTimeout  = 5 * time.Second // PostgreSQL cancels the statement then
	gaugesPatience = 8 * time.Second // for a connection and the answer; scrapers wait for 10 s

	// MetricTenants is how many tenants have series of their own, unless Config says otherwise
	// (ojs-multi-tenancy section 15.4).
	MetricTenants = 1000
)

// queueMetrics exports the numbers of queues and tenants as the database has them, so every server
// exports the same. They are read when a scraper asks, and left out when they cannot be read.
type queueMetrics struct {
	db      *pg.DB
	log     *slog.Logger
	tenants int32 // how many have series of their own

	up                               *prometheus.Desc
	available, active, oldest, ratio *prometheus.Desc
	utilization, starved             *prometheus.Desc
	tenant                           tenantDescs

	mu   sync.Mutex // protects the fields below; held during a read, so that other scrapers get its result
	next time.Time  // when the database may be read again
	rows []sqlcgen.QueueGaugesRow
	more []sqlcgen.PoolGaugesRow
	of   []sqlcgen.TenantGaugesRow
	err  error
}

// tenantDescs describe the metrics of tenants (ojs-multi-tenancy section 11.2).
type tenantDescs struct{ depth, active, enqueued, processed, failed, share *prometheus.Desc }

func newTenantDescs() tenantDescs {
	of := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ojs_tenant_"+name, help, append([]string{"tenant_id"}, labels...), nil)
	}
	return tenantDescs{
		depth:     of("queue_depth", "Jobs of the tenant that are available.", "queue"),
		active:    of("jobs_active", "Jobs of the tenant in workers' hands.", "queue"),
		enqueued:  of("jobs_enqueued_total", "Jobs that the tenant has enqueued.", "queue"),
		processed: of("jobs_processed_total", "Attempts that ended in completion or failure.", "queue"),
		failed:    of("jobs_failed_total", "Attempts that failed.", "queue"),
		share:     of("fairness_share", "The tenant's part of all jobs handed out in the last minute."),
	}
}

// newQueueMetrics returns the collector for a registry. So many tenants have series of their own.
func newQueueMetrics(db *pg.DB, log *slog.Logger, tenants int32) *queueMetrics {
	of := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"queue"}, nil)
	}
	return &queueMetrics{
		db: db, log: log, tenants: tenants, tenant: newTenantDescs(),
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
func (m *queueMetrics) Describe(to chan<- *prometheus.Desc) {
	t := &m.tenant
	for _, d := range [...]*prometheus.Desc{
		m.up, m.available, m.active, m.oldest, m.ratio, m.utilization, m.starved,
		t.depth, t.active, t.enqueued, t.processed, t.failed, t.share,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *queueMetrics) Collect(to chan<- prometheus.Metric) {
	rows, more, tenants, err := m.read()
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
	m.tenant.collect(to, tenants)
}

func (t *tenantDescs) collect(to chan<- prometheus.Metric, rows []sqlcgen.TenantGaugesRow) {
	for i := range rows {
		r := &rows[i]
		if r.Queue == "" {
			to <- prometheus.MustNewConstMetric(t.share, prometheus.GaugeValue, r.Share, r.TenantID)
			continue
		}
		number := func(d *prometheus.Desc, kind prometheus.ValueType, n int64) {
			to <- prometheus.MustNewConstMetric(d, kind, float64(n), r.TenantID, r.Queue)
		}
		number(t.depth, prometheus.GaugeValue, r.Depth)
		number(t.active, prometheus.GaugeValue, r.Active)
		number(t.enqueued, prometheus.CounterValue, r.Enqueued)
		number(t.processed, prometheus.CounterValue, r.Processed)
		number(t.failed, prometheus.CounterValue, r.Failed)
	}
}

// read reads the numbers from the database, or returns those of the last read, or its error, if it
// is too early for the next one.
func (m *queueMetrics) read() ([]sqlcgen.QueueGaugesRow, []sqlcgen.PoolGaugesRow, []sqlcgen.TenantGaugesRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := time.Now()
	if began.Before(m.next) {
		return m.rows, m.more, m.of, m.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), gaugesPatience)
	defer cancel()
	sql := sqlcgen.New(m.db.Within(gaugesTimeout))
	if m.rows, m.err = sql.QueueGauges(ctx, dispatch.MetricQueues); m.err == nil {
		m.more, m.err = sql.PoolGauges(ctx, dispatch.MetricQueues)
	}
	if m.err == nil {
		m.of, m.err = sql.TenantGauges(ctx, m.tenants)
	}
	took := time.Since(began)
	pause := gaugesPause * took
	if m.err != nil {
		m.log.Warn("the numbers of queues are left out of the metrics", "error", m.err)
		pause = took // the time went into waiting for a database that may be back soon
	}
	m.next = time.Now().Add(max(gaugesEvery, pause))
	return m.rows, m.more, m.of, m.err
}
