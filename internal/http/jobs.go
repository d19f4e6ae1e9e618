package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/http/kit"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) jobRoutes() []kit.Route {
	under := func(prefix string, change kit.Access, get echo.HandlerFunc) []kit.Route {
		return kit.Under([]string{prefix}, []kit.Route{
			{Method: http.MethodGet, Path: "/:id", Scope: kit.Read, Queues: kit.QueueOfJob, Handler: get},
			{Method: http.MethodPatch, Path: "/:id", Scope: change, Queues: kit.QueueOfJob, Handler: s.patchJob},
			{Method: http.MethodPost, Path: "/:id/cancel", Scope: change, Queues: kit.QueueOfJob, Handler: kit.Bare(s.cancel)},
			{Method: http.MethodPost, Path: "/:id/retry", Scope: change, Queues: kit.QueueOfJob, Handler: s.retryJob},
		})
	}
	const jobs = v1 + "/jobs"
	return kit.Scoped(slices.Concat([]kit.Route{
		{Method: http.MethodPost, Path: jobs, Scope: kit.Produce, Queues: kit.QueuesInBody, Handler: s.enqueue},
		{Method: http.MethodPost, Path: jobs + "/batch", Scope: kit.Produce, Queues: kit.QueuesInBody, Handler: s.enqueueBatch},
		{Method: http.MethodDelete, Path: jobs + "/:id", Scope: kit.Produce, Queues: kit.QueueOfJob, Handler: kit.Bare(s.cancel)},
		{Method: http.MethodPost, Path: jobs + "/:id/activate", Scope: kit.Produce, Queues: kit.QueueOfJob, Handler: kit.Bare(s.activate)},
	}, under(jobs, kit.Produce, s.getJob), under(v1+"/admin/jobs", kit.Admin, s.getJobFlat)))
}

func (s *Server) enqueue(c echo.Context) error {
	req, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(c, req, false)
	if err != nil {
		return err
	}
	header, headerName := kit.Scope(c), kit.ScopeHeader(c)
	job := readJob(req, header, headerName, time.Now())
	if err := req.Err(); err != nil {
		return err
	}
	if err := kit.ForQueues(c, "queue", job.QueueName()); err != nil {
		return err
	}
	var row sqlcgen.OjsJob
	if key == nil {
		row, err = s.dispatch.Enqueue(c.Request().Context(), job)
	} else {
		var rows []sqlcgen.OjsJob
		if rows, err = s.enqueueOnce(c, key, []*dispatch.NewJob{job}, header); err == nil {
			row = rows[0]
		}
	}
	if err != nil {
		relocate(err, key, []*kit.Object{req}, headerName, false)
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/jobs/"+row.ID)
	s.kit.Pressure(c, row.Queue)
	return s.writeJob(c, http.StatusCreated, &row)
}

// enqueueBatch makes all of the jobs, or none; with atomicity partial each of them succeeds or fails by itself.
func (s *Server) enqueueBatch(c echo.Context) error {
	req, err := s.body(c, s.limits.BatchBody, false)
	if err != nil {
		return err
	}
	kit.Near(req, nil, "jobs", "atomicity", idempotencyField)
	if !req.Has("jobs") {
		req.Missing("jobs")
	}
	items := req.Items("jobs")
	key, err := idempotencyKey(c, req, true)
	if err != nil {
		return err
	}
	partial := partially(req, key)
	if err := req.Err(); err != nil {
		return err
	}
	if len(items) < 1 || len(items) > s.limits.BatchJobs {
		return kit.Invalid("jobs", "must hold between 1 and %d jobs", s.limits.BatchJobs)
	}
	header, headerName := kit.Scope(c), kit.ScopeHeader(c)
	sent, jobs, err := readJobs(items, header, headerName)
	if err != nil {
		return err
	}
	for i, job := range jobs {
		if err := kit.ForQueues(c, fmt.Sprintf("jobs[%d].queue", i), job.QueueName()); err != nil {
			return err
		}
	}
	if partial {
		return s.enqueueEach(c, sent, jobs)
	}
	var rows []sqlcgen.OjsJob
	if key == nil {
		rows, err = s.dispatch.EnqueueMany(c.Request().Context(), jobs, header)
	} else {
		rows, err = s.enqueueOnce(c, key, jobs, header)
	}
	if err != nil {
		err = s.db.Err(err)
		relocate(err, key, sent, headerName, true)
		return err
	}
	s.kit.Pressure(c, queuesOf(jobs)...)
	w := kit.Writer{}
	w.Open()
	w.Key("jobs")
	w.B = s.wire().appendJobs(w.B, rows, nil)
	w.Integer("count", int64(len(rows)))
	w.Integer("enqueued", int64(len(rows)))
	w.Integer("failed", 0)
	w.Close()
	return kit.Blob(c, http.StatusCreated, w.B)
}

// readJobs reads the envelopes of a batch. The error is about the first that is no object or has a fault, and says where it stands.
func readJobs(items []kit.Member, header *string, headerName string) (sent []*kit.Object, jobs []*dispatch.NewJob, err error) {
	now := time.Now()
	sent, jobs = make([]*kit.Object, len(items)), make([]*dispatch.NewJob, len(items))
	for i := range items {
		if sent[i] = kit.ObjectOf(&items[i], "jobs["+strconv.Itoa(i)+"]", &err); err != nil {
			return nil, nil, atIndex(err, i)
		}
	}
	for i := range sent {
		if jobs[i] = readJob(sent[i], header, headerName, now); err != nil {
			return nil, nil, atIndex(err, i)
		}
	}
	return sent, jobs, nil
}

// atIndex says of an error about a job of a batch which one it is.
func atIndex(err error, i int) error {
	var known *pg.Error
	if errors.As(err, &known) {
		known.Details["index"] = i
	}
	return err
}

// enqueueOnce makes the jobs, or answers as a request with that key was answered before.
func (s *Server) enqueueOnce(c echo.Context, key *idempotency, jobs []*dispatch.NewJob, tenant *string) ([]sqlcgen.OjsJob, error) {
	rows, replayed, err := s.dispatch.EnqueueOnce(c.Request().Context(), key.Key, jobs, tenant)
	if replayed {
		c.Response().Header().Set(replayedHeader, "true")
	}
	if err == nil && len(rows) != len(jobs) {
		err = fmt.Errorf("enqueued %d jobs and got %d back", len(jobs), len(rows))
	}
	return rows, s.db.Err(err)
}

func (s *Server) getJob(c echo.Context) error {
	job, result, err := s.jobOfPath(c)
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job, result...)
}

// patchRequest is what of a job can be changed while it waits.
type patchRequest struct {
	_        struct{}        `check:"configurable"`
	Priority json.RawMessage `json:"priority" check:"required"`
	Reason   *string         `json:"reason"`

	priority int32
}

// priorityNames are those of the public suite.
var priorityNames = map[string]int32{"high": 10, "normal": 0, "low": -10}

// Check reads the priority, a number or a name.
func (r *patchRequest) Check(o *kit.Object) {
	if kit.Kind(r.Priority) != "string" {
		if n := o.Integer("priority", -100); n != nil {
			r.priority = *n
		}
		return
	}
	n, known := priorityNames[kit.Unquote(r.Priority)]
	if !known {
		o.Fail(kit.Invalid(o.At("priority"), `must be an integer, "high", "normal" or "low"`))
	}
	r.priority = n
}

// patchJob gives a job that waits another priority.
func (s *Server) patchJob(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	var req patchRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	kit.Because(c, req.Reason)
	params := sqlcgen.ReprioritizeParams{ID: id, Priority: req.priority, Tenant: scope}
	job, err := kit.Patiently(s.kit, c, (*sqlcgen.Queries).Reprioritize, params)
	if err != nil {
		return err
	}
	return kit.Blob(c, http.StatusOK, s.wire().appendJob(nil, &job))
}

// getJobFlat is for operators' tools, which want the job itself.
func (s *Server) getJobFlat(c echo.Context) error {
	job, result, err := s.jobOfPath(c)
	if err != nil {
		return err
	}
	return kit.Blob(c, http.StatusOK, s.wire().appendJob(nil, &job, result...))
}

// jobOfPath reads the job that a path names, with what became of it.
func (s *Server) jobOfPath(c echo.Context) (job sqlcgen.OjsJob, result []kit.Attr, err error) {
	id, scope, err := jobRef(c)
	if err != nil {
		return job, nil, err
	}
	ctx := s.kit.Context(c)
	if job, err = s.q.JobInfo(ctx, sqlcgen.JobInfoParams{ID: id, Tenant: scope}); err != nil || job.Result == nil {
		return job, nil, err
	}
	outcome, err := s.result(ctx, id, &job.TenantID)
	if err != nil {
		return job, nil, err
	}
	return job, outcome.attrs(), nil
}

func (s *Server) cancel(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	job, err := kit.Patiently(s.kit, c, (*sqlcgen.Queries).Cancel, sqlcgen.CancelParams{ID: id, Tenant: scope})
	if err != nil {
		return err
	}
	// The job is cancelled, whatever becomes of this: an error would have the client try again and read that it may not.
	var before []kit.Attr
	from, err := s.q.CancelledFrom(s.kit.Context(c), sqlcgen.CancelledFromParams{Tenant: job.TenantID, ID: job.ID})
	if err == nil {
		before = append(before, kit.Attr{Name: "previous_state", Raw: dispatch.AppendString(nil, from)})
	}
	return s.writeJob(c, http.StatusOK, &job, before...)
}

func (s *Server) activate(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	job, err := kit.Patiently(s.kit, c, (*sqlcgen.Queries).Activate, sqlcgen.ActivateParams{ID: id, Tenant: scope})
	if err != nil {
		return err
	}
	// Only pending jobs can be activated, and enqueued_at is the time it happened.
	return s.writeJob(c, http.StatusOK, &job,
		kit.Attr{Name: "previous_state", Raw: []byte(`"pending"`)}, kit.Attr{
			Name: "activated_at", Raw: kit.AppendTime(nil, job.EnqueuedAt),
		})
}

// jobRef reads the job a path names. An id that no job can have is an unknown job.
func jobRef(c echo.Context) (id string, scope *string, err error) {
	id = c.Param("id")
	if !kit.IsUUID(id) {
		return "", nil, kit.Refuse(kit.CodeNotFound, "id", "job %q does not exist: ids are UUIDs in lowercase with hyphens", kit.Clip(id))
	}
	return id, kit.Scope(c), nil
}

func (s *Server) writeJob(c echo.Context, status int, job *sqlcgen.OjsJob, more ...kit.Attr) error {
	w := kit.Writer{}
	w.Open()
	w.Key("job")
	w.B = s.wire().appendJob(w.B, job, more...)
	// The official command-line tool looks for them here, and prints nothing where they are not.
	w.Text("id", job.ID)
	w.Text("type", job.Type)
	w.Text("queue", job.Queue)
	w.Text("state", job.State)
	w.Close()
	return kit.Blob(c, status, w.B)
}
