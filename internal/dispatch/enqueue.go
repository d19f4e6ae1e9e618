package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// newJob is the flat object of a job to be, with its tenant.
type newJob struct{ flat []byte }

// Enqueue makes one job, in one transaction with other callers' jobs. job is an object as ojs.enqueue_many takes it, without a
// tenant; tenant: whose job it is, nil: meta.tenant_id's or the default tenant's. The error is a *pg.Error.
//
// A job whose id the client chose may have to wait for another transaction with the same id, so it goes only with
// jobs of the same tenant, does not wait long, and tries again until ctx ends.
func (d *Dispatcher) Enqueue(ctx context.Context, job []byte, tenant *string) (sqlcgen.OjsJob, error) {
	waiting, cancel := context.WithTimeout(ctx, d.opts.Query)
	defer cancel()
	// What has come is tried, whether or not its caller stays for the answer; only again and again it is not.
	trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.Query)
	defer cancel()
	name := ""
	flat := job
	if tenant != nil {
		name = *tenant
		flat = append(make([]byte, 0, len(job)+len(name)+20), `{"tenant":`...)
		flat = AppendString(flat, name)
		if rest := bytes.TrimLeft(job[1:], " \t\r\n"); len(rest) > 0 && rest[0] != '}' {
			flat = append(flat, ',')
		}
		flat = append(flat, job[1:]...)
	}
	combine, slower := d.enqueues, d.isolated
	if namesID(job) {
		combine, slower = slower[0], slower[1:]
	}
	var made Settled
	pg.RetryLocked(waiting, func() (locked bool) {
		out, errs := combine.Do(trying, name, []newJob{{flat}}, func(j *newJob) int { return len(j.flat) })
		if errs[0] != nil {
			out[0].Err = d.db.Err(errs[0])
			if pg.Locked(made.Err) && errors.Is(errs[0], pg.ErrNotSent) {
				return false
			}
		}
		made, trying = out[0], waiting
		if len(slower) > 0 {
			combine, slower = slower[0], slower[1:]
		}
		return pg.Locked(made.Err)
	})
	var known *pg.Error
	if errors.As(made.Err, &known) {
		// Where the job stood among others' is nobody's business.
		if n, ok := known.Details["index"].(float64); ok {
			delete(known.Details, "index")
			if rest, ok := strings.CutPrefix(known.Message, fmt.Sprintf("jobs[%d]", int(n))); ok {
				known.Message = strings.TrimLeft(rest, ": ")
			}
		}
	}
	return made.Job, made.Err
}

// EnqueueMany makes all of a batch, or none, in a transaction of its own. jobs is a JSON array of count objects as ojs.enqueue_many takes it. The error is the
// database's.
func (d *Dispatcher) EnqueueMany(ctx context.Context, jobs []byte, count int, tenant *string) (made []sqlcgen.OjsJob, err error) {
	if d.opts.Canned != nil {
		d.sent.Add(1)
		return d.opts.Canned(count), nil
	}
	flats, err := objectsOf(jobs, count)
	if err != nil {
		return nil, err
	}
	columns, err := columnsOf(flats)
	if err != nil {
		return nil, err
	}
	err = d.db.WithLockRetry(ctx, tenant, d.opts.Query, func(ctx context.Context, db pg.Brief) error {
		d.sent.Add(1)
		made = make([]sqlcgen.OjsJob, count)
		return columns.enqueue(ctx, db, tenant, false, func(n int, job sqlcgen.OjsJob, _ error) { made[n] = job })
	})
	return made, err
}

const enqueueOnce = "select replayed, " + pg.JobColumns + " from ojs.enqueue_once($1, $2, $3, $4)"

// Key makes requests that are repeated known again: the same Name and tenant, and the same Fingerprint, else the request is refused.
type Key struct {
	Name        string
	Fingerprint []byte
}

// EnqueueOnce is EnqueueMany, unless a request with that key was answered before: then it returns what that was answered, and replayed.
func (d *Dispatcher) EnqueueOnce(ctx context.Context, key Key, jobs []byte, count int, tenant *string) (made []sqlcgen.OjsJob, replayed bool, err error) {
	err = d.db.WithLockRetry(ctx, tenant, d.opts.Query, func(ctx context.Context, db pg.Brief) error {
		d.sent.Add(1)
		made = make([]sqlcgen.OjsJob, 0, count)
		rows, err := db.Query(ctx, enqueueOnce, key.Name, jobs, tenant, key.Fingerprint)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			made = append(made, sqlcgen.OjsJob{})
			if err := rows.Scan(append([]any{&replayed}, pg.JobFields(&made[len(made)-1])...)...); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return made, replayed, err
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

// AppendString writes a JSON string and escapes only what JSON demands; invalid UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] <= '~' && s[i] != '"' && s[i] != '\\'
	}
	if plain {
		b = append(b, '"')
		b = append(b, s...)
		return append(b, '"')
	}
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func (d *Dispatcher) enqueueNow(ctx context.Context, items []newJob) ([]Settled, error) {
	return d.enqueueIn(ctx, d.db.Pool(), items)
}

// enqueueAlone does not wait long for a transaction that may be about to commit the same id.
func (d *Dispatcher) enqueueAlone(ctx context.Context, items []newJob) ([]Settled, error) {
	return d.enqueueIn(ctx, d.db.Brief(), items)
}

func (d *Dispatcher) enqueueIn(ctx context.Context, db sqlcgen.DBTX, items []newJob) ([]Settled, error) {
	d.sent.Add(1)
	if d.opts.Canned != nil {
		return d.canned(len(items)), nil
	}
	flats := make([][]byte, len(items))
	for i := range items {
		flats[i] = items[i].flat
	}
	columns, err := columnsOf(flats)
	if err != nil {
		return nil, err
	}
	out := make([]Settled, len(items))
	err = columns.enqueue(ctx, db, nil, true, func(n int, job sqlcgen.OjsJob, err error) {
		out[n].Job = job
		if err != nil {
			out[n].Err = d.db.Err(err)
		}
	})
	return out, err
}

func (d *Dispatcher) canned(n int) []Settled {
	out := make([]Settled, n)
	for i, j := range d.opts.Canned(n) {
		out[i].Job = j
	}
	return out
}
