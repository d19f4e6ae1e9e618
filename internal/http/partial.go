package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

// partially reports whether a batch asks for atomicity partial (ojs-bulk-operations section 5.3).
// It refuses that with an idempotency key, because a partial answer cannot be repeated.
func partially(req *jsonbody.Object, key *idempotency) bool {
	mode := req.Text("atomicity")
	switch {
	case mode == nil || *mode == "atomic":
		return false
	case *mode != "partial":
		req.Fail(problems.Invalid("atomicity", `must be "atomic" or "partial"`))
	case key != nil:
		req.Fail(problems.Refuse(problems.CodeUnsupported, "atomicity", "atomicity partial is not supported with an idempotency key"))
	}
	return true
}

// queuesOf returns the queues of jobs, each of them once.
func queuesOf(jobs []*dispatch.NewJob) []string {
	queues := make([]string, len(jobs))
	for i, job := range jobs {
		queues[i] = job.QueueName()
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

// enqueueEach enqueues each job of a batch by itself. It answers 201 if all are enqueued, and 207
// if some are. If none is, it answers with the first error.
func (s *Server) enqueueEach(c echo.Context, sent []*jsonbody.Object, jobs []*dispatch.NewJob) error {
	header, headerName := requestTenant(c), scopeHeader(c)
	outcomes, err := s.dispatch.EnqueueEach(c.Request().Context(), jobs, header)
	if err != nil {
		return s.db.Err(err)
	}
	status, made := http.StatusCreated, make([]sqlcgen.OjsJob, 0, len(jobs))
	results, problems := make([]map[string]any, len(jobs)), make([]*pg.Error, 0, len(jobs))
	spelledBy(c, spellJobs(nil, sent, headerName, true))
	for i, outcome := range outcomes {
		if outcome.Err == nil {
			made = append(made, outcome.Job)
			results[i] = map[string]any{"index": i, "status": "created", "id": outcome.Job.ID}
			continue
		}
		problem := s.problems.explain(c, outcome.Err)
		status, problems = http.StatusMultiStatus, append(problems, problem)
		results[i] = map[string]any{"index": i, "status": "failed", "error": problemBody(problem, requestID(c))}
	}
	if len(made) == 0 {
		return outcomes[0].Err
	}
	for _, problem := range problems {
		s.problems.refused.count(problem)
	}
	s.pressure(c, queuesOf(jobs)...)
	list, err := json.Marshal(results)
	if err != nil {
		return err
	}
	w := jsonbody.Writer{}
	w.Open()
	w.Key("results")
	w.B = append(w.B, list...)
	w.Key("jobs")
	w.B = s.wire().appendJobs(w.B, made, nil)
	w.Integer("count", int64(len(made)))
	w.Integer("enqueued", int64(len(made)))
	w.Integer("failed", int64(len(jobs)-len(made)))
	w.Close()
	return writeBlob(c, status, w.B)
}
