package sched

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// metric returns the value of a gauge or counter, or how many a histogram has.
func metric(t *testing.T, all *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if m := f.Metric[0]; f.GetName() == name {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("there is no %s in %v", name, families)
	return 0
}

func TestMetricsOfTheClock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	door, log := db.Open(), warnings(&pgtest.Log{})
	listener := notify.New(door, log)
	s := New(door, listener, log, time.Hour)
	all := prometheus.NewRegistry()
	all.MustRegister(s.Metrics()...)
	value := func(name string) float64 { return metric(t, all, name) }
	if lag := value("ojs_tick_lag_seconds"); lag != 0 {
		t.Errorf("a clock that does not run is %v s late", lag)
	}

	lock, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, lock, "lock table ojs.settings in access exclusive mode")
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	running.Go(func() { s.Run(ctx) })
	db.BlockedSessions(1)
	before := value("ojs_tick_lag_seconds")
	pgtest.Eventually(t, "the clock is later and later", func() bool { return value("ojs_tick_lag_seconds") > before })
	if n := value("ojs_tick_duration_seconds") + value("ojs_on_duty"); n != 0 {
		t.Errorf("%v before the first tick has ended", n)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the clock is in time", func() bool { return value("ojs_tick_lag_seconds") == 0 })
	pgtest.Eventually(t, "it is on duty", func() bool { return value("ojs_on_duty") == 1 && value("ojs_tick_duration_seconds") > 0 })
	if n := value("ojs_tick_failures_total"); n != 0 {
		t.Errorf("%v ticks failed", n)
	}
	stop()
	running.Wait()
	if n := value("ojs_tick_lag_seconds") + value("ojs_on_duty"); n != 0 || s.metrics.due.Load() != nil {
		t.Errorf("after the clock has stopped it is, or will be, late, or it is on duty: %v", n)
	}

	s = New(door, nil, log, time.Hour)
	all = prometheus.NewRegistry()
	all.MustRegister(s.Metrics()...)
	pgtest.Exec(t, db.Pool, "alter table ojs.settings rename to settings_away")
	ctx, stop = context.WithCancel(t.Context())
	running.Go(func() { s.Run(ctx) })
	pgtest.Eventually(t, "a tick that fails is counted", func() bool { return value("ojs_tick_failures_total") > 0 })
	stop()
	running.Wait()
}
