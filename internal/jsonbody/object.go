// Package jsonbody reads the JSON bodies of requests strictly and writes JSON as it came. A body is read once (object.go, split.go); what
// is wrong with it is told with the path of the field (strict.go). Handlers read an Object by hand or into a struct by its tags
// (into.go), and write answers with a Writer. A client's own values, such as args, keep every byte.
package jsonbody

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// ContentType is the media type of the specification (OJS HTTP binding, section 4.1).
const ContentType = "application/openjobspec+json"

// ReadBody reads the request's JSON object, of at most limit bytes and depth levels. optional: no body at all reads as {}.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, depth int, optional bool) (*Object, error) {
	// Read before judging the headers, for the reason why a body that is refused is drained.
	raw, err := readAll(http.MaxBytesReader(w, r.Body, limit), r.ContentLength, limit)
	if err != nil {
		var tooLarge *http.MaxBytesError
		var known *pg.Error
		switch {
		case errors.As(err, &tooLarge):
			Drain(r)
			return nil, problems.Refuse(problems.CodeTooLarge, "body", "the body is larger than %d bytes", limit)
		case errors.As(err, &known):
			return nil, known
		}
		return nil, problems.Refuse(problems.CodeInvalidPayload, "body", "the body could not be read to its end")
	}
	if len(raw) == 0 && optional {
		return &Object{Fault: new(error)}, nil
	}
	if err := checkContentType(r.Header); err != nil {
		return nil, err
	}
	fields, ok := split(raw, depth)
	if !ok {
		if bad := CheckJSON(raw, depth); bad != nil {
			return nil, problems.Refuse(problems.CodeInvalidPayload, cmp.Or(bad.path, "body"), "%s", bad)
		}
		if Kind(raw) != "object" {
			return nil, problems.Refuse(problems.CodeInvalidPayload, "body", "the body must be a JSON object, not %s", Kind(raw))
		}
		fields = membersOf(raw, MostMembers+1)
	}
	o := &Object{Source: raw, Fault: new(error)}
	o.take(fields)
	return o, o.Err()
}

// Drain reads what is left of the body of a request that is refused. Leaving much of it would close the connection, and some clients then
// see a reset instead of the answer.
func Drain(r *http.Request) {
	const most = 16 << 20
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, most))
}

// readAll reads a body. Its memory grows with what has come, up to the announced length, because a client may announce what it never
// sends. What is too much is read into no memory.
func readAll(body io.Reader, announced, limit int64) ([]byte, error) {
	switch {
	case announced > limit:
		_, err := io.Copy(io.Discard, body)
		return nil, err
	case announced < 0:
		return io.ReadAll(body)
	}
	const first = 64 << 10
	raw := make([]byte, min(announced, first))
	for read := 0; ; {
		n, err := io.ReadFull(body, raw[read:])
		read += n
		if err != nil || int64(read) == announced {
			return raw[:read], err
		}
		raw = append(make([]byte, 0, min(announced, 4*int64(read))), raw...)
		raw = raw[:cap(raw)]
	}
}

// ObjectOf reads one object of a list, whose path is at.
func ObjectOf(m *Member, at string, fault *error) *Object {
	o := &Object{Path: at, Fault: fault}
	if got := Kind(m.Raw); got != "object" {
		o.Fail(problems.Invalid(at, "must be an object, not %s", got))
		return o
	}
	o.take(m.members())
	return o
}

// take refuses an object with so many members that not all of them were kept.
func (o *Object) take(fields []Member) {
	o.Fields = fields
	if len(fields) > MostMembers {
		o.Fail(problems.Invalid(cmp.Or(o.Path, "body"), "must have at most %d members", MostMembers))
	}
}

// checkContentType takes the OJS media type and its alias. A missing header counts as JSON:
// the body is read strictly anyway.
func checkContentType(h http.Header) error {
	if v := h.Get("Content-Encoding"); v != "" && !strings.EqualFold(v, "identity") {
		return problems.Invalid("Content-Encoding", "is not supported: send the body as it is")
	}
	values := h.Values("Content-Type")
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(values[0])
	if len(values) > 1 || err != nil || media != ContentType && media != "application/json" {
		return problems.Invalid("Content-Type", "must be %s or application/json", ContentType)
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return problems.Invalid("Content-Type", "must not name a charset other than utf-8")
	}
	return nil
}

// Object reads the fields of one JSON object. The first fault wins and is kept in fault, which
// nested objects share, so a handler reads everything and asks once. Of an optional field, null
// means absent.
type Object struct {
	Source []byte // of a request's body
	Path   string
	Fields []Member
	Fault  *error
}

// Err is the first fault of all that was read.
func (o *Object) Err() error { return *o.Fault }

// Fail keeps a fault, unless there is one already.
func (o *Object) Fail(err error) {
	if *o.Fault == nil {
		*o.Fault = err
	}
}

// At is the path of a field, for messages.
func (o *Object) At(key string) string {
	return string(AppendKey([]byte(o.Path), key))
}

// Only refuses fields that would be overlooked: a filter with a slip of the pen would let everything pass.
func Only(o *Object, refusal func(at string) *pg.Error, names ...string) {
	allowed := Set(names...)
	for i, m := range o.Fields {
		if allowed[m.Key] {
			continue
		}
		at := o.At(m.Key)
		if meant := Resembled(m.Key, names); meant != "" && i < MostNear {
			o.Fail(Misnamed(at, meant))
		}
		o.Fail(refusal(at))
	}
}

// mostNear is how many members of an object are compared with known names.
const MostNear = 200

// own are the names of attributes that are the client's own, whatever they resemble.
var Own = regexp.MustCompile(`^(x|ext)[-_]`)

// Near refuses fields whose names are nearly those that are known, or what aliases knows them by. Others are passed over.
func Near(o *Object, aliases map[string]string, known ...string) {
	for i, m := range o.Fields {
		if i >= MostNear || slices.Contains(known, m.Key) || Own.MatchString(m.Key) {
			continue
		}
		meant := aliases[m.Key]
		// lease_token is refused even where a lease is not accepted: the client believes that it is
		// checked.
		if meant != names.TenantHeader && meant != "lease" && !slices.Contains(known, meant) {
			meant = Resembled(m.Key, known)
		}
		if meant != "" {
			o.Fail(Misnamed(o.At(m.Key), meant))
		}
	}
}

// resembled is the known name that another one was probably meant for; empty: none.
func Resembled(name string, known []string) string {
	if i := slices.IndexFunc(known, func(k string) bool { return names.Resembles(name, k) }); i >= 0 {
		return known[i]
	}
	return ""
}

func Misnamed(at, meant string) *pg.Error {
	err := problems.Invalid(at, "is not known; %s is probably meant", meant)
	err.Details["meant"] = meant
	return err
}

// aliases are what people write for the fields of workers' requests.
var aliases = map[string]string{
	"lease_token": "lease", "lease_id": "lease", "tenant": names.TenantHeader, "tenant_id": names.TenantHeader, "limit": "count",
	"max_jobs":   "count",
	"batch_size": "count", "wait": "wait_ms", "worker": "worker_id", "jobs": "active_jobs", "job_ids": "active_jobs",
}

// synonyms are what people write for fields that are required. Beside these they stay what they are.
var synonyms = map[string][]string{
	"args": {"arguments", "params", "payload"}, "cron": {"schedule"}, "error": {"message", "reason"}, "ids": {"id", "job_id", "job_ids"},
	"job_id": {"id", "job"}, "message": {"msg", "error", "reason"}, "type": {"job_type", "kind", "name"}, "worker_id": {"id", "worker"},
}

// NotKnown is the refusal of a field that no such request has.
func NotKnown(at string) *pg.Error { return problems.Invalid(at, "is not known here") }

// NotConfigurable is the refusal of a setting that this server does not have.
func NotConfigurable(at string) *pg.Error {
	return problems.Refuse(problems.CodeUnsupported, at, "%s cannot be configured on this server", at)
}

func (o *Object) member(key string) *Member {
	for i := range o.Fields {
		if o.Fields[i].Key == key {
			return &o.Fields[i]
		}
	}
	return nil
}

// Has reports whether a field is there, be it null.
func (o *Object) Has(key string) bool { return o.member(key) != nil }

// Raw returns the client's bytes of a field; nil when absent or null.
func (o *Object) Raw(key string) []byte {
	raw := o.Verbatim(key)
	if len(raw) == 4 && string(raw) == "null" {
		return nil
	}
	return raw
}

// Verbatim is Raw that keeps a null.
func (o *Object) Verbatim(key string) []byte {
	if m := o.member(key); m != nil {
		return m.Raw
	}
	return nil
}

// Typed is Raw for a field of one JSON type.
func (o *Object) Typed(key, want string) []byte {
	raw := o.Raw(key)
	if raw == nil {
		return nil
	}
	if got := Kind(raw); got != want {
		article := "a"
		if strings.ContainsRune("aeio", rune(want[0])) {
			article = "an"
		}
		err := problems.Invalid(o.At(key), "must be %s %s, not %s", article, want, got)
		err.Details["expected"], err.Details["received"] = want, got
		o.Fail(err)
		return nil
	}
	return raw
}

// Missing is the fault of a required field that is absent, or of the one that was probably meant for it.
func (o *Object) Missing(key string) {
	for _, m := range o.Fields[:min(len(o.Fields), MostNear)] {
		if m.Key != key && (names.Resembles(m.Key, key) || slices.Contains(synonyms[key], m.Key)) {
			o.Fail(Misnamed(o.At(m.Key), key))
			return
		}
	}
	err := problems.Invalid(o.At(key), "is required")
	err.Details["validation"] = "required"
	o.Fail(err)
}

// Text reads an optional string.
func (o *Object) Text(key string) *string {
	raw := o.Typed(key, "string")
	if raw == nil {
		return nil
	}
	v := Unquote(raw)
	return &v
}

// Name reads an optional string that must not be empty.
func (o *Object) Name(key string) *string {
	v := o.Text(key)
	if v != nil && *v == "" {
		o.Fail(problems.Invalid(o.At(key), "must not be empty"))
		return nil
	}
	return v
}

// Flag reads an optional boolean.
func (o *Object) Flag(key string) *bool {
	raw := o.Typed(key, "boolean")
	if raw == nil {
		return nil
	}
	v := raw[0] == 't'
	return &v
}

// Integer reads an optional whole number of at least lowest that fits 32 bits.
func (o *Object) Integer(key string, lowest int32) *int32 {
	raw := o.Typed(key, "number")
	if raw == nil {
		return nil
	}
	v, err := parseInteger(raw)
	if err != nil {
		o.Fail(problems.Invalid(o.At(key), "%s", err))
		return nil
	}
	if v < lowest {
		o.Fail(problems.Invalid(o.At(key), "must be at least %d", lowest))
		return nil
	}
	return &v
}

// Child reads an optional object.
func (o *Object) Child(key string) *Object {
	if o.Typed(key, "object") == nil {
		return nil
	}
	child := &Object{Path: o.At(key), Fault: o.Fault}
	child.take(o.member(key).members())
	return child
}

// Items reads an optional array whose elements are objects, or should be: see ObjectOf. Of more than MostMembers it has one more.
func (o *Object) Items(key string) []Member {
	raw := o.Typed(key, "array")
	if raw == nil {
		return nil
	}
	if m := o.member(key); m.Inner != nil {
		return m.Inner
	}
	items := []Member{}
	for _, item := range elements(raw, MostMembers+1) {
		items = append(items, Member{Raw: item})
	}
	return items
}

// list reads an optional array.
func (o *Object) list(key string) [][]byte {
	raw := o.Typed(key, "array")
	if raw == nil {
		return nil
	}
	return Elements(raw)
}

// Texts reads an optional array of strings.
func (o *Object) Texts(key string) []string {
	items := o.list(key)
	if items == nil {
		return nil
	}
	out := make([]string, 0, len(items))
	for i, raw := range items {
		if got := Kind(raw); got != "string" {
			o.Fail(problems.Invalid(fmt.Sprintf("%s[%d]", o.At(key), i), "must be a string, not %s", got))
			return nil
		}
		out = append(out, Unquote(raw))
	}
	return out
}

// ID reads an optional job id or lease.
func (o *Object) ID(key string) *string {
	v := o.Text(key)
	if v != nil && !IsUUID(*v) {
		o.Fail(problems.Invalid(o.At(key), "must be a UUID in lowercase with hyphens"))
		return nil
	}
	return v
}

// IDs reads an optional array of job ids.
func (o *Object) IDs(key string) []string {
	out := o.Texts(key)
	for i, v := range out {
		if !IsUUID(v) {
			o.Fail(problems.Invalid(fmt.Sprintf("%s[%d]", o.At(key), i), "must be a UUID in lowercase with hyphens"))
			return nil
		}
	}
	return out
}

// Storable refuses numbers that numeric cannot hold, in fields that are stored as jsonb; args,
// result and unknown attributes keep any number, as text.
func (o *Object) Storable(raw []byte, path string) {
	if !mayBeHuge(raw) {
		return
	}
	dec := decoder(raw)
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return // io.EOF: CheckJSON has passed all of raw
		}
		if tok.Kind() == '0' && huge(tok.String()) {
			at := string(appendPath([]byte(path), dec, dec.StackPointer()))
			o.Fail(problems.Invalid(at, "is a number of more than %d digits", numericDigits))
			return
		}
	}
}

// When reads an optional time: RFC 3339 with an offset, or +ISO 8601 duration counted from now.
// SQL gets an absolute time in UTC.
func (o *Object) When(key string, now time.Time) *time.Time {
	v := o.Text(key)
	if v == nil {
		return nil
	}
	if rest, ok := strings.CutPrefix(*v, "+"); ok {
		d, err := ParseDuration(rest)
		if err != nil {
			o.Fail(problems.Invalid(o.At(key),
				"must be RFC 3339 with an offset, or + and an ISO 8601 duration of weeks to seconds, such as +PT90S"))
			return nil
		}
		at := now.Add(d).UTC()
		return &at
	}
	return o.Time(key)
}

// Time reads an optional time: RFC 3339 with an offset.
func (o *Object) Time(key string) *time.Time {
	v := o.Text(key)
	if v == nil {
		return nil
	}
	at, err := ParseTime(*v)
	if err != nil {
		o.Fail(problems.Invalid(o.At(key), "%s", err))
		return nil
	}
	return &at
}
