package db_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// tick calls ojs.tick and returns the numbers of jobs promoted and reaped.
func tick(t testing.TB, q querier, limit int) string {
	t.Helper()
	return lines(t, q, "select promoted, reaped from ojs.tick($1)", limit)[0]
}

// allDue makes all retries, scheduled jobs, and jobs that a decision found locked due now, and calls the
// tick.
func allDue(t testing.TB, d *pgtest.DB) {
	t.Helper()
	exec(t, d.Pool, `with moved as (
			update ojs.job set retry_at = least(retry_at, ojs.now()), scheduled_at = least(scheduled_at, ojs.now())
			where state in ('retryable', 'scheduled')
		), again as (
			update ojs.timer set due_at = least(due_at, ojs.now()) where kind in ('due', 'revisit')
		)
		update ojs.clock_mark set due_at = '-infinity'`)
	tick(t, d.Service(), 100_000)
}

func TestTickPromotesInOrder(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	// Due in another order than they came, and one that was available all the time.
	for _, seconds := range []int{30, 10, 20, 10} {
		exec(t, service, `
			select from ojs.enqueue('s' || $1::text,
				p_scheduled_at => ojs.now() + $1::text::int * interval '1 second')`, strconv.Itoa(seconds))
	}
	exec(t, service, "select from ojs.enqueue('first')")
	exec(t, service, "select from ojs.enqueue('gone', p_scheduled_at => ojs.now() + interval '5 seconds', p_id => $1)", someID)
	exec(t, service, "select from ojs.cancel($1)", someID)
	d.SetNow(noon.Add(time.Minute))
	if got := tick(t, service, 1000); got != "4 0" {
		t.Errorf("a tick promoted and reaped %s, want 4 0", got)
	}
	exec(t, service, "select from ojs.enqueue('last')")
	got := list[string](t, service, "select type from ojs.fetch('{default}', 10)")
	if want := strings.Fields("first s10 s10 s20 s30 last"); !slices.Equal(got, want) {
		t.Errorf("handed out %v, want %v", got, want)
	}
	if got := one[int](t, d.Pool, `
		select count(*) from ojs.job
		where type like 's%' and enqueued_at = $1 and created_at = $2`, noon.Add(time.Minute), noon); got != 4 {
		t.Errorf("%d promoted jobs tell when they became available, want 4", got)
	}
}

func TestTickLooksAtSoMany(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	for i := range 25 {
		exec(t, d.Service(), "select from ojs.enqueue('a', p_scheduled_at => ojs.now() + $1::int * interval '1 millisecond')", i+1)
	}
	d.SetNow(noon.Add(time.Minute))
	for _, want := range []string{"10 0", "10 0", "5 0", "0 0"} {
		if got := tick(t, d.Service(), 10); got != want {
			t.Errorf("a tick that looks at ten timers promoted and reaped %s, want %s", got, want)
		}
	}
}

func TestTickHonoursHeartbeats(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, "insert into ojs.jobs (type) values ('kept'), ('lost')")
	held := jobs(t, service, "ojs.fetch('{default}', 2, 'w')")
	for _, c := range []struct {
		at   time.Duration
		beat bool
		want string
	}{
		{20 * time.Second, true, "0 0"},
		{29 * time.Second, false, "0 0"},
		{30 * time.Second, false, "0 1"},
		{45 * time.Second, true, "0 0"},
		{50 * time.Second, false, "0 0"},
		{74 * time.Second, false, "0 0"},
		{75 * time.Second, false, "0 1"},
		{99 * time.Second, false, "0 0"},
	} {
		d.SetNow(noon.Add(c.at))
		if c.beat {
			if got := jobs(t, service, "ojs.heartbeat('w', array[$1::uuid])", held[0].ID); len(got) != 1 {
				t.Fatalf("after %s a heartbeat extended %v", c.at, got)
			}
		}
		if got := tick(t, service, 1000); got != c.want {
			t.Errorf("after %s a tick promoted and reaped %s, want %s", c.at, got, c.want)
		}
	}
	want := `available 1 visibility_timeout visibility_timeout 1 2031-05-04T12:01:15.000Z`
	if got := lines(t, d.Pool, `
		select state, attempt, errors -> 0 ->> 'code', errors -> 0 ->> 'type', errors -> 0 ->> 'attempt',
			errors -> 0 ->> 'occurred_at'
		from ojs.job where type = 'kept'`); got[0] != want {
		t.Errorf("a job taken back is\n  %s, want\n  %s", got[0], want)
	}
	if got := lines(t, d.Pool, `
		select from_state, to_state, attempt, fenced, started_at is not null from ojs.release
		where job_type = 'kept'`); !slices.Equal(got, []string{"active available 1 true true"}) {
		t.Errorf("the journal says %v", got)
	}
}

// The tick does not wait for a job that another session has locked, and looks at it again later.
func TestTickLooksAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	due := bring(t, d, "retryable", "due")
	held := bring(t, d, "active", "held")
	later := bring(t, d, "scheduled", "later")
	d.SetNow(noon.Add(time.Hour))
	tx := begin(t, service)
	exec(t, tx, "select from ojs.cancel($1)", due.ID)
	exec(t, tx, "select from ojs.ack($1)", held.ID)
	exec(t, tx, "select from ojs.cancel($1)", later.ID)
	if got := tick(t, service, 1000); got != "0 0" {
		t.Errorf("a tick promoted and reaped %s of what another session has locked", got)
	}
	rollback(t, tx)
	if got := tick(t, service, 1000); got != "0 0" {
		t.Errorf("a tick at the same instant promoted and reaped %s, want to look again a second later", got)
	}
	d.SetNow(noon.Add(time.Hour + time.Second))
	if got := tick(t, service, 1000); got != "2 1" {
		t.Errorf("after the rollback a tick promoted and reaped %s, want 2 1", got)
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.timer"); got != 0 {
		t.Errorf("%d timers are left", got)
	}
}

// The clock looks no further back than where it has been, except for those who were not done when it was there.
func TestTickFindsTimersThatCommitLate(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	at := func(seconds int) { d.SetNow(noon.Add(time.Duration(seconds) * time.Second)) }
	enqueue := func(q querier, due int) {
		t.Helper()
		exec(t, q, "select from ojs.enqueue('a', p_scheduled_at => $1)", noon.Add(time.Duration(due)*time.Second))
	}
	want := func(what, promoted string) {
		t.Helper()
		if got := tick(t, service, 1000); got != promoted {
			t.Errorf("%s a tick promoted and reaped %s, want %s", what, got, promoted)
		}
	}
	mark := func() time.Time {
		return one[time.Time](t, d.Pool, "select due_at from ojs.clock_mark order by rev desc limit 1")
	}
	first, second, idle := begin(t, service), begin(t, service), begin(t, service)
	enqueue(first, 5)
	enqueue(second, 6)
	exec(t, idle, "select pg_catalog.pg_current_xact_id()")
	enqueue(service, 7)
	at(10)
	want("beside open transactions", "1 0")
	if got := mark(); !got.Equal(noon.Add(10 * time.Second)) {
		t.Fatalf("the mark is at %s, so this test tests nothing", got)
	}
	commit(t, first)
	at(20)
	enqueue(service, 25)
	want("after the first has committed", "1 0")
	at(30)
	want("later", "1 0")
	if got := mark(); !got.Equal(noon.Add(30 * time.Second)) {
		t.Errorf("the mark has not moved on from %s", got)
	}
	commit(t, second)
	want("after the second has committed", "1 0")
	// Its transaction has a number from before the mark, and its time has passed while it waited for something.
	exec(t, idle, "insert into ojs.jobs (type, scheduled_at) values ('a', $1)", noon.Add(40*time.Second))
	at(50)
	commit(t, idle)
	want("after the third has committed", "1 0")
	want("in the end", "0 0")

	// The wall clock is set back by an hour.
	d.SetNow(noon.Add(-time.Hour))
	exec(t, service, "select from ojs.enqueue('a', p_scheduled_at => ojs.now() + interval '10 seconds')")
	d.SetNow(noon.Add(-time.Hour + 10*time.Second))
	want("after the clock was set back", "1 0")
}

// Others' writes do not keep a clock awake; a timer that may come any moment does.
func TestTickTellsWhenToLookAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	next := func(what string, want int, args ...any) {
		t.Helper()
		if got := one[int](t, service, "select next_in_ms from ojs.tick($1, $2, $3)", args...); got != want {
			t.Errorf("%s the next tick is due in %d ms, want %d", what, got, want)
		}
	}
	d.SetNow(noon)
	next("with nothing to do", 10000, 1000, nil, 0)
	next("not registered before", 0, 1000, "token", 5000)
	next("with nothing to do", 5000, 1000, "token", 5000)
	next("asleep for longer", 0, 1000, "token", 8000)
	next("asleep for longer", 8000, 1000, "token", 8000)
	d.SetNow(noon.Add(2 * time.Minute))
	next("after its registration lapsed", 0, 1000, "token", 8000)
	next("registered again", 8000, 1000, "token", 8000)

	writer := begin(t, service)
	exec(t, writer, "select from ojs.enqueue('a')")
	next("beside somebody who enqueues", 8000, 1000, "token", 8000)
	exec(t, writer, "select from ojs.enqueue('a', p_scheduled_at => ojs.now() + interval '1 hour')")
	next("beside somebody who schedules", 100, 1000, "token", 8000)
	next("beside somebody who schedules, without a token", 10000, 1000, nil, 0)
	commit(t, writer)
	next("after traffic", 2000, 1000, "token", 8000)
	next("right after a roll-up", 2000, 1000, "token", 8000)
	d.SetNow(noon.Add(2*time.Minute + 5*time.Second))
	next("with nothing rolled up lately", 8000, 1000, "token", 8000)

	exec(t, service, "insert into ojs.jobs (type, scheduled_at) select 'a', ojs.now() + interval '3 seconds' from generate_series(1, 20)")
	next("before a timer", 2000, 10, "token", 8000)
	d.SetNow(noon.Add(2*time.Minute + 8*time.Second))
	next("with as much as it may do at once", 0, 10, "token", 8000)
	next("withdrawn", 2000, 1000, "token", 0)
	if got := one[int](t, d.Pool, "select count(*) from ojs.sleeper"); got != 0 {
		t.Errorf("%d clocks are registered after the only one has withdrawn", got)
	}
	refused(t, service, "OJ400", "select ojs.tick(1000, 'token', 10001)")
	refused(t, service, "OJ400", "select ojs.tick(1000, 'token', null)")
}

func TestTwoTicksAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	exec(t, service, `
		insert into ojs.jobs (type, scheduled_at) select 'a', ojs.now() + i * interval '1 millisecond'
		from generate_series(1, 300) i`)
	exec(t, service, "insert into ojs.jobs (type, queue) select 'a', 'held' from generate_series(1, 5)")
	for range 5 {
		oneJob(t, service, "ojs.fetch('{held}')")
	}
	d.SetNow(noon.Add(time.Hour))
	first, second := begin(t, service), begin(t, service)
	// Neither waits for the other.
	exec(t, first, "set local lock_timeout = '20s'")
	exec(t, second, "set local lock_timeout = '20s'")
	var did []string
	for range 2 {
		did = append(did, tick(t, first, 100), tick(t, second, 100))
	}
	if want := []string{"100 5", "100 0", "100 0", "0 0"}; !slices.Equal(did, want) {
		t.Errorf("ticks by turns promoted and reaped %v, want %v", did, want)
	}
	commit(t, second)
	rollback(t, first)
	if got := tick(t, service, 1000); got != "200 5" {
		t.Errorf("after one of them rolled back a tick promoted and reaped %s, want 200 5", got)
	}
	if got := one[int](t, d.Pool, "select count(distinct seq) from ojs.job where state = 'available'"); got != 305 {
		t.Errorf("%d places in line, want 305", got)
	}
}

// A tick that others' writes and its own transaction surround counts each movement once.
func TestTickInALongTransaction(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	check := func(what string, q querier, want int) {
		t.Helper()
		if got := one[int](t, q, "select coalesce(sum(available), 0)::int from ojs.shard_stats"); got != want {
			t.Errorf("%s there are %d jobs available, want %d", what, got, want)
		}
	}
	enqueue := func(q querier) { t.Helper(); exec(t, q, "select from ojs.enqueue('a')") }
	tx := begin(t, service)
	enqueue(tx)
	check("in the transaction", tx, 1)
	enqueue(service)
	tick(t, tx, 1000)
	check("after a tick in it", tx, 2)
	enqueue(tx)
	check("after another job", tx, 3)
	check("outside of it", service, 1)
	tick(t, service, 1000)
	commit(t, tx)
	check("after the commit", service, 3)
	for range 3 {
		tick(t, service, 1000)
		check("after another tick", service, 3)
	}
	// A transaction that has its number and ticks before it writes.
	tx = begin(t, service)
	exec(t, tx, "select pg_catalog.pg_current_xact_id()")
	enqueue(service)
	tick(t, tx, 1000)
	enqueue(tx)
	commit(t, tx)
	check("after tick and enqueue in one transaction", service, 5)
	tick(t, service, 1000)
	check("and another tick", service, 5)
}

// A day later the journal goes, and the numbers stay.
func TestPruning(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	service := d.Service()
	bring(t, d, "completed", "q")
	bring(t, d, "discarded", "q")
	bring(t, d, "available", "never-fetched")
	exec(t, service, "select ojs.register_waiters($1, '{q}')", someID)
	stats := func() string {
		t.Helper()
		return strings.Join(lines(t, service, `
			select queue, available, completed, discarded, total_jobs, failed from ojs.shard_stats order by queue = 'more', 1`), "\n")
	}
	journal := func() string {
		t.Helper()
		return one[string](t, d.Pool, `
			select format('%s %s %s %s', (select count(*) from ojs.journal), (select count(*) from ojs.lease),
				(select count(*) from ojs.release), (select count(*) from ojs.waiter))`)
	}
	before := stats()
	tick(t, service, 1000)
	exec(t, d.Pool, "select ojs._prune(1000)")
	if got := journal(); got != "4 2 1 1" {
		t.Errorf("pruning at once left %s rows, want 4 2 1 1", got)
	}
	d.SetNow(noon.Add(25 * time.Hour))
	exec(t, d.Pool, "select ojs._prune(1000)")
	if got := stats(); got != before {
		t.Errorf("pruning changed the numbers from\n%s\nto\n%s", before, got)
	}
	// What no decision has seen stays, however old: else the job would never be found.
	if got := jobs(t, service, "ojs.fetch('{never-fetched}', 5)"); len(got) != 1 {
		t.Errorf("after pruning %v was handed out, want the job that nobody had asked for", got)
	}
	exec(t, service, `
		select from ojs.nack($1,
			'{"message": "x", "retryable": false}')`, one[string](t, d.Pool, "select id::text from ojs.job where state = 'active'"))
	before = stats()
	// As far as the oldest transaction anywhere on the server, and other tests have theirs.
	const left = `select (select count(*) from ojs.journal where at = $1) + (select count(*) from ojs.lease where at = $1)
		+ (select count(*) from ojs.release where at = $1) + (select count(*) from ojs.waiter)`
	for one[int](t, d.Pool, left, noon) > 0 {
		exec(t, service, "select from ojs.enqueue('a', p_queue => 'more', p_tenant => 'globex')")
		oneJob(t, service, "ojs.fetch('{more}')")
		tick(t, service, 1000)
		exec(t, d.Pool, "select ojs._prune(1000)")
	}
	if got, _, _ := strings.Cut(stats(), "more"); strings.TrimSpace(got) != before {
		t.Errorf("pruning all of it changed the numbers from\n%s\nto\n%s", before, got)
	}
}

// The numbers that operators read are exact at every moment: before and after ticks, between open transactions, for
// everybody who reads. They are compared with a count of all jobs.
func TestStatisticsAreExact(t *testing.T) {
	t.Parallel()
	for range 2 {
		seed := newSeed()
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			walk := &statsWalk{t: t, d: pgtest.New(t), r: rand.New(rand.NewPCG(seed, 1)), now: noon, failed: map[string]int{}}
			walk.run(150)
		})
	}
}

type statsWalk struct {
	t      *testing.T
	d      *pgtest.DB
	r      *rand.Rand
	now    time.Time
	open   []*walker
	failed map[string]int // failed attempts that committed, by tenant and queue
	did    map[string]int
}

// walker is a session with an open transaction.
type walker struct {
	tx     pgx.Tx
	failed map[string]int
}

func (w *statsWalk) pick(values ...string) string { return values[w.r.IntN(len(values))] }

func (w *statsWalk) run(steps int) {
	w.did = map[string]int{}
	w.d.SetNow(w.now)
	w.d.As("t1")
	w.d.As("t2")
	for range 30 {
		w.operate(nil, "enqueue")
	}
	for step := range steps {
		switch n := w.r.IntN(20); {
		case n == 0 && len(w.open) < 3:
			tx := begin(w.t, w.d.Service())
			exec(w.t, tx, "set local lock_timeout = '30ms'")
			w.open = append(w.open, &walker{tx: tx, failed: map[string]int{}})
		case n < 3 && len(w.open) > 0:
			w.end(w.r.IntN(len(w.open)))
		case n == 3:
			w.now = w.now.Add(time.Duration(w.r.IntN(20)) * time.Second)
			w.d.SetNow(w.now)
		case n < 10 && len(w.open) > 0:
			w.operate(w.open[w.r.IntN(len(w.open))], w.kind())
		default:
			w.operate(nil, w.kind())
		}
		w.compare(fmt.Sprintf("step %d", step))
	}
	for len(w.open) > 0 {
		w.end(0)
	}
	w.compare("at the end")
	// Attempts may end in them, too.
	// A tick rolls up what was before it, and takes what ends at one instant at a time.
	for range 6 {
		w.operate(nil, "tick")
	}
	w.compare("rolled up")
	if got := one[int](w.t, w.d.Pool, "select count(*) from ojs._recent()"); got != 0 {
		w.t.Errorf("%d lines are not rolled up", got)
	}
	w.t.Logf("did %v", w.did)
}

func (w *statsWalk) kind() string {
	return w.pick("enqueue", "enqueue", "fetch", "fetch", "fetch", "ack", "ack", "nack", "nack", "requeue", "fail", "fail",
		"cancel", "activate", "release", "heartbeat", "revive", "revive", "tick", "tick", "weight")
}

func (w *statsWalk) end(i int) {
	w.t.Helper()
	walker := w.open[i]
	w.open = slices.Delete(w.open, i, i+1)
	if w.r.IntN(3) == 0 {
		rollback(w.t, walker.tx)
		return
	}
	commit(w.t, walker.tx)
	for shard, n := range walker.failed {
		w.failed[shard] += n
	}
}

// operate makes one change, in a transaction of its own or in an open one under a savepoint. It gives up if
// it meets a lock of another open transaction.
func (w *statsWalk) operate(in *walker, kind string) {
	w.t.Helper()
	var tx pgx.Tx
	var err error
	if in == nil {
		if tx, err = w.d.Service().Begin(w.t.Context()); err == nil {
			_, err = tx.Exec(w.t.Context(), "set local lock_timeout = '30ms'")
		}
	} else {
		tx, err = in.tx.Begin(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	failed := map[string]int{}
	err = w.call(tx, kind, failed)
	var failure *pgconn.PgError
	switch {
	case err == nil && w.r.IntN(12) > 0:
		if err := tx.Commit(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		into := w.failed
		if in != nil {
			into = in.failed
		}
		for shard, n := range failed {
			into[shard] += n
		}
		w.did[kind]++
		return
	case err != nil && !(errors.As(err, &failure) && strings.Contains("55P03 OJ404 OJ409 OJ400", failure.Code)):
		w.t.Fatalf("%s: %s", kind, pgtest.Explain(err))
	}
	rollback(w.t, tx)
}

func (w *statsWalk) call(tx pgx.Tx, kind string, failed map[string]int) error {
	ctx := w.t.Context()
	run := func(sql string, args ...any) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
	if kind == "enqueue" {
		fields := []string{
			"'type', 'a'", "'args', '[]'::json", "'tenant', '" + w.pick("t1", "t2", "t3") + "'", "'queue', '" + w.pick("a", "a", "b") + "'",
			"'priority', " + w.pick("0", "0", "5"),
		}
		switch w.r.IntN(4) {
		case 0:
			fields = append(fields, "'scheduled_at', ojs.now() + interval '"+strconv.Itoa(w.r.IntN(40))+" seconds'")
		case 1:
			fields = append(fields, "'pending', true")
		case 2:
			fields = append(fields, "'expires_at', ojs.now() + interval '60 seconds'")
		}
		// Ids that the seed decides, so that it repeats the walk.
		ids := make([]string, 1+w.r.IntN(3))
		for i := range ids {
			ids[i] = fmt.Sprintf("01932a4e-0000-7000-8000-%012x", w.r.Uint64()>>16)
		}
		return run(`
			select from ojs.enqueue_many((select json_agg(json_build_object('id',
				id,`+strings.Join(fields, ", ")+")) from unnest($1::text[]) id))", ids)
	}
	switch kind {
	case "fetch":
		return run("select from ojs.fetch($1, $2, 'w', 10000)", []string{w.pick("a", "b"), "b"}, 1+w.r.IntN(4))
	case "tick":
		// Jobs whose last attempt is lost fail without a NACK.
		before, err := w.lost(tx)
		if err == nil {
			err = run("select ojs.tick($1)", 1+w.r.IntN(50))
		}
		if err != nil {
			return err
		}
		after, err := w.lost(tx)
		for shard, n := range after {
			failed[shard] += n - before[shard]
		}
		return err
	case "weight":
		return run("select from ojs.configure_tenant($1, $2, $3)", w.pick("t1", "t2"), w.pick("1", "2", "7.5"), w.pick("0", "0", "5", "-5"))
	}
	// One of the jobs for which it can mean something, as the transaction sees them.
	states := map[string]string{
		"activate": "pending", "cancel": "scheduled available pending active retryable", "revive": "discarded",
	}[kind]
	if states == "" {
		states = "active"
	}
	rows, err := tx.Query(ctx, `
		select id::text, tenant_id || '/' || queue from ojs.job where state::text = any ($1) order by md5(id::text || $2)
		limit 1`, strings.Fields(states), strconv.Itoa(w.r.IntN(1000)))
	if err != nil {
		return err
	}
	var id, shard string
	if _, err := pgx.ForEachRow(rows, []any{&id, &shard}, func() error { return nil }); err != nil || id == "" {
		return err
	}
	switch kind {
	case "nack", "fail", "requeue":
		var state string
		report := `{"message": "x"}`
		if kind == "fail" {
			report = `{"message": "x", "code": "DEAD_LETTER"}`
		}
		err := tx.QueryRow(ctx, `
			select state from ojs.nack($1, $2::text::jsonb, p_requeue => $3)`, id, report, kind == "requeue").Scan(&state)
		if err == nil && state != "available" {
			failed[shard]++
		}
		return err
	case "revive":
		return run("select from ojs.retry_dead_letter($1)", id)
	case "release":
		return run("select from ojs.release($1, (select lease from ojs.job where id = $1))", id)
	case "heartbeat":
		return run("select from ojs.heartbeat('w', array[$1::uuid])", id)
	}
	return run("select from ojs."+kind+"($1)", id)
}

// lost returns the number of jobs of each shard that were discarded because their last attempt was lost.
func (w *statsWalk) lost(tx pgx.Tx) (map[string]int, error) {
	rows, err := tx.Query(w.t.Context(), `select tenant_id || '/' || queue, count(*)::int from ojs.job
		where state = 'discarded' and attempt >= max_attempts
			and errors -> -1 ->> 'type' in ('visibility_timeout', 'worker_death', 'timeout')
		group by 1`)
	if err != nil {
		return nil, err
	}
	n := map[string]int{}
	var shard string
	var jobs int
	_, err = pgx.ForEachRow(rows, []any{&shard, &jobs}, func() error { n[shard] = jobs; return nil })
	return n, err
}

// bruteForce counts all jobs. $1 holds the failed attempts, which no job's row tells.
const bruteForce = `
	select tenant_id, queue, count(*) filter (where state = 'scheduled') as scheduled,
		count(*) filter (where state = 'available') as available,
		count(*) filter (where state = 'pending') as pending, count(*) filter (where state = 'active') as active,
			count(*) filter (where state = 'retryable') as retryable,
		count(*) filter (where state = 'completed') as completed, count(*) filter (where state = 'cancelled') as cancelled,
		count(*) filter (where state = 'discarded') as discarded, count(*) as total_jobs,
		coalesce(($1::text::json ->> (tenant_id || '/' || queue))::int, 0) as failed,
		ojs.now() - max(enqueued_at) filter (where state = 'available') as shortest_wait,
		ojs.now() - min(enqueued_at) filter (where state = 'available') as longest_wait,
		-- What has expired is passed over, and ends with the next tick.
		count(*) filter (where state = 'available' and (expires_at > ojs.now()) is not false) as unexpired
	from ojs.jobs group by tenant_id, queue`

const numbers = "scheduled, available, pending, active, retryable, completed, cancelled, discarded, total_jobs, failed"

func (w *statsWalk) compare(when string) {
	w.t.Helper()
	w.compareFor(when, "", w.d.Pool, w.failed)
	switch w.r.IntN(4) {
	case 0:
		w.compareFor(when, "t1", w.d.As("t1"), w.failed)
	case 1:
		if len(w.open) == 0 {
			break
		}
		walker := w.open[w.r.IntN(len(w.open))]
		failed := maps.Clone(w.failed)
		for shard, n := range walker.failed {
			failed[shard] += n
		}
		// A session learns of the clock's new setting when it takes a lock that it does not hold yet; else half of a query would know it.
		exec(w.t, walker.tx, "savepoint clock")
		exec(w.t, walker.tx, "select from pg_catalog.pg_ts_dict limit 0")
		exec(w.t, walker.tx, "rollback to savepoint clock")
		w.compareFor(when+", inside of an open transaction", "", walker.tx, failed)
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// compareFor compares the view with the jobs. It reads both in one statement, so from one snapshot.
func (w *statsWalk) compareFor(when, who string, q querier, failed map[string]int) {
	w.t.Helper()
	var known strings.Builder
	known.WriteString("{")
	for _, shard := range slices.Sorted(maps.Keys(failed)) {
		if known.Len() > 1 {
			known.WriteString(", ")
		}
		fmt.Fprintf(&known, "%q: %d", shard, failed[shard])
	}
	known.WriteString("}")
	if who != "" {
		when += ", read by " + who
	}
	if got := lines(w.t, q, `
		with counted as (`+bruteForce+`)
		select 'shard', coalesce(s.tenant_id, c.tenant_id), coalesce(s.queue, c.queue), row(s.*)::text, row(c.*)::text
		from ojs.shard_stats s full join counted c on c.tenant_id = s.tenant_id and c.queue = s.queue
		where (s.scheduled, s.available, s.pending, s.active, s.retryable, s.completed, s.cancelled, s.discarded,
				s.total_jobs, s.failed)
			is distinct from (c.scheduled, c.available, c.pending, c.active, c.retryable, c.completed, c.cancelled, c.discarded,
				c.total_jobs, c.failed::bigint)
			or s.oldest_wait is null and c.unexpired > 0 or s.oldest_wait is not null and c.available = 0
			or s.oldest_wait not between c.shortest_wait and c.longest_wait
		union all
		select 'queue', null, coalesce(s.queue, c.queue), row(s.*)::text, row(c.*)::text
		from ojs.queue_stats s
		full join (
			select queue, sum(scheduled) as scheduled, sum(available) as available, sum(pending) as pending,
				sum(active) as active, sum(retryable) as retryable, sum(completed) as completed, sum(cancelled) as cancelled,
				sum(discarded) as discarded, sum(total_jobs) as total_jobs, sum(failed) as failed,
				count(*) filter (where available > 0 or active > 0) as tenants
			from counted group by queue
		) c on c.queue = s.queue
		where (s.scheduled, s.available, s.pending, s.active, s.retryable, s.completed, s.cancelled, s.discarded,
				s.total_jobs, s.failed, s.tenants)
			is distinct from (c.scheduled, c.available, c.pending, c.active, c.retryable, c.completed, c.cancelled, c.discarded,
				c.total_jobs, c.failed, c.tenants)
		union all
		select 'tenant', coalesce(s.tenant_id, c.tenant_id), null, row(s.*)::text, row(c.*)::text
		from ojs.tenant_stats s
		full join (
			select tenant_id, sum(scheduled) as scheduled, sum(available) as available, sum(pending) as pending,
				sum(active) as active, sum(retryable) as retryable, sum(completed) as completed, sum(cancelled) as cancelled,
				sum(discarded) as discarded, sum(total_jobs) as total_jobs, sum(failed) as failed
			from counted group by tenant_id
		) c on c.tenant_id = s.tenant_id
		where c.tenant_id is not null
			and (s.scheduled, s.backlog, s.pending, s.active, s.retryable, s.completed, s.cancelled, s.discarded,
				s.total_jobs, s.failed)
			is distinct from (c.scheduled, c.available, c.pending, c.active, c.retryable, c.completed, c.cancelled, c.discarded,
				c.total_jobs, c.failed)`, known.String()); len(got) > 0 {
		w.t.Errorf("%s the views differ from the jobs\n  %s", when, strings.Join(got, "\n  "))
	}
}

// A logical copy in a cluster whose transaction ids are behind: the tally is made anew.
func TestStatisticsAfterTransactionIDsRanBackwards(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, state := range states {
		bring(t, d, state, "q."+state)
	}
	read := func() string {
		t.Helper()
		return strings.Join(lines(t, d.Service(), "select queue, "+numbers+" from ojs.shard_stats order by 1"), "\n")
	}
	before := read()
	exec(t, d.Pool, "update ojs.tally_mark set snapshot = '900000000000:900000000000:'")
	tick(t, d.Service(), 1000)
	if got := read(); got != before {
		t.Errorf("counted anew the numbers are\n%s\nbefore\n%s", got, before)
	}
	bring(t, d, "completed", "more")
	tick(t, d.Service(), 1000)
	if got := one[int](t, d.Service(), "select sum(total_jobs)::int from ojs.shard_stats"); got != len(states)+1 {
		t.Errorf("after one more job there are %d", got)
	}
}

// Ticks, fetches and producers at once, for the race detector and for deadlocks.
func TestTicksBesideWork(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	const producers, each = 3, 40
	work := func(ctx context.Context, pool *pgxpool.Pool) error {
		for range each {
			if _, err := pool.Exec(ctx, `
				select from ojs.enqueue('a', p_retry => '{"initial_interval_ms": 1}',
					p_scheduled_at => clock_timestamp())`); err != nil {
				return err
			}
		}
		return nil
	}
	done := make(chan error)
	for range producers {
		go func() { done <- work(t.Context(), service) }()
	}
	for range 2 {
		go func() {
			for {
				var left int
				if _, err := service.Exec(t.Context(), "select ojs.tick(5)"); err != nil {
					done <- err
					return
				}
				rows, err := service.Query(t.Context(), "select id::text, attempt from ojs.fetch('{default}', 5)")
				if err != nil {
					done <- err
					return
				}
				var id string
				var attempt int
				var held []string
				if _, err := pgx.ForEachRow(rows, []any{&id, &attempt}, func() error {
					held = append(held, fmt.Sprint(id, " ", attempt))
					return nil
				}); err != nil {
					done <- err
					return
				}
				for _, h := range held {
					id, n, _ := strings.Cut(h, " ")
					sql := `select from ojs.nack($1, '{"message": "x"}')`
					if n == "2" {
						sql = "select from ojs.ack($1)"
					}
					if _, err := service.Exec(t.Context(), sql, id); err != nil {
						done <- err
						return
					}
				}
				if err := service.QueryRow(t.Context(), `
					select count(*) from ojs.job where state = 'completed'`).Scan(&left); err != nil || left == producers*each {
					done <- err
					return
				}
			}
		}()
	}
	for range producers + 2 {
		if err := <-done; err != nil {
			t.Fatal(pgtest.Explain(err))
		}
	}
	if got := lines(t, service, `
		select completed, failed, total_jobs, available, active, retryable
		from ojs.shard_stats`); !slices.Equal(got, []string{"120 120 120 0 0 0"}) {
		t.Errorf("afterwards the numbers are %v", got)
	}
}
