package httpapi

import (
	"slices"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Answers that hold jobs are written by hand: encoding/json compacts a RawMessage and escapes <, >
// and &, but args must come back byte for byte. All other answers are plain structs.

// wire writes the jobs of one answer.
type wire struct {
	defaultTenant string // empty if it is not known
}

// wire returns the wire of one answer. Call it once for an answer, and not for each of a thousand
// jobs, because it may have to wait for the database.
func (s *Server) wire() wire { return wire{s.defaultTenant.name()} }

// appendJob appends a job envelope to b, and the attributes in more. Every answer shows the same
// job; only FETCH adds the lease.
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
		// A job that expired before any attempt has not completed anything.
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

// writeOptions writes the optional settings of a job that its producer gave.
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

// writeFailures writes the errors of the failed attempts, the latest one also by itself, and how
// long the wait after it is.
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

// writeExtra writes the attributes of a job that this server does not know. Producers that use SQL
// may store any object there, so attributes whose names are in sets are left out: they would repeat
// others.
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

// appendMeta appends a job's meta with its tenant, because OJS looks for the tenant there. It
// leaves out the default tenant.
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

// failuresOf returns the errors of the failed attempts of a job.
func failuresOf(j *sqlcgen.OjsJob) [][]byte {
	if len(j.Errors) == 0 || jsonbody.Kind(j.Errors) != "array" {
		return nil
	}
	return jsonbody.Elements(j.Errors)
}

// retryDelay returns the wait that follows the latest failure, in milliseconds. The wait is not
// stored: it is the time from the failure to the time that the retry was set for.
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

// sizeOf estimates how many bytes jobs have in an answer.
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
