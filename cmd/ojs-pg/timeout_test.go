package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/embedpg"
	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// However often a worker says that it still runs a job, the clock ends the attempt by its timeout, and from then on the job is not
// said to be the worker's. By the real clock, because heartbeats and the clock race for the rows.
func TestHeartbeatsDoNotOutliveATimeout(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL}, "serve", "--listen", "127.0.0.1:0")
	base := p.find(`msg=serving address=(http://\S+)$`)
	const jobs = 12
	pgtest.Exec(t, d.Pool, `
		select ojs.enqueue('a', p_timeout_ms => 1000, p_retry => '{"max_attempts": 1}') from generate_series(1, $1)`, jobs)
	status, answer := request(t, "POST", base+"/ojs/v1/workers/fetch",
		fmt.Sprintf(`{"queues": ["default"], "worker_id": "w", "count": %d}`, jobs))
	var fetched struct {
		Jobs []struct {
			ID        string    `json:"id"`
			StartedAt time.Time `json:"started_at"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(answer), &fetched); err != nil || status != 200 || len(fetched.Jobs) != jobs {
		t.Fatalf("a FETCH answers %d: %s (%v)", status, answer, err)
	}
	ids := make([]string, jobs)
	for i, job := range fetched.Jobs {
		ids[i] = `"` + job.ID + `"`
	}
	beat := `{"worker_id": "w", "active_jobs": [` + strings.Join(ids, ",") + `]}`
	pgtest.Eventually(t, "all attempts have ended", func() bool {
		ended := pgtest.List[string](t, d.Pool, "select id::text from ojs.job where state <> 'active'")
		asked := time.Now()
		status, answer := request(t, "POST", base+"/ojs/v1/workers/heartbeat", beat)
		var said struct {
			Extended []string `json:"jobs_extended"`
		}
		if err := json.Unmarshal([]byte(answer), &said); err != nil || status != 200 {
			t.Fatalf("a heartbeat answers %d: %s (%v)", status, answer, err)
		}
		for _, job := range fetched.Jobs {
			over := slices.Contains(ended, job.ID) || asked.Sub(job.StartedAt) > time.Second
			if over && slices.Contains(said.Extended, job.ID) {
				t.Errorf("job %s is past its timeout, and listed as extended", job.ID)
			}
		}
		time.Sleep(250 * time.Millisecond)
		return len(ended) == jobs
	})
	got := fmt.Sprint(pgtest.List[string](t, d.Pool, `
		select concat_ws(' ', j.state, r.cause, count(*)) from ojs.job j join ojs.release r on r.job_id = j.id group by j.state, r.cause`))
	if want := fmt.Sprintf("[discarded timeout %d]", jobs); got != want {
		t.Errorf("the attempts have ended %s, want %s", got, want)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("the server ends with %d", status)
	}
}

// An operator who starts a first server is shown the view that fits a screen.
func TestTheWelcome(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := printWelcome(&out, "http://127.0.0.1:8080", &embedpg.Server{DataDir: ".dev"}, "")
	if err != nil || !strings.Contains(out.String(), "select * from ojs.overview;") ||
		!strings.Contains(out.String(), `\set SHOW_CONTEXT never`) {
		t.Errorf("%v: %s", err, &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 80 {
			t.Errorf("a line is wider than a terminal: %s", line)
		}
	}
}
