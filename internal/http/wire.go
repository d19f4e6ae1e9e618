package httpapi

import (
	"slices"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Shapes of responses that hold jobs, written by hand: encoding/json compacts a RawMessage and
// escapes <, > and &, and args must come back byte for byte. Everything else is plain structs.

// wire writes the jobs of one answer.
type wire struct {
	defaultTenant string // empty: not known
}

// wire is made once for an answer, because it may have to wait for the database: for each of a thousand jobs, that would be too long.
func (s *Server) wire() wire { return wire{s.defaultTenant.name()} }

// appendJob writes a job envelope. Every response shows the same job; FETCH alone adds the lease.
func (out wire) appendJob(b []byte, j *sqlcgen.OjsJob, more ...jsonbody.Attr) []byte {
	w := jsonbody.Writer{B: b}
	w.Open()
	w.Text("specversion", "1.0")
	w.Text("id", j.ID)
	w.Text("type", j.Type)
	w.Text("queue", j.Queue)
	w.Text("state", j.State)
	w.Raw("args", j.Args)
	w.Key("meta")
	w.B = out.appendMeta(w.B, j)
	w.Integer("priority", int64(j.Priority))
	w.Integer("attempt", int64(j.Attempt))
	w.Integer("max_attempts", int64(j.MaxAttempts))
	w.Time("created_at", &j.CreatedAt)
	w.Time("enqueued_at", &j.EnqueuedAt)
	w.Time("scheduled_at", j.ScheduledAt)
	w.Time("expires_at", j.ExpiresAt)
	w.Time("started_at", j.StartedAt)
	writeEnd(&w, j)
	writeOptions(&w, j)
	if j.WorkerID != nil {
		w.Text("worker_id", *j.WorkerID)
	}
	writeFailures(&w, j)
	if j.Result != nil {
		w.Raw("result", j.Result)
	}
	for _, a := range more {
		w.Raw(a.Name, a.Raw)
	}
	writeExtra(&w, j.Extra, written)
	w.Close()
	return w.B
}

// writeEnd writes when the job, or its latest attempt, ended.
func writeEnd(w *jsonbody.Writer, j *sqlcgen.OjsJob) {
	switch j.State {
	case "completed":
		w.Time("completed_at", j.FinishedAt)
	case "discarded":
		// A job that expired before anybody started it never completed anything.
		if j.StartedAt != nil {
			w.Time("completed_at", j.FinishedAt)
		}
		w.Time("discarded_at", j.FinishedAt)
	case "cancelled":
		w.Time("cancelled_at", j.FinishedAt)
	case "retryable":
		w.Time("next_attempt_at", j.RetryAt)
	}
}

// writeOptions writes what the producer asked for and need not have.
func writeOptions(w *jsonbody.Writer, j *sqlcgen.OjsJob) {
	if j.TimeoutMs != nil {
		w.Integer("timeout_ms", int64(*j.TimeoutMs))
	}
	if j.VisibilityTimeoutMs != nil {
		w.Integer("visibility_timeout_ms", int64(*j.VisibilityTimeoutMs))
	}
	if j.Tags != nil {
		w.Texts("tags", j.Tags)
	}
	if j.Retry != nil {
		w.Raw("retry", j.Retry)
	}
	if j.Options != nil {
		w.Raw("options", j.Options)
		for _, m := range jsonbody.Members(j.Options) {
			if m.Key == "unique" {
				w.Raw("unique", m.Raw)
			}
		}
	}
}

// writeFailures writes why attempts failed, the latest one twice, and how long the wait after it is.
func writeFailures(w *jsonbody.Writer, j *sqlcgen.OjsJob) {
	if failures := failuresOf(j); len(failures) > 0 {
		last := failures[len(failures)-1]
		if j.State != "completed" {
			w.Raw("error", last)
		}
		w.Raw("errors", j.Errors)
		if delay, ok := retryDelay(j, last); ok {
			w.Integer("retry_delay_ms", delay)
		}
	}
}

// writeExtra writes attributes that are none of ours. SQL producers may store any object there; what would repeat an attribute of one of
// these sets is left out.
func writeExtra(w *jsonbody.Writer, extra []byte, sets ...map[string]bool) {
	if extra == nil {
		return
	}
	for _, m := range jsonbody.Members(extra) {
		if !slices.ContainsFunc(sets, func(set map[string]bool) bool { return set[m.Key] }) {
			w.Verbatim(m)
		}
	}
}

// appendMeta shows the tenant in meta, where OJS looks for it, unless nobody named one.
func (out wire) appendMeta(b []byte, j *sqlcgen.OjsJob) []byte {
	var fields []jsonbody.Member
	if len(j.Meta) > 2 {
		fields = jsonbody.Members(j.Meta)
	}
	for _, m := range fields {
		if m.Key == "tenant_id" {
			return append(b, j.Meta...)
		}
	}
	if j.TenantID == out.defaultTenant {
		return append(b, j.Meta...)
	}
	b = append(b, `{"tenant_id":`...)
	b = jsonbody.AppendString(b, j.TenantID)
	for _, m := range fields {
		b = append(b, ',')
		b = append(b, m.RawKey...)
		b = append(b, ':')
		b = append(b, m.Raw...)
	}
	return append(b, '}')
}

func failuresOf(j *sqlcgen.OjsJob) [][]byte {
	if len(j.Errors) == 0 || jsonbody.Kind(j.Errors) != "array" {
		return nil
	}
	return jsonbody.Elements(j.Errors)
}

// retryDelay is the wait that followed the latest failure, in milliseconds. It is not stored: it
// is the distance from the failure to the time the retry was set for.
func retryDelay(j *sqlcgen.OjsJob, last []byte) (int64, bool) {
	if j.RetryAt == nil || jsonbody.Kind(last) != "object" {
		return 0, false
	}
	for _, m := range jsonbody.Members(last) {
		if m.Key != "occurred_at" || jsonbody.Kind(m.Raw) != "string" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, jsonbody.Unquote(m.Raw))
		if err != nil || at.After(*j.RetryAt) {
			return 0, false
		}
		return j.RetryAt.Sub(at).Milliseconds(), true // the error keeps milliseconds
	}
	return 0, false
}

func (out wire) appendJobs(b []byte, jobs []sqlcgen.OjsJob, more func(*sqlcgen.OjsJob) []jsonbody.Attr) []byte {
	b = append(slices.Grow(b, sizeOf(jobs)), '[')
	for i := range jobs {
		if i > 0 {
			b = append(b, ',')
		}
		var extra []jsonbody.Attr
		if more != nil {
			extra = more(&jobs[i])
		}
		b = out.appendJob(b, &jobs[i], extra...)
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
