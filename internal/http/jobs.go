package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/dispatch"
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
		rows, err := s.push(c, []*object{job}, key, false)
		if err != nil {
			return err
		}
		return s.writeEnqueued(c, &rows[0])
	}
	header, headerName, err := tenant(c.Request().Header)
	if err != nil {
		return err
	}
	flat, whose := appendFlat(nil, job, header, headerName, time.Now())
	if err := job.err(); err != nil {
		return err
	}
	row, err := s.dispatch.Enqueue(c.Request().Context(), flat, whose)
	if err != nil {
		var known *pg.Error
		if errors.As(err, &known) && known.Status < http.StatusInternalServerError {
			relocate(known, []*object{job}, headerName, false)
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
	if !req.has("jobs") {
		req.missing("jobs")
	}
	items := req.list("jobs")
	key, err := idempotencyKey(c, req, true)
	if err != nil {
		return err
	}
	if err := req.err(); err != nil {
		return err
	}
	if len(items) < 1 || len(items) > s.limits.BatchJobs {
		return invalid("jobs", "must hold between 1 and %d jobs", s.limits.BatchJobs)
	}
	jobs := make([]*object, len(items))
	for i, raw := range items {
		path := "jobs[" + strconv.Itoa(i) + "]"
		if got := kind(raw); got != "object" {
			err := invalid(path, "must be an object, not %s", got)
			err.Details["index"] = i
			return err
		}
		jobs[i] = &object{path: path, fields: members(raw), fault: new(error)}
	}
	rows, err := s.push(c, jobs, key, true)
	if err != nil {
		return err
	}
	w := writer{}
	w.open()
	w.key("jobs")
	w.b = s.appendJobs(w.b, rows, nil)
	w.integer("count", int64(len(rows)))
	w.integer("enqueued", int64(len(rows)))
	w.integer("failed", 0)
	w.close()
	return blob(c, http.StatusCreated, w.b)
}

// push sends envelopes to ojs.enqueue_many: all of them become jobs, or none. With a key: once. batch: how the client reads errors.
func (s *Server) push(c echo.Context, jobs []*object, key *idempotency, batch bool) ([]sqlcgen.OjsJob, error) {
	header, headerName, err := tenant(c.Request().Header)
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
		if err := job.err(); err != nil {
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
		attr{"previous_state", []byte(`"pending"`)}, attr{"activated_at", appendTime(nil, job.EnqueuedAt)})
}

// jobRef reads the job a path names. An id that no job can have is an unknown job.
func jobRef(c echo.Context) (id string, scope *string, err error) {
	scope, _, err = tenant(c.Request().Header)
	if err != nil {
		return "", nil, err
	}
	id = c.Param("id")
	if !isUUID(id) {
		return "", nil, refuse(codeNotFound, "id", "job %q does not exist: ids are UUIDs in lowercase with hyphens", clip(id))
	}
	return id, scope, nil
}

func (s *Server) writeJob(c echo.Context, status int, job *sqlcgen.OjsJob, more ...attr) error {
	w := writer{}
	w.open()
	w.key("job")
	w.b = s.appendJob(w.b, job, more...)
	w.close()
	return blob(c, status, w.b)
}
