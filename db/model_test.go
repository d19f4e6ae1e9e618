package db_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// model implements the rules of dispatch again, in memory and in the simplest way: it looks at all jobs
// each time. A schedule (model_schedule_test.go) changes the database and tells the model, which judges
// every answer.
type model struct {
	t       testing.TB
	ctx     context.Context
	d       *pgtest.DB
	service *pgxpool.Pool
	doors   []door // through one of which each call goes; nil: by SQL
	r       *rand.Rand

	jobs    map[string]*modelJob
	arrived int // places given out in the lines of tenants
	boost   map[string]int
	limits  map[[2]string]int // by tenant and queue, the empty name standing for all
	paused  map[[2]string]int // and since which step
	pools   map[string]*modelPool
	own     map[string]bool // queues in which priorities order each tenant's own jobs only
	fifo    map[string]bool // queues that are first in, first out across tenants
	highest map[string]ceiling
	workers map[string]int // that have registered, and their concurrency; 0: as many as there are
	tenants []string
	queues  []string

	steps []string
	slow  bool  // the last FETCH took long
	err   error // the first one: after it nothing is done any more
}

type modelJob struct {
	id, tenant, queue, state, lease string
	priority, place, attempt        int
	cost                            float64
	pool                            *modelPool // whose workers have it
	worker                          string     // that has it by strategy least-loaded
}

// modelPool is the configuration of a pool. A pool that is deleted and made again under its name is
// another one.
type modelPool struct {
	queues, tenants []string
	most            int // 0: as many as there are
	isolated        bool
	strategy        string
	ratio           float64
	rotates         bool // it has a rotation_interval that may be over
}

// ask is a FETCH.
type ask struct {
	queues                 []string
	counts                 []int
	workers                []string // one for each of counts; nil: they give no names
	tenant, pool, strategy string
	weights                any
	many                   bool // asks as servers do
	wait                   int  // milliseconds, over HTTP
}

type handedJob struct {
	Request           int
	ID, Tenant, Queue string
	Priority, Attempt int
	Lease             string
}

func newModel(t testing.TB, d *pgtest.DB, seed uint64) *model {
	return &model{
		t: t, ctx: t.Context(), d: d, service: d.Service(), r: rand.New(rand.NewPCG(seed, 0)), jobs: map[string]*modelJob{},
		boost: map[string]int{}, limits: map[[2]string]int{}, paused: map[[2]string]int{}, pools: map[string]*modelPool{},
		own: map[string]bool{}, fifo: map[string]bool{}, workers: map[string]int{},
		highest: map[string]ceiling{},
	}
}

func (m *model) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// failure returns the error of the model, after the last steps that led to it.
func (m *model) failure() string {
	return fmt.Sprintf("%v\nthe last of %d steps:\n  %s\nlimits %v, paused %v, boosts %v", m.err, len(m.steps),
		strings.Join(m.steps[max(0, len(m.steps)-25):], "\n  "), m.limits, slices.Collect(maps.Keys(m.paused)), m.boost)
}

func (m *model) did(format string, args ...any) {
	m.steps = append(m.steps, fmt.Sprintf(format, args...))
}

// rowsOf returns the rows of a statement, read by the positions of columns.
func rowsOf[T any](ctx context.Context, q querier, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

func (m *model) exec(q querier, sql string, args ...any) {
	if m.err != nil {
		return
	}
	if _, err := q.Exec(m.ctx, sql, args...); err != nil {
		m.fail("%s %v: %s", pgtest.Short(sql), args, pgtest.Explain(err))
	}
}

// ids returns the ids that a statement returns.
func (m *model) ids(q querier, sql string, args ...any) []string {
	if m.err != nil {
		return nil
	}
	rows, err := q.Query(m.ctx, sql, args...)
	if err == nil {
		var ids []string
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			return ids
		}
	}
	m.fail("%s %v: %s", pgtest.Short(sql), args, pgtest.Explain(err))
	return nil
}

func (m *model) poolOf(a ask) *modelPool {
	name := a.pool
	if name == "" {
		name = "default"
	}
	return m.pools[name]
}

// isolates reports whether another pool keeps a queue, or the jobs of a tenant, for itself.
func (m *model) isolates(mine *modelPool, queue, tenant string) bool {
	for name, p := range m.pools {
		if p == mine || !p.isolated || name == "*" {
			continue
		}
		if p.tenants != nil && slices.Contains(p.tenants, tenant) || p.tenants == nil && slices.Contains(p.queues, queue) {
			return true
		}
	}
	return false
}

// queuesOf returns the queues from which a FETCH may get jobs, also paused ones, in the order listed. If
// there are none, the FETCH is refused.
func (m *model) queuesOf(a ask) []string {
	pool := m.poolOf(a)
	listed := a.queues
	if pool != nil && pool.queues != nil {
		listed = slices.DeleteFunc(slices.Clone(pool.queues), func(q string) bool { return !slices.Contains(a.queues, q) })
	}
	listed = slices.DeleteFunc(slices.Clone(listed), func(q string) bool { return m.isolates(pool, q, "") })
	if pool != nil && pool.tenants != nil && a.tenant != "" && !slices.Contains(pool.tenants, a.tenant) {
		return nil
	}
	return listed
}

// strategyOf returns the strategy of a FETCH. mixed says that queues have a minimum, or may come before
// their turn because they have waited.
func (m *model) strategyOf(a ask) (strategy string, mixed bool) {
	strategy = a.strategy
	for _, p := range []*modelPool{m.poolOf(a), m.pools["*"]} {
		if p != nil {
			mixed = mixed || p.ratio > 0 || p.rotates
			if p.strategy != "" {
				strategy = p.strategy
			}
		}
	}
	return strategy, mixed
}

func (m *model) isPaused(tenant, queue string) bool {
	for _, of := range [][2]string{{"", ""}, {"", queue}, {tenant, ""}, {tenant, queue}} {
		if _, is := m.paused[of]; is {
			return true
		}
	}
	return false
}

// mayHave reports whether the worker of a FETCH may get a job: by queue, tenant, pauses and pools. It does
// not look at limits.
func (m *model) mayHave(a ask, j *modelJob) bool {
	pool := m.poolOf(a)
	return slices.Contains(m.queuesOf(a), j.queue) && (a.tenant == "" || a.tenant == j.tenant) && !m.isPaused(j.tenant, j.queue) &&
		(pool == nil || pool.tenants == nil || slices.Contains(pool.tenants, j.tenant)) && !m.isolates(pool, "", j.tenant)
}

// active counts active jobs by tenant and queue (empty: all), and by pool.
func (m *model) active() (map[[2]string]int, map[*modelPool]int) {
	n, pools := map[[2]string]int{}, map[*modelPool]int{}
	for _, j := range m.jobs {
		if j.state == "active" {
			for _, of := range scopesOf(j.tenant, j.queue) {
				n[of]++
			}
			pools[j.pool]++
		}
	}
	return n, pools
}

// scopesOf returns the scopes of the limits that count a job.
func scopesOf(tenant, queue string) [][2]string {
	return [][2]string{{tenant, ""}, {tenant, queue}, {"", queue}}
}

// roomFor reports whether limits allow one more job of a tenant and queue in addition to n. With
// tenantOnly it ignores the limit of the queue.
func (m *model) roomFor(n map[[2]string]int, j *modelJob, tenantOnly bool) bool {
	for _, of := range scopesOf(j.tenant, j.queue) {
		if most, limited := m.limits[of]; limited && n[of] >= most && !(tenantOnly && of[0] == "") {
			return false
		}
	}
	return true
}

// fetch makes a FETCH and judges the answer. Without keep it rolls the FETCH back.
func (m *model) fetch(a ask, keep bool) []handedJob {
	if m.err != nil {
		return nil
	}
	m.did("fetch %s", a)
	turns := m.byLoad(a)
	var tx pgx.Tx
	if !keep {
		m.did("which is rolled back")
		var err error
		if tx, err = m.service.Begin(m.ctx); err != nil {
			m.fail("begin: %w", err)
			return nil
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
	}
	var all []handedJob
	for left := a; ; left.counts = []int{a.count() - len(all)} {
		jobs, again, err := m.send(left, tx)
		all = append(all, jobs...)
		if err != nil {
			if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "OJ422" || len(m.queuesOf(a)) > 0 {
				m.fail("fetch %s: %s", a, pgtest.Explain(err))
			}
			return nil
		} else if len(m.queuesOf(a)) == 0 {
			m.fail("fetch %s was not refused, but its pool has none of these queues", a)
		}
		for i, most := range left.counts {
			n := len(slices.DeleteFunc(slices.Clone(jobs), func(h handedJob) bool { return h.Request != i+1 }))
			if a.many && n > most {
				m.fail("%d jobs for request %d of %v", n, i+1, left.counts)
			}
		}
		if !again || m.err != nil || len(all) >= a.count() {
			break
		}
		m.did("asks again, with %d jobs", len(all))
	}
	if turns != nil {
		a.counts = []int{len(turns)}
	}
	m.judge(a, all)
	for i, h := range all {
		if turns != nil && m.err == nil {
			if m.jobs[h.ID].worker = a.workers[h.Request-1]; h.Request != turns[i] {
				m.fail("job %d of the answer is for request %d, want %d", i+1, h.Request, turns[i])
			}
		}
	}
	// A caller that has been in its transaction for a while fetches without the lane, and no order is promised then.
	if m.err == nil && (keep || !slices.Contains(m.ids(tx, "select 'late' where clock_timestamp() - now() > interval '20 ms'"), "late")) {
		m.judgeOrder(a, all)
	}
	if !keep {
		for _, j := range all {
			if job := m.jobs[j.ID]; job != nil {
				job.state, job.attempt, job.pool, job.worker = "available", j.Attempt-1, nil, ""
			}
		}
	}
	return all
}

func (a ask) count() (n int) {
	for _, c := range a.counts {
		n += c
	}
	return n
}

func (a ask) String() string {
	return fmt.Sprintf("%v of %v, workers %v, pool %q, tenant %q, strategy %q, weights %v, as a server %v", a.counts, a.queues, a.workers,
		a.pool, a.tenant, a.strategy, a.weights, a.many)
}

// send makes the call. again says that it stopped early and has to be made once more.
func (a ask) send(ctx context.Context, q querier) (jobs []handedJob, again bool, err error) {
	const columns = "coalesce(id::text, ''), coalesce(tenant_id, ''), coalesce(queue, ''), coalesce(priority, 0), coalesce(attempt, 0), " +
		"coalesce(lease::text, '') from "
	if !a.many {
		jobs, err = rowsOf[handedJob](ctx, q, "select 1, "+columns+"ojs.fetch($1, $2, p_visibility_timeout_ms => 600000, "+
			"p_tenant => nullif($3, ''), p_strategy => nullif($4, ''), p_weights => $5::text::jsonb, p_pool => nullif($6, ''))",
			a.queues, a.count(), a.tenant, a.strategy, a.weights, a.pool)
		return jobs, false, err
	}
	workers, leases := make([]string, len(a.counts)), make([]int, len(a.counts))
	copy(workers, a.workers)
	for i := range leases {
		leases[i] = 600000
	}
	jobs, err = rowsOf[handedJob](ctx, q, "select request, "+columns+"ojs.fetch_many($1, $2, $3, $4, nullif($5, ''), "+
		"p_strategy => nullif($6, ''), p_weights => $7::text::jsonb, p_pool => nullif($8, ''))",
		a.queues, a.counts, workers, leases, a.tenant, a.strategy, a.weights, a.pool)
	jobs = slices.DeleteFunc(jobs, func(j handedJob) bool {
		again = again || j.ID == "" && j.Request == 0
		return j.ID == ""
	})
	return jobs, again, err
}

// send makes a FETCH in a transaction or, if tx is nil, through a door.
func (m *model) send(a ask, tx pgx.Tx) ([]handedJob, bool, error) {
	m.slow = false
	if tx != nil {
		return a.send(m.ctx, tx)
	}
	through := m.door()
	if m.doors != nil {
		m.did("by %T", through)
	}
	began := time.Now()
	jobs, again, err := through.fetch(m.ctx, a)
	m.slow = time.Since(began) > 20*time.Millisecond
	return jobs, again, err
}

// judge checks an answer, and makes its jobs active.
func (m *model) judge(a ask, got []handedJob) {
	if len(got) > a.count() {
		m.fail("%d jobs, asked for %d", len(got), a.count())
	}
	for _, h := range got {
		j := m.jobs[h.ID]
		switch {
		case j == nil:
			m.fail("a job that nobody has enqueued: %v", h)
		case j.state != "available":
			m.fail("job %s was handed out, and is %s", h.ID, j.state)
		case h.Attempt != j.attempt+1:
			m.fail("attempt %d of job %s, after %d", h.Attempt, h.ID, j.attempt)
		case [3]any{h.Tenant, h.Queue, h.Priority} != [3]any{j.tenant, j.queue, j.priority}:
			m.fail("job %s is not what was enqueued: %v", h.ID, h)
		case !m.mayHave(a, j):
			m.fail("a job of %s in %s was handed out, which is not for this FETCH", j.tenant, j.queue)
		default:
			j.state, j.attempt, j.pool, j.lease, j.worker = "active", h.Attempt, m.poolOf(a), h.Lease, ""
		}
	}
	if m.err == nil {
		n, pools := m.active()
		m.judgeRoom(got, n, pools)
		m.judgeRest(a, got, n, pools)
	}
}

// judgeRoom checks that the jobs handed out exceed no limit.
func (m *model) judgeRoom(got []handedJob, n map[[2]string]int, pools map[*modelPool]int) {
	for _, h := range got {
		for _, of := range scopesOf(h.Tenant, h.Queue) {
			if most, limited := m.limits[of]; limited && n[of] > most {
				m.fail("%d jobs of tenant and queue %q are active, at most %d may be", n[of], of, most)
			}
		}
		if p := m.jobs[h.ID].pool; p != nil && p.most > 0 && pools[p] > p.most {
			m.fail("%d jobs are in the hands of a pool of %d", pools[p], p.most)
		}
	}
}

// judgeRest checks that a FETCH which got fewer jobs than it asked for has left no job that it could have
// got.
func (m *model) judgeRest(a ask, got []handedJob, n map[[2]string]int, pools map[*modelPool]int) {
	pool := m.poolOf(a)
	if len(got) == a.count() || pool != nil && pool.most > 0 && pools[pool] >= pool.most {
		return
	}
	if m.slow {
		return // on a busy machine it may have gone without the lane (ojs._lingers), where limited queues give nothing
	}
	for _, j := range m.jobs {
		if j.state == "available" && m.mayHave(a, j) && m.roomFor(n, j, false) {
			m.fail("%d jobs, asked for %d, though %s has one more in %s, which may run", len(got), a.count(), j.tenant, j.queue)
		}
	}
}

// level returns the level of a job, and the jobs among which a higher level goes first.
func (m *model) level(j *modelJob) (of [2]string, level int) {
	if m.own[j.queue] {
		return [2]string{j.queue, j.tenant}, j.priority
	}
	return [2]string{j.queue, ""}, j.priority + m.boost[j.tenant]
}

// line returns the group of jobs in which older ones go first: those of the tenant, or of all tenants.
func (m *model) line(j *modelJob) [2]any {
	if m.fifo[j.queue] {
		_, level := m.level(j)
		return [2]any{j.queue, level}
	}
	return [2]any{[2]string{j.tenant, j.queue}, j.priority}
}

// judgeOrder checks that in a queue the highest priority goes first, of a line the oldest job, and with
// the strategy strict the first queue.
func (m *model) judgeOrder(a ask, got []handedJob) {
	queues := m.queuesOf(a)
	strategy, mixed := m.strategyOf(a)
	strict := strategy == "strict" && !mixed && len(queues) > 1
	n, _ := m.active()
	lowest, oldest, last := map[[2]string]int{}, map[[2]any]int{}, -1
	for i, h := range got {
		j := m.jobs[h.ID]
		at := slices.Index(queues, j.queue)
		of, level := m.level(j)
		if low, seen := lowest[of]; seen && low < level {
			m.fail("job %d of the answer is of priority %d, behind one of %d of %q", i+1, level, low, of)
		} else if !seen || level < low {
			lowest[of] = level
		}
		line := m.line(j)
		if before, seen := oldest[line]; seen && before > j.place {
			m.fail("job %d of the answer came before one of the same line that goes before it", i+1)
		}
		oldest[line] = max(oldest[line], j.place)
		if strict && at < last {
			m.fail("job %d of the answer is of queue %s, behind one of a later queue", i+1, j.queue)
		}
		last = max(last, at)
	}
	for _, j := range m.jobs {
		if j.state != "available" || !m.mayHave(a, j) {
			continue
		}
		if before, seen := oldest[m.line(j)]; seen && before > j.place && (!m.fifo[j.queue] || m.roomFor(n, j, true)) {
			m.fail("a job of %s in %s was handed out before one that is older", j.tenant, j.queue)
		}
		if !m.roomFor(n, j, true) {
			continue
		}
		of, level := m.level(j)
		if low, seen := lowest[of]; seen && low < level {
			m.fail("a job of priority %d was handed out from %q, though %s has one of %d", low, of, j.tenant, level)
		}
		if strict && slices.Index(queues, j.queue) < last && m.roomFor(n, j, false) {
			m.fail("a job of queue %s was handed out, though %s has one in %s", queues[last], j.tenant, j.queue)
		}
	}
}
