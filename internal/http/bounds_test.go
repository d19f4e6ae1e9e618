package httpapi

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/fair"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// batchOf returns a batch of one job, with at least size bytes.
func batchOf(size int) string {
	return `{"jobs":[{"type":"a","args":["` + strings.Repeat("x", size) + `"]}]}`
}

// begin sends the head of a request and all of its body but the last byte. end sends the last byte and
// returns the status line.
func (a *api) begin(body string, headers ...string) (end func() string) {
	a.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(
		conn, "POST /ojs/v1/jobs/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n", len(body),
		strings.Join(append(headers, ""), "\r\n"),
	)
	if _, err := io.WriteString(conn, body[:len(body)-1]); err != nil {
		a.t.Fatal(err)
	}
	return func() string {
		if _, err := io.WriteString(conn, body[len(body)-1:]); err != nil {
			a.t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			a.t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
}

// full returns when all slots for large bodies are taken.
func (a *api) full() {
	a.t.Helper()
	pgtest.Eventually(a.t, "there is no room", func() bool { return !has(a.srv.admission.places, 1) })
}

// free returns when a slot is free again, which it is a moment after the client has its answer.
func (a *api) free() {
	a.t.Helper()
	pgtest.Eventually(a.t, "there is room again", func() bool { return has(a.srv.admission.places, 1) })
}

// has reports whether so many units of a gate are free.
func has(room *fair.Gate, much int64) bool {
	free := room.Try(pg.NoTenant, much)
	if free {
		room.Leave(pg.NoTenant, much)
	}
	return free
}

// Large bodies share a room. One that finds none in time is refused, and no memory is spent on it; small ones need none.
func TestLargeBodiesNeedRoom(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Bodies, c.Limits.RoomWait = 1<<20, 20*time.Millisecond })
	end := a.begin(batchOf(900_000))
	a.full()
	for range 3 {
		r := a.do("POST", "/ojs/v1/jobs/batch", batchOf(800_000)).want(503)
		r.is(map[string]any{"error.code": "backend_unavailable", "error.retryable": true})
		if wantErrorShape(r); r.header.Get("Retry-After") == "" {
			t.Error("nothing says to ask again")
		}
	}
	a.do("POST", "/ojs/v1/jobs/batch", batchOf(10_000)).want(201)
	if line := end(); line != "HTTP/1.1 201 Created" {
		t.Errorf("the one that had room: %s", line)
	}
	a.free()
	a.do("POST", "/ojs/v1/jobs/batch", batchOf(800_000)).want(201)
	a.free()
	// One that alone is larger than the room has all of it.
	a.do("POST", "/ojs/v1/jobs/batch", `{"jobs":[`+strings.Repeat(`{"type":"a","args":["`+strings.Repeat("x", 300_000)+`"]},`, 7)+
		`{"type":"a","args":[]}]}`).want(201)
}

// A large body waits for room before it is refused.
func TestLargeBodiesWaitForRoom(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Bodies, c.Limits.RoomWait = 1<<20, time.Minute })
	end := a.begin(batchOf(900_000))
	a.full()
	waited := make(chan *reply, 1)
	go func() {
		r, err := a.send(t.Context(), "POST", "/ojs/v1/jobs/batch", batchOf(800_000))
		if err != nil {
			t.Error(err)
		}
		waited <- r
	}()
	if line := end(); line != "HTTP/1.1 201 Created" {
		t.Errorf("the one that had room: %s", line)
	}
	if r := <-waited; r != nil {
		r.want(201)
	}
}

// A body that does not say how long it is takes room as it comes.
func TestBodiesOfUnknownLengthNeedRoom(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Bodies, c.Limits.RoomWait = 2<<20, 20*time.Millisecond })
	send := func(want int) {
		t.Helper()
		body := io.MultiReader(strings.NewReader(batchOf(900_000))) // of a type that http.NewRequest does not know
		req, err := http.NewRequestWithContext(t.Context(), "POST", a.url+"/ojs/v1/jobs/batch", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != want {
			answer, _ := io.ReadAll(res.Body)
			t.Errorf("%d, want %d: %.300s", res.StatusCode, want, answer)
		}
	}
	send(201)
	// The client has its answer a moment before the room is free.
	pgtest.Eventually(t, "the room of the one before is free", func() bool { return a.srv.admission.places.Try(pg.NoTenant, 1) })
	send(503)
	a.srv.admission.places.Leave(pg.NoTenant, 1)
	send(201)
}

// Clients that announce large bodies and send nothing do not keep other clients out.
func TestAnnouncedBodiesHoldNothing(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Bodies, c.Limits.RoomWait = 32<<20, 20*time.Millisecond })
	for range 8 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /ojs/v1/jobs/batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 16<<20)
		a.do("POST", "/ojs/v1/jobs/batch", batchOf(900_000)).want(201)
	}
	pgtest.Eventually(t, "the steps are free", func() bool { return has(a.srv.admission.steps, 16) })
	a.free()
}

// A body that is refused for its size is not kept in memory, and needs no room.
func TestRefusedBodiesNeedNoRoom(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Bodies, c.Limits.RoomWait = 1<<20, 20*time.Millisecond })
	if !a.srv.admission.places.Try(pg.NoTenant, 1) {
		t.Fatal("no room in an idle server")
	}
	a.do("POST", "/ojs/v1/jobs", batchOf(2<<20)).want(413)
}

// One after the other, bodies that find no step of room free get a place for all of them.
func TestBodiesWaitForPlaces(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) {
		c.Limits.BatchBody, c.Limits.Bodies, c.Limits.RoomWait = 4<<20, 6<<20, time.Minute
	})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if r, err := a.send(t.Context(), "POST", "/ojs/v1/jobs/batch", largeBatch(3)); err != nil {
				t.Error(err)
			} else if r.status != 201 {
				t.Errorf("%d %.300s", r.status, r.body)
			}
		})
	}
	all.Wait()
	pgtest.Eventually(t, "the steps are free", func() bool { return has(a.srv.admission.steps, 2) })
	a.free()
}

// largeBatch returns a batch of a number of jobs of 900 kB.
func largeBatch(jobs int) string {
	job := `{"type":"a","args":["` + strings.Repeat("x", 900_000) + `"]}`
	return `{"jobs":[` + job + strings.Repeat(","+job, jobs-1) + `]}`
}

// Jobs for which there is no room on their way to the client are given back, and the FETCH is told to ask again.
func TestLargeAnswersNeedRoom(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Answers = 1 << 20 })
	id := a.push(`{"type":"a","args":["` + strings.Repeat("x", 700_000) + `"],"options":{"queue":"q"}}`)
	a.push(`{"type":"a","args":[],"options":{"queue":"small"}}`)
	if !a.srv.admission.answers.Try(pg.NoTenant, 500_000) {
		t.Fatal("no room in an idle server")
	}
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["q"]}`).want(503).is(map[string]any{"error.code": "backend_unavailable"})
	a.givenBack(id)
	a.fetchOne("small")
	a.srv.admission.answers.Leave(pg.NoTenant, 500_000)
	if got := a.fetchOne("q"); got.text("jobs.0.id") != id {
		t.Errorf("fetched %.200s", got.body)
	}
}

// So do lists.
func TestLargeListsNeedRoom(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.Answers = 1 << 20 })
	id := a.bury("q", "Timeout")
	large := a.push(`{"type":"a","args":["` + strings.Repeat("x", 700_000) + `"],
		"options":{"queue":"large","retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}}}`)
	a.fetchOne("large")
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+large+`","error":{"code":"boom","message":"m"}}`).want(200)
	done := a.push(`{"type":"a","args":[],"options":{"queue":"done"}}`)
	a.fetchOne("done")
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+done+`","result":"`+strings.Repeat("x", 700_000)+`"}`).want(200)
	a.do("POST", "/ojs/v1/cron", `{"name":"large","cron":"@yearly","type":"a","args":["`+strings.Repeat("x", 350_000)+`"]}`).want(201)
	lists := func(want int, free int64) {
		t.Helper()
		for path, body := range map[string]string{
			"/ojs/v1/dead-letter": "", "/ojs/v1/cron": "", "/ojs/v1/jobs/results": `{"ids":["` + done + `"]}`,
		} {
			a.do(map[bool]string{true: "GET", false: "POST"}[body == ""], path, body).want(want)
			// The client has its answer a moment before the room is free.
			pgtest.Eventually(t, "the room is free", func() bool { return has(a.srv.admission.answers, free) })
		}
	}
	lists(200, 1<<20)
	if !a.srv.admission.answers.Try(pg.NoTenant, 500_000) {
		t.Fatal("no room in an idle server")
	}
	lists(503, 1<<20-500_000)
	a.do("GET", "/ojs/v1/dead-letter?queue=q", "").want(200).is(map[string]any{"jobs.0.id": id})
	a.srv.admission.answers.Leave(pg.NoTenant, 500_000)
	lists(200, 1<<20)
}

// pages reads a list to its end. It returns the number of items of each page, and the items' names.
func (a *api) pages(path, name string) (lengths []int, names []string) {
	a.t.Helper()
	for more := true; more; {
		r := a.do("GET", fmt.Sprint(path, "?limit=1000&offset=", len(names)), "").want(200)
		items := r.get("items").([]any)
		if len(items) == 0 {
			a.t.Fatalf("nothing at %d: %.300s", len(names), r.body)
		}
		lengths = append(lengths, len(items))
		for i := range items {
			names = append(names, r.text(fmt.Sprint("items.", i, ".", name)))
		}
		more = r.get("pagination.has_more") == true
	}
	return lengths, names
}

// A page of cron jobs ends before it grows too large; one cron job is a page, however large it is.
func TestLargeCronJobs(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Limits.List = 100_000 })
	for i, size := range []int{20_000, 20_000, 20_000, 200_000, 20_000, 20_000, 20_000} {
		tenant := "acme"
		if i%2 > 0 {
			tenant = "globex"
		}
		pgtest.Exec(t, a.pool, "select ojs.put_cron('c' || $1::int, '@yearly', 'a', json_build_array(repeat('x', $2)), p_tenant => $3)",
			i, size, tenant)
	}
	lengths, names := a.pages("/ojs/v1/cron", "name")
	if !slices.Equal(lengths, []int{2, 1, 1, 2, 1}) || strings.Join(names, " ") != "c0 c1 c2 c3 c4 c5 c6" {
		t.Errorf("pages of %v: %v", lengths, names)
	}
	a.do("GET", "/ojs/v1/cron?offset=3", "").want(200).is(map[string]any{
		"count": 1, "pagination.total": 7, "pagination.has_more": true,
	})
}

// So does a page of workers, each of which may name ten thousand jobs.
func TestLargeWorkers(t *testing.T) {
	t.Parallel()
	a := start(t)
	pgtest.Exec(t, a.pool, `
		select ojs.beat('w' || n, array(select gen_random_uuid() from generate_series(1, 10000)), p_tenant => 'acme')
		from generate_series(10, 29) n`)
	lengths, names := a.pages("/ojs/v1/admin/workers", "id")
	// A page has 4 MiB, and a worker 370 kB.
	if !slices.Equal(lengths, []int{11, 9}) || len(names) != 20 || names[0] != "w10" || names[19] != "w29" {
		t.Errorf("pages of %v: %v", lengths, names)
	}
	a.do("GET", "/ojs/v1/workers", "").want(200).is(map[string]any{
		"summary.total": 20, "pagination.total": 20, "pagination.has_more": true,
	}).present("workers.10").absent("workers.11")
}

// An answer without a status would be an empty 200, also for a request that was given up: somebody may stand between.
func TestEveryAnswerHasAStatus(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.push(`{"type":"a","args":[]}`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req := httptest.NewRequest("GET", "/ojs/v1/jobs/"+id+"/result?wait=true", nil).WithContext(ctx)
	answer := httptest.NewRecorder()
	a.srv.Handler().ServeHTTP(answer, req)
	if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), `"backend_unavailable"`) {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
}

// A server whose connections are all in use is busy, not ill.
func TestReadinessDoesNotWaitForWork(t *testing.T) {
	t.Parallel()
	a := start(t)
	pool := a.srv.db.Pool()
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	a.do("GET", "/ojs/v1/ready", "").want(200)
	a.do("GET", "/ojs/v1/health", "").want(200).is(map[string]any{"status": "ok", "backend.status": "healthy"})
	a.do("GET", "/health", "").want(200).is(map[string]any{"status": "ok"}).absent("backend")

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.srv.db.Probe(gone); err != nil {
		t.Errorf("a client that hangs up ends the question: %v", err)
	}
}

// The end of a job is not the end of another tenant's job with its id: who waits for that one would be woken by each poll.
func TestWhatNobodyWaitsForAnyLonger(t *testing.T) {
	t.Parallel()
	a := start(t)
	const twin, gone = "01932a4e-0000-7000-8000-000000000001", "01932a4e-0000-7000-8000-000000000002"
	for _, tenant := range []string{"acme", "globex"} {
		a.push(`{"id":"`+twin+`","type":"a","args":[]}`, "X-OJS-Tenant: "+tenant)
	}
	open := a.push(`{"type":"a","args":[]}`)
	a.do("DELETE", "/ojs/v1/jobs/"+twin, "", "X-OJS-Tenant: acme").want(200)

	over, err := a.srv.jobsOver(t.Context(), []awaited{{twin, "acme"}, {twin, "globex"}, {gone, ""}, {open, ""}, {open, "acme"}})
	slices.SortFunc(over, func(a, b awaited) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.tenant, b.tenant)) })
	if want := []awaited{{twin, "acme"}, {gone, ""}, {open, "acme"}}; err != nil || !slices.Equal(over, want) {
		t.Errorf("%v, %v; want %v", over, err, want)
	}
}

// However many requests wait for results, one statement looks for all of them.
func TestWaitersForResultsShareOneLook(t *testing.T) {
	t.Parallel()
	a := start(t)
	const waiters = 40
	var polls, asked atomic.Int64
	look := a.srv.endings.over
	a.srv.endings.over = func(ctx context.Context, jobs []awaited) ([]awaited, error) {
		polls.Add(1)
		asked.Store(int64(len(jobs)))
		return look(ctx, jobs)
	}
	var all sync.WaitGroup
	for i := range waiters {
		id := a.push(`{"type":"a","args":[]}`)
		all.Go(func() {
			r, err := a.send(t.Context(), "GET", "/ojs/v1/jobs/"+id+"/result?wait=true&timeout=60", "")
			if err != nil {
				t.Error(err)
			} else if r.status != 200 || r.text("result") != "done" {
				t.Errorf("%d %d: %s", i, r.status, r.body)
			}
		})
	}
	pgtest.Eventually(t, "all wait", func() bool { return asked.Load() == waiters })
	statements, before := a.srv.db.Pool().Stat().AcquireCount(), polls.Load()
	pgtest.Eventually(t, "there are more polls", func() bool { return polls.Load() >= before+4 })
	if sent := a.srv.db.Pool().Stat().AcquireCount() - statements; sent > polls.Load()-before+2 {
		t.Errorf("%d statements in %d polls", sent, polls.Load()-before)
	}
	fetched := a.do("POST", "/ojs/v1/workers/fetch", fmt.Sprintf(`{"queues":["default"],"worker_id":"w","count":%d}`, waiters)).want(200)
	for i := range waiters {
		a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+fetched.text(fmt.Sprintf("jobs.%d.id", i))+`","result":"done"}`).want(200)
	}
	all.Wait()
	a.srv.endings.mu.Lock()
	defer a.srv.endings.mu.Unlock()
	if len(a.srv.endings.jobs) > 0 {
		t.Errorf("%d jobs are still waited for", len(a.srv.endings.jobs))
	}
}
