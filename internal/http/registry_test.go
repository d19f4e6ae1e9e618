package httpapi

import (
	"context"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

func TestWorkerShapes(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/workers/register", `{"worker_id":"w1","hostname":"h","pid":12,"queues":["default"],"concurrency":3,
		"labels":["canary"],"version":"1.2",
		"metadata":{"node":"n"},"started_at":"2025-06-01T08:00:00Z"}`).want(200).is(map[string]any{
		"ok": true, "worker_id": "w1", "state": "running", "heartbeat_interval": 5, "heartbeat_timeout": 30,
		"visibility_timeout_default": 30,
	}).present("server_time")
	one := a.push(`{"type":"a","args":[]}`)
	a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"worker_id":"w1"}`).want(200)
	// Heartbeats within two seconds are written down once, and so is the registration.
	if _, err := a.pool.Exec(context.Background(), "update ojs.worker_beat set seen_at = seen_at - interval '3 seconds'"); err != nil {
		t.Fatal(err)
	}
	// Every way to say it.
	for _, path := range []string{"heartbeat", "beat"} {
		for _, body := range []string{
			`{"worker_id":"w1","active_jobs":["` + one + `"]}`,
			`{"worker_id":"w1","state":"running","active_jobs":1,"active_job_ids":["` + one + `"]}`,
			`{"worker_id":"w1","active_jobs":["` + one + `"],"visibility_timeout_ms":30000,
			"hostname":"h","pid":12,"queues":["default"],"concurrency":3,"labels":["canary"]}`,
		} {
			a.do("POST", "/ojs/v1/workers/"+path, body).want(200).is(map[string]any{
				"acknowledged": true, "state": "running", "jobs_extended": []any{one},
			})
		}
	}
	a.do("POST", "/ojs/v1/workers/beat", `{"worker_id":"w2","state":"drain","active_jobs":0,"shutdown":true}`).want(200).
		is(map[string]any{"acknowledged": true, "state": "quiet"})
	a.do("GET", "/ojs/v1/workers", "").want(200).is(map[string]any{
		"items.0.id": "w1", "items.0.state": "running", "items.0.hostname": "h", "items.0.pid": 12, "items.0.concurrency": 3,
		"items.0.queues": []any{"default"}, "items.0.labels": []any{"canary"}, "items.0.version": "1.2", "items.0.metadata.node": "n",
		"items.0.started_at": "2025-06-01T08:00:00Z", "items.0.active_job_ids": []any{one}, "items.1.id": "w2", "items.1.state": "drain",
	})
	a.do("POST", "/ojs/v1/workers/deregister", `{"worker_id":"w2"}`).want(200).is(map[string]any{"ok": true, "deregistered": true})
	a.do("POST", "/ojs/v1/workers/deregister", `{"worker_id":"w2"}`).want(200).is(map[string]any{"ok": true, "deregistered": false})
	a.do("GET", "/ojs/v1/workers/w2/health", "").want(404)
}

// A quiet worker that waits keeps no other worker from jobs, and goes on when it is told to.
func TestRestingWorkersWait(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.do("POST", "/ojs/v1/workers/heartbeat",
		`{"worker_id":"w1","state":"quiet","active_jobs":0}`).want(200).is(map[string]any{"state": "quiet"})
	type answer struct {
		worker string
		jobs   int
	}
	answers := make(chan answer, 2)
	for _, worker := range []string{"w1", "w2"} {
		wait := "1500"
		if worker == "w2" {
			wait = "30000"
		}
		go func() {
			r, err := a.send(context.Background(), "POST", "/ojs/v1/workers/fetch",
				`{"queues":["default"],"worker_id":"`+worker+`","wait_ms":`+wait+`}`)
			if err != nil || r.status != 200 {
				t.Errorf("%s: %v %v", worker, r, err)
				answers <- answer{worker, -1}
				return
			}
			answers <- answer{worker, len(r.value.(map[string]any)["jobs"].([]any))}
		}()
	}
	if got := <-answers; got != (answer{"w1", 0}) {
		t.Errorf("first answered is %v, want the one that rests, with nothing", got)
	}
	a.push(`{"type":"a","args":[]}`)
	if got := <-answers; got != (answer{"w2", 1}) {
		t.Errorf("then answered is %v, want the other one with a job", got)
	}
}

// A worker that is told to go on while it waits gets what has been there all the time, whichever queues it had named when it registered.
func TestWaitingWorkersGoOn(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, route := range []string{"/ojs/v1/admin/workers/w1/directive", "/ojs/v1/admin/workers/directive"} {
		a.do("POST", "/ojs/v1/workers/register", `{"worker_id":"w1","queues":["elsewhere"]}`).want(200)
		a.do("POST", "/ojs/v1/admin/workers/w1/quiet", "").want(200)
		id := a.push(`{"type":"a","args":[]}`)
		answer := make(chan *reply, 1)
		go func() {
			r, err := a.send(context.Background(), "POST", "/ojs/v1/workers/fetch",
				`{"queues":["default"],"worker_id":"w1","wait_ms":30000}`)
			if err != nil {
				t.Error(err)
			}
			answer <- r
		}()
		pgtest.Eventually(a.t, "the fetch waits", func() bool { return a.metrics()["ojs_fetches_waiting{}"] == "1" })
		a.do("POST", route, `{"directive":"running"}`).want(200)
		if r := <-answer; r != nil {
			r.want(200).is(map[string]any{"jobs.0.id": id})
		}
		a.do("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`).want(200)
	}
}

// Only a server that clients may reset lets a job tell its worker what to do.
func TestDirectivesOfTestJobs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		reset bool
		want  string
	}{
		{"in production", false, "running"},
		{"in a conformance run", true, "quiet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := start(t, func(cfg *Config) {
				cfg.AllowReset, cfg.Reset = c.reset, func(context.Context) error { return nil }
			})
			id := a.push(`{"type":"a","args":[],"options":{"metadata":{"test_directive":"quiet"}}}`)
			a.do("POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"worker_id":"w1"}`).want(200)
			a.do("POST", "/ojs/v1/workers/heartbeat",
				`{"worker_id":"w1","active_jobs":["`+id+`"]}`).want(200).is(map[string]any{"state": c.want})
		})
	}
}
