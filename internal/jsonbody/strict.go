package jsonbody

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// Strict JSON. encoding/json repairs broken UTF-8, accepts a key twice and accepts NUL, which
// PostgreSQL cannot store as text. It also keeps no raw bytes with whitespace. A job system that
// promises to return what it was given needs a reader that refuses instead of repairing, names the
// path of the fault, and keeps the client's own bytes. jsontext is that reader. This file adds what
// only this server refuses (NUL, depth, a second value), and paths as people write them.

// badJSON says what is wrong with the body of a request, and where: path is like args[0].name.
type badJSON struct {
	path   string
	offset int64
	what   string
}

func (e *badJSON) Error() string {
	if e.path == "" {
		return fmt.Sprintf("the body is not acceptable JSON: %s (byte %d)", e.what, e.offset)
	}
	return fmt.Sprintf("%s is not acceptable JSON: %s (byte %d)", e.path, e.what, e.offset)
}

// CheckJSON accepts exactly one JSON value (RFC 8259) in valid UTF-8, without NUL characters, lone
// surrogates, repeated keys or nesting deeper than maxDepth. It returns nil if src is one.
func CheckJSON(src []byte, maxDepth int) *badJSON { return checkPart(src, maxDepth, maxDepth) }

// checkPart is CheckJSON of a part of a body. limit is how many levels the body may have, for the
// message.
func checkPart(src []byte, maxDepth, limit int) *badJSON {
	if bytes.HasPrefix(src, []byte("\uFEFF")) {
		return &badJSON{what: "a byte order mark"}
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(src))
	fail := func(at jsontext.Pointer, offset int64, what string) *badJSON {
		return &badJSON{path: string(appendPath(nil, dec, at)), offset: offset, what: what}
	}
	// JSON has only this one spelling of NUL. Most bodies do without it, and need no closer look.
	nul := []byte(`\u0000`)
	escapes := bytes.Contains(src, nul)
	for {
		start := dec.InputOffset()
		done := start > 0 && dec.StackDepth() == 0
		tok, err := dec.ReadToken()
		switch {
		case err == io.EOF && done:
			return nil
		case err == io.EOF:
			return fail("", int64(len(src)), "nothing there")
		case done:
			return fail("", start, "more text after the end of the value")
		case err != nil:
			return fail(malformed(src, dec))
		case dec.StackDepth() > maxDepth:
			return fail(dec.StackPointer(), dec.InputOffset()-1, fmt.Sprintf("nested deeper than %d", limit))
		case escapes && tok.Kind() == '"' && strings.Contains(tok.String(), "\x00"):
			at := dec.StackPointer()
			if kind, length := dec.StackIndex(dec.StackDepth()); kind == '{' && length%2 == 1 {
				at = at.Parent() // a key with NUL is no part of a readable path
			}
			return fail(at, start+int64(bytes.Index(src[start:], nul)), "a NUL character")
		}
	}
}

// malformed explains why dec could not read on. It reads all of src at once, which fails at the
// same byte, but with a better path: a[1], not a, for the end of [1,].
func malformed(src []byte, dec *jsontext.Decoder) (at jsontext.Pointer, offset int64, what string) {
	_, err := jsontext.NewDecoder(bytes.NewBuffer(src)).ReadValue()
	fault, _ := errors.AsType[*jsontext.SyntacticError](err) // memory is read without other errors
	at, offset, what = fault.JSONPointer, fault.ByteOffset, fault.Err.Error()
	switch {
	case fault.Err == io.ErrUnexpectedEOF:
		what = "the text ends early"
	case fault.Err == jsontext.ErrDuplicateName:
		what = "the key is repeated"
	case src[offset] == 0:
		what = "a NUL character"
	case offset > 0 && src[offset-1] == '0' && src[offset] >= '0' && src[offset] <= '9':
		at, what = dec.StackPointer(), "a number with a leading zero"
	}
	return at, offset, what
}

// appendPath appends a path in what dec reads, as people write it: jobs[3].options.retry.
func appendPath(b []byte, dec *jsontext.Decoder, at jsontext.Pointer) []byte {
	level := 0
	for step := range at.Tokens() {
		level++
		// A pointer alone does not tell the element 0 from the key "0".
		if kind, _ := dec.StackIndex(level); kind == '[' {
			b = append(b, "["+step+"]"...)
		} else {
			b = AppendKey(b, step)
		}
	}
	return b
}

// AppendKey appends a key to a path. It quotes a key that would not read as one word.
func AppendKey(b []byte, key string) []byte {
	plain := key != "" && !strings.ContainsFunc(key, func(r rune) bool {
		return r <= ' ' || r >= 0x7F || strings.ContainsRune(`.[]"\`, r)
	})
	key = problems.Clip(key)
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

// Unquote decodes a JSON string that CheckJSON accepted.
func Unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	text, _ := jsontext.AppendUnquote(nil, raw)
	return string(text)
}

// TextBytes is Unquote that does not copy a string without escapes. It returns nil for nil.
func TextBytes(raw []byte) []byte {
	if raw == nil {
		return nil
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1 : len(raw)-1]
	}
	text, _ := jsontext.AppendUnquote([]byte{}, raw)
	return text
}

// Member is one key of an object, or an element of a list, with the client's own bytes.
type Member struct {
	Key    string
	RawKey []byte
	Raw    []byte
	Inner  []Member // members of an object or a list that was split with the body; else nil
}

// members returns the members of the object that is this member's value, at most one more than
// MostMembers.
func (m *Member) members() []Member {
	if m.Inner != nil {
		return m.Inner
	}
	return membersOf(m.Raw, MostMembers+1)
}

// Members splits an object that CheckJSON or PostgreSQL accepted. The members keep their order.
func Members(raw []byte) []Member { return membersOf(raw, math.MaxInt/2) }

func membersOf(raw []byte, most int) []Member {
	pieces := elements(raw, 2*most)
	out := make([]Member, len(pieces)/2)
	for i := range out {
		key := pieces[2*i]
		out[i] = Member{Key: Unquote(key), RawKey: key, Raw: pieces[2*i+1]}
	}
	return out
}

// decoders keeps decoders for reuse, because split and elements would make one for each call.
var decoders = sync.Pool{New: func() any { return decoder(nil) }}

// Elements splits an array that CheckJSON or PostgreSQL accepted. It never returns nil. Of an
// object it returns keys and values in turn.
func Elements(raw []byte) [][]byte { return elements(raw, math.MaxInt) }

// elements is Elements that stops after most elements.
func elements(raw []byte, most int) [][]byte {
	dec := decoders.Get().(*jsontext.Decoder)
	defer decoders.Put(dec)
	dec.Reset(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	out := make([][]byte, 0, 8)
	_, err := dec.ReadToken()
	for kind := dec.PeekKind(); err == nil && kind != ']' && kind != '}' && len(out) < most; kind = dec.PeekKind() {
		var v jsontext.Value
		v, err = dec.ReadValue()
		end := int(dec.InputOffset())
		out = append(out, raw[end-len(v):end:end])
	}
	if err != nil {
		panic(fmt.Errorf("take JSON apart: %w", err))
	}
	return out
}

// decoder returns a decoder of JSON that was accepted before. SQL callers may have stored json,
// though not jsonb, with repeated keys or lone surrogates: they get back what they stored.
func decoder(raw []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

var kinds = map[jsontext.Kind]string{
	'{': "object", '[': "array", '"': "string", '0': "number", 't': "boolean", 'f': "boolean", 'n': "null",
}

// Kind returns the name of the JSON type of a value.
func Kind(raw []byte) string { return kinds[jsontext.Value(raw).Kind()] }
