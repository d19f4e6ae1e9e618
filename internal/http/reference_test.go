package httpapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// The reference of the HTTP API, docs/reference/http, is written by hand. Below the heading of each
// route the lines between two marks are written by make golden: the scope, the parameters, the
// bodies and the first example of http-examples.md. objects.md is written by make golden as a whole.

const (
	reference   = "../../docs/reference/http/"
	routeBegins = "<!-- route: written by make golden -->\n"
	routeEnds   = "<!-- end of route -->\n"
	indexBegins = "<!-- index: written by make golden -->\n"
	indexEnds   = "<!-- end of index -->\n"
)

// routeHeading matches the heading of a route.
var routeHeading = regexp.MustCompile(`(?m)^## ((?:GET|POST|PUT|PATCH|DELETE) /\S*)$`)

// section is the part of a page below the heading of a route, with the heading.
type section struct {
	file, route, text string
	begin, end        int // in the file
}

// routeSections returns the sections of all routes.
func routeSections(t *testing.T) (all []section) {
	t.Helper()
	files, err := filepath.Glob(reference + "*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no reference: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		for _, m := range routeHeading.FindAllStringSubmatchIndex(text, -1) {
			end := len(text)
			if next := strings.Index(text[m[1]:], "\n## "); next >= 0 {
				end = m[1] + next + 1
			}
			all = append(all, section{file, text[m[2]:m[3]], text[m[0]:end], m[0], end})
		}
	}
	return all
}

// inBraces returns a path as documents write it: /jobs/{id}.
func inBraces(path string) string { return pathParameter.ReplaceAllString(path, "{$1}") }

// referencesOf returns the lines of each route that has a heading, by the heading.
func (s *stage) referencesOf(shown map[string][]*example) map[string]string {
	s.t.Helper()
	others, lines := map[string][]string{}, map[string]string{}
	for path, methods := range s.paths() {
		for _, method := range methods {
			name := mainName(method, path)
			if name == method+" "+path {
				continue
			}
			other := "`" + method + " " + inBraces(path) + "`"
			_, main, _ := strings.Cut(name, " ")
			if scope := s.route(method, path).Scope; scope != s.route(method, main).Scope {
				other += ", with the scope `" + string(scope) + "`"
			}
			others[name] = append(others[name], other)
		}
	}
	for path, methods := range s.paths() {
		for _, method := range methods {
			route := method + " " + path
			if mainName(method, path) == route {
				slices.Sort(others[route])
				lines[method+" "+inBraces(path)] = s.linesOf(s.route(method, path), shown[route], others[route])
			}
		}
	}
	return lines
}

// mainName returns the name of a route that contracts knows.
func mainName(method, path string) string {
	if _, ok := contracts()[method+" "+path]; !ok {
		for _, names := range otherNames {
			if rest, ok := strings.CutPrefix(path, names[0]); ok && (rest == "" || rest[0] == '/') {
				return method + " " + names[1] + rest
			}
		}
	}
	return method + " " + path
}

func (s *stage) linesOf(r *route, shown []*example, others []string) string {
	var out strings.Builder
	out.WriteString("\n")
	if r.Scope == scopeOpen {
		out.WriteString("- Credential: none.\n")
	} else {
		fmt.Fprintf(&out, "- Scope of the credential: `%s`.", r.Scope)
		if r.Queues == allQueues {
			out.WriteString(" A credential for some queues is refused.")
		}
		out.WriteString("\n")
	}
	for _, other := range others {
		fmt.Fprintf(&out, "- Also at %s.\n", other)
	}
	if known := r.Parameters(); len(known) > 0 {
		out.WriteString("- Query:\n")
		for _, name := range known {
			fmt.Fprintf(&out, "  - `%s` (%s): %s\n", name, kindOf(queryParameters[name].schema), queryParameters[name].about)
		}
	}
	known := contracts()[r.Method+" "+r.Path]
	if known.body != "" {
		fmt.Fprintf(&out, "- Body: %s", linked(known.body))
		if s.schemas[known.body].optional {
			out.WriteString(", which may be left out")
		}
		out.WriteString(".\n")
	}
	for _, status := range slices.Sorted(maps.Keys(known.answers)) {
		switch name := known.answers[status]; name {
		case plainText:
			fmt.Fprintf(&out, "- Answer %d: text.\n", status)
		case "":
			fmt.Fprintf(&out, "- Answer %d: no body.\n", status)
		default:
			fmt.Fprintf(&out, "- Answer %d: %s.\n", status, linked(name))
		}
	}
	if len(shown) > 0 {
		x := shown[0]
		fmt.Fprintf(&out, "\n```http\n%s %s\n", x.method, x.target)
		for _, h := range x.headers {
			out.WriteString(h + "\n")
		}
		out.WriteString("\n")
		if x.body != "" {
			out.WriteString(x.body + "\n\n")
		}
		fmt.Fprintf(&out, "%d\n", x.status)
		if x.answer != "" {
			out.WriteString(x.answer + "\n")
		}
		out.WriteString("```\n")
	}
	return out.String() + "\n"
}

// linked returns a link to a schema in objects.md.
func linked(name string) string { return "[" + name + "](objects.md#" + strings.ToLower(name) + ")" }

// kindOf returns the type of a value in words.
func kindOf(s schema) string {
	if to, ok := s["$ref"].(string); ok {
		return linked(to[strings.LastIndex(to, "/")+1:])
	}
	if of, ok := s["anyOf"].([]schema); ok {
		kinds := make([]string, len(of))
		for i := range of {
			kinds[i] = kindOf(of[i])
		}
		return strings.Join(kinds, " or ")
	}
	kind, _ := s["type"].(string)
	if kinds, ok := s["type"].([]any); ok {
		kind = kinds[0].(string)
	}
	switch {
	case kind == "":
		return "any JSON"
	case s["enum"] != nil:
		var values []string
		for _, v := range s["enum"].([]any) {
			if v != nil {
				values = append(values, fmt.Sprintf("`%v`", v))
			}
		}
		kind = strings.Join(values, ", ")
	case kind == "array":
		kind = "array of " + kindOf(s["items"].(schema))
	case s["format"] == "date-time":
		kind = "time"
	case s["format"] == "uuid":
		kind = "UUID"
	case kind == "object":
		if of, ok := s["additionalProperties"].(schema); ok {
			kind = "object of " + kindOf(of)
		}
	case s["minimum"] != nil && s["maximum"] != nil:
		kind = fmt.Sprintf("%s, %v to %v", kind, s["minimum"], s["maximum"])
	}
	if _, ok := s["type"].([]any); ok {
		kind += " or null"
	}
	return kind
}

// objects returns the page of all schemas.
func (s *stage) objects() string {
	var out strings.Builder
	out.WriteString("# Objects of the HTTP API\n\n" +
		"The JSON objects of requests and answers, for a reader who writes a client by hand.\n" +
		"[openapi.yaml](../../openapi.yaml) says the same to programs. `make golden` writes both.\n\n" +
		"A later release may add members to answers, and values to their enums. In a request, null\n" +
		"stands for an absent member. *Open* objects may have further members; *closed* ones may not.\n")
	for _, name := range slices.Sorted(maps.Keys(s.schemas)) {
		of := s.schemas[name]
		fmt.Fprintf(&out, "\n## %s\n\n%s", name, of.about)
		switch of.schema["additionalProperties"] {
		case true:
			out.WriteString(" *Open.*")
		case false:
			out.WriteString(" *Closed.*")
		}
		out.WriteString("\n")
		if of.schema["anyOf"] != nil {
			fmt.Fprintf(&out, "\nIt is %s.\n", kindOf(of.schema))
			continue
		}
		out.WriteString("\n| member | type | meaning |\n|---|---|---|\n")
		s.members(&out, "", of.schema)
	}
	return out.String()
}

func (s *stage) members(out *strings.Builder, prefix string, of schema) {
	properties, _ := of["properties"].(map[string]schema)
	required, _ := of["required"].([]string)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		p, optional := properties[name], ""
		if !slices.Contains(required, name) {
			optional = "; optional"
		}
		fmt.Fprintf(out, "| `%s%s` | %s%s | %s |\n", prefix, name, kindOf(p), optional, p["description"])
		if p["properties"] != nil {
			s.members(out, prefix+name+".", p)
		}
	}
}

// checkReference compares the lines that make golden writes into the reference, or writes them.
func (s *stage) checkReference(shown map[string][]*example) {
	t := s.t
	t.Helper()
	want, told := s.referencesOf(shown), map[string]bool{}
	sections := routeSections(t)
	slices.Reverse(sections) // so that the positions of those before hold
	for _, of := range sections {
		lines, ok := want[of.route]
		if !ok || told[of.route] {
			t.Errorf("%s tells of %s, which is no route, or one that is told of elsewhere", of.file, of.route)
			continue
		}
		told[of.route] = true
		before, rest, begins := strings.Cut(of.text, routeBegins)
		got, after, ends := strings.Cut(rest, routeEnds)
		if !begins || !ends {
			t.Errorf("%s: the section of %s has no marks %q and %q", of.file, of.route, routeBegins, routeEnds)
			continue
		}
		if got == lines {
			continue
		}
		if !*update {
			t.Errorf("%s: the lines of %s are not what the server and the examples tell; make golden writes them anew", of.file, of.route)
			continue
		}
		raw, err := os.ReadFile(of.file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw[:of.begin]) + before + routeBegins + lines + routeEnds + after + string(raw[of.end:])
		if err := os.WriteFile(of.file, []byte(text), 0o644); err != nil { //nolint:gosec // for everybody to read
			t.Fatal(err)
		}
	}
	for route := range want {
		if !told[route] {
			t.Errorf("no page of docs/reference/http describes %s: add to the page of its resource a heading, a sentence, and two marks\n"+
				"## %s\n\nWhat it does.\n\n<!-- route: written by make golden -->\n<!-- end of route -->", route, route)
		}
	}
	golden(t, reference+"objects.md", s.objects())
	raw, err := os.ReadFile(reference + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), indexBegins)
	_, after, ends := strings.Cut(rest, indexEnds)
	if !begins || !ends {
		t.Fatalf("the index has no marks %q and %q", indexBegins, indexEnds)
	}
	golden(t, reference+"README.md", before+indexBegins+indexOf(sections)+indexEnds+after)
}

// inBrackets matches the names of SQL functions behind the sentence of a route.
var inBrackets = regexp.MustCompile(`(?s)\s\([^()]*\x60ojs\.[^()]*\)`)

// indexOf returns the list of all routes, with the sentence below the heading of each.
func indexOf(sections []section) string {
	slices.SortFunc(sections, func(a, b section) int {
		_, pathA, _ := strings.Cut(a.route, " ")
		_, pathB, _ := strings.Cut(b.route, " ")
		return cmp.Or(strings.Compare(pathA, pathB), strings.Compare(a.route, b.route))
	})
	var out strings.Builder
	out.WriteString("\n| route | what it does |\n|---|---|\n")
	for _, of := range sections {
		_, about, _ := strings.Cut(of.text, "\n\n")
		about, _, _ = strings.Cut(about, "\n\n")
		about, _, _ = strings.Cut(strings.Join(strings.Fields(inBrackets.ReplaceAllString(about, "")), " ")+" ", ". ")
		anchor := strings.ReplaceAll(noMark.ReplaceAllString(strings.ToLower(of.route), ""), " ", "-")
		fmt.Fprintf(&out, "| [`%s`](%s#%s) | %s |\n", of.route, filepath.Base(of.file), anchor, about)
	}
	return out.String() + "\n"
}

// golden compares a file with what it has to be, or writes it.
func golden(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil { //nolint:gosec // for everybody to read
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is not what the server and the examples tell; make golden writes it anew (%v)", file, err)
	}
}

// The page that errors lead to has a heading for each code.
func TestErrorsLeadToTheirHeadings(t *testing.T) {
	t.Parallel()
	a := start(t)
	page, err := os.ReadFile(reference + "errors.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^## `([A-Za-z_]+)`$").FindAllStringSubmatch(string(page), -1) {
		headings[m[1]] = true
	}
	for _, code := range pgtest.List[string](t, a.pool,
		"select distinct code from ojs.problem union all select 'internal_error'") {
		if !headings[code] {
			t.Errorf("the page has no heading `%s`", code)
		}
		delete(headings, code)
	}
	for code := range headings {
		t.Errorf("there is no error %s", code)
	}
	for _, row := range pgtest.List[string](t, a.pool, `
			select format('- Status %s, %sretryable; SQLSTATE %s.', http_status,
				case when not retryable then 'not ' end, sqlstate)
			from ojs.problem where sqlstate like 'OJ___'`) {
		if !strings.Contains(string(page), row+"\n") {
			t.Errorf("the page does not say %q", row)
		}
	}
	url := a.do(http.MethodGet, "/ojs/v1/jobs/x", "").want(404).text("error.docs_url")
	if want := "https://github.com/ojs-pg/ojs-pg/blob/main/docs/reference/http/errors.md#not_found"; url != want {
		t.Errorf("an error leads to %s, want %s", url, want)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noMark  = regexp.MustCompile(`[^a-z0-9_ -]`)
)

// Links of the reference lead to files and headings that exist.
func TestLinksOfTheReference(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(reference + "*.md")
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			links++
			if strings.HasPrefix(m[1], "https:") {
				continue
			}
			to := file
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(file), m[1])
			}
			page, err := os.ReadFile(to)
			if err != nil {
				t.Errorf("%s has a link to %s: %v", file, m[1], err)
			} else if m[2] != "" && !hasHeading(string(page), m[2]) {
				t.Errorf("%s has a link to %s, which has no heading %s", file, to, m[2])
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
}

// hasHeading reports whether a page has a heading with an anchor, as GitHub names it.
func hasHeading(page, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		if strings.ReplaceAll(noMark.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
