package jsonbody

import (
	"encoding/json"
	"testing"
	"time"
)

type outer struct {
	inner
	Queues  []string        `json:"queues" check:"required,name"`
	Count   int32           `json:"count" check:"1..1000"`
	Wait    *int32          `json:"wait" check:"0.."`
	On      bool            `json:"on"`
	Off     *bool           `json:"off"`
	At      *time.Time      `json:"at" check:"when"`
	Result  json.RawMessage `json:"result" check:"verbatim"`
	Config  json.RawMessage `json:"config" check:"object,storable"`
	Child   *inner          `json:"child"`
	checked bool
}

type inner struct {
	ID   string  `json:"id" check:"id"`
	Name *string `json:"name" check:"name"`
}

func (r *outer) Check(*Object) { r.checked = true }

func read(t *testing.T, src string, into any) error {
	t.Helper()
	fields, ok := split([]byte(src), 10)
	if !ok {
		t.Fatalf("%s is not an object", src)
	}
	o := &Object{Source: []byte(src), Fields: fields, Fault: new(error)}
	o.Into(into)
	return o.Err()
}

func TestInto(t *testing.T) {
	t.Parallel()
	got := outer{Count: 7}
	if err := read(t, `{"queues":["a","b"],"id":null,"name":"n","on":true,"result":null,
		"config":{"x":1},"child":{"name":"c"},"at":"+P1W"}`, &got); err != nil {
		t.Fatal(err)
	}
	switch {
	case len(got.Queues) != 2 || got.Count != 7 || !got.On || got.Off != nil || got.Wait != nil || !got.checked:
		t.Errorf("values are %+v", got)
	case got.ID != "" || *got.Name != "n" || *got.Child.Name != "c":
		t.Errorf("texts are %+v, %+v", got.inner, got.Child)
	case string(got.Result) != "null" || string(got.Config) != `{"x":1}`:
		t.Errorf("bytes are %s, %s", got.Result, got.Config)
	case time.Until(*got.At) < 6*24*time.Hour:
		t.Errorf("the time is %v", got.At)
	}
}

func TestIntoRefuses(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		`{}`:                                    "queues is required",
		`{"queues":null}`:                       "queues is required",
		`{"queues":"a"}`:                        "queues must be an array, not string",
		`{"queues":["a",""]}`:                   "queues[1] must not be empty",
		`{"queues":["a",1]}`:                    "queues[1] must be a string, not number",
		`{"queues":[],"count":0}`:               "count must be at least 1",
		`{"queues":[],"count":1001}`:            "count must be at most 1000",
		`{"queues":[],"count":1.5}`:             "count must be an integer written without fraction or exponent",
		`{"queues":[],"on":"yes"}`:              "on must be a boolean, not string",
		`{"queues":[],"id":"ID"}`:               "id must be a UUID in lowercase with hyphens",
		`{"queues":[],"child":{"name":""}}`:     "child.name must not be empty",
		`{"queues":[],"child":[]}`:              "child must be an object, not array",
		`{"queues":[],"config":[]}`:             "config must be an object, not array",
		`{"queues":[],"config":{"x":1e999999}}`: "config.x is a number of more than 1000 digits",
		`{"queues":[],"more":1}`:                "more is not known here",
		`{"queues":[],"at":"+P1M"}`: "at must be RFC 3339 with an offset, or + and an ISO 8601 duration of weeks to seconds, " +
			"such as +PT90S",
	} {
		if err := read(t, src, new(outer)); err == nil || err.Error() != "invalid_request: "+want {
			t.Errorf("%s: %v, want %q", src, err, want)
		}
	}
}
