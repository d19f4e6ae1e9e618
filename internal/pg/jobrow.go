package pg

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

// Rows of jobs are decoded by hand. pgx scans each of 29 columns by itself, with an allocation for every second of them: BenchmarkReadJobs
// has 3 allocations for a job by hand and 15 by pgx, and less than half of the time.

// JobColumns are the columns of ojs.job, in the order in which JobRows reads them.
const JobColumns = "state, attempt, lease, started_at, lease_expires_at, finished_at, retry_at, enqueued_at, worker_id, errors, " +
	"result, seq, " +
	"tenant_id, id, queue, type, priority, max_attempts, created_at, scheduled_at, expires_at, timeout_ms, visibility_timeout_ms, tags, " +
	"args, meta, retry, options, extra"

// anyType stands for ojs.job_state, whose OID differs from database to database. Its text and binary formats are the same.
const anyType = 0

// jobTypes are the types of JobColumns.
var jobTypes = [...]uint32{
	anyType, pgtype.Int4OID, pgtype.UUIDOID, pgtype.TimestamptzOID, pgtype.TimestamptzOID, pgtype.TimestamptzOID, pgtype.TimestamptzOID,
	pgtype.TimestamptzOID, pgtype.TextOID, pgtype.JSONBOID, pgtype.JSONOID, pgtype.Int8OID,
	pgtype.TextOID, pgtype.UUIDOID, pgtype.TextOID, pgtype.TextOID, pgtype.Int4OID, pgtype.Int4OID, pgtype.TimestamptzOID,
	pgtype.TimestamptzOID, pgtype.TimestamptzOID, pgtype.Int4OID, pgtype.Int4OID, pgtype.TextArrayOID,
	pgtype.JSONOID, pgtype.JSONBOID, pgtype.JSONBOID, pgtype.JSONOID, pgtype.JSONOID,
}

// JobFields are where JobColumns go when pgx scans a row.
func JobFields(j *sqlcgen.OjsJob) []any {
	return []any{
		&j.State, &j.Attempt, &j.Lease, &j.StartedAt, &j.LeaseExpiresAt, &j.FinishedAt, &j.RetryAt, &j.EnqueuedAt, &j.WorkerID, &j.Errors,
		&j.Result, &j.Seq,
		&j.TenantID, &j.ID, &j.Queue, &j.Type, &j.Priority, &j.MaxAttempts, &j.CreatedAt, &j.ScheduledAt, &j.ExpiresAt, &j.TimeoutMs,
		&j.VisibilityTimeoutMs, &j.Tags,
		&j.Args, &j.Meta, &j.Retry, &j.Options, &j.Extra,
	}
}

// JobRows reads the jobs in the rows of one statement. The jobs share memory: a thousand jobs of one queue have one string for its name.
type JobRows struct {
	rows   pgx.Rows
	at     int // the column where the job begins
	known  bool
	byHand bool // the columns have the types and formats that are decoded by hand

	// The last values of columns that are often the same from row to row.
	state, worker, tenant, queue, kind string
}

// NewJobRows reads rows whose columns from at on are JobColumns.
func NewJobRows(rows pgx.Rows, at int) *JobRows { return &JobRows{rows: rows, at: at} }

// Null reports whether a column of the current row is null.
func (r *JobRows) Null(column int) bool { return r.rows.RawValues()[column] == nil }

// Int is the int4 in a column of the current row.
func (r *JobRows) Int(column int) (int, error) {
	field, raw := r.rows.FieldDescriptions()[column], r.rows.RawValues()[column]
	if field.DataTypeOID == pgtype.Int4OID && field.Format == pgx.BinaryFormatCode && len(raw) == 4 {
		return int(int4(raw)), nil
	}
	var n int
	if err := r.rows.Conn().TypeMap().Scan(field.DataTypeOID, field.Format, raw, &n); err != nil {
		return 0, fmt.Errorf("read the column %s: %w", field.Name, err)
	}
	return n, nil
}

// Read decodes the job in the current row.
func (r *JobRows) Read(j *sqlcgen.OjsJob) error {
	if !r.known {
		fields := r.rows.FieldDescriptions()
		if len(fields) != r.at+len(jobTypes) {
			return fmt.Errorf("%d columns where %d and a job were expected", len(fields), r.at)
		}
		r.byHand, r.known = decodable(fields[r.at:]), true
	}
	if !r.byHand {
		return r.rows.Scan(append(make([]any, r.at), JobFields(j)...)...)
	}
	return r.decode(j)
}

// decodable reports whether the columns have the types and formats that decode expects. Behind some poolers all come as text, and a later
// release may widen one; pgx scans them then.
func decodable(fields []pgconn.FieldDescription) bool {
	for i, oid := range jobTypes {
		if oid == anyType {
			continue
		}
		format := int16(pgx.BinaryFormatCode)
		switch oid {
		case pgtype.JSONBOID:
			format = pgx.TextFormatCode // as pgx asks for it; in binary it would begin with the number of its version
		case pgtype.TextOID, pgtype.JSONOID, pgtype.TextArrayOID:
			format = fields[i].Format // the same in both, or scanned by pgx
		}
		if fields[i].DataTypeOID != oid || fields[i].Format != format {
			return false
		}
	}
	return true
}

// pointed holds the values a job has pointers to, in one allocation.
type pointed struct {
	lease, worker                                  string
	seq                                            int64
	started, expires, finished, retry, due, expiry time.Time
	timeout, visibility                            int32
}

func (r *JobRows) decode(j *sqlcgen.OjsJob) error {
	raw := r.rows.RawValues()[r.at:]
	p := &pointed{}
	r.decodeIdentity(raw, p, j)
	decodeTimes(raw, p, j)
	j.Attempt = int4(raw[1])
	if raw[11] != nil {
		p.seq = int64(binary.BigEndian.Uint64(raw[11]))
		j.Seq = &p.seq
	}
	j.Priority = int4(raw[16])
	j.MaxAttempts = int4(raw[17])
	if raw[21] != nil {
		p.timeout = int4(raw[21])
		j.TimeoutMs = &p.timeout
	}
	if raw[22] != nil {
		p.visibility = int4(raw[22])
		j.VisibilityTimeoutMs = &p.visibility
	}
	decodeJSON(raw, j)
	if raw[23] != nil {
		field := r.rows.FieldDescriptions()[r.at+23]
		return r.rows.Conn().TypeMap().Scan(field.DataTypeOID, field.Format, raw[23], &j.Tags)
	}
	return nil
}

// decodeIdentity reads what a job is called. Both UUIDs are in one string.
func (r *JobRows) decodeIdentity(raw [][]byte, p *pointed, j *sqlcgen.OjsJob) {
	var ids [72]byte
	putUUID(ids[:36], raw[13])
	if raw[2] != nil {
		putUUID(ids[36:], raw[2])
		both := string(ids[:])
		j.ID, p.lease = both[:36], both[36:]
		j.Lease = &p.lease
	} else {
		j.ID = string(ids[:36])
	}
	j.State = same(&r.state, raw[0])
	if raw[8] != nil {
		p.worker = same(&r.worker, raw[8])
		j.WorkerID = &p.worker
	}
	j.TenantID = same(&r.tenant, raw[12])
	j.Queue = same(&r.queue, raw[14])
	j.Type = same(&r.kind, raw[15])
}

func decodeTimes(raw [][]byte, p *pointed, j *sqlcgen.OjsJob) {
	j.StartedAt = instant(raw[3], &p.started)
	j.LeaseExpiresAt = instant(raw[4], &p.expires)
	j.FinishedAt = instant(raw[5], &p.finished)
	j.RetryAt = instant(raw[6], &p.retry)
	instant(raw[7], &j.EnqueuedAt)
	instant(raw[18], &j.CreatedAt)
	j.ScheduledAt = instant(raw[19], &p.due)
	j.ExpiresAt = instant(raw[20], &p.expiry)
}

// decodeJSON copies the JSON columns, which the next row overwrites, into one piece of memory.
func decodeJSON(raw [][]byte, j *sqlcgen.OjsJob) {
	size := 0
	for _, i := range [...]int{9, 10, 24, 25, 26, 27, 28} {
		size += len(raw[i])
	}
	b := make([]byte, 0, size)
	j.Errors, b = keep(b, raw[9])
	j.Result, b = keep(b, raw[10])
	j.Args, b = keep(b, raw[24])
	j.Meta, b = keep(b, raw[25])
	j.Retry, b = keep(b, raw[26])
	j.Options, b = keep(b, raw[27])
	j.Extra, _ = keep(b, raw[28])
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

// keep copies a value to the end of b.
func keep(b, raw []byte) (kept, rest []byte) {
	if raw == nil {
		return nil, b
	}
	n := len(b)
	b = append(b, raw...)
	return b[n:len(b):len(b)], b
}
