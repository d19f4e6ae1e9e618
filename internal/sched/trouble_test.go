package sched

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// panicky is a log handler that panics at the first line with a given message. It stands for a
// mistake in the code that writes this line.
type panicky struct {
	slog.Handler
	message  string
	panicked *atomic.Bool
}

func (p panicky) Enabled(context.Context, slog.Level) bool { return true }

func (p panicky) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == p.message && !p.panicked.Swap(true) {
		panic("a mistake in " + p.message)
	}
	return p.Handler.Handle(ctx, r)
}

func panickyLog(log *pgtest.Log, message string) (*slog.Logger, *atomic.Bool) {
	p := panicky{slog.NewTextHandler(log, nil), message, &atomic.Bool{}}
	return slog.New(p), p.panicked
}

func inBackground(t *testing.T, run func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func wantLogged(t *testing.T, log *pgtest.Log, panicked *atomic.Bool, text string) {
	t.Helper()
	if !panicked.Load() || !strings.Contains(log.String(), text) || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("panicked: %v; logged: %s", panicked.Load(), log.String())
	}
}

func TestAClockThatPanicsGoesOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	log := &pgtest.Log{}
	logger, panicked := panickyLog(log, "tick")
	inBackground(t, New(db.Open(), nil, logger, 5*time.Millisecond).Run)
	for _, queue := range []string{"first", "second"} {
		due(t, db, enqueueDue, queue)
		db.Eventually("the scheduled job is available", "select state = 'available' from ojs.job where queue = $1", queue)
		pgtest.Eventually(t, "the clock panics", panicked.Load)
	}
	wantLogged(t, log, panicked, "a mistake in tick")
}

func TestPlanningThatPanicsGoesOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// There is no 30 February: the expression is refused with the log line at which the log panics.
	if _, err := db.Pool.Exec(t.Context(), "select ojs.put_cron('bad', '0 0 30 2 *', 'a')"); err != nil {
		t.Fatal(err)
	}
	log := &pgtest.Log{}
	logger, panicked := panickyLog(log, "a cron job cannot be planned")
	inBackground(t, New(db.Open(), nil, logger, 5*time.Millisecond).Run)
	db.Eventually("the database is told why", "select error is not null from ojs.cron")
	wantLogged(t, log, panicked, "a mistake in a cron job")
}

func TestUpkeepThatPanicsGoesOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	log := &pgtest.Log{}
	logger, panicked := panickyLog(log, "upkeep")
	const steps = "select count(*) > 1 from public.steps"
	if _, err := db.Pool.Exec(t.Context(), `
		create table public.steps (at timestamptz default clock_timestamp());
		alter function ojs.upkeep() rename to upkeep_itself;
		create function ojs.upkeep() returns ojs.upkeep_result language plpgsql security definer as $$
		begin
			insert into public.steps default values;
			return ('test', 'step', 10)::ojs.upkeep_result;
		end $$;
		grant execute on function ojs.upkeep() to ojs_service`); err != nil {
		t.Fatal(err)
	}
	inBackground(t, NewUpkeep(db.Open(), nil, logger).Run)
	db.Eventually("there is a second step", steps)
	wantLogged(t, log, panicked, "a mistake in upkeep")
}

// A panic while one cron job is planned keeps no other cron job from being planned in the same call.
func TestACronJobThatPanicsKeepsNoOtherFromBeingPlanned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `
		select ojs.put_cron(name, '0 0 30 2 *', 'a') from unnest(array['a', 'b', 'c']) name`); err != nil {
		t.Fatal(err)
	}
	log := &pgtest.Log{}
	logger, panicked := panickyLog(log, "a cron job cannot be planned")
	if err := NewCron(db.Open(), logger).Plan(t.Context()); err == nil {
		t.Error("no error")
	}
	wantLogged(t, log, panicked, "a mistake in a cron job")
	var planned int
	if err := db.Pool.QueryRow(t.Context(), "select count(*) from ojs.cron where error is not null").Scan(&planned); err != nil ||
		planned != 2 {
		t.Errorf("%d are dealt with (%v)", planned, err)
	}
}

// The cron job that cannot be stored comes first in the list. The others are planned all the same.
func TestABadCronJobKeepsNoOtherFromBeingPlanned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Pool.Exec(t.Context(), `
		select ojs.put_cron(name, '@daily', 'a') from unnest(array['a', 'b', 'c']) name;
		create table public.bad as select id from ojs.unplanned_crons(1);
		grant select on public.bad to public;
		create function public.refuse() returns trigger language plpgsql as $$
		begin
			if new.id in (select id from public.bad) then
				raise 'this one cannot be planned';
			end if;
			return new;
		end $$;
		create trigger refuse before update on ojs.cron for each row execute function public.refuse()`); err != nil {
		t.Fatal(err)
	}
	opened := db.Open()
	err := NewCron(opened, slog.New(slog.DiscardHandler)).Plan(t.Context())
	if err == nil || !strings.Contains(err.Error(), "this one cannot be planned") {
		t.Errorf("got %v", err)
	}
	var planned int
	if err := db.Pool.QueryRow(t.Context(), "select count(*) from ojs.cron where upcoming <> '{}'").Scan(&planned); err != nil ||
		planned != 2 {
		t.Errorf("%d are planned (%v)", planned, err)
	}
}

// A transaction has a cron job locked. The cron jobs of other tenants are planned meanwhile, and the
// locked one after the commit.
func TestALockedCronJobKeepsNoOtherFromBeingPlanned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Exec(t, db.Pool, "select ojs.put_cron('mine', '@daily', 'a', p_tenant => 'a')")
	held, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	pgtest.Exec(t, held, "select ojs.configure_cron('mine', p_enabled => true, p_tenant => 'a')")
	pgtest.Exec(t, db.Pool, "select ojs.put_cron('theirs', '@daily', 'a', p_tenant => t) from unnest(array['b', 'c']) t")
	log := &pgtest.Log{}
	run(t, db, log, 5*time.Millisecond)
	const planned = "select count(*) = $1::int from ojs.cron where cardinality(upcoming) > 1"
	db.Eventually("the others are planned", planned, 2)
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Eventually("the one that was locked is planned", planned, 3)
	if log.String() != "" {
		t.Errorf("logged %s", log)
	}
}

// More cron jobs are locked than one call of Plan takes, and they come first in the list.
func TestManyLockedCronJobsKeepNoOtherFromBeingPlanned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Exec(t, db.Pool, `
		select ojs.put_cron('c' || n, '@daily', 'a', p_tenant => 't' || n % 2) from generate_series(0, $1::int) n`, maxPlanned)
	held, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	if locked := pgtest.Exec(t, held, "select from ojs.cron for update"); locked <= maxPlanned {
		t.Fatalf("%d are locked", locked)
	}
	pgtest.Exec(t, db.Pool, "select ojs.put_cron('theirs', '@daily', 'a', p_tenant => 'other')")
	pgtest.Exec(t, db.Pool, "select ojs.plan_cron(id, rev, array[now() + interval '1 hour']) from ojs.cron where name = 'theirs'")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // should it wait for one of them
	defer cancel()
	if err := NewCron(db.Open(), slog.New(slog.DiscardHandler)).Plan(ctx); err != nil {
		t.Fatal(err)
	}
	planned := pgtest.List[string](t, db.Pool, "select name from ojs.cron where cardinality(upcoming) > 1")
	if !slices.Equal(planned, []string{"theirs"}) {
		t.Errorf("planned: %q", planned)
	}
}
