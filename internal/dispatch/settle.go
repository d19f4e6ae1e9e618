package dispatch

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Settlement ends one attempt: a NACK if Error is set, else an ACK.
type Settlement struct {
	ID                      string
	Lease, WorkerID, Tenant *string
	Result                  []byte // JSON; ACK
	Error                   []byte // a JSON object; NACK
	Message                 string // of Error, for the log; NACK
	Requeue                 bool   // NACK
}

// Settled is the job after the attempt was ended, or the error; of an enqueue, the job that was
// made. If the caller of Settle did not ask for whole jobs, only ID, State and FinishedAt are set
// after an ACK.
type Settled struct {
	Job sqlcgen.OjsJob
	Err error // a *pg.Error, or context.Canceled if the caller has left
}

// Settle ends attempts, each by itself, and returns one result for each in the same order. It
// shares statements with other callers that have asked for whole jobs (jobs), or with other callers
// that have not. It returns when all attempts are ended or refused, or when ctx ends, after
// Options.Query at the latest; an attempt whose statement was under way may then be ended though its
// result has an error. All attempts of a call are of one tenant: s[0] names the tenant whose queue
// in the batcher they use.
func (d *Dispatcher) Settle(ctx context.Context, s []Settlement, jobs bool) []Settled {
	if len(s) == 0 {
		return nil
	}
	line := ""
	if s[0].Tenant != nil {
		line = *s[0].Tenant
	}
	ctx, cancel := context.WithTimeout(ctx, d.opts.Query)
	defer cancel()
	by := d.settlers[jobs]
	in := slices.Clone(s) // a statement in flight goes on when ctx ends, and the caller may use s again
	results := make([]Settled, len(in))
	defer d.attemptsEnded()
	remaining := d.acknowledge(ctx, by, line, in, results)
	in = pick(in, remaining)
	// ojs.settle refuses a job that another transaction has locked (55P03): if it waited, it would keep
	// all callers of the statement waiting. So locked jobs are tried again here, after pauses.
	pg.RetryLocked(ctx, func() (locked bool) {
		if len(in) == 0 {
			return false
		}
		some, errs := by.settles.Do(ctx, line, in, sizeOfSettlement)
		var left []int
		for i, at := range remaining {
			results[at] = some[i]
			if errs[i] != nil {
				results[at].Err = d.db.Err(errs[i])
			}
			if pg.Locked(results[at].Err) {
				left = append(left, i)
			}
		}
		in, remaining = pick(in, left), pick(remaining, left)
		return len(left) > 0
	})
	return results
}

// acknowledge ends the attempts that ojs.ack_many can end and sets their results. It returns the
// indexes of the others, in order, for ojs.settle. An attempt whose statement failed has an error as
// its result and is not among them.
func (d *Dispatcher) acknowledge(ctx context.Context, by settler, line string, in []Settlement, results []Settled) (remaining []int) {
	var acks []ack
	var places []int
	for i := range in {
		if a, ok := simpleAck(&in[i]); ok {
			acks, places = append(acks, a), append(places, i)
		} else {
			remaining = append(remaining, i)
		}
	}
	if len(acks) == 0 {
		return remaining
	}
	acked, errs := by.acks.Do(ctx, line, acks, func(a *ack) int { return sizeOfSettlement(a.Settlement) })
	for i, at := range places {
		switch {
		case errs[i] != nil:
			results[at].Err = d.db.Err(errs[i])
		case acked[i] == nil:
			remaining = append(remaining, at)
		default:
			results[at].Job = *acked[i]
		}
	}
	slices.Sort(remaining)
	return remaining
}

// sizeOfSettlement returns the bytes of a settlement in a statement: its JSON, and 200 for its ids.
func sizeOfSettlement(s *Settlement) int { return len(s.Result) + len(s.Error) + 200 }

// settlements returns the JSON array that ojs.settle reads.
func settlements(items []Settlement) []byte {
	size := 2
	for i := range items {
		size += sizeOfSettlement(&items[i])
	}
	b := append(make([]byte, 0, size), '[')
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = items[i].append(b)
	}
	return append(b, ']')
}

// ack is an ACK in the form that ojs.ack_many takes, with its ids parsed.
type ack struct {
	*Settlement
	id, lease pgtype.UUID
}

// simpleAck returns the settlement as an ack. ok is false if ojs.ack_many cannot take it: it is a
// NACK, or an id is no UUID, which ojs.settle refuses with a reason.
func simpleAck(s *Settlement) (a ack, ok bool) {
	id, err := uuid.Parse(s.ID)
	a = ack{Settlement: s, id: pgtype.UUID{Bytes: id, Valid: true}}
	if err == nil && s.Lease != nil {
		a.lease.Valid = true
		a.lease.Bytes, err = uuid.Parse(*s.Lease)
	}
	return a, err == nil && s.Error == nil && !s.Requeue
}

// pick returns the items with the given indexes.
func pick[T any](items []T, which []int) []T {
	some := make([]T, len(which))
	for i, at := range which {
		some[i] = items[at]
	}
	return some
}

// append appends the settlement as a JSON object of ojs.settle.
func (s *Settlement) append(b []byte) []byte {
	b = append(b, `{"id":`...)
	b = jsonbody.AppendString(b, s.ID)
	for _, field := range [...]struct {
		name  string
		value *string
	}{{`,"lease":`, s.Lease}, {`,"worker_id":`, s.WorkerID}, {`,"tenant":`, s.Tenant}} {
		if field.value != nil {
			b = append(b, field.name...)
			b = jsonbody.AppendString(b, *field.value)
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
