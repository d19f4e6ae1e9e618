package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) enqueue(c echo.Context) error {
	req, err := s.body(c, s.limits.Body, false, jsonbody.Parts{})
	if err != nil {
		return err
	}
	key, err := idempotencyKey(c, req)
	if err != nil {
		return err
	}
	req.Remove(idempotencyField)
	header, headerName := requestTenant(c), scopeHeader(c)
	job := readJob(req, header, headerName, time.Now())
	if err := req.Err(); err != nil {
		return err
	}
	if err := forQueues(c, "queue", job.QueueName()); err != nil {
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
		spelledBy(c, spellJobs(key, []*jsonbody.Object{req}, headerName, false))
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/jobs/"+row.ID)
	s.pressure(c, row.Queue)
	return s.writeJob(c, http.StatusCreated, &row)
}

// enqueueBatch enqueues all jobs of a batch or none. With atomicity partial each job succeeds or
// fails by itself.
func (s *Server) enqueueBatch(c echo.Context) error {
	req, err := s.body(c, s.limits.BatchBody, false, jsonbody.Parts{Lists: []string{"jobs"}})
	if err != nil {
		return err
	}
	jsonbody.Only(req, "jobs", "atomicity", idempotencyField)
	if !req.Has("jobs") {
		req.Missing("jobs")
	}
	items := req.Items("jobs")
	key, err := idempotencyKey(c, req)
	if err != nil {
		return err
	}
	partial := partially(req, key)
	if err := req.Err(); err != nil {
		return err
	}
	if req.Whole != nil && !partial {
		return req.Whole
	}
	if len(items) < 1 || len(items) > s.limits.BatchJobs {
		return problems.Invalid("jobs", "must hold between 1 and %d jobs", s.limits.BatchJobs)
	}
	header, headerName := requestTenant(c), scopeHeader(c)
	if partial {
		return s.enqueueEach(c, req, items)
	}
	sent, jobs, err := readJobs(items, header, headerName)
	if err != nil {
		return err
	}
	for i, job := range jobs {
		if err := forQueues(c, jobAt(i)+".queue", job.QueueName()); err != nil {
			return err
		}
	}
	var rows []sqlcgen.OjsJob
	if key == nil {
		rows, err = s.dispatch.EnqueueMany(c.Request().Context(), jobs, header)
	} else {
		rows, err = s.enqueueOnce(c, key, jobs, header)
	}
	if err != nil {
		spelledBy(c, spellJobs(key, sent, headerName, true))
		return err
	}
	s.pressure(c, queuesOf(jobs)...)
	w := jsonbody.Writer{}
	w.Open()
	w.Key("jobs")
	w.B = s.wire().appendJobs(w.B, rows, nil)
	w.Integer("count", int64(len(rows)))
	w.Integer("enqueued", int64(len(rows)))
	w.Integer("failed", 0)
	w.Close()
	return writeBlob(c, http.StatusCreated, w.B)
}

// readJobs reads the envelopes of a batch. It fails with the first that is no object, or else with
// the first that has a fault. The error holds the index in the batch.
func readJobs(items []jsonbody.Member, header *string, headerName string) (sent []*jsonbody.Object, jobs []*dispatch.NewJob, err error) {
	now := time.Now()
	sent, jobs = make([]*jsonbody.Object, len(items)), make([]*dispatch.NewJob, len(items))
	for i := range items {
		if sent[i] = jsonbody.ObjectOf(&items[i], jobAt(i), &err); err != nil {
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

// atIndex adds the index of a job in its batch to the details of an error, and returns the error.
func atIndex(err error, i int) error {
	var known *pg.Error
	if errors.As(err, &known) {
		known.Index = &i
	}
	return err
}

// enqueueOnce enqueues jobs under an idempotency key. If a request with that key was answered
// before, it returns the jobs of that answer and sets the header Idempotency-Replayed.
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

// writeJob answers with a job under job, which gets the attributes in more, too.
func (s *Server) writeJob(c echo.Context, status int, job *sqlcgen.OjsJob, more ...jsonbody.Attr) error {
	w := jsonbody.Writer{}
	w.Open()
	w.Key("job")
	w.B = s.wire().appendJob(w.B, job, more...)
	// The official command-line tool reads these fields here, and prints nothing if they are
	// missing.
	w.Text("id", job.ID)
	w.Text("type", job.Type)
	w.Text("queue", job.Queue)
	w.Text("state", job.State)
	w.Close()
	return writeBlob(c, status, w.B)
}
