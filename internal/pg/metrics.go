package pg

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics returns the collectors of the pool of connections, for a Prometheus registry.
func (d *DB) Metrics() []prometheus.Collector {
	connections := func(state string, number func(*pgxpool.Stat) int32) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ojs_database_connections", Help: "Connections of the pool to the database.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return float64(number(d.pool.Stat())) })
	}
	counter := func(name, help string, number func(*pgxpool.Stat) float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return number(d.pool.Stat()) })
	}
	return []prometheus.Collector{
		connections("in_use", (*pgxpool.Stat).AcquiredConns),
		connections("idle", (*pgxpool.Stat).IdleConns),
		connections("opening", func(s *pgxpool.Stat) int32 { return max(0, s.ConstructingConns()-d.pool.held.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ojs_database_connections_max", Help: "Connections that the pool may have.",
		}, func() float64 { return float64(d.pool.Stat().MaxConns()) }),
		counter("ojs_database_connections_opened_total", "Connections that the pool has opened.",
			func(*pgxpool.Stat) float64 { return float64(d.pool.opened.Load()) }),
		counter("ojs_database_acquires_total", "Times that a statement got a connection of the pool.",
			func(s *pgxpool.Stat) float64 { return float64(s.AcquireCount()) }),
		counter("ojs_database_acquires_waited_total", "Times that it had to wait for one, because all were in use or had to be opened.",
			func(s *pgxpool.Stat) float64 { return float64(s.EmptyAcquireCount()) }),
		counter("ojs_database_acquires_given_up_total", "Times that its time was over before it got one.",
			func(s *pgxpool.Stat) float64 { return float64(s.CanceledAcquireCount()) }),
		counter("ojs_database_acquire_wait_seconds_total", "How long statements have waited for a connection, in sum.",
			func(s *pgxpool.Stat) float64 { return s.EmptyAcquireWaitTime().Seconds() }),
	}
}
