package sched

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// run starts a scheduler that is stopped, and seen to stop, at the end of the test.
func run(t *testing.T, db *pgtest.DB, log *logs, every time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s := New(db.Open(), slog.New(slog.NewTextHandler(log, nil)), every)
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func eventually(t *testing.T, db *pgtest.DB, what, query string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		var ok bool
		if err := db.Pool.QueryRow(t.Context(), query).Scan(&ok); err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestDueJobsBecomeAvailableAndDeadWorkersLoseTheirs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `
		select ojs.enqueue('later', p_scheduled_at => now() + interval '100 milliseconds', p_queue => 'due');
		select ojs.enqueue('abandoned', p_queue => 'held');
		select * from ojs.fetch(array['held'], p_visibility_timeout_ms => 1000)`); err != nil {
		t.Fatal(err)
	}
	// Two servers tick at once, and nothing is done twice.
	log := &logs{}
	run(t, db, log, 10*time.Millisecond)
	run(t, db, log, 10*time.Millisecond)
	eventually(t, db, "the scheduled job is available", "select state = 'available' from ojs.job where queue = 'due'")
	eventually(t, db, "the abandoned job is available", "select state = 'available' and attempt = 1 from ojs.job where queue = 'held'")
	eventually(t, db, "the statistics are rolled up", "select count(*) = 2 from ojs.tally")
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

func TestMoreThanOneBatchIsDoneWithoutPause(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `
		insert into ojs.jobs (tenant_id, type, scheduled_at) select 'acme', 'a', now() + interval '10 milliseconds' from generate_series(1, 2500)`); err != nil {
		t.Fatal(err)
	}
	eventually(t, db, "the jobs are due", "select now() > max(scheduled_at) from ojs.job")
	// The next beat is an hour away, so the three batches belong to the first.
	run(t, db, &logs{}, time.Hour)
	eventually(t, db, "all are available", "select count(*) = 2500 from ojs.job where state = 'available'")
}

func TestErrorsAreLoggedAndSurvived(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), "alter function ojs.tick(int) rename to tick_away"); err != nil {
		t.Fatal(err)
	}
	log := &logs{}
	run(t, db, log, 5*time.Millisecond)
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(log.String(), "the tick failed") {
		if time.Now().After(deadline) {
			t.Fatal("the failure was not logged")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := db.Pool.Exec(t.Context(), `alter function ojs.tick_away(int) rename to tick;
		select ojs.enqueue('later', p_scheduled_at => now() + interval '10 milliseconds')`); err != nil {
		t.Fatal(err)
	}
	eventually(t, db, "the scheduled job is available", "select state = 'available' from ojs.job")
}
