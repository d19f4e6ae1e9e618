package db_test

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

const (
	someID  = "01932a4e-0000-7000-8000-00000000000a"
	otherID = "01932a4e-0000-7000-8000-00000000000b"
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

// The type that a parameter or column has in SQL; text is cast to it there.
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

		{name: "no args", field: "args", null: true, state: "OJ400 23502"},
		{name: "args an object", field: "args", text: `{"to": "x"}`, state: "OJ400"},
		{name: "args a string", field: "args", text: `"[]"`, state: "OJ400"},
		{name: "args a number", field: "args", text: `5`, state: "OJ400"},
		{name: "args JSON null", field: "args", text: `null`, state: "OJ400"},
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

		{name: "no queue", field: "queue", null: true, state: "OJ400 23502", only: "ei"},
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

		{name: "no priority", field: "priority", null: true, state: "OJ400 23502", only: "ei"},
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
		{name: "max_attempts by insert", field: "max_attempts", text: "1", state: "42501", only: "i"},

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

		{name: "no meta", field: "meta", null: true, state: "OJ400 23502", only: "ei"},
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

// Fields whose list in ojs.enqueue_rows has another name than p_, the field and s, or another type than that of the field.
var listName = map[string]string{
	"args": "p_args", "priority": "p_priorities", "scheduled_at": "p_scheduled_at", "expires_at": "p_expires_at",
	"retry": "p_retries", "max_attempts": "p_max_attempts", "timeout_ms": "p_timeouts_ms",
	"visibility_timeout_ms": "p_visibility_timeouts_ms", "tags": "p_tags", "pending": "p_pending", "options": "p_options",
}
var listType = map[string]string{"scheduled_at": "text", "expires_at": "text", "tags": "json"}

// listed is a field's list in ojs.enqueue_rows, with the value, a parameter, as that of the second job.
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

// call is a statement with parameters as bytes, which the driver would not let through otherwise.
type call struct {
	sql    string
	params [][]byte
}

var bulkArgs = regexp.MustCompile(`p_args => (\$\d+::json)`)

// doors are the ways in. Each begins with a sound job and spoils one field of it.
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

// Whichever way a job comes, what becomes of it is the same.
func TestEveryDoorMakesTheSameJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	const kept = `select concat_ws(' ', state, seq is null, tenant_id, queue, type, priority, max_attempts, attempt, scheduled_at,
		expires_at, timeout_ms, visibility_timeout_ms, tags, args, meta, retry, options, extra, created_at = enqueued_at, created_at)
		from ojs.job where type <> 'beside' order by seq nulls first, id limit 1`
	for i, fields := range []map[string]string{
		{"args": `[]`},
		{"args": `[{"a": [1, "x:y"], "b": null}]`, "queue": "mail", "priority": "-7"},
		{"args": `["\u00e9\\", 1e999999]`, "queue": strings.Repeat("q", 128)},
		{"args": `[1]`, "meta": `{"a": {"b": [1.50]}}`, "tags": `["a,b", "\"", "é", "\\"]`},
		{"args": `[1]`, "meta": `{"tenant_id": "globex"}`, "timeout_ms": "0", "visibility_timeout_ms": "604800000"},
		{"args": `[1]`, "retry": `{"max_attempts": 9, "initial_interval": "PT2S"}`, "expires_at": "2999-01-01T00:00:00+02:00"},
		{"args": `[1]`, "scheduled_at": "2999-01-01T00:00:00Z", "options": `{"x": 1,  "x2": [ ]}`, "extra": `{"y": 2}`},
		{"args": `[1]`, "scheduled_at": "1999-01-01T00:00:00Z", "id": someID},
		{"args": `[1]`, "pending": "true", "max_attempts": "0", "priority": "100"},
	} {
		fields["type"] = "some.job-" + strconv.Itoa(i)
		var named, columns, values, lists, members []string
		insertable := true
		for name, value := range fields {
			kind := sqlType[name]
			text := "'" + strings.ReplaceAll(value, "'", "''") + "'"
			member := value
			if kind == "text" || kind == "uuid" || kind == "timestamptz" {
				member = strconv.Quote(value)
			}
			members = append(members, strconv.Quote(name)+": "+member)
			first := "null"
			if name == "type" {
				first = "'beside'"
			} else if name == "args" {
				first = "'[]'"
			}
			lists = append(lists, listed(name, first, text))
			if name == "tags" {
				text = "array(select json_array_elements_text(" + text + "))"
			}
			named = append(named, "p_"+name+" => "+text+"::"+kind)
			columns, values = append(columns, name), append(values, text+"::"+kind)
			insertable = insertable && name != "pending" && name != "max_attempts"
		}
		one := "{" + strings.Join(members, ", ") + "}"
		beside := `[{"type": "beside", "args": []}, ` + one + `]`
		doors := map[string]string{
			"enqueue": "select from ojs.enqueue(" + strings.Join(named, ", ") + ")",
			"many":    "select from ojs.enqueue_many('" + beside + "')",
			"each":    "select from ojs.enqueue_each('" + beside + "')",
			"rows":    "select from ojs.enqueue_rows(" + strings.Join(lists, ", ") + ")",
			"once":    "select from ojs.enqueue_once('k', '" + beside + "')",
		}
		if insertable {
			doors["insert"] = "insert into ojs.jobs (" + strings.Join(columns, ", ") + ") values (" + strings.Join(values, ", ") + ")"
		}
		want := ""
		for door, sql := range doors {
			tx := begin(t, d.Service())
			exec(t, tx, sql)
			got := lines(t, tx, kept)
			rollback(t, tx)
			if len(got) != 1 || !strings.Contains(got[0], "some.job-") {
				t.Fatalf("%s: %v", door, got)
			}
			if want == "" {
				want = got[0]
			}
			if got[0] != want {
				t.Errorf("%s makes\n  %s, another way\n  %s", door, got[0], want)
			}
		}
	}
}

// Jobs that differ in their args only are what as many single jobs would be.
func TestBulkIsManyOfOneKind(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := connect(t, d.TenantURL("acme"))
	const options = `p_queue => 'bulk', p_priority => 3, p_expires_at => '2999-01-01Z', p_meta => '{"a": 1}',
		p_retry => '{"max_attempts": 7}', p_timeout_ms => 5, p_visibility_timeout_ms => 6000, p_tags => '{x,y}'`
	ids := list[string](t, acme, `
		select ojs.enqueue_bulk('bulk.job', array(select json_build_array(i) from generate_series(1, 2500) i),`+options+")::text")
	order := list[string](t, d.Pool, "select id::text from ojs.job where queue = 'bulk' order by seq")
	if len(ids) != 2500 || !slices.Equal(ids, order) {
		t.Fatalf("%d ids, in the order of the jobs: %t", len(ids), slices.Equal(ids, order))
	}
	if got := list[bool](t, d.Pool, `
		select json_agg(args -> 0 order by seq)::text = json_agg(row_number order by row_number)::text
		from (select j.*, row_number() over (order by seq) from ojs.job j) j`); !got[0] {
		t.Error("the args are not in order")
	}
	exec(t, acme, "select from ojs.enqueue('bulk.job', '[1]', "+options+")")
	kinds := `
		select distinct tenant_id, state::text, queue, type, priority, max_attempts, expires_at, timeout_ms,
			visibility_timeout_ms, tags::text, meta, retry, attempt, enqueued_at = created_at
		from ojs.jobs`
	if got := lines(t, acme, kinds); len(got) != 1 {
		t.Errorf("the jobs differ:\n  %s", strings.Join(got, "\n  "))
	}
	if got := stored(t, d); got != "2501 jobs, 2 wakes, 4 timers, 0 leases, 0 releases" {
		t.Error(got)
	}
	if got := one[int](t, d.Service(), "select count(*)::int from ojs.fetch('{bulk}', 3000)"); got != 2501 {
		t.Errorf("%d of 2501 jobs were fetched", got)
	}

	exec(t, acme, `
		select from ojs.enqueue_bulk('late.job', array(select json_build_array(i) from generate_series(1, 2500) i),
			p_scheduled_at => '2999-01-01Z')`)
	if got := lines(t, d.Pool, `
		select cardinality(ids), cardinality(tenant_ids) from ojs.timer where kind = 'due'
		order by 1`); !slices.Equal(got, []string{"500 500", "1000 1000", "1000 1000"}) {
		t.Errorf("the timers are %v", got)
	}
	if got := one[int](t, d.Pool, "select count(*)::int from ojs.job where state = 'scheduled' and seq is null"); got != 2500 {
		t.Errorf("%d of 2500 jobs are scheduled", got)
	}

	for _, c := range []struct{ args, field string }{
		{"null", "args"},
		{"'{}'", "args"},
		{"array[array['[]'::json]]", "args"},
		{"array(select '[]'::json from generate_series(1, 10001))", "args"},
	} {
		failure := refused(t, acme, "OJ400", "select from ojs.enqueue_bulk('bulk.job', "+c.args+")")
		if detail(t, failure)["field"] != c.field {
			t.Errorf("%s: %s", c.args, failure.Detail)
		}
	}
	refused(t, acme, "OJ403", "select from ojs.enqueue_bulk('bulk.job', array['[]'::json], p_tenant => 'globex')")
	if got := list[string](t, d.Service(), `
		select tenant_id from ojs.jobs
		where id in (select ojs.enqueue_bulk('bulk.job', array['[]'::json], p_meta => '{"tenant_id": "initech"}'))`); len(got) != 0 {
		t.Errorf("a job is seen by the statement that makes it: %v", got)
	}
	if got := one[int](t, d.Service(), "select count(*)::int from ojs.jobs where tenant_id = 'initech'"); got != 1 {
		t.Errorf("initech has %d jobs, want 1", got)
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

func TestBatchKeepsItsOrder(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	const given = `[
		{"type": "c", "args": [], "queue": "z", "priority": -5},
		{"type": "a", "args": [], "pending": true, "id": "01932a4e-0000-7000-8000-00000000000b"},
		{"type": "b", "args": [], "scheduled_at": "2999-01-01T00:00:00Z", "id": "01932a4e-0000-7000-8000-00000000000a"},
		{"type": "a", "args": [], "queue": null, "priority": null, "tags": null, "meta": null, "retry": null, "pending": null,
			"id": null, "max_attempts": null}]`
	got := list[string](t, acme, `
		select type || ' ' || queue || ' ' || priority || ' ' || state || ' ' || max_attempts
		from ojs.enqueue_many($1::text::json)`, given)
	want := []string{"c z -5 available 3", "a default 0 pending 3", "b default 0 scheduled 3", "a default 0 available 3"}
	if !slices.Equal(got, want) {
		t.Errorf("a batch came back as %q, want %q", got, want)
	}
	// First in first out is the order of the batch.
	if got := list[string](t, acme, `
		select type
		from ojs.enqueue_many((select json_agg(json_build_object('type', 't' || i, 'args', '[]'::json, 'queue', 'fifo')
			order by i) from generate_series(1, 300) i))`); len(got) != 300 || got[0] != "t1" || got[299] != "t300" {
		t.Fatalf("300 jobs came back as %v", got)
	}
	for i, kind := range list[string](t, d.Service(), "select type from ojs.fetch('{fifo}', 300)") {
		if want := "t" + strconv.Itoa(i+1); kind != want {
			t.Fatalf("job %d is %s, want %s", i+1, kind, want)
		}
	}
}

func TestBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	exec(t, acme, "select from ojs.enqueue('first', p_id => $1)", someID)
	before := stored(t, d)
	failure := refused(t, acme, "OJ410", `select id from ojs.enqueue_many(json_build_array(
		'{"type": "a", "args": []}'::json, json_build_object('type', 'b', 'args', '[]'::json, 'id', $2::text),
			json_build_object('type', 'c', 'args', '[]'::json, 'id', $1::text)))`, someID, otherID)
	if got := detail(t, failure); got["index"] != 2.0 || got["job_id"] != someID || got["field"] != "id" {
		t.Errorf("the duplicate is described as %v", got)
	}
	if got := stored(t, d); got != before {
		t.Errorf("stored: %s, before: %s", got, before)
	}
}

func TestAnIDIsUniqueWithinItsTenant(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme, globex, service := d.As("acme"), d.As("globex"), d.Service()
	enqueue := "select from ojs.enqueue('a', p_id => $1)"
	exec(t, acme, enqueue, someID)
	failure := refused(t, acme, "OJ410", enqueue, someID)
	if got := detail(t, failure); got["field"] != "id" || got["job_id"] != someID {
		t.Errorf("the duplicate is described as %v", got)
	}
	refused(t, acme, "23505", "insert into ojs.jobs (type, id) values ('a', $1)", someID)
	refused(t, acme, "0A000", "insert into ojs.jobs (type, id) values ('a', $1) on conflict do nothing", someID)
	if got := exec(t, acme, `
		insert into ojs.jobs (type, id)
		select 'a', i from unnest(array[$1::uuid]) i where not exists (select from ojs.jobs j where j.id = i)`, someID); got != 0 {
		t.Errorf("%d jobs were inserted beside the one with their id", got)
	}
	// Another tenant neither collides nor learns of it, in a batch either.
	exec(t, globex, `
		select from ojs.enqueue_many(json_build_array(json_build_object('type', 'a', 'args', '[]'::json, 'id', $1::text)))`, someID)
	failure = refused(t, globex, "OJ410", `select id from ojs.enqueue_many(json_build_array(
		json_build_object('type', 'a', 'args', '[]'::json, 'id', $2::text),
			json_build_object('type', 'a', 'args', '[]'::json, 'id', $1::text)))`, someID, otherID)
	if got := detail(t, failure); got["index"] != 1.0 {
		t.Errorf("the duplicate is described as %v", got)
	}
	if got := jobs(t, acme, "ojs.job_info($1)", someID); got[0].Tenant != "acme" {
		t.Errorf("acme reads %v", got)
	}
	// Who sees both has to say which.
	for _, call := range []string{
		"ojs.job_info($1)", "ojs.cancel($1)", "ojs.activate($1)", "ojs.ack($1)", `ojs.nack($1, '{"message": "x"}')`,
	} {
		failure := refused(t, service, "OJ411", "select from "+call, someID)
		if got := detail(t, failure); got["job_id"] != someID {
			t.Errorf("%s: the ambiguity is described as %v", call, got)
		}
	}
	if got := oneJob(t, service, "ojs.job_info($1, 'globex')", someID); got.Tenant != "globex" {
		t.Errorf("the service reads %v", got)
	}
	// Giving back a job takes its lease, and that tells.
	for _, held := range jobs(t, service, "ojs.fetch('{default}', 10)") {
		if got := oneJob(t, service, "ojs.release($1, $2)", held.ID, held.Lease); got.Tenant != held.Tenant {
			t.Errorf("releasing %s's job released %s's", held.Tenant, got.Tenant)
		}
	}
}

func TestTenantOfANewJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service, operator, acme := d.Service(), d.Operator(), d.As("acme")
	enqueue := func(q querier, args string) string {
		t.Helper()
		return one[string](t, q, "select tenant_id from ojs.enqueue('a'"+args+")")
	}
	batch := func(q querier, args string) string {
		t.Helper()
		return one[string](t, q, `select tenant_id from ojs.enqueue_many('[{"type": "a", "args": []`+args)
	}
	insert := func(q querier, columns, values string) string {
		t.Helper()
		return one[string](t, q, "insert into ojs.jobs (type"+columns+") values ('a'"+values+") returning tenant_id")
	}
	type row struct{ name, got, want string }
	rows := []row{
		{"nobody named", enqueue(service, ""), "_default"},
		{"named", enqueue(service, ", p_tenant => 'acme'"), "acme"},
		{"named in meta", enqueue(service, `, p_meta => '{"tenant_id": "acme:eu.1_x-Y"}'`), "acme:eu.1_x-Y"},
		{"named twice, alike", enqueue(service, `, p_tenant => 'acme', p_meta => '{"tenant_id": "acme"}'`), "acme"},
		{"reserved", enqueue(service, ", p_tenant => '_other'"), "_other"},
		{"256 bytes", enqueue(service, ", p_tenant => repeat('a', 256)"), strings.Repeat("a", 256)},
		{"an operator", enqueue(operator, ", p_tenant => 'acme'"), "acme"},
		{"a tenant's own", enqueue(acme, ""), "acme"},
		{"a tenant's own, named", enqueue(acme, ", p_tenant => 'acme'"), "acme"},
		{"batch, nobody named", batch(service, `}]')`), "_default"},
		{"batch, by the call", batch(service, `}]', 'acme')`), "acme"},
		{"batch, by the job", batch(service, `, "tenant": "globex"}]')`), "globex"},
		{"batch, by both", batch(service, `, "tenant": "globex"}]', 'globex')`), "globex"},
		{"batch, in meta", batch(service, `, "meta": {"tenant_id": "globex"}}]')`), "globex"},
		{"batch of a tenant", batch(acme, `, "meta": {"tenant_id": "acme"}}]')`), "acme"},
		{"insert, nobody named", insert(service, "", ""), "_default"},
		{"insert, named", insert(service, ", tenant_id", ", 'acme'"), "acme"},
		{"insert, in meta", insert(service, ", meta", `, '{"tenant_id": "globex"}'`), "globex"},
		{"insert of a tenant", insert(acme, "", ""), "acme"},
		{"insert of a tenant, in meta", insert(acme, ", meta", `, '{"tenant_id": "acme"}'`), "acme"},
	}
	exec(t, operator, "select from ojs.configure(p_default_tenant => 'house')")
	rows = append(rows, row{"another default", enqueue(service, ""), "house"},
		row{"another default, insert", insert(service, "", ""), "house"})
	for _, r := range rows {
		if r.got != r.want {
			t.Errorf("%s: the job is %s's, want %s", r.name, r.got, r.want)
		}
	}
	for _, c := range []struct{ name, state, field, sql string }{
		{"empty", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => '')"},
		{"a blank", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => 'a b')"},
		{"beginning with a dash", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => '-a')"},
		{"beginning with an underscore", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => '_a')"},
		{"a line end", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => E'a\\n')"},
		{"257 bytes", "OJ400", "tenant", "select from ojs.enqueue('a', p_tenant => repeat('a', 257))"},
		{"too long, insert", "OJ400", "tenant", "insert into ojs.jobs (type, tenant_id) values ('a', repeat('a', 257))"},
		{"malformed, insert", "OJ400", "tenant", "insert into ojs.jobs (type, tenant_id) values ('a', 'a b')"},
		{"malformed in meta", "OJ400", "meta.tenant_id", `select from ojs.enqueue('a', p_meta => '{"tenant_id": "a b"}')`},
		{"named twice", "OJ405", "meta.tenant_id", `select from ojs.enqueue('a', p_tenant => 'acme', p_meta => '{"tenant_id": "globex"}')`},
		{
			"named twice, batch", "OJ405", "tenant",
			`select from ojs.enqueue_many('[{"type": "a", "args": [], "tenant": "globex"}]', 'acme')`,
		},
		{
			"named twice, insert", "OJ405", "meta.tenant_id",
			`insert into ojs.jobs (type, tenant_id, meta) values ('a', 'acme', '{"tenant_id": "globex"}')`,
		},
	} {
		if got := detail(t, refused(t, service, c.state, c.sql)); got["field"] != c.field {
			t.Errorf("%s: the error names %v, want %s", c.name, got["field"], c.field)
		}
	}

	exec(t, operator, "select from ojs.configure(p_tenant_required => true)")
	for _, sql := range []string{
		"select from ojs.enqueue('a')", `select from ojs.enqueue_many('[{"type": "a", "args": []}]')`,
		"insert into ojs.jobs (type) values ('a')",
	} {
		refused(t, service, "OJ402", sql)
	}
	if got := enqueue(acme, "") + enqueue(service, ", p_tenant => 'x'"); got != "acmex" {
		t.Errorf("where tenants are required, jobs with one are %s", got)
	}
}

func TestStatesOfNewJobs(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	now := time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)
	d.SetNow(now)
	acme := d.As("acme")
	for _, c := range []struct{ name, columns, values, want string }{
		{"plain", "", "", "available"},
		{"due at this moment", "scheduled_at", "'2031-05-04 12:00Z'", "available"},
		{"due long ago", "scheduled_at", "'0001-01-01 00:00Z'", "available"},
		{"due in a moment", "scheduled_at", "'2031-05-04 12:00:00.000001Z'", "scheduled"},
		{"due in the year 9999", "scheduled_at", "'9999-12-31 23:59:59Z'", "scheduled"},
		{"expired already", "expires_at", "'2031-05-04 11:00Z'", "available"},
		{"expires before it is due", "scheduled_at expires_at", "'2032-01-01 00:00Z' '2031-06-01 00:00Z'", "scheduled"},
	} {
		columns, values := strings.Fields(c.columns), strings.Split(c.values, "' '")
		named, inserted, given := "", "", ""
		for i, column := range columns {
			value := "'" + strings.Trim(values[i], "'") + "'"
			named += ", p_" + column + " => " + value
			inserted += ", " + column
			given += ", " + value
		}
		for door, sql := range map[string]string{
			"enqueue": "select id::text from ojs.enqueue('a'" + named + ")",
			"insert":  "insert into ojs.jobs (type" + inserted + ") values ('a'" + given + ") returning id::text",
		} {
			got := one[string](t, d.Pool, "select state::text || (seq is null) from ojs.job where id = $1", one[string](t, acme, sql))
			want := c.want + strconv.FormatBool(c.want != "available")
			if got != want {
				t.Errorf("%s, %s: %s, want %s", c.name, door, got, want)
			}
		}
	}
	if got := one[string](t, acme, `
		select state from ojs.enqueue('a', p_pending => true, p_scheduled_at => '2040-01-01 00:00Z')`); got != "pending" {
		t.Errorf("pending and scheduled: %s", got)
	}
	// Expired jobs are not handed out, but end.
	if got := one[int](t, d.Service(), "select count(*) from ojs.fetch('{default}', 100)"); got != 6 {
		t.Errorf("fetched %d jobs, want the 6 available ones that have not expired", got)
	}
	exec(t, d.Service(), "select ojs.tick()")
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where state = 'discarded' and finished_at = $1", now); got != 2 {
		t.Errorf("%d jobs were discarded, want the two expired ones", got)
	}
	// When it became available, and for one not yet available, when it was created.
	if got := one[int](t, d.Pool, "select count(*) from ojs.job where created_at <> $1 or enqueued_at <> $1", now); got != 0 {
		t.Errorf("%d jobs have another time of creation", got)
	}
}

func TestTimesOfANewJobAgree(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Service(), "select from ojs.enqueue('a')")
	exec(t, d.Service(), `select from ojs.enqueue_many('[{"type": "a", "args": []}, {"type": "a", "args": []}]')`)
	if got := lines(t, d.Pool, "select created_at, enqueued_at from ojs.job where created_at <> enqueued_at"); len(got) > 0 {
		t.Errorf("created_at and enqueued_at differ: %s", strings.Join(got, "; "))
	}
}

func TestAttemptsOfANewJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for args, want := range map[string]int{
		"":                                   3,
		`, p_retry => '{}'`:                  3,
		`, p_retry => '{"max_attempts": 7}'`: 7,
		`, p_retry => '{"max_attempts": 0}'`: 0,
		`, p_max_attempts => 1000`:           1000,
		`, p_max_attempts => 2, p_retry => '{"max_attempts": 7}'`: 2,
	} {
		if got := one[int](t, d.As("acme"), "select max_attempts from ojs.enqueue('a'"+args+")"); got != want {
			t.Errorf("enqueue('a'%s) has %d attempts, want %d", args, got, want)
		}
	}
	if got := one[int](t, d.As("acme"), `
		with i as (insert into ojs.jobs (type, retry) values ('a', '{"max_attempts": 9}') returning max_attempts) select *
		from i`); got != 9 {
		t.Errorf("an insert with a retry policy has %d attempts, want 9", got)
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

// What is not ours to interpret comes back as it was sent.
func TestFidelity(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	const digits = "1234567890123456789012345678901234567890"
	values := []string{
		`[]`, `[ ]`, "[\n\t1 ,2\r\n]", `[` + digits + `]`, `[-0, -0.0, 0e0, 1E+2, 1e-2, 1.0, 1.10, 0.` + digits + `]`,
		`[` + digits + `.` + digits + `e-40]`, `[1e999999]`,
		`[{"z":1,"a":2,"m":{"y":1,"b":2}}]`, `[{"":1," ":2,"\t":3}]`,
		`["\u00e9","é","e\u0301","\ud83d\ude00","😀","\/","/","\\u0000","\\ud800","\"",":","\b\f\n\r\t"]`,
		`[true,false,null,"",{},[]]`, `[{"a":"x:y","b":":"},{"a":1}]`, `["` + "\u2028\u2029\u007f\ufeff" + `"]`,
		strings.Repeat("[", 100) + "1" + strings.Repeat("]", 100), `["` + strings.Repeat("x", 1<<20-4) + `"]`,
		`[{"args": [{"type": "b"}]}]`, `[{"x":[1,2],"X":[1,2]}]`,
		// More than numeric holds behind the point.
		`[{"a":0.` + strings.Repeat("1", 17_000) + `,"b":` + strings.Repeat("1", 17_000) + `}]`,
	}
	for _, args := range values {
		object := `{ "unique" : ` + args + `}`
		if len(object) > 1<<16 || strings.HasPrefix(args, "[[[") {
			object = `{"b":1,"a":2}`
		}
		for door, call := range map[string]string{
			"enqueue": `
				select id::text
				from ojs.enqueue('a', p_args => $1::text::json, p_options => $2::text::json, p_extra => $3::text::json)`,
			"many": `
				select id::text
				from ojs.enqueue_many((('[{"type": "a", "args": ' || $1::text || ', "options":' || $2::text || ', "extra": '
					|| $3::text || '}]'))::json)`,
			"insert": `
				insert into ojs.jobs (type, args, options, extra) values ('a', $1::text::json, $2::text::json, $3::text::json)
				returning id::text`,
		} {
			id := one[string](t, acme, call, args, object, object)
			for _, c := range []struct{ column, want string }{{"args", args}, {"options", object}, {"extra", object}} {
				for _, from := range []string{"ojs.jobs where id = $1", "ojs.job_info($1)"} {
					if got := one[string](t, acme, "select "+c.column+"::text from "+from, id); got != c.want {
						t.Errorf("%s by %s: sent %.200q, %s has %.200q", c.column, door, c.want, from, got)
					}
				}
			}
		}
	}
	// And through the hands of a worker, the result too.
	for range values {
		held := oneJob(t, d.Service(), "ojs.fetch('{default}')")
		result := values[int(held.ID[len(held.ID)-1])%len(values)]
		if got := one[string](t, acme, `
			select result::text from ojs.ack($1, $2, $3::text::json)`, held.ID, held.Lease, result); got != result {
			t.Errorf("a result of %.200q came back as %.200q", result, got)
		}
	}
	for _, result := range []string{`null`, `"text"`, `5.00`, ` {"b":1, "a":` + digits + `} `} {
		held := oneJob(t, d.Service(), "ojs.fetch('{default}')")
		if got := one[string](t, acme, "select result::text from ojs.ack($1, p_result => $2::text::json)", held.ID, result); got != result {
			t.Errorf("a result of %q came back as %q", result, got)
		}
	}
}

func TestEverythingElseIsKept(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	const want = `a.b-c_d.e q.1-x 100 7 2999-01-02 03:04:05.123456+00 2999-01-03 00:00:00+00 0 1000 ` +
		`{"a,b","\"",é} {"n": 1e3, "tenant_id": "acme"} {"jitter": false}`
	const read = `
		select concat_ws(' ', type, queue, priority, max_attempts, scheduled_at at time zone 'UTC' || '+00',
			expires_at at time zone 'UTC' || '+00', timeout_ms, visibility_timeout_ms, tags, meta, retry)
		from `
	for door, from := range map[string]string{
		"enqueue": `
			ojs.enqueue('a.b-c_d.e', '[]', 'q.1-x', 100, '2999-01-02 03:04:05.123456Z', '2999-01-03Z',
				'{"tenant_id": "acme", "n": 1e3}', '{"jitter": false}', 7, 0, 1000, '{"a,b","\"",é}')`,
		"many": `
			ojs.enqueue_many('[{"type": "a.b-c_d.e", "args": [], "queue": "q.1-x", "priority": 100,
				"scheduled_at": "2999-01-02T03:04:05.123456Z", "expires_at": "2999-01-03T02:00:00+02:00",
				"meta": {"tenant_id": "acme", "n": 1e3}, "retry": {"jitter": false}, "max_attempts": 7, "timeout_ms": 0,
				"visibility_timeout_ms": 1000, "tags": ["a,b", "\"", "é"]}]')`,
	} {
		got := one[string](t, d.As("acme"), read+from)
		if got = strings.ReplaceAll(got, "1000}", "1e3}"); strings.ReplaceAll(got, `"n": 1000`, `"n": 1e3`) != want {
			t.Errorf("%s keeps\n  %s, want\n  %s", door, got, want)
		}
	}
}

func TestRollbackLeavesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme := d.As("acme")
	statements := []string{
		"select from ojs.enqueue('a')", "select from ojs.enqueue('a', p_scheduled_at => now() + interval '1 hour')",
		`select from ojs.enqueue_many('[{"type": "a", "args": []}, {"type": "a", "args": [], "pending": true}]')`,
		"insert into ojs.jobs (type) values ('a'), ('b')",
	}
	tx := begin(t, acme)
	for _, sql := range statements {
		exec(t, tx, sql)
	}
	if got := one[int](t, tx, "select count(*) from ojs.jobs"); got != 6 {
		t.Errorf("within the transaction there are %d jobs, want 6", got)
	}
	if got := stored(t, d); got != nothing {
		t.Errorf("before the commit others see %s", got)
	}
	rollback(t, tx)
	if got := stored(t, d); got != nothing {
		t.Errorf("after the rollback: %s", got)
	}
	// A savepoint takes back its own, and a refused job does not harm what came before it.
	tx = begin(t, acme)
	exec(t, tx, statements[0])
	exec(t, tx, "savepoint s")
	exec(t, tx, statements[3])
	exec(t, tx, "rollback to s")
	exec(t, tx, "savepoint s")
	refused(t, tx, "OJ400", "insert into ojs.jobs (type) values ('a'), ('B')")
	exec(t, tx, "rollback to s")
	commit(t, tx)
	if got := stored(t, d); got != "1 jobs, 1 wakes, 0 timers, 0 leases, 0 releases" {
		t.Errorf("after the commit: %s", got)
	}
}

// The journal has one row per statement and line, whatever the number of jobs.
func TestWakeRows(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.Service())
	exec(t, tx, "insert into ojs.jobs (tenant_id, type, queue, priority) select 'acme', 'a', 'q', i % 2 from generate_series(1, 10) i")
	exec(t, tx, `
		insert into ojs.jobs (tenant_id, type, queue, scheduled_at)
		select 'globex', 'a', 'q', case when i > 2 then '2999-01-01Z'::timestamptz end from generate_series(1, 5) i`)
	exec(t, tx, "insert into ojs.jobs (tenant_id, type) select 'none', 'a' where false")
	commit(t, tx)
	got := lines(t, d.Pool, `
		select tenant_id, queue, priority, from_state is null, to_state::text, jobs, lo is not null, hi - lo < 100
		from ojs.journal order by 1, 3, 5`)
	want := []string{
		"acme q 0 true available 5 true true", "acme q 1 true available 5 true true", "globex q 0 true available 2 true true",
		"globex q 0 true scheduled 3 false -",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the journal says\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if got := lines(t, d.Pool, `
		select kind, cardinality(ids), cardinality(tenant_ids) from ojs.timer`); !slices.Equal(got, []string{"due 3 3"}) {
		t.Errorf("the timers are %v", got)
	}
}

// A psql session of a tenant: one simple query message, one transaction, a business table of the tenant's own.
func TestEnqueueBesideABusinessRow(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	exec(t, d.Pool, "create schema shop")
	exec(t, d.Pool, "create table shop.orders (id bigint generated always as identity, total numeric)")
	exec(t, d.Pool, "grant usage on schema shop to ojs_tenant")
	exec(t, d.Pool, "grant select, insert on shop.orders to ojs_tenant")
	conn := connect(t, d.TenantURL("acme")).PgConn()
	run := func(sql string) error {
		results := conn.Exec(t.Context(), sql)
		_, err := results.ReadAll()
		return err
	}
	const work = `begin;
		insert into shop.orders (total) values (99.50);
		select id, state from ojs.enqueue('order.ship', '[1]', p_queue => 'shop');
		insert into ojs.jobs (type, args, queue) values ('order.mail', '["x"]', 'shop');`
	if err := run(work + " rollback;"); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, d); got != nothing {
		t.Errorf("after the rollback: %s", got)
	}
	if err := run(work + " commit;"); err != nil {
		t.Fatal(err)
	}
	if got := jobs(t, d.Service(), "ojs.fetch('{shop}', 5)"); len(got) != 2 || got[0].Tenant != "acme" {
		t.Errorf("after the commit a worker receives %v", got)
	}
	// A job that breaks a rule takes the order with it.
	err := run(work + " insert into ojs.jobs (type) values ('Order'); commit;")
	sqlstate(t, err, "OJ400", "a bad job in the transaction")
	if err := run("rollback"); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, d.Pool, "select count(*) from shop.orders"); got != 1 {
		t.Errorf("there are %d orders, want the one that committed", got)
	}
}

// Who waits hears of a commit, of nothing else, and nobody is told when nobody waits.
func TestNotifyReachesWhoWaits(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	acme, service := d.As("acme"), d.Service()
	listener := connect(t, d.ServiceURL)
	exec(t, listener, "listen ojs_wake")
	// heard is what arrived until a mark that is sent last; notifications arrive in the order of commits.
	heard := func() []string {
		t.Helper()
		exec(t, d.Pool, "select pg_catalog.pg_notify('ojs_wake', 'mark')")
		var all []string
		for {
			n, err := listener.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n.Payload == "mark" {
				return all
			}
			all = append(all, n.Payload)
		}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		got := heard()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: heard %q, want %q", what, got, want)
		}
	}

	exec(t, acme, "select from ojs.enqueue('a')")
	expect("nobody waits")
	register := "select token from ojs.register_waiters($1, array[$2])"
	const server, second = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
	token := one[string](t, service, register, server, "default")
	if again := one[string](t, service, register, server, "default"); again != token {
		t.Error("registering again changed the token")
	}
	if n := one[int](t, service, `
		select count(*) filter (where queue = 'default' and token = $2 or queue <> 'default')
		from ojs.register_waiters($1, '{elsewhere,default,elsewhere}')`, server, token); n != 2 {
		t.Errorf("registering several returned %d of 2 queues", n)
	}
	for _, c := range []struct{ what, sql string }{
		{"enqueue", "select from ojs.enqueue('a')"},
		{"insert", "insert into ojs.jobs (type) values ('a'), ('b')"},
		{"batch", `
			select from ojs.enqueue_many('[{"type": "a", "args": []},
				{"type": "a", "args": [], "scheduled_at": "2999-01-01T00:00:00Z"}]')`},
	} {
		exec(t, acme, c.sql)
		expect(c.what, token)
	}
	for _, c := range []struct{ what, sql string }{
		{"another queue", "select from ojs.enqueue('a', p_queue => 'other')"},
		{"scheduled", "select from ojs.enqueue('a', p_scheduled_at => now() + interval '1 hour')"},
		{"pending", "select from ojs.enqueue('a', p_pending => true, p_id => '" + someID + "')"},
		{"refused", "select from ojs.enqueue('A')"},
	} {
		_, err := acme.Exec(t.Context(), c.sql)
		if failure := new(pgconn.PgError); err != nil && !errors.As(err, &failure) {
			t.Fatal(err)
		}
		expect(c.what)
	}
	tx := begin(t, acme)
	exec(t, tx, "select from ojs.enqueue('a')")
	expect("not committed")
	commit(t, tx)
	expect("committed", token)
	tx = begin(t, acme)
	exec(t, tx, "select from ojs.enqueue('a')")
	rollback(t, tx)
	expect("rolled back")

	other := one[string](t, service, register, second, "default")
	mail := one[string](t, service, register, second, "mail")
	exec(t, acme, "insert into ojs.jobs (type, queue) values ('a', 'default'), ('b', 'mail')")
	expect("two servers, two queues", token, other, mail)
	exec(t, service, "select ojs.drop_waiter($1, 'default')", second)
	exec(t, service, "select ojs.drop_waiter($1, 'mail')", second)
	exec(t, acme, "select from ojs.activate($1)", someID)
	expect("activated", token)
	held := oneJob(t, service, "ojs.fetch('{default}')")
	exec(t, service, `select from ojs.nack($1, '{"message": "x"}', p_requeue => true)`, held.ID)
	expect("requeued", token)
	held = oneJob(t, service, "ojs.fetch('{default}')")
	expect("fetched")
	exec(t, service, "select from ojs.release($1, $2)", held.ID, held.Lease)
	expect("given back", token)
	held = oneJob(t, service, "ojs.fetch('{default}')")
	exec(t, service, "select from ojs.ack($1)", held.ID)
	expect("acknowledged")

	// A scheduled job that is due and a lease that ran out, too.
	d.SetNow(time.Date(2990, 1, 1, 0, 0, 0, 0, time.UTC))
	one[string](t, service, register, server, "default")
	oneJob(t, service, "ojs.fetch('{other}')")
	exec(t, service, "select ojs.tick()")
	expect("promoted", token)
	d.SetNow(time.Date(2990, 1, 1, 0, 0, 50, 0, time.UTC))
	one[string](t, service, register, server, "other")
	exec(t, service, "select ojs.tick()")
	if got := heard(); len(got) != 1 {
		t.Errorf("after a lease ran out: heard %q", got)
	}
	// A registration that was not renewed is over.
	d.SetNow(time.Date(2990, 1, 1, 0, 3, 0, 0, time.UTC))
	exec(t, acme, "insert into ojs.jobs (type, queue) values ('a', 'default'), ('b', 'other')")
	expect("a lapsed registration")
}

func TestOwnTransactionSeesItsJob(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	tx := begin(t, d.Service())
	id := one[string](t, tx, "select id::text from ojs.enqueue('a')")
	held := jobs(t, tx, "ojs.fetch('{default}')")
	if len(held) != 1 || held[0].ID != id {
		t.Fatalf("fetched %v, want the job enqueued before it in the same transaction", held)
	}
	exec(t, tx, "select from ojs.ack($1)", id)
	commit(t, tx)
	if got := jobs(t, d.Service(), "ojs.fetch('{default}', 10)"); len(got) != 0 {
		t.Errorf("it is handed out once more: %v", got)
	}
}

// Transaction ids that a snapshot does not list: those of the transaction that took it.
func TestEnqueueAfterFetchInOneTransaction(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	service := d.Service()
	exec(t, service, "select from ojs.enqueue('before')")
	tx := begin(t, service)
	// The transaction has its number before a later one commits.
	exec(t, tx, "select pg_catalog.pg_current_xact_id()")
	exec(t, service, "select from ojs.enqueue('elsewhere')")
	held := jobs(t, tx, "ojs.fetch('{default}', 10)")
	if len(held) != 2 {
		t.Fatalf("fetched %v", held)
	}
	exec(t, tx, "select from ojs.enqueue('after')")
	exec(t, tx, `select from ojs.nack($1, '{"message": "x"}', p_requeue => true)`, held[0].ID)
	commit(t, tx)
	if got := jobs(t, service, "ojs.fetch('{default}', 10)"); len(got) != 2 {
		t.Errorf("fetched %v, want the job enqueued and the job given back after a fetch in one transaction", got)
	}
}

func TestTimesThatCountFromNow(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	d.SetNow(noon)
	given := `[
		{"type": "a", "args": [], "scheduled_at": "+PT2S", "expires_at": "+P1DT1.5S"},
		{"type": "a", "args": [], "scheduled_at": "+PT0S"},
		{"type": "a", "args": [], "scheduled_at": "` + noon.Add(time.Minute).Format(time.RFC3339) + `"},
		{"type": "a", "args": []}]`
	want := []string{
		"scheduled {2000000 0 0 true} {1500000 1 0 true}",
		"available {0 0 0 true} -",
		"scheduled {60000000 0 0 true} -",
		"available - -",
	}
	for _, call := range []string{"ojs.enqueue_many($1)", "ojs.enqueue_each($1)"} {
		got := lines(t, d.Service(), `
			select state, scheduled_at - ojs.now(), expires_at - ojs.now() from `+call+` where id is not null`, given)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", call, got)
		}
	}
	for _, bad := range []string{"+", "+2", "+PT", "+P", "+PT-2S", "+-PT2S", "PT2S", "+infinity", "+PT2S ", "++PT2S", "+P99999999Y"} {
		for _, field := range []string{"scheduled_at", "expires_at"} {
			failure := refused(t, d.Service(), "OJ400 22007 22008 22015", "select ojs.enqueue_many($1)",
				`[{"type": "a", "args": [], "`+field+`": "`+bad+`"}]`)
			if got := detail(t, failure)["field"]; strings.HasPrefix(failure.Code, "OJ") && got != field {
				t.Errorf("%s %q: field %v (%s)", field, bad, got, failure.Message)
			}
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
