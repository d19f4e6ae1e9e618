// Package engine reads conformance cases written as JSON and plays them against an OJS server over HTTP.
//
// A case says more than one runner's code happens to look at, so the rule here is that nothing is ignored:
// a key, a matcher or a path form this package does not understand fails the case when it is read, before
// a single request is sent, and a template that does not resolve fails the step that uses it. The few keys
// that are prose are listed by name (descriptiveKeys).
//
// The engine knows neither Postgres nor this project's server. It is imported only by tests; the results go
// to conformance_test.go, which counts them.
//
// Where the case language leaves a choice, these are the readings:
//
//   - null is neither a value nor an absence: it satisfies "exists", a literal null and $type "null", but
//     not {"$exists": true}, {"$exists": false}, "any" or "absent".
//   - Numbers are compared by value with all their digits; 2.0 equals 2, and 0.1 is one tenth.
//   - An object without operators must be equal to the response's, key for key. Only an expected "meta" is
//     open, because a server may add its own keys there: each expected key must be there with its value.
//   - A dotted path is first taken as nested keys; where that leads nowhere, neighbouring parts are taken
//     together, so that a flat key with dots in it is found.
//   - A whole-string template keeps the JSON type of what it names and is compared literally, whatever the
//     text looks like.
//   - The abstract actions push, get, fetch and ack mean the corresponding request of the HTTP binding; what
//     they expect of a job may stand in the response or in its "job" envelope. Captures look there as well.
package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// decode reads exactly one JSON value, keeping every digit of numbers. Duplicate keys are refused: which of
// two values was meant is not ours to guess, in a case or in a response.
func decode(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := decodeValue(dec)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func decodeValue(dec *json.Decoder) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		obj := map[string]any{}
		for dec.More() {
			tok, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key := tok.(string)
			if _, twice := obj[key]; twice {
				return nil, fmt.Errorf("key %q appears twice in one object", key)
			}
			if obj[key], err = decodeValue(dec); err != nil {
				return nil, err
			}
		}
		_, err := dec.Token()
		return obj, err
	case json.Delim('['):
		arr := []any{}
		for dec.More() {
			v, err := decodeValue(dec)
			if err != nil {
				return nil, err
			}
			arr = append(arr, v)
		}
		_, err := dec.Token()
		return arr, err
	}
	return tok, nil
}

// encode writes a value as JSON without HTML escapes and without the encoder's final newline.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

// show renders a value for a person, short enough for one line of a test log.
func show(v any) string {
	data, err := encode(v)
	if err != nil {
		return fmt.Sprintf("%#v", v)
	}
	return clip(string(data), 400)
}

func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + fmt.Sprintf("… (%d bytes)", len(s))
}
