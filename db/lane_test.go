package db_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// holdLane fetches a job of queue other in a transaction that stays open and holds the lane.
func holdLane(t *testing.T, d *pgtest.DB) pgx.Tx {
	t.Helper()
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'other', p_tenant => 'holder')")
	for range 20 {
		tx := begin(t, d.Service())
		// A transaction that is older than 20 ms when it fetches does without the lane.
		if got := list[string](t, tx, "select id::text from ojs.fetch('{other}', 1)"); len(got) == 1 && laneIsHeld(t, d) {
			return tx
		}
		rollback(t, tx)
	}
	t.Fatal("a FETCH at the begin of its transaction has not taken the lane")
	return nil
}

func laneIsHeld(t *testing.T, d *pgtest.DB) bool {
	t.Helper()
	return len(list[int](t, d.Pool, "select 1 from ojs.lane for update skip locked")) == 0
}

// While a session works with the lane in its hands, others wait for it once, for a moment, and then get jobs without it, those of tenants
// with a limit included, and never one more than the limit allows.
func TestASessionThatWorksWithTheLaneStopsNobody(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.limit_concurrency(3, 'limited'), ojs.limit_concurrency(4, 'limited', 'q2')")
	exec(t, d.Pool, `select ojs.enqueue('x', p_queue => q, p_tenant => t)
		from unnest('{q,q2}'::text[]) q, unnest('{limited,free}'::text[]) t, generate_series(1, 10)`)
	// The next decision counts for the limits.
	exec(t, d.Service(), "select from ojs.fetch('{none,q}', 1, p_tenant => 'free')")
	holder := holdLane(t, d)

	other := connect(t, d.Service().Config().ConnString())
	// Such a session writes a time as 27/11/2027 17:45:00 IST, and reads it as one of another time zone.
	exec(t, other, "set datestyle = 'SQL, DMY'")
	exec(t, other, "set timezone = 'Asia/Kolkata'")
	fetch := func(queue string, count int) (tenants []string) {
		tenants = list[string](t, other, "select tenant_id from ojs.fetch(array[$1], $2)", queue, count)
		slices.Sort(tenants)
		return tenants
	}
	equal(t, "the first FETCH", fetch("q", 6), "free", "free", "free", "limited", "limited", "limited")
	until := one[string](t, other, "select current_setting('ojs.lane_busy_until')")
	if until == "" {
		t.Error("a session that has waited in vain does not remember it")
	}
	if one[bool](t, other, "select $1::timestamptz > clock_timestamp() + interval '1 minute'", until) {
		t.Errorf("it remembers it until %s", until)
	}
	equal(t, "the second FETCH", fetch("q", 3), "free", "free", "free")
	equal(t, "a FETCH from the other queue", fetch("q2", 3), "free", "free", "free")
	if again := one[string](t, other, "select current_setting('ojs.lane_busy_until')"); again != until {
		t.Error("the session has waited for the lane once more")
	}
	// What has ended makes way, though no decision has taken it in.
	exec(t, other, "select ojs.ack(id) from ojs.job where state = 'active' and tenant_id = 'limited' and queue = 'q' order by seq limit 2")
	equal(t, "after two have ended", fetch("q2", 9), "free", "free", "free", "free", "free", "free", "free", "limited", "limited")

	commit(t, holder)
	equal(t, "by decisions again", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q,q2}', 20) order by 1"),
		"free", "free", "free")
	exec(t, d.Pool, "select ojs.ack(id) from ojs.job where state = 'active'")
	equal(t, "when all have ended", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q,q2}', 20)"),
		"limited", "limited", "limited")
}

// An operator's pause and limit wait for no session, and act from the next decision on.
func TestPausesAndLimitsWaitForNobody(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q', p_tenant => t) from unnest('{a,b}'::text[]) t, generate_series(1, 10)")
	holder := holdLane(t, d)
	operator := begin(t, d.Operator())
	exec(t, operator, "set local lock_timeout = '100ms'")
	exec(t, operator, "select ojs.pause(p_tenant => 'a'), ojs.limit_concurrency(2, 'b'), ojs.limit_concurrency(1, 'b', 'q')")
	exec(t, operator, "select ojs.limit_concurrency(null, 'b', 'q'), ojs.pause('q', 'c'), ojs.resume('q', 'c')")
	commit(t, operator)
	rollback(t, holder)
	equal(t, "a FETCH", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}', 20)"), "b", "b")
	holder = holdLane(t, d)
	exec(t, d.Operator(), "select ojs.resume(p_tenant => 'a'), ojs.limit_concurrency(3, 'b')")
	commit(t, holder)
	got := list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}', 20)")
	if slices.Sort(got); len(got) != 11 || got[10] != "b" {
		t.Errorf("after the pause and a higher limit: %q", got)
	}
}

// A limit of one tenant changes nothing for callers in long transactions that get jobs of others: they do without the lane.
func TestALimitChangesNothingForOthersLongTransactions(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.limit_concurrency(1, 'limited')")
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q', p_tenant => t) from unnest('{limited,free}'::text[]) t, generate_series(1, 5)")
	exec(t, d.Service(), "select from ojs.fetch('{q}', 1, p_tenant => 'free')")
	long := begin(t, d.Service())
	exec(t, long, "select pg_sleep(0.03)")
	equal(t, "in a long transaction", list[string](t, long, "select tenant_id from ojs.fetch('{q}', 2, p_tenant => 'free')"),
		"free", "free")
	if laneIsHeld(t, d) {
		t.Error("a FETCH in a long transaction has taken the lane")
	}
	// This transaction keeps the count of the tenant locked until it ends. Then other sessions can lock the count again.
	equal(t, "of the tenant with the limit", list[string](t, long, "select tenant_id from ojs.fetch('{q}', 2, p_tenant => 'limited')"),
		"limited")
	equal(t, "meanwhile", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}', 5)"), "free", "free")
	rollback(t, long)
	// The jobs of the other tenant were locked when their turn came, and come back with the clock.
	equal(t, "after it", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}', 5) order by 1"), "limited")
}

// What a transaction has enqueued itself is taken in by each of its FETCHes; by very many statements it is told to commit first.
func TestATransactionOfVeryManyStatementsCommitsBeforeItFetches(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.Pool)
	exec(t, tx, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a') from generate_series(1, 2000)")
	equal(t, "up to 2000", list[string](t, tx, "select tenant_id from ojs.fetch('{q}', 1)"), "a")
	exec(t, tx, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a')")
	// In a transaction this old a FETCH would do without the lane.
	exec(t, tx, "savepoint s")
	refused(t, tx, "OJ409", "select ojs._fold(n) from ojs._look('{q}') n")
	exec(t, tx, "rollback to s")
	commit(t, tx)
	equal(t, "after it", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}', 1)"), "a")
}

// Many sessions that pass the lane on are no session that keeps it: one more stays in line, also where that takes longer than it would
// wait for a single holder.
func TestASessionStaysInLineWhileDecisionsGoOn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	waitForLane(t, d, 500)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q') from generate_series(1, 5)")
	first, second := begin(t, d.Pool), begin(t, d.Pool)
	exec(t, first, "select from ojs.lane for update")
	var wg sync.WaitGroup
	wg.Go(func() { exec(t, second, "select from ojs.lane for update") })
	waitsForLane(t, d, 1)

	session := connect(t, d.Service().Config().ConnString())
	var busy string
	wg.Go(func() {
		exec(t, session, "select from ojs.fetch('{q}')")
		busy = one[string](t, session, "select coalesce(current_setting('ojs.lane_busy_until', true), '')")
	})
	waitsForLane(t, d, 2)
	rollback(t, first) // the second holder has it now, and keeps it for longer than 500 ms
	exec(t, d.Pool, "select pg_sleep(0.7)")
	rollback(t, second)
	wg.Wait()
	if busy != "" {
		t.Error("the session has given up although the lane was passed on")
	}
}

// waitsForLane returns when a number of sessions wait for the row of ojs.lane.
func waitsForLane(t *testing.T, d *pgtest.DB, sessions int) {
	t.Helper()
	for one[int](t, d.Pool, `select count(*) from pg_locks where not granted and pid in (
		select pid from pg_locks where relation = 'ojs.lane'::regclass)`) < sessions {
		time.Sleep(time.Millisecond)
	}
}

// A limit that begins while a transaction has jobs that no snapshot has yet is counted when that has committed, and allows none before.
func TestALimitWaitsForTheJobsOfItsTransaction(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'other', p_tenant => 'holder') from generate_series(1, 5)")
	holder := holdLane(t, d)
	exec(t, d.Pool, "select ojs.limit_concurrency(2, 'holder')")
	equal(t, "in the transaction", list[string](t, holder, "select tenant_id from ojs.fetch('{other}', 5)"))
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "after it", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{other}', 5)"), "holder")
}

// stopDecisions stops decisions where they call a PL/pgSQL function. It calls fetch in the background and
// returns when that has come there. release lets fetch go on, and waits for its end.
func stopDecisions(t *testing.T, d *pgtest.DB, function string, fetch func()) (release func()) {
	t.Helper()
	body := one[string](t, d.Pool, "select pg_get_functiondef($1::text::regproc)", function)
	exec(t, d.Pool, strings.Replace(body, "begin\n", "begin\n    perform pg_advisory_xact_lock_shared(27);\n", 1))
	gate := begin(t, d.Pool)
	exec(t, gate, "select pg_advisory_xact_lock(27)")
	var wg sync.WaitGroup
	wg.Go(fetch)
	for one[int](t, d.Pool, "select count(*) from pg_locks where locktype = 'advisory' and not granted") == 0 {
		time.Sleep(time.Millisecond)
	}
	return func() {
		rollback(t, gate)
		wg.Wait()
	}
}

// A limit that begins while a decision is under way is counted by this decision or by a later one, never by half.
func TestALimitThatBeginsDuringADecision(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a') from generate_series(1, 9)")
	exec(t, d.Service(), "select ojs.pause(null, 'another')") // a rule has changed, and none is a limit
	release := stopDecisions(t, d, "ojs._fold", func() { exec(t, d.Service(), "select from ojs.fetch('{q}', 4)") })
	exec(t, d.Pool, "select ojs.limit_concurrency(6, 'a')")
	release()
	exec(t, d.Service(), "select from ojs.fetch('{q}', 9)")
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'active'"); got != 6 {
		t.Errorf("%d jobs are active, want 6", got)
	}
}

// A limit that was removed and is set again counts anew: a decision that was under way when it was removed has counted for no limit.
func TestALimitThatIsSetAgainIsCountedAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a') from generate_series(1, 9)")
	exec(t, d.Pool, "select ojs.limit_concurrency(3, 'a')")
	equal(t, "one of three", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}')"), "a")
	release := stopDecisions(t, d, "ojs._count_dealt", func() { exec(t, d.Service(), "select from ojs.fetch('{q}', 2)") })
	exec(t, d.Pool, "select ojs.limit_concurrency(null, 'a')")
	release()
	exec(t, d.Pool, "select ojs.limit_concurrency(4, 'a')")
	equal(t, "one more", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}', 5)"), "a")
}

// A rebuild waits for a session that is changing a limit, while dispatch goes on, and counts that limit anew, too, though a session
// has its count locked.
func TestARebuildCountsALimitThatIsChanging(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'q', p_tenant => 'a') from generate_series(1, 20)")
	exec(t, d.Pool, "select ojs.limit_concurrency(5, 'a')")
	exec(t, d.Service(), "select from ojs.fetch('{q}', 3)")
	holder := begin(t, d.Service())
	exec(t, holder, "select pg_sleep(0.03)")
	equal(t, "without the lane", list[string](t, holder, "select tenant_id from ojs.fetch('{q}')"), "a")
	changer := begin(t, d.Pool)
	exec(t, changer, "select ojs.limit_concurrency(6, 'a')")
	conn := connect(t, d.URL)
	var wg sync.WaitGroup
	wg.Go(func() { exec(t, conn, "select ojs.rebuild()") })
	d.Blocked(conn.PgConn().PID())
	ackActive(t, d.Pool)
	exec(t, d.Pool, "select ojs.enqueue('x', p_queue => 'r', p_tenant => 'b')")
	equal(t, "meanwhile", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{r}')"), "b")
	commit(t, changer)
	wg.Wait()
	commit(t, holder)
	for range 2 {
		exec(t, d.Service(), "select from ojs.fetch('{q}', 20)")
	}
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'active' and tenant_id = 'a'"); got != 6 {
		t.Errorf("%d active jobs, want 6", got)
	}
}

// A FETCH in a transaction that stays open keeps the counts of the tenants whose jobs it got, and not those of other tenants with a limit.
func TestAnOpenTransactionKeepsNoOtherCounts(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, `select ojs.limit_concurrency(2, t), ojs.enqueue('x', p_queue => 'q', p_tenant => t), ojs.enqueue('x', p_queue => 'q',
		p_tenant => t), ojs.enqueue('x', p_queue => 'q', p_tenant => t) from unnest('{a,b,c,d}'::text[]) t`)
	exec(t, d.Service(), "select from ojs.fetch('{none,q}', 1, p_tenant => 'nobody')")
	long := begin(t, d.Service())
	exec(t, long, "select pg_sleep(0.03)")
	got := list[string](t, long, "select tenant_id from ojs.fetch('{q}')")
	if len(got) != 1 {
		t.Fatalf("the transaction got %v, want a job", got)
	}
	var want []string
	for _, tenant := range []string{"a", "b", "c", "d"} {
		if tenant != got[0] {
			want = append(want, tenant, tenant)
		}
	}
	equal(t, "meanwhile", list[string](t, d.Service(), "select tenant_id from ojs.fetch('{q}', 20) order by 1"), want...)
}
