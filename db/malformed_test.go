package db_test

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// malformed is one bad value of one field. text is how it is written in SQL, fragment how it is written
// in the JSON of a batch (quoted text if empty); none of the two is escaped, so they may hold any bytes.
type malformed struct {
	name, field, text string
	fragment          string
	state             string // SQLSTATEs that will do
	batch             string // those of the batch, where they differ
	names             string // the field named in the error, if not field
	only              string // doors: e(nqueue), m(any), i(nsert); all if empty
	null              bool   // SQL null instead of text
}

// sqlType holds the SQL type of a parameter or column, to which text is cast.
var sqlType = map[string]string{
	"type": "text", "args": "json", "queue": "text", "priority": "int", "scheduled_at": "timestamptz", "expires_at": "timestamptz",
	"meta":  "jsonb",
	"retry": "jsonb", "max_attempts": "int", "timeout_ms": "int", "visibility_timeout_ms": "int", "tags": "text[]", "pending": "boolean",
	"options": "json", "extra": "json", "id": "uuid", "tenant": "text",
}

func malformedJobs() []malformed {
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	chars := func(n int) string { return strings.Repeat("x", n) }
	arg := func(s string) string { return `["` + s + `"]` }

	cases := []malformed{
		{name: "no type", field: "type", null: true, state: "OJ400 23502"},
		{name: "empty type", field: "type", text: "", state: "OJ400"},
		{name: "type in capitals", field: "type", text: "Email.Send", state: "OJ400"},
		{name: "type with a blank", field: "type", text: "email send", state: "OJ400"},
		{name: "type beginning with a dot", field: "type", text: ".email", state: "OJ400"},
		{name: "type with two dots", field: "type", text: "email..send", state: "OJ400"},
		{name: "type beginning with a digit", field: "type", text: "2fa.send", state: "OJ400"},
		{name: "type with a line end", field: "type", text: "email\n", fragment: `"email\n"`, state: "OJ400"},
		{name: "type beyond ASCII", field: "type", text: "café", state: "OJ400"},
		{name: "type of 256 characters", field: "type", text: strings.Repeat("a", 256), state: "OJ400"},
		{name: "huge type", field: "type", text: strings.Repeat("a", 300_000), state: "OJ400"},
		{name: "type with a NUL", field: "type", text: "email\x00", state: "22021", batch: "22021"},
		{name: "type with an escaped NUL", field: "type", fragment: `"email\u0000"`, state: "22P05", only: "m"},
		{name: "type not UTF-8", field: "type", text: "email\xff", state: "22021"},
		{name: "type a number", field: "type", fragment: `5`, state: "OJ400", only: "m"},
		{name: "type true", field: "type", fragment: `true`, state: "OJ400", only: "m"},
		{name: "type an object", field: "type", fragment: `{}`, state: "OJ400", only: "m"},

		{name: "no args", field: "args", null: true, state: "OJ400 23502", only: "e"},
		{name: "args an object", field: "args", text: `{"to": "x"}`, state: "OJ400"},
		{name: "args a string", field: "args", text: `"[]"`, state: "OJ400"},
		{name: "args a number", field: "args", text: `5`, state: "OJ400"},
		{name: "args JSON null", field: "args", text: `null`, state: "OJ400", only: "ei"},
		{name: "args empty text", field: "args", text: ``, state: "22P02", only: "ei"},
		{name: "args cut off", field: "args", text: `[1`, state: "22P02"},
		{name: "args with a comma too many", field: "args", text: `[1,]`, state: "22P02"},
		{name: "args with NaN", field: "args", text: `[NaN]`, state: "22P02"},
		{name: "args with Infinity", field: "args", text: `[-Infinity]`, state: "22P02"},
		{name: "args with a leading zero", field: "args", text: `[007]`, state: "22P02"},
		{name: "args with a hexadecimal number", field: "args", text: `[0x10]`, state: "22P02"},
		{name: "args in single quotes", field: "args", text: `['x']`, state: "22P02"},
		{name: "args with a tab in a string", field: "args", text: "[\"a\tb\"]", state: "22P02"},
		{name: "args with an unknown escape", field: "args", text: arg(`\q`), state: "22P02"},
		{name: "args and more", field: "args", text: `[1] x`, state: "22P02"},
		{name: "args with a byte order mark", field: "args", text: "\xEF\xBB\xBF[1]", state: "22P02"},
		{name: "args with a NUL", field: "args", text: arg("a\x00b"), state: "22021"},
		{name: "args with an escaped NUL", field: "args", text: arg(`a\u0000b`), state: "OJ401", batch: "22P05"},
		{name: "args with an escaped NUL after a backslash", field: "args", text: arg(`\\\u0000`), state: "OJ401", batch: "22P05"},
		{name: "args with an escaped NUL in a key", field: "args", text: `[{"a\u0000": 1}]`, state: "OJ401", batch: "22P05"},
		{name: "args not UTF-8", field: "args", text: arg("\xff\xfe"), state: "22021"},
		{name: "args with an overlong sequence", field: "args", text: arg("\xc0\xaf"), state: "22021"},
		{name: "args with a surrogate in UTF-8", field: "args", text: arg("\xed\xa0\x80"), state: "22021"},
		{name: "args with half of a pair", field: "args", text: arg(`\ud83d`), state: "OJ401", batch: "22P02"},
		{name: "args with the second half of a pair", field: "args", text: `[{"a":"\ude00\ud83d"}]`, state: "OJ401", batch: "22P02"},
		{name: "args with a key twice", field: "args", text: `[{"a": 1, "a": 1}]`, state: "OJ401"},
		{name: "args with a key twice, deep down", field: "args", text: `[[{"b": {"a": ":", "a": 2}}]]`, state: "OJ401"},
		{name: "args with a key twice, once escaped", field: "args", text: `[{"a": 1, "\u0061": 2}]`, state: "OJ401"},
		{name: "args of 101 levels", field: "args", text: nested(101), state: "OJ401"},
		{
			name: "args of 101 levels of objects", field: "args",
			text: "[" + strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100) + "]", state: "OJ401",
		},
		{name: "args of 10000 levels", field: "args", text: nested(10_000), state: "OJ401 54001"},
		{name: "args of 500000 levels", field: "args", text: nested(500_000), state: "OJ401 54001"},
		{name: "args open at 30000 levels", field: "args", text: strings.Repeat(`[{"a":`, 15_000), state: "22P02 54001"},
		{name: "args of 1 MiB and a byte", field: "args", text: arg(chars(1<<20 - 3)), state: "OJ413"},

		{name: "no queue", field: "queue", null: true, state: "OJ400 23502", only: "e"},
		{name: "empty queue", field: "queue", text: "", state: "OJ400"},
		{name: "queue in capitals", field: "queue", text: "Default", state: "OJ400"},
		{name: "queue with a slash", field: "queue", text: "a/b", state: "OJ400"},
		{name: "queue with an underscore", field: "queue", text: "a_b", state: "OJ400"},
		{name: "queue beginning with a dash", field: "queue", text: "-a", state: "OJ400"},
		{name: "queue with a line end", field: "queue", text: "a\n", fragment: `"a\n"`, state: "OJ400"},
		{name: "queue of 129 characters", field: "queue", text: chars(129), state: "OJ400"},
		{name: "queue longer than an index takes", field: "queue", text: chars(9000), state: "OJ400"},
		{name: "queue not UTF-8", field: "queue", text: "a\x80", state: "22021"},
		{name: "queue a number", field: "queue", fragment: `5`, state: "OJ400", only: "m"},

		{name: "no priority", field: "priority", null: true, state: "OJ400 23502", only: "e"},
		{name: "priority 101", field: "priority", text: "101", fragment: `101`, state: "OJ400"},
		{name: "priority -101", field: "priority", text: "-101", fragment: `-101`, state: "OJ400"},
		{name: "priority beyond 32 bits", field: "priority", text: "2147483648", fragment: `2147483648`, state: "22003"},
		{
			name: "priority of 40 digits", field: "priority", text: strings.Repeat("9", 40), fragment: strings.Repeat("9", 40),
			state: "22003", batch: "OJ400",
		},
		{name: "priority a fraction", field: "priority", text: "1.5", fragment: `1.5`, state: "22P02", batch: "OJ400"},
		{name: "priority NaN", field: "priority", text: "NaN", state: "22P02", batch: "OJ400"},
		{name: "priority a word", field: "priority", text: "high", state: "22P02", batch: "OJ400"},
		{name: "priority a string", field: "priority", text: "", fragment: `"5"`, state: "22P02", batch: "OJ400"},
		{name: "priority true", field: "priority", fragment: `true`, state: "OJ400", only: "m"},

		{name: "max_attempts -1", field: "max_attempts", text: "-1", fragment: `-1`, state: "OJ422", only: "em"},
		{name: "max_attempts 1001", field: "max_attempts", text: "1001", fragment: `1001`, state: "OJ422", only: "em"},
		{name: "max_attempts by insert", field: "max_attempts", text: "1", state: "OJ400", only: "i"},

		{name: "scheduled_at infinity", field: "scheduled_at", text: "infinity", state: "OJ400"},
		{name: "scheduled_at minus infinity", field: "scheduled_at", text: "-infinity", state: "OJ400"},
		{name: "scheduled_at of the year 10000", field: "scheduled_at", text: "10000-01-01T00:00:00Z", state: "OJ400"},
		{name: "scheduled_at before Christ", field: "scheduled_at", text: "0044-03-15 00:00Z BC", state: "OJ400"},
		{name: "scheduled_at out of range", field: "scheduled_at", text: "294277-01-01", state: "22008", batch: "OJ400"},
		{name: "scheduled_at nonsense", field: "scheduled_at", text: "soon", state: "22007", batch: "OJ400"},
		{name: "scheduled_at a word", field: "scheduled_at", fragment: `"tomorrow"`, state: "OJ400", only: "m"},
		{
			name: "scheduled_at as the session reads it", field: "scheduled_at", fragment: `"02/03/2031 10:00:00Z"`, state: "OJ400",
			only: "m",
		},
		{name: "expires_at without an offset", field: "expires_at", fragment: `"2031-02-03T10:00:00"`, state: "OJ400", only: "m"},
		{name: "scheduled_at empty", field: "scheduled_at", text: "", state: "22007", batch: "OJ400"},
		{name: "scheduled_at a day that is none", field: "scheduled_at", text: "2031-02-30T00:00:00Z", state: "22008"},
		{name: "scheduled_at an hour that is none", field: "scheduled_at", text: "2031-02-03T25:00:00Z", state: "22008"},
		{name: "scheduled_at a number", field: "scheduled_at", fragment: `1771000000`, state: "OJ400", only: "m"},
		{name: "expires_at infinity", field: "expires_at", text: "infinity", state: "OJ400"},
		{name: "expires_at of the year 10000", field: "expires_at", text: "10000-01-01T00:00:00Z", state: "OJ400"},
		{name: "expires_at an offset that is none", field: "expires_at", text: "2031-02-03T00:00:00+99:00", state: "22009 22008"},

		{name: "timeout_ms negative", field: "timeout_ms", text: "-1", fragment: `-1`, state: "OJ400"},
		{name: "timeout_ms beyond 32 bits", field: "timeout_ms", text: "9999999999", fragment: `9999999999`, state: "22003"},
		{name: "visibility_timeout_ms below a second", field: "visibility_timeout_ms", text: "999", fragment: `999`, state: "OJ400"},
		{
			name: "visibility_timeout_ms beyond a week", field: "visibility_timeout_ms", text: "604800001", fragment: `604800001`,
			state: "OJ400",
		},

		{name: "tags no array", field: "tags", text: "a,b", state: "22P02", batch: "OJ400"},
		{name: "tags with an empty one", field: "tags", text: `{a,""}`, fragment: `["a",""]`, state: "OJ400"},
		{name: "tags with null", field: "tags", text: `{a,null}`, fragment: `["a",null]`, state: "OJ400"},
		{name: "tags with a number", field: "tags", fragment: `["a",1]`, state: "OJ400", only: "m"},
		{name: "tags in two dimensions", field: "tags", text: `{{a,b},{c,d}}`, fragment: `[["a","b"],["c","d"]]`, state: "OJ400"},
		{name: "a tag of 256 bytes", field: "tags", text: `{` + chars(256) + `}`, fragment: `["` + chars(256) + `"]`, state: "OJ400"},
		{
			name: "101 tags", field: "tags", text: `{` + strings.Repeat("a,", 100) + `a}`,
			fragment: `[` + strings.Repeat(`"a",`, 100) + `"a"]`, state: "OJ400",
		},

		{name: "no meta", field: "meta", null: true, state: "OJ400 23502", only: "e"},
		{name: "meta an array", field: "meta", text: `[]`, state: "OJ400"},
		{name: "meta a string", field: "meta", text: `"x"`, state: "OJ400"},
		{name: "meta JSON null", field: "meta", text: `null`, state: "OJ400", only: "ei"},
		{name: "meta with a NUL", field: "meta", text: `{"a": "\u0000"}`, state: "22P05"},
		{name: "meta with half of a pair", field: "meta", text: `{"a": "\ud83d"}`, state: "22P02"},
		{name: "meta with a key twice", field: "meta", text: `{"a": 1, "a": 2}`, state: "OJ400", only: "m"},
		{name: "meta with a number beyond numeric", field: "meta", text: `{"a": 1e999999}`, state: "22003"},
		{name: "meta of 101 levels", field: "meta", text: `{"a":` + nested(100) + `}`, state: "OJ401"},
		{name: "meta of 20000 levels", field: "meta", text: `{"a":` + nested(20_000) + `}`, state: "OJ401 54001"},
		{name: "meta too large", field: "meta", text: `{"a": "` + chars(1<<16) + `"}`, state: "OJ413"},
		{name: "meta.tenant_id null", field: "meta", text: `{"tenant_id": null}`, state: "OJ400", names: "meta.tenant_id"},
		{name: "meta.tenant_id empty", field: "meta", text: `{"tenant_id": ""}`, state: "OJ400", names: "meta.tenant_id"},
		{name: "meta.tenant_id a number", field: "meta", text: `{"tenant_id": 7}`, state: "OJ400", names: "meta.tenant_id"},
		{name: "meta.tenant_id an array", field: "meta", text: `{"tenant_id": ["acme"]}`, state: "OJ400", names: "meta.tenant_id"},
		{name: "meta.tenant_id of another tenant", field: "meta", text: `{"tenant_id": "globex"}`, state: "OJ405", names: "meta.tenant_id"},
		{name: "meta.tenant_id in capitals", field: "meta", text: `{"tenant_id": "Acme"}`, state: "OJ405", names: "meta.tenant_id"},

		{name: "id no UUID", field: "id", text: "job-1", state: "22P02"},
		{name: "id empty", field: "id", text: "", state: "22P02"},
		{name: "id of version 4", field: "id", text: "550e8400-e29b-41d4-a716-446655440000", state: "OJ400"},
		{name: "id of version 1", field: "id", text: "c232ab00-9414-11ec-b3c8-9f68deced846", state: "OJ400"},
		{name: "id of a wrong variant", field: "id", text: "01932a4e-0000-7000-0000-00000000000a", state: "OJ400"},
		{name: "id nil", field: "id", text: "00000000-0000-0000-0000-000000000000", state: "OJ400"},
		{name: "id a number", field: "id", fragment: `7`, state: "OJ400", only: "m"},

		{name: "retry an array", field: "retry", text: `[]`, state: "OJ422", batch: "OJ400"},
		{name: "retry a string", field: "retry", text: `"twice"`, state: "OJ422", batch: "OJ400"},
		{name: "retry with a key twice", field: "retry", text: `{"max_attempts": 1, "max_attempts": 2}`, state: "OJ400", only: "m"},
		{name: "retry too large", field: "retry", text: `{"note": "` + chars(16384) + `"}`, state: "OJ413"},
		{name: "retry of 101 levels", field: "retry", text: `{"note":` + nested(100) + `}`, state: "OJ401"},

		{name: "options an array", field: "options", text: `[]`, state: "OJ400"},
		{name: "options a string", field: "options", text: `"x"`, state: "OJ400"},
		{name: "options too large", field: "options", text: `{"unique": "` + chars(1<<16) + `"}`, state: "OJ413"},
		{name: "options with a NUL", field: "options", text: `{"unique": "\u0000"}`, state: "OJ401", batch: "22P05"},
		{name: "options with a key twice", field: "options", text: `{"unique": 1, "unique": 2}`, state: "OJ401"},
		{name: "options of 101 levels", field: "options", text: `{"unique":` + nested(100) + `}`, state: "OJ401"},
		{name: "extra an array", field: "extra", text: `[]`, state: "OJ400"},
		{name: "extra with a state", field: "extra", text: `{"state": "completed"}`, state: "OJ400"},
		{name: "extra with an escaped state", field: "extra", text: `{"st\u0061te": "completed"}`, state: "OJ400"},
		{name: "extra with a lease", field: "extra", text: `{"lease": 1}`, state: "OJ400"},
		{name: "extra too large", field: "extra", text: `{"x": "` + chars(1<<18) + `"}`, state: "OJ413"},
		{name: "extra with a key twice", field: "extra", text: `{"x": 1, "x": 1}`, state: "OJ401"},

		{name: "pending a word", field: "pending", text: "maybe", state: "22P02", batch: "OJ400", only: "em"},
		{name: "pending a string", field: "pending", fragment: `"true"`, state: "OJ400", only: "m"},

		{name: "another tenant", field: "tenant", text: "globex", state: "OJ403", only: "em"},
		{name: "a malformed tenant", field: "tenant", text: "no such", state: "OJ403", only: "em"},
	}
	for name, value := range map[string]string{
		"max_attempts": `-1|1001|1.5|"3"|null|true|99999999999999999999`,
		"initial_interval": `"1s"|""|"P"|"PT"|"P1DT"|"-PT1S"|"PT1S1S"|"PT1H1H"|5|null|"PT.5S"|"P99999999999Y"|"P400D"|` +
			`"PT1S "|" PT1S"|"PT0S"`,
		"backoff_strategy":     `"quadratic"|""|5|null|["linear"]`,
		"intervals":            `[]|"PT1S"|[0]|["PT0S"]|["soon"]|[1e400]|[null]|[{}]|null`,
		"max_interval":         `"soon"|"P2Y"|"PT99999999H"|[]`,
		"initial_interval_ms":  `0|-1|1.5|"5"|31536000001|1e400|null`,
		"max_interval_ms":      `-1|1e20|{}`,
		"backoff_coefficient":  `0.5|0|-2|100.1|"2"|null|1e400`,
		"jitter":               `"maybe"|5|null|["none"]|{}`,
		"on_exhaustion":        `"explode"|null|5|["discard"]`,
		"non_retryable_errors": `"x"|[1]|[null]|{}|null`,
	} {
		for bad := range strings.SplitSeq(value, "|") {
			cases = append(cases, malformed{
				name: "retry." + name + " " + bad, field: "retry", text: fmt.Sprintf(`{"%s": %s}`, name, bad), state: "OJ422",
				names: "retry." + name,
			})
		}
	}
	return cases
}

func (m malformed) json() []byte {
	switch {
	case m.null:
		return []byte("null")
	case m.fragment != "":
		return []byte(m.fragment)
	case slices.Contains([]string{"json", "jsonb"}, sqlType[m.field]):
		return []byte(m.text)
	}
	return []byte(`"` + m.text + `"`)
}

// listName holds fields whose array in ojs.enqueue_rows has another name than p_, the field and s, or
// another type than the field.
var listName = map[string]string{
	"args": "p_args", "priority": "p_priorities", "scheduled_at": "p_scheduled_at", "expires_at": "p_expires_at",
	"retry": "p_retries", "max_attempts": "p_max_attempts", "timeout_ms": "p_timeouts_ms",
	"visibility_timeout_ms": "p_visibility_timeouts_ms", "tags": "p_tags", "pending": "p_pending", "options": "p_options",
}

var listType = map[string]string{"scheduled_at": "text", "expires_at": "text", "tags": "json"}

// listed returns the array of a field in ojs.enqueue_rows, with the value, a parameter, for the second job.
func listed(field, first, value string) string {
	name, kind := listName[field], listType[field]
	if name == "" {
		name = "p_" + field + "s"
	}
	if kind == "" {
		kind = sqlType[field]
	}
	return fmt.Sprintf("%s => array[%s, %s::text::%s]", name, first, value, kind)
}

// call is a statement with parameters as bytes, because the driver refuses some of these values.
type call struct {
	sql    string
	params [][]byte
}

var bulkArgs = regexp.MustCompile(`p_args => (\$\d+::json)`)

// doors returns a call for each way to enqueue a job: with a valid job but for one field.
func (m malformed) doors() map[string]call {
	value := []byte(m.text)
	if m.null {
		value = nil
	}
	sound := []struct{ field, text string }{{"type", "email.send"}, {"args", "[1]"}}
	build := func(format string) (string, [][]byte) {
		var names []string
		var params [][]byte
		for _, f := range sound {
			if f.field != m.field {
				params = append(params, []byte(f.text))
				names = append(names, f.field)
			}
		}
		params, names = append(params, value), append(names, m.field)
		for i, name := range names {
			names[i] = fmt.Sprintf(format, name, i+1, sqlType[name])
		}
		return strings.Join(names, ", "), params
	}
	doors := map[string]call{}
	if m.only == "" || strings.Contains(m.only, "e") {
		args, params := build("p_%s => $%d::%s")
		doors["enqueue"] = call{"select from ojs.enqueue(" + args + ")", params}
		if !slices.Contains([]string{"pending", "options", "extra", "id"}, m.field) {
			// args of the second job.
			doors["bulk"] = call{
				"select from ojs.enqueue_bulk(" + bulkArgs.ReplaceAllString(args, "p_args => array['[0]'::json, $1]") + ")", params,
			}
		}
	}
	if m.only == "" {
		given := value
		if m.field == "tags" {
			given = m.json()
		}
		lists := listed(m.field, "null", "$1")
		if m.field == "type" {
			lists = listed("type", "'email.send'", "$1") + ", p_args => array['[]', '[1]']::json[]"
		} else if m.field == "args" {
			lists = listed("args", "'[]'", "$1") + ", p_types => array['a', 'email.send']"
		} else {
			lists += ", p_types => array['a', 'email.send'], p_args => array['[]', '[1]']::json[]"
		}
		doors["rows"] = call{"select from ojs.enqueue_rows(" + lists + ", p_tenant => 'acme')", [][]byte{given}}
	}
	if (m.only == "" || strings.Contains(m.only, "i")) && sqlType[m.field] != "" {
		var columns []string
		args, params := build("%s $%d::%s")
		var values []string
		for arg := range strings.SplitSeq(args, ", ") {
			column, value, _ := strings.Cut(arg, " ")
			columns, values = append(columns, column), append(values, value)
		}
		doors["insert"] = call{
			fmt.Sprintf("insert into ojs.jobs (%s) values (%s)", strings.Join(columns, ", "), strings.Join(values, ", ")), params,
		}
	}
	if m.only == "" || strings.Contains(m.only, "m") {
		var b bytes.Buffer
		b.WriteString(`[{"type": "email.send", "args": []}, {`)
		for _, f := range sound {
			if f.field != m.field {
				text := f.text
				if sqlType[f.field] == "text" {
					text = `"` + text + `"`
				}
				fmt.Fprintf(&b, `"%s": %s, `, f.field, text)
			}
		}
		fmt.Fprintf(&b, `"%s": %s}]`, m.field, m.json())
		doors["many"] = call{"select from ojs.enqueue_many($1::json)", [][]byte{b.Bytes()}}
	}
	return doors
}

func TestMalformedJobsAreRefusedAtEveryDoor(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	server := d.Open()
	conn, service := connect(t, d.TenantURL("acme")).PgConn(), connect(t, d.ServiceURL).PgConn()
	cases := malformedJobs()
	if len(cases) < 60 {
		t.Fatalf("only %d cases", len(cases))
	}
	tried := 0
	for _, c := range cases {
		for door, call := range c.doors() {
			tried++
			what := c.name + ", " + door
			states, names := c.state, c.names
			asks := conn
			if door == "rows" {
				asks = service
			}
			if c.batch != "" && (door == "many" || door == "rows" && listType[c.field] != "") {
				states = c.batch
			}
			if names == "" {
				names = c.field
			}
			failure := sqlstate(t, asks.ExecParams(t.Context(), call.sql, call.params, nil, nil, nil).Read().Err, states, what)
			if failure.Code == "" {
				continue
			}
			answer := answers(t, server, failure)
			if answer.Status < 400 || answer.Status > 499 || answer.Retryable {
				t.Errorf("%s: SQLSTATE %s would be answered with %d %s", what, failure.Code, answer.Status, answer.Code)
			}
			if strings.HasPrefix(failure.Code, "OJ") {
				got := detail(t, failure)
				if got["field"] != names && got["field"] != c.field {
					t.Errorf("%s: the error names field %v, want %s", what, got["field"], names)
				}
				// A tenant is looked at before the batch is taken apart.
				if (door == "many" || door == "rows" || door == "bulk" && c.field == "args") &&
					failure.Code != "OJ403" && got["index"] != 1.0 {
					t.Errorf("%s: the error names index %v, want 1", what, got["index"])
				}
			}
		}
	}
	t.Logf("%d malformed values, %d statements", len(cases), tried)
	if got := stored(t, d); got != nothing {
		t.Errorf("stored: %s\n%s", got, strings.Join(lines(t, d.Pool, `
			select type, queue, priority, left(args::text, 100), left(meta::text, 100), retry from ojs.job`), "\n"))
	}
}

// What is only wrong about a batch as a whole.
func TestMalformedBatches(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	ok := `{"type": "a", "args": []}`
	for _, c := range []struct {
		name, jobs, state string
		index             any
		field             string
	}{
		{"null", "null", "OJ400", nil, "jobs"},
		{"an object", ok, "OJ400", nil, "jobs"},
		{"a string", `"jobs"`, "OJ400", nil, "jobs"},
		{"no job", "[]", "OJ400", nil, "jobs"},
		{"10001 jobs", "[" + strings.Repeat(ok+",", 10_000) + ok + "]", "OJ400", nil, "jobs"},
		{"not JSON", "[" + ok, "22P02", nil, ""},
		{"a null among jobs", "[" + ok + ", null]", "OJ400", 1.0, ""},
		{"a number among jobs", "[5]", "OJ400", 0.0, ""},
		{"an array among jobs", "[" + ok + "," + ok + ", [" + ok + "]]", "OJ400", 2.0, ""},
		{"an empty object", "[{}]", "OJ400", 0.0, "type"},
		{"an unknown field", `[{"type": "a", "args": [], "prioritee": 5}]`, "OJ400", 0.0, "prioritee"},
		{"two tenants", `[{"type": "a", "tenant": "acme", "tenant_id": "globex"}]`, "OJ400", 0.0, "tenant_id"},
		{"a field of the table", `[{"type": "a", "args": [], "state": "completed"}]`, "OJ400", 0.0, "state"},
		{"a sequence number", `[{"type": "a", "args": [], "seq": 1}]`, "OJ400", 0.0, "seq"},
		{"an empty field name", `[{"type": "a", "args": [], "": 5}]`, "OJ400", 0.0, ""},
		{"a field twice", `[{"type": "a", "args": [], "type": "b"}]`, "OJ400", 0.0, "type"},
		{"a field twice, once escaped", `[{"type": "a", "args": [], "\u0074ype": "b"}]`, "OJ400", 0.0, "type"},
		{"the first of two faults", `[` + ok + `, {"type": "A", "args": []}, {"type": "B", "args": []}]`, "OJ400", 1.0, "type"},
		{
			"the same id twice",
			`[{"type": "a", "args": [], "id": "` + someID + `"}, ` + ok + `, {"type": "b", "args": [], "id": "` + someID + `"}]`,
			"OJ410", 2.0, "id",
		},
		{
			"the same id twice, once in capitals",
			`[{"type": "a", "args": [], "id": "` + someID + `"}, {"type": "b", "args": [], "id": "` + strings.ToUpper(someID) + `"}]`,
			"OJ410", 1.0, "id",
		},
	} {
		for _, pool := range []querier{d.As("acme"), d.Service()} {
			failure := refused(t, pool, c.state, "select id from ojs.enqueue_many($1::text::json)", c.jobs)
			got := detail(t, failure)
			field, _ := got["field"].(string)
			if got["index"] != c.index || field != c.field {
				t.Errorf("%s: the error names index %v and field %q, want %v and %q", c.name, got["index"], field, c.index, c.field)
			}
		}
	}
	refused(t, d.As("acme"), "OJ400", "select id from ojs.enqueue_many(null)")
	if got := stored(t, d); got != nothing {
		t.Errorf("stored: %s", got)
	}
}

func TestNumbersBeyondNumericAreNamed(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, field := range []string{"meta", "retry"} {
		jobs := `[{"type": "a", "args": [], "` + field + `": {"x": 0.` + strings.Repeat("1", 17_000) + `}}]`
		if got := one[string](t, d.Pool, `
			select sqlstate || ' ' || (detail ->> 'field') || ' ' || (detail ->> 'index')
			from ojs.enqueue_each($1::text::json)`, jobs); got != "22003 "+field+" 0" {
			t.Errorf("each: %s", got)
		}
		_, err := d.Pool.Exec(t.Context(), "select from ojs.enqueue_many($1::text::json)", jobs)
		if failure := sqlstate(t, err, "22003", field); !strings.Contains(failure.Detail, `"`+field+`"`) {
			t.Errorf("many: %s", pgtest.Explain(failure))
		}
	}
}

// An id says when a job was made, by a clock that may be wrong, but not by a day: from far ahead it would lie where no partition ends soon.
func TestIdsFromFarAheadAreRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, acme := d.Service(), d.As("acme")
	now := time.Now()
	d.SetNow(now)
	far := []string{
		uuidAt(now.Add(24*time.Hour + time.Second)), uuidAt(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)),
		"ffffffff-f000-7000-8000-000000000001",
	}
	for _, id := range far {
		for _, way := range []string{
			"select ojs.enqueue('a', p_id => $1)", "select ojs.enqueue('a', p_id => $1, p_tags => '{x}')",
			"insert into ojs.jobs (type, id) values ('a', $1)",
			"insert into ojs.jobs (type, id, tags) values ('a', $1, '{x}')",
			"insert into ojs.jobs (type, id) select 'a', case n when 2 then $1::uuid else ojs._uuid_v7() end from generate_series(1, 3) n",
			"select from ojs.enqueue_many(json_build_array(json_build_object('type', 'a', 'args', '[]'::json, 'id', $1::uuid)))",
			"select from ojs.enqueue_once($1, json_build_array(json_build_object('type', 'a', 'args', '[]'::json, 'id', $1::text)))",
		} {
			failure := refused(t, acme, "OJ400", way, id)
			if got := detail(t, failure); got["field"] != "id" || !strings.Contains(failure.Message, "more than a day ahead") {
				t.Errorf("%s: %s %v", way, failure.Message, got)
			}
		}
		if got := lines(t, service, `
			select sqlstate, detail ->> 'field'
			from ojs.enqueue_each(json_build_array(json_build_object('type', 'a', 'args', '[]'::json, 'id', $1::uuid),
				json_build_object('type', 'a', 'args', '[]'::json)))`, id); !slices.Equal(got, []string{"OJ400 id", "- -"}) {
			t.Errorf("each by itself: %v", got)
		}
	}
	for i, near := range []string{
		uuidAt(now.Add(time.Hour)), uuidAt(now.Add(23 * time.Hour)), uuidAt(now.Add(24 * time.Hour)),
		uuidAt(now.AddDate(-30, 0, 0)),
	} {
		if i%2 == 0 {
			exec(t, acme, "select ojs.enqueue('b', p_id => $1)", near)
		} else {
			exec(t, acme, "insert into ojs.jobs (type, id) values ('b', $1)", near)
		}
	}
	if got := one[int](t, service, "select count(*) from ojs.jobs where type = 'b'"); got != 4 {
		t.Errorf("%d jobs, want 4", got)
	}
}
