package dispatch

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Settlement ends one attempt: an ACK, or with Error a NACK.
type Settlement struct {
	ID                      string
	Lease, WorkerID, Tenant *string
	Result                  []byte // JSON; ACK
	Error                   []byte // a JSON object; NACK
	Requeue                 bool   // NACK

	jobs bool
}

// Settled is the job as it is now, or why it is not settled.
type Settled struct {
	Job sqlcgen.OjsJob
	Err error // a *pg.Error
}

// Settle ends attempts, each of which succeeds or fails by itself, in one statement with those of other
// callers. jobs: the answer is to hold args, meta, options, extra and result, too.
func (d *Dispatcher) Settle(ctx context.Context, s []Settlement, jobs bool) []Settled {
	if len(s) == 0 {
		return nil
	}
	tenant := ""
	if s[0].Tenant != nil {
		tenant = *s[0].Tenant
	}
	ctx, cancel := context.WithTimeout(ctx, d.opts.Query)
	defer cancel()
	in := make([]Settlement, len(s))
	for i := range s {
		in[i] = s[i]
		in[i].jobs = jobs
	}
	results := make([]Settled, len(in))
	var acks []ack
	var plain, rest []int
	for i := range in {
		if a, ok := plainAck(&in[i]); ok {
			acks, plain = append(acks, a), append(plain, i)
		} else {
			rest = append(rest, i)
		}
	}
	if len(acks) > 0 {
		acked, errs := d.acks.do(ctx, tenant, acks, func(a *ack) int { return sizeOfSettlement(a.Settlement) })
		for i, at := range plain {
			switch {
			case errs[i] != nil:
				results[at].Err = d.db.Err(errs[i])
			case acked[i] == nil:
				rest = append(rest, at)
			default:
				results[at].Job = *acked[i]
			}
		}
	}
	if len(rest) == 0 {
		return results
	}
	slices.Sort(rest)
	in = pick(in, rest)
	// SQL skips jobs that somebody has locked: nobody waits for a lock in a statement that serves others, too.
	pg.Retry(ctx, func() (locked bool) {
		some, errs := d.settles.do(ctx, tenant, in, sizeOfSettlement)
		var left []int
		for i, at := range rest {
			results[at] = some[i]
			if errs[i] != nil {
				results[at].Err = d.db.Err(errs[i])
			}
			if pg.Locked(results[at].Err) {
				left = append(left, i)
			}
		}
		in, rest = pick(in, left), pick(rest, left)
		return len(left) > 0
	})
	return results
}

func sizeOfSettlement(s *Settlement) int { return len(s.Result) + len(s.Error) + 200 }

const settle = "select " + resultColumns + " from ojs.settle($1, $2)"

func (d *Dispatcher) settleNow(ctx context.Context, items []Settlement) ([]Settled, error) {
	d.statements.Add(1)
	if d.opts.Canned != nil {
		return d.canned(len(items)), nil
	}
	size, jobs := 2, false
	for i := range items {
		size += sizeOfSettlement(&items[i])
		jobs = jobs || items[i].jobs
	}
	b := append(make([]byte, 0, size), '[')
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = items[i].append(b)
	}
	b = append(b, ']')
	rows, err := d.db.Pool().Query(ctx, settle, b, jobs)
	if err != nil {
		return nil, err
	}
	results, err := readResults(rows, len(items))
	if err != nil {
		return nil, err
	}
	return d.settled(results), nil
}

// ack is an ACK that ojs.ack_many can read.
type ack struct {
	*Settlement
	id, lease pgtype.UUID
}

func plainAck(s *Settlement) (a ack, ok bool) {
	id, err := uuid.Parse(s.ID)
	a = ack{Settlement: s, id: pgtype.UUID{Bytes: id, Valid: true}}
	if err == nil && s.Lease != nil {
		a.lease.Valid = true
		a.lease.Bytes, err = uuid.Parse(*s.Lease)
	}
	return a, err == nil && s.Error == nil && !s.Requeue
}

const ackMany = "select n, attempt, finished_at from ojs.ack_many($1, $2, $3, $4, $5)"

// Not (job).*, which a migration may make wider.
var ackManyJobs = "select n, (job)." + strings.ReplaceAll(jobColumns, ", ", ", (job).") + " from ojs.ack_many($1, $2, $3, $4, $5, true)"

// ackNow acknowledges what needs no closer look, which is most of what comes, and returns nil for the rest.
func (d *Dispatcher) ackNow(ctx context.Context, items []ack) ([]*sqlcgen.OjsJob, error) {
	d.statements.Add(1)
	out := make([]*sqlcgen.OjsJob, len(items))
	if d.opts.Canned != nil {
		for i, j := range d.opts.Canned(len(items)) {
			out[i] = &j
		}
		return out, nil
	}
	ids, leases := make([]pgtype.UUID, len(items)), make([]pgtype.UUID, len(items))
	results := make([][]byte, len(items))
	workers, tenants := make([]*string, len(items)), make([]*string, len(items))
	sql, whole := ackMany, false
	for i, a := range items {
		ids[i], leases[i], results[i], workers[i], tenants[i] = a.id, a.lease, a.Result, a.WorkerID, a.Tenant
		whole = whole || a.jobs
	}
	if whole {
		sql = ackManyJobs
	}
	rows, err := d.db.Pool().Query(ctx, sql, ids, leases, results, workers, tenants)
	if err != nil {
		return nil, err
	}
	jobs := make([]sqlcgen.OjsJob, len(items))
	place := func(n int) *sqlcgen.OjsJob {
		out[n-1] = &jobs[n-1]
		return out[n-1]
	}
	if whole {
		return out, readNumbered(rows, place)
	}
	var n int
	var attempt int32
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&n, &attempt, &at}, func() error {
		finished := at
		*place(n) = sqlcgen.OjsJob{ID: items[n-1].ID, State: "completed", Attempt: attempt, FinishedAt: &finished}
		return nil
	})
	return out, err
}

func pick[T any](items []T, which []int) []T {
	some := make([]T, len(which))
	for i, at := range which {
		some[i] = items[at]
	}
	return some
}

func (s *Settlement) append(b []byte) []byte {
	b = append(b, `{"id":`...)
	b = AppendString(b, s.ID)
	for _, field := range [...]struct {
		name  string
		value *string
	}{{`,"lease":`, s.Lease}, {`,"worker_id":`, s.WorkerID}, {`,"tenant":`, s.Tenant}} {
		if field.value != nil {
			b = append(b, field.name...)
			b = AppendString(b, *field.value)
		}
	}
	if s.Result != nil {
		b = append(b, `,"result":`...)
		b = append(b, s.Result...)
	}
	if s.Error != nil {
		b = append(b, `,"error":`...)
		b = append(b, s.Error...)
	}
	if s.Requeue {
		b = append(b, `,"requeue":true`...)
	}
	return append(b, '}')
}
