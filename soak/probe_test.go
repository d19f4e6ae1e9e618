//go:build linux

package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// listener is a server that gets its notifications through proxies.
type listener struct {
	url  string
	from []*proxy
}

// expect makes the proxies watch for a notification with a token.
func (l listener) expect(token string) {
	for _, p := range l.from {
		p.expect("ojs_wake\x00" + token + "\x00")
	}
}

func (l listener) heard() bool { return slices.ContainsFunc(l.from, (*proxy).passed) }

// ready sends each server so many requests at once that it uses all its connections, until all are
// answered.
func ready(ctx context.Context, book *book, servers []listener) {
	var answers sync.WaitGroup
	for _, l := range servers {
		cl := &client{orders: orders{Servers: []string{l.url}}, book: book, http: &http.Client{Timeout: patience}, stop: ctx}
		for range 16 {
			answers.Go(func() {
				if a := cl.ask(rand.New(rand.NewPCG(0, 0)), http.MethodGet, "/ojs/v1/queues", "", nil); !a.unknown() &&
					a.status != http.StatusOK {
					book.wrong("GET /ojs/v1/queues: %d: %s", a.status, a.body)
				}
			})
		}
	}
	answers.Wait()
}

// wakeUps lets a FETCH wait at each server, and then commits a job for each. It returns the time that the
// slowest took. A server finds jobs also without notifications, by polling. So the proxies watch its
// connections: the ledger gets an entry if the server does not register its queue, gets no notification,
// or does not poll after it.
func wakeUps(ctx context.Context, conn *pgx.Conn, book *book, r *rand.Rand, servers []listener, queues string,
	limit time.Duration,
) (time.Duration, error) {
	var answers sync.WaitGroup
	came := make(chan time.Time, len(servers))
	queue := func(i int) string { return fmt.Sprintf("%s-%d", queues, i) }
	for i, l := range servers {
		random := rand.New(rand.NewPCG(r.Uint64(), 0))
		answers.Go(func() {
			cl := &client{
				orders: orders{Servers: []string{l.url}}, book: book, http: &http.Client{Timeout: limit + 30*time.Second},
				stop: ctx,
			}
			sent := time.Now()
			a := cl.ask(random, http.MethodPost, "/ojs/v1/workers/fetch", "",
				map[string]any{"queues": []string{queue(i)}, "worker_id": l.url, "wait_ms": (limit + 5*time.Second).Milliseconds()})
			read := time.Now()
			var got struct {
				Jobs []held `json:"jobs"`
			}
			if err := json.Unmarshal(a.body, &got); err != nil || len(got.Jobs) != 1 {
				book.wrong("a FETCH that waited was not woken: %d: %s", a.status, a.body)
				return
			}
			came <- read
			j := got.Jobs[0]
			book.write(entry{
				What: fetched_, IDs: []string{j.ID}, Queue: queue(i), Lease: j.Lease, Attempt: j.Attempt, Sent: sent,
				Until: sent.Add(leaseTime),
			})
			cl.finish(random, l.url, got.Jobs, ack)
		})
	}
	// within repeats a check until it holds or the time is over.
	deadline := time.Now().Add(limit)
	within := func(try func() (bool, error)) (bool, error) {
		for {
			if ok, err := try(); ok || err != nil || time.Now().After(deadline) {
				return ok, err
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	hears := make([]bool, len(servers))
	for i, l := range servers {
		// The server may have lost its connection in the fault, and have opened another one just now.
		ping, token := newID(), ""
		l.expect(ping)
		ok, err := within(func() (bool, error) {
			_, err := conn.Exec(ctx, "select pg_notify('ojs_wake', $1)", ping)
			return l.heard(), err
		})
		if err == nil && ok {
			ok, err = within(func() (bool, error) {
				err := conn.QueryRow(ctx, `
					select coalesce((select w.token from ojs.waiter w where w.queue = $1 and w.expires_at > ojs.now()),
						'')`, queue(i)).Scan(&token)
				return token != "", err
			})
		}
		if err != nil {
			return 0, err
		}
		if hears[i] = ok; !ok {
			book.wrong("server %d hears nothing of commits, or does not say for what it waits", i)
		}
		l.expect(token)
	}
	began := time.Now()
	for i := range servers {
		id := newID()
		book.write(entry{What: enqueues, IDs: []string{id}, Tenant: "acme"})
		if _, err := conn.Exec(ctx, `
			select ojs.enqueue('fault.probe', '[]', $1, p_id => $2, p_tenant => 'acme')`, queue(i), id); err != nil {
			return 0, err
		}
		book.write(entry{What: enqueued, IDs: []string{id}, Tenant: "acme"})
	}
	answers.Wait()
	for i, l := range servers {
		if ok, _ := within(func() (bool, error) { return l.heard() || !hears[i], nil }); !ok {
			book.wrong("a commit with a job for server %d did not notify it", i)
		}
	}
	close(came)
	last := began
	for at := range came {
		last = later(last, at)
	}
	return last.Sub(began), nil
}

// A worker that was silent for too long may have lost its jobs, even if a heartbeat is answered while it
// reads the answer to its FETCH.
func TestWhatAWorkerMayBelieve(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) time.Time { return time.Unix(1e9, 0).Add(d) }
	for _, c := range []struct {
		name        string
		second      time.Duration // a heartbeat is answered at once, and a second one is sent then
		answer      time.Duration // when that is answered
		asked, want time.Duration
	}{
		{name: "heard all the time", second: time.Second, answer: time.Second, asked: 500 * time.Millisecond, want: time.Second + silence},
		{
			name: "silent for too long", second: 2 * time.Second, answer: 2 * time.Second, asked: 500 * time.Millisecond,
			want: 500 * time.Millisecond,
		},
		{
			name: "perhaps silent for too long", second: time.Second, answer: 2 * time.Second, asked: 500 * time.Millisecond,
			want: 500 * time.Millisecond,
		},
		{name: "asked since", second: 2 * time.Second, answer: 2 * time.Second, asked: 3 * time.Second, want: 2*time.Second + silence},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w worker
			w.answered(at(0), at(0))
			w.answered(at(c.second), at(c.answer))
			if got := w.until(at(c.asked)); !got.Equal(at(c.want)) {
				t.Errorf("until %v, want %v", got.Sub(at(0)), c.want)
			}
		})
	}
}

// The probe finds a server that gets no notifications, although such a server finds its job by polling.
func TestTheProbeSees(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	address, err := pgx.ParseConfig(d.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	books := t.TempDir()
	through := func() (*proxy, string) {
		p := newProxy(t, fmt.Sprintf("%s:%d", address.Host, address.Port))
		u, err := url.Parse(d.ServiceURL)
		if err != nil {
			t.Fatal(err)
		}
		u.Host, u.RawQuery = p.address(), "sslmode=disable"
		return p, u.String()
	}
	work, workURL := through()
	ear, earURL := through()
	servers := []listener{{url: start(t, build(t), workURL, "OJS_DIRECT_URL="+earURL).url, from: []*proxy{work, ear}}}
	conn, err := pgx.Connect(t.Context(), d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	probe := func(name string, limit time.Duration) (complaints []string) {
		t.Helper()
		dir := filepath.Join(books, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		book, err := openBook(filepath.Join(dir, prober), prober)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wakeUps(t.Context(), conn, book, rand.New(rand.NewPCG(1, 1)), servers, name, limit); err != nil {
			t.Fatal(err)
		}
		for _, e := range readBooks(t, dir) {
			if e.What == wrong {
				complaints = append(complaints, e.Text)
			}
		}
		return complaints
	}
	if got := probe("all", 30*time.Second); len(got) > 0 {
		t.Fatalf("where nothing is wrong: %v", got)
	}
	// The session that listens ends, and the proxy refuses another one.
	ear.refuse.Store(true)
	ear.cut(nil)
	if got := probe("deaf", 3*time.Second); len(got) != 1 || !strings.Contains(got[0], "hears nothing of commits") {
		t.Errorf("a deaf server: %v", got)
	}
	ear.refuse.Store(false)
	if got := probe("again", 30*time.Second); len(got) > 0 {
		t.Errorf("when it listens again: %v", got)
	}
	if _, err := conn.Exec(t.Context(), `
		create or replace function ojs._notify(p_queues text[]) returns void language sql as ''`); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(probe("mute", 3*time.Second), "\n"); !strings.Contains(got, "did not notify it") {
		t.Errorf("commits that say nothing: %q", got)
	}
}
