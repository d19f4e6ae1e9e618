// Package jsonbody reads the JSON bodies of requests strictly, and writes JSON with the client's
// own bytes. A body is read once (object.go, split.go); an error about it names the path of the
// field (strict.go). Handlers read an Object by hand, or into a struct by its tags (into.go), and
// write answers with a Writer. A client's own values, such as args, keep every byte.
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

// ReadBody reads the JSON object of a request, of at most limit bytes and depth levels. With
// optional, an empty body reads as {}. It fails if the body is too large, is not acceptable JSON or
// no object, or has another media type. A fault inside parts does not fail: see Parts, Object.Broken
// and Object.Whole.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, depth int, optional bool, parts Parts) (*Object, error) {
	// The body is read before the headers are checked, because the connection would not survive a
	// refusal with an unread body: see Drain.
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
			whole := problems.Refuse(problems.CodeInvalidPayload, cmp.Or(bad.path, "body"), "%s", bad)
			if len(parts.Lists) > 0 || parts.Repair != "" {
				if o := readLoosely(raw, depth, parts, whole); o != nil {
					return o, o.Err()
				}
			}
			return nil, whole
		}
		if Kind(raw) != "object" {
			err := problems.Refuse(problems.CodeInvalidPayload, "body", "the body must be a JSON object, not %s", Kind(raw))
			// The code's own hint is about text that is no JSON.
			err.Hint = `Send one object. Several jobs are {"jobs": [...]} for POST /ojs/v1/jobs/batch.`
			return nil, err
		}
		fields = membersOf(raw, MostMembers+1)
	}
	o := &Object{Source: raw, Fault: new(error)}
	o.take(fields)
	return o, o.Err()
}

// Drain reads what is left of the body of a request that is refused, up to 16 MiB. If much of it
// were left, the connection would be closed, and some clients would see a reset instead of the
// answer.
func Drain(r *http.Request) {
	const most = 16 << 20
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, most))
}

// readAll reads a body. Its buffer grows with what has arrived, up to the announced length, because
// a client may announce more than it sends. A body that is announced as larger than limit is
// discarded.
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

// ObjectOf reads one object of a list. at is its path, for errors. It fails, by fault, if the
// element is no object.
func ObjectOf(m *Member, at string, fault *error) *Object {
	o := &Object{Path: at, Fault: fault}
	if got := Kind(m.Raw); got != "object" {
		o.Fail(problems.Invalid(at, "must be an object, not %s", got))
		return o
	}
	o.take(m.members())
	return o
}

// take sets the members of an object. It refuses an object with so many that not all were kept.
func (o *Object) take(fields []Member) {
	o.Fields = fields
	if len(fields) > MostMembers {
		o.Fail(problems.Invalid(cmp.Or(o.Path, "body"), "must have at most %d members", MostMembers))
	}
}

// checkContentType refuses media types other than the one of OJS and its alias application/json. A
// missing header is accepted, because the body is read strictly anyway.
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
		err := problems.Invalid("Content-Type", "must be %s or application/json", ContentType)
		err.Hint = "Add the header Content-Type: application/json; with curl -H 'Content-Type: application/json'."
		return err
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return problems.Invalid("Content-Type", "must not name a charset other than utf-8")
	}
	return nil
}

// Object reads the fields of one JSON object. It keeps the first fault in Fault, which nested
// objects share, so that a handler reads everything and then asks once, by Err. In an optional
// field null means absent.
type Object struct {
	Source []byte // the whole body; nil in nested objects
	Path   string
	Fields []Member
	Fault  *error
	Whole  error // why the body as a whole is refused, if only elements of its lists are broken; else nil

	broken map[string]error // why elements of lists are refused, by path
}

// Err returns the first fault of everything that was read.
func (o *Object) Err() error { return *o.Fault }

// Fail keeps a fault, unless there is one already.
func (o *Object) Fail(err error) {
	if *o.Fault == nil {
		*o.Fault = err
	}
}

// At returns the path of a field, for errors.
func (o *Object) At(key string) string {
	return string(AppendKey([]byte(o.Path), key))
}

// Only refuses the first field that is not in names and does not begin with ext_ or x_. A field that
// was ignored might be a filter, and the request would act on more than the client meant.
func Only(o *Object, names ...string) { only(o, NotKnown, nil, names) }

// only is Only with another refusal. belongs says of fields where else they belong, by name.
func only(o *Object, refusal func(at string) *pg.Error, belongs map[string]string, known []string) {
	for i, m := range o.Fields {
		if slices.Contains(known, m.Key) || Own.MatchString(m.Key) {
			continue
		}
		at := o.At(m.Key)
		switch meant := o.meantBy(m.Key, known, i); {
		case belongs[m.Key] != "":
			o.Fail(Misplaced(at, belongs[m.Key]))
		case names.IsTenant(m.Key) && belongs["tenant"] != "":
			o.Fail(Misplaced(at, belongs["tenant"]))
		case meant != "":
			o.Fail(Misnamed(at, meant))
		default:
			o.Fail(refusal(at))
		}
		return
	}
}

// meantBy returns the known name, or the header, that a field was probably meant for, or "" if there
// is none. n is the number of the field in its object: only the first MostNear are compared.
func (o *Object) meantBy(name string, known []string, n int) string {
	alias := aliases[name]
	switch {
	case n >= MostNear:
		return ""
	case slices.Contains(known, alias), alias == "lease":
		// A lease is refused even if the request has no such field, because a client that sends one
		// believes that it is checked.
		return alias
	}
	if meant := Resembled(name, known); meant != "" {
		return meant
	}
	if i := slices.IndexFunc(known, func(k string) bool { return !o.Has(k) && slices.Contains(synonyms[k], name) }); i >= 0 {
		return known[i]
	}
	if names.IsTenant(name) {
		return names.TenantHeader
	}
	return ""
}

// MostNear is how many members of an object are compared with known names.
const MostNear = 200

// Own matches the names of attributes that belong to the client, whatever names they resemble.
var Own = regexp.MustCompile(`^(x|ext)[-_]`)

// Near refuses fields whose names are nearly known ones, and fields that name a tenant. It ignores
// other fields.
func Near(o *Object, known ...string) {
	for i, m := range o.Fields {
		if slices.Contains(known, m.Key) || Own.MatchString(m.Key) {
			continue
		}
		if meant := o.meantBy(m.Key, known, i); meant != "" {
			o.Fail(Misnamed(o.At(m.Key), meant))
		}
	}
}

// Resembled returns the known name that name was probably meant for, or "" if there is none.
func Resembled(name string, known []string) string {
	if i := slices.IndexFunc(known, func(k string) bool { return names.Resembles(name, k) }); i >= 0 {
		return known[i]
	}
	return ""
}

// Misnamed returns the refusal of a field that was probably meant for another one.
func Misnamed(at, meant string) *pg.Error {
	return problems.Invalid(at, "is not known; %s is probably meant", meant).Tell("meant", meant)
}

// Misplaced returns the refusal of a field that belongs elsewhere, such as to another route.
func Misplaced(at, where string) *pg.Error {
	return problems.Invalid(at, "is not known here; %s", where).Tell("meant", where)
}

// aliases are names that people write for the fields of workers' requests.
var aliases = map[string]string{
	"lease_token": "lease", "lease_id": "lease", "limit": "count", "max_jobs": "count", "max": "count", "batch_size": "count",
	"lease_ms": "visibility_timeout_ms", "timeout": "wait_ms", "timeout_ms": "wait_ms", "wait_seconds": "wait_ms",
	"schedule": "cron", "wait": "wait_ms", "worker": "worker_id", "jobs": "active_jobs", "job_ids": "active_jobs",
}

// synonyms are names that people write for required fields. They count only if the required field
// is missing.
var synonyms = map[string][]string{
	"args": {"arguments", "params", "payload"}, "cron": {"schedule"}, "error": {"message", "reason"}, "ids": {"id", "job_id", "job_ids"},
	"job_id": {"id", "job"}, "message": {"msg", "error", "reason"}, "type": {"job_type", "kind", "name"}, "worker_id": {"id", "worker"},
}

// NotKnown returns the refusal of a field that the request does not have.
func NotKnown(at string) *pg.Error { return problems.Invalid(at, "is not known here") }

// NotConfigurable returns the refusal of a setting that this server does not have.
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

// Remove takes a field out of the object, so that later reads do not find it.
func (o *Object) Remove(key string) {
	o.Fields = slices.DeleteFunc(o.Fields, func(m Member) bool { return m.Key == key })
}

// Has reports whether a field is there, even if it is null.
func (o *Object) Has(key string) bool { return o.member(key) != nil }

// Raw returns the client's bytes of a field; nil if it is absent or null.
func (o *Object) Raw(key string) []byte {
	raw := o.Verbatim(key)
	if len(raw) == 4 && string(raw) == "null" {
		return nil
	}
	return raw
}

// Verbatim is Raw that keeps null.
func (o *Object) Verbatim(key string) []byte {
	if m := o.member(key); m != nil {
		return m.Raw
	}
	return nil
}

// Typed is Raw for a field of one JSON type. It fails if the field has another type.
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
		o.Fail(problems.Invalid(o.At(key), "must be %s %s, not %s", article, want, got).Tell("expected", want).Tell("received", got))
		return nil
	}
	return raw
}

// Missing refuses an object without a required field. If another field was probably meant for it,
// the error names that one.
func (o *Object) Missing(key string) {
	for _, m := range o.Fields[:min(len(o.Fields), MostNear)] {
		if m.Key != key && (names.Resembles(m.Key, key) || slices.Contains(synonyms[key], m.Key)) {
			o.Fail(Misnamed(o.At(m.Key), key))
			return
		}
	}
	o.Fail(problems.Invalid(o.At(key), "is required").Tell("validation", "required"))
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

// Items reads an optional array of objects, whose elements ObjectOf reads. It returns at most one
// more than MostMembers.
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
	if m := o.member(key); m.Inner != nil {
		items := make([][]byte, len(m.Inner))
		for i := range m.Inner {
			items[i] = m.Inner[i].Raw
		}
		return items
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

// EachID reads an optional array of ids, each by itself. It calls take with the index and the text
// of each element, and with an error if the element is no id.
func (o *Object) EachID(key string, take func(i int, id string, err error)) {
	for i, raw := range o.list(key) {
		at := fmt.Sprintf("%s[%d]", o.At(key), i)
		if err := o.Broken(at); err != nil {
			take(i, "", err)
		} else if got := Kind(raw); got != "string" {
			take(i, "", problems.Invalid(at, "must be a string, not %s", got))
		} else if id := Unquote(raw); !IsUUID(id) {
			take(i, id, problems.Invalid(at, "must be a UUID in lowercase with hyphens"))
		} else {
			take(i, id, nil)
		}
	}
}

// Storable refuses numbers with too many digits for jsonb, in fields that are stored as jsonb.
// args, result and unknown attributes are stored as text, and keep any number.
func (o *Object) Storable(raw []byte, path string) {
	if at, found := hugeNumber(raw, path); found {
		o.Fail(problems.Invalid(at, "is a number of more than %d digits", numericDigits))
	}
}

// hugeNumber returns the path of the first number with too many digits for jsonb. path is that of
// raw, which CheckJSON has accepted.
func hugeNumber(raw []byte, path string) (at string, found bool) {
	if !mayBeHuge(raw) {
		return "", false
	}
	dec := decoder(raw)
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return "", false // io.EOF: CheckJSON has passed all of raw
		}
		if tok.Kind() == '0' && huge(tok.String()) {
			return string(appendPath([]byte(path), dec, dec.StackPointer())), true
		}
	}
}

// When reads an optional time: RFC 3339 with an offset, or + and an ISO 8601 duration, which counts
// from now. It returns an absolute time in UTC.
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
	at, err := ParseTime(*v)
	if err != nil {
		o.Fail(problems.Invalid(o.At(key), "%s, or + and an ISO 8601 duration, such as +PT5M", err))
		return nil
	}
	return &at
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
