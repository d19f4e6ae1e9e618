package httpapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/admin"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// The routes of workers: what workers report about themselves, what operators see of them, and what
// operators tell them. A worker is known by its id and the tenant that the header names, if any.

func (s *Server) workerRoutes() []route {
	return scoped([]route{
		{Method: http.MethodPost, Path: v1 + "/workers/heartbeat", Scope: scopeWork, Queues: queuesInBody, Handler: s.heartbeat},
		{Method: http.MethodPost, Path: v1 + "/workers/beat", Scope: scopeWork, Queues: queuesInBody, Handler: s.heartbeat},
		{Method: http.MethodPost, Path: v1 + "/workers/register", Scope: scopeWork, Queues: noQueue, Handler: s.registerWorker},
		{Method: http.MethodPost, Path: v1 + "/workers/deregister", Scope: scopeWork, Queues: noQueue, Handler: s.deregisterWorker},
		{Method: http.MethodGet, Path: v1 + "/workers", Scope: scopeRead, Query: paged, OfTenant: true, Handler: s.listWorkers},
		{Method: http.MethodGet, Path: v1 + "/workers/:id/health", Scope: scopeRead, Handler: s.workerHealth},
		{Method: http.MethodGet, Path: v1 + "/admin/workers", Scope: scopeRead, Query: paged, OfTenant: true, Handler: s.listWorkers},
		{Method: http.MethodPost, Path: v1 + "/admin/workers/directive", Scope: scopeAdmin, Handler: s.directWorkers},
		{Method: http.MethodGet, Path: v1 + "/admin/workers/:id", Scope: scopeRead, Handler: s.getWorker},
		{Method: http.MethodPost, Path: v1 + "/admin/workers/:id/quiet", Scope: scopeAdmin, Handler: withoutBody(s.quietWorker)},
		{Method: http.MethodPost, Path: v1 + "/admin/workers/:id/directive", Scope: scopeAdmin, Handler: s.directWorker},
		{Method: http.MethodDelete, Path: v1 + "/admin/workers/:id", Scope: scopeAdmin, Handler: withoutBody(s.removeWorker)},
	})
}

const (
	maxHeartbeatJobs         = 10000
	defaultVisibilitySeconds = 30 // duration of a lease if neither the job nor the FETCH says
)

// aboutWorker is what a worker reports about itself.
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

// registerRequest is the body of a registration. The worker's fields stand next to worker_id, or in
// an object worker that has an id.
type registerRequest struct {
	aboutWorker
	WorkerID string       `json:"worker_id" check:"name"`
	Worker   *namedWorker `json:"worker"`
}

type namedWorker struct {
	aboutWorker
	ID       string `json:"id" check:"name"`
	WorkerID string `json:"worker_id" check:"name"`
}

// Check takes the worker from where it stands.
func (r *registerRequest) Check(o *jsonbody.Object) {
	if r.Worker != nil {
		id := cmp.Or(r.Worker.ID, r.Worker.WorkerID)
		if r.WorkerID != "" && id != "" && r.WorkerID != id {
			o.Fail(problems.Invalid("worker.id", "is not worker_id"))
		}
		r.WorkerID, r.aboutWorker = cmp.Or(id, r.WorkerID), r.Worker.aboutWorker
	}
	if r.WorkerID == "" && o.Err() == nil {
		o.Missing("worker_id")
	}
}

// heartbeatRequest is the body of a heartbeat. It names the jobs that the worker runs: active_jobs
// is an array of ids or, in the official SDKs, their number, with the ids in active_job_ids.
type heartbeatRequest struct {
	WorkerID string `json:"worker_id" check:"required,name"`
	aboutWorker
	VisibilityTimeoutMs *int32          `json:"visibility_timeout_ms" check:"1.."`
	State               *string         `json:"state" check:"name"`
	Shutdown            bool            `json:"shutdown"`
	ActiveJobs          json.RawMessage `json:"active_jobs"`
	ActiveJobIDs        json.RawMessage `json:"active_job_ids" check:"array"`

	jobs    []namedID // jobs whose leases are to be extended
	refused []namedID // elements of the lists that are no ids, and jobs that are not the credential's
	active  *int32
}

// namedID is an element of the lists of a heartbeat. id is empty if the element is no text. err says
// why the lease of the job cannot be extended.
type namedID struct {
	list  string
	index int
	id    string
	err   error
}

// Parts has each id judged by itself: one bad id must not cost the other jobs their leases.
func (r *heartbeatRequest) Parts() jsonbody.Parts {
	return jsonbody.Parts{Lists: []string{"active_jobs", "active_job_ids"}}
}

// Check reads the jobs.
func (r *heartbeatRequest) Check(o *jsonbody.Object) {
	read := func(list string) {
		o.EachID(list, func(i int, id string, err error) {
			if named := (namedID{list, i, id, err}); err == nil {
				r.jobs = append(r.jobs, named)
			} else {
				r.refused = append(r.refused, named)
			}
		})
	}
	if r.ActiveJobs != nil && jsonbody.Kind(r.ActiveJobs) == "number" {
		r.active = o.Integer("active_jobs", 0)
	} else {
		read("active_jobs")
	}
	read("active_job_ids")
	if len(r.jobs)+len(r.refused) > maxHeartbeatJobs {
		o.Fail(problems.Invalid("active_jobs", "must hold at most %d ids", maxHeartbeatJobs))
	}
	if r.Shutdown && r.State == nil {
		r.State = new("terminate")
	}
}

// pulse tells a worker the time of the server, and how often it has to send heartbeats.
type pulse struct {
	ServerTime        time.Time       `json:"server_time"`
	HeartbeatInterval json.RawMessage `json:"heartbeat_interval"`
	HeartbeatTimeout  json.RawMessage `json:"heartbeat_timeout"`
}

func pulseOf(at time.Time, intervalMs, timeoutMs int32) pulse {
	return pulse{at.UTC(), wholeSeconds(intervalMs), wholeSeconds(timeoutMs)}
}

// wholeSeconds returns milliseconds as seconds, with a fraction only if there is one.
func wholeSeconds(ms int32) []byte {
	if ms%1000 == 0 {
		return fmt.Appendf(nil, "%d", ms/1000)
	}
	return fmt.Appendf(nil, "%.3f", float64(ms)/1000)
}

// heartbeat extends the leases of the jobs that a worker names, and tells the worker what to do.
func (s *Server) heartbeat(c echo.Context) error {
	var req heartbeatRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	if err := s.keepOwn(c, &req); err != nil {
		return err
	}
	params := sqlcgen.BeatParams{
		WorkerID: req.WorkerID, Ids: req.ids(), State: req.State, VisibilityTimeoutMs: req.VisibilityTimeoutMs, Tenant: requestTenant(c),
		Active: req.active, Hostname: req.Hostname, Pid: req.Pid, Queues: req.Queues, Concurrency: req.Concurrency, Labels: req.Labels,
		Version: req.Version, Metadata: req.Metadata, StartedAt: req.StartedAt, Pool: req.Pool, Strategy: req.Strategy,
		Weights: req.Weights,
	}
	beat, err := patiently(s, c, (*sqlcgen.Queries).Beat, params)
	if err != nil {
		return err
	}
	if s.reset != nil {
		// In the public conformance cases a job tells its worker what to do, as an operator would.
		// Only servers that clients can reset obey such jobs.
		told, err := patiently(s, c, (*sqlcgen.Queries).DirectByTestJob,
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
		Acknowledged bool             `json:"acknowledged"`
		State        string           `json:"state"`
		JobsExtended []string         `json:"jobs_extended"`
		JobsRefused  []map[string]any `json:"jobs_refused,omitempty"`
		pulse
	}{
		true, beat.State, beat.JobsExtended, s.refusedIDs(c, req.refused),
		pulseOf(beat.ServerTime, beat.HeartbeatIntervalMs, beat.HeartbeatTimeoutMs),
	})
}

// ids returns the ids of the jobs whose leases are to be extended, never nil.
func (r *heartbeatRequest) ids() []string {
	ids := make([]string, len(r.jobs))
	for i := range r.jobs {
		ids[i] = r.jobs[i].id
	}
	return ids
}

// keepOwn moves the jobs that are in queues that the credential is not for from jobs to refused. It
// fails if no job is left.
func (s *Server) keepOwn(c echo.Context, r *heartbeatRequest) error {
	if bound(c) == nil {
		return nil
	}
	elsewhere, err := s.elsewhere(c, r.ids())
	if err != nil || len(elsewhere) == 0 {
		return err
	}
	others, kept := jsonbody.Set(elsewhere...), make([]namedID, 0, len(r.jobs))
	for _, named := range r.jobs {
		if others[named.id] {
			named.err = notItsJob(fmt.Sprintf("%s[%d]", named.list, named.index), named.id)
			r.refused = append(r.refused, named)
		} else {
			kept = append(kept, named)
		}
	}
	if len(kept) == 0 {
		return notItsJob("active_jobs", elsewhere[0])
	}
	r.jobs = kept
	return nil
}

// refusedIDs returns the part of the answer to a heartbeat about ids that were refused.
func (s *Server) refusedIDs(c echo.Context, refused []namedID) []map[string]any {
	out := make([]map[string]any, len(refused))
	for i := range refused {
		problem := s.problems.explain(c, refused[i].err)
		problem.Index = &refused[i].index
		out[i] = map[string]any{"index": refused[i].index, "status": problem.Status, "error": problemBody(problem, requestID(c))}
		if refused[i].id != "" {
			out[i]["id"] = problems.Clip(refused[i].id)
		}
	}
	return out
}

func (s *Server) registerWorker(c echo.Context) error {
	var req registerRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.RegisterWorkerParams{
		WorkerID: req.WorkerID, Hostname: req.Hostname, Pid: req.Pid, Queues: req.Queues, Concurrency: req.Concurrency, Labels: req.Labels,
		Version: req.Version, Metadata: req.Metadata, StartedAt: req.StartedAt, Tenant: requestTenant(c),
		Pool: req.Pool, Strategy: req.Strategy, Weights: req.Weights,
	}
	beat, err := patiently(s, c, (*sqlcgen.Queries).RegisterWorker, params)
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
	WorkerID string `json:"worker_id" check:"required,name"`
}

// deregisterWorker removes a worker that says goodbye. It does not fail if the worker is unknown,
// because the goodbye may have been sent twice.
func (s *Server) deregisterWorker(c echo.Context) error {
	var req deregisterRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.DeregisterWorkerParams{WorkerID: req.WorkerID, Tenant: requestTenant(c)}
	known, err := patiently(s, c, (*sqlcgen.Queries).DeregisterWorker, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"ok": true, "worker_id": req.WorkerID, "deregistered": known})
}

// maxWorkerBytes is the most bytes that a page of workers has, unless a single worker has more.
// Each may name ten thousand jobs.
const maxWorkerBytes = 4 << 20

func (s *Server) listWorkers(c echo.Context) error {
	limit, offset, err := paging(c)
	if err != nil {
		return err
	}
	ctx, tenant := s.queryContext(c), requestTenant(c)
	states, err := s.q.WorkerStates(ctx, tenant)
	if err != nil {
		return err
	}
	summary, total := map[string]int{"running": 0, "quiet": 0, "drain": 0, "terminate": 0, "stale": 0}, 0
	for _, of := range states {
		summary[of.State] = int(of.Workers)
		total += int(of.Workers)
	}
	summary["total"] = total
	rows, err := s.q.Workers(ctx, sqlcgen.WorkersParams{
		Tenant: tenant, MaxRows: int32(limit), Skip: int32(offset), MaxBytes: maxWorkerBytes,
	})
	if err != nil {
		return err
	}
	body := listed("workers", rows, pagination(total, limit, offset, len(rows)))
	body["summary"] = summary
	return c.JSON(http.StatusOK, body)
}

// workerRef returns the id of the worker in the path. An id that PostgreSQL cannot hold as text
// gets 404.
func workerRef(c echo.Context) (id string, err error) {
	id = c.Param("id")
	if !jsonbody.IsText(id) {
		return "", problems.NoSuch("worker", id)
	}
	return id, nil
}

// oneWorker reads the worker that a path names.
func (s *Server) oneWorker(c echo.Context) (w admin.Worker, err error) {
	id, err := workerRef(c)
	if err != nil {
		return w, err
	}
	return admin.OneWorker(s.queryContext(c), s.q, id, requestTenant(c))
}

func (s *Server) getWorker(c echo.Context) error {
	w, err := s.oneWorker(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, w)
}

// workerHealth answers with the health of a worker: 503 if it takes no jobs or its heartbeats have
// stopped.
func (s *Server) workerHealth(c echo.Context) error {
	w, err := s.oneWorker(c)
	if err != nil {
		return err
	}
	status, health := http.StatusOK, "ok"
	if w.State != "running" || w.Directive != nil && *w.Directive != "running" {
		status, health = http.StatusServiceUnavailable, "degraded"
	}
	return c.JSON(status, struct {
		Status          string    `json:"status"`
		WorkerID        string    `json:"worker_id"`
		State           string    `json:"state"`
		Directive       *string   `json:"directive,omitempty"`
		ActiveJobs      int32     `json:"active_jobs"`
		LastHeartbeatAt time.Time `json:"last_heartbeat_at"`
	}{health, w.WorkerID, w.State, w.Directive, w.ActiveJobs, w.LastHeartbeatAt})
}

type directiveRequest struct {
	Directive string `json:"directive" check:"required,name"`
}

func (s *Server) quietWorker(c echo.Context) error { return s.direct(c, "quiet") }

func (s *Server) directWorker(c echo.Context) error {
	var req directiveRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	return s.direct(c, req.Directive)
}

// direct tells the worker that the path names what to do, and answers with that worker.
func (s *Server) direct(c echo.Context, directive string) error {
	id, err := workerRef(c)
	if err != nil {
		return err
	}
	params := sqlcgen.DirectWorkerParams{WorkerID: id, Directive: directive, Tenant: requestTenant(c)}
	_, err = patiently(s, c, (*sqlcgen.Queries).DirectWorker, params)
	if err != nil {
		return err
	}
	return s.getWorker(c)
}

// directAllRequest is a directive to all workers.
type directAllRequest struct{ directiveRequest }

// Belongs says how a directive reaches some workers only.
func (*directAllRequest) Belongs() map[string]string {
	const one = "a directive to one worker is POST /ojs/v1/admin/workers/{id}/directive"
	return map[string]string{
		"worker_id": one, "worker": one, "id": one, "ids": one, "worker_ids": one,
		"queue":  "a directive goes to one worker, to a tenant's workers, or to all",
		"queues": "a directive goes to one worker, to a tenant's workers, or to all",
		"pool":   "a directive goes to one worker, to a tenant's workers, or to all",
	}
}

// directWorkers tells all workers what to do, or all workers of a tenant.
func (s *Server) directWorkers(c echo.Context) error {
	var req directAllRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	params := sqlcgen.DirectWorkersParams{Directive: req.Directive, Tenant: requestTenant(c)}
	told, err := patiently(s, c, (*sqlcgen.Queries).DirectWorkers, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"directive": req.Directive, "workers": told})
}

func (s *Server) removeWorker(c echo.Context) error {
	id, err := workerRef(c)
	if err != nil {
		return err
	}
	params := sqlcgen.RemoveWorkerParams{WorkerID: id, Tenant: requestTenant(c)}
	jobs, err := patiently(s, c, (*sqlcgen.Queries).RemoveWorker, params)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"deleted": true, "worker_id": id, "jobs_requeued": jobs})
}
