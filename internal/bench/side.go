//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// side is what Dispatch compares: ojs-pg, a baseline, or ojs-pg without a database. The sides take
// turns.
type side struct {
	server    *server // nil if it needs none
	workers   []worker
	producers []producer
	loader    *loader
	backlog   []int64 // jobs by tenant; without order only their sum is right
	rate      float64 // jobs/s seen so far, to know how much to load

	rates, live, walPerJob []float64
	efforts                []effort
	fetches                times
	short                  int64
	stretches              []stretch
	order                  string // statement that reads its sequence; empty: it is not judged
}

// total returns the number of jobs in the backlog.
func (s *side) total() int64 {
	var n int64
	for _, jobs := range s.backlog {
		n += jobs
	}
	return n
}

func (s *side) close() error {
	for _, w := range s.workers {
		w.close()
	}
	for _, p := range s.producers {
		p.close()
	}
	if s.loader != nil {
		s.loader.close()
	}
	if s.server != nil {
		return s.server.stop()
	}
	return nil
}

// count adds the figures of a slice to those of the side.
func (s *side) count(got *spell) {
	s.rates = append(s.rates, got.rate())
	s.live = append(s.live, float64(got.added)/got.elapsed.Seconds())
	s.walPerJob = append(s.walPerJob, float64(got.wal)/float64(got.jobs))
	s.efforts = append(s.efforts, got.effort)
	s.fetches = append(s.fetches, got.fetches...)
	s.short += got.short
}

// slice lets the workers of a side work for some time, and updates its backlog.
func (r *dispatching) slice(ctx context.Context, s *side, length time.Duration) (*spell, error) {
	from, mark, err := r.d.wal(ctx)
	if err != nil {
		return nil, err
	}
	stopHogs, err := r.env.hogs(ctx, r.hogs)
	if err != nil {
		return nil, err
	}
	defer stopHogs()
	got, arrived, err := r.drive(ctx, s, length)
	stopHogs()
	if err != nil {
		return nil, err
	}
	to, _, err := r.d.wal(ctx)
	if err != nil {
		return nil, err
	}
	got.wal = to - from
	s.rate = max(s.rate, got.rate())
	for tenant, jobs := range arrived {
		s.backlog[min(tenant, len(s.backlog)-1)] += jobs
	}
	if s.order == "" {
		s.backlog[0] -= got.jobs
		return got, nil
	}
	now := &s.stretches[len(s.stretches)-1]
	for tenant, jobs := range arrived {
		now.arrived[tenant] += jobs
	}
	now.responses = len(got.responses)
	if now.sequence, err = r.d.sequence(ctx, s.order, mark, r.people.number, got.responses); err != nil {
		return nil, err
	}
	got.responses = nil
	for _, j := range now.sequence {
		s.backlog[j.tenant]--
	}
	return got, nil
}

// drive runs the measured part of a slice: workers, producers, and the clock of our server. arrived is
// the number of jobs that producers added, by tenant.
func (r *dispatching) drive(ctx context.Context, s *side, length time.Duration) (got *spell, arrived []int64, err error) {
	rest := func() error { return nil }
	if s == r.ours {
		if rest, err = s.server.clock(ctx); err != nil {
			return nil, nil, err
		}
	}
	stock := &stock{loaded: s.total(), enough: s.enough(r.people, r.opts)}
	before := r.env.effort(s.server)
	stop := r.enqueueBeside(ctx, s, stock)
	got, err = drive(ctx, s.workers, r.opts.Batch, stock, length, s.order != "")
	arrived, stopped := stop()
	if err = errors.Join(err, stopped); err == nil {
		got.effort = r.env.effort(s.server).since(before, got.jobs)
		got.added = stock.added.Load()
	}
	return got, arrived, errors.Join(err, rest())
}

// enough returns the number of jobs that may be taken in a slice of a side that is judged and has
// producers, so that no tenant runs out of jobs: the judgement counts jobs that came during a slice as
// there from its beginning. Workers may exceed it by the jobs that each has asked for. 0: no bound.
func (s *side) enough(people population, opts DispatchOptions) int64 {
	if s.order == "" || len(s.producers) == 0 {
		return 0
	}
	enough := math.Inf(1)
	for i, share := range people.shares {
		enough = min(enough, float64(s.backlog[i])/share)
	}
	return int64(enough) - int64(opts.Workers*opts.Batch)
}

// enqueueBeside starts producers, which enqueue a job for each one that workers take, until stop is
// called. So both sides enqueue at the rate at which they dispatch, and no backlog grows by more than
// one call of each producer. If producers are slower than workers, it shrinks.
func (r *dispatching) enqueueBeside(ctx context.Context, s *side, stock *stock) (stop func() (arrived []int64, err error)) {
	var (
		over    atomic.Bool
		running sync.WaitGroup
		mu      sync.Mutex
		failed  error
	)
	arrived := make([]int64, len(r.people.names))
	for i, p := range s.producers {
		running.Go(func() {
			batch := make([]string, livePerCall)
			for n := i; !over.Load() && ctx.Err() == nil; n += len(s.producers) {
				if stock.added.Load() >= stock.taken.Load() {
					time.Sleep(time.Millisecond)
					continue
				}
				for k := range batch {
					batch[k] = r.args[(n+k)%len(r.args)]
				}
				tenant := r.people.next(n)
				err := p.enqueue(ctx, tenant, batch)
				mu.Lock()
				if err != nil {
					failed = errors.Join(failed, fmt.Errorf("enqueue: %w", err))
				} else {
					arrived[r.people.number[tenant]] += int64(len(batch))
				}
				mu.Unlock()
				if err != nil {
					return
				}
				stock.added.Add(int64(len(batch)))
			}
		})
	}
	return func() ([]int64, error) {
		over.Store(true)
		running.Wait()
		return arrived, failed
	}
}

// top fills the backlog of a side up to one and a half times what a slice has taken so far. Tenants
// whose backlogs must not run dry are filled up to their shares; small ones of Zipf's law may run dry.
func (s *side) top(ctx context.Context, env *Env, people population, expected float64, load Load) error {
	want := expected*1.5 + float64(4*load.Workers*load.Batch)
	jobs := make([]int64, len(people.names))
	need := int64(want) - s.total()
	var loading int64
	for i, share := range people.shares {
		n := int64(want*share) + 1
		if s.order != "" {
			n += int64(2 * load.Workers * load.Batch)
			if len(people.names) > 10 {
				n = int64(want*share) + 1
			}
			jobs[i] = max(0, n-s.backlog[i])
		} else if need > 0 {
			jobs[i] = int64(float64(need)*share) + 1
		}
		loading += jobs[i]
	}
	if err := s.loader.load(ctx, people.names, jobs, func(done int64) { env.progress("loading jobs", done, loading) }); err != nil {
		return err
	}
	if s.order == "" {
		s.backlog[0] += loading
		return nil
	}
	for i, n := range jobs {
		s.backlog[i] += n
	}
	s.stretches = append(s.stretches, stretch{arrived: jobs})
	return nil
}

// wal returns the bytes of log that the server has written, and a transaction that is later than all
// transactions before.
func (d *database) wal(ctx context.Context) (bytes int64, mark string, err error) {
	err = d.control.QueryRow(ctx, `
		select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, pg_current_xact_id()::text`).Scan(&bytes, &mark)
	if err != nil {
		return 0, "", fmt.Errorf("read the position of the log: %w", err)
	}
	return bytes, mark, nil
}

// compare fails if the database has handed out another number of jobs than were counted here.
func (d *database) compare(ctx context.Context, ours, base *side) error {
	var available, held, baseAvailable, baseHeld int64
	err := d.control.QueryRow(ctx, `
		with jobs as (select true as ours, state from ojs.job where tenant_id not like 'full%' union all
			select false, state from ojs_bench.job)
		select count(*) filter (where ours and state = 'available'),
			count(*) filter (where ours and state not in ('available', 'completed')),
			count(*) filter (where not ours and state = 'available'),
			count(*) filter (where not ours and state not in ('available', 'completed'))
		from jobs`).
		Scan(&available, &held, &baseAvailable, &baseHeld)
	if err != nil {
		return fmt.Errorf("count the jobs: %w", err)
	}
	if held != 0 || baseHeld != 0 {
		return fmt.Errorf("%d jobs, and %d of the baseline, were handed out and not acknowledged", held, baseHeld)
	}
	if available != ours.total() || baseAvailable != base.total() {
		return errors.New("the jobs that are left are not those that were not dispatched")
	}
	return nil
}
