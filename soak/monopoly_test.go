//go:build linux

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Bounds of a server under attack.
const (
	fleet        = 8          // workers that serve all tenants
	perFetch     = 2          // jobs that each of them takes at once
	mostConns    = 16 + 1 + 1 // of the pool, to listen, to probe
	memoryLimit  = 512 << 20  // as the server is told
	mostMemory   = 768 << 20  // resident, at any time
	sharedQueue  = "shared"
	calmBacklog  = 200
	calmInFlight = 2*fleet*perFetch + 2 // jobs by which the order in which answers are read differs from that of decisions, and lag
)

// calm is a tenant that keeps its limits, and the fleet of workers that serves all tenants. It keeps
// what they see; mu guards it.
type calm struct {
	t        *testing.T
	url      string
	key      string
	operator string
	http     *http.Client

	mu        sync.Mutex
	statuses  map[int]int
	refused   string // the body of a refusal
	latencies map[string][]time.Duration
	enqueued  map[string]time.Time // when the answer came; jobs in the shared queue
	handed    []handed
}

type handed struct {
	id, tenant string
	at         time.Time
}

// ask sends a request of the tenant. A request that is refused fails the test.
func (c *calm) ask(ctx context.Context, what, method, path, body string) []byte {
	began := time.Now()
	status, answer := c.send(ctx, c.key, method, path, body)
	if ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latencies[what] = append(c.latencies[what], time.Since(began))
	if c.statuses[status]++; status < 200 || status > 299 {
		c.refused = fmt.Sprintf("%s: %d %s", what, status, answer)
	}
	return answer
}

func (c *calm) send(ctx context.Context, key, method, path, body string) (status int, answer []byte) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+"/ojs/v1"+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := c.http.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer res.Body.Close()
	if answer, err = io.ReadAll(res.Body); err != nil {
		return 0, []byte(err.Error())
	}
	return res.StatusCode, answer
}

type jobAnswer struct {
	Job struct {
		ID string `json:"id"`
	} `json:"job"`
}

type jobsAnswer struct {
	Jobs []struct {
		ID    string `json:"id"`
		Lease string `json:"lease"`
		Meta  struct {
			Tenant string `json:"tenant_id"`
		} `json:"meta"`
	} `json:"jobs"`
}

// work runs one worker of the fleet.
func (c *calm) work(ctx context.Context, name string) {
	for ctx.Err() == nil {
		status, answer := c.send(ctx, c.operator, "POST", "/workers/fetch",
			fmt.Sprintf(`{"queues":["%s"],"worker_id":"%s","count":%d,"wait_ms":1000}`, sharedQueue, name, perFetch))
		at := time.Now()
		var got jobsAnswer
		if ctx.Err() == nil && (status != 200 || json.Unmarshal(answer, &got) != nil) {
			c.t.Errorf("a FETCH of the fleet: %d %s", status, answer)
			return
		}
		if len(got.Jobs) == 0 {
			continue
		}
		acks := make([]string, len(got.Jobs))
		c.mu.Lock()
		for i, job := range got.Jobs {
			c.handed = append(c.handed, handed{job.ID, job.Meta.Tenant, at})
			acks[i] = fmt.Sprintf(`{"job_id":"%s","lease":"%s"}`, job.ID, job.Lease)
		}
		c.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		status, answer = c.send(ctx, c.operator, "POST", "/workers/ack", `{"jobs":[`+strings.Join(acks, ",")+`]}`)
		if ctx.Err() == nil && status != 200 {
			c.t.Errorf("an ACK of the fleet: %d %s", status, answer)
		}
	}
}

// live makes the tenant send a few requests of each kind.
func (c *calm) live(ctx context.Context) {
	var hands sync.WaitGroup
	run := func(n int, do func(*rand.Rand)) {
		for i := range n {
			hands.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 2))
				for ctx.Err() == nil {
					do(r)
					time.Sleep(time.Duration(50+r.IntN(100)) * time.Millisecond)
				}
			})
		}
	}
	large := `{"jobs":[{"type":"calm","args":["` + strings.Repeat("x", 200_000) + `"],"options":{"queue":"calm-large"}}]}`
	run(4, func(*rand.Rand) {
		answer := c.ask(ctx, "enqueue", "POST", "/jobs", `{"type":"calm","args":[1],"options":{"queue":"`+sharedQueue+`"}}`)
		var made jobAnswer
		if json.Unmarshal(answer, &made) == nil && made.Job.ID != "" {
			c.mu.Lock()
			c.enqueued[made.Job.ID] = time.Now()
			c.mu.Unlock()
		}
	})
	run(1, func(*rand.Rand) { c.ask(ctx, "large batch", "POST", "/jobs/batch", large) })
	run(1, func(*rand.Rand) { c.ask(ctx, "list of queues", "GET", "/queues", "") })
	run(1, func(*rand.Rand) {
		var made jobAnswer
		body := `{"type":"calm","args":[1],"options":{"queue":"calm-own"}}`
		if json.Unmarshal(c.ask(ctx, "enqueue", "POST", "/jobs", body), &made) == nil && made.Job.ID != "" {
			c.ask(ctx, "get", "GET", "/jobs/"+made.Job.ID, "")
		}
	})
	run(2, func(*rand.Rand) {
		var got jobsAnswer
		body := `{"queues":["calm-own","calm-large"],"worker_id":"own","wait_ms":500}`
		if json.Unmarshal(c.ask(ctx, "own FETCH", "POST", "/workers/fetch", body), &got) == nil {
			for _, job := range got.Jobs {
				c.ask(ctx, "own ACK", "POST", "/workers/ack", `{"job_id":"`+job.ID+`","lease":"`+job.Lease+`"}`)
			}
		}
	})
	hands.Wait()
}

// waits returns the times from the answer to an enqueue until the fleet had the job, for the tenant's
// jobs in the shared queue.
func (c *calm) waits() (all []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.handed {
		if at, ok := c.enqueued[h.id]; ok {
			all = append(all, max(0, h.at.Sub(at)))
		}
	}
	return all
}

// missing returns the number of the tenant's jobs in the shared queue that the fleet has not got.
func (c *calm) missing() int { return len(c.enqueued) - len(c.waits()) }

// phase lets the tenant work for a while and logs what it saw.
func (c *calm) phase(t *testing.T, name string, duration time.Duration) {
	t.Helper()
	c.mu.Lock()
	c.statuses, c.latencies, c.enqueued = map[int]int{}, map[string][]time.Duration{}, map[string]time.Time{}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	c.live(ctx)
	cancel()
	pgtest.Eventually(t, "the fleet has had the tenant's jobs", func() bool { return c.missing() == 0 })
	t.Logf("%s: answers by status %v; a job of %d waits %s", name, c.statuses, len(c.enqueued), quantiles(c.waits()))
	for _, what := range slices.Sorted(maps.Keys(c.latencies)) {
		t.Logf("    %-15s %s", what, quantiles(c.latencies[what]))
	}
	for status, n := range c.statuses {
		if status < 200 || status > 299 {
			t.Errorf("%s: %d requests of the tenant were answered %d, such as %s", name, n, status, c.refused)
		}
	}
}

func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "never"
	}
	slices.Sort(all)
	ms := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))].Microseconds()) / 1000 }
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, max %.1f ms", ms(0.5), ms(0.99), ms(1))
}

// share commits a backlog of the tenant, and returns the number of jobs of all tenants that the fleet got
// until the backlog was done.
func (c *calm) share(t *testing.T) (all int) {
	t.Helper()
	c.mu.Lock()
	c.enqueued = map[string]time.Time{}
	began := len(c.handed)
	c.mu.Unlock()
	job := `{"type":"calm","args":[1],"options":{"queue":"` + sharedQueue + `"}}`
	status, answer := c.send(t.Context(), c.key, "POST", "/jobs/batch", `{"jobs":[`+strings.Repeat(job+",", calmBacklog-1)+job+`]}`)
	var made jobsAnswer
	if status != 201 || json.Unmarshal(answer, &made) != nil || len(made.Jobs) != calmBacklog {
		t.Fatalf("the backlog: %d %s", status, answer)
	}
	c.mu.Lock()
	for _, job := range made.Jobs {
		c.enqueued[job.ID] = time.Now()
	}
	c.mu.Unlock()
	pgtest.Eventually(t, "the fleet has had the backlog", func() bool { return c.missing() == 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	own := func(h handed) bool { _, ok := c.enqueued[h.id]; return ok }
	first := began + slices.IndexFunc(c.handed[began:], own)
	last := first
	for i := first; i < len(c.handed); i++ {
		if own(c.handed[i]) {
			last = i
		}
	}
	return last - first + 1
}

// TestNobodyMonopolizes measures the waits and the share of a tenant while another tenant tries to take
// all of the server's capacity.
func TestNobodyMonopolizes(t *testing.T) {
	duration, hands, late := 3*time.Second, 4, 5_000
	if s := os.Getenv("OJS_ADVERSARY_DURATION"); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
		hands, late = 16, 50_000
	}
	database := pgtest.New(t)
	// Priorities order the jobs within a tenant only. Otherwise the highest priority of any tenant would
	// come first.
	pgtest.Exec(t, database.Pool, `select ojs.configure_queue($1, '{"tenant_fairness": {"priority_scope": "tenant"}}')`, sharedQueue)
	key := func(tenant, scopes string) string {
		return pgtest.One[string](t, database.Operator(), "select secret from ojs.create_api_key(nullif($1, ''), $2::text::text[])",
			tenant, scopes)
	}
	s := start(t, build(t), database.ServiceURL, "OJS_AUTH=api-key", fmt.Sprint("GOMEMLIMIT=", memoryLimit))
	c := &calm{
		t: t, url: s.url, key: key("calm", "{produce,work,read}"), operator: key("", "{admin}"),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: time.Minute},
	}
	working, stopWorking := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stopWorking()
	for i := range fleet {
		workers.Go(func() { c.work(working, fmt.Sprint("fleet-", i)) })
	}
	c.phase(t, "without the adversary", duration)

	var said bytes.Buffer
	flood := &adversary{
		URL: s.url, Key: key("flood", "{produce,work,read}"), Database: database.TenantURL("flood"), Queue: sharedQueue,
		Hands: hands, Jobs: late, Levels: os.Getenv("OJS_ADVERSARY_LEVELS") != "",
	}
	process, err := spawn(flood.command(&said), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	defer process.end(syscall.SIGKILL, 0)
	conns := 0
	watching, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	workers.Go(func() {
		for watching.Err() == nil {
			var n int
			if database.Pool.QueryRow(watching, `select count(*) from pg_stat_activity where datname = current_database()
				and application_name = 'ojs-pg serve'`).Scan(&n) == nil {
				conns = max(conns, n)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	backlog := func() (n int) {
		return pgtest.One[int](t, database.Pool, `
			select count(*) from (
				select from ojs.job where tenant_id = 'flood' and queue = $1 and state = 'available' limit 5000
			) j`, sharedQueue)
	}
	pgtest.Eventually(t, "the adversary has a backlog", func() bool { return backlog() == 5000 })
	c.phase(t, "with the adversary", duration)
	all := c.share(t)
	if backlog() < 1000 {
		t.Error("the adversary had no backlog all the time")
	}
	stopWatching()
	process.end(syscall.SIGTERM, 30*time.Second)
	stopWorking()
	workers.Wait()
	memory := peakMemory(t, s.cmd.Process.Pid)
	t.Logf("share of the queue, of two with equal weights: %.3f (%d of %d jobs); database connections %d; resident memory %d MiB",
		float64(calmBacklog)/float64(all), calmBacklog, all, conns, memory>>20)
	t.Logf("the adversary was answered %s", strings.TrimSpace(said.String()))
	if calmBacklog < (all-calmInFlight)/2 {
		t.Errorf("the tenant had %d of %d jobs, less than its share", calmBacklog, all)
	}
	if conns > mostConns {
		t.Errorf("the server had %d database connections", conns)
	}
	if memory > mostMemory {
		t.Errorf("the server had %d MiB in memory", memory>>20)
	}
}

// peakMemory returns the largest resident memory that a process has had, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
