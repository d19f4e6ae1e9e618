package httpapi

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
)

// From the envelope a client sends to the flat object ojs.enqueue_many takes. The envelope has
// up to three spellings of a field (options.queue, the core's top-level queue, an SDK's alias);
// SQL has one. Values are spliced as bytes, so that digits, key order and whitespace inside args
// survive.
//
// What becomes of each attribute of the envelope:
//   - type, args, id, meta: themselves. options.metadata and options.meta are merged into meta; meta wins.
//   - queue, priority, retry, tags, max_attempts, timeout_ms, visibility_timeout_ms,
//     scheduled_at, delay_until, expires_at: accepted in options and at the top; two that
//     disagree are refused. timeout, in seconds, stands for timeout_ms, in both places. options.pending.
//   - any other option is kept verbatim and comes back under options. A top-level unique counts
//     as the option.
//   - attributes this server writes (state, attempt, created_at, ...) are ignored (ojs-core 5.3).
//   - any other attribute is kept verbatim and comes back where it was (ojs-core 5.5).

// written are the attributes of a job that this server writes itself, so they are never taken
// from a client nor from stored unknown attributes.
var written = set("specversion", "id", "type", "queue", "state", "args", "meta", "priority", "attempt", "max_attempts",
	"created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at", "scheduled_at", "expires_at",
	"next_attempt_at", "retry_delay_ms", "timeout_ms", "visibility_timeout_ms", "tags", "retry", "options", "unique",
	"error", "errors", "result", "result_stored_at", "result_expires_at", "result_size_bytes", "lease", "lease_expires_at", "worker_id", "previous_state", "activated_at")

// optionColumns are the options that SQL has a parameter for.
var optionColumns = set("queue", "priority", "retry", "tags", "max_attempts", "timeout_ms", "visibility_timeout_ms",
	"scheduled_at", "delay_until", "expires_at", "pending", "metadata", "meta", "timeout")

// topLevel are core spellings consumed from the top of the envelope although no attribute of
// that name comes back.
var topLevel = set("timeout", "delay_until")

func set(keys ...string) map[string]bool {
	m := make(map[string]bool, len(keys))
	for _, k := range keys {
		m[k] = true
	}
	return m
}

// appendFlat writes the object for ojs.enqueue_many, without its tenant, and says who that is; nil: nobody was named. Faults
// go to the envelope's shared fault.
func appendFlat(b []byte, job *object, header *string, headerName string, now time.Time) (flat []byte, tenant *string) {
	options := job.child("options")
	if options == nil {
		options = &object{path: job.at("options"), fault: job.fault}
	}
	f := flattener{b: append(b, '{'), job: job, options: options, now: now}

	if v := job.text("specversion"); v != nil && *v != "1.0" && *v != "1.0.0" && *v != "1.0.0-rc.1" {
		job.fail(refuse(codeUnsupported, job.at("specversion"), "%s %q is not supported; this server speaks 1.0", job.at("specversion"), *v))
	}
	if job.raw("type") == nil {
		job.missing("type")
	}
	f.raw("type", job.typed("type", "string"))
	if !job.has("args") {
		job.missing("args")
	} else if got := kind(job.verbatim("args")); got != "array" {
		err := invalid(job.at("args"), "must be an array, not %s", got)
		err.Details["expected"], err.Details["received"] = "array", got
		job.fail(err)
	}
	f.raw("args", job.verbatim("args"))
	if v := job.id("id"); v != nil {
		f.raw("id", job.raw("id"))
	}
	job.text("schema") // an unknown attribute to this server, but the core says it is a string

	f.text("queue")
	f.integer("priority")
	f.integer("max_attempts")
	f.timeout()
	f.integer("visibility_timeout_ms")
	f.times("scheduled_at", "delay_until")
	f.times("expires_at")
	if raw := f.either("retry", "object"); raw != nil {
		job.storable(raw, f.where("retry"))
		f.raw("retry", raw)
	}
	job.texts("tags")
	options.texts("tags")
	f.raw("tags", f.either("tags", "array"))
	if v := options.flag("pending"); v != nil {
		f.raw("pending", options.raw("pending"))
	}
	tenant = f.meta(header, headerName)
	f.leftovers()
	return append(f.b, '}'), tenant
}

type flattener struct {
	b       []byte
	job     *object
	options *object
	now     time.Time
}

func (f *flattener) raw(name string, raw []byte) {
	if raw == nil {
		return
	}
	if f.b[len(f.b)-1] != '{' {
		f.b = append(f.b, ',')
	}
	f.b = dispatch.AppendString(f.b, name)
	f.b = append(f.b, ':')
	f.b = append(f.b, raw...)
}

// either takes a field from options or from the top of the envelope.
func (f *flattener) either(key, want string) []byte {
	a, b := f.options.typed(key, want), f.job.typed(key, want)
	if a == nil {
		return b
	}
	if b != nil && string(a) != string(b) {
		f.disagree(f.options.at(key), f.job.at(key))
	}
	return a
}

// where says which spelling of a field the client used.
func (f *flattener) where(key string) string {
	if f.options.raw(key) != nil {
		return f.options.at(key)
	}
	return f.job.at(key)
}

func (f *flattener) disagree(one, other string) {
	f.job.fail(invalid(one, "disagrees with %s", other))
}

func (f *flattener) text(key string) {
	f.raw(key, f.either(key, "string"))
}

func (f *flattener) integer(key string) {
	a, b := f.options.integer(key, -1<<31), f.job.integer(key, -1<<31)
	switch {
	case a == nil && b == nil:
		return
	case a == nil:
		a = b
	case b != nil && *a != *b:
		f.disagree(f.options.at(key), f.job.at(key))
	}
	f.raw(key, strconv.AppendInt(nil, int64(*a), 10))
}

// timeout knows the core's attribute in seconds (0: no limit) beside the option in milliseconds.
func (f *flattener) timeout() {
	seconds, at := f.job.integer("timeout", 0), f.job.at("timeout")
	if v := f.options.integer("timeout", 0); v != nil {
		if seconds != nil && *seconds != *v {
			f.disagree(f.options.at("timeout"), at)
		}
		seconds, at = v, f.options.at("timeout")
	}
	if seconds == nil {
		f.integer("timeout_ms")
		return
	}
	ms := int64(*seconds) * 1000
	if ms > 1<<31-1 {
		f.job.fail(invalid(at, "must be at most %d", (1<<31-1)/1000))
		return
	}
	for _, o := range [...]*object{f.options, f.job} {
		if v := o.integer("timeout_ms", -1<<31); v != nil && int64(*v) != ms {
			f.disagree(o.at("timeout_ms"), at)
		}
	}
	f.raw("timeout_ms", strconv.AppendInt(nil, ms, 10))
}

// times takes a time that may be spelled several ways. What counts from now is counted by the
// database, whose clock says when it has come.
func (f *flattener) times(key string, aliases ...string) {
	var at *time.Time
	var from string
	var raw []byte
	for _, name := range append([]string{key}, aliases...) {
		for _, o := range [...]*object{f.options, f.job} {
			v := o.when(name, f.now)
			switch {
			case v == nil:
			case at == nil:
				at, from, raw = v, o.at(name), appendTime(nil, *v)
				if text := unquote(o.raw(name)); text[0] == '+' {
					raw = o.raw(name)
				}
			case !at.Equal(*v):
				f.disagree(o.at(name), from)
			}
		}
	}
	f.raw(key, raw)
}

// meta joins meta, options.metadata and options.meta, and settles whose job it is.
func (f *flattener) meta(header *string, headerName string) (tenant *string) {
	sources := [...]*object{f.job.child("meta"), f.options.child("metadata"), f.options.child("meta")}
	var fields []member
	for _, o := range sources {
		switch {
		case o == nil:
		case fields == nil:
			fields = o.fields
		default:
			given := make(map[string]bool, len(fields))
			for _, m := range fields {
				given[m.key] = true
			}
			fields = fields[:len(fields):len(fields)]
			for _, m := range o.fields {
				if !given[m.key] {
					fields = append(fields, m)
				}
			}
		}
	}
	id := header
	for _, o := range sources {
		if o == nil || !o.has("tenant_id") {
			continue
		}
		raw, at := o.verbatim("tenant_id"), o.at("tenant_id")
		if got := kind(raw); got != "string" {
			f.job.fail(invalid(at, "must be a string, not %s", got))
			return nil
		}
		v := unquote(raw)
		if v == "" {
			f.job.fail(invalid(at, "must not be empty"))
			return nil
		}
		if header != nil && v != *header {
			err := refuse(codeTenantMismatch, at, "%s is %q but the header %s says %q", at, clip(v), headerName, *header)
			err.Details["tenant_id"] = *header
			f.job.fail(err)
			return nil
		}
		id = &v
		break
	}
	if len(fields) == 0 {
		return id
	}
	for _, m := range fields {
		f.job.storable(m.raw, string(appendKey([]byte(f.job.at("meta")), m.key)))
	}
	f.raw("meta", splice(fields))
	return id
}

func (f *flattener) leftovers() {
	var options, extra []member
	for _, m := range f.options.fields {
		if !optionColumns[m.key] {
			options = append(options, m)
		}
	}
	if unique := f.job.typed("unique", "object"); unique != nil {
		if given := f.options.raw("unique"); given == nil {
			options = append(options, member{rawKey: []byte(`"unique"`), raw: unique})
		} else if string(given) != string(unique) {
			f.disagree(f.options.at("unique"), f.job.at("unique"))
		}
	}
	f.options.typed("unique", "object")
	for _, m := range f.job.fields {
		if !written[m.key] && !topLevel[m.key] {
			extra = append(extra, m)
		}
	}
	if options != nil {
		f.raw("options", splice(options))
	}
	if extra != nil {
		f.raw("extra", splice(extra))
	}
}

func splice(fields []member) []byte {
	b := []byte{'{'}
	for i, m := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, m.rawKey...)
		b = append(b, ':')
		b = append(b, m.raw...)
	}
	return append(b, '}')
}

func clip(s string) string {
	const longest = 64
	if len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(s[:longest], "") + "..."
}

// locate turns SQL's name of a field into the path the client wrote: retry.max_attempts of the
// fourth job of a batch is jobs[3].options.retry.max_attempts.
func locate(job *object, header string, field string) string {
	first, rest := field, ""
	if i := strings.IndexAny(field, ".["); i >= 0 {
		first, rest = field[:i], field[i:]
	}
	if first == "tenant" || first == "tenant_id" {
		if header != "" {
			return header
		}
		return job.at("meta") + ".tenant_id"
	}
	names := []string{first}
	switch first {
	case "scheduled_at":
		names = append(names, "delay_until")
	case "timeout_ms":
		names = append(names, "timeout")
	case "meta":
		names = append(names, "metadata")
	}
	options := &object{}
	if raw := job.raw("options"); raw != nil && kind(raw) == "object" {
		options = &object{path: job.at("options"), fields: members(raw)}
	}
	for _, name := range names {
		if optionColumns[name] && options.has(name) {
			return options.at(name) + rest
		}
		if job.has(name) {
			return job.at(name) + rest
		}
	}
	return job.at(first) + rest
}

// relocate rewrites an error of ojs.enqueue_many in the client's terms.
func relocate(err *pg.Error, jobs []*object, header string, batch bool) {
	index, ok := number(err.Details["index"])
	if !ok {
		index = 0
	}
	if !batch {
		delete(err.Details, "index")
	}
	field, _ := err.Details["field"].(string)
	if field == "" || index < 0 || index >= len(jobs) {
		return
	}
	// The message begins with the index and SQL's name of the field; people read the path they wrote.
	err.Message = strings.TrimPrefix(err.Message, fmt.Sprintf("jobs[%d]: ", index))
	rename(err, field, locate(jobs[index], header, field))
}

// rename says path, which the client wrote, where SQL says field.
func rename(err *pg.Error, field, path string) {
	err.Details["field"] = path
	if rest, ok := strings.CutPrefix(err.Message, field); ok {
		err.Message = path + rest
	} else if !strings.Contains(err.Message, path) {
		err.Message = path + ": " + err.Message
	}
}

func number(v any) (int, bool) {
	switch v := v.(type) {
	case float64:
		return int(v), true
	case int:
		return v, true
	case int64:
		return int(v), true
	}
	return 0, false
}
