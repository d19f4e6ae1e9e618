package dispatch

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Jobs are read by hand here: scanning 29 columns through pgx costs an allocation for nearly each of them, which is
// most of what a fetched job costs this program.

const jobColumns = "state, attempt, lease, started_at, lease_expires_at, finished_at, retry_at, enqueued_at, worker_id, errors, result, seq, " +
	"tenant_id, id, queue, type, priority, max_attempts, created_at, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, " +
	"args, meta, retry, options, extra"

const jobWidth = 29

// byHand reports whether the columns come in the formats that reader knows. Behind some poolers they come as text.
func byHand(fields []pgconn.FieldDescription) bool {
	for i := range fields {
		switch fields[i].DataTypeOID {
		case pgtype.UUIDOID, pgtype.TimestamptzOID, pgtype.Int4OID, pgtype.Int8OID, pgtype.JSONBOID:
			if fields[i].Format != pgx.BinaryFormatCode {
				return false
			}
		}
	}
	return true
}

// readHanded reads the rows of ojs.fetch_many to their end, which is the end of the transaction unless they belong to a batch. Rows
// without a job name the workers that are to get none, or say that the call stopped early.
func readHanded(rows pgx.Rows, requests, about int) (handed, error) {
	defer rows.Close()
	h := handed{counts: make([]int, requests)}
	var r reader
	hand, last := false, 0
	for rows.Next() {
		raw := rows.RawValues()
		switch {
		case raw[14] == nil && raw[9] == nil:
			h.cut = true
			continue
		case raw[14] == nil:
			h.resting = append(h.resting, string(raw[9]))
			continue
		case h.jobs == nil:
			h.jobs = make([]sqlcgen.OjsJob, 0, min(about, 64))
			hand = byHand(rows.FieldDescriptions())
		}
		h.jobs = append(h.jobs, sqlcgen.OjsJob{})
		j := &h.jobs[len(h.jobs)-1]
		var request int
		var err error
		if hand {
			request, err = int(int4(raw[0])), r.job(rows, 1, j)
		} else {
			err = rows.Scan(append([]any{&request}, fieldsOf(j)...)...)
		}
		if err != nil {
			return handed{}, err
		}
		// A worker must get no job that is leased to another one.
		if request < max(last, 1) || request > requests {
			return handed{}, fmt.Errorf("a job for request %d of %d, after one for %d", request, requests, last)
		}
		h.counts[request-1]++
		last = request
	}
	return h, rows.Err()
}

// readNumbered reads rows of a number and a job, each into its place, to their end.
func readNumbered(rows pgx.Rows, place func(n int) *sqlcgen.OjsJob) error {
	defer rows.Close()
	var r reader
	var n int
	number := make([]any, 1+jobWidth) // the rest is not scanned
	number[0] = &n
	hand := false
	for first := true; rows.Next(); first = false {
		if first {
			hand = byHand(rows.FieldDescriptions())
		}
		if err := rows.Scan(number...); err != nil {
			return err
		}
		var err error
		if hand {
			err = r.job(rows, 1, place(n))
		} else {
			err = rows.Scan(append([]any{nil}, fieldsOf(place(n))...)...)
		}
		if err != nil {
			return err
		}
	}
	return rows.Err()
}

// result is a job, or why there is none.
type result struct {
	job sqlcgen.OjsJob
	err *pgconn.PgError
}

const resultColumns = "n, sqlstate, message, detail, " + jobColumns

// readResults reads resultColumns of about so many elements, each in its place.
func readResults(rows pgx.Rows, elements int) ([]result, error) {
	defer rows.Close()
	results := make([]result, elements)
	seen := 0
	var r reader
	hand := false
	for rows.Next() {
		if seen == 0 {
			hand = byHand(rows.FieldDescriptions())
		}
		seen++
		var n int
		var state, message *string
		var detail []byte
		into := make([]any, 4, 4+jobWidth)
		into[0], into[1], into[2], into[3] = &n, &state, &message, &detail
		failed := rows.RawValues()[1] != nil
		if hand && !failed {
			n = int(int4(rows.RawValues()[0]))
		} else {
			var job sqlcgen.OjsJob
			if failed {
				into = into[:4+jobWidth] // the rest is null
			} else {
				into = append(into, fieldsOf(&job)...)
			}
			if err := rows.Scan(into...); err != nil {
				return nil, err
			}
			if n >= 0 && n < elements {
				results[n].job = job
			}
		}
		if n < 0 || n >= elements {
			return nil, fmt.Errorf("a result for element %d of %d", n, elements)
		}
		switch {
		case failed:
			results[n].err = &pgconn.PgError{Severity: "ERROR", Code: *state, Detail: string(detail)}
			if message != nil {
				results[n].err.Message = *message
			}
		case hand:
			if err := r.job(rows, 4, &results[n].job); err != nil {
				return nil, err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if seen != elements {
		return nil, fmt.Errorf("%d results for %d elements", seen, elements)
	}
	return results, nil
}

func fieldsOf(j *sqlcgen.OjsJob) []any {
	return []any{
		&j.State, &j.Attempt, &j.Lease, &j.StartedAt, &j.LeaseExpiresAt, &j.FinishedAt, &j.RetryAt, &j.EnqueuedAt, &j.WorkerID, &j.Errors, &j.Result, &j.Seq,
		&j.TenantID, &j.ID, &j.Queue, &j.Type, &j.Priority, &j.MaxAttempts, &j.CreatedAt, &j.ScheduledAt, &j.ExpiresAt, &j.TimeoutMs, &j.VisibilityTimeoutMs, &j.Tags,
		&j.Args, &j.Meta, &j.Retry, &j.Options, &j.Extra,
	}
}

// reader keeps what rows have in common, so that a thousand jobs of one queue share one string.
type reader struct {
	state, worker, tenant, queue, kind string
}

// more holds what a job points to, in one piece.
type more struct {
	lease, worker                                  string
	seq                                            int64
	started, expires, finished, retry, due, expiry time.Time
	timeout, visibility                            int32
}

// job reads the row's columns from column at on.
func (r *reader) job(rows pgx.Rows, at int, j *sqlcgen.OjsJob) error {
	raw := rows.RawValues()[at:]
	m := &more{}
	var ids [72]byte
	size := 0
	for _, i := range [...]int{9, 10, 24, 25, 26, 27, 28} {
		size += len(raw[i])
	}
	b := make([]byte, 0, size)

	putUUID(ids[:36], raw[13])
	if raw[2] != nil {
		putUUID(ids[36:], raw[2])
		both := string(ids[:])
		j.ID, m.lease = both[:36], both[36:]
		j.Lease = &m.lease
	} else {
		j.ID = string(ids[:36])
	}
	j.State = same(&r.state, raw[0])
	j.Attempt = int4(raw[1])
	j.StartedAt = instant(raw[3], &m.started)
	j.LeaseExpiresAt = instant(raw[4], &m.expires)
	j.FinishedAt = instant(raw[5], &m.finished)
	j.RetryAt = instant(raw[6], &m.retry)
	instant(raw[7], &j.EnqueuedAt)
	if raw[8] != nil {
		m.worker = same(&r.worker, raw[8])
		j.WorkerID = &m.worker
	}
	j.Errors, b = keepB(b, raw[9])
	j.Result, b = keep(b, raw[10])
	if raw[11] != nil {
		m.seq = int64(binary.BigEndian.Uint64(raw[11]))
		j.Seq = &m.seq
	}
	j.TenantID = same(&r.tenant, raw[12])
	j.Queue = same(&r.queue, raw[14])
	j.Type = same(&r.kind, raw[15])
	j.Priority = int4(raw[16])
	j.MaxAttempts = int4(raw[17])
	instant(raw[18], &j.CreatedAt)
	j.ScheduledAt = instant(raw[19], &m.due)
	j.ExpiresAt = instant(raw[20], &m.expiry)
	if raw[21] != nil {
		m.timeout = int4(raw[21])
		j.TimeoutMs = &m.timeout
	}
	if raw[22] != nil {
		m.visibility = int4(raw[22])
		j.VisibilityTimeoutMs = &m.visibility
	}
	if raw[23] != nil {
		f := rows.FieldDescriptions()[at+23]
		if err := rows.Conn().TypeMap().Scan(f.DataTypeOID, f.Format, raw[23], &j.Tags); err != nil {
			return err
		}
	}
	j.Args, b = keep(b, raw[24])
	j.Meta, b = keepB(b, raw[25])
	j.Retry, b = keepB(b, raw[26])
	j.Options, b = keep(b, raw[27])
	j.Extra, _ = keep(b, raw[28])
	return nil
}

func putUUID(b, raw []byte) {
	hex.Encode(b[0:8], raw[0:4])
	hex.Encode(b[9:13], raw[4:6])
	hex.Encode(b[14:18], raw[6:8])
	hex.Encode(b[19:23], raw[8:10])
	hex.Encode(b[24:36], raw[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
}

func same(last *string, raw []byte) string {
	if *last != string(raw) {
		*last = string(raw)
	}
	return *last
}

func int4(raw []byte) int32 {
	if raw == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(raw))
}

// instant reads microseconds since 2000.
func instant(raw []byte, at *time.Time) *time.Time {
	if raw == nil {
		return nil
	}
	const epoch = 946684800
	us := int64(binary.BigEndian.Uint64(raw))
	*at = time.Unix(epoch+us/1000000, us%1000000*1000).UTC()
	return at
}

// keep copies a value, which the next row overwrites, to the end of b.
func keep(b, raw []byte) (kept, rest []byte) {
	if raw == nil {
		return nil, b
	}
	n := len(b)
	b = append(b, raw...)
	return b[n:len(b):len(b)], b
}

// keepB does so with a jsonb, which begins with its version.
func keepB(b, raw []byte) (kept, rest []byte) {
	if raw == nil {
		return nil, b
	}
	return keep(b, raw[1:])
}
