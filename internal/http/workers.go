package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/http/kit"

	"github.com/labstack/echo/v4"

	"github.com/ojs-pg/ojs-pg/internal/dispatch"
	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/sqlcgen"
)

const (
	maxFetchQueues = 100
	maxFetchCount  = 1000
	maxAckJobs     = 1000
)

func (s *Server) fetch(c echo.Context) error {
	req, scope, err := s.scoped(c, s.limits.Body, false)
	if err != nil {
		return err
	}
	f := dispatch.Fetch{Queues: fetchQueues(req), Count: 1, Tenant: scope}
	if worker := req.Name("worker_id"); worker != nil {
		f.WorkerID = *worker
	}
	if timeout := req.Integer("visibility_timeout_ms", 1); timeout != nil {
		f.VisibilityTimeoutMs = int(*timeout)
	}
	if count := req.Integer("count", 1); count != nil {
		if *count > maxFetchCount {
			req.Fail(kit.Invalid("count", "must be at most %d", maxFetchCount))
		}
		f.Count = int(*count)
	}
	if strategy := req.Text("strategy"); strategy != nil && *strategy != "round-robin" {
		req.Fail(kit.Refuse(kit.CodeUnsupported, "strategy", "strategy %q is not supported; this server takes queues round-robin", kit.Clip(*strategy)))
	}
	if req.Child("weights") != nil {
		req.Fail(kit.Refuse(kit.CodeUnsupported, "weights", "weights of queues are not supported; this server takes queues round-robin"))
	}
	f.Wait = s.wait(c, req)
	if err := req.Err(); err != nil {
		return err
	}
	if f.Wait > 0 {
		if err := s.allowWait(c, f.Wait); err != nil {
			return err
		}
	}
	jobs, err := s.dispatch.Fetch(c.Request().Context(), f)
	if err != nil {
		return err
	}
	// Whoever hung up while the jobs were being claimed must not keep them until the lease ends.
	err = c.Request().Context().Err()
	if err == nil {
		err = s.handOver(c, jobs)
	}
	if err != nil {
		s.dispatch.GiveBack(jobs)
		return fmt.Errorf("hand over %d jobs: %w", len(jobs), err)
	}
	return nil
}

// handOver writes the answer, a large one bit by bit: its jobs are in memory already.
func (s *Server) handOver(c echo.Context, jobs []sqlcgen.OjsJob) error {
	const bit = 1 << 20
	// The writer itself: c is somebody else's when this has returned.
	rc := http.NewResponseController(c.Response().Writer)
	defer context.AfterFunc(s.handing, func() { _ = rc.SetWriteDeadline(time.Now()) })()
	w := kit.Writer{}
	w.Open()
	w.Key("jobs")
	if sizeOf(jobs) <= bit {
		w.B = s.appendJobs(w.B, jobs, leaseOf)
		w.Close()
		return kit.Blob(c, http.StatusOK, w.B)
	}
	res := c.Response()
	res.WriteHeader(http.StatusOK)
	w.B = append(w.B, '[')
	for i := range jobs {
		if i > 0 {
			w.B = append(w.B, ',')
		}
		w.B = s.appendJob(w.B, &jobs[i], leaseOf(&jobs[i])...)
		if len(w.B) < bit {
			continue
		}
		if _, err := res.Write(w.B); err != nil {
			return err
		}
		w.B = w.B[:0]
	}
	w.B = append(w.B, ']')
	w.Close()
	if _, err := res.Write(w.B); err != nil {
		return err
	}
	return http.NewResponseController(res).Flush()
}

func leaseOf(j *sqlcgen.OjsJob) []kit.Attr {
	var more []kit.Attr
	if j.Lease != nil {
		more = append(more, kit.Attr{Name: "lease", Raw: dispatch.AppendString(nil, *j.Lease)})
	}
	if j.LeaseExpiresAt != nil {
		more = append(more, kit.Attr{Name: "lease_expires_at", Raw: kit.AppendTime(nil, *j.LeaseExpiresAt)})
	}
	return more
}

// fetchQueues reads the queues in the order of the request, each once.
func fetchQueues(req *kit.Object) []string {
	if req.Raw("queues") == nil {
		req.Missing("queues")
		return nil
	}
	given := req.Texts("queues")
	if given != nil && (len(given) < 1 || len(given) > maxFetchQueues) {
		req.Fail(kit.Invalid("queues", "must hold between 1 and %d names", maxFetchQueues))
	}
	seen := make(map[string]bool, len(given))
	queues := make([]string, 0, len(given))
	for i, q := range given {
		if q == "" {
			req.Fail(kit.Invalid(fmt.Sprintf("queues[%d]", i), "must not be empty"))
		}
		if !seen[q] {
			seen[q] = true
			queues = append(queues, q)
		}
	}
	return queues
}

// wait is how long the client is willing to wait for a job: wait_ms in the body, else the
// preference of RFC 7240. Longer than the limit becomes the limit, and the answer says so.
func (s *Server) wait(c echo.Context, req *kit.Object) time.Duration {
	limit := s.limits.Wait
	if ms := req.Integer("wait_ms", 0); ms != nil {
		return min(time.Duration(*ms)*time.Millisecond, limit)
	}
	for name, value := range preferences(c) {
		if !strings.EqualFold(name, "wait") {
			continue
		}
		// A preference that cannot be understood is ignored, as RFC 7240 asks.
		seconds, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			continue
		}
		wait := min(time.Duration(seconds)*time.Second, limit)
		c.Response().Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return wait
	}
	return 0
}

// allowWait lifts the deadlines that would end the connection, and with it the request, while it waits.
func (s *Server) allowWait(c echo.Context, wait time.Duration) error {
	rc := http.NewResponseController(c.Response())
	if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("lift the read deadline for a waiting fetch: %w", err)
	}
	if err := rc.SetWriteDeadline(time.Now().Add(wait + s.limits.Write)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("move the write deadline of a waiting fetch: %w", err)
	}
	return nil
}

func (s *Server) ack(c echo.Context) error { return s.settle(c, readAck, s.appendAcked) }

func (s *Server) nack(c echo.Context) error { return s.settle(c, readNack, s.appendNacked) }

// settle ends attempts: one job, named in the body or in the path, or many under jobs, each of
// which succeeds or fails by itself.
func (s *Server) settle(c echo.Context, read func(*kit.Object, *dispatch.Settlement), shape func(*kit.Writer, *sqlcgen.OjsJob, bool)) error {
	pathID := c.Param("id")
	if pathID != "" {
		if _, _, err := jobRef(c); err != nil {
			return err
		}
	}
	// Room for more than a result may have, so that SQL says when one is too large.
	req, scope, err := s.scoped(c, max(s.limits.Body, s.limits.BatchBody), pathID != "")
	if err != nil {
		return err
	}
	if pathID == "" && req.Raw("jobs") != nil {
		return s.settleMany(c, req, scope, read, shape)
	}
	one := []dispatch.Settlement{{ID: jobID(req, pathID), Tenant: scope}}
	read(req, &one[0])
	whole := representation(c, true)
	if err := req.Err(); err != nil {
		return err
	}
	ctx, cancel := s.query(c)
	defer cancel()
	done := s.dispatch.Settle(ctx, one, whole)
	if done[0].Err != nil {
		return done[0].Err
	}
	w := kit.Writer{}
	shape(&w, &done[0].Job, whole)
	return kit.Blob(c, http.StatusOK, w.B)
}

func (s *Server) settleMany(
	c echo.Context, req *kit.Object, scope *string, read func(*kit.Object, *dispatch.Settlement), shape func(*kit.Writer, *sqlcgen.OjsJob, bool),
) error {
	items := req.Items("jobs")
	if items != nil && (len(items) < 1 || len(items) > maxAckJobs) {
		req.Fail(kit.Invalid("jobs", "must hold between 1 and %d jobs", maxAckJobs))
	}
	worker := req.Name("worker_id")
	if err := req.Err(); err != nil {
		return err
	}
	whole := representation(c, false)
	many := make([]dispatch.Settlement, len(items))
	settled := make([]dispatch.Settled, len(items))
	good := make([]int, 0, len(items))
	for i := range items {
		// One that cannot be read must not cost the others their leases.
		item := kit.ObjectOf(&items[i], "jobs["+strconv.Itoa(i)+"]", &settled[i].Err)
		if settled[i].Err == nil {
			many[i] = dispatch.Settlement{ID: jobID(item, ""), Tenant: scope}
			read(item, &many[i])
		}
		if many[i].WorkerID == nil {
			many[i].WorkerID = worker
		}
		if settled[i].Err == nil {
			good = append(good, i)
		}
	}
	if len(good) > 0 {
		asked := make([]dispatch.Settlement, len(good))
		for n, i := range good {
			asked[n] = many[i]
		}
		ctx, cancel := s.query(c)
		defer cancel()
		away := 0
		for n, done := range s.dispatch.Settle(ctx, asked, whole) {
			settled[good[n]] = done
			if done.Err != nil && s.problems.Classify(done.Err).Status == http.StatusServiceUnavailable {
				away++
			}
		}
		switch {
		case away == len(good):
			// Nothing is known to be settled: the database was away, or others hold all of them. A client need not look at each to know that it is to send all of
			// them again, those that cannot be read, too.
			return settled[good[0]].Err
		case away > 0:
			kit.RetryLater(c)
		}
	}
	s.logUnsettled(c, many, settled)
	w := kit.Writer{}
	w.Open()
	w.Key("results")
	w.B = append(w.B, '[')
	done := 0
	for i := range settled {
		if i > 0 {
			w.B = append(w.B, ',')
		}
		err := settled[i].Err
		if err == nil {
			done++
			shape(&w, &settled[i].Job, whole)
			continue
		}
		problem := s.problems.Classify(err)
		problem.Details = maps.Clone(problem.Details) // several may share it
		if problem.Details == nil {
			problem.Details = map[string]any{}
		}
		problem.Details["index"] = i
		kit.NameHeader(problem, c.Request().Header)
		relocateSettled(problem, "jobs["+strconv.Itoa(i)+"].", many[i].WorkerID == worker)
		body, err := json.Marshal(kit.ProblemBody(problem, kit.RequestID(c)))
		if err != nil {
			return fmt.Errorf("encode an error: %w", err)
		}
		w.Open()
		if many[i].ID != "" {
			w.Text("id", many[i].ID)
			w.Text("job_id", many[i].ID)
		}
		w.Integer("status", int64(problem.Status))
		w.Raw("error", body)
		w.Close()
	}
	w.B = append(w.B, ']')
	w.Comma = true
	w.Integer("succeeded", int64(done))
	w.Integer("failed", int64(len(settled)-done))
	w.Close()
	return kit.Blob(c, http.StatusOK, w.B)
}

// relocateSettled rewrites an error of ojs.settle about one of many, in the client's terms. shared: worker_id stands beside jobs.
func relocateSettled(err *pg.Error, path string, shared bool) {
	field, _ := err.Details["field"].(string)
	switch root, _, _ := strings.Cut(field, "."); root {
	case "worker_id":
		if shared {
			return
		}
		fallthrough
	case "lease", "result", "error":
		kit.Locate(err, path+field)
	}
}

// logUnsettled tells what is not the client's fault, each problem once, however many jobs share it.
func (s *Server) logUnsettled(c echo.Context, many []dispatch.Settlement, settled []dispatch.Settled) {
	jobs, first := map[[2]string]int{}, map[[2]string]int{}
	for i := range settled {
		if settled[i].Err == nil {
			continue
		}
		problem := s.problems.Classify(settled[i].Err)
		if problem.Status < http.StatusInternalServerError {
			continue
		}
		which := [2]string{problem.Code, problem.SQLState}
		if jobs[which]++; jobs[which] == 1 {
			first[which] = i
		}
	}
	for which, i := range first {
		s.log.Error("jobs could not be settled", "request_id", kit.RequestID(c), "jobs", jobs[which], "first", many[i].ID, "error", settled[i].Err)
	}
}

// representation is whether the answer is to hold the whole job: as the preference of RFC 7240 says, else as is usual.
func representation(c echo.Context, usual bool) bool {
	for name, value := range preferences(c) {
		if !strings.EqualFold(name, "return") {
			continue
		}
		whole := strings.EqualFold(value, "representation")
		if whole || strings.EqualFold(value, "minimal") {
			c.Response().Header().Set("Preference-Applied", "return="+strings.ToLower(value))
			return whole
		}
	}
	return usual
}

// preferences are the names and values of the Prefer headers.
func preferences(c echo.Context) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, header := range c.Request().Header.Values("Prefer") {
			for _, preference := range strings.Split(header, ",") {
				preference, _, _ = strings.Cut(preference, ";") // parameters of the preference
				name, value, _ := strings.Cut(preference, "=")
				if !yield(strings.TrimSpace(name), strings.Trim(strings.TrimSpace(value), `"`)) {
					return
				}
			}
		}
	}
}

// jobID is the job of an ack or nack: the path's, or job_id of the body.
func jobID(req *kit.Object, pathID string) string {
	id := req.ID("job_id")
	switch {
	case pathID != "" && id != nil && *id != pathID:
		req.Fail(kit.Invalid(req.At("job_id"), "disagrees with the path"))
	case pathID != "":
		return pathID
	case id == nil:
		req.Missing("job_id")
	default:
		return *id
	}
	return ""
}

func readAck(req *kit.Object, a *dispatch.Settlement) {
	a.Lease, a.Result, a.WorkerID = req.ID("lease"), req.Verbatim("result"), req.Name("worker_id")
}

func (s *Server) appendAcked(w *kit.Writer, job *sqlcgen.OjsJob, whole bool) {
	w.Open()
	w.Flag("acknowledged", true)
	w.Text("id", job.ID)
	w.Text("job_id", job.ID)
	w.Text("state", job.State)
	w.Time("completed_at", job.FinishedAt)
	if whole {
		w.Key("job")
		w.B = s.appendJob(w.B, job)
	}
	w.Close()
}

func readNack(req *kit.Object, n *dispatch.Settlement) {
	n.Lease, n.WorkerID = req.ID("lease"), req.Name("worker_id")
	if requeue := req.Flag("requeue"); requeue != nil {
		n.Requeue = *requeue
	}
	failure := req.Child("error")
	if failure == nil {
		req.Missing("error")
		return
	}
	n.Error = req.Raw("error")
	req.Storable(n.Error, req.At("error"))
	for _, key := range [...]string{"code", "type"} {
		failure.Text(key)
	}
	if failure.Text("message") == nil {
		failure.Missing("message")
	}
	failure.Flag("retryable")
}

func (s *Server) appendNacked(w *kit.Writer, job *sqlcgen.OjsJob, whole bool) {
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
		w.B = s.appendJob(w.B, job)
	}
	w.Close()
}
