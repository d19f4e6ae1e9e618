package engine

import (
	"fmt"
	"strconv"
	"strings"
)

// value is the result of a path. A null in the document is present, with v == nil.
type value struct {
	v       any
	present bool
}

func (v value) String() string {
	if !v.present {
		return "nothing"
	}
	return show(v.v)
}

// A part of a path is one of: a key (from dot notation, so neighbours may belong together), a quoted key,
// an index, every element, or the first element that fits a condition.
type part struct {
	key    string
	quoted bool
	kind   partKind
	index  int
	cond   path   // below the element
	equals string // literal the condition's value is compared with; "" with any == false
	any    bool   // the condition only asks that the value is there
}

type partKind int

const (
	partKey partKind = iota
	partIndex
	partEach
	partFilter
)

type path []part

// parsePath reads $.a.b[0]["c.d"][*].e and $.items[?(@.id=='x')].f. The leading "$" may be missing.
func parsePath(text string) (path, error) {
	bad := func(why string) (path, error) { return nil, fmt.Errorf("path %q: %s", text, why) }
	rest, rooted := strings.CutPrefix(text, "$")
	if rest == "" {
		if rooted {
			return path{}, nil
		}
		return bad("is empty")
	}
	if !rooted {
		rest = "." + rest
	}
	var p path
	for rest != "" {
		switch rest[0] {
		case '.':
			rest = rest[1:]
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			key := rest[:end]
			if key == "" {
				return bad("has an empty key")
			}
			if strings.ContainsAny(key, "]()'\"*?@<>=!&| ") {
				return bad(fmt.Sprintf("key %q needs quotes in brackets", key))
			}
			p = append(p, part{key: key})
			rest = rest[end:]
		case '[':
			inner, after, ok := cutBracket(rest)
			if !ok {
				return bad("has an unclosed bracket")
			}
			b, err := parseBracket(inner)
			if err != nil {
				return bad(err.Error())
			}
			p = append(p, b)
			rest = after
		default:
			return bad(fmt.Sprintf("stops at %q", rest))
		}
	}
	return p, nil
}

// cutBracket splits "[...]rest" at the closing bracket, which may also stand inside quotes.
func cutBracket(s string) (inner, rest string, ok bool) {
	var quote byte
	for i := 1; i < len(s); i++ {
		switch {
		case quote != 0:
			if s[i] == quote {
				quote = 0
			}
		case s[i] == '\'' || s[i] == '"':
			quote = s[i]
		case s[i] == ']':
			return s[1:i], s[i+1:], true
		}
	}
	return "", "", false
}

func unquote(s string) (string, bool) {
	if len(s) >= 2 && (s[0] == '\'' || s[0] == '"') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1], true
	}
	return s, false
}

func parseBracket(inner string) (part, error) {
	if inner == "*" {
		return part{kind: partEach}, nil
	}
	if key, ok := unquote(inner); ok {
		return part{key: key, quoted: true}, nil
	}
	if cond, ok := strings.CutPrefix(inner, "?"); ok {
		return parseFilter(cond)
	}
	n, err := strconv.Atoi(inner)
	if err != nil || n < 0 {
		return part{}, fmt.Errorf("unknown bracket form [%s]", inner)
	}
	return part{kind: partIndex, index: n}, nil
}

func parseFilter(text string) (part, error) {
	cond := strings.TrimSpace(text)
	if strings.HasPrefix(cond, "(") && strings.HasSuffix(cond, ")") {
		cond = strings.TrimSpace(cond[1 : len(cond)-1])
	}
	left, right, compared := strings.Cut(cond, "==")
	left, right = strings.TrimSpace(left), strings.TrimSpace(right)
	below, err := parsePath("$" + strings.TrimPrefix("."+strings.TrimPrefix(strings.TrimPrefix(left, "@"), "."), "$"))
	if err != nil {
		return part{}, fmt.Errorf("unknown condition [?%s]", text)
	}
	f := part{kind: partFilter, cond: below, any: !compared}
	if compared {
		var quoted bool
		if f.equals, quoted = unquote(right); !quoted && strings.ContainsAny(right, "&|<>=!() ") || right == "" {
			return part{}, fmt.Errorf("unknown condition [?%s]", text)
		}
	}
	return f, nil
}

// find follows the path through a decoded JSON value.
func (p path) find(v any) value {
	if len(p) == 0 {
		return value{v, true}
	}
	if p[0].kind == partKey {
		obj, _ := v.(map[string]any)
		return p.findKey(obj)
	}
	arr, ok := v.([]any)
	if !ok {
		return value{}
	}
	return p.findElement(arr)
}

// findElement follows a path that begins with brackets around anything but a key.
func (p path) findElement(arr []any) value {
	head, rest := p[0], p[1:]
	switch head.kind {
	case partIndex:
		if head.index < len(arr) {
			return rest.find(arr[head.index])
		}
	case partEach:
		all := []any{}
		for _, e := range arr {
			if got := rest.find(e); got.present {
				all = append(all, got.v)
			}
		}
		return value{all, true}
	case partFilter:
		for _, e := range arr {
			got := head.cond.find(e)
			if got.present && (head.any || plain(got.v) == head.equals) {
				return rest.find(e)
			}
		}
	}
	return value{}
}

// findKey follows a path that begins with a key. The parts of a dotted name may be one flat key: ever longer ones are tried.
func (p path) findKey(obj map[string]any) value {
	head, rest := p[0], p[1:]
	if below, ok := obj[head.key]; ok {
		if got := rest.find(below); got.present {
			return got
		}
	}
	if head.quoted {
		return value{}
	}
	key := head.key
	for i, next := range rest {
		if next.kind != partKey || next.quoted {
			break
		}
		key += "." + next.key
		if below, ok := obj[key]; ok {
			if got := rest[i+1:].find(below); got.present {
				return got
			}
		}
	}
	return value{}
}

// plain renders a value as the text a case would compare it with: strings bare, everything else as JSON.
func plain(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	data, err := encode(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(data)
}
