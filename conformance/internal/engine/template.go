package engine

import (
	"fmt"
	"regexp"
	"strings"
)

// A template names an earlier response, {{steps.ID.response.body.path}}, or a captured value: {{name}},
// ${name}, $ref.name.
var template = regexp.MustCompile(`\{\{\s*([^{}]+?)\s*\}\}|\$\{\s*([^{}]+?)\s*\}|\$ref\.([A-Za-z_][A-Za-z0-9_]*)`)

// scope is what templates can see.
type scope struct {
	steps    map[string]any // id -> {"response": {"status", "headers", "body"}}
	captured map[string]any
	blank    bool // everything resolves to some text: for reading a case before it runs
}

func newScope() *scope { return &scope{steps: map[string]any{}, captured: map[string]any{}} }

func (s *scope) lookup(expr string) (any, error) {
	if s.blank {
		return "x", nil
	}
	if v, ok := s.captured[expr]; ok {
		return v, nil
	}
	if strings.HasPrefix(expr, "steps.") {
		p, err := parsePath(expr)
		if err != nil {
			return nil, err
		}
		if got := p.find(map[string]any{"steps": s.steps}); got.present {
			return got.v, nil
		}
	}
	return nil, fmt.Errorf("{{%s}} leads to nothing", expr)
}

func exprOf(groups []string) string { return groups[1] + groups[2] + groups[3] }

// text fills templates inside a string that stays one.
func (s *scope) text(in string) (string, error) {
	var failed error
	out := template.ReplaceAllStringFunc(in, func(t string) string {
		v, err := s.lookup(exprOf(template.FindStringSubmatch(t)))
		if err != nil {
			failed = err
			return t
		}
		return plain(v)
	})
	return out, failed
}

// fill resolves the templates anywhere inside a value. With mark set, what came out of a whole-string
// template is marked as a literal, so that it cannot be read as a matcher.
func (s *scope) fill(in any, mark bool) (any, error) {
	switch in := in.(type) {
	case string:
		if g := template.FindStringSubmatch(in); g != nil && g[0] == in {
			v, err := s.lookup(exprOf(g))
			if mark {
				return literal{v}, err
			}
			return v, err
		}
		return s.text(in)
	case []any:
		out := make([]any, len(in))
		for i, e := range in {
			var err error
			if out[i], err = s.fill(e, mark); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(in))
		for k, e := range in {
			key, err := s.text(k)
			if err != nil {
				return nil, err
			}
			if out[key], err = s.fill(e, mark); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return in, nil
}
