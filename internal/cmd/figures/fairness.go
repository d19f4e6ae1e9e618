package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/migrate"
	"github.com/ojs-pg/ojs-pg/internal/setup"
)

// What is measured: one tenant enqueues very many jobs, and the workers begin. Then nine tenants enqueue a few jobs each.
const (
	large     = "large"
	largeJobs = 100_000
	smalls    = 9
	smallJobs = 20
	workers   = 10
	batch     = 20                    // jobs in a fetch; the workers run them within 20 ms
	jobTime   = 10 * time.Millisecond // how long a worker runs a job
	later     = time.Second           // when the small tenants come

	allJobs = largeJobs + smalls*smallJobs
)

// waits is how long each tenant's jobs waited at most, from the commit of their enqueue until a worker began to run them.
type waits map[string]time.Duration

func small(i int) string { return fmt.Sprintf("tenant-%d", i+1) }

func drawFairness(ctx context.Context, file string) (err error) {
	dir, err := os.MkdirTemp("", "ojs-figures-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := embedpg.Start(ctx, embedpg.Options{
		DataDir: dir, Throwaway: true, Settings: map[string]string{"shared_buffers": "256MB"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()

	fair, err := measureWaits(ctx, server, "fair", "")
	if err != nil {
		return err
	}
	inOrder, err := measureWaits(ctx, server, "in_order",
		`select ojs.configure_queue('default', '{"tenant_fairness": {"enabled": false}}')`)
	if err != nil {
		return err
	}
	return fairnessPicture(fair, inOrder).write(file)
}

// measureWaits does all of it in a database of its own.
func measureWaits(ctx context.Context, server *embedpg.Server, name, prepare string) (waits, error) {
	if err := setup.CreateDatabase(ctx, server.URL("postgres"), name); err != nil {
		return nil, err
	}
	url := server.URL(name)
	if err := migrate.Run(ctx, url, migrate.Up, nil); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if prepare != "" {
		if _, err := conn.Exec(ctx, prepare); err != nil {
			return nil, err
		}
	}
	m := &measurement{url: url, committed: map[string]time.Time{}, longest: waits{}, over: make(chan struct{})}
	const step = 10_000 // as many as one call takes
	for range largeJobs / step {
		if err := m.enqueue(ctx, conn, large, step); err != nil {
			return nil, err
		}
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	jobs := make(chan job)
	for range workers {
		running.Go(func() { m.work(jobs) })
	}
	for _, part := range []func(context.Context) error{
		func(ctx context.Context) error { return m.fetch(ctx, jobs) }, m.acknowledge, m.clock,
	} {
		running.Go(func() {
			if err := part(ctx); err != nil {
				cancel(err)
			}
		})
	}
	time.Sleep(later)
	for i := range smalls {
		if err := m.enqueue(ctx, conn, small(i), smallJobs); err != nil {
			cancel(err)
		}
	}
	running.Wait()
	return m.longest, context.Cause(ctx)
}

// measurement is one run.
type measurement struct {
	url string

	mu        sync.Mutex
	committed map[string]time.Time // when the tenant's latest enqueue was committed
	longest   waits
	ended     [][16]byte    // jobs that have run and are not acknowledged
	over      chan struct{} // closed when all jobs are acknowledged
}

// enqueue notes the time before the commit rather than after it: a worker may begin a job before the answer arrives.
func (m *measurement) enqueue(ctx context.Context, conn *pgx.Conn, tenant string, jobs int) error {
	m.mu.Lock()
	m.committed[tenant] = time.Now()
	m.mu.Unlock()
	_, err := conn.Exec(ctx, `
		select ojs.enqueue_bulk('report.build', array(select json_build_array(i) from generate_series(1, $1::int) i), p_tenant => $2)`,
		jobs, tenant)
	return err
}

type job struct {
	ID      [16]byte
	Tenant  string
	Attempt int
}

// fetch hands jobs to the workers, in the order in which the database decided, until all have been handed out. One session
// fetches for all workers, as a server does. Sessions that compete may fetch out of order, which would spoil the comparison.
func (m *measurement) fetch(ctx context.Context, to chan<- job) error {
	defer close(to)
	conn, err := pgx.Connect(ctx, m.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for fetched := 0; fetched < allJobs; {
		rows, err := conn.Query(ctx, "select id, tenant_id, attempt from ojs.fetch('{default}', $1, 'figures')", batch)
		if err != nil {
			return err
		}
		jobs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[job])
		if err != nil {
			return err
		}
		for _, j := range jobs {
			if j.Attempt > 1 {
				return fmt.Errorf("a job of %s was handed out twice", j.Tenant)
			}
			select {
			case to <- j:
			case <-ctx.Done():
				return nil
			}
		}
		fetched += len(jobs)
	}
	return nil
}

// work runs jobs one after the other.
func (m *measurement) work(jobs <-chan job) {
	for j := range jobs {
		m.begin(j.Tenant)
		time.Sleep(jobTime)
		m.mu.Lock()
		m.ended = append(m.ended, j.ID)
		m.mu.Unlock()
	}
}

func (m *measurement) begin(tenant string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.longest[tenant] = max(m.longest[tenant], time.Since(m.committed[tenant]))
}

// acknowledge completes jobs that the workers have run, until all are completed.
func (m *measurement) acknowledge(ctx context.Context) error {
	defer close(m.over)
	conn, err := pgx.Connect(ctx, m.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for completed := 0; completed < allJobs; {
		m.mu.Lock()
		ids := m.ended
		m.ended = nil
		m.mu.Unlock()
		if len(ids) == 0 {
			select {
			case <-time.After(time.Millisecond):
				continue
			case <-ctx.Done():
				return nil
			}
		}
		// A job that another session has locked at this moment is not completed: ask again.
		rows, err := conn.Query(ctx, "select id from unnest($1::uuid[]) id except select id from ojs.ack_many($1)", ids)
		if err != nil {
			return err
		}
		again, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
		if err != nil {
			return err
		}
		completed += len(ids) - len(again)
		m.mu.Lock()
		m.ended = append(m.ended, again...)
		m.mu.Unlock()
	}
	return nil
}

// clock calls ojs.tick as a server does, until all jobs are completed.
func (m *measurement) clock(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, m.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for {
		select {
		case <-m.over:
			return nil
		case <-time.After(200 * time.Millisecond):
		}
		if _, err := conn.Exec(ctx, "select ojs.tick()"); err != nil {
			return err
		}
	}
}

func fairnessPicture(fair, inOrder waits) *svg {
	const (
		width, height = 800, 372
		top, row      = 92.0, 24.0
		bars          = 225.0 // how wide the longest bar is
		left, right   = 110.0, 470.0
	)
	longest, worst, best := time.Duration(0), time.Duration(0), time.Duration(1<<62)
	for _, set := range []waits{fair, inOrder} {
		for _, wait := range set {
			longest = max(longest, wait)
		}
	}
	for i := range smalls {
		worst, best = max(worst, fair[small(i)]), min(best, inOrder[small(i)])
	}
	description := fmt.Sprintf("One tenant enqueues %d jobs. One second later nine tenants enqueue %d jobs each. "+
		"%d workers run all of them. "+
		"With fair shares no job of the nine waits longer than %s. First in, first out, the last job of each waits at least %s.",
		largeJobs, smallJobs, workers, seconds(worst), seconds(best))
	s := newSVG(width, height, "Longest wait of each tenant's jobs", description)
	s.label(24, 32, "start", 16, colourText, true, "Longest wait of each tenant's jobs")
	s.label(24, 52, "start", 12, colourFaint, false, fmt.Sprintf(
		"One tenant enqueues 100,000 jobs; nine tenants enqueue %d each a second later. %d workers, one PostgreSQL, measured.",
		smallJobs, workers))
	s.label(left, 80, "start", 13, colourOurs, true, "ojs-pg: fair shares")
	s.label(right, 80, "start", 13, colourFaint, true, "first in, first out")
	y := top
	for i := range smalls + 1 {
		tenant := large
		if i < smalls {
			tenant = small(i)
		}
		s.label(left-10, y+13, "end", 12, colourText, false, tenant)
		s.bar(left, y, bars*float64(fair[tenant])/float64(longest), 16, colourOurs, seconds(fair[tenant]))
		s.bar(right, y, bars*float64(inOrder[tenant])/float64(longest), 16, colourOther, seconds(inOrder[tenant]))
		y += row
	}
	s.line(left, top-4, left, y)
	s.line(right, top-4, right, y)
	s.label(24, y+22, "start", 12, colourFaint, false,
		"The same jobs, workers and database; only tenant_fairness of the queue differs. The large tenant loses nothing.")
	fmt.Println(description)
	return s
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
