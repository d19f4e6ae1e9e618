package sched

import (
	"context"
	"slices"
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
	which := make([]int, len(in))
	for i := range which {
		which[i] = i
	}
	// SQL skips jobs that somebody has locked: nobody waits for a lock in a statement that serves others, too.
	pg.Retry(ctx, func() (locked bool) {
		some, errs := d.settles.do(ctx, tenant, in, sizeOfSettlement)
		var left []int
		for i, at := range which {
			results[at] = some[i]
			if errs[i] != nil {
				results[at].Err = d.db.Err(errs[i])
			}
			if pg.Locked(results[at].Err) {
				left = append(left, i)
			}
		}
		in, which = pick(in, left), pick(which, left)
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
	out, rest, err := d.ackPlain(ctx, items)
	if err != nil || len(rest) == 0 {
		return out, err
	}
	others, err := d.settleSome(ctx, pick(items, rest))
	if err != nil {
		if len(rest) == len(out) {
			return nil, err
		}
		// The others are acknowledged, whatever became of these.
		for _, at := range rest {
			out[at].Err = d.db.Err(err)
		}
		return out, nil
	}
	for i, settled := range others {
		out[rest[i]] = settled
	}
	return out, nil
}

// settleSome settles in one statement, and in halves when one of them makes it fail as a whole.
func (d *Dispatcher) settleSome(ctx context.Context, items []Settlement) ([]Settled, error) {
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
	if err == nil {
		var results []result
		if results, err = readResults(rows, len(items)); err == nil {
			return d.settled(results), nil
		}
	}
	if !oneOfThem(err) {
		return nil, err
	}
	if len(items) == 1 {
		return []Settled{{Err: d.db.Err(err)}}, nil
	}
	half := len(items) / 2
	first, err := d.settleSome(ctx, items[:half])
	if err != nil {
		return nil, err
	}
	second, err := d.settleSome(ctx, items[half:])
	if err != nil {
		// What is settled is settled.
		for range items[half:] {
			second = append(second, Settled{Err: d.db.Err(err)})
		}
	}
	return append(first, second...), nil
}

const (
	ackMany     = "select n, attempt, finished_at from ojs.ack_many($1, $2, $3, $4, $5)"
	ackManyJobs = "select n, (job).* from ojs.ack_many($1, $2, $3, $4, $5, true)"
)

// ackPlain acknowledges what needs no closer look, which is most of what comes, and returns the places of the rest.
func (d *Dispatcher) ackPlain(ctx context.Context, items []Settlement) (out []Settled, rest []int, err error) {
	var (
		ids, leases      []pgtype.UUID
		results          [][]byte
		workers, tenants []*string
		places           []int
		jobs             bool
	)
	out = make([]Settled, len(items))
	for i := range items {
		item := &items[i]
		id, errID := uuid.Parse(item.ID)
		var lease uuid.UUID
		var errLease error
		if item.Lease != nil {
			lease, errLease = uuid.Parse(*item.Lease)
		}
		if item.Error != nil || item.Requeue || errID != nil || errLease != nil {
			rest = append(rest, i)
			continue
		}
		ids = append(ids, pgtype.UUID{Bytes: id, Valid: true})
		leases = append(leases, pgtype.UUID{Bytes: lease, Valid: item.Lease != nil})
		results = append(results, item.Result)
		workers = append(workers, item.WorkerID)
		tenants = append(tenants, item.Tenant)
		places = append(places, i)
		jobs = jobs || item.jobs
	}
	if len(places) == 0 {
		return out, rest, nil
	}
	sql := ackMany
	if jobs {
		sql = ackManyJobs
	}
	rows, err := d.db.Pool().Query(ctx, sql, ids, leases, results, workers, tenants)
	if err != nil {
		return nil, nil, err
	}
	if jobs {
		err = readNumbered(rows, func(n int) *sqlcgen.OjsJob { return &out[places[n-1]].Job })
	} else {
		var n int
		var attempt int32
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&n, &attempt, &at}, func() error {
			finished := at
			out[places[n-1]].Job = sqlcgen.OjsJob{ID: items[places[n-1]].ID, State: "completed", Attempt: attempt, FinishedAt: &finished}
			return nil
		})
	}
	if err != nil {
		return nil, nil, err
	}
	for _, i := range places {
		if out[i].Job.ID == "" {
			rest = append(rest, i)
		}
	}
	slices.Sort(rest)
	return out, rest, nil
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
