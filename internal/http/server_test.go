package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// Every answer carries them, whatever it answers.
func TestHeaders(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, tc := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/ojs/v1/health", "", 200},
		{"GET", "/health", "", 200},
		{"GET", "/ready", "", 200},
		{"GET", "/ojs/v1/ready", "", 200},
		{"GET", "/ojs/manifest", "", 200},
		{"GET", "/ojs/v1/queues", "", 200},
		{"GET", "/ojs/v1/events", "", 200},
		{"GET", "/ojs/v1/admin/tenants", "", 200},
		{"POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, 201},
		{"POST", "/ojs/v1/workers/fetch", `{"queues":["none"]}`, 200},
		{"GET", "/", "", 404},
		{"GET", "/ojs/v1/nothing", "", 404},
		{"POST", "/ojs/v1/admin/reset", "", 404},
		{"GET", "/ojs/v1/jobs/", "", 404},
		{"PATCH", "/ojs/v1/jobs", `{}`, 405},
		{"GET", "/ojs/v1/workers/fetch", "", 405},
		{"DELETE", "/ojs/v1/queues/q/stats", "", 405},
		{"POST", "/ojs/v1/jobs", "", 400},
	} {
		r := a.do(tc.method, tc.path, tc.body).want(tc.status)
		wantHeaders(r)
		if tc.status >= 400 {
			wantErrorShape(r)
		}
		if tc.status == 405 && r.header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", tc.method, tc.path)
		}
	}
	if allow := a.do(
		"PUT", "/ojs/v1/jobs/x", "{}",
	).want(405).header.Get("Allow"); !strings.Contains(allow, "GET") || !strings.Contains(allow, "DELETE") {
		t.Errorf("Allow %q", allow)
	}

	head, err := http.Head(a.url + "/ojs/v1/health")
	if err != nil {
		t.Fatal(err)
	}
	head.Body.Close()
	if head.StatusCode != 200 || head.Header.Get("Content-Type") != jsonbody.ContentType {
		t.Errorf("HEAD answered %v", head)
	}
}

// A request id that can be echoed is.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	a := start(t)
	for id, echoed := range map[string]bool{
		"req_client-1": true, strings.Repeat("x", 128): true, "~!@#$%^&*()": true, strings.Repeat("x", 129): false, "with space": false,
		"": false, "ümlaut": false,
	} {
		r := a.do("GET", "/ojs/v1/jobs/x", "", "X-Request-Id: "+id).want(404)
		got := r.header.Get("X-Request-Id")
		if echoed != (got == id) {
			t.Errorf("request id %q was answered with %q", id, got)
		}
		if !echoed && (!strings.HasPrefix(got, "req_") || !jsonbody.IsUUID(got[4:]) || got[18] != '7') {
			t.Errorf("made the request id %q", got)
		}
		wantErrorShape(r)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	a := start(t)
	for version, status := range map[string]int{
		"": 200, "1": 200, "1.0": 200, "1.0.0": 200, "1.0.0-rc.1": 200, "1.1": 422, "2.0": 422, "0.9": 422, "latest": 422, "1.0, 2.0": 422,
	} {
		r := a.do("GET", "/ojs/manifest", "", "OJS-Version: "+version).want(status)
		if status == 422 {
			r.is(map[string]any{"error.code": "unsupported", "error.retryable": false})
		}
		wantHeaders(r)
	}
}

func TestMediaTypes(t *testing.T) {
	t.Parallel()
	a := start(t)
	for media, status := range map[string]int{
		"application/openjobspec+json": 201, "application/json": 201, "application/json; charset=utf-8": 201,
		"Application/OpenJobSpec+JSON;charset=UTF-8": 201, "": 201,
		"text/json": 400, "application/x-ndjson": 400, "application/json; charset=utf-16": 400, "json": 400, "*/*": 400,
	} {
		r := a.do("POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`, "Content-Type: "+media)
		if r.status != status {
			t.Errorf("content type %q: %d, want %d", media, r.status, status)
		}
	}
	// Whatever is asked for, this is what there is.
	wantHeaders(a.do("GET", "/ojs/manifest", "", "Accept: text/html").want(200))
}

func TestUnknownErrorsStayInside(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) {
		c.AllowReset = true
		c.Reset = func(context.Context) error { return errors.New("password=hunter2") }
	})
	r := a.do("POST", "/ojs/v1/admin/reset", "", "X-Request-Id: trace-me").want(500)
	r.is(map[string]any{"error.code": "internal_error", "error.retryable": false, "error.details": map[string]any{}})
	wantErrorShape(r)
	if strings.Contains(r.body, "hunter2") {
		t.Errorf("tells too much: %s", r.body)
	}
	if log := a.log.String(); !strings.Contains(log, "hunter2") || !strings.Contains(log, "trace-me") {
		t.Errorf("the log does not have it: %s", log)
	}

	// What a request is about stands in fields of their own.
	pgtest.Exec(t, a.pool, "alter function ojs.cancel(uuid, text) rename to cancel_away")
	pgtest.Exec(t, a.pool, "alter function ojs.pause(text, text, text, text) rename to pause_away")
	a.do("DELETE", "/ojs/v1/jobs/"+someID, "", "X-OJS-Tenant: acme").want(500)
	a.do("POST", "/ojs/v1/queues/mail/pause", "").want(500)
	for _, fields := range []string{" tenant=acme job=" + someID + " ", " queue=mail "} {
		if !strings.Contains(a.log.String(), fields) {
			t.Errorf("the log does not have%s: %s", fields, a.log)
		}
	}

	a.srv.handler.(*echo.Echo).GET("/panic", func(echo.Context) error { panic("at the disco") })
	wantErrorShape(a.do("GET", "/panic", "").want(500))
	if !strings.Contains(a.log.String(), "at the disco") {
		t.Error("the panic is not in the log")
	}
}

// What breaks down after the answer has begun reaches the client as an answer that is cut off, not as half of one in good order.
func TestHalfAnAnswerIsCutOff(t *testing.T) {
	t.Parallel()
	a := start(t)
	half := func(c echo.Context) {
		c.Response().WriteHeader(http.StatusOK)
		if err := errors.Join(writePart(c, []byte(`{"jobs":[{}`)), flush(c)); err != nil {
			t.Error(err)
		}
	}
	e := a.srv.handler.(*echo.Echo)
	e.GET("/panics", func(c echo.Context) error { half(c); panic("at the disco") })
	e.GET("/fails", func(c echo.Context) error { half(c); return errors.New("password=hunter2") })
	for path, told := range map[string]string{"/panics": "at the disco", "/fails": "hunter2"} {
		res, err := http.Get(a.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %q ends with %v", path, body, err)
		}
		if log := a.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, told) {
			t.Errorf("%s: the log does not have it: %s", path, log)
		}
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	called := false
	reset := func(context.Context) error { called = true; return nil }
	// Reset without the switch is as absent as the switch without Reset.
	a := start(t, func(c *Config) { c.Reset = reset })
	a.do("POST", "/ojs/v1/admin/reset", "").want(404)
	b := start(t, func(c *Config) { c.AllowReset = true })
	b.do("POST", "/ojs/v1/admin/reset", "").want(404)
	d := start(t, func(c *Config) { c.AllowReset, c.Reset = true, reset })
	d.do("POST", "/ojs/v1/admin/reset", "").want(200)
	if !called {
		t.Error("nothing was reset")
	}
}

// A route that overlooked the header would show and change what is other tenants'.
func TestMT53SPEveryRouteReadsTheTenantHeader(t *testing.T) {
	t.Parallel()
	a := start(t)
	for path, methods := range a.paths() {
		switch path {
		case "/ojs/manifest", "/health", "/ready", "/ojs/v1/health", "/ojs/v1/ready", "/metrics", "/ojs/v1/admin/observability/health":
			continue // nothing of any tenant
		}
		for _, method := range methods {
			r := a.do(method, strings.NewReplacer(":id", someID, ":name", "default").Replace(path), "", "X-OJS-Tenant: a b")
			if r.status != 400 || r.text("error.details.field") != "X-OJS-Tenant" {
				t.Errorf("%s %s answers %d: %s", method, path, r.status, r.body)
			}
		}
	}
}

// A query of which a part cannot be read is refused: half a filter would let too much pass.
func TestQueriesAreRead(t *testing.T) {
	t.Parallel()
	a := start(t)
	id := a.bury("mail", "Timeout")
	for _, query := range []string{"queue=%zz", "limit=1;offset=3", "%zz=1", "queue=other;x"} {
		a.do("GET", "/ojs/v1/dead-letter?"+query, "").want(400).is(map[string]any{
			"error.code": "invalid_request", "error.details.field": "query",
		})
		a.do("DELETE", "/ojs/v1/dead-letter?"+query, `{"confirm":true}`).want(400)
	}
	a.do("GET", "/ojs/v1/dead-letter/"+id, "").want(200)
}

func TestManifestAndHealth(t *testing.T) {
	t.Parallel()
	a := start(t, func(c *Config) { c.Version = "1.2.3" })
	m := a.do("GET", "/ojs/manifest", "").want(200)
	m.is(map[string]any{
		"specversion": "1.0", "ojs_version": "1.0", "implementation.name": "ojs-pg", "implementation.version": "1.2.3",
		"implementation.language": "go",
		"conformance_level":       2, "protocols": []any{"http"}, "backend": "postgres", "extensions.0": "urn:ojs:ext:admin-api",
		"extensions.1":               "urn:ojs:ext:dead-letter",
		"extensions.2":               "urn:ojs:ext:fair-scheduling",
		"capabilities.batch_enqueue": true,
		"capabilities.cron_jobs":     true, "capabilities.workflows": false,
	})
	for name, value := range m.get("capabilities").(map[string]any) {
		if _, ok := value.(bool); !ok {
			t.Errorf("capability %s is %v", name, value)
		}
	}
	h := a.do("GET", "/ojs/v1/health", "").want(200)
	h.is(map[string]any{
		"status": "ok", "version": "1.0", "backend.type": "postgres", "backend.status": "healthy",
	}).present("uptime_seconds", "backend.latency_ms")
}

// A terminal's prompt stands on a line of its own behind every answer, whichever way it is written.
func TestAnswersEndWithANewline(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.push(`{"type":"a","args":["` + strings.Repeat("x", 900_000) + `"]}`)
	a.push(`{"type":"a","args":["` + strings.Repeat("x", 900_000) + `"]}`)
	for _, call := range [][3]string{
		{"GET", "/ojs/manifest", ""},
		{"GET", "/ojs/v1/health", ""},
		{"GET", "/ojs/v1/nothing", ""},
		{"GET", "/ojs/v1/jobs", ""},
		{"GET", "/ojs/v1/dead-letter", ""},
		{"GET", "/ojs/v1/dead-letter/stats", ""},
		{"POST", "/ojs/v1/jobs", `{"type":"a","args":[]}`},
		{"POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"count":2}`},
		{"POST", "/ojs/v1/workers/fetch", `{"queues":["none"]}`},
	} {
		r := a.do(call[0], call[1], call[2])
		if !strings.HasSuffix(r.body, "}\n") {
			t.Errorf("%s %s: %d, the answer ends with %q", call[0], call[1], r.status, r.body[max(0, len(r.body)-20):])
		}
		if n := r.header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(r.body)) {
			t.Errorf("%s %s: %d bytes are announced as %s", call[0], call[1], len(r.body), n)
		}
	}
}
