package httpapi

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Results of jobs (ojs-results).

func (s *Server) resultRoutes() []route {
	return scoped([]route{
		{
			Method: http.MethodGet, Path: v1 + "/jobs/:id/result", Scope: scopeRead, Queues: queueOfJob,
			Query: "wait timeout", Handler: s.getResult,
		},
		{Method: http.MethodPost, Path: v1 + "/jobs/results", Scope: scopeRead, Queues: queuesInBody, Handler: s.listResults},
	})
}

// maxResults is the largest number of jobs that one request asks the results of.
const maxResults = 1000

// outcome is the state of a job, and its result if it has one.
type outcome sqlcgen.JobResultsRow

func (o *outcome) ended() bool { return o.ResultStoredAt != nil }

// attrs returns when the result was stored, how large it is and when it expires. A result without
// the last one is kept for ever.
func (o *outcome) attrs() []jsonbody.Attr {
	if o.Result == nil {
		return nil
	}
	list := []jsonbody.Attr{
		{Name: "result_stored_at", Raw: jsonbody.AppendTime(nil, *o.ResultStoredAt)},
		{Name: "result_size_bytes", Raw: strconv.AppendInt(nil, int64(o.ResultSizeBytes), 10)},
	}
	if o.ResultExpiresAt.Unix() > 0 {
		list = append(list, jsonbody.Attr{Name: "result_expires_at", Raw: jsonbody.AppendTime(nil, o.ResultExpiresAt)})
	}
	return list
}

// result reads the state and the result of a job. It fails with 404 if there is no such job.
func (s *Server) result(ctx context.Context, id string, scope *string) (*outcome, error) {
	rows, err := s.q.JobResults(ctx, sqlcgen.JobResultsParams{Ids: []string{id}, Tenant: scope, MaxBytes: math.MaxInt64})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, problems.NoSuch("job", id)
	}
	return (*outcome)(&rows[0]), nil
}

// getResult answers with the state and the result of a job. With wait=true it first waits until the
// job has ended, for at most timeout seconds.
func (s *Server) getResult(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	var wait bool
	if v := c.QueryParam("wait"); v != "" {
		if wait, err = strconv.ParseBool(v); err != nil {
			return problems.Invalid("wait", "must be true or false")
		}
	}
	seconds, err := queryInteger(c, "timeout", 30, 0, 3600)
	if err != nil {
		return err
	}
	over := time.Now().Add(min(time.Duration(seconds)*time.Second, s.limits.Wait))
	for {
		found, err := s.lookAtResult(c, id, scope)
		if err != nil {
			return err
		}
		left := time.Until(over)
		switch {
		case found.Pruned:
			return problems.Refuse(
				problems.CodeResultPruned, "id", "the result of job %s expired at %s", id, jsonbody.AppendTime(nil, found.ResultExpiresAt),
			)
		case found.ended() || !wait:
			return writeResult(c, id, found)
		case left <= 0:
			return &pg.Error{
				Code: problems.CodeTimeout, Message: "job " + id + " is still " + found.State,
				Details: map[string]any{"job_id": id, "current_state": found.State},
			}
		}
		if err := s.mayWait(c); err != nil {
			return err
		}
		ending, stop := s.endings.wait(id, scope)
		select {
		case <-ending.over:
			err = ending.err
		case <-time.After(left):
		case <-s.draining:
			over = time.Now()
		case <-c.Request().Context().Done():
			err = c.Request().Context().Err()
		}
		stop()
		if err != nil {
			return err
		}
	}
}

// lookAtResult is result with a time limit of its own, because a request that waits may take longer
// than queryContext allows.
func (s *Server) lookAtResult(c echo.Context, id string, scope *string) (*outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), s.limits.Query)
	defer cancel()
	return s.result(ctx, id, scope)
}

func writeResult(c echo.Context, id string, found *outcome) error {
	w := jsonbody.Writer{}
	w.Open()
	w.Text("job_id", id)
	found.write(&w)
	w.Close()
	if !found.ended() {
		retryLater(c)
	}
	return writeBlob(c, http.StatusOK, w.B)
}

// jobsOver asks the database which of the jobs have ended or are gone, for all requests that wait.
func (s *Server) jobsOver(ctx context.Context, jobs []awaited) ([]awaited, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limits.Query)
	defer cancel()
	arg := sqlcgen.JobsOverParams{Ids: make([]string, len(jobs)), Tenants: make([]string, len(jobs))}
	for i, job := range jobs {
		arg.Ids[i], arg.Tenants[i] = job.id, job.tenant
	}
	over, err := s.q.JobsOver(ctx, arg)
	if err != nil {
		return nil, err
	}
	found := make([]awaited, len(over))
	for i, job := range over {
		found[i] = awaited{job.ID, job.TenantID}
	}
	return found, nil
}

type resultsRequest struct {
	IDs []string `json:"ids" check:"id"`
}

// Check refuses a body without ids, or with too many.
func (r *resultsRequest) Check(o *jsonbody.Object) {
	if !o.Has("ids") {
		o.Missing("ids")
	}
	if len(r.IDs) > maxResults {
		o.Fail(problems.Invalid("ids", "must name at most %d jobs", maxResults))
	}
}

// listResults answers for every id. A job that does not exist has null. A job that has not ended,
// or whose result was removed, has an object whose result is null.
func (s *Server) listResults(c echo.Context) error {
	var req resultsRequest
	if err := c.Bind(&req); err != nil {
		return err
	}
	if err := s.forJobs(c, "ids", req.IDs...); err != nil {
		return err
	}
	rows, err := s.q.JobResults(s.queryContext(c), sqlcgen.JobResultsParams{
		Ids: req.IDs, Tenant: requestTenant(c), MaxBytes: s.limits.List,
	})
	if err != nil {
		return err
	}
	size := 0
	for i := range rows {
		size += len(rows[i].Result) + len(rows[i].Error)
	}
	give, err := s.carry(c, size)
	if err != nil {
		return err
	}
	defer give()
	found := make(map[string]*outcome, len(rows))
	for i := range rows {
		found[rows[i].ID] = (*outcome)(&rows[i])
	}
	w := jsonbody.Writer{}
	w.Open()
	w.Key("results")
	w.Comma = false
	w.Open()
	for _, id := range req.IDs {
		o, ok := found[id]
		if ok && o == nil {
			continue // the client named the job twice
		}
		found[id] = nil
		w.Key(id)
		if !ok {
			w.B = append(w.B, "null"...)
			continue
		}
		w.Comma = false
		w.Open()
		o.write(&w)
		w.Close()
	}
	w.Close()
	w.Close()
	return writeBlob(c, http.StatusOK, w.B)
}

func (o *outcome) write(w *jsonbody.Writer) {
	w.Text("state", o.State)
	w.Key("result")
	if o.Result == nil {
		w.B = append(w.B, "null"...)
	} else {
		w.B = append(w.B, o.Result...)
	}
	if o.Error != nil {
		w.Raw("error", o.Error)
	}
	for _, a := range o.attrs() {
		w.Raw(a.Name, a.Raw)
	}
}
