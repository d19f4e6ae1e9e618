package httpapi

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// paths returns the paths of the server, with their methods.
func (a *api) paths() map[string][]string {
	paths := map[string][]string{}
	for _, r := range a.srv.handler.(*echo.Echo).Routes() {
		if r.Method != http.MethodHead && !strings.HasPrefix(r.Method, "echo") {
			paths[r.Path] = append(paths[r.Path], r.Method)
		}
	}
	return paths
}

// route returns the route with a method and path.
func (a *api) route(method, path string) *route {
	c := a.srv.handler.(*echo.Echo).NewContext(&http.Request{Method: method}, nil)
	c.SetPath(path)
	return a.srv.routeOf(c)
}

func TestNamesInPathsMayBeEscaped(t *testing.T) {
	t.Parallel()
	a := start(t)
	escaped := func(name string) string {
		out := ""
		for i := range len(name) {
			out += fmt.Sprintf("%%%02x", name[i])
		}
		return out
	}
	// What differs between two answers to one request.
	moment := regexp.MustCompile(`"(request_id|as_of|computed_at|updated_at|deregistered_at|since|until)":"[^"]*"`)
	asked := 0
	for path, methods := range a.paths() {
		before, after, ok := strings.Cut(path, "/:")
		if !ok {
			continue
		}
		_, after, _ = strings.Cut(after, "/")
		if after != "" {
			after = "/" + after
		}
		name := "a+b:c-d e%20f"
		switch {
		case strings.HasSuffix(before, "/jobs"), strings.HasSuffix(before, "/dead-letter"):
			name = someID
		case strings.HasSuffix(before, "/tenants"):
			name = "acme:eu"
		case strings.HasSuffix(before, "/queues"), strings.Contains(before, "/cron"):
			name = "a-b"
		}
		for _, method := range methods {
			asked++
			body := ""
			if method == http.MethodPut || method == http.MethodPatch {
				body = "{}"
			}
			if strings.HasSuffix(before, "/tenants") {
				a.do("PUT", "/ojs/v1/admin/tenants/acme:eu", "{}") // it may have been deleted by now
			}
			plain := a.do(method, before+"/"+strings.NewReplacer("%", "%25", " ", "%20").Replace(name)+after, body)
			other := a.do(method, before+"/"+escaped(name)+after, body)
			x, y := moment.ReplaceAllString(plain.body, ""), moment.ReplaceAllString(other.body, "")
			x = strings.Replace(x, `"created":true,`, "", 1) // the first pause of a queue
			if plain.status != other.status || x != y {
				t.Errorf("%s %s: %d %s; escaped: %d %s", method, path, plain.status, plain.body, other.status, other.body)
			}
			for _, bad := range []string{"%00", "a%00b", "%ff", "%e2%82", "%2f", "%2e%2e", "%25", "%2500", "%0a"} {
				if r := a.do(method, before+"/"+bad+after, body); r.status < 400 || r.status > 499 {
					t.Errorf("%s %s of %s: %d %s", method, path, bad, r.status, r.body)
				}
			}
		}
	}
	if asked < 40 {
		t.Errorf("only %d routes have a name", asked)
	}
}

func TestEscapedNamesAreRead(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/workers/register", `{"worker_id":"a/b"}`).want(200)
	a.do("GET", "/ojs/v1/admin/workers/a%2Fb", "").want(200).is(map[string]any{"id": "a/b"})
	a.do("POST", "/ojs/v1/admin/workers/a%2Fb/quiet", "").want(200).is(map[string]any{"directive": "quiet"})
	a.do("POST", "/ojs/v1/workers/register", `{"worker_id":"50%25 + x"}`).want(200)
	a.do("GET", "/ojs/v1/admin/workers/50%2525%20+%20x", "").want(200).is(map[string]any{"id": "50%25 + x"})
	a.do("GET", "/ojs/v1/admin/workers/50%2525%20%2B%20x", "").want(200).is(map[string]any{"id": "50%25 + x"})
	a.do("PUT", "/ojs/v1/admin/tenants/acme%3Aeu", `{"weight":3}`).want(201).is(map[string]any{"id": "acme:eu"})
	a.do("GET", "/ojs/v1/admin/tenants/acme:eu", "").want(200).is(map[string]any{"weight": 3})
	a.do("GET", "/ojs/v1/admin/tenants/acme%3Aeu/stats", "").want(200).is(map[string]any{"tenant_id": "acme:eu"})
}

// secondName gives routes of two names, which TestRoutesOfTwoNames compares, the one by which the documentation tells of them.
var secondName = strings.NewReplacer("/crons", "/cron", "/admin/dead-letter", "/dead-letter")

func TestRoutesOfTwoNames(t *testing.T) {
	t.Parallel()
	a := start(t)
	paths := a.paths()
	for one, other := range map[string]string{"/ojs/v1/cron": "/ojs/v1/crons", "/ojs/v1/dead-letter": "/ojs/v1/admin/dead-letter"} {
		for path, methods := range paths {
			if rest, ok := strings.CutPrefix(path, one); ok && (rest == "" || rest[0] == '/') {
				slices.Sort(methods)
				twins := slices.Sorted(slices.Values(paths[other+rest]))
				if !slices.Equal(methods, twins) {
					t.Errorf("%s has %s, %s has %s", path, methods, other+rest, twins)
				}
			}
		}
	}
	a.do("POST", "/ojs/v1/crons", `{"name":"c","cron":"@yearly","type":"a"}`).want(201)
	a.do("POST", "/ojs/v1/crons/c/trigger", "").want(201)
	a.do("GET", "/ojs/v1/crons/c/history", "").want(200).is(map[string]any{"pagination.total": 1})
	a.do("POST", "/ojs/v1/crons/c/pause", "").want(200).is(map[string]any{"cron.enabled": false})
	a.do("POST", "/ojs/v1/admin/dead-letter/purge", `{"confirm":true}`).want(200).is(map[string]any{"deleted": 0})
}
