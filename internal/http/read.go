package httpapi

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// The codes a request can fail with before SQL has seen it. Status, retryable and hint stand in
// ojs.problem, where SQL's own errors have theirs.
const (
	codeInvalidPayload = "invalid_payload"
	codeInvalidRequest = "invalid_request"
	codeNotFound       = "not_found"
	codeDuplicate      = "duplicate"
	codeTooLarge       = "payload_too_large"
	codeUnsupported    = "unsupported"
	codeTenantMismatch = "TENANT_MISMATCH"
	codeResultPruned   = "RESULT_PRUNED"
	codeTimeout        = "timeout"
)

func refuse(code, field, format string, args ...any) *pg.Error {
	return &pg.Error{Code: code, Message: fmt.Sprintf(format, args...), Details: map[string]any{"field": field}}
}

func invalid(field, format string, args ...any) *pg.Error {
	return refuse(codeInvalidRequest, field, "%s %s", field, fmt.Sprintf(format, args...))
}

// body reads the request's JSON object. optional: no body at all reads as {}.
func (s *Server) body(c echo.Context, limit int64, optional bool) (*object, error) {
	r := c.Request()
	// Read before judging the headers: a refusal that leaves the body unread would close the
	// connection, and some clients then see a reset instead of the answer.
	raw, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, limit))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, refuse(codeTooLarge, "body", "the body is larger than %d bytes", limit)
		}
		return nil, refuse(codeInvalidPayload, "body", "the body could not be read to its end")
	}
	if len(raw) == 0 && optional {
		return &object{fault: new(error)}, nil
	}
	if err := checkContentType(r.Header); err != nil {
		return nil, err
	}
	if bad := checkJSON(raw, s.limits.Depth); bad != nil {
		return nil, refuse(codeInvalidPayload, orDefault(bad.path, "body"), "%s", bad)
	}
	if kind(raw) != "object" {
		return nil, refuse(codeInvalidPayload, "body", "the body must be a JSON object, not %s", kind(raw))
	}
	return &object{source: raw, fields: members(raw), fault: new(error)}, nil
}

// checkContentType takes the OJS media type and its alias. A missing header counts as JSON:
// the body is read strictly anyway.
func checkContentType(h http.Header) error {
	if v := h.Get("Content-Encoding"); v != "" && !strings.EqualFold(v, "identity") {
		return invalid("Content-Encoding", "is not supported: send the body as it is")
	}
	values := h.Values("Content-Type")
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(values[0])
	if len(values) > 1 || err != nil || media != contentType && media != "application/json" {
		return invalid("Content-Type", "must be %s or application/json", contentType)
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return invalid("Content-Type", "must not name a charset other than utf-8")
	}
	return nil
}

// isText reports whether PostgreSQL can hold v as text.
func isText(v string) bool { return utf8.ValidString(v) && !strings.ContainsRune(v, 0) }

// object reads the fields of one JSON object. The first fault wins and is kept in fault, which
// nested objects share, so a handler reads everything and asks once. Of an optional field, null
// means absent.
type object struct {
	source []byte // of a request's body
	path   string
	fields []member
	fault  *error
}

func (o *object) err() error { return *o.fault }

func (o *object) fail(err error) {
	if *o.fault == nil {
		*o.fault = err
	}
}

// at is the path of a field, for messages.
func (o *object) at(key string) string {
	return string(appendKey([]byte(o.path), key))
}

// scoped is body, and whose tenant the request is for.
func (s *Server) scoped(c echo.Context, limit int64, optional bool) (req *object, scope *string, err error) {
	if req, err = s.body(c, limit, optional); err == nil {
		scope, _, err = tenant(c.Request().Header)
	}
	return req, scope, err
}

// only refuses fields that would be overlooked: a filter with a slip of the pen would let everything pass.
func only(o *object, refusal func(at string) *pg.Error, names ...string) {
	allowed := set(names...)
	for _, m := range o.fields {
		if at := o.at(m.key); !allowed[m.key] {
			o.fail(refusal(at))
		}
	}
}

func notKnown(at string) *pg.Error { return invalid(at, "is not known here") }

func notConfigurable(at string) *pg.Error {
	return refuse(codeUnsupported, at, "%s cannot be configured on this server", at)
}

func (o *object) has(key string) bool {
	for i := range o.fields {
		if o.fields[i].key == key {
			return true
		}
	}
	return false
}

// raw returns the client's bytes of a field; nil when absent or null.
func (o *object) raw(key string) []byte {
	raw := o.verbatim(key)
	if len(raw) == 4 && string(raw) == "null" {
		return nil
	}
	return raw
}

// verbatim is raw that keeps a null.
func (o *object) verbatim(key string) []byte {
	for i := range o.fields {
		if o.fields[i].key == key {
			return o.fields[i].raw
		}
	}
	return nil
}

func (o *object) typed(key, want string) []byte {
	raw := o.raw(key)
	if raw == nil {
		return nil
	}
	if got := kind(raw); got != want {
		article := "a"
		if strings.ContainsRune("aeio", rune(want[0])) {
			article = "an"
		}
		err := invalid(o.at(key), "must be %s %s, not %s", article, want, got)
		err.Details["expected"], err.Details["received"] = want, got
		o.fail(err)
		return nil
	}
	return raw
}

func (o *object) missing(key string) {
	err := invalid(o.at(key), "is required")
	err.Details["validation"] = "required"
	o.fail(err)
}

// text reads an optional string.
func (o *object) text(key string) *string {
	raw := o.typed(key, "string")
	if raw == nil {
		return nil
	}
	v := unquote(raw)
	return &v
}

// name reads an optional string that must not be empty.
func (o *object) name(key string) *string {
	v := o.text(key)
	if v != nil && *v == "" {
		o.fail(invalid(o.at(key), "must not be empty"))
		return nil
	}
	return v
}

func (o *object) flag(key string) *bool {
	raw := o.typed(key, "boolean")
	if raw == nil {
		return nil
	}
	v := raw[0] == 't'
	return &v
}

// integer reads an optional whole number of at least lowest that fits 32 bits.
func (o *object) integer(key string, lowest int32) *int32 {
	raw := o.typed(key, "number")
	if raw == nil {
		return nil
	}
	v, err := parseInteger(raw)
	if err != nil {
		o.fail(invalid(o.at(key), "%s", err))
		return nil
	}
	if v < lowest {
		o.fail(invalid(o.at(key), "must be at least %d", lowest))
		return nil
	}
	return &v
}

var (
	errFraction = errors.New("must be an integer written without fraction or exponent")
	errRange    = fmt.Errorf("must be an integer between %d and %d", -1<<31, 1<<31-1)
)

// parseInteger reads a JSON number as a whole one: 7 and 7.0 are, 7.5 and 7e0 are not.
func parseInteger(raw []byte) (int32, error) {
	whole, fraction, _ := strings.Cut(string(raw), ".")
	if strings.ContainsAny(whole, "eE") || strings.Trim(fraction, "0") != "" {
		return 0, errFraction
	}
	v, err := strconv.ParseInt(whole, 10, 32)
	if err != nil {
		return 0, errRange
	}
	return int32(v), nil
}

// child reads an optional object.
func (o *object) child(key string) *object {
	raw := o.typed(key, "object")
	if raw == nil {
		return nil
	}
	return &object{path: o.at(key), fields: members(raw), fault: o.fault}
}

// list reads an optional array.
func (o *object) list(key string) [][]byte {
	raw := o.typed(key, "array")
	if raw == nil {
		return nil
	}
	return elements(raw)
}

// texts reads an optional array of strings.
func (o *object) texts(key string) []string {
	items := o.list(key)
	if items == nil {
		return nil
	}
	out := make([]string, 0, len(items))
	for i, raw := range items {
		if got := kind(raw); got != "string" {
			o.fail(invalid(fmt.Sprintf("%s[%d]", o.at(key), i), "must be a string, not %s", got))
			return nil
		}
		out = append(out, unquote(raw))
	}
	return out
}

// id reads an optional job id or lease.
func (o *object) id(key string) *string {
	v := o.text(key)
	if v != nil && !isUUID(*v) {
		o.fail(invalid(o.at(key), "must be a UUID in lowercase with hyphens"))
		return nil
	}
	return v
}

// ids reads an optional array of job ids.
func (o *object) ids(key string) []string {
	out := o.texts(key)
	for i, v := range out {
		if !isUUID(v) {
			o.fail(invalid(fmt.Sprintf("%s[%d]", o.at(key), i), "must be a UUID in lowercase with hyphens"))
			return nil
		}
	}
	return out
}

// isUUID accepts the canonical spelling only: two spellings of one id would be two ids to a
// client that compares text.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}

// numericDigits is what we let PostgreSQL's numeric hold, far below what it could.
const numericDigits = 1000

// storable refuses numbers that numeric cannot hold, in fields that are stored as jsonb; args,
// result and unknown attributes keep any number, as text.
func (o *object) storable(raw []byte, path string) {
	dec := decoder(raw)
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return // io.EOF: checkJSON has passed all of raw
		}
		if tok.Kind() == '0' && huge(tok.String()) {
			at := string(appendPath([]byte(path), dec, dec.StackPointer()))
			o.fail(invalid(at, "is a number of more than %d digits", numericDigits))
			return
		}
	}
}

func huge(number string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	size, err := strconv.Atoi(exponent)
	return len(mantissa) > numericDigits || exponent != "" && err != nil || size > numericDigits || size < -numericDigits
}

// when reads an optional time: RFC 3339 with an offset, or +ISO 8601 duration counted from now.
// SQL gets an absolute time in UTC.
func (o *object) when(key string, now time.Time) *time.Time {
	v := o.text(key)
	if v == nil {
		return nil
	}
	if rest, ok := strings.CutPrefix(*v, "+"); ok {
		d, err := parseDuration(rest)
		if err != nil {
			o.fail(invalid(o.at(key), "must be RFC 3339 with an offset, or + and an ISO 8601 duration of days to seconds, such as +PT90S"))
			return nil
		}
		at := now.Add(d).UTC()
		return &at
	}
	return o.time(key)
}

// time reads an optional time: RFC 3339 with an offset.
func (o *object) time(key string) *time.Time {
	v := o.text(key)
	if v == nil {
		return nil
	}
	at, err := parseTime(*v)
	if err != nil {
		o.fail(invalid(o.at(key), "%s", err))
		return nil
	}
	return &at
}

var (
	errTime = errors.New("must be a time as in RFC 3339 with an offset, such as 2031-05-04T15:00:00Z")
	errYear = errors.New("must lie in the years 0001 to 9999")
)

// rfc3339 is stricter than time.Parse, which takes comma fractions and one-digit hours.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

func parseTime(s string) (time.Time, error) {
	if !rfc3339.MatchString(s) {
		return time.Time{}, errTime
	}
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, errTime
	}
	at = at.UTC()
	if at.Year() < 1 || at.Year() > 9999 {
		return time.Time{}, errYear
	}
	return at, nil
}

var (
	errDuration = errors.New("not an ISO 8601 duration")
	isoDuration = regexp.MustCompile(`^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+\.?\d*|\.\d+)S)?)?$`)
)

// parseDuration reads an ISO 8601 duration of weeks, days, hours, minutes and seconds; months
// and years have no fixed length. At most a hundred years.
func parseDuration(s string) (time.Duration, error) {
	const longest = 100 * 366 * 24 * time.Hour
	parts := isoDuration.FindStringSubmatch(s)
	if parts == nil || strings.HasSuffix(s, "P") || strings.HasSuffix(s, "T") {
		return 0, errDuration
	}
	total := 0.0
	for i, unit := range [...]time.Duration{7 * 24 * time.Hour, 24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, _ := strconv.ParseFloat(parts[i+1], 64) // an absent part is 0, one of too many digits infinite
		total += n * float64(unit)
	}
	if total > float64(longest) {
		return 0, errDuration
	}
	return time.Duration(total), nil
}
