package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Case is one file: a name, and steps that run in order against a server that was just reset.
type Case struct {
	Folder string // first directory below the suites' root
	ID     string // as the file says; two files may carry the same
	Name   string
	File   string

	steps    []step // setup and steps
	teardown []step // run whatever happened before
	unread   error  // why the file could not be understood; such a case fails
}

type step struct {
	id       string
	action   string // an HTTP method, WAIT or ASSERT
	path     string
	headers  map[string]string
	body     any
	hasBody  bool
	raw      bool // body is a string to be sent as it stands
	delay    time.Duration
	repeat   int
	parallel string // id of a step that runs at the same moment
	abstract bool   // push, get, fetch, ack: responses may wrap the job
	captures map[string]string
	asserts  []assertions
}

// Sleeps returns the sum of the pauses in the case.
func (c Case) Sleeps() (sum time.Duration) {
	for _, s := range slices.Concat(c.steps, c.teardown) {
		sum += s.delay
	}
	return sum
}

// assertions holds the expected values of a step as they stand in the file. Templates in them are
// resolved when the step has run.
type assertions struct {
	status      []any // any of several matchers; several lists must all hold
	body        []map[string]any
	headers     map[string]any
	absent      []string
	contains    []string
	raw         any
	hasRaw      bool
	timing      map[string]any
	exclusive   map[string]any
	equality    map[string]any
	statusAsked bool
}

// descriptiveKeys are keys whose values are prose, which a program cannot check.
var descriptiveKeys = map[string][]string{
	"case":      {"level", "category", "description", "spec_ref", "tags", "preconditions"},
	"step":      {"intent", "description"},
	"assertion": {"body_comment", "headers_comment"},
}

// Load reads all cases below root, in the order of their paths. A case that cannot be read is among them,
// so that it counts as failed.
func Load(root string) ([]Case, error) {
	var cases []Case
	err := filepath.WalkDir(root, func(file string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".json" {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		c, err := Parse(data)
		if err != nil {
			base := strings.TrimSuffix(filepath.Base(file), ".json")
			c = Case{ID: base, Name: base, unread: err}
		}
		c.Folder = strings.Split(filepath.ToSlash(rel), "/")[0]
		c.File = file
		cases = append(cases, c)
		return nil
	})
	return cases, err
}

// Parse reads one case. It fails if the case holds anything that this package does not know.
func Parse(data []byte) (Case, error) {
	v, err := decode(data)
	if err != nil {
		return Case{}, err
	}
	obj, err := newFields(v)
	if err != nil {
		return Case{}, err
	}
	obj.skip("case")
	var c Case
	c.ID = obj.str("test_id")
	c.Name = obj.str("name")
	setup := obj.list("setup")
	main := obj.list("steps")
	after := obj.list("teardown")
	if err := obj.done(); err != nil {
		return Case{}, err
	}
	if c.ID == "" || len(main) == 0 {
		return Case{}, errors.New("a case needs test_id and steps")
	}
	ids := map[string]bool{}
	for i, v := range slices.Concat(setup, main, after) {
		s, err := parseStep(v, i)
		if err != nil {
			return Case{}, fmt.Errorf("step %d (%s): %w", i+1, s.id, err)
		}
		if ids[s.id] {
			return Case{}, fmt.Errorf("two steps have the id %q", s.id)
		}
		ids[s.id] = true
		if i < len(setup)+len(main) {
			c.steps = append(c.steps, s)
		} else {
			c.teardown = append(c.teardown, s)
		}
	}
	for _, steps := range [][]step{c.steps, c.teardown} {
		if _, err := inGroups(steps); err != nil {
			return Case{}, err
		}
	}
	return c, nil
}

// Expect adds assertions to a step, or to every step if stepID is "*", for what a case says only in
// prose. It fails if there is no such step.
func (c *Case) Expect(stepID string, data []byte) error {
	v, err := decode(data)
	if err != nil {
		return err
	}
	a, err := parseAssertions(v)
	if err != nil {
		return err
	}
	found := false
	for i := range c.steps {
		if st := &c.steps[i]; st.id == stepID || stepID == "*" {
			found = true
			st.asserts = append(st.asserts, a)
			if err := st.vet(); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("no step has the id %q", stepID)
	}
	return nil
}

var methods = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions,
}

func parseStep(v any, i int) (step, error) {
	s := step{id: fmt.Sprintf("#%d", i+1)}
	f, err := newFields(v)
	if err != nil {
		return s, err
	}
	f.skip("step")
	if f.has("id") {
		s.id = f.str("id")
	}
	s.action = f.str("action")
	s.delay = f.millis("delay_ms") + f.millis("duration_ms")
	s.captures = map[string]string{}
	for _, key := range []string{"capture", "captures", "store"} {
		maps.Copy(s.captures, f.texts(key))
	}
	s.repeat = 1
	if f.has("repeat") {
		s.repeat = f.count("repeat")
	}
	s.parallel = f.str("parallel_with")
	for _, key := range []string{"assertions", "expect"} {
		if !f.has(key) {
			continue
		}
		a, err := parseAssertions(f.take(key))
		if err != nil {
			return s, fmt.Errorf("%s: %w", key, err)
		}
		s.asserts = append(s.asserts, a)
	}
	s.parseAction(f)
	if err := f.done(); err != nil {
		return s, err
	}
	return s, s.vet()
}

// parseAction reads the keys that belong to the step's action.
func (st *step) parseAction(f *fields) {
	switch {
	case st.action == "WAIT":
		if st.delay == 0 {
			f.fail(errors.New("WAIT without duration_ms"))
		}
		if len(st.asserts) > 0 || len(st.captures) > 0 {
			f.fail(errors.New("WAIT has no response to look at"))
		}
	case st.action == "ASSERT":
		if len(st.asserts) == 0 {
			f.fail(errors.New("ASSERT without assertions"))
		}
		for _, a := range st.asserts {
			if a.exclusive == nil && a.equality == nil || a.needsResponse() {
				f.fail(errors.New("ASSERT has no response: only exclusive_claim and equality make sense"))
			}
		}
	case slices.Contains(methods, st.action):
		st.parseRequest(f)
	case slices.Contains([]string{"push", "get", "fetch", "ack"}, st.action):
		f.fail(st.bind(f.take("request")))
	default:
		f.fail(fmt.Errorf("unknown action %q", st.action))
	}
}

// parseRequest reads an HTTP request.
func (st *step) parseRequest(f *fields) {
	st.path = f.str("path")
	st.headers = f.texts("headers")
	st.hasBody = f.has("body")
	st.body = f.take("body")
	if f.has("raw_body") {
		if st.hasBody {
			f.fail(errors.New("body and raw_body exclude each other"))
		}
		st.hasBody, st.raw = true, true
		st.body = f.str("raw_body")
	}
	if !strings.HasPrefix(st.path, "/") {
		f.fail(fmt.Errorf("path %q does not begin with /", st.path))
	}
}

// bind makes the HTTP request of an abstract action, by the HTTP binding of OJS.
func (st *step) bind(request any) error {
	req, ok := request.(map[string]any)
	if !ok {
		return fmt.Errorf("action %q needs a request", st.action)
	}
	req = maps.Clone(req)
	const base = "/ojs/v1"
	take := func(key string) any {
		v := req[key]
		delete(req, key)
		return v
	}
	switch st.action {
	case "push":
		// The binding keeps the envelope's delivery options under "options"; all other keys are the job's own.
		if queue := take("queue"); queue != nil {
			req["options"] = map[string]any{"queue": queue}
		}
		st.action, st.path, st.body, st.hasBody = http.MethodPost, base+"/jobs", req, true
	case "get":
		id, ok := take("id").(string)
		if !ok || len(req) > 0 {
			return errors.New("get takes the id and nothing else")
		}
		st.action, st.path = http.MethodGet, base+"/jobs/"+id
	case "fetch":
		st.action, st.path, st.body, st.hasBody = http.MethodPost, base+"/workers/fetch", req, true
	case "ack":
		req["job_id"] = take("id")
		st.action, st.path, st.body, st.hasBody = http.MethodPost, base+"/workers/ack", req, true
	}
	st.abstract = true
	return nil
}

func (a assertions) needsResponse() bool {
	return a.statusAsked || a.body != nil || a.headers != nil || a.absent != nil || a.contains != nil || a.hasRaw || a.timing != nil
}

func parseAssertions(v any) (assertions, error) {
	var a assertions
	f, err := newFields(v)
	if err != nil {
		return a, err
	}
	f.skip("assertion")
	for _, key := range []string{"status", "status_in", "status_one_of"} {
		if !f.has(key) {
			continue
		}
		a.statusAsked = true
		v := f.take(key)
		// A list of statuses means any of them, under each of the names of this key.
		list, isList := v.([]any)
		switch {
		case isList && len(list) > 0:
			a.status = append(a.status, map[string]any{"$in": list})
		case key != "status" || isList:
			f.fail(fmt.Errorf("%s needs a list of statuses", key))
		default:
			a.status = append(a.status, v)
		}
	}
	if f.has("body") {
		body, ok := f.take("body").(map[string]any)
		if !ok {
			f.fail(errors.New("body needs an object of paths"))
		}
		a.body = append(a.body, body)
	}
	// "body.a.b": x is the same as "body": {"$.a.b": x}.
	for _, key := range f.keys() {
		if p, ok := strings.CutPrefix(key, "body."); ok {
			a.body = append(a.body, map[string]any{"$." + p: f.take(key)})
		}
	}
	if f.has("headers") {
		a.headers = f.object("headers")
	}
	a.absent = f.strings("body_absent")
	a.contains = f.strings("body_contains")
	a.hasRaw = f.has("body_raw")
	a.raw = f.take("body_raw")
	if f.has("timing_ms") {
		a.timing = f.object("timing_ms")
	}
	if f.has("exclusive_claim") {
		a.exclusive = f.object("exclusive_claim")
	}
	if f.has("equality") {
		a.equality = f.object("equality")
	}
	return a, f.done()
}

// fields holds the keys of an object. At the end it tells which keys were not read: a case that says more
// than this package understands must not pass.
type fields struct {
	obj  map[string]any
	errs []error
}

func newFields(v any) (*fields, error) {
	obj, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("want an object, got %s", show(v))
	}
	return &fields{obj: maps.Clone(obj)}, nil
}

func (f *fields) has(key string) bool { _, ok := f.obj[key]; return ok }

func (f *fields) take(key string) any {
	v := f.obj[key]
	delete(f.obj, key)
	return v
}

func (f *fields) keys() []string { return sortedKeys(f.obj) }

func (f *fields) fail(err error) {
	if err != nil {
		f.errs = append(f.errs, err)
	}
}

func (f *fields) wrong(key, want string, got any) {
	f.fail(fmt.Errorf("%s needs %s, not %s", key, want, show(got)))
}

// skip drops the keys that hold prose. It refuses a value that is no text, such as an object, which would
// be an expectation.
func (f *fields) skip(kind string) {
	for _, key := range descriptiveKeys[kind] {
		switch v := f.take(key).(type) {
		case map[string]any:
			f.wrong(key, "text", v)
		case []any:
			if slices.ContainsFunc(v, func(e any) bool { _, ok := e.(string); return !ok }) {
				f.wrong(key, "text", v)
			}
		}
	}
}

func (f *fields) str(key string) string {
	if !f.has(key) {
		return ""
	}
	v := f.take(key)
	s, ok := v.(string)
	if !ok {
		f.wrong(key, "text", v)
	}
	return s
}

func (f *fields) list(key string) []any {
	if !f.has(key) {
		return nil
	}
	v := f.take(key)
	l, ok := v.([]any)
	if !ok {
		f.wrong(key, "an array", v)
	}
	return l
}

func (f *fields) strings(key string) []string {
	var out []string
	for _, v := range f.list(key) {
		s, ok := v.(string)
		if !ok {
			f.wrong(key, "texts", v)
		}
		out = append(out, s)
	}
	return out
}

func (f *fields) object(key string) map[string]any {
	v := f.take(key)
	m, ok := v.(map[string]any)
	if !ok {
		f.wrong(key, "an object", v)
	}
	return m
}

func (f *fields) texts(key string) map[string]string {
	out := map[string]string{}
	if !f.has(key) {
		return out
	}
	for k, v := range f.object(key) {
		s, ok := v.(string)
		if !ok {
			f.wrong(key+"."+k, "text", v)
		}
		out[k] = s
	}
	return out
}

func (f *fields) count(key string) int {
	v := f.take(key)
	n, ok := v.(json.Number)
	i, err := n.Int64()
	if !ok || err != nil || i < 1 {
		f.wrong(key, "a whole number above 0", v)
	}
	return int(i)
}

func (f *fields) millis(key string) time.Duration {
	if !f.has(key) {
		return 0
	}
	return time.Duration(f.count(key)) * time.Millisecond
}

func (f *fields) done() error {
	for _, key := range f.keys() {
		f.fail(fmt.Errorf("unknown key %q", key))
	}
	return errors.Join(f.errs...)
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
