package httpapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// What workers say of themselves. How operators see them, and what they tell them, is in internal/admin.

const (
	maxHeartbeatJobs         = 10000
	defaultVisibilitySeconds = 30 // what a lease lasts when neither the job nor the FETCH says
)

// aboutWorker is what a worker says of itself.
type aboutWorker struct {
	Hostname    *string         `json:"hostname"`
	Pid         *int32          `json:"pid" check:"0.."`
	Concurrency *int32          `json:"concurrency" check:"1.."`
	Version     *string         `json:"version"`
	StartedAt   *time.Time      `json:"started_at" check:"when"`
	Queues      []string        `json:"queues"`
	Labels      []string        `json:"labels"`
	Metadata    json.RawMessage `json:"metadata" check:"object,storable"`
	Pool        *string         `json:"pool" check:"name"`
	Strategy    *string         `json:"strategy" check:"name"`
	Weights     json.RawMessage `json:"weights" check:"object,storable"`
}

// registerRequest says it beside worker_id, or in an object worker with an id.
type registerRequest struct {
	_ struct{} `check:"near"`
	aboutWorker
	WorkerID string       `json:"worker_id" check:"name"`
	Worker   *namedWorker `json:"worker"`
}

type namedWorker struct {
	aboutWorker
	ID       string `json:"id" check:"name"`
	WorkerID string `json:"worker_id" check:"name"`
}

// Check finds the worker.
func (r *registerRequest) Check(o *kit.Object) {
	if r.Worker != nil {
		id := cmp.Or(r.Worker.ID, r.Worker.WorkerID)
		if r.WorkerID != "" && id != "" && r.WorkerID != id {
			o.Fail(kit.Invalid("worker.id", "is not worker_id"))
		}
		r.WorkerID, r.aboutWorker = cmp.Or(id, r.WorkerID), r.Worker.aboutWorker
	}
	if r.WorkerID == "" && o.Err() == nil {
		o.Missing("worker_id")
	}
}

// heartbeatRequest names the jobs that the worker runs: active_jobs is an array of ids or, in the official SDKs, their number beside
// active_job_ids.
type heartbeatRequest struct {
	_        struct{} `check:"near"`
	WorkerID string   `json:"worker_id" check:"required,name"`
	aboutWorker
	VisibilityTimeoutMs *int32          `json:"visibility_timeout_ms" check:"1.."`
	State               *string         `json:"state" check:"name"`
	Shutdown            bool            `json:"shutdown"`
	ActiveJobs          json.RawMessage `json:"active_jobs"`
	ActiveJobIDs        []string        `json:"active_job_ids" check:"id"`

	jobs   []string
	active *int32
}

// Check reads the jobs.
func (r *heartbeatRequest) Check(o *kit.Object) {
	if r.ActiveJobs != nil && kit.Kind(r.ActiveJobs) == "number" {
		r.active = o.Integer("active_jobs", 0)
		r.jobs = []string{}
	} else {
		r.jobs = append([]string{}, o.IDs("active_jobs")...)
	}
	r.jobs = append(r.jobs, r.ActiveJobIDs...)
	if len(r.jobs) > maxHeartbeatJobs {
		o.Fail(kit.Invalid("active_jobs", "must hold at most %d ids", maxHeartbeatJobs))
	}
	if r.Shutdown && r.State == nil {
		r.State = new("terminate")
	}
}

// pulse says by which clock and how often heartbeats are expected.
type pulse struct {
	ServerTime        time.Time       `json:"server_time"`
	HeartbeatInterval json.RawMessage `json:"heartbeat_interval"`
	HeartbeatTimeout  json.RawMessage `json:"heartbeat_timeout"`
}

func pulseOf(at time.Time, intervalMs, timeoutMs int32) pulse {
	return pulse{at.UTC(), wholeSeconds(intervalMs), wholeSeconds(timeoutMs)}
}

// wholeSeconds writes milliseconds as seconds, with a fraction only where there is one.
func wholeSeconds(ms int32) []byte {
	if ms%1000 == 0 {
		return fmt.Appendf(nil, "%d", ms/1000)
	}
	return fmt.Appendf(nil, "%.3f", float64(ms)/1000)
}

// heartbeat extends the leases of the jobs it names, and tells the worker what to do.
func (s *Server) heartbeat(c echo.Context) error {
	var req heartbeatRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	if err := s.kit.ForJobs(c, "active_jobs", req.jobs...); err != nil {
		return err
	}
	params := sqlcgen.BeatParams{
		WorkerID: req.WorkerID, Ids: req.jobs, State: req.State, VisibilityTimeoutMs: req.VisibilityTimeoutMs, Tenant: kit.Scope(c),
		Active: req.active, Hostname: req.Hostname, Pid: req.Pid, Queues: req.Queues, Concurrency: req.Concurrency, Labels: req.Labels,
		Version: req.Version, Metadata: req.Metadata, StartedAt: req.StartedAt, Pool: req.Pool, Strategy: req.Strategy,
		Weights: req.Weights,
	}
	beat, err := kit.Patiently(s.kit, c, (*sqlcgen.Queries).Beat, params)
	if err != nil {
		return err
	}
	if s.reset != nil {
		// The public cases have a job tell its worker what to do, as an operator would. Servers that clients cannot reset do not listen.
		told, err := kit.Patiently(s.kit, c, (*sqlcgen.Queries).DirectByTestJob,
			sqlcgen.DirectByTestJobParams{WorkerID: req.WorkerID, Ids: beat.JobsExtended, Tenant: params.Tenant})
		if err != nil {
			return err
		}
		if len(told) > 0 {
			beat.State = told[0]
		}
	}
	if beat.JobsExtended == nil {
		beat.JobsExtended = []string{}
	}
	return c.JSON(http.StatusOK, struct {
		Acknowledged bool     `json:"acknowledged"`
		State        string   `json:"state"`
		JobsExtended []string `json:"jobs_extended"`
		pulse
	}{true, beat.State, beat.JobsExtended, pulseOf(beat.ServerTime, beat.HeartbeatIntervalMs, beat.HeartbeatTimeoutMs)})
}

func (s *Server) registerWorker(c echo.Context) error {
	var req registerRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.RegisterWorkerParams{
		WorkerID: req.WorkerID, Hostname: req.Hostname, Pid: req.Pid, Queues: req.Queues, Concurrency: req.Concurrency, Labels: req.Labels,
		Version: req.Version, Metadata: req.Metadata, StartedAt: req.StartedAt, Tenant: kit.Scope(c),
		Pool: req.Pool, Strategy: req.Strategy, Weights: req.Weights,
	}
	beat, err := kit.Patiently(s.kit, c, (*sqlcgen.Queries).RegisterWorker, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, struct {
		OK       bool   `json:"ok"`
		WorkerID string `json:"worker_id"`
		State    string `json:"state"`
		pulse
		VisibilityTimeoutDefault int `json:"visibility_timeout_default"`
	}{
		true, req.WorkerID, beat.State, pulseOf(beat.ServerTime, beat.HeartbeatIntervalMs, beat.HeartbeatTimeoutMs),
		defaultVisibilitySeconds,
	})
}

type deregisterRequest struct {
	_        struct{} `check:"near"`
	WorkerID string   `json:"worker_id" check:"required,name"`
}

// deregisterWorker: one that is not registered is no error, because its goodbye may have been sent twice.
func (s *Server) deregisterWorker(c echo.Context) error {
	var req deregisterRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.DeregisterWorkerParams{WorkerID: req.WorkerID, Tenant: kit.Scope(c)}
	known, err := kit.Patiently(s.kit, c, (*sqlcgen.Queries).DeregisterWorker, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"ok": true, "worker_id": req.WorkerID, "deregistered": known})
}
