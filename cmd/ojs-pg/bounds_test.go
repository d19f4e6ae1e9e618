package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const mib = 1 << 20

// 200 clients send 15 MiB each at once, and others fetch a thousand jobs of 1 MiB, one of them slowly. The
// server stays below one and a quarter of its memory limit (the quarter is for memory that is not Go's
// heap, and for what the collector has not freed yet). It refuses requests beyond its limit with 503, and
// goes on serving clients with small requests.
func TestMemoryIsBounded(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("what a process has used at most is read from /proc, so this is tested on Linux")
		return
	}
	t.Parallel()
	const limit = 768 * mib
	d := pgtest.New(t)
	p := launch(t, []string{fmt.Sprint("GOMEMLIMIT=", limit), "DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0")
	c := &crowd{t: t, url: p.find(`address=(http://[\d.:]+)`), answers: map[string]int{}}
	go func() {
		for range p.lines { // of refusals there are many
		}
	}()
	pgtest.Exec(t, d.Pool, `
		select ojs.enqueue_bulk('large', array_agg(format('["%s"]', repeat('x', 1000000))::json), 'large')
		from generate_series(1, 60)`)

	ctx, done := context.WithCancel(t.Context())
	var others, senders sync.WaitGroup
	others.Go(func() { c.readSlowly(ctx) })
	for range 4 {
		others.Go(func() { c.fetchLarge(ctx) })
	}
	others.Go(func() { c.wantLittle(ctx) })
	var body bytes.Buffer
	for i := range 15 {
		fmt.Fprintf(&body, `%s{"type":"a","args":["%s"]}`, []string{`{"jobs":[`, ","}[min(i, 1)], strings.Repeat("x", 1_000_000))
	}
	body.WriteString("]}")
	for range 200 {
		senders.Go(func() { c.count("batch", c.post("/ojs/v1/jobs/batch", body.Bytes())) })
	}
	senders.Wait()
	done()
	others.Wait()

	peak := peakOf(t, p.cmd.Process.Pid)
	t.Logf("at most %d MiB of memory; %d small calls; answers %v", peak/mib, c.served.Load(), c.answers)
	if peak > limit*5/4 {
		t.Errorf("at most %d MiB of memory, more than the limit of %d MiB and a quarter", peak/mib, limit/mib)
	}
	if c.answers["batch 201"] == 0 || c.answers["batch 201"]+c.answers["batch 503"] != 200 || c.answers["fetch 200"] == 0 ||
		c.served.Load() == 0 {
		t.Errorf("answers %v, %d small calls", c.answers, c.served.Load())
	}
}

// crowd is a number of clients of one server.
type crowd struct {
	t      *testing.T
	url    string
	served atomic.Int64

	mu      sync.Mutex
	answers map[string]int // of one kind of call and status
}

func (c *crowd) count(kind string, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[kind+" "+strconv.Itoa(status)]++
}

// post sends a request, reads the answer to its end and returns its status.
func (c *crowd) post(path string, body []byte) (status int) {
	res, err := http.Post(c.url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		c.t.Errorf("%s: %v", path, err)
		return 0
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		c.t.Errorf("%s: %v", path, err)
	}
	if res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") == "" {
		c.t.Errorf("%s: 503 without Retry-After", path)
	}
	return res.StatusCode
}

func (c *crowd) fetchLarge(ctx context.Context) {
	for ctx.Err() == nil {
		c.count("fetch", c.post("/ojs/v1/workers/fetch", []byte(`{"queues":["large"],"count":1000,"visibility_timeout_ms":1000}`)))
	}
}

// wantLittle enqueues, fetches and acknowledges small jobs, one after the other.
func (c *crowd) wantLittle(ctx context.Context) {
	for ctx.Err() == nil {
		if status := c.post("/ojs/v1/jobs", []byte(`{"type":"a","args":[],"options":{"queue":"little"}}`)); status != http.StatusCreated {
			c.t.Errorf("a small enqueue: %d", status)
		}
		res, err := http.Post(c.url+"/ojs/v1/workers/fetch", "application/json", strings.NewReader(`{"queues":["little"]}`))
		if err != nil {
			c.t.Errorf("a small fetch: %v", err)
			return
		}
		var fetched struct{ Jobs []struct{ ID string } }
		if err := json.NewDecoder(res.Body).Decode(&fetched); err != nil || len(fetched.Jobs) != 1 {
			c.t.Errorf("a small fetch: %d %+v %v", res.StatusCode, fetched, err)
		}
		res.Body.Close()
		for _, job := range fetched.Jobs {
			if status := c.post("/ojs/v1/jobs/"+job.ID+"/ack", []byte(`{}`)); status != http.StatusOK {
				c.t.Errorf("an ack: %d", status)
			}
		}
		c.served.Add(1)
	}
}

// readSlowly fetches large jobs and reads the answer at 100 kB/s.
func (c *crowd) readSlowly(ctx context.Context) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		c.t.Error(err)
		return
	}
	defer conn.Close()
	body := `{"queues":["large"],"count":1000}`
	fmt.Fprintf(conn, "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	for bit := make([]byte, 10_000); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
			if _, err := io.ReadFull(conn, bit); err != nil {
				return
			}
		}
	}
}

// peakOf returns the largest resident memory that a process has had, in bytes.
func peakOf(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no peak in %s", status)
	}
	kib, _ := strconv.ParseInt(string(found[1]), 10, 64) // digits
	return kib * 1024
}
