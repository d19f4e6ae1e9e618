package db_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// schedules plays n schedules, or OJS_MODEL_RUNS if it is set, each in a database of its own and with a
// seed of its own. OJS_MODEL_SEED and OJS_MODEL_RUNS=1 repeat one.
func schedules(t *testing.T, n int, play func(*model)) {
	t.Helper()
	t.Parallel()
	seed := newSeed()
	if n, err := strconv.ParseUint(os.Getenv("OJS_MODEL_SEED"), 10, 64); err == nil {
		seed = n
	}
	if runs, err := strconv.Atoi(os.Getenv("OJS_MODEL_RUNS")); err == nil {
		n = runs
	}
	for i := range n {
		own := seed + uint64(i)
		t.Run(fmt.Sprint(own), func(t *testing.T) {
			m := newModel(t, pgtest.New(t), own)
			if play(m); m.err != nil {
				t.Fatalf("OJS_MODEL_SEED=%d: %s\n%s", own, m.failure(), m.tables())
			}
			ringsAgree(t, m.d.Pool)
		})
	}
}

// tables returns the rows about dispatch, without jobs that have ended, for the log of a failure: a
// schedule with several callers cannot be repeated.
func (m *model) tables() string {
	var all strings.Builder
	for _, of := range []string{
		"job where state not in ('completed', 'cancelled', 'discarded')", "tenant_fairness", "dispatch_state", "revisit", "fold",
		"timer", "clock_mark", "rule", "pool", "usage", "lane", "rotation", "release", "lease",
		"journal order by at desc limit 60",
	} {
		var rows string
		err := m.d.Pool.QueryRow(context.Background(),
			"select coalesce(string_agg(row_to_json(x)::text, e'\n    '), '') from (select xmin, ctid, * from ojs."+of+") x").Scan(&rows)
		fmt.Fprintf(&all, "  %s: %v\n    %s\n", of, err, rows)
	}
	return all.String()
}

// Random tenants, weights, boosts, priorities, queues, pools, limits, pauses, arrivals, ends and rollbacks, one step after the other:
// every answer is what the rules say.
func TestDispatchFollowsTheModel(t *testing.T) {
	schedules(t, 16, (*model).mixed)
}

func (m *model) mixed() {
	m.prepare()
	for range 60 {
		m.step()
	}
	m.drain()
}

// The same where two queues and a limit are narrow, and limits hold often.
func TestDispatchBesideALimitFollowsTheModel(t *testing.T) {
	schedules(t, 6, (*model).narrow)
}

// narrow is a schedule of two queues, in which a tenant may run few jobs, and jobs that would be next are
// often cancelled.
func (m *model) narrow() {
	m.tenants, m.queues = []string{"t1", "t2"}, []string{"a", "b"}
	m.limit([2]string{"t1", ""}, 2)
	for range 8 {
		m.arrive()
	}
	for range 60 {
		switch m.r.IntN(5) {
		case 0:
			m.arrive()
		case 1:
			m.end()
		case 2:
			m.cancelFirst("t1", m.pick(m.queues))
		default:
			m.fetch(ask{queues: []string{m.pick(m.queues)}, counts: []int{[]int{1, 1, 2, 60}[m.r.IntN(4)]}}, true)
		}
	}
	m.drain()
}

func (m *model) cancelFirst(tenant, queue string) {
	var first *modelJob
	for _, j := range m.in("available") {
		if j.tenant == tenant && j.queue == queue && (first == nil || j.priority > first.priority ||
			j.priority == first.priority && j.place < first.place) {
			first = j
		}
	}
	if first != nil {
		m.did("cancel the first job of %s in %s", tenant, queue)
		m.exec(m.service, "select ojs.cancel($1)", first.id)
		first.state = "cancelled"
	}
}

func (m *model) pick(of []string) string { return of[m.r.IntN(len(of))] }

func (m *model) prepare() {
	m.tenants = []string{"t1", "t2", "t3", "t4", "t5"}[:2+m.r.IntN(4)]
	m.queues = []string{"a", "b", "c", "d"}[:1+m.r.IntN(4)]
	for range m.r.IntN(5) {
		m.configure()
	}
	for range 6 {
		m.arrive()
	}
}

func (m *model) step() {
	switch n := m.r.IntN(100); {
	case m.err != nil:
	case n < 22:
		m.arrive()
	case n < 56:
		m.fetch(m.anyAsk(), true)
	case n < 60:
		m.fetch(m.anyAsk(), false)
	case n < 80:
		m.end()
	case n < 84:
		m.promote()
	case n < 86:
		m.expireLeases()
	case n < 88:
		m.did("tick")
		m.exec(m.service, "select ojs.tick()")
	case n < 97:
		m.configure()
	default:
		m.compare()
	}
}

func (m *model) anyAsk() ask {
	a := ask{queues: some(m.r, m.queues), counts: []int{1 + m.r.IntN(6)}, many: m.r.IntN(2) == 0}
	if m.r.IntN(3) == 0 {
		a.counts[0] = 1
	}
	if m.r.IntN(8) == 0 {
		a.tenant = m.pick(m.tenants)
	}
	if m.r.IntN(2) == 0 {
		a.pool = m.pick([]string{"p1", "p1", "p2", "p2", "default", "other"})
	}
	if m.r.IntN(2) == 0 {
		a.strategy = m.pick([]string{"strict", "strict", "round-robin", "weighted", "least-loaded"})
		a.weights = fmt.Sprintf(`{"a": %d, "c": %d}`, 1+m.r.IntN(5), 1+m.r.IntN(5))
	}
	if a.many {
		for range m.r.IntN(3) {
			a.counts = append(a.counts, 1+m.r.IntN(3))
		}
	}
	return a
}

// arrive enqueues some jobs, in a random way.
func (m *model) arrive() {
	a := arrival{tenant: m.pick(m.tenants), queue: m.pick(m.queues), priority: m.r.IntN(3), n: 1 + m.r.IntN(8), way: arriving(m.r.IntN(4))}
	state := "available"
	switch a.way {
	case byCall:
		a.n = 1
	case forLater:
		a.n, state = min(a.n, 3), "scheduled"
	}
	m.did("%d jobs of %s in %s, priority %d, %s", a.n, a.tenant, a.queue, a.priority, state)
	priority, _ := m.allowed(a)
	for _, id := range m.bring(a) {
		m.jobs[id] = &modelJob{id: id, tenant: a.tenant, queue: a.queue, priority: priority, state: state, place: m.nextPlace()}
	}
}

// bring enqueues jobs through one of the doors.
func (m *model) bring(a arrival) []string {
	if m.err != nil {
		return nil
	}
	ids, err := m.door().enqueue(m.ctx, a)
	if _, refused := m.allowed(a); refused {
		if said, ok := errors.AsType[*pgconn.PgError](err); !ok || said.Code != "OJ422" {
			m.fail("enqueue %+v: %d jobs, %s; want it refused", a, len(ids), pgtest.Explain(err))
		}
		return nil
	}
	if err != nil || len(ids) != a.n {
		m.fail("enqueue %+v: %d jobs, %s", a, len(ids), pgtest.Explain(err))
	}
	return ids
}

func (m *model) nextPlace() int {
	m.arrived++
	return m.arrived
}

// in returns the jobs in some states, in an order that depends on the seed only.
func (m *model) in(states ...string) []*modelJob {
	var found []*modelJob
	for _, j := range m.jobs {
		if slices.Contains(states, j.state) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(a, b *modelJob) int { return a.place - b.place })
	m.r.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	return found
}

// modelEnd is a way to end an attempt, and the state of the job afterwards.
type modelEnd struct {
	sql, route string // over HTTP, if there is one
	requeue    bool
	become     func(*modelJob)
}

var modelEnds = []modelEnd{
	{"select ojs.ack($1, $2)", "workers/ack", false, func(j *modelJob) { j.state = "completed" }},
	{"select ojs.ack_many(array[$1::uuid], array[$2::uuid])", "workers/ack", false, func(j *modelJob) { j.state = "completed" }},
	{`select ojs.nack($1, '{"message": "no"}', p_lease => $2)`, "workers/nack", false, func(j *modelJob) {
		if j.state = "retryable"; j.attempt >= 3 {
			j.state = "discarded"
		}
	}},
	{
		`select ojs.nack($1, '{"message": "no"}', p_lease => $2, p_requeue => true)`, "workers/nack", true,
		func(j *modelJob) { j.state = "available" },
	},
	{"select ojs.release($1, $2)", "", false, func(j *modelJob) { j.state, j.attempt = "available", j.attempt-1 }},
	{
		"select ojs.release_many(array[$1::uuid], array[$2::uuid])", "", false,
		func(j *modelJob) { j.state, j.attempt = "available", j.attempt-1 },
	},
	{"select ojs.cancel($1) where $2::uuid is not null", "", false, func(j *modelJob) { j.state = "cancelled" }},
}

func (m *model) end() {
	if m.r.IntN(6) == 0 {
		for _, j := range m.in("available", "scheduled", "retryable") {
			m.did("cancel a job of %s in %s that is %s", j.tenant, j.queue, j.state)
			m.exec(m.service, "select ojs.cancel($1)", j.id)
			j.state = "cancelled"
			return
		}
	}
	m.endSome()
}

// endSome ends up to five attempts.
func (m *model) endSome() {
	for i, j := range m.in("active") {
		if i == 5 {
			break
		}
		way := modelEnds[m.r.IntN(len(modelEnds))]
		if m.r.IntN(3) == 0 {
			way = modelEnds[0]
		}
		m.endBy(way, j)
	}
}

func (m *model) endBy(way modelEnd, j *modelJob) {
	m.did("%s for a job of %s in %s", way.sql, j.tenant, j.queue)
	m.finish(way, j.id, j.lease)
	way.become(j)
}

// finish ends an attempt through one of the doors.
func (m *model) finish(way modelEnd, id, lease string) {
	if m.err != nil {
		return
	}
	if err := m.door().end(m.ctx, way, id, lease); err != nil {
		m.fail("%s: %s", way.sql, pgtest.Explain(err))
	}
	m.keepFromRetry(id)
}

// keepFromRetry makes a job that failed wait until promote, however long the other steps of the schedule
// take.
func (m *model) keepFromRetry(id string) {
	m.exec(m.d.Pool, "update ojs.job set retry_at = retry_at + interval '1 day' where id = $1 and state = 'retryable'", id)
}

// promote makes some scheduled and retryable jobs available, in an order that it chooses.
func (m *model) promote() {
	var ids []string
	for _, j := range m.in("scheduled", "retryable") {
		if m.r.IntN(3) > 0 {
			ids = append(ids, j.id)
			j.state, j.place, j.pool = "available", m.nextPlace(), nil
		}
	}
	m.did("%d jobs become due", len(ids))
	m.exec(m.d.Pool, `
		update ojs.job j set scheduled_at = case when state = 'scheduled' then u.at else scheduled_at end,
			retry_at = case when state = 'retryable' then u.at end
		from (select id, now() - interval '1 hour' + n * interval '1 second' as at from unnest($1::uuid[]) with ordinality x(id, n)) u
		where u.id = j.id`, ids)
	m.exec(m.d.Pool, "update ojs.timer set due_at = now() - interval '1 s' where kind = 'due' and ids && $1::uuid[]", ids)
	m.tickAll()
}

// tickAll makes the clock look at timers that were moved to an earlier time, too.
func (m *model) tickAll() {
	m.exec(m.d.Pool, "update ojs.clock_mark set due_at = '-infinity', lease_at = '-infinity'")
	m.exec(m.service, "select ojs.tick(100000)")
}

func (m *model) expireLeases() {
	var ids []string
	for _, j := range m.in("active") {
		if m.r.IntN(2) == 0 {
			ids = append(ids, j.id)
			if j.state = "available"; j.attempt >= 3 {
				j.state = "discarded"
			}
		}
	}
	m.did("%d leases expire", len(ids))
	m.exec(m.d.Pool, "update ojs.job set lease_expires_at = now() - interval '1 s' where id = any ($1::uuid[])", ids)
	m.exec(m.d.Pool, "update ojs.lease set due_at = now() - interval '1 s' where ids && $1::uuid[]", ids)
	m.tickAll()
}

// compare compares all jobs, and the counts of limits, with the model, after the ends of attempts have been
// counted.
func (m *model) compare() {
	type row struct {
		ID, State string
		Attempt   int
	}
	if m.err != nil {
		return
	}
	m.did("compare")
	rows, err := rowsOf[row](m.ctx, m.d.Pool, "select id::text, state::text, attempt from ojs.job")
	if err != nil || len(rows) != len(m.jobs) {
		m.fail("%d jobs, %v; want %d", len(rows), err, len(m.jobs))
		return
	}
	for _, r := range rows {
		if j := m.jobs[r.ID]; j == nil || j.state != r.State || j.attempt != r.Attempt {
			m.fail("job %s is %s after %d attempts; the model has %+v", r.ID, r.State, r.Attempt, j)
			return
		}
	}
	m.exec(m.d.Pool, "do $$ begin perform ojs._enter_lane(), ojs._fold_on(); end $$")
	if missed := m.ids(m.d.Pool, belowTheLowest); len(missed) > 0 {
		m.fail("never looked at: %v", missed)
	}
	if wrong := m.ids(m.d.Pool, countedWrongly); len(wrong) > 0 {
		m.fail("counted wrongly: %v", wrong)
	}
	n, pools := m.active()
	for name, p := range m.pools {
		if got := m.ids(m.service, "select active_jobs::text from ojs.pool_stats where name = $1", name); m.err == nil && name != "*" &&
			got[0] != strconv.Itoa(pools[p]) {
			m.fail("pool %s has %s jobs in its hands, want %d; in all there are %v", name, got[0], pools[p], n)
		}
	}
}

// belowTheLowest finds tenants with work whose time is below the one from which decisions look, but for
// tenants of isolated pools.
const belowTheLowest = `
	select format('%s in %s, priority %s', f.tenant_id, f.queue, f.priority) from ojs.tenant_fairness f
	cross join lateral ojs._level(f.queue, f.priority) l
	where f.ready and f.vtime < l.low and ((select s.unit from ojs._state(f.queue) s) = 'none'
		or not exists (select from ojs.pool p where p.isolated and f.tenant_id = any (p.tenants)))`

// countedWrongly finds limits whose count is not the number of active jobs.
const countedWrongly = `
	select format('%s in %s: %s, want %s', r.tenant_id, r.queue, u.active, j.n)
	from ojs.rule r left join ojs.usage u on u.tenant_id = r.tenant_id and u.queue = r.queue and u.limit_xid = r.limit_xid
	cross join lateral (select count(*) as n from ojs.job j
		where j.state = 'active' and r.tenant_id in ('', j.tenant_id) and r.queue in ('', j.queue)) j
	where r.max_concurrency is not null and u.active is distinct from j.n`

// drain fetches and ends jobs until none is left, first with the pools as they are and then without them.
// All counts must be 0 then.
func (m *model) drain() {
	m.resumeAll()
	m.drainBy([]string{"default", "p1", "p2", "other"})
	for _, j := range m.in("active") {
		m.exec(m.service, "select ojs.ack($1, $2)", j.id, j.lease)
		j.state = "completed"
	}
	m.compare()
	for _, name := range slices.Sorted(maps.Keys(m.pools)) {
		m.exec(m.service, "select ojs.delete_pool($1, true)", name)
		delete(m.pools, name)
	}
	m.drainBy([]string{""})
	m.compare()
	if left := m.in("available", "active", "scheduled", "retryable"); len(left) > 0 {
		m.fail("%d jobs were left behind, such as %+v", len(left), left[0])
	}
	for _, n := range m.ids(m.d.Pool, `
		select u.active::text from ojs.usage u join ojs.rule r using (limit_xid, tenant_id, queue) where u.active <> 0`) {
		m.fail("%s jobs count against a limit, though nothing runs", n)
	}
}

func (m *model) drainBy(pools []string) {
	for idle := 0; idle < 2 && m.err == nil; idle++ {
		for _, pool := range pools {
			a := ask{queues: some(m.r, m.queues), counts: []int{1 + m.r.IntN(40)}, pool: pool, many: m.r.IntN(2) == 0}
			if idle == 1 {
				a.queues, a.counts = m.queues, []int{1000}
			}
			if len(m.fetch(a, true)) > 0 {
				idle = -1
			}
		}
		for i, j := range m.in("active") {
			if i%3 > 0 || idle == 0 {
				m.exec(m.service, "select ojs.ack($1, $2)", j.id, j.lease)
				j.state = "completed"
				idle = -1
			}
		}
		if len(m.in("scheduled", "retryable")) > 0 {
			m.promote()
			idle = -1
		}
	}
}
