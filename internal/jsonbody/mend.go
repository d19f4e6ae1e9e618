package jsonbody

import (
	"encoding/json"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// The report of an error is written when something has already gone wrong: it often holds raw input,
// half of a text, or NaN. If it were refused, the attempt would run on until its lease ends, and
// the true error would be lost. So it is repaired, and a member says that it was.

// Members that Mend adds to an error.
const (
	repaired  = "repaired"  // characters, numbers or keys are not as the client sent them
	truncated = "truncated" // something is left out; SQL adds it, too (ojs._error_cut)
)

const (
	// mendedBytes is how long a repaired error may become. SQL cuts it further.
	mendedBytes = 256 << 10
	// mendedText is the longest text that is repaired; the rest is cut off.
	mendedText = 64 << 10
)

// Mend returns an error as PostgreSQL can store it, in at most levels levels. raw is JSON whose
// structure the loose scanner has accepted.
//
//   - U+0000, half of a surrogate pair and bytes that are not UTF-8 become U+FFFD.
//   - NaN, a number that is too large and any other word that is no JSON become a string.
//   - Of members with the same key one is kept: at the top the last, below it the first.
//   - What is nested too deep, and what goes beyond mendedBytes, is left out.
//
// The member repaired or truncated of the object says what was done. A value that is no object is
// repaired without such a member.
func Mend(raw []byte, levels int) []byte {
	m := mender{loose: loose{src: raw}, levels: levels}
	if m.next() != '{' {
		m.value(1)
		return m.out
	}
	fields, _ := looseMembers(raw)
	if len(fields) > MostMembers {
		fields, m.cut = fields[:MostMembers], true
	}
	last := make(map[string]int, len(fields))
	for i := range fields {
		fields[i].Key = m.decode(fields[i].RawKey)
		if _, again := last[fields[i].Key]; again {
			m.changed = true
		}
		last[fields[i].Key] = i
	}
	// The members that decide what becomes of the job come first, so that they are not left out.
	order := make([]int, 0, len(fields))
	for _, key := range []string{"message", "type", "code", "retryable", "details", "backtrace"} {
		if i, given := last[key]; given {
			order = append(order, i)
		}
	}
	for i := range fields {
		if last[fields[i].Key] == i && !slices.Contains(order[:min(len(order), 6)], i) {
			order = append(order, i)
		}
	}
	m.out = append(m.out, '{')
	for _, i := range order {
		if fields[i].Key == repaired || fields[i].Key == truncated {
			continue // set below, or the client's own
		}
		m.member(fields[i])
	}
	for _, mark := range []struct {
		key string
		set bool
	}{{repaired, m.changed}, {truncated, m.cut}} {
		i, given := last[mark.key]
		switch {
		case mark.set:
			if len(m.out) > 1 {
				m.out = append(m.out, ',')
			}
			m.out = append(m.out, `"`+mark.key+`":true`...)
		case given:
			m.member(fields[i])
		}
	}
	return append(m.out, '}')
}

// StorableError returns an error as PostgreSQL can store it: raw itself, or what Mend makes of it.
// raw is an object that CheckJSON accepted.
func StorableError(raw []byte, levels int) []byte {
	if _, found := hugeNumber(raw, ""); !found {
		return raw
	}
	return Mend(raw, levels)
}

// mender writes repaired JSON while it scans.
type mender struct {
	loose
	levels       int
	out          []byte
	changed, cut bool
}

// member writes a member of the object at the top.
func (m *mender) member(of Member) {
	if len(m.out) > mendedBytes {
		m.cut = true
		return
	}
	if len(m.out) > 1 {
		m.out = append(m.out, ',')
	}
	m.out = append(AppendString(m.out, of.Key), ':')
	m.loose = loose{src: of.Raw}
	m.next()
	m.value(2)
}

// value repairs the next value. level is that of the value, if it is an object or a list.
func (m *mender) value(level int) {
	c := m.next()
	start := m.at
	switch {
	case c == '"':
		m.text()
		m.out = AppendString(m.out, m.decode(m.src[start:m.at]))
	case c != '{' && c != '[':
		m.word()
		m.literal(m.src[start:m.at])
	case level > m.levels:
		m.loose.value(mostLevels)
		m.out, m.cut = append(m.out, "null"...), true
	default:
		m.inner(c, level)
	}
}

// inner repairs an object or a list.
func (m *mender) inner(opening byte, level int) {
	m.out = append(m.out, opening)
	var seen map[string]bool
	if opening == '{' {
		seen = map[string]bool{}
	}
	first := true
	m.each(mostLevels, func(key []byte) bool {
		if len(m.out) > mendedBytes {
			m.cut = true
			return m.loose.value(mostLevels)
		}
		name := ""
		if opening == '{' {
			if name = m.decode(key); seen[name] {
				m.changed = true
				return m.loose.value(mostLevels)
			}
			seen[name] = true
		}
		if !first {
			m.out = append(m.out, ',')
		}
		first = false
		if opening == '{' {
			m.out = append(AppendString(m.out, name), ':')
		}
		m.value(level + 1)
		return true
	})
	m.out = append(m.out, opening+2) // ] and } are the second characters after [ and {
}

// literal writes a number, true, false or null, or else the word as a string.
func (m *mender) literal(word []byte) {
	if json.Valid(word) && !huge(string(word)) {
		m.out = append(m.out, word...)
		return
	}
	m.changed = true
	if len(word) > numericDigits {
		word, m.cut = word[:numericDigits], true
	}
	m.out = AppendString(m.out, string(word))
}

// decode returns the text of a string, with U+FFFD for each character that cannot be stored.
func (m *mender) decode(raw []byte) string {
	raw = raw[1 : len(raw)-1]
	if len(raw) > mendedText {
		raw, m.cut = raw[:mendedText], true
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		c := raw[i]
		if c == '\\' {
			r, n := escaped(raw[i:])
			i += n
			switch {
			case r > 0:
				out = utf8.AppendRune(out, r)
			case n == 1: // no escape of JSON: the backslash itself is kept
				out, m.changed = append(out, c), true
			default:
				out, m.changed = utf8.AppendRune(out, utf8.RuneError), true
			}
			continue
		}
		r, n := utf8.DecodeRune(raw[i:])
		i += n
		if r == 0 || r == utf8.RuneError && n == 1 {
			r, m.changed = utf8.RuneError, true
		} else if r < ' ' {
			m.changed = true // AppendString escapes it, as the client should have
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}

// escaped returns the character that an escape at the start of raw stands for, and the length of
// the escape. The character is 0 if it cannot be stored, and the length 1 if there is no escape.
func escaped(raw []byte) (r rune, length int) {
	if len(raw) < 2 {
		return 0, 1
	}
	switch raw[1] {
	case '"', '\\', '/':
		return rune(raw[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	}
	r, ok := codeUnit(raw)
	if !ok {
		return 0, 1
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if low, ok := codeUnit(raw[6:]); ok {
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return 0, 6
}

// codeUnit returns the number of an escape such as \u00e9 at the start of raw.
func codeUnit(raw []byte) (r rune, ok bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	for _, c := range raw[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
