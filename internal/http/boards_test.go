package httpapi

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// queries returns the queries of the alert rules and of the board, by name.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	rules, err := os.ReadFile("../../docs/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// A rule is "- alert: NAME", "expr: " and the query, in the same line or, after |-, in those below that are indented deeper.
	rule := regexp.MustCompile(`(?m)^      - alert: (\w+)\n        expr: (.*(?:\n {10,}.*)*)\n        (?:for|labels):`)
	for _, m := range rule.FindAllStringSubmatch(string(rules), -1) {
		found["alert "+m[1]] = strings.TrimPrefix(m[2], "|-")
	}
	if n := strings.Count(string(rules), "- alert: "); n != len(found) {
		t.Errorf("of %d alerts %d are understood", n, len(found))
	}
	for _, m := range regexp.MustCompile(`runbook: (\S+)`).FindAllStringSubmatch(string(rules), -1) {
		if _, err := os.Stat("../../" + m[1]); err != nil {
			t.Errorf("an alert names %v", err)
		}
	}

	text, err := os.ReadFile("../../docs/grafana/ojs-pg.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			found["panel "+p.Title+": "+target.LegendFormat] = target.Expr
			for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !strings.Contains(target.Expr, label[1]) {
					t.Errorf("the legend of %q names %s, which its query does not keep", p.Title, label[1])
				}
			}
		}
	}
	for _, v := range board.Templating.List {
		if of := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Query); of != nil {
			found["variable "+v.Name] = of[1] + "{" + of[2] + `=""}`
		}
	}
	return found
}

// Words of PromQL, and lists of labels in brackets after such words.
var (
	promQL  = strings.Fields("sum max min avg count topk by and or unless on ignoring rate increase histogram_quantile scalar absent")
	kept    = regexp.MustCompile(`\bby \(([\w, ]+)\)`)
	chosen  = regexp.MustCompile(`(\w+)\{([^}]*)\}`)
	matcher = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"`)
	window  = regexp.MustCompile(`\[[^\]]*\]`)
	word    = regexp.MustCompile(`[a-zA-Z_]\w*`)
)

// asks returns the metrics and labels in a query, and the words that are neither of these nor PromQL.
func asks(query string) (metrics, labels, unknown []string) {
	for _, m := range kept.FindAllStringSubmatch(query, -1) {
		labels = append(labels, word.FindAllString(m[1], -1)...)
	}
	for _, m := range chosen.FindAllStringSubmatch(query, -1) {
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1])
		}
	}
	rest := window.ReplaceAllString(kept.ReplaceAllString(chosen.ReplaceAllString(query, "$1"), "by"), "")
	for _, w := range word.FindAllString(rest, -1) {
		switch {
		case strings.HasPrefix(w, "ojs_"):
			metrics = append(metrics, w)
		case !slices.Contains(promQL, w):
			unknown = append(unknown, w)
		}
	}
	return metrics, labels, unknown
}

// Every metric and label in the alert rules and on the board is one that /metrics shows, and brackets are closed.
func TestAlertsAndBoardAskForWhatIsShown(t *testing.T) {
	t.Parallel()
	a := observed(t)
	pgtest.Exec(t, a.pool, `select ojs.configure_pool('p', '{"concurrency": 4}')`)
	pgtest.Exec(t, a.pool, "insert into ojs.notice (type, subject, data) values ('scheduling.queue_starved', 'mail', '{}')")
	a.work()
	pgtest.Exec(t, a.pool, "select ojs.tick()")
	shown := map[string]map[string]bool{}
	for series := range a.metrics() {
		name, labels, _ := strings.Cut(series, "{")
		if shown[name] == nil {
			shown[name] = map[string]bool{}
		}
		for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(labels, -1) {
			shown[name][label[1]] = true
		}
	}
	all := queries(t)
	if len(all) < 30 {
		t.Errorf("only %d queries were found", len(all))
	}
	asked := map[string]bool{}
	for what, query := range all {
		metrics, labels, unknown := asks(query)
		if len(metrics) == 0 || len(unknown) > 0 {
			t.Errorf("%s: %s asks for %q, and of %q nothing is known", what, query, metrics, unknown)
		}
		for _, bracket := range []string{"()", "{}", "[]"} {
			if strings.Count(query, bracket[:1]) != strings.Count(query, bracket[1:]) {
				t.Errorf("%s: brackets do not match in %s", what, query)
			}
		}
		for _, name := range metrics {
			asked[name] = true
			for _, label := range labels {
				if !shown[name][label] {
					t.Errorf("%s: there is no %s with a label %s", what, name, label)
				}
			}
			if shown[name] == nil {
				t.Errorf("%s: there is no %s", what, name)
			}
		}
	}
	for _, name := range []string{
		"ojs_tenant_queue_depth", "ojs_tenant_jobs_active", "ojs_tenant_jobs_enqueued_total", "ojs_tenant_jobs_processed_total",
		"ojs_tenant_jobs_failed_total", "ojs_tenant_fairness_share",
	} {
		if !asked[name] {
			t.Errorf("nobody asks for %s", name)
		}
	}
}
