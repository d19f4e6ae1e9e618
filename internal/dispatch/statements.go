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

// statements are the calls to the database, each in one transaction. Statements that return jobs
// stand here instead of in db/queries, because their rows are read by hand (jobrow.Rows).
type statements struct {
	fetch   func(ctx context.Context, parts []*part) error // sets part.fetched
	ack     func(ctx context.Context, items []ack, whole bool) ([]*sqlcgen.OjsJob, error)
	settle  func(ctx context.Context, items []Settlement, whole bool) ([]Settled, error)
	enqueue func(ctx context.Context, db sqlcgen.DBTX, items []*NewJob, tenant *string, each bool, made madeJob) error
	release func(ctx context.Context, ids, leases []string) (locked []string, err error)
}

// madeJob receives the outcome of the nth job that was sent.
type madeJob = func(n int, job sqlcgen.OjsJob, err error)

var fetchMany = "select request, pool, " + jobrow.Columns +
	" from ojs.fetch_many($1, $2, $3, $4, $5, p_strategy => $6, p_weights => $7, p_pool => $8)"

// fetchMany decides for several groups in one transaction. No job is handed out before it has committed.
func (d *Dispatcher) fetchMany(ctx context.Context, parts []*part) error {
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

// present returns nil for an empty text.
func present(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// Columns of fetchMany that say of what kind a row is.
const firstColumn = 2 // of the job

var (
	requestColumn = 0
	poolColumn    = 1
	attemptColumn = firstColumn + jobrow.Column("attempt")
	workerColumn  = firstColumn + jobrow.Column("worker_id")
	idColumn      = firstColumn + jobrow.Column("id")
	metaColumn    = firstColumn + jobrow.Column("meta")
)

// read reads the rows of ojs.fetch_many to their end. That is the end of the transaction unless the
// rows belong to a batch.
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
		// A worker must get no job that is leased to another one.
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

// readNoJob reads a row that says why there is no job.
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
// concurrency.
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

// poolName asks for the name of the pool that a job was handed out for.
func (d *Dispatcher) poolName(id int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.opts.Query)
	defer cancel()
	return sqlcgen.New(d.db.Pool()).PoolName(ctx, int32(id))
}

func (d *Dispatcher) releaseMany(ctx context.Context, ids, leases []string) (locked []string, err error) {
	return sqlcgen.New(d.db.Pool()).ReleaseMany(ctx, sqlcgen.ReleaseManyParams{Ids: ids, Leases: leases})
}

const ackMany = "select n, finished_at from ojs.ack_many($1, $2, $3, $4, $5)"

// Not (job).*, which a migration may make wider.
var ackManyJobs = "select n, (job)." + strings.ReplaceAll(jobrow.Columns, ", ", ", (job).") +
	" from ojs.ack_many($1, $2, $3, $4, $5, true)"

// ackMany acknowledges what ojs.ack_many can, which is most of what comes, and returns nil for the rest.
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

// readAcked reads, for each acknowledged job, its place in the list (from 1) and the columns that
// the rows hold.
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

func checkPlace(n, items int) error {
	if n < 1 || n > items {
		return fmt.Errorf("a result for element %d of %d", n, items)
	}
	return nil
}

var settle = "select " + outcomeColumns + ", " + jobrow.Columns + " from ojs.settle($1, $2)"

// settleMany ends attempts with ojs.settle, which says what is wrong with those that it cannot end.
func (d *Dispatcher) settleMany(ctx context.Context, items []Settlement, whole bool) ([]Settled, error) {
	rows, err := d.db.Pool().Query(ctx, settle, settlements(items), whole)
	if err != nil {
		return nil, err
	}
	return d.readSettled(rows, len(items))
}

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

// readOutcomes reads one row for each element that was sent. It calls each with the element's index
// and its refusal, or with a job to read.
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

// readRefusal reads the columns sqlstate, message and detail.
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
