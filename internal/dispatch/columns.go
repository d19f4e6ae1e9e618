package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/jobrow"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// NewJob is a job to enqueue, with one field for each column of ojs.enqueue_rows. A nil field
// leaves the value to SQL. The byte slices are not copied: they may be parts of a request's body,
// which must not change until the job is stored.
type NewJob struct {
	Type, Queue            []byte // text
	Args                   []byte // JSON array
	Meta, Retry            []byte // JSON objects
	Options, Extra         []byte // JSON objects
	Tags                   []byte // JSON array of strings
	ScheduledAt, ExpiresAt []byte // a time as text, or + and an ISO 8601 duration
	Priority, MaxAttempts  *int32
	TimeoutMs              *int32
	VisibilityTimeoutMs    *int32
	Pending                *bool
	ID                     *string // UUID
	Tenant                 *string // nil: meta.tenant_id's, or the default tenant's
}

// QueueName returns the name of the job's queue: "default" if the job names none.
func (j *NewJob) QueueName() string {
	if j.Queue == nil {
		return "default"
	}
	return string(j.Queue)
}

// size returns the bytes of the job's texts in a statement, and 64 for the rest of its fields.
// Options.Bytes bounds the sum of a statement.
func (j *NewJob) size() int {
	return len(j.Type) + len(j.Queue) + len(j.Args) + len(j.Meta) + len(j.Retry) + len(j.Options) + len(j.Extra) + len(j.Tags) + 64
}

// enqueueRows reads only columns that SQL sets. NewJob.made has the others, so that a job's arguments
// do not travel back.
const enqueueRows = "select " + outcomeColumns + ", tenant_id, id, state, max_attempts, created_at, scheduled_at, expires_at, meta, " +
	"retry, priority from ojs.enqueue_rows($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)"

// columns holds the parameters of ojs.enqueue_rows: an array with an element for each job, or nil
// where no job of the statement has the field.
type columns struct {
	types, queues          [][]byte
	args                   [][]byte
	metas, retries         [][]byte
	options, extras        [][]byte
	tags                   [][]byte
	scheduledAt, expiresAt [][]byte
	priorities             []*int32
	maxAttempts            []*int32
	timeouts, visibility   []*int32
	pending                []*bool
	ids                    []pgtype.UUID
	tenants                []*string
}

// columnsOf builds the parameters for the jobs. It fails if an id is no UUID.
func columnsOf(jobs []*NewJob) (*columns, error) {
	c := &columns{types: make([][]byte, len(jobs)), args: make([][]byte, len(jobs))}
	for n, j := range jobs {
		c.types[n], c.args[n] = j.Type, j.Args
		put(&c.queues, j.Queue, j.Queue != nil, n, len(jobs))
		put(&c.metas, j.Meta, j.Meta != nil, n, len(jobs))
		put(&c.retries, j.Retry, j.Retry != nil, n, len(jobs))
		put(&c.options, j.Options, j.Options != nil, n, len(jobs))
		put(&c.extras, j.Extra, j.Extra != nil, n, len(jobs))
		put(&c.tags, j.Tags, j.Tags != nil, n, len(jobs))
		put(&c.scheduledAt, j.ScheduledAt, j.ScheduledAt != nil, n, len(jobs))
		put(&c.expiresAt, j.ExpiresAt, j.ExpiresAt != nil, n, len(jobs))
		put(&c.priorities, j.Priority, j.Priority != nil, n, len(jobs))
		put(&c.maxAttempts, j.MaxAttempts, j.MaxAttempts != nil, n, len(jobs))
		put(&c.timeouts, j.TimeoutMs, j.TimeoutMs != nil, n, len(jobs))
		put(&c.visibility, j.VisibilityTimeoutMs, j.VisibilityTimeoutMs != nil, n, len(jobs))
		put(&c.pending, j.Pending, j.Pending != nil, n, len(jobs))
		put(&c.tenants, j.Tenant, j.Tenant != nil, n, len(jobs))
		if j.ID != nil {
			id, err := uuid.Parse(*j.ID)
			if err != nil {
				return nil, fmt.Errorf("read the id of a job: %w", err)
			}
			put(&c.ids, pgtype.UUID{Bytes: id, Valid: true}, true, n, len(jobs))
		}
	}
	return c, nil
}

// put sets the value of job n of jobs in a column. It makes the column when the first job has a
// value for it; a nil column is sent as null, which costs nothing.
func put[T any](column *[]T, value T, given bool, n, jobs int) {
	if !given {
		return
	}
	if *column == nil {
		*column = make([]T, jobs)
	}
	(*column)[n] = value
}

// enqueue inserts the jobs with ojs.enqueue_rows and calls made for each of them with the stored
// job or its error. With each, a job that is refused does not keep the others from being stored;
// without it the statement fails as a whole. tenant is the tenant that the call acts for. If enqueue
// returns an error, no job is stored, whatever made was told.
func enqueue(
	ctx context.Context, db sqlcgen.DBTX, jobs []*NewJob, tenant *string, each bool, made func(n int, job sqlcgen.OjsJob, err error),
) error {
	c, err := columnsOf(jobs)
	if err != nil {
		return err
	}
	rows, err := db.Query(ctx, enqueueRows,
		c.types, c.args, c.queues, c.priorities, c.scheduledAt, c.expiresAt, c.metas, c.retries, c.maxAttempts, c.timeouts,
		c.visibility, c.tags, c.pending, c.options, c.extras, c.ids, c.tenants, tenant, each)
	if err != nil {
		return err
	}
	return readOutcomes(rows, len(jobs), func(n int, stored *jobrow.Rows, refusal error) error {
		if refusal != nil {
			made(n, sqlcgen.OjsJob{}, refusal)
			return nil
		}
		job, err := jobs[n].made()
		if err == nil {
			err = stored.Read(&job)
		}
		// The statement does not return what it always stores like this.
		if job.EnqueuedAt = job.CreatedAt; job.Meta == nil {
			job.Meta = []byte("{}")
		}
		made(n, job, nil)
		return err
	})
}

// made returns the part of the stored job that the client has sent and SQL does not change. It
// fails if the tags are no JSON.
func (j *NewJob) made() (job sqlcgen.OjsJob, err error) {
	job = sqlcgen.OjsJob{
		Type: string(j.Type), Queue: "default", Args: j.Args, Options: j.Options, Extra: j.Extra,
		TimeoutMs: j.TimeoutMs, VisibilityTimeoutMs: j.VisibilityTimeoutMs,
	}
	if j.Queue != nil {
		job.Queue = string(j.Queue)
	}
	if j.Tags == nil {
		return job, nil
	}
	job.Tags = []string{}
	// jsonbody reads bodies with the same setting. A stricter decoder here would fail on tags that are
	// stored already.
	dec := jsontext.NewDecoder(bytes.NewBuffer(j.Tags), jsontext.AllowInvalidUTF8(true))
	if _, err = dec.ReadToken(); err != nil {
		return job, err
	}
	for dec.PeekKind() == '"' {
		tag, err := dec.ReadToken()
		if err != nil {
			return job, err
		}
		job.Tags = append(job.Tags, tag.String())
	}
	return job, nil
}

// appendJSON appends the job as a JSON object, in the form that ojs.enqueue_once takes. Fields that
// are JSON already are copied byte for byte.
func (j *NewJob) appendJSON(b []byte) []byte {
	b = append(b, '{')
	raw := func(name string, value []byte) {
		if value == nil {
			return
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), '"', ':')
		b = append(b, value...)
	}
	text := func(name string, value []byte) {
		if value != nil {
			raw(name, jsonbody.AppendString(nil, string(value)))
		}
	}
	number := func(name string, value *int32) {
		if value != nil {
			raw(name, strconv.AppendInt(nil, int64(*value), 10))
		}
	}
	if j.Tenant != nil {
		text("tenant", []byte(*j.Tenant))
	}
	text("type", j.Type)
	raw("args", j.Args)
	if j.ID != nil {
		text("id", []byte(*j.ID))
	}
	text("queue", j.Queue)
	number("priority", j.Priority)
	number("max_attempts", j.MaxAttempts)
	number("timeout_ms", j.TimeoutMs)
	number("visibility_timeout_ms", j.VisibilityTimeoutMs)
	text("scheduled_at", j.ScheduledAt)
	text("expires_at", j.ExpiresAt)
	raw("retry", j.Retry)
	raw("tags", j.Tags)
	if j.Pending != nil {
		raw("pending", strconv.AppendBool(nil, *j.Pending))
	}
	raw("meta", j.Meta)
	raw("options", j.Options)
	raw("extra", j.Extra)
	return append(b, '}')
}
