package jsonbody

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
)

// badValues are values that are no acceptable JSON, though their ends can be found.
var badValues = map[string]string{
	"NaN":                 `NaN`,
	"Infinity":            `-Infinity`,
	"a leading zero":      `007`,
	"a word":              `{"a":[undefined]}`,
	"escaped NUL":         `"a\u0000b"`,
	"raw NUL":             "\"a\x00b\"",
	"half a surrogate":    `{"x":"half \ud83d"}`,
	"a repeated key":      `{"x":1,"x":2}`,
	"too many levels":     strings.Repeat("[", 120) + strings.Repeat("]", 120),
	"a latin1 byte":       "\"caf\xe9\"",
	"a newline in a text": "\"a\nb\"",
	"an unknown escape":   `"\x41"`,
	"NUL in a key":        `{"k\u0000":1}`,
}

func readParts(t *testing.T, body string, parts Parts) (*Object, error) {
	t.Helper()
	return ReadBody(httptest.NewRecorder(), requestWith(body), 16<<20, 100, false, parts)
}

// An element that is no acceptable JSON has an error of its own, and the others are read.
func TestOneBadElement(t *testing.T) {
	for name, value := range badValues {
		body := `{"worker_id":"w","jobs":[{"job_id":"A","result":[1,"}"]}, {"job_id":"B","result": ` + value + `} ,{"job_id":"C"}]}`
		o, err := readParts(t, body, Parts{Lists: []string{"jobs"}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		items := o.Items("jobs")
		if len(items) != 3 || o.Whole == nil || *o.Name("worker_id") != "w" {
			t.Fatalf("%s: %+v", name, o)
		}
		bad := o.Broken("jobs[1]")
		if bad == nil || !strings.Contains(bad.Error(), ": jobs[1].result") || o.Broken("jobs[0]") != nil || o.Broken("jobs[2]") != nil {
			t.Errorf("%s: %v", name, bad)
		}
		if got := LooseText(items[1].Raw, "job_id"); got != "B" {
			t.Errorf("%s: the element is of %q", name, got)
		}
		for _, i := range []int{0, 2} {
			if id := ObjectOf(&items[i], "", new(error)).Text("job_id"); id == nil || *id != string("ABC"[i]) {
				t.Errorf("%s: element %d is %s", name, i, items[i].Raw)
			}
		}
		if _, err := readParts(t, body, Parts{}); err == nil {
			t.Errorf("%s passes without parts", name)
		}
	}
}

// The byte that an error names is that of the body.
func TestOffsetsOfBadElements(t *testing.T) {
	for _, repair := range []string{"", "error"} {
		body := `{"jobs":[{"a":1}, {"b":[1,NaN]}, "x\u0000"]}`
		o, err := readParts(t, body, Parts{Lists: []string{"jobs"}, Repair: repair})
		if err != nil {
			t.Fatal(err)
		}
		for at, want := range map[string]string{"jobs[1]": "jobs[1].b[1] is not", "jobs[2]": "jobs[2] is not"} {
			if got := o.Broken(at); got == nil || !strings.Contains(got.Error(), ": "+want) {
				t.Errorf("%s: %v", at, got)
			}
		}
		if got := o.Broken("jobs[1]").Error(); !strings.HasSuffix(got, "(byte 26)") || body[26] != 'N' {
			t.Errorf("%s", got)
		}
	}
}

// Where the elements cannot be told apart, or a fault is outside of them, the body is refused.
func TestBrokenStructure(t *testing.T) {
	for _, body := range []string{
		`{"jobs":[{"a":NaN},{"a":1}`, `{"jobs":[{"a":NaN} {"a":1}]}`, `{"jobs":[{"a":NaN},{"a":1},]}`, `{"jobs":[{"a":NaN}]}}`,
		`{"jobs":[{"a":NaN}]} x`, `{"jobs":[{"a":NaN]}]}`, `{"jobs":[{"a" NaN}]}`, `{"jobs":[{"a":}]}`, `{"jobs":[{a:1}]}`,
		`{"jobs":[{"a":"say "hi""}]}`, `{"jobs":[{"a":"open}]}`, `{"jobs":[,]}`, `{"jobs":[{"a":NaN}],}`, `[{"a":NaN}]`, `NaN`,
		"\xEF\xBB\xBF" + `{"jobs":[{"a":NaN}]}`, "{\"jobs\":[{\"a\":NaN}]}\x00", `{"jobs":[` + strings.Repeat("[", 20_000) + `]}`,
		`{"jobs":[` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `]}`,
		`{"jobs":[{"a":NaN}],"worker_id":"\u0000"}`, `{"jobs":[1],"jobs":[2]}`, `{"jobs":[1],"b\ud800":2}`, `{"jobs":NaN}`,
		`{"jobs":[1],"other":[NaN]}`,
	} {
		if _, err := readParts(t, body, Parts{Lists: []string{"jobs"}, Repair: "error"}); err == nil {
			t.Errorf("%.60q passes", body)
		}
	}
}

// An error is repaired wherever it stands; anything else in its element is not.
func TestRepair(t *testing.T) {
	parts := Parts{Lists: []string{"jobs"}, Repair: "error"}
	for name, value := range badValues {
		failure := `{"message":"m","type":"T","details":` + value + `}`
		for _, body := range []string{`{"error":` + failure + `}`, `{"jobs":[{"error":` + failure + `},{"error":{},"lease":"\u0000"}]}`} {
			o, err := readParts(t, body, parts)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if items := o.Items("jobs"); items != nil {
				if o.Broken("jobs[0]") != nil || o.Broken("jobs[1]") == nil {
					t.Errorf("%s: %v, %v", name, o.Broken("jobs[0]"), o.Broken("jobs[1]"))
				}
				o = ObjectOf(&items[0], "", new(error))
			}
			raw := o.Raw("error")
			var got map[string]any
			if err := json.Unmarshal(raw, &got); err != nil || CheckJSON(raw, 99) != nil {
				t.Fatalf("%s: %v in %q", name, err, raw)
			}
			marked := got["repaired"] == true || name == "too many levels" && got["truncated"] == true
			if got["message"] != "m" || got["type"] != "T" || !marked {
				t.Errorf("%s: %s", name, raw)
			}
		}
	}
}

func TestMend(t *testing.T) {
	for src, want := range map[string]string{
		`{"message":"fine"}`: `{"message":"fine"}`,
		`{"message":"a\u0000b\ud83d\ud83d\ude00\udc00\n\u00e9\"\\\/"}`: `{"message":"a�b�😀�\né\"\\/","repaired":true}`,
		"{\"message\":\"caf\xe9\x00\x1f\"}":                            `{"message":"caf��\u001f","repaired":true}`,
		`{"message":"C:\x86\u12"}`:                                     `{"message":"C:\\x86\\u12","repaired":true}`,
		`{"a":NaN,"b":-Infinity,"c":1e5,"d":007,"e":None,"f":null}`: `{"a":"NaN","b":"-Infinity","c":1e5,"d":"007","e":"None","f":null,` +
			`"repaired":true}`,
		`{"n":1e999999}`:                                `{"n":"1e999999","repaired":true}`,
		`{"message":"one","message":"two"}`:             `{"message":"two","repaired":true}`,
		`{"d":{"x":1,"x":2}}`:                           `{"d":{"x":1},"repaired":true}`,
		`{"k\u0000":1,"d":{"\ud800":[2 , "x"], "y":3}}`: `{"k�":1,"d":{"�":[2,"x"],"y":3},"repaired":true}`,
		`{"repaired":"mine","message":"m"}`:             `{"message":"m","repaired":"mine"}`,
		`{"repaired":"mine","message":"\u0000"}`:        `{"message":"�","repaired":true}`,
		`{"d":[[[[1]]],2]}`:                             `{"d":[[null],2],"truncated":true}`,
		` [ NaN ] `:                                     `["NaN"]`,
		`{}`:                                            `{}`,
	} {
		if got := string(Mend([]byte(src), 3)); got != want {
			t.Errorf("%q:\n%s, want\n%s", src, got, want)
		}
	}
	huge := `{"details":[` + strings.Repeat(`"`+strings.Repeat("x", 100)+`\u0000",`, 10_000) + `0],"a":1,"code":"C","message":"` +
		strings.Repeat("y", 1<<20) + `"}`
	got := Mend([]byte(huge), 90)
	if len(got) > 2*mendedBytes || !strings.HasPrefix(string(got), `{"message":"yyy`) || !strings.Contains(string(got), `"code":"C"`) ||
		!strings.HasSuffix(string(got), `"repaired":true,"truncated":true}`) || CheckJSON(got, 90) != nil {
		t.Errorf("%d bytes: %.100s", len(got), got)
	}
}

// Whatever the loose scanner accepts, it splits as the strict reader does where that accepts it, and
// an error becomes acceptable JSON that stays as it is when it is repaired again.
func FuzzLoose(f *testing.F) {
	for _, value := range badValues {
		f.Add([]byte(`{"message":` + value + `,"x":[{"y":` + value + `}]}`))
	}
	f.Add([]byte(`{"a":"\ud83d\ude00","b":{"c":[1,-2.5e3,true]},"repaired":1,"repaired":2}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		fields, ok := looseMembers(src)
		if strict := CheckJSON(src, 50) == nil; strict && (Kind(src) == "object" || Kind(src) == "array") {
			if !ok {
				t.Fatalf("%q is refused", src)
			}
			if Kind(src) == "object" {
				want := Members(src)
				if len(want) != len(fields) {
					t.Fatalf("%q has %d members", src, len(fields))
				}
				for i := range want {
					if string(want[i].Raw) != string(fields[i].Raw) || string(want[i].RawKey) != string(fields[i].RawKey) {
						t.Fatalf("%q: member %d is %q:%q", src, i, fields[i].RawKey, fields[i].Raw)
					}
				}
			}
		}
		if !ok {
			return
		}
		once := Mend(src, 50)
		if bad := CheckJSON(once, 50); bad != nil {
			t.Fatalf("%q becomes %q: %v", src, once, bad)
		}
		var a, b any
		if json.Unmarshal(once, &a) != nil || json.Unmarshal(Mend(once, 50), &b) != nil {
			t.Fatalf("%q becomes %q", src, once)
		}
		if x, _ := json.Marshal(a); true {
			if y, _ := json.Marshal(b); string(x) != string(y) {
				t.Fatalf("%q becomes %s and then %s", src, x, y)
			}
		}
	})
}
