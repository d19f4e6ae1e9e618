package sched

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A clock that differs from PostgreSQL's is logged once, has a metric, and stands in ojs.doctor.
func TestAClockThatDiffersFromPostgreSQLsIsTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		ahead time.Duration
		told  string
	}{
		{"ahead", 2 * time.Minute, "ahead of PostgreSQL's"},
		{"behind", -2 * time.Minute, "behind PostgreSQL's"},
		{"within the leeway", 3 * time.Second, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t)
			log := &pgtest.Log{}
			s := New(d.Open(), nil, slog.New(slog.NewTextHandler(log, nil)), 5*time.Millisecond)
			s.wall.now = func() time.Time { return time.Now().Add(c.ahead) }
			all := prometheus.NewRegistry()
			all.MustRegister(s.Metrics()...)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { s.Run(ctx); close(done) }()
			pgtest.Eventually(t, "several ticks", func() bool { return metric(t, all, "ojs_tick_duration_seconds") > 5 })
			stop()
			<-done
			const said = "the clock of this machine differs from PostgreSQL's"
			if n := strings.Count(log.String(), said); n != min(1, len(c.told)) {
				t.Errorf("logged %d times: %s", n, log.String())
			}
			if ahead := metric(t, all, "ojs_clock_ahead_seconds"); math.Abs(ahead-c.ahead.Seconds()) > 2 {
				t.Errorf("the metric says %v s", ahead)
			}
			found := strings.Join(pgtest.List[string](t, d.Operator(), "select finding from ojs.doctor() where topic = 'clock'"), "\n")
			if told := strings.Contains(found, "The clock of server "); told != (c.told != "") || !strings.Contains(found, c.told) {
				t.Errorf("ojs.doctor says: %s", found)
			}
		})
	}
}
