//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/jobrow"
)

// job holds what a worker keeps of a job.
type job struct {
	id, lease [16]byte
	tenant    int32
	args      []byte
}

// worker fetches and acknowledges jobs.
type worker interface {
	fetch(ctx context.Context, name string, count int) ([]job, error)
	ack(ctx context.Context, jobs []job) error
	close()
}

// sqlWorker is a client that uses no code of ours: a connection and two statements.
type sqlWorker struct {
	conn    *pgx.Conn
	tenants map[string]int32
}

// sqlWorker returns a worker that speaks SQL, with a connection of its own.
func (d *database) sqlWorker(ctx context.Context, tenants map[string]int32) (worker, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlWorker{conn: conn, tenants: tenants}, nil
}

func (w *sqlWorker) fetch(ctx context.Context, name string, count int) ([]job, error) {
	return queryJobs(ctx, w.conn, count, w.tenants, "select "+jobrow.Columns+" from ojs.fetch(array[$1], $2, $3)", queue, count, name)
}

func (w *sqlWorker) ack(ctx context.Context, jobs []job) error {
	if len(jobs) == 1 {
		var state string
		id, lease := pgtype.UUID{Bytes: jobs[0].id, Valid: true}, pgtype.UUID{Bytes: jobs[0].lease, Valid: true}
		return w.conn.QueryRow(ctx, "select state from ojs.ack($1, $2)", id, lease).Scan(&state)
	}
	var done int
	ids, leases := make([]pgtype.UUID, len(jobs)), make([]pgtype.UUID, len(jobs))
	for i := range jobs {
		ids[i], leases[i] = pgtype.UUID{Bytes: jobs[i].id, Valid: true}, pgtype.UUID{Bytes: jobs[i].lease, Valid: true}
	}
	err := w.conn.QueryRow(ctx, "select count(*) from ojs.ack_many($1, $2)", ids, leases).Scan(&done)
	if err == nil && done != len(jobs) {
		err = fmt.Errorf("acknowledged %d of %d jobs", done, len(jobs))
	}
	return err
}

func (w *sqlWorker) close() { _ = w.conn.Close(context.Background()) }

// appendJSON appends the fields that an acknowledgement needs. key is the receiver's name for the id.
func (j *job) appendJSON(b []byte, key string) []byte {
	b = append(append(append(b, `{"`...), key...), `":"`...)
	b = append(b, uuid.UUID(j.id).String()...)
	b = append(b, `","lease":"`...)
	b = append(b, uuid.UUID(j.lease).String()...)
	return append(b, `"}`...)
}

// spell holds what workers did in one slice.
type spell struct {
	jobs      int64
	elapsed   time.Duration
	fetches   times
	responses [][][16]byte // the ids of the jobs of each
	short     int64        // responses with fewer jobs than asked though there were more
	dry       bool         // the backlog came to its end
	wal       int64
	added     int64  // jobs enqueued meanwhile
	effort    effort // per job
}

// stock counts the jobs that wait while workers take them, as far as this process knows. Workers and
// producers share it.
type stock struct {
	loaded       int64
	enough       int64 // so many may be taken before a tenant might have to wait for its producer; 0: no bound
	added, taken atomic.Int64
}

// drive lets workers fetch and acknowledge until the time is over or the backlog is used up. judged
// says that the ids of each response are kept.
func drive(ctx context.Context, workers []worker, count int, stock *stock, length time.Duration, judged bool) (*spell, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	total := &spell{}
	var (
		dry     atomic.Bool
		running sync.WaitGroup
		mu      sync.Mutex
	)
	begun := time.Now()
	end := begun.Add(length)
	// Jobs that other workers are about to take are not left for this one.
	few := int64(count * len(workers))
	for i, w := range workers {
		running.Go(func() {
			own := &spell{}
			name := "w" + strconv.Itoa(i)
			for !dry.Load() && ctx.Err() == nil && time.Now().Before(end) {
				got, err := own.turn(ctx, w, name, count, judged)
				if err != nil {
					cancel(err)
					break
				}
				all := stock.taken.Add(int64(got))
				if stock.enough > 0 && all >= stock.enough {
					dry.Store(true)
				}
				if got < count {
					if all+few >= stock.loaded+stock.added.Load() {
						dry.Store(true)
					} else {
						own.short++
					}
					// The other workers have all jobs locked. Asking again at once would take processor time from them.
					if got == 0 {
						time.Sleep(time.Millisecond)
					}
				}
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

// turn fetches once, acknowledges the jobs, and returns their number.
func (s *spell) turn(ctx context.Context, w worker, name string, count int, judged bool) (int, error) {
	before := time.Now()
	jobs, err := w.fetch(ctx, name, count)
	if err != nil {
		return 0, fmt.Errorf("fetch: %w", err)
	}
	s.fetches = append(s.fetches, time.Since(before))
	if len(jobs) == 0 {
		return 0, nil
	}
	if judged {
		ids := make([][16]byte, len(jobs))
		for k := range jobs {
			ids[k] = jobs[k].id
		}
		s.responses = append(s.responses, ids)
	}
	if err := w.ack(ctx, jobs); err != nil {
		return 0, fmt.Errorf("acknowledge: %w", err)
	}
	s.jobs += int64(len(jobs))
	return len(jobs), nil
}

func (s *spell) rate() float64 { return float64(s.jobs) / s.elapsed.Seconds() }
