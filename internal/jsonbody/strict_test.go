package jsonbody

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestCheckJSONAccepts(t *testing.T) {
	for _, src := range []string{
		`{}`, `[]`, `null`, ` true `, `-0`, `-0.0e+00`, `1E-7`, `"\u00e9\ud83d\ude00"`, "\"\u00e9\U0001F600\"",
		`{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}`,
		"\t{\r\n\"a\" :\t[ 1 ,2 ] }\n", `{"":0,"\"":1,"\\":2}`, `"\\u0000"`, `{"a\\u0000":1}`,
		`123456789012345678901234567890.123456789012345678901234567890e999`,
		strings.Repeat("[", 100) + strings.Repeat("]", 100),
	} {
		if err := CheckJSON([]byte(src), 100); err != nil {
			t.Errorf("%q: %v", src, err)
		}
		if !json.Valid([]byte(src)) {
			t.Errorf("%q is no JSON at all", src)
		}
	}
}

func TestCheckJSONRefuses(t *testing.T) {
	many := `{`
	for i := range 40 {
		many += `"` + strings.Repeat("k", i+1) + `":1,`
	}
	for _, tc := range []struct{ name, src, path, what string }{
		{"empty", "", "", "nothing there"},
		{"spaces", " \n", "", "nothing there"},
		{"byte order mark", "\xEF\xBB\xBF{}", "", "byte order mark"},
		{"two values", `{} {}`, "", "more text"},
		{"NUL after the value", "{}\x00", "", "more text"},
		{"comment", `{/**/}`, "", "character '/'"},
		{"trailing comma in an object", `{"a":1,}`, "", "character '}'"},
		{"trailing comma in an array", `{"a":[1,]}`, "a[1]", "character ']'"},
		{"single quotes", `{'a':1}`, "", `character '\''`},
		{"unquoted key", `{a:1}`, "", "character 'a'"},
		{"NaN", `{"a":NaN}`, "a", "character 'N'"},
		{"plus sign", `{"a":+1}`, "a", "character '+'"},
		{"leading zero", `{"a":01}`, "a", "leading zero"},
		{"bare fraction", `{"a":.5}`, "a", "character '.'"},
		{"open fraction", `{"a":1.}`, "a", "in number"},
		{"open exponent", `{"a":1e}`, "a", "in number"},
		{"minus alone", `{"a":-}`, "a", "in number"},
		{"cut word", `{"a":tru`, "a", "ends early"},
		{"wrong word", `{"a":nulL}`, "a", "literal null"},
		{"cut string", `{"a":"x`, "a", "ends early"},
		{"cut escape", `{"a":"x\`, "a", "ends early"},
		{"cut object", `{"a":1`, "", "ends early"},
		{"cut array", `{"a":[1`, "a", "ends early"},
		{"cut after a colon", `{"a":`, "a", "ends early"},
		{"missing colon", `{"a" 1}`, "a", "character '1'"},
		{"unknown escape", `{"a":"\x41"}`, "a", "escape sequence `\\x`"},
		{"short escape", `{"a":"\u00e"}`, "a", "escape sequence `\\u00e"},
		{"raw newline", "{\"a\":\"x\ny\"}", "a", "control character"},
		{"raw NUL", "{\"a\":\"x\x00y\"}", "a", "NUL"},
		{"escaped NUL", `{"a":["ok","x\u0000"]}`, "a[1]", "NUL"},
		{"escaped NUL in a key", `{"a":{"k\u0000":1}}`, "a", "NUL"},
		{"lone high surrogate", `{"a":"\ud800"}`, "a", "surrogate"},
		{"lone low surrogate", `{"a":"\udc00"}`, "a", "surrogate"},
		{"high surrogate and a letter", `{"a":"\ud800\u0041"}`, "a", "surrogate"},
		{"two high surrogates", `{"a":"\ud800\ud800"}`, "a", "surrogate"},
		{"invalid UTF-8", "{\"a\":\"\xff\"}", "a", "invalid UTF-8"},
		{"overlong UTF-8", "{\"a\":\"\xc0\x80\"}", "a", "invalid UTF-8"},
		{"UTF-8 of a surrogate", "{\"a\":\"\xed\xa0\x80\"}", "a", "invalid UTF-8"},
		{"cut UTF-8", "{\"a\":\"\xe2\x82\"}", "a", "invalid UTF-8"},
		{"repeated key", `{"a":1,"b":2,"a":3}`, "a", "repeated"},
		{"repeated key by escape", `{"x":[{"a":1,"\u0061":3}]}`, "x[0].a", "repeated"},
		{"repeated among many", many + `"kkkkk":2}`, "kkkkk", "repeated"},
		{"too deep", strings.Repeat("[", 101) + strings.Repeat("]", 101), strings.Repeat("[0]", 100), "deeper than 100"},
		{"too deep in objects", strings.Repeat(`{"a":`, 101) + "1" + strings.Repeat("}", 101), "", "deeper than 100"},
		{"strange key", `{"a b.c":{"":tru}}`, `["a b.c"][""]`, "literal true"},
	} {
		bad := CheckJSON([]byte(tc.src), 100)
		if bad == nil {
			t.Errorf("%s: accepted", tc.name)
			continue
		}
		if !strings.Contains(bad.what, tc.what) || tc.path != "" && bad.path != tc.path {
			t.Errorf("%s: %q at %q, want %q at %q", tc.name, bad.what, bad.path, tc.what, tc.path)
		}
	}
}

// A psql user may have stored what CheckJSON refuses; it still comes apart, and unchanged.
func TestMembersOfStoredJSON(t *testing.T) {
	src := `{"a": [1 , 2], "a":"\ud800","\u0062" :{"c":1,"c":-0.0}, "\udc00":null}`
	var got []string
	for _, m := range Members([]byte(src)) {
		got = append(got, m.Key, string(m.RawKey), string(m.Raw))
	}
	want := []string{
		"a", `"a"`, `[1 , 2]`, "a", `"a"`, `"\ud800"`, "b", `"\u0062"`, `{"c":1,"c":-0.0}`, "\uFFFD", `"\udc00"`, `null`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What CheckJSON accepts must be JSON to others too, come apart into the same pieces, and go
// together again.
func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"\u00e9",{"b":null}],"c":-1.5e3}`, `[[],{},""]`, `"\ud83d\ude00"`, `{"a":1,"a":2}`, "\"\xff\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if CheckJSON(src, 50) != nil {
			return
		}
		if !json.Valid(src) {
			t.Fatalf("accepted %q", src)
		}
		switch Kind(src) {
		case "object":
			fields := Members(src)
			var want map[string]json.RawMessage
			if err := json.Unmarshal(src, &want); err != nil || len(want) != len(fields) {
				t.Fatalf("%q: %d members, want %d (%v)", src, len(fields), len(want), err)
			}
			for _, m := range fields {
				if !bytes.Equal(want[m.Key], m.Raw) {
					t.Fatalf("%q: %q is %q, want %q", src, m.Key, m.Raw, want[m.Key])
				}
			}
			if err := CheckJSON(Splice(fields), 50); err != nil {
				t.Fatalf("%q does not go together again: %v", src, err)
			}
		case "array":
			var want []json.RawMessage
			items := Elements(src)
			if err := json.Unmarshal(src, &want); err != nil || len(want) != len(items) {
				t.Fatalf("%q: %d elements, want %d (%v)", src, len(items), len(want), err)
			}
			for i := range items {
				if !bytes.Equal(want[i], items[i]) {
					t.Fatalf("%q: element %d is %q, want %q", src, i, items[i], want[i])
				}
			}
		case "string":
			var want string
			if err := json.Unmarshal(src, &want); err != nil {
				t.Fatal(err)
			}
			raw := bytes.TrimSpace(src)
			if got := Unquote(raw); got != want {
				t.Fatalf("%q is %q, want %q", src, got, want)
			}
			var again string
			if err := json.Unmarshal(AppendString(nil, want), &again); err != nil || again != want {
				t.Fatalf("%q written as %q", want, AppendString(nil, want))
			}
		}
	})
}

func TestParseTime(t *testing.T) {
	for src, want := range map[string]string{
		"2099-12-31T23:59:59Z":           `"2099-12-31T23:59:59Z"`,
		"2031-05-04T15:00:00+02:00":      `"2031-05-04T13:00:00Z"`,
		"2031-05-04T15:00:00.5-00:30":    `"2031-05-04T15:30:00.5Z"`,
		"2031-05-04T15:00:00.123456Z":    `"2031-05-04T15:00:00.123456Z"`,
		"2020-02-29T00:00:00.000000000Z": `"2020-02-29T00:00:00Z"`,
	} {
		at, err := ParseTime(src)
		if err != nil || string(AppendTime(nil, at)) != want {
			t.Errorf("%s: %s (%v), want %s", src, AppendTime(nil, at), err, want)
		}
	}
	for _, src := range []string{
		"", "now", "2031-05-04", "2031-05-04T15:00:00", "2031-05-04 15:00:00Z", "2031-05-04t15:00:00Z", "2031-05-04T15:00:00,5Z",
		"2031-13-04T15:00:00Z",
		"2031-02-29T15:00:00Z", "2031-05-04T25:00:00Z", "2031-05-04T15:00:60Z", "2031-05-04T5:00:00Z", "0000-01-01T00:00:00Z",
		"0001-01-01T00:00:00+01:00",
		"9999-12-31T23:59:59-01:00", "10000-01-01T00:00:00Z", "2031-05-04T15:00:00+2:00", "2031-05-04T15:00:00Zjunk", "infinity",
		"1771000000",
	} {
		if at, err := ParseTime(src); err == nil {
			t.Errorf("%q is taken as %s", src, at)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for src, want := range map[string]string{
		"PT2S": "2s", "PT1.5S": "1.5s", "P1DT2H3M4S": "26h3m4s", "P2W": "336h0m0s", "PT0S": "0s", "PT90M": "1h30m0s",
	} {
		if d, err := ParseDuration(src); err != nil || d.String() != want {
			t.Errorf("%s: %s (%v), want %s", src, d, err, want)
		}
	}
	for _, src := range []string{
		"", "P", "PT", "2S", "PT2", "PTS", "P1Y", "P1M", "PT1S2M", "P1DT", "PT-1S", "PT1.5H", "P1H", "PT1S ", "PT9999999999999999999S",
		"P99999W", "PT1S1S", "PT1..5S",
	} {
		if d, err := ParseDuration(src); err == nil {
			t.Errorf("%q is taken as %s", src, d)
		}
	}
}
