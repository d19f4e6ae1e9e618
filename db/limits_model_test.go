package db_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

var (
	crowdTenants = []string{"t1", "t2", "t3", "t4"}
	crowdQueues  = []string{"a", "b", "c"}
)

// crowd is a number of sessions that at once do all that may change a count of a limit.
type crowd struct {
	t *testing.T
	d *pgtest.DB

	mu   sync.Mutex
	errs []error
}

// did keeps an error, unless it is one that a session may get because others work at once.
func (c *crowd) did(what string, err error) {
	if err == nil {
		return
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains([]string{
		"OJ404", "OJ408", "OJ409", "40P01", "55P03",
	}, refused.Code) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
}

func some(r *rand.Rand, of []string) []string {
	own := slices.Clone(of)
	r.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
	return own[:1+r.IntN(len(own))]
}

const fetchSome = "select from ojs.fetch($1, $2)"

// crowdEnds are statements that end attempts, or jobs before an attempt.
var crowdEnds = []string{
	"select ojs.ack_many(array(select id from ojs.job where state = 'active' order by random() limit 4))",
	"select ojs.ack(id) from (select id from ojs.job where state = 'active' order by random() limit 1) j",
	`select ojs.nack(id, '{"message": "again"}') from (select id from ojs.job where state = 'active' order by random() limit 2) j`,
	"select ojs.cancel(id) from (select id from ojs.job where state in ('active', 'available') order by random() limit 1) j",
	"select ojs.release(id, lease) from (select id, lease from ojs.job where state = 'active' order by random() limit 2) j",
}

func (c *crowd) exec(what string, q querier, sql string, args ...any) {
	_, err := q.Exec(c.t.Context(), sql, args...)
	c.did(what, err)
}

// fetchAndStay fetches in a transaction that stays open for a moment. It may end an attempt before, and may
// roll back.
func (c *crowd) fetchAndStay(r *rand.Rand) {
	tx, err := c.d.Service().Begin(c.t.Context())
	if err != nil {
		c.did("begin", err)
		return
	}
	if r.IntN(3) == 0 {
		c.exec("linger", tx, "select pg_sleep(0.03)")
	}
	if r.IntN(3) == 0 {
		c.exec("savepoint", tx, "savepoint s")
		c.exec("fetch", tx, fetchSome, some(r, crowdQueues), 1+r.IntN(4))
		c.exec("savepoint", tx, "rollback to s")
	}
	c.exec("fetch", tx, fetchSome, some(r, crowdQueues), 1+r.IntN(4))
	c.exec("stay", tx, "select pg_sleep($1)", r.Float64()*0.03)
	if r.IntN(2) == 0 {
		c.did("rollback", tx.Rollback(c.t.Context()))
	} else if err := tx.Commit(c.t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
		c.did("commit", err)
	}
}

func (c *crowd) changeARule(r *rand.Rand) {
	tenant, queue := some(r, crowdTenants)[0], some(r, append(crowdQueues, ""))[0]
	switch r.IntN(5) {
	case 0:
		tenant, queue = "", some(r, crowdQueues)[0]
		fallthrough
	case 1, 2:
		most := new(int)
		if *most = 1 + r.IntN(5); r.IntN(3) == 0 {
			most = nil
		}
		c.exec("limit", c.d.Service(), "select ojs.limit_concurrency($1, nullif($2, ''), nullif($3, ''))", most, tenant, queue)
	case 3:
		c.exec("pause", c.d.Service(), "select ojs.pause(nullif($1, ''), nullif($2, ''))", queue, tenant)
	default:
		c.exec("resume", c.d.Service(), "select ojs.resume(nullif($1, ''), nullif($2, ''))", queue, tenant)
	}
}

func (c *crowd) step(r *rand.Rand) {
	service := c.d.Service()
	switch n := r.IntN(100); {
	case n < 20:
		c.exec("enqueue", service, `
			insert into ojs.jobs (tenant_id, type, queue, priority) select $1, 'x', $2, $3 from generate_series(1, $4)`,
			some(r, crowdTenants)[0], some(r, crowdQueues)[0], r.IntN(2), 1+r.IntN(6))
	case n < 45:
		c.exec("fetch", service, fetchSome, some(r, crowdQueues), 1+r.IntN(4))
	case n < 55:
		c.fetchAndStay(r)
	case n < 75:
		c.exec("end", service, some(r, crowdEnds)[0], pgx.QueryExecModeSimpleProtocol)
	case n < 82:
		c.exec("tick", service, "select ojs.tick()")
	case n < 86:
		c.exec("login", c.d.As("t4"), fetchSome, some(r, crowdQueues), 1+r.IntN(3))
	case n < 96:
		c.changeARule(r)
	case n < 98:
		c.exec("weigh", service, "select ojs.configure_tenant($1, $2, $3)", some(r, crowdTenants)[0], 1+r.IntN(3), r.IntN(3))
	case n < 99:
		c.exec("rebuild", c.d.Pool, "select ojs.rebuild()")
	default:
		c.exec("time passes", c.d.Pool, `
			update ojs.job set lease_expires_at = now() - interval '1 s'
			where id in (select id from ojs.job where state = 'active' limit 1);
			update ojs.lease set due_at = now() - interval '1 s'; update ojs.clock_mark set lease_at = '-infinity'`,
			pgx.QueryExecModeSimpleProtocol)
	}
}

// consistent compares counts with jobs, and levels with their tenants, after all ends have been counted.
func (c *crowd) consistent() {
	c.t.Helper()
	tx := begin(c.t, c.d.Pool)
	exec(c.t, tx, "select ojs._enter_lane(), ojs._fold_on()")
	commit(c.t, tx)
	expectNone(c.t, c.d.Pool, "counted wrongly", countedWrongly)
	expectNone(c.t, c.d.Pool, "at their limit, and in the ring", "select * from ojs.tenant_fairness where at_limit and ready")
	expectNone(c.t, c.d.Pool, "levels that do not count their tenants", levelsDisagree)
}

// Rules that come and go, rollbacks, savepoints, callers that stay, logins, the clock, a rebuild, all at once: what is counted is what
// runs, nothing is left that may run, and no limit is exceeded by what is handed out then.
func TestLimitsSurviveACrowd(t *testing.T) {
	t.Parallel()
	for range 2 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := &crowd{t: t, d: pgtest.New(t)}
			var wg sync.WaitGroup
			for n := range 6 {
				r := rand.New(rand.NewPCG(seed, uint64(n)))
				wg.Go(func() {
					for range 100 {
						c.step(r)
					}
				})
			}
			wg.Wait()
			if len(c.errs) > 0 {
				t.Fatal(c.errs[0])
			}
			c.settle(rand.New(rand.NewPCG(seed, 99)))
		})
	}
}

func (c *crowd) settle(r *rand.Rand) {
	c.t.Helper()
	service := c.d.Service()
	for _, queue := range crowdQueues {
		exec(c.t, service, "select ojs.resume($1)", queue)
	}
	allDue(c.t, c.d)
	allDue(c.t, c.d)
	c.consistent()
	for n := range 40 {
		allDue(c.t, c.d)
		exec(c.t, service, fetchSome, crowdQueues, 300)
		if left := lines(c.t, c.d.Pool, eligible, crowdQueues); n > 2 && len(left) > 0 {
			c.t.Fatalf("a FETCH has left %v", left)
		}
		exec(c.t, service, crowdEnds[r.IntN(len(crowdEnds))])
	}
	c.consistent()
}
