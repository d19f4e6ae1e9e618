package jsonbody

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// A body that lists jobs is read item by item: one item that is no acceptable JSON must not cost the
// other items their leases. So a body that the strict reader refuses is split again by the looser
// scanner of this file, which only needs to know where members and items begin and end. Each item is
// then checked strictly. A body whose brackets, commas and quotes do not show where its items end is
// refused as a whole.

// Parts names the fields of a body that are judged by themselves.
type Parts struct {
	Lists  []string // fields of the body: each element of such a list is judged by itself
	Repair string   // field of the body, and of objects in the lists, that is repaired (Mend)
}

// mostLevels is how many levels the loose scanner follows. Deeper JSON counts as broken.
const mostLevels = 10_000

// loose scans JSON and accepts more than JSON: any bytes in a string, and any word for a number or
// a literal, such as NaN or 007. Brackets, commas, colons and quotes have to be right.
type loose struct {
	src []byte
	at  int
}

// next returns the first byte after whitespace, or 0 at the end.
func (l *loose) next() byte {
	for ; l.at < len(l.src); l.at++ {
		switch c := l.src[l.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// value reads the next value. It reports whether its end could be found.
func (l *loose) value(levels int) bool {
	switch l.next() {
	case '{', '[':
		return l.each(levels, nil)
	case '"':
		return l.text()
	}
	return l.word()
}

// text reads a string.
func (l *loose) text() bool {
	for l.at++; l.at < len(l.src); l.at++ {
		switch l.src[l.at] {
		case '\\':
			l.at++
		case '"':
			l.at++
			return true
		}
	}
	return false
}

// word reads a number, a literal, or what stands for one.
func (l *loose) word() bool {
	start := l.at
	for ; l.at < len(l.src); l.at++ {
		c := l.src[l.at]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '+' && c != '-' && c != '.' && c != '_' {
			break
		}
	}
	return l.at > start
}

// each reads an object or a list to its end. It calls visit, unless that is nil, before each value;
// visit has to read the value. key is nil in a list.
func (l *loose) each(levels int, visit func(key []byte) bool) bool {
	if levels <= 0 {
		return false
	}
	closing := byte('}')
	if l.src[l.at] == '[' {
		closing = ']'
	}
	l.at++
	if l.next() == closing {
		l.at++
		return true
	}
	for {
		var key []byte
		if closing == '}' {
			start := l.at
			if l.next() != '"' || !l.text() {
				return false
			}
			key = bytes.TrimLeft(l.src[start:l.at], " \t\r\n")
			if l.next() != ':' {
				return false
			}
			l.at++
		}
		l.next()
		if visit == nil && !l.value(levels-1) || visit != nil && !visit(key) {
			return false
		}
		switch l.next() {
		case closing:
			l.at++
			return true
		case ',':
			l.at++
			l.next()
		default:
			return false
		}
	}
}

// looseMembers splits an object, or a list, whose members have no keys. It keeps at most one more
// than MostMembers. ok is false if raw is neither, or if more text follows.
func looseMembers(raw []byte) (out []Member, ok bool) {
	l := loose{src: raw}
	if c := l.next(); c != '{' && c != '[' {
		return nil, false
	}
	ok = l.each(mostLevels, func(key []byte) bool {
		start := l.at
		if !l.value(mostLevels - 1) {
			return false
		}
		if len(out) <= MostMembers {
			out = append(out, Member{RawKey: key, Raw: raw[start:l.at]}) // not clipped: see offset
		}
		return true
	})
	return out, ok && l.next() == 0 && l.at == len(raw)
}

// readLoosely reads a body that CheckJSON refuses. It returns nil if a fault is outside of parts, or
// if the structure is broken. whole is the refusal of the body as a whole.
func readLoosely(src []byte, maxDepth int, parts Parts, whole error) *Object {
	fields, ok := looseMembers(src)
	if !ok || Kind(src) != "object" {
		return nil
	}
	r := looseReader{src: src, limit: maxDepth, parts: parts, faults: map[string]error{}}
	if r.members(fields, maxDepth-1, true) != nil {
		return nil
	}
	o := &Object{Source: src, Fault: new(error)}
	if len(r.faults) > 0 {
		o.Whole, o.broken = whole, r.faults
	}
	o.take(fields)
	return o
}

// looseReader checks the members of a body that looseMembers split.
type looseReader struct {
	src    []byte
	limit  int // levels of the body
	parts  Parts
	faults map[string]error // by path
}

// members checks the members of an object, sets their keys, and repairs the one that may be
// repaired. depth is how many levels their values may have. top: the object is the body.
func (r *looseReader) members(fields []Member, depth int, top bool) *badJSON {
	seen := make(map[string]bool, len(fields))
	defer func() {
		for i := range fields {
			fields[i].Raw, fields[i].RawKey = slices.Clip(fields[i].Raw), slices.Clip(fields[i].RawKey)
		}
	}()
	for i := range fields {
		m := &fields[i]
		if bad := CheckJSON(m.RawKey, 1); bad != nil {
			return &badJSON{offset: r.offset(m.RawKey) + bad.offset, what: bad.what}
		}
		m.Key = Unquote(m.RawKey)
		if seen[m.Key] {
			return &badJSON{path: string(AppendKey(nil, m.Key)), offset: r.offset(m.RawKey), what: "the key is repeated"}
		}
		seen[m.Key] = true
		if top && m.Raw[0] == '[' && slices.Contains(r.parts.Lists, m.Key) {
			r.list(m, depth-1)
			continue
		}
		bad := checkPart(m.Raw, depth, r.limit)
		switch {
		case bad == nil:
		case m.Key == r.parts.Repair:
			m.Raw = Mend(m.Raw, depth)
		default:
			return r.under(string(AppendKey(nil, m.Key)), m.Raw, bad)
		}
	}
	return nil
}

// list checks each element of a list. depth is how many levels an element may have.
func (r *looseReader) list(m *Member, depth int) {
	m.Inner, _ = looseMembers(m.Raw)
	if m.Inner == nil {
		m.Inner = []Member{}
	}
	for i := range m.Inner[:min(len(m.Inner), MostMembers)] {
		item := &m.Inner[i]
		if bad := r.item(item, depth); bad != nil {
			at := m.Key + "[" + strconv.Itoa(i) + "]"
			bad.path = join(at, bad.path)
			r.faults[at] = problems.Refuse(problems.CodeInvalidPayload, bad.path, "%s", bad)
		}
		item.Raw = slices.Clip(item.Raw)
	}
}

// item checks an element of a list, and repairs the member of an object that may be repaired.
func (r *looseReader) item(item *Member, depth int) *badJSON {
	bad := checkPart(item.Raw, depth, r.limit)
	if bad == nil {
		return nil
	}
	if r.parts.Repair != "" && item.Raw[0] == '{' {
		if fields, ok := looseMembers(item.Raw); ok {
			if bad = r.members(fields, depth-1, false); bad == nil {
				item.Raw = Splice(fields) // members of many items would take far more memory
			}
			return bad
		}
	}
	bad.offset += r.offset(item.Raw)
	return bad
}

// under returns a fault in a value as a fault in the object at path.
func (r *looseReader) under(path string, raw []byte, bad *badJSON) *badJSON {
	return &badJSON{path: join(path, bad.path), offset: r.offset(raw) + bad.offset, what: bad.what}
}

// offset returns where in the body a part of it begins. Parts have the capacity up to the body's end
// until they are checked.
func (r *looseReader) offset(part []byte) int64 { return int64(cap(r.src) - cap(part)) }

// join returns the path of a value below another one.
func join(path, below string) string {
	if below != "" && below[0] != '[' {
		path += "."
	}
	return path + below
}

// Broken returns why an element of a list is no acceptable JSON, or nil. at is its path in the body.
func (o *Object) Broken(at string) error { return o.broken[at] }

// LooseText reads a string from an object that is no acceptable JSON as a whole. It returns "" if
// there is none.
func LooseText(raw []byte, key string) (text string) {
	fields, _ := looseMembers(raw)
	for _, m := range fields {
		if CheckJSON(m.RawKey, 1) == nil && Unquote(m.RawKey) == key && m.Raw[0] == '"' && CheckJSON(m.Raw, 1) == nil {
			text = Unquote(m.Raw)
		}
	}
	return text
}
