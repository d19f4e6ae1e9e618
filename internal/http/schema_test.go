package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
)

// This file makes JSON Schemas for docs/openapi.yaml. Most of them are read from the structs that
// the handlers read requests into and write answers from, so that the document follows the code.
// schemas_test.go has the others, which belong to answers that are written by hand.
// contracts_test.go checks all of them with the requests and answers of all tests.

type (
	// schema is a JSON Schema.
	schema map[string]any

	// props are the properties of an object. A name that ends with ? is optional.
	props map[string]schema
)

func text() schema       { return schema{"type": "string"} }
func boolean() schema    { return schema{"type": "boolean"} }
func anyNumber() schema  { return schema{"type": "number"} }
func free() schema       { return schema{} }
func freeObject() schema { return open(schema{"type": "object"}) }
func freeList() schema   { return schema{"type": "array", "items": free()} }
func instant() schema    { return schema{"type": "string", "format": "date-time"} }
func uuidText() schema   { return schema{"type": "string", "format": "uuid"} }
func whole32() schema    { return schema{"type": "integer", "format": "int32"} }
func whole64() schema    { return schema{"type": "integer", "format": "int64"} }

func list(of schema) schema      { return schema{"type": "array", "items": of} }
func mapOf(of schema) schema     { return schema{"type": "object", "additionalProperties": of} }
func ref(name string) schema     { return schema{"$ref": "#/components/schemas/" + name} }
func either(of ...schema) schema { return schema{"anyOf": of} }

func oneOf(values ...string) schema {
	all := make([]any, len(values))
	for i, v := range values {
		all[i] = v
	}
	return schema{"type": "string", "enum": all}
}

func between(low, high int) schema { return schema{"type": "integer", "minimum": low, "maximum": high} }

// open returns s with members that it does not name; the client or the producer may add them.
func open(s schema) schema { s["additionalProperties"] = true; return s }

// closed returns s without members that it does not name: the server refuses them, except those of
// the client's own.
func closed(s schema) schema {
	s["additionalProperties"], s["patternProperties"] = false, map[string]schema{"^(x|ext)[-_]": {}}
	return s
}

// nullable returns a schema that also lets null pass.
func nullable(s schema) schema {
	if kind, ok := s["type"].(string); ok {
		s["type"] = []any{kind, "null"}
		if values, ok := s["enum"].([]any); ok {
			s["enum"] = append(slices.Clone(values), nil)
		}
		return s
	}
	if len(s) == 0 {
		return s // anything, also null
	}
	if of, ok := s["anyOf"].([]schema); ok {
		return either(append(slices.Clone(of), schema{"type": "null"})...)
	}
	return either(s, schema{"type": "null"})
}

func object(p props) schema {
	properties, required := map[string]schema{}, []string{}
	for name, s := range p {
		short, optional := strings.CutSuffix(name, "?")
		if properties[short] = s; !optional {
			required = append(required, short)
		}
	}
	slices.Sort(required)
	s := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// and returns the properties of an object and more of them.
func and(s schema, p props) schema {
	more := object(p)
	maps.Copy(s["properties"].(map[string]schema), more["properties"].(map[string]schema))
	required, _ := s["required"].([]string)
	if others, ok := more["required"].([]string); ok {
		required = append(slices.Clone(required), others...)
		slices.Sort(required)
		s["required"] = slices.Compact(required)
	}
	return s
}

// answerOf returns the schema of a struct that encoding/json writes. p has the schemas of fields
// whose types do not tell enough, such as json.RawMessage, and nil for fields that are never written.
func answerOf[T any](p props) schema {
	fields := props{}
	addAnswer(reflect.TypeFor[T](), p, fields, false)
	return object(fields)
}

func addAnswer(t reflect.Type, p, into props, optional bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, how, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			addAnswer(inner, p, into, optional || f.Type.Kind() == reflect.Pointer)
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		s, given := p[name]
		if given && s == nil {
			continue // the field of an embedded struct that another one hides
		}
		if !given {
			s = valueOf(f.Type, name)
			if how == "omitempty" && f.Type.Kind() == reflect.Pointer {
				s = valueOf(f.Type.Elem(), name)
			} else if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.String && how == "" {
				s = nullable(s)
			}
		}
		if how != "" || optional {
			name += "?"
		}
		into[name] = s
	}
}

// valueOf returns the schema of a value that encoding/json writes. It panics if the type alone
// does not tell it.
func valueOf(t reflect.Type, name string) schema {
	switch t {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[jsonbody.Stamp]():
		return instant()
	}
	switch t.Kind() {
	case reflect.String:
		return text()
	case reflect.Bool:
		return boolean()
	case reflect.Int32:
		return whole32()
	case reflect.Int64, reflect.Int:
		return whole64()
	case reflect.Float64:
		return anyNumber()
	case reflect.Pointer:
		return nullable(valueOf(t.Elem(), name))
	case reflect.Map:
		return mapOf(valueOf(t.Elem(), name))
	case reflect.Slice:
		if t != reflect.TypeFor[json.RawMessage]() && t.Elem().Kind() == reflect.String {
			return list(text())
		}
	}
	panic(fmt.Sprintf("%s of type %s needs a schema", name, t))
}

// bodyOf returns the schema of a body that jsonbody.Into reads into a T. null stands for an
// absent field, so that fields that may be absent may also be null.
func bodyOf[T any](p props) schema {
	fields, others := props{}, ""
	addRequest(reflect.TypeFor[T](), p, fields, &others)
	if s := object(fields); others == "near" || others == "any" {
		return open(s)
	} else {
		return closed(s)
	}
}

// mayBeLeftOut reports whether a request may come without a body.
func mayBeLeftOut[T any]() bool {
	_, optional := any(new(T)).(interface{ MayBeLeftOut() })
	return optional
}

func addRequest(t reflect.Type, p, into props, others *string) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, name := f.Tag.Get("check"), f.Tag.Get("json")
		switch {
		case f.Type == reflect.TypeFor[jsonbody.Optional]():
		case f.Name == "_":
			*others = tag
		case f.Anonymous:
			addRequest(f.Type, p, into, new(string))
		case f.IsExported():
			checks := strings.Split(tag, ",")
			s, given := p[name]
			if !given {
				s = readAs(f.Type, checks, name)
			}
			if slices.Contains(checks, "required") {
				into[name] = s
			} else if slices.Contains(checks, "scope") {
				into[name+"?"] = s
			} else {
				into[name+"?"] = nullable(s)
			}
		}
	}
}

// readAs returns the schema of a field that jsonbody.Into reads.
func readAs(t reflect.Type, checks []string, name string) schema {
	s := text()
	for _, check := range checks {
		switch {
		case check == "name":
			s["minLength"] = 1
		case check == "id":
			s["format"] = "uuid"
		case check == "object":
			return freeObject()
		case check == "number":
			return anyNumber()
		}
	}
	switch t {
	case reflect.TypeFor[string](), reflect.TypeFor[*string]():
		return s
	case reflect.TypeFor[[]string]():
		return list(s)
	case reflect.TypeFor[bool](), reflect.TypeFor[*bool]():
		return boolean()
	case reflect.TypeFor[int32](), reflect.TypeFor[*int32]():
		n := whole32()
		for _, check := range checks {
			var low, high int
			if got, _ := fmt.Sscanf(check, "%d..%d", &low, &high); got > 0 {
				n["minimum"] = low
				if got > 1 {
					n["maximum"] = high
				}
			}
		}
		return n
	case reflect.TypeFor[*time.Time]():
		if slices.Contains(checks, "when") {
			return text()
		}
		return instant()
	}
	panic(fmt.Sprintf("%s of type %s needs a schema", name, t))
}

// strict returns a copy of v in which objects have no members but those that they name, unless
// they say so. Answers may get members in later releases, so the document does not say this, but
// today's server must not write a member that the document does not name.
func strict(v any) any {
	switch v := v.(type) {
	case schema:
		return strict(map[string]any(v))
	case map[string]schema:
		out := map[string]any{}
		for name, s := range v {
			out[name] = strict(s)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for name, s := range v {
			out[name] = strict(s)
		}
		if _, ok := v["properties"].(map[string]schema); ok && v["additionalProperties"] == nil {
			out["additionalProperties"] = false
		}
		return out
	case []schema:
		out := make([]any, len(v))
		for i := range v {
			out[i] = strict(v[i])
		}
		return out
	case []string:
		out := make([]any, len(v))
		for i := range v {
			out[i] = v[i]
		}
		return out
	case int:
		return json.Number(fmt.Sprint(v))
	}
	return v
}
