package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const enqueueRows = "select n, sqlstate, message, detail, tenant_id, id, state, max_attempts, created_at, scheduled_at, expires_at, " +
	"meta, retry from ojs.enqueue_rows($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)"

// newJobs are jobs to be, field by field: a list for each field that one of them has.
type newJobs struct {
	types                  []*string
	args                   [][]byte
	queues                 []*string
	priorities             []*int32
	scheduledAt, expiresAt []*string
	metas, retries         [][]byte
	maxAttempts            []*int32
	timeouts, visibility   []*int32
	tags                   [][]byte
	pending                []*bool
	options, extras        [][]byte
	ids                    []pgtype.UUID
	tenants                []*string

	count, next int
}

// columnsOf takes flat objects apart, whose fields are those of ojs.enqueue_many, each of the type it should have.
func columnsOf(flats [][]byte) (*newJobs, error) {
	jobs := &newJobs{count: len(flats), types: make([]*string, len(flats)), args: make([][]byte, len(flats))}
	var dec jsontext.Decoder
	for _, flat := range flats {
		dec.Reset(bytes.NewBuffer(flat), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		if _, err := dec.ReadToken(); err != nil {
			return nil, fmt.Errorf("read a job: %w", err)
		}
		for dec.PeekKind() == '"' {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, fmt.Errorf("read a job: %w", err)
			}
			key := name.String()
			value, err := dec.ReadValue()
			if err == nil && value.Kind() != 'n' {
				end := int(dec.InputOffset())
				err = jobs.set(key, flat[end-len(value):end:end])
			}
			if err != nil {
				return nil, fmt.Errorf("read the field %s of a job: %w", key, err)
			}
		}
		jobs.next++
	}
	return jobs, nil
}

func (j *newJobs) set(key string, raw jsontext.Value) error {
	switch key {
	case "type":
		return put(j, &j.types, raw, asText)
	case "args":
		return put(j, &j.args, raw, asIs)
	case "queue":
		return put(j, &j.queues, raw, asText)
	case "priority":
		return put(j, &j.priorities, raw, asNumber)
	case "scheduled_at":
		return put(j, &j.scheduledAt, raw, asText)
	case "expires_at":
		return put(j, &j.expiresAt, raw, asText)
	case "meta":
		return put(j, &j.metas, raw, asIs)
	case "retry":
		return put(j, &j.retries, raw, asIs)
	case "max_attempts":
		return put(j, &j.maxAttempts, raw, asNumber)
	case "timeout_ms":
		return put(j, &j.timeouts, raw, asNumber)
	case "visibility_timeout_ms":
		return put(j, &j.visibility, raw, asNumber)
	case "tags":
		return put(j, &j.tags, raw, asIs)
	case "pending":
		return put(j, &j.pending, raw, func(raw jsontext.Value) (*bool, error) {
			on := raw.Kind() == 't'
			return &on, nil
		})
	case "options":
		return put(j, &j.options, raw, asIs)
	case "extra":
		return put(j, &j.extras, raw, asIs)
	case "id":
		return put(j, &j.ids, raw, func(raw jsontext.Value) (id pgtype.UUID, err error) {
			text, err := textOf(raw)
			if err == nil {
				id.Bytes, err = uuid.Parse(text)
			}
			id.Valid = err == nil
			return id, err
		})
	case "tenant":
		return put(j, &j.tenants, raw, asText)
	}
	return fmt.Errorf("no such field")
}

// put gives the next job a field.
func put[T any](j *newJobs, column *[]T, raw jsontext.Value, as func(jsontext.Value) (T, error)) error {
	if *column == nil {
		*column = make([]T, j.count)
	}
	v, err := as(raw)
	(*column)[j.next] = v
	return err
}

func asIs(raw jsontext.Value) ([]byte, error) { return raw, nil }

func asText(raw jsontext.Value) (*string, error) {
	text, err := textOf(raw)
	return &text, err
}

func textOf(raw jsontext.Value) (string, error) {
	if raw.Kind() != '"' {
		return "", fmt.Errorf("%s is no string", raw)
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	return string(text), err
}

func asNumber(raw jsontext.Value) (*int32, error) {
	n, err := strconv.ParseInt(string(raw), 10, 32)
	short := int32(n)
	return &short, err
}

// objectsOf splits an array of so many objects.
func objectsOf(array []byte, count int) ([][]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(array), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil, fmt.Errorf("read an array of jobs: %w", err)
	}
	flats := make([][]byte, 0, count)
	for dec.PeekKind() == '{' {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, fmt.Errorf("read an array of jobs: %w", err)
		}
		end := int(dec.InputOffset())
		flats = append(flats, array[end-len(value):end:end])
	}
	if len(flats) != count {
		return nil, fmt.Errorf("%d jobs in an array of %d", len(flats), count)
	}
	return flats, nil
}

// enqueue makes the jobs and hands over what became of each: what was sent, completed by what the database says, or why there is none.
func (j *newJobs) enqueue(
	ctx context.Context, db sqlcgen.DBTX, tenant *string, each bool, made func(n int, job sqlcgen.OjsJob, err error),
) error {
	rows, err := db.Query(ctx, enqueueRows,
		j.types, j.args, j.queues, j.priorities, j.scheduledAt, j.expiresAt, j.metas, j.retries, j.maxAttempts, j.timeouts,
		j.visibility, j.tags, j.pending, j.options, j.extras, j.ids, j.tenants, tenant, each)
	if err != nil {
		return err
	}
	var n, seen int
	var fault, message, owner, id, state *string
	var attempts *int32
	var created, scheduled, expires *time.Time
	var detail, meta, retry []byte
	into := []any{&n, &fault, &message, &detail, &owner, &id, &state, &attempts, &created, &scheduled, &expires, &meta, &retry}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if seen++; n < 0 || n >= j.count {
			return fmt.Errorf("a result for job %d of %d", n, j.count)
		}
		if fault != nil {
			failure := &pgconn.PgError{Severity: "ERROR", Code: *fault, Detail: string(detail)}
			if message != nil {
				failure.Message = *message
			}
			made(n, sqlcgen.OjsJob{}, failure)
			return nil
		}
		job, err := j.job(n)
		job.TenantID, job.ID, job.State, job.MaxAttempts = *owner, *id, *state, *attempts
		job.CreatedAt, job.EnqueuedAt, job.ScheduledAt, job.ExpiresAt = *created, *created, scheduled, expires
		job.Meta, job.Retry = bytes.Clone(meta), bytes.Clone(retry)
		if meta == nil {
			job.Meta = []byte("{}")
		}
		made(n, job, nil)
		return err
	})
	if err == nil && seen != j.count {
		err = fmt.Errorf("%d results for %d jobs", seen, j.count)
	}
	return err
}

// job is what was sent of a job and is stored as it is.
func (j *newJobs) job(n int) (job sqlcgen.OjsJob, err error) {
	job = sqlcgen.OjsJob{
		Args: j.args[n], Queue: "default", TimeoutMs: at(j.timeouts, n), VisibilityTimeoutMs: at(j.visibility, n),
		Options: at(j.options, n), Extra: at(j.extras, n),
	}
	if kind := j.types[n]; kind != nil {
		job.Type = *kind
	}
	if queue := at(j.queues, n); queue != nil {
		job.Queue = *queue
	}
	if priority := at(j.priorities, n); priority != nil {
		job.Priority = *priority
	}
	tags := at(j.tags, n)
	if tags == nil {
		return job, nil
	}
	job.Tags = []string{}
	dec := jsontext.NewDecoder(bytes.NewBuffer(tags), jsontext.AllowInvalidUTF8(true))
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

func at[T any](column []T, n int) (v T) {
	if column != nil {
		v = column[n]
	}
	return v
}
