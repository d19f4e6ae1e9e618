//go:build unix

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sched"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// worker takes jobs and says that they are done. name is of this request alone, so that its place in a decision can be found.
type worker interface {
	fetch(ctx context.Context, name string, count int) ([]sqlcgen.OjsJob, error)
	ack(ctx context.Context, jobs []sqlcgen.OjsJob) error
	close()
}

// directWorker calls the functions through the server's pool, one request at a time.
type directWorker struct{ q *sqlcgen.Queries }

func (w directWorker) fetch(ctx context.Context, name string, count int) ([]sqlcgen.OjsJob, error) {
	return w.q.Fetch(ctx, sqlcgen.FetchParams{Queues: []string{queue}, Count: int32(count), WorkerID: &name})
}

func (w directWorker) ack(ctx context.Context, jobs []sqlcgen.OjsJob) error {
	for i := range jobs {
		if _, err := w.q.Ack(ctx, sqlcgen.AckParams{ID: jobs[i].ID, Lease: jobs[i].Lease}); err != nil {
			return err
		}
	}
	return nil
}

func (w directWorker) close() {}

// sqlWorker is a client without any library of ours: a connection and two statements.
type sqlWorker struct {
	conn *pgx.Conn
	many string // acknowledges several jobs: arrays of ids and leases, or one array of objects
	json bool
}

func (d *database) sqlWorker(ctx context.Context) (worker, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	w := &sqlWorker{conn: conn, many: `select count(*) from unnest($1::uuid[], $2::uuid[]) x(id, lease) cross join lateral ojs.ack(x.id, x.lease)`}
	if err := conn.QueryRow(ctx, "select to_regprocedure('ojs.settle(json, boolean)') is not null").Scan(&w.json); err != nil {
		w.close()
		return nil, fmt.Errorf("look for ojs.settle: %w", err)
	}
	if w.json {
		w.many = `select count(*) filter (where sqlstate is null) from ojs.settle($1::json, false)`
	}
	return w, nil
}

func (w *sqlWorker) fetch(ctx context.Context, name string, count int) ([]sqlcgen.OjsJob, error) {
	return queryJobs(ctx, w.conn, count, "select "+jobList+" from ojs.fetch(array[$1], $2, $3)", queue, count, name)
}

func (w *sqlWorker) ack(ctx context.Context, jobs []sqlcgen.OjsJob) error {
	if len(jobs) == 1 {
		var state string
		return w.conn.QueryRow(ctx, "select state from ojs.ack($1, $2)", jobs[0].ID, jobs[0].Lease).Scan(&state)
	}
	var done int
	var err error
	if w.json {
		list := []byte{'['}
		for i := range jobs {
			if i > 0 {
				list = append(list, ',')
			}
			list = append(append(append(append(append(list, `{"id":"`...), jobs[i].ID...), `","lease":"`...), *jobs[i].Lease...), `"}`...)
		}
		err = w.conn.QueryRow(ctx, w.many, append(list, ']')).Scan(&done)
	} else {
		ids, leases := make([]string, len(jobs)), make([]string, len(jobs))
		for i := range jobs {
			ids[i], leases[i] = jobs[i].ID, *jobs[i].Lease
		}
		err = w.conn.QueryRow(ctx, w.many, ids, leases).Scan(&done)
	}
	if err == nil && done != len(jobs) {
		err = fmt.Errorf("acknowledged %d of %d jobs", done, len(jobs))
	}
	return err
}

func (w *sqlWorker) close() { _ = w.conn.Close(context.Background()) }

// clock is what a server does beside its requests.
func clock(ctx context.Context, db *pg.DB, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { sched.New(db, log, 0).Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// spell is what workers did in one slice.
type spell struct {
	jobs      int64
	elapsed   time.Duration
	fetches   times
	responses []response
	short     int64 // responses with fewer jobs than asked though there were more
	dry       bool  // the backlog came to its end
	wal       int64
}

// drive lets workers fetch and acknowledge until the time is over or the backlog is. Tenants become numbers by tenant; nil: nobody asks in which order.
// places tells where in its decision a response was; nil: each is one decision.
func drive(
	ctx context.Context, workers []worker, count int, backlog int64, length time.Duration, tenant map[string]int32, places *places,
) (*spell, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	total := &spell{}
	var (
		taken   atomic.Int64
		dry     atomic.Bool
		running sync.WaitGroup
		mu      sync.Mutex
	)
	begun := time.Now()
	end := begun.Add(length)
	for i, w := range workers {
		running.Go(func() {
			own := &spell{}
			prefix := "w" + strconv.Itoa(i) + "-"
			for n := 0; !dry.Load() && ctx.Err() == nil; n++ {
				before := time.Now()
				if before.After(end) {
					break
				}
				name := prefix + strconv.Itoa(n)
				jobs, err := w.fetch(ctx, name, count)
				if err != nil {
					cancel(fmt.Errorf("fetch: %w", err))
					break
				}
				own.fetches = append(own.fetches, time.Since(before))
				all := taken.Add(int64(len(jobs)))
				if len(jobs) < count {
					// What others are about to take is not left for anybody.
					if all+int64(count*len(workers)) >= backlog {
						dry.Store(true)
					} else {
						own.short++
					}
				}
				if len(jobs) == 0 {
					continue
				}
				if tenant != nil {
					r := response{at: jobs[0].StartedAt.UnixMicro(), place: places.take(name), tenants: make([]int32, len(jobs))}
					for k := range jobs {
						r.tenants[k] = tenant[jobs[k].TenantID]
					}
					own.responses = append(own.responses, r)
				}
				if err := w.ack(ctx, jobs); err != nil {
					cancel(fmt.Errorf("acknowledge: %w", err))
					break
				}
				own.jobs += int64(len(jobs))
			}
			mu.Lock()
			defer mu.Unlock()
			total.jobs += own.jobs
			total.short += own.short
			total.fetches = append(total.fetches, own.fetches...)
			total.responses = append(total.responses, own.responses...)
		})
	}
	running.Wait()
	total.elapsed = time.Since(begun)
	total.dry = dry.Load()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	return total, ctx.Err()
}

// sequence puts responses in the order in which the database decided: decisions are serial and stamp their jobs while they hold the lane, and
// within a decision the requests were served in the order of its arguments.
func sequence(responses []response) []response {
	slices.SortFunc(responses, func(a, b response) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.place, b.place)) })
	return responses
}

// places remembers which place each request had in the decision that answered it.
type places struct {
	mu sync.Mutex
	at map[string]int
}

func (p *places) take(name string) int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.at[name]
	delete(p.at, name)
	return at
}

func (s *spell) rate() float64 { return float64(s.jobs) / s.elapsed.Seconds() }
