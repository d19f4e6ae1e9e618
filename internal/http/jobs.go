package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) enqueue(c echo.Context) error {
	job, err := s.body(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(c, job, false)
	if err != nil {
		return err
	}
	if key != nil {
		rows, err := s.push(c, []*kit.Object{job}, key, false)
		if err != nil {
			return err
		}
		return s.writeEnqueued(c, &rows[0])
	}
	header, headerName, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return err
	}
	flat, whose := appendFlat(nil, job, header, headerName, time.Now())
	if err := job.Err(); err != nil {
		return err
	}
	row, err := s.dispatch.Enqueue(c.Request().Context(), flat, whose)
	if err != nil {
		var known *pg.Error
		if errors.As(err, &known) && known.Status < http.StatusInternalServerError {
			relocate(known, []*kit.Object{job}, headerName, false)
		}
		return err
	}
	return s.writeEnqueued(c, &row)
}

func (s *Server) writeEnqueued(c echo.Context, job *sqlcgen.OjsJob) error {
	c.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/jobs/"+job.ID)
	return s.writeJob(c, http.StatusCreated, job)
}

func (s *Server) enqueueBatch(c echo.Context) error {
	req, err := s.body(c, s.limits.BatchBody, false)
	if err != nil {
		return err
	}
	if !req.Has("jobs") {
		req.Missing("jobs")
	}
	items := req.List("jobs")
	key, err := idempotencyKey(c, req, true)
	if err != nil {
		return err
	}
	if err := req.Err(); err != nil {
		return err
	}
	if len(items) < 1 || len(items) > s.limits.BatchJobs {
		return kit.Invalid("jobs", "must hold between 1 and %d jobs", s.limits.BatchJobs)
	}
	jobs := make([]*kit.Object, len(items))
	for i, raw := range items {
		path := "jobs[" + strconv.Itoa(i) + "]"
		if got := kit.Kind(raw); got != "object" {
			err := kit.Invalid(path, "must be an object, not %s", got)
			err.Details["index"] = i
			return err
		}
		jobs[i] = &kit.Object{Path: path, Fields: kit.Members(raw), Fault: new(error)}
	}
	rows, err := s.push(c, jobs, key, true)
	if err != nil {
		return err
	}
	w := kit.Writer{}
	w.Open()
	w.Key("jobs")
	w.B = s.appendJobs(w.B, rows, nil)
	w.Integer("count", int64(len(rows)))
	w.Integer("enqueued", int64(len(rows)))
	w.Integer("failed", 0)
	w.Close()
	return kit.Blob(c, http.StatusCreated, w.B)
}

// push sends envelopes to ojs.enqueue_many: all of them become jobs, or none. With a key: once. batch: how the client reads errors.
func (s *Server) push(c echo.Context, jobs []*kit.Object, key *idempotency, batch bool) ([]sqlcgen.OjsJob, error) {
	header, headerName, err := kit.Tenant(c.Request().Header)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	flat := []byte{'['}
	for i, job := range jobs {
		if i > 0 {
			flat = append(flat, ',')
		}
		var whose *string
		flat, whose = appendFlat(flat, job, header, headerName, now)
		if whose != nil {
			flat = append(flat[:len(flat)-1], `,"tenant":`...)
			flat = append(dispatch.AppendString(flat, *whose), '}')
		}
		if err := job.Err(); err != nil {
			var known *pg.Error
			if errors.As(err, &known) && batch {
				known.Details["index"] = i
			}
			return nil, err
		}
	}
	flat = append(flat, ']')

	var rows []sqlcgen.OjsJob
	if key != nil {
		var replayed bool
		rows, replayed, err = s.dispatch.EnqueueOnce(c.Request().Context(), key.Key, flat, len(jobs), header)
		if replayed {
			c.Response().Header().Set(replayedHeader, "true")
		}
	} else {
		rows, err = s.dispatch.EnqueueMany(c.Request().Context(), flat, len(jobs), header)
	}
	if err != nil {
		err = s.db.Err(err)
		var known *pg.Error
		if errors.As(err, &known) && known.Status < http.StatusInternalServerError {
			if known.Details["field"] == idempotencyField {
				known.Details["field"] = key.field
			} else {
				relocate(known, jobs, headerName, batch)
			}
		}
		return nil, err
	}
	if len(rows) != len(jobs) {
		return nil, fmt.Errorf("enqueued %d jobs and got %d back", len(jobs), len(rows))
	}
	return rows, nil
}

func (s *Server) getJob(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	job, err := s.q.JobInfo(ctx, sqlcgen.JobInfoParams{ID: id, Tenant: scope})
	if err != nil {
		return err
	}
	if job.Result == nil {
		return s.writeJob(c, http.StatusOK, &job)
	}
	result, err := s.result(ctx, id, &job.TenantID)
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job, result.attrs()...)
}

func (s *Server) cancel(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	job, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsJob, error) {
		return q.Cancel(ctx, sqlcgen.CancelParams{ID: id, Tenant: scope})
	})
	if err != nil {
		return err
	}
	return s.writeJob(c, http.StatusOK, &job)
}

func (s *Server) activate(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	job, err := patiently(s, c, func(ctx context.Context, q *sqlcgen.Queries) (sqlcgen.OjsJob, error) {
		return q.Activate(ctx, sqlcgen.ActivateParams{ID: id, Tenant: scope})
	})
	if err != nil {
		return err
	}
	// Only pending jobs can be activated, and enqueued_at is the time it happened.
	return s.writeJob(c, http.StatusOK, &job,
		kit.Attr{Name: "previous_state", Raw: []byte(`"pending"`)}, kit.Attr{Name: "activated_at", Raw: kit.AppendTime(nil, job.EnqueuedAt)})
}

// jobRef reads the job a path names. An id that no job can have is an unknown job.
func jobRef(c echo.Context) (id string, scope *string, err error) {
	scope, _, err = kit.Tenant(c.Request().Header)
	if err != nil {
		return "", nil, err
	}
	id = c.Param("id")
	if !kit.IsUUID(id) {
		return "", nil, kit.Refuse(kit.CodeNotFound, "id", "job %q does not exist: ids are UUIDs in lowercase with hyphens", kit.Clip(id))
	}
	return id, scope, nil
}

func (s *Server) writeJob(c echo.Context, status int, job *sqlcgen.OjsJob, more ...kit.Attr) error {
	w := kit.Writer{}
	w.Open()
	w.Key("job")
	w.B = s.appendJob(w.B, job, more...)
	w.Close()
	return kit.Blob(c, status, w.B)
}
