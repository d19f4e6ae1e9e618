package engine

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// caseOf wraps steps into a case.
func caseOf(t *testing.T, steps string) Case {
	t.Helper()
	c, err := Parse([]byte(`{"test_id": "T-1", "name": "t", "steps": ` + steps + `}`))
	if err != nil {
		t.Fatalf("%s: %v", steps, err)
	}
	return c
}

// canned answers with fixed responses, and for some paths with what was sent to them.
func canned(t *testing.T) Target {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(path string, status int, contentType, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})
	}
	answer("/job", 201, "application/openjobspec+json", `{"job":{
		"id":"j-1","n":3,"big":12345678901234567890123,"state":"available","gone":null,
		"meta":{"tenant_id":"t","ojs.codec.key_id":"k","ojs.codec.list":["a"]},"tags":["x"]}}`)
	answer("/array", 200, "application/json", `[{"id":"a"},{"id":"b"}]`)
	answer("/text", 200, "text/plain", `hello`)
	answer("/twice", 200, "application/json", `{"a":1,"a":2}`)
	answer("/empty", 204, "text/plain", ``)
	answer("/null", 200, "application/json", `null`)
	answer("/jobs-none", 200, "application/json", `{"jobs":[]}`)
	answer("/jobs-one", 200, "application/json", `{"jobs":[{"id":"j-1"}]}`)
	answer("/broken", 500, "application/json", `{"error":{}}`)
	answer("/ojs/v1/jobs/j-1", 200, "application/json", `{"job":{"id":"j-1","type":"a.b","meta":{"x.y":1,"tenant_id":"_default"}}}`)
	answer("/ojs/v1/workers/ack", 200, "application/json", `{"state":"completed"}`)
	mux.HandleFunc("/ojs/v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(fmt.Appendf(nil, `{"job":{"id":"j-1","sent":%s}}`, body))
	})
	// echo returns the request itself as the response's fields.
	mux.HandleFunc("/echo/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if len(body) == 0 {
			body = []byte("null")
		}
		raw, _ := encode(string(body))
		_, _ = w.Write(fmt.Appendf(nil, `{"method":%q,"path":%q,"type":%q,"x":%q,"body":%s,"raw":%s}`,
			r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("X-Test"), orNull(body), raw))
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return Target{URL: srv.URL, Client: srv.Client()}
}

func orNull(body []byte) []byte {
	if _, err := decode(body); err != nil {
		return []byte("null")
	}
	return body
}

// stepCase is a case of its own: steps, and either nothing, when they hold, or what the failure says.
type stepCase struct{ name, steps, failure string }

// get is a case of one GET.
func get(path, assertions string) string {
	return `[{"action":"GET","path":"` + path + `","assertions":` + assertions + `}]`
}

// claimed gets lists of jobs from two paths and asks who has the job.
func claimed(first, second, job, list, want string) string {
	return `[{"id":"a","action":"GET","path":"` + first + `"},{"id":"b","action":"GET","path":"` + second + `"},
		{"action":"ASSERT","assertions":{"exclusive_claim":{"job_id":"` + job + `",
			"fetches":["{{steps.a.response.body.` + list + `}}","{{steps.b.response.body.` + list + `}}"],` + want + `}}}]`
}

func holdOrFail(t *testing.T, cases []stepCase) {
	t.Helper()
	target := canned(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			failures := caseOf(t, c.steps).Run(t.Context(), target)
			switch {
			case c.failure == "" && len(failures) > 0:
				t.Errorf("does not hold: %v", failures)
			case c.failure != "" && len(failures) != 1:
				t.Errorf("want one failure saying %q, got %v", c.failure, failures)
			case c.failure != "" && !strings.Contains(failures[0].String(), c.failure):
				t.Errorf("want a failure saying %q, got %v", c.failure, failures)
			}
		})
	}
}

func TestStatusAssertions(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{"status as number", get("/job", `{"status":201}`), ""},
		{"status as number, other", get("/job", `{"status":200}`), "status: got 201"},
		{"status as range", get("/job", `{"status":"number:range(200,299)"}`), ""},
		{"status as range, outside", get("/job", `{"status":"number:range(400,422)"}`), "want a number from 400 to 422"},
		{"status as words", get("/job", `{"status":"one_of:200,201"}`), ""},
		{"status as words, other", get("/job", `{"status":"one_of:200,202"}`), "status"},
		{"status as array", get("/job", `{"status":[200,201]}`), ""},
		{"status as array, other", get("/job", `{"status":[200,409]}`), "status"},
		{"status as object", get("/job", `{"status":{"$in":[201]}}`), ""},
		{"status as object, other", get("/job", `{"status":{"$in":[200]}}`), "status"},
		{"status_one_of", get("/job", `{"status_one_of":[201,400]}`), ""},
		{"status_one_of, other", get("/job", `{"status_one_of":[403,404]}`), "status"},
		{"status_in, other", get("/job", `{"status_in":[403,404]}`), "status"},
		{"a server error nobody asked about", get("/broken", `{"body":{"$.error":{}}}`), "no server error"},
		{"a server error without any assertion", `[{"action":"GET","path":"/broken"}]`, "no server error"},
		{"a server error that was asked for", get("/broken", `{"status":500}`), ""},
	})
}

func TestBodyAssertions(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{"expect is another word for assertions", `[{"action":"GET","path":"/job","expect":{"status":200}}]`, "status"},
		{
			"expect beside assertions", `[{"action":"GET","path":"/job","assertions":{"status":201},"expect":{"body.job.n":4}}]`,
			"$.job.n: got 3, want 4",
		},
		{"body. keys", `[{"action":"GET","path":"/job","expect":{"body.job.n":3,"body.job.tags[0]":"x"}}]`, ""},
		{"body paths", get("/job", `{"body":{"$.job.n":3,"$.job.big":12345678901234567890123}}`), ""},
		{"body path, last digit", get("/job", `{"body":{"$.job.big":12345678901234567890124}}`), "$.job.big"},
		{"body path that leads nowhere", get("/job", `{"body":{"$.job.nope":"x"}}`), `$.job.nope: got nothing, want "x"`},
		{"dotted key in meta", get("/job", `{"body":{"$.job.meta.ojs.codec.key_id":"k","$.job.meta.ojs.codec.list[0]":"a"}}`), ""},
		{"dotted key in meta, other", get("/job", `{"body":{"$.job.meta.ojs.codec.key_id":"other"}}`), "key_id"},
		{"an open meta", get("/job", `{"body":{"$.job.meta":{"ojs.codec.key_id":"k"}}}`), ""},
		{
			"an open meta, other value", get("/job", `{"body":{"$.job.meta":{"ojs.codec.key_id":"q"}}}`),
			`$.job.meta.ojs.codec.key_id: got "k", want "q"`,
		},
		{"an open meta, missing key", get("/job", `{"body":{"$.job.meta":{"zip":1}}}`), "got nothing"},
		{"other objects are closed", get("/jobs-one", `{"body":{"$.jobs[0]":{}}}`), "want {}"},
		{"arrays as bodies", get("/array", `{"body":{"$":"array:length:2","$[1].id":"b"}}`), ""},
		{"arrays as bodies, other", get("/array", `{"body":{"$[1].id":"c"}}`), `$[1].id: got "b"`},
		{"text where JSON is wanted", get("/text", `{"body":{"$.id":{"$exists":false}}}`), "want JSON"},
		{"duplicate keys in a response", get("/twice", `{"body":{"$.a":"exists"}}`), "twice"},
		{"absence needs a body", get("/empty", `{"body":{"$.id":"absent"}}`), "an empty body"},
		{"null is no absence", get("/job", `{"body":{"$.job.gone":{"$exists":false}}}`), "got null"},
		{"null is no value", get("/job", `{"body":{"$.job.gone":{"$exists":true}}}`), "got null"},
		{"body_absent", get("/job", `{"body_absent":["$.job.error"]}`), ""},
		{"body_absent, present", get("/job", `{"body_absent":["$.job.id"]}`), "want nothing"},
		{"body_contains", get("/text", `{"body_contains":["ell"]}`), ""},
		{"body_contains, other", get("/text", `{"body_contains":["elk"]}`), "elk"},
		{"body_raw", get("/text", `{"body_raw":"hello"}`), ""},
		{"body_raw, other", get("/text", `{"body_raw":{"$match":"^ell"}}`), "body text"},
	})
}

func TestOrAndEmpty(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{"or: first holds", get("/jobs-none", `{"body":{"$or":[{"$.jobs":{"$size":0}},{"$empty":true}]}}`), ""},
		{"or: second holds", get("/empty", `{"body":{"$or":[{"$.jobs":{"$size":0}},{"$empty":true}]}}`), ""},
		{"or: none holds", get("/jobs-one", `{"body":{"$or":[{"$.jobs":{"$size":0}},{"$empty":true}]}}`), "no alternative"},
		{"or does not excuse the rest", get("/jobs-none", `{"body":{"$.n":1,"$or":[{"$.jobs":[]}]}}`), "$.n"},
		{"or inside or", get("/job", `{"body":{"$or":[{"$or":[{"$.job.n":1},{"$.job.n":2}]},{"$.job.n":4}]}}`), "no alternative"},
		{"empty: null counts", get("/null", `{"body":{"$empty":true}}`), ""},
		{"empty: an object does not", get("/jobs-none", `{"body":{"$empty":true}}`), "nothing or null"},
		{"empty at the root path", get("/empty", `{"body":{"$":{"$empty":true}}}`), ""},
	})
}

func TestHeaderAssertions(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{"header exists", get("/job", `{"headers":{"content-type":{"$exists":true}}}`), ""},
		{"header missing", get("/job", `{"headers":{"Retry-After":{"$exists":true}}}`), "header Retry-After: got nothing"},
		{"header equal", get("/job", `{"headers":{"Content-Type":"application/openjobspec+json"}}`), ""},
		{"header other", get("/job", `{"headers":{"Content-Type":"application/json"}}`), "header Content-Type"},
		{"header $eq", get("/text", `{"headers":{"Content-Type":{"$eq":"text/plain"}}}`), ""},
		{"header $match, other", get("/text", `{"headers":{"Content-Type":{"$match":"json"}}}`), "matching json"},
	})
}

func TestTemplatesAndCaptures(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{
			"template keeps its type", `[{"id":"a","action":"GET","path":"/job"},
				{"action":"POST","path":"/echo",
					"body":{"n":"{{steps.a.response.body.job.n}}","tags":"{{ steps.a.response.body.job.tags }}",
						"s":"n={{steps.a.response.body.job.n}}"},
					"assertions":{"body":{"$.body":{"n":3,"tags":["x"],"s":"n=3"}}}}]`,
			"",
		},
		{
			"template in path, header and matcher", `[{"id":"a","action":"GET","path":"/job"},
				{"action":"PUT","path":"/echo/{{steps.a.response.body.job.id}}","headers":{"X-Test":"{{steps.a.response.status}}"},"body":1,
					"assertions":{"body":{"$.path":"/echo/j-1","$.x":"201","$.method":"PUT","$.type":"application/openjobspec+json"}}}]`,
			"",
		},
		{
			"template in a filter", `[{"id":"a","action":"GET","path":"/job"},
				{"action":"GET","path":"/jobs-one",
					"assertions":{"body":{"$.jobs[?(@.id=='{{steps.a.response.body.job.id}}')]":"absent"}}}]`,
			"want nothing",
		},
		{
			"template that leads nowhere, in a body", `[{"id":"a","action":"GET","path":"/job"},
				{"action":"POST","path":"/echo","body":"{{steps.a.response.body.nope}}"}]`,
			"leads to nothing",
		},
		{"template that leads nowhere, in a path", `[{"action":"GET","path":"/echo/${job_id}"}]`, "leads to nothing"},
		{"template that leads nowhere, in a matcher", get("/job", `{"body":{"$.job.id":"{{later}}"}}`), "leads to nothing"},
		{
			"a template is never a matcher", `[{"action":"POST","path":"/echo","body":"any","capture":{"w":"$.body"}},
				{"action":"GET","path":"/job","assertions":{"body":{"$.job.id":"{{w}}"}}}]`,
			`got "j-1", want "any"`,
		},
		{
			"capture", `[{"action":"GET","path":"/job","capture":{"id":"$.job.id"}},
				{"action":"GET","path":"/echo/${id}","assertions":{"body":{"$.path":"/echo/j-1"}}}]`,
			"",
		},
		{
			"captures", `[{"action":"GET","path":"/job","captures":{"id":"$.job.id"}},
				{"action":"GET","path":"/echo/{{id}}","assertions":{"body":{"$.path":"/echo/j-2"}}}]`,
			`got "/echo/j-1"`,
		},
		{
			"capture looks into the job", `[{"action":"GET","path":"/job","store":{"id":"id"}},
				{"action":"GET","path":"/echo/$ref.id","assertions":{"body":{"$.path":"/echo/j-1"}}}]`,
			"",
		},
		{"capture of nothing", `[{"action":"GET","path":"/job","capture":{"id":"$.nope"}}]`, "capture id"},
		{"assertions do not look into the job", get("/job", `{"body":{"$.id":"j-1"}}`), "got nothing"},
	})
}

func TestWhatIsSent(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{"raw_body", `[{"action":"POST","path":"/echo","raw_body":"{ no json","assertions":{"body":{"$.raw":"{ no json"}}}]`, ""},
		{"body with markup", `[{"action":"POST","path":"/echo","body":{"a":"<&>"},"assertions":{"body":{"$.raw":"{\"a\":\"<&>\"}"}}}]`, ""},
		{
			"body of null", `[{"action":"POST","path":"/echo","body":null,
				"assertions":{"body":{"$.raw":"null","$.type":"string:nonempty"}}}]`,
			"",
		},
		{"no body", `[{"action":"POST","path":"/echo","assertions":{"body":{"$.type":""}}}]`, ""},
		{"PATCH", `[{"action":"PATCH","path":"/echo","body":{},"assertions":{"body":{"$.method":"PATCH"}}}]`, ""},
	})
}

func TestAbstractActions(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{
			"push", `[{"action":"push","request":{"type":"a.b","args":[1],"queue":"q","ext":true},
				"expect":{"body":{"sent":{"type":"a.b","args":[1],"options":{"queue":"q"},"ext":true}}}}]`,
			"",
		},
		{
			"push and get", `[{"action":"push","request":{"type":"a.b"},"store":{"id":"id"}},
				{"action":"get","request":{"id":"$ref.id"},"expect":{"status":200,"body":{"type":"a.b","meta":{"x.y":1}}}}]`,
			"",
		},
		{
			"push and get, other", `[{"action":"push","request":{"type":"a.b"},"store":{"id":"id"}},
				{"action":"get","request":{"id":"$ref.id"},"expect":{"body":{"meta":{"x.y":2}}}}]`,
			"meta.x.y",
		},
		{"ack", `[{"action":"ack","request":{"id":"j"},"expect":{"body":{"state":"discarded"}}}]`, `got "completed"`},
	})
}

func TestClaimsAndEquality(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{
			"exactly one has it",
			claimed("/jobs-one", "/jobs-none", "j-1", "jobs", `"exactly_one_has_job":true,"exactly_one_empty":true`), "",
		},
		{"both have it", claimed("/jobs-one", "/jobs-one", "j-1", "jobs", `"exactly_one_has_job":true`), "the job 2 times"},
		{"none has it", claimed("/jobs-none", "/jobs-none", "j-1", "jobs", `"exactly_one_has_job":true`), "the job 0 times"},
		{"both empty", claimed("/jobs-none", "/jobs-none", "j-1", "jobs", `"exactly_one_empty":true`), "2 empty fetches"},
		{"fetches that are none", claimed("/job", "/job", "j", "job", `"exactly_one_has_job":true`), "an array of jobs"},
		{
			"equal responses", `[{"id":"a","action":"GET","path":"/job"},
				{"id":"b","action":"GET","path":"/job"},
				{"action":"ASSERT","assertions":{"equality":{"$.steps.a.response.body":"{{steps.b.response.body}}"}}}]`,
			"",
		},
		{
			"unequal responses", `[{"id":"a","action":"GET","path":"/job"},
				{"id":"b","action":"GET","path":"/array"},
				{"action":"ASSERT","assertions":{"equality":{"$.steps.a.response.body":"{{steps.b.response.body}}"}}}]`,
			"the same as",
		},
		{
			"equality with nothing", `[{"id":"a","action":"GET","path":"/job"},
				{"action":"ASSERT","assertions":{"equality":{"$.steps.z.response.body":"{{steps.a.response.body}}"}}}]`,
			"got nothing",
		},
	})
}

func TestTimeAndOrder(t *testing.T) {
	t.Parallel()
	holdOrFail(t, []stepCase{
		{"time", get("/job", `{"timing_ms":{"less_than":60000}}`), ""},
		{"time, too short", get("/job", `{"timing_ms":{"greater_than":60000}}`), "time in ms"},
		{"waiting", `[{"action":"WAIT","duration_ms":1},{"action":"GET","path":"/job","delay_ms":1}]`, ""},
		{
			"later steps do not run", `[{"action":"GET","path":"/job","assertions":{"status":1}},
				{"action":"GET","path":"/job","assertions":{"status":2}}]`,
			"want 1",
		},
		{"nobody answers", `[{"action":"GET","path":"/echo/%zz"}]`, "request"},
	})
}

func TestUnknownKeysAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ steps, why string }{
		{`[{"action":"GET","path":"/x","asserts":{}}]`, `"asserts"`},
		{`[{"action":"GET","path":"/x","assertions":{"stauts":200}}]`, `"stauts"`},
		{`[{"action":"GET","path":"/x","expect":{"Body":{}}}]`, `"Body"`},
		{`[{"action":"GET","path":"/x","assertions":{"body":{"$nor":[{}]}}}]`, `"$nor"`},
		{`[{"action":"GET","path":"/x","assertions":{"body":{"$or":[]}}}]`, "$or"},
		{`[{"action":"GET","path":"/x","assertions":{"body":{"$or":[{"$.a":"string:odd"}]}}}]`, "string:odd"},
		{`[{"action":"GET","path":"/x","assertions":{"body":{"$empty":false}}}]`, "$empty"},
		{`[{"action":"GET","path":"/x","assertions":{"body":{"$.a[x]":1}}}]`, "bracket"},
		{`[{"action":"GET","path":"/x","assertions":{"body":[1]}}]`, "body"},
		{`[{"action":"GET","path":"/x","assertions":{"status":"some:200"}}]`, ""},
		{`[{"action":"GET","path":"/x","assertions":{"status_in":200}}]`, "status_in"},
		{`[{"action":"GET","path":"/x","assertions":{"status":[]}}]`, "status"},
		{`[{"action":"GET","path":"/x","assertions":{"headers":{"A":{"$has":1}}}}]`, "$has"},
		{`[{"action":"GET","path":"/x","assertions":{"timing_ms":{"under":1}}}]`, "under"},
		{`[{"action":"GET","path":"/x","assertions":{"body_absent":["$.["]}}]`, "path"},
		{`[{"action":"GET","path":"/x","description":{"must":"see"}}]`, "description"},
		{`[{"action":"GET","path":"/x","assertions":{"body_comment":{"$.a":1}}}]`, "body_comment"},
		{`[{"action":"GET","path":"x"}]`, "begin with /"},
		{`[{"action":"GET"}]`, "path"},
		{`[{"action":"frobnicate","path":"/x"}]`, "frobnicate"},
		{`[{"action":"GET","path":"/x","request":{}}]`, `"request"`},
		{`[{"action":"push","path":"/x","request":{}}]`, `"path"`},
		{`[{"action":"push"}]`, "request"},
		{`[{"action":"get","request":{"id":"x","more":1}}]`, "get takes"},
		{`[{"action":"POST","path":"/x","body":1,"raw_body":"1"}]`, "exclude"},
		{`[{"action":"POST","path":"/x","raw_body":1}]`, "raw_body"},
		{`[{"action":"GET","path":"/x","repeat":0}]`, "repeat"},
		{`[{"action":"GET","path":"/x","delay_ms":"soon"}]`, "delay_ms"},
		{`[{"action":"GET","path":"/x","headers":{"A":1}}]`, "headers.A"},
		{`[{"action":"GET","path":"/x","capture":{"a":"$.["}}]`, "capture a"},
		{`[{"action":"WAIT"}]`, "duration_ms"},
		{`[{"action":"WAIT","duration_ms":1,"assertions":{"status":200}}]`, "WAIT"},
		{`[{"action":"WAIT","duration_ms":1,"path":"/x"}]`, `"path"`},
		{`[{"action":"ASSERT"}]`, "ASSERT"},
		{`[{"action":"ASSERT","assertions":{"status":200}}]`, "ASSERT"},
		{`[{"action":"ASSERT","assertions":{"equality":{"$.a[":1}}}]`, "path"},
		{`[{"action":"ASSERT","assertions":{"exclusive_claim":{"job_id":"x","fetches":["a","b"],"exactly_two":true}}}]`, "exactly_two"},
		{`[{"action":"ASSERT","assertions":{"exclusive_claim":{"job_id":"x","fetches":["a"],"exactly_one_has_job":true}}}]`, "two fetches"},
		{`[{"id":"a","action":"GET","path":"/x"},{"id":"a","action":"GET","path":"/y"}]`, "two steps"},
		{`[{"id":"a","action":"GET","path":"/x","parallel_with":"b"}]`, "parallel"},
		{`[{"id":"a","action":"GET","path":"/x","parallel_with":"c"},
			{"id":"b","action":"GET","path":"/y"},
			{"id":"c","action":"GET","path":"/z"}]`, "parallel"},
		{`[]`, "steps"},
		{`[1]`, "object"},
	} {
		_, err := Parse([]byte(`{"test_id":"T","steps":` + c.steps + `}`))
		switch {
		case c.why == "" && err != nil:
			t.Errorf("%s: %v", c.steps, err)
		case c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)):
			t.Errorf("%s: want an error about %s, got %v", c.steps, c.why, err)
		}
	}
	for _, c := range []string{
		`{"test_id":"T","stages":[],"steps":[{"action":"GET","path":"/x"}]}`,
		`{"test_id":"T","preconditions":{"queue":"q"},"steps":[{"action":"GET","path":"/x"}]}`,
		`{"steps":[{"action":"GET","path":"/x"}]}`,
		`{"test_id":"T","steps":{"action":"GET","path":"/x"}}`,
		`{"test_id":"T","test_id":"T","steps":[{"action":"GET","path":"/x"}]}`,
		`[]`,
		`{`,
	} {
		if _, err := Parse([]byte(c)); err == nil {
			t.Errorf("%s was read", c)
		}
	}
}

func TestExpectAddsToAStep(t *testing.T) {
	t.Parallel()
	target := canned(t)
	c := caseOf(t, `[{"id":"a","action":"GET","path":"/job","assertions":{"status":201}}]`)
	if f := c.Run(t.Context(), target); len(f) > 0 {
		t.Fatal(f)
	}
	for _, bad := range []string{`{`, `{"bodies":{}}`, `{"body":{"$.a":"string:odd"}}`} {
		c := caseOf(t, `[{"id":"a","action":"GET","path":"/job"}]`)
		if err := c.Expect("a", []byte(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	if err := c.Expect("b", []byte(`{"status":201}`)); err == nil {
		t.Error("a step that is not there was taken")
	}
	if err := c.Expect("a", []byte(`{"body":{"$.job.n":4}}`)); err != nil {
		t.Fatal(err)
	}
	if f := c.Run(t.Context(), target); len(f) != 1 {
		t.Errorf("want the added assertion to fail alone, got %v", f)
	}
	c = caseOf(t, `[{"action":"GET","path":"/job"},{"action":"GET","path":"/array"}]`)
	if err := c.Expect("*", []byte(`{"status":201}`)); err != nil {
		t.Fatal(err)
	}
	if f := c.Run(t.Context(), target); len(f) != 1 || f[0].Step != "#2" {
		t.Errorf("want the second step to fail, got %v", f)
	}
}

// Two parallel steps must be under way together: the server answers neither before it has seen both.
func TestParallelStepsOverlap(t *testing.T) {
	t.Parallel()
	var both sync.WaitGroup
	both.Add(2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		both.Done()
		both.Wait()
		_, _ = w.Write(fmt.Appendf(nil, `{"path":%q}`, r.URL.Path))
	}))
	t.Cleanup(srv.Close)
	c := caseOf(t, `[
		{"id":"a","action":"GET","path":"/a","parallel_with":"b"},
		{"id":"b","action":"GET","path":"/b","parallel_with":"a"},
		{"action":"ASSERT","assertions":{"equality":{"$.steps.a.response.body.path":"/a","$.steps.b.response.body.path":"/b"}}}]`)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if f := c.Run(ctx, Target{srv.URL, srv.Client()}); len(f) > 0 {
		t.Error(f)
	}
}

// The assertions of a repeated step hold for every repetition, not for the last.
func TestRepeatedStepsAreEachJudged(t *testing.T) {
	t.Parallel()
	var calls int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		_, _ = w.Write(fmt.Appendf(nil, `{"n":%d}`, calls))
	}))
	t.Cleanup(srv.Close)
	c := caseOf(t, `[{"action":"GET","path":"/","repeat":3,"assertions":{"body":{"$.n":{"$ne":2}}}}]`)
	f := c.Run(t.Context(), Target{srv.URL, srv.Client()})
	if calls != 3 || len(f) != 1 {
		t.Errorf("%d calls, %v", calls, f)
	}
}

func TestTeardownRunsAfterAFailure(t *testing.T) {
	t.Parallel()
	var paths []string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths = append(paths, r.URL.Path) }))
	t.Cleanup(srv.Close)
	c, err := Parse([]byte(`{"test_id":"T","setup":[{"action":"GET","path":"/before"}],
		"steps":[{"action":"GET","path":"/main","assertions":{"status":201}},{"action":"GET","path":"/never"}],
		"teardown":[{"action":"GET","path":"/after"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	f := c.Run(t.Context(), Target{srv.URL, srv.Client()})
	if got := strings.Join(paths, " "); got != "/before /main /after" || len(f) != 1 {
		t.Errorf("requests %s, failures %v", got, f)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	status := http.StatusNoContent
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/ojs/v1/admin/reset" {
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(srv.Close)
	target := Target{srv.URL, srv.Client()}
	if err := target.Reset(t.Context()); err != nil {
		t.Error(err)
	}
	status = http.StatusNotFound
	if err := target.Reset(t.Context()); err == nil {
		t.Error("a server without the reset route was taken as reset")
	}
}

// A file that cannot be understood is a case that fails, not a case that is missing.
func TestUnreadableCasesCount(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "folder", "deeper")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"good.json":  `{"test_id":"T-9","name":"good","steps":[{"action":"GET","path":"/job"}]}`,
		"odd.json":   `{"test_id":"T-8","steps":[{"action":"GET","path":"/job","maybe":1}]}`,
		"README.md":  `not a case`,
		"torn.json":  `{"test_id"`,
		"empty.json": ``,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cases, err := Load(root)
	if err != nil || len(cases) != 4 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	target := canned(t)
	for _, c := range cases {
		failures := c.Run(t.Context(), target)
		if c.Folder != "folder" || (len(failures) == 0) != (c.ID == "T-9") {
			t.Errorf("%s in %s: %v", c.ID, c.Folder, failures)
		}
	}
}
