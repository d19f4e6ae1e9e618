package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/batch"
	"github.com/ojs-pg/ojs-pg/internal/jobrow"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Enqueue makes one job, in a statement that it shares with jobs of other callers, and returns it as
// it is stored. The error is a *pg.Error, or context.Canceled if the caller leaves; the job may be
// stored all the same then. The package comment says what is tried again, and when.
//
// A job with an id of the client's own may have to wait for another transaction with the same id.
// So it shares a statement only with jobs of its tenant.
func (d *Dispatcher) Enqueue(ctx context.Context, job *NewJob) (sqlcgen.OjsJob, error) {
	began := time.Now()
	// The first try goes on when the caller leaves: its statement may be under way, and the answer tells
	// whether the job is stored. Later tries do not begin then.
	trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.Query)
	defer cancel()
	batcher, slower := d.enqueues, d.isolatedEnqueues
	if job.ID != nil { // the id may be locked: not in a statement with jobs of other tenants
		batcher, slower = slower[0], slower[1:]
	}
	made, _ := d.enqueueBy(trying, batcher, job)
	if busy(made.Err) {
		made = d.retryBusy(ctx, trying, batcher, job, made)
	}
	if pg.Locked(made.Err) {
		waiting, cancel := context.WithDeadline(ctx, began.Add(d.opts.Query))
		defer cancel()
		made = d.retryLocked(waiting, append([]*batch.Batcher[*NewJob, Settled]{batcher}, slower...), job, made)
	}
	return made.Job, made.Err
}

// retryBusy enqueues a job again that a limit refused only because other transactions hold what is
// left of it and may give it back. It ends when the job is stored or refused for another reason,
// after busyTries tries, or when the caller leaves (ctx). trying bounds the tries themselves. It
// returns the last outcome.
func (d *Dispatcher) retryBusy(ctx, trying context.Context, batcher *batch.Batcher[*NewJob, Settled], job *NewJob, made Settled) Settled {
	for pause := busyPause; busy(made.Err) && pause < busyPause<<busyTries; pause *= 2 {
		select {
		case <-ctx.Done():
			return made
		case <-time.After(pause):
		}
		if again, sent := d.enqueueBy(trying, batcher, job); sent {
			made = again
		}
	}
	return made
}

// retryLocked repeats the enqueue of a job whose id another transaction has locked, until that
// transaction ends or ctx ends. It returns the last outcome.
//
// The caller has tried batchers[0]. Each further try uses the next batcher; when the last batcher
// is reached, all further tries use it. Later batchers send fewer jobs in a statement. New jobs use
// batchers[0], so they do not wait behind jobs with locked ids.
func (d *Dispatcher) retryLocked(
	ctx context.Context, batchers []*batch.Batcher[*NewJob, Settled], job *NewJob, made Settled,
) Settled {
	tried := true // by the caller; RetryLocked makes its first call without a pause
	pg.RetryLocked(ctx, func() (locked bool) {
		if tried {
			tried = false
			return true
		}
		if len(batchers) > 1 {
			batchers = batchers[1:]
		}
		again, sent := d.enqueueBy(ctx, batchers[0], job)
		if sent { // else made stays the error of the try before, which tells more than "not sent"
			made = again
		}
		return sent && pg.Locked(made.Err)
	})
	return made
}

// A job that a busy limit refused is tried again after busyPause, and then after pauses that double,
// busyTries times in all: after 10, 20, 40, 80 and 160 ms.
const (
	busyPause = 10 * time.Millisecond
	busyTries = 5
)

// busy reports whether a limit refused a job only because other transactions, which may roll back,
// hold what is left of it.
func busy(err error) bool {
	var known *pg.Error
	return errors.As(err, &known) && known.Busy()
}

// enqueueBy enqueues one job through a batcher, in the queue of its tenant there. sent is false if
// ctx ended before the statement was sent: the job is certainly not stored then.
func (d *Dispatcher) enqueueBy(ctx context.Context, by *batch.Batcher[*NewJob, Settled], job *NewJob) (made Settled, sent bool) {
	name := ""
	if job.Tenant != nil {
		name = *job.Tenant
	}
	out, errs := by.Do(ctx, name, []*NewJob{job}, func(j **NewJob) int { return (*j).size() })
	if errs[0] != nil {
		out[0].Err = d.db.Err(errs[0])
	}
	return out[0], !errors.Is(errs[0], batch.ErrNotSent)
}

// EnqueueMany enqueues all jobs of a batch or none, in a transaction of its own. tenant is the
// tenant that the call acts for. The error is the database's.
func (d *Dispatcher) EnqueueMany(ctx context.Context, jobs []*NewJob, tenant *string) (made []sqlcgen.OjsJob, err error) {
	err = d.db.WithLockRetry(ctx, tenant, d.opts.Query, func(ctx context.Context, db pg.Brief) error {
		made = make([]sqlcgen.OjsJob, len(jobs))
		return d.send.enqueue(ctx, db, jobs, tenant, false, func(n int, job sqlcgen.OjsJob, _ error) { made[n] = job })
	})
	return made, err
}

// EnqueueEach enqueues the valid jobs of a batch, in a transaction of its own, and returns the
// outcome of each job. If it returns an error, no job is stored.
func (d *Dispatcher) EnqueueEach(ctx context.Context, jobs []*NewJob, tenant *string) (out []Settled, err error) {
	err = d.db.WithLockRetry(ctx, tenant, d.opts.Query, func(ctx context.Context, db pg.Brief) error {
		out = make([]Settled, len(jobs))
		return d.send.enqueue(ctx, db, jobs, tenant, true, func(n int, job sqlcgen.OjsJob, err error) {
			if out[n].Job = job; err != nil {
				out[n].Err = d.db.Err(err)
			}
		})
	})
	return out, err
}

// enqueueOnce returns whole jobs: a replayed answer is that of an earlier request, so the jobs of
// this one are not what is stored.
var enqueueOnce = "select replayed, " + jobrow.Columns + " from ojs.enqueue_once($1, $2, $3, $4)"

// Key identifies a request that a client repeats: a request with the same Name and tenant is a
// repetition if its Fingerprint is the same too, and is refused otherwise.
type Key struct {
	Name        string
	Fingerprint []byte
}

// EnqueueOnce is EnqueueMany for a request with an idempotency key. If a request with that key has
// been stored before, it stores nothing, and returns the jobs of that request and replayed = true.
// It fails if that request had another fingerprint.
func (d *Dispatcher) EnqueueOnce(
	ctx context.Context, key Key, jobs []*NewJob, tenant *string,
) (made []sqlcgen.OjsJob, replayed bool, err error) {
	array := []byte{'['}
	for i, job := range jobs {
		if i > 0 {
			array = append(array, ',')
		}
		array = job.appendJSON(array)
	}
	array = append(array, ']')
	err = d.db.WithLockRetry(ctx, tenant, d.opts.Query, func(ctx context.Context, db pg.Brief) error {
		made = make([]sqlcgen.OjsJob, 0, len(jobs))
		rows, err := db.Query(ctx, enqueueOnce, key.Name, array, tenant, key.Fingerprint)
		if err != nil {
			return err
		}
		defer rows.Close()
		reader := jobrow.New(rows, 1)
		for rows.Next() {
			made = append(made, sqlcgen.OjsJob{})
			if err := errors.Join(reader.Scan(0, &replayed), reader.Read(&made[len(made)-1])); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return made, replayed, err
}

// enqueueNow enqueues jobs with ids that SQL makes. It needs no bound on waits for locks: no other
// transaction has these ids.
func (d *Dispatcher) enqueueNow(ctx context.Context, items []*NewJob) ([]Settled, error) {
	return d.enqueueIn(ctx, d.db.Pool(), items)
}

// enqueueIsolated enqueues jobs with ids of the clients' own. It waits at most 20 ms (pg.DB.Brief)
// for another transaction that may be about to commit the same id, and then fails as locked.
func (d *Dispatcher) enqueueIsolated(ctx context.Context, items []*NewJob) ([]Settled, error) {
	return d.enqueueIn(ctx, d.db.Brief(), items)
}

// enqueueIn enqueues jobs of several tenants through db, each by itself.
func (d *Dispatcher) enqueueIn(ctx context.Context, db sqlcgen.DBTX, items []*NewJob) ([]Settled, error) {
	out := make([]Settled, len(items))
	err := d.send.enqueue(ctx, db, items, nil, true, func(n int, job sqlcgen.OjsJob, err error) {
		out[n].Job = job
		if err != nil {
			out[n].Err = d.db.Err(err)
		}
	})
	return out, err
}
