package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/jobrow"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// statements holds the calls to the database, each in one transaction. They are fields so that
// metrics.measured can wrap them and a benchmark can replace them (Can). No call is made while
// Dispatcher.mu is held. Statements that return jobs stand in this file and not in db/queries,
// because their rows are read by hand (jobrow.Rows).
type statements struct {
	fetch   func(ctx context.Context, parts []*part) error // sets part.fetched
	ack     func(ctx context.Context, items []ack, whole bool) ([]*sqlcgen.OjsJob, error)
	settle  func(ctx context.Context, items []Settlement, whole bool) ([]Settled, error)
	enqueue func(ctx context.Context, db sqlcgen.DBTX, items []*NewJob, tenant *string, each bool, made madeJob) error
	release func(ctx context.Context, ids, leases []string) (locked []string, err error)
}

// madeJob receives the stored job, or the error, of the nth job that was sent, counted from 0.
type madeJob = func(n int, job sqlcgen.OjsJob, err error)

var fetchMany = "select request, pool, " + jobrow.Columns +
	" from ojs.fetch_many($1, $2, $3, $4, $5, p_strategy => $6, p_weights => $7, p_pool => $8)"

// fetchMany calls ojs.fetch_many for each part, all in one transaction, and sets part.fetched. It
// returns after the commit. Until then no job may be handed out: PostgreSQL could still undo the
// lease, and give the job to another worker. If it returns an error, no job is leased.
func (d *Dispatcher) fetchMany(ctx context.Context, parts []*part) error {
	// The usual case by itself: a statement alone needs no batch.
	if len(parts) == 1 {
		rows, err := d.db.Pool().Query(ctx, fetchMany, parts[0].arguments()...)
		if err != nil {
			return err
		}
		return parts[0].read(rows)
	}
	batch := &pgx.Batch{}
	for _, p := range parts {
		batch.Queue(fetchMany, p.arguments()...)
	}
	results := d.db.Pool().SendBatch(ctx, batch)
	defer func() { _ = results.Close() }() // a panic while a row is read would keep the connection
	for _, p := range parts {
		rows, err := results.Query()
		if err == nil {
			err = p.read(rows)
		}
		if err != nil {
			return err
		}
	}
	return results.Close()
}

// arguments returns the parameters of ojs.fetch_many: one array element for each request of the
// part, in their order, and what is common to the group.
func (p *part) arguments() []any {
	n := len(p.requests)
	counts, timeouts := make([]int32, n), make([]int32, n)
	workers := make([]string, n)
	for i, r := range p.requests {
		counts[i], workers[i], timeouts[i] = int32(r.Count), r.WorkerID, int32(r.VisibilityTimeoutMs)
	}
	return []any{
		p.g.queues, counts, workers, timeouts, p.g.tenant, present(p.g.key.strategy), present(p.g.key.weights),
		present(p.g.key.pool),
	}
}

// present returns a pointer to text, or nil if it is empty: SQL takes null for "not given".
func present(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// firstColumn is the index of the job's first column in a row of fetchMany.
const firstColumn = 2

// Indexes of columns in a row of fetchMany. A row without an id has no job, and the other columns
// tell what it means (readNoJob).
var (
	requestColumn = 0
	poolColumn    = 1
	attemptColumn = firstColumn + jobrow.Column("attempt")
	workerColumn  = firstColumn + jobrow.Column("worker_id")
	idColumn      = firstColumn + jobrow.Column("id")
	metaColumn    = firstColumn + jobrow.Column("meta")
)

// read reads the rows of one call of ojs.fetch_many to their end, which is the end of the
// transaction unless the rows belong to a batch. It fails if a row cannot be read, or if the jobs of
// a request are not next to each other.
func (p *part) read(rows pgx.Rows) error {
	defer rows.Close()
	p.fetched = fetched{runs: make([]run, len(p.requests))}
	reader := jobrow.New(rows, firstColumn)
	last := 0
	for rows.Next() {
		if reader.Null(idColumn) {
			if err := p.readNoJob(rows, reader); err != nil {
				return err
			}
			continue
		}
		if p.jobs == nil {
			p.jobs = make([]sqlcgen.OjsJob, 0, min(p.asked, 64))
		}
		p.jobs = append(p.jobs, sqlcgen.OjsJob{})
		request, err := reader.Int(requestColumn)
		if err == nil && p.pool == 0 && !reader.Null(poolColumn) {
			p.pool, err = reader.Int(poolColumn)
		}
		if err == nil {
			err = reader.Read(&p.jobs[len(p.jobs)-1])
		}
		// A request gets a range of the jobs. If its jobs were apart, the range would hold a job that is
		// leased to another worker.
		if err == nil && (request < 1 || request > len(p.requests) || request != last && p.runs[request-1].jobs > 0) {
			err = fmt.Errorf("a job for request %d of %d, after one for %d", request, len(p.requests), last)
		}
		if err != nil {
			p.fetched = fetched{}
			return err
		}
		if request != last {
			p.runs[request-1].from = len(p.jobs) - 1
		}
		p.runs[request-1].jobs++
		last = request
	}
	return rows.Err()
}

// readNoJob reads a row without a job. The package comment lists what such rows mean.
func (p *part) readNoJob(rows pgx.Rows, reader *jobrow.Rows) error {
	if reader.Null(workerColumn) {
		p.cut = true
		return nil
	}
	worker := string(rows.RawValues()[workerColumn])
	if !reader.Null(requestColumn) {
		return p.readBound(reader)
	}
	if reader.Null(metaColumn) {
		p.quiet = append(p.quiet, worker)
		return nil
	}
	var to way
	if err := reader.Scan(metaColumn, &to); err != nil {
		return fmt.Errorf("how requests of worker %q are served: %w", worker, err)
	}
	if p.apart == nil {
		p.apart = map[string]way{}
	}
	p.apart[worker] = to
	return nil
}

// readBound reads a row that bounds the jobs of a request, because its worker is near its
// concurrency. The column attempt holds the bound.
func (p *part) readBound(reader *jobrow.Rows) error {
	request, err := reader.Int(requestColumn)
	if err == nil {
		err = checkPlace(request, len(p.requests))
	}
	if err != nil {
		return err
	}
	may, err := reader.Int(attemptColumn)
	if err != nil {
		return err
	}
	p.runs[request-1].short = p.requests[request-1].Count - may
	return nil
}

// releaseMany makes jobs available again and returns the ids of jobs that another transaction has
// locked. Jobs that are no longer held under their lease are skipped.
func (d *Dispatcher) releaseMany(ctx context.Context, ids, leases []string) (locked []string, err error) {
	return sqlcgen.New(d.db.Pool()).ReleaseMany(ctx, sqlcgen.ReleaseManyParams{Ids: ids, Leases: leases})
}

const ackMany = "select n, finished_at from ojs.ack_many($1, $2, $3, $4, $5)"

// ackManyJobs names the columns of the job. With (job).* a migration that adds a column would break
// servers that run already.
var ackManyJobs = "select n, (job)." + strings.ReplaceAll(jobrow.Columns, ", ", ", (job).") +
	" from ojs.ack_many($1, $2, $3, $4, $5, true)"

// ackMany acknowledges jobs with ojs.ack_many, and returns for each item the job, or nil if
// ojs.ack_many did not end the attempt: ojs.settle then ends it or tells what is wrong. whole asks
// for all columns of the jobs; else only ID, State and FinishedAt are set.
func (d *Dispatcher) ackMany(ctx context.Context, items []ack, whole bool) ([]*sqlcgen.OjsJob, error) {
	ids, leases := make([]pgtype.UUID, len(items)), make([]pgtype.UUID, len(items))
	results := make([][]byte, len(items))
	workers, tenants := make([]*string, len(items)), make([]*string, len(items))
	for i, a := range items {
		ids[i], leases[i], results[i], workers[i], tenants[i] = a.id, a.lease, a.Result, a.WorkerID, a.Tenant
	}
	sql := ackMany
	if whole {
		sql = ackManyJobs
	}
	rows, err := d.db.Pool().Query(ctx, sql, ids, leases, results, workers, tenants)
	if err != nil {
		return nil, err
	}
	return readAcked(rows, items)
}

// readAcked reads a row for each acknowledged job: its number in the list of items, from 1, and then
// columns of the job.
func readAcked(rows pgx.Rows, items []ack) ([]*sqlcgen.OjsJob, error) {
	defer rows.Close()
	acked, jobs := make([]*sqlcgen.OjsJob, len(items)), make([]sqlcgen.OjsJob, len(items))
	reader := jobrow.New(rows, 1)
	for rows.Next() {
		n, err := reader.Int(0)
		if err == nil {
			err = checkPlace(n, len(items))
		}
		if err == nil {
			acked[n-1] = &jobs[n-1]
			jobs[n-1].ID, jobs[n-1].State = items[n-1].ID, "completed"
			err = reader.Read(acked[n-1])
		}
		if err != nil {
			return nil, err
		}
	}
	return acked, rows.Err()
}

// checkPlace fails if n is no number of one of items elements, counted from 1. Without the check a
// wrong row would be a panic, with an index out of range.
func checkPlace(n, items int) error {
	if n < 1 || n > items {
		return fmt.Errorf("a result for element %d of %d", n, items)
	}
	return nil
}

var settle = "select " + outcomeColumns + ", " + jobrow.Columns + " from ojs.settle($1, $2)"

// settleMany ends attempts with ojs.settle. It returns for each item the job, or the reason why its
// attempt could not be ended. If it returns an error, no attempt is ended.
func (d *Dispatcher) settleMany(ctx context.Context, items []Settlement, whole bool) ([]Settled, error) {
	rows, err := d.db.Pool().Query(ctx, settle, settlements(items), whole)
	if err != nil {
		return nil, err
	}
	return d.readSettled(rows, len(items))
}

// readSettled reads the rows of ojs.settle.
func (d *Dispatcher) readSettled(rows pgx.Rows, items int) ([]Settled, error) {
	settled := make([]Settled, items)
	err := readOutcomes(rows, items, func(n int, job *jobrow.Rows, refusal error) error {
		if refusal != nil {
			settled[n].Err = d.db.Err(refusal)
			return nil
		}
		return job.Read(&settled[n].Job)
	})
	if err != nil {
		return nil, err
	}
	return settled, nil
}

// outcomeColumns are the four columns before the job in a row of readOutcomes.
const outcomeColumns = "n, sqlstate, message, detail"

// readOutcomes reads one row for each element that was sent. It calls each with the element's index,
// from 0, and either its refusal or the row, of which each may read the job. It fails if each does,
// or if the rows are not as many as the elements: a caller would else get an empty job for its
// answer.
func readOutcomes(rows pgx.Rows, items int, each func(n int, job *jobrow.Rows, refusal error) error) error {
	defer rows.Close()
	reader, seen := jobrow.New(rows, 4), 0
	for rows.Next() {
		seen++
		n, err := reader.Int(0)
		if err == nil {
			err = checkPlace(n+1, items)
		}
		var refusal error
		if err == nil && !reader.Null(1) {
			refusal, err = readRefusal(reader)
		}
		if err == nil {
			err = each(n, reader, refusal)
		}
		if err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if seen != items {
		return fmt.Errorf("%d results for %d elements", seen, items)
	}
	return nil
}

// readRefusal makes an error of the columns sqlstate, message and detail, in the form that
// PostgreSQL's own errors have, so that both are translated in the same way.
func readRefusal(reader *jobrow.Rows) (*pgconn.PgError, error) {
	var message *string
	var detail []byte
	refusal := &pgconn.PgError{Severity: "ERROR"}
	err := errors.Join(reader.Scan(1, &refusal.Code), reader.Scan(2, &message), reader.Scan(3, &detail))
	if message != nil {
		refusal.Message = *message
	}
	refusal.Detail = string(detail)
	return refusal, err
}
