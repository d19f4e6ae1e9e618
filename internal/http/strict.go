package httpapi

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Strict JSON. encoding/json repairs broken UTF-8, accepts a key twice and takes NUL, which
// PostgreSQL cannot store as text; and it keeps no raw bytes with whitespace. A job system that
// promises to return what it was given needs a reader that refuses instead of repairing, names
// the place, and hands out the client's own bytes.

// badJSON says what is wrong with a request body and where, as a path like args[0].name.
type badJSON struct {
	path   string
	offset int
	what   string
}

func (e *badJSON) Error() string {
	if e.path == "" {
		return fmt.Sprintf("the body is not acceptable JSON: %s at byte %d", e.what, e.offset)
	}
	return fmt.Sprintf("%s is not acceptable JSON: %s at byte %d", e.path, e.what, e.offset)
}

// checkJSON accepts exactly one JSON value (RFC 8259) in valid UTF-8, without NUL characters,
// lone surrogates, repeated keys or nesting deeper than maxDepth.
func checkJSON(src []byte, maxDepth int) error {
	s := scanner{src: src, maxDepth: maxDepth}
	if len(src) >= 3 && src[0] == 0xEF && src[1] == 0xBB && src[2] == 0xBF {
		return s.fail("a byte order mark")
	}
	s.space()
	if s.pos == len(src) {
		return s.fail("nothing there")
	}
	if err := s.value(0); err != nil {
		return err
	}
	s.space()
	if s.pos < len(src) {
		return s.fail("more text after the end of the value")
	}
	return nil
}

type step struct {
	key   []byte // nil: an array element
	index int
}

type scanner struct {
	src      []byte
	pos      int
	maxDepth int
	path     []step
}

func (s *scanner) fail(format string, args ...any) error {
	return &badJSON{path: formatPath(s.path), offset: s.pos, what: fmt.Sprintf(format, args...)}
}

func (s *scanner) space() {
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) value(depth int) error {
	if s.pos == len(s.src) {
		return s.fail("the text ends early")
	}
	switch c := s.src[s.pos]; {
	case c == '{':
		return s.object(depth + 1)
	case c == '[':
		return s.array(depth + 1)
	case c == '"':
		return s.text()
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	default:
		for _, word := range [...]string{"true", "false", "null"} {
			if c == word[0] {
				if len(s.src)-s.pos < len(word) || string(s.src[s.pos:s.pos+len(word)]) != word {
					return s.fail("a word that is not true, false or null")
				}
				s.pos += len(word)
				return nil
			}
		}
		return s.unexpected()
	}
}

func (s *scanner) unexpected() error {
	if s.pos == len(s.src) {
		return s.fail("the text ends early")
	}
	c := s.src[s.pos]
	if c < 0x20 || c > 0x7E {
		return s.fail("unexpected byte 0x%02x", c)
	}
	return s.fail("unexpected %q", c)
}

func (s *scanner) object(depth int) error {
	if depth > s.maxDepth {
		return s.fail("nested deeper than %d", s.maxDepth)
	}
	s.pos++
	var seen keySet
	for first := true; ; first = false {
		s.space()
		if s.pos == len(s.src) {
			return s.fail("the text ends inside an object")
		}
		if first && s.src[s.pos] == '}' {
			s.pos++
			return nil
		}
		if !first {
			switch s.src[s.pos] {
			case '}':
				s.pos++
				return nil
			case ',':
				s.pos++
				s.space()
			default:
				return s.unexpected()
			}
		}
		if s.pos == len(s.src) || s.src[s.pos] != '"' {
			return s.unexpected()
		}
		start := s.pos
		if err := s.text(); err != nil {
			return err
		}
		key := unquote(s.src[start:s.pos])
		s.path = append(s.path, step{key: key})
		if !seen.add(key) {
			s.pos = start
			return s.fail("the key is repeated")
		}
		s.space()
		if s.pos == len(s.src) || s.src[s.pos] != ':' {
			return s.unexpected()
		}
		s.pos++
		s.space()
		if err := s.value(depth); err != nil {
			return err
		}
		s.path = s.path[:len(s.path)-1]
	}
}

func (s *scanner) array(depth int) error {
	if depth > s.maxDepth {
		return s.fail("nested deeper than %d", s.maxDepth)
	}
	s.pos++
	for i := 0; ; i++ {
		s.space()
		if s.pos == len(s.src) {
			return s.fail("the text ends inside an array")
		}
		if i == 0 && s.src[s.pos] == ']' {
			s.pos++
			return nil
		}
		if i > 0 {
			switch s.src[s.pos] {
			case ']':
				s.pos++
				return nil
			case ',':
				s.pos++
				s.space()
			default:
				return s.unexpected()
			}
		}
		s.path = append(s.path, step{index: i})
		if err := s.value(depth); err != nil {
			return err
		}
		s.path = s.path[:len(s.path)-1]
	}
}

func (s *scanner) text() error {
	s.pos++
	for s.pos < len(s.src) {
		switch c := s.src[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		case c == 0:
			return s.fail("a NUL character")
		case c < 0x20:
			return s.fail("an unescaped control character")
		case c < utf8.RuneSelf:
			s.pos++
		default:
			r, size := utf8.DecodeRune(s.src[s.pos:])
			if r == utf8.RuneError && size == 1 {
				return s.fail("invalid UTF-8")
			}
			s.pos += size
		}
	}
	return s.fail("the text ends inside a string")
}

func (s *scanner) escape() error {
	if s.pos+1 == len(s.src) {
		return s.fail("the text ends inside a string")
	}
	switch s.src[s.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos += 2
		return nil
	case 'u':
	default:
		return s.fail("an unknown escape")
	}
	r, ok := hex4(s.src[s.pos+2:])
	switch {
	case !ok:
		return s.fail("a \\u without four hexadecimal digits")
	case r == 0:
		return s.fail("a NUL character")
	case !utf16.IsSurrogate(r):
		s.pos += 6
		return nil
	}
	rest := s.src[s.pos+6:]
	if len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		if low, ok := hex4(rest[2:]); ok && utf16.DecodeRune(r, low) != utf8.RuneError {
			s.pos += 12
			return nil
		}
	}
	return s.fail("a lone surrogate")
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

func (s *scanner) number() error {
	if s.src[s.pos] == '-' {
		s.pos++
	}
	if s.pos < len(s.src) && s.src[s.pos] == '0' {
		s.pos++
		if s.pos < len(s.src) && s.src[s.pos] >= '0' && s.src[s.pos] <= '9' {
			return s.fail("a number with a leading zero")
		}
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.pos < len(s.src) && s.src[s.pos] == '.' {
		s.pos++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if s.pos < len(s.src) && (s.src[s.pos] == 'e' || s.src[s.pos] == 'E') {
		s.pos++
		if s.pos < len(s.src) && (s.src[s.pos] == '+' || s.src[s.pos] == '-') {
			s.pos++
		}
		return s.digits()
	}
	return nil
}

func (s *scanner) digits() error {
	start := s.pos
	for s.pos < len(s.src) && s.src[s.pos] >= '0' && s.src[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		return s.fail("an unfinished number")
	}
	return nil
}

// keySet finds repeated keys; a map only pays above a handful of them.
type keySet struct {
	few  [][]byte
	many map[string]struct{}
}

func (k *keySet) add(key []byte) bool {
	if k.many == nil {
		for _, other := range k.few {
			if string(other) == string(key) {
				return false
			}
		}
		k.few = append(k.few, key)
		if len(k.few) <= 16 {
			return true
		}
		k.many = make(map[string]struct{}, 64)
		for _, other := range k.few {
			k.many[string(other)] = struct{}{}
		}
		return true
	}
	if _, ok := k.many[string(key)]; ok {
		return false
	}
	k.many[string(key)] = struct{}{}
	return true
}

// formatPath writes steps as people write them: jobs[3].options.retry, and quotes keys that
// would not read as one word.
func formatPath(steps []step) string {
	var b []byte
	for _, st := range steps {
		if st.key == nil {
			b = append(b, '[')
			b = strconv.AppendInt(b, int64(st.index), 10)
			b = append(b, ']')
			continue
		}
		b = appendKey(b, string(st.key))
	}
	return string(b)
}

func appendKey(b []byte, key string) []byte {
	const longest = 64
	plain := key != ""
	for _, c := range []byte(key) {
		if c <= ' ' || c >= 0x7F || c == '.' || c == '[' || c == ']' || c == '"' || c == '\\' {
			plain = false
		}
	}
	if len(key) > longest {
		cut := longest
		for cut > 0 && !utf8.RuneStart(key[cut]) {
			cut--
		}
		key = key[:cut] + "..."
	}
	if !plain {
		b = append(b, '[')
		b = strconv.AppendQuote(b, key)
		return append(b, ']')
	}
	if len(b) > 0 {
		b = append(b, '.')
	}
	return append(b, key...)
}

// unquote decodes a JSON string that checkJSON accepted. The result shares the input's memory
// when there is nothing to decode, and is never nil.
func unquote(raw []byte) []byte {
	raw = raw[1 : len(raw)-1]
	i := 0
	for i < len(raw) && raw[i] != '\\' {
		i++
	}
	if i == len(raw) {
		return raw
	}
	out := append(make([]byte, 0, len(raw)), raw[:i]...)
	for i < len(raw) {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			i++
			continue
		}
		c := raw[i+1]
		i += 2
		switch c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				low, _ := hex4(raw[i+2:])
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
	}
	return out
}

// member is one key of an object with the client's own bytes.
type member struct {
	key    string
	rawKey []byte
	raw    []byte
}

// members splits an object that checkJSON accepted, in its own order.
func members(raw []byte) []member {
	s := scanner{src: raw}
	s.space()
	s.pos++
	var out []member
	for {
		s.space()
		switch s.src[s.pos] {
		case '}':
			return out
		case ',':
			s.pos++
			s.space()
		}
		key := s.skip()
		s.space()
		s.pos++
		s.space()
		out = append(out, member{key: string(unquote(key)), rawKey: key, raw: s.skip()})
	}
}

// elements splits an array that checkJSON accepted; never nil.
func elements(raw []byte) [][]byte {
	s := scanner{src: raw}
	s.space()
	s.pos++
	out := [][]byte{}
	for {
		s.space()
		switch s.src[s.pos] {
		case ']':
			return out
		case ',':
			s.pos++
			s.space()
		}
		out = append(out, s.skip())
	}
}

// skip passes one value that is known to be well formed and returns its bytes.
func (s *scanner) skip() []byte {
	start := s.pos
	depth := 0
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case '"':
			s.pos++
			for s.src[s.pos] != '"' {
				if s.src[s.pos] == '\\' {
					s.pos++
				}
				s.pos++
			}
			s.pos++
		case '{', '[':
			depth++
			s.pos++
			continue
		case '}', ']':
			if depth == 0 {
				return s.src[start:s.pos]
			}
			depth--
			s.pos++
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return s.src[start:s.pos]
			}
			s.pos++
			continue
		default:
			s.pos++
			continue
		}
		if depth == 0 {
			return s.src[start:s.pos]
		}
	}
	return s.src[start:s.pos]
}
