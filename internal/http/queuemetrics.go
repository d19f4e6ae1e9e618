package httpapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	// gaugesEvery is the shortest time between two reads of the database, however many scrapers ask
	// for metrics. After a read, the next one comes gaugesPause times its duration later at the
	// earliest: so metrics keep a session busy for at most a tenth of the time.
	gaugesEvery = time.Second
	gaugesPause = 9

	// metricQueues is how many queues have series of their own. All later queues share the series
	// _other, so that a client that makes up names fills no memory, here or in Prometheus.
	metricQueues = 1000

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

	up, age                          *prometheus.Desc
	available, active, oldest, ratio *prometheus.Desc
	utilization, starved             *prometheus.Desc
	dispatched, wait                 *prometheus.Desc
	tenant                           tenantDescs

	mu   sync.Mutex // protects the fields below; held during a read, so that other scrapers get its result
	next time.Time  // when the database may be read again
	last numbers
	err  error
}

// numbers is the result of a read.
type numbers struct {
	queues   []sqlcgen.QueueGaugesRow
	pools    []sqlcgen.PoolGaugesRow
	counters []sqlcgen.DispatchCountersRow
	bounds   []float64 // the lower bounds of the classes of waits in counters, seconds
	tenants  []sqlcgen.TenantGaugesRow
}

// tenantDescs describe the metrics of tenants (ojs-multi-tenancy section 11.2).
type tenantDescs struct {
	depth, active, enqueued, processed, failed, failedAttempts, share, wait *prometheus.Desc
}

func newTenantDescs() tenantDescs {
	of := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ojs_tenant_"+name, help, append([]string{"tenant_id"}, labels...), nil)
	}
	return tenantDescs{
		depth:     of("queue_depth", "Jobs of the tenant that are available.", "queue"),
		active:    of("jobs_active", "Jobs of the tenant in workers' hands.", "queue"),
		enqueued:  of("jobs_enqueued_total", "Jobs that the tenant has enqueued.", "queue"),
		processed: of("jobs_processed_total", "Jobs that were completed or failed for good.", "queue"),
		failed:    of("jobs_failed_total", "Jobs that failed for good: they were discarded.", "queue"),
		share:     of("fairness_share", "The tenant's part of all jobs handed out in the last minute."),

		failedAttempts: of("attempts_failed_total", "Attempts that failed, whether the job was retried or not.", "queue"),
		wait:           of("queue_wait_duration", "Seconds from when jobs of the tenant became available to when they were handed out."),
	}
}

// newQueueMetrics returns the collector for a registry. So many tenants have series of their own.
func newQueueMetrics(db *pg.DB, log *slog.Logger, tenants int32) *queueMetrics {
	of := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"queue"}, nil)
	}
	return &queueMetrics{
		db: db, log: log, tenants: tenants, tenant: newTenantDescs(),
		age: prometheus.NewDesc("ojs_statistics_age_seconds",
			"How long ago the journals were rolled up, if they have had rows since; else 0.", nil, nil),
		dispatched: prometheus.NewDesc("ojs_scheduling_dispatch_total", "Jobs handed out, by all servers and in SQL.",
			[]string{"queue", "pool"}, nil),
		wait:      of("ojs_scheduling_queue_wait_duration", "Seconds from when a job became available to when it was handed out."),
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
		m.up, m.age, m.available, m.active, m.oldest, m.ratio, m.utilization, m.starved, m.dispatched, m.wait,
		t.depth, t.active, t.enqueued, t.processed, t.failed, t.failedAttempts, t.share, t.wait,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *queueMetrics) Collect(to chan<- prometheus.Metric) {
	n, err := m.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if err != nil {
		gauge(m.up, 0)
		return
	}
	gauge(m.up, 1)
	for i := range n.queues {
		q := &n.queues[i]
		gauge(m.available, float64(q.Available), q.Queue)
		gauge(m.active, float64(q.Active), q.Queue)
		gauge(m.oldest, q.OldestWaitSeconds, q.Queue)
		gauge(m.ratio, q.DispatchRatio, q.Queue)
	}
	for _, r := range n.pools {
		switch r.What {
		case "starved":
			to <- prometheus.MustNewConstMetric(m.starved, prometheus.CounterValue, r.Value, r.Subject)
		case "age":
			gauge(m.age, r.Value)
		default:
			gauge(m.utilization, r.Value, r.Subject)
		}
	}
	for i := range n.counters {
		if r := &n.counters[i]; r.Pool != "" {
			to <- prometheus.MustNewConstMetric(m.dispatched, prometheus.CounterValue, float64(r.Jobs), r.Queue, r.Pool)
		} else {
			to <- prometheus.MustNewConstHistogram(m.wait, uint64(r.Jobs), r.WaitedSeconds, waitBuckets(r.Waits, n.bounds), r.Queue)
		}
	}
	m.tenant.collect(to, n.tenants)
}

// shownBounds are the bounds of the buckets of waits. The database counts waits in more classes, and
// each of these bounds is the lower bound of one of them.
var shownBounds = []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600}

// waitBuckets returns how many jobs waited for less than each of shownBounds. waits: how many jobs
// are in each class; bounds: the lower bounds of the classes. (Prometheus would have counted a wait
// that equals a bound in the bucket below.)
func waitBuckets(waits []int64, bounds []float64) map[float64]uint64 {
	buckets := make(map[float64]uint64, len(shownBounds))
	for _, most := range shownBounds {
		buckets[most] = 0
		for class, jobs := range waits {
			if class < len(bounds) && bounds[class] < most {
				buckets[most] += uint64(jobs)
			}
		}
	}
	return buckets
}

func (t *tenantDescs) collect(to chan<- prometheus.Metric, rows []sqlcgen.TenantGaugesRow) {
	for i := range rows {
		r := &rows[i]
		if r.Queue == "" {
			to <- prometheus.MustNewConstMetric(t.share, prometheus.GaugeValue, r.Share, r.TenantID)
			to <- prometheus.MustNewConstSummary(t.wait, uint64(r.HandedOut), r.WaitedSeconds, nil, r.TenantID)
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
		number(t.failedAttempts, prometheus.CounterValue, r.FailedAttempts)
	}
}

// read reads the numbers from the database, or returns those of the last read, or its error, if it
// is too early for the next one.
func (m *queueMetrics) read() (numbers, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := time.Now()
	if began.Before(m.next) {
		return m.last, m.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), gaugesPatience)
	defer cancel()
	sql := sqlcgen.New(m.db.Within(gaugesTimeout))
	m.last, m.err = readNumbers(ctx, sql, m.tenants)
	took := time.Since(began)
	pause := gaugesPause * took
	if m.err != nil {
		m.log.Warn("the numbers of queues are left out of the metrics", "error", m.err)
		pause = took // the time went into waiting for a database that may be back soon
	}
	m.next = time.Now().Add(max(gaugesEvery, pause))
	return m.last, m.err
}

func readNumbers(ctx context.Context, sql *sqlcgen.Queries, tenants int32) (n numbers, err error) {
	if n.queues, err = sql.QueueGauges(ctx, metricQueues); err != nil {
		return n, err
	}
	if n.pools, err = sql.PoolGauges(ctx, metricQueues); err != nil {
		return n, err
	}
	if n.counters, err = sql.DispatchCounters(ctx, metricQueues); err != nil {
		return n, err
	}
	if n.bounds, err = sql.WaitBounds(ctx); err != nil {
		return n, err
	}
	n.tenants, err = sql.TenantGauges(ctx, tenants)
	return n, err
}
