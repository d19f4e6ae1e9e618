package httpapi

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// Results of jobs (ojs-results).

// maxResults is the most jobs that one request asks the results of.
const maxResults = 1000

type outcome sqlcgen.JobResultsRow

func (o *outcome) ended() bool {
	return o.State == "completed" || o.State == "cancelled" || o.State == "discarded"
}

// attrs says of a result when it was stored, how large it is and until when it stays; without that: for ever.
func (o *outcome) attrs() []attr {
	if o.Result == nil {
		return nil
	}
	list := []attr{{"result_stored_at", appendTime(nil, *o.ResultStoredAt)}, {"result_size_bytes", strconv.AppendInt(nil, int64(o.ResultSizeBytes), 10)}}
	if o.ResultExpiresAt.Unix() > 0 {
		list = append(list, attr{"result_expires_at", appendTime(nil, o.ResultExpiresAt)})
	}
	return list
}

func (w *writer) outcome(o *outcome) {
	w.text("state", o.State)
	w.key("result")
	if o.Result == nil {
		w.b = append(w.b, "null"...)
	} else {
		w.b = append(w.b, o.Result...)
	}
	if o.Error != nil {
		w.raw("error", o.Error)
	}
	for _, a := range o.attrs() {
		w.raw(a.name, a.raw)
	}
}

func (s *Server) result(ctx context.Context, id string, scope *string) (*outcome, error) {
	rows, err := s.q.JobResults(ctx, sqlcgen.JobResultsParams{Ids: []string{id}, Tenant: scope, MaxBytes: math.MaxInt64})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, noSuch("job", id)
	}
	return (*outcome)(&rows[0]), nil
}

// getResult shows what became of a job; with wait=true it stays open until that is known, for timeout seconds.
func (s *Server) getResult(c echo.Context) error {
	id, scope, err := jobRef(c)
	if err != nil {
		return err
	}
	var wait bool
	if v := c.QueryParam("wait"); v != "" {
		if wait, err = strconv.ParseBool(v); err != nil {
			return invalid("wait", "must be true or false")
		}
	}
	seconds, err := queryInteger(c, "timeout", 30, 0, 3600)
	if err != nil {
		return err
	}
	over := time.Now().Add(min(time.Duration(seconds)*time.Second, s.limits.Wait))
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		ctx, cancel := s.query(c)
		found, err := s.result(ctx, id, scope)
		cancel()
		if err != nil {
			return err
		}
		left := time.Until(over)
		switch {
		case found.Pruned:
			return refuse(codeResultPruned, "id", "the result of job %s expired at %s", id, appendTime(nil, found.ResultExpiresAt))
		case found.ended() || !wait:
			w := writer{}
			w.open()
			w.text("job_id", id)
			w.outcome(found)
			w.close()
			if !found.ended() {
				retryLater(c)
			}
			return blob(c, http.StatusOK, w.b)
		case left <= 0:
			return &pg.Error{Code: codeTimeout, Message: "job " + id + " is still " + found.State, Details: map[string]any{"job_id": id, "current_state": found.State}}
		}
		select {
		case <-time.After(min(pause, left)):
		case <-s.draining:
			over = time.Now()
		case <-c.Request().Context().Done():
			return c.Request().Context().Err()
		}
	}
}

// listResults answers for every id; what is not there, has not ended or was removed is null.
func (s *Server) listResults(c echo.Context) error {
	req, scope, err := s.scoped(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	if !req.has("ids") {
		req.missing("ids")
	}
	ids := req.ids("ids")
	if err := req.err(); err != nil {
		return err
	}
	if len(ids) > maxResults {
		return invalid("ids", "must name at most %d jobs", maxResults)
	}
	ctx, cancel := s.query(c)
	defer cancel()
	rows, err := s.q.JobResults(ctx, sqlcgen.JobResultsParams{Ids: ids, Tenant: scope, MaxBytes: s.limits.List})
	if err != nil {
		return err
	}
	found := make(map[string]*outcome, len(rows))
	for i := range rows {
		found[rows[i].ID] = (*outcome)(&rows[i])
	}
	w := writer{}
	w.open()
	w.key("results")
	w.comma = false
	w.open()
	for _, id := range ids {
		o, ok := found[id]
		if ok && o == nil {
			continue // named twice
		}
		found[id] = nil
		w.key(id)
		if !ok {
			w.b = append(w.b, "null"...)
			continue
		}
		w.comma = false
		w.open()
		w.outcome(o)
		w.close()
	}
	w.close()
	w.close()
	return blob(c, http.StatusOK, w.b)
}
