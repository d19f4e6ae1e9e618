package jsonbody

import (
	"bytes"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// listOfMany is the field that holds a list of jobs in a request about many. It is split with the
// body.
const listOfMany = "jobs"

// innerLevels is how many levels of objects in objects are split with the body: options, and meta
// in it.
const innerLevels = 2

// MostMembers is how many elements of listOfMany, or members of an object, are kept. Each of them
// takes 40 times the memory of its two bytes in the body. One more is kept, so that a reader sees
// that there are too many.
const MostMembers = 10_000

// mostKept bounds the members of all objects in a body. Objects beyond it are split only when they
// are read.
const mostKept = 100_000

// split checks a JSON object as CheckJSON does and splits it, in one pass: into its fields, those
// of objects in it, and the elements of listOfMany. The bytes of the members are parts of src. If
// ok is false, CheckJSON has to say what is wrong, if anything is.
func split(src []byte, maxDepth int) (fields []Member, ok bool) {
	if bytes.Contains(src, []byte(`\u0000`)) {
		return nil, false // a NUL character, unless the backslash is escaped
	}
	s := splitter{src: src, dec: decoders.Get().(*jsontext.Decoder), maxDepth: maxDepth}
	s.dec.Reset(bytes.NewBuffer(src))
	defer func() {
		s.dec.Reset(bytes.NewBuffer(nil)) // a large body must not stay in memory for as long as the decoder
		decoders.Put(s.dec)
	}()
	if s.dec.PeekKind() != '{' {
		return nil, false
	}
	root, ok := s.value("", innerLevels)
	if !ok {
		return nil, false
	}
	_, err := s.dec.ReadToken()
	return root.Inner, err == io.EOF
}

// splitter is the state of split.
type splitter struct {
	src      []byte
	dec      *jsontext.Decoder
	maxDepth int
	kept     int      // number of members that are kept
	open     []Member // members of objects and lists whose end has not been read
	done     []Member // members of objects and lists whose end has been read; made in large pieces
}

// value reads the next value. levels is how many levels of objects below it are split; if it is
// less than zero, not even this value is.
func (s *splitter) value(key string, levels int) (m Member, ok bool) {
	m.Key = key
	kind := s.dec.PeekKind()
	list := kind == '[' && levels == innerLevels-1 && key == listOfMany
	if kind == '{' && levels >= 0 && s.kept < mostKept || list {
		if _, err := s.dec.ReadToken(); err != nil || s.dec.StackDepth() > s.maxDepth {
			return m, false
		}
		start := int(s.dec.InputOffset()) - 1
		inner := levels - 1
		if list {
			inner = innerLevels
		}
		if m.Inner, ok = s.members(list, inner); !ok {
			return m, false
		}
		end := int(s.dec.InputOffset())
		m.Raw = s.src[start:end:end]
		return m, true
	}
	raw, err := s.dec.ReadValue()
	if err != nil {
		return m, false
	}
	if (kind == '{' || kind == '[') && !s.shallow(raw) {
		return m, false
	}
	end := int(s.dec.InputOffset())
	m.Raw = s.src[end-len(raw) : end : end]
	return m, true
}

// members reads the members of an object or the elements of a list, to its end.
func (s *splitter) members(list bool, levels int) (out []Member, ok bool) {
	first := len(s.open)
	for kind := s.dec.PeekKind(); kind != '}' && kind != ']'; kind = s.dec.PeekKind() {
		var rawKey []byte
		key := ""
		if !list {
			name, err := s.dec.ReadValue()
			if err != nil {
				return nil, false
			}
			end := int(s.dec.InputOffset())
			rawKey = s.src[end-len(name) : end : end]
			key = nameOf(rawKey)
		}
		m, ok := s.value(key, levels)
		if !ok {
			return nil, false
		}
		if len(s.open)-first > MostMembers {
			continue
		}
		m.RawKey = rawKey
		s.kept++
		s.open = append(s.open, m)
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return nil, false
	}
	// Objects and lists inside have ended before this one, and have moved their members to done. So
	// all of open from first on belongs to this one.
	n := len(s.open) - first
	if len(s.done)+n > cap(s.done) {
		s.done = make([]Member, 0, max(16, n, min(4*cap(s.done), 1024)))
	}
	at := len(s.done)
	s.done = append(s.done, s.open[first:]...)
	s.open = s.open[:first]
	return s.done[at:len(s.done):len(s.done)], true
}

// shallow reports whether a value that was just read is nested no deeper than maxDepth. Few values
// have so many brackets that their levels have to be counted.
func (s *splitter) shallow(raw []byte) bool {
	room := s.maxDepth - s.dec.StackDepth()
	if bytes.Count(raw, []byte("["))+bytes.Count(raw, []byte("{")) <= room {
		return true
	}
	depth, text := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '[' || c == '{':
			if depth++; depth > room {
				return false
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return true
}

// nameOf is Unquote that does not copy the names that most jobs have.
func nameOf(raw []byte) string {
	if name, ok := usual[string(raw[1:len(raw)-1])]; ok {
		return name
	}
	return Unquote(raw)
}

var usual = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"type", "args", "options", "meta", "queue", "priority", "id", "jobs", "job_id", "lease", "worker_id", "result", "queues", "count",
		"visibility_timeout_ms", "wait_ms", "max_attempts", "retry", "tags", "timeout_ms", "scheduled_at", "delay_until", "expires_at",
		"tenant_id", "specversion", "error", "code", "message",
	} {
		names[name] = name
	}
	return names
}()
