package httpapi

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/notify"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
	"github.com/ojs-pg/ojs-pg/internal/sched"
)

// observed starts a server with all collectors of metrics.
func observed(t *testing.T) *api {
	t.Helper()
	return start(t, func(c *Config) {
		listener := notify.New(c.DB, c.Logger)
		c.Metrics = append(listener.Metrics(), sched.New(c.DB, listener, c.Logger, 0).Metrics()...)
	})
}

var sample = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? (\S+)$`)

// metrics reads /metrics and returns the value of each series, by name and labels.
func (a *api) metrics() map[string]string {
	a.t.Helper()
	values := map[string]string{}
	for _, m := range sample.FindAllStringSubmatch(a.do("GET", "/metrics", "").want(200).body, -1) {
		values[fmt.Sprintf("%s{%s}", m[1], m[2])] = m[3]
	}
	return values
}

// shows checks the values of series; "" means that there is no such series.
func (a *api) shows(want map[string]string) {
	a.t.Helper()
	got := a.metrics()
	for _, series := range slices.Sorted(maps.Keys(want)) {
		if got[series] != want[series] {
			a.t.Errorf("%s is %q, want %q", series, got[series], want[series])
		}
	}
}

// work makes requests that run each kind of statement once.
func (a *api) work() {
	a.t.Helper()
	for range 3 {
		a.push(`{"type":"a","args":[],"options":{"queue":"mail"}}`)
	}
	var ids []string
	for range 2 {
		ids = append(ids, a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["mail"],"worker_id":"w"}`).want(200).text("jobs.0.id"))
	}
	a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+ids[0]+`"}`).want(200)
	a.do("POST", "/ojs/v1/workers/nack", `{"job_id":"`+ids[1]+`","error":{"code":"x","message":"x"}}`).want(200)
}

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	a := observed(t)
	a.work()
	// Workers in SQL count, too.
	pgtest.Exec(t, a.pool, "select ojs.enqueue('a', p_queue => 'mail')")
	pgtest.Exec(t, a.pool, "select ojs.fetch('{mail}', 1)")
	pgtest.Exec(t, a.pool, "select ojs._roll_up(), ojs._roll_up_pace()")
	a.do("GET", "/ojs/v1/jobs/"+someID, "").want(404)
	a.do("GET", "/ojs/v1/nothing/"+someID, "").want(404)
	a.do("BREW", "/ojs/v1/jobs", "").want(405)
	requests := func(method, route string, status int) string {
		return fmt.Sprintf(`ojs_http_request_duration_seconds_count{method="%s",route="%s",status="%d"}`, method, route, status)
	}
	a.shows(map[string]string{
		requests("POST", "/ojs/v1/jobs", 201):                                         "3",
		requests("POST", "/ojs/v1/workers/fetch", 200):                                "2",
		requests("GET", "/ojs/v1/jobs/:id", 404):                                      "1",
		requests("GET", "_other", 404):                                                "1",
		requests("_other", "/ojs/v1/jobs", 405):                                       "1",
		"ojs_http_requests_in_flight{}":                                               "1", // this one
		`ojs_statement_items_sum{statement="fetch_many"}`:                             "2",
		`ojs_statement_items_sum{statement="enqueue_rows"}`:                           "3",
		`ojs_statement_items_count{statement="ack_many"}`:                             "1",
		`ojs_statement_items_count{statement="settle"}`:                               "1",
		"ojs_decision_jobs_sum{}":                                                     "2",
		`ojs_scheduling_dispatch_total{pool="default",queue="mail"}`:                  "3",
		`ojs_scheduling_queue_wait_duration_count{queue="mail"}`:                      "3",
		`ojs_scheduling_queue_wait_duration_bucket{queue="mail",le="3600"}`:           "3",
		`ojs_tenant_queue_wait_duration_count{tenant_id="_default"}`:                  "3",
		`ojs_tenant_jobs_failed_total{queue="mail",tenant_id="_default"}`:             "0",
		`ojs_tenant_jobs_processed_total{queue="mail",tenant_id="_default"}`:          "1",
		`ojs_tenant_attempts_failed_total{queue="mail",tenant_id="_default"}`:         "1",
		"ojs_statistics_age_seconds{}":                                                "0",
		"ojs_queues_up{}":                                                             "1",
		`ojs_queue_depth{queue="mail"}`:                                               "1",
		`ojs_queue_active_jobs{queue="mail"}`:                                         "1",
		`ojs_scheduling_dispatch_ratio{queue="mail"}`:                                 "1",
		"ojs_fetches_waiting{}":                                                       "0",
		"ojs_on_duty{}":                                                               "0",
		"ojs_tick_lag_seconds{}":                                                      "0",
		"ojs_listener_connections{}":                                                  "0",
		`ojs_server_info{version="dev"}`:                                              "1",
		"ojs_database_connections_max{}":                                              fmt.Sprint(a.srv.db.Pool().Config().MaxConns),
		`ojs_scheduling_starvation_events{queue="mail"}`:                              "",
		`ojs_http_request_duration_seconds_count{method="GET",route="",status="404"}`: "",
	})
	if wait := a.metrics()[`ojs_queue_oldest_wait_seconds{queue="mail"}`]; wait == "" || wait == "0" {
		t.Errorf("the oldest job has waited for %q seconds", wait)
	}
}

// An answer is 200 without a database, too, with all that can be told without it.
func TestMetricsWithoutDatabase(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.work()
	a.srv.db.Cut()
	a.shows(map[string]string{
		"ojs_queues_up{}": "0", `ojs_queue_depth{queue="mail"}`: "", "ojs_decision_jobs_sum{}": "2",
		`ojs_scheduling_dispatch_total{pool="default",queue="mail"}`: "",
	})
}

func TestMetricsSpeakTheFormatThatIsAskedFor(t *testing.T) {
	t.Parallel()
	a := start(t)
	for accept, want := range map[string]string{
		"":                             "text/plain; version=0.0.4; charset=utf-8",
		"*/*":                          "text/plain; version=0.0.4; charset=utf-8",
		"text/plain;version=0.0.4":     "text/plain; version=0.0.4; charset=utf-8",
		"text/plain":                   "text/plain",
		"application/openmetrics-text": "application/openmetrics-text; version=0.0.1; charset=utf-8",
		"application/openmetrics-text; version=1.0.0, text/plain;q=0.5": "application/openmetrics-text; version=1.0.0; charset=utf-8",
	} {
		r := a.do("GET", "/metrics", "", "Accept: "+accept).want(200)
		// How names are escaped is of no interest: all of ours are plain.
		if got, _, _ := strings.Cut(r.header.Get("Content-Type"), "; escaping="); got != want {
			t.Errorf("who accepts %q gets %q, want %q", accept, got, want)
		}
		if open := strings.HasSuffix(r.body, "# EOF\n"); open != strings.HasPrefix(want, "application/") {
			t.Errorf("who accepts %q gets %d bytes that end with %q", accept, len(r.body), r.body[len(r.body)-20:])
		}
	}
}

// docs/operate/metrics.md lists each metric in a table, as | `name` | type | `label`, `label` | what it says |.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operate/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	quoted := regexp.MustCompile("`([a-z_]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| `(ojs_[a-z_]+)` \\| (\\w+) \\|([^|]*)\\|").FindAllStringSubmatch(string(text), -1) {
		labels := quoted.FindAllString(row[3], -1)
		slices.Sort(labels)
		documented[row[1]] = row[2] + " " + strings.ReplaceAll(strings.Join(labels, " "), "`", "")
	}

	a := observed(t)
	// What is shown of pools, once there is something to show.
	pgtest.Exec(t, a.pool, `select ojs.configure_pool('p', '{"concurrency": 4}')`)
	pgtest.Exec(t, a.pool, "insert into ojs.notice (type, subject, data) values ('scheduling.queue_starved', 'mail', '{}')")
	a.work()
	pgtest.Exec(t, a.pool, "select ojs.tick()")
	body := a.do("GET", "/metrics", "").want(200).body
	exposed := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (ojs_\w+) (\w+)$`).FindAllStringSubmatch(body, -1) {
		labels := map[string]bool{}
		for _, s := range regexp.MustCompile(`(?m)^`+m[1]+`(?:_count|_sum)?(?:\{(.*)\})? `).FindAllStringSubmatch(body, -1) {
			for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(s[1], -1) {
				labels[label[1]] = true
			}
		}
		exposed[m[1]] = m[2] + " " + strings.Join(slices.Sorted(maps.Keys(labels)), " ")
	}
	if len(exposed) < 25 {
		t.Errorf("only %d metrics were found in\n%s", len(exposed), body)
	}
	for name, is := range exposed {
		if documented[name] != is {
			t.Errorf("%s is %s; the documentation says %q", name, is, documented[name])
		}
	}
	for name := range documented {
		if exposed[name] == "" {
			t.Errorf("%s is documented, and not there", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("there is no %s", name)
		}
	}
}
