package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

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

// readEach reads the envelopes of a batch, each by itself. An envelope that cannot be read, or that is
// for a queue that the credential is not for, has an error in errs and no job.
func readEach(c echo.Context, req *jsonbody.Object, items []jsonbody.Member) (sent []*jsonbody.Object, jobs []*dispatch.NewJob,
	errs []error,
) {
	header, headerName, now := requestTenant(c), scopeHeader(c), time.Now()
	sent, jobs, errs = make([]*jsonbody.Object, len(items)), make([]*dispatch.NewJob, len(items)), make([]error, len(items))
	for i := range items {
		at := jobAt(i)
		if errs[i] = req.Broken(at); errs[i] != nil {
			continue
		}
		if sent[i] = jsonbody.ObjectOf(&items[i], at, &errs[i]); errs[i] != nil {
			continue
		}
		if job := readJob(sent[i], header, headerName, now); errs[i] == nil {
			if errs[i] = forQueues(c, at+".queue", job.QueueName()); errs[i] == nil {
				jobs[i] = job
			}
		}
	}
	return sent, jobs, errs
}

// ofJob returns an error about one job of a batch, with the job's index in the batch of the client.
func ofJob(err error, i int) error {
	var known *pg.Error
	if !errors.As(err, &known) {
		return err
	}
	own := *known // other jobs may have the same error
	own.Index = &i
	own.Message = amongJobs.ReplaceAllString(own.Message, jobAt(i)+": ")
	return &own
}

// enqueueEach enqueues each job of a batch by itself. It answers 201 if all are enqueued, and 207
// if some are. If none is, it answers with the first error.
func (s *Server) enqueueEach(c echo.Context, req *jsonbody.Object, items []jsonbody.Member) error {
	sent, jobs, errs := readEach(c, req, items)
	good, indexes := make([]*dispatch.NewJob, 0, len(jobs)), make([]int, 0, len(jobs))
	for i, job := range jobs {
		if errs[i] == nil {
			good, indexes = append(good, job), append(indexes, i)
		}
	}
	rows := make([]*sqlcgen.OjsJob, len(items))
	if len(good) > 0 {
		outcomes, err := s.dispatch.EnqueueEach(c.Request().Context(), good, requestTenant(c))
		if err != nil {
			return s.db.Err(err)
		}
		for n, outcome := range outcomes {
			rows[indexes[n]], errs[indexes[n]] = &outcome.Job, outcome.Err
		}
	}
	status, made := http.StatusCreated, make([]sqlcgen.OjsJob, 0, len(good))
	results, problems := make([]map[string]any, len(items)), make([]*pg.Error, 0, len(items))
	spelledBy(c, spellJobs(nil, sent, scopeHeader(c), true))
	for i, err := range errs {
		if err == nil {
			made = append(made, *rows[i])
			results[i] = map[string]any{"index": i, "status": "created", "id": rows[i].ID}
			continue
		}
		problem := s.problems.explain(c, ofJob(err, i))
		status, problems = http.StatusMultiStatus, append(problems, problem)
		results[i] = map[string]any{"index": i, "status": "failed", "error": problemBody(problem, requestID(c))}
	}
	if len(made) == 0 {
		return ofJob(errs[0], 0)
	}
	for _, problem := range problems {
		s.problems.refused.count(problem)
	}
	s.pressure(c, queuesOf(good)...)
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
	w.Integer("failed", int64(len(items)-len(made)))
	w.Close()
	return writeBlob(c, status, w.B)
}
