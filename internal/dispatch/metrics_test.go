package dispatch

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// series returns the number of time series of a collector.
func series(c prometheus.Collector) (n int) {
	shown := make(chan prometheus.Metric)
	go func() {
		c.Collect(shown)
		close(shown)
	}()
	for range shown {
		n++
	}
	return n
}

// MetricQueues queues have time series of their own, and all further queues share one.
func TestQueuesOfMetricsAreBounded(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	for range 2 {
		for i := range MetricQueues + 100 {
			m.handedOut([]sqlcgen.OjsJob{{Queue: fmt.Sprint("q", i)}}, noPool)
		}
	}
	if n := series(m.dispatched); n != MetricQueues+1 {
		t.Errorf("%d series of queues, want %d", n, MetricQueues+1)
	}
	if len(m.queues) != MetricQueues+1 {
		t.Errorf("%d queues are remembered", len(m.queues))
	}
}
