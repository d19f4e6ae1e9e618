// Package jobrow reads the rows of ojs.job that statements return into sqlcgen.OjsJob.
//
// It decodes by hand: pgx scans each of 29 columns by itself and allocates for every second one.
// BenchmarkReadJobs reads a thousand jobs: by hand with 150 allocations, by pgx with 15,000 and in
// more than twice the time.
package jobrow

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// jobColumn is a column of ojs.job: its name, its type, and the field of a job that gets its
// values.
type jobColumn struct {
	name  string
	oid   uint32
	field func(j *sqlcgen.OjsJob) any
}

// anyType stands for ojs.job_state, whose OID differs from database to database. Its text and
// binary formats are the same.
const anyType = 0

// jobColumns are the columns of ojs.job that servers read. Go has no other list of them: names,
// indexes and the decoder come from this one. A test compares it with the table.
var jobColumns = []jobColumn{
	{"state", anyType, func(j *sqlcgen.OjsJob) any { return &j.State }},
	{"attempt", pgtype.Int4OID, func(j *sqlcgen.OjsJob) any { return &j.Attempt }},
	{"lease", pgtype.UUIDOID, func(j *sqlcgen.OjsJob) any { return &j.Lease }},
	{"started_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.StartedAt }},
	{"lease_expires_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.LeaseExpiresAt }},
	{"finished_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.FinishedAt }},
	{"retry_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.RetryAt }},
	{"enqueued_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.EnqueuedAt }},
	{"worker_id", pgtype.TextOID, func(j *sqlcgen.OjsJob) any { return &j.WorkerID }},
	{"errors", pgtype.JSONBOID, func(j *sqlcgen.OjsJob) any { return &j.Errors }},
	{"result", pgtype.JSONOID, func(j *sqlcgen.OjsJob) any { return &j.Result }},
	{"seq", pgtype.Int8OID, func(j *sqlcgen.OjsJob) any { return &j.Seq }},
	{"tenant_id", pgtype.TextOID, func(j *sqlcgen.OjsJob) any { return &j.TenantID }},
	{"id", pgtype.UUIDOID, func(j *sqlcgen.OjsJob) any { return &j.ID }},
	{"queue", pgtype.TextOID, func(j *sqlcgen.OjsJob) any { return &j.Queue }},
	{"type", pgtype.TextOID, func(j *sqlcgen.OjsJob) any { return &j.Type }},
	{"priority", pgtype.Int4OID, func(j *sqlcgen.OjsJob) any { return &j.Priority }},
	{"max_attempts", pgtype.Int4OID, func(j *sqlcgen.OjsJob) any { return &j.MaxAttempts }},
	{"created_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.CreatedAt }},
	{"scheduled_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.ScheduledAt }},
	{"expires_at", pgtype.TimestamptzOID, func(j *sqlcgen.OjsJob) any { return &j.ExpiresAt }},
	{"timeout_ms", pgtype.Int4OID, func(j *sqlcgen.OjsJob) any { return &j.TimeoutMs }},
	{"visibility_timeout_ms", pgtype.Int4OID, func(j *sqlcgen.OjsJob) any { return &j.VisibilityTimeoutMs }},
	{"tags", pgtype.TextArrayOID, func(j *sqlcgen.OjsJob) any { return &j.Tags }},
	{"args", pgtype.JSONOID, func(j *sqlcgen.OjsJob) any { return &j.Args }},
	{"meta", pgtype.JSONBOID, func(j *sqlcgen.OjsJob) any { return &j.Meta }},
	{"retry", pgtype.JSONBOID, func(j *sqlcgen.OjsJob) any { return &j.Retry }},
	{"options", pgtype.JSONOID, func(j *sqlcgen.OjsJob) any { return &j.Options }},
	{"extra", pgtype.JSONOID, func(j *sqlcgen.OjsJob) any { return &j.Extra }},
}

// Columns are the names of jobColumns, in their order, as a list in SQL.
var Columns, jobIndexes = func() (string, map[string]int) {
	names, indexes := make([]string, len(jobColumns)), map[string]int{}
	for i, c := range jobColumns {
		names[i], indexes[c.name] = c.name, i
	}
	return strings.Join(names, ", "), indexes
}()

// Column returns the index of a column in Columns. It panics if there is no such column.
func Column(name string) int {
	i, known := jobIndexes[name]
	if !known {
		panic("a job has no column " + name)
	}
	return i
}

// Rows reads the jobs in the rows of one statement. The jobs share memory: a thousand jobs of one
// queue have one string for its name, and what their fields point to is allocated for many jobs at
// once.
type Rows struct {
	rows    pgx.Rows
	at      int         // the column where the job begins
	columns []rowColumn // from there on; nil before the first job is read

	json  []byte
	uuids strings.Builder
	texts []string
	times []time.Time
	ints  []int32
	longs []int64
}

// rowColumn is a column of a job in the rows of one statement.
type rowColumn struct {
	*jobColumn
	byHand bool   // decode can read the type and the format of the column
	last   string // the last text of the column: many rows have the same queue, type and tenant
}

// New reads rows whose columns from at on are some of Columns, in any order.
func New(rows pgx.Rows, at int) *Rows { return &Rows{rows: rows, at: at} }

// Null reports whether a column of the current row is null.
func (r *Rows) Null(column int) bool { return r.rows.RawValues()[column] == nil }

// Int is the int4 in a column of the current row.
func (r *Rows) Int(column int) (int, error) {
	field, raw := r.rows.FieldDescriptions()[column], r.rows.RawValues()[column]
	if field.DataTypeOID == pgtype.Int4OID && field.Format == pgx.BinaryFormatCode && len(raw) == 4 {
		return int(number4(raw)), nil
	}
	var n int
	err := r.Scan(column, &n)
	return n, err
}

// Scan reads a column of the current row as pgx does.
func (r *Rows) Scan(column int, into any) error {
	field := r.rows.FieldDescriptions()[column]
	if err := r.rows.Conn().TypeMap().Scan(field.DataTypeOID, field.Format, r.rows.RawValues()[column], into); err != nil {
		return fmt.Errorf("read the column %s: %w", field.Name, err)
	}
	return nil
}

// Read decodes the job in the current row. It leaves a field as it is if its column is null, or is
// not in the rows.
func (r *Rows) Read(j *sqlcgen.OjsJob) error {
	if r.columns == nil {
		if err := r.findColumns(); err != nil {
			return err
		}
	}
	for i, value := range r.rows.RawValues()[r.at:] {
		c := &r.columns[i]
		switch {
		case value == nil:
		case c.byHand:
			r.decode(c, value, c.field(j))
		default:
			if err := r.Scan(r.at+i, c.field(j)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Rows) findColumns() error {
	fields := r.rows.FieldDescriptions()[r.at:]
	columns := make([]rowColumn, len(fields))
	for i, field := range fields {
		n, known := jobIndexes[field.Name]
		if !known {
			return fmt.Errorf("a job has no column %s", field.Name)
		}
		columns[i].jobColumn, columns[i].byHand = &jobColumns[n], jobColumns[n].decodable(field)
	}
	r.columns = columns
	return nil
}

// decodable reports whether a column has the type and the format that decode expects. Behind some
// poolers all come as text, and a later release may widen one; pgx scans it then.
func (c *jobColumn) decodable(field pgconn.FieldDescription) bool {
	switch c.oid {
	case anyType:
		return true
	case pgtype.TextOID, pgtype.JSONOID:
		return field.DataTypeOID == c.oid // the same in both formats
	case pgtype.JSONBOID:
		// As pgx asks for it. In binary it would begin with the number of its version.
		return field.DataTypeOID == c.oid && field.Format == pgx.TextFormatCode
	case pgtype.Int4OID, pgtype.Int8OID, pgtype.TimestamptzOID, pgtype.UUIDOID:
		return field.DataTypeOID == c.oid && field.Format == pgx.BinaryFormatCode
	}
	return false
}

// decode copies a value, which the next row overwrites, into a field.
func (r *Rows) decode(c *rowColumn, value []byte, field any) {
	switch field := field.(type) {
	case *string:
		*field = r.text(c, value)
	case **string:
		*field = hold(&r.texts, r.text(c, value))
	case *int32:
		*field = number4(value)
	case **int32:
		*field = hold(&r.ints, number4(value))
	case *int64:
		*field = number8(value)
	case **int64:
		*field = hold(&r.longs, number8(value))
	case *time.Time:
		*field = instant(value)
	case **time.Time:
		*field = hold(&r.times, instant(value))
	case *[]byte:
		*field = r.bytes(value)
	}
}

// hold copies a value into memory for values of many jobs, and returns a pointer to the copy. The
// memory is made for at most 64 values, because one job that is kept keeps all of it.
func hold[T any](held *[]T, value T) *T {
	if len(*held) == cap(*held) {
		*held = make([]T, 0, min(2*cap(*held)+2, 64))
	}
	*held = append(*held, value)
	return &(*held)[len(*held)-1]
}

// bytes copies JSON into memory for the JSON of many jobs.
func (r *Rows) bytes(value []byte) []byte {
	if len(value) > cap(r.json)-len(r.json) {
		r.json = make([]byte, 0, max(len(value), min(2*cap(r.json), 8192), 256))
	}
	n := len(r.json)
	r.json = append(r.json, value...)
	return r.json[n:len(r.json):len(r.json)]
}

// text returns a UUID, or the last text of the column again if the value is the same.
func (r *Rows) text(c *rowColumn, value []byte) string {
	if c.oid == pgtype.UUIDOID {
		return r.uuid(value)
	}
	if c.last != string(value) {
		c.last = string(value)
	}
	return c.last
}

// uuid writes a UUID into memory for the UUIDs of many jobs.
func (r *Rows) uuid(value []byte) string {
	text := [...]byte{8: '-', 13: '-', 18: '-', 23: '-', 35: 0}
	hex.Encode(text[0:8], value[0:4])
	hex.Encode(text[9:13], value[4:6])
	hex.Encode(text[14:18], value[6:8])
	hex.Encode(text[19:23], value[8:10])
	hex.Encode(text[24:36], value[10:16])
	if size := r.uuids.Cap(); size-r.uuids.Len() < len(text) {
		r.uuids = strings.Builder{}
		r.uuids.Grow(min(2*size+2*len(text), 64*len(text)))
	}
	n := r.uuids.Len()
	r.uuids.Write(text[:])
	return r.uuids.String()[n:]
}

func number4(raw []byte) int32 { return int32(binary.BigEndian.Uint32(raw)) }
func number8(raw []byte) int64 { return int64(binary.BigEndian.Uint64(raw)) }

// instant reads microseconds since 2000.
func instant(raw []byte) time.Time {
	const epoch = 946684800
	us := number8(raw)
	return time.Unix(epoch+us/1000000, us%1000000*1000).UTC()
}
