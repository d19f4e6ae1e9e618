package db_test

import (
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Several fetchers at once: what holds whatever comes between holds meanwhile, and all of it afterwards.
func TestConcurrentDispatchFollowsTheModel(t *testing.T) {
	schedules(t, 6, func(m *model) {
		m.prepare()
		for range 15 {
			m.step()
		}
		m.crowd(2+m.r.IntN(5), 15)
		for range 15 {
			m.step()
		}
		m.drain()
	})
}

// member is one of several sessions that do at once what step does alone.
type member struct {
	*model
	mu   *sync.Mutex
	n    int
	held []*modelJob
}

// crowd lets several fetchers work at once. Configuration does not change, but for pauses, weights and
// boosts, which the first fetcher changes.
func (m *model) crowd(fetchers, rounds int) {
	if m.err != nil {
		return
	}
	m.did("%d fetchers at once", fetchers)
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make([]error, fetchers)
	for n := range fetchers {
		own := *m
		own.r, own.steps = rand.New(rand.NewPCG(m.r.Uint64(), 1)), nil
		c := &member{model: &own, mu: &mu, n: n}
		wg.Go(func() {
			for range rounds {
				c.turn()
			}
			errs[n] = c.err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			m.fail("at once: %w", err)
		}
	}
	m.settle()
}

// settle makes the database look again at jobs that were locked when a decision came to them, and gives
// the model the order in which jobs came.
func (m *model) settle() {
	for range 2 {
		m.exec(m.d.Pool, "update ojs.timer set due_at = now() - interval '1 s' where kind = 'revisit'")
		m.tickAll()
	}
	for _, id := range m.ids(m.d.Pool, "select id::text from ojs.job order by seq nulls last, id") {
		if j := m.jobs[id]; j != nil {
			j.place = m.nextPlace()
		} else {
			m.fail("nobody knows of job %s", id)
		}
	}
	m.compare()
}

func (c *member) turn() {
	switch n := c.r.IntN(20); {
	case c.err != nil:
	case n < 3:
		c.bring()
	case n < 4:
		c.exec(c.service, "select ojs.tick()")
	case n < 7 && c.n == 0:
		c.change()
	case n < 14:
		c.take()
	default:
		c.give()
	}
}

func (c *member) bring() {
	a := arrival{tenant: c.pick(c.tenants), queue: c.pick(c.queues), priority: c.r.IntN(3), n: 1 + c.r.IntN(6), way: byInsert}
	ids := c.model.bring(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if c.jobs[id] == nil {
			c.jobs[id] = &modelJob{id: id, tenant: a.tenant, queue: a.queue, priority: a.priority, state: "available"}
		}
	}
}

// change changes configuration. Only one member calls it, so that it knows the order of its changes. A
// scope counts as paused from the end of the change that pauses it to the beginning of the one that
// resumes it.
func (c *member) change() {
	if c.r.IntN(2) == 0 {
		tenant, boost := c.pick(c.tenants), c.r.IntN(3)
		c.exec(c.service, "select ojs.configure_tenant($1, $2, $3)", tenant, 1+c.r.IntN(3), boost)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.boost[tenant] = boost
		return
	}
	of := c.scope()
	c.mu.Lock()
	_, is := c.paused[of]
	delete(c.paused, of)
	c.mu.Unlock()
	verb := "pause"
	if is {
		verb = "resume"
	}
	c.exec(c.service, "select ojs."+verb+"(nullif($2, ''), nullif($1, ''))", of[0], of[1])
	if !is {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paused[of] = int(c.r.Uint32())
	}
}

// take fetches jobs and enters them into the ledger. It removes a job before it ends the attempt, so the
// ledger never has more jobs than run.
func (c *member) take() {
	a := c.anyAsk()
	a.wait = []int{0, 0, 0, 20}[c.r.IntN(4)]
	keep := c.r.IntN(8) > 0
	var tx pgx.Tx
	if !keep {
		var err error
		if tx, err = c.service.Begin(c.ctx); err != nil {
			c.fail("begin: %w", err)
			return
		}
		defer func() { _ = tx.Rollback(c.ctx) }()
	}
	c.mu.Lock()
	before, refused := maps.Clone(c.paused), len(c.queuesOf(a)) == 0
	c.mu.Unlock()
	got, _, err := c.send(a, tx)
	if err != nil && !refused {
		c.fail("fetch %s: %s", a, pgtest.Explain(err))
	}
	if !keep || c.err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(before, func(of [2]string, since int) bool { return c.paused[of] != since })
	judged := *c.model
	judged.paused = before
	for _, h := range got {
		j := c.jobs[h.ID]
		if j == nil {
			j = &modelJob{id: h.ID, tenant: h.Tenant, queue: h.Queue, priority: h.Priority, state: "available"}
			c.jobs[h.ID] = j
		}
		switch {
		case j.state != "available":
			c.fail("job %s was handed out, and is %s", h.ID, j.state)
		case h.Attempt != j.attempt+1:
			c.fail("attempt %d of job %s, after %d", h.Attempt, h.ID, j.attempt)
		case !judged.mayHave(a, j):
			c.fail("a job of %s in %s was handed out, which is not for %s", j.tenant, j.queue, a)
		}
		j.state, j.attempt, j.pool, j.lease = "active", h.Attempt, c.poolOf(a), h.Lease
		c.held = append(c.held, j)
	}
	n, pools := c.active()
	c.judgeRoom(got, n, pools)
}

func (c *member) give() {
	for len(c.held) > 0 && (len(c.held) > 4 || c.r.IntN(2) == 0) && c.err == nil {
		j := c.held[0]
		c.held = c.held[1:]
		way := modelEnds[c.r.IntN(len(modelEnds))]
		c.mu.Lock()
		id, lease := j.id, j.lease
		way.become(j)
		c.mu.Unlock()
		c.finish(way, id, lease)
		// Functions that end many jobs skip a job that another session has locked, and have to be called again.
		for len(c.ids(c.d.Pool, "select 'held' from ojs.job where id = $1 and lease = $2 and state = 'active'", id, lease)) > 0 {
			c.finish(way, id, lease)
		}
	}
}
