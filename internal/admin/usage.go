package admin

import (
	"context"
	"encoding/csv"
	"io"
	"strconv"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Usage selects rows of the usage ledger: of one tenant or, if that is nil, of all, whose hours
// began at Since or later and before Until. Rows are in the order of their hours and tenants.
// AfterHour and AfterTenant are those of the row after which to go on.
type Usage struct {
	Tenant       *string
	Since, Until *time.Time
	AfterHour    time.Time
	AfterTenant  string
}

// usagePage is how many rows of the ledger one statement of WriteCSV reads.
const usagePage = 1000

// Read returns the next rows, at most so many.
func (u *Usage) Read(ctx context.Context, q *sqlcgen.Queries, most int) ([]sqlcgen.OjsUsageBatches, error) {
	return q.UsageBatches(ctx, sqlcgen.UsageBatchesParams{
		Tenant: u.Tenant, Since: u.Since, Until: u.Until, AfterHour: u.AfterHour, AfterTenant: u.AfterTenant, MaxRows: int32(most),
	})
}

// WriteCSV writes all rows as CSV, after a line with the names of the columns. read is Read, with
// what the caller wants around it. If the first rows cannot be read, nothing is written.
func (u *Usage) WriteCSV(w io.Writer, read func(most int) ([]sqlcgen.OjsUsageBatches, error)) error {
	out := csv.NewWriter(w)
	for first := true; ; first = false {
		rows, err := read(usagePage)
		if err != nil {
			return err
		}
		var lines [][]string
		if first {
			lines = append(lines, usageHead)
		}
		for i := range rows {
			lines = append(lines, usageLine(&rows[i]))
		}
		if err := out.WriteAll(lines); err != nil || len(rows) < usagePage {
			return err
		}
		last := rows[len(rows)-1]
		u.AfterHour, u.AfterTenant = last.Hour, last.TenantID
	}
}

var usageHead = []string{
	"tenant_id", "n", "hour", "closed_at", "enqueued", "attempts", "completed", "failed", "failed_attempts", "worker_ms",
	"stored_bytes", "refused_429", "refused_507", "previous", "hash",
}

// usageLine returns the cells of a row. Times are in UTC, as in the text that is hashed.
func usageLine(b *sqlcgen.OjsUsageBatches) []string {
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	var stored, previous string
	if b.StoredBytes != nil {
		stored = whole(*b.StoredBytes)
	}
	if b.Previous != nil {
		previous = *b.Previous
	}
	return []string{
		b.TenantID, whole(b.N), b.Hour.UTC().Format(time.RFC3339), b.ClosedAt.UTC().Format("2006-01-02T15:04:05.000000Z"),
		whole(b.Enqueued), whole(b.Attempts), whole(b.Completed), whole(b.Failed), whole(b.FailedAttempts), whole(b.WorkerMs),
		stored, whole(b.Refused429), whole(b.Refused507), previous, b.Hash,
	}
}
