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

// Settlement ends one attempt: an ACK, or with Error a NACK.
type Settlement struct {
	ID                      string
	Lease, WorkerID, Tenant *string
	Result                  []byte // JSON; ACK
	Error                   []byte // a JSON object; NACK
	Message                 string // of Error, for the log; NACK
	Requeue                 bool   // NACK
}

// Settled is the job after the attempt was ended, or the error. If the client did not ask for the
// job, only ID, State and FinishedAt are set after an ACK.
type Settled struct {
	Job sqlcgen.OjsJob
	Err error // a *pg.Error
}

// Settle ends attempts in one statement with those of other callers; each succeeds or fails by
// itself. jobs asks for whole jobs in the answer; callers that want them share statements only with
// each other.
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
	in := slices.Clone(s) // a statement in flight goes on when ctx ends
	results := make([]Settled, len(in))
	defer d.attemptsEnded()
	remaining := d.acknowledge(ctx, by, line, in, results)
	in = pick(in, remaining)
	// SQL skips jobs that somebody has locked: a statement that serves several callers waits for no lock.
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

// acknowledge ends the attempts that ojs.ack_many can end, and returns the indexes of the others.
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

// ack is an ACK in the form of ojs.ack_many.
type ack struct {
	*Settlement
	id, lease pgtype.UUID
}

func simpleAck(s *Settlement) (a ack, ok bool) {
	id, err := uuid.Parse(s.ID)
	a = ack{Settlement: s, id: pgtype.UUID{Bytes: id, Valid: true}}
	if err == nil && s.Lease != nil {
		a.lease.Valid = true
		a.lease.Bytes, err = uuid.Parse(*s.Lease)
	}
	return a, err == nil && s.Error == nil && !s.Requeue
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
