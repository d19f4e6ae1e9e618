package sched

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts the ticks of a clock.
type metrics struct {
	seconds  prometheus.Histogram
	failures prometheus.Counter
	ahead    prometheus.Gauge
	// due is the time at which the next tick, or the one under way, is due; nil: the clock does not run.
	due atomic.Pointer[time.Time]
}

func newMetrics() *metrics {
	return &metrics{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ojs_tick_duration_seconds", Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30},
			Help: "How long a call of ojs.tick took.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "ojs_tick_failures_total", Help: "Calls of ojs.tick that failed."}),
		ahead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ojs_clock_ahead_seconds", Help: "How far the clock of this machine is ahead of PostgreSQL's; less than 0: behind.",
		}),
	}
}

// Metrics returns the collectors of the clock for a registry.
func (s *Scheduler) Metrics() []prometheus.Collector {
	return []prometheus.Collector{
		s.metrics.seconds, s.metrics.failures, s.metrics.ahead,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ojs_tick_lag_seconds", Help: "How long ago the tick was due that comes next or is under way; 0 when none is.",
		}, func() float64 { return s.metrics.lag(time.Now()).Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ojs_on_duty", Help: "Whether this server does what is to be done once for all servers: 1 or 0.",
		}, func() float64 {
			if s.Duty.Held() {
				return 1
			}
			return 0
		}),
	}
}

// dueAt notes when the next tick is due.
func (m *metrics) dueAt(at time.Time) { m.due.Store(&at) }

// lag returns for how long the next tick, or the one under way, has been due.
func (m *metrics) lag(now time.Time) time.Duration {
	due := m.due.Load()
	if due == nil {
		return 0
	}
	return max(0, now.Sub(*due))
}
