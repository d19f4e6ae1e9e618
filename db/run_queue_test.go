package db_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// runQueue is a queue for which jobs are decided ahead (docs/design/0005-run-queue.md): whoever fetches a single job has more of them
// decided, 16 at first and 128 at most, which wait as rows of ojs.turn for the next callers.
type runQueue struct {
	t       *testing.T
	d       *pgtest.DB
	service *pgxpool.Pool
}

func newRunQueue(t *testing.T) *runQueue {
	t.Helper()
	d := pgtest.New(t)
	return &runQueue{t, d, d.Service()}
}

// decidedAhead has jobs of the tenant t in the queue, of which the first is handed out for good and the next are decided ahead.
func decidedAhead(t *testing.T, jobs int) *runQueue {
	t.Helper()
	q := newRunQueue(t)
	q.enqueue("t", jobs)
	q.fetch(1)
	return q
}

func (q *runQueue) enqueue(tenant string, jobs int) {
	q.t.Helper()
	enqueueFor(q.t, q.service, "q", tenant, jobs)
}

// urgent enqueues jobs of a priority above that of the others, which is 0.
func (q *runQueue) urgent(tenant string, priority, jobs int) {
	q.t.Helper()
	exec(q.t, q.service, `
		insert into ojs.jobs (tenant_id, type, queue, priority) select $1, 'a', 'q', $2::int from generate_series(1, $3::int)`,
		tenant, priority, jobs)
}

// fetch returns the seq of each job that is handed out.
func (q *runQueue) fetch(count int) []int64 {
	q.t.Helper()
	return q.fetchBy(q.service, count)
}

func (q *runQueue) fetchBy(by querier, count int) []int64 {
	q.t.Helper()
	return list[int64](q.t, by, "select seq from ojs.fetch('{q}', $1, 'w')", count)
}

func (q *runQueue) fetchPriorities(by querier, count int) []int {
	q.t.Helper()
	return list[int](q.t, by, "select priority from ojs.fetch('{q}', $1, 'w')", count)
}

// hold has a session fetch a job in a transaction that stays open, so that nobody else can take or take back its row.
func (q *runQueue) hold() (holder pgx.Tx, seq int64) {
	q.t.Helper()
	holder = begin(q.t, q.service)
	got := q.fetchBy(holder, 1)
	if len(got) != 1 {
		q.t.Fatalf("the holder got %d jobs, want 1", len(got))
	}
	return holder, got[0]
}

// lingering is a transaction that has been open for longer than the 20 ms after which a caller goes beside decisions.
func (q *runQueue) lingering() pgx.Tx {
	q.t.Helper()
	tx := begin(q.t, q.service)
	exec(q.t, tx, "select pg_sleep(0.05)")
	return tx
}

// comesBack fetches up to n jobs one by one until one of them is the one with this seq.
func (q *runQueue) comesBack(seq int64, n int) {
	q.t.Helper()
	for range n {
		if got := q.fetch(1); len(got) == 1 && got[0] == seq {
			return
		}
	}
	q.t.Error("the job that was let go of did not come back")
}

// nothingIsLeft drains the queue and fails if jobs stay available that no decision finds.
func (q *runQueue) nothingIsLeft() {
	q.t.Helper()
	for len(q.fetch(100)) > 0 {
	}
	if got := one[int](q.t, q.service, "select count(*)::int from ojs.jobs where state = 'available'"); got != 0 {
		q.t.Errorf("%d jobs are never found again", got)
	}
}

// charged is for how many jobs the only tenant of the queue was charged.
func (q *runQueue) charged() int {
	q.t.Helper()
	return one[int](q.t, q.d.Pool, "select charged::int from ojs.tenant_fairness where queue = 'q' order by rev desc limit 1")
}

// outOfReach counts rows of ojs.turn that somebody had hold of when scans began to begin behind them.
func (q *runQueue) outOfReach() int {
	q.t.Helper()
	return one[int](q.t, q.d.Pool, "select held from ojs.turn_mark order by rev desc limit 1")
}

// What was decided ahead is not what is handed out once something speaks against it.
func TestLookAheadIsRevoked(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(*testing.T, *runQueue){
		"nothing speaks against it":   aheadIsHandedOut,
		"a job of a higher priority":  urgentGoesFirst,
		"the queue is paused":         pausedHandsOutNothing,
		"a job is cancelled":          cancelledIsPassedOver,
		"a tenant comes":              newTenantHasItsHalf,
		"a tenant has another weight": weightActsAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := decidedAhead(t, 200)
			play(t, q)
			ringsAgree(t, q.d.Pool)
		})
	}
}

// planned is the seq of the job that was decided ahead of all others.
func (q *runQueue) planned() int64 {
	q.t.Helper()
	seqs := list[int64](q.t, q.d.Pool, "select j.seq from ojs.turn t join ojs.job j on j.id = t.id order by t.n limit 1")
	if len(seqs) == 0 {
		q.t.Fatal("nothing is decided ahead")
	}
	return seqs[0]
}

// shares hands out jobs one by one, and returns how many of them each tenant had.
func (q *runQueue) shares(jobs int) map[string]int {
	q.t.Helper()
	got := map[string]int{}
	for range jobs {
		got[one[string](q.t, q.service, "select tenant_id from ojs.fetch('{q}', 1, 'w')")]++
	}
	return got
}

func aheadIsHandedOut(t *testing.T, q *runQueue) {
	if first := q.planned(); !slices.Equal(q.fetch(1), []int64{first}) {
		t.Error("what was decided ahead is not handed out")
	}
}

func urgentGoesFirst(t *testing.T, q *runQueue) {
	urgent := one[int64](t, q.service, "select seq from ojs.enqueue('x.y', p_queue => 'q', p_priority => 7, p_tenant => 't')")
	if got := q.fetch(1); !slices.Equal(got, []int64{urgent}) {
		t.Errorf("after a job of higher priority came, %v was handed out, want %d", got, urgent)
	}
}

func pausedHandsOutNothing(t *testing.T, q *runQueue) {
	exec(t, q.service, "select ojs.pause('q')")
	if got := q.fetch(1); len(got) != 0 {
		t.Errorf("a paused queue handed out %v", got)
	}
	exec(t, q.service, "select ojs.resume('q')")
}

func cancelledIsPassedOver(t *testing.T, q *runQueue) {
	cancelled := q.planned()
	exec(t, q.service, "select ojs.cancel(id) from ojs.job where seq = $1", cancelled)
	const handedOut = "select count(*) from ojs.lease l cross join lateral unnest(l.ids) u(id)"
	before := one[int](t, q.d.Pool, handedOut)
	for range 30 {
		if got := q.fetch(1); slices.Contains(got, cancelled) {
			t.Error("a cancelled job was handed out")
		}
	}
	if n := one[int](t, q.d.Pool, handedOut); n != before+30 {
		t.Errorf("%d jobs were handed out, want 30", n-before)
	}
}

func newTenantHasItsHalf(t *testing.T, q *runQueue) {
	q.enqueue("globex", 100)
	if got := q.shares(20)["globex"]; got < 9 || got > 11 {
		t.Errorf("of 20 jobs since it came a tenant had %d, want its half", got)
	}
}

func weightActsAtOnce(t *testing.T, q *runQueue) {
	q.enqueue("globex", 100)
	q.shares(20)
	q.planned()
	configureWeight(t, q.service, "globex", 9)
	if got := q.shares(20)["globex"]; got < 17 || got > 19 {
		t.Errorf("of 20 jobs since its weight is 9 a tenant had %d, want 18", got)
	}
}

// What happens to jobs decided ahead when somebody has hold of one of them, and lets go.
func TestRunQueueCorners(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(*testing.T){
		"a boost changes meanwhile":                                                      boostWhileHeld,
		"a late commit lies within what is decided ahead":                                lateCommitWithin,
		"ended jobs of a high priority do not let a low one by":                          endedJobsOfHighPriority,
		"tenants and those who linger find what is decided ahead":                        besideFindsWhatIsAhead,
		"a row that is held is not what scans begin at":                                  scansBeginBehindHeld,
		"a row that is held outlives the revocation of another":                          heldOutlivesRevocation,
		"a row that outlives its revocation goes before nothing":                         revokedGoesBeforeNothing,
		"the tick has a row looked at that somebody lets go of":                          tickLooksAtLetGo,
		"beside a decision, too, a priority goes before what was decided ahead":          priorityGoesFirstBeside,
		"the tick moves the cursor of a tenant that fetches alone":                       tickMovesCursor,
		"beside a decision, too, what was decided ahead goes before what came behind it": aheadGoesFirstBeside,
		"who goes beside a decision after having taken some gets no more than asked":     besideGetsNoMore,
		"a job taken beside decisions is not taken from those decided ahead as well":     takenTwiceIsOne,
		"another tenant's job of the same id is not taken for one decided ahead":         sameIDOfTwoTenants,
		"a job that comes back to another ring does not move its clock":                  backInAnotherRing,
		"the tick has a row looked at that a refill passes over":                         tickLooksAtPassedOver,
		"a rebuild does not wait for who has hold of a row":                              rebuildDoesNotWait,
		"queues of which one is not paused are that queue":                               onlyQueueNotPaused,
		"deficits keep their sum when what is decided ahead leaves a tenant out":         deficitsKeepTheirSum,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t)
		})
	}
}

// The new boost moves the tenant to another level while one row is held: its job is found there, too, once it is let go of.
func boostWhileHeld(t *testing.T) {
	q := decidedAhead(t, 10)
	holder, _ := q.hold()
	exec(t, q.service, "select ojs.configure_tenant('t', null, 5)")
	rollback(t, holder)
	total := 0
	for range 5 {
		total += len(q.fetch(20))
	}
	// Ten, less the one handed out for good.
	if total != 9 {
		t.Errorf("%d of 9 jobs were found again", total)
	}
}

// 12 jobs, one whose seq is the 13th and whose transaction commits when the 25 around it are decided ahead, and 12 more.
func lateCommitWithin(t *testing.T) {
	q := newRunQueue(t)
	q.enqueue("t", 12)
	late := begin(t, q.service)
	exec(t, late, "insert into ojs.jobs (tenant_id, type, queue) values ('t', 'a', 'q')")
	q.enqueue("t", 12)
	q.fetch(1)
	commit(t, late)
	for range 9 {
		q.fetch(1)
	}
	// 25, less the ten fetched one by one.
	if got := q.fetch(20); len(got) != 15 {
		t.Errorf("%d of 15 jobs", len(got))
	}
	if got := q.charged(); got != 25 {
		t.Errorf("the tenant was charged for %d of 25 jobs", got)
	}
}

// Of 360 urgent jobs the two first and the 58 last are not cancelled. A refill that comes upon the 300 between them, more than it
// decides ahead, must not go on with a lower priority: twenty fetches are twenty urgent jobs.
func endedJobsOfHighPriority(t *testing.T) {
	q := newRunQueue(t)
	q.urgent("t", 7, 360)
	q.enqueue("t", 100)
	exec(t, q.service, `
		select ojs.cancel(id) from (select id from ojs.jobs where priority = 7 order by id limit 300 offset 2) j`)
	for i := range 20 {
		if got := q.fetchPriorities(q.service, 1); len(got) != 1 || got[0] != 7 {
			t.Fatalf("fetch %d: priority %v while jobs of priority 7 are available", i, got)
		}
	}
}

// Callers beside decisions, over several queues too, take from what is decided ahead, and pass over what was cancelled there.
func besideFindsWhatIsAhead(t *testing.T) {
	q := decidedAhead(t, 10)
	tenant := connect(t, q.d.TenantURL("t"))
	if got := list[int64](t, tenant, "select seq from ojs.fetch('{q,other}', 3)"); len(got) != 3 {
		t.Errorf("a tenant got %d of 3 jobs from two queues", len(got))
	}
	exec(t, q.service, "select ojs.cancel(id) from (select id from ojs.jobs where state = 'available' order by id limit 1) j")
	if got := q.fetchBy(tenant, 1); len(got) != 1 {
		t.Error("a cancelled job is in the way of a tenant")
	}
	lingering := q.lingering()
	if got := list[int64](t, lingering, "select seq from ojs.fetch('{q,other}', 2)"); len(got) != 2 {
		t.Errorf("a caller that lingers got %d of 2 jobs", len(got))
	}
	commit(t, lingering)
}

// One held row must not make all later callers scan from it on. Each decision has 10,000 places (the n of ojs.turn) of its own, so a
// scan that begins with the last or the last but one spans less than 11,000 of them, however many refills there were.
func scansBeginBehindHeld(t *testing.T) {
	q := decidedAhead(t, 2000)
	holder, held := q.hold()
	for range 600 {
		q.fetch(1)
	}
	if span := one[int](t, q.d.Pool, "select (hi - lo)::int from ojs.turn_mark order by rev desc limit 1"); span > 11000 {
		t.Errorf("scans begin %d places before the end", span)
	}
	rollback(t, holder)
	// A refill takes it back; 300 fetches are several refills.
	q.comesBack(held, 300)
}

// Two rows are held. The first is let go of, taken back and handed out; the second, let go of afterwards, is not forgotten over that.
func heldOutlivesRevocation(t *testing.T) {
	q := decidedAhead(t, 2000)
	early, first := q.hold()
	for q.outOfReach() == 0 {
		q.fetch(1)
	}
	late, _ := q.hold()
	rollback(t, early)
	for q.fetch(1)[0] != first {
	}
	rollback(t, late)
	q.nothingIsLeft()
}

// Urgent jobs have what was decided ahead taken back, all but a row that is held. When that is let go of, its job comes after them.
func revokedGoesBeforeNothing(t *testing.T) {
	q := decidedAhead(t, 20)
	holder, held := q.hold()
	q.urgent("t", 9, 3)
	q.fetch(1)
	rollback(t, holder)
	if got := q.fetchPriorities(q.service, 1); len(got) != 1 || got[0] != 9 {
		t.Errorf("priority %v went before 9", got)
	}
	q.comesBack(held, 30)
}

// Everything but a held row is fetched. When its holder lets go nothing calls for another decision, so the tick does.
func tickLooksAtLetGo(t *testing.T) {
	q := decidedAhead(t, 20)
	holder, _ := q.hold()
	// Twenty, less the one handed out for good and the one that is held.
	if got := q.fetch(100); len(got) != 18 {
		t.Fatalf("%d of 18 jobs", len(got))
	}
	rollback(t, holder)
	exec(t, q.d.Pool, "update ojs.timer set due_at = now() where kind = 'again'")
	exec(t, q.service, "select ojs.tick()")
	if got := one[int](t, q.d.Pool, "select count(*)::int from ojs._unfolded()"); got != 1 {
		t.Errorf("%d looks are called for, want 1", got)
	}
	if got := q.fetch(1); len(got) != 1 {
		t.Error("the job that was let go of did not come back")
	}
}

// A tenant's login goes beside decisions, so nobody has taken back what was decided ahead before the two urgent jobs came.
func priorityGoesFirstBeside(t *testing.T) {
	q := decidedAhead(t, 20)
	tenant := connect(t, q.d.TenantURL("t"))
	q.urgent("t", 9, 2)
	if got := q.fetchPriorities(tenant, 4); !slices.Equal(got, []int{9, 9, 0, 0}) {
		t.Errorf("priorities %v", got)
	}
}

// Where only a tenant's login fetches there is no decision: the tick charges it and moves its cursor past the 200 jobs it took.
func tickMovesCursor(t *testing.T) {
	q := newRunQueue(t)
	tenant := connect(t, q.d.TenantURL("t"))
	q.enqueue("t", 300)
	for range 2 {
		if got := q.fetchBy(tenant, 100); len(got) != 100 {
			t.Fatalf("%d of 100 jobs", len(got))
		}
		exec(t, q.service, "select ojs.tick()")
	}
	if got := one[int](t, q.d.Pool, "select count(*)::int from ojs.tenant_fairness f join ojs.job j on j.seq > f.head"); got != 100 {
		t.Errorf("%d jobs lie behind the cursor, want 100", got)
	}
	if got := q.charged(); got != 200 {
		t.Errorf("the tenant was charged for %d of 200 jobs", got)
	}
}

// The nine jobs of a that were decided ahead come before the one of b that was enqueued afterwards, in their order.
func aheadGoesFirstBeside(t *testing.T) {
	q := newRunQueue(t)
	q.enqueue("a", 10)
	seqs := q.fetch(1)
	q.enqueue("b", 1)
	lingering := q.lingering()
	for range 2 {
		seqs = append(seqs, q.fetchBy(lingering, 5)...)
	}
	commit(t, lingering)
	if len(seqs) != 11 || !slices.IsSorted(seqs[:10]) {
		t.Errorf("jobs %v, want 11 in order", seqs)
	}
}

// A caller that asks for five takes the three decided ahead that nobody holds, waits for the decision under way in vain, and goes beside
// it for the rest: two of the nine urgent jobs that came meanwhile, and no more.
func besideGetsNoMore(t *testing.T) {
	pgtest.Eventually(t, "the urgent jobs come while the caller waits", func() bool {
		q := newRunQueue(t)
		q.enqueue("a", 5)
		q.fetch(1)
		decider := begin(t, q.d.Pool)
		exec(t, decider, "select from ojs.lane for update")
		holder, _ := q.hold()
		pid, got := fetchLater(t, q.d, "q", 5)
		q.urgent("b", 10, 9)
		yes := inTime(t, q.d, pid)
		if n := <-got; yes && n != 5 {
			t.Errorf("%d jobs were handed out to a caller that asked for 5", n)
		}
		commit(t, decider)
		commit(t, holder)
		return yes
	})
}

// A caller over two queues takes the two jobs whose rows of ojs.turn somebody has hold of, as when they are being taken back. While it is
// about to note that, the rows are let go of. Taking one of the jobs from there as well would charge its tenant twice.
func takenTwiceIsOne(t *testing.T) {
	q := decidedAhead(t, 3)
	exec(t, q.d.Pool, `
		create function public.wait() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
		create trigger wait before insert on ojs.journal for each row when (new.owed > 0) execute function public.wait()`)
	gate, holder := begin(t, q.d.Pool), begin(t, q.d.Pool)
	exec(t, gate, "select pg_advisory_xact_lock(1)")
	exec(t, holder, "select from ojs.turn for update")
	tenant := connect(t, q.d.TenantURL("t"))
	got := make(chan int, 1)
	go func() {
		n := -1
		if err := tenant.QueryRow(t.Context(), "select count(*) from ojs.fetch('{q,other}', 3)").Scan(&n); err != nil {
			t.Error(err)
		}
		got <- n
	}()
	pid := tenant.PgConn().PID()
	pgtest.Eventually(t, "the caller is about to note what it has taken", func() bool { return len(got) > 0 || q.d.IsBlocked(pid) })
	rollback(t, holder)
	commit(t, gate)
	if n := <-got; n != 2 {
		t.Errorf("%d of 2 jobs were handed out", n)
	}
	q.fetch(1)
	if n := q.charged(); n != 3 {
		t.Errorf("the tenant was charged for %d jobs, and had 3", n)
	}
}

// An id is unique within its tenant only. A job of b that comes back must not have the job of a with the same id, which is decided
// ahead, taken for it.
func sameIDOfTwoTenants(t *testing.T) {
	q := newRunQueue(t)
	const id = "01890a5d-ac96-7fff-8000-000000000001"
	exec(t, q.service, "insert into ojs.jobs (id, tenant_id, type, queue) values ($1, 'b', 'a', 'q')", id)
	exec(t, q.service, "select from ojs.fetch_many('{q}', '{1}', '{w}', '{0}', null, false)")
	q.enqueue("b", 200)
	q.enqueue("a", 7)
	exec(t, q.service, "insert into ojs.jobs (id, tenant_id, type, queue) values ($1, 'a', 'a', 'q')", id)
	q.enqueue("a", 100)
	q.fetch(1)
	exec(t, q.service, `select ojs.nack($1, '{"code": "x", "message": "m"}', p_requeue => true, p_tenant => 'b')`, id)
	for range 11 {
		q.fetch(1)
	}
	q.nothingIsLeft()
}

// A boost moves lite, whose weight makes each of its jobs a thousand steps, to the level of the others while one of its rows is held.
// What it is given back when the row is let go of must not move the time of that level: back and stays share it evenly, 50 each, give
// or take two.
func backInAnotherRing(t *testing.T) {
	q := newRunQueue(t)
	exec(t, q.service, "select ojs.configure_tenant('lite', 0.001)")
	q.urgent("back", 7, 2)
	q.fetch(2)
	q.enqueue("lite", 60)
	q.fetch(1)
	holder, _ := q.hold()
	q.urgent("stays", 7, 400)
	exec(t, q.service, "select ojs.configure_tenant('lite', null, 7)")
	q.fetch(100)
	rollback(t, holder)
	q.fetch(100)
	q.urgent("back", 7, 60)
	if n := count(list[string](t, q.service, "select tenant_id from ojs.fetch('{q}', 100, 'w')"), "back"); n < 48 || n > 52 {
		t.Errorf("the tenant that came back had %d of 100 dispatches, its share is 50", n)
	}
}

// The refill that puts a held row out of reach also has its job looked at again later, once.
func tickLooksAtPassedOver(t *testing.T) {
	q := decidedAhead(t, 200)
	holder, _ := q.hold()
	for q.outOfReach() == 0 {
		q.fetch(1)
	}
	if got := one[int](t, q.d.Pool, "select count(*)::int from ojs.timer where kind = 'again'"); got != 1 {
		t.Errorf("%d looks are planned, want 1", got)
	}
	rollback(t, holder)
}

// An operator's rebuild begins with nothing decided ahead, although a row of that is held.
func rebuildDoesNotWait(t *testing.T) {
	q := decidedAhead(t, 10)
	holder, _ := q.hold()
	operator := begin(t, q.d.Pool)
	exec(t, operator, "set local lock_timeout = '2s'")
	exec(t, operator, "select ojs.rebuild()")
	commit(t, operator)
	rollback(t, holder)
	total := 0
	for range 12 {
		total += len(q.fetch(1))
	}
	// Ten, less the one handed out for good.
	if total != 9 {
		t.Errorf("%d of 9 jobs", total)
	}
	ringsAgree(t, q.d.Pool)
}

// Of two queues one is paused, so a caller for both is one for q: it, too, finds the urgent job before what was decided ahead.
func onlyQueueNotPaused(t *testing.T) {
	q := newRunQueue(t)
	q.enqueue("t", 20)
	exec(t, q.service, "select ojs.pause('p')")
	q.fetch(1)
	q.urgent("t", 9, 1)
	if got := list[int](t, q.service, "select priority from ojs.fetch('{p,q}', 1, 'w')"); len(got) != 1 || got[0] != 9 {
		t.Errorf("priority %v went before 9", got)
	}
}

// c comes ten times, takes five jobs by itself, has the sixth cancelled and so leaves the ring while others are decided ahead. A tenant
// that joins afterwards finds the level's time where it belongs: with four others its share of 40 is 8, and two up or down are allowed.
func deficitsKeepTheirSum(t *testing.T) {
	q := newRunQueue(t)
	for _, tenant := range []string{"a", "b", "d", "e"} {
		q.enqueue(tenant, 500)
	}
	for range 10 {
		q.enqueue("c", 6)
		exec(t, q.service, "select from ojs.fetch('{q}', 5, 'w', p_tenant => 'c')")
		exec(t, q.service, "select ojs.cancel(id) from ojs.jobs where tenant_id = 'c' and state = 'available'")
		q.fetch(1)
		exec(t, q.service, "select from ojs.fetch('{q,other}', 1, 'w')")
	}
	q.enqueue("late", 50)
	if n := count(list[string](t, q.service, "select tenant_id from ojs.fetch('{q,other}', 40, 'w')"), "late"); n < 6 || n > 10 {
		t.Errorf("the tenant that joined had %d of 40 dispatches, its share is 8", n)
	}
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}
