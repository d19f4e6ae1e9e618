package jsonbody

import (
	"strconv"
	"time"
)

// Splice returns an object with the members as the client spelled them.
func Splice(fields []Member) []byte {
	b := []byte{'{'}
	for i, m := range fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, m.RawKey...)
		b = append(b, ':')
		b = append(b, m.Raw...)
	}
	return append(b, '}')
}

// Writer appends the fields of a JSON object to B, in order. Comma says that the next field needs a
// comma before it.
type Writer struct {
	B     []byte
	Comma bool
}

// Open begins an object.
func (w *Writer) Open() {
	w.B = append(w.B, '{')
	w.Comma = false
}

// Close ends an object.
func (w *Writer) Close() {
	w.B = append(w.B, '}')
	w.Comma = true
}

// Key begins a field, whose value the caller appends to B.
func (w *Writer) Key(name string) {
	if w.Comma {
		w.B = append(w.B, ',')
	}
	w.Comma = true
	w.B = append(w.B, '"')
	w.B = append(w.B, name...) // a name of this program: there is nothing to escape
	w.B = append(w.B, '"', ':')
}

// Null writes a field that has no value.
func (w *Writer) Null(name string) {
	w.Key(name)
	w.B = append(w.B, "null"...)
}

// Raw writes a field whose value is JSON.
func (w *Writer) Raw(name string, raw []byte) {
	w.Key(name)
	w.B = append(w.B, raw...)
}

// Verbatim writes a member as the client spelled it, escapes of the key included.
func (w *Writer) Verbatim(m Member) {
	if w.Comma {
		w.B = append(w.B, ',')
	}
	w.Comma = true
	w.B = append(w.B, m.RawKey...)
	w.B = append(w.B, ':')
	w.B = append(w.B, m.Raw...)
}

// Text writes a string.
func (w *Writer) Text(name, v string) {
	w.Key(name)
	w.B = AppendString(w.B, v)
}

// Integer writes a whole number.
func (w *Writer) Integer(name string, v int64) {
	w.Key(name)
	w.B = strconv.AppendInt(w.B, v, 10)
}

// Flag writes a boolean.
func (w *Writer) Flag(name string, v bool) {
	w.Key(name)
	w.B = strconv.AppendBool(w.B, v)
}

// Time writes a time as AppendTime does, and nothing for nil.
func (w *Writer) Time(name string, at *time.Time) {
	if at != nil {
		w.Key(name)
		w.B = AppendTime(w.B, *at)
	}
}

// Listed returns an object in parts: list under each of names, which clients read, and what rest
// writes. The bytes of the list are not copied.
func Listed(list []byte, names []string, rest func(*Writer)) (body [][]byte) {
	w := Writer{}
	w.Open()
	for _, name := range names {
		w.Key(name)
		body = append(body, w.B, list)
		w.B = nil
	}
	rest(&w)
	w.Close()
	return append(body, w.B)
}

// Texts writes an array of strings.
func (w *Writer) Texts(name string, values []string) {
	w.Key(name)
	w.B = append(w.B, '[')
	for i, v := range values {
		if i > 0 {
			w.B = append(w.B, ',')
		}
		w.B = AppendString(w.B, v)
	}
	w.B = append(w.B, ']')
}

// Attr is an attribute that one response adds to a job.
type Attr struct {
	Name string
	Raw  []byte
}
