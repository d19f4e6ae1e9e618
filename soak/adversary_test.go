//go:build linux

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const adversaryEnv = "OJS_SOAK_ADVERSARY"

// adversary is a tenant that tries to take all of a server's capacity. It has an API key and a login
// role. When it is refused it asks again at once, on as many connections as it has hands (goroutines).
type adversary struct {
	URL      string `json:"url"`
	Key      string `json:"key"`
	Database string `json:"database"` // URL with its own login
	Queue    string `json:"queue"`    // shared with other tenants
	Hands    int    `json:"hands"`    // goroutines of each kind
	Jobs     int    `json:"jobs"`     // of a transaction that commits late
	Levels   bool   `json:"levels"`   // every priority in every queue

	http    *http.Client
	mu      sync.Mutex
	answers map[string]int // number of answers by status; "-": no answer
}

func (a *adversary) command(out io.Writer) *exec.Cmd {
	raw, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), adversaryEnv+"="+string(raw))
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	return cmd
}

// adversaryMain runs the adversary in a process of its own. At SIGTERM it ends, and prints how many
// answers of each status it got.
func adversaryMain(raw string) int {
	a := &adversary{answers: map[string]int{}}
	if err := json.Unmarshal([]byte(raw), a); err != nil {
		fmt.Fprintln(os.Stderr, "adversary:", err)
		return 1
	}
	a.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var hands sync.WaitGroup
	for _, kind := range []struct {
		hands int // times Hands
		do    func(context.Context, *rand.Rand)
	}{{2, a.enqueueBatch}, {2, a.enqueueOne}, {1, a.enqueueLarge}, {1, a.dawdle}, {4, a.read}, {20, a.fetch}, {1, a.guess}} {
		for i := range kind.hands * a.Hands {
			hands.Go(func() {
				for r := rand.New(rand.NewPCG(uint64(i), 1)); ctx.Err() == nil; {
					kind.do(ctx, r)
				}
			})
		}
	}
	for range 2 {
		hands.Go(func() {
			for ctx.Err() == nil {
				a.commitLate(ctx)
			}
		})
	}
	hands.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(a.answers); err != nil {
		return 1
	}
	return 0
}

func (a *adversary) note(answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[answer]++
}

// send sends a request, counts the status of the answer, and reads the body after a pause of slow.
func (a *adversary) send(ctx context.Context, method, path, key string, body io.Reader, slow time.Duration) {
	req, err := http.NewRequestWithContext(ctx, method, a.URL+path, body)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := a.http.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			a.note("-")
		}
		return
	}
	defer res.Body.Close()
	a.note(fmt.Sprint(res.StatusCode))
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return
		}
	}
	_, _ = io.Copy(io.Discard, res.Body)
}

func (a *adversary) post(ctx context.Context, path, body string, slow time.Duration) {
	a.send(ctx, http.MethodPost, "/ojs/v1"+path, a.Key, strings.NewReader(body), slow)
}

// manyQueues is the number of queues that only the adversary uses.
const manyQueues = 5000

// somewhere returns a random queue and priority: half of the time any priority in the shared queue, else
// one of many queues, with one priority for each queue or, with Levels, any priority.
func (a *adversary) somewhere(r *rand.Rand) (queue string, priority int) {
	priority = r.IntN(201) - 100
	if r.IntN(2) == 0 {
		return a.Queue, priority
	}
	n := r.IntN(manyQueues)
	if !a.Levels {
		priority = n%201 - 100
	}
	return fmt.Sprint("flood-", n), priority
}

func (a *adversary) job(r *rand.Rand, bytes int) string {
	queue, priority := a.somewhere(r)
	return fmt.Sprintf(`{"type":"flood","args":["%s"],"options":{"queue":"%s","priority":%d}}`, strings.Repeat("x", bytes), queue, priority)
}

func (a *adversary) batch(r *rand.Rand, jobs, bytes int) string {
	all := make([]string, jobs)
	for i := range all {
		all[i] = a.job(r, bytes)
	}
	return `{"jobs":[` + strings.Join(all, ",") + `]}`
}

func (a *adversary) enqueueBatch(ctx context.Context, r *rand.Rand) {
	a.post(ctx, "/jobs/batch", a.batch(r, 1000, 10), 0)
}

func (a *adversary) enqueueOne(ctx context.Context, r *rand.Rand) {
	a.post(ctx, "/jobs", a.job(r, 10), 0)
}

func (a *adversary) enqueueLarge(ctx context.Context, r *rand.Rand) {
	a.post(ctx, "/jobs/batch", a.batch(r, 15, 1<<20-100), 0)
}

// dawdle sends most of a large body and never the rest.
func (a *adversary) dawdle(ctx context.Context, r *rand.Rand) {
	address, _ := url.Parse(a.URL)
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address.Host)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	body := a.batch(r, 15, 1<<20-100)
	fmt.Fprintf(conn, "POST /ojs/v1/jobs/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
		a.Key, len(body), body[:len(body)-1])
	_, _ = io.Copy(io.Discard, conn)
}

func (a *adversary) read(ctx context.Context, r *rand.Rand) {
	paths := []string{
		"/jobs?limit=1000", "/queues", "/jobs?queue=" + a.Queue + "&state=available", "/dead-letter", "/cron", "/events",
		"/admin/tenants", "/admin/stats", "/queues/" + a.Queue + "/stats", "/admin/workers",
	}
	a.send(ctx, http.MethodGet, "/ojs/v1"+paths[r.IntN(len(paths))], a.Key, nil, 0)
}

// fetch waits for jobs of a hundred queues, or takes many jobs at once and reads them slowly.
func (a *adversary) fetch(ctx context.Context, r *rand.Rand) {
	if r.IntN(20) == 0 {
		queue, _ := a.somewhere(r)
		a.post(ctx, "/workers/fetch", `{"queues":["`+queue+`"],"worker_id":"f","count":1000}`, time.Second)
		return
	}
	queues := make([]string, 100)
	for i := range queues {
		queues[i] = fmt.Sprint("flood-", r.IntN(manyQueues))
	}
	a.post(ctx, "/workers/fetch", fmt.Sprintf(`{"queues":["%s"],"worker_id":"f%d","count":%d,"wait_ms":10000}`,
		strings.Join(queues, `","`), r.IntN(1000), 1+r.IntN(3)), 0)
}

// guess sends a large request with a made-up API key.
func (a *adversary) guess(ctx context.Context, r *rand.Rand) {
	secret := fmt.Sprintf("ojs_%016x%016x%016x%016x", r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64())
	a.send(ctx, http.MethodPost, "/ojs/v1/jobs/batch", secret, bytes.NewReader(make([]byte, 1000)), 0)
}

// commitLate adds many jobs of all priorities in one transaction and keeps the transaction open.
func (a *adversary) commitLate(ctx context.Context) {
	conn, err := pgx.Connect(ctx, a.Database)
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	tx, err := conn.Begin(ctx)
	if err != nil {
		return
	}
	_, err = tx.Exec(ctx, `insert into ojs.jobs (type, queue, priority)
		select 'flood', case when i % 2 = 0 then $1 else 'flood-' || i % $3 end,
			case when i % 2 = 0 or $4 then i else i % $3 end % 201 - 100
		from generate_series(1, $2::int) i`, a.Queue, a.Jobs, manyQueues, a.Levels)
	if err == nil {
		_, err = tx.Exec(ctx, "select pg_sleep(2)")
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if ctx.Err() == nil {
		if err != nil {
			a.note("sql: " + err.Error())
		} else {
			a.note("late commits")
		}
	}
}
