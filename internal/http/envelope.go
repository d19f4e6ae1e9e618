package httpapi

import (
	"math"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// This file reads the envelope that a client sends into a dispatch.NewJob. A field of the envelope
// has up to three spellings (options.queue, the core's top-level queue, an SDK's alias); SQL has
// one. Values stay the client's own bytes, so that digits, key order and whitespace inside args
// survive.
//
// The attributes of the envelope:
//  - type, args, id and meta are taken as they are. options.metadata and options.meta are merged
//    into meta; meta wins.
//  - queue, priority, retry, tags, max_attempts, timeout_ms, visibility_timeout_ms, scheduled_at,
//    delay_until and expires_at are accepted in options and at the top; two that disagree are
//    refused. timeout, in seconds, stands for timeout_ms, in both places. pending is accepted in
//    options only.
//  - Any other option is kept verbatim and comes back under options. A top-level unique counts as
//    the option.
//  - Attributes that this server writes (state, attempt, created_at, ...) are ignored: ojs-core
//    section 5.3.
//  - Any other attribute is kept verbatim and comes back where it was (ojs-core 5.5).

// written holds the attributes of a job that this server writes itself. No unknown attribute that
// is kept or written has one of these names.
var written = jsonbody.Set("specversion", "id", "type", "queue", "state", "args", "meta", "priority", "attempt", "max_attempts",
	"created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at", "scheduled_at", "expires_at",
	"next_attempt_at", "retry_delay_ms", "timeout_ms", "visibility_timeout_ms", "tags", "retry", "options", "unique",
	"error", "errors", "result", "result_stored_at", "result_expires_at", "result_size_bytes", "lease", "lease_expires_at",
	"worker_id", "previous_state", "activated_at", "re_enqueued_at")

// optionColumns are the options that have a parameter in SQL.
var optionColumns = jsonbody.Set("queue", "priority", "retry", "tags", "max_attempts", "timeout_ms", "visibility_timeout_ms",
	"scheduled_at", "delay_until", "expires_at", "pending", "metadata", "meta", "timeout")

// topLevel are spellings of the core that are read from the top of the envelope, although no
// attribute of that name comes back.
var topLevel = jsonbody.Set("timeout", "delay_until")

// envelopeNames are the attributes that a client may mean by a misspelt name. SQL has the same list
// (ojs._misspelt) and uses it for envelopes that have a type and args; a test compares the two
// lists.
var envelopeNames = []string{
	"id", "type", "args", "meta", "queue", "priority", "retry", "tags", "options", "max_attempts", "timeout", "timeout_ms",
	"visibility_timeout_ms", "scheduled_at", "delay_until", "expires_at", "specversion", "schema", "unique", "result_ttl", "cost",
	"rate_limit",
}

// readJob reads an envelope into a job. Faults go to the envelope's shared fault. header is the
// tenant of the request, and headerName the header that named it. The job's tenant is nil if
// neither the request nor meta names one.
func readJob(job *jsonbody.Object, header *string, headerName string, now time.Time) *dispatch.NewJob {
	options := job.Child("options")
	if options == nil {
		options = &jsonbody.Object{Path: job.At("options"), Fault: job.Fault}
	}
	e := envelope{NewJob: &dispatch.NewJob{}, job: job, options: options, now: now}
	e.core()
	e.Queue = jsonbody.TextBytes(e.either("queue", "string"))
	e.Priority = e.integer("priority")
	e.MaxAttempts = e.integer("max_attempts")
	e.TimeoutMs = e.timeout()
	e.VisibilityTimeoutMs = e.integer("visibility_timeout_ms")
	e.ScheduledAt = e.times("scheduled_at", "delay_until")
	e.ExpiresAt = e.times("expires_at")
	if e.Retry = e.either("retry", "object"); e.Retry != nil {
		job.Storable(e.Retry, e.where("retry"))
	}
	job.Texts("tags")
	options.Texts("tags")
	e.Tags = e.either("tags", "array")
	e.Pending = options.Flag("pending")
	e.meta(header, headerName)
	e.leftovers()
	return e.NewJob
}

// envelope holds what readJob reads from, and the job that it fills.
type envelope struct {
	*dispatch.NewJob // the job that is filled

	job     *jsonbody.Object
	options *jsonbody.Object
	now     time.Time
}

// core reads the attributes that only stand at the top of the envelope.
func (e *envelope) core() {
	job := e.job
	if v := job.Text("specversion"); v != nil && *v != "1.0" && *v != "1.0.0" && *v != "1.0.0-rc.1" {
		at := job.At("specversion")
		job.Fail(problems.Refuse(problems.CodeUnsupported, at, "%s %q is not supported; this server speaks 1.0", at, *v))
	}
	if job.Raw("type") == nil || job.Verbatim("args") == nil {
		jsonbody.Near(job, envelopeNames...)
	}
	if job.Raw("type") == nil {
		job.Missing("type")
	}
	e.Type = jsonbody.TextBytes(job.Typed("type", "string"))
	e.Args = job.Verbatim("args")
	if e.Args == nil {
		job.Missing("args")
	} else if got := jsonbody.Kind(e.Args); got != "array" {
		job.Fail(problems.Invalid(job.At("args"), "must be an array, not %s", got).Tell("expected", "array").Tell("received", got))
	}
	e.ID = job.ID("id")
	job.Text("schema") // an unknown attribute to this server, but the core says it is a string
}

// either reads a field from options or from the top of the envelope. It fails if the two disagree.
func (e *envelope) either(key, want string) []byte {
	a, b := e.options.Typed(key, want), e.job.Typed(key, want)
	if a == nil {
		return b
	}
	if b != nil && string(a) != string(b) {
		e.disagree(e.options.At(key), e.job.At(key))
	}
	return a
}

// where returns the path of a field as the client spelled it.
func (e *envelope) where(key string) string {
	if e.options.Raw(key) != nil {
		return e.options.At(key)
	}
	return e.job.At(key)
}

// disagree refuses two spellings of one field that have different values.
func (e *envelope) disagree(one, other string) {
	e.job.Fail(problems.Invalid(one, "disagrees with %s", other))
}

// integer is either for a whole number.
func (e *envelope) integer(key string) *int32 {
	a, b := e.options.Integer(key, -1<<31), e.job.Integer(key, -1<<31)
	if a == nil {
		return b
	}
	if b != nil && *a != *b {
		e.disagree(e.options.At(key), e.job.At(key))
	}
	return a
}

// timeout returns the timeout in milliseconds, from timeout_ms or from the core's timeout, which is
// in seconds (0: no limit). It fails if they disagree.
func (e *envelope) timeout() *int32 {
	for _, o := range [...]*jsonbody.Object{e.options, e.job} {
		if raw := o.Raw("timeout"); raw != nil && jsonbody.Kind(raw) != "number" && jsonbody.Kind(raw) != "null" {
			e.job.Fail(problems.Invalid(o.At("timeout"), "must be a number of seconds, such as 30, not %s; or use timeout_ms",
				jsonbody.Kind(raw)).Tell("expected", "number").Tell("received", jsonbody.Kind(raw)))
			return nil
		}
	}
	seconds, at := e.job.Integer("timeout", 0), e.job.At("timeout")
	if v := e.options.Integer("timeout", 0); v != nil {
		if seconds != nil && *seconds != *v {
			e.disagree(e.options.At("timeout"), at)
		}
		seconds, at = v, e.options.At("timeout")
	}
	if seconds == nil {
		return e.integer("timeout_ms")
	}
	if int64(*seconds)*1000 > math.MaxInt32 {
		e.job.Fail(problems.Invalid(at, "is in seconds, and must be at most %d; or use timeout_ms", math.MaxInt32/1000))
		return nil
	}
	ms := *seconds * 1000
	for _, o := range [...]*jsonbody.Object{e.options, e.job} {
		if v := o.Integer("timeout_ms", -1<<31); v != nil && *v != ms {
			e.disagree(o.At("timeout_ms"), at)
		}
	}
	return &ms
}

// times reads a time that may have several names. It returns a time relative to now as the client
// wrote it, because the database adds it to its own clock, which also decides when the time has
// come.
func (e *envelope) times(names ...string) (text []byte) {
	var at *time.Time
	var from string
	for _, name := range names {
		for _, o := range [...]*jsonbody.Object{e.options, e.job} {
			v := o.When(name, e.now)
			switch {
			case v == nil:
			case at == nil:
				at, from = v, o.At(name)
				if text = jsonbody.TextBytes(o.Raw(name)); text[0] != '+' {
					text = v.UTC().AppendFormat(nil, time.RFC3339Nano)
				}
			case !at.Equal(*v):
				e.disagree(o.At(name), from)
			}
		}
	}
	return text
}

// meta merges meta, options.metadata and options.meta, and reads the job's tenant.
func (e *envelope) meta(header *string, headerName string) {
	sources := [...]*jsonbody.Object{e.job.Child("meta"), e.options.Child("metadata"), e.options.Child("meta")}
	names := [...]string{"meta", "metadata", "meta"}
	var fields []jsonbody.Member
	for i, o := range sources {
		switch {
		case o == nil:
		case fields == nil:
			fields, e.Meta = o.Fields, e.job.Raw(names[i])
			if i > 0 {
				e.Meta = e.options.Raw(names[i])
			}
		default:
			fields = merged(fields, o.Fields)
			e.Meta = jsonbody.Splice(fields)
		}
	}
	if len(fields) == 0 {
		e.Meta = nil
	}
	e.Tenant = e.tenant(sources[:], header, headerName)
	for _, m := range fields {
		if e.job.Err() != nil {
			return
		}
		e.job.Storable(m.Raw, string(jsonbody.AppendKey([]byte(e.job.At("meta")), m.Key)))
	}
}

// merged returns fields and those members of more whose keys fields does not have.
func merged(fields, more []jsonbody.Member) []jsonbody.Member {
	given := make(map[string]bool, len(fields))
	for _, m := range fields {
		given[m.Key] = true
	}
	fields = fields[:len(fields):len(fields)]
	for _, m := range more {
		if !given[m.Key] {
			fields = append(fields, m)
		}
	}
	return fields
}

// tenant returns the job's tenant: the header's, or else the first tenant_id in meta. It fails if
// the two differ.
func (e *envelope) tenant(metas []*jsonbody.Object, header *string, headerName string) *string {
	for _, o := range metas {
		if o == nil || !o.Has("tenant_id") {
			continue
		}
		raw, at := o.Verbatim("tenant_id"), o.At("tenant_id")
		if got := jsonbody.Kind(raw); got != "string" {
			e.job.Fail(problems.Invalid(at, "must be a string, not %s", got))
			return nil
		}
		v := jsonbody.Unquote(raw)
		switch {
		case v == "":
			e.job.Fail(problems.Invalid(at, "must not be empty"))
		case header != nil && v != *header:
			e.job.Fail(problems.Refuse(problems.CodeTenantMismatch, at, "%s is %q but the header %s says %q", at, problems.Clip(v),
				headerName, *header).Tell("tenant_id", *header))
		}
		return &v
	}
	return header
}

// leftovers keeps the options and the attributes that have no parameter in SQL.
func (e *envelope) leftovers() {
	var options, extra []jsonbody.Member
	for _, m := range e.options.Fields {
		if !optionColumns[m.Key] {
			options = append(options, m)
		}
	}
	if unique := e.job.Typed("unique", "object"); unique != nil {
		if given := e.options.Raw("unique"); given == nil {
			options = append(options, jsonbody.Member{RawKey: []byte(`"unique"`), Raw: unique})
		} else if string(given) != string(unique) {
			e.disagree(e.options.At("unique"), e.job.At("unique"))
		}
	}
	e.options.Typed("unique", "object")
	for _, m := range e.job.Fields {
		if !written[m.Key] && !topLevel[m.Key] {
			extra = append(extra, m)
		}
	}
	noTenant(e.job)
	if options != nil {
		e.Options = jsonbody.Splice(options)
	}
	if extra != nil {
		e.Extra = jsonbody.Splice(extra)
	}
}

// noTenant refuses a tenant at the top of an object. If it were ignored, the job would belong to
// another tenant.
func noTenant(o *jsonbody.Object) {
	for _, name := range [...]string{"tenant", "tenant_id"} {
		if o.Raw(name) != nil {
			o.Fail(problems.Invalid(o.At(name), "is not known; meta.tenant_id, or the header %s, is probably meant", names.TenantHeader).
				Tell("meant", "meta.tenant_id"))
		}
	}
}

// locate turns SQL's name of a field into the path that the client wrote: retry.max_attempts of the
// fourth job of a batch becomes jobs[3].options.retry.max_attempts.
func locate(job *jsonbody.Object, header string, field string) string {
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
	if field == "options.unique" && job.Has("unique") {
		return job.At("unique") // leftovers made it an option
	}
	options := &jsonbody.Object{}
	if raw := job.Raw("options"); raw != nil && jsonbody.Kind(raw) == "object" {
		options = job.Child("options")
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

// spellJobs returns the spelling of the fields of jobs. key may be nil. batch says that the client
// sent a list of jobs; without it, an index that SQL tells is cleared, because it also counts jobs
// of other clients with which the job was sent to SQL.
func spellJobs(key *idempotency, jobs []*jsonbody.Object, header string, batch bool) spelling {
	return func(problem *pg.Error) (path string) {
		index := 0
		if !batch {
			problem.Index = nil
		} else if problem.Index != nil {
			index = *problem.Index
		}
		switch {
		case key != nil && problem.Field == idempotencyField:
			return key.field
		case batch && problem.Index == nil, problem.Field == "", index >= len(jobs):
			return "" // the error is about all of them
		}
		return locate(jobs[index], header, problem.Field)
	}
}
