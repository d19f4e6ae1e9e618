package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/guard"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Two clients hang up with a thousand jobs each while PostgreSQL is killed. The log has one line about it,
// and the jobs are available as soon as PostgreSQL is back; their leases would last an hour.
func TestJobsAreGivenBackWhenPostgreSQLIsBack(t *testing.T) {
	t.Parallel()
	own := pgtest.NewPrivate(t, nil)
	db, err := pg.Open(t.Context(), pg.Config{URL: own.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	log := &pgtest.Log{}
	d := New(db, nil, slog.New(slog.NewTextHandler(log, nil)), Options{})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		db.Close()
	})
	own.Exec("select ojs.enqueue('x', p_visibility_timeout_ms => 3600000) from generate_series(1, 2000)")
	var held [2][]sqlcgen.OjsJob
	for i := range held {
		if held[i], err = d.Fetch(t.Context(), Fetch{Queues: []string{"default"}, Count: 1000}); err != nil || len(held[i]) != 1000 {
			t.Fatal(len(held[i]), err)
		}
	}
	own.Kill()
	for _, jobs := range held {
		d.GiveBack(jobs)
	}
	pgtest.Eventually(t, "the failure is logged", func() bool { return len(log.Lines()[0]) > 0 })
	own.Start()
	pgtest.Eventually(t, "the jobs are given back", func() bool {
		return strings.Contains(log.String(), "are not held any more")
	})
	conn, err := pgx.Connect(t.Context(), own.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var available int
	const sql = "select count(*) from ojs.job where state = 'available' and attempt = 0 and lease is null"
	if err := conn.QueryRow(t.Context(), sql).Scan(&available); err != nil || available != 2000 {
		t.Errorf("%d jobs are available (%v)", available, err)
	}
	if lines := log.Lines(); len(lines) > 2 {
		t.Errorf("%d lines: %s", len(lines), strings.Join(lines[:3], "\n"))
	}
}

// A job that is no longer held keeps no other job from being given back. A job that another transaction
// has locked is given back after that.
func TestLostAndLockedJobsKeepNoOtherFromGoingBack(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	jobs := b.active(4)
	b.exec("select ojs.ack($1, $2)", jobs[0].ID, jobs[0].Lease)
	b.exec("select ojs.release($1, $2)", jobs[1].ID, jobs[1].Lease)
	end := b.session("select from ojs.job where id = $1 for update", jobs[2].ID)
	before := b.Statements()
	b.GiveBack(jobs)
	available := func(n int) {
		t.Helper()
		pgtest.Eventually(t, "jobs are available", func() bool {
			return b.count("select count(*) from ojs.job where state = 'available' and attempt = 0") == n
		})
	}
	available(2)
	end("rollback")
	available(3)
	if n := b.count("select count(*) from ojs.release where to_state = 'available'"); n != 3 {
		t.Errorf("%d jobs were released", n)
	}
	// Jobs that are no longer held are not tried again: there is one statement, and one for each try of the
	// locked job.
	pgtest.Eventually(t, "nothing is left", func() bool {
		b.back.mu.Lock()
		defer b.back.mu.Unlock()
		return !b.back.running
	})
	if sent := b.Statements() - before; sent < 2 {
		t.Errorf("%d statements", sent)
	}
}

// While a transaction has a job locked, later jobs are given back at once. When the server stops, only the
// locked job is given up.
func TestALockedJobSlowsNoOtherDown(t *testing.T) {
	t.Parallel()
	log := &pgtest.Log{}
	d := New(nil, nil, slog.New(slog.NewTextHandler(log, nil)), Options{})
	sent := make(chan string, 1000)
	d.send.release = func(_ context.Context, ids, _ []string) (locked []string, err error) {
		for _, id := range ids {
			sent <- id
			if strings.HasPrefix(id, "locked") {
				locked = append(locked, id)
			}
		}
		return locked, nil
	}
	now, lease := time.Now(), "l"
	end := now.Add(24 * time.Hour)
	giveBack := func(id string) {
		d.GiveBack([]sqlcgen.OjsJob{{ID: id, Lease: &lease, StartedAt: &now, LeaseExpiresAt: &end}})
	}
	giveBack("locked 1")
	<-sent
	// Its next try would be in an hour.
	pgtest.Eventually(t, "the locked job is on the list again", func() bool {
		d.back.mu.Lock()
		defer d.back.mu.Unlock()
		if len(d.back.jobs) == 0 {
			return false
		}
		d.back.jobs[0].notBefore = time.Now().Add(time.Hour)
		return true
	})
	for i := range 3 {
		id := fmt.Sprint("free ", i)
		giveBack(id)
		for got := ""; got != id; {
			got = <-sent
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	d.Run(ctx)
	lines := log.String()
	if !strings.Contains(lines, "before the server stopped") || !strings.Contains(lines, "jobs=1 ") {
		t.Errorf("logged %s", lines)
	}
	giveBack("late")
	if d.back.running || len(d.back.jobs) > 0 || strings.Count(log.String(), "before the server stopped") != 2 {
		t.Errorf("running %v with %d jobs, logged %q", d.back.running, len(d.back.jobs), log.Lines())
	}
}

// Without a database the list stays within its bound, and forgets jobs whose leases have ended.
func TestTheListOfJobsToGiveBackIsBounded(t *testing.T) {
	t.Parallel()
	log := &pgtest.Log{}
	d := New(nil, nil, slog.New(slog.NewTextHandler(log, nil)), Options{GiveBacks: 10})
	sent, away := make(chan int), make(chan error)
	d.send.release = func(_ context.Context, ids, _ []string) ([]string, error) {
		sent <- len(ids)
		return nil, <-away
	}
	now, lease := time.Now(), "l"
	end := now.Add(time.Hour)
	jobs := make([]sqlcgen.OjsJob, 15)
	for i := range jobs {
		jobs[i] = sqlcgen.OjsJob{ID: fmt.Sprint(i), Lease: &lease, StartedAt: &now, LeaseExpiresAt: &end}
	}
	d.GiveBack(jobs)
	if n := <-sent; n != 10 {
		t.Errorf("%d jobs are sent", n)
	}
	go func() { // until the leases have ended
		for {
			select {
			case away <- errors.New("away"):
			case <-sent:
			case <-t.Context().Done():
				return
			}
		}
	}()
	pgtest.Eventually(t, "all are on the list at once, and their leases end", func() bool {
		d.back.mu.Lock()
		defer d.back.mu.Unlock()
		if len(d.back.jobs) < 10 {
			return false
		}
		for i := range d.back.jobs {
			d.back.jobs[i].until = now
		}
		return true
	})
	pgtest.Eventually(t, "it is told how many come back later", func() bool {
		return strings.Contains(log.String(), "jobs=15 not_held_any_more=0")
	})
	if lines := log.Lines(); len(lines) != 2 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

// A server that stops tries once more, and does not wait for a database that is away.
func TestAServerThatStopsDoesNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	log := &pgtest.Log{}
	d := New(nil, nil, slog.New(slog.NewTextHandler(log, nil)), Options{})
	d.send.release = func(context.Context, []string, []string) ([]string, error) { return nil, errors.New("away") }
	ctx, stop := context.WithCancel(t.Context())
	now, lease := time.Now(), "l"
	end := now.Add(time.Hour)
	d.GiveBack([]sqlcgen.OjsJob{{ID: "1", Lease: &lease, StartedAt: &now, LeaseExpiresAt: &end}})
	stop()
	d.Run(ctx)
	if lines := log.String(); !strings.Contains(lines, "before the server stopped") {
		t.Errorf("logged %s", lines)
	}
}

// A panic in a decision is an error of its requests only. The next decision works.
func TestADecisionThatPanics(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	fetch := b.send.fetch
	b.send.fetch = func(ctx context.Context, parts []*part) error {
		if parts[0].requests[0].WorkerID == "unlucky" {
			panic("a mistake")
		}
		return fetch(ctx, parts)
	}
	b.exec("select ojs.enqueue('x', p_queue => 'q')")
	var panicked *guard.Panic
	if a := <-b.later(t.Context(), Fetch{Queues: []string{"q"}, WorkerID: "unlucky"}); !errors.As(a.err, &panicked) {
		t.Errorf("got %v", a.err)
	}
	b.want(b.later(t.Context(), Fetch{Queues: []string{"q"}}), 1)
}

// A worker that asks for a thousand large jobs gets 16 MiB of them, and the next request the rest. A job
// that is larger is handed out, too.
func TestOneAnswerHasABoundedNumberOfBytes(t *testing.T) {
	t.Parallel()
	b := dispatcher(t, Options{})
	b.exec("select ojs.enqueue('x', to_json(array[repeat('x', 1000000)]), p_queue => 'q') from generate_series(1, 40)")
	got := 0
	for got < 40 {
		jobs, err := b.Fetch(t.Context(), Fetch{Queues: []string{"q"}, Count: 1000, Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for i := range jobs {
			size += len(jobs[i].Args)
		}
		if len(jobs) == 0 || size > 16<<20 {
			t.Fatalf("%d jobs with %d bytes", len(jobs), size)
		}
		got += len(jobs)
	}
}
