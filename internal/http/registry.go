package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Workers: who is there, what each is told to do. A worker is known by its name and the tenant that the header names, or none.

const (
	maxHeartbeatJobs         = 10000
	defaultVisibilitySeconds = 30 // what a lease lasts when neither the job nor the FETCH says
)

// heartbeat extends the leases of the jobs it names, and tells the worker what to do. active_jobs is an array of ids or, in the
// official SDKs, their number beside active_job_ids.
func (s *Server) heartbeat(c echo.Context) error {
	req, scope, err := s.scoped(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	params := sqlcgen.BeatParams{Ids: []string{}, VisibilityTimeoutMs: req.Integer("visibility_timeout_ms", 1), Tenant: scope, State: req.Name("state")}
	if raw := req.Raw("active_jobs"); raw != nil && kit.Kind(raw) == "number" {
		params.Active = req.Integer("active_jobs", 0)
	} else {
		params.Ids = append(params.Ids, req.IDs("active_jobs")...)
	}
	params.Ids = append(params.Ids, req.IDs("active_job_ids")...)
	if len(params.Ids) > maxHeartbeatJobs {
		req.Fail(kit.Invalid("active_jobs", "must hold at most %d ids", maxHeartbeatJobs))
	}
	if shutdown := req.Flag("shutdown"); shutdown != nil && *shutdown && params.State == nil {
		state := "terminate"
		params.State = &state
	}
	about := readWorker(req)
	params.WorkerID, params.Hostname, params.Pid, params.Queues, params.Concurrency = about.WorkerID, about.Hostname, about.Pid, about.Queues, about.Concurrency
	params.Labels, params.Version, params.Metadata, params.StartedAt = about.Labels, about.Version, about.Metadata, about.StartedAt
	if err := req.Err(); err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	beat, err := s.q.Beat(ctx, params)
	if err != nil {
		return err
	}
	if s.reset != nil {
		if beat.State, err = s.testDirective(ctx, params, beat); err != nil {
			return err
		}
	}
	w := kit.Writer{}
	w.Open()
	w.Flag("acknowledged", true)
	w.Text("state", beat.State)
	w.Texts("jobs_extended", beat.JobsExtended)
	writeRhythm(&w, beat.ServerTime, beat.HeartbeatIntervalMs, beat.HeartbeatTimeoutMs)
	w.Close()
	return kit.Blob(c, http.StatusOK, w.B)
}

// wholeSeconds writes milliseconds as seconds, with a fraction only where there is one.
func wholeSeconds(ms int32) []byte {
	if ms%1000 == 0 {
		return fmt.Appendf(nil, "%d", ms/1000)
	}
	return fmt.Appendf(nil, "%.3f", float64(ms)/1000)
}

// readWorker reads what a worker says of itself.
func readWorker(req *kit.Object) sqlcgen.RegisterWorkerParams {
	about := sqlcgen.RegisterWorkerParams{
		Hostname: req.Text("hostname"), Pid: req.Integer("pid", 0), Concurrency: req.Integer("concurrency", 1), Version: req.Text("version"),
		StartedAt: req.When("started_at", time.Now()),
	}
	if worker := req.Name("worker_id"); worker != nil {
		about.WorkerID = *worker
	} else {
		req.Missing("worker_id")
	}
	about.Queues = req.Texts("queues")
	about.Labels = req.Texts("labels")
	if metadata := req.Child("metadata"); metadata != nil {
		about.Metadata = req.Raw("metadata")
		req.Storable(about.Metadata, req.At("metadata"))
	}
	return about
}

// testDirective lets a job of a conformance run tell its worker what to do, as the public cases want it: meta.test_directive of a job that
// the worker holds is given to the worker as an operator would. A server that clients cannot reset has no such thing.
func (s *Server) testDirective(ctx context.Context, params sqlcgen.BeatParams, beat sqlcgen.BeatRow) (string, error) {
	for _, id := range beat.JobsExtended {
		job, err := s.q.JobInfo(ctx, sqlcgen.JobInfoParams{ID: id, Tenant: params.Tenant})
		if err != nil {
			return "", err
		}
		var meta struct {
			Directive string `json:"test_directive"`
		}
		// What the client put there may be anything.
		if json.Unmarshal(job.Meta, &meta) != nil || meta.Directive == "" {
			continue
		}
		if _, err := s.q.DirectWorker(ctx, sqlcgen.DirectWorkerParams{WorkerID: params.WorkerID, Directive: meta.Directive, Tenant: params.Tenant}); err != nil {
			return "", err
		}
		return meta.Directive, nil
	}
	return beat.State, nil
}

func (s *Server) registerWorker(c echo.Context) error {
	req, scope, err := s.scoped(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	about := readWorker(req)
	about.Tenant = scope
	if err := req.Err(); err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	beat, err := s.q.RegisterWorker(ctx, about)
	if err != nil {
		return err
	}
	w := kit.Writer{}
	w.Open()
	w.Flag("ok", true)
	w.Text("worker_id", about.WorkerID)
	w.Text("state", beat.State)
	writeRhythm(&w, beat.ServerTime, beat.HeartbeatIntervalMs, beat.HeartbeatTimeoutMs)
	w.Integer("visibility_timeout_default", defaultVisibilitySeconds)
	w.Close()
	return kit.Blob(c, http.StatusOK, w.B)
}

// deregisterWorker: one that is not registered is no error, because its goodbye may have been sent twice.
func (s *Server) deregisterWorker(c echo.Context) error {
	req, scope, err := s.scoped(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	worker := req.Name("worker_id")
	if worker == nil {
		req.Missing("worker_id")
		return req.Err()
	}
	ctx, cancel := s.query(c)
	defer cancel()
	known, err := s.q.DeregisterWorker(ctx, sqlcgen.DeregisterWorkerParams{WorkerID: *worker, Tenant: scope})
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, map[string]any{"ok": true, "worker_id": *worker, "deregistered": known})
}

// workerJSON is a worker of admin API section 9.1. Its state is what it says it does, or stale.
type workerJSON struct {
	ID              string          `json:"id"`
	WorkerID        string          `json:"worker_id"`
	TenantID        string          `json:"tenant_id,omitempty"`
	State           string          `json:"state"`
	Directive       string          `json:"directive,omitempty"`
	Hostname        *string         `json:"hostname,omitempty"`
	Pid             *int32          `json:"pid,omitempty"`
	Queues          []string        `json:"queues"`
	Concurrency     *int32          `json:"concurrency,omitempty"`
	ActiveJobs      int32           `json:"active_jobs"`
	ActiveJobIDs    []string        `json:"active_job_ids"`
	Labels          []string        `json:"labels"`
	Version         *string         `json:"version,omitempty"`
	Metadata        json.RawMessage `json:"metadata,omitempty"`
	StartedAt       *kit.Stamp      `json:"started_at,omitempty"`
	RegisteredAt    kit.Stamp       `json:"registered_at"`
	LastHeartbeatAt kit.Stamp       `json:"last_heartbeat_at"`
	Jobs            []heldJSON      `json:"jobs,omitempty"` // of a single worker
}

// heldJSON is a job in the hands of a worker.
type heldJSON struct {
	ID             string     `json:"id"`
	TenantID       string     `json:"tenant_id"`
	Type           string     `json:"type"`
	Queue          string     `json:"queue"`
	Attempt        int32      `json:"attempt"`
	StartedAt      *kit.Stamp `json:"started_at,omitempty"`
	LeaseExpiresAt *kit.Stamp `json:"lease_expires_at,omitempty"`
}

func workerOf(w sqlcgen.WorkersRow) workerJSON {
	out := workerJSON{
		ID: w.WorkerID, WorkerID: w.WorkerID, TenantID: w.TenantID, State: w.State, Directive: w.Directive, Hostname: w.Hostname, Pid: w.Pid, Queues: w.Queues,
		Concurrency: w.Concurrency, ActiveJobs: w.ActiveJobs, ActiveJobIDs: w.ActiveJobIds, Labels: w.Labels, Version: w.Version, Metadata: w.Metadata,
		StartedAt: kit.StampOf(w.StartedAt), RegisteredAt: kit.Stamp(w.RegisteredAt), LastHeartbeatAt: kit.Stamp(w.LastHeartbeatAt),
	}
	if w.Stale {
		out.State = "stale"
	}
	for _, list := range []*[]string{&out.Queues, &out.ActiveJobIDs, &out.Labels} {
		if *list == nil {
			*list = []string{}
		}
	}
	return out
}

func (s *Server) listWorkers(c echo.Context) error {
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	rows, err := s.q.Workers(ctx, scope)
	if err != nil {
		return err
	}
	summary := map[string]int{"total": len(rows), "running": 0, "quiet": 0, "drain": 0, "terminate": 0, "stale": 0}
	for _, w := range rows {
		summary[workerOf(w).State]++
	}
	rows, pagination, err := kit.Page(c, rows)
	if err != nil {
		return err
	}
	items := make([]workerJSON, len(rows))
	for i, w := range rows {
		items[i] = workerOf(w)
	}
	return kit.Encode(c, http.StatusOK, map[string]any{"items": items, "workers": items, "summary": summary, "pagination": pagination})
}

// workerRef reads the name of a worker in a path. What PostgreSQL cannot hold as text names none.
func workerRef(c echo.Context) (id string, scope *string, err error) {
	scope, _, err = kit.Tenant(c.Request().Header)
	if err != nil {
		return "", nil, err
	}
	id = c.Param("id")
	if !kit.IsText(id) {
		return "", nil, kit.NoSuch("worker", id)
	}
	return id, scope, nil
}

// oneWorker reads the worker that a path names.
func (s *Server) oneWorker(c echo.Context) (worker workerJSON, err error) {
	id, scope, err := workerRef(c)
	if err != nil {
		return worker, err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	rows, err := s.q.WorkerInfo(ctx, sqlcgen.WorkerInfoParams{WorkerID: id, Tenant: scope})
	if err != nil {
		return worker, err
	}
	if len(rows) == 0 {
		return worker, kit.NoSuch("worker", id) // it has just gone
	}
	worker = workerOf(sqlcgen.WorkersRow(rows[0]))
	var of *string
	if worker.TenantID != "" {
		of = &worker.TenantID
	}
	jobs, err := s.q.WorkerJobs(ctx, sqlcgen.WorkerJobsParams{Ids: worker.ActiveJobIDs, WorkerID: id, Tenant: of})
	if err != nil {
		return worker, err
	}
	for _, j := range jobs {
		worker.Jobs = append(worker.Jobs, heldJSON{
			ID: j.ID, TenantID: j.TenantID, Type: j.Type, Queue: j.Queue, Attempt: j.Attempt, StartedAt: kit.StampOf(j.StartedAt), LeaseExpiresAt: kit.StampOf(j.LeaseExpiresAt),
		})
	}
	return worker, nil
}

func (s *Server) getWorker(c echo.Context) error {
	worker, err := s.oneWorker(c)
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, worker)
}

// workerHealth is 503 when the worker takes no jobs, or has fallen silent.
func (s *Server) workerHealth(c echo.Context) error {
	worker, err := s.oneWorker(c)
	if err != nil {
		return err
	}
	status, health := http.StatusOK, "ok"
	if worker.State != "running" || worker.Directive != "" && worker.Directive != "running" {
		status, health = http.StatusServiceUnavailable, "degraded"
	}
	return kit.Encode(c, status, struct {
		Status          string    `json:"status"`
		WorkerID        string    `json:"worker_id"`
		State           string    `json:"state"`
		Directive       string    `json:"directive,omitempty"`
		ActiveJobs      int32     `json:"active_jobs"`
		LastHeartbeatAt kit.Stamp `json:"last_heartbeat_at"`
	}{health, worker.ID, worker.State, worker.Directive, worker.ActiveJobs, worker.LastHeartbeatAt})
}

// direct tells the worker that the path names what to do, and answers with it.
func (s *Server) direct(c echo.Context, directive string) error {
	id, scope, err := workerRef(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	if _, err := s.q.DirectWorker(ctx, sqlcgen.DirectWorkerParams{WorkerID: id, Directive: directive, Tenant: scope}); err != nil {
		return err
	}
	return s.getWorker(c)
}

func (s *Server) quietWorker(c echo.Context) error { return s.direct(c, "quiet") }

func (s *Server) directWorker(c echo.Context) error {
	directive, err := s.readDirective(c)
	if err != nil {
		return err
	}
	return s.direct(c, directive)
}

// directWorkers tells all workers, or all of a tenant.
func (s *Server) directWorkers(c echo.Context) error {
	directive, err := s.readDirective(c)
	if err != nil {
		return err
	}
	scope, _, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	told, err := s.q.DirectWorkers(ctx, sqlcgen.DirectWorkersParams{Directive: directive, Tenant: scope})
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, map[string]any{"directive": directive, "workers": told})
}

func (s *Server) readDirective(c echo.Context) (string, error) {
	req, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return "", err
	}
	directive := req.Name("directive")
	if directive == nil {
		req.Missing("directive")
		return "", req.Err()
	}
	return *directive, req.Err()
}

func (s *Server) removeWorker(c echo.Context) error {
	id, scope, err := workerRef(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	jobs, err := s.q.RemoveWorker(ctx, sqlcgen.RemoveWorkerParams{WorkerID: id, Tenant: scope})
	if err != nil {
		return err
	}
	return kit.Encode(c, http.StatusOK, map[string]any{"deleted": true, "worker_id": id, "jobs_requeued": jobs})
}

// writeRhythm writes by which clock and how often heartbeats are expected.
func writeRhythm(w *kit.Writer, now time.Time, intervalMs, timeoutMs int32) {
	w.Time("server_time", &now)
	w.Raw("heartbeat_interval", wholeSeconds(intervalMs))
	w.Raw("heartbeat_timeout", wholeSeconds(timeoutMs))
}
