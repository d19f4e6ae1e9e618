package notify

import "github.com/prometheus/client_golang/prometheus"

// Metrics returns the collectors of the listener, for a Prometheus registry.
func (l *Listener) Metrics() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ojs_listener_connections", Help: "Connections that listen for commits: 1, or 0 while FETCHes that wait have to poll.",
		}, func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.listening {
				return 1
			}
			return 0
		}),
	}
}
