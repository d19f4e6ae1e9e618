package sched

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// newJob is the flat object of a job to be, with its tenant.
type newJob struct{ flat []byte }

// Enqueue makes one job, in one transaction with other callers' jobs. job is an object as ojs.enqueue_many takes it, without a
// tenant; tenant: whose job it is, nil: meta.tenant_id's or the default tenant's. The error is a *pg.Error.
//
// A job whose id the client chose may have to wait for another transaction with the same id, so it goes only with
// jobs of the same tenant, does not wait long, and tries again.
func (d *Dispatcher) Enqueue(ctx context.Context, job []byte, tenant *string) (sqlcgen.OjsJob, error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Query)
	defer cancel()
	name := ""
	flat := job
	if tenant != nil {
		name = *tenant
		flat = append(make([]byte, 0, len(job)+len(name)+20), `{"tenant":`...)
		flat = quote(flat, name)
		if rest := bytes.TrimLeft(job[1:], " \t\r\n"); len(rest) > 0 && rest[0] != '}' {
			flat = append(flat, ',')
		}
		flat = append(flat, job[1:]...)
	}
	combine := &d.enqueues
	if namesID(job) {
		combine = &d.alone
	}
	done, err := d.patiently(ctx, 1, func([]int) ([]Settled, []error) {
		return combine.do(ctx, name, []newJob{{flat}}, func(j *newJob) int { return len(j.flat) })
	})
	if err != nil {
		return sqlcgen.OjsJob{}, err
	}
	var known *pg.Error
	if errors.As(done[0].Err, &known) {
		// Where the job stood among others' is nobody's business.
		if n, ok := known.Details["index"].(float64); ok {
			delete(known.Details, "index")
			if rest, ok := strings.CutPrefix(known.Message, fmt.Sprintf("jobs[%d]", int(n))); ok {
				known.Message = strings.TrimLeft(rest, ": ")
			}
		}
	}
	return done[0].Job, done[0].Err
}

// EnqueueMany makes all of a batch, or none, in a transaction of its own. jobs is a JSON array of count objects as ojs.enqueue_many takes it. The error is the
// database's.
func (d *Dispatcher) EnqueueMany(ctx context.Context, jobs []byte, count int, tenant *string) ([]sqlcgen.OjsJob, error) {
	d.statements.Add(1)
	if d.opts.Canned != nil {
		return d.opts.Canned(count), nil
	}
	return sqlcgen.New(d.db.Pool()).EnqueueMany(ctx, sqlcgen.EnqueueManyParams{Jobs: jobs, Tenant: tenant})
}

// namesID reports whether the object has a member id.
func namesID(job []byte) bool {
	if !bytes.Contains(job, []byte(`"id"`)) {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(job), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return true
	}
	for dec.PeekKind() == '"' {
		key, err := dec.ReadToken()
		if err != nil || key.String() == "id" {
			return true
		}
		if dec.SkipValue() != nil {
			return true
		}
	}
	return false
}

const enqueueEach = "select " + resultColumns + " from ojs.enqueue_each($1)"

func (d *Dispatcher) enqueueNow(ctx context.Context, items []newJob) ([]Settled, error) {
	d.statements.Add(1)
	if d.opts.Canned != nil {
		return d.canned(len(items)), nil
	}
	rows, err := d.db.Pool().Query(ctx, enqueueEach, arrayOf(items))
	if err != nil {
		return nil, err
	}
	results, err := readResults(rows, len(items))
	if err != nil {
		return nil, err
	}
	return d.settled(results), nil
}

// enqueueAlone waits a moment for a transaction that may be about to commit the same id.
func (d *Dispatcher) enqueueAlone(ctx context.Context, items []newJob) ([]Settled, error) {
	d.statements.Add(1)
	batch := &pgx.Batch{}
	batch.Queue("select set_config('lock_timeout', '50ms', true)")
	batch.Queue(enqueueEach, arrayOf(items))
	sent := d.db.Pool().SendBatch(ctx, batch)
	_, err := sent.Exec()
	var results []result
	if err == nil {
		var rows pgx.Rows
		if rows, err = sent.Query(); err == nil {
			results, err = readResults(rows, len(items))
		}
	}
	if closed := sent.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return nil, err
	}
	return d.settled(results), nil
}

func (d *Dispatcher) settled(results []result) []Settled {
	out := make([]Settled, len(results))
	for i := range results {
		out[i].Job = results[i].job
		if results[i].err != nil {
			out[i].Err = d.db.Err(results[i].err)
		}
	}
	return out
}

func (d *Dispatcher) canned(n int) []Settled {
	out := make([]Settled, n)
	for i, j := range d.opts.Canned(n) {
		out[i].Job = j
	}
	return out
}

func arrayOf(items []newJob) []byte {
	size := 2
	for i := range items {
		size += len(items[i].flat) + 1
	}
	b := append(make([]byte, 0, size), '[')
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, items[i].flat...)
	}
	return append(b, ']')
}

func isLocked(err error) bool {
	var known *pg.Error
	return errors.As(err, &known) && known.SQLState == lockedState
}
