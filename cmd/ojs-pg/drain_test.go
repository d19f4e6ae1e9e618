package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// caller is a client with one connection, which it keeps.
type caller struct {
	client *http.Client
	base   string
}

func newCaller(base string) *caller {
	return &caller{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}, Timeout: 2 * time.Minute}, base: base}
}

var errDoorClosed = errors.New("nobody is let in any more")

// call sends a request. It returns errDoorClosed if there is no server: the connection is refused, or
// closed by the kernel before the server has accepted it. A client notices that at once and can go to
// another server. A connection that is in use must not break.
func (c *caller) call(method, path, body string, answer any) (status int, err error) {
	reused := false
	ctx := httptrace.WithClientTrace(context.Background(),
		&httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err
	}
	// Without this, Go's client would repeat a request by itself.
	req.GetBody = nil
	res, err := c.client.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), err != nil && !reused && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)):
		return 0, errDoorClosed
	case err != nil:
		return 0, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err == nil && answer != nil && res.StatusCode < 300 {
		err = json.Unmarshal(raw, answer)
	}
	if err != nil {
		err = fmt.Errorf("%d %s: %w", res.StatusCode, raw, err)
	}
	return res.StatusCode, err
}

// A server that is told to stop under load fails no request and loses no job, and leaves no job leased to
// a client that did not get it.
func TestStoppingUnderLoad(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0", "--drain-delay", "5s")
	l := &load{t: t, base: p.find(`msg=serving address=(http://\S+)$`)}
	for range 3 {
		l.repeat("a producer", l.produce)
		l.repeat("a worker", l.work)
	}
	// A FETCH for a queue without jobs is answered.
	waited := make(chan error, 1)
	go func() { waited <- l.wait() }()
	d.Eventually("jobs are completed and a request waits", `
		select (select count(*) >= 50 from ojs.job where state = 'completed')
			and exists (select from ojs.waiter where queue = 'idle')`)

	p.signal(syscall.SIGTERM)
	ready := newCaller(l.base)
	for {
		status, err := ready.call("GET", "/ojs/v1/ready", "", nil)
		if err != nil {
			t.Errorf("readiness was not taken back before the door closed: %v", err)
		}
		if err != nil || status == http.StatusServiceUnavailable {
			break
		}
	}
	if err := <-waited; err != nil {
		t.Errorf("a waiting fetch: %v", err)
	}
	l.running.Wait()
	if status := p.wait(); status != 0 {
		t.Errorf("SIGTERM ended it with %d", status)
	}
	l.judge(d)
}

// load is the producers and workers of a server, and what they know about their jobs.
type load struct {
	t       *testing.T
	base    string
	running sync.WaitGroup

	mu                               sync.Mutex
	enqueued, received, acknowledged []string // ids of jobs
	calls                            int
}

type handedOut struct {
	Jobs []struct {
		ID, Lease string
	}
}

// repeat repeats a step until there is no server. The test fails if another error ends it.
func (l *load) repeat(name string, step func(*caller) error) {
	l.running.Go(func() {
		c := newCaller(l.base)
		defer c.client.CloseIdleConnections()
		var err error
		for err == nil {
			err = step(c)
			l.note(func() { l.calls++ })
		}
		if !errors.Is(err, errDoorClosed) {
			l.t.Errorf("%s: %v", name, err)
		}
	})
}

func (l *load) note(what func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	what()
}

// accepted returns an error if the answer is one that a server must not give while it stops.
func accepted(status int, err error) error {
	if err == nil && status >= 300 && status != http.StatusServiceUnavailable {
		return fmt.Errorf("answered with %d", status)
	}
	return err
}

func (l *load) produce(c *caller) error {
	var made struct{ Job struct{ ID string } }
	status, err := c.call("POST", "/ojs/v1/jobs", `{"type":"a","args":[],"options":{"queue":"busy"}}`, &made)
	if made.Job.ID != "" {
		l.note(func() { l.enqueued = append(l.enqueued, made.Job.ID) })
	}
	return accepted(status, err)
}

func (l *load) work(c *caller) error {
	var got handedOut
	status, err := c.call("POST", "/ojs/v1/workers/fetch", `{"queues":["busy"],"count":2,"wait_ms":5000}`, &got)
	if err := accepted(status, err); err != nil {
		return err
	}
	for _, j := range got.Jobs {
		l.note(func() { l.received = append(l.received, j.ID) })
	}
	for _, j := range got.Jobs {
		status, err := c.call("POST", "/ojs/v1/workers/ack", `{"job_id":"`+j.ID+`","lease":"`+j.Lease+`"}`, nil)
		if err := accepted(status, err); err != nil {
			return err
		}
		if status == http.StatusOK {
			l.note(func() { l.acknowledged = append(l.acknowledged, j.ID) })
		}
	}
	return nil
}

// wait makes a FETCH that waits. It must be answered, without jobs.
func (l *load) wait() error {
	var got handedOut
	status, err := newCaller(l.base).call("POST", "/ojs/v1/workers/fetch", `{"queues":["idle"],"wait_ms":60000}`, &got)
	if err == nil && (status != http.StatusOK || len(got.Jobs) > 0) {
		err = fmt.Errorf("answered with %d and %d jobs", status, len(got.Jobs))
	}
	return err
}

// judge compares what the clients know with the jobs in the database.
func (l *load) judge(d *pgtest.DB) {
	t := l.t
	t.Helper()
	t.Logf("%d calls, %d enqueued, %d received, %d acknowledged", l.calls, len(l.enqueued), len(l.received), len(l.acknowledged))
	if lost := pgtest.One[int](t, d.Pool, `
		select count(*) from unnest($1::uuid[]) i(id)
		where not exists (select from ojs.job j where j.id = i.id)`, l.enqueued); lost > 0 {
		t.Errorf("%d acknowledged jobs are lost", lost)
	}
	if open := pgtest.One[int](t, d.Pool, `
		select count(*) from ojs.job where id = any ($1::uuid[]) and state <> 'completed'`, l.acknowledged); open > 0 {
		t.Errorf("%d jobs whose end was acknowledged have not ended", open)
	}
	if held := pgtest.One[int](t, d.Pool, `
		select count(*) from ojs.job where state = 'active' and not id = any ($1::uuid[])`, l.received); held > 0 {
		t.Errorf("%d jobs are in nobody's hands", held)
	}
	slices.Sort(l.received)
	if twice := len(l.received) - len(slices.Compact(l.received)); twice > 0 {
		t.Errorf("%d jobs were handed out twice", twice)
	}
}

// Requests for which PostgreSQL has no answer when the drain ends are answered with 503, and the server
// exits.
func TestStoppingWhilePostgresAnswersNobody(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0", "--drain-delay", "0", "--drain", "500ms")
	base := p.find(`msg=serving address=(http://\S+)$`)
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // nothing was done
	if _, err := tx.Exec(t.Context(), "lock table ojs.job_all in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	calls := []struct{ method, path, body string }{
		{"GET", "/ojs/v1/jobs/019539a4-0000-7000-8000-000000000001", ""},
		{"POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`},
		{"POST", "/ojs/v1/jobs/batch", `{"jobs":[{"type":"a","args":[]}]}`},
		{"POST", "/ojs/v1/workers/ack", `{"job_id":"019539a4-0000-7000-8000-000000000001"}`},
	}
	var all sync.WaitGroup
	for _, c := range calls {
		all.Go(func() {
			if status, err := newCaller(base).call(c.method, c.path, c.body, nil); status != http.StatusServiceUnavailable || err != nil {
				t.Errorf("%s %s: answered with %d, %v", c.method, c.path, status, err)
			}
		})
	}
	d.Eventually("all calls wait for a lock", `
		select count(*) >= $1 from pg_stat_activity
		where datname = current_database() and application_name = 'ojs-pg serve' and wait_event_type = 'Lock' and query ~ $2`,
		len(calls), "ojs[.](job_info|enqueue_rows|ack_many|settle)[(]")
	p.signal(syscall.SIGTERM)
	all.Wait()
	if status := p.wait(); status != 0 {
		t.Errorf("it ended with %d", status)
	}
}

// Jobs that a client has not read when the drain ends are given back before the server closes its pool.
func TestStoppingWhileAClientDoesNotRead(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0", "--drain-delay", "0", "--drain", "500ms")
	base := p.find(`msg=serving address=(http://\S+)$`)
	// More than the kernel buffers for a client that does not read.
	const jobs = 24
	if _, err := d.Pool.Exec(t.Context(), `
		select ojs.enqueue('a', json_build_array(repeat('x', 1000000))) from generate_series(1, $1)`, jobs); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := fmt.Sprintf(`{"queues":["default"],"count":%d}`, jobs)
	fmt.Fprintf(conn, "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("it ended with %d", status)
	}
	var back int
	if err := d.Pool.QueryRow(t.Context(), `
		select count(*) from ojs.job where state = 'available' and attempt = 0 and lease is null`).Scan(&back); err != nil {
		t.Fatal(err)
	}
	if back != jobs {
		t.Errorf("of %d jobs that nobody has read %d came back", jobs, back)
	}
}
