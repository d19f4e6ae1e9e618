package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

func (s *Server) settleRoutes() []route {
	return scoped([]route{
		{Method: http.MethodPost, Path: v1 + "/jobs/:id/ack", Scope: scopeWork, Queues: queueOfJob, Handler: s.ack},
		{Method: http.MethodPost, Path: v1 + "/jobs/:id/nack", Scope: scopeWork, Queues: queueOfJob, Handler: s.nack},
		{Method: http.MethodPost, Path: v1 + "/workers/ack", Scope: scopeWork, Queues: queuesInBody, Handler: s.ack},
		{Method: http.MethodPost, Path: v1 + "/workers/nack", Scope: scopeWork, Queues: queuesInBody, Handler: s.nack},
	})
}

// maxAckJobs is the largest number of jobs that one ACK or NACK names.
const maxAckJobs = 1000

func (s *Server) ack(c echo.Context) error {
	return s.settle(c, verb{jsonbody.Parts{Lists: []string{"jobs"}}, readAck, wire.appendAcked})
}

func (s *Server) nack(c echo.Context) error {
	return s.settle(c, verb{jsonbody.Parts{Lists: []string{"jobs"}, Repair: "error"}, readNack, wire.appendNacked})
}

// verb is an ACK or a NACK. parts are the parts of the body that are judged by themselves. read reads
// what the request says about one job, and shape writes the answer about it; with whole the answer
// holds the whole job.
type verb struct {
	parts jsonbody.Parts
	read  func(*jsonbody.Object, *dispatch.Settlement)
	shape func(out wire, w *jsonbody.Writer, job *sqlcgen.OjsJob, whole bool)
}

// attempt holds the fields that the ACK and the NACK of a job have in common.
type attempt struct {
	JobID    *string `json:"job_id" check:"id"`
	Lease    *string `json:"lease" check:"id"`
	WorkerID *string `json:"worker_id" check:"name"`
}

type ackRequest struct {
	attempt
	Result json.RawMessage `json:"result" check:"verbatim"`
}

func readAck(o *jsonbody.Object, to *dispatch.Settlement) {
	var req ackRequest
	o.Into(&req)
	to.Lease, to.WorkerID, to.Result = req.Lease, req.WorkerID, req.Result
	takeID(o, to, req.JobID)
}

type nackRequest struct {
	attempt
	Requeue bool            `json:"requeue"`
	Error   json.RawMessage `json:"error" check:"required,object"`

	failure failure
}

// Check reads the fields of error.
func (r *nackRequest) Check(o *jsonbody.Object) {
	if child := o.Child("error"); child != nil {
		child.Into(&r.failure)
	}
}

// failure holds the fields of Error that are checked. Error is stored with all its fields.
type failure struct {
	_         struct{}        `check:"near"`
	Code      *string         `json:"code"`
	Type      *string         `json:"type"`
	Message   *string         `json:"message" check:"required"`
	Retryable *bool           `json:"retryable"`
	Details   json.RawMessage `json:"details"`
	Detail    json.RawMessage `json:"detail"` // field of a problem as in RFC 9457
	Backtrace json.RawMessage `json:"backtrace"`
}

// mostErrorLevels is how many levels an error is stored with: ojs._error_cut allows as many.
const mostErrorLevels = 100

func readNack(o *jsonbody.Object, to *dispatch.Settlement) {
	var req nackRequest
	o.Into(&req)
	to.Lease, to.WorkerID, to.Requeue = req.Lease, req.WorkerID, req.Requeue
	if o.Err() == nil {
		to.Error = jsonbody.StorableError(req.Error, mostErrorLevels)
	}
	if req.failure.Message != nil {
		to.Message = *req.failure.Message
	}
	takeID(o, to, req.JobID)
}

// takeID sets which job is meant: the path's, which is in to already, or job_id of the body. It
// fails if neither names a job, or if they differ.
func takeID(o *jsonbody.Object, to *dispatch.Settlement, id *string) {
	switch {
	case to.ID == "" && id == nil:
		o.Missing("job_id")
	case to.ID == "":
		to.ID = *id
	case id != nil && *id != to.ID:
		o.Fail(problems.Invalid(o.At("job_id"), "disagrees with the path"))
	}
}

// settle ends the attempts of jobs. A request names one job in the body or in the path, or it has
// many under jobs, each of which succeeds or fails by itself.
func (s *Server) settle(c echo.Context, v verb) error {
	pathID := c.Param("id")
	if pathID != "" {
		if _, _, err := jobRef(c); err != nil {
			return err
		}
	}
	// The body may be larger than a result may be, so that SQL refuses a result that is too large,
	// and says so.
	req, err := s.body(c, max(s.limits.Body, s.limits.BatchBody), pathID != "", v.parts)
	if err != nil {
		return err
	}
	if pathID == "" && req.Raw("jobs") != nil {
		return s.settleMany(c, req, v)
	}
	if req.Whole != nil {
		return req.Whole
	}
	one := []dispatch.Settlement{{ID: pathID, Tenant: requestTenant(c)}}
	v.read(req, &one[0])
	whole := representation(c)
	if err := req.Err(); err != nil {
		return err
	}
	if pathID == "" {
		if err := s.forJobs(c, "job_id", one[0].ID); err != nil {
			return err
		}
	}
	done := s.dispatch.Settle(s.queryContext(c), one, whole)
	if done[0].Err != nil {
		return done[0].Err
	}
	w := jsonbody.Writer{}
	v.shape(s.wire(), &w, &done[0].Job, whole)
	return writeBlob(c, http.StatusOK, w.B)
}

// settleBatch is an ACK or NACK of many jobs. settled holds the outcome of each job in asked, at
// the same index.
type settleBatch struct {
	asked   []dispatch.Settlement
	settled []dispatch.Settled
	worker  *string // worker_id of the request, for jobs that name none
}

// settleMany ends the attempts of many jobs. It never answers with whole jobs, whatever the client
// prefers: a thousand of them may have gigabytes, and once they are settled it is too late to
// refuse.
func (s *Server) settleMany(c echo.Context, req *jsonbody.Object, v verb) error {
	b, err := readBatch(c, req, v)
	if err != nil {
		return err
	}
	if err := s.settleAll(c, b); err != nil {
		return err
	}
	s.logUnsettled(c, b)
	out, w, done := s.wire(), jsonbody.Writer{}, 0
	w.Open()
	w.Key("results")
	w.B = append(w.B, '[')
	for i := range b.settled {
		if i > 0 {
			w.B = append(w.B, ',')
		}
		if b.settled[i].Err == nil {
			done++
			v.shape(out, &w, &b.settled[i].Job, false)
		} else if err := s.appendUnsettled(c, &w, b, i); err != nil {
			return err
		}
	}
	w.B = append(w.B, ']')
	w.Comma = true
	w.Integer("succeeded", int64(done))
	w.Integer("failed", int64(len(b.settled)-done))
	w.Close()
	return writeBlob(c, http.StatusOK, w.B)
}

// readBatch reads the jobs of a request. The fault of a job that cannot be read goes to settled, so
// that the other jobs are settled all the same and do not lose their leases.
func readBatch(c echo.Context, req *jsonbody.Object, v verb) (*settleBatch, error) {
	jsonbody.Only(req, "jobs", "worker_id")
	items := req.Items("jobs")
	if items != nil && (len(items) < 1 || len(items) > maxAckJobs) {
		req.Fail(problems.Invalid("jobs", "must hold between 1 and %d jobs", maxAckJobs))
	}
	b := &settleBatch{
		asked: make([]dispatch.Settlement, len(items)), settled: make([]dispatch.Settled, len(items)), worker: req.Name("worker_id"),
	}
	if err := req.Err(); err != nil {
		return nil, err
	}
	for i := range items {
		b.asked[i].Tenant = requestTenant(c)
		at := jobAt(i)
		if err := req.Broken(at); err != nil {
			b.settled[i].Err = err
			// The answer says which job it is about.
			if id := jsonbody.LooseText(items[i].Raw, "job_id"); jsonbody.IsUUID(id) {
				b.asked[i].ID = id
			}
		} else if item := jsonbody.ObjectOf(&items[i], at, &b.settled[i].Err); item.Err() == nil {
			v.read(item, &b.asked[i])
		}
		if b.asked[i].WorkerID == nil {
			b.asked[i].WorkerID = b.worker
		}
	}
	return b, nil
}

// settleAll settles the jobs that could be read. It fails if each of these jobs got an error of
// status 503: the database was away, or other sessions hold locks on all of the jobs. The client
// then knows, without a look at each job, that it has to send all jobs of the request again, also
// the jobs that cannot be read.
func (s *Server) settleAll(c echo.Context, b *settleBatch) error {
	if err := s.bound(c, b); err != nil {
		return err
	}
	good := make([]int, 0, len(b.asked))
	asked := make([]dispatch.Settlement, 0, len(b.asked))
	for i := range b.asked {
		if b.settled[i].Err == nil {
			good, asked = append(good, i), append(asked, b.asked[i])
		}
	}
	if len(good) == 0 {
		return nil
	}
	away := 0
	for n, done := range s.dispatch.Settle(s.queryContext(c), asked, false) {
		b.settled[good[n]] = done
		if done.Err != nil && s.problems.classify(done.Err).Status == http.StatusServiceUnavailable {
			away++
		}
	}
	switch {
	case away == len(good):
		return b.settled[good[0]].Err
	case away > 0:
		retryLater(c)
	}
	return nil
}

// bound refuses each job of a batch whose queue is not one of the credential's queues. It puts the
// error into settled, so that the other jobs are settled all the same.
func (s *Server) bound(c echo.Context, b *settleBatch) error {
	ids := make([]string, len(b.asked))
	for i := range b.asked {
		ids[i] = b.asked[i].ID
	}
	elsewhere, err := s.elsewhere(c, ids)
	if err != nil {
		return err
	}
	for i, id := range ids {
		if b.settled[i].Err == nil && slices.Contains(elsewhere, id) {
			b.settled[i].Err = notItsJob(jobAt(i)+".job_id", id)
		}
	}
	return nil
}

// appendUnsettled writes why the job at index was not settled.
func (s *Server) appendUnsettled(c echo.Context, w *jsonbody.Writer, b *settleBatch, index int) error {
	spelledBy(c, func(problem *pg.Error) string {
		switch root, _, _ := strings.Cut(problem.Field, "."); root {
		case "worker_id":
			if b.asked[index].WorkerID == b.worker {
				return "" // it stands next to jobs
			}
			fallthrough
		case "lease", "result", "error":
			return jobAt(index) + "." + problem.Field
		}
		return ""
	})
	problem := s.problems.explain(c, b.settled[index].Err)
	problem.Index = &index
	body, err := json.Marshal(problemBody(problem, requestID(c)))
	if err != nil {
		return fmt.Errorf("encode an error: %w", err)
	}
	w.Open()
	if id := b.asked[index].ID; id != "" {
		w.Text("id", id)
		w.Text("job_id", id)
	}
	w.Integer("status", int64(problem.Status))
	w.Raw("error", body)
	w.Close()
	return nil
}

// logUnsettled logs the failures that are not the client's fault, each once, with the number of
// jobs that it concerns.
func (s *Server) logUnsettled(c echo.Context, b *settleBatch) {
	jobs, first := map[[2]string]int{}, map[[2]string]int{}
	for i := range b.settled {
		if b.settled[i].Err == nil {
			continue
		}
		problem := s.problems.classify(b.settled[i].Err)
		if problem.Status < http.StatusInternalServerError {
			continue
		}
		which := [2]string{problem.Code, problem.SQLState}
		if jobs[which]++; jobs[which] == 1 {
			first[which] = i
		}
	}
	for which, i := range first {
		s.log.Error("jobs could not be settled", "request_id", requestID(c),
			"jobs", jobs[which], "job", b.asked[i].ID, "error", b.settled[i].Err)
	}
}

func (out wire) appendAcked(w *jsonbody.Writer, job *sqlcgen.OjsJob, whole bool) {
	w.Open()
	w.Flag("acknowledged", true)
	w.Text("id", job.ID)
	w.Text("job_id", job.ID)
	w.Text("state", job.State)
	w.Time("completed_at", job.FinishedAt)
	if whole {
		w.Key("job")
		w.B = out.appendJob(w.B, job)
	}
	w.Close()
}

func (out wire) appendNacked(w *jsonbody.Writer, job *sqlcgen.OjsJob, whole bool) {
	w.Open()
	w.Text("id", job.ID)
	w.Text("job_id", job.ID)
	w.Text("state", job.State)
	w.Integer("attempt", int64(job.Attempt))
	w.Integer("max_attempts", int64(job.MaxAttempts))
	switch job.State {
	case "retryable":
		if failures := failuresOf(job); len(failures) > 0 {
			if delay, ok := retryDelay(job, failures[len(failures)-1]); ok {
				w.Integer("retry_delay_ms", delay)
			}
		}
		w.Time("next_attempt_at", job.RetryAt)
	case "discarded":
		w.Time("discarded_at", job.FinishedAt)
		w.Time("completed_at", job.FinishedAt)
	}
	if whole {
		w.Key("job")
		w.B = out.appendJob(w.B, job)
	}
	w.Close()
}
