package jsonbody

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// A body is accepted, and comes apart, as by reading all of it first and taking it apart afterwards.
func FuzzSplit(f *testing.F) {
	nested := func(depth int) string { return strings.Repeat(`{"a":[`, depth/2) + strings.Repeat("]}", depth/2) }
	for _, seed := range []string{
		`{}`, ` { } `, `[]`, `null`, ``, "\xEF\xBB\xBF{}", `{} {}`, `{}x`, `{"a":1`, `{"a":1,}`, `{"a" 1}`, `{"a":1]`, `{"a":[1}`, `{,}`,
		`{"type":"a","args":[1,"\u00e9",{"b":null}],"options":{"queue":"q","retry":{"max_attempts":-1.5e3,"x":{"y":[{}]}}},"meta":{}}`,
		`{"jobs":[{"type":"a","args":[{"x":1,"y":2}],"jobs":[1]}, {"options":{"jobs":[{}]}},7,[],"x"],"worker_id":null}`,
		`{"jobs":{}}`, `{"jobs":[]}`, `{"jobs":null}`, `{"jobs":[}`, `{"a\u0062":1,"ab":2}`, `{"a":1,"a":2}`, `{"o":{"a":1,"a":2}}`,
		`{"o":{"p":{"q":{"a":1,"a":2}}}}`, `{"x":[{"a":1,"\u0061":3}]}`, `{"jobs":[{"a":1,"a":2}]}`,
		`{"a":"\u0000"}`, `{"a":"\\u0000"}`, `{"a\u0000":1}`, "{\"a\":\"\x00\"}", "{\"a\":\"\xff\"}", `{"a":"\ud800"}`, `{"a":01}`,
		`{"a":tru}`,
		nested(48), nested(50), nested(52), `{"a":"` + strings.Repeat("[{", 40) + `\"[","b":[` + strings.Repeat("[],", 60) + `[]]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		fields, ok := split(src, 50)
		fine := CheckJSON(src, 50) == nil && Kind(src) == "object"
		if ok != fine && !(fine && bytes.Contains(src, []byte(`\u0000`))) {
			t.Fatalf("%q: %v, want %v", src, ok, fine)
		}
		if ok {
			same(t, "", fields, Members(src))
		}
	})
}

// same compares what was taken apart at once with what is taken apart now.
func same(t *testing.T, path string, got, want []Member) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d members, want %d", path, len(got), len(want))
	}
	for i := range got {
		at := path + "/" + strconv.Itoa(i)
		if got[i].Key != want[i].Key || !bytes.Equal(got[i].RawKey, want[i].RawKey) || !bytes.Equal(got[i].Raw, want[i].Raw) {
			t.Fatalf("%s is %+v, want %+v", at, got[i], want[i])
		}
		switch {
		case got[i].Inner == nil:
		case Kind(got[i].Raw) == "object":
			same(t, at, got[i].Inner, Members(got[i].Raw))
		default:
			var items []Member
			for _, raw := range Elements(got[i].Raw) {
				items = append(items, Member{Raw: raw})
			}
			same(t, at, got[i].Inner, items)
		}
	}
}

// However many elements or members a body has, few more than are allowed cost memory.
func TestReadingCostsLittle(t *testing.T) {
	many := func(one func(i int) string) string {
		var list strings.Builder
		for i := range 500_000 {
			if i > 0 {
				list.WriteByte(',')
			}
			list.WriteString(one(i))
		}
		return list.String()
	}
	zeros := many(func(int) string { return "0" })
	for name, body := range map[string]string{
		"a list":                    `{"jobs":[` + zeros + `]}`,
		"a list and an escaped NUL": `{"nul":"\\u0000","jobs":[` + zeros + `]}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		o, err := ReadBody(httptest.NewRecorder(), requestWith(body), 16<<20, 100, false, Parts{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(o.Items("jobs")); n != MostMembers+1 {
			t.Errorf("%s: %d elements", name, n)
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
			t.Errorf("%s: %d bytes of memory for a body of %d", name, got, len(body))
		}
	}
	members := many(func(i int) string { return `"` + strconv.Itoa(i) + `":0` })
	for _, nul := range []string{"", `"nul":"\\u0000",`} {
		if o, err := ReadBody(httptest.NewRecorder(), requestWith(`{`+nul+members+`}`), 16<<20, 100, false, Parts{}); err == nil {
			t.Errorf("%d members pass", len(o.Fields))
		}
		o, err := ReadBody(httptest.NewRecorder(), requestWith(`{`+nul+`"meta":{`+members+`}}`), 16<<20, 100, false, Parts{})
		if err != nil {
			t.Fatal(err)
		}
		if o.Child("meta"); o.Err() == nil || !strings.Contains(o.Err().Error(), "meta must have at most 10000 members") {
			t.Errorf("meta of many members: %v", o.Err())
		}
	}
}

func requestWith(body string) *http.Request {
	return httptest.NewRequest("POST", "/", strings.NewReader(body))
}

// Reading at once is compared with checking all of a body first and taking it apart afterwards.
func BenchmarkReadEnqueue(b *testing.B) {
	src := []byte(`{"type":"email.send","args":["user@example.com",{"x":"` + strings.Repeat("x", 100) +
		`"}],"meta":{"trace_id":"x"},"options":{"queue":"mail","priority":5}}`)
	b.Run("one pass", func(b *testing.B) {
		b.SetBytes(int64(len(src)))
		for b.Loop() {
			if fields, ok := split(src, 100); !ok || len(fields) != 4 {
				b.Fatal(fields)
			}
		}
	})
	b.Run("two passes", func(b *testing.B) {
		b.SetBytes(int64(len(src)))
		for b.Loop() {
			if CheckJSON(src, 100) != nil || len(Members(src)) != 4 {
				b.Fatal("refused")
			}
		}
	})
}
