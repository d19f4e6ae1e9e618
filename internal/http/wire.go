package httpapi

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Shapes of responses that hold jobs, written by hand: encoding/json compacts a RawMessage and
// escapes <, > and &, and args must come back byte for byte. Everything else is plain structs.

// writer appends a JSON object's fields in order.
type writer struct {
	b     []byte
	comma bool
}

func (w *writer) open() {
	w.b = append(w.b, '{')
	w.comma = false
}

func (w *writer) close() {
	w.b = append(w.b, '}')
	w.comma = true
}

func (w *writer) key(name string) {
	if w.comma {
		w.b = append(w.b, ',')
	}
	w.comma = true
	w.b = append(w.b, '"')
	w.b = append(w.b, name...) // ours: there is nothing to escape
	w.b = append(w.b, '"', ':')
}

func (w *writer) raw(name string, raw []byte) {
	w.key(name)
	w.b = append(w.b, raw...)
}

// verbatim writes a member as the client spelled it, escapes of the key included.
func (w *writer) verbatim(m member) {
	if w.comma {
		w.b = append(w.b, ',')
	}
	w.comma = true
	w.b = append(w.b, m.rawKey...)
	w.b = append(w.b, ':')
	w.b = append(w.b, m.raw...)
}

func (w *writer) text(name, v string) {
	w.key(name)
	w.b = dispatch.AppendString(w.b, v)
}

func (w *writer) integer(name string, v int64) {
	w.key(name)
	w.b = strconv.AppendInt(w.b, v, 10)
}

func (w *writer) flag(name string, v bool) {
	w.key(name)
	w.b = strconv.AppendBool(w.b, v)
}

func (w *writer) time(name string, at *time.Time) {
	if at != nil {
		w.key(name)
		w.b = appendTime(w.b, *at)
	}
}

func (w *writer) pagination(p paginationJSON) {
	w.key("pagination")
	shown, _ := json.Marshal(p) // numbers and a boolean
	w.b = append(w.b, shown...)
}

// listed is a list under each of the names that clients read, and what follows it, in parts: the list is there once.
func listed(list []byte, names []string, rest func(*writer)) (body [][]byte) {
	w := writer{}
	w.open()
	for _, name := range names {
		w.key(name)
		body = append(body, w.b, list)
		w.b = nil
	}
	rest(&w)
	w.close()
	return append(body, w.b)
}

func (w *writer) texts(name string, values []string) {
	w.key(name)
	w.b = append(w.b, '[')
	for i, v := range values {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = dispatch.AppendString(w.b, v)
	}
	w.b = append(w.b, ']')
}

// appendTime writes RFC 3339 in UTC, with a fraction only when there is one, so that a client
// gets 2099-12-31T23:59:59Z back as it wrote it.
func appendTime(b []byte, at time.Time) []byte {
	b = append(b, '"')
	b = at.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

// attr is an attribute that one response adds to a job.
type attr struct {
	name string
	raw  []byte
}

// appendJob writes a job envelope. Every response shows the same job; FETCH alone adds the lease.
func (s *Server) appendJob(b []byte, j *sqlcgen.OjsJob, more ...attr) []byte {
	w := writer{b: b}
	w.open()
	w.text("specversion", "1.0")
	w.text("id", j.ID)
	w.text("type", j.Type)
	w.text("queue", j.Queue)
	w.text("state", j.State)
	w.raw("args", j.Args)
	w.key("meta")
	w.b = s.appendMeta(w.b, j)
	w.integer("priority", int64(j.Priority))
	w.integer("attempt", int64(j.Attempt))
	w.integer("max_attempts", int64(j.MaxAttempts))
	w.time("created_at", &j.CreatedAt)
	w.time("enqueued_at", &j.EnqueuedAt)
	w.time("scheduled_at", j.ScheduledAt)
	w.time("expires_at", j.ExpiresAt)
	w.time("started_at", j.StartedAt)
	switch j.State {
	case "completed":
		w.time("completed_at", j.FinishedAt)
	case "discarded":
		// A job that expired before anybody started it never completed anything.
		if j.StartedAt != nil {
			w.time("completed_at", j.FinishedAt)
		}
		w.time("discarded_at", j.FinishedAt)
	case "cancelled":
		w.time("cancelled_at", j.FinishedAt)
	case "retryable":
		w.time("next_attempt_at", j.RetryAt)
	}
	if j.TimeoutMs != nil {
		w.integer("timeout_ms", int64(*j.TimeoutMs))
	}
	if j.VisibilityTimeoutMs != nil {
		w.integer("visibility_timeout_ms", int64(*j.VisibilityTimeoutMs))
	}
	if j.Tags != nil {
		w.texts("tags", j.Tags)
	}
	if j.Retry != nil {
		w.raw("retry", j.Retry)
	}
	if j.Options != nil {
		w.raw("options", j.Options)
		for _, m := range members(j.Options) {
			if m.key == "unique" {
				w.raw("unique", m.raw)
			}
		}
	}
	if j.WorkerID != nil {
		w.text("worker_id", *j.WorkerID)
	}
	if failures := failuresOf(j); len(failures) > 0 {
		last := failures[len(failures)-1]
		if j.State != "completed" {
			w.raw("error", last)
		}
		w.raw("errors", j.Errors)
		if delay, ok := retryDelay(j, last); ok {
			w.integer("retry_delay_ms", delay)
		}
	}
	if j.Result != nil {
		w.raw("result", j.Result)
	}
	for _, a := range more {
		w.raw(a.name, a.raw)
	}
	if j.Extra != nil {
		// SQL producers may store any object here; what would repeat an attribute is left out.
		for _, m := range members(j.Extra) {
			if !written[m.key] {
				w.verbatim(m)
			}
		}
	}
	w.close()
	return w.b
}

// appendMeta shows the tenant in meta, where OJS looks for it, unless nobody named one.
func (s *Server) appendMeta(b []byte, j *sqlcgen.OjsJob) []byte {
	var fields []member
	if len(j.Meta) > 2 {
		fields = members(j.Meta)
	}
	for _, m := range fields {
		if m.key == "tenant_id" {
			return append(b, j.Meta...)
		}
	}
	if j.TenantID == s.defaultTenant() {
		return append(b, j.Meta...)
	}
	b = append(b, `{"tenant_id":`...)
	b = dispatch.AppendString(b, j.TenantID)
	for _, m := range fields {
		b = append(b, ',')
		b = append(b, m.rawKey...)
		b = append(b, ':')
		b = append(b, m.raw...)
	}
	return append(b, '}')
}

func failuresOf(j *sqlcgen.OjsJob) [][]byte {
	if len(j.Errors) == 0 || kind(j.Errors) != "array" {
		return nil
	}
	return elements(j.Errors)
}

// retryDelay is the wait that followed the latest failure, in milliseconds. It is not stored: it
// is the distance from the failure to the time the retry was set for.
func retryDelay(j *sqlcgen.OjsJob, last []byte) (int64, bool) {
	if j.RetryAt == nil || kind(last) != "object" {
		return 0, false
	}
	for _, m := range members(last) {
		if m.key != "occurred_at" || kind(m.raw) != "string" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, unquote(m.raw))
		if err != nil || at.After(*j.RetryAt) {
			return 0, false
		}
		return j.RetryAt.Sub(at).Milliseconds(), true // the error keeps milliseconds
	}
	return 0, false
}

func (s *Server) appendJobs(b []byte, jobs []sqlcgen.OjsJob, more func(*sqlcgen.OjsJob) []attr) []byte {
	b = append(slices.Grow(b, sizeOf(jobs)), '[')
	for i := range jobs {
		if i > 0 {
			b = append(b, ',')
		}
		var extra []attr
		if more != nil {
			extra = more(&jobs[i])
		}
		b = s.appendJob(b, &jobs[i], extra...)
	}
	return append(b, ']')
}

// sizeOf is about how many bytes jobs will have.
func sizeOf(jobs []sqlcgen.OjsJob) int {
	size := 2
	for i := range jobs {
		j := &jobs[i]
		size += 700 + len(j.Args) + len(j.Meta) + len(j.Retry) + len(j.Options) + len(j.Extra) + len(j.Errors) + len(j.Result)
		for _, tag := range j.Tags {
			size += len(tag) + 3
		}
	}
	return size
}

// stamp is a time in a response made of structs.
type stamp time.Time

func (t stamp) MarshalJSON() ([]byte, error) { return appendTime(nil, time.Time(t)), nil }

func stampOf(at *time.Time) *stamp {
	if at == nil {
		return nil
	}
	s := stamp(*at)
	return &s
}

var _ json.Marshaler = stamp{}
