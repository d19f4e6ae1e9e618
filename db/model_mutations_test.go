package db_test

import (
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// mutation breaks one rule: it replaces a text in a function of the schema. seed is the seed of the first
// schedule.
type mutation struct {
	name, function, old, new string
	play                     func(*model)
	seed                     uint64
}

// tight is a schedule in which there are always limits and pools.
func (m *model) tight() {
	m.prepare()
	for range 3 {
		m.limit(m.scope(), 2)
		m.configurePool()
	}
	for range 60 {
		m.step()
	}
	m.drain()
}

func (m *model) together() {
	m.tenants, m.queues = []string{"t1", "t2"}, []string{"a", "b"}
	m.limit([2]string{"", "a"}, 2)
	m.pause([2]string{"", "b"})
	m.crowd(4, 30)
}

func (m *model) onlyStrategies() {
	m.queues, m.tenants = []string{"a", "b", "c"}, []string{"t1", "t2"}
	for range 4 {
		m.strategies()
	}
}

func (m *model) onlyMinimum() {
	m.queues, m.tenants = []string{"a", "b", "c"}, []string{"t1", "t2"}
	m.minimum()
}

func (m *model) onlyRotations() {
	m.queues, m.tenants = []string{"a", "b", "c"}, []string{"t1", "t2"}
	m.rotations()
}

func (m *model) onlyLoads() {
	m.queues, m.tenants = []string{"a", "b", "c"}, []string{"t1", "t2"}
	m.loads()
}

var mutations = []mutation{
	{"limits are ignored", "ojs._capacity", "greatest(r.most - u.active", "greatest(1000000", (*model).tight, 0},
	{
		"a pool's limit is ignored",
		"ojs._pool_room", "greatest(p.max_concurrency - ojs._pool_active(p.id), 0)", "p.max_concurrency", (*model).tight, 2,
	},
	{"ends of attempts are not taken in", "ojs._ends", "m.jobs + m.owed", "0", (*model).tight, 0},
	{
		"decisions do not learn of rules that change",
		"ojs._apply_rule", "perform ojs._rule_changed(p_rule.tenant_id, p_rule.queue), ", "perform ", (*model).tight, 0,
	},
	{"paused queues are served", "ojs._open_queues", "r.paused_at is not null", "false", (*model).mixed, 0},
	{
		"paused tenants are served",
		"ojs._capacity", "when r.paused_at is not null then 0 when", "when", (*model).mixed, 1,
	},
	{"isolated queues are served by all", "ojs._isolated_from", "where o.isolated and o.tenants is null", "where false", (*model).tight, 0},
	{"isolated tenants are served by all", "ojs._in_pool", "where o.isolated and o.name <> v_name", "where false", (*model).tight, 6},
	{"a pool's tenants are ignored", "ojs._in_pool", "elsif v_pool.tenants is not null", "elsif false", (*model).tight, 3},
	{"a pool's queues are ignored", "ojs._in_pool", "v_pool.queues is null or", "true or", (*model).tight, 2},
	{"the lowest priority goes first", "ojs._merged", "order by m.priority desc", "order by m.priority", (*model).mixed, 0},
	{"boosts are ignored", "ojs._rank", "p_priority + coalesce(p_boost, 0)", "p_priority", (*model).mixed, 3},
	{"a tenant's lowest priority goes first", "ojs._at_cursors", "c.job_priority desc", "c.job_priority", (*model).shares, 0},
	{
		"weights of tenants are ignored",
		"ojs._take_in", "l.joined, w.weight", "l.joined, 1.0 as weight", (*model).shares, 2,
	},
	{"the newest job goes first", "ojs._due", "w as (order by y.seq", "w as (order by y.seq desc", (*model).mixed, 0},
	{"an attempt is not counted", "ojs.fetch_many", "attempt = j.attempt + 1", "attempt = j.attempt", (*model).mixed, 0},
	{"strict queues take turns", "ojs._serve_queues", "is distinct from 'strict'", "is distinct from 'x'", (*model).onlyStrategies, 0},
	{
		"weights of queues are ignored",
		"ojs._queue_weights", "is distinct from 'weighted'", "is distinct from 'x'", (*model).onlyStrategies, 1,
	},
	{"a round begins anew with each call", "ojs._rotate", "times = v_times", "times = r.times", (*model).onlyStrategies, 0},
	{"a minimum is ignored", "ojs._after_plan", "+ p_ratio", "+ 0 * p_ratio", (*model).onlyMinimum, 0},
	{"who has waited for a rotation interval waits on", "ojs._owed_by_time", "greatest(o.owed, 1)", "o.owed", (*model).onlyRotations, 0},
	{"who had no jobs has waited for them, too", "ojs._after_plan", "v_q <> all (p_open)", "false", (*model).onlyRotations, 0},
	{"the deepest queue has no precedence", "ojs._plan_queues", "-p_depths[v_q]", "0", (*model).onlyLoads, 0},
	{
		"a worker's load has no influence",
		"ojs._by_load", "order by b.active + b.before nulls last, b.n", "order by b.n", (*model).onlyLoads, 0,
	},
	{
		"a worker's concurrency is ignored",
		"ojs._by_load", "greatest(w.concurrency - a.active, 0)", "1000000", (*model).onlyLoads, 0,
	},
	{"what jobs cost is ignored", "ojs._price", "coalesce((p_extra ->> 'cost')::float8, 1)", "1", (*model).byCost, 0},
	{"the unit of a queue is ignored", "ojs._unit", "coalesce(p_fairness ->> 'unit', 'jobs')", "'jobs'", (*model).byTime, 0},
	{"what attempts took is not settled", "ojs._charge_end", "coalesce(p_price, 0)", "0", (*model).byTime, 0},
	{"first in, first out is fair", "ojs._unit", "then 'none'", "then 'jobs'", (*model).firstIn, 0},
	{"those that were cancelled keep their places", "ojs._true_times", "min(d.seq) > d.vtime", "false", (*model).firstIn, 12},
	{
		"round-robin of a queue goes by weights",
		"ojs._share_by", "p_fairness ->> 'strategy' = 'round-robin'", "p_queue = ''", (*model).byWeights, 0,
	},
	{"a queue's weights go before its round-robin", "ojs._weight_in", "w.tenant_id <> '*', ", "", (*model).byWeights, 0},
	{"the deployment goes before the queue", "ojs._weight_in", "w.queue = '', ", "w.queue, ", (*model).byWeights, 0},
	{"default weights go before a tenant's own", "ojs._weight_in", "coalesce(p_own, w.weight)", "w.weight", (*model).byWeights, 13},
	{"jobs above a max_priority are not clamped", "ojs._clamped", "t.over_priority = 'clamp'", "false", (*model).ceilings, 7},
	{"jobs above a max_priority are not refused", "ojs._too_high", "t.over_priority = 'refuse'", "false", (*model).ceilings, 3},
	{"a priority_scope is ignored", "ojs._own_order", "p_fairness ->> 'priority_scope' = 'tenant'", "false", (*model).shares, 1},
	{"limits are ignored, for several at once", "ojs._capacity", "greatest(r.most - u.active", "greatest(1000000", (*model).together, 0},
	{
		"limits are ignored, at two doors at once",
		"ojs._capacity", "greatest(r.most - u.active", "greatest(1000000", (*model).crowdAtDoors, 0,
	},
	{"what is to come back at once over HTTP is retried later", "ojs._judge", "w.requeue", "false", (*model).twoDoors, 0},
	{"pauses are ignored, for several at once", "ojs._open_queues", "r.paused_at is not null", "false", (*model).together, 0},
}

// A model that notices nothing proves nothing: for each rule, it notices that the rule is broken.
func TestTheModelCatchesMutations(t *testing.T) {
	t.Parallel()
	const most = 25
	for _, c := range mutations {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := c.seed; seed < c.seed+most; seed++ {
				m := newModel(t, pgtest.New(t), seed)
				m.mutate(t, c)
				if c.play(m); m.err == nil {
					continue
				}
				t.Logf("seed %d, after %d steps: %v", seed, len(m.steps), m.err)
				return
			}
			t.Errorf("in %d schedules the model has not noticed it", most)
		})
	}
}

// And nothing where no rule is broken.
func TestTheModelCatchesNothingElse(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(*model){
		"tight": (*model).tight, "strategies": (*model).onlyStrategies, "minimum": (*model).onlyMinimum, "together": (*model).together,
		"rotations": (*model).onlyRotations, "loads": (*model).onlyLoads, "weights": (*model).byWeights, "cost": (*model).byCost,
		"time": (*model).byTime,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2) {
				m := newModel(t, pgtest.New(t), seed)
				if play(m); m.err != nil {
					t.Fatalf("seed %d: %s", seed, m.failure())
				}
			}
		})
	}
}

func (m *model) mutate(t *testing.T, c mutation) {
	t.Helper()
	body := one[string](t, m.d.Pool, "select pg_get_functiondef($1::text::regproc)", c.function)
	if !strings.Contains(body, c.old) {
		t.Fatalf("%s has no %q", c.function, c.old)
	}
	exec(t, m.d.Pool, strings.ReplaceAll(body, c.old, c.new))
}
