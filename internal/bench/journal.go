//go:build unix

package bench

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// This file holds all that the benchmarks know about the journal of the schema, so that a change of its
// tables changes only this file.

// Statements that read the jobs handed out of the queue $2 after the transaction $1: tenant, time in
// microseconds, id, and number in the order.
const (
	// Decisions are serial, and the journal numbers them.
	order = `
		select g.tenant_id, (extract(epoch from l.at) * 1000000)::bigint, g.id, l.turn + g.n
		from ojs.lease l cross join lateral unnest(l.ids, l.tenants) with ordinality g(id, tenant_id, n)
		where l.xid > $1::xid8 and l.queue = $2`
	// Workers of the baseline decide at the same time. Each job notes when it was taken. All jobs that
	// were taken have been acknowledged.
	baselineOrder = `
		select j.tenant_id, (extract(epoch from j.started_at) * 1000000)::bigint, j.id, row_number() over (order by j.started_at, j.seq)
		from ojs_bench.job j
		where age(j.xmin) < age($1::xid8::xid) and j.queue = $2 and j.state = 'completed'`
)

// sequence returns the jobs that were handed out after a transaction, in the order of dispatch, each
// with the response that held it. It fails if a job is in the journal and in no response, or in a
// response and not in the journal.
func (d *database) sequence(
	ctx context.Context, order, mark string, tenants map[string]int32, responses [][][16]byte,
) ([]dispatched, error) {
	in := map[[16]byte]int32{}
	for i, ids := range responses {
		for _, id := range ids {
			if _, twice := in[id]; twice {
				return nil, fmt.Errorf("job %s was handed out twice", uuid.UUID(id))
			}
			in[id] = int32(i)
		}
	}
	turns := make([]turn, 0, len(in))
	rows, err := d.control.Query(ctx, order, mark, queue)
	if err != nil {
		return nil, fmt.Errorf("read what was handed out: %w", err)
	}
	var (
		tenant string
		at, n  int64
		id     [16]byte
	)
	_, err = pgx.ForEachRow(rows, []any{&tenant, &at, &id, &n}, func() error {
		response, ok := in[id]
		if !ok {
			return fmt.Errorf("job %s was handed out and in no response", uuid.UUID(id))
		}
		delete(in, id)
		turns = append(turns, turn{n, dispatched{tenants[tenant], response, at}})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what was handed out: %w", err)
	}
	if len(in) > 0 {
		return nil, fmt.Errorf("%d jobs of the responses were not handed out", len(in))
	}
	return inTurn(turns), nil
}
