package httpapi

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/pg"
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
var written = kit.Set("specversion", "id", "type", "queue", "state", "args", "meta", "priority", "attempt", "max_attempts",
	"created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at", "scheduled_at", "expires_at",
	"next_attempt_at", "retry_delay_ms", "timeout_ms", "visibility_timeout_ms", "tags", "retry", "options", "unique",
	"error", "errors", "result", "result_stored_at", "result_expires_at", "result_size_bytes", "lease", "lease_expires_at", "worker_id", "previous_state", "activated_at")

// optionColumns are the options that SQL has a parameter for.
var optionColumns = kit.Set("queue", "priority", "retry", "tags", "max_attempts", "timeout_ms", "visibility_timeout_ms",
	"scheduled_at", "delay_until", "expires_at", "pending", "metadata", "meta", "timeout")

// topLevel are core spellings consumed from the top of the envelope although no attribute of
// that name comes back.
var topLevel = kit.Set("timeout", "delay_until")

// appendFlat writes the object for ojs.enqueue_many, without its tenant, and says who that is; nil: nobody was named. Faults
// go to the envelope's shared fault.
func appendFlat(b []byte, job *kit.Object, header *string, headerName string, now time.Time) (flat []byte, tenant *string) {
	options := job.Child("options")
	if options == nil {
		options = &kit.Object{Path: job.At("options"), Fault: job.Fault}
	}
	f := flattener{b: append(b, '{'), job: job, options: options, now: now}

	if v := job.Text("specversion"); v != nil && *v != "1.0" && *v != "1.0.0" && *v != "1.0.0-rc.1" {
		job.Fail(kit.Refuse(kit.CodeUnsupported, job.At("specversion"), "%s %q is not supported; this server speaks 1.0", job.At("specversion"), *v))
	}
	if job.Raw("type") == nil {
		job.Missing("type")
	}
	f.raw("type", job.Typed("type", "string"))
	if !job.Has("args") {
		job.Missing("args")
	} else if got := kit.Kind(job.Verbatim("args")); got != "array" {
		err := kit.Invalid(job.At("args"), "must be an array, not %s", got)
		err.Details["expected"], err.Details["received"] = "array", got
		job.Fail(err)
	}
	f.raw("args", job.Verbatim("args"))
	if v := job.ID("id"); v != nil {
		f.raw("id", job.Raw("id"))
	}
	job.Text("schema") // an unknown attribute to this server, but the core says it is a string

	f.text("queue")
	f.integer("priority")
	f.integer("max_attempts")
	f.timeout()
	f.integer("visibility_timeout_ms")
	f.times("scheduled_at", "delay_until")
	f.times("expires_at")
	if raw := f.either("retry", "object"); raw != nil {
		job.Storable(raw, f.where("retry"))
		f.raw("retry", raw)
	}
	job.Texts("tags")
	options.Texts("tags")
	f.raw("tags", f.either("tags", "array"))
	if v := options.Flag("pending"); v != nil {
		f.raw("pending", options.Raw("pending"))
	}
	tenant = f.meta(header, headerName)
	f.leftovers()
	return append(f.b, '}'), tenant
}

type flattener struct {
	b       []byte
	job     *kit.Object
	options *kit.Object
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
	a, b := f.options.Typed(key, want), f.job.Typed(key, want)
	if a == nil {
		return b
	}
	if b != nil && string(a) != string(b) {
		f.disagree(f.options.At(key), f.job.At(key))
	}
	return a
}

// where says which spelling of a field the client used.
func (f *flattener) where(key string) string {
	if f.options.Raw(key) != nil {
		return f.options.At(key)
	}
	return f.job.At(key)
}

func (f *flattener) disagree(one, other string) {
	f.job.Fail(kit.Invalid(one, "disagrees with %s", other))
}

func (f *flattener) text(key string) {
	f.raw(key, f.either(key, "string"))
}

func (f *flattener) integer(key string) {
	a, b := f.options.Integer(key, -1<<31), f.job.Integer(key, -1<<31)
	switch {
	case a == nil && b == nil:
		return
	case a == nil:
		a = b
	case b != nil && *a != *b:
		f.disagree(f.options.At(key), f.job.At(key))
	}
	f.raw(key, strconv.AppendInt(nil, int64(*a), 10))
}

// timeout knows the core's attribute in seconds (0: no limit) beside the option in milliseconds.
func (f *flattener) timeout() {
	seconds, at := f.job.Integer("timeout", 0), f.job.At("timeout")
	if v := f.options.Integer("timeout", 0); v != nil {
		if seconds != nil && *seconds != *v {
			f.disagree(f.options.At("timeout"), at)
		}
		seconds, at = v, f.options.At("timeout")
	}
	if seconds == nil {
		f.integer("timeout_ms")
		return
	}
	ms := int64(*seconds) * 1000
	if ms > 1<<31-1 {
		f.job.Fail(kit.Invalid(at, "must be at most %d", (1<<31-1)/1000))
		return
	}
	for _, o := range [...]*kit.Object{f.options, f.job} {
		if v := o.Integer("timeout_ms", -1<<31); v != nil && int64(*v) != ms {
			f.disagree(o.At("timeout_ms"), at)
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
		for _, o := range [...]*kit.Object{f.options, f.job} {
			v := o.When(name, f.now)
			switch {
			case v == nil:
			case at == nil:
				at, from, raw = v, o.At(name), kit.AppendTime(nil, *v)
				if text := kit.Unquote(o.Raw(name)); text[0] == '+' {
					raw = o.Raw(name)
				}
			case !at.Equal(*v):
				f.disagree(o.At(name), from)
			}
		}
	}
	f.raw(key, raw)
}

// meta joins meta, options.metadata and options.meta, and settles whose job it is.
func (f *flattener) meta(header *string, headerName string) (tenant *string) {
	sources := [...]*kit.Object{f.job.Child("meta"), f.options.Child("metadata"), f.options.Child("meta")}
	var fields []kit.Member
	for _, o := range sources {
		switch {
		case o == nil:
		case fields == nil:
			fields = o.Fields
		default:
			given := make(map[string]bool, len(fields))
			for _, m := range fields {
				given[m.Key] = true
			}
			fields = fields[:len(fields):len(fields)]
			for _, m := range o.Fields {
				if !given[m.Key] {
					fields = append(fields, m)
				}
			}
		}
	}
	id := header
	for _, o := range sources {
		if o == nil || !o.Has("tenant_id") {
			continue
		}
		raw, at := o.Verbatim("tenant_id"), o.At("tenant_id")
		if got := kit.Kind(raw); got != "string" {
			f.job.Fail(kit.Invalid(at, "must be a string, not %s", got))
			return nil
		}
		v := kit.Unquote(raw)
		if v == "" {
			f.job.Fail(kit.Invalid(at, "must not be empty"))
			return nil
		}
		if header != nil && v != *header {
			err := kit.Refuse(kit.CodeTenantMismatch, at, "%s is %q but the header %s says %q", at, kit.Clip(v), headerName, *header)
			err.Details["tenant_id"] = *header
			f.job.Fail(err)
			return nil
		}
		id = &v
		break
	}
	if len(fields) == 0 {
		return id
	}
	for _, m := range fields {
		f.job.Storable(m.Raw, string(kit.AppendKey([]byte(f.job.At("meta")), m.Key)))
	}
	f.raw("meta", kit.Splice(fields))
	return id
}

func (f *flattener) leftovers() {
	var options, extra []kit.Member
	for _, m := range f.options.Fields {
		if !optionColumns[m.Key] {
			options = append(options, m)
		}
	}
	if unique := f.job.Typed("unique", "object"); unique != nil {
		if given := f.options.Raw("unique"); given == nil {
			options = append(options, kit.Member{RawKey: []byte(`"unique"`), Raw: unique})
		} else if string(given) != string(unique) {
			f.disagree(f.options.At("unique"), f.job.At("unique"))
		}
	}
	f.options.Typed("unique", "object")
	for _, m := range f.job.Fields {
		if !written[m.Key] && !topLevel[m.Key] {
			extra = append(extra, m)
		}
	}
	if options != nil {
		f.raw("options", kit.Splice(options))
	}
	if extra != nil {
		f.raw("extra", kit.Splice(extra))
	}
}

// locate turns SQL's name of a field into the path the client wrote: retry.max_attempts of the
// fourth job of a batch is jobs[3].options.retry.max_attempts.
func locate(job *kit.Object, header string, field string) string {
	first, rest := field, ""
	if i := strings.IndexAny(field, ".["); i >= 0 {
		first, rest = field[:i], field[i:]
	}
	if first == "tenant" || first == "tenant_id" {
		if header != "" {
			return header
		}
		return job.At("meta") + ".tenant_id"
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
	options := &kit.Object{}
	if raw := job.Raw("options"); raw != nil && kit.Kind(raw) == "object" {
		options = &kit.Object{Path: job.At("options"), Fields: kit.Members(raw)}
	}
	for _, name := range names {
		if optionColumns[name] && options.Has(name) {
			return options.At(name) + rest
		}
		if job.Has(name) {
			return job.At(name) + rest
		}
	}
	return job.At(first) + rest
}

// relocate rewrites an error of ojs.enqueue_many in the client's terms.
func relocate(err *pg.Error, jobs []*kit.Object, header string, batch bool) {
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
