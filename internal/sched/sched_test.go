package sched

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv("OJS_TEST_CLOCK"); url != "" {
		clockProcess(url)
		return
	}
	os.Exit(pgtest.Main(m))
}

// clockProcess runs a server's listener and Scheduler until the process is killed. TestMain calls it
// when the test binary was started again as a clock.
func clockProcess(url string) {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute) // if the test does not kill it
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	db, err := pg.Open(ctx, pg.Config{URL: url, AppName: os.Getenv("OJS_TEST_CLOCK_NAME")})
	if err != nil {
		log.Error(err.Error())
		return
	}
	defer db.Close()
	listener := notify.New(db, log)
	go listener.Run(ctx)
	New(db, listener, log, 0).Run(ctx)
}

// warnings returns a logger that writes warnings and errors to log. Tests want log to stay empty.
func warnings(log *pgtest.Log) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// run starts a Scheduler without a listener. At the end of the test it stops the Scheduler and waits
// for its end.
func run(t *testing.T, db *pgtest.DB, log *pgtest.Log, every time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s := New(db.Open(), nil, warnings(log), every)
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// due runs a statement with the schema's clock an hour behind, so that a job that it schedules half an
// hour ahead is due now. A job scheduled a few milliseconds ahead might be due before it is stored on a
// slow machine, and would then need no tick.
func due(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	db.SetNow(time.Now().Add(-time.Hour))
	pgtest.Exec(t, db.Pool, sql, args...)
	db.SetNow(time.Time{})
}

const enqueueDue = "select ojs.enqueue('later', p_scheduled_at => ojs.now() + interval '30 minutes', p_queue => $1)"

func TestDueJobsBecomeAvailableAndDeadWorkersLoseTheirs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	due(t, db, enqueueDue, "due")
	pgtest.Exec(t, db.Pool, "select ojs.enqueue('abandoned', p_queue => 'held')")
	pgtest.Exec(t, db.Pool, "select * from ojs.fetch(array['held'], p_visibility_timeout_ms => 1000)")
	// Two servers tick at once, and nothing is done twice.
	log := &pgtest.Log{}
	run(t, db, log, 10*time.Millisecond)
	run(t, db, log, 10*time.Millisecond)
	db.Eventually("the scheduled job is available", "select state = 'available' from ojs.job where queue = 'due'")
	db.Eventually("the abandoned job is available", "select state = 'available' and attempt = 1 from ojs.job where queue = 'held'")
	db.Eventually("the statistics are rolled up", "select count(*) = 2 from ojs.tally")
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

func TestMoreThanOneBatchIsDoneWithoutPause(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	due(t, db, `
		insert into ojs.jobs (tenant_id, type, scheduled_at)
		select 'acme', 'a', ojs.now() + interval '30 minutes' from generate_series(1, 2500)`)
	// The interval is an hour, so all three batches belong to the first tick.
	run(t, db, &pgtest.Log{}, time.Hour)
	db.Eventually("all are available", "select count(*) = 2500 from ojs.job where state = 'available'")
}

func TestErrorsAreLoggedAndSurvived(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), "alter function ojs.tick(int, text, int, int) rename to tick_away"); err != nil {
		t.Fatal(err)
	}
	log := &pgtest.Log{}
	run(t, db, log, 5*time.Millisecond)
	pgtest.Eventually(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "the tick failed") })
	pgtest.Exec(t, db.Pool, "alter function ojs.tick_away(int, text, int, int) rename to tick")
	due(t, db, enqueueDue, "due")
	db.Eventually("the scheduled job is available", "select state = 'available' from ojs.job")
	pgtest.Eventually(t, "its end is logged", func() bool { return strings.Contains(log.String(), "the tick works again") })
}

// The log tells that dispatch is held, once for each change. An operator who wonders why no job runs
// finds it there.
func TestHeldDispatchIsLogged(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	log := &pgtest.Log{}
	run(t, db, log, 5*time.Millisecond)
	for range 2 {
		was := log.String()
		pgtest.Exec(t, db.Pool, "select ojs.hold_dispatch()")
		pgtest.Eventually(t, "it is logged that dispatch is held", func() bool {
			return strings.Count(log.String()[len(was):], "level=WARN msg=\"dispatch is held: nothing runs until ") == 1
		})
		pgtest.Exec(t, db.Pool, "select ojs.resume_dispatch()")
		pgtest.Eventually(t, "it is logged that dispatch goes on", func() bool {
			return strings.Count(log.String()[len(was):], "msg=\"dispatch is held no longer\"") == 1
		})
	}
	if n := strings.Count(log.String(), "\n"); n != 4 {
		t.Errorf("there are %d lines: %s", n, log)
	}
}

func TestATickThatIsTooMuchIsMadeSmaller(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `alter function ojs.tick(int, text, int, int) rename to tick_itself;
		create function ojs.tick(p_limit int, p_token text, p_stride_ms int, p_backend int) returns ojs.tick_result language plpgsql
			security definer as $$
		begin
			if p_limit > 100 then
				raise query_canceled;
			end if;
			return ojs.tick_itself(p_limit, p_token, p_stride_ms, p_backend);
		end $$;
		grant execute on function ojs.tick(int, text, int, int) to ojs_service`); err != nil {
		t.Fatal(err)
	}
	due(t, db, enqueueDue, "due")
	run(t, db, &pgtest.Log{}, 5*time.Millisecond)
	db.Eventually("the scheduled job is available", "select state = 'available' from ojs.job")
}

// The clock ticks while the planning of cron jobs waits for a lock.
func TestTheClockGoesOnWhileCronJobsArePlanned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	held, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	for _, sql := range []string{
		`create table public.slow (); alter function ojs.unplanned_crons(int) rename to unplanned_itself;
		create function ojs.unplanned_crons(p_limit int) returns table (id uuid, rev bigint, expression text, timezone text, anchor_at
			timestamptz, after_at timestamptz) language sql security definer as $$
			select from public.slow; select * from ojs.unplanned_itself(p_limit) $$;
		grant execute on function ojs.unplanned_crons(int) to ojs_service; select ojs.put_cron('c', '@daily', 'a')`,
	} {
		if _, err := db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := held.Exec(t.Context(), "lock table public.slow"); err != nil {
		t.Fatal(err)
	}
	run(t, db, &pgtest.Log{}, 5*time.Millisecond)
	db.Eventually("cron jobs are being planned",
		"select exists (select from pg_locks where relation = 'public.slow'::regclass and not granted)")
	const planning = "select coalesce(min(a.query_start), 'epoch') from pg_locks l join pg_stat_activity a using (pid) where " +
		"l.relation = 'public.slow'::regclass and not l.granted"
	var began, begun time.Time
	if err := db.Pool.QueryRow(t.Context(), planning).Scan(&began); err != nil {
		t.Fatal(err)
	}
	due(t, db, enqueueDue, "due")
	db.Eventually("the scheduled job is available", "select state = 'available' from ojs.job")
	if err := db.Pool.QueryRow(t.Context(), planning).Scan(&begun); err != nil || !begun.Equal(began) {
		t.Errorf("the scheduled job waited for the plan that began at %s: %s, %v", began, begun, err)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Eventually("the cron job is planned", "select upcoming <> '{}' from ojs.cron")
}

// heavySleepers makes a clock that may sleep for as long as it ever does sleep for an hour, so that a
// later tick shows that it was woken. It returns a function that counts ticks.
func heavySleepers(t *testing.T, db *pgtest.DB) (ticks func() int) {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), `
		create sequence public.ticks minvalue 0 start 0;
		alter function ojs.tick(int, text, int, int) rename to tick_itself;
		create function ojs.tick(p_limit int, p_token text, p_stride_ms int, p_backend int) returns ojs.tick_result language plpgsql
			security definer as $$
		declare
			v_result ojs.tick_result := ojs.tick_itself(p_limit, p_token, p_stride_ms, p_backend);
		begin
			perform nextval('public.ticks');
			if v_result.next_in_ms > 8000 then
				v_result.next_in_ms := 3600000;
			end if;
			return v_result;
		end $$;
		select nextval('public.ticks')`); err != nil {
		t.Fatal(err)
	}
	return func() (n int) {
		t.Helper()
		if err := db.Pool.QueryRow(t.Context(), "select last_value from public.ticks").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// start starts a clock with a listener of its own. stop ends both and waits for their end. The
// listener is connected before the clock starts: its connection would wake the clock, and a clock that
// is woken twice within a second stays awake.
func start(t *testing.T, db *pgtest.DB, log *pgtest.Log, every time.Duration) (s *Scheduler, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	opened := db.Open()
	logger := warnings(log)
	listener := notify.New(opened, logger)
	s = New(opened, listener, logger, every)
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	running.Go(func() { listener.Run(ctx) })
	connected(t, listener)
	running.Go(func() { s.Run(ctx) })
	return s, stop
}

func connected(t *testing.T, listener *notify.Listener) {
	t.Helper()
	pgtest.Eventually(t, "the listener is connected", func() bool { return listener.Backend() != 0 })
}

// asleep starts a clock and returns when SQL has it registered as asleep.
func asleep(t *testing.T, db *pgtest.DB, log *pgtest.Log, every time.Duration) *Scheduler {
	t.Helper()
	s, _ := start(t, db, log, every)
	db.Eventually("the clock sleeps", fmt.Sprintf("select exists (select from ojs.sleeper where token = '%s')", s.token))
	return s
}

func TestSleepingClockIsWokenForWhatIsDueSoon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, sql string }{
		{"a scheduled job", "insert into ojs.jobs (tenant_id, type, scheduled_at) values ('acme', 'a', clock_timestamp() + interval " +
			"'300 milliseconds')"},
		{"a failed job", `select from ojs.enqueue('a', p_retry => '{"initial_interval_ms": 300}');
			select from (select ojs.nack(f.id, '{"message": "x"}') from ojs.fetch('{default}') f) x`},
		{"a lost job", "select from ojs.enqueue('a'); select from ojs.fetch('{default}', p_visibility_timeout_ms => 1000)"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			ticks := heavySleepers(t, db)
			log := &pgtest.Log{}
			asleep(t, db, log, time.Millisecond)
			before := ticks()
			if _, err := db.Pool.Exec(t.Context(), c.sql); err != nil {
				t.Fatal(err)
			}
			db.Eventually(c.what+" is available", "select state = 'available' from ojs.job")
			// A clock that does not sleep would have ticked hundreds of times, at an interval of a millisecond.
			if got := ticks() - before; got > 40 {
				t.Errorf("%d ticks until then", got)
			}
			if log.String() != "" {
				t.Errorf("logged %s", log)
			}
		})
	}
}

// Transactions insert timers at all moments of a clock that goes to sleep, and stay open for a while.
// Each timer is noticed.
func TestNothingIsLostBetweenLookingAndSleeping(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	heavySleepers(t, db)
	opened := db.Open()
	log := &pgtest.Log{}
	logger := warnings(log)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	listener := notify.New(opened, logger)
	running.Go(func() { listener.Run(ctx) })
	for range 60 {
		round, end := context.WithCancel(ctx)
		var clock, producers sync.WaitGroup
		clock.Go(func() { New(opened, listener, logger, time.Millisecond).Run(round) })
		for range 3 {
			wait, due, hold := rand.N(12*time.Millisecond), rand.N(20*time.Millisecond), rand.N(20*time.Millisecond)
			producers.Go(func() {
				time.Sleep(wait)
				tx, err := db.Pool.Begin(t.Context())
				if err == nil {
					_, err = tx.Exec(t.Context(), "insert into ojs.jobs (tenant_id, type, scheduled_at) values ('acme', 'a', "+
						"clock_timestamp() + $1::interval)", due)
				}
				if err == nil {
					time.Sleep(hold)
					err = tx.Commit(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		producers.Wait()
		db.Eventually("all are available", "select not exists (select from ojs.job where state = 'scheduled')")
		end()
		clock.Wait()
	}
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

func TestOneOfTwoClocksSleepsAndTheOtherStandsBy(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ticks := heavySleepers(t, db)
	log := &pgtest.Log{}
	asleep(t, db, log, Every)
	second, _ := start(t, db, log, Every)
	before := ticks()
	// 20 commits, however slow the way to the database is: each may wake the clock.
	pgtest.Exec(t, db.Pool, `
		do $$ begin
			for i in 0 .. 19 loop
				insert into ojs.jobs (tenant_id, type, scheduled_at) values ('acme', 'a', clock_timestamp() + i * interval '10 ms');
				commit;
			end loop;
		end $$`)
	db.Eventually("all are available", "select count(*) = 20 from ojs.job where state = 'available'")
	if got := ticks() - before; got > 60 {
		t.Errorf("20 jobs took %d ticks", got)
	}
	db.Eventually("each became available once",
		`select sum(jobs) filter (where from_state = 'scheduled') is not distinct from sum(jobs) filter (where to_state = 'scheduled')
			from ojs.journal`)
	if second.Duty.Held() {
		t.Error("the second clock is on duty, too")
	}
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

// The clock on duty is stopped, in good order or by the end of its connections, again and again. The
// duty, and the work that While runs, passes to another clock.
func TestDutyPassesOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	log := &pgtest.Log{}
	var working atomic.Int32
	type server struct {
		clock *Scheduler
		stop  func()
	}
	begin := func() server {
		clock, stop := start(t, db, log, 10*time.Millisecond)
		ctx, cancel := context.WithCancel(context.Background())
		var loop sync.WaitGroup
		loop.Go(func() {
			clock.Duty.While(ctx, func(ctx context.Context) {
				working.Add(1)
				<-ctx.Done()
				working.Add(-1)
			})
		})
		both := func() { stop(); cancel(); loop.Wait() }
		t.Cleanup(both)
		return server{clock, both}
	}
	first := begin()
	pgtest.Eventually(t, "the first is on duty", first.clock.Duty.Held)
	servers := []server{first, begin(), begin()}
	for len(servers) > 0 {
		if _, err := db.Pool.Exec(t.Context(), "insert into ojs.jobs (tenant_id, type, scheduled_at) values ('acme', 'a', "+
			"clock_timestamp() + interval '100 milliseconds')"); err != nil {
			t.Fatal(err)
		}
		db.Eventually("all are available", "select not exists (select from ojs.job where state = 'scheduled')")
		pgtest.Eventually(t, "one of them works", func() bool { return working.Load() == 1 })
		at := slices.IndexFunc(servers, func(s server) bool { return s.clock.Duty.Held() })
		servers[at].stop()
		servers = slices.Delete(servers, at, at+1)
	}
	pgtest.Eventually(t, "nobody works", func() bool { return working.Load() == 0 })
	db.Eventually("nobody is on duty", "select holder is null from ojs.duty")
	db.Eventually("no clock is registered", "select not exists (select from ojs.sleeper)")
}

func TestClockThatNobodyCanWakeBeats(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	heavySleepers(t, db)
	log := &pgtest.Log{}
	clock := asleep(t, db, log, 5*time.Millisecond)
	for i := range 2 {
		if _, err := db.Pool.Exec(t.Context(), `
			select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query = 'listen ojs_wake';
			insert into ojs.jobs (tenant_id, type, scheduled_at) values ('acme', 'a', clock_timestamp() + interval
				'30 milliseconds')`); err != nil {
			t.Fatal(err)
		}
		db.Eventually("the job is available", fmt.Sprintf("select count(*) = %d from ojs.job where state = 'available'", i+1))
		db.Eventually("the clock sleeps again", fmt.Sprintf("select exists (select from ojs.sleeper where token = '%s')", clock.token))
	}
}

// A clock with nothing to do does not tick.
func TestSleepingClockIsIdle(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ticks := heavySleepers(t, db)
	asleep(t, db, &pgtest.Log{}, time.Millisecond)
	before := ticks()
	if got := pgtest.AtRest(t, "the clock sleeps", func() int64 { return int64(ticks()) }) - int64(before); got > 20 {
		t.Errorf("%d ticks while there was nothing to do", got)
	}
}
