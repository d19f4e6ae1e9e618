package engine

import (
	"strings"
	"testing"
)

// fromJSON reads a value of a test. "-" stands for the result of a path that finds nothing.
func fromJSON(t *testing.T, text string) value {
	t.Helper()
	if text == "-" {
		return value{}
	}
	v, err := decode([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value{v, true}
}

func TestMatchers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		matcher string
		yes     []string
		no      []string
	}{
		{`"any"`, []string{`0`, `""`, `false`, `[]`}, []string{`null`, `-`}},
		{`"absent"`, []string{`-`}, []string{`null`, `0`, `""`}},
		{`"exists"`, []string{`null`, `0`, `[]`}, []string{`-`}},
		{`"string"`, []string{`""`}, []string{`1`, `-`}},
		{`"number"`, []string{`1.5`}, []string{`"1.5"`, `-`}},
		{`"integer"`, []string{`1`, `1.0`}, []string{`1.5`, `"1"`}},
		{`"boolean"`, []string{`true`, `false`}, []string{`"true"`, `null`}},
		{`"array"`, []string{`[]`}, []string{`{}`, `-`}},
		{`"object"`, []string{`{}`}, []string{`[]`, `null`}},
		{`"string:nonempty"`, []string{`"x"`}, []string{`""`, `7`, `-`}},
		{`"string:non_empty"`, []string{`"x"`}, []string{`""`}},
		{`"string:uuid"`, []string{`"0b0e7f10-1111-4222-8333-444455556666"`}, []string{`"0b0e7f10"`, `1`}},
		{
			`"string:uuidv7"`,
			[]string{`"01890000-0000-7000-8000-000000000000"`},
			[]string{`"01890000-0000-4000-8000-000000000000"`, `"01890000-0000-7000-c000-000000000000"`},
		},
		{
			`"string:datetime"`,
			[]string{`"2031-02-03T04:05:06Z"`, `"2031-02-03T04:05:06.789+01:00"`},
			[]string{`"2031-02-30T04:05:06Z"`, `"2031-02-03 04:05:06Z"`, `"2031-02-03"`, `1`},
		},
		{`"string:contains:of beer"`, []string{`"a pint of beer"`}, []string{`"a pint of wine"`, `-`}},
		{`"string:contains(of beer)"`, []string{`"a pint of beer"`}, []string{`"a pint of wine"`}},
		{`"string:pattern(^a+$)"`, []string{`"aaa"`}, []string{`"aab"`, `1`}},
		{`"number:positive"`, []string{`1e-30`, `1`}, []string{`0`, `-1`, `"1"`}},
		{`"number:non_negative"`, []string{`0`}, []string{`-0.1`, `-`}},
		{`"number:range(-1, 2.5)"`, []string{`-1`, `2.5`}, []string{`2.5000000000000000000001`, `-1.1`, `"0"`}},
		{`"array:nonempty"`, []string{`[null]`}, []string{`[]`, `"x"`, `-`}},
		{`"array:empty"`, []string{`[]`}, []string{`[1]`, `null`, `-`}},
		{`"array:length:2"`, []string{`[1,2]`}, []string{`[1]`, `[1,2,3]`, `"ab"`}},
		{`"array:length(0)"`, []string{`[]`}, []string{`[1]`, `-`}},
		{`"array:min_length:2"`, []string{`[1,2]`, `[1,2,3]`}, []string{`[1]`}},
		{`"array:min:2"`, []string{`[1,2]`}, []string{`[1]`}},
		{`"array:max:1"`, []string{`[]`, `[1]`}, []string{`[1,2]`}},
		{`"array:contains:red"`, []string{`["blue","red"]`}, []string{`["blue"]`, `"red"`, `[]`}},
		{`"contains:red"`, []string{`["red"]`}, []string{`["reddish"]`, `-`}},
		{`"contains:42"`, []string{`[42]`}, []string{`[421]`}},
		{`"not_contains:red"`, []string{`[]`, `["blue"]`}, []string{`["red"]`, `"blue"`, `-`}},
		{`"one_of:400, 422"`, []string{`400`, `422`, `"422"`}, []string{`401`, `-`}},
		{`"~1000"`, []string{`500`, `1000`, `1500`}, []string{`499.9`, `1501`, `"1000"`}},
		{`"~50"`, []string{`-50`, `150`}, []string{`151`}},
		{`"plain"`, []string{`"plain"`}, []string{`"plain "`, `["plain"]`, `-`}},
		{`"wasi:ojs"`, []string{`"wasi:ojs"`}, []string{`"wasi"`}},
		{`true`, []string{`true`}, []string{`"true"`, `1`, `-`}},
		{`null`, []string{`null`}, []string{`-`, `0`, `""`}},
		{`42`, []string{`42`, `42.0`, `4.2e1`}, []string{`"42"`, `42.1`}},
		{`9007199254740993`, []string{`9007199254740993`}, []string{`9007199254740992`}},
		{`0.1`, []string{`0.10`}, []string{`0.1000000000000000055511151231257827`}},
		{`[]`, []string{`[]`}, []string{`[1]`, `null`, `-`}},
		{
			`[1,"string:nonempty",null,{"a":"b"}]`,
			[]string{`[1,"x",null,{"a":"b"}]`},
			[]string{`[1,"x",null]`, `[1,"x",null,{"a":"c"}]`, `[1,"x",0,{"a":"b"}]`, `["x",1,null,{"a":"b"}]`},
		},
		{`{}`, []string{`{}`}, []string{`{"a":1}`, `[]`, `-`}},
		{
			`{"a":{"b":[1]},"c":null}`,
			[]string{`{"c":null,"a":{"b":[1]}}`},
			[]string{`{"a":{"b":[1]}}`, `{"a":{"b":[1]},"c":null,"d":1}`, `{"a":{"b":[2]},"c":null}`},
		},
		{`{"$exists":true}`, []string{`0`, `""`, `false`}, []string{`null`, `-`}},
		{`{"$exists":false}`, []string{`-`}, []string{`null`, `0`}},
		{`{"$exists":true,"$type":"string"}`, []string{`""`}, []string{`1`, `-`}},
		{`{"$type":"string"}`, []string{`""`}, []string{`1`, `-`, `null`}},
		{`{"$type":"number"}`, []string{`1`}, []string{`"1"`, `-`}},
		{`{"$type":"array"}`, []string{`[]`}, []string{`{}`, `-`}},
		{`{"$type":"object"}`, []string{`{}`}, []string{`[]`}},
		{`{"$type":"boolean"}`, []string{`false`}, []string{`0`}},
		{`{"$type":"null"}`, []string{`null`}, []string{`-`, `0`}},
		{`{"$type":"integer"}`, []string{`3`}, []string{`3.5`}},
		{`{"$match":"^job\\."}`, []string{`"job.x"`}, []string{`"a job.x"`, `1`, `-`}},
		{`{"$in":["a",1,{"$gte":10}]}`, []string{`"a"`, `1`, `11`}, []string{`"b"`, `2`, `-`}},
		{`{"$or":["string:nonempty",{"$exists":false}]}`, []string{`"x"`, `-`}, []string{`""`, `1`}},
		{`{"$size":2}`, []string{`[1,2]`}, []string{`[1]`, `"ab"`, `-`}},
		{`{"$size":{"$gte":1,"$lt":3}}`, []string{`[1]`, `[1,2]`}, []string{`[]`, `[1,2,3]`, `-`}},
		{`{"$size":{"$ne":1}}`, []string{`[]`}, []string{`[1]`}},
		{`{"$gt":1}`, []string{`1.001`}, []string{`1`, `"2"`, `-`}},
		{`{"$gte":1}`, []string{`1`}, []string{`0.999`, `-`}},
		{`{"$lt":1}`, []string{`0`}, []string{`1`, `null`}},
		{`{"$lte":1}`, []string{`1`}, []string{`1.1`}},
		{`{"$gte":1,"$lte":2}`, []string{`1.5`}, []string{`0`, `3`}},
		{`{"$eq":"any"}`, []string{`"any"`}, []string{`"else"`, `-`}},
		{`{"$ne":1}`, []string{`2`, `null`}, []string{`1.0`, `-`}},
		{`{"$empty":true}`, []string{`null`, `""`, `[]`, `{}`}, []string{`0`, `[1]`, `-`}},
		{`{"range":{"min":1,"max":3}}`, []string{`1`, `3`}, []string{`0.9`, `3.1`, `"2"`, `-`}},
		{`{"range":{"min":1}}`, []string{`9`}, []string{`0`}},
		{`{"range":{"max":1}}`, []string{`-9`}, []string{`2`}},
	} {
		m, err := compile(fromJSON(t, c.matcher).v)
		if err != nil {
			t.Errorf("%s: %v", c.matcher, err)
			continue
		}
		for _, in := range c.yes {
			if !m.ok(fromJSON(t, in)) {
				t.Errorf("%s refuses %s, wanting %s", c.matcher, in, m.want)
			}
		}
		for _, in := range c.no {
			if m.ok(fromJSON(t, in)) {
				t.Errorf("%s accepts %s", c.matcher, in)
			}
		}
	}
}

func TestUnknownMatchersAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`"string:shouty"`, `"string(3)"`, `"number:odd"`, `"number:range(1)"`, `"number:range(2,1)"`, `"number:range(a,b)"`,
		`"array:sorted"`, `"array:length:many"`, `"array:length:-1"`, `"array:min:1.5"`, `"object:empty"`, `"boolean:true"`,
		`"one_of:"`, `"one_of:a,,b"`, `"any_of:a"`, `"contains"`, `"~often"`, `"~-5"`, `"regex:^a$"`, `"type:string"`,
		`{"$exists":"yes"}`, `{"$type":"date"}`, `{"$type":1}`, `{"$match":"("}`, `{"$match":1}`, `{"$in":"a"}`, `{"$in":[]}`, `{"$or":{}}`,
		`{"$size":-1}`, `{"$size":1.5}`, `{"$size":"2"}`, `{"$size":{"$in":[1]}}`, `{"$size":{"$gte":"1"}}`, `{"$gt":"1"}`, `{"$gte":null}`,
		`{"$empty":false}`, `{"$not":1}`, `{"$exists":true,"also":1}`, `{"range":{}}`, `{"range":{"from":1}}`, `{"range":[1,2]}`,
		`["string:shouty"]`, `{"a":{"b":"number:odd"}}`, `{"$in":["~often"]}`,
	} {
		if m, err := compile(fromJSON(t, text).v); err == nil {
			t.Errorf("%s was read as %s", text, m.want)
		}
	}
}

// A number with a huge exponent must not exhaust the memory of the engine.
func TestHugeExponents(t *testing.T) {
	t.Parallel()
	m, err := compile(fromJSON(t, `1e999999999`).v)
	if err != nil {
		t.Fatal(err)
	}
	if !m.ok(fromJSON(t, `1e999999999`)) || m.ok(fromJSON(t, `1e999999998`)) {
		t.Error("unreachable numbers are compared as text")
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	const doc = `{
		"job": {"id": "j1", "meta": {"a.b": {"c": 1}, "x": {"y": 2}, "x.z": 3, "list": [10, 20], "p.q.r": null}},
		"jobs": [{"id": "one", "n": 1}, {"id": "two", "n": 2, "tags": ["t"]}, {"id": 3}],
		"deep": [[1, 2], [3, [4]]]
	}`
	root := fromJSON(t, doc).v
	for path, want := range map[string]string{
		`$.job.id`:                         `"j1"`,
		`job.id`:                           `"j1"`,
		`$["job"]['id']`:                   `"j1"`,
		`$.job.meta.a.b.c`:                 `1`,
		`$.job.meta["a.b"].c`:              `1`,
		`$.job.meta.x.y`:                   `2`,
		`$.job.meta.x.z`:                   `3`,
		`$.job.meta.p.q.r`:                 `null`,
		`$.job.meta["x"]["z"]`:             `-`,
		`$.job.meta.list[1]`:               `20`,
		`$.job.meta.list[2]`:               `-`,
		`$.job.id.more`:                    `-`,
		`$.jobs[*].id`:                     `["one","two",3]`,
		`$.jobs[*].n`:                      `[1,2]`,
		`$.job[*]`:                         `-`,
		`$.jobs[?(@.id=='two')].n`:         `2`,
		`$.jobs[?(@.id == "two")].tags[0]`: `"t"`,
		`$.jobs[?(@.id==3)].id`:            `3`,
		`$.jobs[?(@.id=='four')]`:          `-`,
		`$.jobs[?(@.tags)].id`:             `"two"`,
		`$.jobs[?tags].id`:                 `"two"`,
		`$.deep[1][1][0]`:                  `4`,
		`$.deep[0].a`:                      `-`,
	} {
		p, err := parsePath(path)
		if err != nil {
			t.Error(err)
			continue
		}
		got, want := p.find(root), fromJSON(t, want)
		if got.present != want.present || got.present && !equal(got.v, want.v) {
			t.Errorf("%s leads to %s, want %s", path, got, want)
		}
	}
	p, err := parsePath("$")
	if err != nil || len(p) != 0 {
		t.Errorf("$: %v %v", p, err)
	}
}

func TestUnknownPathsAreRefused(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		``, `$.`, `$..id`, `$.a[`, `$.a[-1]`, `$.a[1:2]`, `$.a[b]`, `$.a[?(@.n>1)]`, `$.a[?(@.n==)]`, `$.a[?(@.n==1 && @.m==2)]`,
		`$a`, `$.a]b`, `$.a b`, `$.*`, `$.a["b]`,
	} {
		if p, err := parsePath(path); err == nil {
			t.Errorf("%q was read as %+v", path, p)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		`{"a":1,"a":2}`:         "twice",
		`[{"b":{"a":1,"a":1}}]`: "twice",
		`{} {}`:                 "more than one",
		`{"a":`:                 "",
		``:                      "",
		`{"a":1}}`:              "",
	} {
		if v, err := decode([]byte(text)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, %v", text, v, err)
		}
	}
}
