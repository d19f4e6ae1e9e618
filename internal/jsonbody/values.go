package jsonbody

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Set returns a set of names.
func Set(keys ...string) map[string]bool {
	m := make(map[string]bool, len(keys))
	for _, k := range keys {
		m[k] = true
	}
	return m
}

// IsText reports whether PostgreSQL can hold v as text.
func IsText(v string) bool { return utf8.ValidString(v) && !strings.ContainsRune(v, 0) }

var (
	errFraction = errors.New("must be an integer written without fraction or exponent")
	errRange    = fmt.Errorf("must be an integer between %d and %d", -1<<31, 1<<31-1)
)

// parseInteger reads an integer of 32 bits from a JSON number. It accepts 7 and 7.0. It refuses
// 7.5, and 7e0 because of its exponent.
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

// IsUUID accepts the canonical spelling only: two spellings of one id would be two ids to a
// client that compares text.
func IsUUID(s string) bool {
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

// numericDigits is how many digits a number may have. PostgreSQL's numeric could hold far more.
const numericDigits = 1000

// mayBeHuge reports whether JSON may hold a number that is huge. It only looks for length and for
// exponents, which few bodies have, so that most need no closer look.
func mayBeHuge(raw []byte) bool {
	if len(raw) > numericDigits {
		return true
	}
	for i := 1; i < len(raw); i++ {
		if (raw[i] == 'e' || raw[i] == 'E') && (raw[i-1] == '.' || raw[i-1] >= '0' && raw[i-1] <= '9') {
			return true
		}
	}
	return false
}

// huge reports whether a number has more than numericDigits digits, or so large an exponent.
func huge(number string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	size, err := strconv.Atoi(exponent)
	return len(mantissa) > numericDigits || exponent != "" && err != nil || size > numericDigits || size < -numericDigits
}

var (
	errTime = errors.New("must be a time as in RFC 3339 with an offset, such as 2031-05-04T15:00:00Z")
	errYear = errors.New("must lie in the years 0001 to 9999")
)

// rfc3339 is stricter than time.Parse, which takes comma fractions and one-digit hours.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

// ParseTime reads RFC 3339 with an offset, in the years 0001 to 9999, as UTC.
func ParseTime(s string) (time.Time, error) {
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

// ParseDuration reads an ISO 8601 duration of weeks, days, hours, minutes and seconds, of at most a
// hundred years. It refuses months and years, which have no fixed length.
func ParseDuration(s string) (time.Duration, error) {
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

// AppendTime writes RFC 3339 in UTC, with a fraction only when there is one, so that a client
// gets 2099-12-31T23:59:59Z back as it wrote it.
func AppendTime(b []byte, at time.Time) []byte {
	b = append(b, '"')
	b = at.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

// Stamp is a time in a response made of structs.
type Stamp time.Time

// MarshalJSON writes the time as AppendTime does.
func (t Stamp) MarshalJSON() ([]byte, error) { return AppendTime(nil, time.Time(t)), nil }

var _ json.Marshaler = Stamp{}
