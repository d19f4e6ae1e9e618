//go:build unix

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/jackc/pgx/v5"
)

// ChurnOptions holds the parameters of Churn.
type ChurnOptions struct {
	Dispatches int // in each scenario
	ArgsBytes  int
	Seed       uint64
}

// ChurnScenario is a tenant of some weight that always has work, and many tenants of weight 1 that
// come and go: each sends a few jobs now and then, in sum one job for every two dispatches.
//
// The lag of a tenant is |served - due|, in jobs. served is the number of its jobs that were
// dispatched. due is the work that a fluid server has done for it: an ideal that works for all tenants
// with work at once, by weight, has done as many jobs in sum as were dispatched, and learns of a job
// when it is committed. The lag is judged after every prefix of the sequence of dispatches, for every
// tenant: also for one whose last job is gone while the fluid server still works for it, so that a job
// that is early counts like one that is late.
//
// The sequence is that of the responses, which one caller gets one after the other, and within a
// response that of the journal.
type ChurnScenario struct {
	Name        string  `json:"scenario"`
	Weight      float64 `json:"weight"`
	Beside      int     `json:"beside"`
	AtATime     int     `json:"jobs_at_a_time"` // at most; as often one as two and so on
	Batch       int     `json:"batch"`          // jobs of a response
	Dispatches  int     `json:"dispatches_judged"`
	Arrivals    int64   `json:"jobs_of_small_tenants"`
	MaxLag      float64 `json:"max_lag"` // of the tenant that always has work
	Bound       float64 `json:"bound"`
	SmallMaxLag float64 `json:"small_max_lag"` // of the worst of the others
	SmallBound  float64 `json:"small_bound"`
	Within      bool    `json:"within_bounds"`
}

// ChurnResult is one run of Churn.
type ChurnResult struct {
	Benchmark    string          `json:"benchmark"`
	Mode         string          `json:"mode"`
	Seed         uint64          `json:"seed"`
	Dispatches   int             `json:"dispatches"`
	ArgsBytes    int             `json:"args_bytes"`
	Stock        bool            `json:"stock"`
	MaxLag       float64         `json:"max_lag"`
	SmallMaxLag  float64         `json:"small_max_lag"`
	WithinBounds bool            `json:"within_bounds"`
	Scenarios    []ChurnScenario `json:"scenarios"`
	Machine      Machine         `json:"machine"`
	Settings     Settings        `json:"settings"`
}

// churnScenarios returns the scenarios of the design, with responses of one job and of ten.
func churnScenarios() []ChurnScenario {
	var all []ChurnScenario
	for _, batch := range []int{1, 10} {
		for _, s := range []ChurnScenario{
			{Weight: 10, Beside: 100, AtATime: 1, Bound: 3},
			{Weight: 50, Beside: 300, AtATime: 1, Bound: 5},
			{Weight: 10, Beside: 100, AtATime: 3, Bound: 4},
			{Weight: 50, Beside: 300, AtATime: 3, Bound: 6},
		} {
			s.Batch, s.SmallBound = batch, 2
			s.Name = fmt.Sprintf("weight %v beside %d, up to %d at a time, fetched by %d", s.Weight, s.Beside, s.AtATime, batch)
			all = append(all, s)
		}
	}
	return all
}

// Churn judges the order of dispatch, not its speed, while tenants come and go. The same seed gives
// the same arrivals.
func Churn(ctx context.Context, env *Env, opts ChurnOptions) (*ChurnResult, error) {
	d, err := env.database(ctx, "ojs_bench")
	if err != nil {
		return nil, err
	}
	r := &ChurnResult{
		Benchmark: "dispatch", Mode: "churn", Seed: opts.Seed, Dispatches: opts.Dispatches, ArgsBytes: opts.ArgsBytes, Stock: env.stock,
		Scenarios: churnScenarios(), WithinBounds: true,
	}
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if err := d.churn(ctx, opts, i, s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		if err := d.reset(ctx); err != nil {
			return nil, err
		}
		r.MaxLag, r.SmallMaxLag = max(r.MaxLag, s.MaxLag), max(r.SmallMaxLag, s.SmallMaxLag)
		r.WithinBounds = r.WithinBounds && s.Within
	}
	r.Machine, r.Settings, err = env.describe(ctx, d)
	return r, err
}

// churning is a scenario under way. The tenant with the number 0 always has work.
type churning struct {
	d        *database
	scenario *ChurnScenario
	people   population
	random   *rand.Rand
	args     []string
	conn     *pgx.Conn
	worker   worker
	one      sqlProducer
	many     sqlProducer

	arrived   [][]int64    // by response, before it
	responses [][][16]byte // the ids of the jobs of each
}

// churn runs a scenario and judges it.
func (d *database) churn(ctx context.Context, opts ChurnOptions, number int, s *ChurnScenario) error {
	c := &churning{d: d, scenario: s, random: rand.New(rand.NewPCG(opts.Seed, uint64(number))), args: makeArgs(opts.ArgsBytes)}
	c.people = newPopulation(s.Beside+1, true)
	c.people.weights[0] = s.Weight
	if err := c.people.configure(ctx, d); err != nil {
		return err
	}
	backlog := int64(opts.Dispatches + s.Batch)
	loader, err := d.loader(ctx, "ojs.job", opts.ArgsBytes)
	if err != nil {
		return err
	}
	defer loader.close()
	if err := loader.load(ctx, c.people.names[:1], []int64{backlog}, nil); err != nil {
		return err
	}
	if err := c.open(ctx); err != nil {
		return err
	}
	defer c.worker.close()
	_, mark, err := d.wal(ctx)
	if err != nil {
		return err
	}
	for done := 0; done < opts.Dispatches; done += s.Batch {
		d.env.progress(s.Name, int64(done), int64(opts.Dispatches))
		if err := c.step(ctx, done); err != nil {
			return err
		}
	}
	sequence, err := d.sequence(ctx, order, mark, c.people.number, c.responses)
	if err != nil {
		return err
	}
	// The order that the caller saw: a decision may be taken before another one and handed out after it.
	slices.SortStableFunc(sequence, func(a, b dispatched) int { return cmp.Compare(a.response, b.response) })
	return c.judge(sequence, backlog)
}

// open makes the one connection that all statements use, so that the order of events is that of the
// calls.
func (c *churning) open(ctx context.Context) (err error) {
	if c.conn, err = c.d.connect(ctx); err != nil {
		return err
	}
	c.worker = &sqlWorker{conn: c.conn, tenants: c.people.number}
	// The flush of the log does not change the order, and would take most of the time.
	if _, err := c.conn.Exec(ctx, "set synchronous_commit = off"); err != nil {
		return errors.Join(fmt.Errorf("set up a session: %w", err), c.conn.Close(ctx))
	}
	c.one, c.many = functionWay[0], functionWay[1]
	c.one.conn, c.many.conn = c.conn, c.conn
	return nil
}

// ticksEvery is the number of dispatches between two ticks. A server ticks by time; here ticks come at
// points of the sequence that are the same for the same seed.
const ticksEvery = 100

// step lets jobs arrive, with the same chance for each dispatch, and fetches and acknowledges one
// response.
func (c *churning) step(ctx context.Context, done int) error {
	arrived := make([]int64, len(c.people.names))
	for range c.scenario.Batch {
		// Jobs come at half the rate at which they leave.
		if mean := float64(1+c.scenario.AtATime) / 2; c.random.Float64() >= 0.5/mean {
			continue
		}
		tenant, jobs := 1+c.random.IntN(c.scenario.Beside), 1+c.random.IntN(c.scenario.AtATime)
		way := c.one
		if jobs > 1 {
			way = c.many
		}
		if err := way.enqueue(ctx, c.people.names[tenant], c.args[:jobs]); err != nil {
			return fmt.Errorf("enqueue: %w", err)
		}
		arrived[tenant] += int64(jobs)
		c.scenario.Arrivals += int64(jobs)
	}
	c.arrived = append(c.arrived, arrived)
	if done%ticksEvery < c.scenario.Batch {
		if _, err := c.conn.Exec(ctx, "select ojs.tick()"); err != nil {
			return fmt.Errorf("tick: %w", err)
		}
	}
	jobs, err := c.worker.fetch(ctx, "w", c.scenario.Batch)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	if len(jobs) != c.scenario.Batch {
		return fmt.Errorf("a response held %d jobs, and %d were asked for and waited", len(jobs), c.scenario.Batch)
	}
	ids := make([][16]byte, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].id
	}
	c.responses = append(c.responses, ids)
	if err := c.worker.ack(ctx, jobs); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// judge lets the fluid server follow the sequence and notes the largest lags.
func (c *churning) judge(sequence []dispatched, backlog int64) error {
	s, f := c.scenario, newFluid(c.people.weights)
	f.arrive(0, backlog)
	lag, next := make([]float64, len(c.people.names)), 0
	look := func(tenant int) { lag[tenant] = max(lag[tenant], math.Abs(f.lag(tenant))) }
	for _, d := range sequence {
		for ; next <= int(d.response); next++ {
			for tenant, jobs := range c.arrived[next] {
				f.arrive(tenant, jobs)
			}
		}
		// Between two jobs of a tenant the work that is due to it only grows, so its lag is the largest right
		// before or right after one of its jobs.
		tenant := int(d.tenant)
		look(tenant)
		if _, err := f.dispatch(tenant); err != nil {
			return fmt.Errorf("follow the dispatch sequence: %w", err)
		}
		look(tenant)
		s.Dispatches++
	}
	for tenant := range lag {
		look(tenant)
	}
	s.MaxLag, s.SmallMaxLag = round(lag[0], 4), round(slices.Max(lag[1:]), 4)
	s.Within = s.MaxLag <= s.Bound && s.SmallMaxLag <= s.SmallBound
	return nil
}
