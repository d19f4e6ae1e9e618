package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Failure is one expectation that did not hold.
type Failure struct {
	Step string
	At   string // what was looked at: a path, "status", "header X", …
	Got  string
	Want string
}

func (f Failure) String() string {
	return fmt.Sprintf("%s: %s: got %s, want %s", f.Step, f.At, f.Got, f.Want)
}

// response is an answer of the server, as assertions, templates and captures see it.
type response struct {
	status  int
	header  http.Header
	raw     []byte
	body    any
	notJSON error // why raw could not be read as JSON; nil for an empty body
	elapsed time.Duration
	wrapped bool // an expected field may stand inside "job"
}

func (r response) empty() bool { return len(strings.TrimSpace(string(r.raw))) == 0 }

// context returns the response in the form that templates read.
func (r response) context() map[string]any {
	headers := map[string]any{}
	for k := range r.header {
		headers[k] = r.header.Get(k)
	}
	return map[string]any{"response": map[string]any{"status": json.Number(fmt.Sprint(r.status)), "headers": headers, "body": r.body}}
}

func (r response) find(p path, wrapped bool) value {
	got := p.find(r.body)
	if got.present || !wrapped {
		return got
	}
	if obj, ok := r.body.(map[string]any); ok {
		return p.find(obj["job"])
	}
	return got
}

// report collects the failures of one step.
type report struct {
	step     string
	failures []Failure
}

func (r *report) add(at, got, want string) {
	r.failures = append(r.failures, Failure{r.step, at, got, want})
}

func (r *report) broken(at string, err error) {
	r.add(at, "a case that cannot be carried out: "+err.Error(), "an understandable one")
}

// check compares a response with the assertions, and reports what does not hold. The scope must already
// have the response.
func (a assertions) check(s *scope, resp response, r *report) {
	status := value{json.Number(fmt.Sprint(resp.status)), true}
	for _, want := range a.status {
		if m, err := compileIn(s, want); err != nil {
			r.broken("status", err)
		} else if !m.ok(status) {
			r.add("status", fmt.Sprintf("%d with body %s", resp.status, clip(string(resp.raw), 300)), m.want)
		}
	}
	if !a.statusAsked && resp.status >= 500 {
		r.add("status", fmt.Sprintf("%d with body %s", resp.status, clip(string(resp.raw), 300)), "no server error")
	}
	for _, name := range sortedKeys(a.headers) {
		values := resp.header.Values(name)
		if m, err := compileIn(s, a.headers[name]); err != nil {
			r.broken("header "+name, err)
		} else if got := (value{strings.Join(values, ", "), len(values) > 0}); !m.ok(got) {
			r.add("header "+name, got.String(), m.want)
		}
	}
	for _, body := range a.body {
		filled, err := s.fill(body, true)
		if err != nil {
			r.broken("body", err)
			continue
		}
		b, err := compileBody(filled.(map[string]any))
		if err != nil {
			r.broken("body", err)
			continue
		}
		b.check(resp, r)
	}
	a.checkRest(s, resp, r)
}

func (a assertions) checkRest(s *scope, resp response, r *report) {
	for _, text := range a.absent {
		filled, err := s.text(text)
		if err != nil {
			r.broken(text, err)
			continue
		}
		p, err := parsePath(filled)
		if err != nil {
			r.broken(text, err)
		} else if got := resp.find(p, resp.wrapped); got.present {
			r.add(filled, got.String(), "nothing")
		}
	}
	for _, text := range a.contains {
		if filled, err := s.text(text); err != nil {
			r.broken("body text", err)
		} else if !strings.Contains(string(resp.raw), filled) {
			r.add("body text", clip(string(resp.raw), 300), fmt.Sprintf("text containing %q", filled))
		}
	}
	if a.hasRaw {
		if m, err := compileIn(s, a.raw); err != nil {
			r.broken("body text", err)
		} else if !m.ok(value{string(resp.raw), true}) {
			r.add("body text", show(string(resp.raw)), m.want)
		}
	}
	if a.timing != nil {
		if m, err := compileTiming(a.timing); err != nil {
			r.broken("time", err)
		} else if ms := json.Number(fmt.Sprint(resp.elapsed.Milliseconds())); !m.ok(value{ms, true}) {
			r.add("time in ms", ms.String(), m.want)
		}
	}
}

// checkSteps checks the assertions that compare earlier responses with each other.
func (a assertions) checkSteps(s *scope, r *report) {
	if a.exclusive != nil {
		filled, err := s.fill(a.exclusive, false)
		if err != nil {
			r.broken("exclusive_claim", err)
		} else if c, err := parseClaim(filled); err != nil {
			r.broken("exclusive_claim", err)
		} else {
			c.check(r)
		}
	}
	for _, text := range sortedKeys(a.equality) {
		p, err := parsePath(text)
		if err != nil {
			r.broken("equality", err)
			continue
		}
		want, err := s.fill(a.equality[text], false)
		if err != nil {
			r.broken("equality", err)
			continue
		}
		if got := p.find(map[string]any{"steps": s.steps}); !got.present || !equal(got.v, want) {
			r.add(text, got.String(), "the same as "+show(want))
		}
	}
}

// claim checks that of several fetches exactly one got the job.
type claim struct {
	job      any
	fetches  []any
	oneHas   bool
	oneEmpty bool
}

func parseClaim(v any) (claim, error) {
	f, err := newFields(v)
	if err != nil {
		return claim{}, err
	}
	c := claim{job: f.take("job_id"), fetches: f.list("fetches")}
	for key, into := range map[string]*bool{"exactly_one_has_job": &c.oneHas, "exactly_one_empty": &c.oneEmpty} {
		if v := f.take(key); v != nil {
			b, ok := v.(bool)
			if !ok {
				f.wrong(key, "true or false", v)
			}
			*into = b
		}
	}
	if len(c.fetches) < 2 || c.job == nil || !c.oneHas && !c.oneEmpty {
		f.fail(errors.New("needs job_id, two fetches or more, and what to expect of them"))
	}
	return c, f.done()
}

func (c claim) check(r *report) {
	has, empty := 0, 0
	for i, v := range c.fetches {
		jobs, ok := v.([]any)
		if !ok {
			r.add(fmt.Sprintf("exclusive_claim: fetch %d", i+1), show(v), "an array of jobs")
			return
		}
		if len(jobs) == 0 {
			empty++
		}
		for _, j := range jobs {
			if id := (path{{key: "id"}}).find(j); id.present && equal(id.v, c.job) {
				has++
			}
		}
	}
	if c.oneHas && has != 1 {
		r.add("exclusive_claim", fmt.Sprintf("the job %d times", has), "exactly once")
	}
	if c.oneEmpty && empty != 1 {
		r.add("exclusive_claim", fmt.Sprintf("%d empty fetches", empty), "exactly one")
	}
}

func compileIn(s *scope, m any) (matcher, error) {
	filled, err := s.fill(m, true)
	if err != nil {
		return matcher{}, err
	}
	return compile(filled)
}

func compileTiming(m map[string]any) (matcher, error) {
	ops := map[string]any{}
	var about string
	for k, v := range m {
		switch k {
		case "less_than":
			ops["$lt"] = v
		case "greater_than":
			ops["$gt"] = v
		case "approximate":
			about = "~" + plain(v)
		default:
			return matcher{}, fmt.Errorf("unknown key %q", k)
		}
	}
	both := []matcher{}
	for _, part := range []any{ops, about} {
		if about, ok := part.(string); ok && about == "" || !ok && len(ops) == 0 {
			continue
		}
		m, err := compile(part)
		if err != nil {
			return matcher{}, err
		}
		both = append(both, m)
	}
	wants := []string{}
	for _, m := range both {
		wants = append(wants, m.want)
	}
	return matcher{strings.Join(wants, " and "), func(v value) bool {
		return !slices.ContainsFunc(both, func(m matcher) bool { return !m.ok(v) })
	}}, nil
}

// bodyCheck holds paths and matchers, all of which must hold.
type bodyCheck struct {
	at    []pathCheck
	anyOf [][]bodyCheck // from "$or": of each list one must hold
	empty bool          // from "$empty"
}

type pathCheck struct {
	text string
	path path
	m    matcher
}

func compileBody(m map[string]any) (bodyCheck, error) {
	var b bodyCheck
	for _, key := range sortedKeys(m) {
		want := m[key]
		switch {
		case key == "$or":
			list, ok := want.([]any)
			if !ok || len(list) == 0 {
				return b, errors.New("$or wants an array of alternatives")
			}
			var alternatives []bodyCheck
			for _, e := range list {
				obj, ok := e.(map[string]any)
				if !ok || len(obj) == 0 {
					return b, errors.New("an alternative of $or is an object of paths")
				}
				sub, err := compileBody(obj)
				if err != nil {
					return b, err
				}
				alternatives = append(alternatives, sub)
			}
			b.anyOf = append(b.anyOf, alternatives)
		case key == "$empty":
			if want != true {
				return b, errors.New("$empty wants true")
			}
			b.empty = true
		case strings.HasPrefix(key, "$") && key != "$" && key[1] != '.' && key[1] != '[':
			return b, fmt.Errorf("unknown operator %q", key)
		default:
			checks, err := compilePath(key, want)
			if err != nil {
				return b, fmt.Errorf("%s: %w", key, err)
			}
			b.at = append(b.at, checks...)
		}
	}
	return b, nil
}

// compilePath returns one check, or one for each expected key of a "meta", which may have other keys.
func compilePath(text string, want any) ([]pathCheck, error) {
	p, err := parsePath(text)
	if err != nil {
		return nil, err
	}
	obj, isObject := want.(map[string]any)
	open := isObject && len(p) > 0 && p[len(p)-1].key == "meta" && !slices.ContainsFunc(slices.Collect(maps.Keys(obj)), isOperator)
	if !open {
		m, err := compile(want)
		return []pathCheck{{text, p, m}}, err
	}
	isObj, _ := ofType("object")
	checks := []pathCheck{{text, p, isObj}}
	for _, key := range sortedKeys(obj) {
		below, err := parsePath("$." + key)
		if err != nil {
			return nil, err
		}
		m, err := compile(obj[key])
		if err != nil {
			return nil, err
		}
		checks = append(checks, pathCheck{text + "." + key, slices.Concat(p, below), m})
	}
	return checks, nil
}

func (b bodyCheck) check(resp response, r *report) {
	if b.empty && !resp.empty() && !(resp.notJSON == nil && resp.body == nil) {
		r.add("body", clip(string(resp.raw), 300), "nothing or null")
	}
	if resp.notJSON != nil && len(b.at) > 0 {
		r.add("body", fmt.Sprintf("%s (%v)", clip(string(resp.raw), 300), resp.notJSON), "JSON")
		return
	}
	for _, c := range b.at {
		if len(c.path) > 0 && resp.empty() {
			r.add(c.text, "an empty body", c.m.want)
			continue
		}
		if got := resp.find(c.path, resp.wrapped); !c.m.ok(got) {
			r.add(c.text, got.String(), c.m.want)
		}
	}
	for _, alternatives := range b.anyOf {
		var failed []string
		held := slices.ContainsFunc(alternatives, func(alt bodyCheck) bool {
			trial := report{step: r.step}
			alt.check(resp, &trial)
			for _, f := range trial.failures {
				failed = append(failed, fmt.Sprintf("%s: got %s, want %s", f.At, f.Got, f.Want))
			}
			return len(trial.failures) == 0
		})
		if !held {
			r.add("$or", "no alternative: "+strings.Join(failed, "; "), "one that holds")
		}
	}
}

// vet compiles everything in the step that is otherwise compiled when there is a response, so that a case
// with a mistake fails before it sends a request.
func (st *step) vet() error {
	blank := &scope{steps: map[string]any{}, captured: map[string]any{}, blank: true}
	var errs []error
	note := func(at string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
		}
	}
	for name, p := range st.captures {
		_, err := parsePath(p)
		note("capture "+name, err)
	}
	for _, a := range st.asserts {
		for _, want := range a.status {
			_, err := compileIn(blank, want)
			note("status", err)
		}
		for name, want := range a.headers {
			_, err := compileIn(blank, want)
			note("header "+name, err)
		}
		for _, body := range a.body {
			filled, err := blank.fill(body, true)
			note("body", err)
			if err == nil {
				_, err = compileBody(filled.(map[string]any))
				note("body", err)
			}
		}
		if a.hasRaw {
			_, err := compileIn(blank, a.raw)
			note("body_raw", err)
		}
		for _, text := range a.absent {
			_, err := parsePath(text)
			note("body_absent", err)
		}
		if a.timing != nil {
			_, err := compileTiming(a.timing)
			note("timing_ms", err)
		}
		if a.exclusive != nil {
			_, err := parseClaim(a.exclusive)
			note("exclusive_claim", err)
		}
		for text := range a.equality {
			_, err := parsePath(text)
			note("equality", err)
		}
	}
	return errors.Join(errs...)
}

func isOperator(key string) bool { return strings.HasPrefix(key, "$") || key == "range" }
