package main

import (
	"context"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// limitedCrowd is producers of limited tenants at two servers and in sessions of their own, one of which keeps a transaction open.
type limitedCrowd struct {
	t       *testing.T
	d       *pgtest.DB
	servers []string
	until   time.Time
	rate    int // a minute
	depth   int
	mu      sync.Mutex
	answers map[int]int
	all     sync.WaitGroup
}

// What producers at two servers and in eight sessions can enqueue is what the limits say, in every stretch of time and at every moment,
// although a server is killed and a transaction stays open. OJS_LIMITS_SECONDS is for how long; from 60 on nothing less is asked, either.
func TestLimitsAreExactAcrossServers(t *testing.T) {
	t.Parallel()
	seconds, _ := strconv.Atoi(os.Getenv("OJS_LIMITS_SECONDS"))
	c := &limitedCrowd{t: t, d: pgtest.New(t), until: time.Now().Add(time.Duration(max(seconds, 4)) * time.Second), answers: map[int]int{}}
	servers := make([]*program, 2)
	for n := range servers {
		servers[n] = launch(t, []string{"DATABASE_URL=" + c.d.ServiceURL}, "serve", "--listen", "127.0.0.1:0")
		c.servers = append(c.servers, servers[n].find(`msg=serving address=(http://\S+)$`))
	}
	if c.rate, c.depth = 60, 100; seconds >= 60 {
		c.rate, c.depth = 1000, 5000
	}
	pgtest.Exec(t, c.d.Service(), `select
		ojs.configure_limits('rated', jsonb_build_object('max_enqueue_rate', jsonb_build_object('limit', $1::int, 'period', 'PT1M'))),
		ojs.configure_limits('deep', jsonb_build_object('max_queue_depth', $2::int))`, c.rate, c.depth)
	began := time.Now()
	open, err := c.d.Service().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, open, "select ojs.enqueue('x', p_tenant => 'deep')")
	for n := range 16 {
		c.all.Go(func() { c.byHTTP(n) })
	}
	for n := range 8 {
		c.all.Go(func() { c.bySQL(n) })
	}
	c.all.Go(c.watchDepth)
	c.all.Go(func() {
		time.Sleep(time.Until(c.until) / 2)
		servers[1].signal(syscall.SIGKILL)
	})
	c.all.Wait()
	if err := open.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	passed := c.checkRate(float64(c.rate), time.Minute)
	possible := float64(c.rate) * (1 + time.Since(began).Minutes())
	t.Logf("%d of %.0f jobs passed in %s; the answers are %v", passed, possible, time.Since(began).Round(time.Second), c.answers)
	if seconds >= 60 && float64(passed) < 0.99*possible {
		t.Error("less passed than should have")
	}
	pgtest.Exec(t, c.d.Service(), "select ojs.tick()")
	for _, wrong := range pgtest.List[string](t, c.d.Pool, `
		select format('%s: %s jobs, %s tokens', q.tenant_id, j.n, s.n) from ojs.quota q
		cross join lateral (select count(*) as n from ojs.job j where j.tenant_id = q.tenant_id and j.state in ('scheduled', 'available')) j
		cross join lateral (select sum(s.tokens[q.nth]) as n from ojs.stripe s
			where s.tenant_id = q.tenant_id and s.queue = q.queue) s
		where q.period is null and j.n + s.n <> q.maximum`) {
		t.Error(wrong)
	}
	if c.answers[201] == 0 || c.answers[429] == 0 || len(c.answers) > 3 || len(c.answers) == 3 && c.answers[0] == 0 {
		t.Errorf("the answers are %v, want 201 and 429, and those of the server that was killed", c.answers)
	}
	changed := time.Now()
	pgtest.Exec(t, c.d.Service(), `select ojs.configure_limits('rated', '{"max_enqueue_rate": null}')`)
	if status := c.post(c.servers[0], "rated"); status != 201 {
		t.Errorf("%s after the change a job is answered with %d", time.Since(changed), status)
	}
}

// post enqueues a job. A server that was killed answers nothing, status 0.
func (c *limitedCrowd) post(server, tenant string) (status int) {
	res, err := http.Post(server+"/ojs/v1/jobs", "application/json",
		strings.NewReader(`{"type": "x", "args": [], "meta": {"tenant_id": "`+tenant+`"}}`))
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0
	}
	return res.StatusCode
}

func (c *limitedCrowd) byHTTP(n int) {
	for time.Now().Before(c.until) {
		status := c.post(c.servers[n%2], []string{"rated", "deep"}[n/2%2])
		c.mu.Lock()
		c.answers[status]++
		c.mu.Unlock()
		if status == 0 {
			return
		}
	}
}

func (c *limitedCrowd) bySQL(n int) {
	conn, err := pgx.Connect(context.Background(), c.d.ServiceURL)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer conn.Close(context.Background())
	tenant := []string{"rated", "deep"}[n%2]
	for round := 0; time.Now().Before(c.until); round++ {
		tx, err := conn.Begin(c.t.Context())
		if err != nil {
			c.t.Error(err)
			return
		}
		sql := []string{
			"select ojs.enqueue('x', p_tenant => $1)",
			"select ojs.enqueue_bulk('x', array_fill('[]'::json, array[4]), p_tenant => $1)",
			"insert into ojs.jobs (type, tenant_id) select 'x', $1 from generate_series(1, 3)",
		}[round%3]
		_, err = tx.Exec(c.t.Context(), sql, tenant)
		if err != nil && !strings.Contains(err.Error(), "OJ429") && !strings.Contains(err.Error(), "55P03") {
			c.t.Error(pgtest.Explain(err))
		}
		if err != nil || round%7 == 6 {
			_ = tx.Rollback(c.t.Context())
		} else if err := tx.Commit(c.t.Context()); err != nil {
			c.t.Error(err)
		}
	}
}

// watchDepth hands out jobs, and sees that there are never more than may be.
func (c *limitedCrowd) watchDepth() {
	for time.Now().Before(c.until) {
		n := pgtest.One[int](c.t, c.d.Pool, "select count(*) from ojs.job where tenant_id = 'deep' and state = 'available'")
		if n > c.depth {
			c.t.Errorf("there are %d jobs", n)
		}
		pgtest.Exec(c.t, c.d.Service(), "select ojs.ack(f.id, f.lease) from ojs.fetch('{default}', 20, p_tenant => 'deep') f")
	}
}

// checkRate says how many jobs passed, and finds the stretch of time in which most did beyond what the rate gives.
func (c *limitedCrowd) checkRate(limit float64, period time.Duration) int {
	at := pgtest.List[time.Time](c.t, c.d.Pool, "select created_at from ojs.job where tenant_id = 'rated' order by created_at")
	lowest, most := math.Inf(1), 0.0
	for n, t := range at {
		beyond := float64(n) - limit*float64(t.Sub(at[0]))/float64(period)
		lowest = min(lowest, beyond)
		most = max(most, beyond-lowest+1)
	}
	// A job's time is a little before its tokens': the statement has to come there.
	if slack := limit * float64(time.Second/2) / float64(period); most > limit+slack+1 {
		c.t.Errorf("in some time %.0f jobs passed beyond the rate, at most %.0f may", most, limit)
	}
	return len(at)
}
