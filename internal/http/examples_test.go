package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// example is a request in a document such as docs/http-examples.md, with the answer that is shown.
type example struct {
	section, about string // of the document
	method, target string
	headers        []string
	body           string
	status         int
	answer         string

	path    string   // the route's, with the parameters' names
	carried string   // the type of the answer
	queries []string // parameters of the query that the handler has looked at
}

func (x *example) String() string { return x.method + " " + x.target }

// A block has the lines of requests with the same answer, headers, an empty line, a body if there is one,
// and the answer.
var (
	exampleBlock = regexp.MustCompile("(?m)^(.+)\n\n```http\n((?:[A-Z]+ /.*\n)+)((?:[A-Z][A-Za-z-]+: .*\n)*)\n" +
		"(?:([{\\[](?s:.*?))\n\n)??([1-5][0-9]{2})\n((?s:.*?))```")
	madeTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)
)

// examples returns the examples of a document, in order.
func examples(t *testing.T, file string) (all []*example) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		all = append(all, examplesOf(t, section)...)
	}
	return all
}

func examplesOf(t *testing.T, section string) (all []*example) {
	t.Helper()
	title, _, _ := strings.Cut(section, "\n")
	blocks := exampleBlock.FindAllStringSubmatch(section, -1)
	if n := strings.Count(section, "```http\n"); n != len(blocks) {
		t.Fatalf("%s: of %d examples only %d can be read", title, n, len(blocks))
	}
	for _, m := range blocks {
		for line := range strings.Lines(m[2]) {
			x := &example{section: title, about: strings.TrimRight(m[1], ":."), body: m[4], answer: strings.TrimSpace(m[6])}
			x.method, x.target, _ = strings.Cut(strings.TrimSpace(line), " ")
			fmt.Sscan(m[5], &x.status) //nolint:errcheck // three digits
			for header := range strings.Lines(m[3]) {
				x.headers = append(x.headers, strings.TrimSpace(header))
			}
			all = append(all, x)
		}
	}
	return all
}

// stage is the server on which the examples are played. An id in the document stands for an id of the
// server: the first answer that shows it tells for which.
type stage struct {
	*api
	made    map[string]string
	schemas map[string]named // of docs/openapi.yaml
}

// noting is a request that records which query parameters its handler reads.
type noting struct {
	echo.Context
	x *example
}

func (n noting) QueryParam(name string) string {
	if !slices.Contains(n.x.queries, name) {
		n.x.queries = append(n.x.queries, name)
	}
	return n.Context.QueryParam(name)
}

// play sends the examples in order, and compares the answers.
func play(t *testing.T, all []*example) *stage {
	t.Helper()
	s := &stage{api: start(t), made: map[string]string{}}
	var now *example
	s.srv.handler.(*echo.Echo).Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { now.path = c.Path(); return next(noting{c, now}) }
	})
	at := time.Now() // as the database knows it; on a slow machine leases would end meanwhile
	for _, now = range all {
		if at = at.Add(100 * time.Millisecond); strings.HasPrefix(now.about, "A minute later") {
			at = at.Add(time.Minute)
		}
		s.db.SetNow(at)
		if strings.HasPrefix(now.about, "An hour later") {
			// Roll up what came, and close its hour.
			pgtest.Exec(t, s.pool, "select ojs.tick()")
			at = at.Add(time.Hour)
			s.db.SetNow(at)
			pgtest.Exec(t, s.pool, "select ojs.tick()")
		}
		r := s.do(now.method, s.real(now.target), s.real(now.body), now.headers...)
		now.carried = r.header.Get("Content-Type")
		if r.status != now.status {
			t.Errorf("%s answers %d, not %d: %s", now, r.status, now.status, r.body)
			continue
		}
		for _, wrong := range s.compare(now, r) {
			t.Errorf("%s: %s in %s", now, wrong, r.body)
		}
		for query := range strings.SplitSeq(now.target[strings.Index(now.target+"?", "?"):], "&") {
			if name, _, ok := strings.Cut(strings.TrimPrefix(query, "?"), "="); ok && !slices.Contains(now.queries, name) {
				t.Errorf("%s: nobody reads %s", now, name)
			}
		}
	}
	return s
}

// real returns a text with the ids of the server in place of those of the document.
func (s *stage) real(text string) string {
	return madeID.ReplaceAllStringFunc(text, func(id string) string {
		if there, ok := s.made[id]; ok {
			return there
		}
		return id
	})
}

// compare returns the differences between the answer that the document shows and the server's.
func (s *stage) compare(x *example, r *reply) (wrong []string) {
	if r.value == nil {
		for line := range strings.Lines(x.answer) {
			if !strings.Contains(r.body, strings.TrimSpace(line)) {
				wrong = append(wrong, "there is no "+line)
			}
		}
		return wrong
	}
	dec := json.NewDecoder(strings.NewReader(x.answer))
	dec.UseNumber()
	var want any
	if err := dec.Decode(&want); err != nil {
		return []string{fmt.Sprintf("the answer shown is no JSON: %v", err)}
	}
	return s.differences("the answer", want, r.value)
}

// differences returns the differences between a value that is shown and one that came. Objects may have
// more members than are shown; an id stands for one of the server, a time for any time, and a text that
// ends with three dots for any text that begins so.
func (s *stage) differences(at string, want, got any) (wrong []string) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(w)) {
			value, there := g[s.real(name)]
			if !ok || !there {
				wrong = append(wrong, at+"."+name+" is not there")
				continue
			}
			wrong = append(wrong, s.differences(at+"."+name, w[name], value)...)
		}
		return wrong
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return []string{fmt.Sprintf("%s has %d elements, not %d", at, len(g), len(w))}
		}
		for i := range w {
			wrong = append(wrong, s.differences(fmt.Sprintf("%s[%d]", at, i), w[i], g[i])...)
		}
		return wrong
	case string:
		if g, ok := got.(string); ok && s.stands(w, g) {
			return nil
		}
	}
	if fmt.Sprint(want) != fmt.Sprint(got) || (want == nil) != (got == nil) {
		return []string{fmt.Sprintf("%s is %v, not %v", at, got, want)}
	}
	return nil
}

// stands reports whether a text that is shown stands for the one that came.
func (s *stage) stands(shown, got string) bool {
	if begin, ok := strings.CutSuffix(shown, "..."); ok {
		return strings.HasPrefix(got, begin)
	}
	if madeTime.MatchString(shown) {
		return madeTime.MatchString(got)
	}
	ids, there := madeID.FindAllString(shown, -1), madeID.FindAllString(got, -1)
	if len(ids) != len(there) {
		return false
	}
	for i, id := range ids {
		if known, ok := s.made[id]; ok && known != there[i] {
			return false
		}
		s.made[id] = there[i]
		shown = strings.ReplaceAll(shown, id, there[i])
	}
	return shown == got
}
