package httpapi

import (
	"bytes"
	"flag"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v3"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/names"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

var update = flag.Bool("update", false, "rewrite docs/openapi.yaml")

// The members of docs/openapi.yaml, in the order in which they are written.
type (
	openAPI struct {
		OpenAPI    string                           `yaml:"openapi"`
		Info       map[string]any                   `yaml:"info"`
		Servers    []map[string]string              `yaml:"servers"`
		Paths      map[string]map[string]*operation `yaml:"paths"`
		Components map[string]map[string]any        `yaml:"components"`
	}
	operation struct {
		Tags       []string                `yaml:"tags,flow"`
		Summary    string                  `yaml:"summary"`
		Security   *[]map[string][]string  `yaml:"security,flow"`
		Parameters []parameter             `yaml:"parameters,omitempty"`
		Body       *content                `yaml:"requestBody,omitempty"`
		Responses  map[string]*apiResponse `yaml:"responses"`
	}
	parameter struct {
		Ref      string            `yaml:"$ref,omitempty"`
		Name     string            `yaml:"name,omitempty"`
		In       string            `yaml:"in,omitempty"`
		Required bool              `yaml:"required,omitempty"`
		Schema   map[string]string `yaml:"schema,omitempty,flow"`
	}
	content struct {
		Content map[string]map[string]yaml.Node `yaml:"content"`
	}
	apiResponse struct {
		Ref         string `yaml:"$ref,omitempty"`
		Description string `yaml:"description,omitempty"`
		*content    `yaml:",inline"`
	}
)

// shownAs returns the body of an example as it stands in the document.
func shownAs(t *testing.T, mediaType, body string) *content {
	t.Helper()
	if body == "" {
		return nil
	}
	var node yaml.Node
	if strings.HasPrefix(body, "{") {
		if err := yaml.Unmarshal([]byte(body), &node); err != nil { // JSON is YAML
			t.Fatalf("%v in %s", err, body)
		}
		node = *node.Content[0]
	} else {
		node.SetString(body)
	}
	return &content{map[string]map[string]yaml.Node{mediaType: {"example": node}}}
}

var anyText = map[string]string{"type": "string"}

var pathParameter = regexp.MustCompile(`:([a-z]+)`)

// operationOf returns the operation of a route, made from its examples.
func (s *stage) operationOf(r *route, shown []*example) *operation {
	s.t.Helper()
	op := &operation{Tags: []string{shown[0].section}, Summary: shown[0].about, Responses: map[string]*apiResponse{}}
	op.Security = &[]map[string][]string{}
	if r.Scope != scopeOpen {
		op.Security = &[]map[string][]string{{"bearer": {string(r.Scope)}}, {"key": {string(r.Scope)}}}
		op.Responses["default"] = &apiResponse{Ref: "#/components/responses/error"}
	}
	for _, m := range pathParameter.FindAllStringSubmatch(r.Path, -1) {
		op.Parameters = append(op.Parameters, parameter{Name: m[1], In: "path", Required: true, Schema: anyText})
	}
	var queries, headers []string
	for _, x := range shown {
		queries = append(queries, x.queries...)
		for _, h := range x.headers {
			if name, _, _ := strings.Cut(h, ":"); name != names.TenantHeader {
				headers = append(headers, name)
			}
		}
		if op.Body == nil {
			op.Body = shownAs(s.t, "application/json", x.body)
		}
		status := strconv.Itoa(x.status)
		if op.Responses[status] == nil {
			mediaType := jsonbody.ContentType
			if r.Path == "/metrics" {
				mediaType = "text/plain"
			}
			op.Responses[status] = &apiResponse{Description: http.StatusText(x.status), content: shownAs(s.t, mediaType, x.answer)}
		}
	}
	for _, name := range queries {
		if !slices.Contains(r.Parameters(), name) {
			s.t.Errorf("%s %s reads %s of its query, which the table of routes does not have", r.Method, r.Path, name)
		}
	}
	slices.Sort(queries)
	for _, name := range slices.Compact(queries) {
		schema := map[string]string{"type": "string"}
		switch name {
		case "limit", "offset", "page", "per_page", "timeout":
			schema["type"] = "integer"
		case "wait", "enabled":
			schema["type"] = "boolean"
		}
		op.Parameters = append(op.Parameters, parameter{Name: name, In: "query", Schema: schema})
	}
	slices.Sort(headers)
	for _, name := range slices.Compact(headers) {
		op.Parameters = append(op.Parameters, parameter{Name: name, In: "header", Schema: anyText})
	}
	tenant := "acme"
	if r.Allow(&principal{Tenant: &tenant, Scopes: []string{string(scopeAdmin)}}) == nil {
		op.Parameters = append(op.Parameters, parameter{Ref: "#/components/parameters/tenant"})
	}
	return op
}

// components returns what all operations share. The errors are those of ojs.problem.
func (s *stage) components() map[string]map[string]any {
	s.t.Helper()
	problems := append(pgtest.List[string](s.t, s.pool, `
		select distinct concat('- ', http_status, ' ', code, case when retryable then ', retryable' end) from ojs.problem`),
		"- 500 internal_error")
	codes := append(pgtest.List[string](s.t, s.pool, `select distinct code from ojs.problem`), "internal_error")
	slices.Sort(problems)
	slices.Sort(codes)
	return map[string]map[string]any{
		"securitySchemes": {
			"bearer": map[string]any{"type": "http", "scheme": "bearer", "description": "An API key or a token."},
			"key":    map[string]any{"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key."},
		},
		"parameters": {"tenant": map[string]any{
			"name": names.TenantHeader, "in": "header", "schema": anyText,
			"description": "Whose job it is, or the tenant that the request is for.",
		}},
		"responses": {"error": map[string]any{
			"description": "What went wrong:\n\n" + strings.Join(problems, "\n") + "\n",
			"content": map[string]any{jsonbody.ContentType: map[string]any{
				"schema": map[string]string{"$ref": "#/components/schemas/error"},
			}},
		}},
		"schemas": {"error": map[string]any{
			"type": "object", "required": []string{"error"},
			"properties": map[string]any{"error": map[string]any{
				"type": "object", "required": []string{"code", "message", "retryable", "request_id", "details"},
				"properties": map[string]any{
					"code": map[string]any{"type": "string", "enum": codes}, "message": anyText, "request_id": anyText, "hint": anyText,
					"docs_url": anyText, "retryable": map[string]string{"type": "boolean"}, "details": map[string]string{"type": "object"},
				},
			}},
		}},
	}
}

// document returns the text of docs/openapi.yaml.
func (s *stage) document(shown map[string][]*example) []byte {
	s.t.Helper()
	doc := openAPI{
		OpenAPI: "3.1.0",
		Info: map[string]any{
			"title": "ojs-pg", "version": specVersion,
			"license": map[string]string{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Written by make golden from the server's routes and errors and the examples of http-examples.md, which show " +
				"some of the fields. What a route does stands in http-api.md. Without --auth no credential is needed.",
		},
		Servers: []map[string]string{{"url": "http://127.0.0.1:8080"}},
		Paths:   map[string]map[string]*operation{}, Components: s.components(),
	}
	for path, methods := range s.paths() {
		name := pathParameter.ReplaceAllString(path, "{$1}")
		doc.Paths[name] = map[string]*operation{}
		for _, method := range methods {
			of := shown[method+" "+path]
			if of == nil {
				of = shown[method+" "+secondName.Replace(path)]
			}
			if of != nil {
				doc.Paths[name][strings.ToLower(method)] = s.operationOf(s.route(method, path), of)
			}
		}
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		s.t.Fatal(err)
	}
	return out.Bytes()
}

// Every route has an example in docs/http-examples.md, which happens as it is written there, and stands in docs/openapi.yaml as it is.
func TestGoldenExamples(t *testing.T) {
	t.Parallel()
	all := examples(t, "../../docs/http-examples.md")
	s := play(t, all)
	shown := map[string][]*example{}
	for _, x := range all {
		if s.route(x.method, x.path) == nil {
			t.Errorf("there is no route for %s", x)
		}
		shown[x.method+" "+x.path] = append(shown[x.method+" "+x.path], x)
	}
	for path, methods := range s.paths() {
		for _, method := range methods {
			if shown[method+" "+path] == nil && shown[method+" "+secondName.Replace(path)] == nil {
				t.Errorf("docs/http-examples.md has no example of %s %s", method, path)
			}
		}
	}
	if t.Failed() {
		return
	}
	const file = "../../docs/openapi.yaml"
	want := s.document(shown)
	if read, err := openapi3.NewLoader().LoadFromData(want); err != nil {
		t.Error(err)
	} else if err := read.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil { //nolint:gosec // for everybody to read
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what the server and the examples tell; make golden writes it anew (%v)", file, err)
	}
}
