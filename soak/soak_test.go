// Package soak tests the system while clients, networks and servers fail: producers roll back, are slow
// and die, workers die with jobs, a server is killed. It checks that every committed job completes, and
// that no two workers hold a job at once. It decides both from what the clients wrote down (their
// ledger), and not from our tables.
//
// TestFaults lets every part fail in rounds, also PostgreSQL and its disks, and compares the ledger of
// the clients with the tables.
package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const (
	workers    = 16
	producers  = 8
	queue      = "soak"
	visibility = 2 * time.Second
)

// outcome is the result of an enqueue or an ACK, as far as its sender knows it.
type outcome int

const (
	unknown outcome = iota // no answer
	yes
	no
)

// holding is one lease of one worker, as the worker knows it and by its clock.
type holding struct {
	lease    string
	attempt  int
	from     time.Time // the response was read
	until    time.Time // the acknowledgement was sent, or the lease can have run out, whichever came first
	acked    bool
	answered outcome
}

type ledger struct {
	mu       sync.Mutex
	enqueued map[string]outcome
	held     map[string][]*holding
	problems []string
}

func (l *ledger) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) < 20 {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) wrote(ids []string, o outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.enqueued[id] = o
	}
}

// server is one running `ojs-pg serve`.
type server struct {
	url string
	cmd *exec.Cmd
}

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "ojs-pg")
	out, err := exec.Command("go", "build", "-o", binary, "github.com/ojs-pg/ojs-pg/cmd/ojs-pg").CombinedOutput()
	if err != nil {
		t.Fatalf("building the server: %v\n%s", err, out)
	}
	return binary
}

func start(t *testing.T, binary, databaseURL string, environment ...string) *server {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	return startAt(t, address, binary, databaseURL, environment...)
}

func startAt(t *testing.T, address, binary, databaseURL string, environment ...string) *server {
	t.Helper()
	s := &server{url: "http://" + address, cmd: exec.Command(binary, "serve", "--listen", address)}
	s.cmd.Env = append(append(os.Environ(), "DATABASE_URL="+databaseURL), environment...)
	var log bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &log, &log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		if t.Failed() {
			tail := log.Bytes()
			t.Logf("log of %s:\n%s", s.url, tail[max(0, len(tail)-4000):])
		}
	})
	deadline := time.Now().Add(30 * time.Second)
	for {
		res, err := http.Get(s.url + "/ojs/v1/health")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return s
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not healthy: %v\n%s", s.url, err, log.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type world struct {
	servers  []*server
	database string
	tenants  []string
	client   *http.Client
	ledger   *ledger

	answering sync.Mutex
	longest   time.Duration  // until the slowest answer to a request that does not wait for jobs
	succeeded map[string]int // requests, by path
}

func newWorld(database string, servers ...*server) *world {
	return &world{
		servers: servers, database: database,
		tenants: []string{"acme", "beta", "gamma", "delta", "epsilon"},
		client:  &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		ledger:  &ledger{enqueued: map[string]outcome{}, held: map[string][]*holding{}},

		succeeded: map[string]int{},
	}
}

// answers returns the time of the slowest answer, and the number of requests to each path that
// succeeded, since its last call.
func (w *world) answers() (longest time.Duration, succeeded map[string]int) {
	w.answering.Lock()
	defer w.answering.Unlock()
	longest, succeeded = w.longest, w.succeeded
	w.longest, w.succeeded = 0, map[string]int{}
	return longest, succeeded
}

func (w *world) answered(path string, status int, took time.Duration) {
	w.answering.Lock()
	defer w.answering.Unlock()
	if path != fetchPath {
		w.longest = max(w.longest, took)
	}
	if status < 300 {
		w.succeeded[path]++
	}
}

// post sends a request to one of the servers. status 0 means no answer: the outcome is not known.
func (w *world) post(r *rand.Rand, path string, tenant string, body any) (int, []byte) {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	req, err := http.NewRequest(http.MethodPost, w.servers[r.IntN(len(w.servers))].url+path, bytes.NewReader(raw))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/openjobspec+json")
	if tenant != "" {
		req.Header.Set("X-OJS-Tenant", tenant)
	}
	sent := time.Now()
	res, err := w.client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil
	}
	w.answered(path, res.StatusCode, time.Since(sent))
	return res.StatusCode, answer
}

const fetchPath = "/ojs/v1/workers/fetch"

func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		panic(err)
	}
	return id.String()
}

// produceHTTP enqueues one job, with the same id again and again until there is an answer.
func (w *world) produceHTTP(r *rand.Rand) {
	id, tenant := newID(), w.tenants[r.IntN(len(w.tenants))]
	w.ledger.wrote([]string{id}, unknown)
	body := map[string]any{"type": "soak.http", "id": id, "args": []any{1}, "options": map[string]any{"queue": queue, "max_attempts": 100}}
	for attempt := range 5 {
		status, answer := w.post(r, "/ojs/v1/jobs", tenant, body)
		switch {
		case status == http.StatusCreated, status == http.StatusConflict && attempt > 0:
			w.ledger.wrote([]string{id}, yes)
			return
		case status == 0, status == http.StatusServiceUnavailable:
			time.Sleep(50 * time.Millisecond)
		default:
			w.ledger.problem("enqueue of %s: status %d: %s", id, status, answer)
			return
		}
	}
}

// produceSQL enqueues jobs in a transaction with business rows, which commits, rolls back, stays open for
// a while, or loses its connection.
func (w *world) produceSQL(ctx context.Context, r *rand.Rand) {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	for range 5 + r.IntN(20) {
		if ctx.Err() != nil {
			return
		}
		ids := make([]string, 1+r.IntN(4))
		for i := range ids {
			ids[i] = newID()
		}
		tenant := w.tenants[r.IntN(len(w.tenants))]
		w.ledger.wrote(ids, no)
		tx, err := conn.Begin(ctx)
		if err != nil {
			return
		}
		for _, id := range ids {
			if _, err = tx.Exec(ctx, `insert into public.orders (job) values ($1)`, id); err == nil {
				_, err = tx.Exec(ctx, `
					select ojs.enqueue('soak.sql', '[1]', $1, p_id => $2, p_tenant => $3, p_max_attempts => 100)`, queue, id, tenant)
			}
			if err != nil {
				if ctx.Err() == nil {
					w.ledger.problem("enqueue by SQL: %v", err)
				}
				return
			}
		}
		switch fate := r.IntN(20); {
		case fate == 0:
			// The connection is lost, and with it the transaction.
			_ = conn.PgConn().Conn().Close()
			return
		case fate <= 3:
			_ = tx.Rollback(ctx)
			continue
		case fate <= 5:
			select {
			case <-time.After(time.Duration(r.IntN(1500)) * time.Millisecond):
			case <-ctx.Done():
			}
		}
		w.ledger.wrote(ids, unknown)
		if err := tx.Commit(context.Background()); err != nil {
			return
		}
		w.ledger.wrote(ids, yes)
	}
}

type fetched struct {
	Jobs []struct {
		ID      string `json:"id"`
		Lease   string `json:"lease"`
		Attempt int    `json:"attempt"`
		State   string `json:"state"`
	} `json:"jobs"`
}

// work fetches jobs, holds them for a while, and acknowledges them, or dies with them.
func (w *world) work(ctx context.Context, r *rand.Rand, deadly *atomic.Bool) {
	name := newID()
	for ctx.Err() == nil {
		sent := time.Now()
		status, answer := w.post(r, fetchPath, "", map[string]any{
			"queues": []string{queue}, "count": 1 + r.IntN(5), "worker_id": name,
			"visibility_timeout_ms": visibility.Milliseconds(), "wait_ms": 500,
		})
		if status == 0 || status == http.StatusServiceUnavailable {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		var got fetched
		if err := json.Unmarshal(answer, &got); status != http.StatusOK || err != nil {
			w.ledger.problem("fetch: status %d, %v: %s", status, err, answer)
			return
		}
		read := time.Now()
		held := make([]*holding, len(got.Jobs))
		w.ledger.mu.Lock()
		for i, job := range got.Jobs {
			// The lease began after the request was sent, so it lasts at least until then.
			held[i] = &holding{lease: job.Lease, attempt: job.Attempt, from: read, until: sent.Add(visibility)}
			w.ledger.held[job.ID] = append(w.ledger.held[job.ID], held[i])
		}
		w.ledger.mu.Unlock()
		for i, job := range got.Jobs {
			if job.State != "active" || job.Lease == "" {
				w.ledger.problem("job %s was handed out in state %q with lease %q", job.ID, job.State, job.Lease)
			}
			if deadly.Load() && r.IntN(60) == 0 {
				name = newID() // it counts as dead, and goes on as another worker
				break
			}
			if r.IntN(4) == 0 {
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
			}
			w.ledger.mu.Lock()
			held[i].until = minTime(held[i].until, time.Now())
			held[i].acked = true
			w.ledger.mu.Unlock()
			// No answer: ask the other server. It says that the job is no longer active if the first one has
			// completed it.
			status, answer, asked := 0, []byte(nil), 0
			for ; status == 0 && asked < 6; asked++ {
				status, answer = w.post(r, "/ojs/v1/workers/ack", "",
					map[string]any{"job_id": job.ID, "lease": job.Lease, "result": map[string]any{"by": name}})
			}
			w.ledger.mu.Lock()
			switch status {
			case http.StatusOK:
				held[i].answered = yes
			case http.StatusConflict:
				if asked == 1 {
					held[i].answered = no
				}
			}
			w.ledger.mu.Unlock()
			if status != 0 && status != http.StatusOK && status != http.StatusConflict && status != http.StatusServiceUnavailable {
				w.ledger.problem("ack of %s: status %d: %s", job.ID, status, answer)
			}
		}
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// open returns the committed jobs whose completion no answer has confirmed.
func (w *world) open() []string {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	var open []string
	for id, o := range w.ledger.enqueued {
		if o != yes {
			continue
		}
		done := false
		for _, h := range w.ledger.held[id] {
			done = done || h.answered == yes
		}
		if !done {
			open = append(open, id)
		}
	}
	return open
}

// completed asks a server whether a job is completed whose ACK had no answer.
func (w *world) completed(id string) bool {
	res, err := w.client.Get(w.servers[0].url + "/ojs/v1/jobs/" + id)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	var got struct {
		Job struct {
			State string `json:"state"`
		} `json:"job"`
	}
	return json.NewDecoder(res.Body).Decode(&got) == nil && got.Job.State == "completed"
}

func TestNothingIsLostAndNothingIsHeldTwice(t *testing.T) {
	duration := 8 * time.Second
	if s := os.Getenv("OJS_SOAK_DURATION"); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	database := pgtest.New(t)
	pgtest.Exec(t, database.Pool, "create table public.orders (job uuid); grant insert, select on public.orders to public")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %v", seed, duration)

	binary := build(t)
	w := newWorld(database.ServiceURL, start(t, binary, database.ServiceURL), start(t, binary, database.ServiceURL))
	open := w.live(t, seed, duration, func() {
		if err := w.servers[1].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	})
	w.judge(t, open)
	if err := w.servers[0].cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := w.servers[0].cmd.Wait(); errors.As(err, &exit) {
		t.Errorf("the surviving server ended with %v", err)
	}
}

// live lets producers and workers work for some time, calls happens in the middle of it, and then lets
// workers go on until all jobs are completed. It returns the committed jobs that are not.
func (w *world) live(t *testing.T, seed uint64, duration time.Duration, happens func()) []string {
	t.Helper()
	producing, stopProducing := context.WithTimeout(t.Context(), duration)
	defer stopProducing()
	working, stopWorking := context.WithCancel(t.Context())
	defer stopWorking()
	var deadly atomic.Bool
	deadly.Store(true)
	var makers, hands sync.WaitGroup
	for i := range producers {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		makers.Go(func() {
			for producing.Err() == nil {
				if i%2 == 0 {
					w.produceSQL(producing, r)
				} else {
					w.produceHTTP(r)
				}
			}
		})
	}
	for i := range workers {
		r := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		hands.Go(func() { w.work(working, r, &deadly) })
	}
	time.Sleep(duration / 2)
	happens()
	makers.Wait()
	deadly.Store(false)
	open := w.drain()
	stopWorking()
	hands.Wait()
	return open
}

// drain waits until all jobs are completed; jobs of workers that died come back when their leases end.
// It goes on for as long as their number decreases, however slow the machine is. It returns the jobs
// that are left.
func (w *world) drain() []string {
	fewest, deadline := 0, time.Now().Add(60*time.Second)
	for {
		var open []string
		for _, id := range w.open() {
			if !w.completed(id) {
				open = append(open, id)
			}
		}
		if len(open) == 0 || time.Now().After(deadline) {
			return open
		}
		if fewest == 0 || len(open) < fewest {
			fewest, deadline = len(open), time.Now().Add(60*time.Second)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// judge checks the ledger. open are committed jobs that did not complete.
func (w *world) judge(t *testing.T, open []string) {
	t.Helper()
	for _, problem := range w.ledger.problems {
		t.Error(problem)
	}
	if len(open) > 0 {
		t.Errorf("%d committed jobs did not complete, %s among them", len(open), open[0])
	}
	var committed, rolledBack, unanswered, again int
	for id, o := range w.ledger.enqueued {
		held := w.ledger.held[id]
		switch o {
		case yes:
			committed++
		case no:
			rolledBack++
			if len(held) > 0 {
				t.Errorf("job %s was handed out although it never committed", id)
			}
		case unknown:
			unanswered++
		}
		if len(held) > 1 {
			again++
		}
		judgeHolders(t, id, held)
	}
	for id := range w.ledger.held {
		if _, ok := w.ledger.enqueued[id]; !ok {
			t.Errorf("job %s was handed out but nobody enqueued it", id)
		}
	}
	if committed < 100 || rolledBack < 5 || again == 0 {
		t.Errorf("the test did not happen: %d committed, %d rolled back, %d handed out again", committed, rolledBack, again)
	}
	t.Logf("%d jobs committed, %d rolled back, %d unanswered; %d handed out more than once", committed, rolledBack, unanswered, again)
}

// judgeHolders checks that no two workers held a job at once, and that it was not completed twice.
func judgeHolders(t *testing.T, id string, held []*holding) {
	t.Helper()
	sort.Slice(held, func(i, j int) bool { return held[i].from.Before(held[j].from) })
	done := 0
	for i, h := range held {
		if h.answered == yes {
			done++
		}
		for _, other := range held[:i] {
			if h.from.Before(other.until) {
				t.Errorf("job %s was in two hands: under lease %s until %v, under lease %s from %v", id, other.lease,
					other.until, h.lease, h.from)
			}
			if h.lease == other.lease || h.attempt <= other.attempt {
				t.Errorf("job %s: attempt %d under lease %s followed attempt %d under lease %s", id, h.attempt, h.lease,
					other.attempt, other.lease)
			}
		}
	}
	if done > 1 {
		t.Errorf("job %s was completed %d times", id, done)
	}
}
