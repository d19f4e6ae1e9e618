package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A matcher decides about one value. want is its wording for a failure.
type matcher struct {
	want string
	ok   func(value) bool
}

// literal marks a value that a template has produced: it is compared, and never read as a matcher.
type literal struct{ v any }

var (
	uuidForm     = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	uuidv7Form   = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	datetimeForm = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$`)
)

// compile returns the matcher for an expected value. An error is a mistake in the case.
func compile(m any) (matcher, error) {
	switch m := m.(type) {
	case literal:
		return equalTo(m.v), nil
	case string:
		return compileString(m)
	case []any:
		return compileArray(m)
	case map[string]any:
		return compileObject(m)
	default:
		return equalTo(m), nil
	}
}

func equalTo(want any) matcher {
	return matcher{show(want), func(v value) bool { return v.present && equal(v.v, want) }}
}

// ofType returns a matcher for a JSON type, by the names that cases use.
func ofType(name string) (matcher, error) {
	var is func(any) bool
	switch name {
	case "string":
		is = func(v any) bool { _, ok := v.(string); return ok }
	case "number":
		is = func(v any) bool { _, ok := v.(json.Number); return ok }
	case "integer":
		is = func(v any) bool { n, ok := number(v); return ok && n.IsInt() }
	case "boolean":
		is = func(v any) bool { _, ok := v.(bool); return ok }
	case "array":
		is = func(v any) bool { _, ok := v.([]any); return ok }
	case "object":
		is = func(v any) bool { _, ok := v.(map[string]any); return ok }
	case "null":
		is = func(v any) bool { return v == nil }
	default:
		return matcher{}, fmt.Errorf("unknown type %q", name)
	}
	return matcher{"a value of type " + name, func(v value) bool { return v.present && is(v.v) }}, nil
}

func aString(want string, ok func(string) bool) matcher {
	return matcher{want, func(v value) bool { s, is := v.v.(string); return v.present && is && ok(s) }}
}

func aNumber(want string, ok func(*big.Rat) bool) matcher {
	return matcher{want, func(v value) bool { n, is := number(v.v); return v.present && is && ok(n) }}
}

func anArray(want string, ok func([]any) bool) matcher {
	return matcher{want, func(v value) bool { a, is := v.v.([]any); return v.present && is && ok(a) }}
}

func matching(expr string) (matcher, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return matcher{}, err
	}
	return aString("text matching "+expr, re.MatchString), nil
}

// reserved are the prefixes of matchers. A text with such a prefix that is no matcher is a mistake in the
// case. Any other text, also with a colon as in "wasi:ojs", is compared as it is.
var reserved = []string{
	"string:", "string(", "number:", "number(", "integer:", "integer(", "array:", "array(", "object:", "object(",
	"boolean:", "boolean(", "any:", "any(", "absent:", "exists:", "contains", "not_contains", "one_of", "any_of", "type:", "regex:",
	"match:", "~",
}

func compileString(text string) (matcher, error) {
	switch text {
	case "any":
		return matcher{"any value but null", func(v value) bool { return v.present && v.v != nil }}, nil
	case "absent":
		return matcher{"nothing", func(v value) bool { return !v.present }}, nil
	case "exists":
		return matcher{"a value or null", func(v value) bool { return v.present }}, nil
	case "string", "number", "integer", "boolean", "array", "object":
		return ofType(text)
	case "string:nonempty", "string:non_empty":
		return aString("a non-empty string", func(s string) bool { return s != "" }), nil
	case "string:uuid":
		return aString("a UUID", uuidForm.MatchString), nil
	case "string:uuidv7":
		return aString("a UUIDv7", uuidv7Form.MatchString), nil
	case "string:datetime":
		return aString("an RFC 3339 time", isTime), nil
	case "number:positive":
		return aNumber("a number > 0", func(n *big.Rat) bool { return n.Sign() > 0 }), nil
	case "number:non_negative":
		return aNumber("a number >= 0", func(n *big.Rat) bool { return n.Sign() >= 0 }), nil
	case "array:nonempty", "array:non_empty":
		return anArray("a non-empty array", func(a []any) bool { return len(a) > 0 }), nil
	case "array:empty":
		return anArray("an empty array", func(a []any) bool { return len(a) == 0 }), nil
	}
	if name, arg, ok := cutArgument(text); ok {
		switch name {
		case "string:contains":
			return aString(fmt.Sprintf("text containing %q", arg), func(s string) bool { return strings.Contains(s, arg) }), nil
		case "string:pattern":
			return matching(arg)
		case "number:range":
			return numberRange(text, arg)
		case "array:length", "array:min_length", "array:min", "array:max_length", "array:max":
			return arrayLength(text, strings.TrimPrefix(name, "array:"), arg)
		case "array:contains", "contains":
			return anArray("an array containing "+arg, func(a []any) bool { return holds(a, arg) }), nil
		case "array:not_contains", "not_contains":
			return anArray("an array without "+arg, func(a []any) bool { return !holds(a, arg) }), nil
		case "one_of":
			return oneOf(arg)
		}
	}
	if about, ok := strings.CutPrefix(text, "~"); ok {
		return approximately(text, about)
	}
	for _, r := range reserved {
		if strings.HasPrefix(text, r) {
			return matcher{}, fmt.Errorf("unknown matcher %q", text)
		}
	}
	return equalTo(text), nil
}

// cutArgument splits "name(arg)" and "name:arg", where the name itself may hold one colon.
func cutArgument(text string) (name, arg string, ok bool) {
	if strings.HasSuffix(text, ")") {
		if name, arg, ok := strings.Cut(text[:len(text)-1], "("); ok && !strings.ContainsAny(name, " /") {
			return name, arg, true
		}
	}
	for _, r := range []string{
		"string:contains:", "string:pattern:", "array:length:", "array:min_length:", "array:min:", "array:max_length:",
		"array:max:", "array:contains:", "array:not_contains:", "contains:", "not_contains:", "one_of:",
	} {
		if arg, ok := strings.CutPrefix(text, r); ok {
			return strings.TrimSuffix(r, ":"), arg, true
		}
	}
	return "", "", false
}

func isTime(s string) bool {
	if !datetimeForm.MatchString(s) {
		return false
	}
	_, err := time.Parse(time.RFC3339, s)
	return err == nil
}

func numberRange(text, arg string) (matcher, error) {
	lo, hi, two := strings.Cut(arg, ",")
	min, okMin := parseNumber(strings.TrimSpace(lo))
	max, okMax := parseNumber(strings.TrimSpace(hi))
	if !two || !okMin || !okMax || min.Cmp(max) > 0 {
		return matcher{}, fmt.Errorf("unknown matcher %q", text)
	}
	return aNumber(fmt.Sprintf("a number from %s to %s", lo, strings.TrimSpace(hi)), func(n *big.Rat) bool {
		return n.Cmp(min) >= 0 && n.Cmp(max) <= 0
	}), nil
}

func arrayLength(text, bound, arg string) (matcher, error) {
	op := map[string]string{"length": "$eq", "min_length": "$gte", "min": "$gte", "max_length": "$lte", "max": "$lte"}[bound]
	m, err := size(map[string]any{op: json.Number(strings.TrimSpace(arg))})
	if err != nil {
		return matcher{}, fmt.Errorf("unknown matcher %q", text)
	}
	return m, nil
}

// holds compares as text, because the wanted element comes from inside a string.
func holds(a []any, want string) bool {
	return slices.ContainsFunc(a, func(e any) bool { return plain(e) == want })
}

func oneOf(arg string) (matcher, error) {
	words := strings.Split(arg, ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
		if words[i] == "" {
			return matcher{}, fmt.Errorf("unknown matcher %q", "one_of:"+arg)
		}
	}
	return matcher{"one of " + strings.Join(words, ", "), func(v value) bool {
		if !v.present {
			return false
		}
		switch v.v.(type) {
		case string, bool, json.Number:
			return slices.Contains(words, plain(v.v))
		}
		return false
	}}, nil
}

// approximately matches numbers from half to one and a half times the given one, and in any case those
// within a hundred of it.
func approximately(text, about string) (matcher, error) {
	n, ok := parseNumber(about)
	if !ok || n.Sign() < 0 {
		return matcher{}, fmt.Errorf("unknown matcher %q", text)
	}
	slack := new(big.Rat).Quo(n, big.NewRat(2, 1))
	if least := big.NewRat(100, 1); slack.Cmp(least) < 0 {
		slack = least
	}
	lo, hi := new(big.Rat).Sub(n, slack), new(big.Rat).Add(n, slack)
	return aNumber(fmt.Sprintf("about %s (%s to %s)", about, lo.RatString(), hi.RatString()), func(got *big.Rat) bool {
		return got.Cmp(lo) >= 0 && got.Cmp(hi) <= 0
	}), nil
}

// compileArray returns the matcher of a literal array: the same number of elements, each of which fits
// the matcher with its index.
func compileArray(elems []any) (matcher, error) {
	ms := make([]matcher, len(elems))
	wants := make([]string, len(elems))
	for i, e := range elems {
		var err error
		if ms[i], err = compile(e); err != nil {
			return matcher{}, err
		}
		wants[i] = ms[i].want
	}
	return anArray("["+strings.Join(wants, ", ")+"]", func(a []any) bool {
		if len(a) != len(ms) {
			return false
		}
		for i := range ms {
			if !ms[i].ok(value{a[i], true}) {
				return false
			}
		}
		return true
	}), nil
}

func compileObject(m map[string]any) (matcher, error) {
	operators := 0
	for k := range m {
		if isOperator(k) {
			operators++
		}
	}
	switch {
	case operators == 0:
		return literalObject(m)
	case operators < len(m):
		return matcher{}, fmt.Errorf("operators and plain keys mixed in %s", show(m))
	}
	return compileOperators(m)
}

func literalObject(m map[string]any) (matcher, error) {
	ms := make(map[string]matcher, len(m))
	for k, sub := range m {
		var err error
		if ms[k], err = compile(sub); err != nil {
			return matcher{}, err
		}
	}
	return matcher{show(unwrap(m)), func(v value) bool {
		obj, ok := v.v.(map[string]any)
		if !v.present || !ok || len(obj) != len(ms) {
			return false
		}
		for k, sub := range ms {
			got, ok := obj[k]
			if !ok || !sub.ok(value{got, true}) {
				return false
			}
		}
		return true
	}}, nil
}

// unwrap removes the marks of literals, so that a value can be shown.
func unwrap(v any) any {
	switch v := v.(type) {
	case literal:
		return v.v
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = unwrap(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = unwrap(e)
		}
		return out
	}
	return v
}

// compileOperators returns the matcher of {"$op": ...}. If there are several operators, all must hold.
func compileOperators(m map[string]any) (matcher, error) {
	var all []matcher
	for _, op := range sortedKeys(m) {
		sub, err := compileOperator(op, m[op])
		if err != nil {
			return matcher{}, fmt.Errorf("%s: %w", op, err)
		}
		all = append(all, sub)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	wants := make([]string, len(all))
	for i := range all {
		wants[i] = all[i].want
	}
	return matcher{strings.Join(wants, " and "), func(v value) bool {
		return !slices.ContainsFunc(all, func(m matcher) bool { return !m.ok(v) })
	}}, nil
}

func compileOperator(op string, arg any) (matcher, error) {
	if l, ok := arg.(literal); ok {
		arg = l.v
	}
	switch op {
	case "$exists":
		want, ok := arg.(bool)
		switch {
		case !ok:
			return matcher{}, errors.New("wants true or false")
		case want:
			return matcher{"a value", func(v value) bool { return v.present && v.v != nil }}, nil
		}
		return matcher{"nothing", func(v value) bool { return !v.present }}, nil
	case "$type":
		name, ok := arg.(string)
		if !ok {
			return matcher{}, errors.New("wants the name of a type")
		}
		return ofType(name)
	case "$match":
		expr, ok := arg.(string)
		if !ok {
			return matcher{}, errors.New("wants a regular expression")
		}
		return matching(expr)
	case "$eq":
		return equalTo(arg), nil
	case "$ne":
		m := equalTo(arg)
		return matcher{"a value other than " + m.want, func(v value) bool { return v.present && !m.ok(v) }}, nil
	case "$gt", "$gte", "$lt", "$lte":
		return compare(op, arg)
	case "$in", "$or":
		return anyOf(arg)
	case "$size":
		return size(arg)
	case "$empty":
		if arg != true {
			return matcher{}, errors.New("wants true")
		}
		return matcher{"null or something empty", empty}, nil
	case "range":
		return boundedBy(arg)
	}
	return matcher{}, errors.New("unknown operator")
}

func compare(op string, arg any) (matcher, error) {
	limit, ok := number(arg)
	if !ok {
		return matcher{}, errors.New("wants a number")
	}
	sign := map[string]string{"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}[op]
	return aNumber(fmt.Sprintf("a number %s %s", sign, show(arg)), func(n *big.Rat) bool {
		switch c := n.Cmp(limit); op {
		case "$gt":
			return c > 0
		case "$gte":
			return c >= 0
		case "$lt":
			return c < 0
		default:
			return c <= 0
		}
	}), nil
}

func anyOf(arg any) (matcher, error) {
	alternatives, ok := arg.([]any)
	if !ok || len(alternatives) == 0 {
		return matcher{}, errors.New("wants an array of alternatives")
	}
	ms := make([]matcher, len(alternatives))
	wants := make([]string, len(alternatives))
	for i, a := range alternatives {
		var err error
		if ms[i], err = compile(a); err != nil {
			return matcher{}, err
		}
		wants[i] = ms[i].want
	}
	return matcher{"one of: " + strings.Join(wants, "; "), func(v value) bool {
		return slices.ContainsFunc(ms, func(m matcher) bool { return m.ok(v) })
	}}, nil
}

// size matches the length of an array with a number, or with operators that compare numbers.
func size(arg any) (matcher, error) {
	var inner matcher
	var err error
	switch arg := arg.(type) {
	case json.Number:
		if n, ok := number(arg); !ok || !n.IsInt() || n.Sign() < 0 {
			return matcher{}, errors.New("wants a length")
		}
		inner = equalTo(arg)
	case map[string]any:
		for op, bound := range arg {
			if !slices.Contains([]string{"$eq", "$ne", "$gt", "$gte", "$lt", "$lte"}, op) {
				return matcher{}, fmt.Errorf("does not know %s", op)
			}
			if n, ok := number(bound); !ok || !n.IsInt() || n.Sign() < 0 {
				return matcher{}, errors.New("wants a length")
			}
		}
		inner, err = compileObject(arg)
	default:
		err = errors.New("wants a number or a comparison")
	}
	if err != nil {
		return matcher{}, err
	}
	return anArray("an array whose length is "+inner.want, func(a []any) bool {
		return inner.ok(value{json.Number(fmt.Sprint(len(a))), true})
	}), nil
}

func empty(v value) bool {
	if !v.present {
		return false
	}
	switch v := v.v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func boundedBy(arg any) (matcher, error) {
	m, ok := arg.(map[string]any)
	if !ok || len(m) == 0 {
		return matcher{}, errors.New("wants min, max or both")
	}
	ops := map[string]any{}
	for k, v := range m {
		op, ok := map[string]string{"min": "$gte", "max": "$lte"}[k]
		if !ok {
			return matcher{}, fmt.Errorf("does not know %q", k)
		}
		ops[op] = v
	}
	return compileOperators(ops)
}
