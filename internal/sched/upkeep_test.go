package sched

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// keepsUp starts an Upkeep with a listener of its own, and returns when the listener is connected.
// At the end of the test it stops both and waits for their end.
func keepsUp(t *testing.T, db *pgtest.DB, log *pgtest.Log) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	opened := db.Open()
	logger := slog.New(slog.NewTextHandler(log, nil))
	listener := notify.New(opened, logger)
	running.Go(func() { listener.Run(ctx) })
	running.Go(func() { NewUpkeep(opened, listener, logger).Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	connected(t, listener)
}

func TestUpkeepNoticesNewSettings(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), "select ojs.configure(p_retention => '0')"); err != nil {
		t.Fatal(err)
	}
	log := &pgtest.Log{}
	keepsUp(t, db, log)
	if _, err := db.Pool.Exec(t.Context(), "select ojs.configure(p_retention => '1 day')"); err != nil {
		t.Fatal(err)
	}
	// Without the notification this would take up to a minute.
	db.Eventually("the table is cut", "select count(*) = 2 from ojs.job_partitions")
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

// Two servers drop finished jobs after ten seconds while producers and workers go on. No producer and
// no worker sees an error, and no job is lost.
func TestUpkeepBesideWork(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), "select ojs.configure(p_retention => '10 seconds')"); err != nil {
		t.Fatal(err)
	}
	log := &pgtest.Log{}
	run(t, db, log, Every)
	keepsUp(t, db, log)
	keepsUp(t, db, log)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	work := func(sql string) {
		running.Go(func() {
			for ctx.Err() == nil {
				if _, err := db.Service().Exec(t.Context(), sql); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	// No faster than the workers: else every partition would hold jobs that wait on a loaded machine, and
	// none could be dropped.
	work("insert into ojs.jobs (tenant_id, type, scheduled_at) select 'acme', 'a', clock_timestamp() + n * interval '1 second' from " +
		"generate_series(0, 4) n where (select count(*) from (select from ojs.job where state = 'available' limit 100) b) < 100")
	for range 2 {
		work("select ojs.ack(id, lease) from ojs.fetch('{default}', 10)")
	}
	const dropped = "(select max(until_at) from ojs.job_partitions where partition like 'job\\_before\\_%')"
	db.Eventually("the first drop", "select "+dropped+" is not null")
	first := pgtest.One[time.Time](t, db.Pool, "select "+dropped)
	db.Eventually("another drop", "select "+dropped+" > $1", first)
	stop()
	running.Wait()
	db.Eventually("all jobs are due", "select not exists (select from ojs.job where state = 'scheduled')")
	for {
		tag, err := db.Service().Exec(t.Context(), "select ojs.ack(id, lease) from ojs.fetch('{default}', 1000)")
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 0 {
			break
		}
	}
	var made, completed, there int
	if err := db.Pool.QueryRow(t.Context(), "select sum(total_jobs)::int, sum(completed)::int, (select count(*) from ojs.job) from "+
		"ojs.shard_stats").Scan(&made, &completed, &there); err != nil {
		t.Fatal(err)
	}
	if made != completed || there >= made {
		t.Errorf("of %d jobs %d were completed, and %d are there", made, completed, there)
	}
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

func TestUpkeepSurvivesErrors(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), "alter function ojs.upkeep() rename to upkeep_away"); err != nil {
		t.Fatal(err)
	}
	log := &pgtest.Log{}
	keepsUp(t, db, log)
	pgtest.Eventually(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "the upkeep failed") })
	if _, err := db.Pool.Exec(t.Context(), "alter function ojs.upkeep_away() rename to upkeep"); err != nil {
		t.Fatal(err)
	}
	db.Eventually("the table is cut", "select count(*) = 2 from ojs.job_partitions")
}

// A step of the upkeep has no time limit, but it is broken off when the server stops.
func TestUpkeepEndsWithItsServer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `alter function ojs.upkeep() rename to upkeep_away;
		create function ojs.upkeep() returns ojs.upkeep_result begin atomic select null::ojs.upkeep_result from pg_sleep(3600);
			end`); err != nil {
		t.Fatal(err)
	}
	opened := db.Open()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		NewUpkeep(opened, nil, slog.New(slog.DiscardHandler)).Run(ctx)
	}()
	const asleep = "select %s exists (select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep')"
	db.Eventually("a step is under way", fmt.Sprintf(asleep, ""))
	stop()
	<-ended
	db.Eventually("the step has ended", fmt.Sprintf(asleep, "not"))
}
