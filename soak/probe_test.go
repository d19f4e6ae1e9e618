package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// listener is a server that is to hear of commits by way of proxies.
type listener struct {
	url  string
	from []*proxy
}

// expect watches for the notification that carries a token.
func (l listener) expect(token string) {
	for _, p := range l.from {
		p.expect("ojs_wake\x00" + token + "\x00")
	}
}

func (l listener) heard() bool { return slices.ContainsFunc(l.from, (*proxy).passed) }

// wakeUps has a FETCH wait at each server, and then commits a job for each. It returns how long the slowest took. A server finds jobs without being told, so that it was told is read
// off its connections: one that does not say for what it waits, hears nothing, or was not woken, is in the book.
func wakeUps(ctx context.Context, conn *pgx.Conn, book *book, r *rand.Rand, servers []listener, queues string, limit time.Duration) (time.Duration, error) {
	var answers sync.WaitGroup
	came := make(chan time.Time, len(servers))
	queue := func(i int) string { return fmt.Sprintf("%s-%d", queues, i) }
	for i, l := range servers {
		random := rand.New(rand.NewPCG(r.Uint64(), 0))
		answers.Go(func() {
			cl := &client{orders: orders{Servers: []string{l.url}}, book: book, http: &http.Client{Timeout: limit + 30*time.Second}, stop: ctx}
			sent := time.Now()
			a := cl.ask(random, http.MethodPost, "/ojs/v1/workers/fetch", "", map[string]any{"queues": []string{queue(i)}, "worker_id": l.url, "wait_ms": (limit + 5*time.Second).Milliseconds()})
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
			book.write(entry{What: fetched_, IDs: []string{j.ID}, Queue: queue(i), Lease: j.Lease, Attempt: j.Attempt, Sent: sent, Until: sent.Add(leaseTime)})
			cl.finish(random, l.url, got.Jobs, ack)
		})
	}
	// within tries until it is so, as long as there is time.
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
		// It may have lost its connection in the fault, and have another only just.
		ping, token := newID(), ""
		l.expect(ping)
		ok, err := within(func() (bool, error) {
			_, err := conn.Exec(ctx, "select pg_notify('ojs_wake', $1)", ping)
			return l.heard(), err
		})
		if err == nil && ok {
			ok, err = within(func() (bool, error) {
				err := conn.QueryRow(ctx, "select coalesce((select w.token from ojs.waiter w where w.queue = $1 and w.expires_at > ojs.now()), '')", queue(i)).Scan(&token)
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
		if _, err := conn.Exec(ctx, "select ojs.enqueue('fault.probe', '[]', $1, p_id => $2, p_tenant => 'acme')", queue(i), id); err != nil {
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
