package httpapi

import (
	"bytes"
	"cmp"
	"flag"
	"net/http"
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

var update = flag.Bool("update", false,
	"rewrite docs/openapi.yaml, and the parts of docs/reference/http that are made of the code")

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
		ID         string                  `yaml:"operationId"`
		Tags       []string                `yaml:"tags,flow"`
		Summary    string                  `yaml:"summary"`
		Security   *[]map[string][]string  `yaml:"security,flow"`
		Parameters []parameter             `yaml:"parameters,omitempty"`
		Body       *content                `yaml:"requestBody,omitempty"`
		Responses  map[string]*apiResponse `yaml:"responses"`
	}
	parameter struct {
		Ref         string `yaml:"$ref,omitempty"`
		Name        string `yaml:"name,omitempty"`
		In          string `yaml:"in,omitempty"`
		Required    bool   `yaml:"required,omitempty"`
		Description string `yaml:"description,omitempty"`
		Schema      schema `yaml:"schema,omitempty,flow"`
	}
	content struct {
		Required bool                             `yaml:"required,omitempty"`
		Content  map[string]map[string]*yaml.Node `yaml:"content"`
	}
	apiResponse struct {
		Ref         string `yaml:"$ref,omitempty"`
		Description string `yaml:"description,omitempty"`
		*content    `yaml:",inline"`
	}
)

// shownAs returns a body with its schema and its example, as it stands in the document; nil: there
// is no body.
func shownAs(t *testing.T, mediaType, name, example string) *content {
	t.Helper()
	if name == "" {
		return nil
	}
	shown := map[string]*yaml.Node{"schema": {}}
	of := ref(name)
	if name == plainText {
		of = text()
	}
	if err := shown["schema"].Encode(of); err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.HasPrefix(example, "{"):
		var node yaml.Node
		if err := yaml.Unmarshal([]byte(example), &node); err != nil { // JSON is YAML
			t.Fatalf("%v in %s", err, example)
		}
		shown["example"] = node.Content[0]
	case example != "":
		shown["example"] = &yaml.Node{}
		shown["example"].SetString(example)
	}
	return &content{Content: map[string]map[string]*yaml.Node{mediaType: shown}}
}

var anyText = schema{"type": "string"}

var pathParameter = regexp.MustCompile(`:([a-z]+)`)

// operationID returns a name for a route that clients are generated with, such as postJobsBatch.
func operationID(method, path string) string {
	rest, below := strings.CutPrefix(path, v1)
	if !below {
		rest = strings.Replace(path, "/ojs", "", 1)
		if rest != "/manifest" && rest != "/metrics" {
			rest = "/root" + rest // /ready has a namesake below /ojs/v1
		}
	}
	id := strings.ToLower(method)
	for _, word := range strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune("/:-", r) }) {
		id += strings.ToUpper(word[:1]) + word[1:]
	}
	return id
}

// inPath returns a parameter of a path.
func inPath(path, name string) parameter {
	p := parameter{Name: name, In: "path", Required: true, Schema: anyText, Description: "The name."}
	for _, of := range []struct {
		within, about string
		schema        schema
	}{
		{"/tenants/:id", "The tenant.", anyText},
		{"/workers/:id", "The name of the worker.", anyText},
		{"/api-keys/:id", "The id of the key.", uuidText()},
		{"/:id", "The id of the job.", uuidText()},
		{"/queues/:name", "The name of the queue.", anyText},
		{"/cron/:name", "The name of the cron job.", anyText},
		{"/crons/:name", "The name of the cron job.", anyText},
		{"/tiers/:name", "The name of the tier.", anyText},
		{"/pools/:name", "The name of the pool.", anyText},
	} {
		if strings.Contains(path, of.within) {
			p.Description, p.Schema = of.about, of.schema
			break
		}
	}
	return p
}

// queryParameters are the parameters of queries, with their schemas and descriptions.
var queryParameters = map[string]named{
	"action":     made("Only changes of this kind, such as changed.", text()),
	"actor":      made("Only changes by this login role or caller.", text()),
	"after":      made("Not supported.", text()),
	"confirm":    made("The confirmation, as in the body.", text()),
	"cursor":     made("The next_cursor of the page before.", text()),
	"enabled":    made("Only cron jobs that fire, or only those that do not.", boolean()),
	"error_type": made("Only jobs whose last error has this type or code.", text()),
	"format":     made("json, the default, or csv: all rows of the period.", oneOf("json", "csv")),
	"limit":      made("How many items the page holds; 50 by default.", between(1, 1000)),
	"offset":     made("How many items come before the page.", schema{"type": "integer", "minimum": 0}),
	"older_than": made("Another name of until, or an age such as P30D.", text()),
	"order":      made("The order of the list, which can only be desc.", oneOf("desc")),
	"page":       made("The number of the page, from 1 on; it may replace offset.", schema{"type": "integer", "minimum": 1}),
	"per_page":   made("Another name of limit.", between(1, 1000)),
	"queue":      made("Only jobs of this queue.", text()),
	"queues":     made("Only events of these queues, separated by commas.", text()),
	"since":      made("Only what came at this time or later.", instant()),
	"sort":       made("What the list is sorted by, which can only be created_at.", oneOf("created_at")),
	"state":      made("Only jobs in this state.", stateOfJob()),
	"strategy":   made("What happens to the jobs of the queue, as in the body.", oneOf("reject")),
	"tenant":     made("The tenant that the request is about, as the header names it.", text()),
	"tenant_id":  made("Another name of tenant.", text()),
	"timeout":    made("How many seconds to wait; 30 by default.", between(0, 3600)),
	"type":       made("Only this type; of jobs, mail.* stands for all types that begin with mail.", text()),
	"types":      made("Only events of these types, separated by commas.", text()),
	"until":      made("Only what came before this time.", instant()),
	"wait":       made("Whether to wait until the job has ended.", boolean()),
}

// headerParameters describe the headers that examples send.
var headerParameters = map[string]string{
	"Idempotency-Key": "A key by which the server recognizes the request when it is sent again.",
	"Prefer":          "How long to wait (wait=SECONDS), or whether the answer holds the job (return=minimal).",
	"X-OJS-Reason":    "The reason of a change, for the audit trail.",
}

// operationOf is a route, and what its examples tell of it.
func (s *stage) operationOf(r *route, shown []*example) *operation {
	s.t.Helper()
	op := &operation{
		ID: operationID(r.Method, r.Path), Tags: []string{shown[0].section}, Summary: shown[0].about,
		Responses: map[string]*apiResponse{},
	}
	op.Security = &[]map[string][]string{}
	if r.Scope != scopeOpen {
		op.Security = &[]map[string][]string{{"bearer": {string(r.Scope)}}, {"key": {string(r.Scope)}}}
		op.Responses["default"] = &apiResponse{Ref: "#/components/responses/refusal"}
	}
	for _, m := range pathParameter.FindAllStringSubmatch(r.Path, -1) {
		op.Parameters = append(op.Parameters, inPath(r.Path, m[1]))
	}
	known, ok := contractOf(r.Method, r.Path)
	if !ok {
		s.t.Errorf("contracts in internal/http/contracts_test.go has no line %s %s: its body, statuses and answers", r.Method, r.Path)
	}
	var queries, headers []string
	example, answers := "", map[int]string{}
	for _, x := range shown {
		queries = append(queries, x.queries...)
		for _, h := range x.headers {
			if name, _, _ := strings.Cut(h, ":"); name != names.TenantHeader {
				headers = append(headers, name)
			}
		}
		example = cmp.Or(example, x.body)
		answers[x.status] = cmp.Or(answers[x.status], x.answer)
	}
	if op.Body = shownAs(s.t, "application/json", known.body, example); op.Body != nil {
		op.Body.Required = !s.schemas[known.body].optional
	}
	for status, name := range known.answers {
		mediaType := jsonbody.ContentType
		if name == plainText {
			mediaType = "text/plain"
		}
		op.Responses[strconv.Itoa(status)] = &apiResponse{
			Description: http.StatusText(status), content: shownAs(s.t, mediaType, name, answers[status]),
		}
	}
	for status, answer := range answers {
		if name := strconv.Itoa(status); op.Responses[name] == nil {
			op.Responses[name] = &apiResponse{Description: http.StatusText(status), content: shownAs(s.t,
				jsonbody.ContentType, "Error", answer)}
		}
	}
	for _, name := range queries {
		if !slices.Contains(r.Parameters(), name) {
			s.t.Errorf("%s %s reads %s of its query, which the table of routes does not have", r.Method, r.Path, name)
		}
	}
	slices.Sort(queries)
	for _, name := range slices.Compact(queries) {
		p := parameter{Name: name, In: "query", Schema: queryParameters[name].schema, Description: queryParameters[name].about}
		if p.Description == "" {
			s.t.Errorf("the parameter %s has no description", name)
		}
		op.Parameters = append(op.Parameters, p)
	}
	slices.Sort(headers)
	for _, name := range slices.Compact(headers) {
		op.Parameters = append(op.Parameters, parameter{
			Name: name, In: "header", Schema: anyText,
			Description: headerParameters[name],
		})
	}
	tenant := "acme"
	if r.Allow(&principal{Tenant: &tenant, Scopes: []string{string(scopeAdmin)}}) == nil {
		op.Parameters = append(op.Parameters, parameter{Ref: "#/components/parameters/tenantHeader"})
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
	if !slices.Equal(codes, errorCodes) {
		s.t.Errorf("the codes of errors are %q", codes)
	}
	schemas := map[string]any{}
	for name, n := range s.schemas {
		var node yaml.Node
		if err := node.Encode(n.schema); err != nil {
			s.t.Fatal(err)
		}
		onLines(&node)
		schemas[name] = &node
	}
	return map[string]map[string]any{
		"securitySchemes": {
			"bearer": map[string]any{"type": "http", "scheme": "bearer", "description": "An API key or a token."},
			"key":    map[string]any{"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key."},
		},
		"parameters": {"tenantHeader": map[string]any{
			"name": names.TenantHeader, "in": "header", "schema": anyText,
			"description": "The tenant of the jobs, or the tenant that the request is about.",
		}},
		"responses": {"refusal": map[string]any{
			"description": "The request is refused:\n\n" + strings.Join(problems, "\n") + "\n",
			"content":     map[string]any{jsonbody.ContentType: map[string]any{"schema": ref("Error")}},
		}},
		"schemas": schemas,
	}
}

// onLines writes each mapping that has no mapping in it on a line of its own. It reports whether
// node has none.
func onLines(node *yaml.Node) (flat bool) {
	flat = true
	for _, inner := range node.Content {
		if nested := !onLines(inner); nested || inner.Kind == yaml.MappingNode {
			flat = false
		}
	}
	if flat && node.Kind != yaml.ScalarNode {
		node.Style |= yaml.FlowStyle
	}
	return flat
}

// document is the whole of docs/openapi.yaml.
func (s *stage) document(shown map[string][]*example) []byte {
	s.t.Helper()
	doc := openAPI{
		OpenAPI: "3.1.0",
		Info: map[string]any{
			"title": "ojs-pg", "version": specVersion,
			"license": map[string]string{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Written by make golden from the server's routes, errors and structs, and from http-examples.md, " +
				"whose examples show some of the members. docs/reference/http explains each route. " +
				"Without --auth no credential is needed. " +
				"A later release may add members to answers, and values to their enums.",
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
	s.schemas = componentSchemas(errorCodes)
	for _, member := range describe(s.schemas) {
		t.Errorf("%s has no description: add a line %q to descriptionLines in internal/http/described_test.go", member,
			member[strings.LastIndex(member, ".")+1:]+": What it is.")
	}
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
	} else if err := read.Validate(t.Context(), openapi3.DisableExamplesValidation()); err != nil {
		t.Error(err)
	}
	golden(t, file, string(want))
	s.checkReference(shown)
}
