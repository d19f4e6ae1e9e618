package pg_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// A statement that takes too long is broken off, and the connection is as it was.
func TestWithin(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Open()
	conn, err := db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := conn.Conn().PgConn().PID()
	conn.Release()
	brief := db.Within(10 * time.Millisecond)
	var late *pgconn.PgError
	if _, err := brief.Exec(t.Context(), "select pg_sleep(3600)"); !errors.As(err, &late) || late.Code != "57014" {
		t.Errorf("a statement without an end: %v", err)
	}
	for _, limit := range []pg.Brief{brief, db.Within(time.Hour)} {
		var setting string
		if err := limit.QueryRow(t.Context(), "select current_setting('statement_timeout')").Scan(&setting); err != nil || setting == "0" {
			t.Errorf("the limit is %q, %v", setting, err)
		}
	}
	var setting string
	var same uint32
	err = db.Pool().QueryRow(t.Context(), "select current_setting('statement_timeout'), pg_backend_pid()").Scan(&setting, &same)
	if err != nil || setting != "0" || same != pid {
		t.Errorf("afterwards the limit is %q, %v; the session is %d, and was %d", setting, err, same, pid)
	}
}

// value is that of the one series of a collector.
func value(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(c)
	families, err := all.Gather()
	if err != nil || len(families) != 1 || len(families[0].Metric) != 1 {
		t.Fatalf("%v, %v: want one series", families, err)
	}
	return families[0].Metric[0].GetGauge().GetValue()
}

func TestMetricsOfTheListener(t *testing.T) {
	t.Parallel()
	listener := pg.NewListener(pgtest.New(t).Open(), slog.New(slog.DiscardHandler))
	connections := listener.Metrics()[0]
	if n := value(t, connections); n != 0 {
		t.Errorf("%v connections before it runs", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { listener.Run(ctx) })
	pgtest.Eventually(t, "it listens", func() bool { return value(t, connections) == 1 })
	stop()
	running.Wait()
	if n := value(t, connections); n != 0 {
		t.Errorf("%v connections after it ran", n)
	}
}
